"""What a row of the log brought: its messages, by runs of neighbours, each with how it came to be. Pure.

    sent        to a queue, by a producer            published   to a topic: the topic's own
    half        to a queue, to be decided            copied      the copy of it in a queue
    committed   a half message that was decided      moved       a dead letter, or one that came back

Messages are numbered within their row in the order of the records; what was published counts as the topic's messages,
then those of each queue that got copies. So a number is the same whatever a reader selects.
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
    """Of the topic that they came through; 0 = none, or only their ``copies_of`` name it."""
    event: Event
    run: Run
    """A copy, also one that was moved, has the labels of what was published."""
    first_index: int
    """Number of the first within the row."""
    dedup_ids: Sequence[str | None] | None = None
    """Ids under which a producer sent or published them; those of a publish are not said of its copies."""


def stored_in(records: Sequence[AnyRecord]) -> list[Stored]:
    """Everything that the records of one row stored, in order."""
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
                record.first_position,
                record.first_message_id,
                record.enqueue_ms,
                record.sizes,
                record.headers,
                record.visible_ms,
                offset,
                record.origins,
                [[] if one is None or one.labels is None else one.labels for one in record.copies_of]
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
    """The topic of late copies, from the records behind them in the row: that they were delivered follows."""
    return next((record.topic_id for record in behind if isinstance(record, MessagesDelivered)), 0)
