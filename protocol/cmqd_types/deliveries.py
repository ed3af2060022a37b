"""Deliveries: the messages of a topic that wait for a subscription, and the subscriptions that have had a message.

The structs encode to msgpack arrays, so the order of the fields is part of the wire format. Fields are only ever
appended, with a default.
"""

import msgspec

from cmqd_types.messages import Headers, Labels

PENDING_STATES = ("waiting", "in_retry", "out_of_retries", "under_way")
"""States of a message that a subscription has not had: never tried; failed and tried again at a time; failed and tried
again after the next publish or by hand; an attempt is being made."""
REPORT_STATES = (*PENDING_STATES, "delivered", "dropped", "unknown")
"""States of a delivery in a report. ``unknown``: the server does not know any more, because the subscription was
removed, or because the day of the message is over."""


class PendingMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A message that waits for a subscription."""

    message_id: int
    state: str
    """One of ``PENDING_STATES``."""
    publish_ms: int
    size: int
    """Bytes of the body."""
    attempts: int
    """Attempts that failed."""
    next_attempt_ms: int | None = None
    """Time of the next attempt; null unless the state is ``in_retry``."""
    last_error: str | None = None
    """Reason of the last failure of this message."""
    last_failed_ms: int | None = None
    labels: Labels | None = None
    """Tags, or the routing key; null = no tags."""
    body: bytes | None = None
    """Null unless bodies were requested."""
    headers: Headers | None = None
    """Null unless bodies were requested."""


class DeliveriesPeeked(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A page of the messages that wait for a subscription, in the order of their publishes."""

    messages: list[PendingMessage]
    next_start: int | None = None
    """Where the next page starts; null = no further message waits."""


class DeliveryReport(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The delivery of a message to one subscription."""

    subscription: str | None
    """Null if the subscription was removed after the message had waited for it."""
    state: str
    """One of ``REPORT_STATES``."""
    endpoint: str | None = None
    """The queue or the URL; null if it is not known any more."""
    attempts: int | None = None
    """Attempts that failed; null = not known any more."""
    next_attempt_ms: int | None = None
    last_error: str | None = None
    last_failed_ms: int | None = None
    delivered_ms: int | None = None
    """Time of the delivery, of a copy that the publish stored; null for later deliveries."""
    copy_id: int | None = None
    """Message id of that copy in the queue."""
    drop_reason: str | None = None
    """``retries``, ``operator`` or ``damaged``."""


class MessageDeliveries(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The deliveries of a message to all subscriptions that it was published for."""

    message_id: int
    publish_ms: int
    size: int
    deliveries: list[DeliveryReport]
    labels: Labels | None = None
