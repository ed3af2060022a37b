"""Deliveries to FastStream's messages, and bodies to values."""

from typing import Any

from faststream.message import StreamMessage, decode_message

from cmqd_client.messages.outgoing import CORRELATION_ID, REPLY_TO
from cmqd_faststream.delivery import Delivery
from cmqd_faststream.message import CmqBatchMessage, CmqMessage

CONTENT_TYPE = "content-type"
OWN_CORRELATION_ID = "faststream-correlation-id"
"""Header of requests and replies: FastStream's correlation id. Their header ``correlation-id`` belongs to the client,
and leads from a reply to the request."""


def correlation_id_of(headers: dict[str, str]) -> str | None:
    """Return FastStream's correlation id of a message."""
    return headers.get(OWN_CORRELATION_ID) or headers.get(CORRELATION_ID)


class CmqParser:
    """Makes and decodes messages of a single delivery."""

    async def parse_message(self, message: Delivery) -> CmqMessage:
        """Make a message of a delivery."""
        headers = message.headers
        return CmqMessage(
            raw_message=message,
            body=message.body,
            headers=headers,
            reply_to=headers.get(REPLY_TO, ""),
            content_type=headers.get(CONTENT_TYPE),
            message_id=message.id or None,
            correlation_id=correlation_id_of(headers),
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """Decode a body by its content type."""
        return decode_message(msg)


class CmqBatchParser(CmqParser):
    """Makes and decodes messages of several deliveries. FastStream tells a batch by the name of ``decode_batch``."""

    async def parse_batch(self, message: list[Delivery]) -> CmqBatchMessage:
        """Make a message of a batch; its headers are those of the first message."""
        first = message[0].headers if message else {}
        return CmqBatchMessage(
            raw_message=message,
            body=[delivery.body for delivery in message],
            headers=first,
            batch_headers=[delivery.headers for delivery in message],
            content_type=first.get(CONTENT_TYPE),
            message_id=(message[0].id or None) if message else None,
            correlation_id=correlation_id_of(first),
        )

    async def decode_batch(self, msg: StreamMessage[list[Delivery]]) -> list[Any]:
        """Decode every body by the content type of its delivery."""
        return [decode_message(await self.parse_message(delivery)) for delivery in msg.raw_message]
