"""The load: producers and consumers as callbacks on connections, without a task or a future per request.

Closed loop (`Producer`, `Consumer`, `Filler`): the next request leaves when the last was answered. Open loop
(`OpenSender`): requests leave at the intended times of a ``pacer.Pacer``.

Times are nanoseconds of the monotonic clock; latencies are recorded in microseconds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns, time_ns
from typing import Protocol

from cmqd_bench.figures.histogram import Histogram
from cmqd_bench.load.wire import (
    ALL_ACKNOWLEDGED,
    ENDED,
    ERROR,
    HANDLES_DONE,
    PUBLISHED,
    RECEIVED,
    SENT,
    HandlesTemplate,
    LoadConnection,
    RequestFailed,
    SendTemplate,
    decode_deliveries,
    decode_done,
    decode_ended,
    decode_error,
    decode_handles,
    decode_sent,
    frame,
    random_body,
    receive_frame,
    stamp_of,
)
from cmqd_protocol.messages import COMMIT, DeleteMessages, EndTransactions, ReceiveMessages, SendHalfMessages

LONG_WAIT_MS = 20_000
"""The polling wait of consumers: below the 30 s that the broker allows, far above any wait in a run."""
RECEIVE_ID = 1
"""Request id of receives: a consumer has a single outstanding receive. Deletes use 2 .. 127 in turn."""
EMPTY_LIST = 0x90
"""Empty list of failures of a delete, as msgpack."""


class Tally:
    """Counts of the load since the last ``clear``."""

    __slots__ = ("deleted", "empty", "latency", "received", "refused", "sent")

    def __init__(self) -> None:
        self.latency = Histogram()
        self.clear()

    def clear(self) -> None:
        """Reset all counts at the end of the warm-up."""
        self.sent = self.received = self.deleted = self.empty = self.refused = 0
        self.latency.clear()


class Gate:
    """Keeps producers at most ``limit`` messages ahead of consumers, so that no backlog grows.

    Invariant: a producer is parked only while ``ahead > limit // 2``.
    """

    __slots__ = ("_parked", "ahead", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ahead = 0
        self._parked: list[Callable[[], None]] = []

    def sent(self, count: int) -> bool:
        """Count sent messages; return False if the producer must be parked."""
        self.ahead += count
        return self.ahead < self.limit

    def park(self, go_on: Callable[[], None]) -> None:
        self._parked.append(go_on)

    def consumed(self, count: int) -> None:
        """Count deleted messages; resume parked producers once half of the room is free."""
        self.ahead -= count
        if self._parked and self.ahead <= self.limit // 2:
            parked, self._parked = self._parked, []
            for go_on in parked:
                go_on()


def refuse(payload: bytes, opcode: int, tally: Tally) -> float:
    """Return the seconds until a refused request may be repeated.

    Raises:
        RequestFailed: the error is permanent.
    """
    if opcode != ERROR:
        raise RequestFailed(f"an unexpected reply, opcode {opcode}")
    error = decode_error(payload)
    if not error.retryable:
        raise RequestFailed(f"{error.name}: {error.text}")
    tally.refused += 1
    return (error.retry_after_ms or 5) / 1000


class Producer:
    """One connection that sends (or publishes) a batch, waits for the answer, and sends the next.

    With a ``gate`` the bodies carry their time of sending, and the consumer measures; without a gate the producer
    measures the time from request to reply.
    """

    __slots__ = ("_answer", "_connection", "_frame", "_gate", "_later", "_started", "_tally", "_template")

    def __init__(
        self, connection: LoadConnection, template: SendTemplate, tally: Tally, gate: Gate | None = None
    ) -> None:
        self._connection = connection
        self._answer = template.answer
        self._template = template
        self._frame = template.at(0)
        self._tally = tally
        self._gate = gate
        self._started = 0
        self._later = asyncio.get_running_loop().call_later
        connection.on_reply = self._on_reply

    def send(self) -> None:
        """Send the next batch."""
        self._started = now = monotonic_ns()
        self._connection.write(self._template.at(now) if self._gate else self._frame)

    def _on_reply(self, payload: bytes, opcode: int) -> None:
        if opcode != self._answer:
            self._later(refuse(payload, opcode, self._tally), self.send)
            return
        tally, batch = self._tally, self._template.batch
        tally.sent += batch
        if self._gate is None:
            tally.latency.record((monotonic_ns() - self._started) // 1000)
        elif not self._gate.sent(batch):
            self._gate.park(self.send)
            return
        self.send()


class TransactionalProducer:
    """One connection that sends a batch of half messages, commits the batch, and begins again."""

    __slots__ = ("_batch", "_connection", "_frame", "_later", "_queue", "_started", "_tally")

    def __init__(self, connection: LoadConnection, queue: str, *, batch: int, size: int, tally: Tally) -> None:
        self._connection = connection
        self._queue = queue
        self._frame = frame(SendHalfMessages(1, queue, [random_body(size) for _ in range(batch)]))
        self._batch = batch
        self._tally = tally
        self._started = 0
        self._later = asyncio.get_running_loop().call_later
        connection.on_reply = self._on_reply

    def send(self) -> None:
        """Send the next batch."""
        self._started = monotonic_ns()
        self._connection.write(self._frame)

    def _on_reply(self, payload: bytes, opcode: int) -> None:
        if opcode == SENT:
            ids = decode_sent(payload).message_ids
            self._connection.write(frame(EndTransactions(2, self._queue, ids, [COMMIT])))
        elif opcode == ENDED:
            ended = decode_ended(payload)
            if ended.failures:
                raise RequestFailed(f"a commit failed: {ended.failures[0].text}")
            self._tally.sent += self._batch
            self._tally.latency.record((monotonic_ns() - self._started) // 1000)
            self.send()
        else:
            self._later(refuse(payload, opcode, self._tally), self.send)


class Quota:
    """A number of messages that all consumers of a run share; ``done`` is set when all messages are deleted."""

    __slots__ = ("done", "remaining")

    def __init__(self, messages: int) -> None:
        self.remaining = messages
        self.done = asyncio.Event()

    def take(self, count: int) -> bool:
        """Count messages as deleted; return False when all messages are deleted."""
        self.remaining -= count
        if self.remaining <= 0:
            self.done.set()
            return False
        return True


class Consumer:
    """One connection that receives up to ``batch`` messages with a long poll, deletes the batch in a second request,
    and begins again.

    ``overlap``: the next receive leaves together with the delete, not after the delete's answer. The recorded latency
    belongs to the first (the oldest) message of a reply; with ``timed`` the latency of the receive is recorded, from
    request to reply.
    """

    __slots__ = (
        "_connection",
        "_counts",
        "_delete",
        "_delete_id",
        "_gate",
        "_later",
        "_overlap",
        "_quota",
        "_receive",
        "_started",
        "_tally",
        "_timed",
    )

    def __init__(
        self,
        connection: LoadConnection,
        queue: str,
        batch: int,
        tally: Tally,
        *,
        gate: Gate | None = None,
        quota: Quota | None = None,
        overlap: bool = False,
        timed: bool = False,
    ) -> None:
        self._connection = connection
        self._receive = receive_frame(queue, max_messages=batch, wait_ms=LONG_WAIT_MS, request_id=RECEIVE_ID)
        self._delete = HandlesTemplate(DeleteMessages(1, queue, []))
        self._delete_id = RECEIVE_ID
        self._counts = [0] * 128
        """Messages in the delete under way, by its request id."""
        self._tally = tally
        self._gate = gate
        self._quota = quota
        self._overlap = overlap
        self._timed = timed
        self._started = 0
        self._later = asyncio.get_running_loop().call_later
        connection.on_reply = self._on_reply

    def receive(self) -> None:
        """Send the next receive."""
        self._started = monotonic_ns()
        self._connection.write(self._receive)

    def _on_reply(self, payload: bytes, opcode: int) -> None:
        if opcode == RECEIVED:
            self._on_received(payload)
        elif opcode == HANDLES_DONE:
            self._on_deleted(payload)
        elif payload[3] == RECEIVE_ID:
            self._later(refuse(payload, opcode, self._tally), self.receive)
        else:
            raise RequestFailed(f"a delete was refused: {payload!r}")

    def _on_received(self, payload: bytes) -> None:
        handles = self._measure(payload)
        if not handles:
            self._tally.empty += 1
            self.receive()
            return
        self._tally.received += len(handles)
        self._delete_id = request_id = self._delete_id + 1 if self._delete_id < 127 else RECEIVE_ID + 1
        self._counts[request_id] = len(handles)
        request = self._delete.of(handles, request_id)
        self._connection.write(request + self._receive if self._overlap else request)

    def _measure(self, payload: bytes) -> list[int]:
        """Record the latency of a receive's reply; return the receipt handles."""
        stamp = self._started if self._timed else stamp_of(payload)
        if stamp:
            self._tally.latency.record((monotonic_ns() - stamp) // 1000)
        return [message.receipt_handle for message in decode_handles(payload).messages]

    def _on_deleted(self, payload: bytes) -> None:
        # [0x94, 0xcc, 0xc3, request id, failures, ...]
        if payload[4] != EMPTY_LIST:
            failure = decode_done(payload).failures[0]
            raise RequestFailed(f"a delete failed: {failure.text}")
        count = self._counts[payload[3]]
        self._tally.deleted += count
        if self._gate is not None:
            self._gate.consumed(count)
        if (self._quota is None or self._quota.take(count)) and not self._overlap:
            self.receive()


class AcknowledgingConsumer(Consumer):
    """A consumer whose next receive deletes the messages of the receive before, in the same request."""

    __slots__ = ("_held", "_receive_and_delete")

    def __init__(self, connection: LoadConnection, queue: str, batch: int, tally: Tally, *, gate: Gate) -> None:
        super().__init__(connection, queue, batch, tally, gate=gate)
        self._held = 0
        """Messages that the receive under way deletes."""
        self._receive_and_delete = HandlesTemplate(ReceiveMessages(1, queue, batch, LONG_WAIT_MS, None, []))

    def _on_received(self, payload: bytes) -> None:
        handles = self._measure(payload)
        if self._held:
            if not payload.endswith(ALL_ACKNOWLEDGED):
                raise RequestFailed(f"a delete in a receive failed: {payload[-200:]!r}")
            self._tally.deleted += self._held
            if self._gate is not None:
                self._gate.consumed(self._held)
        self._held = len(handles)
        if not handles:
            self._tally.empty += 1
            self.receive()
            return
        self._tally.received += len(handles)
        self._started = monotonic_ns()
        self._connection.write(self._receive_and_delete.of(handles, RECEIVE_ID))


class DelayConsumer(Consumer):
    """A consumer of messages with their delay in the body: the latency of every message counts from its due time.

    The due time is the broker's enqueue time plus the delay, both in milliseconds of the wall clock.
    """

    __slots__ = ()

    def _measure(self, payload: bytes) -> list[int]:
        now_us = time_ns() // 1000
        latency = self._tally.latency
        messages = decode_deliveries(payload).messages
        for message in messages:
            delay_ms = stamp_of(message.body)
            assert delay_ms is not None
            latency.record(now_us - (message.enqueue_ms + delay_ms) * 1000)
        return [message.receipt_handle for message in messages]


class Filler:
    """Fills a queue as fast as the server accepts sends: ``depth`` sends pipelined per connection.

    ``make_frame(request_id, count)`` gives the frame of a send of ``count`` messages.
    """

    def __init__(
        self,
        connections: Sequence[LoadConnection],
        make_frame: Callable[[int, int], bytes],
        *,
        messages: int,
        batch: int,
        depth: int,
        tally: Tally,
    ) -> None:
        self._connections = connections
        self._make_frame = make_frame
        self._batch = batch
        self._depth = depth
        self._unsent = self._unanswered = messages
        self._tally = tally
        self._later = asyncio.get_running_loop().call_later
        self.done = asyncio.Event()

    def start(self) -> None:
        """Send on all connections; ``done`` is set when every message is answered."""
        for connection in self._connections:
            under_way = [0] * (self._depth + 1)
            connection.on_reply = partial(self._on_reply, connection, under_way)
            for request_id in range(1, self._depth + 1):
                self._send(connection, under_way, request_id)

    def _send(self, connection: LoadConnection, under_way: list[int], request_id: int) -> None:
        count = min(self._batch, self._unsent)
        if count:
            self._unsent -= count
            under_way[request_id] = count
            connection.write(self._make_frame(request_id, count))

    def _on_reply(self, connection: LoadConnection, under_way: list[int], payload: bytes, opcode: int) -> None:
        request_id = payload[3]
        count = under_way[request_id]
        if opcode != SENT:
            self._unsent += count
            pause = refuse(payload, opcode, self._tally)
            self._later(pause, self._send, connection, under_way, request_id)
            return
        self._tally.sent += count
        self._unanswered -= count
        self._send(connection, under_way, request_id)
        if not self._unanswered:
            self.done.set()


class Template(Protocol):
    """An encoded request that is sent repeatedly, each time with another time in its bodies."""

    def at(self, stamp: int, request_id: int = 1) -> bytes:
        """Return the frame with ``stamp`` in its bodies."""
        ...


class OpenSender:
    """Sends (or publishes) single messages on any free slot, ``depth`` slots per connection.

    Without a free slot the message waits here; its latency still counts from the intended time.
    """

    def __init__(self, connections: Sequence[LoadConnection], tally: Tally, depth: int = 32) -> None:
        # Connections take turns: the slots of a connection are not adjacent.
        self._free = deque((connection, slot) for slot in range(1, depth + 1) for connection in connections)
        self._tally = tally
        self._waiting: deque[tuple[int, Template]] = deque()
        self._later = asyncio.get_running_loop().call_later
        for connection in connections:
            connection.on_reply = partial(self._on_reply, connection)

    def send(self, template: Template, intended_ns: int) -> None:
        """Send the message of ``template``; its latency counts from ``intended_ns``."""
        if self._free:
            connection, slot = self._free.popleft()
            connection.write(template.at(intended_ns, slot))
        else:
            self._waiting.append((intended_ns, template))

    def _on_reply(self, connection: LoadConnection, payload: bytes, opcode: int) -> None:
        if opcode in (SENT, PUBLISHED):
            self._tally.sent += 1
            self._release(connection, payload[3])
        else:
            # The refused message is lost to the run, and counted as refused.
            self._later(refuse(payload, opcode, self._tally), self._release, connection, payload[3])

    def _release(self, connection: LoadConnection, slot: int) -> None:
        if self._waiting:
            intended_ns, template = self._waiting.popleft()
            connection.write(template.at(intended_ns, slot))
        else:
            self._free.append((connection, slot))
