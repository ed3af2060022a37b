"""Plain requests: the bytes that are one, and the bytes that are left to aiohttp."""

import pytest

from support.cases import each_case

pytest.importorskip("httptools")
from cmqd_gateway.http.plain_requests import MAX_HEAD_BYTES, PlainRequestReader

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"


def changed(old: bytes, new: bytes) -> bytes:
    """Return a plain request with a change."""
    assert old in HEAD
    return HEAD.replace(old, new) + b"abc"


PLAIN = {
    "a body": HEAD + b"abc",
    "a half body": HEAD + b"a",
    "no body yet": HEAD,
    "no length": b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a blank line before": b"\r\n" + HEAD + b"abc",
    "a tab in a value": changed(b": x", b":\tx\ty"),
    "an empty value": changed(b"Host: x", b"Host: x\r\nX-Empty:"),
    "an open connection": changed(b"Host: x", b"Host: x\r\nConnection: Keep-Alive"),
}

NOT_PLAIN = {
    "nothing": b"",
    "a half head": HEAD[:-2],
    "a second request": HEAD + b"abc" + HEAD,
    "the begin of a second request": HEAD + b"abcP",
    "a second request that ends in a header": HEAD + b"abc" + HEAD[:30],
    "a blank line behind": HEAD + b"abc\r\n",
    "two blank lines before": b"\r\n\r\n" + HEAD + b"abc",
    "HTTP/1.0": changed(b"1.1", b"1.0"),
    "HTTP/0.9": b"GET /a\r\n\r\n",
    "no host": changed(b"Host: x\r\n", b""),
    "two hosts": changed(b"Host: x", b"Host: x\r\nhost: y"),
    "two lengths": changed(b"Content-Length: 3", b"Content-Length: 3\r\nContent-Length: 3"),
    "a list of lengths": changed(b": 3", b": 3, 3"),
    "a length with a sign": changed(b": 3", b": +3"),
    "a negative length": changed(b": 3", b": -3"),
    "a hexadecimal length": changed(b": 3", b": 0x3"),
    "a huge length": changed(b": 3", b": 99999999999999999999999999"),
    "chunks": changed(b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "chunks and a length": changed(b"Host: x", b"Host: x\r\nTransfer-Encoding: chunked"),
    "a disguised coding": changed(b"Host: x", b"Host: x\r\nTransfer-Encoding: xchunked"),
    "a closed connection": changed(b"Host: x", b"Host: x\r\nConnection: close"),
    "a header of the connection": changed(b"Host: x", b"Host: x\r\nConnection: keep-alive, x-secret"),
    "an upgrade": changed(b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: h2c"),
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a wait for continue": changed(b"Host: x", b"Host: x\r\nExpect: 100-continue"),
    "a compressed body": changed(b"Host: x", b"Host: x\r\nContent-Encoding: gzip"),
    "a trailer": changed(b"Host: x", b"Host: x\r\nTrailer: x"),
    "a draft of WebSocket": changed(b"Host: x", b"Host: x\r\nSec-WebSocket-Key1: x"),
    "a folded line": changed(b"Host: x", b"Host: x\r\n y"),
    "a blank before the colon": changed(b"Host:", b"Host :"),
    "a NUL": changed(b": x", b": x\x00"),
    "a bare CR": changed(b": x", b": x\rContent-Length: 5"),
    "a bare LF": changed(b": x\r\n", b": x\n"),
    "bytes that are no text": changed(b": x", b": \xff"),
    "a strange method": changed(b"POST", b"P\x00ST"),
    "a large head": changed(b"Host: x", b"Host: x\r\nX-Large: " + b"x" * MAX_HEAD_BYTES),
    "many headers": changed(b"Host: x", b"Host: x" + b"".join(b"\r\nX-%d: x" % number for number in range(70))),
}


@each_case("data", PLAIN.values(), ids=PLAIN)
def test_a_plain_request_is_read(data: bytes):
    request = PlainRequestReader().read(data)

    assert request is not None
    assert (request.target, request.headers[b"host"].strip()[:1]) == (b"/a", b"x")
    assert len(request.body) + request.missing == int(request.headers.get(b"content-length", b"0"))


@each_case("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_bytes_are_left_to_aiohttp(data: bytes):
    assert PlainRequestReader().read(data) is None


@each_case("times", [1, 2])
@each_case("data", [*PLAIN.values(), *NOT_PLAIN.values()], ids=[*PLAIN, *NOT_PLAIN])
def test_a_request_is_read_alike_after_other_bytes(data: bytes, times: int):
    reader = PlainRequestReader()
    for _ in range(times):
        reader.read(data)

    request = reader.read(HEAD + b"abc")

    assert request == PlainRequestReader().read(HEAD + b"abc")
    assert request is not None
