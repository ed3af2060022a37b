"""Large publishes: planned in slices, applied whole, and cheap to apply."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import SequenceTooOld, TooManyRemembered, TopicNotFound
from cmqd.core.limits import Limits
from cmqd.core.operations.topics.publish import REFUSED_AT_ONCE, SERVED_COPIES
from cmqd.core.operations.topics.publish_plan import MAX_RESTARTS, PublishPlan, turned
from cmqd.core.outcome import WAITING, Outcome, Published, PublishRequest
from cmqd_segment.published import count_copies
from cmqd_segment.records import MessagesPublished, MessagesPublishedAlike
from support.core.builders import ACCOUNT, KEY, Rig
from support.core.facts import facts, without_totals
from support.core.invariants import check_broker
from support.core.publishing import a_rig, check_recovery, published, request, together

QUEUES = 40
MESSAGES = 256


def a_wide_rig(queues: int = QUEUES) -> Rig:
    """A topic with queues that filter for three of ten tags."""
    rig = a_rig()
    for number in range(queues):
        tags = [f"t{(number + step) % 10}" for step in (0, 3, 4)]
        rig.subscribe(f"queue-{number}", filter_tags=tags)
    return rig


def different(count: int = MESSAGES) -> PublishRequest:
    """Messages with different tags; the last of every eleven matches no subscription."""
    labels: list[Any] = [[f"t{number % 11}", f"own-{number}"] for number in range(count)]
    return PublishRequest([b"%d" % number for number in range(count)], None, labels, 7, 1, None)


def plan_of(rig: Rig, *requests: PublishRequest) -> PublishPlan:
    return rig.broker.plan_publish(ACCOUNT, "news", list(requests), rig.now_ms)


def expected(number: int, count: int = MESSAGES) -> list[bytes]:
    tags = {(number + step) % 10 for step in (0, 3, 4)}
    return [b"%d" % message for message in range(count) if message % 11 in tags]


def slices(plan: PublishPlan, units: int) -> int:
    """Advance until the plan is whole; in how many calls."""
    for count in range(1, 100_000):
        if plan.advance(units):
            return count
    raise AssertionError("the plan has no end")


def test_messages_that_go_different_ways_are_one_record_with_one_entry_for_each_queue():
    rig = a_wide_rig()

    (reply,) = together(rig, different())

    (record,) = published(rig)
    assert isinstance(reply, Published)
    assert len(record.copies) == 2 * QUEUES
    assert count_copies(record) == sum(size or 0 for size in reply.matched)
    assert len(record.message_sets) == 10
    assert len(record.sizes) == sum(number % 11 != 10 for number in range(MESSAGES))
    for number in range(QUEUES):
        assert rig.bodies(f"queue-{number}", MESSAGES) == expected(number)
    check_recovery(rig)


def test_copies_name_their_published_messages_in_memory_and_in_the_log():
    rig = a_wide_rig()
    (reply,) = together(rig, different(30))
    assert isinstance(reply, Published)
    ids = dict(zip((b"%d" % number for number in range(30)), reply.message_ids, strict=True))
    again = rig.crash()

    kept = [message.copy_of for message in rig.receive("queue-3", 100)]
    read = again.receive("queue-3", 100)

    assert kept == [message.copy_of for message in read]
    assert [message.copy_of and message.copy_of.message_id for message in read] == [ids[one.body] for one in read]


def test_a_plan_is_made_in_slices_and_nothing_is_there_until_it_is_applied():
    rig = a_wide_rig()
    plan = plan_of(rig, different())
    rows, numbers = rig.log.last_lsn, rig.broker.facts.numbers.next_message_id

    assert slices(plan, 100) > 20

    assert (rig.log.last_lsn, rig.broker.facts.numbers.next_message_id) == (rows, numbers)
    assert all(not queue.index.live_count for queue in rig.broker.queues.values())
    in_one = a_wide_rig()
    (expected_reply,) = together(in_one, different())
    assert rig.done(rig.broker.apply_publish(plan, rig.now_ms)) == [expected_reply]
    assert rig.log.records() == in_one.log.records()


def test_a_crash_in_any_slice_leaves_nothing_of_the_publish_and_one_after_it_leaves_the_whole():
    rig = a_wide_rig()
    before = facts(rig.broker)
    plan = plan_of(rig, different())

    while not plan.advance(100):
        assert facts(rig.broker) == before
        assert facts(rig.crash().broker) == before
    assert facts(rig.crash().broker) == before
    rig.done(rig.broker.apply_publish(plan, rig.now_ms))

    assert facts(rig.crash().broker) == facts(rig.broker) != before
    check_recovery(rig)


def test_a_publish_that_is_applied_behind_many_later_numbers_of_its_session_leaves_their_answers() -> None:
    rig = a_wide_rig(2)
    rig.subscribe("q", filter_tags=["no-tag"])
    plan = plan_of(rig, different())
    assert not plan.advance(100)
    later = rig.limits.session_answers + 1
    sent = {sequence: rig.send(b"x", session=7, sequence=sequence) for sequence in (*range(2, 10), later)}
    slices(plan, 100)
    (reply,) = rig.done(rig.broker.apply_publish(plan, rig.now_ms))
    assert isinstance(reply, Published)

    counts = rig.counts(), rig.counts("queue-0")
    for again in (rig, rig.crash(), rig.crash_after(rig.checkpoint())):
        assert again.send(b"x", session=7, sequence=later) == sent[later]
        (repeated,) = together(again, different())
        assert isinstance(repeated, SequenceTooOld)
        assert (again.counts(), again.counts("queue-0")) == counts


def test_a_plan_is_made_anew_when_subscriptions_change_between_two_slices():
    rig = a_wide_rig()
    plan = plan_of(rig, different())
    for _ in range(5):
        assert not plan.advance(100)

    rig.subscribe("late", filter_tags=["t1"])
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "queue-0", rig.now_ms))
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", "queue-1", {"filter_tags": ["t9"]}, rig.now_ms))
    slices(plan, 100)
    rig.done(rig.broker.apply_publish(plan, rig.now_ms))

    assert rig.bodies("late", 100) == [b"%d" % number for number in range(MESSAGES) if number % 11 == 1]
    assert rig.bodies("queue-0") == []
    assert rig.bodies("queue-1", 100) == [b"%d" % number for number in range(MESSAGES) if number % 11 == 9]
    assert rig.bodies("queue-2", 200) == expected(2)


def test_a_plan_that_is_made_anew_asks_again_for_the_room_of_its_sessions():
    rig = a_rig(limits=Limits(max_sessions=1))
    rig.subscribe("a", filter_tags=["t1"])
    plan = plan_of(
        rig, request(b"numbered", labels=["t1"], number=1), structs.replace(different(), session=0, sequence=0)
    )
    assert not plan.advance(10)

    rig.create("other")
    rig.send(b"x", name="other", session=8, sequence=1)
    rig.subscribe("late", filter_tags=["t1"])
    slices(plan, 100)
    numbered, plain = rig.done(rig.broker.apply_publish(plan, rig.now_ms))

    assert isinstance(numbered, TooManyRemembered)
    assert isinstance(plain, Published)


def test_a_whole_plan_is_made_anew_when_a_subscription_came_before_it_is_applied():
    rig = a_wide_rig()
    plan = plan_of(rig, different(5))
    assert plan.advance(10_000)

    rig.subscribe("late")

    assert plan.advance(10_000)
    rig.done(rig.broker.apply_publish(plan, rig.now_ms))
    assert len(rig.bodies("late")) == 5


def test_a_queue_that_fills_up_between_two_slices_takes_as_many_as_fit():
    rig = a_wide_rig()
    rig.force("queue-2", max_backlog=20)
    plan = plan_of(rig, different())
    slices(plan, 100)

    rig.send(*[b"x"] * 15, name="queue-2")
    rig.done(rig.broker.apply_publish(plan, rig.now_ms))

    assert rig.bodies("queue-2", 15) == [b"x"] * 15
    assert rig.bodies("queue-2", 100) == expected(2)[:5]
    rig.settle()
    counts = rig.broker.subscription_info(ACCOUNT, "news", "queue-2", rig.now_ms).counts
    assert (counts["waiting"], counts["in_retry"]) == (0, len(expected(2)) - 5)
    check_recovery(rig)


def test_a_queue_that_is_deleted_between_two_slices_leaves_its_messages_waiting():
    rig = a_wide_rig()
    plan = plan_of(rig, different())
    slices(plan, 100)

    rig.delete_queue("queue-2")
    rig.done(rig.broker.apply_publish(plan, rig.now_ms))

    counts = rig.broker.subscription_info(ACCOUNT, "news", "queue-2", rig.now_ms).counts
    assert counts["waiting"] == len(expected(2))
    check_recovery(rig)


def test_a_topic_that_is_deleted_between_two_slices_refuses_the_publish():
    rig = a_rig()
    plan = plan_of(rig, request(b"1"))
    assert plan.advance(1000)

    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))

    with pytest.raises(TopicNotFound):
        rig.broker.apply_publish(plan, rig.now_ms)


def test_a_plan_whose_topic_changes_without_end_is_finished_all_the_same():
    rig = a_wide_rig()
    plan = plan_of(rig, different())

    for number in range(MAX_RESTARTS):
        assert not plan.advance(100)
        rig.done(
            rig.broker.set_subscription_attributes(
                ACCOUNT, "news", "queue-0", {"filter_tags": [f"changed-{number}"]}, rig.now_ms
            )
        )

    assert plan.advance(100)
    rig.done(rig.broker.apply_publish(plan, rig.now_ms))
    assert rig.bodies("queue-1", 200) == expected(1)


def test_binding_keys_are_prepared_in_slices():
    rig = a_rig("routing")
    for number in range(60):
        keys = [f"w{number}.{'.'.join(str(number * place) for place in range(10))}.{kind}" for kind in "abcde"]
        rig.subscribe(f"queue-{number}", binding_keys=keys)
    key = f"w7.{'.'.join(str(7 * place) for place in range(10))}.c"
    plan = plan_of(rig, request(b"1", labels=key))

    assert slices(plan, 50) > 20

    (reply,) = rig.done(rig.broker.apply_publish(plan, rig.now_ms))
    assert isinstance(reply, Published)
    assert reply.matched == [1]


def test_many_copies_are_received_from_the_log_and_in_order():
    rig = a_wide_rig()
    together(rig, different())

    assert rig.runtime("queue-5").window.cold

    assert rig.bodies("queue-5", MESSAGES) == expected(5)


# ---------------------------------------------------------------------- waiting receives


def waiting_at(rig: Rig, *names: str, most: int = 3, wait_ms: int = 1000) -> dict[str, int]:
    waiters: dict[str, int] = {}
    for name in names:
        waiters[name], reply = rig.wait(name, most, wait_ms)
        assert reply is WAITING
    return waiters


NAMES = [f"queue-{number}" for number in range(QUEUES)]


def test_receives_that_wait_at_many_queues_are_served_a_queue_at_a_time():
    rig = a_wide_rig()
    waiters = waiting_at(rig, *NAMES)

    together(rig, different())

    served_at_once = len(rig.woken)
    assert 0 < served_at_once <= SERVED_COPIES // min(len(expected(number)) for number in range(10))
    while rig.due():
        before = len(rig.woken)
        rig.tick()
        assert len(rig.woken) <= before + 1
    assert not rig.reads, "what waits is served from memory"
    for number, name in enumerate(NAMES):
        (messages,) = rig.replies(waiters[name])
        assert [message.body for message in messages] == expected(number)[:3]
    check_broker(rig.broker)
    again = rig.crash()
    assert again.bodies("queue-39", 100) == expected(39)[3:]


def test_a_receive_that_comes_before_its_queue_is_served_waits_behind_the_others():
    rig = a_wide_rig()
    waiters = waiting_at(rig, *NAMES)
    together(rig, different())

    late, reply = rig.wait("queue-39", 3, 0)
    assert reply is WAITING
    rig.settle()

    (first,), (second,) = rig.replies(waiters["queue-39"]), rig.replies(late)
    assert [message.body for message in first + second] == expected(39)[:6]


def test_a_wait_that_ends_before_its_queue_is_served_gets_what_is_there():
    rig = a_wide_rig()
    waiters = waiting_at(rig, *NAMES, wait_ms=1)
    together(rig, different())

    rig.settle(1000)

    for number, name in enumerate(NAMES):
        (messages,) = rig.replies(waiters[name])
        assert [message.body for message in messages] == expected(number)[:3]


def test_what_happens_to_queues_before_they_are_served_is_taken_into_account():
    rig = a_wide_rig()
    waiters = waiting_at(rig, *NAMES)
    together(rig, different())

    rig.clear("queue-39")
    rig.delete_queue("queue-38")
    rig.broker.cancel_receive(waiters["queue-37"])
    rig.send(b"later", name="queue-36")
    rig.settle()

    assert rig.replies(waiters["queue-39"]) == []
    assert rig.replies(waiters["queue-37"]) == []
    assert rig.bodies("queue-37", MESSAGES) == expected(37)
    (messages,) = rig.replies(waiters["queue-36"])
    assert [message.body for message in messages] == expected(36)[:3]
    assert rig.bodies("queue-36", MESSAGES) == [*expected(36)[3:], b"later"]
    check_broker(rig.broker)


def test_a_second_publish_before_the_queues_of_the_first_are_served_comes_behind_it():
    rig = a_wide_rig()
    waiters = waiting_at(rig, *NAMES, most=200)
    together(rig, different())
    second = different()
    together(rig, PublishRequest(second.bodies, None, second.labels))

    rig.settle()

    for number, name in enumerate(NAMES):
        ((messages),) = rig.replies(waiters[name])
        got = [message.body for message in messages]
        assert got + rig.bodies(name, MESSAGES) == expected(number) * 2


def test_a_queue_with_many_subscriptions_is_served_the_copies_of_one_of_them_at_a_time():
    rig = a_rig()
    for number in range(20):
        rig.subscribe("q", name=f"copy-{number}")
    waiters = [rig.wait("q", 256, 1000)[0] for _ in range(40)]

    together(rig, PublishRequest([b"%d" % number for number in range(100)], None, None))

    at_once = len(rig.woken)
    while rig.due():
        before = sum(len(messages) for _, messages in rig.woken)
        rig.tick()
        assert sum(len(messages) for _, messages in rig.woken) <= before + 100
    assert at_once
    rig.settle()
    got = [message.body for waiter_id in waiters for messages in rig.replies(waiter_id) for message in messages]
    assert got == [b"%d" % number for _ in range(20) for number in range(100)]


# ---------------------------------------------------------------------- refusals


def test_what_many_full_queues_refuse_is_tried_by_the_ticks():
    rig = a_wide_rig()
    for name in NAMES:
        rig.force(name, max_backlog=1)
    together(rig, different())

    failed = sum(len(one.deliveries.retries) for one in rig.broker.subscriptions.values())
    assert failed == REFUSED_AT_ONCE
    check_recovery(rig)

    rig.settle()

    for number, name in enumerate(NAMES):
        counts = rig.broker.subscription_info(ACCOUNT, "news", name, rig.now_ms).counts
        assert (counts["waiting"], counts["in_retry"]) == (0, len(expected(number)) - 1)
        assert rig.bodies(name) == expected(number)[:1]


def test_under_backoff_nothing_behind_the_first_refusal_goes_into_the_queue():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff", filter_tags=["a"])
    rig.subscribe("q")

    (reply,) = together(
        rig, PublishRequest([b"1", b"x", b"2" * 2000, b"3"], None, [["a"], ["b"], ["a"], ["a"]], 0, 0, None)
    )

    assert isinstance(reply, Published)
    assert reply.matched == [2, 1, 2, 2]
    (copy,) = rig.receive("small")
    assert copy.body == b"1"
    assert rig.delete(copy.receipt_handle, name="small") == []
    rig.set("small", max_message_bytes=4096)
    rig.settle(60_000)
    assert rig.bodies("small") == [b"2" * 2000, b"3"]


# ---------------------------------------------------------------------- dedup ids and numbers


def test_requests_of_one_plan_that_repeat_each_other_get_one_answer():
    rig = a_wide_rig()
    first = PublishRequest([b"1", b"2"], None, [["t0"], ["nobody"]], 7, 5, ["a", "b"])
    again = PublishRequest([b"1", b"2"], None, [["t0"], ["nobody"]], 7, 5, ["a", "b"])
    other = PublishRequest([b"3", b"1", b"2"], None, [["t1"]], 0, 0, ["c", "a", "b"])

    replies = together(rig, first, again, other)

    one, two, three = replies
    assert isinstance(one, Published)
    assert isinstance(two, Published)
    assert isinstance(three, Published)
    assert list(one.message_ids) == list(two.message_ids)
    assert two.matched == [None, None]
    # A message that matched no subscription is not remembered.
    assert three.message_ids[1] == one.message_ids[0]
    assert three.message_ids[2] not in one.message_ids
    assert three.matched[1] is None
    check_recovery(rig)


def test_a_dedup_id_behind_an_unmatched_message_gets_the_id_of_its_own_message():
    rig = a_wide_rig()
    labels: list[Any] = [["t0"], ["nobody"], ["t1"]]
    (first,) = together(rig, PublishRequest([b"1", b"2", b"3"], None, labels, 0, 0, ["a", "b", "c"]))
    assert isinstance(first, Published)

    for now in (rig, rig.crash()):
        (again,) = together(now, PublishRequest([b"1", b"3"], None, [["t0"], ["t1"]], 0, 0, ["a", "c"]))

        assert isinstance(again, Published)
        assert list(again.message_ids) == [first.message_ids[0], first.message_ids[2]]
    check_recovery(rig)


def test_publishes_of_the_older_form_are_replayed_and_salvaged_as_the_same():
    rig = a_rig()
    rig.subscribe("one")
    rig.subscribe("two")
    rig.subscribe("gone")
    rig.done(rig.broker.delete_queue(ACCOUNT, "gone", rig.now_ms))
    together(rig, PublishRequest([b"1", b"2"], [{"k": "v"}, None], [["t0"]], 7, 1, ["a", "b"]), request(b"3"))
    older = rig.log.only(rig.log.rows)
    for row in older.rows:
        for place, record in enumerate(row):
            if isinstance(record, MessagesPublished):
                row[place] = MessagesPublishedAlike(**structs.asdict(record))

    for is_salvage in (False, True):
        broker = Broker(KEY)
        if is_salvage:
            broker.begin_salvage()
        for lsn, record in older.records():
            broker.replay(record, lsn)
        broker.recovered(lost=is_salvage)

        found, before = facts(broker), facts(rig.broker)
        if is_salvage:
            found, before = without_totals(found), without_totals(before)
        assert found["queues"] == before["queues"]
        assert found["topics"] == before["topics"]
        assert found["sessions"] == before["sessions"]


@given(st.lists(st.integers(1, (1 << 12) - 1), min_size=1, max_size=20))
def test_subscriptions_by_message_are_turned_into_messages_by_subscription(rows: list[int]):
    union = 0
    for row in rows:
        union |= row
    columns = [place for place in range(12) if union >> place & 1]

    assert turned(rows, union) == [
        sum(1 << number for number, row in enumerate(rows) if row >> place & 1) for place in columns
    ]


def test_an_outcome_of_a_large_publish_has_one_record_besides_reservations():
    rig = a_wide_rig()
    plan = plan_of(rig, different())
    slices(plan, 1000)

    outcome: Outcome[Any] = rig.broker.apply_publish(plan, rig.now_ms)

    assert [type(record).__name__ for record in outcome.records if type(record).__name__ != "NumbersReserved"] == [
        "MessagesPublished"
    ]
