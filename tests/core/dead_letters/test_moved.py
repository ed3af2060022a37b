"""The move of a dead letter from its queue to the other."""

from typing import Any

import pytest

from cmqd.core.domain_errors import InvalidArgument, RedriveRunning
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING
from cmqd_segment.records import MessagesMoved, MessagesSent
from cmqd_types.messages import Origin, ReceivedMessage
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.dead_letters import (
    AFTER_MS,
    VISIBLE_MS,
    by_age,
    by_receives,
    crashed_after,
    dead,
    fail,
    refused,
)
from support.core.facts import facts

# ---------------------------------------------------------------------- the move


def test_the_dead_letter_keeps_body_headers_and_origin_with_a_new_id_time_and_count():
    rig = by_receives(2)
    (message_id,) = rig.send(b"body", headers=[{"a": "b"}])
    rig.now_ms += 5
    fail(rig, 2)
    moved_ms = rig.now_ms

    for again in (rig.crash(), rig):
        (message,) = again.receive("dlq")

        assert isinstance(message, ReceivedMessage)
        assert (message.body, message.headers) == (b"body", {"a": "b"})
        assert message.message_id != message_id
        assert message.enqueue_ms == moved_ms
        assert message.receive_count == 1
        assert message.origin == Origin("q", message_id, START_MS, 2, "receives")


def test_the_origin_of_one_that_was_too_old_says_so():
    rig = by_age()
    (message_id,) = rig.send(b"1")
    rig.settle(AFTER_MS + 1000)

    (message,) = rig.receive("dlq")

    assert message.origin == Origin("q", message_id, START_MS, 0, "age")


def test_its_retention_counts_from_the_move():
    rig = Rig()
    rig.create("dlq", retention_ms=60_000)
    rig.create(dead_letter_queue="dlq", dead_letter_after_ms=AFTER_MS)
    rig.send(b"1")
    rig.settle(AFTER_MS)
    moved_ms = rig.now_ms

    rig.settle(59_000)
    assert rig.counts("dlq")["active"] == 1
    rig.settle(moved_ms + 60_100 - rig.now_ms)
    assert rig.counts("dlq") == counts()


def test_the_move_is_one_row_so_never_lost_and_never_in_both():
    rig = by_receives(limits=Limits(page_messages=3))
    rig.send(*[b"%d" % number for number in range(10)])
    fail(rig)
    moves = [row for row in rig.log.rows if any(isinstance(record, MessagesMoved) for record in row)]
    assert len(moves) == 4
    for row in moves:
        assert isinstance(row[0], MessagesMoved)
        assert any(isinstance(record, MessagesSent) for record in row)

    rows = rig.log.rows
    for last in range(len(rows) + 1):
        again = crashed_after(rig, last)
        again.now_ms = START_MS
        if "q" not in again.broker.facts.queues.names.get(ACCOUNT, {}):  # pyright: ignore[reportPrivateUsage]
            continue
        held = sum(sum(again.counts(name).values()) for name in ("q", "dlq"))
        assert held in (0, 10)
        again.settle(VISIBLE_MS + 100)
        held = sum(sum(again.counts(name).values()) for name in ("q", "dlq"))
        assert held in (0, 10)
        if any(isinstance(record, MessagesMoved) for row in rows[:last] for record in row):
            assert sorted(dead(again)) == sorted(b"%d" % number for number in range(10))


def test_slices_of_a_checkpoint_taken_around_a_move_come_to_the_same():
    rig = by_receives(limits=Limits(page_messages=2))
    rig.send(*[b"%d" % number for number in range(9)])
    rig.receive()
    rig.advance(VISIBLE_MS)
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    for part in parts:
        taken.append(part)
        if rig.reads:
            rig.answer(rig.reads[0])
    rig.answer_reads()
    assert rig.counts("dlq")["active"] == 9

    assert facts(rig.crash_after(taken).broker)["queues"] == facts(rig.broker)["queues"]
    assert facts(rig.crash().broker)["queues"] == facts(rig.broker)["queues"]


