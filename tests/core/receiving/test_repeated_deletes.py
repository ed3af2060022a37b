"""Refused handles that say how their lease ended: what a repeat of a lost request must know."""

from collections.abc import Callable
from typing import cast

import pytest

from cmqd.core.domain_errors import BacklogFull, DomainError, QueueDeleted, ReceiptHandleInvalid
from cmqd.core.operations.dead_letters.rejections import MAX_REPEATS
from cmqd.core.outcome import DeadLettersDone, HandlesDone, ReceivedAfterDeletes
from cmqd_fold.settled_leases import LIFE_MS, SPAN, SettledLeases
from cmqd_segment.checkpoint import QueueSlice
from cmqd_types.messages import GONE_DELETED, GONE_MOVED
from support.core import alone
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

HOUR_MS = 3_600_000


def gone(rig: Rig, *handles: int, name: str = "q") -> list[int]:
    """How the leases of these handles ended, as a delete is told; no handle may be valid."""
    done = rig.done(alone.delete(rig.broker, ACCOUNT, name, list(handles), rig.now_ms))
    assert [failure.receipt_handle for failure in done.failures] == list(handles)
    return [failure.gone for failure in done.failures]


def rejected(rig: Rig, handle: int) -> int:
    refusal = rig.reject(handle)[handle]
    assert isinstance(refusal, ReceiptHandleInvalid)
    return refusal.gone


def held(*bodies: bytes, visibility_timeout_ms: int = 30_000) -> tuple[Rig, list[int]]:
    rig = Rig()
    rig.create("dlq")
    rig.create("q", dead_letter_queue="dlq", dead_letter_max_receives=5)
    rig.send(*bodies or (b"1",))
    return rig, rig.handles(visibility_timeout_ms=visibility_timeout_ms)


def test_a_repeated_delete_is_told_that_the_message_was_deleted():
    rig, (handle,) = held()
    rig.delete(handle)

    assert gone(rig, handle) == [GONE_DELETED]
    assert rejected(rig, handle) == GONE_DELETED


def test_a_repeated_move_is_told_that_the_message_was_moved():
    rig, (handle,) = held()
    assert rig.reject(handle) == {}

    assert rejected(rig, handle) == GONE_MOVED
    assert gone(rig, handle) == [GONE_MOVED]


def lease_over(rig: Rig, handle: int) -> None:
    rig.settle(HOUR_MS)


def received_again(rig: Rig, handle: int) -> None:
    rig.settle(HOUR_MS)
    rig.receive()


def deleted_under_a_later_handle(rig: Rig, handle: int) -> None:
    rig.settle(HOUR_MS)
    rig.delete(*rig.handles())


def released(rig: Rig, handle: int) -> None:
    rig.release(handle)


def cleared(rig: Rig, handle: int) -> None:
    rig.clear()


def expired(rig: Rig, handle: int) -> None:
    rig.settle(15 * 24 * HOUR_MS)


@pytest.mark.parametrize("end", [lease_over, received_again, deleted_under_a_later_handle, released, cleared, expired])
def test_a_lease_that_ended_otherwise_is_neither_deleted_nor_moved(end: Callable[[Rig, int], None]):
    rig, (handle,) = held()
    end(rig, handle)

    assert gone(rig, handle) == [0]
    assert rejected(rig, handle) == 0


def test_the_handle_of_another_queue_or_of_no_queue_is_never_gone():
    rig, (handle,) = held()
    rig.delete(handle)
    rig.create("other")

    assert gone(rig, handle, name="other") == [0]
    assert gone(rig, 12345, 1 << 63) == [0, 0]


def test_both_tries_of_a_delete_in_one_call():
    rig, handles = held(b"1", b"2")
    requests = [handles, handles, [handles[0], handles[0]]]

    first, second, third = rig.done(rig.broker.delete_all(ACCOUNT, "q", requests, rig.now_ms))

    assert first == HandlesDone([], 0, 2)
    assert isinstance(second, HandlesDone)
    assert [(one.receipt_handle, one.gone) for one in second.failures] == [(one, GONE_DELETED) for one in handles]
    assert isinstance(third, HandlesDone)
    assert [(one.receipt_handle, one.gone) for one in third.failures] == [(handles[0], GONE_DELETED)]


