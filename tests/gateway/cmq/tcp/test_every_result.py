"""Every result number of CMQ's TCP protocol: a table from a request to its result and the module code of its text.

``CASES`` has requests and their reasons. ``OF_THE_BROKER`` has errors that need more than a request, such as a full
queue; there the broker's answer is set. ``CONVERSATIONS`` has reasons that need several requests or bytes that no
program sends. ``NEVER_OVER_TCP`` has the other rows of CMQ's table, with the cause.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import pytest

from cmqd_client.events import ClientState
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq import tcp
from cmqd_gateway.cmq.parameters import fields_of
from cmqd_gateway.cmq.reasons import NEVER_ANSWERED, Reason
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import HEADER
from cmqd_gateway.cmq.tcp.dispatch import ROWS
from cmqd_gateway.cmq.tcp.frames import to_frame
from cmqd_gateway.cmq.tcp.proto2 import encode_bytes
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.cases import naming
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import Reply, TcpProgram

MAX_REQUESTS: Final = 2
"""Requests in progress of a connection."""
ORDERS: Final[Mapping[str, Any]] = {"queueName": "orders"}
MISSING: Final = {"queueName": "missing"}
NO_ID: Final = {"msgId": 0xFFFFF, "state": commands.COMMIT}
OWN_RESULTS: Final = {Reason.NO_MESSAGE: 10_200, Reason.NOT_AUTHENTICATED: 306, Reason.ALREADY_AUTHENTICATED: 307}
"""Results that are not the code of API 2.0."""

CASES: Final[list[tuple[Reason, int, Mapping[str, Any]]]] = [
    (Reason.PARAMETERS_ERROR, commands.PUBLISH, {"topicName": "routed", "msgBody": b"a", "msgTag": ["red"]}),
    (Reason.OUT_OF_RANGE, commands.SEND, {**ORDERS, "msgBody": b"a", "isTransaction": 2}),
    (Reason.OUT_OF_RANGE, commands.RECEIVE, {**ORDERS, "visibilityTimeout": 30}),
    (Reason.OUT_OF_RANGE, commands.PUBLISH, {"topicName": "news", "msgBody": b"a", "msgTag": ["a,b"]}),
    (Reason.OUT_OF_RANGE, commands.DECIDE, {"queueName": "tx", "item": [{"msgId": 1, "state": 7}]}),
    (Reason.BATCH_SIZE, commands.BATCH_SEND, {**ORDERS, "msgBody": [b"a"] * 17}),
    (Reason.BATCH_SIZE, commands.BATCH_RECEIVE, {**ORDERS, "numOfMsg": 17}),
    (Reason.BATCH_SIZE, commands.DECIDE, {"queueName": "tx", "item": []}),
    (Reason.MISSING_PARAMETER, commands.SEND, {"msgBody": b"a"}),
    (Reason.MISSING_PARAMETER, commands.DELETE, ORDERS),
    (Reason.QUEUE_NAME, commands.SEND, {"queueName": "a b", "msgBody": b"a"}),
    (Reason.BODY_EMPTY, commands.SEND, {**ORDERS, "msgBody": b""}),
    (Reason.BODY_EMPTY, commands.BATCH_PUBLISH, {"topicName": "news", "msgBody": [b"a", b""]}),
    (Reason.DELAY, commands.SEND, {**ORDERS, "msgBody": b"a", "delaySeconds": 2**32 - 1}),
    (Reason.DELAY, commands.SEND, {"queueName": "tx", "msgBody": b"a", "isTransaction": 1, "delaySeconds": 1}),
    (Reason.BODY_TOO_LARGE, commands.SEND, {**ORDERS, "msgBody": bytes(65_537)}),
    (Reason.BATCH_TOO_LARGE, commands.BATCH_SEND, {"queueName": "large", "msgBody": [bytes(600_000)] * 2}),
    (Reason.QUEUE_NOT_FOUND, commands.SEND, {**MISSING, "msgBody": b"a"}),
    (Reason.QUEUE_NOT_FOUND, commands.RECEIVE, MISSING),
    (Reason.QUEUE_NOT_FOUND, commands.BATCH_RECEIVE, {**MISSING, "numOfMsg": 1}),
    (Reason.QUEUE_NOT_FOUND, commands.BATCH_DELETE, {**MISSING, "receiptHandle": [1]}),
    (Reason.QUEUE_NOT_FOUND, commands.DECIDE, {**MISSING, "item": [NO_ID]}),
    (Reason.TOPIC_NOT_FOUND, commands.PUBLISH, {"topicName": "missing", "msgBody": b"a"}),
    (Reason.TOPIC_NOT_FOUND, commands.PUBLISH, {"topicName": "a b", "msgBody": b"a"}),
    (Reason.TOPIC_NOT_FOUND, commands.BATCH_PUBLISH, {"topicName": "missing", "msgBody": [b"a"]}),
    (Reason.HANDLE_INVALID, commands.DELETE, {**ORDERS, "receiptHandle": 0}),
    (Reason.DELETES_FAILED, commands.BATCH_DELETE, {**ORDERS, "receiptHandle": [0, 1]}),
    (Reason.NO_MESSAGE, commands.RECEIVE, {**ORDERS, "pollingWaitSeconds": 0}),
    (Reason.NO_MESSAGE, commands.BATCH_RECEIVE, {**ORDERS, "numOfMsg": 16, "pollingWaitSeconds": 0}),
    (Reason.MESSAGE_ID_INVALID, commands.DECIDE, {"queueName": "tx", "item": [NO_ID]}),
    (Reason.DECISIONS_FAILED, commands.DECIDE, {"queueName": "tx", "item": [NO_ID, {**NO_ID, "msgId": 9}]}),
    (Reason.NOT_TRANSACTIONAL, commands.SEND, {**ORDERS, "msgBody": b"a", "isTransaction": 1}),
    (Reason.NOT_TRANSACTIONAL, commands.BATCH_SEND, {**ORDERS, "msgBody": [b"a"], "isTransaction": 1}),
    (Reason.ROUTING_KEY_MISSING, commands.PUBLISH, {"topicName": "routed", "msgBody": b"a"}),
    (Reason.TOO_MANY_TAGS, commands.PUBLISH, {"topicName": "news", "msgBody": b"a", "msgTag": list("abcdefghijk")}),
    (Reason.TOO_MANY_TAGS, commands.PUBLISH, {"topicName": "news", "msgBody": b"a", "msgTag": ["a"] * 17}),
    (Reason.TOO_MANY_DOTS, commands.PUBLISH, {"topicName": "routed", "msgBody": b"a", "routingKey": "." * 16}),
    (Reason.NO_SUBSCRIPTION, commands.PUBLISH, {"topicName": "bare", "msgBody": b"a"}),
    (Reason.NOTHING_MATCHES, commands.BATCH_PUBLISH, {"topicName": "news", "msgBody": [b"a"], "msgTag": ["big"]}),
    (Reason.ALREADY_AUTHENTICATED, commands.LOG_IN, {}),
]

OF_THE_BROKER: Final[list[tuple[Reason, type[Any], ErrorCode, int, Mapping[str, Any]]]] = [
    (Reason.BACKLOG_FULL, wire.SendMessages, ErrorCode.BACKLOG_FULL, commands.SEND, {**ORDERS, "msgBody": b"a"}),
    (Reason.TOO_MANY_INACTIVE, wire.ReceiveMessages, ErrorCode.TOO_MANY_IN_FLIGHT, commands.RECEIVE, ORDERS),
    (Reason.SEND_FAILED, wire.SendMessages, ErrorCode.DISK_NEARLY_FULL, commands.SEND, {**ORDERS, "msgBody": b"a"}),
    (Reason.RECEIVE_FAILED, wire.ReceiveMessages, ErrorCode.MESSAGES_DAMAGED, commands.RECEIVE, ORDERS),
    (Reason.DELETE_FAILED, wire.DeleteMessages, ErrorCode.BUSY, commands.DELETE, {**ORDERS, "receiptHandle": 1}),
    (
        *(Reason.INTERNAL_ERROR, wire.EndTransactions, ErrorCode.INTERNAL_ERROR, commands.DECIDE),
        {"queueName": "tx", "item": [NO_ID]},
    ),
    (
        *(Reason.THROTTLED, wire.PublishMessages, ErrorCode.TOO_MANY_REQUESTS, commands.PUBLISH),
        {"topicName": "news", "msgBody": b"a"},
    ),
]


# ---------------------------------------------------------------------- conversations


async def raw(program: TcpProgram, cmd: int, content: bytes = b"") -> Reply:
    """Return the answer to any command with any body."""
    program.write(to_frame(HEADER.encode({"seqno": 1_000, "cmd": cmd}) + content))
    return await program.answer(1_000)


async def log_in(rig: GatewayRig, key: KeySecret, **changed: Any) -> Reply:
    async with TcpProgram(rig) as stranger:
        return await stranger.log_in(key, **changed)


async def unknown_command(_: GatewayRig, program: TcpProgram) -> Reply:
    return await raw(program, 1_005)


async def other_body(_: GatewayRig, program: TcpProgram) -> Reply:
    return await raw(program, commands.SEND, encode_bytes(b"", 202))


async def before_the_log_in(rig: GatewayRig, _: TcpProgram) -> Reply:
    async with TcpProgram(rig) as stranger:
        return await stranger.ask(commands.RECEIVE, **ORDERS)


async def wrong_signature(rig: GatewayRig, _: TcpProgram) -> Reply:
    return await log_in(rig, rig.own_key, signature="x")


async def unknown_key(rig: GatewayRig, _: TcpProgram) -> Reply:
    return await log_in(rig, KeySecret("nobody", "secret"))


async def disabled_key(rig: GatewayRig, _: TcpProgram) -> Reply:
    return await log_in(rig, rig.add_key("disabled", "secret", enabled=False))


async def key_of_another_role(rig: GatewayRig, _: TcpProgram) -> Reply:
    created = await rig.server.admin.accounts.create_key(roles=["read"])
    assert created.secret_key is not None
    async with TcpProgram(rig) as reader:
        assert (await reader.log_in(rig.add_key(created.secret_id, created.secret_key))).result == 0
        return await reader.ask(commands.SEND, **ORDERS, msgBody=b"a")


async def too_many_requests(rig: GatewayRig, program: TcpProgram) -> Reply:
    waiting = [program.send(commands.RECEIVE, **ORDERS, pollingWaitSeconds=30) for _ in range(MAX_REQUESTS)]
    refused = await program.ask(commands.RECEIVE, **ORDERS, pollingWaitSeconds=30)
    await rig.server.put("orders", *[b"a"] * MAX_REQUESTS)
    for number in waiting:
        assert (await program.answer(number)).result == 0
    return refused


async def some_deletes_failed(rig: GatewayRig, program: TcpProgram) -> Reply:
    await rig.server.put("orders", b"a")
    (message,) = (await program.ok(commands.RECEIVE, **ORDERS)).messages
    return await program.ask(commands.BATCH_DELETE, **ORDERS, receiptHandle=[message["receiptHandle"], 1])


async def half(program: TcpProgram) -> int:
    """Return the id of a new half message."""
    (number,) = (await program.ok(commands.SEND, queueName="tx", msgBody=b"a", isTransaction=1)).ids
    return number


async def second_decision(_: GatewayRig, program: TcpProgram) -> Reply:
    number = await half(program)
    await program.ok(commands.DECIDE, queueName="tx", item=[{"msgId": number, "state": commands.COMMIT}])
    return await program.ask(commands.DECIDE, queueName="tx", item=[{"msgId": number, "state": commands.ROLL_BACK}])


async def some_decisions_failed(_: GatewayRig, program: TcpProgram) -> Reply:
    items = [{"msgId": await half(program), "state": commands.COMMIT}, NO_ID]
    return await program.ask(commands.DECIDE, queueName="tx", item=items)


CONVERSATIONS: Final[list[tuple[Reason, Callable[[GatewayRig, TcpProgram], Awaitable[Reply]]]]] = [
    (Reason.ACTION_UNKNOWN, unknown_command),
    (Reason.UNREADABLE_REQUEST, other_body),
    (Reason.NOT_AUTHENTICATED, before_the_log_in),
    (Reason.AUTHENTICATION_FAILED, wrong_signature),
    (Reason.SECRET_ID_UNKNOWN, unknown_key),
    (Reason.SECRET_ID_STATUS, disabled_key),
    (Reason.NO_PERMISSION, key_of_another_role),
    (Reason.THROTTLED, too_many_requests),
    (Reason.DELETES_PARTLY_FAILED, some_deletes_failed),
    (Reason.DECISION_CONFLICT, second_decision),
    (Reason.DECISIONS_PARTLY_FAILED, some_decisions_failed),
]

_CAUSES: Final[Mapping[str, tuple[Reason, ...]]] = {
    "the names and values of a form": (
        *(Reason.MISSING_PARAMETERS, Reason.KEY_FORMAT, Reason.NOT_REPEATABLE, Reason.NOT_CONSECUTIVE),
        *(Reason.WRONG_TYPE, Reason.HTTP_METHOD, Reason.HANDLE_MALFORMED),
    ),
    "an error of the broker that no operation of CMQ asks for": (Reason.INVALID_REQUEST,),
    "no command creates, changes, deletes, lists or rewinds a queue": (
        *(Reason.TOO_MANY_QUEUES, Reason.QUEUE_EXISTS, Reason.NOT_REWINDABLE, Reason.REWIND_TIME),
        *(Reason.REWIND_WINDOW, Reason.CONTROL_THROTTLED, Reason.GET_ATTRIBUTES_FAILED),
        *(Reason.SET_ATTRIBUTES_FAILED, Reason.DELETE_QUEUE_FAILED, Reason.LIST_QUEUE_FAILED),
    ),
    "no command creates or deletes a topic": (
        *(Reason.TOPIC_NAME, Reason.TOO_MANY_TOPICS, Reason.TOPIC_EXISTS, Reason.TOPIC_IN_USE),
    ),
    "no command is about subscriptions": (
        *(Reason.SUBSCRIPTION_NAME, Reason.SUBSCRIPTION_NOT_FOUND, Reason.SUBSCRIPTION_EXISTS),
        *(Reason.TOO_MANY_SUBSCRIPTIONS, Reason.TOO_MANY_FILTER_TAGS, Reason.TOO_MANY_BINDING_KEYS),
        *(Reason.BINDING_KEY_MISSING, Reason.ENDPOINT_FORMAT, Reason.PROTOCOL_UNKNOWN, Reason.STRATEGY_UNKNOWN),
        *(Reason.CONTENT_FORMAT_UNKNOWN, Reason.URL_WITH_BLANKS, Reason.ENDPOINT_ILLEGAL),
    ),
}
NEVER_OVER_TCP: Final = {
    **{reason: cause for reason, cause in NEVER_ANSWERED.items() if reason not in OWN_RESULTS},
    **{reason: cause for cause, reasons in _CAUSES.items() for reason in reasons},
}


# ---------------------------------------------------------------------- tests


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0", cmq_tcp_requests=MAX_REQUESTS) as rig:
        rig.retries = 0
        admin = rig.server.admin
        await admin.create_queue("tx", transactional=True)
        await admin.create_queue("large", max_message_bytes=1 << 20)
        await (await admin.create_topic("news")).subscribe("sub", queue="orders", filter_tags=["red"])
        await admin.create_topic("routed", filter_type="routing")
        await admin.create_topic("bare")
        yield rig
        # The connection for checks may be on its way: the end of the broker would leave its socket open.
        states = ClientState.CONNECTED, ClientState.CLOSED
        await eventually(lambda: all(client.state in states for client in rig.clients))


def check(reply: Reply, reason: Reason) -> None:
    """Check number and text of a reply."""
    assert reply.result == OWN_RESULTS.get(reason, reason.code), reply
    if reason in OWN_RESULTS and reason is not Reason.NO_MESSAGE:
        assert reply.error.startswith(f"({reason.module})"), reply
    else:
        assert re.fullmatch(re.escape(f"({reason.module}){reason.text}") + "(: .+)?", reply.error), reply


async def test_a_request_is_answered_with_its_number(program: TcpProgram) -> None:
    for reason, cmd, body in CASES:
        with naming((reason, cmd)):
            check(await (program.log_in() if cmd == commands.LOG_IN else program.ask(cmd, **body)), reason)


async def test_an_error_of_the_broker_is_answered_with_its_number(rig: GatewayRig, program: TcpProgram) -> None:
    for reason, request_type, code, cmd, body in OF_THE_BROKER:
        with naming((reason, cmd)):
            rig.server.link.refuse(request_type, code, "a sentence of the broker")
            reply = await program.ask(cmd, **body)

            check(reply, reason)
            assert "a sentence of the broker" in reply.error


async def test_a_conversation_ends_with_its_number(rig: GatewayRig, program: TcpProgram) -> None:
    for reason, converse in CONVERSATIONS:
        with naming((reason, converse.__name__)):
            check(await converse(rig, program), reason)


def test_each_number_has_a_case_or_is_never_answered_over_tcp() -> None:
    tested = {case[0] for table in (CASES, OF_THE_BROKER, CONVERSATIONS) for case in table}

    assert set(Reason) - tested == NEVER_OVER_TCP.keys()
    assert tested & NEVER_OVER_TCP.keys() == set()


def test_each_number_that_the_protocol_names_has_a_case() -> None:
    modules = [importlib.import_module(f"{tcp.__name__}.{found.name}") for found in pkgutil.iter_modules(tcp.__path__)]
    named = {
        Reason[name] for module in modules for name in re.findall(r"\bReason\.([A-Z_]+)", inspect.getsource(module))
    }
    for operation, _ in ROWS.values():
        named.add(operation.failure)
        for field in fields_of(operation.request_type):
            named |= {check.reason for check in (*field.checks, *([field.items] if field.items else []))}

    assert len(named) > len(modules)
    assert named & NEVER_OVER_TCP.keys() == set()
