"""The operations of the JSON API with the tag queues: each succeeds, and has its own errors."""

from typing import Any

import pytest

from cmqd_client import QueueInfo
from support.gateway.operation_checks import check_tag, checks, dead, received
from support.gateway.rest_calls import RestCalls


@checks("list_queues")
async def check_list_queues(rest: RestCalls) -> None:
    for name in ("a1", "a2", "a3"):
        await rest.ok("create_queue", queue=name)
    first = await rest.ok("list_queues", query={"search": "a", "limit": 2})
    last = await rest.ok("list_queues", query={"search": "a", "limit": 2, "offset": first.next_offset})
    assert (first.names, first.total, first.next_offset) == (["a1", "a2"], 3, 2)
    assert (last.names, last.total, last.next_offset) == (["a3"], 3, None)


@checks("list_queue_summaries")
async def check_list_queue_summaries(rest: RestCalls) -> None:
    await dead(rest)
    for number in range(2):
        await rest.ok("send_message", queue="orders", body={"body": f"body {number}"})
    whole = await rest.ok("list_queue_summaries", query={"sort": "active", "descending": "true"})
    assert [queue.name for queue in whole.queues] == ["orders", "dead"]
    orders = whole.queues[0]
    assert (orders.counts.active, orders.arrived, orders.dead_letter_queue) == (2, 2, "dead")
    assert orders.create_time <= orders.oldest_message_time <= whole.time
    assert orders.id == (await rest.ok("get_queue", queue="orders")).id
    assert (whole.total, whole.next_offset) == (2, None)
    first = await rest.ok("list_queue_summaries", query={"limit": 1})
    assert ([queue.name for queue in first.queues], first.next_offset) == (["dead"], 1)
    only = await rest.ok("list_queue_summaries", query={"selection": "dead_letter_queues", "search": "ea"})
    assert [(queue.name, queue.is_dead_letter_queue, queue.oldest_message_time) for queue in only.queues] == [
        ("dead", True, None)
    ]
    for query in ({"sort": "size"}, {"selection": "big"}, {"limit": 1001}):
        assert (await rest.refused("list_queue_summaries", query=query)).field == next(iter(query))


@checks("create_queue")
async def check_create_queue(rest: RestCalls) -> None:
    created = await rest.ok("create_queue", queue="new", body={"visibility_timeout": 90.5, "rewind": 3600})
    assert (created.name, created.created) == ("new", True)
    assert created.id.isdecimal()
    assert created.attributes.visibility_timeout == 90.5
    assert created.attributes.polling_wait == 0.2
    refusal = await rest.refused("create_queue", queue="new")
    assert (refusal.status, refusal.name) == (409, "queue_exists")


@checks("ensure_queue")
async def check_ensure_queue(rest: RestCalls) -> None:
    made = await rest.ok("ensure_queue", queue="new", body={"delay": 5}, status=201)
    same = await rest.ok("ensure_queue", queue="new", body={"delay": 5}, status=200)
    assert (made.created, same.created, made.id == same.id) == (True, False, True)
    refusal = await rest.refused("ensure_queue", queue="new", body={"delay": 6})
    assert (refusal.status, refusal.name) == (409, "queue_differs")
    assert refusal.details["difference"] == {"delay": {"is": 5, "wanted": 6}}


@checks("get_queue")
async def check_get_queue(rest: RestCalls) -> None:
    await received(rest)
    await rest.ok("send_message", queue="orders", body={"body": "x", "delay": 60})
    await rest.ok("send_message", queue="orders", body={"body": "y"})
    info = await rest.ok("get_queue", queue="orders")
    assert (info.counts.active, info.counts.in_flight, info.counts.delayed) == (1, 1, 1)
    assert info.oldest_message_time is not None
    # The attributes of a reply are a request as they are.
    again = await rest.ok("ensure_queue", queue="orders", body=info.attributes, status=200)
    assert again.attributes == info.attributes


