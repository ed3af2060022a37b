"""Files that give their blocks back beside commits: in steps, and no byte of a file in use. Removed files lose their
name first, and the WAL of a seal is copied first.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from types import FrameType

import pytest

from cmqd.log.values import Durability
from cmqd.storage.folder import freed_blocks as removal
from cmqd.storage.folder.freed_blocks import STEP_BYTES, remove
from cmqd.storage.recovery.torn_tail import walk
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.segments.segment import create_segment
from cmqd.storage.segments.wal_gauge import bytes_of
from cmqd.storage.writing.sealer import copy_wal, cut_wal, truncate_wal, write_tables
from cmqd_segment.schema import PAGE_BYTES, open_read_only
from support.storage.full_disk import StartBroker

STEPS = 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of some steps, read-only as a sealed segment."""
    path = tmp_path / "file"
    path.write_bytes(bytes(STEPS * STEP_BYTES))
    path.chmod(0o444)
    return path


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes to which files are cut; there are no pauses."""
    cut: list[int] = []
    ftruncate = os.ftruncate

    def noting(descriptor: int, size: int) -> None:
        cut.append(size)
        ftruncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", noting)
    monkeypatch.setattr(removal, "PAUSE_SECONDS", 0)
    return cut


def never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    """Return a condition that is true after some calls."""
    left = iter([False] * calls)
    return lambda: next(left, True)


def test_a_file_of_another_user_is_removed_at_once(
    file: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore by root: the folder belongs to the broker's user, the file does not."""

    def refuse(_path: Path, _mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)

    remove(file, never)

    assert not file.exists()
    assert sizes == []


