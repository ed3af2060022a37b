"""A topic: its subscriptions, their filters, and the messages that a subscription has not received yet.

A topic numbers the messages that matched a subscription and has positions like a queue. The topic itself holds no set
of messages: the retained messages are the union of the undelivered messages of its subscriptions
(:class:`~cmqd.core.facts.subscription_backlog.Deliveries`). A message that no subscription waits for is gone at once.
"""

from typing import Any

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.subscription_backlog import Deliveries
from cmqd_fold.time_steps import TimeSteps
from cmqd_types.attributes import SubscriptionAttributes, TopicAttributes
from cmqd_types.totals import TopicTotals

EXACTLY_BEHIND = 32
"""Subscriptions with undelivered messages up to which the retained messages are counted exactly."""
EXACT_CONTAINERS = 512
"""Containers of their sets up to which the retained messages are counted exactly: a union takes up to 3 us for each."""
CONTAINER_BITS = 16
"""Bits of the positions that share a container of a set."""


class Subscription:
    """A subscription of a topic."""

    __slots__ = (
        "attributes",
        "created_ms",
        "deliveries",
        "flows",
        "modified_ms",
        "name",
        "slice_lsn",
        "subscription_id",
        "target",
        "topic",
    )

    def __init__(
        self,
        topic: "Topic",
        subscription_id: int,
        name: str,
        attributes: SubscriptionAttributes,
        created_ms: int,
        max_known: int,
    ) -> None:
        self.topic = topic
        self.subscription_id = subscription_id
        self.name = name
        self.attributes = attributes
        self.created_ms = created_ms
        self.modified_ms = created_ms
        self.deliveries = Deliveries(attributes.strategy, paused=attributes.paused, max_known=max_known)
        self.target: Queue | None = None
        """The queue of the subscription; None = a URL, or a queue that does not exist (any more)."""
        self.flows = False
        """Published messages go to the queue at once."""
        self.slice_lsn = 0
        """LSN of its checkpoint slice: recovery skips older records."""

    @property
    def account(self) -> str:
        """The account that owns the subscription."""
        return self.topic.account

    @property
    def is_push(self) -> bool:
        """True if the subscription delivers to a URL."""
        return self.attributes.protocol != "queue"

    @property
    def filters(self) -> list[str]:
        """The filters that the matcher of its topic reads."""
        attributes = self.attributes
        return attributes.binding_keys if self.topic.is_routing else attributes.filter_tags

    def may_flow(self) -> bool:
        """True if a message published now may pass all waiting messages: none waits, or order is not promised."""
        deliveries = self.deliveries
        if self.target is None or deliveries.paused:
            return False
        if not deliveries.pending_count:
            return True
        has_room = deliveries.retrying_count < deliveries.max_known
        return deliveries.strategy == "exponential_decay" and not deliveries.blocked and has_room

    def counts(self) -> dict[str, int]:
        """Count the messages by state; ``delivered`` only for a URL, since a queue counts its own messages."""
        deliveries = self.deliveries
        counts = {
            "waiting": deliveries.waiting_count,
            "in_retry": deliveries.retrying_count,
            "dropped": deliveries.dropped,
        }
        return counts | {"delivered": deliveries.delivered} if self.is_push else counts

    def facts(self, now_ms: int = 0) -> dict[str, Any]:
        """Return the read-only facts for the owner; times in ms."""
        deliveries = self.deliveries
        return {
            "id": self.subscription_id,
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
            "blocked": deliveries.held_up,
            "last_error": deliveries.last_error or None,
            "last_error_ms": deliveries.last_error_ms or None,
            "next_attempt_ms": deliveries.next_due_ms(now_ms),
        }

    def __repr__(self) -> str:
        deliveries = self.deliveries
        return (
            f"<Subscription {self.topic.name}/{self.name} id={self.subscription_id} to {self.attributes.endpoint} "
            f"waiting={deliveries.waiting_count} in_retry={deliveries.retrying_count}>"
        )


