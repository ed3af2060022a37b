"""A segment open for writing: one file, one connection, one thread.

The storage process opens the file, its ``-wal`` and its ``-shm`` only through SQLite. Closing a plain file handle on
any of the three would drop SQLite's POSIX locks, and a reader from outside could then truncate the WAL.
"""

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import NamedTuple

from cmqd.log.values import Durability, SegmentReport, pack_ranges
from cmqd.storage.sqlite_thread import ThreadConnection, connect
from cmqd_segment.manifest import SegmentEntry, SegmentState
from cmqd_segment.rows import data_checksum, decode_queues, meta_checksum
from cmqd_segment.schema import check_format, create_tables, open_read_only
from cmqd_segment.sparse import SparseIndex

ROWS_PER_STATEMENT = 64
"""Rows of a commit that fit into one INSERT, which is its own transaction. A larger commit is a transaction of
several."""

_ONE_ROW = "(?,?,?,?,?,?,?,?)"
_INSERTS = tuple(f"INSERT INTO log VALUES {','.join([_ONE_ROW] * count)}" for count in range(ROWS_PER_STATEMENT + 1))


class LogRow(NamedTuple):
    """A row on its way to disk."""

    lsn: int
    time_ms: int
    messages: int
    queues: bytes
    meta: bytes | memoryview
    data: bytes | memoryview


class Committed(NamedTuple):
    """The result of a commit."""

    wal_bytes: int
    """Size of the WAL after it."""
    fsync_us: int
    """Time of the transaction with its fsync."""


class WritableSegment:
    """A segment with a writing connection; see the module. Ranges and counts cover durable rows."""

    def __init__(
        self, number: int, path: Path, connection: ThreadConnection, state: SegmentState = SegmentState.PREPARED
    ) -> None:
        self.number = number
        self.path = path
        self.connection = connection
        self.state = state
        self.index = SparseIndex()
        self.first_lsn = 0
        self.last_lsn = 0
        self.first_ms = 0
        self.last_ms = 0
        self.rows = 0
        self.messages = 0
        self.row_bytes = 0
        """Meta and data of its rows."""
        self.wal_bytes = 0
        self.opened_at = monotonic()
        """Time of its first row, by the monotonic clock."""
        self.immutable = False
        """Wholly in the main file and without a writer: opened without locks from here on."""
        self._wal = f"{path}-wal"

    def commit(self, rows: Sequence[LogRow], done: "asyncio.Future[Committed]") -> None:
        """Make rows durable in one transaction.

        ``done`` gets the size of the WAL, for ``committed``, and the time of the commit, or sqlite3.Error: then the
        segment is unchanged.
        """
        self.connection.submit(done, partial(self._insert, rows))

    def committed(self, rows: Sequence[LogRow], wal_bytes: int) -> None:
        """Take note of rows that are durable."""
        self.wal_bytes = wal_bytes
        if not self.rows:
            self.first_lsn = rows[0].lsn
            self.first_ms = rows[0].time_ms
            self.opened_at = monotonic()
        for row in rows:
            self._count(row.lsn, row.time_ms, row.messages, row.queues, len(row.meta) + len(row.data))

    def _insert(self, rows: Sequence[LogRow]) -> Committed:
        connection = self.connection.raw
        begun_s = perf_counter()
        if len(rows) <= ROWS_PER_STATEMENT:
            connection.execute(_INSERTS[len(rows)], _parameters(rows))
        else:
            connection.execute("BEGIN")
            try:
                for start in range(0, len(rows), ROWS_PER_STATEMENT):
                    part = rows[start : start + ROWS_PER_STATEMENT]
                    connection.execute(_INSERTS[len(part)], _parameters(part))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        fsync_us = int((perf_counter() - begun_s) * 1_000_000)
        return Committed(os.stat(self._wal).st_size, fsync_us)

    def _count(self, lsn: int, time_ms: int, messages: int, queues: bytes, size: int) -> None:
        self.last_lsn = lsn
        if time_ms > self.last_ms:
            self.last_ms = time_ms
        self.rows += 1
        self.messages += messages
        self.row_bytes += size
        self.index.add_row(lsn, decode_queues(queues) if messages else (), size)

    async def load(self) -> None:
        """Take stock of the rows of a segment that was left unsealed. Bodies are not read."""
        for lsn, time_ms, messages, queues, size in await self.connection.run(self._stock):
            if not self.rows:
                self.first_lsn = lsn
                self.first_ms = time_ms
            self._count(lsn, time_ms, messages, queues, size)
        self.wal_bytes = await self.connection.run(self._wal_size)

    def _stock(self) -> list[tuple[int, int, int, bytes, int]]:
        return self.connection.raw.execute(
            "SELECT lsn, time_ms, messages, queues, length(meta) + length(data) FROM log ORDER BY lsn"
        ).fetchall()

    def _wal_size(self) -> int:
        return os.stat(self._wal).st_size if os.path.exists(self._wal) else 0

    @property
    def bytes_on_disk(self) -> int:
        """Size of the main file and the WAL."""
        try:
            return self.path.stat().st_size + self.wal_bytes
        except FileNotFoundError:
            return self.wal_bytes

    def positions_of(self, queue_id: int) -> tuple[int, int] | None:
        """Return the half-open range of positions of a queue in this segment, None if there are none."""
        queue = self.index.queues.get(queue_id)
        return None if queue is None else (queue.first_position, queue.stop_position)

    async def close_uncopied(self) -> None:
        """Close a segment that will be deleted. Raises sqlite3.Error.

        The last writer to close a database copies its WAL into the database. While a read-only connection is open, the
        writer is not the last connection, and a read-only connection may not copy.
        """

        def close() -> None:
            with closing(open_read_only(self.path, sealed=False)) as bystander:
                bystander.execute("SELECT 1 FROM log LIMIT 1").fetchone()
                self.connection.raw.close()

        await self.connection.run(close)
        await self.connection.close()
        self.immutable = True

    def report(self) -> SegmentReport:
        """Describe the segment to the loop process."""
        queues = sorted(self.index.queues.items())
        return SegmentReport(
            number=self.number,
            first_lsn=self.first_lsn,
            last_lsn=self.last_lsn,
            messages=self.messages,
            bytes=self.bytes_on_disk,
            last_ms=self.last_ms,
            ranges=pack_ranges((queue_id, queue.first_position, queue.stop_position) for queue_id, queue in queues),
        )

    def entry(self) -> SegmentEntry:
        """Make the entry of the manifest."""
        return SegmentEntry(
            number=self.number,
            state=self.state,
            first_lsn=self.first_lsn,
            last_lsn=self.last_lsn,
            first_ms=self.first_ms,
            last_ms=self.last_ms,
            rows=self.rows,
            messages=self.messages,
            bytes=self.bytes_on_disk,
        )


