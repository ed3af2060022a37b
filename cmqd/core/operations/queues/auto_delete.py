"""Auto-delete: queues that are deleted because they were not used for the time ``auto_delete_after_ms``.

Uses are a receive, a delete or change of a lease, a send (also a refused send), a copy that is stored, and a change of
attributes. A waiting receive is a use until the time that the receive asked to wait for. A queue is also in use while
it has a message in flight, delayed, half or moving, and during a redrive; the end of that state is then the last use.
(Checkers register for transactional queues alone, and these are never auto-deleted.)

Last uses are runtime and have no record: with a record for every receive, an idle queue would fill the log. After a
start the last use is unknown, so the start counts as a use. An outage deletes no queue, because the edge sets the time
since which clients can reach the broker without a pause (``Gates.listening_since_ms``).

A use only notes its time. It moves no plan, because a plan would cost every receive an entry in a heap. The plan of a
queue is therefore a lower bound: the queue is examined when the time after an earlier use has passed, and is then
planned for the end of the time after the newest use. Examination and deletion are one call, so no send can come between
the two.
"""

from collections.abc import Sequence

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.queues.administration import QueueAdmin
from cmqd.core.outcome import Effects, UnusedQueue
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import UNUSED

EXAMINED_AT_ONCE = 64
"""Queues that a tick examines: about a tenth of a millisecond. At most one of them is deleted."""


class AutoDelete:
    """Deletes unused queues."""

    def __init__(self, facts: Facts, runtime: Runtime, queues: QueueAdmin) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._gates = runtime.gates
        self._plan = runtime.agenda.auto_deletes
        self._admin = queues

    def tick(self, effects: Effects, now_ms: int) -> Sequence[UnusedQueue]:
        """Examine queues that may be unused for their time, and delete the first that is; return it."""
        for _ in range(EXAMINED_AT_ONCE):
            if not self._plan.is_due(now_ms):
                break
            queue_id = self._plan.take(now_ms)
            queue = None if queue_id is None else self._queues.by_id.get(queue_id)
            if queue is not None and self._is_unused(queue, now_ms):
                return [self._delete(queue, effects, now_ms)]
        return ()

    def _is_unused(self, queue: Queue, now_ms: int) -> bool:
        """Return whether a queue is to be deleted now; if not, plan its next examination."""
        attributes = queue.index.attributes
        after_ms = attributes.auto_delete_after_ms
        if not after_ms:
            # Switched off since the queue was planned.
            return False
        runtime = self._runtime[queue.queue_id]
        listening_since_ms = self._gates.listening_since_ms
        if listening_since_ms is None or not runtime.used_ms or self._is_in_use(queue):
            runtime.used_ms = now_ms
        due_ms = max(runtime.used_ms, runtime.waited_until_ms, listening_since_ms or 0) + after_ms
        if due_ms <= now_ms and attributes.auto_delete_only_empty and self._has_messages(queue):
            # The last message leaves by a delete, which is a use, or by a clear or the end of its retention or rewind
            # window, which plan an examination.
            due_ms = now_ms + after_ms
        if due_ms > now_ms:
            self._plan.set(queue.queue_id, due_ms)
            return False
        return True

    def _is_in_use(self, queue: Queue) -> bool:
        """Return whether a queue has a receive in line, or a message that is neither active nor damaged."""
        index, runtime = queue.index, self._runtime[queue.queue_id]
        if runtime.line.waiting or runtime.redriving is not None:
            return True
        # Roles that rule each other out. After a loss of a part of the log a queue may have both, and is kept.
        if queue.sources or queue.dead_letters is not None or index.attributes.transactional:
            return True
        return index.held_count > 0

    def _has_messages(self, queue: Queue) -> bool:
        """Return whether a message would be lost: rewindable and damaged messages count too."""
        return bool(queue.index.live_count or queue.index.rewindable_count)

    def _delete(self, queue: Queue, effects: Effects, now_ms: int) -> UnusedQueue:
        runtime, index = self._runtime[queue.queue_id], queue.index
        unused = UnusedQueue(
            account=queue.account,
            queue=queue.name,
            queue_id=queue.queue_id,
            messages=index.live_count + index.rewindable_count,
            unused_ms=now_ms - max(runtime.used_ms, runtime.waited_until_ms),
        )
        self._admin.remove(queue, UNUSED, effects)
        return unused
