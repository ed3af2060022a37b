"""Group commit without a timer: pending rows, and at most ``OUTSTANDING_BATCHES`` commits under way.

Rows that are appended during a commit leave together, in one write, with the first ``flush`` after the durable LSN has
arrived. The server (``server.loop.io_batch``) flushes at the end of that I/O batch, when the replies have left and the
requests that follow the replies have been read: an earlier flush would commit the first of these requests alone, and
the other requests would wait for a whole commit.

The storage process commits, or the thread of ``loop_commits``, whichever ``commit_way`` says. One batch is outstanding
over both: a change *holds* the batches, waits for the one under way, and lets them *go on* with the other process.

LSNs are given at the append, long before the storage process sees the row. Therefore nothing between append and commit
may reorder or drop rows: the pending rows are always the newest LSNs without a gap, and a commit names its first LSN
alone. After a failure ``append`` and ``flush`` raise: the failed rows would be a gap before all later rows.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from cmqd.log.interface import ignore
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import ROW_BYTES, CommitFigures, Pending
from cmqd.storage import ipc
from cmqd.storage.durable_lsn import NEVER
from cmqd.storage.loop_side.commit_way import CommitWay
from cmqd.storage.loop_side.loop_commits import LoopCommits, Result
from cmqd.storage.loop_side.row_builder import ClosedRow, RowBuilder
from cmqd.storage.source_names import NAMING, SourceNames
from cmqd_segment.records import AnyRecord, Lsn
from cmqd_segment.rows import encode_records

OUTSTANDING_BATCHES = 1
"""Limit of commits under way. A crash then tears at most one commit: ``torn_tail`` tells a torn tail from damage by
that number."""
COMMIT_BYTES = 16 * 1024
"""Growth of the WAL by a small commit beside its rows, estimated from above (``wal_growth``)."""
TOLD_BYTES = 4 * 1024 * 1024
"""Growth by commits of the loop process after which the storage process is told: it measures the file, and decides
where the segment ends. A quarter of the greatest of ``disk_space.MEASURE_AFTER_BYTES``."""
UNMEASURED_BYTES = 256 * 1024 * 1024
"""Growth by commits of the loop process after which commits wait for a state from the storage process: a process that
stands still neither measures the disk nor ends the segment. A process that runs reports far more often."""
BATCH_BYTES = 4 * 1024 * 1024
"""Limit of one commit. A larger batch costs latency and memory, and saves no time per row."""


class Batch(msgspec.Struct, gc=False):
    """A commit under way."""

    last_lsn: int
    size: int
    records: int
    begun_s: float
    """Time of the hand-over."""
    rows: list[ClosedRow] | None = None
    """Its rows, if the loop process commits them: a full disk refuses them, and the storage process gets them."""


class GroupCommit:
    """Rows from their append to their durability; see the module."""

    def __init__(self, names: SourceNames, clock_s: Callable[[], float], way: CommitWay) -> None:
        """Take the names of queues and topics, a clock that dates batches and never goes back, and the decision about
        the process that commits.
        """
        self._names = names
        self._clock_s = clock_s
        self._way = way
        self._commits: ipc.CommitChannel | None = None
        self._row = RowBuilder()
        self._closed_rows: deque[ClosedRow] = deque()
        """Rows that were not handed over yet, oldest first; the open row is newer than all of them."""
        self.loop_commits: LoopCommits | None = None
        """The thread that commits; None = the storage process commits."""
        self._held: Callable[[], None] | None = None
        """Set while no batch may begin: called once no batch is under way."""
        self._batches: deque[Batch] = deque()
        """Commits under way, oldest first."""
        self.idle: asyncio.Future[None] | None = None
        """Set while ``drained`` waits for the last batch."""
        self.failed: LogFailed | None = None
        """The first failure, or the end of the log by ``close`` or ``kill``: no row can be appended any more."""
        self.last_lsn = 0
        self.durable_lsn = 0
        self.pending = Pending()
        self.figures = CommitFigures()
        self.is_closing = False
        """Set at the beginning of an orderly end: a proof asked for later would find no commit thread."""
        self.on_result: Callable[[Result], None] = ignore
        """Called with the result of each batch of ``loop_commits``."""
        self._untold_bytes = 0
        """Growth by commits of the loop process that the storage process was not told of, by estimates."""
        self._unmeasured_bytes = 0
        """Growth since the last state from the storage process."""
        self._told_from: int = NEVER
        """The next durable LSN that the storage process is told of."""
        self._told_upto = 0
        self.on_committed: Callable[[], None] = ignore
        """Called when the storage process is to be told of commits of the loop process."""
        self.on_way: Callable[[], None] = ignore
        """Called when the other process shall commit."""
        self.proved_s = float("-inf")
        """Time of the hand-over of the newest batch that was answered, by that clock. With an engine: this broker
        led the log at that time, or later."""

    def begin(self, commits: ipc.CommitChannel, last_lsn: int) -> None:
        """Continue the log after row ``last_lsn``; commits leave through ``commits``."""
        self._commits = commits
        # Recovered rows are durable. After a loss ``last_lsn`` is far above them, so new rows get no lost number.
        self.last_lsn = self.durable_lsn = last_lsn

    @property
    def sent_lsn(self) -> int:
        """LSN of the last row that was handed over."""
        return self._batches[-1].last_lsn if self._batches else self.durable_lsn

    @property
    def unanswered_s(self) -> float | None:
        """Time of the hand-over of the oldest batch without an answer; None = every batch was answered."""
        return self._batches[0].begun_s if self._batches else None

    @property
    def has_rows(self) -> bool:
        """True while an appended row is not durable."""
        return bool(self._batches or self._closed_rows or self._row.records)

    def append(self, records: Sequence[AnyRecord], bodies: Sequence[bytes], now_ms: int) -> Lsn:
        """See ``Log``."""
        if self.failed is not None:
            raise self.failed
        # First, because encoding can fail, and a failed append must leave no trace (see the contract of ``Log``).
        meta = encode_records(records)
        data_bytes = sum(map(len, bodies)) if bodies else 0
        row = self._row
        # The LSN belongs to the row, and the first append of a row takes it. The limits are checked before the append
        # joins the row, because an append is never split.
        if not row.records:
            self.last_lsn += 1
        elif row.data_bytes + data_bytes > ROW_BYTES or row.meta_bytes + len(meta) > ROW_BYTES:
            self._closed_rows.append(row.close())
            self.last_lsn += 1
        row.add(records, meta, bodies, data_bytes, now_ms)
        # With the LSN of the row, by which names of deleted queues are forgotten once that row is in a sealed segment.
        if not NAMING.isdisjoint(map(type, records)):
            self._names.note(records, self.last_lsn)
        pending = self.pending
        pending.bytes += len(meta) + data_bytes
        pending.records += len(records)
        return Lsn(self.last_lsn)

    def flush(self) -> None:
        """See ``Log``."""
        if self.failed is not None:
            raise self.failed
        # Otherwise the rows wait: the durable LSN of the commit under way begins an I/O batch, and its end flushes.
        if len(self._batches) < OUTSTANDING_BATCHES and self._held is None:
            self._commit()

    def hold(self, then: Callable[[], None]) -> None:
        """Begin no batch until ``go_on``, and call ``then`` once no batch is under way."""
        self._held = then
        if not self._batches:
            then()

    def go_on(self, loop_commits: LoopCommits | None) -> None:
        """Commit again, with this thread or, None, by the storage process."""
        self._held = None
        self.loop_commits = loop_commits
        if self.failed is None:
            self._commit()
            self._wake_idle()

    def measured(self) -> None:
        """Take note of a state from the storage process, and commit again if commits have waited for it."""
        self._unmeasured_bytes = 0
        if self._held is await_state:
            self.go_on(self.loop_commits)

    def close_row(self) -> Lsn:
        """See ``Log``."""
        if self._row.records:
            self._closed_rows.append(self._row.close())
        return Lsn(self.last_lsn)

    def _commit(self) -> None:
        """Commit pending rows, up to ``BATCH_BYTES``, at least one row. A later flush commits the other rows."""
        # The open row is closed even if it is small: a row is the unit of a commit, and replies wait for it.
        closed = self._closed_rows
        if self._row.records:
            closed.append(self._row.close())
        if not closed:
            return
        assert self._commits is not None
        # No row is open now, so the closed rows are the newest LSNs.
        first_lsn = self.last_lsn - len(closed) + 1
        rows: list[ClosedRow] = []
        size = pending = records = 0
        while closed and (not rows or size + len(closed[0].data) <= BATCH_BYTES):
            row = closed.popleft()
            rows.append(row)
            size += len(row.meta) + len(row.data)
            pending += row.size
            records += row.records
        # Rows under way still count as pending: back-pressure must see a disk that does not finish a commit.
        batch = Batch(first_lsn + len(rows) - 1, pending, records, self._clock_s())
        self._batches.append(batch)
        if self.loop_commits is None:
            # Blobs stand behind the head and are never encoded, so the bodies of a batch are not copied for the frame.
            heads = [(row.time_ms, row.messages, row.queues, len(row.meta), len(row.data)) for row in rows]
            blobs = [blob for row in rows for blob in (row.meta, row.data)]
            self._commits.send(ipc.Commit(first_lsn, heads), blobs)
        else:
            batch.rows = rows
            result = self.loop_commits.commit(first_lsn, rows, size)
            # Last: the answer may bring the rows of the next batch.
            if result is not None:
                self.on_result(result)

    def refused(self) -> None:
        """Put the rows of the batch under way, which a full disk has refused, back before the other rows."""
        batch = self._batches.popleft()
        assert batch.rows is not None
        self._closed_rows.extendleft(reversed(batch.rows))
        self.hold(self._held or ignore)

    def tell_at(self, lsn: int) -> None:
        """Have ``on_committed`` called when the rows up to ``lsn`` are durable: the storage process waits for them."""
        if lsn > self.durable_lsn:
            self._told_from = min(self._told_from, lsn)
            self._told_upto = max(self._told_upto, lsn)
        else:
            self.on_committed()

    def became_durable(self, lsn: int, fsync_us: int) -> None:
        """Note that all rows up to ``lsn`` are durable, after an fsync of this time."""
        batches = self._batches
        while batches and batches[0].last_lsn <= lsn:
            batch = batches.popleft()
            self.pending.bytes -= batch.size
            self.pending.records -= batch.records
            if batch.rows is not None:
                self._untold_bytes += batch.size + COMMIT_BYTES
                self.figures.in_loop += 1
            if batch.records:
                self.figures.note(self._clock_s() - batch.begun_s, fsync_us, batch.records, batch.size)
                if self._way.note(fsync_us, batch.size):
                    self.on_way()
            else:
                # An empty batch: a proof.
                self.figures.fsync_us.note(fsync_us)
            self.proved_s = batch.begun_s
        self.durable_lsn = lsn
        if lsn >= self._told_from or self._untold_bytes >= TOLD_BYTES:
            self._unmeasured_bytes += self._untold_bytes
            self._untold_bytes = 0
            if self._unmeasured_bytes >= UNMEASURED_BYTES and self._held is None:
                self._held = await_state
            # An LSN in between may be waited for, too.
            self._told_from = NEVER if lsn >= self._told_upto else lsn + 1
            self.on_committed()
        if not batches:
            if self._held is not None:
                self._held()
            self._wake_idle()

    def _wake_idle(self) -> None:
        if self.idle is not None and not self._batches and self._held is None:
            self.idle.set_result(None)
            self.idle = None

    def prove(self) -> None:
        """Hand over the pending rows, or an empty batch, unless a batch is under way or the log is closing: the
        answer proves that this broker leads. Only with an engine.
        """
        if self.failed is None and not self.is_closing and not self._batches:
            self._commit()
            if not self._batches:
                assert self._commits is not None
                self._batches.append(Batch(self.last_lsn, 0, 0, self._clock_s()))
                self._commits.send(ipc.Commit(self.last_lsn + 1, []), [])

    async def drained(self) -> None:
        """Wait until every row appended so far is durable."""
        # Rows appended meanwhile do not count: under constant load the wait would never end.
        until = self.last_lsn
        while self.durable_lsn < until:
            self.flush()
            await self.answered()

    async def answered(self) -> None:
        """Wait until every commit under way is durable, and until commits go on, if they are held."""
        if self._batches or self._held is not None:
            if self.idle is None:
                self.idle = asyncio.get_running_loop().create_future()
            # Several calls may share the future, and a cancelled call must not cancel the future for the other calls.
            await asyncio.shield(self.idle)


def await_state() -> None:
    """Stand for the wait for a state from the storage process, in place of the call of a change: no batch begins."""
