"""Latencies in constant memory: a histogram with logarithmic buckets that are linear inside (HDR).

A value of up to ``2 * SUB_BUCKETS`` is counted exactly; above that every power of two is cut into ``SUB_BUCKETS``
equal buckets, so a percentile is never below the exact value and at most 1 / ``SUB_BUCKETS`` above. Recording is a
list increment: cheap enough for every message, without sampling.

The unit is the caller's; loads record whole microseconds.
"""

from collections.abc import Iterable, Iterator, Mapping

PRECISION_BITS = 7
SUB_BUCKETS = 1 << PRECISION_BITS
"""128 buckets per power of two: an error below 0.8 %, less than the difference between two runs."""
HIGHEST = (1 << 40) - 1
"""Larger values are counted as this value; in microseconds twelve days."""


def bucket_of(value: int) -> int:
    """Return the index of the bucket that counts ``value`` (0 .. HIGHEST)."""
    exponent = value.bit_length() - PRECISION_BITS - 1
    if exponent <= 0:
        return value
    return (exponent << PRECISION_BITS) + (value >> exponent)


def highest_in(bucket: int) -> int:
    """Return the largest value that ``bucket`` counts."""
    if bucket < 2 * SUB_BUCKETS:
        return bucket
    exponent = (bucket >> PRECISION_BITS) - 1
    return ((bucket - (exponent << PRECISION_BITS) + 1) << exponent) - 1


BUCKETS = bucket_of(HIGHEST) + 1


class Histogram:
    """Counts of values by bucket.

    Invariants: ``count`` is the sum of all buckets; ``minimum <= maximum`` after the first recorded value.
    """

    __slots__ = ("_buckets", "count", "maximum", "minimum")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._buckets = [0] * BUCKETS
        self.count = 0
        self.minimum = HIGHEST
        self.maximum = 0
        for value in values:
            self.record(value)

    def record(self, value: int, times: int = 1) -> None:
        """Count ``value`` (below 0 as 0: two clocks may differ by their resolution)."""
        if value < 0:
            value = 0
        elif value > HIGHEST:
            value = HIGHEST
        exponent = value.bit_length() - PRECISION_BITS - 1
        if exponent <= 0:
            self._buckets[value] += times
        else:
            self._buckets[(exponent << PRECISION_BITS) + (value >> exponent)] += times
        self.count += times
        if value > self.maximum:
            self.maximum = value
        if value < self.minimum:
            self.minimum = value

    def percentile(self, percent: float) -> int:
        """Return the smallest recorded value that at least ``percent`` per cent of all values do not exceed, within the
        bound of the module; 0 for an empty histogram.
        """
        if not self.count:
            return 0
        # Exact ranks: 99.9 % of 1000 is the 999th, independent of rounding in binary fractions.
        rank = max(1, -(-round(percent * 1_000_000) * self.count // 100_000_000))
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= rank:
                return min(highest_in(bucket), self.maximum)
        return self.maximum

    def counts(self) -> Iterator[tuple[int, int]]:
        """Yield the buckets that are not empty, in rising order: largest value of the bucket, and its count."""
        for bucket, count in enumerate(self._buckets):
            if count:
                yield min(highest_in(bucket), self.maximum), count

    def add(self, other: "Histogram") -> None:
        """Add the counts of ``other``."""
        self._buckets = [mine + theirs for mine, theirs in zip(self._buckets, other._buckets, strict=True)]
        self.count += other.count
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def since(self, earlier: "Histogram") -> "Histogram":
        """Return the values that were recorded after ``earlier``, an earlier copy of this histogram."""
        histogram = Histogram()
        for bucket, (count, before) in enumerate(zip(self._buckets, earlier._buckets, strict=True)):
            if count > before:
                histogram.record(min(highest_in(bucket), self.maximum), count - before)
        return histogram

    def clear(self) -> None:
        """Reset all counts at the end of a warm-up."""
        self.__init__()

    def milliseconds(self) -> Mapping[str, float]:
        """Return the percentiles of a report in milliseconds; the recorded values must be microseconds."""
        return {
            "p50": self.percentile(50) / 1000,
            "p99": self.percentile(99) / 1000,
            "p999": self.percentile(99.9) / 1000,
        }
