"""Input of a connection that waits for its turns, in order of arrival: decoded requests first, then bytes.

Bytes stay undecoded, because refusing a request costs as much as deciding it: decoding a flood is already the work that
the flood asks for. Decoded requests wait here only behind a request of the same piece that holds the connection or
ended its turn.
"""

from typing import Final

from cmqd_protocol.limits import HEADER_BYTES
from cmqd_protocol.messages import PublishMessages, SendHalfMessages, SendMessages

PIECE_BYTES: Final = 16 * 1024
"""Input up to this size per read is decoded on arrival. A piece of the smallest requests takes some milliseconds, even
with every request refused; a larger frame is handed to the decoder whole."""

LONE_FRAME_BYTES: Final = 80 * 1024
"""Size of a frame with its header up to which the frame is taken up on arrival, if no connection takes turns: a body of
64 KiB, the default limit, or a batch of 64 KiB, each with headers. The one request takes 0.1 ms, and a deferral, with
its turns and its rest, would cost as much."""

REQUEST_BYTES: Final = 256
"""Memory of a decoded request without its bodies. The smallest requests of a piece take 16 KiB as bytes, and up to 230
KiB decoded, and a turn that ends by time leaves most of them here."""


class DeferredInput:
    """Bytes and decoded requests of a connection, in the order of arrival; see the module."""

    __slots__ = ("_data", "_position", "decoded", "had_request", "is_filled", "is_large", "is_lone")

    def __init__(self) -> None:
        self._data = b""
        self._position = 0
        """Number of bytes already taken from the front."""
        self.decoded: list[object] = []
        """Requests and events that come before the bytes."""
        self.had_request = False
        """A request was in the input that took turns."""
        self.is_filled = False
        """Bytes were read into the memory of a large frame: the protocol object has them."""
        self.is_lone = False
        """The input is a single read within a frame, as the connection has found: at most one request ends in it."""
        self.is_large = False
        """More than a piece waits, or has waited since input was last taken up on arrival."""

    def __bool__(self) -> bool:
        return bool(self._data or self.decoded or self.is_filled)

    @property
    def is_late(self) -> bool:
        """True if all of the input would have been taken up on arrival, if it had not come late."""
        return not (self.is_large or self.decoded or self.is_filled)

    @property
    def stored_bytes(self) -> int:
        """Memory of the stored input in bytes."""
        size = len(self._data) + REQUEST_BYTES * len(self.decoded)
        for event in self.decoded:
            if isinstance(event, SendMessages | PublishMessages | SendHalfMessages):
                size += sum(map(len, event.bodies))
        return size

    def add(self, data: bytes) -> None:
        """Add the bytes of a read."""
        self._data = self._data[self._position :] + data
        self._position = 0
        self.is_large = self.is_large or len(self._data) > PIECE_BYTES

    def take_decoded(self) -> list[object]:
        """Remove and return the requests and events before the bytes."""
        self.is_large = self.is_large or bool(self.decoded)
        decoded, self.decoded = self.decoded, []
        return decoded

    def take_piece(self, missing_bytes: int, *, at_frame: bool = False) -> bytes:
        """Remove and return the next bytes: a piece, or a large frame as far as the frame has arrived.

        Args:
            missing_bytes: bytes that complete the frame that has begun, 0 between frames.
            at_frame: the bytes are frames, so the next bytes between frames are a header.
        """
        data, start = self._data, self._position
        if at_frame and not missing_bytes and len(data) - start >= HEADER_BYTES:
            missing_bytes = HEADER_BYTES + int.from_bytes(data[start : start + HEADER_BYTES], "big")
        stop = start + max(PIECE_BYTES, missing_bytes)
        # Without a copy if the piece is the whole.
        piece = data[start:stop]
        if stop < len(data):
            self._position = stop
        else:
            self._data = b""
            self._position = 0
        return piece
