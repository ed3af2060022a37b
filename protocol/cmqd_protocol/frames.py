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
sliced out as payload), and a byte of a large frame that comes in large reads once, so n bytes cost O(n) for any
division into pieces. The reader stores only bytes that arrived: a length larger than ``limit`` is refused at the
header, and a permitted length reserves no memory.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from cmqd_protocol.limits import HEADER_BYTES, MAGIC

_LENGTH: Final = Struct(">I")
_PREAMBLE: Final = Struct(">4sHH")

length_at: Final[Callable[..., tuple[int]]] = _LENGTH.unpack_from
"""Decode a header: ``(data, position=0)`` to a tuple with the length of the payload."""

HEARTBEAT: Final = _LENGTH.pack(0)

_RUNS: Final = bytes(1024), bytes(64)
"""Runs of heartbeats, long and short. A single comparison skips a run; the short run serves the end of a piece."""

LARGE_FRAME_BYTES: Final = 128 * 1024
"""Frames from this size on, with the header, are kept as the reads that brought them, and joined once."""

KEPT_READ_BYTES: Final = 16 * 1024
"""Smallest read that is kept as it is; smaller reads are joined at once, because each object has a cost of its own."""

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


class LargePayload:
    """The payload of a large frame, as far as it has arrived; see ``LARGE_FRAME_BYTES``."""

    __slots__ = ("_pieces", "_small", "have", "missing")

    def __init__(self, length: int, data: bytes, start: int) -> None:
        """Begin a payload of ``length`` bytes with those of ``data`` from ``start`` on, fewer than all."""
        # Without a copy if the frame begins the read, as usual: else small frames before it would stay in memory.
        first = memoryview(data)[start:] if start <= HEADER_BYTES else data[start:]
        self._pieces: list[bytes | bytearray | memoryview] = [first]
        self._small = bytearray()
        """Small reads since the last piece."""
        self.have = len(first)
        """Bytes that have arrived."""
        self.missing = length - len(first)
        """Bytes that have not, at least 1."""

    def add(self, data: bytes) -> None:
        """Add the bytes of a read, fewer than are missing."""
        if len(data) < KEPT_READ_BYTES:
            self._small += data
        else:
            self._close_small()
            self._pieces.append(data)
        self.have += len(data)
        self.missing -= len(data)

    def join(self, data: bytes | memoryview) -> bytes:
        """Return the payload, which ends with ``data``."""
        self._close_small()
        return b"".join((*self._pieces, data))

    def _close_small(self) -> None:
        if self._small:
            self._pieces.append(self._small)
            self._small = bytearray()


class FrameReader:
    """Cuts a stream of bytes into frames.

    Invariant: between calls of ``read`` the stored bytes are less than a frame of at most ``limit`` bytes. ``feed``
    stores its data as well.
    """

    __slots__ = ("_data", "_large", "_need", "_partial", "_position", "is_empty", "limit", "refused_length")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Largest accepted payload; may change between frames."""
        self.refused_length = 0
        """First length over the limit, else 0. The reader stops at this header."""
        self.is_empty = True
        """True if no bytes are stored, and False at least while bytes are. An attribute and no property, because every
        read of a socket looks at the attribute."""
        self._data = b""
        self._position: int = 0
        self._partial = bytearray()
        self._large: LargePayload | None = None
        """The large frame that has not arrived whole; nothing else is stored beside."""
        # Bytes needed before the next attempt to decode: a header, or a whole frame.
        self._need = HEADER_BYTES

    @property
    def stored_bytes(self) -> int:
        """Number of bytes that were fed and not yet taken."""
        if self._large is not None:
            return HEADER_BYTES + self._large.have
        return len(self._partial) + len(self._data) - self._position

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that complete the unfinished frame, or its header while the length is unknown, else 0."""
        if self._large is not None:
            return self._large.missing
        partial = self._partial
        return self._need - len(partial) if partial else 0

    def is_within_frame(self, data: bytes, most: int) -> bool:
        """Return True if ``data`` begins or continues a frame, and no byte is behind the end of the frame.

        False also for a frame of more than ``most`` bytes with its header, and while the header is incomplete.
        """
        large = self._large
        if large is not None:
            return len(data) <= large.missing and HEADER_BYTES + large.have + large.missing <= most
        have = len(self._partial)
        if have:
            return self._need > HEADER_BYTES and have + len(data) <= self._need <= most
        if len(data) <= HEADER_BYTES or self._data:
            return False
        return len(data) <= HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big") <= most

    def leaves_unfinished(self, data: bytes) -> bool:
        """Return True if ``data`` begins or continues a frame, and ends before the end of the frame."""
        missing = self.missing_bytes
        if missing or self._data:
            return len(data) < missing
        if len(data) <= HEADER_BYTES:
            return False
        length = length_at(data)[0]
        return len(data) - HEADER_BYTES < length <= self.limit

    def clear(self) -> None:
        """Free the stored bytes at the end of the stream."""
        self._data = b""
        self._position = 0
        self._partial = bytearray()
        self._large = None
        self._need = HEADER_BYTES
        self.is_empty = True

    def feed(self, data: bytes) -> None:
        """Store the bytes of a read for ``take`` and ``next_frame``, used while ``limit`` may change between frames.

        Not to be called while ``read`` has the beginning of a large frame.
        """
        assert self._large is None
        partial = self._partial
        self.is_empty = False
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
            length: int = length_at(data, position)[0]
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

    def read(self, data: bytes) -> list[bytes]:
        """Return the payloads of all complete frames, without heartbeats. Check ``refused_length`` afterwards.

        Hot path: most reads hold whole frames and no bytes are left of the previous read, so no bytes are stored.
        """
        if not self.is_empty:
            if self._large is not None:
                return self._read_large(self._large, data)
            self.feed(data)
            data, self._data = self._data, b""
            self.is_empty = not self._partial
        size, limit = len(data), self.limit
        if size > HEADER_BYTES and length_at(data)[0] == size - HEADER_BYTES <= limit:
            # Exactly a single frame, from a peer that waits for every reply. This path saves a third of the time.
            return [data[HEADER_BYTES:]]
        found: list[bytes] = []
        append = found.append
        position, need = 0, HEADER_BYTES
        while (start := position + HEADER_BYTES) <= size:
            length: int = length_at(data, position)[0]
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
            self.is_empty = False
            if need >= LARGE_FRAME_BYTES:
                self._large = LargePayload(need - HEADER_BYTES, data, position + HEADER_BYTES)
            else:
                self._partial += memoryview(data)[position:]
                self._need = need
        return found

    def _read_large(self, large: "LargePayload", data: bytes) -> list[bytes]:
        missing = large.missing
        if len(data) < missing:
            large.add(data)
            return []
        self._large = None
        self.is_empty = True
        if len(data) == missing:
            return [large.join(data)]
        return [large.join(memoryview(data)[:missing]), *self.read(data[missing:])]

    def _keep(self, need: int) -> None:
        """Copy the incomplete rest, so that no reference keeps the (much larger) read buffer alive."""
        if self._position < len(self._data):
            self._partial += memoryview(self._data)[self._position :]
            self._need = need
        self._data = b""
        self._position = 0
        self.is_empty = not self._partial

    def __repr__(self) -> str:
        need = self._need if self._large is None else self.stored_bytes + self._large.missing
        return f"<FrameReader limit={self.limit} held={self.stored_bytes} need={need}>"
