"""An HTTP client for load: a kept-alive connection with one request outstanding, as cheap as possible."""

import asyncio
from typing import cast

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
CLOSES = b"\r\nconnection: close"


class HttpFailed(Exception):
    """The server answered with a status other than 2xx, or closed the connection; the text holds the answer."""


class HttpCaller:
    """A caller with a connection; a connection that the server closes after an answer is opened again."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._connection: _Connection | None = None
        self.opened = 0
        """Number of connections so far."""

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            HttpFailed: see the class.
            OSError: the connection was refused.
        """
        connection = self._connection
        if connection is None or connection.is_over:
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._address)
            self._connection = connection
            self.opened += 1
        return await connection.exchange(request)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None
        self.is_over = False
        """True if the connection takes no more requests."""

    def exchange(self, request: bytes) -> "asyncio.Future[bytes]":
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self.is_over = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        end = data.find(HEAD_END)
        if end < 0:
            return
        head = data[:end].lower()
        start = head.find(LENGTH)
        length = int(head[start + len(LENGTH) :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        body_start = end + len(HEAD_END)
        if len(data) < body_start + length:
            return
        self._data = b""
        if CLOSES in head:
            self.close()
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if head.split(b" ", 2)[1].startswith(b"2"):
            answer.set_result(data[body_start : body_start + length])
        else:
            answer.set_exception(HttpFailed(data[:2_000].decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HttpFailed("the server closed the connection before the answer"))
