"""The messages of a clone: those that wait in the source, under new positions, as records of sends."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from cmqd_backup.cloning.masking import Masking, Shown
from cmqd_backup.cloning.new_log import NewLog
from cmqd_backup.cloning.source_rows import SourceRow
from cmqd_reading.states import Result, State
from cmqd_segment.records import (
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    QueueCreated,
    StoredMessage,
    pack_runs,
)
from cmqd_segment.rows import QueueSummary, extra_bytes, sent_runs, stored_messages

_KEPT = (State.ACTIVE, State.DELAYED, State.IN_FLIGHT, State.HALF)
_RECEIVES_IN_RECORD = 4096


class _Waiting(NamedTuple):
    """A message, as the clone gets it."""

    message: StoredMessage
    shown: Shown
    visible_ms: int
    is_half: bool

    def joins(self, other: "_Waiting") -> bool:
        """Return whether a record can have this message behind the other."""
        before, message = other.message, self.message
        return (
            message.message_id == before.message_id + 1
            and message.enqueue_ms == before.enqueue_ms
            and self.is_half == other.is_half
            and _kind(message) == _kind(before)
        )


def _kind(message: StoredMessage) -> tuple[str, bool]:
    # All messages of a record came in one way: the index of a queue counts them by the first.
    return "" if message.origin is None else message.origin.reason, message.copy_of is not None


class WaitingQueue:
    """The messages of a queue that wait."""

    def __init__(self, queue: QueueCreated, result: Result, since_ms: int) -> None:
        """``since_ms``: broker time of the oldest send that the clone gets."""
        self.queue_id = queue.queue_id
        self._max_body_bytes = queue.attributes.max_message_bytes
        self._since_ms = since_ms
        self._sets = {state: result.sets.get(state, BitMap64()) for state in _KEPT}
        self._counts = result.counts
        self._kept = BitMap64()
        for positions in self._sets.values():
            self._kept |= positions
        self.expected = len(self._kept)
        self.found = 0
        self.passed_over = 0
        """Messages that were sent before ``since_ms``."""
        self.next_position = 0
        self._last_ms = 0
        self._old_positions: list[int] = []
        """Position in the source, by position in the clone."""

    def has_any(self, first: int, stop: int) -> bool:
        """Return whether a message of a range of positions waits."""
        return next(self._kept.iter_equal_or_larger(first), stop) < stop

    def position_of(self, old: int) -> int:
        """Return the first position of the clone for messages at or above a position of the source."""
        return bisect_left(self._old_positions, old)

    def take(
        self, messages: Sequence[StoredMessage], dedup_ids: Sequence[str | None] | None, masking: Masking, log: NewLog
    ) -> None:
        """Write the messages of a record of the source that wait."""
        joined: list[_Waiting] = []
        for index, message in enumerate(messages):
            if message.position not in self._kept:
                continue
            self.found += 1
            if message.enqueue_ms < self._since_ms:
                self.passed_over += 1
                continue
            dedup_id = None if dedup_ids is None else dedup_ids[index]
            is_half = message.position in self._sets[State.HALF]
            waits = is_half or message.position in self._sets[State.DELAYED]
            shown = Shown(message.body, message.headers, message.origin, message.copy_of, dedup_id)
            shown = masking.message(shown, self._max_body_bytes)
            waiting = _Waiting(message, shown, message.visible_ms if waits else 0, is_half)
            if joined and not waiting.joins(joined[-1]):
                self._write(joined, log)
                joined = []
            joined.append(waiting)
        if joined:
            self._write(joined, log)

    def _write(self, joined: Sequence[_Waiting], log: NewLog) -> None:
        first = joined[0]
        shown = [each.shown for each in joined]
        headers = [each.headers for each in shown]
        origins = [each.origin for each in shown]
        copies = [each.copy_of for each in shown]
        dedup_ids = [each.dedup_id for each in shown]
        visible = [each.visible_ms for each in joined]
        # Times of a queue ascend with its positions: the floor of retention would pass younger messages otherwise.
        self._last_ms = max(self._last_ms, first.message.enqueue_ms)
        bodies = [each.body for each in shown]
        log.add(
            MessagesSent(
                queue_id=self.queue_id,
                first_position=self.next_position,
                first_message_id=first.message.message_id,
                enqueue_ms=self._last_ms,
                sizes=list(map(len, bodies)),
                headers=headers if any(headers) else None,
                visible_ms=visible if any(visible) else None,
                half=first.is_half,
                origins=origins if first.message.origin is not None else None,
                dedup_ids=dedup_ids if any(dedup_ids) else None,
                copies_of=copies if first.message.copy_of is not None else None,
            ),
            bodies,
            sum(extra_bytes(each.headers, each.origin, None, each.copy_of) for each in shown),
        )
        self._old_positions += [each.message.position for each in joined]
        self.next_position += len(joined)

    def write_receives(self, first_lease: int, time_ms: int, log: NewLog) -> int:
        """Write receives and releases that give each message its receive count; return the next lease."""
        counts = [self._count(old) for old in self._old_positions]
        received: list[int] = [position for position, count in enumerate(counts) if count]
        done = 0
        while received:
            done += 1
            for start in range(0, len(received), _RECEIVES_IN_RECORD):
                some = received[start : start + _RECEIVES_IN_RECORD]
                log.add(MessagesReceived(self.queue_id, pack_runs(some), first_lease, time_ms, time_ms))
                log.add(MessagesReleased(self.queue_id, [first_lease, len(some)], counted=True))
                first_lease += len(some)
            received = [position for position in received if counts[position] > done]
        return first_lease

    def _count(self, old: int) -> int:
        if old in self._sets[State.HALF]:
            return 0
        return self._counts.get(old, 1 if old in self._sets[State.IN_FLIGHT] else 0)


class WaitingMessages:
    """The messages of all queues that wait."""

    def __init__(self, queues: dict[int, WaitingQueue], masking: Masking, log: NewLog) -> None:
        self._queues = queues
        self._masking = masking
        self._log = log

    def is_wanted(self, summary: QueueSummary) -> bool:
        """Return whether a row has messages of the clone, by an entry of its summary."""
        queue = self._queues.get(summary[0])
        return queue is not None and queue.has_any(summary[1], summary[2])

    def take(self, row: SourceRow) -> None:
        """Write the messages of a row that wait."""
        offset = 0
        for record in row.records:
            for queue_id, run in sent_runs([record]):
                queue = self._queues.get(queue_id)
                if queue is not None and queue.has_any(run.first_position, run.stop_position):
                    messages = stored_messages(run._replace(offset=run.offset + offset), row.data)
                    dedup_ids = record.dedup_ids if isinstance(record, MessagesSent) else None
                    queue.take(messages, dedup_ids, self._masking, self._log)
            offset += sum(getattr(record, "sizes", ()))
