"""A view into deliveries: waiting messages of a subscription, retry or drop of a message, deliveries of a message."""

import pytest

from cmqd.core.domain_errors import (
    InvalidArgument,
    MessageNotPublished,
    MessageNotWaiting,
    SubscriptionNotFound,
    TopicNotFound,
)
from cmqd.core.limits import Limits
from cmqd_segment.checkpoint import AnyPart, SubscriptionSlice
from cmqd_types.deliveries import DeliveriesPeeked, DeliveryReport, MessageDeliveries, PendingMessage
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.delivering import DAY_MS, URL, a_rig, bodies, change, check_recovery, drop, end_all, info, unsubscribe
from support.core.facts import facts


def peek(
    rig: Rig, name: str = "web", start: int = 0, most: int = 16, with_bodies: bool = True, topic: str = "news"
) -> DeliveriesPeeked:
    return rig.ask(
        lambda waiter_id: rig.broker.peek_deliveries(
            ACCOUNT, topic, name, waiter_id, start, most, with_bodies, rig.now_ms
        )
    )


def peeked(rig: Rig, name: str = "web") -> list[tuple[bytes | None, str, int, int | None, str | None]]:
    """(body, state, attempts, time to the next attempt, last error) of all that waits."""
    return [
        (
            one.body,
            one.state,
            one.attempts,
            None if one.next_attempt_ms is None else one.next_attempt_ms - rig.now_ms,
            one.last_error,
        )
        for one in peek(rig, name).messages
    ]


def retry(rig: Rig, message_id: int, name: str = "web") -> int:
    return rig.ask(lambda waiter_id: rig.broker.retry_delivery(ACCOUNT, "news", name, waiter_id, message_id))


def drop_one(rig: Rig, message_id: int, name: str = "web") -> int:
    return rig.ask(lambda waiter_id: rig.broker.drop_delivery(ACCOUNT, "news", name, waiter_id, message_id))


def who(rig: Rig, message_id: int, topic: str = "news") -> MessageDeliveries:
    return rig.ask(lambda waiter_id: rig.broker.message_deliveries(ACCOUNT, topic, waiter_id, message_id))


def states(rig: Rig, message_id: int) -> dict[str | None, str]:
    """State by name of the subscription."""
    return {one.subscription: one.state for one in who(rig, message_id).deliveries}


def report(rig: Rig, message_id: int, name: str) -> DeliveryReport:
    (found,) = (one for one in who(rig, message_id).deliveries if one.subscription == name)
    return found


# ---------------------------------------------------------------------- peek


def test_a_peek_shows_every_state_with_attempts_and_the_error_of_each_message():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1", b"2", b"3")
    rig.settle()
    rig.end_push(rig.pushes[0], "the URL answered 500")
    rig.end_push(rig.pushes[0], "no answer")
    change(rig, paused=True)
    rig.publish(b"4")

    assert peeked(rig) == [
        (b"1", "in_retry", 1, 1000, "the URL answered 500"),
        (b"2", "in_retry", 1, 1000, "no answer"),
        (b"3", "under_way", 0, None, None),
        (b"4", "waiting", 0, None, None),
    ]


def test_a_peeked_message_has_its_id_time_tags_and_headers():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    ids = rig.publish(b"abc", labels=["red", "big"], headers=[{"k": "v"}]).message_ids

    assert peek(rig).messages == [
        PendingMessage(
            message_id=ids[0],
            state="waiting",
            publish_ms=START_MS,
            size=3,
            attempts=0,
            labels=["red", "big"],
            body=b"abc",
            headers={"k": "v"},
        )
    ]


def test_a_peek_without_bodies_has_the_facts_alone():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    rig.publish(b"abc", headers=[{"k": "v"}])

    (message,) = peek(rig, with_bodies=False).messages

    assert (message.size, message.body, message.headers) == (3, None, None)


def test_a_message_out_of_retries_says_so():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    for attempt in range(177):
        rig.settle(min(1000 << (attempt - 1), 512_000) if attempt else 0)
        assert end_all(rig, "down") == 1

    assert peeked(rig) == [(b"1", "out_of_retries", 177, None, "down")]


def test_pages_of_a_peek_meet_every_message_once_in_order():
    rig = a_rig()
    rig.subscribe(URL, filter_tags=["a"], paused=True)
    rig.publish(
        *[b"%d" % number for number in range(10)], each=[["a"] if number % 3 else ["b"] for number in range(10)]
    )
    rig.subscribe("https://b.example/", name="all")
    seen: list[bytes | None] = []
    start: int | None = 0
    while start is not None:
        page = peek(rig, start=start, most=2)
        seen += [one.body for one in page.messages]
        start = page.next_start

    assert seen == [b"1", b"2", b"4", b"5", b"7", b"8"]


