"""The wire as the load generator speaks it: as little Python per message as possible.

The load may share the machine with the server, and CPU used by the load is missing for the server then. Therefore
request frames are built once and sent repeatedly (a request id is free after its answer), times are patched in place,
and only the needed parts of a reply are decoded: a tag byte, the receipt handles, the first body. The handshake comes
from ``cmqd_protocol``.
"""

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cmqd_load.failures import RequestFailed
from cmqd_load.limits import MIN_BODY
from cmqd_protocol.messages import (
    Error,
    HandlesDone,
    MessagesPublished,
    MessagesReceived,
    MessagesSent,
    PublishMessages,
    ReceiveMessages,
    SendMessages,
    TransactionsEnded,
    WireMessage,
    encoder,
)

HEARTBEAT = b"\0\0\0\0"
MARK = b"\xc1BENCH\xc1\x00"
"""Marks the start of a body for ``find``: 0xc1 is the only byte that msgpack never uses."""
STAMP = struct.Struct(">Q")


def tag_of(kind: type[WireMessage]) -> int:
    """Return the opcode, the first field of an encoded message."""
    tag = kind.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


SENT = tag_of(MessagesSent)
PUBLISHED = tag_of(MessagesPublished)
RECEIVED = tag_of(MessagesReceived)
HANDLES_DONE = tag_of(HandlesDone)
ENDED = tag_of(TransactionsEnded)
ERROR = tag_of(Error)


class Handle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of a received message that a consumer needs; the decoder skips later fields."""

    message_id: int
    receipt_handle: int


class Handles(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=RECEIVED):
    """A receive's reply as its receipt handles."""

    request_id: int
    messages: list[Handle]


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A received message up to its time of sending, for runs that measure every message."""

    message_id: int
    receipt_handle: int
    body: bytes
    enqueue_ms: int


class Deliveries(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=RECEIVED):
    """A receive's reply with bodies."""

    request_id: int
    messages: list[Delivered]


decode_handles = msgspec.msgpack.Decoder(Handles).decode
decode_deliveries = msgspec.msgpack.Decoder(Deliveries).decode
decode_done = msgspec.msgpack.Decoder(HandlesDone).decode
decode_sent = msgspec.msgpack.Decoder(MessagesSent).decode
decode_ended = msgspec.msgpack.Decoder(TransactionsEnded).decode
decode_error = msgspec.msgpack.Decoder(Error).decode


def frame(message: object) -> bytes:
    """Return a message as a frame, ready to be written."""
    payload = encoder.encode(message)
    return len(payload).to_bytes(4, "big") + payload


def shortest(message: WireMessage) -> bytes:
    """Return a message as a payload, without the empty fields at its end."""
    fields = list(msgspec.structs.astuple(message))
    while fields[-1] is None:
        fields.pop()
    return encoder.encode([tag_of(type(message)), *fields])


def random_body(size: int, stamp: int = 0) -> bytes:
    """Return ``size`` bytes (at least MIN_BODY): the mark, a time, then noise that no file system can compress."""
    return MARK + STAMP.pack(stamp) + os.urandom(size - MIN_BODY)


def stamp_of(payload: bytes) -> int | None:
    """Return the time in the first body of a reply, or in a body; None if the time is missing."""
    start = payload.find(MARK)
    # The message of another program may have the mark and no time.
    if start < 0 or len(payload) - start < MIN_BODY:
        return None
    return STAMP.unpack_from(payload, start + len(MARK))[0]


