"""An endpoint of the push scenario: parsing of the received bytes."""

import pytest

from cmqd_bench.http.receiver import MIN_STAMPED, split_requests, stamp_in, stamped

HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\nx-cmq-message-id: 1\r\n\r\n"


def post(body: bytes) -> bytes:
    return HEAD % len(body) + body


def test_requests_are_cut_wherever_the_bytes_were_split():
    stream = post(b"one") + post(b"") + post(b"three")

    for cut in range(len(stream)):
        first, rest = split_requests(stream[:cut])
        second, rest = split_requests(rest + stream[cut:])

        assert [body for _, body in first + second] == [b"one", b"", b"three"]
        assert all(b"x-cmq-message-id" in head for head, _ in first + second)
        assert rest == b""


def test_a_request_that_does_not_say_how_long_it_is_is_refused():
    with pytest.raises(ValueError, match="Content-Length"):
        split_requests(b"POST / HTTP/1.1\r\nHost: here\r\n\r\n")


def test_the_time_is_found_in_the_json_around_a_body():
    body = stamped(123_456_789, 64)

    assert len(body) == 64
    assert stamp_in(body) == 123_456_789
    assert stamp_in(b'{"topicName":"push","msgBody":"' + body + b'"}') == 123_456_789
    assert stamp_in(b"nothing") is None
    assert len(stamped(1, MIN_STAMPED)) == MIN_STAMPED
