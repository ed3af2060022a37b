"""Schedules: create, ensure, list, change and delete them, and send their messages when they come due.

A firing is a send like any other: the message obeys the limits of its queue and the queue's delay. The record of the
firing is in the row of the message, with the next time. A crash therefore leaves both or neither, and no message is
sent twice.

The calendar is asked for the next time after now, not after the planned time. A schedule therefore fires once for all
times that passed while the broker was down, and not once for each.

If the queue is missing or full, or refuses the message, the firing is a miss: it is recorded with the reason, and the
next time stands. Waiting for the queue would send the message at a time that the owner did not ask for. Firings are put
off only while the broker has no space for bodies, or its disk is far behind: these reasons are the broker's own and
pass.
"""

from collections.abc import Mapping
from zlib import crc32

import msgspec

from cmqd.core.attributes import check_each
from cmqd.core.calendar import Calendar
from cmqd.core.domain_errors import (
    DomainError,
    InvalidArgument,
    ScheduleDiffers,
    ScheduleExists,
    TooManySchedules,
    shown,
)
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.name_order import Selection, by_name, matching
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.schedules import Schedule, schedule_bytes
from cmqd.core.limits import check_range, checked_sizes
from cmqd.core.names import check_name, check_queue_name, folded
from cmqd.core.operations.sending.send import Send
from cmqd.core.outcome import Effects, MissedFiring, Outcome
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import AnyRecord, ScheduleDeleted, ScheduleFired, SchedulePlanned, ScheduleSet
from cmqd_types.attributes import SCHEDULE, ScheduleAttributes
from cmqd_types.messages import Headers
from cmqd_types.schedules import ScheduleInfo, ScheduleSummary

FIRED_AT_ONCE = 8
"""Firings of a tick: well under a millisecond with small bodies and usual expressions."""
FIRED_BYTES = 256 * 1024
"""A tick begins no further firing beyond this many bytes of bodies: they are written to one row."""
PUT_OFF_MS = 1000
"""Time after which a firing that was put off is tried again."""


class Firing(msgspec.Struct, frozen=True, gc=False):
    """The send of a schedule's message; has the form of a ``SendRequest``."""

    bodies: list[bytes]
    headers: list[Headers | None] | None
    session: int = 0
    sequence: int = 0
    dedup_ids: list[str | None] | None = None
    delay_ms: int | list[int] | None = None
    at_ms: int | None = None
    after: str | None = None
    all_or_none: bool = False