class SendTemplate:
    """A send of ``batch`` bodies of ``size`` bytes, encoded once.

    Every use patches the time into all bodies, and the request id, a single byte because ids are below 128.
    """

    __slots__ = ("_frame", "_places", "answer", "batch")

    def __init__(self, queue: str, *, batch: int, size: int) -> None:
        self._prepare(SendMessages(1, queue, [random_body(size) for _ in range(batch)]), batch, SENT)

    def _prepare(self, request: WireMessage, batch: int, answer: int) -> None:
        self.batch = batch
        self.answer = answer
        """Opcode of the reply."""
        self._frame = bytearray(frame(request))
        self._places: list[slice] = []
        start = self._frame.find(MARK)
        while start >= 0:
            start += len(MARK)
            self._places.append(slice(start, start + STAMP.size))
            start = self._frame.find(MARK, start)

    def at(self, stamp: int, request_id: int = 1) -> bytes:
        """Return the frame with ``stamp`` in every body."""
        packed = STAMP.pack(stamp)
        buffer = self._frame
        # Four bytes of length, the array, the opcode, then the request id.
        buffer[6] = request_id
        for place in self._places:
            buffer[place] = packed
        return bytes(buffer)

    def numbered(self, request_id: int) -> bytes:
        """Return the frame with the times of its last use."""
        self._frame[6] = request_id
        return bytes(self._frame)


class PublishTemplate(SendTemplate):
    """Like a send template, for a publish to a topic; all bodies have the same tags."""

    __slots__ = ()

    def __init__(self, topic: str, *, batch: int, size: int, tags: Sequence[str] = ()) -> None:
        labels = [list(tags)] if tags else None
        bodies = [random_body(size) for _ in range(batch)]
        self._prepare(PublishMessages(1, topic, bodies, tags=labels), batch, PUBLISHED)


def receive_frame(queue: str, *, max_messages: int, wait_ms: int, request_id: int = 1) -> bytes:
    """Return the frame of a receive with the visibility timeout of the queue."""
    return frame(ReceiveMessages(request_id, queue, max_messages, wait_ms))


ALL_ACKNOWLEDGED = b"\x90\xc0"
"""End of the reply to a receive with deletes: no failures, no error."""


class HandlesTemplate:
    """A request whose last field, but for empty ones, is an empty list of receipt handles: only the handles are encoded
    anew."""

    __slots__ = ("_encode", "_head", "_tail")

    def __init__(self, request: WireMessage) -> None:
        # [array, opcode, request id, ..., handles]: an empty list is the last byte, a small id one byte.
        empty = shortest(request)
        self._head, self._tail = empty[:2], empty[3:-1]
        self._encode = msgspec.msgpack.Encoder().encode

    def of(self, handles: Sequence[int], request_id: int) -> bytes:
        """Return the frame with ``handles``; ``request_id`` is below 128."""
        message = b"%b%c%b%b" % (self._head, request_id, self._tail, self._encode(handles))
        return len(message).to_bytes(4, "big") + message


class LoadConnection(asyncio.Protocol):
    """An authenticated connection: ``on_reply`` is called with the payload and the opcode of every reply.

    The connection takes a transport over from the handshake (``connect``) and splits the input into frames.
    """

    __slots__ = ("_buffer", "heartbeat_ms", "on_lost", "on_reply", "transport", "write")

    def __init__(self, transport: asyncio.Transport, heartbeat_ms: int) -> None:
        self.transport = transport
        self.write = transport.write
        self.heartbeat_ms = heartbeat_ms
        """Negotiated limit of silence."""
        self.on_reply: Callable[[bytes, int], Any] = _unexpected
        self.on_lost: Callable[[BaseException], Any] | None = None
        self._buffer = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss."""
        if self.on_lost is not None:
            self.on_lost(exc or ConnectionResetError("the server closed a connection of the load"))

    def data_received(self, data: bytes) -> None:
        """Split the input into frames."""
        if self._buffer:
            data = self._buffer + data
        start, end = 0, len(data)
        while end - start >= 4:
            stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if stop > end:
                break
            if stop - start > 4:
                payload = data[start + 4 : stop]
                # [array, 0xcc, opcode, request id, ...]: an opcode of a reply is above 127 and takes two bytes; an id
                # of the load is below 128 and takes a byte.
                self.on_reply(payload, payload[2])
            start = stop
        self._buffer = data[start:]

    def close(self) -> None:
        """Close the connection at once."""
        self.transport.abort()


def _unexpected(payload: bytes, opcode: int) -> None:
    raise RequestFailed(f"a reply (opcode {opcode}) to nothing: {payload[:64]!r}")
