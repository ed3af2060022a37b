"""The time since which clients can reach the broker without a pause, told to the core.

A queue with ``auto_delete_after_ms`` is deleted when the queue was not used for that time. Time in which clients cannot
use the queue does not count: before the server listens, after it has begun to drain, and while the process is stopped.
A pause is seen afterwards, as a gap between two calls of ``pass_time``, which the server makes ten times a
second and before each tick. (A suspended machine needs no gap: broker time stands still then.)

The gap is measured in time of the machine, not in broker time, which tests turn at will.
"""

from collections.abc import Callable

from cmqd.core.runtime.runtime import Gates

LONGEST_GAP_S = 5.0
"""Fifty beats of the server. A loop that is only busy stays far below."""


class ListeningTime:
    """Keeps ``Gates.listening_since_ms``; see the module."""

    __slots__ = ("_gates", "_passed_s", "_timer")

    def __init__(self, gates: Gates, timer: Callable[[], float]) -> None:
        """Begin as not listening; ``timer`` returns seconds of a clock that never goes back."""
        self._gates = gates
        self._timer = timer
        self._passed_s = timer()
        """Time of the last call."""
        gates.listening_since_ms = None

    def begin(self, now_ms: int) -> None:
        """Note that the server listens, at the broker time ``now_ms``."""
        self._passed_s = self._timer()
        self._gates.listening_since_ms = now_ms

    def pass_time(self, now_ms: int) -> None:
        """Note that the process runs; after a pause, clients can reach the broker since ``now_ms``, in broker time."""
        timer_s = self._timer()
        if timer_s - self._passed_s > LONGEST_GAP_S and self._gates.listening_since_ms is not None:
            self._gates.listening_since_ms = now_ms
        self._passed_s = timer_s

    def end(self) -> None:
        """Note that the server accepts no request any more."""
        self._gates.listening_since_ms = None
