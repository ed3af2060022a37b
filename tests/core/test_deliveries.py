"""What a subscriber has not had yet (spec 3.5): schedules, order, blocking, and that facts alone bring it back."""

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap64

from cmqd.core.deliveries import BACKOFF, EXPONENTIAL_DECAY, Deliveries, Retry, gap_ms
from cmqd_segment.records import DeliveriesDropped, DeliveriesFailed, MessagesDelivered, runs_of

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
JITTER_MS = 15_000

Fact = MessagesDelivered | DeliveriesFailed | DeliveriesDropped | tuple[str, int, int]
"""A record; or ``("waiting", first, stop)``, ``("floor", floor, 0)``."""


def apply(deliveries: Deliveries, fact: Fact) -> None:
    match fact:
        case MessagesDelivered():
            deliveries.apply_delivered(fact)
        case DeliveriesFailed():
            deliveries.apply_failed(fact)
        case DeliveriesDropped():
            deliveries.apply_dropped(fact)
        case ("floor", floor, _):
            deliveries.apply_floor(floor)
        case (_, first, stop):
            deliveries.apply_waiting(first, stop)


def facts(deliveries: Deliveries) -> dict[str, object]:
    """All that a restart must bring back."""
    return {
        "waiting": list(deliveries.waiting),
        "retries": dict(deliveries.retries),
        "exhausted": list(deliveries.exhausted),
        "blocked": deliveries.blocked,
        "totals": (deliveries.delivered, deliveries.dropped),
        "last error": (deliveries.last_error, deliveries.last_error_ms),
    }


class Subscriber:
    """Deliveries, with a clock, what a broker does with them, and the facts of it."""

    def __init__(
        self, published: int = 0, strategy: str = EXPONENTIAL_DECAY, *, paused: bool = False, max_known: int = 100_000
    ) -> None:
        self.deliveries = Deliveries(strategy, paused=paused, max_known=max_known)
        self.facts: list[Fact] = []
        self.started_ms: dict[int, int] = {}
        self.now_ms = START_MS
        self.count = 0
        if published:
            self.publish(published)

    def note(self, fact: Fact) -> None:
        self.facts.append(fact)
        apply(self.deliveries, fact)
        self.deliveries.check_invariants()

    def publish(self, count: int = 1) -> None:
        self.note(("waiting", self.count, self.count + count))
        self.count += count
        self.deliveries.published()

    def begin(self, room: int = 16) -> list[tuple[int, int]]:
        started = self.deliveries.start(self.now_ms, room)
        self.deliveries.check_invariants()
        self.started_ms |= {position: self.now_ms for position, _ in started}
        return started

    def start(self, room: int = 16) -> list[int]:
        """The positions of what goes out now."""
        return [position for position, _ in self.begin(room)]

    def deliver(self, *positions: int) -> None:
        self.note(MessagesDelivered(1, 2, runs_of(sorted(positions)), self.now_ms))

    def fail(self, *positions: int, jitter_ms: int = JITTER_MS) -> None:
        """Record it as a broker does: of one that is to be dropped, the failure too."""
        for position in positions:
            attempts, next_ms = self.deliveries.judge(position, self.started_ms[position], self.now_ms, jitter_ms)
            self.note(DeliveriesFailed(1, 2, [position, 1], [attempts], [next_ms or 0], "no answer", self.now_ms))
            if next_ms is None:
                self.drop(position, reason="retries")

    def drop(self, *positions: int, reason: str = "operator") -> None:
        self.note(DeliveriesDropped(1, 2, runs_of(sorted(positions)), reason, self.now_ms))

    def floor(self, floor: int) -> None:
        self.note(("floor", floor, 0))

    def give_back(self, *positions: int) -> None:
        for position in positions:
            self.deliveries.given_back(position)
            self.deliveries.check_invariants()

    @property
    def due_in_ms(self) -> int | None:
        due_ms = self.deliveries.next_due_ms(self.now_ms)
        return None if due_ms is None else max(due_ms - self.now_ms, 0)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def wait(self) -> None:
        """Until something is due; not a millisecond earlier is anything started."""
        due_in_ms = self.due_in_ms
        assert due_in_ms is not None
        if due_in_ms:
            self.pass_ms(due_in_ms - 1)
            assert self.start() == []
            self.pass_ms(1)

    def block(self) -> None:
        """The oldest message fails twice, as the only one that is tried; a third attempt is due in two seconds."""
        (first,) = self.start(1)
        self.fail(first)
        self.pass_ms(1000)
        assert self.start(1) == [first]
        self.fail(first)
        assert self.deliveries.blocked

    def exhaust(self) -> None:
        """All that are tried fail until no retry is left."""
        while (due_in_ms := self.due_in_ms) is not None:
            self.pass_ms(due_in_ms)
            self.fail(*self.start())

    def restarted(self) -> Deliveries:
        """From the facts alone."""
        restarted = Deliveries(self.deliveries.strategy, paused=self.deliveries.paused)
        for fact in self.facts:
            apply(restarted, fact)
        restarted.check_invariants()
        return restarted


