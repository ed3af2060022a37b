"""An endpoint for pushes: a real aiohttp server on loopback that records requests, and misbehaves as ordered.

    async with WebhookReceiver() as receiver:
        receiver.next("/hook", answer(503), hang())      a behaviour for each of the next requests to a path
        receiver.always("/other", answer(500))           for every request to a path
        ... receiver.url("/hook") ...
        await receiver.wait_for(3)
        receiver.received[0].body

Without an order every request is answered with an empty 200.
"""

import asyncio
import socket
import ssl
import struct
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Self, TypeAlias

from aiohttp import web
from multidict import CIMultiDict

Behaviour: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Received:
    """A request with its body."""

    def __init__(self, request: web.BaseRequest, body: bytes, connection: int) -> None:
        self.method = request.method
        self.target = request.raw_path
        self.headers: CIMultiDict[str] = CIMultiDict(request.headers)
        self.body = body
        self.connection = connection
        """The number of its connection, counted from 1."""

    def __repr__(self) -> str:
        return f"<Received {self.method} {self.target} {self.headers.get('x-cmq-message-id')}>"


class WebhookReceiver:
    """See the module."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.received: list[Received] = []
        """In order of arrival, with requests that are never answered."""
        self.port = 0
        self.at_once = 0
        self.most_at_once = 0
        """The highest number of requests that were answered at the same time."""
        self._tls = tls
        self._next: defaultdict[str, deque[Behaviour]] = defaultdict(deque)
        self._always: dict[str, Behaviour] = {}
        self._connections: dict[object, int] = {}
        self._arrived = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def connections(self) -> int:
        """Connections that brought a request."""
        return max((one.connection for one in self.received), default=0)

    def url(self, path: str = "/") -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}{path}"

    def next(self, path: str, *behaviours: Behaviour) -> None:
        """Order a behaviour for each of the next requests to a path."""
        self._next[path].extend(behaviours)

    def always(self, path: str, behaviour: Behaviour) -> None:
        """Order a behaviour for every request to a path, after the behaviours ordered with ``next``."""
        self._always[path] = behaviour

    async def wait_for(self, count: int) -> list[Received]:
        """The requests, once this number has arrived."""
        while len(self.received) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return self.received

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; again on the same port after a stop."""
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            number = self._connections.setdefault(request.protocol, len(self._connections) + 1)
            self.received.append(Received(request, await request.content.read(), number))
            self._arrived.set()
            ordered = self._next[request.path]
            behaviour = ordered.popleft() if ordered else self._always.get(request.path)
            return web.Response() if behaviour is None else await behaviour(request)
        finally:
            self.at_once -= 1


def answer(status: int = 200, body: bytes = b"", *, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return behave


def redirect(location: str, status: int = 302) -> Behaviour:
    return answer(status, headers={"Location": location})


def answer_when(event: asyncio.Event) -> Behaviour:
    """Answer slowly: as soon as the event is set."""

    async def behave(request: web.BaseRequest) -> web.StreamResponse:
        await event.wait()
        return web.Response()

    return behave


def answer_after(seconds: float) -> Behaviour:
    async def behave(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.Response()

    return behave


def hang() -> Behaviour:
    """Never answer."""
    return answer_when(asyncio.Event())


def disconnect() -> Behaviour:
    """Reset the connection instead of answering."""

    async def behave(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        connected: socket.socket = request.transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
        await asyncio.Event().wait()
        raise AssertionError("dropped connections are cancelled")

    return behave


def say(raw: bytes, *, then_close: bool = True) -> Behaviour:
    """Write these bytes, valid HTTP or not, and close or hang."""

    async def behave(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(raw)
        if then_close:
            request.transport.close()
        await asyncio.Event().wait()
        raise AssertionError("dropped connections are cancelled")

    return behave


def silent_body(status: int = 200) -> Behaviour:
    """Headers, and a body that never comes."""
    return say(b"HTTP/1.1 %d Fine\r\nContent-Length: 10\r\n\r\n" % status, then_close=False)


def big_body(size: int) -> Behaviour:
    return answer(200, bytes(size))


def endless_body() -> Behaviour:
    """As much as the other side takes, without end."""

    async def behave(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(16_384))

    return behave
