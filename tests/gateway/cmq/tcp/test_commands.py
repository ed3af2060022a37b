"""Envelopes and bodies of CMQ's TCP protocol, against frames that CMQ's own declaration makes."""

import contextlib
from typing import Any

import pytest

from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import COMMANDS, HEADER, NoEnvelope, read_body, read_envelope
from cmqd_gateway.cmq.tcp.frames import HEAD_BYTES
from cmqd_gateway.cmq.tcp.proto2 import Malformed, MessageType, Values, encode_bytes
from support.cases import each_case
from support.gateway.tcp_frames import REPLIES, REQUESTS

BODIES: dict[str, tuple[int, int, int, Values]] = {
    "log in": (
        1,
        commands.LOG_IN,
        0,
        {
            "secretId": "AKID1",
            "signature": "c2lnbmF0dXJl",
            "clientId": "10.0.0.7@DEFAULT",
            "signatureMethod": "HmacSHA1",
        },
    ),
    "send": (2, commands.SEND, 1, {"queueName": "orders", "msgBody": b"first"}),
    "delayed send": (
        300,
        commands.SEND,
        70_000,
        {"queueName": "orders", "msgBody": b"later", "delaySeconds": (1 << 32) - 1},
    ),
    "half message": (
        3,
        commands.SEND,
        2,
        {"queueName": "paid", "msgBody": b"\xff", "isTransaction": 1, "firstQueryInterval": 5_000},
    ),
    "batch send": (4, commands.BATCH_SEND, 3, {"queueName": "orders", "msgBody": [b"a", b"", b"c"]}),
    "receive": (5, commands.RECEIVE, 0, {"queueName": "orders", "pollingWaitSeconds": 10}),
    "batch receive": (
        6,
        commands.BATCH_RECEIVE,
        0,
        {"queueName": "orders", "numOfMsg": -1, "pollingWaitSeconds": 0, "visibilityTimeout": 60},
    ),
    "delete": (7, commands.DELETE, 0, {"queueName": "orders", "receiptHandle": (1 << 64) - 1}),
    "batch delete": (8, commands.BATCH_DELETE, 0, {"queueName": "orders", "receiptHandle": [0, 1 << 63]}),
    "publish": (9, commands.PUBLISH, 4, {"topicName": "news", "msgBody": b"x", "msgTag": ["red", "blue"]}),
    "batch publish": (
        10,
        commands.BATCH_PUBLISH,
        5,
        {"topicName": "news", "msgBody": [b"x", b"y"], "routingKey": "a.b"},
    ),
    "heartbeat": (127, commands.HEARTBEAT, 0, {}),
    "decide": (
        11,
        commands.DECIDE,
        0,
        {"queueName": "paid", "item": [{"msgId": 7, "state": 1}, {"msgId": (1 << 64) - 1, "state": 2}]},
    ),
}


@each_case(["name", "expected"], BODIES.items(), ids=BODIES)
def test_the_requests_of_every_command_are_read(name: str, expected: tuple[int, int, int, Values]) -> None:
    seqno, cmd, request_id, body = expected
    envelope = read_envelope(bytes.fromhex(REQUESTS[name]))

    assert (envelope.seqno, envelope.cmd, envelope.request_id) == (seqno, cmd, request_id)
    assert read_body(envelope, COMMANDS[cmd]) == body


def test_every_command_has_a_recorded_request() -> None:
    assert {cmd for _, cmd, _, _ in BODIES.values()} == set(COMMANDS)
    assert REQUESTS.keys() == BODIES.keys()


def test_every_cut_of_every_recorded_request_is_refused_or_read() -> None:
    for text in REQUESTS.values():
        payload = bytes.fromhex(text)
        for end in range(len(payload)):
            seqno = None
            with contextlib.suppress(Malformed):
                try:
                    envelope = read_envelope(payload[:end])
                except NoEnvelope as error:
                    seqno = error.seqno
                    raise
                seqno = envelope.seqno
                read_body(envelope, COMMANDS[envelope.cmd])
            # The number of the call is in front, so it is known as soon as its bytes have arrived.
            assert (seqno is None) == (end < (3 if payload[1] > 0x7F else 2))


def payload_of(frame: bytes) -> str:
    assert frame[:2] == b"\0\0"
    assert int.from_bytes(frame[2:6], "little") == len(frame)
    return frame[HEAD_BYTES:].hex()


def content(kind: MessageType, number: int, values: Values) -> bytes:
    return encode_bytes(kind.encode(values), number)