class Topic:
    """A topic's state; the rules are in the broker's operations."""

    __slots__ = (
        "_dedup_ids",
        "account",
        "attributes",
        "created_ms",
        "floor",
        "folded",
        "last_enqueue_ms",
        "modified_ms",
        "name",
        "next_position",
        "revision",
        "routes",
        "slice_lsn",
        "steps",
        "subscriptions",
        "topic_id",
        "totals",
    )

    def __init__(self, account: str, name: str, topic_id: int, attributes: TopicAttributes, created_ms: int) -> None:
        self.account = account
        self.name = name
        self.topic_id = topic_id
        self.attributes = attributes
        self.created_ms = created_ms
        self.modified_ms = created_ms
        self.next_position = 0
        self.floor: int = 0
        """No message below it waits for a subscription."""
        self.last_enqueue_ms = 0
        self.steps = TimeSteps()
        self.subscriptions: dict[int, Subscription] = {}
        self.folded: dict[str, Subscription] = {}
        """By case-folded name."""
        self.slice_lsn = 0
        """LSN of its checkpoint slice: recovery skips older records."""
        self.revision: int = 0
        """Raised by each change after which a message may match other subscriptions, or be refused."""
        self.routes: int = 0
        """Raised by each change after which a message takes another way to a subscription."""
        self._dedup_ids: DedupIds | None = None
        self.totals = TopicTotals()

    @property
    def is_routing(self) -> bool:
        """True if messages have a routing key; else they have tags."""
        return self.attributes.filter_type == "routing"

    @property
    def has_dedup_ids(self) -> bool:
        """True if dedup ids are remembered."""
        return self._dedup_ids is not None and len(self._dedup_ids) > 0

    @property
    def known_dedup_ids(self) -> DedupIds | None:
        """The dedup ids of published messages; None = the topic never had a dedup id."""
        return self._dedup_ids

    def make_dedup_ids(self, dedup_ids: DedupIds) -> DedupIds:
        """Return the table of dedup ids; ``dedup_ids`` becomes the table if there is none yet."""
        if self._dedup_ids is None:
            self._dedup_ids = dedup_ids
        return self._dedup_ids

    def apply_step(self, now_ms: int) -> None:
        """Cap the times of earlier publishes at ``now_ms``, to which broker time stepped back."""
        self.last_enqueue_ms = min(self.last_enqueue_ms, now_ms)
        self.steps.no_later_than(now_ms)
        if self._dedup_ids is not None:
            self._dedup_ids.no_later_than(now_ms)

    def filters_changed(self) -> None:
        """Note that a subscription came, went or changed its filters, or that the topic changed its attributes.

        The new revision makes a publish plan that is being matched begin anew. Otherwise the publish would miss a
        subscription that was answered before it, or be stored for a subscription that was removed before it.
        """
        self.revision += 1
        self.routes += 1

    def pending(self) -> BitMap64:
        """Return the positions of messages that a subscription has not received yet."""
        sets = [
            subscription.deliveries.pending()
            for subscription in self.subscriptions.values()
            if subscription.deliveries.pending_count
        ]
        return BitMap64.union(*sets) if sets else BitMap64()

    def has_pending(self) -> bool:
        """True if a subscription has undelivered messages."""
        return any(subscription.deliveries.pending_count for subscription in self.subscriptions.values())

    def live_in(self, first: int, stop: int) -> int:
        """Count the undelivered deliveries of messages at positions ``first .. stop-1``."""
        return sum(subscription.deliveries.live_in(first, stop) for subscription in self.subscriptions.values())

    def counts(self) -> dict[str, int]:
        """Count the retained messages and the subscriptions."""
        return self.counts_and_facts(0)[0]

    def counts_and_facts(self, life_ms: int) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the counts, and the read-only facts for the owner; times in ms, the oldest message's to a grain of 100
        ms and up. Together, because a pass over the sets of 500 subscriptions takes time.
        """
        retained, oldest = self._backlog()
        counts = {"retained": retained, "subscriptions": len(self.subscriptions)}
        facts: dict[str, Any] = {
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
            "lifecycle_ms": life_ms,
            "oldest_message_ms": None if oldest is None else self.steps.sent_at(oldest),
        }
        return counts, facts

    def _backlog(self) -> tuple[int, int | None]:
        """Count the undelivered messages, and return the position of the oldest.

        The count is an upper bound if many subscriptions lack messages, or if their sets are scattered widely: a union
        of 32 sets of 100,000 positions among 16,000,000 takes 50 ms. The bound is exact in the usual case that all
        subscriptions lack the same messages.
        """
        behind: list[Deliveries] = []
        total = containers = 0
        oldest = self.next_position
        for subscription in self.subscriptions.values():
            deliveries = subscription.deliveries
            first = deliveries.first_pending()
            if first is not None:
                behind.append(deliveries)
                count = deliveries.pending_count
                total += count
                oldest = min(oldest, first)
                containers += min(count, (self.next_position - first >> CONTAINER_BITS) + 1)
        if not behind:
            return 0, None
        if len(behind) == 1:
            return total, oldest
        if len(behind) <= EXACTLY_BEHIND and containers <= EXACT_CONTAINERS:
            return len(self.pending()), oldest
        return min(total, self.next_position - oldest), oldest

    def attributes_map(self) -> dict[str, int | str]:
        """Return the attributes that the owner chose."""
        return msgspec.structs.asdict(self.attributes)

    def __repr__(self) -> str:
        return f"<Topic {self.account}/{self.name} id={self.topic_id} subscriptions={len(self.subscriptions)}>"
