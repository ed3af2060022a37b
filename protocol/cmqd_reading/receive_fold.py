"""Receives: each receive of a queue with its begin, the end of its lease, and the reason of its own end. Pure.

The fold takes rows in the order of the log and yields a receive when the receive ends, so memory has the receives that
are under way, and the leases of the loaded checkpoints. Reasons are the kinds of ``LifeKind``, which the history of a
message has for the same records:

    deleted  dead_lettered  released             the holder of the lease answered
    lease_ended                                  the lease ended without an answer
    expired  cleared  queue_deleted              the message left its queue while it was in flight
    gone                                         the receive ended, and the row that says how was reclaimed

In missing rows a receive may have begun, its lease may have changed, and the receive may have ended. Later rows name a
lease (and most name its position), and the slices of a checkpoint have all leases of a queue. So behind missing rows:

- A receive whose own row is missing begins with the first row, or slice, that names its lease. Its begin is unknown.
- A receive that was under way before is in doubt until a row or slice names its lease. If a slice does not, or if
  another receive of the message comes first, the receive is ``gone``.
- The end of a lease is unknown until a row or slice tells of it.

A row that names a lease proves here that the message was in flight: the broker names no lease of a message that was
cleared or has expired, although the format permits it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from cmqd_reading.states import State
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.checkpoint import AnyPart, LeasesSlice, QueueSlice
from cmqd_segment.records import (
    AnyRecord,
    ClockOffset,
    LeasesEnded,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesExpired,
    MessagesReceived,
    MessagesReleased,
    QueueCleared,
    QueueDeleted,
    Runs,
    VisibilityChanged,
    ranges,
    unpack_runs,
)
from cmqd_types.attributes import QueueAttributes
from cmqd_types.declared import declared
from cmqd_types.histories import LifeKind

LONGEST_LEASE_MS: Final = declared(QueueAttributes)["visibility_timeout_ms"].high
NO_POSITION: Final = -1


class Receive(msgspec.Struct, gc=False):
    """A receive of a message."""

    queue_id: int
    lease: int
    position: int = NO_POSITION
    """``NO_POSITION`` = not known: rows named the lease alone."""
    from_ms: int = 0
    """0 = the row of the receive is missing."""
    from_lsn: int = 0
    until_ms: int = 0
    """End of the lease; 0 = not known."""
    received_by: int = 0
    """Client of the receive, by the number of its ``ActorSeen``; 0 = not known."""
    ended_ms: int = 0
    """0 = the receive is under way, or ``gone``."""
    ended_lsn: int = 0
    ended_by: int = 0
    """Client that deleted, rejected or returned the message; 0 = not known, or no client."""
    how: str = ""
    """See the module; empty = the receive is under way."""
    is_certain: bool = True
    """False: the receive may have ended in missing rows."""


class _Slice(NamedTuple):
    """The leases of a queue at a row, from a checkpoint."""

    lsn: int
    queue_id: int
    floor: int
    leases: list[LeasesSlice]


class _Queue:
    """The receives of a queue that are under way."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.by_lease: dict[int, Receive] = {}
        self._in_flight = BitMap64()
        """The known positions of ``by_lease``."""
        self._unplaced: set[int] = set()
        """Leases with a change and without a known position."""
        self._cut = BitMap64()
        """Leases of messages that were cleared or expired in flight. A row that names such a lease tells of no new
        receive."""

    # ------------------------------------------------------------------ rows

    def receive(self, lsn: int, record: MessagesReceived) -> Iterator[Receive]:
        """Begin receives; yield those that must have ended in missing rows."""
        yield from self._replaced(record.positions)
        positions = unpack_runs(record.positions)
        for lease, (position, actor) in enumerate(
            zip(positions, actor_numbers(record.actors, len(positions)), strict=True), record.first_lease
        ):
            self.by_lease[lease] = Receive(
                self.queue_id, lease, position, record.received_ms, lsn, record.deadline_ms, actor
            )
        for start, stop in ranges(record.positions):
            self._in_flight.add_range(start, stop)

    def change(self, record: VisibilityChanged) -> None:
        """Note a new end of leases."""
        for lease in unpack_runs(record.leases):
            receive = self.by_lease.get(lease)
            if receive is None:
                if lease in self._cut:
                    continue
                receive = self.by_lease[lease] = Receive(self.queue_id, lease)
                self._unplaced.add(lease)
            receive.until_ms, receive.is_certain = record.deadline_ms, True

    def answer(
        self, lsn: int, record: MessagesDeleted | MessagesDeadLettered, how: str, ended_ms: int
    ) -> Iterator[Receive]:
        """End receives by a record that names leases and positions, each in an order of its own."""
        positions = unpack_runs(record.positions)
        actors = dict(zip(positions, actor_numbers(record.actors, len(positions)), strict=True))
        ended = list(self._taken(record.leases))
        unplaced = [receive for receive in ended if receive.position < 0]
        if len(unplaced) == 1:
            # Of several, the record does not tell which lease is of which message.
            rest = set(positions) - {receive.position for receive in ended}
            unplaced[0].position = rest.pop() if len(rest) == 1 else NO_POSITION
        yield from self._replaced(record.positions)
        # A single client deletes whatever message a lease is of.
        alone = record.actors[0] if len(record.actors) == 1 else 0
        for receive in ended:
            receive.ended_by = actors.get(receive.position, alone)
            yield _ended(receive, lsn, how, ended_ms)

    def give_back(self, lsn: int, record: LeasesEnded | MessagesReleased, how: str, ended_ms: int) -> Iterator[Receive]:
        """End receives by a record that names leases alone."""
        actors: dict[int, int] = {}
        if isinstance(record, MessagesReleased) and record.actors:
            leases = unpack_runs(record.leases)
            actors = dict(zip(leases, actor_numbers(record.actors, len(leases)), strict=True))
        for receive in self._taken(record.leases):
            receive.ended_by = actors.get(receive.lease, 0)
            yield _ended(receive, lsn, how, ended_ms)

    def cut(self, lsn: int, floor: int, how: str, ended_ms: int) -> Iterator[Receive]:
        """End the receives of messages below a floor."""
        # Expiry raises the floor often, and each time a walk over all receives would cost too much.
        if self._in_flight and self._in_flight[0] < floor:
            for receive in [each for each in self.by_lease.values() if 0 <= each.position < floor]:
                self._take(receive.lease)
                self._cut.add(receive.lease)
                yield _ended(receive, lsn, how, ended_ms) if receive.is_certain else _gone(receive)
        for lease in self._unplaced:
            self.by_lease[lease].is_certain = False

    def end(self, lsn: int, how: str, ended_ms: int) -> Iterator[Receive]:
        """End all receives, with their queue."""
        for receive in self.by_lease.values():
            yield _ended(receive, lsn, how, ended_ms) if receive.is_certain else _gone(receive)

    def step(self, latest_ms: int) -> None:
        """Lower the ends of leases, after broker time stepped back."""
        for receive in self.by_lease.values():
            receive.until_ms = min(receive.until_ms, latest_ms)

    def _taken(self, leases: Runs) -> Iterator[Receive]:
        """Remove and yield the receives under leases; a receive whose own row is missing begins here."""
        for lease in unpack_runs(leases):
            receive = self._take(lease)
            if receive is not None:
                yield receive
            elif lease not in self._cut:
                yield Receive(self.queue_id, lease)

    def _take(self, lease: int) -> Receive | None:
        receive = self.by_lease.pop(lease, None)
        if receive is not None:
            if receive.position >= 0:
                self._in_flight.discard(receive.position)
            else:
                self._unplaced.discard(lease)
        return receive

    def _replaced(self, positions: Runs) -> Iterator[Receive]:
        """Remove and yield the receives of messages that another receive has: they ended in missing rows."""
        if not any(self._in_flight.range_cardinality(start, stop) for start, stop in ranges(positions)):
            return
        ended = set(self._in_flight & BitMap64(unpack_runs(positions)))
        for receive in [each for each in self.by_lease.values() if each.position in ended]:
            self._take(receive.lease)
            yield _gone(receive)

    # ------------------------------------------------------------------ missing rows

    def doubt(self) -> None:
        """Note that rows are missing."""
        for receive in self.by_lease.values():
            receive.is_certain, receive.until_ms = False, 0

    def compare(self, at: _Slice) -> Iterator[Receive]:
        """Take over the leases of a slice; yield the receives that must have ended before."""
        told = BitMap64()
        for part in at.leases:
            actors = actor_numbers(part.actors, len(part.leases))
            for (lease, position, deadline_ms, *_), actor in zip(part.leases, actors, strict=True):
                if position < at.floor:
                    # Cleared or expired in flight; the broker keeps the lease until its deadline.
                    self._cut.add(lease)
                    continue
                told.add(lease)
                receive = self.by_lease.get(lease)
                if receive is None:
                    receive = self.by_lease[lease] = Receive(self.queue_id, lease, received_by=actor)
                receive.position, receive.until_ms, receive.is_certain = position, deadline_ms, True
                receive.received_by = receive.received_by or actor
        for lease in [lease for lease in self.by_lease if lease not in told]:
            yield _gone(self.by_lease.pop(lease))
        self._in_flight = BitMap64([receive.position for receive in self.by_lease.values()])
        self._unplaced.clear()

    def left(self) -> Iterator[Receive]:
        """Yield the receives that are under way at the last row."""
        for lease in sorted(self.by_lease):
            receive = self.by_lease[lease]
            yield receive if receive.is_certain else _gone(receive)


