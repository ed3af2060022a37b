"""Sealing: what makes a retired segment an immutable, checksummed file, in the background.

On the segment's one connection: the tables ``sparse`` and ``segment``, then ``wal_checkpoint(TRUNCATE)`` until it
answers (0, 0, 0). A reader with an old snapshot can delay that; then the segment stays retired, which is a fine state
to be in, and it is tried again. So can a full disk: the first segment whose copy has room is sealed first. Then: close,
SHA-256, read-only, fsync, and the manifest says *sealed*.

A segment is not sealed the moment it is retired: where consumers keep up, it will be empty soon, and dropping it as it
is saves the copy of its WAL, a seventh of what the broker costs then (decision 0004).
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import time

import msgspec

from cmqd.storage.catalog import Catalog, SealedFile
from cmqd.storage.pager import Pager
from cmqd.storage.segment import WritableSegment
from cmqd.storage.writer import is_disk_full
from cmqd_segment.manifest import SegmentState, sync_folder

RETRY_SECONDS = (0.05, 5.0)
FULL_DISK_PAUSE_SECONDS = 0.5
"""Between two looks for room when no segment that waits has any."""
HELD_SEGMENTS = 2
"""How many retired segments wait for their messages to be consumed. A segment can be dropped once the checkpoint that
was written when its successor retired is on disk, so one would be too few; each is a WAL more that a start after a
crash must walk."""
HELD_SECONDS = 60.0
"""How long at most: a broker that has become quiet gets its disk space in order."""


class Sealer:
    """Seals one segment at a time, in order; a held one not before its time."""

    def __init__(
        self,
        catalog: Catalog,
        pager: Pager,
        on_sealed: Callable[[SealedFile], None],
        has_room: Callable[[WritableSegment], bool],
    ) -> None:
        """``has_room``: whether the disk takes the copy of the WAL that the seal of a segment makes."""
        self._catalog = catalog
        self._pager = pager
        self._on_sealed = on_sealed
        self._has_room = has_room
        self._sealing: WritableSegment | None = None
        self._held: deque[WritableSegment] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Runs out for the oldest that is held."""
        self._waiting: deque[WritableSegment] = deque()
        self._wake = asyncio.Event()
        """Set when a segment is submitted."""
        self._idle: asyncio.Future[None] | None = None

    def hold(self, segment: WritableSegment) -> None:
        """Seal a segment (which is retired in the manifest) unless it is withdrawn before its time comes."""
        self._held.append(segment)
        if len(self._held) > HELD_SEGMENTS:
            self._seal_oldest()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_SECONDS, self._seal_oldest)

    def seal_held(self) -> None:
        """Wait no longer for any."""
        while self._held:
            self._seal_oldest()

    def withdraw(self, number: int) -> WritableSegment | None:
        """Take back a segment whose seal has not begun, and leave it to the caller to close; None if there is none.

        One that waits for room counts too: on a full disk it can never be sealed, only dropped.
        """
        for line in (self._held, self._waiting):
            for segment in line:
                if segment.number == number and segment is not self._sealing:
                    line.remove(segment)
                    return segment
        return None

    def _seal_oldest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self.submit(self._held.popleft())
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(HELD_SECONDS, self._seal_oldest)

    def submit(self, segment: WritableSegment) -> None:
        """Seal a segment, which is retired in the manifest, in its turn and as soon as there is room."""
        self._waiting.append(segment)
        self._wake.set()

    async def drained(self) -> None:
        """Wait until everything that was submitted is sealed."""
        if self._waiting:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def run(self) -> None:
        """Seal what is submitted, for ever. Raises sqlite3.Error, OSError for what trying again will not mend."""
        while True:
            self._wake.clear()
            if not self._waiting:
                if self._idle is not None:
                    self._idle.set_result(None)
                    self._idle = None
                await self._wake.wait()
                continue
            segment = next(filter(self._has_room, self._waiting), None)
            if segment is None or not await self._try_to_seal(segment):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), FULL_DISK_PAUSE_SECONDS)

    async def _try_to_seal(self, segment: WritableSegment) -> bool:
        """Seal a segment, and take it out of the line; False if the disk turned out to be too full for it."""
        self._sealing = segment
        try:
            await self._seal(segment)
        except sqlite3.OperationalError as error:
            if not is_disk_full(error):
                raise
            return False
        finally:
            self._sealing = None
        self._waiting.remove(segment)
        return True

    async def _seal(self, segment: WritableSegment) -> None:
        await self._with_patience(segment, lambda: write_tables(segment))
        await self._with_patience(segment, lambda: truncate_wal(segment))

        async def close() -> None:
            # With nobody else connected this removes -wal and -shm; a foreign reader leaves an empty -wal behind.
            await segment.connection.close()
            segment.closed = True
            segment.wal_bytes = 0

        await self._pager.closing(segment.number, close)
        sha256, size = await asyncio.to_thread(finish_file, segment.path)
        entry = segment.entry(SegmentState.SEALED)
        file = SealedFile(
            msgspec.structs.replace(entry, sha256=sha256, bytes=size),
            segment.path,
            [(row[0], row[1], row[2]) for row in segment.index.to_rows()],
        )
        self._catalog.sealed[segment.number] = file
        del self._catalog.open[segment.number]
        await self._catalog.save()
        self._on_sealed(file)

    async def _with_patience(self, segment: WritableSegment, step: Callable[[], bool]) -> None:
        """Run a step in the segment's thread until it succeeds; readers are waited for."""
        pause, longest = RETRY_SECONDS
        while True:
            try:
                if await segment.connection.run(step):
                    return
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def write_tables(segment: WritableSegment) -> bool:
    """The sparse index and the facts about the segment; a second time replaces the first."""
    raw = segment.connection.raw
    # Whatever the broker promised for its commits, a sealed segment is on disk.
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute("BEGIN IMMEDIATE")
    try:
        raw.execute("DELETE FROM sparse")
        raw.executemany("INSERT INTO sparse VALUES (?,?,?,?,?,?,?)", segment.index.to_rows())
        raw.executemany(
            "INSERT OR REPLACE INTO segment VALUES (?,?)",
            [
                ("first_lsn", segment.first_lsn),
                ("last_lsn", segment.last_lsn),
                ("first_ms", segment.first_ms),
                ("last_ms", segment.last_ms),
                ("rows", segment.rows),
                ("messages", segment.messages),
                ("sealed_ms", int(time() * 1000)),
            ],
        )
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return True


def truncate_wal(segment: WritableSegment) -> bool:
    """Copy the WAL into the main file; False while a reader is in the way."""
    return segment.connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


def finish_file(path: Path) -> tuple[str, int]:
    """Checksum, read-only, durable. No connection of ours is on the file any more, so a plain handle is safe."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())
        size = file.tell()
    sync_folder(path.parent)
    return digest.hexdigest(), size


def is_busy(error: sqlite3.Error) -> bool:
    """Whether a reader is in the way."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
