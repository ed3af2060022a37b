"""Delays beyond CMQ's hour, times in place of delays, and the retention as a limit of both."""

import pytest

from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.facts.delay_timers import SPAN_MS
from cmqd.core.limits import Limits
from cmqd_segment.records import ClockOffset, MessagesSent
from support.core.builders import START_MS, Rig, reread
from support.core.facts import facts
from support.core.invariants import check_broker

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LONG = Limits(max_delay_ms=15 * DAY_MS)


def long_rig(limits: Limits = LONG, retention_ms: int = 15 * DAY_MS, **attributes: int) -> Rig:
    rig = Rig(limits)
    rig.create("q", retention_ms=retention_ms, **attributes)
    return rig


def refusal(rig: Rig, **arguments: int | list[int]) -> InvalidArgument:
    before = facts(rig.broker)
    with pytest.raises(InvalidArgument) as refused:
        rig.send(b"a", **arguments)  # type: ignore[arg-type]
    assert facts(rig.broker) == before, "a refused send left a trace"
    return refused.value


# ---------------------------------------------------------------------- limits of delays


def test_a_message_becomes_active_after_ten_days_and_not_before():
    rig = long_rig()
    rig.send(b"later", delay_ms=10 * DAY_MS)
    rig.send(b"sooner", delay_ms=1000)

    rig.settle(1000)
    assert rig.bodies() == [b"sooner"]
    rig.settle(10 * DAY_MS - 1001)
    assert rig.counts()["delayed"] == 1
    rig.settle(21)

    assert rig.bodies() == [b"later"]


def test_a_tick_that_does_a_single_item_gets_on_with_far_delays():
    rig = long_rig(Limits(max_delay_ms=15 * DAY_MS, tick_items=1))
    rig.send(b"1", b"2", b"3", delay_ms=[9 * DAY_MS, 9 * DAY_MS, 9 * DAY_MS + 20])

    rig.settle(9 * DAY_MS + 40)

    assert sorted(rig.bodies()) == [b"1", b"2", b"3"]


def test_beyond_the_limit_a_delay_is_refused_with_the_limit():
    assert "delay_ms is 1 h 1 ms; the range is 0 s to 1 h" in str(refusal(long_rig(Limits()), delay_ms=HOUR_MS + 1))
    ahead = refusal(long_rig(Limits()), at_ms=START_MS + HOUR_MS + 1)
    assert ", 1 h 1 ms ahead; this server takes a delay of at most 1 h" in str(ahead)
    assert "0 s to 15 d" in str(refusal(long_rig(), delay_ms=15 * DAY_MS + 1))


@pytest.mark.parametrize("arguments", [{"delay_ms": DAY_MS}, {"delay_ms": [DAY_MS]}, {"at_ms": START_MS + DAY_MS}])
def test_a_delay_that_is_not_shorter_than_the_retention_is_refused_and_both_are_named(
    arguments: dict[str, int | list[int]],
):
    rig = long_rig(retention_ms=DAY_MS)

    error = refusal(rig, **arguments)

    assert "a delay of 1 d is not shorter than the retention of queue 'q', 1 d" in str(error)
    assert error.details["field"] == "delay_ms"


def test_a_delay_just_shorter_than_the_retention_is_taken():
    rig = long_rig(retention_ms=DAY_MS)

    rig.send(b"a", delay_ms=DAY_MS - 1)
    rig.send(b"b", at_ms=rig.now_ms + DAY_MS - 1)

    assert rig.counts()["delayed"] == 2


def test_the_rule_holds_for_short_delays_too():
    rig = long_rig(Limits(), retention_ms=60_000)

    error = refusal(rig, delay_ms=60_000)

    assert "1 min is not shorter than the retention" in str(error)


def test_a_queue_cannot_have_a_delay_of_its_retention():
    rig = Rig()
    with pytest.raises(InvalidArgument, match=r"delay_ms \(1 min\) must be less than retention_ms \(1 min\)"):
        rig.create(delay_ms=60_000, retention_ms=60_000)
    rig.create(delay_ms=59_999, retention_ms=60_000)
    with pytest.raises(InvalidArgument, match="must be less than retention_ms"):
        rig.set(delay_ms=60_000)


