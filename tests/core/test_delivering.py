"""Delivering to URLs: when a push begins, what its result does, who has room, and what is left after a crash."""

from collections.abc import Iterable
from typing import Any

import pytest

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd.core.outcome import Push, PushResult, SubscriptionInfo
from cmqd_segment.records import DeliveriesDropped, TopicMessagesExpired
from support.core_builders import ACCOUNT, KEY, START_MS, Rig
from support.core_facts import facts

URL = "https://example.com/in"
DAY_MS = 86_400_000


def a_rig(limits: Limits | None = None) -> Rig:
    """With one topic."""
    rig = Rig(limits)
    rig.create_topic()
    return rig


def info(rig: Rig, name: str = "web") -> SubscriptionInfo:
    return rig.broker.subscription_info(ACCOUNT, "news", name, rig.now_ms)


def state(rig: Rig, name: str = "web") -> tuple[int, int, int, int]:
    """How many wait, are in retry, were delivered, were dropped."""
    counts = info(rig, name).counts
    return counts["waiting"], counts["in_retry"], counts["delivered"], counts["dropped"]


def retained(rig: Rig) -> int:
    return rig.broker.topic_info(ACCOUNT, "news").counts["retained"]


def change(rig: Rig, name: str = "web", **attributes: object) -> None:
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", name, attributes, rig.now_ms))


def retry_now(rig: Rig, name: str = "web") -> int:
    return rig.done(rig.broker.retry_deliveries(ACCOUNT, "news", name, rig.now_ms))


def drop(rig: Rig, name: str = "web") -> int:
    return rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", name, rig.now_ms))


def unsubscribe(rig: Rig, name: str = "web") -> None:
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", name, rig.now_ms))


def bodies(pushes: Iterable[Push]) -> list[bytes]:
    return [push.message.body for push in pushes]


def end_all(rig: Rig, error: str | None = None) -> int:
    """All that is being posted ends; how many that were."""
    pushes, rig.pushes = rig.pushes, []
    results = [PushResult(one.subscription_id, one.message.position, rig.now_ms, error) for one in pushes]
    rig.done(rig.broker.pushes_ended(results, rig.now_ms))
    return len(results)


def posts(rig: Rig, ms: int) -> list[bytes]:
    """What is begun in so much time."""
    there = list(rig.pushes)
    rig.settle(ms)
    return bodies(push for push in rig.pushes if push not in there)


def check_recovery(rig: Rig) -> None:
    """After every row what is left works and brings its messages; after all of them it is what there was."""
    for rows in range(rig.log.last_lsn):
        again = rig.crash_after_row(rows)
        again.settle()
        again.broker.check_invariants()
    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert facts(again.broker) == facts(rig.broker)
        again.settle()
        again.broker.check_invariants()


# ---------------------------------------------------------------------- pushes


def test_each_message_is_pushed_once():
    rig = a_rig()
    subscription = rig.subscribe(URL, content_format="simplified")
    reply = rig.publish(b"1", b"2", each=[["a"], []], headers=[{"k": "v"}, None])

    rig.settle()

    first, second = rig.pushes
    assert (first.account, first.topic, first.subscription) == (ACCOUNT, "news", "web")
    assert first.subscription_id == subscription.subscription_id
    assert (first.url, first.content_format, first.attempt) == (URL, "simplified", 1)
    assert (first.message.message_id, first.message.body) == (reply.message_ids[0], b"1")
    assert (first.message.headers, first.message.labels) == ({"k": "v"}, ["a"])
    assert (second.message.body, second.message.enqueue_ms) == (b"2", START_MS)
    assert posts(rig, 60_000) == []
    rig.broker.check_invariants()


def test_what_is_delivered_is_retained_no_more():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1", b"2")
    rig.settle()
    assert (state(rig), retained(rig)) == ((2, 0, 0, 0), 2)

    rig.end_push(rig.pushes[1])
    assert (state(rig), retained(rig)) == ((1, 0, 1, 0), 1)
    rig.end_push(rig.pushes[0])

    assert (state(rig), retained(rig)) == ((0, 0, 2, 0), 0)
    check_recovery(rig)


