"""Broker time: wall-clock milliseconds that never jump and never run backwards.

Rules:

- At the start it is the wall clock, or the last time in the log if that is later: what was stamped stays in the past.
- From then on it follows the monotonic clock. The distance to the wall clock is closed slowly (``SLEW_MS_PER_S``), so
  that no timeout is off by more than a fraction of a percent while it is being closed.
- A jump of the wall clock by more than ``JUMP_MS`` while the broker runs is reported and not followed: neither a
  mistaken ``date -s`` nor a suspended machine makes messages expire. A jump back cancels it.

Time is read once per wake-up of the loop, by the edge alone; everything below gets it as ``now_ms``.
"""

import time
from collections.abc import Callable

SLEW_MS_PER_S = 5
"""0.5 %: ten times what NTP slews by, so a drifting crystal (at most some 200 ppm) is always caught up with."""

JUMP_MS = 60_000
"""What a clock may be wrong by and still be followed: more than any leap second or NTP step of a working machine."""

CHECK_EVERY_MS = 1_000


def wall_ms() -> int:
    """The wall clock, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class BrokerClock:
    """Broker time out of two clocks; see the module.

    Invariant: ``now_ms()`` never returns less than it did before.
    """

    __slots__ = (
        "_checked_ms",
        "_distance_ms",
        "_ignored_ms",
        "_last_ms",
        "_monotonic_ns",
        "_offset_ms",
        "_on_jump",
        "_wall",
    )

    def __init__(
        self,
        *,
        not_before_ms: int = 0,
        wall: Callable[[], int] = wall_ms,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        on_jump: Callable[[int], None] = lambda jump_ms: None,
    ) -> None:
        """Start it.

        Args:
            not_before_ms: the last time in the log.
            wall: milliseconds since the epoch, may jump.
            monotonic_ns: nanoseconds since any moment, never jumps.
            on_jump: told by how many milliseconds the wall clock jumped, when that is not followed.
        """
        self._wall = wall
        self._monotonic_ns = monotonic_ns
        self._on_jump = on_jump
        wall_start_ms = wall()
        start_ms = max(wall_start_ms, not_before_ms)
        self._checked_ms = monotonic_ns() // 1_000_000
        self._offset_ms = start_ms - self._checked_ms
        self._last_ms = start_ms
        self._ignored_ms = 0
        """Sum of the jumps that are not followed: wall time less this is what broker time slews to."""
        self._distance_ms = wall_start_ms - start_ms
        """From broker time to the wall clock as of the last check, ignored jumps left out."""

    def now_ms(self) -> int:
        """Broker time."""
        now = self._monotonic_ns() // 1_000_000 + self._offset_ms
        if now < self._last_ms:
            return self._last_ms
        self._last_ms = now
        return now

    @property
    def behind_wall_ms(self) -> int:
        """How far the wall clock is ahead of broker time (negative: behind), jumps included."""
        return self._wall() - self.now_ms()

    def check(self) -> None:
        """Look at the wall clock and move a little towards it; to be called about once a second."""
        monotonic = self._monotonic_ns() // 1_000_000
        elapsed = monotonic - self._checked_ms
        if elapsed < CHECK_EVERY_MS:
            return
        self._checked_ms = monotonic
        distance = self._wall() - self._ignored_ms - (monotonic + self._offset_ms)
        jump = distance - self._distance_ms
        if abs(jump) > JUMP_MS:
            self._ignored_ms += jump
            distance -= jump
            self._on_jump(jump)
        step = min(abs(distance), max(1, elapsed * SLEW_MS_PER_S // 1000))
        if distance < 0:
            step = -step
        self._offset_ms += step
        self._distance_ms = distance - step
