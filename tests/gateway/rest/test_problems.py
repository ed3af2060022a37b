"""Problems of the JSON API: a status for each error, and texts with the caller's names and units."""

import msgspec
import pytest

from cmqd.core.domain_errors import DomainError, InvalidArgument, QueueDiffers, TimeNotRewindable, TooManyRemembered
from cmqd.core.limits import check_range
from cmqd.server.requests.refusals import error_reply
from cmqd_client import errors
from cmqd_client.errors import CmqError, server_error
from cmqd_gateway.cmq import operations
from cmqd_gateway.rest.openapi import problems_of
from cmqd_gateway.rest.problems import (
    GATEWAY_PROBLEMS,
    STATUS_OF_CLIENT_ERROR,
    STATUS_OF_CODE,
    Problem,
    problem_of,
    status_of,
)
from cmqd_gateway.rest.table import OPERATIONS
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from support.costs.pattern_calls import pattern_calls


def broker_error(code: ErrorCode, text: str = "", **details: object) -> CmqError:
    error = Error(7, int(code), code.wire_name, text, code.retryable, details=details)
    return server_error(error, connection_id=3)


def problem(code: ErrorCode, text: str = "", **details: object) -> Problem:
    return problem_of(broker_error(code, text, **details))


def test_every_error_of_the_broker_has_a_status():
    assert set(STATUS_OF_CODE) == set(ErrorCode)


def test_429_and_503_say_that_a_retry_may_help_and_nothing_else_does():
    for code, status in STATUS_OF_CODE.items():
        assert (status in (429, 503)) == (code in RETRYABLE), code
        assert problem(code).retryable == (code in RETRYABLE)


def test_every_error_that_the_client_finds_has_a_status():
    # Of a consumer, of a typed handle, of a request with a reply, or a group: none is the answer to a request here.
    elsewhere = {errors.ServerError, errors.NoReply, errors.PoisonMessage, errors.PartialFailure}
    assert set(CmqError.__subclasses__()) - elsewhere == set(STATUS_OF_CLIENT_ERROR)


def test_an_error_of_a_newer_broker_is_answered_by_its_retryable_flag():
    for retryable, status in ((True, 503), (False, 500)):
        assert status_of(server_error(Error(1, 999, "new_error", "new", retryable))) == status


def test_an_error_of_the_broker_keeps_its_name_code_text_and_numbers():
    answer = problem(ErrorCode.QUEUE_NOT_FOUND, "queue 'x' does not exist; create it first", queue="x")

    assert answer == Problem(
        type="urn:cmqd:error:queue_not_found",
        title="Queue not found",
        status=404,
        detail="queue 'x' does not exist; create it first",
        name="queue_not_found",
        code=300,
        details={"queue": "x"},
        request_id="7",
        connection_id="3",
    )


def of_core(refusal: DomainError) -> CmqError:
    """Return the client's exception for a refusal of the core, over the wire."""
    frame = msgspec.msgpack.encode(error_reply(7, refusal))
    return server_error(msgspec.msgpack.decode(frame, type=Error), connection_id=3)


def out_of_range(field: str, value: object, low: int, high: int) -> CmqError:
    with pytest.raises(InvalidArgument) as raised:
        check_range(field, value, low, high)
    return of_core(raised.value)


def test_a_duration_out_of_range_is_told_in_seconds():
    answer = problem_of(out_of_range("visibility_timeout_ms", 500, 1000, 43_200_000))

    assert answer.field == "visibility_timeout"
    assert answer.detail == "visibility_timeout is 0.5 s; the range is 1 s to 43200 s"
    assert answer.details == {
        "value": 0.5,
        "limit": "a number of seconds from 1 to 43200",
        "range": [1, 43_200],
    }


def test_a_long_duration_has_no_exponent():
    answer = problem_of(out_of_range("retention_ms", 1_296_000_001_000, 60_000, 1_296_000_000))

    assert answer.detail == "retention is 1296000001 s; the range is 60 s to 1296000 s"


