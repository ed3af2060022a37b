"""Whether the disk has room for new messages; receives and deletes are never refused.

Two reasons to refuse sends: a commit met a full disk (it is kept and tried again, see ``writer``), or free space fell
below the mark, which is what storage will still need whatever happens: the copy of every WAL that sealing writes into
the main file, the deletes of all that was sent, and a reserve.
"""

from collections.abc import Callable

from cmqd.storage import ipc
from cmqd.storage.catalog import Catalog
from cmqd.storage.datadir import Disk

DELETE_BYTES = 32
"""Log that the receive and the delete of a message take, at fair batch sizes (20-100 measured)."""
RESUME_SLACK = 1.05
"""Sends are taken again only this far above the mark, so that the answer does not flap."""


class Space:
    """See the module."""

    def __init__(self, catalog: Catalog, disk: Disk, reserve_bytes: int, on_state: Callable[[ipc.State], None]) -> None:
        self._catalog = catalog
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._on_state = on_state
        self._last: ipc.State | None = None
        self._blocked = False
        """A commit waits for room."""
        self._full = False
        """So since then, until the ballast is back."""
        self._low = False
        self.damaged_rows = 0
        """Rows that could not be read since the start."""

    @property
    def full(self) -> bool:
        """Whether a commit met a full disk and the ballast is not back."""
        return self._full

    def mark_bytes(self) -> int:
        """Free space below which sends are refused."""
        catalog = self._catalog
        pending = sum(entry.segment.wal_bytes for entry in catalog.open.values() if not entry.segment.closed)
        return pending + DELETE_BYTES * catalog.messages + self._reserve_bytes

    def found_full(self) -> None:
        """A write failed for lack of space: give the ballast back, refuse sends."""
        self._blocked = self._full = True
        self._disk.release_ballast()
        self.look()

    def found_room(self) -> None:
        """A write that had failed went through; sends wait until the ballast is back and the mark is kept."""
        self._blocked = False
        self.look()

    def look(self) -> None:
        """Ask the disk, and tell the loop if anything is worth telling."""
        free = self._disk.free_bytes()
        mark = self.mark_bytes()
        self._low = free < (mark * RESUME_SLACK if self._low or self._full else mark)
        if self._full and not self._blocked and not self._low and self._disk.take_ballast():
            self._full = False
        reason = ""
        if self._full:
            reason = f"the disk is full ({free} bytes free)"
        elif self._low:
            reason = f"the disk has {free} bytes free; {mark} are kept back for seals and deletes"
        catalog = self._catalog
        state = ipc.State(
            self._full or self._low,
            reason,
            free,
            len(catalog.sealed) + len(catalog.open),
            catalog.log_bytes,
            self.damaged_rows,
        )
        if self._last is None or _differs(state, self._last):
            self._last = state
            self._on_state(state)


def _differs(state: ipc.State, last: ipc.State) -> bool:
    return (state.sends_refused, state.segments, state.damaged_rows) != (
        last.sends_refused,
        last.segments,
        last.damaged_rows,
    ) or abs(state.free_bytes - last.free_bytes) + abs(state.log_bytes - last.log_bytes) > 4 * 1024 * 1024