@pytest.mark.parametrize("policy", ["receives", "age"])
def test_if_the_dead_letter_queue_is_full_it_stays_active_and_is_tried_again_while_receives_go_on(policy: str):
    rig = by_receives() if policy == "receives" else by_age()
    rig.force("dlq", max_backlog=2)
    rig.send(*[b"%d" % number for number in range(5)])
    if policy == "receives":
        fail(rig)
    else:
        rig.settle(AFTER_MS)
    assert rig.counts("dlq")["active"] == 2
    assert rig.counts() == counts(active=3)

    handles = rig.handles(visibility_timeout_ms=1000)
    assert len(handles) == 3
    rig.delete(handles[0])
    rig.settle(2000)
    assert rig.counts() == counts(active=2)
    rig.delete(*rig.handles("dlq", most=1), name="dlq")
    rig.settle(2000)

    assert rig.counts() == counts(active=1)
    assert sum(rig.counts("dlq").values()) == 2
    rig.delete(*rig.handles("dlq"), name="dlq")
    rig.settle(60_000)
    assert rig.counts() == counts()


def test_one_handed_back_uncounted_after_it_was_overdue_is_still_a_dead_letter():
    rig = by_receives()
    rig.force("dlq", max_backlog=0)
    rig.send(b"1")
    fail(rig)
    (handle,) = rig.handles()
    rig.settle(500)
    rig.force("dlq", max_backlog=5)
    rig.release(handle, counted=False)
    rig.settle()

    assert dead(rig) == [b"1"]


def test_one_too_large_for_it_stays_receivable_and_does_not_hold_up_others():
    rig = by_receives()
    rig.set("dlq", max_message_bytes=1024)
    rig.send(b"x" * 1025, b"2")
    fail(rig)
    assert dead(rig) == [b"2"]
    assert rig.counts() == counts(active=1)
    fail(rig)
    assert rig.counts() == counts(active=1)

    rig.set("dlq", max_message_bytes=2048)
    rig.settle()

    assert rig.counts() == counts()
    assert rig.counts("dlq")["active"] == 2


