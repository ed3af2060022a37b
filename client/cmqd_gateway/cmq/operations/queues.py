"""Operations on queues: create, list, read and change attributes, delete, rewind and clear.

Attributes have CMQ's seconds and whole numbers, from their declarations.
"""

from typing import Annotated, Any, Final, cast

from cmqd_client import QueueAttributes, QueueInfo
from cmqd_gateway.cmq.numbers import seconds
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.operations.dead_letters import DeadLetterPolicy, ShownQueue, policy_attributes, shown_queue
from cmqd_gateway.cmq.operations.listing import Listed, ListRequest, listed
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


NUMBERS: Final = {parameter_field(each.cmq): each for each in QUEUE.values() if each.cmq}
"""Attributes with a parameter of their own, by the field of a request."""


class CreateQueue(with_parameters(QueueRequest, NUMBERS), frozen=True):
    """Parameters of CreateQueue and SetQueueAttributes. A parameter that is absent has its default in a new queue, and
    otherwise leaves the attribute as it is.
    """

    transaction: Annotated[int, Whole(0, 1)] | None = None
    dead_letter_policy: DeadLetterPolicy | None = None


async def _attributes(call: Call, request: CreateQueue) -> QueueAttributes:
    """Return the attributes that a request names.

    Raises:
        Refusal: the dead-letter policy has a number that is missing or out of range.
    """
    attributes: dict[str, Any] = {}
    for parameter, attribute in NUMBERS.items():
        value = getattr(request, parameter)
        if value is not None:
            attributes[attribute.argument] = value
    if request.transaction is not None:
        attributes["transactional"] = request.transaction == 1
    attributes |= await policy_attributes(call, request.dead_letter_policy)
    return cast("QueueAttributes", attributes)


async def create_queue(call: Call, request: CreateQueue) -> QueueInfo:
    """Create a queue."""
    return await call.client.create_queue_info(request.queue_name, **await _attributes(call, request))


async def list_queue(call: Call, request: ListRequest) -> Listed:
    """List a page of the account's queues, by name."""
    # The broker refuses a limit of 0, which CMQ takes.
    page = await call.client.queues(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
    return listed(page, request.limit)


async def get_queue_attributes(call: Call, request: QueueRequest) -> ShownQueue:
    """Return the attributes and counts of a queue."""
    return await shown_queue(call.client, await call.client.queue(request.queue_name).attributes())


async def set_queue_attributes(call: Call, request: CreateQueue) -> ShownQueue:
    """Change the named attributes in one step."""
    info = await call.client.queue(request.queue_name).set_attributes(**await _attributes(call, request))
    return await shown_queue(call.client, info)


async def delete_queue(call: Call, request: QueueRequest) -> None:
    """Delete a queue with all its messages."""
    await call.client.delete_queue(request.queue_name)


class RewindQueue(OperationRequest, frozen=True):
    """Parameters of RewindQueue."""

    queue_name: QueueName
    start_consume_time: int


async def rewind_queue(call: Call, request: RewindQueue) -> None:
    """Make the messages active again that were deleted, and sent since a time.

    Raises:
        Refusal: the time lies before the window (10680), so the queue was rewound to the oldest possible time, which
            the text names; or the time is too late, or the queue has no window, and no message was changed.
    """
    name = call.shown("start_consume_time")
    start: float = request.start_consume_time
    if start > LAST_SECOND:
        start /= 1000
    if not 0 <= start <= LAST_SECOND:
        raise Refusal(
            Reason.REWIND_TIME,
            f"{name} is {request.start_consume_time}; it must be a time in seconds since 1970",
        )
    rewound = await call.client.queue(request.queue_name).rewind(max(start, FIRST_SECOND), strict=False)
    if rewound.clamped:
        raise Refusal(
            Reason.REWIND_TIME,
            f"{name} is before the rewind window; the queue was rewound to {seconds(rewound.time)}, the"
            f" oldest possible time, and {rewound.messages} messages are active again",
        )


async def clear_queue(call: Call, request: QueueRequest) -> None:
    """Drop all messages of a queue, in every state; their receipt handles become invalid."""
    await call.client.queue(request.queue_name).clear()


OPERATIONS: Final = [
    operation("CreateQueue", CreateQueue, create_queue),
    operation("ListQueue", ListRequest, list_queue, failure=Reason.LIST_QUEUE_FAILED),
    operation("GetQueueAttributes", QueueRequest, get_queue_attributes, failure=Reason.GET_ATTRIBUTES_FAILED),
    operation("SetQueueAttributes", CreateQueue, set_queue_attributes, failure=Reason.SET_ATTRIBUTES_FAILED),
    operation("DeleteQueue", QueueRequest, delete_queue, failure=Reason.DELETE_QUEUE_FAILED),
    operation("RewindQueue", RewindQueue, rewind_queue),
    operation("ClearQueue", QueueRequest, clear_queue),
]
