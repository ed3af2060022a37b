"""Floors: all messages of a queue below a position are gone, expired or cleared.

The facts change first, and then the bodies in memory go. A queue without live messages forgets its window whole and
does not turn cold: the next send begins a new window.

Retention moves no floor over a message that is moving to the dead-letter queue at its consumer's request: what the
consumer rejected must reach the dead-letter queue, or be reported. A clear does.
"""

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import MessagesExpired, QueueCleared


class Floors:
    """Moves the floor of a queue, and forgets bodies below it."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._budget = runtime.budget
        self._agenda = runtime.agenda
        self._rejections = runtime.rejections

    def held(self, queue: Queue, floor: int) -> int:
        """Return ``floor``, or the lowest message below it that is moving at its consumer's request."""
        rejections = self._rejections.get(queue.queue_id)
        if rejections is None:
            return floor
        # A message that was cleared while its body was read is not moved, and holds no other message.
        first = queue.index.floor
        return min((position for position in rejections.by_position if first <= position < floor), default=floor)

    def apply(self, queue: Queue, record: QueueCleared | MessagesExpired, now_ms: int) -> None:
        """Remove every message below the floor of a record, and the bodies in memory."""
        runtime = self._runtime[queue.queue_id]
        if queue.index.held_count:
            # A queue is in use as long as a message is in flight or delayed, which may end here.
            runtime.used_ms = now_ms
        self._queues.apply_floor(queue, record)
        window = runtime.window
        if queue.index.live_count:
            self._budget.drop_below(queue.queue_id, window, record.floor)
        else:
            self._budget.clear(queue.queue_id, window)
        self._agenda.want_overflow(queue)
