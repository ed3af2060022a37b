"""Queues: information about a queue, a rewind and a redrive.

The attributes that an owner can set, with their defaults, are declared in ``cmqd_segment.attributes``; here they travel
as a map by name.

The wire's replies are these structs behind the number of the request (``cmqd_protocol.messages``). A struct takes
keywords only, because msgspec encodes keyword fields behind the fields of a subclass.
"""

from typing import Any

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


class Rewound(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The result of a rewind."""

    messages: int
    """Number of messages that are active again."""
    time_ms: int
    """Time of the rewind: the requested time, or the nearest time within the rewind window."""
    clamped: bool
    """True if the requested time lies before the rewind window."""


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
