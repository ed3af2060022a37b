"""Auto-delete: a queue is deleted after its time without use, and never before."""

from collections.abc import Callable

import pytest

from cmqd.core.domain_errors import InvalidArgument, NoDeadLetterQueue, QueueDeleted, QueueDiffers, QueueNotFound
from cmqd.core.limits import Limits
from cmqd.core.operations.queues.auto_delete import EXAMINED_AT_ONCE
from cmqd.core.outcome import UnusedQueue
from cmqd_segment.records import UNUSED
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts

AFTER_MS = 60_000
DAY_MS = 86_400_000


def unused(limits: Limits | None = None, **attributes: int | str | bool) -> Rig:
    """A rig with the queue ``q``, deleted after ``AFTER_MS`` without use."""
    rig = Rig(limits)
    chosen: dict[str, int | str | bool] = {"auto_delete_after_ms": AFTER_MS, **attributes}
    rig.done(rig.broker.create_queue(ACCOUNT, "q", chosen, rig.now_ms))
    return rig


def exists(rig: Rig, name: str = "q") -> bool:
    return name in rig.broker.facts.queues.names.get(ACCOUNT, {})


def deletions(rig: Rig) -> list[QueueDeletedRecord]:
    return [record for _, record in rig.log.records() if isinstance(record, QueueDeletedRecord)]


def assert_goes_after(rig: Rig, ms: int) -> None:
    """The queue is there for ``ms`` less 1 from now on, and not at ``ms``."""
    rig.settle(ms - 1)
    assert exists(rig), f"deleted before {ms} ms"
    rig.settle(1)
    assert not exists(rig), f"not deleted after {ms} ms"


# ---------------------------------------------------------------------- the time


def test_an_unused_queue_goes_after_its_time_with_the_reason_in_the_record():
    rig = unused()
    queue_id = rig.queue().queue_id

    assert_goes_after(rig, AFTER_MS)

    assert deletions(rig) == [QueueDeletedRecord(queue_id, UNUSED)]
    with pytest.raises(QueueNotFound):
        rig.send(b"late")


def test_a_queue_deleted_on_request_has_no_reason():
    rig = unused()
    queue_id = rig.queue().queue_id

    rig.delete_queue()

    assert deletions(rig) == [QueueDeletedRecord(queue_id, "")]
    rig.settle(DAY_MS)
    assert len(deletions(rig)) == 1


def test_a_queue_without_the_attribute_stays():
    rig = Rig()
    rig.create()

    rig.settle(15 * DAY_MS)

    assert exists(rig)
    assert rig.broker.runtime.agenda.auto_deletes.due_ms == {}


def test_the_longest_time_is_kept_exactly():
    rig = unused(auto_delete_after_ms=15 * DAY_MS)

    assert_goes_after(rig, 15 * DAY_MS)


# ---------------------------------------------------------------------- uses


def receive_nothing(rig: Rig) -> None:
    assert rig.receive() == []


def send_and_consume(rig: Rig) -> None:
    rig.send(b"x")
    rig.delete(*rig.handles())


def delete_in_vain(rig: Rig) -> None:
    assert rig.delete(1) == [1]


def hide_in_vain(rig: Rig) -> None:
    rig.done(rig.broker.change_visibility(ACCOUNT, "q", [1], 5000, rig.now_ms))


def release_in_vain(rig: Rig) -> None:
    assert rig.release(1) == [1]


def reject_in_vain(rig: Rig) -> None:
    """A queue with automatic deletion has no dead-letter queue."""
    rig.send(b"x")
    (handle,) = rig.handles(visibility_timeout_ms=1000)
    rig.settle(1100)
    rig.delete(*rig.handles())
    rig.settle(AFTER_MS - 1)
    assert list(rig.reject(handle)) == [handle]


def change(rig: Rig) -> None:
    rig.set(delay_ms=0)


@pytest.mark.parametrize(
    "use", [receive_nothing, send_and_consume, delete_in_vain, hide_in_vain, release_in_vain, reject_in_vain, change]
)
def test_a_use_begins_the_time_anew(use: Callable[[Rig], None]):
    rig = unused()

    for _ in range(3):
        rig.settle(AFTER_MS - 1)
        use(rig)

    assert_goes_after(rig, AFTER_MS)


def test_a_repeated_send_is_a_use():
    rig = unused()
    rig.send(b"x", session=7, sequence=1)
    rig.delete(*rig.handles())
    rig.settle(AFTER_MS - 1)

    rig.send(b"x", session=7, sequence=1)

    assert_goes_after(rig, AFTER_MS)


