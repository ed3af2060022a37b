"""A reader of msgpack without code of the library under test; checks golden vectors against the format.

Only what the protocol uses: nil, booleans, integers, floats, text, bytes, arrays, maps with text keys.
"""

import struct
from typing import Any

_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_SINGLE = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED = {
    0xC4: ("bin", 1),
    0xC5: ("bin", 2),
    0xC6: ("bin", 4),
    0xD9: ("str", 1),
    0xDA: ("str", 2),
    0xDB: ("str", 4),
} | {
    0xDC: ("array", 2),
    0xDD: ("array", 4),
    0xDE: ("map", 2),
    0xDF: ("map", 4),
}


def unpack(data: bytes) -> Any:
    """The value in ``data``, up to the last byte."""
    value, end = _read(data, 0)
    assert end == len(data), f"{len(data) - end} bytes follow the value"
    return value


def _read(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind < 0xC0:
        name, mask = ("map", 0x0F) if kind < 0x90 else ("array", 0x0F) if kind < 0xA0 else ("str", 0x1F)
        return _read_sized(data, at, name, kind & mask)
    if kind in _SINGLE:
        return _SINGLE[kind], at
    if kind in _NUMBERS:
        layout = _NUMBERS[kind]
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    name, width = _SIZED[kind]
    return _read_sized(data, at + width, name, int.from_bytes(data[at : at + width], "big"))


def _read_sized(data: bytes, at: int, name: str, size: int) -> tuple[Any, int]:
    if name == "array":
        items: list[Any] = []
        for _ in range(size):
            item, at = _read(data, at)
            items.append(item)
        return items, at
    if name == "map":
        entries: dict[Any, Any] = {}
        for _ in range(size):
            key, at = _read(data, at)
            entries[key], at = _read(data, at)
        return entries, at
    content = data[at : at + size]
    assert len(content) == size, "the data ends too early"
    return (content.decode() if name == "str" else content), at + size
