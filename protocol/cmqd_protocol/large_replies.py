"""Replies with large bodies as pieces for one write, with the bodies as they are.

The encoder copies a body into its output, and the frame around the output is a second copy. Two copies of a MiB cost
as much as the write to the socket.
"""

from struct import Struct
from typing import Final

from msgspec import structs

from cmqd_protocol.messages import MessagesReceived, encoder

LARGE_BODY_BYTES: Final = 32 * 1024
"""Size of a body from which on the two copies cost more than the work on pieces."""

_encode = encoder.encode
_LIST_16: Final = Struct(">BH").pack
_BODY_16: Final = Struct(">BH").pack
_BODY_32: Final = Struct(">BI").pack
_EMPTY: Final = b"\xc4\x00"
"""Encoding of an empty body."""


def has_large_body(reply: MessagesReceived) -> bool:
    """Return True if the first body of a reply is large: the bodies of a queue have much the same size."""
    messages = reply.messages
    return bool(messages) and len(messages[0].body) >= LARGE_BODY_BYTES


def encode_pieces(reply: MessagesReceived) -> list[bytes]:
    """Return the encoding of a reply in pieces: a body, and the bytes around it, in turn."""
    messages = reply.messages
    around = _encode(structs.replace(reply, messages=[]))
    # In front of the list: a byte of the array, two of the opcode, and the number. The empty list is a byte.
    start = 3 + len(_encode(reply.request_id))
    count = len(messages)
    text = around[:start] + (bytes((0x90 + count,)) if count < 16 else _LIST_16(0xDC, count))
    pieces: list[bytes] = []
    for message in messages:
        fields = _encode(structs.replace(message, body=b""))
        body_at = 1 + len(_encode(message.message_id)) + len(_encode(message.receipt_handle))
        pieces += (text + fields[:body_at] + _body_header(len(message.body)), message.body)
        text = fields[body_at + len(_EMPTY) :]
    pieces.append(text + around[start + 1 :])
    return pieces


def _body_header(size: int) -> bytes:
    if size < 1 << 8:
        return bytes((0xC4, size))
    return _BODY_16(0xC5, size) if size < 1 << 16 else _BODY_32(0xC6, size)
