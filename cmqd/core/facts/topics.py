"""All topics and subscriptions by id and by name, and the application of records to them.

As in :mod:`cmqd.core.facts.queues`, every change of a fact goes through the ``apply_*`` methods, live and in recovery
alike, and the methods plan nothing.
"""

from cmqd.core.domain_errors import SubscriptionNotFound, TopicNotFound
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.gone_totals import GoneTotals
from cmqd.core.facts.name_order import NameOrder
from cmqd.core.facts.promised_memory import Promises
from cmqd.core.facts.queue_subscribers import QueueSubscribers
from cmqd.core.facts.queues import QueueTable
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import Limits
from cmqd.core.names import folded
from cmqd_segment.published import copy_counts, message_ids_of, waiting_positions
from cmqd_segment.records import (
    DeliveriesCleared,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    MessagesPublished,
    Subscribed,
    SubscriptionAttributesSet,
    TopicAttributesSet,
    TopicCreated,
    TopicDeleted,
    TopicMessagesExpired,
    TopicRecord,
    Unsubscribed,
)


class TopicTable:
    """The topics of all accounts and their subscriptions."""

    def __init__(self, limits: Limits, promises: Promises, queues: QueueTable, gone_totals: GoneTotals) -> None:
        self._limits = limits
        self._gone_totals = gone_totals
        self._promises = promises
        self._queues = queues
        self.by_id: dict[int, Topic] = {}
        self.names: dict[str, dict[str, Topic]] = {}
        """By account and name."""
        self.folded: dict[str, dict[str, Topic]] = {}
        """By account and case-folded name."""
        self.in_order = NameOrder(self.by_id)
        """By account and name, in order."""
        self.subscriptions: dict[int, Subscription] = {}
        """Of all topics, by id."""
        self.push_count: int = 0
        """Subscriptions that deliver to a URL."""

    def find(self, account: str, name: str) -> Topic:
        """Return the topic with this name.

        Raises:
            TopicNotFound: there is none.
        """
        try:
            return self.names[account][name]
        except KeyError:
            raise TopicNotFound(name) from None

    def find_subscription(self, account: str, topic_name: str, name: str) -> Subscription:
        """Return the subscription with this name of a topic.

        Raises:
            TopicNotFound, SubscriptionNotFound: there is none.
        """
        found = self.find(account, topic_name).folded.get(folded(name))
        if found is None or found.name != name:
            raise SubscriptionNotFound(topic_name, name)
        return found

    def add(self, topic: Topic) -> None:
        """Enter a topic under its id and name."""
        self.by_id[topic.topic_id] = topic
        self.in_order.add(topic)
        self.names.setdefault(topic.account, {})[topic.name] = topic
        self.folded.setdefault(topic.account, {})[folded(topic.name)] = topic

    def add_subscription(self, subscription: Subscription) -> None:
        """Enter a subscription under its id and name, and bind it to its queue."""
        topic = subscription.topic
        self.subscriptions[subscription.subscription_id] = subscription
        topic.subscriptions[subscription.subscription_id] = subscription
        topic.folded[folded(subscription.name)] = subscription
        if subscription.is_push:
            self.push_count += 1
        else:
            endpoint = (topic.account, subscription.attributes.endpoint)
            self._queues.subscribers.setdefault(endpoint, QueueSubscribers()).add(subscription)
            subscription.target = self._queues.names.get(topic.account, {}).get(endpoint[1])
        subscription.flows = subscription.may_flow()
        topic.filters_changed()

    def _remove_subscription(self, subscription: Subscription, lsn: int) -> None:
        self._gone_totals.add(subscription.account, lsn, subscription.deliveries.totals())
        topic = subscription.topic
        subscription_id = subscription.subscription_id
        del self.subscriptions[subscription_id]
        del topic.subscriptions[subscription_id]
        del topic.folded[folded(subscription.name)]
        if subscription.is_push:
            self.push_count -= 1
        else:
            endpoint = (topic.account, subscription.attributes.endpoint)
            subscribers = self._queues.subscribers
            subscribers[endpoint].remove(subscription)
            if not subscribers[endpoint]:
                del subscribers[endpoint]
        topic.filters_changed()

    # ------------------------------------------------------------------ records

    def apply_created(self, record: TopicCreated) -> Topic:
        """Add a new topic."""
        topic = Topic(record.account, record.name, record.topic_id, record.attributes, record.created_ms)
        self.add(topic)
        return topic

    def apply(self, topic: Topic, record: TopicRecord, lsn: int = 0) -> None:
        """Apply any record about a topic but its creation and publishes. ``lsn``: of the record in recovery, else 0."""
        match record:
            case TopicAttributesSet():
                topic.attributes, topic.modified_ms = record.attributes, record.modified_ms
                topic.filters_changed()
            case TopicDeleted():
                for subscription in list(topic.subscriptions.values()):
                    self._remove_subscription(subscription, lsn)
                self._gone_totals.add(topic.account, lsn, topic.totals)
                del self.by_id[topic.topic_id]
                self.in_order.remove(topic)
                del self.names[topic.account][topic.name]
                del self.folded[topic.account][folded(topic.name)]
                if topic.known_dedup_ids is not None:
                    self._promises.memory.drop(topic.account, topic.known_dedup_ids)
            case Subscribed():
                self.add_subscription(
                    Subscription(
                        topic,
                        record.subscription_id,
                        record.name,
                        record.attributes,
                        record.created_ms,
                        self._limits.max_retries_known,
                    )
                )
            case Unsubscribed():
                self._remove_subscription(topic.subscriptions[record.subscription_id], lsn)
            case SubscriptionAttributesSet():
                subscription = topic.subscriptions[record.subscription_id]
                subscription.attributes, subscription.modified_ms = record.attributes, record.modified_ms
                subscription.deliveries.strategy = record.attributes.strategy
                subscription.deliveries.paused = record.attributes.paused
                subscription.flows = subscription.may_flow()
                topic.filters_changed()
            case MessagesDelivered():
                topic.subscriptions[record.subscription_id].deliveries.apply_delivered(record)
            case DeliveriesFailed():
                topic.subscriptions[record.subscription_id].deliveries.apply_failed(record)
            case DeliveriesDropped():
                topic.subscriptions[record.subscription_id].deliveries.apply_dropped(record)
            case DeliveriesCleared():
                topic.subscriptions[record.subscription_id].deliveries.apply_cleared(record)
            case TopicMessagesExpired():
                topic.floor = record.floor
                topic.steps.drop_below(record.floor)
                for subscription in topic.subscriptions.values():
                    subscription.deliveries.apply_floor(record.floor)
            case TopicCreated() | MessagesPublished():
                raise AssertionError(f"{type(record).__name__} is applied elsewhere")

    def apply_published(self, topic: Topic, record: MessagesPublished, lsn: int = 0) -> bool:
        """Add published messages to the topic and to the subscriptions for which they wait; return True if a new time
        step began. The copies in queues are applied by :meth:`QueueIndex.apply_copies`.
        """
        first = record.first_position
        stop = first + len(record.sizes)
        topic.next_position = stop
        topic.last_enqueue_ms = record.enqueue_ms
        totals = topic.totals
        totals.published += stop - first
        totals.published_bytes += sum(record.sizes)
        if record.copies:
            self._count_copies(topic, record, lsn)
        waiting = waiting_positions(record) if record.taken else ((number, None) for number in record.waiting)
        for subscription_id, positions in waiting if record.waiting else ():
            subscription = topic.subscriptions.get(subscription_id)
            # In recovery the slice of a subscription may be newer than that of its topic.
            if subscription is not None and (not lsn or lsn > subscription.slice_lsn):
                if positions is None:
                    subscription.deliveries.apply_waiting(first, stop)
                else:
                    subscription.deliveries.apply_scattered(positions)
        begins_step = topic.steps.note(first, record.enqueue_ms)
        if begins_step and len(topic.steps) % 64 == 0:
            self._forget_steps(topic)
        if record.dedup_ids is not None:
            known = topic.make_dedup_ids(DedupIds(self._limits))
            for message_id, dedup_id in zip(message_ids_of(record), record.dedup_ids, strict=True):
                if dedup_id is not None:
                    known.note(dedup_id, message_id, record.enqueue_ms)
            self._promises.memory.recount(topic.account, known)
        if record.numbered:
            self._promises.sessions.note(topic.account, record.numbered, record.enqueue_ms, lsn)
        return begins_step

    def _count_copies(self, topic: Topic, record: MessagesPublished, lsn: int) -> None:
        """Count the copies in queues as delivered by their subscriptions, which the record names."""
        by_name = topic.folded
        for name, count in zip(record.subscriptions, copy_counts(record), strict=False):
            subscription = by_name.get(folded(name))
            # In recovery as above. A subscription that is gone took its counts with it.
            if subscription is not None and (not lsn or lsn > subscription.slice_lsn):
                subscription.deliveries.delivered += count

    def _forget_steps(self, topic: Topic) -> None:
        firsts = [one.deliveries.first_pending() for one in topic.subscriptions.values()]
        topic.steps.drop_below(min((first for first in firsts if first is not None), default=topic.next_position))
