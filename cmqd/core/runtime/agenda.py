"""The agenda: when work comes due that no client asks for, and the work that waits for the next tick.

Each kind of work has its own plan, and a tick takes a bounded slice of each kind in turn. With a single heap for all
kinds, a million leases that end in one second would hold up the expiry of every other queue.

Leases, delays and checks are not plans but buckets (:mod:`cmqd.core.facts.deadlines`): there is an entry for every
message, 8 or 16 bytes instead of a tuple in a heap, and a checkpoint reads the due times of delays from the buckets.
"""

from collections import deque
from collections.abc import Sized
from heapq import heapify, heappop, heappush

from cmqd.core.domain_errors import DomainError
from cmqd.core.facts.deadlines import DeadlineBuckets
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.queues import QueueTable
from cmqd.core.facts.topic import Topic
from cmqd.core.limits import Limits
from cmqd.core.runtime.copies import Unserved

WAIT_BUCKET_MS = 10
SESSION_SWEEP_MS = 10_000
PREFETCH_MS = 2000
"""How far ahead bodies of delayed messages are read, half of it at a time: a million messages of 256 bytes due within a
minute then cost a quarter of a row each, not a row, and take 18 MiB of the window."""
NEVER_MS = 1 << 63
STALE_ENTRIES = 64
"""Stale entries that a plan may have, beside as many as it has entries."""


class Plan:
    """The times of one kind of work, the earliest time of each owner.

    Invariant: the heap has an entry for each time in ``due_ms``, and perhaps entries that an earlier time or
    :meth:`discard` made stale.
    """

    def __init__(self) -> None:
        self.due_ms: dict[int, int] = {}
        """By id of the owner; to be read from outside."""
        self.heap: list[tuple[int, int]] = []
        """(time, id of the owner). The list stays the same object: the agenda holds the heaps of all plans."""

    def set(self, owner_id: int, due_ms: int) -> None:
        """Plan work at a time, or earlier if it is planned already."""
        planned_ms = self.due_ms.get(owner_id)
        if planned_ms is None or due_ms < planned_ms:
            self.due_ms[owner_id] = due_ms
            heappush(self.heap, (due_ms, owner_id))

    def discard(self, owner_id: int) -> None:
        """Plan no work for an owner."""
        if self.due_ms.pop(owner_id, None) is not None and len(self.heap) > 2 * len(self.due_ms) + STALE_ENTRIES:
            # A far time that is discarded again and again would fill the memory with stale entries.
            self.heap[:] = [(due_ms, other_id) for other_id, due_ms in self.due_ms.items()]
            heapify(self.heap)

    def is_due(self, now_ms: int) -> bool:
        """Return whether the first entry is due."""
        return bool(self.heap) and self.heap[0][0] <= now_ms

    def take(self, now_ms: int) -> int | None:
        """Remove the first entry if it is due; return its owner, or None if no entry is due or the entry is stale."""
        heap = self.heap
        if not heap or heap[0][0] > now_ms:
            return None
        due_ms, owner_id = heappop(heap)
        if self.due_ms.get(owner_id) != due_ms:
            return None
        del self.due_ms[owner_id]
        return owner_id


