"""Schedules: messages that the broker sends at the times of a cron expression."""

from cmqd_gateway.rest.functions.messages import body_of
from cmqd_gateway.rest.functions.queues import next_offset
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import invalid
from cmqd_gateway.rest.replies import ScheduleInfo, ScheduleList
from cmqd_gateway.rest.types import ListQuery, NewPausableSchedule, NewSchedule, Nothing, ScheduleChanges


async def list_schedules(call: Call[ListQuery, Nothing]) -> ScheduleList:
    """List schedules of the account, by name."""
    query = call.query
    page = await call.client.schedules.list(search=query.search, offset=query.offset, limit=query.limit)
    return ScheduleList.of(page, next_offset=next_offset(query.offset, len(page), page.total))


async def create_schedule(call: Call[Nothing, NewPausableSchedule]) -> ScheduleInfo:
    """Create a schedule. If a schedule of this name exists, the request fails: to accept an equal schedule, use PUT."""
    body = call.body
    return ScheduleInfo.of(
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
    return ScheduleInfo.of(
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
    return ScheduleInfo.of(await call.client.schedules.info(call.names["schedule"]))


async def set_schedule(call: Call[Nothing, ScheduleChanges]) -> ScheduleInfo:
    """Change a schedule in one step; pause or resume a schedule. A new expression or zone counts from now on."""
    body = call.body
    if body.body is None and body.encoding != "utf-8":
        raise invalid("encoding", "encoding is the encoding of body, which the request lacks")
    return ScheduleInfo.of(
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
