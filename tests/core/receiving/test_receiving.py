"""Life of a message (spec 2.2, 2.3): sent, received, settled, received again."""

import pytest

from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, HandlesDone
from support.core import alone
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.facts import check_lease_buckets, facts


def test_a_received_message_carries_all_that_is_known_of_it():
    rig = Rig()
    rig.create()
    (message_id,) = rig.send(b"body", headers=[{"k": "v"}])
    rig.now_ms += 10

    (message,) = rig.receive(visibility_timeout_ms=5000)

    assert message.message_id == message_id
    assert message.body == b"body"
    assert message.headers == {"k": "v"}
    assert message.enqueue_ms == START_MS
    assert message.first_receive_ms == START_MS + 10
    assert message.next_visible_ms == START_MS + 5010
    assert message.receive_count == 1


def test_messages_come_in_the_order_in_which_they_were_sent():
    rig = Rig()
    rig.create()
    for number in range(5):
        rig.send(b"%d" % number, b"%d'" % number)

    assert b" ".join(rig.bodies(most=10)) == b"0 0' 1 1' 2 2' 3 3' 4 4'"


def test_a_message_in_flight_is_at_one_consumer():
    rig = Rig()
    rig.create()
    rig.send(b"1")

    assert rig.bodies() == [b"1"]
    assert rig.bodies() == []


def test_the_visibility_timeout_of_a_receive_that_names_none_is_the_queues():
    rig = Rig()
    rig.create(visibility_timeout_ms=7000)
    rig.send(b"1")

    assert rig.receive()[0].next_visible_ms == START_MS + 7000


@pytest.mark.parametrize("timeout_ms", [1000, 43_200_000])
def test_a_message_comes_back_when_its_visibility_timeout_ends_with_count_and_first_receive_time(timeout_ms: int):
    rig = Rig()
    rig.create()
    rig.send(b"1")
    rig.receive(visibility_timeout_ms=timeout_ms)

    rig.advance(timeout_ms - 1)
    assert rig.receive() == []
    rig.advance(100)
    (message,) = rig.receive()

    assert message.receive_count == 2
    assert message.first_receive_ms == START_MS


def test_a_message_that_comes_back_keeps_its_place():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2", b"3")
    (handle,) = rig.handles(most=1)

    rig.release(handle)

    assert rig.bodies() == [b"1", b"2", b"3"]


def test_a_handle_is_valid_until_its_next_visible_time_and_not_longer():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    first, second = rig.handles(visibility_timeout_ms=1000)

    rig.now_ms += 999
    assert rig.delete(first) == []
    rig.now_ms += 1
    assert rig.delete(second) == [second]


def test_only_the_newest_handle_is_valid():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    (old,) = rig.handles(visibility_timeout_ms=1000)
    rig.advance(1100)
    (new,) = rig.handles()

    assert rig.delete(old) == [old]
    assert rig.release(old) == [old]
    assert rig.counts()["in_flight"] == 1
    assert rig.delete(new) == []


def test_a_handle_of_another_queue_is_not_valid_and_changes_nothing():
    rig = Rig()
    rig.create("a")
    rig.create("b")
    rig.send(b"1", name="a")
    (handle,) = rig.handles("a")

    before = facts(rig.broker)
    assert rig.delete(handle, name="b") == [handle]

    assert facts(rig.broker) == before


def test_a_batch_delete_lists_each_failed_handle_and_does_the_rest():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2", b"3")
    first, second, third = rig.handles()
    rig.delete(second)

    done = rig.done(alone.delete(rig.broker, ACCOUNT, "q", [first, 12345, second, third, third], rig.now_ms))

    assert [failure.receipt_handle for failure in done.failures] == [12345, second]
    assert "not valid in queue 'q'" in done.failures[0].text
    assert set(rig.counts().values()) == {0}


def test_handles_that_are_all_invalid_leave_no_record():
    rig = Rig()
    rig.create()

    for outcome in (
        alone.delete(rig.broker, ACCOUNT, "q", [1], rig.now_ms),
        rig.broker.release(ACCOUNT, "q", [1], True, rig.now_ms),
        rig.broker.change_visibility(ACCOUNT, "q", [1], 1000, rig.now_ms),
    ):
        assert not outcome.records
        assert len(outcome.reply.failures) == 1


def test_deletes_in_any_order_are_remembered():
    rig = Rig()
    rig.create()
    rig.send(*[b"%d" % number for number in range(9)])
    handles = rig.handles()

    rig.delete(handles[7], handles[0], handles[3])
    rig.release(*handles[1:3], *handles[4:7], handles[8])

    assert facts(rig.crash().broker) == facts(rig.broker)
    assert rig.bodies() == [b"1", b"2", b"4", b"5", b"6", b"8"]