def _ended(receive: Receive, lsn: int, how: str, ended_ms: int) -> Receive:
    receive.how, receive.ended_ms, receive.ended_lsn = how, ended_ms, lsn
    return receive


def _gone(receive: Receive) -> Receive:
    receive.how = State.GONE
    return receive


class ReceiveFold:
    """The fold of all wanted queues; see the module. Load the checkpoints before the first row."""

    def __init__(self, wanted: frozenset[int] | None = None) -> None:
        """``wanted``: ids of the queues; None = all."""
        self.wanted = wanted
        self._queues: dict[int, _Queue] = {}
        self._slices: list[_Slice] = []
        """Slices of rows that are not reached, the next as the last."""
        self._has_missed = False

    def load(self, parts: Iterable[AnyPart], last_lsn: int) -> bool:
        """Load the slices of a checkpoint. Return False, and load none, if one is of a row above ``last_lsn``."""
        by_id: dict[int, _Slice] = {}
        for part in parts:
            if isinstance(part, QueueSlice):
                if part.lsn > last_lsn:
                    return False
                by_id[part.queue_id] = _Slice(part.lsn, part.queue_id, part.floor, [])
            elif isinstance(part, LeasesSlice):
                by_id[part.queue_id].leases.append(part)
        self._slices = sorted([*self._slices, *by_id.values()], key=lambda each: each.lsn, reverse=True)
        return True

    def miss(self, first_lsn: int, last_lsn: int) -> Iterator[Receive]:
        """Note that rows are missing, and that a checkpoint that was loaded covers them."""
        yield from self._reach(first_lsn)
        # A slice of a row between missing rows does not tell how the rest of these rows changed its leases.
        while self._slices and self._slices[-1].lsn < last_lsn:
            self._slices.pop()
        self._has_missed = True
        for queue in self._queues.values():
            queue.doubt()

    def apply(self, lsn: int, time_ms: int, records: Sequence[AnyRecord]) -> Iterator[Receive]:
        """Apply a row; yield the receives that it ends. Rows ascend."""
        if self._slices and self._slices[-1].lsn < lsn:
            yield from self._reach(lsn)
        record: Any
        for record in records:
            kind: type[Any] = record.__class__
            if kind in _OF_RECEIVES:
                if self.wanted is None or record.queue_id in self.wanted:
                    yield from self._applied(lsn, time_ms, record)
            elif kind is ClockOffset and record.stepped:
                for queue in self._queues.values():
                    queue.step(record.time_ms + LONGEST_LEASE_MS)

    def _applied(self, lsn: int, time_ms: int, record: Any) -> Iterator[Receive]:
        queue = self._queue(record.queue_id)
        match record:
            case MessagesReceived():
                yield from queue.receive(lsn, record)
            case MessagesDeleted():
                yield from queue.answer(lsn, record, LifeKind.DELETED, record.deleted_ms)
            case MessagesDeadLettered():
                yield from queue.answer(lsn, record, LifeKind.DEAD_LETTERED, record.moved_ms)
            case LeasesEnded():
                yield from queue.give_back(lsn, record, LifeKind.LEASE_ENDED, time_ms)
            case MessagesReleased():
                yield from queue.give_back(lsn, record, LifeKind.RELEASED, time_ms)
            case VisibilityChanged():
                queue.change(record)
            case QueueCleared():
                yield from queue.cut(lsn, record.floor, LifeKind.CLEARED, time_ms)
            case MessagesExpired():
                yield from queue.cut(lsn, record.floor, LifeKind.EXPIRED, time_ms)
            case _:
                yield from queue.end(lsn, LifeKind.QUEUE_DELETED, time_ms)
                del self._queues[record.queue_id]

    def _queue(self, queue_id: int) -> _Queue:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = _Queue(queue_id)
        return queue

    def _reach(self, lsn: int) -> Iterator[Receive]:
        """Take over the slices of rows below ``lsn``. Without missing rows the rows have told the same."""
        while self._slices and self._slices[-1].lsn < lsn:
            at = self._slices.pop()
            if self._has_missed and (self.wanted is None or at.queue_id in self.wanted):
                yield from self._queue(at.queue_id).compare(at)

    def finish(self, last_lsn: int) -> Iterator[Receive]:
        """Yield the receives that are under way after the last row."""
        yield from self._reach(last_lsn + 1)
        for queue_id in sorted(self._queues):
            yield from self._queues[queue_id].left()


_OF_RECEIVES: Final = frozenset(
    {
        LeasesEnded,
        MessagesDeadLettered,
        MessagesDeleted,
        MessagesExpired,
        MessagesReceived,
        MessagesReleased,
        QueueCleared,
        QueueDeleted,
        VisibilityChanged,
    }
)
