"""Writes that fail or are late: no row is reported durable before its commit returned."""

import asyncio
import sqlite3
from io import BufferedWriter
from threading import Event

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.storage.writing.checkpoint_writer import write_in_steps
from support.storage.full_disk import StartBroker
from support.storage.log_rig import checkpoint_parts


async def test_an_io_error_is_never_retried_and_ends_everything(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    attempts = 0

    def fail(*_: object) -> int:
        nonlocal attempts
        attempts += 1
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    monkeypatch.setattr(broker.process.service.log.writer.active, "insert", fail)

    rig.send(1, 1, 1)
    rig.log.flush()
    await rig.until(lambda: rig.fatal)

    assert attempts == 1
    assert "SQLITE_IOERR_FSYNC" in str(rig.fatal[0])
    assert rig.log.durable_lsn == 1
    with pytest.raises(LogFailed):
        rig.send(1, 2, 1)
    assert broker.process.task is not None
    assert await broker.process.task == 1


async def test_a_batch_is_not_reported_before_its_commit_returned(start: StartBroker) -> None:
    broker = await start()
    rig = broker.rig
    writer = broker.process.service.log.writer
    raw_insert = writer.active.insert
    may_return = Event()
    loop = asyncio.get_running_loop()
    committed = asyncio.Event()

    def insert_and_wait(rows: object) -> object:
        done = raw_insert(rows)  # pyright: ignore[reportArgumentType]
        loop.call_soon_threadsafe(committed.set)
        may_return.wait()
        return done

    writer.active.insert = insert_and_wait  # pyright: ignore[reportAttributeAccessIssue]
    try:
        rig.send(1, 0, 1)
        rig.log.flush()
        await committed.wait()
        rig.send(1, 1, 1)
        rig.log.flush()
        await rig.page(1, [0, 0])

        assert rig.durable == []
    finally:
        # After a failure too: the end of the broker waits for its commit.
        may_return.set()
    await rig.until(lambda: rig.durable[-1:] == [2])


async def test_commits_are_fsynced_unless_durability_says_otherwise(start: StartBroker) -> None:
    broker = await start()
    for segment in (broker.process.service.log.writer.active, broker.process.service.log.writer.prepared):
        assert segment is not None
        (level,) = await segment.connection.run(segment.connection.raw.execute("PRAGMA synchronous").fetchone)
        assert level == 2
        (checkpoint,) = await segment.connection.run(
            segment.connection.raw.execute("PRAGMA wal_autocheckpoint").fetchone
        )
        assert checkpoint == 0


async def test_a_checkpoint_that_does_not_fit_is_abandoned_and_the_next_one_is_not(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    refuse = True
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(file: BufferedWriter, data: bytes, *, hurried: bool) -> None:
        if refuse:
            loop.call_soon_threadsafe(refused.set)
            raise OSError(28, "No space left on device")
        write_in_steps(file, data, hurried=hurried)

    monkeypatch.setattr("cmqd.storage.writing.checkpoint_writer.write_in_steps", write)
    for part in checkpoint_parts(1, 1):
        rig.log.write_checkpoint(part)
    await refused.wait()
    await broker.process.service.log.checkpoints.drained()
    assert rig.checkpoints_done == []
    refuse = False

    assert await rig.checkpoint() == 1
    assert rig.fatal == []
