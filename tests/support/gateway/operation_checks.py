"""Checks of the operations of the JSON API: a function for each operation, and the objects that the checks make."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from cmqd_gateway.rest.table import OPERATIONS
from support.gateway.rest_calls import RestCalls

Check: TypeAlias = Callable[[RestCalls], Awaitable[None]]
CHECKS: dict[str, Check] = {}
"""A function for each operation: a success, and the errors that are its own."""

SCHEDULE = {"queue": "orders", "cron": "0 9 * * mon-fri", "zone": "Europe/Berlin", "body": "go"}
"""A valid body of a schedule."""


def checks(*names: str) -> Callable[[Check], Check]:
    """Return the decorator of the check of these operations."""

    def keep(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return keep


async def check_tag(tag: str, rest: RestCalls) -> None:
    """Check the operations with a tag."""
    for number, operation in enumerate(operation for operation in OPERATIONS if operation.tag == tag):
        # Only ``admin`` administers accounts and the server; each other operation begins in an account of its own.
        calls = rest if tag in ("accounts", "server") else await rest.in_account(f"account{number}")
        assert operation.name in CHECKS, f"{operation.name} has no function with @checks in {file_of_tag(tag)}"
        await CHECKS[operation.name](calls)
        assert operation.name in calls.succeeded


def file_of_tag(tag: str) -> str:
    """Return the name of the file with the checks of a tag."""
    return f"test_{tag.replace(' ', '_')}.py"


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


async def waiting(rest: RestCalls) -> str:
    """Publish a message to a paused subscription, which keeps it; return its id."""
    await topic(rest)
    await rest.ok("set_subscription", topic="news", subscription="copies", body={"paused": True})
    body = {"body": "/w==", "encoding": "base64", "tags": ["red"], "headers": {"a": "b"}}
    return (await rest.ok("publish_message", topic="news", body=body)).id


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
