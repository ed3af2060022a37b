"""A full disk loses nothing, refuses sends while it lasts, and is over by itself."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cmqd.storage.datadir import Disk
from cmqd.storage.errors import StorageFailed
from cmqd.storage.processlog import StorageProcessLog
from support.log_rig import InProcess, LogRig, ProcessPlace, settings_for

GIBIBYTE = 1 << 30


class FakeDisk(Disk):
    """A disk whose free space a test decides."""

    def __init__(self, folder: Path, ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes)
        self.free = GIBIBYTE

    def free_bytes(self) -> int:
        return self.free


class Broker:
    """The storage service on the loop of the test, over a fake disk."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.process = InProcess(FakeDisk)
        self.log = StorageProcessLog(settings_for(folder, state_interval_ms=20, **settings), self.process.start)
        self.rig = LogRig(self.log)

    @property
    def disk(self) -> FakeDisk:
        disk = self.process.service.disk
        assert isinstance(disk, FakeDisk)
        return disk

    async def limit_pages(self, more: int) -> None:
        """Let the active segment grow by so many pages, as a disk of that size would; SQLite itself says it is full."""
        connection = self.process.service.writer.active.connection

        def limit() -> None:
            (pages,) = connection.raw.execute("PRAGMA page_count").fetchone()
            connection.raw.execute(f"PRAGMA max_page_count={pages + more}")

        await connection.run(limit)

    @property
    def refused(self) -> bool:
        return bool(self.rig.states) and self.rig.states[-1].sends_refused


StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[StartBroker]:
    brokers: list[Broker] = []

    async def start_one(**settings: object) -> Broker:
        broker = Broker(folder, **settings)
        brokers.append(broker)
        await broker.rig.open()
        return broker

    yield start_one
    for broker in brokers:
        await broker.log.kill()
        if broker.process.task is not None:
            await broker.process.task


async def test_a_batch_that_meets_a_full_disk_is_kept_and_becomes_durable_when_there_is_room(
    start: StartBroker, folder: Path
) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    assert (folder / "ballast").exists()
    await broker.limit_pages(0)
    broker.disk.free = 0

    rig.send(1, 1, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: broker.refused)

    assert "disk is full" in rig.states[-1].reason
    assert not (folder / "ballast").exists(), "the ballast is given back, so that deletes have room"
    assert rig.log.durable_lsn == 1
    assert rig.fatal == []

    await broker.limit_pages(1000)
    await rig.until(lambda: rig.log.durable_lsn == 2)
    assert broker.refused, "there is room for the batch, not yet for more"

    broker.disk.free = GIBIBYTE
    await rig.until(lambda: not broker.refused)
    assert (folder / "ballast").exists()
    assert len((await rig.page(1, [0, 51]))[0]) == 51


async def test_on_a_full_disk_pages_can_still_be_read(start: StartBroker) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 10)
    await broker.limit_pages(0)
    rig.send(1, 10, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: broker.refused)

    assert len((await rig.page(1, [0, 10]))[0]) == 10

    await broker.limit_pages(1000)
    await rig.until(lambda: rig.log.durable_lsn == 2)


@pytest.mark.system
async def test_a_broker_that_dies_on_a_full_disk_comes_back_with_what_was_durable(
    start: StartBroker, folder: Path, tmp_path: Path
) -> None:
    broker = await start()
    await broker.rig.store(1, 0, 10)
    await broker.limit_pages(0)
    broker.rig.send(1, 10, 50, 1000)
    broker.rig.log.flush()
    await broker.rig.until(lambda: broker.refused)
    shutil.copytree(folder, tmp_path / "as the crash left it")

    again = LogRig(ProcessPlace(tmp_path / "as the crash left it").log())
    await again.open()

    assert [lsn for lsn, _, _ in again.rows] == [1]
    await again.log.close()


