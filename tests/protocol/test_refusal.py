"""Requests that cannot be decoded, in whole connections (golden vectors) and word for word."""

from typing import Any

import msgspec
import pytest

from cmqd_protocol.events import ConnectionEnded, RequestRefused
from cmqd_protocol.frames import frame
from cmqd_protocol.messages import Error, GetServerStatus, encoder, request_decoder
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_protocol.refusal import DECODE_ERRORS, SAID_CHARACTERS, refuse
from cmqd_types.sentences import NATIVE, put_together
from support.cases import each_case
from support.protocol.connection_pair import ConnectionPair
from support.protocol.vectors import load, names, value_of

REFUSED = load("refused")


def explain(*message: Any) -> Error:
    """The error of a server for this array."""
    payload = encoder.encode(message)
    with pytest.raises(DECODE_ERRORS) as raised:
        request_decoder.decode(payload)
    reply = refuse(payload, raised.value)
    assert reply is not None
    return reply


@pytest.mark.parametrize("secret", [b"kept-by-a-program", 123456789, ["kept-by-a-program"], 1.5])
def test_a_secret_of_a_wrong_type_is_not_repeated(secret: Any) -> None:
    reply = explain(138, 1, "AKIDold", secret, ["send"], ["*"])

    assert reply.details is not None
    assert (reply.details["field"], reply.details["expected"]) == ("secret_key", "str")
    assert "value" not in reply.details
    assert str(secret) not in repr(reply)
    assert "kept-by" not in repr(reply)


class TestVectors:
    @each_case("vector", REFUSED, ids=names(REFUSED))
    def test_the_reply_and_whether_the_connection_goes_on(self, vector: dict[str, Any]) -> None:
        pair = ConnectionPair.opened()
        [_, request_id, code, name, _, retryable, _, details] = value_of(vector["message"])

        pair.to_server(frame(bytes.fromhex(vector["payload"])))

        reply = msgspec.msgpack.decode(b"".join(pair.server.data_to_send(0))[4:], type=Error)
        assert (reply.request_id, reply.code, reply.name, reply.retryable) == (request_id, code, name, retryable)
        if details:
            assert reply.details is not None
            assert reply.details.get("field") == details.get("field")
        assert pair.server.is_ending is vector["closes"] is (request_id == 0)
        [event] = pair.server_events
        assert isinstance(event, ConnectionEnded if vector["closes"] else RequestRefused)

    @each_case("vector", [vector for vector in REFUSED if not vector["closes"]], ids=lambda v: v["name"])
    def test_the_next_request_is_served(self, vector: dict[str, Any]) -> None:
        pair = ConnectionPair.opened()

        pair.to_server(frame(bytes.fromhex(vector["payload"])) + frame(encoder.encode(GetServerStatus(100))))

        assert pair.server_events[-1] == GetServerStatus(100)
        assert pair.server.outstanding == 1


WORDS: list[tuple[tuple[Any, ...], str, dict[str, Any]]] = [
    ((17, 1), "queue is missing", {"field": "queue"}),
    ((16, 1, "q"), "bodies is missing", {"field": "bodies"}),
    (
        (17, 1, "q", "ten"),
        "max_messages is of type str; expected int (value 'ten')",
        {"field": "max_messages", "expected": "int", "value": "ten"},
    ),
    (
        (17, 1, "q", -5),
        "max_messages is -5; it must be at least 0",
        {"field": "max_messages", "value": -5, "limit": "at least 0"},
    ),
    (
        (18, 1, "q", [0] * 257),
        "receipt_handles has 257 entries; it must have at most 256",
        {"field": "receipt_handles", "value": 257, "limit": "at most 256"},
    ),
    (
        (18, 1, "q", []),
        "receipt_handles has 0 entries; it must have at least 1",
        {"field": "receipt_handles", "value": 0, "limit": "at least 1"},
    ),
    (
        (18, 1, "q", [0] * 60_000),
        "receipt_handles has 60000 entries; it must have at most 256",
        {"field": "receipt_handles", "value": 60_000, "limit": "at most 256"},
    ),
    (
        (18, 1, "q", [1, 2, -3]),
        "receipt_handles[2] is -3; it must be at least 0",
        {"field": "receipt_handles[2]", "value": -3, "limit": "at least 0"},
    ),
    (
        (16, 1, "q", [b"x"], [{str(number): "" for number in range(33)}]),
        "headers[0] has 33 entries; it must have at most 32",
        {"field": "headers[0]", "value": 33, "limit": "at most 32"},
    ),
    (
        (16, 1, "q", [b"x"], [{"k": 1}]),
        "a value of headers[0] is of type int; expected str",
        {"field": "headers[0]", "expected": "str"},
    ),
    (
        (16, 1, "q", [b"x"], [{1: "v"}]),
        "a key of headers[0] is of type int; expected str",
        {"field": "headers[0]", "expected": "str"},
    ),
    (
        (48, 1, "q", {"retention_ms": []}),
        "a value of attributes is of type array; expected bool | int | str | null",
        {"field": "attributes", "expected": "bool | int | str | null"},
    ),
    (
        (17, 1, {}),
        "queue is of type object; expected str",
        {"field": "queue", "expected": "str"},
    ),
    (
        (17, 1, "q", b"x" * 100),
        "max_messages is of type bytes; expected int",
        {"field": "max_messages", "expected": "int"},
    ),
    (
        (190, 1),
        "operation 190 is not known to version 1 of the protocol",
        {"opcode": 190, "version": 1},
    ),
]


