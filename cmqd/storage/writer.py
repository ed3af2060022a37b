"""Commits: a batch at a time into the active segment, and the switch to the next segment.

A batch is reported durable after SQLite's fsync has returned, never before. On a full disk the batch is kept and
retried, in the next segment if sealing this segment gives its WAL back. Any other error goes to the caller, and the
process must end: a failed fsync may have discarded the pages, and a second fsync would succeed without them.

One batch at a time, because a crash can then tear at most one commit. ``walcheck`` depends on that: a second commit
frame beyond the valid frames is damage.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from time import monotonic

from cmqd.storage.disk_space import Space
from cmqd.storage.segment import Committed, LogRow, WritableSegment

RETRY_SECONDS = (0.01, 1.0)
"""First and longest pause before a batch is tried again on a full disk. Short at first, because the first failure
releases the ballast, which may be room enough."""


class Writer:
    """Commits batches and switches segments; see the module."""

    def __init__(
        self,
        active: WritableSegment,
        space: Space,
        *,
        segment_bytes: int,
        segment_age_ms: int,
        on_durable: Callable[[int, int], None],
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
        """The first batch is under way, or waits for room on the disk."""
        self._committing = False
        self._roll_wanted: asyncio.Future[None] | None = None
        self._pause = RETRY_SECONDS[0]
        self._retry: asyncio.TimerHandle | None = None
        """Set while the disk is full."""
        self._idle: asyncio.Future[None] | None = None
        self._stopping = False
        self._since_measured = 0
        """Growth of the WAL since free space was last measured."""
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Gets the error after which no commit may follow."""

    def submit(self, rows: list[LogRow]) -> None:
        """Commit rows after the batches submitted before; ``on_durable`` reports the commit.

        Rows submitted after a failure are ignored: after rows that a failed fsync lost, the log must not continue as if
        it had them.
        """
        if self._stopping or self.failed.done():
            return
        self._batches.append(rows)
        # Any other batch is in line behind a commit or a retry, and begins when that batch is durable.
        if len(self._batches) == 1:
            self._commit()

    def stop(self) -> None:
        """Finish the commit under way and take no other; ``drained`` waits for that. A full disk is not waited for."""
        self._stopping = True
        if not self._committing:
            # A retry may wait for room that never comes, and the parent may be dead: the batch was never promised.
            if self._retry is not None:
                self._retry.cancel()
            self._rest()

    async def drained(self) -> None:
        """Wait until every submitted batch is durable, or dropped because the writer stops."""
        if self._batches:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def _commit(self) -> None:
        self._committing = True
        done: asyncio.Future[Committed] = self._loop.create_future()
        done.add_done_callback(self._on_done)
        self.active.commit(self._batches[0], done)

    def _on_done(self, done: "asyncio.Future[Committed]") -> None:
        """Take note of a commit, report it, switch segments if this one is full, then commit the next batch.

        In this order: the counts of the segment must have the rows before a reader is told of them, replies must not
        wait for a switch of segments, and the next batch must go to the segment after the switch.
        """
        self._committing = False
        error = done.exception()
        if error is not None:
            self._on_error(error)
            return
        rows = self._batches.popleft()
        committed = done.result()
        self._since_measured += max(0, committed.wal_bytes - self.active.wal_bytes)
        self.active.committed(rows, committed.wal_bytes)
        self.durable_lsn = rows[-1].lsn
        self._on_durable(self.durable_lsn, committed.fsync_us)
        if self._retry is not None:
            self._retry = None
            self._pause = RETRY_SECONDS[0]
            self._space.found_room()
        self._after()
        # While the writer stops, ``_rest`` drops the batches in line: no durable LSN was reported for these.
        if self._batches and not self._stopping:
            self._commit()
        else:
            self._rest()

    def _on_error(self, error: BaseException) -> None:
        """Keep the batch if the disk is full. Any other error is final."""
        if not (isinstance(error, sqlite3.Error) and is_disk_full(error)):
            # All batches, because rows behind a lost batch would leave a gap in the LSNs.
            self._batches.clear()
            self.failed.set_exception(error)
            self._rest()
            return
        self._space.found_full()
        if self._stopping:
            self._rest()
            return
        # The failed commit changed nothing. The switch comes before the retry, which goes to the segment that is active
        # then: the seal of the full segment can give back the room that the retry needs.
        if self._space.rolls_early(self.active):
            self._roll()
        self._retry = self._loop.call_later(self._pause, self._commit)
        self._pause = min(2 * self._pause, RETRY_SECONDS[1])

    def _rest(self) -> None:
        """Resolve ``drained``, if no batch is left, now that no commit is under way."""
        if self._stopping:
            self._batches.clear()
        if self._idle is not None and not self._batches:
            self._idle.set_result(None)
            self._idle = None

    def _after(self) -> None:
        active = self.active
        if self._roll_wanted is not None or self._rolls(active) or self._aged(active):
            self._roll()
        # Beside the timer: a fast writer fills a disk between two ticks.
        if self._since_measured >= self._space.measure_after_bytes:
            self._since_measured = 0
            self._space.measure()

    def _rolls(self, active: WritableSegment) -> bool:
        return active.wal_bytes >= self._segment_bytes or self._space.rolls_early(active)

    def _aged(self, active: WritableSegment) -> bool:
        return (monotonic() - active.opened_at) * 1000 >= self._segment_age_ms

    def tick(self) -> None:
        """Retire an old segment, or a segment with a WAL worth having back, without waiting for a commit."""
        active = self.active
        if active.rows and not self._committing and (self._aged(active) or self._rolls(active)):
            self._roll()

    async def roll(self) -> None:
        """Retire the active segment, if it has rows, after the commit under way. A successor must be ready."""
        if self._committing:
            self._roll_wanted = self._roll_wanted or self._loop.create_future()
            await asyncio.shield(self._roll_wanted)
        elif self.active.rows:
            self._roll()

    def _roll(self) -> None:
        """Switch to the prepared segment; without a prepared segment the active segment grows on.

        The manifest is written later, so that no commit waits for it. A crash in between is safe: recovery reads a
        prepared segment with rows as an active segment.
        """
        prepared = self.prepared
        if prepared is None:
            # Better a segment above its size than a commit that waits for a new file.
            return
        retired = self.active
        self.active = prepared
        # Now, not when the successor is ready: a second roll before that must find no segment to switch to.
        self.prepared = None
        if self._roll_wanted is not None:
            self._roll_wanted.set_result(None)
            self._roll_wanted = None
        self._on_retired(retired)


def is_disk_full(error: sqlite3.Error) -> bool:
    """Return whether the error is lack of space, which may end; any other failure of a write is final."""
    # Lack of room for the WAL-index has an I/O error code of its own. The index is never synced, so a retry is safe.
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
