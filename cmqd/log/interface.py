"""The interface of a log: append facts, learn when facts are durable, read bodies back, checkpoint, drop.

    append ─► flush ─► on_durable(lsn)        a reply leaves when the row that it depends on is durable
    read_page ─► on_page                      bodies that are no longer in memory
    read_published ─► on_published            the subscriptions that a message was published for
    read_history, find_messages               the rows that tell of a message, or have its dedup id or header
    write_checkpoint ─► on_checkpoint_done    the next start replays only newer rows
    closed_segments ─► drop_segments          rows that no live message and no kept checkpoint needs
    open ─► recover                           once, before all of these

Contract, checked by ``tests/log/test_conformance.py`` for every implementation:

- Rows have contiguous numbers (LSNs) from 1. No LSN is used twice, also after a loss (``numbers_jump``).
- An append is atomic: it is one row or part of one row, and after a crash a row is whole or missing.
- ``on_durable(lsn)`` covers every row up to that LSN. Rows become durable in the order of their LSNs, so one number
  tells the server which replies may leave.
- Records and bodies come back as they were appended.
- ``append`` fails before it changes anything, or not at all. The core has applied the records by then: a part of an
  append in the log, with an error to the caller, would let the next start disagree with the memory of this one.
- After ``LogFailed`` nothing becomes durable.

All methods belong to the thread of the loop.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import (
    CommitFigures,
    EngineStatus,
    FoundRows,
    HeldCheckpoint,
    HistoryAnswer,
    LogState,
    MessagesAnswer,
    OnPage,
    OnPublished,
    Pending,
    RecoveredBatch,
    RecoveryReport,
    SegmentReport,
)
from cmqd_reading.message_search import MessageQuery
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.manifest import StandingPinEntry
from cmqd_segment.records import AnyRecord, Lsn, Runs


class Log(Protocol):
    """The calls of every log; see the module.

    Callbacks are set before ``open``. A log calls them in the loop's thread, and never from inside one of its methods:
    a caller in the middle of its own change must not be entered again.
    """

    on_durable: Callable[[int], None]
    """All rows up to this LSN are durable."""
    on_page: OnPage
    on_published: OnPublished
    on_fatal: Callable[[LogFailed], None]
    """Called once; no row becomes durable afterwards."""
    on_state: Callable[[LogState], None]
    on_checkpoint_wanted: Callable[[], None]
    """A checkpoint would let segments be dropped or make the next start faster. The server may ignore the wish."""
    on_checkpoint_done: Callable[[int], None]
    """The checkpoint with this header LSN is durable and was read back."""

    @property
    def last_lsn(self) -> int:
        """LSN of the newest row, open or not."""
        ...

    @property
    def durable_lsn(self) -> int:
        """Every row up to this LSN is durable."""
        ...

    @property
    def pending(self) -> Pending:
        """Sizes of the appends that are not durable: for back-pressure. The same object for the life of the log."""
        ...

    @property
    def pages_asked(self) -> int:
        """Pages requested since the start."""
        ...

    @property
    def pages_answered(self) -> int:
        """Pages answered since the start."""
        ...

    @property
    def figures(self) -> CommitFigures:
        """Figures of the commits since the start; counted in place."""
        ...

    @property
    def droppable_lsn(self) -> int:
        """LSN of the oldest kept checkpoint: segments without a row above it may be dropped. A checkpoint that is kept
        for a hold alone (``Segments.hold_checkpoint``) does not count: the caller releases it before the drop.
        """
        ...

    @property
    def sealed_upto(self) -> int:
        """Every row up to this LSN is in a segment that is complete as other programs read it, or gone; 0 = not known
        yet."""
        ...

    async def open(self) -> RecoveryReport:
        """Lock the log for this broker, check it, repair it. Raises LogError."""
        ...

    def recover(self) -> AsyncIterator[RecoveredBatch]:
        """Yield the parts of the newest checkpoint, then every row above its LSN.

        To be called after ``open``, once, and read to its end before the first ``append``.
        """
        ...

    def append(self, records: Sequence[AnyRecord], bodies: Sequence[bytes], now_ms: int) -> Lsn:
        """Add facts to the open row and return its LSN. The facts become durable together, after a ``flush``.

        Args:
            records: the facts.
            bodies: of the ``MessagesSent`` and ``MessagesPublished`` records, in order; a published body once.
            now_ms: broker time.

        Raises:
            LogFailed: the log has failed before.
        """
        ...

    def flush(self) -> None:
        """Commit the pending rows, unless a commit is under way.

        To be called at the end of each I/O batch with work. ``on_durable`` begins an I/O batch while records are
        pending: rows that had to wait for the commit before leave then.
        """
        ...

    def close_row(self) -> Lsn:
        """End the open row and return its LSN; the next append gets a higher LSN.

        Needed by a checkpoint: its slices state the facts as of that LSN, and a later append in the same row would make
        the slices wrong.
        """
        ...

    def read_page(self, read_id: int, queue_id: int, positions: Runs, max_bytes: int, min_lsn: int) -> None:
        """Request messages by position; ``on_page`` answers once their rows are durable: at the latest behind row
        ``min_lsn``.

        The answer covers a prefix of ``positions``: as many as fit into ``max_bytes`` of bodies, headers, origins and
        labels, at least one. ``queue_id`` may be the id of a topic: its messages have labels, copies have none.
        """
        ...

    def read_published(self, read_id: int, topic_id: int, start: int, stop: int, min_lsn: int) -> None:
        """Request the first readable message of a topic at positions ``start .. stop-1``, without its body;
        ``on_published`` answers when ``on_page`` would.

        Positions in reclaimed segments, and damaged rows, are passed over.
        """
        ...

    async def read_history(self, message_id: int, lease: int = 0) -> HistoryAnswer:
        """Read the life of a message from the durable rows, some at a time, between other work.

        A cancelled call ends the reading.

        Args:
            message_id: the id, or that of any queue that the message was in; 0 with a lease.
            lease: of the message, in place of an id.

        Raises:
            LogFailed: the log has failed.
        """
        ...

    async def find_messages(self, query: MessageQuery) -> MessagesAnswer:
        """Search durable rows for messages, some rows at a time, between other work. The answer of a long search says
        where the next one goes on.

        A cancelled call ends the search.

        Raises:
            LogFailed: the log has failed.
        """
        ...

    def write_checkpoint(self, part: AnyPart) -> None:
        """Take the next part of a checkpoint: a header, slices, an end. Appends may come in between.

        A header abandons an unfinished checkpoint.
        """
        ...

    def tell_changes(self, changed: Sequence[int], unwanted: Sequence[int]) -> None:
        """Tell what happened to the messages of closed segments, ahead of the end of a checkpoint.

        A log whose rows are read by programs keeps how messages left beside the segments that stay, before the rows go.

        Args:
            changed: segments of which messages left their queues, or came back, since the checkpoint before.
            unwanted: segments without a wanted message, which the caller will drop.
        """
        ...

    def closed_segments(self) -> list[SegmentReport]:
        """Return the segments that take no more rows, ascending, without segments that are being dropped.

        A segment is a stretch of rows that the log reclaims as a whole: a file, a partition of a table, a part of a
        list.
        """
        ...

    async def active_segment(self) -> SegmentReport | None:
        """Describe the segment that takes rows, with its durable rows of this moment; None without a durable row.

        A segment that is closed meanwhile is described as it was, and is in ``closed_segments`` too. Raises LogFailed.
        """
        ...

    async def drop_segments(self, numbers: Sequence[int], min_lsn: int) -> list[int]:
        """Reclaim segments without a live message; return the numbers of the reclaimed segments.

        The log waits until row ``min_lsn`` is durable: a crash before that would take back the deletes that emptied the
        segments, and leave live messages without bodies. A segment with a row above ``droppable_lsn`` stays: a restart
        from the oldest checkpoint needs its deletes, or the deleted messages would come back. Held checkpoints count.
        """
        ...

    async def close(self, within_s: float | None = None) -> None:
        """Make all appended rows durable and release the log. Raises LogFailed.

        After ``within_s`` seconds (TimeoutError), or when the caller is cancelled, the log ends as by a crash.
        """
        ...


@runtime_checkable
class Segments(Protocol):
    """An extra of a log with segments as files that other programs read (Spark, backups)."""

    async def seal_now(self) -> None:
        """Close the active segment, if it has rows, and wait until every closed segment is a finished file."""
        ...

    @property
    def log_id(self) -> str:
        """Identity of a log that outlives the process, else empty."""
        ...

    async def find_rows(self, lsn: int, above: int) -> FoundRows:
        """Return the start that wrote row ``lsn``, and the reclaimed rows above ``above`` up to ``lsn``.

        Raises LogFailed.
        """
        ...

    async def hold_checkpoint(self) -> HeldCheckpoint | None:
        """Keep the newest checkpoint until ``release_checkpoint``, or until the log ends; None without a checkpoint.

        Its last LSN is at most ``last_lsn`` of the call. Each call is a hold of its own. Raises LogFailed.
        """
        ...

    @property
    def standing_pins(self) -> Sequence[StandingPinEntry] | None:
        """The standing pins as of the end of ``recover``; None if the log cannot keep any."""
        ...

    async def keep_standing_pins(self, pins: Sequence[StandingPinEntry]) -> None:
        """Replace the standing pins; return when their names are durable. Raises LogFailed."""
        ...

    def release_checkpoint(self, number: int) -> None:
        """End a hold. A later ``drop_segments`` is decided without it."""
        ...


@runtime_checkable
class Led(Protocol):
    """An extra of a log with a leader: of several brokers one appends, and another can take the lead at any time."""

    epoch: int
    """Epoch of this broker; 0 for a log without leaders, and before the end of ``recover``."""

    engine_status: EngineStatus
    """The engine that has the log."""

    clock_s: Callable[[], float]
    """Clock of the proofs, in seconds; never goes back, and goes on while the process or its machine is suspended."""

    @property
    def proved_s(self) -> float:
        """Time at which the newest proof that this broker led was asked for, by ``clock_s``."""
        ...

    @property
    def unanswered_s(self) -> float | None:
        """Time at which the oldest commit or proof without an answer was handed over, by ``clock_s``; None = all are
        answered.
        """
        ...

    def prove(self) -> None:
        """Ask for a proof, unless a commit is under way, which is one. ``on_durable`` tells the answer, with an LSN
        that may have been told before. ``on_fatal`` tells that another broker leads.
        """
        ...


def ignore(*_arguments: object) -> None:
    """Do nothing: the initial value of each callback."""
