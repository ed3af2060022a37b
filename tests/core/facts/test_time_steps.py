"""The staircase of send times: exact to a grain, bounded in memory."""

import pytest

from cmqd_fold.time_steps import MAX_STEPS, TimeSteps


def steps_of(*sends: tuple[int, int]) -> TimeSteps:
    steps = TimeSteps()
    for position, enqueue_ms in sends:
        steps.note(position, enqueue_ms)
    return steps


def test_sends_within_a_grain_share_a_step():
    steps = TimeSteps()

    assert steps.note(0, 1000)
    assert not steps.note(1, 1099)
    assert steps.note(2, 1100)

    assert len(steps) == 2


def test_an_empty_staircase_knows_nothing():
    steps = TimeSteps()

    assert steps.first_end_ms() is None
    assert steps.sent_at(5) == 0
    assert steps.floor_at(10_000, 7) == 0


def test_the_time_of_a_message_is_that_of_its_step():
    steps = steps_of((10, 1000), (12, 1050), (20, 2000))

    assert [steps.sent_at(position) for position in (9, 10, 19, 20, 99)] == [0, 1000, 1000, 2000, 2000]


def test_the_floor_moves_by_whole_steps_only():
    steps = steps_of((0, 1000), (3, 1050), (5, 2000))

    assert steps.first_end_ms() == 1050
    assert [steps.floor_at(sent_ms, 9) for sent_ms in (1049, 1050, 1999, 2000)] == [0, 5, 5, 9]


@pytest.mark.parametrize(("position", "left"), [(0, 3), (5, 3), (10, 2), (15, 2), (20, 1), (99, 1)])
def test_steps_that_are_wholly_below_are_forgotten(position: int, left: int):
    steps = steps_of((0, 1000), (10, 2000), (20, 3000))

    steps.drop_below(position)

    assert len(steps) == left
    assert steps.sent_at(25) == 3000


@pytest.mark.parametrize("spare", [0, 1])
def test_memory_is_bounded_and_no_message_seems_older_or_expires_earlier_than_it_may(spare: int):
    steps = TimeSteps()
    sends = [(number, 1000 + 250 * number) for number in range(3 * MAX_STEPS + spare)]
    for position, enqueue_ms in sends:
        steps.note(position, enqueue_ms)
        assert len(steps) <= MAX_STEPS

    assert sum(map(len, steps.packed())) <= 400 * 1024
    for position, enqueue_ms in sends[::97]:
        assert enqueue_ms - 8 * 250 < steps.sent_at(position) <= enqueue_ms
        floor = steps.floor_at(enqueue_ms, len(sends))
        assert position - 8 <= floor <= position + 1
    assert steps.floor_at(sends[-1][1], len(sends)) == len(sends)


@pytest.mark.parametrize("count", [0, 1, 500, 3 * MAX_STEPS])
def test_a_checkpoint_restores_it(count: int):
    steps = steps_of(*((number, 1000 * number) for number in range(count)))
    restored = TimeSteps()

    restored.load(*steps.packed())

    assert restored.packed() == steps.packed()
    assert restored.grain_ms <= max(100, 1000 * count // max(1, len(steps))), "coarser than the steps themselves"
    for number in range(count, count + 10):
        restored.note(number, 1000 * number)
    assert len(restored) <= MAX_STEPS


def test_a_dense_staircase_is_restored_with_its_coarser_grain():
    steps = steps_of(*((number, 100 * number) for number in range(8 * MAX_STEPS)))
    restored = TimeSteps()

    restored.load(*steps.packed())

    assert restored.grain_ms > 100


def test_cleared_it_begins_anew():
    steps = steps_of(*((number, 100 * number) for number in range(2 * MAX_STEPS)))

    steps.clear()

    assert len(steps) == 0
    assert steps.grain_ms == 100


def test_the_boundary_of_a_time_lies_between_two_positions():
    steps = steps_of((0, 1000), (3, 1050), (5, 2000), (8, 2099))

    found = {ms: steps.around(ms, 12) for ms in (999, 1000, 1001, 1050, 1051, 2000, 2001, 2099, 2100)}

    assert found == {
        999: (0, 0),
        1000: (0, 0),
        1001: (0, 5),
        1050: (0, 5),
        1051: (5, 5),
        2000: (5, 5),
        2001: (5, 12),
        2099: (5, 12),
        2100: (12, 12),
    }


def test_a_message_was_sent_by_the_end_of_its_step_and_the_next_end_is_found():
    steps = steps_of((10, 1000), (12, 1050), (20, 2000))

    assert [steps.sent_by(position) for position in (9, 10, 19, 20, 99)] == [0, 1050, 1050, 2000, 2000]
    assert [steps.next_end_ms(ms) for ms in (0, 1049, 1050, 1999, 2000)] == [1050, 1050, 2000, 2000, None]


def test_the_boundary_stays_right_when_steps_are_merged():
    steps = TimeSteps()
    sends = [(number, 1000 + 130 * number) for number in range(2 * MAX_STEPS + 1)]
    for position, enqueue_ms in sends:
        steps.note(position, enqueue_ms)

    for position, enqueue_ms in sends[::997]:
        low, high = steps.around(enqueue_ms, len(sends))
        assert low <= position
        assert high >= position
        assert steps.sent_at(position) <= enqueue_ms <= steps.sent_by(position)
