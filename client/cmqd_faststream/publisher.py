# pyright: reportIncompatibleVariableOverride=false
# (The configuration of an endpoint is that of its broker, which FastStream's base classes do not say.)
"""Publishers: where the results of handlers go, and replies to requests."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from cmqd_client import Published, Sent
from cmqd_client.durations import Duration
from cmqd_client.messages.outgoing import CORRELATION_ID
from cmqd_faststream.configs import CmqBrokerConfig
from cmqd_faststream.message import CmqMessage
from cmqd_faststream.response import TIMEOUT, CmqPublishCommand


@dataclass(kw_only=True)
class CmqPublisherSpecificationConfig(PublisherSpecificationConfig):
    """Description of a publisher for the AsyncAPI page."""

    queue: str
    topic: str
    routing_key: str | None


@dataclass(kw_only=True)
class CmqPublisherConfig(PublisherUsecaseConfig):
    """Options of a publisher."""

    _outer_config: CmqBrokerConfig = field(default_factory=CmqBrokerConfig)
    queue: str
    topic: str
    routing_key: str | None
    tags: tuple[str, ...]
    headers: dict[str, Any]
    reply_to: str
    batch: bool


class CmqPublisherSpecification(PublisherSpecification[CmqBrokerConfig, CmqPublisherSpecificationConfig]):
    """Describes a publisher."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The queue, or the topic with the routing key."""
        config = self.config
        if config.topic:
            return f"{self._outer_config.prefix}{config.topic}" + (
                f":{config.routing_key}" if config.routing_key else ""
            )
        return f"{self._outer_config.prefix}{config.queue}"

    @property
    def name(self) -> str:
        """The key of the channel on the page."""
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel for the page."""
        return {
            self.name: PublisherSpec(
                address=self.address,
                description=self.config.description_,
                operation=Operation(
                    message=Message(
                        title=f"{self.name}:Message",
                        payload=resolve_payloads(self.get_payloads(), "Publisher"),
                    ),
                    bindings=None,
                ),
                bindings=None,
            ),
        }


class CmqPublisherUsecase(PublisherUsecase):
    """A publisher of a queue or topic; get it from ``broker.publisher(...)``."""

    _outer_config: CmqBrokerConfig

    def __init__(self, config: CmqPublisherConfig, specification: CmqPublisherSpecification) -> None:
        """Make a publisher."""
        super().__init__(config, cast("Any", specification))
        self.config = config

    @property
    def queue(self) -> str:
        """Name of the queue with the prefixes of its routers; "" = the publisher has a topic."""
        return f"{self._outer_config.prefix}{self.config.queue}" if self.config.queue else ""

    @property
    def topic(self) -> str:
        """Name of the topic with the prefixes of its routers; "" = the publisher has a queue."""
        return f"{self._outer_config.prefix}{self.config.topic}" if self.config.topic else ""

    async def publish(
        self,
        message: Any = None,
        queue: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        routing_key: str | None = None,
        tags: Iterable[str] | None = None,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        dedup_id: str | None = None,
    ) -> Sent | Published | list[str] | None:
        """Publish a message, or with ``batch`` a sequence of messages; options not given are the publisher's.

        Args and errors are those of :meth:`cmqd_faststream.CmqBroker.publish`.
        """
        bodies: tuple[Any, ...] = (message,)
        if self.config.batch and isinstance(message, (list, tuple)):
            bodies = tuple(cast("list[Any]", message)) or (None,)
        cmd = CmqPublishCommand(
            *bodies,
            queue=queue or self.queue,
            topic="" if queue else self.topic,
            routing_key=routing_key or self.config.routing_key,
            tags=tags if tags is not None else self.config.tags,
            headers=self.config.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.config.reply_to,
            delay=delay,
            at=at,
            dedup_id=dedup_id,
            _publish_type=PublishType.PUBLISH,
        )
        producer = self._outer_config.producer
        publish = self._basic_publish_batch if self.config.batch else self._basic_publish
        return await publish(cmd, producer=producer, _extra_middlewares=())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        command = CmqPublishCommand.from_cmd(cmd, batch=self.config.batch)
        command.is_topic = bool(self.config.topic)
        command.destination = self.topic or self.queue
        command.routing_key = command.routing_key or self.config.routing_key
        command.tags = command.tags or self.config.tags
        command.add_headers(self.config.headers, override=False)
        command.reply_to = command.reply_to or self.config.reply_to
        publish = self._basic_publish_batch if self.config.batch else self._basic_publish
        await publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: Any = None,
        queue: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration = TIMEOUT,
    ) -> CmqMessage:
        """Send a request and wait for the reply; see :meth:`cmqd_faststream.CmqBroker.request`."""
        cmd = CmqPublishCommand(
            message,
            queue=queue or self.queue,
            headers=self.config.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return await self._basic_request(cmd, producer=self._outer_config.producer)


class ReplyPublisher(FakePublisher):
    """Publishes the result of a handler to the queue that its message names for replies."""

    __slots__ = ("_message",)

    def __init__(self, producer: Any, message: Any) -> None:
        """Make a publisher for the reply to a message."""
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> CmqPublishCommand:
        """Direct a command to the reply queue."""
        command = CmqPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination, command.is_topic = self._message.reply_to, False
        command.request_id = self._message.headers.get(CORRELATION_ID)
        return command
