# pyright: reportIncompatibleMethodOverride=false
# (Each broker of FastStream has arguments of its own for these methods.)
"""The broker class of FastStream."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from cmqd_client import Client, Published, Sent, connect
from cmqd_client.connection import TlsOption
from cmqd_client.durations import Duration, to_seconds
from cmqd_client.errors import CmqError
from cmqd_faststream.configs import LEASE, CmqBrokerConfig
from cmqd_faststream.log_storage import make_cmq_logger_state
from cmqd_faststream.message import CmqMessage
from cmqd_faststream.producer import CmqProducer
from cmqd_faststream.registrator import CmqRegistrator
from cmqd_faststream.response import TIMEOUT, CmqPublishCommand

PROTOCOL = "cmq"
DEFAULT_ADDRESS = "cmq://localhost:5680"


class CmqBroker(CmqRegistrator, BrokerUsecase[Any, Client, CmqBrokerConfig]):
    """FastStream's broker; see :mod:`cmqd_faststream`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tls: TlsOption = None,
        create: bool = True,
        lease: Duration = LEASE,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        middlewares: Sequence[Any] = (),
        routers: Iterable[CmqRegistrator] = (),
        specification_url: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        security: Any = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        id_generator: Callable[[], str] = gen_cor_id,
    ) -> None:
        """Make a broker; ``start`` or ``connect`` connects.

        Args:
            url: ``cmq://ID:KEY@host``; None = the server that ``cmq`` would use, see :func:`cmqd_client.connect`.
            tls: see :func:`cmqd_client.connect`.
            create: create queues and topics that do not exist, at the start or at the first publish.
            lease: how late the messages of a killed process are delivered again, 1 s - 12 h. A handler that blocks the
                event loop for that long loses the leases of all messages of the process.
            graceful_timeout: seconds for which ``stop`` waits for handlers before it cancels them.
            ack_policy: of subscribers without a policy of their own.
            dependencies: FastStream's, for all subscribers.
            parser: makes messages of deliveries.
            decoder: makes values of messages.
            codec: encodes and decodes; in place of ``decoder``.
            middlewares: FastStream's, for all subscribers and publishers.
            routers: routers to include.
            specification_url: address in the AsyncAPI page; by default that of ``url``, without the key.
            protocol_version: version of the protocol in the page.
            description: description of the server in the page.
            tags: tags of the server in the page.
            security: description of the access in the page; the key of ``url`` is used in any case.
            logger: FastStream's; None = no log.
            log_level: level of FastStream's log lines.
            apply_types: convert arguments of handlers to their types.
            serializer: FastStream's, for the types of handlers.
            provider: FastStream's, of dependencies.
            context: FastStream's, of values.
            id_generator: makes correlation ids.
        """
        self._url = url
        self._tls = tls
        self._has_to_consume = False
        # The page is public, and the URL has a key.
        host = None if url is None else urlsplit(url).netloc.rpartition("@")[2]
        config = CmqBrokerConfig(
            create=create,
            lease=to_seconds(lease, "lease"),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=make_cmq_logger_state(logger=logger, log_level=log_level),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=id_generator,
            extra_context={"broker": self},
        )
        config.producer = CmqProducer(config)
        super().__init__(
            routers=routers,
            config=config,
            specification=BrokerSpec(
                description=description,
                url=[specification_url or (f"cmq://{host}" if host else DEFAULT_ADDRESS)],
                protocol=PROTOCOL,
                protocol_version=protocol_version,
                security=security,
                tags=tags,
            ),
        )

    @property
    def client(self) -> Client:
        """The open client, for handlers that use queues and topics themselves.

        Raises:
            IncorrectState: the broker is not connected.
        """
        return self.config.broker_config.connection.client

    async def _connect(self) -> Client:
        client = connect(self._url, tls=self._tls, product="cmqd-faststream")
        if self._has_to_consume:
            # A consumer that starts before its server waits, as it does in any later outage.
            await client.open(patience=None)
        else:
            await client.open()
        self.config.broker_config.connection.open_client = client
        return client

    async def start(self) -> None:
        """Connect and start all subscribers.

        Raises:
            CmqError: the server is not reached (with subscribers the broker waits for it instead) or refuses the key;
                or a queue exists with other attributes.
        """
        self._has_to_consume = bool(self.subscribers)
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, wait for their handlers, and disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, self._connection = self._connection, None
            self.config.broker_config.connection.open_client = None
            if client is not None:
                await client.close()

    async def ping(self, timeout: float | None = 3.0) -> bool:
        """Return True if the server answers in time."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._connection.queues(limit=1)
        except (CmqError, TimeoutError):
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        queue: str = "",
        *,
        topic: str = "",
        routing_key: str | None = None,
        tags: Iterable[str] | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: Duration | None = None,
        at: datetime | float | None = None,
        dedup_id: str | None = None,
    ) -> Sent | Published | None:
        """Publish a message; when this returns, the server has fsynced it.

        A publish that is repeated after a lost answer is stored once.

        Args:
            message: the body, of any type that FastStream can encode.
            queue: the queue to send to.
            topic: or the topic to publish to.
            routing_key: for a routing topic.
            tags: for a tag topic.
            headers: further headers, at most 28.
            correlation_id: FastStream's, to follow messages; by default made by the broker's ``id_generator``.
            reply_to: the queue to which the subscriber publishes its result.
            delay: time before the message becomes active, for a queue; see :meth:`cmqd_client.Queue.send`.
            at: time at which the message becomes active, in place of ``delay``.
            dedup_id: see :meth:`cmqd_client.Queue.send`.

        Raises:
            CmqError: the message was not published, or (``OutcomeUnknown``) may have been.
            SetupError: there are both queue and topic.
        """
        cmd = CmqPublishCommand(
            message,
            queue=queue,
            topic=topic,
            routing_key=routing_key,
            tags=tags,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            delay=delay,
            at=at,
            dedup_id=dedup_id,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._basic_publish(cmd, producer=self.config.producer)

    async def publish_batch(
        self,
        *messages: Any,
        queue: str = "",
        topic: str = "",
        routing_key: str | None = None,
        tags: Iterable[str] | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: Duration | None = None,
        at: datetime | float | None = None,
    ) -> list[str]:
        """Publish up to 256 messages in one step, all or none, and return their ids; see :meth:`publish`."""
        cmd = CmqPublishCommand(
            *(messages or (None,)),
            queue=queue,
            topic=topic,
            routing_key=routing_key,
            tags=tags,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            delay=delay,
            at=at,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._basic_publish_batch(cmd, producer=self.config.producer)

    async def request(
        self,
        message: Any = None,
        queue: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration = TIMEOUT,
    ) -> CmqMessage:
        """Send a request to the subscriber of a queue, and wait for the result of its handler.

        The request is stored like any message; see :meth:`cmqd_client.Client.request`.

        Raises:
            TimeoutError: there was no reply in time; the request may have been processed, or may still be.
            CmqError: the request was not sent, or (``OutcomeUnknown``) may have been.
        """
        cmd = CmqPublishCommand(
            message,
            queue=queue,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return await self._basic_request(cmd, producer=self.config.producer)
