"""Errors of the JSON API: problem+json (RFC 9457), one status per error of the broker, texts in the caller's units.

Two rules hold for the table of statuses and are tested:

* A status of 429 or 503 means that the same request may succeed later: clients retry by the status alone.
* 504 means that the outcome is unknown. A send is safe to repeat then with the same ``Idempotency-Key``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from cmqd_client import errors
from cmqd_client.error_words import argument_name
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.sentences import MILLISECONDS, TIME, Words, in_bytes, in_seconds, iso_time

CONTENT_TYPE = "application/problem+json"


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error (RFC 9457). Programs switch on `name`; `detail` is a sentence for people."""

    type: Annotated[str, Meta(description="`urn:cmqd:error:` and `name`.", examples=["urn:cmqd:error:queue_not_found"])]
    title: Annotated[str, Meta(description="The kind of error, the same at each occurrence.")]
    status: Annotated[int, Meta(description="HTTP status; of an entry of a batch, the status of the entry alone.")]
    detail: Annotated[str, Meta(description="The fault of this request.")]
    name: Annotated[str, Meta(description="Stable name of the error.", examples=["queue_not_found"])]
    code: Annotated[int | None, Meta(description="Number of the error in the native protocol; absent = no number.")] = (
        None
    )
    retryable: Annotated[bool, Meta(description="True if the same request may succeed later, unchanged.")] = False
    retry_after: Annotated[float | None, Meta(description="Pause in seconds that is suggested before a retry.")] = None
    field: Annotated[str | None, Meta(description="Field, query parameter or header of the request.")] = None
    details: Annotated[
        dict[str, Any],
        Meta(
            description="Facts for programs: `value`, `limit`, `range` (smallest and largest value), `difference` ..."
        ),
    ] = {}
    request_id: Annotated[str | None, Meta(description="Number of the request in the log of the broker.")] = None
    connection_id: Annotated[str | None, Meta(description="Number of the connection in the log of the broker.")] = None


class ProblemError(Exception):
    """A request is refused; ``problem`` is the answer, ``headers`` stand beside it."""

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers: Mapping[str, str] = headers or {}


# ---------------------------------------------------------------- errors of the broker and the client

