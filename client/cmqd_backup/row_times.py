"""Times of rows by the wall clock: the log has broker time, and a record for each change of the offset between the two.

Records are decoded only in rows that may change the offset: a scan of 100,000 rows takes a third of a second.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cmqd_backup.refusals import Refused
from cmqd_segment.checkpoint_file import CheckpointError, read_ends
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import ClockOffset
from cmqd_segment.rows import decode_records, meta_checksum
from cmqd_segment.schema import SegmentFormatError, open_read_only

_ROWS: Final = 512
_MAY_HAVE_OFFSET: Final = re.compile(rb"[\x92-\x9f]\x0b")
"""Head of a short array and tag of a ``ClockOffset``. Other bytes can look alike."""


class RowTime(NamedTuple):
    """A row, and the clock at it."""

    lsn: int
    time_ms: int
    """Broker time: the latest up to the row."""
    offset_ms: int
    """Wall clock less broker time, in force at the row."""

    @property
    def wall_ms(self) -> int:
        """The time by the wall clock."""
        return self.time_ms + self.offset_ms


def checkpoint_time(path: Path) -> RowTime:
    """Return the clock at the header of a checkpoint. Raises Refused, OSError."""
    try:
        header, _ = read_ends(path)
    except (CheckpointError, NewerFormatError) as error:
        raise Refused(f"{path} cannot be used: {error}") from error
    return RowTime(header.lsn, header.time_ms, header.clock_offset_ms)


def row_times(paths: Iterable[Path], start: RowTime, upto: int) -> Iterator[RowTime]:
    """Yield the rows above ``start`` and up to an LSN, from sealed segments in the order of their rows.

    Raises:
        Refused: a row is damaged, or of a newer version.
    """
    lsn, time_ms, offset_ms = start
    for path in paths:
        try:
            with contextlib.closing(open_read_only(path, sealed=True)) as raw:
                while rows := raw.execute(
                    "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log WHERE lsn > ? AND lsn <= ?"
                    " ORDER BY lsn LIMIT ?",
                    (lsn, upto, _ROWS),
                ).fetchall():
                    for lsn, row_ms, messages, queues, meta_crc, meta in rows:
                        if meta_checksum(lsn, row_ms, messages, queues, meta) != meta_crc:
                            raise Refused(f"row {lsn} of {path} does not match its checksum: it is damaged")
                        time_ms = max(time_ms, row_ms)
                        if _MAY_HAVE_OFFSET.search(meta):
                            for record in decode_records(meta):
                                if isinstance(record, ClockOffset):
                                    offset_ms = record.offset_ms
                                    if record.stepped:
                                        time_ms = row_ms
                        yield RowTime(lsn, time_ms, offset_ms)
        except (sqlite3.Error, SegmentFormatError, msgspec.MsgspecError, NewerFormatError) as error:
            raise Refused(f"{path} cannot be read: {error}") from error
