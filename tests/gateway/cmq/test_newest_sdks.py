"""Requests as the newest official SDKs of CMQ make them: Java over HTTP from 1.1.0 on, and Go. Both use the path ``/``.

The requests are made from the descriptions of the SDKs, without their code: the order and the encoding of the
parameters, the common parameters, and the signed text.
"""

import base64
import hmac
import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote_plus

import aiohttp
import pytest
import yarl
from aiohttp import web

from cmqd_gateway.cmq import root
from cmqd_gateway.cmq.api2 import endpoint
from cmqd_gateway.cmq.api2.endpoint import PATH
from cmqd_gateway.gateway import Gateway
from support.gateway.cmq_requests import encoded
from support.gateway.gateway_rig import GatewayRig

ROOT = "/"
SEND = {"Action": "SendMessage", "queueName": "orders", "msgBody": "a+b c&d=é 100%"}


class Sdk:
    """An SDK with the key of the rig."""

    def __init__(self, rig: GatewayRig, *, method: str = "POST", path: str = ROOT, sign_method: str = "sha1") -> None:
        self.rig = rig
        self.method = method
        self.path = path
        self.sign_method = sign_method
        self.draw = random.Random(36)

    def common(self) -> dict[str, str]:
        """Return the parameters that the SDK adds to every request."""
        raise NotImplementedError

    def ordered(self, parameters: dict[str, str]) -> dict[str, str]:
        """Return the parameters in the order of the SDK's body."""
        raise NotImplementedError

    headers: ClassVar[Mapping[str, str]]

    async def call(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request and return its answer."""
        return await self.post(self.form(parameters))

    def form(self, parameters: Mapping[str, Any]) -> str:
        """Return the signed parameters of a request, in the encoding of the SDK."""
        names = {name: str(value) for name, value in parameters.items()} | self.common()
        joined = "&".join(f"{name.replace('_', '.')}={names[name]}" for name in sorted(names))
        text = f"{self.method}{self.rig.host}{self.path}?{joined}"
        digest = hmac.digest(self.rig.own_key.secret_key.encode(), text.encode(), self.sign_method)
        signed = self.ordered(names | {"Signature": base64.b64encode(digest).decode()})
        return "&".join(f"{name}={quote_plus(value)}" for name, value in signed.items())

    async def post(self, form: str) -> dict[str, Any]:
        """Send a form."""
        url = f"http://{self.rig.host}{self.path}"
        if self.method == "GET":
            request = self.rig.session.get(yarl.URL(f"{url}?{form}", encoded=True), headers=self.headers)
        else:
            request = self.rig.session.post(url, data=form.encode(), headers=self.headers)
        async with request as response:
            assert response.status == 200, await response.text()
            return await response.json()


class JavaSdk(Sdk):
    """CMQ's Java SDK over HTTP, 1.1.x: the parameters are sorted, the signature among them."""

    headers: ClassVar[Mapping[str, str]] = {"Content-Type": "*/*;charset=utf-8"}

    def common(self) -> dict[str, str]:
        return {
            "Nonce": str(self.draw.randrange(2**31 - 1)),
            "SecretId": self.rig.own_key.secret_id,
            "Timestamp": str(int(time.time())),
            "RequestClient": "SDK_JAVA_1.3",
            "SignatureMethod": "HmacSHA256" if self.sign_method == "sha256" else "HmacSHA1",
        }

    def ordered(self, parameters: dict[str, str]) -> dict[str, str]:
        return dict(sorted(parameters.items()))


class GoSdk(Sdk):
    """Tencent's Go SDK: the parameters come in any order, and a request has an id of the client."""

    headers: ClassVar[Mapping[str, str]] = {
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "Go-http-client/1.1",
    }

    def common(self) -> dict[str, str]:
        return {
            "RequestClient": "SDK_GO_1.0",
            "clientRequestId": str(self.draw.randrange(2**32)),
            "SecretId": self.rig.own_key.secret_id,
            "SignatureMethod": "HmacSHA256" if self.sign_method == "sha256" else "HmacSHA1",
            "Nonce": str(self.draw.randrange(2**32)),
            "Timestamp": str(int(time.time())),
        }

    def ordered(self, parameters: dict[str, str]) -> dict[str, str]:
        pairs = list(parameters.items())
        self.draw.shuffle(pairs)
        return dict(pairs)


@pytest.mark.parametrize("sdk_type", [JavaSdk, GoSdk])
@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("path", [ROOT, PATH])
@pytest.mark.parametrize("sign_method", ["sha1", "sha256"])
async def test_a_message_goes_round_with_the_newest_sdks(
    rig: GatewayRig, sdk_type: type[Sdk], method: str, path: str, sign_method: str
):
    sdk = sdk_type(rig, method=method, path=path, sign_method=sign_method)

    sent = await sdk.call(SEND)
    received = await sdk.call({"Action": "ReceiveMessage", "queueName": "orders", "pollingWaitSeconds": 0})
    deleted = await sdk.call(
        {"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": received["receiptHandle"]}
    )

    assert (sent["code"], received["code"], deleted["code"]) == (0, 0, 0)
    assert received["msgBody"] == SEND["msgBody"]
    assert received["msgId"] == sent["msgId"]


async def test_the_signed_path_is_the_path_of_the_request(rig: GatewayRig):
    for path, other in ((ROOT, PATH), (PATH, ROOT)):
        form = rig.sign(SEND, path=path)
        assert (await rig.post(form, path=other))["code"] == 4100
        assert (await rig.post(form, path=path))["code"] == 0


async def test_the_two_paths_share_rates():
    async with GatewayRig(max_requests_per_second_per_key=1) as rig:
        rig.clock.hold()

        answers = [await rig.post(rig.sign(SEND, path=path), path=path) for path in (ROOT, PATH, ROOT)]

    assert [answer["code"] for answer in answers] == [0, 4420, 4420]


async def test_the_two_paths_are_one_endpoint_with_one_memory(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch):
    async def other(request: web.Request) -> web.StreamResponse:
        raise AssertionError

    made: list[endpoint.Endpoint] = []

    def make(gateway: Gateway, with_version: endpoint.FormHandler) -> endpoint.Endpoint:
        made.append(endpoint.Endpoint(gateway, with_version))
        return made[-1]

    monkeypatch.setattr(root, "Endpoint", make)
    routes = [route for route in root.routes(rig.gateway, other) if isinstance(route, web.RouteDef)]

    assert {route.path for route in routes} == {ROOT, PATH}
    assert len(made) == 1


@pytest.mark.parametrize("path", [ROOT, PATH])
async def test_a_repeated_delete_is_answered_like_the_first(rig: GatewayRig, path: str):
    await rig.server.put("orders", b"a")
    handle = (await rig.call("ReceiveMessage", queueName="orders"))["receiptHandle"]
    form = rig.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": handle}, path=path)

    assert [(await rig.post(form, path=path))["code"] for _ in range(3)] == [0, 0, 0]


async def test_a_repeated_send_to_the_root_is_stored_once(rig: GatewayRig):
    form = GoSdk(rig).form(SEND)

    first, second = await GoSdk(rig).post(form), await GoSdk(rig).post(form)

    assert first["msgId"] == second["msgId"]


async def test_a_get_of_the_root_without_an_action_leads_to_the_console(rig: GatewayRig):
    async def get(query: str) -> aiohttp.ClientResponse:
        url = yarl.URL(f"http://{rig.host}/{query}", encoded=True)
        async with rig.session.get(url, allow_redirects=False) as response:
            return response

    assert [(await get(query)).status for query in ("", "?", "?a=1", "?action=x", "?xAction=1")] == [307] * 5
    assert (await get("?Action=ListQueue")).status == 200
    async with rig.session.head(f"http://{rig.host}/?Action=ListQueue", allow_redirects=False) as response:
        assert response.status == 307


async def test_a_post_to_the_root_without_an_action_is_refused_in_the_form_of_api_2_0(rig: GatewayRig):
    answer = await rig.post_raw(encoded({"a": b"1"}), path=ROOT)

    assert answer["code"] == 4000
    assert answer["message"].startswith("(10010)")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_the_root_has_no_other_methods(rig: GatewayRig, method: str):
    async with rig.session.request(method, f"http://{rig.host}/") as response:
        assert response.status == 405


@pytest.mark.parametrize(("name", "digest"), [("sha1", "sha1"), ("sha256", "sha256"), ("", "sha1"), ("other", "sha1")])
async def test_the_names_of_the_signature_in_cmqs_tcp_sdk_are_known(rig: GatewayRig, name: str, digest: str):
    # The part of the TCP SDK that manages queues over HTTP.
    sdk = JavaSdk(rig, path=PATH, sign_method=digest)
    common = sdk.common()
    sdk.common = lambda: common | {"SignatureMethod": name}

    assert (await sdk.call({"Action": "ListQueue"}))["code"] == 0


async def test_a_nonce_of_0_is_legal_and_keeps_no_identity(rig: GatewayRig):
    form = rig.sign(SEND | {"Nonce": 0, "msgBody": "x"})

    assert [(await rig.post(form))["code"] for _ in range(2)] == [0, 0]
    assert await rig.server.bodies("orders") == [b"x", b"x"]
