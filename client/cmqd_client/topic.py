"""The handle of a topic: publish messages, and subscribe queues and URLs.

A handle is a name and a client; creating a handle sends no request. The rules of
:mod:`cmqd_client.queue` about durability, time limits and repeats apply here too.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, Unpack, cast

import msgspec

from cmqd_client.attributes import strings, to_wire
from cmqd_client.declared_attributes import SubscriptionAttributes, TopicAttributes, TopicChanges, TopicValues
from cmqd_client.links.channel import Channel
from cmqd_client.links.locating import Location, ask_location
from cmqd_client.messages.message_ids import MessageId, id_number, printed_id
from cmqd_client.messages.outgoing import checked_body
from cmqd_client.messages.typed_bodies import BodyCodec, BodyT
from cmqd_client.queue import Queue
from cmqd_client.replies.infos import info_fields
from cmqd_client.results import NamePage
from cmqd_client.subscription import (
    Subscription,
    SubscriptionInfo,
    SubscriptionPage,
    subscription_attributes,
    subscription_info,
)
from cmqd_client.topics.delivery_reports import MessageDeliveries, message_deliveries
from cmqd_client.topics.filter_tests import TopicMatch, topic_match
from cmqd_protocol import messages as wire
from cmqd_protocol import operations
from cmqd_types.attributes import TOPIC, TOPIC_CHANGES
from cmqd_types.choices import FilterType as FilterType
from cmqd_types.messages import Headers

T = TypeVar("T")


class TopicInfo(TopicValues, frozen=True, kw_only=True):
    """A topic at the time of the request; durations are seconds."""

    lifecycle: float = 0.0
    """Seconds after its publish for which a message with waiting deliveries is kept: a day."""

    retained: int = 0
    """Messages that wait or are in retry for at least one subscription."""
    subscriptions: int = 0
    oldest_message_time: datetime | None = None
    """Time of the publish of the oldest retained message; None = no message is retained."""
    create_time: datetime | None = None
    modify_time: datetime | None = None
    """Time of the last change of an attribute."""
    region: str = ""
    address: str = ""
    """``host:port`` at which clients reach the server. Empty, like ``region``, if the server is too old to report the
    address."""

    details: Mapping[str, Any]
    """The server's full reply under its names on the wire, including facts unknown to this version."""
    request_id: int


class TopicPage(NamePage, frozen=True):
    """A page of :meth:`Client.topics`."""


class Published(msgspec.Struct, frozen=True):
    """The message and its copies are stored, and on disk."""

    id: MessageId
    """Id of the message in the topic; copies in queues have other ids."""
    matched: int | None
    """Number of matching subscriptions; 0 = no match, so the message was discarded. None = the message had been
    published before (a repeat after a lost reply, or a known dedup id), and the number is not remembered."""
    request_id: int


