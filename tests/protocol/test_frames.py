import itertools
import random
import tracemalloc
from typing import Any

import pytest

from cmqd_protocol.frames import (
    LARGE_FRAME_BYTES,
    LEAST_ARRIVED_BYTES,
    RESERVED_FACTOR,
    FrameReader,
    Payload,
    decode_preamble,
    encode_preamble,
    frame,
    header,
)
from cmqd_protocol.limits import HEADER_BYTES
from support.protocol.vectors import load, names

STREAMS = load("streams")
LIMIT = 1_114_112


def read_all(reader: FrameReader, pieces: list[bytes]) -> list[Payload]:
    found: list[Payload] = []
    for piece in pieces:
        found += reader.read(piece)
        if reader.refused_length:
            break
    return found


def bytes_of(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


class TestVectors:
    @pytest.mark.parametrize("vector", STREAMS, ids=names(STREAMS))
    def test_whole(self, vector: dict[str, Any]) -> None:
        reader = FrameReader(vector["limit"])

        found = read_all(reader, [bytes.fromhex(vector["stream"])])

        assert [payload.hex() for payload in found] == vector["payloads"]
        assert reader.refused_length == vector["refused_length"]
        assert f"held={vector['rest']} " in repr(reader)

    @pytest.mark.parametrize("vector", STREAMS, ids=names(STREAMS))
    def test_byte_by_byte(self, vector: dict[str, Any]) -> None:
        reader = FrameReader(vector["limit"])

        found = read_all(reader, bytes_of(bytes.fromhex(vector["stream"])))

        assert [payload.hex() for payload in found] == vector["payloads"]
        assert reader.refused_length == vector["refused_length"]

    @pytest.mark.parametrize("vector", STREAMS, ids=names(STREAMS))
    def test_one_frame_at_a_time(self, vector: dict[str, Any]) -> None:
        reader = FrameReader(vector["limit"])
        reader.feed(bytes.fromhex(vector["stream"]))

        found = list(iter(reader.next_frame, None))

        assert [payload.hex() for payload in found if payload is not None] == vector["payloads"]
        assert reader.refused_length == vector["refused_length"]
        assert reader.next_frame() is None

    @pytest.mark.parametrize("vector", STREAMS, ids=names(STREAMS))
    def test_in_two_pieces_cut_anywhere(self, vector: dict[str, Any]) -> None:
        stream = bytes.fromhex(vector["stream"])
        for cut in range(1, len(stream)):
            reader = FrameReader(vector["limit"])

            found = read_all(reader, [stream[:cut], stream[cut:]])

            assert [payload.hex() for payload in found] == vector["payloads"]


class TestReading:
    def test_frames_are_found_however_the_stream_was_cut(self) -> None:
        chance = random.Random(1)
        payloads = [chance.randbytes(chance.choice((0, 1, 7, 300, 70_000, 300_000))) for _ in range(60)]
        stream = b"".join(frame(payload) for payload in payloads)
        cuts = sorted(chance.sample(range(1, len(stream)), 400))
        pieces = [stream[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(stream)])]

        found = read_all(FrameReader(LIMIT), pieces)

        assert found == [payload for payload in payloads if payload]

    def test_switching_between_one_and_all_loses_nothing(self) -> None:
        reader = FrameReader(LIMIT)
        reader.feed(frame(b"one") + frame(b"two") + frame(b"three")[:5])

        assert reader.next_frame() == b"one"
        assert reader.read(b"") == [b"two"]
        assert reader.read(b"") == []
        reader.feed(frame(b"three")[5:])
        assert reader.next_frame() == b"three"

    def test_feeding_before_all_was_taken_loses_nothing(self) -> None:
        reader = FrameReader(LIMIT)
        reader.feed(frame(b"one") + frame(b"two"))
        assert reader.next_frame() == b"one"

        reader.feed(frame(b"three"))

        assert reader.next_frame() == b"two"
        assert reader.read(b"") == [b"three"]

    def test_an_incomplete_large_frame_is_not_looked_at_again_before_it_can_be_complete(self) -> None:
        """Else a frame that arrives in small pieces would be copied once per piece."""
        reader = FrameReader(LIMIT)
        assert reader.read(header(1_000_000)) == []
        need = repr(reader).rpartition(" ")[2]

        for _ in range(100):
            assert reader.read(b"x" * 1000) == []
            assert reader.next_frame() is None
            assert repr(reader).rpartition(" ")[2] == need

        assert reader.read(b"x" * 900_000) == [b"x" * 1_000_000]

    @pytest.mark.parametrize("around", [-1, 0, 1])
    @pytest.mark.parametrize("before", [b"", frame(b"before")])
    def test_a_large_frame_comes_from_its_reads_in_order(self, before: bytes, around: int) -> None:
        chance = random.Random(around)
        payloads = [chance.randbytes(LARGE_FRAME_BYTES - HEADER_BYTES + around), chance.randbytes(700_000), b"behind"]
        stream = before + b"".join(frame(payload) for payload in payloads)
        for _ in range(20):
            reader = FrameReader(LIMIT)
            found: list[Payload] = []
            rest = stream
            while rest:
                size = chance.choice((1, 3, 500, 16_383, 16_384, 100_000, 256_000))
                data, rest = rest[:size], rest[size:]
                found += reader.read(data)
                taken = sum(HEADER_BYTES + len(payload) for payload in found)
                assert reader.stored_bytes == len(stream) - len(rest) - taken
                assert reader.is_empty is (reader.stored_bytes == 0)
                assert reader.missing_bytes <= len(rest)
            assert found == ([b"before"] if before else []) + payloads

    def test_the_bytes_of_a_large_frame_are_copied_once(self) -> None:
        reader = FrameReader(LIMIT)
        reads = [header(1_000_000) + bytes(200_000 - 4), *(bytes([number]) * 200_000 for number in range(1, 5))]
        tracemalloc.start()
        try:
            for data in reads:
                assert reader.read(data) == []
            assert tracemalloc.get_traced_memory()[1] < 1_010_000, "the memory of the frame"
        finally:
            tracemalloc.stop()
        assert reader.missing_bytes == 4
        assert reader.read(b"last") == [b"".join(reads)[HEADER_BYTES:] + b"last"]

    def test_bytes_of_a_large_frame_are_written_into_its_memory(self) -> None:
        chance = random.Random(7)
        reader = FrameReader(LIMIT)
        for _ in range(30):
            payload = chance.randbytes(chance.randrange(LARGE_FRAME_BYTES, LIMIT))
            start = chance.choice((0, 1, chance.randrange(100_000)))
            assert reader.read(frame(payload)[: HEADER_BYTES + start]) == []
            while start < len(payload):
                assert reader.take_filled() is None
                assert reader.reserved_bytes <= 2 * RESERVED_FACTOR * max(start, LEAST_ARRIVED_BYTES) + HEADER_BYTES
                assert reader.stored_bytes == HEADER_BYTES + start
                space = reader.space()
                assert 0 < len(space) <= len(payload) - start
                count = chance.randrange(1, len(space) + 1)
                space[:count] = payload[start : start + count]
                del space
                start += count
                assert reader.filled(count) is (start == len(payload))
            large = reader.take_filled()
            assert large is not None
            assert large.whole() == payload
            large.reuse()
            assert reader.is_empty
        assert reader.read(frame(b"next")) == [b"next"]

    def test_an_empty_read_takes_no_frame_that_was_written_into_its_memory(self) -> None:
        reader = FrameReader(LIMIT)
        payload = bytes(LARGE_FRAME_BYTES)
        reader.read(frame(payload)[:-1])
        reader.space()[:1] = b"\0"

        assert reader.filled(1)
        assert reader.read(b"") == []
        large = reader.take_filled()
        assert large is not None
        assert large.whole() == payload

    def test_a_large_frame_without_its_end_leaves_nothing(self) -> None:
        reader = FrameReader(LIMIT)
        reader.read(header(1_000_000) + bytes(500_000))

        reader.clear()

        assert reader.is_empty
        assert (reader.stored_bytes, reader.missing_bytes) == (0, 0)
        assert reader.read(frame(b"next")) == [b"next"]

    def test_a_read_buffer_is_not_kept_for_the_sake_of_its_last_bytes(self) -> None:
        reader = FrameReader(LIMIT)
        reader.read(frame(b"x" * 200_000) + b"\x00")

        assert "held=1 " in repr(reader)

    def test_the_limit_may_grow_between_frames(self) -> None:
        reader = FrameReader(3)
        reader.feed(frame(b"one") + frame(b"three"))
        assert reader.next_frame() == b"one"

        reader.limit = 5

        assert reader.next_frame() == b"three"


