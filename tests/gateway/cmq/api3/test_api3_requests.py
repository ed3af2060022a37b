"""Requests of API 3.0 before their action: signatures, headers, time stamps, bodies and the choice among the APIs."""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cmqd_gateway.cmq.api2.actions import TABLE as API2
from cmqd_gateway.cmq.api3.actions import TABLE
from support.cases import each_case
from support.gateway.api3_requests import VERSION, Api3Calls, Fault, Prepared, fault_of, old_form, tc3
from support.gateway.cmq_requests import encoded
from support.gateway.gateway_rig import GatewayRig

CERTIFICATE = Path(__file__).parents[3] / "support/tls/certificate.pem"
KEY = CERTIFICATE.with_name("key.pem")
SEND = {"QueueName": "orders", "MsgContent": "a+b c&d=é 100%", "DelaySeconds": 0}
BODY = str(SEND["MsgContent"]).encode()


@pytest.fixture
def api3(rig: GatewayRig) -> Api3Calls:
    return Api3Calls(rig)


def changed(request: Prepared, *, without: str = "", **headers: str) -> Prepared:
    """Return a signed request with other headers."""
    sent = {name: value for name, value in request.headers.items() if name != without}
    return request._replace(headers=sent | {name.replace("_", "-"): value for name, value in headers.items()})


async def error(api3: Api3Calls, request: Prepared) -> Fault:
    return fault_of(await api3.send(request))


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_all_three_signatures_are_accepted(api3: Api3Calls, method: str):
    requests = [
        api3.prepare("SendCmqMsg", SEND, method=method),
        *(
            old_form("SendCmqMsg", SEND, api3.key, api3.rig.host, method=method, algorithm=algorithm)
            for algorithm in ("HmacSHA1", "HmacSHA256")
        ),
    ]

    answers = [await api3.send(request) for request in requests]

    assert [answer["Result"] for answer in answers] == [True] * 3
    assert len({answer["MsgId"] for answer in answers}) == 3
    assert await api3.rig.server.bodies("orders") == [BODY] * 3


async def test_equal_requests_are_no_repeats(api3: Api3Calls):
    for request in (api3.prepare("SendCmqMsg", SEND), old_form("SendCmqMsg", SEND, api3.key, api3.rig.host)):
        first, second = await api3.send(request), await api3.send(request)
        assert first["MsgId"] != second["MsgId"]


@each_case(
    "signed",
    [
        ("content-type", "host"),
        ("host", "content-type"),
        ("content-type", "host", "x-tc-action"),
        ("content-type", "host", "x-tc-action", "x-tc-region", "x-tc-timestamp", "x-tc-version"),
    ],
)
async def test_a_request_may_sign_further_headers(api3: Api3Calls, signed: tuple[str, ...]):
    answer = await api3.send(api3.prepare("SendCmqMsg", SEND, signed_headers=signed, X_TC_Region="ap-guangzhou"))

    assert answer["Result"]


