"""Dedup ids of one queue: which message was sent under which id, for a few minutes and a bounded number of them."""

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from cmqd.core.limits import Limits

Entry: TypeAlias = tuple[str, int, int]
"""(dedup id, message id, time of sending in ms)"""
CHUNK = 8192
"""Entries kept in one list: a checkpoint takes hold of the lists, whatever the number of entries, and a part is one."""


class DedupIds:
    """Oldest first. A remembered id is found until its time has passed, whether a sweep has come by or not.

    Invariant: the entries in the order of sending fill lists of ``CHUNK``, to which is only ever appended; the first of
    them may begin with some that are gone. An entry is stale if its id was sent anew.
    """

    __slots__ = ("_chunks", "_gone", "_limits", "_sent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent: dict[str, Entry] = {}
        self._chunks: deque[list[Entry]] = deque()
        self._gone = 0
        """Entries at the beginning of the first chunk that are forgotten."""

    def __len__(self) -> int:
        return len(self._sent)

    def find(self, dedup_id: str, now_ms: int) -> int | None:
        """The id of the message that was sent under this dedup id."""
        found = self._sent.get(dedup_id)
        if found is None or found[2] + self._limits.dedup_life_ms <= now_ms:
            return None
        return found[1]

    def note(self, dedup_id: str, message_id: int, sent_ms: int) -> None:
        """A message was sent under this id; the oldest id is forgotten when there are too many."""
        entry = (dedup_id, message_id, sent_ms)
        self._sent[dedup_id] = entry
        if not self._chunks or len(self._chunks[-1]) == CHUNK:
            self._chunks.append([])
        self._chunks[-1].append(entry)
        while len(self._sent) > self._limits.max_dedup_ids:
            self._forget_first()

    def expire(self, now_ms: int, most: int) -> bool:
        """Forget up to ``most`` whose time has passed; True if there may be more."""
        for _ in range(most):
            if not self._chunks or self._chunks[0][self._gone][2] + self._limits.dedup_life_ms > now_ms:
                return False
            self._forget_first()
        return True

    def no_later_than(self, time_ms: int) -> None:
        """Take ids with a later time for sent at ``time_ms``; broker time stepped back to it."""
        entries = self.entries()
        if entries and entries[-1][2] > time_ms:
            self._sent.clear()
            self._chunks.clear()
            self._gone = 0
            for dedup_id, message_id, sent_ms in entries:
                self.note(dedup_id, message_id, min(sent_ms, time_ms))

    def _forget_first(self) -> None:
        chunk = self._chunks[0]
        entry = chunk[self._gone]
        self._gone += 1
        if self._gone == len(chunk):
            self._chunks.popleft()
            self._gone = 0
        if self._sent.get(entry[0]) is entry:
            del self._sent[entry[0]]

    def entries(self) -> list[Entry]:
        """All that are remembered, oldest first."""
        return [entry for part in self.parts() for entry in part if self._sent.get(entry[0]) is entry]

    def parts(self) -> Iterator[list[Entry]]:
        """The entries as they are now, however late each part is asked for; stale ones too, which a later one of the
        same id makes good. To be noted in this order.
        """
        chunks, gone = list(self._chunks), self._gone
        return _parts(chunks, gone, len(chunks[-1]) if chunks else 0)


def _parts(chunks: list[list[Entry]], gone: int, last: int) -> Iterator[list[Entry]]:
    for number, chunk in enumerate(chunks, 1):
        yield chunk[gone : last if number == len(chunks) else CHUNK]
        gone = 0
