"""The parts of a broker, made in the order of their dependencies.

A part takes the parts below it as arguments, so the parts form no circle. Brokers of a process share no part.
"""

from collections.abc import Callable
from typing import Any

from cmqd.core.calendar import Calendar
from cmqd.core.facts.facts import Facts
from cmqd.core.limits import Limits
from cmqd.core.operations.audit import Audit
from cmqd.core.operations.auto_delete import AutoDelete
from cmqd.core.operations.backlog_view import Undelivered
from cmqd.core.operations.batches import Batches
from cmqd.core.operations.dead_letter_search import DeadLetterSearch
from cmqd.core.operations.delays import Delays
from cmqd.core.operations.deliver import Deliver
from cmqd.core.operations.expiry import Expiry
from cmqd.core.operations.floors import Floors
from cmqd.core.operations.holders import Holders
from cmqd.core.operations.leases import Leases
from cmqd.core.operations.match_tests import Matches
from cmqd.core.operations.metrics import Metrics
from cmqd.core.operations.moves import Moves
from cmqd.core.operations.peek import Peek
from cmqd.core.operations.prefetch import Prefetch
from cmqd.core.operations.publish import Publish
from cmqd.core.operations.queue_summaries import QueueSummaries
from cmqd.core.operations.queues import QueueAdmin
from cmqd.core.operations.receive import Receive
from cmqd.core.operations.redrives import Redrives
from cmqd.core.operations.rejections import Rejections
from cmqd.core.operations.reservations import Reservations
from cmqd.core.operations.reviews import Reviews
from cmqd.core.operations.rewind import Rewind
from cmqd.core.operations.schedules import Schedules
from cmqd.core.operations.send import Send
from cmqd.core.operations.serving import Serving
from cmqd.core.operations.settle import Settle
from cmqd.core.operations.start import Start
from cmqd.core.operations.store import Store
from cmqd.core.operations.top_metrics import TopMetrics
from cmqd.core.operations.topics import TopicAdmin
from cmqd.core.operations.transaction_checks import Checks
from cmqd.core.operations.transactions import Transactions
from cmqd.core.operations.waits import Waits
from cmqd.core.outcome import Effects
from cmqd.core.receipts import HandleKey, ReceiptHandles
from cmqd.core.recovery.checkpoint import Checkpoint
from cmqd.core.recovery.replay import Replay
from cmqd.core.recovery.restore import Restore
from cmqd.core.runtime.pages import Lane, PageOwner
from cmqd.core.runtime.runtime import Runtime


class Parts:
    """Facts, runtime, operations and recovery of a broker."""

    def __init__(self, handle_key: HandleKey, limits: Limits, seed: int, calendar: Calendar) -> None:
        self.handles = handles = ReceiptHandles(handle_key)
        self.facts = facts = Facts(limits)
        self.runtime = runtime = Runtime(facts)

        floors = Floors(facts, runtime)
        self.leases = leases = Leases(facts)
        batches = Batches(facts)
        store = Store(facts, runtime)
        serving = Serving(facts, runtime, handles, floors, leases)
        reservations = Reservations(facts, runtime)
        dead_letters = DeadLetterSearch(facts, runtime, reservations)

        self.send = Send(facts, runtime, batches, store, serving)
        self.schedules = Schedules(facts, runtime, self.send, calendar)
        self.settle = Settle(facts, runtime, handles, serving, leases, dead_letters)
        self.receive = Receive(facts, runtime, serving, self.settle)
        waits = Waits(facts, runtime)
        self.rejections = Rejections(facts, runtime, handles, self.settle, store, serving)
        self.peek = Peek(facts, runtime)
        self.rewind = Rewind(facts, runtime, serving)
        self.checks = Checks(facts, runtime)
        self.transactions = Transactions(facts, runtime, batches, store, serving, self.checks)
        self.redrives = Redrives(facts, runtime, reservations, serving)
        self.queues = QueueAdmin(facts, runtime, floors, serving, waits, self.checks, reservations, dead_letters)
        self.queue_summaries = QueueSummaries(facts, runtime)
        self.auto_delete = AutoDelete(facts, runtime, self.queues)
        self.deliver = Deliver(facts, runtime, store, serving, seed)
        self.publish = Publish(facts, runtime, store, serving, self.deliver)
        self.topics = TopicAdmin(facts, runtime, self.deliver)
        self.matches = Matches(facts, runtime)
        self.undelivered = Undelivered(facts, runtime, self.deliver)
        self.metrics = Metrics(facts, runtime)
        self.top_metrics = TopMetrics(facts, runtime, self.metrics)
        self.holders = Holders(facts)
        self.audit = Audit(facts)

        moves = Moves(facts, runtime, reservations, dead_letters, self.redrives, store, serving)
        delays = Delays(facts, runtime, serving)
        prefetch = Prefetch(facts, runtime, serving)
        expiry = Expiry(facts, runtime, floors, serving)
        reviews = Reviews(facts, runtime, self.rewind, self.redrives, dead_letters, serving)
        self.tick_steps: tuple[Callable[[Effects, int], None], ...] = (
            # Copies for receives in line come first: a receive with a deadline in this tick still gets its messages.
            self.publish.tick,
            # Waits end before leases and delays. Otherwise messages that become active in the same tick would go to
            # receives with a deadline in the past.
            waits.tick,
            self.settle.tick,
            prefetch.tick,
            delays.tick,
            # Behind leases and delays, for which these waits were held.
            waits.tick_held,
            expiry.tick,
            # After expiry, so expired messages are not searched for dead letters.
            reviews.tick,
            self.checks.tick,
            self.deliver.tick,
        )
        pages = runtime.pages
        self.page_owners: dict[Lane[Any], PageOwner[Any]] = {
            pages.receives: serving,
            pages.ahead: prefetch,
            pages.moves: moves,
            pages.rewinds: self.rewind,
            pages.overflow: delays,
            pages.commits: self.transactions,
            pages.rejections: self.rejections,
            pages.checks: self.checks,
            pages.deliveries: self.deliver,
            pages.peeks: self.peek,
            pages.delivery_peeks: self.undelivered,
        }

        self.checkpoint = Checkpoint(facts)
        self.restore = Restore(facts)
        self.replay = Replay(facts, self.restore)
        self.start = Start(facts, runtime)
