"""A subscription's handle: what a topic delivers to one queue or URL, and what it has not delivered yet.

What is said in :mod:`cmqd_client.queue` about durability, time limits and repeats holds here too.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from cmqd_client.channel import Channel
from cmqd_client.durations import Duration, to_datetime, to_ms
from cmqd_client.retry import Repeat
from cmqd_protocol import messages as wire
from cmqd_types.topics import SubscriptionSummary


class RetryStrategy(StrEnum):
    """The retries of a message that could not be delivered."""

    EXPONENTIAL_DECAY = "exponential_decay"
    """The default. Deliveries are concurrent, their order is not promised. One that failed is tried again after 1, 2,
    4 ... 512, 512 ... s, up to 176 times, which is just under a day."""
    BACKOFF = "backoff"
    """In order, one at a time. A message that failed is tried again three times, each after 10-20 s, while those behind
    it wait; then it is dropped for this subscription."""


class ContentFormat(StrEnum):
    """Content of the requests to a URL. A queue gets body and headers as they were published, whatever is set here."""

    JSON = "json"
    """The default: an object with the body and facts of the message. A body that is not UTF-8 is base64 in it."""
    SIMPLIFIED = "simplified"
    """The body alone."""


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it was when asked."""

    topic: str
    name: str
    created: bool
    """True if this call created it."""
    secret: str | None
    """Of a subscription to a URL, when this call created it: the key of the signatures of what is posted
    (``whsec_...``, Standard Webhooks). It is shown this once; keep it."""

    protocol: str
    """``queue``, ``http`` or ``https``."""
    endpoint: str
    """Name of the queue, or the URL."""
    strategy: RetryStrategy | str
    """A plain string only if the server is newer than this client."""
    content_format: ContentFormat | str
    """A plain string only if the server is newer than this client."""
    filter_tags: list[str]
    """Empty = it gets every message."""
    binding_keys: list[str]
    """Of a subscription to a routing topic."""
    paused: bool

    waiting: int
    """Messages that were not tried yet."""
    in_retry: int
    """Messages that failed and are tried again, or are out of retries."""
    delivered: int | None
    """Messages that its URL has had; None of a queue, whose own counts tell."""
    dropped: int
    """Messages given up after their retries, or dropped by hand; those whose day ended included."""
    blocked: bool
    """A message failed twice in a row: new ones are held back, but for probes, until something is delivered."""
    last_error: str | None
    """Why the last delivery failed that did; None = none did yet."""
    last_error_time: datetime | None
    next_attempt_time: datetime | None
    """Time of the next retry; None = no retry is due."""
    create_time: datetime | None
    modify_time: datetime | None
    """Time of the last change of an attribute."""

    details: Mapping[str, Any]
    """Everything as the server sent it, under its names on the wire: also what this version does not know."""
    request_id: int

    def __repr__(self) -> str:
        shown = "" if self.secret is None else ", secret=..."
        return (
            f"SubscriptionInfo({self.topic!r}, {self.name!r}, endpoint={self.endpoint!r}, waiting={self.waiting}, "
            f"in_retry={self.in_retry}{shown})"
        )


class SubscriptionPage(msgspec.Struct, frozen=True):
    """Some of a topic's subscriptions, by name."""

    subscriptions: list[SubscriptionSummary]
    total: int
    """Subscriptions that match the search, listed here or not."""
    request_id: int

    def __iter__(self) -> Iterator[SubscriptionSummary]:
        return iter(self.subscriptions)

    def __len__(self) -> int:
        return len(self.subscriptions)


class RotatedSecret(msgspec.Struct, frozen=True):
    """A subscription's new secret."""

    secret: str
    """Shown this once; keep it."""
    overlap_until: datetime
    """Until then what is posted is signed with the old one as well."""
    request_id: int

    def __repr__(self) -> str:
        return f"RotatedSecret(secret=..., overlap_until={self.overlap_until!r})"


