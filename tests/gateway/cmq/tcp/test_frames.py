"""Frames of CMQ's TCP protocol: cut at any byte, too long, or none at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd_gateway.cmq.tcp.frames import FrameError, FrameReader, to_frame
from support.cases import each_case
from support.gateway.tcp_frames import REQUESTS


def read_all(reader: FrameReader, *pieces: bytes) -> list[bytes]:
    """Return the payloads that a reader finds in pieces."""
    payloads: list[bytes] = []
    for piece in pieces:
        reader.feed(piece)
        while (payload := reader.next_payload()) is not None:
            payloads.append(payload)
    return payloads


def test_a_frame_has_two_bytes_0_and_its_whole_length() -> None:
    assert to_frame(b"abc") == b"\0\0\x09\0\0\0abc"


def test_every_cut_of_recorded_frames_gives_the_same_payloads() -> None:
    payloads = [bytes.fromhex(text) for text in REQUESTS.values()]
    stream = b"".join(map(to_frame, payloads))

    for cut in range(len(stream)):
        assert read_all(FrameReader(4_096), stream[:cut], stream[cut:]) == payloads
    reader = FrameReader(4_096)
    assert read_all(reader, *(bytes([byte]) for byte in stream)) == payloads
    assert not reader.is_within_frame
    assert reader.unread_bytes == 0


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_pieces_of_any_size_give_the_same_payloads(payloads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(to_frame, payloads))
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]

    assert read_all(FrameReader(46), *pieces, stream) == payloads


NO_FRAMES = {
    "an HTTP request": b"G",
    "a TLS hello": b"\x16",
    "the second byte": b"\0\1",
    "a length of 5": b"\0\0\5\0\0\0",
    "a length of 0": b"\0\0\0\0\0\0",
    "a length above the limit": b"\0\0\x65\0\0\0",
    "a length of 4 GiB": b"\0\0\xff\xff\xff\xff",
}


@each_case("data", NO_FRAMES.values(), ids=NO_FRAMES)
def test_bytes_that_are_no_frame_are_an_error_as_soon_as_they_show(data: bytes) -> None:
    reader = FrameReader(100)
    reader.feed(to_frame(b"first") + data)

    assert reader.next_payload() == b"first"
    for _ in range(2):
        with pytest.raises(FrameError):
            reader.next_payload()


def test_the_limit_counts_the_head_and_may_change_between_frames() -> None:
    reader = FrameReader(20)
    reader.feed(to_frame(b"x" * 14) + to_frame(b"y" * 94))
    assert reader.next_payload() == b"x" * 14

    reader.limit = 100

    assert reader.next_payload() == b"y" * 94


@pytest.mark.parametrize("cut", [6, 7, 50, 105])
def test_an_unfinished_frame_can_be_dropped_and_the_next_is_found(cut: int) -> None:
    dropped, following = to_frame(bytes(range(100))), to_frame(b"next")
    reader = FrameReader(1_000)
    assert read_all(reader, to_frame(b"first") + dropped[:cut]) == [b"first"]

    assert reader.drop_unfinished() == bytes(range(cut - 6))

    assert reader.unread_bytes == 0
    assert reader.is_within_frame
    assert read_all(reader, dropped[cut:-1]) == []
    assert read_all(reader, dropped[-1:] + following[:3], following[3:]) == [b"next"]
    assert not reader.is_within_frame
