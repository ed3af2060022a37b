"""Binding keys and routing keys on topics that filter by tags: API 2.0 ignores them, as CMQ's own programs need it."""

import logging
from typing import Any

import pytest

from cmqd_client.errors import InvalidArgument
from cmqd_client.topic import FilterType
from cmqd_gateway.cmq.ignored_keys import IgnoredKeys
from cmqd_gateway.cmq.reasons import Reason
from support.client.local_server import LocalServer
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls

SUB: dict[str, Any] = {"topicName": "news", "subscriptionName": "sub", "protocol": "queue", "endpoint": "orders"}


@pytest.mark.parametrize("name", ["bindingKey", "bindindKey"])
async def test_a_binding_key_on_a_tag_topic_is_ignored(
    calls: CmqCalls, rig: GatewayRig, server: LocalServer, name: str
) -> None:
    await calls.ok("CreateTopic", topicName="news")

    # As CMQ's own tests do: the subscription gets what is published without key and tag, and with any routing key.
    assert list(await calls.ok("Subscribe", **SUB, **{name: ["double"]})) == ["subscriptionId"]
    await calls.ok("PublishMessage", topicName="news", msgBody="a")
    await calls.ok("PublishMessage", topicName="news", msgBody="b", routingKey="other")
    await calls.ok("BatchPublishMessage", topicName="news", msgBody=["c", "d"], routingKey="x.y")

    assert await server.bodies("orders") == [b"a", b"b", b"c", b"d"]
    assert (await calls.ok("GetSubscriptionAttributes", topicName="news", subscriptionName="sub"))["bindingKey"] == []
    assert rig.gateway.ignored_keys.count == 3


async def test_tags_beside_the_ignored_keys_stay(calls: CmqCalls, rig: GatewayRig, server: LocalServer) -> None:
    await calls.ok("CreateTopic", topicName="news")

    await calls.ok("Subscribe", **SUB, filterTag=["red"], bindingKey=["a"])
    await calls.ok("PublishMessage", topicName="news", msgBody="a", msgTag=["red"], routingKey="a")
    refusal = await calls.refused("PublishMessage", topicName="news", msgBody="b", msgTag=["big"], routingKey="a")

    assert refusal.reason is Reason.NOTHING_MATCHES
    assert await server.bodies("orders") == [b"a"]
    assert (await calls.ok("GetSubscriptionAttributes", topicName="news", subscriptionName="sub"))["filterTag"] == [
        "red"
    ]
    assert rig.gateway.ignored_keys.count == 3


async def test_a_change_ignores_binding_keys_too(calls: CmqCalls, rig: GatewayRig) -> None:
    await calls.ok("CreateTopic", topicName="news")
    await calls.ok("Subscribe", **SUB)
    names = {"topicName": "news", "subscriptionName": "sub"}

    await calls.ok("SetSubscriptionAttributes", **names, bindingKey=["a"])
    await calls.ok("SetSubscriptionAttributes", **names, bindingKey=["a"], notifyStrategy="BACKOFF_RETRY")

    assert (await calls.ok("GetSubscriptionAttributes", **names))["notifyStrategy"] == "BACKOFF_RETRY"
    assert rig.gateway.ignored_keys.count == 2


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        ("Subscribe", SUB | {"filterTag": ["red"], "bindingKey": ["a"]}),
        ("Subscribe", SUB | {"filterTag": ["red"]}),
        ("PublishMessage", {"topicName": "news", "msgBody": "a", "msgTag": ["red"], "routingKey": "a"}),
        ("PublishMessage", {"topicName": "news", "msgBody": "a", "msgTag": ["red"]}),
    ],
)
async def test_a_topic_with_routing_keys_ignores_no_tags(
    calls: CmqCalls, rig: GatewayRig, action: str, parameters: dict[str, Any]
) -> None:
    await calls.ok("CreateTopic", topicName="news", filterType=2)

    await calls.refused(action, **parameters)

    assert rig.gateway.ignored_keys.count == 0


async def test_malformed_keys_are_refused_also_on_a_tag_topic(calls: CmqCalls) -> None:
    await calls.ok("CreateTopic", topicName="news")

    assert (await calls.refused("Subscribe", **SUB, bindingKey=["k" * 65])).reason is Reason.OUT_OF_RANGE
    assert (await calls.refused("Subscribe", **SUB, bindingKey=list("abcdef"))).reason is Reason.TOO_MANY_BINDING_KEYS


async def test_the_json_api_and_native_clients_refuse_as_before(rest: RestCalls, server: LocalServer) -> None:
    await server.admin.create_topic("news", filter_type=FilterType.TAG)

    problem = await rest.refused(
        "create_subscription", topic="news", subscription="sub", body={"queue": "orders", "binding_keys": ["a"]}
    )
    with pytest.raises(InvalidArgument):
        await server.admin.topic("news").subscribe("sub", queue="orders", binding_keys=["a"])

    assert (problem.status, problem.field) == (400, "binding_keys")


def test_a_line_tells_of_many_ignored_keys(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    ignored = IgnoredKeys(lambda: now)
    with caplog.at_level(logging.WARNING, "cmqd.gateway"):
        for number in range(100):
            ignored.note("AKID1", f"topic-{number}", "bindingKey")
        now = 60.0
        ignored.note("AKID1", "late", "routingKey")

    lines = [record.getMessage() for record in caplog.records]
    assert ignored.count == 101
    assert len(lines) == 2
    assert "topic='topic-0'" in lines[0]
    assert "times=100" in lines[1]
