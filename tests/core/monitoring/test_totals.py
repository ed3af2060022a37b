"""Running totals: the counts of every record, and the values after replays, checkpoints, deletions and losses."""

from collections.abc import Callable
from typing import Any

import msgspec

from cmqd.core.broker import Broker
from cmqd_segment.checkpoint import AnyPart, GoneTotalsSlice, QueueSlice, SubscriptionSlice, TopicSlice
from cmqd_segment.records import MessagesSent, TotalsReset
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals
from support.cases import each_case
from support.core.builders import ACCOUNT, KEY, Rig
from support.core.facts import facts


def totals(rig: Rig, name: str = "q") -> dict[str, int]:
    """The totals of a queue that are not 0."""
    found: dict[str, int] = msgspec.structs.asdict(rig.queue(name).index.totals)
    return {field: value for field, value in found.items() if value}


def test_sends_receives_and_deletes_are_counted_by_message_and_bodies_by_byte():
    rig = Rig()
    rig.create()

    rig.send(b"1", b"22", b"333")
    rig.delete(*rig.handles(most=2))

    assert totals(rig) == {"sent": 3, "sent_bytes": 6, "received": 2, "deleted": 2}


def test_a_receive_of_a_message_that_came_back_is_a_redelivery_unless_the_release_was_not_counted():
    rig = Rig()
    rig.create()
    rig.send(b"1")

    rig.release(*rig.handles(), counted=False)
    rig.release(*rig.handles())
    rig.handles(visibility_timeout_ms=1000)
    rig.settle(2000)
    rig.handles()

    assert totals(rig) == {"sent": 1, "sent_bytes": 1, "received": 4, "redelivered": 2, "released": 2, "timed_out": 1}


def test_expired_and_cleared_messages_are_counted_in_any_state_but_rewindable():
    rig = Rig()
    rig.create(retention_ms=60_000, rewind_ms=60_000)
    rig.send(b"deleted", b"in flight", b"active")
    rig.delete(*rig.handles(most=1))
    rig.handles(most=1, visibility_timeout_ms=43_200_000)
    rig.send(b"delayed", delay_ms=50_000)

    rig.clear()
    rig.send(b"old", b"older")
    rig.settle(61_000)

    found = totals(rig)
    assert (found["cleared"], found["expired"]) == (3, 2)


def test_dead_letters_are_counted_where_they_left_and_where_they_came_and_so_are_redriven_messages():
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.send(b"1", b"2")
    assert rig.reject(*rig.handles(most=1)) == {}
    rig.handles(visibility_timeout_ms=1000)
    rig.settle(2000)
    assert totals(rig)["dead_lettered"] == totals(rig, "dlq")["dead_letters"] == 2

    rig.redrive()
    rig.settle(1000)

    assert totals(rig, "dlq") == {"dead_letters": 2, "redriven": 2}
    assert totals(rig)["redriven_here"] == 2
    assert totals(rig)["sent"] == 2, "a message that comes back is not sent again"


def test_a_half_message_counts_as_sent_once_and_its_decision_apart():
    rig = Rig()
    rig.create(transactional=True)

    committed, rolled_back = rig.send_half(b"12", b"3")
    rig.end(1, committed)
    rig.end(2, rolled_back)
    rig.send(b"4")

    expected = {"sent": 3, "sent_bytes": 4, "half_sent": 2, "committed": 1, "rolled_back": 1}
    assert totals(rig) == expected == totals(rig.crash())


def test_rewound_messages_are_counted_again_when_they_are_deleted_again():
    rig = Rig()
    rig.create(rewind_ms=60_000)
    rig.send(b"1", b"2")
    rig.delete(*rig.handles())

    rig.rewind(rig.now_ms)
    rig.delete(*rig.handles())

    found = totals(rig)
    assert (found["rewound"], found["deleted"], found["received"]) == (2, 4, 4)
    assert "redelivered" not in found, "the receives of a rewound message count from 0"


def test_copies_count_in_the_queue_the_topic_and_the_subscription_at_the_publish_or_later():
    rig = Rig()
    rig.create_topic()
    queue_id = rig.subscribe("reader").subscription_id
    url_id = rig.subscribe("https://a.example/", name="web").subscription_id
    rig.publish(b"12", b"3")
    rig.settle()
    for push in list(rig.pushes):
        rig.end_push(push, "down" if push.message.body == b"12" else None)
    rig.delete_queue("reader")
    rig.publish(b"4")
    rig.settle()
    for push in list(rig.pushes):
        rig.end_push(push)
    rig.create("reader")
    rig.settle(2000)

    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
    assert topic.totals == TopicTotals(published=3, published_bytes=4)
    by_queue, by_url = (rig.broker.subscriptions[one].deliveries.totals() for one in (queue_id, url_id))
    assert by_queue.delivered == 3
    assert (by_url.failed, by_url.dropped) == (1, 0)
    assert totals(rig, "reader") == {"copied": 1}, "the new queue got the copy that waited for it"
    assert rig.broker.facts.gone_totals.by_account[ACCOUNT].queues == QueueTotals(copied=2)


