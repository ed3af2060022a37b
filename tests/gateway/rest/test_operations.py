"""Every operation of the JSON API against a broker: each succeeds, and each refuses what it must refuse."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from cmqd_client import QueueInfo
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.table import OPERATIONS
from cmqd_protocol.protocol_errors import ErrorCode
from support.gateway.rest_calls import BY_NAME, RestCalls

NAMES = {
    "queue": "missing",
    "topic": "missing",
    "subscription": "missing",
    "schedule": "missing",
    "secret_id": "AKIDmissing",
    "account": "missing",
    "message": "Msg-0000000000000001",
}
"""Names of things that do not exist, for every parameter of a path."""

BODIES: dict[str, Any] = {
    "send_message": {"body": "x"},
    "send_messages": {"messages": [{"body": "x"}]},
    "delete_message": {"receipt_handle": "1"},
    "delete_messages": {"receipt_handles": ["1"]},
    "change_visibility": {"receipt_handle": "1", "timeout": 5},
    "change_visibilities": {"receipt_handles": ["1"], "timeout": 5},
    "release_message": {"receipt_handle": "1"},
    "release_messages": {"receipt_handles": ["1"]},
    "reject_message": {"receipt_handle": "1"},
    "reject_messages": {"receipt_handles": ["1"]},
    "rewind_queue": {"ago": 5},
    "send_half_message": {"body": "x"},
    "send_half_messages": {"messages": [{"body": "x"}]},
    "decide_half_message": {"message_id": "Msg-0000000000000001", "decision": "commit"},
    "decide_half_messages": {"decisions": [{"message_id": "Msg-0000000000000001", "decision": "commit"}]},
    "set_topic": {"max_message_bytes": 2048},
    "publish_message": {"body": "x"},
    "publish_messages": {"messages": [{"body": "x"}]},
    "create_subscription": {"queue": "orders"},
    "ensure_subscription": {"queue": "orders"},
    "create_schedule": {"queue": "missing", "cron": "0 9 * * *", "body": "x"},
    "ensure_schedule": {"queue": "missing", "cron": "0 9 * * *", "body": "x"},
    "set_key": {"enabled": False},
    "set_key_roles": {"roles": ["send"], "names": None},
    "import_key": {"secret_key": "a-secret-of-a-test"},
}
"""A valid body for each operation that needs one."""


def needs(operation: Operation[Any, Any, Any], **changes: Any) -> dict[str, Any]:
    """Return a valid request of an operation, about things that do not exist."""
    names = {name: value for name, value in NAMES.items() if f"{{{name}}}" in operation.path}
    return {**names, "body": BODIES.get(operation.name), **changes}


def with_problem(name: str) -> list[str]:
    return [operation.name for operation in OPERATIONS if name in operation.problems]


# ---------------------------------------------------------------- success

Check: TypeAlias = Callable[[RestCalls], Awaitable[None]]
CHECKS: dict[str, Check] = {}
"""A function for each operation: a success, and the errors that are its own."""


def checks(*names: str) -> Callable[[Check], Check]:
    """Return the decorator of the check of these operations."""

    def keep(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return keep


async def half(rest: RestCalls) -> str:
    """Make the transactional queue ``half`` with a half message, and return its id."""
    await rest.ok("ensure_queue", queue="half", body={"transactional": True})
    return (await rest.ok("send_half_message", queue="half", body={"body": "x", "first_check": 60})).id


async def topic(rest: RestCalls) -> None:
    """Make the topic ``news`` with the subscription ``copies`` to the queue ``orders``."""
    await rest.ok("ensure_topic", topic="news", body={})
    await rest.ok("ensure_subscription", topic="news", subscription="copies", body={"queue": "orders"})


async def received(rest: RestCalls, count: int = 1) -> list[str]:
    """Send messages to ``orders`` and receive them; return their receipt handles."""
    for number in range(count):
        await rest.ok("send_message", queue="orders", body={"body": f"body {number}"})
    return [message.receipt_handle for message in await rest.received("orders")]


async def dead(rest: RestCalls) -> None:
    """Make ``dead`` the dead-letter queue of ``orders``."""
    await rest.ok("ensure_queue", queue="dead", body={})
    attributes = {"dead_letter_queue": "dead", "dead_letter_max_receives": 5}
    await rest.ok("set_queue", queue="orders", body=attributes)


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


@checks("send_message")
async def check_send_message(rest: RestCalls) -> None:
    sent = await rest.ok("send_message", queue="orders", body={"body": "héllo\x00\n", "headers": {"kind": "test"}})
    (message,) = await rest.received("orders")
    assert (message.id, message.body, message.encoding) == (sent.id, "héllo\x00\n", "utf-8")
    assert message.headers == {"kind": "test"}
    large = await rest.refused("send_message", queue="orders", body={"body": "x" * 65_537})
    assert (large.status, large.name) == (413, "message_too_large")
    empty = await rest.refused("send_message", queue="orders", body={"body": ""})
    assert (empty.status, empty.field) == (400, "body")
    wrong = await rest.refused("send_message", queue="orders", body={"body": "a*", "encoding": "base64"})
    assert (wrong.status, wrong.field) == (400, "body")
    both = {"body": "x", "delay": 1, "at": "2027-01-01T00:00:00Z"}
    assert (await rest.refused("send_message", queue="orders", body=both)).field == "at"


@checks("send_messages")
async def check_send_messages(rest: RestCalls) -> None:
    messages = [{"body": "first"}, {"body": "/w==", "encoding": "base64", "headers": {"a": "b"}}]
    batch = await rest.ok("send_messages", queue="orders", body={"messages": messages})
    first, second = await rest.received("orders")
    assert [result.id for result in batch.results] == [first.id, second.id]
    assert (first.body, first.encoding) == ("first", "utf-8")
    assert (second.body, second.encoding, second.headers) == ("/w==", "base64", {"a": "b"})
    # All or none: the second message is too large.
    refusal = await rest.refused(
        "send_messages", queue="orders", body={"messages": [{"body": "a"}, {"body": "x" * 70_000}]}
    )
    assert (refusal.status, refusal.name, refusal.details["index"]) == (413, "message_too_large", 1)
    large = [{"body": "x" * 60_000}] * 20
    assert (await rest.refused("send_messages", queue="orders", body={"messages": large})).name == "batch_too_large"
    many = await rest.refused("send_messages", queue="orders", body={"messages": [{"body": "x"}] * 257})
    assert many.status == 400
    assert (await rest.refused("send_messages", queue="orders", body={"messages": []})).field == "messages"
    after = await rest.refused("send_messages", queue="orders", body={"messages": [{"body": "a"}], "after": "unknown"})
    assert (after.status, after.name) == (409, "out_of_order")
    assert (await rest.ok("get_queue", queue="orders")).counts.active == 0


@checks("peek_messages")
async def check_peek_messages(rest: RestCalls) -> None:
    await received(rest)
    await rest.ok("send_message", queue="orders", body={"body": "/w==", "encoding": "base64"})
    await rest.ok("send_message", queue="orders", body={"body": "later", "delay": 60})
    page = await rest.ok("peek_messages", queue="orders")
    assert [message.state for message in page.messages] == ["in_flight", "active", "delayed"]
    assert [message.encoding for message in page.messages] == ["utf-8", "base64", "utf-8"]
    only = await rest.ok("peek_messages", queue="orders", query={"states": ["active", "delayed"]})
    assert [message.state for message in only.messages] == ["active", "delayed"]
    seen: list[str] = []
    start: str | None = "0"
    while start is not None:
        page = await rest.ok("peek_messages", queue="orders", query={"max_messages": 1, "start": start})
        seen += [message.state for message in page.messages]
        start = page.next_start
    assert seen == ["in_flight", "active", "delayed"]
    assert (await rest.refused("peek_messages", queue="orders", query={"start": str(2**64)})).field == "start"
    assert (await rest.refused("peek_messages", queue="orders", query={"states": "lost"})).field == "states[0]"


@checks("receive_messages")
async def check_receive_messages(rest: RestCalls) -> None:
    assert await rest.received("orders") == []
    await rest.ok("send_message", queue="orders", body={"body": "x"})
    # Without a body: a message, with the queue's own times.
    (message,) = (await rest.ok("receive_messages", queue="orders")).messages
    assert message.receipt_handle.isdecimal()
    assert message.receive_count == 1
    assert (message.next_visible_time - message.first_receive_time).total_seconds() == 30
    assert (message.origin, message.copy_of) == (None, None)
    for body in ({"max_messages": 257}, {"max_messages": 0}, {"wait": 31}, {"visibility_timeout": 0}):
        refusal = await rest.refused("receive_messages", queue="orders", body=body)
        assert (refusal.status, refusal.field) == (400, *body)


@checks("delete_message")
async def check_delete_message(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    await rest.ok("delete_message", queue="orders", body={"receipt_handle": handle})
    refusal = await rest.refused("delete_message", queue="orders", body={"receipt_handle": handle})
    assert (refusal.status, refusal.name) == (409, "receipt_handle_invalid")
    assert refusal.details["receipt_handle"] == handle
    too_large = await rest.refused("delete_message", queue="orders", body={"receipt_handle": str(2**64)})
    assert (too_large.status, too_large.field) == (400, "receipt_handle")


async def check_batch(rest: RestCalls, name: str, **more: Any) -> Any:
    """Run a batch with a valid and an invalid handle; return its reply."""
    (handle,) = await received(rest)
    body = {"receipt_handles": [handle, "5", handle], **more}
    reply = await rest.ok(name, queue="orders", body=body)
    assert [result.receipt_handle for result in reply.results] == [handle, "5", handle]
    assert [result.problem is None for result in reply.results] == [True, False, True]
    problem = reply.results[1].problem
    details = {"receipt_handle": "5", "gone": 0}
    assert (problem.name, problem.status, problem.details) == ("receipt_handle_invalid", 409, details)
    assert reply.failed == 1
    for handles, field in (
        ([], "receipt_handles"),
        (["1"] * 257, "receipt_handles"),
        ([str(2**64)], "receipt_handles[0]"),
    ):
        refusal = await rest.refused(name, queue="orders", body={"receipt_handles": handles, **more})
        assert (refusal.status, refusal.field) == (400, field)
    return reply


@checks("delete_messages")
async def check_delete_messages(rest: RestCalls) -> None:
    await check_batch(rest, "delete_messages")
    assert (await rest.ok("get_queue", queue="orders")).counts.in_flight == 0


@checks("change_visibility")
async def check_change_visibility(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    reply = await rest.ok("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 600})
    assert reply.next_visible_time is not None
    await rest.ok("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 0})
    refusal = await rest.refused("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 5})
    assert refusal.name == "receipt_handle_invalid"
    long = await rest.refused("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 43_201})
    assert long.status == 400
    assert "43200" in long.detail


@checks("change_visibilities")
async def check_change_visibilities(rest: RestCalls) -> None:
    reply = await check_batch(rest, "change_visibilities", timeout=600)
    assert reply.next_visible_time is not None


@checks("release_message")
async def check_release_message(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    await rest.ok("release_message", queue="orders", body={"receipt_handle": handle, "count_receive": False})
    (message,) = await rest.received("orders")
    assert message.receive_count == 1
    await rest.ok("release_message", queue="orders", body={"receipt_handle": message.receipt_handle})
    assert (await rest.received("orders"))[0].receive_count == 2


@checks("release_messages")
async def check_release_messages(rest: RestCalls) -> None:
    await check_batch(rest, "release_messages")
    assert (await rest.ok("get_queue", queue="orders")).counts.active == 1


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


@checks("send_half_message")
async def check_send_half_message(rest: RestCalls) -> None:
    message_id = await half(rest)
    (message,) = (await rest.ok("list_half_messages", queue="half")).messages
    assert (message.id, message.checks, message.last_check_time) == (message_id, 0, None)
    assert await rest.received("half") == []


@checks("send_half_messages")
async def check_send_half_messages(rest: RestCalls) -> None:
    await half(rest)
    messages = [{"body": "a"}, {"body": "b", "headers": {"c": "d"}}]
    batch = await rest.ok("send_half_messages", queue="half", body={"messages": messages, "first_check": 60})
    assert len(batch.results) == 2
    for result in batch.results:
        await rest.ok("decide_half_message", queue="half", body={"message_id": result.id, "decision": "commit"})
    assert [(message.body, message.headers) for message in await rest.received("half")] == [
        ("a", {}),
        ("b", {"c": "d"}),
    ]
    empty = await rest.refused("send_half_messages", queue="half", body={"messages": []})
    assert empty.field == "messages"


@checks("list_half_messages")
async def check_list_half_messages(rest: RestCalls) -> None:
    ids = [await half(rest) for _ in range(3)]
    seen: list[str] = []
    start: str | None = "0"
    while start is not None:
        page = await rest.ok("list_half_messages", queue="half", query={"max_messages": 1, "start": start})
        seen += [message.id for message in page.messages]
        start = page.next_start
    assert seen == ids


@checks("decide_half_message")
async def check_decide_half_message(rest: RestCalls) -> None:
    async def decide(message_id: str, decision: str) -> Any:
        return await rest.answer(
            "decide_half_message", queue="half", body={"message_id": message_id, "decision": decision}
        )

    committed, rolled_back = await half(rest), await half(rest)
    await rest.ok("decide_half_message", queue="half", body={"message_id": committed, "decision": "unknown"})
    assert (await decide(committed, "commit")).status == (await decide(committed, "commit")).status == 204
    assert (await decide(rolled_back, "rollback")).status == 204
    assert [message.id for message in await rest.received("half")] == [committed]
    for message_id, decision, status, name in (
        (committed, "rollback", 409, "already_committed"),
        (rolled_back, "commit", 409, "already_rolled_back"),
        ("Msg-00000000ffffffff", "commit", 404, "transaction_not_found"),
    ):
        problem = (await decide(message_id, decision)).problem()
        assert (problem.status, problem.name, problem.details) == (status, name, {"message_id": message_id})


@checks("decide_half_messages")
async def check_decide_half_messages(rest: RestCalls) -> None:
    first, second = await half(rest), await half(rest)
    decisions = [
        {"message_id": first, "decision": "commit"},
        {"message_id": "Msg-00000000ffffffff", "decision": "commit"},
        {"message_id": second, "decision": "rollback"},
    ]
    reply = await rest.ok("decide_half_messages", queue="half", body={"decisions": decisions})
    assert [result.message_id for result in reply.results] == [entry["message_id"] for entry in decisions]
    assert [result.problem and result.problem.name for result in reply.results] == [None, "transaction_not_found", None]
    assert reply.failed == 1
    assert [message.id for message in await rest.received("half")] == [first]
    for wrong in ([], decisions[:1] * 2, decisions[:1] * 257):
        assert (
            await rest.refused("decide_half_messages", queue="half", body={"decisions": wrong})
        ).field == "decisions"


@checks("list_topics")
async def check_list_topics(rest: RestCalls) -> None:
    for name in ("aa1", "aa2", "bbb"):
        await rest.ok("create_topic", topic=name)
    page = await rest.ok("list_topics", query={"search": "aa", "limit": 1})
    assert (page.names, page.total, page.next_offset) == (["aa1"], 2, 1)


@checks("create_topic")
async def check_create_topic(rest: RestCalls) -> None:
    created = await rest.ok("create_topic", topic="news", body={"filter_type": "routing", "max_message_bytes": 2048})
    assert (created.created, created.attributes.filter_type, created.attributes.max_message_bytes) == (
        True,
        "routing",
        2048,
    )
    refusal = await rest.refused("create_topic", topic="News")
    assert (refusal.status, refusal.name) == (409, "topic_exists")
    assert (await rest.ok("create_topic", topic="n" * 70)).name == "n" * 64
    assert (await rest.refused("create_topic", topic="xx")).status == 400


@checks("ensure_topic")
async def check_ensure_topic(rest: RestCalls) -> None:
    await rest.ok("ensure_topic", topic="news", body={"filter_type": "tag"}, status=201)
    await rest.ok("ensure_topic", topic="news", body={"filter_type": "tag"}, status=200)
    refusal = await rest.refused("ensure_topic", topic="news", body={"filter_type": "routing"})
    assert (refusal.status, refusal.name) == (409, "topic_differs")
    assert refusal.details["difference"] == {"filter_type": {"is": "tag", "wanted": "routing"}}


@checks("get_topic")
async def check_get_topic(rest: RestCalls) -> None:
    await topic(rest)
    info = await rest.ok("get_topic", topic="news")
    assert (info.subscriptions, info.retained, info.lifecycle, info.created) == (1, 0, 86_400, False)


@checks("set_topic")
async def check_set_topic(rest: RestCalls) -> None:
    await topic(rest)
    assert (
        await rest.ok("set_topic", topic="news", body={"max_message_bytes": 4096})
    ).attributes.max_message_bytes == 4096
    refusal = await rest.refused("set_topic", topic="news", body={"max_message_bytes": 5})
    assert (refusal.status, refusal.field) == (400, "max_message_bytes")


@checks("delete_topic")
async def check_delete_topic(rest: RestCalls) -> None:
    await topic(rest)
    refusal = await rest.refused("delete_topic", topic="news")
    assert (refusal.status, refusal.name) == (409, "topic_in_use")
    await rest.ok("delete_subscription", topic="news", subscription="copies")
    await rest.ok("delete_topic", topic="news")


@checks("publish_message")
async def check_publish_message(rest: RestCalls) -> None:
    await rest.ok("ensure_topic", topic="news", body={})
    assert (await rest.ok("publish_message", topic="news", body={"body": "x"})).matched == 0
    await topic(rest)
    body = {"body": "/w==", "encoding": "base64", "tags": ["red"], "headers": {"a": "b"}}
    published = await rest.ok("publish_message", topic="news", body=body)
    assert published.matched == 1
    (message,) = await rest.received("orders")
    assert (message.body, message.encoding, message.headers) == ("/w==", "base64", {"a": "b"})
    assert (message.copy_of.topic, message.copy_of.subscription, message.copy_of.id) == ("news", "copies", published.id)
    assert (message.copy_of.tags, message.copy_of.routing_key) == (["red"], None)
    key = await rest.refused("publish_message", topic="news", body={"body": "x", "routing_key": "a.b"})
    assert key.status == 400
    both = await rest.refused("publish_message", topic="news", body={"body": "x", "tags": ["a"], "routing_key": "a.b"})
    assert both.field == "tags"
    large = await rest.refused("publish_message", topic="news", body={"body": "x" * 70_000})
    assert (large.status, large.name) == (413, "message_too_large")


@checks("publish_messages")
async def check_publish_messages(rest: RestCalls) -> None:
    await topic(rest)
    messages = [{"body": "a", "tags": ["red"]}, {"body": "b"}]
    batch = await rest.ok("publish_messages", topic="news", body={"messages": messages})
    assert [result.matched for result in batch.results] == [1, 1]
    assert [message.copy_of.tags for message in await rest.received("orders")] == [["red"], []]
    await rest.ok("create_topic", topic="routes", body={"filter_type": "routing"})
    binding = {"queue": "orders", "binding_keys": ["a.*"]}
    await rest.ok("create_subscription", topic="routes", subscription="copies", body=binding)
    keyed = [{"body": "a", "routing_key": "a.b"}, {"body": "b", "routing_key": "c"}]
    batch = await rest.ok("publish_messages", topic="routes", body={"messages": keyed})
    assert [result.matched for result in batch.results] == [1, 0]
    assert [message.copy_of.routing_key for message in await rest.received("orders")] == ["a.b"]
    both = await rest.refused("publish_messages", topic="news", body={"messages": [*messages, *keyed]})
    assert both.field == "messages"
    after = await rest.refused("publish_messages", topic="news", body={"messages": messages, "after": "unknown"})
    assert after.name == "out_of_order"


@checks("list_subscriptions")
async def check_list_subscriptions(rest: RestCalls) -> None:
    await topic(rest)
    await rest.ok("create_subscription", topic="news", subscription="other", body={"queue": "orders"})
    page = await rest.ok("list_subscriptions", topic="news", query={"limit": 1})
    assert ([entry.name for entry in page.subscriptions], page.total, page.next_offset) == (["copies"], 2, 1)
    assert (page.subscriptions[0].protocol, page.subscriptions[0].endpoint) == ("queue", "orders")


@checks("list_queue_subscriptions")
async def check_list_queue_subscriptions(rest: RestCalls) -> None:
    await topic(rest)
    await rest.ok("create_topic", topic="art", body={})
    await rest.ok("create_subscription", topic="art", subscription="other", body={"queue": "orders"})
    page = await rest.ok("list_queue_subscriptions", queue="orders", query={"limit": 1})
    assert ([(entry.topic, entry.name) for entry in page.subscriptions], page.total) == ([("art", "other")], 2)
    rest_of = await rest.ok("list_queue_subscriptions", queue="orders", query={"offset": page.next_offset})
    assert ([(each.topic, each.name) for each in rest_of.subscriptions], rest_of.next_offset) == (
        [("news", "copies")],
        None,
    )
    wrong = await rest.refused("list_queue_subscriptions", queue="orders", query={"limit": 1001})
    assert (wrong.status, wrong.field) == (400, "limit")


@checks("create_subscription")
async def check_create_subscription(rest: RestCalls) -> None:
    await rest.ok("ensure_topic", topic="news", body={})
    body = {
        "url": "https://example.com/hook",
        "filter_tags": ["red"],
        "strategy": "backoff",
        "content_format": "simplified",
    }
    made = await rest.ok("create_subscription", topic="news", subscription="hook", body=body)
    assert made.secret.startswith("whsec_")
    assert (made.protocol, made.endpoint, made.strategy, made.content_format) == (
        "https",
        "https://example.com/hook",
        "backoff",
        "simplified",
    )
    assert (made.created, made.filter_tags) == (True, ["red"])
    again = await rest.refused("create_subscription", topic="news", subscription="hook", body=body)
    assert (again.status, again.name) == (409, "subscription_exists")
    for wrong, field in (
        ({}, "queue"),
        ({"queue": "orders", "url": "http://x"}, "queue"),
        ({"url": "orders"}, "url"),
        ({"url": "ftp://user:password@host"}, "url"),
        ({"queue": "orders", "filter_tags": ["a"], "binding_keys": ["b"]}, "filter_tags"),
        ({"queue": "orders", "binding_keys": ["b"]}, "binding_keys"),
    ):
        refusal = await rest.refused("create_subscription", topic="news", subscription="wrong", body=wrong)
        assert (refusal.status, refusal.field) == (400, field)
        assert "password" not in refusal.detail


@checks("ensure_subscription")
async def check_ensure_subscription(rest: RestCalls) -> None:
    await rest.ok("ensure_topic", topic="news", body={})
    body = {"queue": "orders", "filter_tags": ["red"]}
    await rest.ok("ensure_subscription", topic="news", subscription="copies", body=body, status=201)
    await rest.ok("ensure_subscription", topic="news", subscription="copies", body=body, status=200)
    different = body | {"filter_tags": ["blue"]}
    refusal = await rest.refused("ensure_subscription", topic="news", subscription="copies", body=different)
    assert (refusal.status, refusal.name) == (409, "subscription_differs")


@checks("get_subscription")
async def check_get_subscription(rest: RestCalls) -> None:
    await topic(rest)
    info = await rest.ok("get_subscription", topic="news", subscription="copies")
    assert (info.topic, info.name, info.endpoint, info.secret, info.paused) == ("news", "copies", "orders", None, False)


@checks("set_subscription")
async def check_set_subscription(rest: RestCalls) -> None:
    await topic(rest)
    body = {"filter_tags": ["red"], "paused": True, "strategy": "backoff"}
    changed = await rest.ok("set_subscription", topic="news", subscription="copies", body=body)
    assert (changed.filter_tags, changed.paused, changed.strategy) == (["red"], True, "backoff")
    cleared = await rest.ok("set_subscription", topic="news", subscription="copies", body={"filter_tags": []})
    assert (cleared.filter_tags, cleared.paused) == ([], True)
    both = {"filter_tags": ["red"], "binding_keys": ["a.b"]}
    refusal = await rest.refused("set_subscription", topic="news", subscription="copies", body=both)
    assert (refusal.status, refusal.field) == (400, "filter_tags")


@checks("delete_subscription")
async def check_delete_subscription(rest: RestCalls) -> None:
    await topic(rest)
    await rest.ok("delete_subscription", topic="news", subscription="copies")
    gone = await rest.refused("delete_subscription", topic="news", subscription="copies")
    assert (gone.status, gone.name) == (404, "subscription_not_found")


COPIES: dict[str, Any] = {"topic": "news", "subscription": "copies"}


async def waiting(rest: RestCalls) -> str:
    """Publish a message to a paused subscription, which keeps it; return its id."""
    await topic(rest)
    await rest.ok("set_subscription", topic="news", subscription="copies", body={"paused": True})
    body = {"body": "/w==", "encoding": "base64", "tags": ["red"], "headers": {"a": "b"}}
    return (await rest.ok("publish_message", topic="news", body=body)).id


@checks("peek_deliveries")
async def check_peek_deliveries(rest: RestCalls) -> None:
    message_id = await waiting(rest)
    (message,) = (await rest.ok("peek_deliveries", **COPIES)).messages
    assert (message.id, message.state, message.attempts, message.size) == (message_id, "waiting", 0, 1)
    assert (message.body, message.encoding, message.headers, message.tags) == ("/w==", "base64", {"a": "b"}, ["red"])
    (bare,) = (await rest.ok("peek_deliveries", **COPIES, query={"bodies": "false"})).messages
    assert (bare.id, bare.body, bare.encoding, bare.headers) == (message_id, None, None, None)
    later = [await waiting(rest) for _ in range(2)]
    seen: list[str] = []
    start: str | None = "0"
    while start is not None:
        page = await rest.ok("peek_deliveries", **COPIES, query={"max_messages": 1, "start": start})
        seen += [message.id for message in page.messages]
        start = page.next_start
    assert seen == [message_id, *later]


@checks("retry_delivery")
async def check_retry_delivery(rest: RestCalls) -> None:
    message_id = await waiting(rest)
    assert (await rest.ok("retry_delivery", **COPIES, message=message_id)).messages == 1
    gone = await rest.refused("retry_delivery", **COPIES, message="Msg-00000000ffffffff")
    assert (gone.status, gone.name) == (404, "message_not_waiting")
    wrong = await rest.refused("retry_delivery", **COPIES, message="17")
    assert (wrong.status, wrong.field) == (400, "message")


@checks("drop_delivery")
async def check_drop_delivery(rest: RestCalls) -> None:
    message_id = await waiting(rest)
    await rest.ok("drop_delivery", **COPIES, message=message_id)
    again = await rest.refused("drop_delivery", **COPIES, message=message_id)
    assert (again.status, again.name) == (404, "message_not_waiting")


@checks("get_message_deliveries")
async def check_get_message_deliveries(rest: RestCalls) -> None:
    message_id = await waiting(rest)
    report = await rest.ok("get_message_deliveries", topic="news", message=message_id)
    (delivery,) = report.deliveries
    assert (report.id, report.tags, report.size) == (message_id, ["red"], 1)
    assert (delivery.subscription, delivery.state, delivery.endpoint) == ("copies", "waiting", "orders")
    gone = await rest.refused("get_message_deliveries", topic="news", message="Msg-00000000ffffffff")
    assert (gone.status, gone.name) == (404, "message_not_published")


@checks("match_subscriptions")
async def check_match_subscriptions(rest: RestCalls) -> None:
    await waiting(rest)
    found = await rest.ok("match_subscriptions", topic="news", query={"tags": "red"})
    assert (found.filter_type, found.matched) == ("tag", 1)
    (match,) = found.subscriptions
    assert (match.subscription, match.endpoint, match.fate, match.filters) == ("copies", "orders", "paused", [])
    wrong = await rest.refused("match_subscriptions", topic="news", query={"routing_key": "a.b"})
    assert (wrong.status, wrong.field) == (400, "routing_key")


@checks("retry_deliveries")
async def check_retry_deliveries(rest: RestCalls) -> None:
    await waiting(rest)
    # A message that waits has not failed.
    assert (await rest.ok("retry_deliveries", topic="news", subscription="copies")).messages == 0


@checks("drop_deliveries")
async def check_drop_deliveries(rest: RestCalls) -> None:
    await waiting(rest)
    assert (await rest.ok("get_subscription", topic="news", subscription="copies")).waiting == 1
    assert (await rest.ok("drop_deliveries", topic="news", subscription="copies")).messages == 1
    assert (await rest.ok("get_topic", topic="news")).retained == 0


@checks("rotate_secret")
async def check_rotate_secret(rest: RestCalls) -> None:
    await topic(rest)
    body = {"url": "https://example.com/hook"}
    made = await rest.ok("create_subscription", topic="news", subscription="hook", body=body)
    rotated = await rest.ok("rotate_secret", topic="news", subscription="hook", body={"overlap": 60})
    assert rotated.secret.startswith("whsec_")
    assert rotated.secret != made.secret
    queue = await rest.refused("rotate_secret", topic="news", subscription="copies")
    assert queue.status == 400


SCHEDULE = {"queue": "orders", "cron": "0 9 * * mon-fri", "zone": "Europe/Berlin", "body": "go"}


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


@checks("get_own_key")
async def check_get_own_key(rest: RestCalls) -> None:
    own = await rest.ok("get_own_key")
    assert own.secret_id == rest.key.secret_id
    assert own.account.startswith("account")
    assert own.roles == ["admin", "manage", "send", "consume", "read"]
    assert (own.names, own.is_admin) == (["*"], False)
    limited = await rest.ok("create_key", body={"roles": ["send"], "names": ["ord*"]})
    sender = rest.rig.table.keys[limited.key.secret_id] = KeySecret(limited.key.secret_id, limited.secret_key)
    shown = await rest.ok("get_own_key", key=sender)
    assert (shown.secret_id, shown.roles, shown.names) == (sender.secret_id, ["send"], ["ord*"])
    assert sender.secret_key.encode() not in (await rest.answer("get_own_key", key=sender)).body


@checks("list_keys")
async def check_list_keys(rest: RestCalls) -> None:
    keys = (await rest.ok("list_keys")).keys
    assert [key.secret_id for key in keys] == [rest.key.secret_id]
    assert (keys[0].account.startswith("account"), keys[0].enabled) == (True, True)
    raw = await rest.answer("list_keys")
    assert rest.key.secret_key.encode() not in raw.body


@checks("create_key")
async def check_create_key(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    assert made.secret_key
    assert made.secret_key not in repr(made)
    assert made.key in (await rest.ok("list_keys")).keys
    assert (set(made.key.roles), made.key.names) == ({"admin", "manage", "send", "consume", "read"}, ["*"])
    limited = await rest.ok("create_key", body={"roles": ["send"], "names": ["ord*"]})
    assert (limited.key.roles, limited.key.names) == (["send"], ["ord*"])
    sender = KeySecret(limited.key.secret_id, limited.secret_key)
    rest.rig.table.keys[sender.secret_id] = sender
    await rest.ok("send_message", queue="orders", body={"body": "x"}, key=sender)
    for refusal in (
        await rest.refused("receive_messages", queue="orders", key=sender),
        await rest.refused("list_keys", key=sender),
    ):
        assert (refusal.status, refusal.name) == (403, "permission_denied")
    denied = await rest.refused("create_key", query={"account": "admin"})
    assert (denied.status, denied.name) == (403, "permission_denied")
    wrong = await rest.refused("create_key", body={"roles": ["boss"]})
    assert (wrong.status, wrong.field) == (400, "roles[0]")
    other = await RestCalls(rest.rig).ok("create_key", query={"account": made.key.account})
    assert other.key.account == made.key.account


@checks("import_key")
async def check_import_key(rest: RestCalls) -> None:
    body = {"secret_key": "a-secret-of-a-test", "roles": ["consume"], "names": ["orders"]}
    imported = await rest.ok("import_key", secret_id="AKIDold", body=body)
    assert (imported.secret_id, imported.roles, imported.names) == ("AKIDold", ["consume"], ["orders"])
    assert await rest.ok("import_key", secret_id="AKIDold", body=body) == imported
    other = await rest.refused(
        "import_key", secret_id="AKIDold", body=body | {"secret_key": "another-secret-of-a-test"}
    )
    assert (other.status, other.name) == (409, "key_exists")
    for secret in (12345678901234567890, "short", "x" * 129):
        raw = await rest.answer("import_key", secret_id="AKIDnew", body={"secret_key": secret})
        assert raw.problem().status == 400
        assert str(secret).encode() not in raw.body


@checks("set_key_roles")
async def check_set_key_roles(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    await rest.ok("set_key_roles", secret_id=made.key.secret_id, body={"roles": ["read"], "names": None})
    roles = {key.secret_id: key.roles for key in (await rest.ok("list_keys")).keys}
    assert roles[made.key.secret_id] == ["read"]
    last = await rest.refused("set_key_roles", secret_id=rest.key.secret_id, body={"roles": ["read"], "names": None})
    assert (last.status, last.name) == (409, "last_key")


@checks("set_key")
async def check_set_key(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    await rest.ok("set_key", secret_id=made.key.secret_id, body={"enabled": False})
    enabled = {key.secret_id: key.enabled for key in (await rest.ok("list_keys")).keys}
    assert enabled[made.key.secret_id] is False
    last = await rest.refused("set_key", secret_id=rest.key.secret_id, body={"enabled": False})
    assert (last.status, last.name) == (409, "last_key")


@checks("delete_key")
async def check_delete_key(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    await rest.ok("delete_key", secret_id=made.key.secret_id)
    last = await rest.refused("delete_key", secret_id=rest.key.secret_id)
    assert (last.status, last.name) == (409, "last_key")


@checks("list_accounts")
async def check_list_accounts(rest: RestCalls) -> None:
    await rest.ok("create_account", account="first")
    assert set((await rest.ok("list_accounts")).names) == {"admin", "first"}


@checks("create_account")
async def check_create_account(rest: RestCalls) -> None:
    made = await rest.ok("create_account", account="shop")
    assert (made.key.account, bool(made.secret_key)) == ("shop", True)
    again = await rest.refused("create_account", account="shop")
    assert (again.status, again.name) == (409, "account_exists")


@checks("delete_account")
async def check_delete_account(rest: RestCalls) -> None:
    await rest.ok("create_account", account="empty")
    await rest.ok("delete_account", account="empty")
    assert (await rest.refused("list_keys", query={"account": "empty"})).name == "account_not_found"
    await rest.in_account("full")
    full = await rest.refused("delete_account", account="full")
    assert (full.status, full.name) == (409, "account_not_empty")


@checks("list_all_queues")
async def check_list_all_queues(rest: RestCalls) -> None:
    await rest.ok("create_queue", queue="payments")
    first = await rest.ok("list_all_queues", query={"limit": 1})
    assert (first.queues[0].account, first.queues[0].queue, first.next.queue) == ("admin", "orders", "orders")
    after = {"after_account": first.next.account, "after_queue": first.next.queue}
    assert (await rest.ok("list_all_queues", query=after)).queues[0].queue == "payments"


@checks("list_audit_entries")
async def check_list_audit_entries(rest: RestCalls) -> None:
    await rest.ok("create_queue", queue="payments", body={"delay": 5})
    await rest.ok("delete_queue", queue="payments")
    page = await rest.ok("list_audit_entries", query={"limit": 1})
    (deleted,) = page.entries
    assert (deleted.operation, deleted.name, deleted.changes) == ("delete_queue", "payments", "")
    assert (deleted.secret_id, deleted.peer.split(":")[0]) == (rest.key.secret_id, "127.0.0.1")
    rest_of = await rest.ok("list_audit_entries", query={"before": page.next, "search": "PAYMENTS"})
    created = rest_of.entries[0]
    assert (created.operation, created.changes, rest_of.next) == ("create_queue", "delay_ms=5000", None)
    newer = await rest.ok("list_audit_entries", query={"after": created.entry_id})
    assert [entry.operation for entry in newer.entries] == ["delete_queue"]
    late = {"since": created.time.isoformat(), "until": "2100-01-01T00:00:00Z", "operation": "create_queue"}
    assert "payments" in [entry.name for entry in (await rest.ok("list_audit_entries", query=late)).entries]
    assert (await rest.ok("list_audit_entries", query={"until": "2001-01-01T00:00:00Z"})).entries == []
    reader = await rest.ok("create_key", body={"roles": ["read"], "names": ["*"]})
    key = rest.rig.table.keys[reader.key.secret_id] = KeySecret(reader.key.secret_id, reader.secret_key)
    assert (await rest.refused("list_audit_entries", key=key)).name == "permission_denied"


@checks("list_segments")
async def check_list_segments(rest: RestCalls) -> None:
    await rest.ok("create_queue", queue="payments")
    await rest.ok("send_message", queue="payments", body={"body": "x"})
    page = await rest.ok("list_segments", query={"limit": 1000})
    newest = page.segments[-1]
    assert (newest.state, newest.kept_for, newest.live) == ("active", ["rows", "messages"], 1)
    assert (newest.holders[0].account, newest.holders[0].name) == ("admin", "payments")
    assert (page.total, page.next, page.sends_refused_reason) == (len(page.segments), None, None)
    assert newest.first_time <= newest.last_time <= page.time
    assert (await rest.ok("list_segments", query={"after": newest.number})).segments == []
    assert (await rest.refused("list_segments", query={"after": "-1"})).name == "invalid_argument"


@checks("list_connections")
async def check_list_connections(rest: RestCalls) -> None:
    admin, rest = rest, await rest.in_account("watched")
    page = await rest.ok("list_connections")
    (own,) = page.connections
    assert (own.account, own.secret_id) == ("watched", rest.key.secret_id)
    assert (own.peer.startswith("127.0.0.1:"), own.tls, own.requests > 0) == (True, False, True)
    assert (page.total, page.next_offset) == (1, None)
    assert own.since <= own.last_request <= page.time
    query = {"search": rest.key.secret_id, "sort": "bytes_in", "descending": "true", "limit": 1}
    assert [found.id for found in (await rest.ok("list_connections", query=query)).connections] == [own.id]
    assert (await rest.ok("list_connections", query={"search": "another"})).connections == []
    refused = await rest.refused("list_connections", query={"sort": "colour"})
    assert (refused.status, refused.field) == (400, "sort")
    assert {"admin", "watched"} <= {each.account for each in (await admin.ok("list_connections")).connections}


@checks("list_cmq_tcp_clients")
async def check_list_cmq_tcp_clients(rest: RestCalls) -> None:
    page = await rest.ok("list_cmq_tcp_clients")
    assert (page.clients, page.total, page.is_served, page.next_offset) == ([], 0, False, None)
    reader = await rest.ok("create_key", body={"roles": ["read"], "names": ["*"]})
    key = rest.rig.table.keys[reader.key.secret_id] = KeySecret(reader.key.secret_id, reader.secret_key)
    denied = await rest.refused("list_cmq_tcp_clients", key=key)
    assert (denied.status, denied.name) == (403, "permission_denied")
    assert (await rest.refused("list_cmq_tcp_clients", query={"limit": 1001})).field == "limit"


@checks("list_waiting_receives")
async def check_list_waiting_receives(rest: RestCalls) -> None:
    admin, rest = rest, await rest.in_account("waiting")
    assert (await rest.ok("list_waiting_receives")).receives == []
    polling = asyncio.create_task(rest.ok("receive_messages", queue="orders", body={"max_messages": 3, "wait": 30}))
    while not (page := await rest.ok("list_waiting_receives")).receives:
        assert not polling.done()
    (waiting,) = page.receives
    assert (waiting.queue, waiting.max_messages) == ("orders", 3)
    assert (waiting.secret_id, page.total, page.next_offset) == (rest.key.secret_id, 1, None)
    assert (waiting.until - waiting.since).total_seconds() == 30
    own = await rest.ok("list_waiting_receives", query={"connection": waiting.connection, "search": "ord"})
    assert own.receives == [waiting]
    assert (await rest.ok("list_waiting_receives", query={"search": "parcels"})).receives == []
    assert waiting in (await admin.ok("list_waiting_receives")).receives
    await rest.ok("send_message", queue="orders", body={"body": "x"})
    assert len((await polling).messages) == 1


@checks("get_settings")
async def check_get_settings(rest: RestCalls) -> None:
    denied = await (await rest.in_account("curious")).refused("get_settings")
    assert (denied.status, denied.name) == (403, "permission_denied")
    settings = {setting.name: setting for setting in (await rest.ok("get_settings")).settings}
    assert (settings["heartbeat_ms"].default, settings["durability"].allowed) == (30000, "fsync or os")
    assert settings["max_connections"].meaning.startswith("connections in total")


@pytest.mark.parametrize("tag", dict.fromkeys(operation.tag for operation in OPERATIONS))
async def test_each_operation_succeeds_and_has_its_own_errors(tag: str, rest: RestCalls):
    for number, operation in enumerate(operation for operation in OPERATIONS if operation.tag == tag):
        # Only ``admin`` administers accounts and the server; each other operation begins in an account of its own.
        calls = rest if tag in ("accounts", "server") else await rest.in_account(f"account{number}")
        assert operation.name in CHECKS, f"{operation.name} has no function with @checks in this file"
        await CHECKS[operation.name](calls)
        assert operation.name in calls.succeeded


# ---------------------------------------------------------------- errors of all operations


async def test_every_operation_refuses_a_request_without_its_key(rest: RestCalls):
    for operation in OPERATIONS:
        path = operation.path.format(**NAMES)
        for headers in ({}, {"Authorization": f"Bearer {rest.key.secret_id}:wrong"}):
            answer = await rest.send(operation.method, path, headers=headers)
            assert (answer.status, answer.problem().name) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cmqd", Basic realm="cmqd", charset="UTF-8"'


async def test_every_operation_refuses_an_unknown_query_parameter(rest: RestCalls):
    for operation in OPERATIONS:
        problem = await rest.refused(operation.name, **needs(operation), query={"srch": "x"})
        assert (problem.status, problem.field) == (400, "srch")


async def test_every_operation_refuses_a_body_that_is_not_its_own(rest: RestCalls):
    json, bearer = {"Content-Type": "application/json"}, rest.bearer()
    for operation in OPERATIONS:
        name, request = operation.name, needs(operation)
        if not operation.body.__struct_fields__:
            none = await rest.refused(name, **needs(operation, body={"force": True}))
            assert none.status == 400
            assert "takes no body" in none.detail
            continue
        names: dict[str, Any] = {part: value for part, value in request.items() if part != "body"}
        unknown = await rest.refused(name, **names, body={"srch": 1})
        assert (unknown.status, unknown.field) == (400, "srch")
        path = operation.path.format(**names)
        malformed = (await rest.send(operation.method, path, b"{", bearer | json)).problem()
        assert (malformed.status, malformed.name) == (400, "malformed_json")
        text = msgspec.json.encode(request["body"] or {})
        form = (await rest.send(operation.method, path, text, bearer | {"Content-Type": "text/plain"})).problem()
        assert (form.status, form.name) == (415, "unsupported_media_type")
        untyped = (await rest.send(operation.method, path, text, bearer)).problem()
        assert (untyped.status, untyped.name) == (415, "unsupported_media_type")
        packed = await rest.send(operation.method, path, text, bearer | json | {"Content-Encoding": "gzip"})
        assert (packed.status, packed.problem().field) == (415, "Content-Encoding")


async def test_every_operation_about_a_missing_thing_is_answered_with_404(rest: RestCalls):
    for part, problem in (
        ("queue", "queue_not_found"),
        ("topic", "topic_not_found"),
        ("schedule", "schedule_not_found"),
        ("secret_id", "key_not_found"),
        ("account", "account_not_found"),
    ):
        names = [name for name in with_problem(problem) if f"{{{part}}}" in BY_NAME[name].path]
        assert names
        for name in names:
            refusal = await rest.refused(name, **needs(BY_NAME[name]))
            assert (refusal.status, refusal.name, refusal.code) == (404, problem, int(ErrorCode[problem.upper()])), name


async def test_an_operation_on_a_missing_subscription_is_answered_with_404(rest: RestCalls):
    await rest.ok("ensure_topic", topic="news", body={})
    for name in with_problem("subscription_not_found"):
        refusal = await rest.refused(name, **needs(BY_NAME[name], topic="news"))
        assert (refusal.status, refusal.name) == (404, "subscription_not_found"), name


async def test_half_messages_need_a_transactional_queue(rest: RestCalls):
    for name in with_problem("not_transactional"):
        refusal = await rest.refused(name, **needs(BY_NAME[name], queue="orders"))
        assert (refusal.status, refusal.name) == (409, "not_transactional"), name


async def test_a_missing_queue_of_a_body_is_answered_with_404(rest: RestCalls):
    await rest.ok("ensure_topic", topic="news", body={})
    for name in ("create_subscription", "ensure_subscription"):
        refusal = await rest.refused(name, topic="news", subscription="copies", body={"queue": "missing"})
        assert (refusal.status, refusal.name) == (404, "queue_not_found")
    for name in ("create_schedule", "ensure_schedule"):
        refusal = await rest.refused(name, schedule="daily", body=BODIES[name])
        assert (refusal.status, refusal.name) == (404, "queue_not_found")
    await rest.ok("create_schedule", schedule="daily", body=SCHEDULE)
    refusal = await rest.refused("set_schedule", schedule="daily", body={"queue": "missing"})
    assert (refusal.status, refusal.name) == (404, "queue_not_found")


async def test_a_nearly_full_disk_is_answered_with_503_and_a_time(rest: RestCalls):
    # The gateway would repeat each request after the time that the broker names.
    rest.rig.retries = 0
    await half(rest)
    await topic(rest)
    rest.rig.server.hold_moves()
    for name in with_problem("disk_nearly_full"):
        names = {"queue": "half" if "half" in name else "orders", "topic": "news"}
        request = needs(BY_NAME[name])
        request |= {part: value for part, value in names.items() if part in request}

        answer = await rest.answer(name, **request)

        problem = answer.problem()
        assert (problem.status, problem.name, problem.retryable) == (503, "disk_nearly_full", True)
        assert problem.retry_after is not None
        assert int(answer.headers["Retry-After"]) >= 1


async def test_an_attribute_that_the_json_lacks_does_not_fail_the_reply_about_a_created_queue(
    rest: RestCalls, monkeypatch: pytest.MonkeyPatch
):
    known = QueueInfo.attributes

    def with_colour(info: QueueInfo) -> dict[str, Any]:
        return {**known(info), "colour": "red"}

    monkeypatch.setattr(QueueInfo, "attributes", with_colour)

    made = await rest.ok("create_queue", queue="new", body={"delay": 1})

    assert made.attributes.delay == 1
