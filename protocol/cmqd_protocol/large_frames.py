"""Requests in large frames, decoded in bounded time.

A frame of 4 MiB can hold four million elements. Decoding a known field is cheap up to the first fault: every list and
map has a limit, and msgspec compares the announced length before it decodes the entries. Two walks over the whole
frame remain: over elements behind the last field (``decode``), and over everything once a fault was found
(``refusal``). A walk takes 8 to 18 ms for 4 MiB, in which no other client is served. So large frames are decoded here,
and ``refusal`` examines only the beginning of a large payload.
"""

import re
from typing import Final

import msgspec

from cmqd_protocol.frames import Payload
from cmqd_protocol.limits import LARGE_PAYLOAD_BYTES
from cmqd_protocol.messages import MESSAGE_TYPES, Cancel, Request, request_decoder

_KNOWN_ELEMENTS: Final = {opcode: len(kind.__struct_fields__) + 1 for opcode, kind in MESSAGE_TYPES.items()}
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)$")
"""Error text of msgspec for bytes behind the decoded value."""


def decode(payload: Payload) -> Request | Cancel:
    """Decode a request that has more than ``LARGE_PAYLOAD_BYTES``.

    A frame without elements behind the last known field is decoded at once. Other frames are of a newer client, or
    hostile: the known fields are decoded alone to find their end.

    Raises:
        MsgspecError, UnicodeDecodeError, RecursionError: as msgspec, or unknown elements take too much.
    """
    count, start = array_header(payload)
    opcode, _ = integer_at(payload, start)
    # An unknown operation is refused at its number.
    known = _KNOWN_ELEMENTS.get(opcode, count)
    if count > known:
        try:
            request_decoder.decode(bytes((0xDC, 0, known)) + payload[start:])
        except msgspec.MsgspecError as problem:
            trailing = _TRAILING.search(str(problem))
            if trailing is not None:
                unknown_bytes = len(payload) - start + 3 - int(trailing[1])
                if unknown_bytes > LARGE_PAYLOAD_BYTES:
                    text = (
                        f"{unknown_bytes} bytes behind the last known field; at most {LARGE_PAYLOAD_BYTES} are skipped"
                    )
                    raise msgspec.ValidationError(text) from None
    return request_decoder.decode(payload)


def array_header(payload: Payload) -> tuple[int, int]:
    """Return the length of the array that a payload is, and the offset of its first element; (0, 0) = no array."""
    kind = payload[0]
    if 0x90 <= kind <= 0x9F:
        return kind & 0x0F, 1
    if kind in (0xDC, 0xDD):
        size = 2 if kind == 0xDC else 4
        return int.from_bytes(payload[1 : 1 + size], "big"), 1 + size
    return 0, 0


def integer_at(payload: Payload, start: int) -> tuple[int, int]:
    """Return the unsigned integer at an offset and the offset of its end; (-1, start) = no integer."""
    kind = payload[start] if start < len(payload) else 0xC0
    if kind <= 0x7F:
        return kind, start + 1
    if 0xCC <= kind <= 0xCF:
        stop = start + 1 + (1 << kind - 0xCC)
        return int.from_bytes(payload[start + 1 : stop], "big"), stop
    return -1, start