def test_a_message_is_retained_until_its_last_subscriber_has_it():
    rig = a_rig()
    rig.subscribe(URL, name="to-a")
    rig.subscribe("https://other.example/", name="to-b")
    rig.subscribe("q")
    rig.publish(b"1")
    rig.settle()

    rig.end_push(rig.pushes[0])
    assert retained(rig) == 1
    rig.end_push(rig.pushes[0])

    assert retained(rig) == 0


def test_a_push_that_was_under_way_in_a_crash_begins_anew():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()

    again = rig.crash()
    again.settle()

    assert [(push.message.body, push.attempt) for push in again.pushes] == [(b"1", 1)]


def test_bodies_that_are_not_in_memory_are_read_with_all_that_belongs_to_them():
    rig = a_rig(Limits(topic_bodies_bytes=0))
    rig.subscribe(URL)
    rig.publish(b"1", b"2", each=[["a"], []], headers=[{"k": "v"}, None])

    rig.tick()
    assert rig.pushes == []
    assert [list(read.positions) for read in rig.reads] == [[0, 2]]
    rig.settle()

    first, second = (push.message for push in rig.pushes)
    assert (first.body, first.headers, first.labels) == (b"1", {"k": "v"}, ["a"])
    assert (second.body, second.headers, second.labels) == (b"2", None, [])


def test_a_page_that_holds_a_part_is_followed_by_another():
    rig = a_rig(Limits(topic_bodies_bytes=0))
    rig.subscribe(URL)
    rig.publish(b"1", b"2", b"3")
    rig.tick()

    (read,) = rig.reads
    rig.answer(read, at_most=1)
    assert bodies(rig.pushes) == [b"1"]
    rig.settle()

    assert bodies(rig.pushes) == [b"1", b"2", b"3"]
    rig.broker.check_invariants()


def test_damaged_bodies_are_dropped_and_reported():
    rig = a_rig(Limits(topic_bodies_bytes=0))
    topic = rig.broker.topic(ACCOUNT, "news")
    rig.subscribe(URL)
    rig.publish(b"1", b"2", b"3")
    rig.log.damaged.add((topic.topic_id, 1))
    rig.tick()

    assert rig.answer(rig.reads[0]) == 1
    rig.settle()

    assert bodies(rig.pushes) == [b"1", b"3"]
    assert state(rig) == (2, 0, 0, 1)
    (record,) = [one for _, one in rig.log.records() if isinstance(one, DeliveriesDropped)]
    assert record.reason == "damaged"
    check_recovery(rig)


def test_no_more_than_so_many_pages_are_read_at_once():
    rig = a_rig(Limits(topic_bodies_bytes=0))
    for number in range(70):
        rig.subscribe(f"https://{number}.example/", name=f"sub{number}")
    rig.publish(b"1")

    rig.advance(0)
    assert len(rig.reads) == 32
    rig.settle()

    assert len(rig.pushes) == 70


@pytest.mark.parametrize("what", ["unsubscribed", "dropped", "expired", "paused", "not pushing"])
def test_a_page_arrives_for_what_is_not_wanted_any_more(what: str):
    rig = a_rig(Limits(topic_bodies_bytes=0))
    rig.subscribe(URL)
    rig.publish(b"1", b"2")
    rig.tick()
    (read,) = rig.reads

    if what == "unsubscribed":
        unsubscribe(rig)
    elif what == "dropped":
        assert drop(rig) == 2
    elif what == "expired":
        rig.advance(DAY_MS + 1000)
    elif what == "not pushing":
        rig.broker.pushing = False
    else:
        change(rig, paused=True)
    rig.answer(read)
    rig.settle()

    assert bodies(rig.pushes) == ([b"1", b"2"] if what == "paused" else []), "what began ends as it does"
    rig.broker.check_invariants()
    check_recovery(rig)


# ---------------------------------------------------------------------- results


def test_a_failed_push_is_repeated_a_second_after_its_start():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    rig.now_ms += 300

    rig.end_push(rig.pushes[0], "503 Service Unavailable", START_MS)

    assert state(rig) == (0, 1, 0, 0)
    assert info(rig).facts["last_error"] == "503 Service Unavailable"
    assert info(rig).facts["last_error_ms"] == START_MS + 300
    assert info(rig).facts["next_attempt_ms"] == START_MS + 1000
    assert posts(rig, 699) == []
    assert posts(rig, 1) == [b"1"]
    assert rig.pushes[0].attempt == 2
    check_recovery(rig)