class TestWords:
    """The field, its value and its allowed values."""

    @each_case(
        ("message", "text", "details"),
        WORDS,
    )
    def test_is_named(self, message: tuple[Any, ...], text: str, details: dict[str, Any]) -> None:
        reply = explain(*message)

        assert reply.text == text
        assert reply.details is not None
        if reply.code == ErrorCode.INVALID_ARGUMENT:
            assert put_together(reply.details.pop("sentence"), NATIVE) == text
        assert reply.details == details

    @pytest.mark.parametrize(
        "value",
        [msgspec.msgpack.Ext(5, b"data"), msgspec.Raw(b"\xa2\xff\xfe"), None, "x" * 100],
        ids=["extension", "not UTF-8", "nil", "long"],
    )
    def test_a_value_that_cannot_be_shown_is_left_out(self, value: Any) -> None:
        reply = explain(17, 1, "q", value)

        assert reply.details is not None
        assert reply.details["field"] == "max_messages"
        assert "value" not in reply.details

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ([17, 1, msgspec.Raw(b"\xa2\xff\xfe")], "queue"),
            ([16, 1, "q", [b"x"], [{"k": msgspec.Raw(b"\xa1\xff")}]], "headers"),
            ([48, 1, "q", {"k": msgspec.Raw(b"\xa1\xff")}], "attributes"),
        ],
    )
    def test_text_that_is_not_utf8_is_found(self, message: list[Any], field: str) -> None:
        reply = explain(*message)

        assert (reply.code, reply.text) == (ErrorCode.INVALID_ARGUMENT, f"{field} is not UTF-8")

    def test_a_problem_in_words_that_are_not_known_is_passed_on(self) -> None:
        """A different release of msgspec may use other words."""
        reply = refuse(encoder.encode([17, 1, "q"]), ValueError("something odd"))

        assert reply is not None
        assert reply.text == "request: something odd"
        assert reply.details is not None
        assert (reply.details["field"], reply.details["expected"]) == ("request", "something odd")

    def test_a_problem_of_any_length_is_examined_and_repeated_in_part(self) -> None:
        said = "Expected `int`, got `str`" + " - at `key` in `$" * 12_500
        reply = refuse(encoder.encode([17, 1, "q"]), ValueError(said))

        assert reply is not None
        assert len(reply.text) < 2 * SAID_CHARACTERS
        assert len(encoder.encode(reply)) < 4096

    def test_bounds_of_what_cannot_be_located_have_no_value(self) -> None:
        reply = refuse(encoder.encode([48, 1, "q", {}]), ValueError("Expected `array` of length <= 3 - at `$[3][...]`"))

        assert reply is not None
        assert reply.details is not None
        assert (reply.details["field"], reply.details["value"], reply.details["limit"]) == (
            "attributes",
            None,
            "at most 3",
        )

    @pytest.mark.parametrize("message", [[17, 1, "q"], [17, 1, "q", 1, None, None]], ids=["short", "whole"])
    def test_text_that_is_not_utf8_and_not_found_is_still_answered(self, message: list[Any]) -> None:
        problem = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

        reply = refuse(encoder.encode(message), problem)

        assert reply is not None
        assert reply.text == "request is not UTF-8"
