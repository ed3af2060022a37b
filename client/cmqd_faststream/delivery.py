"""A message as FastStream's parsers and middlewares get it, and the end that its handling comes to. No FastStream here.

    ack        the message is deleted
    nack       it is delivered again, after a pause
    reject     it moves to the dead-letter queue

A handler decides an end, and the end takes effect when the handler is over: the ends of several messages then share a
request. Two cases differ. Where FastStream acknowledges before the handler, or leaves the ends to the handler, an end
takes effect at once; so it does for a message without a handler (``get_one``, iteration).
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
    """A received message. Without ``message`` it is made by a test, and its end takes effect nowhere."""

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
        """None = not decided yet. The first decision stands."""
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
        """Decide the end, unless it is decided.

        Raises:
            CmqError: the end was to take effect at once and did not; it can be decided again.
        """
        if self.end is not None:
            return
        if self._at_once and self.message is not None:
            await _settle(self.message, end)
        self.end = end

    def finish(self) -> None:
        """End a handler of :meth:`cmqd_client.Queue.consumer`: return, or raise the exception for the end.

        Raises:
            Retry, Reject: the consumer is to do so.
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
        await message.dead_letter(end.reason)
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
