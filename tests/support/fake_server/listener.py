"""Being a server: connections, faults, and who carries out a request."""

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeAlias

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.features import Feature
from cmqd_protocol.handshake import AccessKey
from support.fake_server.peer import Peer
from support.fake_server.state import FakeQueue, FakeTopic, now_ms

SECRET_ID = "AKIDfakefakefakefakefakefakefakefake"
SECRET_KEY = "fake-secret-key-fake-secret-key-0123456789"

Fault: TypeAlias = Callable[[Peer, Any], wire.AnyReply | None]
"""What is done with one request instead of carrying it out; None = no answer."""


class Refused(Exception):
    """The request is answered with an error."""

    def __init__(self, code: ErrorCode, text: str, **details: Any) -> None:
        super().__init__(text)
        self.code = code
        self.details = details


class Listener:
    """A port, its connections, faults to order, and the way of a request to the method that is named after it."""

    def __init__(self, *, region: str = "local", heartbeat_ms: int = 30_000, tls: ssl.SSLContext | None = None) -> None:
        self.region = region
        self._tls = tls
        self.heartbeat_ms = heartbeat_ms
        self.features: Iterable[str] = Feature
        """Those that it names to connections made from here on."""
        self.count_refusal: str | None = None
        """Why there are too many connections; None = there are not."""
        self.keys: dict[str, tuple[wire.KeyInfo, str]] = {
            SECRET_ID: (wire.KeyInfo(SECRET_ID, "admin", True, now_ms()), SECRET_KEY)
        }
        self.accounts = ["admin"]
        self.status: dict[str, Any] = {}
        """Further fields of the status; set by a test."""
        self.queues: dict[str, FakeQueue] = {}
        self.topics: dict[str, FakeTopic] = {}
        self.peers: list[Peer] = []
        self.connections_made = 0
        self.port = 0
        self.handled: list[wire.Request | wire.Cancel] = []
        """Every request of every connection, in order."""
        self._faults: defaultdict[type[Any], deque[Fault]] = defaultdict(deque)
        self._answers: dict[tuple[int, int], list[int]] = {}
        self._last_number = 0
        self._arrived = asyncio.Event()
        self._server: asyncio.Server | None = None

    # ------------------------------------------------------------------ being a server

    @property
    def url(self) -> str:
        return f"cmq://{SECRET_ID}:{SECRET_KEY}@127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; again on the same port after a stop."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
            for peer in list(self.peers):
                peer.drop()
            await self._server.wait_closed()
            self._server = None

    def find_key(self, secret_id: str) -> AccessKey | None:
        found = self.keys.get(secret_id)
        if found is None or not found[0].enabled:
            return None
        return AccessKey(found[0].account, found[1])

    @property
    def peer(self) -> Peer:
        """The only connection."""
        (peer,) = self.peers
        return peer

    def of(self, kind: type[Any]) -> list[Any]:
        """The requests of one kind that came, in order."""
        return [request for request in self.handled if type(request) is kind]

    async def wait_handled(self, kind: type[Any], count: int = 1) -> None:
        """Wait until that many requests of a kind have come."""
        while len(self.of(kind)) < count:
            self._arrived.clear()
            await self._arrived.wait()

    # ------------------------------------------------------------------ faults

    def answer(self, kind: type[Any], *functions: Fault) -> None:
        """Do this with the next requests of a kind, one function for each."""
        self._faults[kind].extend(functions)

    def lose_answer(self, kind: type[Any], times: int = 1) -> None:
        def lose(peer: Peer, request: Any) -> None:
            self._carry_out(peer, request)
            peer.drop()

        self.answer(kind, *[lose] * times)

    def drop_request(self, kind: type[Any], times: int = 1) -> None:
        def drop(peer: Peer, request: Any) -> None:
            peer.drop()

        self.answer(kind, *[drop] * times)

    def ignore(self, kind: type[Any], times: int = 1) -> None:
        def ignore(peer: Peer, request: Any) -> None:
            return None

        self.answer(kind, *[ignore] * times)

    def refuse(
        self,
        kind: type[Any],
        code: ErrorCode,
        text: str = "refused",
        *,
        times: int = 1,
        retry_after_ms: int | None = None,
    ) -> None:
        def refuse(peer: Peer, request: Any) -> wire.AnyReply:
            return wire.error(request.request_id, code, text, retry_after_ms=retry_after_ms)

        self.answer(kind, *[refuse] * times)

    # ------------------------------------------------------------------ requests

    def handle(self, peer: Peer, request: wire.Request | wire.Cancel) -> None:
        self.handled.append(request)
        self._arrived.set()
        faults = self._faults[type(request)]
        reply = faults.popleft()(peer, request) if faults else self._carry_out(peer, request)
        if reply is not None:
            peer.answer(reply)

    def _carry_out(self, peer: Peer, request: wire.Request | wire.Cancel) -> wire.AnyReply | None:
        try:
            return getattr(self, f"_{type(request).__name__}")(peer, request)
        except Refused as refused:
            return wire.error(request.request_id, refused.code, str(refused), details=refused.details)
        except KeyError as missing:
            return wire.error(request.request_id, ErrorCode.QUEUE_NOT_FOUND, f"queue {missing} does not exist")

    def queue(self, name: str, **attributes: Any) -> FakeQueue:
        """A queue, made if it is not there."""
        if name not in self.queues:
            self.queues[name] = FakeQueue(self._number(), name, attributes)
        return self.queues[name]

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number
