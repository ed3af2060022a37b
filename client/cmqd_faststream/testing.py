"""FastStream's test client: handlers run in the process, without a server and without queues.

A publish calls the handler of the queue, or the handlers of all queues that are subscribed to the topic, and returns
when the handlers are over; errors of handlers reach the publisher. Queues that remember messages, leases and delays are
tested with a :class:`CmqBroker` and the URL of a ``cmqd.testing.LocalBroker``.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from cmqd_client import Client
from cmqd_client.durations import to_seconds
from cmqd_client.messages.outgoing import CORRELATION_ID
from cmqd_faststream.broker import CmqBroker
from cmqd_faststream.delivery import Delivery
from cmqd_faststream.parser import OWN_CORRELATION_ID
from cmqd_faststream.producer import CmqProducer
from cmqd_faststream.publisher import CmqPublisherUsecase
from cmqd_faststream.response import CmqPublishCommand
from cmqd_faststream.subscriber import CmqSubscriber


class TestCmqBroker(TestBroker[CmqBroker, EnterType], broker=CmqBroker):
    """Patches brokers for a test::

    async with TestCmqBroker(broker) as broker:
        await broker.publish(Order(7), "orders")
        charge.mock.assert_called_once()
    """

    def create_publisher_fake_subscriber(self, broker: CmqBroker, publisher: Any) -> tuple[CmqSubscriber, bool]:
        """Return a subscriber for the messages of a publisher, and True; or a new subscriber, and False."""
        publisher = cast("CmqPublisherUsecase", publisher)
        routes = _Routes(each for one in self.brokers for each in one.subscribers)
        found = routes.of(publisher.queue, publisher.topic, publisher.config.routing_key, publisher.config.tags)
        if found:
            return found[0], True
        prefix = broker.config.prefix
        queue = publisher.queue or f"{publisher.topic}:fake"
        options: dict[str, Any] = {}
        if publisher.topic:
            options["topic"] = publisher.topic.removeprefix(prefix)
            if publisher.config.routing_key is not None:
                options["binding_keys"] = [publisher.config.routing_key]
        subscriber = broker.subscriber(
            queue.removeprefix(prefix), batch=publisher.config.batch, persistent=False, **options
        )
        return subscriber, False

    @contextmanager
    def _patch_producer(self, broker: CmqBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: CmqBroker, *args: Any, **kwargs: Any) -> None:
        connection = broker.config.broker_config.connection
        if connection.open_client is None:
            connection.open_client = AsyncMock(spec=Client)


class FakeProducer(CmqProducer):
    """Calls handlers in place of sending."""

    def __init__(self, broker: CmqBroker, brokers: Sequence[CmqBroker]) -> None:
        """Make a producer for one of the brokers of a test."""
        super().__init__(broker.config.broker_config)
        self._brokers = brokers

    def _subscribers(self, cmd: CmqPublishCommand) -> list[CmqSubscriber]:
        routes = _Routes(each for broker in self._brokers for each in broker.subscribers)
        queue, topic = ("", cmd.destination) if cmd.is_topic else (cmd.destination, "")
        return routes.of(queue, topic, cmd.routing_key, cmd.tags)

    async def publish(self, cmd: CmqPublishCommand) -> None:
        """Call the handlers."""
        body, headers = await self.encode(cmd, cmd.body)
        for subscriber in self._subscribers(cmd):
            delivery = Delivery(body, headers, queue=subscriber.queue)
            await subscriber.process_message([delivery] if subscriber.is_batch else delivery)

    async def publish_batch(self, cmd: CmqPublishCommand) -> list[str]:
        """Call the handlers; a handler of single messages is called for every message."""
        messages = await self._encode_batch(cmd)
        for subscriber in self._subscribers(cmd):
            deliveries = [Delivery(body, headers, queue=subscriber.queue) for body, headers in messages]
            if subscriber.is_batch:
                await subscriber.process_message(deliveries)
            else:
                for delivery in deliveries:
                    await subscriber.process_message(delivery)
        return ["" for _ in messages]

    async def request(self, cmd: CmqPublishCommand) -> Delivery:
        """Call the handler and return its result.

        Raises:
            SubscriberNotFound: the queue has no subscriber in this process.
            TimeoutError: the handler took longer than the timeout.
        """
        body, headers = await self.encode(cmd, cmd.body)
        for subscriber in self._subscribers(cmd):
            delivery = Delivery(body, headers, queue=subscriber.queue)
            with anyio.fail_after(to_seconds(cmd.timeout, "timeout")):
                result = await subscriber.process_message([delivery] if subscriber.is_batch else delivery)
            reply = CmqPublishCommand.from_cmd(result.as_publish_command())
            reply_body, reply_headers = await self.encode(reply, reply.body)
            reply_headers[OWN_CORRELATION_ID] = reply_headers.pop(CORRELATION_ID, cmd.correlation_id or "")
            return Delivery(reply_body, reply_headers, queue=cmd.destination)
        raise SubscriberNotFound(f"queue {cmd.destination!r} has no subscriber in this process")


class _Routes:
    """The subscribers of a test, by queue and topic."""

    def __init__(self, subscribers: Iterable[Any]) -> None:
        self._subscribers = [cast("CmqSubscriber", subscriber) for subscriber in subscribers]

    def of(self, queue: str, topic: str, routing_key: str | None, tags: Sequence[str]) -> list[CmqSubscriber]:
        """Return the subscribers that get a message: a single subscriber for a queue."""
        found: dict[str, CmqSubscriber] = {}
        for subscriber in self._subscribers:
            if queue == subscriber.queue if queue else _is_subscribed(subscriber, topic, routing_key, tags):
                found.setdefault(subscriber.queue, subscriber)
        return list(found.values())


def _is_subscribed(subscriber: CmqSubscriber, topic: str, routing_key: str | None, tags: Sequence[str]) -> bool:
    """Return True if a subscriber gets a message of a topic."""
    if not topic or subscriber.topic != topic:
        return False
    config = subscriber.config
    if config.binding_keys:
        words = (routing_key or "").split(".")
        return any(matches(pattern.split("."), words) for pattern in config.binding_keys)
    return not config.filter_tags or bool(set(config.filter_tags) & set(tags))


def matches(pattern: list[str], words: list[str]) -> bool:
    """Return True if a binding key matches a routing key: ``*`` is one word, ``#`` any number of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])
