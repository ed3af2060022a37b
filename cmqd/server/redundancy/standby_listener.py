"""The listening socket of a standby: every connection is refused with ``standby`` and the addresses of the leader.

The refusal comes with the first bytes of the client, before its key is looked at: a standby may not have the newest
keys. No request can reach a standby, so none has to be held or undone when the broker leads at last.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final, cast

from cmqd.server.binary.listener import BACKLOG
from cmqd.server.clients.connection_timer import local_ms
from cmqd.server.process.listening import tls_context_of
from cmqd.settings import Settings
from cmqd_protocol.limits import NONCE_BYTES
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_protocol.server_connection import ServerConnection

MAX_CONNECTIONS: Final = 1_000
"""Connections that have sent nothing yet; more are closed unanswered."""
TEXT: Final = "this server is a standby and answers no requests"


class StandbyListener:
    """Refuses connections; see the module."""

    def __init__(self, settings: Settings, addresses: Callable[[], list[str]]) -> None:
        """Take the settings, and the function that returns the addresses of the leader as known now."""
        self._settings = settings
        self._addresses = addresses
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._open: set[_Refused] = set()
        self.address = ("", 0)
        """Host and port, once it listens."""
        self.refused = 0
        """Connections that were refused."""

    async def start(self) -> tuple[str, int]:
        """Listen; return the bound address. Raises OSError, ssl.SSLError."""
        host, port = self._settings.listen_address
        self._server = await self._loop.create_server(
            lambda: _Refused(self), host, port, backlog=BACKLOG, reuse_address=True, ssl=tls_context_of(self._settings)
        )
        self.address = self._server.sockets[0].getsockname()[:2]
        return self.address

    def stop(self) -> None:
        """Free the address, and close the connections: clients connect again, to the leader."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()

    def made(self, connection: "_Refused") -> bool:
        """Count a connection; False if there are too many."""
        if len(self._open) >= MAX_CONNECTIONS:
            return False
        self._open.add(connection)
        return True

    def lost(self, connection: "_Refused") -> None:
        """Forget a connection."""
        self._open.discard(connection)

    def refusal(self, data: bytes) -> list[bytes]:
        """Return the answer to the first bytes of a client."""
        self.refused += 1
        now_ms = local_ms()
        settings = self._settings
        wire = ServerConnection(
            nonce=os.urandom(NONCE_BYTES),
            find_key=lambda _secret_id: None,
            region=settings.region,
            connection_id=0,
            now_ms=now_ms,
        )
        # First, because bytes of another protocol have an answer of their own.
        wire.receive_data(data, now_ms)
        details: dict[str, Any] = {"addresses": self._addresses(), "shard": settings.shard}
        wire.end(ErrorCode.STANDBY, TEXT, details=details)
        return wire.data_to_send(now_ms)

    @property
    def timeout_s(self) -> float:
        """Time in which a client must send its first bytes."""
        return self._settings.authentication_timeout_ms / 1000


class _Refused(asyncio.Protocol):
    """A connection of a client."""

    def __init__(self, listener: StandbyListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an asyncio.Transport by inheritance: uvloop's transports are classes of their own.
        self._transport = cast("asyncio.Transport", transport)
        if self._listener.made(self):
            self._timeout = asyncio.get_running_loop().call_later(self._listener.timeout_s, self._transport.abort)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(self._listener.refusal(data))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.lost(self)
        if self._timeout is not None:
            self._timeout.cancel()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
