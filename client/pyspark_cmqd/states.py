"""What became of each message of a queue at one fixed row of the log: a fold over records, and what it found. Pure.

State of a message (the column ``event`` of all modes but ``events``):

    active  delayed  in_flight  half             it is in the queue (the *backlog*: the first three)
    deleted                                      a consumer deleted it (*consumed*); it may be rewindable
    dead_lettered  redriven                      it stands in another queue now
    expired  cleared  queue_deleted              it is gone with its retention, by clearing, with its queue
    rolled_back                                  a half message that was decided so
    gone                                         it is no longer in the queue, and the rows that say why were reclaimed

A half message that was committed stands at another place under the same id, and is not shown where it was.

Two folds say it. An exact one begins at a checkpoint at or below the fixed row, or at the log's first row if nothing of
it is missing. If rows are missing, a second one goes over those that are left up to the checkpoint, to find out why
messages went before it: it says nothing wrong, but of some messages nothing, and they are ``gone``. What it cannot see
is a rewind in a missing row: a message that was deleted before counts as deleted, until a row tells otherwise.

Modes are about messages in queues: those of a topic itself are read by mode ``events``.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter

from pyroaring import BitMap64

from cmqd_fold.rewind_floor import rewind_floor_of
from cmqd_fold.time_steps import TimeSteps
from cmqd_segment.checkpoint import AnyPart, HistorySlice, LeasesSlice, QueueSlice
from cmqd_segment.published import copies_of
from cmqd_segment.records import (
    AnyRecord,
    ClockOffset,
    LeasesEnded,
    MessagesActivated,
    MessagesDeleted,
    MessagesExpired,
    MessagesMoved,
    MessagesPublished,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    QueueAttributes,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
    QueueDeleted,
    QueueRewound,
    TransactionsEnded,
    ranges,
    unpack_runs,
)
from cmqd_segment.rows import Run
from pyspark_cmqd.options import Mode


class State(StrEnum):
    """See the module."""

    ACTIVE = "active"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"
    HALF = "half"
    DELETED = "deleted"
    DEAD_LETTERED = "dead_lettered"
    REDRIVEN = "redriven"
    EXPIRED = "expired"
    CLEARED = "cleared"
    QUEUE_DELETED = "queue_deleted"
    ROLLED_BACK = "rolled_back"
    COMMITTED = "committed"
    GONE = "gone"


LIVE = (State.ACTIVE, State.DELAYED, State.IN_FLIGHT, State.HALF)
BACKLOG = (State.ACTIVE, State.DELAYED, State.IN_FLIGHT)
SHOWN: dict[Mode, frozenset[State]] = {
    Mode.ALL: frozenset(State) - {State.COMMITTED},
    Mode.BACKLOG: frozenset(BACKLOG),
    Mode.CONSUMED: frozenset({State.DELETED}),
    Mode.DEAD: frozenset(BACKLOG),
}
"""Which states a mode shows; ``dead`` only what came there as a dead letter."""
DEAD_REASONS = frozenset({"receives", "age"})
"""Of an origin: the message was dead-lettered. The other, ``redrive``, brought it back."""

HISTORY_CHUNK = 1024
HISTORY_TIME_BITS = 42
UNKNOWN_MS = 1 << 62
"""A rewind window of which nothing is known: anything deleted may come back."""


class QueueFold:
    """One queue, record by record."""

    def __init__(self, attributes: QueueAttributes) -> None:
        self.attributes = attributes
        self.lsn = 0
        """Of the checkpoint's slice: records up to it are in it."""
        self.until = sys.maxsize
        """The last row that counts."""
        self.next_position = 0
        self.floor = 0
        self.live = BitMap64()
        self.active = BitMap64()
        self.half = BitMap64()
        self.delayed = BitMap64()
        self.rewindable = BitMap64()
        self.gone: dict[State, BitMap64] = {}
        """Why messages went, as far as the records say."""
        self.deleted_before = BitMap64()
        """As of the slice, and not brought back since."""
        self.deleted: list[tuple[int, int, int]] = []
        """(start, stop, time in ms) in the order of the log; a later one counts."""
        self.leases: dict[int, tuple[int, int]] = {}
        """Lease -> position, receive count."""
        self.counts: dict[int, int] = {}
        """Receive counts of messages that came back."""
        self.last_counts: dict[int, int] = {}
        """Receive counts with which messages in flight left the queue; 1 is left out for deleted ones."""
        self.steps = TimeSteps()
        self._last_ms = 0

    # ------------------------------------------------------------------ from a checkpoint

    @classmethod
    def of_slice(cls, part: QueueSlice) -> "QueueFold":
        """The queue as of ``part.lsn``, but for its leases and history."""
        fold = cls(part.attributes)
        fold.lsn = part.lsn
        fold.next_position = part.next_position
        fold.floor = part.floor
        fold.live = BitMap64.deserialize(part.live)
        fold.active = BitMap64.deserialize(part.active)
        fold.delayed = BitMap64.deserialize(part.delayed) | BitMap64.deserialize(part.overflow)
        if part.half:
            fold.half = BitMap64.deserialize(part.half)
        if part.rewindable:
            fold.rewindable = BitMap64.deserialize(part.rewindable)
            fold.deleted_before = BitMap64(fold.rewindable)
            fold._note_gone(State.DELETED, fold.rewindable)
        fold.steps.load(part.step_positions, part.step_starts, part.step_ends)
        fold._last_ms = part.last_enqueue_ms
        return fold

    def load(self, part: "LeasesSlice | HistorySlice") -> None:
        """Take what the parts after the slice say."""
        if isinstance(part, LeasesSlice):
            # The broker keeps leases of cleared and expired messages until their deadline.
            self.leases.update(
                (lease, (position, count)) for lease, position, _, count, _ in part.leases if position >= self.floor
            )
            return
        for first, content in part.entries:
            numbers = array("Q")
            numbers.frombytes(content)
            if len(numbers) == HISTORY_CHUNK:
                pairs: Iterable[tuple[int, int]] = enumerate(numbers)
            else:
                pairs = zip(numbers[::2], numbers[1::2], strict=True)
            self.counts.update((first + offset, packed >> HISTORY_TIME_BITS) for offset, packed in pairs if packed)

    # ------------------------------------------------------------------ facts

    def apply(self, record: AnyRecord) -> None:
        """A record of this queue; published copies come by :meth:`apply_copies`."""
        match record:
            case MessagesSent():
                self._sent(record)
            case MessagesReceived():
                lease = record.first_lease
                for start, stop in ranges(record.positions):
                    self.active.remove_range(start, stop)
                    for position in range(start, stop):
                        self.leases[lease] = (position, self.counts.get(position, 0) + 1)
                        lease += 1
            case MessagesDeleted():
                self._deleted(record)
            case LeasesEnded() | MessagesReleased():
                self._returned(record)
            case MessagesActivated():
                for start, stop in ranges(record.positions):
                    self._activate(start, stop)
            case QueueRewound():
                self._rewound(record)
            case MessagesMoved():
                self._leave(State.REDRIVEN if record.redriven else State.DEAD_LETTERED, record.positions)
            case TransactionsEnded():
                self._leave(State.COMMITTED if record.committed else State.ROLLED_BACK, record.positions)
            case QueueCleared():
                self._raise_floor(record.floor, State.CLEARED)
            case MessagesExpired():
                self._raise_floor(record.floor, State.EXPIRED)
            case QueueAttributesSet():
                self._prune(record)
                self.attributes = record.attributes
            case QueueDeleted():
                self._note_gone(State.QUEUE_DELETED, self.live)
                self.live = BitMap64()
                self._end_leases(self.next_position)
            case _:
                pass

    def apply_step(self, time_ms: int) -> None:
        """Broker time stepped back to ``time_ms``; no message counts as sent later."""
        self._last_ms = min(self._last_ms, time_ms)
        self.steps.no_later_than(time_ms)

    def apply_copies(self, first: int, count: int, enqueue_ms: int) -> None:
        """Copies of what was published to a topic."""
        self._stored(first, first + count, max(enqueue_ms, self._last_ms))
        self.active.add_range(first, first + count)

    def _sent(self, record: MessagesSent) -> None:
        first = record.first_position
        stop = first + len(record.sizes)
        self._stored(first, stop, record.enqueue_ms)
        visible_ms = record.visible_ms
        if record.half:
            self.half.add_range(first, stop)
        elif visible_ms is None:
            self.active.add_range(first, stop)
        elif isinstance(visible_ms, int):
            (self.delayed if visible_ms > record.enqueue_ms else self.active).add_range(first, stop)
        else:
            for position, at_ms in enumerate(visible_ms, first):
                (self.delayed if at_ms > record.enqueue_ms else self.active).add(position)

    def _stored(self, first: int, stop: int, enqueue_ms: int) -> None:
        self.next_position = stop
        self.live.add_range(first, stop)
        self.steps.note(first, enqueue_ms)
        self._last_ms = enqueue_ms

    def _activate(self, start: int, stop: int) -> None:
        self.delayed.remove_range(start, stop)
        self.active.add_range(start, stop)

    def _deleted(self, record: MessagesDeleted) -> None:
        gone = self.gone.setdefault(State.DELETED, BitMap64())
        for start, stop in ranges(record.positions):
            self.live.remove_range(start, stop)
            # In flight, unless rows are missing.
            self.active.remove_range(start, stop)
            gone.add_range(start, stop)
            if self.attributes.rewind_ms:
                self.rewindable.add_range(start, stop)
            self.deleted.append((start, stop, record.deleted_ms))
        for lease in unpack_runs(record.leases):
            position, count = self.leases.pop(lease, (-1, 1))
            if position >= 0:
                self.counts.pop(position, None)
                if count != 1:
                    self.last_counts[position] = count

    def _returned(self, record: "LeasesEnded | MessagesReleased") -> None:
        counted = not isinstance(record, MessagesReleased) or record.counted
        for lease in unpack_runs(record.leases):
            position, count = self.leases.pop(lease, (-1, 0))
            if position >= 0:
                if counted:
                    self.counts[position] = count
                self.active.add(position)

    def _rewound(self, record: QueueRewound) -> None:
        self._prune(record)
        back = BitMap64(self.rewindable)
        back.remove_range(0, record.from_position)
        back.remove_range(record.stop_position, max(self.next_position, record.stop_position) + 1)
        self.rewindable -= back
        self.deleted_before -= back
        self.gone[State.DELETED] = self.gone.get(State.DELETED, BitMap64()) - back
        for position in back if self.last_counts else ():
            self.last_counts.pop(position, None)
        self.live |= back
        self.active |= back

    def _prune(self, record: QueueRewound | QueueAttributesSet) -> None:
        """Remove the deleted messages below the record's rewind floor."""
        if self.rewindable:
            floor = rewind_floor_of(record, self.attributes, self.steps, self.next_position)
            self.rewindable.remove_range(0, floor)

    def _leave(self, state: State, positions: Sequence[int]) -> None:
        gone = self.gone.setdefault(state, BitMap64())
        for start, stop in ranges(list(positions)):
            self.live.remove_range(start, stop)
            self.active.remove_range(start, stop)
            self.half.remove_range(start, stop)
            gone.add_range(start, stop)

    def _raise_floor(self, floor: int, state: State) -> None:
        floor = max(floor, self.floor)
        below = BitMap64(self.live)
        below.remove_range(floor, max(self.next_position, floor) + 1)
        self._note_gone(state, below)
        if below - self.active - self.delayed - self.half:
            # Only then: expiry raises the floor often, and looking through all leases each time would cost too much.
            self._end_leases(floor)
        for positions in (self.live, self.active, self.delayed, self.half, self.rewindable):
            positions.remove_range(0, floor)
        self.floor = floor

    def _end_leases(self, floor: int) -> None:
        """Messages below ``floor`` that are in flight leave the queue: their receives count, and no record of their
        leases changes anything any more.
        """
        ended = [(lease, position, count) for lease, (position, count) in self.leases.items() if position < floor]
        for lease, position, count in ended:
            del self.leases[lease]
            self.last_counts[position] = count

    def _note_gone(self, state: State, positions: BitMap64) -> None:
        known = self.gone.get(state)
        self.gone[state] = BitMap64(positions) if known is None else known | positions

    # ------------------------------------------------------------------ what came of it

    def sets(self) -> dict[State, BitMap64]:
        """Positions by state; those of live messages are apart from each other and from all others."""
        active = self.active & self.live
        half = self.half & self.live
        delayed = (self.delayed & self.live) - active - half
        found = {
            State.ACTIVE: active,
            State.DELAYED: delayed,
            State.HALF: half,
            State.IN_FLIGHT: self.live - active - delayed - half,
        }
        for state, positions in self.gone.items():
            found[state] = positions - self.live
        return found

    def receive_counts(self) -> dict[int, int]:
        """Receive counts by position, where they are not what the state says (1 of deleted ones and those in flight
        for the first time, else 0).
        """
        counts = {**self.counts, **self.last_counts}
        counts.update(self.leases.values())
        return counts


