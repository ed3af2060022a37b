"""The types that a log takes and returns, one declaration each.

The structs are encoded as msgpack arrays, because ``cmqd.storage`` passes them between its two processes.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from cmqd_reading.message_search import FoundMessages
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.manifest import Restored, SourceName
from cmqd_segment.records import AnyRecord, PublishedMessage, Runs, StoredMessage
from cmqd_types.actors import Actor
from cmqd_types.histories import MessageHistory
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
    ``side_file``, ``format_raised`` or ``modes_kept``"""
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
    restored: Restored | None = None
    """The restore of the log from a backup, if this is its first start since."""


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
    """Sends are refused, or will be soon: segments that are kept for history or backups alone should be dropped."""
    rounds_skipped: int = 0
    """Times since the start at which rows went before it was kept beside the segments how messages left in them."""


class BrokerSeen(msgspec.Struct, frozen=True, array_like=True):
    """A broker as its engine lists it."""

    address: str
    process: str
    """The process of the broker and the boot of its machine, as ``data_folder.process_name`` has them."""
    lsn: int
    """The last row that the broker had at its last report, up to a second ago; of a leader: the fence of its lead."""
    leads: bool
    """The broker has the lock of the shard."""
    clock_offset_ms: int | None = None
    """Lead of the broker's wall clock over the engine's at its last report, to a tenth of a second; None = the broker
    is of a version that does not tell."""


class CopyLag(msgspec.Struct, frozen=True, array_like=True):
    """A server that copies the engine's primary, by the primary's figures."""

    name: str
    is_second: bool
    """Commits wait for this server: it has the second copy."""
    bytes_behind: int | None
    """Bytes of the primary's log that the server has not flushed; None = the role of the broker may not read it."""
    ms_behind: int | None
    """Time from a flush of the primary to the server's flush of the same bytes, at their last one; None as above."""


class EngineView(msgspec.Struct, frozen=True, array_like=True):
    """The log in an engine, its brokers and copies at one moment, without a proof: for status and metrics."""

    newest_lsn: int
    """0 = the log has no rows."""
    epoch: int
    """Epoch of the newest row."""
    brokers: list[BrokerSeen]
    copies: list[CopyLag]

    @property
    def leader(self) -> BrokerSeen | None:
        """The broker that has the lock of the shard; None while no broker leads, or before its report."""
        return next((broker for broker in self.brokers if broker.leads), None)

    @property
    def standbys(self) -> list[BrokerSeen]:
        """The brokers that do not lead, the one that is least behind first."""
        return sorted((broker for broker in self.brokers if not broker.leads), key=lambda broker: -broker.lsn)

    @property
    def second_copy(self) -> CopyLag | None:
        """The server that commits wait for; None while there is none."""
        return next((copy for copy in self.copies if copy.is_second), None)

    def rows_behind(self, broker: BrokerSeen) -> int:
        """Return the number of rows that a broker lacked at its last report."""
        return max(0, self.newest_lsn - broker.lsn)

    def as_table(self) -> dict[str, list[dict[str, str | int | bool | None]]]:
        """Return standbys and copies as tables by names, for people and programs."""
        return {
            "standbys": [
                {
                    "address": broker.address,
                    "last_lsn": broker.lsn,
                    "rows_behind": self.rows_behind(broker),
                    "clock_offset_ms": broker.clock_offset_ms,
                }
                for broker in self.standbys
            ],
            "copies": [
                {
                    "name": copy.name,
                    "is_second": copy.is_second,
                    "bytes_behind": copy.bytes_behind,
                    "ms_behind": copy.ms_behind,
                }
                for copy in self.copies
            ],
        }


class EngineStatus(msgspec.Struct, frozen=True, array_like=True):
    """The engine as a broker sees it."""

    waiting_for: str = ""
    """What a call of the engine waits for; empty while none has waited for a second."""
    waiting_ms: int = 0
    """Time since the wait began."""
    waiting_ms_total: int = 0
    """Time of all waits since the start, this one included, exact to a look (``engine_watch.LOOK_SECONDS``) a wait."""
    view: EngineView | None = None
    """None while this broker does not lead, and before its first look."""
    copied_s: int = 0
    """Begin of a standby's last look whose rows are all copied, in seconds of the clock of proofs; 0 = none."""


class SeenRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that a standby saw arrive."""

    epoch: int
    time_ms: int
    """Broker time of the row."""
    seen_s: float
    """Time at which the standby saw the row, by the clock of proofs."""


class Takeover(msgspec.Struct, frozen=True, array_like=True):
    """The time of the newest row as a new leader finds it, with all that tells the time since."""

    time_ms: int
    """Broker time of the newest row that is no fence."""
    is_imported: bool
    """No leader of the engine wrote the row."""
    seen: SeenRow | None
    """A row of the same epoch that this broker saw arrive; None = it saw none."""
    engine_ms: int | None
    """Time from the row's storage to the fence of this leader, by the engine's clock; None = the row has no stamp."""
    taken_s: float
    """A time at or after the fence, by the clock of proofs."""
    has_stamps: bool
    """Rows of this leader get stamps."""


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


class FoundRows(msgspec.Struct, frozen=True, array_like=True):
    """The origin of a row, and the reclaimed rows before it."""

    start: str
    """Number of the start that wrote the row; empty if it is not known any more."""
    reclaimed: list[tuple[int, int]]
    """Ranges (first LSN, last LSN), ascending; at most 100, of which the last may span several."""


class HeldCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint that stays until it is released, for a copy of the log."""

    number: int
    lsn: int
    """``CheckpointHeader.lsn``."""


def pack_ranges(queues: Iterable[tuple[int, int, int]]) -> PackedRanges:
    """Pack ``SegmentReport.queues``."""
    return array("Q", [number for entry in queues for number in entry]).tobytes()


@dataclass(slots=True)
class Pending:
    """Sizes of the appends that are not durable, kept by the log. Attributes, because each I/O batch reads them."""

    bytes: int = 0
    """Bytes of records and bodies."""
    records: int = 0


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
    in_loop: int = 0
    """Commits that the loop process has made itself."""

    def note(self, seconds: float, fsync_us: int | None, records: int, size: int) -> None:
        """Count a commit; without an fsync, ``fsync_us`` is None."""
        # As ``Histogram.note``, without a call for each histogram: a lone send has a commit of its own.
        for values, value in (
            (self.commit_us, int(seconds * 1_000_000)),
            (self.fsync_us, fsync_us),
            (self.records, records),
        ):
            if value is not None:
                values.counts[bisect_left(values.bounds, value)] += 1
                values.sum += value
        self.bytes += size


class HistoryAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The life of a message, as far as the readable rows of a log tell it."""

    history: MessageHistory | None
    """None: no readable row tells of the message. Names that the log does not know are placeholders
    (``cmqd_reading.life.UNNAMED``)."""
    sources: list[int]
    """Ids of the queues and topics that the message was in."""
    owners: list[SourceName]
    """Those of ``sources`` of which the log knows account and name."""
    actors: dict[int, Actor] = {}
    """Clients that stand in the history as ``cmqd_reading.life_events.unnamed_actor``, by number, as far as the log
    knows them."""


class MessagesAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a search found in the readable rows of a log."""

    found: FoundMessages
    """Messages of other accounts, queues and topics may be among them: of those that the log does not know."""
    owners: list[SourceName]
    """The queues and topics of the messages of which the log knows account and name."""


RecoveredRow: TypeAlias = tuple[int, int, list[AnyRecord]]
"""(LSN, time in ms, records) of a row above the checkpoint."""
RecoveredBatch: TypeAlias = list[AnyPart | RecoveredRow]

OnPublished: TypeAlias = Callable[[int, PublishedMessage | None], None]
"""(read id, message found)"""

OnPage: TypeAlias = Callable[[int, list[StoredMessage], Runs], None]
"""(read id, messages found, positions that are durable and cannot be read)"""
