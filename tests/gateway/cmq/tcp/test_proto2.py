"""The encoding of protocol buffers: what it allows is read, and malformed bytes are refused with the field."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd_gateway.cmq.tcp.proto2 import (
    MAX_ENTRIES,
    MAX_FIELDS,
    RANGES,
    Field,
    Kind,
    Malformed,
    MessageType,
    Missing,
    TooMany,
    encode_varint,
)
from support.cases import each_case

ITEM = MessageType("item", Field(1, "id", Kind.UINT64, is_required=True), Field(2, "state", Kind.INT32))
THING = MessageType(
    "thing",
    Field(1, "name", Kind.TEXT, is_required=True),
    Field(2, "body", Kind.BYTES),
    Field(3, "small", Kind.INT32),
    Field(4, "large", Kind.INT64),
    Field(5, "count", Kind.UINT32),
    Field(6, "handle", Kind.UINT64),
    Field(7, "handles", Kind.UINT64, is_repeated=True),
    Field(8, "bodies", Kind.BYTES, is_repeated=True),
    Field(9, "items", ITEM, is_repeated=True),
    Field(200, "far", Kind.INT32),
)
NAME = bytes.fromhex("0a016e")
"""The required field."""


def read(text: str) -> dict[str, Any]:
    """Read bytes in hex behind the required field."""
    values = THING.decode(NAME + bytes.fromhex(text))
    assert values.pop("name") == "n"
    return values


READ: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "an unknown number": ("9806 01", {}),
    "an unknown text": ("9a06 03 616263", {}),
    "an unknown field of 8 bytes": ("9906 0102030405060708", {}),
    "an unknown field of 4 bytes": ("9d06 01020304 1801", {"small": 1}),
    "a field twice": ("1801 1802", {"small": 2}),
    "a text twice": ("1201 61 1201 62", {"body": b"b"}),
    "a list": ("3801 3802", {"handles": [1, 2]}),
    "a packed list": ("3a03 01ac02", {"handles": [1, 300]}),
    "a list packed in part": ("3801 3a02 0203 3804", {"handles": [1, 2, 3, 4]}),
    "an empty packed list": ("3a00", {}),
    "a negative int32": ("18 ffffffffffffffffff01", {"small": -1}),
    "the least int32": ("18 80808080f8ffffffff01", {"small": -(1 << 31)}),
    "a negative int64": ("20 ffffffffffffffffff01", {"large": -1}),
    "the largest uint32": ("28 ffffffff0f", {"count": (1 << 32) - 1}),
    "the largest uint64": ("30 ffffffffffffffffff01", {"handle": (1 << 64) - 1}),
    "a number that is longer than it needs to be": ("18 8100", {"small": 1}),
    "0 in ten bytes": ("30 80808080808080808000", {"handle": 0}),
    "a tag that is longer than it needs to be": ("988000 01", {"small": 1}),
    "a length that is longer than it needs to be": ("12 8100 61", {"body": b"a"}),
    "bytes that are no text": ("1202 fffe", {"body": b"\xff\xfe"}),
    "empty bytes": ("1200", {"body": b""}),
    "messages": ("4a04 08071001 4a02 0808", {"items": [{"id": 7, "state": 1}, {"id": 8}]}),
    "a tag of two bytes": ("c00c 05", {"far": 5}),
}


@each_case(["text", "expected"], READ.values(), ids=READ)
def test_everything_that_the_encoding_allows_is_read(text: str, expected: dict[str, Any]) -> None:
    assert read(text) == expected


MALFORMED = {
    "a number that is cut": ("18 80", "ends within a number"),
    "a tag that is cut": ("80", "ends within a number"),
    "no number behind a tag": ("18", "ends within a number"),
    "no length behind a tag": ("12", "ends within a number"),
    "a number of 11 bytes": ("30 8080808080808080808000", "more than 10 bytes"),
    "a number without end": ("30" + "80" * 4_000, "more than 10 bytes"),
    "a number of 70 bits": ("30 ffffffffffffffffff7f", "more than 64 bits"),
    "a length beyond the message": ("1202 61", "ends within the field body"),
    "a length of 2^64 - 1": ("12 ffffffffffffffffff01", "ends within the field body"),
    "a length beyond the message, unknown": ("9a06 05 61", "ends within the field 99"),
    "8 bytes that are cut": ("9906 01020304", "ends within the field 99"),
    "4 bytes that are cut": ("9d06 01", "ends within the field 99"),
    "a group": ("9b06 0801 9c06", "wire type 3 of the field 99"),
    "the end of a group": ("9c06", "wire type 4 of the field 99"),
    "groups without end": ("0b" * 4_000, "name has the wire type 3"),
    "a wire type that does not exist": ("9f06", "wire type 7 of the field 99"),
    "the field 0": ("00 01", "the tag 0"),
    "a field of 2^32": ("8080808080808001 01", "which no field can have"),
    "a text that is no UTF-8": ("0a02 fffe", "name is not UTF-8"),
    "a text with half a pair": ("0a03 eda080", "name is not UTF-8"),
    "a text as a number": ("0801", "name has the wire type 0"),
    "a number as a text": ("1a01 61", "small has the wire type 2"),
    "a number of 4 bytes": ("1d 01020304", "small has the wire type 5"),
    "a number of 8 bytes": ("19 0102030405060708", "small has the wire type 1"),
    "an int32 of 33 bits": ("18 8080808010", "small is 4294967296; the range is -2147483648 to 2147483647"),
    "-1 in five bytes": ("18 ffffffff0f", "small is 4294967295"),
    "a uint32 of 33 bits": ("28 8080808010", "count is 4294967296"),
    "a negative uint32": ("28 ffffffffffffffffff01", "count is 18446744073709551615"),
    "a packed list that is cut": ("3a02 0180", "ends within a number"),
    "a message that is cut": ("4a03 080718", "ends within a number"),
    "a message without its id": ("4a02 1001", "id"),
    "many fields": ("1801" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
    "many unknown fields": ("980601" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
}


@each_case(["text", "reason"], MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_are_refused_with_the_field(text: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        read(text)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(Missing, match=r"\Aname\Z"):
        THING.decode(b"")


@pytest.mark.parametrize("text", ["3801" * (MAX_ENTRIES + 1), "3a11" + "01" * (MAX_ENTRIES + 1), "4200" * 17])
def test_a_list_with_more_than_16_entries_is_refused(text: str) -> None:
    with pytest.raises(TooMany):
        read(text)


def test_fields_in_front_of_an_error_are_kept() -> None:
    values: dict[str, Any] = {}
    with pytest.raises(Malformed):
        THING.decode_into(values, NAME + bytes.fromhex("1805 80"))

    assert values == {"name": "n", "small": 5}


def test_unknown_fields_with_bytes_can_be_kept() -> None:
    others: list[tuple[int, bytes]] = []
    THING.decode_into({}, bytes.fromhex("9a0601 61 980605 aa0600"), others)

    assert others == [(99, b"a"), (101, b"")]


NUMBERS = {kind: st.integers(*limits) for kind, limits in RANGES.items()}
VALUES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": st.text(max_size=20)},
    optional={
        "body": st.binary(max_size=20),
        "small": NUMBERS[Kind.INT32],
        "large": NUMBERS[Kind.INT64],
        "count": NUMBERS[Kind.UINT32],
        "handle": NUMBERS[Kind.UINT64],
        "handles": st.lists(NUMBERS[Kind.UINT64], min_size=1, max_size=MAX_ENTRIES),
        "bodies": st.lists(st.binary(max_size=5), min_size=1, max_size=MAX_ENTRIES),
        "items": st.lists(
            st.fixed_dictionaries({"id": NUMBERS[Kind.UINT64]}, optional={"state": NUMBERS[Kind.INT32]}),
            min_size=1,
            max_size=MAX_ENTRIES,
        ),
        "far": NUMBERS[Kind.INT32],
    },
)


@given(VALUES)
def test_what_was_written_is_read(values: dict[str, Any]) -> None:
    assert THING.decode(THING.encode(values)) == values


@given(VALUES, st.data())
def test_every_change_of_a_byte_is_read_or_malformed(values: dict[str, Any], data: st.DataObject) -> None:
    changed = bytearray(THING.encode(values))
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    for message in (bytes(changed), bytes(changed[:place])):
        try:
            read_values = THING.decode(message)
        except Malformed:
            continue
        # The second reading is that of the first: nothing was cut to fit.
        assert THING.decode(THING.encode(read_values)) == read_values


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    text = ""
    try:
        THING.decode(data)
    except Malformed as error:
        text = str(error)
    assert len(text) < 200


@pytest.mark.parametrize(("number", "text"), [(0, "00"), (127, "7f"), (128, "8001"), (-1, "ffffffffffffffffff01")])
def test_numbers_take_as_few_bytes_as_they_can(number: int, text: str) -> None:
    assert encode_varint(number).hex() == text