def test_a_peek_reads_bodies_from_the_log_after_a_restart():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    rig.publish(b"1", b"2")

    again = rig.crash()

    assert [one.body for one in peek(again).messages] == [b"1", b"2"]


def test_a_page_of_large_bodies_ends_early_and_says_where_the_next_begins():
    rig = Rig(Limits(max_batch_bytes=1000, topic_bodies_bytes=0))
    rig.create_topic()
    rig.subscribe(URL, paused=True)
    for number in range(4):
        rig.publish(b"%d" % number * 400)

    first = peek(rig)
    assert first.next_start is not None
    second = peek(rig, start=first.next_start)

    assert [one.size for one in (*first.messages, *second.messages)] == [400] * 4
    assert (len(first.messages), second.next_start) == (2, None)


def test_a_damaged_message_is_not_shown_and_does_not_end_the_pages():
    rig = Rig(Limits(topic_bodies_bytes=0))
    topic = rig.create_topic()
    rig.subscribe(URL, paused=True)
    rig.publish(b"1", b"2", b"3")
    rig.log.damaged.add((topic.topic_id, 1))

    page = peek(rig)

    assert [one.body for one in page.messages] == [b"1", b"3"]
    assert page.next_start is None


def test_a_peek_changes_nothing_and_shows_no_message_past_its_day():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    rig.publish(b"1")
    before = facts(rig.broker)
    rig.now_ms += DAY_MS

    assert peek(rig) == DeliveriesPeeked(messages=[])
    assert facts(rig.broker) == before


def test_a_peek_of_an_empty_subscription_is_empty():
    rig = a_rig()
    rig.subscribe(URL)

    assert peek(rig) == DeliveriesPeeked(messages=[])


@pytest.mark.parametrize(
    ("field", "start", "most"), [("start", -1, 1), ("max_messages", 0, 0), ("max_messages", 0, 257)]
)
def test_a_peek_out_of_range_is_refused(field: str, start: int, most: int):
    rig = a_rig()
    rig.subscribe(URL)

    with pytest.raises(InvalidArgument) as refusal:
        peek(rig, start=start, most=most)
    assert refusal.value.details["field"] == field


def test_a_subscription_that_ends_during_a_peek_is_an_error():
    rig = Rig(Limits(topic_bodies_bytes=0))
    rig.create_topic()
    rig.subscribe(URL, paused=True)
    rig.publish(b"1")
    rig.done(rig.broker.peek_deliveries(ACCOUNT, "news", "web", 99, 0, 16, True, rig.now_ms))

    unsubscribe(rig)
    rig.answer_reads()

    (reply,) = rig.replies(99)
    assert isinstance(reply, SubscriptionNotFound)


# ---------------------------------------------------------------------- retry and drop


def test_one_message_in_retry_is_retried_at_once():
    rig = a_rig()
    rig.subscribe(URL)
    ids = rig.publish(b"1", b"2", b"3").message_ids
    rig.settle()
    end_all(rig, "down")

    assert retry(rig, ids[1]) == 1
    rig.settle()

    assert bodies(rig.pushes) == [b"2"]
    assert rig.pushes[0].attempt == 2


def test_a_message_never_tried_behind_a_block_is_sent_when_it_is_retried():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    end_all(rig, "down")
    rig.settle(1000)
    end_all(rig, "down")
    ids = rig.publish(b"2", b"3", b"4").message_ids
    rig.settle()
    assert not rig.pushes, "the subscription is blocked"

    assert retry(rig, ids[2]) == 1
    rig.settle()

    assert bodies(rig.pushes) == [b"4"]
    end_all(rig)
    assert not info(rig).facts["blocked"]


def test_a_retry_of_a_message_under_way_starts_no_second_attempt():
    rig = a_rig()
    rig.subscribe(URL)
    (message_id,) = rig.publish(b"1").message_ids
    rig.settle()

    assert retry(rig, message_id) == 1
    rig.settle()

    assert len(rig.pushes) == 1


def test_a_retry_does_not_overtake_under_backoff():
    rig = a_rig()
    rig.subscribe(URL, strategy="backoff")
    ids = rig.publish(b"1", b"2").message_ids
    rig.settle()
    end_all(rig, "down")

    assert retry(rig, ids[1]) == 1
    rig.settle()
    assert not rig.pushes
    assert retry(rig, ids[0]) == 1
    rig.settle()

    assert bodies(rig.pushes) == [b"1"]