def _parameters(rows: Sequence[LogRow]) -> list[object]:
    parameters: list[object] = []
    for lsn, time_ms, messages, queues, meta, data in rows:
        parameters += (
            lsn,
            time_ms,
            messages,
            queues,
            meta_checksum(lsn, time_ms, messages, queues, meta),
            data_checksum(data),
            meta,
            data,
        )
    return parameters


async def open_connection(path: Path, durability: Durability, *, create: bool) -> ThreadConnection:
    """Open the only writing connection of a segment, with the settings that the format demands."""

    def open_database() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
        try:
            if create:
                create_tables(connection)
            # No checkpoint of the WAL while rows come in: a checkpoint would cost 20 ms of latency and write every page
            # twice.
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA synchronous={'FULL' if durability is Durability.FSYNC else 'OFF'}")
            check_format(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection

    return await connect(open_database)


async def create_segment(number: int, path: Path, durability: Durability, now_ms: int) -> WritableSegment:
    """Create an empty segment, durable with its tables; the WAL is empty. Raises sqlite3.Error, OSError."""
    connection = await open_connection(path, Durability.FSYNC, create=True)

    def prepare() -> None:
        raw = connection.raw
        raw.executemany("INSERT INTO segment VALUES (?, ?)", [("number", number), ("created_ms", now_ms)])
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if durability is not Durability.FSYNC:
            raw.execute("PRAGMA synchronous=OFF")

    try:
        await connection.run(prepare)
    except BaseException:
        await connection.close()
        raise
    return WritableSegment(number, path, connection)
