"""The JSON API's view into topics: waiting messages of a subscription, a single message, and its deliveries."""

from typing import Any

import pytest

from support.client.local_server import LocalServer
from support.eventually import eventually
from support.gateway.rest_calls import RestCalls

HOOK: dict[str, Any] = {"topic": "news", "subscription": "hook"}


@pytest.fixture
async def sent(rest: RestCalls, server: LocalServer) -> list[str]:
    """The ids of three messages: the URL refused the first two, and has not answered to the third."""
    await rest.ok("ensure_topic", topic="news", body={})
    await rest.ok("create_subscription", **HOOK, body={"url": "http://a.b"})
    await rest.ok("create_subscription", topic="news", subscription="copies", body={"queue": "orders"})
    messages = [{"body": "a", "tags": ["red"]}, {"body": "/w==", "encoding": "base64"}, {"body": "c"}]
    ids = [(await rest.ok("publish_message", topic="news", body=message)).id for message in messages]
    await eventually(lambda: len(server.pushes) == 3)
    # Broker time stands: on a slow machine the retries would be under way again before a test looks.
    server.broker.clock.stop()
    await server.end_pushes("answered 500", count=2)
    return ids


async def test_messages_that_wait_are_shown_in_pages(rest: RestCalls, sent: list[str]) -> None:
    first = await rest.ok("peek_deliveries", **HOOK, query={"max_messages": 2})
    second = await rest.ok("peek_deliveries", **HOOK, query={"start": first.next_start, "bodies": "false"})

    assert [(one.id, one.state, one.body, one.encoding) for one in first.messages] == [
        (sent[0], "in_retry", "a", "utf-8"),
        (sent[1], "in_retry", "/w==", "base64"),
    ]
    message = first.messages[0]
    assert (message.attempts, message.last_error, message.tags) == (1, "answered 500", ["red"])
    (last,) = second.messages
    assert (last.id, last.state, last.body, last.encoding) == (sent[2], "under_way", None, None)
    assert second.next_start is None


async def test_one_message_is_retried_and_another_dropped(
    rest: RestCalls, server: LocalServer, sent: list[str]
) -> None:
    assert (await rest.ok("retry_delivery", **HOOK, message=sent[0])).messages == 1
    await rest.ok("drop_delivery", **HOOK, message=sent[1])

    await eventually(lambda: len(server.pushes) == 2)
    left = await rest.ok("peek_deliveries", **HOOK)
    assert [one.id for one in left.messages] == [sent[0], sent[2]]
    for name in ("retry_delivery", "drop_delivery"):
        problem = await rest.refused(name, **HOOK, message=sent[1])
        assert (problem.status, problem.name) == (404, "message_not_waiting")
        problem = await rest.refused(name, **HOOK, message="7")
        assert (problem.status, problem.field) == (400, "message")


async def test_the_deliveries_of_a_message_are_reported(rest: RestCalls, sent: list[str]) -> None:
    report = await rest.ok("get_message_deliveries", topic="news", message=sent[0])

    copy, hook = report.deliveries
    assert (copy.subscription, copy.state, copy.endpoint) == ("copies", "delivered", "orders")
    assert copy.delivered_time == report.publish_time
    assert (hook.subscription, hook.state, hook.attempts) == ("hook", "in_retry", 1)
    problem = await rest.refused("get_message_deliveries", topic="news", message=copy.copy_id)
    assert (problem.status, problem.name) == (404, "message_not_published")
