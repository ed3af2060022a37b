"""The commands of CMQ's TCP protocol: messages, receives, deletes and publishes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from cmqd_client.messages.message_ids import id_number
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import HEADER
from cmqd_gateway.cmq.tcp.connections import Connections
from cmqd_gateway.cmq.tcp.frames import to_frame
from cmqd_types.actors import StatedClient
from support.cases import each_case
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram


@pytest.fixture
async def paid(rig: GatewayRig) -> None:
    """A transactional queue."""
    await rig.server.admin.create_queue("paid", transactional=True)


async def wait_waiting(rig: GatewayRig, count: int) -> None:
    while await rig.server.status("waiting_receives") != count:
        pass


async def received(program: TcpProgram, count: int = 16) -> list[Any]:
    reply = await program.ok(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=count, pollingWaitSeconds=0)
    return reply.messages


# ---------------------------------------------------------------------- send, receive, delete


async def test_a_message_is_sent_received_and_deleted_over_tcp(rig: GatewayRig, program: TcpProgram) -> None:
    body = b"\xff\x00\xfe body"
    sent = await program.ok(commands.SEND, queueName="orders", msgBody=body, request_id=1)

    reply = await program.ok(commands.RECEIVE, queueName="orders", pollingWaitSeconds=10)

    (message,) = reply.messages
    assert [message["msgId"]] == sent.ids
    assert message["msgBody"] == body
    assert message["dequeueCount"] == 1
    assert message["nextVisibleTime"] - message["firstDequeueTime"] == 30
    assert message["enqueueTime"] <= message["firstDequeueTime"]
    assert "originalQueueId" not in message
    await program.ok(commands.DELETE, queueName="orders", receiptHandle=message["receiptHandle"])
    assert await rig.server.bodies("orders") == []


async def test_a_number_of_the_wire_is_the_printed_id_of_other_doors(rig: GatewayRig, program: TcpProgram) -> None:
    sent = await program.ok(commands.BATCH_SEND, queueName="orders", msgBody=[b"a", b"b"])

    messages = await rig.server.admin.queue("orders").receive(2, wait=0)

    assert [id_number(message.id) for message in messages] == sent.ids
    assert [message.body for message in messages] == [b"a", b"b"]


async def test_a_batch_is_received_and_deleted_with_its_failures_alone(program: TcpProgram) -> None:
    await program.ok(commands.BATCH_SEND, queueName="orders", msgBody=[b"a", b"b", b"c"])
    handles = [message["receiptHandle"] for message in await received(program)]
    assert len(handles) == 3

    partly = await program.ask(commands.BATCH_DELETE, queueName="orders", receiptHandle=[handles[0], 5])
    assert (partly.result, partly.error) == (6010, "(10150)delete message partially failed")
    ((kind, failed),) = partly.bodies
    assert (kind, failed["receiptHandle"], failed["code"]) == ("failed", 5, 4430)
    assert failed["message"].startswith("(10260)receipt handle is invalid")

    none = await program.ask(commands.BATCH_DELETE, queueName="orders", receiptHandle=[5, 0])
    assert (none.result, len(none.bodies)) == (6020, 2)
    assert (await program.ok(commands.BATCH_DELETE, queueName="orders", receiptHandle=handles[1:])).bodies == []


async def test_a_delayed_message_is_not_received_at_once(rig: GatewayRig, program: TcpProgram) -> None:
    await program.ok(commands.SEND, queueName="orders", msgBody=b"x", delaySeconds=60)

    empty = await program.ask(commands.RECEIVE, queueName="orders", pollingWaitSeconds=0)
    assert (empty.result, empty.bodies, empty.cmd) == (10200, [], commands.RECEIVE)

    rig.server.advance(61)
    assert [message["msgBody"] for message in await received(program)] == [b"x"]


async def test_the_answers_of_requests_come_in_any_order(rig: GatewayRig, program: TcpProgram) -> None:
    waiting = program.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
    await wait_waiting(rig, 1)
    sent = program.send(commands.SEND, queueName="orders", msgBody=b"x")

    assert {(await program.next()).seqno for _ in range(2)} == {waiting, sent}


async def test_a_number_in_use_is_answered_once_for_each_request(program: TcpProgram) -> None:
    for _ in range(3):
        program.send(commands.SEND, queueName="orders", msgBody=b"x", seqno=77)

    assert [(await program.next()).seqno for _ in range(3)] == [77, 77, 77]


async def test_a_wait_of_more_than_30_seconds_is_30(rig: GatewayRig, program: TcpProgram) -> None:
    waiting = program.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=2**31 - 1)
    await wait_waiting(rig, 1)
    rig.server.advance(29)
    await wait_waiting(rig, 1)
    rig.server.advance(2)

    assert (await program.answer(waiting)).result == 10200


async def test_a_message_that_was_received_for_an_ended_connection_comes_back(rig: GatewayRig) -> None:
    async with TcpProgram(rig) as gone:
        assert (await gone.log_in()).result == 0
        gone.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
        await wait_waiting(rig, 1)
        gone.writer.transport.abort()
        await rig.server.admin.queue("orders").send(b"x")
        await wait_waiting(rig, 0)

    while not (messages := await rig.server.admin.queue("orders").receive(1, wait=1)):
        pass
    assert messages[0].receive_count == 1


async def test_dead_letters_carry_their_origin(rig: GatewayRig, program: TcpProgram) -> None:
    await rig.server.admin.create_queue("dead")
    await rig.server.put("orders", b"x")
    await rig.server.bury("orders", "dead")

    reply = await program.ok(commands.RECEIVE, queueName="dead", pollingWaitSeconds=0)

    (letter,) = reply.messages
    assert letter["originalQueueId"] == "orders"
    assert letter["originalDequeueCount"] >= 1
    assert 0 < letter["originalPublishTime"] <= letter["enqueueTime"]


async def test_a_draining_gateway_answers_waiting_receives_with_no_message(
    rig: GatewayRig, program: TcpProgram
) -> None:
    waiting = program.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
    await wait_waiting(rig, 1)
    closing = asyncio.create_task(rig.http_server.close())

    assert (await program.answer(waiting)).result == 10200
    await program.ended()
    await closing


# ---------------------------------------------------------------------- the further ask


class Pauses:
    """Stands in for the pauses of a gateway, which a test ends."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.end = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.begun.append(seconds)
        await self.end.wait()


