"""The rules of half messages: first decisions, times and receivers of checks; and of dedup ids."""

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import MARKS, REST_MS, has_queues, sizes, which
from model.machine import BrokerMachine

from cmqd.core.domain_errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    BacklogFull,
    BatchTooLarge,
    InvalidArgument,
    MessageDamaged,
    NotTransactional,
    SequenceTooOld,
    TooManyRemembered,
    TransactionNotFound,
)
from cmqd.core.outcome import WAITING, Check, TransactionsDone
from cmqd_segment.records import AnyRecord, TransactionsChecked, TransactionsEnded, TransactionsUndecided, unpack_runs
from cmqd_types.messages import Headers
from support.core import alone
from support.core.naive_broker import STEP_GRAIN_MS, NaiveMessage, NaivePeek, NaiveQueue, NaiveRow, State

COMMIT, ROLL_BACK, UNKNOWN = 1, 2, 3
LONGEST_INTERVAL_MS = 300_000
STATES = ["active", "in_flight", "delayed", "half", "rewindable"]

dedup_ids = st.sampled_from([None, "a", "b", "c", "d", "e", "é" * 32])


@dataclass
class NaiveDecisions:
    """A request that waits for bodies."""

    queue: NaiveQueue
    asked: list[tuple[int, int]]
    """(message id, decision)"""


