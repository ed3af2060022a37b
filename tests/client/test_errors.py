"""The registry of errors."""

import re
from typing import Any

import pytest

from cmqd_client import errors
from cmqd_client.durations import to_ms
from cmqd_client.errors import (
    Busy,
    CmqError,
    QueueNotFound,
    ServerError,
    UnknownServerError,
    server_error,
)
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from cmqd_types.sentences import NATIVE


def test_every_code_of_the_wire_has_its_class() -> None:
    assert set(ServerError.by_code) == set(ErrorCode)
    for code, cls in ServerError.by_code.items():
        assert (cls.code, cls.name, cls.retryable) == (code, ErrorCode(code).name.lower(), code in RETRYABLE)


def test_a_code_cannot_have_two_classes() -> None:
    with pytest.raises(TypeError, match="code 300 belongs to QueueNotFound"):
        type("Another", (ServerError,), {}, code=ErrorCode.QUEUE_NOT_FOUND)


def test_an_error_frame_becomes_the_exception_of_its_code() -> None:
    frame = Error(7, 600, "busy", "try again", True, 250, {"field": "bodies"})

    error = server_error(frame, connection_id=3)

    assert type(error) is Busy
    assert (error.code, error.name, error.retryable, error.retry_after) == (600, "busy", True, 0.25)
    assert (error.request_id, error.connection_id, error.details) == (7, 3, {"field": "bodies"})
    assert str(error) == "try again"


def test_the_text_has_the_names_of_the_arguments_and_readable_units() -> None:
    parts: list[Any] = [["field", "visibility_timeout_ms"], " is ", ["ms", 46_800_000]]
    frame = Error(7, 200, "invalid_argument", "of the server", details={"field": "wait_ms", "sentence": parts})

    error = server_error(frame)

    assert (error.text, str(error)) == ("visibility_timeout is 13 h", "visibility_timeout is 13 h")
    assert error.text_in(NATIVE) == "visibility_timeout_ms is 13 h"
    assert error.details == {"field": "wait_ms"}


@pytest.mark.parametrize("parts", [None, [["colour", "red"]], "text"])
def test_the_text_of_an_older_or_newer_server_is_shown_as_it_is(parts: object) -> None:
    details = {"field": "wait_ms"} | ({} if parts is None else {"sentence": parts})

    error = server_error(Error(7, 200, "invalid_argument", "wait_ms is 5", details=details))

    assert (error.text, error.text_in(NATIVE), error.parts) == ("wait_ms is 5", "wait_ms is 5", None)
    assert error.details == {"field": "wait_ms"}


def test_an_unknown_code_becomes_an_unknown_server_error() -> None:
    error = server_error(Error(7, 9999, "flux_missing", "no flux", True))

    assert type(error) is UnknownServerError
    assert (error.code, error.name, error.retryable) == (9999, "flux_missing", True)


def test_what_the_server_says_about_retrying_counts() -> None:
    assert server_error(Error(1, 300, "queue_not_found", "x", True)).retryable
    assert not QueueNotFound.retryable


def _subclasses(cls: type[CmqError]) -> set[type[CmqError]]:
    return {one for sub in cls.__subclasses__() for one in (sub, *_subclasses(sub))}


def test_every_error_is_public_explained_and_in_the_tree() -> None:
    tree = set(re.findall(r"\w+", errors.__doc__ or ""))
    for cls in {CmqError, *_subclasses(CmqError)}:
        if cls.__module__ != errors.__name__:
            continue  # a test's own
        assert cls.__doc__, cls
        assert cls.__name__ in tree


@pytest.mark.parametrize("duration", [1e21, -1e21])
def test_an_absurd_duration_is_refused_without_an_exponent(duration: float) -> None:
    with pytest.raises(ValueError, match=r"^delay is longer than 285,000 years$"):
        to_ms(duration, "delay")