def test_handing_back_uncounted_is_as_if_it_had_not_been_received():
    rig = Rig()
    rig.create()
    rig.send(b"1")

    rig.release(*rig.handles(), counted=False)
    (message,) = rig.receive()
    assert message.receive_count == 1
    rig.release(message.receipt_handle)
    rig.release(*rig.handles(), counted=False)

    assert rig.receive()[0].receive_count == 2


def test_changing_visibility_moves_the_end_of_the_lease():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    first, second = rig.handles(visibility_timeout_ms=30_000)

    assert rig.hide(first, timeout_ms=60_000) == START_MS + 60_000
    assert rig.hide(second, timeout_ms=500) == START_MS + 500
    check_lease_buckets(rig.queue())

    rig.advance(500)
    assert rig.bodies() == [b"2"]
    rig.advance(59_400)
    assert rig.bodies() == [b"2"]
    rig.advance(100)
    assert rig.bodies() == [b"1"]


def test_a_handle_named_twice_in_a_request_counts_once():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2", b"3")
    first, second, third = rig.handles()

    assert rig.hide(first, first, timeout_ms=60_000) == START_MS + 60_000
    assert rig.delete(first, second, first, 99, first, 99) == [99]
    assert rig.release(third, third) == []
    assert rig.delete(first, first) == [first]
    assert rig.bodies() == [b"3"]


def test_a_handle_named_in_two_requests_decided_together_is_valid_in_the_first():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    (handle,) = rig.handles()

    replies = rig.done(rig.broker.delete_all(ACCOUNT, "q", [[handle, handle], [handle, handle]], rig.now_ms))

    failed = [
        [failure.receipt_handle for failure in reply.failures] for reply in replies if isinstance(reply, HandlesDone)
    ]
    assert failed == [[], [handle]]


def test_a_hand_back_is_visible_again_from_the_time_of_the_hand_back():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    first, second = rig.handles(visibility_timeout_ms=30_000)
    rig.now_ms += 700

    assert rig.hide(first, timeout_ms=0) == START_MS + 700
    assert rig.done(rig.broker.release(ACCOUNT, "q", [second], False, rig.now_ms)).next_visible_ms == START_MS + 700
    assert rig.done(rig.broker.change_visibility(ACCOUNT, "q", [first], 0, rig.now_ms)).next_visible_ms == 0
    assert rig.bodies() == [b"1", b"2"]


def test_a_lease_moved_twice_to_the_same_time_ends_once():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    handles = rig.handles()
    rig.hide(*handles, timeout_ms=1000)
    rig.hide(*handles, timeout_ms=1000)

    rig.advance(1100)

    assert rig.counts()["active"] == 2
    assert facts(rig.crash().broker) == facts(rig.broker)
    ((ended,),) = (row for row in rig.log.rows if type(row[0]).__name__ == "LeasesEnded")
    assert getattr(ended, "leases", None) == [1, 2]


def test_visibility_zero_hands_back_at_once_and_counts():
    rig = Rig()
    rig.create()
    rig.send(b"1")

    rig.hide(*rig.handles(), timeout_ms=0)

    assert rig.receive()[0].receive_count == 2


@pytest.mark.parametrize("waiting", [False, True])
def test_the_next_visible_time_of_a_receive_is_cut_at_the_retention_of_each_message(waiting: bool):
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.now_ms += 10_000
    rig.send(b"2")
    if waiting:
        rig.release(*rig.handles(), counted=False)
        rig = rig.crash()

    first, second = rig.receive(visibility_timeout_ms=55_000)

    assert (first.next_visible_ms, second.next_visible_ms) == (START_MS + 60_000, START_MS + 65_000)
    rig.now_ms = START_MS + 60_100
    assert rig.delete(first.receipt_handle) == [first.receipt_handle]
    assert rig.delete(second.receipt_handle) == []


def test_visibility_is_cut_at_the_retention_of_each_message():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"old")
    rig.advance(30_000)
    rig.send(b"new")
    old, new = rig.handles()

    next_visible_ms = rig.hide(old, new, timeout_ms=3_600_000)

    assert next_visible_ms == START_MS + 60_000
    held = rig.queue().index.leases.by_number.values()
    assert [one.deadline_ms - START_MS for one in held] == [60_000, 90_000]


def test_visibility_of_a_message_that_has_expired_ends_now():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.now_ms += 50
    rig.send(b"sent in the same step of time")
    rig.now_ms += 49_950
    handles = rig.handles(most=1)
    rig.now_ms += 10_001

    assert rig.hide(*handles, timeout_ms=1000) == rig.now_ms


def test_a_handle_ends_with_the_retention_even_if_no_tick_came_by():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.now_ms += 500
    rig.send(b"2")
    rig.now_ms += 50_000
    first, second = rig.handles()
    rig.now_ms += 9_499
    assert rig.done(rig.broker.change_visibility(ACCOUNT, "q", [first], 20_000, rig.now_ms)).failures == []
    rig.now_ms += 1

    assert rig.release(first) == [first]
    assert rig.delete(first, second) == [first]
    rig.advance(0)
    assert rig.counts() == counts()


