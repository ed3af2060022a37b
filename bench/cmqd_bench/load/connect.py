"""Opening a connection of the load: the handshake by ``cmqd_protocol``, then the transport belongs to the load."""

import asyncio
import os
import time
from typing import cast
from urllib.parse import unquote, urlsplit

from cmqd_bench.load.wire import LoadConnection
from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded, Opened

CONNECT_SECONDS = 60.0
"""Seconds for a handshake. A server with ten thousand connections may need some of the time; longer is a hang."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Handshake(asyncio.Protocol):
    """Authenticates, then hands its transport to a LoadConnection, the result of ``opened``."""

    def __init__(self, secret_id: str, secret_key: str) -> None:
        self.opened: asyncio.Future[LoadConnection] = asyncio.get_running_loop().create_future()
        self._connection = ClientConnection(
            secret_id=secret_id,
            secret_key=secret_key,
            nonce=os.urandom(32),
            now_ms=_now_ms(),
            product="cmqd_bench",
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but inheritance.
        self._transport = cast("asyncio.Transport", transport)
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "the server closed the connection during the handshake"))

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data, _now_ms())
        self._write()
        for event in self._connection.events():
            if isinstance(event, ConnectionEnded):
                self._fail(f"{event.name}: {event.text}")
            elif isinstance(event, Opened) and not self.opened.done():
                load = LoadConnection(self._transport, event.heartbeat_ms)
                self._transport.set_protocol(load)
                self.opened.set_result(load)

    def _write(self) -> None:
        self._transport.writelines(self._connection.data_to_send(_now_ms()))

    def _fail(self, text: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(text))


async def open_connection(url: str) -> LoadConnection:
    """Open an authenticated connection to ``cmq://ID:KEY@host:port``.

    Raises ConnectionError when the server refuses the connection, TimeoutError without an answer.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    secret_id, secret_key = unquote(parts.username or ""), unquote(parts.password or "")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, handshake = await asyncio.get_running_loop().create_connection(
                lambda: Handshake(secret_id, secret_key), parts.hostname, parts.port
            )
            return await handshake.opened
    except TimeoutError:
        raise TimeoutError(f"no connection to {parts.hostname}:{parts.port} in {CONNECT_SECONDS:.0f} s") from None
