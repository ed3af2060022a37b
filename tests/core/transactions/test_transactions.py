"""Decisions about half messages."""

import pytest

from cmqd.core.domain_errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    InvalidArgument,
    MessageDamaged,
    QueueDeleted,
    TransactionNotFound,
)
from cmqd.core.limits import Limits
from cmqd.core.operations.transactions.half_messages import COMMIT, ROLL_BACK, UNKNOWN
from cmqd.core.outcome import TransactionsDone, Waiting
from cmqd_segment.records import MessagesSent, TransactionsEnded
from cmqd_types.messages import ReceivedMessage
from support.core import alone
from support.core.builders import ACCOUNT, START_MS
from support.core.facts import facts
from support.core.half_messages import ask, decide, kinds, listed, transactional
from support.core.invariants import check_broker


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_committed_message_stands_at_the_end_with_its_id_and_the_time_of_the_commit(in_memory: bool):
    rig = transactional()
    outcome = alone.send_half(rig.broker, ACCOUNT, "q", [b"half"], [{"k": "v"}], None, 0, 0, rig.now_ms)
    (message_id,) = rig.done(outcome)
    rig.send(b"plain")
    rig = rig if in_memory else rig.crash()
    rig.now_ms += 1000

    assert decide(rig, (message_id, COMMIT)) == []

    plain, half = rig.receive()
    assert (plain.body, half.body) == (b"plain", b"half")
    assert (half.message_id, half.headers, half.receive_count) == (message_id, {"k": "v"}, 1)
    assert half.enqueue_ms == START_MS + 1000
    assert rig.counts()["half"] == 0


def test_a_commit_and_its_receive_need_no_disk():
    rig = transactional()
    (message_id,) = rig.send_half(b"1")
    waiter, _ = rig.wait(wait_ms=1000)

    assert decide(rig, (message_id, COMMIT)) == []

    ((one,),) = rig.replies(waiter)
    assert one.body == b"1"
    assert rig.reads == []


def test_a_commit_wakes_a_waiting_receive_after_its_page_came():
    rig = transactional()
    ids = rig.send_half(b"1", b"2")
    rig = rig.crash()
    waiter, _ = rig.wait(wait_ms=1000)

    assert decide(rig, *[(one, COMMIT) for one in ids]) == []

    (messages,) = rig.replies(waiter)
    assert [one.body for one in messages] == [b"1", b"2"]
    assert rig.reads == []


def test_a_commit_needs_no_room_in_the_backlog_and_time_never_goes_back():
    rig = transactional()
    ids = rig.send_half(b"1", b"2")
    rig.force(max_backlog=1)
    rig.now_ms -= 500

    assert decide(rig, (ids[1], COMMIT), (ids[0], COMMIT)) == []

    assert [(one.body, one.enqueue_ms) for one in rig.receive()] == [(b"2", START_MS), (b"1", START_MS)]


def test_a_batch_of_commits_shares_a_record():
    rig = transactional()
    ids = rig.send_half(*[b"%d" % number for number in range(5)])

    decide(rig, *[(one, COMMIT) for one in (*ids[:2], *ids[3:])])

    ended, *sent = rig.log.rows[-1]
    assert isinstance(ended, TransactionsEnded)
    assert [len(record.sizes) for record in sent if isinstance(record, MessagesSent)] == [2, 2]
    assert rig.bodies() == [b"0", b"1", b"3", b"4"]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_rolled_back_message_is_gone(in_memory: bool):
    rig = transactional()
    (message_id,) = rig.send_half(b"1")
    rig = rig if in_memory else rig.crash()

    assert decide(rig, (message_id, ROLL_BACK)) == []

    assert rig.receive() == []
    assert rig.counts()["half"] == 0
    assert rig.reads == []


@pytest.mark.parametrize("crashed", [False, True])
def test_the_first_decision_wins(crashed: bool):
    rig = transactional()
    yes, no = rig.send_half(b"yes", b"no")
    assert decide(rig, (yes, COMMIT), (no, ROLL_BACK)) == []
    rig = rig.crash() if crashed else rig

    assert decide(rig, (yes, COMMIT), (no, ROLL_BACK)) == []
    assert decide(rig, (yes, UNKNOWN), (no, UNKNOWN)) == []
    assert kinds(decide(rig, (no, COMMIT), (yes, ROLL_BACK))) == [(no, AlreadyRolledBack), (yes, AlreadyCommitted)]
    assert rig.bodies() == [b"yes"]


def test_decisions_about_one_message_in_one_request_go_in_order():
    rig = transactional()
    one, two, three = rig.send_half(b"1", b"2", b"3")

    failures = decide(
        rig, (one, COMMIT), (one, COMMIT), (one, ROLL_BACK), (one, UNKNOWN), (two, ROLL_BACK), (two, COMMIT),
        (three, UNKNOWN), (three, COMMIT),
    )  # fmt: skip

    assert kinds(failures) == [(one, AlreadyCommitted), (two, AlreadyRolledBack)]
    assert rig.bodies() == [b"1", b"3"]
    assert facts(rig.crash().broker)["queues"] == facts(rig.broker)["queues"]


