"""A SQLite connection with a thread of its own."""

import asyncio
import sqlite3
from pathlib import Path
from threading import Event

import pytest

from cmqd.storage.sqlite_thread import connect


async def test_an_opening_that_is_cancelled_is_waited_for_and_closed(tmp_path: Path) -> None:
    """Its thread would otherwise answer to a loop that may be closed by then."""
    go_on = Event()
    made: list[sqlite3.Connection] = []

    def open_slowly() -> sqlite3.Connection:
        assert go_on.wait(10)
        made.append(sqlite3.connect(tmp_path / "one.db", check_same_thread=False))
        return made[0]

    opening = asyncio.create_task(connect(open_slowly))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.sleep(0)
    assert not opening.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


async def test_what_the_opening_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await connect(lambda: sqlite3.connect(tmp_path / "missing" / "one.db"))
