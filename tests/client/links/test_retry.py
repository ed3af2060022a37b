"""The retry policy: pure decisions."""

from math import inf

import pytest

from cmqd_client import CmqError
from cmqd_client.errors import (
    AuthenticationFailed,
    Busy,
    ConnectionLost,
    OutcomeUnknown,
    QueueNotFound,
    RequestTimeout,
    ServerUnreachable,
)
from cmqd_client.links.retry import Repeat, RetryPolicy, final_error, may_have_happened

POLICY = RetryPolicy(retries=2, first_delay=0.1, max_delay=1.0)
AMPLE = 60.0


def test_waits_double_up_to_the_longest() -> None:
    assert [POLICY.delay(attempt, 0.0) for attempt in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_chance_shortens_a_wait_by_up_to_a_half() -> None:
    assert POLICY.delay(2, 0.5) == pytest.approx(0.15)
    assert POLICY.delay(2, 0.999999) == pytest.approx(0.1, rel=1e-3)


def test_a_night_of_attempts_overflows_nothing() -> None:
    assert POLICY.delay(100_000, 0.0) == 1.0


@pytest.mark.parametrize(
    ("error", "repeated"),
    [
        # not carried out; a later attempt may succeed
        (Busy("x"), {Repeat.READ, Repeat.SAFE, Repeat.ONCE}),
        (ServerUnreachable("x"), {Repeat.READ, Repeat.SAFE, Repeat.ONCE}),
        # perhaps carried out
        (ConnectionLost("x"), {Repeat.READ, Repeat.SAFE}),
        (RequestTimeout("x"), {Repeat.READ, Repeat.SAFE}),
        (OutcomeUnknown("x"), {Repeat.READ, Repeat.SAFE}),
        # a later attempt fails too
        (QueueNotFound("x"), set[Repeat]()),
        (AuthenticationFailed("x"), set[Repeat]()),
    ],
)
def test_what_is_repeated_depends_on_the_error_and_on_the_operation(error: CmqError, repeated: set[Repeat]) -> None:
    assert {repeat for repeat in Repeat if POLICY.next_attempt(error, repeat, 1, AMPLE, 0.0) is not None} == repeated


def test_repeats_are_counted() -> None:
    error = ConnectionLost("x")
    assert [POLICY.next_attempt(error, Repeat.SAFE, attempt, AMPLE, 0.0) for attempt in (1, 2, 3)] == [0.1, 0.2, None]
    assert RetryPolicy(retries=0).next_attempt(error, Repeat.SAFE, 1, AMPLE, 0.0) is None


def test_without_a_count_the_time_limits_the_repeats() -> None:
    policy = RetryPolicy(first_delay=0.1, max_delay=1.0)
    assert policy.next_attempt(ConnectionLost("x"), Repeat.SAFE, 1000, AMPLE, 0.0) == 1.0
    assert policy.next_attempt(ConnectionLost("x"), Repeat.SAFE, 1000, inf, 0.0) == 1.0
    assert policy.next_attempt(ConnectionLost("x"), Repeat.SAFE, 1000, 1.0, 0.0) is None
    assert policy.next_attempt(ConnectionLost("x"), Repeat.SAFE, 1, -1.0, 0.0) is None


def test_the_servers_pause_is_kept_unless_it_outlasts_the_patience() -> None:
    assert POLICY.next_attempt(Busy("x", retry_after=0.7), Repeat.ONCE, 1, AMPLE, 0.9) == 0.7
    assert POLICY.next_attempt(Busy("x", retry_after=0.001), Repeat.ONCE, 1, AMPLE, 0.0) == 0.1
    assert POLICY.next_attempt(Busy("x", retry_after=11), Repeat.ONCE, 1, 10.9, 0.0) is None


def test_only_errors_without_an_answer_leave_the_outcome_open() -> None:
    assert may_have_happened(ConnectionLost("x"))
    assert may_have_happened(RequestTimeout("x"))
    assert not may_have_happened(ServerUnreachable("x"))
    assert not may_have_happened(Busy("x"))


def test_the_caller_learns_that_the_outcome_of_a_change_is_unknown() -> None:
    lost = ConnectionLost("lost", request_id=7, connection_id=3)

    assert final_error(lost, Repeat.READ) is lost
    for repeat in (Repeat.SAFE, Repeat.ONCE):
        unknown = final_error(lost, repeat)
        assert isinstance(unknown, OutcomeUnknown)
        assert unknown.__cause__ is lost
        assert (unknown.request_id, unknown.connection_id) == (7, 3)
    refused = Busy("x")
    assert final_error(refused, Repeat.ONCE) is refused
