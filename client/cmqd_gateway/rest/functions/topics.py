"""Topics and subscriptions."""

from typing import Any

import msgspec

from cmqd_client import Subscription
from cmqd_client import TopicInfo as ClientTopicInfo
from cmqd_gateway.rest.attributes import filled, set_fields
from cmqd_gateway.rest.functions.messages import body_of, message_id_of, page_end, page_start
from cmqd_gateway.rest.functions.queues import name_list, next_offset
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import invalid
from cmqd_gateway.rest.replies import (
    Deliveries,
    MessageDeliveries,
    NameList,
    PendingMessage,
    PendingMessages,
    Published,
    PublishedBatch,
    QueueSubscriptionList,
    RotatedSecret,
    SubscriptionInfo,
    SubscriptionList,
    TopicInfo,
    TopicMatch,
)
from cmqd_gateway.rest.types import (
    ListQuery,
    MatchQuery,
    NewSubscription,
    Nothing,
    PendingQuery,
    PublishMessage,
    PublishMessages,
    QueueSubscriptionQuery,
    RotateSecret,
    SubscriptionChanges,
    TopicAttributes,
    TopicChanges,
)


async def list_topics(call: Call[ListQuery, Nothing]) -> NameList:
    """List topics of the account, by name."""
    query = call.query
    page = await call.client.topics(search=query.search, offset=query.offset, limit=query.limit)
    return name_list(page, query.offset)


async def create_topic(call: Call[Nothing, TopicAttributes]) -> TopicInfo:
    """Create a topic. If a topic of this name exists, the request fails: to accept an equal topic, use PUT.

    A name has 3 to 64 ASCII letters, digits, `-` and `_`. The broker cuts a longer name; `name` of the reply is the
    name in use.
    """
    return _topic_info(await call.client.create_topic_info(call.names["topic"], **set_fields(call.body)))


async def ensure_topic(call: Call[Nothing, TopicAttributes]) -> TopicInfo:
    """Create a topic, or check that the existing topic has the given attributes. Safe to repeat."""
    return _topic_info(await call.client.ensure_topic_info(call.names["topic"], **set_fields(call.body)))


async def get_topic(call: Call[Nothing, Nothing]) -> TopicInfo:
    """Return the attributes and the counts of a topic."""
    return _topic_info(await call.client.topic(call.names["topic"]).attributes())


async def set_topic(call: Call[Nothing, TopicChanges]) -> TopicInfo:
    """Change attributes of a topic, for messages published from now on. The filter cannot be changed."""
    return _topic_info(await call.client.topic(call.names["topic"]).set_attributes(**set_fields(call.body)))


async def delete_topic(call: Call[Nothing, Nothing]) -> None:
    """Delete a topic that has no subscriptions."""
    await call.client.delete_topic(call.names["topic"])


async def publish_message(call: Call[Nothing, PublishMessage]) -> Published:
    """Publish a message to every subscription that matches now.

    When the reply comes, the message and its copies in queues are on disk. A message that matches no subscription is
    discarded, which is not an error: `matched` is 0.
    """
    body = call.body
    _check_labels(body, "")
    published = await call.client.topic(call.names["topic"]).publish(
        body_of(body.body, body.encoding, "body"),
        tags=body.tags,
        routing_key=body.routing_key,
        headers=body.headers or None,
        dedup_id=call.dedup_id(body.dedup_id),
    )
    return Published.of(published)


async def publish_messages(call: Call[Nothing, PublishMessages]) -> PublishedBatch:
    """Publish up to 256 messages in one step: all are published with all their copies, or none is.

    With an `Idempotency-Key` KEY, the dedup ids of the messages are `KEY:0`, `KEY:1` and so on.
    """
    messages = call.body.messages
    for index, message in enumerate(messages):
        _check_labels(message, f"messages[{index}].")
    has_tags = any(message.tags for message in messages)
    has_keys = any(message.routing_key is not None for message in messages)
    if has_tags and has_keys:
        raise invalid("messages", "a batch has tags (tag topic) or routing keys (routing topic), not both")
    published = await call.client.topic(call.names["topic"]).publish_batch(
        [body_of(message.body, message.encoding, f"messages[{index}].body") for index, message in enumerate(messages)],
        tags=[message.tags or [] for message in messages] if has_tags else None,
        routing_keys=[message.routing_key or "" for message in messages] if has_keys else None,
        headers=[message.headers or None for message in messages],
        dedup_ids=call.dedup_ids([message.dedup_id for message in messages]),
        after=call.body.after,
    )
    return PublishedBatch(results=[Published.of(entry) for entry in published])


# ---------------------------------------------------------------- subscriptions


async def list_subscriptions(call: Call[ListQuery, Nothing]) -> SubscriptionList:
    """List the subscriptions of a topic, by name."""
    query = call.query
    topic = call.client.topic(call.names["topic"])
    page = await topic.subscriptions(search=query.search, offset=query.offset, limit=query.limit)
    return SubscriptionList.of(page, next_offset=next_offset(query.offset, len(page), page.total))


async def list_queue_subscriptions(call: Call[QueueSubscriptionQuery, Nothing]) -> QueueSubscriptionList:
    """List the subscriptions of all topics that deliver to a queue, by topic and name.

    A deleted queue has the subscriptions that outlived it.
    """
    query = call.query
    page = await call.client.queue(call.names["queue"]).subscriptions(offset=query.offset, limit=query.limit)
    return QueueSubscriptionList.of(page, next_offset=next_offset(query.offset, len(page), page.total))


