"""Topics and subscriptions, the naive way: per subscription a list of the undelivered messages."""

import re
from collections import Counter
from dataclasses import dataclass, field

from cmqd_types.messages import Headers, Labels

BACKOFF_MS = (10_000, 20_000)
BACKOFF_ATTEMPTS = 4
DECAY_ATTEMPTS = 177


@dataclass(frozen=True)
class NaivePublished:
    """A message of a topic."""

    position: int
    message_id: int
    body: bytes
    headers: Headers | None
    labels: Labels
    enqueue_ms: int


@dataclass
class NaiveDelivery:
    """A message that the subscription has not had."""

    message: NaivePublished
    attempts: int = 0
    next_ms: int = 0
    """The next attempt of a failed message; 0 = its retries are used up."""
    under_way: bool = False

    @property
    def is_exhausted(self) -> bool:
        return self.attempts > 0 and not self.next_ms


@dataclass
class NaiveSubscription:
    topic: "NaiveTopic"
    subscription_id: int
    name: str
    endpoint: str
    filters: list[str]
    strategy: str
    paused: bool
    pending: dict[int, NaiveDelivery] = field(default_factory=dict[int, NaiveDelivery])
    """By position, ascending."""
    delivered: int = 0
    copied: int = 0
    """Copies that went to the queue at their publish."""
    failed: int = 0
    dropped: int = 0
    blocked: bool = False
    hurried: set[int] = field(default_factory=set[int])
    """Positions that are due at once, at any planned time."""
    ended: dict[int, str] = field(default_factory=dict[int, str])
    """``delivered``, ``expired`` or the reason of the drop, of each message that waits no more."""
    going: set[int] = field(default_factory=set[int])
    """Positions that are being posted, wanted or not."""

    @property
    def is_push(self) -> bool:
        return "://" in self.endpoint

    def add(self, message: NaivePublished) -> None:
        """Let a message wait for the subscription."""
        self.pending[message.position] = NaiveDelivery(message)

    def matches(self, labels: Labels) -> bool:
        if isinstance(labels, str):
            return any(_key_matches(key, labels) for key in self.filters)
        return not self.filters or bool(set(self.filters) & set(labels))

    def may_flow(self) -> bool:
        """True if a published message may go to the queue of the subscription at once."""
        if self.is_push or self.paused:
            return False
        return not self.pending or (self.strategy == "exponential_decay" and not self.blocked)

    def totals(self) -> Counter[str]:
        """By the names of ``SubscriptionTotals``."""
        return Counter(delivered=self.delivered + self.copied, failed=self.failed, dropped=self.dropped)

    def forget_totals(self) -> None:
        """Part of the log was lost."""
        self.delivered = self.copied = self.failed = self.dropped = 0

    def counts(self) -> dict[str, int]:
        tried = sum(one.attempts > 0 for one in self.pending.values())
        counts = {"waiting": len(self.pending) - tried, "in_retry": tried, "dropped": self.dropped}
        return counts | {"delivered": self.delivered} if self.is_push else counts

    def fail(self, position: int, attempts: int, next_ms: int, started_ms: int, now_ms: int) -> None:
        """An attempt failed; the broker gives the time of the next attempt."""
        self.failed += 1
        delivery = self.pending[position]
        assert attempts == delivery.attempts + 1, "an attempt was lost, or counted twice"
        if self.strategy == "backoff":
            low, high = BACKOFF_MS
            assert next_ms == 0 if attempts >= BACKOFF_ATTEMPTS else low <= next_ms - now_ms <= high
        elif attempts >= DECAY_ATTEMPTS:
            assert next_ms == 0
        else:
            assert next_ms == max(started_ms + min(1000 << (attempts - 1), 512_000), now_ms)
        delivery.attempts, delivery.next_ms, delivery.under_way = attempts, next_ms, False
        self.hurried.discard(position)
        self.blocked |= attempts >= 2

    def deliver(self, position: int) -> None:
        self.ended[position] = "delivered"
        del self.pending[position]
        self.hurried.discard(position)
        self.delivered += 1
        self.blocked = False

    def drop(self, position: int, reason: str) -> NaiveDelivery:
        self.hurried.discard(position)
        self.ended[position] = reason
        self.dropped += 1
        dropped = self.pending.pop(position)
        self.blocked &= bool(self.pending)
        return dropped

    def due(self, now_ms: int) -> list[int]:
        """The positions that an idle endpoint must have got by now."""
        if self.paused:
            return []
        is_due = [
            position
            for position, one in self.pending.items()
            if position in self.hurried or (one.attempts and 0 < one.next_ms <= now_ms)
        ]
        if self.strategy == "backoff":
            return sorted(self.pending)[:1] if not self.going and self._head_is_due(now_ms) else []
        if not self.blocked:
            is_due += [position for position, one in self.pending.items() if not one.attempts]
        return [position for position in is_due if not self.pending[position].under_way]

    def _head_is_due(self, now_ms: int) -> bool:
        first = min(self.pending, default=None)
        return first is not None and (first in self.hurried or self.pending[first].next_ms <= now_ms)

    def restart(self) -> None:
        """The broker was started anew: pushes under way are posted again."""
        self.going.clear()
        self.hurried = {position for position, one in self.pending.items() if one.is_exhausted}
        for one in self.pending.values():
            one.under_way = False


@dataclass
class NaiveTopic:
    topic_id: int
    account: str
    name: str
    is_routing: bool
    subscriptions: list[NaiveSubscription] = field(default_factory=list[NaiveSubscription])
    next_position: int = 0
    totals: Counter[str] = field(default_factory=Counter[str])
    """By the names of ``TopicTotals``."""

    published: dict[int, tuple[int, int, set[str], list[int]]] = field(
        default_factory=dict[int, tuple[int, int, set[str], list[int]]]
    )
    """By message id: position, time, subscriptions with a copy, and subscriptions for which the message waited."""

    def retained(self) -> set[int]:
        return {position for one in self.subscriptions for position in one.pending}

    def expire(self, floor: int, latest_ms: int) -> None:
        """Drop all messages below ``floor``; none of them was published after ``latest_ms``."""
        for subscription in self.subscriptions:
            for position in [position for position in subscription.pending if position < floor]:
                gone = subscription.drop(position, "expired")
                assert gone.message.enqueue_ms <= latest_ms, "it went before its life was over"


def _key_matches(key: str, routing_key: str) -> bool:
    """By a regular expression over words that end with a dot."""
    words = {"*": r"[^.]+\.", "#": r"(?:[^.]*\.)*"}
    pattern = "".join(words.get(word, re.escape(word + ".")) for word in key.split("."))
    return re.fullmatch(pattern, routing_key + ".") is not None
