"""Times of activation of messages: by the second, bounded, and found by age."""

from pyroaring import BitMap64

from cmqd_fold.activations import LONGEST_MS, Activations
from support.costs.cpu_time import cpu_seconds_of

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


def test_what_is_due_is_not_gathered_anew_each_time():
    activations = noted((10, [1]), (11, [2]), (12, [3]))
    assert list(activations.take_due(12_000 + AFTER_MS, AFTER_MS, LIVE)) == [1, 2]

    activations.note(BitMap64([4]), 9_000)
    activations.note(BitMap64([1]), 20_000)

    assert list(activations.take_due(12_000 + AFTER_MS, AFTER_MS, LIVE)) == [2, 4]
    assert list(activations.take_due(13_000 + AFTER_MS, AFTER_MS, LIVE)) == [2, 3, 4]
    assert list(activations.take_due(13_000 + AFTER_MS, AFTER_MS, LIVE - BitMap64([3]))) == [2, 4]


def test_a_longer_policy_makes_them_early_again():
    activations = noted((10, [1]), (11, [2]))
    assert list(activations.take_due(12_000 + AFTER_MS, AFTER_MS, LIVE)) == [1, 2]

    assert list(activations.take_due(12_000 + AFTER_MS, AFTER_MS + 1000, LIVE)) == [1]
    assert activations.first_due_after(12_000 + AFTER_MS, AFTER_MS + 1000) == 13_000 + AFTER_MS
    assert list(activations.take_due(12_000 + AFTER_MS, AFTER_MS, LIVE)) == [1, 2]


def test_seconds_that_were_due_and_are_gone_do_not_pile_up():
    activations = noted(*((second, [second]) for second in range(100)))
    assert len(activations.take_due(200_000 + AFTER_MS, AFTER_MS, LIVE)) == 100

    few = BitMap64([50])
    for _ in range(10):
        assert list(activations.take_due(200_000 + AFTER_MS, AFTER_MS, few)) == [50]

    assert activations.entries() == [(50_000, few.serialize())]
    assert activations.positions == few


def test_seconds_emptied_by_another_rewind_are_forgotten():
    activations = noted((10, [1, 2]), (11, [3]), (20, [1, 3]))

    assert [ms for ms, _ in activations.entries()] == [10_000, 20_000]
    assert activations.first_due_after(11_000 + AFTER_MS, AFTER_MS) == 21_000 + AFTER_MS


def test_what_stands_below_a_floor_is_never_due_again():
    activations = noted(*((second, [second, 1000 - second]) for second in range(300)))

    activations.drop_below(800)

    assert list(activations.positions) == list(range(800, 1001))
    live = BitMap64(range(800, 1001))
    assert activations.take_due(400_000 + AFTER_MS, AFTER_MS, live) == live
    activations.drop_below(1001)
    assert activations.entries() == []
    assert not activations.take_due(400_000 + AFTER_MS, AFTER_MS, live)


def test_tens_of_thousands_of_due_seconds_cost_little_once_they_are_known():
    seconds = LONGEST_MS // 1000 - 1
    live = BitMap64(range(seconds))
    activations = noted(*((second, [second]) for second in range(seconds)))

    def take_due(times: int) -> None:
        for _ in range(times):
            assert len(activations.take_due(LONGEST_MS, 0, live)) == seconds

    gathering = cpu_seconds_of(lambda: take_due(1))
    assert cpu_seconds_of(lambda: take_due(100)) < 20 * gathering, "a gathering each time would be 100"
