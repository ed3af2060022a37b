"""Deliveries: messages that wait for a subscription, and the deliveries of a published message."""

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

import msgspec

from cmqd_client.messages.message_ids import MessageId
from cmqd_client.replies.conversions import converted
from cmqd_client.results import MessagePage
from cmqd_protocol import messages as wire
from cmqd_types import deliveries
from cmqd_types.messages import Headers


class DeliveryState(StrEnum):
    """State of a message for one subscription."""

    WAITING = "waiting"
    """Never tried."""
    IN_RETRY = "in_retry"
    """Failed; tried again at ``next_attempt_time``."""
    OUT_OF_RETRIES = "out_of_retries"
    """Failed; kept until its day is over, and tried again after the next publish or :meth:`Subscription.retry`."""
    UNDER_WAY = "under_way"
    """An attempt is being made."""
    DELIVERED = "delivered"
    """The queue has stored the copy, even if the copy was deleted since, or the URL has accepted the message."""
    DROPPED = "dropped"
    """Not delivered; ``drop_reason`` says why."""
    UNKNOWN = "unknown"
    """The server does not know any more: the subscription was removed, or the day of the message is over."""


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for a subscription, at the time of the peek."""

    id: MessageId
    state: DeliveryState | str
    """A plain string only if the server is newer than this client."""
    publish_time: datetime
    size: int
    """Bytes of the body."""
    attempts: int
    """Attempts that failed."""
    next_attempt_time: datetime | None
    """None unless the message is in retry."""
    last_error: str | None
    """Reason of the last failure of this message."""
    last_error_time: datetime | None
    tags: list[str]
    routing_key: str | None
    """None on a tag topic."""
    body: bytes | None
    """None if the peek left out the bodies."""
    headers: Headers | None


class PendingPage(MessagePage[PendingMessage], frozen=True):
    """A page of :meth:`Subscription.peek`, in the order of the publishes."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of a message to one subscription."""

    subscription: str | None
    """Name of the subscription; None if it was removed after the message had waited for it."""
    state: DeliveryState | str
    """A plain string only if the server is newer than this client."""
    endpoint: str | None
    """The queue or the URL; None if it is not known any more."""
    attempts: int | None
    """Attempts that failed; None = not known any more."""
    next_attempt_time: datetime | None
    last_error: str | None
    last_error_time: datetime | None
    delivered_time: datetime | None
    """Known of a copy that was stored with the publish."""
    copy_id: MessageId | None
    """Id of that copy in its queue."""
    drop_reason: str | None
    """``retries``, ``operator`` or ``damaged``."""


class MessageDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """The deliveries of a message: an entry for each subscription that the message was published for."""

    id: MessageId
    publish_time: datetime
    size: int
    """Bytes of the body."""
    tags: list[str]
    routing_key: str | None
    """None on a tag topic."""
    deliveries: list[Delivery]
    request_id: int

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    def __len__(self) -> int:
        return len(self.deliveries)


def pending_page(reply: wire.DeliveriesPeeked) -> PendingPage:
    """Convert the reply to a peek."""
    return PendingPage([_pending(message) for message in reply.messages], reply.next_start, reply.request_id)


def message_deliveries(reply: wire.MessageDeliveries) -> MessageDeliveries:
    """Convert the reply about the deliveries of a message."""
    return converted(MessageDeliveries, reply)


def _pending(message: deliveries.PendingMessage) -> PendingMessage:
    headers = None if message.body is None else message.headers or {}
    return converted(PendingMessage, message, headers=headers)
