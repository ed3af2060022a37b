"""The table of API 2.0: its actions, which are the operations of CMQ in forms and JSON.

A parameter has the lower-camel name of its field: ``queueName`` for ``queue_name``. A row adds further spellings of
parameters, and values that are no plain text or number.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec

from cmqd_gateway.cmq.api2 import message_answers
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


def _as_it_is(answer: object) -> Fields:
    return cast("Fields", answer)


def _row(
    name: str,
    encode: Callable[[Any], Fields] = _no_fields,
    *,
    twins: Mapping[str, str] = MappingProxyType({}),
    converters: Mapping[str, Callable[[str, bytes], Any]] = MappingProxyType({}),
) -> Action:
    """Return the action of an operation.

    Args:
        name: of the operation.
        encode: see :class:`Action`.
        twins: further spellings of parameters, with the names that they stand for.
        converters: read the values of these fields of the request.
    """
    operation = OPERATIONS[name]
    return Action(operation, FormReader(operation.request_type, twins, converters), encode)


_WAIT: Final = {"polling_wait_seconds": polling_wait}

ACTIONS: Final = (
    _row("CreateQueue", _as_it_is),
    _row("ListQueue", _as_it_is),
    _row("GetQueueAttributes", _as_it_is),
    _row("SetQueueAttributes", _as_it_is),
    _row("DeleteQueue"),
    _row("RewindQueue"),
    _row("ClearQueue"),
    _row("UnbindDeadLetter"),
    _row("RedriveDeadLetters", _as_it_is),
    _row("GetRedrive", _as_it_is),
    _row("CancelRedrive", _as_it_is),
    _row("SendMessage", message_answers.stored),
    _row("BatchSendMessage", message_answers.stored_batch),
    _row("ReceiveMessage", message_answers.received, converters=_WAIT),
    _row("BatchReceiveMessage", message_answers.received_batch, converters=_WAIT),
    _row("DeleteMessage"),
    _row("BatchDeleteMessage", message_answers.deleted_batch),
    _row("ChangeMessageVisibility", message_answers.hidden),
    _row("PeekMessage", message_answers.peeked_page),
    _row("SendHalfMessage", message_answers.stored),
    _row("BatchSendHalfMessage", message_answers.stored_batch),
    _row("CommitHalfMessage", message_answers.decided),
    _row("RollbackHalfMessage", message_answers.decided),
    _row("ListHalfMessage", message_answers.undecided_page),
    _row("CreateTopic", _as_it_is),
    _row("SetTopicAttributes"),
    _row("GetTopicAttributes", _as_it_is),
    _row("ListTopic", _as_it_is),
    _row("DeleteTopic"),
    _row("PublishMessage", message_answers.stored),
    _row("BatchPublishMessage", message_answers.stored_batch),
    _row("Subscribe", _as_it_is),
    _row("Unsubscribe"),
    _row("SetSubscriptionAttributes"),
    _row("GetSubscriptionAttributes", _as_it_is),
    _row("ListSubscriptionByTopic", _as_it_is),
    _row("ClearSubscriptionFilterTags"),
    _row("PeekDeliveries", _as_it_is),
    _row("RetryDelivery", _as_it_is),
    _row("DropDelivery"),
    _row("QueryMessageDeliveries", _as_it_is),
    _row("QueryQueueRoute"),
    _row("QueryTopicRoute"),
)
"""All actions."""

TABLE: Mapping[str, Action] = {action.name.lower(): action for action in ACTIONS}
"""The actions by their names in lower case: SDKs spell some names differently."""