def test_a_push_that_took_longer_than_its_pause_is_repeated_at_its_end():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()

    rig.now_ms += 15_000
    rig.end_push(rig.pushes[0], "timed out", START_MS)

    assert posts(rig, 0) == [b"1"]


def test_176_retries_come_to_the_second_and_the_next_publish_brings_one_more():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    for number in range(176):
        gap_ms = min(1000 << number, 512_000)
        (push,) = rig.pushes
        assert push.attempt == number + 1
        rig.end_push(push, "down")
        if number % 40 == 5:
            rig = rig.crash() if number % 80 == 5 else rig.crash_after(rig.checkpoint())
            rig.settle()
        assert posts(rig, gap_ms - 1) == []
        assert posts(rig, 1) == [b"1"]
    assert rig.now_ms - START_MS == 86_015_000
    (push,) = rig.pushes
    assert push.attempt == 177
    rig.end_push(push, "down")

    assert posts(rig, 10_000) == []
    assert state(rig) == (0, 1, 0, 0)
    assert info(rig).facts["next_attempt_ms"] is None
    with pytest.raises(Exception, match="routing_keys"):
        rig.publish(b"2", labels="a")
    assert posts(rig, 0) == [], "that was no publish"
    rig.publish(b"2")
    assert sorted(posts(rig, 0)) == [b"1", b"2"], "the old one, with the new one as a probe"
    for push in list(rig.pushes):
        rig.end_push(push, "down" if push.message.body == b"1" else None)
    assert state(rig) == (0, 1, 1, 0)
    assert retry_now(rig) == 1
    assert posts(rig, 0) == [b"1"]
    rig.end_push(rig.pushes[0], "down")

    assert posts(rig, START_MS + DAY_MS + 1000 - rig.now_ms) == []
    assert state(rig) == (0, 0, 1, 1)
    assert retained(rig) == 0
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_a_restart_brings_what_is_exhausted_one_more_attempt():
    rig = a_rig()
    subscription = rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    while rig.pushes:
        rig.end_push(rig.pushes[0], "down")
        rig.settle((info(rig).facts["next_attempt_ms"] or rig.now_ms) - rig.now_ms)
    assert list(subscription.deliveries.exhausted) == [0]

    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert posts(again, 0) == [b"1"], "somebody may have published before"
        again.end_push(again.pushes[0], "down")
        assert posts(again, 600_000) == []


def test_under_backoff_each_of_three_retries_comes_after_ten_to_twenty_seconds():
    rig = a_rig()
    rig.subscribe(URL, strategy="backoff")
    rig.publish(b"1", b"2")
    rig.settle()
    pauses: list[int] = []
    for attempt in range(1, 4):
        (push,) = rig.pushes
        assert (push.message.body, push.attempt) == (b"1", attempt)
        rig.end_push(push, "down")
        next_ms = info(rig).facts["next_attempt_ms"]
        pauses.append(next_ms - rig.now_ms)
        assert posts(rig, pauses[-1] - 1) == []
        assert posts(rig, 1) == [b"1"]

    rig.end_push(rig.pushes[0], "down for good")

    assert all(10_000 <= pause <= 20_000 for pause in pauses)
    assert len(set(pauses)) == 3
    assert posts(rig, 0) == [b"2"]
    assert state(rig) == (1, 0, 0, 1)
    assert info(rig).facts["last_error"] == "down for good"
    check_recovery(rig)


def test_pauses_differ_by_the_seed_and_are_the_same_with_it():
    def pause(seed: int) -> int:
        rig = Rig(broker=Broker(KEY, seed=seed))
        rig.create_topic()
        rig.subscribe(URL, strategy="backoff")
        rig.publish(b"1")
        rig.settle()
        rig.end_push(rig.pushes[0], "down")
        return info(rig).facts["next_attempt_ms"] - rig.now_ms

    assert pause(1) == pause(1)
    assert len({pause(seed) for seed in range(20)}) > 15


