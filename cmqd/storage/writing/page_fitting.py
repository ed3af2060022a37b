"""Fit the prepared segment to the rows of the active segment: its page size (see ``page_size``), and for large commits
the WAL of a segment that is dropped (see ``used_wal``).

The prepared segment has no rows, so a new segment can take its place. The order of the steps is the safety of the log:

1. The writer gives the segment back (``Writer.withdraw``), so that no commit can write to the segment.
2. The manifest lists the segment as *preparing*: a start after a crash from here on removes the segment unread.
3. The new segment is prepared, and the writer gets the new segment. The active segment grows on meanwhile.
4. The files are removed, and then the entry: a missing file of a segment that is *preparing* is no damage.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Final

from cmqd.log.values import Durability
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.folder.disk_space import Space
from cmqd.storage.segments.page_size import LEAST_COMMITS, SAMPLE_BYTES, page_bytes_after
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.writing.wal_filling import LEAST_BYTES, SMALL_COMMIT_BYTES
from cmqd.storage.writing.writer import Writer
from cmqd_segment.manifest import SegmentState

CACHED_SECONDS: Final = 60.0
"""Greatest age of the first row of a WAL that is used again. A frame begins within a block, and the block of an old WAL
may have left the memory of the file system: each commit would wait for reads of the disk."""


class PageFitting:
    """Decides about the page size of the prepared segment and replaces the segment; see the module."""

    def __init__(
        self,
        catalog: Catalog,
        space: Space,
        writer: Writer,
        durability: Durability,
        prepare: Callable[[int, Path | None], Awaitable[WritableSegment]],
        remove: Callable[[WritableSegment], Awaitable[None]],
    ) -> None:
        """``prepare`` makes a segment with pages of this size and, unless None, this WAL. ``remove`` closes a segment
        and removes its files.
        """
        self._catalog = catalog
        self._space = space
        self._writer = writer
        self._durability = durability
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
            await self._replace(unused, wanted, None)
        # Last, because the switch begins the preparation of the next segment, and the commit thread may have made the
        # switch. Not waited for: a stop waits for this call, and the loop process may have left the switch undone.
        if not self._is_stopped and active is self._writer.active and self._retires(active):
            self._writer.begin_roll()

    async def _replace(self, unused: WritableSegment, page_bytes: int, used_wal: Path | None) -> None:
        unused.state = SegmentState.PREPARING
        self._writer.offer(await self._prepare(page_bytes, used_wal))
        await self._remove(unused)
        del self._catalog.open[unused.number]
        await self._catalog.save()

    def takes_wal(self, dropped: WritableSegment) -> bool:
        """Return whether ``use_wal`` would give the WAL of a dropped segment to the prepared segment.

        Not for small commits, which zeros serve from the start of the broker on (``wal_filling``).
        """
        prepared = self._writer.prepared
        if prepared is None or prepared.filled_bytes or self._is_stopped or self._durability is not Durability.FSYNC:
            return False
        size = dropped.wal_path.stat().st_size
        return (
            LEAST_BYTES <= size <= self._space.room_to_fill()
            and dropped.row_bytes > dropped.commits * SMALL_COMMIT_BYTES
            and monotonic() - dropped.opened_at <= CACHED_SECONDS
        )

    async def use_wal(self, dropped: WritableSegment) -> None:
        """Replace the prepared segment by a segment with the WAL of a dropped segment, which is closed. Raises OSError,
        sqlite3.Error. No other switch of segments may be under way.
        """
        unused = self._writer.withdraw()
        if unused is None:
            return
        # Before its WAL: a reader that opened the file without the WAL would find no rows.
        await asyncio.to_thread(dropped.path.unlink)
        # With its page size: the active segment may have too few rows to decide about another.
        await self._replace(unused, unused.page_bytes, dropped.wal_path)

    def stop(self) -> None:
        """Change no segment any more: the broker stops."""
        self._is_stopped = True

    def _wanted(self, active: WritableSegment) -> int:
        return page_bytes_after(active.rows, active.row_bytes)

    def _retires(self, active: WritableSegment) -> bool:
        return active.row_bytes >= SAMPLE_BYTES and self._wanted(active) > active.page_bytes
