"""Free space: refuse sends while the disk lacks room. Receives and deletes are never refused.

Sends are refused for two reasons: a commit met a full disk (the batch is kept and retried, see ``writer``), or free
space fell below the mark. The mark is the space that storage will need in any case: the copy of every WAL that sealing
writes into the main file, the deletes of all sent messages, the WAL of small segments, and a reserve.

A commit takes two pages of WAL however small it is, thirty times the space of its rows once they are sealed. Consumers
that delete message by message would fill their reserve with WAL. Below the mark segments are therefore retired early:
sealing gives their WAL back.

When a write meets a full disk, the ballast is released, and sends are refused until it can be taken again. The active
segment is then retired even if its seal does not fit into the room that is left: its successors are small, and their
seals give back more than they take. A segment that is too large to seal waits until there is room or until it is
dropped.

Some way above the mark the loop gets a warning (``is_short``), so that history is dropped before sends are refused.
"""

from collections.abc import Callable

from cmqd.log.values import LogState
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.folder.data_folder import Disk
from cmqd.storage.segments.segment import WritableSegment
from cmqd_segment.manifest import SegmentState

DELETE_BYTES = 32
"""Log that the receive and the delete of a message take, at fair batch sizes (20-100 measured)."""
SEAL_MARGIN_BYTES = 256 * 1024
"""Room that a seal needs beside the copy of the WAL: its tables, the manifest, a segment that is prepared meanwhile."""
SMALL_SEGMENT_BYTES = 1024 * 1024
"""No segment is retired below this WAL size for the sake of space: some 250 small commits."""
ROW_BYTES = 64
"""Estimate of the space of a row in the main file beside its meta and data, including its part of the sparse index."""
MEASURE_AFTER_BYTES = (1024 * 1024, 16 * 1024 * 1024)
"""Least and greatest ``measure_after_bytes``: growth of the WAL after which free space is measured again."""
COMMIT_BYTES = 4 * 1024 * 1024
"""Most that a commit takes (``group_commit.BATCH_BYTES``)."""
RESUME_SLACK = 1.05
"""Sends are accepted again only this far above the mark, so that the decision does not flap."""
SHORT_SLACK = 1.25
"""Distance above the mark at which room is short: time enough to drop segments, which are larger than the rows written
meanwhile."""
REPORTED_BYTES = 4 * 1024 * 1024
"""Change of free space and log size after which the state is reported again."""


