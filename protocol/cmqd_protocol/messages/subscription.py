"""Subscriptions of a topic: create, list, configure and end; waiting deliveries and secrets."""

from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import SubscriptionAttributes, Unsigned
from cmqd_types import topics
from cmqd_types.topics import SubscriptionSummary


class Subscribe(Request, frozen=True, tag=88):
    """Have a topic's messages delivered to a queue or a URL from here on. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class EnsureSubscription(Request, frozen=True, tag=89):
    """Subscribe, or confirm that the subscription has these attributes. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class ListSubscriptions(Request, frozen=True, tag=90):
    """A page of a topic's subscriptions in order of name. Answered ``SubscriptionList``."""

    topic: str
    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetSubscription(Request, frozen=True, tag=91):
    """Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str


class SetSubscriptionAttributes(Request, frozen=True, tag=92):
    """Change the attributes named (``paused`` among them). Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class Unsubscribe(Request, frozen=True, tag=93):
    """End a subscription and drop what waits for it. Answered ``Done``."""

    topic: str
    subscription: str


class RetryDeliveries(Request, frozen=True, tag=94):
    """Try all that failed again at once, those whose retries are used up once more. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class DropDeliveries(Request, frozen=True, tag=95):
    """Drop all that waits or is in retry for a subscription. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class RotateSecret(Request, frozen=True, tag=96):
    """Give a subscription to a URL a new secret for signatures. Answered ``SubscriptionSecret``."""

    topic: str
    subscription: str
    overlap_ms: Unsigned | None = None
    """How long what is posted is signed with the old one as well; None = a day."""


class SubscriptionInfo(topics.SubscriptionInfo, WireMessage, frozen=True, tag=209):
    """Attributes, counts and facts of a subscription; ``secret`` only in the reply that creates it."""

    request_id: int


class SubscriptionList(Reply, frozen=True, tag=210):
    """``total`` that match, and the wanted part."""

    total: int
    subscriptions: list[SubscriptionSummary]


class DeliveriesDone(Reply, frozen=True, tag=211):
    """How many messages are tried again or were dropped."""

    messages: int


class SubscriptionSecret(Reply, frozen=True, tag=212):
    """A new secret, told this once."""

    secret: str
    overlap_until_ms: int
    """Until then what is posted is signed with the old one as well."""
