"""Topics and subscriptions: information about a topic or a subscription.

The attributes that an owner can set are declared in ``cmqd_segment.attributes``; here they travel as a map by name.

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
