"""Pages: from positions of a queue to messages.

Requests are answered in order. Each segment is read through a read-only connection of its own. The statements run in
the thread of the connection; the rows are decoded in the thread of the loop, a few at a time, so that a page delays
control frames by at most the time to decode these. A request for positions that no segment has reached waits until its
``min_lsn`` is durable: the rows that the caller has appended would otherwise be reported as missing. Requests for a
backlog do not wait for the rows of its receives: with commits by the loop process, the rows would be counted for each.

Pages run beside seals and drops, which take files away. A page holds the lock ``_reading`` from its first segment to
its last, and a seal or drop takes the lock before it closes or unlinks a file (``forget``, ``closing``). Otherwise a
page could open a database again between the close of its connection and the end of the file.

A missing position is an answer, not an error: the core then marks the message as damaged. So positions are reported as
missing only if no segment has a readable row for them. A failure that may pass is retried, and at last ends the
process.
"""

import asyncio
import contextlib
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias, cast

import aiosqlite

from cmqd.storage import ipc
from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.catalog import Catalog, SealedFile, Segment
from cmqd.storage.reading.reading_connection import close_reading, open_reading
from cmqd.storage.reading.segment_reader import Answer, RowCache, SegmentReader, is_damage
from cmqd.storage.standard_error import complain
from cmqd_reading.history_search import RowsWanted
from cmqd_segment.manifest import SourceName
from cmqd_segment.records import PublishedMessage, last_of, ranges
from cmqd_segment.schema import SegmentFormatError
from cmqd_segment.sparse import SparseQueue
from cmqd_types.actors import Actor

READ_ATTEMPTS = 5
"""Attempts of a read that fails for a reason that may pass (no descriptor, a lock) before the process ends. The pauses
between them add up to 4 s."""

ROWS_BYTES = 128 * 1024
"""Size of records after which a read of rows ends. A hop to the thread of the connection takes as long as some 40 small
rows."""


Request: TypeAlias = ipc.ReadPage | ipc.ReadPublished


RawRow: TypeAlias = tuple[int, int, int, bytes, int, bytes]
"""LSN, time, number of messages, contents (``queues``), checksum and records of a row, not checked yet."""


