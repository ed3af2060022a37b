"""Outcomes from rows: the entries for the files beside the segments (``cmqd_segment.outcomes``). Pure.

A *round* goes from an older checkpoint to a newer one. A checkpoint is taken while the broker works: each queue has its
slice, as of a row of its own. So the round goes queue by queue, from the row of the slice in the older checkpoint to
that of the slice in the newer one. From header to header instead, a slice would get the rows up to it a second time.

    older checkpoint   header ......slice of q1......slice of q2
                                   |                |
    rows of q1                     ==============================
    rows of q2                                      ===================
                                                                |     |
    newer checkpoint                     header ......slice of q1......slice of q2

A queue without a slice in the newer checkpoint was deleted while that was taken: its rows are taken to their end, which
is below the end of the newer checkpoint. The next round finds no slice to begin from, and passes them over. A queue
without a slice in the older checkpoint begins with the row that created the queue.

The index at each row is known, so states and receive counts are exact.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from pyroaring import BitMap64

from cmqd_fold.queue_index import QueueIndex
from cmqd_reading.departures import CertainQueue, Departures, time_of
from cmqd_reading.log_fold import ANY_LEASE_MS
from cmqd_reading.states import State
from cmqd_segment.checkpoint import AnyPart, HistorySlice, LeasesSlice, QueueSlice
from cmqd_segment.outcomes import RETURNED, Outcome, pack_counts
from cmqd_segment.published import copies_of
from cmqd_segment.records import (
    AnyRecord,
    ClockOffset,
    MessagesPublished,
    QueueCreated,
    Runs,
    pack_runs,
    ranges,
)


class Stretch(NamedTuple):
    """The positions of a queue in a segment."""

    first: int
    stop: int
    segment: int
    """Number of the segment."""


class _Noted(Departures):
    """Takes the departures of the record that is being applied, of the wanted positions alone."""

    def __init__(self, wanted: BitMap64) -> None:
        super().__init__()
        self._wanted = wanted
        self.reason = ""
        self.left = BitMap64()
        self.counts: dict[int, int] = {}
        self.default = 0

    def begin(self) -> None:
        """Forget the record before."""
        self.reason = ""
        if self.counts:
            self.counts = {}

    def note(self, state: State, positions: BitMap64, time_ms: int) -> None:
        self._note(state, positions & self._wanted)

    def note_runs(self, state: State, positions: Runs, time_ms: int) -> None:
        wanted = self._wanted
        if any(wanted.range_cardinality(start, stop) for start, stop in ranges(positions)):
            named = BitMap64()
            for start, stop in ranges(positions):
                named.add_range(start, stop)
            self._note(state, named & wanted)

    def _note(self, reason: str, positions: BitMap64) -> None:
        if positions:
            self.reason, self.left = reason, positions
            self.default = 1 if reason == State.DELETED else 0

    def note_count(self, position: int, receive_count: int, default: int = 0) -> None:
        if self.reason and receive_count != default and position in self.left:
            self.counts[position] = receive_count

    def forget(self, positions: BitMap64) -> None:
        self._note(RETURNED, positions & self._wanted)


class _Queue:
    """A queue from the row behind its first slice, or from its creation, to its last slice."""

    def __init__(self, index: QueueIndex, wanted: BitMap64, above: int) -> None:
        self.above = above
        """The index has the rows up to this LSN."""
        self.noted = _Noted(wanted)
        self.certain = CertainQueue(index, self.noted)


class OutcomeFold:
    """Makes the outcomes of a round; see the module. Load both checkpoints before the first row."""

    def __init__(self, stretches: Mapping[int, Sequence[Stretch]]) -> None:
        """``stretches``: by queue id and ascending, the positions in the segments that stay."""
        self._stretches = stretches
        self._wanted: dict[int, BitMap64] = {}
        for queue_id, held in stretches.items():
            wanted = self._wanted[queue_id] = BitMap64()
            for stretch in held:
                wanted.add_range(stretch.first, stretch.stop)
        self._queues: dict[int, _Queue] = {}
        self._last: dict[int, int] = {}
        """Rows of the slices of the newer checkpoint, by queue id."""

    def load_older(self, part: AnyPart) -> None:
        """Load a part of the older checkpoint."""
        if isinstance(part, QueueSlice | LeasesSlice | HistorySlice) and part.queue_id in self._wanted:
            if isinstance(part, QueueSlice):
                index = QueueIndex(part.queue_id, part.attributes)
                self._queues[part.queue_id] = _Queue(index, self._wanted[part.queue_id], part.lsn)
            self._queues[part.queue_id].certain.index.load(part)

    def load_newer(self, part: AnyPart) -> None:
        """Load a part of the newer checkpoint."""
        if isinstance(part, QueueSlice) and part.queue_id in self._wanted:
            self._last[part.queue_id] = part.lsn

    def apply(self, lsn: int, time_ms: int, records: Iterable[AnyRecord]) -> Iterator[tuple[int, Outcome]]:
        """Apply a row; rows ascend, from behind the header of the older checkpoint to the end of the newer one. Yield
        number of the segment, and entry.
        """
        for number, record in enumerate(records):
            if isinstance(record, MessagesPublished):
                for queue_id, first, count in copies_of(record):
                    queue = self._at(queue_id, lsn)
                    if queue is not None:
                        queue.certain.index.apply_copies(first, count, record.enqueue_ms)
            elif isinstance(record, ClockOffset):
                if record.stepped:
                    for queue_id in self._queues:
                        queue = self._at(queue_id, lsn)
                        if queue is not None:
                            queue.certain.index.apply_step(record.time_ms, ANY_LEASE_MS)
            elif (queue_id := getattr(record, "queue_id", 0)) in self._wanted:
                if isinstance(record, QueueCreated) and queue_id not in self._queues:
                    index = QueueIndex(queue_id, record.attributes)
                    self._queues[queue_id] = _Queue(index, self._wanted[queue_id], lsn - 1)
                queue = self._at(queue_id, lsn)
                if queue is not None:
                    yield from self._applied(queue, queue_id, lsn, number, record, time_ms)

    def _at(self, queue_id: int, lsn: int) -> _Queue | None:
        """Return a queue if the round takes its records of this row."""
        queue = self._queues.get(queue_id)
        if queue is None or lsn <= queue.above or lsn > self._last.get(queue_id, lsn):
            return None
        return queue

    def _applied(
        self, queue: _Queue, queue_id: int, lsn: int, number: int, record: AnyRecord, time_ms: int
    ) -> Iterator[tuple[int, Outcome]]:
        noted = queue.noted
        noted.begin()
        queue.certain.apply(record, time_ms)
        if not noted.reason:
            return
        time_ms = time_of(record, time_ms)
        held = self._stretches[queue_id]
        first = noted.left.min()
        begin = bisect_right(held, first, key=itemgetter(1))
        for stretch in held[begin:]:
            if stretch.first > noted.left.max():
                break
            here = BitMap64()
            here.add_range(stretch.first, stretch.stop)
            here &= noted.left
            if here:
                positions = pack_runs(here)
                counts = {position: count for position, count in noted.counts.items() if position in here}
                packed = pack_counts(positions, counts, noted.default)
                yield stretch.segment, Outcome(queue_id, lsn, number, noted.reason, time_ms, positions, packed)
