"""Dead letters: which messages are to leave their queue for its dead-letter queue, and when.

Policy 0 (``dead_letter_max_receives``): the lease of the last receive that is allowed ended. Policy 1
(``dead_letter_after_ms``): the message has been active for so long, received or not; one that is in flight is found
when its lease ends. What is found is reserved by a set operation, however much it is, so that nobody receives it any
more and what is behind it is delivered at once; :mod:`cmqd.core.moving` moves it page by page.

While the dead-letter queue takes none, because it is full or what it held before is not consumed, its sources keep
theirs, receivable.
"""

from collections.abc import Iterable

from pyroaring import BitMap64

from cmqd.core.outcome import Effects
from cmqd.core.queue import Queue
from cmqd.core.receiving import Receiving
from cmqd_fold.queue_index import QueueIndex

MOVE_BYTES = 128 * 1024
"""Bodies of one page of a move, which is one row of the log: a millisecond or two of the loop."""
MAX_MOVE_READS = 8
"""Pages of moves that are read at once, of all queues: a receive that waits for a page has few of them before it."""
RETRY_MS = 1000
"""Between two looks at a dead-letter queue that takes none."""


class DeadLettering(Receiving):
    """The part of the broker that finds dead letters; :mod:`cmqd.core.moving` has the rest."""

    def dead_letter_sources(self, account: str, name: str) -> list[tuple[int, str]]:
        """(id, name) of the queues whose dead letters go to this one, by name. Raises QueueNotFound."""
        sources = self.queue(account, name).sources.values()
        return sorted(((queue.queue_id, queue.name) for queue in sources), key=lambda found: found[1])

    def _came_back(self, queue: Queue, back: Iterable[tuple[int, int]], effects: Effects, now_ms: int) -> None:
        """Leases have ended: (position, receive count) of their messages, which are active now."""
        most = queue.index.attributes.dead_letter_max_receives
        if most:
            queue.overdue |= BitMap64([position for position, count in back if count >= most])
            if not queue.overdue:
                return
        if queue.dead_letters is not None and _takes_none(queue.dead_letters):
            # Found when it is looked at again, and not sought each time a lease ends.
            self._set_agenda(queue, now_ms + RETRY_MS)
            return
        next_ms = self._find_dead(queue, effects, now_ms)
        if next_ms is not None:
            self._set_agenda(queue, next_ms)

    def _find_dead(self, queue: Queue, effects: Effects, now_ms: int) -> int | None:
        """Reserve what is to be moved by now, and begin; when to look again."""
        target, index = queue.dead_letters, queue.index
        if target is None or not index.live_count:
            return None
        if self.moves_held_up:
            self._stop_moving(queue, BitMap64(index.moving) if index.moving_count else BitMap64())
            return now_ms + RETRY_MS
        after_ms = index.attributes.dead_letter_after_ms
        if after_ms:
            dead, next_ms = self._too_old(queue, after_ms, now_ms)
        else:
            queue.overdue &= index.live
            dead, next_ms = queue.overdue & index.active, None
        if queue.unmovable:
            queue.unmovable &= index.live
            dead -= queue.unmovable
        if dead:
            if _takes_none(target):
                return now_ms + RETRY_MS
            index.start_moving(dead)
            self._budget.forget(queue.queue_id, queue.window, dead)
        self._read_moving(queue, effects)
        return next_ms

    def _too_old(self, queue: Queue, after_ms: int, now_ms: int) -> tuple[BitMap64, int | None]:
        """Active messages that have been so for too long, and when there may be others."""
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

    def _stop_moving(self, queue: Queue, positions: BitMap64) -> None:
        """They stay where they are, active again."""
        if positions:
            queue.index.stop_moving(positions)
            self._go_back_to(queue, positions[0])

    def _read_moving(self, queue: Queue, effects: Effects) -> None:
        """Ask for the next page of what is reserved, one at a time for each queue."""
        index = queue.index
        if queue.move_reading or not index.moving_count:
            return
        if len(self._move_reads) >= MAX_MOVE_READS:
            self._move_line[queue.queue_id] = None
            return
        queue.move_reading = True
        read = self._page_read(queue, index.moving_from(self.limits.page_messages), MOVE_BYTES)
        self._move_reads[read.read_id] = read
        effects.reads.append(read)

    def _read_next_in_line(self, effects: Effects) -> None:
        """A page of a move has come: whoever stands in line is next."""
        while self._move_line and len(self._move_reads) < MAX_MOVE_READS:
            queue_id = next(iter(self._move_line))
            del self._move_line[queue_id]
            queue = self.queues.get(queue_id)
            if queue is not None:
                self._read_moving(queue, effects)


def _takes_none(target: Queue) -> bool:
    index = target.index
    return index.live_count >= index.attributes.max_backlog or not index.takes_dead_letters


def active_below(index: QueueIndex, stop: int) -> BitMap64:
    """What is active below a position; there must be something active.

    A range costs as much as it is wide, however little of it is active; a copy as much as there is of all that is
    active, in chunks of 65,536 positions. So it is the one that costs less at most.
    """
    first = index.first_active()
    if first >= stop:
        return BitMap64()
    if min(index.active_count, (index.next_position - first) >> 16) > (stop - first) >> 15:
        return index.active & BitMap64(range(first, stop))
    found = BitMap64(index.active)
    found.remove_range(stop, index.next_position + 1)
    return found