@each_case("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
async def test_the_media_type_may_have_parameters(api3: Api3Calls, content_type: str):
    assert (await api3.send(api3.prepare("SendCmqMsg", SEND, Content_Type=content_type)))["Result"]


async def test_the_service_of_the_scope_is_the_text_of_the_client(api3: Api3Calls):
    for service in ("tdmq", "mq", ""):
        assert (await api3.send(api3.prepare("SendCmqMsg", SEND, service=service)))["Result"]


async def test_the_host_may_be_a_public_name():
    async with GatewayRig(public_names=("mq.example",)) as rig:
        api3 = Api3Calls(rig)
        for host in ("mq.example", f"mq.example:{rig.host.rpartition(':')[2]}"):
            for request in (
                changed(api3.prepare("SendCmqMsg", SEND, host=host), Host=rig.host),
                changed(old_form("SendCmqMsg", SEND, api3.key, host), Host=rig.host),
            ):
                assert (await api3.send(request))["Result"]
        evil = changed(api3.prepare("SendCmqMsg", SEND, host="evil.example"), Host=rig.host)
        assert (await error(api3, evil)).code == "AuthFailure.SignatureFailure"


@pytest.mark.parametrize("offset", [-300, 300, -301, 301])
async def test_a_time_stamp_may_be_300_s_off(api3: Api3Calls, offset: int):
    now = int(time.time())
    api3.rig.held_wall = now
    stamp = now + offset
    answers = [
        await api3.send(api3.prepare("SendCmqMsg", SEND, timestamp=stamp)),
        await api3.send(old_form("SendCmqMsg", SEND, api3.key, api3.rig.host, Timestamp=stamp)),
    ]

    if abs(offset) <= 300:
        assert all("MsgId" in answer for answer in answers)
    else:
        faults = [fault_of(answer) for answer in answers]
        assert [fault.code for fault in faults] == ["AuthFailure.SignatureExpire"] * 2
        assert all(("behind" if offset < 0 else "ahead of") in fault.message for fault in faults)


@each_case(
    ("options", "code", "text"),
    [
        ({"timestamp": 1_000_000_000}, "AuthFailure.SignatureExpire", "X-TC-Timestamp is "),
        ({"date": "2019-02-25"}, "AuthFailure.SignatureFailure", "the date of the scope is '2019-02-25'"),
        ({"version": "2019-03-04"}, "NoSuchVersion", "it must be 2020-02-17"),
        ({"version": ""}, "NoSuchVersion", "it must be 2020-02-17"),
        ({"signed_headers": ("content-type",)}, "AuthFailure.SignatureFailure", "must have host"),
        ({"signed_headers": ("host",)}, "AuthFailure.SignatureFailure", "must have content-type"),
        ({"payload": b"other"}, "AuthFailure.SignatureFailure", "the signature is wrong"),
        ({"X_TC_Token": "temporary"}, "AuthFailure.TokenFailure", "temporary keys"),
        (
            {"X_TC_Content_SHA256": "UNSIGNED-PAYLOAD", "payload": b"UNSIGNED-PAYLOAD"},
            "AuthFailure.SignatureFailure",
            "over HTTPS alone",
        ),
        ({"Content_Type": "text/plain"}, "InvalidParameter", "must be application/json, not text/plain"),
        ({"Content_Type": "multipart/form-data; boundary=x"}, "InvalidParameter", "not multipart/form-data"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, "InvalidParameter", "mixes TC3-HMAC-SHA256 with"),
    ],
)
async def test_a_request_that_is_signed_otherwise_is_refused(
    api3: Api3Calls, options: Mapping[str, Any], code: str, text: str
):
    fault = await error(api3, api3.prepare("SendCmqMsg", SEND, **options))

    assert (fault.code, text in fault.message) == (code, True), fault


@each_case(
    ("headers", "code", "text"),
    [
        ({"without": "X-TC-Action"}, "MissingParameter", "X-TC-Action is missing"),
        ({"without": "X-TC-Version"}, "NoSuchVersion", "the version is ''"),
        ({"without": "X-TC-Timestamp"}, "MissingParameter", "X-TC-Timestamp is missing"),
        ({"without": "Authorization"}, "AuthFailure.SignatureFailure", "the request is not signed"),
        ({"X_TC_Timestamp": "now"}, "InvalidParameterValue", "X-TC-Timestamp is 'now'"),
        ({"X_TC_Timestamp": "9" * 5_000}, "InvalidParameterValue", "X-TC-Timestamp is '999"),
        ({"X_TC_Timestamp": "-1"}, "InvalidParameterValue", "X-TC-Timestamp is '-1'"),
        ({"Authorization": "Basic YTpi"}, "AuthFailure.SignatureFailure", "the header Authorization must be"),
        ({"Authorization": "TC3-HMAC-SHA256"}, "AuthFailure.SignatureFailure", "the header Authorization must be"),
        ({"Content_Type": "application/json;"}, "AuthFailure.SignatureFailure", "the signature is wrong"),
        ({"X_TC_Action": "sendcmqmsg"}, "InvalidAction", "X-TC-Action is 'sendcmqmsg'; the actions of this gateway"),
        ({"X_TC_Action": "SendMessage"}, "InvalidAction", "SendCmqMsg"),
        ({"X_TC_Action": "x" * 5_000}, "InvalidAction", "SendCmqMsg"),
    ],
)
async def test_a_request_with_another_header_is_refused(
    api3: Api3Calls, headers: Mapping[str, Any], code: str, text: str
):
    fault = await error(api3, changed(api3.prepare("SendCmqMsg", SEND), **headers))

    assert (fault.code, text in fault.message) == (code, True), fault
    assert len(fault.message) < 800


async def test_a_signed_header_that_is_absent_or_given_twice_is_refused(api3: Api3Calls):
    signed = ("content-type", "host", "x-tc-region")
    request = api3.prepare("SendCmqMsg", SEND, signed_headers=signed, X_TC_Region="x")

    absent = await error(api3, changed(request, without="X-TC-Region"))
    assert (absent.code, absent.message) == (
        "AuthFailure.SignatureFailure",
        "the signed header 'x-tc-region' is missing in the request",
    )

    reader, writer = await api3.rig.open_raw()
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    writer.write(f"POST / HTTP/1.1\r\n{head}X-TC-Action: DeleteCmqQueue\r\nContent-Length: 0\r\n\r\n".encode())
    twice = await reader.readuntil(b"}}")
    writer.close()
    assert b'"Code":"InvalidParameter","Message":"the header x-tc-action is given twice"' in twice


async def test_many_signed_headers_are_refused(api3: Api3Calls):
    many = [f"x-{number}" for number in range(40)]
    further = {name.replace("-", "_"): "1" for name in many}

    fault = await error(
        api3, api3.prepare("SendCmqMsg", SEND, signed_headers=["content-type", "host", *many], **further)
    )

    assert fault == ("AuthFailure.SignatureFailure", "SignedHeaders of Authorization has more than 32 names")


@each_case(
    ("name", "value", "code"),
    [
        ("QueueName", b"other", "AuthFailure.SignatureFailure"),
        ("Extra", b"1", "AuthFailure.SignatureFailure"),
        ("Signature", b"wrong", "AuthFailure.SignatureFailure"),
        ("Signature", b"", "AuthFailure.SignatureFailure"),
        ("Signature", None, "AuthFailure.SignatureFailure"),
        ("Timestamp", None, "MissingParameter"),
        ("Timestamp", b"now", "InvalidParameterValue"),
        ("SecretId", None, "MissingParameter"),
        ("SecretId", b"unknown", "AuthFailure.SecretIdNotFound"),
        ("SecretId", b"\xff", "InvalidParameterValue"),
        ("Token", b"t", "AuthFailure.TokenFailure"),
        ("Version", b"2019-03-04", "NoSuchVersion"),
        ("Action", None, "MissingParameter"),
        ("Action", b"Nonsense", "InvalidAction"),
        ("Action", b"\xff", "InvalidParameterValue"),
    ],
)
async def test_a_changed_form_is_refused(api3: Api3Calls, name: str, value: bytes | None, code: str):
    request = old_form("SendCmqMsg", SEND, api3.key, api3.rig.host)
    pairs = [pair for pair in request.body.split(b"&") if not pair.startswith(f"{name}=".encode())]
    if value is not None:
        pairs.append(encoded({name: value}))

    assert (await error(api3, request._replace(body=b"&".join(pairs)))).code == code


async def test_a_form_can_be_read_in_one_way_alone(api3: Api3Calls):
    """A body of a form with the text of parameters is signed like these parameters."""
    fault = await error(
        api3,
        old_form(
            "SendCmqMsg",
            {"MsgContent": "a", "QueueName": "evil", "Region": "&QueueName=orders"},
            api3.key,
            api3.rig.host,
        ),
    )

    assert fault.code == "AuthFailure.SignatureFailure"
    assert "read in another way" in fault.message
    assert (await api3.ok("SendCmqMsg", QueueName="orders", MsgContent="a&QueueName=b"))["Result"]


def test_no_action_is_of_both_apis():
    # A signed form of one API could be executed by the other.
    assert {name.lower() for name in TABLE} & API2.keys() == set()


async def test_both_signatures_at_once_are_refused(api3: Api3Calls):
    by_query = api3.prepare("SendCmqMsg", SEND | {"Signature": "x"}, method="GET")
    form = old_form("SendCmqMsg", SEND, api3.key, api3.rig.host)
    by_body = form._replace(
        headers=form.headers | {"Authorization": api3.prepare("SendCmqMsg", {}).headers["Authorization"]}
    )
    both = changed(by_body, X_TC_Action="SendCmqMsg", X_TC_Version=VERSION, X_TC_Timestamp=str(int(time.time())))

    for request in (by_query, both):
        fault = await error(api3, request)
        assert (fault.code, "mixes" in fault.message) == ("InvalidParameter", True), fault


async def test_a_query_of_a_post_is_refused(api3: Api3Calls):
    request = api3.prepare("SendCmqMsg", SEND)._replace(query="QueueName=other")

    assert (await error(api3, request)).code == "InvalidParameter"


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"QueueName": "orders", "QueueName": "orders"}', b"[" * 3_000, b'"x"', b"\xff"],
)
async def test_a_body_that_is_no_object_is_refused(api3: Api3Calls, body: bytes):
    request = api3.prepare("SendCmqMsg", SEND, payload=body)._replace(body=body)

    assert (await error(api3, request)).code == "InvalidParameter"


