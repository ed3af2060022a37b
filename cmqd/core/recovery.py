"""Recovery: the index from a checkpoint and the records after it; and the checkpoint itself."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.names import folded
from cmqd.core.outcome import Outcome
from cmqd.core.queue import Queue
from cmqd.core.salvage import Salvage
from cmqd.core.topic import Subscription, Topic
from cmqd.core.topicstate import TopicState
from cmqd_fold.half_messages import Checked
from cmqd_segment.checkpoint import (
    AnyPart,
    CheckpointEnd,
    CheckpointHeader,
    DedupSlice,
    HalvesSlice,
    HistorySlice,
    LeasesSlice,
    QueueSlice,
    RetriesSlice,
    SessionsSlice,
    SubscriptionSlice,
    TopicSlice,
)
from cmqd_segment.published import copies_of
from cmqd_segment.records import (
    AnyRecord,
    ClockOffset,
    DeadLettersFrom,
    DeliveriesCleared,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    MessagesExpired,
    MessagesPublished,
    MessagesSent,
    NumbersReserved,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
    Subscribed,
    SubscriptionAttributesSet,
    TopicAttributesSet,
    TopicCreated,
    TopicDeleted,
    TopicMessagesExpired,
    TopicRecord,
    TransactionsChecked,
    TransactionsEnded,
    Unsubscribed,
    last_of,
    pack_runs,
    unpack_runs,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord

LEASES_A_PART = 2000
CHUNKS_A_PART = 64
SESSIONS_A_PART = 64
HALVES_A_PART = 8192
RETRIES_A_PART = 8192
"""Each part of a checkpoint is made in about 2 ms at most, so that the loop can serve others in between."""


class Recovery(TopicState):
    """The part of the broker that restores and saves its index."""

    def checkpoint(self, last_lsn: Callable[[], int], now_ms: int) -> Iterator[AnyPart]:
        """The parts of a checkpoint, made one by one; other operations may run in between.

        ``last_lsn`` tells the LSN of the newest row that records were appended to: what the part made next is true for.
        """
        parts = 1
        numbers = self.numbers
        yield CheckpointHeader(
            last_lsn(),
            now_ms,
            numbers.message_id_until,
            numbers.lease_until,
            numbers.queue_id_until,
            self.clock_offset_ms,
        )
        for queue_id in list(self.queues):
            queue = self.queues.get(queue_id)
            if queue is not None:
                for part in self._queue_parts(queue, last_lsn()):
                    parts += 1
                    yield part
        for topic_id in list(self.topics):
            topic = self.topics.get(topic_id)
            if topic is not None:
                for part in self._topic_parts(topic, last_lsn):
                    parts += 1
                    yield part
        keys = self.sessions.keys()
        for at in range(0, len(keys), SESSIONS_A_PART):
            parts += 1
            yield SessionsSlice(last_lsn(), self.sessions.packed(keys[at : at + SESSIONS_A_PART]))
        # A queue may have been deleted since the last slice; recovery must not miss it.
        yield CheckpointEnd(last_lsn(), parts)

    def _queue_parts(self, queue: Queue, lsn: int) -> Iterator[AnyPart]:
        """All of one queue as it is when the first part is asked for."""
        index = queue.index
        # Copies of references: leases are frozen, so the parts made later still show this moment.
        leases = [item for item in index.in_flight.items() if item[1].position >= index.floor]
        history = index.history.entries()
        delays = self._delay_buckets.of_queue(queue.queue_id) if index.delayed_count else []
        step_positions, step_starts, step_ends = index.steps.packed()
        halves = self._halves(queue) if index.has_halves else ()
        dedup_ids = queue.dedup_ids.parts() if queue.has_dedup_ids else ()
        yield QueueSlice(
            lsn,
            queue.queue_id,
            queue.account,
            queue.name,
            index.attributes,
            queue.created_ms,
            queue.modified_ms,
            index.next_position,
            index.floor,
            index.last_enqueue_ms,
            index.live.serialize(),
            # What is damaged is as it was for whoever reads the log anew: it may have been repaired.
            index.active_anew().serialize(),
            (index.overflow | index.damaged_delays).serialize(),
            index.delayed.serialize(),
            [(due_ms, positions.tobytes()) for due_ms, positions in delays],
            step_positions,
            step_starts,
            step_ends,
            index.rewindable.serialize() if index.rewindable_count else b"",
            index.half.serialize() if index.half_count else b"",
            index.dead_letter_floor,
            index.activation_entries(),
            None if index.redrive is None else msgspec.structs.replace(index.redrive),
        )
        yield from halves
        for entries in dedup_ids:
            yield DedupSlice(queue.queue_id, entries)
        for at in range(0, len(leases), LEASES_A_PART):
            yield LeasesSlice(
                queue.queue_id,
                [
                    (lease, one.position, one.deadline_ms, one.receive_count, one.first_receive_ms)
                    for lease, one in leases[at : at + LEASES_A_PART]
                ],
            )
        for at in range(0, len(history), CHUNKS_A_PART):
            yield HistorySlice(queue.queue_id, history[at : at + CHUNKS_A_PART])

    def _topic_parts(self, topic: Topic, last_lsn: Callable[[], int]) -> Iterator[AnyPart]:
        """One topic as it is when the first part is asked for, then each of its subscriptions as it is in its turn:
        five hundred with a million messages each would take too long at once.
        """
        lsn = last_lsn()
        step_positions, step_starts, step_ends = topic.steps.packed()
        known = topic.known_dedup_ids
        dedup_ids = known.parts() if known is not None and len(known) else ()
        yield TopicSlice(
            lsn,
            topic.topic_id,
            topic.account,
            topic.name,
            topic.attributes,
            topic.created_ms,
            topic.modified_ms,
            topic.next_position,
            topic.floor,
            topic.last_enqueue_ms,
            step_positions,
            step_starts,
            step_ends,
        )
        for entries in dedup_ids:
            yield DedupSlice(topic.topic_id, entries)
        for subscription_id in list(topic.subscriptions):
            subscription = topic.subscriptions.get(subscription_id)
            if subscription is not None:
                retries = subscription.deliveries.retry_parts(RETRIES_A_PART)
                yield _subscription_slice(subscription, last_lsn())
                for some in retries:
                    yield RetriesSlice(topic.topic_id, subscription_id, some)

    def _halves(self, queue: Queue) -> Iterator[HalvesSlice]:
        """The half messages as they are now, however late each part is asked for."""
        halves = queue.index.halves
        # Copies: what comes due leaves its bucket.
        due = [(due_ms, positions[:]) for due_ms, positions in self._check_buckets.of_queue(queue.queue_id)]
        checks = self._checks.get(queue.queue_id)
        # They have left their buckets, and wait for somebody who answers.
        waiting = BitMap64() if checks is None else checks.due.copy()
        sets = (halves.committed.serialize(), halves.rolled_back.serialize())
        # Entries are frozen, as leases are.
        checked = (list(halves.checked), list(halves.checked.values()))
        return _halves_parts(queue, queue.index.next_position, sets, due, waiting, checked)

    def load(self, part: AnyPart) -> None:
        """Take back a part of a checkpoint; all of them come before the first :meth:`replay`."""
        match part:
            case CheckpointHeader():
                self.numbers.message_id_until = part.message_id_until
                self.numbers.lease_until = part.lease_until
                self.numbers.queue_id_until = part.queue_id_until
                self.clock_offset_ms = part.clock_offset_ms
            case QueueSlice():
                self._load_queue(part)
            case LeasesSlice() | HistorySlice():
                self.queues[part.queue_id].index.load(part)
            case HalvesSlice():
                self._load_halves(part)
            case TopicSlice():
                self._load_topic(part)
            case SubscriptionSlice():
                self._load_subscription(part)
            case RetriesSlice():
                self.subscriptions[part.subscription_id].deliveries.load_retries(part.retries)
            case DedupSlice():
                queue = self.queues.get(part.queue_id)
                if queue is not None:
                    account, dedup_ids = queue.account, queue.dedup_ids
                else:
                    topic = self.topics[part.queue_id]
                    account, dedup_ids = topic.account, topic.make_dedup_ids(DedupIds(self.limits))
                for dedup_id, message_id, sent_ms in part.entries:
                    dedup_ids.note(dedup_id, message_id, sent_ms)
                self.promises.memory.recount(account, dedup_ids)
            case SessionsSlice():
                self.sessions.load(part.lsn, part.sessions)
            case CheckpointEnd():
                self._checkpoint_end_lsn = part.lsn

    def _load_topic(self, part: TopicSlice) -> None:
        topic = Topic(part.account, part.name, part.topic_id, part.attributes, part.created_ms)
        topic.modified_ms = part.modified_ms
        topic.next_position = part.next_position
        topic.floor = part.floor
        topic.last_enqueue_ms = part.last_enqueue_ms
        topic.steps.load(part.step_positions, part.step_starts, part.step_ends)
        topic.slice_lsn = part.lsn
        self._add_topic(topic)

    def _load_subscription(self, part: SubscriptionSlice) -> None:
        topic = self.topics[part.topic_id]
        most = self.limits.max_retries_known
        subscription = Subscription(topic, part.subscription_id, part.name, part.attributes, part.created_ms, most)
        subscription.modified_ms = part.modified_ms
        subscription.slice_lsn = part.lsn
        subscription.deliveries.load(
            BitMap64.deserialize(part.waiting) if part.waiting else BitMap64(),
            blocked=part.blocked,
            delivered=part.delivered,
            dropped=part.dropped,
            last_error=part.last_error,
            last_error_ms=part.last_error_ms,
        )
        self._add_subscription(subscription)

    def _load_queue(self, part: QueueSlice) -> None:
        index = self._new_index(part.queue_id, part.attributes)
        index.load(part)
        queue = Queue(part.account, part.name, part.created_ms, index, self.limits)
        queue.modified_ms = part.modified_ms
        queue.slice_lsn = part.lsn
        self._add(queue)

    def _load_halves(self, part: HalvesSlice) -> None:
        index = self.queues[part.queue_id].index
        index.halves.load(part.runs)
        if part.committed:
            index.halves.committed = BitMap64.deserialize(part.committed)
            index.halves.rolled_back = BitMap64.deserialize(part.rolled_back)
        for position, attempts, last_check_ms, last_unknown_ms, next_check_ms in part.checked:
            index.halves.load_checked(position, Checked(attempts, last_check_ms, last_unknown_ms, next_check_ms))
        for due_ms, packed in part.due:
            still = [position for position in array("Q", packed) if position in index.half]
            self._check_buckets.bucket(due_ms, part.queue_id).extend(still)
            self._check_buckets.size += len(still)

    def begin_salvage(self) -> None:
        """Rows are missing: what is replayed from now on applies as far as it can; see :mod:`cmqd.core.salvage`."""
        self._salvage = self._salvage or Salvage()

    def replay(self, record: AnyRecord, lsn: int) -> None:
        """Apply a record of the log in recovery, unless the checkpoint slice of its queue covers it already.

        Raises:
            ValueError: the record belongs to a queue that the log does not know: records before it are missing, and
                :meth:`begin_salvage` was not called. (Other missing records show as a KeyError, or not at all.)
        """
        if isinstance(record, NumbersReserved):
            self.numbers.apply(record)
            return
        if isinstance(record, ClockOffset):
            self._apply_clock_offset(record, lsn)
            return
        if isinstance(record, TopicRecord):
            self._replay_topic(record, lsn)
            return
        queue = self.queues.get(record.queue_id)
        if isinstance(record, QueueCreated):
            if queue is None:
                self._replay_created(record, lsn)
            return
        if queue is None:
            if lsn <= self._checkpoint_end_lsn:
                # Deleted while the checkpoint was taken, before its slice came up.
                return
            if self._salvage is not None:
                self.records_not_applied += 1
                return
            raise ValueError(f"row {lsn} has a {type(record).__name__} of unknown queue {record.queue_id}")
        if lsn <= queue.slice_lsn:
            if isinstance(record, MessagesSent):
                self._note_answers(queue.account, record, lsn)
        elif self._salvage is None:
            self._apply(queue, record, lsn)
        else:
            fitting, is_all = self._salvage.fitting(queue.index, record)
            self.records_not_applied += not is_all
            for one in fitting:
                self._apply(queue, one, lsn)

    def _replay_topic(self, record: TopicRecord, lsn: int) -> None:
        topic = self.topics.get(record.topic_id)
        if isinstance(record, MessagesPublished):
            # The queues first, whatever became of the topic: they are slices of their own.
            self._replay_copies(record, lsn)
        if isinstance(record, TopicCreated):
            if topic is None:
                self._replay_topic_created(record, lsn)
        elif topic is None:
            if lsn > self._checkpoint_end_lsn:
                if self._salvage is None:
                    raise ValueError(f"row {lsn} has a {type(record).__name__} of unknown topic {record.topic_id}")
                self.records_not_applied += 1
        elif isinstance(record, MessagesPublished):
            if lsn <= topic.slice_lsn:
                self._note_numbered(topic.account, record.numbered, record.enqueue_ms, lsn)
            elif self._salvage is None or record.first_position >= topic.next_position:
                self._apply_to_topic(topic, record, lsn)
            else:
                self.records_not_applied += 1
        elif lsn > topic.slice_lsn and not self._is_covered(topic, record, lsn):
            if self._salvage is not None:
                self._salvage_topic(topic, record)
            else:
                self._apply_topic_record(topic, record)

    def _is_covered(self, topic: Topic, record: TopicRecord, lsn: int) -> bool:
        """Whether a subscription's slice, which may be newer than its topic's, knows of this; or it went before its
        turn came.
        """
        if isinstance(record, TopicCreated | TopicAttributesSet | TopicDeleted):
            return False
        if isinstance(record, TopicMessagesExpired | MessagesPublished):
            return False
        subscription = topic.subscriptions.get(record.subscription_id)
        if subscription is not None:
            return lsn <= subscription.slice_lsn
        return lsn <= self._checkpoint_end_lsn and not isinstance(record, Subscribed)

    def _salvage_topic(self, topic: Topic, record: TopicRecord) -> None:
        """Apply a record behind a gap in the log, if it can be true of what is known of the topic."""
        match record:
            case Subscribed():
                namesake = topic.folded.get(folded(record.name))
                if namesake is not None:
                    # The name was free, so the namesake went, in a gap.
                    self._apply_topic_record(topic, Unsubscribed(topic.topic_id, namesake.subscription_id))
            case DeliveriesCleared():
                topic.next_position = max(topic.next_position, record.floor)
            case MessagesDelivered() | DeliveriesFailed() | DeliveriesDropped():
                # Positions are not used again, whether what was published there is known or not.
                topic.next_position = max(topic.next_position, last_of(record.positions) + 1)
            case TopicMessagesExpired():
                topic.next_position = max(topic.next_position, record.floor)
            case _:
                pass
        if _fits(topic, record):
            self._apply_topic_record(topic, record)
        else:
            self.records_not_applied += 1

    def _replay_topic_created(self, record: TopicCreated, lsn: int) -> None:
        namesake = self._folded_topics.get(record.account, {}).get(folded(record.name))
        if namesake is not None:
            if lsn <= namesake.slice_lsn:
                # It was deleted again before the checkpoint came to it, and its name was given away.
                return
            if self._salvage is not None:
                self._apply_topic_record(namesake, TopicDeleted(namesake.topic_id))
        self._apply_topic_created(record)

    def _replay_copies(self, record: MessagesPublished, lsn: int) -> None:
        for queue_id, first, count in copies_of(record):
            queue = self.queues.get(queue_id)
            if queue is None:
                if lsn > self._checkpoint_end_lsn:
                    if self._salvage is None:
                        raise ValueError(f"row {lsn} has copies in unknown queue {queue_id}")
                    self.records_not_applied += 1
            elif lsn > queue.slice_lsn:
                if self._salvage is not None and first < queue.index.next_position:
                    self.records_not_applied += 1
                    continue
                self._apply_copies(queue, first, count, record.enqueue_ms)

    def _replay_created(self, record: QueueCreated, lsn: int) -> None:
        namesake = self._folded.get(record.account, {}).get(folded(record.name))
        if namesake is not None:
            if lsn <= namesake.slice_lsn:
                # It was deleted again before the checkpoint came to it, and its name was given away.
                return
            if self._salvage is not None:
                # The name was free, so the namesake was deleted, in a gap.
                self._apply_queue_deleted(QueueDeletedRecord(namesake.queue_id))
        self._apply_created(record)

    def _apply(self, queue: Queue, record: AnyRecord, lsn: int) -> None:
        index = queue.index
        match record:
            case MessagesSent():
                self._apply_sent(queue, record, lsn)
            case TransactionsChecked():
                index.apply_checked(record)
                checks = self._checks.get(queue.queue_id)
                if checks is not None:
                    # Due anew since more checks are allowed, and asked since then.
                    checks.due -= BitMap64(unpack_runs(record.positions))
            case QueueCleared() | MessagesExpired():
                self._apply_floor(record)
            case QueueAttributesSet():
                self._apply_attributes(record)
            case QueueDeletedRecord():
                self._apply_queue_deleted(record)
            case _:
                index.apply(record)

    def set_clock_offset(self, offset_ms: int, now_ms: int, *, stepped: bool = False) -> Outcome[None]:
        """Record how far the wall clock is ahead of broker time.

        ``stepped``: broker time was set to ``now_ms``. To be called before :meth:`recovered`, which plans by times.
        """
        record = ClockOffset(offset_ms, now_ms, stepped)
        self._apply_clock_offset(record)
        return Outcome(None, [record])

    def _apply_clock_offset(self, record: ClockOffset, lsn: int = 0) -> None:
        self.clock_offset_ms = record.offset_ms
        if not record.stepped:
            return
        now_ms = record.time_ms
        # A slice that was taken later knows of the step; its times may rightly lie beyond the bounds of that moment.
        queues = {number: queue for number, queue in self.queues.items() if not lsn or lsn > queue.slice_lsn}
        self._lease_buckets.no_later_than(now_ms + self.limits.max_visibility_timeout_ms, queues)
        self._delay_buckets.no_later_than(now_ms + self.limits.max_delay_ms, queues)
        memory = self.promises.memory
        for queue in queues.values():
            queue.apply_step(now_ms)
            memory.recount(queue.account, queue.dedup_ids)
        for topic in self.topics.values():
            if not lsn or lsn > topic.slice_lsn:
                topic.apply_step(now_ms)
                if topic.known_dedup_ids is not None:
                    memory.recount(topic.account, topic.known_dedup_ids)
        self.sessions.no_later_than(now_ms, lsn)

    def recovered(self, *, lost: bool = False) -> Sequence[AnyRecord]:
        """Recovery is over: numbers start beyond all that may have been used, bodies are in the log alone.

        ``lost``: part of the log was set aside, so the numbers leap, as they do after :meth:`begin_salvage`. Returns
        records to append before anything else.
        """
        records: list[AnyRecord] = []
        if lost or self._salvage is not None:
            self._salvage = None
            record = self.numbers.jump()
            self.numbers.apply(record)
            records.append(record)
            self._end_nameless(records)
        self.numbers.skip_reserved()
        for queue in self.queues.values():
            queue.window.cold = bool(queue.index.live_count)
            queue.index.head = queue.index.floor
            queue.expiry_due_ms = None
            self._schedule_expiry(queue)
            self._want_overflow(queue)
            self._take_up(queue)
            while queue.index.has_halves and queue.index.halves.is_too_long():
                queue.index.halves.forget_decided(queue.index.half)
        self._mend_bindings(records)
        for queue in self.queues.values():
            self._reserve_overdue(queue)
        self._dedup_sweeps = [(0, queue_id) for queue_id, one in self.queues.items() if one.has_dedup_ids]
        self._dedup_sweeps += [(0, topic_id) for topic_id, one in self.topics.items() if one.has_dedup_ids]
        self._topic_expiries.clear()
        for topic in self.topics.values():
            self._schedule_topic_expiry(topic)
        for subscription in self.subscriptions.values():
            subscription.flows = subscription.may_flow()
            # A publish may have come after they were used up, and before the restart.
            subscription.deliveries.published()
            subscription.retries_noted = subscription.deliveries.retrying_count
            self._retries_known += subscription.retries_noted
            self._deliveries_wanted[subscription.subscription_id] = None
        if len(self.sessions):
            self._sessions_due_ms = 0
        return records

    def _end_nameless(self, records: list[AnyRecord]) -> None:
        """Half messages that went, in a gap, while the checkpoint was taken that knows them: their ids came later."""
        for queue_id, queue in self.queues.items():
            index = queue.index
            nameless = [position for position in index.half if index.halves.id_of(position) is None]
            if nameless:
                ended = TransactionsEnded(queue_id, pack_runs(nameless), False, index.last_enqueue_ms)
                index.apply_ended(ended)
                records.append(ended)

    def _mend_bindings(self, records: list[AnyRecord]) -> None:
        """What a loss can leave: a queue whose dead-letter queue is gone, one that does not know that it serves."""
        for queue in self.queues.values():
            index = queue.index
            if index.attributes.dead_letter_queue and queue.dead_letters is None:
                attributes = msgspec.structs.replace(
                    index.attributes, dead_letter_queue="", dead_letter_max_receives=0, dead_letter_after_ms=0
                )
                record = index.with_rewind_floor(QueueAttributesSet(queue.queue_id, attributes, queue.modified_ms))
                self._apply_attributes(record)
                records.append(record)
            if queue.sources and index.dead_letter_floor < 0:
                serves = DeadLettersFrom(queue.queue_id, index.next_position)
                index.apply_dead_letters_from(serves)
                records.append(serves)


def _fits(topic: Topic, record: TopicRecord) -> bool:
    """Whether a record, behind a gap in the log, can be true of what is known of the topic."""
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


def _subscription_slice(subscription: Subscription, lsn: int) -> SubscriptionSlice:
    deliveries = subscription.deliveries
    return SubscriptionSlice(
        lsn,
        subscription.topic.topic_id,
        subscription.subscription_id,
        subscription.name,
        subscription.attributes,
        subscription.created_ms,
        subscription.modified_ms,
        deliveries.waiting.serialize() if deliveries.waiting else b"",
        deliveries.exhausted.serialize() if deliveries.exhausted else b"",
        deliveries.blocked,
        deliveries.delivered,
        deliveries.dropped,
        deliveries.last_error,
        deliveries.last_error_ms,
    )


def _halves_parts(
    queue: Queue,
    stop: int,
    sets: tuple[bytes, bytes],
    due: "list[tuple[int, array[int]]]",
    waiting: BitMap64,
    checked: tuple[list[int], list[Checked]],
) -> Iterator[HalvesSlice]:
    """``stop``: the first position that was free at the moment that they show; see :meth:`Recovery._halves`."""
    queue_id = queue.queue_id
    yield HalvesSlice(queue_id, [], *sets, [], [])
    # No copy of the runs, which never change: those below ``stop`` that are missing by now were forgotten by what the
    # log says, or because there are too many.
    runs = queue.index.halves.runs(0, stop, HALVES_A_PART)
    while runs:
        yield HalvesSlice(queue_id, runs, b"", b"", [], [])
        runs = queue.index.halves.runs(runs[-1][1] + 1, stop, HALVES_A_PART)
    for buckets in _cut(due):
        yield HalvesSlice(queue_id, [], b"", b"", buckets, [])
    rest = iter(waiting)
    while positions := array("Q", islice(rest, HALVES_A_PART)):
        yield HalvesSlice(queue_id, [], b"", b"", [(0, positions.tobytes())], [])
    positions, known = checked
    for at in range(0, len(positions), HALVES_A_PART):
        stretch = slice(at, at + HALVES_A_PART)
        entries = [
            (position, one.attempts, one.last_check_ms, one.last_unknown_ms, one.next_check_ms)
            for position, one in zip(positions[stretch], known[stretch], strict=True)
        ]
        yield HalvesSlice(queue_id, [], b"", b"", [], entries)


def _cut(due: "list[tuple[int, array[int]]]") -> Iterator[list[tuple[int, bytes]]]:
    """Buckets in lists of about ``HALVES_A_PART`` positions."""
    together: list[tuple[int, bytes]] = []
    size = 0
    for due_ms, positions in due:
        for at in range(0, len(positions), HALVES_A_PART):
            piece = positions[at : at + HALVES_A_PART]
            together.append((due_ms, piece.tobytes()))
            size += len(piece)
            if size >= HALVES_A_PART:
                yield together
                together, size = [], 0
    if together:
        yield together