def test_one_that_held_messages_takes_dead_letters_only_after_those_are_consumed():
    rig = Rig()
    rig.create("dlq")
    rig.send(b"before", name="dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=1, visibility_timeout_ms=VISIBLE_MS)
    rig.send(b"after", name="dlq")
    rig.send(b"1")
    fail(rig)
    for again in (rig.crash(), rig):
        assert again.counts("dlq")["active"] == 2
        fail(again)

        again.delete(*again.handles("dlq", most=1), name="dlq")
        again.settle(2000)
        assert again.counts() == counts()
        assert again.bodies("dlq") == [b"after", b"1"]


# ---------------------------------------------------------------------- while a page of the move is read


def moving(count: int = 3, **attributes: Any) -> Rig:
    """Messages with a requested page."""
    rig = by_receives(**attributes)
    rig.send(*[b"%d" % number for number in range(count)])
    rig.receive()
    rig.advance(VISIBLE_MS)
    assert len(rig.reads) == 1
    assert rig.wait()[1] == []
    return rig


def test_they_count_as_active_while_they_wait_to_be_moved():
    assert moving().counts() == counts(active=3)


def test_unbound_meanwhile_they_stay_active():
    rig = moving()
    rig.set(dead_letter_queue="")
    rig.settle()

    assert rig.counts("dlq") == counts()
    assert rig.bodies() == [b"0", b"1", b"2"]


def test_bound_elsewhere_meanwhile_they_go_there():
    rig = moving()
    rig.create("dlq2")
    rig.set(dead_letter_queue="dlq2")
    rig.settle()

    assert rig.counts("dlq") == counts()
    assert rig.bodies("dlq2") == [b"0", b"1", b"2"]


def test_cleared_meanwhile_they_are_gone():
    rig = moving()
    rig.clear()
    rig.settle()

    assert rig.counts("dlq") == rig.counts() == counts()


def test_expired_meanwhile_they_are_gone():
    rig = moving(retention_ms=60_000)
    rig.advance(70_000)
    rig.settle()

    assert rig.counts("dlq") == rig.counts() == counts()


def test_deleted_meanwhile_with_their_queue_they_are_gone():
    rig = moving()
    rig.delete_queue()
    rig.settle()

    assert rig.counts("dlq") == counts()


def test_full_meanwhile_they_stay_active():
    rig = moving()
    rig.force("dlq", max_backlog=1)
    rig.send(b"there", name="dlq")
    rig.answer_reads()

    assert rig.bodies() == [b"0", b"1", b"2"]


def test_an_unreadable_message_is_damaged_and_does_not_hold_up_others():
    rig = moving()
    rig.log.damaged.add((rig.queue().queue_id, 1))
    rig.settle()

    assert rig.counts() == counts(damaged=1)
    assert dead(rig) == [b"0", b"2"]
    assert facts(rig.crash().broker)["queues"] == facts(rig.broker)["queues"]


def test_pages_that_hold_only_a_part_are_followed_by_the_rest():
    rig = moving(9)
    while rig.reads:
        rig.answer(rig.reads[0], at_most=2)

    assert dead(rig) == [b"%d" % number for number in range(9)]


def test_a_page_that_comes_after_a_receive_waits_does_not_serve_it():
    rig = moving()
    waiter, reply = rig.wait(wait_ms=20_000)
    assert reply is WAITING
    rig.send(b"fresh")
    rig.answer_reads()

    assert [message.body for message in rig.replies(waiter)[0]] == [b"fresh"]


def test_ten_million_overdue_are_reserved_and_released_as_sets():
    rig = by_age()
    rig.force("dlq", max_backlog=10)
    index = rig.queue().index
    count = 10_000_000
    index.next_position = index.live_count = index.active_count = count
    index.live.add_range(0, count)
    index.active.add_range(0, count)
    index.steps.note(0, START_MS)
    index.last_enqueue_ms = START_MS
    rig.now_ms += AFTER_MS + 1000
    rig.set(polling_wait_ms=100)
    assert index.moving_count == count

    (fresh,) = rig.send(b"fresh")
    assert [message.message_id for message in rig.receive()] == [fresh]
    (read,) = rig.reads
    rig.send(*[b"x"] * 10, name="dlq")
    stored = [(rig.queue().queue_id, position) for position in range(1024)]
    (kept,) = [message for (queue_id, _), message in rig.log.stored.items() if queue_id == stored[0][0]]
    for key in stored:
        rig.log.stored[key] = type(kept)(key[1], key[1], START_MS, b"old")
    rig.answer(read)

    assert (index.moving_count, index.active_count) == (0, count)


def test_a_redriven_queue_cannot_be_given_a_dead_letter_queue():
    rig = Rig()
    rig.create("dlq")
    rig.create()
    rig.create("source", dead_letter_queue="q", dead_letter_max_receives=1)
    rig.set("source", dead_letter_queue="")
    rig.send(b"1")
    rig.redrive("q", target="dlq")

    refused(rig, RedriveRunning, dead_letter_queue="dlq", dead_letter_max_receives=1)


def test_one_that_expired_in_a_time_step_with_younger_ones_is_neither_moved_nor_in_their_way():
    rig = by_receives(retention_ms=60_000)
    rig.send(b"older")
    rig.now_ms += 90
    rig.send(b"younger")
    rig.receive()
    rig.now_ms = START_MS + 60_000
    rig.settle()

    assert dead(rig) == [b"younger"]
    rig.settle(100)
    assert rig.counts() == counts()


@pytest.mark.parametrize("value", [1, "yes", None])
def test_transactional_is_true_or_false(value: object):
    rig = Rig()

    with pytest.raises(InvalidArgument):
        rig.broker.create_queue(ACCOUNT, "q", {"transactional": value}, rig.now_ms)
