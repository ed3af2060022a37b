"""The checker's rules about half messages: good histories pass, bad histories are found."""

from collections.abc import Mapping

import pytest

from support.crash.promises.builders import DONE, MS, REFUSED, UNKNOWN, Q, broken, delete, delivery, queue_with, receive
from support.crash.promises.history import (
    Check,
    Decision,
    EndTransactions,
    ListHalf,
    Operation,
    Outcome,
    Receive,
    RegisterChecker,
    Send,
)
from support.crash.promises.ledger import Rule
from support.crash.promises.transaction_rules import MOST_FORMER

COMMIT, ROLL_BACK = Decision.COMMIT, Decision.ROLL_BACK


def half(at: int, *bodies: bytes, ids: tuple[int, ...] = (), outcome: Outcome = DONE, first_check_ms: int = 0) -> Send:
    return Send(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        bodies=bodies,
        half=True,
        first_check_ms=first_check_ms,
        message_ids=ids,
    )


def end(
    at: int,
    decision: Decision,
    *,
    number: int = 7,
    outcome: Outcome = DONE,
    failed: Mapping[int, str] | None = None,
) -> EndTransactions:
    return EndTransactions(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        decisions={number: decision},
        failed=failed or {},
    )


def refused(at: int, decision: Decision, error: str) -> EndTransactions:
    return end(at, decision, failed={7: error})


def check(at: int, *, body: bytes = b"a", number: int = 7, attempt: int = 1, age: int = 1_000) -> Check:
    return Check(
        queue=Q,
        called_ns=at * MS,
        answered_ns=at * MS,
        message_id=number,
        body=body,
        headers=None,
        enqueue_ms=5,
        age_ms=age,
        attempt=attempt,
    )


def listed(at: int, *ids: int) -> ListHalf:
    return ListHalf(queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS, start=0, message_ids=ids)


def received(at: int) -> Receive:
    return receive(at, delivery(at, b"a", 7, handle=1, enqueued=at))


SENT = half(0, b"a", ids=(7,))
DELIVERED = received(300), delete(400, 1)


def test_a_committed_message_that_is_delivered_is_good() -> None:
    assert broken(SENT, end(100, COMMIT), *DELIVERED) == set()
    assert broken(SENT, end(100, COMMIT, outcome=UNKNOWN), *DELIVERED) == set()


def test_a_committed_message_that_is_never_seen_is_lost() -> None:
    assert broken(SENT, end(100, COMMIT)) == {Rule.SEND_KEPT}
    assert broken(SENT, end(100, COMMIT, outcome=UNKNOWN)) == set()


def test_a_committed_message_that_is_seen_and_not_deleted_is_lost() -> None:
    assert broken(SENT, end(100, COMMIT), received(300)) == {Rule.SEND_KEPT}


def test_a_message_known_to_be_committed_by_a_refusal_is_lost_when_it_is_never_seen() -> None:
    attempts = end(100, COMMIT, outcome=UNKNOWN), refused(200, ROLL_BACK, "already_committed")

    assert broken(SENT, *attempts) == {Rule.SEND_KEPT}
    assert broken(SENT, *attempts, *DELIVERED) == set()


def test_a_message_that_is_rolled_back_is_never_seen() -> None:
    assert broken(SENT, end(100, ROLL_BACK)) == set()
    assert Rule.DECISION_KEPT in broken(SENT, end(100, ROLL_BACK), *DELIVERED)


def test_an_undecided_message_that_is_delivered_is_found() -> None:
    assert broken(SENT, *DELIVERED) == {Rule.DECISION_KEPT, Rule.HALF_HIDDEN}
    assert broken(SENT, end(100, COMMIT, outcome=REFUSED), *DELIVERED) == {Rule.DECISION_KEPT, Rule.HALF_HIDDEN}


def test_a_message_that_is_delivered_before_its_commit_is_found() -> None:
    assert Rule.HALF_HIDDEN in broken(SENT, *DELIVERED, end(500, COMMIT))


def test_a_message_that_stands_where_its_half_message_stood_is_found() -> None:
    early = receive(900, delivery(900, b"a", 7, handle=1, enqueued=5)), delete(1000, 1)

    assert broken(SENT, end(800, COMMIT), *early) == {Rule.HALF_HIDDEN}


def test_two_decisions_that_both_work_are_found() -> None:
    assert Rule.DECISION_KEPT in broken(SENT, end(100, COMMIT), end(200, ROLL_BACK), *DELIVERED)


def test_a_decision_may_be_repeated_and_the_opposite_is_refused() -> None:
    again = end(100, COMMIT), end(120, COMMIT), refused(150, ROLL_BACK, "already_committed")

    assert broken(SENT, *again, *DELIVERED) == set()


