"""Schedules: information about a schedule.

``ScheduleInfo`` takes keywords only, for the reason given in ``queues``.
"""

from typing import Any

import msgspec

from cmqd_types.messages import Headers


class ScheduleInfo(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Attributes, message, counts and facts of a schedule, by name."""

    schedule: str
    schedule_id: int
    attributes: dict[str, Any]
    """``queue``, ``cron``, ``zone``, ``paused``."""
    body: bytes
    headers: Headers | None
    counts: dict[str, int]
    """``fired``, ``missed``."""
    facts: dict[str, Any]
    """``created_ms``, ``modified_ms``, ``next_ms``, ``last_fired_ms``, ``last_message_id``, ``last_error``,
    ``last_error_ms``."""
    created: bool = False
    """True if the request created the schedule."""


class ScheduleSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A schedule in a list."""

    name: str
    queue: str
    cron: str
    zone: str
    paused: bool
    next_ms: int | None
    """Time of the next message; None = paused, or no time is left."""
    missed: int
    """Times at which the queue could not take the message."""
    last_error: str | None
