"""CMQ's error codes, and the translation of the broker's errors into them.

An answer of API 2.0 has two numbers: ``code``, on which SDKs switch, and a module code that stands in parentheses
before the text. ``Reason`` has a member per row of CMQ's table, with CMQ's text. A ``Refusal`` adds a sentence about
the case:

    {"code": 4000, "message": "(10350)parameter value or length is out of range: delaySeconds is 4000; ...", ...}

``NEVER_ANSWERED`` has the rows of CMQ's table that this gateway never answers, with the reasons.
"""

from collections.abc import Mapping
from enum import Enum, unique
from types import MappingProxyType
from typing import Any, Final

from cmqd_client import errors as native
from cmqd_client.error_words import argument_name
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.attributes import QUEUE
from cmqd_types.sentences import Words, in_bytes, in_seconds, iso_time

ACCEPTED = 0
"""``code`` of an answer without an error."""


@unique
class Reason(Enum):
    """A row of CMQ's table of errors: code, module code, text."""

    def __init__(self, code: int, module: int, text: str) -> None:
        self.code = code
        self.module = module
        self.text = text

    # Parameters of any action.
    INVALID_REQUEST = 4000, 10000, "invalid request parameters"
    MISSING_PARAMETERS = 4000, 10010, "lacked of required parameters"
    PARAMETERS_ERROR = 4000, 10110, "request parameters error"
    ACTION_UNKNOWN = 4000, 10280, "action is not existed"
    KEY_FORMAT = 4000, 10310, "parameter key format error"
    PARAMETER_UNKNOWN = 4000, 10320, "no such parameter"
    NOT_REPEATABLE = 4000, 10330, "parameter is NOT a repeatable parameter"
    OUT_OF_RANGE = 4000, 10350, "parameter value or length is out of range"
    WRONG_TYPE = 4000, 10360, "parameter error type"
    BATCH_SIZE = 4000, 10370, "parameter batch size is out of range"
    NOT_CONSECUTIVE = 4000, 10380, "parameter is not consequent"
    MISSING_PARAMETER = 4000, 10390, "lacked of required parameter"
    NOT_IN_URI = 4000, 10400, "cannot find parameter in uri"
    HTTP_METHOD = 4000, 10410, "unexpected http method, only GET or POST is supported"
    UNREADABLE_REQUEST = 4000, 10420, "cannot parse the request, or request size is more than 1MB"
    ACTION_NAME_UNKNOWN = 4000, 10430, "action name is not existed"
    ACCOUNT_ILLEGAL = 4000, 10440, "account illegal, it may be an assistant account"
    SECRET_ID_PREFIX = 4000, 10450, "secret id doesn't begin with AKID"
    NO_PERMISSION = 4000, 10461, "no cam authentication"
    # Keys and signatures.
    AUTHENTICATION_FAILED = 4100, 10030, "authentication failed"
    NOT_AUTHENTICATED = 4100, 10031, "connection is not authenticated"
    ALREADY_AUTHENTICATED = 4100, 10032, "connection is already authenticated"
    SECRET_ID_STATUS = 4100, 10080, "secret id status error"
    SECRET_ID_UNKNOWN = 4100, 10270, "secret id is not existed"
    CHARGE_OVERDUE = 4300, 10040, "charge overdue"
    # Queues.
    QUEUE_NAME = 4000, 10020, "queue name format error"
    QUEUE_NOT_FOUND = 4440, 10100, "queue is not existed, or deleted"
    TOO_MANY_QUEUES = 4450, 10220, "number of queues has reached the limit"
    QUEUE_EXISTS = 4460, 4460, "queue is already existed,case insensitive"
    """CMQ's table has no module code for this row and repeats the code."""
    QUEUE_NOT_RELEASED = 6040, 10660, "it will take some time to release resources of previous queue"
    NOT_REWINDABLE = 6050, 10670, "your queue cannot be rewinded"
    REWIND_TIME = 4000, 10680, "invalid rewind time"
    REWIND_WINDOW = 4000, 10700, "rewindSeconds is greater than msgRetentionSeconds"
    # Messages.
    BODY_EMPTY = 4000, 10120, "message body can't be empty"
    DELAY = 4000, 10692, "delay seconds is out of range"
    HANDLE_MALFORMED = 4000, 10470, "receiptHandle error"
    BODY_TOO_LARGE = 4400, 10230, "exceed maximum message size"
    BACKLOG_FULL = 4410, 10240, "reach maximum retention number of message"
    HANDLE_INVALID = 4430, 10260, "receipt handle is invalid"
    BATCH_TOO_LARGE = 4470, 10300, "total message size exceed 1MB"
    DELETES_PARTLY_FAILED = 6010, 10150, "delete message partially failed"
    DELETES_FAILED = 6020, 10290, "batch delete message failed"
    TOO_MANY_INACTIVE = 6070, 10690, "too many unacked(inactive) messages or delayed messages"
    NO_MESSAGE = 7000, 10200, "no message"
    # Transactions.
    MESSAGE_ID_INVALID = 4490, 10770, "message id is invalid"
    DECISION_CONFLICT = 4490, 10780, "message operation is not allowed"
    NOT_TRANSACTIONAL = 4490, 10790, "transaction message is not supported"
    DECISIONS_FAILED = 6040, 10750, "transaction confirmation failed"
    DECISIONS_PARTLY_FAILED = 6040, 10760, "transaction confirmation partially failed"
    # Topics and publishes.
    TOPIC_NAME = 4000, 10590, "topic name format error"
    TOPIC_NOT_FOUND = 4440, 10600, "topic is not existed, or deleted"
    TOO_MANY_TOPICS = 4450, 10610, "number of topics has reached the limit"
    TOPIC_EXISTS = 4460, 10550, "topic is already existed"
    TOPIC_IN_USE = 4000, 10540, "there exists subscriptions under this topic, please unsubscribe all of them first"
    TOPIC_NOT_RELEASED = 6040, 10660, "it will take some time to release resources of previous topic"
    ROUTING_KEY_MISSING = 4000, 10700, "parameters lack of routingKey"
    TOO_MANY_TAGS = 4000, 10720, "too many msgTag"
    TOO_MANY_DOTS = 4000, 10691, "too many delimeters"
    NO_SUBSCRIPTION = 6030, 10650, "topic has no subscription, please create a subscription before publishing message"
    NOTHING_MATCHES = 6030, 10730, "no bindingKey or filterTag matches the routingKey or msgTag"
    # Subscriptions.
    SUBSCRIPTION_NAME = 4000, 10580, "subscription name format error"
    SUBSCRIPTION_NAME_FORMAT = 4000, 10620, "subscription name format error"
    SUBSCRIPTION_NOT_FOUND = 4440, 10600, "subscription is not existed, or deleted"
    """CMQ documents no row for missing subscriptions; the code is the code of a missing queue or topic."""
    SUBSCRIPTION_EXISTS = 4490, 10470, "subscription is already existed"
    TOO_MANY_SUBSCRIPTIONS = 4500, 10480, "number of subscription has reached the limit"
    TOO_MANY_FILTER_TAGS = 4000, 10490, "number of filterTag exceed limit"
    TOO_MANY_FILTER_TAGS_OLD = 4000, 10670, "too many filterTag"
    TOO_MANY_BINDING_KEYS = 4000, 10680, "too many bindingKey"
    TOO_MANY_TAGS_OR_KEYS = 6050, 10740, "too many filterTag or bindingKey"
    BINDING_KEY_MISSING = 4000, 10710, "parameters lack of bindingKey"
    ENDPOINT_FORMAT = 4000, 10500, "endpoint format error"
    PROTOCOL_UNKNOWN = 4000, 10510, "undefined protocol"
    STRATEGY_UNKNOWN = 4000, 10520, "undefined notify retry stragety"
    CONTENT_FORMAT_UNKNOWN = 4000, 10530, "undefined notify content format"
    URL_WITH_BLANKS = 4510, 10570, "url cannot contain any blank characters"
    ENDPOINT_ILLEGAL = 4000, 10630, "illegal endpoint"
    CONTENT_FORMAT_OF_QUEUE = 4000, 10640, "notifyContentFormat of protocol queue must be SIMPLIFIED"
    # Rates, and faults of the server.
    THROTTLED = 4420, 10250, "qps throttling"
    CONTROL_THROTTLED = 4480, 10460, "exceed interface frequency limit, please slow down"
    INTERNAL_ERROR = 6000, 10050, "server internal error"
    SEND_FAILED = 6000, 10090, "send message failed"
    RECEIVE_FAILED = 6000, 10130, "receive message failed"
    DELETE_FAILED = 6000, 10140, "delete message failed"
    GET_ATTRIBUTES_FAILED = 6000, 10160, "get queue attributes failed"
    SET_ATTRIBUTES_FAILED = 6000, 10170, "set queue attributes failed"
    DELETE_QUEUE_FAILED = 6000, 10180, "delete queue failed"
    LIST_QUEUE_FAILED = 6000, 10190, "list queue failed"


