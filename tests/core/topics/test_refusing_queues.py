"""Queues that do not take their copy: missing, full, or for its size."""

from cmqd_segment.records import (
    DeliveriesFailed,
    StoredMessage,
)
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.publishing import URL, a_rig, check_recovery, request, together


def waiting(rig: Rig, name: str) -> tuple[int, int]:
    """Counts of a subscription: messages that wait, and messages in retry."""
    found = rig.broker.subscription_info(ACCOUNT, "news", name, rig.now_ms).counts
    return found["waiting"], found["in_retry"]


def test_a_full_queue_gets_its_copy_when_there_is_room():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe("r")
    rig.force("q", max_backlog=2)
    rig.send(b"x", name="q")

    assert rig.publish(b"1", b"2", b"3").matched == [2, 2, 2]

    assert rig.bodies("r") == [b"1", b"2", b"3"]
    assert waiting(rig, "to-q") == (0, 2)
    assert rig.counts("q")["active"] == 2
    error = rig.broker.subscription_info(ACCOUNT, "news", "to-q").facts["last_error"]
    assert error == "queue 'q' is full: it holds 2 messages"
    check_recovery(rig)
    rig.delete(*rig.handles("q"), name="q")
    rig.settle(1000)
    assert rig.bodies("q") == [b"2", b"3"]
    assert waiting(rig, "to-q") == (0, 0)
    assert rig.broker.topic_info(ACCOUNT, "news").counts["retained"] == 0
    check_recovery(rig)


def test_a_message_too_large_for_a_queue_is_retried_until_it_takes_it():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small")

    rig.publish(b"1", b"x" * 2000, b"3")

    assert rig.bodies("small") == [b"1", b"3"]
    assert waiting(rig, "small") == (0, 1)
    rig.set("small", max_message_bytes=4096)
    rig.settle(1000)
    assert rig.bodies("small") == [b"x" * 2000]


def test_a_queue_that_is_made_again_gets_the_waiting_messages():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")

    assert rig.publish(b"1", b"2").matched == [1, 1]

    assert waiting(rig, "to-q") == (2, 0)
    rig.settle()
    assert waiting(rig, "to-q") == (0, 2)
    assert rig.broker.subscription_info(ACCOUNT, "news", "to-q").facts["last_error"] == "queue 'q' does not exist"
    check_recovery(rig)
    rig.create("q")
    rig.settle(1000)
    assert rig.bodies("q") == [b"1", b"2"]


def test_a_late_copy_has_the_time_at_which_it_came():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1", headers=[{"k": "v"}])
    rig.create("q")

    rig.settle(1000)

    (copy,) = rig.receive("q")
    assert (copy.enqueue_ms, copy.headers, copy.origin) == (START_MS + 1000, {"k": "v"}, None)


def test_under_backoff_later_messages_wait_behind_one_that_is_refused():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff")

    rig.publish(b"1", b"x" * 2000, b"3")
    rig.publish(b"4")

    assert rig.bodies("small") == [b"1"]
    assert waiting(rig, "small") == (2, 1)
    check_recovery(rig)
    rig.set("small", max_message_bytes=4096)
    rig.settle(20_000)
    assert rig.bodies("small") == [b"x" * 2000, b"3", b"4"]
    assert waiting(rig, "small") == (0, 0)
    assert rig.publish(b"5").matched == [1]
    assert rig.bodies("small") == [b"5"]


def test_under_backoff_order_holds_for_publishes_that_are_decided_together():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff")
    rig.subscribe("other", strategy="backoff")

    together(rig, request(b"1"), request(b"x" * 2000), request(b"3"), request(b"4", labels=["a"]))

    assert rig.bodies("other") == [b"1", b"x" * 2000, b"3", b"4"]
    assert rig.bodies("small") == [b"1"]
    rig.set("small", max_message_bytes=4096)
    rig.settle(20_000)
    assert rig.bodies("small") == [b"x" * 2000, b"3", b"4"]


def test_after_three_retries_under_backoff_the_next_one_goes_out():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff")
    rig.publish(b"x" * 2000, b"2")

    for _ in range(3):
        assert rig.counts("small")["active"] == 0
        rig.settle(20_000)

    assert rig.bodies("small") == [b"2"]
    found = rig.broker.subscription_info(ACCOUNT, "news", "small")
    assert found.counts == {"waiting": 0, "in_retry": 0, "dropped": 1}
    assert found.facts["last_error"] == "the message has 2000 bytes; queue 'small' takes up to 1024"
    assert len([record for _, record in rig.log.records() if isinstance(record, DeliveriesFailed)]) == 4
    check_recovery(rig)


def test_two_subscriptions_to_a_queue_with_room_for_one_more():
    rig = a_rig()
    rig.subscribe("q", name="one")
    rig.subscribe("q", name="two")
    rig.force("q", max_backlog=1)

    rig.publish(b"1")

    assert rig.counts("q")["active"] == 1
    assert [waiting(rig, "one"), waiting(rig, "two")] == [(0, 0), (0, 1)]
    rig.delete(*rig.handles())
    rig.settle(1000)
    assert rig.bodies("q") == [b"1"]
    check_recovery(rig)


def test_a_subscriber_that_failed_twice_is_blocked_until_a_copy_arrives():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1")
    rig.settle()
    rig.settle(1000)
    assert rig.broker.subscription_info(ACCOUNT, "news", "to-q").facts["blocked"]
    rig.create("q")

    rig.publish(b"2")
    assert rig.counts("q")["active"] == 0, "no new one is started"
    rig.settle(2000)

    assert rig.bodies("q") == [b"1", b"2"]
    assert rig.publish(b"3").matched == [1]
    assert rig.bodies("q") == [b"3"]


def test_while_a_subscription_to_a_queue_is_paused_its_messages_wait():
    rig = a_rig()
    rig.subscribe("q", paused=True)

    assert rig.publish(b"1", b"2").matched == [1, 1]
    rig.settle(60_000)
    assert rig.counts("q")["active"] == 0
    check_recovery(rig)
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", "to-q", {"paused": False}, rig.now_ms))
    rig.settle()

    assert rig.bodies("q") == [b"1", b"2"]
    assert rig.publish(b"3").matched == [1]
    assert rig.bodies("q") == [b"3"]


def test_copies_wait_while_the_disk_is_nearly_full():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1")
    rig.settle()
    rig.create("q")
    rig.broker.gates.moves_held_up = "the disk is nearly full"

    rig.settle(10_000)
    assert rig.counts("q")["active"] == 0
    rig.broker.gates.moves_held_up = ""
    rig.settle(1000)

    assert rig.bodies("q") == [b"1"]


def test_bodies_of_a_topic_are_read_with_their_labels():
    rig = a_rig()
    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
    rig.subscribe(URL)
    rig.publish(b"1", b"2", each=[["a"], []], headers=[None, {"k": "v"}])

    stored: list[StoredMessage] = [rig.log.stored[topic.topic_id, position] for position in (0, 1)]

    assert [one.labels for one in stored] == [["a"], []]
    assert [one.headers for one in stored] == [None, {"k": "v"}]