class Topic(Generic[BodyT]):
    """A topic of the account; get the handle from ``client.topic(name)``, ``create_topic`` or ``ensure_topic``.

    Any number of tasks can use a handle at once; their requests share the client's connection. All methods raise
    ``TopicNotFound`` if the topic does not exist.
    """

    __slots__ = ("_channel", "codec", "name", "request_id")

    def __init__(
        self,
        channel: Channel,
        name: str,
        codec: BodyCodec[BodyT] | None = None,
        request_id: int | None = None,
    ) -> None:
        self._channel = channel
        self.name: str = name
        self.codec: BodyCodec[BodyT] | None = codec
        """Encodes the bodies; None = bodies are bytes."""
        self.request_id: int | None = request_id
        """Number of the request that created or checked the topic, if ``create_topic`` or ``ensure_topic`` returned
        this handle; else None."""

    # ------------------------------------------------------------------ publish

    async def publish(
        self,
        body: BodyT,
        *,
        tags: Iterable[str] | None = None,
        routing_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_id: str | None = None,
    ) -> Published:
        """Publish a message to every subscription that matches now.

        The message and its copies in queues are stored in one step: when this call returns, all are in their queues and
        on disk. Deliveries to URLs, and to missing or full queues, follow at least once, for up to a day, by the
        subscription's retry strategy. A message without a matching subscription is discarded, which is not an error.

        The publish is numbered, and repeated, like :meth:`Queue.send`: no subscription gets the message twice. After a
        repeat, ``matched`` is None.

        Args:
            body: 1 byte up to the topic's ``max_message_bytes``; opaque to the server. For a handle with a type, a
                value of the type; the client sets the header ``content-type``.
            tags: on a tag topic, up to 10 tags of 1-16 characters without commas; None = no tags.
            routing_key: on a routing topic, 1-64 bytes with at most 15 dots.
            headers: at most 32, 16 KiB in all; copied to every subscription.
            dedup_id: as for :meth:`Queue.send`, among the messages of the topic.

        Raises:
            TopicNotFound, MessageTooLarge, InvalidArgument: the message was not published.
            DiskNearlyFull, Busy: the message was not published; try again after ``retry_after``.
            OutcomeUnknown: the message may be published.
            ValueError: there are both tags and a routing key.
        """
        labels = None if tags is None else [strings(tags, "tags")]
        keys = None if routing_key is None else [routing_key]
        (published,) = await self._publish([self._encoded(body)], labels, keys, [self._headers(headers)], [dedup_id])
        return published

    async def publish_batch(
        self,
        bodies: Iterable[BodyT],
        *,
        tags: Sequence[str] | Sequence[Sequence[str]] | None = None,
        routing_key: str | None = None,
        routing_keys: Sequence[str] | None = None,
        headers: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        after: str | None = None,
        all_or_none: bool = False,
    ) -> list[Published]:
        """Publish up to 256 messages in one step: all are published with all their copies, or none is.

        Every queue, and every subscriber with ordered delivery, gets the messages in this order. Guarantees,
        cancellation and errors are as for :meth:`publish`.

        Args:
            bodies: as for :meth:`publish`. Bodies and headers are at most 1 MiB together (a single larger message is
                allowed). An empty batch publishes no message.
            tags: on a tag topic, the tags of every message (``["red", "big"]``), or a list of tags per message
                (``[["red"], ["red", "big"], []]``).
            routing_key: on a routing topic, the key of every message.
            routing_keys: or a list with a key per message.
            headers: the headers of every message, or a list with headers (or None) per message.
            dedup_ids: as for :meth:`Queue.send_batch`.
            after: likewise. A message that matches no subscription is not remembered.
            all_or_none: likewise. Give the messages the same tags or key: a batch of which only some messages matched
                is refused when it comes again.

        Raises:
            BatchTooLarge: bodies and headers are too large together; no message was published.
            OutOfOrder: the topic does not remember ``after``; no message was published.
            NotSupported: the server is too old for ``after`` or ``all_or_none``; the batch was not sent.
            CmqError: as for :meth:`publish`.
            ValueError: a list differs in length from ``bodies``, or there are both tags and routing keys.
        """
        contents = [self._encoded(body) for body in bodies]
        count = len(contents)
        if routing_key is not None and routing_keys is not None:
            raise ValueError("give routing_key (of every message) or routing_keys (a key per message), not both")
        keys = [routing_key] if routing_key is not None else None
        if routing_keys is not None:
            keys = _one_each(strings(routing_keys, "routing_keys"), count, "routing_keys")
        labels = None if tags is None else _tags(tags, count)
        if headers is None or isinstance(headers, Mapping):
            all_headers = [self._headers(headers)] * count
        else:
            all_headers = [self._headers(entry) for entry in _one_each(headers, count, "headers")]
        ids = None if dedup_ids is None else _one_each(dedup_ids, count, "dedup_ids")
        if not contents:
            return []
        return await self._publish(contents, labels, keys, all_headers, ids, after, all_or_none=all_or_none)

    def _encoded(self, body: BodyT) -> bytes:
        """Return the body in bytes.

        Raises:
            TypeError: the body is not bytes, or not of the type of the handle.
        """
        return checked_body(cast("bytes", body)) if self.codec is None else self.codec.encode(body)

    def _headers(self, headers: Mapping[str, str] | None) -> Headers | None:
        """Return the headers of a message, with the content type of a typed handle."""
        given = None if headers is None else dict(headers)
        return given if self.codec is None else self.codec.headers(given)

    async def _publish(
        self,
        bodies: list[bytes],
        tags: list[list[str]] | None,
        routing_keys: list[str] | None,
        headers: list[Headers | None],
        dedup_ids: list[str | None] | None,
        after: str | None = None,
        *,
        all_or_none: bool = False,
    ) -> list[Published]:
        if tags and any(tags) and routing_keys and any(routing_keys):
            raise ValueError("give tags (tag topic) or a routing key (routing topic), not both")
        channel = self._channel
        session, sequence = channel.numbering.next()
        request = wire.PublishMessages(
            channel.next_request_id(),
            topic=self.name,
            bodies=bodies,
            headers=headers if any(headers) else None,
            tags=tags if tags and any(tags) else None,
            routing_keys=routing_keys,
            session=session.number,
            sequence=sequence,
            dedup_ids=dedup_ids if dedup_ids and any(name is not None for name in dedup_ids) else None,
            after=after,
            all_or_none=all_or_none,
        )
        tracing = channel.tracing
        if tracing is None:
            reply = await channel.send_numbered(request, wire.MessagesPublished, session, sequence)
        else:
            with tracing.send(self.name, len(bodies), "publish") as span:
                request = msgspec.structs.replace(request, headers=tracing.inject(bodies, request.headers))
                reply = await channel.send_numbered(request, wire.MessagesPublished, session, sequence)
                if len(bodies) == 1:
                    span.set_attribute("messaging.message.id", printed_id(reply.message_ids[0]))
        return [
            Published(printed_id(number), matched, reply.request_id)
            for number, matched in zip(reply.message_ids, reply.matched, strict=True)
        ]

    # ------------------------------------------------------------------ subscriptions

    async def subscribe(
        self,
        name: str,
        *,
        queue: Queue[Any] | str | None = None,
        url: str | None = None,
        ensure: bool = False,
        **attributes: Unpack[SubscriptionAttributes],
    ) -> Subscription:
        """Subscribe a queue or a URL to the messages published from now on.

        Not repeated after a lost reply unless ``ensure`` is set.

        Args:
            name: 1-64 ASCII letters, digits, ``-``, ``_``; unique in the topic, ignoring case.
            queue: a queue of the same account.
            url: or an ``http://`` or ``https://`` URL. Requests to the URL are signed (Standard Webhooks) with the
                ``secret`` of the returned handle.
            ensure: accept an existing subscription of this name if the given arguments agree with its attributes; other
                attributes are not compared.
            **attributes: see :class:`SubscriptionAttributes`.

        Returns:
            The subscription; with its ``secret`` if this call created a subscription to a URL.

        Raises:
            TopicNotFound, QueueNotFound: the topic or the queue does not exist.
            SubscriptionExists: a subscription of this name exists; it was not changed.
            SubscriptionDiffers: (``ensure``) the existing subscription differs; ``difference`` shows the attributes.
            TooManySubscriptions: the topic has 500.
            PushUnavailable: the server lacks the optional package for posting to URLs. (A URL that the server may not
                post to shows as ``last_error`` of the subscription.)
            InvalidArgument: a name, tag or key is out of range or not of this kind of topic.
            OutcomeUnknown: the subscription may exist now. If so, only :meth:`Subscription.rotate_secret` gives its
                secret.
            ValueError: not exactly one of ``queue`` and ``url`` is given; the URL is neither http nor https; there are
                both tags and keys.
        """
        info = await self.subscribe_info(name, queue=queue, url=url, ensure=ensure, **attributes)
        return Subscription(self._channel, self.name, name, info.secret, info.request_id)

    async def subscribe_info(
        self,
        name: str,
        *,
        queue: Queue[Any] | str | None = None,
        url: str | None = None,
        ensure: bool = False,
        **attributes: Unpack[SubscriptionAttributes],
    ) -> SubscriptionInfo:
        """Like :meth:`subscribe`; return the current attributes, ``created``, and the secret of a new subscription."""
        target = _endpoint(queue, url)
        given = target | subscription_attributes(attributes)
        if ensure:
            confirmed = await self._channel.ask(operations.ENSURE_SUBSCRIPTION, self.name, name, given)
            return subscription_info(confirmed)
        made = await self._channel.ask(operations.SUBSCRIBE, self.name, name, given)
        return subscription_info(made)

    def subscription(self, name: str) -> Subscription:
        """Return the handle of a subscription. Sends no request: a missing subscription shows at the first use."""
        return Subscription(self._channel, self.name, name)

    async def subscriptions(self, *, search: str = "", offset: int = 0, limit: int = 100) -> SubscriptionPage:
        """List the topic's subscriptions, by name; arguments as for :meth:`Client.queues`."""
        reply = await self._channel.ask(operations.LIST_SUBSCRIPTIONS, self.name, search, offset, limit)
        return SubscriptionPage(reply.subscriptions, reply.total, reply.request_id)

    async def deliveries(self, message_id: str) -> MessageDeliveries:
        """Report the subscriptions that have had a published message, and the others.

        Known for at least as long as a subscription waits for the message, and after that for as long as the server's
        log holds the publish.

        Args:
            message_id: id of the published message, ``Msg-...``.

        Raises:
            MessageNotPublished: the topic does not know the message, or not any more.
            ValueError: the string is not a message id.
        """
        number = id_number(message_id)
        return message_deliveries(await self._channel.ask(operations.GET_MESSAGE_DELIVERIES, self.name, number))

    async def match(self, *, tags: Iterable[str] | None = None, routing_key: str | None = None) -> TopicMatch:
        """Find the subscriptions that would get a message with these labels, and why the others would not.

        Nothing is published, and nothing changes. The server tests the labels with the code of a publish.

        Args:
            tags: on a tag topic, up to 10 tags; None = no tags.
            routing_key: on a routing topic, where it must be given.

        Raises:
            TopicNotFound: the topic does not exist.
            InvalidArgument: the labels are not legal, or are of the other kind of topic.
            TypeError: a string where tags are expected.
        """
        labels = None if tags is None else strings(tags, "tags")
        return topic_match(await self._channel.ask(operations.MATCH_SUBSCRIPTIONS, self.name, labels, routing_key))

    # ------------------------------------------------------------------ the topic itself

    async def attributes(self) -> TopicInfo:
        """Return attributes, counts and facts, as of now."""
        return topic_info(await self._channel.ask(operations.GET_TOPIC_ATTRIBUTES, self.name))

    async def locate(self) -> Location:
        """Return the server that has the topic. The client finds it by itself; this is for operators and tools."""
        return await ask_location(self._channel, self.name, is_topic=True)

    async def set_attributes(self, **attributes: Unpack[TopicChanges]) -> TopicInfo:
        """Change the given attributes, and return all attributes; the others stay.

        Repeated after a lost reply; the repeat would overwrite another caller's change in between.

        Args:
            **attributes: see :class:`TopicChanges`.

        Raises:
            InvalidArgument: a value is out of range.
        """
        changes = to_wire("topic", TOPIC_CHANGES, attributes, skips_none=False)
        return topic_info(await self._channel.ask(operations.SET_TOPIC_ATTRIBUTES, self.name, changes))

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"


