"""Actions beyond API 2.0 on deliveries: peek at waiting messages, retry or drop a message, report its deliveries."""

from typing import Any

import pytest

from cmqd_gateway.cmq.reasons import Reason
from support.client.local_server import LocalServer
from support.eventually import eventually
from support.gateway.cmq_calls import CmqCalls

HOOK = {"topicName": "news", "subscriptionName": "hook"}


@pytest.fixture
async def sent(calls: CmqCalls, server: LocalServer) -> list[str]:
    """The ids of three messages: the URL refused the first two, and has not answered to the third."""
    await calls.ok("CreateTopic", topicName="news")
    for name, target in (("hook", {"protocol": "http", "endpoint": "http://a.b"}), ("copies", {"endpoint": "orders"})):
        await calls.ok("Subscribe", topicName="news", subscriptionName=name, **({"protocol": "queue"} | target))
    ids = [
        (await calls.ok("PublishMessage", topicName="news", msgBody=body, **{"msgTag.1": "red"}))["msgId"]
        for body in ("a", "b", "c")
    ]
    await eventually(lambda: len(server.pushes) == 3)
    # Broker time stands: on a slow machine the retries would be under way again before a test looks.
    server.broker.clock.stop()
    await server.end_pushes("answered 500", count=2)
    return ids


async def test_messages_that_wait_are_peeked_in_pages(calls: CmqCalls, sent: list[str]) -> None:
    first = await calls.ok("PeekDeliveries", **HOOK, numOfMsg=2)
    rest = await calls.ok("PeekDeliveries", **HOOK, start=first["nextStart"])

    messages: list[dict[str, Any]] = first["msgInfoList"]
    assert [(one["msgId"], one["state"], one["attempts"]) for one in messages] == [
        (sent[0], "in_retry", 1),
        (sent[1], "in_retry", 1),
    ]
    assert (messages[0]["msgBody"], messages[0]["lastError"], messages[0]["msgTag"]) == ("a", "answered 500", ["red"])
    assert messages[0]["publishTime"] <= messages[0]["lastErrorTime"] <= messages[0]["nextAttemptTime"]
    assert [(one["msgId"], one["state"]) for one in rest["msgInfoList"]] == [(sent[2], "under_way")]
    assert "nextStart" not in rest


async def test_one_message_is_retried_and_another_dropped(
    calls: CmqCalls, server: LocalServer, sent: list[str]
) -> None:
    assert await calls.ok("RetryDelivery", **HOOK, msgId=sent[0]) == {"msgCount": 1}
    assert await calls.ok("DropDelivery", **HOOK, msgId=sent[1]) == {}

    await eventually(lambda: len(server.pushes) == 2)
    left = (await calls.ok("PeekDeliveries", **HOOK))["msgInfoList"]
    assert [one["msgId"] for one in left] == [sent[0], sent[2]]
    for action in ("RetryDelivery", "DropDelivery"):
        assert (await calls.refused(action, **HOOK, msgId=sent[1])).reason is Reason.MESSAGE_ID_INVALID
        assert (await calls.refused(action, **HOOK, msgId="7")).reason is Reason.MESSAGE_ID_INVALID
        assert len((await calls.refused(action, **HOOK, msgId="7" * 70_000)).message) < 300


async def test_the_deliveries_of_a_message_are_reported(calls: CmqCalls, sent: list[str]) -> None:
    await calls.ok("DropDelivery", **HOOK, msgId=sent[1])
    copies = (await calls.ok("BatchReceiveMessage", queueName="orders", numOfMsg=3))["msgInfoList"]

    report = await calls.ok("QueryMessageDeliveries", topicName="news", msgId=sent[1])

    assert (report["msgId"], report["msgTag"], report["routingKey"]) == (sent[1], ["red"], "")
    copy, hook = report["deliveryList"]
    assert (copy["subscriptionName"], copy["state"], copy["endpoint"]) == ("copies", "delivered", "orders")
    assert copy["copyMsgId"] in {one["msgId"] for one in copies}
    assert (copy["attempts"], copy["deliveredTime"]) == (0, report["publishTime"])
    assert (hook["subscriptionName"], hook["state"], hook["dropReason"]) == ("hook", "dropped", "operator")
    assert "attempts" not in hook
    for message_id in (copy["copyMsgId"], "Msg-00000000000fffff", "what"):
        refusal = await calls.refused("QueryMessageDeliveries", topicName="news", msgId=message_id)
        assert refusal.reason is Reason.MESSAGE_ID_INVALID


async def test_a_missing_topic_or_subscription_is_refused(calls: CmqCalls, sent: list[str]) -> None:
    missing = {"topicName": "news", "subscriptionName": "missing"}
    for action in ("PeekDeliveries", "RetryDelivery", "DropDelivery"):
        given: dict[str, Any] = {} if action == "PeekDeliveries" else {"msgId": sent[0]}
        assert (await calls.refused(action, **missing, **given)).reason is Reason.SUBSCRIPTION_NOT_FOUND
    refusal = await calls.refused("QueryMessageDeliveries", topicName="missing", msgId=sent[0])
    assert refusal.reason is Reason.TOPIC_NOT_FOUND
