"""Queues: create, list, configure, clear and delete; rewinds and redrives."""

from typing import Annotated

from msgspec import Meta

from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import Attributes, Unsigned
from cmqd_types import queues


class CreateQueue(Request, frozen=True, tag=48):
    """Make a queue; an existing name is an error. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class EnsureQueue(Request, frozen=True, tag=49):
    """Make a queue, or find one that agrees in every attribute named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class ListQueues(Request, frozen=True, tag=50):
    """Queues whose names contain ``search``, by name. Answered ``QueueList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetQueueAttributes(Request, frozen=True, tag=51):
    """Attributes, counts and facts. Answered ``QueueInfo``."""

    queue: str


class SetQueueAttributes(Request, frozen=True, tag=52):
    """Change the attributes that are named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class DeleteQueue(Request, frozen=True, tag=53):
    """Delete a queue with its messages. Answered ``Done``."""

    queue: str


class ClearQueue(Request, frozen=True, tag=54):
    """Drop every message sent so far, in whatever state. Answered ``Done``."""

    queue: str


class RewindQueue(Request, frozen=True, tag=55):
    """Make deleted messages active again, those sent at or after ``time_ms``. Answered ``Rewound``."""

    queue: str
    time_ms: Unsigned
    strict: bool = False
    """Refuse a time before the window instead of taking the nearest one."""
    ago_ms: Unsigned | None = None
    """In place of ``time_ms``: how long ago by the server's clock. Needs feature ``rewind_ago``."""


class ListDeadLetterSources(Request, frozen=True, tag=56):
    """The queues whose dead letters go to this one. Answered ``QueueList``."""

    queue: str


class StartRedrive(Request, frozen=True, tag=57):
    """Send what is in a queue now back to where it came from, or to ``target``. Answered ``RedriveStatus``."""

    queue: str
    target: str | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """None = as fast as it goes."""


class CancelRedrive(Request, frozen=True, tag=58):
    """Stop; what was moved stays moved. Answered ``RedriveStatus``."""

    queue: str


class GetRedrive(Request, frozen=True, tag=59):
    """How far the redrive under way is, or the last one came. Answered ``RedriveStatus``."""

    queue: str


class QueueInfo(queues.QueueInfo, WireMessage, frozen=True, tag=197):
    """Attributes, counts and facts of a queue; ``created`` is for ``create_queue`` and ``ensure_queue``."""

    request_id: int


class QueueList(Reply, frozen=True, tag=198):
    """``total`` that match, and the wanted part as (queue id, name)."""

    total: int
    queues: list[tuple[int, str]]


class Rewound(queues.Rewound, WireMessage, frozen=True, tag=202):
    """The result of a rewind."""

    request_id: int


class RedriveStatus(queues.RedriveStatus, WireMessage, frozen=True, tag=203):
    """The progress of a redrive, running or ended."""

    request_id: int
