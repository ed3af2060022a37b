"""The ends of waits: receives that get no message within their wait, or that wait at a queue which is deleted.

A receive that waits for a read is not answered empty when its wait ends. The read is under way and may serve the
receive; with an empty reply the messages would reach memory without a receive that takes them.

Leases and delays end in buckets, so a message comes up to 100 ms after its time. A wait that ends in such a bucket
would end before the message although the message's time came first: a receive that waits exactly as long as a delay
would always come back empty. Such a wait is *held*: while its bucket has a lease or a delay of the queue that is still
alive, the receive stays in line, for at most ``HELD_MS`` (decision 0211). Entries of messages that were deleted are
dropped from the bucket here, a bounded number in a tick; they hold no wait, and each is examined once.

The order in a tick: waits end first, then leases and delays, then the waits that were held. With waits at the end,
messages that become active in a late tick would go to receives whose clients gave up long ago. With the held waits
first, a wait would end in the same tick as its bucket, and in front of it.
"""

from array import array
from collections.abc import Callable

from cmqd.core.domain_errors import DomainError
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.outcome import Effects, Woken
from cmqd.core.runtime.agenda import WAIT_BUCKET_MS
from cmqd.core.runtime.runtime import Runtime

ENDED_AT_ONCE = 512
"""Largest number of receives that a call ends when a queue is deleted: about 2 ms, most of the time in the server."""
EXAMINED = 3
"""Stale entries that a tick examines for each item of other work: a look-up takes a fraction of the end of a lease."""
HELD_MS = 100
"""Longest time that a wait is held: the width of the widest bucket, so every bucket comes due within it."""


