"""A signal asks a run for an end; the run looks, and ends where it can be gone on with."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stop:
    """Whether a signal asked for an end."""

    def __init__(self) -> None:
        self.wanted = False
        self._kept: dict[signal.Signals, Any] = {}

    def take_over(self) -> None:
        """From now on signals are only noted. Spark has a way of its own with them, which it sets up when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._kept.setdefault(number, signal.signal(number, self._note))

    def give_back(self) -> None:
        """Signals do again what they did before."""
        for number, handler in self._kept.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True


@contextmanager
def stoppable() -> Generator[Stop]:
    """A :class:`Stop` whose signals are given back at the end."""
    stop = Stop()
    try:
        yield stop
    finally:
        stop.give_back()