class Subscription:
    """One subscription of a topic; get it from ``topic.subscribe`` or ``topic.subscription(name)``.

    It is a pair of names and costs nothing. All its methods raise ``TopicNotFound`` or ``SubscriptionNotFound`` if
    there is none of this name.
    """

    __slots__ = ("_channel", "name", "secret", "topic")

    def __init__(self, channel: Channel, topic: str, name: str, secret: str | None = None) -> None:
        self._channel = channel
        self.topic: str = topic
        """Name of its topic."""
        self.name: str = name
        self.secret: str | None = secret
        """The key of the signatures, if ``subscribe`` has just created a subscription to a URL. It is shown this once,
        so keep it; if it is lost, :meth:`rotate_secret` gives another."""

    async def info(self) -> SubscriptionInfo:
        """Attributes, counts and facts, as of now. Safe to cancel."""
        request = wire.GetSubscription(self._channel.next_request_id(), self.topic, self.name)
        return subscription_info(await self._channel.call(request, wire.SubscriptionInfo, Repeat.READ))

    async def set(
        self,
        *,
        filter_tags: Iterable[str] | None = None,
        binding_keys: Iterable[str] | None = None,
        strategy: RetryStrategy | None = None,
        content_format: ContentFormat | None = None,
        paused: bool | None = None,
    ) -> SubscriptionInfo:
        """Change what is named; the rest stays. All is changed in one step or nothing is.

        Repeated after a lost answer; another caller's change in between would then be overwritten. Protocol and
        endpoint cannot be changed: make another subscription.

        Args:
            filter_tags: for messages published from now on; see ``topic.subscribe``. Empty = every message.
            binding_keys: likewise, for a routing topic.
            strategy: also for later attempts of messages that have failed already.
            content_format: for what is posted from now on.
            paused: see :meth:`pause`.

        Returns:
            All as it is now.

        Raises:
            InvalidArgument: a value is out of range or not of this kind of topic. Nothing was changed.
            OutcomeUnknown: it may be changed.
            TypeError: a string where tags or keys are expected.
        """
        attributes = subscription_attributes(filter_tags, binding_keys, strategy, content_format)
        if paused is not None:
            attributes["paused"] = paused
        request = wire.SetSubscriptionAttributes(self._channel.next_request_id(), self.topic, self.name, attributes)
        return subscription_info(await self._channel.call(request, wire.SubscriptionInfo, Repeat.SAFE))

    async def pause(self) -> None:
        """Hold all deliveries back until :meth:`resume`; what is under way ends.

        Messages go on to be kept for it, each for a day from its publish. Errors and repeats are those of :meth:`set`.
        """
        await self.set(paused=True)

    async def resume(self) -> None:
        """Go on with the deliveries after :meth:`pause`. Errors and repeats are those of :meth:`set`."""
        await self.set(paused=False)

    async def retry_now(self) -> int:
        """Try everything that failed again at once, what is out of retries once more.

        It answers without waiting for the attempts. Not repeated after a lost answer.

        Returns:
            How many messages are tried again.

        Raises:
            OutcomeUnknown: they may be tried again.
        """
        request = wire.RetryDeliveries(self._channel.next_request_id(), self.topic, self.name)
        return (await self._channel.call(request, wire.DeliveriesDone, Repeat.ONCE)).messages

    async def drop_waiting(self) -> int:
        """Drop everything that waits or is in retry for this subscription; others keep it.

        Not repeated after a lost answer, since that would drop later messages too.

        Returns:
            How many messages were dropped.

        Raises:
            OutcomeUnknown: they may be dropped.
        """
        request = wire.DropDeliveries(self._channel.next_request_id(), self.topic, self.name)
        return (await self._channel.call(request, wire.DeliveriesDone, Repeat.ONCE)).messages

    async def rotate_secret(self, *, overlap: Duration | None = None) -> RotatedSecret:
        """Have what is posted signed with a new secret. Not repeated after a lost answer.

        Args:
            overlap: how long the old one signs as well, so that the receiver can change over; None = a day.

        Raises:
            InvalidArgument: it delivers to a queue, where nothing is signed; or the overlap is out of range.
            OutcomeUnknown: it may have a new secret that the caller does not know; rotate it again.
        """
        overlap_ms = None if overlap is None else to_ms(overlap, "overlap")
        request = wire.RotateSecret(self._channel.next_request_id(), self.topic, self.name, overlap_ms)
        reply = await self._channel.call(request, wire.SubscriptionSecret, Repeat.ONCE)
        return RotatedSecret(reply.secret, to_datetime(reply.overlap_until_ms), reply.request_id)

    async def unsubscribe(self) -> None:
        """End the subscription and drop what waits for it. Not repeated after a lost answer.

        Copies that are in its queue already stay there.

        Raises:
            OutcomeUnknown: it may have ended.
        """
        request = wire.Unsubscribe(self._channel.next_request_id(), self.topic, self.name)
        await self._channel.call(request, wire.Done, Repeat.ONCE)

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic!r}>"


