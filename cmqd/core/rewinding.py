"""Rewind: deleted messages come back, as a set operation; only the boundary may have to be looked for in the log.

The time steps of a queue tell within which few messages a time lies. Where in between is found by halving, reading one
message at a time, so that exactly those come back that were sent at or after the time asked for. Times of messages
never change, so nothing that happens meanwhile can make the boundary wrong.
"""

from collections.abc import Sequence

from cmqd.core.errors import DomainError, TimeNotRewindable
from cmqd.core.limits import check_range
from cmqd.core.outcome import WAITING, Outcome, PageRead, Rewound, Waiting, Woken
from cmqd.core.queue import Queue
from cmqd.core.receiving import Receiving
from cmqd.core.state import PendingRewind
from cmqd_segment.records import AnyRecord, QueueRewound, StoredMessage

PRUNE_MS = 1000
"""How often messages that can be rewound no more are let go: their disk space comes back in whole segments anyway."""


class Rewinding(Receiving):
    """The rewinding part of the broker."""

    def rewind(
        self, account: str, name: str, waiter_id: int, time_ms: int, strict: bool, now_ms: int
    ) -> Outcome[Rewound | Waiting]:
        """Make all rewindable messages sent at or after ``time_ms`` active again, in order of sending, never received.

        A time before the window is taken as the nearest one (``clamped``), or refused if ``strict``. The latest time
        that is allowed is that of the oldest message that is not consumed, to a step of the time steps.

        Raises:
            QueueNotFound, InvalidArgument.
            TimeNotRewindable: the queue has no rewind window, or the time is too late, or too early and ``strict``.
        """
        queue = self.queue(account, name)
        check_range("time_ms", time_ms, 0, 1 << 62)
        index = queue.index
        window_ms = index.attributes.rewind_ms
        if not window_ms:
            raise TimeNotRewindable(name, time_ms, "it has no rewind window", None)
        latest_ms = now_ms
        if index.live_count:
            latest_ms = min(now_ms, index.steps.sent_by(next(iter(index.live))))
        earliest_ms = now_ms - window_ms
        if time_ms > latest_ms:
            why = "a message sent then is not consumed yet" if index.live_count else "it lies in the future"
            raise TimeNotRewindable(name, time_ms, why, max(latest_ms, earliest_ms))
        clamped = time_ms < earliest_ms
        if clamped and strict:
            raise TimeNotRewindable(name, time_ms, f"its rewind window is {window_ms} ms", earliest_ms)
        start_ms = earliest_ms if clamped else time_ms
        # What was let go before a restart may be back by the log alone, without its bodies.
        self._prune_rewindable(queue, now_ms)
        low, high = index.steps.around(start_ms, index.next_position)
        return self._look_for(queue, PendingRewind(waiter_id, queue.queue_id, start_ms, clamped, low, high), now_ms)

    def _look_for(self, queue: Queue, rewind: PendingRewind, now_ms: int) -> Outcome[Rewound | Waiting]:
        """Ask for the next message on the way to the boundary; do it, if that is known."""
        rewindable = queue.index.rewindable
        between = rewindable.range_cardinality(rewind.low, rewind.high) if rewind.low < rewind.high else 0
        if not between:
            return self._rewind_from(queue, rewind, now_ms)
        rewind.middle = rewindable[rewindable.range_cardinality(0, rewind.low) + between // 2]
        read = self._page_read(queue, [rewind.middle], 1)
        self._rewind_reads[read.read_id] = rewind
        return Outcome(WAITING, reads=[read])

    def _rewind_from(self, queue: Queue, rewind: PendingRewind, now_ms: int) -> Outcome[Rewound | Waiting]:
        index = queue.index
        record = QueueRewound(queue.queue_id, rewind.low, index.next_position, now_ms)
        back = index.apply_rewound(record)
        reply = Rewound(len(back), rewind.time_ms, rewind.clamped)
        if not back:
            return Outcome(reply)
        self._go_back_to(queue, back[0])
        if index.attributes.dead_letter_after_ms:
            self._set_agenda(queue, now_ms + index.attributes.dead_letter_after_ms)
        records: list[AnyRecord] = [record]
        woken: list[Woken] = []
        reads: list[PageRead] = []
        self._serve(queue, records, woken, reads, now_ms)
        return Outcome(reply, records, woken=woken, reads=reads)

    def _rewind_arrived(self, read_id: int, messages: Sequence[StoredMessage], now_ms: int) -> Outcome[int]:
        """The time of a message on the way to the boundary."""
        rewind = self._rewind_reads.pop(read_id)
        queue = self.queues[rewind.queue_id]
        if not messages:
            # It cannot be read, so it cannot come back either.
            queue.index.rewindable.discard(rewind.middle)
        elif messages[0].enqueue_ms < rewind.time_ms:
            rewind.low = rewind.middle + 1
        else:
            rewind.high = rewind.middle
        if not queue.index.attributes.rewind_ms:
            error: DomainError = TimeNotRewindable(queue.name, rewind.time_ms, "its rewind window was taken away", None)
            return Outcome(0, woken=[Woken(rewind.waiter_id, error)])
        outcome = self._look_for(queue, rewind, now_ms)
        if outcome.reply is WAITING:
            return Outcome(0, reads=outcome.reads)
        woken = [Woken(rewind.waiter_id, outcome.reply), *outcome.woken]
        return Outcome(0, outcome.records, woken=woken, reads=outcome.reads)

    def _prune_rewindable(self, queue: Queue, now_ms: int) -> int | None:
        """Let go of what lies before the window; when there will be more."""
        index = queue.index
        window_ms = index.attributes.rewind_ms
        if not index.rewindable_count:
            return None
        index.rewindable.remove_range(0, index.steps.floor_at(now_ms - window_ms - 1, index.next_position))
        if not index.rewindable:
            return None
        return max(index.steps.sent_by(index.rewindable[0]) + window_ms + 1, now_ms + PRUNE_MS)
