"""Pending deliveries by strategy: order, schedules, blocking."""

import pytest

from cmqd.core.facts.retry_schedule import BACKOFF, EXPONENTIAL_DECAY, gap_ms
from cmqd.core.facts.subscription_backlog import Retry
from support.core.subscriber import DAY_MS, JITTER_MS, START_MS, Subscriber, exhausted, scheduled

# ---------------------------------------------------------------------- exponential decay


def test_a_message_is_retried_176_times_within_a_day_to_the_second():
    subscriber = Subscriber(1)
    gaps: list[int] = []
    assert subscriber.start() == [0]
    subscriber.fail(0)

    while (due_in_ms := subscriber.due_in_ms) is not None:
        gaps.append(due_in_ms)
        subscriber.wait()
        assert subscriber.begin() == [(0, len(gaps) + 1)]
        subscriber.fail(0)

    assert gaps == [1000 << power for power in range(9)] + [512_000] * 167
    assert len(gaps) == 176
    assert subscriber.now_ms - START_MS == 86_015_000 < DAY_MS
    assert list(subscriber.deliveries.exhausted) == [0]
    assert scheduled(subscriber.deliveries) == {0: Retry(177, 0)}


def test_the_gap_runs_from_the_start_of_the_attempt():
    subscriber = Subscriber(1)
    subscriber.start()
    subscriber.pass_ms(300)

    subscriber.fail(0)

    assert scheduled(subscriber.deliveries) == {0: Retry(1, START_MS + 1000)}
    assert subscriber.due_in_ms == 700


def test_a_failure_that_took_longer_than_the_gap_is_followed_at_once():
    subscriber = Subscriber(1)
    subscriber.start()
    subscriber.pass_ms(15_000)

    subscriber.fail(0)

    assert subscriber.due_in_ms == 0
    assert subscriber.begin() == [(0, 2)]


def test_slow_failures_push_back_only_the_retries_that_they_overtake():
    subscriber = Subscriber(1)
    pauses: list[int] = []
    for _ in range(7):
        subscriber.wait()
        subscriber.start()
        subscriber.pass_ms(15_000)
        subscriber.fail(0)
        assert subscriber.due_in_ms is not None
        pauses.append(subscriber.due_in_ms)

    assert pauses == [0, 0, 0, 0, 1000, 17_000, 49_000]


def test_messages_go_out_concurrently_the_oldest_first():
    subscriber = Subscriber(40)

    assert subscriber.start(16) == list(range(16))
    subscriber.deliver(3, 5)
    assert subscriber.start(2) == [16, 17]
    assert subscriber.start(0) == []
    assert subscriber.start(100) == list(range(18, 40))

    assert subscriber.due_in_ms is None
    assert subscriber.deliveries.waiting_count == 38
    assert subscriber.deliveries.delivered == 2


def test_what_is_due_again_goes_before_what_is_new_in_the_order_of_times():
    subscriber = Subscriber(4)
    subscriber.start(2)
    subscriber.fail(1)
    subscriber.pass_ms(1500)
    subscriber.fail(0)

    assert subscriber.begin(4) == [(1, 2), (0, 2), (2, 1), (3, 1)]


def test_one_failure_holds_nothing_up():
    subscriber = Subscriber(3)
    subscriber.start(1)

    subscriber.fail(0)

    assert not subscriber.deliveries.blocked
    assert subscriber.start() == [1, 2]


def test_after_two_failures_in_a_row_nothing_new_is_started():
    subscriber = Subscriber(5)

    subscriber.block()

    assert subscriber.deliveries.held_up
    assert subscriber.start() == []
    assert subscriber.due_in_ms == 2000


def test_each_retry_of_a_blocked_subscriber_takes_the_oldest_unsent_message_along():
    subscriber = Subscriber(5)
    subscriber.block()

    subscriber.wait()

    assert subscriber.begin() == [(0, 3), (1, 1)]
    assert subscriber.start() == []
    subscriber.fail(0, 1)
    subscriber.wait()
    assert subscriber.begin() == [(1, 2), (2, 1)]


def test_several_retries_take_one_probe_each_along():
    subscriber = Subscriber(9)
    subscriber.start(3)
    subscriber.fail(0, 1, 2)
    subscriber.pass_ms(1000)
    assert subscriber.start(3) == [0, 1, 2]
    subscriber.fail(0, 1, 2)

    subscriber.wait()

    assert subscriber.start() == [0, 3, 1, 4, 2, 5]