STATUS_OF_CODE: Mapping[ErrorCode, int] = {
    ErrorCode.MALFORMED_FRAME: 502,
    ErrorCode.FRAME_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_VERSION: 502,
    ErrorCode.AUTHENTICATION_FAILED: 401,
    ErrorCode.AUTHENTICATION_TIMEOUT: 502,
    ErrorCode.HEARTBEAT_TIMEOUT: 502,
    ErrorCode.WRONG_REGION: 502,
    ErrorCode.TOO_MANY_CONNECTIONS: 503,
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.UNKNOWN_OPERATION: 501,
    ErrorCode.CANCELLED: 500,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.DUPLICATE_REQUEST_ID: 500,
    ErrorCode.REPLY_TOO_LARGE: 400,
    ErrorCode.QUEUE_NOT_FOUND: 404,
    ErrorCode.QUEUE_EXISTS: 409,
    ErrorCode.QUEUE_DIFFERS: 409,
    ErrorCode.QUEUE_DELETED: 410,
    ErrorCode.TOO_MANY_QUEUES: 409,
    ErrorCode.DEAD_LETTER_QUEUE_IN_USE: 409,
    ErrorCode.TIME_NOT_REWINDABLE: 409,
    ErrorCode.REDRIVE_RUNNING: 409,
    ErrorCode.REDRIVE_NOT_FOUND: 404,
    ErrorCode.NOT_TRANSACTIONAL: 409,
    ErrorCode.OTHER_SHARD: 409,
    ErrorCode.NO_DEAD_LETTER_QUEUE: 409,
    ErrorCode.DEAD_LETTERS_NOT_TAKEN: 503,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.BATCH_TOO_LARGE: 413,
    ErrorCode.RECEIPT_HANDLE_INVALID: 409,
    ErrorCode.TOO_MANY_IN_FLIGHT: 429,
    ErrorCode.SEQUENCE_TOO_OLD: 409,
    ErrorCode.BACKLOG_FULL: 503,
    ErrorCode.TRANSACTION_NOT_FOUND: 404,
    ErrorCode.ALREADY_COMMITTED: 409,
    ErrorCode.ALREADY_ROLLED_BACK: 409,
    ErrorCode.OUT_OF_ORDER: 409,
    ErrorCode.TOPIC_NOT_FOUND: 404,
    ErrorCode.TOPIC_EXISTS: 409,
    ErrorCode.TOPIC_DIFFERS: 409,
    ErrorCode.TOPIC_IN_USE: 409,
    ErrorCode.TOO_MANY_TOPICS: 409,
    ErrorCode.SUBSCRIPTION_NOT_FOUND: 404,
    ErrorCode.SUBSCRIPTION_EXISTS: 409,
    ErrorCode.SUBSCRIPTION_DIFFERS: 409,
    ErrorCode.TOO_MANY_SUBSCRIPTIONS: 409,
    ErrorCode.PUSH_UNAVAILABLE: 501,
    ErrorCode.MESSAGE_NOT_WAITING: 404,
    ErrorCode.MESSAGE_NOT_PUBLISHED: 404,
    ErrorCode.MESSAGE_NOT_FOUND: 404,
    ErrorCode.SCHEDULE_NOT_FOUND: 404,
    ErrorCode.SCHEDULE_EXISTS: 409,
    ErrorCode.SCHEDULE_DIFFERS: 409,
    ErrorCode.TOO_MANY_SCHEDULES: 409,
    ErrorCode.ACCOUNT_EXISTS: 409,
    ErrorCode.ACCOUNT_NOT_FOUND: 404,
    ErrorCode.KEY_NOT_FOUND: 404,
    ErrorCode.LAST_KEY: 409,
    ErrorCode.KEY_EXISTS: 409,
    ErrorCode.ACCOUNT_NOT_EMPTY: 409,
    ErrorCode.BUSY: 503,
    ErrorCode.DISK_NEARLY_FULL: 503,
    ErrorCode.SHUTTING_DOWN: 503,
    ErrorCode.OUTCOME_UNKNOWN: 504,
    ErrorCode.TOO_MANY_REQUESTS: 429,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.MESSAGES_DAMAGED: 500,
    ErrorCode.STANDBY: 503,
    ErrorCode.MOVED: 503,
}

STATUS_OF_CLIENT_ERROR: Mapping[type[errors.CmqError], int] = {
    errors.ClientClosed: 503,
    errors.ServerUnreachable: 503,
    errors.ConnectionLost: 504,
    errors.RequestTimeout: 504,
    errors.ProtocolViolation: 502,
    errors.NotSupported: 501,
}
"""Errors that the client of the gateway finds itself. Other errors of its tree never answer a request of this API."""


def status_of(error: errors.CmqError) -> int:
    """Return the status of an error; an error unknown to the tables is 503 if a retry may help, and else 500."""
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[ErrorCode(error.code)]
    return STATUS_OF_CLIENT_ERROR.get(type(error), 503 if error.retryable else 500)


def problem_of(error: errors.CmqError) -> Problem:
    """Return the problem of an error of the broker or of its client."""
    status = status_of(error)
    field = error.details.get("field")
    return Problem(
        type=f"urn:cmqd:error:{error.name}",
        title=_title(error.name),
        status=status,
        detail=error.text_in(REST_WORDS),
        name=error.name,
        code=error.code,
        # A status of 429 or 503 is the promise of this interface, and client errors with 504 may have been executed.
        retryable=status in (429, 503),
        retry_after=error.retry_after,
        field=None if field is None else str(field) if error.parts is None else field_name(str(field)),
        details=_details(error),
        request_id=None if error.request_id is None else str(error.request_id),
        connection_id=None if error.connection_id is None else str(error.connection_id),
    )


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


_ONE_OF_MANY: Final[Mapping[str, str]] = {"bodies": "body", "routing_keys": "routing_key", "dedup_ids": "dedup_id"}
"""Fields of the broker with a value for each message; in this API each message has the value."""


def field_name(field: str) -> str:
    """Return the name of a field in this API, which has seconds where the broker has milliseconds."""
    return _ONE_OF_MANY.get(field) or argument_name(field)