def test_a_retry_without_memory_for_a_failure_waits_for_its_turn():
    rig = Rig(Limits(max_retries_known=1))
    rig.create_topic()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    end_all(rig, "down")
    (message_id,) = rig.publish(b"2").message_ids

    assert retry(rig, message_id) == 0
    rig.settle()

    assert not rig.pushes


def test_a_retry_is_not_a_fact():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    (message_id,) = rig.publish(b"1").message_ids
    rows = rig.log.last_lsn

    retry(rig, message_id)

    assert rig.log.last_lsn == rows


def test_one_message_is_dropped_and_the_others_wait_on():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    ids = rig.publish(b"1", b"2", b"3").message_ids

    assert drop_one(rig, ids[1]) == 1

    assert [one.body for one in peek(rig).messages] == [b"1", b"3"]
    assert info(rig).counts["dropped"] == 1
    check_recovery(rig)


def test_a_drop_makes_room_for_the_next_message_under_backoff():
    rig = a_rig()
    rig.subscribe(URL, strategy="backoff")
    ids = rig.publish(b"1", b"2").message_ids
    rig.settle()
    end_all(rig, "down")

    drop_one(rig, ids[0])
    rig.settle()

    assert bodies(rig.pushes) == [b"2"]


def test_a_message_that_was_hurried_and_dropped_is_not_sent():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    (message_id,) = rig.publish(b"1").message_ids
    retry(rig, message_id)
    drop_one(rig, message_id)
    change(rig, paused=False)
    rig.settle()

    assert not rig.pushes


@pytest.mark.parametrize("ask", [retry, drop_one])
def test_a_message_that_does_not_wait_there_is_refused(ask: object):
    assert callable(ask)
    rig = a_rig()
    rig.subscribe(URL, filter_tags=["a"])
    rig.subscribe("https://all.example/", name="all", paused=True)
    (delivered,) = rig.publish(b"1", labels=["a"]).message_ids
    rig.settle()
    end_all(rig)
    (for_others,) = rig.publish(b"2", labels=["b"]).message_ids
    (waits,) = rig.publish(b"3", labels=["a"]).message_ids

    for message_id in (delivered, for_others, 1, waits + 1, waits + 100_000):
        with pytest.raises(MessageNotWaiting) as refusal:
            ask(rig, message_id)
        assert f"Msg-{message_id:016x}" in refusal.value.text
    with pytest.raises(SubscriptionNotFound):
        ask(rig, waits, "elsewhere")
    with pytest.raises(InvalidArgument):
        ask(rig, 0)


def test_a_message_that_is_delivered_during_the_search_is_refused():
    rig = a_rig()
    rig.subscribe(URL)
    (message_id,) = rig.publish(b"1").message_ids
    rig.settle()
    rig.done(rig.broker.drop_delivery(ACCOUNT, "news", "web", 99, message_id))
    end_all(rig)

    rig.answer_reads()

    (reply,) = rig.replies(99)
    assert isinstance(reply, MessageNotWaiting)
    assert info(rig).counts == {"waiting": 0, "in_retry": 0, "dropped": 0, "delivered": 1}


def test_a_topic_that_is_deleted_during_the_search_is_an_error():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    (message_id,) = rig.publish(b"1").message_ids
    rig.done(rig.broker.drop_delivery(ACCOUNT, "news", "web", 98, message_id))
    rig.done(rig.broker.message_deliveries(ACCOUNT, "news", 99, message_id))
    unsubscribe(rig)
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))

    rig.answer_reads()

    assert [type(reply) for reply in (*rig.replies(98), *rig.replies(99))] == [TopicNotFound, TopicNotFound]


def test_a_cancelled_drop_changes_nothing():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    (message_id,) = rig.publish(b"1").message_ids
    rig.done(rig.broker.drop_delivery(ACCOUNT, "news", "web", 99, message_id))

    assert rig.broker.cancel_receive(99)
    rig.answer_reads()

    assert not rig.replies(99)
    assert len(peek(rig).messages) == 1
    assert not rig.broker.cancel_receive(99)


def test_every_id_of_a_long_backlog_is_found_with_few_reads():
    rig = a_rig()
    rig.subscribe(URL, filter_tags=["a"], paused=True)
    rig.subscribe("q")
    ids: list[int] = []
    for number in range(200):
        ids += rig.publish(b"x", b"y", each=[["a"] if number % 3 else ["b"], ["a"]]).message_ids
    for message_id in ids[1::20]:
        asked = rig.published_reads_asked
        assert who(rig, message_id).message_id == message_id
        assert rig.published_reads_asked - asked <= 9


# ---------------------------------------------------------------------- deliveries of a message


