"""Frames: how messages are told apart in a stream of bytes.

     0               4                    4 + length
     +---------------+-------------------------+
     | length (u32)  | payload (msgpack array) |      all integers big-endian
     +---------------+-------------------------+

A frame of length 0 is a heartbeat and carries nothing. The preamble that comes before the first frame:

     0         4           6           8
     +---------+-----------+-----------+
     |  "CMQD" | u16       | u16       |      client: highest version, lowest version
     +---------+-----------+-----------+      server: chosen version or 0, its highest if it chose 0

The reader's contract: ``read`` what the socket gave and get its frames, or ``feed`` it and take them one by one. A byte
is copied at most three times (kept as part of an incomplete frame, joined with the rest, sliced out as payload), so n
bytes cost O(n) however they were cut. Only bytes that arrived are ever stored: a length larger than ``limit`` is
refused when its four bytes are seen, and a permitted one reserves nothing.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from cmqd_protocol.limits import HEADER_BYTES, LARGE_PAYLOAD_BYTES, MAGIC

_LENGTH: Final = Struct(">I")
_PREAMBLE: Final = Struct(">4sHH")
_unpack_length = _LENGTH.unpack_from

HEARTBEAT: Final = _LENGTH.pack(0)

_RUNS: Final = bytes(1024), bytes(64)
"""Runs of heartbeats, each skipped by one comparison; the shorter one for the end of a piece."""

header: Final[Callable[[int], bytes]] = _LENGTH.pack
"""The four bytes before a payload of so many bytes."""


def frame(payload: bytes) -> bytes:
    """A whole frame."""
    return header(len(payload)) + payload


def encode_preamble(first: int, second: int) -> bytes:
    """A preamble; see the module for what the two numbers mean from either side."""
    return _PREAMBLE.pack(MAGIC, first, second)


def decode_preamble(data: bytes) -> tuple[int, int] | None:
    """The two numbers of a preamble, or None if the magic is not ours."""
    magic, first, second = _PREAMBLE.unpack(data)
    return (first, second) if magic == MAGIC else None


class FrameReader:
    """Cuts a stream into frames, whatever the pieces it comes in.

    Invariant: what is stored is less than one frame of at most ``limit`` bytes, beyond what one ``feed`` brought.
    """

    __slots__ = ("_data", "_need", "_partial", "_position", "limit", "refused_length")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Largest payload that is accepted; may be changed between frames."""
        self.refused_length = 0
        """The length that was over the limit, once there was one; nothing is read after it."""
        self._data = b""
        self._position: int = 0
        self._partial = bytearray()
        # What must be there before looking again is worth while: 4 for a header, or a whole frame.
        self._need = HEADER_BYTES

    @property
    def stored_bytes(self) -> int:
        """Bytes that were fed and not yet taken."""
        return len(self._partial) + len(self._data) - self._position

    @property
    def missing_bytes(self) -> int:
        """Bytes that complete the unfinished frame, or its header while the length is not known; 0 between frames."""
        partial = self._partial
        return self._need - len(partial) if partial else 0

    def clear(self) -> None:
        """Free the stored bytes: the stream has ended."""
        self._data = b""
        self._position = 0
        self._partial = bytearray()
        self._need = HEADER_BYTES

    def feed(self, data: bytes) -> None:
        """Add what was read, to be taken piece by piece (``take``, ``next_frame``): while the limit may change."""
        partial = self._partial
        if partial:
            if len(partial) + len(data) < self._need:
                partial += data
                return
            data = b"".join((partial, data))
            self._partial = bytearray()
        elif self._position < len(self._data):
            data = self._data[self._position :] + data
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes | None:
        """The next ``count`` bytes, unframed; None while there are fewer."""
        data, start = self._data, self._position
        if len(data) - start < count:
            if data:
                self._keep(count)
            return None
        self._position = start + count
        return data[start : start + count]

    def peek(self, count: int) -> bytes:
        """At most ``count`` bytes of what was fed and not yet taken."""
        return bytes(self._partial[:count]) or self._data[self._position : self._position + count]

    def next_frame(self) -> bytes | None:
        """The payload of the next frame, heartbeats skipped; None when there is no complete one."""
        data, position, size = self._data, self._position, len(self._data)
        if not size:
            return None
        while (start := position + HEADER_BYTES) <= size:
            length: int = _unpack_length(data, position)[0]
            if length > self.limit:
                self.refused_length = length
                return None
            if (stop := start + length) > size:
                self._position = position
                self._keep(HEADER_BYTES + length)
                return None
            position = stop
            if length:
                self._position = position
                return data[start:stop]
        self._position = position
        self._keep(HEADER_BYTES)
        return None

    def lone_frame(self, data: bytes) -> bytes | None:
        """The payload if ``data`` is exactly one frame, not empty and not large, and nothing is stored; else None, and
        nothing is taken.
        """
        size = len(data)
        if size > HEADER_BYTES and not self._partial and not self._data:
            length: int = _unpack_length(data)[0]
            if length == size - HEADER_BYTES and length <= LARGE_PAYLOAD_BYTES:
                return data[HEADER_BYTES:]
        return None

    def read(self, data: bytes) -> list[bytes]:
        """Feed, and take the payloads of all complete frames, heartbeats left out; then look at ``refused_length``.

        The hot path: most reads hold whole frames and nothing is left of the read before, so nothing is stored.
        """
        if self._partial or self._data:
            self.feed(data)
            data, self._data = self._data, b""
        size, limit = len(data), self.limit
        if size > HEADER_BYTES and _unpack_length(data)[0] == size - HEADER_BYTES <= limit:
            # Exactly one frame: what comes from a peer that waits for each answer. Saves a third.
            return [data[HEADER_BYTES:]]
        found: list[bytes] = []
        append = found.append
        position, need = 0, HEADER_BYTES
        while (start := position + HEADER_BYTES) <= size:
            length: int = _unpack_length(data, position)[0]
            if not 0 < length <= limit:
                if length:
                    self.refused_length = length
                    return found
                position = start
                for heartbeats in _RUNS:
                    while data.startswith(heartbeats, position):
                        position += len(heartbeats)
                continue
            stop = start + length
            if stop > size:
                need = HEADER_BYTES + length
                break
            append(data[start:stop])
            position = stop
        if position < size:
            self._partial += memoryview(data)[position:]
            self._need = need
        return found

    def _keep(self, need: int) -> None:
        """Store the incomplete rest, so that no reference to the (much larger) read buffer stays behind."""
        if self._position < len(self._data):
            self._partial += memoryview(self._data)[self._position :]
            self._need = need
        self._data = b""
        self._position = 0

    def __repr__(self) -> str:
        return f"<FrameReader limit={self.limit} held={self.stored_bytes} need={self._need}>"
