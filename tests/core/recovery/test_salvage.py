"""Replay of a log with gaps: with any row missing, the broker starts, keeps its invariants and can be used."""

import os
import random
from collections.abc import Collection, Sequence
from itertools import pairwise

import pytest

from cmqd.core.broker import Broker
from cmqd.core.facts.numbers import JUMP
from cmqd.core.limits import Limits
from cmqd.core.operations.monitoring.audit import AuditAction
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import (
    UNUSED,
    AnyRecord,
    DeadLettersFrom,
    LogRestored,
    MessagesDelivered,
    MessagesPublished,
    MessagesPublishedAlike,
    MessagesReceived,
    QueueDeleted,
    QueueRewound,
    Record,
    SchedulePlanned,
    Subscribed,
    TopicCreated,
    TopicDeleted,
    TotalsReset,
    Unsubscribed,
)
from cmqd_types.actors import Actor
from support.cases import each_case
from support.core import alone
from support.core.builders import ACCOUNT, KEY, Rig, counts, every
from support.core.facts import check_lease_buckets, facts, without_totals
from support.core.invariants import check_broker

LIMITS = Limits(tick_items=4, topic_life_ms=300_000, max_delay_ms=86_400_000)


def eventful() -> Rig:
    """A broker with a log of all kinds of records, and with facts that depend on every record."""
    rig = Rig(LIMITS)
    rig.create(max_delayed=2, retention_ms=600_000)
    rig.send(b"1", b"2", b"3", b"4", b"5", b"6", session=7, sequence=1)
    handles = rig.handles(most=4, visibility_timeout_ms=5000)
    rig.hide(*handles[:2], timeout_ms=60_000)
    rig.delete(handles[0])
    rig.release(handles[1], counted=False)
    rig.release(handles[2])
    rig.send(*[b"late"] * 5, delay_ms=[1000, 2000, 3000, 4000, 50_000])
    rig.create("other")
    rig.send(b"a", b"b", b"c", name="other")
    rig.receive("other", most=2, visibility_timeout_ms=43_200_000)
    rig.set(max_delayed=3)
    settle(rig, 1100)
    settle(rig, 1100)
    rig.receive(most=3, visibility_timeout_ms=1000)
    settle(rig, 6000)
    rig.delete(*rig.handles(most=3))
    rig.clear("other")
    actor = Actor(ACCOUNT, "AKID", "worker", "10.0.0.1")
    rig.done(rig.broker.send_all(ACCOUNT, "other", [alone.Send([b"d", b"e"])], rig.now_ms, [actor]))
    rig.create("gone")
    rig.send(b"x", name="gone")
    rig.delete_queue("gone")
    rig.create("Gone")
    rig.send(b"y", b"z", name="Gone", delay_ms=[0, 1000])
    rig.receive("Gone")
    rig.done(rig.broker.set_clock_offset(-3_600_000, rig.now_ms))
    # As after an earlier loss.
    reset = TotalsReset(rig.now_ms)
    rig.log.append([reset])
    rig.broker.replay(reset, rig.log.last_lsn)
    # As after an earlier restore.
    restored = LogRestored(rig.now_ms, 0)
    rig.log.append([restored])
    rig.broker.replay(restored, rig.log.last_lsn)
    action = AuditAction("admin", "admin", "AKID", "10.0.0.1:5", "create_queue", "far", "")
    rig.log.append([rig.broker.audit_record(action, rig.now_ms)])
    rig.create("far")
    rig.send(b"in 3 hours", b"in 9 hours", name="far", delay_ms=[10_800_000, 32_400_000])
    rig.create("reply", auto_delete_after_ms=60_000)
    moves_and_transactions(rig)
    topics(rig)
    schedules(rig)
    settle(rig, 595_000)
    rig.send(b"7", b"8", b"9", session=7, sequence=3)
    handles = rig.handles(most=2)
    settle(rig, 10_000)
    rig.delete(handles[0])
    rig.receive("other")
    return rig


