"""Replay: the records after a checkpoint, applied by the same methods as live operations use.

Slices of a checkpoint have an LSN each. A record is applied to a queue, topic or subscription only if the record is
newer than the slice: the slice already contains older records, and a second application would count messages twice.
Answers of numbered sends are the exception. They belong to the account and have slices with an LSN of their own, so a
send that is too old for its queue may still be new to its session.

A record of an unknown queue is normal up to the end of the checkpoint, because the queue may have been deleted before
its slice was made. Behind the end the record is damage, and recovery stops, unless the operator accepted a loss.
"""

from collections.abc import Sequence

from msgspec import structs

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Topic
from cmqd.core.names import folded
from cmqd.core.recovery.restore import Restore
from cmqd.core.recovery.salvage import Salvage
from cmqd_segment.published import copies_of
from cmqd_segment.records import (
    ActorSeen,
    Administered,
    AnyRecord,
    ClockOffset,
    DeadLettersFrom,
    DeliveriesCleared,
    DeliveriesDropped,
    DeliveriesFailed,
    LogRestored,
    MessagesDelivered,
    MessagesExpired,
    MessagesPublished,
    MessagesSent,
    NumbersReserved,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
    ScheduleDeleted,
    ScheduleRecord,
    ScheduleSet,
    Subscribed,
    SubscriptionAttributesSet,
    TopicAttributesSet,
    TopicCreated,
    TopicDeleted,
    TopicMessagesExpired,
    TopicRecord,
    TotalsReset,
    TransactionsChecked,
    TransactionsEnded,
    Unsubscribed,
    last_of,
    pack_runs,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord


class Replay:
    """Applies records of the log to the facts."""

    def __init__(self, facts: Facts, restore: Restore) -> None:
        self._facts = facts
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._topics = facts.topics
        self._sessions = facts.promises.sessions
        self._restore = restore
        self._salvage: Salvage | None = None
        """Set while a log with gaps is replayed."""
        self.records_not_applied: int = 0
        """Records of a log with gaps that were dropped or cut down, because they refer to lost rows."""

    @property
    def is_salvaging(self) -> bool:
        """True while a log with gaps is replayed."""
        return self._salvage is not None

    def begin_salvage(self) -> None:
        """Apply further records as far as possible, because rows are missing; see :mod:`cmqd.core.recovery.salvage`."""
        self._salvage = self._salvage or Salvage()

    def replay(self, record: AnyRecord, lsn: int) -> None:
        """Apply a record of the log in recovery, unless the checkpoint slice of its queue covers it already.

        Raises:
            ValueError: the record belongs to a queue that the log does not know: records before it are missing, and
                :meth:`begin_salvage` was not called. (Other missing records show as a KeyError, or not at all.)
        """
        # Numbers and the clock belong to no queue and have no slice. A reservation is the larger of two, so applying
        # one that the checkpoint contains changes nothing.
        if isinstance(record, NumbersReserved):
            self._facts.apply_numbers(record)
            return
        if isinstance(record, ActorSeen):
            self._facts.actors.apply(record)
            return
        if isinstance(record, ClockOffset):
            self._facts.apply_clock_offset(record, lsn)
            return
        if isinstance(record, LogRestored):
            self._facts.apply_restored(record, lsn)
            return
        if isinstance(record, TotalsReset):
            self._facts.apply_totals_reset(lsn)
            return
        if isinstance(record, Administered):
            # The ids of entries take the place of an LSN: the trail passes over entries that it has.
            self._facts.audit_trail.apply(record)
            return
        if isinstance(record, TopicRecord):
            self._replay_topic(record, lsn)
            return
        if isinstance(record, ScheduleRecord):
            self._replay_schedule(record, lsn)
            return
        queue = self._queues.by_id.get(record.queue_id)
        if isinstance(record, QueueCreated):
            # Known already: its slice was made after the creation.
            if queue is None:
                self._replay_created(record, lsn)
            return
        if queue is None:
            # Up to the end of the checkpoint: the queue was deleted before its slice was made.
            if lsn > self._restore.end_lsn:
                if self._salvage is None:
                    raise ValueError(f"row {lsn} has a {type(record).__name__} of unknown queue {record.queue_id}")
                self.records_not_applied += 1
        elif lsn <= queue.slice_lsn:
            # The slice has the messages. The answers of numbered sends are in the slices of sessions, which are made
            # later.
            if isinstance(record, MessagesSent):
                self._queues.note_answers(queue.account, record, lsn)
        elif self._salvage is None:
            self._apply(queue, record, lsn)
        else:
            # Cut down first, then applied by the ordinary methods: a second set of methods that tolerate anything would
            # have to be kept equal to the first forever.
            fitting, is_all = self._salvage.fitting(queue.index, record)
            self.records_not_applied += not is_all
            for fitting_record in fitting:
                self._apply(queue, fitting_record, lsn)

    def _replay_schedule(self, record: ScheduleRecord, lsn: int) -> None:
        """Apply a record of a schedule.

        The message of a firing is a record of its queue, and the queue has a slice of its own. The checkpoint can have
        the firing without the message, or the message without the firing.
        """
        schedules = self._facts.schedules
        schedule = schedules.by_id.get(record.schedule_id)
        if schedule is not None:
            # As for a queue: the slice has the firings up to its LSN, and a second application would count them twice.
            if lsn > schedule.slice_lsn:
                schedules.apply(record)
        elif isinstance(record, ScheduleSet):
            namesake = schedules.folded.get(record.account, {}).get(folded(record.name))
            if namesake is not None:
                if lsn <= namesake.slice_lsn:
                    # The schedule was deleted before its slice was made, and a newer schedule took the name.
                    return
                if self._salvage is not None:
                    # The name was free when the record was made, so the namesake was deleted in a gap.
                    schedules.apply(ScheduleDeleted(namesake.schedule_id))
            # Behind a gap the record may be a change of a schedule with a lost creation: it has all attributes.
            schedules.apply(record)
        # Up to the end of the checkpoint an unknown schedule was deleted before its slice was made. Behind the end its
        # creation is missing. Passed over in silence, the schedule would never fire again, and its operator would have
        # no sign of a loss.
        elif lsn > self._restore.end_lsn:
            if self._salvage is None:
                raise ValueError(f"row {lsn} has a {type(record).__name__} of unknown schedule {record.schedule_id}")
            self.records_not_applied += 1

    def _replay_topic(self, record: TopicRecord, lsn: int) -> None:
        # Before the topic is examined: the copies of a publish are facts of their queues, which outlive the topic.
        topic = self._topics.by_id.get(record.topic_id)
        if isinstance(record, MessagesPublished):
            # Copies are stored even if the topic is gone or its slice is newer: queues have slices of their own.
            self._replay_copies(record, lsn)
        if isinstance(record, TopicCreated):
            if topic is None:
                self._replay_topic_created(record, lsn)
        elif topic is None:
            # Up to the end of the checkpoint: the topic was deleted before its slice was made.
            if lsn > self._restore.end_lsn:
                if self._salvage is None:
                    raise ValueError(f"row {lsn} has a {type(record).__name__} of unknown topic {record.topic_id}")
                self.records_not_applied += 1
        elif isinstance(record, MessagesPublished):
            # Positions below are in the slice, but sessions have slices of their own, as for a send.
            if lsn <= topic.slice_lsn:
                self._sessions.note(topic.account, record.numbered, record.enqueue_ms, lsn)
            elif self._salvage is None or record.first_position >= topic.next_position:
                self._topics.apply_published(topic, record, lsn)
            else:
                self.records_not_applied += 1
        elif lsn > topic.slice_lsn and not self._is_covered(topic, record, lsn):
            if self._salvage is not None:
                self._salvage_topic(topic, record, lsn)
            else:
                self._topics.apply(topic, record, lsn)

    def _is_covered(self, topic: Topic, record: TopicRecord, lsn: int) -> bool:
        """Return whether a record of a subscription is in the checkpoint already.

        The slice of a subscription can be newer than the slice of its topic. A subscription that was removed before its
        slice was made is unknown, and its records up to the end of the checkpoint count as covered.
        """
        if isinstance(record, TopicCreated | TopicAttributesSet | TopicDeleted):
            return False
        # These concern all subscriptions. A publish is applied by the slice of each of them, and an expiry that a slice
        # contains finds nothing to remove.
        if isinstance(record, TopicMessagesExpired | MessagesPublished):
            return False
        subscription = topic.subscriptions.get(record.subscription_id)
        if subscription is not None:
            return lsn <= subscription.slice_lsn
        return lsn <= self._restore.end_lsn and not isinstance(record, Subscribed)

    def _salvage_topic(self, topic: Topic, record: TopicRecord, lsn: int) -> None:
        """Apply a record behind a gap in the log, if the record can be true for the known facts of the topic."""
        # First the facts that the record presumes, then the record. A name that is taken, or a position that is not
        # counted as used, would make the record contradict the tables.
        match record:
            case Subscribed():
                namesake = topic.folded.get(folded(record.name))
                if namesake is not None:
                    # The name was free when the record was made, so the namesake was removed in a gap.
                    self._topics.apply(topic, Unsubscribed(topic.topic_id, namesake.subscription_id), lsn)
            case DeliveriesCleared():
                topic.next_position = max(topic.next_position, record.floor)
            case MessagesDelivered() | DeliveriesFailed() | DeliveriesDropped():
                # Positions are never used again, even if the publish that used them is lost.
                topic.next_position = max(topic.next_position, last_of(record.positions) + 1)
            case TopicMessagesExpired():
                topic.next_position = max(topic.next_position, record.floor)
            case _:
                pass
        if _fits(topic, record):
            self._topics.apply(topic, record, lsn)
        else:
            self.records_not_applied += 1

    def _replay_topic_created(self, record: TopicCreated, lsn: int) -> None:
        namesake = self._topics.folded.get(record.account, {}).get(folded(record.name))
        if namesake is not None:
            if lsn <= namesake.slice_lsn:
                # The topic was deleted before its slice was made, and a newer topic took the name.
                return
            if self._salvage is not None:
                self._topics.apply(namesake, TopicDeleted(namesake.topic_id), lsn)
        self._topics.apply_created(record)

    def _replay_copies(self, record: MessagesPublished, lsn: int) -> None:
        for queue_id, first, count in copies_of(record):
            queue = self._queues.by_id.get(queue_id)
            # Every queue by its own slice. A checkpoint can hold the copies of one publish for some queues and not for
            # others.
            if queue is None:
                if lsn > self._restore.end_lsn:
                    if self._salvage is None:
                        raise ValueError(f"row {lsn} has copies in unknown queue {queue_id}")
                    self.records_not_applied += 1
            elif lsn > queue.slice_lsn:
                # Behind a gap the positions may be in use already, by a record that was applied before.
                if self._salvage is not None and first < queue.index.next_position:
                    self.records_not_applied += 1
                    continue
                queue.index.apply_copies(first, count, record.enqueue_ms)

    def _replay_created(self, record: QueueCreated, lsn: int) -> None:
        namesake = self._queues.folded.get(record.account, {}).get(folded(record.name))
        if namesake is not None:
            if lsn <= namesake.slice_lsn:
                # The queue was deleted before its slice was made, and a newer queue took the name.
                return
            if self._salvage is not None:
                # The name was free when the record was made, so the namesake was deleted in a gap.
                self._queues.apply_deleted(QueueDeletedRecord(namesake.queue_id), lsn)
        self._queues.apply_created(record)

    def _apply(self, queue: Queue, record: AnyRecord, lsn: int) -> None:
        # Records that change more than the index go to the table: sessions, dedup ids, due checks, names and bindings.
        match record:
            case MessagesSent():
                self._queues.apply_sent(queue, record, lsn)
            case TransactionsChecked():
                self._queues.apply_checked(queue, record)
            case QueueCleared() | MessagesExpired():
                self._queues.apply_floor(queue, record)
            case QueueAttributesSet():
                self._queues.apply_attributes(queue, record)
            case QueueDeletedRecord():
                self._queues.apply_deleted(record, lsn)
            case _:
                queue.index.apply(record)

    # ------------------------------------------------------------------ the end of recovery

    def finish(self, *, lost: bool, restored: LogRestored | None = None) -> Sequence[AnyRecord]:
        """Complete the facts at the end of recovery, and return records to append before all others.

        Numbers (message ids, leases, queue ids) go on beyond every number that may have been used. Reservations are
        blocks, and a block that was begun before the restart is skipped: a reused lease would let an old receipt handle
        delete another message. If rows were lost (``lost``, or after :meth:`begin_salvage`), a reservation may be lost
        too, so the numbers jump further. So they do behind a restore (``restored``), which cut off rows that had used
        numbers; no fact is missing then, and the totals stay.

        The records come first in the log, because a second start from the same log must find the mended facts before
        the first operation that relies on them.
        """
        records: list[AnyRecord] = []
        if lost or self._salvage is not None:
            self._salvage = None
            records.append(self._facts.jump())
            # Only after a loss: a whole log has the records that end these messages.
            self._end_nameless(records)
            self._reset_totals(records)
        elif restored is not None:
            records.append(self._facts.jump())
        if restored is not None:
            self._facts.apply_restored(restored)
            records.append(restored)
        # After the jump, which reserves: the next numbers begin where all reservations end.
        self._numbers.skip_reserved()
        queues = self._queues
        for queue in queues.by_id.values():
            index = queue.index
            # The bound is not in the checkpoint. The floor is a bound too, and the first receive moves the head up.
            index.head = index.floor
            name = index.attributes.dead_letter_queue
            # By name, at the end: in the checkpoint and in the log a queue can come before its dead-letter queue.
            if name:
                queues.bind(queue, queues.names[queue.account].get(name))
            # Live, every send of half messages forgets a step of decisions. A replay does not, and would start with a
            # longer table than a live broker has.
            while index.has_halves and index.halves.is_too_long():
                index.halves.forget_decided(index.half)
        # After all queues are bound by name: only then a missing dead-letter queue is known to be missing.
        self._mend_bindings(records)
        for subscription in self._topics.subscriptions.values():
            subscription.flows = subscription.may_flow()
            # A publish may have come after retries were exhausted and before the restart; a publish revives retries.
            subscription.deliveries.published()
            # A checkpoint without drops: for the messages so far, a drop cannot be told from a delivery.
            if subscription.deliveries.drops.known_from is None:
                subscription.deliveries.drops.known_from = subscription.topic.next_position
        return records

    def _end_nameless(self, records: list[AnyRecord]) -> None:
        """Roll back half messages without a message id.

        The slices of ids follow the slice that has the positions. A half message that ended between the two slices, in
        a row that was lost, is half without an id: no producer could ever decide about the message.
        """
        for queue_id, queue in self._queues.by_id.items():
            index = queue.index
            nameless = [position for position in index.half if index.halves.id_of(position) is None]
            # Rolled back by a record, so that a second start from this log comes to the same decision.
            if nameless:
                # Recovery has no clock. The time of the newest message is the latest time that the queue knows.
                ended = TransactionsEnded(queue_id, pack_runs(nameless), False, index.last_enqueue_ms)
                index.apply_ended(ended)
                records.append(ended)

    def _reset_totals(self, records: list[AnyRecord]) -> None:
        """Let all totals begin at 0: without the lost rows they are lower than before.

        By a record, so that a second start from this log comes to the same totals.
        """
        # Recovery has no clock; the latest time that a queue knows is near enough for a reader of the log.
        at_ms = max((queue.index.last_enqueue_ms for queue in self._queues.by_id.values()), default=0)
        self._facts.apply_totals_reset()
        records.append(TotalsReset(at_ms))

    def _mend_bindings(self, records: list[AnyRecord]) -> None:
        """Mend dead-letter settings after a loss.

        If the dead-letter queue of a queue is gone, the queue loses the setting. A dead-letter queue that lost the
        record of its role gets a new record.
        """
        for queue in self._queues.by_id.values():
            index = queue.index
            if index.attributes.dead_letter_queue and queue.dead_letters is None:
                attributes = structs.replace(
                    index.attributes, dead_letter_queue="", dead_letter_max_receives=0, dead_letter_after_ms=0
                )
                # With its rewind floor, as every change of attributes has: replay prunes by the record (decision 0024).
                record = index.with_rewind_floor(QueueAttributesSet(queue.queue_id, attributes, queue.modified_ms))
                self._queues.apply_attributes(queue, record)
                records.append(record)
            if queue.sources and index.dead_letter_floor < 0:
                # From the end of the queue: the messages that it holds may be from before its role, and are to be
                # consumed before it takes dead letters.
                serves = DeadLettersFrom(queue.queue_id, index.next_position)
                index.apply_dead_letters_from(serves)
                records.append(serves)


def _fits(topic: Topic, record: TopicRecord) -> bool:
    """Return whether a record behind a gap in the log can be true for the known facts of the topic."""
    match record:
        case (
            Unsubscribed()
            | SubscriptionAttributesSet()
            | MessagesDelivered()
            | DeliveriesFailed()
            | DeliveriesDropped()
            | DeliveriesCleared()
        ):
            return record.subscription_id in topic.subscriptions
        case _:
            return True
