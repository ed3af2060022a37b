"""Content of the data folder, in memory and in the manifest: segments with their states, checkpoints, gaps.

A thread writes the manifest, one write at a time, and each write has the state of that moment. No commit waits for a
write.
"""

import asyncio
import errno
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from cmqd.log.values import FoundRows, SegmentReport, pack_ranges
from cmqd.storage.folder.data_folder import DataFolder
from cmqd.storage.segments.segment import WritableSegment
from cmqd_segment.manifest import (
    MAX_NAMES,
    MAX_SOURCES,
    CacheOf,
    CheckpointEntry,
    LossEntry,
    Manifest,
    OutcomesEntry,
    Restored,
    SegmentEntry,
    SegmentState,
    SourceName,
    StandingPinEntry,
    StartEntry,
    current_format,
    merge_ranges,
    ranges_between,
    start_of,
    write_manifest,
)
from cmqd_segment.sparse import SparseIndex

FULL_DISK_PAUSE_SECONDS = 0.2


class SealedFile:
    """A sealed segment. Memory holds only the range of each queue; the sparse index stays in the file."""

    __slots__ = ("_firsts", "_queue_ids", "_stops", "entry", "path")
    immutable = True
    """Complete and without a writer: opened without locks."""

    def __init__(self, entry: SegmentEntry, path: Path, queues: Sequence[tuple[int, int, int]]) -> None:
        self.entry = entry
        self.path = path
        self._queue_ids = array("Q", [queue_id for queue_id, _, _ in queues])
        self._firsts = array("Q", [first for _, first, _ in queues])
        self._stops = array("Q", [stop for _, _, stop in queues])

    @property
    def number(self) -> int:
        """Number of the segment, and of its file."""
        return self.entry.number

    @property
    def last_lsn(self) -> int:
        """LSN of the newest row."""
        return self.entry.last_lsn

    def positions_of(self, queue_id: int) -> tuple[int, int] | None:
        """Return the half-open range of positions of a queue in this segment, None if there are none."""
        index = bisect_left(self._queue_ids, queue_id)
        if index == len(self._queue_ids) or self._queue_ids[index] != queue_id:
            return None
        return self._firsts[index], self._stops[index]

    def report(self) -> SegmentReport:
        """Describe the segment to the loop process."""
        entry = self.entry
        return SegmentReport(
            number=entry.number,
            first_lsn=entry.first_lsn,
            last_lsn=entry.last_lsn,
            first_ms=entry.first_ms,
            last_ms=entry.last_ms,
            messages=entry.messages,
            bytes=entry.bytes,
            is_sealed=True,
            ranges=pack_ranges(zip(self._queue_ids, self._firsts, self._stops, strict=True)),
        )


Segment: TypeAlias = SealedFile | WritableSegment


