"""Queues, topics and subscriptions as API 2.0 describes them, translated into the attributes of this broker.

Pure functions. A value that this broker does not allow is replaced by the nearest allowed value, and a note says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from cmqd_client import FilterType, QueueAttributes
from cmqd_client.subscription import ContentFormat, RetryStrategy, SubscriptionAttributes
from cmqd_client.topic import TopicAttributes
from cmqd_types.attributes import QUEUE, TOPIC
from cmqd_types.declared import Attribute, Unit

_OF_TRANSACTIONS: Final = ("firstQueryInterval", "maxQueryCount")
BY_ROUTING_KEYS: Final = 2


class DeadLetters(msgspec.Struct, frozen=True):
    """The dead-letter policy of a queue."""

    queue: str
    """Name of the dead-letter queue."""
    max_receives: int
    """0 = the policy is by time."""
    after: int
    """Seconds; 0 = the policy is by receives."""

    def attributes(self) -> QueueAttributes:
        """Return the policy as attributes of a queue."""
        return {
            "dead_letter_queue": self.queue,
            "dead_letter_max_receives": self.max_receives,
            "dead_letter_after": self.after,
        }


class QueueDefinition(msgspec.Struct, frozen=True):
    """A queue of the source."""

    name: str
    attributes: QueueAttributes
    """Without the dead-letter policy: the dead-letter queue must exist first."""
    dead_letters: DeadLetters | None
    notes: list[str]


class TopicDefinition(msgspec.Struct, frozen=True):
    """A topic of the source."""

    name: str
    attributes: TopicAttributes
    notes: list[str]


class SubscriptionDefinition(msgspec.Struct, frozen=True):
    """A subscription of the source."""

    topic: str
    name: str
    queue: str | None
    url: str | None
    attributes: SubscriptionAttributes
    notes: list[str]


def queue_definition(name: str, answer: Mapping[str, Any], names_by_id: Mapping[str, str]) -> QueueDefinition:
    """Return a queue from the answer to GetQueueAttributes.

    Args:
        name: the name of the queue.
        answer: the answer.
        names_by_id: names of all queues of the source: a policy has the id of the dead-letter queue.
    """
    notes: list[str] = []
    values: dict[str, Any] = {}
    for attribute in QUEUE.values():
        value = answer.get(attribute.cmq)
        if value is not None and (attribute.cmq not in _OF_TRANSACTIONS or answer.get("transaction")):
            values[attribute.argument] = _in_range(attribute.cmq, attribute, int(value), notes)
    retention = values.get("retention")
    if retention is not None and values.get("rewind", 0) > retention:
        values["rewind"] = _clamped("rewindSeconds", values["rewind"], 0, retention, notes)
    if answer.get("transaction"):
        values["transactional"] = True
    return QueueDefinition(name, cast("QueueAttributes", values), _dead_letters(answer, names_by_id, notes), notes)


def _dead_letters(answer: Mapping[str, Any], names_by_id: Mapping[str, str], notes: list[str]) -> DeadLetters | None:
    policy: Mapping[str, Any] = answer.get("deadLetterPolicy") or {}
    given = str(policy.get("deadLetterQueue") or policy.get("deadLetterQueueName") or "")
    if not given:
        return None
    name = str(policy.get("deadLetterQueueName") or names_by_id.get(given, given))
    if int(policy.get("policy") or 0) == 0:
        receives = int(policy.get("maxReceiveCount") or 1)
        return DeadLetters(name, _in_range("maxReceiveCount", QUEUE["dead_letter_max_receives"], receives, notes), 0)
    after = int(policy.get("maxTimeToLive") or 0)
    return DeadLetters(name, 0, _in_range("maxTimeToLive", QUEUE["dead_letter_after_ms"], after, notes))


def topic_definition(name: str, answer: Mapping[str, Any]) -> TopicDefinition:
    """Return a topic from the answer to GetTopicAttributes.

    One page of CMQ's documents counts ``filterType`` from 0, all others count from 1. 2 alone means routing keys.
    """
    notes: list[str] = []
    is_routing = int(answer.get("filterType") or 0) == BY_ROUTING_KEYS
    attributes: TopicAttributes = {"filter_type": FilterType.ROUTING if is_routing else FilterType.TAG}
    size = answer.get("maxMsgSize")
    if size is not None:
        attributes["max_message_bytes"] = _in_range("maxMsgSize", TOPIC["max_message_bytes"], int(size), notes)
    return TopicDefinition(name, attributes, notes)


def subscription_definition(topic: TopicDefinition, name: str, answer: Mapping[str, Any]) -> SubscriptionDefinition:
    """Return a subscription from the answer to GetSubscriptionAttributes.

    CMQ takes binding keys for a topic that filters by tags, and ignores them.

    Raises:
        ValueError: the protocol is unknown.
    """
    protocol = str(answer.get("protocol") or answer.get("protocal") or "")
    endpoint = str(answer.get("endpoint") or "")
    if protocol not in ("queue", "http", "https"):
        raise ValueError(f"the protocol {protocol!r} is unknown")
    notes: list[str] = []
    attributes: SubscriptionAttributes = {}
    tags: Sequence[str] = answer.get("filterTag") or answer.get("filterTags") or ()
    keys: Sequence[str] = answer.get("bindingKey") or ()
    if tags:
        attributes["filter_tags"] = list(tags)
    if keys and topic.attributes.get("filter_type") == FilterType.ROUTING:
        attributes["binding_keys"] = list(keys)
    elif keys:
        notes.append(f"bindingKey is {', '.join(keys)} at the source and left out here: the topic filters by tags")
    is_backoff = answer.get("notifyStrategy") == "BACKOFF_RETRY"
    attributes["strategy"] = RetryStrategy.BACKOFF if is_backoff else RetryStrategy.EXPONENTIAL_DECAY
    is_simplified = answer.get("notifyContentFormat") == "SIMPLIFIED"
    attributes["content_format"] = ContentFormat.SIMPLIFIED if is_simplified else ContentFormat.JSON
    is_queue = protocol == "queue"
    return SubscriptionDefinition(
        topic.name, name, endpoint if is_queue else None, None if is_queue else endpoint, attributes, notes
    )


def _in_range(name: str, attribute: Attribute, value: int, notes: list[str]) -> int:
    factor = 1000 if attribute.unit is Unit.MILLISECONDS else 1
    return _clamped(name, value, (attribute.least or attribute.low) // factor, attribute.high // factor, notes)


def _clamped(name: str, value: int, low: int, high: int, notes: list[str]) -> int:
    nearest = min(max(value, low), high)
    if nearest != value:
        notes.append(f"{name} is {value} at the source and {nearest} here")
    return nearest