def test_a_blocked_subscriber_gets_one_probe_with_each_retry():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    rig.end_push(rig.pushes[0], "down")
    rig.settle(1000)
    rig.end_push(rig.pushes[0], "down")
    assert info(rig).facts["blocked"]

    rig.publish(b"2", b"3", b"4")
    assert posts(rig, 1999) == []
    assert sorted(posts(rig, 1)) == [b"1", b"2"]
    end_all(rig, "down")
    check_recovery(rig)
    assert sorted(posts(rig, 1000)) == [b"2", b"3"]
    rig.end_push(rig.pushes[0])

    assert not info(rig).facts["blocked"]
    assert b"4" in posts(rig, 0)


@pytest.mark.parametrize("error", [None, "down"])
@pytest.mark.parametrize("what", ["unsubscribed", "dropped", "expired"])
def test_a_result_that_nobody_wants_any_more_changes_nothing(what: str, error: str | None):
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    (push,) = rig.pushes
    if what == "unsubscribed":
        unsubscribe(rig)
    elif what == "dropped":
        assert drop(rig) == 1
    else:
        rig.advance(DAY_MS + 1000)
    rows = rig.log.last_lsn

    rig.end_push(push, error)

    assert rig.log.last_lsn == rows
    if what != "unsubscribed":
        assert state(rig) == (0, 0, 0, 1)
    rig.broker.check_invariants()
    assert posts(rig, DAY_MS) == []


def test_a_result_that_comes_twice_counts_once():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    (push,) = rig.pushes

    rig.end_push(push)
    rig.pushes.append(push)
    rig.end_push(push, "down")

    assert state(rig) == (0, 0, 1, 0)
    rig.broker.check_invariants()


def test_results_that_come_together_are_one_row():
    rig = a_rig()
    rig.subscribe(URL, name="to-a")
    rig.subscribe("https://other.example/", name="to-b")
    rig.publish(b"1", b"2", b"3")
    rig.settle()
    rows = rig.log.last_lsn

    assert end_all(rig) == 6

    assert rig.log.last_lsn == rows + 1
    assert len(rig.log.rows[-1]) == 2


# ---------------------------------------------------------------------- room


def test_so_many_pushes_go_to_an_endpoint_at_once():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(*[b"%d" % number for number in range(40)])

    rig.settle()
    assert len(rig.pushes) == 16
    rig.end_push(rig.pushes[0])
    rig.end_push(rig.pushes[0])
    rig.settle()
    assert len(rig.pushes) == 16

    end_all(rig)
    rig.settle()
    end_all(rig)
    rig.settle()
    assert end_all(rig) == 6
    assert state(rig) == (0, 0, 40, 0)


def test_two_subscriptions_with_one_url_share_its_room_and_take_turns():
    rig = a_rig()
    rig.subscribe(URL, name="to-a")
    rig.subscribe(URL, name="to-b")
    rig.publish(*[b"%d" % number for number in range(40)])
    rig.settle()
    assert {push.subscription for push in rig.pushes} == {"to-a"}
    assert len(rig.pushes) == 16

    while rig.pushes:
        assert len(rig.pushes) <= 16
        rig.end_push(rig.pushes[0])
        rig.settle()
        rig.broker.check_invariants()

    assert state(rig, "to-a") == state(rig, "to-b") == (0, 0, 40, 0)


@pytest.mark.parametrize("what", ["paused", "unsubscribed", "dropped"])
def test_room_is_passed_on_by_one_in_line_that_has_no_use_for_it(what: str):
    rig = a_rig(Limits(max_pushes_per_endpoint=1))
    for name in ("to-a", "to-b", "to-c"):
        rig.subscribe(URL, name=name)
    rig.publish(b"1")
    rig.settle()
    assert [push.subscription for push in rig.pushes] == ["to-a"]

    if what == "paused":
        change(rig, "to-b", paused=True)
    elif what == "unsubscribed":
        unsubscribe(rig, "to-b")
    else:
        drop(rig, "to-b")
    rig.end_push(rig.pushes[0])
    rig.settle()

    assert [push.subscription for push in rig.pushes] == ["to-c"]


