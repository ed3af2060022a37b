"""Commits: one batch at a time into the active segment, and the switch to the next one.

A batch is reported durable after SQLite's fsync returned and not before. A full disk keeps the batch and tries again,
in the next segment if sealing this one will give its WAL back; any other error is the caller's, who must end the
process: a failed fsync may have dropped the pages for good, and a second fsync would lie.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from time import monotonic

from cmqd.storage.disk_space import Space
from cmqd.storage.segment import LogRow, WritableSegment

RETRY_SECONDS = (0.01, 1.0)
"""First and longest pause before a batch is tried again on a full disk."""


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
        self._loop = asyncio.get_running_loop()
        self._batches: deque[list[LogRow]] = deque()
        """The first one is under way, or waits for room on the disk."""
        self._committing = False
        self._roll_wanted: asyncio.Future[None] | None = None
        self._pause = RETRY_SECONDS[0]
        self._retry: asyncio.TimerHandle | None = None
        """Set while the disk is full."""
        self._idle: asyncio.Future[None] | None = None
        self._stopping = False
        self._since_look = 0
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Gets the error after which nothing may be committed any more."""

    def submit(self, rows: list[LogRow]) -> None:
        """Commit rows after those that were submitted before; ``on_durable`` tells when. Ignored after a failure:
        what an fsync lost must not be followed by rows that look as if it had not.
        """
        if self._stopping or self.failed.done():
            return
        self._batches.append(rows)
        if len(self._batches) == 1:
            self._commit()

    def stop(self) -> None:
        """Finish the commit under way and take no other; ``drained`` waits for that. A full disk is not waited for."""
        self._stopping = True
        if not self._committing:
            if self._retry is not None:
                self._retry.cancel()
            self._rest()

    async def drained(self) -> None:
        """Wait until everything that was submitted is durable, or given up because the writer stops."""
        if self._batches:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def _commit(self) -> None:
        self._committing = True
        done: asyncio.Future[int] = self._loop.create_future()
        done.add_done_callback(self._on_done)
        self.active.commit(self._batches[0], done)

    def _on_done(self, done: "asyncio.Future[int]") -> None:
        self._committing = False
        error = done.exception()
        if error is not None:
            self._on_error(error)
            return
        rows = self._batches.popleft()
        self._since_look += max(0, done.result() - self.active.wal_bytes)
        self.active.committed(rows, done.result())
        self.durable_lsn = rows[-1].lsn
        self._on_durable(self.durable_lsn)
        if self._retry is not None:
            self._retry = None
            self._pause = RETRY_SECONDS[0]
            self._space.found_room()
        self._after()
        if self._batches and not self._stopping:
            self._commit()
        else:
            self._rest()

    def _on_error(self, error: BaseException) -> None:
        """Keep the batch if the disk is full; anything else is final."""
        if not (isinstance(error, sqlite3.Error) and is_disk_full(error)):
            self._batches.clear()
            self.failed.set_exception(error)
            self._rest()
            return
        self._space.found_full()
        if self._stopping:
            self._rest()
            return
        # What failed has changed nothing, and goes to whichever segment is active when it is tried again.
        if self._space.rolls_early(self.active):
            self._roll()
        self._retry = self._loop.call_later(self._pause, self._commit)
        self._pause = min(2 * self._pause, RETRY_SECONDS[1])

    def _rest(self) -> None:
        """Nothing is under way."""
        if self._stopping:
            self._batches.clear()
        if self._idle is not None and not self._batches:
            self._idle.set_result(None)
            self._idle = None

    def _after(self) -> None:
        active = self.active
        if self._roll_wanted is not None or self._rolls(active) or self._aged(active):
            self._roll()
        if self._since_look >= self._space.look_bytes:
            self._since_look = 0
            self._space.look()

    def _rolls(self, active: WritableSegment) -> bool:
        return active.wal_bytes >= self._segment_bytes or self._space.rolls_early(active)

    def _aged(self, active: WritableSegment) -> bool:
        return (monotonic() - active.opened_at) * 1000 >= self._segment_age_ms

    def tick(self) -> None:
        """Retire an old segment, or one whose WAL is worth having back, although no commit comes along."""
        active = self.active
        if active.rows and not self._committing and (self._aged(active) or self._rolls(active)):
            self._roll()

    async def roll(self) -> None:
        """Retire the active segment, if it has rows, after the commit under way. A successor must stand ready."""
        if self._committing:
            self._roll_wanted = self._roll_wanted or self._loop.create_future()
            await asyncio.shield(self._roll_wanted)
        elif self.active.rows:
            self._roll()

    def _roll(self) -> None:
        """Switch to the prepared segment, if there is one; else the active one goes on and grows. The manifest learns
        of it later: recovery takes a prepared segment with rows for what it is.
        """
        prepared = self.prepared
        if prepared is None:
            return
        retired = self.active
        self.active = prepared
        self.prepared = None
        if self._roll_wanted is not None:
            self._roll_wanted.set_result(None)
            self._roll_wanted = None
        self._on_retired(retired)


def is_disk_full(error: sqlite3.Error) -> bool:
    """Lack of space, which may end; unlike any other failure of a write."""
    # No room for the WAL-index comes as an I/O error of its own; that file is never synced, so trying again is safe.
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
