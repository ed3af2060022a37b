"""The rules of schedules: a schedule fires once at the first tick after its time, and sends an ordinary message."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import ACCOUNTS, MARKS, which
from model.machine import BrokerMachine

from cmqd.core.domain_errors import QueueNotFound, ScheduleExists, TooManySchedules
from cmqd_segment.records import (
    AnyRecord,
    MessagesSent,
    ScheduleDeleted,
    ScheduleFired,
    SchedulePlanned,
    ScheduleSet,
)
from cmqd_types.messages import Headers
from support.core.naive_broker import NaiveQueue, NaiveRow, State

periods = st.sampled_from([7, 500, 1000, 30_000, 60_000, 3_600_000])
MAX_SCHEDULES = 3


@dataclass
class NaiveSchedule:
    schedule_id: int
    account: str
    name: str
    queue: str
    period_ms: int
    body: bytes
    headers: Headers | None
    paused: bool = False
    next_ms: int = 0
    """0 = none."""
    fired: int = 0
    missed: int = 0

    def plan(self, now_ms: int) -> None:
        """Set the first time from now on."""
        self.next_ms = 0 if self.paused else (now_ms // self.period_ms + 1) * self.period_ms


@dataclass
class Fired:
    """A message that a schedule sent, until the record of the firing names the schedule."""

    queue: NaiveQueue
    body: bytes
    headers: Headers | None


class ScheduleMachine(BrokerMachine):
    names: ClassVar[Sequence[str]] = ("orders", "mails", "Mails")
    first_queues: ClassVar[list[dict[str, Any]]] = [
        {"retention_ms": 3_600_000, "max_delayed": 3},
        {"retention_ms": 120_000, "auto_delete_after_ms": 60_000, "auto_delete_only_empty": False},
    ]
    more_limits: ClassVar[dict[str, Any]] = {"max_schedules_per_account": MAX_SCHEDULES}

    schedules: list[NaiveSchedule]
    sent: dict[int, Fired]
    """By message id, within a row."""
    schedule_ids: set[int]
    """Of all schedules there ever were."""

    def begin(self) -> None:
        super().begin()
        self.schedules = []
        self.sent = {}
        self.schedule_ids = set()

    @rule(
        what=st.sampled_from(["create", "create", "create", "change", "pause", "pause", "delete"]),
        number=which,
        period_ms=periods,
        size=st.sampled_from([1, 30, 300]),
        mark=st.integers(0, 3),
    )
    def administer_schedules(self, what: str, number: int, period_ms: int, size: int, mark: int) -> None:
        body, headers = b"%d" % (number % 10) * size, MARKS[mark]
        if what == "create":
            self.create_schedule(number, period_ms, body, headers)
        elif self.schedules:
            schedule = self.schedules[number % len(self.schedules)]
            if what == "change":
                self.change_schedule(schedule, period_ms, body, headers)
            elif what == "pause":
                self.set_paused(schedule, not schedule.paused)
            else:
                self.done(self.broker.delete_schedule(schedule.account, schedule.name))
                self.schedules.remove(schedule)

    def create_schedule(self, number: int, period_ms: int, body: bytes, headers: Headers | None) -> None:
        name = ("one", "One", "two", "three", "four")[number % 5]
        account, queue = ACCOUNTS[number // 5 % 2], self.names[number // 10 % len(self.names)]
        if self.queues and number // 30 % 4:
            picked = self.queues[number // 120 % len(self.queues)]
            account, queue = picked.account, picked.name
        own = [schedule for schedule in self.schedules if schedule.account == account]
        attributes = {"queue": queue, "cron": str(period_ms)}
        try:
            outcome = self.broker.create_schedule(account, name, attributes, body, headers, self.now_ms)
        except ScheduleExists:
            assert any(schedule.name.lower() == name.lower() for schedule in own)
            return
        except QueueNotFound:
            assert self.named(account, queue) is None
            return
        except TooManySchedules:
            assert len(own) == MAX_SCHEDULES
            return
        info = outcome.reply
        assert info.schedule_id not in self.schedule_ids, "an id was used twice"
        assert not any(one.queue_id == info.schedule_id for one in self.queues + self.gone_queues)
        self.schedule_ids.add(info.schedule_id)
        schedule = NaiveSchedule(info.schedule_id, account, name, queue, period_ms, body, headers or None)
        schedule.plan(self.now_ms)
        self.schedules.append(schedule)
        self.done(outcome)

    def change_schedule(self, schedule: NaiveSchedule, period_ms: int, body: bytes, headers: Headers | None) -> None:
        is_there = self.named(schedule.account, schedule.queue) is not None
        try:
            outcome = self.broker.set_schedule(
                *(schedule.account, schedule.name, {"cron": str(period_ms)}, body, headers, self.now_ms)
            )
        except QueueNotFound:
            assert not is_there
            return
        assert is_there
        if period_ms != schedule.period_ms:
            schedule.period_ms = period_ms
            schedule.plan(self.now_ms)
        schedule.body = body
        schedule.headers = schedule.headers if headers is None else headers or None
        self.done(outcome)

    def set_paused(self, schedule: NaiveSchedule, paused: bool) -> None:
        outcome = self.broker.set_schedule(
            *(schedule.account, schedule.name, {"paused": paused}, None, None, self.now_ms)
        )
        schedule.paused = paused
        schedule.plan(self.now_ms)
        self.done(outcome)

    @precondition(lambda self: bool(self.schedules))
    @rule(number=which, prepare=st.sampled_from(["", "", "", "queue gone", "queue full", "checkpoint"]))
    def time_comes(self, number: int, prepare: str) -> None:
        """A schedule fires exactly at its time: not a millisecond before, and at the first tick after."""
        schedule = self.schedules[number % len(self.schedules)]
        queue = self.named(schedule.account, schedule.queue)
        if queue is not None and prepare == "queue gone":
            self.delete_queue(queue)
        elif queue is not None and prepare == "queue full":
            self.set_backlog(queue, len(queue.messages))
        if prepare == "checkpoint":
            self.checkpoint(100)
        if schedule.next_ms > self.now_ms:
            self.time_passes(schedule.next_ms - self.now_ms - 1, None)
            fired = schedule.fired + schedule.missed
            self.time_passes(1, None)
            assert schedule.fired + schedule.missed == fired + 1, "a time passed, and the schedule did not fire"

    # ------------------------------------------------------------------ records

    def judge_copies(self, record: MessagesSent, row: NaiveRow) -> None:
        """A message without a client comes from a schedule; the record of the firing follows in the row."""
        queue = self.by_id(record.queue_id)
        assert record.first_position == queue.next_position
        assert record.origins is None
        assert not record.half
        (size,) = record.sizes
        body = row.bodies[row.next_body]
        row.next_body += 1
        assert len(body) == size
        message_id = record.first_message_id
        assert message_id not in self.message_ids, "a message id was used twice"
        self.message_ids.add(message_id)
        headers = (record.headers[0] if record.headers else None) or None
        assert len(queue.messages) < queue.attributes["max_backlog"], "a message in a full queue"
        queue.use(self.now_ms)
        queue.send([message_id], [body], [headers], [queue.attributes["delay_ms"]], self.now_ms)
        message = queue.by_id[message_id]
        if message.visible_ms:
            # The number of free places among the delayed messages depends on the ticks so far.
            overflow = self.broker.queues[queue.queue_id].index.delays.overflow
            message.state = State.OVERFLOW if message.position in overflow else State.DELAYED
        self.sent[message_id] = Fired(queue, body, headers)

    def judge_more(self, record: AnyRecord) -> None:
        match record:
            case ScheduleFired():
                self.judge_fired(record)
            case ScheduleSet() | ScheduleDeleted():
                pass
            case SchedulePlanned():
                raise AssertionError("no clock stepped back, and no zone was forgotten")
            case _:
                super().judge_more(record)

    def judge_fired(self, record: ScheduleFired) -> None:
        (schedule,) = (one for one in self.schedules if one.schedule_id == record.schedule_id)
        assert 0 < schedule.next_ms <= self.now_ms, "fired too early"
        assert (record.due_ms, record.fired_ms) == (schedule.next_ms, self.now_ms)
        schedule.plan(self.now_ms)
        assert record.next_ms == schedule.next_ms
        queue = self.named(schedule.account, schedule.queue)
        if record.message_id:
            fired = self.sent.pop(record.message_id)
            assert fired.queue is queue
            assert (fired.body, fired.headers) == (schedule.body, schedule.headers)
            assert not record.error
            schedule.fired += 1
        else:
            assert record.error
            assert queue is None or len(queue.messages) >= queue.attributes["max_backlog"], "missed without a reason"
            schedule.missed += 1

    # ------------------------------------------------------------------ after every step

    def always(self) -> None:
        super().always()
        assert not self.sent, "a message without the record of its firing in its row"
        real = self.broker.schedules
        assert sorted(real) == sorted(schedule.schedule_id for schedule in self.schedules)
        for schedule in self.schedules:
            info = self.broker.schedule_info(schedule.account, schedule.name)
            assert info.counts == {"fired": schedule.fired, "missed": schedule.missed}
            assert info.facts["next_ms"] == (schedule.next_ms or None)
            assert (info.body, info.headers) == (schedule.body, schedule.headers)
            assert not self.is_quiet() or not schedule.next_ms or schedule.next_ms > self.now_ms