class TestTaking:
    def test_bytes_without_a_frame_come_once_they_are_all_there(self) -> None:
        reader = FrameReader(LIMIT)
        for piece in (b"CM", b"QD", b"\0\1\0"):
            reader.feed(piece)
            assert reader.take(8) is None
            assert reader.take(8) is None
        assert reader.peek(4) == b"CMQD"

        reader.feed(b"\1" + frame(b"next"))

        assert reader.take(8) == b"CMQD\0\1\0\1"
        assert reader.peek(2) == b"\0\0"
        assert reader.next_frame() == b"next"


class TestHeaders:
    @pytest.mark.parametrize("size", [0, 1, 511, 512, 65_536, 2**28 - 1])
    def test_a_header_is_the_length_in_four_bytes(self, size: int) -> None:
        assert header(size) == size.to_bytes(4, "big")

    def test_a_preamble_is_the_magic_and_two_numbers(self) -> None:
        assert encode_preamble(1, 258) == b"CMQD\x00\x01\x01\x02"
        assert decode_preamble(b"CMQD\x00\x01\x01\x02") == (1, 258)
        assert decode_preamble(b"CMQE\x00\x01\x01\x02") is None


def test_a_read_is_within_a_frame_up_to_the_last_byte_of_the_frame() -> None:
    reader = FrameReader(limit=10_000)
    data = frame(bytes(1_000))
    assert reader.is_within_frame(data, 1_004)
    assert reader.is_within_frame(data[:5], 1_004)
    assert not reader.is_within_frame(data, 1_003)
    assert not reader.is_within_frame(data + b"x", 2_000)
    assert not reader.is_within_frame(data[:4], 2_000), "the header alone"
    assert not reader.is_within_frame(frame(b"") + b"x", 2_000), "a heartbeat, and more"

    assert reader.read(data[:3]) == []
    assert not reader.is_within_frame(data[3:], 2_000), "the length is not known before"
    assert reader.read(data[3:600]) == []
    assert reader.is_within_frame(data[600:], 1_004)
    assert reader.is_within_frame(data[600:700], 1_004)
    assert not reader.is_within_frame(data[600:], 1_003)
    assert not reader.is_within_frame(data[600:] + b"x", 2_000)

    large = frame(bytes(LARGE_FRAME_BYTES))
    reader = FrameReader(LIMIT)
    assert reader.read(large[:50_000]) == []
    assert reader.is_within_frame(large[50_000:], len(large))
    assert not reader.is_within_frame(large[50_000:], len(large) - 1)
    assert not reader.is_within_frame(large[50_000:] + b"x", 2 * len(large))


