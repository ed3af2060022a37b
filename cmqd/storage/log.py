"""The log as the loop process sees it: append facts, learn when they are durable, read bodies back.

Two implementations keep this contract and pass one conformance suite: ``processlog.StorageProcessLog`` (the real one)
and ``memory.MemoryLog`` (a list; for tests and ephemeral brokers). All methods belong to the loop's thread.
"""

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from cmqd.storage.errors import StorageFailed
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import AnyRecord, Lsn, Runs, StoredMessage


class Finding(msgspec.Struct, frozen=True):
    """Something recovery found that an operator should know."""

    kind: str
    """One of the kinds listed at ``cmqd.storage.ipc.Finding``."""
    text: str


class RecoveryReport(msgspec.Struct, frozen=True):
    """What ``open`` found."""

    created: bool
    """The folder is new."""
    clean: bool
    """The broker before stopped in order (or there was none)."""
    checkpoint_lsn: int
    """LSN of the checkpoint that ``recover`` begins with, 0 = none."""
    last_lsn: int
    numbers_jump: bool
    """Something was lost, so numbers may have been handed out that are not in the log: jump far ahead."""
    findings: tuple[Finding, ...] = ()
    log_id: str = ""
    """Of the data folder; empty if the log is in memory."""


class StorageState(msgspec.Struct, frozen=True):
    """How storage is doing."""

    sends_refused: bool
    """New sends must be refused (receives and deletes go on) until a later state says otherwise."""
    reason: str
    free_bytes: int
    segments: int
    log_bytes: int
    """On disk, WAL included."""
    damaged_rows: int = 0
    """Rows that could not be read back since the start; what they are was said on standard error."""
    is_short: bool = False
    """New sends are refused, or will be soon: what is kept for history alone should go."""


class ClosedSegment:
    """A segment that takes no more rows: what the edge needs to find out whether anything in it is live."""

    __slots__ = ("_ranges", "bytes", "first_lsn", "last_lsn", "last_ms", "messages", "number")

    def __init__(
        self,
        number: int,
        first_lsn: int,
        last_lsn: int,
        queues: Sequence[tuple[int, int, int]],
        messages: int = 0,
        bytes_: int = 0,
        last_ms: int = 0,
    ) -> None:
        self.number = number
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn
        self.last_ms = last_ms
        self.messages = messages
        self.bytes = bytes_
        # 24 bytes a queue: a thousand segments of ten thousand queues each must not cost a gigabyte.
        self._ranges = array("Q", [number for entry in queues for number in entry])

    @property
    def queues(self) -> list[tuple[int, int, int]]:
        """(queue id, first position, stop position) of what was sent in it; made anew on each call."""
        ranges = self._ranges
        return list(zip(ranges[0::3], ranges[1::3], ranges[2::3], strict=True))

    def __repr__(self) -> str:
        return f"<ClosedSegment {self.number}: rows {self.first_lsn}-{self.last_lsn}, {self.messages} messages>"


RecoveredRow: TypeAlias = tuple[int, int, list[AnyRecord]]
"""(LSN, time in ms, records) of a row above the checkpoint."""
RecoveredBatch: TypeAlias = list[AnyPart | RecoveredRow]

OnPage: TypeAlias = Callable[[int, list[StoredMessage], Runs], None]
"""(read id, messages found, positions that are durable and cannot be read)"""


class Log(Protocol):
    """Callbacks are set before ``open`` and called in the loop's thread, never from inside a method of the log."""

    on_durable: Callable[[int], None]
    """All rows up to this LSN are durable."""
    on_page: OnPage
    on_fatal: Callable[[StorageFailed], None]
    """Once, and nothing becomes durable afterwards."""
    on_state: Callable[[StorageState], None]
    on_checkpoint_wanted: Callable[[], None]
    """A checkpoint would let segments go or make the next start faster. May be answered at any time, or not."""
    on_checkpoint_done: Callable[[int], None]
    """The checkpoint with this header LSN is durable and was read back."""

    @property
    def last_lsn(self) -> int:
        """LSN of the newest row, which may still be open."""
        ...

    @property
    def durable_lsn(self) -> int:
        """Every row up to this one is durable."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Appended and not durable, about; for back-pressure, as is ``pending_records``."""
        ...

    @property
    def pending_records(self) -> int:
        """Appended and not durable."""
        ...

    @property
    def pages_asked(self) -> int:
        """Pages asked for since the start."""
        ...

    @property
    def pages_answered(self) -> int:
        """Pages that came back since the start."""
        ...

    @property
    def droppable_lsn(self) -> int:
        """Segments whose last LSN is at or below this may be dropped: the oldest kept checkpoint covers them."""
        ...

    async def open(self) -> RecoveryReport:
        """Lock, check and repair. Raises FolderLocked, FolderFormatError, DamagedError, StorageFailed."""
        ...

    def recover(self) -> AsyncIterator[RecoveredBatch]:
        """After ``open``, once, to its end, before the first ``append``: the parts of the newest checkpoint, then
        every row above its header's LSN, in batches of either.
        """
        ...

    def append(self, records: Sequence[AnyRecord], bodies: Sequence[bytes], now_ms: int) -> Lsn:
        """Add facts to the open row and return its LSN; they become durable together.

        ``bodies`` are those of the ``MessagesSent`` and ``MessagesPublished`` records, in order; what is published
        has them once. Nothing is sent anywhere before ``flush``.
        """
        ...

    def flush(self) -> None:
        """Hand what is pending to the disk, unless a commit is under way. To be called at the end of each I/O batch of
        the loop, and so after each ``on_durable`` too: what could not go before goes then.
        """
        ...

    def close_row(self) -> Lsn:
        """End the open row, so that whatever is appended from now on has a higher LSN than the one returned: what is
        noted down as true for that LSN stays so.
        """
        ...

    def read_page(self, read_id: int, queue_id: int, positions: Runs, max_bytes: int, min_lsn: int) -> None:
        """Ask for messages by position; answered by ``on_page``, after ``min_lsn`` is durable.

        The answer is about a prefix of ``positions``: as many as fit in ``max_bytes`` of bodies, headers,
        origins and labels, at least one. ``queue_id`` may be a topic's: its messages have labels, copies have none.
        """
        ...

    def write_checkpoint(self, part: AnyPart) -> None:
        """The next part of a checkpoint: a header, slices, an end; appends may go on in between. A header in the
        middle abandons the unfinished one.
        """
        ...

    def closed_segments(self) -> list[ClosedSegment]:
        """Ascending; without those that are being dropped."""
        ...

    async def drop_segments(self, numbers: Sequence[int], min_lsn: int) -> list[int]:
        """Remove segments in which nothing is live or wanted, as of row ``min_lsn``: nothing is touched before that
        one is durable, else a crash could take back the deletes and leave live messages without their bodies.

        Returns those that went: one whose last LSN is above ``droppable_lsn`` stays, else its deletes would be
        forgotten and older messages rise again.
        """
        ...

    async def seal_now(self) -> None:
        """Retire the active segment, if it has rows, and wait until it is sealed."""
        ...

    async def close(self, within_s: float | None = None) -> None:
        """Make all that was appended durable, seal everything, let go of the folder. Raises StorageFailed.

        When ``within_s`` is over (TimeoutError), or the caller is cancelled, the log ends at once, as by a crash.
        """
        ...


def ignore(*_arguments: object) -> None:
    """What a callback is until somebody listens."""
