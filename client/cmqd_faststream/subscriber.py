# pyright: reportIncompatibleVariableOverride=false
# (The configuration of an endpoint is that of its broker, which FastStream's base classes do not say.)
"""Subscribers: consumers of a queue that run FastStream's handlers.

A subscriber of single messages is a consumer of the client, with the client's workers, leases, retries and
settlements. A subscriber of batches takes messages from a stream of the client.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from cmqd_client import ConsumedMessage, Queue, QueueAttributes
from cmqd_client.consumers.consumer import Consumer, MessageStream
from cmqd_client.errors import CmqError, QueueDeleted, QueueNotFound
from cmqd_client.foreign_names import topic_name, usable_queue_name, usable_topic_name
from cmqd_client.topic import FilterType
from cmqd_faststream.configs import CmqBrokerConfig
from cmqd_faststream.delivery import Delivery
from cmqd_faststream.parser import CmqBatchParser, CmqParser
from cmqd_faststream.publisher import ReplyPublisher

RESTART_PAUSE = 1.0
"""Seconds from the deletion of a queue to the next begin of its consumer: programs that delete and create a queue in
turn must not keep the subscriber busy."""
LONGEST_WAIT = 30.0
"""Longest wait of a receive (the server's)."""


@dataclass(kw_only=True)
class CmqSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """Description of a subscriber for the AsyncAPI page."""

    queue: str


@dataclass(kw_only=True)
class CmqSubscriberConfig(SubscriberUsecaseConfig):
    """Options of a subscriber."""

    _outer_config: CmqBrokerConfig = field(default_factory=CmqBrokerConfig)
    queue: str
    queue_attributes: QueueAttributes
    topic: str
    binding_keys: tuple[str, ...]
    filter_tags: tuple[str, ...]
    max_workers: int
    prefetch: int | None
    ordered: bool
    max_records: int

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, else of the broker, else nack after an error: no message is lost by default."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        if self._outer_config.ack_policy is not EMPTY:
            return self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR


class CmqSubscriberSpecification(SubscriberSpecification[CmqBrokerConfig, CmqSubscriberSpecificationConfig]):
    """Describes a subscriber."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The queue with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.queue}"

    @property
    def channel_labels(self) -> list[str]:
        """The queue: a subscriber has one channel."""
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel for the page."""
        return {
            self.name: SubscriberSpec(
                address=self.address,
                description=self.description,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())),
                    bindings=None,
                ),
                bindings=None,
            ),
        }


