"""A timing wheel: a single coarse timer for the time limits of all connections.

Ten thousand idle connections would be ten thousand timers, set anew at every read. Here a connection lies in a bucket
and costs a list entry. When the timer reaches the bucket, a connection that was active in the meantime moves to a later
bucket, so activity itself costs no work. (Varghese and Lauck's simple timing wheel.)
"""

import time
from typing import Generic, TypeVar

T = TypeVar("T")

STEP_MS = 100
"""Largest delay of a heartbeat or time limit."""
BUCKETS = 1024
"""102 s in one turn; a connection that is due later is visited once a turn."""


class ConnectionTimer(Generic[T]):
    """Connections by the time of their next visit. Times are milliseconds that never go back."""

    __slots__ = ("_buckets", "_step")

    def __init__(self, now_ms: int) -> None:
        self._buckets: list[list[T]] = [[] for _ in range(BUCKETS)]
        self._step = now_ms // STEP_MS

    def add(self, thing: T, due_ms: int) -> None:
        """Have ``turn`` return a connection at ``due_ms`` or within a step after it; earlier if ``due_ms`` is beyond a
        turn."""
        step = -(-due_ms // STEP_MS)
        ahead = min(max(step - self._step, 1), BUCKETS - 1)
        self._buckets[(self._step + ahead) % BUCKETS].append(thing)

    def turn(self, now_ms: int) -> list[T]:
        """Remove and return the connections that are due. A connection with a later deadline must be added again."""
        due: list[T] = []
        target = now_ms // STEP_MS
        # After a long sleep of the process a full turn empties every bucket.
        for _ in range(min(target - self._step, BUCKETS)):
            self._step += 1
            bucket = self._buckets[self._step % BUCKETS]
            if bucket:
                due += bucket
                self._buckets[self._step % BUCKETS] = []
        self._step = max(self._step, target)
        return due


def local_ms() -> int:
    """Return the time of local limits, which is unrelated to broker time."""
    return time.monotonic_ns() // 1_000_000
