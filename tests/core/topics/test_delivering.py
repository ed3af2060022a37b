"""Deliveries to URLs: pushes, their results, and requests of an owner."""

import pytest

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd_segment.records import DeliveriesDropped, TopicMessagesExpired
from support.core.builders import ACCOUNT, KEY, START_MS, Rig
from support.core.delivering import (
    DAY_MS,
    URL,
    a_rig,
    bodies,
    change,
    check_recovery,
    drop,
    end_all,
    info,
    posts,
    retained,
    retry_now,
    state,
    unsubscribe,
)
from support.core.facts import facts
from support.core.invariants import check_broker

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
    check_broker(rig.broker)


def test_a_delivered_message_is_retained_no_more():
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
    check_broker(rig.broker)


def test_damaged_bodies_are_dropped_and_reported():
    rig = a_rig(Limits(topic_bodies_bytes=0))
    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
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


def test_a_delivery_beside_a_page_under_way_changes_the_route_of_publishes():
    rig = a_rig(Limits(topic_bodies_bytes=5000))
    rig.create("q")
    rig.subscribe("q")
    # The paused subscription keeps the body of the second message in memory; the first body is too large for that.
    rig.subscribe(URL, paused=True)
    rig.delete_queue("q")
    rig.publish(b"x" * 10_000)
    rig.settle()
    rig.settle(1000)
    rig.publish(b"2")
    assert info(rig, "to-q").facts["blocked"]
    rig.create("q")

    # The retry and its probe start together: the copy of the probe is stored at once, the retry waits for its page.
    rig.advance(2000)
    assert rig.bodies("q") == [b"2"]
    assert rig.reads
    check_broker(rig.broker)
    rig.settle()

    assert rig.bodies("q") == [b"x" * 10_000]
    check_recovery(rig)


@pytest.mark.parametrize("what", ["unsubscribed", "dropped", "expired", "paused", "not pushing"])
def test_a_page_arrives_for_a_message_that_is_not_wanted_any_more(what: str):
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
        rig.broker.gates.pushing = False
    else:
        change(rig, paused=True)
    rig.answer(read)
    rig.settle()

    assert bodies(rig.pushes) == ([b"1", b"2"] if what == "paused" else []), "what began ends as it does"
    check_broker(rig.broker)
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
def test_a_result_that_is_no_longer_wanted_has_no_effect(what: str, error: str | None):
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
    check_broker(rig.broker)
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
    check_broker(rig.broker)


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


# ---------------------------------------------------------------------- requests of an owner


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


def test_drop_drops_waiting_messages_and_messages_in_retry():
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


def test_no_attempt_begins_without_a_pusher():
    rig = a_rig()
    rig.broker.gates.pushing = False
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
    assert rig.broker.facts.topics.find(ACCOUNT, "news").steps.first_end_ms() is None
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
