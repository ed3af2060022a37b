"""Fill the WAL of the prepared segment with zeros, ahead of its frames.

A commit that lengthens the WAL makes the file system write its own journal in the same fsync. A commit into blocks that
were written before does not, and takes a third less CPU time (decision 0182). Blocks that are only allocated bring
nothing, because their first write changes the file system's records too.

The order of the steps is the safety of the log:

1. ``create_segment`` has committed the tables and has emptied the WAL into the main file. SQLite would drop a WAL that
   is filled before the first commit of the database.
2. The writer gives the prepared segment back (``Writer.withdraw``), so that no commit can write to the WAL. Zeros over
   frames would destroy answered messages.
3. The manifest lists the segment as *preparing*: a start after a crash here removes the segment unread.
4. Zeros, in steps that commits do not notice, then fsync of the file and of the folder.
5. The manifest lists the segment as *prepared*, and the writer gets the segment again.

No file is used a second time: SQLite replays the valid frames of the WAL beside a database, also frames of another
segment. Zeros over a retired WAL would cost as much as zeros in a new file.
"""

import asyncio
import errno
import os
import time
from collections.abc import Callable
from threading import Event
from typing import Final

from cmqd.log.values import Durability
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.folder.disk_space import Space
from cmqd.storage.segments.wal_gauge import used_bytes
from cmqd.storage.storage_settings import StorageSettings
from cmqd.storage.writing.writer import Writer
from cmqd_segment.manifest import SegmentState, sync_folder

CHUNK_BYTES: Final = 1024 * 1024
"""Zeros between two fsyncs of a hurried fill. Commits on the same disk take several times as long meanwhile."""
STEP_BYTES: Final = 128 * 1024
"""Zeros between two fsyncs otherwise: as many as commits do not notice, with ``PAUSE_SECONDS`` after each. Four times
the CPU time of a hurried fill (decision 0163)."""
PAUSE_SECONDS: Final = 0.001
HURRIED_SHARE: Final = 3 / 5
"""Used part of the zeros of the active segment from which on a fill is hurried: the successor must be ready in time."""
_BLOCK: Final = bytes(64 * 1024)
"""Zeros of which a chunk is made. A chunk in one piece would stay in the heap for the life of the process."""
LEAST_COMMITS: Final = 64
"""Commits into the active segment before its successor is filled: idle brokers and short tests fill nothing."""
SMALL_COMMIT_BYTES: Final = 32 * 1024
"""Greatest mean size of commits for which zeros pay: 128 MiB of zeros cost 40 to 140 ms of CPU time and double the
bytes written to the disk, and each commit saves some 55 us whatever its size."""
LEAST_BYTES: Final = 8 * CHUNK_BYTES
"""Least size of a fill, if the segment and the disk allow as much."""
GROWTH: Final = 4
"""Size of a fill, by the used bytes of the active segment: where segments retire by age, fills are small, and a broker
that has just started fills for the load of its first seconds (decision 0233)."""


