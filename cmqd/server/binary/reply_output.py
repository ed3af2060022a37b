"""Replies on their way into the socket: the pieces of each write, and the output that a slow client leaves unread.

A reply with messages is encoded only when the socket has taken all earlier bytes. If the socket never took
the last byte of a reply, the messages of the reply return to their queue.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from cmqd.server.replies.reply_gate import Outgoing
from cmqd_protocol.messages import PUSH_TYPES, AnyReply, MessagesReceived, Push, error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_protocol.server_connection import ServerConnection

BYTES_PER_WRITE: Final = 64 * 1024
"""Bytes of replies with messages between two checks whether the socket takes more: a single reply, or many."""

SLOW_AFTER_MS: Final = 200
"""A socket's buffer that stays over its mark for this time belongs to a slow client. Before that, a few large replies
at once are no reason to lose a place in line."""

DEFAULT_PATIENCE_MS: Final = 60_000
"""Time until a slow reader is closed if the connection has no heartbeats."""

ReplyOfQueue: TypeAlias = tuple[Outgoing, str | None]
"""A reply or push. A reply with messages has their queue ("" if they were only peeked)."""


class UnreadOutput:
    """The state of a socket's buffer that is over its mark."""

    __slots__ = ("is_narrow", "since_ms", "unsent")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.is_narrow = False
        """The mark is zero, because the buffer holds messages."""
        self.unsent: tuple[Outgoing, str] | None = None
        """The reply with messages that ends the buffer: the socket has not taken its last byte."""


class Encoded(NamedTuple):
    """Replies that are written together."""

    data: list[bytes]
    with_messages: int
    """Number of replies with messages."""
    last: ReplyOfQueue


def encode_replies(wire: ServerConnection, replies: list[ReplyOfQueue], now_ms: int) -> Encoded:
    """Remove replies from the front and encode them for a write, which ends at ``BYTES_PER_WRITE`` with messages.

    After an exception the replies encoded so far stay removed: the caller must close the connection.
    """
    data: list[bytes] = []
    size = done = with_messages = 0
    plain: list[Any] = []
    """Replies without messages that follow each other: encoded in a single call."""
    try:
        for reply, queue in replies:
            done += 1
            encodable: Any = reply
            if queue is None and type(reply) not in PUSH_TYPES:
                plain.append(reply)
                continue
            if plain:
                data += wire.replies_to_send(plain, now_ms)
                plain = []
            if queue is None:
                wire.push(encodable)
                data += wire.data_to_send(now_ms)
                continue
            encoded = wire.reply_to_send(encodable, now_ms)
            data.append(encoded)
            size += len(encoded)
            with_messages += 1
            if size >= BYTES_PER_WRITE:
                break
        if plain:
            data += wire.replies_to_send(plain, now_ms)
        return Encoded(data, with_messages, replies[done - 1])
    finally:
        del replies[:done]


def without_cancelled(
    replies: Sequence[ReplyOfQueue], cancelled: set[int]
) -> tuple[list[ReplyOfQueue], list[tuple[Outgoing, str]]]:
    """Return the replies with a "cancelled" answer in place of messages, and the replaced replies with their queues.

    A receive with deletes keeps its reply, without the messages: an error alone would hide its deletes.

    Requests with a reply are removed from ``cancelled``.
    """
    kept: list[ReplyOfQueue] = []
    returned: list[tuple[Outgoing, str]] = []
    for reply, queue in replies:
        if not isinstance(reply, Push) and reply.request_id in cancelled:
            cancelled.discard(reply.request_id)
            if queue is not None:
                returned.append((reply, queue))
                cancelled_reply: AnyReply = error(reply.request_id, ErrorCode.CANCELLED, "cancelled")
                if isinstance(reply, MessagesReceived) and reply.failures is not None:
                    cancelled_reply = MessagesReceived(reply.request_id, [], reply.failures, cancelled_reply)
                kept.append((cancelled_reply, None))
                continue
        kept.append((reply, queue))
    return kept, returned
