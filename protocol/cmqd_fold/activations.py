"""Activation times of messages that became active later than they were sent: for dead letters by age (policy 1).

The clock of policy 1 starts when a message first becomes active. For most messages that is the send, and the time steps
of the queue give the time. After the end of a delay, or a rewind, this module keeps the position under
the second of the activation. Entries of messages that left the queue stay until a sweep finds them, at the latest until
their second has passed, and have no effect.

A queue may have tens of thousands of seconds, so no frequent operation walks over all of them.
"""

from bisect import bisect_left, bisect_right, insort

from pyroaring import BitMap64

GRAIN_MS = 1000
"""Delay with which an overdue message may be found; policies are 300 s and longer."""

LONGEST_MS = 43_200_000
"""Of all policies."""

SWEPT_AT_ONCE = 16
"""Seconds that a query for due messages sweeps: departed messages go even if the policy never asks for their second."""
DROPPED_AT_ONCE = 64
"""Seconds from which messages below a floor are dropped at once."""


class Activations:
    """Positions by the second of their activation."""

    __slots__ = ("_by_second", "_due", "_due_until", "_seconds", "_sweep_from", "positions")

    def __init__(self) -> None:
        self._by_second: dict[int, BitMap64] = {}
        self._seconds: list[int] = []
        """Of the above, ascending."""
        self._due = BitMap64()
        """Union of all seconds up to ``_due_until``, kept because a union for each query would be slow."""
        self._due_until = -1
        self._sweep_from = 0
        self.positions = BitMap64()
        """Union of all seconds: positions for which the queue's time steps do not give the activation."""

    def note(self, positions: BitMap64, now_ms: int) -> None:
        """Note activations; a message that became active before starts anew."""
        self._forget_before(now_ms - LONGEST_MS)
        again = positions & self.positions
        if again:
            # Rewound more than once: rare, so a walk over all seconds is affordable.
            self._due -= again
            for older in self._by_second.values():
                older -= again
            self._drop_empty()
        second = now_ms // GRAIN_MS
        bucket = self._by_second.get(second)
        if bucket is None:
            self._by_second[second] = BitMap64(positions)
            insort(self._seconds, second)
        else:
            bucket |= positions
        if second <= self._due_until:
            self._due |= positions
        self.positions |= positions

    def _forget_before(self, time_ms: int) -> None:
        """Forget old activations: any policy finds their messages overdue by the send time, which was earlier."""
        passed = bisect_right(self._seconds, _last_second(time_ms))
        for second in self._seconds[:passed]:
            gone = self._by_second.pop(second)
            self.positions -= gone
            self._due -= gone
        del self._seconds[:passed]

    def take_due(self, now_ms: int, after_ms: int, live: BitMap64) -> BitMap64:
        """Return live messages that became active ``after_ms`` ago or earlier. The caller must not change the set.

        Messages stay known until they leave the queue, because a message in flight can be moved only when its lease
        ends.
        """
        until = _last_second(now_ms - after_ms)
        if until < self._due_until:
            # The policy is longer now.
            self._due = BitMap64()
            self._due_until = -1
        first = bisect_right(self._seconds, self._due_until)
        stop = bisect_right(self._seconds, until)
        if first < stop:
            new = self._seconds[first:stop]
            self._prune(new, live)
            for second in new:
                bucket = self._by_second.get(second)
                if bucket is not None:
                    self._due |= bucket
        self._due_until = until
        self._due &= live
        self._sweep(live)
        return self._due

    def _sweep(self, live: BitMap64) -> None:
        """Remove departed messages from the next few due seconds, so that such entries do not pile up."""
        first = bisect_left(self._seconds, self._sweep_from)
        stop = min(first + SWEPT_AT_ONCE, bisect_right(self._seconds, self._due_until))
        swept = self._seconds[first:stop]
        self._sweep_from = swept[-1] + 1 if swept else 0
        self._prune(swept, live)

    def _prune(self, seconds: list[int], live: BitMap64) -> None:
        """Forget messages of these seconds that are gone."""
        emptied = False
        for second in seconds:
            positions = self._by_second[second]
            gone = positions - live
            if gone:
                positions -= gone
                self.positions -= gone
                emptied = emptied or not positions
        if emptied:
            self._drop_empty(seconds)

    def _drop_empty(self, seconds: list[int] | None = None) -> None:
        """Drop empty seconds: among ``seconds``, or among all."""
        for second in list(self._seconds) if seconds is None else seconds:
            if not self._by_second[second]:
                del self._by_second[second]
        first, stop = 0, len(self._seconds)
        if seconds is not None:
            first = bisect_left(self._seconds, seconds[0])
            stop = bisect_right(self._seconds, seconds[-1])
        self._seconds[first:stop] = [second for second in self._seconds[first:stop] if second in self._by_second]

    def first_due_after(self, now_ms: int, after_ms: int) -> int | None:
        """Return when the first second that is younger than ``after_ms`` reaches that age."""
        first_later = bisect_right(self._seconds, _last_second(now_ms - after_ms))
        return (self._seconds[first_later] + 1) * GRAIN_MS + after_ms if first_later < len(self._seconds) else None

    def drop_below(self, floor: int) -> None:
        """Forget messages below a floor: in the union at once, in the oldest few seconds now.

        Entries that stay in later seconds are not live and never will be again.
        """
        if not self.positions or self.positions[0] >= floor:
            return
        self.positions.remove_range(0, floor)
        self._due.remove_range(0, floor)
        if not self.positions:
            self._by_second.clear()
            self._seconds.clear()
            return
        dropped = self._seconds[:DROPPED_AT_ONCE]
        for second in dropped:
            self._by_second[second].remove_range(0, floor)
        self._drop_empty(dropped)

    def entries(self) -> list[tuple[int, bytes]]:
        """Return (time in ms, positions) for a checkpoint."""
        return [(second * GRAIN_MS, self._by_second[second].serialize()) for second in self._seconds]

    def load(self, entries: list[tuple[int, bytes]]) -> None:
        """Load the entries of a checkpoint."""
        for time_ms, packed in entries:
            self.note(BitMap64.deserialize(packed), time_ms)


def _last_second(time_ms: int) -> int:
    """Return the last second that is over at ``time_ms``."""
    return time_ms // GRAIN_MS - 1
