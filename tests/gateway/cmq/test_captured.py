"""Captured requests are sent again with changes that keep the signature: no message is stored or deleted twice.

The signed text is ``name=value&name=value``, without escapes, and without the values that begin with ``@`` if the SDK
leaves these values out. A machine on the way can add values with ``@`` and cut the text into other parameters.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from cmqd_gateway.cmq.api2.actions import TABLE
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature
from support.gateway.cmq_requests import encoded
from support.gateway.gateway_rig import GatewayRig

STORING = (wire.SendMessages, wire.SendHalfMessages, wire.PublishMessages)
SEND = {"Action": "SendMessage", "queueName": "orders", "msgBody": "one", "delaySeconds": 0, "RequestClient": "SDK"}
BATCH = {"Action": "BatchSendMessage", "queueName": "orders", "msgBody.1": "one", "msgBody.2": "two", "Region": "gz"}
PUBLISH = {"Action": "PublishMessage", "topicName": "news", "msgBody": "one", "msgTag.1": "red", "Region": "gz"}
BATCH_PUBLISH = {"Action": "BatchPublishMessage", "topicName": "news", "msgBody.0": "one", "msgBody.1": "two"}
HALF = {"Action": "BatchSendHalfMessage", "queueName": "tx", "msgBody.1": "one", "msgBody.2": "two", "Region": "gz"}
CAPTURED: dict[str, dict[str, Any]] = {
    "send": SEND,
    "send of an unsigned body": SEND | {"msgBody": "@one"},
    "batch": BATCH,
    "batch from 0": {"Action": "BatchSendMessage", "queueName": "orders", "msgBody.0": "one", "msgBody.1": "two"},
    "batch with unsigned bodies": BATCH | {"msgBody.2": "@two", "msgBody.3": "@three"},
    "batch with a body like parameters": BATCH | {"msgBody.2": "two&queueName=others&r="},
    "send of a body like parameters": SEND | {"msgBody": "one&queueName=others&r="},
    "send of a body like a tag": PUBLISH | {"msgBody": "one&msgTag.0=big"},
    "publish": PUBLISH,
    "publish of a body like parameters": PUBLISH | {"msgBody": "one&topicName=others&z="},
    "batch publish": BATCH_PUBLISH,
    "batch publish of unsigned bodies": BATCH_PUBLISH | {"msgBody.1": "@two"},
    "half messages": HALF,
}
ADDED = (
    *("msgBody", *(f"msgBody.{index}" for index in range(5)), "msgTag", "msgTag.0", "msgTag.1", "msgTag.2"),
    *("routingKey", "delaySeconds", "queueName", "topicName", "anything", "Token", "Nonce2", "SignatureMethod"),
)


async def stage(rig: GatewayRig) -> None:
    """Make the queues and topics of the requests, and others to which a changed request could go."""
    await rig.server.admin.create_queue("others")
    await rig.server.admin.create_queue("tx", transactional=True)
    for name in ("news", "others"):
        topic = await rig.server.admin.create_topic(name)
        await topic.subscribe("all", queue="orders")


async def stored(rig: GatewayRig) -> int:
    """Return the number of messages in the broker."""
    return sum(
        [info.active + info.half for info in [await rig.server.info(name) for name in ("orders", "others", "tx")]]
    )


def changed(form: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield the requests that can be made of a captured request."""
    for name in ADDED:
        if name not in form:
            yield {**form, name: b"@other"}
        yield {**form, name: b"@other"}
    for name in form:
        yield {other: value for other, value in form.items() if other != name}
        if form[name].startswith(b"@"):
            yield {**form, name: b"@other"}
        for other in (name.replace(".", "_"), name + ".1", name.partition(".")[0]):
            yield {(other if one == name else one): value for one, value in form.items()}
    signed = sorted(name for name in form if name != "Signature")
    signature = {"Signature": form["Signature"]}
    for first, second in pairwise(signed):
        # The second parameter hides the first in its name.
        others = {name: form[name] for name in signed if name not in (first, second)}
        yield others | {f"{first}={form[first].decode()}&{second}": form[second]} | signature
    # Other cuts of the same text: everywhere, and everywhere but at a run of neighbours, which become one parameter.
    parts = b"&".join(name.encode() + b"=" + form[name] for name in signed).split(b"&")
    for start in range(len(parts)):
        for stop in range(start + 1, len(parts) + 1):
            cut = [*parts[:start], b"&".join(parts[start:stop]), *parts[stop:]]
            reading = [(name.decode(), value) for name, _, value in (part.partition(b"=") for part in cut)]
            if len(dict(reading)) == len(reading):
                yield dict(reading) | signature


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("leave_out_at", [False, True], ids=["all signed", "without @"])
@pytest.mark.parametrize("name", CAPTURED)
async def test_a_captured_request_stores_nothing_more_whatever_is_changed(
    rig: GatewayRig, name: str, leave_out_at: bool
):
    await stage(rig)
    form = rig.sign(CAPTURED[name], leave_out_at=leave_out_at)
    assert (await rig.post(form))["code"] == 0
    before = await stored(rig)
    assert before == sum(parameter.startswith("msgBody") for parameter in form)

    requests = [dict(form), *changed(form)]
    # Some at a time: the questions to the broker would take half of the time.
    for start in range(0, len(requests), 16):
        sent = requests[start : start + 16]
        answers = [await rig.post(other) for other in sent]
        assert await stored(rig) == before, list(zip(sent, answers, strict=True))


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("name", ["delete", "batch of deletes"])
@pytest.mark.parametrize("leave_out_at", [False, True], ids=["all signed", "without @"])
async def test_a_captured_delete_is_executed_once_whatever_is_changed(rig: GatewayRig, name: str, leave_out_at: bool):
    await rig.server.put("orders", b"a", b"b")
    received = (await rig.call("BatchReceiveMessage", queueName="orders", numOfMsg=2))["msgInfoList"]
    handles = [message["receiptHandle"] for message in received]
    given: dict[str, Any] = {"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": handles[0]}
    if name != "delete":
        both = {"receiptHandle.1": handles[0], "receiptHandle.2": handles[1]}
        given = {"Action": "BatchDeleteMessage", "queueName": "orders", **both}
    form = rig.sign(given | {"Region": "gz"}, leave_out_at=leave_out_at)
    assert (await rig.post(form))["code"] == 0
    deletes = len(rig.server.link.of(wire.DeleteMessages))

    for other in [dict(form), *changed(form), *({**form, f"receiptHandle.{index}": b"@1"} for index in range(4))]:
        await rig.post(other)

    assert len(rig.server.link.of(wire.DeleteMessages)) == deletes


