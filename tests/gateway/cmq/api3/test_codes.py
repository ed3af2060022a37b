"""The table of API 3.0's codes by the reasons of API 2.0, and the envelope of answers."""

import json

from cmqd_client import errors as native
from cmqd_gateway.cmq.api3 import envelope
from cmqd_gateway.cmq.api3.codes import CODES, to_fault
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.reasons import Reason, Refusal, translate
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import ErrorCode
from support.cases import each_case

OF_REQUESTS = {Code.SIGNATURE_EXPIRE, Code.TOKEN_FAILURE, Code.NO_SUCH_VERSION, Code.UNSUPPORTED_OPERATION}
"""Codes of requests that API 2.0 does not know."""


def test_each_reason_has_a_code_and_each_code_a_reason():
    assert CODES.keys() == set(Reason)
    assert set(Code) - set(CODES.values()) == OF_REQUESTS


@each_case(
    ("number", "code"),
    [
        (4100, "AuthFailure."),
        (4420, "RequestLimitExceeded"),
        (4440, "ResourceNotFound"),
        (4450, "LimitExceeded"),
        (4460, "ResourceInUse."),
        (4480, "RequestLimitExceeded"),
        (4500, "LimitExceeded.Subscriptions"),
        (6000, "InternalError"),
        (6030, "FailedOperation.SendMsg"),
        (6050, "FailedOperation"),
    ],
)
def test_the_reasons_of_a_number_of_api_2_0_have_codes_of_a_kind(number: int, code: str):
    # 10740 is of limits, and no state that forbids.
    reasons = [reason for reason in Reason if reason.code == number and reason is not Reason.TOO_MANY_TAGS_OR_KEYS]

    assert reasons
    assert all(CODES[reason].startswith(code) for reason in reasons)


def test_the_message_keeps_the_text_of_api_2_0_with_its_module_code():
    fault = to_fault(Refusal(Reason.QUEUE_NOT_FOUND, "queue 'orders' does not exist"))

    assert fault.code == "ResourceNotFound"
    assert fault.message == "(10100)queue is not existed, or deleted: queue 'orders' does not exist"


def test_a_dead_letter_queue_in_use_is_a_resource_in_use():
    error = native.server_error(
        Error(1, code=ErrorCode.DEAD_LETTER_QUEUE_IN_USE, name="name", text="text", retryable=False, details={})
    )
    refusal = translate(error, is_data=False)
    refusal.__cause__ = error

    assert refusal.reason is Reason.PARAMETERS_ERROR
    assert to_fault(refusal).code == "ResourceInUse"


def test_an_answer_has_an_envelope_and_no_parameter_of_its_media_type():
    answers = [
        envelope.answer("id", {"QueueId": "queue-1"}),
        envelope.refusal("id", Fault(Code.INVALID_ACTION, "text")),
    ]

    assert [answer.headers["Content-Type"] for answer in answers] == ["application/json"] * 2
    assert [answer.headers["Cache-Control"] for answer in answers] == ["no-store"] * 2
    assert [answer.status for answer in answers] == [200, 200]
    assert [json.loads(answer.body or b"") for answer in answers] == [  # pyright: ignore[reportArgumentType]
        {"Response": {"QueueId": "queue-1", "RequestId": "id"}},
        {"Response": {"Error": {"Code": "InvalidAction", "Message": "text"}, "RequestId": "id"}},
    ]
