"""Settled leases of one queue: the numbers of leases that ended with a delete or a move to the dead-letter queue.

A consumer that lost the answer to a delete repeats the delete, and the handle is invalid then. The numbers tell whether
the first delete was carried out, or whether the lease ended by itself and the message lives. The numbers are facts: the
records of deletes and moves have the leases and the time.

The numbers are in two generations. A generation begins with a record and takes further records for ``LIFE_MS``, or up
to a lease that is ``SPAN`` above the highest lease of the generation before; then the next begins, and the generation
before is forgotten. A number is known for ``LIFE_MS`` at least (with more than 7,000 leases a second in the broker, for
the time of ``SPAN`` leases) and for twice as long at most, and the age of each number need not be kept. After a loss of
rows the numbers of leases jump by more than ``SPAN``, and the next two records may end the memory of older leases.

The highest lease counts, and not the lowest. Beside short work, a queue can have leases that last for hours: each
delete of an old lease would end the generation of the new leases.

``SPAN`` bounds the memory of all queues together, because lease numbers are one sequence of the broker. A generation
has at most ``SPAN`` / 65,536 containers in its set, of some 50 bytes and 2 bytes a lease, or 8 KiB, and a container for
each older lease that was in flight: 10,000 queues that share them take some 80 MB (an estimate).
"""

from typing import Final

from pyroaring import BitMap64

from cmqd_segment.records import Runs, ranges
from cmqd_types.messages import GONE_DELETED, GONE_MOVED

LIFE_MS: Final = 600_000
"""A repeat of a request comes within seconds; a consumer that repeats in an outage, within minutes."""
SPAN: Final = 1 << 22
"""Leases of the broker after which a generation is forgotten."""

_NONE: Final = (None, None)
_NO_END: Final = 1 << 64


class SettledLeases:
    """The table; see the module."""

    __slots__ = ("_before", "_deleted", "_end", "_moved", "_start", "_stop", "since_ms")

    def __init__(self) -> None:
        self.since_ms = -LIFE_MS
        """Time of the first record of the generation."""
        self._end: int = _NO_END
        """Lease with which the next generation begins."""
        self._start: int = -1
        self._stop: int = -1
        """The last run of deleted leases, not in the set yet: a queue consumed in order makes the run longer with
        each delete, and pays for the set once in a run."""
        # Made at first use, because a set costs a quarter of a kilobyte and most queues have no moves.
        self._deleted: BitMap64 | None = None
        self._moved: BitMap64 | None = None
        self._before: tuple[BitMap64 | None, BitMap64 | None] = _NONE

    def note_deleted(self, leases: Runs, deleted_ms: int) -> None:
        """Remember leases whose messages were deleted."""
        self._take(leases[0], deleted_ms)
        if len(leases) == 2:
            first, count = leases
            if first != self._stop:
                self._end_run()
                self._start = first
            self._stop = first + count
        else:
            _add(self._end_run(), leases)

    def note_moved(self, leases: Runs, moved_ms: int) -> None:
        """Remember leases whose messages were moved to the dead-letter queue by their consumer."""
        self._take(leases[0], moved_ms)
        if self._moved is None:
            self._moved = BitMap64()
        _add(self._moved, leases)

    def _take(self, lease: int, now_ms: int) -> None:
        """Begin a generation if that is due before leases from this one on."""
        if now_ms >= self.since_ms + LIFE_MS or lease >= self._end:
            self._begin(now_ms)
        if self._before is _NONE and lease + SPAN < self._end:
            # No generation is forgotten at this end.
            self._end = lease + SPAN

    def _end_run(self) -> BitMap64:
        """Put the last run of deleted leases into their set, and return the set."""
        deleted = self._deleted
        if deleted is None:
            deleted = self._deleted = BitMap64()
        if self._start >= 0:
            if self._stop == self._start + 1:
                deleted.add(self._start)
            else:
                deleted.add_range(self._start, self._stop)
            self._start = self._stop = -1
        return deleted

    def _begin(self, now_ms: int) -> None:
        """Begin a generation."""
        if self._start >= 0:
            self._end_run()
        is_recent = now_ms < self.since_ms + 2 * LIFE_MS
        before = (self._deleted, self._moved)
        self._before = before if is_recent and any(before) else _NONE
        for numbers in self._before:
            if numbers is not None:
                numbers.run_optimize()
        self._deleted = self._moved = None
        self._end = _end(self._before, _NONE)
        self.since_ms = now_ms

    def gone(self, lease: int, now_ms: int) -> int:
        """Return ``GONE_DELETED`` or ``GONE_MOVED`` if the lease ended so within the last minutes, else 0."""
        if now_ms >= self.since_ms + 2 * LIFE_MS or lease < 0:
            return 0
        if self._start <= lease < self._stop:
            return GONE_DELETED
        generations = [(self._deleted, self._moved)]
        if now_ms < self.since_ms + LIFE_MS:
            generations.append(self._before)
        for deleted, moved in generations:
            if deleted is not None and lease in deleted:
                return GONE_DELETED
            if moved is not None and lease in moved:
                return GONE_MOVED
        return 0

    @property
    def is_unused(self) -> bool:
        """Whether the table was never written to."""
        return self.since_ms == -LIFE_MS

    def no_later_than(self, now_ms: int) -> None:
        """Let the generation begin at ``now_ms`` at the latest: broker time stepped back."""
        self.since_ms = min(self.since_ms, now_ms)

    def packed(self) -> list[bytes]:
        """Return the sets for a checkpoint: deleted, moved, and both of the generation before; empty = none."""
        deleted = self._deleted
        if self._start >= 0:
            # Not put into the set of this table: a quiet queue keeps its run, which is smaller.
            deleted = BitMap64() if deleted is None else deleted.copy()
            deleted.add_range(self._start, self._stop)
        sets = [deleted, self._moved, *self._before]
        return [b"" if one is None else one.serialize() for one in sets] if any(sets) else []

    def load(self, since_ms: int, packed: list[bytes]) -> None:
        """Load the sets of a checkpoint."""
        if packed:
            deleted, moved, deleted_before, moved_before = (
                BitMap64.deserialize(one) if one else None for one in packed
            )
            self.since_ms = since_ms
            self._deleted, self._moved = deleted, moved
            self._before = (deleted_before, moved_before) if deleted_before or moved_before else _NONE
            self._end = _end(self._before, (deleted, moved))
            # A run again, as before the checkpoint: most queues have no other numbers.
            if deleted and deleted.max() - deleted.min() + 1 == len(deleted):
                self._start, self._stop = deleted.min(), deleted.max() + 1
                self._deleted = None


def _end(before: tuple[BitMap64 | None, BitMap64 | None], current: tuple[BitMap64 | None, BitMap64 | None]) -> int:
    """Return the lease that ends the current generation."""
    if before is not _NONE:
        return max(numbers.max() for numbers in before if numbers) + SPAN
    return min((numbers.min() + SPAN for numbers in current if numbers), default=_NO_END)


def _add(numbers: BitMap64, leases: Runs) -> None:
    """Add the numbers of runs to a set."""
    for start, stop in ranges(leases):
        numbers.add_range(start, stop)
