"""Histories: the life of a message as events, and the places where the message is now.

The structs encode to msgpack arrays, so the order of the fields is part of the wire format. Fields are only ever
appended, with a default.
"""

from enum import StrEnum

import msgspec

from cmqd_types.actors import Actor


class LifeKind(StrEnum):
    """Kind of an event in the life of a message."""

    SENT = "sent"
    HALF = "half"
    """A half message was sent; it waits for the decision of its producer."""
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    CHECKED = "checked"
    """A producer was asked for the decision."""
    UNDECIDED = "undecided"
    """A producer answered that the half message is not decided yet."""
    PUBLISHED = "published"
    COPIED = "copied"
    """A queue has a copy of the published message."""
    DELIVERED = "delivered"
    """A subscriber has the published message."""
    DELIVERY_FAILED = "delivery_failed"
    DELIVERY_DROPPED = "delivery_dropped"
    ACTIVATED = "activated"
    """The delay ended."""
    RECEIVED = "received"
    LEASE_CHANGED = "lease_changed"
    LEASE_ENDED = "lease_ended"
    """The visibility timeout passed without an answer of the consumer."""
    RELEASED = "released"
    DELETED = "deleted"
    REWOUND = "rewound"
    DEAD_LETTERED = "dead_lettered"
    REDRIVEN = "redriven"
    EXPIRED = "expired"
    CLEARED = "cleared"
    QUEUE_DELETED = "queue_deleted"
    ROWS_MISSING = "rows_missing"
    """Rows of the log are not readable any more; events in these rows are not known."""


class LifeEvent(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An event in the life of a message."""

    time_ms: int
    kind: str
    """One of ``LifeKind``; a newer server may have more."""
    lsn: int
    """Row of the log; 0 = the row is not readable, and a later row tells of the event."""
    queue: str = ""
    """The queue, or the topic of a publish and of its deliveries; empty if the name is not known."""
    message_id: int = 0
    """A message that moves gets another id in each queue."""
    until_ms: int = 0
    """End of the delay or lease; time of the next check or of the next attempt of a delivery. 0 = none."""
    size: int = 0
    """Bytes of the body, of a send or publish."""
    receive_count: int = 0
    """Receives up to this event: of a receive, a dead letter or a redriven message. Of a delivery: failed attempts."""
    reason: str = ""
    """Of a dead letter ``receives``, ``age`` or ``rejected``; of a dropped delivery ``retries``, ``damaged``,
    ``operator``, ``expired`` or ``unsubscribed``; ``unused`` of a queue that was deleted because of that."""
    text: str = ""
    """Words of a consumer that rejected the message, or the error of a delivery."""
    from_queue: str = ""
    """The former queue of a moved message, or the topic of a copy."""
    from_id: int = 0
    """The former id of a moved message, or the id of the published message."""
    subscription: str = ""
    """Name of the subscription, of a copy or delivery; empty if the name is not known."""
    copies: int = 0
    """Of a publish: the number of queues that got a copy at once."""
    schedule: str = ""
    """The schedule that sent the message."""
    replayed_from: str = ""
    """Of a replayed message: its source, as the replay wrote it (queue/id/time). The source may be in another log."""
    sent_ms: int = 0
    """Of an event that ends the life in a queue: the time of the first send, publish or copy."""
    is_counted: bool = True
    """False: a release that takes the receive back."""
    is_certain: bool = True
    """False: the event happened unless the message had left the queue in rows that are missing."""
    first_lsn: int = 0
    """With ``rows_missing``: the first of the missing rows."""
    last_lsn: int = 0
    """With ``rows_missing``: the last of the missing rows; rows between the two may be readable."""
    trace_parent: str = ""
    """Of a send or publish: its header ``traceparent``, if the header has the form of W3C Trace Context."""
    actor: Actor | None = None
    """The client of the event; of a lease that ended, the client that had received the message. None = not known: an
    older version wrote the row, or the broker made the event itself."""


class LifePlace(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A queue in which the message was, and its state there as of the last row that was read."""

    queue: str
    message_id: int
    state: str
    """``active``, ``delayed``, ``in_flight``, ``half``, or the kind of the event that took the message out of the
    queue."""
    since_ms: int
    until_ms: int = 0
    """End of the delay or lease, as it was set."""
    is_certain: bool = True
    """False: missing rows come after the event that set the state."""


class FoundMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A message that a search by dedup id or header found."""

    message_id: int
    """The id of its send or publish."""
    source: str
    """The queue or topic to which the message was sent."""
    sent_ms: int
    lsn: int
    """Row of the log that stored the message."""


class MessageHistory(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The life of a message."""

    message_id: int
    events: list[LifeEvent]
    places: list[LifePlace]
    last_lsn: int
    """Last row of the log that was read."""
    last_ms: int
    """Time of that row."""
    left_out: int = 0
    """Events that were left out in the middle, because a history has a limit."""
