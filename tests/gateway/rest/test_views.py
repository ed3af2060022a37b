"""Views: replies of the JSON API with the fields, types and words of the client's results."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

import msgspec

from cmqd_gateway.rest.views import Reply, descriptions, in_json, view


class Colour(StrEnum):
    RED = "red"


class Inner(msgspec.Struct, frozen=True):
    """A part."""

    number: int
    """The number; None never."""


class Result(msgspec.Struct, frozen=True):
    """A result of the client."""

    row: int
    """Number of 64 bits, as ``row`` of the log."""
    next: int | None
    """None at the end."""
    span: timedelta
    sent_ms: int
    colour: Colour | str
    names: tuple[str, ...]
    counts: Mapping[str, int]
    parts: list[Inner]
    part: Inner | None
    body: bytes
    request_id: int
    """Of the connection."""


@view(Inner)
class ShownInner(Reply, frozen=True, kw_only=True):
    """A part."""


@view(Result, texts=("row", "next"), renamed={"colour": "paint"})
class Shown(Reply, frozen=True, kw_only=True):
    """A reply."""

    own: bool


RESULT = Result(
    2**63, None, timedelta(milliseconds=1500), 1000, Colour.RED, ("a",), {"b": 1}, [Inner(1)], Inner(2), b"\xff", 7
)


def test_values_are_those_of_json():
    assert msgspec.to_builtins(Shown.of(RESULT, own=True)) == {
        "row": "9223372036854775808",
        "next": None,
        "span": 1.5,
        "sent_time": "1970-01-01T00:00:01Z",
        "paint": "red",
        "names": ["a"],
        "counts": {"b": 1},
        "parts": [{"number": 1}],
        "part": {"number": 2},
        "body": "/w==",
        "encoding": "base64",
        "own": True,
    }


def test_a_field_of_the_result_is_described_by_its_docstring_in_words_of_json():
    schema = msgspec.json.schema_components([Shown])[1]["Shown"]

    assert descriptions(Shown) == {"row": "Number of 64 bits, as `row` of the log.", "next": "null at the end."}
    assert set(schema["required"]) == set(schema["properties"]), "a reply has all its fields"


def test_words_of_python_become_words_of_json():
    assert in_json("``a`` is\n    None; NoneType, ``None``") == "`a` is null; NoneType, `null`"