def moves_and_transactions(rig: Rig) -> None:
    rig.create("dead")
    rig.send(b"was there", name="dead")
    by_receives = {"dead_letter_queue": "dead", "dead_letter_max_receives": 1}
    rig.create("moody", rewind_ms=60_000, retention_ms=600_000, transactional=True, **by_receives)
    rig.delete(*rig.handles("dead"), name="dead")
    rig.send(*[b"m%d" % number for number in range(6)], name="moody")
    rig.delete(*rig.handles("moody", most=3, visibility_timeout_ms=1000)[:2], name="moody")
    settle(rig, 1100)
    assert rig.counts("dead")["active"] == 1
    rig.rewind(rig.now_ms - 5000, "moody")
    rig.receive("moody", most=2, visibility_timeout_ms=1000)
    settle(rig, 1100)
    assert rig.counts("dead")["active"] == 3
    rig.redrive("dead", max_per_second=10)
    settle(rig, 50)
    rig.done(rig.broker.cancel_redrive(ACCOUNT, "dead", rig.now_ms))
    rig.redrive("dead")
    settle(rig, 200)
    rig.answer_reads()
    assert rig.counts("dead")["active"] == 0
    rig.delete(*rig.handles("moody", most=1), name="moody")
    halves = rig.send_half(b"h0", b"h1", b"h2", b"h3", name="moody")
    rig.end(1, halves[0], name="moody")
    rig.end(2, halves[1], name="moody")
    rig.broker.set_has_checkers(ACCOUNT, "moody", True)
    settle(rig, 5100)
    rig.broker.set_has_checkers(ACCOUNT, "moody", False)
    rig.end(3, halves[2], name="moody")
    assert rig.reject(*rig.handles("moody", most=1), name="moody", reasons=["no such customer"]) == {}
    rig.receive("moody", most=2, visibility_timeout_ms=60_000)


def topics(rig: Rig) -> None:
    rig.create_topic("gone")
    rig.done(rig.broker.delete_topic(ACCOUNT, "gone"))
    rig.create_topic("news")
    rig.done(rig.broker.set_topic_attributes(ACCOUNT, "news", {"max_message_bytes": 2048}, rig.now_ms))
    rig.subscribe("reader", topic="news")
    rig.subscribe("https://a.example/", topic="news", name="web")
    rig.subscribe("https://b.example/", topic="news", name="Web2", strategy="backoff")
    rig.publish(b"n1", b"n2", topic="news", session=7, sequence=2)
    rig.receive("reader", most=1, visibility_timeout_ms=1000)
    rig.settle()
    for push in list(rig.pushes):
        rig.end_push(push, "down" if push.message.position else None)
    rig.delete_queue("reader")
    rig.publish(b"n3", topic="news", labels=["a"], dedup_ids=["d"])
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "Web2", rig.now_ms))
    rig.subscribe("https://b.example/", topic="news", name="web2", filter_tags=["a"])
    changed = rig.broker.set_subscription_attributes(ACCOUNT, "news", "web2", {"filter_tags": []}, rig.now_ms)
    rig.done(changed)
    settle(rig, 0)
    for push in list(rig.pushes):
        rig.end_push(push, "down")
    rig.create("reader")
    settle(rig, 1100)
    assert rig.counts("reader")["active"] == 1
    rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", "web", rig.now_ms))
    rig.subscribe("https://c.example/", topic="news", name="last", strategy="backoff")
    rig.publish(b"n4", topic="news")
    for _ in range(4):
        settle(rig, 20_000)
        for push in list(rig.pushes):
            rig.end_push(push, "down")
    assert rig.broker.subscription_info(ACCOUNT, "news", "last").counts["dropped"] == 1
    rig.pushes.clear()


def schedules(rig: Rig) -> None:
    """Each fires once: the next multiple after the first is decades away."""
    rig.create("timed")
    for number, name in enumerate(("gone", "Gone", "kept")):
        made = rig.broker.create_schedule(
            *(ACCOUNT, name, {"queue": "timed", "cron": str(rig.now_ms + 500 + number)}, b"t", None, rig.now_ms)
        )
        rig.done(made)
        if name == "gone":
            rig.done(rig.broker.delete_schedule(ACCOUNT, name))
    rig.done(rig.broker.set_schedule(ACCOUNT, "kept", {}, b"tt", {"h": "v"}, rig.now_ms))
    # As after a step of broker time.
    planned = SchedulePlanned(
        rig.broker.facts.schedules.find(ACCOUNT, "Gone").schedule_id, rig.now_ms, rig.now_ms + 400
    )
    rig.log.append([planned])
    rig.broker.replay(planned, rig.log.last_lsn)
    settle(rig, 600)
    assert rig.counts("timed")["active"] == 2
    rig.delete_queue("timed")
    for name in ("Gone", "kept"):
        rig.done(rig.broker.set_schedule(ACCOUNT, name, {"cron": str(rig.now_ms + 500)}, None, None, rig.now_ms))
    settle(rig, 600)
    assert rig.broker.schedule_info(ACCOUNT, "kept").counts == {"fired": 1, "missed": 1}
    rig.create("timed")


def settle(rig: Rig, ms: int) -> None:
    rig.advance(ms)
    rig.answer_reads()
    rig.advance(0)


