"""A queue's index: which position is in which state. Sets of positions, not an object per message.

            sent                received               deleted
    ──────► active ───────────────► in flight ───────────► gone
      │        ▲  ▲ lease ended / released │
      │ delay  │  └───────────────────────┘
      ├─► delayed                                  any state ──(floor passes it: cleared, expired)──► gone
      │        ▲ scheduled
      └─► overflow (delayed beyond max_delayed)

Invariants, checked by :meth:`QueueIndex.check_invariants`:

- Each live position is in exactly one of active, delayed, overflow, damaged, or held by exactly one lease in flight.
- No live position is below ``floor`` or at or above ``next_position``; no active one is below ``head``.
- Each count is the size of its set; in flight is what of live is in no set.

All changes of facts go through the ``apply_*`` methods, live and in recovery alike; they look at no clock. ``damaged``
is no fact but an observation (a body that could not be read): a restart looks again.
"""

from collections.abc import Iterator

import msgspec
from pyroaring import BitMap64

from cmqd.core.deadlines import DeadlineBuckets
from cmqd.core.history import ReceiveHistory
from cmqd.core.steps import TimeSteps
from cmqd_segment.records import (
    DelaysScheduled,
    LeasesEnded,
    MessagesActivated,
    MessagesDeleted,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    QueueAttributes,
    Runs,
    VisibilityChanged,
    pack_runs,
    ranges,
    unpack_runs,
)


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """One lease: who holds what until when."""

    position: int
    deadline_ms: int
    receive_count: int
    first_receive_ms: int


