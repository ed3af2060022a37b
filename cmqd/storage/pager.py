"""Reading bodies back: positions of a queue in, messages out.

Requests are answered one after the other, each segment read through a read-only connection with a thread of its own,
so that a page never holds up a commit for longer than a row takes to decode. Each row is read once, checked against
its CRCs, and remembered for a while, because the next page often begins in the row where the last one ended.
"""

import asyncio
import sqlite3
import sys
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from cmqd.storage import ipc
from cmqd.storage.catalog import Catalog, OpenSegment, SealedFile
from cmqd.storage.connection import ThreadConnection, connect
from cmqd_segment.records import Headers, Runs, ranges
from cmqd_segment.rows import Run, data_checksum, decode_queues, decode_records, meta_checksum, sent_runs
from cmqd_segment.schema import SegmentFormatError, open_read_only
from cmqd_segment.sparse import LsnRange, SparseQueue, sparse_queue

LOOK_AHEAD = 4096
"""Positions looked up in the sparse index at a time."""
SPARSE_CACHED = 256
"""Queues of sealed segments whose sparse index stays in memory: 16 bytes per 256 messages each."""
READ_ATTEMPTS = 5
"""A read that fails for a passing reason (no descriptor, a lock) is tried again before storage gives up."""

Column = tuple[int, int, int, list[int], list[Headers | None] | None, int | list[int] | None]

_DAMAGE = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR))
"""Primary result codes after which the bytes are what they are and asking again is no use."""
_DAMAGE_EXTENDED = frozenset((sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS))
"""Extended codes likewise. Any other I/O error is the disk's, and fatal."""


class DecodedRow(NamedTuple):
    """A row that passed its checks."""

    runs: dict[int, list[Run]]
    data: bytes


class RowPlace(NamedTuple):
    """Which positions of the queue a row holds."""

    first: int
    stop: int
    lsn: int