@pytest.fixture
async def pauses(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Pauses]:
    pauses = Pauses()
    monkeypatch.setattr(rig.gateway.cmq_tcp, "sleep", pauses)
    yield pauses
    pauses.end.set()


async def test_messages_with_equal_delays_come_in_one_answer(
    rig: GatewayRig, program: TcpProgram, pauses: Pauses
) -> None:
    for number in range(3):
        await program.ok(commands.SEND, queueName="orders", msgBody=b"%d" % number, delaySeconds=5)
        rig.server.advance(0.005)
    waiting = program.send(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=10, pollingWaitSeconds=10)
    await wait_waiting(rig, 1)
    rig.clock.advance(5)
    rig.server.advance(4.986)

    await eventually(lambda: pauses.begun == [0.1])
    rig.server.advance(0.1)
    pauses.end.set()

    bodies = [message["msgBody"] for message in (await program.answer(waiting)).messages]
    assert bodies == [b"0", b"1", b"2"]


async def test_a_fresh_message_is_never_held_back(rig: GatewayRig, program: TcpProgram, pauses: Pauses) -> None:
    waiting = program.send(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=10, pollingWaitSeconds=10)
    await wait_waiting(rig, 1)
    rig.clock.advance(5)
    rig.server.advance(5)
    await rig.server.admin.queue("orders").send(b"fresh")

    assert len((await program.answer(waiting)).messages) == 1
    assert not pauses.begun


async def test_a_receive_that_was_answered_at_once_asks_once(
    rig: GatewayRig, program: TcpProgram, pauses: Pauses
) -> None:
    rig.clock.hold()
    await rig.server.admin.queue("orders").send(b"old")
    rig.server.advance(60)

    reply = await program.ok(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=10, pollingWaitSeconds=10)

    assert len(reply.messages) == 1
    assert not pauses.begun


