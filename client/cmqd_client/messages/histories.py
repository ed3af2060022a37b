"""Histories: the life of a message as events, and the places where the message is."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from cmqd_client.messages.message_ids import MessageId
from cmqd_client.replies.conversions import converted
from cmqd_protocol import messages as wire
from cmqd_reading.life_texts import life_text
from cmqd_types import histories
from cmqd_types.histories import LifeKind
from cmqd_types.messages import printed_id


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the life of a message."""

    time: datetime
    kind: LifeKind | str
    """A plain string only if the server is newer than this client."""
    description: str = ""
    """The event in words, without its time and queue."""
    queue: str
    """The queue, or the topic of a publish and of its deliveries; empty if the name is not known."""
    id: MessageId | None
    """A message that moves gets another id in each queue. None for rows that are missing."""
    until_time: datetime | None
    """End of the delay or lease; time of the next check or of the next attempt of a delivery."""
    size: int
    """Bytes of the body, of a send or publish."""
    receive_count: int
    """Receives up to this event: of a receive, a dead letter or a redriven message. Of a delivery: failed attempts."""
    reason: str
    """Why a message became a dead letter, why a delivery was dropped, or why a queue was deleted: a word."""
    text: str
    """Words of a consumer that rejected the message, or the error of a delivery."""
    from_queue: str
    """The former queue of a moved message, or the topic of a copy."""
    from_id: MessageId | None
    """The former id of a moved message, or the id of the published message."""
    subscription: str
    """Of a copy or delivery; empty if the name is not known."""
    schedule: str
    """The schedule that sent the message."""
    client_name: str = ""
    """Name of the client, its own word; empty if not known or not given. Of a lease that ended: the client that had
    received the message."""
    client_key: str = ""
    """Id of the client's key; empty if not known: an older server wrote the row, or the event is the server's own."""
    client_host: str = ""
    """Address of the client's machine; empty if not known, and for keys with restrictions."""
    client_stated_by: str = ""
    """Address of the peer that stated the host, such as a gateway, without proof; empty if the server saw the host."""
    counted: bool
    """False: a release that takes the receive back."""
    certain: bool
    """False: the event happened unless the message had left the queue in rows that are missing."""
    lsn: int
    """Row of the log; 0 = the row is not readable, and a later row tells of the event."""
    first_lsn: int
    """Of rows that are missing: the first; else 0."""
    last_lsn: int
    """Of rows that are missing: the last; else 0."""


class HistoryPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in which the message was, and its state there as of the last row that was read."""

    queue: str
    id: MessageId
    state: str
    """``active``, ``delayed``, ``in_flight``, ``half``, or the kind of the event that took the message out of the
    queue."""
    since_time: datetime
    until_time: datetime | None
    """End of the delay or lease, as it was set."""
    certain: bool
    """False: missing rows come after the event that set the state."""


class MessageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The life of a message, as far as the readable rows of the log tell it."""

    id: MessageId
    events: list[HistoryEvent]
    """In the order of the log."""
    places: list[HistoryPlace]
    """Every queue that the message was in."""
    last_lsn: int
    """Last row of the log that was read."""
    last_time: datetime
    """Time of that row."""
    left_out: int
    """Events in the middle that were left out; more than 500 are not told."""
    life: histories.MessageHistory
    """The same in the form of the log, as ``cmq history --path`` reads it."""
    request_id: int

    def __iter__(self) -> Iterator[HistoryEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)


def message_history(reply: wire.MessageHistory) -> MessageHistory:
    """Convert the reply about the life of a message."""
    events = [_event(event) for event in reply.events]
    fields = {name: getattr(reply, name) for name in histories.MessageHistory.__struct_fields__}
    return converted(MessageHistory, reply, events=events, life=histories.MessageHistory(**fields))


def _event(event: histories.LifeEvent) -> HistoryEvent:
    actor = event.actor
    return converted(
        HistoryEvent,
        event,
        client_name="" if actor is None else actor.name,
        client_key="" if actor is None else actor.secret_id,
        client_host="" if actor is None else actor.host,
        client_stated_by="" if actor is None else actor.stated_by,
        description=life_text(event),
        id=printed_id(event.message_id) if event.message_id else None,
        from_id=printed_id(event.from_id) if event.from_id else None,
    )
