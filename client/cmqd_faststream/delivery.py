"""The raw message of FastStream's parsers and middlewares, and the end of its handling. No FastStream here.

    ack        the message is deleted
    nack       the message is delivered again, after a pause
    reject     the message moves to the dead-letter queue

A handler decides an end, and the end takes effect when the handler is over: the ends of several messages then share a
request. In two cases an end takes effect at once: where FastStream acknowledges before the handler, or leaves the ends
to the handler (``ACK_FIRST``, ``MANUAL``), and for a message without a handler (``get_one``, iteration).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from cmqd_client import ConsumedMessage, Message, Reject, Retry
from cmqd_client.durations import Duration

EMPTY_BODY = "empty-body"
"""Header of a message with an empty body. The server takes no empty bodies, so that it has a body of one byte."""


class EndKind(Enum):
    """How the handling of a message ends."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"


class End(msgspec.Struct, frozen=True):
    """The end of a message."""

    kind: EndKind
    delay: Duration | None = None
    """Of a nack: the pause; None = a pause that grows with each receive."""
    reason: str = ""
    """Of a reject: kept with the dead letter."""


class Delivery:
    """A received message. A delivery without ``message`` is made by a test, and its end takes effect nowhere."""

    __slots__ = ("_at_once", "body", "end", "headers", "id", "message", "queue", "receive_count")

    def __init__(
        self,
        body: bytes,
        headers: Mapping[str, str],
        *,
        queue: str,
        id: str = "",
        receive_count: int = 1,
        message: Message[bytes] | None = None,
        at_once: bool = False,
    ) -> None:
        self.headers: dict[str, str] = dict(headers)
        self.body: bytes = b"" if self.headers.pop(EMPTY_BODY, None) else body
        self.queue: str = queue
        """The queue that the message was received from."""
        self.id: str = id
        """The id of the message; "" in a test."""
        self.receive_count: int = receive_count
        self.message: Message[bytes] | None = message
        """The message of the client."""
        self.end: End | None = None
        """None = undecided. The first decision stands."""
        self._at_once = at_once

    @classmethod
    def received(cls, message: Message[bytes], *, at_once: bool) -> "Delivery":
        """Wrap a message of the client; ``at_once`` says when its end takes effect."""
        return cls(
            message.raw_body,
            message.headers,
            queue=message.queue.name,
            id=message.id,
            receive_count=message.receive_count,
            message=message,
            at_once=at_once,
        )

    async def decide(self, end: End) -> None:
        """Decide the end. A second decision is ignored.

        Raises:
            CmqError: the end should have taken effect at once and did not. The caller may decide again.
        """
        if self.end is not None:
            return
        if self._at_once and self.message is not None:
            await _settle(self.message, end)
        self.end = end

    def finish(self) -> None:
        """End a handler of :meth:`cmqd_client.Queue.consumer`: return, or raise the exception for the end.

        Raises:
            Retry: the consumer delivers the message again.
            Reject: the consumer moves the message to the dead-letter queue.
        """
        end = self.end
        if end is None:
            raise Retry(reason="the handler neither acknowledged nor rejected the message")
        if self._at_once or end.kind is EndKind.ACK:
            return
        if end.kind is EndKind.NACK:
            raise Retry(after=end.delay, reason="nack")
        raise Reject(end.reason)

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of {self.queue!r}, {len(self.body)} bytes, received {self.receive_count}x>"


async def _settle(message: Message[bytes], end: End) -> None:
    """Let an end take effect now."""
    if end.kind is EndKind.ACK:
        await message.delete()
    elif end.kind is EndKind.REJECT:
        await message.reject(end.reason)
    elif end.delay is not None:
        await message.change_visibility(end.delay)
    elif isinstance(message, ConsumedMessage):
        async with message.process():
            raise Retry(reason="nack")
    else:
        await message.release()


def outgoing_body(body: bytes, headers: dict[str, Any]) -> bytes:
    """Return the body to send; an empty body becomes a byte and a header."""
    if body:
        return body
    headers[EMPTY_BODY] = "1"
    return b"\0"
