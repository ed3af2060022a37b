"""Stretches of positions with a number, in the order of the log: of two about a message, the later counts."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, TypeAlias

from pyroaring import BitMap64

Stretches: TypeAlias = list[tuple[int, int, int]]
"""(first position, stop position, a number about these messages): the time of a delete, or a client."""
UNKNOWN: Final = -1
"""Number of a stretch that ends the validity of those before."""


def last_stretches(stretches: Stretches) -> Stretches:
    """Return the stretches ascending and without overlap, but for those with an unknown number; the later in the list
    counts.
    """
    ascending = sorted(stretches)
    if all(before[1] <= after[0] for before, after in pairwise(ascending)):
        return [stretch for stretch in ascending if stretch[2] != UNKNOWN]
    covered = BitMap64()
    last: Stretches = []
    for start, stop, number in reversed(stretches):
        fresh = BitMap64()
        fresh.add_range(start, stop)
        fresh -= covered
        covered |= fresh
        if number != UNKNOWN:
            last += [(first, end, number) for first, end in _ranges(fresh)]
    return sorted(last)


def _ranges(positions: BitMap64) -> Iterator[tuple[int, int]]:
    """Yield the ranges of neighbours in a set as (start, stop)."""
    start = stop = -1
    for position in positions:
        if position != stop:
            if start < stop:
                yield start, stop
            start = position
        stop = position + 1
    if start < stop:
        yield start, stop
