"""One topic: who is subscribed to it, who matches what, and which of its messages somebody has not had yet.

A topic has positions like a queue: it numbers the messages that matched anybody. It holds no set of them itself. What
is retained is the union of what its subscriptions have not had (:class:`~cmqd.core.facts.deliveries.Deliveries`); what
waits for nobody is gone, at once.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.deliveries import Deliveries
from cmqd.core.facts.queue import Queue
from cmqd.core.matching import KeyMatcher, TagMatcher, check_routing_key, check_tags
from cmqd_fold.time_steps import TimeSteps
from cmqd_segment.records import SubscriptionAttributes, TopicAttributes
from cmqd_types.messages import Labels

CHECKED_LABELS = 4096
"""Tags or routing keys of one topic that are known to be legal: to check them again costs as much as all the rest."""
AUDIENCES = 4096
"""Audiences of one topic that are remembered: at 500 subscribers each takes up to 8 KiB."""

EXACTLY_BEHIND = 32
"""Subscriptions with messages to come up to which the retained messages are counted exactly."""


class Subscription:
    """One subscriber of a topic."""

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
        """The queue that it delivers to; None = a URL, or a queue that does not exist (any more)."""
        self.flows = False
        """What is published goes to its queue at once."""
        self.slice_lsn = 0
        """LSN of the checkpoint slice it came from: recovery skips older records."""

    @property
    def account(self) -> str:
        """Whose it is."""
        return self.topic.account

    @property
    def is_push(self) -> bool:
        """Whether it delivers to a URL."""
        return self.attributes.protocol != "queue"

    @property
    def filters(self) -> list[str]:
        """What its matcher goes by."""
        attributes = self.attributes
        return attributes.binding_keys if self.topic.is_routing else attributes.filter_tags

    def may_flow(self) -> bool:
        """Whether a message published now may go past all that waits: nothing does, or order is not promised."""
        deliveries = self.deliveries
        if self.target is None or deliveries.paused:
            return False
        if not deliveries.pending_count:
            return True
        has_room = deliveries.retrying_count < deliveries.max_known
        return deliveries.strategy == "exponential_decay" and not deliveries.blocked and has_room

    def counts(self) -> dict[str, int]:
        """How many messages are in each state; ``delivered`` of a URL only, since its queue tells more."""
        deliveries = self.deliveries
        counts = {
            "waiting": deliveries.waiting_count,
            "in_retry": deliveries.retrying_count,
            "dropped": deliveries.dropped,
        }
        return counts | {"delivered": deliveries.delivered} if self.is_push else counts

    def facts(self, now_ms: int = 0) -> dict[str, Any]:
        """What its owner can only read; times in ms."""
        deliveries = self.deliveries
        return {
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


class Audience:
    """The subscriptions that get a message: ``queues`` at once, and for ``waiting`` it waits."""

    __slots__ = ("names", "queues", "repeats", "size", "subscriptions", "waiting")

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self.size = len(subscriptions)
        self.subscriptions = [one for one in subscriptions if one.flows]
        """Those of ``queues``, in the same order."""
        self.queues = [one.target for one in self.subscriptions if one.target is not None]
        self.names = [one.name for one in self.subscriptions]
        self.repeats = len({queue.queue_id for queue in self.queues}) < len(self.queues)
        """Two of them deliver to one queue."""
        self.waiting = [one for one in subscriptions if not one.flows]


class Topic:
    """A topic's state; the rules are in the broker's operations."""

    __slots__ = (
        "_audiences",
        "_checked_labels",
        "_dedup_ids",
        "account",
        "attributes",
        "created_ms",
        "exhausted",
        "floor",
        "folded",
        "last_enqueue_ms",
        "matcher",
        "modified_ms",
        "name",
        "next_position",
        "revision",
        "slice_lsn",
        "steps",
        "subscriptions",
        "topic_id",
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
        """Below it nothing waits for anybody."""
        self.last_enqueue_ms = 0
        self.steps = TimeSteps()
        self.subscriptions: dict[int, Subscription] = {}
        self.folded: dict[str, Subscription] = {}
        """By name without regard to case."""
        self.matcher: TagMatcher | KeyMatcher = KeyMatcher() if self.is_routing else TagMatcher()
        self.exhausted: dict[int, Subscription] = {}
        """Those with messages whose retries are used up, which the next publish brings one more attempt."""
        self.slice_lsn = 0
        """LSN of the checkpoint slice it came from: recovery skips older records."""
        self.revision: int = 0
        """Goes up with each change upon which a message may match other subscriptions, or be refused."""
        self._audiences: dict[int, Audience] = {}
        self._checked_labels: dict[tuple[str, ...] | str, Labels] = {}
        self._dedup_ids: DedupIds | None = None

    @property
    def is_routing(self) -> bool:
        """Whether messages have a routing key; else they have tags."""
        return self.attributes.filter_type == "routing"

    @property
    def has_dedup_ids(self) -> bool:
        """Whether any are remembered."""
        return self._dedup_ids is not None and len(self._dedup_ids) > 0

    @property
    def known_dedup_ids(self) -> DedupIds | None:
        """Under which dedup ids messages were published; None = under none."""
        return self._dedup_ids

    def make_dedup_ids(self, dedup_ids: DedupIds) -> DedupIds:
        """The table of dedup ids: the one that is there, else this one from now on."""
        if self._dedup_ids is None:
            self._dedup_ids = dedup_ids
        return self._dedup_ids

    def apply_step(self, now_ms: int) -> None:
        """Broker time stepped back to ``now_ms``: no message was published later than that."""
        self.last_enqueue_ms = min(self.last_enqueue_ms, now_ms)
        self.steps.no_later_than(now_ms)
        if self._dedup_ids is not None:
            self._dedup_ids.no_later_than(now_ms)

    def checked(self, labels: Labels, max_tags: int) -> Labels:
        """Labels of the kind that the topic goes by, as its matcher takes them.

        Raises:
            InvalidArgument: they are not legal.
        """
        key = labels if isinstance(labels, str) else tuple(labels)
        found = self._checked_labels.get(key)
        if found is None:
            found = check_routing_key(labels) if isinstance(labels, str) else check_tags(labels, max_tags)
            if len(self._checked_labels) >= CHECKED_LABELS:
                self._checked_labels.clear()
            self._checked_labels[key] = found
        return found

    def known_members(self, labels: Labels) -> int | None:
        """The set of subscriptions that match a message with these labels, if it is remembered."""
        if isinstance(self.matcher, KeyMatcher):
            return self.matcher.known(labels if isinstance(labels, str) else "")
        return self.matcher.known(labels if isinstance(labels, list) else ())

    def find_members(self, labels: Labels) -> int:
        """The set of subscriptions that match a message with these labels."""
        if isinstance(self.matcher, KeyMatcher):
            return self.matcher.find(labels if isinstance(labels, str) else "")
        return self.matcher.find(labels if isinstance(labels, list) else ())

    def audience(self, members: int) -> Audience:
        """The subscriptions of a set that is not empty, as they take messages now."""
        found = self._audiences.get(members)
        if found is None:
            if len(self._audiences) >= AUDIENCES:
                self._audiences.clear()
            subscriptions = [self.subscriptions[number] for number in self.matcher.subscribers(members)]
            found = self._audiences[members] = Audience(subscriptions)
        return found

    def filters_changed(self) -> None:
        """A subscription came, went or has other filters, or the topic has other attributes: a message that is being
        matched is to be matched anew.
        """
        self.revision += 1
        self._audiences.clear()

    def subscriptions_changed(self) -> None:
        """Messages take another way to a subscription from here on."""
        self._audiences.clear()

    def pending(self) -> BitMap64:
        """Positions that somebody has not had yet."""
        sets = [one.deliveries.pending() for one in self.subscriptions.values() if one.deliveries.pending_count]
        return BitMap64.union(*sets) if sets else BitMap64()

    def has_pending(self) -> bool:
        """Whether anybody has not had anything yet."""
        return any(one.deliveries.pending_count for one in self.subscriptions.values())

    def live_in(self, first: int, stop: int) -> int:
        """How many deliveries of messages at positions ``first .. stop-1`` are still wanted."""
        return sum(one.deliveries.live_in(first, stop) for one in self.subscriptions.values())

    def counts(self) -> dict[str, int]:
        """How many messages are retained, and how many subscriptions there are."""
        return {"retained": self._retained(), "subscriptions": len(self.subscriptions)}

    def _retained(self) -> int:
        """The messages that a subscription has not had yet; with many such subscriptions an upper bound of them.

        A union of 500 scattered sets takes up to 90 ms. The bound is exact in the usual case that all of them lack the
        same messages.
        """
        behind = [one.deliveries for one in self.subscriptions.values() if one.deliveries.pending_count]
        if len(behind) <= EXACTLY_BEHIND:
            return len(self.pending())
        oldest = min(first for deliveries in behind if (first := deliveries.first_pending()) is not None)
        return min(sum(deliveries.pending_count for deliveries in behind), self.next_position - oldest)

    def facts(self, life_ms: int) -> dict[str, Any]:
        """What its owner can only read; times in ms. The oldest message's is exact to a grain (100 ms and up)."""
        firsts = [one.deliveries.first_pending() for one in self.subscriptions.values()]
        oldest = min((first for first in firsts if first is not None), default=None)
        return {
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
            "lifecycle_ms": life_ms,
            "oldest_message_ms": None if oldest is None else self.steps.sent_at(oldest),
        }

    def attributes_map(self) -> dict[str, int | str]:
        """What was chosen for it."""
        return msgspec.structs.asdict(self.attributes)

    def __repr__(self) -> str:
        return f"<Topic {self.account}/{self.name} id={self.topic_id} subscriptions={len(self.subscriptions)}>"
