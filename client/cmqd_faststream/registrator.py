# pyright: reportIncompatibleMethodOverride=false
# (Each broker of FastStream has arguments of its own for these methods.)
"""Registration of subscribers and publishers, at a broker or a router."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from cmqd_client import QueueAttributes
from cmqd_faststream.configs import CmqBrokerConfig
from cmqd_faststream.publisher import (
    CmqPublisherConfig,
    CmqPublisherSpecification,
    CmqPublisherSpecificationConfig,
    CmqPublisherUsecase,
)
from cmqd_faststream.subscriber import (
    CmqBatchSubscriber,
    CmqSubscriber,
    CmqSubscriberConfig,
    CmqSubscriberSpecification,
    CmqSubscriberSpecificationConfig,
)

MAX_RECORDS = 10
"""Messages of a batch, unless the subscriber says otherwise."""
MOST_RECORDS = 256
"""Messages of the largest batch: those of one receive."""


class CmqRegistrator(Registrator[Any, CmqBrokerConfig]):
    """Registers subscribers and publishers."""

    def subscriber(
        self,
        queue: str,
        *,
        topic: str = "",
        binding_keys: Iterable[str] = (),
        filter_tags: Iterable[str] = (),
        queue_attributes: QueueAttributes | None = None,
        max_workers: int = 1,
        prefetch: int | None = None,
        ordered: bool = False,
        batch: bool = False,
        max_records: int = MAX_RECORDS,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> CmqSubscriber:
        """Make a subscriber of a queue, which decorates handlers.

        Args:
            queue: the queue; the start creates a missing queue. A name outside of the server's alphabet stands for a
                legal name, see :mod:`cmqd_client.foreign_names`.
            topic: subscribe the queue to this topic.
            binding_keys: patterns of routing keys, for a routing topic: ``*`` is one word, ``#`` any number of words.
            filter_tags: tags of messages to get, for a tag topic; none = all messages.
            queue_attributes: attributes for the creation of the queue; an existing queue must have the same. The start
                creates a missing dead-letter queue too.
            max_workers: handlers at the same time, 1-4,096.
            prefetch: messages that wait here for a handler; None = as many as the handlers begin within 0.2 s.
            ordered: keep the order of sending; needs ``max_workers=1``. A message that fails is tried again before any
                later one.
            batch: call the handler with a list of messages, which end together.
            max_records: most messages of a batch, 1-256.
            ack_policy: the time of the acknowledgement; by default the broker's, else NACK_ON_ERROR. With MANUAL, a
                message without an end at the return of its handler is delivered again.
            no_reply: do not reply to requests.
            dependencies: FastStream's, called before the handler.
            parser: makes messages of deliveries.
            decoder: makes values of messages.
            codec: encodes and decodes; in place of ``decoder``.
            persistent: False = the subscriber lives as long as the caller holds it.
            title: name in the AsyncAPI page.
            description: description in the page; by default the docstring of the handler.
            include_in_schema: show the subscriber in the page.

        Raises:
            SetupError: options contradict, or a number is out of range.
        """
        binding_keys, filter_tags = tuple(binding_keys), tuple(filter_tags)
        if (binding_keys or filter_tags) and not topic:
            raise SetupError("binding_keys and filter_tags are for a subscriber with a topic")
        if binding_keys and filter_tags:
            raise SetupError("a routing topic has binding_keys, a tag topic has filter_tags; give one of them")
        if not 1 <= max_workers <= 4096:
            raise SetupError(f"max_workers is {max_workers}; it must be 1 to 4096")
        if not 1 <= max_records <= MOST_RECORDS:
            raise SetupError(f"max_records is {max_records}; it must be 1 to {MOST_RECORDS}")
        if ordered and (max_workers > 1 or batch):
            raise SetupError("a subscriber with ordered=True has max_workers=1 and no batches")
        if batch and max_workers > 1:
            raise SetupError("a subscriber of batches has max_workers=1")
        outer_config = cast("CmqBrokerConfig", self.config)
        calls: CallsCollection[Any] = CallsCollection()
        specification = CmqSubscriberSpecification(
            outer_config,
            CmqSubscriberSpecificationConfig(
                queue=queue, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls,
        )
        config = CmqSubscriberConfig(
            _outer_config=outer_config,
            queue=queue,
            queue_attributes=queue_attributes or QueueAttributes(),
            topic=topic,
            binding_keys=binding_keys,
            filter_tags=filter_tags,
            max_workers=max_workers,
            prefetch=prefetch,
            ordered=ordered,
            max_records=max_records,
            no_reply=no_reply,
            _ack_policy=ack_policy,
        )
        subscriber = (CmqBatchSubscriber if batch else CmqSubscriber)(config, specification, calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(
        self,
        queue: str = "",
        *,
        topic: str = "",
        routing_key: str | None = None,
        tags: Iterable[str] = (),
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> CmqPublisherUsecase:
        """Make a publisher, which decorates handlers to publish their results.

        Args:
            queue: the queue to send to.
            topic: or the topic to publish to.
            routing_key: of messages to a routing topic.
            tags: of messages to a tag topic.
            headers: of each message; a message may have others, which win.
            reply_to: the queue for replies to the messages.
            batch: the handler returns a list or tuple, which is sent in one step as messages.
            persistent: False = the publisher lives as long as the caller holds it.
            title: name in the AsyncAPI page.
            description: description in the page.
            schema: type of the messages in the page; by default the type that the handler returns.
            include_in_schema: show the publisher in the page.

        Raises:
            SetupError: there are both queue and topic, or a routing key or tags without a topic.
        """
        tags = tuple(tags)
        if queue and topic:
            raise SetupError("a publisher has a queue or a topic, not both")
        if (routing_key is not None or tags) and not topic:
            raise SetupError("routing_key and tags are for a publisher with a topic")
        outer_config = cast("CmqBrokerConfig", self.config)
        specification = CmqPublisherSpecification(
            outer_config,
            CmqPublisherSpecificationConfig(
                queue=queue,
                topic=topic,
                routing_key=routing_key,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        config = CmqPublisherConfig(
            _outer_config=outer_config,
            queue=queue,
            topic=topic,
            routing_key=routing_key,
            tags=tags,
            headers=dict(headers or {}),
            reply_to=reply_to,
            batch=batch,
        )
        publisher = CmqPublisherUsecase(config, specification)
        super().publisher(publisher, persistent=persistent)
        return publisher