async def test_a_send_with_a_nonce_of_16_bits_is_stored_again(rig: GatewayRig):
    # Decision 0154: two sends of a program can be equal in every parameter, and a lost message is worse.
    form = rig.sign(SEND | {"Nonce": 65_535})
    batch = rig.sign(BATCH | {"Nonce": 65_535})

    for _ in range(2):
        assert (await rig.post(form))["code"] == 0
        assert (await rig.post(batch))["code"] == 0

    assert sorted(await rig.server.bodies("orders")) == [b"one"] * 4 + [b"two"] * 2


async def test_the_reason_of_a_partly_repeated_batch_is_said(rig: GatewayRig):
    form = rig.sign(BATCH)
    await rig.post(form)

    answer = await rig.post(form | {"msgBody.3": b"@three"})

    assert answer["code"] == 4100
    assert "2 of the 3 messages of this batch before" in answer["message"]
    assert "no message was stored" in answer["message"]


async def test_with_an_older_broker_batches_are_sent_as_before(rig: GatewayRig):
    rig.server.link.features = [word for word in Feature if word is not Feature.ALL_OR_NONE]
    await stage(rig)

    for given in (BATCH, BATCH_PUBLISH, HALF):
        first = await rig.post(form := rig.sign(given))
        second = await rig.post(form)
        assert first["msgList"] == second["msgList"]

    assert await stored(rig) == 6


async def test_a_message_alone_needs_no_feature(rig: GatewayRig):
    await stage(rig)
    await rig.post(rig.sign(SEND))
    await rig.post(rig.sign(PUBLISH))
    await rig.post(rig.sign(BATCH))
    await rig.post(rig.sign(BATCH | {"Nonce": 5}))

    requests = [request for kind in STORING for request in rig.server.link.of(kind)]
    assert [request.all_or_none for request in requests] == [False, True, False, False]