class Schedules:
    """Administers schedules, and fires them."""

    def __init__(self, facts: Facts, runtime: Runtime, send: Send, calendar: Calendar) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._memory = facts.promises.memory
        self._queues = facts.queues
        self._schedules = facts.schedules
        self._plan = runtime.agenda.schedules
        self._gates = runtime.gates
        self._send = send
        self._calendar = calendar

    # ------------------------------------------------------------------ administration

    def create(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, object],
        body: bytes,
        headers: Headers | None,
        now_ms: int,
    ) -> Outcome[ScheduleInfo]:
        """Make a schedule.

        Raises:
            InvalidArgument: the name, an attribute or the message is not legal; ``queue`` or ``cron`` is missing; the
                queue is transactional.
            ScheduleExists: the name is taken, in this or in another case.
            QueueNotFound: the queue does not exist.
            MessageTooLarge: the queue takes no body of this size.
            TooManySchedules: the account is at its limit of schedules, or of memory.
        """
        check_name("schedule", name)
        chosen = _checked_attributes(ScheduleAttributes(), attributes)
        for field in ("queue", "cron"):
            if not getattr(chosen, field):
                raise InvalidArgument(f"a schedule needs a {field}", field=field, value="", limit=f"a {field}")
        taken = self._schedules.folded.get(account, {}).get(folded(name))
        if taken is not None:
            raise ScheduleExists(name, taken.name)
        self._check_message(account, chosen.queue, body, headers)
        # Asked for a paused schedule too: a wrong expression is refused now, and not at the resume.
        first_ms = self._next_ms(chosen.cron, chosen.zone, now_ms)
        limit = self._limits.max_schedules_per_account
        if len(self._schedules.names.get(account, ())) >= limit:
            raise TooManySchedules(account, f"{limit} schedules", limit)
        self._check_room(account)
        records: list[AnyRecord] = []
        record = ScheduleSet(
            schedule_id=self._numbers.take_queue_id(records),
            account=account,
            name=name,
            queue=chosen.queue,
            cron=chosen.cron,
            zone=chosen.zone,
            paused=chosen.paused,
            body=body,
            headers=headers or None,
            set_ms=now_ms,
            next_ms=0 if chosen.paused else first_ms,
        )
        records.append(record)
        return Outcome(self._info(self._set(record), created=True), records)

    def ensure(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, object],
        body: bytes,
        headers: Headers | None,
        now_ms: int,
    ) -> Outcome[ScheduleInfo]:
        """Make a schedule, or confirm that the existing schedule has this message and the attributes named.

        Raises:
            ScheduleDiffers: an attribute or the message differs; the difference is in the details.
            InvalidArgument, ScheduleExists, QueueNotFound, MessageTooLarge, TooManySchedules: as :meth:`create`.
        """
        check_name("schedule", name)
        schedule = self._schedules.names.get(account, {}).get(name)
        if schedule is None:
            return self.create(account, name, attributes, body, headers, now_ms)
        wanted = msgspec.structs.asdict(_checked_attributes(ScheduleAttributes(), attributes))
        is_now = msgspec.structs.asdict(_attributes_of(schedule))
        difference: dict[str, dict[str, object]] = {
            field: {"is": is_now[field], "wanted": wanted[field]}
            for field in attributes
            if is_now[field] != wanted[field]
        }
        definition = schedule.definition
        if definition.body != body:
            difference["body"] = {"is": _shown_body(definition.body), "wanted": _shown_body(body)}
        if (definition.headers or None) != (headers or None):
            difference["headers"] = {"is": shown(definition.headers or {}), "wanted": shown(headers or {})}
        if difference:
            raise ScheduleDiffers(name, difference)
        return Outcome(self._info(schedule))

    def change(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, object],
        body: bytes | None,
        headers: Headers | None,
        now_ms: int,
    ) -> Outcome[ScheduleInfo]:
        """Change the attributes named, and the body or headers given (not None; empty headers = no headers).

        The next time stays unless ``cron``, ``zone`` or ``paused`` changes; then the next time is the first from now
        on. Times that passed while the schedule was paused are left out.

        Raises:
            ScheduleNotFound, InvalidArgument, QueueNotFound, MessageTooLarge, TooManySchedules: the schedule is
                unchanged.
        """
        schedule = self._schedules.find(account, name)
        definition = schedule.definition
        before = _attributes_of(schedule)
        chosen = _checked_attributes(before, attributes)
        new_body = definition.body if body is None else body
        new_headers = definition.headers if headers is None else headers or None
        if chosen.queue != before.queue or body is not None or headers is not None:
            # Only then: a schedule can be paused and resumed while its queue is missing.
            self._check_message(account, chosen.queue, new_body, new_headers)
        next_ms = schedule.next_ms
        if (chosen.cron, chosen.zone, chosen.paused) != (before.cron, before.zone, before.paused):
            first_ms = self._next_ms(chosen.cron, chosen.zone, now_ms)
            next_ms = 0 if chosen.paused else first_ms
        elif (chosen.queue, new_body, new_headers) == (before.queue, definition.body, definition.headers):
            return Outcome(self._info(schedule))
        if schedule_bytes(new_body, new_headers) > schedule.size_bytes:
            self._check_room(account)
        record = ScheduleSet(
            schedule_id=schedule.schedule_id,
            account=account,
            name=name,
            queue=chosen.queue,
            cron=chosen.cron,
            zone=chosen.zone,
            paused=chosen.paused,
            body=new_body,
            headers=new_headers,
            set_ms=now_ms,
            next_ms=next_ms,
        )
        return Outcome(self._info(self._set(record)), [record])

    def delete(self, account: str, name: str) -> Outcome[None]:
        """Remove a schedule; messages that it sent stay. Raises ScheduleNotFound."""
        schedule = self._schedules.find(account, name)
        record = ScheduleDeleted(schedule.schedule_id)
        self._schedules.apply(record)
        self._plan.discard(schedule.schedule_id)
        return Outcome(None, [record])

    def list_schedules(
        self, account: str, search: str, offset: int, limit: int, *, selects: Selection | None = None
    ) -> tuple[int, list[ScheduleSummary]]:
        """Return the number of schedules with ``search`` in their name, and a page of them in order of name.
        ``selects`` selects the names that the caller may see.
        """
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, self._limits.max_list)
        schedules = matching(by_name(self._schedules.names.get(account, {}).values()), search, selects)
        return len(schedules), [_summary(schedule) for schedule in schedules[offset : offset + limit]]

    def info(self, account: str, name: str) -> ScheduleInfo:
        """Return the attributes, message, counts and facts of a schedule. Raises ScheduleNotFound."""
        return self._info(self._schedules.find(account, name))

    def _check_message(self, account: str, queue_name: str, body: bytes, headers: Headers | None) -> None:
        """Check that the queue would take the message now, room aside."""
        queue = self._queues.find(account, queue_name)
        _check_takes_schedules(queue)
        max_message_bytes = queue.index.attributes.max_message_bytes
        checked_sizes(queue.name, [body], [headers], max_message_bytes, self._limits)

    def _check_room(self, account: str) -> None:
        memory = self._memory
        if not memory.has_room(account):
            share = f"sessions, dedup ids and schedules of {memory.share_bytes} bytes or more"
            raise TooManySchedules(account, share, memory.share_bytes)

    def _set(self, record: ScheduleSet) -> Schedule:
        schedule = self._schedules.apply_set(record)
        self._plan_next(schedule)
        return schedule

    def _plan_next(self, schedule: Schedule) -> None:
        # Discarded first: a plan only moves to an earlier time.
        self._plan.discard(schedule.schedule_id)
        if schedule.next_ms:
            self._plan.set(schedule.schedule_id, schedule.next_ms)

    def _next_ms(self, cron: str, zone: str, after_ms: int) -> int:
        """Return the next time, 0 if no time is left. Raises InvalidArgument."""
        next_ms = self._calendar(cron, zone, after_ms)
        return 0 if next_ms is None else max(next_ms, after_ms + 1)

    def _info(self, schedule: Schedule, created: bool = False) -> ScheduleInfo:
        definition = schedule.definition
        return ScheduleInfo(
            schedule=schedule.name,
            schedule_id=schedule.schedule_id,
            attributes=msgspec.structs.asdict(_attributes_of(schedule)),
            body=definition.body,
            headers=definition.headers,
            counts={"fired": schedule.fired, "missed": schedule.missed},
            facts={
                "created_ms": schedule.created_ms,
                "modified_ms": schedule.modified_ms,
                "next_ms": schedule.next_ms or None,
                "last_fired_ms": schedule.last_fired_ms or None,
                "last_message_id": schedule.last_message_id or None,
                "last_error": schedule.last_error or None,
                "last_error_ms": schedule.last_error_ms or None,
            },
            created=created,
        )

    # ------------------------------------------------------------------ time

    def tick(self, effects: Effects, now_ms: int) -> list[MissedFiring]:
        """Fire schedules that are due, the longest due first; return the misses."""
        plan = self._plan
        missed: list[MissedFiring] = []
        sent_bytes = 0
        for _ in range(FIRED_AT_ONCE):
            if sent_bytes > FIRED_BYTES or not plan.is_due(now_ms):
                break
            schedule_id = plan.take(now_ms)
            schedule = None if schedule_id is None else self._schedules.by_id.get(schedule_id)
            if schedule is None:
                continue
            if self._gates.moves_held_up or self._gates.is_log_behind:
                # The fact stays: a start meanwhile finds the schedule due.
                plan.set(schedule.schedule_id, now_ms + PUT_OFF_MS)
            elif not schedule.next_ms:
                self._find_next_again(schedule, effects, now_ms)
            else:
                sent_bytes += len(schedule.definition.body)
                fired = self._fire(schedule, effects, now_ms)
                if not fired.message_id:
                    definition = schedule.definition
                    missed.append(MissedFiring(schedule.account, schedule.name, definition.queue, fired.error))
        return missed

    def _fire(self, schedule: Schedule, effects: Effects, now_ms: int) -> ScheduleFired:
        """Send the message of a schedule that is due, or record a miss; plan the next time."""
        definition, due_ms = schedule.definition, schedule.next_ms
        message_id, next_ms, error = 0, 0, ""
        try:
            next_ms = self._next_ms(definition.cron, definition.zone, now_ms)
        except InvalidArgument as refusal:
            # The machine no longer knows the zone. The message is sent all the same; the owner sees the reason, and a
            # change of the schedule or the next start looks for the zone again.
            error = refusal.text
        try:
            queue = self._queues.find(schedule.account, definition.queue)
            _check_takes_schedules(queue)
            headers: list[Headers | None] | None = None if definition.headers is None else [definition.headers]
            outcome = self._send.send_one(queue, Firing([definition.body], headers), now_ms)
        except DomainError as refusal:
            error = refusal.text
        else:
            message_id = outcome.reply[0]
            # The message before the firing, and both in the row of this tick.
            effects.add(outcome)
        record = ScheduleFired(schedule.schedule_id, due_ms, now_ms, next_ms, message_id, error)
        schedule.apply_fired(record)
        effects.records.append(record)
        self._plan_next(schedule)
        return record

    def _find_next_again(self, schedule: Schedule, effects: Effects, now_ms: int) -> None:
        """After a start: look for the next time of a schedule that had none, because its zone was unknown."""
        definition = schedule.definition
        try:
            next_ms = self._next_ms(definition.cron, definition.zone, now_ms)
        except InvalidArgument:
            return
        if next_ms:
            record = SchedulePlanned(schedule.schedule_id, now_ms, next_ms)
            self._schedules.apply(record)
            effects.records.append(record)
            self._plan_next(schedule)

    def step(self, now_ms: int) -> list[AnyRecord]:
        """Broker time was set to ``now_ms``: plan the schedules anew that have a next time too far ahead.

        After a step back by a year a schedule for every hour would otherwise wait for a year. A replay finds the result
        in these records.
        """
        records: list[AnyRecord] = []
        for schedule in self._schedules.by_id.values():
            if not schedule.next_ms:
                continue
            definition = schedule.definition
            try:
                next_ms = self._next_ms(definition.cron, definition.zone, now_ms)
            except InvalidArgument:
                continue
            if 0 < next_ms < schedule.next_ms:
                record = SchedulePlanned(schedule.schedule_id, now_ms, next_ms)
                self._schedules.apply(record)
                self._plan_next(schedule)
                records.append(record)
        return records


