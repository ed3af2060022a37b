"""Schedules: messages that the broker sends at the times of a cron expression."""

from cmqd_client.schedules import ScheduleInfo as ClientScheduleInfo
from cmqd_gateway.rest import values
from cmqd_gateway.rest.functions.messages import body_of
from cmqd_gateway.rest.functions.queues import next_offset
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import invalid
from cmqd_gateway.rest.types import (
    ListQuery,
    NewPausableSchedule,
    NewSchedule,
    Nothing,
    ScheduleChanges,
    ScheduleInfo,
    ScheduleList,
    ScheduleSummary,
)


async def list_schedules(call: Call[ListQuery, Nothing]) -> ScheduleList:
    """List schedules of the account, by name."""
    query = call.query
    page = await call.client.schedules.list(search=query.search, offset=query.offset, limit=query.limit)
    schedules = [
        ScheduleSummary(
            name=summary.name,
            queue=summary.queue,
            cron=summary.cron,
            zone=summary.zone,
            paused=summary.paused,
            next_time=summary.next_time,
            missed=summary.missed,
            last_error=summary.last_error,
        )
        for summary in page
    ]
    return ScheduleList(
        schedules=schedules, total=page.total, next_offset=next_offset(query.offset, len(schedules), page.total)
    )


async def create_schedule(call: Call[Nothing, NewPausableSchedule]) -> ScheduleInfo:
    """Create a schedule. If a schedule of this name exists, the request fails: to accept an equal schedule, use PUT."""
    body = call.body
    return _info(
        await call.client.schedules.create(
            call.names["schedule"],
            body.queue,
            body.cron,
            body_of(body.body, body.encoding, "body"),
            zone=body.zone,
            headers=body.headers,
            paused=body.paused,
        )
    )


async def ensure_schedule(call: Call[Nothing, NewSchedule]) -> ScheduleInfo:
    """Create a schedule, or check that the existing schedule is the same. A paused schedule stays paused."""
    body = call.body
    return _info(
        await call.client.schedules.ensure(
            call.names["schedule"],
            body.queue,
            body.cron,
            body_of(body.body, body.encoding, "body"),
            zone=body.zone,
            headers=body.headers,
        )
    )


async def get_schedule(call: Call[Nothing, Nothing]) -> ScheduleInfo:
    """Return a schedule with message, counts and next time."""
    return _info(await call.client.schedules.info(call.names["schedule"]))


async def set_schedule(call: Call[Nothing, ScheduleChanges]) -> ScheduleInfo:
    """Change a schedule in one step; pause or resume a schedule. A new expression or zone counts from now on."""
    body = call.body
    if body.body is None and body.encoding != "utf-8":
        raise invalid("encoding", "encoding is the encoding of body, which the request lacks")
    return _info(
        await call.client.schedules.set(
            call.names["schedule"],
            queue=body.queue,
            cron=body.cron,
            zone=body.zone,
            body=None if body.body is None else body_of(body.body, body.encoding, "body"),
            headers=body.headers,
            paused=body.paused,
        )
    )


async def delete_schedule(call: Call[Nothing, Nothing]) -> None:
    """Delete a schedule; messages that it sent stay."""
    await call.client.schedules.delete(call.names["schedule"])


def _info(info: ClientScheduleInfo) -> ScheduleInfo:
    text, encoding = values.json_body(info.body)
    return ScheduleInfo(
        name=info.name,
        id=str(info.id),
        created=info.created,
        queue=info.queue,
        cron=info.cron,
        zone=info.zone,
        paused=info.paused,
        body=text,
        encoding=encoding,
        headers=dict(info.headers),
        next_time=info.next_time,
        fired=info.fired,
        missed=info.missed,
        last_fired_time=info.last_fired_time,
        last_message_id=info.last_message_id,
        last_error=info.last_error,
        last_error_time=info.last_error_time,
        create_time=info.create_time,
        modify_time=info.modify_time,
    )
