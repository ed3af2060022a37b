# pyright: reportPrivateUsage=false
"""The broker against a naive model of it, under crashes at any row, late pages, damage and checkpoints.

The machine here knows queues, sends, receives and time, and judges every record that any operation gives; modules of
their own add the rules of rewinding, dead letters and transactions. Quick and always the same by default;
HYPOTHESIS_PROFILE=thorough looks further, elsewhere each time.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cmqd.core.broker import Broker
from cmqd.core.errors import (
    BacklogFull,
    BatchTooLarge,
    DeadLetterQueueInUse,
    InvalidArgument,
    QueueDeleted,
    QueueExists,
    RedriveRunning,
    SequenceTooOld,
    TooManyInFlight,
    TooManyQueues,
)
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, Check, HandlesDone, Outcome, PageRead, Peeked
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.records import (
    AnyRecord,
    DelaysScheduled,
    Headers,
    LeasesEnded,
    MessagesActivated,
    MessagesExpired,
    MessagesMoved,
    MessagesReceived,
    MessagesSent,
    NumbersReserved,
    Origin,
    QueueAttributes,
    QueueAttributesSet,
    QueueCreated,
    TransactionsEnded,
    VisibilityChanged,
    count_runs,
    pack_runs,
    unpack_runs,
)
from support.core_builders import KEY, START_MS, NaiveLog
from support.core_facts import check_lease_buckets, facts
from support.naive_broker import (
    STEP_GRAIN_MS,
    NaiveMessage,
    NaivePeek,
    NaiveQueue,
    NaiveReceive,
    NaiveRow,
    NaiveSessions,
    State,
)


def profile(quick_examples: int) -> settings:
    """The settings of a machine; the quick ones take so many examples."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    if os.environ.get("HYPOTHESIS_PROFILE") == "thorough":
        return settings(
            max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "3000")),
            stateful_step_count=100,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=checks,
        )
    return settings(
        max_examples=quick_examples,
        stateful_step_count=60,
        derandomize=True,
        deadline=None,
        report_multiple_bugs=False,
        database=None,
        suppress_health_check=checks,
    )


ACCOUNTS = ("admin", "other")
DEFAULTS = QueueAttributes()
REST_MS = 2000
"""More than the broker lets pass before it tries again."""
MOST_TICKS = 600
"""Far more than a run of this size can need: a broker that takes more spins."""

which = st.integers(0, 1 << 16)
waits = st.sampled_from([None, 0, 0, 1, 15, 500, 30_000])
timeouts = st.sampled_from([None, 1000, 1001, 2500, 30_000, 43_200_000])
times = st.sampled_from(
    [0, 1, 7, 19, 20, 99, 100, 250, 1000, 1000, 5000, 29_999, 60_000, 61_000, 3_600_000, 400_000_000]
)
delays = st.sampled_from([0, 1, 20, 500, 1000, 30_000, 3_600_000])
sizes = st.sampled_from([1, 2, 30, 300, 1024])
MARKS: list[Headers | None] = [None, {}, {"k": "v"}, {"name": "w" * 100, "other": "é"}]


def has_queues(machine: "BrokerMachine") -> bool:
    return bool(machine.queues)


