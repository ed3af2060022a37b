"""A timing wheel: one coarse timer for the time limits of all connections.

Ten thousand idle connections would be ten thousand timers, each set anew at every read. Here a connection lies in one
bucket, costs one list entry, and is looked at when the timer comes round: if it has been active meanwhile it is put
into a later bucket, so activity itself costs nothing. (Varghese and Lauck's simple timing wheel.)
"""

from typing import Generic, TypeVar

T = TypeVar("T")

STEP_MS = 100
"""How late a heartbeat or the end of a time limit may be."""
BUCKETS = 1024
"""102 s in one turn; what is due later is looked at once a turn."""


class ConnectionTimer(Generic[T]):
    """Things and when to look at them. Time is any number of milliseconds that never goes back."""

    __slots__ = ("_buckets", "_step")

    def __init__(self, now_ms: int) -> None:
        self._buckets: list[list[T]] = [[] for _ in range(BUCKETS)]
        self._step = now_ms // STEP_MS

    def add(self, thing: T, due_ms: int) -> None:
        """Have ``turn`` return it at ``due_ms`` or within a step after it; earlier if that is more than a turn away."""
        step = -(-due_ms // STEP_MS)
        ahead = min(max(step - self._step, 1), BUCKETS - 1)
        self._buckets[(self._step + ahead) % BUCKETS].append(thing)

    def turn(self, now_ms: int) -> list[T]:
        """Everything to be looked at by now; whoever is to be looked at again is to be added again."""
        due: list[T] = []
        target = now_ms // STEP_MS
        # After a long sleep of the process one full turn empties every bucket.
        for _ in range(min(target - self._step, BUCKETS)):
            self._step += 1
            bucket = self._buckets[self._step % BUCKETS]
            if bucket:
                due += bucket
                self._buckets[self._step % BUCKETS] = []
        self._step = max(self._step, target)
        return due
