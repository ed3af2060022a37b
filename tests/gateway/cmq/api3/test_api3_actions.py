"""The 20 actions of API 3.0: their answers, and parameters without a counterpart."""

from collections.abc import Mapping
from typing import Any

import pytest

from cmqd_client import Client
from cmqd_gateway.cmq.api3.faults import Code
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.gateway.api3_refusals import REFUSED, stage
from support.gateway.api3_requests import Api3Calls, fault_of, old_form
from support.gateway.api3_scenario import Scenario
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig


@pytest.fixture
async def empty(rig: GatewayRig) -> GatewayRig:
    """A gateway before a broker without queues."""
    for entry in (await rig.call("ListQueue"))["queueList"]:
        await rig.call("DeleteQueue", queueName=entry["queueName"])
    return rig


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_all_actions_answer_like_api_2_0(empty: GatewayRig, method: str):
    api3 = Api3Calls(empty)

    async def call(action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer = await api3.send(api3.prepare(action, parameters, method=method))
        assert "Error" not in answer, (action, parameters, answer)
        return answer

    await Scenario(empty, call).run()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_each_refusal_has_its_code_and_the_names_of_api_3_0(rig: GatewayRig):
    await stage(rig)
    api3 = Api3Calls(rig)

    wrong: list[object] = []
    for refusal in REFUSED:
        requests = [api3.prepare(refusal.action, refusal.parameters)]
        if not refusal.is_of_json:
            requests.append(old_form(refusal.action, refusal.parameters, api3.key, rig.host))
        for request in requests:
            fault = fault_of(await api3.send(request))
            if not refusal.matches(fault):
                wrong.append((refusal, fault))

    assert not wrong, "\n".join(map(str, wrong))


async def test_a_setting_takes_the_retention_of_requests_for_the_retention_of_queues():
    async with GatewayRig(api3_retention=True) as rig:
        api3 = Api3Calls(rig)
        await api3.ok("CreateCmqQueue", QueueName="kept", MsgRetentionSeconds=3_600)
        await api3.ok("ModifyCmqQueueAttribute", QueueName="orders", MsgRetentionSeconds=7_200)
        fault = await api3.fault("ModifyCmqQueueAttribute", QueueName="orders", MsgRetentionSeconds=59)

        assert [
            (await CmqCalls(rig).ok("GetQueueAttributes", queueName=name))["msgRetentionSeconds"]
            for name in ("kept", "orders")
        ] == [3_600, 7_200]
        assert (fault.code, "MsgRetentionSeconds is 59" in fault.message) == ("InvalidParameterValue", True)


async def test_ignored_binding_keys_are_counted(rig: GatewayRig, caplog: pytest.LogCaptureFixture):
    await stage(rig)
    api3 = Api3Calls(rig)
    names = {"TopicName": "news", "SubscriptionName": "sub"}

    await api3.ok("ModifyCmqSubscriptionAttribute", **names, BindingKey=["a"])
    new = {**names, "SubscriptionName": "new", "Protocol": "queue", "Endpoint": "dead"}
    await api3.ok("CreateCmqSubscribe", **new, BindingKey=["a"], FilterTag=["red"])

    assert rig.gateway.ignored_keys.count == 2
    rig.gateway.ignored_keys.flush()
    assert "BindingKey" in caplog.text


async def test_a_key_without_a_role_is_refused(rig: GatewayRig):
    made = await rig.server.admin.accounts.create_key(roles=["read"])
    api3 = Api3Calls(rig, key=rig.add_key(made.secret_id, made.secret_key or ""))

    assert (await api3.ok("DescribeCmqQueues"))["TotalCount"] == 1
    for action, parameters in (
        ("SendCmqMsg", {"QueueName": "orders", "MsgContent": "a"}),
        ("DeleteCmqQueue", {"QueueName": "orders"}),
        ("CreateCmqTopic", {"TopicName": "news"}),
    ):
        fault = await api3.fault(action, **parameters)
        assert (fault.code, "(10461)" in fault.message) == ("UnauthorizedOperation", True)
    assert await rig.server.bodies("orders") == []


async def test_the_sources_of_a_dead_letter_queue_have_ids_and_no_list_is_searched(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch
):
    def search(*_: object, **__: object) -> None:
        pytest.fail("an account may have 100,000 queues")

    made = await rig.server.admin.accounts.create_key(roles=["read"], names=["orders*"])
    api3, limited = Api3Calls(rig), Api3Calls(rig, key=rig.add_key(made.secret_id, made.secret_key or ""))
    policy = {"DeadLetterQueueName": "orders", "MaxReceiveCount": 3}
    ids = {name: (await api3.ok("CreateCmqQueue", QueueName=name, **policy))["QueueId"] for name in ("a", "orders-b")}
    monkeypatch.setattr(Client, "queues", search)

    async def sources(calls: Api3Calls) -> Any:
        return (await calls.ok("DescribeCmqQueueDetail", QueueName="orders"))["QueueDescribe"]["DeadLetterSource"]

    assert await sources(api3) == [{"QueueId": number, "QueueName": name} for name, number in ids.items()]
    assert await sources(limited) == [{"QueueId": ids["orders-b"], "QueueName": "orders-b"}]


OF_THE_BROKER: list[tuple[str, type[Any], ErrorCode, str, Mapping[str, Any]]] = [
    ("LimitExceeded", wire.CreateQueue, ErrorCode.TOO_MANY_QUEUES, "CreateCmqQueue", {"QueueName": "new"}),
    ("LimitExceeded.Topics", wire.CreateTopic, ErrorCode.TOO_MANY_TOPICS, "CreateCmqTopic", {"TopicName": "new"}),
    (
        "LimitExceeded.Subscriptions",
        wire.Subscribe,
        ErrorCode.TOO_MANY_SUBSCRIPTIONS,
        "CreateCmqSubscribe",
        {"TopicName": "news", "SubscriptionName": "new", "Protocol": "queue", "Endpoint": "orders"},
    ),
    (
        "ResourceUnavailable",
        wire.SendMessages,
        ErrorCode.BACKLOG_FULL,
        "SendCmqMsg",
        {"QueueName": "orders", "MsgContent": "a"},
    ),
    (
        "InternalError",
        wire.SendMessages,
        ErrorCode.DISK_NEARLY_FULL,
        "SendCmqMsg",
        {"QueueName": "orders", "MsgContent": "a"},
    ),
    (
        "RequestLimitExceeded",
        wire.SendMessages,
        ErrorCode.TOO_MANY_REQUESTS,
        "SendCmqMsg",
        {"QueueName": "orders", "MsgContent": "a"},
    ),
]
OF_REQUESTS = {
    Code.SIGNATURE_FAILURE,
    Code.SECRET_ID_NOT_FOUND,
    Code.SIGNATURE_EXPIRE,
    Code.TOKEN_FAILURE,
    Code.INVALID_ACTION,
    Code.NO_SUCH_VERSION,
    Code.UNAUTHORIZED_OPERATION,
}
"""Codes whose tests are in ``test_api3_requests.py`` and above."""


@pytest.mark.parametrize(("code", "request_type", "error", "action", "parameters"), OF_THE_BROKER)
async def test_an_error_of_the_broker_has_its_code(
    code: str, request_type: type[Any], error: ErrorCode, action: str, parameters: Mapping[str, Any], rig: GatewayRig
):
    await stage(rig)
    rig.server.link.refuse(request_type, error, "a sentence of the broker", times=2)

    fault = await Api3Calls(rig).fault(action, **parameters)

    assert (fault.code, "a sentence of the broker" in fault.message) == (code, True), fault


def test_each_code_has_a_test():
    tested = {each.code for each in REFUSED} | {each[0] for each in OF_THE_BROKER} | OF_REQUESTS

    assert tested == set(Code)
