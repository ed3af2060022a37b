"""Timers of a queue: the broker's lists of the times at which leases end and messages come due.

Timers are not facts: they follow from the facts, and only a broker needs them. The index fills them because the index
sees every new time. A reader of the log passes ``NO_TIMERS``.
"""

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol


class TimerEntries(Protocol):
    """The numbers that come due together."""

    def append(self, number: int, /) -> None:
        """Add a number."""
        ...

    def extend(self, numbers: Iterable[int], /) -> None:
        """Add numbers."""
        ...


class Timers(Protocol):
    """Numbers by due time and queue; implemented in ``cmqd.core.facts.deadlines``."""

    width_ms: int
    """Width of a bucket: times in the same bucket come due together."""

    @property
    def size(self) -> int:
        """Count of numbers; the index adds to the count."""
        ...

    @size.setter
    def size(self, count: int) -> None: ...

    def bucket(self, due_ms: int, queue_id: int) -> TimerEntries:
        """Return the entries that come due at ``due_ms``."""
        ...

    def of_queue(self, queue_id: int) -> "list[tuple[int, array[int]]]":
        """Return (due time in ms, numbers) of a queue, stale numbers included."""
        ...


class QueueTimers(NamedTuple):
    """The timers that the index of a queue fills."""

    leases: Timers
    """Pairs of first lease and count, by deadline."""
    delays: Timers
    """Positions of delayed messages, by due time."""
    checks: Timers
    """Positions of half messages, by the time of the next check."""


class _NoEntries:
    def append(self, number: int, /) -> None:
        pass

    def extend(self, numbers: Iterable[int], /) -> None:
        pass


class _NoTimers:
    def __init__(self) -> None:
        self.size = 0
        self.width_ms = 1
        self._entries = _NoEntries()

    def bucket(self, due_ms: int, queue_id: int) -> TimerEntries:
        return self._entries

    def of_queue(self, queue_id: int) -> "list[tuple[int, array[int]]]":
        return []


NO_TIMERS: Final = QueueTimers(_NoTimers(), _NoTimers(), _NoTimers())
"""Timers without entries."""