def reloaded(deliveries: Deliveries, size: int = 2) -> Deliveries:
    """Through a checkpoint."""
    waiting = BitMap64.deserialize(deliveries.waiting.serialize())
    parts = list(deliveries.retry_parts(size))
    assert all(1 <= len(part) <= size for part in parts)

    loaded = Deliveries(deliveries.strategy, paused=deliveries.paused, max_known=deliveries.max_known)
    loaded.load(
        waiting,
        blocked=deliveries.blocked,
        delivered=deliveries.delivered,
        dropped=deliveries.dropped,
        last_error=deliveries.last_error,
        last_error_ms=deliveries.last_error_ms,
    )
    for part in parts:
        loaded.load_retries(part)
    loaded.check_invariants()
    return loaded


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
    assert subscriber.deliveries.retries == {0: Retry(177, 0)}


def test_the_gap_runs_from_the_start_of_the_attempt():
    subscriber = Subscriber(1)
    subscriber.start()
    subscriber.pass_ms(300)

    subscriber.fail(0)

    assert subscriber.deliveries.retries == {0: Retry(1, START_MS + 1000)}
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
    # Else it would stay blocked for ever.
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


def exhausted(waiting: int = 0) -> Subscriber:
    """The first message has used up its retries."""
    subscriber = Subscriber(1)
    subscriber.exhaust()
    assert list(subscriber.deliveries.exhausted) == [0]
    if waiting:
        subscriber.note(("waiting", 1, 1 + waiting))
        subscriber.count += waiting
    return subscriber


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
    assert subscriber.deliveries.retries == {0: Retry(178, 0)}

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
    assert subscriber.deliveries.retry_now() == 1  # those under way are not tried twice
    subscriber.fail(0, 1)
    assert subscriber.begin() == [(2, 2)]
    assert subscriber.due_in_ms == 2000


def test_retry_now_helps_one_attempt_only():
    subscriber = Subscriber(1)
    subscriber.block()
    subscriber.deliveries.retry_now()
    subscriber.start()

    subscriber.fail(0)

    assert subscriber.deliveries.retries == {0: Retry(3, subscriber.now_ms + 4000)}
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
        assert subscriber.deliveries.retries == {0: Retry(attempt, subscriber.now_ms + jitter_ms)}
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


def test_nobody_minds_being_blocked_under_backoff():
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
    assert subscriber.deliveries.retries[0] == Retry(3, subscriber.now_ms + gap_ms(3))


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


# ---------------------------------------------------------------------- pauses, gone while under way, given back