def test_room_is_passed_on_when_the_next_one_leaves_after_it_was_its_turn():
    rig = a_rig(Limits(max_pushes_per_endpoint=1))
    for name in ("to-a", "to-b", "to-c"):
        rig.subscribe(URL, name=name)
    rig.publish(b"1")
    rig.settle()

    rig.end_push(rig.pushes[0])
    unsubscribe(rig, "to-b")
    rig.settle()

    assert [push.subscription for push in rig.pushes] == ["to-c"]


def test_room_in_all_is_shared():
    rig = a_rig(Limits(max_pushes=6, max_pushes_per_endpoint=2))
    names = ("to-a", "to-b", "to-c", "to-d")
    for name in names:
        rig.subscribe(f"https://{name}.example/", name=name)
    rig.publish(*[b"%d" % number for number in range(5)])
    rig.settle()
    assert len(rig.pushes) == 3, "half of it for those that have not answered yet"

    while rig.pushes:
        assert len(rig.pushes) <= 6
        rig.end_push(rig.pushes[-1])
        rig.settle()
        rig.broker.check_invariants()

    assert {state(rig, name) for name in names} == {(0, 0, 5, 0)}


def test_a_url_is_forgotten_with_its_subscription():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    rig.end_push(rig.pushes[0])
    broker: Any = rig.broker
    assert list(broker._trusted) == [URL]

    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "web", rig.now_ms))

    assert not broker._trusted
    assert not broker._endpoints


def test_500_dead_endpoints_do_not_delay_a_healthy_one():
    rig = a_rig()
    for number in range(499):
        rig.subscribe(f"https://dead{number}.example/", name=f"dead{number}")
    rig.subscribe(URL)
    for _ in range(12):
        rig.publish(*[b"x"] * 8)
        ticks = 0
        while sum(push.url == URL for push in rig.pushes) < 1:
            assert rig.due(), "it waits for the dead ones"
            rig.tick()
            ticks += 1
        assert ticks <= 63, "64 deliveries a tick"
        rig.advance(0)
        # It answers at once, over and over; they do not.
        while healthy := [push for push in rig.pushes if push.url == URL]:
            for push in healthy:
                rig.end_push(push)
            assert rig.advance(0) <= 63
    assert state(rig) == (0, 0, 96, 0)
    assert len(rig.pushes) == 499 * 4, "half of the pushes, in equal shares"
    assert state(rig, "dead7")[0] == 96


def test_dead_endpoints_that_fail_over_and_over_do_not_delay_a_healthy_one():
    rig = a_rig()
    for number in range(100):
        rig.subscribe(f"https://dead{number}.example/", name=f"dead{number}")
    rig.subscribe(URL)
    for number in range(10):
        rig.publish(b"%d" % number)
        ticks = 0
        while not any(push.url == URL for push in rig.pushes):
            rig.tick()
            ticks += 1
        assert ticks <= 8
        rig.settle()
        for push in list(rig.pushes):
            rig.end_push(push, None if push.url == URL else "down")
        rig.now_ms += 1000
    assert state(rig) == (0, 0, 10, 0)


# ---------------------------------------------------------------------- what an owner does


def test_nothing_begins_while_a_subscription_is_paused():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()

    change(rig, paused=True)
    rig.publish(b"2")
    rig.end_push(rig.pushes[0], "down")
    assert posts(rig, 3_600_000) == []
    assert info(rig).facts["next_attempt_ms"] is None
    check_recovery(rig)
    change(rig, paused=False)

    assert sorted(posts(rig, 0)) == [b"1", b"2"]


def test_retry_now_tries_everything_that_failed_at_once():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1", b"2")
    rig.settle()
    end_all(rig, "down")
    rig.settle(1000)
    end_all(rig, "down")

    assert retry_now(rig) == 2

    assert sorted(posts(rig, 0)) == [b"1", b"2"]
    assert [push.attempt for push in rig.pushes] == [3, 3]
    assert retry_now(rig) == 0, "both are under way"
    end_all(rig)
    assert state(rig) == (0, 0, 2, 0)


def test_drop_drops_what_waits_and_what_is_in_retry():
    rig = a_rig()
    rig.subscribe(URL, strategy="backoff")
    rig.publish(b"1", b"2", b"3")
    rig.settle()
    rig.end_push(rig.pushes[0], "down")

    assert drop(rig) == 3
    assert drop(rig) == 0

    assert (state(rig), retained(rig)) == ((0, 0, 0, 3), 0)
    check_recovery(rig)
    rig.publish(b"4")
    assert posts(rig, 0) == [b"4"]


