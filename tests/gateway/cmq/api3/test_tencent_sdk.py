"""The generated Python SDK of Tencent Cloud for API 3.0, unchanged: all 20 actions, with each signature and method.

The SDK is ``tencentcloud-sdk-python-tdmq``. It blocks, so its calls run in a thread beside the gateway.
"""

import asyncio
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api3.actions import TABLE
from support.gateway.api3_refusals import REFUSED, stage
from support.gateway.api3_requests import Fault
from support.gateway.api3_scenario import Scenario
from support.gateway.gateway_rig import GatewayRig

on_one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
SIGNATURES = ["TC3-HMAC-SHA256", "HmacSHA1", "HmacSHA256"]


def module(name: str) -> Any:
    """Return a module of the SDK, which has no types."""
    try:
        return importlib.import_module(f"tencentcloud.{name}")
    except ImportError as missing:
        pytest.skip(f"Tencent Cloud's Python SDK (make setup-sdk): {missing}")


class Sdk:
    """A client of the SDK."""

    def __init__(self, rig: GatewayRig, *, signature: str, method: str, key: KeySecret | None = None) -> None:
        key = key or rig.own_key
        http = module("common.profile.http_profile").HttpProfile(
            protocol="http", endpoint=rig.host, reqMethod=method, reqTimeout=300, keepAlive=True
        )
        profile = module("common.profile.client_profile").ClientProfile(signMethod=signature, httpProfile=http)
        credential = module("common.credential").Credential(key.secret_id, key.secret_key)
        self.client = module("tdmq.v20200217.tdmq_client").TdmqClient(credential, "ap-guangzhou", profile)
        self.models = module("tdmq.v20200217.models")
        self.error = module("common.exception.tencent_cloud_sdk_exception").TencentCloudSDKException

    async def call(self, action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request from a model of the SDK, and return the fields of the model of its answer."""
        request = getattr(self.models, f"{action}Request")()
        request._deserialize(parameters)
        answer = await asyncio.to_thread(getattr(self.client, action), request)
        fields = answer._serialize(allow_none=True)
        assert len(fields.pop("RequestId")) == 24
        return fields

    async def fault(self, action: str, parameters: Mapping[str, Any]) -> Fault:
        """Return the error of an action; the models of the SDK refuse no value."""
        with pytest.raises(self.error) as refused:
            await asyncio.to_thread(self.client.call_json, action, dict(parameters))
        assert len(refused.value.get_request_id()) == 24
        return Fault(refused.value.get_code(), refused.value.get_message())


@on_one_loop
@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("signature", SIGNATURES)
async def test_all_actions_answer_like_api_2_0(signature: str, method: str):
    async with GatewayRig() as rig:
        await rig.call("DeleteQueue", queueName="orders")
        sdk = Sdk(rig, signature=signature, method=method)

        await Scenario(rig, sdk.call).run()


@on_one_loop
async def test_the_sdk_raises_each_error():
    async with GatewayRig() as rig:
        await stage(rig)
        sdk = Sdk(rig, signature=SIGNATURES[0], method="POST")
        wrong: list[object] = []
        for refusal in REFUSED:
            fault = await sdk.fault(refusal.action, refusal.parameters)
            if not refusal.matches(fault):
                wrong.append((refusal, fault))

        assert not wrong, "\n".join(map(str, wrong))


@on_one_loop
@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("signature", SIGNATURES)
async def test_the_sdk_raises_the_errors_of_keys(signature: str, method: str):
    async with GatewayRig() as rig:
        disabled = rig.add_key("disabled", "secret", enabled=False)
        keys = [KeySecret("unknown", "x"), disabled, KeySecret(rig.own_key.secret_id, "wrong")]
        faults = [
            await Sdk(rig, signature=signature, method=method, key=key).fault("DescribeCmqQueues", {}) for key in keys
        ]

    assert [fault.code for fault in faults] == [
        "AuthFailure.SecretIdNotFound",
        "AuthFailure.SecretIdNotFound",
        "AuthFailure.SignatureFailure",
    ]


@on_one_loop
async def test_a_body_that_begins_with_an_at_sign_is_signed():
    async with GatewayRig(unsigned_at_values=False) as rig:
        for signature in SIGNATURES:
            sdk = Sdk(rig, signature=signature, method="POST")
            await sdk.call("SendCmqMsg", {"QueueName": "orders", "MsgContent": "@body", "DelaySeconds": 0})

        assert await rig.server.bodies("orders") == [b"@body"] * 3


def test_the_sdk_has_no_further_action_of_cmq():
    client = module("tdmq.v20200217.tdmq_client").TdmqClient

    assert {name for name, _ in inspect.getmembers(client, inspect.isfunction) if "Cmq" in name} == TABLE.keys()


def test_answers_have_the_fields_of_the_models():
    """Each field of the SDK's models is checked by the scenario, by its number of fields."""
    models = module("tdmq.v20200217.models")

    def fields(name: str) -> int:
        members = inspect.getmembers(getattr(models, name), lambda member: isinstance(member, property))
        return len([field for field, _ in members if field != "headers"])

    assert (fields("CmqQueue"), fields("CmqTopic"), fields("CmqSubscription")) == (31, 17, 13)
