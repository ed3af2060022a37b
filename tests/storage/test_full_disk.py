"""A full disk loses nothing, refuses sends while it lasts, and is over by itself."""

import asyncio
import contextlib
import io
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.log.errors import LogFailed
from cmqd.log.values import Durability
from cmqd.storage.data_folder import Disk, Reserve
from cmqd.storage.process_log import StorageProcessLog
from cmqd_segment.manifest import SegmentState
from cmqd_segment.schema import open_read_only
from support.eventually import eventually
from support.log_rig import NOW_MS, InProcess, LogRig, ProcessPlace, checkpoint_parts, deleted, settings_for

GIBIBYTE = 1 << 30


class FakeDisk(Disk):
    """A disk whose free space a test decides."""

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes, start_ballast_bytes)
        self.free = GIBIBYTE

    def free_bytes(self) -> int:
        return self.free


class FullAfterStart(FakeDisk):
    """A disk whose last free byte the start of the broker took, before anything was sealed."""

    def take_ballast(self) -> bool:
        self.free = 0
        return super().take_ballast()


class SmallDisk(Disk):
    """A disk of a few MiB with nothing on it but the data folder. It notes how full it was at worst."""

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes, start_ballast_bytes)
        self.folder = folder
        self.size = GIBIBYTE
        self.least = GIBIBYTE

    def free_bytes(self) -> int:
        used = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                used += path.stat().st_blocks * 512
        free = self.size - used
        self.least = min(self.least, free)
        return free


class Broker:
    """The storage service on the loop of the test, over a fake disk."""

    def __init__(self, folder: Path, disk: Callable[[Path, int, int], Disk] = FakeDisk, **settings: object) -> None:
        self.process = InProcess(disk)
        self.log = StorageProcessLog(settings_for(folder, state_interval_ms=5, **settings), self.process.start)
        self.rig = LogRig(self.log)

    @property
    def disk(self) -> FakeDisk:
        disk = self.process.service.log.disk
        assert isinstance(disk, FakeDisk)
        return disk

    async def limit_pages(self, more: int) -> None:
        """Let the active segment grow by so many pages, as a disk of that size would; SQLite itself says it is full."""
        connection = self.process.service.log.writer.active.connection

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

    async def start_one(disk: Callable[[Path, int, int], Disk] = FakeDisk, **settings: object) -> Broker:
        broker = Broker(folder, disk, **settings)
        brokers.append(broker)
        await broker.rig.open()
        return broker

    yield start_one
    for broker in brokers:
        await broker.log.kill()
        if broker.process.task is not None:
            await broker.process.task


async def test_room_is_said_to_be_short_before_sends_are_refused(start: StartBroker) -> None:
    broker = await start()
    mark = broker.process.service.log.space.mark_bytes()

    broker.disk.free = mark + mark // 8
    await broker.rig.until(lambda: bool(broker.rig.states) and broker.rig.states[-1].is_short)
    assert not broker.refused

    broker.disk.free = mark // 2
    await broker.rig.until(lambda: broker.refused)
    assert broker.rig.states[-1].is_short

    broker.disk.free = GIBIBYTE
    await broker.rig.until(lambda: not broker.rig.states[-1].is_short)
    assert not broker.refused


async def test_a_batch_that_meets_a_full_disk_is_kept_and_becomes_durable_when_there_is_room(
    start: StartBroker, folder: Path
) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    assert (folder / "ballast").exists()
    await broker.limit_pages(0)
    broker.disk.free = 0

    await rig.until(lambda: broker.refused)
    assert "0 bytes free" in rig.states[-1].reason

    rig.send(1, 1, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: "disk is full" in rig.states[-1].reason)

    assert broker.refused
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
    broker.disk.free = 0
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
    broker.disk.free = 0
    broker.rig.send(1, 10, 50, 1000)
    broker.rig.log.flush()
    await broker.rig.until(lambda: broker.refused)
    shutil.copytree(folder, tmp_path / "as the crash left it")

    again = LogRig(ProcessPlace(tmp_path / "as the crash left it").log())
    await again.open()

    assert [lsn for lsn, _, _ in again.rows] == [1]
    await again.log.close()


