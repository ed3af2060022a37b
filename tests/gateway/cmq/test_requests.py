"""Requests of API 2.0 before their action: methods, common parameters, keys and signatures, rates."""

import asyncio
import time
from typing import Any

import pytest
import yarl

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.callers.key_secrets import KeySecret
from support.cases import each_case
from support.gateway.cmq_requests import PATH, encoded, signed
from support.gateway.gateway_rig import GatewayRig

RECEIVE = {"Action": "ReceiveMessage", "queueName": "orders", "pollingWaitSeconds": 0}
NO_MESSAGE = (7000, "(10200)no message")


def short(answer: dict[str, Any]) -> tuple[int, str]:
    """Return the code and the module code of an answer."""
    return answer["code"], answer["message"].partition(")")[0] + ")"


async def another_key(rig: GatewayRig, account: str) -> KeySecret:
    """Return the key of a new account."""
    made = await rig.server.admin.accounts.create(account)
    assert made.secret_key is not None
    return rig.add_key(made.secret_id, made.secret_key)


@pytest.mark.parametrize("name", ["ReceiveMessage", "receivemessage", "RECEIVEMESSAGE", "rECEIVEmESSAGE"])
async def test_actions_are_found_in_any_case(rig: GatewayRig, name: str):
    assert (await rig.call(name, queueName="orders", pollingWaitSeconds=0))["code"] == 7000


async def test_both_signatures_and_both_treatments_of_at_signs_are_accepted(rig: GatewayRig):
    base = {"Action": "SendMessage", "queueName": "orders", "msgBody": "@body"}

    for method in ("HmacSHA1", "HmacSHA256"):
        for leave_out in (False, True):
            form = rig.sign(base | {"SignatureMethod": method}, leave_out_at=leave_out)
            assert (await rig.post(form))["code"] == 0
    by_get = rig.sign(base, method="GET")
    assert (await rig.post(by_get, method="GET"))["code"] == 0
    left_out = rig.sign(base, method="GET", leave_out_at=True)
    assert short(await rig.post(left_out, method="GET")) == (4100, "(10030)")


@pytest.mark.parametrize("action", ["ReceiveMessage", "Nonsense"])
async def test_no_cache_keeps_an_answer(rig: GatewayRig, action: str):
    await rig.server.put("orders", b"kept")
    form = rig.sign({"Action": action, "queueName": "orders"}, method="GET")

    async with rig.session.get(yarl.URL(f"http://{rig.host}{PATH}?{encoded(form).decode()}", encoded=True)) as response:
        answer = await response.json()

    assert answer["code"] == (0 if action == "ReceiveMessage" else 4000)
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"


async def test_parameters_of_no_action_are_ignored(rig: GatewayRig):
    answer = await rig.call(
        "ReceiveMessage", queueName="orders", pollingWaitSeconds=0, UserpollingWaitSeconds=30, Region="gz",
        RequestClient="SDK_Python_1.3", clientRequestId=7, **{"some.thing.1": "x", "under_score": "y"},
    )  # fmt: skip

    assert answer["code"] == 7000


@each_case(
    ("changes", "expected"),
    [
        ({"Action": None}, (4000, "(10010)")),
        ({"Action": "NoSuchAction"}, (4000, "(10280)")),
        ({"Action": b"\xff"}, (4000, "(10360)")),
        ({"SecretId": None}, (4000, "(10010)")),
        ({"Timestamp": None}, (4000, "(10010)")),
        ({"Nonce": None}, (4000, "(10010)")),
        ({"Signature": None}, (4000, "(10010)")),
        ({"Nonce": "x"}, (4000, "(10360)")),
        ({"Nonce": "-5"}, (4000, "(10350)")),
        ({"Timestamp": "now"}, (4000, "(10360)")),
        ({"Signature": "wrong"}, (4100, "(10030)")),
        ({"Signature": b"\xff\xfe"}, (4100, "(10030)")),
        ({"queueName": "other"}, (4100, "(10030)")),
        ({"extra": "unsigned"}, (4100, "(10030)")),
        ({"SecretId": "unknown"}, (4100, "(10270)")),
        ({"SecretId": b"\xff"}, (4000, "(10360)")),
        ({"SecretId": "x" * 5000}, (4100, "(10270)")),
        ({"Token": "temporary"}, (4100, "(10030)")),
    ],
)
async def test_requests_without_a_right_signature_are_refused(
    rig: GatewayRig, changes: dict[str, Any], expected: tuple[int, str]
):
    form = rig.sign(RECEIVE)
    for name, value in changes.items():
        if value is None:
            del form[name]
        else:
            form[name] = value if isinstance(value, bytes) else str(value).encode()

    answer = await rig.post(form)

    assert short(answer) == expected
    assert answer.keys() == {"code", "message", "requestId"}