def test_a_probe_for_which_there_was_no_room_is_owed_and_goes_before_the_next_retry():
    subscriber = Subscriber(9)
    subscriber.start(2)
    subscriber.fail(0, 1)
    subscriber.pass_ms(1000)
    subscriber.start(2)
    subscriber.fail(0, 1)
    subscriber.wait()

    assert subscriber.start(1) == [0]
    assert subscriber.due_in_ms == 0
    assert subscriber.start(1) == [2]
    assert subscriber.start(1) == [1]
    assert subscriber.start(1) == [3]

    assert subscriber.start(1) == []
    assert subscriber.due_in_ms is None


def test_no_probe_is_owed_when_there_was_nothing_to_probe_with():
    subscriber = Subscriber(1)
    subscriber.block()
    subscriber.wait()
    assert subscriber.start() == [0]

    subscriber.publish(2)

    assert subscriber.start() == []


@pytest.mark.parametrize("which", [0, 1])
def test_any_success_unblocks(which: int):
    subscriber = Subscriber(5)
    subscriber.block()
    subscriber.wait()
    subscriber.start()

    subscriber.deliver(which)

    assert not subscriber.deliveries.blocked
    assert subscriber.start() == [2, 3, 4]


def test_a_message_that_failed_often_blocks_again_with_its_next_failure():
    subscriber = Subscriber(3)
    subscriber.block()
    subscriber.wait()
    subscriber.start()
    subscriber.deliver(1)

    subscriber.fail(0)

    assert subscriber.deliveries.blocked
    assert subscriber.start() == []


def test_a_success_cancels_the_probes_that_are_owed():
    subscriber = Subscriber(9)
    subscriber.block()
    subscriber.wait()
    assert subscriber.start(1) == [0]
    subscriber.deliver(0)
    subscriber.start(1)
    subscriber.fail(1)
    subscriber.pass_ms(1000)
    assert subscriber.start(1) == [1]

    subscriber.fail(1)

    assert subscriber.start() == []


@pytest.mark.parametrize("why", ["dropped", "life ended", "exhausted and restarted"])
def test_a_blocked_subscriber_without_retries_to_come_probes_one_at_a_time(why: str):
    # Else the subscriber would stay blocked for ever.
    subscriber = Subscriber(1)
    subscriber.block()
    if why == "exhausted and restarted":
        subscriber.exhaust()
    subscriber.publish(3)
    if why == "dropped":
        subscriber.drop(0)
    elif why == "life ended":
        subscriber.floor(1)
    else:
        subscriber.deliveries = subscriber.restarted()

    assert subscriber.due_in_ms == 0
    assert subscriber.start() == [1]
    assert subscriber.due_in_ms is None
    subscriber.fail(1)
    assert subscriber.start() == []
    subscriber.wait()
    assert subscriber.start() == [1, 2]
    subscriber.deliver(2)
    assert subscriber.start() == [3]


def test_no_more_are_tried_than_can_be_remembered():
    subscriber = Subscriber(10, max_known=3)

    assert subscriber.start() == [0, 1, 2]
    subscriber.fail(0, 1, 2)
    assert subscriber.due_in_ms == 1000
    subscriber.wait()
    assert subscriber.start() == [0, 1, 2]
    subscriber.fail(0, 1, 2)
    subscriber.wait()
    assert subscriber.start() == [0, 1, 2]  # blocked: no probe

    subscriber.deliver(1)
    assert subscriber.start() == [3]
    subscriber.fail(0, 2, 3)
    assert subscriber.deliveries.retrying_count == 3


# ---------------------------------------------------------------------- exhausted


def test_an_exhausted_message_is_not_tried_by_time_alone():
    subscriber = exhausted()

    assert subscriber.due_in_ms is None
    subscriber.pass_ms(DAY_MS)
    assert subscriber.start() == []
    assert subscriber.deliveries.retrying_count == 1


@pytest.mark.parametrize("asked_by", ["publish", "operator"])
def test_an_exhausted_message_gets_one_more_attempt(asked_by: str):
    subscriber = exhausted()
    if asked_by == "publish":
        subscriber.deliveries.published()
    else:
        assert subscriber.deliveries.retry_now() == 1

    assert subscriber.due_in_ms == 0
    assert subscriber.begin() == [(0, 178)]
    subscriber.fail(0)
    assert subscriber.due_in_ms is None
    assert subscriber.start() == []
    assert scheduled(subscriber.deliveries) == {0: Retry(178, 0)}

    subscriber.deliveries.published()
    subscriber.start()
    subscriber.deliver(0)
    assert not subscriber.deliveries.pending()
    assert not subscriber.deliveries.exhausted


