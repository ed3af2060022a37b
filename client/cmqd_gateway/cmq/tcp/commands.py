"""The commands of CMQ's TCP protocol as data, and the envelope of requests, replies and pushes.

A frame has one envelope (``CMQProto``): number of the call, number of the command, and one body. Fields have the names
of API 2.0's parameters, which refusals show: ``pollingWaitSeconds`` for ``poll_wait_seconds`` of CMQ's declaration.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.cmq.tcp.frames import to_frame
from cmqd_gateway.cmq.tcp.proto2 import (
    Field,
    Kind,
    Malformed,
    MessageType,
    Missing,
    TooMany,
    Values,
    encode_bytes,
    encode_varint,
)

LOG_IN: Final = 1020
SEND: Final = 1021
BATCH_SEND: Final = 1022
RECEIVE: Final = 1023
BATCH_RECEIVE: Final = 1024
DELETE: Final = 1025
BATCH_DELETE: Final = 1026
PUBLISH: Final = 1027
BATCH_PUBLISH: Final = 1028
HEARTBEAT: Final = 1040
DECIDE: Final = 1041
CHECK: Final = 1042
"""The only command of the server: the state of a half message is asked for."""

COMMIT: Final = 1
ROLL_BACK: Final = 2
UNKNOWN: Final = 3
"""States of a decision; the last one stands in replies alone."""


def _text(number: int, name: str, *, is_required: bool = False) -> Field:
    return Field(number, name, Kind.TEXT, is_required=is_required)


_QUEUE: Final = _text(1, "queueName", is_required=True)
_TOPIC: Final = _text(1, "topicName", is_required=True)
_OF_SENDS: Final = (
    Field(3, "delaySeconds", Kind.UINT32),
    Field(4, "isTransaction", Kind.INT32),
    Field(5, "firstQueryInterval", Kind.INT32),
)
_OF_PUBLISHES: Final = (
    Field(3, "msgTag", Kind.TEXT, is_repeated=True),
    _text(4, "routingKey"),
)

LOG_IN_REQUEST: Final = MessageType(
    "the log-in",
    _text(1, "secretId", is_required=True),
    _text(2, "signature", is_required=True),
    _text(3, "clientId", is_required=True),
    _text(4, "signatureMethod", is_required=True),
)
SEND_REQUEST: Final = MessageType("the send", _QUEUE, Field(2, "msgBody", Kind.BYTES), *_OF_SENDS)
BATCH_SEND_REQUEST: Final = MessageType(
    "the batch send", _QUEUE, Field(2, "msgBody", Kind.BYTES, is_repeated=True), *_OF_SENDS
)
RECEIVE_REQUEST: Final = MessageType(
    "the receive",
    _QUEUE,
    Field(2, "pollingWaitSeconds", Kind.INT32),
    Field(3, "visibilityTimeout", Kind.UINT32),
)
BATCH_RECEIVE_REQUEST: Final = MessageType(
    "the batch receive",
    _QUEUE,
    Field(2, "numOfMsg", Kind.INT32, is_required=True),
    Field(3, "pollingWaitSeconds", Kind.INT32),
    Field(4, "visibilityTimeout", Kind.UINT32),
)
DELETE_REQUEST: Final = MessageType("the delete", _QUEUE, Field(2, "receiptHandle", Kind.UINT64, is_required=True))
BATCH_DELETE_REQUEST: Final = MessageType(
    "the batch delete", _QUEUE, Field(2, "receiptHandle", Kind.UINT64, is_repeated=True)
)
PUBLISH_REQUEST: Final = MessageType(
    "the publish", _TOPIC, Field(2, "msgBody", Kind.BYTES, is_required=True), *_OF_PUBLISHES
)
BATCH_PUBLISH_REQUEST: Final = MessageType(
    "the batch publish", _TOPIC, Field(2, "msgBody", Kind.BYTES, is_repeated=True), *_OF_PUBLISHES
)
DECISION: Final = MessageType(
    "the decision",
    Field(1, "msgId", Kind.UINT64, is_required=True),
    Field(2, "state", Kind.INT32, is_required=True),
)
DECIDE_REQUEST: Final = MessageType("the decisions", _QUEUE, Field(2, "item", DECISION, is_repeated=True))
NO_BODY: Final = MessageType("the heartbeat")

RECEIVED: Final = MessageType(
    "the received message",
    Field(1, "msgId", Kind.UINT64, is_required=True),
    Field(3, "receiptHandle", Kind.UINT64),
    Field(4, "msgBody", Kind.BYTES),
    Field(5, "enqueueTime", Kind.INT64),
    Field(6, "nextVisibleTime", Kind.INT64),
    Field(7, "firstDequeueTime", Kind.INT64),
    Field(8, "dequeueCount", Kind.INT64),
    _text(9, "originalQueueId"),
    Field(10, "originalPublishTime", Kind.UINT64),
    Field(11, "originalDequeueCount", Kind.UINT32),
)
"""Of dead letters the last three fields."""
BATCH_RECEIVED: Final = MessageType("the received messages", Field(1, "msgInfo", RECEIVED, is_repeated=True))
NOT_DELETED: Final = MessageType(
    "the failed delete",
    Field(1, "receiptHandle", Kind.UINT64, is_required=True),
    Field(2, "code", Kind.INT32, is_required=True),
    _text(3, "message", is_required=True),
)
DECIDED: Final = MessageType(
    "the answer to a decision",
    Field(1, "msgId", Kind.UINT64, is_required=True),
    Field(2, "state", Kind.INT32, is_required=True),
    Field(3, "code", Kind.INT32),
    _text(4, "message"),
)
DECIDE_REPLY: Final = MessageType("the answers to decisions", _QUEUE, Field(2, "item", DECIDED, is_repeated=True))
CHECK_PUSH: Final = MessageType("the check", _QUEUE, Field(2, "msgId", Kind.UINT64, is_required=True))

RECEIVED_BODY: Final = 26
BATCH_RECEIVED_BODY: Final = 27
NOT_DELETED_BODY: Final = 28
MESSAGE_IDS: Final = 29
"""A repeated number of the envelope itself."""
DECIDE_BODY: Final = 222
CHECK_BODY: Final = 223

HEADER: Final = MessageType(
    "the envelope",
    Field(1, "seqno", Kind.INT64, is_required=True),
    Field(2, "cmd", Kind.INT32, is_required=True),
    Field(3, "result", Kind.INT32),
    _text(4, "error"),
    Field(10, "requestId", Kind.UINT64),
    Field(MESSAGE_IDS, "msgId", Kind.UINT64, is_repeated=True),
)
"""The fields of the envelope that are no body."""


class Command(msgspec.Struct, frozen=True):
    """A command of programs."""

    number: int
    body: int
    """Number of the field with the body; 0 = the command has none."""
    request: MessageType


COMMANDS: Final[Mapping[int, Command]] = {
    command.number: command
    for command in (
        Command(LOG_IN, 199, LOG_IN_REQUEST),
        Command(SEND, 200, SEND_REQUEST),
        Command(BATCH_SEND, 201, BATCH_SEND_REQUEST),
        Command(RECEIVE, 202, RECEIVE_REQUEST),
        Command(BATCH_RECEIVE, 204, BATCH_RECEIVE_REQUEST),
        Command(DELETE, 206, DELETE_REQUEST),
        Command(BATCH_DELETE, 207, BATCH_DELETE_REQUEST),
        Command(PUBLISH, 208, PUBLISH_REQUEST),
        Command(BATCH_PUBLISH, 209, BATCH_PUBLISH_REQUEST),
        Command(HEARTBEAT, 0, NO_BODY),
        Command(DECIDE, 221, DECIDE_REQUEST),
    )
}
"""The commands that programs send, by number."""
_BODIES: Final = frozenset(
    {command.body for command in COMMANDS.values()} | {RECEIVED_BODY, BATCH_RECEIVED_BODY, DECIDE_BODY, CHECK_BODY}
)


class Envelope(msgspec.Struct, gc=False):
    """A request, reply or push without the reading of its body."""

    seqno: int
    cmd: int
    request_id: int = 0
    """Name of a send for its repeats; 0 = none."""
    body_number: int = 0
    """Number of the field with the body; 0 = none."""
    body: bytes = b""
    """The bytes of the body, until they are taken."""
    content: int = 0
    """Hash of the body of a send with a name."""
    values: Values = msgspec.field(default_factory=dict[str, Any])
    """The fields of the body of a request, once it is read."""

    def take_body(self) -> bytes:
        """Return the body and forget it: a request in progress holds its values, and its bytes would be a copy."""
        body, self.body = self.body, b""
        if self.request_id:
            # The hash is keyed, 64 bits, and a guard alone: a process counts its requests.
            self.content = hash(body)
        return body


class NoEnvelope(Malformed):
    """A frame without a readable envelope.

    Attributes:
        seqno: number of the call, None if it cannot be read: then no answer can reach its caller.
        cmd: number of the command; 0 if it cannot be read.
    """

    def __init__(self, text: str, header: Values) -> None:
        super().__init__(text)
        self.seqno: int | None = header.get("seqno")
        self.cmd: int = header.get("cmd", 0)


def read_envelope(payload: bytes) -> Envelope:
    """Return the envelope of a payload.

    Raises:
        NoEnvelope: the payload is no envelope, or has two bodies.
    """
    header: Values = {}
    others: list[tuple[int, bytes]] = []
    try:
        HEADER.decode_into(header, payload, others)
    except Malformed as error:
        raise NoEnvelope(str(error), header) from None
    bodies = [other for other in others if other[0] in _BODIES]
    if "seqno" not in header or "cmd" not in header:
        raise NoEnvelope("the envelope has no seqno or no cmd", header)
    if len(bodies) > 1:
        raise NoEnvelope("the envelope has two bodies", header)
    number, body = bodies[0] if bodies else (0, b"")
    return Envelope(header["seqno"], header["cmd"], header.get("requestId", 0), number, body)


def read_body(envelope: Envelope, command: Command) -> Values:
    """Return the body of a request.

    Raises:
        Malformed: the body is not of this command, or malformed. An absent body lacks its required fields.
    """
    if envelope.body_number not in (0, command.body):
        raise Malformed(f"the command {command.number} has no body in the field {envelope.body_number}")
    return command.request.decode(envelope.take_body())


def read_values(envelope: Envelope) -> Values:
    """Return the values of a request, by the names of API 2.0's parameters.

    Raises:
        Refusal: the command is unknown, or its body is malformed or incomplete.
    """
    command = COMMANDS.get(envelope.cmd)
    if command is None:
        raise Refusal(Reason.ACTION_UNKNOWN, f"the command {envelope.cmd}")
    try:
        return read_body(envelope, command)
    except Missing as missing:
        raise Refusal(Reason.MISSING_PARAMETER, str(missing)) from None
    except TooMany as error:
        reason = Reason.TOO_MANY_TAGS if str(error) == "msgTag" else Reason.BATCH_SIZE
        raise Refusal(reason, f"{error} has more than 16 entries") from None
    except Malformed as error:
        raise Refusal(Reason.UNREADABLE_REQUEST, str(error)) from None


def reply(seqno: int, cmd: int, result: int = 0, error: str = "", content: bytes = b"") -> bytes:
    """Return the frame of a reply; ``content`` has the further fields of the envelope."""
    # The tags of seqno, cmd and result: every answer has them, and a dictionary would cost more than the numbers.
    head = b"\x08%b\x10%b\x18%b" % (encode_varint(seqno), encode_varint(cmd), encode_varint(result))
    return to_frame(b"".join((head, encode_bytes(error.encode(), 4) if error else b"", content)))


def push(seqno: int, values: Mapping[str, Any]) -> bytes:
    """Return the frame of the question for the state of a half message.

    Programs cannot decode a push without ``seqno``, and look at no more of it than its command.
    """
    head = HEADER.encode({"seqno": seqno, "cmd": CHECK})
    return to_frame(head + encode_bytes(CHECK_PUSH.encode(values), CHECK_BODY))
