"""Inserts rows through a writing connection: the commits of the process that has the connection.

While commits come in, the connection has an unfinished query, and the read transaction of the query spans the commits.
SQLite otherwise begins and ends a read transaction for each commit, with four calls of ``fcntl`` and new looks at page
1. The query delays no checkpoint of the WAL: the seal makes the first checkpoint, and ends the query before.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from cmqd.log.values import Durability
from cmqd_segment.rows import data_checksum, meta_checksum
from cmqd_segment.schema import PAGE_BYTES, check_format, create_tables

ROWS_PER_STATEMENT = 64
"""Most rows of a commit with a single INSERT, a transaction by itself. A larger commit is a transaction of several."""

_ONE_ROW = "(?,?,?,?,?,?,?,?)"
_UNFINISHED_QUERY = "SELECT key FROM segment"
"""Has at least two rows in every segment; the second is never fetched."""
# Without "OR ROLLBACK" SQLite keeps the pages that a statement of several rows changes, to undo the statement alone:
# large pages in a temporary file for each commit.
_INSERTS = tuple(
    f"INSERT OR ROLLBACK INTO log VALUES {','.join([_ONE_ROW] * count)}" for count in range(ROWS_PER_STATEMENT + 1)
)
_INSERT_LARGE = "INSERT INTO log VALUES (?,?,?,?,?,?,?,zeroblob(?))"
LARGE_DATA_BYTES = 256 * 1024
"""Size of a row's data from which on the data is written straight into the pages of the row. SQLite and its module copy
a parameter twice before that."""


class LogRow(NamedTuple):
    """A row on its way to disk."""

    lsn: int
    time_ms: int
    messages: int
    queues: bytes
    meta: bytes | memoryview
    data: bytes | memoryview


class RowInserts:
    """Inserts rows through a connection, in one thread at a time; see the module."""

    def __init__(self) -> None:
        self._unfinished: sqlite3.Cursor | None = None
        """The query that spans the commits."""

    def insert(self, connection: sqlite3.Connection, rows: Sequence[LogRow]) -> int:
        """Make rows durable in one transaction. Return the time of the transaction with its fsync, in us.

        Raises sqlite3.Error; the segment is unchanged then.
        """
        if self._unfinished is None:
            self._unfinished = connection.execute(_UNFINISHED_QUERY)
        begun_s = perf_counter()
        if any(len(row.data) >= LARGE_DATA_BYTES for row in rows):
            with _transaction(connection):
                for row in rows:
                    _insert_large(connection, row)
        elif len(rows) <= ROWS_PER_STATEMENT:
            connection.execute(_INSERTS[len(rows)], _parameters(rows))
        else:
            with _transaction(connection):
                for start in range(0, len(rows), ROWS_PER_STATEMENT):
                    part = rows[start : start + ROWS_PER_STATEMENT]
                    connection.execute(_INSERTS[len(part)], _parameters(part))
        return int((perf_counter() - begun_s) * 1_000_000)

    def end(self) -> None:
        """End the query that spans the commits. A further commit begins a new query."""
        # Taken first: a step of a seal may end in the segment's thread while the loop closes the segment.
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished.close()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has ended the transaction after some errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _insert_large(connection: sqlite3.Connection, row: LogRow) -> None:
    *others, _ = _parameters((row,))
    connection.execute(_INSERT_LARGE, (*others, len(row.data)))
    with connection.blobopen("log", "data", row.lsn) as blob:
        blob.write(row.data)


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


def connect_for_writing(
    path: Path, durability: Durability, *, create: bool = False, page_bytes: int = PAGE_BYTES
) -> sqlite3.Connection:
    """Open a connection that may write, with the settings that the format demands. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        if create:
            create_tables(connection, page_bytes)
        # No checkpoint of the WAL while rows come in: a checkpoint would cost 20 ms of latency and write every page
        # twice.
        connection.execute("PRAGMA wal_autocheckpoint=0")
        # A limit would cut the zeros off that a WAL is filled with ahead.
        connection.execute("PRAGMA journal_size_limit=-1")
        connection.execute(f"PRAGMA synchronous={'FULL' if durability is Durability.FSYNC else 'OFF'}")
        check_format(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def is_disk_full(error: BaseException) -> bool:
    """Return whether the error is lack of space, which may end. All other failures of a write are final."""
    # Lack of room for the WAL-index has an I/O error code of its own. The index is never synced, so a retry is safe.
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
