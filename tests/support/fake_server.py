"""A small server for tests of clients: the real protocol over a loopback socket, queues in lists, faults to order.

It keeps the semantics that a client can observe in a few steps (numbered sends, waiting receives in order of arrival,
handles, cancellation, counts) and no more. Nothing happens by itself: no lease ends, nobody is asked about half
messages unless a test says so (``check``), a redrive has moved everything when it is answered unless a test holds it
up. What goes wrong is ordered beforehand, per kind of request::

    server.lose_answer(SendMessages)            carry it out, then drop the connection instead of answering
    server.drop_request(SendMessages)           drop the connection without carrying it out
    server.ignore(SendMessages)                 never answer
    server.refuse(SendMessages, code, ...)      answer with an error
    server.answer(kind, function)               answer what the function returns (None: nothing)
"""

import asyncio
import os
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Self, TypeAlias, cast

import msgspec

from cmqd_protocol import messages as wire
from cmqd_protocol.connection import ServerConnection
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.events import Authenticated, ConnectionEnded, RequestRefused
from cmqd_protocol.handshake import AccessKey

SECRET_ID = "AKIDfakefakefakefakefakefakefakefake"
SECRET_KEY = "fake-secret-key-fake-secret-key-0123456789"
DEFAULTS: dict[str, Any] = {
    "polling_wait_ms": 200,
    "visibility_timeout_ms": 30_000,
    "max_message_bytes": 65_536,
    "retention_ms": 345_600_000,
    "delay_ms": 0,
    "max_backlog": 100_000_000,
    "max_delayed": 1_000_000,
    "rewind_ms": 0,
    "dead_letter_queue": "",
    "dead_letter_max_receives": 0,
    "dead_letter_after_ms": 0,
    "transactional": False,
    "first_check_ms": 5_000,
    "max_checks": 15,
}

Fault: TypeAlias = "Callable[[Peer, Any], wire.AnyReply | None]"
"""What is done with one request instead of carrying it out; None = no answer."""


class Stored(msgspec.Struct):
    """A message and how often it was received."""

    message_id: int
    body: bytes
    headers: wire.Headers | None
    enqueue_ms: int
    delayed: bool = False
    receive_count: int = 0
    first_receive_ms: int = 0
    origin: wire.Origin | None = None


class Half(msgspec.Struct):
    """An undecided half message."""

    stored: Stored
    first_check_ms: int
    checks: int = 0
    last_check_ms: int = 0
    last_answer: str = ""