@each_case(
    ("parameters", "code"),
    [
        ({"QueueName": "orders"}, "MissingParameter"),
        ({**SEND, "Queue": "orders"}, "UnknownParameter"),
        ({**SEND, "Signature": "x"}, "UnknownParameter"),
        ({**SEND, "DelaySeconds": "5"}, "InvalidParameterValue"),
        ({**SEND, "DelaySeconds": 5.5}, "InvalidParameterValue"),
        ({**SEND, "DelaySeconds": 5.0}, "InvalidParameterValue"),
        ({**SEND, "DelaySeconds": True}, "InvalidParameterValue"),
        ({**SEND, "DelaySeconds": 1 << 63}, "InvalidParameterValue"),
        ({**SEND, "DelaySeconds": 10**300}, "InvalidParameterValue"),
        ({**SEND, "DelaySeconds": -1}, "InvalidParameterValue"),
        ({**SEND, "QueueName": ["orders"]}, "InvalidParameterValue"),
        ({**SEND, "QueueName": "a b"}, "InvalidParameterValue"),
        ({**SEND, "QueueName": ""}, "InvalidParameterValue"),
        ({**SEND, "MsgContent": {"a": 1}}, "InvalidParameterValue"),
        ({**SEND, "MsgContent": ""}, "InvalidParameterValue"),
    ],
)
async def test_parameters_are_refused_with_their_names(api3: Api3Calls, parameters: Mapping[str, Any], code: str):
    fault = await error(api3, api3.prepare("SendCmqMsg", parameters))

    assert fault.code == code, fault
    assert any(name in fault.message for name in ("QueueName", "Queue'", "MsgContent", "Signature", "Delay", "body"))


