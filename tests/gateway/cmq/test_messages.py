"""Messages over API 2.0: send, receive and delete, single and in batches, with their answers and errors."""

import base64
from typing import Any

import pytest

from cmqd_client import connect
from support.cases import each_case
from support.gateway.gateway_rig import GatewayRig


async def receive(rig: GatewayRig, **parameters: Any) -> dict[str, Any]:
    return await rig.call("ReceiveMessage", queueName="orders", pollingWaitSeconds=0, **parameters)


async def test_a_message_is_sent_received_and_deleted(rig: GatewayRig):
    sent = await rig.call("SendMessage", queueName="orders", msgBody="one espresso")
    received = await receive(rig)
    deleted = await rig.call("DeleteMessage", queueName="orders", receiptHandle=received["receiptHandle"])

    assert (sent["code"], sent["message"]) == (0, "")
    assert received["msgBody"] == "one espresso"
    assert received["msgId"] == sent["msgId"]
    assert received["dequeueCount"] == 1
    assert received["nextVisibleTime"] - received["firstDequeueTime"] == 30
    assert deleted["code"] == 0
    assert len({sent["requestId"], received["requestId"], deleted["requestId"]}) == 3
    assert (await rig.server.info("orders")).active == 0


async def test_requests_by_get_are_answered_too(rig: GatewayRig):
    sent = await rig.call("SendMessage", method="GET", queueName="orders", msgBody="a b+c&d=e%f")
    received = await rig.call("ReceiveMessage", method="GET", queueName="orders")

    assert sent["code"] == 0
    assert received["msgBody"] == "a b+c&d=e%f"


async def test_a_batch_is_stored_in_order_and_received_together(rig: GatewayRig):
    sent = await rig.call("BatchSendMessage", queueName="orders", msgBody=[f"m{number}" for number in range(16)])
    received = await rig.call("BatchReceiveMessage", queueName="orders", numOfMsg=16)
    handles = [message["receiptHandle"] for message in received["msgInfoList"]]
    deleted = await rig.call("BatchDeleteMessage", queueName="orders", receiptHandle=handles)

    assert [message["msgId"] for message in sent["msgList"]] == [
        message["msgId"] for message in received["msgInfoList"]
    ]
    assert [message["msgBody"] for message in received["msgInfoList"]] == [f"m{number}" for number in range(16)]
    assert deleted["code"] == 0
    assert "errorList" not in deleted


async def test_a_batch_receive_does_not_wait_to_fill(rig: GatewayRig):
    await rig.server.put("orders", b"a", b"b")

    received = await rig.call("BatchReceiveMessage", queueName="orders", numOfMsg=16, pollingWaitSeconds=30)

    assert len(received["msgInfoList"]) == 2


async def test_a_delay_holds_for_the_whole_batch(rig: GatewayRig):
    rig.server.broker.clock.stop()
    await rig.call("BatchSendMessage", queueName="orders", msgBody=["a", "b"], delaySeconds=60)
    await rig.call("SendMessage", queueName="orders", msgBody="c", delaySeconds=61)

    assert (await receive(rig))["code"] == 7000
    rig.server.advance(60.5)
    received = await rig.call("BatchReceiveMessage", queueName="orders", numOfMsg=16)
    assert [message["msgBody"] for message in received["msgInfoList"]] == ["a", "b"]


async def test_no_message_is_code_7000(rig: GatewayRig):
    answer = await receive(rig)

    assert answer.keys() == {"code", "message", "requestId"}
    assert (answer["code"], answer["message"]) == (7000, "(10200)no message")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ("héllo 漢字 \U0001f600".encode(), {"msgBody": "héllo 漢字 \U0001f600"}),
        (b'\x00\x01 \r\n\t"\\', {"msgBody": '\x00\x01 \r\n\t"\\'}),
        (b"\xff\xfe binary", {"msgBody": base64.b64encode(b"\xff\xfe binary").decode(), "msgBodyEncoding": "base64"}),
        (bytes(range(256)), {"msgBody": base64.b64encode(bytes(range(256))).decode(), "msgBodyEncoding": "base64"}),
        (b"=%3D+%", {"msgBody": "=%3D+%"}),
    ],
    ids=["UTF-8", "control characters", "not UTF-8", "every byte", "escapes"],
)
async def test_bodies_round_trip(rig: GatewayRig, body: bytes, fields: dict[str, str]):
    for method in ("POST", "GET"):
        await rig.call("SendMessage", method=method, queueName="orders", msgBody=body)
        received = await receive(rig)

        assert {name: received[name] for name in received.keys() & {"msgBody", "msgBodyEncoding"}} == fields
    assert await rig.server.bodies("orders", "in_flight") == [body, body]


