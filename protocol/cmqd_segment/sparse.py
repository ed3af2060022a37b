"""The sparse index of a segment: the approximate row of each message, at 16 bytes per 256 messages.

An entry (position, LSN) gives the position of the queue's first message in that row. To find a message, take the last
entry at or below its position and read the ``queues`` column from that row on, up to the row of the next entry. A queue
gets an entry for its first row in the segment, then whenever 256 messages of the queue or 256 KiB of log have passed
since the last entry. That is near enough to read on from, without a cost per message (an SQL index on queue and
position would cost five times the log's bytes at small batches).
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cmqd_segment.rows import QueueSummary
from cmqd_segment.schema import SegmentFormatError

MESSAGES_PER_ENTRY = 256
BYTES_PER_ENTRY = 256 * 1024


class LsnRange(NamedTuple):
    """Rows ``first`` to ``last``, both included."""

    first: int
    last: int


class SparseQueue:
    """Entries of one queue in one segment, and the range of its positions in the segment."""

    __slots__ = ("_due_offset", "_due_position", "bytes", "first_position", "lsns", "positions", "stop_position")

    def __init__(self, first_position: int) -> None:
        self.first_position = first_position
        self.stop_position = first_position
        self.bytes = 0
        """Bytes of bodies."""
        self.positions = array("Q")
        self.lsns = array("Q")
        self._due_position = first_position
        self._due_offset = 0

    @property
    def messages(self) -> int:
        """Number of messages of the queue in the segment."""
        return self.stop_position - self.first_position

    def add(self, lsn: int, first_position: int, stop_position: int, size: int, offset: int) -> None:
        """Note a row with messages of this queue, at ``offset`` bytes of the segment's log."""
        if first_position >= self._due_position or offset >= self._due_offset:
            # In this order: the storage process reads pages while its commit thread counts rows, and finds the row of
            # a position by the place of the position.
            self.lsns.append(lsn)
            self.positions.append(first_position)
            self._due_position = first_position + MESSAGES_PER_ENTRY
            self._due_offset = offset + BYTES_PER_ENTRY
        self.stop_position = stop_position
        self.bytes += size

    def rows_of(self, first: int, stop: int, last_lsn: int) -> LsnRange:
        """Return the range of rows that holds positions ``first`` to below ``stop``; ``last_lsn`` is the segment's last
        row.
        """
        start = max(bisect_right(self.positions, first) - 1, 0)
        end = bisect_right(self.positions, stop - 1)
        return LsnRange(self.lsns[start], self.lsns[end] - 1 if end < len(self.lsns) else last_lsn)


class SparseIndex:
    """All queues of one segment."""

    __slots__ = ("_offset", "queues")

    def __init__(self) -> None:
        self.queues: dict[int, SparseQueue] = {}
        self._offset = 0

    def add_row(self, lsn: int, queues: Iterable[QueueSummary], size: int) -> None:
        """Note the next row, in order of LSN; ``size``: bytes of its meta and data."""
        offset = self._offset
        index = self.queues
        for queue_id, first_position, stop_position, bytes_ in queues:
            queue = index.get(queue_id)
            if queue is None:
                queue = index[queue_id] = SparseQueue(first_position)
            queue.add(lsn, first_position, stop_position, bytes_, offset)
        self._offset = offset + size

    def to_rows(self) -> Iterator[tuple[int, int, int, int, int, bytes, bytes]]:
        """Return the rows of the table ``sparse``."""
        for queue_id, queue in sorted(self.queues.items()):
            yield (
                queue_id,
                queue.first_position,
                queue.stop_position,
                queue.messages,
                queue.bytes,
                pack_u64(queue.positions),
                pack_u64(queue.lsns),
            )


def sparse_queue(first: int, stop: int, bytes_: int, positions: bytes, lsns: bytes) -> SparseQueue:
    """Return the entries of a queue from a row of the table ``sparse``.

    Raises:
        SegmentFormatError: the columns do not have equally many whole numbers, at least one. No checksum covers this
            table, and a wrong length would end the reader.
    """
    if not positions or len(positions) % 8 or len(positions) != len(lsns):
        raise SegmentFormatError(
            f"the sparse index of a queue has {len(positions)} bytes of positions and {len(lsns)} bytes of rows; both"
            " must have the same number of entries of 8 bytes"
        )
    queue = SparseQueue(first)
    queue.stop_position = stop
    queue.bytes = bytes_
    queue.positions = unpack_u64(positions)
    queue.lsns = unpack_u64(lsns)
    return queue


def pack_u64(numbers: "array[int]") -> bytes:
    """Pack as little-endian on every machine."""
    if sys.byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def unpack_u64(packed: bytes) -> "array[int]":
    """The numbers of ``pack_u64``."""
    numbers = array("Q", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