async def test_temporary_keys_are_refused_with_a_text(rig: GatewayRig):
    answer = await rig.post(rig.sign(RECEIVE | {"Token": "t"}))

    assert "temporary keys (Token) are not supported" in answer["message"]


@pytest.mark.parametrize(("sign", "direction"), [(1, "ahead of"), (-1, "behind")])
async def test_a_time_stamp_outside_the_window_is_refused(rig: GatewayRig, sign: int, direction: str):
    settings = rig.settings
    limit = settings.timestamp_ahead_seconds if sign > 0 else settings.timestamp_behind_seconds

    far = await rig.post(rig.sign(RECEIVE | {"Timestamp": int(time.time()) + sign * (limit + 40)}))
    near = await rig.post(rig.sign(RECEIVE | {"Timestamp": int(time.time()) + sign * (limit - 40)}))

    assert short(far) == (4100, "(10030)")
    assert f"s {direction} the clock of the gateway; the gateway accepts 220 s behind to 60 s ahead" in far["message"]
    assert short(near) == (7000, "(10200)")


async def test_a_disabled_key_is_refused_with_its_own_code_after_its_signature(rig: GatewayRig):
    key = rig.add_key("disabled", "secret", enabled=False)

    right = await rig.post(rig.sign(RECEIVE, key=key))
    wrong = await rig.post(rig.sign(RECEIVE, key=key) | {"Signature": b"wrong"})

    assert short(right) == (4100, "(10080)")
    assert short(wrong) == (4100, "(10030)")


async def test_a_key_that_the_broker_refuses_is_refused(rig: GatewayRig):
    # Deleted at the broker within the second in which the gateway still uses its secret.
    key = rig.add_key("deleted", "secret")

    assert short(await rig.post(rig.sign(RECEIVE, key=key)))[0] == 4100
    assert len(rig.gateway.connections) == 0


async def test_a_gateway_that_cannot_ask_for_keys_refuses(rig: GatewayRig):
    rig.table.failure = ServerUnreachable("no connection")

    answer = await rig.call("ReceiveMessage", queueName="orders")

    assert short(answer) == (6000, "(10050)")
    rig.table.failure = None
    assert (await rig.post(rig.sign(RECEIVE)))["code"] == 7000


async def test_a_broker_out_of_reach_is_an_internal_error_and_comes_back():
    rig = GatewayRig()
    rig.patience = 0.1
    async with rig:
        await rig.server.link.stop()
        refused = await rig.post(rig.sign(RECEIVE))
        await rig.server.link.start()
        while (answer := await rig.post(rig.sign(RECEIVE)))["code"] == 6000:
            pass

    assert refused["code"] == 6000
    assert answer["code"] == 7000


async def test_the_host_may_be_a_public_name_with_or_without_port():
    async with GatewayRig(public_names=("mq.example.com", "other:9000")) as rig:
        port = rig.host.rpartition(":")[2]
        for host in ("mq.example.com", f"mq.example.com:{port}", "other:9000", "other", rig.host.rpartition(":")[0]):
            form = signed(RECEIVE, rig.own_key.secret_id, rig.own_key.secret_key, host=host)
            assert (await rig.post(form))["code"] == 7000, host
        form = signed(RECEIVE, rig.own_key.secret_id, rig.own_key.secret_key, host="evil.example.com")
        assert (await rig.post(form))["code"] == 4100


