"""Answers of operations on topics, subscriptions and deliveries, as fields of API 2.0.

CMQ's SDKs spell some names in two ways (``protocol`` and ``protocal``, ``filterTag`` and ``filterTags``, ``bindingKey``
and, in PHP, ``bindindKey``). Answers have both.
"""

from typing import Any

from cmqd_client import SubscriptionInfo, TopicInfo
from cmqd_client.subscription import ContentFormat, RetryStrategy
from cmqd_client.topic import FilterType
from cmqd_client.topics.delivery_reports import Delivery, MessageDeliveries, PendingMessage, PendingPage
from cmqd_gateway.cmq.api2.fields import Fields
from cmqd_gateway.cmq.api2.message_answers import body_fields
from cmqd_gateway.cmq.identifiers import subscription_id, topic_id
from cmqd_gateway.cmq.numbers import bounded, seconds, whole_seconds
from cmqd_gateway.cmq.operations.listing import Listed
from cmqd_gateway.cmq.operations.subscriptions import (
    CONTENT_FORMATS,
    STRATEGIES,
    ShownSubscription,
    SubscriptionsListed,
)
from cmqd_gateway.cmq.operations.topics import BY_ROUTING_KEYS, BY_TAGS


def created_topic(info: TopicInfo) -> Fields:
    """Return the fields of a new topic, with its name, because a long name was cut."""
    return {"topicId": topic_id(info.id), "topicName": info.name}


def topic_page(page: Listed) -> Fields:
    """Return the fields of a page of topics."""
    return {
        "totalCount": page.total,
        "topicList": [{"topicId": topic_id(number), "topicName": name} for number, name in page.entries],
    }


def topic_fields(info: TopicInfo) -> Fields:
    """Return a topic's attributes and counts as fields of an answer."""
    return {
        "topicName": info.name,
        "topicId": topic_id(info.id),
        "msgCount": bounded(info.retained),
        "maxMsgSize": info.max_message_bytes,
        "msgRetentionSeconds": whole_seconds(info.lifecycle),
        "createTime": seconds(info.create_time),
        "lastModifyTime": seconds(info.modify_time),
        "filterType": BY_ROUTING_KEYS if info.filter_type == FilterType.ROUTING else BY_TAGS,
    }


def subscribed(info: SubscriptionInfo) -> Fields:
    """Return the fields of a new subscription.

    A subscription to a URL has ``secret``, the key of the signatures, which is shown once.
    """
    fields = {"subscriptionId": subscription_id(info.id)}
    return fields if info.secret is None else fields | {"secret": info.secret}


def subscription_fields(subscription: ShownSubscription) -> Fields:
    """Return a subscription's attributes and counts as fields of an answer."""
    info = subscription.info
    strategies = {strategy: name for name, strategy in STRATEGIES.items()}
    formats = {content_format: name for name, content_format in CONTENT_FORMATS.items()}
    return {
        "topicOwner": subscription.topic_owner,
        "topicName": info.topic,
        "subscriptionName": info.name,
        "subscriptionId": subscription_id(info.id),
        "msgCount": bounded(info.waiting + info.in_retry),
        "protocol": info.protocol,
        "protocal": info.protocol,
        "endpoint": info.endpoint,
        "notifyStrategy": strategies.get(RetryStrategy(info.strategy), info.strategy),
        "notifyContentFormat": formats.get(ContentFormat(info.content_format), info.content_format),
        "createTime": seconds(info.create_time),
        "lastModifyTime": seconds(info.modify_time),
        "bindingKey": info.binding_keys,
        "bindindKey": info.binding_keys,
        "filterTag": info.filter_tags,
        "filterTags": info.filter_tags,
        "lastError": info.last_error or "",
    }


def subscription_page(page: SubscriptionsListed) -> Fields:
    """Return the fields of a page of subscriptions."""
    return {
        "totalCount": page.total,
        "subscriptionList": [
            {
                "subscriptionId": subscription_id(info.id),
                "subscriptionName": info.name,
                "protocol": info.protocol,
                "protocal": info.protocol,
                "endpoint": info.endpoint,
            }
            for info in page.subscriptions
        ],
    }


def pending_page(page: PendingPage) -> Fields:
    """Return the fields of a page; ``nextStart`` is ``start`` of the next page, and is missing at the end."""
    fields: dict[str, Any] = {"msgInfoList": [_pending_fields(message) for message in page]}
    return fields if page.next_start is None else fields | {"nextStart": page.next_start}


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


def retried(messages: int) -> Fields:
    """Return the fields of a retry."""
    return {"msgCount": messages}


def delivery_report(report: MessageDeliveries) -> Fields:
    """Return the fields of a report on the deliveries of a message."""
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
