"""Deliveries over crashes and checkpoints, and the rows that the log must keep for deliveries."""

import pytest

from cmqd.core.limits import Limits
from support.core.builders import ACCOUNT, Rig
from support.core.delivering import URL, a_rig, change, check_recovery, drop, end_all, unsubscribe
from support.core.facts import facts

# ---------------------------------------------------------------------- crashes and checkpoints


def eventful(rig: Rig) -> None:
    """All kinds of events of deliveries."""
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


def test_a_crash_after_any_row_leaves_the_facts_of_that_row():
    rig = a_rig()
    eventful(rig)

    check_recovery(rig)


def test_pending_messages_reach_every_subscriber_after_a_crash():
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


# ---------------------------------------------------------------------- rows that the log must keep


def test_a_segment_is_live_as_long_as_a_subscription_waits_for_a_body_in_it():
    rig = a_rig()
    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
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
    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
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