def test_several_publishes_before_the_attempt_give_one():
    subscriber = exhausted()
    for _ in range(3):
        subscriber.deliveries.published()

    assert subscriber.start() == [0]
    subscriber.deliveries.published()
    subscriber.fail(0)

    assert subscriber.start() == []


def test_the_attempt_of_an_exhausted_message_takes_a_probe_along():
    subscriber = exhausted()

    subscriber.publish(3)

    assert subscriber.begin() == [(0, 178), (1, 1)]


def test_a_publish_makes_nothing_else_due():
    subscriber = Subscriber(1)
    subscriber.start()
    subscriber.fail(0)

    subscriber.deliveries.published()

    assert subscriber.due_in_ms == 1000


def test_retry_now_makes_all_in_retry_due_at_once_the_oldest_first():
    subscriber = Subscriber(3)
    subscriber.start()
    subscriber.fail(2, 0, 1)

    assert subscriber.deliveries.retry_now() == 3

    assert subscriber.begin(2) == [(0, 2), (1, 2)]
    assert subscriber.deliveries.retry_now() == 1  # messages under way are not tried twice
    subscriber.fail(0, 1)
    assert subscriber.begin() == [(2, 2)]
    assert subscriber.due_in_ms == 2000


def test_retry_now_helps_one_attempt_only():
    subscriber = Subscriber(1)
    subscriber.block()
    subscriber.deliveries.retry_now()
    subscriber.start()

    subscriber.fail(0)

    assert scheduled(subscriber.deliveries) == {0: Retry(3, subscriber.now_ms + 4000)}
    subscriber.pass_ms(2000)
    assert subscriber.start() == []
    subscriber.pass_ms(2000)
    assert subscriber.start() == [0]


# ---------------------------------------------------------------------- backoff


def test_backoff_delivers_in_order_one_at_a_time():
    subscriber = Subscriber(3, BACKOFF)
    order: list[int] = []

    for _ in range(3):
        (position,) = subscriber.start()
        assert subscriber.start() == []
        assert subscriber.due_in_ms is None
        subscriber.deliver(position)
        order.append(position)

    assert order == [0, 1, 2]
    assert subscriber.start() == []
    assert subscriber.deliveries.delivered == 3


@pytest.mark.parametrize("jitter_ms", [10_000, 13_371, 20_000])
@pytest.mark.parametrize("took_ms", [0, 14_999])
def test_backoff_tries_three_times_more_each_after_the_jitter_from_the_end_of_the_failure(jitter_ms: int, took_ms: int):
    subscriber = Subscriber(2, BACKOFF)
    for attempt in (1, 2, 3):
        assert subscriber.begin() == [(0, attempt)]
        subscriber.pass_ms(took_ms)
        subscriber.fail(0, jitter_ms=jitter_ms)
        assert scheduled(subscriber.deliveries) == {0: Retry(attempt, subscriber.now_ms + jitter_ms)}
        subscriber.wait()

    assert subscriber.begin() == [(0, 4)]
    subscriber.pass_ms(took_ms)
    subscriber.fail(0, jitter_ms=jitter_ms)

    assert not subscriber.deliveries.is_pending(0)
    assert subscriber.deliveries.dropped == 1
    assert subscriber.now_ms - START_MS == 4 * took_ms + 3 * jitter_ms
    assert subscriber.begin() == [(1, 1)]


def test_the_99_behind_the_101st_wait_and_go_out_in_order_each_dropped_after_three_retries():
    # Scenario 4 of spec 3.6.
    subscriber = Subscriber(200, BACKOFF)
    for position in range(100):
        assert subscriber.start() == [position]
        subscriber.deliver(position)
    assert subscriber.start() == [100]
    subscriber.fail(100)
    assert subscriber.start() == []
    assert (subscriber.deliveries.waiting_count, subscriber.deliveries.retrying_count) == (99, 1)

    subscriber.publish(100)
    assert subscriber.start() == []
    assert len(subscriber.deliveries.pending()) == 200

    attempts: list[tuple[int, int]] = [(100, 1)]
    while len(attempts) < 400:
        subscriber.wait()
        attempts += subscriber.begin()
        subscriber.fail(attempts[-1][0])
    assert attempts == [(position, attempt) for position in range(100, 200) for attempt in (1, 2, 3, 4)]
    assert subscriber.deliveries.dropped == 100

    assert subscriber.start() == [200]
    subscriber.deliver(200)
    assert subscriber.start() == [201]


def test_a_success_at_a_retry_lets_the_next_go_out_with_four_attempts_of_its_own():
    subscriber = Subscriber(2, BACKOFF)
    for _ in range(3):
        subscriber.start()
        subscriber.fail(0)
        subscriber.wait()
    subscriber.start()
    subscriber.deliver(0)

    assert subscriber.begin() == [(1, 1)]
    subscriber.fail(1)

    assert subscriber.deliveries.is_pending(1)


