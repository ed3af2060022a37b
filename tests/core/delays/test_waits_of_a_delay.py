"""Waits that end in the bucket of a lease or a delay: the message comes first, at most 100 ms late."""

from collections.abc import Callable
from typing import Any

import pytest

from cmqd.core.facts.queues import LEASE_BUCKET_MS
from cmqd.core.limits import Limits
from cmqd.core.operations.receiving.wait_ends import EXAMINED, HELD_MS
from cmqd.core.outcome import WAITING
from cmqd_types.messages import ReceivedMessage
from support.cases import each_case
from support.core.builders import START_MS, Rig
from support.core.facts import check_lease_buckets
from support.core.invariants import check_broker

MILLION = 1_000_000
DELAY_MS = 1000


def reply_of(rig: Rig, waiter: int, until_ms: int) -> tuple[int, list[bytes]]:
    """The time of the answer and its bodies, with every tick at its deadline and every page at once."""
    while not rig.replies(waiter):
        due_ms = rig.broker.next_deadline_ms()
        assert due_ms is not None
        assert due_ms <= until_ms, "no answer"
        rig.now_ms = max(rig.now_ms, due_ms)
        rig.tick()
        rig.answer_reads()
    (reply,) = rig.replies(waiter)
    return rig.now_ms, bodies(reply)


def bodies(reply: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in reply]


STARTS = [0, 1, 7, 10, 11, 19, 20, 21, 50, 91, 99]
LONGER = [0, 1, 9, 10, 20, 50, 90, 99, 100]


@each_case("start", STARTS)
@each_case("longer", LONGER)
def test_a_wait_as_long_as_a_delay_gets_the_message(start: int, longer: int):
    rig = Rig()
    rig.create()
    rig.now_ms += start
    rig.send(b"late", delay_ms=DELAY_MS)
    waiter, reply = rig.wait(wait_ms=DELAY_MS + longer)
    assert reply is WAITING

    at_ms, got = reply_of(rig, waiter, rig.now_ms + 2 * DELAY_MS)

    assert got == [b"late"]
    assert 0 <= at_ms - (START_MS + start + DELAY_MS) < 20, "before its time, or later than its bucket"


@each_case("start", STARTS)
@each_case("longer", LONGER)
def test_a_wait_as_long_as_a_lease_gets_the_message(start: int, longer: int):
    rig = Rig()
    rig.create()
    rig.send(b"again")
    rig.now_ms += start
    rig.receive(visibility_timeout_ms=1000)
    waiter, _ = rig.wait(wait_ms=1000 + longer)

    at_ms, got = reply_of(rig, waiter, rig.now_ms + 2000)

    assert got == [b"again"]
    assert 0 <= at_ms - (START_MS + start + 1000) < LEASE_BUCKET_MS


@pytest.mark.parametrize("late_ms", [0, 40, 99])
def test_a_tick_that_is_late_gives_the_message_to_the_wait(late_ms: int):
    rig = Rig()
    rig.create()
    rig.send(b"late", delay_ms=DELAY_MS)
    waiter, _ = rig.wait(wait_ms=DELAY_MS)

    rig.settle(DELAY_MS + late_ms)

    assert [bodies(reply) for reply in rig.replies(waiter)] == [[b"late"]]


def test_a_wait_that_is_over_for_too_long_is_answered_empty_as_before():
    rig = Rig()
    rig.create()
    rig.send(b"late", delay_ms=DELAY_MS)
    waiter, _ = rig.wait(wait_ms=DELAY_MS)

    rig.settle(DELAY_MS + HELD_MS)

    assert rig.replies(waiter) == [[]]
    assert rig.bodies() == [b"late"]


def deleted(rig: Rig) -> None:
    rig.delete(*rig.handles(visibility_timeout_ms=1000))


def extended(rig: Rig) -> None:
    rig.hide(*rig.handles(visibility_timeout_ms=1000), timeout_ms=30_000)


def released(rig: Rig) -> None:
    rig.release(*rig.handles(visibility_timeout_ms=1000))
    rig.delete(*rig.handles(visibility_timeout_ms=30_000))


def cleared(rig: Rig) -> None:
    rig.send(b"delayed", delay_ms=1000)
    rig.receive(visibility_timeout_ms=1000)
    rig.clear()
    rig.send(b"new")
    rig.receive(visibility_timeout_ms=30_000)
    rig.send(b"new", delay_ms=30_000)


def of_another_queue(rig: Rig) -> None:
    rig.delete(*rig.handles())
    rig.create("other")
    rig.send(b"1", b"2", name="other")
    rig.receive("other", most=1, visibility_timeout_ms=1000)
    rig.send(b"3", name="other", delay_ms=1000)


def in_a_later_bucket(rig: Rig) -> None:
    rig.receive(visibility_timeout_ms=1100)
    rig.send(b"delayed", delay_ms=1020)


