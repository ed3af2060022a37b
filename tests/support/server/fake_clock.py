"""Clocks that a test moves by hand."""

EPOCH_MS = 1_700_000_000_000
"""A moment for tests to start at: late in 2023, far from zero and from the present."""


class FakeClock:
    """A wall clock and a monotonic clock over one hidden time; ``now_ms`` is the broker's time for the core.

    ``advance`` lets time pass on both; ``jump`` moves the wall clock alone, as ``date -s`` or a suspended machine does.
    Time never passes by itself.
    """

    def __init__(self, wall_ms: int = EPOCH_MS) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 5_000

    def wall(self) -> int:
        return self._wall_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ms * 1_000_000

    def now_ms(self) -> int:
        return self.wall()

    def advance(self, ms: int) -> None:
        self._wall_ms += ms
        self._monotonic_ms += ms

    def jump(self, ms: int) -> None:
        self._wall_ms += ms


class StoppedTimer:
    """Seconds that pass only when a test says so: of I/O batches, and of the CPU."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds
