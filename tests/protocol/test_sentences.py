"""Sentences of errors in parts: each face puts them together in its own words, and refuses parts of an unknown form."""

from typing import Any

import msgspec
import pytest

from cmqd_types.sentences import (
    MAX_PARTS,
    NATIVE,
    Quantity,
    Words,
    duration,
    field_names,
    in_bytes,
    in_seconds,
    iso_time,
    plain_seconds,
    put_together,
    quantity,
    readable_duration,
    readable_size,
    sentence,
    size,
    time,
    unit_of,
)
from support.cases import each_case

SHOUTED = Words(str.upper, in_seconds, iso_time, in_bytes)


def over_the_wire(parts: list[Any]) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(parts))


def test_a_sentence_keeps_its_parts_over_the_wire() -> None:
    inner = sentence("its window is {}", duration(90_000))
    made = sentence(
        "{rewind_ms} of {} is {}, {}; {} at {}{}", "'q'", inner, size(1 << 16), 5, time(0), Quantity("ensure", "")
    )

    assert str(made) == (
        "rewind_ms of 'q' is its window is 1 min 30 s, 64 KiB; 5 at 1970-01-01T00:00:00Z; use ensure, or another name"
    )
    assert put_together(over_the_wire(made.parts), SHOUTED) == (
        "REWIND_MS of 'q' is its window is 90 s, 65536 bytes; 5 at 1970-01-01T00:00:00Z"
    )


def test_names_of_fields_are_listed() -> None:
    assert put_together(field_names(["a", "b"]).parts, SHOUTED) == "A, B"


def test_braces_in_a_value_are_text() -> None:
    assert str(sentence("{} is refused", "{queue} {}")) == "{queue} {} is refused"


@pytest.mark.parametrize(
    "parts",
    [
        None,
        "text",
        {"a": 1},
        ["a", 5],
        ["a", ["field"]],
        ["a", ["field", 5]],
        ["a", ["ms", "5"]],
        ["a", ["ms", True]],
        ["a", ["colour", "red"]],
        ["a", ["field", "x", "y"]],
        ["a"] * (MAX_PARTS + 1),
    ],
)
def test_parts_of_an_unknown_form_are_no_sentence(parts: object) -> None:
    assert put_together(parts, NATIVE) is None


@each_case(
    ("milliseconds", "readable", "seconds"),
    [
        (0, "0 s", "0"),
        (1, "1 ms", "0.001"),
        (500, "500 ms", "0.5"),
        (1500, "1.5 s", "1.5"),
        (59_999, "59.999 s", "59.999"),
        (60_000, "1 min", "60"),
        (90_000, "1 min 30 s", "90"),
        (3_600_001, "1 h 1 ms", "3600.001"),
        (46_800_000, "13 h", "46800"),
        (1_296_000_000, "15 d", "1296000"),
        (-1500, "-1.5 s", "-1.5"),
        (1 << 62, "53375995583 d 15 h 36 min 27.904 s", "4611686018427387.904"),
    ],
)
def test_durations_lose_nothing_and_have_no_exponent(milliseconds: int, readable: str, seconds: str) -> None:
    assert readable_duration(milliseconds) == readable
    assert plain_seconds(milliseconds) == seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1024, "1 KiB"), (1025, "1025 bytes"), (1 << 20, "1 MiB"), (3 << 30, "3 GiB")],
)
def test_sizes_lose_nothing(count: int, text: str) -> None:
    assert readable_size(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (1_700_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1 << 62, "4611686018427387904 ms after 1970"),
    ],
)
def test_times_are_dates(milliseconds: int, text: str) -> None:
    assert iso_time(milliseconds) == text


@pytest.mark.parametrize(
    ("field", "unit"),
    [("delay_ms", "ms"), ("delay_ms[3]", "ms"), ("time_ms", "time"), ("max_message_bytes", "bytes"), ("limit", None)],
)
def test_the_name_of_a_field_tells_its_unit(field: str, unit: str | None) -> None:
    assert unit_of(field) == unit


def test_a_value_has_the_unit_of_its_field() -> None:
    assert quantity("delay_ms", 5) == duration(5)
    assert (quantity("limit", 5), quantity("paused", True), quantity("delay_ms", False)) == ("5", "true", "false")