@pytest.mark.parametrize("stage", [deleted, extended, released, cleared, of_another_queue, in_a_later_bucket])
def test_a_wait_without_anything_alive_in_its_bucket_ends_on_time(stage: Callable[[Rig], None]):
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    rig.now_ms += 51
    stage(rig)
    waiter, _ = rig.wait(wait_ms=1000)
    started_ms = rig.now_ms

    at_ms, got = reply_of(rig, waiter, started_ms + 2000)

    assert got == []
    assert at_ms == started_ms + 1009, "the end of the bucket of the wait"
    check_broker(rig.broker)
    check_lease_buckets(rig.queue())


def test_an_empty_answer_comes_when_the_bucket_is_emptied():
    rig = Rig()
    rig.create()
    rig.send(b"1", delay_ms=1000)
    rig.now_ms += 1
    first, _ = rig.wait(most=1, wait_ms=1000)
    second, _ = rig.wait(most=1, wait_ms=1000)

    assert reply_of(rig, first, START_MS + 2000) == (START_MS + 1000, [b"1"])
    assert reply_of(rig, second, START_MS + 2000) == (START_MS + 1010, [])


def test_a_wait_is_held_for_100_ms_at_most_while_its_bucket_is_emptied():
    rig = Rig(Limits(tick_items=1))
    rig.create("first")
    rig.send(*[b"x"] * 256, name="first")
    for _ in range(256):
        rig.receive("first", most=1, visibility_timeout_ms=1000)
    rig.create()
    rig.send(b"1")
    rig.receive(visibility_timeout_ms=1000)
    waiter, _ = rig.wait(wait_ms=1000)
    ticks = 0

    rig.now_ms += 1000
    while not rig.replies(waiter):
        # A millisecond a tick: far more than the bucket of the other queue is emptied in.
        rig.tick()
        rig.now_ms += 1
        ticks += 1

    assert rig.replies(waiter) == [[]]
    assert ticks == HELD_MS + 1
    assert rig.counts()["in_flight"] == 1, "no message left before its bucket was reached"


def test_a_wait_of_0_is_answered_at_once():
    rig = Rig()
    rig.create()
    rig.send(b"1", delay_ms=20)

    rig.now_ms += 19

    assert rig.wait(wait_ms=0)[1] == []


def test_a_held_wait_can_be_cancelled_and_its_queue_deleted():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    rig.receive(visibility_timeout_ms=1001)
    first, _ = rig.wait(wait_ms=1001)
    second, _ = rig.wait(wait_ms=1001)
    rig.advance(1010)
    assert not rig.woken

    assert rig.broker.cancel_receive(first)
    check_broker(rig.broker)
    rig.delete_queue()
    rig.advance(1000)

    assert [waiter_id for waiter_id, _ in rig.woken] == [second]
    assert not rig.broker.runtime.agenda.held_waits.size


def test_the_lease_of_a_message_that_moves_is_planned_though_a_wait_examined_its_bucket():
    rig = Rig()
    rig.create("dlq")
    rig.create("q", dead_letter_queue="dlq", dead_letter_max_receives=5)
    rig.send(b"1")
    (handle,) = rig.handles(visibility_timeout_ms=1100)
    waiter, _ = rig.wait(wait_ms=1001)
    rejecting, _ = rig.reject_later(handle)
    rig.advance(1010)
    rig.force("dlq", max_backlog=0)

    rig.answer_reads()
    assert len(rig.replies(rejecting)[0].failures) == 1
    rig.settle(90)

    assert [bodies(reply) for reply in rig.replies(waiter)] == [[b"1"]]


class Looked(dict[int, Any]):
    """Leases that count how often they are looked up."""

    looks = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)


@pytest.mark.parametrize("alive", [0, 1])
def test_a_million_leases_and_a_thousand_waits_in_a_bucket_take_bounded_work_a_tick(alive: int):
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2")
    (handle,) = rig.handles(most=1, visibility_timeout_ms=1000)
    rig.receive(visibility_timeout_ms=30_000)
    index = queue.index
    # Leases of messages that were deleted: what a busy queue leaves behind. They come behind the lease that is alive.
    buckets = index.leases.buckets
    for first in range(0, MILLION, 250):
        buckets.bucket(rig.now_ms + 1000, queue.queue_id).extend((MILLION + first, 250))
        buckets.size += 2
    if not alive:
        rig.delete(handle)
    leases = index.leases.by_number = Looked(index.leases.by_number)
    waiters = [rig.wait(wait_ms=905 + number % 10)[0] for number in range(1000)]
    rig.advance(900)
    looks = ticks = 0

    rig.now_ms += 20
    while rig.due():
        leases.looks = 0
        rig.tick()
        looks += leases.looks
        ticks += 1
        assert leases.looks <= EXAMINED * rig.limits.tick_items + 2 * 250

    assert looks <= MILLION + 10 * 250, "an entry is examined once"
    assert ticks < 200
    assert len(rig.woken) == (0 if alive else 1000)
    rig.now_ms += 80
    rig.settle()
    assert sorted(waiter_id for waiter_id, _ in rig.woken) == waiters
    assert sum(len(reply) for _, reply in rig.woken) == alive
