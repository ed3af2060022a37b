"""Input of a connection that waits for its turns, in order of arrival: decoded requests first, then bytes.

Bytes stay undecoded, because refusing a request costs as much as deciding it: decoding a flood is already the work that
the flood asks for. Decoded requests wait here only behind a request of the same piece that holds the connection.
"""

from typing import Final

from cmqd_protocol.messages import PublishMessages, SendHalfMessages, SendMessages

PIECE_BYTES: Final = 16 * 1024
"""Input up to this size per read is decoded on arrival. A piece of the smallest requests takes some milliseconds, even
with every request refused; a larger frame is handed to the decoder whole."""


class DeferredInput:
    """Bytes and decoded requests of a connection, in the order of arrival; see the module."""

    __slots__ = ("_data", "_position", "decoded", "had_request")

    def __init__(self) -> None:
        self._data = b""
        self._position = 0
        """Number of bytes already taken from the front."""
        self.decoded: list[object] = []
        """Requests and events that come before the bytes."""
        self.had_request = False
        """A request was in the input that took turns."""

    def __bool__(self) -> bool:
        return bool(self._data or self.decoded)

    @property
    def stored_bytes(self) -> int:
        """Memory of the stored input in bytes."""
        size = len(self._data)
        for event in self.decoded:
            if isinstance(event, SendMessages | PublishMessages | SendHalfMessages):
                size += sum(map(len, event.bodies))
        return size

    def add(self, data: bytes) -> None:
        """Add the bytes of a read."""
        self._data = self._data[self._position :] + data
        self._position = 0

    def take_decoded(self) -> list[object]:
        """Remove and return the requests and events before the bytes."""
        decoded, self.decoded = self.decoded, []
        return decoded

    def take_piece(self, missing_bytes: int) -> bytes:
        """Remove and return the next bytes: a piece, or the missing bytes of a large frame."""
        start = self._position
        stop = start + max(PIECE_BYTES, missing_bytes)
        piece = self._data[start:stop]
        if stop < len(self._data):
            self._position = stop
        else:
            self._data = b""
            self._position = 0
        return piece
