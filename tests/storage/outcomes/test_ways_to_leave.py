"""Messages that left in every way, by rows in segments that are gone: each is told as the whole log would tell it.

The loop process's own count is the trigger, so that a change which the count does not see fails here, too.
"""

from collections import Counter
from pathlib import Path

import pytest

from cmqd_reading.states import Result, State
from cmqd_segment.checkpoint import AnyPart, QueueSlice
from support.core.builders import Rig
from support.storage.outcome_rig import OutcomeRig, assert_exact, facts, told_by
from support.storage.ways_to_leave import (
    PLAIN,
    REWINDING,
    WAYS,
    Step,
    Way,
    all_but_first,
    deleted,
    in_one_row,
    lives,
    received,
    rewound,
)

pytestmark = pytest.mark.system


async def told_of(rig: OutcomeRig, queue_id: int) -> Counter[tuple[str | None, int | None]]:
    """(state, receives) of the messages of the first segment, by the files."""
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()
    assert_exact(rig)
    found, _ = told_by(rig.folder)
    return Counter((state, count) for state, _, count in facts(found.get(queue_id, Result({}, [], {})), 0, 100))


@pytest.mark.parametrize("at_each_step", [True, False], ids=["a round for each segment", "one round"])
@pytest.mark.parametrize("name", WAYS)
async def test_how_a_message_left_is_told_when_the_rows_are_gone(name: str, at_each_step: bool, tmp_path: Path) -> None:
    way = WAYS[name]
    rig = await lives(tmp_path / "data", way, at_each_step=at_each_step)

    told = await told_of(rig, 2)

    assert rig.manifest.dropped
    if way.told:
        assert told == way.told


def deleted_and_rewound(core: Rig) -> None:
    deleted(core)
    rewound(core)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([deleted_and_rewound], {("active", 0): 100}),
        ([in_one_row(deleted, rewound)], {("active", 0): 100}),
        ([deleted, in_one_row(rewound, deleted, rewound)], {("active", 0): 100}),
        ([deleted, in_one_row(rewound, deleted)], {("deleted", 1): 100}),
    ],
    ids=["in one interval", "in one row", "twice in one row", "rewind and delete in one row"],
)
async def test_a_delete_and_a_rewind_do_not_cancel_out(
    steps: list[Step], told: dict[tuple[str, int], int], tmp_path: Path
) -> None:
    """The messages are there before and after, with other receive counts."""
    way = Way(REWINDING, [received, *steps], {})
    rig = await lives(tmp_path / "data", way, at_each_step=True)

    assert await told_of(rig, 2) == told


async def test_a_delete_between_the_header_of_a_checkpoint_and_its_slice_is_told_once(tmp_path: Path) -> None:
    rig = await lives(tmp_path / "data", Way(PLAIN, [received], {}), at_each_step=True)
    core = rig.core
    for _ in range(2):
        parts = core.broker.checkpoint(lambda: core.log.last_lsn, core.now_ms)
        taken = [next(parts)]
        deleted(core, 50)
        taken += parts
        await rig.segment()
        await rig.checkpoint(taken)

    assert await told_of(rig, 2) == {("deleted", 2): 100}


async def test_the_entries_of_two_rounds_ascend_although_the_slices_of_queues_have_other_rows(tmp_path: Path) -> None:
    """The first round has the later row, of the queue whose slice is newer."""
    rig = await lives(tmp_path / "data", Way(PLAIN, [received], {}), at_each_step=True)
    core = rig.core
    taken: list[AnyPart] = []
    for part in core.broker.checkpoint(lambda: core.log.last_lsn, core.now_ms):
        taken.append(part)
        if isinstance(part, QueueSlice) and part.queue_id == 2:
            deleted(core, 10)
            core.delete(*core.handles("stuck"), name="stuck")
    await rig.segment()
    await rig.checkpoint(taken)
    core.create("more")
    await rig.segment()
    await rig.checkpoint()
    deleted(core, 10)

    assert await told_of(rig, 2) == {("deleted", 2): 20, ("active", 1): 80}


async def test_a_message_that_is_deleted_before_any_checkpoint_is_told(tmp_path: Path) -> None:
    core = Rig()
    core.create("q")
    core.send(*[b"x"] * 100)
    rig = OutcomeRig(tmp_path / "data", core)
    await rig.start()
    await rig.segment()
    all_but_first(core)
    await rig.segment()
    await rig.checkpoint()

    told = await told_of(rig, 1)

    assert told == {(State.ACTIVE, 1): 1, (State.DELETED, 1): 99}
