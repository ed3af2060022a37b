"""Receive counts and first receive times of messages that returned to the queue: eight bytes a message where dense.

A queue of ten million messages may have been received and returned once; an object per message would cost gigabytes. So
the history is kept in chunks of 1,024 positions: a small dict while few messages of the chunk returned, an array of
packed integers for more. Packed: the receive count in the upper 22 bits (counting stops at 4,194,303), the time of the
first receive in milliseconds in the lower 42 bits (enough until the year 2109).
"""

from array import array
from collections.abc import Iterator

from pyroaring import BitMap64

CHUNK = 1024
_TIME_BITS = 42
_TIME_MASK = (1 << _TIME_BITS) - 1
MAX_COUNT = (1 << 22) - 1
_FEW = 64
"""Up to this number, positions are looked up one by one instead of by a walk over chunks."""
_DENSE_FROM = 64
"""A dict entry costs about 100 bytes, the array 8 KiB."""


class ReceiveHistory:
    """Position -> (receive count, first receive time) of messages received at least once and not gone."""

    __slots__ = ("_held", "chunks")

    def __init__(self) -> None:
        self.chunks: dict[int, dict[int, int] | array[int]] = {}
        """Empty while no message returned. Other modules may read the chunks and must not change them."""
        self._held: dict[int, int] = {}
        """Messages in each dense chunk; a chunk without messages is dropped."""

    def get(self, position: int) -> tuple[int, int]:
        """Return (receive count, first receive time in ms); (0, 0) if never received."""
        chunk = self.chunks.get(position // CHUNK)
        if chunk is None:
            return 0, 0
        packed = chunk.get(position % CHUNK, 0) if isinstance(chunk, dict) else chunk[position % CHUNK]
        return packed >> _TIME_BITS, packed & _TIME_MASK

    def at_least(self, count: int) -> BitMap64:
        """Return the positions of messages that were received ``count`` times or more."""
        positions = BitMap64()
        least = min(count, MAX_COUNT) << _TIME_BITS
        for number, chunk in self.chunks.items():
            first = number * CHUNK
            if isinstance(chunk, dict):
                positions.update([first + offset for offset, packed in chunk.items() if packed >= least])
            elif min(chunk) >= least:
                # The usual case after a mass return: tens of millions of messages take a fraction of a second.
                positions.add_range(first, first + CHUNK)
            elif max(chunk) >= least:
                positions.update([first + offset for offset, packed in enumerate(chunk) if packed >= least])
        return positions

    def counts(self, positions: BitMap64) -> Iterator[tuple[int, int]]:
        """Yield (position, receive count) of the messages among ``positions`` that were received at least once."""
        if not self.chunks or not positions:
            return
        if len(positions) <= _FEW:
            for position in positions:
                count, _ = self.get(position)
                if count:
                    yield position, count
            return
        first, last = positions.min() // CHUNK, positions.max() // CHUNK
        within = range(first, last + 1)
        # Walk over the smaller side: expiry asks for a short stretch of a long history, many times a second.
        candidates = list(self.chunks) if len(self.chunks) < len(within) else within
        for number in candidates:
            if number not in self.chunks or number not in within:
                continue
            chunk = self.chunks[number]
            for offset, packed in chunk.items() if isinstance(chunk, dict) else enumerate(chunk):
                position = number * CHUNK + offset
                if packed and position in positions:
                    yield position, packed >> _TIME_BITS

    def set(self, position: int, count: int, first_receive_ms: int) -> None:
        """Note that the message was received ``count`` times."""
        number, offset = divmod(position, CHUNK)
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = self.chunks[number] = {}
        packed = min(count, MAX_COUNT) << _TIME_BITS | first_receive_ms
        if not isinstance(chunk, dict):
            self._held[number] += not chunk[offset]
            chunk[offset] = packed
            return
        chunk[offset] = packed
        if len(chunk) >= _DENSE_FROM:
            dense = array("Q", bytes(8 * CHUNK))
            for key, value in chunk.items():
                dense[key] = value
            self.chunks[number] = dense
            self._held[number] = len(chunk)

    def discard(self, position: int) -> None:
        """Forget a message that is gone."""
        number, offset = divmod(position, CHUNK)
        chunk = self.chunks.get(number)
        if chunk is None:
            return
        if isinstance(chunk, dict):
            chunk.pop(offset, None)
            if not chunk:
                del self.chunks[number]
        elif chunk[offset]:
            chunk[offset] = 0
            self._held[number] -= 1
            if not self._held[number]:
                del self.chunks[number], self._held[number]

    def drop_below(self, floor: int) -> None:
        """Forget messages below ``floor``."""
        if not self.chunks:
            return
        first, offset = divmod(floor, CHUNK)
        for number in [number for number in self.chunks if number < first]:
            del self.chunks[number]
            self._held.pop(number, None)
        if first in self.chunks:
            for lower in range(offset):
                self.discard(first * CHUNK + lower)

    def entries(self) -> list[tuple[int, bytes]]:
        """Return (first position of a chunk, content) for a checkpoint.

        The content is a full array of packed integers (8 KiB) for a dense chunk, else pairs of offset and packed
        integer (always shorter); little-endian, 64 bits each.
        """
        entries: list[tuple[int, bytes]] = []
        for number, chunk in self.chunks.items():
            if isinstance(chunk, dict):
                content = array("Q", (value for pair in chunk.items() for value in pair))
            else:
                content = chunk
            entries.append((number * CHUNK, content.tobytes()))
        return entries

    def load(self, first_position: int, content: bytes) -> None:
        """Load an entry of a checkpoint."""
        numbers = array("Q")
        numbers.frombytes(content)
        if len(numbers) == CHUNK:
            self.chunks[first_position // CHUNK] = numbers
            self._held[first_position // CHUNK] = CHUNK - numbers.count(0)
        else:
            self.chunks[first_position // CHUNK] = dict(zip(numbers[::2], numbers[1::2], strict=True))
