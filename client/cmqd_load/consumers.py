"""Consumers as callbacks on connections, without a task or a future per request.

Times are nanoseconds of the monotonic clock; latencies are recorded in microseconds.
"""

import asyncio
from time import monotonic_ns

from cmqd_load.failures import RequestFailed
from cmqd_load.tally import Gate, Quota, Tally
from cmqd_load.wire import (
    HANDLES_DONE,
    RECEIVED,
    HandlesTemplate,
    LoadConnection,
    decode_deliveries,
    decode_done,
    decode_handles,
    receive_frame,
    stamp_of,
)
from cmqd_protocol.messages import DeleteMessages

LONG_WAIT_MS = 20_000
"""The polling wait of consumers: below the 30 s that the broker allows, far above any wait in a run."""
RECEIVE_ID = 1
"""Request id of receives: a consumer has a single outstanding receive. Deletes use 2 .. 127 in turn."""
EMPTY_LIST = 0x90
"""Empty list of failures of a delete, as msgpack."""


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
        "_repeat",
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
        self._repeat: asyncio.TimerHandle | None = None
        """The pause before a refused receive is repeated."""
        connection.on_reply = self._on_reply

    def receive(self) -> None:
        """Send the next receive."""
        self._started = monotonic_ns()
        self._connection.write(self._receive)

    def lose(self, _connection: LoadConnection) -> None:
        """Take note that the connection is lost. The messages of deletes without an answer count as consumed, or they
        would keep producers at the gate for ever; their outcome is unknown."""
        held, self._counts = sum(self._counts), [0] * 128
        if self._gate is not None and held:
            self._gate.consumed(held)
        if self._repeat is not None:
            self._repeat.cancel()

    def resume(self, connection: LoadConnection) -> None:
        """Go on over a new connection."""
        self._connection = connection
        connection.on_reply = self._on_reply
        self.receive()

    def _on_reply(self, payload: bytes, opcode: int) -> None:
        if opcode == RECEIVED:
            self._on_received(payload)
        elif opcode == HANDLES_DONE:
            self._on_deleted(payload)
        elif payload[3] == RECEIVE_ID:
            self._repeat = self._later(self._tally.refuse(payload, opcode), self.receive)
        else:
            self._on_delete_refused(payload, opcode)

    def _on_delete_refused(self, payload: bytes, opcode: int) -> None:
        if not self._tally.is_tolerant:
            raise RequestFailed(f"a delete was refused: {payload[:200]!r}")
        pause = self._tally.refuse(payload, opcode)
        count, self._counts[payload[3]] = self._counts[payload[3]], 0
        if self._gate is not None:
            self._gate.consumed(count)
        if not self._overlap:
            self._repeat = self._later(pause, self.receive)

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
            self._record(stamp, monotonic_ns())
        return [message.receipt_handle for message in decode_handles(payload).messages]

    def _record(self, stamp: int, now: int) -> None:
        if stamp >= self._tally.since_ns:
            self._tally.latency.record((now - stamp) // 1000)

    def _on_deleted(self, payload: bytes) -> None:
        # [0x94, 0xcc, 0xc3, request id, failures, ...]
        failed = 0
        if payload[4] != EMPTY_LIST:
            failures = decode_done(payload).failures
            self._tally.fail_deletes(failures)
            failed = len(failures)
        count, self._counts[payload[3]] = self._counts[payload[3]], 0
        self._tally.deleted += count - failed
        if self._gate is not None:
            self._gate.consumed(count)
        if (self._quota is None or self._quota.take(count)) and not self._overlap:
            self.receive()


class EachConsumer(Consumer):
    """A consumer that records the latency of each message of a reply, not of the first alone."""

    __slots__ = ()

    def _measure(self, payload: bytes) -> list[int]:
        now = monotonic_ns()
        messages = decode_deliveries(payload).messages
        for message in messages:
            stamp = stamp_of(message.body)
            if stamp:
                self._record(stamp, now)
        return [message.receipt_handle for message in messages]
