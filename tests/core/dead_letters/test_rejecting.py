"""Messages that their consumer moves to the dead-letter queue, by receipt handle and with a reason."""

import pytest

from cmqd.core.domain_errors import (
    BacklogFull,
    BodyUnreadable,
    DeadLettersNotTaken,
    DomainError,
    InvalidArgument,
    MessageTooLarge,
    NoDeadLetterQueue,
    QueueDeleted,
    QueueNotFound,
    ReceiptHandleInvalid,
)
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, DeadLettersDone
from cmqd_segment.records import MessagesDeadLettered, MessagesSent
from cmqd_types.messages import Origin
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.dead_letters import VISIBLE_MS, by_receives
from support.core.facts import facts
from support.core.invariants import check_broker

RETENTION_MS = 60_000


def rejecting(limits: Limits | None = None, **attributes: int) -> Rig:
    """``q`` with ``dlq``, with a rule of ten receives that never applies here."""
    return by_receives(10, limits, **attributes)


def kinds(refusals: dict[int, DomainError]) -> dict[int, type[DomainError]]:
    return {handle: type(refusal) for handle, refusal in refusals.items()}


# ---------------------------------------------------------------------- the move


def test_the_message_is_in_the_dead_letter_queue_with_its_reason_and_gone_from_its_own():
    rig = rejecting()
    (message_id,) = rig.send(b"body", headers=[{"a": "b"}])
    rig.handles(visibility_timeout_ms=VISIBLE_MS)
    rig.settle(VISIBLE_MS + 100)
    (handle,) = rig.handles()
    rig.now_ms += 5
    moved_ms = rig.now_ms

    assert rig.reject(handle, reasons=["no such customer"]) == {}

    for again in (rig.crash(), rig):
        check_broker(again.broker)
        assert again.counts() == counts()
        assert again.counts("dlq") == counts(active=1)
        (message,) = again.receive("dlq")
        assert (message.body, message.headers) == (b"body", {"a": "b"})
        assert (message.enqueue_ms, message.receive_count) == (moved_ms, 1)
        assert message.message_id != message_id
        assert message.origin == Origin("q", message_id, START_MS, 2, "rejected", "no such customer")


def test_each_message_has_its_reason_in_the_order_of_sending_and_one_reason_may_be_for_all():
    rig = rejecting()
    rig.send(b"1", b"2", b"3", b"4")
    first, second, third, fourth = rig.handles()

    assert rig.reject(second, first, reasons=["second", "first"]) == {}
    assert rig.reject(third, fourth, reasons=["both"]) == {}

    dead = rig.receive("dlq")
    assert [(one.body, one.origin.rejection) for one in dead if one.origin] == [
        (b"1", "first"),
        (b"2", "second"),
        (b"3", "both"),
        (b"4", "both"),
    ]


def test_a_request_is_one_row_so_a_message_is_never_lost_and_never_in_both():
    rig = rejecting()
    rig.send(b"1", b"2", b"3")
    handles = rig.handles()
    before = rig.log.last_lsn

    rig.reject(*handles)

    (row,) = rig.log.rows[before:]
    kinds_of = [type(record) for record in row]
    assert kinds_of.index(MessagesDeadLettered) < kinds_of.index(MessagesSent)
    for rows in range(before, rig.log.last_lsn + 1):
        again = rig.crash_after_row(rows)
        moved = rows > before
        assert again.counts("dlq") == counts(active=3 if moved else 0)
        assert again.counts() == counts(in_flight=0 if moved else 3)


def test_a_message_is_moved_whole_pages_at_a_time_and_the_answer_comes_last():
    rig = rejecting(Limits(page_messages=2))
    rig.send(*[b"%d" % number for number in range(5)])
    handles = [handle for _ in range(3) for handle in rig.handles(most=2)]

    waiter_id, reply = rig.reject_later(*handles)
    assert reply is WAITING
    for moved in (2, 4):
        rig.answer(rig.reads[0])
        check_broker(rig.broker)
        assert rig.counts("dlq")["active"] == moved
        assert rig.replies(waiter_id) == []
        # A crash between two rows leaves the remaining messages in flight.
        assert rig.crash().counts() == counts(in_flight=5 - moved)
    rig.answer(rig.reads[0])

    assert rig.replies(waiter_id) == [DeadLettersDone([], done=5)]
    assert sum(any(isinstance(one, MessagesDeadLettered) for one in row) for row in rig.log.rows) == 3
    assert rig.bodies("dlq") == [b"%d" % number for number in range(5)]


def test_waiting_receives_of_the_dead_letter_queue_are_served_at_once():
    rig = rejecting()
    waiter_id, _ = rig.wait("dlq", wait_ms=20_000)
    rig.send(b"1")

    rig.reject(*rig.handles())

    ((message,),) = rig.replies(waiter_id)
    assert message.body == b"1"


