"""Parameters of API 3.0 as values: JSON bodies and forms, and the bounds of both."""

import json
import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.request_values import MAX_SHORT, Branch, form_values, json_steps, list_of
from cmqd_gateway.http.turns import at_once
from support.cases import each_case


def read(raw: bytes) -> dict[str, Any]:
    return at_once(json_steps(raw))


@each_case(
    "value",
    [
        {},
        {"MsgContent": 'a"b\\', "QueueName": "orders", "DelaySeconds": 5},
        {"MsgContent": '\\"', "x": '","x":'},
        {"MsgContent": ":" * 40_000 + '"\\' * 20_000, "Filters": [{"Name": "tag", "Values": ["a", ":"]}]},
        {"MsgContent": "é☕\x00\n", "Trace": None, "a": [True, 1.5, 1 << 63, [], {}]},
    ],
)
def test_a_json_body_is_read(value: dict[str, Any]):
    assert read(msgspec.json.encode(value)) == value


def test_blanks_and_escaped_names_are_read():
    assert read(b' { "Queue\\u004eame" : "a\\\\" , "b" : "\\u003a" } \n') == {"QueueName": "a\\", "b": ":"}


ESCAPES = {
    "letters": b"\\u00e9",
    "pairs": b"\\ud83d\\ude00",
    "line ends": b"\\n",
    "backslashes": b"\\\\",
    "quotes": b'\\"',
    "letters without escapes, and a backslash": "é".encode() * 100 + b"\\\\",
}


