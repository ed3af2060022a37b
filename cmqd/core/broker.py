"""The broker: the door to the rules about queues, topics and messages.

An operation validates (raising a DomainError before anything changed), decides on records, applies them through the
same ``apply`` methods that recovery uses, and returns an Outcome. An operation never waits, reads no clock and touches
no disk: data from the log arrives through :meth:`Broker.pages_read` and ``published_read``, and time passes through
:meth:`Broker.tick`.

The rules are in the rooms: ``facts`` (durable state), ``runtime`` (intentions and caches), ``operations`` (a class for
each verb or theme) and ``recovery``. ``parts`` makes the objects of the rooms. The door gives every operation its
public name, a line each; arguments, replies and refusals are described at the method that a line names.
"""

from collections.abc import Mapping, Sequence

from cmqd.core.calendar import Calendar, no_calendar
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.schedules import Schedule
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import Limits
from cmqd.core.outcome import Effects, MissedFiring, Outcome, UnusedQueue
from cmqd.core.parts import Parts
from cmqd_fold.receipts import HandleKey
from cmqd_segment.records import AnyRecord, ClockOffset, LogRestored, Runs, StoredMessage


class Broker:
    """All queues and topics of all accounts.

    ``handle_key``: see :mod:`cmqd_fold.receipts`. A changed key makes the receipt handles of earlier receives invalid.
    ``seed``: any number, for the random part of pauses between deliveries.
    ``calendar``: gives the times of schedules; without a calendar no schedule can be made.
    """

    def __init__(
        self,
        handle_key: HandleKey,
        limits: Limits | None = None,
        seed: int = 0,
        *,
        calendar: Calendar = no_calendar,
    ) -> None:
        self.limits = limits or Limits()
        self.parts = parts = Parts(handle_key, self.limits, seed, calendar)
        self.handles = parts.handles
        self.use_handle_key = parts.handles.use_key
        self.facts = facts = parts.facts
        self.runtime = parts.runtime
        self.gates = parts.runtime.gates

        self.queues: Mapping[int, Queue] = facts.queues.by_id
        self.topics: Mapping[int, Topic] = facts.topics.by_id
        self.subscriptions: Mapping[int, Subscription] = facts.topics.subscriptions
        self.schedules: Mapping[int, Schedule] = facts.schedules.by_id
        self.live_in = facts.live_in
        self.there_in = facts.queues.there_in
        self.moves_of = facts.moves_of

        self._open_messages(parts)
        self._open_queues(parts)
        self._open_topics(parts)
        self._open_monitoring(parts)
        self._open_recovery(parts)

    def _open_messages(self, parts: Parts) -> None:
        """Name the operations on messages: sends, receives, publishes and transactions."""
        self.send_all = parts.send.send_all
        self.receive_all = parts.receive.receive_all
        self.waiting_receive = parts.runtime.waiters.get
        self.cancel_receive = parts.receive.cancel_receive
        self.delete_all = parts.delete.delete_all
        self.change_visibility = parts.visibility.change_visibility
        self.release = parts.visibility.release
        self.dead_letter = parts.rejections.dead_letter
        self.peek = parts.peek.peek
        self.rewind = parts.rewind.rewind
        self.preview_rewind = parts.rewind.preview
        self.publish = parts.publish.publish
        self.plan_publish = parts.publish.plan_publish
        self.apply_publish = parts.publish.apply_publish
        self.send_half = parts.transactions.send_half
        self.end_transactions = parts.transactions.end_transactions
        self.list_half_messages = parts.transactions.list_half_messages
        self.set_has_checkers = parts.checks.set_has_checkers
        self.check_again = parts.checks.check_again

    def _open_queues(self, parts: Parts) -> None:
        """Name the operations on queues and schedules."""
        self.create_queue = parts.queues.create
        self.ensure_queue = parts.queues.ensure
        self.list_queues = parts.queues.list_names
        self.list_all_queues = parts.queues.list_all
        self.check_queue_summaries = parts.queue_summaries.check
        self.queue_summaries = parts.queue_summaries.page
        self.check_consumer_list = parts.consumer_list.check
        self.list_consumers = parts.consumer_list.page
        self.queue_info = parts.queues.info
        self.set_queue_attributes = parts.queues.set_attributes
        self.dead_letter_sources = parts.queues.dead_letter_sources
        self.clear_queue = parts.queues.clear
        self.delete_queue = parts.queues.delete
        self.start_redrive = parts.redrives.start
        self.cancel_redrive = parts.redrives.cancel
        self.redrive_status = parts.redrives.status
        self.create_schedule = parts.schedules.create
        self.ensure_schedule = parts.schedules.ensure
        self.list_schedules = parts.schedules.list_schedules
        self.schedule_info = parts.schedules.info
        self.set_schedule = parts.schedules.change
        self.delete_schedule = parts.schedules.delete

    def _open_topics(self, parts: Parts) -> None:
        """Name the operations on topics, subscriptions and their deliveries."""
        self.pushes_ended = parts.delivery_attempts.pushes_ended
        self.create_topic = parts.topics.create_topic
        self.ensure_topic = parts.topics.ensure_topic
        self.list_topics = parts.topics.list_topics
        self.topic_info = parts.topics.topic_info
        self.set_topic_attributes = parts.topics.set_topic_attributes
        self.delete_topic = parts.topics.delete_topic
        self.subscribe = parts.topics.subscribe
        self.ensure_subscription = parts.topics.ensure_subscription
        self.list_subscriptions = parts.topics.list_subscriptions
        self.list_queue_subscriptions = parts.topics.list_queue_subscriptions
        self.subscription_info = parts.topics.subscription_info
        self.set_subscription_attributes = parts.topics.set_subscription_attributes
        self.unsubscribe = parts.topics.unsubscribe
        self.retry_deliveries = parts.topics.retry_deliveries
        self.drop_deliveries = parts.topics.drop_deliveries
        self.match_subscriptions = parts.filter_tests.match
        self.peek_deliveries = parts.delivery_backlog.peek_deliveries
        self.retry_delivery = parts.delivery_backlog.retry_delivery
        self.drop_delivery = parts.delivery_backlog.drop_delivery
        self.message_deliveries = parts.delivery_backlog.message_deliveries
        self.published_read = parts.delivery_backlog.published_read

    def _open_monitoring(self, parts: Parts) -> None:
        """Name the operations of operators: metrics, the holders of segments, and the audit trail."""
        self.queue_metrics = parts.metrics.queue_page
        self.topic_metrics = parts.metrics.topic_page
        self.top_metrics = parts.top_metrics.top
        self.check_metrics_limit = parts.metrics.check_limit
        self.check_top_limit = parts.top_metrics.check_limit
        self.add_up_totals = parts.metrics.totals
        self.count_objects = parts.metrics.objects
        self.holders_of = parts.holders.of_ranges
        self.audit_record = parts.audit.record
        self.audit_entries = parts.audit.entries
        self.check_audit_limit = parts.audit.check_limit

    def _open_recovery(self, parts: Parts) -> None:
        """Name the operations of recovery and time."""
        self.next_deadline_ms = parts.runtime.agenda.next_due_ms
        self.checkpoint = parts.checkpoint.parts
        self.load = parts.restore.load
        self.take_shard = parts.facts.numbers.take_shard
        self.begin_salvage = parts.replay.begin_salvage
        self.replay = parts.replay.replay

    @property
    def records_not_applied(self) -> int:
        """Records behind a gap in the log that were not applied, or only in part, because their objects were lost."""
        return self.parts.replay.records_not_applied

    def tick(self, now_ms: int) -> Outcome[Sequence[UnusedQueue | MissedFiring]]:
        """Do a bounded slice of the due work: time out waits and leases, activate delays, expire messages, fire
        schedules.

        Call again while ``next_deadline_ms`` is not in the future. The reply has the queues that were deleted because
        they were unused, and the schedules with a queue that could not take the message.
        """
        effects = Effects()
        for step in self.parts.tick_steps:
            step(effects, now_ms)
        # Behind the ends of waits and expiries: a message goes neither to a receive with a deadline in the past, nor
        # into the backlog of messages that are gone.
        missed = self.parts.schedules.tick(effects, now_ms)
        # Last: the ends of leases, delays and waits in this tick are uses, and so are the sends of schedules.
        unused = self.parts.auto_delete.tick(effects, now_ms)
        return effects.outcome([*unused, *missed])

    def pages_read(self, read_id: int, messages: Sequence[StoredMessage], missing: Runs, now_ms: int) -> Outcome[int]:
        """Take the log's answer to a PageRead: a prefix of the requested messages, and the unreadable positions.

        The reply is the number of messages newly found to be damaged; they are no longer receivable.
        """
        reading = self.runtime.pages.take(read_id)
        if reading is None:
            return Outcome(0)
        effects = Effects()
        damaged = self.parts.page_owners[reading.lane].on_page(reading, messages, missing, effects, now_ms)
        return effects.outcome(damaged)

    def set_clock_offset(self, offset_ms: int, now_ms: int, *, stepped: bool = False) -> Outcome[None]:
        """Record the offset of the wall clock from broker time.

        ``stepped``: broker time was set to ``now_ms``. Call this before :meth:`recovered`, which plans by times.
        """
        record = ClockOffset(offset_ms, now_ms, stepped, self.limits.max_delay_ms)
        self.facts.apply_clock_offset(record)
        return Outcome(None, [record, *self.parts.schedules.step(now_ms)] if stepped else [record])

    def recovered(self, *, lost: bool = False, restored: LogRestored | None = None) -> Sequence[AnyRecord]:
        """End recovery: numbers start beyond all numbers that may have been used, and bodies are in the log alone.

        ``lost``: part of the log was set aside, so the numbers leap, as they do after ``begin_salvage``: the lost
        part may have used numbers that clients still hold. ``restored``: the log was restored from a backup; the rows
        behind it that the backup lacks have used numbers as well. Returns records to append before all others.
        """
        records = self.parts.replay.finish(lost=lost, restored=restored)
        self.parts.start.take_up()
        return records
