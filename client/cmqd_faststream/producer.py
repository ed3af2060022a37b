"""Sends, publishes and requests: from FastStream's commands to the client."""

from typing import Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.response import PublishType

from cmqd_client import Outgoing, Published, Sent
from cmqd_client.errors import NoReply, QueueDeleted, QueueNotFound, TopicNotFound
from cmqd_client.foreign_names import usable_queue_name, usable_topic_name
from cmqd_client.messages.outgoing import CORRELATION_ID, REPLY_TO
from cmqd_client.topic import FilterType
from cmqd_faststream.configs import CmqBrokerConfig, Connection
from cmqd_faststream.delivery import Delivery, outgoing_body
from cmqd_faststream.parser import CONTENT_TYPE, OWN_CORRELATION_ID, CmqParser
from cmqd_faststream.response import CmqPublishCommand


def headers_of(cmd: CmqPublishCommand, content_type: str | None) -> dict[str, str]:
    """Return the headers of a message, as text."""
    headers: dict[str, str] = {}
    if content_type:
        headers[CONTENT_TYPE] = content_type
    if cmd.request_id is not None:
        headers[CORRELATION_ID] = cmd.request_id
        headers[OWN_CORRELATION_ID] = cmd.correlation_id or ""
    elif cmd.correlation_id:
        headers[CORRELATION_ID] = cmd.correlation_id
    if cmd.reply_to:
        headers[REPLY_TO] = usable_queue_name(cmd.reply_to)
    return headers | {name: str(value) for name, value in cmd.headers.items()}


class CmqProducer(ProducerProto[CmqPublishCommand]):
    """Encodes and sends; see :class:`cmqd_faststream.CmqBroker` for the guarantees."""

    def __init__(self, config: CmqBrokerConfig) -> None:
        """Make a producer of the broker with this configuration."""
        parser = CmqParser()
        self._parser = ParserComposition(config.broker_parser, parser.parse_message)
        self._decoder = ParserComposition(config.broker_decoder, parser.decode_message)
        self.codec = config.broker_codec or DefaultCodec()
        self._config = config

    @property
    def _serializer(self) -> Any:
        # FastStream keeps the serializer in a private attribute, which its own brokers read too.
        return self._config.fd_config._serializer  # pyright: ignore[reportPrivateUsage]

    @property
    def _connection(self) -> Connection:
        return self._config.connection

    async def encode(self, cmd: CmqPublishCommand, body: Any) -> tuple[bytes, dict[str, str]]:
        """Return a message of a command: body and headers."""
        encoded, content_type = await self.codec.encode(body, self._serializer)
        headers = headers_of(cmd, content_type)
        return outgoing_body(encoded, headers), headers

    async def publish(self, cmd: CmqPublishCommand) -> Sent | Published | None:
        """Send or publish a message; None = the reply queue of a request is gone, and so is its client."""
        body, headers = await self.encode(cmd, cmd.body)
        if cmd.is_topic:
            topic = self._connection.client.topic(usable_topic_name(cmd.destination))
            try:
                return await topic.publish(
                    body, tags=cmd.tags or None, routing_key=cmd.routing_key, headers=headers, dedup_id=cmd.dedup_id
                )
            except TopicNotFound:
                await self._create_topic(cmd)
            return await topic.publish(
                body, tags=cmd.tags or None, routing_key=cmd.routing_key, headers=headers, dedup_id=cmd.dedup_id
            )
        queue = self._connection.client.queue(usable_queue_name(cmd.destination))
        try:
            return await queue.send(body, delay=cmd.delay, at=cmd.at, headers=headers, dedup_id=cmd.dedup_id)
        except (QueueNotFound, QueueDeleted):
            if cmd.publish_type is PublishType.REPLY:
                return None
            await self._create_queue(cmd)
        return await queue.send(body, delay=cmd.delay, at=cmd.at, headers=headers, dedup_id=cmd.dedup_id)

    async def publish_batch(self, cmd: CmqPublishCommand) -> list[str]:
        """Send or publish up to 256 messages in one step, and return their ids."""
        messages = await self._encode_batch(cmd)
        if cmd.is_topic:
            topic = self._connection.client.topic(usable_topic_name(cmd.destination))
            bodies = [body for body, _ in messages]
            all_headers = [headers for _, headers in messages]
            tags = [cmd.tags] * len(bodies) if cmd.tags else None
            try:
                batch = await topic.publish_batch(bodies, tags=tags, routing_key=cmd.routing_key, headers=all_headers)
            except TopicNotFound:
                await self._create_topic(cmd)
                batch = await topic.publish_batch(bodies, tags=tags, routing_key=cmd.routing_key, headers=all_headers)
            return [published.id for published in batch]
        queue = self._connection.client.queue(usable_queue_name(cmd.destination))
        outgoing = [Outgoing(body, headers) for body, headers in messages]
        try:
            sent = await queue.send_batch(outgoing, delay=cmd.delay, at=cmd.at)
        except QueueNotFound:
            await self._create_queue(cmd)
            sent = await queue.send_batch(outgoing, delay=cmd.delay, at=cmd.at)
        return list(sent.ids)

    async def request(self, cmd: CmqPublishCommand) -> Delivery:
        """Send a request and wait for the reply.

        Raises:
            TimeoutError: there was no reply in time; the request may have been processed, or may still be.
        """
        body, headers = await self.encode(cmd, cmd.body)
        # These two are the client's own.
        headers.pop(CORRELATION_ID, None)
        headers.pop(REPLY_TO, None)
        if cmd.correlation_id:
            headers[OWN_CORRELATION_ID] = cmd.correlation_id
        client, name = self._connection.client, usable_queue_name(cmd.destination)
        try:
            reply = await client.request(name, body, timeout=cmd.timeout, headers=headers)
        except NoReply as error:
            raise TimeoutError(str(error)) from error
        reply_headers = dict(reply.headers)
        if cmd.correlation_id:
            reply_headers.setdefault(OWN_CORRELATION_ID, cmd.correlation_id)
        return Delivery(reply.body, reply_headers, queue=name)

    async def _encode_batch(self, cmd: CmqPublishCommand) -> list[tuple[bytes, dict[str, str]]]:
        if not isinstance(self.codec, BatchCodecProto):
            return [await self.encode(cmd, body) for body in cmd.batch_bodies]
        messages: list[tuple[bytes, dict[str, str]]] = []
        encoded = await self.codec.encode_batch(cmd.batch_bodies, self._serializer)
        for body, content_type in encoded:
            headers = headers_of(cmd, content_type)
            messages.append((outgoing_body(body, headers), headers))
        return messages

    async def _create_queue(self, cmd: CmqPublishCommand) -> None:
        """Create the queue of a command that found none. Called in an ``except`` block."""
        if not self._config.create:
            raise
        await self._connection.client.ensure_queue(usable_queue_name(cmd.destination))

    async def _create_topic(self, cmd: CmqPublishCommand) -> None:
        """Create the topic of a command that found none. Called in an ``except`` block."""
        if not self._config.create:
            raise
        kind = FilterType.TAG if cmd.routing_key is None else FilterType.ROUTING
        await self._connection.client.ensure_topic(usable_topic_name(cmd.destination), filter_type=kind)
