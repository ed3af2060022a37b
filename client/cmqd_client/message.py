"""Messages: one to send, and one received."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from cmqd_client.durations import Duration, to_datetime
from cmqd_client.results import CopyOf, HandleResult, MessageId, Origin, copy_of, origin, printed_id
from cmqd_types.messages import Headers, ReceivedMessage

if TYPE_CHECKING:
    from cmqd_client.queue import Queue


class Outgoing(msgspec.Struct, frozen=True):
    """A message of a ``send_batch`` that has headers, a delay or a dedup id of its own."""

    body: bytes
    headers: Mapping[str, str] | None = None
    delay: Duration | None = None
    """None = the batch's, or else the queue's."""
    dedup_id: str | None = None
    """See :meth:`Queue.send`; None = the one that ``dedup_ids`` of the batch has for it, or none."""


def checked_body(body: bytes) -> bytes:
    """The body, unless it is something that msgpack would take and mean otherwise.

    Raises:
        TypeError: it is not bytes.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "; encode it first: text.encode()" if isinstance(body, str) else ""
        raise TypeError(f"a body must be bytes, not {type(body).__name__}{hint}")
    return body


class Message:
    """A message received and not yet deleted: this receiver's until ``next_visible_time``.

    Delete it when it is dealt with. If nobody does, it comes back when its visibility timeout ends, with a new receipt
    handle; then the methods of this object fail with ``ReceiptHandleInvalid``.
    """

    __slots__ = ("_queue", "_received", "request_id")

    def __init__(self, queue: "Queue", received: ReceivedMessage, request_id: int) -> None:
        self._queue = queue
        self._received = received
        self.request_id: int = request_id
        """Number of the receive that brought it."""

    @property
    def queue(self) -> "Queue":
        """The queue it was received from."""
        return self._queue

    @property
    def id(self) -> MessageId:
        """``Msg-`` and 16 hex digits; the same at every receive."""
        return printed_id(self._received.message_id)

    @property
    def body(self) -> bytes:
        """The body, byte for byte as it was sent."""
        return self._received.body

    @property
    def headers(self) -> Headers:
        """The headers as they were sent; empty if there were none."""
        return self._received.headers or {}

    @property
    def receipt_handle(self) -> int:
        """Proof of this very receive."""
        return self._received.receipt_handle

    @property
    def receive_count(self) -> int:
        """How often it was received, this time included: 1 = for the first time."""
        return self._received.receive_count

    @property
    def enqueue_time(self) -> datetime:
        """When it was sent (UTC)."""
        return to_datetime(self._received.enqueue_ms)

    @property
    def first_receive_time(self) -> datetime:
        """When it was received for the first time (UTC)."""
        return to_datetime(self._received.first_receive_ms)

    @property
    def next_visible_time(self) -> datetime:
        """Until when it is hidden from others because of this receive (UTC, the server's clock).

        ``change_visibility`` does not change it here: its result has the new time.
        """
        return to_datetime(self._received.next_visible_ms)

    @property
    def origin(self) -> Origin | None:
        """Where it stood before it was moved here, as a dead letter or by a redrive; None = it was sent here."""
        return origin(self._received.origin)

    @property
    def copy_of(self) -> CopyOf | None:
        """The message published to a topic that it is a copy of; None = it was sent to a queue."""
        return copy_of(self._received.copy_of)

    async def delete(self) -> HandleResult:
        """Delete it; see :meth:`Queue.delete`."""
        return await self._queue.delete(self)

    async def release(self, *, count_receive: bool = True) -> HandleResult:
        """Hand it back at once; see :meth:`Queue.release`."""
        return await self._queue.release(self, count_receive=count_receive)

    async def change_visibility(self, timeout: Duration) -> HandleResult:
        """Set how long it stays hidden; see :meth:`Queue.change_visibility`."""
        return await self._queue.change_visibility(self, timeout)

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self._queue.name!r}, {len(self.body)} bytes, received {self.receive_count}x>"