REST_WORDS: Final = Words(
    field_name, in_seconds, iso_time, in_bytes, "; use PUT to accept an equal one, or another name"
)
"""Words of this API: a duration is a number of seconds in every request and reply."""

_MAX_NUMBER: Final = 2**53
"""Many JSON libraries read a larger number as a float, which changes its last digits."""


def _details(error: errors.CmqError) -> dict[str, Any]:
    """Return the details of an error with the names, units and string ids of this API.

    An error without parts comes from a broker that sends no unit: its details go with its text, unchanged.
    """
    details = {name: value for name, value in error.details.items() if name != "field"}
    unit = details.pop("unit", None)
    if isinstance(error, errors.TimeNotRewindable):
        details = {name: value for name, value in details.items() if not name.endswith("_ms") and name != "value"}
        details["nearest"] = error.nearest
    elif isinstance(error, errors.AttributesDiffer):
        pairs = error.difference.items()
        details["difference"] = {name: {"is": actual, "wanted": requested} for name, (actual, requested) in pairs}
    if unit in (MILLISECONDS, TIME):
        details["value"] = _value_in(unit, details.get("value"))
        if "range" in details:
            low, high = details["range"] = [_value_in(unit, limit) for limit in details["range"]]
            details["limit"] = f"a {'number of seconds' if unit == MILLISECONDS else 'time'} from {low} to {high}"
    ends_ms = details.pop("oldest_ends_ms", None)
    if ends_ms is not None:
        details["oldest_ends"] = _value_in(TIME, ends_ms)
    return {name: str(value) if _is_id(name, value) else value for name, value in details.items()}


def _is_id(name: str, value: Any) -> bool:
    return type(value) is int and (name in ("receipt_handle", "message_id") or abs(value) > _MAX_NUMBER)


def _value_in(unit: str, value: Any) -> Any:
    """Return a number of the broker in the unit of this API; a value that is no number is returned as it is."""
    if type(value) is not int:
        return value
    if unit == TIME:
        return iso_time(value)
    return value // 1000 if value % 1000 == 0 else value / 1000


# ---------------------------------------------------------------- errors that the gateway finds


def refused(
    name: str,
    status: int,
    detail: str,
    *,
    field: str | None = None,
    code: int | None = None,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemError:
    """Return the refusal of a request that never reached the broker."""
    return ProblemError(
        Problem(
            type=f"urn:cmqd:error:{name}",
            title=_title(name),
            status=status,
            detail=detail,
            name=name,
            code=code,
            retryable=status in (429, 503),
            field=field,
            details=dict(details or {}),
        ),
        headers,
    )


def invalid(field: str | None, detail: str, **details: Any) -> ProblemError:
    """Return the refusal of a value, with the name and code of the broker's refusal of a wrong value."""
    code = ErrorCode.INVALID_ARGUMENT
    return refused(code.wire_name, 400, detail, field=field, code=int(code), details=details)


GATEWAY_PROBLEMS: Mapping[str, tuple[int, str]] = {
    "malformed_json": (400, "The body of the request is not JSON in UTF-8."),
    "unauthorized": (401, "The request names no key, or its secret is wrong."),
    "session_ended": (401, "The session of the console has ended, or its key has changed."),
    "cross_site_request": (403, "A page of another site made a browser send the request."),
    "wrong_csrf_token": (403, "The request has the cookie of a session without the token of the session."),
    "path_not_found": (404, "The API has no such path."),
    "method_not_allowed": (405, "The path exists, but not for this method."),
    "request_too_large": (413, "The body of the request is over the limit of the gateway."),
    "unsupported_media_type": (415, "The body of the request is not `application/json`."),
}
"""Problems of this API without a code of the broker: status and meaning."""


def of_code(code: ErrorCode, detail: str) -> ProblemError:
    """Return the refusal by the gateway of a request that the broker would refuse with this code."""
    return refused(code.wire_name, STATUS_OF_CODE[code], detail, code=int(code))


def gateway_problem(
    name: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
) -> ProblemError:
    """Return a problem of ``GATEWAY_PROBLEMS``."""
    return refused(name, GATEWAY_PROBLEMS[name][0], detail, field=field, headers=headers)