def test_a_strategy_that_is_changed_counts_for_attempts_to_come():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1", b"2", b"3")
    rig.settle()
    end_all(rig, "down")

    change(rig, strategy="backoff")
    assert posts(rig, 1000) == [b"1"]
    rig.end_push(rig.pushes[0])
    assert posts(rig, 0) == [b"2"]
    check_recovery(rig)
    change(rig, strategy="exponential_decay")
    rig.end_push(rig.pushes[0])
    assert posts(rig, 0) == [b"3"]


def test_nothing_begins_while_nobody_pushes():
    rig = a_rig()
    rig.broker.pushing = False
    rig.subscribe(URL)
    rig.subscribe("q")
    rig.publish(b"1")

    assert rig.advance(1000) <= 1, "the ticker does not spin"

    assert rig.pushes == []
    assert rig.bodies("q") == [b"1"]
    assert state(rig) == (1, 0, 0, 0)
    again = rig.crash()
    again.settle()
    assert bodies(again.pushes) == [b"1"]


# ---------------------------------------------------------------------- the end of a day


@pytest.mark.parametrize("strategy", ["backoff", "exponential_decay"])
def test_a_message_lives_a_day_whatever_its_retries(strategy: str):
    rig = a_rig()
    rig.subscribe(URL, strategy=strategy)
    rig.subscribe("https://other.example/", name="off", paused=True)
    rig.publish(b"1", b"2")
    rig.settle()
    rig.settle(DAY_MS - 1000)
    rig.publish(b"3")

    rig.settle(999)
    assert retained(rig) == 3
    rig.settle(101)

    assert retained(rig) == 1
    assert state(rig, "off") == (1, 0, 0, 2)
    assert rig.broker.topic_info(ACCOUNT, "news").facts["oldest_message_ms"] == START_MS + DAY_MS - 1000
    assert [one.floor for _, one in rig.log.records() if isinstance(one, TopicMessagesExpired)] == [2]
    end_all(rig, "down")
    check_recovery(rig)
    rig.settle(DAY_MS)
    assert (retained(rig), state(rig, "off")) == (0, (0, 0, 0, 3))
    check_recovery(rig)


def test_the_end_of_a_day_leaves_no_record_if_nothing_waits():
    rig = a_rig()
    rig.subscribe("q")
    rig.publish(b"1")
    rows = rig.log.last_lsn

    rig.settle(DAY_MS + 1000)

    assert rig.log.last_lsn == rows
    assert rig.broker.topic(ACCOUNT, "news").steps.first_end_ms() is None
    rig.publish(b"2")
    assert rig.bodies("q", 1) == [b"1"]


def test_the_day_goes_on_over_a_restart():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    rig.publish(b"1")

    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        again.settle(DAY_MS - 1000)
        assert retained(again) == 1
        again.settle(1100)
        assert retained(again) == 0


# ---------------------------------------------------------------------- crashes and checkpoints


def eventful(rig: Rig) -> None:
    """Everything that can happen to deliveries."""
    for name in ("to-a", "to-b"):
        rig.subscribe(f"https://{name}.example/", name=name, filter_tags=["b"] if name == "to-b" else [])
    rig.subscribe("https://slow.example/", name="slow", strategy="backoff")
    rig.subscribe("q")
    rig.publish(b"1", b"2", b"3", each=[["b"], [], ["b"]], session=7, sequence=1)
    rig.settle()
    for push in list(rig.pushes):
        rig.end_push(push, "down" if push.message.position != 1 else None)
    rig.delete_queue("q")
    rig.publish(b"4", b"5", labels=["b"], dedup_ids=["x", None])
    rig.settle(1000)
    end_all(rig, "still down")
    rig.settle(20_000)
    for push in list(rig.pushes)[::2]:
        rig.end_push(push)
    drop(rig, "to-b")
    change(rig, "to-b", filter_tags=["c"], paused=True)
    rig.create("q")
    rig.settle(5000)
    end_all(rig, "down again")
    rig.publish(b"6", labels=["c"])
    unsubscribe(rig, "slow")