class BrokerMachine(RuleBasedStateMachine):
    max_queues = 2
    """Of an account."""
    windows: ClassVar[Sequence[int]] = (0, 1200, 4000, 1 << 20)
    """Of bytes; where several queues are busy, the smallest must hold a page of each, or they read for ever."""
    names: ClassVar[Sequence[str]] = ("orders", "Orders", "mails")
    first_queues: ClassVar[list[dict[str, Any]]] = [{"retention_ms": 60_000, "max_delayed": 3}]
    """Attributes of the queues that are there at the beginning, in the first account."""

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
        )
        self.broker = Broker(KEY, self.limits)
        self.now_ms = START_MS
        self.log = NaiveLog()
        self.queues: list[NaiveQueue] = []
        self.gone_queues: list[NaiveQueue] = []
        self.sessions = NaiveSessions(self.limits)
        self.peeks: dict[int, NaivePeek] = {}
        self.reads: list[PageRead] = []
        self.read_ids: set[int] = set()
        self.waiter_id = 0
        self.message_ids: set[int] = set()
        self.leases: set[int] = set()
        self.parts: Iterator[AnyPart] | None = None
        self.taken: list[AnyPart] = []
        self.last_checkpoint: list[AnyPart] | None = None
        self.rows: list[dict[int, tuple[list[int], list[int]]]] = [{}]
        """After each row of the log: (live positions, those not consumed yet) by queue."""
        self.rewinds: dict[int, Any] = {}
        self.rewound: dict[int, tuple[dict[int, NaiveMessage], set[int]]] = {}
        """Of the last rewind of a queue: what could come back, and the positions that did."""
        self.decisions: dict[int, Any] = {}
        for number, attributes in enumerate(self.first_queues):
            self.create(2 * number, attributes)
        if preload:
            self.send(0, [(1, 0, 20 * number) for number in range(preload)], "each" if preload % 2 else "none", 0, 0)
        if cold:
            self.restart(False, False)

    # ------------------------------------------------------------------ helpers

    def done(self, outcome: Outcome[Any], own: int | None = None) -> Any:
        """Take an outcome over, and let the model judge what it says; its reply.

        ``own``: the first id of what was sent with it, which the model knows.
        """
        self.log.append(outcome.records, outcome.bodies)
        # A tick ends waits before it makes anything active.
        there = {queue.queue_id: queue.receivable() for queue in self.queues}
        delivered: list[tuple[int, int]] = []
        row = NaiveRow(outcome)
        for record in outcome.records:
            self.judge(record, row, own)
            if isinstance(record, MessagesReceived):
                delivered.extend((record.queue_id, position) for position in unpack_runs(record.positions))
                self.note_received(record)
        row.check_complete()
        if outcome.records:
            self.note_row()
        for check in outcome.checks:
            self.judge_check(check)
        self.no_more_checks()
        self.delivered = delivered
        for read in outcome.reads:
            assert read.read_id not in self.read_ids
            self.read_ids.add(read.read_id)
            positions = unpack_runs(read.positions)
            assert positions
            assert positions == sorted(set(positions))
            assert len(positions) <= max(self.limits.page_messages, self.limits.max_batch)
            self.reads.append(read)
        went_out: list[tuple[int, int]] = []
        for woken in outcome.woken:
            peek = self.peeks.pop(woken.waiter_id, None)
            if isinstance(woken.reply, QueueDeleted):
                self.decisions.pop(woken.waiter_id, None)
                continue
            if peek is not None:
                assert isinstance(woken.reply, Peeked)
                peek.queue.check_peek(peek, woken.reply, self.unreadable(peek.queue), self.now_ms)
                continue
            if self.judge_woken(woken.waiter_id, woken.reply):
                continue
            queue = self.waiting_at(woken.waiter_id)
            answered = queue.answer_waiter(
                woken.waiter_id, woken.reply, there[queue.queue_id], self.now_ms, self.moving(queue)
            )
            went_out.extend((queue.queue_id, position) for position in answered)
        self.went_out = went_out
        return outcome.reply

    def moving(self, queue: NaiveQueue) -> set[int]:
        """What the broker means to move to another queue; receives pass it over."""
        return set(self.broker.queues[queue.queue_id].index.moving)

    def judge(self, record: AnyRecord, row: NaiveRow, own: int | None) -> None:
        """One record, which follows from the model's state or contradicts it."""
        match record:
            case MessagesExpired():
                self.by_id(record.queue_id).pass_floor(record.floor, self.now_ms)
            case DelaysScheduled():
                self.by_id(record.queue_id).schedule(unpack_runs(record.positions), record.visible_ms, self.now_ms)
            case LeasesEnded():
                for handle in self.handles_for(unpack_runs(record.leases)):
                    queue = self.by_id(record.queue_id)
                    self.note_back(queue, queue.end_lease(handle, self.now_ms))
            case MessagesActivated():
                queue = self.by_id(record.queue_id)
                for position in unpack_runs(record.positions):
                    assert queue.messages[position].is_due(self.now_ms), "a delay ended too early"
                    queue.messages[position].come_back(self.now_ms)
            case MessagesReceived():
                leases = set(range(record.first_lease, record.first_lease + count_runs(record.positions)))
                assert not leases & self.leases, "a lease was used twice"
                self.leases |= leases
            case MessagesMoved():
                self.judge_moved(record, row)
            case MessagesSent():
                if record.first_message_id != own:
                    self.judge_copies(record, row)
            case TransactionsEnded():
                self.judge_ended(record, row)
            case _:
                self.judge_more(record)

    def judge_more(self, record: AnyRecord) -> None:
        """Records that only some machines know."""

    def note_received(self, record: MessagesReceived) -> None:
        """These went out."""

    def judge_ended(self, record: TransactionsEnded, row: NaiveRow) -> None:
        raise AssertionError("a transaction was decided")

    def judge_check(self, check: Check) -> None:
        raise AssertionError("a check was sent")

    def no_more_checks(self) -> None:
        """All that were counted were sent."""

    def judge_woken(self, waiter_id: int, reply: Any) -> bool:
        """Whether it was somebody else than a receive, who got the right answer."""
        return False

    def judge_moved(self, record: MessagesMoved, row: NaiveRow) -> None:
        """These leave their queue; where they went is told by what follows in the row."""
        queue = self.by_id(record.queue_id)
        for position in unpack_runs(record.positions):
            message = queue.messages.pop(position)
            if message.is_due(self.now_ms):
                message.come_back(self.now_ms)
            assert message.state is State.ACTIVE, f"moved while {message.state}"
            assert not queue.is_expired(message, self.now_ms), "an expired message was moved"
            reason = "redrive" if record.redriven else queue.is_dead(message, self.now_ms)
            assert reason, "moved too early"
            row.moved[queue.name, message.message_id] = message, reason, queue
            self.note_moved(queue, message, record.redriven)

    def note_moved(self, queue: NaiveQueue, message: NaiveMessage, redriven: bool) -> None:
        """One of them."""

    def note_back(self, queue: NaiveQueue, message: NaiveMessage) -> None:
        """A counted receive of a message ended without deletion."""

    def judge_copies(self, record: MessagesSent, row: NaiveRow) -> None:
        """Messages that nobody sent: they were committed, or moved here."""
        target = self.by_id(record.queue_id)
        assert record.first_position == target.next_position
        assert record.enqueue_ms == max(self.now_ms, target.last_enqueue_ms)
        assert not record.half
        assert record.visible_ms is None, "what was moved or committed has no delay"
        for offset in range(len(record.sizes)):
            message_id = record.first_message_id + offset
            body = row.bodies[row.next_body]
            row.next_body += 1
            origin = record.origins[offset] if record.origins else None
            half = row.committed.pop(message_id, None)
            if half is not None:
                assert origin == half.origin is None
                of = half
            else:
                assert message_id not in self.message_ids, "a message id was used twice"
                self.message_ids.add(message_id)
                assert origin is not None, "a message out of nowhere"
                of, reason, source = row.moved.pop((origin.queue, origin.message_id))
                self.judge_move(source, target, of, reason)
                assert origin == Origin(source.name, of.message_id, of.enqueue_ms, of.receive_count, reason)
            headers = (record.headers[offset] if record.headers else None) or None
            assert (body, headers) == (of.body, of.headers)
            target.take_copy(message_id, of, origin, self.now_ms)

    def judge_move(self, source: NaiveQueue, target: NaiveQueue, message: NaiveMessage, reason: str) -> None:
        assert source.account == target.account
        assert source is not target
        assert len(message.body) <= target.attributes["max_message_bytes"], "too large for where it went"
        assert len(target.messages) < target.attributes["max_backlog"], "moved to a full queue"
        if reason != "redrive":
            assert target.name == source.attributes["dead_letter_queue"]
            assert target.takes_dead_letters(), "moved while what the dead-letter queue held is not consumed"

    def note_row(self) -> None:
        """What is live after this row, for crashes behind it."""
        while len(self.rows) <= self.log.last_lsn:
            self.rows.append({})
        self.rows[-1] = {
            queue_id: (list(queue.index.live), list(queue.index.half)) for queue_id, queue in self.broker.queues.items()
        }

    def handles_for(self, leases: list[int]) -> list[int]:
        return [handle for lease in leases for handle in self.broker.handles.handles(lease, 1)]

    def by_id(self, queue_id: int) -> NaiveQueue:
        return next(queue for queue in self.queues if queue.queue_id == queue_id)

    def waiting_at(self, waiter_id: int) -> NaiveQueue:
        return next(queue for queue in self.queues if any(one.waiter_id == waiter_id for one in queue.line))

    def unreadable(self, queue: NaiveQueue) -> set[int]:
        return {position for queue_id, position in self.log.damaged if queue_id == queue.queue_id}

    def pick(self, number: int) -> NaiveQueue:
        """Most of what happens should happen to one queue."""
        return self.queues[number // 4 % len(self.queues) if number % 4 == 3 else 0]

    def handles_of(self, queue: NaiveQueue, picks: list[int]) -> list[int]:
        """Some handles: mostly of this queue and held, but also old, foreign and invented ones."""
        held = sorted(message.handle for message in queue.of(State.IN_FLIGHT))
        old = sorted(queue.handles)
        foreign = sorted(handle for other in self.queues + self.gone_queues for handle in other.handles)
        made: list[int] = []
        for pick in picks:
            source = [held, held, held, old, foreign, [pick]][pick % 6]
            made.append(source[pick // 6 % len(source)] if source else pick)
        return made

    def is_quiet(self) -> bool:
        """Nothing is due: counts are exact."""
        due_ms = self.broker.next_deadline_ms()
        return due_ms is None or due_ms > self.now_ms

    # ------------------------------------------------------------------ queues

    @rule(
        what=st.sampled_from(["create", "set", "set", "backlog", "clear", "delete"]),
        number=which,
        attributes=st.fixed_dictionaries(
            {},
            optional={
                "retention_ms": st.sampled_from([60_000, 120_000, 345_600_000]),
                "max_delayed": st.integers(1, 4),
                "delay_ms": st.sampled_from([0, 0, 1000]),
                "polling_wait_ms": st.sampled_from([0, 200, 5000]),
                "visibility_timeout_ms": st.sampled_from([1000, 30_000]),
            },
        ),
        max_backlog=st.sampled_from([3, 10, 100_000_000]),
    )
    def administer(self, what: str, number: int, attributes: dict[str, int], max_backlog: int) -> None:
        # One rule for them all, because messages are to be sent and received more often than queues are changed.
        if what == "create":
            self.create(number, attributes)
        elif self.queues:
            queue = self.pick(number)
            if what == "set":
                self.set_attributes(queue, attributes)
            elif what == "backlog":
                self.set_backlog(queue, max_backlog)
            elif what == "clear":
                self.clear(queue)
            else:
                self.delete_queue(queue)

    def create(self, number: int, attributes: dict[str, Any]) -> None:
        whose, called = ACCOUNTS[number % 2], self.names[number // 2 % len(self.names)]
        mine = [queue for queue in self.queues if queue.account == whose]
        refused = self.is_refused({**self.defaults, **attributes}, whose, called, None)
        try:
            outcome = self.broker.create_queue(whose, called, attributes, self.now_ms)
        except QueueExists:
            assert any(queue.name.lower() == called.lower() for queue in mine)
            return
        except TooManyQueues:
            assert len(mine) == self.max_queues
            return
        except InvalidArgument:
            assert refused
            return
        assert not refused
        info = outcome.reply
        assert not any(queue.queue_id == info.queue_id for queue in self.queues + self.gone_queues)
        self.queues.append(NaiveQueue(info.queue_id, whose, called, info.attributes, self.limits))
        self.rebind()
        self.done(outcome)

    defaults: ClassVar[dict[str, Any]] = msgspec.structs.asdict(DEFAULTS)

    def is_refused(self, attributes: dict[str, Any], account: str, name: str, queue: NaiveQueue | None) -> bool:
        """Whether a queue (None = a new one) cannot have these attributes."""
        retention_ms, rewind_ms = attributes["retention_ms"], attributes["rewind_ms"]
        receives, after_ms = attributes["dead_letter_max_receives"], attributes["dead_letter_after_ms"]
        wanted = attributes["dead_letter_queue"]
        if rewind_ms > retention_ms or after_ms >= retention_ms or 0 < after_ms < 300_000:
            return True
        if not wanted:
            return bool(receives or after_ms)
        target = self.named(account, wanted)
        if bool(receives) == bool(after_ms) or wanted == name or target is None:
            return True
        if target.attributes["transactional"] or target.attributes["dead_letter_queue"]:
            return True
        if queue is not None and (self.sources(queue) or self.is_redriven(queue)):
            return True
        others = [source for source in self.sources(target) if source is not queue]
        return len(others) >= self.limits.max_dead_letter_sources

    def named(self, account: str, name: str) -> NaiveQueue | None:
        return next((queue for queue in self.queues if (queue.account, queue.name) == (account, name)), None)

    def is_redriven(self, queue: NaiveQueue) -> bool:
        return False

    def rebind(self) -> None:
        """Queues have become dead-letter queues, or are no more: what they hold then is to be consumed first."""
        for queue in self.queues:
            if not self.sources(queue):
                queue.dead_letter_floor = -1
            elif queue.dead_letter_floor < 0:
                queue.dead_letter_floor = queue.next_position

    def delete_queue(self, queue: NaiveQueue) -> None:
        try:
            outcome = self.broker.delete_queue(queue.account, queue.name, self.now_ms)
        except DeadLetterQueueInUse:
            assert self.sources(queue)
            return
        assert not self.sources(queue)
        ended = [waiter_id for waiter_id, peek in self.peeks.items() if peek.queue is queue]
        ended += [waiter_id for waiter_id, asked in self.rewinds.items() if asked.queue is queue]
        for waiter_id in ended:
            self.rewinds.pop(waiter_id, None)
        assert sorted(one.waiter_id for one in outcome.woken) == sorted(
            [receive.waiter_id for receive in queue.line] + ended
        )
        assert all(isinstance(one.reply, QueueDeleted) for one in outcome.woken)
        self.queues.remove(queue)
        self.gone_queues.append(queue)
        self.rebind()
        self.done(outcome)

    def sources(self, queue: NaiveQueue) -> list[NaiveQueue]:
        """The queues whose dead letters go to this one."""
        return [
            source
            for source in self.queues
            if source.account == queue.account and source.attributes["dead_letter_queue"] == queue.name
        ]

    def set_attributes(self, queue: NaiveQueue, changes: dict[str, Any]) -> None:
        wanted = {**queue.attributes, **changes}
        if changes.get("dead_letter_queue") == "" != queue.attributes["dead_letter_queue"]:
            # Unbound, the policy goes with it.
            wanted = {**wanted, "dead_letter_max_receives": 0, "dead_letter_after_ms": 0, **changes}
        refused = self.is_refused(wanted, queue.account, queue.name, queue)
        refused |= wanted["transactional"] != queue.attributes["transactional"]
        try:
            outcome = self.broker.set_queue_attributes(queue.account, queue.name, changes, self.now_ms)
        except (InvalidArgument, RedriveRunning):
            assert refused
            return
        assert not refused
        queue.set_attributes(wanted, self.now_ms)
        self.rebind()
        assert self.done(outcome).attributes == queue.attributes

    def set_backlog(self, queue: NaiveQueue, max_backlog: int) -> None:
        """Below what an owner may set, so that a short run meets it."""
        queue.attributes = {**queue.attributes, "max_backlog": max_backlog}
        record = QueueAttributesSet(queue.queue_id, QueueAttributes(**queue.attributes), self.now_ms)
        self.log.append([record])
        self.broker.replay(record, self.log.last_lsn)
        self.note_row()

    def clear(self, queue: NaiveQueue) -> None:
        outcome = self.broker.clear_queue(queue.account, queue.name, self.now_ms)
        queue.pass_floor(queue.next_position, None)
        self.done(outcome)

    # ------------------------------------------------------------------ messages

    @precondition(has_queues)
    @rule(
        number=which,
        batch=st.lists(st.tuples(sizes, st.integers(0, 3), delays), min_size=1, max_size=8),
        delay=st.sampled_from(["none", "none", "none", "one", "each"]),
        session=st.sampled_from([0, 0, 1, 2, 3]),
        sequence=st.integers(1, 8),
    )
    def send(self, number: int, batch: list[tuple[int, int, int]], delay: str, session: int, sequence: int) -> None:
        queue = self.pick(number)
        sent = [b"%d" % (queue.next_position % 10) * size for size, _, _ in batch]
        marks = [MARKS[mark] for _, mark, _ in batch]
        delay_ms: int | list[int] | None = None
        each = [queue.attributes["delay_ms"]] * len(batch)
        if delay == "one":
            delay_ms = batch[0][2]
            each = [delay_ms] * len(batch)
        elif delay == "each":
            delay_ms = each = [one for _, _, one in batch]
        stored = self.sessions.find(queue.account, session, sequence) if session else "new"
        quiet = self.is_quiet()
        maybe_forgotten = session != 0 and self.sessions.may_be_forgotten(queue.account, session, self.now_ms)
        try:
            outcome = self.broker.send(queue.account, queue.name, sent, marks, delay_ms, session, sequence, self.now_ms)
        except BacklogFull:
            assert len(queue.messages) + len(batch) > queue.attributes["max_backlog"]
            return
        except BatchTooLarge:
            assert len(batch) > 1
            return
        except SequenceTooOld:
            assert stored == "too old"
            return
        ids = list(outcome.reply)
        if not outcome.records:
            assert ids == stored, "a repeat got another answer"
            return
        assert stored == "new" or maybe_forgotten, "stored twice, or though too old"
        assert len(ids) == len(batch)
        assert not set(ids) & self.message_ids, "a message id was used twice"
        assert len(queue.messages) + len(batch) <= queue.attributes["max_backlog"]
        self.message_ids.update(ids)
        queue.send(ids, sent, marks, each, self.now_ms)
        if not quiet:
            # How many places among the delayed are free depends on the ticks made so far: take over who got one.
            overflow = self.broker.queues[queue.queue_id].index.overflow
            for message in (queue.by_id[message_id] for message_id in ids):
                if message.visible_ms:
                    message.state = State.OVERFLOW if message.position in overflow else State.DELAYED
        if session:
            self.sessions.note(queue.account, session, sequence, ids, self.now_ms)
        self.done(outcome, ids[0])
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 8), wait=waits, timeout=timeouts)
    def receive(self, number: int, most: int, wait: int | None, timeout: int | None) -> None:
        queue = self.pick(number)
        self.waiter_id += 1
        quiet = self.is_quiet()
        try:
            outcome = self.broker.receive(queue.account, queue.name, self.waiter_id, most, wait, timeout, self.now_ms)
        except TooManyInFlight:
            assert queue.in_flight() >= self.limits.max_in_flight
            return
        assert not quiet or queue.in_flight() < self.limits.max_in_flight
        wait_ms = queue.attributes["polling_wait_ms"] if wait is None else wait
        timeout_ms = queue.attributes["visibility_timeout_ms"] if timeout is None else timeout
        receive = NaiveReceive(self.waiter_id, most, timeout_ms, self.now_ms + wait_ms, bool(wait_ms))
        moving = self.moving(queue)
        reply = self.done(outcome)
        if reply is WAITING:
            queue.line.append(receive)
            return
        assert not queue.line or not reply, "it overtook those in the line"
        if reply:
            went_out = queue.deliver(receive, reply, self.now_ms, moving)
            assert self.delivered == [(queue.queue_id, position) for position in went_out]
        else:
            assert not wait_ms
            assert {one.position for one in queue.active()} <= moving

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 8))
    def receive_now(self, number: int, most: int) -> None:
        self.receive(number, most, 0, None)

    @rule(pick=which)
    def cancel(self, pick: int) -> None:
        waiting = [(queue, one) for queue in self.queues for one in queue.line]
        asked = sorted(self.peeks)
        if pick % 4 == 0 and asked:
            waiter_id = asked[pick // 4 % len(asked)]
            del self.peeks[waiter_id]
            assert self.broker.cancel_receive(waiter_id)
        elif waiting:
            queue, receive = waiting[pick // 4 % len(waiting)]
            queue.line.remove(receive)
            assert self.broker.cancel_receive(receive.waiter_id)
        else:
            assert not self.broker.cancel_receive(0)

    def settled(self, queue: NaiveQueue, handles: list[int], outcome: Outcome[HandlesDone]) -> list[NaiveMessage]:
        refused = [failure.receipt_handle for failure in outcome.reply.failures]
        messages, failed = queue.settle(handles, refused, self.now_ms)
        assert refused == failed
        assert bool(outcome.records) == bool(messages), "handles that are not valid change nothing"
        return messages

    @precondition(has_queues)
    @rule(number=which, picks=st.lists(which, min_size=1, max_size=8))
    def delete(self, number: int, picks: list[int]) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        outcome = self.broker.delete(queue.account, queue.name, handles, self.now_ms)
        queue.delete(self.settled(queue, handles, outcome))
        self.done(outcome)
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(number=which, picks=st.lists(which, min_size=1, max_size=8), counted=st.booleans())
    def release(self, number: int, picks: list[int], counted: bool) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        outcome = self.broker.release(queue.account, queue.name, handles, counted, self.now_ms)
        messages = self.settled(queue, handles, outcome)
        queue.release(messages, counted)
        for message in messages if counted else []:
            self.note_back(queue, message)
        self.done(outcome)
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(
        number=which,
        picks=st.lists(which, min_size=1, max_size=8),
        timeout_ms=st.sampled_from([0, 1, 500, 1000, 30_000, 43_200_000]),
    )
    def change_visibility(self, number: int, picks: list[int], timeout_ms: int) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        outcome = self.broker.change_visibility(queue.account, queue.name, handles, timeout_ms, self.now_ms)
        messages = self.settled(queue, handles, outcome)
        if not timeout_ms:
            queue.release(messages, True)
            for message in messages:
                self.note_back(queue, message)
            self.done(outcome)
            return
        queue.hide(messages, timeout_ms, self.now_ms)
        deadlines = {
            lease: record.deadline_ms
            for record in outcome.records
            if isinstance(record, VisibilityChanged)
            for lease in unpack_runs(record.leases)
        }
        leases = self.broker.handles.leases(message.handle for message in messages)
        assert sorted(deadlines) == sorted(leases)
        for message, lease in zip(messages, leases, strict=True):
            chosen_ms = deadlines[lease]
            # The cut at retention is exact to a step of time.
            assert max(self.now_ms, message.deadline_ms - STEP_GRAIN_MS) <= chosen_ms <= message.deadline_ms
            message.deadline_ms = chosen_ms
        assert not messages or outcome.reply.next_visible_ms == min(deadlines.values())
        self.done(outcome)

    @precondition(has_queues)
    @rule(number=which, start=which, most=st.integers(1, 8))
    def peek(self, number: int, start: int, most: int) -> None:
        queue = self.pick(number)
        start = start % (queue.next_position + 2)
        self.waiter_id += 1
        peek = NaivePeek(queue, start, most, queue.next_position)
        outcome = self.broker.peek(queue.account, queue.name, self.waiter_id, start, most, self.now_ms)
        assert not outcome.records
        peek.then = queue.to_show(peek, self.now_ms)
        reply = self.done(outcome)
        if reply is WAITING:
            self.peeks[self.waiter_id] = peek
        else:
            queue.check_peek(peek, reply, self.unreadable(queue), self.now_ms)

    # ------------------------------------------------------------------ disk and time

    @precondition(lambda self: bool(self.reads))
    @rule(pages=st.integers(1, 5))
    def pages_arrive(self, pages: int) -> None:
        """As they do when nothing is late."""
        for _ in range(min(pages, len(self.reads))):
            self.page_arrives(0, None, False, None)

    @precondition(lambda self: bool(self.reads))
    @rule(
        pick=which,
        at_most=st.sampled_from([None, None, 1, 2]),
        reclaimed=st.booleans(),
        damaged=st.sampled_from([None, None, 0, 1]),
    )
    def page_arrives(self, pick: int, at_most: int | None, reclaimed: bool, damaged: int | None) -> None:
        """Any of the pages asked for, whole or in part; rows without a live message may be gone from the disk, and one
        may turn out to be damaged.
        """
        read = self.reads.pop(pick % len(self.reads))
        if damaged is not None:
            positions = unpack_runs(read.positions)
            self.log.damaged.add((read.queue_id, positions[damaged % len(positions)]))
        messages, missing = self.log.page(read, at_most)
        queue = next((one for one in self.queues if one.queue_id == read.queue_id), None)
        live = set(queue.messages) if queue is not None else set[int]()
        if queue is not None:
            live.update(self.broker.queues[read.queue_id].index.rewindable)
        if reclaimed:
            lost = [one.position for one in messages if one.position not in live]
            messages = [one for one in messages if one.position in live]
            missing = pack_runs(sorted(unpack_runs(missing) + lost))
        in_memory: set[int] = set()
        active: set[int] = set()
        if queue is not None:
            in_memory.update(self.broker.queues[read.queue_id].window.messages)
            active.update(self.broker.queues[read.queue_id].index.active)
        before: set[int] = set()
        if queue is not None:
            index = self.broker.queues[read.queue_id].index
            before = set(index.damaged) | set(index.halves.unreadable)
        is_wanted = read.read_id in self.broker._reads or read.read_id in self.broker._overflow_reads
        outcome = self.broker.pages_read(read.read_id, messages, missing, self.now_ms)
        found_damaged = 0
        if queue is not None and is_wanted:
            wanted = [position for position in unpack_runs(missing) if position not in in_memory]
            found_damaged = queue.damage(wanted, active, self.now_ms)
        elif queue is not None:
            index = self.broker.queues[read.queue_id].index
            found = (set(index.damaged) | set(index.halves.unreadable)) - before
            assert found <= set(unpack_runs(missing))
            found_damaged = queue.damage(sorted(found), active | found, self.now_ms)
            found_damaged += sum(queue.messages[position].state is State.HALF for position in found)
            assert found_damaged == len(found)
        assert self.done(outcome) == found_damaged
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(number=which, position=which)
    def damage(self, number: int, position: int) -> None:
        queue = self.pick(number)
        if queue.next_position and position % 3 == 0:
            self.log.damaged.add((queue.queue_id, position // 3 % queue.next_position))

    @rule(ms=times, ticks=st.sampled_from([None, None, None, 0, 1, 2]))
    def time_passes(self, ms: int, ticks: int | None) -> None:
        self.now_ms += ms
        for made in range(MOST_TICKS):
            if self.is_quiet() or made == ticks:
                break
            self.done(self.broker.tick(self.now_ms))
            assert sorted(self.went_out) == sorted(self.delivered)
        else:
            raise AssertionError("the ticker spins")

    # ------------------------------------------------------------------ crashes

    def broker_from(self, parts: list[AnyPart], records: list[tuple[int, AnyRecord]]) -> Broker:
        broker = Broker(KEY, self.limits)
        above = 0
        for part in parts:
            # As read from a file: what is made of it must not change the part.
            broker.load(msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=AnyPart))
            if isinstance(part, CheckpointHeader):
                above = part.lsn
        for lsn, record in records:
            if lsn > above:
                broker.replay(record, lsn)
        return broker

    def check_same(self, recovered: Broker) -> None:
        """All facts of the live broker, and no others."""
        for broker in (self.broker, recovered):
            # Expiry of sessions is no record: a tick does it, in its own time.
            while broker.sessions.expire(self.now_ms, 100):
                pass
        assert self.lasting(recovered) == self.lasting(self.broker)
        for queue in recovered.queues.values():
            check_lease_buckets(queue)
            same = self.broker.queues[queue.queue_id].index
            for position in queue.index.live:
                assert abs(queue.index.steps.sent_at(position) - same.steps.sent_at(position)) < STEP_GRAIN_MS

    def lasting(self, broker: Broker) -> dict[str, Any]:
        """The facts of a broker without those that retention or the window of rewinding has ended: ticks forget them,
        in their own time, and tell nobody.
        """
        found = facts(broker)
        for queue in self.queues:
            its = found["queues"].get(queue.queue_id)
            if its is not None:
                rewindable = queue.rewindable(self.now_ms)
                its["rewindable"] = [position for position in its["rewindable"] if position in rewindable]
                kept = {one.position for one in queue.halves.values() if not queue.is_expired(one, self.now_ms)}
                for name in ("committed", "rolled back"):
                    decided = its["halves"][name]
                    its["halves"][name] = {position: decided[position] for position in decided if position in kept}
                its["activations"] = self.lasting_activations(queue, its["activations"])
                its["dedup ids"] = [one for one in its["dedup ids"] if one[2] + self.limits.dedup_life_ms > self.now_ms]
        return found

    def lasting_activations(self, queue: NaiveQueue, found: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
        """Without those older than dead letters by age, which are looked up when they are wanted, and the oldest."""
        since_ms = max(queue.by_age_since_ms, self.now_ms - 43_200_000)
        # What is known of messages that are gone means nothing.
        young = {one for one, message in queue.messages.items() if message.activated_ms > since_ms}
        kept = [(ms, [one for one in some if one in young]) for ms, some in found]
        return [(ms, some) for ms, some in kept if some]

    def check_numbers(self, broker: Broker, records: list[tuple[int, AnyRecord]]) -> None:
        """What is used next was not used in these records."""
        numbers = broker.numbers
        for _, record in records:
            match record:
                case MessagesSent():
                    # A committed message keeps the id that it got as a half one.
                    assert record.first_message_id + len(record.sizes) <= numbers.next_message_id
                case MessagesReceived():
                    assert record.first_lease + sum(record.positions[1::2]) <= numbers.next_lease
                case QueueCreated():
                    assert record.queue_id < numbers.next_queue_id
                case _:
                    pass

    @rule(what=st.sampled_from(["anywhere", "anywhere", "end", "restart", "above"]), cut=which)
    def crash(self, what: str, cut: int) -> None:
        if what == "anywhere":
            self.crash_at_any_row(cut)
        elif what == "end":
            self.crash_at_the_end()
        elif what == "restart":
            self.restart(cut % 2 == 0, cut % 3 == 0)
        elif self.last_checkpoint is not None:
            self.crash_above_the_checkpoint(self.last_checkpoint, cut)

    def crash_at_any_row(self, cut: int) -> None:
        """What a crash leaves is a broker that works, whatever the last record was."""
        rows = cut % (self.log.last_lsn + 1)
        prefix = [(lsn, record) for lsn, record in self.log.records() if lsn <= rows]
        broker = self.broker_from([], prefix)
        found = {queue_id: (list(one.index.live), list(one.index.half)) for queue_id, one in broker.queues.items()}
        assert found == self.rows[rows]
        broker.recovered()
        broker.check_invariants()
        self.check_numbers(broker, prefix)

    def crash_at_the_end(self) -> None:
        recovered = self.broker_from([], self.log.records())
        self.check_same(recovered)
        recovered.recovered()
        recovered.check_invariants()
        self.check_numbers(recovered, self.log.records())

    def restart(self, from_checkpoint: bool, lost: bool) -> None:
        """Go on with the recovered broker in place of the one that crashed."""
        parts = self.last_checkpoint if from_checkpoint else None
        recovered = self.broker_from(parts or [], self.log.records())
        self.check_same(recovered)
        reserved = recovered.recovered(lost=lost)
        assert all(isinstance(record, NumbersReserved) for record in reserved)
        assert bool(reserved) == lost
        self.check_numbers(recovered, self.log.records())
        self.broker = recovered
        if reserved:
            self.log.append(reserved)
            self.note_row()
        for queue in self.queues:
            queue.restart()
        self.peeks.clear()
        self.rewinds.clear()
        self.decisions.clear()
        self.reads.clear()
        self.read_ids.clear()
        self.parts = None

    @rule(steps=st.integers(1, 4))
    def checkpoint(self, steps: int) -> None:
        """Begin one, or get on with the one under way."""
        if self.parts is None:
            self.taken = []
            self.parts = self.broker.checkpoint(lambda: self.log.last_lsn, self.now_ms)
        for _ in range(steps):
            part = next(self.parts, None)
            if part is None:
                self.last_checkpoint = self.taken
                self.parts = None
                self.check_same(self.broker_from(self.taken, self.log.records()))
                return
            self.taken.append(part)

    def crash_above_the_checkpoint(self, parts: list[AnyPart], cut: int) -> None:
        end = parts[-1]
        assert isinstance(end, CheckpointEnd)
        records = self.log.records()
        least = sum(lsn <= end.lsn for lsn, _ in records)
        rows = end.lsn + cut % (self.log.last_lsn - end.lsn + 1)
        prefix = [(lsn, record) for lsn, record in records if lsn <= rows]
        assert len(prefix) >= least
        broker = self.broker_from(parts, prefix)
        broker.recovered()
        broker.check_invariants()
        self.check_numbers(broker, prefix)
        whole = self.broker_from([], prefix)
        for one in (whole, broker):
            while one.sessions.expire(self.now_ms, 100):
                pass
        assert self.lasting(broker)["queues"] == self.lasting(whole)["queues"]

    # ------------------------------------------------------------------ after every step

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "queues"):
            return
        self.broker.check_invariants()
        assert sorted(self.broker.queues) == sorted(queue.queue_id for queue in self.queues)
        self.always()
        if not self.is_quiet():
            return
        self.sessions.forget(set(self.broker.sessions.keys()), self.now_ms)
        for queue in self.queues:
            queue.settle_time(self.now_ms)
            index = self.broker.queues[queue.queue_id].index
            assert list(index.live) == list(queue.messages)
            counts = self.broker.queue_info(queue.account, queue.name).counts
            # Those before the window are forgotten in their own time.
            assert len(queue.rewindable(self.now_ms)) <= counts.pop("rewindable") <= len(queue.deleted)
            assert counts == queue.counts()
            check_lease_buckets(self.broker.queues[queue.queue_id])
            self.nobody_waits_for_what_is_there(queue)
            self.places_among_the_delayed_are_used(queue)
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
        # The page that somebody waits for may be of what is to be moved by now; he gets the next one when it arrives.
        is_in_memory = real.index.first_active() in real.window.messages
        assert under_way or not is_in_memory, "somebody waits for what is in memory"
        assert under_way or len(self.reads) >= self.limits.max_reads, "nobody reads what somebody waits for"

    def places_among_the_delayed_are_used(self, queue: NaiveQueue) -> None:
        if not queue.of(State.OVERFLOW) or len(queue.of(State.DELAYED)) >= queue.attributes["max_delayed"]:
            return
        under_way = {read.read_id for read in self.reads if read.queue_id == queue.queue_id}
        assert under_way & self.broker._overflow_reads.keys(), "overflow waits for nothing"

    def come_to_rest(self) -> None:
        """All pages arrive and all that is due is done."""
        for _ in range(MOST_TICKS):
            if self.reads:
                self.page_arrives(0, None, False, None)
            elif not self.is_quiet():
                self.done(self.broker.tick(self.now_ms))
            else:
                return
        raise AssertionError("it never comes to rest")

    def at_rest(self) -> None:
        """Time passed since all was done, and all was done again: what had to happen has happened."""

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
        # Whatever is left must come to an end: pages arrive, time passes, and everybody is answered.
        self.come_to_rest()
        self.time_passes(60_000, None)
        self.rest()
        self.holds()
        self.crash_at_the_end()
