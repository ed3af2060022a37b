"""Commits: one batch at a time into the active segment, and the switch to the next one.

A batch is reported durable after SQLite's fsync returned and not before. A full disk keeps the batch and tries again;
any other error is the caller's, who must end the process: a failed fsync may have dropped the pages for good, and a
second fsync would lie.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from time import monotonic

from cmqd.storage.segment import LogRow, WritableSegment
from cmqd.storage.space import Space

RETRY_SECONDS = (0.01, 1.0)
"""First and longest pause before a batch is tried again on a full disk."""
LOOK_BYTES = 16 * 1024 * 1024
"""Free space is looked at whenever so much was written, beside the timer: fast writers fill a disk between ticks."""


class Writer:
    """See the module."""

    def __init__(
        self,
        active: WritableSegment,
        space: Space,
        *,
        segment_bytes: int,
        segment_age_ms: int,
        on_durable: Callable[[int], None],
        on_retired: Callable[[WritableSegment], None],
    ) -> None:
        self.active = active
        self.prepared: WritableSegment | None = None
        self.durable_lsn = 0
        self._space = space
        self._segment_bytes = segment_bytes
        self._segment_age_ms = segment_age_ms
        self._on_durable = on_durable
        self._on_retired = on_retired
        self._batches: deque[list[LogRow]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()
        self._since_look = 0

    def submit(self, rows: list[LogRow]) -> None:
        self._batches.append(rows)
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    async def run(self) -> None:
        """Commit what is submitted until ``stop``. Raises sqlite3.Error, OSError: nothing may be committed after."""
        loop = asyncio.get_running_loop()
        batches = self._batches
        while not self._stopping.is_set():
            if not batches:
                if self._idle is not None:
                    self._idle.set_result(None)
                    self._idle = None
                self._wake = loop.create_future()
                await self._wake
                continue
            rows = batches[0]
            if not await self._commit(rows):
                break
            batches.popleft()
            self.durable_lsn = rows[-1].lsn
            self._on_durable(self.durable_lsn)
            self._after(rows)
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def stop(self) -> None:
        """Finish the commit under way and take no other: ``run`` returns then. A full disk is not waited for."""
        self._stopping.set()
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    async def drained(self) -> None:
        """Wait until everything that was submitted is durable (or the writer stopped)."""
        if self._batches:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def _commit(self, rows: list[LogRow]) -> bool:
        """False if it was given up because the writer stops."""
        pause, longest = RETRY_SECONDS
        failed = False
        while True:
            try:
                await self.active.commit(rows)
            except sqlite3.Error as error:
                if not is_disk_full(error):
                    raise
            else:
                if failed:
                    self._space.found_room()
                return True
            failed = True
            self._space.found_full()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            if self._stopping.is_set():
                return False
            pause = min(2 * pause, longest)

    def _after(self, rows: list[LogRow]) -> None:
        active = self.active
        if active.wal_bytes >= self._segment_bytes or self._aged(active):
            self.roll()
        for row in rows:
            self._since_look += len(row.data) + len(row.meta)
        if self._since_look >= LOOK_BYTES:
            self._since_look = 0
            self._space.look()

    def _aged(self, active: WritableSegment) -> bool:
        return (monotonic() - active.opened_at) * 1000 >= self._segment_age_ms

    def tick(self) -> None:
        """Retire an old segment although no commit comes along."""
        if self.active.rows and not self._batches and self._aged(self.active):
            self.roll()

    def roll(self) -> bool:
        """Switch to the prepared segment, if there is one; else the active one goes on and grows. The manifest learns
        of it later: recovery takes a prepared segment with rows for what it is.
        """
        prepared = self.prepared
        if prepared is None:
            return False
        retired = self.active
        self.active = prepared
        self.prepared = None
        self._on_retired(retired)
        return True


def is_disk_full(error: sqlite3.Error) -> bool:
    """Lack of space, which may end; unlike any other failure of a write."""
    # No room for the WAL-index comes as an I/O error of its own; that file is never synced, so trying again is safe.
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
