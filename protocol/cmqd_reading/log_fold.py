"""The states of all queues of a log: one pass over its rows, from a checkpoint if rows are missing. Pure.

For every queue the pass keeps the index of the broker (``cmqd_fold``), with the states of messages in the queue, and
the departures, with the reasons of messages that left. The index of a queue is known from the row that created the
queue, or from the slice of a checkpoint. Rows below the slice are read if they are still there, because the slice holds
no reasons. For rows that are gone, the outcomes beside the segments have them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from cmqd_fold.queue_index import QueueIndex
from cmqd_reading.callers import Callers
from cmqd_reading.departures import CertainQueue, Departures, UncertainQueue
from cmqd_reading.states import Result, State
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader, HistorySlice, LeasesSlice, QueueSlice
from cmqd_segment.outcomes import Outcome
from cmqd_segment.published import copies_of
from cmqd_segment.records import AnyRecord, ClockOffset, MessagesPublished, QueueCreated

ANY_LEASE_MS = 1 << 62
"""A step of broker time shortens no lease here: deadlines of leases are of no interest to a reader."""


class Told(NamedTuple):
    """A stretch of positions of a queue, in one segment, whose outcomes are known for some rows."""

    first: int
    stop: int
    known_from: int
    """The outcomes of rows above this LSN are known ..."""
    upto: int
    """... up to this LSN."""


class TrackedQueue:
    """A queue: its departures, and its index while the index is known."""

    def __init__(
        self, index: QueueIndex | None = None, *, with_callers: bool = False, told: Sequence[Told] = ()
    ) -> None:
        self.departures = Departures()
        self._told = told
        self._may_rewind = True
        self._callers = Callers() if with_callers else None
        self.slice_lsn = 0
        """Row of the checkpoint slice: records up to it are in the slice."""
        self._slice: QueueIndex | None = None
        """The index of the slice, until the rows have reached it."""
        self._queue = UncertainQueue(self.departures) if index is None else CertainQueue(index, self.departures)

    @property
    def index(self) -> QueueIndex | None:
        """The index at the row that was applied last; None if it is not known."""
        return self._queue.index if isinstance(self._queue, CertainQueue) else None

    def load(self, part: QueueSlice | LeasesSlice | HistorySlice) -> None:
        """Load a part of a checkpoint; the slice of the queue comes first."""
        if isinstance(part, QueueSlice):
            self._slice = QueueIndex(part.queue_id, part.attributes)
            self.slice_lsn = part.lsn
            if not part.attributes.rewind_ms and part.created_ms == part.modified_ms:
                # The attributes never changed.
                self._may_rewind = False
                self._queue = UncertainQueue(self.departures, may_rewind=False)
        assert self._slice is not None
        self._slice.load(part)

    def apply(self, lsn: int, record: AnyRecord, time_ms: int) -> None:
        """Apply a record of this queue; the copies of a published record come by ``apply_copies``."""
        self._reach(lsn)
        if isinstance(record, QueueCreated) and self._slice is not None:
            self._queue = CertainQueue(QueueIndex(record.queue_id, record.attributes), self.departures)
        if self._callers is not None:
            self._callers.note(record)
        self._queue.apply(record, time_ms)

    def apply_copies(self, lsn: int, first: int, count: int, enqueue_ms: int) -> None:
        """Apply the copies of a published record."""
        self._reach(lsn)
        if isinstance(self._queue, CertainQueue):
            self._queue.index.apply_copies(first, count, enqueue_ms)
        else:
            self._queue.apply_copies(first, count)

    def apply_step(self, lsn: int, time_ms: int) -> None:
        """Apply a step of broker time back to ``time_ms``."""
        self._reach(lsn)
        if self.index is not None:
            self.index.apply_step(time_ms, ANY_LEASE_MS)

    def apply_outcome(self, outcome: Outcome) -> None:
        """Apply an entry of the outcomes of a segment, behind the row of the entry if that is there."""
        self._reach(outcome.lsn)
        # An index that is known has the same, from rows.
        if isinstance(self._queue, UncertainQueue):
            self._queue.apply_outcome(outcome)

    def skip(self, first_lsn: int, lsn: int, checkpoint_lsn: int) -> None:
        """Pass over missing rows from ``first_lsn`` to below ``lsn``; the checkpoint covers all rows up to
        ``checkpoint_lsn``.
        """
        self._reach(lsn - 1)
        if self._slice is None and lsn - 1 > checkpoint_lsn:
            # Rows above the checkpoint were lost to damage. The broker itself went on from this index.
            return
        if isinstance(self._queue, CertainQueue):
            if self._slice is None and self.slice_lsn:
                return
            self._queue = UncertainQueue(self.departures, self._queue.index, may_rewind=self._may_rewind)
        told = BitMap64()
        for stretch in self._told:
            if stretch.known_from < first_lsn and lsn - 1 <= stretch.upto:
                told.add_range(stretch.first, stretch.stop)
        self._queue.skip(told)

    def _reach(self, lsn: int) -> None:
        """Take over the index of the slice if ``lsn`` is above it."""
        index = self._slice
        if index is not None and lsn > self.slice_lsn:
            self._slice = None
            self.departures.forget(index.live)
            if index.rewindable_count:
                self.departures.note_unseen(index.rewindable)
            self._queue = CertainQueue(index, self.departures)

    def sets(self) -> dict[State, BitMap64]:
        """Return the positions by state; no position has two states."""
        self._reach(self.slice_lsn + 1)
        index = self.index
        if index is None:
            return dict(self.departures.positions)
        active = index.active & index.live
        half = index.half & index.live
        delayed = ((index.delays.scheduled | index.delays.overflow) & index.live) - active - half
        sets = {state: left - index.live for state, left in self.departures.positions.items()}
        sets[State.ACTIVE] = active
        sets[State.DELAYED] = delayed
        sets[State.HALF] = half
        sets[State.IN_FLIGHT] = index.live - active - delayed - half
        return sets

    def receive_counts(self) -> dict[int, int]:
        """Return the receive counts by position; absent = 1 for a deleted message, 0 for any other."""
        self._reach(self.slice_lsn + 1)
        counts = dict(self.departures.receive_counts)
        if isinstance(self._queue, UncertainQueue):
            counts.update(self._queue.receive_counts())
        if self.index is not None:
            counts.update(self.index.history.counts(self.index.live))
            counts.update(
                (entry.position, entry.receive_count)
                for entry in self.index.leases.by_number.values()
                if entry.position in self.index.live
            )
        return counts

    def result(self) -> Result:
        """Return the states of the queue's messages."""
        found = Result(
            self.sets(),
            self.departures.last_ends(),
            self.receive_counts(),
            self.departures.uncounted,
            self._queue.next_position,
        )
        if self._callers is not None:
            found.received, found.left = self._callers.received(), self._callers.left()
        return found


