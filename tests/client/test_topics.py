"""Topics and subscriptions through the client."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from cmqd_client import Client, ContentFormat, FilterType, RetryStrategy, Topic, connect
from cmqd_client.errors import (
    InvalidArgument,
    MessageNotPublished,
    MessageNotWaiting,
    MessageTooLarge,
    OutcomeUnknown,
    PushUnavailable,
    QueueNotFound,
    SubscriptionDiffers,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    UnknownOperation,
)
from cmqd_client.topics.delivery_reports import DeliveryState
from cmqd_client.topics.filter_tests import Fate, FilterMatch
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.topics import QueueSubscription, SubscriptionMatch
from support.client.faulty_link import LinkConnection
from support.client.local_server import LocalServer
from support.eventually import eventually

# ---------------------------------------------------------------------- topics


async def test_a_topic_is_made_looked_at_changed_and_deleted(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop", filter_type="routing", max_message_bytes=4096)
    info = await topic.set_attributes(max_message_bytes=2048)

    assert server.link.of(wire.CreateTopic)[0].attributes == {"filter_type": "routing", "max_message_bytes": 4096}
    assert (info.name, info.filter_type, info.max_message_bytes) == ("shop", FilterType.ROUTING, 2048)
    assert (info.retained, info.subscriptions, info.lifecycle, info.created) == (0, 0, 86_400.0, False)
    assert info.oldest_message_time is None
    assert info.create_time is not None
    assert info.details["filter_type"] == "routing"
    assert (await topic.attributes()).max_message_bytes == 2048
    await client.delete_topic("shop")
    with pytest.raises(TopicNotFound):
        await topic.attributes()


async def test_create_refuses_an_existing_name_and_ensure_other_attributes(client: Client, server: LocalServer) -> None:
    await client.create_topic("shop")
    with pytest.raises(TopicExists):
        await client.create_topic("shop")

    assert (await client.ensure_topic("shop", filter_type=FilterType.TAG)).name == "shop"
    assert (await client.ensure_topic_info("other")).created
    assert not (await client.ensure_topic_info("other")).created
    assert server.link.of(wire.EnsureTopic)[1].attributes == {}
    with pytest.raises(TopicDiffers) as caught:
        await client.ensure_topic("shop", filter_type="routing", max_message_bytes=65_536)
    assert caught.value.difference == {"filter_type": ("tag", "routing")}


async def test_create_uses_the_name_that_the_server_made_of_a_long_one(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("n" * 65)

    assert topic.name == "n" * 64
    assert (await topic.attributes()).name == topic.name


async def test_topics_are_listed_by_name(client: Client, server: LocalServer) -> None:
    for name in ("shop-b", "other", "shop-a", "shop-c"):
        await server.admin.create_topic(name)

    page = await client.topics(search="shop", offset=1, limit=1)

    assert (list(page), page.total, len(page)) == (["shop-b"], 3, 1)


async def test_a_topic_with_subscriptions_is_not_deleted(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("all", queue="orders")

    with pytest.raises(TopicInUse, match="unsubscribe"):
        await client.delete_topic("shop")


# ---------------------------------------------------------------------- publish


async def test_a_published_message_is_in_the_queues_that_match(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    await server.admin.ensure_queue("fruit")
    await topic.subscribe("fruit", queue="fruit", filter_tags=["apple", "pear"])
    await topic.subscribe("all", queue=client.queue("orders"))

    first = await topic.publish(b"one", tags=("apple",), headers={"k": "v"})
    second = await topic.publish(b"two", tags=["nut"])
    third = await topic.publish(b"three")

    assert [first.matched, second.matched, third.matched] == [2, 1, 1]
    assert first.id.startswith("Msg-")
    assert await server.bodies("fruit") == [b"one"]
    assert await server.bodies("orders") == [b"one", b"two", b"three"]
    assert (await client.queue("fruit").peek()).messages[0].headers == {"k": "v"}


async def test_an_unmatched_message_has_no_subscriptions(client: Client) -> None:
    topic = await client.create_topic("shop")
    assert (await topic.publish(b"one", tags=["apple"])).matched == 0


async def test_a_routing_key_finds_its_patterns(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop", filter_type=FilterType.ROUTING)
    await server.admin.ensure_queue("late")
    await topic.subscribe("one", queue="orders", binding_keys=["1.*.0", "2"])
    await topic.subscribe("any", queue="late", binding_keys=["1.#.0"])

    published = await topic.publish_batch([b"a", b"b", b"c"], routing_keys=["1.x.0", "1.0", "2"])

    assert [one.matched for one in published] == [2, 1, 1]
    assert await server.bodies("orders") == [b"a", b"c"]
    assert await server.bodies("late") == [b"a", b"b"]
    assert (await topic.publish(b"d", routing_key="2")).matched == 1
    with pytest.raises(InvalidArgument, match="filters by routing_keys"):
        await topic.publish(b"e", tags=["x"])


async def test_a_batch_has_labels_for_all_or_for_each(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    await topic.subscribe("red", queue="orders", filter_tags=["red"])

    for_all = await topic.publish_batch([b"a", b"b"], tags=["red", "big"], headers={"k": "v"})
    for_each = await topic.publish_batch(
        [b"c", b"d", b"e"], tags=[["red"], ["big"], []], headers=[{"k": "v"}, None, {}], dedup_ids=[None, "D", None]
    )
    none = await topic.publish_batch([b"f", b"g"], tags=[])

    assert [[one.matched for one in batch] for batch in (for_all, for_each, none)] == [[1, 1], [1, 0, 0], [0, 0]]
    first, second, third = server.link.of(wire.PublishMessages)
    assert (first.tags, first.headers, first.dedup_ids) == ([["red", "big"]], [{"k": "v"}] * 2, None)
    assert (second.tags, second.headers) == ([["red"], ["big"], []], [{"k": "v"}, None, {}])
    assert second.dedup_ids == [None, "D", None]
    assert (third.tags, third.routing_keys, third.headers) == (None, None, None)


async def test_an_empty_batch_asks_nothing_of_the_server(client: Client, server: LocalServer) -> None:
    assert await client.topic("nowhere").publish_batch([], tags=["x"]) == []
    assert not server.link.handled


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tags": ["a"], "routing_key": "b"}, ValueError),
        ({"tags": [["a"], ["b"]], "routing_keys": ["a", "b"]}, ValueError),
        ({"routing_key": "a", "routing_keys": ["a", "b"]}, ValueError),
        ({"routing_keys": ["a"]}, ValueError),
        ({"tags": [["a"]]}, ValueError),
        ({"headers": [None]}, ValueError),
        ({"dedup_ids": ["a", "b", "c"]}, ValueError),
        ({"tags": "ab"}, TypeError),
        ({"tags": ["a", ["b"]]}, TypeError),
        ({"tags": [[1], ["b"]]}, TypeError),
        ({"routing_keys": "ab"}, TypeError),
    ],
)
async def test_what_cannot_be_right_is_refused_without_being_sent(
    client: Client, server: LocalServer, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await client.topic("shop").publish_batch([b"a", b"b"], **options)
    assert not server.link.handled


async def test_a_single_publish_is_refused_likewise(client: Client, server: LocalServer) -> None:
    topic = client.topic("shop")
    with pytest.raises(ValueError, match="not both"):
        await topic.publish(b"a", tags=["a"], routing_key="b")
    with pytest.raises(TypeError, match="list of strings"):
        await topic.publish(b"a", tags="apple")
    with pytest.raises(TypeError, match="encode it first"):
        await topic.publish("a")  # pyright: ignore[reportArgumentType]
    assert not server.link.handled


async def test_a_body_that_is_too_large_names_the_limit(client: Client) -> None:
    topic = await client.create_topic("shop", max_message_bytes=1024)
    with pytest.raises(MessageTooLarge) as caught:
        await topic.publish(b"x" * 1025)
    assert caught.value.details["limit"] == 1024


async def test_a_publish_whose_answer_was_lost_is_repeated_and_published_once(
    client: Client, server: LocalServer
) -> None:
    topic = await client.create_topic("shop")
    await topic.subscribe("all", queue="orders")
    server.link.lose_answer(wire.PublishMessages)

    published = await topic.publish(b"one")
    again = await topic.publish(b"two")

    first, second, third = server.link.of(wire.PublishMessages)
    assert (first.session, first.sequence) == (second.session, second.sequence)
    assert (third.session, third.sequence) == (first.session, first.sequence + 1)
    assert first.session != 0
    assert await server.bodies("orders") == [b"one", b"two"]
    assert (published.matched, again.matched) == (None, 1)
    assert server.link.connections_made == 2


async def test_a_publish_that_never_arrived_is_made_again(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    await topic.subscribe("all", queue="orders")
    server.link.drop_request(wire.PublishMessages, 2)

    published = await topic.publish_batch([b"one", b"two"])

    assert await server.bodies("orders") == [b"one", b"two"]
    assert [one.matched for one in published] == [1, 1]


async def test_a_publish_that_is_never_answered_ends_as_outcome_unknown(server: LocalServer) -> None:
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("all", queue="orders")
    server.link.lose_answer(wire.PublishMessages, 2)
    async with connect(server.url, retries=1) as client:
        with pytest.raises(OutcomeUnknown):
            await client.topic("shop").publish(b"one")

    assert await server.bodies("orders") == [b"one"]


async def test_a_dedup_id_is_published_once(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    await topic.subscribe("all", queue="orders")

    first = await topic.publish(b"one", dedup_id="A")
    second = await topic.publish(b"other", dedup_id="A")

    assert (first.id, first.matched, second.matched) == (second.id, 1, None)
    assert await server.bodies("orders") == [b"one"]


# ---------------------------------------------------------------------- subscriptions


async def test_a_subscription_to_a_url_has_a_secret_once(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")

    made = await topic.subscribe(
        "hook",
        url="https://shop.example/hook",
        filter_tags=["apple"],
        strategy=RetryStrategy.BACKOFF,
        content_format=ContentFormat.SIMPLIFIED,
    )

    assert (made.topic, made.name) == ("shop", "hook")
    assert made.secret is not None
    assert made.secret.startswith("whsec_")
    assert server.link.of(wire.Subscribe)[0].attributes == {
        "endpoint": "https://shop.example/hook",
        "filter_tags": ["apple"],
        "strategy": "backoff",
        "content_format": "simplified",
    }
    assert topic.subscription("hook").secret is None
    assert (await topic.subscribe("hook", url="https://shop.example/hook", ensure=True)).secret is None
    assert (await topic.subscribe("copy", queue="orders")).secret is None
    assert "whsec" not in repr(made)


async def test_a_subscription_tells_its_undelivered_messages(client: Client, server: LocalServer) -> None:
    await client.create_topic("shop")
    server.link.answer(wire.GetSubscription, _subscription_info)

    info = await client.topic("shop").subscription("hook").info()

    assert (info.topic, info.name, info.protocol, info.endpoint) == (
        "shop",
        "hook",
        "https",
        "https://shop.example/hook",
    )
    assert (info.strategy, info.content_format) == (RetryStrategy.BACKOFF, ContentFormat.JSON)
    assert (info.filter_tags, info.binding_keys, info.paused, info.created, info.secret) == (
        ["a"],
        [],
        False,
        False,
        None,
    )
    assert (info.waiting, info.in_retry, info.delivered, info.dropped, info.blocked) == (2, 1, 7, 2, True)
    assert info.last_error == "answered 500"
    assert info.last_error_time == datetime.fromtimestamp(1, UTC)
    assert info.next_attempt_time == datetime.fromtimestamp(2, UTC)
    assert info.create_time is not None


def _subscription_info(
    _: LinkConnection, request: wire.GetSubscription, strategy: str = "backoff"
) -> wire.SubscriptionInfo:
    """The answer about a subscription in trouble."""
    return wire.SubscriptionInfo(
        request.request_id,
        topic=request.topic,
        subscription=request.subscription,
        attributes={
            "protocol": "https",
            "endpoint": "https://shop.example/hook",
            "strategy": strategy,
            "content_format": "json",
            "filter_tags": ["a"],
            "binding_keys": [],
            "paused": False,
        },
        counts={"waiting": 2, "in_retry": 1, "delivered": 7, "dropped": 2},
        facts={
            "blocked": True,
            "last_error": "answered 500",
            "last_error_ms": 1000,
            "next_attempt_ms": 2000,
            "created_ms": 500,
            "modified_ms": 600,
        },
    )


async def test_a_strategy_of_a_newer_server_is_a_plain_string(client: Client, server: LocalServer) -> None:
    server.link.answer(wire.GetSubscription, partial(_subscription_info, strategy="prayer"))
    assert (await client.topic("shop").subscription("a").info()).strategy == "prayer"


async def test_the_secret_is_not_shown_by_accident(client: Client) -> None:
    topic = await client.create_topic("shop")
    info = await topic.subscribe_info("hook", url="http://shop.example")
    rotated = await topic.subscription("hook").rotate_secret()

    assert info.secret is not None
    assert info.secret.startswith("whsec_")
    assert "whsec" not in repr(info)
    assert rotated.secret.startswith("whsec_")
    assert rotated.secret != info.secret
    assert "whsec" not in repr(rotated)


async def test_a_secret_is_rotated_with_an_overlap(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("hook", url="https://shop.example")
    hook = client.topic("shop").subscription("hook")

    rotated = await hook.rotate_secret(overlap=timedelta(hours=1))

    assert timedelta(minutes=59) < rotated.overlap_until - datetime.now(UTC) <= timedelta(hours=1)
    await hook.rotate_secret()
    assert [request.overlap_ms for request in server.link.of(wire.RotateSecret)] == [3_600_000, None]


async def test_subscriptions_are_changed_paused_and_resumed(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    subscription = await topic.subscribe("all", queue="orders", filter_tags=["a"])

    info = await subscription.set(filter_tags=(), strategy=RetryStrategy.BACKOFF, content_format=ContentFormat.JSON)
    await subscription.pause()
    paused = await subscription.info()
    await topic.publish(b"one")
    await subscription.resume()

    assert (info.filter_tags, info.strategy, paused.paused) == ([], "backoff", True)
    assert [request.attributes for request in server.link.of(wire.SetSubscriptionAttributes)] == [
        {"filter_tags": [], "strategy": "backoff", "content_format": "json"},
        {"paused": True},
        {"paused": False},
    ]
    assert not (await subscription.info()).paused


async def test_waiting_messages_are_tried_again_or_dropped(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    hook = await topic.subscribe("hook", url="http://shop.example")
    await topic.publish_batch([b"a", b"b", b"c"])
    await eventually(lambda: len(server.pushes) == 3)
    await server.end_pushes("answered 500", count=2)

    assert (await topic.attributes()).retained == 3
    assert (await hook.retry_now()).messages == 2
    assert (await hook.drop_waiting()).messages == 3
    assert (await hook.info()).dropped == 3


async def test_messages_that_wait_are_shown_retried_and_dropped_one_by_one(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop")
    hook = await topic.subscribe("hook", url="http://shop.example")
    sent = await topic.publish_batch([b"a", b"b", b"c"], tags=["red"], headers={"k": "v"})
    await eventually(lambda: len(server.pushes) == 3)
    await server.end_pushes("answered 500", count=2)

    page = await hook.peek(2)
    assert [(one.id, one.state, one.attempts, one.last_error) for one in page] == [
        (sent[0].id, DeliveryState.IN_RETRY, 1, "answered 500"),
        (sent[1].id, DeliveryState.IN_RETRY, 1, "answered 500"),
    ]
    first = page.messages[0]
    assert (first.body, first.headers, first.size, first.tags, first.routing_key) == (
        b"a",
        {"k": "v"},
        1,
        ["red"],
        None,
    )
    assert first.next_attempt_time is not None
    assert first.last_error_time is not None
    assert first.publish_time <= first.last_error_time < first.next_attempt_time
    assert page.next_start is not None
    (rest,) = await hook.peek(start=page.next_start, bodies=False)
    assert (rest.id, rest.state, rest.body, rest.headers, rest.size) == (sent[2].id, "under_way", None, None, 1)

    assert (await hook.retry(sent[0].id)).messages == 1
    await hook.drop(sent[1].id)
    with pytest.raises(MessageNotWaiting, match=sent[1].id):
        await hook.drop(sent[1].id)
    with pytest.raises(MessageNotWaiting):
        await hook.retry(sent[1].id)
    with pytest.raises(ValueError, match="not a message id"):
        await hook.retry("7")
    assert [one.id for one in await hook.peek(bodies=False)] == [sent[0].id, sent[2].id]
    await eventually(lambda: len(server.pushes) == 2)


async def test_the_deliveries_of_a_message_are_reported(client: Client, server: LocalServer) -> None:
    topic = await client.create_topic("shop", filter_type="routing")
    await client.ensure_queue("orders")
    await topic.subscribe("to-orders", queue="orders", binding_keys=["#"])
    await topic.subscribe("hook", url="http://shop.example", binding_keys=["a.*"])
    await topic.subscribe("other", url="http://other.example", binding_keys=["b.*"])
    sent = await topic.publish(b"abc", routing_key="a.b")
    await eventually(lambda: server.pushes)
    await server.end_pushes("answered 500")
    (copy,) = await client.queue("orders").receive()

    report = await topic.deliveries(sent.id)

    assert (report.id, report.size, report.tags, report.routing_key, len(report)) == (sent.id, 3, [], "a.b", 2)
    queue, hook = report
    assert (queue.subscription, queue.state, queue.endpoint) == ("to-orders", DeliveryState.DELIVERED, "orders")
    assert (queue.copy_id, queue.delivered_time, queue.attempts) == (copy.id, report.publish_time, 0)
    assert (hook.subscription, hook.state, hook.attempts) == ("hook", DeliveryState.IN_RETRY, 1)
    assert (hook.last_error, hook.copy_id, hook.drop_reason) == ("answered 500", None, None)
    with pytest.raises(MessageNotPublished, match=copy.id):
        await topic.deliveries(copy.id)


async def test_labels_are_tested_against_the_subscriptions(client: Client, server: LocalServer) -> None:
    topic = await server.admin.ensure_topic("shop", filter_type="routing")
    await topic.subscribe("some", queue="orders", binding_keys=["eu.#", "*.new"])
    await topic.subscribe("hook", url="https://shop.example", binding_keys=["us.#"])

    found = await client.topic("shop").match(routing_key="us.new")

    assert (found.filter_type, found.matched, len(found)) == ("routing", 2, 2)
    assert [(one.subscription, one.protocol, one.endpoint, one.fate) for one in found] == [
        ("hook", "https", "https://shop.example", Fate.POSTED),
        ("some", "queue", "orders", Fate.STORED),
    ]
    assert found.subscriptions[1].filters == [FilterMatch("eu.#", False, 1), FilterMatch("*.new", True, None)]
    assert not server.pushes, "nothing was published"
    with pytest.raises(InvalidArgument):
        await client.topic("shop").match(tags=["red"])
    with pytest.raises(TypeError):
        await client.topic("shop").match(tags="red")
    with pytest.raises(TopicNotFound):
        await client.topic("other").match()


async def test_a_fate_that_the_client_does_not_know_is_a_text(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_topic("shop")
    match = SubscriptionMatch("some", "queue", "orders", True, "frozen", [])

    def newer(_: LinkConnection, request: wire.Request) -> wire.AnyReply:
        return wire.SubscriptionsMatched(request.request_id, "tag", 1, [match])

    server.link.answer(wire.MatchSubscriptions, newer)

    (found,) = await client.topic("shop").match()

    assert (found.fate, type(found.fate)) == ("frozen", str)


async def test_subscriptions_are_listed_and_ended(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_topic("shop")
    for name in ("bbb", "aaa", "ccc"):
        await server.admin.topic("shop").subscribe(name, url="https://shop.example", filter_tags=[name])
    topic = client.topic("shop")
    await topic.publish(b"x", tags=["bbb"])
    await eventually(lambda: server.pushes)
    await server.end_pushes("no route")

    page = await topic.subscriptions(offset=1, limit=1)

    assert (page.total, len(page)) == (3, 1)
    (found,) = page
    assert (found.name, found.protocol, found.endpoint, found.last_error) == (
        "bbb",
        "https",
        "https://shop.example",
        "no route",
    )
    assert (found.paused, found.waiting, found.in_retry) == (False, 0, 1)
    await topic.subscription("bbb").unsubscribe()
    assert [one.name for one in await topic.subscriptions()] == ["aaa", "ccc"]
    with pytest.raises(SubscriptionNotFound):
        await topic.subscription("bbb").info()
    with pytest.raises(TopicNotFound):
        await client.topic("nowhere").subscriptions()


async def test_subscribe_refuses_an_existing_name_and_ensure_other_attributes(client: Client) -> None:
    topic = await client.create_topic("shop")
    await topic.subscribe("all", queue="orders", filter_tags=["a"])

    with pytest.raises(SubscriptionExists):
        await topic.subscribe("all", queue="orders", filter_tags=["a"])
    assert (await topic.subscribe("all", queue="orders", ensure=True)).name == "all"
    with pytest.raises(SubscriptionDiffers) as caught:
        await topic.subscribe("all", queue="orders", filter_tags=["b"], ensure=True)
    assert caught.value.difference == {"filter_tags": (["a"], ["b"])}
    with pytest.raises(QueueNotFound):
        await topic.subscribe("other", queue="nowhere")


async def test_a_server_that_posts_nothing_says_so(client: Client, server: LocalServer) -> None:
    server.link.refuse(wire.Subscribe, ErrorCode.PUSH_UNAVAILABLE)
    with pytest.raises(PushUnavailable):
        await client.topic("shop").subscribe("hook", url="http://shop.example")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ValueError),
        ({"queue": "orders", "url": "http://a"}, ValueError),
        ({"url": "orders"}, ValueError),
        ({"url": "ftp://user:password@a"}, ValueError),
        ({"queue": "orders", "filter_tags": ["a"], "binding_keys": ["b"]}, ValueError),
        ({"queue": "orders", "filter_tags": "a"}, TypeError),
        ({"queue": "orders", "binding_keys": [1]}, TypeError),
    ],
)
async def test_a_subscription_that_cannot_be_right_is_refused_without_being_sent(
    client: Client, server: LocalServer, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        await client.topic("shop").subscribe("a", **options)
    assert "password" not in str(refused.value)
    assert not server.link.handled


async def test_the_subscriptions_to_a_queue_name_their_topics(client: Client, server: LocalServer) -> None:
    for name in ("shop", "art"):
        topic = await server.admin.ensure_topic(name)
        await topic.subscribe("all", queue="orders")
    orders = client.queue("orders")

    page = await orders.subscriptions(offset=1)

    assert (len(page), page.total) == (1, 2)
    (listed,) = page
    assert listed == QueueSubscription("all", "queue", "orders", False, 0, 0, None, "shop")
    server.link.lose_answer(wire.ListQueueSubscriptions)
    assert [each.topic for each in await orders.subscriptions()] == ["art", "shop"]
    with pytest.raises(QueueNotFound):
        await client.queue("nowhere").subscriptions()
    server.link.refuse(wire.ListQueueSubscriptions, ErrorCode.UNKNOWN_OPERATION, "operation 102 is not known")
    with pytest.raises(UnknownOperation, match="operation 102 is not known"):
        await orders.subscriptions()


# ---------------------------------------------------------------------- repeats


async def _subscribe(topic: Topic) -> object:
    return await topic.subscribe("new", queue="orders")


async def _unsubscribe(topic: Topic) -> object:
    return await topic.subscription("hook").unsubscribe()


async def _retry(topic: Topic) -> object:
    return await topic.subscription("hook").retry_now()


async def _drop(topic: Topic) -> object:
    return await topic.subscription("hook").drop_waiting()


async def _retry_one(topic: Topic) -> object:
    return await topic.subscription("hook").retry("Msg-0000000000000001")


async def _drop_one(topic: Topic) -> object:
    return await topic.subscription("hook").drop("Msg-0000000000000001")


async def _rotate(topic: Topic) -> object:
    return await topic.subscription("hook").rotate_secret()


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (wire.Subscribe, _subscribe),
        (wire.Unsubscribe, _unsubscribe),
        (wire.RetryDeliveries, _retry),
        (wire.DropDeliveries, _drop),
        (wire.RetryDelivery, _retry_one),
        (wire.DropDelivery, _drop_one),
        (wire.RotateSecret, _rotate),
    ],
)
async def test_what_is_not_safe_to_repeat_is_not_repeated(
    client: Client, server: LocalServer, kind: type[wire.Request], call: Callable[[Topic], Awaitable[object]]
) -> None:
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("hook", url="https://shop.example")
    server.link.lose_answer(kind)

    with pytest.raises(OutcomeUnknown):
        await call(client.topic("shop"))

    assert len(server.link.of(kind)) == 1


async def test_making_and_deleting_a_topic_is_not_repeated(client: Client, server: LocalServer) -> None:
    server.link.lose_answer(wire.CreateTopic)
    server.link.lose_answer(wire.DeleteTopic)

    with pytest.raises(OutcomeUnknown):
        await client.create_topic("shop")
    with pytest.raises(OutcomeUnknown):
        await client.delete_topic("shop")

    assert list(await client.topics()) == []


async def test_ensure_reads_and_settings_are_repeated(client: Client, server: LocalServer) -> None:
    for kind in (
        wire.EnsureTopic,
        wire.ListTopics,
        wire.GetTopicAttributes,
        wire.SetTopicAttributes,
        wire.EnsureSubscription,
        wire.ListSubscriptions,
        wire.GetSubscription,
        wire.SetSubscriptionAttributes,
    ):
        server.link.lose_answer(kind)

    topic = await client.ensure_topic("shop")
    subscription = await topic.subscribe("hook", url="https://shop.example", ensure=True)

    assert list(await client.topics()) == ["shop"]
    assert (await topic.attributes()).subscriptions == 1
    assert (await topic.set_attributes(max_message_bytes=1024)).max_message_bytes == 1024
    # The first attempt created it, and its answer had the secret.
    assert subscription.secret is None
    assert len(await topic.subscriptions()) == 1
    assert (await subscription.info()).name == "hook"
    assert (await subscription.set(paused=True)).paused
    assert repr(topic) == "<Topic 'shop'>"
    assert repr(subscription) == "<Subscription 'hook' of 'shop'>"


# ---------------------------------------------------------------------- copies


async def test_a_copy_names_its_published_message(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("all", queue="orders")
    orders = client.queue("orders")
    published = await client.topic("shop").publish(b"a", tags=["red", "big"])

    (peeked,) = await orders.peek()
    (message,) = await orders.receive()

    copy_of = message.copy_of
    assert copy_of == peeked.copy_of
    assert copy_of is not None
    assert (copy_of.topic, copy_of.subscription, copy_of.id) == ("shop", "all", published.id)
    assert (copy_of.tags, copy_of.routing_key) == (["red", "big"], None)
    assert copy_of.publish_time <= message.enqueue_time
    assert message.id != published.id
    assert message.origin is None
    await server.put("orders", b"b")
    assert (await orders.receive())[0].copy_of is None


async def test_a_copy_has_its_routing_key_and_without_tags_it_has_none(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_topic("routes", filter_type="routing")
    await server.admin.topic("routes").subscribe("north", queue="orders", binding_keys=["a.#"])
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("all", queue="orders")
    await client.topic("routes").publish(b"a", routing_key="a.b")
    await client.topic("shop").publish(b"b")

    first, second = await client.queue("orders").receive(2)

    assert first.copy_of is not None
    assert second.copy_of is not None
    assert (first.copy_of.subscription, first.copy_of.tags, first.copy_of.routing_key) == ("north", [], "a.b")
    assert (second.copy_of.tags, second.copy_of.routing_key) == ([], None)


async def test_a_copy_that_dies_is_still_known(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_queue("dead")
    await server.admin.ensure_topic("shop")
    await server.admin.topic("shop").subscribe("all", queue="orders")
    published = await client.topic("shop").publish(b"a")
    await server.bury("orders", "dead")

    (message,) = await client.queue("dead").receive()

    assert message.origin is not None
    assert message.copy_of is not None
    assert message.copy_of.id == published.id
