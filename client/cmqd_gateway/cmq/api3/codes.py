"""The code of API 3.0 for each reason of API 2.0; the message keeps API 2.0's text, with its module code."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cmqd_client.errors import CmqError, InvalidArgument
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_protocol.protocol_errors import ErrorCode

_REASONS: Mapping[Code, tuple[Reason, ...]] = MappingProxyType(
    {
        Code.SIGNATURE_FAILURE: (Reason.AUTHENTICATION_FAILED, Reason.NOT_AUTHENTICATED, Reason.ALREADY_AUTHENTICATED),
        Code.SECRET_ID_NOT_FOUND: (Reason.SECRET_ID_UNKNOWN, Reason.SECRET_ID_STATUS, Reason.SECRET_ID_PREFIX),
        Code.UNAUTHORIZED_OPERATION: (Reason.NO_PERMISSION, Reason.ACCOUNT_ILLEGAL, Reason.CHARGE_OVERDUE),
        Code.INVALID_ACTION: (Reason.ACTION_UNKNOWN, Reason.ACTION_NAME_UNKNOWN),
        Code.MISSING_PARAMETER: (
            Reason.MISSING_PARAMETERS,
            Reason.MISSING_PARAMETER,
            Reason.NOT_IN_URI,
            Reason.ROUTING_KEY_MISSING,
            Reason.BINDING_KEY_MISSING,
        ),
        Code.UNKNOWN_PARAMETER: (Reason.PARAMETER_UNKNOWN,),
        Code.INVALID_PARAMETER_VALUE: (
            Reason.OUT_OF_RANGE,
            Reason.WRONG_TYPE,
            Reason.BATCH_SIZE,
            Reason.QUEUE_NAME,
            Reason.REWIND_TIME,
            Reason.REWIND_WINDOW,
            Reason.BODY_EMPTY,
            Reason.DELAY,
            Reason.HANDLE_MALFORMED,
            Reason.BODY_TOO_LARGE,
            Reason.BATCH_TOO_LARGE,
            Reason.MESSAGE_ID_INVALID,
            Reason.TOPIC_NAME,
            Reason.TOO_MANY_TAGS,
            Reason.TOO_MANY_DOTS,
            Reason.SUBSCRIPTION_NAME,
            Reason.SUBSCRIPTION_NAME_FORMAT,
            Reason.TOO_MANY_FILTER_TAGS,
            Reason.TOO_MANY_FILTER_TAGS_OLD,
            Reason.TOO_MANY_BINDING_KEYS,
            Reason.TOO_MANY_TAGS_OR_KEYS,
            Reason.ENDPOINT_FORMAT,
            Reason.PROTOCOL_UNKNOWN,
            Reason.STRATEGY_UNKNOWN,
            Reason.CONTENT_FORMAT_UNKNOWN,
            Reason.CONTENT_FORMAT_OF_QUEUE,
            Reason.URL_WITH_BLANKS,
            Reason.ENDPOINT_ILLEGAL,
        ),
        Code.INVALID_PARAMETER: (
            Reason.INVALID_REQUEST,
            Reason.PARAMETERS_ERROR,
            Reason.KEY_FORMAT,
            Reason.NOT_REPEATABLE,
            Reason.NOT_CONSECUTIVE,
            Reason.HTTP_METHOD,
            Reason.UNREADABLE_REQUEST,
        ),
        Code.QUEUE_NOT_FOUND: (Reason.QUEUE_NOT_FOUND,),
        Code.TOPIC_NOT_FOUND: (Reason.TOPIC_NOT_FOUND,),
        Code.SUBSCRIPTION_NOT_FOUND: (Reason.SUBSCRIPTION_NOT_FOUND,),
        Code.RESOURCE_IN_USE: (Reason.TOPIC_IN_USE,),
        Code.QUEUE_EXISTS: (Reason.QUEUE_EXISTS,),
        Code.TOPIC_EXISTS: (Reason.TOPIC_EXISTS,),
        Code.SUBSCRIPTION_EXISTS: (Reason.SUBSCRIPTION_EXISTS,),
        Code.TOO_MANY_QUEUES: (Reason.TOO_MANY_QUEUES,),
        Code.TOO_MANY_TOPICS: (Reason.TOO_MANY_TOPICS,),
        Code.TOO_MANY_SUBSCRIPTIONS: (Reason.TOO_MANY_SUBSCRIPTIONS,),
        Code.RESOURCE_UNAVAILABLE: (Reason.BACKLOG_FULL,),
        Code.SEND_REFUSED: (Reason.NO_SUBSCRIPTION, Reason.NOTHING_MATCHES),
        Code.FAILED_OPERATION: (
            Reason.NOT_REWINDABLE,
            Reason.NOT_TRANSACTIONAL,
            Reason.QUEUE_NOT_RELEASED,
            Reason.TOPIC_NOT_RELEASED,
            Reason.HANDLE_INVALID,
            Reason.DELETES_PARTLY_FAILED,
            Reason.DELETES_FAILED,
            Reason.DECISION_CONFLICT,
            Reason.DECISIONS_FAILED,
            Reason.DECISIONS_PARTLY_FAILED,
            Reason.TOO_MANY_INACTIVE,
            Reason.NO_MESSAGE,
        ),
        Code.REQUEST_LIMIT_EXCEEDED: (Reason.THROTTLED, Reason.CONTROL_THROTTLED),
        Code.INTERNAL_ERROR: (
            Reason.INTERNAL_ERROR,
            Reason.SEND_FAILED,
            Reason.RECEIVE_FAILED,
            Reason.DELETE_FAILED,
            Reason.GET_ATTRIBUTES_FAILED,
            Reason.SET_ATTRIBUTES_FAILED,
            Reason.DELETE_QUEUE_FAILED,
            Reason.LIST_QUEUE_FAILED,
        ),
    }
)

CODES: Final[Mapping[Reason, Code]] = MappingProxyType(
    {reason: code for code, reasons in _REASONS.items() for reason in reasons}
)
"""The code of each reason. Codes without a reason (of a time stamp, of temporary keys, of versions and of parameters
without a counterpart) are of requests that API 2.0 does not know."""


def to_fault(refusal: Refusal) -> Fault:
    """Return the fault for a refusal of an operation."""
    code = CODES[refusal.reason]
    cause = refusal.__cause__
    # API 2.0 has no rows of its own for these errors.
    if isinstance(cause, CmqError) and cause.code == ErrorCode.DEAD_LETTER_QUEUE_IN_USE:
        code = Code.RESOURCE_IN_USE
    elif isinstance(cause, InvalidArgument) and cause.details.get("field") == "transactional":
        code = Code.UNSUPPORTED_OPERATION
    return Fault(code, refusal.message)
