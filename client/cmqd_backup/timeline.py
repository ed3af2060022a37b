"""The times that a backup can restore: pure, from its runs.

A run has every message that was wanted at its last row. Rows behind that row lead to later times, as far as the next
run has them without a gap: rows between two runs are gone if the broker reclaimed them before the second.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cmqd_backup.runs import Run
from cmqd_segment.manifest import SegmentEntry


class Stretch(NamedTuple):
    """Times that can be restored from one run on: from its last row to the last row without a gap behind it."""

    run: Run
    following: Run | None
    """The run that has the rows behind ``run``; None for the newest run."""
    last_lsn: int
    until_ms: int
    """The last time, by the clock of ``run``: right to a change of the clock's offset in between."""

    @property
    def is_followed(self) -> bool:
        """True if the stretch reaches the next run: no time between the two is missing."""
        return self.following is not None and self.last_lsn == self.following.last_lsn

    def segments(self, lsn: int) -> list[SegmentEntry]:
        """Return the segments for a restore to a row of the stretch, ascending."""
        entries = {entry.number: entry for entry in self.run.manifest.segments}
        if self.following is not None and lsn > self.run.last_lsn:
            for entry in self.following.manifest.segments:
                if entry.last_lsn > self.run.last_lsn and entry.first_lsn <= lsn:
                    entries[entry.number] = entry
        return [entries[number] for number in sorted(entries)]


class Gap(NamedTuple):
    """Times between two runs that cannot be restored, because rows are missing."""

    after_ms: int
    """The last time before the gap."""
    until_ms: int
    """The first time behind the gap."""
    first_lsn: int
    last_lsn: int


def stretches(runs: Sequence[Run]) -> list[Stretch]:
    """Return the stretches of all runs, ascending."""
    found: list[Stretch] = []
    for index, run in enumerate(runs):
        following = runs[index + 1] if index + 1 < len(runs) else None
        last_lsn, until_ms = run.last_lsn, run.until_ms
        if following is not None:
            for entry in following.manifest.segments:
                if entry.first_lsn <= last_lsn + 1 <= entry.last_lsn:
                    last_lsn, until_ms = entry.last_lsn, entry.last_ms + run.offset_ms
            if last_lsn == following.last_lsn:
                until_ms = following.wall_ms
        found.append(Stretch(run, following, last_lsn, until_ms))
    return found


def gaps(parts: Sequence[Stretch]) -> list[Gap]:
    """Return the gaps between stretches, ascending."""
    return [
        Gap(part.until_ms, part.following.wall_ms, part.last_lsn + 1, part.following.last_lsn)
        for part in parts
        if part.following is not None and not part.is_followed
    ]
