"""What the operations share: the queues by id and name, the numbers, the agenda of times, and how facts are applied.

Every change of a fact goes through the ``_apply_*`` methods here (and those of :class:`~cmqd.core.index.QueueIndex`),
live and in recovery alike.
"""

from collections import deque
from heapq import heappush

import msgspec
from pyroaring import BitMap64

from cmqd.core.bodies import TopicBodies
from cmqd.core.deadlines import DeadlineBuckets
from cmqd.core.dedup import DedupIds
from cmqd.core.errors import DomainError, QueueNotFound, SubscriptionNotFound, TopicNotFound
from cmqd.core.index import QueueIndex
from cmqd.core.limits import Limits
from cmqd.core.names import folded
from cmqd.core.numbers import Numbers
from cmqd.core.outcome import PageRead, QueueInfo
from cmqd.core.queue import Queue, Redriving
from cmqd.core.receipts import HandleKey, ReceiptHandles
from cmqd.core.salvage import Salvage
from cmqd.core.sessions import Sessions
from cmqd.core.topic import Subscription, Topic
from cmqd.core.waiters import Waiter
from cmqd.core.window import WindowBudget
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    MessagesExpired,
    MessagesPublished,
    MessagesSent,
    QueueAttributes,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
    StoredMessage,
    Subscribed,
    SubscriptionAttributesSet,
    TopicAttributesSet,
    TopicCreated,
    TopicDeleted,
    TopicMessagesExpired,
    TopicRecord,
    Unsubscribed,
    pack_runs,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord

LEASE_BUCKET_MS = 100
"""How late a message may come back after its visibility timeout."""
DELAY_BUCKET_MS = 20
"""How late a delayed message may become active; spec: within 100 ms, page-in and commit included."""
LEASE_SWEEP_ABOVE = 1_000_000
"""Entries of leases, at 8 bytes, beyond which stale ones are looked for."""
WAIT_BUCKET_MS = 10
SESSION_SWEEP_MS = 10_000
CHECK_BUCKET_MS = 100
"""How late the check of a half message may be; intervals are a second and longer."""


CHECK_SWEEP_ABOVE = 1_000_000
"""Entries of checks, at 8 bytes, beyond which stale ones are looked for."""


class PendingPeek(msgspec.Struct, gc=False):
    """A peek that waits for bodies."""

    waiter_id: int
    queue_id: int
    positions: list[int]
    found: dict[int, StoredMessage]
    states: frozenset[str] | None = None
    """Those that are asked for; None = all of live messages."""
    go_on: int | None = None
    """Where the next peek starts if this one shows nothing."""


class PendingDecisions(msgspec.Struct, gc=False):
    """A request to decide half messages that waits for the bodies of some of them."""

    waiter_id: int
    left: int
    """How many of its decisions are not settled yet."""
    failures: list[tuple[int, int, DomainError]]
    """(place in the request, message id, refusal)"""


class PendingCommits(msgspec.Struct, gc=False):
    """The half messages of one queue whose bodies are wanted because they are to be committed."""

    queue_name: str
    decisions: dict[int, list[tuple[PendingDecisions, int, int, int]]]
    """By position, oldest first: (request, place in it, message id, decision). The first is a commit; the others came
    while its body was being read, and are settled after it."""


class PendingChecks(msgspec.Struct, gc=False):
    """The half messages of one queue that a producer is to be asked about, now or once there is one."""

    due: BitMap64
    reading: bool = False
    """A page-in of some of them is under way."""
    once_more: BitMap64 = msgspec.field(default_factory=BitMap64)
    """Those that were asked about as often as is allowed, the last time somebody who went away: another one may be."""


class PendingRewind(msgspec.Struct, gc=False):
    """A rewind that looks for the first message sent at or after its time."""

    waiter_id: int
    queue_id: int
    time_ms: int
    clamped: bool
    low: int
    """All rewindable messages below it were sent before."""
    high: int
    """None below it that is rewindable and at or above it was sent before."""
    unreadable: BitMap64
    """Messages between the two whose times cannot be read."""
    middle: int = 0
    """The message that is being read."""
    oldest: bool = False
    """It is the oldest one that is not consumed: not even later than that may be rewound to."""


class Endpoint(msgspec.Struct, gc=False):
    """A URL that is posted to."""

    under_way: int = 0
    line: dict[int, None] = {}
    """Subscriptions that wait until fewer requests to it are under way, in order."""