@checks("set_queue")
async def check_set_queue(rest: RestCalls) -> None:
    changed = await rest.ok("set_queue", queue="orders", body={"visibility_timeout": 45, "max_message_bytes": 2048})
    assert (changed.attributes.visibility_timeout, changed.attributes.max_message_bytes) == (45, 2048)
    refusal = await rest.refused("set_queue", queue="orders", body={"visibility_timeout": 0.5})
    assert (refusal.status, refusal.field) == (400, "visibility_timeout")
    assert "the range is 1 s to 43200 s" in refusal.detail


@checks("delete_queue")
async def check_delete_queue(rest: RestCalls) -> None:
    await dead(rest)
    refusal = await rest.refused("delete_queue", queue="dead")
    assert (refusal.status, refusal.name) == (409, "dead_letter_queue_in_use")
    await rest.ok("delete_queue", queue="orders")
    await rest.ok("delete_queue", queue="dead")


@checks("clear_queue")
async def check_clear_queue(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    await rest.ok("clear_queue", queue="orders")
    refusal = await rest.refused("delete_message", queue="orders", body={"receipt_handle": handle})
    assert refusal.name == "receipt_handle_invalid"
    assert (await rest.ok("get_queue", queue="orders")).counts.in_flight == 0


@checks("rewind_queue")
async def check_rewind_queue(rest: RestCalls) -> None:
    await rest.ok("set_queue", queue="orders", body={"rewind": 3600})
    await rest.ok("delete_messages", queue="orders", body={"receipt_handles": await received(rest, 3)})
    rewound = await rest.ok("rewind_queue", queue="orders", body={"ago": 3600})
    assert (rewound.messages, rewound.clamped) == (3, False)
    assert len(await rest.received("orders")) == 3
    refusal = await rest.refused("rewind_queue", queue="orders", body={"time": "2020-01-01T00:00:00Z"})
    assert (refusal.status, refusal.name, refusal.field) == (409, "time_not_rewindable", "time")
    assert "2020-01-01T00:00:00Z" in refusal.detail
    clamped = await rest.ok("rewind_queue", queue="orders", body={"time": "2020-01-01T00:00:00Z", "strict": False})
    assert clamped.clamped
    for body in ({}, {"ago": 5, "time": "2020-01-01T00:00:00Z"}):
        assert (await rest.refused("rewind_queue", queue="orders", body=body)).field == "time"


@checks("preview_rewind")
async def check_preview_rewind(rest: RestCalls) -> None:
    refusal = await rest.refused("preview_rewind", queue="orders")
    assert (refusal.status, refusal.name) == (409, "time_not_rewindable")
    await rest.ok("set_queue", queue="orders", body={"rewind": 3600})
    await rest.ok("delete_messages", queue="orders", body={"receipt_handles": await received(rest, 3)})
    window = await rest.ok("preview_rewind", queue="orders")
    assert (window.messages, window.clamped, window.time) == (3, False, window.earliest)
    assert window.earliest <= window.oldest <= window.latest
    assert (await rest.ok("preview_rewind", queue="orders", query={"ago": "60"})).messages == 3
    early = await rest.ok("preview_rewind", queue="orders", query={"time": "2020-01-01T00:00:00Z"})
    assert (early.messages, early.clamped) == (3, True)
    late = await rest.refused("preview_rewind", queue="orders", query={"time": "2100-01-01T00:00:00Z"})
    assert (late.name, late.field) == ("time_not_rewindable", "time")
    assert "2100-01-01T00:00:00Z" in late.detail
    both = {"time": "2020-01-01T00:00:00Z", "ago": "5"}
    assert (await rest.refused("preview_rewind", queue="orders", query=both)).field == "time"
    assert (await rest.refused("preview_rewind", queue="orders", query={"ago": "-5"})).field == "ago"
    assert (await rest.ok("get_queue", queue="orders")).counts.rewindable == 3


async def test_an_attribute_that_the_json_lacks_does_not_fail_the_reply_about_a_created_queue(
    rest: RestCalls, monkeypatch: pytest.MonkeyPatch
):
    known = QueueInfo.attributes

    def with_colour(info: QueueInfo) -> dict[str, Any]:
        return {**known(info), "colour": "red"}

    monkeypatch.setattr(QueueInfo, "attributes", with_colour)

    made = await rest.ok("create_queue", queue="new", body={"delay": 1})

    assert made.attributes.delay == 1


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("queues", rest)