def test_a_report_names_every_subscription_that_the_message_was_for():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe(URL)
    rig.subscribe("https://failing.example/", name="failing")
    rig.subscribe("https://paused.example/", name="paused", paused=True)
    rig.subscribe("https://other.example/", name="other", filter_tags=["other"])
    (message_id,) = rig.publish(b"abc", labels=["red"]).message_ids
    rig.settle()
    rig.end_push(next(push for push in rig.pushes if push.subscription == "web"))
    rig.end_push(next(push for push in rig.pushes if push.subscription == "failing"), "no answer")
    (copy,) = rig.receive()

    found = who(rig, message_id)

    assert (found.message_id, found.publish_ms, found.size, found.labels) == (message_id, START_MS, 3, ["red"])
    assert found.deliveries == [
        DeliveryReport(
            subscription="to-q",
            state="delivered",
            endpoint="q",
            attempts=0,
            delivered_ms=START_MS,
            copy_id=copy.message_id,
        ),
        DeliveryReport(subscription="web", state="delivered", endpoint=URL),
        DeliveryReport(
            subscription="failing",
            state="in_retry",
            endpoint="https://failing.example/",
            attempts=1,
            next_attempt_ms=rig.now_ms + 1000,
            last_error="no answer",
            last_failed_ms=rig.now_ms,
        ),
        DeliveryReport(subscription="paused", state="waiting", endpoint="https://paused.example/", attempts=0),
    ]


def test_each_message_of_a_batch_has_its_own_subscriptions_and_copies():
    rig = a_rig()
    for name, tag in (("qa", "a"), ("qb", "b")):
        rig.subscribe(name, name=f"to-{name}", filter_tags=[tag])
    rig.subscribe("qa", name="again")
    ids = rig.publish(b"1", b"2", b"3", each=[["a"], ["b"], ["a", "b"]]).message_ids
    copies = {
        (one.copy_of.subscription, one.copy_of.message_id): one.message_id
        for queue in ("qa", "qb")
        for one in rig.receive(queue)
        if one.copy_of is not None
    }

    told = {
        (one.subscription, message_id): one.copy_id for message_id in ids for one in who(rig, message_id).deliveries
    }

    assert told == copies
    assert len(told) == 7


def test_every_way_to_lose_a_message_is_told_with_its_reason():
    rig = Rig(Limits(topic_bodies_bytes=0))
    topic = rig.create_topic()
    rig.subscribe("https://a.example/", name="all-dropped", paused=True)
    rig.subscribe("https://b.example/", name="one-dropped", paused=True)
    rig.subscribe("https://c.example/", name="retries", strategy="backoff")
    rig.subscribe("https://d.example/", name="damaged", paused=True)
    rig.subscribe("https://e.example/", name="holds", paused=True)
    (message_id,) = rig.publish(b"1").message_ids
    drop(rig, "all-dropped")
    drop_one(rig, message_id, "one-dropped")
    for _ in range(4):
        rig.settle(20_000)
        end_all(rig, "down")
    rig.log.damaged.add((topic.topic_id, 0))
    change(rig, "damaged", paused=False)
    rig.settle()
    rig.log.damaged.clear()

    for again in (rig, rig.crash(), rig.crash_after(rig.checkpoint())):
        told = {one.subscription: (one.state, one.drop_reason) for one in who(again, message_id).deliveries}
        assert told == {
            "all-dropped": ("dropped", "operator"),
            "one-dropped": ("dropped", "operator"),
            "retries": ("dropped", "retries"),
            "damaged": ("dropped", "damaged"),
            "holds": ("waiting", None),
        }
    check_recovery(rig)


def test_a_message_that_a_full_queue_took_late_is_delivered():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    (message_id,) = rig.publish(b"1").message_ids
    rig.settle()
    assert report(rig, message_id, "to-q").state == "in_retry"
    assert report(rig, message_id, "to-q").last_error == "queue 'q' does not exist"
    rig.create("q")
    rig.settle(2000)

    assert report(rig, message_id, "to-q") == DeliveryReport(subscription="to-q", state="delivered", endpoint="q")


def test_a_removed_subscription_leaves_no_name_and_no_state():
    rig = a_rig()
    rig.subscribe(URL)
    rig.subscribe("q")
    (message_id,) = rig.publish(b"1").message_ids
    unsubscribe(rig)
    unsubscribe(rig, "to-q")
    rig.delete_queue("q")

    assert {(one.subscription, one.state, one.endpoint) for one in who(rig, message_id).deliveries} == {
        (None, "unknown", None),
        ("to-q", "delivered", None),
    }


