"""Deliveries that are held, given back, dropped or recovered; and random events in any order."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.judge import profile

from cmqd.core.facts.retry_schedule import BACKOFF, EXPONENTIAL_DECAY
from cmqd.core.facts.subscription_backlog import Deliveries, Retry
from cmqd_segment.records import DeliveriesFailed
from support.core.invariants import check_deliveries
from support.core.subscriber import START_MS, Subscriber, exhausted, facts, reloaded, scheduled
from support.costs.cpu_time import cpu_seconds_of

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


def test_a_delivery_that_is_given_back_is_as_if_never_started():
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

    assert scheduled(subscriber.deliveries) == {0: Retry(1, START_MS + 1000)}
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


def test_giving_back_a_position_not_under_way_changes_nothing():
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

    assert scheduled(subscriber.deliveries) == {1: Retry(1, START_MS + 1000)}
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
        check_deliveries(subscriber.deliveries)

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

    check_deliveries(deliveries)
    assert scheduled(deliveries) == {2: Retry(1, 1000), 3: Retry(5, 9000), 7: Retry(177, 0)}
    assert list(deliveries.exhausted) == [7]
    assert list(deliveries.waiting) == [0, 1, 4, 5, 6, 8, 9]


def test_what_a_record_says_counts_whatever_was_known_before():
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 1)
    deliveries.apply_failed(DeliveriesFailed(1, 2, [0, 1], [177], [0], "503", 50))

    deliveries.apply_failed(DeliveriesFailed(1, 2, [0, 1], [178], [9000], "503", 60))

    check_deliveries(deliveries)
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


def test_a_checkpoint_under_way_is_not_changed_by_later_events():
    subscriber = Subscriber(5)
    subscriber.start()
    subscriber.fail(*range(5))
    parts = subscriber.deliveries.retry_parts(2)
    first = next(parts)

    subscriber.pass_ms(1000)
    subscriber.start()
    subscriber.fail(0, 1, 2)
    subscriber.deliver(3, 4)

    assert [retries for retries, _, _ in (first, *parts)] == [
        [(0, 1, START_MS + 1000), (1, 1, START_MS + 1000)],
        [(2, 1, START_MS + 1000), (3, 1, START_MS + 1000)],
        [(4, 1, START_MS + 1000)],
    ]


def test_stale_times_do_not_pile_up():
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 1)
    for attempt in range(1, 10_000):
        deliveries.apply_failed(DeliveriesFailed(1, 2, [0, 1], [attempt], [START_MS + attempt], "503", START_MS))

    check_deliveries(deliveries)
    assert len(deliveries._heap) < 1100  # pyright: ignore[reportPrivateUsage]
    assert deliveries.next_due_ms(START_MS) == START_MS + 9_999


def test_a_start_does_not_look_at_all_that_waits():
    # Not a benchmark: with a scan of all waiting messages in every step the test would take 200 times as long.
    deliveries = Deliveries()
    deliveries.apply_waiting(0, 1_000_000)
    deliveries.load_retries(([(position, 2, START_MS + position) for position in range(1_000_000, 1_090_000)], [], []))
    scan = cpu_seconds_of(lambda: sum(1 for _ in range(1_000_000)))

    def start() -> None:
        for number in range(100):
            started = deliveries.start(START_MS, 16)
            assert started == [(16 * number + one, 1) for one in range(16)]
            assert deliveries.next_due_ms(START_MS) == START_MS

    assert cpu_seconds_of(start) < 20 * scan


# ---------------------------------------------------------------------- random events in any order

many = st.integers(1, 6)
picks = st.integers(0, 1 << 16)


class AnyOrder(RuleBasedStateMachine):
    """After any events: the facts alone restore the deliveries, and only attempts that the rules allow begin."""

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
            # An attempt may have been owed from before, by a retry or for want of messages.
            assert not blocked or len(new) <= len(retried) + max(1, self.owed_before)
        if blocked:
            self.owed_before = max(self.owed_before + len(retried) - len(new), 0)

    owed_before = 0
    """A bound on the probes that are owed."""

    def pick(self, number: int) -> list[int]:
        """One or two messages under way."""
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
        check_deliveries(deliveries)
        assert facts(self.subscriber.restarted()) == facts(deliveries)
        assert facts(reloaded(deliveries)) == facts(deliveries)
        done = deliveries.delivered + deliveries.dropped
        assert done + deliveries.pending_count == self.subscriber.count

    @invariant()
    def nothing_is_forgotten(self):
        """Unless the subscription is paused or a message is under way, every message with retries left has its turn."""
        deliveries = self.deliveries
        if deliveries.paused or deliveries.under_way:
            return
        full = len(deliveries.retries) >= deliveries.max_known
        hopeful = deliveries.retries.keys() - set(deliveries.exhausted) or (deliveries.waiting and not full)
        assert not hopeful or deliveries.next_due_ms(self.subscriber.now_ms) is not None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = profile(152)