@pytest.mark.parametrize("together", [True, False])
def test_both_tries_of_a_delete_inside_receives(together: bool):
    rig, (handle,) = held()
    requests = [alone.Receive(1, 0, None, [handle])] * 2
    if together:
        replies = rig.done(rig.broker.receive_all(ACCOUNT, "q", requests, [1, 2], rig.now_ms))
    else:
        replies = [
            *rig.done(rig.broker.receive_all(ACCOUNT, "q", requests[:1], [1], rig.now_ms)),
            *rig.done(rig.broker.receive_all(ACCOUNT, "q", requests[:1], [2], rig.now_ms)),
        ]

    first, second = (cast("ReceivedAfterDeletes", reply).deletes for reply in replies)
    assert not first.failures
    assert [failure.gone for failure in second.failures] == [GONE_DELETED]


def test_a_repeated_move_waits_for_the_first_and_is_told_of_its_end():
    rig, (handle, other) = held(b"1", b"2")
    first, _ = rig.reject_later(handle)
    second, _ = rig.reject_later(handle, other)
    third, _ = rig.reject_later(handle)
    check_broker(rig.broker)
    assert rig.broker.cancel_receive(third)
    assert gone(rig, handle) == [0], "not moved yet"

    rig.answer_reads()

    assert rig.replies(first)[0].failures == []
    (told,) = rig.replies(second)
    ((failed, refusal),) = told.failures
    assert (failed, refusal.gone, told.done) == (handle, GONE_MOVED, 1)
    check_broker(rig.broker)


def test_a_page_answers_a_bounded_number_of_repeats():
    rig, (handle,) = held()
    waiters = [rig.reject_later(handle)[0] for _ in range(1 + MAX_REPEATS)]

    assert rejected(rig, handle) == 0
    rig.answer_reads()

    assert [len(rig.replies(waiter)) for waiter in waiters] == [1] * len(waiters)
    check_broker(rig.broker)


def test_a_repeated_move_is_refused_as_the_first():
    rig, (handle,) = held()
    waiters = [rig.reject_later(handle)[0] for _ in range(2)]
    rig.force("dlq", max_backlog=0)

    rig.answer_reads()

    refusals: list[DomainError] = [rig.replies(waiter)[0].failures[0][1] for waiter in waiters]
    assert [type(refusal) for refusal in refusals] == [BacklogFull, BacklogFull]
    assert rig.delete(handle) == []


def test_a_repeated_move_of_a_cleared_message_is_refused_at_once():
    rig, (handle,) = held()
    first, _ = rig.reject_later(handle)
    rig.clear()

    _, reply = rig.reject_later(handle)

    assert isinstance(reply, DeadLettersDone), "it waits for a page"
    ((_, refusal),) = reply.failures
    assert isinstance(refusal, ReceiptHandleInvalid)
    assert refusal.gone == 0
    rig.answer_reads()

    ((_, refusal),) = rig.replies(first)[0].failures
    assert refusal.gone == 0
    check_broker(rig.broker)


def test_a_repeated_move_ends_with_its_queue():
    rig, (handle,) = held()
    waiters = [rig.reject_later(handle)[0] for _ in range(2)]
    rig.delete_queue()

    rig.answer_reads()

    assert [[type(reply) for reply in rig.replies(waiter)] for waiter in waiters] == [[QueueDeleted], [QueueDeleted]]


