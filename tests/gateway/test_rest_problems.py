"""Problems of the JSON API: a status for each error, and texts with the caller's names and units."""

import pytest

from cmqd_client import errors
from cmqd_client.errors import CmqError, server_error
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
from cmqd_protocol.errors import RETRYABLE, ErrorCode
from cmqd_protocol.messages import Error


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


def test_a_duration_out_of_range_is_told_in_seconds():
    answer = problem(
        ErrorCode.INVALID_ARGUMENT,
        "visibility_timeout_ms must be an integer from 1000 to 43200000, not 500",
        field="visibility_timeout_ms",
        value="500",
        limit="an integer from 1000 to 43200000",
    )

    assert answer.field == "visibility_timeout"
    assert answer.detail == "visibility_timeout must be a number of seconds from 1 to 43200, not 0.5"
    assert answer.details == {"value": 0.5, "limit": "a number of seconds from 1 to 43200"}


def test_a_difference_is_told_in_seconds():
    answer = problem(
        ErrorCode.QUEUE_DIFFERS,
        "queue 'q' has other attributes: visibility_timeout_ms is 30000, wanted 500, max_delayed is 5, wanted 6",
        difference={"visibility_timeout_ms": {"is": 30000, "wanted": 500}, "max_delayed": {"is": 5, "wanted": 6}},
    )

    assert "visibility_timeout is 30 s, wanted 0.5 s, max_delayed is 5, wanted 6" in answer.detail
    assert answer.details["difference"] == {
        "visibility_timeout": {"is": 30, "wanted": 0.5},
        "max_delayed": {"is": 5, "wanted": 6},
    }


@pytest.mark.parametrize(
    ("nearest_ms", "why", "end"),
    [
        (
            1_700_000_001_000,
            "it is too late; the nearest time is 1700000001000",
            "the nearest time is 2023-11-14T22:13:21Z",
        ),
        (None, "it has no rewind window; set rewind_ms first", "it has no rewind window; set rewind first"),
    ],
)
def test_times_are_told_as_times(nearest_ms: int | None, why: str, end: str):
    text = f"queue 'orders' cannot be rewound to 1700000000000: {why}"
    answer = problem(
        ErrorCode.TIME_NOT_REWINDABLE, text, field="time_ms", value=1_700_000_000_000, nearest_ms=nearest_ms
    )

    assert "cannot be rewound to 2023-11-14T22:13:20Z: " in answer.detail
    assert answer.detail.endswith(end)
    assert answer.field == "time"
    assert (answer.details["nearest"] is None) == (nearest_ms is None)


def test_ids_in_details_are_strings():
    answer = problem(ErrorCode.RECEIPT_HANDLE_INVALID, "receipt handle 5 is not valid", receipt_handle=2**63)

    assert answer.details == {"receipt_handle": str(2**63)}


def test_every_problem_of_the_table_exists():
    for operation in OPERATIONS:
        for name in problems_of(operation):
            assert name in GATEWAY_PROBLEMS or name.upper() in ErrorCode.__members__, name