def strings(values: Iterable[str], field: str) -> list[str]:
    """Tags or keys as a list.

    Raises:
        TypeError: it is a single string, whose letters would be taken for them, or holds something else.
    """
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{field} must be a list of strings, not {values!r}")
    found = list(values)
    for value in found:
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{field} must be strings, not {value!r}")
    return found


def subscription_attributes(
    filter_tags: Iterable[str] | None,
    binding_keys: Iterable[str] | None,
    strategy: RetryStrategy | None,
    content_format: ContentFormat | None,
) -> dict[str, Any]:
    """What was named, as the wire has it.

    Raises:
        TypeError: tags or keys are no list of strings.
        ValueError: there are both tags and keys.
    """
    attributes: dict[str, Any] = {}
    if filter_tags is not None:
        attributes["filter_tags"] = strings(filter_tags, "filter_tags")
    if binding_keys is not None:
        attributes["binding_keys"] = strings(binding_keys, "binding_keys")
    if attributes.get("filter_tags") and attributes.get("binding_keys"):
        raise ValueError("give filter_tags (tag topic) or binding_keys (routing topic), not both")
    if strategy is not None:
        attributes["strategy"] = str(strategy)
    if content_format is not None:
        attributes["content_format"] = str(content_format)
    return attributes


def subscription_info(reply: wire.SubscriptionInfo) -> SubscriptionInfo:
    """Convert the reply about a subscription."""
    attributes, counts, facts = reply.attributes, reply.counts, reply.facts

    def moment(name: str) -> datetime | None:
        milliseconds = facts.get(name)
        return to_datetime(milliseconds) if milliseconds else None

    return SubscriptionInfo(
        topic=reply.topic,
        name=reply.subscription,
        created=reply.created,
        secret=reply.secret,
        protocol=attributes.get("protocol", ""),
        endpoint=attributes.get("endpoint", ""),
        strategy=_known(RetryStrategy, attributes.get("strategy", "")),
        content_format=_known(ContentFormat, attributes.get("content_format", "")),
        filter_tags=list(attributes.get("filter_tags") or ()),
        binding_keys=list(attributes.get("binding_keys") or ()),
        paused=attributes.get("paused", False),
        waiting=counts.get("waiting", 0),
        in_retry=counts.get("in_retry", 0),
        delivered=counts.get("delivered"),
        dropped=counts.get("dropped", 0),
        blocked=facts.get("blocked", False),
        last_error=facts.get("last_error") or None,
        last_error_time=moment("last_error_ms"),
        next_attempt_time=moment("next_attempt_ms"),
        create_time=moment("created_ms"),
        modify_time=moment("modified_ms"),
        details={**attributes, **counts, **facts},
        request_id=reply.request_id,
    )


def _known(kind: type[StrEnum], value: str) -> Any:
    """The member of an enum, or the string that a newer server sent."""
    try:
        return kind(value)
    except ValueError:
        return value
