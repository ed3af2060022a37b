"""The objects of answers: CmqQueue, CmqTopic and CmqSubscription. Times are milliseconds, durations seconds.

Fields without a counterpart have the value of an object without the feature: no limit is 0, no tag is an empty list.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cmqd_client import QueueInfo, TopicInfo
from cmqd_client.subscription import ContentFormat, RetryStrategy
from cmqd_client.topic import FilterType
from cmqd_gateway.cmq.identifiers import queue_id, subscription_id, topic_id
from cmqd_gateway.cmq.numbers import whole_seconds
from cmqd_gateway.cmq.operations.descriptions import Described, DescribedQueue
from cmqd_gateway.cmq.operations.subscriptions import CONTENT_FORMATS, STRATEGIES, ShownSubscription
from cmqd_gateway.cmq.operations.topics import BY_ROUTING_KEYS, BY_TAGS
from cmqd_gateway.cmq.parameters import range_of
from cmqd_types.attributes import QUEUE

NORMAL: Final = 1
"""``Status`` of a queue or topic that can be used."""
_OF_ANY_OBJECT: Final[Mapping[str, Any]] = {
    "CreateUin": None,
    "Tags": [],
    "Trace": False,
    "TenantId": "",
    "NamespaceName": "",
    "Status": NORMAL,
}
_STRATEGY_NAMES: Final = {strategy: name for name, strategy in STRATEGIES.items()}
_FORMAT_NAMES: Final = {content_format: name for name, content_format in CONTENT_FORMATS.items()}


def milliseconds(moment: datetime | None) -> int:
    """Return a time in milliseconds since 1970; 0 = no such time."""
    return 0 if moment is None else round(moment.timestamp() * 1000)


def queue_fields(described: DescribedQueue) -> Mapping[str, Any]:
    """Return a ``CmqQueue``."""
    info = described.info
    return {
        "QueueId": queue_id(info.id),
        "QueueName": info.name,
        "Qps": 0,
        "Bps": 0,
        "MaxDelaySeconds": range_of(QUEUE["delay_ms"]).high,
        "MaxMsgHeapNum": info.max_backlog,
        # Whole seconds, as in API 2.0: the default of 200 ms is shown as 0.
        "PollingWaitSeconds": int(info.polling_wait),
        "MsgRetentionSeconds": whole_seconds(info.retention),
        "VisibilityTimeout": whole_seconds(info.visibility_timeout),
        "MaxMsgSize": info.max_message_bytes,
        "RewindSeconds": whole_seconds(info.rewind),
        "CreateTime": milliseconds(info.create_time),
        "LastModifyTime": milliseconds(info.modify_time),
        "ActiveMsgNum": info.active,
        "InactiveMsgNum": info.in_flight,
        "DelayMsgNum": info.delayed,
        "RewindMsgNum": info.rewindable,
        # Seconds, alone among the times.
        "MinMsgTime": milliseconds(info.oldest_message_time) // 1000,
        "Transaction": info.transactional,
        "DeadLetterSource": [
            {"QueueId": "" if number is None else queue_id(number), "QueueName": name}
            for number, name in described.sources
        ],
        "DeadLetterPolicy": _dead_letter_policy(info),
        "TransactionPolicy": {
            "FirstQueryInterval": whole_seconds(info.first_check),
            "MaxQueryCount": info.max_checks,
        }
        if info.transactional
        else None,
        **_OF_ANY_OBJECT,
        "MaxUnackedMsgNum": 0,
        "MaxMsgBacklogSize": 0,
        "RetentionSizeInMB": 0,
    }


def _dead_letter_policy(info: QueueInfo) -> Mapping[str, Any] | None:
    if not info.dead_letter_queue:
        return None
    return {
        # The name, as in requests.
        "DeadLetterQueue": info.dead_letter_queue,
        "Policy": 0 if info.dead_letter_max_receives else 1,
        "MaxTimeToLive": whole_seconds(info.dead_letter_after),
        "MaxReceiveCount": info.dead_letter_max_receives,
    }


def queue_page(page: Described[DescribedQueue]) -> Mapping[str, Any]:
    """Return the fields of a list of queues."""
    return {"TotalCount": page.total, "QueueList": [queue_fields(each) for each in page.entries]}


def topic_fields(info: TopicInfo) -> Mapping[str, Any]:
    """Return a ``CmqTopic``."""
    return {
        "TopicId": topic_id(info.id),
        "TopicName": info.name,
        "MsgRetentionSeconds": whole_seconds(info.lifecycle),
        "MaxMsgSize": info.max_message_bytes,
        "Qps": 0,
        "FilterType": BY_ROUTING_KEYS if info.filter_type == FilterType.ROUTING else BY_TAGS,
        "CreateTime": milliseconds(info.create_time),
        "LastModifyTime": milliseconds(info.modify_time),
        "MsgCount": info.retained,
        **_OF_ANY_OBJECT,
        "BrokerType": 0,
        "SubscriptionCount": info.subscriptions,
    }


def topic_page(page: Described[TopicInfo]) -> Mapping[str, Any]:
    """Return the fields of a list of topics."""
    return {"TotalCount": page.total, "TopicList": [topic_fields(each) for each in page.entries]}


def subscription_fields(described: ShownSubscription) -> Mapping[str, Any]:
    """Return a ``CmqSubscription``."""
    info = described.info
    return {
        "SubscriptionName": info.name,
        "SubscriptionId": subscription_id(info.id),
        # A number in CMQ; accounts of this broker have names.
        "TopicOwner": int(described.topic_owner) if described.topic_owner.isdecimal() else None,
        "MsgCount": info.waiting + info.in_retry,
        "LastModifyTime": milliseconds(info.modify_time),
        "CreateTime": milliseconds(info.create_time),
        "BindingKey": info.binding_keys,
        "Endpoint": info.endpoint,
        "FilterTags": info.filter_tags,
        "Protocol": info.protocol,
        "NotifyStrategy": _STRATEGY_NAMES.get(RetryStrategy(info.strategy), info.strategy),
        "NotifyContentFormat": _FORMAT_NAMES.get(ContentFormat(info.content_format), info.content_format),
        "TopicName": info.topic,
    }


def subscription_page(page: Described[ShownSubscription]) -> Mapping[str, Any]:
    """Return the fields of a list of subscriptions."""
    return {"TotalCount": page.total, "SubscriptionSet": [subscription_fields(each) for each in page.entries]}
