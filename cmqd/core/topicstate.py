"""What the operations on topics share: topics and subscriptions by id and name, and how facts about them are applied.

As in :mod:`cmqd.core.state`, every change of a fact goes through the ``_apply_*`` methods, live and in recovery alike.
"""

from heapq import heappush

import msgspec

from cmqd.core.copies import Unserved
from cmqd.core.errors import SubscriptionNotFound, TopicNotFound
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits
from cmqd.core.names import folded
from cmqd.core.queue import Queue
from cmqd.core.receipts import HandleKey
from cmqd.core.runtime.bodies import TopicBodies
from cmqd.core.state import BrokerState
from cmqd.core.topic import Subscription, Topic
from cmqd_segment.published import copies_of, message_ids_of, waiting_positions
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


class Endpoint(msgspec.Struct, gc=False):
    """A URL that is posted to."""

    under_way: int = 0
    line: dict[int, None] = {}
    """Subscriptions that wait until fewer requests to it are under way, in order."""


class TopicState(BrokerState):
    """The part of the state that is about topics."""

    def __init__(self, handle_key: HandleKey, limits: Limits | None = None, seed: int = 0) -> None:
        """``seed``: any number, for the random part of pauses between deliveries."""
        super().__init__(handle_key, limits)
        self._seed = seed
        self.topics: dict[int, Topic] = {}
        """By id."""
        self._topic_names: dict[str, dict[str, Topic]] = {}
        """By account and name."""
        self._folded_topics: dict[str, dict[str, Topic]] = {}
        self.subscriptions: dict[int, Subscription] = {}
        """Of all topics, by id."""
        self._topic_expiries: list[tuple[int, int]] = []
        """Heap of (time, topic id): when a topic is next looked at for what has outlived its life."""
        self.topic_bodies = TopicBodies(self.limits.topic_bodies_bytes)
        self._deliveries_wanted: dict[int, None] = {}
        """Subscriptions with something to deliver now, in order."""
        self._delivery_agenda: list[tuple[int, int]] = []
        """Heap of (time, subscription id): when a subscription has something to deliver."""
        self._delivery_reads: dict[int, tuple[int, list[int]]] = {}
        """Page-ins for deliveries by read id: subscription id, positions."""
        self._delivery_read_line: dict[int, None] = {}
        """Subscriptions that want such a page-in while enough are under way, in order."""
        self.pushing = True
        """Somebody posts to URLs; as long as nobody does, what is for them waits."""
        self._pushes: dict[tuple[int, int], tuple[str, bool]] = {}
        """Deliveries to URLs that are under way, by subscription and position: the URL, and whether it was trusted."""
        self._doubtful_pushes: int = 0
        """Those to URLs that were not."""
        self._trusted: dict[str, None] = {}
        """URLs that took what was posted to them last."""
        self._doubtful_line: dict[int, None] = {}
        """Subscriptions to other URLs that wait until fewer deliveries to such are under way, in order."""
        self._retries_known: int = 0
        """Messages in retry of all subscriptions, as of when each was last looked after."""
        self._push_subscriptions: int = 0
        """How many deliver to a URL."""
        self._endpoints: dict[str, Endpoint] = {}
        """URLs that are posted to."""
        self._unserved: dict[int, list[Unserved]] = {}
        """By queue id, in order: copies for which receives wait, to be served by the next ticks."""
        self._push_line: dict[int, None] = {}
        """Subscriptions that wait until fewer deliveries to URLs are under way altogether, in order."""

    def topic(self, account: str, name: str) -> Topic:
        """The topic of that name.

        Raises:
            TopicNotFound: there is none.
        """
        try:
            return self._topic_names[account][name]
        except KeyError:
            raise TopicNotFound(name) from None

    def subscription(self, account: str, topic_name: str, name: str) -> Subscription:
        """The subscription of that name of a topic.

        Raises:
            TopicNotFound, SubscriptionNotFound: there is none.
        """
        found = self.topic(account, topic_name).folded.get(folded(name))
        if found is None or found.name != name:
            raise SubscriptionNotFound(topic_name, name)
        return found

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """The same for a topic: how many deliveries of its messages at these positions are still wanted."""
        topic = self.topics.get(queue_id)
        return super().live_in(queue_id, first, stop) if topic is None else topic.live_in(first, stop)

    def _apply_topic_created(self, record: TopicCreated) -> Topic:
        topic = Topic(record.account, record.name, record.topic_id, record.attributes, record.created_ms)
        self._add_topic(topic)
        return topic

    def _add_topic(self, topic: Topic) -> None:
        self.topics[topic.topic_id] = topic
        self._topic_names.setdefault(topic.account, {})[topic.name] = topic
        self._folded_topics.setdefault(topic.account, {})[folded(topic.name)] = topic

    def _apply_topic_record(self, topic: Topic, record: TopicRecord) -> None:
        """Any fact about a topic that is there, but for publishes."""
        match record:
            case TopicAttributesSet():
                topic.attributes, topic.modified_ms = record.attributes, record.modified_ms
                topic.filters_changed()
            case TopicDeleted():
                for subscription in list(topic.subscriptions.values()):
                    self._remove_subscription(subscription)
                del self.topics[topic.topic_id]
                del self._topic_names[topic.account][topic.name]
                del self._folded_topics[topic.account][folded(topic.name)]
                if topic.known_dedup_ids is not None:
                    self.promises.memory.drop(topic.account, topic.known_dedup_ids)
            case Subscribed():
                self._add_subscription(
                    Subscription(
                        topic,
                        record.subscription_id,
                        record.name,
                        record.attributes,
                        record.created_ms,
                        self.limits.max_retries_known,
                    )
                )
            case Unsubscribed():
                self._remove_subscription(topic.subscriptions[record.subscription_id])
            case SubscriptionAttributesSet():
                subscription = topic.subscriptions[record.subscription_id]
                subscription.attributes, subscription.modified_ms = record.attributes, record.modified_ms
                subscription.deliveries.strategy = record.attributes.strategy
                subscription.deliveries.paused = record.attributes.paused
                topic.matcher.set(subscription.subscription_id, subscription.filters)
                subscription.flows = subscription.may_flow()
                topic.filters_changed()
            case MessagesDelivered():
                topic.subscriptions[record.subscription_id].deliveries.apply_delivered(record)
            case DeliveriesFailed():
                topic.subscriptions[record.subscription_id].deliveries.apply_failed(record)
            case DeliveriesDropped():
                topic.subscriptions[record.subscription_id].deliveries.apply_dropped(record)
            case DeliveriesCleared():
                topic.subscriptions[record.subscription_id].deliveries.apply_floor(record.floor)
            case TopicMessagesExpired():
                topic.floor = record.floor
                topic.steps.drop_below(record.floor)
                for subscription in topic.subscriptions.values():
                    subscription.deliveries.apply_floor(record.floor)
            case TopicCreated() | MessagesPublished():
                raise AssertionError(f"{type(record).__name__} is applied elsewhere")

    def _add_subscription(self, subscription: Subscription) -> None:
        topic = subscription.topic
        self.subscriptions[subscription.subscription_id] = subscription
        topic.subscriptions[subscription.subscription_id] = subscription
        topic.folded[folded(subscription.name)] = subscription
        topic.matcher.set(subscription.subscription_id, subscription.filters)
        if subscription.is_push:
            self._push_subscriptions += 1
        else:
            endpoint = (topic.account, subscription.attributes.endpoint)
            self._subscribers.setdefault(endpoint, {})[subscription.subscription_id] = subscription
            subscription.target = self._names.get(topic.account, {}).get(endpoint[1])
        subscription.flows = subscription.may_flow()
        topic.filters_changed()

    def _remove_subscription(self, subscription: Subscription) -> None:
        topic = subscription.topic
        subscription_id = subscription.subscription_id
        del self.subscriptions[subscription_id]
        del topic.subscriptions[subscription_id]
        del topic.folded[folded(subscription.name)]
        topic.exhausted.pop(subscription_id, None)
        topic.matcher.remove(subscription_id)
        if subscription.is_push:
            self._push_subscriptions -= 1
        else:
            endpoint = (topic.account, subscription.attributes.endpoint)
            del self._subscribers[endpoint][subscription_id]
            if not self._subscribers[endpoint]:
                del self._subscribers[endpoint]
        topic.filters_changed()

    def _apply_published(self, topic: Topic, record: MessagesPublished) -> None:
        """A publish that happens now: the topic and all queues."""
        self._apply_to_topic(topic, record)
        queues = self.queues
        enqueue_ms = record.enqueue_ms
        for queue_id, first, count in copies_of(record):
            self._apply_copies(queues[queue_id], first, count, enqueue_ms)

    def _apply_to_topic(self, topic: Topic, record: MessagesPublished, lsn: int = 0) -> None:
        first = record.first_position
        stop = first + len(record.sizes)
        topic.next_position = stop
        topic.last_enqueue_ms = record.enqueue_ms
        waiting = waiting_positions(record) if record.taken else ((number, None) for number in record.waiting)
        for subscription_id, positions in waiting if record.waiting else ():
            subscription = topic.subscriptions.get(subscription_id)
            # In recovery the slice of a subscription may be newer than that of its topic.
            if subscription is not None and (not lsn or lsn > subscription.slice_lsn):
                if positions is None:
                    subscription.deliveries.apply_waiting(first, stop)
                else:
                    subscription.deliveries.apply_scattered(positions)
        if topic.steps.note(first, record.enqueue_ms):
            if len(topic.steps) % 64 == 0:
                self._forget_steps(topic)
            if topic.expiry_due_ms is None:
                self._schedule_topic_expiry(topic)
        if record.dedup_ids is not None:
            known = topic.make_dedup_ids(DedupIds(self.limits))
            if not len(known):
                heappush(self._dedup_sweeps, (record.enqueue_ms + self.limits.dedup_life_ms, topic.topic_id))
            for message_id, dedup_id in zip(message_ids_of(record), record.dedup_ids, strict=True):
                if dedup_id is not None:
                    known.note(dedup_id, message_id, record.enqueue_ms)
            self.promises.memory.recount(topic.account, known)
        if record.numbered:
            self._note_numbered(topic.account, record.numbered, record.enqueue_ms, lsn)

    def _apply_copies(self, queue: Queue, first: int, count: int, enqueue_ms: int) -> None:
        index = queue.index
        if index.apply_copies(first, count, enqueue_ms) and queue.expiry_due_ms is None:
            self._schedule_expiry(queue)
        if index.attributes.dead_letter_after_ms:
            self._set_agenda(queue, enqueue_ms + index.attributes.dead_letter_after_ms)

    def _forget_steps(self, topic: Topic) -> None:
        firsts = [one.deliveries.first_pending() for one in topic.subscriptions.values()]
        topic.steps.drop_below(min((first for first in firsts if first is not None), default=topic.next_position))

    def _schedule_topic_expiry(self, topic: Topic) -> None:
        first_end_ms = topic.steps.first_end_ms()
        topic.expiry_due_ms = None if first_end_ms is None else first_end_ms + self.limits.topic_life_ms
        if topic.expiry_due_ms is not None:
            heappush(self._topic_expiries, (topic.expiry_due_ms, topic.topic_id))
