from typing import Any

import msgspec
import pytest

from cmqd.core.limits import copy_bytes
from cmqd_protocol import messages
from cmqd_protocol.frames import FrameReader, Payload, frame
from cmqd_protocol.limits import (
    DEFAULT_MAX_FRAME_BYTES,
    MAX_BATCH,
    MAX_DEDUP_ID_BYTES,
    MAX_HEADERS,
    MIN_MAX_FRAME_BYTES,
)
from cmqd_protocol.messages import (
    Cancel,
    ClientHello,
    DeadLetterMessages,
    MessagesPeeked,
    MessagesReceived,
    PublishMessages,
    SendHalfMessages,
    SendMessages,
    TransactionCheck,
    WireMessage,
    encoder,
    error,
)
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from cmqd_types.messages import CopyOf, Origin, PeekedMessage, ReceivedMessage
from support.cases import each_case
from support.protocol.plain_msgpack import unpack
from support.protocol.vectors import load, names, value_of

MESSAGES = load("messages")
VARIANTS = load("variants")
BY_NAME = {vector["name"]: vector for vector in MESSAGES}
DECODERS: dict[str, msgspec.msgpack.Decoder[WireMessage]] = {
    side: messages.decoder_of(kinds)
    for side, kinds in {
        "client": [ClientHello, Cancel, *messages.REQUEST_TYPES.values()],
        "server": [kind for opcode, kind in messages.MESSAGE_TYPES.items() if opcode in (1, 3) or opcode >= 192],
    }.items()
}
"""A decoder for all messages of a side."""
MIB = 1024 * 1024
ORIGIN_BYTES = 128
"""Bytes that the origin of a moved message counts for in a reply; the encoding is never longer."""


def struct_of(vector: dict[str, Any]) -> WireMessage:
    """The message that a vector describes, built from its decoded form."""
    struct_type: type[WireMessage] = getattr(messages, vector["struct"])
    return msgspec.convert(value_of(vector["message"]), struct_type)


def decode(vector: dict[str, Any], payload: Payload) -> WireMessage:
    return DECODERS[vector["from"]].decode(payload)


def all_wire_messages() -> list[type[WireMessage]]:
    return [
        found
        for found in vars(messages).values()
        if isinstance(found, type) and issubclass(found, WireMessage) and found.__struct_config__.tag is not None
    ]


class TestVectors:
    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_encode(self, vector: dict[str, Any]) -> None:
        assert encoder.encode(struct_of(vector)).hex() == vector["payload"]

    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_decode(self, vector: dict[str, Any]) -> None:
        assert decode(vector, bytes.fromhex(vector["payload"])) == struct_of(vector)

    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_a_plain_reader_of_msgpack_sees_the_decoded_form(self, vector: dict[str, Any]) -> None:
        assert unpack(bytes.fromhex(vector["payload"])) == value_of(vector["message"])

    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_byte_at_a_time(self, vector: dict[str, Any]) -> None:
        reader = FrameReader(MIN_MAX_FRAME_BYTES)
        stream = frame(bytes.fromhex(vector["payload"]))
        found: list[Payload] = []
        for at in range(len(stream)):
            assert found == []
            found += reader.read(stream[at : at + 1])

        assert [decode(vector, payload) for payload in found] == [struct_of(vector)]

    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_trailing_bytes_of_the_next_frame_change_nothing(self, vector: dict[str, Any]) -> None:
        reader = FrameReader(MIN_MAX_FRAME_BYTES)
        found = reader.read(frame(bytes.fromhex(vector["payload"])) + b"\x00\x00\x00\x07\xff")

        assert [decode(vector, payload) for payload in found] == [struct_of(vector)]

    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_trailing_bytes_within_the_frame_are_malformed(self, vector: dict[str, Any]) -> None:
        with pytest.raises(msgspec.DecodeError, match="trailing"):
            decode(vector, bytes.fromhex(vector["payload"]) + b"\xc0")

    @each_case("vector", MESSAGES, ids=names(MESSAGES))
    def test_truncated(self, vector: dict[str, Any]) -> None:
        payload = bytes.fromhex(vector["payload"])
        for size in range(len(payload)):
            with pytest.raises(msgspec.DecodeError):
                decode(vector, payload[:size])

    @each_case("vector", VARIANTS, ids=names(VARIANTS))
    def test_other_encodings_mean_the_same(self, vector: dict[str, Any]) -> None:
        assert decode(vector, bytes.fromhex(vector["payload"])) == struct_of(BY_NAME[vector["same_as"]])

    def test_every_message_has_a_vector(self) -> None:
        assert {vector["struct"] for vector in MESSAGES} == {found.__name__ for found in all_wire_messages()}