class QueueCauses(QueueFold):
    """Why messages of one queue went, by rows of which some are missing. ``live`` are those of which it is certain."""

    def __init__(self, attributes: QueueAttributes | None, until: int) -> None:
        """``attributes``: if nothing of the queue is missing yet."""
        super().__init__(attributes or QueueAttributes(rewind_ms=UNKNOWN_MS))
        self.until = until
        self._is_whole = attributes is not None

    def skip(self) -> None:
        """Rows are missing here."""
        self._is_whole = False
        # Any may have gone, and the window may be another one.
        self.live = BitMap64()
        self.attributes = QueueAttributes(rewind_ms=UNKNOWN_MS)

    def apply(self, record: AnyRecord) -> None:
        """A record of this queue."""
        super().apply(record)
        if isinstance(record, MessagesReceived) and not self._is_whole:
            for start, stop in ranges(record.positions):
                # It is there, whatever was thought of it.
                self._forget(start, stop)
                self.live.add_range(start, stop)
                self.next_position = max(self.next_position, stop)

    def _deleted(self, record: MessagesDeleted) -> None:
        for start, stop in ranges(record.positions):
            self._forget(start, stop)
        super()._deleted(record)

    def _leave(self, state: State, positions: Sequence[int]) -> None:
        for start, stop in ranges(list(positions)):
            self._forget(start, stop)
        super()._leave(state, positions)

    def _forget(self, start: int, stop: int) -> None:
        """The last thing that befell a message is what counts."""
        self.rewindable.remove_range(start, stop)
        for gone in self.gone.values():
            gone.remove_range(start, stop)

    def _rewound(self, record: QueueRewound) -> None:
        if self._is_whole:
            super()._rewound(record)
            return
        # They are back, or were let go before: either may be.
        back = BitMap64(self.rewindable)
        back.remove_range(0, record.from_position)
        back.remove_range(record.stop_position, max(self.next_position, record.stop_position) + 1)
        self.rewindable.difference_update(back)
        self.gone.setdefault(State.DELETED, BitMap64()).difference_update(back)

    def _prune(self, record: QueueRewound | QueueAttributesSet) -> None:
        if self._is_whole or record.rewind_floor >= 0:
            super()._prune(record)


