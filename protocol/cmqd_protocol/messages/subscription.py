"""Subscriptions of a topic: create, list, configure and end; waiting deliveries and secrets."""

from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import SubscriptionAttributes, Unsigned
from cmqd_types import topics
from cmqd_types.topics import SubscriptionSummary


class Subscribe(Request, frozen=True, tag=88):
    """Subscribe a queue or a URL to the messages published to a topic from now on. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class EnsureSubscription(Request, frozen=True, tag=89):
    """Subscribe, or confirm that the subscription has these attributes. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class ListSubscriptions(Request, frozen=True, tag=90):
    """List a page of a topic's subscriptions, by name. Answered ``SubscriptionList``."""

    topic: str
    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetSubscription(Request, frozen=True, tag=91):
    """Read attributes, counts and facts of a subscription. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str


class SetSubscriptionAttributes(Request, frozen=True, tag=92):
    """Change the attributes named (``paused`` among them). Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class Unsubscribe(Request, frozen=True, tag=93):
    """Delete a subscription and drop its waiting deliveries. Answered ``Done``."""

    topic: str
    subscription: str


class RetryDeliveries(Request, frozen=True, tag=94):
    """Retry all failed deliveries at once, also after the last retry. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class DropDeliveries(Request, frozen=True, tag=95):
    """Drop all deliveries of a subscription that wait or are in retry. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class RotateSecret(Request, frozen=True, tag=96):
    """Give a subscription to a URL a new secret for signatures. Answered ``SubscriptionSecret``."""

    topic: str
    subscription: str
    overlap_ms: Unsigned | None = None
    """Time during which pushes are also signed with the old secret; None = a day."""


class SubscriptionInfo(topics.SubscriptionInfo, WireMessage, frozen=True, tag=209):
    """Attributes, counts and facts of a subscription; ``secret`` only if the request created the subscription."""

    request_id: int


class SubscriptionList(Reply, frozen=True, tag=210):
    """A page of subscriptions, and the ``total`` number of matching subscriptions."""

    total: int
    subscriptions: list[SubscriptionSummary]


class DeliveriesDone(Reply, frozen=True, tag=211):
    """Number of messages that are retried or were dropped."""

    messages: int


class SubscriptionSecret(Reply, frozen=True, tag=212):
    """A new secret, only in this reply."""

    secret: str
    overlap_until_ms: int
    """Time until which pushes are also signed with the old secret."""
