# pyright: reportPrivateUsage=false
"""The rules of disk and time: late pages, damage, ticks, crashes at any row, and checkpoints."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import MOST_TICKS, has_queues, times, wanted_of, which
from model.messages import MessageRules

from cmqd.core.broker import Broker
from cmqd.core.operations.monitoring.audit import AuditAction
from cmqd.core.outcome import Outcome, PageRead
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.published import count_copies, message_ids_of
from cmqd_segment.records import (
    AnyRecord,
    MessagesPublished,
    MessagesReceived,
    MessagesSent,
    NumbersReserved,
    QueueCreated,
    Runs,
    ScheduleSet,
    StoredMessage,
    Subscribed,
    TopicCreated,
    TotalsReset,
    pack_runs,
    unpack_runs,
)
from support.core.builders import KEY, every
from support.core.facts import check_lease_buckets, facts
from support.core.invariants import check_broker
from support.core.naive_broker import (
    STEP_GRAIN_MS,
    NaiveQueue,
    State,
)


class DiskRules(MessageRules):
    trail: list[tuple[int, str]]
    """Id and account of the entries of the audit trail, oldest first."""

    @precondition(lambda self: bool(self.reads))
    @rule(pages=st.integers(1, 5))
    def pages_arrive(self, pages: int) -> None:
        """Answer reads without delay."""
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
        """Answer any requested page, whole or in part; rows without a live message may be gone from the disk, and a row
        may turn out to be damaged.
        """
        read = self.reads.pop(pick % len(self.reads))
        if damaged is not None:
            positions = unpack_runs(read.positions)
            self.log.damaged.add((read.queue_id, positions[damaged % len(positions)]))
        messages, missing = self.log.page(read, at_most)
        if read.queue_id in self.topic_ids:
            self.topic_page_arrives(read, messages, missing)
            return
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
            in_memory.update(self.broker.runtime.queues[read.queue_id].window.messages)
            active.update(self.broker.queues[read.queue_id].index.active)
        before: set[int] = set()
        halves: set[int] = set()
        if queue is not None:
            index = self.broker.queues[read.queue_id].index
            before = set(index.damaged) | set(index.halves.unreadable) | set(index.damaged_in_flight)
            halves = set(index.half)
        pages = self.broker.runtime.pages
        reading = pages.under_way.get(read.read_id)
        is_wanted = reading is not None and reading.lane in (pages.receives, pages.overflow)
        outcome = self.broker.pages_read(read.read_id, messages, missing, self.now_ms)
        for one in self.queues:
            # A page of delayed or moving messages was perhaps the last page.
            one.used_until_ms = max(one.used_until_ms, self.now_ms)
        found_damaged = 0
        if queue is not None and is_wanted:
            wanted = [position for position in unpack_runs(missing) if position not in in_memory]
            found_damaged = queue.damage(wanted, active, self.now_ms)
        elif queue is not None:
            index = self.broker.queues[read.queue_id].index
            now = set(index.damaged) | set(index.halves.unreadable) | set(index.damaged_in_flight)
            found = now - before
            assert found <= set(unpack_runs(missing))
            # A lease that is over ends with the next tick, also of a message that was found while it moved.
            ended = active | (found - set(index.damaged_in_flight))
            found_damaged = queue.damage(sorted(found), ended, self.now_ms, in_flight=True)
            found_damaged += sum(queue.messages[position].state is State.HALF for position in found)
            assert found_damaged == len(found)
            # Found to be damaged, and then rolled back by a decision that had waited for this page.
            found_damaged += len((halves & set(unpack_runs(missing))) - before - set(index.half))
        assert self.done(outcome) == found_damaged
        assert self.went_out == self.delivered

    def topic_page_arrives(self, read: PageRead, messages: list[StoredMessage], missing: Runs) -> None:
        """Bodies that are to be delivered."""
        raise AssertionError("somebody reads a topic")

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
            self.tick()
            assert sorted(self.went_out) == sorted(self.delivered)
        else:
            raise AssertionError("the ticker spins")

    @precondition(has_queues)
    @rule(number=which, delay_ms=st.sampled_from([20, 1000]), longer_ms=st.sampled_from([0, 0, 1, 50, 99]))
    def wait_as_long_as_a_delay(self, number: int, delay_ms: int, longer_ms: int) -> None:
        # Nothing else that the receive could get at once.
        self.clear(self.pick(number))
        self.send(number, [(1, 0, delay_ms)], "one", 0, 0)
        self.receive(number, 1, delay_ms + longer_ms, 1000)
        self.time_passes(delay_ms, 1)

    # ------------------------------------------------------------------ crashes

    def broker_from(self, parts: list[AnyPart], records: list[tuple[int, AnyRecord]]) -> Broker:
        broker = Broker(KEY, self.limits, calendar=every)
        above = 0
        for part in parts:
            # As read from a file: restoring must not change the part.
            broker.load(msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=AnyPart))
            if isinstance(part, CheckpointHeader):
                above = part.lsn
        for lsn, record in records:
            if lsn > above:
                broker.replay(record, lsn)
        return broker

    def check_same(self, recovered: Broker) -> None:
        """All facts of the live broker, and no further facts."""
        for broker in (self.broker, recovered):
            # The expiry of sessions has no record: a tick expires sessions, in due time.
            while broker.facts.promises.sessions.expire(self.now_ms, 100):
                pass
        assert self.lasting(recovered) == self.lasting(self.broker)
        self.check_totals(recovered)
        self.callers.check_same(self.broker, recovered)
        for queue in recovered.queues.values():
            check_lease_buckets(queue)
            same = self.broker.queues[queue.queue_id].index
            for position in queue.index.live:
                assert abs(queue.index.steps.sent_at(position) - same.steps.sent_at(position)) < STEP_GRAIN_MS

    def lasting(self, broker: Broker) -> dict[str, Any]:
        """The facts of a broker without facts that retention or the rewind window has ended: ticks forget these facts
        in due time, without a record.
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
        """Activations without entries from before the rule of dead letters by age, or older than 12 hours."""
        since_ms = max(queue.by_age_since_ms, self.now_ms - 43_200_000)
        # Entries of messages that are gone have no meaning.
        young = {one for one, message in queue.messages.items() if message.activated_ms > since_ms}
        kept = [(ms, [one for one in some if one in young]) for ms, some in found]
        return [(ms, some) for ms, some in kept if some]

    def check_numbers(self, broker: Broker, records: list[tuple[int, AnyRecord]]) -> None:
        """The next numbers were not used in these records."""
        numbers = broker.facts.numbers
        for _, record in records:
            match record:
                case MessagesSent():
                    # A committed message keeps the id of its half message.
                    assert record.first_message_id + len(record.sizes) <= numbers.next_message_id
                case MessagesReceived():
                    assert record.first_lease + sum(record.positions[1::2]) <= numbers.next_lease
                case MessagesPublished():
                    assert message_ids_of(record)[-1] < numbers.next_message_id
                    assert record.first_copy_id + count_copies(record) <= numbers.next_message_id
                case QueueCreated():
                    assert record.queue_id < numbers.next_queue_id
                case TopicCreated():
                    assert record.topic_id < numbers.next_queue_id
                case Subscribed():
                    assert record.subscription_id < numbers.next_queue_id
                case ScheduleSet():
                    assert record.schedule_id < numbers.next_queue_id
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
        """A crash after any record leaves a broker that works."""
        rows = cut % (self.log.last_lsn + 1)
        prefix = [(lsn, record) for lsn, record in self.log.records() if lsn <= rows]
        broker = self.broker_from([], prefix)
        assert wanted_of(broker) == self.rows[rows]
        broker.recovered()
        check_broker(broker)
        self.check_numbers(broker, prefix)

    def crash_at_the_end(self) -> None:
        recovered = self.broker_from([], self.log.records())
        self.check_same(recovered)
        recovered.recovered()
        check_broker(recovered)
        self.check_numbers(recovered, self.log.records())

    def restart(self, from_checkpoint: bool, lost: bool) -> None:
        """Continue with the recovered broker in place of the crashed broker."""
        parts = self.last_checkpoint if from_checkpoint else None
        recovered = self.broker_from(parts or [], self.log.records())
        self.check_same(recovered)
        reserved = recovered.recovered(lost=lost)
        assert [type(record) for record in reserved] == ([NumbersReserved, TotalsReset] if lost else [])
        self.check_numbers(recovered, self.log.records())
        self.broker = recovered
        self.callers.give_clients(recovered)
        if reserved:
            self.log.append(reserved)
            self.note_row()
            self.forget_totals()
        for queue in self.queues:
            queue.restart()
            queue.use(self.now_ms)
        self.is_started_anew = True
        self.peeks.clear()
        self.rewinds.clear()
        self.decisions.clear()
        self.reads.clear()
        self.read_ids.clear()
        self.parts = None

    @rule(offset_ms=st.sampled_from([0, 3_600_000, -3_600_000]))
    def set_clock_offset(self, offset_ms: int) -> None:
        """The wall clock jumped: a fact without an effect on messages."""
        self.done(self.broker.set_clock_offset(offset_ms, self.now_ms))
        assert self.broker.facts.clock_offset_ms == offset_ms

    @rule(accounts=st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
    def use_keys(self, accounts: list[str]) -> None:
        """Operations of keys leave entries in the audit trail, which is bounded."""
        for account in accounts:
            action = AuditAction(account, account, "key", "10.0.0.1:5", "clear_queue", "orders", "")
            record = self.broker.audit_record(action, self.now_ms)
            self.done(Outcome(None, [record]))
            self.trail.append((record.entry.entry_id, account))
            if len(self.trail) > self.limits.max_audit_entries:
                holders = Counter(holder for _, holder in self.trail)
                most = max(holders.values())
                self.trail.remove(next(entry for entry in self.trail if holders[entry[1]] == most))
        trail = self.broker.facts.audit_trail
        trail.check_invariants()
        assert [(entry.entry_id, entry.account) for block in trail.blocks() for entry in block] == self.trail

    @rule(steps=st.integers(1, 4), unsealed=st.sampled_from([0, 0, 3, 1000]))
    def checkpoint(self, steps: int, unsealed: int = 0) -> None:
        """Begin a checkpoint, or continue the checkpoint in progress; the newest rows may be sealed."""
        if self.parts is None:
            self.taken = []
            self.sealed_upto = max(self.sealed_upto, self.log.last_lsn - unsealed)
            self.parts = self.broker.checkpoint(lambda: self.log.last_lsn, self.now_ms, self.sealed_upto)
        for _ in range(steps):
            part = next(self.parts, None)
            if part is None:
                self.last_checkpoint = self.taken
                self.parts = None
                self.callers.check_checkpoint(self.taken, self.log.records(), self.sealed_upto)
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
        check_broker(broker)
        self.check_numbers(broker, prefix)
        whole = self.broker_from([], prefix)
        for one in (whole, broker):
            while one.facts.promises.sessions.expire(self.now_ms, 100):
                pass
        assert self.lasting(broker)["queues"] == self.lasting(whole)["queues"]