class Fold:
    """All queues that are wanted."""

    def __init__(self, wanted: "frozenset[int] | None" = None) -> None:
        self._wanted = wanted
        self.queues: dict[int, QueueFold] = {}

    def _is_wanted(self, queue_id: int) -> bool:
        return self._wanted is None or queue_id in self._wanted

    def load(self, part: AnyPart) -> None:
        """A part of a checkpoint."""
        if isinstance(part, QueueSlice):
            if self._is_wanted(part.queue_id):
                self.queues[part.queue_id] = QueueFold.of_slice(part)
        elif isinstance(part, LeasesSlice | HistorySlice):
            queue = self.queues.get(part.queue_id)
            if queue is not None:
                queue.load(part)

    def apply(self, lsn: int, records: Iterable[AnyRecord]) -> None:
        """The records of a row, in order."""
        queues = self.queues
        for record in records:
            if isinstance(record, MessagesPublished):
                self._apply_copies(lsn, record)
                continue
            if isinstance(record, ClockOffset) and record.stepped:
                for queue in queues.values():
                    if queue.lsn < lsn <= queue.until:
                        queue.apply_step(record.time_ms)
                continue
            queue_id = getattr(record, "queue_id", 0)
            if not queue_id or not self._is_wanted(queue_id):
                continue
            queue = queues.get(queue_id) or self._new(record, queue_id)
            if queue is not None and queue.lsn < lsn <= queue.until:
                queue.apply(record)

    def _new(self, record: AnyRecord, queue_id: int) -> "QueueFold | None":
        """A queue that was not known; None if nothing is to be said of it."""
        if isinstance(record, QueueCreated):
            self.queues[queue_id] = QueueFold(record.attributes)
        return self.queues.get(queue_id)

    def _apply_copies(self, lsn: int, record: MessagesPublished) -> None:
        for queue_id, first, count in copies_of(record):
            if not self._is_wanted(queue_id):
                continue
            queue = self.queues.get(queue_id) or self._new(record, queue_id)
            if queue is not None and queue.lsn < lsn <= queue.until:
                queue.apply_copies(first, count, record.enqueue_ms)


