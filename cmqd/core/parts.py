"""The parts of a broker, made in the order of their dependencies.

A part takes the parts below it as arguments, so the parts form no circle. Brokers of a process share no part.
"""

from collections.abc import Callable
from typing import Any

from cmqd.core.calendar import Calendar
from cmqd.core.facts.facts import Facts
from cmqd.core.limits import Limits
from cmqd.core.operations.after_recovery import Start
from cmqd.core.operations.dead_letters.message_moves import Moves
from cmqd.core.operations.dead_letters.redrives import Redrives
from cmqd.core.operations.dead_letters.rejections import Rejections
from cmqd.core.operations.dead_letters.reservations import Reservations
from cmqd.core.operations.dead_letters.reviews import Reviews
from cmqd.core.operations.dead_letters.search import DeadLetterSearch
from cmqd.core.operations.delays.activation import Delays
from cmqd.core.operations.delays.prefetch import Prefetch
from cmqd.core.operations.monitoring.audit import Audit
from cmqd.core.operations.monitoring.metrics import Metrics
from cmqd.core.operations.monitoring.segment_holders import Holders
from cmqd.core.operations.monitoring.top_metrics import TopMetrics
from cmqd.core.operations.queues.administration import QueueAdmin
from cmqd.core.operations.queues.auto_delete import AutoDelete
from cmqd.core.operations.queues.consumer_list import ConsumerList
from cmqd.core.operations.queues.queue_summaries import QueueSummaries
from cmqd.core.operations.receiving.delete import Delete
from cmqd.core.operations.receiving.lease_sweep import LeaseSweep
from cmqd.core.operations.receiving.leases_by_handle import LeasesByHandle
from cmqd.core.operations.receiving.peek import Peek
from cmqd.core.operations.receiving.receive import Receive
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.receiving.visibility import Visibility
from cmqd.core.operations.receiving.wait_ends import Waits
from cmqd.core.operations.retention.expiry import Expiry
from cmqd.core.operations.retention.floors import Floors
from cmqd.core.operations.retention.rewind import Rewind
from cmqd.core.operations.sending.batch_checks import Batches
from cmqd.core.operations.sending.schedules import Schedules
from cmqd.core.operations.sending.send import Send
from cmqd.core.operations.sending.storing import Store
from cmqd.core.operations.topics.administration import TopicAdmin
from cmqd.core.operations.topics.delivery_attempts import DeliveryAttempts
from cmqd.core.operations.topics.delivery_backlog import DeliveryBacklog
from cmqd.core.operations.topics.filter_tests import FilterTests
from cmqd.core.operations.topics.publish import Publish
from cmqd.core.operations.transactions.half_messages import Transactions
from cmqd.core.operations.transactions.transaction_checks import Checks
from cmqd.core.outcome import Effects
from cmqd.core.recovery.checkpoint import Checkpoint
from cmqd.core.recovery.replay import Replay
from cmqd.core.recovery.restore import Restore
from cmqd.core.runtime.pages import Lane, PageOwner
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.receipts import HandleKey, ReceiptHandles


class Parts:
    """Facts, runtime, operations and recovery of a broker."""

    def __init__(self, handle_key: HandleKey, limits: Limits, seed: int, calendar: Calendar) -> None:
        self.handles = handles = ReceiptHandles(handle_key)
        self.facts = facts = Facts(limits)
        self.runtime = runtime = Runtime(facts)

        floors = Floors(facts, runtime)
        self.lease_sweep = lease_sweep = LeaseSweep(facts)
        batches = Batches(facts)
        store = Store(facts, runtime)
        self.serving = serving = Serving(facts, runtime, handles, floors, lease_sweep)
        reservations = Reservations(facts, runtime)
        dead_letters = DeadLetterSearch(facts, runtime, reservations)

        self.send = Send(facts, runtime, batches, store, serving)
        self.schedules = Schedules(facts, runtime, self.send, calendar)
        leases = LeasesByHandle(facts, runtime, handles)
        self.delete = Delete(facts, runtime, leases, serving)
        self.visibility = Visibility(facts, runtime, leases, lease_sweep, dead_letters, serving)
        self.receive = Receive(facts, runtime, serving, leases, self.delete)
        self.waits = Waits(facts, runtime)
        self.rejections = Rejections(facts, runtime, handles, leases, store, serving)
        self.peek = Peek(facts, runtime)
        self.rewind = Rewind(facts, runtime, serving)
        self.checks = Checks(facts, runtime)
        self.transactions = Transactions(facts, runtime, batches, store, serving, self.checks)
        self.redrives = Redrives(facts, runtime, reservations, serving)
        self.queues = QueueAdmin(facts, runtime, floors, serving, self.waits, self.checks, reservations, dead_letters)
        self.queue_summaries = QueueSummaries(facts, runtime)
        self.consumer_list = ConsumerList(facts, runtime)
        self.auto_delete = AutoDelete(facts, runtime, self.queues)
        self.delivery_attempts = DeliveryAttempts(facts, runtime, store, serving, seed)
        self.publish = Publish(facts, runtime, store, serving, self.delivery_attempts)
        self.topics = TopicAdmin(facts, runtime, self.delivery_attempts)
        self.filter_tests = FilterTests(facts, runtime)
        self.delivery_backlog = DeliveryBacklog(facts, runtime, self.delivery_attempts)
        self.metrics = Metrics(facts, runtime)
        self.top_metrics = TopMetrics(facts, runtime, self.metrics)
        self.holders = Holders(facts)
        self.audit = Audit(facts)

        self.moves = Moves(facts, runtime, reservations, dead_letters, self.redrives, store, serving)
        self.delays = Delays(facts, runtime, serving)
        self.prefetch = Prefetch(facts, runtime, serving)
        self.expiry = Expiry(facts, runtime, floors, serving)
        self.reviews = Reviews(facts, runtime, self.rewind, self.redrives, dead_letters, serving)
        self.checkpoint = Checkpoint(facts)
        self.restore = Restore(facts)
        self.replay = Replay(facts, self.restore)
        self.start = Start(facts, runtime)
        self.tick_steps = self._tick_steps()
        self.page_owners = self._page_owners()

    def _tick_steps(self) -> tuple[Callable[[Effects, int], None], ...]:
        """Return the parts of a tick, in their order."""
        return (
            # Copies for receives in line come first: a receive with a deadline in this tick still gets its messages.
            self.publish.tick,
            # Waits end before leases and delays. Otherwise messages that become active in the same tick would go to
            # receives with a deadline in the past.
            self.waits.tick,
            self.visibility.tick,
            self.prefetch.tick,
            self.delays.tick,
            # Behind leases and delays, for which these waits were held.
            self.waits.tick_held,
            self.expiry.tick,
            # After expiry, so expired messages are not searched for dead letters.
            self.reviews.tick,
            self.checks.tick,
            self.delivery_attempts.tick,
        )

    def _page_owners(self) -> dict[Lane[Any], PageOwner[Any]]:
        """Return the part that takes the pages of each lane."""
        pages = self.runtime.pages
        return {
            pages.receives: self.serving,
            pages.ahead: self.prefetch,
            pages.moves: self.moves,
            pages.rewinds: self.rewind,
            pages.overflow: self.delays,
            pages.commits: self.transactions,
            pages.rejections: self.rejections,
            pages.checks: self.checks,
            pages.deliveries: self.delivery_attempts,
            pages.peeks: self.peek,
            pages.delivery_peeks: self.delivery_backlog,
        }
