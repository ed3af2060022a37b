"""The states of all queues of a log: one pass over its rows, from a checkpoint if rows are missing. Pure.

For every queue the pass keeps the index of the broker (``cmqd_fold``), with the states of messages in the queue, and
the departures, with the reasons of messages that left. The index of a queue is known from the row that created the
queue, or from the slice of a checkpoint. Rows below the slice are read if they are still there, because only rows hold
reasons.
"""

from collections.abc import Iterable

from pyroaring import BitMap64

from cmqd_fold.queue_index import QueueIndex
from cmqd_reading.callers import Callers
from cmqd_reading.departures import CertainQueue, Departures, UncertainQueue
from cmqd_reading.states import Result, State
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader, HistorySlice, LeasesSlice, QueueSlice
from cmqd_segment.published import copies_of
from cmqd_segment.records import AnyRecord, ClockOffset, MessagesPublished, QueueCreated

ANY_LEASE_MS = 1 << 62
"""A step of broker time shortens no lease here: deadlines of leases are of no interest to a reader."""


class TrackedQueue:
    """A queue: its departures, and its index while the index is known."""

    def __init__(self, index: QueueIndex | None = None, *, with_callers: bool = False) -> None:
        self.departures = Departures()
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
        assert self._slice is not None
        self._slice.load(part)

    def apply(self, lsn: int, record: AnyRecord) -> None:
        """Apply a record of this queue; the copies of a published record come by ``apply_copies``."""
        self._reach(lsn)
        if isinstance(record, QueueCreated) and self._slice is not None:
            self._queue = CertainQueue(QueueIndex(record.queue_id, record.attributes), self.departures)
        if self._callers is not None:
            self._callers.note(record)
        self._queue.apply(record)

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

    def skip(self, lsn: int, checkpoint_lsn: int) -> None:
        """Pass over missing rows below ``lsn``; the checkpoint covers all rows up to ``checkpoint_lsn``."""
        self._reach(lsn - 1)
        if self._slice is None and lsn - 1 > checkpoint_lsn:
            # Rows above the checkpoint were lost to damage. The broker itself went on from this index.
            return
        if isinstance(self._queue, CertainQueue):
            if self._slice is None and self.slice_lsn:
                return
            self._queue = UncertainQueue(self.departures, self._queue.index)
        else:
            self._queue.skip()

    def _reach(self, lsn: int) -> None:
        """Take over the index of the slice if ``lsn`` is above it."""
        index = self._slice
        if index is not None and lsn > self.slice_lsn:
            self._slice = None
            self.departures.forget(index.live)
            if index.rewindable_count:
                self.departures.note(State.DELETED, index.rewindable)
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
        found = Result(self.sets(), self.departures.last_deletes(), self.receive_counts())
        if self._callers is not None:
            found.received, found.left = self._callers.received(), self._callers.left()
        return found


class LogFold:
    """Folds the records of all wanted queues, row by row."""

    def __init__(self, wanted: frozenset[int] | None = None, *, with_callers: bool = False) -> None:
        """Begin without rows.

        Args:
            wanted: the ids of the queues to fold; None = all.
            with_callers: find the clients that received messages and took them out of their queues, too.
        """
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
                self.queues[part.queue_id] = TrackedQueue(with_callers=self._with_callers)
            self.queues[part.queue_id].load(part)

    def begin_above(self, lsn: int) -> None:
        """Begin with the row after ``lsn``; rows up to ``lsn`` are neither read nor counted as missing."""
        self._last_lsn = lsn

    def apply(self, lsn: int, records: Iterable[AnyRecord]) -> None:
        """Apply the records of a row, in order; rows ascend."""
        if lsn > self._last_lsn + 1:
            for queue in self.queues.values():
                queue.skip(lsn, self.checkpoint_lsn)
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
                        self.queues[queue_id] = TrackedQueue(index, with_callers=self._with_callers)
                    self._queue(queue_id).apply(lsn, record)

    def _queue(self, queue_id: int) -> TrackedQueue:
        """Return a queue; a queue without creation and without slice is uncertain."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = TrackedQueue(with_callers=self._with_callers)
        return queue

    def results(self) -> dict[int, Result]:
        """Return the results by queue id."""
        return {queue_id: queue.result() for queue_id, queue in self.queues.items()}
