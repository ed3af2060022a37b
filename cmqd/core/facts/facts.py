"""All facts of a broker: numbers, actors, promises, queues, topics, schedules and the audit trail."""

from msgspec import structs

from cmqd.core.facts.actors import JUMP, Actors
from cmqd.core.facts.audit_trail import AuditTrail
from cmqd.core.facts.gone_totals import GoneTotals
from cmqd.core.facts.numbers import Numbers
from cmqd.core.facts.promised_memory import Promises
from cmqd.core.facts.queues import DELAY_BUCKET_MS, QueueTable
from cmqd.core.facts.schedules import ScheduleTable
from cmqd.core.facts.topics import TopicTable
from cmqd.core.limits import Limits
from cmqd_segment.records import ClockOffset, LogRestored, NumbersReserved
from cmqd_types.totals import QueueTotals, TopicTotals


class Facts:
    """The tables of facts, handed to the operations and to recovery."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.numbers = Numbers()
        self.actors = Actors(limits)
        self.promises = Promises(limits)
        self.gone_totals = GoneTotals()
        self.queues = QueueTable(limits, self.promises, self.gone_totals)
        self.topics = TopicTable(limits, self.promises, self.queues, self.gone_totals)
        self.schedules = ScheduleTable(self.promises.memory)
        self.audit_trail = AuditTrail(limits)
        self.clock_offset_ms = 0
        """Wall clock less broker time, as the log records it. No rule examines it: the next start does."""

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """Count the messages, or deliveries of a topic's messages, at positions ``first .. stop-1`` that are still
        needed; 0 if the queue or topic is gone.
        """
        topic = self.topics.by_id.get(queue_id)
        return self.queues.live_in(queue_id, first, stop) if topic is None else topic.live_in(first, stop)

    def moves_of(self, queue_id: int) -> tuple[int, int] | None:
        """Return how many messages of a queue left or came back, and how many came back; None if the queue is gone.

        The first number grows with each departure and each return. Messages of a topic do not leave: (0, 0).
        """
        queue = self.queues.by_id.get(queue_id)
        if queue is None:
            return (0, 0) if queue_id in self.topics.by_id else None
        index = queue.index
        back = index.totals.rewound
        # A return makes up for a departure in the number of messages, so it counts twice.
        return index.next_position - index.live_count + 2 * back, back

    def apply_numbers(self, record: NumbersReserved) -> None:
        """Use no number below those of a record again."""
        self.numbers.apply(record)
        self.actors.reserve(record.actor_until)

    def jump(self) -> NumbersReserved:
        """Leap beyond all numbers that a lost part of the log can have used; return the record."""
        record = structs.replace(self.numbers.jump(), actor_until=self.actors.next_number + JUMP)
        self.apply_numbers(record)
        return record

    def apply_totals_reset(self, lsn: int = 0) -> None:
        """Let all totals begin at 0; a slice with an LSN of ``lsn`` or above was made after the reset."""
        for queue in self.queues.by_id.values():
            if not lsn or lsn > queue.slice_lsn:
                queue.index.totals = QueueTotals()
        for topic in self.topics.by_id.values():
            if not lsn or lsn > topic.slice_lsn:
                topic.totals = TopicTotals()
            for subscription in topic.subscriptions.values():
                if not lsn or lsn > subscription.slice_lsn:
                    subscription.deliveries.reset_totals()
        self.gone_totals.reset(lsn)

    def apply_clock_offset(self, record: ClockOffset, lsn: int = 0) -> None:
        """Note the offset of the wall clock; if broker time stepped back, bring down the times that lie beyond it."""
        self.clock_offset_ms = record.offset_ms
        if not record.stepped:
            return
        now_ms, limits = record.time_ms, self.limits
        # A slice that was taken later includes the step, and its times may rightly lie beyond the bounds at the step.
        by_id = self.queues.by_id
        queues = {number: queue for number, queue in by_id.items() if not lsn or lsn > queue.slice_lsn}
        self.queues.leases.no_later_than(now_ms + limits.max_visibility_timeout_ms, queues)
        # The limit at that time, from the record: replay must not depend on the present setting. A delay stays shorter
        # than the retention, which begins anew at the step, or the message would expire unseen.
        self.queues.delays.no_later_than(
            {
                number: now_ms + min(record.max_delay_ms, queue.index.attributes.retention_ms - DELAY_BUCKET_MS)
                for number, queue in queues.items()
            }
        )
        memory = self.promises.memory
        for queue in queues.values():
            queue.apply_step(now_ms)
            memory.recount(queue.account, queue.dedup_ids)
        for topic in self.topics.by_id.values():
            if not lsn or lsn > topic.slice_lsn:
                topic.apply_step(now_ms)
                if topic.known_dedup_ids is not None:
                    memory.recount(topic.account, topic.known_dedup_ids)
        self.promises.sessions.no_later_than(now_ms, lsn)

    def apply_restored(self, record: LogRestored, lsn: int = 0) -> None:
        """Age the promises to producers: their lives went on by the wall clock, while broker time stood still."""
        for queue in self.queues.by_id.values():
            if queue.has_dedup_ids and (not lsn or lsn > queue.slice_lsn):
                queue.dedup_ids.age(record.aged_ms)
        for topic in self.topics.by_id.values():
            if topic.known_dedup_ids is not None and (not lsn or lsn > topic.slice_lsn):
                topic.known_dedup_ids.age(record.aged_ms)
        self.promises.sessions.age(record.aged_ms, lsn)