def salvaged(rig: Rig, missing: Collection[int], parts: Sequence[AnyPart] = ()) -> Rig:
    """A broker from the rows of the log without these LSNs (and from a checkpoint)."""
    broker = Broker(KEY, rig.limits, calendar=every)
    log = rig.log.only([[] if lsn in missing else row for lsn, row in enumerate(rig.log.rows, 1)])
    log.damaged.clear()
    for part in parts:
        broker.load(part)
    broker.begin_salvage()
    # Up to the first gap the states are those of the whole log, which has a test of its own.
    first_gap = min(missing, default=0)
    for lsn, record in log.records():
        if not parts or lsn > parts[0].lsn:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            broker.replay(record, lsn)
            if lsn >= first_gap:
                check_broker(broker)
    log.append(broker.recovered(lost=True))
    check_broker(broker)
    again = Rig(rig.limits, broker, log)
    again.now_ms = rig.now_ms
    return again


def check_usable(rig: Rig, missing: Collection[int]) -> None:
    """Every queue delivers all its messages, takes new messages, and is restored from the log without a difference;
    likewise every topic.
    """
    if "q" not in [name for _, name in rig.broker.list_queues(ACCOUNT, "", 0, 100)[1]]:
        rig.create()
    for queue in list(rig.broker.queues.values()):
        check_lease_buckets(queue)
        (message_id,) = rig.send(b"new", name=queue.name)
        assert message_id > JUMP
    for topic in list(rig.broker.topics.values()):
        (message_id,) = rig.publish(b"new", topic=topic.name).message_ids
        assert message_id > JUMP
    again = salvaged(rig, missing)
    found, before = without_totals(facts(again.broker)), without_totals(facts(rig.broker))
    del found["reserved"], before["reserved"]
    assert found == before
    for ms in (0, *[400_000] * 3, 43_300_000):
        rig.advance(ms)
        while rig.reads or rig.pushes:
            rig.answer_reads()
            for push in list(rig.pushes):
                rig.end_push(push)
            rig.advance(20)
        for queue in list(rig.broker.queues.values()):
            rig.send(b"newer", name=queue.name)
            while handles := rig.handles(queue.name):
                assert rig.delete(*handles, name=queue.name) == []
        check_broker(rig.broker)
    rig.settle(700_000)
    for queue in rig.broker.queues.values():
        held = rig.broker.queue_info(queue.account, queue.name).counts
        assert held == counts(), f"something of {queue.name} can never be received: {held}"
    for topic in rig.broker.topics.values():
        assert not topic.has_pending(), f"something of {topic.name} never reaches its subscribers"


EVENTFUL = eventful()
ROWS = len(EVENTFUL.log.rows)
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 20
"""Every twentieth case is enough between two runs of ``make test-all``, whose part models has all."""


def test_the_log_of_these_tests_has_records_of_every_kind():
    kinds = {type(record) for _, record in EVENTFUL.log.records()}

    assert UNUSED in {record.reason for _, record in EVENTFUL.log.records() if isinstance(record, QueueDeleted)}
    # The form of format 1 is written no more.
    assert kinds | {MessagesPublishedAlike} == set(AnyRecord.__args__)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


def test_a_whole_log_comes_out_as_without_salvage():
    rig = salvaged(EVENTFUL, ())

    assert rig.broker.records_not_applied == 0
    assert facts(EVENTFUL.crash().broker)["queues"] == facts(EVENTFUL.broker)["queues"]
    before, found = without_totals(facts(EVENTFUL.broker)), without_totals(facts(rig.broker))
    assert (found["queues"], found["sessions"]) == (before["queues"], before["sessions"])


@each_case("lsn", range(1, ROWS + 1, min(STEP, 3)))
def test_any_row_may_be_missing(lsn: int):
    check_usable(salvaged(EVENTFUL, {lsn}), {lsn})


@each_case("pair", list(pairwise(range(1, ROWS + 1)))[::STEP], ids=str)
def test_any_two_neighbours_may_be_missing(pair: tuple[int, int]):
    check_usable(salvaged(EVENTFUL, pair), pair)


@each_case("seed", range(0, 150, STEP))
def test_any_rows_may_be_missing(seed: int):
    chance = random.Random(seed)
    share = chance.choice([0.05, 0.2, 0.5, 0.9])
    missing = {lsn for lsn in range(1, ROWS + 1) if chance.random() < share}

    check_usable(salvaged(EVENTFUL, missing), missing)


