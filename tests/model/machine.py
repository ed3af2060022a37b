# pyright: reportPrivateUsage=false
"""The broker against a naive model, under crashes at any row, late pages, damage and checkpoints.

The machine of this module has queues, sends, receives and time; further modules add the rules of rewinding, dead
letters, transactions and topics.
"""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from model.callers import SHARE, Callers
from model.disk import DiskRules
from model.judge import MOST_TICKS, REST_MS
from model.lives import check_lives

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from support.core.builders import KEY, START_MS, NaiveLog, every
from support.core.facts import check_lease_buckets
from support.core.invariants import check_broker
from support.core.naive_broker import (
    NaiveQueue,
    NaiveSessions,
    State,
)


class BrokerMachine(DiskRules):
    @initialize(
        windows=st.sampled_from([0, 1, 2, 3]),
        page_messages=st.sampled_from([1, 3, 1024]),
        page_bytes=st.sampled_from([1, 400, 1 << 19]),
        max_in_flight=st.sampled_from([2, 3, 8, 1_000_000]),
        tick_items=st.sampled_from([1, 3, 2000]),
        max_reads=st.sampled_from([1, 2, 64]),
        preload=st.integers(0, 8),
        cold=st.booleans(),
    )
    def start(
        self,
        windows: int,
        page_messages: int,
        page_bytes: int,
        max_in_flight: int,
        tick_items: int,
        max_reads: int,
        preload: int,
        cold: bool,
    ) -> None:
        self.limits = Limits(
            max_queues_per_account=self.max_queues,
            max_batch=8,
            max_batch_bytes=1500,
            window_bytes=self.windows[windows],
            page_messages=page_messages,
            page_bytes=page_bytes,
            max_in_flight=max_in_flight,
            tick_items=tick_items,
            max_reads=max_reads,
            max_sessions=2,
            session_answers=3,
            max_dead_letter_sources=2,
            max_dedup_ids=3,
            max_delay_ms=1_296_000_000,
            max_audit_entries=5,
            max_actors_per_key=SHARE,
            **self.more_limits,
        )
        self.broker = Broker(KEY, self.limits, calendar=every)
        self.callers = Callers()
        self.callers.give_clients(self.broker)
        self.sealed_upto = 0
        self.now_ms = START_MS
        self.log = NaiveLog()
        self.queues = []
        self.gone_queues = []
        self.gone_totals = {}
        self.sessions = NaiveSessions(self.limits)
        self.peeks = {}
        self.reads = []
        self.read_ids = set()
        self.waiter_id = 0
        self.message_ids = set()
        self.leases = set()
        self.parts = None
        self.taken = []
        self.last_checkpoint = None
        self.rows = [{}]
        self.rewinds = {}
        self.rewound = {}
        self.decisions = {}
        self.trail = []
        for number, attributes in enumerate(self.first_queues):
            self.create(2 * number, attributes)
        self.begin()
        if preload:
            self.send(0, [(1, 0, 20 * number) for number in range(preload)], "each" if preload % 2 else "none", 0, 0)
        if cold:
            self.restart(False, False)

    # ------------------------------------------------------------------ after every step

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "queues"):
            return
        check_broker(self.broker)
        assert sorted(self.broker.queues) == sorted(queue.queue_id for queue in self.queues)
        self.always()
        self.check_totals(self.broker)
        self.go_on_using()
        if not self.is_quiet():
            return
        self.sessions.forget(set(self.broker.facts.promises.sessions.keys()), self.now_ms)
        for queue in self.queues:
            queue.settle_time(self.now_ms, is_read=any(read.queue_id == queue.queue_id for read in self.reads))
            index = self.broker.queues[queue.queue_id].index
            assert list(index.live) == list(queue.messages)
            counts = self.broker.queue_info(queue.account, queue.name).counts
            # Messages before the window are forgotten in due time.
            assert len(queue.rewindable(self.now_ms)) <= counts.pop("rewindable") <= len(queue.deleted)
            assert counts == queue.counts()
            rejections = self.broker.runtime.rejections.get(queue.queue_id)
            check_lease_buckets(self.broker.queues[queue.queue_id], rejections.leases if rejections else ())
            self.nobody_waits_for_what_is_there(queue)
            self.places_among_the_delayed_are_used(queue)
            self.no_unused_queue_is_left(queue)
            wanted = self.broker.live_in(queue.queue_id, 0, queue.next_position)
            assert len(queue.messages) + len(queue.rewindable(self.now_ms)) <= wanted

    def always(self) -> None:
        """After every step, quiet or not."""

    def nobody_waits_for_what_is_there(self, queue: NaiveQueue) -> None:
        if (
            not queue.line
            or not queue.receivable() - self.moving(queue)
            or queue.in_flight() >= self.limits.max_in_flight
        ):
            return
        real = self.broker.queues[queue.queue_id]
        under_way = [read for read in self.reads if read.queue_id == queue.queue_id]
        # The requested page may hold messages that are to be moved by now; the receive gets the next page.
        is_in_memory = real.index.first_active() in self.broker.runtime.queues[queue.queue_id].window.messages
        assert under_way or not is_in_memory, "somebody waits for what is in memory"
        assert under_way or len(self.reads) >= self.limits.max_reads, "nobody reads what somebody waits for"

    def places_among_the_delayed_are_used(self, queue: NaiveQueue) -> None:
        if not queue.of(State.OVERFLOW) or len(queue.of(State.DELAYED)) >= queue.attributes["max_delayed"]:
            return
        under_way = {read.read_id for read in self.reads if read.queue_id == queue.queue_id}
        for_places = {read_id for read_id, _, _ in self.broker.runtime.pages.overflow.requests()}
        assert under_way & for_places, "overflow waits for nothing"

    def no_unused_queue_is_left(self, queue: NaiveQueue) -> None:
        after_ms = queue.attributes["auto_delete_after_ms"]
        real = self.broker.queues[queue.queue_id].index
        # Messages before the rewind window are forgotten in due time.
        is_kept = queue.attributes["auto_delete_only_empty"] and (queue.messages or real.rewindable_count)
        assert not after_ms or is_kept or self.now_ms < queue.used_until_ms + after_ms, "an unused queue is still there"

    def come_to_rest(self) -> None:
        """All pages arrive and all that is due is done."""
        for _ in range(MOST_TICKS):
            if self.reads:
                self.page_arrives(0, None, False, None)
            elif not self.is_quiet():
                self.tick()
            else:
                return
        raise AssertionError("it never comes to rest")

    def at_rest(self) -> None:
        """Time has passed, and all due work is done."""

    @rule()
    def rest(self) -> None:
        self.come_to_rest()
        for _ in range(3):
            self.now_ms += REST_MS
            self.come_to_rest()
        self.at_rest()

    def teardown(self) -> None:
        if not hasattr(self, "queues"):
            return
        # Open work must come to an end: pages arrive, time passes, and every request is answered.
        self.come_to_rest()
        self.time_passes(60_000, None)
        self.rest()
        self.holds()
        self.crash_at_the_end()
        check_lives(self)
