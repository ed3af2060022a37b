"""Rows of a segment: short statements, checked records, and summaries of the messages in a row.

No statement stays open between two pages of rows: an open statement on a live segment would delay its seal.
"""

import logging
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import describe
from cmqd_log.errors import DataLossError, FolderError, NewerFolderError
from cmqd_segment.manifest import SegmentEntry
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import QueueSummary, decode_queues, decode_records, meta_checksum

METAS_A_STATEMENT = 256
SUMMARIES_A_STATEMENT = 500

_log = logging.getLogger("cmqd_log")


class MetaPage(NamedTuple):
    """Rows of a statement."""

    rows: list[tuple[int, int, bytes]]
    """LSN, time and undecoded records, without rows that are given up as lost."""
    last_lsn: int
    """Of the last row that was read."""
    is_full: bool
    """More rows may follow."""


def metas_page(
    folder: Folder,
    raw: sqlite3.Connection,
    extent: SegmentEntry,
    above: int,
    upto: int,
    limit: int = METAS_A_STATEMENT,
    *,
    is_of_stores: bool = False,
) -> MetaPage:
    """Return the first rows ``above < lsn <= upto``; of those that store messages, if ``is_of_stores``.

    Raises:
        FolderError: a row has a wrong checksum.
    """
    read = raw.execute(
        "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log"
        f" WHERE lsn > ? AND lsn <= ?{' AND messages > 0' * is_of_stores} ORDER BY lsn LIMIT ?",
        (above, upto, limit),
    ).fetchall()
    rows: list[tuple[int, int, bytes]] = []
    for lsn, time_ms, messages, queues, meta_crc, meta in read:
        if meta_checksum(lsn, time_ms, messages, queues, meta) == meta_crc:
            rows.append((lsn, time_ms, meta))
        elif not is_given_up(folder, lsn):
            raise FolderError(f"row {lsn} of {extent.file} is damaged: its records do not match their checksum")
    return MetaPage(rows, read[-1][0] if read else above, len(read) == limit)


def metas(
    folder: Folder, raw: sqlite3.Connection, extent: SegmentEntry, above: int, upto: int
) -> Iterator[tuple[int, int, bytes]]:
    """Yield LSN, time and undecoded records of rows ``above < lsn <= upto``, without rows that are given up as lost.

    Raises:
        FolderError: a row has a wrong checksum.
    """
    above, upto = max(above, extent.first_lsn - 1), min(upto, extent.last_lsn)
    is_full = True
    while is_full:
        rows, above, is_full = metas_page(folder, raw, extent, above, upto)
        yield from rows


def remaining(
    folder: Folder, raw: sqlite3.Connection, extent: SegmentEntry, above: int, upto: int, *, fail_on_loss: bool
) -> Iterator[tuple[int, int, list[AnyRecord]]]:
    """Yield LSN, time and records of rows ``above < lsn <= upto``; rows that are given up as lost are a warning.

    Raises:
        FolderError: a row is damaged.
        DataLossError: a row is given up as lost, and ``fail_on_loss`` is set.
    """

    def given_up(first: int, last: int) -> None:
        text = f"the loss of {describe([(first, last)])} of {extent.file} was accepted, so states may be wrong"
        if fail_on_loss:
            raise DataLossError(f"{text}; failOnDataLoss=false reads the remaining rows")
        _log.warning(text)

    expected = max(above + 1, extent.first_lsn)
    for lsn, time_ms, meta in metas(folder, raw, extent, above, upto):
        if lsn > expected:
            given_up(expected, lsn - 1)
        expected = lsn + 1
        yield lsn, time_ms, decoded(extent, lsn, meta)
    last = min(extent.last_lsn, upto)
    if expected <= last:
        given_up(expected, last)


def is_given_up(folder: Folder, lsn: int) -> bool:
    """True if the operator accepted the loss of the row; the damaged row may still be in its file."""
    return any(loss.first_lsn <= lsn <= loss.last_lsn for loss in folder.manifest().losses)


def summaries(
    raw: sqlite3.Connection, extent: SegmentEntry, above: int, upto: int
) -> Iterator[tuple[int, list[QueueSummary]]]:
    """Yield LSN and contents of rows ``above < lsn <= upto`` by their column ``queues``; records are not read.

    The column has no checksum of its own, and the checksum of the row needs the whole row: damage in the column is
    noticed here only if the column cannot be decoded.

    Raises:
        FolderError: the column of a row cannot be decoded.
    """
    above, upto = max(above, extent.first_lsn - 1), min(upto, extent.last_lsn)
    # The first statement reads one row, because most readers stop at the first row; later statements read more.
    limit = 1
    while rows := raw.execute(
        "SELECT lsn, queues FROM log WHERE lsn > ? AND lsn <= ? ORDER BY lsn LIMIT ?", (above, upto, limit)
    ).fetchall():
        for lsn, queues in rows:
            try:
                yield lsn, decode_queues(queues)
            except (NewerFormatError, msgspec.MsgspecError) as error:
                raise unreadable(extent, lsn, error) from error
        above = rows[-1][0]
        limit = min(2 * limit, SUMMARIES_A_STATEMENT)


def decoded(extent: SegmentEntry, lsn: int, meta: bytes) -> list[AnyRecord]:
    """Return the records of a row.

    Raises:
        FolderError: a record cannot be decoded.
    """
    try:
        return decode_records(meta)
    except (NewerFormatError, msgspec.MsgspecError) as error:
        raise unreadable(extent, lsn, error) from error


def unreadable(extent: SegmentEntry, lsn: int, error: Exception) -> FolderError:
    """Return the error for a row that cannot be decoded: a newer version wrote it, or it is damaged."""
    if isinstance(error, NewerFormatError):
        return NewerFolderError(f"row {lsn} of {extent.file} cannot be read: {error}")
    return FolderError(f"row {lsn} of {extent.file} cannot be decoded: {error}")
