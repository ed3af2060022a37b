"""Bodies in memory and bodies in the log: a receiver sees no difference."""

import pytest

from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, PageRead, Waiting
from cmqd.core.runtime.window import cost
from cmqd_segment.records import StoredMessage, unpack_runs
from support.core import alone
from support.core.builders import ACCOUNT, Rig, counts
from support.core.invariants import check_broker


def test_a_recovered_queue_is_read_from_the_log_in_order():
    rig = Rig(Limits(page_messages=3))
    rig.create()
    for number in range(20):
        rig.send(b"%d" % number, headers=[{"n": str(number)}])
    cold = rig.crash()

    got = [message for _ in range(20) for message in cold.receive(most=3)]

    assert [message.body for message in got] == [b"%d" % number for number in range(20)]
    assert [message.headers for message in got] == [{"n": str(number)} for number in range(20)]
    assert cold.receive() == []


def test_pages_that_hold_only_a_prefix_are_followed_by_the_rest():
    rig = Rig(Limits(page_bytes=100))
    rig.create()
    rig.send(*[bytes([number]) * 60 for number in range(1, 20)])
    cold = rig.crash()

    got = [body for _ in range(19) for body in cold.bodies(most=4)]

    assert [body[0] for body in got] == list(range(1, 20))


def test_a_message_that_cannot_be_read_is_set_aside_and_counted():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2", b"3")
    rig.log.damaged.add((queue.queue_id, 1))
    cold = rig.crash()
    waiter, reply = cold.wait()
    assert reply is WAITING

    found = cold.answer(cold.reads[0])

    assert found == 1
    assert [message.body for message in cold.replies(waiter)[0]] == [b"1", b"3"]
    assert cold.counts() == counts(in_flight=2, damaged=1)


def test_a_queue_of_damaged_messages_only_answers_empty():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1")
    rig.log.damaged.add((queue.queue_id, 0))
    cold = rig.crash()

    assert cold.receive() == []
    assert cold.counts()["damaged"] == 1


def test_a_message_in_memory_is_delivered_even_if_its_row_is_damaged():
    rig = Rig(Limits(window_bytes=700, page_messages=4, page_bytes=10))
    queue = rig.create()
    rig.send(b"1")
    rig.send(b"2")
    rig.send(b"3")
    rig.log.damaged.update((queue.queue_id, position) for position in range(3))
    assert sorted(rig.runtime().window.messages) == [0, 1]
    read = alone.receive(rig.broker, ACCOUNT, "q", 1, 1, 0, None, rig.now_ms).reads[0]

    rig.done(rig.broker.pages_read(read.read_id, [], [1, 2], rig.now_ms))

    check_broker(rig.broker)
    assert rig.counts()["damaged"] == 1
    assert rig.bodies() == [b"2"]


def test_a_cancelled_receive_gives_back_the_messages_being_read_for_it():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    cold = rig.crash()
    waiter, _ = cold.wait()
    cold.broker.cancel_receive(waiter)

    cold.answer_reads()

    assert not cold.replies(waiter)
    assert cold.counts()["active"] == 1
    assert cold.bodies() == [b"1"]
    assert cold.receive() == []


def test_what_was_cleared_while_it_was_read_is_not_delivered():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    cold = rig.crash()
    waiter, _ = cold.wait(wait_ms=1000)
    (read,) = cold.reads
    cold.clear()
    cold.answer(read)
    assert not cold.replies(waiter)

    cold.send(b"3")

    assert [message.body for message in cold.replies(waiter)[0]] == [b"3"]


def test_a_late_page_of_a_deleted_queue_is_ignored():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    cold = rig.crash()
    cold.wait()
    (read,) = cold.reads
    cold.delete_queue()

    assert cold.answer(read) == 0
    assert cold.broker.pages_read(999, [], [], cold.now_ms).reply == 0


def test_a_queue_deleted_in_the_line_for_page_ins_is_passed_over():
    rig = Rig(Limits(max_reads=1))
    for name in ("a", "b", "c"):
        rig.create(name)
        rig.send(b"x", name=name)
    cold = rig.crash()
    for name in ("a", "b", "b", "c"):
        cold.wait(name)
    cold.delete_queue("b")

    cold.answer(cold.reads[0])

    assert [read.queue_id for read in cold.reads] == [cold.queue("c").queue_id]


def test_a_page_goes_out_before_those_in_line_can_drop_it_and_the_next_one_comes_after_them():
    rig = Rig(Limits(max_reads=1, page_messages=2, window_bytes=1500))
    for name in ("a", "b"):
        rig.create(name)
        rig.send(*[b"x" * 300] * 6, name=name)
    cold = rig.crash()
    waiter, _ = cold.wait("a", most=2)
    in_line, _ = cold.wait("b", most=2)
    again, _ = cold.wait("a", most=2)

    cold.answer(cold.reads[0])

    assert [message.body for message in cold.replies(waiter)[0]] == [b"x" * 300] * 2
    assert [read.queue_id for read in cold.reads] == [cold.queue("b").queue_id]
    cold.answer_reads(until=lambda: bool(cold.replies(in_line)))
    assert not cold.replies(again)
    cold.answer_reads()
    assert len(cold.replies(again)[0]) == 2


