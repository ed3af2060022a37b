"""Loss of power without fsync: rows are lost without damage."""

from pathlib import Path

import pytest

from cmqd.storage.storage_errors import DamagedError
from support.storage.damage import CrashedAfter, active_wal, crash, flip, in_another_boot, kinds, manifest_knows
from support.storage.log_rig import ForkedPlace, LogRig, OpenProcess
from support.storage.wals import cut, end_of_frames

pytestmark = pytest.mark.system


async def test_without_fsync_an_emptied_wal_after_a_loss_of_power_is_told_and_the_start_goes_on(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    await crashed_after(await open_process(durability="os"), 10)
    manifest_knows(folder, 1, 8)
    cut(active_wal(folder), 0)
    in_another_boot(folder)

    rig = await open_process(durability="os")

    assert rig.report is not None
    assert "lost" in kinds(rig)
    assert rig.report.numbers_jump
    assert rig.send(1, 100, 1) > 10


async def test_without_fsync_an_emptied_wal_in_the_same_boot_stops_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """Without a power loss the page cache cannot have lost a write."""
    await crashed_after(await open_process(durability="os"), 10)
    cut(active_wal(folder), 0)

    with pytest.raises(DamagedError, match=r"is empty, but \d+ frames"):
        await open_process(durability="os")


async def test_without_fsync_a_crash_of_the_broker_alone_loses_nothing(open_process: OpenProcess) -> None:
    rig = await open_process(durability="os")
    for index in range(20):
        await rig.store(1, index, 1)
    await crash(rig)

    again = await open_process(durability="os")
    assert len(again.rows) == 20


async def test_without_fsync_a_loss_with_the_power_is_told_and_the_start_goes_on(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    await crashed_after(await open_process(durability="os"), 20)
    in_another_boot(folder)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 2)

    rig = await open_process(durability="os")

    assert rig.report is not None
    assert "lost" in kinds(rig)
    assert rig.report.numbers_jump
    assert 0 < len(rig.rows) < 20


async def test_rows_lost_in_a_power_failure_are_no_damage_at_the_next_start_either(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    await crashed_after(await open_process(durability="os"), 20)
    in_another_boot(folder)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 2)
    first = LogRig(ForkedPlace(folder, durability="os").log())
    await first.log.open()
    await crash(first)

    again = await open_process(durability="os")

    assert 0 < len(again.rows) < 20
