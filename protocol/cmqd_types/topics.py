"""Topics and subscriptions: information about a topic or a subscription.

The attributes that an owner can set are declared in ``cmqd_types.attributes``; here they travel as a map by name.

``TopicInfo`` and ``SubscriptionInfo`` take keywords only, for the reason given in ``queues``.
"""

from typing import Any

import msgspec


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Attributes, counts and facts of a topic, by name."""

    topic: str
    topic_id: int
    attributes: dict[str, Any]
    counts: dict[str, int]
    facts: dict[str, Any]
    created: bool = False
    """True if the request created the topic."""


class SubscriptionInfo(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Attributes, counts and facts of a subscription, by name."""

    topic: str
    subscription: str
    attributes: dict[str, Any]
    counts: dict[str, int]
    """``waiting``, ``in_retry``, ``dropped``; with a URL as endpoint also ``delivered``."""
    facts: dict[str, Any]
    """``id``, ``created_ms``, ``modified_ms``, ``blocked``, ``last_error``, ``last_error_ms``, ``next_attempt_ms``."""
    created: bool = False
    """True if the request created the subscription."""
    secret: str | None = None
    """Secret that signs the pushes to the URL. Only the reply to the request that created the subscription has it."""


FATES = ("stored", "posted", "behind", "blocked", "queue_full", "queue_missing", "paused", "no_match")
"""Ways of a message that is published now, for a subscription: a copy is in the queue with the publish; a post to the
URL; a wait behind earlier messages of the subscription, after failures, for a full queue, for a missing queue, or for
the end of a pause; no match."""


class FilterMatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A filter of a subscription, tested against the labels of a message."""

    text: str
    """The filter tag or binding key."""
    matches: bool
    differs_at: int | None = None
    """Number, from 1, of the word at which the routing key leaves the binding key; behind the last word if the routing
    key ends too early. Null if the key matches, and for a tag."""


class SubscriptionMatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subscription, tested against the labels of a message."""

    subscription: str
    protocol: str
    """``queue``, ``http`` or ``https``."""
    endpoint: str
    """Name of the queue, or the URL."""
    matches: bool
    fate: str
    """One of ``FATES``."""
    filters: list[FilterMatch]
    """Empty = every message of the topic matches."""


class TopicMatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The subscriptions of a topic, tested against the labels of a message."""

    filter_type: str
    """``tag`` or ``routing``."""
    matched: int
    """Number of subscriptions that get the message."""
    subscriptions: list[SubscriptionMatch]
    """All subscriptions, in order of their names."""


class SubscriptionSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subscription in a list."""

    name: str
    protocol: str
    """``queue``, ``http`` or ``https``."""
    endpoint: str
    """Name of the queue, or the URL."""
    paused: bool
    waiting: int
    """Messages without a delivery attempt so far."""
    in_retry: int
    """Messages with a failed attempt: another attempt follows, or the retries are used up."""
    last_error: str | None


class QueueSubscription(SubscriptionSummary, frozen=True, array_like=True, gc=False):
    """A subscription in a list of the subscriptions that deliver to a queue."""

    topic: str