class FakeQueue:
    def __init__(self, number: int, name: str, attributes: dict[str, Any]) -> None:
        self.number = number
        self.name = name
        self.attributes = DEFAULTS | attributes
        self.created_ms = _now_ms()
        self.active: deque[Stored] = deque()
        self.in_flight: dict[int, Stored] = {}
        self.waiting: list[tuple[Peer, wire.ReceiveMessages]] = []
        self.rewindable: list[Stored] = []
        self.half: dict[int, Half] = {}
        self.decided: dict[int, int] = {}
        """Decisions by message id."""
        self.dedup: dict[str, int] = {}
        self.redrive: wire.RedriveStatus | None = None
        self.hold_redrive = ""
        """Why a redrive is held up; set by a test."""
        self.checkers: list[Peer] = []

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.active]


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "FakeServer") -> None:
        self.server = server
        self.number = server.connections_made + 1
        self.requests: list[wire.Request | wire.Cancel] = []
        self.reads = 0
        self.wire = ServerConnection(
            nonce=os.urandom(32),
            find_key=server.find_key,
            region=server.region,
            connection_id=self.number,
            now_ms=_now_ms(),
            product="fake/1",
            heartbeat_ms=server.heartbeat_ms,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.connections_made += 1
        self.server.peers.append(self)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.wire.receive_data(data, _now_ms())
        for event in self.wire.events():
            if isinstance(event, ConnectionEnded):
                self.flush()
                self.transport.close()
                return
            if isinstance(event, (Authenticated, RequestRefused)):
                continue
            self.requests.append(event)
            self.server.handle(self, event)
        self.flush()

    def answer(self, reply: wire.AnyReply) -> None:
        if self.wire.is_open:
            self.wire.send(reply)
            self.flush()

    def flush(self) -> None:
        if not self.transport.is_closing():
            self.transport.writelines(self.wire.data_to_send(_now_ms()))

    def drop(self) -> None:
        """Lose the connection at once, with what was not written."""
        self.wire.closed()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire.closed()
        if self in self.server.peers:
            self.server.peers.remove(self)
        for queue in self.server.queues.values():
            queue.waiting = [(peer, request) for peer, request in queue.waiting if peer is not self]
            if self in queue.checkers:
                queue.checkers.remove(self)


class FakeServer:
    """See the module; an async context manager that listens on a port of its own."""

    def __init__(self, *, region: str = "local", heartbeat_ms: int = 30_000, tls: ssl.SSLContext | None = None) -> None:
        self.region = region
        self._tls = tls
        self.heartbeat_ms = heartbeat_ms
        self.keys: dict[str, tuple[wire.KeyInfo, str]] = {
            SECRET_ID: (wire.KeyInfo(SECRET_ID, "admin", True, _now_ms()), SECRET_KEY)
        }
        self.accounts = ["admin"]
        self.queues: dict[str, FakeQueue] = {}
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
        async with asyncio.timeout(10):
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
        if isinstance(request, wire.Cancel):
            self._cancel(peer, request.request_id)
            return None
        try:
            return getattr(self, f"_{type(request).__name__}")(peer, request)
        except KeyError as missing:
            return wire.error(request.request_id, ErrorCode.QUEUE_NOT_FOUND, f"queue {missing} does not exist")

    def queue(self, name: str, **attributes: Any) -> FakeQueue:
        """A queue, made if it is not there."""
        if name not in self.queues:
            self.queues[name] = FakeQueue(self._number(), name, attributes)
        return self.queues[name]

    def put(self, queue: str, *bodies: bytes, headers: wire.Headers | None = None, delayed: bool = False) -> list[int]:
        """Messages out of nowhere; those who wait get them."""
        found = self.queues[queue]
        stored = [Stored(self._number(), body, headers, _now_ms(), delayed) for body in bodies]
        found.active.extend(stored)
        self._serve_waiting(found)
        return [message.message_id for message in stored]

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _SendMessages(self, peer: Peer, request: wire.SendMessages) -> wire.AnyReply:
        found = self.queues[request.queue]
        number = (request.session, request.sequence)
        limit = found.attributes["max_message_bytes"]
        for index, body in enumerate(request.bodies):
            if not 1 <= len(body) <= limit:
                text = f"body {index} has {len(body)} bytes; queue {found.name!r} takes 1 to {limit}"
                return wire.error(request.request_id, ErrorCode.MESSAGE_TOO_LARGE, text, details={"limit": limit})
        if number not in self._answers or not request.sequence:
            headers = request.headers or [None] * len(request.bodies)
            delays = (
                request.delay_ms if isinstance(request.delay_ms, list) else [request.delay_ms] * len(request.bodies)
            )
            dedup_ids = request.dedup_ids or [None] * len(request.bodies)
            ids: list[int] = []
            for body, entry, delay, dedup_id in zip(request.bodies, headers, delays, dedup_ids, strict=True):
                found_id = None if dedup_id is None else found.dedup.get(dedup_id)
                if found_id is None:
                    (found_id,) = self.put(request.queue, body, headers=entry, delayed=bool(delay))
                    if dedup_id is not None:
                        found.dedup[dedup_id] = found_id
                ids.append(found_id)
            self._answers[number] = ids
        return wire.MessagesSent(request.request_id, self._answers[number])

    def _ReceiveMessages(self, peer: Peer, request: wire.ReceiveMessages) -> wire.AnyReply | None:
        found = self.queues[request.queue]
        messages = self._take(found, request.max_messages)
        wait_ms = found.attributes["polling_wait_ms"] if request.wait_ms is None else request.wait_ms
        if messages or not wait_ms:
            return wire.MessagesReceived(request.request_id, messages)
        waiting = (peer, request)
        found.waiting.append(waiting)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._end_wait, found, waiting)
        return None

    def _take(self, queue: FakeQueue, count: int) -> list[wire.ReceivedMessage]:
        taken: list[wire.ReceivedMessage] = []
        for message in [message for message in queue.active if not message.delayed][:count]:
            queue.active.remove(message)
            handle = 2**63 + self._number()
            message.receive_count += 1
            message.first_receive_ms = message.first_receive_ms or _now_ms()
            queue.in_flight[handle] = message
            taken.append(
                wire.ReceivedMessage(
                    message.message_id,
                    handle,
                    message.body,
                    message.enqueue_ms,
                    message.first_receive_ms,
                    _now_ms() + queue.attributes["visibility_timeout_ms"],
                    message.receive_count,
                    message.headers,
                    message.origin,
                )
            )
        return taken

    def _serve_waiting(self, queue: FakeQueue) -> None:
        while queue.waiting:
            messages = self._take(queue, queue.waiting[0][1].max_messages)
            if not messages:
                return
            peer, request = queue.waiting.pop(0)
            peer.answer(wire.MessagesReceived(request.request_id, messages))

    def _end_wait(self, queue: FakeQueue, waiting: tuple[Peer, wire.ReceiveMessages]) -> None:
        if waiting in queue.waiting:
            queue.waiting.remove(waiting)
            waiting[0].answer(wire.MessagesReceived(waiting[1].request_id, []))

    def _cancel(self, peer: Peer, request_id: int) -> None:
        for queue in self.queues.values():
            for waiting in queue.waiting:
                if waiting[0] is peer and waiting[1].request_id == request_id:
                    queue.waiting.remove(waiting)
                    peer.answer(wire.error(request_id, ErrorCode.CANCELLED, "cancelled"))
                    return

    def _handles(self, request: Any, use: Callable[[FakeQueue, int], None], next_visible_ms: int = 0) -> wire.AnyReply:
        found = self.queues[request.queue]
        failures: list[wire.HandleFailure] = []
        for handle in request.receipt_handles:
            if handle in found.in_flight:
                use(found, handle)
            else:
                code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
                failures.append(wire.HandleFailure(handle, code, f"receipt handle {handle} is not valid"))
        return wire.HandlesDone(request.request_id, failures, next_visible_ms)

    def _DeleteMessages(self, peer: Peer, request: wire.DeleteMessages) -> wire.AnyReply:
        def delete(queue: FakeQueue, handle: int) -> None:
            message = queue.in_flight.pop(handle)
            if queue.attributes["rewind_ms"]:
                queue.rewindable.append(message)

        return self._handles(request, delete)

    def _ChangeVisibility(self, peer: Peer, request: wire.ChangeVisibility) -> wire.AnyReply:
        timeout_ms = request.visibility_timeout_ms
        if not timeout_ms:
            return self._handles(request, lambda queue, handle: self._give_back(queue, handle, True))
        return self._handles(request, lambda queue, handle: None, _now_ms() + timeout_ms)

    def _ReleaseMessages(self, peer: Peer, request: wire.ReleaseMessages) -> wire.AnyReply:
        return self._handles(request, lambda queue, handle: self._give_back(queue, handle, request.count_receive))

    def _give_back(self, queue: FakeQueue, handle: int, count: bool) -> None:
        message = queue.in_flight.pop(handle)
        if not count:
            message.receive_count -= 1
        queue.active.appendleft(message)
        self._serve_waiting(queue)

    def _PeekMessages(self, peer: Peer, request: wire.PeekMessages) -> wire.AnyReply:
        found = self.queues[request.queue]
        everything = [(one, "delayed" if one.delayed else "active") for one in found.active]
        everything += [(one, "in_flight") for one in found.in_flight.values()]
        everything += [(one.stored, "half") for one in found.half.values()]
        everything += [(one, "rewindable") for one in found.rewindable]
        wanted = request.states or ["active", "in_flight", "delayed", "half"]
        everything = [(one, state) for one, state in everything if state in wanted]
        everything.sort(key=lambda pair: pair[0].message_id)
        page = everything[request.start : request.start + request.max_messages]
        end = request.start + len(page)
        return wire.MessagesPeeked(
            request.request_id,
            [
                wire.PeekedMessage(
                    one.message_id,
                    state,
                    one.body,
                    one.enqueue_ms,
                    one.enqueue_ms * one.delayed,
                    one.receive_count,
                    one.headers,
                    one.origin,
                )
                for one, state in page
            ],
            end if end < len(everything) else None,
        )

    # ------------------------------------------------------------------ queues

    def _info(self, request_id: int, queue: FakeQueue, created: bool = False) -> wire.AnyReply:
        counts = {
            "active": sum(not message.delayed for message in queue.active),
            "in_flight": len(queue.in_flight),
            "delayed": sum(message.delayed for message in queue.active),
            "half": len(queue.half),
            "rewindable": len(queue.rewindable),
        }
        oldest = min((one.enqueue_ms for one in (*queue.active, *queue.in_flight.values())), default=None)
        facts: dict[str, Any] = {
            "created_ms": queue.created_ms,
            "modified_ms": queue.created_ms,
            "oldest_message_ms": oldest,
        }
        if sources := self._sources(queue.name):
            facts["dead_letter_sources"] = [name for _, name in sources]
        return wire.QueueInfo(request_id, queue.name, queue.number, queue.attributes, counts, facts, created)

    def _check(self, request: Any) -> wire.AnyReply | None:
        for name, value in request.attributes.items():
            if name == "visibility_timeout_ms" and not 1000 <= value <= 43_200_000:
                text = f"{name} is {value}; it must be an integer from 1000 to 43200000"
                details = {"field": name, "value": value, "limit": "an integer from 1000 to 43200000"}
                return wire.error(request.request_id, ErrorCode.INVALID_ARGUMENT, text, details=details)
        return None

    def _CreateQueue(self, peer: Peer, request: wire.CreateQueue) -> wire.AnyReply:
        if request.queue in self.queues:
            return wire.error(request.request_id, ErrorCode.QUEUE_EXISTS, f"queue {request.queue!r} already exists")
        return self._check(request) or self._info(
            request.request_id, self.queue(request.queue, **request.attributes), True
        )

    def _EnsureQueue(self, peer: Peer, request: wire.EnsureQueue) -> wire.AnyReply:
        found = self.queues.get(request.queue)
        if found is None:
            return self._CreateQueue(peer, wire.CreateQueue(request.request_id, request.queue, request.attributes))
        difference = {
            name: {"is": found.attributes[name], "wanted": value}
            for name, value in request.attributes.items()
            if found.attributes[name] != value
        }
        if difference:
            text = f"queue {found.name!r} exists with other attributes"
            return wire.error(request.request_id, ErrorCode.QUEUE_DIFFERS, text, details={"difference": difference})
        return self._info(request.request_id, found)

    def _ListQueues(self, peer: Peer, request: wire.ListQueues) -> wire.AnyReply:
        found = sorted((queue.name, queue.number) for queue in self.queues.values() if request.search in queue.name)
        page = [(number, name) for name, number in found[request.offset :][: request.limit]]
        return wire.QueueList(request.request_id, len(found), page)

    def _GetQueueAttributes(self, peer: Peer, request: wire.GetQueueAttributes) -> wire.AnyReply:
        return self._info(request.request_id, self.queues[request.queue])

    def _SetQueueAttributes(self, peer: Peer, request: wire.SetQueueAttributes) -> wire.AnyReply:
        found = self.queues[request.queue]
        refused = self._check(request)
        if refused is None:
            found.attributes |= request.attributes
        return refused or self._info(request.request_id, found)

    def _DeleteQueue(self, peer: Peer, request: wire.DeleteQueue) -> wire.AnyReply:
        if sources := [name for _, name in self._sources(request.queue)]:
            text = f"queue {request.queue!r} is the dead-letter queue of {', '.join(sources)}"
            details = {"sources": sources}
            return wire.error(request.request_id, ErrorCode.DEAD_LETTER_QUEUE_IN_USE, text, details=details)
        for waiter, receive in self.queues.pop(request.queue).waiting:
            waiter.answer(wire.error(receive.request_id, ErrorCode.QUEUE_DELETED, "the queue was deleted"))
        return wire.Done(request.request_id)

    def _ClearQueue(self, peer: Peer, request: wire.ClearQueue) -> wire.AnyReply:
        found = self.queues[request.queue]
        found.active.clear()
        found.in_flight.clear()
        return wire.Done(request.request_id)

    # ------------------------------------------------------------------ rewind and dead letters

    def _RewindQueue(self, peer: Peer, request: wire.RewindQueue) -> wire.AnyReply:
        found = self.queues[request.queue]
        window_ms = found.attributes["rewind_ms"]
        nearest_ms = _now_ms() - window_ms
        if not window_ms or (request.strict and request.time_ms < nearest_ms) or request.time_ms > _now_ms():
            text = f"queue {found.name!r} cannot be rewound to {request.time_ms}"
            details = {"nearest_ms": nearest_ms if window_ms else None}
            return wire.error(request.request_id, ErrorCode.TIME_NOT_REWINDABLE, text, details=details)
        time_ms = max(request.time_ms, nearest_ms)
        back = [one for one in found.rewindable if one.enqueue_ms >= time_ms]
        for one in back:
            found.rewindable.remove(one)
            one.receive_count = 0
        found.active = deque(sorted([*found.active, *back], key=lambda one: one.message_id))
        self._serve_waiting(found)
        return wire.Rewound(request.request_id, len(back), time_ms, request.time_ms < time_ms)

    def _sources(self, name: str) -> list[tuple[int, str]]:
        sources = [one for one in self.queues.values() if one.attributes["dead_letter_queue"] == name]
        return sorted(((one.number, one.name) for one in sources), key=lambda pair: pair[1])

    def _ListDeadLetterSources(self, peer: Peer, request: wire.ListDeadLetterSources) -> wire.AnyReply:
        sources = self._sources(self.queues[request.queue].name)
        return wire.QueueList(request.request_id, len(sources), sources)

    def bury(self, queue: str, dead_letters: str, count: int = 1) -> None:
        """Move the first active messages of a queue to a dead-letter queue."""
        source, target = self.queues[queue], self.queues[dead_letters]
        for _ in range(count):
            self._move(source, target, source.active[0], "receives")

    def _move(self, source: FakeQueue, target: FakeQueue, message: Stored, reason: str) -> None:
        source.active.remove(message)
        origin = wire.Origin(source.name, message.message_id, message.enqueue_ms, message.receive_count, reason)
        target.active.append(Stored(self._number(), message.body, message.headers, _now_ms(), origin=origin))
        self._serve_waiting(target)

    def _StartRedrive(self, peer: Peer, request: wire.StartRedrive) -> wire.AnyReply:
        found = self.queues[request.queue]
        if found.redrive is not None and found.redrive.ended_ms is None:
            return wire.error(request.request_id, ErrorCode.REDRIVE_RUNNING, f"{found.name!r} is being redriven")
        if request.target is not None and request.target not in self.queues:
            text = f"target is {request.target!r}; it must be the name of a queue"
            return wire.error(request.request_id, ErrorCode.INVALID_ARGUMENT, text)
        found.redrive = wire.RedriveStatus(
            request.request_id,
            found.name,
            request.target,
            request.max_per_second,
            _now_ms(),
            None,
            found.hold_redrive,
            0,
            len(found.active),
            {},
        )
        if not found.hold_redrive:
            self.finish_redrive(found.name)
        return msgspec.structs.replace(found.redrive, request_id=request.request_id)

    def finish_redrive(self, name: str) -> None:
        """Move everything and end."""
        found = self.queues[name]
        assert found.redrive is not None
        missing: dict[str, int] = {}
        moved = 0
        for message in list(found.active):
            target = found.redrive.target or (message.origin.queue if message.origin else "(no origin)")
            if target in self.queues:
                self._move(found, self.queues[target], message, "redrive")
                moved += 1
            else:
                missing[target] = missing.get(target, 0) + 1
        found.redrive = msgspec.structs.replace(
            found.redrive, ended_ms=_now_ms(), reason="done", moved=moved, remaining=0, missing_origins=missing
        )

    def _GetRedrive(self, peer: Peer, request: wire.GetRedrive) -> wire.AnyReply:
        found = self.queues[request.queue]
        if found.redrive is None:
            text = f"queue {found.name!r} was never redriven"
            return wire.error(request.request_id, ErrorCode.INVALID_ARGUMENT, text)
        return msgspec.structs.replace(found.redrive, request_id=request.request_id)

    def _CancelRedrive(self, peer: Peer, request: wire.CancelRedrive) -> wire.AnyReply:
        found = self.queues[request.queue]
        if found.redrive is not None and found.redrive.ended_ms is None:
            found.redrive = msgspec.structs.replace(found.redrive, ended_ms=_now_ms(), reason="cancelled")
        return self._GetRedrive(peer, wire.GetRedrive(request.request_id, request.queue))

    # ------------------------------------------------------------------ transactions

    def _not_transactional(self, request: Any) -> wire.AnyReply | None:
        if self.queues[request.queue].attributes["transactional"]:
            return None
        text = f"queue {request.queue!r} is not transactional"
        return wire.error(request.request_id, ErrorCode.NOT_TRANSACTIONAL, text)

    def _SendHalfMessages(self, peer: Peer, request: wire.SendHalfMessages) -> wire.AnyReply:
        found = self.queues[request.queue]
        refused = self._not_transactional(request)
        if refused is not None:
            return refused
        number = (request.session, request.sequence)
        if number not in self._answers or not request.sequence:
            headers = request.headers or [None] * len(request.bodies)
            dedup_ids = request.dedup_ids or [None] * len(request.bodies)
            ids: list[int] = []
            for body, entry, dedup_id in zip(request.bodies, headers, dedup_ids, strict=True):
                if dedup_id in found.dedup:
                    ids.append(found.dedup[dedup_id])
                    continue
                ids.append(self._number())
                stored = Stored(ids[-1], body, entry, _now_ms())
                found.half[ids[-1]] = Half(stored, request.first_check_ms or found.attributes["first_check_ms"])
                if dedup_id is not None:
                    found.dedup[dedup_id] = ids[-1]
            self._answers[number] = ids
        return wire.MessagesSent(request.request_id, self._answers[number])

    def _EndTransactions(self, peer: Peer, request: wire.EndTransactions) -> wire.AnyReply:
        found = self.queues[request.queue]
        decisions = request.decisions * (len(request.message_ids) if len(request.decisions) == 1 else 1)
        failures: list[wire.TransactionFailure] = []
        for message_id, decision in zip(request.message_ids, decisions, strict=True):
            code = self._decide(found, message_id, decision)
            if code is not None:
                text = f"half message {message_id:016x}: {code.wire_name}"
                failures.append(wire.TransactionFailure(message_id, int(code), text))
        self._serve_waiting(found)
        return wire.TransactionsEnded(request.request_id, failures)

    def _decide(self, queue: FakeQueue, message_id: int, decision: int) -> ErrorCode | None:
        before = queue.decided.get(message_id)
        if before is not None:
            if decision in (before, wire.UNKNOWN):
                return None
            return ErrorCode.ALREADY_COMMITTED if before == wire.COMMIT else ErrorCode.ALREADY_ROLLED_BACK
        if message_id not in queue.half:
            return ErrorCode.TRANSACTION_NOT_FOUND
        if decision == wire.UNKNOWN:
            queue.half[message_id].last_answer = "unknown"
            return None
        half = queue.half.pop(message_id)
        queue.decided[message_id] = decision
        if decision == wire.COMMIT:
            half.stored.enqueue_ms = _now_ms()
            queue.active.append(half.stored)
        return None

    def check(self, name: str, peer: Peer | None = None) -> None:
        """Ask a checker (the first one) about every half message of a queue."""
        found = self.queues[name]
        peer = peer or found.checkers[0]
        for half in found.half.values():
            half.checks += 1
            half.last_check_ms = _now_ms()
            one = half.stored
            age_ms = _now_ms() - one.enqueue_ms
            peer.wire.push(
                wire.TransactionCheck(name, one.message_id, one.body, one.headers, one.enqueue_ms, age_ms, half.checks)
            )
        peer.flush()

    def _ListHalfMessages(self, peer: Peer, request: wire.ListHalfMessages) -> wire.AnyReply:
        refused = self._not_transactional(request)
        if refused is not None:
            return refused
        everything = list(self.queues[request.queue].half.values())
        page = everything[request.start : request.start + request.limit]
        end = request.start + len(page)
        return wire.HalfMessages(
            request.request_id,
            [
                wire.HalfMessage(
                    one.stored.message_id,
                    one.stored.enqueue_ms,
                    one.checks,
                    one.last_check_ms,
                    one.last_answer,
                    one.stored.enqueue_ms + one.first_check_ms,
                )
                for one in page
            ],
            end if end < len(everything) else None,
        )

    def _RegisterChecker(self, peer: Peer, request: wire.RegisterChecker) -> wire.AnyReply:
        refused = self._not_transactional(request)
        if refused is None and peer not in self.queues[request.queue].checkers:
            self.queues[request.queue].checkers.append(peer)
        return refused or wire.Done(request.request_id)

    def _UnregisterChecker(self, peer: Peer, request: wire.UnregisterChecker) -> wire.AnyReply:
        if peer in self.queues[request.queue].checkers:
            self.queues[request.queue].checkers.remove(peer)
        return wire.Done(request.request_id)

    # ------------------------------------------------------------------ accounts and the server

    def _new_key(self, request_id: int, account: str) -> wire.AnyReply:
        number = self._number()
        info = wire.KeyInfo(f"AKIDnumber{number:026d}", account, True, _now_ms())
        secret = f"secret-of-key-{number:026d}"
        self.keys[info.secret_id] = (info, secret)
        return wire.KeyList(request_id, [msgspec.structs.replace(info, secret_key=secret)])

    def _CreateAccount(self, peer: Peer, request: wire.CreateAccount) -> wire.AnyReply:
        if request.account in self.accounts:
            text = f"account {request.account!r} already exists"
            return wire.error(request.request_id, ErrorCode.ACCOUNT_EXISTS, text)
        self.accounts.append(request.account)
        return self._new_key(request.request_id, request.account)

    def _ListAccounts(self, peer: Peer, request: wire.ListAccounts) -> wire.AnyReply:
        return wire.AccountList(request.request_id, sorted(self.accounts))

    def _CreateKey(self, peer: Peer, request: wire.CreateKey) -> wire.AnyReply:
        return self._new_key(request.request_id, request.account or "admin")

    def _ListKeys(self, peer: Peer, request: wire.ListKeys) -> wire.AnyReply:
        account = request.account or "admin"
        if account not in self.accounts:
            text = f"account {account!r} does not exist"
            return wire.error(request.request_id, ErrorCode.ACCOUNT_NOT_FOUND, text)
        return wire.KeyList(request.request_id, [key for key, _ in self.keys.values() if key.account == account])

    def _SetKeyEnabled(self, peer: Peer, request: wire.SetKeyEnabled) -> wire.AnyReply:
        if request.secret_id not in self.keys:
            return wire.error(request.request_id, ErrorCode.KEY_NOT_FOUND, f"no key {request.secret_id!r}")
        key, secret = self.keys[request.secret_id]
        self.keys[request.secret_id] = (msgspec.structs.replace(key, enabled=request.enabled), secret)
        return wire.Done(request.request_id)

    def _DeleteKey(self, peer: Peer, request: wire.DeleteKey) -> wire.AnyReply:
        if self.keys.pop(request.secret_id, None) is None:
            return wire.error(request.request_id, ErrorCode.KEY_NOT_FOUND, f"no key {request.secret_id!r}")
        return wire.Done(request.request_id)

    def _GetServerStatus(self, peer: Peer, request: wire.GetServerStatus) -> wire.AnyReply:
        return wire.ServerStatus(
            request.request_id, {"version": "fake", "durability": "none", "queues": len(self.queues)}
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
