"""Storing messages at the end of a queue: sent, half, committed, moved and copied messages alike.

The record is applied first, then the follow-up work is planned (expiry, dead letters by age, sweeps), and last the
bodies are kept in memory if they are near enough to the head of the queue. The order matters: whether the queue was
empty is read before the record is applied, because only the first messages of an empty queue can start a new window.

The window must have no gap. A body that follows a body without room is not kept, even if it is small: the queue becomes
cold, and pages of the log continue the window at ``paged_until``. With a gap in memory, reads ahead would skip the
messages in between, and the head would wait for a read each time.
"""

from collections.abc import Sequence

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.outcome import Effects
from cmqd.core.runtime.agenda import SESSION_SWEEP_MS
from cmqd.core.runtime.copies import PublishedCopies
from cmqd.core.runtime.queue import QueueRuntime
from cmqd.core.runtime.runtime import Runtime
from cmqd.core.runtime.window import OVERHEAD_BYTES, cost
from cmqd_segment.records import MessagesSent, Runs, StoredMessage
from cmqd_types.messages import CopyOf, Origin


class Store:
    """Puts messages into queues.

    The caller serves the receives in line, once, after all its messages are stored. Served after every record, the
    receives would need a record each.
    """

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._budget = runtime.budget
        self._agenda = runtime.agenda
        self._dedup_life_ms = facts.limits.dedup_life_ms

    def store(self, queue: Queue, record: MessagesSent, bodies: list[bytes]) -> None:
        """Add new messages to a queue."""
        index, agenda = queue.index, self._agenda
        # Read before the record is applied; afterwards the new messages themselves are active.
        was_empty = not index.active_count
        if self._queues.apply_sent(queue, record):
            # Once per time step, not per message: all messages of a step expire together.
            agenda.plan_expiry(queue)
        if index.attributes.dead_letter_after_ms:
            agenda.reviews.set(queue.queue_id, record.enqueue_ms + index.attributes.dead_letter_after_ms)
        # Plans are only ever moved earlier, so setting one that stands is free, and no plan can be lost by an order of
        # calls. A review that finds no work plans its own successor.
        if record.dedup_ids is not None:
            agenda.dedup_sweeps.set(queue.queue_id, record.enqueue_ms + self._dedup_life_ms)
        if agenda.sessions_due_ms is None and (record.sequence or record.numbered):
            agenda.sessions_due_ms = record.enqueue_ms + SESSION_SWEEP_MS
        if record.half:
            # Half messages have a part of the window of their own. Among the bodies near the head, which are taken in
            # order of position, an undecided message would hold its place for as long as its producer likes.
            self._keep_half(queue, record, bodies)
            return
        runtime = self._runtime[queue.queue_id]
        runtime.used_ms = record.enqueue_ms
        if record.visible_ms is not None:
            # Asked even if places are free: behind messages in overflow a new message waits too, and only a tick gives
            # places, in order of sending.
            agenda.want_overflow(queue)
            self._keep_soon(queue, runtime, record, bodies)
        self._keep_bodies(queue, runtime, record, bodies, was_empty)

    def store_again(
        self,
        queue: Queue,
        messages: Sequence[StoredMessage],
        first_id: int,
        effects: Effects,
        now_ms: int,
        origins: list[Origin | None] | None = None,
        copies_of: list[CopyOf | None] | None = None,
        actors: Runs | None = None,
    ) -> None:
        """Store messages that are in the log already: committed, moved or copied messages.

        ``actors``: the clients that had committed messages stored, as in the record.

        The backlog limit of the queue does not apply here. Callers check it where it matters; a committed message was
        counted as half.
        """
        index = queue.index
        headers = [message.headers for message in messages]
        record = MessagesSent(
            queue.queue_id,
            index.next_position,
            first_id,
            # The send time is new too: a moved or committed message begins its retention anew in this queue. Times of a
            # queue never decrease, even if the clock does.
            max(now_ms, index.last_enqueue_ms),
            [len(message.body) for message in messages],
            headers if any(headers) else None,
            origins=origins,
            copies_of=copies_of,
            actors=actors or [],
        )
        bodies = [message.body for message in messages]
        self.store(queue, record, bodies)
        # The caller appends the record that ends the old message to the same effects: a row holds both or neither, so a
        # crash cannot lose the message or double it.
        effects.records.append(record)
        effects.bodies += bodies

    def _keep_bodies(
        self, queue: Queue, runtime: QueueRuntime, record: MessagesSent, bodies: list[bytes], was_empty: bool
    ) -> None:
        """Keep in memory the bodies near the head, as far as there is room."""
        window = runtime.window
        budget = self._budget
        headers = record.headers
        visible = record.visible_ms
        if window.cold:
            if not was_empty:
                # Older bodies are in the log alone. New bodies in memory would only push out the pages that are read
                # next.
                return
            # An empty queue has no older bodies: the window begins anew with these.
            window.cold = False
        # Bodies that are received at once need no room. (Waiting receives may still be held up, by a page or by the
        # limit of messages in flight; then the bodies stay, above the budget, until the next serving.)
        goes_out = was_empty and len(runtime.line.waiting) > 0
        origins, copies_of = record.origins, record.copies_of
        if visible is None and headers is None and origins is None and copies_of is None:
            # The usual send: all its bodies are kept, or none by this path. One look at the budget for the whole batch
            # in place of one per message.
            count = len(bodies)
            size = sum(record.sizes) + count * OVERHEAD_BYTES
            if goes_out or budget.used + size <= budget.limit or budget.has_room(queue.queue_id, size):
                position, message_id, at_ms = record.first_position, record.first_message_id, record.enqueue_ms
                messages = window.messages
                for body in bodies:
                    messages[position] = StoredMessage(position, message_id, at_ms, body)
                    position += 1
                    message_id += 1
                budget.kept(queue.queue_id, window, size)
                return
        position, message_id, enqueue_ms = record.first_position, record.first_message_id, record.enqueue_ms
        for offset, body in enumerate(bodies):
            if visible is not None:
                due_ms = visible if isinstance(visible, int) else visible[offset]
                if due_ms > enqueue_ms:
                    # Still delayed: ``_keep_soon`` or a prefetch keeps the body, nearer to its time.
                    continue
            else:
                due_ms = 0
            message = StoredMessage(
                position=position + offset,
                message_id=message_id + offset,
                enqueue_ms=enqueue_ms,
                body=body,
                headers=headers[offset] if headers else None,
                visible_ms=due_ms,
                origin=origins[offset] if origins else None,
                copy_of=copies_of[offset] if copies_of else None,
            )
            # The first body without room ends the window, see the module. ``paged_until`` is set to its position, so
            # the first page begins exactly there.
            if not goes_out and not budget.has_room(queue.queue_id, cost(message)):
                window.cold = True
                window.paged_until = position + offset
                return
            budget.keep(queue.queue_id, window, message)

    def _keep_soon(self, queue: Queue, runtime: QueueRuntime, record: MessagesSent, bodies: list[bytes]) -> None:
        """Keep the bodies of delayed messages that are due so soon that a prefetch would read them right away."""
        visible, headers = record.visible_ms, record.headers
        for offset, body in enumerate(bodies):
            due_ms = visible if isinstance(visible, int) else visible[offset] if visible else 0
            position = record.first_position + offset
            if (
                # Prefetches have passed this time already and will not come back for these messages. Messages in
                # overflow are left out: their due time is not known to the index.
                record.enqueue_ms < due_ms <= self._agenda.prefetched_until_ms
                and position in queue.index.delays.scheduled
            ):
                message = StoredMessage(
                    position,
                    record.first_message_id + offset,
                    record.enqueue_ms,
                    body,
                    headers[offset] if headers else None,
                    due_ms,
                )
                # No gap can arise here: delayed bodies are not part of the window, and a body that is missing when its
                # delay ends is read then.
                if not self._budget.has_room(queue.queue_id, cost(message)):
                    return
                # Not in the window yet. Among the active bodies a receive would take the message before its time.
                self._budget.keep_soon(queue.queue_id, runtime.window, message)

    def _keep_half(self, queue: Queue, record: MessagesSent, bodies: list[bytes]) -> None:
        """Keep the bodies of half messages: most of them are committed within milliseconds."""
        headers, check_ms = record.headers, record.visible_ms
        window = self._runtime[queue.queue_id].window
        for offset, body in enumerate(bodies):
            message = StoredMessage(
                record.first_position + offset,
                record.first_message_id + offset,
                record.enqueue_ms,
                body,
                headers[offset] if headers else None,
                # The time of the first check, in the field that delayed messages have for their due time: a check that
                # is sent from memory needs it for its intervals.
                check_ms if isinstance(check_ms, int) else 0,
            )
            # The oldest half messages make room for newer ones: the producer of an old half message is slow or gone,
            # and the commit can wait for a read.
            self._budget.keep_half(queue.queue_id, window, message)

    def keep_copies(self, queue: Queue, copies: PublishedCopies, place: int, was_empty: bool) -> None:
        """Keep in memory the copies near the head of the queue, as far as there is room."""
        runtime, budget = self._runtime[queue.queue_id], self._budget
        window = runtime.window
        if window.cold:
            if not was_empty:
                return
            window.cold = False
        # As in ``_keep_bodies``: messages that go out at once need no room.
        goes_out = was_empty and len(runtime.line.waiting) > 0
        # Message objects are made only here, for queues near their head. A publish to a cold queue makes none.
        for message in copies.messages(place):
            size = cost(message)
            if not goes_out and not budget.has_room(queue.queue_id, size):
                # The copies are in the log, in the row of the publish: the pages go on from this position.
                window.go_back_to(message.position)
                return
            window.messages[message.position] = message
            budget.kept(queue.queue_id, window, size)
