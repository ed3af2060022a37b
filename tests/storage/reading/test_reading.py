"""Reading of segments: the connections, and the reader between turns of the loop."""

import asyncio
import gc
import sqlite3
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, cast

import aiosqlite
import pytest

from cmqd.core.limits import Limits
from cmqd.log.values import Durability
from cmqd.storage.loop_side.row_builder import RowBuilder
from cmqd.storage.reading import reading_connection
from cmqd.storage.reading.reading_connection import close_reading, open_reading
from cmqd.storage.reading.row_summaries import BLOCK_ROWS
from cmqd.storage.reading.segment_reader import DECODED_AT_A_TIME, ROW_OVERHEAD_BYTES, Answer, RowCache, SegmentReader
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.segments.segment import WritableSegment, create_segment
from cmqd_segment.rows import encode_records
from cmqd_segment.schema import SegmentFormatError, open_read_only
from support.storage.log_rig import NOW_MS, sent

PAGE = Limits().page_messages


async def segment_with(folder: Path, rows: int, messages: int = 1, size: int = 40) -> WritableSegment:
    """A segment with these messages of queue 7 in each row, at positions from 1 on."""
    segment = await create_segment(1, folder / "one.db", Durability.OS, NOW_MS)
    builder = RowBuilder()
    log_rows: list[LogRow] = []
    for lsn in range(1, rows + 1):
        record, bodies = sent(7, 1 + (lsn - 1) * messages, messages, size)
        builder.add([record], encode_records([record]), bodies, sum(map(len, bodies)), NOW_MS)
        row = builder.close()
        log_rows.append(LogRow(lsn, row.time_ms, row.messages, row.queues, row.meta, row.data))
    await segment.connection.run(segment.insert, log_rows)
    segment.committed(log_rows)
    return segment


