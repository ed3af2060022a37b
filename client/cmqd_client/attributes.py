"""Attributes of a queue: values that its owner sets, and facts from the server."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, cast, get_type_hints

import msgspec

from cmqd_client.durations import Duration, to_ms
from cmqd_client.infos import info_fields
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
    """Delay of sends without a delay of their own; 0-3,600 s and less than the retention, default 0."""
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
    auto_delete_after: Duration
    """Delete the queue after this time without use; 1 min - 15 d, 0 = never, the default. Receives, sends, copies and
    changes of leases and attributes are uses, and so is each message in flight or delayed. Time in which the server is
    down does not count. Not for a transactional queue, a dead-letter queue or a queue that has one."""
    auto_delete_only_empty: bool
    """True (the default) if a queue with messages stays, however long it is unused; False if they go with it."""


_TYPES: Mapping[str, Any] = get_type_hints(QueueAttributes)
"""Type of each attribute. A ``Duration`` is seconds here and ``<name>_ms`` on the wire."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at the time of the request; durations are seconds."""

    name: str
    id: int
    """Changes if the queue is deleted and created again."""
    created: bool
    """True if this call created the queue."""

    polling_wait: float = 0.0
    visibility_timeout: float = 0.0
    max_message_bytes: int = 0
    retention: float = 0.0
    delay: float = 0.0
    max_backlog: int = 0
    max_delayed: int = 0
    rewind: float = 0.0
    dead_letter_queue: str = ""
    """Empty = none."""
    dead_letter_max_receives: int = 0
    dead_letter_after: float = 0.0
    transactional: bool = False
    first_check: float = 0.0
    max_checks: int = 0
    auto_delete_after: float = 0.0
    auto_delete_only_empty: bool = True

    active: int = 0
    """Messages that can be received."""
    in_flight: int = 0
    """Messages received, hidden and not deleted."""
    delayed: int = 0
    """Messages that cannot be received yet."""
    half: int = 0
    """Half messages that are neither committed nor rolled back."""
    rewindable: int = 0
    """Deleted messages that ``rewind`` can bring back."""
    dead_letter_sources: list[str] = []
    """Queues that use this queue as their dead-letter queue, by name."""
    oldest_message_time: datetime | None = None
    """Time of the send of the oldest message that is active or in flight; None = no message is."""
    create_time: datetime | None = None
    modify_time: datetime | None = None
    """Time of the last change of an attribute."""
    region: str = ""
    address: str = ""
    """``host:port`` at which clients reach the queue's server."""

    details: Mapping[str, Any]
    """The server's full reply under its names on the wire, including facts unknown to this version."""
    request_id: int

    def attributes(self) -> QueueAttributes:
        """The attributes that can be set, as arguments for ``create_queue`` and ``set_attributes``.

        An attribute that the server does not know is left out; an older server would refuse it.
        """
        known = [name for name, kind in _TYPES.items() if (f"{name}_ms" if kind == Duration else name) in self.details]
        return cast("QueueAttributes", {name: getattr(self, name) for name in known})


def check_names(given: Mapping[str, Any], kind: type, noun: str) -> None:
    """Check that all given attributes are fields of ``kind``.

    Raises:
        TypeError: an attribute is unknown.
    """
    known: Mapping[str, Any] = kind.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"a {noun} has no attribute {name!r}; its attributes are {', '.join(sorted(known))}")


def to_wire(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes in wire form.

    Raises:
        TypeError: an attribute is unknown, or a value is of the wrong type.
        ValueError: a duration is not finite.
    """
    check_names(attributes, QueueAttributes, "queue")
    wire: dict[str, Any] = {}
    for name, value in attributes.items():
        kind = _TYPES[name]
        if kind == Duration:
            wire[f"{name}_ms"] = to_ms(value, name)
        elif type(value) is kind:
            wire[name] = value
        else:
            raise TypeError(f"{name} must be {'an' if kind is int else 'a'} {kind.__name__}, not {value!r}")
    return wire


def from_wire(reply: messages.QueueInfo) -> QueueInfo:
    """Convert the reply about a queue."""
    return QueueInfo(name=reply.queue, id=reply.queue_id, **info_fields(QueueInfo, reply))