def test_a_crash_after_every_row_leaves_what_was_known_then():
    rig = a_rig()
    eventful(rig)

    check_recovery(rig)


def test_what_is_taken_up_after_a_crash_reaches_everybody():
    rig = a_rig()
    eventful(rig)
    for rows in range(rig.log.last_lsn + 1):
        again = rig.crash_after_row(rows)
        for _ in range(200):
            again.settle(1000)
            end_all(again)
        for topic in again.broker.topics.values():
            for subscription in topic.subscriptions.values():
                waits = subscription.deliveries.pending_count
                assert not waits or subscription.attributes.paused or subscription.target is None


@pytest.mark.parametrize("steps", range(8))
def test_a_checkpoint_taken_while_things_go_on(steps: int):
    rig = a_rig()
    rig.create_topic("topic-u")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    rig.subscribe(URL, name="first")
    rig.subscribe("early")
    rig.publish(b"0")
    taken = [part for _, part in zip(range(steps), parts, strict=False)]
    eventful(rig)
    taken += [part for _, part in zip(range(2), parts, strict=False)]
    rig.settle(30_000)
    end_all(rig, "down")
    rig.publish(b"7", b"8")
    rig.done(rig.broker.delete_topic(ACCOUNT, "topic-u"))
    rig.create_topic("topic-u")
    taken += parts

    assert facts(rig.crash_after(taken).broker) == facts(rig.broker)


def test_a_checkpoint_holds_more_retries_than_fit_one_part():
    rig = a_rig(Limits(max_batch=10_000, max_pushes_per_endpoint=10_000, max_pushes=20_000))
    rig.subscribe(URL)
    rig.publish(*[b"x"] * 9000)
    rig.settle()
    end_all(rig, "down")

    parts = rig.checkpoint()

    assert sum(type(part).__name__ == "RetriesSlice" for part in parts) == 2
    assert facts(rig.crash_after(parts).broker) == facts(rig.broker)


# ---------------------------------------------------------------------- what the log must keep


def test_a_segment_is_live_as_long_as_somebody_waits_for_a_body_in_it():
    rig = a_rig()
    topic = rig.broker.topic(ACCOUNT, "news")
    queue = rig.create("q")
    rig.subscribe("q")
    rig.subscribe(URL, strategy="backoff")
    rig.subscribe("https://b.example/", name="to-b", filter_tags=["b"])
    rig.publish(b"1", b"2", each=[["b"], []])
    rig.settle()
    live = rig.broker.live_in
    assert (live(topic.topic_id, 0, 1), live(topic.topic_id, 1, 2), live(queue.queue_id, 0, 2)) == (2, 1, 2)

    rig.delete(*rig.handles())
    assert live(queue.queue_id, 0, 2) == 0
    end_all(rig)
    rig.settle()
    assert (live(topic.topic_id, 0, 1), live(topic.topic_id, 1, 2)) == (0, 1)
    rig.end_push(rig.pushes[0], "down")
    assert live(topic.topic_id, 1, 2) == 1, "it is in retry"
    assert rig.crash().broker.live_in(topic.topic_id, 0, 2) == 1
    drop(rig)

    assert live(topic.topic_id, 0, 2) == 0
    assert live(topic.topic_id + 100, 0, 2) == 0, "no topic or queue has this id"


def test_what_only_queues_hold_is_not_live_for_the_topic():
    rig = a_rig()
    topic = rig.broker.topic(ACCOUNT, "news")
    queue = rig.create("q")
    rig.subscribe("q")
    rig.publish(b"1")

    assert rig.broker.live_in(topic.topic_id, 0, 1) == 0
    assert rig.broker.live_in(queue.queue_id, 0, 1) == 1


def test_what_comes_along_in_a_page_never_takes_the_place_of_what_was_asked_for():
    rig = a_rig(Limits(topic_bodies_bytes=0, page_bytes=1))
    rig.subscribe(URL)
    rig.publish(*[b"%d" % number for number in range(20)])
    rig.settle()
    assert len(rig.pushes) == 16
    rig.end_push(rig.pushes[15], "down")
    rig.end_push(rig.pushes[0])

    rig.settle(1000)
    rig.settle(1000)

    assert len(rig.pushes) == 16
