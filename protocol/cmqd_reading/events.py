"""Events: the messages that a row of the log stored, as runs of neighbours with the kind of each store. Pure.

    sent        to a queue, by a producer            published   to a topic: the topic's own message
    half        to a queue, to be decided            copied      the copy of a published message in a queue
    committed   a half message that was committed    moved       a dead letter, or a redriven message

Messages are numbered within their row in the order of the records; a published record counts as the topic's messages,
then the copies of each queue. So a message has the same number in every selection.
"""

from collections.abc import Iterable, Sequence
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
from cmqd_segment.rows import PublishedRuns, Run, names_of


class Event(StrEnum):
    """Kind of a store; see the module."""

    SENT = "sent"
    HALF = "half"
    COMMITTED = "committed"
    MOVED = "moved"
    PUBLISHED = "published"
    COPIED = "copied"


class Stored(NamedTuple):
    """Neighbours of one queue or topic."""

    source_id: int
    """Id of the queue or topic that stored the messages."""
    topic_id: int
    """Id of the topic of copies; 0 = no copies, or only ``copies_of`` names the topic."""
    event: Event
    run: Run
    """Labels of the publish; a moved copy keeps them."""
    first_index: int
    """The ``row_index`` of the first message."""
    dedup_ids: Sequence[str | None] | None = None
    """Dedup ids of a send or publish; the copies of a publish have none."""


def stored_in(records: Sequence[AnyRecord]) -> list[Stored]:
    """Return all messages that the records of a row stored, in order."""
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
                topic_id = 0 if record.copies_of is None else _late_from(records[place + 1 :])
                event = Event.COPIED if topic_id else Event.SENT
            run = Run(
                first_position=record.first_position,
                first_message_id=record.first_message_id,
                enqueue_ms=record.enqueue_ms,
                sizes=record.sizes,
                headers=record.headers,
                visible_ms=record.visible_ms,
                offset=offset,
                origins=record.origins,
                labels=[[] if one is None or one.labels is None else one.labels for one in record.copies_of]
                if record.copies_of is not None
                else None,
                copies_of=record.copies_of,
            )
            found.append(Stored(record.queue_id, topic_id, event, run, index, record.dedup_ids))
            index += count
            offset += sum(record.sizes)
        elif isinstance(record, MessagesPublished):
            topic_id = record.topic_id
            published, names = PublishedRuns(record, offset), names_of(record)
            dedup_ids = record.dedup_ids
            for run in published.topic_runs():
                start = run.first_position - record.first_position
                own = None if dedup_ids is None else dedup_ids[start : start + len(run.sizes)]
                found.append(Stored(topic_id, topic_id, Event.PUBLISHED, run, index, own))
                index += len(run.sizes)
            for nth, queue_id in enumerate(record.copies[::2]):
                for run in published.copy_runs(nth, names[nth]):
                    found.append(Stored(queue_id, topic_id, Event.COPIED, run, index))
                    index += len(run.sizes)
            offset += sum(record.sizes)
        elif isinstance(record, TransactionsEnded) and record.committed:
            committed[record.queue_id] = committed.get(record.queue_id, 0) + count_runs(record.positions)
    return found


def _late_from(behind: Iterable[AnyRecord]) -> int:
    """Return the topic of late copies, named by the delivery record behind them in the row."""
    return next((record.topic_id for record in behind if isinstance(record, MessagesDelivered)), 0)