class TestOpcodes:
    def test_every_message_has_an_operation_of_its_own(self) -> None:
        kinds = all_wire_messages()

        assert {found.__struct_config__.tag: found for found in kinds} == messages.MESSAGE_TYPES
        assert len(messages.MESSAGE_TYPES) == len(kinds)

    def test_an_operation_is_named_like_its_message(self) -> None:
        assert messages.operation_name(SendMessages) == "send_messages"
        assert messages.operation_name(messages.Done) == "done"

    def test_requests_are_known_by_their_operation(self) -> None:
        for opcode, request_type in messages.REQUEST_TYPES.items():
            assert request_type.__struct_config__.tag == opcode
        assert len(messages.REQUEST_TYPES) == sum(issubclass(found, messages.Request) for found in all_wire_messages())


class TestErrors:
    @each_case("code", list(ErrorCode))
    def test_an_error_carries_the_name_of_its_code_and_whether_to_retry(self, code: ErrorCode) -> None:
        made = error(5, code, "why")

        assert (made.request_id, made.code, made.name) == (5, int(code), code.wire_name)
        assert made.retryable is code.retryable is (code in RETRYABLE)
        assert made.details is None

    def test_details_are_copied(self) -> None:
        details = {"field": "queue"}

        made = error(5, ErrorCode.INVALID_ARGUMENT, "why", details=details, retry_after_ms=10)
        details.clear()

        assert made.details == {"field": "queue"}
        assert made.retry_after_ms == 10