@pytest.mark.parametrize("size", [1_000, LARGE_FRAME_BYTES])
def test_a_read_leaves_a_frame_unfinished_up_to_its_last_byte_but_one(size: int) -> None:
    reader = FrameReader(LIMIT)
    data = frame(bytes(size))
    assert reader.leaves_unfinished(data[:5])
    assert reader.leaves_unfinished(data[:-1])
    assert not reader.leaves_unfinished(data)
    assert not reader.leaves_unfinished(data[:4]), "the length is the first byte of a payload away"
    assert not reader.leaves_unfinished(frame(b"") + b"x"), "a heartbeat, and more"
    assert not FrameReader(size - 1).leaves_unfinished(data[:-1]), "a refused length"

    assert reader.read(data[:3]) == []
    assert not reader.leaves_unfinished(data[3:-1]), "the length is not known before"
    assert reader.read(data[3:600]) == []
    assert reader.leaves_unfinished(data[600:-1])
    assert not reader.leaves_unfinished(data[600:])
    assert not reader.leaves_unfinished(data[600:] + b"x")


def test_a_reader_knows_that_it_is_empty() -> None:
    reader = FrameReader(100)

    assert reader.is_empty
    assert reader.read(frame(b"abc")) == [b"abc"]
    assert reader.is_empty
    for stored, rest in ((frame(b"abc")[:3], frame(b"abc")[3:]), (frame(b"abc")[:-1], b"c"), (bytes(7), bytes(1))):
        reader.read(stored)
        assert not reader.is_empty
        reader.read(rest[:-1])
        assert not reader.is_empty
        reader.read(rest[-1:])
        assert reader.is_empty
    reader.feed(frame(b"abc"))
    assert not reader.is_empty
    assert reader.next_frame() == b"abc"
    assert reader.next_frame() is None
    assert reader.is_empty
    reader.feed(b"ab")
    reader.clear()
    assert reader.is_empty


def test_runs_of_heartbeats_are_skipped_whatever_stands_around_them() -> None:
    payload = bytes(range(7))
    for count in (255, 256, 257, 1_000):
        stream = frame(payload) + bytes(4 * count) + frame(payload) + bytes(4 * count) + bytes(3)
        reader = FrameReader(LIMIT)

        assert reader.read(stream) == [payload, payload]
        assert (reader.stored_bytes, reader.missing_bytes) == (3, 1)


def test_a_frame_under_way_says_how_much_of_it_is_missing() -> None:
    reader = FrameReader(LIMIT)
    data = frame(bytes(5_000))

    assert reader.missing_bytes == 0
    assert reader.read(data[:1_000]) == []
    assert (reader.stored_bytes, reader.missing_bytes) == (1_000, 4_004)
    assert reader.read(data[1_000:]) == [bytes(5_000)]
    assert (reader.stored_bytes, reader.missing_bytes) == (0, 0)
