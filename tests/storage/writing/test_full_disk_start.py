"""Starts on a disk without room: reserves, WAL-indexes, and a standard error that is full."""

import asyncio
import io
import shutil
import sqlite3
from pathlib import Path

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.storage.folder.data_folder import Reserve
from support.storage.full_disk import Broker, FakeDisk, StartBroker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig, checkpoint_parts, deleted


class FullAfterStart(FakeDisk):
    """A disk without a free byte after the start of the broker, before the first seal."""

    def take_ballast(self) -> bool:
        self.free = 0
        return super().take_ballast()


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
    copy_as_killed(folder, tmp_path / "as the crash left it")

    again = LogRig(ForkedPlace(tmp_path / "as the crash left it").log())
    await again.open()

    assert [lsn for lsn, _, _ in again.rows] == [1]
    await again.log.close()


class FullDisk(FakeDisk):
    """A disk on which a foreign program has taken every byte outside of the reserves."""

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes, start_ballast_bytes)
        self._taken = self.missing_ballast_bytes
        self.ballast = FullReserve(self, self.ballast)
        self.start_ballast = FullReserve(self, self.start_ballast)

    def free_bytes(self) -> int:
        # Half a MiB of the released room goes into new segments and WAL-indexes.
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
    copy = copy_as_killed(folder, folder.with_name("as the crash left it"))
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
    """Sends would be accepted and refused in turns: the ballast is released, counts as room, and is taken again."""
    ballast = 32 << 20
    broker = await start(ballast_bytes=ballast, start_ballast_bytes=0)
    rig = broker.rig
    await rig.store(1, 0, 1)
    space = broker.process.service.log.space
    broker.disk.free = 0
    space.found_no_room()
    mark = space.mark_bytes()

    broker.disk.free = mark + ballast // 2
    space.measure()
    assert space.short

    broker.disk.free = 2 * mark + ballast
    space.measure()
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

    monkeypatch.setattr("cmqd.storage.recovery.folder_inspection.open_read_only", full)

    with pytest.raises(LogFailed, match="the disk failed"):
        await start(accept_loss=True)


async def test_a_segment_left_unsealed_by_a_crash_can_be_dropped_before_it_is_sealed(
    start: StartBroker, folder: Path
) -> None:
    """On a full disk the segment cannot be sealed, and deletes must make room."""
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

    def write(*_: object, **__: object) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cmqd.storage.writing.checkpoint_writer.write_in_steps", write)
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
    """Consumers must be able to empty a full disk, so a restart must not need much room."""
    folder.mkdir()
    (folder / "ballast").write_bytes(bytes(10))

    def free_without_ballast(disk: FakeDisk) -> int:
        return 0 if disk.ballast.path.exists() else 2_000_000

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
