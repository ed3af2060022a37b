"""Growth of the WALs: estimates after each commit, and the measurements that the estimates lead to.

A WAL is measured when the estimates add up to the room in the segment, or to the growth after which free space is
measured, because the reads would cost a lone commit more than its bookkeeping.
"""

from dataclasses import dataclass

from cmqd.storage.folder.disk_space import ROW_BYTES

GROWTH_OF_COMMIT = 64 * 1024
PAGES_OF_COMMIT = 4
"""Estimates from above of the growth of the WAL by a small commit, of which the larger counts: pages of the tree beside
those of its rows, which take up to twice their bytes."""


@dataclass(slots=True)
class WalGrowth:
    """Growth of the WALs that one thread commits to; the lock of the writer covers ``room``."""

    room: int = 0
    """Growth of the active WAL that the last measurement left until the segment is full; 0 before a measurement."""
    estimated: int = 0
    """Growth of the active WAL since the last measurement, by estimates."""
    measured_bytes: int = 0
    """Used bytes of the active WAL as of the last measurement."""
    untold: int = 0
    """Growth of the WALs that the loop has not been told of, as measured."""

    def add_commit(self, row_bytes: int, rows: int, page_bytes: int) -> None:
        """Estimate the growth by a commit into pages of this size."""
        self.estimated += max(GROWTH_OF_COMMIT, PAGES_OF_COMMIT * page_bytes) + 2 * (row_bytes + ROW_BYTES * rows)

    def is_due(self, measure_after_bytes: int) -> bool:
        """Return whether the segment may be full, or the loop is to be told of the growth."""
        return self.estimated >= self.room or self.untold + self.estimated >= measure_after_bytes

    def measured(self, used_bytes: int, measure_after_bytes: int) -> bool:
        """Take the used bytes of the active WAL; return whether the loop is to be told of the growth."""
        self.untold += used_bytes - self.measured_bytes
        self.measured_bytes = used_bytes
        self.estimated = 0
        is_told = self.untold >= measure_after_bytes
        if is_told:
            self.untold = 0
        return is_told

    def begin_segment(self) -> None:
        """Begin with a new WAL, which may have frames of its tables: the next commit measures."""
        self.room = self.estimated = self.measured_bytes = 0
