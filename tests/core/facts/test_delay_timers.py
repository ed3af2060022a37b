"""Timers of delays: far times in spans, near times in fine buckets, and the move from spans to buckets."""

import pytest

from cmqd.core.facts.delay_timers import LEAD_MS, SPAN_MS, DelayTimers

DAY_MS = 86_400_000
NOW_MS = 1_000 * SPAN_MS
"""The beginning of a span."""


def timers_at(now_ms: int = NOW_MS) -> DelayTimers:
    timers = DelayTimers(20)
    timers.bring_near(now_ms, 10)
    return timers


def add(timers: DelayTimers, *entries: tuple[int, int, int]) -> None:
    """(due, queue, position) of every entry."""
    for due_ms, queue_id, position in entries:
        timers.bucket(due_ms, queue_id).append(position)
        timers.size += 1


def positions(timers: DelayTimers, queue_id: int) -> dict[int, int]:
    """Due times by position."""
    return {position: due_ms for due_ms, numbers in timers.of_queue(queue_id) for position in numbers}


def taken(timers: DelayTimers, now_ms: int) -> list[int]:
    numbers: list[int] = []
    while (due := timers.near.take_due(now_ms, 1000)) is not None:
        numbers += due[1]
    return sorted(numbers)


def test_near_times_go_to_fine_buckets_and_far_times_do_not():
    timers = timers_at()

    add(timers, (NOW_MS + 1000, 1, 7), (NOW_MS + 10 * DAY_MS, 1, 8))

    assert timers.near.next_due_ms() == NOW_MS + 1000
    assert [list(pairs) for pairs in timers.far_of_queue(1)] == [[NOW_MS + 10 * DAY_MS, 8]]
    assert positions(timers, 1) == {7: NOW_MS + 1000, 8: NOW_MS + 10 * DAY_MS}
    assert timers.size == 2


def test_a_million_far_times_cost_sixteen_bytes_each():
    timers = timers_at()

    for position in range(100_000):
        timers.bucket(NOW_MS + DAY_MS + position * 12_000, 1).append(position)

    far = timers.far_of_queue(1)
    assert sum(len(pairs) * pairs.itemsize for pairs in far) == 1_600_000
    assert len(far) <= 14 * DAY_MS // SPAN_MS + 2
    assert not timers.near.heap