class BrokerState:
    """State of the broker; :class:`cmqd.core.broker.Broker` is the whole."""

    def __init__(self, handle_key: HandleKey, limits: Limits | None = None, seed: int = 0) -> None:
        """``seed``: any number, for the random part of pauses between deliveries."""
        self.limits = limits or Limits()
        self._seed = seed
        self.numbers = Numbers()
        self.handles = ReceiptHandles(handle_key)
        self.sessions = Sessions(self.limits)
        self.queues: dict[int, Queue] = {}
        """By id."""
        self._names: dict[str, dict[str, Queue]] = {}
        """By account and name."""
        self._folded: dict[str, dict[str, Queue]] = {}
        """By account and case-folded name."""
        self._lease_buckets = DeadlineBuckets(LEASE_BUCKET_MS)
        self._delay_buckets = DeadlineBuckets(DELAY_BUCKET_MS)
        self._check_buckets = DeadlineBuckets(CHECK_BUCKET_MS)
        self._lease_sweep_above = LEASE_SWEEP_ABOVE
        self._wait_buckets = DeadlineBuckets(WAIT_BUCKET_MS)
        self._expiries: list[tuple[int, int]] = []
        """Heap of (time, queue id): when a queue's floor of retention is next looked at."""
        self._agenda: list[tuple[int, int]] = []
        """Heap of (time, queue id): when a queue is next looked at for what is to move or can be rewound no more."""
        self._move_reads: dict[int, PageRead] = {}
        """Page-ins of messages that are to be moved, by read id."""
        self._move_line: dict[int, None] = {}
        """Queues that want such a page-in while enough are under way, in order."""
        self.moves_held_up = ""
        """Why nothing is moved for now, as the edge says; empty = it is."""
        self._rewind_reads: dict[int, PendingRewind] = {}
        """Page-ins of messages whose time of sending is wanted, by read id."""
        self._sessions_due_ms: int | None = None
        self._dedup_sweeps: list[tuple[int, int]] = []
        """Heap of (time, queue id): when old dedup ids are forgotten; an entry for each queue that remembers some."""
        self._deciding: dict[int, PendingDecisions] = {}
        """Requests to decide half messages that wait, by waiter; one that was cancelled is carried out all the same."""
        self._commits: dict[int, PendingCommits] = {}
        """By queue id; while there is one, a page-in for it is under way."""
        self._commit_reads: dict[int, int] = {}
        """Page-ins for commits: queue id by read id."""
        self._checks: dict[int, PendingChecks] = {}
        """By queue id."""
        self._checks_wanted: dict[int, None] = {}
        """Queues of which half messages are due for a check, which somebody answers and which no page-in holds up."""
        self._check_reads: dict[int, int] = {}
        """Page-ins for checks: queue id by read id."""
        self._check_sweep_above = CHECK_SWEEP_ABOVE
        self._waiters: dict[int, Waiter] = {}
        self._budget = WindowBudget(self.limits.window_bytes)
        self._next_read_id = 1
        self._reads: dict[int, tuple[int, PageRead]] = {}
        """Page-ins for receives under way: (queue id, what was asked), by read id."""
        self._overflow_reads: dict[int, int] = {}
        """Page-ins of overflow delays: queue id by read id."""
        self._prefetched_until_ms = 0
        """Bodies of delayed messages due by then were asked for."""
        self._prefetches: dict[int, PageRead] = {}
        """Page-ins of them under way, by read id."""
        self._overflow_wanted: dict[int, None] = {}
        """Queues in which places among the delayed came free while messages wait for one."""
        self.topics: dict[int, Topic] = {}
        """By id."""
        self._topic_names: dict[str, dict[str, Topic]] = {}
        """By account and name."""
        self._folded_topics: dict[str, dict[str, Topic]] = {}
        self.subscriptions: dict[int, Subscription] = {}
        """Of all topics, by id."""
        self._subscribers: dict[tuple[str, str], dict[int, Subscription]] = {}
        """Subscriptions that deliver to a queue, by account and name of the queue, whether there is one or not."""
        self._topic_expiries: list[tuple[int, int]] = []
        """Heap of (time, topic id): when a topic is next looked at for what has outlived its life."""
        self.topic_bodies = TopicBodies(self.limits.topic_bodies_bytes)
        self._deliveries_wanted: dict[int, None] = {}
        """Subscriptions with something to deliver now, in order."""
        self._delivery_agenda: list[tuple[int, int]] = []
        """Heap of (time, subscription id): when a subscription has something to deliver."""
        self._delivery_reads: dict[int, tuple[int, list[int]]] = {}
        """Page-ins for deliveries by read id: subscription id, positions."""
        self._delivery_read_line: dict[int, None] = {}
        """Subscriptions that want such a page-in while enough are under way, in order."""
        self.pushing = True
        """Somebody posts to URLs; as long as nobody does, what is for them waits."""
        self._pushes: dict[tuple[int, int], str] = {}
        """Deliveries to URLs that are under way: the URL by subscription id and position."""
        self._endpoints: dict[str, Endpoint] = {}
        """URLs that are posted to."""
        self._push_line: dict[int, None] = {}
        """Subscriptions that wait until fewer deliveries to URLs are under way altogether, in order."""
        self._peeks: dict[int, PendingPeek] = {}
        self._read_line: deque[int] = deque()
        """Queues that want a page-in while ``max_reads`` are under way."""
        self._checkpoint_end_lsn = 0
        self._salvage: Salvage | None = None
        """While a log with gaps is replayed."""
        self.records_not_applied: int = 0
        """Records of such a log of which a part or all was about what had been lost."""

    def queue(self, account: str, name: str) -> Queue:
        """The queue of that name.

        Raises:
            QueueNotFound: there is none.
        """
        try:
            return self._names[account][name]
        except KeyError:
            raise QueueNotFound(name) from None

    def topic(self, account: str, name: str) -> Topic:
        """The topic of that name.

        Raises:
            TopicNotFound: there is none.
        """
        try:
            return self._topic_names[account][name]
        except KeyError:
            raise TopicNotFound(name) from None

    def subscription(self, account: str, topic_name: str, name: str) -> Subscription:
        """The subscription of that name of a topic.

        Raises:
            TopicNotFound, SubscriptionNotFound: there is none.
        """
        found = self.topic(account, topic_name).folded.get(folded(name))
        if found is None or found.name != name:
            raise SubscriptionNotFound(topic_name, name)
        return found

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """How many messages at positions ``first .. stop-1`` of a queue or a topic are wanted; 0 if it is gone."""
        queue = self.queues.get(queue_id)
        if queue is None:
            topic = self.topics.get(queue_id)
            return 0 if topic is None else topic.live_in(first, stop)
        index = queue.index
        wanted = index.live.range_cardinality(first, stop)
        return wanted + (index.rewindable.range_cardinality(first, stop) if index.rewindable_count else 0)

    def _info(self, queue: Queue, created: bool = False) -> QueueInfo:
        return QueueInfo(queue.name, queue.queue_id, queue.attributes(), queue.counts(), queue.facts(), created)

    def _page_read(self, queue: Queue, positions: list[int], max_bytes: int) -> PageRead:
        read = PageRead(self._next_read_id, queue.queue_id, pack_runs(positions), max_bytes)
        self._next_read_id += 1
        return read

    def _reserve(self, records: list[AnyRecord], message_ids: int = 0, leases: int = 0, queue_ids: int = 0) -> None:
        record = self.numbers.reserve(message_ids, leases, queue_ids)
        if record is not None:
            self.numbers.apply(record)
            records.append(record)

    def _next_message_ids(self, count: int, records: list[AnyRecord]) -> int:
        """Take so many message ids; returns the first."""
        numbers = self.numbers
        if numbers.next_message_id + count > numbers.message_id_until:
            self._reserve(records, message_ids=count)
        first_id = numbers.next_message_id
        numbers.next_message_id = first_id + count
        return first_id

    def _schedule_expiry(self, queue: Queue) -> None:
        first_end_ms = queue.index.steps.first_end_ms()
        if first_end_ms is None:
            queue.expiry_due_ms = None
            return
        due_ms = first_end_ms + queue.index.attributes.retention_ms
        if queue.expiry_due_ms is None or due_ms < queue.expiry_due_ms:
            queue.expiry_due_ms = due_ms
            heappush(self._expiries, (due_ms, queue.queue_id))

    def _set_agenda(self, queue: Queue, due_ms: int) -> None:
        """Look at the queue at ``due_ms``, or earlier if that is planned already."""
        if queue.agenda_due_ms is None or due_ms < queue.agenda_due_ms:
            queue.agenda_due_ms = due_ms
            heappush(self._agenda, (due_ms, queue.queue_id))

    def _take_up(self, queue: Queue) -> None:
        """After recovery: what follows from the facts, and the work that was under way."""
        index = queue.index
        attributes = index.attributes
        if attributes.dead_letter_queue:
            self._bind(queue, self._names[queue.account].get(attributes.dead_letter_queue))
        if attributes.dead_letter_max_receives:
            queue.overdue = index.history.at_least(attributes.dead_letter_max_receives) & index.live
        if index.redrive is not None and not index.redrive.ended_ms:
            queue.redriving = Redriving()
        if attributes.rewind_ms or queue.dead_letters is not None or queue.redriving is not None:
            self._set_agenda(queue, 0)

    def _reserve_overdue(self, queue: Queue) -> None:
        """After recovery, before anybody can receive: what had its last receive that is allowed gets no other one."""
        target, index = queue.dead_letters, queue.index
        if target is None or not queue.overdue or not target.index.takes_dead_letters:
            return
        if target.index.live_count < target.index.attributes.max_backlog:
            index.start_moving(queue.overdue & index.active)

    def _bind(self, queue: Queue, target: Queue | None) -> None:
        """Send the dead letters of a queue to another from here on, or nowhere."""
        if queue.dead_letters is not None:
            del queue.dead_letters.sources[queue.queue_id]
        queue.dead_letters = target
        if target is not None:
            target.sources[queue.queue_id] = queue

    def _go_back_to(self, queue: Queue, first: int) -> None:
        """Messages from ``first`` on are active again whose bodies are in the log alone: page in from there."""
        window = queue.window
        window.paged_until = min(window.paged_until, first) if window.cold else first
        window.cold = True

    def _add(self, queue: Queue) -> None:
        self.queues[queue.queue_id] = queue
        self._names.setdefault(queue.account, {})[queue.name] = queue
        self._folded.setdefault(queue.account, {})[folded(queue.name)] = queue
        self._set_target(queue, queue)

    def _set_target(self, queue: Queue, target: Queue | None) -> None:
        """The queue of this name is there from here on, or not."""
        for subscription in self._subscribers.get((queue.account, queue.name), {}).values():
            subscription.target = target
            subscription.flows = subscription.may_flow()
            subscription.topic.subscriptions_changed()

    def _new_index(self, queue_id: int, attributes: QueueAttributes) -> QueueIndex:
        return QueueIndex(
            queue_id,
            attributes,
            self._lease_buckets,
            self._delay_buckets,
            self._check_buckets,
            self.limits,
        )

    def _apply_created(self, record: QueueCreated) -> Queue:
        index = self._new_index(record.queue_id, record.attributes)
        queue = Queue(record.account, record.name, record.created_ms, index)
        self._add(queue)
        return queue

    def _apply_queue_deleted(self, record: QueueDeletedRecord) -> None:
        queue = self.queues.pop(record.queue_id)
        self._bind(queue, None)
        del self._names[queue.account][queue.name]
        del self._folded[queue.account][folded(queue.name)]
        self._budget.clear(queue.queue_id, queue.window)
        self._checks.pop(queue.queue_id, None)
        self._set_target(queue, None)

    def _apply_attributes(self, record: QueueAttributesSet) -> None:
        queue = self.queues[record.queue_id]
        more_checks = record.attributes.max_checks > queue.index.attributes.max_checks
        queue.index.apply_attributes(record.attributes, record.modified_ms)
        queue.modified_ms = record.modified_ms
        if more_checks:
            overdue = queue.index.halves.unasked(record.attributes.max_checks, record.modified_ms)
            self._want_checks(queue, overdue & queue.index.half)
        self._want_overflow(queue)

    def _apply_floor(self, record: QueueCleared | MessagesExpired) -> None:
        queue = self.queues[record.queue_id]
        queue.index.apply_floor(record.floor)
        if queue.index.live_count:
            self._budget.drop_below(queue.queue_id, queue.window, record.floor)
        else:
            self._budget.clear(queue.queue_id, queue.window)
        self._want_overflow(queue)

    def _want_overflow(self, queue: Queue) -> None:
        """Let the next tick see whether messages beyond ``max_delayed`` can have a place."""
        index = queue.index
        if index.overflow_count and not queue.overflow_reading and index.delayed_count < index.attributes.max_delayed:
            self._overflow_wanted[queue.queue_id] = None

    def _want_checks(self, queue: Queue, positions: BitMap64) -> None:
        """Ask about these half messages; as soon as there is somebody to ask."""
        if not positions:
            return
        checks = self._checks.get(queue.queue_id)
        if checks is None:
            checks = self._checks[queue.queue_id] = PendingChecks(BitMap64())
        checks.due |= positions
        if queue.has_checkers and not checks.reading:
            self._checks_wanted[queue.queue_id] = None

    def _apply_sent(self, queue: Queue, record: MessagesSent, lsn: int = 0) -> None:
        index = queue.index
        if record.dedup_ids is not None and not len(index.dedup_ids):
            heappush(self._dedup_sweeps, (record.enqueue_ms + self.limits.dedup_life_ms, queue.queue_id))
        if index.apply_sent(record):
            if len(index.steps) % 64 == 0:
                index.steps.drop_below(index.oldest_remembered())
            if queue.expiry_due_ms is None:
                self._schedule_expiry(queue)
        if index.attributes.dead_letter_after_ms:
            self._set_agenda(queue, record.enqueue_ms + index.attributes.dead_letter_after_ms)
        if record.session and record.sequence:
            self._note_sent(queue.account, record, lsn)

    def _note_sent(self, account: str, record: MessagesSent, lsn: int) -> None:
        count = len(record.sizes)
        self._note_session(
            account, record.session, record.sequence, record.first_message_id, count, record.enqueue_ms, lsn
        )

    def _note_session(
        self, account: str, session: int, sequence: int, first_id: int, count: int, now_ms: int, lsn: int
    ) -> None:
        self.sessions.note(account, session, sequence, first_id, count, now_ms, lsn)
        if self._sessions_due_ms is None:
            self._sessions_due_ms = now_ms + SESSION_SWEEP_MS

    # ------------------------------------------------------------------ topics

    def _apply_topic_created(self, record: TopicCreated) -> Topic:
        topic = Topic(record.account, record.name, record.topic_id, record.attributes, record.created_ms)
        self._add_topic(topic)
        return topic

    def _add_topic(self, topic: Topic) -> None:
        self.topics[topic.topic_id] = topic
        self._topic_names.setdefault(topic.account, {})[topic.name] = topic
        self._folded_topics.setdefault(topic.account, {})[folded(topic.name)] = topic

    def _apply_topic_record(self, topic: Topic, record: TopicRecord) -> None:
        """Any fact about a topic that is there, but for publishes."""
        match record:
            case TopicAttributesSet():
                topic.attributes, topic.modified_ms = record.attributes, record.modified_ms
            case TopicDeleted():
                for subscription in list(topic.subscriptions.values()):
                    self._remove_subscription(subscription)
                del self.topics[topic.topic_id]
                del self._topic_names[topic.account][topic.name]
                del self._folded_topics[topic.account][folded(topic.name)]
            case Subscribed():
                self._add_subscription(
                    Subscription(
                        topic,
                        record.subscription_id,
                        record.name,
                        record.attributes,
                        record.created_ms,
                        self.limits.max_retries_known,
                    )
                )
            case Unsubscribed():
                self._remove_subscription(topic.subscriptions[record.subscription_id])
            case SubscriptionAttributesSet():
                subscription = topic.subscriptions[record.subscription_id]
                subscription.attributes, subscription.modified_ms = record.attributes, record.modified_ms
                subscription.deliveries.strategy = record.attributes.strategy
                subscription.deliveries.paused = record.attributes.paused
                topic.matcher.set(subscription.subscription_id, subscription.filters)
                subscription.flows = subscription.may_flow()
                topic.subscriptions_changed()
            case MessagesDelivered():
                topic.subscriptions[record.subscription_id].deliveries.apply_delivered(record)
            case DeliveriesFailed():
                topic.subscriptions[record.subscription_id].deliveries.apply_failed(record)
            case DeliveriesDropped():
                topic.subscriptions[record.subscription_id].deliveries.apply_dropped(record)
            case TopicMessagesExpired():
                topic.floor = record.floor
                topic.steps.drop_below(record.floor)
                for subscription in topic.subscriptions.values():
                    subscription.deliveries.apply_floor(record.floor)
            case TopicCreated() | MessagesPublished():
                raise AssertionError(f"{type(record).__name__} is applied elsewhere")

    def _add_subscription(self, subscription: Subscription) -> None:
        topic = subscription.topic
        self.subscriptions[subscription.subscription_id] = subscription
        topic.subscriptions[subscription.subscription_id] = subscription
        topic.folded[folded(subscription.name)] = subscription
        topic.matcher.set(subscription.subscription_id, subscription.filters)
        if not subscription.is_push:
            endpoint = (topic.account, subscription.attributes.endpoint)
            self._subscribers.setdefault(endpoint, {})[subscription.subscription_id] = subscription
            subscription.target = self._names.get(topic.account, {}).get(endpoint[1])
        subscription.flows = subscription.may_flow()
        topic.subscriptions_changed()

    def _remove_subscription(self, subscription: Subscription) -> None:
        topic = subscription.topic
        subscription_id = subscription.subscription_id
        del self.subscriptions[subscription_id]
        del topic.subscriptions[subscription_id]
        del topic.folded[folded(subscription.name)]
        topic.exhausted.pop(subscription_id, None)
        topic.matcher.remove(subscription_id)
        if not subscription.is_push:
            endpoint = (topic.account, subscription.attributes.endpoint)
            del self._subscribers[endpoint][subscription_id]
            if not self._subscribers[endpoint]:
                del self._subscribers[endpoint]
        topic.subscriptions_changed()

    def _apply_published(self, topic: Topic, record: MessagesPublished) -> None:
        """A publish that happens now: the topic and all queues."""
        self._apply_to_topic(topic, record)
        queues = self.queues
        count, enqueue_ms, visible_ms, copies = len(record.sizes), record.enqueue_ms, record.visible_ms, record.copies
        for at in range(0, len(copies), 2):
            self._apply_copies(
                queues[copies[at]], copies[at + 1], count, enqueue_ms, visible_ms[at >> 1] if visible_ms else 0
            )

    def _apply_to_topic(self, topic: Topic, record: MessagesPublished, lsn: int = 0) -> None:
        first = record.first_position
        stop = first + len(record.sizes)
        topic.next_position = stop
        topic.last_enqueue_ms = record.enqueue_ms
        for subscription_id in record.waiting:
            subscription = topic.subscriptions.get(subscription_id)
            if subscription is not None:
                subscription.deliveries.apply_waiting(first, stop)
        if topic.steps.note(first, record.enqueue_ms):
            if len(topic.steps) % 64 == 0:
                self._forget_steps(topic)
            if topic.expiry_due_ms is None:
                self._schedule_topic_expiry(topic)
        if record.dedup_ids is not None:
            known = topic.make_dedup_ids(DedupIds(self.limits))
            if not len(known):
                heappush(self._dedup_sweeps, (record.enqueue_ms + self.limits.dedup_life_ms, topic.topic_id))
            for message_id, dedup_id in enumerate(record.dedup_ids, record.first_message_id):
                if dedup_id is not None:
                    known.note(dedup_id, message_id, record.enqueue_ms)
        self._note_numbered(topic.account, record, lsn)

    def _note_numbered(self, account: str, record: MessagesPublished, lsn: int) -> None:
        numbered = record.numbered
        for at in range(0, len(numbered), 4):
            session, sequence, first_id, count = numbered[at : at + 4]
            self._note_session(account, session, sequence, first_id, count, record.enqueue_ms, lsn)

    def _apply_copies(self, queue: Queue, first: int, count: int, enqueue_ms: int, visible_ms: int) -> None:
        index = queue.index
        if index.apply_copies(first, count, enqueue_ms, visible_ms):
            if len(index.steps) % 64 == 0:
                index.steps.drop_below(index.oldest_remembered())
            if queue.expiry_due_ms is None:
                self._schedule_expiry(queue)
        if index.attributes.dead_letter_after_ms:
            self._set_agenda(queue, enqueue_ms + index.attributes.dead_letter_after_ms)

    def _forget_steps(self, topic: Topic) -> None:
        firsts = [one.deliveries.first_pending() for one in topic.subscriptions.values()]
        topic.steps.drop_below(min((first for first in firsts if first is not None), default=topic.next_position))

    def _schedule_topic_expiry(self, topic: Topic) -> None:
        first_end_ms = topic.steps.first_end_ms()
        topic.expiry_due_ms = None if first_end_ms is None else first_end_ms + self.limits.topic_life_ms
        if topic.expiry_due_ms is not None:
            heappush(self._topic_expiries, (topic.expiry_due_ms, topic.topic_id))