class ConnectionWithoutThread:
    """Runs statements at once, so that the reader gives every turn of the loop."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self.statements: list[str] = []

    async def execute_fetchall(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        self.statements.append(statement)
        return self._raw.execute(statement, parameters).fetchall()


async def test_the_reader_gives_way_to_the_loop_while_it_decodes(tmp_path: Path) -> None:
    rows = 2000
    segment = await segment_with(tmp_path, rows)
    loop = asyncio.get_running_loop()
    turns = 0
    is_over = False

    def turn() -> None:
        nonlocal turns
        if not is_over:
            turns += 1
            loop.call_soon(turn)

    complaints: list[str] = []
    reader = SegmentReader(segment, 7, RowCache(1 << 22), OrderedDict(), lambda _, text: complaints.append(text))
    answer = Answer(1 << 22)
    with closing(open_read_only(segment.path, sealed=False)) as raw:
        loop.call_soon(turn)
        await reader.read(cast("aiosqlite.Connection", ConnectionWithoutThread(raw)), [(1, rows + 1)], answer)
        is_over = True

    assert sum(len(column[3]) for column in answer.columns) == rows
    assert (answer.missing, complaints) == ([], [])
    # A row is decoded twice: its queues in the search, and its records.
    assert turns >= 2 * rows * ROW_OVERHEAD_BYTES // DECODED_AT_A_TIME - 1
    await segment.connection.close()


@pytest.mark.parametrize("messages", [16, 64, 256])
async def test_a_page_in_order_takes_a_statement_for_its_rows(tmp_path: Path, messages: int) -> None:
    """Each statement is two switches of threads; a backlog is read page by page."""
    total = 16 * PAGE
    segment = await segment_with(tmp_path, total // messages, messages, 256)
    cache = RowCache(1 << 22)
    with closing(open_read_only(segment.path, sealed=False)) as raw:
        connection = ConnectionWithoutThread(raw)
        for first in range(1, total, PAGE):
            answer = Answer(512 * 1024)
            reader = SegmentReader(segment, 7, cache, OrderedDict(), lambda _, text: pytest.fail(text))
            await reader.read(cast("aiosqlite.Connection", connection), [(first, first + PAGE)], answer)
            assert sum(len(column[3]) for column in answer.columns) == PAGE

    fetched = [statement for statement in connection.statements if "meta" in statement]
    assert len(fetched) == total // PAGE
    assert len(connection.statements) - len(fetched) <= segment.last_lsn // BLOCK_ROWS + 1
    await segment.connection.close()


async def test_rows_with_a_small_share_of_a_queue_are_fetched_within_the_cache(tmp_path: Path) -> None:
    """Each row has 4 messages of queue 7 beside 60 KiB of other queues. With 256 rows in a statement the cache would
    drop the first rows unread, and the page would report their messages as missing.
    """
    rows, cache_bytes = 256, 4 << 20
    segment = await create_segment(1, tmp_path / "one.db", Durability.OS, NOW_MS)
    builder = RowBuilder()
    for lsn in range(1, rows + 1):
        parts = [sent(7, 1 + 4 * (lsn - 1), 4), sent(8, lsn, 1, 60 * 1024)]
        records, bodies = [record for record, _ in parts], [body for _, each in parts for body in each]
        builder.add(records, encode_records(records), bodies, sum(map(len, bodies)), NOW_MS)
        row = builder.close()
        log_rows = [LogRow(lsn, row.time_ms, row.messages, row.queues, row.meta, row.data)]
        await segment.connection.run(segment.insert, log_rows)
        segment.committed(log_rows)
    answer = Answer(1 << 20)
    reader = SegmentReader(segment, 7, RowCache(cache_bytes), OrderedDict(), lambda _, text: pytest.fail(text))
    with closing(open_read_only(segment.path, sealed=False)) as raw:
        connection = ConnectionWithoutThread(raw)
        await reader.read(cast("aiosqlite.Connection", connection), [(1, 4 * rows + 1)], answer)

    assert sum(len(column[3]) for column in answer.columns) == 4 * rows
    assert answer.missing == []
    fetched = [statement for statement in connection.statements if "meta" in statement]
    assert len(fetched) == rows // 8, "a statement takes 512 KiB, and no row is read twice"
    await segment.connection.close()


async def test_rows_beyond_the_cache_are_no_damaged_rows(tmp_path: Path) -> None:
    rows = 2000
    segment = await segment_with(tmp_path, rows)
    answer = Answer(1 << 20)
    reader = SegmentReader(segment, 7, RowCache(0), OrderedDict(), lambda _, text: pytest.fail(text))
    with closing(open_read_only(segment.path, sealed=False)) as raw:
        await reader.read(cast("aiosqlite.Connection", ConnectionWithoutThread(raw)), [(1, rows + 1)], answer)

    assert sum(len(column[3]) for column in answer.columns) == rows
    assert answer.missing == []
    await segment.connection.close()


async def test_rows_beyond_the_cache_are_no_damaged_rows_beside_a_damaged_page(tmp_path: Path) -> None:
    """After a failed statement each row is fetched by itself, and the row that the page needs first must stay."""
    rows = 750
    segment = await segment_with(tmp_path, rows)
    answer = Answer(1 << 20)
    reader = SegmentReader(segment, 7, RowCache(0), OrderedDict(), lambda _, text: pytest.fail(text))
    with closing(open_read_only(segment.path, sealed=False)) as raw:
        connection = ConnectionWithoutThread(raw)
        execute = connection.execute_fetchall

        async def fail_for_many(statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
            if "data_crc" in statement and parameters[0] < parameters[1]:
                error = sqlite3.DatabaseError("database disk image is malformed")
                error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise error
            return await execute(statement, parameters)

        connection.execute_fetchall = fail_for_many  # type: ignore[method-assign]
        await reader.read(cast("aiosqlite.Connection", connection), [(1, rows + 1)], answer)

    assert sum(len(column[3]) for column in answer.columns) == rows
    assert answer.missing == []
    await segment.connection.close()


async def test_a_segment_is_read_by_statements(tmp_path: Path) -> None:
    segment = await segment_with(tmp_path, 3)

    connection = await open_reading(segment.path, sealed=False)

    assert [tuple(row) for row in await connection.execute_fetchall("SELECT lsn FROM log")] == [(1,), (2,), (3,)]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await connection.execute_fetchall("DELETE FROM log")
    await connection.close()
    await segment.connection.close()


async def test_a_segment_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await open_reading(tmp_path / "missing.db", sealed=True)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("PRAGMA user_version=1")
    with pytest.raises(SegmentFormatError, match="not a cmqd segment"):
        await open_reading(tmp_path / "other.db", sealed=True)


async def test_an_opening_that_is_cancelled_is_waited_for_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await segment_with(tmp_path, 1)
    go_on = Event()
    opened: list[sqlite3.Connection] = []

    def open_slowly(path: Path, *, sealed: bool) -> sqlite3.Connection:
        assert go_on.wait(10)
        opened.append(open_read_only(path, sealed=sealed))
        return opened[0]

    monkeypatch.setattr(reading_connection, "open_read_only", open_slowly)
    opening = asyncio.create_task(open_reading(segment.path, sealed=False))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.sleep(0)
    assert not opening.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
    await segment.connection.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_closing_that_is_cancelled_in_any_turn_leaves_no_open_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    loop = asyncio.get_running_loop()
    closings: list[asyncio.Task[None]] = []

    def cancel_after(left: int) -> None:
        if left:
            loop.call_soon(cancel_after, left - 1)
        else:
            closings[0].cancel()

    class Segment(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            loop.call_soon_threadsafe(cancel_after, turns)

    def open_segment(path: Path, *, sealed: bool) -> sqlite3.Connection:
        return sqlite3.connect(path, check_same_thread=False, factory=Segment)

    unraisable: list[object] = []
    monkeypatch.setattr(reading_connection, "open_read_only", open_segment)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    connection = await open_reading(tmp_path / "one.db", sealed=False)
    closings.append(asyncio.create_task(close_reading(connection)))

    await asyncio.wait(closings)
    with pytest.raises(ValueError, match=r"closed|no active connection"):
        await connection.execute("SELECT 1")
    del connection
    closings.clear()
    gc.collect()

    assert unraisable == []
