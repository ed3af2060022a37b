"""Transactions (spec 2.9): half messages, decisions, checks, and that all of it survives a crash at any record."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import pytest

from cmqd.core.broker import Broker
from cmqd.core.errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    BacklogFull,
    DomainError,
    InvalidArgument,
    MessageDamaged,
    MessageTooLarge,
    NotTransactional,
    QueueDeleted,
    QueueNotFound,
    TransactionNotFound,
)
from cmqd.core.limits import Limits
from cmqd.core.outcome import HalfMessage, ReceivedMessage, TransactionsDone, Waiting
from cmqd.core.transactions import COMMIT, ROLL_BACK, UNKNOWN
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import MessagesSent, TransactionsChecked, TransactionsEnded
from support.core_builders import ACCOUNT, KEY, START_MS, NaiveLog, Rig
from support.core_facts import facts


def transactional(limits: Limits | None = None, **attributes: int) -> Rig:
    rig = Rig(limits)
    rig.create("q", **{"transactional": True} | attributes)
    return rig


def decide(rig: Rig, *decisions: tuple[int, int]) -> list[tuple[int, DomainError]]:
    """What was refused; (message id, decision) each, page-ins included."""
    waiter_id, reply = ask(rig, *decisions)
    if isinstance(reply, Waiting):
        rig.answer_reads(until=lambda: bool(rig.replies(waiter_id)))
        (reply,) = rig.replies(waiter_id)
    rig.broker.check_invariants()
    return list(reply.failures)


def ask(rig: Rig, *decisions: tuple[int, int]) -> tuple[int, Any]:
    """(waiter, reply), which may be WAITING."""
    waiter_id = rig._new_waiter()  # pyright: ignore[reportPrivateUsage]
    ids, what = [one for one, _ in decisions], [one for _, one in decisions]
    reply = rig.done(rig.broker.end_transactions(ACCOUNT, "q", waiter_id, ids, what, rig.now_ms))
    rig.broker.check_invariants()
    return waiter_id, reply


def kinds(failures: Sequence[tuple[int, DomainError]]) -> list[tuple[int, type[DomainError]]]:
    return [(message_id, type(error)) for message_id, error in failures]


def listed(rig: Rig, start: int = 0, limit: int = 100) -> list[HalfMessage]:
    return rig.broker.list_half_messages(ACCOUNT, "q", start, limit).messages


def checkers(rig: Rig, there: bool = True) -> None:
    rig.broker.set_has_checkers(ACCOUNT, "q", there)


def asked(rig: Rig) -> list[tuple[bytes, int]]:
    """(body, attempt) of the checks sent since this was last called."""
    sent = [(check.message.body, check.attempt) for check in rig.checks]
    rig.checks.clear()
    return sent


# ---------------------------------------------------------------- half messages


def test_a_half_message_is_counted_and_never_received():
    rig = transactional()

    ids = rig.send_half(b"1", b"2")

    assert len(ids) == 2
    assert rig.receive() == []
    assert rig.counts()["half"] == 2
    assert rig.counts()["active"] == 0


def test_a_waiting_receive_is_not_woken_by_a_half_message():
    rig = transactional()
    waiter, _ = rig.wait(wait_ms=1000)

    rig.send_half(b"1")
    rig.send(b"plain")

    ((one,),) = rig.replies(waiter)
    assert one.body == b"plain"


def test_plain_sends_into_a_transactional_queue_are_active_at_once():
    rig = transactional()

    rig.send(b"1")

    assert rig.bodies() == [b"1"]


def test_only_a_transactional_queue_takes_half_messages():
    rig = Rig()
    rig.create()

    with pytest.raises(NotTransactional):
        rig.send_half(b"1")
    with pytest.raises(NotTransactional):
        rig.end(COMMIT, 1)
    with pytest.raises(NotTransactional):
        listed(rig)
    with pytest.raises(NotTransactional):
        checkers(rig)
    with pytest.raises(QueueNotFound):
        rig.broker.set_has_checkers(ACCOUNT, "other", True)
    rig.broker.set_has_checkers(ACCOUNT, "other", False)


def test_limits_of_sends_hold_for_half_messages():
    rig = transactional()
    rig.force(max_backlog=2)
    rig.send_half(b"1")

    with pytest.raises(BacklogFull):
        rig.send_half(b"2", b"3")
    rig.send_half(b"2")
    with pytest.raises(BacklogFull):
        rig.send(b"3")
    with pytest.raises(MessageTooLarge):
        rig.send_half(bytes(65_537))
    for first_check_ms in (999, 3_600_001):
        with pytest.raises(InvalidArgument, match="first_check_ms"):
            rig.send_half(b"1", first_check_ms=first_check_ms)


def test_a_numbered_half_send_is_stored_once():
    rig = transactional()
    args = (ACCOUNT, "q", [b"1", b"2"], None, None, 7, 1, rig.now_ms)
    ids = list(rig.done(rig.broker.send_half(*args)))

    assert list(rig.done(rig.broker.send_half(*args))) == ids
    again = rig.crash()
    assert list(again.done(again.broker.send_half(*args))) == ids
    assert again.counts()["half"] == 2


# ---------------------------------------------------------------- decisions


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_committed_message_stands_at_the_end_with_its_id_and_the_time_of_the_commit(in_memory: bool):
    rig = transactional()
    outcome = rig.broker.send_half(ACCOUNT, "q", [b"half"], [{"k": "v"}], None, 0, 0, rig.now_ms)
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


def test_a_commit_wakes_who_waits_after_its_page_came():
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
    rig.broker.check_invariants()


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
    rig.broker.check_invariants()

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
    ids = [rig.done(rig.broker.send_half(ACCOUNT, "q", [b"1"], headers, None, 0, 0, rig.now_ms))[0] for _ in range(3)]
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
    rig.broker.check_invariants()
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


def test_who_waits_for_a_commit_is_told_that_the_queue_was_deleted():
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
    rig.broker.check_invariants()


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

    rig.broker.check_invariants()
    assert [half.message_id for half in listed(rig)] == [two]
    assert rig.bodies() == [b"1"]


def test_message_ids_are_reserved_ahead():
    rig = transactional()
    before = rig.broker.numbers.message_id_until
    while rig.broker.numbers.next_message_id + 256 <= before:
        rig.send(*[b"x"] * 256)

    rig.send_half(*[b"x"] * 256)

    assert rig.broker.numbers.message_id_until > before
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


# ---------------------------------------------------------------- retention, clear


def test_retention_counts_from_the_half_send_and_anew_from_the_commit():
    rig = transactional(retention_ms=60_000)
    lost, kept = rig.send_half(b"lost", b"kept")
    rig.advance(30_000)
    assert decide(rig, (kept, COMMIT)) == []

    rig.advance(30_000)

    assert rig.counts()["half"] == 0
    assert kinds(decide(rig, (lost, COMMIT), (kept, COMMIT))) == [
        (lost, TransactionNotFound),
        (kept, TransactionNotFound),
    ]
    assert rig.bodies() == [b"kept"]
    rig.advance(30_000)
    assert rig.counts()["in_flight"] == 0


@pytest.mark.parametrize("decision", [COMMIT, ROLL_BACK, UNKNOWN])
def test_what_has_expired_is_not_found_even_if_no_tick_came_by(decision: int):
    rig = transactional(retention_ms=60_000)
    (message_id,) = rig.send_half(b"1")
    rig.now_ms += 60_000

    assert kinds(decide(rig, (message_id, decision))) == [(message_id, TransactionNotFound)]


def test_decisions_are_remembered_until_the_retention_has_passed():
    rig = transactional(retention_ms=60_000)
    (message_id,) = rig.send_half(b"1")
    decide(rig, (message_id, ROLL_BACK))

    rig.advance(59_999)
    assert kinds(decide(rig, (message_id, COMMIT))) == [(message_id, AlreadyRolledBack)]
    rig.advance(1)

    assert kinds(decide(rig, (message_id, COMMIT))) == [(message_id, TransactionNotFound)]
    assert len(rig.queue().index.halves) == 0


def test_clearing_drops_half_messages_and_decisions():
    rig = transactional()
    one, two = rig.send_half(b"1", b"2")
    decide(rig, (one, ROLL_BACK))
    checkers(rig)

    rig.clear()
    rig.broker.check_invariants()
    rig.advance(10_000)

    assert rig.counts()["half"] == 0
    assert kinds(decide(rig, (one, ROLL_BACK), (two, COMMIT))) == [
        (one, TransactionNotFound),
        (two, TransactionNotFound),
    ]
    assert asked(rig) == []


@pytest.mark.parametrize("crashed", [False, True])
def test_the_oldest_decisions_are_forgotten_when_there_are_very_many(crashed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.halves.MAX_RUNS", 20)
    monkeypatch.setattr("cmqd.core.halves.FORGET_STEP", 4)
    rig = transactional()
    undecided = list(rig.send_half(b"a", b"b"))
    ids: list[int] = []
    for number in range(100):
        ids += rig.send_half(b"%d" % number)
        if number % 10 == 5:
            undecided.append(ids.pop())
        else:
            decide(rig, (ids[-1], COMMIT if number % 2 else ROLL_BACK))
    rig = rig.crash() if crashed else rig

    assert len(rig.queue().index.halves) < 40
    assert [one.message_id for one in listed(rig)] == undecided
    assert kinds(decide(rig, (ids[0], COMMIT))) == [(ids[0], TransactionNotFound)]
    assert kinds(decide(rig, (ids[-1], ROLL_BACK))) == [(ids[-1], AlreadyCommitted)]
    assert decide(rig, *[(one, COMMIT) for one in undecided]) == []


def test_what_is_undecided_is_never_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.halves.MAX_RUNS", 20)
    monkeypatch.setattr("cmqd.core.halves.FORGET_STEP", 4)
    rig = transactional()
    ids: list[int] = []
    for _ in range(100):
        rig.send(b"between")
        ids += rig.send_half(b"1")
    rig = rig.crash()

    assert [one.message_id for one in listed(rig)] == ids
    assert decide(rig, *[(one, ROLL_BACK) for one in ids]) == []
    rig.broker.check_invariants()


# ---------------------------------------------------------------- bodies in memory


def test_bodies_of_half_messages_take_a_share_of_the_window():
    rig = transactional(Limits(window_bytes=8 * 1320))
    ids = [rig.send_half(bytes(1000))[0] for _ in range(5)]
    rig.broker.check_invariants()
    assert list(rig.queue().window.half) == [3, 4]

    assert [isinstance(ask(rig, (one, COMMIT))[1], Waiting) for one in ids] == [True, True, True, False, False]
    rig.answer_reads()

    rig.broker.check_invariants()
    assert rig.counts()["active"] == 5


def test_what_is_in_memory_or_not_can_be_rolled_back_together():
    rig = transactional(Limits(window_bytes=8 * 1320))
    ids = [rig.send_half(bytes(1000))[0] for _ in range(5)]

    assert decide(rig, *[(one, ROLL_BACK) for one in ids]) == []

    assert not rig.queue().window.half
    assert rig.counts()["half"] == 0


def test_half_messages_make_room_for_what_can_be_received():
    rig = transactional(Limits(window_bytes=4 * 1320))
    rig.send_half(bytes(1000))
    for _ in range(4):
        rig.send(bytes(1000))
    rig.broker.check_invariants()

    assert not rig.queue().window.half
    assert len(rig.queue().window.messages) == 4


def test_another_queue_makes_room_of_half_messages():
    rig = transactional(Limits(window_bytes=4 * 1320))
    (message_id,) = rig.send_half(bytes(1000))
    rig.create("other")
    for _ in range(4):
        rig.send(bytes(1000), name="other")
    rig.broker.check_invariants()
    assert not rig.queue().window.half

    assert decide(rig, (message_id, COMMIT)) == []
    assert rig.bodies() == [bytes(1000)]


def test_one_too_large_for_the_share_is_not_kept():
    rig = transactional(Limits(window_bytes=4 * 1320))
    (message_id,) = rig.send_half(bytes(1001))

    assert not rig.queue().window.half
    assert decide(rig, (message_id, COMMIT)) == []
    assert rig.bodies() == [bytes(1001)]


# ---------------------------------------------------------------- for operators


@pytest.mark.parametrize("in_memory", [True, False])
def test_undecided_messages_are_listed_in_pages(in_memory: bool):
    rig = transactional(max_checks=1)
    ids = rig.send_half(b"1", b"2", b"3")
    checkers(rig)
    rig.settle(5000)
    rig.now_ms += 100
    ids += rig.send_half(b"4", b"5")
    decide(rig, (ids[1], ROLL_BACK), (ids[2], UNKNOWN))
    rig = rig if in_memory else rig.crash()

    page = rig.broker.list_half_messages(ACCOUNT, "q", 0, 2)
    rest = rig.broker.list_half_messages(ACCOUNT, "q", page.next_start or 0, 2)

    assert page.messages == [
        HalfMessage(ids[0], START_MS, 1, START_MS + 5000, "", 0),
        HalfMessage(ids[2], START_MS, 1, START_MS + 5000, "unknown", 0),
    ]
    assert rest.messages == [HalfMessage(one, START_MS + 5100, 0, 0, "", START_MS + 10_100) for one in ids[3:]]
    assert rest.next_start is None


def test_an_empty_list_and_its_limits():
    rig = transactional()

    assert listed(rig) == []
    for start, limit in ((-1, 1), (0, 0), (0, 1001)):
        with pytest.raises(InvalidArgument):
            listed(rig, start, limit)


# ---------------------------------------------------------------- checks


@pytest.mark.parametrize("in_memory", [True, False])
def test_checks_come_at_doubling_intervals_up_to_the_last(in_memory: bool):
    rig = transactional(first_check_ms=5000, max_checks=3)
    (message_id,) = rig.send_half(b"1")
    rig = rig if in_memory else rig.crash()
    checkers(rig)

    rig.settle(4999)
    assert asked(rig) == []
    rig.settle(1)
    (check,) = rig.checks
    assert (check.account, check.queue, check.message.message_id) == (ACCOUNT, "q", message_id)
    assert (check.age_ms, check.attempt) == (5000, 1)
    assert asked(rig) == [(b"1", 1)]
    rig.settle(9999)
    assert asked(rig) == []
    rig.settle(1)
    assert asked(rig) == [(b"1", 2)]
    rig.settle(20_000)
    assert asked(rig) == [(b"1", 3)]
    assert listed(rig)[0].next_check_ms == 0
    rig.settle(1_000_000)
    assert asked(rig) == []
    assert decide(rig, (message_id, COMMIT)) == []


def test_intervals_end_at_the_cap_but_the_first_may_be_longer():
    rig = transactional()
    rig.send_half(b"short", first_check_ms=100_000)
    rig.send_half(b"long", first_check_ms=600_000)
    checkers(rig)
    times: dict[bytes, list[int]] = {b"short": [], b"long": []}

    for _ in range(30):
        rig.settle(50_000)
        for body, _ in asked(rig):
            times[body].append((rig.now_ms - START_MS) // 1000)

    assert times == {b"short": [100, 300, 600, 900, 1200, 1500], b"long": [600, 900, 1200, 1500]}


def test_nothing_is_sent_or_counted_while_nobody_answers():
    rig = transactional(Limits(tick_items=4))
    ids = rig.send_half(*[b"%d" % number for number in range(10)])
    rows = len(rig.log.rows)

    rig.settle(100_000)
    assert asked(rig) == []
    assert len(rig.log.rows) == rows
    assert listed(rig)[0].checks == 0

    decide(rig, (ids[3], ROLL_BACK))
    checkers(rig)
    assert rig.due()
    rig.tick()
    assert [attempt for _, attempt in asked(rig)] == [1] * 4
    rig.settle()
    assert [body for body, _ in asked(rig)] == [b"5", b"6", b"7", b"8", b"9"]
    checkers(rig, False)
    rig.settle(100_000)
    assert asked(rig) == []
    checkers(rig)
    rig.settle()
    assert sorted(asked(rig)) == [(b"%d" % number, 2) for number in range(10) if number != 3]


def test_a_checker_that_leaves_again_at_once_is_not_asked():
    rig = transactional()
    rig.send_half(b"1")
    rig.settle(5000)
    checkers(rig)
    checkers(rig, False)

    rig.settle()

    assert asked(rig) == []


def test_the_next_check_counts_from_the_one_that_was_sent():
    rig = transactional(first_check_ms=1000)
    rig.send_half(b"1")
    rig.settle(10_000)
    checkers(rig)
    rig.settle()
    assert asked(rig) == [(b"1", 1)]

    rig.settle(1900)
    assert asked(rig) == []
    rig.settle(100)
    assert asked(rig) == [(b"1", 2)]


def test_a_check_whose_checker_goes_away_is_sent_to_another_one_at_once():
    rig = transactional(max_checks=2)
    one, two = rig.send_half(b"1", b"2")
    checkers(rig)
    rig.settle(5000)
    assert len(asked(rig)) == 2
    decide(rig, (two, COMMIT))

    rig.done(rig.broker.check_again(ACCOUNT, "q", [one, two, 4711], rig.now_ms))
    assert rig.due()
    rig.settle()

    assert asked(rig) == [(b"1", 2)]
    rig.settle(400_000)
    assert asked(rig) == []
    rig.done(rig.broker.check_again(ACCOUNT, "gone", [one], rig.now_ms))


def test_who_went_away_with_the_last_check_is_replaced_each_time():
    rig = transactional(max_checks=1)
    one, other = rig.send_half(b"1", b"2")
    checkers(rig)
    rig.settle(5000)
    assert asked(rig) == [(b"1", 1), (b"2", 1)]

    for attempt in (2, 3):
        checkers(rig, False)
        rig.done(rig.broker.check_again(ACCOUNT, "q", [one], rig.now_ms))
        rig.settle(1000)
        assert asked(rig) == []
        checkers(rig)
        rig.settle()
        assert asked(rig) == [(b"1", attempt)]
        assert listed(rig)[0].next_check_ms == 0
        again = rig.crash()
        checkers(again)
        for broker in (rig, again):
            broker.settle(400_000)
            assert asked(broker) == []

    rig.done(rig.broker.check_again(ACCOUNT, "q", [one, other], rig.now_ms))
    decide(rig, (one, COMMIT))
    rig.settle()
    assert asked(rig) == [(b"2", 2)]


def test_a_check_asked_for_again_leaves_no_second_one_behind():
    rig = transactional(first_check_ms=1000)
    (message_id,) = rig.send_half(b"1")
    checkers(rig)
    rig.settle(1000)
    rig.now_ms += 1000
    rig.done(rig.broker.check_again(ACCOUNT, "q", [message_id], rig.now_ms))
    rig.settle()
    assert asked(rig) == [(b"1", 1), (b"1", 2)]

    # The check that was planned for this time is not due any more: the next comes 4 s after the second.
    rig.settle(1000)
    assert asked(rig) == []
    rig.settle(3000)
    assert asked(rig) == [(b"1", 3)]


def test_decided_and_unknown_messages_are_asked_about_no_more_or_again():
    rig = transactional()
    yes, no, maybe = rig.send_half(b"yes", b"no", b"maybe")
    checkers(rig)
    decide(rig, (yes, COMMIT), (no, ROLL_BACK), (maybe, UNKNOWN))

    rig.settle(5000)
    assert asked(rig) == [(b"maybe", 1)]
    decide(rig, (maybe, UNKNOWN))
    rig.settle(10_000)
    assert asked(rig) == [(b"maybe", 2)]


def test_a_commit_that_arrives_while_a_check_reads_its_page_wins():
    rig = transactional()
    (message_id,) = rig.send_half(b"1")
    rig = rig.crash()
    checkers(rig)
    rig.advance(5000)
    (page,) = rig.reads
    _, reply = ask(rig, (message_id, COMMIT))
    assert isinstance(reply, Waiting)

    rig.answer(page)
    rig.broker.check_invariants()
    assert asked(rig) == []
    rig.settle()

    assert rig.bodies() == [b"1"]
    rig.settle(100_000)
    assert asked(rig) == []


def test_who_leaves_while_a_page_is_read_is_not_asked():
    rig = transactional()
    rig.send_half(b"1")
    rig = rig.crash()
    checkers(rig)
    rig.advance(5000)
    checkers(rig, False)

    rig.answer_reads()
    rig.advance(0)
    assert asked(rig) == []
    checkers(rig)
    rig.settle()

    assert asked(rig) == [(b"1", 1)]


def test_a_check_whose_queue_goes_away_while_its_page_is_read():
    rig = transactional()
    rig.send_half(b"1")
    rig = rig.crash()
    checkers(rig)
    rig.advance(5000)

    rig.delete_queue()
    rig.answer_reads()
    rig.settle(100_000)

    assert asked(rig) == []


def test_what_cannot_be_read_is_not_asked_about():
    rig = transactional()
    ids = rig.send_half(b"1", b"2")
    rig.log.damaged.add((rig.queue().queue_id, 0))
    rig = rig.crash()
    checkers(rig)

    rig.advance(5000)
    assert rig.answer(rig.reads[0]) == 1
    rig.settle()

    assert asked(rig) == [(b"2", 1)]
    rig.settle(300_000)
    assert {body for body, _ in asked(rig)} == {b"2"}
    rig.log.damaged.clear()
    assert decide(rig, (ids[0], COMMIT)) == []


def test_expired_half_messages_are_not_asked_about():
    rig = transactional(retention_ms=60_000)
    rig.send_half(b"1", first_check_ms=60_000)
    checkers(rig)

    rig.settle(60_000)

    assert asked(rig) == []
    assert rig.counts()["half"] == 0


def test_what_expires_while_its_page_is_read_is_not_asked_about():
    rig = transactional(retention_ms=60_000)
    rig.send_half(b"1")
    rig = rig.crash()
    checkers(rig)
    rig.advance(5000)
    rig.now_ms = START_MS + 60_000

    rig.answer(rig.reads[0])

    assert asked(rig) == []


def test_a_greater_number_of_checks_takes_up_those_that_had_theirs():
    rig = transactional(max_checks=1)
    rig.send_half(b"1")
    checkers(rig)
    rig.settle(5000)
    rig.settle(100_000)
    assert asked(rig) == [(b"1", 1)]

    rig.set(max_checks=2)
    before = rig.crash()
    rig.settle()

    assert asked(rig) == [(b"1", 2)]
    checkers(before)
    before.settle()
    assert asked(before) == [(b"1", 2)]


def test_a_restart_after_a_greater_number_of_checks_asks_nobody_before_its_time():
    rig = transactional(first_check_ms=5000, max_checks=1)
    rig.send_half(b"1")
    checkers(rig)
    rig.settle(5000)
    rig.settle(100_000)
    rig.set(max_checks=5)
    rig.settle()
    assert asked(rig) == [(b"1", 1), (b"1", 2)]
    next_check_ms = listed(rig)[0].next_check_ms
    assert next_check_ms == rig.now_ms + 20_000

    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        checkers(again)
        again.settle(19_999)
        assert asked(again) == []
        again.settle(1)
        assert asked(again) == [(b"1", 3)]


def test_a_smaller_number_of_checks_ends_them():
    rig = transactional()
    rig.send_half(b"1")
    checkers(rig)
    rig.settle(5000)
    rig.set(max_checks=1)

    rig.settle(100_000)

    assert asked(rig) == [(b"1", 1)]
    assert listed(rig)[0].next_check_ms == 0


def test_many_checks_are_spread_over_ticks_and_pages():
    limits = Limits(tick_items=10, page_messages=7, page_bytes=500)
    rig = transactional(limits)
    for _ in range(10):
        rig.send_half(*[bytes(100) for _ in range(10)])
    rig = rig.crash()
    checkers(rig)
    rows = len(rig.log.rows)

    rig.settle(5000)

    assert len(asked(rig)) == 100
    checked = [record for row in rig.log.rows[rows:] for record in row if isinstance(record, TransactionsChecked)]
    assert max(len(record.next_check_ms) for record in checked) <= 7


def test_checks_of_large_bodies_are_spread_over_ticks():
    rig = transactional(Limits(max_batch_bytes=1000))
    rig.send_half(bytes(400), bytes(400))
    rig.send_half(bytes(400), bytes(400))
    checkers(rig)
    rig.now_ms += 5000

    rig.tick()

    assert len(asked(rig)) == 2
    rig.settle()
    assert len(asked(rig)) == 2


def test_a_queue_that_is_deleted_is_not_asked_about():
    rig = transactional()
    rig.send_half(b"1")
    rig.settle(10_000)
    checkers(rig)
    rig.delete_queue()

    rig.settle()

    assert asked(rig) == []


def test_stale_entries_of_checks_are_swept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.state.CHECK_SWEEP_ABOVE", 100)
    monkeypatch.setattr("cmqd.core.checking.CHECK_SWEEP_ABOVE", 100)
    rig = transactional()
    rig.create("gone", transactional=True)
    for first_check_ms in (3_500_000, 3_550_000):
        done = rig.broker.send_half(ACCOUNT, "gone", [b"gone"], None, first_check_ms, 0, 0, rig.now_ms)
        rig.done(done)
    rig.delete_queue("gone")
    kept = rig.send_half(*[b"kept"] * 5)
    checkers(rig)
    rig.settle(5000)
    decide(rig, (kept[0], ROLL_BACK))
    for _ in range(100):
        rig.now_ms += 100
        decide(rig, *[(one, ROLL_BACK) for one in rig.send_half(*[b"x"] * 10, first_check_ms=3_600_000)])

    assert rig.broker._check_buckets.size < 300  # pyright: ignore[reportPrivateUsage]
    rig.checks.clear()
    rig.settle(100_000)
    assert len({check.message.position for check in rig.checks}) == 4


# ---------------------------------------------------------------- restart


def eventful() -> Rig:
    """A log with everything that can befall half messages."""
    rig = transactional(Limits(tick_items=4), retention_ms=600_000)
    first = rig.send_half(*[b"a%d" % number for number in range(6)])
    rig.send(b"plain")
    checkers(rig)
    rig.settle(5000)
    decide(rig, (first[0], COMMIT), (first[1], ROLL_BACK), (first[2], UNKNOWN))
    second = rig.send_half(b"b0", b"b1", first_check_ms=1000)
    rig.settle(1000)
    rig.delete(rig.receive()[0].receipt_handle)
    rig.settle(9000)
    decide(rig, (second[1], COMMIT), (first[3], COMMIT))
    dedup = rig.broker.send_half(ACCOUNT, "q", [b"c0", b"c1"], None, None, 7, 1, rig.now_ms, ["x", None])
    third = list(rig.done(dedup))
    rig.set(max_checks=2)
    rig.settle(100_000)
    rig.set(max_checks=5)
    decide(rig, (third[0], ROLL_BACK))
    checkers(rig, False)
    rig.settle(400_000)
    rig.send_half(b"d0")
    rig.clear()
    last = rig.send_half(b"e0", b"e1", b"e2")
    decide(rig, (last[1], COMMIT))
    rig.settle(6000)
    return rig


EVENTFUL = eventful()
ROWS = len(EVENTFUL.log.rows)


def without(missing: Collection[int]) -> NaiveLog:
    """The log of these events without some rows."""
    log = NaiveLog()
    whole = EVENTFUL.log
    log.rows = [[] if lsn in missing else list(row) for lsn, row in enumerate(whole.rows, 1)]
    for _, record in log.records():
        if isinstance(record, MessagesSent):
            stop = record.first_position + len(record.sizes)
            keys = [(record.queue_id, position) for position in range(record.first_position, stop)]
            log.stored.update((key, whole.stored[key]) for key in keys)
    return log


def crashed_after(rows: int) -> Rig:
    """A broker that was killed when so many rows were durable; each is written whole or not at all."""
    return Rig(EVENTFUL.limits, log=without(range(rows + 1, ROWS + 1))).crash()


def test_a_restart_from_the_log_alone_comes_to_the_same():
    again = EVENTFUL.crash()
    again.settle()  # dedup ids whose time has passed are forgotten by both

    assert facts(again.broker) == facts(EVENTFUL.broker)


@pytest.mark.parametrize("rows", range(ROWS + 1))
def test_a_crash_after_any_row_leaves_a_broker_that_works(rows: int):
    rig = crashed_after(rows)
    if not rig.broker.queues:
        return
    checkers(rig)

    # All that is undecided can be decided, once.
    half = [one.message_id for one in listed(rig)]
    active = rig.counts()["active"]
    fresh = [one for one in half if decide(rig, (one, COMMIT)) == []]
    assert rig.counts()["half"] == 0
    assert rig.counts()["active"] == active + len(fresh)
    assert decide(rig, *[(one, COMMIT) for one in fresh]) == [] if fresh else True
    rig.settle(400_000)
    assert asked(rig) == []


@pytest.mark.parametrize("rows", range(ROWS + 1))
def test_checks_go_on_after_a_crash_after_any_row(rows: int):
    rig = crashed_after(rows)
    if not rig.broker.queues:
        return
    checkers(rig)
    most = rig.queue().index.attributes.max_checks
    expected = sum(most - min(most, one.checks) for one in listed(rig))
    rig.now_ms = max([START_MS, rig.queue().index.last_enqueue_ms])
    rig.set(retention_ms=1_296_000_000)

    for _ in range(40):
        rig.settle(300_000)

    assert len(rig.checks) == expected
    assert [one.checks for one in listed(rig)] == [max(most, one.checks) for one in listed(rig)]


def test_a_restart_from_a_checkpoint_and_what_follows_comes_to_the_same():
    rig = transactional(Limits(tick_items=4))
    ids: list[int] = []
    taken: list[list[AnyPart]] = []

    def step(rig: Rig) -> None:
        taken.append(rig.checkpoint())
        for parts in taken:
            again = rig.crash_after(parts)
            assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
            checkers(again)
            again.now_ms = rig.now_ms
            again.settle(300_000)
            asked_about = {check.message.position for check in again.checks}
            may_be = set(again.queue().index.half)
            assert asked_about == may_be, "a half message that was due was forgotten"

    ids += rig.send_half(b"1", b"2", b"3", b"4", b"5")
    step(rig)
    decide(rig, (ids[0], COMMIT), (ids[1], ROLL_BACK))
    step(rig)
    rig.settle(6000)  # due, and nobody there
    step(rig)
    checkers(rig)
    rig.settle()
    step(rig)
    decide(rig, (ids[2], UNKNOWN))
    step(rig)
    checkers(rig, False)
    rig.settle(20_000)
    step(rig)
    rig.set(max_checks=20)
    decide(rig, (ids[3], COMMIT))
    step(rig)


GAPS = [(lsn,) for lsn in range(1, ROWS + 1)] + list(pairwise(range(1, ROWS + 1)))


@pytest.mark.parametrize("missing", GAPS, ids=str)
def test_any_rows_may_be_missing(missing: tuple[int, ...]):
    broker = Broker(KEY, EVENTFUL.limits)
    broker.begin_salvage()
    log = without(missing)
    for lsn, record in log.records():
        broker.replay(record, lsn)
        broker.check_invariants()
    log.append(broker.recovered(lost=True))
    rig = Rig(EVENTFUL.limits, broker, log)
    rig.now_ms = EVENTFUL.now_ms
    if not broker.queues:
        return
    if not rig.queue().index.attributes.transactional:
        return
    half = listed(rig)
    for one in half:
        assert decide(rig, (one.message_id, COMMIT)) == [] or one.enqueue_ms + 600_000 <= rig.now_ms
    rig.settle(10_000)
    broker.check_invariants()
