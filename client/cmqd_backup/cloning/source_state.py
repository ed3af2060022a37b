"""The state of a source at its last row: queues, topics and schedules as records that make them anew, and the messages
that wait.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from cmqd_backup.cloning.source_rows import SourceRow, read_rows
from cmqd_backup.refusals import Refused
from cmqd_reading.log_fold import LogFold
from cmqd_reading.states import Result
from cmqd_segment.checkpoint import (
    AnyPart,
    CheckpointHeader,
    QueueSlice,
    ScheduleSlice,
    SubscriptionSlice,
    TopicSlice,
)
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads, verify_checkpoint
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import (
    AnyRecord,
    ClockOffset,
    NumbersReserved,
    QueueAttributesSet,
    QueueCreated,
    QueueDeleted,
    ScheduleDeleted,
    ScheduleSet,
    Subscribed,
    SubscriptionAttributesSet,
    TopicAttributesSet,
    TopicCreated,
    TopicDeleted,
    Unsubscribed,
)

_Made = TypeVar("_Made", QueueCreated, TopicCreated, Subscribed, ScheduleSet)

NEVER_SERVED: Final = -1
"""Floor of a queue that was never a dead-letter queue (``QueueSlice.dead_letter_floor``)."""


class SourceState:
    """The fold of a source; see the module."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueCreated] = {}
        self.topics: dict[int, TopicCreated] = {}
        self.subscriptions: dict[int, Subscribed] = {}
        self.schedules: dict[int, ScheduleSet] = {}
        self._slices: dict[int, int] = {}
        """Row of the checkpoint slice, by id: records up to it are in the slice."""
        self.messages = LogFold()
        self.numbers = NumbersReserved(1, 1, 1)
        self.time_ms = 0
        self.offset_ms = 0

    def results(self) -> dict[int, Result]:
        """Return the states of the messages of the queues that exist."""
        return {number: queue.result() for number, queue in self.messages.queues.items() if number in self.queues}

    def dead_letter_floor(self, queue_id: int) -> int:
        """Return the floor of a dead-letter queue; below 0 = the queue takes no dead letters."""
        queue = self.messages.queues.get(queue_id)
        return NEVER_SERVED if queue is None or queue.index is None else queue.index.dead_letter_floor

    def load(self, part: AnyPart) -> None:
        """Load a part of a checkpoint."""
        self.messages.load(part)
        match part:
            case CheckpointHeader():
                self.time_ms, self.offset_ms = part.time_ms, part.clock_offset_ms
                self._reserve(part.message_id_until, part.lease_until, part.queue_id_until)
            case QueueSlice():
                self._slices[part.queue_id] = part.lsn
                self.queues[part.queue_id] = QueueCreated(
                    part.queue_id, part.account, part.name, part.attributes, part.created_ms
                )
            case TopicSlice():
                self._slices[part.topic_id] = part.lsn
                self.topics[part.topic_id] = TopicCreated(
                    part.topic_id, part.account, part.name, part.attributes, part.created_ms
                )
            case SubscriptionSlice():
                self._slices[part.subscription_id] = part.lsn
                self.subscriptions[part.subscription_id] = Subscribed(
                    part.topic_id, part.subscription_id, part.name, part.attributes, part.created_ms
                )
            case ScheduleSlice():
                self._slices[part.schedule_id] = part.lsn
                self.schedules[part.schedule_id] = ScheduleSet(
                    *(part.schedule_id, part.account, part.name, part.queue, part.cron, part.zone, part.paused),
                    *(part.body, part.headers, part.modified_ms, part.next_ms),
                )
            case _:
                pass

    def apply(self, row: SourceRow) -> None:
        """Apply a row."""
        self.messages.apply(row.lsn, row.records)
        self.time_ms = max(self.time_ms, row.time_ms)
        for record in row.records:
            if isinstance(record, ClockOffset):
                self.offset_ms = record.offset_ms
                if record.stepped:
                    self.time_ms = row.time_ms
            elif isinstance(record, NumbersReserved):
                self._reserve(record.message_id_until, record.lease_until, record.queue_id_until)
            else:
                self._apply(row.lsn, record)

    def _apply(self, lsn: int, record: AnyRecord) -> None:
        match record:
            case QueueCreated():
                self.queues.setdefault(record.queue_id, record)
            case QueueAttributesSet():
                self._change(self.queues, record.queue_id, lsn, attributes=record.attributes)
            case QueueDeleted():
                self.queues.pop(record.queue_id, None)
            case TopicCreated():
                self.topics.setdefault(record.topic_id, record)
            case TopicAttributesSet():
                self._change(self.topics, record.topic_id, lsn, attributes=record.attributes)
            case TopicDeleted():
                self.topics.pop(record.topic_id, None)
            case Subscribed():
                self.subscriptions.setdefault(record.subscription_id, record)
            case SubscriptionAttributesSet():
                self._change(self.subscriptions, record.subscription_id, lsn, attributes=record.attributes)
            case Unsubscribed():
                self.subscriptions.pop(record.subscription_id, None)
            case ScheduleSet():
                if lsn > self._slices.get(record.schedule_id, 0):
                    self.schedules[record.schedule_id] = record
            case ScheduleDeleted():
                self.schedules.pop(record.schedule_id, None)
            case _:
                pass

    def _change(self, made: dict[int, _Made], number: int, lsn: int, **changes: object) -> None:
        if number in made and lsn > self._slices.get(number, 0):
            made[number] = structs.replace(made[number], **changes)

    def _reserve(self, message_id_until: int, lease_until: int, queue_id_until: int) -> None:
        now = self.numbers
        self.numbers = NumbersReserved(
            max(now.message_id_until, message_id_until),
            max(now.lease_until, lease_until),
            max(now.queue_id_until, queue_id_until),
        )


def fold_source(checkpoint: Path | None, segments: Sequence[Path]) -> SourceState:
    """Fold a checkpoint, and the rows above it. Raises Refused, OSError."""
    state = SourceState()
    if checkpoint is not None:
        try:
            verify_checkpoint(checkpoint)
            for payload in read_payloads(checkpoint):
                state.load(decode_part(payload))
        except (CheckpointError, NewerFormatError, msgspec.MsgspecError) as error:
            raise Refused(f"{checkpoint} cannot be used: {error}") from error
        state.messages.begin_above(state.messages.checkpoint_lsn)
    for row in read_rows(segments, state.messages.checkpoint_lsn):
        state.apply(row)
    return state