@each_case("name", list(ESCAPES))
def test_a_body_of_escapes_is_decoded_in_slices(monkeypatch: pytest.MonkeyPatch, name: str):
    unit = ESCAPES[name]
    raw = b'{"MsgContent":"' + unit * ((1 << 20) // len(unit)) + b'","QueueName":"orders"}'
    expected = msgspec.json.decode(raw)
    decoded: list[int] = []

    def decode(piece: bytes) -> Any:
        decoded.append(len(piece))
        return msgspec.json.Decoder().decode(piece)

    monkeypatch.setattr("cmqd_gateway.cmq.api3.request_values.msgspec.json.decode", decode)

    assert read(raw) == expected
    assert max(decoded) <= MAX_SHORT


@each_case("seed", range(200))
def test_a_body_cut_anywhere_is_read_as_a_whole_is(monkeypatch: pytest.MonkeyPatch, seed: int):
    monkeypatch.setattr("cmqd_gateway.cmq.api3.request_values._LARGE", 16 + seed % 5)
    chance = random.Random(seed)
    units = [*'aé☕😀\\"\n\x00:/', "\\u", "\\ud83d", "\\\\", "-" * 20]

    def text(most: int) -> str:
        return "".join(chance.choices(units, k=chance.randrange(most)))

    value = {text(30): text(60), "b": [text(60), {"c": text(60)}], text(9): 1}
    raw = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode()

    assert read(raw) == value
    # Any other byte is an error for both readers, or the same for both.
    position = chance.randrange(len(raw))
    other = raw[:position] + bytes([chance.choice(b'\\"u0\xc3n')]) + raw[position + 1 :]
    try:
        expected = msgspec.json.decode(other)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        with pytest.raises(Fault):
            read(other)
    else:
        with suppress(Fault):
            assert read(other) == expected


@each_case(
    ("raw", "text"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{}{}", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e400}', "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": "\\ud800"}', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ("{}".encode("utf-16"), "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"QueueName"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": 1, "a": 1}', "stands twice"),
        (b'{"a": 1, "\\u0061": 2}', "stands twice"),
        (b'{"a": [{"b": 1, "b": 2}]}', "stands twice"),
        (b'{"a": ":", "a": ":"}', "stands twice"),
        (b'{"a": ' + b"[" * 6 + b"]" * 6 + b"}", "nested too deeply"),
        (b'{"a": ' + b'{"b":' * 6 + b"1" + b"}" * 7, "nested too deeply"),
        # Python 3.11 ends the decoding at its limit of recursion, and later versions read on.
        (b'{"a": ' + b"[" * 3_000 + b"]" * 3_000 + b"}", "nested too deeply"),
        (b'{"a": ' + b"[" * 150 + b"1e400" + b"]" * 150 + b"}", "Number out of range"),
        (b'{"a":' * 3_000, "more than 2048 strings"),
        (b"[" * 100_000, "outside its strings"),
        (b'{"a": [' + b"1," * 1_000_000 + b"1]}", "outside its strings"),
        (b'{"a": 1' + b" " * 20_000 + b"}", "outside its strings"),
        (b'{"a": [' + b'"",' * 5_000 + b'""]}', "more than 2048 strings"),
        (b'{"a": [' + (b'"' + b"\\n" * 7_000 + b'",') * 100 + b'""]}', "the insides of its long strings"),
        (b'{"a": "' + b"\\n" * 40_000 + b"\\ud83d" + b"\\n" * 9_000 + b'"}', "not JSON"),
        (b'{"a": "' + b"\\n" * 40_000 + b"\xff" + b"\\n" * 9_000 + b'"}', "not JSON"),
        (b'{"a": "' + b"\\n" * 40_000, "not JSON"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_another_body_is_refused(raw: bytes, text: str):
    with pytest.raises(Fault, match=text) as fault:
        read(raw)

    assert fault.value.code is Code.INVALID_PARAMETER
    assert len(fault.value.message) < 200


def test_a_large_body_is_read_in_steps():
    steps = json_steps(b'{"MsgContent": "' + b"\\n" * 500_000 + b'"}')

    # The escapes are looked for in slices of 16 KiB.
    assert len(list(steps)) > 60


@each_case("escapes", ["\\", '"', '\\"', '"\\', '\\"\\'])
def test_no_slice_of_a_large_body_cuts_an_escape(escapes: str):
    for shift in range(4):
        value = {"MsgContent": "x" * shift + escapes * 12_000 + '","y":', "QueueName": escapes}
        raw = msgspec.json.encode(value)

        assert read(raw) == value
        with pytest.raises(Fault, match="stands twice"):
            read(raw.replace(b'{"MsgContent"', b'{"MsgContent":1,"MsgContent"'))


def form(**values: str) -> dict[str, bytes]:
    return {name.replace("_", "."): value.encode() for name, value in values.items()}


def test_names_of_a_form_are_paths():
    values = form_values(
        form(QueueName="orders", MsgTag_0="a", MsgTag_1="b", Filters_0_Name="tag", Filters_0_Values_0="x")
    )

    assert values == {
        "QueueName": b"orders",
        "MsgTag": {"0": b"a", "1": b"b"},
        "Filters": {"0": {"Name": b"tag", "Values": {"0": b"x"}}},
    }
    assert list_of("MsgTag", values["MsgTag"]) == [b"a", b"b"]


def test_a_list_of_a_form_begins_with_0_or_1_and_is_read_in_the_order_of_its_numbers():
    entries = {str(index): str(index).encode() for index in (10, 1, 2, 9, 3, 8, 4, 7, 5, 6)}

    assert list_of("MsgTag", Branch(entries)) == [str(index).encode() for index in range(1, 11)]
    assert list_of("MsgTag", Branch({"0": b"a"})) == [b"a"]


@each_case("names", [("a", "a.0"), ("a.0", "a"), ("a.0.b", "a.0"), ("a.0", "a.0.b"), ("a.b.c.d.e",), ("a.b.c.d.e.f",)])
def test_contradictory_and_deep_names_of_a_form_are_refused(names: tuple[str, ...]):
    with pytest.raises(Fault) as fault:
        form_values(dict.fromkeys(names, b""))

    assert fault.value.code is Code.INVALID_PARAMETER


@each_case("indexes", [["2"], ["0", "2"], ["x"], [""], ["-1"], ["00"], ["99999"], ["0", "1" * 5_000], ["Key"], ["٣"]])
def test_lists_of_a_form_with_holes_or_names_are_refused(indexes: list[str]):
    with pytest.raises(Fault) as fault:
        list_of("MsgTag", Branch(dict.fromkeys(indexes, b"")))

    assert fault.value.code is Code.INVALID_PARAMETER
    assert len(fault.value.message) < 200
