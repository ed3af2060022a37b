"""Rows of a commit in the file: small rows, large rows, and a batch that fails or is cut off by a crash."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cmqd.log.values import Durability
from cmqd.storage.segments.row_inserts import (
    LARGE_DATA_BYTES,
    ROWS_PER_STATEMENT,
    LogRow,
    RowInserts,
    connect_for_writing,
)
from cmqd_segment.rows import data_checksum, meta_checksum
from cmqd_segment.schema import LARGEST_PAGE_BYTES, PAGE_BYTES, open_read_only

LARGE = bytes(range(256)) * (LARGE_DATA_BYTES // 256)


def row(lsn: int, data: bytes) -> LogRow:
    return LogRow(lsn, 7, 1, b"queues", b"meta %d" % lsn, data)


def batch(first_lsn: int, kind: str) -> list[LogRow]:
    bodies = {
        "small": [b"one", b"", b"three"],
        "many": [b"data"] * (2 * ROWS_PER_STATEMENT + 1),
        "large": [b"small", LARGE + b"1", b"", LARGE + b"2"],
    }[kind]
    return [row(lsn, data) for lsn, data in enumerate(bodies, first_lsn)]


@pytest.fixture(params=[PAGE_BYTES, LARGEST_PAGE_BYTES])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, Path]]:
    """A writing connection to a new segment with pages of each size, and its path."""
    path = tmp_path / "00000001.db"
    with closing(connect_for_writing(path, Durability.OS, create=True, page_bytes=request.param)) as connection:
        connection.executemany("INSERT INTO segment VALUES (?, ?)", [("number", 1), ("created_ms", 0)])
        yield connection, path


def stored(path: Path) -> list[LogRow]:
    """The rows in the file, for any reader, with sound checksums."""
    found: list[LogRow] = []
    with closing(open_read_only(path, sealed=False)) as reader:
        for lsn, time_ms, messages, queues, meta_crc, data_crc, meta, data in reader.execute("SELECT * FROM log"):
            assert meta_checksum(lsn, time_ms, messages, queues, meta) == meta_crc
            assert data_checksum(data) == data_crc
            found.append(LogRow(lsn, time_ms, messages, queues, meta, data))
    return found


@pytest.mark.parametrize("kind", ["small", "many", "large"])
def test_a_batch_is_in_the_file_as_it_was_given(segment: tuple[sqlite3.Connection, Path], kind: str) -> None:
    connection, path = segment
    rows = batch(1, kind)
    views = [each._replace(meta=memoryview(each.meta), data=memoryview(each.data)) for each in rows]

    RowInserts().insert(connection, views)

    assert stored(path) == rows
    assert not connection.in_transaction


@pytest.mark.parametrize("kind", ["small", "many", "large"])
def test_a_batch_that_fails_leaves_nothing_and_the_next_is_stored(
    segment: tuple[sqlite3.Connection, Path], kind: str
) -> None:
    connection, path = segment
    inserts = RowInserts()
    first, failing = batch(1, "small"), batch(4, kind)
    inserts.insert(connection, first)

    with pytest.raises(sqlite3.IntegrityError):
        # The last row has a number that is taken.
        inserts.insert(connection, [*failing[:-1], failing[-1]._replace(lsn=1)])

    assert stored(path) == first
    assert not connection.in_transaction
    inserts.insert(connection, failing)
    assert stored(path) == first + failing


class Crashing:
    """A connection whose process ends when the data of the second large row is about to be written."""

    def __init__(self, connection: sqlite3.Connection, path: Path, copies: Path) -> None:
        self._connection, self._path, self._copies = connection, path, copies
        self._large = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def blobopen(self, *arguments: Any) -> sqlite3.Blob:
        self._large += (
            len(self._connection.execute("SELECT data FROM log WHERE lsn = ?", arguments[2:]).fetchone()[0]) > 9
        )
        if self._large == 2:
            # A process that is killed leaves the files as they are now.
            for suffix in ("", "-wal"):
                shutil.copy(f"{self._path}{suffix}", self._copies)
            raise KeyboardInterrupt
        return self._connection.blobopen(*arguments)


def test_a_crash_between_a_large_row_and_its_data_leaves_the_batches_before(
    segment: tuple[sqlite3.Connection, Path], tmp_path: Path
) -> None:
    connection, path = segment
    inserts = RowInserts()
    first = batch(1, "large")
    inserts.insert(connection, first)
    copies = tmp_path / "crashed"
    copies.mkdir()
    # A small cache writes the pages of the unfinished batch into the WAL.
    connection.execute("PRAGMA cache_size=1")
    crashing: Any = Crashing(connection, path, copies)

    with pytest.raises(KeyboardInterrupt):
        inserts.insert(crashing, batch(5, "large"))

    assert (copies / f"{path.name}-wal").stat().st_size > 0
    assert stored(copies / path.name) == first
    assert stored(path) == first
    assert not connection.in_transaction