def test_a_number_without_a_unit_keeps_its_range():
    answer = problem_of(out_of_range("max_messages", 0, 1, 256))

    assert answer.detail == "max_messages is 0; the range is 1 to 256"
    assert answer.details == {"value": 0, "limit": "an integer from 1 to 256", "range": [1, 256]}


def test_an_error_of_an_older_broker_is_shown_with_the_names_and_units_of_that_broker():
    text = "visibility_timeout_ms must be an integer from 1000 to 43200000, not 500"
    answer = problem(ErrorCode.INVALID_ARGUMENT, text, field="visibility_timeout_ms", value="500", limit="an integer")

    assert (answer.detail, answer.field) == (text, "visibility_timeout_ms")
    assert answer.details == {"value": "500", "limit": "an integer"}


def test_a_difference_is_told_in_seconds():
    difference: dict[str, dict[str, object]] = {
        "visibility_timeout_ms": {"is": 30_000, "wanted": 500},
        "max_delayed": {"is": 5, "wanted": 6},
        "transactional": {"is": False, "wanted": True},
    }
    answer = problem_of(of_core(QueueDiffers("q", difference)))

    assert answer.detail == (
        "queue 'q' exists with other attributes: visibility_timeout is 30 s, wanted 0.5 s, max_delayed is 5, wanted 6,"
        " transactional is false, wanted true"
    )
    assert answer.details["difference"] == {
        "visibility_timeout": {"is": 30, "wanted": 0.5},
        "max_delayed": {"is": 5, "wanted": 6},
        "transactional": {"is": False, "wanted": True},
    }


@pytest.mark.parametrize(
    ("nearest_ms", "why", "end"),
    [
        (1_700_000_001_000, "it is too late", "it is too late; the nearest time is 2023-11-14T22:13:21Z"),
        (None, "it has no rewind window", "it has no rewind window; set its attribute rewind first"),
    ],
)
def test_times_are_told_as_times(nearest_ms: int | None, why: str, end: str):
    refusal = TimeNotRewindable("orders", 1_700_000_000_000, why, nearest_ms)
    answer = problem_of(of_core(refusal))

    assert answer.detail == f"queue 'orders' cannot be rewound to 2023-11-14T22:13:20Z: {end}"
    assert answer.field == "time"
    assert (answer.details["nearest"] is None) == (nearest_ms is None)
    assert set(answer.details) == {"nearest"}


def test_the_time_of_a_full_memory_is_told_as_a_time():
    refusal = TooManyRemembered("a", "2 producer sessions", 2, 1_700_000_000_000, 1_699_999_999_000)
    answer = problem_of(of_core(refusal))

    assert answer.details == {"limit": 2, "oldest_ends": "2023-11-14T22:13:20Z"}


@pytest.mark.parametrize("length", [33_000, 200_000])
def test_no_pattern_is_searched_in_an_error(length: int):
    """Patterns over a text with a value of the caller once took the square of its length (issue 36, item 1)."""
    error = broker_error(ErrorCode.QUEUE_DIFFERS, "a" * length, difference={"delay_ms": {"is": 1, "wanted": 2}})

    with pattern_calls() as calls:
        detail = problem_of(error).detail
        refusal = operations.OPERATIONS["CreateQueue"].refusal(error)

    assert (detail, refusal.detail) == (error.text, error.text)
    assert not calls


def test_ids_in_details_are_strings():
    answer = problem(ErrorCode.RECEIPT_HANDLE_INVALID, "receipt handle 5 is not valid", receipt_handle=2**63)

    assert answer.details == {"receipt_handle": str(2**63)}


def test_every_problem_of_the_table_exists():
    for operation in OPERATIONS:
        for name in problems_of(operation):
            assert name in GATEWAY_PROBLEMS or name.upper() in ErrorCode.__members__, name
