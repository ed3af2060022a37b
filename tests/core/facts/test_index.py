"""The index: sets of positions with memory independent of the backlog, and the check of their agreement."""

import pytest
from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd.core.runtime.waiters import Waiter, WaitingLine
from cmqd.core.runtime.window import Window, WindowBudget
from cmqd_fold.delays import EMPTY
from cmqd_fold.queue_index import QueueIndex, positions_from
from cmqd_fold.timers import QueueTimers
from cmqd_segment.records import (
    LeasesEnded,
    MessagesDeleted,
    MessagesReceived,
    MessagesSent,
    StoredMessage,
)
from cmqd_types.attributes import QueueAttributes
from support.core.builders import ACCOUNT, KEY, START_MS, Rig, end_of, reread
from support.core.facts import facts
from support.core.invariants import check_broker, check_index

BATCH = 10_000
TEN_MILLION = 10_000_000


def sent(first: int, count: int, enqueue_ms: int) -> MessagesSent:
    return MessagesSent(1, first, first + 1, enqueue_ms, [1] * count)


def index_of(count: int) -> QueueIndex:
    """An index of this number of messages, sent in large records."""
    rig = Rig()
    index = QueueIndex(1, QueueAttributes(), _timers(rig))
    batch = [1] * BATCH
    for first in range(0, count, BATCH):
        index.apply_sent(MessagesSent(1, first, first + 1, START_MS + first // 100, batch))
    return index


def _timers(rig: Rig) -> QueueTimers:
    index = rig.create().index
    return index.timers


def serialized(index: QueueIndex) -> int:
    sets = (index.live, index.active, index.delays.scheduled, index.delays.overflow, index.damaged)
    return sum(len(positions.serialize()) for positions in sets) + sum(map(len, index.steps.packed()))


def test_a_queue_without_messages_has_no_sets():
    rig = Rig()
    rig.create()
    parts = reread(rig.checkpoint())
    started = Broker(KEY)
    for part in parts:
        started.load(part)
    started.recovered()

    for broker in (rig.broker, started):
        broker.queue_info(ACCOUNT, "q")
        broker.queue_metrics(ACCOUNT, ("", ""), 10)
        end_of(broker.top_metrics(ACCOUNT, 10))
        assert broker.facts.queues.find(ACCOUNT, "q").index.made == 0
        assert not broker.runtime.queues


def test_a_quiet_queue_keeps_its_sets_packed_and_reads_them_at_its_next_use():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2", b"3")
    rig.delete(*rig.handles(most=1))
    index = rig.queue().index
    before = facts(rig.broker)

    packed = (index.live.serialize(), index.active_anew())
    index.rest()

    assert not any(map(index.is_made, ("live", "active", "leases", "history")))
    assert (index.packed_live(), index.active_anew()) == packed
    (metrics,), _ = rig.broker.queue_metrics(ACCOUNT, ("", ""), 10)
    assert (metrics.active, metrics.oldest_message_ms) == (2, START_MS)
    assert rig.broker.live_in(index.queue_id, 0, 3) == 2
    assert not index.is_made("live"), "figures leave the sets packed"
    assert facts(rig.broker) == before
    assert rig.bodies() == [b"2", b"3"]


def test_a_queue_that_is_used_up_lets_go_of_its_sets():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    (first, second) = rig.handles()
    rig.release(first)
    rig.delete(second, *rig.handles())
    index = rig.queue().index

    index.rest()

    assert not any(map(index.is_made, ("live", "active", "leases", "history")))
    assert index.packed_live() == index.active_anew() == EMPTY
    check_broker(rig.broker)


def test_a_large_set_is_not_packed():
    index = index_of(BATCH)
    index.live -= BitMap64(range(0, BATCH, 3))
    index.active &= index.live

    index.rest()

    assert index.is_made("live")


def test_a_part_is_made_once_and_an_unknown_name_is_an_error():
    index = QueueIndex(1, QueueAttributes())
    assert type(index) is not QueueIndex
    assert index.live is index.live
    assert type(index) is QueueIndex, "a busy index has no __getattr__, which makes every read slower"
    assert index.settled is None, "a reader of the log remembers no leases"

    with pytest.raises(AttributeError, match="QueueIndex has no attribute lives"):
        getattr(QueueIndex(1, QueueAttributes()), "lives")  # noqa: B009 - the type checker knows that there is none


def test_ten_million_waiting_messages_cost_little():
    index = index_of(TEN_MILLION)

    assert (index.live_count, index.active_count, index.in_flight_count) == (TEN_MILLION, TEN_MILLION, 0)
    assert serialized(index) < 3 * 1024 * 1024
    check_index(index)


def test_ten_million_messages_with_every_second_one_deleted_cost_a_bit_each():
    index = index_of(TEN_MILLION)
    index.live -= type(index.live)(range(0, 1_000_000, 2))
    index.active &= index.live

    assert serialized(index) < 4 * 1024 * 1024


def test_a_floor_over_ten_million_messages_leaves_nothing():
    index = index_of(TEN_MILLION)

    index.apply_floor(TEN_MILLION)

    assert (index.live_count, index.active_count, len(index.steps)) == (0, 0, 0)
    assert serialized(index) < 100
    check_index(index)


def test_a_floor_never_goes_back():
    index = index_of(BATCH)
    index.apply_floor(500)

    index.apply_floor(100)

    assert index.floor == 500
    assert index.live_count == BATCH - 500


def test_a_returned_message_that_a_floor_has_passed_stays_gone():
    index = index_of(BATCH)
    index.apply_received(MessagesReceived(1, [0, 2], 1, START_MS, START_MS + 1000))
    index.apply_floor(1)

    index.apply_returned(LeasesEnded(1, [1, 2]))

    assert index.live_count == index.active_count == BATCH - 1
    assert index.history.get(0) == (0, 0)
    assert index.history.get(1) == (1, START_MS)
    check_index(index)


def test_positions_from_a_start_are_found_over_holes_and_across_the_end():
    index = index_of(BATCH)
    index.apply_received(MessagesReceived(1, [2, 3], 1, START_MS, START_MS + 1000))

    assert index.active_from(0, 4) == [0, 1, 5, 6]
    assert index.live_from(2, 2) == [2, 3]
    assert index.active_from(BATCH - 2, 10) == [BATCH - 2, BATCH - 1]
    assert positions_from(index.delays.overflow, 0, 10) == []


def test_a_message_that_is_not_active_cannot_be_damaged():
    index = index_of(BATCH)
    index.apply_received(MessagesReceived(1, [0, 1], 1, START_MS, START_MS + 1000))

    assert index.set_damaged([0, 2]) == 1
    assert index.set_damaged([0, 2]) == 0
    check_index(index)


@pytest.mark.parametrize("broken", ["active_count", "live_count", "head", "next_position"])
def test_broken_promises_are_noticed(broken: str):
    index = index_of(BATCH)

    setattr(index, broken, {"head": 5, "next_position": 5}.get(broken, 7))

    with pytest.raises(AssertionError):
        check_index(index)


def test_a_position_in_two_states_is_noticed():
    index = index_of(BATCH)
    index.delays.scheduled.add(3)

    with pytest.raises(AssertionError, match="in two states"):
        check_index(index)


def test_a_position_held_by_two_leases_is_noticed():
    index = index_of(BATCH)
    record = MessagesReceived(1, [0, 1], 1, START_MS, START_MS + 1000)
    (held,) = index.apply_received(record)
    index.leases.by_number[2] = held

    with pytest.raises(AssertionError, match="held by two leases"):
        check_index(index)


def test_deleting_forgets_how_often_messages_were_received():
    index = index_of(BATCH)
    index.apply_received(MessagesReceived(1, [0, 2], 1, START_MS, START_MS + 1000))
    index.apply_returned(LeasesEnded(1, [1, 2]))
    index.apply_received(MessagesReceived(1, [0, 2], 3, START_MS, START_MS + 1000))

    index.apply_deleted(MessagesDeleted(1, [0, 2], [3, 2], START_MS))

    assert not index.history.chunks
    check_index(index)


def test_a_waiter_is_overdue_once():
    line = WaitingLine()
    waiter = Waiter(1, 1, 1, 1000, 0, 0)
    line.add(waiter)

    line.set_overdue(waiter)
    line.set_overdue(waiter)

    assert line.overdue == 1
    assert line.take_overdue() == [waiter]
    assert line.take_overdue() == []
    assert line.overdue == len(line.waiting) == 0


def test_room_for_more_than_the_budget_is_never_had():
    budget = WindowBudget(1000)
    full, other = Window(), Window()
    budget.keep(1, full, StoredMessage(0, 1, 1, bytes(500)))

    assert not budget.has_room(2, 1001)
    assert full.cold
    assert budget.used == 0
    budget.keep(2, other, StoredMessage(0, 1, 1, bytes(500)))
    assert not budget.has_room(2, 500)
    assert other.messages