def look(rig: Rig) -> None:
    rig.counts()


def confirm(rig: Rig) -> None:
    rig.done(rig.broker.ensure_queue(ACCOUNT, "q", {"auto_delete_after_ms": AFTER_MS}, rig.now_ms))


def peek(rig: Rig) -> None:
    rig.done(rig.broker.peek(ACCOUNT, "q", 99, 0, 10, rig.now_ms))


@pytest.mark.parametrize("no_use", [look, confirm, peek, Rig.clear])
def test_a_look_is_no_use(no_use: Callable[[Rig], None]):
    rig = unused()
    rig.settle(AFTER_MS - 10)

    no_use(rig)

    assert_goes_after(rig, 10)


def test_a_copy_of_a_publish_is_a_use():
    rig = unused(auto_delete_only_empty=False)
    rig.create_topic()
    rig.subscribe("q")
    rig.settle(AFTER_MS - 1)

    rig.publish(b"x")

    assert_goes_after(rig, AFTER_MS)


def test_a_message_that_is_redriven_to_a_queue_is_a_use_of_it():
    rig = unused(auto_delete_only_empty=False)
    rig.create("dlq")
    rig.create("source", dead_letter_queue="dlq", dead_letter_max_receives=1, visibility_timeout_ms=1000)
    rig.send(b"x", name="source")
    rig.receive("source")
    rig.settle(5000)
    assert rig.counts("dlq")["active"] == 1
    rig.settle(AFTER_MS - 5001)

    rig.redrive("dlq", target="q")
    rig.settle()

    assert rig.counts()["active"] == 1
    assert_goes_after(rig, AFTER_MS)


# ---------------------------------------------------------------------- in use


def test_a_waiting_receive_is_a_use_until_its_deadline():
    rig = unused()
    rig.settle(AFTER_MS - 1)
    rig.wait(wait_ms=30_000)

    assert_goes_after(rig, 30_000 + AFTER_MS)


def test_a_later_use_does_not_shorten_a_wait():
    rig = unused()
    waiter, _ = rig.wait(wait_ms=30_000)
    rig.now_ms += 1000
    rig.delete(1)
    rig.broker.cancel_receive(waiter)

    assert_goes_after(rig, 29_000 + AFTER_MS)


def test_a_receive_that_waits_for_a_page_beyond_its_deadline_keeps_the_queue():
    rig = unused(Limits(window_bytes=0), auto_delete_only_empty=False)
    rig.send(b"x")
    cold = rig.crash()
    cold.tick()
    waiter, _ = cold.wait(wait_ms=30_000, visibility_timeout_ms=1000)

    cold.advance(30_000 + AFTER_MS)
    assert exists(cold)
    cold.answer_reads()

    assert len(cold.replies(waiter)[0]) == 1
    cold.settle(1100)
    assert cold.counts()["active"] == 1
    assert_goes_after(cold, AFTER_MS)


def test_a_queue_is_in_use_until_its_last_lease_ends():
    rig = unused(auto_delete_only_empty=False)
    rig.send(b"x")
    rig.receive(visibility_timeout_ms=600_000)

    for _ in range(10):
        rig.settle(60_000)
    assert rig.counts()["active"] == 1

    assert_goes_after(rig, AFTER_MS)


def test_a_queue_is_in_use_until_its_last_delay_ends():
    rig = unused(auto_delete_only_empty=False)
    rig.send(b"x", delay_ms=3_600_000)

    for _ in range(10):
        rig.settle(360_000)
    assert rig.counts()["active"] == 1

    assert_goes_after(rig, AFTER_MS)


def test_messages_beyond_max_delayed_keep_a_queue_in_use():
    rig = unused(auto_delete_only_empty=False, max_delayed=1)
    rig.send(b"x", b"y", delay_ms=[600_000, 601_000])

    for _ in range(10):
        rig.settle(60_100)
    assert rig.counts()["active"] == 2

    assert_goes_after(rig, AFTER_MS)


DELAYS = Limits(max_delay_ms=15 * DAY_MS)


def far_delays(max_delayed: int = 100) -> Rig:
    """``q`` with messages that become active in days: far beyond the fine buckets."""
    rig = unused(DELAYS, auto_delete_only_empty=False, retention_ms=15 * DAY_MS, max_delayed=max_delayed)
    rig.send(b"x", b"y", delay_ms=[9 * DAY_MS, 10 * DAY_MS])
    return rig