async def test_messages_in_hand_come_back_when_the_connection_ends_during_the_pause(
    rig: GatewayRig, pauses: Pauses
) -> None:
    async with TcpProgram(rig) as gone:
        assert (await gone.log_in()).result == 0
        await gone.ok(commands.SEND, queueName="orders", msgBody=b"x", delaySeconds=5)
        gone.send(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=10, pollingWaitSeconds=10)
        await wait_waiting(rig, 1)
        rig.clock.advance(5)
        rig.server.advance(5)
        await eventually(lambda: pauses.begun)
    while not (messages := await rig.server.admin.queue("orders").receive(1, wait=1)):
        pass
    assert messages[0].receive_count == 1


# ---------------------------------------------------------------------- topics


async def test_messages_are_published_with_tags_and_keys(rig: GatewayRig, program: TcpProgram) -> None:
    admin = rig.server.admin
    topic = await admin.create_topic("news")
    await topic.subscribe("red", queue="orders", filter_tags=["red"])
    routing = await admin.create_topic("routes", filter_type="routing")
    await routing.subscribe("all", queue="orders", binding_keys=["a.#"])

    published = await program.ok(commands.PUBLISH, topicName="news", msgBody=b"1", msgTag=["red", "blue"])
    batch = await program.ok(commands.BATCH_PUBLISH, topicName="routes", msgBody=[b"2", b"3"], routingKey="a.b")

    assert (len(published.ids), len(batch.ids)) == (1, 2)
    await rig.server.wait_bodies("orders", b"1", b"2", b"3")
    unmatched = await program.ask(commands.PUBLISH, topicName="news", msgBody=b"1", msgTag=["blue"])
    assert (unmatched.result, unmatched.error[:7]) == (6030, "(10730)")


async def test_a_routing_key_of_a_tag_topic_is_ignored_and_counted(rig: GatewayRig, program: TcpProgram) -> None:
    topic = await rig.server.admin.create_topic("news")
    await topic.subscribe("all", queue="orders")

    await program.ok(commands.PUBLISH, topicName="news", msgBody=b"1", routingKey="a.b")

    await rig.server.wait_bodies("orders", b"1")
    assert rig.gateway.ignored_keys.count == 1


# ---------------------------------------------------------------------- refusals