def _attributes_of(schedule: Schedule) -> ScheduleAttributes:
    definition = schedule.definition
    return ScheduleAttributes(definition.queue, definition.cron, definition.zone, definition.paused)


def _checked_attributes(base: ScheduleAttributes, changes: Mapping[str, object]) -> ScheduleAttributes:
    """Return ``base`` with ``changes``. Whether queue, expression and zone exist is not checked here.

    Raises:
        InvalidArgument: an attribute is unknown, or of the wrong type.
    """
    check_each("schedule", SCHEDULE, base, changes)
    chosen = {name: str(value) for name, value in changes.items() if name != "paused"}
    if "queue" in chosen:
        check_queue_name(chosen["queue"])
    if "cron" in chosen:
        # An expression with other spaces is the same expression, for a comparison and for tables.
        chosen["cron"] = " ".join(chosen["cron"].split())
    return msgspec.structs.replace(base, **{**changes, **chosen})


def _check_takes_schedules(queue: Queue) -> None:
    """Check that a queue is not transactional. Its messages depend on transactions, and a schedule has none.

    Raises:
        InvalidArgument: the queue is transactional.
    """
    if queue.index.attributes.transactional:
        raise InvalidArgument(
            f"queue {queue.name!r} is transactional, and a schedule cannot send to a transactional queue",
            field="queue",
            value=queue.name,
            limit="a queue that is not transactional",
        )


def _shown_body(body: bytes) -> str:
    """Return the form in which a difference shows a body."""
    return f"{len(body)} bytes (CRC-32 {crc32(body):08x})"


def _summary(schedule: Schedule) -> ScheduleSummary:
    # A list has a thousand of these: few lines, and no property.
    definition = schedule.definition
    plan = definition.name, definition.queue, definition.cron, definition.zone, definition.paused
    return ScheduleSummary(*plan, schedule.next_ms or None, schedule.missed, schedule.last_error or None)