def test_a_receive_that_the_limit_in_flight_held_up_is_served():
    rig = rejecting(Limits(max_in_flight=1))
    first_id, _ = rig.wait(most=1, wait_ms=20_000)
    second_id, _ = rig.wait(most=1, wait_ms=20_000)
    rig.send(b"1", b"2")
    ((first,),) = rig.replies(first_id)
    assert rig.replies(second_id) == []

    assert rig.reject(first.receipt_handle) == {}

    ((second,),) = rig.replies(second_id)
    assert second.body == b"2"


def test_it_moves_whatever_the_rule_of_the_queue_and_a_redrive_brings_it_back():
    rig = rejecting()
    rig.send(b"1")
    rig.reject(*rig.handles())

    rig.done(rig.broker.start_redrive(ACCOUNT, "dlq", None, None, rig.now_ms))
    rig.settle(1)

    (message,) = rig.receive()
    assert message.receive_count == 1
    assert message.origin is not None
    assert (message.origin.reason, message.origin.rejection) == ("redrive", "")


def test_it_cannot_be_rewound():
    rig = rejecting(rewind_ms=30_000)
    rig.send(b"1", b"2")
    kept, rejected = rig.handles()
    rig.delete(kept)
    rig.reject(rejected)
    rig.now_ms += 10

    assert rig.counts() == counts(rewindable=1)
    rig.rewind(START_MS)
    assert rig.bodies() == [b"1"]
    assert rig.crash().counts("dlq") == counts(active=1)


# ---------------------------------------------------------------------- while a message moves


def test_the_handle_of_a_moving_message_is_invalid_and_the_message_counts_as_in_flight():
    rig = rejecting()
    rig.send(b"1")
    (handle,) = rig.handles()
    waiter_id, _ = rig.reject_later(handle)
    before = facts(rig.broker)

    assert rig.delete(handle) == [handle]
    assert rig.release(handle) == [handle]
    done = rig.done(rig.broker.change_visibility(ACCOUNT, "q", [handle], 5000, rig.now_ms))
    assert [failure.receipt_handle for failure in done.failures] == [handle]
    assert rig.counts() == counts(in_flight=1)
    assert facts(rig.broker) == before
    check_broker(rig.broker)

    rig.answer_reads()
    assert rig.replies(waiter_id) == [DeadLettersDone([], done=1)]
    assert kinds(rig.reject(handle)) == {handle: ReceiptHandleInvalid}
    assert rig.counts("dlq") == counts(active=1)


def test_while_it_moves_its_lease_does_not_end():
    rig = rejecting()
    rig.send(b"1")
    (handle,) = rig.handles(visibility_timeout_ms=VISIBLE_MS)
    waiter_id, _ = rig.reject_later(handle)

    rig.advance(10 * VISIBLE_MS)

    assert rig.wait()[1] == []
    assert rig.counts() == counts(in_flight=1)
    check_broker(rig.broker)
    rig.answer_reads()
    assert rig.replies(waiter_id) == [DeadLettersDone([], done=1)]
    assert rig.counts("dlq") == counts(active=1)


def test_a_message_that_is_cleared_while_it_moves_holds_no_younger_message():
    rig = rejecting(retention_ms=RETENTION_MS)
    rig.send(b"1")
    rig.reject_later(*rig.handles())
    rig.clear()
    rig.send(b"2")

    rig.advance(RETENTION_MS + 1000)

    assert list(rig.queue().index.live) == [], "it waits for the page of a message that is gone"


def test_a_moving_message_does_not_expire_and_no_receive_gets_expired_messages_behind_it():
    rig = rejecting(retention_ms=RETENTION_MS)
    rig.send(b"1", b"2")
    (handle,) = rig.handles(most=1)
    waiter_id, _ = rig.reject_later(handle)
    read = rig.reads[0]

    ticks = rig.advance(RETENTION_MS + 1)

    assert ticks < 10, "the ticks spin"
    # The expired head stays behind the message that moves, and is not received.
    other_id, reply = rig.wait(wait_ms=20_000)
    assert reply is WAITING
    assert rig.counts()["in_flight"] == 1
    check_broker(rig.broker)
    rig.answer(read)
    assert rig.replies(waiter_id) == [DeadLettersDone([], done=1)]
    rig.settle(1)
    assert rig.counts() == counts(waiting_receives=1)
    assert rig.replies(other_id) == []
    assert rig.bodies("dlq") == [b"1"]
    assert rig.crash().counts() == counts()


