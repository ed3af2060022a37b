"""Checkpoints that are damaged: an older checkpoint, or the whole log, takes their place."""

from pathlib import Path

import pytest

from cmqd.storage.storage_errors import DamagedError
from cmqd_segment.manifest import read_manifest
from support.storage.damage import flip, kinds
from support.storage.log_rig import OpenProcess

pytestmark = pytest.mark.system


async def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(2):
        await rig.store(1, index, 1)
        await rig.checkpoint()
    await rig.store(1, 2, 1)
    await rig.log.close()
    newest = max((folder / "checkpoints").iterdir())
    flip(newest, newest.stat().st_size // 2)

    again = await open_process()

    assert again.report is not None
    assert again.report.checkpoint_lsn == 1
    assert not again.report.numbers_jump
    assert {"checkpoint_damaged", "set_aside"} <= set(kinds(again))
    assert [lsn for lsn, _, _ in again.rows] == [2, 3]


async def test_without_any_good_checkpoint_the_whole_log_is_replayed_if_it_is_there(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.checkpoint()
    await rig.log.close()
    for path in (folder / "checkpoints").iterdir():
        path.unlink()

    again = await open_process()

    assert again.report is not None
    assert again.report.checkpoint_lsn == 0
    assert [lsn for lsn, _, _ in again.rows] == [1]


async def test_without_a_checkpoint_over_dropped_segments_the_start_stops(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.seal_now()
    await rig.checkpoint()
    assert await rig.log.drop_segments([1], 0) == [1]
    await rig.log.close()
    for path in (folder / "checkpoints").iterdir():
        flip(path, 20)

    with pytest.raises(DamagedError, match=r"no usable checkpoint"):
        await open_process()


async def test_only_the_two_newest_checkpoints_are_kept(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(5):
        await rig.store(1, index, 1)
        await rig.checkpoint()

    manifest = read_manifest(folder)
    assert [entry.lsn for entry in manifest.checkpoints] == [4, 5]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        Path(entry.file).name for entry in manifest.checkpoints
    ]
