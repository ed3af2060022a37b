"""The operations of the JSON API with the tag subscriptions: each succeeds, and has its own errors."""

from typing import Any

from support.gateway.operation_checks import check_tag, checks, topic, waiting
from support.gateway.rest_calls import RestCalls

COPIES: dict[str, Any] = {"topic": "news", "subscription": "copies"}


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


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("subscriptions", rest)