def test_a_crash_while_it_moves_leaves_it_in_flight_under_its_handle():
    rig = rejecting()
    rig.send(b"1")
    (handle,) = rig.handles(visibility_timeout_ms=VISIBLE_MS)
    rig.reject_later(handle)

    again = rig.crash()

    assert again.counts() == counts(in_flight=1)
    assert again.counts("dlq") == counts()
    assert again.reject(handle) == {}
    later = rig.crash()
    later.settle(VISIBLE_MS + 100)
    assert later.counts() == counts(active=1)


def test_a_checkpoint_taken_while_it_moves_has_it_in_flight():
    rig = rejecting()
    rig.send(b"1")
    (handle,) = rig.handles()
    rig.reject_later(handle)
    parts = rig.checkpoint()
    rig.answer_reads()

    assert facts(rig.crash_after(parts).broker) == facts(rig.broker)


def test_a_cleared_message_is_reported_as_an_invalid_handle():
    rig = rejecting()
    rig.send(b"1")
    (handle,) = rig.handles()
    waiter_id, _ = rig.reject_later(handle)

    rig.clear()
    rig.answer_reads()

    (done,) = rig.replies(waiter_id)
    assert kinds(dict(done.failures)) == {handle: ReceiptHandleInvalid}
    assert rig.counts("dlq") == counts()
    check_broker(rig.broker)


def test_a_request_at_a_queue_that_is_deleted_ends_with_that():
    rig = rejecting()
    rig.send(b"1", b"2")
    waiter_id, _ = rig.reject_later(*rig.handles())

    rig.delete_queue()
    rig.answer_reads()

    (reply,) = rig.replies(waiter_id)
    assert isinstance(reply, QueueDeleted)
    check_broker(rig.broker)


def test_a_cancelled_request_is_carried_out_without_an_answer():
    rig = rejecting()
    rig.send(b"1")
    waiter_id, _ = rig.reject_later(*rig.handles())

    assert rig.broker.cancel_receive(waiter_id)
    assert not rig.broker.cancel_receive(waiter_id)
    rig.answer_reads()

    assert rig.woken == []
    assert rig.counts("dlq") == counts(active=1)
    check_broker(rig.broker)


def test_two_requests_share_a_page_and_each_is_answered():
    rig = rejecting()
    rig.send(b"1", b"2", b"3")
    first, second, third = rig.handles()
    one_id, _ = rig.reject_later(first, reasons=["one"])
    other_id, _ = rig.reject_later(third, second, reasons=["third", "second"])
    rig.answer(rig.reads[0])
    assert rig.replies(one_id) == [DeadLettersDone([], done=1)]
    assert rig.replies(other_id) == []

    rig.answer_reads()

    assert rig.replies(other_id) == [DeadLettersDone([], done=2)]
    dead = rig.receive("dlq")
    assert [one.origin.rejection for one in dead if one.origin] == ["one", "second", "third"]


# ---------------------------------------------------------------------- refused


def test_a_handle_that_is_not_valid_fails_alone_and_one_named_twice_counts_once():
    rig = rejecting()
    rig.send(b"1", b"2")
    first, second = rig.handles()
    rig.delete(first)

    refused = rig.reject(first, second, 12345, second, reasons=["a", "b", "c", "d"])

    assert kinds(refused) == {first: ReceiptHandleInvalid, 12345: ReceiptHandleInvalid}
    assert "12345" in refused[12345].text
    (message,) = rig.receive("dlq")
    assert message.origin is not None
    assert message.origin.rejection == "b"


def test_a_handle_whose_time_is_over_fails_even_before_the_tick():
    rig = rejecting()
    rig.send(b"1")
    (handle,) = rig.handles(visibility_timeout_ms=VISIBLE_MS)
    rig.now_ms += VISIBLE_MS

    assert kinds(rig.reject(handle)) == {handle: ReceiptHandleInvalid}


def test_without_a_dead_letter_queue_the_message_stays_in_flight_under_its_handle():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    (handle,) = rig.handles()
    before = facts(rig.broker)

    refused = rig.reject(handle, 12345)

    assert kinds(refused) == {handle: NoDeadLetterQueue, 12345: ReceiptHandleInvalid}
    assert rig.reads == []
    assert facts(rig.broker) == before
    assert rig.delete(handle) == []


def test_a_full_dead_letter_queue_takes_as_many_as_fit():
    rig = rejecting()
    rig.force("dlq", max_backlog=2)
    rig.send(b"1", b"2", b"3")
    first, second, third = rig.handles()

    assert kinds(rig.reject(first, second, third)) == {third: BacklogFull}
    assert kinds(rig.reject(third)) == {third: BacklogFull}

    assert rig.counts() == counts(in_flight=1)
    assert rig.delete(*rig.handles("dlq"), name="dlq") == []
    assert rig.reject(third) == {}