def test_after_its_day_a_delivery_is_not_told_from_an_expiry():
    rig = a_rig()
    rig.subscribe(URL)
    rig.subscribe("https://b.example/", name="paused", paused=True)
    rig.subscribe("q")
    (message_id,) = rig.publish(b"1").message_ids
    rig.settle()
    end_all(rig)
    assert states(rig, message_id) == {"web": "delivered", "paused": "waiting", "to-q": "delivered"}
    rig.now_ms += DAY_MS

    assert states(rig, message_id) == {"web": "unknown", "paused": "unknown", "to-q": "delivered"}
    rig.settle(1000)
    assert states(rig, message_id) == {"web": "unknown", "paused": "unknown", "to-q": "delivered"}


def test_a_drop_of_the_day_before_is_still_told_from_a_delivery():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    (early,) = rig.publish(b"1").message_ids
    drop_one(rig, early)
    rig.settle(DAY_MS - 1000)
    (late,) = rig.publish(b"2").message_ids
    drop_one(rig, late)
    rig.settle(DAY_MS - 1000)
    (newest,) = rig.publish(b"3").message_ids
    drop_one(rig, newest)

    assert states(rig, late) == {"web": "dropped"}
    assert states(rig, newest) == {"web": "dropped"}
    assert facts(rig.crash_after(rig.checkpoint()).broker) == facts(rig.broker)


def test_drops_are_forgotten_after_two_days():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    subscription = rig.broker.facts.topics.find_subscription(ACCOUNT, "news", "web")
    for _ in range(6):
        (message_id,) = rig.publish(b"1").message_ids
        drop_one(rig, message_id)
        rig.settle(DAY_MS + 1000)

    _, newer, older = subscription.deliveries.drops.packed()
    assert (len(newer), len(older)) == (1, 1)
    assert subscription.deliveries.drops.reason_of(0) is None
    assert subscription.deliveries.drops.reason_of(5) == "operator"


def test_before_drops_were_kept_a_delivery_is_not_told_from_a_drop():
    rig = a_rig()
    rig.subscribe(URL)
    rig.subscribe("https://b.example/", name="paused", paused=True)
    (before,) = rig.publish(b"1").message_ids
    rig.settle()
    end_all(rig)
    parts = rig.checkpoint()

    again = rig.crash_after([as_before(part) for part in parts])
    (after,) = again.publish(b"2").message_ids
    again.settle()
    end_all(again)

    assert states(again, before) == {"web": "unknown", "paused": "waiting"}
    assert states(again, after) == {"web": "delivered", "paused": "waiting"}


def as_before(part: AnyPart) -> AnyPart:
    """The part as written by versions without drops."""
    if not isinstance(part, SubscriptionSlice):
        return part
    names = [name for name in SubscriptionSlice.__struct_fields__ if "drops" not in name]
    return SubscriptionSlice(**{name: getattr(part, name) for name in names})


def test_a_message_that_the_topic_does_not_know_is_refused():
    rig = a_rig()
    rig.create_topic("other-topic")
    rig.subscribe("q")
    rig.subscribe(URL, filter_tags=["a"])
    (for_web,) = rig.publish(b"1", labels=["a"]).message_ids
    unsubscribe(rig, "to-q")
    (for_none,) = rig.publish(b"2", labels=["b"]).message_ids
    (copy,) = rig.receive()

    for message_id in (for_none, copy.message_id, for_web + 1000):
        with pytest.raises(MessageNotPublished):
            who(rig, message_id)
    with pytest.raises(MessageNotPublished):
        who(rig, for_web, "other-topic")
    with pytest.raises(TopicNotFound):
        who(rig, for_web, "no-topic")
    with pytest.raises(InvalidArgument):
        who(rig, 0)


def test_reclaimed_parts_of_the_log_hide_only_their_own_messages():
    rig = a_rig()
    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
    rig.subscribe("q")
    ids = [rig.publish(b"%d" % number).message_ids[0] for number in range(20)]
    reclaimed = {*range(3, 9), 11, *range(15, 20)}
    rig.log.damaged |= {(topic.topic_id, position) for position in reclaimed}

    for position, message_id in enumerate(ids):
        if position in reclaimed:
            with pytest.raises(MessageNotPublished):
                who(rig, message_id)
        else:
            assert who(rig, message_id).message_id == message_id


def test_a_checkpoint_keeps_the_error_of_each_message():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1", b"2", b"3")
    rig.settle()
    for error in ("down", "no answer", "down"):
        rig.end_push(rig.pushes[0], error)

    again = rig.crash_after(rig.checkpoint())

    assert [one.last_error for one in peek(again).messages] == ["down", "no answer", "down"]
    assert facts(again.broker) == facts(rig.broker)
