"""Positions of each queue in each row: the column ``queues``, decoded and cached.

A reader finds a position by the summaries of the rows around the position. A row of published messages names every
queue with a copy. Readers of all these queues search the same rows, and share the decoded summaries.
"""

from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from cmqd.storage.reading.decoded_row import Audience, Audiences
from cmqd_segment.rows import decode_queues
from cmqd_segment.sparse import LsnRange

BLOCK_ROWS = 64
"""Rows that are searched, kept and forgotten together."""
CAPACITY_BYTES = 4 * 1024 * 1024
SUMMARY_OVERHEAD_BYTES = 250
"""Estimated memory of a summary, and of a block, beside 16 bytes per queue."""


class Summary(NamedTuple):
    """Positions of the queues in a row with messages."""

    lsn: int
    audience: Audience
    numbers: "array[int]"
    """The first positions of all its queues, then the stop positions."""
    row_bytes: int
    """Bytes of all bodies in the row."""
    cost: int
    """Estimated memory of the summary."""

    def of(self, queue_id: int) -> tuple[int, int] | None:
        """Return (first position, stop position) of a queue or topic, None if the row has no message of it."""
        index = self.audience.places.get(queue_id)
        if index is None:
            return None
        return self.numbers[index], self.numbers[index + len(self.numbers) // 2]


def summary_of(lsn: int, queues: bytes, row_bytes: int, audiences: Audiences) -> Summary:
    """Decode the column of a row. Raises msgspec.MsgspecError."""
    entries = decode_queues(queues)
    if not entries:
        return Summary(lsn, audiences.of(()), array("Q"), row_bytes, SUMMARY_OVERHEAD_BYTES)
    queue_ids, firsts, stops, _ = zip(*entries, strict=True)
    made_bytes = audiences.made_bytes
    audience = audiences.of(queue_ids)
    cost = SUMMARY_OVERHEAD_BYTES + 16 * len(entries) + audiences.made_bytes - made_bytes
    return Summary(lsn, audience, array("Q", firsts + stops), row_bytes, cost)


class Block(NamedTuple):
    """Consecutive rows of a segment."""

    upto: int
    """The block has every row with messages up to this LSN."""
    summaries: list[Summary]


Fetch = Callable[[LsnRange], Awaitable[tuple[Sequence[Summary], bool]]]
"""Read the summaries of the rows with messages in a span; False if a row cannot be read."""


class Summaries:
    """Summaries by segment and block, least recently used first out. For a single page at a time."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity_bytes
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._bytes = 0

    async def block(self, segment: int, lsn: int, last_lsn: int, fetch: Fetch) -> tuple[LsnRange, Sequence[Summary]]:
        """Return the summaries around a row, and the span of rows covered. The segment ends at ``last_lsn``."""
        number = lsn // BLOCK_ROWS
        first = number * BLOCK_ROWS
        span = LsnRange(first, min(first + BLOCK_ROWS - 1, last_lsn))
        key = (segment, number)
        cached = self._blocks.get(key)
        if cached is not None and cached.upto >= span.last:
            self._blocks.move_to_end(key)
            return span, cached.summaries
        added, whole = await fetch(span if cached is None else LsnRange(cached.upto + 1, span.last))
        block = Block(span.last, [*(() if cached is None else cached.summaries), *added])
        if whole:
            self._keep(key, block)
        # An incomplete block is not cached, and read again for the next page: a row may be readable by then.
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