def as_it_is(rig: Rig) -> Rig:
    return rig


def from_checkpoint(rig: Rig) -> Rig:
    return rig.crash_after(rig.checkpoint())


@pytest.mark.parametrize("max_delayed", [100, 1])
@pytest.mark.parametrize("restart", [as_it_is, Rig.crash, from_checkpoint])
def test_a_queue_is_in_use_until_its_last_far_delay_ends(restart: Callable[[Rig], Rig], max_delayed: int):
    rig = restart(far_delays(max_delayed))

    # Day by day: after one long step, the ends of the delays would be the last uses.
    for _ in range(10):
        rig.settle(DAY_MS)
    assert rig.counts()["active"] == 2

    assert_goes_after(rig, AFTER_MS)


def test_a_queue_whose_far_delays_are_cleared_goes_and_leaves_no_due_time_in_memory():
    rig = far_delays()
    rig.settle(DAY_MS)

    rig.clear()

    assert_goes_after(rig, AFTER_MS)
    assert rig.broker.facts.queues.delays.size == 0
    assert rig.broker.facts.queues.delays.bring_near_due_ms() is None
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_a_queue_with_far_delays_that_is_deleted_on_request_leaves_no_due_time_in_memory():
    rig = far_delays()
    rig.create("other", retention_ms=15 * DAY_MS)
    rig.send(b"z", name="other", delay_ms=9 * DAY_MS)

    rig.delete_queue()

    assert rig.broker.facts.queues.delays.size == 1
    rig.settle(9 * DAY_MS)
    assert rig.bodies("other") == [b"z"]
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_a_message_that_is_being_rejected_keeps_its_queue():
    """Its dead-letter queue was taken away meanwhile, and its lease is over; the log answers late."""
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=10)
    rig.send(b"x")
    waiter_id, _ = rig.reject_later(*rig.handles(visibility_timeout_ms=1000))
    rig.set(dead_letter_queue="", auto_delete_after_ms=AFTER_MS, auto_delete_only_empty=False)

    rig.advance(10 * AFTER_MS)
    assert exists(rig)
    rig.answer_reads()

    ((_, refusal),) = rig.replies(waiter_id)[0].failures
    assert isinstance(refusal, NoDeadLetterQueue)
    rig.settle(100)
    assert rig.counts()["active"] == 1
    assert_goes_after(rig, AFTER_MS)


def test_a_rejection_is_a_use_of_both_queues():
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=10)
    rig.send(b"x")
    rig.reject_later(*rig.handles())
    rig.now_ms += 5000

    rig.answer_reads()

    assert rig.runtime().used_ms == rig.runtime("dlq").used_ms == rig.now_ms


@pytest.mark.parametrize("state", ["in flight", "delayed"])
def test_messages_in_use_that_expire_end_the_use_then(state: str):
    rig = unused()
    rig.send(b"x", delay_ms=3_600_000 if state == "delayed" else 0)
    # A delay beyond the retention is refused; the retention of a queue may be shortened behind the send.
    rig.set(retention_ms=600_000)
    if state == "in flight":
        rig.receive(visibility_timeout_ms=43_200_000)

    rig.settle(600_000)
    assert sum(rig.counts().values()) == 0

    assert_goes_after(rig, AFTER_MS)


