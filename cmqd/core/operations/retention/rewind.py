"""Rewind: deleted messages become active again, in a single set operation.

Only the boundary may need reads. The time steps of a queue narrow the position of a time down to a few messages. The
exact position in between is found by halving, with a read per message, so that exactly the messages sent at or after
the given time come back. The search can take several reads with other operations in between; send times of messages
never change, so these operations cannot make the boundary wrong. Which messages are still deleted is decided only when
the boundary is known.
"""

from collections.abc import Sequence
from typing import TypeAlias

from pyroaring import BitMap64

from cmqd.core.domain_errors import DomainError, TimeNotRewindable
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import WAITING, Effects, Outcome, PageRead, Waiting, Woken
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.pending import PendingRewind
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import QueueRewound, Runs, StoredMessage
from cmqd_types.queues import RewindPreview, Rewound
from cmqd_types.sentences import duration, sentence

PRUNE_MS = 1000
"""Shortest pause between two prunings of old deleted messages: disk space comes back in whole segments anyway."""

_Outcome: TypeAlias = Outcome[Rewound | RewindPreview | Waiting]
"""A rewind ends with ``Rewound``, a preview with ``RewindPreview``; both may wait for reads of the log."""


class Rewind:
    """Brings deleted messages back, and counts the messages that a rewind would bring back."""

    def __init__(self, facts: Facts, runtime: Runtime, serving: Serving) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._lane = runtime.pages.rewinds
        self._serving = serving

    def rewind(self, account: str, name: str, waiter_id: int, time_ms: int, strict: bool, now_ms: int) -> _Outcome:
        """Make all rewindable messages sent at or after ``time_ms`` active again, in order of sending, never received.

        A time before the window is clamped to the nearest time (``clamped``), or refused if ``strict``. The latest
        allowed time is that of the oldest unconsumed message (but always the start of the window). Half, delayed and
        damaged messages do not count: no consumer can receive them, so no work of consumers would lift the bound.

        Raises:
            QueueNotFound, InvalidArgument.
            TimeNotRewindable: the queue has no rewind window, or the time is too late, or too early and ``strict``.
        """
        queue, earliest_ms, latest_ms = self._times_allowed(account, name, time_ms, now_ms)
        if time_ms < earliest_ms and strict:
            window_ms = queue.index.attributes.rewind_ms
            why = sentence("its rewind window is {}", duration(window_ms))
            raise TimeNotRewindable(name, time_ms, why, earliest_ms)
        rewind = self._begin(queue, waiter_id, time_ms, earliest_ms, latest_ms, now_ms)
        return self._check_oldest(queue, rewind, now_ms)

    def preview(self, account: str, name: str, waiter_id: int, time_ms: int | None, now_ms: int) -> _Outcome:
        """Count the messages that a rewind to ``time_ms`` (None = the start of the rewind window) would make active
        again, and return the times that a rewind may have. No fact changes.

        The count is exact for the moment of the reply. A later rewind also brings back messages that are deleted in
        between, and no messages that leave the window in between.

        Raises:
            QueueNotFound, InvalidArgument.
            TimeNotRewindable: a rewind that is not strict would be refused too.
        """
        queue, earliest_ms, latest_ms = self._times_allowed(account, name, time_ms or 0, now_ms)
        start_ms = earliest_ms if time_ms is None else time_ms
        rewind = self._begin(queue, waiter_id, start_ms, earliest_ms, latest_ms, now_ms)
        rewind.is_preview = True
        return self._check_oldest(queue, rewind, now_ms)

    def _times_allowed(self, account: str, name: str, time_ms: int, now_ms: int) -> tuple[Queue, int, int]:
        """Return a queue, and the earliest and the latest time of a rewind as far as memory knows them.

        Raises:
            QueueNotFound, InvalidArgument.
            TimeNotRewindable: the queue has no rewind window, or the time is too late.
        """
        queue = self._queues.find(account, name)
        check_range("time_ms", time_ms, 0, 1 << 62)
        index = queue.index
        window_ms = index.attributes.rewind_ms
        if not window_ms:
            raise TimeNotRewindable(name, time_ms, "it has no rewind window", None)
        earliest_ms = now_ms - window_ms
        oldest = index.oldest_unconsumed()
        if oldest is None:
            latest_ms = now_ms
        else:
            oldest_message = self._runtime[queue.queue_id].window.messages.get(oldest)
            # If the body is only in the log, the time step gives a bound, and a time within the step needs a read.
            latest_ms = min(
                now_ms, index.steps.sent_by(oldest) if oldest_message is None else oldest_message.enqueue_ms
            )
        if time_ms > max(latest_ms, earliest_ms):
            raise self._too_late(name, time_ms, oldest is not None, latest_ms, earliest_ms)
        return queue, earliest_ms, latest_ms

    @staticmethod
    def _begin(
        queue: Queue, waiter_id: int, time_ms: int, earliest_ms: int, latest_ms: int, now_ms: int
    ) -> PendingRewind:
        index = queue.index
        start_ms = max(time_ms, earliest_ms)
        # After a restart the index may again have messages that were pruned before, and their bodies may be gone.
        index.prune_rewindable(now_ms)
        low, high = index.steps.around(start_ms, index.next_position)
        return PendingRewind(
            waiter_id=waiter_id,
            queue_id=queue.queue_id,
            time_ms=start_ms,
            clamped=time_ms < earliest_ms,
            low=low,
            high=high,
            unreadable=BitMap64(),
            earliest_ms=earliest_ms,
            latest_ms=latest_ms,
        )

    def _check_oldest(self, queue: Queue, rewind: PendingRewind, now_ms: int) -> _Outcome:
        """Read the time of the oldest unconsumed message if the answer depends on the time; then search."""
        index = queue.index
        oldest = index.oldest_unconsumed()
        if oldest is not None and oldest not in self._runtime[queue.queue_id].window.messages:
            # A preview tells the latest time; for a rewind the time matters only within the step of the message.
            is_bound = rewind.time_ms > rewind.earliest_ms and index.steps.sent_at(oldest) < rewind.time_ms
            if is_bound or rewind.is_preview:
                rewind.oldest = True
                rewind.middle = oldest
                return self._read_time(queue, rewind)
        return self._search(queue, rewind, now_ms)

    def _too_late(self, name: str, time_ms: int, is_held: bool, latest_ms: int, earliest_ms: int) -> TimeNotRewindable:
        why = (
            "a message that was sent before this time is not consumed yet" if is_held else "the time lies in the future"
        )
        return TimeNotRewindable(name, time_ms, why, max(latest_ms, earliest_ms))

    def _read_time(self, queue: Queue, rewind: PendingRewind) -> _Outcome:
        reads: list[PageRead] = []
        self._lane.want(queue.queue_id, queue.queue_id, [rewind.middle], 1, rewind, reads)
        return Outcome(WAITING, reads=reads)

    def _search(self, queue: Queue, rewind: PendingRewind, now_ms: int) -> _Outcome:
        """Read the next message on the way to the boundary, or rewind (or count) if the boundary is known."""
        between = BitMap64(range(rewind.low, rewind.high)) & queue.index.rewindable
        between -= rewind.unreadable
        if not between:
            if rewind.is_preview:
                return self._previewed(queue, rewind, now_ms)
            return self._rewind_from(queue, rewind, now_ms)
        rewind.middle = between[len(between) // 2]
        return self._read_time(queue, rewind)

    def _previewed(self, queue: Queue, rewind: PendingRewind, now_ms: int) -> _Outcome:
        index = queue.index
        index.prune_rewindable(now_ms)
        rewindable = index.rewindable
        return Outcome(
            RewindPreview(
                messages=rewindable.range_cardinality(rewind.low, index.next_position),
                time_ms=rewind.time_ms,
                clamped=rewind.clamped,
                earliest_ms=rewind.earliest_ms,
                latest_ms=max(rewind.latest_ms, rewind.earliest_ms),
                oldest_ms=max(rewind.earliest_ms, index.steps.sent_at(rewindable.min())) if rewindable else None,
            )
        )

    def _rewind_from(self, queue: Queue, rewind: PendingRewind, now_ms: int) -> _Outcome:
        runtime = self._runtime[queue.queue_id]
        index = queue.index
        index.prune_rewindable(now_ms)
        first = next(index.rewindable.iter_equal_or_larger(rewind.low), None) if index.rewindable_count else None
        if first is None:
            return Outcome(Rewound(messages=0, time_ms=rewind.time_ms, clamped=rewind.clamped))
        record = index.with_rewind_floor(QueueRewound(queue.queue_id, first, index.next_position, now_ms))
        back = index.apply_rewound(record)
        # Rewound messages start anew, without the receives from before their delete.
        runtime.overdue -= back
        runtime.unmovable -= back
        runtime.window.go_back_to(first)
        if index.attributes.dead_letter_after_ms:
            self._agenda.reviews.set(queue.queue_id, now_ms + index.attributes.dead_letter_after_ms)
        effects = Effects([record])
        rewound = Rewound(messages=len(back), time_ms=rewind.time_ms, clamped=rewind.clamped)
        return self._serving.served(queue, effects, rewound, now_ms)

    def on_page(
        self,
        reading: Reading[PendingRewind],
        messages: Sequence[StoredMessage],
        missing: Runs,
        effects: Effects,
        now_ms: int,
    ) -> int:
        """Use the time of a message on the way to the boundary. An unreadable message is not reported as damaged,
        because only its time was needed.
        """
        self._lane.busy.discard(reading.owner_id)
        rewind = reading.request
        queue = self._queues.by_id[rewind.queue_id]
        index = queue.index
        window_ms = index.attributes.rewind_ms
        enqueue_ms = messages[0].enqueue_ms if messages else None
        error: DomainError | None = None
        if not window_ms:
            error = TimeNotRewindable(queue.name, rewind.time_ms, "its rewind window was removed", None)
        elif rewind.oldest:
            # The time of an unreadable message is known to a time step only.
            rewind.oldest = False
            if enqueue_ms is not None and rewind.middle in index.live:
                rewind.latest_ms = min(rewind.latest_ms, enqueue_ms)
                if rewind.latest_ms < rewind.time_ms and rewind.time_ms > rewind.earliest_ms:
                    error = self._too_late(queue.name, rewind.time_ms, True, enqueue_ms, now_ms - window_ms)
        elif enqueue_ms is None:
            # The neighbours of an unreadable message decide. Between an earlier and a later neighbour the message
            # counts as sent later, and comes back.
            rewind.unreadable.add(rewind.middle)
        elif enqueue_ms < rewind.time_ms:
            rewind.low = rewind.middle + 1
        else:
            rewind.high = rewind.middle
        if error is not None:
            effects.woken.append(Woken(rewind.waiter_id, error))
            return 0
        outcome = self._search(queue, rewind, now_ms)
        if outcome.reply is not WAITING:
            effects.woken.append(Woken(rewind.waiter_id, outcome.reply))
        effects.add(outcome)
        return 0

    def prune(self, queue: Queue, now_ms: int) -> int | None:
        """Prune deleted messages from before the rewind window. Returns the time of the next pruning, if any."""
        index = queue.index
        index.prune_rewindable(now_ms)
        if not index.rewindable_count:
            # The queue may be empty from here on.
            self._agenda.plan_auto_delete(queue, now_ms)
            return None
        due_ms = index.steps.sent_by(next(iter(index.rewindable))) + index.attributes.rewind_ms + 1
        return max(due_ms, now_ms + PRUNE_MS)
