"""Records of deliveries in the life of a published message: a function for each kind. Pure."""

from collections.abc import Callable
from typing import Any, Final

from cmqd_reading.births import index_in
from cmqd_reading.life_events import UNNAMED, LifeNotes
from cmqd_reading.places import Publish
from cmqd_segment.records import (
    DeliveriesCleared,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    TopicMessagesExpired,
    Unsubscribed,
)
from cmqd_types.histories import LifeKind

# ---------------------------------------------------------------- deliveries


def _note_delivery(
    notes: LifeNotes, publish: Publish, kind: LifeKind, time_ms: int, number: int, **fields: Any
) -> None:
    notes.note(
        kind,
        time_ms,
        queue=publish.topic,
        message_id=publish.message_id,
        subscription=notes.name(number),
        **fields,
    )


def _delivered(notes: LifeNotes, record: MessagesDelivered, publish: Publish) -> None:
    number = record.subscription_id
    if number not in publish.waiting or index_in(record.positions, publish.position) < 0:
        return
    publish.waiting.discard(number)
    name = notes.name(number)
    if notes.late and (name in notes.late or not name or name.startswith(UNNAMED)):
        # The late copies of the same row tell of the delivery.
        notes.late.remove(name if name in notes.late else notes.late[0])
        return
    _note_delivery(notes, publish, LifeKind.DELIVERED, record.delivered_ms, number)


def _delivery_failed(notes: LifeNotes, record: DeliveriesFailed, publish: Publish) -> None:
    index = index_in(record.positions, publish.position)
    if record.subscription_id in publish.waiting and index >= 0:
        fields = {"receive_count": record.attempts[index], "until_ms": record.next_ms[index], "text": record.error}
        _note_delivery(notes, publish, LifeKind.DELIVERY_FAILED, record.failed_ms, record.subscription_id, **fields)


def _delivery_dropped(notes: LifeNotes, record: DeliveriesDropped, publish: Publish) -> None:
    if index_in(record.positions, publish.position) >= 0:
        _drop(notes, publish, record.subscription_id, record.dropped_ms, record.reason, is_certain=True)


def _deliveries_cleared(notes: LifeNotes, record: DeliveriesCleared, publish: Publish) -> None:
    if publish.position < record.floor:
        _drop(notes, publish, record.subscription_id, record.cleared_ms, "operator", is_certain=publish.is_known)


def _unsubscribed(notes: LifeNotes, record: Unsubscribed, publish: Publish) -> None:
    _drop(notes, publish, record.subscription_id, notes.time_ms, "unsubscribed", is_certain=publish.is_known)


def _topic_expired(notes: LifeNotes, record: TopicMessagesExpired, publish: Publish) -> None:
    if publish.position < record.floor:
        for number in sorted(publish.waiting):
            _drop(notes, publish, number, notes.time_ms, "expired", is_certain=publish.is_known)


def _drop(notes: LifeNotes, publish: Publish, number: int, time_ms: int, reason: str, *, is_certain: bool) -> None:
    if number in publish.waiting:
        publish.waiting.discard(number)
        _note_delivery(notes, publish, LifeKind.DELIVERY_DROPPED, time_ms, number, reason=reason, is_certain=is_certain)


OF_TOPICS: Final[dict[type, Callable[[LifeNotes, Any, Publish], None]]] = {
    DeliveriesCleared: _deliveries_cleared,
    DeliveriesDropped: _delivery_dropped,
    DeliveriesFailed: _delivery_failed,
    MessagesDelivered: _delivered,
    TopicMessagesExpired: _topic_expired,
    Unsubscribed: _unsubscribed,
}
"""Functions that take a record of a topic, and the message at its position there."""