class Causes(Fold):
    """What befell messages before the slices that an exact fold began with; rows may be missing."""

    def __init__(self, exact: Fold) -> None:
        """Rows are given to ``exact`` first."""
        super().__init__(exact._wanted)
        self._exact = exact
        self._last = 0

    def apply(self, lsn: int, records: Iterable[AnyRecord]) -> None:
        """The records of a row, in order."""
        if lsn > self._last + 1:
            for queue in self.queues.values():
                assert isinstance(queue, QueueCauses)
                queue.skip()
        self._last = lsn
        super().apply(lsn, records)

    def _new(self, record: AnyRecord, queue_id: int) -> QueueFold:
        exact = self._exact.queues.get(queue_id)
        # One that was deleted before the checkpoint has no slice, and all rows are its own.
        until = sys.maxsize if exact is None else exact.lsn
        queue = QueueCauses(record.attributes if isinstance(record, QueueCreated) else None, until)
        self.queues[queue_id] = queue
        return queue


class Folds:
    """Both folds: see the module."""

    def __init__(self, exact: Fold, above: int) -> None:
        """``exact``: with the slices of a checkpoint that goes on above that row."""
        self._exact = exact
        self._above = above
        self._causes = Causes(exact)

    def apply(self, lsn: int, records: Sequence[AnyRecord]) -> None:
        """The records of a row that is left; rows ascend."""
        if lsn > self._above:
            self._exact.apply(lsn, records)
        self._causes.apply(lsn, records)

    def results(self) -> "dict[int, Result]":
        """By queue id."""
        exact, causes = self._exact.queues, self._causes.queues
        # Queues that were deleted before the checkpoint: nothing is left of them but what the rows say.
        gone = {number: QueueFold(queue.attributes) for number, queue in causes.items() if number not in exact}
        return {number: result_of(queue, causes.get(number)) for number, queue in (exact | gone).items()}


