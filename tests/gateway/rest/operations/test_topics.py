"""The operations of the JSON API with the tag topics: each succeeds, and has its own errors."""

from support.gateway.operation_checks import check_tag, checks, topic, waiting
from support.gateway.rest_calls import RestCalls


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


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("topics", rest)
