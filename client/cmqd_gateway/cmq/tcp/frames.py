"""Frames of CMQ's TCP protocol: two bytes 0, the length of the frame as four bytes, little-endian, and a payload.

The length counts its own six bytes of head. A reader cuts arriving bytes into payloads; the first wrong byte of a head
is an error, so that an HTTP request or a TLS hello at this port ends at once.
"""

from typing import Final

HEAD_BYTES: Final = 6
_LENGTH_AT: Final = 2


class FrameError(Exception):
    """The bytes are no frame, or the frame is longer than the limit; the next frame cannot be found."""


def to_frame(payload: bytes) -> bytes:
    """Return the frame of a payload."""
    return b"\0\0" + (len(payload) + HEAD_BYTES).to_bytes(4, "little") + payload


class FrameReader:
    """Cuts bytes into payloads; see the module.

    reader.feed(data)
    while (payload := reader.next_payload()) is not None: ...
    """

    __slots__ = ("_buffer", "_dropped", "_start", "limit")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        """Longest frame, its head included."""
        self._buffer: bytes | bytearray = b""
        self._start = 0
        """Position of the first byte in the buffer that belongs to no earlier frame."""
        self._dropped = 0
        """Bytes of a dropped frame that have not arrived."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that arrived and are part of no returned payload."""
        return len(self._buffer) - self._start

    @property
    def is_within_frame(self) -> bool:
        """True if a frame has begun and not ended."""
        return bool(self._dropped or self.unread_bytes)

    def feed(self, data: bytes) -> None:
        """Take bytes that arrived."""
        if self._dropped:
            skipped = min(self._dropped, len(data))
            self._dropped -= skipped
            data = data[skipped:]
        if self._start == len(self._buffer):
            # Most reads end with a frame: no byte is copied.
            self._buffer, self._start = data, 0
            return
        if not isinstance(self._buffer, bytearray):
            # A client that sends single bytes would otherwise have the whole frame copied for each.
            self._buffer = bytearray(self._buffer)
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data

    def next_payload(self) -> bytes | None:
        """Return the payload of the next complete frame, None if more bytes are needed.

        Raises:
            FrameError: see there; to be raised again by every later call.
        """
        buffer, start = self._buffer, self._start
        arrived = len(buffer) - start
        if not arrived:
            return None
        if buffer[start] or (arrived > 1 and buffer[start + 1]):
            raise FrameError("the frame does not begin with two bytes 0")
        if arrived < HEAD_BYTES:
            return None
        length = self._length()
        if arrived < length:
            return None
        self._start = start + length
        payload = bytes(buffer[start + HEAD_BYTES : self._start])
        if self._start == len(buffer):
            self._buffer, self._start = b"", 0
        return payload

    def drop_unfinished(self) -> bytes:
        """Drop the frame that has begun, also its bytes that will arrive, and return the bytes of its payload so far.

        The head of the frame must have arrived.
        """
        payload = bytes(self._buffer[self._start + HEAD_BYTES :])
        self._dropped = self._length() - self.unread_bytes
        self._buffer, self._start = b"", 0
        return payload

    def _length(self) -> int:
        first = self._start + _LENGTH_AT
        length = int.from_bytes(self._buffer[first : first + 4], "little")
        if not HEAD_BYTES <= length <= self.limit:
            raise FrameError(f"a frame of {length} bytes; the range is {HEAD_BYTES} to {self.limit}")
        return length
