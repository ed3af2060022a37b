"""Requests that wait for bodies or times from the log."""

import msgspec
from pyroaring import BitMap64

from cmqd.core.domain_errors import DomainError
from cmqd_segment.records import StoredMessage
from cmqd_types.actors import NO_ACTOR, Actor


class PendingPeek(msgspec.Struct, gc=False):
    """A peek that waits for bodies."""

    waiter_id: int
    queue_id: int
    positions: list[int]
    found: dict[int, StoredMessage]
    states: frozenset[str] | None = None
    """Requested states; None = all states of live messages."""
    go_on: int | None = None
    """Start position of the next peek if this peek shows no message."""


class PendingDeliveriesPeek(msgspec.Struct, gc=False):
    """A peek at the messages of a subscription that waits for bodies."""

    waiter_id: int
    topic: str
    name: str
    """Name of the subscription."""
    subscription_id: int
    positions: list[int]
    found: dict[int, StoredMessage]
    with_bodies: bool
    go_on: int | None = None
    """Start position of the next peek if the page does not reach the end of ``positions``."""


class PendingRewind(msgspec.Struct, gc=False):
    """A binary search for the first message sent at or after the time of a rewind, or of the preview of a rewind."""

    waiter_id: int
    queue_id: int
    time_ms: int
    clamped: bool
    low: int
    """All rewindable messages below it were sent before the time."""
    high: int
    """Every rewindable message at or above it was sent at or after the time."""
    unreadable: BitMap64
    """Messages between ``low`` and ``high`` with times that cannot be read."""
    middle: int = 0
    """The message that is being read."""
    oldest: bool = False
    """The message being read is the oldest unconsumed message: its time is the latest time that a rewind may have."""
    is_preview: bool = False
    """The search ends with a count, and changes nothing."""
    earliest_ms: int = 0
    """Start of the rewind window at the time of the request."""
    latest_ms: int = 0
    """Latest time that the rewind may have, as far as the search knows. Only a preview needs both times."""


class PendingDecisions(msgspec.Struct, gc=False):
    """A request to decide half messages that waits for message bodies."""

    waiter_id: int
    left: int
    """Number of decisions that are not carried out yet."""
    failures: list[tuple[int, int, DomainError]]
    """(index in the request, message id, refusal)"""
    actor: Actor = NO_ACTOR
    """The client that decides."""


class PendingDeadLetters(msgspec.Struct, gc=False):
    """A request to move messages to the dead-letter queue that waits for message bodies."""

    waiter_id: int
    left: int
    """Number of handles without a result yet."""
    failures: list[tuple[int, int, DomainError]]
    """(index in the request, receipt handle, refusal)"""
    moved: int = 0
    """Number of messages moved so far."""
    actor: Actor = NO_ACTOR
    """The client that moves the messages."""


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """A message in flight that its consumer moves to the dead-letter queue."""

    request: PendingDeadLetters
    place: int
    """Index in the request."""
    receipt_handle: int
    lease: int
    reason: str
    repeats: list[tuple[PendingDeadLetters, int]]
    """(request, index in it) of later requests with the same handle, which get the result of this one."""


class PendingRejections(msgspec.Struct, gc=False):
    """The messages in flight of one queue that are moving to its dead-letter queue: their bodies are being read.

    No handle of these messages is valid, their leases do not end, and they do not expire, until the row that moves them
    is decided. A restart forgets all of it, and finds the messages in flight.
    """

    queue_name: str
    by_position: dict[int, Rejection]
    """Oldest request first."""
    leases: set[int]
    """The leases of these messages."""


class PendingCommits(msgspec.Struct, gc=False):
    """The half messages of one queue that wait for their bodies, to be committed."""

    queue_name: str
    decisions: dict[int, list[tuple[PendingDecisions, int, int, int]]]
    """By position, oldest first: (request, index in the request, message id, decision). The first decision is a commit;
    the others came while the body was being read, and follow it, because the first decision wins."""