class QueueIndex:
    """See the module."""

    __slots__ = (
        "active",
        "active_count",
        "attributes",
        "damaged",
        "damaged_delays",
        "delay_buckets",
        "delayed",
        "delayed_count",
        "floor",
        "head",
        "history",
        "in_flight",
        "last_enqueue_ms",
        "lease_buckets",
        "live",
        "live_count",
        "next_position",
        "overflow",
        "overflow_count",
        "queue_id",
        "steps",
    )

    def __init__(
        self,
        queue_id: int,
        attributes: QueueAttributes,
        lease_buckets: DeadlineBuckets,
        delay_buckets: DeadlineBuckets,
    ) -> None:
        self.queue_id = queue_id
        self.attributes = attributes
        self.lease_buckets = lease_buckets
        """(first lease, count) pairs of every queue, by deadline."""
        self.delay_buckets = delay_buckets
        """Positions of every queue, by due time."""
        self.next_position = 0
        self.floor: int = 0
        self.head: int = 0
        """No active position is below it."""
        self.last_enqueue_ms = 0
        self.live = BitMap64()
        self.live_count = 0
        self.active = BitMap64()
        self.active_count = 0
        self.delayed = BitMap64()
        self.delayed_count = 0
        self.overflow = BitMap64()
        self.overflow_count = 0
        self.damaged = BitMap64()
        self.damaged_delays = BitMap64()
        """Those of the damaged that are overflow to whoever reads the log anew; the others are active."""
        self.in_flight: dict[int, InFlight] = {}
        """By lease. May still hold leases of positions below the floor, until their deadline."""
        self.history = ReceiveHistory()
        self.steps = TimeSteps()

    # ------------------------------------------------------------------ counts

    @property
    def in_flight_count(self) -> int:
        """Messages received and hidden, exact."""
        return self.live_count - self.active_count - self.delayed_count - self.overflow_count - len(self.damaged)

    def first_active(self) -> int:
        """The lowest active position; there must be one."""
        if self.head not in self.active:
            self.head = next(iter(self.active))
        return self.head

    def expires_ms(self, position: int) -> int:
        """When the message at ``position`` expires, at the latest a grain of the time steps too early."""
        return self.steps.sent_at(position) + self.attributes.retention_ms

    def expired_below(self, now_ms: int) -> int:
        """Every message below it has passed its retention; of those that have, less than a time step may be above."""
        return self.steps.floor_at(now_ms - self.attributes.retention_ms, self.next_position)

    # ------------------------------------------------------------------ facts

    def apply_sent(self, record: MessagesSent) -> bool:
        """True if a new time step began (so that its expiry can be scheduled)."""
        first = record.first_position
        count = len(record.sizes)
        stop = first + count
        self.next_position = stop
        self.last_enqueue_ms = record.enqueue_ms
        self.live.add_range(first, stop)
        self.live_count += count
        visible_ms = record.visible_ms
        if visible_ms is None:
            self._activate_range(first, stop)
        elif isinstance(visible_ms, int):
            self._apply_delays(range(first, stop), [visible_ms] * count, record.enqueue_ms)
        else:
            self._apply_delays(range(first, stop), visible_ms, record.enqueue_ms)
        return self.steps.note(first, record.enqueue_ms)

    def _activate_range(self, start: int, stop: int) -> None:
        self.active.add_range(start, stop)
        if not self.active_count or start < self.head:
            self.head = start
        self.active_count += stop - start

    def _apply_delays(self, positions: range, visible_ms: list[int], enqueue_ms: int) -> None:
        # In order: while some wait for a place, nobody else takes one. What is damaged counts as waiting, because
        # recovery, which knows nothing of damage, must come to the same sets.
        for position, due_ms in zip(positions, visible_ms, strict=True):
            if due_ms <= enqueue_ms:
                self._activate_range(position, position + 1)
            elif (
                self.delayed_count < self.attributes.max_delayed and not self.overflow_count and not self.damaged_delays
            ):
                self._schedule(position, due_ms)
            else:
                self.overflow.add(position)
                self.overflow_count += 1

    def _schedule(self, position: int, due_ms: int) -> None:
        self.delayed.add(position)
        self.delayed_count += 1
        self.delay_buckets.bucket(due_ms, self.queue_id).append(position)
        self.delay_buckets.size += 1

    def apply_received(self, record: MessagesReceived) -> list[InFlight]:
        """The leases made, in order of their numbers."""
        lease = first_lease = record.first_lease
        deadline_ms, received_ms = record.deadline_ms, record.received_ms
        made: list[InFlight] = []
        in_flight = self.in_flight
        history = self.history if self.history.chunks else None
        for start, stop in ranges(record.positions):
            self.active.remove_range(start, stop)
            for position in range(start, stop):
                if history is not None:
                    count, first_ms = history.get(position)
                    held = InFlight(position, deadline_ms, count + 1, first_ms or received_ms)
                else:
                    held = InFlight(position, deadline_ms, 1, received_ms)
                in_flight[lease] = held
                made.append(held)
                lease += 1
        count = lease - first_lease
        self.active_count -= count
        self.lease_buckets.bucket(deadline_ms, self.queue_id).extend((first_lease, count))
        self.lease_buckets.size += 2
        return made

    def apply_deleted(self, record: MessagesDeleted) -> None:
        """Leases and messages are gone."""
        for lease in unpack_runs(record.leases):
            self.in_flight.pop(lease, None)
        history = self.history if self.history.chunks else None
        for start, stop in ranges(record.positions):
            self.live.remove_range(start, stop)
            self.live_count -= stop - start
            if history is not None:
                for position in range(start, stop):
                    history.discard(position)

    def apply_returned(self, record: LeasesEnded | MessagesReleased) -> None:
        """Messages come back; an uncounted one as if this receive had not been."""
        counted = not isinstance(record, MessagesReleased) or record.counted
        for lease in unpack_runs(record.leases):
            held = self.in_flight.pop(lease, None)
            if held is None or held.position < self.floor:
                continue
            if counted:
                self.history.set(held.position, held.receive_count, held.first_receive_ms)
            self._activate_range(held.position, held.position + 1)

    def apply_visibility(self, record: VisibilityChanged) -> None:
        """Leases run until another time; their entries in older buckets turn stale."""
        width_ms = self.lease_buckets.width_ms
        number = -(-record.deadline_ms // width_ms)
        for lease in unpack_runs(record.leases):
            held = self.in_flight[lease]
            self.in_flight[lease] = msgspec.structs.replace(held, deadline_ms=record.deadline_ms)
            if -(-held.deadline_ms // width_ms) != number:
                # Else it has an entry there; again and again moved to the same time, it must not get one each time.
                self.lease_buckets.bucket(record.deadline_ms, self.queue_id).extend((lease, 1))
                self.lease_buckets.size += 2

    def apply_activated(self, record: MessagesActivated) -> None:
        """Delays ended; the entries of these positions in buckets turn stale."""
        for start, stop in ranges(record.positions):
            self.delayed.remove_range(start, stop)
            self.delayed_count -= stop - start
            self._activate_range(start, stop)

    def apply_scheduled(self, record: DelaysScheduled) -> None:
        """Overflow messages got their place among the delayed."""
        for position, due_ms in zip(unpack_runs(record.positions), record.visible_ms, strict=True):
            self.overflow.remove(position)
            self.overflow_count -= 1
            self._schedule(position, due_ms)

    def apply_floor(self, floor: int) -> None:
        """Everything below ``floor`` is gone, whatever its state (cleared or expired)."""
        floor = max(floor, self.floor)
        for positions in (
            self.live,
            self.active,
            self.delayed,
            self.overflow,
            self.damaged,
            self.damaged_delays,
        ):
            positions.remove_range(0, floor)
        self.live_count = len(self.live)
        self.active_count = len(self.active)
        self.delayed_count = len(self.delayed)
        self.overflow_count = len(self.overflow)
        self.history.drop_below(floor)
        self.steps.drop_below(floor)
        if not self.live_count:
            self.steps.clear()
        self.floor = floor
        self.head = max(self.head, floor)

    # ------------------------------------------------------------------ salvage, see cmqd.core.salvage

    def leave_set(self, position: int) -> bool:
        """A live message leaves its set, for another state at once; False: it is in none, so a lease holds it."""
        if position in self.active:
            self.active.remove(position)
            self.active_count -= 1
        elif position in self.delayed:
            self.delayed.remove(position)
            self.delayed_count -= 1
        elif position in self.overflow:
            self.overflow.remove(position)
            self.overflow_count -= 1
        else:
            return False
        return True

    def activate(self, positions: list[int]) -> None:
        """Live messages that have no state become active."""
        for position in positions:
            self._activate_range(position, position + 1)

    # ------------------------------------------------------------------ observations

    def set_damaged(self, positions: Runs) -> int:
        """These bodies (and due times) cannot be read: their messages are not receivable until the log is repaired and
        the broker started again. How many are new.
        """
        before = len(self.damaged)
        for start, stop in ranges(positions):
            for position in range(start, stop):
                if position in self.active:
                    self.active.remove(position)
                    self.active_count -= 1
                    self.damaged.add(position)
                elif position in self.overflow:
                    self.overflow.remove(position)
                    self.overflow_count -= 1
                    self.damaged.add(position)
                    self.damaged_delays.add(position)
        return len(self.damaged) - before

    def active_from(self, start: int, most: int) -> list[int]:
        """Up to ``most`` active positions from ``start`` on, ascending."""
        return _from(self.active, start, most)

    def overflow_from(self, start: int, most: int) -> list[int]:
        """Up to ``most`` overflow positions from ``start`` on, ascending."""
        return _from(self.overflow, start, most)

    def live_from(self, start: int, most: int) -> list[int]:
        """Up to ``most`` live positions from ``start`` on, ascending."""
        return _from(self.live, start, most)

    def due_delays(self, positions: "Iterator[int]") -> Runs:
        """Those of ``positions`` that are still delayed."""
        delayed = self.delayed
        return pack_runs(sorted(position for position in positions if position in delayed))

    def check_invariants(self) -> None:
        """Assert what the class promises; for tests."""
        held = [one.position for one in self.in_flight.values() if one.position >= self.floor]
        in_flight = BitMap64(held)
        assert len(in_flight) == len(held), "a position is held by two leases"
        sets = (self.active, self.delayed, self.overflow, self.damaged, in_flight)
        together = BitMap64()
        for positions in sets:
            assert not together & positions, "a position is in two states"
            together |= positions
        assert together == self.live, "a live position has no state, or a dead one has"
        assert self.damaged_delays <= self.damaged
        assert self.live_count == len(self.live)
        assert self.active_count == len(self.active)
        assert self.delayed_count == len(self.delayed)
        assert self.overflow_count == len(self.overflow)
        assert self.in_flight_count == len(held)
        if self.live_count:
            assert self.floor <= self.live.min()
            assert self.live.max() < self.next_position
        if self.active_count:
            assert self.head <= self.active.min(), "an active position is below the head"


def _from(positions: BitMap64, start: int, most: int) -> list[int]:
    if positions.contains_range(start, start + most):
        return list(range(start, start + most))
    found: list[int] = []
    for position in positions.iter_equal_or_larger(start):
        found.append(position)
        if len(found) == most:
            break
    return found
