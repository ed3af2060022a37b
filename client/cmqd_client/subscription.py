"""The handle of a subscription: deliveries of a topic to a queue or URL, and messages not delivered yet.

The rules of :mod:`cmqd_client.queue` about durability, time limits and repeats apply here too.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Unpack

import msgspec

from cmqd_client.attributes import to_wire
from cmqd_client.declared_attributes import SubscriptionAttributes, SubscriptionValues
from cmqd_client.durations import Duration, to_ms
from cmqd_client.links.channel import Channel
from cmqd_client.messages.message_ids import id_number
from cmqd_client.replies.conversions import converted
from cmqd_client.replies.infos import info_fields
from cmqd_client.results import Done
from cmqd_client.topics.delivery_reports import PendingPage, pending_page
from cmqd_protocol import messages as wire
from cmqd_protocol import operations
from cmqd_types.attributes import SUBSCRIPTION, SUBSCRIPTION_OPTIONS
from cmqd_types.choices import ContentFormat as ContentFormat
from cmqd_types.choices import RetryStrategy as RetryStrategy
from cmqd_types.topics import QueueSubscription, SubscriptionSummary


class SubscriptionInfo(SubscriptionValues, frozen=True, kw_only=True):
    """A subscription at the time of the request."""

    waiting: int = 0
    """Messages without a delivery attempt yet."""
    in_retry: int = 0
    """Messages with a failed delivery that are tried again, or are out of retries."""
    delivered: int | None = None
    """Messages accepted by the URL; None for a queue, which counts its own messages."""
    dropped: int = 0
    """Messages dropped after their retries, after their day, or by hand."""
    blocked: bool = False
    """A message failed twice in a row: new messages are held back, except probes, until a delivery succeeds."""
    last_error: str | None = None
    """Reason of the last failed delivery; None = no delivery failed yet."""
    last_error_time: datetime | None = None
    next_attempt_time: datetime | None = None
    """Time of the next retry; None = no retry is due."""
    create_time: datetime | None = None
    modify_time: datetime | None = None
    """Time of the last change of an attribute."""

    details: Mapping[str, Any]
    """The server's full reply under its names on the wire, including facts unknown to this version."""
    request_id: int

    def __repr__(self) -> str:
        shown = "" if self.secret is None else ", secret=..."
        return (
            f"SubscriptionInfo({self.topic!r}, {self.name!r}, endpoint={self.endpoint!r}, waiting={self.waiting}, "
            f"in_retry={self.in_retry}{shown})"
        )


class SubscriptionPage(msgspec.Struct, frozen=True):
    """A page of a topic's subscriptions, by name."""

    subscriptions: list[SubscriptionSummary]
    total: int
    """Subscriptions that match the search, listed here or not."""
    request_id: int

    def __iter__(self) -> Iterator[SubscriptionSummary]:
        return iter(self.subscriptions)

    def __len__(self) -> int:
        return len(self.subscriptions)


class QueueSubscriptionPage(msgspec.Struct, frozen=True):
    """A page of the subscriptions that deliver to a queue, by topic and name."""

    subscriptions: list[QueueSubscription]
    total: int
    """Subscriptions that deliver to the queue, listed here or not."""
    request_id: int

    def __iter__(self) -> Iterator[QueueSubscription]:
        return iter(self.subscriptions)

    def __len__(self) -> int:
        return len(self.subscriptions)


class DeliveriesDone(msgspec.Struct, frozen=True):
    """Waiting deliveries of a subscription were retried or dropped, durably."""

    messages: int
    """Number of messages."""
    request_id: int


class RotatedSecret(msgspec.Struct, frozen=True):
    """A subscription's new secret."""

    secret: str
    """Shown only once; keep it."""
    overlap_until: datetime
    """Time until which requests are also signed with the old secret."""
    request_id: int

    def __repr__(self) -> str:
        return f"RotatedSecret(secret=..., overlap_until={self.overlap_until!r})"


