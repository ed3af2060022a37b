"""Places of a message in its life: positions of queues and topics, with the state that the records prove. Pure."""

from typing import Final

from cmqd_types.actors import Actor
from cmqd_types.histories import LifeKind

LIVE: Final = ("active", "delayed", "in_flight", "half")
NO_LEASE: Final = -1


class Place:
    """The message at a position of a queue."""

    __slots__ = (
        "actor",
        "can_return",
        "is_known",
        "lease",
        "message_id",
        "position",
        "queue_id",
        "receive_count",
        "redriven_by",
        "since_ms",
        "state",
        "until_ms",
    )

    def __init__(self, queue_id: int, position: int, message_id: int, state: str, since_ms: int, until_ms: int) -> None:
        self.queue_id = queue_id
        self.position = position
        self.message_id = message_id
        self.state = state
        """One of ``LIVE``, or the kind of the event that took the message out of the queue."""
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.lease = NO_LEASE
        self.actor: Actor | None = None
        """The client of the receive under way."""
        self.redriven_by: Actor | None = None
        """The key that started the redrive of the queue."""
        self.receive_count: int | None = 0
        """None: rows are missing, and may have held receives."""
        self.is_known = True
        """False: rows are missing behind the record that set the state."""
        self.can_return = False
        """True for a deleted message that a rewind may bring back."""

    @property
    def is_live(self) -> bool:
        """True if the message was in the queue at the last record that named it."""
        return self.state in LIVE

    def become(self, state: str, time_ms: int, until_ms: int = 0, lease: int = NO_LEASE) -> None:
        """Take a state that a record proves."""
        self.state, self.since_ms, self.until_ms, self.lease = state, time_ms, until_ms, lease
        self.is_known = True
        self.can_return = state == LifeKind.DELETED


class Publish:
    """The message at a position of a topic."""

    __slots__ = ("is_known", "message_id", "position", "topic", "waiting")

    def __init__(self, topic: str, position: int, message_id: int, waiting: set[int]) -> None:
        self.topic = topic
        self.position = position
        self.message_id = message_id
        self.waiting = waiting
        """Ids of the subscriptions that wait for the message."""
        self.is_known = True
