"""Records of queues in the life of a message: a function for each kind, with a place that the record may name. Pure."""

from collections.abc import Callable
from typing import Any, Final

from cmqd_reading.births import index_in
from cmqd_reading.life_events import LifeNotes
from cmqd_reading.places import Place
from cmqd_segment.records import (
    LeasesEnded,
    MessagesActivated,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesExpired,
    MessagesMoved,
    MessagesReceived,
    MessagesReleased,
    QueueAttributesSet,
    QueueCleared,
    QueueDeleted,
    QueueRewound,
    RedriveStarted,
    TransactionsChecked,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
)
from cmqd_types.actors import Actor
from cmqd_types.histories import LifeKind

# ---------------------------------------------------------------- leases


def _received(notes: LifeNotes, record: MessagesReceived, place: Place) -> None:
    index = index_in(record.positions, place.position)
    if index < 0:
        return
    if place.receive_count is not None:
        place.receive_count += 1
    actor = place.actor = notes.actor(record.actors, index)
    fields = {"until_ms": record.deadline_ms, "receive_count": place.receive_count or 0, "actor": actor}
    notes.note_at(place, LifeKind.RECEIVED, record.received_ms, **fields)
    place.become("in_flight", record.received_ms, record.deadline_ms, record.first_lease + index)


def _lease_changed(notes: LifeNotes, record: VisibilityChanged, place: Place) -> None:
    index = index_in(record.leases, place.lease)
    if index >= 0:
        place.until_ms = record.deadline_ms
        actor = notes.actor(record.actors, index)
        notes.note_at(place, LifeKind.LEASE_CHANGED, notes.time_ms, until_ms=record.deadline_ms, actor=actor)


def _lease_ended(notes: LifeNotes, record: LeasesEnded, place: Place) -> None:
    if index_in(record.leases, place.lease) >= 0:
        notes.note_at(place, LifeKind.LEASE_ENDED, notes.time_ms, actor=place.actor)
        place.become("active", notes.time_ms)


def _released(notes: LifeNotes, record: MessagesReleased, place: Place) -> None:
    index = index_in(record.leases, place.lease)
    if index >= 0:
        if not record.counted and place.receive_count:
            place.receive_count -= 1
        actor = notes.actor(record.actors, index)
        notes.note_at(place, LifeKind.RELEASED, notes.time_ms, is_counted=record.counted, actor=actor)
        place.become("active", notes.time_ms)


# ---------------------------------------------------------------- ends and returns


def _activated(notes: LifeNotes, record: MessagesActivated, place: Place) -> None:
    if index_in(record.positions, place.position) >= 0:
        time_ms = record.activated_ms or notes.time_ms
        notes.note_at(place, LifeKind.ACTIVATED, time_ms)
        place.become("active", time_ms)


def _deleted(notes: LifeNotes, record: MessagesDeleted, place: Place) -> None:
    index = index_in(record.positions, place.position)
    if index >= 0:
        _leave(notes, place, LifeKind.DELETED, record.deleted_ms, actor=notes.actor(record.actors, index))


def _moved(notes: LifeNotes, record: MessagesMoved | MessagesDeadLettered, place: Place) -> None:
    # The event is noted with the store in the other queue, which has the reason and is in the same row.
    if index_in(record.positions, place.position) >= 0:
        is_redrive = isinstance(record, MessagesMoved) and record.redriven
        place.become(LifeKind.REDRIVEN if is_redrive else LifeKind.DEAD_LETTERED, notes.time_ms)


def _decided(notes: LifeNotes, record: TransactionsEnded, place: Place) -> None:
    index = index_in(record.positions, place.position)
    if index < 0:
        return
    if record.committed:
        # The message is stored anew in the same row.
        place.become(LifeKind.COMMITTED, record.ended_ms)
    else:
        _leave(notes, place, LifeKind.ROLLED_BACK, record.ended_ms, actor=notes.actor(record.actors, index))


def _checked(notes: LifeNotes, record: TransactionsChecked, place: Place) -> None:
    index = index_in(record.positions, place.position)
    if index >= 0:
        notes.note_at(place, LifeKind.CHECKED, record.checked_ms, until_ms=record.next_check_ms[index])


def _undecided(notes: LifeNotes, record: TransactionsUndecided, place: Place) -> None:
    index = index_in(record.positions, place.position)
    if index >= 0:
        actor = notes.actor(record.actors, index)
        notes.note_at(place, LifeKind.UNDECIDED, record.answered_ms, actor=actor)


def _cut(notes: LifeNotes, record: QueueCleared | MessagesExpired, place: Place) -> None:
    if place.position < record.floor:
        if isinstance(record, QueueCleared):
            _end(notes, place, LifeKind.CLEARED, actor=notes.administrator("clear_queue"))
        else:
            _end(notes, place, LifeKind.EXPIRED)


def _queue_deleted(notes: LifeNotes, record: QueueDeleted, place: Place) -> None:
    actor = None if record.reason else notes.administrator("delete_queue")
    _end(notes, place, LifeKind.QUEUE_DELETED, record.reason, actor)


def _leave(notes: LifeNotes, place: Place, kind: LifeKind, time_ms: int, **fields: Any) -> None:
    notes.note_at(place, kind, time_ms, sent_ms=notes.events.begun_ms, **fields)
    place.become(kind, time_ms)


def _redrive_started(notes: LifeNotes, record: RedriveStarted, place: Place) -> None:
    if place.position < record.stop_position:
        place.redriven_by = notes.administrator("start_redrive")


def _end(notes: LifeNotes, place: Place, kind: LifeKind, reason: str = "", actor: Actor | None = None) -> None:
    """End the life by a record that names all messages of a range."""
    if place.is_live:
        _leave(notes, place, kind, notes.time_ms, reason=reason, is_certain=place.is_known, actor=actor)
    place.can_return = False


def _rewound(notes: LifeNotes, record: QueueRewound, place: Place) -> None:
    _prune(notes, record, place)
    if not place.can_return or not record.from_position <= place.position < record.stop_position:
        return
    # A record without its floor leaves open whether the message was still rewindable.
    is_certain = place.is_known and record.rewind_floor >= 0
    actor = notes.administrator("rewind_queue")
    notes.note_at(place, LifeKind.REWOUND, record.rewound_ms, is_certain=is_certain, actor=actor)
    place.become("active", record.rewound_ms)
    place.is_known = is_certain
    place.receive_count = 0 if is_certain else None


def _prune(notes: LifeNotes, record: QueueRewound | QueueAttributesSet, place: Place) -> None:
    if record.rewind_floor > place.position or (
        isinstance(record, QueueAttributesSet) and not record.attributes.rewind_ms
    ):
        place.can_return = False


OF_QUEUES: Final[dict[type, Callable[[LifeNotes, Any, Place], None]]] = {
    LeasesEnded: _lease_ended,
    MessagesActivated: _activated,
    MessagesDeadLettered: _moved,
    MessagesDeleted: _deleted,
    MessagesExpired: _cut,
    MessagesMoved: _moved,
    MessagesReceived: _received,
    MessagesReleased: _released,
    QueueAttributesSet: _prune,
    QueueCleared: _cut,
    QueueDeleted: _queue_deleted,
    QueueRewound: _rewound,
    RedriveStarted: _redrive_started,
    TransactionsChecked: _checked,
    TransactionsEnded: _decided,
    TransactionsUndecided: _undecided,
    VisibilityChanged: _lease_changed,
}
"""Functions that take a record of a queue, and a place of the message in this queue."""
