"""The types that a log takes and returns, one declaration each.

The structs are encoded as msgpack arrays, because ``cmqd.storage`` passes them between its two processes.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TypeAlias

import msgspec

from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import AnyRecord, PublishedMessage, Runs, StoredMessage
from cmqd_types.metrics import DURATIONS_US, SIZES, Histogram, histogram

ROW_BYTES = 64 * 1024
"""Limit of bodies, and of records, in one row. An append never spans two rows; a larger append has a row of its own.

Reading one message reads its whole row (29 us at this size), and a row costs a few hundred bytes."""


class Durability(StrEnum):
    """The failures that an answered request survives."""

    FSYNC = "fsync"
    """Power loss: the commit was fsynced before the answer."""
    OS = "os"
    """A crash of the broker, not of the machine: the commit was handed to the operating system."""


class Redundancy(StrEnum):
    """The place of the second copy of the log."""

    NONE = "none"
    """No second copy: the disk of the data folder has the log."""
    POSTGRESQL = "postgresql"
    """A PostgreSQL primary and its synchronous standby have the log; the data folder is a cache."""


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """A result of the checks at the start that an operator should know."""

    kind: str
    """``unclean_stop``, ``torn_tail``, ``damaged``, ``missing``, ``set_aside``, ``lost``, ``checkpoint_damaged``,
    ``format_raised`` or ``modes_kept``"""
    text: str


class RecoveryReport(msgspec.Struct, frozen=True, array_like=True):
    """The result of ``open``."""

    created: bool
    """The log is new."""
    clean: bool
    """The previous broker stopped in order, or there was none."""
    checkpoint_lsn: int
    """LSN of the checkpoint that ``recover`` begins with, 0 = none."""
    last_lsn: int
    numbers_jump: bool
    """Rows were lost, so numbers may have been handed out that are not in the log: new numbers begin far ahead."""
    findings: tuple[Finding, ...] = ()
    log_id: str = ""
    """Identity of a log that outlives the process, else empty."""


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """Room and health of a log."""

    sends_refused: bool
    """New sends must be refused until a later state; receives and deletes go on."""
    reason: str
    free_bytes: int
    segments: int
    log_bytes: int
    """Size on disk, WAL included."""
    damaged_rows: int = 0
    """Rows that could not be read since the start; standard error has the details."""
    is_short: bool = False
    """Sends are refused, or will be soon: segments that are kept for history alone should be dropped."""


PackedRanges: TypeAlias = bytes


class SegmentReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment with rows, and the positions that decide whether its messages are live."""

    number: int
    first_lsn: int
    last_lsn: int
    first_ms: int
    """Time of the oldest row, by its order."""
    last_ms: int
    """Time of the newest row."""
    messages: int
    bytes: int
    is_sealed: bool
    """The segment is complete and never changes again. A closed segment is sealed in the background."""
    ranges: PackedRanges
    """``queues``, packed in 24 bytes a queue: a thousand segments of ten thousand queues must not take a gigabyte."""

    @property
    def queues(self) -> list[tuple[int, int, int]]:
        """Positions of the messages sent in the segment, as (queue or topic id, first position, stop position); a new
        list on each call.
        """
        return list(self.each_queue())

    def each_queue(self) -> Iterator[tuple[int, int, int]]:
        """Yield the entries of ``queues`` without a list of all."""
        numbers = array("Q", self.ranges)
        return zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True)

    @property
    def queue_count(self) -> int:
        """Number of queues and topics with messages in the segment."""
        return len(self.ranges) // 24


def pack_ranges(queues: Iterable[tuple[int, int, int]]) -> PackedRanges:
    """Pack ``SegmentReport.queues``."""
    return array("Q", [number for entry in queues for number in entry]).tobytes()


class CommitFigures(msgspec.Struct):
    """Figures of the commits since the start."""

    commit_us: Histogram = msgspec.field(default_factory=lambda: histogram(DURATIONS_US))
    """Time from the hand-over of rows until they are durable."""
    fsync_us: Histogram = msgspec.field(default_factory=lambda: histogram(DURATIONS_US))
    """Time of the transaction with its fsync; without values for a log that has no disk."""
    records: Histogram = msgspec.field(default_factory=lambda: histogram(SIZES))
    """Records of a commit."""
    bytes: int = 0
    """Bytes of records and bodies that became durable."""

    def note(self, seconds: float, records: int, size: int) -> None:
        """Count a commit."""
        self.commit_us.note(int(seconds * 1_000_000))
        self.records.note(records)
        self.bytes += size


RecoveredRow: TypeAlias = tuple[int, int, list[AnyRecord]]
"""(LSN, time in ms, records) of a row above the checkpoint."""
RecoveredBatch: TypeAlias = list[AnyPart | RecoveredRow]

OnPublished: TypeAlias = Callable[[int, PublishedMessage | None], None]
"""(read id, message found)"""

OnPage: TypeAlias = Callable[[int, list[StoredMessage], Runs], None]
"""(read id, messages found, positions that are durable and cannot be read)"""