@dataclass
class QueueStates:
    """What is said of a queue's messages: the result, cut to some positions and pickled to an executor."""

    sets: dict[State, bytes] = field(default_factory=dict[State, bytes])
    """Serialized, apart from each other."""
    deleted: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(start, stop, time in ms), ascending and apart."""
    counts: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class Result:
    """What two folds say of a queue."""

    sets: dict[State, BitMap64]
    deleted: list[tuple[int, int, int]]
    """(start, stop, time in ms), ascending and apart."""
    counts: dict[int, int]

    def __post_init__(self) -> None:
        # There may be a cut for each of thousands of segments.
        self._counted = array("Q", sorted(self.counts))

    def cut(self, start: int, stop: int) -> QueueStates:
        """The part about positions ``start`` to below ``stop``."""
        here = BitMap64()
        here.add_range(start, stop)
        states = QueueStates()
        for state, positions in self.sets.items():
            some = positions & here
            if some:
                states.sets[state] = some.serialize()
        low, high = bisect_right(self.deleted, start, key=_stop_of), bisect_left(self.deleted, stop, key=_start_of)
        states.deleted = self.deleted[low:high]
        low, high = bisect_left(self._counted, start), bisect_left(self._counted, stop)
        states.counts = {position: self.counts[position] for position in self._counted[low:high]}
        return states


_start_of = itemgetter(0)
_stop_of = itemgetter(1)


def result_of(exact: QueueFold, causes: "QueueFold | None" = None) -> Result:
    """What is known of a queue. ``causes``: of the fold of what was before the exact one."""
    sets = exact.sets()
    deleted = exact.deleted
    counts = exact.receive_counts()
    if causes is not None:
        known = exact.live.union(*exact.gone.values())
        for state, positions in causes.gone.items():
            sets[state] = sets.get(state, BitMap64()) | (positions - known)
        deleted = causes.deleted + exact.deleted
        since = known - exact.deleted_before
        before = {**causes.receive_counts(), **causes.last_counts}
        counts = {position: count for position, count in before.items() if position not in since} | counts
    return Result(sets, _last_deletes(deleted, sets.get(State.DELETED)), counts)


def _last_deletes(deleted: Sequence[tuple[int, int, int]], still: "BitMap64 | None") -> list[tuple[int, int, int]]:
    """Deletes as ascending ranges apart from each other: of those that overlap (after a rewind) the last counts."""
    if not still:
        return []
    ascending = sorted(deleted)
    if all(one[1] <= after[0] for one, after in pairwise(ascending)):
        return ascending
    seen = BitMap64()
    found: list[tuple[int, int, int]] = []
    for start, stop, at_ms in reversed(deleted):
        fresh = BitMap64()
        fresh.add_range(start, stop)
        fresh -= seen
        seen |= fresh
        first = last = -1
        for position in fresh:
            if position != last:
                if last > first:
                    found.append((first, last, at_ms))
                first = position
            last = position + 1
        if last > first:
            found.append((first, last, at_ms))
    return sorted(found)


class StateReader:
    """On the executor: the state of each message of one queue."""

    def __init__(self, states: QueueStates, mode: Mode) -> None:
        self._mode = mode
        self._shown = SHOWN[mode]
        self._sets = [(state, BitMap64.deserialize(packed)) for state, packed in states.sets.items()]
        self._deleted = states.deleted
        self._starts = [one[0] for one in states.deleted]
        self._counts = states.counts

    def stretches(self, run: Run) -> Iterator[tuple[int, int, State, "int | None", int]]:
        """``(start, stop, state, deleted_ms, receive_count)`` of neighbours in the run that the mode shows."""
        first, stop = run.first_position, run.stop_position
        begin = first
        said: tuple[State, int | None, int] | None = None
        for low, high, state in self._states(first, stop):
            for position in range(low, high):
                now = self._said(position, state, run)
                if now != said:
                    if said is not None and begin < position:
                        yield begin - first, position - first, *said
                    said, begin = now, position
        if said is not None:
            yield begin - first, stop - first, *said

    def _states(self, first: int, stop: int) -> Iterator[tuple[int, int, State]]:
        for state, positions in self._sets:
            if positions.contains_range(first, stop):
                yield first, stop, state
                return
        for position in range(first, stop):
            state = next((state for state, positions in self._sets if position in positions), State.GONE)
            yield position, position + 1, state

    def _said(self, position: int, state: State, run: Run) -> "tuple[State, int | None, int] | None":
        if state not in self._shown:
            return None
        if self._mode is Mode.DEAD:
            origin = None if run.origins is None else run.origins[position - run.first_position]
            if origin is None or origin.reason not in DEAD_REASONS:
                return None
        if state is State.DELETED:
            return state, self._deleted_ms(position), self._counts.get(position, 1)
        return state, None, self._counts.get(position, 1 if state is State.IN_FLIGHT else 0)

    def _deleted_ms(self, position: int) -> int | None:
        place = bisect_right(self._starts, position) - 1
        if place >= 0 and position < self._deleted[place][1]:
            return self._deleted[place][2]
        return None
