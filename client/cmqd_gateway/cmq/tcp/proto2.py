"""Messages in the encoding of protocol buffers, version 2: declarations as data, and their reader and writer.

    ITEM = MessageType("item", Field(1, "msgId", Kind.UINT64, is_required=True), Field(2, "state", Kind.INT32))
    ITEM.decode(ITEM.encode({"msgId": 7, "state": 1})) == {"msgId": 7, "state": 1}

A decoded message is a dictionary of the fields that it has. As the encoding demands: unknown fields are skipped; of a
field that comes twice the last value counts, unless the field is repeated; a repeated number may be packed.

Stricter than the encoding demands, because a request must not mean something else than its bytes say:

- A number beyond the range of its field is malformed; other readers cut the number to 32 bits.
- A known field of another wire type is malformed; other readers skip the field.
- Groups are malformed. They are the only part of the encoding that could nest without end.
- A message has at most 1,024 fields, a list at most 16 entries: bytes for millions of them would hold the event loop.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

Values: TypeAlias = dict[str, Any]
"""The fields of a message by name."""

_VARINT: Final = 0
_FIXED_64: Final = 1
_LENGTH: Final = 2
_FIXED_32: Final = 5
_FIXED_BYTES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_BITS_64: Final = 1 << 64
_VARINT_BYTES: Final = 10
_MAX_TAG: Final = (1 << 32) - 1
MAX_FIELDS: Final = 1_024
MAX_ENTRIES: Final = 16


class Malformed(Exception):
    """The bytes are no message of this type; the text names the field."""


class Missing(Malformed):
    """A message lacks a required field; the text is the name of the field."""


class TooMany(Malformed):
    """A list has more than ``MAX_ENTRIES`` entries; the text is the name of the field."""


class Kind(Enum):
    """The type of a field."""

    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    TEXT = "text"
    BYTES = "bytes"


RANGES: Final[Mapping["Kind | MessageType", tuple[int, int]]] = {
    Kind.INT32: (-(1 << 31), (1 << 31) - 1),
    Kind.INT64: (-(1 << 63), (1 << 63) - 1),
    Kind.UINT32: (0, (1 << 32) - 1),
    Kind.UINT64: (0, (1 << 64) - 1),
}
"""Least and largest value of the kinds that are numbers."""


class Field(msgspec.Struct, frozen=True):
    """A field of a message; a field of messages is always repeated."""

    number: int
    name: str
    kind: "Kind | MessageType"
    is_required: bool = False
    is_repeated: bool = False


class _Plan(msgspec.Struct, frozen=True):
    """The reading of a field with one of its tags."""

    name: str
    kind: "Kind | MessageType"
    is_repeated: bool
    is_packed: bool
    low: int
    high: int


class MessageType:
    """The declaration of a message; see the module."""

    def __init__(self, name: str, *fields: Field) -> None:
        self.name: str = name
        self.fields: tuple[Field, ...] = fields
        self._required = frozenset(field.name for field in fields if field.is_required)
        self._plans: dict[int, _Plan] = {}
        self._numbers = {field.number: field.name for field in fields}
        self._writers = [
            (field.name, field.kind, field.kind in RANGES and not field.is_repeated, field.is_repeated, tag)
            for field, tag in [(field, _tag(field.number, _wire_type(field.kind))) for field in fields]
        ]
        for field in fields:
            wire_type = _wire_type(field.kind)
            low, high = RANGES.get(field.kind, (0, 0))
            kind, repeated = field.kind, field.is_repeated
            self._plans[field.number << 3 | wire_type] = _Plan(field.name, kind, repeated, False, low, high)
            if repeated and wire_type == _VARINT:
                self._plans[field.number << 3 | _LENGTH] = _Plan(field.name, kind, True, True, low, high)

    def decode(self, data: bytes) -> Values:
        """Return the fields of a message.

        Raises:
            Malformed: see the module. Missing: a required field is absent.
        """
        values: Values = {}
        self.decode_into(values, data)
        if not self._required <= values.keys():
            raise Missing(next(field.name for field in self.fields if field.is_required and field.name not in values))
        return values

    def decode_into(self, values: Values, data: bytes, others: list[tuple[int, bytes]] | None = None) -> None:
        """Read the fields of a message into ``values``, without a look at required fields.

        Args:
            values: gets the fields; after an error the fields in front of it.
            data: the message.
            others: gets number and bytes of each unknown field that has bytes.

        Raises:
            Malformed: see the module.
        """
        position, end, left = 0, len(data), MAX_FIELDS
        plans = self._plans
        while position < end:
            left -= 1
            if left < 0:
                raise Malformed(f"{self.name} has more than {MAX_FIELDS} fields")
            tag = data[position]
            position += 1
            if tag > 0x7F:
                tag, position = _read_varint(data, position - 1)
            plan = plans.get(tag)
            wire_type = tag & 7
            if wire_type == _LENGTH:
                # Most numbers have one byte, and a call would take longer than its work.
                if position < end and data[position] < 0x80:
                    length = data[position]
                    position += 1
                else:
                    length, position = _read_varint(data, position)
                begin, position = position, position + length
                if position > end:
                    raise Malformed(f"the message ends within the field {self._shown(tag)}")
                if plan is None:
                    self._check_unknown(tag)
                    if others is not None:
                        others.append((tag >> 3, data[begin:position]))
                    continue
                _take(values, plan, data[begin:position])
            elif wire_type == _VARINT:
                if position < end and data[position] < 0x80:
                    number = data[position]
                    position += 1
                else:
                    number, position = _read_varint(data, position)
                if plan is None:
                    self._check_unknown(tag)
                    continue
                if number > plan.high:
                    number = _in_range(number, plan)
                if plan.is_repeated:
                    _append(values, plan.name, number)
                else:
                    values[plan.name] = number
            else:
                self._check_unknown(tag)
                size = _FIXED_BYTES.get(wire_type)
                if size is None:
                    raise Malformed(f"the wire type {wire_type} of the field {tag >> 3} is not supported")
                position += size
                if position > end:
                    raise Malformed(f"the message ends within the field {tag >> 3}")

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a message; a field without a value, or with None, is left out. Ranges are not checked."""
        parts: list[bytes] = []
        for name, kind, is_number, is_repeated, tag in self._writers:
            value = values.get(name)
            if value is None:
                continue
            if is_number:
                parts += (tag, _ONE_BYTE[value] if 0 <= value < 0x80 else encode_varint(value))
                continue
            for item in value if is_repeated else (value,):
                parts += (tag, _encoded(kind, item))
        return b"".join(parts)

    def _check_unknown(self, tag: int) -> None:
        """Refuse a tag that no field can have, and a known field of another wire type."""
        if tag > _MAX_TAG or not tag >> 3:
            raise Malformed(f"a field has the tag {tag}, which no field can have")
        if tag >> 3 in self._numbers:
            raise Malformed(f"{self._shown(tag)} has the wire type {tag & 7}")

    def _shown(self, tag: int) -> str:
        return self._numbers.get(tag >> 3, str(tag >> 3))