class Subscription:
    """A subscription of a topic; get the handle from ``topic.subscribe`` or ``topic.subscription(name)``.

    A handle is a pair of names; creating a handle sends no request. All methods raise ``TopicNotFound`` or
    ``SubscriptionNotFound`` if the subscription does not exist.
    """

    __slots__ = ("_channel", "name", "request_id", "secret", "topic")

    def __init__(
        self,
        channel: Channel,
        topic: str,
        name: str,
        secret: str | None = None,
        request_id: int | None = None,
    ) -> None:
        self._channel = channel
        self.topic: str = topic
        """Name of the topic."""
        self.name: str = name
        self.secret: str | None = secret
        """The key of the signatures, if ``subscribe`` has just created a subscription to a URL. The server shows the
        secret only once, so keep it; after a loss, :meth:`rotate_secret` gives a new secret."""
        self.request_id: int | None = request_id
        """Number of the request that created or checked the subscription, if ``subscribe`` returned this handle; else
        None."""

    async def info(self) -> SubscriptionInfo:
        """Return attributes, counts and facts, as of now."""
        return subscription_info(await self._channel.ask(operations.GET_SUBSCRIPTION, self.topic, self.name))

    async def set(
        self, *, paused: bool | None = None, **attributes: Unpack[SubscriptionAttributes]
    ) -> SubscriptionInfo:
        """Change the given attributes in one step, all or none, and return all attributes; the others stay.

        Repeated after a lost reply; the repeat would overwrite another caller's change in between. Protocol and
        endpoint cannot be changed: make another subscription.

        Args:
            paused: see :meth:`pause`.
            **attributes: see :class:`SubscriptionAttributes`. Tags and keys are for messages published from now on, a
                strategy also for later attempts of messages that have failed already.

        Raises:
            InvalidArgument: a value is out of range or not of this kind of topic. No attribute was changed.
            TypeError: a string where tags or keys are expected.
        """
        changes = subscription_attributes(attributes)
        if paused is not None:
            changes["paused"] = paused
        return subscription_info(
            await self._channel.ask(operations.SET_SUBSCRIPTION_ATTRIBUTES, self.topic, self.name, changes)
        )

    async def pause(self) -> Done:
        """Hold all deliveries back until :meth:`resume`; attempts in progress end normally.

        Messages are kept for the subscription meanwhile, for a day from their publish. Errors and repeats as for
        :meth:`set`.
        """
        return Done((await self.set(paused=True)).request_id)

    async def resume(self) -> Done:
        """Continue the deliveries after :meth:`pause`. Errors and repeats as for :meth:`set`."""
        return Done((await self.set(paused=False)).request_id)

    async def retry_now(self) -> DeliveriesDone:
        """Retry all failed messages at once; messages out of retries get another attempt.

        Returns without waiting for the attempts. Not repeated after a lost reply.
        """
        reply = await self._channel.ask(operations.RETRY_DELIVERIES, self.topic, self.name)
        return DeliveriesDone(reply.messages, reply.request_id)

    async def drop_waiting(self) -> DeliveriesDone:
        """Drop all messages that wait or are in retry for this subscription.

        Not repeated after a lost reply, since the repeat would drop later messages too.
        """
        reply = await self._channel.ask(operations.DROP_DELIVERIES, self.topic, self.name)
        return DeliveriesDone(reply.messages, reply.request_id)

    async def peek(self, max_messages: int = 16, *, start: int = 0, bodies: bool = True) -> PendingPage:
        """Return messages that this subscription has not had, in the order of their publishes; nothing changes.

        Args:
            max_messages: 1-256; a page may hold fewer, also none, and yet not be the last.
            start: 0, or ``next_start`` of the page before.
            bodies: False = without bodies and headers.
        """
        return pending_page(
            await self._channel.ask(
                operations.PEEK_DELIVERIES,
                self.topic,
                self.name,
                max_messages,
                start,
                bodies,
            )
        )

    async def retry(self, message_id: str) -> DeliveriesDone:
        """Retry a message at once, also if it was never tried or is out of retries.

        Returns without waiting for the attempt. With ordered delivery (``BACKOFF``) the messages before it still go
        first. Not repeated after a lost reply.

        Args:
            message_id: id of the published message, ``Msg-...``.

        Returns:
            ``messages`` is 1; or 0 if the message was never tried and waits for its turn, because the server has no
            room to remember another failure.

        Raises:
            MessageNotWaiting: the message does not wait for this subscription.
            ValueError: the string is not a message id.
        """
        number = id_number(message_id)
        reply = await self._channel.ask(operations.RETRY_DELIVERY, self.topic, self.name, number)
        return DeliveriesDone(reply.messages, reply.request_id)

    async def drop(self, message_id: str) -> Done:
        """Drop a message for this subscription, durably; an attempt under way may still deliver the message.

        Not repeated after a lost reply: the repeat of a drop that was carried out would be refused.

        Args:
            message_id: id of the published message, ``Msg-...``.

        Raises:
            MessageNotWaiting: the message does not wait for this subscription.
            ValueError: the string is not a message id.
        """
        number = id_number(message_id)
        reply = await self._channel.ask(operations.DROP_DELIVERY, self.topic, self.name, number)
        return Done(reply.request_id)

    async def rotate_secret(self, *, overlap: Duration | None = None) -> RotatedSecret:
        """Make a new secret for the signatures of requests. Not repeated after a lost reply.

        Args:
            overlap: how long the old secret signs as well, so that the receiver can change over; None = a day.

        Raises:
            InvalidArgument: the subscription delivers to a queue, without signatures; or the overlap is out of range.
            OutcomeUnknown: the subscription may have a new secret unknown to the caller; rotate again.
        """
        overlap_ms = None if overlap is None else to_ms(overlap, "overlap")
        reply = await self._channel.ask(operations.ROTATE_SECRET, self.topic, self.name, overlap_ms)
        return converted(RotatedSecret, reply)

    async def unsubscribe(self) -> Done:
        """End the subscription and drop its waiting messages. Not repeated after a lost reply.

        Copies already in the queue stay there.
        """
        reply = await self._channel.ask(operations.UNSUBSCRIBE, self.topic, self.name)
        return Done(reply.request_id)

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic!r}>"


def subscription_attributes(given: SubscriptionAttributes) -> dict[str, Any]:
    """Return the given attributes in wire form.

    Raises:
        TypeError: an attribute is unknown; tags or keys are not a list of strings.
        ValueError: there are both tags and keys.
    """
    attributes = to_wire("subscription", SUBSCRIPTION_OPTIONS, given)
    if attributes.get("filter_tags") and attributes.get("binding_keys"):
        raise ValueError("give filter_tags (tag topic) or binding_keys (routing topic), not both")
    return attributes


def subscription_info(reply: wire.SubscriptionInfo) -> SubscriptionInfo:
    """Convert the reply about a subscription."""
    fields = info_fields(SubscriptionInfo, reply, SUBSCRIPTION)
    return SubscriptionInfo(topic=reply.topic, name=reply.subscription, secret=reply.secret, **fields)
