"""The operations of the JSON API with the tag dead letters: each succeeds, and has its own errors."""

import msgspec

from support.gateway.operation_checks import check_batch, check_tag, checks, dead, received
from support.gateway.rest_calls import RestCalls


@checks("reject_message")
async def check_reject_message(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    none = await rest.refused("reject_message", queue="orders", body={"receipt_handle": handle})
    assert (none.status, none.name) == (409, "no_dead_letter_queue")
    await dead(rest)
    body = {"receipt_handle": handle, "reason": "unreadable"}
    await rest.ok("reject_message", queue="orders", body=body)
    (message,) = await rest.received("dead")
    assert (message.origin.queue, message.origin.reason, message.origin.rejection) == (
        "orders",
        "rejected",
        "unreadable",
    )
    again = await rest.refused("reject_message", queue="orders", body=body)
    assert again.name == "receipt_handle_invalid"
    long = await rest.refused("reject_message", queue="orders", body=body | {"reason": "x" * 257})
    assert (long.status, long.field) == (400, "reason")


@checks("reject_messages")
async def check_reject_messages(rest: RestCalls) -> None:
    await dead(rest)
    await check_batch(rest, "reject_messages", reason="unreadable")
    assert (await rest.received("dead"))[0].origin.rejection == "unreadable"


async def test_the_old_paths_of_a_rejection_are_aliases(rest: RestCalls):
    await dead(rest)
    headers = rest.bearer() | {"Content-Type": "application/json"}
    for path, field, status in (("dead-letter", "receipt_handle", 204), ("dead-letter/batch", "receipt_handles", 200)):
        (handle,) = await received(rest)
        body = msgspec.json.encode({field: handle if status == 204 else [handle], "reason": path})
        assert (await rest.send("POST", f"/queues/orders/{path}", body, headers)).status == status
        (letter,) = await rest.received("dead")
        assert letter.origin.rejection == path


@checks("list_dead_letter_sources")
async def check_list_dead_letter_sources(rest: RestCalls) -> None:
    await dead(rest)
    assert (await rest.ok("list_dead_letter_sources", queue="dead")).names == ["orders"]
    assert (await rest.ok("list_dead_letter_sources", queue="orders")).names == []


@checks("start_redrive", "get_redrive", "cancel_redrive")
async def check_redrive(rest: RestCalls) -> None:
    never = await rest.refused("get_redrive", queue="orders")
    assert (never.status, never.name) == (404, "redrive_not_found")
    assert (await rest.refused("cancel_redrive", queue="orders")).status == 404
    await dead(rest)
    (handle,) = await received(rest)
    await rest.ok("reject_message", queue="orders", body={"receipt_handle": handle})
    rest.rig.server.hold_moves()
    started = await rest.ok("start_redrive", queue="dead", body={"max_per_second": 1000})
    assert (started.queue, started.target, started.max_per_second) == ("dead", None, 1000)
    running = await rest.refused("start_redrive", queue="dead")
    assert (running.status, running.name) == (409, "redrive_running")
    cancelled = await rest.ok("cancel_redrive", queue="dead")
    assert cancelled.reason == "cancelled"
    rest.rig.server.let_moves_go()
    await rest.ok("start_redrive", queue="dead", body={"target": "orders"})
    while (status := await rest.ok("get_redrive", queue="dead")).end_time is None:
        rest.rig.server.advance(0.1)
    assert (status.reason, status.moved, status.target) == ("done", 1, "orders")


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("dead letters", rest)