async def test_sends_are_refused_below_the_mark_and_taken_again_above_it(start: StartBroker) -> None:
    broker = await start(reserve_bytes=10_000_000)
    rig = broker.rig
    await rig.store(1, 0, 1)

    broker.disk.free = 5_000_000
    await rig.until(lambda: broker.refused)
    assert "5000000 bytes free" in rig.states[-1].reason
    await rig.store(1, 1, 1)

    broker.disk.free = GIBIBYTE
    await rig.until(lambda: not broker.refused)


async def test_the_mark_grows_with_what_sealing_and_deletes_will_need(start: StartBroker) -> None:
    broker = await start(reserve_bytes=0)
    space = broker.process.service.space
    empty = space.mark_bytes()

    await broker.rig.store(1, 0, 100, 1000)

    assert space.mark_bytes() >= empty + 100 * 1000


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

    monkeypatch.setattr(broker.process.service.writer.active, "_insert", fail)

    rig.send(1, 1, 1)
    rig.log.flush()
    await rig.until(lambda: rig.fatal)

    assert attempts == 1
    assert "SQLITE_IOERR_FSYNC" in str(rig.fatal[0])
    assert rig.log.durable_lsn == 1
    with pytest.raises(StorageFailed):
        rig.send(1, 2, 1)
    assert broker.process.task is not None
    assert await asyncio.wait_for(broker.process.task, 10) == 1


async def test_a_batch_is_not_reported_before_its_commit_returned(start: StartBroker) -> None:
    broker = await start()
    rig = broker.rig
    writer = broker.process.service.writer
    raw_insert = writer.active._insert  # pyright: ignore[reportPrivateUsage]
    may_return = asyncio.Event()
    loop = asyncio.get_running_loop()
    committed = asyncio.Event()

    def insert_and_wait(rows: object) -> int:
        size = raw_insert(rows)  # pyright: ignore[reportArgumentType]
        loop.call_soon_threadsafe(committed.set)
        asyncio.run_coroutine_threadsafe(may_return.wait(), loop).result(10)
        return size

    writer.active._insert = insert_and_wait  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
    rig.send(1, 0, 1)
    rig.log.flush()
    await committed.wait()
    rig.send(1, 1, 1)
    rig.log.flush()
    await rig.page(1, [0, 0])

    assert rig.durable == []
    may_return.set()
    await rig.until(lambda: rig.durable[-1:] == [2])


async def test_commits_are_fsynced_unless_durability_says_otherwise(start: StartBroker) -> None:
    broker = await start()
    for segment in (broker.process.service.writer.active, broker.process.service.writer.prepared):
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

    def write(path: Path, data: bytes) -> None:
        if refuse:
            raise OSError(28, "No space left on device")
        with path.open("ab") as file:
            file.write(data)

    monkeypatch.setattr("cmqd.storage.checkpoints.append", write)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rig.checkpoint(), 0.3)
    refuse = False

    assert await rig.checkpoint() == 1
    assert rig.fatal == []


async def test_a_full_disk_keeps_a_broker_from_starting_only_if_the_ballast_does_not_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers must be able to empty a full disk, so a restart must not need much of it."""
    folder.mkdir()
    (folder / "ballast").write_bytes(bytes(10))

    def free_without_ballast(disk: FakeDisk) -> int:
        return 0 if disk.has_ballast else 2_000_000

    def free_hardly(_: FakeDisk) -> int:
        return 1000

    monkeypatch.setattr(FakeDisk, "free_bytes", free_without_ballast)
    broker = Broker(folder)

    await broker.rig.open()
    await broker.log.kill()
    assert broker.process.task is not None
    await broker.process.task

    monkeypatch.setattr(FakeDisk, "free_bytes", free_hardly)
    broker = Broker(folder.with_name("other"))
    with pytest.raises(StorageFailed, match="is full: 1000 bytes free"):
        await broker.rig.open()
    assert broker.process.task is not None
    await broker.process.task