class CmqSubscriber(SubscriberUsecase[Any]):
    """A subscriber of single messages; get it from ``broker.subscriber(...)``."""

    _outer_config: CmqBrokerConfig
    is_batch = False

    def __init__(
        self,
        config: CmqSubscriberConfig,
        specification: CmqSubscriberSpecification,
        calls: CallsCollection[Any],
    ) -> None:
        """Make a subscriber."""
        self._use_parser(config)
        super().__init__(config, cast("Any", specification), calls)
        self.config = config
        self._serving: asyncio.Task[None] | None = None
        self._consumer: Consumer[ConsumedMessage[bytes]] | MessageStream[ConsumedMessage[bytes]] | None = None
        self._handling: set[asyncio.Task[Any]] = set()
        """Tasks that run handlers."""

    def _use_parser(self, config: CmqSubscriberConfig) -> None:
        parser = CmqParser()
        config.parser, config.decoder = parser.parse_message, parser.decode_message

    @property
    def queue(self) -> str:
        """Name of the queue with the prefixes of its routers, before it is mapped to a legal name."""
        return f"{self._outer_config.prefix}{self.config.queue}"

    @property
    def topic(self) -> str:
        """Name of the topic with the prefixes of its routers; "" = none."""
        return f"{self._outer_config.prefix}{self.config.topic}" if self.config.topic else ""

    @property
    def _client_queue(self) -> Queue:
        return self._outer_config.connection.client.queue(usable_queue_name(self.queue))

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Create the queue, topic and subscription if missing, and begin to consume if there is a handler.

        Raises:
            CmqError: the queue, the topic or the subscription exists with other attributes, or the server refuses.
        """
        await super().start()
        await self._create()
        self._post_start()
        if self.calls and self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self) -> None:
        """Receive no more, and wait for handlers in progress.

        Handlers are cancelled after the broker's ``graceful_timeout``, and their messages are delivered again at once.
        Messages that have not begun go back uncounted.
        """
        consumer, serving = self._consumer, self._serving
        if consumer is not None:
            consumer.stop()
        await super().stop()
        if serving is None or asyncio.current_task() in self._handling:
            # A handler stops its own subscriber; a later stop waits for the rest.
            return
        self._serving = None
        self._cancel_handlers()
        if consumer is None:
            serving.cancel()  # it waits to begin again
        with suppress(asyncio.CancelledError):
            await serving

    def _cancel_handlers(self) -> None:
        if isinstance(self._consumer, Consumer):
            self._consumer.stop(cancel_handlers=True)

    async def _create(self) -> None:
        config = self.config
        client, name = self._outer_config.connection.client, usable_queue_name(self.queue)
        if self._outer_config.create:
            dead_letter_queue = config.queue_attributes.get("dead_letter_queue")
            if dead_letter_queue:
                await client.ensure_queue(dead_letter_queue)
            await client.ensure_queue(name, **config.queue_attributes)
        if self.topic:
            topic = client.topic(usable_topic_name(self.topic))
            if self._outer_config.create:
                kind = FilterType.ROUTING if config.binding_keys else FilterType.TAG
                await client.ensure_topic(topic.name, filter_type=kind)
            filters: dict[str, Any] = {}
            if config.binding_keys:
                filters["binding_keys"] = config.binding_keys
            if config.filter_tags:
                filters["filter_tags"] = config.filter_tags
            await topic.subscribe(topic_name(name), queue=name, ensure=True, **filters)

    async def _serve(self) -> None:
        """Consume until the subscriber stops; begin again with a new queue if the queue was deleted."""
        while self.running:
            try:
                await self._consume()
                return
            except (QueueNotFound, QueueDeleted) as error:
                if not self._outer_config.create:
                    self._fail(error)
                    return
                self._log(logging.WARNING, f"the queue is gone and is created again: {error}")
                self._consumer = None
                await asyncio.sleep(RESTART_PAUSE)
                try:
                    await self._create()
                except CmqError as failure:
                    self._fail(failure)
                    return
            except CmqError as error:
                self._fail(error)
                return

    def _fail(self, error: CmqError) -> None:
        """End the application: a subscriber without a consumer must not look healthy."""
        self._log(logging.CRITICAL, f"the subscriber cannot go on: {error}", exc_info=error)
        self.running = False
        app = self._outer_config.context.get("app")
        if app:
            app.exit()

    # ------------------------------------------------------------------ consume

    async def _consume(self) -> None:
        config = self.config
        make_consumer = self._client_queue.consumer(
            concurrency=config.max_workers,
            prefetch=config.prefetch,
            lease=self._outer_config.lease,
            ordered=config.ordered,
        )
        consumer = self._consumer = make_consumer(self._handle)
        await consumer.run()

    async def _handle(self, message: ConsumedMessage[bytes]) -> None:
        """Run the handlers for a message; return, or raise the exception for its end."""
        # ACK_FIRST acknowledges before the handler, MANUAL at any time in the handler.
        at_once = self.ack_policy in (AckPolicy.ACK_FIRST, AckPolicy.MANUAL)
        delivery = Delivery.received(message, at_once=at_once)
        if await self._run_handlers(delivery, delivery):
            delivery.finish()
        else:
            await message.release(count_receive=False)

    async def _run_handlers(self, raw: Any, first: Delivery) -> bool:
        """Let FastStream process a message or batch; False if the subscriber has stopped before."""
        if not self.running:
            return False
        task = asyncio.current_task()
        assert task is not None  # a worker is a task
        self._handling.add(task)
        try:
            await self.consume(raw)
        except asyncio.CancelledError:
            # A decided end stands, also if the handler is cancelled afterwards.
            if first.end is None:
                raise
        finally:
            self._handling.discard(task)
        return True

    # ------------------------------------------------------------------ without handlers

    async def get_one(self, *, timeout: float = 5.0) -> Any:
        """Receive a message without a handler; None if no message comes in time.

        The message is hidden for the visibility timeout of its queue, and delivered again unless acknowledged by then.
        """
        assert not self.calls, "You can't use `get_one` method if subscriber has registered handlers."
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            remaining = max(deadline - loop.time(), 0.0)
            messages = await self._client_queue.receive(1, wait=min(remaining, LONGEST_WAIT))
            if messages:
                return await self._parsed(self._raw([Delivery.received(messages[0], at_once=True)]))
            if remaining <= LONGEST_WAIT:
                return None

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Receive messages without a handler, in turn.

        The lease of a message is kept until the message is acknowledged or rejected, or the iteration ends.
        """
        assert not self.calls, "You can't use iterator if subscriber has registered handlers."
        stream = self._client_queue.consume(concurrency=None, lease=self._outer_config.lease)
        async with stream:
            async for message in stream:
                yield await self._parsed(self._raw([Delivery.received(message, at_once=True)]))

    def _raw(self, deliveries: list[Delivery]) -> Any:
        return deliveries[0]

    async def _parsed(self, raw: Any) -> Any:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        return await process_msg(
            msg=raw,
            middlewares=(middleware(raw, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )

    # ------------------------------------------------------------------ for FastStream

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return the fields of log lines about a message."""
        return {"queue": self.queue, "message_id": getattr(message, "message_id", "")}


class CmqBatchSubscriber(CmqSubscriber):
    """A subscriber of batches: a handler gets the waiting messages, up to ``max_records``."""

    is_batch = True

    def _use_parser(self, config: CmqSubscriberConfig) -> None:
        parser = CmqBatchParser()
        config.parser, config.decoder = parser.parse_batch, parser.decode_batch

    def _raw(self, deliveries: list[Delivery]) -> Any:
        return deliveries

    def _cancel_handlers(self) -> None:
        for task in self._handling:
            task.cancel()

    async def _consume(self) -> None:
        size = self.config.max_records
        stream = self._consumer = self._client_queue.consume(
            concurrency=size, prefetch=0, lease=self._outer_config.lease
        )
        async with stream:
            batch: list[ConsumedMessage[bytes]] = []
            async for message in stream:
                batch.append(message)
                # The rest of a receive is there at once.
                if len(batch) == size or not stream.statistics().waiting:
                    await self._handle_batch(batch)
                    batch = []

    async def _handle_batch(self, batch: list[ConsumedMessage[bytes]]) -> None:
        """Run the handlers for a batch, and settle its messages.

        The handlers are cancelled if the leases of all messages are lost. While a lease is left, its message is this
        program's work, and a cancelled handler would have the others delivered again for nothing.
        """
        at_once = self.ack_policy in (AckPolicy.ACK_FIRST, AckPolicy.MANUAL)
        deliveries = [Delivery.received(message, at_once=at_once) for message in batch]
        create_task = asyncio.get_running_loop().create_task
        handling = create_task(self._run_handlers(deliveries, deliveries[0]))
        # A task for each message, because a lost lease cancels the task that processes the message.
        ends = [
            create_task(_end_after(handling, message, delivery))
            for message, delivery in zip(batch, deliveries, strict=True)
        ]
        try:
            await asyncio.wait(ends)
        finally:
            if not handling.done():
                handling.cancel(batch[0].lost)
                await asyncio.wait([handling, *ends])
            for task in (handling, *ends):
                if not task.cancelled():
                    task.exception()  # logged by FastStream or the client; unread, asyncio would log it again


async def _end_after(handling: "asyncio.Task[bool]", message: ConsumedMessage[bytes], delivery: Delivery) -> None:
    """Settle a message of a batch when its handlers are over; end early if its lease is lost.

    The messages of a batch end in the same turn of the loop, and so share a request.
    """
    async with message.process():
        await asyncio.wait([handling])
        if handling.cancelled():
            # At once, as after the cancelled handler of a single message, and not when the lease ends.
            raise asyncio.CancelledError
        if handling.result():
            delivery.finish()
        else:
            await message.release(count_receive=False)
