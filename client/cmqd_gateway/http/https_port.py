"""The sockets of an HTTPS port between arrival and HTTP: their number, their time, the certificate in use.

    accepted ──► first byte ──► 0x16: TLS handshake ──► connection_guard ──► aiohttp
                     └──► any other byte: a refusal in plain HTTP, close

Rules:

- A socket counts among the connections from its arrival on: it has a seat, which the connection takes over at the end
  of the handshake.
- The first byte and the handshake together have the time of a slow client.
- The first byte stays in the socket (``MSG_PEEK``), because TLS reads the byte again.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from cmqd_gateway.http.connection_guard import ConnectionGuard, ConnectionGuards
from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_sockets.tls import TLS_HANDSHAKE, Arrival

_log = get_logger()

_PLAIN_TEXT: Final = b"This port takes HTTPS only: begin the URL with https://\n"
REFUSAL: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%s" % (len(_PLAIN_TEXT), _PLAIN_TEXT)
)
PLAIN_CLOSE_SECONDS: Final = 1.0
_PLAIN_READS: Final = 16
_READ_BYTES: Final = 4_096
LEAST_HANDSHAKE_SECONDS: Final = 0.1


class TlsPort:
    """The arrivals of an HTTPS port; see the module."""

    def __init__(
        self,
        context: ssl.SSLContext,
        guards: ConnectionGuards,
        make_connection: Callable[[], ConnectionGuard],
        slow_seconds: float,
    ) -> None:
        """Make the port.

        Args:
            context: TLS of the first handshakes.
            guards: the connections, which give out the seats.
            make_connection: returns the protocol, with a seat, for a connection.
            slow_seconds: time for the first byte and the handshake.
        """
        self.context: ssl.SSLContext = context
        """TLS of the handshakes that begin from now on; a reload replaces the context."""
        self._guards = guards
        self._make_connection = make_connection
        self._slow_seconds = slow_seconds
        self._arriving: set[asyncio.Task[None]] = set()

    def make_arrival(self) -> asyncio.Protocol:
        """Return the protocol for a socket that was just accepted."""
        return Arrival(self._arrived, lambda failure: _log.warning("connection_not_accepted", reason=str(failure)))

    async def close(self) -> None:
        """Close the sockets whose handshake has not ended."""
        for task in self._arriving:
            task.cancel()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _arrived(self, arrived: socket.socket) -> None:
        if not self._guards.reserve():
            arrived.close()
            return
        task = asyncio.get_running_loop().create_task(self._admit(arrived))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _admit(self, arrived: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        guard: ConnectionGuard | None = None
        deadline = loop.time() + self._slow_seconds
        try:
            async with asyncio.timeout_at(deadline):
                first = await _first_byte(arrived)
            if first == TLS_HANDSHAKE:
                connection = guard = self._make_connection()
                await loop.connect_accepted_socket(
                    lambda: connection,
                    arrived,
                    ssl=self.context,
                    ssl_handshake_timeout=max(LEAST_HANDSHAKE_SECONDS, deadline - loop.time()),
                )
            elif first:
                await _refuse_plain(arrived)
        except (OSError, TimeoutError) as failure:
            # No line above debug: a stranger could fill the log.
            _log.debug("tls_handshake_failed", reason=str(failure) or type(failure).__name__)
        finally:
            if guard is None or guard.transport is None:
                # No connection took the seat and the socket over.
                self._guards.release()
                arrived.close()


async def _first_byte(arrived: socket.socket) -> bytes:
    """Wait for the first byte and leave the byte in the socket; empty if the client has gone."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(arrived.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(arrived.fileno())
    return arrived.recv(1, socket.MSG_PEEK)


async def _refuse_plain(arrived: socket.socket) -> None:
    """Send the refusal, and read until the client has read it.

    A close with unread bytes of the client would reset the connection, and the reset would overtake the refusal.
    """
    loop = asyncio.get_running_loop()
    arrived.send(REFUSAL)
    arrived.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(PLAIN_CLOSE_SECONDS):
        for _ in range(_PLAIN_READS):
            if not await loop.sock_recv(arrived, _READ_BYTES):
                break
