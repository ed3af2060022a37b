"""Reservations: messages that are about to leave their queue for another queue.

A reserved message is hidden from receives. A reservation exists only in memory, and a crash forgets it: without the
record of a move the message is still in its queue. Bodies are read a page at a time, and
:mod:`cmqd.core.operations.dead_letters.message_moves` moves the messages of a page.
"""

from pyroaring import BitMap64

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.outcome import Effects
from cmqd.core.runtime.runtime import Runtime

MOVE_BYTES = 128 * 1024
"""Bytes of bodies in a page of a move, which becomes a row of the log: a millisecond or two of the loop."""
RETRY_MS = 1000
"""Pause between two tries to move messages to a queue that accepts none."""


class Reservations:
    """Reserves messages and reads their bodies."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._budget = runtime.budget
        self._lane = runtime.pages.moves

    def reserve(self, queue: Queue, positions: BitMap64) -> None:
        """Let no receive take these active messages any more."""
        queue.index.start_moving(positions)
        self._budget.forget(queue.queue_id, self._runtime[queue.queue_id].window, positions)

    def release(self, queue: Queue, positions: BitMap64) -> None:
        """Leave messages in their queue, active again."""
        if positions:
            queue.index.stop_moving(positions)
            self._runtime[queue.queue_id].window.go_back_to(positions[0])

    def release_all(self, queue: Queue) -> None:
        """Leave all reserved messages in their queue."""
        if queue.index.moving_count:
            self.release(queue, BitMap64(queue.index.moving))

    def is_reading(self, queue: Queue) -> bool:
        """Return whether a page of reserved messages is being read."""
        return queue.queue_id in self._lane.busy

    def read(self, queue: Queue, effects: Effects) -> None:
        """Request the next page of reserved messages of a queue, one page at a time."""
        index, lane, queue_id = queue.index, self._lane, queue.queue_id
        if queue_id in lane.busy or not index.moving_count:
            return
        if not lane.has_room:
            lane.line[queue_id] = None
            return
        positions = index.moving_from(self._limits.page_messages)
        lane.want(queue_id, queue_id, positions, MOVE_BYTES, None, effects.reads)

    def read_next_in_line(self, effects: Effects) -> None:
        """Request pages for the queues in line, as far as there is room."""
        while (queue_id := self._lane.next_in_line()) is not None:
            queue = self._queues.by_id.get(queue_id)
            if queue is not None:
                self.read(queue, effects)

    def page_came(self, queue_id: int) -> None:
        """Let the next page of a queue be read."""
        self._lane.busy.discard(queue_id)
