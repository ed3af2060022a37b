"""What the operations share: the queues by id and name, the numbers, the agenda of times, and how facts are applied.

Every change of a fact goes through the ``_apply_*`` methods here (and of :class:`~cmqd_fold.queue_index.QueueIndex`),
live and in recovery alike.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappush

import msgspec
from pyroaring import BitMap64

from cmqd.core.errors import DomainError, QueueNotFound
from cmqd.core.facts.deadlines import DeadlineBuckets
from cmqd.core.facts.numbers import Numbers
from cmqd.core.facts.promises import Promises
from cmqd.core.limits import Limits
from cmqd.core.names import folded
from cmqd.core.outcome import PageRead
from cmqd.core.queue import Queue, Redriving
from cmqd.core.receipts import HandleKey, ReceiptHandles
from cmqd.core.runtime.waiters import Waiter
from cmqd.core.runtime.window import WindowBudget
from cmqd.core.salvage import Salvage
from cmqd.core.topic import Subscription
from cmqd_fold.queue_index import QueueIndex
from cmqd_fold.timers import QueueTimers
from cmqd_segment.records import (
    AnyRecord,
    MessagesExpired,
    MessagesSent,
    QueueAttributes,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
    StoredMessage,
    pack_runs,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord
from cmqd_types.queues import QueueInfo

LEASE_BUCKET_MS = 100
"""How late a message may come back after its visibility timeout."""
DELAY_BUCKET_MS = 20
"""How late a delayed message may become active; spec: within 100 ms, page-in and commit included."""
LEASE_SWEEP_ABOVE = 1_000_000
"""Entries of leases, at 8 bytes, beyond which stale ones are looked for."""
WAIT_BUCKET_MS = 10
ENDED_AT_ONCE = 512
"""Receives that are answered in one call because their queue is gone: about 2 ms, most of it the edge's."""
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


class BrokerState:
    """State of the broker; :class:`cmqd.core.broker.Broker` is the whole."""

    def __init__(self, handle_key: HandleKey, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.numbers = Numbers()
        self.clock_offset_ms = 0
        """Wall clock less broker time, as the log records it. No rule looks at it: the next start does."""
        self.handles = ReceiptHandles(handle_key)
        self.promises = Promises(self.limits)
        self.sessions = self.promises.sessions
        self.queues: dict[int, Queue] = {}
        """By id."""
        self._names: dict[str, dict[str, Queue]] = {}
        """By account and name."""
        self._folded: dict[str, dict[str, Queue]] = {}
        """By account and case-folded name."""
        self._lease_buckets = DeadlineBuckets(LEASE_BUCKET_MS)
        self._delay_buckets = DeadlineBuckets(DELAY_BUCKET_MS)
        self._check_buckets = DeadlineBuckets(CHECK_BUCKET_MS)
        self._timers = QueueTimers(self._lease_buckets, self._delay_buckets, self._check_buckets)
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
        self._ended_waits: deque[tuple[DomainError, list[int]]] = deque()
        """Receives that waited at a queue which is gone, and that the next ticks answer with this error."""
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
        self._subscribers: dict[tuple[str, str], dict[int, Subscription]] = {}
        """Subscriptions that deliver to a queue, by account and name of the queue, whether there is one or not."""
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

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """How many messages at positions ``first .. stop-1`` of a queue are still wanted; 0 if the queue is gone."""
        queue = self.queues.get(queue_id)
        if queue is None:
            return 0
        index = queue.index
        wanted = index.live.range_cardinality(first, stop)
        return wanted + (index.rewindable.range_cardinality(first, stop) if index.rewindable_count else 0)

    def _info(self, queue: Queue, created: bool = False) -> QueueInfo:
        return QueueInfo(
            queue=queue.name,
            queue_id=queue.queue_id,
            attributes=queue.attributes(),
            counts=queue.counts(),
            facts=queue.facts(),
            created=created,
        )

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
        return QueueIndex(queue_id, attributes, self._timers)

    def _apply_created(self, record: QueueCreated) -> Queue:
        index = self._new_index(record.queue_id, record.attributes)
        queue = Queue(record.account, record.name, record.created_ms, index, self.limits)
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
        self.promises.memory.drop(queue.account, queue.dedup_ids)

    def _apply_attributes(self, record: QueueAttributesSet) -> None:
        queue = self.queues[record.queue_id]
        more_checks = record.attributes.max_checks > queue.index.attributes.max_checks
        queue.index.apply_attributes(record)
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
        if record.dedup_ids is not None:
            if not len(queue.dedup_ids):
                heappush(self._dedup_sweeps, (record.enqueue_ms + self.limits.dedup_life_ms, queue.queue_id))
            for message_id, dedup_id in enumerate(record.dedup_ids, record.first_message_id):
                if dedup_id is not None:
                    queue.dedup_ids.note(dedup_id, message_id, record.enqueue_ms)
        if index.apply_sent(record) and queue.expiry_due_ms is None:
            self._schedule_expiry(queue)
        if index.attributes.dead_letter_after_ms:
            self._set_agenda(queue, record.enqueue_ms + index.attributes.dead_letter_after_ms)
        if record.dedup_ids is not None:
            self.promises.memory.recount(queue.account, queue.dedup_ids)
        self._note_answers(queue.account, record, lsn)

    def _note_answers(self, account: str, record: MessagesSent, lsn: int) -> None:
        """Remember the answers of the numbered sends of a record."""
        if record.session and record.sequence:
            first_id, count = record.first_message_id, len(record.sizes)
            self._note_numbered(account, (record.session, record.sequence, first_id, count), record.enqueue_ms, lsn)
        elif record.numbered:
            self._note_numbered(account, record.numbered, record.enqueue_ms, lsn)

    def _note_numbered(self, account: str, numbered: Sequence[int], now_ms: int, lsn: int) -> None:
        """Remember the answers of the sends, or publishes, that one record tells of."""
        for at in range(0, len(numbered), 4):
            session, sequence, first_id, count = numbered[at : at + 4]
            self.sessions.note(account, session, sequence, first_id, count, now_ms, lsn)
        if self._sessions_due_ms is None:
            self._sessions_due_ms = now_ms + SESSION_SWEEP_MS
