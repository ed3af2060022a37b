"""Messages of a segment: from positions to rows, from rows to a page.

The statements run in the thread of the segment's connection, everything else in the thread of the loop. A row is read
once, checked against its CRCs and cached, because the next page often begins in the row where the last page ended.
Damage costs only the messages in the damaged rows, which are reported as missing.

The loop also serves seals, checkpoints and control frames, so that decoding gives way to the loop after
``DECODED_AT_A_TIME`` bytes. Rows of small
messages and rows of many queues would otherwise hold the loop for tens of milliseconds: a block of 64 rows that were
published to 10,000 queues has 640,000 entries.
"""

import asyncio
import sqlite3
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiosqlite
import msgspec

from cmqd.storage import ipc
from cmqd.storage.folder.catalog import Segment
from cmqd.storage.reading.decoded_row import Audiences, DecodedRow
from cmqd.storage.reading.row_summaries import Summaries, Summary, summary_of
from cmqd.storage.segments.segment import WritableSegment
from cmqd_segment.published import published_message
from cmqd_segment.records import AnyRecord, MessagesPublished, PublishedMessage, Runs
from cmqd_segment.rows import (
    COPY_BYTES,
    Run,
    data_checksum,
    decode_records,
    extra_bytes,
    labels_bytes,
    meta_checksum,
    part_of,
)
from cmqd_segment.schema import SegmentFormatError
from cmqd_segment.sparse import LsnRange, SparseQueue, sparse_queue

SEARCH_AHEAD = 4096
"""Positions searched for in the sparse index at a time."""
READ_AHEAD_BYTES = 512 * 1024
"""Bytes up to which consecutive rows are fetched together, with the bodies of other queues: those of a page of the
core, so that a page in order takes one statement. Each statement is two switches of threads, and waits for the GIL
beside commits."""
SPARSE_CACHED = 256
"""Number of queues of sealed segments with the sparse index in memory: 16 bytes per 256 messages."""
VIEW_FROM = 4
"""Bodies are copied out of a row if their bytes are less than a quarter of the row (1 / this number)."""
DECODED_AT_A_TIME = 32 * 1024
"""Bytes that are decoded before other work of the loop has its turn: below a millisecond. A row that is larger is
decoded at once."""
ROW_OVERHEAD_BYTES = 512
"""Bytes that take as long to decode as an empty row."""

_DAMAGE = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR))
"""Primary result codes that prove damage: a retry would read the same bytes."""
_DAMAGE_EXTENDED = frozenset((sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS))
"""Extended codes likewise. Any other I/O error is the disk's, and fatal."""


class RowPlace(NamedTuple):
    """Positions of the queue in a row."""

    first: int
    stop: int
    lsn: int
    row_bytes: int
    """Bytes of all bodies in the row."""
    ordinal: int
    """Number among the rows with messages: no useful row lies between rows with consecutive numbers."""


