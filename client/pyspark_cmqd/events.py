"""What a row of the log brought: its messages, by runs of neighbours, each with how it came to be. Pure.

    sent        to a queue, by a producer            published   to a topic: the topic's own
    half        to a queue, to be decided            copied      the copy of it in a queue
    committed   a half message that was decided      moved       a dead letter, or one that came back

Messages are numbered within their row in the order of the records; what was published counts as the topic's messages,
then those of each queue that got copies. So a number is the same whatever a reader selects.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from cmqd_segment.records import (
    AnyRecord,
    MessagesDelivered,
    MessagesPublished,
    MessagesSent,
    TransactionsEnded,
    count_runs,
)
from cmqd_segment.rows import Run, copy_run, published_run


class Event(StrEnum):
    """How a message came to be stored; see the module."""

    SENT = "sent"
    HALF = "half"
    COMMITTED = "committed"
    MOVED = "moved"
    PUBLISHED = "published"
    COPIED = "copied"


class Stored(NamedTuple):
    """Neighbours of one queue or topic."""

    source_id: int
    """Of the queue, or topic, whose messages they are."""
    topic_id: int
    """Of the topic that they came through; 0 = none."""
    event: Event
    run: Run
    """A copy has the labels of what was published."""
    first_index: int
    """Number of the first within the row."""


def stored_in(records: Sequence[AnyRecord], queue_subscriptions: frozenset[int] = frozenset()) -> list[Stored]:
    """Everything that the records of one row stored, in order.

    ``queue_subscriptions``: those that deliver to queues; what they deliver late stands as an ordinary send.
    """
    found: list[Stored] = []
    offset = index = 0
    committed: dict[int, int] = {}
    for place, record in enumerate(records):
        if isinstance(record, MessagesSent):
            count = len(record.sizes)
            topic_id = 0
            if record.half:
                event = Event.HALF
            elif record.origins is not None:
                event = Event.MOVED
            elif committed.get(record.queue_id, 0) >= count:
                committed[record.queue_id] -= count
                event = Event.COMMITTED
            else:
                topic_id = _late_from(records, place + 1, count, queue_subscriptions) if queue_subscriptions else 0
                event = Event.COPIED if topic_id else Event.SENT
            run = Run(
                record.first_position,
                record.first_message_id,
                record.enqueue_ms,
                record.sizes,
                record.headers,
                record.visible_ms,
                offset,
                record.origins,
            )
            found.append(Stored(record.queue_id, topic_id, event, run, index))
            index += count
            offset += sum(record.sizes)
        elif isinstance(record, MessagesPublished):
            count = len(record.sizes)
            topic_id = record.topic_id
            published = published_run(record, offset)
            found.append(Stored(topic_id, topic_id, Event.PUBLISHED, published, index))
            index += count
            copies = record.copies
            for nth in range(len(copies) // 2):
                run = copy_run(published, record.first_copy_id, nth, copies[2 * nth + 1])
                run = run._replace(labels=record.labels)
                found.append(Stored(copies[2 * nth], topic_id, Event.COPIED, run, index))
                index += count
            offset += sum(record.sizes)
        elif isinstance(record, TransactionsEnded) and record.committed:
            committed[record.queue_id] = committed.get(record.queue_id, 0) + count_runs(record.positions)
    return found


def _late_from(records: Sequence[AnyRecord], place: int, count: int, queue_subscriptions: frozenset[int]) -> int:
    """The topic of what was sent right before ``place`` as late copies; 0 if it was sent by a producer."""
    if place < len(records):
        record = records[place]
        if (
            isinstance(record, MessagesDelivered)
            and record.subscription_id in queue_subscriptions
            and count_runs(record.positions) == count
        ):
            return record.topic_id
    return 0
