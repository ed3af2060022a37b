"""Used bytes of a WAL, by its frames."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cmqd.storage.segments.wal_gauge import WalGauge, used_bytes
from support.storage.wals import end_of_frames

MEBIBYTE = 1024 * 1024
COMMIT_SIZES = (100, 100, 100, 50_000, 400_000, 100, 100, 9_000, 9_000, 2_000_000, 100)
"""Bytes of a row: equal commits in a row, longer commits and shorter commits, up to the end of the fill and beyond."""


@pytest.fixture(params=[0, MEBIBYTE], ids=["as written", "filled ahead"])
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as raw:
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("PRAGMA wal_autocheckpoint=0")
        raw.execute("CREATE TABLE log(lsn INTEGER PRIMARY KEY, data BLOB)")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.truncate(tmp_path / "log.db-wal", request.param)
        yield raw


def test_each_commit_is_counted_to_its_last_frame(database: sqlite3.Connection, tmp_path: Path) -> None:
    wal = tmp_path / "log.db-wal"
    with closing(WalGauge(str(wal))) as gauge:
        assert gauge.used_bytes() == 0
        for size in COMMIT_SIZES:
            database.execute("INSERT INTO log(data) VALUES (?)", (b"x" * size,))

            assert gauge.used_bytes() == end_of_frames(wal) == used_bytes(str(wal))
            assert gauge.used_bytes() == end_of_frames(wal), "a second look finds no more"
            ((pages,),) = database.execute("PRAGMA page_count").fetchall()
            assert gauge.database_bytes == 4096 * pages


def test_a_wal_that_is_not_there_has_no_bytes(tmp_path: Path) -> None:
    assert used_bytes(str(tmp_path / "none")) == 0
    (tmp_path / "empty").touch()
    assert used_bytes(str(tmp_path / "empty")) == 0


def test_a_descriptor_on_the_wal_leaves_the_locks_of_a_connection_alone(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    """A reader in another process would otherwise be able to empty the WAL under the writer."""
    database.execute("INSERT INTO log(data) VALUES (x'01')")
    database.execute("BEGIN")
    database.execute("SELECT * FROM log").fetchall()
    locks = Path("/proc/locks").read_text()
    held = [line for line in locks.splitlines() if f" {os.getpid()} " in line]
    assert held

    assert used_bytes(str(tmp_path / "log.db-wal")) > 0

    still_held = [line for line in Path("/proc/locks").read_text().splitlines() if f" {os.getpid()} " in line]
    assert [line.split(":", 1)[1] for line in still_held] == [line.split(":", 1)[1] for line in held]
