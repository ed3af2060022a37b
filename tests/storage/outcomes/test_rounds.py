"""Rounds: before rows may go, the storage keeps how messages left, beside the segments that stay."""

import os
import random
from pathlib import Path

import pytest

from cmqd_reading.states import State
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from support.core.busy_rig import busy_rig
from support.storage.outcome_rig import OutcomeRig, assert_exact, facts, stuck, told_by

pytestmark = pytest.mark.system


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_rows_go_the_messages_of_the_others_are_told_exactly(seed: int, tmp_path: Path) -> None:
    core, checkpoints = busy_rig(seed, 300)
    choose = random.Random(seed)
    broker = OutcomeRig(tmp_path / "data", core)
    await broker.start()
    for parts in checkpoints:
        header, end = parts[0], parts[-1]
        assert isinstance(header, CheckpointHeader)
        assert isinstance(end, CheckpointEnd)
        await broker.write(choose.randrange(header.lsn, end.lsn + 1))
        await broker.roll()
        await broker.write(end.lsn)
        await broker.checkpoint(parts)
        droppable = [
            segment.first_lsn
            for segment in broker.rig.log.closed_segments()
            if segment.last_lsn <= broker.rig.log.droppable_lsn
        ]
        await broker.drop(*choose.sample(droppable, len(droppable) // 3))
        if choose.random() < 0.2:
            await broker.rig.log.close()
            await broker.start()
            await broker.covered()
    await broker.write()
    await broker.rig.log.close()

    assert broker.manifest.dropped
    assert_exact(broker)


@pytest.mark.parametrize("step", range(4))
async def test_a_kill_at_each_step_of_a_round_loses_no_outcome(step: int, tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data")
    await broker.checkpoint()
    broker.core.create("other")
    await broker.write()
    await broker.roll()
    older = broker.manifest.checkpoints[0]
    await broker.checkpoint(is_covered=False)

    await broker.kill_at(step)

    assert older not in broker.manifest.checkpoints
    listed = {broker.folder / entry.outcomes_file for entry in broker.manifest.segments if entry.outcomes_file}
    assert set((broker.folder / "segments").glob("*.outcomes*")) == listed != set()
    await broker.drop(3)
    await broker.rig.log.close()
    assert_exact(broker)


async def test_rows_stay_until_their_round_has_ended(tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data", deleted=49)
    await broker.leave_behind()
    broker.core.delete(*broker.core.handles(most=10))
    await broker.segment()
    last_lsn = broker.upto
    await broker.checkpoint()
    broker.core.create("other")
    await broker.segment()
    # The child waits for a reader of the pipe, and the storage for the child.
    os.mkfifo(broker.folder / "segments" / "00000001.2.outcomes.tmp")
    await broker.checkpoint(is_covered=False)
    (deletes,) = (segment for segment in broker.rig.log.closed_segments() if segment.last_lsn == last_lsn)

    assert await broker.rig.log.drop_segments([deletes.number], broker.upto) == []

    assert broker.manifest.dropped == []
    await broker.place.crash(broker.rig.log)
    await broker.start()
    await broker.covered()
    await broker.leave_behind()
    await broker.drop_behind_first()
    await broker.rig.log.close()
    assert_exact(broker)


async def test_three_checkpoints_without_a_change_move_the_known_rows_and_write_no_file(tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data")
    await broker.checkpoint()
    broker.core.create("other")
    await broker.write()
    await broker.checkpoint()
    for _ in range(3):
        broker.core.create(f"q{broker.upto}")
        await broker.write()
        await broker.roll()
        await broker.checkpoint()
        first = broker.manifest.segments[0].outcomes
        assert first is not None
        # Its own rows tell what happened up to row 2.
        assert (first.known_from, first.upto) == (2, broker.manifest.checkpoints[0].lsn)
        assert first.generation == 1
    await broker.drop(3)
    await broker.rig.log.close()

    assert_exact(broker)


async def test_a_change_told_with_a_checkpoint_that_went_during_a_hold_is_in_the_round_behind_it(
    tmp_path: Path,
) -> None:
    broker = await stuck(tmp_path / "data")
    held = await broker.rig.log.hold_checkpoint()
    assert held is not None
    for _ in range(3):
        broker.core.create(f"q{broker.upto}")
        await broker.segment()
        await broker.checkpoint()
    assert [entry.number for entry in broker.manifest.checkpoints] == [1, 3, 4]
    broker.rig.log.release_checkpoint(held.number)
    await broker.leave_behind()
    await broker.drop_behind_first()
    await broker.rig.log.close()

    assert_exact(broker)


async def test_a_round_that_fails_lets_the_rows_go_and_says_what_is_not_known(tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data")
    # In the way of the first file.
    (broker.folder / "segments" / "00000001.1.outcomes.tmp").mkdir()
    await broker.checkpoint()
    broker.core.create("other")
    await broker.write()
    await broker.roll()
    await broker.checkpoint()
    older = broker.manifest.checkpoints[0]
    first = broker.manifest.segments[0].outcomes
    assert first is not None
    assert (first.generation, first.known_from, first.upto) == (0, older.end_lsn, older.lsn)
    await broker.drop(3)
    (broker.folder / "segments" / "00000001.1.outcomes.tmp").rmdir()
    await broker.rig.log.close()

    found, _ = told_by(broker.folder)
    assert [state for state, *_ in facts(found[broker.core.queue("q").queue_id], 0, 100)] == [
        State.ACTIVE,
        *[None] * 99,
    ]