def deletes(rig: Rig) -> None:
    rig.delete_queue()


def unsubscribes(rig: Rig) -> None:
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "web", rig.now_ms))


def deletes_the_topic(rig: Rig) -> None:
    unsubscribes(rig)
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))


def with_totals() -> Rig:
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    rig.create_topic()
    rig.subscribe("https://a.example/", name="web")
    rig.publish(b"12")
    rig.settle()
    rig.end_push(rig.pushes[0], "down")
    return rig


@each_case("go", [deletes, unsubscribes, deletes_the_topic])
@each_case("at_part", range(1, 7))
def test_totals_of_what_is_deleted_between_two_parts_of_a_checkpoint_are_kept_once(
    go: Callable[[Rig], None], at_part: int
):
    rig = with_totals()
    parts: list[AnyPart] = []
    for part in rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms):
        parts.append(part)
        if len(parts) == at_part:
            go(rig)
    expected = facts(rig.broker)

    assert facts(rig.crash_after(parts).broker)["gone totals"] == expected["gone totals"]
    assert facts(rig.crash().broker)["gone totals"] == expected["gone totals"]
    assert expected["gone totals"]


def test_totals_of_deleted_queues_stay_with_their_account():
    rig = with_totals()
    deletes(rig)
    deletes_the_topic(rig)
    rig.create()
    rig.send(b"333")
    deletes(rig)

    gone = rig.broker.facts.gone_totals.by_account[ACCOUNT]
    assert gone.queues == QueueTotals(sent=3, sent_bytes=5)
    assert gone.topics == TopicTotals(published=1, published_bytes=2)
    assert gone.subscriptions == SubscriptionTotals(failed=1, dropped=0)
    again = rig.crash_after(rig.checkpoint())
    assert facts(again.broker)["gone totals"] == facts(rig.broker)["gone totals"]


def test_a_checkpoint_of_an_older_version_lets_totals_begin_at_0_and_newer_records_count():
    rig = with_totals()
    parts = [older(part) for part in rig.checkpoint() if not isinstance(part, GoneTotalsSlice)]
    rig.send(b"3")

    again = rig.crash_after(parts)

    assert totals(again) == {"sent": 1, "sent_bytes": 1}
    assert rig.broker.facts.topics.find(ACCOUNT, "news").totals.published == 1
    assert again.broker.facts.topics.find(ACCOUNT, "news").totals == TopicTotals()


def older(part: AnyPart) -> AnyPart:
    """The part without the fields of totals, as an older version encoded the part."""
    if not isinstance(part, QueueSlice | TopicSlice | SubscriptionSlice):
        return part
    array: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(part))
    # Of a queue, fields of a later version stand behind its totals; the tag stands in front of all fields.
    behind = len(part.__struct_fields__) - part.__struct_fields__.index("totals") if isinstance(part, QueueSlice) else 1
    return msgspec.msgpack.decode(msgspec.msgpack.encode(array[:-behind]), type=AnyPart)


def test_after_a_loss_all_totals_begin_at_0_and_do_so_again_at_the_next_start():
    rig = with_totals()
    deletes(rig)
    rig.create()
    rig.send(b"1")

    (reset,) = [one for one in rig.broker.recovered(lost=True) if isinstance(one, TotalsReset)]

    assert totals(rig) == {}
    assert rig.broker.facts.gone_totals.by_account == {}
    rig.log.append([reset])
    rig.send(b"22")
    again = rig.crash()
    assert totals(again) == totals(rig) == {"sent": 1, "sent_bytes": 2}
    # A checkpoint behind the reset has the counts since the reset; replay of the reset must keep these counts.
    parts = rig.checkpoint()
    assert totals(rig.crash_after(parts)) == {"sent": 1, "sent_bytes": 2}


def test_totals_that_a_checkpoint_holds_do_not_change_with_later_records():
    rig = with_totals()
    (part,) = [one for one in rig.checkpoint() if isinstance(one, QueueSlice)]
    broker = Broker(KEY)
    broker.load(part)

    for lsn, record in rig.log.records():
        if isinstance(record, MessagesSent):
            broker.replay(record, lsn + 1000)

    assert part.totals == QueueTotals(sent=2, sent_bytes=2)
    assert broker.queues[part.queue_id].index.totals.sent == 4
