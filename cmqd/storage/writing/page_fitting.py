"""Fit the page size of the prepared segment to the rows of the active segment (see ``page_size``).

The prepared segment has no rows, so a new segment can take its place. The order of the steps is the safety of the log:

1. The writer gives the segment back (``Writer.withdraw``), so that no commit can write to the segment.
2. The manifest lists the segment as *preparing*: a start after a crash from here on removes the segment unread.
3. The new segment is prepared, and the writer gets the new segment. The active segment grows on meanwhile.
4. The files are removed, and then the entry: a missing file of a segment that is *preparing* is no damage.
"""

from collections.abc import Awaitable, Callable

from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.folder.disk_space import Space
from cmqd.storage.segments.page_size import LEAST_COMMITS, SAMPLE_BYTES, page_bytes_after
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.writing.writer import Writer
from cmqd_segment.manifest import SegmentState


class PageFitting:
    """Decides about the page size of the prepared segment and replaces the segment; see the module."""

    def __init__(
        self,
        catalog: Catalog,
        space: Space,
        writer: Writer,
        prepare: Callable[[int], Awaitable[WritableSegment]],
        remove: Callable[[WritableSegment], Awaitable[None]],
    ) -> None:
        """``prepare`` makes a segment with pages of this size; ``remove`` closes a segment and removes its files."""
        self._catalog = catalog
        self._space = space
        self._writer = writer
        self._prepare = prepare
        self._remove = remove
        self._is_stopped = False

    def is_due(self) -> bool:
        """Return whether ``run`` would change a segment."""
        prepared = self._writer.prepared
        # Not on a disk that is nearly full: a small commit into large pages takes room that deletes may need.
        if prepared is None or self._is_stopped or self._space.is_short:
            return False
        active = self._writer.active
        if active.commits < LEAST_COMMITS and active.row_bytes < SAMPLE_BYTES:
            return False
        return self._wanted(active) != prepared.page_bytes or self._retires(active)

    async def run(self) -> None:
        """Replace the prepared segment, and retire an active segment with too small pages. Raises OSError,
        sqlite3.Error. No other switch of segments may be under way.
        """
        active = self._writer.active
        wanted = self._wanted(active)
        unused = self._writer.withdraw()
        if unused is None:
            return
        if unused.page_bytes == wanted:
            self._writer.offer(unused)
        else:
            unused.state = SegmentState.PREPARING
            self._writer.offer(await self._prepare(wanted))
            await self._remove(unused)
            del self._catalog.open[unused.number]
            await self._catalog.save()
        # Last, because the switch begins the preparation of the next segment, and the commit thread may have made the
        # switch. Not waited for: a stop waits for this call, and the loop process may have left the switch undone.
        if not self._is_stopped and active is self._writer.active and self._retires(active):
            self._writer.begin_roll()

    def stop(self) -> None:
        """Change no segment any more: the broker stops."""
        self._is_stopped = True

    def _wanted(self, active: WritableSegment) -> int:
        return page_bytes_after(active.rows, active.row_bytes)

    def _retires(self, active: WritableSegment) -> bool:
        return active.row_bytes >= SAMPLE_BYTES and self._wanted(active) > active.page_bytes