class TestSizes:
    """A batch at its limits fits into the smallest frame that a negotiation can give."""

    @staticmethod
    def headers_of(name_bytes: int, value_bytes: int) -> dict[str, str]:
        """As many headers as a message may have."""
        return dict.fromkeys((f"{number:0{name_bytes}}" for number in range(MAX_HEADERS)), "v" * value_bytes)

    @pytest.mark.parametrize(
        ("name_bytes", "value_bytes"), [(2, 0), (2, 29), (31, 31), (32, 32), (32, 90), (63, 64), (255, 256), (256, 256)]
    )
    def test_a_full_batch_with_the_most_expensive_headers_fits(self, name_bytes: int, value_bytes: int) -> None:
        """Text of 32 bytes and more costs two bytes of framing, so many headers of this length are the worst case."""
        headers = self.headers_of(name_bytes, value_bytes)
        header_bytes = MAX_HEADERS * (name_bytes + value_bytes)
        count = min(MAX_BATCH, MIB // (header_bytes + 1))
        body = b"x" * (MIB // count - header_bytes)
        highest = 2**64 - 1
        received = ReceivedMessage(highest, highest, body, highest, highest, highest, highest, headers)
        peeked = PeekedMessage(highest, "rewindable", body, highest, highest, highest, headers)
        all_headers: list[dict[str, str] | None] = [headers] * count
        messages: list[WireMessage] = [
            MessagesReceived(2**32 - 1, [received] * count),
            MessagesPeeked(2**32 - 1, messages=[peeked] * count, next_start=highest),
            SendMessages(2**32 - 1, "q" * 64, [body] * count, all_headers, [highest] * count, highest, highest),
            SendHalfMessages(2**32 - 1, "q" * 64, [body] * count, all_headers, highest, highest, highest),
        ]

        assert header_bytes <= 16 * 1024
        for message in messages:
            framing = len(encoder.encode(message)) - count * (len(body) + header_bytes)
            assert framing <= 52 * 1024 <= MIN_MAX_FRAME_BYTES - MIB

    def test_a_full_batch_under_dedup_ids_fits_too(self) -> None:
        headers = self.headers_of(32, 32)
        body = b"x" * (MIB // MAX_BATCH - MAX_HEADERS * 64)
        dedup_ids: list[str | None] = ["i" * MAX_DEDUP_ID_BYTES] * MAX_BATCH
        delays = [2**64 - 1] * MAX_BATCH

        all_headers: list[dict[str, str] | None] = [headers] * MAX_BATCH

        message = SendMessages(
            2**32 - 1, "q" * 64, [body] * MAX_BATCH, all_headers, delays, 2**64 - 1, 2**64 - 1, dedup_ids
        )

        assert len(encoder.encode(message)) <= MIN_MAX_FRAME_BYTES

    def test_a_full_batch_under_routing_keys_fits_and_one_under_ten_long_tags_each_needs_more(self) -> None:
        body = b"x" * (MIB // MAX_BATCH)
        highest = 2**64 - 1
        bodies = [body] * MAX_BATCH

        by_key = PublishMessages(2**32 - 1, "t" * 64, bodies, None, None, ["k" * 64] * MAX_BATCH, highest, highest)
        by_tags = PublishMessages(2**32 - 1, "t" * 64, bodies, None, [["\N{GRINNING FACE}" * 16] * 10] * MAX_BATCH)

        assert len(encoder.encode(by_key)) <= MIN_MAX_FRAME_BYTES
        assert MIN_MAX_FRAME_BYTES < len(encoder.encode(by_tags)) <= DEFAULT_MAX_FRAME_BYTES

    @pytest.mark.parametrize("rejection", ["", "r" * 256, "\N{GRINNING FACE}" * 64])
    def test_a_full_reply_of_moved_messages_fits_because_their_origins_count(self, rejection: str) -> None:
        headers = self.headers_of(32, 32)
        highest = 2**64 - 1
        origin = Origin("q" * 64, highest, highest, highest, "rejected", rejection)
        size = MIB // MAX_BATCH
        body = b"x" * (size - MAX_HEADERS * 64 - ORIGIN_BYTES - len(rejection.encode()))
        received = ReceivedMessage(highest, highest, body, highest, highest, highest, highest, headers, origin)
        peeked = PeekedMessage(highest, "in_flight", body, highest, highest, highest, headers, origin)

        for message in (
            MessagesReceived(2**32 - 1, [received] * MAX_BATCH),
            MessagesPeeked(2**32 - 1, messages=[peeked] * MAX_BATCH, next_start=highest),
        ):
            assert len(encoder.encode(message)) <= MIN_MAX_FRAME_BYTES

    @pytest.mark.parametrize("labels", ["k" * 64, ["\N{GRINNING FACE}" * 16] * 10, ["t"] * 10, None])
    def test_a_full_reply_of_copies_fits_because_what_they_are_copies_of_counts(
        self, labels: list[str] | str | None
    ) -> None:
        headers = self.headers_of(32, 32)
        highest = 2**64 - 1
        copy_of = CopyOf("t" * 64, "s" * 64, highest, highest, labels)
        counted = copy_bytes(CopyOf("t" * 64, "s" * 64, highest, highest, labels))
        size = MIB // MAX_BATCH
        body = b"x" * (size - MAX_HEADERS * 64 - counted)
        received = ReceivedMessage(highest, highest, body, highest, highest, highest, highest, headers, None, copy_of)
        peeked = PeekedMessage(highest, "in_flight", body, highest, highest, highest, headers, None, copy_of)

        assert len(encoder.encode(copy_of)) <= counted
        for message in (
            MessagesReceived(2**32 - 1, [received] * MAX_BATCH),
            MessagesPeeked(2**32 - 1, messages=[peeked] * MAX_BATCH, next_start=highest),
        ):
            assert len(encoder.encode(message)) <= MIN_MAX_FRAME_BYTES

    def test_the_largest_request_with_reasons_fits(self) -> None:
        highest = 2**64 - 1

        message = DeadLetterMessages(2**32 - 1, "q" * 64, [highest] * MAX_BATCH, ["r" * 256] * MAX_BATCH)

        assert len(encoder.encode(message)) <= MIN_MAX_FRAME_BYTES

    def test_the_largest_check_fits(self) -> None:
        headers = self.headers_of(256, 256)
        highest = 2**64 - 1

        message = TransactionCheck("q" * 64, highest, b"x" * MIB, headers, highest, highest, highest)

        assert len(encoder.encode(message)) <= MIN_MAX_FRAME_BYTES

    def test_the_largest_message_alone_fits(self) -> None:
        headers = self.headers_of(256, 256)
        highest = 2**64 - 1
        received = ReceivedMessage(highest, highest, b"x" * MIB, highest, highest, highest, highest, headers)

        assert sum(len(name) + len(value) for name, value in headers.items()) == 16 * 1024
        assert len(encoder.encode(MessagesReceived(2**32 - 1, [received]))) <= MIN_MAX_FRAME_BYTES
