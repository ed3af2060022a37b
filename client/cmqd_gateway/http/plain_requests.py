"""Plain requests: bytes with a single meaning, read by httptools, the parser of Node.js in C. aiohttp reads all other
requests.

A request is plain under these conditions:

- Its whole head arrived at once, in at most ``MAX_HEAD_BYTES``, and no byte follows the request.
- The request is HTTP/1.1 and keeps the connection open.
- Each header stands in the request once, in ASCII, ``Host`` too, and no header has a meaning for the connection or for
  the form of the body, except ``Content-Length``.

Two parsers read these bytes alike, so a request cannot be smuggled between httptools and aiohttp.
"""

from typing import Final, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

HEAD_END: Final = b"\r\n\r\n"
MAX_HEAD_BYTES: Final = 4_096
"""Largest head of a plain request: the lowest value of ``max_head_bytes``, so no plain request is over that limit."""
MAX_BYTES: Final = 24_576
"""Most bytes that are read here. The bytes of a larger request would be parsed twice."""
_MAX_HEADERS: Final = 64
_NOT_PLAIN: Final = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-connection",
        # An early draft of WebSocket, with a body that no header announces; aiohttp refuses the request.
        b"sec-websocket-key1",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers about the connection or the form of the body."""
_KEPT: Final = b"keep-alive"


class PlainRequest(NamedTuple):
    """A plain request; see the module."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    """Names in lower case."""
    body: bytes
    """The part of the body that arrived with the head."""
    missing: int
    """Bytes of the body that have not arrived."""


class PlainRequestReader:
    """Reads plain requests of all connections: no state lasts from a call to the next."""

    def __init__(self) -> None:
        self._parser = HttpRequestParser(self)
        self._forget()

    def _forget(self) -> None:
        self._begun = 0
        self._is_plain = True
        self._is_complete = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def read(self, data: bytes) -> PlainRequest | None:
        """Return the request in these bytes; None if the bytes are not a single plain request, or its beginning."""
        if len(data) > MAX_BYTES:
            return None
        request = self._read(data)
        # Not at the next call: the headers have a secret.
        self._forget()
        if request is None or request.missing:
            # The next bytes are of a different connection: this parser would take the bytes for the rest of this
            # request, for the next request, or for bytes behind the end of the connection.
            self._parser = HttpRequestParser(self)
        return request

    def _read(self, data: bytes) -> PlainRequest | None:
        parser = self._parser
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            return None
        headers, parts = self._headers, self._body
        # A second request, or bytes behind a request that ends the connection, begins a second message.
        if self._begun != 1 or not self._is_plain or b"host" not in headers:
            return None
        if parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        length = headers.get(b"content-length", b"0")
        # Blank lines before and behind a request are allowed, but then the length of the head would not be known.
        head_bytes = data.find(HEAD_END) + len(HEAD_END)
        if head_bytes + len(body) != len(data) or head_bytes > MAX_HEAD_BYTES or len(headers) > _MAX_HEADERS:
            return None
        if not length.isdigit():
            return None
        missing = int(length) - len(body)
        if self._is_complete is (missing > 0):
            return None
        return PlainRequest(parser.get_method(), self._target, headers, body, missing)

    # ------------------------------------------------------------------ called by httptools

    def on_message_begin(self) -> None:
        """Handle the event: a request begins."""
        self._begun += 1

    def on_url(self, url: bytes) -> None:
        """Handle the event: a piece of the target was read."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle the event: a header was read."""
        name = name.lower()
        headers = self._headers
        if name in headers or not value.isascii() or (name in _NOT_PLAIN and not _keeps_open(name, value)):
            self._is_plain = False
        headers[name] = value

    def on_body(self, body: bytes) -> None:
        """Handle the event: a piece of the body was read."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Handle the event: the request is complete."""
        self._is_complete = True


def _keeps_open(name: bytes, value: bytes) -> bool:
    return name == b"connection" and value.lower() == _KEPT
