"""Frames: the boundaries of messages in a stream of bytes.

     0               4                    4 + length
     +---------------+-------------------------+
     | length (u32)  | payload (msgpack array) |      all integers big-endian
     +---------------+-------------------------+

A frame of length 0 is a heartbeat and has no payload. The preamble precedes the first frame:

     0         4           6           8
     +---------+-----------+-----------+
     |  "CMQD" | u16       | u16       |      client: highest version, lowest version
     +---------+-----------+-----------+      server: chosen version or 0, highest version with 0

Contract of the reader: pass the bytes of a socket to ``read``, which returns all complete frames, or to ``feed``, and
take the frames singly. A byte is copied at most three times (stored in an incomplete frame, joined with the rest,
sliced out as payload), so n bytes cost O(n) for any division into pieces. The reader stores only bytes that arrived: a
length larger than ``limit`` is refused at the header, and a permitted length reserves no memory.
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
"""Runs of heartbeats, long and short. A single comparison skips a run; the short run serves the end of a piece."""

header: Final[Callable[[int], bytes]] = _LENGTH.pack
"""Encode the length of a payload as the header of its frame."""


def frame(payload: bytes) -> bytes:
    """Return the frame of a payload."""
    return header(len(payload)) + payload


def encode_preamble(first: int, second: int) -> bytes:
    """Encode a preamble. The module describes the two numbers of client and server."""
    return _PREAMBLE.pack(MAGIC, first, second)


def decode_preamble(data: bytes) -> tuple[int, int] | None:
    """Return the two numbers of a preamble, or None if the magic is not ``CMQD``."""
    magic, first, second = _PREAMBLE.unpack(data)
    return (first, second) if magic == MAGIC else None


class FrameReader:
    """Cuts a stream of bytes into frames.

    Invariant: between calls of ``read`` the stored bytes are less than a frame of at most ``limit`` bytes. ``feed``
    stores its data as well.
    """

    __slots__ = ("_data", "_need", "_partial", "_position", "limit", "refused_length")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Largest accepted payload; may change between frames."""
        self.refused_length = 0
        """First length over the limit, else 0. The reader stops at this header."""
        self._data = b""
        self._position: int = 0
        self._partial = bytearray()
        # Bytes needed before the next attempt to decode: a header, or a whole frame.
        self._need = HEADER_BYTES

    @property
    def stored_bytes(self) -> int:
        """Number of bytes that were fed and not yet taken."""
        return len(self._partial) + len(self._data) - self._position

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that complete the unfinished frame, or its header while the length is unknown, else 0."""
        partial = self._partial
        return self._need - len(partial) if partial else 0

    def clear(self) -> None:
        """Free the stored bytes at the end of the stream."""
        self._data = b""
        self._position = 0
        self._partial = bytearray()
        self._need = HEADER_BYTES

    def feed(self, data: bytes) -> None:
        """Store the bytes of a read for ``take`` and ``next_frame``, used while ``limit`` may change between frames."""
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
        """Return the next ``count`` bytes without framing, or None if fewer bytes are stored."""
        data, start = self._data, self._position
        if len(data) - start < count:
            if data:
                self._keep(count)
            return None
        self._position = start + count
        return data[start : start + count]

    def peek(self, count: int) -> bytes:
        """Return up to ``count`` of the stored bytes, without taking the bytes."""
        return bytes(self._partial[:count]) or self._data[self._position : self._position + count]

    def next_frame(self) -> bytes | None:
        """Return the payload of the next frame, or None if the frame is incomplete. Heartbeats are skipped."""
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
        """Return the payload if ``data`` is exactly a frame, not empty and not large, and no bytes are stored.

        Otherwise return None and leave the reader unchanged; ``data`` still has to be read.
        """
        size = len(data)
        if size > HEADER_BYTES and not self._partial and not self._data:
            length: int = _unpack_length(data)[0]
            if length == size - HEADER_BYTES and length <= LARGE_PAYLOAD_BYTES:
                return data[HEADER_BYTES:]
        return None

    def read(self, data: bytes) -> list[bytes]:
        """Return the payloads of all complete frames, without heartbeats. Check ``refused_length`` afterwards.

        Hot path: most reads hold whole frames and no bytes are left of the previous read, so no bytes are stored.
        """
        if self._partial or self._data:
            self.feed(data)
            data, self._data = self._data, b""
        size, limit = len(data), self.limit
        if size > HEADER_BYTES and _unpack_length(data)[0] == size - HEADER_BYTES <= limit:
            # Exactly a single frame, from a peer that waits for every reply. This path saves a third of the time.
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
        """Copy the incomplete rest, so that no reference keeps the (much larger) read buffer alive."""
        if self._position < len(self._data):
            self._partial += memoryview(self._data)[self._position :]
            self._need = need
        self._data = b""
        self._position = 0

    def __repr__(self) -> str:
        return f"<FrameReader limit={self.limit} held={self.stored_bytes} need={self._need}>"
