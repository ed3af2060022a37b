"""A SQLite connection with a thread of its own."""

import asyncio
import sqlite3
from pathlib import Path
from threading import Event

import pytest

from cmqd.storage.segments.sqlite_thread import connect


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
    for _ in range(2):
        opening.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert not opening.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


async def test_a_closing_that_is_cancelled_is_waited_for(tmp_path: Path) -> None:
    go_on = Event()

    class SlowlyClosed(sqlite3.Connection):
        def close(self) -> None:
            assert go_on.wait(10)
            super().close()

    connection = await connect(
        lambda: sqlite3.connect(tmp_path / "one.db", check_same_thread=False, factory=SlowlyClosed)
    )
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    for _ in range(2):
        closing.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert not closing.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.raw.execute("SELECT 1")


async def test_what_the_opening_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await connect(lambda: sqlite3.connect(tmp_path / "missing" / "one.db"))


async def test_functions_run_in_order_and_the_closing_comes_last(tmp_path: Path) -> None:
    connection = await connect(lambda: sqlite3.connect(tmp_path / "one.db", check_same_thread=False))
    ran: list[int] = []
    running = [asyncio.create_task(connection.run(ran.append, number)) for number in range(20)]
    await asyncio.sleep(0)

    await connection.close()
    await connection.close()

    await asyncio.gather(*running)
    assert ran == list(range(20))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.raw.execute("SELECT 1")
    with pytest.raises(ValueError, match="closed"):
        await connection.run(ran.append, 20)


async def test_what_a_function_raises_is_raised_and_the_next_one_runs(tmp_path: Path) -> None:
    connection = await connect(lambda: sqlite3.connect(tmp_path / "one.db", check_same_thread=False))

    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await connection.run(connection.raw.execute, "SELECT * FROM missing")

    assert await connection.run(lambda: 7) == 7
    await connection.close()


async def test_a_function_whose_caller_was_cancelled_still_runs(tmp_path: Path) -> None:
    connection = await connect(lambda: sqlite3.connect(tmp_path / "one.db", check_same_thread=False))
    go_on = Event()
    ran: list[bool] = []

    def slowly() -> None:
        ran.append(go_on.wait(10))

    running = asyncio.create_task(connection.run(slowly))
    await asyncio.sleep(0)
    running.cancel()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert await connection.run(lambda: list(ran)) == [True]
    await connection.close()
