"""A source of schedules that are messages of the broker."""

from taskiq import ScheduledTask, ScheduleSource
from taskiq.kicker import AsyncKicker

from cmqd_taskiq.broker import CmqBroker, send_time
from cmqd_taskiq.sending import in_utc


class CmqScheduleSource(ScheduleSource):
    """Sends a task that is scheduled for a time at once, as a message that becomes active at that time.

    No scheduler process is needed for such tasks: the message waits in the broker, on disk::

        source = CmqScheduleSource(broker)
        await charge.schedule_by_time(source, datetime(2027, 1, 1, tzinfo=UTC), 7)

    The time can be as far ahead as the server allows a delay (an hour, unless its operator allows more, up to the
    retention of the queue). Tasks by ``cron`` or ``interval`` need a scheduler process and a source of taskiq like
    ``LabelScheduleSource``; the scheduler can send them through :class:`CmqBroker`.

    ``SmartRetryMiddleware(schedule_source=...)`` takes this source too.
    """

    def __init__(self, broker: CmqBroker) -> None:
        """Make a source for tasks of a broker."""
        self._broker = broker

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return none: the tasks of this source are sent already, and a scheduler has no work left."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Send a task for a time. A time without a zone is UTC; at a time that has passed the task runs at once.

        Raises:
            NotImplementedError: the schedule is a ``cron`` or ``interval``.
            SendTaskError: the task was not sent; the cause tells why.
        """
        if schedule.time is None:
            raise NotImplementedError(
                "this source takes schedules for a time; use another source for cron and interval"
            )
        kicker = (
            AsyncKicker[..., object](schedule.task_name, self._broker, schedule.labels)
            .with_labels(schedule_id=schedule.schedule_id)
            .with_task_id(schedule.task_id)
        )
        # Not a label: the task sends its labels again when it is retried, and a retry has a time of its own.
        token = send_time.set(in_utc(schedule.time))
        try:
            await kicker.kiq(*schedule.args, **schedule.kwargs)
        finally:
            send_time.reset(token)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Refuse: a task that is sent cannot be taken back.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"the task of schedule {schedule_id!r} is sent already, and cannot be taken back")