class Pager:
    """Answers the requests for pages; see the module."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        durable: DurableLsn,
        send: Callable[..., None],
        on_damage: Callable[[str], None],
        cache_bytes: int,
        open_segments: int,
    ) -> None:
        self._catalog = catalog
        self._durable = durable
        self._send = send
        self._on_damage = on_damage
        self._open_segments = open_segments
        self._requests: deque[Request] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._connections: OrderedDict[int, aiosqlite.Connection] = OrderedDict()
        """Connections by number of the segment, least recently used first."""
        self._rows = RowCache(cache_bytes)
        self._sparse: OrderedDict[tuple[int, int], SparseQueue] = OrderedDict()
        self._damaged: set[int] = set()
        """LSNs of reported damage. Every page that touches a damaged row finds the damage again, and one line in the
        log of the operator is enough."""
        self._reading = asyncio.Lock()

    def request(self, page: Request) -> None:
        """Answer a request, now or when its LSN is durable."""
        if page.min_lsn > self._durable.value and not self._has_rows(page):
            self._durable.call_at(page.min_lsn, partial(self.request, page))
            return
        self._requests.append(page)
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    def _has_rows(self, page: Request) -> bool:
        """Return whether every row with a requested position is durable. A row has its positions in ascending order
        with the rows before, so the row of the last position is the last row.
        """
        if isinstance(page, ipc.ReadPage):
            return self._catalog.holder(page.queue_id, last_of(page.positions)) is not None
        return self._catalog.holder(page.topic_id, page.stop - 1) is not None

    async def run(self) -> None:
        """Answer requests until cancelled. Raises sqlite3.Error, OSError for failures that are neither damage nor
        passing.
        """
        while True:
            if not self._requests:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
                continue
            page = self._requests.popleft()
            if isinstance(page, ipc.ReadPublished):
                async with self._reading:
                    message = await self._find_published(page)
                self._send(ipc.Published(page.read_id, message))
                continue
            async with self._reading:
                answer = await self._answer(page)
            self._send(ipc.Page(page.read_id, answer.columns, answer.missing_runs(), answer.sources), *answer.blobs)

    async def rows(self, wanted: RowsWanted, limit: int) -> tuple[list[RawRow], int]:
        """Return at most ``limit`` rows, and the LSN up to which rows were read, between two pages.

        The read ends earlier behind ``ROWS_BYTES`` of records.
        """
        async with self._reading:
            segment = next((each for each in self._catalog.segments() if each.last_lsn >= wanted.first_lsn), None)
            if segment is None:
                return [], wanted.last_lsn
            upto_lsn = min(segment.last_lsn, wanted.last_lsn)
            read = _RowsRead(wanted, upto_lsn, limit)
            if await self._attempt(segment, 0, read):
                return read.rows, read.upto_lsn
            return [], upto_lsn

    async def id_at(self, queue_id: int, position: int) -> int:
        """Return the id of the message at a position of a queue; 0 = it cannot be read."""
        async with self._reading:
            answer = await self._answer(ipc.ReadPage(0, queue_id, [position, 1], 1, 0))
        return answer.columns[0][1] if answer.columns else 0

    async def names_in(self, segment: SealedFile) -> list[SourceName]:
        """Return the queues and topics with messages in a sealed segment; empty if their names cannot be read."""
        async with self._reading:
            read = _NamesRead()
            await self._attempt(segment, 0, read)
        return read.names

    async def actors_in(self, segment: SealedFile, numbers: Collection[int]) -> dict[int, Actor]:
        """Return the clients with these numbers that a sealed segment knows; empty if they cannot be read."""
        async with self._reading:
            read = ActorsRead(numbers)
            await self._attempt(segment, 0, read)
        return read.actors

    async def forget(self, number: int) -> None:
        """Close the connection of a segment, between two pages. A caller that removes the file takes the segment out of
        the catalog before, so that no later page opens the file again.
        """
        async with self._reading:
            await self._close(number)

    async def closing(self, number: int, close: Callable[[], Awaitable[None]]) -> None:
        """Close the connection of a segment, then run ``close``, with no page in between.

        The segment stays in the catalog meanwhile, so a page in between would open the database again. SQLite would
        not remove the WAL then, because the closing connection would not be the last.
        """
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
            await close_reading(connection)

    async def _answer(self, page: ipc.ReadPage) -> Answer:
        answer = Answer(page.max_bytes)
        requested = deque(ranges(page.positions))
        while requested and not answer.full:
            # The catalog is asked for every segment anew: a drop may take a segment out while another segment is read.
            start, stop = requested[0]
            holder = self._catalog.holder(page.queue_id, start)
            if holder is None:
                answer.lacks(start, stop)
                requested.popleft()
                continue
            segment, first, end = holder
            if start < first:
                # No segment has the positions below ``first``: the segments before this segment end below ``start``.
                answer.lacks(start, min(stop, first))
                requested.popleft()
                if stop > first:
                    requested.appendleft((first, stop))
                continue
            # All ranges within the segment in one call, so that the reader searches their rows together. The part of a
            # range that lies beyond the segment goes back to the front.
            here: list[tuple[int, int]] = []
            while requested and requested[0][0] < end:
                start, stop = requested.popleft()
                here.append((start, min(stop, end)))
                if stop > end:
                    requested.appendleft((end, stop))
            await self._read(segment, page.queue_id, here, answer)
        return answer

    async def _find_published(self, request: ipc.ReadPublished) -> PublishedMessage | None:
        """Find the first readable message of a topic in a range of positions."""
        start = request.start
        while start < request.stop:
            # As for a page, the catalog is asked anew for every segment.
            holder = self._catalog.holder(request.topic_id, start)
            if holder is None or holder[1] >= request.stop:
                return None
            segment, first, end = holder
            search = _Search(max(start, first), min(end, request.stop))
            await self._attempt(segment, request.topic_id, search)
            if search.found is not None:
                return search.found
            start = end
        return None

    async def _read(
        self, segment: Segment, queue_id: int, requested: Sequence[tuple[int, int]], answer: Answer
    ) -> None:
        """Read positions through the segment's connection; positions on damaged bytes are missing."""
        reading = _Reading(requested, answer)
        if not await self._attempt(segment, queue_id, reading):
            for start, stop in reading.requested:
                answer.lacks(start, stop)

    async def _attempt(self, segment: Segment, queue_id: int, task: "_Task") -> bool:
        """Read through the segment's connection; retry if the failure may pass. Returns False if the bytes are damaged.

        Damage is told apart first: a retry would read the same bytes, and the end of the process would take all other
        messages away for the sake of messages that are lost in any case.
        """
        for attempt in range(READ_ATTEMPTS):
            reader = SegmentReader(segment, queue_id, self._rows, self._sparse, self._complain)
            try:
                connection = await self._connection(segment)
                await task.run(reader, connection)
            except (sqlite3.Error, SegmentFormatError) as error:
                # The next attempt gets a connection of its own, and the path that the segment has then.
                await self._close(segment.number)
                if is_damage(error) or not segment.path.exists():
                    self._complain(0, f"segment {segment.path.name} cannot be read: {error}")
                    return False
                if attempt == READ_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05 * 4**attempt)
            else:
                return True
        raise AssertionError("the last attempt returns or raises")

    async def _connection(self, segment: Segment) -> aiosqlite.Connection:
        number = segment.number
        connection = self._connections.get(number)
        if connection is not None:
            self._connections.move_to_end(number)
            return connection
        # Before the new connection is opened: the limit is for file descriptors, which may be used up.
        while len(self._connections) >= self._open_segments:
            await self._close(next(iter(self._connections)))
        # Immutable: without locks and without a search for a WAL. Any other segment is read through its WAL.
        connection = await open_reading(segment.path, sealed=segment.immutable)
        self._connections[number] = connection
        return connection

    def _complain(self, lsn: int, text: str) -> None:
        if lsn not in self._damaged or not lsn:
            self._damaged.add(lsn)
            complain(text)
            self._on_damage(text)


