"""Opening a connection of the load: the handshake by ``cmqd_protocol``, then the transport belongs to the load."""

import asyncio
import os
import socket
import ssl
import time
from typing import cast

from cmqd_client.address import Address, parse_address
from cmqd_load.wire import LoadConnection
from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded, Opened

CONNECT_SECONDS = 60.0
"""Seconds for a handshake. A server with ten thousand connections may need some of the time; longer is a hang."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _client(address: Address) -> ClientConnection:
    return ClientConnection(
        secret_id=address.secret_id,
        secret_key=address.secret_key,
        nonce=os.urandom(32),
        now_ms=_now_ms(),
        region=address.region,
        product="cmqd_load",
        name="cmqd_load" if address.name is None else address.name,
    )


def authenticate_blocking(address: Address | str, connection: socket.socket) -> None:
    """Authenticate a blocking connection.

    Raises:
        ConnectionError: the server refuses or closes the connection.
    """
    client = _client(_parsed(address))
    while True:
        for piece in client.data_to_send(_now_ms()):
            connection.sendall(piece)
        for event in client.events():
            if isinstance(event, ConnectionEnded):
                raise ConnectionError(f"the server refused a connection: {event.name}: {event.text}")
            if isinstance(event, Opened):
                return
        data = connection.recv(65_536)
        if not data:
            raise ConnectionError("the server closed the connection during the handshake")
        client.receive_data(data, _now_ms())


class Handshake(asyncio.Protocol):
    """Authenticates, then hands its transport to a LoadConnection, the result of ``opened``."""

    def __init__(self, address: Address) -> None:
        self.opened: asyncio.Future[LoadConnection] = asyncio.get_running_loop().create_future()
        self._connection = _client(address)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # uvloop's transports are asyncio's in all but inheritance.
        self._transport = cast("asyncio.Transport", transport)
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the opening."""
        self._fail(str(exc or "the server closed the connection during the handshake"))

    def data_received(self, data: bytes) -> None:
        """Continue the handshake."""
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


def _parsed(address: Address | str) -> Address:
    return parse_address(address) if isinstance(address, str) else address


async def open_connection(address: Address | str, seconds: float = CONNECT_SECONDS) -> LoadConnection:
    """Open an authenticated connection to the first host of an address, or of a URL.

    Raises:
        OSError: the server cannot be reached or refuses the connection; TimeoutError: it does not answer.
    """
    server = _parsed(address)
    context = ssl.create_default_context() if server.tls else None
    try:
        async with asyncio.timeout(seconds):
            _, handshake = await asyncio.get_running_loop().create_connection(
                lambda: Handshake(server), server.host, server.port, ssl=context
            )
            return await handshake.opened
    except TimeoutError:
        raise TimeoutError(f"no connection to {server.host}:{server.port} in {seconds:.0f} s") from None