def test_one_decision_may_be_for_all():
    rig = transactional()
    ids = rig.send_half(b"1", b"2")

    assert rig.end(COMMIT, *ids) == []

    assert rig.bodies() == [b"1", b"2"]


def test_an_unknown_id_is_not_found():
    rig = transactional()
    (plain,) = rig.send(b"1")
    (half,) = rig.send_half(b"2")

    failures = decide(rig, (plain, COMMIT), (half, COMMIT), (half + 1, ROLL_BACK), (0, UNKNOWN))

    assert kinds(failures) == [(one, TransactionNotFound) for one in (plain, half + 1, 0)]
    assert rig.bodies() == [b"1", b"2"]


def test_malformed_requests_are_refused_whole():
    rig = transactional()
    (message_id,) = rig.send_half(b"1")

    for ids, decisions in (
        ([], [COMMIT]),
        ([message_id] * 257, [COMMIT]),
        ([message_id], []),
        ([message_id], [COMMIT, COMMIT]),
        ([message_id], [0]),
        ([message_id], [4]),
    ):
        with pytest.raises(InvalidArgument):
            rig.broker.end_transactions(ACCOUNT, "q", 1, ids, decisions, rig.now_ms)
    assert rig.counts()["half"] == 1


def test_unknown_is_noted():
    rig = transactional()
    (message_id,) = rig.send_half(b"1")

    assert decide(rig, (message_id, UNKNOWN)) == []

    assert [one.last_answer for one in listed(rig)] == ["unknown"]
    assert [one.last_answer for one in listed(rig.crash())] == ["unknown"]
    assert decide(rig, (message_id, COMMIT)) == []


def test_decisions_that_come_while_a_commit_waits_for_its_page_keep_their_order():
    rig = transactional()
    ids = rig.send_half(b"1", b"2")
    rig = rig.crash()
    first, reply = ask(rig, (ids[0], COMMIT))
    assert isinstance(reply, Waiting)

    second, _ = ask(rig, (ids[0], ROLL_BACK), (ids[1], ROLL_BACK))
    third, _ = ask(rig, (ids[0], UNKNOWN))
    fourth, _ = ask(rig, (ids[0], COMMIT), (ids[1], COMMIT))
    assert rig.counts()["half"] == 1
    rig.answer_reads()

    assert [waiter for waiter, _ in rig.woken] == [first, second, third, fourth]
    assert [kinds(reply.failures) for _, reply in rig.woken] == [
        [],
        [(ids[0], AlreadyCommitted)],
        [],
        [(ids[1], AlreadyRolledBack)],
    ]
    assert rig.bodies() == [b"1"]
    check_broker(rig.broker)


def test_a_commit_that_cannot_be_read_is_refused_and_the_message_stays_half():
    rig = transactional()
    queue_id = rig.queue().queue_id
    one, two, three = rig.send_half(b"1", b"2", b"3")
    rig.log.damaged.update({(queue_id, 0), (queue_id, 1)})
    rig = rig.crash()
    _, reply = ask(rig, (one, COMMIT), (two, COMMIT), (three, COMMIT))
    assert isinstance(reply, Waiting)
    later, _ = ask(rig, (two, COMMIT), (two, UNKNOWN), (two, ROLL_BACK))

    assert rig.answer(rig.reads[0]) == 2

    first, second = (reply for _, reply in rig.woken)
    assert kinds(first.failures) == [(one, MessageDamaged), (two, MessageDamaged)]
    assert rig.woken[1][0] == later
    assert kinds(second.failures) == [(two, MessageDamaged)]
    assert rig.counts()["half"] == 1
    assert rig.bodies() == [b"3"]
    check_broker(rig.broker)

    rig.log.damaged.clear()
    assert decide(rig, (one, COMMIT)) == []
    assert rig.bodies() == [b"1"]


@pytest.mark.parametrize("in_memory", [True, False])
def test_big_batches_are_written_in_rows_of_limited_size(in_memory: bool):
    rig = transactional(Limits(max_batch_bytes=1000))
    ids = [rig.send_half(b"%d" % number * 300)[0] for number in range(8)]
    rig = rig if in_memory else rig.crash()
    before = len(rig.log.rows)

    assert decide(rig, *[(one, COMMIT) for one in ids]) == []

    for row in rig.log.rows[before:]:
        assert sum(sum(record.sizes) for record in row if isinstance(record, MessagesSent)) <= 1000
    received: list[ReceivedMessage] = []
    while got := rig.receive():
        received += got
    assert [one.body[:1] for one in received] == [b"%d" % number for number in range(8)]