class RowCache:
    """Decoded rows by LSN, least recently used first out, with the indexes to find rows. For one page at a time."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = max(capacity_bytes, 2 * READ_AHEAD_BYTES)
        self.summaries = Summaries()
        self.audiences = Audiences()
        self._rows: OrderedDict[int, DecodedRow] = OrderedDict()
        self._bytes = 0

    def get(self, lsn: int) -> DecodedRow | None:
        """Return a row from the cache, or None."""
        row = self._rows.get(lsn)
        if row is not None:
            self._rows.move_to_end(lsn)
        return row

    def put(self, lsn: int, row: DecodedRow) -> None:
        """Keep a row."""
        if lsn in self._rows:
            return
        self._rows[lsn] = row
        self._bytes += row.cost
        while self._bytes > self._capacity and len(self._rows) > 1:
            _, old = self._rows.popitem(last=False)
            self._bytes -= old.cost


class Answer:
    """A page while it is being filled."""

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.full = False
        self.columns: list[ipc.Column] = []
        self.sources: list[tuple[int, str, str]] = []
        self._topic: str = ""
        self._subscription: str = ""
        self.blobs: list[bytes | memoryview] = []
        self.missing: list[tuple[int, int]] = []

    def lacks(self, start: int, stop: int) -> None:
        """Add positions that cannot be read."""
        if start < stop:
            self.missing.append((start, stop))

    def take(self, run: Run, data: bytes, start: int, stop: int) -> int:
        """Take messages of the run from ``start`` to below ``stop``, as many as fit; return the position after the
        last.
        """
        low = start - run.first_position
        high = stop - run.first_position
        sizes = run.sizes if high - low == len(run.sizes) else run.sizes[low:high]
        offset = run.offset + (sum(run.sizes[:low]) if low else 0)
        costs = sizes
        if (
            run.source is not None
            or run.headers is not None
            or run.origins is not None
            or run.labels is not None
            or run.copies_of is not None
        ):
            costs = _costs(run, sizes, low)
        cost = sum(costs)
        if cost > self.left:
            count, cost = self._fitting(costs)
            if count < len(sizes):
                self.full = True
                if count == 0:
                    return start
                high = low + count
                sizes = sizes[:count]
        size = sum(sizes)
        visible = run.visible_ms
        if isinstance(visible, list):
            visible = part_of(visible, low, high)
        original_id = None
        if run.source is not None:
            topic, subscription, original_id = run.source
            original_id += low
            if subscription != self._subscription or topic != self._topic:
                self._topic, self._subscription = topic, subscription
                self.sources.append((len(self.columns), topic, subscription))
        self.columns.append(
            (
                start,
                run.first_message_id + low,
                run.enqueue_ms,
                sizes,
                part_of(run.headers, low, high),
                visible,
                part_of(run.origins, low, high),
                part_of(run.labels, low, high),
                original_id,
                part_of(run.copies_of, low, high),
            )
        )
        # A view keeps its whole row in memory until the page is sent; a page of scattered messages would keep hundreds.
        scattered = size * VIEW_FROM < len(data)
        self.blobs.append(data[offset : offset + size] if scattered else memoryview(data)[offset : offset + size])
        self.left -= cost
        return run.first_position + high

    def _fitting(self, costs: Sequence[int]) -> tuple[int, int]:
        """Return how many of these messages fit, and their bytes. The first message of a page always fits."""
        total = 0
        for count, cost in enumerate(costs):
            if total + cost > self.left and (count or self.columns):
                return count, total
            total += cost
        return len(costs), total

    def missing_runs(self) -> Runs:
        """Return the missing positions as runs."""
        runs: Runs = []
        end = 0
        for start, stop in self.missing:
            if runs and start == end:
                runs[-1] += stop - start
            else:
                runs += (start - end, stop - start)
            end = stop
        return runs


def _costs(run: Run, sizes: Sequence[int], low: int) -> list[int]:
    """Return the bytes of messages of a run from index ``low`` on, headers and labels included."""
    headers, origins, labels, source, copies_of = run.headers, run.origins, run.labels, run.source, run.copies_of
    of_all = 0
    if source is not None:
        of_all = COPY_BYTES + len(source.topic) + len(source.subscription)
    if labels is not None and len(labels) == 1:
        if labels[0]:
            of_all += labels_bytes(labels[0])
        labels = None
    if headers is None and origins is None and labels is None and copies_of is None:
        return [size + of_all for size in sizes]
    return [
        size
        + of_all
        + extra_bytes(
            None if headers is None else headers[index],
            None if origins is None else origins[index],
            None if labels is None else labels[index],
            None if copies_of is None else copies_of[index],
        )
        for index, size in enumerate(sizes, low)
    ]


class SegmentReader:
    """Finds the messages of a queue or topic in a segment, by the statements of the segment's connection."""

    def __init__(
        self,
        segment: Segment,
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
        self._decoded_bytes = 0
        """Bytes decoded since other work of the loop had its turn."""

    def rest(self, requested: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the positions that are not processed yet."""
        return [(max(start, self._done), stop) for start, stop in requested if stop > self._done]

    async def read(
        self, connection: aiosqlite.Connection, requested: Sequence[tuple[int, int]], answer: Answer
    ) -> None:
        """Read positions until the page is full. The answer has what was found when the call raises or is cancelled.

        Raises sqlite3.Error.
        """
        for start, stop in requested:
            while start < stop and not answer.full:
                # Each step without a read is without an await: most rows come from the cache.
                places = self._places
                if not places or not places[0].first <= start < places[-1].stop:
                    index = await self._index(connection)
                    if index is not None:
                        self._places = await self._search(connection, index, start, min(stop, start + SEARCH_AHEAD))
                place_index = self._find(start)
                place = self._places[place_index] if place_index < len(self._places) else None
                row = None
                if place is not None and place.first <= start:
                    row = self._rows.get(place.lsn)
                    if row is None:
                        await self._fetch_ahead(connection, place_index, stop)
                        row = self._rows.get(place.lsn)
                start = self._step(place, row, start, stop, answer)
                self._done = start

    async def find_published(self, connection: aiosqlite.Connection, start: int, stop: int) -> PublishedMessage | None:
        """Return the first readable message of a topic at positions ``start .. stop-1``, without its body.

        Only the facts of a row are read, past the cache of rows: a cached row does not keep the waiting subscriptions,
        and the bodies of the rows on the way of a search would push out rows that consumers need.

        Raises sqlite3.Error.
        """
        index = await self._index(connection)
        if index is None:
            return None
        while start < stop:
            end = min(stop, start + SEARCH_AHEAD)
            for place in await self._search(connection, index, start, end):
                position = max(start, place.first)
                if position >= min(stop, place.stop):
                    continue
                for record in await self._facts(connection, place.lsn):
                    if isinstance(record, MessagesPublished) and record.topic_id == self._queue_id:
                        position = max(start, record.first_position)
                        if position < min(stop, record.first_position + len(record.sizes)):
                            return published_message(record, position)
            start = end
        return None

    async def _facts(self, connection: aiosqlite.Connection, lsn: int) -> Sequence[AnyRecord]:
        """Read the records of a row; none of a damaged row."""
        try:
            rows = await connection.execute_fetchall(
                "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log WHERE lsn = ?", (lsn,)
            )
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} cannot be read: {error}")
            return ()
        for lsn, time_ms, messages, queues, meta_crc, meta in rows:
            if meta_checksum(lsn, time_ms, messages, queues, meta) != meta_crc:
                self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} is damaged: its checksum is wrong")
                return ()
            try:
                return decode_records(meta)
            except msgspec.MsgspecError as error:
                self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} cannot be decoded: {error}")
        return ()

    def _step(self, place: RowPlace | None, row: DecodedRow | None, start: int, stop: int, answer: Answer) -> int:
        """Process ``start`` and the following positions in the same row; return the next position.

        ``place`` holds ``start`` or lies behind it, None: no place does. ``row`` is the row of the place, None if
        damaged.
        """
        if place is None or place.first > start:
            # The row is missing: between two other rows, or beyond the readable rows.
            end = min(stop, start + SEARCH_AHEAD if place is None else place.first)
            self._on_damage(-start, f"segment {self._segment.path.name} lacks positions {start} to {end - 1}")
            answer.lacks(start, end)
            return end
        end = min(stop, place.stop)
        for run in () if row is None else row.runs_of(self._queue_id):
            if run.stop_position <= start:
                continue
            if start >= end:
                break
            upto = min(end, run.stop_position)
            assert row is not None
            start = answer.take(run, row.data, start, upto)
            if start < upto:
                return start
        answer.lacks(start, end)
        return end

    def _find(self, start: int) -> int:
        """Return the index of the place that holds ``start``, or of the queue's next place."""
        places = self._places
        place_index = bisect_right(places, start, key=lambda place: place.first)
        return place_index - 1 if place_index and places[place_index - 1].stop > start else place_index

    async def _search(
        self, connection: aiosqlite.Connection, index: SparseQueue, start: int, stop: int
    ) -> list[RowPlace]:
        """Find the rows of the queue from about ``start`` to about ``stop``."""
        last_lsn = self._segment.last_lsn
        stop = min(stop, index.stop_position)
        lsn, last = index.rows_of(start, stop, last_lsn)
        places: list[RowPlace] = []
        ordinal = 0
        # The last entry of a queue may have the rest of the segment behind it, so the loop ends where the request ends.
        while lsn <= last and not (places and places[-1].stop >= stop):
            span, summaries = await self._rows.summaries.block(
                self._segment.number, lsn, last_lsn, lambda span: self._summaries(connection, span)
            )
            for summary in summaries:
                positions = summary.of(self._queue_id)
                if positions is not None:
                    places.append(RowPlace(*positions, summary.lsn, summary.row_bytes, ordinal))
                ordinal += 1
            lsn = span.last + 1
        return places

    async def _summaries(self, connection: aiosqlite.Connection, span: LsnRange) -> tuple[Sequence[Summary], bool]:
        """Read the summaries of the rows with messages in a span; False if a row cannot be read."""
        whole = True
        try:
            rows = await connection.execute_fetchall(
                "SELECT lsn, queues, length(data) FROM log WHERE lsn BETWEEN ? AND ? AND messages > 0", span
            )
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            whole = False
            rows = await self._readable(connection, span, error)
        summaries: list[Summary] = []
        for lsn, queues, row_bytes in rows:
            self._decoded_bytes += ROW_OVERHEAD_BYTES + len(queues)
            if self._decoded_bytes > DECODED_AT_A_TIME:
                await self._give_way()
            try:
                summaries.append(summary_of(lsn, queues, row_bytes, self._rows.audiences))
            except (msgspec.MsgspecError, OverflowError) as error:
                whole = False
                self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} cannot be decoded: {error}")
        return summaries, whole

    async def _readable(
        self, connection: aiosqlite.Connection, span: LsnRange, error: sqlite3.DatabaseError
    ) -> list[sqlite3.Row]:
        """Read row by row around a broken page, so that the damage costs only the rows on that page."""
        self._on_damage(-span.first, f"segment {self._segment.path.name}, rows {span.first} to {span.last}: {error}")
        rows: list[sqlite3.Row] = []
        for lsn in range(span.first, span.last + 1):
            try:
                rows += await connection.execute_fetchall(
                    "SELECT lsn, queues, length(data) FROM log WHERE lsn = ? AND messages > 0", (lsn,)
                )
            except sqlite3.DatabaseError as damage:
                if not is_damage(damage):
                    raise
        return rows

    async def _index(self, connection: aiosqlite.Connection) -> SparseQueue | None:
        segment = self._segment
        if isinstance(segment, WritableSegment):
            return segment.index.queues.get(self._queue_id)
        key = (segment.number, self._queue_id)
        index = self._sparse.get(key)
        if index is None:
            rows = await connection.execute_fetchall(
                "SELECT first_position, stop_position, bytes, positions, lsns FROM sparse WHERE queue_id = ?",
                (self._queue_id,),
            )
            for row in rows:
                index = self._sparse[key] = sparse_queue(*row)
            if index is None:
                return None
            if len(self._sparse) > SPARSE_CACHED:
                self._sparse.popitem(last=False)
        else:
            self._sparse.move_to_end(key)
        return index

    async def _fetch_ahead(self, connection: aiosqlite.Connection, index: int, stop: int) -> None:
        """Put the row of a place into the cache, and with it the rows that the page needs next."""
        places = self._places
        place = places[index]
        last = place
        size = place.row_bytes
        for after in places[index + 1 :]:
            size += after.row_bytes
            if after.ordinal != last.ordinal + 1 or after.first >= stop or size > READ_AHEAD_BYTES:
                break
            last = after
        await self._fetch(connection, LsnRange(place.lsn, last.lsn))

    async def _fetch(self, connection: aiosqlite.Connection, span: LsnRange) -> None:
        """Put the rows with messages of a span into the cache, except damaged rows."""
        try:
            rows = await connection.execute_fetchall(
                "SELECT lsn, time_ms, messages, queues, meta_crc, data_crc, meta, data FROM log"
                " WHERE lsn BETWEEN ? AND ? AND messages > 0",
                span,
            )
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            if span.first == span.last:
                self._on_damage(span.first, f"row {span.first} of {self._segment.path.name} cannot be read: {error}")
                return
            # Backwards, for the reason below.
            for lsn in range(span.last, span.first - 1, -1):
                await self._fetch(connection, LsnRange(lsn, lsn))
            return
        # The first row last: the page needs it now, and takes a row that is not in the cache for a damaged row. Rows of
        # many queues can be more than the cache holds.
        for row in reversed(list(rows)):
            self._decoded_bytes += ROW_OVERHEAD_BYTES + len(row[6]) + len(row[7])
            if self._decoded_bytes > DECODED_AT_A_TIME:
                await self._give_way()
            self._keep(*row)

    async def _give_way(self) -> None:
        """Let other work of the loop have its turn."""
        self._decoded_bytes = 0
        await asyncio.sleep(0)

    def _keep(
        self,
        lsn: int,
        time_ms: int,
        messages: int,
        queues: bytes,
        meta_crc: int,
        data_crc: int,
        meta: bytes,
        data: bytes,
    ) -> None:
        if meta_checksum(lsn, time_ms, messages, queues, meta) != meta_crc or data_checksum(data) != data_crc:
            self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} is damaged: its checksum is wrong")
            return
        try:
            records = decode_records(meta)
        except msgspec.MsgspecError as error:
            self._on_damage(lsn, f"row {lsn} of {self._segment.path.name} cannot be decoded: {error}")
            return
        self._rows.put(lsn, DecodedRow(records, data, self._rows.audiences))


def is_damage(error: Exception) -> bool:
    """Return whether the bytes on disk are wrong, rather than a resource lacking for a moment."""
    if isinstance(error, SegmentFormatError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and ((code & 0xFF) in _DAMAGE or code in _DAMAGE_EXTENDED)
