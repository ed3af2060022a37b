"""Actions on queues: create, list, read and change attributes, delete, rewind and clear.

Attributes have CMQ's names, seconds and whole numbers, from their declarations.
"""

from typing import Annotated, Any, Final, cast

import msgspec

from cmqd_client import QueueAttributes, QueueInfo
from cmqd_gateway.cmq.identifiers import queue_id
from cmqd_gateway.cmq.numbers import bounded, seconds, whole_seconds
from cmqd_gateway.cmq.operation import Call, Fields, operation
from cmqd_gateway.cmq.operations.dead_letters import ShownPolicy, parse_policy, policy_attributes, shown_policy
from cmqd_gateway.cmq.parameters import OperationRequest, QueueName, Whole, parameter_field, with_parameters
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

FIRST_SECOND: Final = 1_000_000_000
"""September 2001. An earlier time lies before every rewind window, and the client takes it for a duration."""
LAST_SECOND: Final = 99_999_999_999
"""A greater number is a time in milliseconds, as in the newest documents of CMQ."""


class QueueRequest(OperationRequest, frozen=True):
    """A request about a queue without further parameters."""

    queue_name: QueueName


_NUMBERS: Final = {parameter_field(each.cmq): each for each in QUEUE.values() if each.cmq}
"""Attributes with a parameter of their own, by the field of a request."""
_OF_TRANSACTIONS: Final = ("firstQueryInterval", "maxQueryCount")


class CreateQueue(with_parameters(QueueRequest, _NUMBERS), frozen=True):
    """Parameters of CreateQueue and SetQueueAttributes. A parameter that is absent has its default in a new queue, and
    otherwise leaves the attribute as it is.
    """

    dead_letter_policy: bytes | None = None
    """JSON; see :mod:`cmqd_gateway.cmq.operations.dead_letters`."""
    transaction: Annotated[int, Whole(0, 1)] | None = None


def queue_attributes(request: CreateQueue) -> QueueAttributes:
    """Return the attributes that a request names, except for its dead-letter policy."""
    attributes: dict[str, Any] = {}
    for parameter, attribute in _NUMBERS.items():
        value = getattr(request, parameter)
        if value is not None:
            attributes[attribute.argument] = value
    if request.transaction is not None:
        attributes["transactional"] = request.transaction == 1
    return cast("QueueAttributes", attributes)


def queue_fields(info: QueueInfo, policy: ShownPolicy | None) -> Fields:
    """Return a queue's attributes and counts as fields of an answer.

    The SDKs differ in the spelling of the number of rewindable messages, so both spellings are in the answer.
    """
    numbers = {each.cmq: whole_seconds(getattr(info, each.argument)) for each in _NUMBERS.values()}
    fields: dict[str, Any] = {
        "queueName": info.name,
        "queueId": queue_id(info.id),
        **{name: number for name, number in numbers.items() if info.transactional or name not in _OF_TRANSACTIONS},
        # Whole seconds, as CMQ: the default of 200 ms is shown as 0, which CMQ's documents describe as such a wait.
        "pollingWaitSeconds": int(info.polling_wait),
        "createTime": seconds(info.create_time),
        "lastModifyTime": seconds(info.modify_time),
        "activeMsgNum": bounded(info.active),
        "inactiveMsgNum": bounded(info.in_flight),
        "delayMsgNum": bounded(info.delayed),
        "rewindMsgNum": bounded(info.rewindable),
        "rewindmsgNum": bounded(info.rewindable),
        "minMsgTime": seconds(info.oldest_message_time),
        "transaction": int(info.transactional),
    }
    if info.transactional:
        fields["halfMsgNum"] = bounded(info.half)
    if policy is not None:
        fields["deadLetterPolicy"] = msgspec.to_builtins(policy)
    if info.dead_letter_sources:
        fields["deadLetterSource"] = info.dead_letter_sources
    return fields