class _Reading:
    """The read of a page from one segment."""

    def __init__(self, requested: Sequence[tuple[int, int]], answer: Answer) -> None:
        self.requested = requested
        """The positions that are not processed yet."""
        self._answer = answer

    async def run(self, reader: SegmentReader, connection: aiosqlite.Connection) -> None:
        """Read; messages found before an error are kept, and a second run asks only for the rest."""
        try:
            await reader.read(connection, self.requested, self._answer)
        finally:
            self.requested = reader.rest(self.requested)


class _Search:
    """The search for the first readable message of a topic in one segment."""

    def __init__(self, start: int, stop: int) -> None:
        self._start = start
        self._stop = stop
        self.found: PublishedMessage | None = None

    async def run(self, reader: SegmentReader, connection: aiosqlite.Connection) -> None:
        """Search."""
        self.found = await reader.find_published(connection, self._start, self._stop)


class _RowsRead:
    """The read of rows without their bodies."""

    def __init__(self, wanted: RowsWanted, upto_lsn: int, limit: int) -> None:
        self._first_lsn = wanted.first_lsn
        self._limit = limit
        stores = " AND messages > 0" if wanted.is_of_stores else ""
        # The sizes first: a row has up to a MiB of headers, and some hundreds of them are a whole segment in memory.
        sizes = (
            "SELECT lsn, coalesce(length(meta), 0) AS size FROM log"
            f" WHERE lsn BETWEEN ?1 AND ?2{stores} ORDER BY lsn LIMIT {limit}"
        )
        sums = f"SELECT lsn, sum(size) OVER (ORDER BY lsn ROWS UNBOUNDED PRECEDING) - size AS before FROM ({sizes})"
        self._statement = (
            "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log WHERE lsn BETWEEN ?1 AND"
            f" (SELECT max(lsn) FROM ({sums}) WHERE before < {ROWS_BYTES}){stores} ORDER BY lsn"
        )
        self.rows: list[RawRow] = []
        self.upto_lsn = upto_lsn
        """Up to here the rows were read; those that are not in ``rows`` cannot be read, or were not wanted."""

    async def run(self, _reader: SegmentReader, connection: aiosqlite.Connection) -> None:
        """Read. Raises sqlite3.Error."""
        try:
            self.rows = await self._fetch(connection, self.upto_lsn)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            # The first row alone: the damage may be in a row behind.
            self.upto_lsn = self._first_lsn
            with contextlib.suppress(sqlite3.DatabaseError):
                self.rows = await self._fetch(connection, self.upto_lsn)
        else:
            if len(self.rows) == self._limit or sum(len(row[-1]) for row in self.rows) >= ROWS_BYTES:
                self.upto_lsn = self.rows[-1][0]

    async def _fetch(self, connection: aiosqlite.Connection, upto_lsn: int) -> list[RawRow]:
        rows = await connection.execute_fetchall(self._statement, (self._first_lsn, upto_lsn))
        return cast("list[RawRow]", rows)


class _NamesRead:
    """The read of the table ``names`` of a sealed segment."""

    def __init__(self) -> None:
        self.names: list[SourceName] = []

    async def run(self, _reader: SegmentReader, connection: aiosqlite.Connection) -> None:
        """Read. Raises sqlite3.Error."""
        if await connection.execute_fetchall("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'names'"):
            rows = await connection.execute_fetchall("SELECT id, account, name, is_topic FROM names")
            self.names = [SourceName(number, account, name, bool(is_topic)) for number, account, name, is_topic in rows]


class ActorsRead:
    """The read of some clients in the table ``actors`` of a sealed segment, which may have 100,000."""

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = list(numbers)
        self.actors: dict[int, Actor] = {}

    async def run(self, _reader: SegmentReader | None, connection: aiosqlite.Connection) -> None:
        """Read. Raises sqlite3.Error."""
        if await connection.execute_fetchall("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'actors'"):
            rows = await connection.execute_fetchall(
                "SELECT number, account, secret_id, name, host, stated_by FROM actors"
                f" WHERE number IN ({','.join('?' * len(self._numbers))})",
                self._numbers,
            )
            self.actors = {number: Actor(*fields) for number, *fields in rows}


_Task: TypeAlias = _Reading | _Search | _RowsRead | _NamesRead | ActorsRead
