"""Bodies of delayed messages are read shortly before they are due, because a missing body would make a message late."""

import pytest

from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING
from cmqd_segment.records import unpack_runs
from cmqd_types.messages import ReceivedMessage
from support.core.builders import Rig
from support.core.invariants import check_broker


def later(limits: Limits | None = None, count: int = 4, delay_ms: int = 5000) -> Rig:
    """A queue of messages that are due in a while."""
    rig = Rig(limits)
    rig.create()
    rig.send(*[b"%d" % number for number in range(count)], delay_ms=delay_ms)
    return rig


def asked_for(rig: Rig) -> list[list[int]]:
    return [unpack_runs(read.positions) for read in rig.reads]


def test_bodies_are_asked_for_two_seconds_ahead_and_not_earlier():
    rig = later()

    rig.advance(2999)
    assert asked_for(rig) == []
    rig.advance(1)

    assert asked_for(rig) == [[0, 1, 2, 3]]


def test_a_waiting_receive_gets_a_delayed_message_when_it_is_due_without_another_read():
    rig = later()
    waiter, _ = rig.wait(wait_ms=30_000)
    rig.advance(4500)
    rig.answer_reads()

    rig.advance(500)

    assert not rig.reads
    (messages,) = rig.replies(waiter)
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3"]


def test_a_page_that_comes_after_the_delay_is_as_good():
    rig = later()
    rig.advance(5000)

    rig.answer(rig.reads[0])

    _, reply = rig.wait()
    assert reply is not WAITING


@pytest.mark.parametrize("page_bytes", [2, 1000])
def test_pages_follow_one_another_one_at_a_time(page_bytes: int):
    rig = later(Limits(page_messages=3, page_bytes=page_bytes), count=7)
    rig.advance(4500)
    seen: list[list[int]] = []

    while rig.reads:
        assert len(rig.reads) == 1
        seen.extend(asked_for(rig))
        rig.answer(rig.reads[0])

    assert all(positions == sorted(positions) for positions in seen)
    assert sorted(rig.runtime().window.soon) == list(range(7))


def test_positions_are_asked_for_in_ascending_order_over_the_seconds():
    rig = Rig(Limits(page_messages=3))
    rig.create()
    rig.send(*[b"later"] * 3, delay_ms=5600)
    rig.send(*[b"sooner"] * 4, delay_ms=5000)
    rig.advance(4200)
    rig.advance(600)
    seen: list[int] = []

    while rig.reads:
        (positions,) = asked_for(rig)
        assert positions == sorted(positions)
        seen.extend(positions)
        rig.answer(rig.reads[0])

    assert sorted(seen) == list(range(7))


def test_what_is_sent_with_a_short_delay_is_kept_and_needs_no_read():
    rig = later(delay_ms=1000)
    rig.tick()
    rig.answer_reads()
    check_broker(rig.broker)

    rig.send(b"soon", b"at once", b"not so soon", headers=[{"k": "v"}, None, None], delay_ms=[900, 0, 60_000])
    rig.send(b"soon too", delay_ms=900)

    assert sorted(rig.runtime().window.soon) == [0, 1, 2, 3, 4, 7]
    rig.advance(900)
    rig.answer_reads()
    got: list[ReceivedMessage] = rig.receive()
    assert [(one.body, one.headers) for one in got] == [(b"soon", {"k": "v"}), (b"at once", None), (b"soon too", None)]


def test_without_room_bodies_are_read_when_they_are_due():
    rig = later(Limits(window_bytes=100))

    rig.advance(4500)
    rig.send(b"soon", delay_ms=100)
    assert not rig.reads
    assert not rig.runtime().window.soon
    rig.advance(500)

    assert rig.bodies(most=2) == [b"0", b"1"]


def test_a_message_cleared_meanwhile_is_not_kept():
    rig = later(Limits(page_messages=2))
    rig.advance(4500)
    rig.clear()

    rig.answer_reads()

    assert not rig.runtime().window.soon
    assert rig.runtime().window.size == 0


def test_what_is_kept_goes_with_a_floor():
    rig = Rig()
    rig.create()
    rig.send(b"1", delay_ms=61_000)
    rig.advance(500)
    rig.send(b"2", delay_ms=60_600)
    rig.set(retention_ms=60_000)
    rig.advance(59_499)
    rig.answer_reads()

    rig.advance(101)

    assert rig.runtime().window.size <= 400
    check_broker(rig.broker)


def test_what_a_deleted_queue_asked_for_is_ignored():
    rig = later()
    rig.advance(4500)
    rig.delete_queue()

    rig.answer_reads()
    assert not rig.woken


def test_a_queue_deleted_before_its_second_comes_is_passed_over():
    rig = later()
    rig.delete_queue()

    rig.advance(4500)

    assert not rig.reads


def test_a_body_that_cannot_be_read_ahead_is_found_damaged_at_its_receive():
    rig = later()
    rig.log.damaged.add((rig.queue().queue_id, 1))
    rig.advance(4500)
    rig.answer_reads()
    assert rig.counts()["damaged"] == 0

    rig.advance(500)

    assert rig.bodies() == [b"0"]
    assert rig.bodies() == [b"2", b"3"]
    assert rig.counts()["damaged"] == 1


def test_a_page_that_brings_nothing_is_not_asked_for_again_and_again():
    rig = later()
    rig.advance(4500)

    rig.done(rig.broker.pages_read(rig.reads.pop().read_id, [], [], rig.now_ms))

    assert not rig.reads


def test_a_million_due_in_one_second_do_not_stop_the_loop():
    rig = later(Limits(page_messages=100), count=250)
    for number in range(39):
        rig.send(*[b"x"] * 250, delay_ms=5000 - 20 * (number % 3))

    rig.advance(4500)

    assert len(rig.runtime().soon_wanted) <= 3200
    rig.advance(500)
    rig.answer_reads()
    assert rig.counts()["active"] == 10_000
