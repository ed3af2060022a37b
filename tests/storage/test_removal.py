"""Files that are removed beside commits: the name first, the blocks in steps, and no byte of a file in use."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cmqd.storage import removal
from cmqd.storage.removal import STEP_BYTES, remove
from support.full_disk import StartBroker

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
