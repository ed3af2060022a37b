"""Every error of CMQ that the gateway answers: a table from a request to its code.

``CASES`` is a table of requests, their parameters and their errors. A second table has the errors of the broker that
need more than a request, such as a limit of 10,000 queues; there the broker's answer is set. Together with the few
tests below they have every row of CMQ's table but the rows that are never answered.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.reasons import NEVER_ANSWERED, Reason
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.cases import each_case
from support.client.local_server import LocalServer
from support.gateway.cmq_calls import CmqCalls, Refused
from support.gateway.gateway_rig import GatewayRig

NEWS = {"topicName": "news", "subscriptionName": "other", "protocol": "queue", "endpoint": "orders"}
URL = {"topicName": "news", "subscriptionName": "other", "protocol": "http"}
SUB = {"topicName": "news", "subscriptionName": "sub"}
DEAD = {"deadLetterQueue": "dead", "policy": 0, "maxReceiveCount": 5}


def policy(**changed: Any) -> dict[str, Any]:
    return {"queueName": "orders", "deadLetterPolicy": json.dumps(DEAD | changed)}


Case = tuple[Reason, str, Mapping[str, Any]]

CASES: list[Case] = [
    # parameters of any action
    (Reason.ACTION_UNKNOWN, "NoSuchAction", {}),
    (Reason.ACTION_UNKNOWN, "QueryQueueRoute", {"queueName": "orders"}),
    (Reason.ACTION_UNKNOWN, "QueryTopicRoute", {"topicName": "news"}),
    (Reason.MISSING_PARAMETERS, "", {}),
    (Reason.MISSING_PARAMETER, "CreateQueue", {}),
    (Reason.MISSING_PARAMETER, "SendMessage", {"queueName": "orders"}),
    (Reason.MISSING_PARAMETER, "BatchSendMessage", {"queueName": "orders"}),
    (Reason.MISSING_PARAMETER, "DeleteMessage", {"queueName": "orders"}),
    (Reason.MISSING_PARAMETER, "BatchReceiveMessage", {"queueName": "orders"}),
    (Reason.MISSING_PARAMETER, "RewindQueue", {"queueName": "orders"}),
    (Reason.MISSING_PARAMETER, "UnbindDeadLetter", {}),
    (Reason.MISSING_PARAMETER, "Subscribe", {**SUB, "endpoint": "orders"}),
    (Reason.MISSING_PARAMETER, "Subscribe", {**SUB, "protocol": "queue"}),
    (Reason.MISSING_PARAMETER, "SetQueueAttributes", policy(policy=0, maxReceiveCount=None)),
    (Reason.MISSING_PARAMETER, "SetQueueAttributes", policy(policy=1)),
    (Reason.KEY_FORMAT, "BatchSendMessage", {"queueName": "orders", "msgBody.one": "a"}),
    (Reason.NOT_REPEATABLE, "GetQueueAttributes", {"queueName.1": "orders"}),
    (Reason.NOT_CONSECUTIVE, "BatchSendMessage", {"queueName": "orders", "msgBody.1": "a", "msgBody.3": "b"}),
    (Reason.NOT_CONSECUTIVE, "BatchSendMessage", {"queueName": "orders", "msgBody.2": "a", "msgBody.3": "b"}),
    (Reason.BATCH_SIZE, "BatchSendMessage", {"queueName": "orders", "msgBody": ["a"] * 17}),
    (Reason.BATCH_SIZE, "BatchDeleteMessage", {"queueName": "orders", "receiptHandle": ["1"] * 17}),
    (Reason.BATCH_SIZE, "BatchPublishMessage", {"topicName": "news", "msgBody": ["a"] * 17}),
    (Reason.BATCH_SIZE, "BatchReceiveMessage", {"queueName": "orders", "numOfMsg": 17}),
    (Reason.BATCH_SIZE, "CommitHalfMessage", {"queueName": "tx", "msgId": ["Msg-0000000000000001"] * 17}),
    (Reason.WRONG_TYPE, "CreateQueue", {"queueName": "new", "visibilityTimeout": "long"}),
    (Reason.WRONG_TYPE, "SendMessage", {"queueName": "orders", "msgBody": "a", "delaySeconds": "1.5"}),
    (Reason.WRONG_TYPE, "GetQueueAttributes", {"queueName": b"\xff"}),
    (Reason.WRONG_TYPE, "SetQueueAttributes", policy(policy="often")),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", {"queueName": "orders", "deadLetterPolicy": "{"}),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", {"queueName": "orders", "deadLetterPolicy": "[]"}),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", {"queueName": "orders", "deadLetterPolicy": '{"a":' * 5_000}),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", policy(deadLetterQueue="missing")),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", policy(deadLetterQueue="orders")),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", policy(deadLetterQueue="tx")),
    (Reason.PARAMETERS_ERROR, "SetQueueAttributes", policy(deadLetterQueue="queue-00000000000fffff")),
    (Reason.PARAMETERS_ERROR, "DeleteQueue", {"queueName": "dead"}),
    (Reason.PARAMETERS_ERROR, "GetRedrive", {"queueName": "dead"}),
    (Reason.PARAMETERS_ERROR, "CancelRedrive", {"queueName": "orders"}),
    (Reason.PARAMETERS_ERROR, "RedriveDeadLetters", {"queueName": "orders"}),
    (Reason.PARAMETERS_ERROR, "RedriveDeadLetters", {"queueName": "dead", "targetQueueName": "missing"}),
    (
        Reason.PARAMETERS_ERROR,
        "Subscribe",
        {**NEWS, "topicName": "routed", "filterTag": ["red"], "bindingKey": ["a"]},
    ),
    (Reason.PARAMETERS_ERROR, "PublishMessage", {"topicName": "routed", "msgBody": "a", "msgTag": ["red"]}),
    (
        Reason.PARAMETERS_ERROR,
        "PublishMessage",
        {"topicName": "routed", "msgBody": "a", "msgTag": ["red"], "routingKey": "a"},
    ),
    # ranges of attributes
    *(
        (Reason.OUT_OF_RANGE, action, {"queueName": name, parameter: value})
        for action, name in (("CreateQueue", "new"), ("SetQueueAttributes", "orders"))
        for parameter, values in {
            "maxMsgHeapNum": (999_999, 100_000_001),
            "pollingWaitSeconds": (-1, 31),
            "visibilityTimeout": (0, 43_201),
            "maxMsgSize": (1_023, 1_048_577),
            "msgRetentionSeconds": (59, 1_296_001),
            "rewindSeconds": (-1, 1_296_001),
            "transaction": (-1, 2),
            "firstQueryInterval": (0, 3_601),
            "maxQueryCount": (0, 101),
        }.items()
        for value in values
    ),
    (Reason.OUT_OF_RANGE, "SetQueueAttributes", policy(policy=2)),
    (Reason.OUT_OF_RANGE, "SetQueueAttributes", policy(maxReceiveCount=0)),
    (Reason.OUT_OF_RANGE, "SetQueueAttributes", policy(maxReceiveCount=1_001)),
    (Reason.OUT_OF_RANGE, "SetQueueAttributes", policy(policy=1, maxTimeToLive=299)),
    (Reason.OUT_OF_RANGE, "SetQueueAttributes", policy(policy=1, maxTimeToLive=43_201)),
    (Reason.OUT_OF_RANGE, "ListQueue", {"limit": 51}),
    (Reason.OUT_OF_RANGE, "ListQueue", {"offset": -1}),
    (Reason.OUT_OF_RANGE, "ListTopic", {"limit": 51}),
    (Reason.OUT_OF_RANGE, "ListSubscriptionByTopic", {"topicName": "news", "limit": 101}),
    (Reason.OUT_OF_RANGE, "ListSubscriptionByTopic", {"topicName": "news", "offset": 1_001}),
    (Reason.OUT_OF_RANGE, "CreateTopic", {"topicName": "new", "filterType": 3}),
    (Reason.OUT_OF_RANGE, "CreateTopic", {"topicName": "new", "maxMsgSize": 1_048_577}),
    (Reason.OUT_OF_RANGE, "SetTopicAttributes", {"topicName": "news", "maxMsgSize": 1_023}),
    (Reason.OUT_OF_RANGE, "ReceiveMessage", {"queueName": "orders", "pollingWaitSeconds": -1}),
    (Reason.OUT_OF_RANGE, "PublishMessage", {"topicName": "news", "msgBody": "a", "msgTag": ["t" * 17]}),
    (Reason.OUT_OF_RANGE, "PublishMessage", {"topicName": "news", "msgBody": "a", "msgTag": ["a,b"]}),
    (Reason.OUT_OF_RANGE, "PublishMessage", {"topicName": "routed", "msgBody": "a", "routingKey": "k" * 65}),
    (Reason.OUT_OF_RANGE, "Subscribe", {**NEWS, "filterTag": [""]}),
    (Reason.OUT_OF_RANGE, "Subscribe", {**NEWS, "topicName": "routed", "bindingKey": ["k" * 65]}),
    (Reason.OUT_OF_RANGE, "ListHalfMessage", {"queueName": "tx", "limit": 101}),
    (Reason.OUT_OF_RANGE, "RedriveDeadLetters", {"queueName": "dead", "maxPerSecond": 0}),
    # queues
    (Reason.QUEUE_NAME, "CreateQueue", {"queueName": "a b"}),
    (Reason.QUEUE_NAME, "CreateQueue", {"queueName": "n" * 65}),
    *(
        (Reason.QUEUE_NOT_FOUND, action, {"queueName": "missing", **more})
        for action, more in {
            "GetQueueAttributes": {},
            "SetQueueAttributes": {"visibilityTimeout": 1},
            "DeleteQueue": {},
            "ClearQueue": {},
            "RewindQueue": {"startConsumeTime": 1_700_000_000},
            "UnbindDeadLetter": {},
            "RedriveDeadLetters": {},
            "GetRedrive": {},
            "CancelRedrive": {},
            "SendMessage": {"msgBody": "a"},
            "BatchSendMessage": {"msgBody": ["a"]},
            "ReceiveMessage": {},
            "BatchReceiveMessage": {"numOfMsg": 1},
            "DeleteMessage": {"receiptHandle": "1"},
            "BatchDeleteMessage": {"receiptHandle": ["1"]},
            "ChangeMessageVisibility": {"receiptHandle": "1", "visibilityTimeout": 1},
            "PeekMessage": {},
            "SendHalfMessage": {"msgBody": "a"},
            "BatchSendHalfMessage": {"msgBody": ["a"]},
            "CommitHalfMessage": {"msgId": "Msg-0000000000000001"},
            "RollbackHalfMessage": {"msgId": "Msg-0000000000000001"},
            "ListHalfMessage": {},
        }.items()
    ),
    (Reason.QUEUE_NOT_FOUND, "Subscribe", {**NEWS, "endpoint": "missing"}),
    (Reason.QUEUE_EXISTS, "CreateQueue", {"queueName": "orders"}),
    (Reason.QUEUE_EXISTS, "CreateQueue", {"queueName": "ORDERS"}),
    (Reason.NOT_REWINDABLE, "RewindQueue", {"queueName": "orders", "startConsumeTime": 1_700_000_000}),
    (Reason.REWIND_TIME, "RewindQueue", {"queueName": "rewindable", "startConsumeTime": 4_000_000_000}),
    (Reason.REWIND_TIME, "RewindQueue", {"queueName": "rewindable", "startConsumeTime": 1_000_000_000}),
    (Reason.REWIND_TIME, "RewindQueue", {"queueName": "rewindable", "startConsumeTime": -1}),
    (Reason.REWIND_WINDOW, "CreateQueue", {"queueName": "new", "msgRetentionSeconds": 60, "rewindSeconds": 61}),
    (Reason.REWIND_WINDOW, "SetQueueAttributes", {"queueName": "orders", "rewindSeconds": 345_601}),
    # messages
    (Reason.BODY_EMPTY, "SendMessage", {"queueName": "orders", "msgBody": ""}),
    (Reason.BODY_EMPTY, "BatchSendMessage", {"queueName": "orders", "msgBody": ["a", ""]}),
    (Reason.BODY_EMPTY, "PublishMessage", {"topicName": "news", "msgBody": ""}),
    (Reason.BODY_EMPTY, "BatchPublishMessage", {"topicName": "news", "msgBody": ["a", ""]}),
    (Reason.BODY_EMPTY, "SendHalfMessage", {"queueName": "tx", "msgBody": ""}),
    (Reason.DELAY, "SendMessage", {"queueName": "orders", "msgBody": "a", "delaySeconds": 3_601}),
    (Reason.DELAY, "BatchSendMessage", {"queueName": "orders", "msgBody": ["a"], "delaySeconds": -1}),
    (Reason.BODY_TOO_LARGE, "SendMessage", {"queueName": "orders", "msgBody": "a" * 65_537}),
    (Reason.BODY_TOO_LARGE, "SendMessage", {"queueName": "orders", "msgBody": "a" * 1_048_577}),
    (Reason.BODY_TOO_LARGE, "PublishMessage", {"topicName": "news", "msgBody": "a" * 65_537}),
    (Reason.BATCH_TOO_LARGE, "BatchSendMessage", {"queueName": "large", "msgBody": ["a" * 600_000] * 2}),
    (Reason.HANDLE_MALFORMED, "DeleteMessage", {"queueName": "orders", "receiptHandle": "handle"}),
    (Reason.HANDLE_MALFORMED, "DeleteMessage", {"queueName": "orders", "receiptHandle": str(1 << 64)}),
    (
        Reason.HANDLE_INVALID,
        "ChangeMessageVisibility",
        {"queueName": "orders", "receiptHandle": "1", "visibilityTimeout": 1},
    ),
    (
        Reason.OUT_OF_RANGE,
        "ChangeMessageVisibility",
        {"queueName": "orders", "receiptHandle": "1", "visibilityTimeout": 43_201},
    ),
    (Reason.BATCH_SIZE, "PeekMessage", {"queueName": "orders", "numOfMsg": 17}),
    (Reason.HANDLE_INVALID, "DeleteMessage", {"queueName": "orders", "receiptHandle": "1"}),
    (Reason.DELETES_FAILED, "BatchDeleteMessage", {"queueName": "orders", "receiptHandle": ["1", "x"]}),
    (Reason.NO_MESSAGE, "ReceiveMessage", {"queueName": "orders", "pollingWaitSeconds": 0}),
    (Reason.NO_MESSAGE, "BatchReceiveMessage", {"queueName": "orders", "numOfMsg": 16, "pollingWaitSeconds": 0}),
    # transactions
    (Reason.MESSAGE_ID_INVALID, "CommitHalfMessage", {"queueName": "tx", "msgId": "Msg-00000000000fffff"}),
    (Reason.MESSAGE_ID_INVALID, "RollbackHalfMessage", {"queueName": "tx", "msgId": "17"}),
    (Reason.NOT_TRANSACTIONAL, "SendHalfMessage", {"queueName": "orders", "msgBody": "a"}),
    (Reason.NOT_TRANSACTIONAL, "ListHalfMessage", {"queueName": "orders"}),
    (Reason.DECISIONS_FAILED, "CommitHalfMessage", {"queueName": "tx", "msgId": [f"Msg-{n:016x}" for n in (8, 9)]}),
    # topics
    (Reason.TOPIC_NAME, "CreateTopic", {"topicName": "a b"}),
    (Reason.TOPIC_NAME, "CreateTopic", {"topicName": "ab"}),
    *(
        (Reason.TOPIC_NOT_FOUND, action, {"topicName": "missing", **more})
        for action, more in {
            "GetTopicAttributes": {},
            "SetTopicAttributes": {"maxMsgSize": 1_024},
            "DeleteTopic": {},
            "PublishMessage": {"msgBody": "a"},
            "BatchPublishMessage": {"msgBody": ["a"]},
            "Subscribe": {"subscriptionName": "sub", "protocol": "queue", "endpoint": "orders"},
        }.items()
    ),
    (Reason.TOPIC_EXISTS, "CreateTopic", {"topicName": "News"}),
    (Reason.TOPIC_IN_USE, "DeleteTopic", {"topicName": "news"}),
    (Reason.ROUTING_KEY_MISSING, "PublishMessage", {"topicName": "routed", "msgBody": "a", "routingKey": ""}),
    (Reason.TOO_MANY_TAGS, "PublishMessage", {"topicName": "news", "msgBody": "a", "msgTag": list("abcdefghijk")}),
    (Reason.TOO_MANY_DOTS, "PublishMessage", {"topicName": "routed", "msgBody": "a", "routingKey": "." * 16}),
    (Reason.NO_SUBSCRIPTION, "PublishMessage", {"topicName": "bare", "msgBody": "a"}),
    (Reason.NOTHING_MATCHES, "BatchPublishMessage", {"topicName": "news", "msgBody": ["a"], "msgTag": ["big"]}),
    # subscriptions
    (Reason.SUBSCRIPTION_NAME, "Subscribe", {**NEWS, "subscriptionName": "a b"}),
    (Reason.SUBSCRIPTION_NAME, "Subscribe", {**NEWS, "subscriptionName": "s" * 65}),
    *(
        (Reason.SUBSCRIPTION_NOT_FOUND, action, {"topicName": "news", "subscriptionName": "missing"})
        for action in (
            "Unsubscribe",
            "SetSubscriptionAttributes",
            "GetSubscriptionAttributes",
            "ClearSubscriptionFilterTags",
            "PeekDeliveries",
        )
    ),
    (
        Reason.SUBSCRIPTION_NOT_FOUND,
        "RetryDelivery",
        {"topicName": "news", "subscriptionName": "missing", "msgId": "Msg-0000000000000001"},
    ),
    (Reason.MESSAGE_ID_INVALID, "RetryDelivery", {**SUB, "msgId": "Msg-00000000000fffff"}),
    (Reason.MESSAGE_ID_INVALID, "DropDelivery", {**SUB, "msgId": "17"}),
    (Reason.MESSAGE_ID_INVALID, "QueryMessageDeliveries", {"topicName": "news", "msgId": "Msg-00000000000fffff"}),
    (Reason.OUT_OF_RANGE, "PeekDeliveries", {**SUB, "numOfMsg": 17}),
    (Reason.SUBSCRIPTION_EXISTS, "Subscribe", {**NEWS, "subscriptionName": "sub"}),
    (Reason.TOO_MANY_FILTER_TAGS, "Subscribe", {**NEWS, "filterTag": list("abcdef")}),
    (Reason.TOO_MANY_FILTER_TAGS, "SetSubscriptionAttributes", {**SUB, "filterTags": list("abcdef")}),
    (Reason.TOO_MANY_BINDING_KEYS, "Subscribe", {**NEWS, "topicName": "routed", "bindingKey": list("abcdef")}),
    (Reason.TOO_MANY_DOTS, "Subscribe", {**NEWS, "topicName": "routed", "bindingKey": ["." * 16]}),
    (Reason.BINDING_KEY_MISSING, "Subscribe", {**NEWS, "topicName": "routed"}),
    (Reason.PROTOCOL_UNKNOWN, "Subscribe", {**NEWS, "protocol": "ftp"}),
    (Reason.ENDPOINT_FORMAT, "Subscribe", {**NEWS, "endpoint": "http://shop.example"}),
    (Reason.ENDPOINT_FORMAT, "Subscribe", {**URL, "endpoint": "https://shop.example"}),
    (Reason.ENDPOINT_FORMAT, "Subscribe", {**URL, "endpoint": "shop.example"}),
    (Reason.ENDPOINT_FORMAT, "Subscribe", {**URL, "endpoint": "http://"}),
    (Reason.ENDPOINT_FORMAT, "Subscribe", {**URL, "endpoint": "http://user:password@shop.example"}),
    (Reason.URL_WITH_BLANKS, "Subscribe", {**URL, "endpoint": "http://shop.example/a b"}),
    (Reason.ENDPOINT_ILLEGAL, "Subscribe", {**NEWS, "endpoint": "a b"}),
    (Reason.STRATEGY_UNKNOWN, "Subscribe", {**NEWS, "notifyStrategy": "NEVER"}),
    (Reason.STRATEGY_UNKNOWN, "SetSubscriptionAttributes", {**SUB, "notifyStrategy": "NEVER"}),
    (Reason.CONTENT_FORMAT_UNKNOWN, "Subscribe", {**NEWS, "notifyContentFormat": "XML"}),
]

OF_THE_BROKER: list[tuple[Reason, type[Any], ErrorCode, str, Mapping[str, Any]]] = [
    (Reason.TOO_MANY_QUEUES, wire.CreateQueue, ErrorCode.TOO_MANY_QUEUES, "CreateQueue", {"queueName": "new"}),
    (Reason.TOO_MANY_TOPICS, wire.CreateTopic, ErrorCode.TOO_MANY_TOPICS, "CreateTopic", {"topicName": "new"}),
    (Reason.TOO_MANY_SUBSCRIPTIONS, wire.Subscribe, ErrorCode.TOO_MANY_SUBSCRIPTIONS, "Subscribe", NEWS),
    (Reason.NO_PERMISSION, wire.ListQueues, ErrorCode.PERMISSION_DENIED, "ListQueue", {}),
    (
        Reason.BACKLOG_FULL,
        wire.SendMessages,
        ErrorCode.BACKLOG_FULL,
        "SendMessage",
        {"queueName": "orders", "msgBody": "a"},
    ),
    (
        Reason.TOO_MANY_INACTIVE,
        wire.ReceiveMessages,
        ErrorCode.TOO_MANY_IN_FLIGHT,
        "ReceiveMessage",
        {"queueName": "orders"},
    ),
    (
        Reason.THROTTLED,
        wire.PublishMessages,
        ErrorCode.TOO_MANY_REQUESTS,
        "PublishMessage",
        {"topicName": "news", "msgBody": "a"},
    ),
    (Reason.CONTROL_THROTTLED, wire.ListTopics, ErrorCode.TOO_MANY_REQUESTS, "ListTopic", {}),
    (Reason.INTERNAL_ERROR, wire.ListTopics, ErrorCode.INTERNAL_ERROR, "ListTopic", {}),
    (
        Reason.SEND_FAILED,
        wire.SendMessages,
        ErrorCode.DISK_NEARLY_FULL,
        "BatchSendMessage",
        {"queueName": "orders", "msgBody": ["a"]},
    ),
    (
        Reason.RECEIVE_FAILED,
        wire.ReceiveMessages,
        ErrorCode.MESSAGES_DAMAGED,
        "ReceiveMessage",
        {"queueName": "orders"},
    ),
    (
        Reason.DELETE_FAILED,
        wire.DeleteMessages,
        ErrorCode.BUSY,
        "DeleteMessage",
        {"queueName": "orders", "receiptHandle": "1"},
    ),
    (
        Reason.GET_ATTRIBUTES_FAILED,
        wire.GetQueueAttributes,
        ErrorCode.INTERNAL_ERROR,
        "GetQueueAttributes",
        {"queueName": "orders"},
    ),
    (
        Reason.SET_ATTRIBUTES_FAILED,
        wire.SetQueueAttributes,
        ErrorCode.INTERNAL_ERROR,
        "SetQueueAttributes",
        {"queueName": "orders"},
    ),
    (
        Reason.DELETE_QUEUE_FAILED,
        wire.DeleteQueue,
        ErrorCode.INTERNAL_ERROR,
        "DeleteQueue",
        {"queueName": "orders"},
    ),
    (Reason.LIST_QUEUE_FAILED, wire.ListQueues, ErrorCode.INTERNAL_ERROR, "ListQueue", {}),
]

ELSEWHERE = {
    Reason.INVALID_REQUEST: "test_errors: an error of the broker that no action asks for",
    Reason.HTTP_METHOD: "below",
    Reason.UNREADABLE_REQUEST: "below",
    Reason.AUTHENTICATION_FAILED: "below",
    Reason.SECRET_ID_STATUS: "below",
    Reason.SECRET_ID_UNKNOWN: "below",
    Reason.DELETES_PARTLY_FAILED: "below",
    Reason.DECISION_CONFLICT: "test_cmq_transactions",
    Reason.DECISIONS_PARTLY_FAILED: "test_cmq_transactions",
}


@pytest.fixture
async def stage(calls: CmqCalls, server: LocalServer) -> CmqCalls:
    """Queues, topics and subscriptions, in the kinds that the requests need."""
    admin = server.admin
    await admin.create_queue("dead")
    await admin.create_queue("source", dead_letter_queue="dead", dead_letter_max_receives=1)
    await admin.create_queue("tx", transactional=True)
    await admin.create_queue("rewindable", rewind=3600)
    await admin.create_queue("large", max_message_bytes=1_048_576)
    await (await admin.create_topic("news")).subscribe("sub", queue="orders", filter_tags=["red"])
    await admin.create_topic("routed", filter_type="routing")
    await admin.create_topic("bare")
    return calls


def _id(case: Case) -> str:
    reason, action, parameters = case
    shown = ",".join(f"{name}={str(value)[:20]}" for name, value in parameters.items())
    return f"{reason.code}-{reason.module}-{action}-{shown}"


@each_case("case", CASES, ids=_id)
async def test_a_request_is_refused_with_cmqs_code(case: Case, stage: CmqCalls) -> None:
    reason, action, parameters = case

    refusal = await stage.refused(action, **parameters)

    # Members with the same two codes differ in their texts.
    assert refusal.reason is reason, refusal.message


@pytest.mark.parametrize(("reason", "request_type", "code", "action", "parameters"), OF_THE_BROKER)
async def test_an_error_of_the_broker_has_cmqs_code(
    reason: Reason,
    request_type: type[Any],
    code: ErrorCode,
    action: str,
    parameters: Mapping[str, Any],
    rig: GatewayRig,
    stage: CmqCalls,
) -> None:
    rig.retries = 0
    rig.server.link.refuse(request_type, code, "a sentence of the broker")

    refusal = await stage.refused(action, **parameters)

    assert refusal.reason is reason
    assert refusal.message == f"({reason.module}){reason.text}: a sentence of the broker"


async def test_some_deletes_of_a_batch_failed(stage: CmqCalls, server: LocalServer) -> None:
    await server.put("orders", b"a")
    handle = (await stage.ok("ReceiveMessage", queueName="orders"))["receiptHandle"]

    refusal = await stage.refused("BatchDeleteMessage", queueName="orders", receiptHandle=[handle, "1", "x"])

    assert (refusal.code, refusal.reason) == (6010, Reason.DELETES_PARTLY_FAILED)
    codes = {error["receiptHandle"]: error["code"] for error in refusal.fields["errorList"]}
    assert codes == {"1": 4430, "x": 4000}


async def test_another_method_is_refused(rig: GatewayRig) -> None:
    answer = await rig.post_raw(b"Action=ListQueue", method="PUT")

    answer.pop("requestId")
    assert Refused(answer).reason is Reason.HTTP_METHOD


async def test_a_body_of_more_than_4_mib_is_refused(rig: GatewayRig) -> None:
    answer = await rig.post_raw(b"Action=ListQueue&x=" + b"a" * (4 << 20))

    answer.pop("requestId")
    assert Refused(answer).reason is Reason.UNREADABLE_REQUEST


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (KeySecret("id", "wrong"), Reason.AUTHENTICATION_FAILED),
        (KeySecret("unknown", "secret"), Reason.SECRET_ID_UNKNOWN),
        (KeySecret("disabled", "secret", enabled=False), Reason.SECRET_ID_STATUS),
    ],
)
async def test_a_request_that_proves_no_key_is_refused(key: KeySecret, reason: Reason, rig: GatewayRig) -> None:
    rig.table.keys["id"] = KeySecret("id", "secret")
    rig.table.keys["disabled"] = KeySecret("disabled", "secret", enabled=False)

    answer = await rig.post(rig.sign({"Action": "ListQueue"}, key=key))

    answer.pop("requestId")
    assert Refused(answer).reason is reason


def test_each_error_of_cmqs_table_has_a_test_or_is_never_answered() -> None:
    tested = {case[0] for case in CASES} | {case[0] for case in OF_THE_BROKER} | ELSEWHERE.keys()

    assert set(Reason) - tested == NEVER_ANSWERED.keys()
    assert tested & NEVER_ANSWERED.keys() == set()
