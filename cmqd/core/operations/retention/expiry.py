"""Expiry: messages older than the retention of their queue, and old dedup ids and sessions.

Messages expire by whole time steps, as a floor: a record per step and not per message. A receive that finds an expired
message at the head before its step is over moves the floor by itself (:mod:`cmqd.core.operations.receiving.serving`).
"""

from cmqd.core.facts.facts import Facts
from cmqd.core.operations.dead_letters.reservations import RETRY_MS
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.retention.floors import Floors
from cmqd.core.outcome import Effects
from cmqd.core.runtime.agenda import SESSION_SWEEP_MS
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import MessagesExpired


class Expiry:
    """Removes expired messages, dedup ids and sessions."""

    def __init__(self, facts: Facts, runtime: Runtime, floors: Floors, serving: Serving) -> None:
        self._limits = facts.limits
        self._promises = facts.promises
        self._sessions = facts.promises.sessions
        self._queues = facts.queues
        self._topics = facts.topics
        self._agenda = runtime.agenda
        self._floors = floors
        self._serving = serving

    def tick(self, effects: Effects, now_ms: int) -> None:
        """Remove a slice of the expired messages, dedup ids and sessions."""
        self._expire_messages(effects, now_ms)
        self._expire_dedup_ids(now_ms)
        self._expire_sessions(now_ms)

    def _expire_messages(self, effects: Effects, now_ms: int) -> None:
        """Move the floor of a queue over expired messages."""
        queue_id = self._agenda.expiries.take(now_ms)
        queue = None if queue_id is None else self._queues.by_id.get(queue_id)
        if queue is None:
            return
        index = queue.index
        passed = index.expired_below(now_ms)
        floor = self._floors.held(queue, passed)
        if floor > index.floor and index.live.range_cardinality(index.floor, floor):
            record = MessagesExpired(queue.queue_id, floor)
            self._floors.apply(queue, record, now_ms)
            effects.records.append(record)
            self._serving.serve(queue, effects, now_ms)
        elif floor >= index.next_position:
            # No message is left, so decisions about half messages need not be remembered any longer.
            index.forget_below(floor)
            index.steps.clear()
        else:
            index.forget_below(floor)
            index.steps.drop_below(floor)
        if floor < passed:
            # The row that moves the message plans the expiry anew. The time here keeps the ticks from spinning until
            # then.
            self._agenda.expiries.set(queue.queue_id, now_ms + RETRY_MS)
        else:
            self._agenda.plan_expiry(queue)
        self._agenda.plan_auto_delete(queue, now_ms)

    def _expire_dedup_ids(self, now_ms: int) -> None:
        """Forget the old dedup ids of a queue or topic."""
        sweeps = self._agenda.dedup_sweeps
        owner_id = sweeps.take(now_ms)
        if owner_id is None:
            return
        queue, topic = self._queues.by_id.get(owner_id), self._topics.by_id.get(owner_id)
        owner = queue if queue is not None else topic
        dedup_ids = queue.dedup_ids if queue is not None else None if topic is None else topic.known_dedup_ids
        if dedup_ids is not None and owner is not None:
            has_more = dedup_ids.expire(now_ms, self._limits.tick_items)
            self._promises.memory.recount(owner.account, dedup_ids)
            if len(dedup_ids):
                sweeps.set(owner_id, now_ms + (0 if has_more else SESSION_SWEEP_MS))

    def _expire_sessions(self, now_ms: int) -> None:
        """Forget some of the expired producer sessions."""
        due_ms = self._agenda.sessions_due_ms
        if due_ms is not None and due_ms <= now_ms and not self._sessions.expire(now_ms, self._limits.tick_items):
            self._agenda.sessions_due_ms = now_ms + SESSION_SWEEP_MS if len(self._sessions) else None