NEVER_ANSWERED: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.PARAMETER_UNKNOWN: "CMQ's own SDKs send parameters that no action knows; such parameters are ignored",
        Reason.NOT_IN_URI: "a missing parameter is 10390, from the query string as from the body",
        Reason.ACTION_NAME_UNKNOWN: "an unknown action is 10280",
        Reason.ACCOUNT_ILLEGAL: "a key without the permission is 10461",
        Reason.SECRET_ID_PREFIX: "ids of keys have any form",
        Reason.NOT_AUTHENTICATED: "an error of CMQ's TCP protocol, there with the result 306",
        Reason.ALREADY_AUTHENTICATED: "an error of CMQ's TCP protocol, there with the result 307",
        Reason.CHARGE_OVERDUE: "no account is charged",
        Reason.QUEUE_NOT_RELEASED: "the name of a deleted queue is free at once",
        Reason.TOPIC_NOT_RELEASED: "the name of a deleted topic is free at once",
        Reason.SUBSCRIPTION_NAME_FORMAT: "the name of a subscription is refused with 10580",
        Reason.TOO_MANY_FILTER_TAGS_OLD: "too many filter tags are 10490",
        Reason.TOO_MANY_TAGS_OR_KEYS: "too many filter tags are 10490, too many binding keys 10680",
        Reason.CONTENT_FORMAT_OF_QUEUE: "notifyContentFormat is ignored for a queue, as CMQ's own SDKs expect",
    }
)


