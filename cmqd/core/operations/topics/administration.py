"""Topics and subscriptions: create, ensure, list, attributes, subscribe, unsubscribe, delete."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cmqd.core.attributes import check_each, defaults
from cmqd.core.domain_errors import (
    InvalidArgument,
    QueueNotFound,
    SubscriptionDiffers,
    SubscriptionExists,
    TooManySubscriptions,
    TooManyTopics,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    cut_name,
    shown,
)
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.name_order import Selection, by_name, matching
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.filter_matching import check_binding_keys, check_tags
from cmqd.core.limits import check_range
from cmqd.core.names import check_name, cut_topic_name, folded
from cmqd.core.operations.topics.delivery_attempts import DeliveryAttempts
from cmqd.core.outcome import Outcome
from cmqd.core.runtime.runtime import Runtime
from cmqd.core.urls import check_url
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesCleared,
    Subscribed,
    SubscriptionAttributesSet,
    TopicAttributesSet,
    TopicCreated,
    TopicDeleted,
    Unsubscribed,
)
from cmqd_types.attributes import SUBSCRIPTION, TOPIC, SubscriptionAttributes, TopicAttributes
from cmqd_types.sentences import sentence
from cmqd_types.topics import QueueSubscription, SubscriptionInfo, SubscriptionSummary, TopicInfo

QUEUE = "queue"


class TopicAdmin:
    """Administers topics and subscriptions."""

    def __init__(self, facts: Facts, runtime: Runtime, delivery_attempts: DeliveryAttempts) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._topics = facts.topics
        self._runtimes = runtime.topics
        self._agenda = runtime.agenda
        self._counted = runtime.counted
        self._delivery_attempts = delivery_attempts

    # ------------------------------------------------------------------ topics

    def create_topic(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Make a topic. A name of more than 64 bytes is cut; the reply has the name that was used.

        Raises:
            InvalidArgument: the name or an attribute is not legal.
            TopicExists: the name is taken, in this or in another case.
            TooManyTopics: the account is at its limit of topics.
        """
        name = cut_topic_name(name)
        check_name("topic", name)
        chosen = _topic_attributes(defaults(TopicAttributes, TOPIC), attributes, creating=True)
        taken = self._topics.folded.get(account, {}).get(folded(name))
        if taken is not None:
            raise TopicExists(name, taken.name)
        limit = self._limits.max_topics_per_account
        if len(self._topics.names.get(account, ())) >= limit:
            raise TooManyTopics(account, limit)
        records: list[AnyRecord] = []
        record = TopicCreated(self._numbers.take_queue_id(records), account, name, chosen, now_ms)
        topic = self._topics.apply_created(record)
        records.append(record)
        return Outcome(self._info(topic, created=True), records)

    def ensure_topic(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Make a topic, or confirm that the existing topic has these attributes (attributes not named may differ).

        Raises:
            TopicDiffers: an attribute differs; the difference is in the details.
            InvalidArgument, TopicExists, TooManyTopics: as :meth:`create_topic`.
        """
        check_name("topic", name)
        topic = self._topics.names.get(account, {}).get(name)
        if topic is None:
            return self.create_topic(account, name, attributes, now_ms)
        _topic_attributes(defaults(TopicAttributes, TOPIC), attributes, creating=True)
        difference = _difference(topic.attributes_map(), attributes)
        if difference:
            raise TopicDiffers(name, difference)
        return Outcome(self._info(topic))

    def list_topics(
        self, account: str, search: str, offset: int, limit: int, *, selects: Selection | None = None
    ) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of topics with ``search`` in their name, and a page of (id, name) in order of name.
        ``selects`` selects the names that the caller may see.
        """
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, self._limits.max_list)
        topics = matching(self._topics.in_order.of_account(account), search, selects)
        return len(topics), [(topic.topic_id, topic.name) for topic in topics[offset : offset + limit]]

    def topic_info(self, account: str, name: str) -> TopicInfo:
        """Return the attributes, counts and facts of a topic."""
        return self._info(self._topics.find(account, name))

    def set_topic_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Change the attributes named, for messages published from now on.

        Raises:
            TopicNotFound, InvalidArgument: the topic is unchanged.
        """
        topic = self._topics.find(account, name)
        record = TopicAttributesSet(topic.topic_id, _topic_attributes(topic.attributes, attributes), now_ms)
        self._topics.apply(topic, record)
        return Outcome(self._info(topic), [record])

    def delete_topic(self, account: str, name: str) -> Outcome[None]:
        """Remove a topic.

        Raises:
            TopicNotFound.
            TopicInUse: the topic has subscriptions.
        """
        topic = self._topics.find(account, name)
        if topic.subscriptions:
            raise TopicInUse(name, len(topic.subscriptions))
        record = TopicDeleted(topic.topic_id)
        self._topics.apply(topic, record)
        self._counted.forget(topic.topic_id)
        self._runtimes.pop(topic.topic_id, None)
        self._agenda.topic_expiries.discard(topic.topic_id)
        self._agenda.dedup_sweeps.discard(topic.topic_id)
        return Outcome(None, [record])

    def _info(self, topic: Topic, created: bool = False) -> TopicInfo:
        counts, facts = topic.counts_and_facts(self._limits.topic_life_ms)
        return TopicInfo(
            topic=topic.name,
            topic_id=topic.topic_id,
            attributes=topic.attributes_map(),
            counts=counts,
            facts=facts,
            created=created,
        )

    # ------------------------------------------------------------------ subscriptions

    def subscribe(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Deliver messages published to a topic from now on to a queue or a URL.

        Raises:
            TopicNotFound.
            QueueNotFound: the target queue does not exist.
            InvalidArgument: the name or an attribute is not legal.
            SubscriptionExists: the name is taken in this topic, in this or in another case.
            TooManySubscriptions: the topic is at its limit of subscriptions.
        """
        topic = self._topics.find(account, topic_name)
        check_name("subscription", name)
        chosen = _subscription_attributes(topic, None, attributes)
        taken = topic.folded.get(folded(name))
        if taken is not None:
            raise SubscriptionExists(topic_name, name, taken.name)
        limit = self._limits.max_subscriptions
        if len(topic.subscriptions) >= limit:
            raise TooManySubscriptions(topic_name, limit)
        if chosen.protocol == QUEUE and chosen.endpoint not in self._queues.names.get(account, {}):
            raise QueueNotFound(chosen.endpoint)
        records: list[AnyRecord] = []
        record = Subscribed(topic.topic_id, self._numbers.take_queue_id(records), name, chosen, now_ms)
        self._topics.apply(topic, record)
        records.append(record)
        subscription = topic.subscriptions[record.subscription_id]
        return Outcome(self._subscription_info(subscription, now_ms, created=True), records)

    def ensure_subscription(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Subscribe, or confirm that the existing subscription has these attributes (attributes not named may differ).

        Raises:
            SubscriptionDiffers: an attribute differs; the difference is in the details.
            TopicNotFound, QueueNotFound, InvalidArgument, SubscriptionExists, TooManySubscriptions: as
                :meth:`subscribe`.
        """
        topic = self._topics.find(account, topic_name)
        check_name("subscription", name)
        subscription = topic.folded.get(folded(name))
        if subscription is None or subscription.name != name:
            return self.subscribe(account, topic_name, name, attributes, now_ms)
        wanted = msgspec.structs.asdict(_subscription_attributes(topic, None, attributes))
        is_now = msgspec.structs.asdict(subscription.attributes)
        difference = _difference(is_now, {field: wanted[field] for field in attributes})
        if difference:
            raise SubscriptionDiffers(topic_name, name, difference)
        return Outcome(self._subscription_info(subscription, now_ms))

    def list_subscriptions(
        self, account: str, topic_name: str, search: str, offset: int, limit: int
    ) -> tuple[int, list[SubscriptionSummary]]:
        """Return the number of a topic's subscriptions with ``search`` in their name, and a page in order of name."""
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, self._limits.max_list)
        topic = self._topics.find(account, topic_name)
        subscriptions = matching(by_name(topic.subscriptions.values()), search)
        page = subscriptions[offset : offset + limit]
        return len(subscriptions), [SubscriptionSummary(*_summary(listed)) for listed in page]

    def list_queue_subscriptions(
        self, account: str, queue: str, offset: int, limit: int, *, selects: Selection | None = None
    ) -> tuple[int, list[QueueSubscription]]:
        """Return the number of subscriptions that deliver to a queue, and a page in order of topic and name.
        ``selects`` selects the topics that the caller may see.

        A deleted queue has the subscriptions that outlived it.

        Raises:
            QueueNotFound: neither the queue nor a subscription to it exists.
        """
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, self._limits.max_list)
        subscribers = self._queues.subscribers.get((account, queue))
        if subscribers is None:
            self._queues.find(account, queue)
            return 0, []
        total, page = subscribers.page(offset, limit, selects)
        return total, [QueueSubscription(*_summary(each), each.topic.name) for each in page]

    def subscription_info(self, account: str, topic_name: str, name: str, now_ms: int = 0) -> SubscriptionInfo:
        """Return the attributes, counts and facts of a subscription."""
        return self._subscription_info(self._topics.find_subscription(account, topic_name, name), now_ms)

    def set_subscription_attributes(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Change the attributes named: filters for messages published from now on, the rest for further attempts too.

        Raises:
            TopicNotFound, SubscriptionNotFound, InvalidArgument: the subscription is unchanged.
        """
        subscription = self._topics.find_subscription(account, topic_name, name)
        topic = subscription.topic
        chosen = _subscription_attributes(topic, subscription.attributes, attributes)
        record = SubscriptionAttributesSet(topic.topic_id, subscription.subscription_id, chosen, now_ms)
        self._topics.apply(topic, record)
        self._delivery_attempts.plan(subscription, now_ms)
        return Outcome(self._subscription_info(subscription, now_ms), [record])

    def unsubscribe(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[None]:
        """End a subscription and drop its undelivered messages. A post already under way may still arrive at its URL.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        del now_ms
        subscription = self._topics.find_subscription(account, topic_name, name)
        topic = subscription.topic
        record = Unsubscribed(topic.topic_id, subscription.subscription_id)
        self._topics.apply(topic, record)
        self._counted.forget(subscription.subscription_id)
        self._delivery_attempts.forget(subscription)
        return Outcome(None, [record])

    def retry_deliveries(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[int]:
        """Retry all failed messages at once, exhausted messages with one more attempt; the reply is their number.

        Not a fact: after a restart a message that was not retried yet follows its old time.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        subscription = self._topics.find_subscription(account, topic_name, name)
        count = subscription.deliveries.retry_now()
        self._delivery_attempts.plan(subscription, now_ms)
        return Outcome(count)

    def drop_deliveries(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[int]:
        """Drop all waiting messages and all messages in retry of a subscription; the reply is their number.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        subscription = self._topics.find_subscription(account, topic_name, name)
        count = subscription.deliveries.pending_count
        if not count:
            return Outcome(0)
        topic = subscription.topic
        record = DeliveriesCleared(topic.topic_id, subscription.subscription_id, topic.next_position, now_ms)
        self._topics.apply(topic, record)
        self._delivery_attempts.plan(subscription, now_ms)
        return Outcome(count, [record])

    def _subscription_info(self, subscription: Subscription, now_ms: int, created: bool = False) -> SubscriptionInfo:
        return SubscriptionInfo(
            topic=subscription.topic.name,
            subscription=subscription.name,
            attributes=msgspec.structs.asdict(subscription.attributes),
            counts=subscription.counts(),
            facts=subscription.facts(now_ms),
            created=created,
        )


def _summary(subscription: Subscription) -> tuple[str, str, str, bool, int, int, str | None]:
    """Return the fields of a ``SubscriptionSummary``."""
    attributes, deliveries = subscription.attributes, subscription.deliveries
    counts = deliveries.waiting_count, deliveries.retrying_count
    target = attributes.protocol, attributes.endpoint
    return (subscription.name, *target, attributes.paused, *counts, deliveries.last_error or None)


def _difference(is_now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    return {field: {"is": is_now[field], "wanted": value} for field, value in wanted.items() if is_now[field] != value}


def _topic_attributes(
    base: TopicAttributes, changes: Mapping[str, object], *, creating: bool = False
) -> TopicAttributes:
    """Return ``base`` with ``changes`` applied.

    Raises:
        InvalidArgument: an attribute is unknown or out of its range.
    """
    check_each("topic", TOPIC, base, changes, creating=creating)
    return msgspec.structs.replace(base, **dict(changes))


def _subscription_attributes(
    topic: Topic, base: SubscriptionAttributes | None, changes: Mapping[str, object]
) -> SubscriptionAttributes:
    """Return ``base`` with ``changes`` applied; None = of a new subscription. The check of the target queue is left to
    the caller.

    Raises:
        InvalidArgument: an attribute is unknown, out of its range, or contradicts another.
    """
    chosen: dict[str, Any] = dict(changes)
    creating = base is None
    base = base or defaults(SubscriptionAttributes, SUBSCRIPTION)
    if "endpoint" in chosen and (not isinstance(chosen["endpoint"], str) or not chosen["endpoint"]):
        raise InvalidArgument(
            sentence("{endpoint} must be the name of a queue, or a URL, not {}", shown(chosen["endpoint"])),
            field="endpoint",
            value=chosen["endpoint"],
            limit="the name of a queue, or a URL",
        )
    check_each("subscription", SUBSCRIPTION, base, changes, creating=creating)
    if "filter_tags" in chosen:
        chosen["filter_tags"] = check_tags(chosen["filter_tags"], SUBSCRIPTION["filter_tags"].high, "filter_tags")
        if topic.is_routing and chosen["filter_tags"]:
            raise _other_filter(topic, "filter_tags", changes, "filters by routing key; give {binding_keys}")
    if "binding_keys" in chosen:
        if not topic.is_routing and chosen["binding_keys"]:
            raise _other_filter(topic, "binding_keys", changes, "filters by tags; give {filter_tags}")
        chosen["binding_keys"] = check_binding_keys(chosen["binding_keys"], "binding_keys") if topic.is_routing else []
    if creating:
        _check_new(topic, chosen)
    return msgspec.structs.replace(base, **chosen)


def _check_new(topic: Topic, chosen: dict[str, Any]) -> None:
    """Check the endpoint of a new subscription, and choose the protocol by the endpoint."""
    endpoint = str(chosen.get("endpoint", ""))
    if not endpoint:
        raise InvalidArgument(
            "a subscription needs an endpoint: the name of a queue, or a URL",
            field="endpoint",
            value=endpoint,
            limit="the name of a queue, or a URL",
        )
    scheme = endpoint.partition("://")[0].lower() if "://" in endpoint else QUEUE
    protocol = chosen.setdefault("protocol", scheme)
    if protocol != scheme:
        raise InvalidArgument(
            sentence(
                "{protocol} {} does not fit the {endpoint}, which has {}; {protocol} may be left out",
                shown(protocol),
                shown(scheme),
            ),
            field="protocol",
            value=protocol,
            limit=cut_name(scheme),
        )
    if protocol == QUEUE:
        check_name("endpoint", endpoint)
    else:
        chosen["endpoint"] = check_url(endpoint, "endpoint")
    if topic.is_routing and not chosen.get("binding_keys"):
        raise InvalidArgument(
            sentence(
                "topic {} filters by routing key; a subscription to it needs 1 to 5 {binding_keys}",
                repr(topic.name),
            ),
            field="binding_keys",
            value=[],
            limit="1 to 5 keys",
        )


def _other_filter(topic: Topic, field: str, changes: Mapping[str, object], remedy: str) -> InvalidArgument:
    return InvalidArgument(
        sentence(f"topic {{}} {remedy} in place of {{{field}}}", repr(topic.name)),
        field=field,
        value=changes[field],
        limit="empty",
    )