async def test_the_host_is_that_of_the_host_header(rig: GatewayRig):
    form = signed(RECEIVE, rig.own_key.secret_id, rig.own_key.secret_key, host="proxied.example.com")

    answer = await rig.post_raw(encoded(form), headers={"Host": "proxied.example.com"})

    assert answer["code"] == 7000


@pytest.mark.parametrize(
    "content_type", [None, "*/*;charset=utf-8", "application/x-www-form-urlencoded", "application/json", "nonsense"]
)
async def test_the_content_type_does_not_matter(rig: GatewayRig, content_type: str | None):
    headers = {} if content_type is None else {"Content-Type": content_type}

    answer = await rig.post_raw(encoded(rig.sign(RECEIVE)), headers=headers)

    assert answer["code"] == 7000


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused_with_status_200(rig: GatewayRig, method: str):
    answer = await rig.post_raw(encoded(rig.sign(RECEIVE)), method=method)

    assert short(answer) == (4000, "(10410)")


async def test_a_key_over_its_rate_gets_the_codes_of_cmq():
    async with GatewayRig(max_requests_per_second_per_key=1) as rig:
        rig.clock.hold()
        other = rig.add_key("other", "secret", enabled=True)
        first = await rig.post(rig.sign(RECEIVE))
        data = await rig.post(rig.sign(RECEIVE))
        control = await rig.call("ListQueue")
        independent = await rig.post(rig.sign(RECEIVE, key=other))
        rig.clock.advance(1.0)
        later = await rig.post(rig.sign(RECEIVE))

    assert first["code"] == 7000
    assert short(data) == (4420, "(10250)")
    assert short(control) == (4480, "(10460)")
    assert independent["code"] == 4100
    assert later["code"] == 7000


async def test_with_all_connections_in_use_a_key_without_one_is_throttled():
    async with GatewayRig(gateway_connections=2) as rig:
        keys = [await another_key(rig, account) for account in ("shop", "mill")]
        rig.server.link.hold()
        held = [asyncio.create_task(rig.post(rig.sign({"Action": "ListQueue"}, key=key))) for key in keys]
        while len(rig.server.link.held) != 2:
            await rig.server.status("waiting_receives")

        refused = await rig.call("ListQueue")
        rig.server.link.let_go()
        served = [await answer for answer in held]
        # The other keys' connections are idle now, and the older makes room.
        later = await rig.call("ListQueue")

    assert short(refused) == (4420, "(10250)")
    assert [answer["code"] for answer in served] == [0, 0]
    assert later["code"] == 0


async def test_with_all_connections_for_polls_in_use_polls_are_throttled_and_other_requests_served():
    async with GatewayRig(gateway_connections=2) as rig:
        other = await another_key(rig, "shop")
        await rig.server.put("orders", b"a")
        received = await rig.post(rig.sign(RECEIVE))
        polling = asyncio.create_task(rig.call("ReceiveMessage", queueName="orders", pollingWaitSeconds=30))
        while not await rig.server.status("waiting_receives"):
            pass

        refused = await rig.post(rig.sign(RECEIVE | {"pollingWaitSeconds": 1}, key=other))
        created = await rig.post(rig.sign({"Action": "CreateQueue", "queueName": "orders"}, key=other))
        without_wait = await rig.post(rig.sign(RECEIVE, key=other))
        deleted = await rig.call("DeleteMessage", queueName="orders", receiptHandle=received["receiptHandle"])
        sent = await rig.call("SendMessage", queueName="orders", msgBody="b")

        assert (await polling)["msgBody"] == "b"
    assert short(refused) == (4420, "(10250)")
    assert "poll again" in refused["message"]
    assert short(without_wait) == (7000, "(10200)")
    assert created["code"] == deleted["code"] == sent["code"] == 0
