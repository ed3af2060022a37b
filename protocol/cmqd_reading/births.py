"""Births of messages: the row that stores a message, found by id, position or lease. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from cmqd_reading.events import stored_in
from cmqd_segment.newer import raw_items, tag_number, tag_of
from cmqd_segment.published import count_copies
from cmqd_segment.records import (
    AnyRecord,
    MessagesPublished,
    MessagesPublishedAlike,
    MessagesReceived,
    MessagesSent,
    Runs,
    last_of,
    ranges,
)
from cmqd_segment.rows import stored_messages

_HEAD_FIELDS: Final = 1 + MessagesSent.__struct_fields__.index("sizes")
_SENT_TAG: Final = tag_number(MessagesSent)
_PUBLISH_TAGS: Final = frozenset((tag_number(MessagesPublished), tag_number(MessagesPublishedAlike)))
_sent_head: Final = msgspec.msgpack.Decoder[Any](
    msgspec.defstruct(
        "SentHead",
        [(field.name, field.type) for field in structs.fields(MessagesSent)[:_HEAD_FIELDS]],
        tag=_SENT_TAG,
        array_like=True,
    )
)
"""Decodes the fields of a send up to the sizes; headers and dedup ids take most of the time."""


class Birth(NamedTuple):
    """The store of a message."""

    source_id: int
    """Id of the queue or topic."""
    position: int
    message_id: int
    parent_id: int
    """The former id of a moved message, or the id of the published message of a copy; 0 = none."""


def index_in(runs: Runs, number: int) -> int:
    """Return the place of a number among the numbers that runs stand for; -1 = not among them."""
    place = 0
    for start, stop in ranges(runs):
        if number < stop:
            return place + number - start if number >= start else -1
        place += stop - start
    return -1


def may_store(record: MessagesSent | MessagesPublished, message_id: int) -> bool:
    """Return whether a record stores the message or copy with an id."""
    offset = message_id - record.first_message_id
    if isinstance(record, MessagesSent):
        return 0 <= offset < len(record.sizes)
    if 0 <= message_id - record.first_copy_id < count_copies(record):
        return True
    if record.message_ids:
        return index_in(record.message_ids, offset) >= 0
    return 0 <= offset < len(record.sizes)


def may_store_in(meta: bytes, message_id: int) -> bool:
    """Return False if the encoded records of a row surely do not store a message; the row need not be decoded then."""
    for raw in raw_items(meta):
        packed = memoryview(raw)
        tag = tag_of(packed)
        if tag == _SENT_TAG:
            head = _sent_head.decode(raw)
            if 0 <= message_id - head.first_message_id < len(head.sizes):
                return True
        elif tag in _PUBLISH_TAGS:
            return True
    return False


def birth_in(records: Sequence[AnyRecord], message_id: int) -> Birth | None:
    """Return the store of a message among the records of a row; None = the row does not store the message."""
    if any(isinstance(one, MessagesSent | MessagesPublished) and may_store(one, message_id) for one in records):
        for birth in births_in(records):
            if birth.message_id == message_id:
                return birth
    return None


def births_in(records: Sequence[AnyRecord]) -> Iterator[Birth]:
    """Yield the store of each message among the records of a row."""
    for stored in stored_in(records):
        for message in stored_messages(stored.run, b""):
            origin, copy_of = message.origin, message.copy_of
            parent_id = origin.message_id if origin is not None else copy_of.message_id if copy_of is not None else 0
            yield Birth(stored.source_id, message.position, message.message_id, parent_id)


def store_ids(records: Sequence[AnyRecord]) -> Iterator[tuple[int, int]]:
    """Yield first and last id of the messages, and of the copies, that each record of a row stores."""
    for record in records:
        if isinstance(record, MessagesSent):
            yield record.first_message_id, record.first_message_id + len(record.sizes) - 1
        elif isinstance(record, MessagesPublished):
            count = last_of(record.message_ids) + 1 if record.message_ids else len(record.sizes)
            yield record.first_message_id, record.first_message_id + count - 1
            copies = count_copies(record)
            if copies:
                yield record.first_copy_id, record.first_copy_id + copies - 1


def id_at(records: Sequence[AnyRecord], source_id: int, position: int) -> int | None:
    """Return the id of the message that a row stores at a position of a queue or topic."""
    for stored in stored_in(records):
        if stored.source_id == source_id and 0 <= position - stored.run.first_position < len(stored.run.sizes):
            return stored.run.first_message_id + position - stored.run.first_position
    return None


def received_under(records: Sequence[AnyRecord], lease: int) -> tuple[int, int] | None:
    """Return queue id and position of the message that a row gives out under a lease."""
    for record in records:
        if isinstance(record, MessagesReceived):
            offset = lease - record.first_lease
            for start, stop in ranges(record.positions):
                if 0 <= offset < stop - start:
                    return record.queue_id, start + offset
                offset -= stop - start
                if offset < 0:
                    break
    return None
