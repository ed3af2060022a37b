"""Refusals at a limit of the broker, over both APIs: status and name, or CMQ's code, and whether a repeat may succeed.

Where a small broker reaches its limit within a test, the refusal is real. A full backlog, a damaged message
and a broker that cannot push take a million messages or another machine: there the link to the broker gives the answer.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from cmqd_gateway.cmq.reasons import Reason
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls


async def test_queues_and_topics_of_an_account_have_a_limit() -> None:
    async with GatewayRig(broker={"max_queues_per_account": 1, "max_topics_per_account": 1}) as rig:
        rest, calls = RestCalls(rig), CmqCalls(rig)
        await rest.ok("create_topic", topic="news")

        queue = await rest.refused("create_queue", queue="second", status=409)
        topic = await rest.refused("create_topic", topic="second", status=409)
        cmq_queue = await calls.refused("CreateQueue", queueName="second")
        cmq_topic = await calls.refused("CreateTopic", topicName="second")

    assert (queue.name, queue.retryable, queue.details["limit"]) == ("too_many_queues", False, 1)
    assert (topic.name, topic.retryable, topic.details["limit"]) == ("too_many_topics", False, 1)
    assert (cmq_queue.code, cmq_queue.reason) == (4450, Reason.TOO_MANY_QUEUES)
    assert (cmq_topic.code, cmq_topic.reason) == (4450, Reason.TOO_MANY_TOPICS)


async def test_messages_in_flight_of_a_queue_have_a_limit() -> None:
    async with GatewayRig(broker={"max_in_flight_per_queue": 1}) as rig:
        rig.retries = 0
        rest, calls = RestCalls(rig), CmqCalls(rig)
        await rig.server.put("orders", b"a", b"b")
        assert len(await rest.received("orders")) == 1

        answer = await rest.answer("receive_messages", queue="orders", body={"wait": 0})
        refusal = await calls.refused("ReceiveMessage", queueName="orders", pollingWaitSeconds=0)

        problem = answer.problem()
        assert (problem.status, problem.name, problem.retryable) == (429, "too_many_in_flight", True)
        assert int(answer.headers["Retry-After"]) >= 1
        assert (refusal.code, refusal.reason) == (6070, Reason.TOO_MANY_INACTIVE)
        assert await rig.server.bodies("orders") == [b"b"]


async def test_a_dead_letter_queue_with_messages_of_before_takes_no_dead_letters(rig: GatewayRig) -> None:
    rig.retries = 0
    rest = RestCalls(rig)
    await rig.server.admin.create_queue("dead")
    await rig.server.put("dead", b"before")
    await rig.server.put("orders", b"broken")
    await rest.ok("set_queue", queue="orders", body={"dead_letter_queue": "dead", "dead_letter_max_receives": 3})
    [message] = await rest.received("orders")

    body = {"receipt_handle": message.receipt_handle, "reason": "broken"}
    problem = await rest.refused("reject_message", queue="orders", body=body, status=503)

    assert (problem.name, problem.retryable) == ("dead_letters_not_taken", True)
    assert "dead-letter queue 'dead' of queue 'orders' takes no dead letters yet" in problem.detail
    assert await rig.server.bodies("dead") == [b"before"]
    assert await rig.server.bodies("orders", "in_flight") == [b"broken"]


OVER_THE_LINK: list[tuple[ErrorCode, int, type[Any], str, Mapping[str, Any]]] = [
    (ErrorCode.BACKLOG_FULL, 503, wire.SendMessages, "send_message", {"queue": "orders", "body": {"body": "a"}}),
    (
        *(ErrorCode.TOO_MANY_SUBSCRIPTIONS, 409, wire.Subscribe, "create_subscription"),
        {"topic": "news", "subscription": "copies", "body": {"queue": "orders"}},
    ),
    (
        *(ErrorCode.PUSH_UNAVAILABLE, 501, wire.Subscribe, "create_subscription"),
        {"topic": "news", "subscription": "copies", "body": {"url": "https://shop.example/hook"}},
    ),
    (
        *(ErrorCode.TOO_MANY_SCHEDULES, 409, wire.CreateSchedule, "create_schedule"),
        {"schedule": "nightly", "body": {"queue": "orders", "cron": "0 3 * * *", "body": "a"}},
    ),
    (ErrorCode.MESSAGES_DAMAGED, 500, wire.ReceiveMessages, "receive_messages", {"queue": "orders", "body": {}}),
]


@pytest.mark.parametrize(("code", "status", "request_type", "name", "request_"), OVER_THE_LINK)
async def test_a_refusal_of_the_broker_is_a_problem(
    code: ErrorCode, status: int, request_type: type[Any], name: str, request_: Mapping[str, Any], rig: GatewayRig
) -> None:
    rig.retries = 0
    rest = RestCalls(rig)
    await rest.ok("create_topic", topic="news")
    rig.server.link.refuse(request_type, code, "a sentence of the broker", retry_after_ms=1_500)

    answer = await rest.answer(name, **request_)

    problem = answer.problem()
    assert (problem.status, problem.name, problem.code) == (status, code.name.lower(), int(code))
    assert problem.detail == "a sentence of the broker"
    # Clients retry by the status alone.
    assert problem.retryable == (status in (429, 503))
    assert ("Retry-After" in answer.headers) == problem.retryable


@pytest.mark.parametrize(
    ("code", "reason", "request_type", "action", "parameters"),
    [
        (
            *(ErrorCode.PUSH_UNAVAILABLE, Reason.ENDPOINT_ILLEGAL, wire.Subscribe, "Subscribe"),
            {"topicName": "news", "subscriptionName": "s", "protocol": "https", "endpoint": "https://shop.example/"},
        ),
        (
            *(ErrorCode.MESSAGES_DAMAGED, Reason.RECEIVE_FAILED, wire.ReceiveMessages, "BatchReceiveMessage"),
            {"queueName": "orders", "numOfMsg": 2},
        ),
        (
            *(ErrorCode.BACKLOG_FULL, Reason.BACKLOG_FULL, wire.SendMessages, "BatchSendMessage"),
            {"queueName": "orders", "msgBody": ["a", "b"]},
        ),
        (
            *(ErrorCode.TOO_MANY_SUBSCRIPTIONS, Reason.TOO_MANY_SUBSCRIPTIONS, wire.Subscribe, "Subscribe"),
            {"topicName": "news", "subscriptionName": "s", "protocol": "queue", "endpoint": "orders"},
        ),
    ],
)
async def test_a_refusal_of_the_broker_has_cmqs_code(
    code: ErrorCode,
    reason: Reason,
    request_type: type[Any],
    action: str,
    parameters: Mapping[str, Any],
    rig: GatewayRig,
    calls: CmqCalls,
) -> None:
    rig.retries = 0
    await calls.ok("CreateTopic", topicName="news")
    rig.server.link.refuse(request_type, code, "a sentence of the broker")

    refusal = await calls.refused(action, **parameters)

    assert refusal.reason is reason
    assert refusal.message == f"({reason.module}){reason.text}: a sentence of the broker"
