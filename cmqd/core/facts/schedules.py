"""Schedules: messages that are sent again and again, at the times of a cron expression.

A schedule names its queue. The queue may be deleted, and a later queue may take the name; the schedule stays. The next
time is a fact, given by the records: no rule here computes a time, so a replay on a machine with other rules of time
zones comes to the same state.
"""

from cmqd.core.domain_errors import ScheduleNotFound
from cmqd.core.facts.promised_memory import PromisedMemory
from cmqd.core.limits import headers_bytes
from cmqd.core.names import folded
from cmqd_segment.checkpoint import ScheduleSlice
from cmqd_segment.records import ScheduleDeleted, ScheduleFired, SchedulePlanned, ScheduleSet
from cmqd_types.messages import Headers

OVERHEAD_BYTES = 1500
"""Memory of a schedule beside its body and headers: the object, its texts, entries of tables and of the agenda."""


def schedule_bytes(body: bytes, headers: Headers | None) -> int:
    """Return the memory of a schedule, about."""
    return OVERHEAD_BYTES + len(body) + (headers_bytes(headers) if headers else 0)


class Schedule:
    """The facts of a schedule."""

    __slots__ = (
        "_definition",
        "created_ms",
        "fired",
        "last_error",
        "last_error_ms",
        "last_fired_ms",
        "last_message_id",
        "missed",
        "modified_ms",
        "next_ms",
        "slice_lsn",
    )

    def __init__(self, definition: ScheduleSet) -> None:
        self._definition = definition
        self.created_ms = definition.set_ms
        self.modified_ms = definition.set_ms
        self.next_ms = definition.next_ms
        """0 = none: the schedule is paused, or no time is left, or its time zone is unknown to this machine."""
        self.fired = 0
        self.missed = 0
        self.last_fired_ms = 0
        self.last_message_id = 0
        self.last_error = ""
        self.last_error_ms = 0
        self.slice_lsn = 0
        """LSN of its checkpoint slice: recovery skips older records."""

    @property
    def definition(self) -> ScheduleSet:
        """The record that made the schedule, or changed it last; its ``set_ms`` and ``next_ms`` are of that time."""
        return self._definition

    @property
    def schedule_id(self) -> int:
        """The id, never used twice."""
        return self._definition.schedule_id

    @property
    def account(self) -> str:
        """The owner."""
        return self._definition.account

    @property
    def name(self) -> str:
        """The name, unique in the account."""
        return self._definition.name

    @property
    def size_bytes(self) -> int:
        """Memory of the schedule, about."""
        return schedule_bytes(self._definition.body, self._definition.headers)

    def apply_set(self, record: ScheduleSet) -> None:
        """Give the schedule other attributes."""
        self._definition = record
        self.modified_ms = record.set_ms
        self.next_ms = record.next_ms

    def apply_fired(self, record: ScheduleFired) -> None:
        """Count a message that was sent, or a miss."""
        self.next_ms = record.next_ms
        if record.message_id:
            self.fired += 1
            self.last_fired_ms = record.fired_ms
            self.last_message_id = record.message_id
        else:
            self.missed += 1
        if record.error:
            self.last_error = record.error
            self.last_error_ms = record.fired_ms

    def __repr__(self) -> str:
        definition = self._definition
        return f"<Schedule {self.account}/{self.name} {definition.cron!r} {definition.zone} next={self.next_ms}>"


class ScheduleTable:
    """The schedules of all accounts."""

    def __init__(self, memory: PromisedMemory) -> None:
        self._memory = memory
        self.by_id: dict[int, Schedule] = {}
        self.names: dict[str, dict[str, Schedule]] = {}
        """By account and name."""
        self.folded: dict[str, dict[str, Schedule]] = {}
        """By account and case-folded name."""

    def find(self, account: str, name: str) -> Schedule:
        """Return the schedule with this name.

        Raises:
            ScheduleNotFound: there is none.
        """
        try:
            return self.names[account][name]
        except KeyError:
            raise ScheduleNotFound(name) from None

    def apply(self, record: ScheduleSet | ScheduleDeleted | ScheduleFired | SchedulePlanned) -> None:
        """Apply a record; the schedule must exist, unless the record makes one."""
        match record:
            case ScheduleSet():
                self.apply_set(record)
            case ScheduleDeleted():
                self._apply_deleted(record)
            case ScheduleFired():
                self.by_id[record.schedule_id].apply_fired(record)
            case SchedulePlanned():
                self.by_id[record.schedule_id].next_ms = record.next_ms

    def apply_set(self, record: ScheduleSet) -> Schedule:
        """Add a schedule, or change a schedule."""
        schedule = self.by_id.get(record.schedule_id)
        if schedule is None:
            schedule = Schedule(record)
            self._add(schedule)
        else:
            before_bytes = schedule.size_bytes
            schedule.apply_set(record)
            self._memory.change(schedule.account, schedule.size_bytes - before_bytes)
        return schedule

    def _add(self, schedule: Schedule) -> None:
        self.by_id[schedule.schedule_id] = schedule
        self.names.setdefault(schedule.account, {})[schedule.name] = schedule
        self.folded.setdefault(schedule.account, {})[folded(schedule.name)] = schedule
        self._memory.change(schedule.account, schedule.size_bytes)

    def _apply_deleted(self, record: ScheduleDeleted) -> None:
        schedule = self.by_id.pop(record.schedule_id)
        del self.names[schedule.account][schedule.name]
        del self.folded[schedule.account][folded(schedule.name)]
        self._memory.change(schedule.account, -schedule.size_bytes)

    def slice(self, schedule: Schedule, lsn: int) -> ScheduleSlice:
        """Return a schedule as a part of a checkpoint."""
        definition = schedule.definition
        return ScheduleSlice(
            lsn=lsn,
            schedule_id=definition.schedule_id,
            account=definition.account,
            name=definition.name,
            queue=definition.queue,
            cron=definition.cron,
            zone=definition.zone,
            paused=definition.paused,
            body=definition.body,
            headers=definition.headers,
            created_ms=schedule.created_ms,
            modified_ms=schedule.modified_ms,
            next_ms=schedule.next_ms,
            fired=schedule.fired,
            missed=schedule.missed,
            last_fired_ms=schedule.last_fired_ms,
            last_message_id=schedule.last_message_id,
            last_error=schedule.last_error,
            last_error_ms=schedule.last_error_ms,
        )

    def load(self, part: ScheduleSlice) -> None:
        """Add a schedule of a checkpoint."""
        definition = ScheduleSet(
            schedule_id=part.schedule_id,
            account=part.account,
            name=part.name,
            queue=part.queue,
            cron=part.cron,
            zone=part.zone,
            paused=part.paused,
            body=part.body,
            headers=part.headers,
            set_ms=part.modified_ms,
            next_ms=part.next_ms,
        )
        schedule = Schedule(definition)
        schedule.created_ms = part.created_ms
        schedule.fired = part.fired
        schedule.missed = part.missed
        schedule.last_fired_ms = part.last_fired_ms
        schedule.last_message_id = part.last_message_id
        schedule.last_error = part.last_error
        schedule.last_error_ms = part.last_error_ms
        schedule.slice_lsn = part.lsn
        self._add(schedule)