async def test_sends_are_refused_below_the_mark_and_taken_again_above_it(start: StartBroker) -> None:
    broker = await start(min_free_bytes=10_000_000)
    rig = broker.rig
    await rig.store(1, 0, 1)

    broker.disk.free = 5_000_000
    await rig.until(lambda: broker.refused)
    assert "5000000 bytes free" in rig.states[-1].reason
    await rig.store(1, 1, 1)

    broker.disk.free = GIBIBYTE
    await rig.until(lambda: not broker.refused)


async def test_a_fast_writer_is_stopped_at_the_mark_between_two_ticks(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(SmallDisk, min_free_bytes=4 << 20, durability=Durability.OS)
    rig = broker.rig
    service = broker.process.service
    # The tick that is under way is the last one.
    service.log.settings = structs.replace(service.log.settings, state_interval_ms=3_600_000)
    ticked = asyncio.Event()
    monkeypatch.setattr(service.log.writer, "tick", ticked.set)
    await ticked.wait()
    disk = service.log.disk
    assert isinstance(disk, SmallDisk)
    disk.size = GIBIBYTE - disk.free_bytes() + (24 << 20)
    service.log.space.look()

    position = 0
    while not broker.refused and position < 300:
        await rig.store(1, position, 1, 100_000)
        position += 1

    assert service.log.space.mark_bytes() - disk.free_bytes() < 4 << 20


async def test_the_mark_grows_with_what_sealing_and_deletes_will_need(start: StartBroker) -> None:
    broker = await start(min_free_bytes=0)
    space = broker.process.service.log.space
    empty = space.mark_bytes()

    await broker.rig.store(1, 0, 100, 1000)

    assert space.mark_bytes() >= empty + 100 * 1000


async def test_consumers_that_delete_one_by_one_empty_a_nearly_full_disk(start: StartBroker) -> None:
    """Each of their commits takes two pages of WAL, which would fill the disk long before the segment's usual end."""
    broker = await start(SmallDisk, min_free_bytes=4 << 20, durability=Durability.OS)
    rig = broker.rig
    service = broker.process.service
    disk = service.log.disk
    assert isinstance(disk, SmallDisk)
    await rig.store(1, 0, 2000, 1000)
    disk.size = GIBIBYTE - disk.free_bytes() + (8 << 20)
    await rig.until(lambda: broker.refused)
    disk.least = GIBIBYTE

    written = 0
    for position in range(2000):
        active, before = service.log.writer.active, service.log.writer.active.wal_bytes
        rig.log.append([deleted(1, position, 1)], (), NOW_MS)
        await rig.commit()
        if service.log.writer.active is active:
            written += active.wal_bytes - before
        else:
            # The next delete waits for the seal: how much WAL the deletes write meanwhile would depend on the machine.
            await service.log._rolled()  # pyright: ignore[reportPrivateUsage]
            service.log.sealer.seal_held()
            await service.log.sealer.drained()
        if position % 16 == 0:
            disk.free_bytes()

    assert written > 7 << 20
    assert disk.least > 2 << 20
    assert 3 <= service.log.catalog.next_number < 20, "neither one large segment nor one for every commit"
    await rig.log.seal_now()
    assert disk.free_bytes() > 4 << 20


async def test_segments_do_not_end_early_while_a_seal_is_held_up(start: StartBroker, folder: Path) -> None:
    """Each would cost a file and a thread and give nothing back."""
    broker = await start(SmallDisk, min_free_bytes=4 << 20, durability=Durability.OS)
    rig = broker.rig
    await rig.store(1, 0, 1)
    reader = open_read_only(folder / "segments" / "00000001.db", sealed=False)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        disk = broker.process.service.log.disk
        assert isinstance(disk, SmallDisk)
        disk.size = GIBIBYTE - disk.free_bytes() + (5 << 20)
        await rig.until(lambda: broker.refused)
        for position in range(40):
            await rig.store(1, 1 + position, 100, 1000)

        def numbers() -> list[int]:
            return [entry.number for entry in broker.process.service.log.catalog.segments()]

        await rig.until(lambda: len(numbers()) >= 3)
        for position in range(40):
            await rig.store(1, 5_000 + position, 100, 1000)
        assert numbers() == [1, 2, 3]
    finally:
        reader.close()


async def test_a_full_disk_gets_the_wal_of_the_active_segment_back(start: StartBroker) -> None:
    broker = await start(min_free_bytes=0)
    rig = broker.rig
    for position in range(300):
        await rig.store(1, position, 1)
    await broker.limit_pages(0)
    broker.disk.free = 4 << 20  # the ballast
    first = broker.process.service.log.writer.active

    for position in range(300, 320):
        rig.send(1, position, 1, 10_000)
    rig.log.flush()
    await rig.commit()

    assert broker.process.service.log.writer.active is not first
    assert len((await rig.page(1, [0, 320]))[0]) == 320


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

    monkeypatch.setattr(broker.process.service.log.writer.active, "_insert", fail)

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
    raw_insert = writer.active._insert  # pyright: ignore[reportPrivateUsage]
    may_return = asyncio.Event()
    loop = asyncio.get_running_loop()
    committed = asyncio.Event()

    def insert_and_wait(rows: object) -> int:
        size = raw_insert(rows)  # pyright: ignore[reportArgumentType]
        loop.call_soon_threadsafe(committed.set)
        asyncio.run_coroutine_threadsafe(may_return.wait(), loop).result()
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

    def write(path: Path, data: bytes) -> None:
        if refuse:
            loop.call_soon_threadsafe(refused.set)
            raise OSError(28, "No space left on device")
        with path.open("ab") as file:
            file.write(data)

    monkeypatch.setattr("cmqd.storage.checkpoint_writer.append", write)
    for part in checkpoint_parts(1, 1):
        rig.log.write_checkpoint(part)
    await refused.wait()
    await broker.process.service.log.checkpoints.drained()
    assert rig.checkpoints_done == []
    refuse = False

    assert await rig.checkpoint() == 1
    assert rig.fatal == []


class FullDisk(FakeDisk):
    """A disk on which a stranger has taken every byte but those of the reserves."""

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes, start_ballast_bytes)
        self._taken = self.missing_ballast_bytes
        self.ballast = FullReserve(self, self.ballast)
        self.start_ballast = FullReserve(self, self.start_ballast)

    def free_bytes(self) -> int:
        # Half a MiB of what is given back goes into new segments and WAL-indexes.
        return max(0, self.missing_ballast_bytes - self._taken - (512 << 10))


