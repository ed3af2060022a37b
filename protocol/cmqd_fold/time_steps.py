"""When the messages of a queue were sent: a bounded staircase over its positions.

Times never decrease along a queue, so a step (first position, time of its first and of its last message) is enough to
move the floor of retention over many messages at once. A step spans at least ``grain_ms``; when there are too many,
neighbours are merged and the grain doubles, so memory stays under 400 KiB a queue whatever its backlog.
"""

from array import array
from bisect import bisect_left, bisect_right

MAX_STEPS = 16_384
"""An even number; see ``_merge``."""


class TimeSteps:
    """The staircase of one queue; empty when nothing is held."""

    __slots__ = ("_ends", "_positions", "_starts", "grain_ms")

    def __init__(self) -> None:
        self.grain_ms = 100
        self._positions = array("Q")
        self._starts = array("Q")
        self._ends = array("Q")

    def __len__(self) -> int:
        return len(self._positions)

    def note(self, position: int, enqueue_ms: int) -> bool:
        """A message was sent; positions and times must not decrease. True if a step was added."""
        if self._starts and enqueue_ms - self._starts[-1] < self.grain_ms:
            self._ends[-1] = enqueue_ms
            return False
        self._positions.append(position)
        self._starts.append(enqueue_ms)
        self._ends.append(enqueue_ms)
        if len(self._positions) > MAX_STEPS:
            self._merge()
        return True

    def _merge(self) -> None:
        self.grain_ms *= 2
        self._positions = self._positions[::2]
        self._starts = self._starts[::2]
        # One more than an even number: the last stays alone.
        last = self._ends[-1]
        self._ends = self._ends[1::2]
        self._ends.append(last)

    def sent_at(self, position: int) -> int:
        """A time at or shortly before that of the message at ``position``; 0 if it is below the first step."""
        at = bisect_right(self._positions, position) - 1
        return self._starts[at] if at >= 0 else 0

    def first_end_ms(self) -> int | None:
        """The time of the last message of the first step."""
        return self._ends[0] if self._ends else None

    def floor_at(self, sent_ms: int, next_position: int) -> int:
        """The position below which every message was sent at or before ``sent_ms``, by whole steps."""
        passed = bisect_right(self._ends, sent_ms)
        if passed == 0:
            return 0
        return self._positions[passed] if passed < len(self._positions) else next_position

    def sent_by(self, position: int) -> int:
        """A time at or shortly after that of the message at ``position``; 0 if it is below the first step."""
        at = bisect_right(self._positions, position) - 1
        return self._ends[at] if at >= 0 else 0

    def next_end_ms(self, after_ms: int) -> int | None:
        """When the first step ended that did so after a time."""
        at = bisect_right(self._ends, after_ms)
        return self._ends[at] if at < len(self._ends) else None

    def around(self, sent_ms: int, next_position: int) -> tuple[int, int]:
        """Positions ``(low, high)``: all below the one were sent before ``sent_ms``, all from the other on not."""
        at = bisect_left(self._ends, sent_ms)
        if at == len(self._ends):
            return next_position, next_position
        low = self._positions[at]
        if self._starts[at] >= sent_ms:
            return low, low
        return low, self._positions[at + 1] if at + 1 < len(self._positions) else next_position

    def drop_below(self, position: int) -> None:
        """Forget the steps whose messages all stand below ``position``."""
        passed = bisect_right(self._positions, position) - 1
        if passed > 0:
            del self._positions[:passed]
            del self._starts[:passed]
            del self._ends[:passed]

    def no_later_than(self, time_ms: int) -> None:
        """Take messages with a later time for sent at ``time_ms``; broker time stepped back to it."""
        for times in (self._starts, self._ends):
            for at in range(bisect_right(times, time_ms), len(times)):
                times[at] = time_ms

    def clear(self) -> None:
        """Forget all steps."""
        self.__init__()

    def packed(self) -> tuple[bytes, bytes, bytes]:
        """Positions, starts and ends for a checkpoint."""
        return self._positions.tobytes(), self._starts.tobytes(), self._ends.tobytes()

    def load(self, positions: bytes, starts: bytes, ends: bytes) -> None:
        """Take back what ``packed`` gave."""
        self.clear()
        self._positions.frombytes(positions)
        self._starts.frombytes(starts)
        self._ends.frombytes(ends)
        while len(self._positions) * self.grain_ms * 2 < (self._starts[-1] - self._starts[0] if self._starts else 0):
            if len(self._positions) < MAX_STEPS // 2:
                break
            self.grain_ms *= 2
