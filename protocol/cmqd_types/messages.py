"""Messages: received, peeked and half messages, and where a message came from.

The structs encode to msgpack arrays, so the order of the fields is part of the wire format and of the disk format.
Fields are only ever appended, with a default.
"""

from typing import Final, TypeAlias

import msgspec

Headers: TypeAlias = dict[str, str]
Labels: TypeAlias = list[str] | str
"""The tags of a published message, or its routing key."""


def printed_id(number: int) -> str:
    """Return the printed form of a message id: ``Msg-`` and 16 hex digits."""
    return f"Msg-{number:016x}"


REDRIVE: Final = "redrive"
"""The ``reason`` of an origin: the message left a dead-letter queue by a redrive."""


GONE_DELETED: Final = 1
GONE_MOVED: Final = 2
"""``gone`` of a refused receipt handle: its message was deleted under this handle, or moved to the dead-letter queue by
its consumer. 0 = neither is known: the lease ended by itself, or the message was handed back or cleared, or expired."""


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The queue from which a message was moved to its present queue."""

    queue: str
    message_id: int
    """Id of the message in that queue."""
    enqueue_ms: int
    receive_count: int
    reason: str
    """``receives``, ``age`` or ``rejected``: became a dead letter; ``redrive``: left a dead-letter queue."""
    rejection: str = ""
    """With ``rejected``: the reason that the consumer gave, at most 256 bytes of UTF-8."""


class CopyOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The published message of which a message in a queue is a copy, and the subscription that made the copy."""

    topic: str
    subscription: str
    message_id: int
    """Id of the published message."""
    publish_ms: int
    labels: Labels | None = None
    """Tags (None = no tags) on a tag topic, the routing key on a routing topic."""


class ReceivedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A received message."""

    message_id: int
    receipt_handle: int
    body: bytes
    enqueue_ms: int
    first_receive_ms: int
    next_visible_ms: int
    """End of the visibility timeout of this receive."""
    receive_count: int
    """Number of receives of the message, this one included."""
    headers: Headers | None = None
    origin: Origin | None = None
    copy_of: CopyOf | None = None


class PeekedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the page of a peek."""

    message_id: int
    state: str
    """``active``, ``delayed``, ``in_flight``, ``half`` or ``rewindable``."""
    body: bytes
    enqueue_ms: int
    visible_ms: int
    """Time at which a delayed message becomes active, else 0."""
    receive_count: int
    headers: Headers | None = None
    origin: Origin | None = None
    copy_of: CopyOf | None = None


class HalfMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An undecided half message in a list for operators."""

    message_id: int
    enqueue_ms: int
    checks: int
    """Number of checks sent to producers."""
    last_check_ms: int
    """0 = no check was sent."""
    last_answer: str
    """``unknown``, or empty before the first answer of a producer."""
    next_check_ms: int
    """0 = no further check is planned."""


class MessagesPeeked(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A page of a peek, in the order of sending. Keywords only, for the reason given in ``queues``."""

    messages: list[PeekedMessage]
    next_start: int | None
    """Position at which the next page starts; None = end of the queue."""


class HalfMessages(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A page of undecided half messages, in the order of sending. Keywords only, as ``MessagesPeeked``."""

    messages: list[HalfMessage]
    next_start: int | None
    """Position at which the next page starts; None = end of the queue."""