class FullReserve(Reserve):
    """Takes no more than the full disk has."""

    def __init__(self, disk: FullDisk, reserve: Reserve) -> None:
        super().__init__(reserve.path, reserve.size)
        self._disk = disk

    def take(self, size: int | None = None) -> bool:
        size = self.size if size is None else size
        if size - (self.size - self.missing_bytes) > self._disk.free_bytes():
            self.release()
            return False
        return super().take(size)


async def crashed(start: StartBroker, folder: Path, **reserves: int) -> None:
    """Leave a folder as kill -9 does, with a row in it."""
    broker = await start(**reserves)
    await broker.rig.store(1, 0, 10)
    copy = folder.with_name("as the crash left it")
    shutil.copytree(folder, copy)
    await broker.log.kill()
    assert broker.process.task is not None
    await broker.process.task
    shutil.rmtree(folder)
    copy.rename(folder)


async def test_a_start_uses_its_own_reserve_and_leaves_the_ballast_for_deletes(
    start: StartBroker, folder: Path
) -> None:
    reserves = {"ballast_bytes": 4 << 20, "start_ballast_bytes": 8 << 20}
    await crashed(start, folder, **reserves)

    broker = await start(FullDisk, **reserves)

    await broker.rig.until(lambda: broker.refused)
    assert "is full" in broker.rig.states[-1].reason
    assert 1 << 20 <= (folder / "ballast-start").stat().st_size < 8 << 20, "another crash needs some of it again"
    assert [lsn for lsn, _, _ in broker.rig.rows] == [1]
    broker.rig.log.append([deleted(1, 0, 10)], (), NOW_MS)
    await broker.rig.commit()


async def test_a_start_takes_the_ballast_too_when_its_own_reserve_is_gone(start: StartBroker, folder: Path) -> None:
    reserves = {"ballast_bytes": 4 << 20, "start_ballast_bytes": 8 << 20}
    await crashed(start, folder, **reserves)
    (folder / "ballast-start").unlink()

    broker = await start(FullDisk, **reserves)

    await broker.rig.until(lambda: broker.refused)
    assert not (folder / "ballast").exists()