def _tags(tags: Sequence[str] | Sequence[Sequence[str]], count: int) -> list[list[str]]:
    """Return the tags of a batch in wire form: a list for all messages, or a list per message."""
    if isinstance(tags, str) or not any(isinstance(tag, str) for tag in tags):
        tag_lists = _one_each(cast("Sequence[Sequence[str]]", tags), count, "tags") if tags else []
        return [strings(tag_list, "the tags of a message") for tag_list in tag_lists]
    return [strings(cast("Sequence[str]", tags), "tags")]


def _one_each(values: Sequence[T], count: int, field: str) -> list[T]:
    """Return the values as a list, a value per message.

    Raises:
        ValueError: the number of values differs from the number of messages.
    """
    if len(values) != count:
        raise ValueError(f"{len(values)} {field} for {count} messages; give a value per message")
    return list(values)


def _endpoint(queue: Queue[Any] | str | None, url: str | None) -> dict[str, Any]:
    """Return the endpoint of a subscription in wire form."""
    if (queue is None) == (url is None):
        raise ValueError("give either queue or url")
    if url is not None:
        if not url.lower().startswith(("http://", "https://")):
            # Without a scheme the string would be taken for the name of a queue.
            # Without the value: a URL may have a password.
            raise ValueError("url must begin with http:// or https://")
        return {"endpoint": url}
    return {"protocol": "queue", "endpoint": queue.name if isinstance(queue, Queue) else queue}


def topic_attributes(given: TopicAttributes) -> dict[str, Any]:
    """Return the given attributes of a topic in wire form; see :func:`to_wire`."""
    return to_wire("topic", TOPIC, given)


def topic_info(reply: wire.TopicInfo) -> TopicInfo:
    """Convert the reply about a topic."""
    return TopicInfo(name=reply.topic, id=reply.topic_id, **info_fields(TopicInfo, reply, TOPIC))
