"""The rows of a source, read from its sealed segments, each compared with its checksums."""

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cmqd_backup.refusals import Refused
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import QueueSummary, data_checksum, decode_queues, decode_records, meta_checksum
from cmqd_segment.schema import SegmentFormatError, open_read_only

_ROWS: Final = 256


class SourceRow(NamedTuple):
    """A row."""

    lsn: int
    time_ms: int
    records: list[AnyRecord]
    data: bytes
    """Bodies; empty if they were not asked for."""


def read_rows(paths: Iterable[Path], above: int) -> Iterator[SourceRow]:
    """Yield all rows above an LSN, without bodies. Raises Refused."""
    for path in paths:
        with _reading(path) as raw:
            lsn = above
            while rows := raw.execute(
                "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log WHERE lsn > ? ORDER BY lsn LIMIT ?",
                (lsn, _ROWS),
            ).fetchall():
                for lsn, time_ms, messages, queues, meta_crc, meta in rows:
                    _check(path, lsn, meta_checksum(lsn, time_ms, messages, queues, meta) == meta_crc)
                    yield SourceRow(lsn, time_ms, decode_records(meta), b"")


def read_rows_with(paths: Iterable[Path], is_wanted: Callable[[QueueSummary], bool]) -> Iterator[SourceRow]:
    """Yield the rows with messages that are wanted, with bodies. Raises Refused."""
    for path in paths:
        with _reading(path) as raw:
            lsn = 0
            while rows := raw.execute(
                "SELECT lsn, queues FROM log WHERE lsn > ? ORDER BY lsn LIMIT ?", (lsn, _ROWS)
            ).fetchall():
                for lsn, summary in rows:
                    if any(map(is_wanted, decode_queues(summary))):
                        yield _whole_row(raw, path, lsn)


def _whole_row(raw: sqlite3.Connection, path: Path, lsn: int) -> SourceRow:
    time_ms, messages, queues, meta_crc, data_crc, meta, data = raw.execute(
        "SELECT time_ms, messages, queues, meta_crc, data_crc, meta, data FROM log WHERE lsn = ?", (lsn,)
    ).fetchone()
    _check(path, lsn, meta_checksum(lsn, time_ms, messages, queues, meta) == meta_crc)
    _check(path, lsn, data_checksum(data) == data_crc)
    return SourceRow(lsn, time_ms, decode_records(meta), data)


def _check(path: Path, lsn: int, is_right: bool) -> None:
    if not is_right:
        raise Refused(f"row {lsn} of {path} does not match its checksum: it is damaged")


@contextlib.contextmanager
def _reading(path: Path) -> Generator[sqlite3.Connection]:
    try:
        with contextlib.closing(open_read_only(path, sealed=True)) as raw:
            yield raw
    except (sqlite3.Error, SegmentFormatError, msgspec.MsgspecError, NewerFormatError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