async def test_sends_stay_refused_until_there_is_room_for_the_reserves_too(start: StartBroker) -> None:
    """Else they would be taken and refused in turns: the ballast is given back, counts as room, and is taken again."""
    ballast = 32 << 20
    broker = await start(ballast_bytes=ballast, start_ballast_bytes=0)
    rig = broker.rig
    await rig.store(1, 0, 1)
    space = broker.process.service.log.space
    broker.disk.free = 0
    space.found_no_room()
    mark = space.mark_bytes()

    broker.disk.free = mark + ballast // 2
    space.look()
    assert space.short

    broker.disk.free = 2 * mark + ballast
    space.look()
    assert not space.short


async def test_a_disk_without_room_for_a_wal_index_is_not_taken_for_damage(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepting that loss would put a whole segment aside."""
    await crashed(start, folder)

    def full(*_arguments: object, **_named: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    monkeypatch.setattr("cmqd.storage.inspection.open_read_only", full)

    with pytest.raises(LogFailed, match="the disk failed"):
        await start(accept_loss=True)


async def test_a_segment_too_large_for_the_room_left_holds_up_no_other_seal_and_can_be_dropped(
    start: StartBroker, folder: Path
) -> None:
    broker = await start(min_free_bytes=0)
    rig = broker.rig
    service = broker.process.service
    for position in range(40):
        await rig.store(1, position, 1, 60_000)
    large = service.log.writer.active
    broker.disk.free = (1 << 20) + (512 << 10)  # less than the large one, enough for a small one
    service.log.space.found_no_room()

    service.log.writer.tick()
    await rig.until(lambda: rig.checkpoints_wanted)
    await service.log._rolled()  # pyright: ignore[reportPrivateUsage]
    assert service.log.writer.active is not large, "its successor is small, so that seals give back more than they take"
    rig.log.append([deleted(1, 0, 40)], (), NOW_MS)
    await rig.commit()
    await service.log.writer.roll()
    await eventually(lambda: large.number + 1 in service.log.catalog.sealed)
    assert service.log.catalog.open[large.number].state is SegmentState.RETIRED

    await rig.checkpoint()
    await rig.checkpoint()
    assert await rig.log.drop_segments([large.number], 0) == [large.number]
    assert not (folder / "segments" / "00000001.db-wal").exists()


async def test_a_segment_left_unsealed_by_a_crash_can_be_dropped_before_it_is_sealed(
    start: StartBroker, folder: Path
) -> None:
    """On a full disk it cannot be sealed, and consuming must make room."""
    await crashed(start, folder)
    # With room the sealer would begin with the segment at the start, and a segment that is being sealed stays.
    rig = (await start(FullAfterStart, min_free_bytes=0)).rig

    (left,) = rig.log.closed_segments()
    assert (left.number, left.last_lsn, left.messages) == (1, 1, 10)
    rig.log.append([deleted(1, 0, 10)], (), NOW_MS)
    await rig.commit()
    await rig.checkpoint()
    await rig.checkpoint()

    assert await rig.log.drop_segments([1], 2) == [1]
    assert not (folder / "segments" / "00000001.db").exists()


class FullStream(io.TextIOBase):
    """A log file on the full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


async def test_a_log_file_on_the_full_disk_ends_nothing(start: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(path: Path, data: bytes) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cmqd.storage.checkpoint_writer.append", write)
    monkeypatch.setattr("sys.stderr", FullStream())
    for part in checkpoint_parts(1, 1):
        rig.log.write_checkpoint(part)
    await tried.wait()
    await broker.process.service.log.checkpoints.drained()

    await rig.store(1, 1, 1)
    assert rig.fatal == []


async def test_a_full_disk_keeps_a_broker_from_starting_only_if_the_ballast_does_not_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers must be able to empty a full disk, so a restart must not need much of it."""
    folder.mkdir()
    (folder / "ballast").write_bytes(bytes(10))

    def free_without_ballast(disk: FakeDisk) -> int:
        return 0 if disk.ballast.exists else 2_000_000

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
    with pytest.raises(LogFailed, match="is full: 1000 bytes free"):
        await broker.rig.open()
    assert broker.process.task is not None
    await broker.process.task