@each_case("seed", range(30))
def test_any_rows_above_a_checkpoint_may_be_missing(seed: int):
    chance = random.Random(seed)
    at = chance.randrange(1, ROWS)
    before = Broker(KEY, LIMITS, calendar=every)
    for lsn, record in EVENTFUL.log.records():
        if lsn <= at:
            before.replay(record, lsn)
    before.recovered()
    parts = list(before.checkpoint(lambda: at, EVENTFUL.now_ms))
    missing = {lsn for lsn in range(at + 1, ROWS + 1) if chance.random() < 0.3}

    rig = salvaged(EVENTFUL, missing, parts)

    rig.answer_reads()
    for queue in rig.broker.queues.values():
        check_lease_buckets(queue)
        assert rig.send(b"new", name=queue.name)
        assert queue.index.active_count
        assert rig.bodies(queue.name, 1)
        check_broker(rig.broker)
    for topic in rig.broker.topics.values():
        reached = rig.publish(b"new", topic=topic.name, labels=["a"]).matched[0]
        assert reached == len(topic.subscriptions)
        rig.settle()
        check_broker(rig.broker)


def test_a_message_received_in_a_gap_is_delivered_again_and_counted_as_often_as_is_known():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    rig.receive()
    rig.advance(31_000)
    rig.receive()
    lost = next(lsn for lsn, record in rig.log.records() if type(record).__name__ == "LeasesEnded")

    again = salvaged(rig, {lost})

    assert again.counts()["in_flight"] == 1
    again.advance(31_000)
    assert [message.receive_count for message in again.receive()] == [3]


def test_positions_of_lost_sends_are_not_used_again_if_anything_tells_of_them():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2")
    rig.delete(*rig.handles())

    again = salvaged(rig, {2})

    assert again.queue().index.next_position == queue.index.next_position == 2
    assert again.broker.records_not_applied == 2
    assert set(again.counts().values()) == {0}


def test_a_batch_of_which_a_part_is_known_keeps_its_leases():
    rig = Rig()
    rig.create()
    for body in (b"1", b"2", b"3"):
        rig.send(body)
    handles = rig.handles()

    again = salvaged(rig, {3})

    assert again.counts()["in_flight"] == 2
    assert again.delete(*handles) == [handles[1]]
    assert set(again.counts().values()) == {0}


def test_a_queue_whose_name_was_given_away_was_deleted_in_a_gap():
    rig = Rig()
    rig.create("name")
    rig.send(b"1", name="name")
    rig.delete_queue("name")
    rig.create("Name")

    again = salvaged(rig, {3})

    assert [queue.name for queue in again.broker.queues.values()] == ["Name"]


def test_a_queue_made_and_deleted_again_before_its_checkpoint_does_not_take_its_namesakes_place():
    rig = Rig()
    rig.create("other")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    rig.create("a")
    rig.send(b"1", name="a")
    rig.delete_queue("a")
    rig.create("a")
    taken.extend(parts)

    assert facts(rig.crash_after(taken).broker) == facts(rig.broker)
    check_broker(rig.crash_after(taken).broker)


def test_without_salvage_replay_is_strict():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    lsn, record = rig.log.records()[2]

    with pytest.raises(ValueError, match="of unknown queue"):
        Broker(KEY).replay(record, lsn)


def test_numbers_leap_after_salvage_even_if_the_loss_is_no_news():
    rig = Rig()
    rig.create()
    broker = Broker(KEY)
    for lsn, record in rig.log.records():
        broker.replay(record, lsn)
    broker.begin_salvage()

    assert broker.recovered(lost=False)
    assert broker.facts.numbers.next_message_id > JUMP
    assert broker.recovered(lost=False) == []


def without(rig: Rig, *kinds: type[Record]) -> set[int]:
    """LSNs of the rows that have a record of these kinds."""
    return {lsn for lsn, row in enumerate(rig.log.rows, 1) if any(isinstance(record, kinds) for record in row)}


def test_a_message_received_after_a_rewind_that_was_lost_is_in_flight():
    rig = Rig()
    rig.create(rewind_ms=60_000)
    rig.send(b"1", b"2")
    rig.delete(*rig.handles())
    rig.rewind(rig.now_ms)
    (handle,) = rig.handles(most=1)

    again = salvaged(rig, without(rig, QueueRewound))

    assert again.counts() == counts(in_flight=1, rewindable=1)
    assert again.delete(handle) == []


