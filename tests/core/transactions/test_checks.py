"""Checks of half messages: times, numbers and receivers of checks."""

import pytest

from cmqd.core.limits import Limits
from cmqd.core.operations.transactions.half_messages import COMMIT, ROLL_BACK, UNKNOWN
from cmqd.core.outcome import Waiting
from cmqd_segment.records import TransactionsChecked
from support.core import alone
from support.core.builders import ACCOUNT, START_MS
from support.core.half_messages import ask, asked, checkers, decide, listed, transactional
from support.core.invariants import check_broker


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


def test_no_check_is_sent_or_counted_without_a_checker():
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


def test_a_checker_that_went_away_with_the_last_check_is_replaced_each_time():
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
    check_broker(rig.broker)
    assert asked(rig) == []
    rig.settle()

    assert rig.bodies() == [b"1"]
    rig.settle(100_000)
    assert asked(rig) == []


def test_a_checker_that_leaves_while_a_page_is_read_gets_no_check():
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


def test_a_restart_after_a_greater_number_of_checks_sends_no_check_before_its_time():
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
    monkeypatch.setattr("cmqd.core.operations.transactions.transaction_checks.CHECK_SWEEP_ABOVE", 100)
    rig = transactional()
    rig.create("gone", transactional=True)
    for first_check_ms in (3_500_000, 3_550_000):
        done = alone.send_half(rig.broker, ACCOUNT, "gone", [b"gone"], None, first_check_ms, 0, 0, rig.now_ms)
        rig.done(done)
    rig.delete_queue("gone")
    kept = rig.send_half(*[b"kept"] * 5)
    checkers(rig)
    rig.settle(5000)
    decide(rig, (kept[0], ROLL_BACK))
    for _ in range(100):
        rig.now_ms += 100
        decide(rig, *[(one, ROLL_BACK) for one in rig.send_half(*[b"x"] * 10, first_check_ms=3_600_000)])

    assert rig.broker.facts.queues.checks.size < 300
    rig.checks.clear()
    rig.settle(100_000)
    assert len({check.message.position for check in rig.checks}) == 4