async def test_a_body_has_up_to_1_mib_and_a_request_up_to_4(rig: GatewayRig):
    await rig.server.admin.create_queue("large", max_message_bytes=1 << 20)
    # Three bytes on the wire for each byte.
    body = b"\xff" * (1 << 20)

    sent = await rig.call("SendMessage", queueName="large", msgBody=body)
    over = await rig.call("SendMessage", queueName="large", msgBody=body + b"x")
    far_over = await rig.call("SendMessage", queueName="large", msgBody=body + body)

    assert sent["code"] == 0
    assert (over["code"], over["message"][:7]) == (4400, "(10230)")
    assert (far_over["code"], far_over["message"][:7]) == (4000, "(10420)")
    assert await rig.server.bodies("large") == [body]


@each_case(
    ("action", "parameters", "code", "module"),
    [
        ("SendMessage", {"queueName": "orders", "msgBody": ""}, 4000, 10120),
        ("SendMessage", {"queueName": "orders"}, 4000, 10390),
        ("SendMessage", {"msgBody": "x"}, 4000, 10390),
        ("SendMessage", {"queueName": "missing", "msgBody": "x"}, 4440, 10100),
        ("SendMessage", {"queueName": "not a name", "msgBody": "x"}, 4000, 10020),
        ("SendMessage", {"queueName": "orders", "msgBody": "x" * 65_537}, 4400, 10230),
        ("SendMessage", {"queueName": "orders", "msgBody": "x", "delaySeconds": 3601}, 4000, 10692),
        ("SendMessage", {"queueName": "orders", "msgBody": "x", "delaySeconds": -1}, 4000, 10692),
        ("SendMessage", {"queueName": "orders", "msgBody": "x", "delaySeconds": "soon"}, 4000, 10360),
        ("SendMessage", {"queueName": ["orders"], "msgBody": "x"}, 4000, 10330),
        ("BatchSendMessage", {"queueName": "orders"}, 4000, 10390),
        ("BatchSendMessage", {"queueName": "orders", "msgBody": ["x"] * 17}, 4000, 10370),
        ("BatchSendMessage", {"queueName": "orders", "msgBody": ["x", ""]}, 4000, 10120),
        ("BatchSendMessage", {"queueName": "orders", "msgBody.1": "x", "msgBody.3": "x"}, 4000, 10380),
        ("BatchSendMessage", {"queueName": "orders", "msgBody.2": "x", "msgBody.3": "x"}, 4000, 10380),
        ("BatchSendMessage", {"queueName": "orders", "msgBody.one": "x"}, 4000, 10310),
        ("BatchSendMessage", {"queueName": "orders", "msgBody.01": "x"}, 4000, 10310),
        ("ReceiveMessage", {"queueName": "missing"}, 4440, 10100),
        ("ReceiveMessage", {"queueName": "orders", "pollingWaitSeconds": -1}, 4000, 10350),
        ("BatchReceiveMessage", {"queueName": "orders", "numOfMsg": 0}, 4000, 10370),
        ("BatchReceiveMessage", {"queueName": "orders", "numOfMsg": 17}, 4000, 10370),
        ("BatchReceiveMessage", {"queueName": "orders"}, 4000, 10390),
        ("DeleteMessage", {"queueName": "orders", "receiptHandle": "x"}, 4000, 10470),
        ("DeleteMessage", {"queueName": "orders", "receiptHandle": str(1 << 64)}, 4000, 10470),
        ("DeleteMessage", {"queueName": "orders", "receiptHandle": "12345"}, 4430, 10260),
        ("DeleteMessage", {"queueName": "missing", "receiptHandle": "12345"}, 4440, 10100),
        ("BatchDeleteMessage", {"queueName": "missing", "receiptHandle": ["12345"]}, 4440, 10100),
        ("ChangeMessageVisibility", {"queueName": "orders", "receiptHandle": "1", "visibilityTimeout": 5}, 4430, 10260),
        ("PeekMessage", {"queueName": "missing"}, 4440, 10100),
    ],
)
async def test_errors_have_the_codes_of_cmq(
    rig: GatewayRig, action: str, parameters: dict[str, Any], code: int, module: int
):
    answer = await rig.call(action, **parameters)

    assert (answer["code"], answer["message"].partition(")")[0]) == (code, f"({module}")
    info = await rig.server.info("orders")
    assert info.active == info.delayed == 0


async def test_lists_begin_at_0_or_1_and_a_name_alone_is_a_list_of_one(rig: GatewayRig):
    from_zero = await rig.call("BatchSendMessage", queueName="orders", **{"msgBody.0": "a", "msgBody.1": "b"})
    from_one = await rig.call("BatchSendMessage", queueName="orders", **{"msgBody.1": "c", "msgBody.2": "d"})
    alone = await rig.call("BatchSendMessage", queueName="orders", msgBody="e")

    assert [len(answer["msgList"]) for answer in (from_zero, from_one, alone)] == [2, 2, 1]
    assert await rig.server.bodies("orders") == [b"a", b"b", b"c", b"d", b"e"]