class Space:
    """Measures free space and decides about sends, early ends of segments and the ballast; see the module."""

    def __init__(self, catalog: Catalog, disk: Disk, reserve_bytes: int, on_state: Callable[[LogState], None]) -> None:
        self._catalog = catalog
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._on_state = on_state
        self._last: LogState | None = None
        self._last_facts: tuple[object, ...] = ()
        """Facts of the last state: any change is reported. A full disk is one, because it changes the reason alone."""
        self._blocked = False
        """A commit waits for room."""
        self._full = False
        """A write has met a full disk since the ballast was last whole."""
        self._low = False
        self.measure_after_bytes = MEASURE_AFTER_BYTES[0]
        """Growth of the WAL after which free space is measured, beside the timer: fast writers fill a disk between two
        ticks."""
        self.damaged_rows = 0
        """Rows that could not be read since the start."""
        self.rounds_skipped = 0
        """Rounds of outcomes that failed or were ended since the start."""

    def mark_bytes(self) -> int:
        """Free space below which sends are refused."""
        catalog = self._catalog
        pending = sum(segment.wal_bytes for segment in catalog.open.values() if not segment.immutable)
        # Another segment may grow to its early end while this segment is copied. Rows since the last measurement are in
        # the WAL, and are copied in turn.
        small = 2 * SMALL_SEGMENT_BYTES + 2 * (MEASURE_AFTER_BYTES[0] + COMMIT_BYTES)
        return pending + DELETE_BYTES * catalog.messages + small + self._reserve_bytes

    @property
    def short(self) -> bool:
        """True while sends are refused, for either reason."""
        return self._full or self._low

    @property
    def is_short(self) -> bool:
        """True some way above the mark already, while history is dropped before sends are refused."""
        return self._last is not None and self._last.is_short

    def can_seal(self, segment: WritableSegment) -> bool:
        """Return whether the disk has room for the copy that a seal makes before the WAL is released."""
        return _sealed_growth(segment) + SEAL_MARGIN_BYTES <= self._disk.free_bytes()

    def room_to_fill(self) -> int:
        """Return how many zeros a WAL may be filled with ahead of its frames; 0 or less if there is no room.

        Counted twice: frames in place of the zeros take no more room, but the seal copies them. And as far above the
        mark as history is kept: zeros must not be the cause that history is dropped.
        """
        return int(self._disk.free_bytes() - SHORT_SLACK * self.mark_bytes()) // 2

    def rolls_early(self, active: WritableSegment) -> bool:
        """Return whether to retire the active segment for the sake of its WAL.

        Yes if room is short, the WAL is a fair part of the free space, the seal leaves enough for the commits beside
        it, and no other seal is under way that will release space. A seal that a reader from outside holds up counts as
        under way: more retired segments would cost files and release nothing.
        """
        # A seal gives zeros back that were filled in ahead of the frames, too.
        released = max(active.wal_bytes, active.filled_bytes)
        if not self.short or released < SMALL_SEGMENT_BYTES:
            return False
        if any(
            segment.state is SegmentState.RETIRED and self.can_seal(segment) for segment in self._catalog.open.values()
        ):
            return False
        free = self._disk.free_bytes()
        growth = _sealed_growth(active)
        if not self._full:
            return released >= free // 4 and growth + 2 * SMALL_SEGMENT_BYTES <= free
        if growth + SEAL_MARGIN_BYTES <= free:
            return True
        # The segment stays unsealed. Its successor is small, and must find room for its own seal; without that room the
        # switch wins nothing.
        return growth > SMALL_SEGMENT_BYTES and free >= SMALL_SEGMENT_BYTES + SEAL_MARGIN_BYTES

    def found_full(self) -> None:
        """A commit failed for lack of space: give the ballast back, refuse sends."""
        self._blocked = True
        self.found_no_room()

    def found_no_room(self) -> bool:
        """Note that a write other than a commit failed for lack of space; return whether the ballast gave some."""
        self._full = True
        released = self._disk.ballast.release()
        self.measure()
        return released

    def found_room(self) -> None:
        """A write that had failed went through; sends wait until the ballast is back and the mark is kept."""
        self._blocked = False
        self.measure()

    def begin(self) -> None:
        """Take the reserves after a start has used its own.

        On a full disk only a part of the start's reserve is taken back. A second crash would need it, but consumers
        need room too, and the broker serves in order to give it to them.
        """
        if self._disk.take_ballast():
            return
        self._full = True
        start = self._disk.start_ballast
        start.release()
        self._disk.ballast.release()
        start.take(min(start.size, self._disk.free_bytes() // 2))

    def measure(self) -> None:
        """Measure the disk, and report the state if it has changed."""
        free = self._disk.free_bytes()
        mark = self.mark_bytes()
        # Growth of the WAL counts twice: it leaves the free space, and it raises the mark.
        self.measure_after_bytes = min(max((free - mark) // 4, MEASURE_AFTER_BYTES[0]), MEASURE_AFTER_BYTES[1])
        if self._full:
            # Room that the ballast will take again is not room for sends: sends would be accepted and refused in turns.
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
            sends_refused=self._full or self._low,
            reason=reason,
            free_bytes=free,
            segments=len(catalog.sealed) + len(catalog.open),
            log_bytes=catalog.log_bytes,
            damaged_rows=self.damaged_rows,
            is_short=self._full or free < mark * SHORT_SLACK,
            rounds_skipped=self.rounds_skipped,
        )
        facts = (
            self._full,
            state.sends_refused,
            state.is_short,
            state.segments,
            state.damaged_rows,
            self.rounds_skipped,
        )
        last = self._last
        if (
            last is None
            or facts != self._last_facts
            or abs(free - last.free_bytes) + abs(state.log_bytes - last.log_bytes) > REPORTED_BYTES
        ):
            self._last, self._last_facts = state, facts
            self._on_state(state)


def _sealed_growth(segment: WritableSegment) -> int:
    """Return the growth of the main file at a seal, before the WAL is released: as the last commit tells, which has the
    size of the database. Rows little above half a page take twice their bytes. Without a commit, an estimate.
    """
    growth = segment.sealed_growth
    return min(segment.wal_bytes, segment.row_bytes + ROW_BYTES * segment.rows) if growth is None else growth
