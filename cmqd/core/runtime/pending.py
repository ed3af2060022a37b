"""Requests that wait for bodies or times from the log."""

import msgspec
from pyroaring import BitMap64

from cmqd.core.errors import DomainError
from cmqd_segment.records import StoredMessage


class PendingPeek(msgspec.Struct, gc=False):
    """A peek that waits for bodies."""

    waiter_id: int
    queue_id: int
    positions: list[int]
    found: dict[int, StoredMessage]
    states: frozenset[str] | None = None
    """Those that are asked for; None = all of live messages."""
    go_on: int | None = None
    """Where the next peek starts if this one shows nothing."""


class PendingRewind(msgspec.Struct, gc=False):
    """A rewind that looks for the first message sent at or after its time."""

    waiter_id: int
    queue_id: int
    time_ms: int
    clamped: bool
    low: int
    """All rewindable messages below it were sent before."""
    high: int
    """None below it that is rewindable and at or above it was sent before."""
    unreadable: BitMap64
    """Messages between the two whose times cannot be read."""
    middle: int = 0
    """The message that is being read."""
    oldest: bool = False
    """It is the oldest one that is not consumed: not even later than that may be rewound to."""


class PendingDecisions(msgspec.Struct, gc=False):
    """A request to decide half messages that waits for the bodies of some of them."""

    waiter_id: int
    left: int
    """How many of its decisions are not settled yet."""
    failures: list[tuple[int, int, DomainError]]
    """(place in the request, message id, refusal)"""


class PendingCommits(msgspec.Struct, gc=False):
    """The half messages of one queue whose bodies are wanted because they are to be committed."""

    queue_name: str
    decisions: dict[int, list[tuple[PendingDecisions, int, int, int]]]
    """By position, oldest first: (request, place in it, message id, decision). The first is a commit; the others came
    while its body was being read, and are settled after it."""