def test_blocks_are_given_back_in_steps_after_the_name(
    file: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[bool] = []

    def note_name(_seconds: float) -> None:
        names.append(file.exists())

    monkeypatch.setattr("time.sleep", note_name)

    remove(file, never)

    assert sizes == [size * STEP_BYTES for size in range(STEPS - 1, 0, -1)]
    assert names == [False] * (STEPS - 1)


def test_a_reader_keeps_the_whole_file(file: Path, sizes: list[int]) -> None:
    with file.open("rb") as reader:
        remove(file, never)

        assert not file.exists()
        assert len(reader.read()) == STEPS * STEP_BYTES
    assert sizes == []


def test_a_backup_by_a_hard_link_stays_whole(file: Path, sizes: list[int], tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.hardlink_to(file)

    remove(file, never)

    assert not file.exists()
    assert (backup.stat().st_size, backup.stat().st_mode & 0o777) == (STEPS * STEP_BYTES, 0o444)
    assert sizes == []


def test_a_file_system_without_leases_frees_the_file_at_once(
    file: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("fcntl.fcntl", refuse)

    remove(file, never)

    assert not file.exists()
    assert sizes == []


@pytest.mark.parametrize("call", ["pathlib.Path.chmod", "os.open", "os.ftruncate"])
def test_a_file_that_cannot_be_cut_is_removed_at_once(file: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A file of another user, no descriptor left, a file system that needs room for a cut."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(call, refuse)

    remove(file, never)

    assert not file.exists()


def test_a_group_can_read_a_file_up_to_its_end(file: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    unlink = Path.unlink

    def noting(path: Path, *, missing_ok: bool) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr("pathlib.Path.unlink", noting)

    remove(file, never)

    assert modes == [0o644]
    assert sizes


def test_a_program_that_opens_the_file_by_proc_ends_no_process(
    file: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    call = fcntl.fcntl

    def opening(descriptor: int, command: int, argument: int) -> int:
        result = call(descriptor, command, argument)
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
            with contextlib.suppress(BlockingIOError):
                os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK))
        return result

    before = signal.signal(signal.SIGIO, note)
    try:
        monkeypatch.setattr("fcntl.fcntl", opening)
        remove(file, never)
    finally:
        signal.signal(signal.SIGIO, before)

    assert signals == [], "this signal ends a process"
    assert sizes


@pytest.mark.parametrize(("calls", "steps"), [(0, 0), (1, 0), (3, 2)])
def test_a_hurry_ends_the_steps(file: Path, sizes: list[int], calls: int, steps: int) -> None:
    remove(file, after(calls))

    assert not file.exists()
    assert len(sizes) == steps


def test_a_missing_file_is_no_error(tmp_path: Path) -> None:
    remove(tmp_path / "none", never)


@pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
async def test_a_dropped_segment_gives_its_blocks_back_in_steps(
    start: StartBroker, sizes: list[int], *, is_sealed: bool
) -> None:
    broker = await start()
    rig = broker.rig
    log = broker.process.service.log
    for position in range(STEPS):
        await rig.store(1, position, 1, STEP_BYTES)
    if is_sealed:
        await rig.log.seal_now()
    else:
        await log.writer.roll()
        await log._rolled()  # pyright: ignore[reportPrivateUsage]
    await rig.checkpoint()
    await rig.checkpoint()
    sizes.clear()

    assert await rig.log.drop_segments([1], 0) == [1]

    assert len(sizes) >= STEPS - 1
    assert not list(log.catalog.folder.segments.glob("00000001*"))


async def test_blocks_go_back_at_once_where_room_is_short(start: StartBroker, sizes: list[int]) -> None:
    broker = await start()
    rig = broker.rig
    log = broker.process.service.log
    for position in range(STEPS):
        await rig.store(1, position, 1, STEP_BYTES)
    await log.writer.roll()
    await log._rolled()  # pyright: ignore[reportPrivateUsage]
    await rig.checkpoint()
    await rig.checkpoint()
    log.space.found_no_room()
    broker.disk.free = 0
    log.space.measure()

    assert await rig.log.drop_segments([1], 0) == [1]

    assert sizes == []


async def test_blocks_go_back_at_once_before_sends_are_refused(start: StartBroker, sizes: list[int]) -> None:
    broker = await start()
    rig = broker.rig
    log = broker.process.service.log
    for position in range(STEPS):
        await rig.store(1, position, 1, STEP_BYTES)
    await rig.log.seal_now()
    await rig.checkpoint()
    await rig.checkpoint()
    broker.disk.free = int(log.space.mark_bytes() * 1.1)
    log.space.measure()
    await rig.until(lambda: rig.states and rig.states[-1].is_short)
    assert not broker.refused
    sizes.clear()

    assert await rig.log.drop_segments([1], 0) == [1]

    assert sizes == []


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_the_wal_of_a_seal_is_cut_in_steps(
    start: StartBroker, sizes: list[int], monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Behind the frames of its tables, which begin the WAL again; the rows are in the main file by then."""
    broker = await start(durability=durability)
    rig = broker.rig
    for position in range(STEPS):
        await rig.store(1, position, 1, STEP_BYTES)
    segment = broker.process.service.log.writer.active
    wal = Path(f"{segment.path}-wal")
    size = wal.stat().st_size
    frames: list[int] = []
    ftruncate = os.ftruncate

    def noting(descriptor: int, size: int) -> None:
        found = walk(wal)
        frames.append(found.commits[-1])
        assert found.commits == [found.frames], "the commit of the tables alone"
        ftruncate(descriptor, size)
        with closing(open_read_only(segment.path, sealed=False)) as raw:
            lengths = raw.execute("SELECT length(data) FROM log").fetchall()
        assert len(lengths) == STEPS
        assert min(lengths) > (STEP_BYTES // 2,)

    monkeypatch.setattr(os, "ftruncate", noting)
    await rig.log.seal_now()

    assert sizes == [size - step * STEP_BYTES for step in range(1, STEPS + 1)]
    assert sizes[-1] >= bytes_of(frames[-1], PAGE_BYTES)
    assert not wal.exists()
    messages, missing = await rig.page(1, [0, STEPS], 1 << 30)
    assert (len(messages), missing) == (STEPS, [])


async def test_the_wal_of_a_seal_is_cut_at_once_while_room_is_short(start: StartBroker, sizes: list[int]) -> None:
    broker = await start()
    rig = broker.rig
    log = broker.process.service.log
    for position in range(STEPS):
        await rig.store(1, position, 1, STEP_BYTES)
    broker.disk.free = int(log.space.mark_bytes() * 1.1)
    log.space.measure()
    await rig.until(lambda: rig.states and rig.states[-1].is_short)

    await rig.log.seal_now()

    assert sizes == []
    assert 1 in log.catalog.sealed


async def test_the_wal_of_a_seal_is_cut_at_once_while_others_wait(start: StartBroker, sizes: list[int]) -> None:
    """A writer that fills segments faster than steps give them back would fill the disk."""
    broker = await start()
    rig = broker.rig
    log = broker.process.service.log
    for position in range(STEPS):
        await rig.store(1, position, 1, STEP_BYTES)
    await log.begin_segment()
    await rig.store(1, STEPS, 1, 100)

    await rig.log.seal_now()

    assert log.catalog.sealed.keys() == {1, 2}
    assert sizes == []


async def test_a_reader_of_the_tables_alone_keeps_the_frames_of_a_seal(tmp_path: Path) -> None:
    """A reader that came between the copy and the tables keeps SQLite from beginning the WAL again."""
    path = tmp_path / "1.db"
    segment = await create_segment(1, path, Durability.FSYNC, 0)
    segment.insert([LogRow(1, 0, 0, b"", b"", bytes(STEPS * STEP_BYTES))])
    # SQLite would wait for the reader.
    segment.connection.raw.execute("PRAGMA busy_timeout = 0")
    with closing(open_read_only(path, sealed=False)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
        assert not copy_wal(segment)
        write_tables(segment)
        size = Path(f"{path}-wal").stat().st_size
        cut_wal(segment, lambda: True)
        assert Path(f"{path}-wal").stat().st_size == size
        assert not truncate_wal(segment)
        assert reader.execute("SELECT length(data) FROM log").fetchone() == (STEPS * STEP_BYTES,)

    assert truncate_wal(segment)
    await segment.close()
    with closing(open_read_only(path, sealed=True)) as raw:
        assert raw.execute("SELECT length(data) FROM log").fetchone() == (STEPS * STEP_BYTES,)
        assert raw.execute("SELECT value FROM segment WHERE key = 'sealed_ms'").fetchone()


class BlockedRemovals:
    """Removals of segment files that wait for ``go_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.under_way = 0
        self.most = 0
        self.first = asyncio.Event()
        self.go_on = Event()
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr("cmqd.storage.segment_drops.remove", self._remove)

    def _remove(self, path: Path, is_hurried: Callable[[], bool]) -> None:
        if path.suffix == ".db":
            self.begun.append(path.name)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self._loop.call_soon_threadsafe(self.first.set)
            self.go_on.wait()
            self.under_way -= 1
        remove(path, is_hurried)


async def test_segments_that_are_dropped_together_are_removed_one_by_one(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a purge of many segments takes all threads, and checkpoints and manifests wait for the steps."""
    broker = await start()
    rig = broker.rig
    for position in range(4):
        await rig.store(1, position, 1)
        await rig.log.seal_now()
    await rig.checkpoint()
    await rig.checkpoint()
    removals = BlockedRemovals(monkeypatch)
    drops = [asyncio.create_task(rig.log.drop_segments([number], 0)) for number in range(1, 5)]
    await removals.first.wait()
    # A checkpoint goes through meanwhile.
    await rig.checkpoint()
    assert len(removals.begun) == 1
    removals.go_on.set()

    assert await asyncio.gather(*drops) == [[1], [2], [3], [4]]

    assert (len(removals.begun), removals.most) == (4, 1)


async def test_a_close_waits_for_the_removal_under_way_and_begins_no_other(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop writes the manifest, which may be the next broker's once the folder is free."""
    broker = await start()
    rig = broker.rig
    log = broker.process.service.log
    for position in range(2):
        await rig.store(1, position, 1)
        await rig.log.seal_now()
    await rig.checkpoint()
    await rig.checkpoint()
    removals = BlockedRemovals(monkeypatch)
    drops = [asyncio.create_task(rig.log.drop_segments([number], 0)) for number in (1, 2)]
    await removals.first.wait()

    closing = asyncio.create_task(rig.log.close())
    done, _ = await asyncio.wait({closing}, timeout=0.5)
    assert not done
    removals.go_on.set()
    await closing

    assert removals.begun[0] == "00000001.db"
    assert "00000002.db" not in removals.begun
    assert list(log.catalog.dropping) == [2]
    for drop in drops:
        drop.cancel()
    await asyncio.gather(*drops, return_exceptions=True)
    again = await start()
    assert again.rig.report is not None
    assert again.rig.report.clean
    assert not list(log.catalog.folder.segments.glob("0000000[12]*"))
