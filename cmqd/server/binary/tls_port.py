"""The door of a TLS port: the first byte of a connection decides whether TLS begins or a plain client is told.

A TLS handshake begins with byte 0x16, a preamble of this protocol with ``C``. A TLS server of asyncio fails at the
preamble, and a client without ``tls=1`` sees a connection that closes without a reason. So the port accepts plain
sockets, reads the first byte with ``MSG_PEEK``, and hands the socket either to TLS or to ``_PlainClient``. The byte
stays in the socket, because TLS reads it again.

A socket at the door is bounded in time and number like a connection that has not authenticated.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from cmqd.server.broker_logger import get_logger
from cmqd_protocol.frames import encode_preamble, frame
from cmqd_protocol.handshake import VERSION
from cmqd_protocol.messages import encoder, error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_sockets.tls import TLS_HANDSHAKE, Arrival

_log = get_logger()

PLAIN_TEXT: Final = "this port takes TLS connections only: add ?tls=1 to the URL, or connect with TLS"
# A client waits for the server's preamble before it says hello, and any version reads an error in the hello's place.
REFUSAL: Final = encode_preamble(VERSION, 0) + frame(encoder.encode(error(0, ErrorCode.MALFORMED_FRAME, PLAIN_TEXT)))
PLAIN_CLOSE_S: Final = 1.0
PLAIN_MOST_BYTES: Final = 64 * 1024


class TlsPort:
    """The sockets of a TLS port between arrival and TLS handshake."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        make_connection: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
        timeout_s: float,
    ) -> None:
        """``has_room`` gets the number of sockets at the door and returns whether another may come."""
        self.context = context
        """For the handshakes that begin from now on; a reload replaces it."""
        self._loop = loop
        self._make_connection = make_connection
        self._has_room = has_room
        self._timeout_s = timeout_s
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def make_arrival(self) -> asyncio.Protocol:
        """Return the protocol for a socket that was just accepted."""
        return Arrival(self._arrived, lambda failure: _log.warning("connection_not_accepted", reason=str(failure)))

    def close(self) -> None:
        """Close the sockets without a first byte; handshakes under way end by their time limit."""
        for arrived in list(self._waiting):
            self._forget(arrived)
            arrived.close()

    def _arrived(self, arrived: socket.socket) -> None:
        if not self._has_room(len(self._waiting) + len(self._tasks)):
            arrived.close()
            return
        self._waiting[arrived] = self._loop.call_later(self._timeout_s, self._expired, arrived)
        self._loop.add_reader(arrived.fileno(), self._readable, arrived)

    def _forget(self, arrived: socket.socket) -> None:
        self._waiting.pop(arrived).cancel()
        self._loop.remove_reader(arrived.fileno())

    def _expired(self, arrived: socket.socket) -> None:
        self._forget(arrived)
        arrived.close()

    def _readable(self, arrived: socket.socket) -> None:
        try:
            first = arrived.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        self._forget(arrived)
        if first == TLS_HANDSHAKE:
            self._spawn(self._begin_tls(arrived))
        elif first:
            self._spawn(self._refuse(arrived))
        else:
            arrived.close()

    async def _begin_tls(self, arrived: socket.socket) -> None:
        peer = _peer_text(arrived)
        try:
            await self._loop.connect_accepted_socket(
                self._make_connection, arrived, ssl=self.context, ssl_handshake_timeout=self._timeout_s
            )
        except (OSError, TimeoutError) as failure:
            _log.debug("tls_handshake_failed", peer=peer, reason=str(failure) or type(failure).__name__)
            arrived.close()

    async def _refuse(self, arrived: socket.socket) -> None:
        peer = _peer_text(arrived)
        _log.info("plain_bytes_on_tls_port", peer=peer, text=PLAIN_TEXT)
        try:
            await self._loop.connect_accepted_socket(lambda: _PlainClient(self._loop), arrived)
        except OSError:
            arrived.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _PlainClient(asyncio.Protocol):
    """Sends the refusal to a client without TLS, and closes after the client had time to read it.

    Closing at once would reset the connection if bytes of the client are unread, and the reset would overtake the
    error.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(PLAIN_CLOSE_S, self._transport.abort)
        self._transport.write(REFUSAL)
        self._transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > PLAIN_MOST_BYTES:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()


def _peer_text(arrived: socket.socket) -> str:
    try:
        host, port = arrived.getpeername()[:2]
    except OSError:
        return "gone"
    return f"{host}:{port}"
