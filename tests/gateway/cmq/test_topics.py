"""Actions of API 2.0 on topics and subscriptions, and publishes."""

from typing import Any

import pytest

from cmqd_gateway.cmq.reasons import Reason
from support.client.local_server import LocalServer
from support.gateway.cmq_calls import CmqCalls

# ---------------------------------------------------------------------- topics


async def test_a_new_topic_has_cmqs_defaults_and_an_id(calls: CmqCalls) -> None:
    created = await calls.ok("CreateTopic", topicName="news")

    fields = await calls.ok("GetTopicAttributes", topicName="news")
    assert created == {"topicId": fields["topicId"], "topicName": "news"}
    assert fields["topicId"].startswith("topic-")
    assert (fields["filterType"], fields["maxMsgSize"], fields["msgRetentionSeconds"]) == (1, 65_536, 86_400)
    assert fields["msgCount"] == 0
    assert fields["createTime"] == fields["lastModifyTime"] > 1_000_000_000


async def test_a_topic_filters_by_routing_keys(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news", filterType=2, maxMsgSize=1024)

    fields = await calls.ok("GetTopicAttributes", topicName="news")

    assert (fields["filterType"], fields["maxMsgSize"]) == (2, 1024)


async def test_a_long_name_is_cut_and_the_answer_has_the_name_that_was_used(calls: CmqCalls) -> None:
    assert (await calls.ok("CreateTopic", topicName="n" * 70))["topicName"] == "n" * 64


async def test_the_size_of_messages_changes(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news")

    assert await calls.ok("SetTopicAttributes", topicName="news", maxMsgSize=2048) == {}
    assert await calls.ok("SetTopicAttributes", topicName="news") == {}

    assert (await calls.ok("GetTopicAttributes", topicName="news"))["maxMsgSize"] == 2048
    assert (await calls.refused("SetTopicAttributes", topicName="other")).reason is Reason.TOPIC_NOT_FOUND


async def test_topics_are_listed_by_name_in_pages(calls: CmqCalls) -> None:
    ids = [(await calls.ok("CreateTopic", topicName=f"news-{number}"))["topicId"] for number in range(3)]

    page = await calls.ok("ListTopic", searchWord="news", offset=1, limit=1)

    assert page == {"totalCount": 3, "topicList": [{"topicId": ids[1], "topicName": "news-1"}]}


async def test_a_topic_without_subscriptions_is_deleted(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news")

    assert await calls.ok("DeleteTopic", topicName="news") == {}

    assert (await calls.ok("ListTopic"))["totalCount"] == 0


# ---------------------------------------------------------------------- subscriptions


async def subscribed(calls: CmqCalls, **parameters: Any) -> dict[str, Any]:
    """Make the topic ``news`` and subscribe the queue ``orders``; return the attributes of the subscription."""
    filter_type = 2 if {"bindingKey", "bindindKey"} & parameters.keys() else 1
    await calls.ok("CreateTopic", topicName="news", filterType=filter_type)
    given = {"protocol": "queue", "endpoint": "orders"} | parameters
    await calls.ok("Subscribe", topicName="news", subscriptionName="sub", **given)
    return await calls.ok("GetSubscriptionAttributes", topicName="news", subscriptionName="sub")


async def test_a_queue_subscribes(calls: CmqCalls) -> None:
    fields = await subscribed(calls)

    expected: dict[str, Any] = {
        "topicOwner": "admin",
        "topicName": "news",
        "subscriptionName": "sub",
        "msgCount": 0,
        "protocol": "queue",
        "protocal": "queue",
        "endpoint": "orders",
        "notifyStrategy": "EXPONENTIAL_DECAY_RETRY",
        "notifyContentFormat": "JSON",
        "bindingKey": [],
        "bindindKey": [],
        "filterTag": [],
        "filterTags": [],
        "lastError": "",
    }
    assert {name: fields[name] for name in expected} == expected
    assert fields["subscriptionId"].startswith("subsc-")
    assert fields["createTime"] > 1_000_000_000


@pytest.mark.parametrize("url", ["http://shop.example/hook", "https://shop.example:8443/hook?a=b"])
async def test_a_url_subscribes_and_its_secret_is_shown_once(url: str, calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news")
    protocol = url.partition(":")[0]

    made = await calls.ok(
        "Subscribe",
        topicName="news",
        subscriptionName="hook",
        protocol=protocol,
        endpoint=url,
        notifyStrategy="BACKOFF_RETRY",
        notifyContentFormat="SIMPLIFIED",
    )

    fields = await calls.ok("GetSubscriptionAttributes", topicName="news", subscriptionName="hook")
    assert made["secret"].startswith("whsec_")
    assert "secret" not in fields
    assert (fields["subscriptionId"], fields["protocol"], fields["endpoint"]) == (made["subscriptionId"], protocol, url)
    assert (fields["notifyStrategy"], fields["notifyContentFormat"]) == ("BACKOFF_RETRY", "SIMPLIFIED")


async def test_the_misspelled_protocol_is_taken(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news")

    made = await calls.ok("Subscribe", topicName="news", subscriptionName="sub", protocal="queue", endpoint="orders")

    assert list(made) == ["subscriptionId"]


@pytest.mark.parametrize("name", ["filterTag", "filterTags"])
@pytest.mark.parametrize("first_index", [0, 1])
async def test_filter_tags_have_two_spellings_and_indexes_from_0_or_1(
    name: str, first_index: int, calls: CmqCalls
) -> None:
    calls.first_index = first_index

    fields = await subscribed(calls, **{name: ["red", "big", "red"]})

    assert fields["filterTag"] == fields["filterTags"] == ["red", "big"]


async def test_attributes_of_a_subscription_change(calls: CmqCalls) -> None:
    await subscribed(calls, filterTag=["red"])
    names = {"topicName": "news", "subscriptionName": "sub"}

    await calls.ok("SetSubscriptionAttributes", **names, notifyStrategy="BACKOFF_RETRY", filterTag=["big"])
    changed = await calls.ok("GetSubscriptionAttributes", **names)
    await calls.ok("SetSubscriptionAttributes", **names)
    kept = await calls.ok("GetSubscriptionAttributes", **names)

    assert (changed["notifyStrategy"], changed["filterTag"]) == ("BACKOFF_RETRY", ["big"])
    # A change without attributes is a change all the same: it counts as the last one, perhaps a second later.
    assert {**kept, "lastModifyTime": changed["lastModifyTime"]} == changed


@pytest.mark.parametrize("name", ["bindingKey", "bindindKey"])
async def test_binding_keys_change_also_by_the_name_of_the_php_sdk(name: str, calls: CmqCalls) -> None:
    fields = await subscribed(calls, **{name: ["a.*", "b.#"]})
    names = {"topicName": "news", "subscriptionName": "sub"}

    await calls.ok("SetSubscriptionAttributes", **names, **{name: ["#"]})

    assert fields["bindingKey"] == fields["bindindKey"] == ["a.*", "b.#"]
    assert (await calls.ok("GetSubscriptionAttributes", **names))["bindingKey"] == ["#"]


@pytest.mark.parametrize("action", ["ClearSubscriptionFilterTags", "ClearSUbscriptionFIlterTags"])
async def test_filter_tags_are_cleared_also_by_the_name_of_the_java_sdk(action: str, calls: CmqCalls) -> None:
    await subscribed(calls, filterTag=["red"])

    assert await calls.ok(action, topicName="news", subscriptionName="sub") == {}

    fields = await calls.ok("GetSubscriptionAttributes", topicName="news", subscriptionName="sub")
    assert fields["filterTag"] == []


async def test_subscriptions_are_listed_by_name_in_pages(calls: CmqCalls) -> None:
    fields = await subscribed(calls)
    await calls.ok("Subscribe", topicName="news", subscriptionName="sub-2", protocol="queue", endpoint="orders")
    await calls.ok("Subscribe", topicName="news", subscriptionName="tap", protocol="queue", endpoint="orders")

    page = await calls.ok("ListSubscriptionByTopic", topicName="news", searchWord="sub", limit=1)
    rest = await calls.ok("ListSubscriptionByTopic", topicName="news", offset=1)
    none = await calls.ok("ListSubscriptionByTopic", topicName="news", limit=0)

    shared = {name: fields[name] for name in ("subscriptionId", "subscriptionName", "protocol", "protocal", "endpoint")}
    assert page == {"totalCount": 2, "subscriptionList": [shared]}
    assert [entry["subscriptionName"] for entry in rest["subscriptionList"]] == ["sub-2", "tap"]
    assert none == {"totalCount": 3, "subscriptionList": []}


async def test_a_topic_that_does_not_exist_has_no_subscriptions(calls: CmqCalls) -> None:
    # CMQ's own tests ask right after the deletion of the topic.
    await calls.ok("CreateTopic", topicName="news")
    await calls.ok("DeleteTopic", topicName="news")

    listed = await calls.ok("ListSubscriptionByTopic", topicName="news")

    assert listed == {"totalCount": 0, "subscriptionList": []}


async def test_a_subscription_may_have_a_name_of_a_character_and_a_topic_of_three(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="abc")
    sub = {"topicName": "abc", "protocol": "queue", "endpoint": "orders"}

    for name in ("s", "s1", "S" * 64):
        await calls.ok("Subscribe", subscriptionName=name, **sub)

    listed = await calls.ok("ListSubscriptionByTopic", topicName="abc", searchWord="s1")
    assert [entry["subscriptionName"] for entry in listed["subscriptionList"]] == ["s1"]
    assert (await calls.refused("CreateTopic", topicName="ab")).reason is Reason.TOPIC_NAME


async def test_an_unsubscribed_topic_can_be_deleted(calls: CmqCalls) -> None:
    await subscribed(calls)
    assert (await calls.refused("DeleteTopic", topicName="news")).reason is Reason.TOPIC_IN_USE

    assert await calls.ok("Unsubscribe", topicName="news", subscriptionName="sub") == {}

    refusal = await calls.refused("GetSubscriptionAttributes", topicName="news", subscriptionName="sub")
    assert (refusal.code, refusal.reason) == (4440, Reason.SUBSCRIPTION_NOT_FOUND)
    await calls.ok("DeleteTopic", topicName="news")


async def test_waiting_messages_and_the_last_error_are_shown(calls: CmqCalls, server: LocalServer) -> None:
    await calls.ok("CreateTopic", topicName="news")
    await calls.ok(
        "Subscribe", topicName="news", subscriptionName="hook", protocol="http", endpoint="http://shop.example/hook"
    )
    await calls.ok("PublishMessage", topicName="news", msgBody="hello")
    await server.end_pushes("answered 500")

    fields = await calls.ok("GetSubscriptionAttributes", topicName="news", subscriptionName="hook")

    assert (fields["msgCount"], fields["lastError"]) == (1, "answered 500")
    assert (await calls.ok("GetTopicAttributes", topicName="news"))["msgCount"] == 1


# ---------------------------------------------------------------------- publishes


async def test_a_message_is_published(calls: CmqCalls, server: LocalServer) -> None:
    await subscribed(calls)

    answer = await calls.ok("PublishMessage", topicName="news", msgBody="hello", routingKey="")

    assert answer["msgId"].startswith("Msg-")
    assert await server.bodies("orders") == [b"hello"]


async def test_a_body_that_is_not_text_stays_as_it_is(calls: CmqCalls, server: LocalServer) -> None:
    await subscribed(calls)

    await calls.ok("PublishMessage", topicName="news", msgBody=bytes(range(256)))

    assert await server.bodies("orders") == [bytes(range(256))]


@pytest.mark.parametrize("first_index", [0, 1])
async def test_a_batch_is_published_with_its_tags(first_index: int, calls: CmqCalls, server: LocalServer) -> None:
    await subscribed(calls, filterTag=["red"])
    calls.first_index = first_index

    bodies = [f"body {number}" for number in range(16)]
    answer = await calls.ok("BatchPublishMessage", topicName="news", msgBody=bodies, msgTag=["big", "red"])

    assert len({message["msgId"] for message in answer["msgList"]}) == 16
    assert await server.bodies("orders") == [body.encode() for body in bodies]


async def test_a_message_is_published_with_a_routing_key(calls: CmqCalls, server: LocalServer) -> None:
    await subscribed(calls, bindingKey=["1.#.0"])

    await calls.ok("PublishMessage", topicName="news", msgBody="a", routingKey="1.2.3.0")
    await calls.ok("BatchPublishMessage", topicName="news", msgBody=["b"], routingKey="1.0")

    assert await server.bodies("orders") == [b"a", b"b"]


async def test_a_publish_without_subscriptions_fails(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news")

    refusal = await calls.refused("PublishMessage", topicName="news", msgBody="a")

    assert (refusal.code, refusal.reason) == (6030, Reason.NO_SUBSCRIPTION)


async def test_a_publish_that_matches_no_subscription_fails(calls: CmqCalls) -> None:
    await subscribed(calls, filterTag=["red"])

    for tags in ([], ["big"]):
        given = {"msgTag": tags} if tags else {}
        refusal = await calls.refused("BatchPublishMessage", topicName="news", msgBody=["a", "b"], **given)

        assert (refusal.code, refusal.reason) == (6030, Reason.NOTHING_MATCHES)