class TransactionsMachine(BrokerMachine):
    first_queues: ClassVar[list[dict[str, Any]]] = [
        {"retention_ms": 600_000, "max_delayed": 3, "transactional": True, "first_check_ms": 1000, "max_checks": 3}
    ]

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[int, int, int]] = set()
        """(queue id, message id, decision) of all decisions ever asked for."""
        self.counted: dict[int, NaiveMessage] = {}
        """Checks that must have been sent, by message id."""
        self.numbered: list[tuple[NaiveQueue, int, int, list[bytes], list[str | None]]] = []

    # ------------------------------------------------------------------ sending

    @precondition(has_queues)
    @rule(
        number=which,
        batch=st.lists(st.tuples(sizes, st.integers(0, 3)), min_size=1, max_size=8),
        first_check_ms=st.sampled_from([None, None, 1000, 2500, 400_000]),
    )
    def send_half(self, number: int, batch: list[tuple[int, int]], first_check_ms: int | None) -> None:
        queue = self.pick(number)
        bodies = [b"%d" % (queue.next_position % 10) * size for size, _ in batch]
        marks = [MARKS[mark] for _, mark in batch]
        name, account = queue.name, queue.account
        try:
            outcome = alone.send_half(self.broker, account, name, bodies, marks, first_check_ms, 0, 0, self.now_ms)
        except NotTransactional:
            assert not queue.attributes["transactional"]
            return
        except BacklogFull:
            assert len(queue.messages) + len(batch) > queue.attributes["max_backlog"]
            return
        except BatchTooLarge:
            assert len(batch) > 1
            return
        assert queue.attributes["transactional"]
        assert len(queue.messages) + len(batch) <= queue.attributes["max_backlog"]
        ids = list(outcome.reply)
        assert not set(ids) & self.message_ids, "a message id was used twice"
        self.message_ids.update(ids)
        first_ms = queue.attributes["first_check_ms"] if first_check_ms is None else first_check_ms
        queue.send_half(ids, bodies, marks, first_ms, self.now_ms)
        self.done(outcome, ids[0])

    @precondition(has_queues)
    @rule(
        number=which,
        batch=st.lists(st.tuples(sizes, dedup_ids), min_size=1, max_size=5),
        half=st.booleans(),
        session=st.sampled_from([0, 0, 11, 12]),
        sequence=st.integers(1, 4),
        all_or_none=st.sampled_from([True, False]),
    )
    def send_under_dedup_ids(
        self,
        number: int,
        batch: list[tuple[int, str | None]],
        half: bool,
        session: int,
        sequence: int,
        all_or_none: bool,
    ) -> None:
        queue = self.pick(number)
        half = half and queue.attributes["transactional"]
        bodies = [b"%d" % (queue.next_position % 10) * size for size, _ in batch]
        under = [dedup_id for _, dedup_id in batch]
        if session and self.sessions.find(queue.account, session, sequence) != "new":
            return
        maybe_kept = session and self.sessions.may_be_forgotten(queue.account, session, self.now_ms)
        if maybe_kept:
            return
        if not half and queue.attributes["delay_ms"]:
            return
        is_full = session != 0 and self.sessions.is_full_for(queue.account, session, self.now_ms)
        expected = self.expected_ids(queue, under)
        new = [place for place, one in enumerate(expected) if one is None]
        is_mixed = bool(new) and any(expected)
        try:
            outcome = self.send_it(queue, bodies, under, half, session, sequence, all_or_none)
        except InvalidArgument:
            assert all_or_none
            assert is_mixed
            return
        except BacklogFull:
            assert len(queue.messages) + len(new) > queue.attributes["max_backlog"]
            return
        except BatchTooLarge:
            assert len(batch) > 1
            return
        except TooManyRemembered:
            assert is_full
            return
        assert not (all_or_none and is_mixed), "a batch came in part"
        assert not (is_full and new), "an account got one more session than its share"
        ids = list(outcome.reply)
        assert len(ids) == len(batch)
        fresh = [ids[place] for place in new]
        assert not set(fresh) & self.message_ids, "a message id was used twice"
        assert bool(outcome.records) == bool(new), "a repeat stores nothing"
        self.message_ids.update(fresh)
        kept = [bodies[place] for place in new]
        marks: list[Headers | None] = [None] * len(new)
        if half:
            queue.send_half(fresh, kept, marks, queue.attributes["first_check_ms"], self.now_ms)
        elif new:
            queue.send(fresh, kept, marks, [0] * len(new), self.now_ms)
        for place, message_id in enumerate(ids):
            its = under[place]
            if place in new and its is not None:
                queue.note_dedup_id(its, message_id)
            elif its is not None:
                first = next((one for one in new if under[one] == its), None)
                assert message_id == (expected[place] or (ids[first] if first is not None else None))
        if session and new:
            self.sessions.note(queue.account, session, sequence, ids, self.now_ms)
            self.numbered.append((queue, session, sequence, bodies, under))
        self.done(outcome, fresh[0] if fresh else None)
        assert self.went_out == self.delivered

    def send_it(
        self,
        queue: NaiveQueue,
        bodies: list[bytes],
        under: list[str | None],
        half: bool,
        session: int,
        sequence: int,
        all_or_none: bool = False,
    ) -> Any:
        send = alone.send_half if half else alone.send
        account, name, now_ms = queue.account, queue.name, self.now_ms
        return send(
            self.broker,
            account,
            name,
            bodies,
            None,
            None,
            session,
            sequence,
            now_ms,
            under,
            all_or_none=all_or_none,
        )

    def expected_ids(self, queue: NaiveQueue, under: list[str | None]) -> list[int | None]:
        """The message that each repeats; None = new, 0 = a message further up in the batch."""
        found: list[int | None] = []
        for place, dedup_id in enumerate(under):
            if dedup_id is None:
                found.append(None)
            elif dedup_id in under[:place] and found[under.index(dedup_id)] is None:
                found.append(0)
            else:
                found.append(queue.find_dedup_id(dedup_id, self.now_ms))
        return found

    @precondition(lambda self: bool(self.numbered))
    @rule(pick=which)
    def repeat_numbered(self, pick: int) -> None:
        """The answer to a numbered send was lost."""
        queue, session, sequence, bodies, under = self.numbered[pick % len(self.numbered)]
        stored = self.sessions.find(queue.account, session, sequence)
        forgotten = self.sessions.may_be_forgotten(queue.account, session, self.now_ms)
        if queue not in self.queues or isinstance(stored, str) or forgotten:
            return
        try:
            outcome = self.send_it(queue, bodies, under, False, session, sequence)
        except SequenceTooOld:
            known = [queue.find_dedup_id(one, self.now_ms) for one in under if one is not None]
            assert None in known, "a repeat is refused though all of it is remembered"
            return
        assert not outcome.records
        assert list(outcome.reply) == stored

    # ------------------------------------------------------------------ decisions

    @precondition(lambda self: any(queue.halves for queue in self.queues))
    @rule(
        number=which,
        picks=st.lists(which, min_size=1, max_size=6),
        decisions=st.lists(st.sampled_from([COMMIT, COMMIT, ROLL_BACK, UNKNOWN]), min_size=6, max_size=6),
        one=st.booleans(),
    )
    def decide(self, number: int, picks: list[int], decisions: list[int], one: bool) -> None:
        queue = self.pick(number)
        known = sorted(queue.halves)
        others = sorted(self.message_ids)
        ids: list[int] = []
        for pick in picks:
            source = others if pick % 8 == 7 or not known else known
            ids.append(source[pick // 8 % len(source)])
        ids = list(dict.fromkeys(ids))
        said = decisions[:1] if one else decisions[: len(ids)]
        each = said * len(ids) if one else said
        self.waiter_id += 1
        name, account = queue.name, queue.account
        asked = NaiveDecisions(queue, list(zip(ids, each, strict=True)))
        try:
            outcome = self.broker.end_transactions(account, name, self.waiter_id, ids, said, self.now_ms)
        except NotTransactional:
            assert not queue.attributes["transactional"]
            return
        self.asked.update((queue.queue_id, message_id, decision) for message_id, decision in asked.asked)
        reply = self.done(outcome)
        assert self.went_out == self.delivered
        if reply is WAITING:
            self.decisions[self.waiter_id] = asked
        else:
            self.check_decided(asked, reply)

    def check_decided(self, asked: NaiveDecisions, reply: TransactionsDone) -> None:
        queue = asked.queue
        failures = dict(reply.failures)
        assert failures.keys() <= {message_id for message_id, _ in asked.asked}
        for message_id, decision in asked.asked:
            half, decided = queue.halves.get(message_id), queue.decided.get(message_id)
            match failures.get(message_id):
                case None:
                    if half is not None and not queue.is_expired(half, self.now_ms) and decision != UNKNOWN:
                        assert decided is (decision == COMMIT), "not decided as it says"
                case TransactionNotFound():
                    assert half is None or queue.is_expired(half, self.now_ms), "it is there, or remembered"
                case AlreadyCommitted():
                    assert decision == ROLL_BACK
                    assert decided in (True, None)
                case AlreadyRolledBack():
                    assert decision == COMMIT
                    assert decided in (False, None)
                case MessageDamaged():
                    assert decision == COMMIT
                    assert half is None or half.position in self.unreadable(queue)
                case error:
                    raise AssertionError(f"refused with {error!r}")

    def judge_woken(self, waiter_id: int, reply: Any) -> bool:
        asked = self.decisions.pop(waiter_id, None)
        if asked is None:
            return super().judge_woken(waiter_id, reply)
        self.check_decided(asked, reply)
        return True

    @precondition(lambda self: bool(self.decisions))
    @rule(pick=which)
    def cancel_decisions(self, pick: int) -> None:
        asked = sorted(self.decisions)
        waiter_id = asked[pick % len(asked)]
        del self.decisions[waiter_id]
        assert self.broker.cancel_receive(waiter_id)

    def judge_ended(self, record: TransactionsEnded, row: NaiveRow) -> None:
        queue = self.by_id(record.queue_id)
        decision = COMMIT if record.committed else ROLL_BACK
        assert record.ended_ms == self.now_ms
        for position in unpack_runs(record.positions):
            half = queue.end_half(position, record.committed)
            assert (queue.queue_id, half.message_id, decision) in self.asked, "nobody decided that"
            grace_ms = 0 if record.committed else STEP_GRAIN_MS
            assert not queue.is_expired(half, self.now_ms - grace_ms), "decided though expired"
            if record.committed:
                row.committed[half.message_id] = half

    # ------------------------------------------------------------------ checks

    @precondition(has_queues)
    @rule(number=which, has_checkers=st.sampled_from([True, True, False]))
    def register(self, number: int, has_checkers: bool) -> None:
        queue = self.pick(number)
        if queue.attributes["transactional"]:
            self.broker.set_has_checkers(queue.account, queue.name, has_checkers)
            queue.has_checkers = has_checkers

    @precondition(lambda self: any(queue.halves for queue in self.queues))
    @rule(number=which, picks=st.lists(which, min_size=1, max_size=4))
    def checker_went_away(self, number: int, picks: list[int]) -> None:
        queue = self.pick(number)
        ids = [sorted(queue.halves)[pick % len(queue.halves)] for pick in picks if queue.halves]
        for message_id in ids:
            queue.halves[message_id].ask_again = True
        self.done(self.broker.check_again(queue.account, queue.name, ids, self.now_ms))

    @precondition(has_queues)
    @rule(number=which, max_checks=st.integers(1, 4), first_check_ms=st.sampled_from([1000, 5000, 3_600_000]))
    def set_checks(self, number: int, max_checks: int, first_check_ms: int) -> None:
        self.set_attributes(self.pick(number), {"max_checks": max_checks, "first_check_ms": first_check_ms})

    @precondition(has_queues)
    @rule(number=which)
    def set_transactional(self, number: int) -> None:
        """Transactional or not: chosen at the creation of a queue."""
        self.set_attributes(self.pick(number), {"transactional": number % 8 < 4})

    @rule(ms=st.sampled_from([1000, 2000, 4000, 300_000]))
    def checks_come_due(self, ms: int) -> None:
        self.time_passes(ms, None)

    def judge_more(self, record: AnyRecord) -> None:
        match record:
            case TransactionsChecked():
                self.judge_checked(record)
            case TransactionsUndecided():
                queue = self.by_id(record.queue_id)
                for position in unpack_runs(record.positions):
                    half = queue.messages[position]
                    assert half.state is State.HALF
                    assert (queue.queue_id, half.message_id, UNKNOWN) in self.asked
                    half.unknown_ms = record.answered_ms
                    half.calls.append("undecided")
            case _:
                super().judge_more(record)

    def judge_checked(self, record: TransactionsChecked) -> None:
        queue = self.by_id(record.queue_id)
        assert queue.has_checkers, "there is nobody to ask"
        assert record.checked_ms == self.now_ms
        for position, next_ms in zip(unpack_runs(record.positions), record.next_check_ms, strict=True):
            half = queue.messages[position]
            assert half.state is State.HALF, "somebody is asked about what is decided"
            # 0: all allowed checks were sent, and now more are allowed, so the next check is due at once.
            due_ms = half.next_check_ms
            assert half.ask_again or due_ms <= self.now_ms, "asked too early"
            assert not queue.is_expired(half, self.now_ms)
            half.checks += 1
            half.calls.append("checked")
            assert half.ask_again or half.checks <= queue.attributes["max_checks"], "asked too often"
            is_last = half.checks >= queue.attributes["max_checks"]
            interval_ms = min(LONGEST_INTERVAL_MS, half.first_check_ms * 2**half.checks)
            assert next_ms == (0 if is_last else self.now_ms + interval_ms)
            half.ask_again, half.last_check_ms, half.next_check_ms = False, self.now_ms, next_ms
            self.counted[half.message_id] = half

    def judge_check(self, check: Check) -> None:
        half = self.counted.pop(check.message.message_id)
        queue = self.named(check.account, check.queue)
        assert queue is not None
        assert queue.messages[half.position] is half
        assert (check.attempt, check.age_ms) == (half.checks, self.now_ms - half.enqueue_ms)
        sent = check.message
        assert (sent.body, sent.headers or None, sent.enqueue_ms) == (half.body, half.headers, half.enqueue_ms)

    def no_more_checks(self) -> None:
        assert not self.counted, "a check was counted and not sent"

    # ------------------------------------------------------------------ looking

    @precondition(has_queues)
    @rule(number=which, start=which, limit=st.integers(1, 5))
    def list_halves(self, number: int, start: int, limit: int) -> None:
        queue = self.pick(number)
        start = start % (queue.next_position + 2)
        try:
            listed = self.broker.list_half_messages(queue.account, queue.name, start, limit)
        except NotTransactional:
            assert not queue.attributes["transactional"]
            return
        halves = [message for message in queue.of(State.HALF) if message.position >= start]
        assert [one.message_id for one in listed.messages] == [half.message_id for half in halves[:limit]]
        assert listed.next_start == (halves[limit - 1].position + 1 if len(halves) > limit else None)
        for one, half in zip(listed.messages, halves, strict=False):
            assert (one.checks, one.last_check_ms) == (half.checks, half.last_check_ms)
            assert (one.last_answer == "unknown") == bool(half.unknown_ms)
            assert 0 <= half.enqueue_ms - one.enqueue_ms < STEP_GRAIN_MS

    @precondition(has_queues)
    @rule(number=which, start=which, most=st.integers(1, 8), states=st.sets(st.sampled_from(STATES), min_size=1))
    def peek_states(self, number: int, start: int, most: int, states: set[str]) -> None:
        queue = self.pick(number)
        start = start % (queue.next_position + 2)
        self.waiter_id += 1
        wanted = sorted(states)
        peek = NaivePeek(queue, start, most, queue.next_position, wanted)
        outcome = self.broker.peek(queue.account, queue.name, self.waiter_id, start, most, self.now_ms, wanted)
        assert not outcome.records
        peek.then = queue.to_show(peek, self.now_ms)
        reply = self.done(outcome)
        if reply is WAITING:
            self.peeks[self.waiter_id] = peek
        else:
            queue.check_peek(peek, reply, self.unreadable(queue), self.now_ms)

    # ------------------------------------------------------------------ always

    def always(self) -> None:
        super().always()
        for queue in self.queues:
            queue.least_max_checks = min(queue.least_max_checks, queue.attributes["max_checks"])

    def at_rest(self) -> None:
        super().at_rest()
        assert not self.decisions, "a decision was never answered"
        for queue in self.queues:
            if not queue.has_checkers:
                continue
            for half in queue.of(State.HALF):
                is_due = half.ask_again or 0 < half.next_check_ms <= self.now_ms - REST_MS
                if half.position in self.unreadable(queue) or half.checks >= queue.least_max_checks:
                    continue
                assert not is_due or queue.is_expired(half, self.now_ms), "nobody was asked"