class RowCache:
    """Decoded rows by LSN, the least recently used go first. Used by one thread at a time."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._rows: OrderedDict[int, DecodedRow] = OrderedDict()
        self._bytes = 0

    def get(self, lsn: int) -> DecodedRow | None:
        """The row, None if it is not kept (any more)."""
        row = self._rows.get(lsn)
        if row is not None:
            self._rows.move_to_end(lsn)
        return row

    def put(self, lsn: int, row: DecodedRow) -> None:
        """Keep a row."""
        self._rows[lsn] = row
        self._bytes += len(row.data)
        while self._bytes > self._capacity and len(self._rows) > 1:
            _, old = self._rows.popitem(last=False)
            self._bytes -= len(old.data)


class Answer:
    """A page in the making."""

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.full = False
        self.columns: list[Column] = []
        self.blobs: list[memoryview] = []
        self.missing: list[tuple[int, int]] = []

    def lacks(self, start: int, stop: int) -> None:
        """Positions that cannot be read."""
        if start < stop:
            self.missing.append((start, stop))

    def take(self, run: Run, data: bytes, start: int, stop: int) -> int:
        """Messages of the run from ``start`` to below ``stop``, as many as fit; returns where it stopped."""
        low = start - run.first_position
        high = stop - run.first_position
        sizes = run.sizes if high - low == len(run.sizes) else run.sizes[low:high]
        offset = run.offset + (sum(run.sizes[:low]) if low else 0)
        size = sum(sizes)
        if size > self.left:
            count, size = self._fitting(sizes)
            if count < len(sizes):
                self.full = True
                if count == 0:
                    return start
                high = low + count
                sizes = sizes[:count]
        whole = high - low == len(run.sizes)
        headers = run.headers if whole or run.headers is None else run.headers[low:high]
        visible = run.visible_ms
        if isinstance(visible, list) and not whole:
            visible = visible[low:high]
        self.columns.append((start, run.first_message_id + low, run.enqueue_ms, sizes, headers, visible))
        self.blobs.append(memoryview(data)[offset : offset + size])
        self.left -= size
        return run.first_position + high

    def _fitting(self, sizes: Sequence[int]) -> tuple[int, int]:
        """How many of these messages fit, and their bytes; the first message of a page always does."""
        total = 0
        for count, size in enumerate(sizes):
            if total + size > self.left and (count or self.columns):
                return count, total
            total += size
        return len(sizes), total

    def missing_runs(self) -> Runs:
        """What it lacks, as runs."""
        runs: Runs = []
        end = 0
        for start, stop in self.missing:
            if runs and start == end:
                runs[-1] += stop - start
            else:
                runs += (start - end, stop - start)
            end = stop
        return runs


class Pager:
    """See the module."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        durable_lsn: Callable[[], int],
        send: Callable[..., None],
        on_damage: Callable[[str], None],
        cache_bytes: int,
        open_segments: int,
    ) -> None:
        self._catalog = catalog
        self._durable_lsn = durable_lsn
        self._send = send
        self._on_damage = on_damage
        self._open_segments = open_segments
        self._requests: deque[ipc.ReadPage] = deque()
        self._deferred: list[ipc.ReadPage] = []
        self._wake: asyncio.Future[None] | None = None
        self._connections: OrderedDict[int, ThreadConnection] = OrderedDict()
        self._rows = RowCache(cache_bytes)
        self._sparse: OrderedDict[tuple[int, int], SparseQueue] = OrderedDict()
        self._damaged: set[int] = set()
        """LSNs already complained about."""
        self._reading = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def request(self, page: ipc.ReadPage) -> None:
        """Answer this, now or when its LSN is durable."""
        if page.min_lsn > self._durable_lsn():
            self._deferred.append(page)
            return
        self._requests.append(page)
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    def on_durable(self, lsn: int) -> None:
        """Take up what waited for this."""
        if self._deferred:
            waiting = self._deferred
            self._deferred = []
            for page in waiting:
                self.request(page)

    async def run(self) -> None:
        """Answer requests for ever. Raises sqlite3.Error, OSError for what is neither damage nor passing."""
        while True:
            if not self._requests:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
                continue
            page = self._requests.popleft()
            async with self._reading:
                answer = await self._answer(page)
            self._send(ipc.Page(page.read_id, answer.columns, answer.missing_runs()), *answer.blobs)

    async def forget(self, number: int) -> None:
        """Close the connection of a segment, between two pages."""
        async with self._reading:
            await self._close(number)

    async def closing(self, number: int, close: Callable[[], Awaitable[None]]) -> None:
        """Close our connection, then run ``close``, with no page in between."""
        async with self._reading:
            await self._close(number)
            await close()

    async def close(self) -> None:
        """Close all connections."""
        for number in list(self._connections):
            await self.forget(number)

    async def _close(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            await connection.close()

    async def _answer(self, page: ipc.ReadPage) -> Answer:
        answer = Answer(page.max_bytes)
        wanted = deque(ranges(page.positions))
        while wanted and not answer.full:
            start, stop = wanted[0]
            held = self._catalog.holder(page.queue_id, start)
            if held is None:
                answer.lacks(start, stop)
                wanted.popleft()
                continue
            segment, first, end = held
            if start < first:
                answer.lacks(start, min(stop, first))
                wanted.popleft()
                if stop > first:
                    wanted.appendleft((first, stop))
                continue
            here: list[tuple[int, int]] = []
            while wanted and wanted[0][0] < end:
                start, stop = wanted.popleft()
                here.append((start, min(stop, end)))
                if stop > end:
                    wanted.appendleft((end, stop))
            await self._read(segment, page.queue_id, here, answer)
        return answer

    async def _read(
        self, segment: SealedFile | OpenSegment, queue_id: int, wanted: Sequence[tuple[int, int]], answer: Answer
    ) -> None:
        """Let the segment's thread find what is wanted of it, with another try if the reason may pass."""
        for attempt in range(READ_ATTEMPTS):
            reader = SegmentReader(segment, queue_id, self._rows, self._sparse, self._damage)
            try:
                connection = await self._connection(segment)
                await connection.run(reader.read, connection.raw, wanted, answer)
            except (sqlite3.Error, SegmentFormatError) as error:
                await self._close(segment.number)
                # What was found before the error stays found; only the rest is asked for again.
                wanted = reader.rest(wanted)
                if is_damage(error) or not segment.path.exists():
                    self._complain(0, f"segment {segment.path.name} cannot be read: {error}")
                    for start, stop in wanted:
                        answer.lacks(start, stop)
                    return
                if attempt == READ_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05 * 4**attempt)
            else:
                return

    async def _connection(self, segment: SealedFile | OpenSegment) -> ThreadConnection:
        number = segment.number
        connection = self._connections.get(number)
        if connection is not None:
            self._connections.move_to_end(number)
            return connection
        while len(self._connections) >= self._open_segments:
            await self._close(next(iter(self._connections)))
        path, sealed = segment.path, segment.immutable
        connection = await connect(lambda: open_read_only(path, sealed=sealed))
        self._connections[number] = connection
        return connection

    def _damage(self, lsn: int, text: str) -> None:
        """As ``_complain``, from a segment's thread."""
        self._loop.call_soon_threadsafe(self._complain, lsn, text)

    def _complain(self, lsn: int, text: str) -> None:
        if lsn not in self._damaged or not lsn:
            self._damaged.add(lsn)
            print(f"cmqd storage: {text}", file=sys.stderr, flush=True)
            self._on_damage(text)