def test_a_message_whose_retention_was_cut_expires_while_it_is_delayed():
    rig = long_rig()
    rig.send(b"a", delay_ms=10 * DAY_MS)

    rig.set(retention_ms=2 * DAY_MS)
    rig.settle(2 * DAY_MS + 60_000)

    assert set(rig.counts().values()) == {0}
    assert rig.broker.facts.queues.delays.size == 0, "the entry of the delay stayed in memory"
    check_broker(rig.broker)


# ---------------------------------------------------------------------- at a time


def test_a_message_becomes_active_at_its_time():
    rig = long_rig()
    rig.send(b"a", b"b", at_ms=rig.now_ms + 3 * DAY_MS)

    rig.settle(3 * DAY_MS - 1)
    assert rig.counts()["active"] == 0
    rig.settle(21)

    assert rig.bodies() == [b"a", b"b"]


@pytest.mark.parametrize("before_ms", [0, 1, START_MS])
def test_at_a_time_that_has_passed_a_message_is_active_at_once(before_ms: int):
    rig = long_rig()

    rig.send(b"a", at_ms=rig.now_ms - before_ms)

    assert rig.bodies() == [b"a"]


def test_a_time_is_in_place_of_the_queues_own_delay():
    rig = long_rig(delay_ms=HOUR_MS)

    rig.send(b"now", at_ms=rig.now_ms)

    assert rig.bodies() == [b"now"]


def test_a_delay_and_a_time_together_are_refused():
    assert "delay_ms or at_ms, not both" in str(refusal(long_rig(), delay_ms=5, at_ms=START_MS + 5))


def test_a_repeat_gets_its_ids_whatever_time_it_is():
    rig = long_rig(retention_ms=5 * DAY_MS)
    ids = rig.send(b"a", at_ms=START_MS + 60_000, session=7, sequence=1)

    rig.settle(120_000)

    assert rig.send(b"a", at_ms=START_MS + 60_000, session=7, sequence=1) == ids
    assert rig.bodies() == [b"a"]


def test_the_time_is_that_of_the_queue_after_a_step_back_of_the_clock():
    """Times of a queue never decrease: the delay counts from the send time that the record has."""
    rig = long_rig()
    rig.now_ms += 5000
    rig.send(b"earlier")
    rig.now_ms -= 5000

    rig.send(b"a", at_ms=rig.now_ms + 5000)

    assert rig.counts()["active"] == 2


# ---------------------------------------------------------------------- other ways into a queue


def test_a_committed_half_message_has_no_delay():
    rig = Rig(LONG)
    rig.create(retention_ms=15 * DAY_MS, delay_ms=HOUR_MS, transactional=True)
    (message_id,) = rig.send_half(b"half")

    assert rig.end(1, message_id) == []

    assert rig.bodies() == [b"half"]


def test_a_dead_letter_has_no_delay_and_its_age_counts_from_the_end_of_its_delay():
    rig = Rig(LONG)
    rig.create("dead", delay_ms=HOUR_MS)
    rig.create(retention_ms=15 * DAY_MS, dead_letter_queue="dead", dead_letter_after_ms=300_000)
    rig.send(b"a", delay_ms=10 * DAY_MS)

    rig.settle(10 * DAY_MS + 20)
    rig.settle(299_000)
    assert rig.counts()["active"] == 1
    rig.settle(3000)

    assert rig.counts()["active"] == 0
    assert rig.bodies("dead") == [b"a"]


def test_a_message_whose_retention_ends_before_its_dead_letter_age_expires():
    rig = Rig(LONG)
    rig.create("dead")
    rig.create(retention_ms=DAY_MS, dead_letter_queue="dead", dead_letter_after_ms=12 * HOUR_MS)
    rig.send(b"a", delay_ms=DAY_MS - HOUR_MS)

    rig.settle(DAY_MS - HOUR_MS + 100)
    assert rig.counts()["active"] == 1
    rig.settle(HOUR_MS + 60_000)

    assert rig.counts()["active"] == 0
    assert rig.counts("dead")["active"] == 0


