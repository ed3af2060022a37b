"""Dedup ids of a queue or topic: the message that was sent under an id, for a few minutes.

An id takes some 170 bytes and its text. A single dictionary maps ids to messages, and chunks of arrays hold order and
times. The time of an id is found through its message, because message ids only grow.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from cmqd.core.limits import Limits

Entry: TypeAlias = tuple[str, int, int]
"""(dedup id, message id, time of sending in ms)"""
CHUNK: Final = 8192
"""Entries of a chunk. A checkpoint takes references to all chunks at once and writes every chunk as a part."""
ENTRY_BYTES: Final = 170
"""Memory of an entry beside the characters of its id: text object, slot of the dictionary, integer, arrays."""
ENDED_A_NOTE: Final = 2
"""Ended entries dropped with every new entry, so that a replay, without ticks, stays as small as a live broker."""


class _Chunk:
    """Entries in the order of sending; only ever appended to."""

    __slots__ = ("dedup_ids", "message_ids", "times_ms")

    def __init__(self) -> None:
        self.dedup_ids: list[str] = []
        self.message_ids = array("Q")
        self.times_ms = array("Q")


class DedupIds:
    """The table, oldest id first. An id is found until its time has passed, with or without a sweep in between.

    Invariant: message ids ascend over all chunks. The first chunk may begin with forgotten entries. An entry is stale
    if its id was sent anew: then the dictionary has a higher message id.
    """

    __slots__ = ("_chunks", "_gone", "_limits", "_sent", "size_bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent: dict[str, int] = {}
        self._chunks: deque[_Chunk] = deque()
        self._gone = 0
        """Entries at the beginning of the first chunk that are forgotten."""
        self.size_bytes = 0
        """Rough memory of all entries that are not forgotten."""

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest entry, stale or not; None if the table is empty."""
        return self._chunks[0].times_ms[self._gone] if self._chunks else None

    def find(self, dedup_id: str, now_ms: int) -> int | None:
        """Return the id of the message that was sent under this dedup id, None if the id is new."""
        message_id = self._sent.get(dedup_id)
        if message_id is None or self._time_ms(message_id) + self._limits.dedup_life_ms <= now_ms:
            return None
        return message_id

    def note(self, dedup_id: str, message_id: int, sent_ms: int) -> None:
        """Note a message that was sent under this id; forget ended ids, and the oldest id if there are too many."""
        chunks = self._chunks
        if chunks and chunks[0].times_ms[self._gone] + self._limits.dedup_life_ms <= sent_ms:
            self.expire(sent_ms, ENDED_A_NOTE)
        self._append(dedup_id, message_id, sent_ms)
        while len(self._sent) > self._limits.max_dedup_ids:
            self._forget_first()

    def _append(self, dedup_id: str, message_id: int, sent_ms: int) -> None:
        self._sent[dedup_id] = message_id
        chunks = self._chunks
        if not chunks or len(chunks[-1].dedup_ids) == CHUNK:
            chunks.append(_Chunk())
        chunk = chunks[-1]
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
        self._sent.clear()
        self._chunks.clear()
        self._gone = self.size_bytes = 0
        for dedup_id, message_id, sent_ms in entries:
            self._append(dedup_id, message_id, min(sent_ms, time_ms))

    def _time_ms(self, message_id: int) -> int:
        chunks = self._chunks
        chunk = chunks[bisect_right(chunks, message_id, key=_first_message_id) - 1]
        return chunk.times_ms[bisect_left(chunk.message_ids, message_id)]

    def _forget_first(self) -> None:
        chunk = self._chunks[0]
        dedup_id, message_id = chunk.dedup_ids[self._gone], chunk.message_ids[self._gone]
        self._gone += 1
        if self._gone == len(chunk.dedup_ids):
            self._chunks.popleft()
            self._gone = 0
        self.size_bytes -= ENTRY_BYTES + len(dedup_id)
        if self._sent.get(dedup_id) == message_id:
            del self._sent[dedup_id]

    def entries(self) -> list[Entry]:
        """Return all remembered ids, oldest first."""
        return [entry for part in self.parts() for entry in part if self._sent.get(entry[0]) == entry[1]]

    def parts(self) -> Iterator[list[Entry]]:
        """Return the entries of this moment in parts, stale entries included; a part may be taken at any later time.

        To load the parts, note the entries in their order: the last entry of an id replaces its stale entries.
        """
        chunks, gone = list(self._chunks), self._gone
        return _parts(chunks, gone, len(chunks[-1].dedup_ids) if chunks else 0)


def _first_message_id(chunk: _Chunk) -> int:
    return chunk.message_ids[0]


def _parts(chunks: list[_Chunk], gone: int, last: int) -> Iterator[list[Entry]]:
    for number, chunk in enumerate(chunks, 1):
        stop = last if number == len(chunks) else CHUNK
        yield list(
            zip(chunk.dedup_ids[gone:stop], chunk.message_ids[gone:stop], chunk.times_ms[gone:stop], strict=True)
        )
        gone = 0
