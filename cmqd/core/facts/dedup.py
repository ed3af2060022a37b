"""Dedup ids of a queue or topic: the message that was sent under an id, for a few minutes.

Entries are numbered in the order of sending, and stand in chunks of arrays. A single dictionary maps an id to the
*block* of its latest entry: a run of ``BLOCK`` entries that share one integer object. An integer object for each id
would take 32 bytes more. A look-up of a remembered id searches a block; for an id that is not remembered, the usual
case, a look into the dictionary suffices.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from cmqd.core.limits import Limits

BLOCK: Final = 16
"""Entries of a block: few enough for a search of a microsecond, many enough to share the integer."""
Entry: TypeAlias = tuple[str, int, int]
"""(dedup id, message id, time of sending in ms)"""
CHUNK: Final = 8192
"""Entries of a chunk, a multiple of ``BLOCK``. A checkpoint takes references to all chunks at once and
writes every chunk as a part."""
ENTRY_BYTES: Final = 138
"""Memory of an entry beside the characters of its id: text object, slot of the dictionary, arrays."""
ENDED_A_NOTE: Final = 2
"""Ended entries dropped with every new entry, so that a replay, without ticks, stays as small as a live broker."""


class _Chunk:
    """Entries in the order of sending; only ever appended to."""

    __slots__ = ("dedup_ids", "first", "message_ids", "times_ms")

    def __init__(self, first: int) -> None:
        self.first = first
        """Number of the first entry, a multiple of ``BLOCK``."""
        self.dedup_ids: list[str] = []
        self.message_ids = array("Q")
        self.times_ms = array("Q")


class DedupIds:
    """The table, oldest id first. An id is found until its time has passed, with or without a sweep in between.

    Invariants: only the last chunk may have room. The first chunk may begin with forgotten entries. An entry is stale
    if its id was sent anew: then a later entry has the id, in a later block or in the same block.
    """

    __slots__ = ("_block", "_blocks", "_chunks", "_gone", "_limits", "size_bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._blocks: dict[str, int] = {}
        """The block of the latest entry of each id: the number of an entry, divided by ``BLOCK``."""
        self._block = 0
        """The block of the last entry, the integer object that its entries share."""
        self._chunks: deque[_Chunk] = deque()
        self._gone = 0
        """Entries at the beginning of the first chunk that are forgotten."""
        self.size_bytes = 0
        """Rough memory of all entries that are not forgotten."""

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest entry, stale or not; None if the table is empty."""
        return self._chunks[0].times_ms[self._gone] if self._chunks else None

    def find(self, dedup_id: str, now_ms: int) -> int | None:
        """Return the id of the message that was sent under this dedup id, None if the id is new."""
        block = self._blocks.get(dedup_id)
        if block is None:
            return None
        chunks = self._chunks
        first = block * BLOCK
        chunk = chunks[(first - chunks[0].first) // CHUNK]
        start = first - chunk.first
        # The latest entry counts: earlier entries of the id in the block are stale.
        place = _last_place(chunk.dedup_ids[start : start + BLOCK], dedup_id)
        if chunk.times_ms[start + place] + self._limits.dedup_life_ms <= now_ms:
            return None
        return chunk.message_ids[start + place]

    def note(self, dedup_id: str, message_id: int, sent_ms: int) -> None:
        """Note a message that was sent under this id; forget ended ids, and the oldest id if there are too many."""
        chunks = self._chunks
        if chunks and chunks[0].times_ms[self._gone] + self._limits.dedup_life_ms <= sent_ms:
            self.expire(sent_ms, ENDED_A_NOTE)
        self._append(dedup_id, message_id, sent_ms)
        while len(self._blocks) > self._limits.max_dedup_ids:
            self._forget_first()

    def _append(self, dedup_id: str, message_id: int, sent_ms: int) -> None:
        chunks = self._chunks
        if not chunks or len(chunks[-1].dedup_ids) == CHUNK:
            # Behind the last block, even if a chunk before ended within it.
            chunks.append(_Chunk((self._block + 1) * BLOCK))
        chunk = chunks[-1]
        if len(chunk.dedup_ids) % BLOCK == 0:
            self._block = (chunk.first + len(chunk.dedup_ids)) // BLOCK
        self._blocks[dedup_id] = self._block
        chunk.dedup_ids.append(dedup_id)
        chunk.message_ids.append(message_id)
        chunk.times_ms.append(sent_ms)
        self.size_bytes += ENTRY_BYTES + len(dedup_id)

    def expire(self, now_ms: int, max_ids: int) -> bool:
        """Forget up to ``max_ids`` ids with ended lives; return whether more may be left."""
        for _ in range(max_ids):
            oldest_ms = self.oldest_ms
            if oldest_ms is None or oldest_ms + self._limits.dedup_life_ms > now_ms:
                return False
            self._forget_first()
        return True

    def no_later_than(self, time_ms: int) -> None:
        """Set later times to ``time_ms``, to which broker time stepped back."""
        if not self._chunks or self._chunks[-1].times_ms[-1] <= time_ms:
            return
        entries = self.entries()
        self._blocks.clear()
        self._chunks.clear()
        self._gone = self.size_bytes = 0
        for dedup_id, message_id, sent_ms in entries:
            self._append(dedup_id, message_id, min(sent_ms, time_ms))

    def age(self, aged_ms: int) -> None:
        """Let all ids have been sent ``aged_ms`` earlier. The order of the ids stays."""
        for chunk in self._chunks:
            chunk.times_ms = array("Q", [max(0, sent_ms - aged_ms) for sent_ms in chunk.times_ms])

    def _forget_first(self) -> None:
        chunk = self._chunks[0]
        place = self._gone
        dedup_id = chunk.dedup_ids[place]
        stop = place - place % BLOCK + BLOCK
        is_latest = (
            self._blocks[dedup_id] * BLOCK == chunk.first + stop - BLOCK
            and dedup_id not in chunk.dedup_ids[place + 1 : stop]
        )
        self._gone += 1
        if self._gone == len(chunk.dedup_ids):
            self._chunks.popleft()
            self._gone = 0
        self.size_bytes -= ENTRY_BYTES + len(dedup_id)
        if is_latest:
            del self._blocks[dedup_id]

    def entries(self) -> list[Entry]:
        """Return all remembered ids, oldest first."""
        entries = [entry for part in self.parts() for entry in part]
        latest = {entry[0]: number for number, entry in enumerate(entries)}
        return [entry for number, entry in enumerate(entries) if latest[entry[0]] == number]

    def parts(self) -> Iterator[list[Entry]]:
        """Return the entries of this moment in parts, stale entries included; a part may be taken at any later time.

        To load the parts, note the entries in their order: the last entry of an id replaces its stale entries.
        """
        chunks, gone = list(self._chunks), self._gone
        return _parts(chunks, gone, len(chunks[-1].dedup_ids) if chunks else 0)


def _last_place(dedup_ids: list[str], dedup_id: str) -> int:
    """Return the last place of an id in a list that has it."""
    place = dedup_ids.index(dedup_id)
    while dedup_id in dedup_ids[place + 1 :]:
        place = dedup_ids.index(dedup_id, place + 1)
    return place


def _parts(chunks: list[_Chunk], gone: int, last: int) -> Iterator[list[Entry]]:
    for number, chunk in enumerate(chunks, 1):
        stop = last if number == len(chunks) else CHUNK
        yield list(
            zip(chunk.dedup_ids[gone:stop], chunk.message_ids[gone:stop], chunk.times_ms[gone:stop], strict=True)
        )
        gone = 0
