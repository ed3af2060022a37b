"""All queues by id and by name, and the application of records to them.

Every change of a fact about queues goes through the ``apply_*`` methods here and of
:class:`~cmqd_fold.queue_index.QueueIndex`, live and in recovery alike. The methods plan nothing and keep no body: a
live operation plans and caches afterwards, and :mod:`cmqd.core.operations.after_recovery` plans for all
queues after recovery.
"""

from collections.abc import Sequence

from pyroaring import BitMap64

from cmqd.core.domain_errors import QueueNotFound
from cmqd.core.facts.deadlines import DeadlineBuckets
from cmqd.core.facts.delay_timers import DelayTimers
from cmqd.core.facts.gone_totals import GoneTotals
from cmqd.core.facts.name_order import NameOrder
from cmqd.core.facts.promised_memory import Promises
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.queue_subscribers import QueueSubscribers
from cmqd.core.limits import Limits
from cmqd.core.names import folded
from cmqd_fold.queue_index import QueueIndex
from cmqd_fold.timers import QueueTimers
from cmqd_segment.records import (
    MessagesExpired,
    MessagesSent,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
    TransactionsChecked,
    unpack_runs,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord
from cmqd_types.attributes import QueueAttributes

LEASE_BUCKET_MS = 100
"""Largest delay between a visibility timeout and the return of the message."""
DELAY_BUCKET_MS = 20
"""Largest lateness of a delayed message when it becomes active; spec: within 100 ms, page-in and commit included."""
CHECK_BUCKET_MS = 100
"""Largest lateness of the check of a half message; intervals are a second and longer."""
SHARED_ATTRIBUTES = 1000
"""Different attributes of queues that are looked up to be shared. A set of attributes takes 160 bytes."""


class QueueTable:
    """The queues of all accounts."""

    def __init__(self, limits: Limits, promises: Promises, gone_totals: GoneTotals) -> None:
        self._limits = limits
        self._gone_totals = gone_totals
        self._promises = promises
        self._sessions = promises.sessions
        self.by_id: dict[int, Queue] = {}
        self.names: dict[str, dict[str, Queue]] = {}
        """By account and name."""
        self.folded: dict[str, dict[str, Queue]] = {}
        """By account and case-folded name."""
        self.in_order = NameOrder(self.by_id)
        """By account and name, in order."""
        self.leases = DeadlineBuckets(LEASE_BUCKET_MS)
        """(first lease, count) pairs by deadline."""
        self.delays = DelayTimers(DELAY_BUCKET_MS)
        """Positions of delayed messages by due time."""
        self.checks = DeadlineBuckets(CHECK_BUCKET_MS)
        """Positions of half messages by the time of the next check."""
        self._timers = QueueTimers(self.leases, self.delays, self.checks)
        self._attributes: dict[QueueAttributes, QueueAttributes] = {}
        """Attributes of the last queues, each once in memory."""
        self.due_checks: dict[int, BitMap64] = {}
        """By queue id: half messages with a due check that is not sent yet. They have left their buckets."""
        self.subscribers: dict[tuple[str, str], QueueSubscribers] = {}
        """Subscriptions that deliver to a queue, by account and name of the queue, whether the queue exists or not."""

    def find(self, account: str, name: str) -> Queue:
        """Return the queue with this name.

        Raises:
            QueueNotFound: there is none.
        """
        try:
            return self.names[account][name]
        except KeyError:
            raise QueueNotFound(name) from None

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """Count the messages at positions ``first .. stop-1`` that are still wanted; 0 if the queue is gone."""
        queue = self.by_id.get(queue_id)
        if queue is None:
            return 0
        index = queue.index
        wanted = index.live_to_read().range_cardinality(first, stop) if index.live_count else 0
        return wanted + (index.rewindable.range_cardinality(first, stop) if index.rewindable_count else 0)

    def there_in(self, queue_id: int, first: int, stop: int) -> int:
        """Count the messages at positions ``first .. stop-1`` that did not leave the queue, or came back."""
        queue = self.by_id.get(queue_id)
        if queue is None or not queue.index.live_count:
            return 0
        return queue.index.live_to_read().range_cardinality(first, stop)

    def bind(self, queue: Queue, target: Queue | None) -> None:
        """Send the dead letters of a queue to another queue from here on, or nowhere."""
        if queue.dead_letters is not None:
            del queue.dead_letters.sources[queue.queue_id]
        queue.dead_letters = target
        if target is not None:
            target.sources[queue.queue_id] = queue

    def new_index(self, queue_id: int, attributes: QueueAttributes) -> QueueIndex:
        """Make the index of a queue without messages."""
        # Most queues have the attributes of other queues.
        shared = self._attributes.get(attributes)
        if shared is None:
            if len(self._attributes) >= SHARED_ATTRIBUTES:
                self._attributes.clear()
            shared = self._attributes[attributes] = attributes
        return QueueIndex(queue_id, shared, self._timers)

    def add(self, queue: Queue) -> None:
        """Enter a queue under its id and name."""
        self.by_id[queue.queue_id] = queue
        self.in_order.add(queue)
        self.names.setdefault(queue.account, {})[queue.name] = queue
        self.folded.setdefault(queue.account, {})[folded(queue.name)] = queue
        self._set_target(queue, queue)

    def _set_target(self, queue: Queue, target: Queue | None) -> None:
        """Tell the subscriptions that deliver to a queue whether the queue exists from here on."""
        for subscription in self.subscribers.get((queue.account, queue.name), ()):
            subscription.target = target
            subscription.flows = subscription.may_flow()
            subscription.topic.routes += 1

    # ------------------------------------------------------------------ records

    def apply_created(self, record: QueueCreated) -> Queue:
        """Add a new queue."""
        index = self.new_index(record.queue_id, record.attributes)
        queue = Queue(record.account, record.name, record.created_ms, index, self._limits)
        self.add(queue)
        return queue

    def apply_deleted(self, record: QueueDeletedRecord, lsn: int = 0) -> None:
        """Remove a queue with its messages; the account keeps the totals of the queue."""
        queue = self.by_id.pop(record.queue_id)
        self.in_order.remove(queue)
        self._gone_totals.add(queue.account, lsn, queue.index.totals)
        self.bind(queue, None)
        del self.names[queue.account][queue.name]
        del self.folded[queue.account][folded(queue.name)]
        self.due_checks.pop(queue.queue_id, None)
        self.delays.drop_far(queue.queue_id)
        self._set_target(queue, None)
        self._promises.memory.drop(queue.account, queue.dedup_ids)

    def apply_attributes(self, queue: Queue, record: QueueAttributesSet) -> None:
        """Change the attributes of a queue."""
        more_checks = record.attributes.max_checks > queue.index.attributes.max_checks
        queue.index.apply_attributes(record)
        queue.modified_ms = record.modified_ms
        if more_checks:
            overdue = queue.index.halves.unasked(record.attributes.max_checks, record.modified_ms) & queue.index.half
            if overdue:
                self.add_due_checks(queue.queue_id, overdue)

    def add_due_checks(self, queue_id: int, positions: BitMap64) -> BitMap64:
        """Note that checks of half messages are due; return all half messages of the queue with a due check."""
        due = self.due_checks.setdefault(queue_id, BitMap64())
        due |= positions
        return due

    def apply_floor(self, queue: Queue, record: QueueCleared | MessagesExpired) -> None:
        """Remove every message below a position."""
        queue.index.apply_cut(record)
        if not queue.index.delays.scheduled_count:
            self.delays.drop_far(queue.queue_id)

    def apply_checked(self, queue: Queue, record: TransactionsChecked) -> None:
        """Count checks that were sent."""
        queue.index.apply_checked(record)
        due = self.due_checks.get(queue.queue_id)
        if due is not None:
            due -= BitMap64(unpack_runs(record.positions))

    def apply_sent(self, queue: Queue, record: MessagesSent, lsn: int = 0) -> bool:
        """Add messages at the end of a queue; return True if a new time step began."""
        if record.visible_ms is not None:
            self.delays.pass_time(record.enqueue_ms)
        begins_step = queue.index.apply_sent(record)
        if record.dedup_ids is not None:
            dedup_ids = queue.dedup_ids
            for message_id, dedup_id in enumerate(record.dedup_ids, record.first_message_id):
                if dedup_id is not None:
                    dedup_ids.note(dedup_id, message_id, record.enqueue_ms)
            self._promises.memory.recount(queue.account, dedup_ids)
        if record.sequence or record.numbered:
            self.note_answers(queue.account, record, lsn)
        return begins_step

    def note_answers(self, account: str, record: MessagesSent, lsn: int) -> None:
        """Remember the answers of the numbered sends of a record."""
        numbered: Sequence[int] = record.numbered
        if record.session and record.sequence:
            numbered = record.session, record.sequence, record.first_message_id, len(record.sizes)
        self._sessions.note(account, numbered, record.enqueue_ms, lsn)