@pytest.mark.parametrize(
    "operation",
    [
        refused(200, COMMIT, "already_committed"),
        refused(200, COMMIT, "already_rolled_back"),
        refused(200, COMMIT, "transaction_not_found"),
    ],
)
def test_a_false_refusal_is_found(operation: Operation) -> None:
    assert Rule.DECISION_KEPT in broken(SENT, end(100, COMMIT), operation, *DELIVERED)


def test_an_unknown_outcome_is_one_of_the_two_for_ever() -> None:
    unanswered = SENT, end(100, COMMIT, outcome=UNKNOWN)

    assert broken(*unanswered, end(200, ROLL_BACK)) == set()
    assert Rule.DECISION_KEPT in broken(*unanswered, end(200, ROLL_BACK), *DELIVERED)


# ---------------------------------------------------------------- lists


def test_an_undecided_message_is_among_the_half_messages() -> None:
    assert broken(SENT, listed(500, 7)) == set()
    assert broken(SENT, listed(500)) == {Rule.HALF_KEPT}
    assert broken(SENT, end(100, ROLL_BACK, outcome=UNKNOWN), listed(500)) == set()


def test_an_unanswered_half_message_that_was_asked_for_is_not_lost_any_more() -> None:
    unanswered = half(0, b"a", outcome=UNKNOWN)

    assert broken(unanswered, listed(500)) == set()
    assert broken(unanswered, check(1200), listed(1500)) == {Rule.HALF_KEPT}


def test_a_decided_message_among_the_half_messages_is_found() -> None:
    assert Rule.DECISION_KEPT in broken(SENT, end(100, ROLL_BACK), listed(500, 7))


def test_a_message_that_is_listed_and_then_committed_is_good() -> None:
    assert broken(SENT, listed(100, 7), end(200, COMMIT), *DELIVERED) == set()


def test_a_batch_of_half_messages_is_whole() -> None:
    batch = half(0, b"a", b"b", outcome=UNKNOWN)

    assert Rule.BATCH_WHOLE in broken(batch, end(100, COMMIT), *DELIVERED)
    seen = check(250, body=b"b", number=8), end(270, ROLL_BACK, number=8)
    assert broken(batch, end(100, COMMIT), *seen, *DELIVERED) == set()


# ---------------------------------------------------------------- checks

CHECKED = queue_with(Q, transactional=True, first_check_ms=1_000, max_checks=2)


def test_checks_of_an_undecided_message_are_good() -> None:
    checks = check(1100), check(3200, attempt=2, age=3_000)

    assert broken(CHECKED, SENT, *checks, end(3300, ROLL_BACK)) == set()
    assert broken(CHECKED, SENT, *checks, check(3300, attempt=3, age=3_100), end(3400, ROLL_BACK)) == set()


def test_checks_beyond_the_limit_are_good_for_each_checker_that_registers() -> None:
    checks = [check(1100 + 200 * attempt, attempt=attempt, age=1_000 + 200 * attempt) for attempt in range(1, 8)]
    checkers = [RegisterChecker(queue=Q, called_ns=one.called_ns, answered_ns=one.called_ns) for one in checks[5:]]

    assert broken(CHECKED, SENT, *checks, *checkers, end(3300, ROLL_BACK)) == set()
    assert broken(CHECKED, SENT, *checks, *checkers[:1], end(3300, ROLL_BACK)) == {Rule.CHECK_TRUE}


@pytest.mark.parametrize(
    "checks",
    [
        (check(1100, body=b"b"),),
        (check(600, age=500),),
        (check(1100), check(3200, age=3_000)),
        (check(1100), check(3200, attempt=2, age=3_000), check(7200, attempt=3 + MOST_FORMER, age=7_000)),
    ],
)
def test_a_false_check_is_found(checks: tuple[Check, ...]) -> None:
    assert broken(CHECKED, SENT, *checks, end(7300, ROLL_BACK)) == {Rule.CHECK_TRUE}


def test_a_half_message_may_have_a_first_check_of_its_own() -> None:
    late = half(0, b"a", ids=(7,), first_check_ms=2_000)

    assert broken(CHECKED, late, check(1100), end(1300, ROLL_BACK)) == {Rule.CHECK_TRUE}
    assert broken(CHECKED, late, check(2100, age=2_000), end(2300, ROLL_BACK)) == set()


def test_a_check_long_after_the_decision_is_found() -> None:
    assert broken(CHECKED, SENT, end(100, ROLL_BACK), check(1_200)) == set()
    assert broken(CHECKED, SENT, end(100, ROLL_BACK), check(5_000)) == {Rule.CHECK_TRUE}


def test_a_check_with_another_id_was_stored_twice() -> None:
    assert Rule.STORED_ONCE in broken(CHECKED, SENT, check(1100, number=8), end(1200, ROLL_BACK))
