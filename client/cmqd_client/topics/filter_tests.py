"""Tests of tags or a routing key against the subscriptions of a topic."""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from cmqd_client.replies.conversions import converted
from cmqd_protocol import messages as wire
from cmqd_types import topics


class Fate(StrEnum):
    """The way of a message to one subscription, if the message were published now."""

    STORED = "stored"
    """The copy would be in the queue with the publish."""
    POSTED = "posted"
    """The message would be posted to the URL."""
    BEHIND = "behind"
    """The message would wait behind earlier messages of the subscription."""
    BLOCKED = "blocked"
    """The message would wait, because a message failed twice in a row."""
    QUEUE_FULL = "queue_full"
    """The message would wait, because the queue holds its ``max_backlog``."""
    QUEUE_MISSING = "queue_missing"
    """The message would wait, because the queue does not exist any more."""
    PAUSED = "paused"
    """The message would wait, because the subscription is paused."""
    NO_MATCH = "no_match"
    """The message does not match."""


class FilterMatch(topics.FilterMatch, frozen=True, array_like=False):
    """A filter tag or binding key of a subscription, tested."""


class SubscriptionMatch(msgspec.Struct, frozen=True):
    """A subscription, tested."""

    subscription: str
    """Name of the subscription."""
    protocol: str
    """``queue``, ``http`` or ``https``."""
    endpoint: str
    """Name of the queue, or the URL."""
    matches: bool
    fate: Fate | str
    """A plain string only if the server is newer than this client."""
    filters: list[FilterMatch]
    """Empty = every message matches."""


class TopicMatch(msgspec.Struct, frozen=True):
    """The subscriptions of a topic, tested, as of one moment."""

    filter_type: str
    """``tag`` or ``routing``."""
    matched: int
    """Number of subscriptions that would get the message."""
    subscriptions: list[SubscriptionMatch]
    """All subscriptions of the topic, by name."""
    request_id: int

    def __iter__(self) -> Iterator[SubscriptionMatch]:
        return iter(self.subscriptions)

    def __len__(self) -> int:
        return len(self.subscriptions)


def topic_match(reply: wire.SubscriptionsMatched) -> TopicMatch:
    """Convert the reply to a test."""
    return converted(TopicMatch, reply)
