"""Half messages: sending, retention, clearing, bodies in memory, and lists for operators."""

import pytest

from cmqd.core.domain_errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    BacklogFull,
    InvalidArgument,
    MessageTooLarge,
    NotTransactional,
    QueueNotFound,
    TransactionNotFound,
)
from cmqd.core.limits import Limits
from cmqd.core.operations.transactions.half_messages import COMMIT, ROLL_BACK, UNKNOWN
from cmqd.core.outcome import Waiting
from cmqd_types.messages import HalfMessage
from support.core import alone
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.half_messages import ask, asked, checkers, decide, kinds, listed, transactional
from support.core.invariants import check_broker

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
    ids = list(rig.done(alone.send_half(rig.broker, *args)))

    assert list(rig.done(alone.send_half(rig.broker, *args))) == ids
    again = rig.crash()
    assert list(again.done(alone.send_half(again.broker, *args))) == ids
    assert again.counts()["half"] == 2


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
    check_broker(rig.broker)
    rig.advance(10_000)

    assert rig.counts()["half"] == 0
    assert kinds(decide(rig, (one, ROLL_BACK), (two, COMMIT))) == [
        (one, TransactionNotFound),
        (two, TransactionNotFound),
    ]
    assert asked(rig) == []


@pytest.mark.parametrize("crashed", [False, True])
def test_the_oldest_decisions_are_forgotten_when_there_are_very_many(crashed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd_fold.half_messages.MAX_RUNS", 20)
    monkeypatch.setattr("cmqd_fold.half_messages.FORGET_STEP", 4)
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


def test_undecided_messages_are_never_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd_fold.half_messages.MAX_RUNS", 20)
    monkeypatch.setattr("cmqd_fold.half_messages.FORGET_STEP", 4)
    rig = transactional()
    ids: list[int] = []
    for _ in range(100):
        rig.send(b"between")
        ids += rig.send_half(b"1")
    rig = rig.crash()

    assert [one.message_id for one in listed(rig)] == ids
    assert decide(rig, *[(one, ROLL_BACK) for one in ids]) == []
    check_broker(rig.broker)


# ---------------------------------------------------------------- bodies in memory


def test_bodies_of_half_messages_take_a_share_of_the_window():
    rig = transactional(Limits(window_bytes=8 * 1320))
    ids = [rig.send_half(bytes(1000))[0] for _ in range(5)]
    check_broker(rig.broker)
    assert list(rig.runtime().window.half) == [3, 4]

    assert [isinstance(ask(rig, (one, COMMIT))[1], Waiting) for one in ids] == [True, True, True, False, False]
    rig.answer_reads()

    check_broker(rig.broker)
    assert rig.counts()["active"] == 5


def test_half_messages_in_memory_and_in_the_log_can_be_rolled_back_together():
    rig = transactional(Limits(window_bytes=8 * 1320))
    ids = [rig.send_half(bytes(1000))[0] for _ in range(5)]

    assert decide(rig, *[(one, ROLL_BACK) for one in ids]) == []

    assert not rig.runtime().window.half
    assert rig.counts()["half"] == 0


def test_half_messages_make_room_for_receivable_messages():
    rig = transactional(Limits(window_bytes=4 * 1320))
    rig.send_half(bytes(1000))
    for _ in range(4):
        rig.send(bytes(1000))
    check_broker(rig.broker)

    assert not rig.runtime().window.half
    assert len(rig.runtime().window.messages) == 4


def test_another_queue_makes_room_of_half_messages():
    rig = transactional(Limits(window_bytes=4 * 1320))
    (message_id,) = rig.send_half(bytes(1000))
    rig.create("other")
    for _ in range(4):
        rig.send(bytes(1000), name="other")
    check_broker(rig.broker)
    assert not rig.runtime().window.half

    assert decide(rig, (message_id, COMMIT)) == []
    assert rig.bodies() == [bytes(1000)]


def test_one_too_large_for_the_share_is_not_kept():
    rig = transactional(Limits(window_bytes=4 * 1320))
    (message_id,) = rig.send_half(bytes(1001))

    assert not rig.runtime().window.half
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
