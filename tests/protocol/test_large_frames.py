"""Large frames: the same replies as for small frames, without a walk over the whole frame."""

from typing import Any

import pytest

from cmqd_protocol import refusal
from cmqd_protocol.events import ConnectionEnded, RequestRefused
from cmqd_protocol.frames import frame
from cmqd_protocol.large_frames import array_header, decode, integer_at
from cmqd_protocol.limits import LARGE_PAYLOAD_BYTES
from cmqd_protocol.messages import Cancel, GetServerStatus, SendMessages, encoder
from cmqd_protocol.protocol_errors import ErrorCode
from support.cases import each_case
from support.protocol.connection_pair import ConnectionPair
from support.protocol.vectors import load, names

COUNT = 100_000
"""Elements of a byte: over ``LARGE_PAYLOAD_BYTES``, and over every limit."""
MESSAGES = [vector for vector in load("messages") if vector["from"] == "client" and vector["message"][0] >= 16]


def array(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


def mapping(count: int) -> bytes:
    return b"\xdf" + count.to_bytes(4, "big")


ZEROS = bytes(COUNT)
SEND = b"\x10\x07\xa1q\x91\xc4\x01a"
"""The beginning of a send: operation, number, queue, bodies."""
LONG_TEXT = b"\xdb" + COUNT.to_bytes(4, "big") + b"a" * COUNT

REFUSED: dict[str, tuple[bytes, str]] = {
    "bodies": (b"\x94\x10\x07\xa1q" + array(COUNT) + ZEROS, "bodies must have at most 256 entries"),
    "headers of a body": (
        b"\x95" + SEND + b"\x91" + mapping(COUNT) + b"\xa0" * 2 * COUNT,
        "headers[0] must have at most 32 entries",
    ),
    "attributes": (
        b"\x94\x30\x07\xa1q" + mapping(COUNT) + b"\xa0" * 2 * COUNT,
        "attributes must have at most 64 entries",
    ),
    "wrong type": (b"\x95" + SEND + array(COUNT) + ZEROS, "headers must have at most 256 entries"),
    "unknown elements": (
        array(13 + COUNT) + SEND + b"\xc0\xc0\x00\x00\xc0\xc0\xc0\xc2\xc0" + ZEROS,
        f"request: {COUNT} bytes behind the last known field; at most {LARGE_PAYLOAD_BYTES} are skipped",
    ),
    "unknown nested element": (
        b"\x9e" + SEND + b"\xc0\xc0\x00\x00\xc0\xc0\xc0\xc2\xc0" + array(COUNT) + ZEROS,
        f"request: {COUNT + 5} bytes behind the last known field; at most {LARGE_PAYLOAD_BYTES} are skipped",
    ),
    "elements in place of fields": (array(COUNT) + SEND + ZEROS, "headers is of type int; expected array | null"),
    "text": (b"\x94\x10\x07" + LONG_TEXT[:-1] + b"\xff" + b"\x91\xc4\x01a", "request is not UTF-8"),
}


@pytest.fixture(autouse=True)
def no_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders that walk over a whole payload are used for small payloads alone."""

    class SmallOnly:
        def __init__(self, decoder: Any) -> None:
            self._decoder = decoder

        def decode(self, payload: bytes) -> Any:
            assert len(payload) <= LARGE_PAYLOAD_BYTES
            return self._decoder.decode(payload)

    for name in ("_envelope_decoder", "_elements_decoder", "_list_decoder"):
        monkeypatch.setattr(refusal, name, SmallOnly(getattr(refusal, name)))


@each_case("pieces", [1, 3])
@each_case(("payload", "text"), REFUSED.values(), ids=REFUSED)
def test_a_large_request_with_a_fault_is_answered_and_the_connection_goes_on(
    payload: bytes, text: str, pieces: int
) -> None:
    pair = ConnectionPair.opened()
    data = frame(payload) + frame(encoder.encode(GetServerStatus(100)))
    step = len(data) // pieces + 1

    for start in range(0, len(data), step):
        pair.to_server(data[start : start + step])

    refused, following = pair.server_events
    assert isinstance(refused, RequestRefused)
    assert (refused.reply.request_id, refused.reply.code) == (7, ErrorCode.INVALID_ARGUMENT)
    assert refused.reply.text == text
    assert following == GetServerStatus(100)


def test_an_unknown_operation_in_a_large_frame_is_answered() -> None:
    pair = ConnectionPair.opened()

    pair.to_server(frame(array(COUNT + 2) + b"\x7f\x07" + ZEROS))

    [refused] = pair.server_events
    assert isinstance(refused, RequestRefused)
    assert (refused.reply.request_id, refused.reply.code) == (7, ErrorCode.UNKNOWN_OPERATION)


@pytest.mark.parametrize(
    "payload",
    [
        ZEROS,
        LONG_TEXT,
        array(COUNT) + b"\xc0" + ZEROS,
        array(COUNT) + b"\x10\x00" + ZEROS,
        array(COUNT) + b"\x10" + LONG_TEXT,
        array(2 * COUNT) + SEND + b"\xc0\xc0\x00\x00\xc0\xc0" + ZEROS[:10],
        b"\x9b" + SEND + b"\xc0\xc0\x00\x00\xc0\xc0\xc0" + ZEROS,
        b"\x94\x10\x07" + LONG_TEXT[:-1],
        b"\x93\x04\x07" + array(COUNT) + ZEROS,
    ],
    ids=["int", "text", "no operation", "number 0", "number text", "cut", "behind the end", "cut text", "long cancel"],
)
def test_a_large_payload_that_is_no_request_ends_the_connection(payload: bytes) -> None:
    pair = ConnectionPair.opened()

    pair.to_server(frame(payload))

    [ended] = pair.server_events
    assert isinstance(ended, ConnectionEnded)
    assert ended.code == ErrorCode.MALFORMED_FRAME


@each_case("vector", MESSAGES, ids=names(MESSAGES))
@each_case("unknown", [b"", b"\xc0", b"\x91\xc0" * 100], ids=["known", "one unknown", "many unknown"])
def test_a_request_of_a_newer_client_is_decoded_like_that_of_an_older_one(
    vector: dict[str, Any], unknown: bytes
) -> None:
    payload = bytes.fromhex(vector["payload"])
    count, start = array_header(payload)
    added = 200 if len(unknown) > 1 else len(unknown)
    extended = array(count + added) + payload[start:] + (unknown if added <= 1 else b"\xc0" * added)

    assert decode(extended) == decode(payload)


def test_a_large_send_of_a_newer_client_is_taken() -> None:
    bodies = [bytes(1_000) for _ in range(256)]
    request = SendMessages(7, "q", bodies)
    payload = encoder.encode(request)
    pair = ConnectionPair.opened()

    pair.to_server(frame(b"\x9e" + payload[1:] + array(10_000) + bytes(10_000)))

    assert pair.server_events == [request]


def test_integers_and_arrays_of_every_length_are_read() -> None:
    for number in (0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1):
        encoded = encoder.encode(number)
        assert integer_at(b"x" + encoded, 1) == (number, 1 + len(encoded))
    for size in (0, 15, 16, 65_535, 65_536):
        encoded = encoder.encode([None] * size)
        assert array_header(encoded) == (size, len(encoded) - size)
    for other in (b"", b"\xc0", b"\xff", b"\xa0"):
        assert integer_at(other, 0) == (-1, 0)
    assert array_header(b"\x80") == array_header(b"\xc4\x00") == (0, 0)
    assert isinstance(decode(b"\x92\x04\x07"), Cancel)
