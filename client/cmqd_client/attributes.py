"""Attributes of a queue: values that its owner sets, and facts from the server."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from cmqd_client.durations import Duration, to_datetime, to_ms
from cmqd_protocol import messages


class QueueAttributes(TypedDict, total=False):
    """Attributes that can be set; an omitted attribute keeps its value, or has its default in a new queue.

    Durations are seconds or ``timedelta``. The server refuses a value out of range, with the attribute's name.
    """

    polling_wait: Duration
    """Wait of a receive without a wait of its own; 0-30 s, default 0.2."""
    visibility_timeout: Duration
    """Visibility timeout of received messages; 1 s - 12 h, default 30 s."""
    max_message_bytes: int
    """Longest body; 1,024-1,048,576, default 65,536."""
    retention: Duration
    """Life of a message from its send, received or not; 1 min - 15 d, default 4 d."""
    delay: Duration
    """Delay of sends without a delay of their own; 0-3,600 s, default 0."""
    max_backlog: int
    """Limit of messages held (active, in flight, delayed); the server refuses further sends. 1,000,000-100,000,000, the
    default."""
    max_delayed: int
    """Limit of delayed messages; further delayed messages wait in order for a slot. 1-1,000,000, the default."""
    rewind: Duration
    """Time after its send in which ``rewind`` can make a deleted message active again; 0 (the default: never) up to the
    retention."""
    dead_letter_queue: str
    """Queue of the same account for dead letters; "" = none, the default. Needs at least one of the next two
    attributes."""
    dead_letter_max_receives: int
    """Move a message to the dead-letter queue after this many receives; 1-1000, 0 = never."""
    dead_letter_after: Duration
    """Move a message to the dead-letter queue after this time without a delete, received or not; 5 min - 12 h and less
    than the retention, 0 = never."""
    transactional: bool
    """True if the queue takes half messages, see :class:`TransactionProducer`; chosen when the queue is created."""
    first_check: Duration
    """Time from the send of an undecided half message to the first check, the interval doubling from then on up to
    5 min; 1 s - 1 h, default 5 s."""
    max_checks: int
    """Limit of checks of a half message; 1-100, default 15."""


DURATIONS = frozenset(
    {"polling_wait", "visibility_timeout", "retention", "delay", "rewind", "dead_letter_after", "first_check"}
)
"""Attributes that are times: seconds here, ``<name>_ms`` on the wire."""
NUMBERS = frozenset({"max_message_bytes", "max_backlog", "max_delayed", "dead_letter_max_receives", "max_checks"})
OTHERS: Mapping[str, type] = {"dead_letter_queue": str, "transactional": bool}
"""The rest, with their types."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at the time of the request; durations are seconds."""

    name: str
    id: int
    """Changes if the queue is deleted and created again."""
    created: bool
    """True if this call created the queue."""

    polling_wait: float
    visibility_timeout: float
    max_message_bytes: int
    retention: float
    delay: float
    max_backlog: int
    max_delayed: int
    rewind: float
    dead_letter_queue: str
    """Empty = none."""
    dead_letter_max_receives: int
    dead_letter_after: float
    transactional: bool
    first_check: float
    max_checks: int

    active: int
    """Messages that can be received."""
    in_flight: int
    """Messages received, hidden and not deleted."""
    delayed: int
    """Messages that cannot be received yet."""
    half: int
    """Half messages that are neither committed nor rolled back."""
    rewindable: int
    """Deleted messages that ``rewind`` can bring back."""
    dead_letter_sources: list[str]
    """Queues that use this queue as their dead-letter queue, by name."""
    oldest_message_time: datetime | None
    """Time of the send of the oldest message that is active or in flight; None = no message is."""
    create_time: datetime | None
    modify_time: datetime | None
    """Time of the last change of an attribute."""
    region: str
    address: str
    """``host:port`` at which clients reach the queue's server."""

    details: Mapping[str, Any]
    """The server's full reply under its names on the wire, including facts unknown to this version."""
    request_id: int

    def attributes(self) -> QueueAttributes:
        """The attributes that can be set, as arguments for ``create_queue`` and ``set_attributes``."""
        return QueueAttributes(
            polling_wait=self.polling_wait,
            visibility_timeout=self.visibility_timeout,
            max_message_bytes=self.max_message_bytes,
            retention=self.retention,
            delay=self.delay,
            max_backlog=self.max_backlog,
            max_delayed=self.max_delayed,
            rewind=self.rewind,
            dead_letter_queue=self.dead_letter_queue,
            dead_letter_max_receives=self.dead_letter_max_receives,
            dead_letter_after=self.dead_letter_after,
            transactional=self.transactional,
            first_check=self.first_check,
            max_checks=self.max_checks,
        )


def to_wire(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes in wire form.

    Raises:
        TypeError: an attribute is unknown, or a value is of the wrong type.
        ValueError: a duration is not finite.
    """
    wire: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in DURATIONS:
            wire[f"{name}_ms"] = to_ms(value, name)
        elif name in NUMBERS:
            if type(value) is not int:
                raise TypeError(f"{name} must be an int, not {value!r}")
            wire[name] = value
        elif name in OTHERS:
            if type(value) is not OTHERS[name]:
                raise TypeError(f"{name} must be a {OTHERS[name].__name__}, not {value!r}")
            wire[name] = value
        else:
            known = ", ".join(sorted(DURATIONS | NUMBERS | OTHERS.keys()))
            raise TypeError(f"{name!r} is no attribute of a queue; known are {known}")
    return wire


def from_wire(reply: messages.QueueInfo) -> QueueInfo:
    """Convert the reply about a queue."""
    attributes, counts, facts = reply.attributes, reply.counts, reply.facts

    def seconds(name: str) -> float:
        return attributes.get(f"{name}_ms", 0) / 1000

    def moment(name: str) -> datetime | None:
        milliseconds = facts.get(name)
        return to_datetime(milliseconds) if milliseconds else None

    return QueueInfo(
        name=reply.queue,
        id=reply.queue_id,
        created=reply.created,
        polling_wait=seconds("polling_wait"),
        visibility_timeout=seconds("visibility_timeout"),
        max_message_bytes=attributes.get("max_message_bytes", 0),
        retention=seconds("retention"),
        delay=seconds("delay"),
        max_backlog=attributes.get("max_backlog", 0),
        max_delayed=attributes.get("max_delayed", 0),
        rewind=seconds("rewind"),
        dead_letter_queue=attributes.get("dead_letter_queue", ""),
        dead_letter_max_receives=attributes.get("dead_letter_max_receives", 0),
        dead_letter_after=seconds("dead_letter_after"),
        transactional=attributes.get("transactional", False),
        first_check=seconds("first_check"),
        max_checks=attributes.get("max_checks", 0),
        active=counts.get("active", 0),
        in_flight=counts.get("in_flight", 0),
        delayed=counts.get("delayed", 0),
        half=counts.get("half", 0),
        rewindable=counts.get("rewindable", 0),
        dead_letter_sources=list(facts.get("dead_letter_sources") or ()),
        oldest_message_time=moment("oldest_message_ms"),
        create_time=moment("created_ms"),
        modify_time=moment("modified_ms"),
        region=facts.get("region", ""),
        address=facts.get("address", ""),
        details={**attributes, **counts, **facts},
        request_id=reply.request_id,
    )