def test_a_message_moved_after_a_rewind_that_was_lost_is_not_in_both():
    rig = Rig()
    rig.create("dlq")
    rig.create(rewind_ms=60_000, dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.send(b"1")
    rig.delete(*rig.handles())
    rig.rewind(rig.now_ms)
    rig.receive(visibility_timeout_ms=1000)
    rig.settle(1000)

    again = salvaged(rig, without(rig, QueueRewound, MessagesReceived))

    assert again.counts() == counts()
    assert again.counts("dlq") == counts(active=1)


def test_a_queue_that_no_longer_knows_that_it_serves_takes_dead_letters_once_it_is_consumed():
    rig = Rig()
    rig.create("dlq")
    rig.send(b"there", name="dlq")
    rig.create("q")
    rig.set("q", dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.log.rows = [[record for record in row if not isinstance(record, DeadLettersFrom)] for row in rig.log.rows]
    again = salvaged(rig, ())
    again.send(b"1")
    again.receive(visibility_timeout_ms=1000)
    again.settle(1000)
    assert again.counts()["active"] == 1

    again.delete(*again.handles("dlq"), name="dlq")
    again.settle(2000)

    assert again.bodies("dlq") == [b"1"]
    found, before = facts(salvaged(again, ()).broker), facts(again.crash().broker)
    assert without_totals(found["queues"]) == without_totals(before["queues"])


def test_a_queue_whose_dead_letter_queue_was_lost_has_none():
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=1)

    again = salvaged(rig, {1})
    assert again.queue().attributes()["dead_letter_queue"] == ""
    again.create("dlq")
    again.send(b"1")
    again.receive(visibility_timeout_ms=1000)
    again.settle(1000)

    assert again.counts()["active"] == 1
    assert salvaged(again, {1}).queue().dead_letters is None


def a_topic() -> Rig:
    rig = Rig()
    rig.create_topic()
    return rig


def test_a_topic_whose_name_was_given_away_was_deleted_in_a_gap():
    rig = a_topic()
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))
    rig.create_topic("NEWS")

    again = salvaged(rig, without(rig, TopicDeleted))

    assert [topic.name for topic in again.broker.topics.values()] == ["NEWS"]


def test_a_subscription_whose_name_was_given_away_ended_in_a_gap():
    rig = a_topic()
    rig.subscribe("https://a.example/", name="to-s")
    rig.publish(b"1")
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "to-s", rig.now_ms))
    new = rig.subscribe("https://b.example/", name="to-S")

    again = salvaged(rig, without(rig, Unsubscribed))

    assert list(again.broker.subscriptions) == [new.subscription_id]
    again.settle()
    assert again.pushes == []


def test_copies_of_a_lost_topic_stay_in_their_queues():
    rig = a_topic()
    rig.subscribe("q")
    rig.publish(b"1")

    again = salvaged(rig, without(rig, TopicCreated))

    assert again.broker.topics == {}
    assert again.bodies() == [b"1"]
    assert again.broker.records_not_applied == 2


def test_copies_for_a_lost_queue_do_not_hinder_the_others():
    rig = a_topic()
    rig.subscribe("q")
    rig.subscribe("r")
    rig.publish(b"1")

    again = salvaged(rig, {2})

    assert again.bodies("r") == [b"1"]
    assert again.broker.records_not_applied == 1
    again.publish(b"2")
    again.settle()
    assert again.broker.subscription_info(ACCOUNT, "news", "to-q").facts["last_error"] == "queue 'q' does not exist"


def test_positions_of_lost_publishes_are_not_used_again_if_anything_tells_of_them():
    rig = a_topic()
    rig.subscribe("https://a.example/", name="to-s")
    rig.publish(b"1", b"2", b"3")
    rig.settle()
    for push in list(rig.pushes)[:2]:
        rig.end_push(push)

    again = salvaged(rig, without(rig, MessagesPublished))

    assert again.broker.facts.topics.find(ACCOUNT, "news").next_position == 2
    assert again.broker.subscription_info(ACCOUNT, "news", "to-s").counts["delivered"] == 0


def test_a_message_whose_delivery_was_lost_is_delivered_again():
    rig = a_topic()
    rig.subscribe("https://a.example/", name="to-s")
    rig.publish(b"1")
    rig.settle()
    rig.end_push(rig.pushes[0])

    again = salvaged(rig, without(rig, MessagesDelivered))
    again.settle()

    assert [push.message.body for push in again.pushes] == [b"1"]


def test_messages_of_a_lost_subscription_wait_no_more():
    rig = a_topic()
    rig.subscribe("https://a.example/", name="to-s")
    rig.publish(b"1")
    rig.settle()
    rig.end_push(rig.pushes[0], "down")

    again = salvaged(rig, without(rig, Subscribed))

    assert again.broker.topic_info(ACCOUNT, "news").counts == {"retained": 0, "subscriptions": 0}
    assert again.broker.records_not_applied == 1
