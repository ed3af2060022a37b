"""Clients beside those of ``cmqd_load``: transactions, deletes inside receives, delayed messages, the filling of a
queue.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns, time_ns

from cmqd_load.consumers import LONG_WAIT_MS, RECEIVE_ID, Consumer
from cmqd_load.failures import RequestFailed
from cmqd_load.tally import Gate, Tally
from cmqd_load.wire import (
    ALL_ACKNOWLEDGED,
    ENDED,
    SENT,
    HandlesTemplate,
    LoadConnection,
    decode_deliveries,
    decode_ended,
    decode_sent,
    frame,
    random_body,
    stamp_of,
)
from cmqd_protocol.messages import COMMIT, EndTransactions, ReceiveMessages, SendHalfMessages


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
            self._later(self._tally.refuse(payload, opcode), self.send)


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
            pause = self._tally.refuse(payload, opcode)
            self._later(pause, self._send, connection, under_way, request_id)
            return
        self._tally.sent += count
        self._unanswered -= count
        self._send(connection, under_way, request_id)
        if not self._unanswered:
            self.done.set()
