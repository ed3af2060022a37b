"""Dead letters: the search for messages that must leave their queue for its dead-letter queue.

Policy 0 (``dead_letter_max_receives``): the lease of the last allowed receive ended. Policy 1
(``dead_letter_after_ms``): the message has been active for the set time, received or not; a message in flight is
examined when its lease ends.

All dead letters of a queue are reserved at once, by a set operation, before the first body is read. Otherwise a
consumer could receive a dead letter again while the pages in front of it are moved, and the messages behind dead
letters would wait for the move. ``message_moves`` then moves the messages page by page.

A dead-letter queue accepts no messages while it is full, or while messages from before its role are not consumed. Its
sources keep their dead letters meanwhile, and the messages stay receivable: a reservation without an end would hide the
messages from consumers and from the dead-letter queue alike.
"""

from collections.abc import Iterable

from pyroaring import BitMap64

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.dead_letters.reservations import RETRY_MS, Reservations
from cmqd.core.outcome import Effects
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.queue_index import QueueIndex


class DeadLetterSearch:
    """Finds dead letters."""

    def __init__(self, facts: Facts, runtime: Runtime, reservations: Reservations) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._gates = runtime.gates
        self._reservations = reservations

    def came_back(self, queue: Queue, back: Iterable[tuple[int, int]], effects: Effects, now_ms: int) -> None:
        """Search for dead letters after leases ended. ``back`` has (position, receive count) of the active messages."""
        runtime = self._runtime[queue.queue_id]
        max_receives = queue.index.attributes.dead_letter_max_receives
        if max_receives:
            runtime.overdue |= BitMap64([position for position, count in back if count >= max_receives])
            if not runtime.overdue:
                return
        if queue.dead_letters is not None and _takes_none(queue.dead_letters):
            # Dead letters are found at the next review. A search at every lease that ends would find the same messages
            # again and again while the target accepts none.
            self._agenda.reviews.set(queue.queue_id, now_ms + RETRY_MS)
            return
        next_ms = self.find(queue, effects, now_ms)
        if next_ms is not None:
            self._agenda.reviews.set(queue.queue_id, next_ms)

    def find(self, queue: Queue, effects: Effects, now_ms: int) -> int | None:
        """Reserve the dead letters and begin to move them. Returns the time of the next review, None if none is due."""
        runtime = self._runtime[queue.queue_id]
        target, index = queue.dead_letters, queue.index
        if target is None or not index.live_count:
            return None
        if self._gates.moves_held_up:
            self._reservations.release_all(queue)
            return now_ms + RETRY_MS
        after_ms = index.attributes.dead_letter_after_ms
        if after_ms:
            dead, next_ms = self._too_old(queue, after_ms, now_ms)
        else:
            runtime.overdue &= index.live
            dead, next_ms = runtime.overdue & index.active, None
        if runtime.unmovable:
            runtime.unmovable &= index.live
            dead -= runtime.unmovable
        if dead:
            if _takes_none(target):
                return now_ms + RETRY_MS
            self._reservations.reserve(queue, dead)
        self._reservations.read(queue, effects)
        return next_ms

    def _too_old(self, queue: Queue, after_ms: int, now_ms: int) -> tuple[BitMap64, int | None]:
        """Return the messages that have been active for too long, and the time when there may be more."""
        index = queue.index
        since_ms = now_ms - after_ms
        dead = BitMap64()
        if index.active_count:
            dead = active_below(index, index.steps.floor_at(since_ms, index.next_position))
        times: list[int] = []
        end_ms = index.steps.next_end_ms(since_ms)
        if end_ms is not None:
            times.append(end_ms + after_ms)
        if index.activations.positions:
            dead -= index.activations.positions
            dead |= index.activations.take_due(now_ms, after_ms, index.live) & index.active
            due_ms = index.activations.first_due_after(now_ms, after_ms)
            if due_ms is not None:
                times.append(due_ms)
        return dead, min(times, default=None)


def _takes_none(target: Queue) -> bool:
    index = target.index
    return index.live_count >= index.attributes.max_backlog or not index.takes_dead_letters


def active_below(index: QueueIndex, stop: int) -> BitMap64:
    """Return the active positions below ``stop``; the queue must have active messages.

    An intersection with a range costs time by the width of the range, even if few of the positions are active. A copy
    costs time by the number of all active positions, in chunks of 65,536. The cheaper way is chosen by upper bounds.
    """
    first = index.first_active()
    if first >= stop:
        return BitMap64()
    if min(index.active_count, (index.next_position - first) >> 16) > (stop - first) >> 15:
        return index.active & BitMap64(range(first, stop))
    positions = BitMap64(index.active)
    positions.remove_range(stop, index.next_position + 1)
    return positions