class Waits:
    """Ends the waits of receives."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._leases = facts.queues.leases
        self._delays = facts.queues.delays.near
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._due = runtime.agenda.waits
        self._held = runtime.agenda.held_waits
        self._waiters = runtime.waiters
        self._lane = runtime.pages.receives

    def end_at_deleted(self, queue: Queue, error: DomainError) -> list[Woken]:
        """End the waits at a queue that is deleted: some at once, the others by the next ticks."""
        waiter_ids = [waiter.waiter_id for waiter in self._runtime[queue.queue_id].line.take_all()]
        # The line is emptied at once, so a new queue of the same name starts without old receives; the answers of a
        # long line are spread over ticks, or the delete would hold up the loop.
        woken = [Woken(waiter_id, error) for waiter_id in waiter_ids[:ENDED_AT_ONCE]]
        for answer in woken:
            del self._waiters[answer.waiter_id]
        if len(waiter_ids) > ENDED_AT_ONCE:
            self._agenda.ended_waits.append((error, waiter_ids[ENDED_AT_ONCE:]))
        return woken

    def tick(self, effects: Effects, now_ms: int) -> None:
        """End waits: of receives at deleted queues, and of receives that waited for their time."""
        self._end_at_deleted_queues(effects)
        due = self._due.take_due(now_ms, self._limits.tick_items)
        if due is not None:
            self._end(*due, self._may_be_held, effects, now_ms)

    def tick_held(self, effects: Effects, now_ms: int) -> None:
        """End waits that were held, behind the leases and delays of this tick."""
        due = self._held.take_due(now_ms, self._limits.tick_items)
        if due is not None:
            self._end(*due, self._held_until, effects, now_ms)

    def _end_at_deleted_queues(self, effects: Effects) -> None:
        """Answer some of the receives that waited at deleted queues."""
        if not self._agenda.ended_waits:
            return
        error, waiter_ids = self._agenda.ended_waits[0]
        for waiter_id in waiter_ids[-ENDED_AT_ONCE:]:
            # A receive that was cancelled since the deletion has no entry any more.
            if self._waiters.pop(waiter_id, None) is not None:
                effects.woken.append(Woken(waiter_id, error))
        del waiter_ids[-ENDED_AT_ONCE:]
        if not waiter_ids:
            self._agenda.ended_waits.popleft()

    def _end(
        self,
        queue_id: int,
        waiter_ids: "array[int]",
        find_end: Callable[[Queue, int, int], int],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """End due waits at a queue, or hold them for as long as ``find_end`` says. A receive that a page being read may
        still serve stays in line, as overdue.
        """
        queue = self._queues.by_id.get(queue_id)
        if queue is None:
            return
        held_until_ms: dict[int, int] = {}
        """By the end of the bucket of the wait: receives of a bucket share the examination."""
        for waiter_id in waiter_ids:
            waiter = self._waiters.get(waiter_id)
            if waiter is None:
                continue
            latest_ms = waiter.deadline_ms + HELD_MS
            if now_ms < latest_ms:
                end_ms = -(-waiter.deadline_ms // WAIT_BUCKET_MS) * WAIT_BUCKET_MS
                until_ms = held_until_ms.get(end_ms)
                if until_ms is None:
                    # A single examination a tick: if it has to go on, it goes on for all.
                    is_open = now_ms in held_until_ms.values()
                    until_ms = now_ms if is_open else find_end(queue, end_ms, now_ms)
                    held_until_ms[end_ms] = until_ms
                if until_ms:
                    self._held.bucket(min(until_ms, latest_ms), queue_id).append(waiter_id)
                    self._held.size += 1
                    continue
            # Active messages and a page under way, or copies of a publish that are still to be served: an answer is
            # near, and it may have messages.
            if queue.index.active_count and (
                queue_id in self._lane.busy or queue_id in self._lane.line or queue_id in self._agenda.unserved
            ):
                self._runtime[queue_id].line.set_overdue(waiter)
            else:
                self._runtime[queue_id].line.remove(waiter_id)
                del self._waiters[waiter_id]
                effects.woken.append(Woken(waiter_id, []))

    def _may_be_held(self, queue: Queue, end_ms: int, now_ms: int) -> int:
        """Return ``now_ms`` if the buckets of a wait have entries, stale or not, to be examined later in the tick."""
        index, queue_id = queue.index, queue.queue_id
        # Most waits end here: an idle consumer waits for new messages.
        if index.in_flight_count and self._leases.around(end_ms, HELD_MS, queue_id):
            return now_ms
        return now_ms if index.delays.scheduled_count and self._delays.around(end_ms, HELD_MS, queue_id) else 0

    def _held_until(self, queue: Queue, end_ms: int, now_ms: int) -> int:
        """Return until when a wait is held, given the end of its bucket of waits; 0 = the wait ends now.

        Buckets of waits do not cross the ends of the wider buckets, so the end of the wait's bucket stands for its
        deadline. The result is ``now_ms`` if the next tick is to examine the wait again.
        """
        index = queue.index
        if index.in_flight_count:
            until_ms = self._lease_ends_ms(queue, end_ms, now_ms)
            if until_ms:
                return until_ms
        return self._delay_ends_ms(queue, end_ms, now_ms) if index.delays.scheduled_count else 0

    def _lease_ends_ms(self, queue: Queue, time_ms: int, now_ms: int) -> int:
        """Return when the bucket of a time ends a lease of the queue; ``now_ms`` if not known yet, 0 = never."""
        index, queue_id = queue.index, queue.queue_id
        in_flight, floor = index.leases.by_number, index.floor
        left = EXAMINED * self._limits.tick_items
        for due_ms, pairs in self._leases.around(time_ms, HELD_MS, queue_id):
            stale = 0
            while stale < len(pairs):
                if left <= 0:
                    self._leases.drop_last(due_ms, queue_id, stale)
                    return now_ms
                first, count = pairs[-stale - 2], pairs[-stale - 1]
                left -= count
                for lease in range(first, first + count):
                    entry = in_flight.get(lease)
                    # A later deadline has an entry in its own bucket.
                    if entry is None or entry.deadline_ms > due_ms:
                        continue
                    if entry.position >= floor:
                        self._leases.drop_last(due_ms, queue_id, stale)
                        return max(now_ms, due_ms)
                    # The message is gone, and no other entry would come due that forgets the lease.
                    del in_flight[lease]
                stale += 2
            self._leases.drop_last(due_ms, queue_id, stale)
        return 0

    def _delay_ends_ms(self, queue: Queue, time_ms: int, now_ms: int) -> int:
        """Do the same as :meth:`_lease_ends_ms` for the ends of delays."""
        scheduled, queue_id = queue.index.delays.scheduled, queue.queue_id
        left = EXAMINED * self._limits.tick_items
        for due_ms, positions in self._delays.around(time_ms, HELD_MS, queue_id):
            stale = 0
            while stale < len(positions):
                is_known = left > 0
                if not is_known or positions[-stale - 1] in scheduled:
                    self._delays.drop_last(due_ms, queue_id, stale)
                    return max(now_ms, due_ms) if is_known else now_ms
                left -= 1
                stale += 1
            self._delays.drop_last(due_ms, queue_id, stale)
        return 0
