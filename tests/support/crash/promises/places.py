"""The places of messages: the way of every body through the queues, as far as deliveries show the way.

A message that dies or is redriven gets a new id in another queue, and names its origin; so its places form a
chain, and some links are known from the origin of the next place alone. A message has several lives in a place if
rewinds brought it back after a delete. Leases and receive counts belong to a life.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from support.crash.promises.history import Check, Delete, Delivery, History, Origin, Receive, Rewind, Send
from support.crash.promises.timeline import Timeline

MessageKey: TypeAlias = tuple[str, bytes]
"""Key of a message: (queue, body) for a copy of a published message; ("", body) for a sent message."""


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery, with its receive."""

    receive: Receive
    delivery: Delivery

    @property
    def from_ms(self) -> int:
        """Server time at the beginning of the lease."""
        return self.delivery.next_visible_ms - self.receive.visibility_ms

    @property
    def order(self) -> tuple[int, int]:
        return self.from_ms, self.receive.called_ns


@dataclass(slots=True, eq=False)
class Message:
    """A body of a logical send, with all attempts; or a copy of a published body for a queue."""

    queue: str
    body: bytes
    attempts: list[Send] = field(default_factory=list[Send])
    ids: set[int] = field(default_factory=set[int])
    """Message ids from sends: a single id, if all is well."""
    places: "list[Place]" = field(default_factory=lambda: list[Place]())
    """Places in the order of time."""
    checks: list[Check] = field(default_factory=list[Check])
    """Of a half message."""
    is_copy: bool = False
    """True for a published body; its copy may come to the queue long after the publish, if refused at first."""

    @property
    def received(self) -> list[Received]:
        """In the order of the leases."""
        return sorted((one for place in self.places for one in place.received), key=lambda received: received.order)

    @property
    def is_half(self) -> bool:
        return self.attempts[0].half

    @property
    def acknowledged(self) -> bool:
        return any(attempt.done for attempt in self.attempts)

    @property
    def stored(self) -> bool:
        """Acknowledged, or seen."""
        return self.acknowledged or bool(self.places) or bool(self.checks)

    @property
    def called_ns(self) -> int:
        return min(attempt.called_ns for attempt in self.attempts)

    @property
    def answered_ns(self) -> int:
        """End of the last attempt that may have stored the body."""
        return max(attempt.answered_ns for attempt in self.attempts)

    @property
    def headers(self) -> dict[str, str] | None:
        first = self.attempts[0]
        sent = first.headers[first.bodies.index(self.body)] if first.headers else None
        return dict(sent) if sent else None

    def is_repeated_by(self, send: Send) -> bool:
        """True if the broker must recognize a further send of this body as a repeat."""
        first = self.attempts[0]
        if (send.queue, send.half) != (first.queue, first.half):
            return False
        if send.sequence and (first.session, first.sequence) == (send.session, send.sequence):
            return True
        if not send.dedup_ids or not first.dedup_ids:
            return False
        return send.dedup_ids[send.bodies.index(self.body)] == first.dedup_ids[first.bodies.index(self.body)]

    def __str__(self) -> str:
        ids = ", ".join(f"{number:#x}" for number in sorted(self.ids)) or "no id"
        return f"message {self.body[:24]!r} ({ids}) of {self.queue}"


@dataclass(slots=True, eq=False)
class Life:
    """A message in a place, from its arrival (send, commit, move, rewind) until its delete or move."""

    place: "Place"
    rewind: Rewind | None = None
    """The rewind that brought the message back; None in its first life."""
    received: list[Received] = field(default_factory=list[Received])
    """In the order of the leases."""

    @property
    def message(self) -> Message:
        return self.place.message

    @property
    def moved_to(self) -> "Place | None":
        """The next place after this life."""
        return self.place.next if self is self.place.lives[-1] else None

    def __str__(self) -> str:
        return str(self.place)