BIG = 1 << 20
REFUSED: dict[str, tuple[int, dict[str, Any], int, str]] = {
    "no queue": (commands.SEND, {"queueName": "nowhere", "msgBody": b"x"}, 4440, "(10100)"),
    "an empty name": (commands.SEND, {"queueName": "", "msgBody": b"x"}, 4000, "(10020)"),
    "a name with a blank": (commands.SEND, {"queueName": "a b", "msgBody": b"x"}, 4000, "(10020)"),
    "no body": (commands.SEND, {"queueName": "orders"}, 4000, "(10390)"),
    "an empty body": (commands.SEND, {"queueName": "orders", "msgBody": b""}, 4000, "(10120)"),
    "a large body": (commands.SEND, {"queueName": "orders", "msgBody": bytes(BIG + 1)}, 4400, "(10230)"),
    "a delay of 2^32 - 1": (
        commands.SEND,
        {"queueName": "orders", "msgBody": b"x", "delaySeconds": (1 << 32) - 1},
        4000,
        "(10692)",
    ),
    "0 bodies": (commands.BATCH_SEND, {"queueName": "orders", "msgBody": []}, 4000, "(10390)"),
    "17 bodies": (commands.BATCH_SEND, {"queueName": "orders", "msgBody": [b"x"] * 17}, 4000, "(10370)"),
    "an empty body in a batch": (commands.BATCH_SEND, {"queueName": "orders", "msgBody": [b"x", b""]}, 4000, "(10120)"),
    "a half message to a plain queue": (
        commands.SEND,
        {"queueName": "orders", "msgBody": b"x", "isTransaction": 1},
        4490,
        "(10790)",
    ),
    "a transaction of 2": (
        commands.SEND,
        {"queueName": "orders", "msgBody": b"x", "isTransaction": 2},
        4000,
        "(10350)parameter value or length is out of range: isTransaction is 2",
    ),
    "a delayed half message": (
        commands.SEND,
        {"queueName": "orders", "msgBody": b"x", "isTransaction": 1, "delaySeconds": 1},
        4000,
        "(10692)",
    ),
    "a negative interval": (
        commands.SEND,
        {"queueName": "orders", "msgBody": b"x", "isTransaction": 1, "firstQueryInterval": -1},
        4000,
        "(10350)",
    ),
    "an interval of more than an hour": (
        commands.SEND,
        {"queueName": "orders", "msgBody": b"x", "isTransaction": 1, "firstQueryInterval": 3_600_001},
        4000,
        "(10350)",
    ),
    "a negative wait": (commands.RECEIVE, {"queueName": "orders", "pollingWaitSeconds": -1}, 4000, "(10350)"),
    "a visibility timeout": (
        commands.RECEIVE,
        {"queueName": "orders", "visibilityTimeout": 5},
        4000,
        "(10350)parameter value or length is out of range: visibilityTimeout",
    ),
    "0 messages": (commands.BATCH_RECEIVE, {"queueName": "orders", "numOfMsg": 0}, 4000, "(10370)"),
    "17 messages": (commands.BATCH_RECEIVE, {"queueName": "orders", "numOfMsg": 17}, 4000, "(10370)"),
    "-1 messages": (commands.BATCH_RECEIVE, {"queueName": "orders", "numOfMsg": -1}, 4000, "(10370)"),
    "handle 0": (commands.DELETE, {"queueName": "orders", "receiptHandle": 0}, 4430, "(10260)"),
    "the largest handle": (commands.DELETE, {"queueName": "orders", "receiptHandle": (1 << 64) - 1}, 4430, "(10260)"),
    "an empty list of deletes": (commands.BATCH_DELETE, {"queueName": "orders", "receiptHandle": []}, 4000, "(10370)"),
    "no topic": (commands.PUBLISH, {"topicName": "nowhere", "msgBody": b"x"}, 4440, "(10600)"),
    "17 tags": (commands.PUBLISH, {"topicName": "news", "msgBody": b"x", "msgTag": ["t"] * 17}, 4000, "(10720)"),
    "11 tags": (commands.PUBLISH, {"topicName": "news", "msgBody": b"x", "msgTag": ["t"] * 11}, 4000, "(10720)"),
    "0 items of a decision": (commands.DECIDE, {"queueName": "orders", "item": []}, 4000, "(10370)"),
    "10,000 items of a decision": (
        commands.DECIDE,
        {"queueName": "orders", "item": [{"msgId": 1, "state": 1}] * 10_000},
        4000,
        "(10370)",
    ),
    "an unknown message": (
        commands.DECIDE,
        {"queueName": "orders", "item": [{"msgId": 1, "state": 1}]},
        4490,
        "(10790)",
    ),
}


@each_case(["cmd", "body", "result", "text"], REFUSED.values(), ids=REFUSED)
async def test_wrong_values_are_refused_in_the_words_of_api_2(
    program: TcpProgram, cmd: int, body: dict[str, Any], result: int, text: str
) -> None:
    reply = await program.ask(cmd, **body)

    assert (reply.result, reply.error[: len(text)]) == (result, text), reply
    assert reply.cmd == cmd
    await program.ok(commands.SEND, queueName="orders", msgBody=b"still served")


MALFORMED: dict[str, tuple[str, int, int]] = {
    "an unknown command": ("10e707", 999, 4000),
    "a command of servers": ("10ed07", 1005, 4000),
    "the check of the server": ("109208 fa0d08 0a0470616964 1007", 1042, 4000),
    "a command of the bridge": ("10c509", 1221, 4000),
    "no command": ("", 0, 4000),
    "a negative command": ("10ffffffffffffffffff01", -1, 4000),
    "no body": ("10fd07", 1021, 4000),
    "a body of another command": ("10fd07 ca0c03 0a0161", 1021, 4000),
    "two bodies": ("10fd07 c20c03 0a0161 ca0c03 0a0161", 1021, 4000),
    "a body that is cut": ("10fd07 c20c04 0a0361", 1021, 4000),
    "a group in the envelope": ("10fd07 6b", 1021, 4000),
    "a group in the body": ("10fd07 c20c01 0b", 1021, 4000),
    "a name that is no text": ("10fd07 c20c04 0a02fffe", 1021, 4000),
    "an endless number": ("10fd07 c20c0b 20" + "80" * 10, 1021, 4000),
    "a heartbeat with a body": ("109008 c20c03 0a0161", 1040, 4000),
    "the empty envelope but for its number": ("", 0, 4000),
}


