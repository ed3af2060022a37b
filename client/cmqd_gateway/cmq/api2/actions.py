"""The table of API 2.0: its actions, which are the operations of CMQ in forms and JSON.

A parameter has the lower-camel name of its field: ``queueName`` for ``queue_name``. A row adds further spellings of
parameters, and values that are no plain text or number.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from cmqd_gateway.cmq.api2 import message_answers, queue_answers, topic_answers
from cmqd_gateway.cmq.api2.dead_letter_json import parse_policy
from cmqd_gateway.cmq.api2.fields import Fields
from cmqd_gateway.cmq.api2.form import FormReader, whole_value
from cmqd_gateway.cmq.operation import Operation
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.messages import MAX_WAIT_SECONDS
from cmqd_gateway.cmq.reasons import Reason, Refusal

QUEUES_OWN_WAIT: Final = 30_000
"""``pollingWaitSeconds`` that the Java SDK sends for "the polling wait of the queue"."""


class Action(msgspec.Struct, frozen=True):
    """An action of API 2.0."""

    operation: Operation
    reader: FormReader
    """Reads the parameters."""
    encode: Callable[[Any], Fields]
    """Returns the fields for an answer of the operation, or raises the refusal of a batch that failed."""
    note: str
    """The effect as far as the operation does not have it at other doors, for documents."""

    @property
    def name(self) -> str:
        """The name of the action, which is the name of the operation."""
        return self.operation.name


def polling_wait(name: str, value: bytes) -> int | None:
    """Return the wait of a receive in seconds, None for the queue's own.

    Raises:
        Refusal: the wait is no number, or is negative.
    """
    seconds = whole_value(name, value)
    if seconds == QUEUES_OWN_WAIT:
        return None
    if seconds < 0:
        raise Refusal(
            Reason.OUT_OF_RANGE,
            f"{name} is {seconds}; the range is 0 to {MAX_WAIT_SECONDS},"
            f" and {QUEUES_OWN_WAIT} for the wait of the queue",
        )
    return min(seconds, MAX_WAIT_SECONDS)


def _no_fields(answer: object) -> Fields:
    return {}


def _row(
    name: str,
    encode: Callable[[Any], Fields] = _no_fields,
    note: str = "",
    *,
    twins: Mapping[str, str] = MappingProxyType({}),
    converters: Mapping[str, Callable[[str, bytes], Any]] = MappingProxyType({}),
) -> Action:
    """Return the action of an operation.

    Args:
        name: of the operation.
        encode: see :class:`Action`.
        note: see :class:`Action`.
        twins: further spellings of parameters, with the names that they stand for.
        converters: read the values of these fields of the request.
    """
    operation = OPERATIONS[name]
    return Action(operation, FormReader(operation.request_type, twins, converters), encode, note)


_POLICY: Final = {"dead_letter_policy": parse_policy}
_TWINS: Final = {"protocal": "protocol", "filterTags": "filterTag", "bindindKey": "bindingKey"}
"""CMQ's SDKs spell some parameters of subscriptions in two ways."""
_WAIT: Final = {"polling_wait_seconds": polling_wait}

ACTIONS: Final = (
    _row("CreateQueue", queue_answers.created_queue, "the answer has its id", converters=_POLICY),
    _row("ListQueue", queue_answers.queue_page, "``totalCount`` counts all that match"),
    _row("GetQueueAttributes", queue_answers.queue_fields),
    _row("SetQueueAttributes", queue_answers.queue_fields, "the answer has all attributes", converters=_POLICY),
    _row("DeleteQueue"),
    _row("RewindQueue"),
    _row("ClearQueue"),
    _row("UnbindDeadLetter", twins={"sourceQueueName": "queueName"}),
    _row("RedriveDeadLetters", queue_answers.redrive_fields),
    _row("GetRedrive", queue_answers.redrive_fields),
    _row("CancelRedrive", queue_answers.redrive_fields),
    _row("SendMessage", message_answers.stored, "a repeat of the same request is stored once"),
    _row("BatchSendMessage", message_answers.stored_batch),
    _row("ReceiveMessage", message_answers.received, converters=_WAIT),
    _row("BatchReceiveMessage", message_answers.received_batch, converters=_WAIT),
    _row("DeleteMessage", note="a repeat of the same request gets the first answer"),
    _row("BatchDeleteMessage", message_answers.deleted_batch, "``errorList`` has the failures"),
    _row("ChangeMessageVisibility", message_answers.hidden),
    _row("PeekMessage", message_answers.peeked_page),
    _row("SendHalfMessage", message_answers.stored, "a repeat of the same request is stored once"),
    _row("BatchSendHalfMessage", message_answers.stored_batch),
    _row("CommitHalfMessage", message_answers.decided),
    _row("RollbackHalfMessage", message_answers.decided),
    _row("ListHalfMessage", message_answers.undecided_page, "``nextStart`` is absent on the last page"),
    _row("CreateTopic", topic_answers.created_topic),
    _row("SetTopicAttributes"),
    _row("GetTopicAttributes", topic_answers.topic_fields),
    _row("ListTopic", topic_answers.topic_page, "``totalCount`` counts all that match"),
    _row("DeleteTopic"),
    _row("PublishMessage", message_answers.stored, "a repeat of the same request is published once"),
    _row("BatchPublishMessage", message_answers.stored_batch),
    _row("Subscribe", topic_answers.subscribed, twins=_TWINS),
    _row("Unsubscribe"),
    _row("SetSubscriptionAttributes", twins=_TWINS),
    _row("GetSubscriptionAttributes", topic_answers.subscription_fields),
    _row("ListSubscriptionByTopic", topic_answers.subscription_page, "``totalCount`` counts all that match"),
    _row("ClearSubscriptionFilterTags"),
    _row("PeekDeliveries", topic_answers.pending_page),
    _row("RetryDelivery", topic_answers.retried, "``msgCount`` is 0 if the message waits for its turn"),
    _row("DropDelivery"),
    _row("QueryMessageDeliveries", topic_answers.delivery_report),
    _row("QueryQueueRoute", message_answers.route),
    _row("QueryTopicRoute", message_answers.route),
)
"""All actions."""

TABLE: Mapping[str, Action] = {action.name.lower(): action for action in ACTIONS}
"""The actions by their names in lower case: SDKs spell some names differently."""