class Refusal(Exception):
    """An action was refused or failed; the answer has a code other than 0.

    Attributes:
        reason: the row of CMQ's table.
        detail: a sentence about this case in CMQ's names and units; may be empty.
        fields: further fields of the answer, such as ``errorList``.
    """

    def __init__(self, reason: Reason, detail: str = "", **fields: Any) -> None:
        super().__init__(f"({reason.module}){reason.text}{': ' if detail else ''}{detail}")
        self.reason = reason
        self.detail = detail
        self.fields: Mapping[str, Any] = fields

    @property
    def code(self) -> int:
        """The number on which SDKs switch."""
        return self.reason.code

    @property
    def message(self) -> str:
        """The module code in parentheses, CMQ's text, and the detail."""
        return str(self)


_FAILED = None
"""In place of a reason: the server failed, and the operation has the reason."""

TRANSLATIONS: Mapping[int, Reason | None] = MappingProxyType(
    {
        # The gateway's connection, made with the caller's key.
        ErrorCode.MALFORMED_FRAME: _FAILED,
        ErrorCode.FRAME_TOO_LARGE: Reason.UNREADABLE_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION: _FAILED,
        ErrorCode.AUTHENTICATION_FAILED: Reason.SECRET_ID_STATUS,
        ErrorCode.AUTHENTICATION_TIMEOUT: _FAILED,
        ErrorCode.HEARTBEAT_TIMEOUT: _FAILED,
        ErrorCode.WRONG_REGION: _FAILED,
        ErrorCode.TOO_MANY_CONNECTIONS: Reason.THROTTLED,
        # Requests.
        ErrorCode.INVALID_ARGUMENT: Reason.PARAMETERS_ERROR,
        ErrorCode.UNKNOWN_OPERATION: Reason.ACTION_UNKNOWN,
        ErrorCode.CANCELLED: _FAILED,
        ErrorCode.PERMISSION_DENIED: Reason.NO_PERMISSION,
        ErrorCode.DUPLICATE_REQUEST_ID: _FAILED,
        ErrorCode.REPLY_TOO_LARGE: _FAILED,
        # Queues.
        ErrorCode.QUEUE_NOT_FOUND: Reason.QUEUE_NOT_FOUND,
        ErrorCode.QUEUE_EXISTS: Reason.QUEUE_EXISTS,
        ErrorCode.QUEUE_DIFFERS: Reason.QUEUE_EXISTS,
        ErrorCode.QUEUE_DELETED: Reason.QUEUE_NOT_FOUND,
        ErrorCode.TOO_MANY_QUEUES: Reason.TOO_MANY_QUEUES,
        ErrorCode.DEAD_LETTER_QUEUE_IN_USE: Reason.PARAMETERS_ERROR,
        ErrorCode.TIME_NOT_REWINDABLE: Reason.REWIND_TIME,
        ErrorCode.REDRIVE_RUNNING: Reason.PARAMETERS_ERROR,
        ErrorCode.REDRIVE_NOT_FOUND: Reason.PARAMETERS_ERROR,
        ErrorCode.NOT_TRANSACTIONAL: Reason.NOT_TRANSACTIONAL,
        ErrorCode.OTHER_SHARD: Reason.PARAMETERS_ERROR,
        ErrorCode.NO_DEAD_LETTER_QUEUE: Reason.PARAMETERS_ERROR,
        ErrorCode.DEAD_LETTERS_NOT_TAKEN: Reason.BACKLOG_FULL,
        # Messages.
        ErrorCode.MESSAGE_TOO_LARGE: Reason.BODY_TOO_LARGE,
        ErrorCode.BATCH_TOO_LARGE: Reason.BATCH_TOO_LARGE,
        ErrorCode.RECEIPT_HANDLE_INVALID: Reason.HANDLE_INVALID,
        ErrorCode.TOO_MANY_IN_FLIGHT: Reason.TOO_MANY_INACTIVE,
        ErrorCode.SEQUENCE_TOO_OLD: _FAILED,
        ErrorCode.BACKLOG_FULL: Reason.BACKLOG_FULL,
        ErrorCode.TRANSACTION_NOT_FOUND: Reason.MESSAGE_ID_INVALID,
        ErrorCode.ALREADY_COMMITTED: Reason.DECISION_CONFLICT,
        ErrorCode.ALREADY_ROLLED_BACK: Reason.DECISION_CONFLICT,
        ErrorCode.OUT_OF_ORDER: _FAILED,
        # Topics.
        ErrorCode.TOPIC_NOT_FOUND: Reason.TOPIC_NOT_FOUND,
        ErrorCode.TOPIC_EXISTS: Reason.TOPIC_EXISTS,
        ErrorCode.TOPIC_DIFFERS: Reason.TOPIC_EXISTS,
        ErrorCode.TOPIC_IN_USE: Reason.TOPIC_IN_USE,
        ErrorCode.TOO_MANY_TOPICS: Reason.TOO_MANY_TOPICS,
        ErrorCode.SUBSCRIPTION_NOT_FOUND: Reason.SUBSCRIPTION_NOT_FOUND,
        ErrorCode.SUBSCRIPTION_EXISTS: Reason.SUBSCRIPTION_EXISTS,
        ErrorCode.SUBSCRIPTION_DIFFERS: Reason.SUBSCRIPTION_EXISTS,
        ErrorCode.TOO_MANY_SUBSCRIPTIONS: Reason.TOO_MANY_SUBSCRIPTIONS,
        ErrorCode.PUSH_UNAVAILABLE: Reason.ENDPOINT_ILLEGAL,
        ErrorCode.MESSAGE_NOT_WAITING: Reason.MESSAGE_ID_INVALID,
        ErrorCode.MESSAGE_NOT_PUBLISHED: Reason.MESSAGE_ID_INVALID,
        ErrorCode.MESSAGE_NOT_FOUND: Reason.MESSAGE_ID_INVALID,
        # Schedules, accounts and keys: no action of CMQ asks for them.
        ErrorCode.SCHEDULE_NOT_FOUND: Reason.INVALID_REQUEST,
        ErrorCode.SCHEDULE_EXISTS: Reason.INVALID_REQUEST,
        ErrorCode.SCHEDULE_DIFFERS: Reason.INVALID_REQUEST,
        ErrorCode.TOO_MANY_SCHEDULES: Reason.INVALID_REQUEST,
        ErrorCode.ACCOUNT_EXISTS: Reason.INVALID_REQUEST,
        ErrorCode.ACCOUNT_NOT_FOUND: Reason.INVALID_REQUEST,
        ErrorCode.KEY_NOT_FOUND: Reason.SECRET_ID_UNKNOWN,
        ErrorCode.KEY_EXISTS: Reason.INVALID_REQUEST,
        ErrorCode.LAST_KEY: Reason.INVALID_REQUEST,
        ErrorCode.KEY_EXISTS: Reason.INVALID_REQUEST,
        ErrorCode.ACCOUNT_NOT_EMPTY: Reason.INVALID_REQUEST,
        # The state of the server.
        ErrorCode.BUSY: _FAILED,
        ErrorCode.DISK_NEARLY_FULL: _FAILED,
        ErrorCode.SHUTTING_DOWN: _FAILED,
        ErrorCode.OUTCOME_UNKNOWN: _FAILED,
        ErrorCode.TOO_MANY_REQUESTS: Reason.THROTTLED,
        ErrorCode.INTERNAL_ERROR: _FAILED,
        ErrorCode.MESSAGES_DAMAGED: _FAILED,
        ErrorCode.STANDBY: _FAILED,
        ErrorCode.MOVED: _FAILED,
    }
)
"""The reason for each error of the broker. Errors of the client itself (no connection, no answer in time, an unknown
code of a newer broker) are failures of the server."""

