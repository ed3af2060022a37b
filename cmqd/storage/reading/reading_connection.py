"""A read-only connection to a segment, by aiosqlite.

aiosqlite makes each statement a hop to the thread of the connection and back. The reader of pages needs few statements,
because the decoded rows are cached; seals need whole functions in a single hop, and have ``sqlite_thread``.
"""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import aiosqlite

from cmqd.storage.segments.sqlite_thread import to_the_end
from cmqd_segment.schema import open_read_only

FETCHED_AT_A_TIME = 64
"""Rows per hop of a cursor. Pages fetch all rows of a statement in a hop, without a cursor."""


async def open_reading(path: Path, *, sealed: bool) -> aiosqlite.Connection:
    """Open a segment for reading, in a thread of the connection.

    A cancelled call still waits for the thread and closes the connection, which would otherwise stay open.

    Raises:
        sqlite3.Error, SegmentFormatError: the segment cannot be opened; the thread has ended.
    """
    refusals: list[BaseException] = []

    def open_segment() -> sqlite3.Connection:
        try:
            return open_read_only(path, sealed=sealed)
        except BaseException as refusal:
            # aiosqlite does not wait for its thread if this function raises, and the thread would answer to a loop that
            # may be closed by then. An empty database in memory can be closed like any other, and closing waits.
            refusals.append(refusal)
            return sqlite3.connect(":memory:", check_same_thread=False)

    connection = aiosqlite.Connection(open_segment, FETCHED_AT_A_TIME)
    try:
        await to_the_end(_open(connection))
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await connection.close()
        raise
    if refusals:
        await close_reading(connection)
        raise refusals[0]
    return connection


async def close_reading(connection: aiosqlite.Connection) -> None:
    """Close a connection and end its thread. A cancelled call still waits for both. Raises sqlite3.Error.

    The close is two hops. aiosqlite 0.22.0 takes a connection whose close is cancelled in the second for open, and no
    version waits for the thread then.
    """
    await to_the_end(connection.close())


async def _open(connection: aiosqlite.Connection) -> None:
    await connection
