"""Buckets of due times: never early, less than a width late, stale numbers at no cost."""

from array import array

import pytest

from cmqd.core.facts.deadlines import DeadlineBuckets


def buckets_of(*entries: tuple[int, int, int], width_ms: int = 100) -> DeadlineBuckets:
    """(due, queue, number) of the entries."""
    buckets = DeadlineBuckets(width_ms)
    for due_ms, queue_id, number in entries:
        buckets.bucket(due_ms, queue_id).append(number)
        buckets.size += 1
    return buckets


def taken(buckets: DeadlineBuckets, now_ms: int, most: int = 1000) -> list[tuple[int, list[int]]]:
    found: list[tuple[int, list[int]]] = []
    while (due := buckets.take_due(now_ms, most)) is not None:
        found.append((due[0], list(due[1])))
    return found


def test_empty_buckets_are_never_due():
    buckets = DeadlineBuckets(100)

    assert buckets.next_due_ms() is None
    assert buckets.take_due(10**15, 10) is None


@pytest.mark.parametrize(("due_ms", "end_ms"), [(1000, 1000), (1001, 1100), (1099, 1100), (1100, 1100)])
def test_a_number_comes_due_at_the_end_of_its_bucket(due_ms: int, end_ms: int):
    buckets = buckets_of((due_ms, 1, 5))

    assert buckets.next_due_ms() == end_ms
    assert taken(buckets, end_ms - 1) == []
    assert taken(buckets, end_ms) == [(1, [5])]
    assert buckets.next_due_ms() is None


def test_the_earliest_bucket_comes_first():
    buckets = buckets_of((3000, 1, 3), (1000, 1, 1), (2000, 2, 2), (1000, 1, 10))

    assert taken(buckets, 3000) == [(1, [1, 10]), (2, [2]), (1, [3])]
    assert buckets.size == 0


def test_queues_of_one_bucket_are_taken_one_by_one():
    buckets = buckets_of((1000, 1, 1), (1000, 2, 2))

    assert taken(buckets, 1000) == [(1, [1]), (2, [2])]


def test_a_large_bucket_is_taken_in_slices_and_stays_due_until_it_is_empty():
    buckets = buckets_of(*((1000, 1, number) for number in range(10)))

    first = buckets.take_due(1000, 4)

    assert first is not None
    assert len(first[1]) == 4
    assert buckets.next_due_ms() == 1000
    assert buckets.size == 6
    assert sorted([*first[1], *(number for _, some in taken(buckets, 1000, 4) for number in some)]) == list(range(10))


def test_what_one_queue_holds_is_told_with_its_due_times():
    buckets = buckets_of((1000, 1, 1), (1950, 1, 2), (1000, 2, 3))

    assert [(due_ms, list(numbers)) for due_ms, numbers in buckets.of_queue(1)] == [(1000, [1]), (2000, [2])]
    assert buckets.of_queue(9) == []


def test_a_sweep_removes_stale_numbers_step_by_step():
    buckets = buckets_of(*((1000 + 100 * number, number % 2, number) for number in range(10)))
    steps = 1

    while (kept := buckets.sweep(lambda _, queue_id, numbers: numbers if queue_id else array("Q"))) is None:
        steps += 1

    assert kept == 5
    assert steps == 5
    assert buckets.size == 5
    assert [number for _, some in taken(buckets, 5000) for number in some] == [1, 3, 5, 7, 9]


def test_a_sweep_passes_over_what_came_due_meanwhile():
    buckets = buckets_of(*((1000 * number, 1, number) for number in range(1, 6)))
    assert buckets.sweep(lambda _, __, numbers: numbers) is None
    taken(buckets, 5000)

    assert buckets.sweep(lambda _, __, numbers: numbers) == 2
    assert buckets.sweep(lambda _, __, numbers: numbers) == 0


def test_what_a_sweep_empties_costs_nothing_and_may_be_filled_again():
    buckets = buckets_of(*((1000 * number, 1, number) for number in range(1, 2001)))
    while buckets.sweep(lambda _, __, numbers: array("Q")) is None:
        pass
    assert buckets.size == 0
    assert len(buckets.heap) <= 10

    for due_ms in (5000, 3000, 5000):
        buckets.bucket(due_ms, 2).append(due_ms)

    assert taken(buckets, 10_000) == [(2, [3000]), (2, [5000, 5000])]
    assert taken(buckets, 10_000_000) == []
    assert buckets.next_due_ms() is None
