"""HTTP clients for load, as cheap as possible: a kept-alive connection with one request outstanding."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
CLOSES = b"\r\nconnection: close"


class HttpFailed(Exception):
    """The server answered with a status other than 2xx, or closed the connection; the text holds the answer."""


OnAnswer: TypeAlias = Callable[[bytes], None]
"""Takes the body of an answer."""
OnFailed: TypeAlias = Callable[[HttpFailed], None]


class HttpConnection(asyncio.Protocol):
    """A connection that calls back with the body of each answer."""

    def __init__(self, on_answer: OnAnswer, on_failed: OnFailed) -> None:
        self.on_answer = on_answer
        self.on_failed = on_failed
        """Called when an answer is a refusal, and when the connection is lost; later errors are not reported."""
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self.is_over = False
        """True if the connection takes no more requests."""

    def write(self, request: bytes) -> None:
        """Send a request; the former request must have its answer."""
        assert self._transport is not None
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection; nothing is called back any more."""
        if not self.is_over and self._transport is not None:
            self._transport.close()
        self.is_over = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
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
        if head.startswith(b"2", head.find(b" ") + 1):
            self.on_answer(data[body_start : body_start + length])
        else:
            self._fail(data[:2_000].decode(errors="replace"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_over:
            self._fail("the server closed the connection")

    def _fail(self, text: str) -> None:
        self.close()
        self.on_failed(HttpFailed(text))


class HttpCaller:
    """A caller with a connection; a connection that the server closes after an answer is opened again."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._connection: HttpConnection | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self.opened = 0
        """Number of connections so far."""

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            HttpFailed: the answer is a refusal, or the connection was lost before it.
            OSError: the connection was refused.
        """
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is None or connection.is_over:
            _, connection = await loop.create_connection(
                lambda: HttpConnection(self._answered, self._failed), *self._address
            )
            self._connection = connection
            self.opened += 1
        self._answer = loop.create_future()
        connection.write(request)
        return await self._answer

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _answered(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(body)

    def _failed(self, failure: HttpFailed) -> None:
        # An idle connection that the server closes fails no request; the next request opens another connection.
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)
