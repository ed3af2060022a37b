"""The shared part of the machines of the model: their state, and the judge of every record of an operation.

Always the same examples. By default (``make test``) a sixteenth of the examples; HYPOTHESIS_PROFILE=full
(``make test-all``) takes all examples, and thorough searches further, with new examples in every run.

A failing example is printed as Hypothesis found it, with the decorator that repeats it: shrinking takes five minutes of
CI's hour. ``HYPOTHESIS_PROFILE=shrink pytest tests/model/test_topics_model.py`` shrinks the example of ``make test``.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from model.callers import Callers

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import (
    QueueDeleted,
)
from cmqd.core.limits import Limits
from cmqd.core.outcome import Check, Outcome, PageRead, UnusedQueue
from cmqd_fold.settled_leases import SPAN
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import (
    UNUSED,
    AnyRecord,
    DelaysScheduled,
    LeasesEnded,
    MessagesActivated,
    MessagesDeadLettered,
    MessagesExpired,
    MessagesMoved,
    MessagesReceived,
    MessagesSent,
    TransactionsEnded,
    count_runs,
    unpack_runs,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord
from cmqd_types.attributes import QueueAttributes
from cmqd_types.messages import GONE_MOVED, Headers, MessagesPeeked, Origin
from support.core.builders import NaiveLog
from support.core.naive_broker import (
    NaiveMessage,
    NaivePeek,
    NaiveQueue,
    NaiveRow,
    NaiveSessions,
    State,
)


def profile(examples: int) -> settings:
    """The settings of a machine, given the number of examples of the full profile."""
    chosen = os.environ.get("HYPOTHESIS_PROFILE")
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    if chosen == "thorough":
        return settings(
            max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "3000")),
            stateful_step_count=100,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=checks,
        )
    return settings(
        max_examples=examples if chosen == "full" else examples // 16,
        phases=tuple(Phase) if chosen == "shrink" else (Phase.explicit, Phase.generate),
        print_blob=True,
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
"""More than the pause of the broker between two attempts."""
MOST_TICKS = 600
"""Far more than a run of this size can need: a broker that takes more spins."""

which = st.integers(0, 1 << 16)
waits = st.sampled_from([None, 0, 0, 1, 15, 500, 1000, 30_000])
timeouts = st.sampled_from([None, 1000, 1001, 2500, 30_000, 43_200_000])
times = st.sampled_from(
    [0, 1, 7, 19, 20, 99, 100, 250, 1000, 1000, 5000, 29_999, 60_000, 61_000, 3_600_000, 400_000_000]
)
delays = st.sampled_from([0, 1, 20, 500, 1000, 30_000, 3_600_000, 300_000_000])
sizes = st.sampled_from([1, 2, 30, 300, 1024])
MARKS: list[Headers | None] = [None, {}, {"k": "v"}, {"name": "w" * 100, "other": "é"}]


def nonzero(totals: msgspec.Struct) -> Counter[str]:
    """The totals that are not 0, by name."""
    return +Counter(msgspec.structs.asdict(totals))


def has_queues(machine: "Judge") -> bool:
    return bool(machine.queues)


def wanted_of(broker: Broker) -> dict[int, tuple[list[int], list[int]]]:
    """(live positions, undecided positions) by queue, and by topic (undelivered positions, empty set)."""
    found = {queue_id: (list(one.index.live), list(one.index.half)) for queue_id, one in broker.queues.items()}
    return found | {topic_id: (list(one.pending()), []) for topic_id, one in broker.topics.items()}


class Judge(RuleBasedStateMachine):
    max_queues = 2
    """Of an account."""
    windows: ClassVar[Sequence[int]] = (0, 1200, 4000, 1 << 20)
    """Bytes of bodies in memory; with several busy queues the least holds a page per queue, or reads never end."""
    names: ClassVar[Sequence[str]] = ("orders", "Orders", "mails")
    first_queues: ClassVar[list[dict[str, Any]]] = [{"retention_ms": 60_000, "max_delayed": 3}]
    """Attributes of the queues that are there at the beginning, in the first account."""
    more_limits: ClassVar[dict[str, Any]] = {}

    limits: Limits
    broker: Broker
    callers: Callers
    sealed_upto: int
    """Rows of the log in sealed segments when the checkpoint in progress began."""
    now_ms: int
    log: NaiveLog
    queues: list[NaiveQueue]
    gone_queues: list[NaiveQueue]
    gone_totals: dict[str, Counter[str]]
    """Totals of deleted queues by account."""
    sessions: NaiveSessions
    peeks: dict[int, NaivePeek]
    reads: list[PageRead]
    read_ids: set[int]
    waiter_id: int
    message_ids: set[int]
    leases: set[int]
    parts: Iterator[AnyPart] | None
    taken: list[AnyPart]
    last_checkpoint: list[AnyPart] | None
    rows: list[dict[int, tuple[list[int], list[int]]]]
    """After every row of the log: (live positions, unconsumed positions) by queue."""
    rewinds: dict[int, Any]
    rewound: dict[int, tuple[dict[int, NaiveMessage], set[int]]]
    """For the last rewind of a queue: the positions that could come back, and the positions that did."""
    decisions: dict[int, Any]
    is_started_anew: bool = False
    """No tick was made since a restart."""
    topic_ids: frozenset[int] = frozenset()
    """Of all topics there ever were."""
    delivered: list[tuple[int, int]]
    went_out: list[tuple[int, int]]

    # ------------------------------------------------------------------ helpers

    def done(self, outcome: Outcome[Any], own: int | None = None) -> Any:
        """Take an outcome over, let the model judge its records, and return its reply.

        ``own``: the first id of the messages sent with the outcome, which the model knows.
        """
        self.log.append(outcome.records, outcome.bodies)
        self.callers.judge(outcome, self.by_id, self.broker)
        # A tick ends waits before activations.
        there = {queue.queue_id: queue.receivable() for queue in self.queues}
        self.go_on_using()
        unused: list[NaiveQueue] = []
        delivered: list[tuple[int, int]] = []
        row = NaiveRow(outcome)
        for record in outcome.records:
            self.judge(record, row, own)
            if isinstance(record, QueueDeletedRecord) and record.reason:
                unused.append(self.judge_unused(record))
            elif isinstance(record, MessagesReceived):
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
            if read.queue_id not in self.topic_ids:
                assert len(positions) <= max(self.limits.page_messages, self.limits.max_batch)
            self.reads.append(read)
        went_out: list[tuple[int, int]] = []
        for woken in outcome.woken:
            peek = self.peeks.pop(woken.waiter_id, None)
            if isinstance(woken.reply, QueueDeleted):
                self.decisions.pop(woken.waiter_id, None)
                continue
            if peek is not None:
                assert isinstance(woken.reply, MessagesPeeked)
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
        for queue in unused:
            assert not queue.line, "somebody waits at a queue that is gone"
            self.forget_queue(queue)
        return outcome.reply

    def tick(self) -> None:
        """Make a tick of the broker. The first tick after a start counts as the start for unused queues."""
        if self.is_started_anew:
            self.is_started_anew = False
            for queue in self.queues:
                queue.used_until_ms = max(queue.used_until_ms, self.now_ms)
        for queue in self.queues:
            queue.note_held(self.now_ms)
        there = len(self.queues)
        unused = [one for one in self.done(self.broker.tick(self.now_ms)) if isinstance(one, UnusedQueue)]
        assert there - len(self.queues) == len(unused) <= 1

    def go_on_using(self) -> None:
        """Note that queues in use now were in use until now."""
        for queue in self.queues:
            queue.go_on_using(self.now_ms)
            if self.is_redriven(queue) or self.moving(queue):
                queue.use(self.now_ms)

    def is_redriven(self, queue: NaiveQueue) -> bool:
        return False

    def judge_unused(self, record: QueueDeletedRecord) -> NaiveQueue:
        """The broker deleted an unused queue."""
        assert record.reason == UNUSED
        queue = self.by_id(record.queue_id)
        after_ms = queue.attributes["auto_delete_after_ms"]
        assert after_ms, "a queue went that is to stay"
        assert self.now_ms - queue.used_ms >= after_ms, "a queue went too early"
        assert not queue.of(State.DELAYED, State.OVERFLOW, State.IN_FLIGHT, State.HALF)
        assert all(receive.is_over(self.now_ms) for receive in queue.line)
        assert not self.is_redriven(queue)
        if queue.attributes["auto_delete_only_empty"]:
            assert not queue.messages, "messages went with a queue that goes only without"
            assert not queue.rewindable(self.now_ms)
        return queue

    def forget_queue(self, queue: NaiveQueue) -> None:
        """A queue was deleted, with its waiting receives."""
        for waiter_id in [waiter_id for waiter_id, asked in self.rewinds.items() if asked.queue is queue]:
            del self.rewinds[waiter_id]
        for message in queue.messages.values():
            message.calls.append("queue_deleted")
        self.queues.remove(queue)
        self.gone_queues.append(queue)
        self.gone_totals.setdefault(queue.account, Counter()).update(queue.totals)
        self.rebind()

    def rebind(self) -> None:
        """Queues have become dead-letter queues, or are no more."""

    def moving(self, queue: NaiveQueue) -> set[int]:
        """Messages that the broker is going to move; receives pass these messages over."""
        real = self.broker.queues.get(queue.queue_id)
        moving: set[int] = set() if real is None else set(real.index.moving)
        if any(message.rejected_by and queue.is_expired(message, self.now_ms) for message in queue.messages.values()):
            # Expired messages behind a rejected message are not received, and are gone after its move.
            moving.update(message.position for message in queue.active())
        return moving

    def judge(self, record: AnyRecord, row: NaiveRow, own: int | None) -> None:
        """Judge a record, which follows from the model's state or contradicts the state."""
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
                    queue.messages[position].calls.append("activated")
            case MessagesReceived():
                leases = set(range(record.first_lease, record.first_lease + count_runs(record.positions)))
                assert not leases & self.leases, "a lease was used twice"
                self.leases |= leases
            case MessagesMoved():
                self.judge_moved(record, row)
            case MessagesDeadLettered():
                self.judge_dead_lettered(record, row)
            case MessagesSent():
                if record.first_message_id != own:
                    self.judge_copies(record, row)
            case TransactionsEnded():
                self.judge_ended(record, row)
            case _:
                self.judge_more(record)

    def begin(self) -> None:
        """Create the further queues of the beginning."""

    def judge_more(self, record: AnyRecord) -> None:
        """Records that only some machines know."""

    def note_received(self, record: MessagesReceived) -> None:
        """Messages were received."""

    def judge_ended(self, record: TransactionsEnded, row: NaiveRow) -> None:
        raise AssertionError("a transaction was decided")

    def judge_check(self, check: Check) -> None:
        raise AssertionError("a check was sent")

    def no_more_checks(self) -> None:
        """All that were counted were sent."""

    def judge_woken(self, waiter_id: int, reply: Any) -> bool:
        """True if the waiter was not a receive and got the right answer."""
        return False

    def judge_moved(self, record: MessagesMoved, row: NaiveRow) -> None:
        """Messages leave their queue; the following records of the row name the target."""
        queue = self.by_id(record.queue_id)
        queue.use(self.now_ms)
        for position in unpack_runs(record.positions):
            message = queue.messages.pop(position)
            if message.is_due(self.now_ms):
                message.come_back(self.now_ms)
            assert message.state is State.ACTIVE, f"moved while {message.state}"
            assert not queue.is_expired(message, self.now_ms), "an expired message was moved"
            reason = "redrive" if record.redriven else queue.is_dead(message, self.now_ms)
            assert reason, "moved too early"
            row.moved[queue.name, message.message_id] = message, reason, queue
            queue.totals["redriven" if record.redriven else "dead_lettered"] += 1
            self.note_moved(queue, message, record.redriven)

    def judge_dead_lettered(self, record: MessagesDeadLettered, row: NaiveRow) -> None:
        """Messages that their consumer rejected."""
        queue = self.by_id(record.queue_id)
        queue.use(self.now_ms)
        handles = set(self.handles_for(unpack_runs(record.leases)))
        messages = [queue.messages.pop(position) for position in unpack_runs(record.positions)]
        assert {message.handle for message in messages} == handles
        for message in messages:
            assert message.state is State.IN_FLIGHT
            assert message.rejected_by, "moved though nobody rejected it"
            message.was_rejected = True
            queue.ended[message.handle] = GONE_MOVED, self.now_ms
            queue.totals["dead_lettered"] += 1
            row.moved[queue.name, message.message_id] = message, "rejected", queue

    def note_moved(self, queue: NaiveQueue, message: NaiveMessage, redriven: bool) -> None:
        """A single rejected message."""

    def note_back(self, queue: NaiveQueue, message: NaiveMessage) -> None:
        """A counted receive of a message ended without deletion."""

    def judge_copies(self, record: MessagesSent, row: NaiveRow) -> None:
        """Messages without a send: committed, or moved here."""
        target = self.by_id(record.queue_id)
        target.use(self.now_ms)
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
                words = of.rejection if reason == "rejected" else ""
                assert origin == Origin(source.name, of.message_id, of.enqueue_ms, of.receive_count, reason, words)
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

    def forget_totals(self) -> None:
        """Part of the log was lost: all totals begin at 0 again."""
        self.gone_totals.clear()
        for queue in self.queues:
            queue.totals.clear()

    def check_totals(self, broker: Broker) -> None:
        """The totals of a broker equal the model's own."""
        for queue in self.queues:
            assert nonzero(broker.queues[queue.queue_id].index.totals) == +queue.totals
        gone = broker.facts.gone_totals.by_account
        found = {account: its for account, one in gone.items() if (its := nonzero(one.queues))}
        expected = {account: +its for account, its in self.gone_totals.items()}
        assert found == {account: its for account, its in expected.items() if its}

    def note_row(self) -> None:
        """Note the live messages after this row, for crashes behind the row."""
        while len(self.rows) <= self.log.last_lsn:
            self.rows.append({})
        self.rows[-1] = wanted_of(self.broker)

    def check_gone(self, queue: NaiveQueue, handle: int, gone: int) -> None:
        (lease,) = self.broker.handles.leases([handle])
        is_far_behind = self.broker.facts.numbers.next_lease - lease > SPAN
        queue.check_gone(handle, gone, self.now_ms, is_far_behind=is_far_behind)

    def handles_for(self, leases: list[int]) -> list[int]:
        return [handle for lease in leases for handle in self.broker.handles.handles(lease, 1)]

    def by_id(self, queue_id: int) -> NaiveQueue:
        return next(queue for queue in self.queues if queue.queue_id == queue_id)

    def waiting_at(self, waiter_id: int) -> NaiveQueue:
        return next(queue for queue in self.queues if any(one.waiter_id == waiter_id for one in queue.line))

    def unreadable(self, queue: NaiveQueue) -> set[int]:
        return {position for queue_id, position in self.log.damaged if queue_id == queue.queue_id}

    def pick(self, number: int) -> NaiveQueue:
        """Choose a queue; most operations should meet a single queue."""
        return self.queues[number // 4 % len(self.queues) if number % 4 == 3 else 0]

    def handles_of(self, queue: NaiveQueue, picks: list[int]) -> list[int]:
        """Choose handles: mostly valid handles of this queue, but also old, foreign and invented handles."""
        held = sorted(message.handle for message in queue.of(State.IN_FLIGHT))
        old = sorted(queue.handles)
        foreign = sorted(handle for other in self.queues + self.gone_queues for handle in other.handles)
        made: list[int] = []
        for pick in picks:
            source = [held, held, held, old, foreign, [pick]][pick % 6]
            made.append(source[pick // 6 % len(source)] if source else pick)
        return made

    def is_quiet(self) -> bool:
        """Without due work the counts are exact."""
        due_ms = self.broker.next_deadline_ms()
        return due_ms is None or due_ms > self.now_ms
