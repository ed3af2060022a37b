"""Checkpoints of the index on request of the storage, and reclamation of segments without live messages, at once or
after the history time. Keeping history is best effort, storing new messages is a duty: when disk space is short, the
oldest history is reclaimed before its time, segment by segment, until there is space.

Both run in slices between which the sockets are served, because a checkpoint of a large broker is megabytes of bitmaps.
The rooms below know only their part, the core its index and the storage its files; this module joins the two.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from cmqd.log.errors import LogFailed
from cmqd.log.interface import Log
from cmqd.log.values import SegmentReport
from cmqd.server.log_lines import get_logger
from cmqd_segment.checkpoint import AnyPart

SLICE_S = 0.002

RECLAIM_EVERY_S = 5.0
"""Interval between looks at the segments: disk space returns within seconds; a look costs microseconds a segment."""

BUSY_PAUSE_S = 0.005
"""Pause between two parts of a checkpoint while the storage is behind. A checkpoint must not push sends into refusal,
but must end all the same: otherwise a broker that is always busy would never reclaim a segment."""

_log = get_logger()


class Checkpoints:
    """Writes a checkpoint at a time, and reclaims segments after it; see the module."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        begin: Callable[[], Iterator[AnyPart]],
        live_in: Callable[[int, int, int], int],
        is_behind: Callable[[], bool],
        now_ms: Callable[[], int],
        keep_history_ms: int,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Store the parts; begins no work.

        Args:
            begin: returns the parts of a checkpoint, each true at the moment of its creation.
            live_in: returns the number of live messages of a queue between two positions.
            is_behind: True while the storage has more to write than it should.
            now_ms: broker time.
            keep_history_ms: time after its last row for which a segment without live messages is kept.
            spawn: runs work that waits for the storage as a task.
        """
        self._loop = loop
        self._log = log
        self._begin = begin
        self._live_in = live_in
        self._is_behind = is_behind
        self._now_ms = now_ms
        self._keep_history_ms = keep_history_ms
        self._spawn = spawn
        self._parts: Iterator[AnyPart] | None = None
        self._wanted_again = False
        self._finished: asyncio.Future[None] | None = None
        self._dropping: set[int] = set()
        self._history: set[int] = set()
        """Segments without live messages within their history time. Messages never become live again, so these
        segments are not examined again before that time."""
        self.history_bytes = 0
        """Size of the segments without live messages that are kept, as of the last look."""
        self._is_short = False
        """The disk is nearly full."""
        self._looking: Iterator[None] | None = None
        self._reclaim_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Checkpoints writing={self._parts is not None} dropping={sorted(self._dropping)}>"

    def want(self) -> None:
        """Write a checkpoint; a request during a checkpoint is served after it."""
        if self._stopped:
            return
        if self._parts is not None:
            self._wanted_again = True
            return
        self._parts = self._begin()
        self._loop.call_soon(self._write_slice)

    def is_on_disk(self, header_lsn: int) -> None:
        """Take note that the storage has read the checkpoint back and listed it."""
        _log.debug("checkpoint_written", lsn=header_lsn)
        self.reclaim()

    async def write_final(self) -> None:
        """Write a last checkpoint and no other after it; return when its last part is handed to the storage."""
        self._stopped = True
        self._wanted_again = False
        if self._reclaim_timer is not None:
            self._reclaim_timer.cancel()
        if self._parts is not None:
            self._finished = self._loop.create_future()
            await self._finished
        self._parts = self._begin()
        self._finished = self._loop.create_future()
        self._loop.call_soon(self._write_slice)
        await self._finished

    def stop(self) -> None:
        """Begin no further work and abandon the work in progress."""
        self._stopped = True
        self._parts = None
        self._looking = None
        if self._reclaim_timer is not None:
            self._reclaim_timer.cancel()
        self._finish()

    def reclaim(self) -> None:
        """Look through the closed segments now, and every few seconds from now on."""
        if self._stopped:
            return
        if self._reclaim_timer is not None:
            self._reclaim_timer.cancel()
        self._reclaim_timer = self._loop.call_later(RECLAIM_EVERY_S, self.reclaim)
        if self._looking is None:
            self._looking = self._look_through_segments()
            self._look_slice()

    def room_is(self, *, short: bool) -> None:
        """Take note of the state of the disk, which the storage reports after each reclaimed segment."""
        self._is_short = short
        if short and self._keep_history_ms:
            self.reclaim()

    def _write_slice(self) -> None:
        parts = self._parts
        if parts is None:
            return
        behind = self._is_behind()
        stop_at = time.perf_counter() + SLICE_S
        try:
            for part in parts:
                self._log.write_checkpoint(part)
                if behind:
                    self._loop.call_later(BUSY_PAUSE_S, self._write_slice)
                    return
                if time.perf_counter() >= stop_at:
                    self._loop.call_soon(self._write_slice)
                    return
        except LogFailed as failure:
            finished, self._finished = self._finished, None
            self.stop()
            if finished is not None and not finished.done():
                finished.set_exception(failure)
            return
        self._parts = None
        if self._finished is not None:
            self._finish()
        elif self._wanted_again:
            self._wanted_again = False
            self.want()

    def _finish(self) -> None:
        finished, self._finished = self._finished, None
        if finished is not None and not finished.done():
            finished.set_result(None)

    def _look_slice(self) -> None:
        looking = self._looking
        if looking is None:
            return
        stop_at = time.perf_counter() + SLICE_S
        for _ in looking:
            if time.perf_counter() >= stop_at:
                self._loop.call_soon(self._look_slice)
                return
        self._looking = None

    def _look_through_segments(self) -> Iterator[None]:
        """Drop dead segments after their history time; yields after each question to the core."""
        history: set[int] = set()
        history_bytes = 0
        # A segment at a time: the storage looks at the disk again after each.
        gives_way = self._is_short and not self._dropping
        for segment in self._log.closed_segments():
            # A segment must stay until every checkpoint on disk knows its deletes: otherwise they would be forgotten.
            if segment.last_lsn > self._log.droppable_lsn or segment.number in self._dropping:
                continue
            is_due = self._now_ms() - segment.last_ms >= self._keep_history_ms
            if is_due or segment.number not in self._history:
                is_live = False
                for queue_id, first, stop in segment.queues:
                    is_live = self._live_in(queue_id, first, stop) > 0
                    yield
                    if is_live:
                        break
                if is_live:
                    continue
            if not is_due and gives_way:
                gives_way = False
                is_due = True
                _log.info("history_gives_way", segment=segment.number, bytes=segment.bytes)
            if is_due:
                self._dropping.add(segment.number)
                # The core counts deletes as done that still wait for their commit; they are in rows up to this LSN.
                self._spawn(self._drop(segment, self._log.last_lsn))
            else:
                history.add(segment.number)
                history_bytes += segment.bytes
        self._history = history
        self.history_bytes = history_bytes

    async def _drop(self, segment: SegmentReport, min_lsn: int) -> None:
        try:
            if await self._log.drop_segments([segment.number], min_lsn):
                _log.info("segment_dropped", segment=segment.number, last_lsn=segment.last_lsn, bytes=segment.bytes)
        finally:
            self._dropping.discard(segment.number)
