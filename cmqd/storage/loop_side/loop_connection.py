"""The connection of the loop process to the lent segment. The commit thread alone uses it, and imports this module:
SQLite takes milliseconds to load, in which the loop works.

The connection is closed while a second connection is open: the last close would copy the WAL and remove the file, and
the next start would miss the WAL (``storage.writing.lending``). The storage process has a connection, but may have
died. So a *bystander*, a connection that only reads, is opened before the connection and closed behind it. A close that
had to open files could fail for want of a descriptor, and the connection would stay.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from cmqd.log.values import Durability
from cmqd.storage.loop_side.row_builder import ClosedRow
from cmqd.storage.segments.row_inserts import LogRow, RowInserts, connect_for_writing
from cmqd_segment.schema import open_read_only


class LoopConnection:
    """A writing connection to one segment at a time; see the module."""

    def __init__(self) -> None:
        self._raw: sqlite3.Connection | None = None
        self._bystander: sqlite3.Connection | None = None
        """Open as long as the connection."""
        self._inserts = RowInserts()

    @property
    def is_open(self) -> bool:
        """True between ``open`` and ``close``."""
        return self._raw is not None

    def open(self, path: Path, durability: Durability) -> None:
        """Open a segment. Raises sqlite3.Error."""
        bystander = open_read_only(path, sealed=False)
        try:
            # The first read opens the WAL. Read to the end: an open read would hold up the seal.
            bystander.execute("SELECT 1 FROM log LIMIT 1").fetchall()
            self._raw = connect_for_writing(path, durability)
        except BaseException:
            bystander.close()
            raise
        self._bystander = bystander

    def insert(self, first_lsn: int, closed_rows: Sequence[ClosedRow]) -> int:
        """Make rows durable, and return the time of the transaction in us. Raises sqlite3.Error."""
        assert self._raw is not None
        rows = [
            LogRow(lsn, row.time_ms, row.messages, row.queues, row.meta, row.data)
            for lsn, row in enumerate(closed_rows, first_lsn)
        ]
        return self._inserts.insert(self._raw, rows)

    def close(self) -> None:
        """Close the segment, if one is open. Raises sqlite3.Error."""
        if self._raw is None or self._bystander is None:
            return
        # Before anything can fail: a read transaction would hold up the seal.
        self._inserts.end()
        self._raw.close()
        self._bystander.close()
        self._raw = self._bystander = None