_NAMES: Mapping[str, Reason] = MappingProxyType(
    {
        "queue": Reason.QUEUE_NAME,
        "topic": Reason.TOPIC_NAME,
        "subscription": Reason.SUBSCRIPTION_NAME,
        "endpoint": Reason.ENDPOINT_ILLEGAL,
    }
)
"""The reason of an ``invalid_argument`` for a malformed name."""

_BY_FIELD: Mapping[str, Reason] = MappingProxyType(
    {
        "rewind_ms": Reason.REWIND_WINDOW,
        "delay_ms": Reason.DELAY,
        "protocol": Reason.ENDPOINT_FORMAT,
        "routing_key": Reason.OUT_OF_RANGE,
        "routing_keys": Reason.ROUTING_KEY_MISSING,
        "binding_keys": Reason.BINDING_KEY_MISSING,
        "all_or_none": Reason.AUTHENTICATION_FAILED,
    }
)
"""The reason of an ``invalid_argument`` by its field. The actions check ranges before the broker does, so that an error
names CMQ's parameter; left for the broker are contradictions between attributes, which need the queue or topic."""

CMQ_NAMES: Mapping[str, str] = MappingProxyType(
    {attribute.name: attribute.cmq for attribute in QUEUE.values() if attribute.cmq}
    | {
        "delay_ms": "delaySeconds",
        "dead_letter_queue": "deadLetterQueue",
        "dead_letter_max_receives": "maxReceiveCount",
        "dead_letter_after_ms": "maxTimeToLive",
        "tags": "msgTag",
        "routing_key": "routingKey",
        "routing_keys": "routingKey",
        "filter_tags": "filterTag",
        "binding_keys": "bindingKey",
        "bodies": "msgBody",
        "receipt_handles": "receiptHandle",
        "message_ids": "msgId",
    }
)
"""CMQ's name of a parameter, by the broker's name."""