async def create_queue(call: Call, request: CreateQueue) -> Fields:
    """Create a queue; the answer has its id."""
    policy = parse_policy(request.dead_letter_policy)
    attributes = queue_attributes(request)
    attributes |= await policy_attributes(call.client, policy)
    info = await call.client.create_queue_info(request.queue_name, **attributes)
    return {"queueId": queue_id(info.id)}


class ListQueue(OperationRequest, frozen=True):
    """Parameters of ListQueue."""

    search_word: str = ""
    offset: Annotated[int, Whole(0, 2**31 - 1)] = 0
    limit: Annotated[int, Whole(0, 50)] = 20


async def list_queue(call: Call, request: ListQueue) -> Fields:
    """List a page of the account's queues, by name; ``totalCount`` counts all that match."""
    page = await call.client.queues(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
    listed = list(zip(page.ids, page.names, strict=True))[: request.limit]
    return {
        "totalCount": page.total,
        "queueList": [{"queueId": queue_id(number), "queueName": name} for number, name in listed],
    }


async def get_queue_attributes(call: Call, request: QueueRequest) -> Fields:
    """Return the attributes and counts of a queue."""
    info = await call.client.queue(request.queue_name).attributes()
    return queue_fields(info, await shown_policy(call.client, info))


async def set_queue_attributes(call: Call, request: CreateQueue) -> Fields:
    """Change the named attributes in one step; the answer has all attributes."""
    policy = parse_policy(request.dead_letter_policy)
    attributes = queue_attributes(request)
    attributes |= await policy_attributes(call.client, policy)
    info = await call.client.queue(request.queue_name).set_attributes(**attributes)
    return queue_fields(info, await shown_policy(call.client, info))


async def delete_queue(call: Call, request: QueueRequest) -> Fields:
    """Delete a queue with all its messages."""
    await call.client.delete_queue(request.queue_name)
    return {}


class RewindQueue(OperationRequest, frozen=True):
    """Parameters of RewindQueue."""

    queue_name: QueueName
    start_consume_time: int


async def rewind_queue(call: Call, request: RewindQueue) -> Fields:
    """Make the messages active again that were deleted, and sent since a time.

    Raises:
        Refusal: the time lies before the window (10680), so the queue was rewound to the oldest possible time, which
            the text names; or the time is too late, or the queue has no window, and no message was changed.
    """
    start: float = request.start_consume_time
    if start > LAST_SECOND:
        start /= 1000
    if not 0 <= start <= LAST_SECOND:
        raise Refusal(
            Reason.REWIND_TIME,
            f"startConsumeTime is {request.start_consume_time}; it must be a time in seconds since 1970",
        )
    rewound = await call.client.queue(request.queue_name).rewind(max(start, FIRST_SECOND), strict=False)
    if rewound.clamped:
        raise Refusal(
            Reason.REWIND_TIME,
            f"startConsumeTime is before the rewind window; the queue was rewound to {seconds(rewound.time)}, the"
            f" oldest possible time, and {rewound.messages} messages are active again",
        )
    return {}


async def clear_queue(call: Call, request: QueueRequest) -> Fields:
    """Drop all messages of a queue, in every state; their receipt handles become invalid."""
    await call.client.queue(request.queue_name).clear()
    return {}


OPERATIONS: Final = [
    operation("CreateQueue", CreateQueue, create_queue),
    operation("ListQueue", ListQueue, list_queue, failure=Reason.LIST_QUEUE_FAILED),
    operation("GetQueueAttributes", QueueRequest, get_queue_attributes, failure=Reason.GET_ATTRIBUTES_FAILED),
    operation("SetQueueAttributes", CreateQueue, set_queue_attributes, failure=Reason.SET_ATTRIBUTES_FAILED),
    operation("DeleteQueue", QueueRequest, delete_queue, failure=Reason.DELETE_QUEUE_FAILED),
    operation("RewindQueue", RewindQueue, rewind_queue),
    operation("ClearQueue", QueueRequest, clear_queue),
]