def test_headers_count_for_the_size_of_a_row():
    rig = transactional(Limits(max_batch_bytes=1000))
    headers: list[dict[str, str] | None] = [{"k": "v" * 600}]
    ids = [
        rig.done(alone.send_half(rig.broker, ACCOUNT, "q", [b"1"], headers, None, 0, 0, rig.now_ms))[0]
        for _ in range(3)
    ]
    rig = rig.crash()

    assert decide(rig, *[(one, COMMIT) for one in ids]) == []

    assert [len(row) for row in rig.log.rows[-3:]] == [2, 2, 2]
    assert rig.counts()["active"] == 3


def test_a_page_that_brings_less_than_was_asked_for_is_followed_by_another():
    rig = transactional()
    ids = rig.send_half(b"1", b"2", b"3")
    rig = rig.crash()
    waiter, _ = ask(rig, *[(one, COMMIT) for one in ids])

    rig.answer(rig.reads[0], at_most=1)
    rig.done(rig.broker.pages_read(rig.reads.pop().read_id, [], [], rig.now_ms))
    check_broker(rig.broker)
    assert rig.replies(waiter) == []
    rig.answer_reads()

    assert rig.replies(waiter) == [TransactionsDone([])]
    assert rig.bodies() == [b"1", b"2", b"3"]


def test_a_cancelled_decision_is_carried_out_and_not_answered():
    rig = transactional()
    (message_id,) = rig.send_half(b"1")
    rig = rig.crash()
    waiter, _ = ask(rig, (message_id, COMMIT))

    assert rig.broker.cancel_receive(waiter)
    assert not rig.broker.cancel_receive(waiter)
    rig.answer_reads()

    assert rig.woken == []
    assert rig.bodies() == [b"1"]


def test_a_request_that_waits_for_a_commit_gets_queue_deleted():
    rig = transactional()
    ids = rig.send_half(b"1", b"2")
    rig = rig.crash()
    waiter, _ = ask(rig, *[(one, COMMIT) for one in ids])
    cancelled, _ = ask(rig, (ids[0], COMMIT))
    rig.broker.cancel_receive(cancelled)

    rig.delete_queue()
    rig.answer_reads()

    ((one, error),) = rig.woken
    assert one == waiter
    assert isinstance(error, QueueDeleted)
    check_broker(rig.broker)


def test_commits_beyond_a_page_are_read_with_the_next():
    rig = transactional(Limits(page_messages=2))
    ids = rig.send_half(*[b"%d" % number for number in range(5)])
    rig = rig.crash()

    assert decide(rig, *[(one, COMMIT) for one in ids]) == []

    assert sorted(one.body for one in rig.receive()) == [b"%d" % number for number in range(5)]


def test_what_was_cleared_behind_a_page_is_not_read():
    rig = transactional(Limits(page_messages=2))
    ids = rig.send_half(*[b"%d" % number for number in range(5)])
    rig = rig.crash()
    waiter, _ = ask(rig, *[(one, COMMIT) for one in ids])
    rig.clear()

    rig.answer(rig.reads[0])

    (reply,) = rig.replies(waiter)
    assert kinds(reply.failures) == [(one, TransactionNotFound) for one in ids]
    assert rig.reads == []


def test_pages_may_hold_more_than_is_still_wanted():
    rig = transactional()
    one, two = rig.send_half(b"1", b"2")
    rig = rig.crash()
    ask(rig, (one, COMMIT))
    (read,) = rig.reads

    rig.done(rig.broker.pages_read(read.read_id, [rig.log.stored[1, 1], rig.log.stored[1, 0]], [], rig.now_ms))

    check_broker(rig.broker)
    assert [half.message_id for half in listed(rig)] == [two]
    assert rig.bodies() == [b"1"]


def test_message_ids_are_reserved_ahead():
    rig = transactional()
    before = rig.broker.facts.numbers.message_id_until
    while rig.broker.facts.numbers.next_message_id + 256 <= before:
        rig.send(*[b"x"] * 256)

    rig.send_half(*[b"x"] * 256)

    assert rig.broker.facts.numbers.message_id_until > before
    assert len(listed(rig.crash(), limit=1000)) == 256


@pytest.mark.parametrize("how", ["clear", "expire"])
def test_what_went_while_a_commit_waited_is_not_found(how: str):
    rig = transactional(retention_ms=60_000)
    (message_id,) = rig.send_half(b"1")
    rig = rig.crash()
    waiter, _ = ask(rig, (message_id, COMMIT))

    if how == "clear":
        rig.clear()
    else:
        rig.now_ms += 60_000
    rig.answer_reads()

    (reply,) = rig.replies(waiter)
    assert kinds(reply.failures) == [(message_id, TransactionNotFound)]
    assert rig.receive() == []
