"""Schedules: messages that the server sends again and again, at the times of a cron expression::

    await client.schedules.ensure("daily-report", "reports", "0 9 * * mon-fri", b"go", zone="Europe/Berlin")

The server keeps the schedules, so no program has to run at the time. The message of a schedule is a message of its
queue like any other. The rules of :mod:`cmqd_client.queue` about durability, time limits and repeats apply here too.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Unpack

import msgspec

from cmqd_client.attributes import to_wire
from cmqd_client.declared_attributes import ScheduleOptions, ScheduleValues
from cmqd_client.links.channel import Channel
from cmqd_client.messages.message_ids import MessageId, printed_id
from cmqd_client.messages.outgoing import checked_body
from cmqd_client.queue import Queue
from cmqd_client.replies.conversions import converted
from cmqd_client.replies.infos import info_fields
from cmqd_client.results import Done
from cmqd_protocol import messages as wire
from cmqd_protocol import operations
from cmqd_types.attributes import SCHEDULE, SCHEDULE_OPTIONS


class ScheduleInfo(ScheduleValues, frozen=True, kw_only=True):
    """A schedule at the time of the request. Its queue may have been deleted since."""

    body: bytes
    headers: Mapping[str, str]

    next_time: datetime | None = None
    """Time of the next message; None = the schedule is paused, or has no time left (``last_error`` may say why)."""
    fired: int = 0
    """Messages sent since the schedule was created."""
    missed: int = 0
    """Times at which the queue could not take the message."""
    last_fired_time: datetime | None = None
    """Time of the last message; None = no message was sent yet."""
    last_message_id: MessageId | None = None
    last_error: str | None = None
    """Reason of the last miss; None = no time was missed."""
    last_error_time: datetime | None = None
    create_time: datetime | None = None
    modify_time: datetime | None = None
    """Time of the last change."""

    details: Mapping[str, Any]
    """The server's attributes, counts and facts under their names on the wire, including facts unknown to this
    version."""
    request_id: int


class ScheduleSummary(msgspec.Struct, frozen=True):
    """A schedule in a list."""

    name: str
    queue: str
    cron: str
    zone: str
    paused: bool
    next_time: datetime | None
    """Time of the next message; None = the schedule is paused, or has no time left."""
    missed: int
    """Times at which the queue could not take the message."""
    last_error: str | None
    """Reason of the last miss; None = no time was missed."""


class SchedulePage(msgspec.Struct, frozen=True):
    """A page of an account's schedules, by name."""

    schedules: list[ScheduleSummary]
    total: int
    """Schedules that match the search, listed here or not."""
    request_id: int

    def __iter__(self) -> Iterator[ScheduleSummary]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)