@each_case(["payload", "cmd", "result"], MALFORMED.values(), ids=MALFORMED)
async def test_malformed_requests_are_answered_with_their_number(
    program: TcpProgram, caplog: pytest.LogCaptureFixture, payload: str, cmd: int, result: int
) -> None:
    program.write(to_frame(bytes([8, 99]) + bytes.fromhex(payload)))

    reply = await program.answer(99)

    assert (reply.cmd, reply.result) == (cmd, result), reply
    assert len(reply.error) < 300
    await program.ok(commands.SEND, queueName="orders", msgBody=b"still served")
    assert not caplog.records


@pytest.mark.parametrize("payload", ["", "10fd07", "08", "0880", "0a0105"])
async def test_a_request_without_number_ends_its_connection(
    connections: Connections, program: TcpProgram, payload: str
) -> None:
    program.write(to_frame(bytes.fromhex(payload)))

    await program.ended()
    assert connections.ended["no envelope"] == 1


async def test_negative_and_large_numbers_of_calls_are_answered(program: TcpProgram) -> None:
    for seqno in (0, -1, -(1 << 63), (1 << 63) - 1):
        program.send(commands.SEND, queueName="orders", msgBody=b"x", seqno=seqno)
        assert (await program.answer(seqno)).result == 0


async def test_unknown_fields_of_the_sdk_to_come_are_skipped(program: TcpProgram) -> None:
    header = HEADER.encode({"seqno": 5, "cmd": commands.SEND})
    body = "0a066f7264657273 120161 a20603787878 a8067f b106 0102030405060708 bd0601020304"
    encoded = bytes.fromhex(body)
    unknown = bytes.fromhex("48012a03616263 3a00")
    program.write(to_frame(header + unknown + b"\xc2\x0c" + bytes([len(encoded)]) + encoded))

    assert (await program.answer(5)).result == 0


# ---------------------------------------------------------------------- keys


async def test_a_key_without_the_role_is_refused(rig: GatewayRig) -> None:
    created = await rig.server.admin.accounts.create_key(roles=["send"], names=["ord*"])
    key = rig.table.keys[created.secret_id] = KeySecret(created.secret_id, created.secret_key or "")
    async with TcpProgram(rig) as sender:
        assert (await sender.log_in(key)).result == 0
        await sender.ok(commands.SEND, queueName="orders", msgBody=b"x")
        refused = [
            await sender.ask(commands.RECEIVE, queueName="orders", pollingWaitSeconds=0),
            await sender.ask(commands.SEND, queueName="paid", msgBody=b"x"),
            await sender.ask(commands.DELETE, queueName="orders", receiptHandle=1),
        ]
    assert {(reply.result, reply.error[:7]) for reply in refused} == {(4000, "(10461)")}


async def test_the_rate_of_a_key_counts_over_tcp_too() -> None:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0", max_requests_per_second_per_key=3) as rig:
        rig.clock.hold()
        async with TcpProgram(rig) as program:
            await program.log_in()
            replies = [await program.ask(commands.SEND, queueName="orders", msgBody=b"x") for _ in range(4)]

    assert [reply.result for reply in replies] == [0, 0, 0, 4420]


async def test_the_client_id_of_the_log_in_is_the_name_that_the_gateway_states(rig: GatewayRig) -> None:
    async with TcpProgram(rig) as program:
        assert (await program.log_in(client_id="10.0.0.7@till")).result == 0
        await program.ok(commands.SEND, queueName="orders", msgBody=b"x", request_id=1)
        (message,) = (await program.ok(commands.RECEIVE, queueName="orders", pollingWaitSeconds=0)).messages
        await program.ok(commands.DELETE, queueName="orders", receiptHandle=message["receiptHandle"])

    made = [request for request in rig.server.link.handled if hasattr(request, "on_behalf_of")]
    assert [getattr(request, "on_behalf_of", None) for request in made] == [
        StatedClient("10.0.0.7@till", "127.0.0.1")
    ] * 3