def test_nothing_is_started_while_paused_and_due_retries_go_afterwards():
    subscriber = Subscriber(4)
    assert subscriber.start(2) == [0, 1]
    subscriber.deliveries.paused = True

    subscriber.fail(0)
    subscriber.deliver(1)
    subscriber.pass_ms(5000)
    assert subscriber.due_in_ms is None
    assert subscriber.start() == []
    subscriber.deliveries.retry_now()
    assert subscriber.start() == []

    subscriber.deliveries.paused = False
    assert subscriber.due_in_ms == 0
    assert subscriber.begin() == [(0, 2), (2, 1), (3, 1)]


def test_what_is_given_back_is_as_if_never_started():
    subscriber = Subscriber(4)
    subscriber.start(2)

    subscriber.give_back(0, 1)

    assert not subscriber.deliveries.under_way
    assert subscriber.begin(3) == [(0, 1), (1, 1), (2, 1)]


def test_a_retry_given_back_is_due_at_once_with_the_same_number():
    subscriber = Subscriber(1)
    subscriber.start()
    subscriber.fail(0)
    subscriber.wait()
    subscriber.start()

    subscriber.give_back(0)

    assert subscriber.deliveries.retries == {0: Retry(1, START_MS + 1000)}
    assert subscriber.due_in_ms == 0
    assert subscriber.begin() == [(0, 2)]


def test_an_exhausted_message_given_back_still_has_its_attempt():
    subscriber = exhausted()
    subscriber.deliveries.published()
    subscriber.start()

    subscriber.give_back(0)

    assert subscriber.begin() == [(0, 178)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_retry_and_its_probe_given_back_go_out_as_a_pair_again(order: tuple[int, int]):
    subscriber = Subscriber(5)
    subscriber.block()
    subscriber.wait()
    assert subscriber.start() == [0, 1]

    subscriber.give_back(*order)

    assert sorted(subscriber.start()) == [0, 1]
    assert subscriber.start() == []


def test_a_probe_given_back_is_owed():
    subscriber = Subscriber(5)
    subscriber.block()
    subscriber.wait()
    subscriber.start()

    subscriber.give_back(1)

    assert subscriber.due_in_ms == 0
    assert subscriber.start() == [1]
    assert subscriber.start() == []


def test_a_retry_that_had_no_probe_takes_one_along_though_it_was_given_back_often():
    subscriber = Subscriber(1)
    subscriber.block()
    subscriber.wait()
    for _ in range(3):
        assert subscriber.start() == [0]
        subscriber.give_back(0)

    subscriber.publish(2)

    assert subscriber.start() == [0, 1]


def test_giving_back_what_is_not_under_way_changes_nothing():
    subscriber = Subscriber(2)
    subscriber.block()
    before = facts(subscriber.deliveries)

    subscriber.give_back(0, 1, 99)

    assert facts(subscriber.deliveries) == before
    assert subscriber.start() == []


def test_what_an_operator_dropped_while_it_was_under_way_keeps_its_place_until_it_ends():
    subscriber = Subscriber(3, BACKOFF)
    subscriber.start()

    subscriber.drop(0)

    assert not subscriber.deliveries.is_pending(0)
    assert subscriber.start() == []
    subscriber.give_back(0)
    assert subscriber.start() == [1]


@pytest.mark.parametrize("result", ["delivered", "failed"])
def test_a_result_that_comes_after_the_message_is_gone_brings_nothing_back(result: str):
    subscriber = Subscriber(2)
    subscriber.start()
    subscriber.floor(1)

    if result == "delivered":
        subscriber.deliver(0)
    else:
        subscriber.fail(0)

    assert list(subscriber.deliveries.pending()) == [1]
    assert subscriber.deliveries.delivered == 0
    assert subscriber.deliveries.dropped == 1
    assert list(subscriber.deliveries.under_way) == [1]


def test_a_message_tried_as_it_was_published_fails_like_any_other():
    subscriber = Subscriber(2)
    subscriber.deliveries.begin(1)
    subscriber.started_ms[1] = subscriber.now_ms

    subscriber.fail(1)

    assert subscriber.deliveries.retries == {1: Retry(1, START_MS + 1000)}
    assert subscriber.start() == [0]


# ---------------------------------------------------------------------- ends of lives, counts


def test_below_a_floor_nothing_is_left_in_any_state():
    for floor in range(7):
        subscriber = exhausted(waiting=5)
        subscriber.deliveries.published()
        assert subscriber.start() == [0, 1]
        subscriber.fail(0, 1)
        subscriber.pass_ms(1000)
        assert subscriber.start(1) == [1]  # its probe is owed

        dropped = subscriber.deliveries.apply_floor(floor)
        subscriber.deliveries.check_invariants()

        assert dropped == subscriber.deliveries.dropped == min(floor, 6)
        assert list(subscriber.deliveries.pending()) == list(range(floor, 6))
        assert list(subscriber.deliveries.exhausted) == ([] if floor else [0])
        assert subscriber.deliveries.first_pending() == (floor if floor < 6 else None)


def test_counts_tell_what_was_tried_from_what_was_not():
    subscriber = exhausted(waiting=5)
    subscriber.deliveries.published()
    subscriber.start()
    subscriber.fail(0, 1)
    deliveries = subscriber.deliveries

    assert (deliveries.waiting_count, deliveries.retrying_count, deliveries.pending_count) == (4, 2, 6)
    assert deliveries.live_in(0, 3) == 3
    assert deliveries.live_in(1, 2) == 1
    assert deliveries.live_in(6, 99) == 0
    assert (deliveries.last_error, deliveries.last_error_ms) == ("no answer", subscriber.now_ms)


def test_of_a_batch_each_message_has_its_own_attempts_and_time():
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 10)

    deliveries.apply_failed(DeliveriesFailed(1, 2, [2, 2, 3, 1], [1, 5, 177], [1000, 9000, 0], "503", 50))

    deliveries.check_invariants()
    assert deliveries.retries == {2: Retry(1, 1000), 3: Retry(5, 9000), 7: Retry(177, 0)}
    assert list(deliveries.exhausted) == [7]
    assert list(deliveries.waiting) == [0, 1, 4, 5, 6, 8, 9]


