"""Half messages of one queue: position by message id, decisions, and checks.

Message ids and positions of half messages ascend together, so a run of three integers per send maps ids to positions.
Undecided half messages are in the set ``half`` of the index. Decisions are remembered as sets of positions until the
retention of the half message has passed, so that a repeated decision succeeds and the opposite decision is refused.
Beyond ``MAX_RUNS`` runs the oldest decisions are forgotten earlier; a transaction that shares no batch costs a run.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import takewhile

import msgspec
from pyroaring import BitMap64

from cmqd_segment.records import Runs, ranges

MAX_RUNS = 1_000_000
"""Runs of a queue, 24 bytes each; beyond this number old decisions are forgotten."""
FORGET_STEP = 1024
"""Runs examined in one step: under 2 ms even if all of them are undecided."""


class Checked(msgspec.Struct, frozen=True, gc=False):
    """Checks of a half message. Frozen, because a checkpoint in progress may refer to an entry."""

    attempts: int = 0
    last_check_ms: int = 0
    last_unknown_ms: int = 0
    """Time of the last answer "unknown"; 0 = never."""
    next_check_ms: int = 0


_NEVER_CHECKED = Checked()


class HalfTable:
    """Half messages of a queue by id and position, their decisions and checks; see the module."""

    __slots__ = (
        "_checked_at",
        "_counts",
        "_forget_above",
        "_forget_at",
        "_ids",
        "_positions",
        "checked",
        "committed",
        "rolled_back",
        "unreadable",
    )

    def __init__(self) -> None:
        self._ids = array("Q")
        self._positions = array("Q")
        self._counts = array("Q")
        self._forget_above = MAX_RUNS
        self._forget_at = 0
        """Index of the run at which the next step of forgetting begins."""
        self.committed = BitMap64()
        self.rolled_back = BitMap64()
        self.checked: dict[int, Checked] = {}
        """By position, undecided half messages only; changed by the methods of this class alone."""
        self._checked_at = BitMap64()
        """The keys of ``checked``, in order."""
        self.unreadable = BitMap64()
        """Undecided half messages with an unreadable body: an observation, not a fact. No check can be sent for them.
        """

    def __len__(self) -> int:
        """Number of runs; 0 = the table is empty."""
        return len(self._ids)

    def note(self, first_message_id: int, first_position: int, count: int) -> None:
        """Note half messages that were stored."""
        if self._ids:
            last_count = self._counts[-1]
            if self._ids[-1] + last_count == first_message_id and self._positions[-1] + last_count == first_position:
                self._counts[-1] = last_count + count
                return
        self._ids.append(first_message_id)
        self._positions.append(first_position)
        self._counts.append(count)

    def position_of(self, message_id: int) -> int | None:
        """Return the position of the half message with an id, decided or not; None = unknown or forgotten."""
        return _other(self._ids, self._positions, self._counts, message_id)

    def id_of(self, position: int) -> int | None:
        """Return the id of the half message at a position; None = unknown or forgotten."""
        return _other(self._positions, self._ids, self._counts, position)

    def end(self, positions: Runs, committed: bool) -> None:
        """Note decisions about half messages; their checks end."""
        decided = self.committed if committed else self.rolled_back
        for start, stop in ranges(positions):
            decided.add_range(start, stop)
            self.unreadable.remove_range(start, stop)
            self._forget_checked(start, stop)

    def note_check(self, position: int, checked_ms: int, next_check_ms: int) -> None:
        """Count a check, and plan the next check."""
        checks = self.checked.get(position, _NEVER_CHECKED)
        self.load_checked(position, Checked(checks.attempts + 1, checked_ms, checks.last_unknown_ms, next_check_ms))

    def note_unknown(self, positions: Iterable[int], answered_ms: int) -> None:
        """Note that a producer answered a check without a decision."""
        for position in positions:
            checks = self.checked.get(position, _NEVER_CHECKED)
            self.load_checked(position, msgspec.structs.replace(checks, last_unknown_ms=answered_ms))

    def load_checked(self, position: int, checks: Checked) -> None:
        """Replace the checks of a half message."""
        self.checked[position] = checks
        self._checked_at.add(position)

    def _forget_checked(self, start: int, stop: int) -> None:
        if not self.checked:
            return
        for position in takewhile(stop.__gt__, self._checked_at.iter_equal_or_larger(start)):
            del self.checked[position]
        self._checked_at.remove_range(start, stop)

    def unasked(self, max_checks: int, now_ms: int) -> BitMap64:
        """Return half messages that were checked fewer than ``max_checks`` times and have no planned check."""
        return BitMap64(
            [
                position
                for position, checks in self.checked.items()
                if checks.attempts and checks.attempts < max_checks and checks.next_check_ms <= now_ms
            ]
        )

    def drop_below(self, floor: int) -> None:
        """Forget the half messages below a position, decided or not."""
        # Runs ascend and do not overlap: of the runs that begin below the floor only the last may end above the floor.
        passed = bisect_left(self._positions, floor)
        if passed and self._positions[passed - 1] + self._counts[passed - 1] > floor:
            passed -= 1
        if passed:
            del self._ids[:passed], self._positions[:passed], self._counts[:passed]
            self._forget_at = 0
            self._forget_above = MAX_RUNS
        self.committed.remove_range(0, floor)
        self.rolled_back.remove_range(0, floor)
        self.unreadable.remove_range(0, floor)
        self._forget_checked(0, floor)

    def is_too_long(self) -> bool:
        """Return whether the table needs :meth:`forget_decided`."""
        return len(self._ids) > self._forget_above

    def forget_decided(self, half: BitMap64) -> None:
        """Forget the oldest decisions, one step; the undecided positions in ``half`` stay."""
        start = self._forget_at
        stop = min(start + FORGET_STEP, len(self._ids))
        first, end = self._positions[start], self._positions[stop - 1] + self._counts[stop - 1]
        kept: list[int] = []
        position = next(half.iter_equal_or_larger(first), end)
        while position < end:
            run = bisect_right(self._positions, position) - 1
            kept.append(run)
            position = next(half.iter_equal_or_larger(self._positions[run] + self._counts[run]), end)
        self.committed.remove_range(first, end)
        self.rolled_back.remove_range(first, end)
        for column in (self._ids, self._positions, self._counts):
            column[start:stop] = array("Q", [column[run] for run in kept])
        self._forget_at = start + len(kept)
        if 2 * self._forget_at >= len(self._ids):
            # The older half of the runs is undecided: another pass pays off only after many more runs.
            self._forget_at = 0
            self._forget_above = max(MAX_RUNS, 2 * len(self._ids))

    def runs(self, start: int, stop: int, max_runs: int) -> list[tuple[int, int, int]]:
        """Return up to ``max_runs`` runs that begin at position ``start`` or above, cut at ``stop``.

        A run is (first message id, first position, count).
        """
        first = bisect_left(self._positions, start)
        last = min(bisect_left(self._positions, stop), first + max_runs)
        columns = zip(self._ids[first:last], self._positions[first:last], self._counts[first:last], strict=True)
        # The newest run may have grown beyond.
        return [(message_id, position, min(count, stop - position)) for message_id, position, count in columns]

    def load(self, runs: list[tuple[int, int, int]]) -> None:
        """Load runs of a checkpoint, in their order."""
        for run in runs:
            self.note(*run)


def _other(keys: "array[int]", values: "array[int]", counts: "array[int]", key: int) -> int | None:
    run = bisect_right(keys, key) - 1
    if run < 0 or key >= keys[run] + counts[run]:
        return None
    return values[run] + key - keys[run]
