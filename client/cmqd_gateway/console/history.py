"""The last 24 hours of figures in fixed memory: three rings of buckets, coarser as the figures get older.

    ring        buckets     for the ranges
    5 s         720         15 min and 1 h
    1 min       360         6 h
    5 min       288         24 h

A reading covers the time since the reading before it, and goes to every bucket of that time in every ring, so that a
reading a minute fills the fine ring as well as a reading each two seconds. A bucket without a reading has no values:
a plot then shows a gap, and not a line through hours that were not observed.

All memory is taken at the start: the arrays neither grow nor shrink. The module is pure; the caller has the clock.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

NAN: Final = math.nan
"""No value."""


class Fold(Enum):
    """The value of a bucket with several readings."""

    MEAN = "mean"
    """The mean over the time of the readings: rates."""
    HIGHEST = "highest"
    """The highest reading: ages and latencies, so that a coarse bucket does not hide a peak."""
    LOWEST = "lowest"
    """The lowest reading: free space."""
    LAST = "last"
    """The last reading: counts of the moment."""


SERIES: Final[Mapping[str, Fold]] = {
    # a second
    "sent": Fold.MEAN,
    "received": Fold.MEAN,
    "deleted": Fold.MEAN,
    "published": Fold.MEAN,
    "delivered": Fold.MEAN,
    "failed": Fold.MEAN,
    "bytes_in": Fold.MEAN,
    "bytes_out": Fold.MEAN,
    # messages
    "active": Fold.LAST,
    "in_flight": Fold.LAST,
    "delayed": Fold.LAST,
    "half": Fold.LAST,
    "undelivered": Fold.LAST,
    # seconds
    "oldest_s": Fold.HIGHEST,
    "oldest_undelivered_s": Fold.HIGHEST,
    # milliseconds
    "commit_p50_ms": Fold.MEAN,
    "commit_p99_ms": Fold.HIGHEST,
    "loop_lag_p99_ms": Fold.HIGHEST,
    # bytes
    "free_bytes": Fold.LOWEST,
    "log_bytes": Fold.LAST,
    "history_bytes": Fold.LAST,
    "memory_bytes": Fold.HIGHEST,
    # others
    "connections": Fold.HIGHEST,
    "waiting_receives": Fold.LAST,
    "cpu_cores": Fold.MEAN,
}
"""The names of the series, and how readings of the same bucket are joined."""
NAMES: Final = tuple(SERIES)
_FOLDS: Final = tuple(SERIES.values())

RINGS: Final = ((5, 720), (60, 360), (300, 288))
"""Seconds of a bucket, and number of buckets; the finest first."""
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "15m": (900, 5),
    "1h": (3_600, 5),
    "6h": (21_600, 60),
    "24h": (86_400, 300),
}
"""By name of a range: its seconds, and the seconds of a bucket of its ring."""
CLOCK_JUMP_SECONDS: Final = 60.0
"""A time so far before the last reading means that the clock was set back: the times of the rings are wrong."""


class Part(msgspec.Struct, frozen=True):
    """Figures of a range: columns of equal length, a bucket after the other."""

    begin: int
    """Time of the first bucket, in seconds since 1970."""
    step: int
    """Seconds of a bucket."""
    columns: dict[str, list[float | None]]
    """By series: a value for each bucket; None = no reading."""


class Ring:
    """Buckets of equal length; the newest bucket takes the place of the oldest."""

    __slots__ = ("_columns", "_covered", "_numbers", "buckets", "step")

    def __init__(self, step: int, buckets: int) -> None:
        """Take the memory of ``buckets`` buckets of ``step`` seconds."""
        self.step = step
        self.buckets = buckets
        self._numbers = array("q", [-1]) * buckets
        """By place: the number of its bucket, counted from 1970; -1 = empty."""
        self._covered = array("d", [0.0]) * buckets
        """By place: seconds of the bucket that readings cover."""
        self._columns = tuple(array("d", [NAN]) * buckets for _ in NAMES)

    def note(self, begin: float, end: float, values: Sequence[float]) -> None:
        """Add a reading of the time from ``begin`` to ``end``, with a value per series."""
        last = _bucket_before(end, self.step)
        first = max(min(int(begin // self.step), last), last - self.buckets + 1)
        for number in range(first, last + 1):
            covered = min(end, (number + 1) * self.step) - max(begin, number * self.step)
            self._join(number, max(covered, 0.0), values)

    def _join(self, number: int, covered: float, values: Sequence[float]) -> None:
        slot = number % self.buckets
        if self._numbers[slot] != number:
            self._numbers[slot] = number
            self._covered[slot] = 0.0
            for column in self._columns:
                column[slot] = NAN
        before = self._covered[slot]
        for column, fold, value in zip(self._columns, _FOLDS, values, strict=True):
            # NaN is the only value that differs from itself.
            if value == value:
                present = column[slot]
                column[slot] = value if present != present else _joined(fold, present, before, value, covered)
        self._covered[slot] = before + covered

    def read(self, until: float, seconds: int) -> Part:
        """Return the buckets of the ``seconds`` before ``until``; the last bucket is the bucket of ``until``."""
        last = _bucket_before(until, self.step)
        count = min(self.buckets, seconds // self.step)
        slots = [
            number % self.buckets if number >= 0 and self._numbers[number % self.buckets] == number else -1
            for number in range(last - count + 1, last + 1)
        ]
        columns = {
            name: [None if slot < 0 else shown(column[slot]) for slot in slots]
            for name, column in zip(NAMES, self._columns, strict=True)
        }
        return Part((last - count + 1) * self.step, self.step, columns)

    def values(self, number: int) -> list[float] | None:
        """Return the values of a bucket, None if there was no reading."""
        slot = number % self.buckets
        return [column[slot] for column in self._columns] if self._numbers[slot] == number else None

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        arrays = (self._numbers, self._covered, *self._columns)
        return sum(values.itemsize * len(values) for values in arrays)

    def clear(self) -> None:
        """Forget all readings."""
        for slot in range(self.buckets):
            self._numbers[slot] = -1


class History:
    """The rings of an account; see the module."""

    def __init__(self) -> None:
        """Take the memory of the rings."""
        self._rings = {step: Ring(step, buckets) for step, buckets in RINGS}
        self.until: float | None = None
        """Time of the last reading, in seconds since 1970; None = there is none."""

    def note(self, begin: float, end: float, values: Sequence[float]) -> None:
        """Add a reading of the time from ``begin`` to ``end``, with a value per series; ``NAN`` = no value.

        A clock that was set back by a moment loses its readings until its time goes on. A clock that was set back
        further loses the history, because the times of the buckets were wrong.
        """
        if self.until is not None and end <= self.until:
            if end > self.until - CLOCK_JUMP_SECONDS:
                return
            for ring in self._rings.values():
                ring.clear()
        self.until = end
        for ring in self._rings.values():
            ring.note(begin, end, values)

    def read(self, range_name: str, until: float) -> Part:
        """Return the figures of a range of ``RANGES`` before ``until``."""
        seconds, step = RANGES[range_name]
        return self._rings[step].read(until, seconds)

    def newest(self) -> tuple[int, list[float | None]] | None:
        """Return the bucket of the last reading in the finest ring: its time, and a value per series."""
        if self.until is None:
            return None
        ring = self._rings[RINGS[0][0]]
        number = _bucket_before(self.until, ring.step)
        values = ring.values(number)
        return None if values is None else (number * ring.step, [shown(value) for value in values])

    def readings_of(self, name: str, step: int, until: float) -> list[tuple[float, float]]:
        """Return the values of a series in the ring of ``step`` seconds, as (time of the middle of a bucket, value)."""
        ring = self._rings[step]
        part = ring.read(until, ring.buckets * step)
        return [
            (part.begin + (index + 0.5) * step, value)
            for index, value in enumerate(part.columns[name])
            if value is not None
        ]

    @property
    def size_bytes(self) -> int:
        """Memory of all rings; constant."""
        return sum(ring.size_bytes for ring in self._rings.values())


def shown(value: float) -> float | None:
    """Return a value for JSON: rounded to five digits, whole numbers as they are, None without a value."""
    if value != value:
        return None
    if value == (whole := int(value)):
        return whole
    return round(value, max(0, 4 - math.floor(math.log10(abs(value)))))


def _bucket_before(time: float, step: int) -> int:
    """Return the number of the bucket that ends at ``time`` or contains ``time``."""
    return math.ceil(time / step) - 1


def _joined(fold: Fold, present: float, before: float, value: float, covered: float) -> float:
    if fold is Fold.MEAN:
        both = before + covered
        return value if both <= 0 else (present * before + value * covered) / both
    if fold is Fold.HIGHEST:
        return max(present, value)
    if fold is Fold.LOWEST:
        return min(present, value)
    return value