def test_what_a_record_says_counts_whatever_was_known_before():
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 1)
    deliveries.apply_failed(DeliveriesFailed(1, 2, [0, 1], [177], [0], "503", 50))

    deliveries.apply_failed(DeliveriesFailed(1, 2, [0, 1], [178], [9000], "503", 60))

    deliveries.check_invariants()
    assert not deliveries.exhausted
    assert deliveries.next_due_ms(60) == 9000


def test_a_long_run_ends_the_attempts_within_it():
    subscriber = Subscriber(9)
    subscriber.start(2)
    subscriber.deliver(0)

    subscriber.deliver(1, 2, 3, 4)

    assert not subscriber.deliveries.under_way
    assert subscriber.deliveries.delivered == 5
    assert subscriber.deliveries.upcoming(2) == [5, 6]
    assert subscriber.start(1) == [5]
    assert subscriber.deliveries.upcoming(9) == [6, 7, 8]


# ---------------------------------------------------------------------- restarts, size


@pytest.mark.parametrize("strategy", [EXPONENTIAL_DECAY, BACKOFF])
def test_after_a_restart_nothing_is_under_way_and_attempts_and_times_are_not_forgotten(strategy: str):
    subscriber = Subscriber(1, strategy)
    for _ in range(2):
        subscriber.wait()
        subscriber.start()
        subscriber.fail(0)
    subscriber.publish(2)
    due_in_ms = subscriber.due_in_ms
    assert due_in_ms
    subscriber.wait()
    under_way = subscriber.begin()
    subscriber.pass_ms(-due_in_ms)

    for deliveries in (subscriber.restarted(), reloaded(subscriber.deliveries)):
        assert not deliveries.under_way
        assert facts(deliveries) == facts(subscriber.deliveries)
        assert deliveries.next_due_ms(subscriber.now_ms) == subscriber.now_ms + due_in_ms
        assert deliveries.start(subscriber.now_ms + due_in_ms - 1, 16) == []
        assert deliveries.start(subscriber.now_ms + due_in_ms, 16) == under_way


