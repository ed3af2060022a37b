"""Changes of closed segments between two checkpoints: whether messages left their queues, or came back.

The storage keeps how messages left, beside the segments that stay, before the rows go. No message is counted as it
leaves. At a checkpoint the messages that are there are counted, by segment and queue, and compared with the count at
the checkpoint before. A queue without a departure or return since then is passed over. A delete and a rewind in between
leave the count as it was, so a return changes every segment with messages of its queue.

The work is done in slices between which the sockets are served. A message that leaves meanwhile moves its queue, which
is counted again at the next checkpoint.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Final

from cmqd.log.interface import Log
from cmqd.log.values import SegmentReport
from cmqd.server.part import part

SLICE_S: Final = 0.001
PAUSE_S: Final = 0.002
CHUNK_QUEUES: Final = 4_096
"""Queues of a segment that are compared in one call, some tens of nanoseconds each."""
_WIDTH: Final = 3
"""Numbers of a queue in ``SegmentReport.ranges``."""


@part
class SegmentChanges:
    """Tells the log of changes; see the module."""

    log: Log
    live_in: Callable[[int, int, int], int]
    """Returns the number of wanted messages of a queue or topic between two positions."""
    there_in: Callable[[int, int, int], int]
    """Returns the number of messages between two positions that did not leave their queue."""
    moves_of: Callable[[int], tuple[int, int] | None]
    """Returns how many messages of a queue left or came back, and how many came back; None if the queue is gone."""
    is_kept: Callable[[SegmentReport], bool]
    """Returns whether a segment stays without a wanted message."""
    timer: Callable[[], float]
    """Returns the seconds of a clock that never goes back, to measure slices by."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._moves: dict[int, tuple[int, int]] = {}
        """``moves_of`` the queues with messages in closed segments, at the checkpoint before."""
        self._there: dict[int, array[int]] = {}
        """``there_in`` by number of the segment, for its queues in order: eight bytes beside the 24 of the report."""
        self._moved: set[int] = set()
        """Queues of which a message left or came back since the checkpoint before."""
        self._returned: set[int] = set()
        """Queues of which a message came back since then."""
        self._stop_at = 0.0

    async def tell(self) -> None:
        """Count, and tell the log: behind the slices of a checkpoint, ahead of its end."""
        self._stop_at = self.timer() + SLICE_S
        # Before the counts: a message that leaves in between moves its queue again.
        await self._find_moved()
        there: dict[int, array[int]] = {}
        changed: list[int] = []
        unwanted: list[int] = []
        for segment in self.log.closed_segments():
            counts = self._there.get(segment.number)
            if counts is None:
                counts = there[segment.number] = array("Q", bytes(len(segment.ranges) // _WIDTH))
                is_changed = await self._count_first(segment, counts)
            else:
                there[segment.number] = counts
                is_changed = await self._count_moved(segment, counts)
            if is_changed:
                changed.append(segment.number)
            if not any(counts) and not self.is_kept(segment) and not await self._is_wanted(segment):
                unwanted.append(segment.number)
        self._there = there
        # Closed since, and counted next time.
        changed += [segment.number for segment in self.log.closed_segments() if segment.number not in there]
        self.log.tell_changes(changed, unwanted)

    def tell_all(self) -> None:
        """Tell, without counting, that every segment may have changed."""
        self.log.tell_changes([segment.number for segment in self.log.closed_segments()], [])

    async def _find_moved(self) -> None:
        self._moved, self._returned = set(), set()
        for queue_id in list(self._moves):
            before = self._moves[queue_id]
            now = self.moves_of(queue_id)
            if now is None:
                del self._moves[queue_id]
                self._moved.add(queue_id)
            elif now != before:
                self._moves[queue_id] = now
                self._moved.add(queue_id)
                if now[1] != before[1]:
                    self._returned.add(queue_id)
            await self._pause_if_due()

    async def _count_first(self, segment: SegmentReport, counts: "array[int]") -> bool:
        """Count all messages of a segment that closed since: all of them were there at first."""
        is_changed = False
        for place, (queue_id, first, stop) in enumerate(segment.each_queue()):
            moves = self.moves_of(queue_id)
            if moves is not None:
                self._moves.setdefault(queue_id, moves)
                counts[place] = self.there_in(queue_id, first, stop)
            # Without a move all are there, also those of a topic, which are not counted.
            is_changed = is_changed or (
                moves != (0, 0) and (moves is None or moves[1] > 0 or counts[place] != stop - first)
            )
            await self._pause_if_due()
        return is_changed

    async def _count_moved(self, segment: SegmentReport, counts: "array[int]") -> bool:
        """Count the messages of queues that moved; return whether a message left or came back."""
        is_changed = False
        for begin in range(0, len(counts), CHUNK_QUEUES):
            packed = segment.ranges[begin * 8 * _WIDTH : (begin + CHUNK_QUEUES) * 8 * _WIDTH]
            numbers = array("Q", packed)
            if not self._moved.isdisjoint(numbers[::_WIDTH]):
                entries = zip(numbers[::_WIDTH], numbers[1::_WIDTH], numbers[2::_WIDTH], strict=True)
                for place, (queue_id, first, stop) in enumerate(entries, begin):
                    if queue_id in self._moved:
                        count = self.there_in(queue_id, first, stop)
                        is_changed = is_changed or count != counts[place] or queue_id in self._returned
                        counts[place] = count
                    await self._pause_if_due()
            await self._pause_if_due()
        return is_changed

    async def _is_wanted(self, segment: SegmentReport) -> bool:
        for queue_id, first, stop in segment.each_queue():
            if self.live_in(queue_id, first, stop):
                return True
            await self._pause_if_due()
        return False

    async def _pause_if_due(self) -> None:
        if self.timer() >= self._stop_at:
            await self.sleep(PAUSE_S)
            self._stop_at = self.timer() + SLICE_S