class Schedules:
    """The schedules of the account; get it as ``client.schedules``.

    All methods raise ``UnknownOperation`` if the server is too old for schedules.
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def create(
        self,
        name: str,
        queue: Queue[Any] | str,
        cron: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        paused: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Create a schedule: the server sends the message at each time of the expression, from now on.

        Not repeated after a lost reply, unlike :meth:`ensure`. After an outage of the server the message is sent once
        for all passed times. A time at which the queue is missing or full is missed: counted, and not sent later.

        Args:
            name: 1-64 ASCII letters, digits, ``-``, ``_``; not differing only in case from another schedule's.
            queue: an existing queue of the account that is not transactional.
            cron: minute, hour, day of the month, month, day of the week, as in crontab: ``*/15 * * * *``.
            body: 1 byte up to the queue's ``max_message_bytes``.
            headers: at most 32, 16 KiB in all.
            paused: True = no message is sent until :meth:`resume`.
            **options: see :class:`ScheduleOptions`. In a zone like ``Europe/Berlin``, a local time that does not exist
                when clocks change comes later by the change; a time that comes twice counts once.

        Raises:
            ScheduleExists: a schedule of this name exists; it was not changed.
            InvalidArgument: the expression, the zone or another value is wrong, or the queue is transactional.
            QueueNotFound, MessageTooLarge: the queue does not exist, or does not take the body.
            TooManySchedules: the account is at its limit of 1,000 schedules, or of memory.
            DiskNearlyFull, Busy: try again after ``retry_after``.
        """
        attributes = _attributes(queue, cron, options)
        if paused:
            attributes["paused"] = True
        reply = await self._channel.ask(
            operations.CREATE_SCHEDULE, name, attributes, checked_body(body), _given(headers)
        )
        return schedule_info(reply)

    async def ensure(
        self,
        name: str,
        queue: Queue[Any] | str,
        cron: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Create a schedule, or check that the existing schedule is the same. Repeated after a lost reply.

        A paused schedule stays paused. To change a schedule, use :meth:`set`.

        Raises:
            ScheduleDiffers: the schedule exists with other values; ``difference`` shows them. It was not changed.
            CmqError: as for :meth:`create`.
        """
        attributes = _attributes(queue, cron, options)
        reply = await self._channel.ask(
            operations.ENSURE_SCHEDULE, name, attributes, checked_body(body), _given(headers)
        )
        return schedule_info(reply)

    async def set(
        self,
        name: str,
        *,
        queue: Queue[Any] | str | None = None,
        cron: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        paused: bool | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Change the given values in one step, all or none; the others stay. Repeated after a lost reply.

        A new expression or zone counts from now on.

        Args:
            name: the schedule.
            queue: see :meth:`create`; None = unchanged, as for the other values.
            cron: see :meth:`create`.
            body: see :meth:`create`.
            headers: all headers, an empty mapping = no headers; None = unchanged.
            paused: see :meth:`pause`.
            **options: see :class:`ScheduleOptions`.

        Raises:
            ScheduleNotFound: the schedule does not exist.
            CmqError: as for :meth:`create`; the schedule was not changed.
        """
        attributes: dict[str, Any] = {
            "queue": None if queue is None else _name_of(queue),
            "cron": cron,
            "paused": paused,
        }
        given = {field: value for field, value in attributes.items() if value is not None}
        given |= to_wire("schedule", SCHEDULE_OPTIONS, options)
        new_body = None if body is None else checked_body(body)
        new_headers = None if headers is None else dict(headers)
        reply = await self._channel.ask(operations.SET_SCHEDULE, name, given, new_body, new_headers)
        return schedule_info(reply)

    async def pause(self, name: str) -> ScheduleInfo:
        """Send no message until :meth:`resume`. Errors and repeats as for :meth:`set`."""
        return await self.set(name, paused=True)

    async def resume(self, name: str) -> ScheduleInfo:
        """Continue after :meth:`pause`, with the next time from now on. Errors and repeats as for :meth:`set`."""
        return await self.set(name, paused=False)

    async def info(self, name: str) -> ScheduleInfo:
        """Return a schedule with its message, counts and times, as of now. Safe to cancel.

        Raises:
            ScheduleNotFound: the schedule does not exist.
        """
        return schedule_info(await self._channel.ask(operations.GET_SCHEDULE, name))

    async def list(self, *, search: str = "", offset: int = 0, limit: int = 100) -> SchedulePage:
        """List schedules of the account, by name. Safe to cancel.

        Args:
            search: only schedules with this word in the name.
            offset: number of schedules to skip.
            limit: most schedules of a page, 1-1,000.
        """
        reply = await self._channel.ask(operations.LIST_SCHEDULES, search, offset, limit)
        return converted(SchedulePage, reply)

    async def delete(self, name: str) -> Done:
        """Delete a schedule; messages that it sent stay. Not repeated after a lost reply.

        Raises:
            ScheduleNotFound: the schedule does not exist.
        """
        return Done((await self._channel.ask(operations.DELETE_SCHEDULE, name)).request_id)


def _name_of(queue: Queue[Any] | str) -> str:
    return queue if isinstance(queue, str) else queue.name


def _attributes(queue: Queue[Any] | str, cron: str, options: ScheduleOptions) -> dict[str, Any]:
    # ``ensure`` compares the attributes that it is given. The zone is always one of them: a schedule in another zone
    # differs from a schedule without a zone.
    zone = {"zone": SCHEDULE["zone"].default}
    return {"queue": _name_of(queue), "cron": cron, **zone, **to_wire("schedule", SCHEDULE_OPTIONS, options)}


def _given(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    return dict(headers) if headers else None


def schedule_info(reply: wire.ScheduleInfo) -> ScheduleInfo:
    """Convert the reply about a schedule."""
    fields = info_fields(ScheduleInfo, reply, SCHEDULE)
    if "last_message_id" in fields:
        fields["last_message_id"] = printed_id(fields["last_message_id"])
    return ScheduleInfo(
        name=reply.schedule, id=reply.schedule_id, body=reply.body, headers=reply.headers or {}, **fields
    )
