# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# (kombu has no types; its names begin here and in transport.py, and nowhere else.)
"""kombu's channel over the broker: synchronous calls that run in the event loop's thread.

Declarations, publishes, ``basic_get``, rejects and closing wait for the broker's answer. Acknowledgements do not: they
are sent at once, in batches, and repeated until the broker answers or the lease ends.

A delivery that is rejected without ``requeue`` goes to the dead-letter queue of its queue (attribute
``dead_letter_queue``, which the program sets; AMQP's arguments for it are ignored), or is deleted if there is none.

Not like AMQP: ``queue_delete(if_unused=True)`` deletes in any case because the broker counts no consumers, and the
number of consumers in the reply to a declaration is 0.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from kombu.message import Message
from kombu.transport.base import StdChannel, to_rabbitmq_queue_arguments

from cmqd_kombu.consuming import Consumer, Delivery
from cmqd_kombu.session import Session

_DEFAULT_EXCHANGE_OF_TYPE = "amq.{}"


class DeclaredQueue(NamedTuple):
    """Reply to a declaration of a queue."""

    queue: str
    message_count: int
    consumer_count: int


class Channel(StdChannel):
    """A channel of a :class:`~cmqd_kombu.session.Session`. Any thread may acknowledge; else one thread at a time."""

    Message = Message

    def __init__(self, session: Session) -> None:
        self.connection: Session | None = session
        self.no_ack_consumers: set[str] = set()
        self.closed = False
        self._thread = session.thread
        self._session = session
        self._routing = session.routing
        self._consuming = session.consuming()
        self._consumers: dict[str, tuple[Consumer, Callable[[Message], object]]] = {}
        self.channel_id = session.add_channel(self)

    # ------------------------------------------------------------------ exchanges

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Create an exchange if it does not exist. Exchanges are always durable.

        Raises:
            ChannelError: the exchange has another type, or (``passive``) does not exist.
        """
        kind = type or "direct"
        name = exchange or _DEFAULT_EXCHANGE_OF_TYPE.format(kind)
        if passive:
            self._thread.call(self._routing.exchange_type(name))
        else:
            self._thread.call(self._routing.declare_exchange(name, kind))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings."""
        self._thread.call(self._routing.delete_exchange(exchange))

    def exchange_bind(self, *arguments: Any, **options: Any) -> None:
        """Refuse: a topic of the broker does not publish to another topic."""
        raise NotImplementedError("the broker has no bindings between exchanges; bind the queue to both exchanges")

    exchange_unbind = exchange_bind

    # ------------------------------------------------------------------ queues

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DeclaredQueue:
        """Create a queue if it does not exist; an existing queue keeps its attributes. Queues are durable.

        ``arguments``: ``x-max-priority`` makes levels of priority, ``x-message-ttl`` sets the retention, and
        ``x-expires`` (``auto_delete``: 60 s) the time without use after which the broker deletes the queue. Values are
        brought into the broker's limits.

        Raises:
            ChannelError: (``passive``) the queue does not exist.
        """
        name = queue or f"amq.gen-{uuid4()}"
        info = self._thread.call(
            self._routing.declare_queue(
                name, passive=passive, auto_delete=auto_delete or exclusive, arguments=arguments or {}
            )
        )
        return DeclaredQueue(name, info.active, 0)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Bind a queue to an exchange.

        Raises:
            ChannelError: exchange or queue do not exist, or the queue has 5 keys at this topic exchange.
        """
        self._thread.call(self._routing.bind(queue, exchange or "amq.direct", routing_key or ""))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Remove a binding."""
        self._thread.call(self._routing.unbind(queue, exchange or "amq.direct", routing_key or ""))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, nowait: bool = False, **options: Any
    ) -> None:
        """Delete a queue with its messages."""
        self._thread.call(self._routing.delete_queue(queue, if_empty=if_empty))

    def queue_purge(self, queue: str, **options: Any) -> int:
        """Drop the messages that can be received; return their number. Delayed messages and messages in flight stay."""
        return self._thread.call(self._routing.purge(queue))

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Return AMQP's arguments for kombu's options of a queue (``max_priority``, ``expires`` ...)."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def after_reply_message_received(self, queue: str) -> None:
        """Delete the queue of the replies to a remote control command."""
        self.queue_delete(queue)

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return queue, exchange and routing key of the bindings of this connection."""
        return iter(self._thread.call(self._routing.bindings()))

    # ------------------------------------------------------------------ publish

    def prepare_message(
        self,
        body: str | bytes,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a message for :meth:`basic_publish`.

        kombu calls the method again for every retry of a publish, with the same properties: the delivery tag stays the
        same, and so does the dedup id.
        """
        properties = properties if properties is not None else {}
        properties.setdefault("priority", priority or 0)
        properties.setdefault("delivery_tag", str(uuid4()))
        return {
            "body": body,
            "content-type": content_type,
            "content-encoding": content_encoding,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        **options: Any,
    ) -> None:
        """Publish a message; on return it is on the broker's disk, in all queues that it is routed to.

        Raises:
            ChannelError: the exchange does not exist; (``mandatory``) no queue gets the message; or the message is due
                after the retention of a queue.
        """
        message["properties"]["delivery_info"] = {"exchange": exchange or "", "routing_key": routing_key or ""}
        self._thread.call(self._routing.publish(message, exchange or "", routing_key or "", mandatory=bool(mandatory)))

    # ------------------------------------------------------------------ consume

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the unacknowledged messages of the channel; 0 = no limit."""
        self._thread.soon(self._consuming.set_limit, prefetch_count or 0)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Message], object], consumer_tag: str, **options: Any
    ) -> None:
        """Begin to receive from a queue; ``drain_events`` or the hub calls ``callback``."""
        consumer = Consumer(consumer_tag, queue, bool(no_ack))
        self._consumers[consumer_tag] = consumer, callback
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)
        self._thread.soon(self._consuming.start, consumer)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Messages that no callback got go back to the queue uncounted."""
        if self._consumers.pop(consumer_tag, None) is not None and self._thread.usable:
            self._thread.call(self._consuming.cancel(consumer_tag))
        self.no_ack_consumers.discard(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Message | None:
        """Receive a message without waiting; None = the queue is empty."""
        delivery = self._thread.call(self._consuming.get(queue, bool(no_ack)))
        return None if delivery is None else self._message(delivery)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message: it is deleted, without waiting for the broker's answer."""
        self._thread.soon(self._consuming.acknowledge, delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its old position in the queue (``requeue``), or to the dead-letter queue, or delete it.

        Without ``requeue``, the message is deleted if its queue has no dead-letter queue.
        """
        self._thread.call(self._consuming.reject(delivery_tag, requeue))

    def basic_recover(self, requeue: bool = False) -> None:
        """Return all unacknowledged messages to their queues."""
        self._thread.call(self._consuming.recover())

    def flow(self, active: bool = True) -> None:
        """Refuse: the prefetch limit is the only flow control."""
        raise NotImplementedError("the broker has no flow control by channel; set a prefetch limit")

    def drain_events(self, timeout: float | None = None, **options: Any) -> None:
        """Like :meth:`Session.drain_events`."""
        self._session.drain_events(timeout)

    def message_to_python(self, raw_message: Message) -> Message:
        """Return the message, which is a :class:`Message` already."""
        return raw_message

    def has_consumer(self, consumer: Consumer) -> bool:
        """True if a consumer belongs to this channel and was not cancelled."""
        entry = self._consumers.get(consumer.tag)
        return entry is not None and entry[0] is consumer

    def hand_over(self, delivery: Delivery) -> bool:
        """Call the callback with a delivery; return False if the delivery was withdrawn."""
        consumer = delivery.consumer
        if consumer is None or not consumer.take(delivery.tag):
            return False
        entry = self._consumers[consumer.tag]
        if consumer.no_ack:
            self._thread.soon(self._consuming.acknowledge, delivery.tag)
        else:
            self._thread.soon(self._consuming.room_changed)
        entry[1](self._message(delivery))
        return True

    def _message(self, delivery: Delivery) -> Message:
        content = delivery.content
        info: dict[str, Any] = dict(content.properties.get("delivery_info") or {"exchange": "", "routing_key": ""})
        info["redelivered"] = delivery.receive_count > 1
        info["priority"] = content.properties.get("priority")
        if delivery.consumer is not None:
            info["consumer_tag"] = delivery.consumer.tag
        return self.Message(
            body=content.body,
            channel=self,
            delivery_tag=delivery.tag,
            content_type=content.content_type,
            content_encoding=content.content_encoding,
            headers=content.headers,
            properties=content.properties,
            delivery_info=info,
        )

    # ------------------------------------------------------------------ close

    def close(self) -> None:
        """Cancel the consumers; delete acknowledged messages and release the rest. A repeated call has no effect."""
        if self.closed:
            return
        self.closed = True
        self._consumers.clear()
        self._session.channels.pop(self.channel_id, None)
        if self._session.usable:
            self._thread.call(self._consuming.close())
        self.connection = None
