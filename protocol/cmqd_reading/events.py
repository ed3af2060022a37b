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

from cmqd_segment.actor_runs import actor_numbers
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
    actors: Sequence[int] = ()
    """Clients that sent or published the messages, by the numbers of their ``ActorSeen``: empty = not known, a single
    number for all messages, or a number for each."""


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
            actors = _of_each(record.actors, count)
            found.append(Stored(record.queue_id, topic_id, event, run, index, record.dedup_ids, actors))
            index += count
            offset += sum(record.sizes)
        elif isinstance(record, MessagesPublished):
            topic_id = record.topic_id
            published, names = PublishedRuns(record, offset), names_of(record)
            dedup_ids = record.dedup_ids
            actors = _of_each(record.actors, len(record.sizes))
            by_id: dict[int, int] = {}
            """Clients by the id of the published message, if there are several."""
            for run in published.topic_runs():
                start = run.first_position - record.first_position
                stop = start + len(run.sizes)
                own = None if dedup_ids is None else dedup_ids[start:stop]
                senders = actors if len(actors) < 2 else actors[start:stop]
                if len(actors) > 1:
                    by_id.update(enumerate(senders, run.first_message_id))
                found.append(Stored(topic_id, topic_id, Event.PUBLISHED, run, index, own, senders))
                index += len(run.sizes)
            for nth, queue_id in enumerate(record.copies[::2]):
                for run in published.copy_runs(nth, names[nth]):
                    senders = actors
                    if by_id and run.source is not None:
                        first_id = run.source.first_message_id
                        senders = [by_id.get(first_id + place, 0) for place in range(len(run.sizes))]
                    found.append(Stored(queue_id, topic_id, Event.COPIED, run, index, actors=senders))
                    index += len(run.sizes)
            offset += sum(record.sizes)
        elif isinstance(record, TransactionsEnded) and record.committed:
            committed[record.queue_id] = committed.get(record.queue_id, 0) + count_runs(record.positions)
    return found


def _late_from(behind: Iterable[AnyRecord]) -> int:
    """Return the topic of late copies, named by the delivery record behind them in the row."""
    return next((record.topic_id for record in behind if isinstance(record, MessagesDelivered)), 0)


def _of_each(actors: Sequence[int], count: int) -> Sequence[int]:
    """Return the clients of a record in the form of ``Stored.actors``."""
    return actors if len(actors) < 2 else actor_numbers(actors, count)