class Catalog:
    """The segments, checkpoints and names of a log; see the module."""

    def __init__(self, folder: DataFolder, durability: str, boot_id: str) -> None:
        self.folder = folder
        self.durability = durability
        self.boot_id = boot_id
        self.sealed: dict[int, SealedFile] = {}
        self.open: dict[int, WritableSegment] = {}
        self.preparing: int | None = None
        """Number of the segment that is being created."""
        self.dropping: dict[int, SegmentEntry] = {}
        self.dropped: list[tuple[int, int]] = []
        self.losses: list[LossEntry] = []
        self.checkpoints: list[CheckpointEntry] = []
        self.outcomes: dict[int, OutcomesEntry] = {}
        """Outcomes of the segments, by number (``cmqd.storage.outcomes``)."""
        self.outcomes_upto: CheckpointEntry | None = None
        """Checkpoint up to whose slices outcomes were decided; None = the first round begins with row 1."""
        self.clean = False
        self.next_number = 1
        self.log_id = ""
        self.former_log_ids: list[str] = []
        self.starts: list[StartEntry] = []
        self.standing_pins: list[StandingPinEntry] = []
        self.cache_of: CacheOf | None = None
        """Log in an engine of which the folder is a cache, None if the folder is the log."""
        self.restored: Restored | None = None
        self.on_full: Callable[[], object] = lambda: None
        """Called when the manifest meets a full disk: the ballast should be released."""
        self.names: dict[int, SourceName] = {}
        """Names for the digests of the sealed segments, and names of deleted queues and topics with messages in an
        unsealed segment: no checkpoint has a deleted name, and the row that created the queue may be reclaimed."""
        self._writing = asyncio.Lock()

    @property
    def droppable_lsn(self) -> int:
        """Segments that end at or below this are covered by the oldest kept checkpoint, and by outcomes."""
        upto = self.outcomes_upto
        return min(self.checkpoints[0].lsn, upto.lsn) if self.checkpoints and upto is not None else 0

    def segments(self) -> Iterator[Segment]:
        """Yield the segments that may hold rows, ascending by number, and so by LSN and by position."""
        for number in sorted((*self.sealed, *self.open)):
            yield self.sealed[number] if number in self.sealed else self.open[number]

    def holder(self, queue_id: int, position: int) -> tuple[Segment, int, int] | None:
        """Find the first segment with the position of a queue, or a later position, and its range of positions."""
        for segment in self.segments():
            positions = segment.positions_of(queue_id)
            if positions is not None and positions[1] > position:
                return segment, *positions
        return None

    def segment_path(self, number: int) -> Path:
        """Return the path of the file of a segment."""
        return self.folder.path / SegmentEntry(number, SegmentState.PREPARING).file

    @property
    def log_bytes(self) -> int:
        """Size on disk, from memory, without asking the file system."""
        sealed = [file.entry for file in self.sealed.values()]
        beside = sum(entry.side.bytes for entry in sealed if entry.side is not None)
        beside += sum(outcomes.bytes for outcomes in self.outcomes.values())
        return beside + sum(
            [*(entry.bytes for entry in sealed), *(segment.bytes_on_disk for segment in self.open.values())]
        )

    @property
    def messages(self) -> int:
        """Number of messages in all segments, live or not."""
        return sum(file.entry.messages for file in self.sealed.values()) + sum(
            segment.messages for segment in self.open.values()
        )

    def to_manifest(self) -> Manifest:
        """Build the manifest of this moment."""
        entries = {number: file.entry for number, file in self.sealed.items()}
        entries |= {number: segment.entry() for number, segment in self.open.items()}
        entries |= {
            number: msgspec.structs.replace(entry, state=SegmentState.DROPPING)
            for number, entry in self.dropping.items()
        }
        for number, outcomes in self.outcomes.items():
            if number in entries:
                entries[number] = msgspec.structs.replace(entries[number], outcomes=outcomes)
        if self.preparing is not None:
            entries[self.preparing] = SegmentEntry(self.preparing, SegmentState.PREPARING)
        return Manifest(
            format=current_format(self.cache_of),
            clean=self.clean,
            durability=self.durability,
            boot_id=self.boot_id,
            next_number=self.next_number,
            segments=[entries[number] for number in sorted(entries)],
            checkpoints=list(self.checkpoints),
            dropped=list(self.dropped),
            losses=list(self.losses),
            log_id=self.log_id,
            former_log_ids=self.former_log_ids,
            names=self._names_in_use(),
            starts=self.starts,
            standing_pins=self.standing_pins,
            cache_of=self.cache_of,
            restored=self.restored,
        )

    def _names_in_use(self) -> list[SourceName]:
        """Forget names without a segment that uses them, and return the others."""
        used = {number for file in self.sealed.values() for number, _, _ in file.entry.sources}
        used |= self._held_unsealed(self.names)
        self.names = {number: self.names[number] for number in sorted(used & self.names.keys())}
        return list(self.names.values())

    def note_deleted(self, names: Sequence[SourceName]) -> None:
        """Keep the names of deleted queues and topics until the segments with their messages are sealed or gone."""
        known = {name.id: name for name in names}
        held = self._held_unsealed(known) - self.names.keys()
        for number in sorted(held)[: MAX_NAMES - len(self.names)]:
            self.names[number] = known[number]

    def _held_unsealed(self, ids: Iterable[int]) -> set[int]:
        """Return the ids with messages in a segment that is not sealed."""
        tables = [segment.index.queues for segment in self.open.values()]
        return {number for number in ids for queues in tables if number in queues}

    def digest(self, names: Sequence[SourceName], index: SparseIndex) -> list[tuple[int, int, int]]:
        """Return ``SegmentEntry.sources`` of a sealed segment, and keep its names for the manifest.

        Empty if a name is unknown, or if the segment or the manifest would list too many. Readers then search the
        table of the segment.
        """
        names_by_id = {name.id: name for name in names}
        queues = index.queues
        if len(queues) > MAX_SOURCES or not names_by_id.keys() >= queues.keys():
            return []
        if len(self.names.keys() | queues.keys()) > MAX_NAMES:
            return []
        self.names |= {number: names_by_id[number] for number in queues}
        return [(number, queue.messages, queue.bytes) for number, queue in sorted(queues.items())]

    def find_rows(self, lsn: int, above: int) -> FoundRows:
        """Return the start that wrote row ``lsn``, and the reclaimed rows above ``above`` up to ``lsn``."""
        dropping = [(entry.first_lsn, entry.last_lsn) for entry in self.dropping.values() if entry.rows]
        reclaimed = ranges_between(merge_ranges([*self.dropped, *dropping]), above, lsn)
        return FoundRows(start_of(self.starts, lsn), reclaimed)

    @property
    def sealed_upto(self) -> int:
        """LSN up to which every row is in a sealed segment."""
        firsts = [segment.first_lsn for segment in self.open.values() if segment.rows]
        lasts = [file.last_lsn for file in self.sealed.values()]
        return min(firsts) - 1 if firsts else max(lasts, default=0)

    async def save(self) -> None:
        """Write the manifest as things are now; durable on return. Waits for room on a full disk. Raises OSError."""
        async with self._writing:
            while True:
                # The manifest is built inside the lock: a call that had to wait writes the newest state, and never an
                # older state over a newer.
                try:
                    await asyncio.to_thread(write_manifest, self.folder.path, self.to_manifest())
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    self.on_full()
                    await asyncio.sleep(FULL_DISK_PAUSE_SECONDS)
                else:
                    return