def cmq_name(field: str) -> str:
    """Return CMQ's name of a field of the protocol; a field that CMQ lacks keeps its name, without its unit."""
    name, bracket, rest = field.partition("[")
    return f"{CMQ_NAMES.get(name) or argument_name(name)}{bracket}{rest}"


CMQ_WORDS: Final = Words(cmq_name, in_seconds, iso_time, in_bytes)
"""Words of API 2.0, whose durations are seconds. There is no advice to use calls that this API lacks."""


def translate(
    error: native.CmqError, *, is_data: bool, failure: Reason = Reason.INTERNAL_ERROR, words: Words = CMQ_WORDS
) -> Refusal:
    """Return the refusal for an error of the client or the broker.

    Args:
        error: any error of ``cmqd_client``.
        is_data: True for an operation on messages, False for one that controls queues and topics.
        failure: the reason of a failure of the server.
        words: names and units of the text.
    """
    if isinstance(error, native.TimeNotRewindable):
        return _not_rewindable(error, words)
    reason = None if error.code is None else TRANSLATIONS.get(error.code)
    if isinstance(error, native.InvalidArgument):
        reason = _reason_of_field(error)
    elif reason is Reason.THROTTLED and not is_data:
        reason = Reason.CONTROL_THROTTLED
    elif reason is None:
        reason = failure
    detail = error.text_in(words)
    if error.retry_after is not None:
        detail += f"; try again in {in_seconds(round(error.retry_after * 1000))}"
    return Refusal(reason, detail)


def _reason_of_field(error: native.InvalidArgument) -> Reason:
    field = str(error.details.get("field"))
    if field in _NAMES:
        # The broker also names a queue that is of the wrong kind, for example never redriven.
        is_malformed = error.details.get("form") == "name"
        other = Reason.ENDPOINT_FORMAT if field == "endpoint" else Reason.PARAMETERS_ERROR
        return _NAMES[field] if is_malformed else other
    if error.details.get("limit") == "empty":
        # A routing key for a topic that filters by tags, for example: no parameter is missing.
        return Reason.PARAMETERS_ERROR
    return _BY_FIELD.get(field, Reason.PARAMETERS_ERROR)


def _not_rewindable(error: native.TimeNotRewindable, words: Words) -> Refusal:
    nearest = error.nearest
    if nearest is None:
        return Refusal(Reason.NOT_REWINDABLE, f"the queue has no rewind window; set {words.field('rewind_ms')} first")
    return Refusal(
        Reason.REWIND_TIME,
        f"the nearest time to which the queue can be rewound is {int(nearest.timestamp())}; no message was changed",
    )