def test_a_backlog_over_the_budget_is_left_in_the_log_and_read_ahead_of_need():
    rig = Rig(Limits(window_bytes=10_000, page_messages=8, page_bytes=3000))
    rig.create()
    for number in range(100):
        rig.send(bytes([number]) * 100)
    assert rig.runtime().window.cold
    assert rig.runtime().window.size <= 10_000

    got: list[int] = []
    waits = 0
    while len(got) < 100:
        waiter, reply = rig.wait(most=1)
        if isinstance(reply, Waiting):
            waits += 1
            rig.answer(rig.reads[0])
            (reply,) = rig.replies(waiter)
        got.extend(message.body[0] for message in reply)
        rig.answer_reads()

    assert got == list(range(100))
    assert waits <= 2, "pages come before they are needed"
    assert not rig.runtime().window.cold
    rig.send(b"new")
    assert rig.runtime().window.messages


def test_behind_a_backlog_each_body_is_read_once_and_in_whole_pages():
    rig = Rig(Limits(window_bytes=10_000, page_messages=8, page_bytes=3000))
    rig.create()
    for number in range(60):
        rig.send(bytes([number]) * 100)
    reads: list[PageRead] = []
    got: list[int] = []
    for number in range(60, 250):
        rig.send(bytes([number]) * 100)
        waiter, reply = rig.wait(most=1)
        while rig.reads:
            reads.append(rig.reads[0])
            rig.answer(rig.reads[0])
        if isinstance(reply, Waiting):
            (reply,) = rig.replies(waiter)
        got.extend(message.body[0] for message in reply)

    assert got == list(range(190))
    positions = [position for read in reads for position in unpack_runs(read.positions)]
    assert positions == list(range(positions[0], positions[-1] + 1)), "a body was read twice, or not at all"
    assert len(positions) == 8 * len(reads)


def test_a_page_that_holds_exactly_all_there_is_ends_the_reading():
    rig = Rig(Limits(page_messages=2))
    rig.create()
    rig.send(b"1", b"2")
    cold = rig.crash()
    assert cold.runtime().window.cold

    assert cold.bodies(most=1) == [b"1"]

    assert not cold.runtime().window.cold
    assert not cold.reads


def test_what_is_sent_to_a_recovered_queue_with_nothing_active_stays_in_memory():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    rig.receive()
    recovered = rig.crash()

    recovered.send(b"2")

    _, reply = recovered.wait()
    assert reply is not WAITING


def test_the_window_least_recently_received_from_is_dropped_first():
    rig = Rig(Limits(window_bytes=3000))
    for name in ("old", "busy"):
        rig.create(name)
    rig.send(*[b"x"] * 3, name="busy")
    rig.send(*[b"x"] * 3, name="old")
    rig.receive("busy", most=1)

    rig.create("new")
    rig.send(*[b"x"] * 5, name="new")

    assert not rig.runtime("old").window.messages
    assert rig.runtime("old").window.cold
    assert rig.runtime("busy").window.messages
    assert rig.bodies("old") == [b"x"] * 3


def test_a_queue_that_fills_the_budget_keeps_its_own_head():
    rig = Rig(Limits(window_bytes=1000))
    rig.create()

    rig.send(b"1", b"2", b"3", b"4", b"5")

    assert sorted(rig.runtime().window.messages) == [0, 1, 2]


def test_bodies_of_delayed_messages_are_not_kept():
    rig = Rig()
    rig.create()

    rig.send(b"1", b"2", delay_ms=[0, 1000])

    assert list(rig.runtime().window.messages) == [0]
    rig.advance(1020)
    assert rig.bodies() == [b"1"]
    assert rig.bodies() == [b"2"]


def test_released_messages_are_read_from_the_log_beside_messages_in_memory():
    rig = Rig(Limits(page_messages=4))
    rig.create()
    rig.send(*[b"%d" % number for number in range(6)])
    handles = rig.handles(most=3)
    rig.release(handles[0], handles[2])

    assert rig.bodies() == [b"0", b"2", b"3", b"4", b"5"]


def test_the_memory_of_headers_counts_by_what_they_hold():
    short = StoredMessage(0, 1, 1, b"x", {"a": "b"})
    long = StoredMessage(0, 1, 1, b"x", {"a": "b" * 10_000})

    assert cost(long) - cost(short) >= 9_999


def test_a_reply_stops_before_its_limit_of_bodies_and_headers():
    rig = Rig(Limits(max_batch_bytes=1000))
    rig.create()
    for _ in range(4):
        rig.send(bytes(200), headers=[{"name": "v" * 196}])

    assert len(rig.receive()) == 2


def test_a_reply_holds_at_least_one_message_however_large():
    rig = Rig(Limits(max_batch_bytes=100))
    rig.create()
    rig.send(bytes(500))
    rig.send(bytes(500))

    assert [len(rig.receive()) for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_reply_holds_all_that_fits_its_limit(in_memory: bool):
    rig = Rig(Limits(max_batch_bytes=1200))
    rig.create()
    rig.send(*[bytes(200)] * 3, headers=[{"name": "v" * 196}] * 3)

    assert len((rig if in_memory else rig.crash()).receive()) == 3
