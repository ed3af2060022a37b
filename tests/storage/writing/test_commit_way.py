"""Which process commits, by the commits so far."""

from dataclasses import dataclass

import pytest

from cmqd.storage.loop_side.commit_way import (
    HANG_US,
    LEAST_COMMITS,
    LONG_US,
    LONGEST_PAUSE_S,
    MEAN_BYTES,
    PAUSE_S,
    CommitWay,
)

QUICK_US = LONG_US // 2
SMALL = MEAN_BYTES[0] // 2


@dataclass
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def way(clock: Clock) -> CommitWay:
    """A way on which the loop process commits."""
    way = CommitWay(clock)
    run(way, LEAST_COMMITS + 1, QUICK_US, SMALL)
    assert way.by_loop
    return way


def run(way: CommitWay, commits: int, commit_us: int, size: int) -> int:
    """Note commits; return the number of changes."""
    return sum(way.note(commit_us, size) for _ in range(commits))


def test_the_first_commits_change_nothing(clock: Clock) -> None:
    way = CommitWay(clock)

    assert run(way, LEAST_COMMITS, QUICK_US, SMALL) == 0
    assert not way.by_loop
    assert run(way, 1, QUICK_US, SMALL) == 1
    assert way.by_loop


@pytest.mark.parametrize(("commit_us", "size"), [(LONG_US + 1, SMALL), (QUICK_US, 2 * MEAN_BYTES[1])])
def test_long_or_large_commits_are_those_of_the_storage_process(clock: Clock, commit_us: int, size: int) -> None:
    way = CommitWay(clock)

    assert run(way, 10 * LEAST_COMMITS, commit_us, size) == 0
    assert not way.by_loop


def test_a_disk_with_some_long_commits_is_quick(clock: Clock) -> None:
    way = CommitWay(clock)
    changes = sum(run(way, 1, LONG_US + 1, SMALL) + run(way, 3, QUICK_US, SMALL) for _ in range(2 * LEAST_COMMITS))

    assert changes == 1
    assert way.by_loop


def test_a_disk_with_many_long_commits_is_slow(way: CommitWay) -> None:
    changes = sum(run(way, 4, LONG_US + 1, SMALL) + run(way, 1, QUICK_US, SMALL) for _ in range(2 * LEAST_COMMITS))

    assert changes == 1
    assert not way.by_loop


def test_a_single_long_commit_changes_nothing(way: CommitWay) -> None:
    for _ in range(100):
        assert run(way, 1, LONG_US + 1, SMALL) == 0
        assert run(way, 15, QUICK_US, SMALL) == 0


def test_a_disk_that_becomes_slow_and_quick_again(way: CommitWay, clock: Clock) -> None:
    assert run(way, 50, LONG_US + 1, SMALL) == 1
    assert not way.by_loop

    # The pause first, and then the share of long commits.
    assert run(way, 1_000, QUICK_US, SMALL) == 0
    assert run(way, 40, LONG_US + 1, SMALL) == 0
    clock.now_s += PAUSE_S
    assert run(way, 5, QUICK_US, SMALL) == 0
    assert run(way, 200, QUICK_US, SMALL) == 1
    assert way.by_loop


def test_a_disk_that_hangs_once_a_minute(way: CommitWay, clock: Clock) -> None:
    for _ in range(3):
        assert run(way, 1, HANG_US, SMALL) == 1
        assert not way.by_loop
        run(way, 100, QUICK_US, SMALL)
        assert not way.by_loop
        clock.now_s += 60
        assert run(way, 1, QUICK_US, SMALL) == 1
        assert way.by_loop


def test_large_commits_end_the_way_and_small_commits_begin_it_again(way: CommitWay, clock: Clock) -> None:
    assert run(way, 100, QUICK_US, 4 * MEAN_BYTES[1]) == 1
    assert not way.by_loop

    assert run(way, 300, QUICK_US, SMALL) == 0
    clock.now_s += PAUSE_S
    assert run(way, 1, QUICK_US, SMALL) == 1


def test_the_pause_doubles_while_the_way_lasts_for_a_short_time(way: CommitWay, clock: Clock) -> None:
    pauses: list[float] = []
    for lasts_s in (1, 1, 1, 10_000, 1):
        clock.now_s += lasts_s
        way.refuse()
        begun_s = clock.now_s
        while not run(way, 1, QUICK_US, SMALL):
            clock.now_s += PAUSE_S
        pauses.append(clock.now_s - begun_s)

    assert pauses == [factor * PAUSE_S for factor in (1, 2, 4, 1, 2)]


def test_the_pause_has_an_end(way: CommitWay, clock: Clock) -> None:
    for _ in range(100):
        way.refuse()

    assert run(way, 1, QUICK_US, SMALL) == 0
    clock.now_s += LONGEST_PAUSE_S
    assert run(way, 1, QUICK_US, SMALL) == 1


def test_a_refusal_pauses(way: CommitWay, clock: Clock) -> None:
    way.refuse()

    assert not way.by_loop
    assert run(way, 100, QUICK_US, SMALL) == 0
    clock.now_s += PAUSE_S
    assert run(way, 1, QUICK_US, SMALL) == 1
