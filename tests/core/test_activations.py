"""When messages became active: by the second, bounded, and found when they are old enough."""

from pyroaring import BitMap64

from cmqd.core.activations import LONGEST_MS, Activations

AFTER_MS = 300_000
LIVE = BitMap64(range(100))


def noted(*entries: tuple[int, list[int]]) -> Activations:
    activations = Activations()
    for second, positions in entries:
        activations.note(BitMap64(positions), second * 1000)
    return activations


def test_they_are_due_when_their_whole_second_is_old_enough():
    activations = noted((10, [1, 2]), (11, [3]))

    assert activations.first_due_after(0, AFTER_MS) == 11_000 + AFTER_MS
    assert not activations.take_due(10_999 + AFTER_MS, AFTER_MS, LIVE)
    assert list(activations.take_due(11_000 + AFTER_MS, AFTER_MS, LIVE)) == [1, 2]
    assert activations.first_due_after(11_000 + AFTER_MS, AFTER_MS) == 12_000 + AFTER_MS
    assert activations.first_due_after(12_000 + AFTER_MS, AFTER_MS) is None


def test_those_that_are_gone_are_forgotten_when_they_are_due():
    activations = noted((10, [1, 200]), (11, [201]))

    assert list(activations.take_due(20_000 + AFTER_MS, AFTER_MS, LIVE)) == [1]

    assert list(activations.positions) == [1]
    assert [second for second, _ in activations.entries()] == [10_000]


def test_one_that_becomes_active_again_starts_anew():
    activations = noted((10, [1, 2]), (20, [1]))

    assert list(activations.take_due(15_000 + AFTER_MS, AFTER_MS, LIVE)) == [2]
    assert list(activations.positions) == [1, 2]


def test_what_is_older_than_any_policy_is_forgotten():
    activations = noted((10, [1]), (11, [2]), (11 + LONGEST_MS // 1000, [3]))

    assert list(activations.positions) == [2, 3]


def test_it_comes_back_from_a_checkpoint():
    activations = noted((10, [1]), (11, [2]))
    again = Activations()

    again.load(activations.entries())

    assert again.entries() == activations.entries()
    assert again.positions == activations.positions


def test_one_noted_late_takes_its_place():
    activations = noted((20, [2]), (10, [1]))

    assert [second for second, _ in activations.entries()] == [10_000, 20_000]
    assert list(activations.take_due(15_000 + AFTER_MS, AFTER_MS, LIVE)) == [1]