async def create_subscription(call: Call[Nothing, NewSubscription]) -> SubscriptionInfo:
    """Subscribe a queue or a URL to the messages published from now on.

    Requests to a URL are signed (Standard Webhooks) with the `secret` of the reply, which is shown only once.
    """
    return await _subscribe(call, ensure=False)


async def ensure_subscription(call: Call[Nothing, NewSubscription]) -> SubscriptionInfo:
    """Subscribe, or check that the existing subscription has the given attributes. Safe to repeat."""
    return await _subscribe(call, ensure=True)


async def get_subscription(call: Call[Nothing, Nothing]) -> SubscriptionInfo:
    """Return the attributes, counts and the last error of a subscription."""
    return SubscriptionInfo.of(await _subscription(call).info())


async def set_subscription(call: Call[Nothing, SubscriptionChanges]) -> SubscriptionInfo:
    """Change a subscription in one step; pause or resume its deliveries. Tags and keys are for later publishes."""
    return SubscriptionInfo.of(await _subscription(call).set(**_given(call.body)))


async def delete_subscription(call: Call[Nothing, Nothing]) -> None:
    """End a subscription and drop its waiting messages; copies already in the queue stay there."""
    await _subscription(call).unsubscribe()


async def retry_deliveries(call: Call[Nothing, Nothing]) -> Deliveries:
    """Retry all failed messages of a subscription at once; messages out of retries get another attempt."""
    return Deliveries.of(await _subscription(call).retry_now())


async def drop_deliveries(call: Call[Nothing, Nothing]) -> Deliveries:
    """Drop all messages that wait or are in retry for a subscription."""
    return Deliveries.of(await _subscription(call).drop_waiting())


async def peek_deliveries(call: Call[PendingQuery, Nothing]) -> PendingMessages:
    """Return messages that a subscription has not had, in the order of their publishes; nothing changes."""
    query = call.query
    page = await _subscription(call).peek(query.max_messages, start=page_start(query.start), bodies=query.bodies)
    messages = [PendingMessage.of(message) for message in page]
    return PendingMessages(messages=messages, next_start=page_end(page.next_start))


async def retry_delivery(call: Call[Nothing, Nothing]) -> Deliveries:
    """Retry a message of a subscription at once, also if it was never tried or is out of retries.

    `messages` is 0 if the message was never tried and waits for its turn, because the broker has no room to remember
    another failure.
    """
    return Deliveries.of(await _subscription(call).retry(message_id_of(call)))


async def drop_delivery(call: Call[Nothing, Nothing]) -> None:
    """Drop a message for a subscription; an attempt under way may still deliver the message."""
    await _subscription(call).drop(message_id_of(call))


async def get_message_deliveries(call: Call[Nothing, Nothing]) -> MessageDeliveries:
    """Report the subscriptions that have had a published message, and the others.

    Known for at least as long as a subscription waits for the message, and after that for as long as the log of the
    broker holds the publish.
    """
    report = await call.client.topic(call.names["topic"]).deliveries(message_id_of(call))
    return MessageDeliveries.of(report)


async def match_subscriptions(call: Call[MatchQuery, Nothing]) -> TopicMatch:
    """Find the subscriptions that would get a message with these labels, and why the others would not.

    Nothing is published. The broker tests the labels with the code of a publish.
    """
    query = call.query
    result = await call.client.topic(call.names["topic"]).match(tags=query.tags, routing_key=query.routing_key)
    return TopicMatch.of(result)


async def rotate_secret(call: Call[Nothing, RotateSecret]) -> RotatedSecret:
    """Make a new secret for the signatures of requests to a URL. The reply shows it, and no other reply does."""
    rotated = await _subscription(call).rotate_secret(overlap=call.body.overlap)
    return RotatedSecret.of(rotated)


# ---------------------------------------------------------------- conversions


def _subscription(call: Call[Any, Any]) -> Subscription:
    return call.client.topic(call.names["topic"]).subscription(call.names["subscription"])


async def _subscribe(call: Call[Nothing, NewSubscription], *, ensure: bool) -> SubscriptionInfo:
    body = call.body
    if (body.queue is None) == (body.url is None):
        raise invalid("queue", "a subscription has exactly one of the fields queue and url")
    if body.url is not None and not body.url.lower().startswith(("http://", "https://")):
        raise invalid("url", "url must begin with http:// or https://")
    topic = call.client.topic(call.names["topic"])
    return SubscriptionInfo.of(await topic.subscribe_info(call.names["subscription"], ensure=ensure, **_given(body)))


def _given(body: NewSubscription | SubscriptionChanges) -> dict[str, Any]:
    """Return the attributes that a request gives.

    Raises:
        ProblemError: there are both tags and keys.
    """
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    if given.get("filter_tags") and given.get("binding_keys"):
        raise invalid(
            "filter_tags", "a subscription has filter_tags (tag topic) or binding_keys (routing topic), not both"
        )
    return given


def _check_labels(message: PublishMessage, before: str) -> None:
    if message.tags and message.routing_key is not None:
        raise invalid(
            f"{before}tags", f"{before}tags (tag topic) and {before}routing_key (routing topic) exclude each other"
        )


def _topic_info(info: ClientTopicInfo) -> TopicInfo:
    return TopicInfo.of(info, attributes=filled(TopicAttributes, msgspec.structs.asdict(info)))
