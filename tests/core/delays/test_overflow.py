"""Delayed messages beyond max_delayed (spec 2.4): waiting in order, with their due times."""

from cmqd.core.limits import Limits
from support.core.builders import Rig
from support.core.invariants import check_broker


def overflow(rig: Rig) -> list[int]:
    return list(rig.queue().index.delays.overflow)


def test_beyond_max_delayed_messages_are_accepted_and_count_as_delayed():
    rig = Rig()
    rig.create(max_delayed=2)

    rig.send(*[b"x"] * 5, delay_ms=1000)

    assert overflow(rig) == [2, 3, 4]
    assert rig.counts()["delayed"] == 5


def test_when_places_free_overflow_enters_and_is_at_once_active_if_due():
    rig = Rig()
    rig.create(max_delayed=2)
    rig.send(b"1", b"2", b"3", b"4", delay_ms=[1000, 1000, 500, 9000])

    rig.advance(1020)
    rig.answer_reads()
    rig.advance(0)

    assert rig.counts()["active"] == 3
    assert rig.counts()["delayed"] == 1
    assert rig.bodies() == [b"1", b"2", b"3"]


def test_a_later_send_does_not_take_the_place_of_one_that_waits():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=1000)
    rig.advance(1020)

    rig.send(b"3", delay_ms=1000)

    assert overflow(rig) == [1, 2]


def test_no_more_than_max_delayed_ever_hold_a_place():
    rig = Rig()
    rig.create(max_delayed=3)
    rig.send(*[b"x"] * 9, delay_ms=1000)
    rig.advance(1020)
    rig.set(max_delayed=1)

    rig.answer_reads()

    assert rig.queue().index.delays.scheduled_count == 1


def test_sends_without_delay_are_not_affected():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=1000)

    rig.send(b"3")

    assert rig.bodies() == [b"3"]


def test_overflow_whose_places_were_free_at_the_crash_is_scheduled_after_it():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=1000)
    rig.advance(1020)
    assert rig.reads

    recovered = rig.crash()
    recovered.advance(0)
    recovered.answer_reads()
    recovered.advance(1000)

    assert recovered.counts()["active"] == 2


def test_more_places_let_overflow_in_at_once():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", b"3", delay_ms=10_000)

    rig.set(max_delayed=3)
    rig.advance(0)
    rig.answer_reads()

    assert overflow(rig) == []


def test_places_freed_by_retention_let_overflow_in():
    rig = Rig()
    rig.create(max_delayed=1, retention_ms=60_000)
    rig.send(b"1", delay_ms=59_999)
    rig.advance(30_000)
    rig.send(b"2", delay_ms=31_000)

    rig.advance(30_000)
    rig.answer_reads()
    rig.advance(1100)

    assert rig.bodies() == [b"2"]


def test_overflow_that_cannot_be_read_is_damaged_and_read_once():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", b"3", delay_ms=1000)
    rig.log.damaged.add((rig.queue().queue_id, 1))

    rig.advance(1020)
    rig.answer_reads()
    rig.advance(1000)

    assert rig.counts()["damaged"] == 1
    assert rig.counts()["active"] == 2
    check_broker(rig.broker)


def test_damaged_overflow_is_overflow_again_after_a_restart_with_or_without_checkpoint():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=1000)
    rig.log.damaged.add((rig.queue().queue_id, 1))
    rig.advance(1020)
    rig.answer_reads()

    for recovered in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert overflow(recovered) == [1]
        assert recovered.counts()["damaged"] == 0


def test_damaged_overflow_below_a_floor_is_gone():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=1000)
    rig.log.damaged.add((rig.queue().queue_id, 1))
    rig.advance(1020)
    rig.answer_reads()

    rig.clear()

    assert set(rig.counts().values()) == {0}
    check_broker(rig.broker)


def test_overflow_of_a_queue_deleted_while_it_is_read_is_forgotten():
    rig = Rig(Limits(page_messages=1))
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", b"3", delay_ms=1000)
    rig.advance(1020)
    (read,) = rig.reads

    rig.delete_queue()

    assert rig.answer(read) == 0


def test_a_queue_deleted_before_its_overflow_is_looked_at_is_passed_over():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=1000)
    rig.set(max_delayed=2)

    rig.delete_queue()

    rig.advance(0)
    assert not rig.reads
