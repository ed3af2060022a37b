"""The operations of the JSON API with the tag schedules: each succeeds, and has its own errors."""

from typing import Any

from support.gateway.operation_checks import SCHEDULE, check_tag, checks
from support.gateway.rest_calls import RestCalls


@checks("list_schedules")
async def check_list_schedules(rest: RestCalls) -> None:
    for name in ("a", "b"):
        await rest.ok("create_schedule", schedule=name, body=SCHEDULE)
    page = await rest.ok("list_schedules", query={"limit": 1})
    assert ([entry.name for entry in page.schedules], page.total, page.next_offset) == (["a"], 2, 1)
    assert page.schedules[0].next_time is not None


@checks("create_schedule")
async def check_create_schedule(rest: RestCalls) -> None:
    body = SCHEDULE | {"body": "/w==", "encoding": "base64", "headers": {"a": "b"}, "paused": True}
    made = await rest.ok("create_schedule", schedule="daily", body=body)
    assert (made.created, made.body, made.encoding, made.headers) == (True, "/w==", "base64", {"a": "b"})
    assert (made.paused, made.next_time, made.last_message_id) == (True, None, None)
    again = await rest.refused("create_schedule", schedule="daily", body=SCHEDULE)
    assert (again.status, again.name) == (409, "schedule_exists")
    wrong = await rest.refused("create_schedule", schedule="other", body=SCHEDULE | {"cron": "soon"})
    assert (wrong.status, wrong.field) == (400, "cron")
    large = await rest.refused("create_schedule", schedule="other", body=SCHEDULE | {"body": "x" * 70_000})
    assert (large.status, large.name) == (413, "message_too_large")


@checks("ensure_schedule")
async def check_ensure_schedule(rest: RestCalls) -> None:
    await rest.ok("ensure_schedule", schedule="daily", body=SCHEDULE, status=201)
    await rest.ok("ensure_schedule", schedule="daily", body=SCHEDULE, status=200)
    refusal = await rest.refused("ensure_schedule", schedule="daily", body=SCHEDULE | {"cron": "0 8 * * *"})
    assert (refusal.status, refusal.name) == (409, "schedule_differs")


@checks("get_schedule")
async def check_get_schedule(rest: RestCalls) -> None:
    await rest.ok("create_schedule", schedule="minutely", body=SCHEDULE | {"cron": "* * * * *"})
    rest.rig.server.advance(61)
    while not (info := await rest.ok("get_schedule", schedule="minutely")).fired:
        pass
    assert info.last_message_id == (await rest.received("orders"))[0].id


@checks("set_schedule")
async def check_set_schedule(rest: RestCalls) -> None:
    await rest.ok("create_schedule", schedule="daily", body=SCHEDULE)
    changed = await rest.ok("set_schedule", schedule="daily", body={"cron": "0 8 * * *", "paused": True})
    assert (changed.cron, changed.paused, changed.zone, changed.body) == ("0 8 * * *", True, "Europe/Berlin", "go")
    body: dict[str, Any] = {"body": "/w==", "encoding": "base64", "headers": {}}
    assert (await rest.ok("set_schedule", schedule="daily", body=body)).encoding == "base64"
    lonely = await rest.refused("set_schedule", schedule="daily", body={"encoding": "base64"})
    assert lonely.field == "encoding"


@checks("delete_schedule")
async def check_delete_schedule(rest: RestCalls) -> None:
    await rest.ok("create_schedule", schedule="daily", body=SCHEDULE)
    await rest.ok("delete_schedule", schedule="daily")
    assert (await rest.refused("get_schedule", schedule="daily")).name == "schedule_not_found"


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("schedules", rest)