def test_replies_have_the_bytes_of_the_sdk() -> None:
    ids = HEADER.encode({"msgId": [1, (1 << 63) - 1]})
    assert payload_of(commands.reply(-1, commands.SEND, content=ids)) == REPLIES["accepted"]

    text = "(10100)queue is not existed, or deleted"
    assert payload_of(commands.reply(2, commands.SEND, 4440, text)) == REPLIES["refused"]

    message = {
        "msgId": 7,
        "receiptHandle": (1 << 64) - 1,
        "msgBody": b"body",
        "enqueueTime": 1790000000,
        "nextVisibleTime": 1790000030,
        "firstDequeueTime": 1790000001,
        "dequeueCount": 2,
        "originalQueueId": "queue-0000000000000001",
        "originalPublishTime": 1780000000,
        "originalDequeueCount": 5,
    }
    received = content(commands.RECEIVED, commands.RECEIVED_BODY, message)
    assert payload_of(commands.reply(5, commands.RECEIVE, content=received)) == REPLIES["received"]

    messages = [{"msgId": 1, "receiptHandle": 2, "msgBody": b"a"}, {"msgId": 3, "receiptHandle": 4, "msgBody": b""}]
    batch = content(commands.BATCH_RECEIVED, commands.BATCH_RECEIVED_BODY, {"msgInfo": messages})
    assert payload_of(commands.reply(6, commands.BATCH_RECEIVE, content=batch)) == REPLIES["batch received"]

    failed = content(
        commands.NOT_DELETED, commands.NOT_DELETED_BODY, {"receiptHandle": 0, "code": 4430, "message": "m"}
    )
    assert payload_of(commands.reply(8, commands.BATCH_DELETE, 6010, "e", failed)) == REPLIES["not deleted"]

    items = [{"msgId": 7, "state": 1}, {"msgId": 8, "state": 3, "code": 4490, "message": "m"}]
    decided = content(commands.DECIDE_REPLY, commands.DECIDE_BODY, {"queueName": "paid", "item": items})
    assert payload_of(commands.reply(11, commands.DECIDE, content=decided)) == REPLIES["decided"]

    assert payload_of(commands.push(1, {"queueName": "paid", "msgId": 7})) == REPLIES["check"]


NO_ENVELOPES: dict[str, tuple[str, int | None, int]] = {
    "an empty payload": ("", None, 0),
    "no seqno": ("10fd07", None, 1021),
    "no command": ("0805", 5, 0),
    "a text as seqno": ("0a0105", None, 0),
    "a command of 33 bits": ("0805 10 fd8780808001", 5, 0),
    "a group behind the command": ("0805 10fd07 0b", 5, 1021),
    "two bodies": ("0805 10fd07 c20c03 0a0161 ca0c03 0a0161", 5, 1021),
    "the same body twice": ("0805 10fd07 c20c03 0a0161 c20c03 0a0161", 5, 1021),
    "a body that is cut": ("0805 10fd07 c20c09 0a", 5, 1021),
    "an error that is no UTF-8": ("0805 10fd07 2201ff", 5, 1021),
}


@each_case(["text", "seqno", "cmd"], NO_ENVELOPES.values(), ids=NO_ENVELOPES)
def test_a_payload_without_envelope_is_refused_with_the_number_of_the_call(
    text: str, seqno: int | None, cmd: int
) -> None:
    with pytest.raises(NoEnvelope) as refused:
        read_envelope(bytes.fromhex(text))

    assert (refused.value.seqno, refused.value.cmd) == (seqno, cmd)


def test_the_last_seqno_and_command_of_an_envelope_count() -> None:
    envelope = read_envelope(bytes.fromhex("0805 10fd07 0806 10ff07"))

    assert (envelope.seqno, envelope.cmd) == (6, commands.RECEIVE)


def test_a_body_of_another_command_is_refused() -> None:
    envelope = read_envelope(bytes.fromhex("0805 10fd07 ca0c03 0a0161"))

    with pytest.raises(Malformed, match="the command 1021 has no body in the field 201"):
        read_body(envelope, COMMANDS[commands.SEND])


def test_fields_of_the_envelope_that_servers_use_are_skipped() -> None:
    values: dict[str, Any] = {"seqno": 5, "cmd": commands.HEARTBEAT, "result": 1, "error": "e"}
    envelope = read_envelope(HEADER.encode(values) + bytes.fromhex("2a0161 4801 a2010161"))

    assert read_body(envelope, COMMANDS[commands.HEARTBEAT]) == {}
