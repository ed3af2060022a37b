"""Operations on deliveries, beyond CMQ: the messages that wait for a subscription, and the deliveries of a message."""

from collections.abc import Awaitable
from typing import Annotated, Final, TypeVar

from cmqd_client.topics.delivery_reports import MessageDeliveries, PendingPage
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.operations.subscriptions import SubscriptionRequest
from cmqd_gateway.cmq.parameters import MAX_BATCH, OperationRequest, Whole
from cmqd_gateway.cmq.reasons import Reason, Refusal

T = TypeVar("T")


class PeekDeliveries(SubscriptionRequest, frozen=True):
    """Parameters of PeekDeliveries."""

    num_of_msg: Annotated[int, Whole(1, MAX_BATCH)] = MAX_BATCH
    start: Annotated[int, Whole(0, (1 << 63) - 1)] = 0


async def peek_deliveries(call: Call, request: PeekDeliveries) -> PendingPage:
    """Return messages that a subscription has not had, in the order of their publishes; nothing changes."""
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    return await subscription.peek(request.num_of_msg, start=request.start)


class DeliveryRequest(SubscriptionRequest, frozen=True, kw_only=True):
    """Parameters of RetryDelivery and DropDelivery."""

    msg_id: str


async def retry_delivery(call: Call, request: DeliveryRequest) -> int:
    """Retry a message of a subscription at once.

    Returns:
        The number of messages; 0 if the message waits for its turn.
    """
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    return (await _with_id(subscription.retry(request.msg_id))).messages


async def drop_delivery(call: Call, request: DeliveryRequest) -> None:
    """Drop a message for a subscription."""
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    await _with_id(subscription.drop(request.msg_id))


class QueryMessageDeliveries(OperationRequest, frozen=True):
    """Parameters of QueryMessageDeliveries."""

    topic_name: str
    msg_id: str


async def query_message_deliveries(call: Call, request: QueryMessageDeliveries) -> MessageDeliveries:
    """Report the subscriptions that have had a published message, and the others."""
    return await _with_id(call.client.topic(request.topic_name).deliveries(request.msg_id))


async def _with_id(request: Awaitable[T]) -> T:
    """Return the result of a request that names a message.

    Raises:
        Refusal: the client refused a malformed id without a request.
    """
    try:
        return await request
    except ValueError as error:
        raise Refusal(Reason.MESSAGE_ID_INVALID, str(error)) from None


OPERATIONS: Final = [
    operation("PeekDeliveries", PeekDeliveries, peek_deliveries),
    operation("RetryDelivery", DeliveryRequest, retry_delivery),
    operation("DropDelivery", DeliveryRequest, drop_delivery),
    operation("QueryMessageDeliveries", QueryMessageDeliveries, query_message_deliveries),
]
