"""Changes of closed segments between two checkpoints: whether messages left their queues, or came back.

The storage keeps how messages left, beside the segments that stay, before the rows go. Messages are not counted as they
leave: at a checkpoint the messages that are there are counted in each segment, in slices between which the sockets are
served. Messages of a queue leave or come back, and a rewind is counted by the queue, so equal counts mean that neither
happened. A delete and a rewind in between have a rewind more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from cmqd.log.interface import Log
from cmqd.log.values import SegmentReport
from cmqd.server.part import part

SLICE_S = 0.001
PAUSE_S = 0.002


@part
class SegmentChanges:
    """Tells the log of changes; see the module."""

    log: Log
    live_in: Callable[[int, int, int], int]
    """Returns the number of wanted messages of a queue or topic between two positions."""
    changes_in: Callable[[int, int, int], tuple[int, int]]
    """Returns the messages of a queue between two positions that are there, and the rewinds of the queue."""
    is_kept: Callable[[SegmentReport], bool]
    """Returns whether a segment stays without a wanted message."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        """Messages and rewinds of each segment at the checkpoint before."""

    async def tell(self) -> None:
        """Count, and tell the log: behind the slices of a checkpoint, ahead of its end."""
        seen: dict[int, tuple[int, int]] = {}
        changed: list[int] = []
        unwanted: list[int] = []
        stop_at = time.perf_counter() + SLICE_S
        for segment in self.log.closed_segments():
            there = rewinds = wanted = 0
            for queue_id, first, stop in segment.each_queue():
                count, rewound = self.changes_in(queue_id, first, stop)
                there += count
                rewinds += rewound
                wanted = wanted or count or self.live_in(queue_id, first, stop)
                if time.perf_counter() >= stop_at:
                    await self.sleep(PAUSE_S)
                    stop_at = time.perf_counter() + SLICE_S
            now = seen[segment.number] = there, rewinds
            # A segment that closed since: all its messages were there at first.
            if now != self._seen.get(segment.number, (_messages(segment), 0)):
                changed.append(segment.number)
            if not wanted and not self.is_kept(segment):
                unwanted.append(segment.number)
        self._seen = seen
        self.log.tell_changes(changed, unwanted)

    def tell_all(self) -> None:
        """Tell, without counting, that every segment may have changed."""
        self._seen = {}
        self.log.tell_changes([segment.number for segment in self.log.closed_segments()], [])


def _messages(segment: SegmentReport) -> int:
    return sum(stop - first for _, first, stop in segment.each_queue())
