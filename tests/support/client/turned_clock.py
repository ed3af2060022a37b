"""Time and timers of a client that a test turns by hand."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any


class TurnedTimer:
    """A timer of a :class:`TurnedClock`."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class TurnedClock:
    """Stands still until :meth:`advance`, which calls the timers that are due in their order. A timer that is set for
    a time that has passed is called in the next turn of the event loop."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._timers: list[tuple[float, int, TurnedTimer, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[..., Any], /, *arguments: Any) -> TurnedTimer:
        timer = TurnedTimer()
        heapq.heappush(self._timers, (when, next(self._numbers), timer, callback, arguments))
        if when <= self._now:
            asyncio.get_running_loop().call_soon(self.advance, 0.0)  # due already, as with a loop's own clock
        return timer

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer, callback, arguments = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if not timer.is_cancelled:
                callback(*arguments)
        self._now = until

    @property
    def timers(self) -> int:
        """Timers that are set."""
        return sum(not timer.is_cancelled for _, _, timer, _, _ in self._timers)