def test_a_block_has_no_effect_under_backoff():
    subscriber = Subscriber(3, BACKOFF)
    for _ in range(4):
        subscriber.start()
        subscriber.fail(0)
        subscriber.wait()

    assert subscriber.deliveries.blocked
    assert not subscriber.deliveries.held_up
    assert subscriber.start() == [1]


def test_retry_now_under_backoff_ends_the_pause_of_the_first():
    subscriber = Subscriber(2, BACKOFF)
    subscriber.start()
    subscriber.fail(0)

    assert subscriber.deliveries.retry_now() == 1

    assert subscriber.due_in_ms == 0
    assert subscriber.begin() == [(0, 2)]


# ---------------------------------------------------------------------- strategies exchanged


def test_under_backoff_the_oldest_pending_goes_first_whatever_state_it_is_in():
    subscriber = exhausted(waiting=4)
    subscriber.deliveries.published()
    subscriber.start(2)
    subscriber.deliver(0)
    subscriber.fail(1)
    subscriber.start(2)
    subscriber.deliver(3)
    subscriber.give_back(2)

    subscriber.deliveries.strategy = BACKOFF

    order: list[int] = []
    while (due_in_ms := subscriber.due_in_ms) is not None:
        subscriber.pass_ms(due_in_ms)
        order += subscriber.start()
        subscriber.deliver(order[-1])
    assert order == [1, 2, 4]


def test_a_time_set_before_is_kept_under_backoff_until_it_is_tried():
    subscriber = Subscriber(2)
    subscriber.block()
    subscriber.deliveries.strategy = BACKOFF

    assert subscriber.due_in_ms == 2000
    subscriber.wait()
    assert subscriber.begin() == [(0, 3)]
    subscriber.fail(0)

    assert subscriber.due_in_ms == JITTER_MS


@pytest.mark.parametrize("failures", [3, 4, 50])
def test_one_that_failed_three_times_or_more_is_dropped_under_backoff_when_it_fails_again(failures: int):
    subscriber = Subscriber(1)
    for _ in range(failures):
        subscriber.wait()
        subscriber.start()
        subscriber.fail(0)
    subscriber.publish()
    subscriber.deliveries.strategy = BACKOFF
    subscriber.wait()
    assert subscriber.begin() == [(0, failures + 1)]

    subscriber.fail(0)

    assert subscriber.deliveries.dropped == 1
    assert subscriber.start() == [1]


def test_an_exhausted_message_has_its_turn_under_backoff():
    subscriber = exhausted(waiting=1)
    subscriber.deliveries.strategy = BACKOFF

    assert subscriber.due_in_ms == 0
    assert subscriber.begin() == [(0, 178)]
    subscriber.fail(0)

    assert subscriber.deliveries.dropped == 1
    assert subscriber.begin() == [(1, 1)]


def test_backoff_begins_when_all_that_was_under_way_has_ended():
    subscriber = Subscriber(6)
    assert subscriber.start(3) == [0, 1, 2]
    subscriber.deliveries.strategy = BACKOFF

    assert subscriber.due_in_ms is None
    subscriber.deliver(0)
    subscriber.fail(1)
    assert subscriber.start() == []
    subscriber.deliver(2)
    assert subscriber.due_in_ms == JITTER_MS
    subscriber.wait()
    assert subscriber.start() == [1]


def test_after_backoff_a_subscriber_whose_message_failed_twice_is_blocked():
    subscriber = Subscriber(4, BACKOFF)
    for _ in range(2):
        subscriber.wait()
        subscriber.start()
        subscriber.fail(0)

    subscriber.deliveries.strategy = EXPONENTIAL_DECAY

    assert subscriber.due_in_ms == JITTER_MS
    subscriber.wait()
    assert subscriber.begin() == [(0, 3), (1, 1)]
    subscriber.fail(0)
    assert scheduled(subscriber.deliveries)[0] == Retry(3, subscriber.now_ms + gap_ms(3))


def test_after_backoff_dropped_all_that_failed_a_blocked_subscriber_probes():
    subscriber = Subscriber(4, BACKOFF)
    for _ in range(4):
        subscriber.wait()
        subscriber.start()
        subscriber.fail(0)

    subscriber.deliveries.strategy = EXPONENTIAL_DECAY

    assert subscriber.start() == [1]
    subscriber.deliver(1)
    assert subscriber.start() == [2, 3]
