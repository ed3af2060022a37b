"""The copies that follow from the record of a publish, as messages of their queues."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from cmqd_segment.published import copy_counts, message_ids_of, queue_set, set_positions, waiting_sets
from cmqd_segment.records import MessagesPublished, StoredMessage
from cmqd_types.messages import CopyOf


class PublishedCopies:
    """The copies of a record, as messages of their queues."""

    __slots__ = ("_bodies", "_counts", "_first_ids", "_message_ids", "_record")

    def __init__(self, record: MessagesPublished, bodies: list[bytes]) -> None:
        self._record = record
        self._bodies = bodies
        self._message_ids = message_ids_of(record)
        self._counts: list[int] | None = None
        """Number of copies in every queue; None = all messages."""
        self._first_ids: list[int] = []
        if record.taken:
            self._counts = list(copy_counts(record))
            self._first_ids = list(accumulate(self._counts, initial=record.first_copy_id))

    def first(self, place: int) -> int:
        """Return the position of the first copy in the queue at ``place``."""
        return self._record.copies[2 * place + 1]

    def count(self, place: int) -> int:
        """Return the number of copies that the queue at ``place`` takes."""
        return len(self._record.sizes) if self._counts is None else self._counts[place]

    def messages(self, place: int) -> list[StoredMessage]:
        """Return the copies in the queue at ``place``."""
        record, bodies, ids = self._record, self._bodies, self._message_ids
        labels, headers = record.labels, record.headers
        position, copy_id = record.copies[2 * place + 1], record.first_copy_id
        numbers: Sequence[int]
        if self._counts is None:
            numbers = range(len(bodies))
            copy_id += place * len(bodies)
        else:
            numbers = set_positions(queue_set(record, place))
            copy_id = self._first_ids[place]
        topic, subscription, enqueue_ms = record.topic, record.subscriptions[place], record.enqueue_ms
        of_each = labels is not None and len(labels) > 1
        of_all = labels[0] if labels is not None and not of_each else None
        messages: list[StoredMessage] = []
        for number in numbers:
            own = of_all if labels is None or not of_each else labels[number]
            copy_of = CopyOf(topic, subscription, ids[number], enqueue_ms, own)
            own_headers = None if headers is None else headers[number]
            messages.append(
                StoredMessage(
                    position=position,
                    message_id=copy_id,
                    enqueue_ms=enqueue_ms,
                    body=bodies[number],
                    headers=own_headers,
                    visible_ms=0,
                    origin=None,
                    labels=None,
                    copy_of=copy_of,
                )
            )
            position += 1
            copy_id += 1
        return messages

    def message(self, number: int) -> StoredMessage:
        """Return a message as a message of the topic."""
        record = self._record
        labels = record.labels
        return StoredMessage(
            record.first_position + number,
            self._message_ids[number],
            record.enqueue_ms,
            self._bodies[number],
            record.headers[number] if record.headers else None,
            labels=None if labels is None else labels[0] if len(labels) == 1 else labels[number],
        )

    def waiting_numbers(self) -> list[int]:
        """Return the numbers of the messages that wait for a subscription."""
        wanted = 0
        for _, messages in waiting_sets(self._record):
            wanted |= messages
        return set_positions(wanted)


class Unserved(NamedTuple):
    """Copies of a publish in a queue with waiting receives that are not served yet."""

    copies: PublishedCopies
    place: int