class Filling:
    """Decides about the fill of the prepared segment and carries it out; see the module."""

    def __init__(self, catalog: Catalog, space: Space, settings: StorageSettings, writer: Writer) -> None:
        self._catalog = catalog
        self._space = space
        self._segment_bytes = settings.segment_bytes
        self._is_useful = settings.durability is Durability.FSYNC
        """Without fsync no commit waits for the journal of the file system."""
        self._writer = writer
        self._stopped = Event()
        self._given_up: int | None = None
        """Number of the segment with a fill that met a full disk, as by a quota, which free space does not show."""

    def is_due(self) -> bool:
        """Return whether ``run`` would change the prepared segment."""
        prepared = self._writer.prepared
        if prepared is None or self._stopped.is_set():
            return False
        if self._space.short:
            return prepared.filled_bytes > 0
        if prepared.number == self._given_up:
            return False
        # By the double, because each fill costs two manifests.
        return self._wanted_bytes() >= max(CHUNK_BYTES, 2 * prepared.filled_bytes)

    async def run(self) -> None:
        """Fill the prepared segment, or give its zeros back if room is short. Raises OSError, except for lack of space.

        No other switch of segments may be under way. The active segment grows on meanwhile.
        """
        prepared = self._writer.withdraw()
        if prepared is None:
            return
        if self._space.short:
            # Without the manifest, which waits for room on a full disk. A start finds fewer zeros and no frame.
            await asyncio.to_thread(prepared.drop_zeros)
        else:
            wal = f"{prepared.path}-wal"
            prepared.state = SegmentState.PREPARING
            await self._catalog.save()
            wanted = self._wanted_bytes()
            prepared.filled_bytes = await asyncio.to_thread(fill, wal, wanted, self._stopped.is_set, self._is_hurried)
            if wanted and not prepared.filled_bytes:
                self._given_up = prepared.number
            await asyncio.to_thread(sync_folder, prepared.path.parent)
            prepared.state = SegmentState.PREPARED
            await self._catalog.save()
        self._writer.offer(prepared)

    def stop(self) -> None:
        """End a fill under way early, and begin no other: the broker stops."""
        self._stopped.set()

    def _is_hurried(self) -> bool:
        """Return whether the active segment needs its successor soon. For any thread.

        At once if it has no zeros: its commits take longer than commits beside a hurried fill.
        """
        active = self._writer.active
        return active.wal_bytes >= HURRIED_SHARE * active.filled_bytes

    def _wanted_bytes(self) -> int:
        """Return the size of the fill that will pay and has room; 0 for none."""
        active = self._writer.active
        commits = active.commits
        if not self._is_useful or commits < LEAST_COMMITS or active.wal_bytes > commits * SMALL_COMMIT_BYTES:
            return 0
        wanted = max(GROWTH * active.wal_bytes, LEAST_BYTES)
        return max(0, min(wanted, self._segment_bytes, self._space.room_to_fill()) // CHUNK_BYTES * CHUNK_BYTES)


def fill(
    wal: str, size: int, is_stopped: Callable[[], bool] = lambda: False, is_hurried: Callable[[], bool] = lambda: True
) -> int:
    """Give an unused WAL this size, by zeros that are on the disk on return; return the size that it has.

    In small steps with pauses for the commits, but in large chunks while ``is_hurried`` returns True.

    It has less if ``is_stopped`` becomes true, and 0 if the disk is full. The WAL must have no writer and no rows.
    Frames of the tables stay in the WAL while a reader from outside has the new segment open; they are neither
    overwritten nor cut off. Raises OSError for other failures: after a failed fsync the zeros may be gone although a
    second fsync succeeds.
    """
    frames = used_bytes(wal)
    size = max(size, frames)
    descriptor = os.open(wal, os.O_WRONLY | os.O_CLOEXEC)
    try:
        end = os.fstat(descriptor).st_size
        if end > size:
            os.ftruncate(descriptor, size)
            end = size
        while end < size and not is_stopped():
            hurried = is_hurried()
            # Each write begins at the end of the file, so that no byte of the file stays unwritten.
            end += os.pwritev(descriptor, _zeros(min(CHUNK_BYTES if hurried else STEP_BYTES, size - end)), end)
            os.fdatasync(descriptor)
            if not hurried:
                time.sleep(PAUSE_SECONDS)
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Other files took the room that was counted. All is given back: half a fill would keep others waiting.
        os.ftruncate(descriptor, frames)
        os.fsync(descriptor)
        end = frames
    finally:
        os.close(descriptor)
    return end if end > frames else 0


def _zeros(size: int) -> list[bytes]:
    """Return zeros of this size, in pieces for a single write."""
    blocks, rest = divmod(size, len(_BLOCK))
    return [_BLOCK] * blocks + [_BLOCK[:rest]] * bool(rest)