def test_a_body_that_is_too_large_for_the_dead_letter_queue_stays():
    rig = rejecting()
    rig.set("dlq", max_message_bytes=1024)
    rig.send(b"1", b"x" * 1025)
    small, large = rig.handles()

    refused = rig.reject(small, large)

    assert kinds(refused) == {large: MessageTooLarge}
    assert rig.counts() == counts(in_flight=1)
    assert rig.delete(large) == []


def test_a_dead_letter_queue_that_holds_older_messages_takes_none_yet():
    rig = Rig()
    rig.create("dlq")
    rig.send(b"before", name="dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=10)
    rig.send(b"1")
    (handle,) = rig.handles()

    assert kinds(rig.reject(handle)) == {handle: DeadLettersNotTaken}

    rig.delete(*rig.handles("dlq"), name="dlq")
    assert rig.reject(handle) == {}


def test_a_dead_letter_queue_that_goes_while_the_body_is_read_refuses_and_the_lease_ends_in_its_time():
    rig = rejecting()
    rig.send(b"1", b"2")
    first, second = rig.handles(visibility_timeout_ms=VISIBLE_MS)
    rig.hide(second, timeout_ms=20 * VISIBLE_MS)
    waiter_id, _ = rig.reject_later(first, second)
    rig.set(dead_letter_queue="")
    rig.advance(2 * VISIBLE_MS)

    rig.answer_reads()

    (done,) = rig.replies(waiter_id)
    assert kinds(dict(done.failures)) == {first: NoDeadLetterQueue, second: NoDeadLetterQueue}
    rig.advance(0)
    # The lease of the first came due while the message was moving; the other handle is valid again.
    assert rig.counts() == counts(active=1, in_flight=1)
    assert rig.delete(second) == []
    assert rig.bodies() == [b"1"]
    check_broker(rig.broker)


def test_a_body_that_cannot_be_read_is_reported_and_stays_in_flight():
    rig = rejecting()
    rig.send(b"1", b"2")
    first, second = rig.handles()
    rig.log.damaged.add((rig.queue().queue_id, 0))

    refused = rig.reject(first, second)

    assert kinds(refused) == {first: BodyUnreadable}
    assert rig.counts() == counts(in_flight=1)
    assert rig.bodies("dlq") == [b"2"]
    assert rig.delete(first) == []


@pytest.mark.parametrize(
    ("handles", "reasons", "field"),
    [
        ([1, 2, 3], ["a", "b"], "reasons"),
        ([1], [], "reasons"),
        ([1, 2], ["a", "é" * 129], "reasons[1]"),
        ([], ["a"], "receipt_handles"),
        (list(range(257)), ["a"], "receipt_handles"),
    ],
)
def test_a_request_out_of_range_is_refused_and_changes_nothing(handles: list[int], reasons: list[str], field: str):
    rig = rejecting()

    with pytest.raises(InvalidArgument) as raised:
        rig.reject(*handles, reasons=reasons)

    assert raised.value.details["field"] == field
    assert rig.reads == []


def test_the_longest_reason_is_taken_and_a_queue_that_is_not_there_is_refused():
    rig = rejecting()
    rig.send(b"1")
    longest = "é" * 128

    assert rig.reject(*rig.handles(), reasons=[longest]) == {}

    (message,) = rig.receive("dlq")
    assert message.origin is not None
    assert message.origin.rejection == longest
    with pytest.raises(QueueNotFound):
        rig.reject(1, name="elsewhere")


def test_reasons_count_in_a_reply_so_that_a_full_one_stays_within_its_bytes():
    rig = rejecting(Limits(max_batch_bytes=1500))
    rig.send(b"1", b"2", b"3", b"4")
    rig.reject(*rig.handles(), reasons=["x" * 256])

    # 1 byte of body, 128 of the origin and 256 of its reason.
    assert [len(rig.receive("dlq")) for _ in range(2)] == [3, 1]


# ---------------------------------------------------------------------- a log with gaps


def test_behind_a_gap_the_message_leaves_its_queue_whatever_state_the_index_has_it_in():
    rig = rejecting()
    rig.send(b"1", b"2")
    rig.reject(*rig.handles())
    received = next(row for row in rig.log.rows if any(type(one).__name__ == "MessagesReceived" for one in row))
    rows = [row for row in rig.log.rows if row is not received]

    again = Rig(rig.limits, log=rig.log.only(rows))
    again.broker.begin_salvage()
    for lsn, record in again.log.records():
        again.broker.replay(record, lsn)
    again.log.append(again.broker.recovered(lost=True))

    check_broker(again.broker)
    assert again.counts() == counts()
    assert again.bodies("dlq") == [b"1", b"2"]
