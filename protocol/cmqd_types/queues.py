"""Queues: information about a queue, lists of queues, rewinds and redrives.

The attributes that an owner can set, with their defaults, are declared in ``cmqd_types.attributes``; here they travel
as a map by name.

The wire's replies are these structs behind the number of the request (``cmqd_protocol.messages``). A struct takes
keywords only, because msgspec encodes keyword fields behind the fields of a subclass.
"""

from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec


class QueueInfo(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Attributes, counts and facts of a queue, by name."""

    queue: str
    queue_id: int
    attributes: dict[str, Any]
    counts: dict[str, int]
    facts: dict[str, Any]
    created: bool = False
    """True if the request created the queue."""


class QueueSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue in a list: its messages by state, its age, its role and its traffic."""

    queue: str
    queue_id: int
    active: int
    """Messages that can be received; messages that are being moved to another queue are included."""
    in_flight: int
    delayed: int
    half: int
    rewindable: int
    damaged: int
    waiting_receives: int
    """Receives that wait for a message."""
    oldest_message_ms: int | None
    """Time at which the oldest message that consumers can receive or hold was sent, exact to a grain (100 ms and up);
    None = there is none."""
    created_ms: int
    transactional: bool
    dead_letter_queue: str
    """Name of its dead-letter queue; empty = none."""
    is_dead_letter_queue: bool
    """True if the queue is the dead-letter queue of other queues."""
    arrived: int
    """Messages that came since the queue was made: by sends, publishes, as dead letters and by redrives. A rate is the
    difference of two readings."""
    deleted: int
    """Messages that consumers deleted since the queue was made."""
    dead_lettered: int
    """Messages that left for the dead-letter queue since the queue was made."""


QueueSort: TypeAlias = Literal[
    "name",
    "active",
    "in_flight",
    "delayed",
    "half",
    "rewindable",
    "damaged",
    "waiting_receives",
    "age",
    "created",
    "arrived",
    "deleted",
    "dead_lettered",
]
"""Order of a list of queues. ``age`` is the age of the oldest message that consumers can receive or hold; the other
orders have the names of the fields of :class:`QueueSummary`."""
QueueSelection: TypeAlias = Literal[
    "all", "with_messages", "dead_letter_queues", "with_dead_letter_queue", "transactional"
]
"""Kind of queues that a list is limited to."""
QUEUE_SORTS: Final[tuple[str, ...]] = get_args(QueueSort)
QUEUE_SELECTIONS: Final[tuple[str, ...]] = get_args(QueueSelection)


class Rewound(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The result of a rewind."""

    messages: int
    """Number of messages that are active again."""
    time_ms: int
    """Time of the rewind: the requested time, or the nearest time within the rewind window."""
    clamped: bool
    """True if the requested time lies before the rewind window."""


class RewindPreview(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The result that a rewind would have at the time of the request."""

    messages: int
    """Number of messages that would be active again."""
    time_ms: int
    """Time of the rewind: the requested time, or the nearest time within the rewind window."""
    clamped: bool
    """True if the requested time lies before the rewind window."""
    earliest_ms: int
    """Start of the rewind window."""
    latest_ms: int
    """Latest time to which the queue can be rewound now."""
    oldest_ms: int | None
    """Time at or shortly before the send of the oldest message that can come back, not before ``earliest_ms``; None =
    no message can come back."""


class RedriveStatus(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The progress of a redrive, running or ended."""

    queue: str
    target: str | None
    """Queue that receives the messages; None = each message returns to the queue of its origin."""
    max_per_second: int | None
    """None = no limit."""
    started_ms: int
    ended_ms: int | None
    """None = the redrive is running."""
    reason: str
    """``done`` or ``cancelled`` after the end; before it the cause of a pause (``target full: NAME``), or empty."""
    moved: int
    remaining: int
    """Messages that the redrive has not examined yet, in any state."""
    missing_origins: dict[str, int]
    """Messages that stay because the queue of their origin does not exist or refuses them, by name of that queue.
    ``(no origin)`` counts messages that were sent to the dead-letter queue directly."""
