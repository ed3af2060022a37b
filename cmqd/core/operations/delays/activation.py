"""Delays: messages that become active at their time, and messages that wait for a place among the delayed messages.

Due times of at most ``max_delayed`` messages are in memory. Further delayed messages are in overflow, and their due
times only in the log. When a place is free, the oldest messages in overflow are read and get places; a message that is
due by then becomes active at the next tick.
"""

from collections.abc import Sequence

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import Effects
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.queue_index import positions_from
from cmqd_segment.records import DelaysScheduled, MessagesActivated, Runs, StoredMessage, pack_runs

BROUGHT_NEAR_AT_ONCE = 400
"""Far due times that a tick moves to the fine buckets: half a millisecond."""


class Delays:
    """Ends delays, and gives free places to messages beyond ``max_delayed``."""

    def __init__(self, facts: Facts, runtime: Runtime, serving: Serving) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._budget = runtime.budget
        self._lane = runtime.pages.overflow
        self._serving = serving

    def tick(self, effects: Effects, now_ms: int) -> None:
        """End delays of a queue, and give free places to messages in overflow."""
        self._queues.delays.bring_near(now_ms, min(BROUGHT_NEAR_AT_ONCE, self._limits.tick_items))
        self._end_delays(effects, now_ms)
        self._fill_places(effects)

    def _end_delays(self, effects: Effects, now_ms: int) -> None:
        """Activate messages of a queue at the end of their delay."""
        due = self._queues.delays.near.take_due(now_ms, self._limits.tick_items)
        if due is None:
            return
        queue_id, positions = due
        queue = self._queues.by_id.get(queue_id)
        if queue is None:
            return
        runs = queue.index.delays.still_scheduled(iter(positions))
        if runs:
            record = MessagesActivated(queue_id, runs, now_ms)
            queue.index.apply_activated(record)
            runtime = self._runtime[queue.queue_id]
            # Delayed messages kept the queue in use until now.
            runtime.used_ms = now_ms
            self._budget.activate(runtime.window, positions)
            effects.records.append(record)
            if queue.index.attributes.dead_letter_after_ms:
                self._agenda.reviews.set(queue.queue_id, now_ms + queue.index.attributes.dead_letter_after_ms)
            self._serving.serve(queue, effects, now_ms)
        self._read_overflow(queue, effects)

    def _fill_places(self, effects: Effects) -> None:
        """Read due times of messages in overflow, in a queue with free places."""
        if self._agenda.overflow_wanted:
            queue = self._queues.by_id.get(self._agenda.overflow_wanted.popitem()[0])
            if queue is not None:
                self._read_overflow(queue, effects)

    def _read_overflow(self, queue: Queue, effects: Effects) -> None:
        """Read the due times of as many messages in overflow as there are free places."""
        index = queue.index
        free = index.attributes.max_delayed - index.delays.scheduled_count
        if not index.delays.overflow_count or queue.queue_id in self._lane.busy or free <= 0:
            return
        positions = positions_from(index.delays.overflow, 0, min(free, self._limits.page_messages))
        self._lane.want(queue.queue_id, queue.queue_id, positions, self._limits.page_bytes, None, effects.reads)

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Give places to the messages of a page."""
        self._lane.busy.discard(reading.owner_id)
        queue = self._queues.by_id.get(reading.owner_id)
        if queue is None:
            return 0
        self._runtime[queue.queue_id].used_ms = now_ms
        damaged = self._schedule(queue, messages, missing, effects, now_ms)
        self._read_overflow(queue, effects)
        return damaged

    def _schedule(
        self, queue: Queue, messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        index = queue.index
        # Fewer places than at the request may be free by now, if max_delayed was changed.
        free = max(0, index.attributes.max_delayed - index.delays.scheduled_count)
        scheduled = [message for message in messages if message.position in index.delays.overflow][:free]
        if scheduled:
            positions = pack_runs(message.position for message in scheduled)
            # Broker time may have stepped back since the send. A delay never grows beyond its length.
            due_ms = [
                min(message.visible_ms, now_ms + message.visible_ms - message.enqueue_ms) for message in scheduled
            ]
            record = DelaysScheduled(index.queue_id, positions, due_ms)
            index.delays.give_places(record)
            effects.records.append(record)
        return index.set_damaged(missing) if missing else 0