def test_messages_in_use_that_are_cleared_end_the_use_then():
    rig = unused()
    rig.send(b"x")
    rig.receive(visibility_timeout_ms=43_200_000)
    rig.settle(DAY_MS // 4)

    rig.clear()

    assert_goes_after(rig, AFTER_MS)


def test_a_queue_is_in_use_while_it_is_redriven():
    """A queue with automatic deletion may have been a dead-letter queue before."""
    rig = Rig()
    rig.create("dlq")
    rig.create("source", dead_letter_queue="dlq", dead_letter_max_receives=1, visibility_timeout_ms=1000)
    rig.send(*[b"x"] * 100, name="source")
    rig.receive("source", most=100)
    rig.settle(5000)
    rig.set("source", dead_letter_queue="")
    rig.set("dlq", auto_delete_after_ms=AFTER_MS, auto_delete_only_empty=False)
    rig.redrive("dlq", max_per_second=1)
    ended_ms = 0

    for _ in range(400):
        rig.settle(1000)
        assert exists(rig, "dlq")
        ended_ms = rig.broker.redrive_status(ACCOUNT, "dlq").ended_ms or 0
        if ended_ms:
            break

    assert ended_ms > rig.now_ms - 1000
    rig.settle(ended_ms + AFTER_MS - 1 - rig.now_ms)
    assert exists(rig, "dlq")
    rig.settle(1)
    assert not exists(rig, "dlq")


# ---------------------------------------------------------------------- messages


def test_a_queue_with_messages_stays_until_they_are_consumed():
    rig = unused()
    rig.send(b"x")
    rig.settle(DAY_MS)
    assert exists(rig)

    rig.delete(*rig.handles())

    assert_goes_after(rig, AFTER_MS)


def test_a_queue_that_is_emptied_by_expiry_goes_at_once_if_it_was_unused_for_its_time():
    rig = unused(retention_ms=600_000)
    rig.send(b"x")

    rig.settle(599_999)
    assert exists(rig)
    rig.settle(1)

    assert not exists(rig)


def test_a_queue_that_is_cleared_goes_at_once_if_it_was_unused_for_its_time():
    rig = unused()
    rig.send(b"x")
    rig.settle(DAY_MS)

    rig.clear()
    rig.settle()

    assert not exists(rig)


def test_rewindable_messages_count_as_messages_until_their_window_has_passed():
    rig = unused(rewind_ms=600_000)
    rig.send(b"x")
    rig.delete(*rig.handles())

    rig.settle(599_000)
    assert exists(rig)
    rig.settle(10_000)

    assert not exists(rig)


def test_messages_go_with_the_queue_where_they_may_and_are_told():
    rig = unused(auto_delete_only_empty=False, rewind_ms=DAY_MS)
    rig.send(b"1", b"2", b"3")
    rig.delete(*rig.handles(most=1))
    queue_id = rig.queue().queue_id
    rig.now_ms += AFTER_MS

    told = rig.done(rig.broker.tick(rig.now_ms))

    assert told == [UnusedQueue(ACCOUNT, "q", queue_id, messages=3, unused_ms=AFTER_MS)]
    assert not rig.done(rig.broker.tick(rig.now_ms))


def test_a_damaged_message_keeps_a_queue_that_goes_only_when_empty():
    rig = unused(Limits(window_bytes=0))
    rig.send(b"x")
    rig.log.damaged.add((rig.queue().queue_id, 0))
    cold = rig.crash()
    assert cold.receive() == []
    assert cold.counts()["damaged"] == 1

    cold.settle(DAY_MS)

    assert exists(cold)


# ---------------------------------------------------------------------- starts


def test_a_start_is_a_use():
    rig = unused()
    rig.settle(AFTER_MS - 1)

    restarted = rig.crash()
    restarted.now_ms += 30 * DAY_MS
    restarted.tick()

    assert exists(restarted)
    assert_goes_after(restarted, AFTER_MS)


def test_a_start_from_a_checkpoint_knows_the_attribute():
    rig = unused(auto_delete_only_empty=False)
    rig.send(b"x")
    restarted = rig.crash_after(list(rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)))
    restarted.tick()

    assert_goes_after(restarted, AFTER_MS)


def test_a_last_use_has_no_record():
    rig = unused()
    before = len(rig.log.rows)

    for _ in range(5):
        rig.settle(AFTER_MS - 1)
        rig.receive()

    assert len(rig.log.rows) == before


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_a_crash_around_the_deletion_leaves_a_queue_that_is_there_or_gone(rows: int):
    rig = unused(auto_delete_only_empty=False)
    rig.send(b"1", b"2")
    rig.settle(AFTER_MS)
    assert not exists(rig)
    rig.create()
    assert len(rig.log.rows) == 4

    restarted = rig.crash_after_row(rows)

    assert exists(restarted) == (rows != 3)
    if rows < 3:
        assert restarted.counts()["active"] == 2 * (rows - 1)
        restarted.tick()
        assert_goes_after(restarted, AFTER_MS)
    elif rows == 4:
        assert restarted.queue().queue_id != deletions(rig)[0].queue_id
        assert restarted.counts()["active"] == 0


def test_the_recovered_facts_are_those_of_the_live_broker():
    rig = unused()
    rig.create("stays", auto_delete_after_ms=2 * AFTER_MS, auto_delete_only_empty=False)
    rig.settle(AFTER_MS)

    assert facts(rig.crash().broker) == facts(rig.broker)
    assert rig.queue("stays").attributes()["auto_delete_only_empty"] is False


