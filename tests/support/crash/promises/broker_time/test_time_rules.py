"""Broker time of histories with takeovers: time that a takeover lost is no fault, and each other lie about time is.

Broker time is the machine's clock less a lag; an operation is called at ``at`` ms of the machine's clock.
"""

from dataclasses import replace

import pytest

from support.crash.promises.broker_time.bounds import ShownTime
from support.crash.promises.builders import (
    MS,
    REFUSED,
    UNKNOWN,
    change,
    delete,
    delivery,
    receive,
    send,
)
from support.crash.promises.checker import check
from support.crash.promises.history import History, Operation, Receive
from support.crash.promises.ledger import Rule

FIRST_LEAD, SECOND_LEAD = -50, 4_000


def sight(at: int, body: bytes, *, lag: int = 0, count: int = 1, first: int | None = None, handle: int = 0) -> Receive:
    """A receive of ``body``, which was sent at 0; the broker is ``lag`` ms behind."""
    shown = delivery(at - lag, body, body[0], handle=handle or at, count=count, first=first)
    return receive(at, shown)


def broken(*operations: Operation) -> set[Rule]:
    """Return the broken rules of two leads."""
    sent = [send(0, bytes([number]), ids=(number,)) for number in b"abc"]
    history = History(0.0, [*sent, *operations], leads_ns=[FIRST_LEAD * MS, SECOND_LEAD * MS])
    return {violation.rule for violation in check(history, drained=False)}


# ---------------------------------------------------------------- handles and leases


def test_a_lease_goes_on_for_the_time_that_a_takeover_lost() -> None:
    """The lease ends at 3,105 of broker time, which stood still from 2,115 to 4,000 of the machine's."""
    taken, lost = sight(2_100, b"a", handle=1), 1_880

    assert broken(taken, sight(4_100, b"b", lag=lost), delete(4_900, 1), sight(5_100, b"c", lag=lost)) == set()


def test_a_handle_does_not_work_after_broker_time_was_seen_past_its_lease() -> None:
    taken, lost = sight(2_100, b"a", handle=1), 1_880
    seen = sight(5_000, b"b", lag=lost)

    assert broken(taken, seen, delete(5_020, 1)) == {Rule.HANDLE_MEANING}


def test_a_handle_does_not_work_after_its_lease_although_no_answer_shows_its_end() -> None:
    """The first receive of the new leader is answered after the delete."""
    taken, seen = sight(2_100, b"a", handle=1), sight(4_300, b"b", lag=100)

    assert broken(taken, delete(4_050, 1), seen) == {Rule.HANDLE_MEANING}
    assert broken(sight(3_000, b"a", handle=1), delete(4_250, 1), seen) == set(), "a margin"
    assert broken(sight(2_800, b"a", handle=1), delete(4_250, 1), seen) == {Rule.HANDLE_MEANING}


def test_a_handle_is_not_refused_before_its_lease_is_over_by_the_clock_of_the_machine() -> None:
    taken, seen = sight(2_100, b"a", handle=1), sight(2_000, b"b")

    assert broken(seen, taken, delete(2_800, 1, failed=(1,))) == {Rule.HANDLE_MEANING}
    assert broken(seen, taken, delete(2_900, 1, failed=(1,))) == set()


def test_a_leader_that_has_lost_the_lead_may_tell_a_later_time_than_its_successor() -> None:
    taken, lost = sight(2_100, b"a", handle=1), 1_880
    refused = delete(3_200, 1, failed=(1,))

    assert broken(taken, refused, sight(4_100, b"b", lag=lost)) == set()


def test_an_unanswered_change_of_a_lease_counts_from_the_broker_time_that_a_takeover_lost() -> None:
    taken, lost = sight(3_900, b"a", handle=1), 1_990
    seen = sight(6_100, b"b", lag=lost)
    changed = change(6_120, 1, 100, outcome=UNKNOWN)

    def again(at: int) -> Receive:
        return sight(at, b"a", lag=lost, count=2, first=3_905, handle=2)

    assert broken(taken, seen, changed, again(6_220)) == set()
    assert broken(taken, seen, changed, again(6_190)) == {Rule.ONE_LEASE}


def test_a_message_is_not_leased_twice_whatever_a_takeover_lost() -> None:
    taken, lost = sight(2_100, b"a", handle=1), 1_880

    assert broken(taken, sight(4_100, b"a", lag=lost, count=2, first=2_105, handle=2)) == {Rule.ONE_LEASE}


# ---------------------------------------------------------------- broker time itself


def test_broker_time_does_not_run_back_at_a_takeover() -> None:
    assert broken(sight(2_100, b"a"), sight(4_100, b"b", lag=2_001)) == {Rule.TIME_KEPT}
    assert broken(sight(2_100, b"a"), sight(4_100, b"b", lag=2_000)) == set()


def test_broker_time_is_not_ahead_after_a_takeover() -> None:
    assert broken(sight(2_100, b"a"), sight(4_100, b"b", lag=-300)) == {Rule.TIME_KEPT}
    assert broken(sight(2_100, b"a"), sight(4_100, b"b", lag=-200)) == set()


def test_broker_time_stands_still_at_takeovers_alone() -> None:
    """Ten seconds besides are those of a process that is held up."""
    lost = 1_880

    assert broken(sight(2_100, b"a"), sight(30_100, b"b", lag=lost + 9_000)) == set()
    assert broken(sight(2_100, b"a"), sight(30_100, b"b", lag=lost + 10_500)) == {Rule.TIME_KEPT}


def test_without_leads_the_wall_clock_of_the_machine_is_broker_time() -> None:
    operations: list[Operation] = [send(0, b"a", ids=(97,)), sight(2_100, b"a", handle=1), delete(3_500, 1)]

    assert {violation.rule for violation in check(History(0.0, operations), drained=False)} == {Rule.HANDLE_MEANING}


def test_broker_time_is_bounded_by_the_receives_before_and_by_those_of_the_same_leader() -> None:
    late = replace(sight(1_000, b"a"), answered_ns=3_000 * MS)
    seen = [late, sight(2_000, b"b"), sight(4_200, b"c", lag=1_500), receive(5_000), receive(5_000, outcome=REFUSED)]
    time = ShownTime(History(0.0, [*seen], leads_ns=[FIRST_LEAD * MS, SECOND_LEAD * MS]))

    assert time.earliest_ms(2_010 * MS) == 2_005
    # Broker time was 1,505 ms behind at the answer under the second leader; the slew is up to 30 ms.
    assert time.earliest_ms(4_000 * MS) == pytest.approx(4_000 - 250 - 1_505, abs=3)
    assert time.earliest_ms(9_000 * MS) == pytest.approx(9_000 - 250 - 1_505, abs=30)
    assert [time.reached_ns(ms) / MS for ms in (1_005, 2_005, 2_006)] == [2_010, 2_010, 4_210]
    assert time.latest_ms(4_950 * MS) == 4_950 + 250 + 25
    assert time.passed_ns(4_950) / MS == 4_700
