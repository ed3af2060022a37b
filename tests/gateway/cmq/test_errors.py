"""CMQ's table of errors, and the translation of the broker's errors into it."""

import msgspec
import pytest

from cmqd_client import errors as native
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.reasons import NEVER_ANSWERED, TRANSLATIONS, Reason, Refusal
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.sentences import ENSURE, Quantity, Sentence, duration, sentence, size
from support.cases import each_case

FAILURES = {
    "SendMessage": Reason.SEND_FAILED,
    "BatchSendMessage": Reason.SEND_FAILED,
    "ReceiveMessage": Reason.RECEIVE_FAILED,
    "BatchReceiveMessage": Reason.RECEIVE_FAILED,
    "DeleteMessage": Reason.DELETE_FAILED,
    "BatchDeleteMessage": Reason.DELETE_FAILED,
    "GetQueueAttributes": Reason.GET_ATTRIBUTES_FAILED,
    "SetQueueAttributes": Reason.SET_ATTRIBUTES_FAILED,
    "DeleteQueue": Reason.DELETE_QUEUE_FAILED,
    "ListQueue": Reason.LIST_QUEUE_FAILED,
}
"""The rows of CMQ's table about failures."""


def translate(error: native.CmqError, operation: str) -> Refusal:
    return OPERATIONS[operation].refusal(error)


def error_of(code: int, text: str = "text", **details: object) -> native.ServerError:
    return native.server_error(Error(1, code=code, name="name", text=text, retryable=False, details=details))


@each_case("code", ErrorCode)
def test_each_error_of_the_broker_has_a_translation(code: ErrorCode) -> None:
    assert code in TRANSLATIONS

    refusal = translate(error_of(code, nearest_ms=1000), "SendMessage")

    assert refusal.reason not in NEVER_ANSWERED
    assert refusal.message.startswith(f"({refusal.reason.module}){refusal.reason.text}")


@pytest.mark.parametrize(
    "error",
    [
        native.ClientClosed("closed"),
        native.ServerUnreachable("unreachable"),
        native.ConnectionLost("lost"),
        native.RequestTimeout("late"),
        native.NotSupported("old"),
        native.ProtocolViolation("not cmqd"),
        error_of(9999),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_without_a_row_are_failures_of_the_server(error: native.CmqError) -> None:
    assert translate(error, "BatchDeleteMessage").reason is Reason.DELETE_FAILED
    assert translate(error, "CreateTopic").reason is Reason.INTERNAL_ERROR


@pytest.mark.parametrize(("action", "reason"), FAILURES.items())
def test_a_failure_of_the_server_has_the_row_of_its_action(action: str, reason: Reason) -> None:
    refusal = translate(error_of(ErrorCode.DISK_NEARLY_FULL, "the disk is nearly full"), action)

    assert (refusal.code, refusal.reason, refusal.detail) == (6000, reason, "the disk is nearly full")


def test_throttling_has_a_code_for_messages_and_a_code_for_control() -> None:
    error = error_of(ErrorCode.TOO_MANY_REQUESTS)

    assert translate(error, "BatchPublishMessage").code == 4420
    assert translate(error, "ListQueue").code == 4480


def test_a_suggested_pause_is_in_the_text() -> None:
    error = native.Busy("the server is busy", retry_after=1.5)

    assert (
        translate(error, "SendMessage").message == "(10090)send message failed: the server is busy; try again in 1.5 s"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            sentence("{rewind_ms} ({}) is longer than {retention_ms} ({})", duration(90_000), duration(1_296_000_000)),
            "rewindSeconds (90 s) is longer than msgRetentionSeconds (1296000 s)",
        ),
        (sentence("more would pass its {max_backlog} of {}", 7), "more would pass its maxMsgHeapNum of 7"),
        (sentence("{visibility_timeout_ms} is {}", duration(1500)), "visibilityTimeout is 1.5 s"),
        (sentence("{bodies[3]} has {}", size(1 << 20)), "msgBody[3] has 1048576 bytes"),
        (sentence("{max_delayed} and {polling_wait_ms}"), "max_delayed and pollingWaitSeconds"),
        (sentence("{pause_ms}"), "pause"),
        (sentence("queue 'q' already exists{}", Quantity(ENSURE, "")), "queue 'q' already exists"),
    ],
)
def test_sentences_have_the_names_and_units_of_cmq(given: Sentence, expected: str) -> None:
    error = error_of(ErrorCode.QUEUE_EXISTS, str(given), sentence=msgspec.to_builtins(given.parts))

    assert translate(error, "CreateQueue").detail == expected


def test_the_text_of_an_older_broker_is_shown_as_it_is() -> None:
    text = "rewind_ms (90000) is longer than retention_ms (60000)"

    assert translate(error_of(ErrorCode.INVALID_ARGUMENT, text), "CreateQueue").detail == text


@pytest.mark.parametrize(
    ("field", "limit", "reason"),
    [
        ("queue", "1 to 64 ASCII letters", Reason.QUEUE_NAME),
        ("queue", "a queue with a redrive", Reason.PARAMETERS_ERROR),
        ("topic", "3 to 64 ASCII letters", Reason.TOPIC_NAME),
        ("subscription", "1 to 64 ASCII letters", Reason.SUBSCRIPTION_NAME),
        ("endpoint", "1 to 64 ASCII letters", Reason.ENDPOINT_ILLEGAL),
        ("endpoint", "a URL has a host", Reason.ENDPOINT_FORMAT),
        ("rewind_ms", "at most retention_ms", Reason.REWIND_WINDOW),
        ("dead_letter_queue", "an existing queue", Reason.PARAMETERS_ERROR),
    ],
)
def test_an_invalid_argument_has_the_row_of_its_field(field: str, limit: str, reason: Reason) -> None:
    form = {"form": "name"} if "letters" in limit else {}
    error = error_of(ErrorCode.INVALID_ARGUMENT, field=field, limit=limit, **form)

    assert translate(error, "CreateQueue").reason is reason


def test_a_queue_without_a_rewind_window_is_not_a_wrong_time() -> None:
    assert translate(error_of(ErrorCode.TIME_NOT_REWINDABLE, nearest_ms=None), "RewindQueue").code == 6050

    refusal = translate(error_of(ErrorCode.TIME_NOT_REWINDABLE, nearest_ms=1_700_000_000_500), "RewindQueue")
    assert (refusal.code, refusal.reason) == (4000, Reason.REWIND_TIME)
    assert "1700000000" in refusal.detail


def test_a_refusal_has_further_fields() -> None:
    refusal = Refusal(Reason.DELETES_FAILED, errorList=[{"code": 4430}])

    assert refusal.message == "(10290)batch delete message failed"
    assert refusal.fields == {"errorList": [{"code": 4430}]}
