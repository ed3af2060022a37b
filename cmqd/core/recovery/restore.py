"""Reading a checkpoint back.

Parts come in the order of their writing, and the order matters: the slice of a queue makes the queue that its leases,
history, half messages and dedup ids are loaded into, and topics come before their subscriptions. Times are loaded as
they were written. Nothing is planned here: the agenda is made from the facts, once, when all records are replayed.

Every queue, topic and subscription keeps the LSN of its slice, and sessions keep theirs. The parts show different
moments, because clients were served between two parts; with the LSN, replay applies exactly the records that a slice
does not have.
"""

from array import array

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd_fold.half_messages import Checked
from cmqd_segment.checkpoint import (
    ActorsSlice,
    AnyPart,
    AuditSlice,
    CheckpointEnd,
    CheckpointHeader,
    DedupSlice,
    GoneTotalsSlice,
    HalvesSlice,
    HistorySlice,
    LeasesSlice,
    QueueSlice,
    RetriesSlice,
    ScheduleSlice,
    SessionsSlice,
    SubscriptionSlice,
    TopicSlice,
)


class Restore:
    """Loads the parts of a checkpoint into the facts."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._promises = facts.promises
        self._sessions = facts.promises.sessions
        self._queues = facts.queues
        self._topics = facts.topics
        self.end_lsn = 0
        """LSN of the end of the checkpoint; 0 = none was read."""

    def load(self, part: AnyPart) -> None:
        """Restore a part of a checkpoint; all parts come before the first record is replayed."""
        match part:
            case CheckpointHeader():
                # The ends of the reservations and not the next numbers: numbers up to there may have been used after
                # the checkpoint. ``Replay.finish`` goes on behind them.
                self._numbers.message_id_until = part.message_id_until
                # A lease below the end of its reservation may belong to a client that still has the receipt
                # handle.
                self._numbers.lease_until = part.lease_until
                self._numbers.queue_id_until = part.queue_id_until
                self._facts.clock_offset_ms = part.clock_offset_ms
            case QueueSlice():
                self._load_queue(part)
            case LeasesSlice() | HistorySlice():
                self._queues.by_id[part.queue_id].index.load(part)
            case HalvesSlice():
                self._load_halves(part)
            case TopicSlice():
                self._load_topic(part)
            case SubscriptionSlice():
                self._load_subscription(part)
            case RetriesSlice():
                # A KeyError here is damage: the writer makes the slice of a subscription before its retries.
                self._topics.subscriptions[part.subscription_id].deliveries.load_retries(
                    (part.retries, part.errors, part.failures)
                )
            case DedupSlice():
                queue = self._queues.by_id.get(part.queue_id)
                # Queues and topics share their ids, so a single table of ids tells where the dedup ids belong.
                if queue is not None:
                    account, dedup_ids = queue.account, queue.dedup_ids
                else:
                    topic = self._topics.by_id[part.queue_id]
                    account, dedup_ids = topic.account, topic.make_dedup_ids(DedupIds(self._limits))
                # In their order, as they were sent: the last entry of an id replaces its stale entries.
                for dedup_id, message_id, sent_ms in part.entries:
                    dedup_ids.note(dedup_id, message_id, sent_ms)
                # Counted without asking for room: promises of before the restart are kept, even if the share of the
                # account was lowered since.
                self._promises.memory.recount(account, dedup_ids)
            case ScheduleSlice():
                self._facts.schedules.load(part)
            case GoneTotalsSlice():
                self._facts.gone_totals.load(part)
            case ActorsSlice():
                self._facts.actors.load(part)
            case AuditSlice():
                self._facts.audit_trail.load(part)
            case SessionsSlice():
                # Slices of sessions are written last and hold all answers of the queues, so a session is taken as the
                # slice has it.
                self._sessions.load(part.lsn, part.sessions)
            case CheckpointEnd():
                # Up to here a record of an unknown queue is normal: the queue was deleted before its slice was made.
                # Behind it, such a record is damage.
                self.end_lsn = part.lsn

    def _load_topic(self, part: TopicSlice) -> None:
        topic = Topic(part.account, part.name, part.topic_id, part.attributes, part.created_ms)
        topic.modified_ms = part.modified_ms
        topic.next_position = part.next_position
        topic.floor = part.floor
        topic.last_enqueue_ms = part.last_enqueue_ms
        topic.steps.load(part.step_positions, part.step_starts, part.step_ends)
        if part.totals is not None:
            topic.totals = msgspec.structs.replace(part.totals)
        # Records up to this LSN are in the slice. Applied again, they would count messages twice.
        topic.slice_lsn = part.lsn
        # In the table at once: the slices of its subscriptions and dedup ids follow.
        self._topics.add(topic)

    def _load_subscription(self, part: SubscriptionSlice) -> None:
        topic = self._topics.by_id[part.topic_id]
        max_retries = self._limits.max_retries_known
        subscription = Subscription(
            topic, part.subscription_id, part.name, part.attributes, part.created_ms, max_retries
        )
        subscription.modified_ms = part.modified_ms
        subscription.slice_lsn = part.lsn
        # ``exhausted`` is not read from the slice: it follows from the retries, which come in later parts.
        subscription.deliveries.load(
            BitMap64.deserialize(part.waiting) if part.waiting else BitMap64(),
            blocked=part.blocked,
            delivered=part.delivered,
            failed=part.failed,
            dropped=part.dropped,
            last_error=part.last_error,
            last_error_ms=part.last_error_ms,
        )
        subscription.deliveries.drops.load(part.drops_known_from, part.drops_begun_ms, part.drops, part.older_drops)
        # Entered in the tables, which bind the subscription to its queue: queues were loaded before. Whether messages
        # flow is decided at the end of recovery, because the retries follow in later parts.
        self._topics.add_subscription(subscription)

    def _load_queue(self, part: QueueSlice) -> None:
        # The table makes the index, because all queues share the buckets of deadlines: the broker asks the table for
        # its next due time, and not every queue.
        index = self._queues.new_index(part.queue_id, part.attributes)
        index.load(part)
        queue = Queue(part.account, part.name, part.created_ms, index, self._limits)
        queue.modified_ms = part.modified_ms
        # As for a topic: replay skips the records up to here.
        queue.slice_lsn = part.lsn
        # Dead-letter queues are not bound yet, because the slice of the target may follow. ``Replay.finish`` binds all
        # of them by name.
        self._queues.add(queue)

    def _load_halves(self, part: HalvesSlice) -> None:
        index = self._queues.by_id[part.queue_id].index
        index.halves.load(part.runs)
        # Only the first part of a queue has the decisions. A later part has empty bytes, which must not replace them.
        if part.committed:
            index.halves.committed = BitMap64.deserialize(part.committed)
            index.halves.rolled_back = BitMap64.deserialize(part.rolled_back)
        for position, attempts, last_check_ms, last_unknown_ms, next_check_ms in part.checked:
            index.halves.load_checked(position, Checked(attempts, last_check_ms, last_unknown_ms, next_check_ms))
        # Entries of messages that were decided since the bucket was filled are dropped here, once, in place of at every
        # due time.
        for due_ms, packed in part.due:
            still = [position for position in array("Q", packed) if position in index.half]
            self._queues.checks.bucket(due_ms, part.queue_id).extend(still)
            self._queues.checks.size += len(still)
