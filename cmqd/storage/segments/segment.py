"""A segment open for writing: one file and one connection, which one thread uses at a time.

The commit thread inserts and counts rows while the segment is active; the thread of the connection has the steps before
and after (``writer``). The loop reads the counts at any time.

The storage process opens the file and its ``-shm`` only through SQLite. Closing a plain file handle on either would
drop SQLite's POSIX locks, and a reader from outside could then truncate the WAL. The ``-wal`` carries no locks:
``wal_gauge`` reads it through a descriptor of its own.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic

from cmqd.log.values import Durability, SegmentReport, pack_ranges
from cmqd.storage.segments.row_inserts import LogRow, RowInserts, connect_for_writing
from cmqd.storage.segments.sqlite_thread import ThreadConnection, connect
from cmqd.storage.segments.wal_gauge import WalGauge, used_bytes
from cmqd_segment.manifest import SegmentEntry, SegmentState
from cmqd_segment.rows import decode_queues
from cmqd_segment.schema import PAGE_BYTES, Origin, open_read_only, write_origin
from cmqd_segment.sparse import SparseIndex

LOADED_TOGETHER = 64
"""Rows of another process that are counted under one lock."""


class WritableSegment:
    """A segment with a writing connection; see the module. Ranges and counts cover durable rows."""

    def __init__(
        self,
        number: int,
        path: Path,
        connection: ThreadConnection,
        state: SegmentState = SegmentState.PREPARED,
        page_bytes: int = PAGE_BYTES,
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
        self.opened_at = monotonic()
        """Time of its first row, by the monotonic clock."""
        self._counting = Lock()
        """Held while rows are counted by the commit thread, and while the counts are read together by the loop."""
        self.immutable = False
        """Wholly in the main file and without a writer: opened without locks from here on."""
        self.page_bytes = page_bytes
        """Page size of a segment that was made in this life of the process."""
        self.filled_bytes = 0
        """Size of the WAL by zeros that were filled in ahead (``wal_filling``)."""
        self.commits = 0
        """Commits since the segment became active."""
        self._gauge = WalGauge(f"{path}-wal")
        self._inserts = RowInserts()

    @property
    def wal_bytes(self) -> int:
        """Bytes of the frames in the WAL as of now. The file may be longer, because it was filled ahead."""
        return 0 if self.immutable else self._gauge.used_bytes()

    def committed(self, rows: Sequence[LogRow]) -> int:
        """Take note of rows that are durable; return the bytes of their meta, data and queues.

        A message to thousands of queues has a longer list of queues than data.
        """
        size = 0
        with self._counting:
            self.commits += 1
            if not self.rows:
                self.first_lsn = rows[0].lsn
                self.first_ms = rows[0].time_ms
                self.opened_at = monotonic()
            for row in rows:
                row_bytes = len(row.meta) + len(row.data)
                size += row_bytes + len(row.queues)
                self._count(row.lsn, row.time_ms, row.messages, row.queues, row_bytes)
        return size

    def insert(self, rows: Sequence[LogRow]) -> int:
        """Make rows durable in one transaction, in the thread of the caller: the commit thread, for as long as the
        segment is active. ``committed`` counts the rows. Return the time of the transaction with its fsync, in us.

        Raises sqlite3.Error; the segment is unchanged then.
        """
        return self._inserts.insert(self.connection.raw, rows)

    def end_commits(self) -> None:
        """End the query that spans the commits, in any thread that may use the connection. A commit begins another."""
        self._inserts.end()

    def wal_emptied(self) -> None:
        """Take note that the WAL was copied into the main file and is empty."""
        self._gauge.close()

    def _count(self, lsn: int, time_ms: int, messages: int, queues: bytes, size: int) -> None:
        self.last_lsn = lsn
        if time_ms > self.last_ms:
            self.last_ms = time_ms
        self.rows += 1
        self.messages += messages
        self.row_bytes += size
        self.index.add_row(lsn, decode_queues(queues) if messages else (), size)

    def drop_zeros(self) -> None:
        """Give the zeros behind the frames of the WAL back to the disk. Raises OSError.

        No commit may be under way. Not synced: after a crash the zeros may be there again, and are zeros still.
        """
        wal = f"{self.path}-wal"
        os.truncate(wal, used_bytes(wal))
        self.filled_bytes = 0

    async def load(self) -> int:
        """Count the rows that another process has committed since the last call, or before this process; return the
        last LSN. Bodies are not read.

        SQLite shows a row to other connections once the row is synced, so each of these rows is durable.
        """
        return await self.connection.run(self._load)

    def _load(self) -> int:
        rows = self.connection.raw.execute(
            "SELECT lsn, time_ms, messages, queues, length(meta) + length(data) FROM log WHERE lsn > ? ORDER BY lsn",
            (self.last_lsn,),
        )
        while some := rows.fetchmany(LOADED_TOGETHER):
            # In pieces: the loop waits for the lock, and for the interpreter.
            with self._counting:
                # As the filling of WALs needs the number: a row is a commit, as nearly all small commits are.
                self.commits += len(some)
                for lsn, time_ms, messages, queues, size in some:
                    if not self.rows:
                        self.first_lsn = lsn
                        self.first_ms = time_ms
                        self.opened_at = monotonic()
                    self._count(lsn, time_ms, messages, queues, size)
        return self.last_lsn

    @property
    def sealed_growth(self) -> int | None:
        """Growth of the main file when the WAL is copied, without the tables of the seal; None if no commit tells it.

        Less after an attempt to copy that met a full disk, because the file keeps its length.
        """
        self._gauge.used_bytes()
        database_bytes = self._gauge.database_bytes
        if not database_bytes:
            return None
        try:
            return max(0, database_bytes - self.path.stat().st_size)
        except FileNotFoundError:
            return database_bytes

    @property
    def bytes_on_disk(self) -> int:
        """Size of the main file and of the frames in the WAL."""
        try:
            return self.path.stat().st_size + self.wal_bytes
        except FileNotFoundError:
            return self.wal_bytes

    def positions_of(self, queue_id: int) -> tuple[int, int] | None:
        """Return the half-open range of positions of a queue in this segment, None if there are none."""
        with self._counting:
            queue = self.index.queues.get(queue_id)
            return None if queue is None else (queue.first_position, queue.stop_position)

    async def close(self) -> None:
        """Close the connection, which copies the WAL into the main file if it is the last. Raises sqlite3.Error."""
        self.end_commits()
        await self.connection.close()
        self._gauge.close()

    async def close_uncopied(self) -> None:
        """Close a segment that will be deleted. Raises sqlite3.Error.

        The last writer to close a database copies its WAL into the database. While a read-only connection is open, the
        writer is not the last connection, and a read-only connection may not copy.
        """

        def close() -> None:
            self.end_commits()
            with closing(open_read_only(self.path, sealed=False)) as bystander:
                bystander.execute("SELECT 1 FROM log LIMIT 1").fetchone()
                self.connection.raw.close()

        await self.connection.run(close)
        await self.close()
        self.immutable = True

    def report(self) -> SegmentReport:
        """Describe the segment to the loop process."""
        with self._counting:
            queues = sorted(self.index.queues.items())
            return SegmentReport(
                number=self.number,
                first_lsn=self.first_lsn,
                last_lsn=self.last_lsn,
                first_ms=self.first_ms,
                last_ms=self.last_ms,
                messages=self.messages,
                bytes=self.bytes_on_disk,
                is_sealed=False,
                ranges=pack_ranges((queue_id, queue.first_position, queue.stop_position) for queue_id, queue in queues),
            )

    def entry(self) -> SegmentEntry:
        """Make the entry of the manifest."""
        with self._counting:
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


async def open_connection(
    path: Path, durability: Durability, *, create: bool, page_bytes: int = PAGE_BYTES
) -> ThreadConnection:
    """Open the only writing connection of a segment, with the settings that the format demands.

    ``page_bytes`` is the page size of a segment that is created; it stays.
    """

    return await connect(partial(connect_for_writing, path, durability, create=create, page_bytes=page_bytes))


async def create_segment(
    number: int,
    path: Path,
    durability: Durability,
    now_ms: int,
    page_bytes: int = PAGE_BYTES,
    origin: Origin = Origin(),  # noqa: B008  a tuple
) -> WritableSegment:
    """Create an empty segment, durable with its tables; the WAL is empty. Raises sqlite3.Error, OSError."""
    connection = await open_connection(path, Durability.FSYNC, create=True, page_bytes=page_bytes)

    def prepare() -> None:
        raw = connection.raw
        raw.executemany("INSERT INTO segment VALUES (?, ?)", [("number", number), ("created_ms", now_ms)])
        write_origin(raw, origin)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if durability is not Durability.FSYNC:
            raw.execute("PRAGMA synchronous=OFF")

    try:
        await connection.run(prepare)
    except BaseException:
        await connection.close()
        raise
    return WritableSegment(number, path, connection, page_bytes=page_bytes)