class LogFold:
    """Folds the records of all wanted queues, row by row."""

    def __init__(
        self,
        wanted: frozenset[int] | None = None,
        *,
        with_callers: bool = False,
        told: Mapping[int, Sequence[Told]] | None = None,
    ) -> None:
        """Begin without rows.

        Args:
            wanted: the ids of the queues to fold; None = all.
            with_callers: find the clients that received messages and took them out of their queues, too.
            told: by queue id, the messages of which ``apply_outcome`` gets the outcomes.
        """
        self._told = told or {}
        self._wanted = wanted
        self._with_callers = with_callers
        self._last_lsn = 0
        self.checkpoint_lsn = 0
        """All rows up to it are in the checkpoint that was loaded."""
        self.queues: dict[int, TrackedQueue] = {}

    def _is_wanted(self, queue_id: int) -> bool:
        return self._wanted is None or queue_id in self._wanted

    def load(self, part: AnyPart) -> None:
        """Load a part of a checkpoint, before the first row."""
        if isinstance(part, CheckpointHeader):
            self.checkpoint_lsn = part.lsn
        elif isinstance(part, QueueSlice | LeasesSlice | HistorySlice) and self._is_wanted(part.queue_id):
            if isinstance(part, QueueSlice):
                self.queues[part.queue_id] = self._new(part.queue_id)
            self.queues[part.queue_id].load(part)

    def begin_above(self, lsn: int) -> None:
        """Begin with the row after ``lsn``; rows up to ``lsn`` are neither read nor counted as missing."""
        self._last_lsn = lsn

    def skip(self, lsn: int) -> None:
        """Pass over the missing rows below ``lsn``, if there are any: before the outcomes of these rows."""
        if lsn > self._last_lsn + 1:
            for queue in self.queues.values():
                queue.skip(self._last_lsn + 1, lsn, self.checkpoint_lsn)
            self._last_lsn = lsn - 1

    def apply_outcome(self, outcome: Outcome) -> None:
        """Apply an entry of the outcomes of a segment: behind its row, or behind the begin of a gap with its row.
        Entries ascend.
        """
        if self._is_wanted(outcome.queue_id):
            self._queue(outcome.queue_id).apply_outcome(outcome)

    def apply(self, lsn: int, records: Iterable[AnyRecord], time_ms: int = 0) -> None:
        """Apply the records of a row, in order; rows ascend. ``time_ms``: time of the row, 0 = not known."""
        self.skip(lsn)
        self._last_lsn = lsn
        for record in records:
            if isinstance(record, MessagesPublished):
                for queue_id, first, count in copies_of(record):
                    if self._is_wanted(queue_id):
                        self._queue(queue_id).apply_copies(lsn, first, count, record.enqueue_ms)
            elif isinstance(record, ClockOffset):
                if record.stepped:
                    for queue in self.queues.values():
                        queue.apply_step(lsn, record.time_ms)
            else:
                queue_id = getattr(record, "queue_id", 0)
                if queue_id and self._is_wanted(queue_id):
                    if isinstance(record, QueueCreated) and queue_id not in self.queues:
                        index = QueueIndex(queue_id, record.attributes)
                        self.queues[queue_id] = self._new(queue_id, index)
                    self._queue(queue_id).apply(lsn, record, time_ms)

    def _queue(self, queue_id: int) -> TrackedQueue:
        """Return a queue; a queue without creation and without slice is uncertain."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = self._new(queue_id)
        return queue

    def _new(self, queue_id: int, index: QueueIndex | None = None) -> TrackedQueue:
        return TrackedQueue(index, with_callers=self._with_callers, told=self._told.get(queue_id, ()))

    def results(self) -> dict[int, Result]:
        """Return the results by queue id."""
        return {queue_id: queue.result() for queue_id, queue in self.queues.items()}