async def test_a_key_is_found_enabled_and_below_its_rate():
    async with GatewayRig(max_requests_per_second_per_key=1) as rig:
        rig.clock.hold()
        api3 = Api3Calls(rig)
        disabled = rig.add_key("disabled", "secret", enabled=False)
        faults = [
            await error(api3, tc3("SendCmqMsg", SEND, key, rig.host))
            for key in (disabled, disabled.__class__("unknown", "secret"), disabled.__class__("disabled", "wrong"))
        ]
        assert (await api3.ok("SendCmqMsg", **SEND))["Result"]
        over = await api3.fault("SendCmqMsg", **SEND)

    assert [fault.code for fault in faults] == [
        "AuthFailure.SecretIdNotFound",
        "AuthFailure.SecretIdNotFound",
        "AuthFailure.SignatureFailure",
    ]
    assert "(10080)" in faults[0].message
    assert over.code == "RequestLimitExceeded"


async def test_the_apis_share_the_rate_of_a_key():
    async with GatewayRig(max_requests_per_second_per_key=1) as rig:
        rig.clock.hold()

        assert (await rig.call("SendMessage", queueName="orders", msgBody="a"))["code"] == 0
        assert (await Api3Calls(rig).fault("SendCmqMsg", **SEND)).code == "RequestLimitExceeded"


async def test_a_wrong_signature_is_answered_after_a_pause():
    async with GatewayRig(wrong_key_pause_seconds=60) as rig:
        api3 = Api3Calls(rig)
        requests = [
            api3.prepare("SendCmqMsg", SEND, payload=b"x"),
            api3.prepare("SendCmqMsg", SEND, timestamp=5),
            changed(old_form("SendCmqMsg", SEND, api3.key, "other"), Host=rig.host),
        ]
        waiting = [asyncio.create_task(api3.send(request)) for request in requests]
        while rig.gateway.paused_refusals < len(requests):
            await rig.server.status("waiting_receives")
        for task in waiting:
            task.cancel()


