"""Reclamation of segments without live messages, at once, after the history time, or when no pin holds them.

Keeping history is best effort, storing new messages is a duty: when disk space is short, the oldest history is
reclaimed before its time, segment by segment, until there is space. The segments are examined in slices between which
the sockets are served. The core knows its index and the storage its files; this module joins the two.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from cmqd.log.interface import Log
from cmqd.log.values import SegmentReport
from cmqd.server.broker_logger import get_logger
from cmqd.server.log_upkeep.pins import Pins
from cmqd.server.part import part

SLICE_S = 0.002

RECLAIM_EVERY_S = 5.0
"""Interval of the scans: disk space returns within seconds; a scan costs microseconds a segment."""

_log = get_logger()


@part
class Reclaim:
    """Drops segments; see the module."""

    loop: asyncio.AbstractEventLoop
    log: Log
    live_in: Callable[[int, int, int], int]
    """Returns the number of live messages of a queue between two positions."""
    now_ms: Callable[[], int]
    keep_history_ms: int
    """Time after its last row for which a segment without live messages is kept."""
    pins: Pins
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs work that waits for the storage as a task."""

    def __post_init__(self) -> None:
        self._dropping: set[int] = set()
        self._drops: set[asyncio.Task[None]] = set()
        self._history: set[int] = set()
        """Segments without live messages within their history time, or held by a pin. Messages never become live
        again, so these segments are not examined again before the end of both."""
        self.history_bytes = 0
        """Size of the segments without live messages that are kept, as of the last scan."""
        self._is_short = False
        """The disk is nearly full."""
        self._is_scanning = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def checkpoint_done(self, header_lsn: int) -> None:
        """Scan, because the storage has read a checkpoint back and listed it."""
        _log.debug("checkpoint_written", lsn=header_lsn)
        self.scan()

    def room_is(self, *, short: bool) -> None:
        """Take note of the state of the disk, which the storage reports after each reclaimed segment."""
        self._is_short = short
        if short and (self.keep_history_ms or self.history_bytes):
            self.scan()

    def scan(self) -> None:
        """Examine the closed segments now, and every few seconds from now on."""
        if self._is_stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(RECLAIM_EVERY_S, self.scan)
        if not self._is_scanning:
            self._is_scanning = True
            self.spawn(self._scan())

    def stop(self) -> None:
        """Drop no further segment."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        # A drop in steps would hold up the drain. The storage ends its drops itself.
        for drop in self._drops:
            drop.cancel()

    async def _scan(self) -> None:
        try:
            await self._drop_dead_segments()
        finally:
            self._is_scanning = False

    async def _drop_dead_segments(self) -> None:
        pins = self.pins
        pins.expire()
        history: set[int] = set()
        history_bytes = 0
        # A segment at a time: the storage measures the disk again after each drop.
        gives_way = self._is_short and not self._dropping
        stop_at = time.perf_counter() + SLICE_S
        for segment in self.log.closed_segments():
            if self._is_stopped:
                return
            # A segment must stay until every checkpoint on disk has its deletes. A start from an older checkpoint would
            # otherwise bring the deleted messages back.
            if segment.last_lsn > self.log.droppable_lsn or segment.number in self._dropping:
                continue
            is_due = self._is_due(segment)
            if is_due or segment.number not in self._history:
                is_live = False
                for queue_id, first, stop in segment.queues:
                    is_live = self.live_in(queue_id, first, stop) > 0
                    if time.perf_counter() >= stop_at:
                        await asyncio.sleep(0)
                        stop_at = time.perf_counter() + SLICE_S
                    if is_live:
                        break
                if is_live:
                    continue
            # Again: a pin that was made between two slices counts messages as live that were deleted since.
            is_due = is_due and self._is_due(segment)
            if not is_due and gives_way:
                gives_way = False
                is_due = True
                _log.info("history_gives_way", segment=segment.number, bytes=segment.bytes)
                # Before the drop: the storage would keep the segment for the checkpoint of a pin.
                pins.give_way()
            if is_due:
                self._dropping.add(segment.number)
                # The core counts deletes as done that still wait for their commit; they are in rows up to this LSN.
                self.spawn(self._drop(segment, self.log.last_lsn))
            else:
                history.add(segment.number)
                history_bytes += segment.bytes
        self._history = history
        self.history_bytes = history_bytes

    def _is_due(self, segment: SegmentReport) -> bool:
        is_history = self.now_ms() - segment.last_ms < self.keep_history_ms
        return not is_history and not self.pins.holds(segment.last_lsn)

    def keeps(self, segment: SegmentReport) -> bool:
        """Return whether a segment stays without a wanted message."""
        return not self._is_due(segment)

    async def _drop(self, segment: SegmentReport, min_lsn: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._drops.add(task)
        try:
            if not self._is_stopped and await self.log.drop_segments([segment.number], min_lsn):
                _log.info("segment_dropped", segment=segment.number, last_lsn=segment.last_lsn, bytes=segment.bytes)
                self.pins.dropped(segment)
        finally:
            self._drops.discard(task)
            self._dropping.discard(segment.number)
