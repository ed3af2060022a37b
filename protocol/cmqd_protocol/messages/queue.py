"""Queues: create, list, configure, clear and delete; rewinds and redrives."""

from typing import Annotated

from msgspec import Meta

from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import Attributes, Unsigned
from cmqd_types import queues


class CreateQueue(Request, frozen=True, tag=48):
    """Create a queue; an existing name is an error. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class EnsureQueue(Request, frozen=True, tag=49):
    """Create a queue, or confirm that the queue has the attributes named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class ListQueues(Request, frozen=True, tag=50):
    """List queues with ``search`` in the name, by name. Answered ``QueueList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetQueueAttributes(Request, frozen=True, tag=51):
    """Read attributes, counts and facts of a queue. Answered ``QueueInfo``."""

    queue: str


class SetQueueAttributes(Request, frozen=True, tag=52):
    """Change the attributes named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class DeleteQueue(Request, frozen=True, tag=53):
    """Delete a queue with its messages. Answered ``Done``."""

    queue: str


class ClearQueue(Request, frozen=True, tag=54):
    """Drop all messages sent so far, in any state. Answered ``Done``."""

    queue: str


class RewindQueue(Request, frozen=True, tag=55):
    """Make deleted messages that were sent at or after ``time_ms`` active again. Answered ``Rewound``."""

    queue: str
    time_ms: Unsigned
    strict: bool = False
    """Refuse a time before the rewind window, instead of a rewind to the start of the window."""
    ago_ms: Unsigned | None = None
    """Time before now by the server's clock, in place of ``time_ms``. Needs feature ``rewind_ago``."""


class ListDeadLetterSources(Request, frozen=True, tag=56):
    """List the queues that use this queue as dead-letter queue. Answered ``QueueList``."""

    queue: str


class StartRedrive(Request, frozen=True, tag=57):
    """Move the messages of a queue to their origin queues, or to ``target``. Answered ``RedriveStatus``."""

    queue: str
    target: str | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """None = no limit."""


class CancelRedrive(Request, frozen=True, tag=58):
    """Stop a redrive. Messages already moved stay moved. Answered ``RedriveStatus``."""

    queue: str


class GetRedrive(Request, frozen=True, tag=59):
    """Read the progress of the current or last redrive. Answered ``RedriveStatus``."""

    queue: str


class QueueInfo(queues.QueueInfo, WireMessage, frozen=True, tag=197):
    """Attributes, counts and facts of a queue; ``created`` is set by create and ensure."""

    request_id: int


class QueueList(Reply, frozen=True, tag=198):
    """A page of queues as (queue id, name), and the ``total`` number of matching queues."""

    total: int
    queues: list[tuple[int, str]]


class Rewound(queues.Rewound, WireMessage, frozen=True, tag=202):
    """The result of a rewind."""

    request_id: int


class RedriveStatus(queues.RedriveStatus, WireMessage, frozen=True, tag=203):
    """The progress of a redrive, running or ended."""

    request_id: int