def test_a_checkpoint_under_way_is_not_changed_by_what_happens_meanwhile():
    subscriber = Subscriber(5)
    subscriber.start()
    subscriber.fail(*range(5))
    parts = subscriber.deliveries.retry_parts(2)
    first = next(parts)

    subscriber.pass_ms(1000)
    subscriber.start()
    subscriber.fail(0, 1, 2)
    subscriber.deliver(3, 4)

    assert [first, *parts] == [
        [(0, 1, START_MS + 1000), (1, 1, START_MS + 1000)],
        [(2, 1, START_MS + 1000), (3, 1, START_MS + 1000)],
        [(4, 1, START_MS + 1000)],
    ]


def test_stale_times_do_not_pile_up():
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 1)
    for attempt in range(1, 10_000):
        deliveries.apply_failed(DeliveriesFailed(1, 2, [0, 1], [attempt], [START_MS + attempt], "503", START_MS))

    deliveries.check_invariants()
    assert len(deliveries._heap) < 1100  # pyright: ignore[reportPrivateUsage]
    assert deliveries.next_due_ms(START_MS) == START_MS + 9_999


def test_a_start_does_not_look_at_all_that_waits():
    # Not a benchmark: a scan of either would take a hundred times longer than this allows.
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 1_000_000)
    deliveries.load_retries((position, 2, START_MS + position) for position in range(1_000_000, 1_090_000))
    began = time.process_time()

    for number in range(100):
        started = deliveries.start(START_MS, 16)
        assert started == [(16 * number + one, 1) for one in range(16)]
        assert deliveries.next_due_ms(START_MS) == START_MS

    assert time.process_time() - began < 0.5


# ---------------------------------------------------------------------- anything, in any order

