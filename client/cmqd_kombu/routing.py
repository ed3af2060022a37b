"""Queues, exchanges and bindings of a connection, and publishes.

Runs in the event loop of :mod:`cmqd_kombu.loop_thread`. Names of queues and exchanges in this module are
AMQP's; ``Declared`` has the broker's names.

An exchange is a topic named after its type and name, so the type can be found by the name. Topics of direct and topic
exchanges have routing keys. A direct exchange maps every key to a word without dots and wildcards, so a binding matches
exactly its key.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

import msgspec
from kombu.exceptions import ChannelError

from cmqd_client import Client, QueueAttributes, QueueInfo, Topic
from cmqd_client.errors import (
    InvalidArgument,
    QueueDiffers,
    QueueNotFound,
    SubscriptionDiffers,
    SubscriptionNotFound,
    TooManySubscriptions,
    TopicDiffers,
    TopicNotFound,
)
from cmqd_client.foreign_names import usable_queue_name
from cmqd_kombu import envelope
from cmqd_kombu.names import (
    dotted_key,
    exact_key,
    level_name,
    matches,
    subscription_name,
    topic_name,
)
from cmqd_kombu.options import (
    LONGEST_DELAY,
    MAX_MESSAGE_BYTES,
    PRIORITY_STEPS,
    RETENTION,
    SHORTEST_EXPIRY,
    Options,
    level_of,
    levels,
)

_log = logging.getLogger(__name__)

_TYPES = ("direct", "topic", "fanout")
_PURGE = 256
_PAGE = 500
"""Maximum number of subscriptions of a topic: a page of a list."""
_EXPIRY = frozenset({"auto_delete_after_ms", "auto_delete_only_empty"})
"""Attributes of queues that expire, as the server names them. An older server refuses them."""


class Declared(msgspec.Struct):
    """A queue that this connection declared."""

    name: str
    """The broker's name of the queue of the lowest priority level."""
    steps: tuple[int, ...]
    """Priority steps, lowest first."""
    attributes: QueueAttributes
    retention: float
    """Seconds, as the queue has it; the requested retention may differ."""

    def names(self) -> list[str]:
        """Return the broker's names of all levels, highest priority first."""
        return [level_name(self.name, step) for step in reversed(self.steps)]


