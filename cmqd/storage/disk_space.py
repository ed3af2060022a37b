"""Whether the disk has room for new messages; receives and deletes are never refused.

Two reasons to refuse sends: a commit met a full disk (it is kept and tried again, see ``writer``), or free space fell
below the mark, which is what storage will still need whatever happens: the copy of every WAL that sealing writes into
the main file, the deletes of all that was sent, the WAL of small segments, and a reserve.

A commit takes two pages of WAL however small it is, thirty times what is left of a small one once it is sealed, so
consumers that delete message by message would fill what is kept back for them with WAL. Below the mark segments are
therefore retired early: their WAL comes back with the seal.

When a write meets a full disk, the ballast is given back, and sends are refused until it can be held back again. The
active segment is then retired even if it is too large to be sealed in the room that is left: what follows it is small,
so that its seals give back more than they take. A segment that is too large waits, unsealed, until there is room or
nothing in it is wanted.

Some way above the mark the loop is told that room is short, so that history gives way before sends are refused.
"""

from collections.abc import Callable

from cmqd.log.values import LogState
from cmqd.storage.catalog import Catalog
from cmqd.storage.data_folder import Disk
from cmqd.storage.segment import WritableSegment
from cmqd_segment.manifest import SegmentState

DELETE_BYTES = 32
"""Log that the receive and the delete of a message take, at fair batch sizes (20-100 measured)."""
SEAL_MARGIN_BYTES = 256 * 1024
"""Room that a seal needs beside the copy of the WAL: its tables, the manifest, a segment that is prepared meanwhile."""
SMALL_SEGMENT_BYTES = 1024 * 1024
"""No segment is retired below this WAL size for the sake of space: some 250 small commits."""
ROW_BYTES = 64
"""What a row takes in the main file beside its meta and data, about, its part of the sparse index included."""
LOOK_BYTES = (1024 * 1024, 16 * 1024 * 1024)
"""Least and most of ``look_bytes``."""
COMMIT_BYTES = 4 * 1024 * 1024
"""Most that a commit takes (``process_log.BATCH_BYTES``)."""
RESUME_SLACK = 1.05
"""Sends are taken again only this far above the mark, so that the answer does not flap."""
SHORT_SLACK = 1.25
"""Room is short this far above the mark: time enough to let segments go, whose files are larger than what is written
meanwhile."""


class Space:
    """See the module."""

    def __init__(self, catalog: Catalog, disk: Disk, reserve_bytes: int, on_state: Callable[[LogState], None]) -> None:
        self._catalog = catalog
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._on_state = on_state
        self._last: LogState | None = None
        self._told_full = False
        """So in the last state: the reason is another one then, whatever else is the same."""
        self._blocked = False
        """A commit waits for room."""
        self._full = False
        """So since then, until the ballast is back."""
        self._low = False
        self.look_bytes = LOOK_BYTES[0]
        """Growth of the WAL after which to look again, beside the timer: fast writers fill a disk in between."""
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
        # The next segment may grow to its early end while this one is copied; and what was sent since the last look
        # stands in the WAL and is copied in turn.
        small = 2 * SMALL_SEGMENT_BYTES + 2 * (LOOK_BYTES[0] + COMMIT_BYTES)
        return pending + DELETE_BYTES * catalog.messages + small + self._reserve_bytes

    @property
    def short(self) -> bool:
        """Whether sends are refused, for either reason."""
        return self._full or self._low

    def can_seal(self, segment: WritableSegment) -> bool:
        """Whether the disk has room for the copy that the seal of a segment makes before the WAL goes."""
        return _sealed_growth(segment) + SEAL_MARGIN_BYTES <= self._disk.free_bytes()

    def rolls_early(self, active: WritableSegment) -> bool:
        """Whether to retire the active segment for the sake of its WAL: room is short, it holds a fair part of it, the
        seal leaves enough for the commits beside it, and no other seal is under way, or held up by a reader from
        outside, that will give room back.
        """
        wal_bytes = active.wal_bytes
        if not self.short or wal_bytes < SMALL_SEGMENT_BYTES:
            return False
        if any(
            entry.state is SegmentState.RETIRED and self.can_seal(entry.segment)
            for entry in self._catalog.open.values()
        ):
            return False
        free = self._disk.free_bytes()
        growth = _sealed_growth(active)
        if not self._full:
            return wal_bytes >= free // 4 and growth + 2 * SMALL_SEGMENT_BYTES <= free
        if growth + SEAL_MARGIN_BYTES <= free:
            return True
        # It stays as it is. Its successor is small: room for one of that size must be left, else nothing is won.
        return growth > SMALL_SEGMENT_BYTES and free >= SMALL_SEGMENT_BYTES + SEAL_MARGIN_BYTES

    def found_full(self) -> None:
        """A commit failed for lack of space: give the ballast back, refuse sends."""
        self._blocked = True
        self.found_no_room()

    def found_no_room(self) -> bool:
        """Something beside the commits failed for lack of space; returns whether the ballast gave some."""
        self._full = True
        released = self._disk.ballast.release()
        self.look()
        return released

    def found_room(self) -> None:
        """A write that had failed went through; sends wait until the ballast is back and the mark is kept."""
        self._blocked = False
        self.look()

    def begin(self) -> None:
        """Hold the reserves back when a start has taken what it needs.

        On a full disk only a part of the start's is held back: a crash would need it again, but consumers need room
        too, and the broker serves to give it to them.
        """
        if self._disk.take_ballast():
            return
        self._full = True
        start = self._disk.start_ballast
        start.release()
        self._disk.ballast.release()
        start.take(min(start.size, self._disk.free_bytes() // 2))

    def look(self) -> None:
        """Ask the disk, and tell the loop if anything is worth telling."""
        free = self._disk.free_bytes()
        mark = self.mark_bytes()
        # What the WAL grows by is gone from the one and comes on top of the other.
        self.look_bytes = min(max((free - mark) // 4, LOOK_BYTES[0]), LOOK_BYTES[1])
        if self._full:
            # Room that the ballast will take again is no room for sends: they would be taken and refused in turns.
            self._low = free < mark * RESUME_SLACK + self._disk.missing_ballast_bytes
        else:
            self._low = free < (mark * RESUME_SLACK if self._low else mark)
        if self._full and not self._blocked and not self._low and self._disk.take_ballast():
            self._full = False
        reason = ""
        if self._full:
            reason = f"the disk is full ({free} bytes free)"
        elif self._low:
            reason = f"the disk has {free} bytes free; {mark} are kept back for seals and deletes"
        catalog = self._catalog
        state = LogState(
            self._full or self._low,
            reason,
            free,
            len(catalog.sealed) + len(catalog.open),
            catalog.log_bytes,
            self.damaged_rows,
            self._full or free < mark * SHORT_SLACK,
        )
        if self._last is None or self._full != self._told_full or _differs(state, self._last):
            self._last = state
            self._told_full = self._full
            self._on_state(state)


def _sealed_growth(segment: WritableSegment) -> int:
    """How much sealing adds to the main file before the WAL goes."""
    return min(segment.wal_bytes, segment.row_bytes + ROW_BYTES * segment.rows)


def _differs(state: LogState, last: LogState) -> bool:
    return (state.sends_refused, state.is_short, state.segments, state.damaged_rows) != (
        last.sends_refused,
        last.is_short,
        last.segments,
        last.damaged_rows,
    ) or abs(state.free_bytes - last.free_bytes) + abs(state.log_bytes - last.log_bytes) > 4 * 1024 * 1024
