"""A new segment is in WAL mode, or is none."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cmqd_segment.schema import create_tables


class Failing(sqlite3.Connection):
    """A connection whose change to WAL mode fails as SQLite reports it: by the mode that stays."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute("PRAGMA journal_mode" if sql == "PRAGMA journal_mode=WAL" else sql, *parameters)


def test_a_segment_that_stays_without_a_wal_is_an_error(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "1.db", isolation_level=None, factory=Failing)

    with pytest.raises(sqlite3.OperationalError, match="could not be brought into WAL mode") as failed:
        create_tables(connection)

    assert failed.value.sqlite_errorname == "SQLITE_IOERR"
    connection.close()