class Agenda:
    """All plans of a broker."""

    def __init__(self, limits: Limits, queues: QueueTable) -> None:
        self._limits = limits
        self._delays = queues.delays
        self.waits = DeadlineBuckets(WAIT_BUCKET_MS)
        """Waiting receives by their deadline."""
        self.held_waits = DeadlineBuckets(1)
        """Waiting receives past their deadline that a lease or delay may still serve, by the time to examine them; see
        :mod:`cmqd.core.operations.receiving.wait_ends`."""
        self._buckets = (queues.leases, queues.delays.near, queues.checks, self.waits, self.held_waits)
        self.expiries = Plan()
        """Queues, at the time when their first messages outlive the retention."""
        self.reviews = Plan()
        """Queues, at the time when dead letters, a redrive or rewindable messages are to be examined."""
        self.dedup_sweeps = Plan()
        """Queues and topics, at the time when old dedup ids are forgotten."""
        self.topic_expiries = Plan()
        """Topics, at the time when their first messages outlive their life."""
        self.deliveries = Plan()
        """Subscriptions, at the time when a delivery comes due."""
        self.auto_deletes = Plan()
        """Queues with ``auto_delete_after_ms``, at the time when their last use is to be examined."""
        self.schedules = Plan()
        """Schedules, at the time when they fire next."""
        plans = (
            *(self.expiries, self.reviews, self.dedup_sweeps, self.topic_expiries, self.deliveries),
            *(self.auto_deletes, self.schedules),
        )
        self._heaps = tuple(plan.heap for plan in plans)
        self.sessions_due_ms: int | None = None
        """The next sweep of producer sessions; None without sessions."""
        self.prefetched_until_ms = 0
        """Bodies of messages with a delay that ends by then were asked for."""
        self.overflow_wanted: dict[int, None] = {}
        """Queues in which a place among the delayed messages came free while messages wait for a place."""
        self.checks_wanted: dict[int, None] = {}
        """Queues with due checks, a client that answers checks, and no page-in that holds the checks up."""
        self.deliveries_wanted: dict[int, None] = {}
        """Subscriptions with something to deliver now, in order."""
        self.unserved: dict[int, list[Unserved]] = {}
        """By queue id, in order: copies for waiting receives, to be served by the next ticks."""
        self.ended_waits: deque[tuple[DomainError, list[int]]] = deque()
        """Receives that waited at a deleted queue, and the error that the next ticks answer them with."""
        self._wanted: tuple[Sized, ...] = (
            self.overflow_wanted,
            self.checks_wanted,
            self.deliveries_wanted,
            self.unserved,
            self.ended_waits,
        )

    def next_due_ms(self) -> int | None:
        """Return when the next tick has work; a time that has passed means that work is waiting."""
        if any(self._wanted):
            return 0
        first_ms = NEVER_MS if self.sessions_due_ms is None else self.sessions_due_ms
        # Asked after every I/O batch, and most plans are empty: the filter costs no step for these.
        for heap in filter(None, self._heaps):
            if heap[0][0] < first_ms:
                first_ms = heap[0][0]
        for buckets in self._buckets:
            numbers = buckets.heap
            if numbers and numbers[0] * buckets.width_ms < first_ms:
                first_ms = numbers[0] * buckets.width_ms
        delays = self._delays
        if delays.near.heap:
            due_ms = self.prefetch_due_ms()
            if due_ms is not None and due_ms < first_ms:
                first_ms = due_ms
        if delays.spans:
            due_ms = delays.bring_near_due_ms()
            if due_ms is not None and due_ms < first_ms:
                first_ms = due_ms
        return None if first_ms == NEVER_MS else first_ms

    def prefetch_due_ms(self) -> int | None:
        """Return when bodies of delayed messages are to be asked for next: well before those in memory are used up."""
        first_ms = self._delays.near.next_due_ms()
        if first_ms is None:
            return None
        return max(first_ms - PREFETCH_MS, self.prefetched_until_ms - PREFETCH_MS // 2)

    def forget(self, queue_id: int) -> None:
        """Forget the plans of a queue that is deleted."""
        self.expiries.discard(queue_id)
        self.reviews.discard(queue_id)
        self.dedup_sweeps.discard(queue_id)
        self.auto_deletes.discard(queue_id)

    def plan_expiry(self, queue: Queue) -> None:
        """Plan the expiry of the first messages of a queue."""
        index = queue.index
        first_end_ms = index.steps.first_end_ms() if index.is_made("steps") else None
        if first_end_ms is None:
            self.expiries.discard(queue.queue_id)
        else:
            self.expiries.set(queue.queue_id, first_end_ms + queue.index.attributes.retention_ms)

    def plan_auto_delete(self, queue: Queue, due_ms: int) -> None:
        """Plan to examine whether a queue is unused, if the queue is to be deleted then."""
        if queue.index.attributes.auto_delete_after_ms:
            self.auto_deletes.set(queue.queue_id, due_ms)

    def plan_topic_expiry(self, topic: Topic, not_before_ms: int = 0) -> None:
        """Plan the expiry of the first messages of a topic."""
        first_end_ms = topic.steps.first_end_ms()
        if first_end_ms is None:
            self.topic_expiries.discard(topic.topic_id)
        else:
            self.topic_expiries.set(topic.topic_id, max(first_end_ms + self._limits.topic_life_ms, not_before_ms))

    def plan_session_sweep(self, now_ms: int) -> None:
        """Plan a sweep of sessions after the use of a session."""
        if self.sessions_due_ms is None:
            self.sessions_due_ms = now_ms + SESSION_SWEEP_MS

    def want_overflow(self, queue: Queue) -> None:
        """Let the next tick examine whether messages beyond ``max_delayed`` can have a place."""
        index = queue.index
        if index.delays.overflow_count and index.delays.scheduled_count < index.attributes.max_delayed:
            self.overflow_wanted[queue.queue_id] = None
