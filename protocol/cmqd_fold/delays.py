"""Delayed messages of one queue: scheduled with their due times, or in overflow with the due time in the log alone.

At most ``max_delayed`` messages are scheduled, because a due time costs memory. Places are given in order of sending:
while messages wait in overflow, later messages wait too, even if a place is free. Otherwise new short delays would keep
the oldest messages in overflow forever, long past their time.
"""

from array import array
from collections.abc import Iterable
from typing import Final

from pyroaring import BitMap64

from cmqd_fold.timers import Timers
from cmqd_segment.checkpoint import QueueSlice
from cmqd_segment.records import DelaysScheduled, Runs, pack_runs, unpack_runs

EMPTY: Final = BitMap64().serialize()
"""An empty set in a checkpoint."""


class Delays:
    """The delayed messages of a queue: scheduled, or in overflow; see the module."""

    __slots__ = (
        "_damaged",
        "_overflow",
        "_queue_id",
        "_scheduled",
        "buckets",
        "overflow_count",
        "scheduled_count",
    )

    def __init__(self, queue_id: int, buckets: Timers) -> None:
        self._queue_id = queue_id
        self.buckets = buckets
        # Made at first use: most queues have no delays.
        self._scheduled: BitMap64 | None = None
        self.scheduled_count = 0
        self._overflow: BitMap64 | None = None
        self.overflow_count = 0
        self._damaged: BitMap64 | None = None

    @property
    def scheduled(self) -> BitMap64:
        """Messages with a due time among the timers."""
        if self._scheduled is None:
            self._scheduled = BitMap64()
        return self._scheduled

    @property
    def overflow(self) -> BitMap64:
        """Messages that wait for a place among the timers."""
        if self._overflow is None:
            self._overflow = BitMap64()
        return self._overflow

    @property
    def damaged(self) -> BitMap64:
        """Messages set aside as damaged that belong to ``overflow`` after a restart."""
        if self._damaged is None:
            self._damaged = BitMap64()
        return self._damaged

    def load(self, part: QueueSlice) -> None:
        """Load the delays of a checkpoint."""
        if part.overflow != EMPTY:
            self._overflow = BitMap64.deserialize(part.overflow)
            self.overflow_count = len(self.overflow)
        if part.delayed == EMPTY:
            return
        self._scheduled = BitMap64.deserialize(part.delayed)
        self.scheduled_count = len(self.scheduled)
        for due_ms, packed in part.delays:
            # Buckets keep entries of activated messages until the entries come due. Checked against ``scheduled``,
            # which is loaded before: an entry that fits no message would only be dropped when it comes due.
            still = [position for position in array("Q", packed) if position in self.scheduled]
            self.buckets.bucket(due_ms, part.queue_id).extend(still)
            self.buckets.size += len(still)
        # Through ``bucket`` like a new delay, although the entries are called far: the timers choose between near and
        # far by the time of the start, and not by the time of the checkpoint.
        for packed in part.far_delays:
            pairs = array("Q", packed)
            for place in range(0, len(pairs), 2):
                if pairs[place + 1] in self.scheduled:
                    self.buckets.bucket(pairs[place], part.queue_id).append(pairs[place + 1])
                    self.buckets.size += 1

    def add(self, position: int, due_ms: int, max_scheduled: int) -> None:
        """Add a delayed message."""
        # Damaged overflow counts as overflow: recovery knows no damage and must come to the same sets.
        if self.scheduled_count < max_scheduled and not self.overflow_count and not self._damaged:
            self._schedule(position, due_ms)
        else:
            self.overflow.add(position)
            self.overflow_count += 1

    def _schedule(self, position: int, due_ms: int) -> None:
        self.scheduled.add(position)
        self.scheduled_count += 1
        self.buckets.bucket(due_ms, self._queue_id).append(position)
        self.buckets.size += 1

    def give_places(self, record: DelaysScheduled) -> None:
        """Schedule messages that waited in overflow.

        The record repeats the due times of the messages, because a replay reads no bodies, and the due time of a
        message in overflow stands beside its body.
        """
        for position, due_ms in zip(unpack_runs(record.positions), record.visible_ms, strict=True):
            self.overflow.discard(position)
            self.overflow_count -= 1
            self._schedule(position, due_ms)

    def end(self, start: int, stop: int) -> None:
        """End the delays of a range of scheduled messages; their entries in buckets turn stale.

        Every position of the range must be scheduled: the count is lowered by the length of the range.
        """
        self.scheduled.remove_range(start, stop)
        self.scheduled_count -= stop - start

    def leave(self, position: int) -> bool:
        """Remove a message from its set; return False if it is in neither."""
        if position in self.scheduled:
            self.scheduled.remove(position)
            self.scheduled_count -= 1
        elif position in self.overflow:
            self.overflow.remove(position)
            self.overflow_count -= 1
        else:
            return False
        return True

    def drop_below(self, floor: int) -> None:
        """Forget the messages below a position.

        Counted anew, because a clear does not know how many of the messages were scheduled. Their entries in buckets
        turn stale.
        """
        if self.scheduled_count:
            self.scheduled.remove_range(0, floor)
            self.scheduled_count = len(self.scheduled)
        if self.overflow_count:
            self.overflow.remove_range(0, floor)
            self.overflow_count = len(self.overflow)
        if self._damaged is not None:
            self._damaged.remove_range(0, floor)

    def overflow_anew(self) -> bytes:
        """Return the overflow for a checkpoint: a restart forgets which messages are damaged."""
        if self._damaged:
            return (self.overflow | self._damaged).serialize()
        return self.overflow.serialize() if self.overflow_count else EMPTY

    def still_scheduled(self, positions: Iterable[int]) -> Runs:
        """Return those of the positions that are still scheduled.

        The others left the set before their time: their messages were cleared or have expired.
        """
        scheduled = self.scheduled
        return pack_runs(sorted(position for position in positions if position in scheduled))
