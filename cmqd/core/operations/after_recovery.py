"""The start after recovery: the runtime, made anew from the facts, and the work that was under way."""

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.runtime.queue import Redriving
from cmqd.core.runtime.runtime import Runtime


class Start:
    """Makes the runtime anew from the facts."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._facts = facts
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._retries = runtime.retries

    def take_up(self) -> None:
        """Plan all work anew. All bodies are in the log alone."""
        agenda, queues, topics = self._agenda, self._facts.queues, self._facts.topics
        queues.in_order.sort()
        topics.in_order.sort()
        self._facts.audit_trail.sort()
        for queue in queues.by_id.values():
            if queue.index.live_count:
                self._runtime.cold.add(queue.queue_id)
            agenda.plan_expiry(queue)
            agenda.want_overflow(queue)
            agenda.plan_auto_delete(queue, 0)
            self._take_up(queue)
            if queue.has_dedup_ids:
                agenda.dedup_sweeps.set(queue.queue_id, 0)
        for queue in queues.by_id.values():
            self._reserve_overdue(queue)
        for topic in topics.by_id.values():
            agenda.plan_topic_expiry(topic)
            if topic.has_dedup_ids:
                agenda.dedup_sweeps.set(topic.topic_id, 0)
        for subscription in topics.subscriptions.values():
            self._retries.count(subscription)
            agenda.deliveries_wanted[subscription.subscription_id] = None
        for schedule in self._facts.schedules.by_id.values():
            if not schedule.definition.paused:
                # Without a next time its zone was unknown: the tick asks the calendar once more.
                agenda.schedules.set(schedule.schedule_id, schedule.next_ms)
        if len(self._facts.promises.sessions):
            agenda.sessions_due_ms = 0

    def _take_up(self, queue: Queue) -> None:
        index = queue.index
        attributes = index.attributes
        if attributes.dead_letter_max_receives and index.live_count:
            overdue = index.history.at_least(attributes.dead_letter_max_receives) & index.live
            if overdue:
                self._runtime[queue.queue_id].overdue = overdue
        is_redriven = index.redrive is not None and not index.redrive.ended_ms
        if is_redriven:
            self._runtime[queue.queue_id].redriving = Redriving()
        if attributes.rewind_ms or queue.dead_letters is not None or is_redriven:
            self._agenda.reviews.set(queue.queue_id, 0)

    def _reserve_overdue(self, queue: Queue) -> None:
        """Reserve messages that had their last allowed receive, before a client can receive these messages again."""
        target, index = queue.dead_letters, queue.index
        if target is None or not target.index.takes_dead_letters:
            return
        runtime = self._runtime.get(queue.queue_id)
        overdue = None if runtime is None else runtime.overdue
        if overdue and target.index.live_count < target.index.attributes.max_backlog:
            index.start_moving(overdue & index.active)