@dataclass(slots=True, eq=False)
class Place:
    """A message in a queue, under an id.

    A place may be known from the ``origin`` of the next place alone: then ``received`` is empty, and its own origin is
    unknown.
    """

    message: Message
    queue: str
    message_id: int
    enqueue_ms: int
    origin: Origin | None = None
    received: list[Received] = field(default_factory=list[Received])
    lives: list[Life] = field(default_factory=list[Life])
    next: "Place | None" = None
    """The place with this place as its origin."""
    named_twice_by: "list[Place]" = field(default_factory=lambda: list[Place]())
    """Further places with this origin, which is a fault."""

    @property
    def is_rejected(self) -> bool:
        """True if a consumer rejected the message into this place."""
        return self.origin is not None and self.origin.reason == "rejected"

    @property
    def is_first(self) -> bool:
        """True if a send or a commit stored the message here, and not a move."""
        return self.queue == self.message.queue and self.message_id in self.message.ids

    def __str__(self) -> str:
        return f"{self.message} as {self.message_id:#x} in {self.queue}"

    def split_into_lives(self, deletes: "Callable[[Received], list[Delete]]", rewinds: Timeline[Rewind]) -> None:
        """Find the rewinds that brought the message back, at most once per rewind.

        A delivery belongs to a new life if the handle before may have deleted the message, and the broker reports a
        later first receive. Without a rewind as the explanation, the delivery stays in the old life, and the rules
        object.
        """
        used = 0

        def brought_back(former: Received, seen_ns: int) -> Rewind | None:
            nonlocal used
            deleted_ns = min((delete.called_ns for delete in deletes(former)), default=None)
            for index in rewinds.overlapping(deleted_ns, seen_ns) if deleted_ns is not None else ():
                rewind = rewinds.operations[index]
                if index >= used and rewind.time_ms <= self.enqueue_ms:
                    used = index + 1
                    return rewind
            return None

        life = Life(self)
        self.lives.append(life)
        for received in self.received:
            former = life.received[-1] if life.received else None
            if former is not None and received.delivery.first_receive_ms > former.from_ms:
                rewind = brought_back(former, received.receive.answered_ns)
                if rewind is not None:
                    life = Life(self, rewind)
                    self.lives.append(life)
            life.received.append(received)
        if self.next is not None and self.next.origin is not None and life.received:
            # The message came back, was not received again, and was moved.
            former, seen = life.received[-1], self.next.received[0]
            if any(delete.done for delete in deletes(former)):
                rewind = brought_back(former, seen.receive.answered_ns)
                if rewind is not None:
                    self.lives.append(Life(self, rewind))


def arrange(history: History, messages: dict[MessageKey, Message]) -> list[Received]:
    """Give every message its places; return the deliveries without a message."""
    strangers: list[Received] = []
    places: dict[tuple[str, int, bytes], Place] = {}
    for receive in history.of_kind(Receive):
        for delivery in receive.deliveries:
            received = Received(receive, delivery)
            message = messages.get(("", delivery.body)) or messages.get((receive.queue, delivery.body))
            if message is None or (message.queue != receive.queue and delivery.origin is None):
                strangers.append(received)
                continue
            key = receive.queue, delivery.message_id, delivery.body
            place = places.get(key)
            if place is None:
                place = Place(message, receive.queue, delivery.message_id, delivery.enqueue_ms, delivery.origin)
                places[key] = place
                message.places.append(place)
                if delivery.origin is None:
                    message.ids.add(delivery.message_id)
            place.received.append(received)
    for place in list(places.values()):
        place.received.sort(key=lambda received: received.order)
        origin = place.origin
        if origin is None:
            continue
        key = origin.queue, origin.message_id, place.message.body
        former = places.get(key)
        if former is None:
            former = places[key] = Place(place.message, origin.queue, origin.message_id, origin.enqueue_ms)
            place.message.places.append(former)
        if former.next is None:
            former.next = place
        else:
            former.named_twice_by.append(place)
    for message in messages.values():
        message.places.sort(key=lambda place: (place.enqueue_ms, place.message_id))
        if message.places and not message.ids and message.places[0].queue == message.queue:
            # No reply names the id, but the origin of the next place does.
            message.ids.add(message.places[0].message_id)
    return strangers