def test_entries_move_before_their_span_begins_and_keep_their_times():
    timers = timers_at()
    span_ms = NOW_MS + 5 * SPAN_MS
    add(timers, (span_ms, 1, 1), (span_ms + 41, 1, 2), (span_ms + SPAN_MS, 1, 3))
    assert timers.bring_near_due_ms() == span_ms - LEAD_MS

    timers.bring_near(span_ms - LEAD_MS - 1, 100)
    assert timers.near.next_due_ms() is None
    timers.bring_near(span_ms - LEAD_MS, 100)

    assert timers.near.next_due_ms() == span_ms
    assert positions(timers, 1) == {1: span_ms, 2: span_ms + 60, 3: -(-(span_ms + SPAN_MS) // 20) * 20}
    assert timers.bring_near_due_ms() == span_ms + SPAN_MS - LEAD_MS
    assert taken(timers, span_ms + 60) == [1, 2]
    assert timers.size == 1


def test_entries_move_in_slices_and_stay_due_until_all_have_moved():
    timers = timers_at()
    span_ms = NOW_MS + 5 * SPAN_MS
    add(timers, *((span_ms + 20 * number, number % 3, number) for number in range(25)))
    slices = 0

    while (due_ms := timers.bring_near_due_ms()) is not None and due_ms <= span_ms:
        timers.bring_near(span_ms, 4)
        slices += 1
        # A new time in the span waits for its turn like the earlier times.
        if slices == 2:
            add(timers, (span_ms + 1000, 1, 99))

    assert 7 <= slices <= 9
    assert taken(timers, span_ms + 1000) == [*range(25), 99]
    assert timers.size == 0


def test_times_that_passed_meanwhile_come_due_at_once():
    timers = timers_at()
    add(timers, (NOW_MS + 2 * DAY_MS, 1, 1), (NOW_MS + 3 * DAY_MS, 2, 2))

    timers.bring_near(NOW_MS + 9 * DAY_MS, 100)

    assert taken(timers, NOW_MS + 9 * DAY_MS) == [1, 2]
    assert timers.bring_near_due_ms() is None


def test_far_entries_of_a_queue_are_dropped():
    timers = timers_at()
    add(timers, (NOW_MS + 2 * DAY_MS, 1, 1), (NOW_MS + 3 * DAY_MS, 2, 2), (NOW_MS + 3 * DAY_MS, 1, 3))

    timers.drop_far(1)

    assert positions(timers, 1) == {}
    assert positions(timers, 2) == {2: NOW_MS + 3 * DAY_MS}
    assert timers.size == 1
    timers.bring_near(NOW_MS + 9 * DAY_MS, 100)
    assert taken(timers, NOW_MS + 9 * DAY_MS) == [2]


def test_the_fine_buckets_are_those_of_a_span_and_the_lead_at_most():
    """The table of buckets is copied whole when it grows, so a call takes milliseconds if the table is large."""
    timers = timers_at()
    add(timers, *((NOW_MS + 10 * SPAN_MS + 20 * number, number % 3, number) for number in range(5 * SPAN_MS // 20)))
    taken_count = most_buckets = 0

    while timers.size:
        due_ms = min(due for due in (timers.bring_near_due_ms(), timers.near.next_due_ms()) if due is not None)
        timers.bring_near(due_ms, 400)
        most_buckets = max(most_buckets, len(timers.near.heap))
        taken_count += len(taken(timers, due_ms))

    assert taken_count == 5 * SPAN_MS // 20
    assert most_buckets <= (SPAN_MS + LEAD_MS) // 20 + 1
    assert most_buckets < 43_690, "a table of so many buckets takes more than 2 ms to grow"


def test_entries_that_were_dropped_or_moved_leave_nothing_behind():
    timers = timers_at()
    for day in range(1, 10):
        add(
            timers,
            (NOW_MS + day * DAY_MS, 1, day),
            (NOW_MS + day * DAY_MS, 2, day),
            (NOW_MS + day * DAY_MS + 1, 3, day),
        )
    timers.bring_near(NOW_MS + 4 * DAY_MS, 5)

    timers.drop_far(2)
    timers.bring_near(NOW_MS + 4 * DAY_MS, 100)
    timers.no_later_than({1: NOW_MS + 5 * DAY_MS})
    timers.drop_far(3)
    timers.drop_far(3)

    assert [timers.far_of_queue(queue_id) for queue_id in (2, 3)] == [[], []]
    timers.bring_near(NOW_MS + 9 * DAY_MS, 100)
    assert timers.bring_near_due_ms() is None
    assert timers.far_of_queue(1) == []
    near = taken(timers, NOW_MS + 10 * DAY_MS)
    assert near.count(9) == 1
    assert timers.size == 0


@pytest.mark.parametrize("near_ms", [0, 30 * DAY_MS])
def test_after_a_step_back_no_entry_lies_beyond_its_bound(near_ms: int):
    """With the entries in spans, and with all entries near."""
    timers = timers_at()
    add(timers, (NOW_MS + DAY_MS, 1, 1), (NOW_MS + 9 * DAY_MS, 1, 2), (NOW_MS + 9 * DAY_MS, 2, 3))
    add(timers, (NOW_MS + 9 * DAY_MS, 3, 4))
    timers.bring_near(NOW_MS + near_ms, 100)

    timers.no_later_than({1: NOW_MS + 2 * DAY_MS, 2: NOW_MS + DAY_MS})

    assert positions(timers, 1) == {1: NOW_MS + DAY_MS, 2: NOW_MS + 2 * DAY_MS}
    assert positions(timers, 2) == {3: NOW_MS + DAY_MS}
    assert positions(timers, 3) == {4: NOW_MS + 9 * DAY_MS}
    assert timers.size == 4


def test_after_a_step_back_new_far_times_are_far_again():
    timers = timers_at(NOW_MS + 400 * DAY_MS)

    timers.no_later_than({})
    add(timers, (NOW_MS + 5 * DAY_MS, 1, 1))
    timers.bring_near(NOW_MS, 100)

    assert not timers.near.heap
    assert len(timers.far_of_queue(1)) == 1
