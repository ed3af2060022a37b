"""A signal asks a run for an end; the run looks, and ends where it can be gone on with."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stop:
    """A flag that a signal sets to request the end of a run."""

    def __init__(self) -> None:
        self.wanted = False
        self._kept: dict[signal.Signals, Any] = {}

    def take_over(self) -> None:
        """Note signals from now on, instead of the handling that Spark sets up when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._kept.setdefault(number, signal.signal(number, self._note))

    def give_back(self) -> None:
        """Restore the former handling of signals."""
        for number, handler in self._kept.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True


@contextmanager
def stoppable() -> Generator[Stop]:
    """Yield a :class:`Stop`, and restore the handling of signals at the end."""
    stop = Stop()
    try:
        yield stop
    finally:
        stop.give_back()
