"""Which positions a row holds of which queue: the column ``queues``, decoded and kept for a while.

Finding a page means looking through the summaries of the rows around it. A row of published messages names every queue
that got a copy, and all of these queues look through the same rows, so what one of them decoded serves the others.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cmqd.storage.decoded_row import Audience, Audiences
from cmqd_segment.rows import decode_queues
from cmqd_segment.sparse import LsnRange

BLOCK_ROWS = 64
"""Rows that are looked at, kept and forgotten together."""
CAPACITY_BYTES = 4 * 1024 * 1024
SUMMARY_OVERHEAD_BYTES = 250
"""Of a summary, and of a block, about, beside 24 bytes for each queue."""


class Summary(NamedTuple):
    """Of one row with messages."""

    lsn: int
    audience: Audience
    numbers: "array[int]"
    """The first positions of all its queues, then the stop positions, then the bytes."""
    cost: int
    """Bytes in memory, about."""

    def of(self, queue_id: int) -> tuple[int, int, int] | None:
        """(first position, stop position, bytes) of a queue or topic."""
        place = self.audience.places.get(queue_id)
        if place is None:
            return None
        count = len(self.numbers) // 3
        return self.numbers[place], self.numbers[place + count], self.numbers[place + 2 * count]


def summary_of(lsn: int, queues: bytes, audiences: Audiences) -> Summary:
    """A row's summary from its column. Raises msgspec.MsgspecError."""
    entries = decode_queues(queues)
    if not entries:
        return Summary(lsn, audiences.of(()), array("Q"), SUMMARY_OVERHEAD_BYTES)
    queue_ids, firsts, stops, sizes = zip(*entries, strict=True)
    made_bytes = audiences.made_bytes
    audience = audiences.of(queue_ids)
    cost = SUMMARY_OVERHEAD_BYTES + 24 * len(entries) + audiences.made_bytes - made_bytes
    return Summary(lsn, audience, array("Q", firsts + stops + sizes), cost)


class Block(NamedTuple):
    """Rows of one segment that follow one another."""

    upto: int
    """All rows with messages up to this LSN are in it."""
    summaries: list[Summary]


Fetch = Callable[[LsnRange], tuple[Sequence[Summary], bool]]
"""Read the summaries of the rows with messages in a span; False if some of them cannot be read."""


class Summaries:
    """Summaries by segment and block, the least recently used go first. Used by one thread at a time."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity_bytes
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._bytes = 0

    def block(self, segment: int, lsn: int, last_lsn: int, fetch: Fetch) -> tuple[LsnRange, Sequence[Summary]]:
        """The summaries around a row of a segment whose newest row is ``last_lsn``, and the rows that they cover."""
        number = lsn // BLOCK_ROWS
        first = number * BLOCK_ROWS
        span = LsnRange(first, min(first + BLOCK_ROWS - 1, last_lsn))
        key = (segment, number)
        known = self._blocks.get(key)
        if known is not None and known.upto >= span.last:
            self._blocks.move_to_end(key)
            return span, known.summaries
        added, whole = fetch(span if known is None else LsnRange(known.upto + 1, span.last))
        block = Block(span.last, [*(() if known is None else known.summaries), *added])
        if whole:
            self._keep(key, block)
        # Else it is asked for again the next time: whether it can be read is not for us to remember.
        return span, block.summaries

    def _keep(self, key: tuple[int, int], block: Block) -> None:
        old = self._blocks.pop(key, None)
        if old is not None:
            self._bytes -= _cost(old)
        self._blocks[key] = block
        self._bytes += _cost(block)
        while self._bytes > self._capacity and len(self._blocks) > 1:
            self._bytes -= _cost(self._blocks.popitem(last=False)[1])


def _cost(block: Block) -> int:
    return SUMMARY_OVERHEAD_BYTES + sum(summary.cost for summary in block.summaries)
