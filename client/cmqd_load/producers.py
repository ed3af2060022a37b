"""Producers as callbacks on connections, without a task or a future per request.

Closed loop (``Producer``): the next request leaves when the last was answered. Open loop (``OpenSender``): requests
leave at the intended times of a ``pacer.Pacer``.

Times are nanoseconds of the monotonic clock; latencies are recorded in microseconds.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from time import monotonic_ns
from typing import Protocol

from cmqd_load.tally import Gate, Quota, Tally
from cmqd_load.wire import PUBLISHED, SENT, LoadConnection, SendTemplate

MAX_WAITING = 1_000_000
"""Messages of an open loop that wait for a free slot: some 100 MB. Beyond that a server that is too slow would fill the
memory of the load."""
NOT_SENT = "not_sent"
"""Name of the error of a message that found ``MAX_WAITING`` messages before itself."""


class Producer:
    """One connection that sends (or publishes) a batch, waits for the answer, and sends the next.

    With a ``gate`` the bodies carry their time of sending, and the consumer measures; without a gate the producer
    measures the time from request to reply. ``depth`` requests are under way at a time, each in a slot of its own.
    """

    __slots__ = (
        "_answer",
        "_connection",
        "_copies",
        "_gate",
        "_later",
        "_quota",
        "_started",
        "_tally",
        "_templates",
        "batch",
    )

    def __init__(
        self,
        connection: LoadConnection,
        templates: SendTemplate | Sequence[SendTemplate],
        tally: Tally,
        gate: Gate | None = None,
        *,
        depth: int = 1,
        copies: int = 1,
        quota: Quota | None = None,
    ) -> None:
        """Describe a producer.

        Args:
            connection: the connection.
            templates: the requests, in turn; all have as many messages.
            tally: the counts.
            gate: bounds the messages ahead of consumers; None = there are no consumers.
            depth: requests under way, at most ``limits.MAX_DEPTH``.
            copies: messages at the gate for each sent message: subscribed queues.
            quota: ends the producer after a number of messages.
        """
        each = [templates] if isinstance(templates, SendTemplate) else list(templates)
        self._connection = connection
        self._answer = each[0].answer
        self.batch = each[0].batch
        self._templates = cycle(each)
        self._tally = tally
        self._gate = gate
        self._copies = copies
        self._quota = quota
        self._started = [0] * (depth + 1)
        """Time of the request under way, by slot; 0 = no request."""
        self._later = asyncio.get_running_loop().call_later
        connection.on_reply = self._on_reply

    def start(self) -> None:
        """Send on all slots."""
        for slot in range(1, len(self._started)):
            self.send(slot)

    def send(self, slot: int = 1) -> None:
        """Send the next batch."""
        self._started[slot] = now = monotonic_ns()
        template = next(self._templates)
        self._connection.write(template.numbered(slot) if self._gate is None else template.at(now, slot))

    def lose(self, _connection: LoadConnection) -> None:
        """Take note that the connection is lost."""

    def resume(self, connection: LoadConnection) -> None:
        """Go on over a new connection. The requests under way have no answer: other batches take their slots."""
        self._connection = connection
        connection.on_reply = self._on_reply
        for slot, started in enumerate(self._started):
            if started:
                self.send(slot)

    def _on_reply(self, payload: bytes, opcode: int) -> None:
        slot = payload[3]
        if opcode != self._answer:
            pause = self._tally.refuse(payload, opcode)
            self._started[slot] = 0
            self._later(pause, self.send, slot)
            return
        tally, batch = self._tally, self.batch
        tally.sent += batch
        if self._gate is None:
            started = self._started[slot]
            if started >= tally.since_ns:
                tally.latency.record((monotonic_ns() - started) // 1000)
        elif not self._gate.sent(batch * self._copies):
            self._started[slot] = 0
            self._gate.park(partial(self.send, slot))
            return
        if self._quota is None or self._quota.take(batch):
            self.send(slot)
        else:
            self._started[slot] = 0


class Template(Protocol):
    """An encoded request that is sent repeatedly, each time with another time in its bodies."""

    def at(self, stamp: int, request_id: int = 1) -> bytes:
        """Return the frame with ``stamp`` in its bodies."""
        ...


class OpenSender:
    """Sends (or publishes) requests on any free slot, ``depth`` slots per connection.

    Without a free slot the request waits here; its latency still counts from the intended time. So it does when the
    server refuses a request as busy, and the request is repeated. With ``timed`` the latency is recorded here, from the
    intended time to the reply; else a consumer records.
    """

    def __init__(
        self,
        connections: Sequence[LoadConnection],
        tally: Tally,
        depth: int = 32,
        *,
        batch: int = 1,
        timed: bool = False,
    ) -> None:
        """Describe a sender; ``batch`` is the number of messages of each request."""
        # Connections take turns: the slots of a connection are not adjacent.
        self._free = deque((connection, slot) for slot in range(1, depth + 1) for connection in connections)
        self._under_way: dict[LoadConnection, list[tuple[int, Template] | None]] = {}
        """Requests by slot, of the connections that are up."""
        self._depth = depth
        self._tally = tally
        self._batch = batch
        self._timed = timed
        self._waiting: deque[tuple[int, Template]] = deque()
        self._later = asyncio.get_running_loop().call_later
        for connection in connections:
            self._attach(connection)

    def _attach(self, connection: LoadConnection) -> None:
        self._under_way[connection] = [None] * (self._depth + 1)
        connection.on_reply = partial(self._on_reply, connection)

    def send(self, template: Template, intended_ns: int) -> None:
        """Send the request of ``template``; its latency counts from ``intended_ns``."""
        if self._free:
            self._write(*self._free.popleft(), (intended_ns, template))
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((intended_ns, template))
        else:
            self._tally.count_error(NOT_SENT, self._batch)

    def lose(self, connection: LoadConnection) -> None:
        """Send nothing more over a lost connection. The outcome of its requests is unknown: they are not repeated."""
        del self._under_way[connection]
        self._free = deque(pair for pair in self._free if pair[0] is not connection)

    def resume(self, connection: LoadConnection) -> None:
        """Send over a new connection, too."""
        self._attach(connection)
        for slot in range(1, self._depth + 1):
            self._release(connection, slot)

    def _write(self, connection: LoadConnection, slot: int, request: tuple[int, Template]) -> None:
        self._under_way[connection][slot] = request
        intended_ns, template = request
        connection.write(template.at(intended_ns, slot))

    def _on_reply(self, connection: LoadConnection, payload: bytes, opcode: int) -> None:
        slot = payload[3]
        request = self._under_way[connection][slot]
        if opcode not in (SENT, PUBLISHED) and request is not None:
            self._later(self._tally.refuse(payload, opcode), self._repeat, connection, slot, request)
            return
        tally = self._tally
        tally.sent += self._batch
        if self._timed and request is not None and request[0] >= tally.since_ns:
            tally.latency.record((monotonic_ns() - request[0]) // 1000)
        self._release(connection, slot)

    def _repeat(self, connection: LoadConnection, slot: int, request: tuple[int, Template]) -> None:
        if connection in self._under_way:
            self._write(connection, slot, request)

    def _release(self, connection: LoadConnection, slot: int) -> None:
        if self._waiting:
            self._write(connection, slot, self._waiting.popleft())
        else:
            self._free.append((connection, slot))