def test_time_without_clients_does_not_count():
    rig = unused()
    rig.broker.gates.listening_since_ms = None
    rig.settle(DAY_MS)
    assert exists(rig)
    rig.broker.gates.listening_since_ms = rig.now_ms

    assert_goes_after(rig, AFTER_MS)


def test_time_before_a_pause_does_not_count():
    rig = unused()
    rig.now_ms += DAY_MS
    rig.broker.gates.listening_since_ms = rig.now_ms
    rig.tick()
    assert exists(rig)

    assert_goes_after(rig, AFTER_MS)


# ---------------------------------------------------------------------- deleted with the queue


def test_a_waiting_peek_ends_with_the_queue():
    rig = unused(Limits(window_bytes=0), auto_delete_only_empty=False)
    rig.send(b"x")
    cold = rig.crash()
    cold.tick()
    cold.done(cold.broker.peek(ACCOUNT, "q", 99, 0, 10, cold.now_ms))
    assert len(cold.reads) == 1

    cold.advance(AFTER_MS)

    assert isinstance(cold.replies(99)[0], QueueDeleted)
    cold.answer_reads()


def test_a_subscription_goes_on_as_to_a_missing_queue_and_finds_the_next_queue_of_the_name():
    rig = unused()
    rig.create_topic()
    subscription = rig.subscribe("q")
    rig.settle(AFTER_MS)
    assert not exists(rig)

    rig.publish(b"waits")
    assert subscription.target is None
    rig.create()
    rig.settle(DAY_MS // 2)

    assert rig.bodies() == [b"waits"]


def test_a_send_in_the_same_millisecond_keeps_the_queue_or_finds_none():
    rig = unused(auto_delete_only_empty=False)
    rig.now_ms += AFTER_MS

    rig.send(b"x")
    rig.tick()
    assert rig.counts()["active"] == 1

    rig.now_ms += AFTER_MS
    rig.tick()
    with pytest.raises(QueueNotFound):
        rig.send(b"y")


def test_a_new_queue_of_the_name_has_a_time_of_its_own():
    rig = unused()
    rig.settle(AFTER_MS - 1)
    rig.delete_queue()
    rig.create(auto_delete_after_ms=AFTER_MS)

    assert_goes_after(rig, AFTER_MS)


def test_a_tick_examines_a_bounded_number_of_queues_and_deletes_one():
    rig = Rig()
    for number in range(2 * EXAMINED_AT_ONCE):
        rig.create(f"q{number}", auto_delete_after_ms=AFTER_MS)
    rig.now_ms += AFTER_MS - 1
    for number in range(2 * EXAMINED_AT_ONCE):
        rig.receive(f"q{number}")
    rig.now_ms += 1

    rig.tick()
    assert len([due for due in rig.broker.runtime.agenda.auto_deletes.due_ms.values() if due <= rig.now_ms]) == (
        EXAMINED_AT_ONCE
    )
    rig.settle(AFTER_MS - 2)
    assert not deletions(rig)
    rig.now_ms += 1
    for gone in (1, 2, 3):
        rig.tick()
        assert len(deletions(rig)) == gone
    rig.settle()
    assert len(deletions(rig)) == 2 * EXAMINED_AT_ONCE


# ---------------------------------------------------------------------- attributes


def refusal(call: Callable[[], object], rig: Rig) -> InvalidArgument:
    before = facts(rig.broker)
    with pytest.raises(InvalidArgument) as raised:
        call()
    assert facts(rig.broker) == before
    return raised.value


@pytest.mark.parametrize("after_ms", [-1, 1, 59_999, 1_296_000_001, True, "60000", None])
def test_other_times_are_refused(after_ms: object):
    rig = Rig()

    error = refusal(lambda: rig.broker.create_queue(ACCOUNT, "q", {"auto_delete_after_ms": after_ms}, 0), rig)

    assert error.details["field"] == "auto_delete_after_ms"


@pytest.mark.parametrize("wrong", [0, 1, "true", None])
def test_the_switch_is_true_or_false(wrong: object):
    rig = Rig()

    error = refusal(lambda: rig.broker.create_queue(ACCOUNT, "q", {"auto_delete_only_empty": wrong}, 0), rig)

    assert error.details["limit"] == "true or false"


def test_both_can_be_changed_and_ensured():
    rig = unused()

    rig.set(auto_delete_after_ms=2 * AFTER_MS)
    rig.set(auto_delete_only_empty=False)

    assert rig.queue().attributes()["auto_delete_after_ms"] == 2 * AFTER_MS
    with pytest.raises(QueueDiffers) as differs:
        rig.broker.ensure_queue(ACCOUNT, "q", {"auto_delete_only_empty": True}, rig.now_ms)
    assert differs.value.details["difference"] == {"auto_delete_only_empty": {"is": False, "wanted": True}}
    assert_goes_after(rig, 2 * AFTER_MS)


@pytest.mark.parametrize(("before_ms", "after_ms"), [(DAY_MS, AFTER_MS), (AFTER_MS, DAY_MS), (0, AFTER_MS)])
def test_a_changed_time_counts_from_the_change(before_ms: int, after_ms: int):
    rig = unused(auto_delete_after_ms=before_ms)
    rig.settle(AFTER_MS - 1)

    rig.set(auto_delete_after_ms=after_ms)

    assert_goes_after(rig, after_ms)


def test_it_can_be_switched_off():
    rig = unused()
    rig.set(auto_delete_after_ms=0)

    rig.settle(15 * DAY_MS)

    assert exists(rig)


def test_a_queue_that_has_a_dead_letter_queue_is_not_auto_deleted():
    rig = unused()
    rig.create("dlq")
    dead: dict[str, object] = {"dead_letter_queue": "dlq", "dead_letter_max_receives": 3}
    rig.create("source", dead_letter_queue="dlq", dead_letter_max_receives=3)

    for call in (
        lambda: rig.broker.create_queue(ACCOUNT, "new", {**dead, "auto_delete_after_ms": AFTER_MS}, rig.now_ms),
        lambda: rig.broker.set_queue_attributes(ACCOUNT, "q", dead, rig.now_ms),
        lambda: rig.broker.set_queue_attributes(ACCOUNT, "source", {"auto_delete_after_ms": AFTER_MS}, rig.now_ms),
    ):
        error = refusal(call, rig)
        assert error.details["field"] == "auto_delete_after_ms"
        assert "has a dead-letter queue" in str(error)
    rig.set("source", dead_letter_queue="", auto_delete_after_ms=AFTER_MS)


def test_a_dead_letter_queue_is_not_auto_deleted():
    rig = unused()
    rig.create("dlq")
    rig.create("source", dead_letter_queue="dlq", dead_letter_max_receives=3)
    dead: dict[str, object] = {"dead_letter_queue": "q", "dead_letter_max_receives": 3}

    error = refusal(
        lambda: rig.broker.set_queue_attributes(ACCOUNT, "dlq", {"auto_delete_after_ms": AFTER_MS}, rig.now_ms), rig
    )
    assert (error.details["field"], "dead-letter queue of 'source'" in str(error)) == ("auto_delete_after_ms", True)
    for call in (
        lambda: rig.broker.create_queue(ACCOUNT, "new", dead, rig.now_ms),
        lambda: rig.broker.set_queue_attributes(ACCOUNT, "source", dead, rig.now_ms),
    ):
        error = refusal(call, rig)
        assert (error.details["field"], "unused" in str(error)) == ("dead_letter_queue", True)
    rig.set("source", dead_letter_queue="")
    rig.set("dlq", auto_delete_after_ms=AFTER_MS)


def test_a_transactional_queue_is_not_auto_deleted():
    rig = Rig()
    rig.create("pay", transactional=True)

    for call in (
        lambda: rig.broker.create_queue(
            ACCOUNT, "new", {"transactional": True, "auto_delete_after_ms": AFTER_MS}, rig.now_ms
        ),
        lambda: rig.broker.set_queue_attributes(ACCOUNT, "pay", {"auto_delete_after_ms": AFTER_MS}, rig.now_ms),
    ):
        error = refusal(call, rig)
        assert (error.details["field"], "transactional" in str(error)) == ("auto_delete_after_ms", True)


def test_roles_that_only_a_loss_can_join_keep_the_queue():
    """The record that took the attribute away was in a part of the log that is lost."""
    rig = Rig()
    rig.create("dlq")
    rig.create("source", dead_letter_queue="dlq", dead_letter_max_receives=3)
    rig.send(b"x", name="source")
    rig.force("dlq", auto_delete_after_ms=AFTER_MS)
    rig.force("source", auto_delete_after_ms=AFTER_MS)
    restarted = rig.crash()
    # A rejected message reaches the dead-letter queue all the same.
    assert restarted.reject(*restarted.handles("source"), name="source") == {}
    restarted.delete(*restarted.handles("dlq"), name="dlq")

    restarted.settle(DAY_MS)

    assert exists(restarted, "dlq")
    assert exists(restarted, "source")