many = st.integers(1, 6)
picks = st.integers(0, 1 << 16)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: the facts alone bring everything back, and what is started is what the rules allow."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriber = Subscriber()

    @initialize(strategy=st.sampled_from([EXPONENTIAL_DECAY, BACKOFF]), max_known=st.sampled_from([4, 100_000]))
    def begin(self, strategy: str, max_known: int):
        self.subscriber = Subscriber(strategy=strategy, max_known=max_known)

    @property
    def deliveries(self) -> Deliveries:
        return self.subscriber.deliveries

    @rule(count=many)
    def publish(self, count: int):
        self.subscriber.publish(count)

    @rule(room=st.integers(0, 5))
    def start(self, room: int):
        deliveries, now_ms = self.deliveries, self.subscriber.now_ms
        due_ms = deliveries.next_due_ms(now_ms)
        under_way = dict(deliveries.under_way)
        unsent = [position for position in deliveries.waiting if position not in under_way]
        blocked, known = deliveries.blocked, len(deliveries.retries)
        first = deliveries.first_pending()

        started = self.subscriber.begin(room)

        is_due = due_ms is not None and due_ms <= now_ms
        assert bool(started) == (is_due and room > 0)
        assert len(started) <= room
        assert not under_way.keys() & dict(started)
        new = [position for position, attempt in started if attempt == 1]
        retried = [position for position, attempt in started if attempt > 1]
        assert new == unsent[: len(new)]
        assert deliveries.under_way == under_way | dict(started)
        if deliveries.strategy == BACKOFF:
            assert not started or (not under_way and [position for position, _ in started] == [first])
        elif new:
            assert known + sum(attempt == 1 for attempt in deliveries.under_way.values()) <= deliveries.max_known
            # One may have been owed from before, by a retry or for want of any.
            assert not blocked or len(new) <= len(retried) + max(1, self.owed_before)
        if blocked:
            self.owed_before = max(self.owed_before + len(retried) - len(new), 0)

    owed_before = 0
    """A bound on the probes that are owed."""

    def pick(self, number: int) -> list[int]:
        """One or two of those under way."""
        under_way = sorted(self.deliveries.under_way)
        first = number % len(under_way)
        return under_way[first : first + 1 + number % 2]

    @precondition(lambda self: self.deliveries.under_way)
    @rule(number=picks)
    def deliver(self, number: int):
        self.subscriber.deliver(*self.pick(number))
        self.owed_before = 0

    @precondition(lambda self: self.deliveries.under_way)
    @rule(number=picks, jitter_ms=st.integers(10_000, 20_000))
    def fail(self, number: int, jitter_ms: int):
        self.subscriber.fail(*self.pick(number), jitter_ms=jitter_ms)

    @precondition(lambda self: self.deliveries.under_way)
    @rule()
    def fail_all(self):
        self.subscriber.fail(*self.deliveries.under_way)

    @precondition(lambda self: self.deliveries.under_way)
    @rule(number=picks)
    def give_back(self, number: int):
        positions = self.pick(number)
        before = facts(self.deliveries)
        self.subscriber.give_back(*positions)
        assert facts(self.deliveries) == before
        self.owed_before += len(positions)

    @precondition(lambda self: self.deliveries.retries)
    @rule()
    def use_up(self):
        """As if 176 retries had failed."""
        position = next(iter(self.deliveries.retries))
        self.subscriber.note(DeliveriesFailed(1, 2, [position, 1], [177], [0], "503", self.subscriber.now_ms))

    @precondition(lambda self: self.deliveries.pending())
    @rule(number=picks)
    def drop_some(self, number: int):
        pending = list(self.deliveries.pending())
        first = number % len(pending)
        self.subscriber.drop(*pending[first : first + 2])

    @rule(number=picks)
    def end_lives(self, number: int):
        floor = (self.deliveries.first_pending() or 0) + number % 3
        self.subscriber.floor(floor)

    @rule()
    def retry_now(self):
        under_way = self.deliveries.under_way.keys()
        assert self.deliveries.retry_now() == len(self.deliveries.retries.keys() - under_way)

    @rule(strategy=st.sampled_from([EXPONENTIAL_DECAY, BACKOFF]))
    def change_strategy(self, strategy: str):
        self.deliveries.strategy = strategy

    @rule()
    def pause_or_resume(self):
        self.deliveries.paused = not self.deliveries.paused

    @rule(ms=st.sampled_from([0, 1, 999, 1000, 4000, 20_000, 512_000]))
    def pass_time(self, ms: int):
        self.subscriber.pass_ms(ms)

    @precondition(lambda self: self.deliveries.next_due_ms(self.subscriber.now_ms) is not None)
    @rule()
    def wait(self):
        self.subscriber.wait()

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool):
        max_known = self.deliveries.max_known
        self.subscriber.deliveries = reloaded(self.deliveries) if checkpoint else self.subscriber.restarted()
        self.deliveries.max_known = max_known
        self.owed_before = 0

    @invariant()
    def facts_bring_everything_back(self):
        deliveries = self.deliveries
        deliveries.check_invariants()
        assert facts(self.subscriber.restarted()) == facts(deliveries)
        assert facts(reloaded(deliveries)) == facts(deliveries)
        done = deliveries.delivered + deliveries.dropped
        assert done + deliveries.pending_count == self.subscriber.count

    @invariant()
    def nothing_is_forgotten(self):
        """Unless it is paused or something is under way, what is not exhausted has its turn some time."""
        deliveries = self.deliveries
        if deliveries.paused or deliveries.under_way:
            return
        full = len(deliveries.retries) >= deliveries.max_known
        hopeful = deliveries.retries.keys() - set(deliveries.exhausted) or (deliveries.waiting and not full)
        assert not hopeful or deliveries.next_due_ms(self.subscriber.now_ms) is not None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=150, stateful_step_count=50, derandomize=True, database=None, deadline=None
)