def test_deletes_are_remembered_for_ten_minutes_at_least_and_twenty_at_most():
    rig, handles = held(b"1", b"2", b"3", visibility_timeout_ms=HOUR_MS)
    rig.delete(handles[0])
    rig.settle(LIFE_MS - 1)
    rig.delete(handles[1])
    rig.settle(1)
    rig.delete(handles[2])

    rig.settle(LIFE_MS - 1)
    assert gone(rig, *handles) == [GONE_DELETED] * 3
    rig.settle(1)
    assert gone(rig, *handles) == [0, 0, GONE_DELETED]
    rig.settle(LIFE_MS)
    assert gone(rig, *handles) == [0, 0, 0]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_deletes_and_moves_are_remembered_across_a_crash(checkpoint: bool):
    rig, handles = held(b"1", b"2", b"3", b"4", visibility_timeout_ms=HOUR_MS)
    rig.delete(handles[0])
    rig.reject(handles[1])
    rig.settle(LIFE_MS)
    parts = rig.checkpoint()
    rig.delete(handles[2])
    rig.reject(handles[3])

    again = rig.crash_after(parts) if checkpoint else rig.crash()

    assert facts(again.broker) == facts(rig.broker)
    assert gone(again, *handles) == [GONE_DELETED, GONE_MOVED, GONE_DELETED, GONE_MOVED]


def test_a_checkpoint_of_an_older_version_remembers_no_deletes():
    rig, (first, second) = held(b"1", b"2")
    rig.delete(first)
    fields = ("settled_since_ms", "settled")
    assert QueueSlice.__struct_fields__[-2:] == fields, "appended, with defaults"
    older = [
        QueueSlice(*[getattr(part, field) for field in part.__struct_fields__ if field not in fields])
        if isinstance(part, QueueSlice)
        else part
        for part in rig.checkpoint()
    ]

    again = rig.crash_after(older)

    assert gone(again, first) == [0]
    again.delete(second)
    assert gone(again, second) == [GONE_DELETED]


def test_a_step_back_of_broker_time_forgets_in_due_time():
    settled = SettledLeases()
    settled.note_deleted([7, 1], HOUR_MS)
    settled.no_later_than(1000)

    settled.note_deleted([9, 2], 1000 + LIFE_MS)

    assert [settled.gone(lease, 1000 + LIFE_MS) for lease in (7, 8, 9, 10)] == [
        GONE_DELETED,
        0,
        GONE_DELETED,
        GONE_DELETED,
    ]
    assert settled.gone(7, 1000 + 2 * LIFE_MS) == 0


def test_a_generation_is_bounded_by_the_leases_of_the_broker():
    settled = SettledLeases()
    for number in range(4):
        settled.note_deleted([number * SPAN, 9], 1000)
        settled.note_moved([number * SPAN + 20, 1, 5, 1], 1000)
        settled.note_deleted([(number + 1) * SPAN - 1, 1], 1000)

    assert [settled.gone(number * SPAN, 1000) for number in range(4)] == [0, 0, 0, GONE_DELETED]
    assert [settled.gone((number + 1) * SPAN - 1, 1000) for number in range(4)] == [0, 0, GONE_DELETED, GONE_DELETED]
    assert settled.gone(3 * SPAN + 26, 1000) == GONE_MOVED
    assert sum(len(one) for one in settled.packed()) < 1000, "leases that follow each other take little room"


def test_the_end_of_an_old_lease_makes_no_new_lease_forgotten():
    settled = SettledLeases()
    new = 10 * SPAN
    leases = [new, *(lease for number in range(1, 9) for lease in (number * 100_000, new + number))]

    for lease in leases:
        settled.note_deleted([lease, 1], 1000)

    assert [settled.gone(lease, 1000) for lease in leases] == [GONE_DELETED] * len(leases)


def test_a_loaded_generation_ends_where_it_would_have_ended():
    settled = SettledLeases()
    settled.note_deleted([100, 5], 1000)
    settled.note_deleted([40, 1], 1000)
    loaded = SettledLeases()
    loaded.load(1000, settled.packed())

    for each in (settled, loaded):
        each.note_deleted([39 + SPAN, 1], 1000)
        each.note_deleted([40 + SPAN, 1], 1000)
        each.note_deleted([40 + 2 * SPAN, 1], 1000)

    expected = [0, GONE_DELETED, GONE_DELETED]
    for each in (settled, loaded):
        assert [each.gone(lease, 1000) for lease in (39 + SPAN, 40 + SPAN, 40 + 2 * SPAN)] == expected