def encode_bytes(value: bytes, number: int) -> bytes:
    """Return a field with bytes, a text or a message, outside of a message type."""
    return b"".join((_tag(number, _LENGTH), encode_varint(len(value)), value))


def encode_varint(number: int) -> bytes:
    """Return a number of 64 bits; negative numbers take ten bytes."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    if number < 0:
        number += _BITS_64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_ONE_BYTE: Final = [bytes([number]) for number in range(0x80)]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number without a sign, and the position behind it."""
    try:
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
        number, shift, first = byte & 0x7F, 7, position
        while byte > 0x7F:
            position += 1
            if position - first == _VARINT_BYTES:
                raise Malformed("a number has more than 10 bytes")
            byte = data[position]
            number |= (byte & 0x7F) << shift
            shift += 7
    except IndexError:
        raise Malformed("the message ends within a number") from None
    if number >= _BITS_64:
        raise Malformed("a number has more than 64 bits")
    return number, position + 1


def _in_range(number: int, plan: _Plan) -> int:
    if plan.low and number >= _BITS_64 >> 1:
        number -= _BITS_64
    if not plan.low <= number <= plan.high:
        raise Malformed(f"{plan.name} is {number}; the range is {plan.low} to {plan.high}")
    return number


def _take(values: Values, plan: _Plan, data: bytes) -> None:
    """Read a field with a length."""
    kind = plan.kind
    if kind is Kind.BYTES:
        value: Any = data
    elif kind is Kind.TEXT:
        try:
            value = data.decode()
        except UnicodeDecodeError:
            raise Malformed(f"{plan.name} is not UTF-8") from None
    elif plan.is_packed:
        position = 0
        while position < len(data):
            number, position = _read_varint(data, position)
            _append(values, plan.name, _in_range(number, plan))
        return
    else:
        assert isinstance(kind, MessageType)
        value = kind.decode(data)
    if plan.is_repeated:
        _append(values, plan.name, value)
    else:
        values[plan.name] = value


def _append(values: Values, name: str, value: object) -> None:
    entries: list[object] = values.setdefault(name, [])
    if len(entries) == MAX_ENTRIES:
        raise TooMany(name)
    entries.append(value)


def _encoded(kind: "Kind | MessageType", value: Any) -> bytes:
    if kind is Kind.TEXT:
        value = value.encode()
    elif isinstance(kind, MessageType):
        value = kind.encode(value)
    elif kind is not Kind.BYTES:
        return encode_varint(value)
    return encode_varint(len(value)) + value


def _wire_type(kind: "Kind | MessageType") -> int:
    return _VARINT if kind in RANGES else _LENGTH


def _tag(number: int, wire_type: int) -> bytes:
    return encode_varint(number << 3 | wire_type)
