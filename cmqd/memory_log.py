"""A log in memory: for tests, and for brokers with messages that need not survive the process.

Rows, LSNs and callbacks behave as on disk; a commit takes one turn of the loop after ``flush``. Tests can delay commits
(``hold``), fail the log (``fail``), and open another ``MemoryLog`` over the same ``MemoryDisk`` to see the durable rows
that a restart would find.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

from cmqd.log.interface import ignore
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import (
    ROW_BYTES,
    CommitFigures,
    FoundRows,
    HeldCheckpoint,
    HistoryAnswer,
    LogState,
    MessagesAnswer,
    OnPage,
    OnPublished,
    Pending,
    RecoveredBatch,
    RecoveredRow,
    RecoveryReport,
    SegmentReport,
    pack_ranges,
)
from cmqd_reading.history_search import (
    Extent,
    FoundHistory,
    HolderWanted,
    IdWanted,
    Question,
    Row,
    Rows,
    RowsWanted,
    Told,
    search_by_id,
    search_by_lease,
)
from cmqd_reading.message_search import FoundMessages, MessageQuery, SourceWanted, Stretch, search_messages
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.manifest import Restored, SourceName, StandingPinEntry, merge_ranges, ranges_between
from cmqd_segment.published import published_message
from cmqd_segment.records import (
    AnyRecord,
    Lsn,
    MessagesPublished,
    PublishedMessage,
    QueueCreated,
    Runs,
    StoredMessage,
    TopicCreated,
    pack_runs,
    ranges,
)
from cmqd_segment.rows import Run, bodies_of, encode_records, extra_bytes, sent_runs, stored_messages

RECOVERY_BATCH = 256
HISTORY_ROWS = 64
"""Rows that a search takes between two turns of other work."""
HISTORY_BYTES = 32 * 1024
"""Bytes of their records, likewise, of all rows but the last."""
CHECKPOINTS_KEPT = 2


class MemoryRow:
    """A row, with its records as they were appended."""

    __slots__ = ("bodies", "cost", "data_bytes", "lsn", "records", "time_ms")

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn
        self.time_ms = 0
        self.records: list[AnyRecord] = []
        self.bodies: list[bytes] = []
        self.data_bytes = 0
        self.cost = 0


class MemoryDisk:
    """The state that survives a ``MemoryLog``: durable rows, checkpoints, segments."""

    def __init__(self) -> None:
        self.rows: list[MemoryRow] = []
        self.checkpoints: list[list[AnyPart]] = []
        """Complete checkpoints, the newest last: two, and those that are held."""
        self.log_id = ""
        self.dropped: list[tuple[int, int]] = []
        self.standing_pins: Sequence[StandingPinEntry] = ()
        self.segments: list[SegmentReport] = []
        self.messages: dict[int, dict[int, StoredMessage]] = {}
        """queue or topic id -> position -> message"""
        self.next_segment = 1
        self.last_lsn = 0
        self.clean = True
        self.restored: Restored | None = None
        """The restore that made the rows, up to the first start behind it."""


class MemoryLog:
    """A log over a ``MemoryDisk``; see the module and ``cmqd.log.interface.Log``."""

    def __init__(self, disk: MemoryDisk | None = None, *, segment_bytes: int = 128 * 1024 * 1024) -> None:
        self.on_durable: Callable[[int], None] = ignore
        self.on_page: OnPage = ignore
        self.on_published: OnPublished = ignore
        self.on_fatal: Callable[[LogFailed], None] = ignore
        self.on_state: Callable[[LogState], None] = ignore
        self.on_checkpoint_wanted: Callable[[], None] = ignore
        self.on_checkpoint_done: Callable[[int], None] = ignore
        self.disk = disk or MemoryDisk()
        self._segment_bytes = segment_bytes
        self._rows: list[MemoryRow] = []
        """Rows that are not durable. The last row is open unless a commit took it."""
        self._committing = 0
        """Number of rows in ``_rows`` that the commit under way covers."""
        self._row_closed = False
        """The last row is closed although no commit has taken it."""
        self._held = False
        self._failed: LogFailed | None = None
        self.durable_lsn = 0
        self.last_lsn = 0
        self.pending = Pending()
        self._active: list[MemoryRow] = []
        """Durable rows of the segment that is not sealed."""
        self._active_bytes = 0
        self._pages: list[tuple[int, int, Runs, int, int]] = []
        self._published_reads: list[tuple[int, int, int, int, int]] = []
        self._pages_held = False
        self.pages_asked = 0
        self.pages_answered = 0
        self._parts: list[AnyPart] = []
        self._held_checkpoints: list[int] = []
        """Numbers of held checkpoints (the LSNs of their headers), once for each hold."""
        self._closed = False
        self.figures = CommitFigures()
        self._flushed_s = 0.0
        """Time of the flush that began the commit under way."""
        self._dropping: set[int] = set()
        self._committed: asyncio.Future[None] | None = None
        """Set while a drop waits for the next commit."""

    @property
    def droppable_lsn(self) -> int:
        """See ``Log``."""
        checkpoints = self.disk.checkpoints[-CHECKPOINTS_KEPT:]
        return _header(checkpoints[0]).lsn if checkpoints else 0

    @property
    def sealed_upto(self) -> int:
        """See ``Log``."""
        return self.disk.segments[-1].last_lsn if self.disk.segments else 0

    async def open(self) -> RecoveryReport:
        """See ``Log``."""
        disk = self.disk
        self.durable_lsn = self.last_lsn = disk.last_lsn
        created = disk.last_lsn == 0 and not disk.checkpoints
        sealed = disk.segments[-1].last_lsn if disk.segments else 0
        self._active = [row for row in disk.rows if row.lsn > sealed]
        self._seal()
        report = RecoveryReport(
            created=created,
            clean=disk.clean,
            checkpoint_lsn=_header(disk.checkpoints[-1]).lsn if disk.checkpoints else 0,
            last_lsn=disk.last_lsn,
            numbers_jump=False,
            restored=disk.restored,
        )
        disk.clean = False
        disk.restored = None
        return report

    async def recover(self) -> AsyncIterator[RecoveredBatch]:
        """See ``Log``."""
        lsn = 0
        if self.disk.checkpoints:
            parts = self.disk.checkpoints[-1]
            lsn = _header(parts).lsn
            yield list(parts)
        rows: list[RecoveredRow] = [
            (row.lsn, row.time_ms, list(row.records)) for row in self.disk.rows if row.lsn > lsn
        ]
        for start in range(0, len(rows), RECOVERY_BATCH):
            yield list(rows[start : start + RECOVERY_BATCH])

    def append(self, records: Sequence[AnyRecord], bodies: Sequence[bytes], now_ms: int) -> Lsn:
        """See ``Log``."""
        self._check()
        data_bytes = sum(map(len, bodies))
        meta_bytes = len(encode_records(records))
        if len(self._rows) > self._committing and not self._row_closed:
            row = self._rows[-1]
            if row.data_bytes + data_bytes > ROW_BYTES or row.cost - row.data_bytes + meta_bytes > ROW_BYTES:
                row = self._open_row()
        else:
            row = self._open_row()
        row.records += records
        row.bodies += bodies
        row.data_bytes += data_bytes
        row.cost += data_bytes + meta_bytes
        row.time_ms = max(row.time_ms, now_ms)
        self.pending.bytes += data_bytes + meta_bytes
        self.pending.records += len(records)
        return Lsn(row.lsn)

    def _open_row(self) -> MemoryRow:
        self.last_lsn += 1
        row = MemoryRow(self.last_lsn)
        self._rows.append(row)
        self._row_closed = False
        return row

    def close_row(self) -> Lsn:
        """See ``Log``."""
        self._row_closed = True
        return Lsn(self.last_lsn)

    def flush(self) -> None:
        """See ``Log``."""
        self._check()
        if self._rows and not self._committing and not self._held:
            self._committing = len(self._rows)
            self._flushed_s = perf_counter()
            asyncio.get_running_loop().call_soon(self._commit)

    def hold(self) -> None:
        """Delay commits until ``let_go``. A commit under way still ends."""
        self._held = True

    def let_go(self) -> None:
        """Commit again after ``hold``."""
        self._held = False
        self.flush()

    def fail(self, error: LogFailed) -> None:
        """Behave as after an I/O error from here on."""
        self._failed = error
        self._wake_drops()
        asyncio.get_running_loop().call_soon(lambda: self.on_fatal(error))

    def report_state(self, state: LogState) -> None:
        """Pass a state to ``on_state``, for example of a full disk."""
        asyncio.get_running_loop().call_soon(lambda: self.on_state(state))

    def _commit(self) -> None:
        if self._failed is not None:
            return
        rows = self._rows[: self._committing]
        del self._rows[: self._committing]
        self._committing = 0
        disk = self.disk
        for row in rows:
            disk.rows.append(row)
            self._active.append(row)
            self._active_bytes += row.cost
            self.pending.bytes -= row.cost
            self.pending.records -= len(row.records)
            data = b"".join(row.bodies)
            last: Run | None = None
            bodies: list[bytes] = []
            for queue_id, run in sent_runs(row.records):
                # The copies of a published message share its body.
                if last is None or run.sizes is not last.sizes or run.offset != last.offset:
                    last = run
                    bodies = bodies_of(run, data)
                messages = disk.messages.setdefault(queue_id, {})
                for message in stored_messages(run, data, bodies):
                    messages[message.position] = message
        self.durable_lsn = disk.last_lsn = rows[-1].lsn
        records, size = sum(len(row.records) for row in rows), sum(row.cost for row in rows)
        self.figures.note(perf_counter() - self._flushed_s, None, records, size)
        self._wake_drops()
        self._finish_checkpoint()
        if self._active_bytes >= self._segment_bytes:
            self._seal()
            asyncio.get_running_loop().call_soon(self.on_checkpoint_wanted)
        self._answer_pages()
        # The callback may append and flush, so the next commit starts only after it.
        self.on_durable(self.durable_lsn)
        if self._failed is None:
            self.flush()

    def _wake_drops(self) -> None:
        committed, self._committed = self._committed, None
        if committed is not None:
            committed.set_result(None)

    def _seal(self) -> None:
        report = self._report(is_sealed=True)
        if report is None:
            return
        self.disk.segments.append(report)
        self.disk.next_segment += 1
        self._active = []
        self._active_bytes = 0

    def _report(self, *, is_sealed: bool) -> SegmentReport | None:
        if not self._active:
            return None
        ranges_of: dict[int, list[int]] = {}
        for row in self._active:
            for queue_id, run in sent_runs(row.records):
                entry = ranges_of.setdefault(queue_id, [run.first_position, run.stop_position])
                entry[1] = run.stop_position
        return SegmentReport(
            number=self.disk.next_segment,
            first_lsn=self._active[0].lsn,
            last_lsn=self._active[-1].lsn,
            first_ms=self._active[0].time_ms,
            last_ms=max(row.time_ms for row in self._active),
            messages=sum(len(row.bodies) for row in self._active),
            bytes=self._active_bytes,
            is_sealed=is_sealed,
            ranges=pack_ranges((queue_id, first, stop) for queue_id, (first, stop) in ranges_of.items()),
        )

    def read_page(self, read_id: int, queue_id: int, positions: Runs, max_bytes: int, min_lsn: int) -> None:
        """See ``Log``."""
        self._check()
        self._pages.append((read_id, queue_id, positions, max_bytes, min_lsn))
        self.pages_asked += 1
        asyncio.get_running_loop().call_soon(self._answer_pages)

    def read_published(self, read_id: int, topic_id: int, start: int, stop: int, min_lsn: int) -> None:
        """See ``Log``."""
        self._check()
        self._published_reads.append((read_id, topic_id, start, stop, min_lsn))
        asyncio.get_running_loop().call_soon(self._answer_pages)

    async def read_history(self, message_id: int, lease: int = 0) -> HistoryAnswer:
        """See ``Log``."""
        self._check()
        rows = self.disk.rows
        lsns = [row.lsn for row in rows]
        gaps = [(before + 1, lsn - 1) for before, lsn in pairwise([0, *lsns]) if lsn > before + 1]
        extent = Extent(self.durable_lsn, rows[-1].time_ms if rows else 0, gaps)
        search = search_by_lease(lease, extent, Told()) if lease else search_by_id(message_id, extent, Told())
        found: FoundHistory | None = await self._searched(search)
        if found is None:
            return HistoryAnswer(None, [], [])
        return HistoryAnswer(found.history, list(found.sources), await self._owners(found.sources))

    async def find_messages(self, query: MessageQuery) -> MessagesAnswer:
        """See ``Log``."""
        self._check()
        stretches = [Stretch(each.first_lsn, each.last_lsn, each.first_ms, each.last_ms) for each in self.disk.segments]
        if active := self._active:
            stretches.append(Stretch(active[0].lsn, active[-1].lsn, active[0].time_ms, active[-1].time_ms))
        owners = {owner.id: owner for owner in await self._owners()}

        def is_wanted(source_id: int) -> bool | None:
            owner = owners.get(source_id)
            return query.decides(None if owner is None else (owner.account, owner.name))

        found: FoundMessages = await self._searched(search_messages(query, stretches, self.durable_lsn), is_wanted)
        sources = {message.source_id for message in found.messages}
        return MessagesAnswer(found, [owner for owner in owners.values() if owner.id in sources])

    async def _searched(
        self,
        search: Generator[Question | SourceWanted, Any, Any],
        is_wanted: Callable[[int], bool | None] = lambda source_id: None,
    ) -> Any:
        """Answer the questions of a search, and return its result."""
        answer: Rows | int | bool | list[tuple[int, int]] | None = None
        while True:
            try:
                wanted = search.send(answer)
            except StopIteration as end:
                return end.value
            match wanted:
                case HolderWanted():
                    answer = []  # any row may
                case IdWanted(queue_id, position):
                    answer = self._id_at(queue_id, position)
                case SourceWanted(source_id):
                    answer = is_wanted(source_id)
                    continue
                case RowsWanted():
                    answer = self._some_rows(wanted)
            # Other work of the loop has its turn, and may raise.
            await asyncio.sleep(0)
            self._check()

    async def _owners(self, sources: Collection[int] | None = None) -> list[SourceName]:
        """Return the names of queues and topics in the rows; None = of all."""
        owners: list[SourceName] = []
        rows = self.disk.rows
        for first in range(0, len(rows) if sources is None or sources else 0, HISTORY_ROWS):
            for row in rows[first : first + HISTORY_ROWS]:
                owners += [name for name in _names_in(row.records) if sources is None or name.id in sources]
            await asyncio.sleep(0)
        return owners

    def _some_rows(self, wanted: RowsWanted) -> Rows:
        rows = self.disk.rows
        found: list[Row] = []
        size = 0
        for index in range(bisect_left(rows, wanted.first_lsn, key=lambda row: row.lsn), len(rows)):
            row = rows[index]
            if row.lsn > wanted.last_lsn:
                break
            if row.bodies or not wanted.is_of_stores:
                meta = encode_records(row.records)
                size += len(meta)
                found.append((row.lsn, row.time_ms, meta))
                if wanted.is_of_stores or len(found) == HISTORY_ROWS or size >= HISTORY_BYTES:
                    return Rows(found, row.lsn)
        return Rows(found, wanted.last_lsn)

    def _id_at(self, queue_id: int, position: int) -> int:
        messages, _missing = self._page(queue_id, [position, 1], 1)
        return messages[0].message_id if messages else 0

    def hold_pages(self) -> None:
        """Answer no page until ``let_pages_go``."""
        self._pages_held = True

    def let_pages_go(self) -> None:
        """Answer the pages that were held."""
        self._pages_held = False
        self._answer_pages()

    def _answer_pages(self) -> None:
        if self._pages_held:
            return
        waiting, self._pages = self._pages, []
        for page in waiting:
            read_id, queue_id, positions, max_bytes, min_lsn = page
            if min_lsn > self.durable_lsn:
                self._pages.append(page)
            elif self._failed is None:
                self.pages_answered += 1
                self.on_page(read_id, *self._page(queue_id, positions, max_bytes))
        published_reads, self._published_reads = self._published_reads, []
        for read in published_reads:
            read_id, topic_id, start, stop, min_lsn = read
            if min_lsn > self.durable_lsn:
                self._published_reads.append(read)
            elif self._failed is None:
                self.on_published(read_id, self._published(topic_id, start, stop))

    def _published(self, topic_id: int, start: int, stop: int) -> PublishedMessage | None:
        for row in self.disk.rows:
            for record in row.records:
                if isinstance(record, MessagesPublished) and record.topic_id == topic_id:
                    position = max(start, record.first_position)
                    if position < min(stop, record.first_position + len(record.sizes)):
                        return published_message(record, position)
        return None

    def _page(self, queue_id: int, positions: Runs, max_bytes: int) -> tuple[list[StoredMessage], Runs]:
        stored = self.disk.messages.get(queue_id, {})
        messages: list[StoredMessage] = []
        missing: list[int] = []
        size = 0
        for start, stop in ranges(positions):
            for position in range(start, stop):
                message = stored.get(position)
                if message is None:
                    missing.append(position)
                    continue
                size += len(message.body) + extra_bytes(
                    message.headers, message.origin, message.labels, message.copy_of
                )
                if size > max_bytes and messages:
                    return messages, pack_runs(missing)
                messages.append(message)
        return messages, pack_runs(missing)

    def write_checkpoint(self, part: AnyPart) -> None:
        """See ``Log``."""
        self._check()
        if isinstance(part, CheckpointHeader):
            self._parts = []
        self._parts.append(part)
        if isinstance(part, CheckpointEnd):
            asyncio.get_running_loop().call_soon(self._finish_checkpoint)

    def _finish_checkpoint(self) -> None:
        parts = self._parts
        if parts and isinstance(parts[-1], CheckpointEnd) and parts[-1].lsn <= self.durable_lsn:
            self._parts = []
            self.disk.checkpoints.append(parts)
            self._supersede()
            lsn = _header(parts).lsn
            asyncio.get_running_loop().call_soon(lambda: self.on_checkpoint_done(lsn))

    def tell_changes(self, changed: Sequence[int], unwanted: Sequence[int]) -> None:
        """See ``Log``. No program reads these rows."""

    def closed_segments(self) -> list[SegmentReport]:
        """See ``Log``."""
        return [segment for segment in self.disk.segments if segment.number not in self._dropping]

    async def active_segment(self) -> SegmentReport | None:
        """See ``Log``."""
        self._check()
        return self._report(is_sealed=False)

    async def drop_segments(self, numbers: Sequence[int], min_lsn: int) -> list[int]:
        """See ``Log``."""
        self._check()
        dropping = set(numbers) - self._dropping
        self._dropping |= dropping
        try:
            await self._until_durable(min_lsn)
            return self._drop(dropping)
        finally:
            self._dropping -= dropping

    async def _until_durable(self, lsn: int) -> None:
        while self.durable_lsn < lsn:
            self._committed = self._committed or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._committed)
            self._check()

    def _drop(self, numbers: set[int]) -> list[int]:
        gone: list[int] = []
        disk = self.disk
        covered = _header(disk.checkpoints[0]).lsn if disk.checkpoints else 0
        for segment in list(disk.segments):
            if segment.number in numbers and segment.last_lsn <= covered:
                gone.append(segment.number)
                disk.dropped = merge_ranges([*disk.dropped, (segment.first_lsn, segment.last_lsn)])
                disk.segments.remove(segment)
                disk.rows = [row for row in disk.rows if not segment.first_lsn <= row.lsn <= segment.last_lsn]
                for queue_id, first, stop in segment.queues:
                    for position in range(first, stop):
                        del disk.messages[queue_id][position]
        return gone

    async def seal_now(self) -> None:
        """See ``Log``."""
        self._check()
        self.flush()
        await self._until_durable(self.last_lsn)
        self._seal()
        self.on_checkpoint_wanted()

    @property
    def log_id(self) -> str:
        """See ``Segments``."""
        return self.disk.log_id

    async def find_rows(self, lsn: int, above: int) -> FoundRows:
        """See ``Segments``. Starts have no numbers here."""
        self._check()
        return FoundRows("", ranges_between(self.disk.dropped, above, lsn))

    async def hold_checkpoint(self) -> HeldCheckpoint | None:
        """See ``Segments``."""
        self._check()
        newest = self.disk.checkpoints[-1] if self.disk.checkpoints else None
        if newest is None:
            return None
        lsn = _header(newest).lsn
        self._held_checkpoints.append(lsn)
        return HeldCheckpoint(lsn, lsn)

    @property
    def standing_pins(self) -> Sequence[StandingPinEntry]:
        """See ``Segments``."""
        return self.disk.standing_pins

    async def keep_standing_pins(self, pins: Sequence[StandingPinEntry]) -> None:
        """See ``Segments``."""
        self._check()
        self.disk.standing_pins = list(pins)

    def release_checkpoint(self, number: int) -> None:
        """See ``Segments``."""
        self._held_checkpoints.remove(number)
        self._supersede()

    def _supersede(self) -> None:
        disk, held = self.disk, self._held_checkpoints
        older = [parts for parts in disk.checkpoints[:-CHECKPOINTS_KEPT] if _header(parts).lsn in held]
        disk.checkpoints = older + disk.checkpoints[-CHECKPOINTS_KEPT:]

    async def close(self, within_s: float | None = None) -> None:
        """See ``Log``. Takes a few turns of the loop."""
        if self._closed:
            return
        self._check()
        self._held = False
        self.flush()
        while self._rows or self._committing:
            await asyncio.sleep(0)
            self._check()
        self._finish_checkpoint()
        self._seal()
        self.disk.clean = True
        self._closed = True
        self._failed = LogFailed("the log is closed")

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed


def _names_in(records: Sequence[AnyRecord]) -> Iterator[SourceName]:
    for record in records:
        if isinstance(record, QueueCreated):
            yield SourceName(record.queue_id, record.account, record.name)
        elif isinstance(record, TopicCreated):
            yield SourceName(record.topic_id, record.account, record.name, is_topic=True)


def _header(parts: list[AnyPart]) -> CheckpointHeader:
    header = parts[0]
    assert isinstance(header, CheckpointHeader)
    return header
