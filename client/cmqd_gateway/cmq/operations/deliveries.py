"""Actions on deliveries, beyond CMQ: the messages that wait for a subscription, and the deliveries of a message."""

from collections.abc import Awaitable
from typing import Annotated, Any, Final, TypeVar

from cmqd_client.topics.delivery_reports import Delivery, PendingMessage
from cmqd_gateway.cmq.api2.message_answers import body_fields
from cmqd_gateway.cmq.numbers import seconds
from cmqd_gateway.cmq.operation import Call, Fields, operation
from cmqd_gateway.cmq.operations.subscriptions import SubscriptionRequest
from cmqd_gateway.cmq.parameters import MAX_BATCH, OperationRequest, Whole
from cmqd_gateway.cmq.reasons import Reason, Refusal

T = TypeVar("T")


class PeekDeliveries(SubscriptionRequest, frozen=True):
    """Parameters of PeekDeliveries."""

    num_of_msg: Annotated[int, Whole(1, MAX_BATCH)] = MAX_BATCH
    start: Annotated[int, Whole(0, (1 << 63) - 1)] = 0


async def peek_deliveries(call: Call, request: PeekDeliveries) -> Fields:
    """Return messages that a subscription has not had, in the order of their publishes; nothing changes.

    ``nextStart`` is ``start`` of the next page, and is missing at the end.
    """
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    page = await subscription.peek(request.num_of_msg, start=request.start)
    fields: dict[str, Any] = {"msgInfoList": [_pending_fields(message) for message in page]}
    if page.next_start is not None:
        fields["nextStart"] = page.next_start
    return fields


def _pending_fields(message: PendingMessage) -> dict[str, Any]:
    return {
        **body_fields(message.body or b""),
        "msgId": message.id,
        "state": message.state,
        "publishTime": seconds(message.publish_time),
        "msgTag": message.tags,
        "routingKey": message.routing_key or "",
        "attempts": message.attempts,
        "nextAttemptTime": seconds(message.next_attempt_time),
        "lastError": message.last_error or "",
        "lastErrorTime": seconds(message.last_error_time),
    }


class DeliveryRequest(SubscriptionRequest, frozen=True, kw_only=True):
    """Parameters of RetryDelivery and DropDelivery."""

    msg_id: str


async def retry_delivery(call: Call, request: DeliveryRequest) -> Fields:
    """Retry a message of a subscription at once; ``msgCount`` is 0 if the message waits for its turn."""
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    return {"msgCount": (await _with_id(subscription.retry(request.msg_id))).messages}


async def drop_delivery(call: Call, request: DeliveryRequest) -> Fields:
    """Drop a message for a subscription."""
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    await _with_id(subscription.drop(request.msg_id))
    return {}


class QueryMessageDeliveries(OperationRequest, frozen=True):
    """Parameters of QueryMessageDeliveries."""

    topic_name: str
    msg_id: str


async def query_message_deliveries(call: Call, request: QueryMessageDeliveries) -> Fields:
    """Report the subscriptions that have had a published message, and the others."""
    report = await _with_id(call.client.topic(request.topic_name).deliveries(request.msg_id))
    return {
        "msgId": report.id,
        "publishTime": seconds(report.publish_time),
        "msgTag": report.tags,
        "routingKey": report.routing_key or "",
        "deliveryList": [_delivery_fields(delivery) for delivery in report],
    }


def _delivery_fields(delivery: Delivery) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "subscriptionName": delivery.subscription or "",
        "state": delivery.state,
        "endpoint": delivery.endpoint or "",
        "nextAttemptTime": seconds(delivery.next_attempt_time),
        "lastError": delivery.last_error or "",
        "lastErrorTime": seconds(delivery.last_error_time),
        "deliveredTime": seconds(delivery.delivered_time),
        "copyMsgId": delivery.copy_id or "",
        "dropReason": delivery.drop_reason or "",
    }
    # Missing, because 0 would say that no attempt failed.
    return fields if delivery.attempts is None else fields | {"attempts": delivery.attempts}


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
