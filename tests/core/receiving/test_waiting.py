"""Long polls: the order of service, and the messages of the answers."""

import pytest

from cmqd.core.domain_errors import QueueDeleted, TooManyInFlight
from cmqd.core.limits import Limits
from cmqd.core.operations.receiving.wait_ends import ENDED_AT_ONCE
from cmqd.core.outcome import WAITING
from cmqd_types.messages import ReceivedMessage
from support.core import alone
from support.core.builders import ACCOUNT, Rig
from support.core.invariants import check_broker


def bodies(reply: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in reply]


def test_a_delete_that_makes_room_in_flight_serves_a_waiting_receive():
    rig = Rig(Limits(max_in_flight=2))
    rig.create()
    rig.send(b"1")
    (handle,) = rig.handles()
    first, _ = rig.wait(most=1, wait_ms=1000)
    second, _ = rig.wait(most=1, wait_ms=1000)
    rig.send(b"2", b"3")
    assert bodies(rig.replies(first)[0]) == [b"2"]
    assert not rig.replies(second)

    rig.delete(handle)

    assert bodies(rig.replies(second)[0]) == [b"3"]


def test_a_receive_without_wait_is_not_held_while_too_many_are_in_flight():
    rig = Rig(Limits(max_in_flight=2))
    rig.create()
    rig.send(b"1", b"2", b"3", b"4")
    cold = rig.crash()
    first, reply = cold.wait(most=2, wait_ms=0)
    second, _ = cold.wait(most=2, wait_ms=0)
    assert reply is WAITING

    cold.answer_reads()

    assert bodies(cold.replies(first)[0]) == [b"1", b"2"]
    assert cold.replies(second) == [[]]


def test_a_wait_that_ends_while_the_page_stands_in_line_is_not_answered_empty():
    rig = Rig(Limits(max_reads=1))
    for name in ("a", "b"):
        rig.create(name)
        rig.send(b"x", name=name)
    cold = rig.crash()
    cold.wait("a", wait_ms=1000)
    second, _ = cold.wait("b", wait_ms=1000)

    cold.advance(1000)
    assert not cold.replies(second)
    cold.answer_reads()

    assert bodies(cold.replies(second)[0]) == [b"x"]


def test_page_ins_go_round_the_queues_that_want_one():
    rig = Rig(Limits(max_reads=1, page_messages=2))
    for name in ("a", "b"):
        rig.create(name)
        rig.send(*[b"x"] * 20, name=name)
    cold = rig.crash()
    cold.wait("a", most=2, wait_ms=1000)
    cold.wait("a", most=2, wait_ms=1000)
    cold.wait("b", most=2, wait_ms=1000)
    assert [read.queue_id for read in cold.reads] == [cold.queue("a").queue_id]

    cold.answer(cold.reads[0])

    assert [read.queue_id for read in cold.reads] == [cold.queue("b").queue_id]


def test_receives_that_wait_while_too_many_are_in_flight_keep_a_bounded_number_of_bodies_in_memory():
    rig = Rig(Limits(max_in_flight=1, window_bytes=10_000))
    rig.create()
    rig.wait(most=1, wait_ms=30_000)
    rig.wait(most=1, wait_ms=30_000)

    for _ in range(100):
        rig.send(bytes(1000))

    assert rig.runtime().window.size < 20_000


def test_more_in_flight_than_allowed_is_refused_naming_queue_and_limit():
    rig = Rig(Limits(max_in_flight=2))
    rig.create()
    rig.send(b"1", b"2", b"3")
    rig.receive()

    with pytest.raises(TooManyInFlight) as refused:
        alone.receive(rig.broker, ACCOUNT, "q", 99, 1, 0, None, rig.now_ms)

    assert refused.value.details == {"queue": "q", "limit": 2}
    assert refused.value.retry_after_ms


def test_many_receives_at_a_queue_that_is_deleted_are_answered_by_the_ticks():
    rig = Rig()
    rig.create()
    waiters = [rig.wait(wait_ms=30_000)[0] for _ in range(3 * ENDED_AT_ONCE)]

    rig.delete_queue()
    assert len(rig.woken) == ENDED_AT_ONCE
    assert rig.broker.cancel_receive(waiters[-1])
    assert not rig.broker.cancel_receive(waiters[0])
    check_broker(rig.broker)
    rig.tick()
    assert len(rig.woken) <= 2 * ENDED_AT_ONCE
    rig.settle()

    assert sorted(waiter_id for waiter_id, _ in rig.woken) == waiters[:-1]
    assert {type(reply) for _, reply in rig.woken} == {QueueDeleted}
    check_broker(rig.broker)