async def test_the_setting_refuses_an_action_that_is_not_signed():
    async with GatewayRig(api3_signed_action=True) as rig:
        api3 = Api3Calls(rig)
        fault = await api3.fault("SendCmqMsg", **SEND)
        signed = api3.prepare("SendCmqMsg", SEND, signed_headers=("content-type", "host", "x-tc-action"))

        assert fault.code == "AuthFailure.SignatureFailure"
        assert "must have x-tc-action over HTTP (api3_signed_action of the gateway)" in fault.message
        assert (await api3.send(signed))["Result"]
        # The older form signs its action.
        assert (await api3.send(old_form("SendCmqMsg", SEND, api3.key, rig.host)))["Result"]


async def test_a_large_body_is_refused(api3: Api3Calls):
    fault = await api3.fault("SendCmqMsg", QueueName="orders", MsgContent="a" * (4 << 20))

    assert fault.code == "InvalidParameter"
    assert "the limit is 4194304" in fault.message


async def test_a_message_of_1_mib_with_escapes_is_stored(api3: Api3Calls):
    await api3.rig.call("CreateQueue", queueName="large", maxMsgSize=1 << 20)
    content = '"\\\n' * (1 << 18) + "é" * (1 << 17)

    assert (await api3.ok("SendCmqMsg", QueueName="large", MsgContent=content))["Result"]
    assert await api3.rig.server.bodies("large") == [content.encode()]


async def test_requests_at_the_root_are_of_the_api_that_their_parts_name(rig: GatewayRig):
    async def get(query: str, headers: Mapping[str, str] | None = None) -> Any:
        async with rig.session.get(f"http://{rig.host}/{query}", headers=headers, allow_redirects=False) as response:
            return response.status if response.status != 200 else json.loads(await response.read())

    console = [await get(query) for query in ("", "?version=1", "?QueueName=a")]
    api2 = await get("?Action=ListQueue")
    api3 = [await get("?Version=1"), await get("?Action=ListQueue&Version=1"), await get("", {"X-TC-Action": "x"})]
    posted = await rig.post_raw(b"Action=ListQueue&Version=1", path="/")
    old_path = await rig.post_raw(b"Action=ListQueue&Version=1")

    assert console == [307] * 3
    assert api2["code"] == 4000
    assert [answer["Response"]["Error"]["Code"] for answer in api3] == ["AuthFailure.SignatureFailure"] * 3
    assert posted["Response"]["Error"]["Code"] == "AuthFailure.SignatureFailure"
    assert old_path["code"] == 4000


async def test_over_https_the_payload_may_be_unsigned():
    async with GatewayRig(
        listen_https="127.0.0.1:0",
        tls_certificate=CERTIFICATE,
        tls_key=KEY,
        public_names=("localhost",),
        api3_signed_action=True,
    ) as rig:
        host, port = rig.http_server.addresses[1]
        named = f"localhost:{port}"
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        requests = [
            tc3("SendCmqMsg", SEND, rig.own_key, named),
            tc3(
                "SendCmqMsg",
                SEND,
                rig.own_key,
                named,
                payload=b"UNSIGNED-PAYLOAD",
                X_TC_Content_SHA256="UNSIGNED-PAYLOAD",
            ),
            tc3("SendCmqMsg", SEND, rig.own_key, named, X_TC_Content_SHA256="UNSIGNED-PAYLOAD"),
        ]
        answers: list[bytes] = []
        for request in requests:
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            head += f"Content-Length: {len(request.body)}\r\nConnection: close\r\n\r\n"
            writer.write(f"POST / HTTP/1.1\r\n{head}".encode() + request.body)
            answers.append(await reader.read())
            writer.close()

    assert [b'"Result":true' in answer for answer in answers] == [True, True, False]
    assert b"the signature is wrong" in answers[2]


async def test_a_captured_request_is_executed_as_another_action_unless_the_action_is_signed():
    # docs/security.md says so. The SDKs do not sign the action.
    for signed_headers, is_executed in (
        (("content-type", "host"), True),
        (("content-type", "host", "x-tc-action"), False),
    ):
        async with GatewayRig() as rig:
            api3 = Api3Calls(rig)
            captured = api3.prepare("DescribeCmqQueueDetail", {"QueueName": "orders"}, signed_headers=signed_headers)
            assert "QueueDescribe" in await api3.send(captured)

            answer = await api3.send(changed(captured, X_TC_Action="DeleteCmqQueue"))

            assert ("Error" not in answer) is is_executed
            assert (await rig.call("ListQueue"))["totalCount"] == (0 if is_executed else 1)
