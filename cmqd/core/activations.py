"""When messages became active that did so later than they were sent: for dead letters by age (policy 1).

The clock of policy 1 starts when a message first becomes active: mostly when it is sent, and then the time steps of the
queue tell. For the others (a delay ended, a rewind brought them back) their positions are kept by the second in which
it happened. Entries of messages that are gone stay until their second has passed and mean nothing.
"""

from pyroaring import BitMap64

GRAIN_MS = 1000
"""How late a message may be found overdue; policies are 300 s and longer."""

LONGEST_MS = 43_200_000
"""Of all policies."""


class Activations:
    """Positions by the second of their activation."""

    __slots__ = ("_by_second", "positions")

    def __init__(self) -> None:
        self._by_second: dict[int, BitMap64] = {}
        """Ascending."""
        self.positions = BitMap64()
        """Of all seconds together: the queue's time steps say nothing of these."""

    def note(self, positions: BitMap64, now_ms: int) -> None:
        """These became active; a message that did so before starts anew."""
        self._forget_before(now_ms - LONGEST_MS)
        second = now_ms // GRAIN_MS
        if positions & self.positions:
            # Rewound more than once. There may be tens of thousands of seconds, so not for each delay that ends.
            for older in self._by_second.values():
                older -= positions
        held = self._by_second.get(second)
        if held is None:
            is_late = bool(self._by_second) and second < next(reversed(self._by_second))
            self._by_second[second] = BitMap64(positions)
            if is_late:
                self._by_second = dict(sorted(self._by_second.items()))
        else:
            held |= positions
        self.positions |= positions

    def _forget_before(self, time_ms: int) -> None:
        """Those are overdue by any policy, and so they are by the time of their sending, which was earlier."""
        while self._by_second:
            second = next(iter(self._by_second))
            if (second + 1) * GRAIN_MS > time_ms:
                break
            self.positions -= self._by_second.pop(second)

    def take_due(self, now_ms: int, after_ms: int, live: BitMap64) -> BitMap64:
        """Positions of live messages that became active ``after_ms`` ago or earlier; they stay known until they are
        gone, since one in flight can only be moved when its lease ends.
        """
        due = BitMap64()
        empty: list[int] = []
        for second, positions in self._by_second.items():
            if (second + 1) * GRAIN_MS + after_ms > now_ms:
                break
            gone = positions - live
            if gone:
                positions -= gone
                self.positions -= gone
            if positions:
                due |= positions
            else:
                empty.append(second)
        for second in empty:
            del self._by_second[second]
        return due

    def first_due_after(self, now_ms: int, after_ms: int) -> int | None:
        """When the first second that is not ``after_ms`` old by now will be so."""
        for second in self._by_second:
            due_ms = (second + 1) * GRAIN_MS + after_ms
            if due_ms > now_ms:
                return due_ms
        return None

    def drop_below(self, floor: int) -> None:
        """Forget messages that are gone."""
        if self.positions and self.positions[0] < floor:
            self.positions.remove_range(0, floor)
            for positions in self._by_second.values():
                positions.remove_range(0, floor)
            self._by_second = {second: positions for second, positions in self._by_second.items() if positions}

    def entries(self) -> list[tuple[int, bytes]]:
        """(time in ms, positions) for a checkpoint."""
        return [(second * GRAIN_MS, positions.serialize()) for second, positions in self._by_second.items()]

    def load(self, entries: list[tuple[int, bytes]]) -> None:
        """Take back what ``entries`` gave."""
        for time_ms, packed in entries:
            self.note(BitMap64.deserialize(packed), time_ms)