async def test_ten_entries_of_a_list_keep_their_order(rig: GatewayRig):
    # By name, msgBody.10 sorts before msgBody.2.
    await rig.call("BatchSendMessage", queueName="orders", msgBody=[f"{number}" for number in range(12)])

    assert await rig.server.bodies("orders") == [f"{number}".encode() for number in range(12)]


async def test_a_batch_over_1_mib_is_refused_whole(rig: GatewayRig):
    await rig.server.admin.create_queue("large", max_message_bytes=1 << 20)

    answer = await rig.call("BatchSendMessage", queueName="large", msgBody=["x" * 700_000, "y" * 700_000])

    assert (answer["code"], answer["message"][:7]) == (4470, "(10300)")
    assert await rig.server.bodies("large") == []


async def test_a_batch_of_deletes_names_its_failures(rig: GatewayRig):
    await rig.server.put("orders", b"a", b"b", b"c")
    received = await rig.call("BatchReceiveMessage", queueName="orders", numOfMsg=16)
    first, second, third = [message["receiptHandle"] for message in received["msgInfoList"]]

    some = await rig.call("BatchDeleteMessage", queueName="orders", receiptHandle=[first, "77", "none"])
    every = await rig.call("BatchDeleteMessage", queueName="orders", receiptHandle=["78", first])
    twice = await rig.call("BatchDeleteMessage", queueName="orders", receiptHandle=[second, second])
    malformed = await rig.call("BatchDeleteMessage", queueName="orders", receiptHandle=["-1"])

    assert (some["code"], some["message"][:7]) == (6010, "(10150)")
    assert [(entry["receiptHandle"], entry["code"]) for entry in some["errorList"]] == [("none", 4000), ("77", 4430)]
    assert (every["code"], every["message"][:7]) == (6020, "(10290)")
    assert {entry["receiptHandle"] for entry in every["errorList"]} == {"78", first}
    assert twice["code"] == 0
    assert malformed["code"] == 6020
    assert await rig.server.bodies("orders", "in_flight") == [b"c"]
    assert third


async def test_the_visibility_of_a_received_message_changes(rig: GatewayRig):
    await rig.server.put("orders", b"a")
    first = await receive(rig)

    changed = await rig.call(
        "ChangeMessageVisibility", queueName="orders", receiptHandle=first["receiptHandle"], visibilityTimeout=600
    )
    rig.server.advance(500)
    hidden = await receive(rig)
    returned = await rig.call(
        "ChangeMessageVisibility", queueName="orders", receiptHandle=first["receiptHandle"], visibilityTimeout=0
    )
    again = await receive(rig)

    assert abs(changed["nextVisibleTime"] - first["firstDequeueTime"] - 600) <= 5
    assert hidden["code"] == 7000
    assert returned["code"] == 0
    assert (again["msgBody"], again["dequeueCount"]) == ("a", 2)


async def test_a_peek_changes_nothing_and_goes_through_all_states(rig: GatewayRig):
    await rig.server.put("orders", b"\xff", b"b", b"c")
    await receive(rig)
    await rig.call("SendMessage", queueName="orders", msgBody="d", delaySeconds=60)

    first = await rig.call("PeekMessage", queueName="orders", numOfMsg=2)
    second = await rig.call("PeekMessage", queueName="orders", start=first["nextStart"])
    info = await rig.server.info("orders")

    peeked = [*first["msgInfoList"], *second["msgInfoList"]]
    assert [(message["msgBody"], message["state"]) for message in peeked] == [
        ("/w==", "in_flight"), ("b", "active"), ("c", "active"), ("d", "delayed"),
    ]  # fmt: skip
    assert peeked[0]["msgBodyEncoding"] == "base64"
    assert peeked[3]["nextVisibleTime"] - peeked[3]["enqueueTime"] == 60
    assert "nextStart" not in second
    assert (info.active, info.in_flight, info.delayed) == (2, 1, 1)


async def test_other_accounts_have_other_queues(rig: GatewayRig):
    made = await rig.server.admin.accounts.create("shop")
    assert made.secret_key is not None
    key = rig.add_key(made.secret_id, made.secret_key)
    async with connect(rig.server.direct_url.replace(rig.own_key.secret_id, made.secret_id)
                       .replace(rig.own_key.secret_key, made.secret_key)) as client:  # fmt: skip
        await client.create_queue("theirs")
    await rig.server.put("orders", b"mine")

    theirs = await rig.post(rig.sign({"Action": "ReceiveMessage", "queueName": "theirs"}, key=key))
    mine = await rig.post(rig.sign({"Action": "ReceiveMessage", "queueName": "orders"}, key=key))

    assert theirs["code"] == 7000
    assert mine["code"] == 4440