def test_a_handle_outlives_the_retention_by_less_than_a_time_step():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.now_ms += 99
    rig.send(b"2")
    rig.now_ms += 50_000
    first, second = rig.handles()
    rig.now_ms += 9_999

    assert rig.hide(first, timeout_ms=1000) == rig.now_ms, "its deadline is cut, so that it cannot be held on to"
    assert rig.release(second) == []
    rig.now_ms += 1
    assert rig.release(first) == [first]


def test_a_receive_without_wait_answers_at_once_with_nothing():
    rig = Rig()
    rig.create()

    assert rig.wait(wait_ms=0)[1] == []


def test_a_receive_that_names_no_wait_waits_as_long_as_the_queue_says():
    rig = Rig()
    rig.create(polling_wait_ms=500)
    waiter, reply = rig.wait(wait_ms=None)
    assert reply is WAITING

    rig.advance(499)
    assert not rig.replies(waiter)
    rig.advance(11)

    assert rig.replies(waiter) == [[]]
    assert rig.counts()["waiting_receives"] == 0


def test_a_receive_never_waits_to_fill_a_batch():
    rig = Rig()
    rig.create()
    rig.send(b"1")

    _, reply = rig.wait(most=10, wait_ms=30_000)

    assert isinstance(reply, list)
    assert len(reply) == 1


@pytest.mark.parametrize("cause", ["send", "delay", "timeout", "release", "visibility zero"])
def test_a_waiting_receive_is_answered_by_whatever_makes_a_message_active(cause: str):
    rig = Rig()
    rig.create()
    handles: list[int] = []
    if cause == "delay":
        rig.send(b"1", delay_ms=1000)
    elif cause != "send":
        rig.send(b"1")
        handles = rig.handles(visibility_timeout_ms=1000)
    waiter, _ = rig.wait(wait_ms=30_000)

    if cause == "send":
        rig.send(b"1")
    elif cause == "release":
        rig.release(*handles)
    elif cause == "visibility zero":
        rig.hide(*handles, timeout_ms=0)
    else:
        rig.advance(1020 if cause == "delay" else 1100)
    rig.answer_reads()

    ((message,),) = rig.replies(waiter)
    assert message.body == b"1"
    rig.advance(30_000)
    assert len(rig.replies(waiter)) == 1


def test_waiting_receives_are_served_in_the_order_of_their_arrival():
    rig = Rig()
    rig.create()
    first, _ = rig.wait(most=2, wait_ms=30_000)
    second, _ = rig.wait(most=2, wait_ms=10_000)
    third, _ = rig.wait(most=2, wait_ms=30_000)

    rig.send(b"1", b"2", b"3")

    assert [message.body for message in rig.replies(first)[0]] == [b"1", b"2"]
    assert [message.body for message in rig.replies(second)[0]] == [b"3"]
    assert not rig.replies(third)


def test_a_cancelled_receive_swallows_no_message_and_holds_up_no_receive():
    rig = Rig()
    rig.create()
    first, _ = rig.wait(wait_ms=30_000)
    second, _ = rig.wait(wait_ms=30_000)

    assert rig.broker.cancel_receive(first)
    assert not rig.broker.cancel_receive(first)
    rig.send(b"1")

    assert not rig.replies(first)
    assert [message.body for message in rig.replies(second)[0]] == [b"1"]
    assert not rig.broker.cancel_receive(second)
    rig.advance(30_000)
    assert len(rig.woken) == 1


def test_leases_counts_and_handles_mean_the_same_after_a_crash():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2", b"3")
    first, second, third = rig.handles(visibility_timeout_ms=10_000)
    rig.hide(second, timeout_ms=20_000)
    rig.release(third)

    recovered = rig.crash()

    assert facts(recovered.broker) == facts(rig.broker)
    check_lease_buckets(recovered.queue())
    assert recovered.receive()[0].receive_count == 2
    recovered.advance(9_999)
    assert recovered.delete(first) == []
    recovered.advance(10_101)
    assert recovered.receive()[0].receive_count == 2


def test_delivered_messages_are_never_more_than_may_be_in_flight():
    rig = Rig(Limits(max_in_flight=3))
    rig.create()
    rig.send(*[b"x"] * 10)

    assert len(rig.receive(most=2)) == 2
    assert len(rig.receive(most=2)) == 1


def test_the_queues_head_is_found_again_after_holes():
    rig = Rig()
    rig.create()
    rig.send(*[b"%d" % number for number in range(6)])
    handles = rig.handles(most=4)
    rig.release(handles[1])
    rig.release(handles[3])

    assert rig.bodies(most=1) == [b"1"]
    assert rig.bodies(most=2) == [b"3", b"4"]
    assert rig.bodies(most=2) == [b"5"]