# ---------------------------------------------------------------------- values that begin with "@"


@pytest.mark.parametrize(
    "name", ["queueName", "Region", "msgTag.1", "delaySeconds", "receiptHandle", "msgBody_1", "msgBodyX"]
)
async def test_an_unsigned_value_of_another_parameter_is_refused_with_its_reason(rig: GatewayRig, name: str):
    form = rig.sign(SEND | {name: "@x"}, leave_out_at=True)

    answer = await rig.post(form)

    assert answer["code"] == 4100
    assert answer["message"].startswith("(10030)authentication failed: ")
    assert f"the signature leaves out {name}, because its value begins with '@'" in answer["message"]
    assert not await rig.server.bodies("orders")


async def test_a_signed_value_may_begin_with_an_at_sign(rig: GatewayRig):
    assert (await rig.post(rig.sign(SEND | {"Region": "@x", "msgBody": "@y"})))["code"] == 0


async def test_bodies_may_begin_with_an_at_sign_signed_or_not(rig: GatewayRig):
    for leave_out_at in (False, True):
        assert (await rig.post(rig.sign(SEND | {"msgBody": "@a"}, leave_out_at=leave_out_at)))["code"] == 0
        assert (await rig.post(rig.sign(BATCH | {"msgBody.1": "@b"}, leave_out_at=leave_out_at)))["code"] == 0

    assert sorted(await rig.server.bodies("orders")) == [b"@a", b"@a", b"@b", b"@b", b"two", b"two"]


async def test_the_setting_ends_unsigned_values():
    async with GatewayRig(unsigned_at_values=False) as rig:
        unsigned = await rig.post(rig.sign(SEND | {"msgBody": "@a"}, leave_out_at=True))
        signed = await rig.post(rig.sign(SEND | {"msgBody": "@a"}))

        assert unsigned["code"] == 4100
        assert "unsigned_at_values" in unsigned["message"]
        assert signed["code"] == 0
        assert await rig.server.bodies("orders") == [b"@a"]


async def test_what_remains_a_body_can_be_replaced_on_its_first_way(rig: GatewayRig):
    """docs/security.md says so."""
    form = rig.sign(SEND | {"msgBody": "@a"}, leave_out_at=True)

    replaced = await rig.post(form | {"msgBody": b"@other"})
    original = await rig.post(form)

    assert replaced["code"] == original["code"] == 0
    assert await rig.server.bodies("orders") == [b"@other"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("r", "x&queueName=evil"), ("msgTag.1", "a&topicName=b"), ("a&b", "x"), ("a=b", "x"), ("queueName&r", "x")],
)
async def test_a_send_whose_text_can_be_read_in_another_way_is_refused(rig: GatewayRig, name: str, value: str):
    answer = await rig.post(rig.sign(SEND | {name: value}))

    assert answer["code"] == 4100
    assert "can be read in another way" in answer["message"]


async def test_an_ampersand_alone_makes_no_second_way(rig: GatewayRig):
    await stage(rig)

    assert (await rig.post(rig.sign(PUBLISH | {"msgTag.1": "R&D", "Region": "a&b=c"})))["code"] == 0
    assert (await rig.post(rig.sign(SEND | {"msgBody": "a&queueName=b"})))["code"] == 0


@pytest.mark.parametrize("host", ["{host}/v2/index.php?Action=ListQueue&x=", "{host}?", "a/b"])
async def test_a_host_with_a_part_of_the_signed_text_is_no_host(rig: GatewayRig, host: str):
    host = host.format(host=rig.host)
    form = rig.sign_for(host, SEND)

    assert (await rig.post_raw(encoded(form), headers={"Host": host}))["code"] == 4100


def test_every_action_with_bodies_is_among_the_captured_requests() -> None:
    with_bodies = {
        action.name for action in TABLE.values() if "msg_body" in action.operation.request_type.__struct_fields__
    }

    tried = {given["Action"] for given in CAPTURED.values()}
    assert with_bodies - tried == {"SendHalfMessage"}, "which is a batch of a message"
