"""What an operation of the core hands to the edge."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec

from cmqd_segment.records import AnyRecord, Headers, Runs

T = TypeVar("T")


class _Waiting(Enum):
    WAITING = "waiting"


WAITING: Final = _Waiting.WAITING
"""The reply of an operation that will be answered later, through ``Outcome.woken``."""
Waiting = _Waiting


class PageRead(msgspec.Struct, frozen=True, gc=False):
    """Bodies that the core needs from the log; answer with ``Broker.pages_read``."""

    read_id: int
    queue_id: int
    positions: Runs
    max_bytes: int


class Woken(msgspec.Struct, frozen=True):
    """The answer to an operation that waited: its reply, or the error (a DomainError) that ended it."""

    waiter_id: int
    reply: Any


class Outcome(msgspec.Struct, Generic[T]):
    """What to answer, what to persist, who else is answered, what to read.

    The records must be appended to the log in one go and in this order, before those of any later outcome. No reply
    may leave before they are durable.
    """

    reply: T
    records: Sequence[AnyRecord] = ()
    bodies: Sequence[bytes] = ()
    """The bodies of the ``MessagesSent`` among the records."""
    woken: Sequence[Woken] = ()
    reads: Sequence[PageRead] = ()


class ReceivedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A received message; field by field as on the wire, so that it is encoded as it is."""

    message_id: int
    receipt_handle: int
    body: bytes
    enqueue_ms: int
    first_receive_ms: int
    next_visible_ms: int
    receive_count: int
    headers: Headers | None = None


class PeekedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message looked at; field by field as on the wire."""

    message_id: int
    state: str
    """``active``, ``delayed`` or ``in_flight``."""
    body: bytes
    enqueue_ms: int
    visible_ms: int
    """When a delayed message becomes active, else 0."""
    receive_count: int
    headers: Headers | None = None


class Peeked(msgspec.Struct, frozen=True):
    """Reply of a peek."""

    messages: list[PeekedMessage]
    next_start: int | None


class HandleFailure(msgspec.Struct, frozen=True, gc=False):
    """A receipt handle that is not (or no longer) valid in this queue; nothing was done with it."""

    receipt_handle: int
    text: str


class HandlesDone(msgspec.Struct, frozen=True):
    """Reply of delete, change visibility and hand back."""

    failures: Sequence[HandleFailure]
    next_visible_ms: int = 0


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue as its owner sees it."""

    name: str
    queue_id: int
    attributes: dict[str, int]
    counts: dict[str, int]
    facts: dict[str, int | None]
    created: bool = False
