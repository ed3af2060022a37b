"""What time brings: ends of waits, leases and delays, and expiry; in bounded slices."""

from collections.abc import Sequence
from heapq import heappop, heappush

from cmqd.core.delivering import Delivering
from cmqd.core.moving import Moving
from cmqd.core.outcome import Effects, Outcome, Woken
from cmqd.core.prefetching import Prefetching
from cmqd.core.queue import Queue
from cmqd.core.rewinding import Rewinding
from cmqd.core.state import ENDED_AT_ONCE, SESSION_SWEEP_MS
from cmqd.core.transactions import Transactions
from cmqd_fold.queue_index import InFlight
from cmqd_segment.records import (
    DelaysScheduled,
    LeasesEnded,
    MessagesActivated,
    MessagesExpired,
    Runs,
    StoredMessage,
    pack_runs,
    runs_of,
)


class Ticking(Prefetching, Moving, Rewinding, Transactions, Delivering):
    """The part of the broker that time drives."""

    def next_deadline_ms(self) -> int | None:
        """When :meth:`tick` has something to do next; a time that has passed means that more work is waiting."""
        if self._overflow_wanted or self._checks_wanted or self._unserved or self._ended_waits:
            return 0
        times = (
            self._lease_buckets.next_due_ms(),
            self._delay_buckets.next_due_ms(),
            self._prefetch_due_ms(),
            self._wait_buckets.next_due_ms(),
            self._expiries[0][0] if self._expiries else None,
            self._agenda[0][0] if self._agenda else None,
            self._sessions_due_ms,
            self._check_buckets.next_due_ms(),
            self._dedup_sweeps[0][0] if self._dedup_sweeps else None,
            self._deliveries_due_ms(),
        )
        return min((time for time in times if time is not None), default=None)

    def tick(self, now_ms: int) -> Outcome[None]:
        """Do what is due: end waits and leases, activate delayed messages, expire old ones. A bounded slice of it:
        call again while :meth:`next_deadline_ms` is not in the future.
        """
        effects = Effects()
        self._tick_ended_waits(effects)
        self._tick_unserved(effects, now_ms)
        self._tick_waits(effects, now_ms)
        self._tick_leases(effects, now_ms)
        self._tick_prefetch(effects, now_ms)
        self._tick_delays(effects, now_ms)
        if self._overflow_wanted:
            queue = self.queues.get(self._overflow_wanted.popitem()[0])
            if queue is not None:
                self._tick_overflow(queue, effects)
        self._tick_expiries(effects, now_ms)
        self._tick_agenda(effects, now_ms)
        self._tick_checks(effects, now_ms)
        self._tick_deliveries(effects, now_ms)
        self._tick_dedup_ids(now_ms)
        due_ms = self._sessions_due_ms
        if due_ms is not None and due_ms <= now_ms and not self.sessions.expire(now_ms, self.limits.tick_items):
            self._sessions_due_ms = now_ms + SESSION_SWEEP_MS if len(self.sessions) else None
        return effects.outcome(None)

    def _tick_dedup_ids(self, now_ms: int) -> None:
        """Forget the old ones of one queue."""
        if not self._dedup_sweeps or self._dedup_sweeps[0][0] > now_ms:
            return
        _, queue_id = heappop(self._dedup_sweeps)
        queue = self.queues.get(queue_id)
        topic = self.topics.get(queue_id)
        dedup_ids = queue.dedup_ids if queue is not None else topic and topic.known_dedup_ids
        owner = queue or topic
        if dedup_ids is not None and owner is not None:
            has_more = dedup_ids.expire(now_ms, self.limits.tick_items)
            self.promises.memory.recount(owner.account, dedup_ids)
            if len(dedup_ids):
                heappush(self._dedup_sweeps, (now_ms + (0 if has_more else SESSION_SWEEP_MS), queue_id))

    def _tick_ended_waits(self, effects: Effects) -> None:
        """Answer some of the receives whose queue was deleted."""
        if not self._ended_waits:
            return
        error, waiter_ids = self._ended_waits[0]
        for waiter_id in waiter_ids[-ENDED_AT_ONCE:]:
            # One that was cancelled meanwhile is not there any more.
            if self._waiters.pop(waiter_id, None) is not None:
                effects.woken.append(Woken(waiter_id, error))
        del waiter_ids[-ENDED_AT_ONCE:]
        if not waiter_ids:
            self._ended_waits.popleft()

    def _tick_waits(self, effects: Effects, now_ms: int) -> None:
        due = self._wait_buckets.take_due(now_ms, self.limits.tick_items)
        if due is None:
            return
        queue_id, waiter_ids = due
        queue = self.queues.get(queue_id)
        for waiter_id in waiter_ids:
            waiter = self._waiters.get(waiter_id)
            if waiter is None or queue is None:
                continue
            if queue.index.active_count and (queue.reading or queue.read_wanted or queue_id in self._unserved):
                queue.line.set_overdue(waiter)
            else:
                queue.line.remove(waiter_id)
                del self._waiters[waiter_id]
                effects.woken.append(Woken(waiter_id, []))

    def _tick_leases(self, effects: Effects, now_ms: int) -> None:
        most = self.limits.tick_items
        buckets = self._lease_buckets
        due = buckets.take_due(now_ms, 2 * most)
        if due is None:
            return
        queue_id, pairs = due
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        index = queue.index
        in_flight = index.in_flight
        ended: dict[int, InFlight] = {}
        """A set in order: a lease that was moved to the same time twice is here twice."""
        at = looked_at = 0
        while at < len(pairs) and looked_at < most:
            first, count = pairs[at], pairs[at + 1]
            at += 2
            looked_at += count
            for lease in range(first, first + count):
                held = in_flight.get(lease)
                if held is None or held.deadline_ms > now_ms:
                    continue
                if held.position < index.floor:
                    del in_flight[lease]
                else:
                    ended[lease] = held
        if at < len(pairs):
            # A pair stands for up to a batch of leases. The rest stays due, behind what else is.
            buckets.bucket(now_ms - buckets.width_ms, queue_id).extend(pairs[at:])
            buckets.size += len(pairs) - at
        if ended:
            record = LeasesEnded(queue_id, runs_of(list(ended)))
            index.apply_returned(record)
            effects.records.append(record)
            if queue.dead_letters is not None:
                back = [(held.position, held.receive_count) for held in ended.values()]
                self._came_back(queue, back, effects, now_ms)
            self._serve(queue, effects, now_ms)

    def _tick_delays(self, effects: Effects, now_ms: int) -> None:
        due = self._delay_buckets.take_due(now_ms, self.limits.tick_items)
        if due is None:
            return
        queue_id, positions = due
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        runs = queue.index.due_delays(iter(positions))
        if runs:
            record = MessagesActivated(queue_id, runs, now_ms)
            queue.index.apply_activated(record)
            self._budget.activate(queue.window, positions)
            effects.records.append(record)
            if queue.index.attributes.dead_letter_after_ms:
                self._set_agenda(queue, now_ms + queue.index.attributes.dead_letter_after_ms)
            self._serve(queue, effects, now_ms)
        self._tick_overflow(queue, effects)

    def _tick_overflow(self, queue: Queue, effects: Effects) -> None:
        """Places among the delayed are free: look up the due times of those that wait for one."""
        index = queue.index
        free = index.attributes.max_delayed - index.delayed_count
        if not index.overflow_count or queue.overflow_reading or free <= 0:
            return
        positions = index.overflow_from(0, min(free, self.limits.page_messages))
        queue.overflow_reading = True
        read = self._page_read(queue, positions, self.limits.page_bytes)
        self._overflow_reads[read.read_id] = queue.queue_id
        effects.reads.append(read)

    def _overflow_arrived(
        self, queue: Queue, messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        queue.overflow_reading = False
        index = queue.index
        # Fewer places than were asked for may be free by now, if max_delayed was changed.
        free = max(0, index.attributes.max_delayed - index.delayed_count)
        wanted = [message for message in messages if message.position in index.overflow][:free]
        if wanted:
            positions = pack_runs(message.position for message in wanted)
            # Broker time may have stepped back since they were sent.
            latest_ms = now_ms + self.limits.max_delay_ms
            due_ms = [min(message.visible_ms, latest_ms) for message in wanted]
            record = DelaysScheduled(index.queue_id, positions, due_ms)
            index.apply_scheduled(record)
            effects.records.append(record)
        return index.set_damaged(missing) if missing else 0

    def _tick_expiries(self, effects: Effects, now_ms: int) -> None:
        if not self._expiries or self._expiries[0][0] > now_ms:
            return
        due_ms, queue_id = heappop(self._expiries)
        queue = self.queues.get(queue_id)
        if queue is None or queue.expiry_due_ms != due_ms:
            return
        queue.expiry_due_ms = None
        index = queue.index
        floor = index.expired_below(now_ms)
        if floor > index.floor and index.live.range_cardinality(index.floor, floor):
            record = MessagesExpired(queue_id, floor)
            self._apply_floor(record)
            effects.records.append(record)
            self._serve(queue, effects, now_ms)
        elif floor >= index.next_position:
            # Nothing that was sent is left; what was decided need not be remembered any longer.
            index.forget_below(floor)
            index.steps.clear()
        else:
            index.forget_below(floor)
            index.steps.drop_below(floor)
        self._schedule_expiry(queue)

    def _tick_agenda(self, effects: Effects, now_ms: int) -> None:
        """One queue's dead letters or redrive, and what can no longer be rewound."""
        if not self._agenda or self._agenda[0][0] > now_ms:
            return
        due_ms, queue_id = heappop(self._agenda)
        queue = self.queues.get(queue_id)
        if queue is None or queue.agenda_due_ms != due_ms:
            return
        queue.agenda_due_ms = None
        times = [self._prune_rewindable(queue, now_ms)]
        if queue.redriving is not None:
            times.append(self._redrive(queue, effects, now_ms))
        elif queue.dead_letters is not None:
            times.append(self._find_dead(queue, effects, now_ms))
        # A receive may have waited for the body of a message that is now to be moved, with others behind it in memory.
        self._serve(queue, effects, now_ms)
        next_ms = min((time for time in times if time is not None), default=None)
        if next_ms is not None:
            self._set_agenda(queue, max(next_ms, now_ms + 1))