class Routing:
    """The declarations of a connection, and its publishes."""

    __slots__ = (
        "_bindings",
        "_client",
        "_exchange_types",
        "_expires",
        "_made",
        "_options",
        "_queues",
        "_refused_delay_ms",
    )

    def __init__(self, client: Client, options: Options) -> None:
        self._client = client
        self._options = options
        self._queues: dict[str, Declared] = {}
        """By the broker's name, so that a copy for a queue finds the levels of the queue."""
        self._exchange_types: dict[str, str] = {}
        self._bindings: dict[str, set[tuple[str, str, str]]] = {}
        """Exchange, type and routing key of the bindings of a queue (the broker's name)."""
        self._made: set[str] = set()
        """Queues that expire and that this connection created (the broker's names): older bindings are remainders."""
        self._refused_delay_ms = inf
        """The shortest delay that the server has refused. The limit is a setting of the server, an hour by default."""
        self._expires = True
        """False when the server has refused the attributes of queues that expire."""

    # ------------------------------------------------------------------ queues

    def name(self, queue: str) -> str:
        """Return the broker's name of a queue."""
        return usable_queue_name(self._options.queue_prefix + queue)

    def declared(self, queue: str) -> Declared:
        """Return the declaration of a queue; a queue that this connection did not declare has a single level."""
        name = self.name(queue)
        return self._queues.get(name) or Declared(name, PRIORITY_STEPS[:1], {}, self._options.retention)

    async def declare_queue(
        self, queue: str, *, passive: bool, auto_delete: bool, arguments: Mapping[str, Any]
    ) -> QueueInfo:
        """Create a queue if it does not exist. An existing queue keeps its attributes.

        Raises:
            ChannelError: (passive) the queue does not exist.
        """
        name = self.name(queue)
        if passive:
            try:
                return await self._client.queue(name).attributes()
            except QueueNotFound as error:
                raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Queue.declare", "404") from error
        attributes = self._attributes(auto_delete, arguments)
        declared = Declared(name, levels(arguments), attributes, self._options.retention)
        infos = [await self._ensure(level, attributes) for level in reversed(declared.names())]
        declared.retention = infos[0].retention
        self._queues[name] = declared
        if infos[0].created and "auto_delete_after" in attributes:
            self._made.add(name)
        return infos[0]

    async def restore_queue(self, queue: str) -> bool:
        """Create a queue that this connection declared and that was deleted since, with its bindings.

        Returns:
            False if this connection did not declare the queue.
        """
        name = self.name(queue)
        declared = self._queues.get(name)
        if declared is None:
            return False
        for level in declared.names():
            await self._ensure(level, declared.attributes)
        for exchange, kind, routing_key in list(self._bindings.get(name, ())):
            await self.declare_exchange(exchange, kind)
            await self.bind(queue, exchange, routing_key)
        return True

    def _attributes(self, auto_delete: bool, arguments: Mapping[str, Any]) -> QueueAttributes:
        ttl_ms = arguments.get("x-message-ttl")
        retention = self._options.retention if ttl_ms is None else min(ttl_ms / 1000, self._options.retention)
        attributes: dict[str, Any] = {
            "max_message_bytes": MAX_MESSAGE_BYTES,
            "retention": max(retention, SHORTEST_EXPIRY),
            "visibility_timeout": self._options.lease,
        }
        expires_ms = arguments.get("x-expires")
        if auto_delete or expires_ms is not None:
            seconds = SHORTEST_EXPIRY if expires_ms is None else expires_ms / 1000
            attributes["auto_delete_after"] = min(max(seconds, SHORTEST_EXPIRY), RETENTION)
            attributes["auto_delete_only_empty"] = False  # AMQP's x-expires and auto_delete do not look at messages
        return QueueAttributes(**attributes)

    async def _ensure(self, name: str, attributes: QueueAttributes) -> QueueInfo:
        expires = self._expires and "auto_delete_after" in attributes
        try:
            return await self._client.ensure_queue_info(name, **(attributes if expires else _lasting(attributes)))
        except QueueDiffers as error:
            _log.debug("queue %r exists with other attributes, which stay: %s", name, error.difference)
            return await self._client.queue(name).attributes()
        except InvalidArgument as error:
            if not expires or error.details.get("field") not in _EXPIRY:
                raise
            _log.warning("the server is too old for queues that expire; such queues stay until they are deleted")
            self._expires = False
            return await self._ensure(name, attributes)

    async def size(self, queue: str) -> int:
        """Return the number of messages that can be received from a queue; 0 if the queue does not exist."""
        total = 0
        for name in self.declared(queue).names():
            try:
                total += (await self._client.queue(name).attributes()).active
            except QueueNotFound:
                pass
        return total

    async def purge(self, queue: str) -> int:
        """Drop the messages that can be received; return their number. Delayed messages and messages in flight stay."""
        dropped = 0
        for name in self.declared(queue).names():
            handle = self._client.queue(name)
            try:
                while messages := await handle.receive(_PURGE, wait=0, visibility_timeout=self._options.lease):
                    dropped += len((await handle.delete_batch(messages, check=False)).done)
            except QueueNotFound:
                pass
        return dropped

    async def delete_queue(self, queue: str, *, if_empty: bool) -> None:
        """Delete a queue with its messages and the bindings known to this connection; a missing queue is ignored."""
        declared = self.declared(queue)
        if if_empty and await self._messages(declared):
            return
        self._queues.pop(declared.name, None)
        self._made.discard(declared.name)
        for exchange, kind, routing_key in self._bindings.pop(declared.name, set()):
            await self._unsubscribe(self._topic(exchange, kind), declared.name, kind, routing_key)
        for name in declared.names():
            try:
                await self._client.delete_queue(name)
            except QueueNotFound:
                pass

    async def _messages(self, declared: Declared) -> int:
        total = 0
        for name in declared.names():
            try:
                info = await self._client.queue(name).attributes()
            except QueueNotFound:
                continue
            total += info.active + info.delayed + info.in_flight
        return total

    # ------------------------------------------------------------------ exchanges and bindings

    def _topic(self, exchange: str, kind: str) -> Topic:
        return self._client.topic(topic_name(f"{kind}-{exchange}", self._options.queue_prefix))

    async def declare_exchange(self, exchange: str, kind: str) -> None:
        """Create an exchange if it does not exist.

        Raises:
            ChannelError: the type is not direct, topic or fanout, or not the type of the earlier declaration.
        """
        if kind not in _TYPES:
            raise ChannelError(
                f"exchange {exchange!r} has the type {kind!r}; the broker knows {', '.join(_TYPES)}",
                (40, 10),
                "Exchange.declare",
                "503",
            )
        earlier = self._exchange_types.get(exchange)
        if earlier is not None and earlier != kind:
            raise ChannelError(
                f"PRECONDITION_FAILED - exchange {exchange!r} has the type {earlier!r}, not {kind!r}",
                (40, 10),
                "Exchange.declare",
                "406",
            )
        try:
            await self._client.ensure_topic(
                self._topic(exchange, kind).name,
                filter_type="tag" if kind == "fanout" else "routing",
                max_message_bytes=MAX_MESSAGE_BYTES,
            )
        except TopicDiffers as error:
            if "filter_type" in error.difference:
                raise
        self._exchange_types[exchange] = kind

    async def exchange_type(self, exchange: str) -> str:
        """Return the type of an exchange that this connection need not have declared.

        Raises:
            ChannelError: the exchange does not exist.
        """
        known = self._exchange_types.get(exchange)
        if known is not None:
            return known
        for kind in _TYPES:
            try:
                await self._topic(exchange, kind).attributes()
            except TopicNotFound:
                continue
            self._exchange_types[exchange] = kind
            return kind
        raise ChannelError(f"NOT_FOUND - no exchange {exchange!r}", (60, 40), "Basic.publish", "404")

    async def delete_exchange(self, exchange: str) -> None:
        """Delete an exchange and its bindings; the queues stay. A missing exchange is ignored."""
        try:
            topic = self._topic(exchange, await self.exchange_type(exchange))
        except ChannelError:
            return
        self._exchange_types.pop(exchange, None)
        try:
            for subscription in await topic.subscriptions(limit=_PAGE):
                await topic.subscription(subscription.name).unsubscribe()
            await self._client.delete_topic(topic.name)
        except (TopicNotFound, SubscriptionNotFound):
            pass

    async def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange. A repeated binding has no effect.

        A queue has a subscription per key of a direct exchange, and a single subscription for all keys of a topic
        exchange, so that a message that matches two keys is delivered once.

        An expired queue leaves its bindings behind, and they keep copies for up to a day. A new queue of the same name
        must not get these copies: a worker would obey the ``shutdown`` that its predecessor missed.

        Raises:
            ChannelError: the exchange does not exist, or the queue has 5 other keys at this topic exchange.
            ValueError: the key is out of range.
        """
        kind = await self.exchange_type(exchange)
        name = self.name(queue)
        topic = self._topic(exchange, kind)
        known = self._bindings.get(name, set())
        if name in self._made and not any(binding[:2] == (exchange, kind) for binding in known):
            await self._unbind_all(topic, name)
        try:
            created = await self._subscribe(topic, name, kind, routing_key)
        except TooManySubscriptions:
            await self._sweep(topic)
            created = await self._subscribe(topic, name, kind, routing_key)
        self._bindings.setdefault(name, set()).add((exchange, kind, routing_key))
        if created:
            await self._sweep(topic)

    async def _subscribe(self, topic: Topic, name: str, kind: str, routing_key: str) -> bool:
        if kind == "fanout":
            return (await topic.subscribe_info(subscription_name(name), queue=name, ensure=True)).created
        if kind == "direct":
            key = exact_key(routing_key)
            label = subscription_name(name, key)
            return (await topic.subscribe_info(label, queue=name, ensure=True, binding_keys=[key])).created
        label = subscription_name(name)
        key = dotted_key(routing_key)
        try:
            return (await topic.subscribe_info(label, queue=name, ensure=True, binding_keys=[key])).created
        except SubscriptionDiffers as error:
            if "binding_keys" not in error.difference:
                raise
        # Two processes may add keys at once, and the later write may lack the earlier key: the result is read again.
        while key not in (keys := (await topic.subscription(label).info()).binding_keys):
            try:
                await topic.subscription(label).set(binding_keys=[*keys, key])
            except InvalidArgument as error:
                raise ChannelError(
                    f"queue {name!r} cannot have another key at this topic exchange than {', '.join(keys)}: {error}"
                ) from error
        return False

    async def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove a binding; a missing binding is ignored."""
        kind = await self.exchange_type(exchange)
        name = self.name(queue)
        self._bindings.get(name, set()).discard((exchange, kind, routing_key))
        await self._unsubscribe(self._topic(exchange, kind), name, kind, routing_key)

    async def _unsubscribe(self, topic: Topic, name: str, kind: str, routing_key: str) -> None:
        label = subscription_name(name, exact_key(routing_key) if kind == "direct" else None)
        subscription = topic.subscription(label)
        try:
            if kind == "topic":
                keys = (await subscription.info()).binding_keys
                remaining = [key for key in keys if key != dotted_key(routing_key)]
                if remaining:
                    await subscription.set(binding_keys=remaining)
                    return
            await subscription.unsubscribe()
        except (TopicNotFound, SubscriptionNotFound):
            pass

    async def _sweep(self, topic: Topic) -> None:
        """Remove the bindings of queues that are gone: queues of replies and events that expired.

        The transport creates a queue before its bindings, so a binding without a queue is a remainder, which
        would keep messages for a day and count towards the limit of the topic.
        """
        subscriptions = [entry for entry in await topic.subscriptions(limit=_PAGE) if entry.protocol == "queue"]
        gone = await asyncio.gather(*(self._is_gone(entry.endpoint) for entry in subscriptions))
        for entry, is_gone in zip(subscriptions, gone, strict=True):
            if is_gone:
                await _remove(topic, entry.name)

    async def _unbind_all(self, topic: Topic, name: str) -> None:
        for entry in await topic.subscriptions(limit=_PAGE):
            if entry.protocol == "queue" and entry.endpoint == name:
                await _remove(topic, entry.name)

    async def _is_gone(self, name: str) -> bool:
        try:
            await self._client.queue(name).attributes()
        except QueueNotFound:
            return True
        return False

    async def bindings(self) -> list[tuple[str, str, str]]:
        """Return queue (the broker's name), exchange and routing key of the bindings that this connection made."""
        return [(name, exchange, key) for name, keys in self._bindings.items() for exchange, _, key in keys]

    # ------------------------------------------------------------------ publish

    async def publish(self, message: Mapping[str, Any], exchange: str, routing_key: str, *, mandatory: bool) -> None:
        """Store a message in all queues to which the exchange routes the message.

        All queues get the message in a single step. A message with an ETA or a priority is sent to a queue at a time,
        because a publish to a topic has neither.

        The dedup id is the delivery tag, so kombu's retry of the publish does not store the message twice.

        Raises:
            ChannelError: the exchange does not exist; (mandatory) no queue gets the message; or the ETA is later than
                the retention of a queue.
            ValueError: the routing key is out of range.
        """
        properties = message["properties"]
        dedup_id = properties["delivery_tag"]
        due_ms = envelope.eta_ms(message["headers"]) if self._options.eta_in_broker else None
        delay_ms = 0 if due_ms is None else max(due_ms - time.time_ns() // 1_000_000, 0)
        expiration_ms = envelope.expiration_of(properties)
        headers = envelope.transport_headers(due_ms if delay_ms else None, expiration_ms)
        body = envelope.pack(message)
        priority = properties.get("priority") or 0
        stored = 0
        if exchange and not delay_ms and not priority:
            kind = await self.exchange_type(exchange)
            key = None if kind == "fanout" else self._key(kind, routing_key)
            topic = self._topic(exchange, kind)
            published = await topic.publish(body, routing_key=key, headers=headers, dedup_id=dedup_id)
            stored = 1 if published.matched is None else published.matched
        else:
            names = await self._destinations(exchange, routing_key) if exchange else [self.name(routing_key)]
            for name in names:
                stored += await self._send(name, body, headers, dedup_id, delay_ms, priority)
        if not stored:
            text = f"no queue for a message to the exchange {exchange!r} with the routing key {routing_key!r}"
            if mandatory:
                raise ChannelError(f"NO_ROUTE - {text}", (60, 40), "Basic.publish", "312")
            if not exchange:
                _log.warning("%s; the message was dropped, as AMQP requires", text)

    @staticmethod
    def _key(kind: str, routing_key: str) -> str:
        return exact_key(routing_key) if kind == "direct" else dotted_key(routing_key)

    async def _destinations(self, exchange: str, routing_key: str) -> list[str]:
        """Return the queues (the broker's names) to which an exchange routes a key."""
        kind = await self.exchange_type(exchange)
        topic = self._topic(exchange, kind)
        key = self._key(kind, routing_key)
        names: list[str] = []
        for entry in await topic.subscriptions(limit=_PAGE):
            if entry.protocol != "queue":
                continue
            if kind == "fanout":
                names.append(entry.endpoint)
            elif kind == "direct":
                if entry.name == subscription_name(entry.endpoint, key):
                    names.append(entry.endpoint)
            elif _any_match((await topic.subscription(entry.name).info()).binding_keys, key):
                names.append(entry.endpoint)
        return list(dict.fromkeys(names))

    async def _send(
        self, name: str, body: bytes, headers: Mapping[str, str], dedup_id: str, delay_ms: int, priority: int
    ) -> int:
        declared = self._queues.get(name)
        steps = declared.steps if declared else PRIORITY_STEPS[:1]
        level = level_name(name, level_of(priority, steps))
        if delay_ms > LONGEST_DELAY * 1000:
            retention = declared.retention if declared else (await self._client.queue(name).attributes()).retention
            if delay_ms >= retention * 1000:
                raise ChannelError(
                    f"the message is due in {delay_ms / 1000:.0f} s, and the queue {name!r} keeps messages for "
                    f"{retention:.0f} s: it would expire before"
                )
        restored = False
        while True:
            is_long = LONGEST_DELAY * 1000 < delay_ms < self._refused_delay_ms
            delay = delay_ms / 1000 if is_long else min(delay_ms / 1000, LONGEST_DELAY)
            try:
                await self._client.queue(level).send(body, delay=delay, headers=headers, dedup_id=dedup_id)
                return 1
            except InvalidArgument as error:
                if not is_long or error.details.get("field") != "delay_ms":
                    raise
                # The message waits for as long as the server allows, and consumers hide it again.
                self._refused_delay_ms = delay_ms
            except QueueNotFound:
                # kombu declares a queue once per connection; the queue may have expired or been deleted since.
                if restored or declared is None:
                    return 0
                for missing in declared.names():
                    await self._ensure(missing, declared.attributes)
                restored = True


def _lasting(attributes: QueueAttributes) -> QueueAttributes:
    """Return the attributes without the time after which the queue expires."""
    lasting = attributes.copy()
    lasting.pop("auto_delete_after", None)
    lasting.pop("auto_delete_only_empty", None)
    return lasting


async def _remove(topic: Topic, subscription: str) -> None:
    try:
        await topic.subscription(subscription).unsubscribe()
    except SubscriptionNotFound:
        pass  # another process removed it


def _any_match(binding_keys: Iterable[str], routing_key: str) -> bool:
    return any(matches(binding_key, routing_key) for binding_key in binding_keys)