def test_beyond_max_delayed_a_long_delay_keeps_its_time():
    rig = long_rig(max_delayed=1)
    rig.send(b"first", delay_ms=1000)
    rig.send(b"second", delay_ms=10 * DAY_MS)

    rig.settle(1100)
    assert rig.counts()["delayed"] == 1
    rig.settle(10 * DAY_MS - 1101)
    assert rig.counts()["delayed"] == 1
    rig.settle(21)

    assert rig.counts() | {"delayed": 0} == rig.counts()


def test_beyond_max_delayed_a_time_outlives_a_limit_that_was_lowered():
    rig = long_rig(max_delayed=1)
    rig.send(b"first", delay_ms=1000)
    rig.send(b"second", delay_ms=10 * DAY_MS)

    rig.limits = Limits()
    rig = rig.crash()
    rig.settle(2 * DAY_MS)

    assert rig.counts()["delayed"] == 1


# ---------------------------------------------------------------------- restarts


def with_delays() -> Rig:
    """A queue with far delays, near delays, and both in a span that is moving."""
    rig = long_rig()
    for days in range(1, 14):
        rig.send(b"%d" % days, b"at", delay_ms=[days * DAY_MS, days * DAY_MS + 7])
    rig.send(b"soon", delay_ms=5000)
    rig.settle(DAY_MS - SPAN_MS)
    return rig


def test_long_delays_survive_a_crash_and_a_checkpoint():
    rig = with_delays()
    taken = reread(rig.checkpoint())
    rig.send(b"later", delay_ms=9 * DAY_MS)

    for again in (rig.crash(), rig.crash_after(taken)):
        assert facts(again.broker) == facts(rig.broker)
        again.settle(13 * DAY_MS)
        assert again.counts()["delayed"] == 0
        check_broker(again.broker)


def test_a_crash_after_any_row_keeps_the_delays_of_the_rows_before():
    rig = with_delays()

    for rows in range(1, len(rig.log.rows) + 1):
        again = rig.crash_after_row(rows)
        records = [record for row in rig.log.rows[:rows] for record in row]
        sent = sum(len(record.sizes) for record in records if isinstance(record, MessagesSent))
        if again.broker.facts.queues.by_id:
            assert again.counts()["delayed"] + again.counts()["active"] == sent
        check_broker(again.broker)


def test_delays_that_ended_in_a_downtime_end_at_the_start():
    rig = with_delays().crash()

    rig.settle(5 * DAY_MS + SPAN_MS + 20)

    assert rig.counts()["active"] == 2 * 6 + 1


def test_after_a_step_back_long_delays_end_before_the_retention_does():
    rig = Rig(LONG)
    rig.now_ms += 365 * DAY_MS
    rig.create(retention_ms=4 * DAY_MS)
    rig.send(b"a", delay_ms=3 * DAY_MS)

    rig = rig.crash(step_to_ms=START_MS)
    taken = reread(rig.checkpoint())

    for again in (rig.crash(), rig.crash_after(taken)):
        assert facts(again.broker) == facts(rig.broker)
    rig.settle(4 * DAY_MS - 20)
    assert rig.counts()["active"] == 1


def test_a_step_back_goes_by_the_limit_of_then():
    """A replay under a changed setting must come to the same times."""
    rig = Rig(LONG)
    rig.now_ms += 365 * DAY_MS
    rig.create(retention_ms=15 * DAY_MS)
    rig.send(b"a", delay_ms=10 * DAY_MS)
    rig = rig.crash(step_to_ms=START_MS)
    assert [record.max_delay_ms for _, record in rig.log.records() if isinstance(record, ClockOffset)] == [15 * DAY_MS]

    again = rig
    again.limits = Limits()
    again = again.crash()

    assert facts(again.broker) == facts(rig.broker)


def test_memory_of_a_cleared_queue_is_given_back():
    rig = long_rig()
    rig.send(*[b"a"] * 100, delay_ms=10 * DAY_MS)
    assert rig.broker.facts.queues.delays.size == 100

    rig.clear()

    assert rig.broker.facts.queues.delays.size == 0