class SegmentReader:
    """Finds the messages of one queue in one segment; runs in the thread of the segment's connection."""

    def __init__(
        self,
        segment: SealedFile | OpenSegment,
        queue_id: int,
        rows: RowCache,
        sparse: OrderedDict[tuple[int, int], SparseQueue],
        on_damage: Callable[[int, str], None],
    ) -> None:
        self._segment = segment
        self._queue_id = queue_id
        self._rows = rows
        self._sparse = sparse
        self._on_damage = on_damage
        self._places: list[RowPlace] = []
        self._done = 0
        """Positions below this were dealt with."""

    def rest(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """What of the wanted was not dealt with."""
        return [(max(start, self._done), stop) for start, stop in wanted if stop > self._done]

    def read(self, raw: sqlite3.Connection, wanted: Sequence[tuple[int, int]], answer: Answer) -> None:
        """Find what is wanted, as far as it fits."""
        for start, stop in wanted:
            while start < stop and not answer.full:
                start = self._step(raw, start, stop, answer)
                self._done = start

    def _step(self, raw: sqlite3.Connection, start: int, stop: int, answer: Answer) -> int:
        """Deal with ``start`` and as much of what follows as is in the same row; returns where to go on."""
        place = self._place(raw, start, stop)
        if place is None or place.first > start:
            # Its row is not there: between two others, or beyond those that could be looked at.
            end = min(stop, start + LOOK_AHEAD if place is None else place.first)
            self._on_damage(-start, f"segment {self._segment.path.name} lacks positions {start} to {end - 1}")
            answer.lacks(start, end)
            return end
        end = min(stop, place.stop)
        row = self._row(raw, place.lsn)
        if row is None:
            answer.lacks(start, end)
            return end
        for run in row.runs.get(self._queue_id, ()):
            if run.stop_position <= start:
                continue
            if start >= end:
                break
            upto = min(end, run.stop_position)
            start = answer.take(run, row.data, start, upto)
            if start < upto:
                return start
        return end

    def _place(self, raw: sqlite3.Connection, start: int, stop: int) -> RowPlace | None:
        """The row that holds ``start``, or the next row of the queue."""
        places = self._places
        if not places or not places[0].first <= start < places[-1].stop:
            index = self._index(raw)
            if index is None:
                return None
            places = self._places = self._look(raw, index, start, min(stop, start + LOOK_AHEAD))
        place = bisect_right(places, start, key=lambda entry: entry.first) - 1
        if place >= 0 and places[place].stop > start:
            return places[place]
        return places[place + 1] if place + 1 < len(places) else None

    def _look(self, raw: sqlite3.Connection, index: SparseQueue, start: int, stop: int) -> list[RowPlace]:
        """The rows of the queue from about ``start`` to about ``stop``."""
        span = index.rows_of(start, stop, self._segment.last_lsn)
        try:
            rows: list[tuple[int, bytes]] = raw.execute(
                "SELECT lsn, queues FROM log WHERE lsn BETWEEN ? AND ? AND messages > 0", span
            ).fetchall()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            rows = self._readable(raw, span, error)
        try:
            return self._places_in(rows)
        except msgspec.MsgspecError:
            return [place for row in rows for place in self._places_if_intact(row)]

    def _places_in(self, rows: Sequence[tuple[int, bytes]]) -> list[RowPlace]:
        return [
            RowPlace(first, end, lsn)
            for lsn, queues in rows
            for queue_id, first, end, _ in decode_queues(queues)
            if queue_id == self._queue_id
        ]

    def _places_if_intact(self, row: tuple[int, bytes]) -> list[RowPlace]:
        try:
            return self._places_in([row])
        except msgspec.MsgspecError as error:
            self._on_damage(row[0], f"row {row[0]} of {self._segment.path.name} cannot be decoded: {error}")
            return []

    def _readable(
        self, raw: sqlite3.Connection, span: LsnRange, error: sqlite3.DatabaseError
    ) -> list[tuple[int, bytes]]:
        """Row by row around a broken page, so that it costs only the rows that stand on it."""
        self._on_damage(-span.first, f"segment {self._segment.path.name}, rows {span.first} to {span.last}: {error}")
        rows: list[tuple[int, bytes]] = []
        for lsn in range(span.first, span.last + 1):
            try:
                rows += raw.execute("SELECT lsn, queues FROM log WHERE lsn = ? AND messages > 0", (lsn,)).fetchall()
            except sqlite3.DatabaseError as damage:
                if not is_damage(damage):
                    raise
        return rows

    def _index(self, raw: sqlite3.Connection) -> SparseQueue | None:
        segment = self._segment
        if isinstance(segment, OpenSegment):
            return segment.segment.index.queues.get(self._queue_id)
        key = (segment.number, self._queue_id)
        index = self._sparse.get(key)
        if index is None:
            row = raw.execute(
                "SELECT first_position, stop_position, bytes, positions, lsns FROM sparse WHERE queue_id = ?",
                (self._queue_id,),
            ).fetchone()
            if row is None:
                return None
            index = self._sparse[key] = sparse_queue(*row)
            if len(self._sparse) > SPARSE_CACHED:
                self._sparse.popitem(last=False)
        else:
            self._sparse.move_to_end(key)
        return index

    def _row(self, raw: sqlite3.Connection, lsn: int) -> DecodedRow | None:
        """The row, None if it is damaged."""
        row = self._rows.get(lsn)
        if row is not None:
            return row
        try:
            found = raw.execute(
                "SELECT time_ms, messages, queues, meta_crc, data_crc, meta, data FROM log WHERE lsn = ?", (lsn,)
            ).fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} cannot be read: {error}")
            return None
        if found is None:
            self._on_damage(lsn, f"row {lsn} is missing from {self._segment.path.name}")
            return None
        time_ms, messages, queues, meta_crc, data_crc, meta, data = found
        if meta_checksum(lsn, time_ms, messages, queues, meta) != meta_crc or data_checksum(data) != data_crc:
            self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} is damaged: its checksum is wrong")
            return None
        try:
            records = decode_records(meta)
        except msgspec.MsgspecError as error:
            self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} cannot be decoded: {error}")
            return None
        runs: dict[int, list[Run]] = {}
        for queue_id, run in sent_runs(records):
            runs.setdefault(queue_id, []).append(run)
        row = DecodedRow(runs, data)
        self._rows.put(lsn, row)
        return row


def is_damage(error: Exception) -> bool:
    """Whether the bytes on disk are wrong, as against a passing lack of something."""
    if isinstance(error, SegmentFormatError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and ((code & 0xFF) in _DAMAGE or code in _DAMAGE_EXTENDED)
