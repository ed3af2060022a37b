"""A client that walks through queues: send, receive and delete a message in each queue in turn."""

import asyncio
from collections.abc import Sequence
from time import monotonic_ns

from cmqd_bench.load import EMPTY_LIST, LONG_WAIT_MS, Tally, refuse
from cmqd_bench.wire import (
    HANDLES_DONE,
    RECEIVED,
    SENT,
    DeleteTemplate,
    LoadConnection,
    RequestFailed,
    SendTemplate,
    decode_done,
    decode_handles,
    receive_frame,
)


class Stop:
    """The requests of a queue."""

    __slots__ = ("delete", "receive", "send")

    def __init__(self, queue: str, batch: int, size: int) -> None:
        self.send = SendTemplate(queue, batch=batch, size=size).at(0)
        self.receive = receive_frame(queue, max_messages=batch, wait_ms=LONG_WAIT_MS)
        self.delete = DeleteTemplate(queue)


class Rotation:
    """A connection with a single outstanding request: send to a queue, receive, delete, then the next queue.

    A queue holds at most a batch per connection, so the load has no backlog. The recorded latency runs from the send to
    the answer of the delete.
    """

    __slots__ = ("_batch", "_connection", "_later", "_next", "_received", "_started", "_stops", "_tally")

    def __init__(self, connection: LoadConnection, stops: Sequence[Stop], tally: Tally, batch: int = 1) -> None:
        self._connection = connection
        self._stops = stops
        self._tally = tally
        self._batch = batch
        self._next = 0
        self._received = 0
        """Messages of the delete under way."""
        self._started = 0
        self._later = asyncio.get_running_loop().call_later
        connection.on_reply = self._on_reply

    def send(self) -> None:
        """Send to the next queue."""
        self._next = (self._next + 1) % len(self._stops)
        self._started = monotonic_ns()
        self._connection.write(self._stops[self._next].send)

    def _on_reply(self, payload: bytes, opcode: int) -> None:
        stop = self._stops[self._next]
        if opcode == SENT:
            self._tally.sent += self._batch
            self._connection.write(stop.receive)
        elif opcode == RECEIVED:
            handles = [message.receipt_handle for message in decode_handles(payload).messages]
            self._received = len(handles)
            self._tally.received += len(handles)
            # An empty reply: the message went to another connection of the queue, whose message is left.
            self._connection.write(stop.delete.of(handles, 1) if handles else stop.receive)
        elif opcode == HANDLES_DONE:
            if payload[4] != EMPTY_LIST:
                raise RequestFailed(f"a delete failed: {decode_done(payload).failures[0].text}")
            self._tally.deleted += self._received
            self._tally.latency.record((monotonic_ns() - self._started) // 1000)
            self.send()
        else:
            self._later(refuse(payload, opcode, self._tally), self.send)
