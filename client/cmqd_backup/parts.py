"""Parts of the list of segments of a run: files that runs share, so that the cost of a run is that of the changes.

A run lists its newest segments itself, and names parts with the other segments. The entry of a segment never changes.
The segments of a part that were reclaimed since stand beside the name of the part, until half of the part is gone.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from cmqd_segment.manifest import SegmentEntry, merge_ranges

PART_ENTRIES: Final = 512
"""Segments of a part at most: a part is read whole."""
MAX_OWN: Final = 32
"""Segments that a run lists itself at most."""


class KeptPart(NamedTuple):
    """A part of the run before that the run names too."""

    place: int
    """Index among the parts of the run before."""
    live: list[SegmentEntry]

    def gone(self, entries: Sequence[SegmentEntry]) -> list[tuple[int, int]]:
        """Return the ranges of numbers in a part with ``entries`` that the run lacks."""
        live = {entry.number for entry in self.live}
        return merge_ranges((entry.number, entry.number) for entry in entries if entry.number not in live)


class Division(NamedTuple):
    """The segments of a run, each in a single place."""

    kept: list[KeptPart]
    new: list[list[SegmentEntry]]
    """Parts that are to be written."""
    own: list[SegmentEntry]
    """Segments that the run lists itself."""


def divide(segments: Sequence[SegmentEntry], parts: Sequence[Sequence[SegmentEntry]]) -> Division:
    """Divide the segments of a run.

    Args:
        segments: of the run.
        parts: the entries of each part of the run before.
    """
    left = {entry.number: entry for entry in segments}
    kept: list[KeptPart] = []
    for place, part in enumerate(parts):
        live = [entry for entry in part if left.get(entry.number) == entry]
        if 2 * len(live) > len(part):
            kept.append(KeptPart(place, live))
            for entry in live:
                del left[entry.number]
    own = list(left.values())
    if len(own) <= MAX_OWN:
        return Division(kept, [], own)
    # With the smallest parts: without a merge, small parts would add up.
    kept.sort(key=lambda part: len(part.live))
    while kept and len(own) + len(kept[0].live) <= PART_ENTRIES:
        own += kept.pop(0).live
    own.sort(key=lambda entry: entry.number)
    return Division(kept, [own[begin : begin + PART_ENTRIES] for begin in range(0, len(own), PART_ENTRIES)], [])


def missing_ranges(
    segments: Sequence[SegmentEntry], gone: Sequence[tuple[int, int]], last_lsn: int
) -> list[tuple[int, int]]:
    """Return the ranges of rows from 1 to ``last_lsn`` that are in no segment and not in ``gone``."""
    missing: list[tuple[int, int]] = []
    next_lsn = 1
    held = [(entry.first_lsn, entry.last_lsn) for entry in segments]
    for first, last in (*merge_ranges([*held, *gone]), (last_lsn + 1, last_lsn + 1)):
        if first > next_lsn:
            missing.append((next_lsn, min(first - 1, last_lsn)))
        next_lsn = max(next_lsn, last + 1)
        if next_lsn > last_lsn:
            break
    return missing
