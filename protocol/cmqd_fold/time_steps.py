"""Send times of the messages of a queue: a bounded staircase over positions.

Times never decrease along a queue, so a step (first position, times of the first and of the last message) is enough to
move the floor of retention over many messages at once. A step spans at least ``grain_ms``. Beyond ``MAX_STEPS``
neighbours are merged and the grain doubles, so a queue needs less than 400 KiB whatever its backlog.
"""

from array import array
from bisect import bisect_left, bisect_right

MAX_STEPS = 16_384
"""An even number; see ``_merge``."""

FIRST_GRAIN_MS = 100


class TimeSteps:
    """The staircase of one queue; empty while the queue remembers no message."""

    __slots__ = ("_ends", "_positions", "_starts", "grain_ms")

    def __init__(self) -> None:
        self.grain_ms = FIRST_GRAIN_MS
        self._positions = array("Q")
        self._starts = array("Q")
        self._ends = array("Q")

    def __len__(self) -> int:
        return len(self._positions)

    def note(self, position: int, enqueue_ms: int) -> bool:
        """Note the send of a message, in order of positions and times. Return True if a step was added."""
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
        # The number of steps is odd here: the last step has no neighbour.
        last = self._ends[-1]
        self._ends = self._ends[1::2]
        self._ends.append(last)

    def sent_at(self, position: int) -> int:
        """Return a time at or shortly before the send of a message; 0 for a position below the first step."""
        step = bisect_right(self._positions, position) - 1
        return self._starts[step] if step >= 0 else 0

    def first_start_ms(self) -> int | None:
        """Return a time at or before the send of every message; None without steps."""
        return self._starts[0] if self._starts else None

    def first_end_ms(self) -> int | None:
        """Return the time of the last message of the first step; None without steps."""
        return self._ends[0] if self._ends else None

    def floor_at(self, sent_ms: int, next_position: int) -> int:
        """Return the position below which all messages were sent at or before ``sent_ms``, by whole steps."""
        passed = bisect_right(self._ends, sent_ms)
        if passed == 0:
            return 0
        return self._positions[passed] if passed < len(self._positions) else next_position

    def sent_by(self, position: int) -> int:
        """Return a time at or shortly after the send of a message; 0 for a position below the first step."""
        step = bisect_right(self._positions, position) - 1
        return self._ends[step] if step >= 0 else 0

    def next_end_ms(self, after_ms: int) -> int | None:
        """Return the end of the first step that ended after a time."""
        step = bisect_right(self._ends, after_ms)
        return self._ends[step] if step < len(self._ends) else None

    def around(self, sent_ms: int, next_position: int) -> tuple[int, int]:
        """Return positions ``(low, high)``: messages below ``low`` were sent before ``sent_ms``, messages from ``high``
        on were not.
        """
        step = bisect_left(self._ends, sent_ms)
        if step == len(self._ends):
            return next_position, next_position
        low = self._positions[step]
        if self._starts[step] >= sent_ms:
            return low, low
        return low, self._positions[step + 1] if step + 1 < len(self._positions) else next_position

    def drop_below(self, position: int) -> None:
        """Forget the steps that end below ``position``."""
        passed = bisect_right(self._positions, position) - 1
        if passed > 0:
            del self._positions[:passed]
            del self._starts[:passed]
            del self._ends[:passed]

    def no_later_than(self, time_ms: int) -> None:
        """Lower later times to ``time_ms``, to which broker time stepped back."""
        for times in (self._starts, self._ends):
            for step in range(bisect_right(times, time_ms), len(times)):
                times[step] = time_ms

    def clear(self) -> None:
        """Forget all steps."""
        self.grain_ms = FIRST_GRAIN_MS
        for column in (self._positions, self._starts, self._ends):
            del column[:]

    def packed(self) -> tuple[bytes, bytes, bytes]:
        """Return positions, starts and ends for a checkpoint."""
        return self._positions.tobytes(), self._starts.tobytes(), self._ends.tobytes()

    def load(self, positions: bytes, starts: bytes, ends: bytes) -> None:
        """Load the columns of a checkpoint."""
        self.clear()
        self._positions.frombytes(positions)
        self._starts.frombytes(starts)
        self._ends.frombytes(ends)
        while len(self._positions) * self.grain_ms * 2 < (self._starts[-1] - self._starts[0] if self._starts else 0):
            if len(self._positions) < MAX_STEPS // 2:
                break
            self.grain_ms *= 2
