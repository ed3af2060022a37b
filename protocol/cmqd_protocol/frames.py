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

A large frame has memory of its own, some times as large as the bytes that have arrived (``RESERVED_FACTOR``). ``read``
copies bytes into the memory. A shell that reads into the memory itself (``space``, ``filled``) saves that copy.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeAlias

from cmqd_protocol.limits import HEADER_BYTES, MAGIC

Payload: TypeAlias = bytes | memoryview
"""The payload of a frame: a view, if the frame is large."""

_LENGTH: Final = Struct(">I")
_PREAMBLE: Final = Struct(">4sHH")

length_at: Final[Callable[..., tuple[int]]] = _LENGTH.unpack_from
"""Decode a header: ``(data, position=0)`` to a tuple with the length of the payload."""

HEARTBEAT: Final = _LENGTH.pack(0)

_RUNS: Final = bytes(1024), bytes(64)
"""Runs of heartbeats, long and short. A single comparison skips a run; the short run serves the end of a piece."""

LARGE_FRAME_BYTES: Final = 128 * 1024
"""Frames from this size on, with the header, arrive in memory of their own, into which a shell can read."""

RESERVED_FACTOR: Final = 8
LEAST_ARRIVED_BYTES: Final = 16 * 1024
"""Memory of a large frame, by the bytes that have arrived (at least this number), up to its length. Up to twice as much
if another frame had the memory before."""

SPARE_BYTES: Final = 1280 * 1024
MAX_SPARES: Final = 8
"""Size of a frame's memory up to which the memory serves another frame, and number of such spares."""

_spares: Final[list[bytearray]] = []
"""Memory of frames that were taken up. New memory would be filled with zeros first, at the cost of a copy."""

VIEWED_FRAME_BYTES: Final = 8 * 1024
"""A read that is exactly a frame, from this size on, is not copied: its payload is a view of the read."""

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

    __slots__ = ("_buffer", "_length", "have")

    def __init__(self, length: int, data: memoryview) -> None:
        """Begin a payload of ``length`` bytes with ``data``, fewer than all."""
        self._length = length
        self._buffer = bytearray()
        self.have = 0
        """Bytes that have arrived."""
        self.add(data)

    @property
    def missing(self) -> int:
        """Bytes that have not arrived."""
        return self._length - self.have

    @property
    def reserved(self) -> int:
        """Memory of the payload."""
        return len(self._buffer)

    def add(self, data: Payload) -> None:
        """Add bytes, not more than are missing."""
        have = self.have + len(data)
        if have > len(self._buffer):
            self._reserve(have)
        # Through a view: the assignment to a bytearray would copy ``data`` first.
        memoryview(self._buffer)[self.have : have] = data
        self.have = have

    def space(self) -> memoryview:
        """Return the memory of the next bytes, at least one if any are missing; ``filled`` tells how many were written.

        Only one of the views may be in use.
        """
        if self.have == len(self._buffer):
            self._reserve(self.have)
        return memoryview(self._buffer)[self.have : self._length]

    def filled(self, count: int) -> None:
        """Take note of bytes that were written into ``space``."""
        self.have += count

    def whole(self) -> memoryview:
        """Return the payload, of which no byte is missing."""
        return memoryview(self._buffer)[: self._length]

    def reuse(self) -> None:
        """Let another frame have the memory. No view is used any more."""
        if len(self._buffer) <= SPARE_BYTES and len(_spares) < MAX_SPARES:
            _spares.append(self._buffer)

    def _reserve(self, have: int) -> None:
        size = min(self._length, RESERVED_FACTOR * max(have, LEAST_ARRIVED_BYTES))
        try:
            larger = _spares.pop()
        except IndexError:
            larger = bytearray()
        if not size <= len(larger) <= 2 * size:
            larger = bytearray(size)
        memoryview(larger)[: self.have] = memoryview(self._buffer)[: self.have]
        self._buffer = larger


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
    def reserved_bytes(self) -> int:
        """Memory of the stored bytes, and of the next bytes of a large frame."""
        return self.stored_bytes if self._large is None else HEADER_BYTES + self._large.reserved

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

    def read(self, data: bytes) -> Sequence[Payload]:
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
            return [data[HEADER_BYTES:] if size < VIEWED_FRAME_BYTES else memoryview(data)[HEADER_BYTES:]]
        found: list[Payload] = []
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
                self._large = LargePayload(need - HEADER_BYTES, memoryview(data)[position + HEADER_BYTES :])
            else:
                self._partial += memoryview(data)[position:]
                self._need = need
        return found

    def _read_large(self, large: "LargePayload", data: bytes) -> Sequence[Payload]:
        missing = large.missing
        if len(data) < missing or not data:
            large.add(data)
            return []
        self._large = None
        self.is_empty = True
        if len(data) == missing:
            large.add(data)
            return [large.whole()]
        large.add(memoryview(data)[:missing])
        return [large.whole(), *self.read(data[missing:])]

    def space(self) -> memoryview:
        """Return the memory of the next bytes of the large frame that has begun; ``filled`` tells how many were
        written.
        """
        assert self._large is not None
        return self._large.space()

    def filled(self, count: int) -> bool:
        """Take note of bytes that were written into ``space``; return True if the frame is complete, for
        ``take_filled``.
        """
        assert self._large is not None
        self._large.filled(count)
        return not self._large.missing

    def take_filled(self) -> "LargePayload | None":
        """Return the payload of the large frame that is complete, or None if no frame is."""
        large = self._large
        if large is None or large.missing:
            return None
        self._large = None
        self.is_empty = True
        return large

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
