"""The percentile table of HdrHistogram (``.hgrm``), an input of latency plotters."""

import math
from collections.abc import Iterator

from cmqd_load.histogram import PRECISION_BITS, SUB_BUCKETS, Histogram

TICKS_PER_HALF = 5
"""Lines per halving of the distance to 100 %, the default of HdrHistogram's own tools."""


def percentiles(histogram: Histogram) -> Iterator[tuple[int, float, int]]:
    """Yield lines of the table: a value, the share and the number of values up to this value. The last share is 1."""
    counts = list(histogram.counts())
    seen, index, percent = 0, -1, 0.0
    while seen < histogram.count:
        while index < 0 or 100 * seen < percent * histogram.count:
            index += 1
            seen += counts[index][1]
        if seen == histogram.count:
            break
        yield counts[index][0], percent / 100, seen
        halves = 2 ** (math.floor(math.log2(100 / (100 - percent))) + 1)
        percent += 100 / (TICKS_PER_HALF * halves)
    if counts:
        yield counts[-1][0], 1.0, seen


def moments(histogram: Histogram) -> tuple[float, float]:
    """Return mean and standard deviation; a value counts as the largest value of its bucket."""
    if not histogram.count:
        return 0.0, 0.0
    mean = sum(value * count for value, count in histogram.counts()) / histogram.count
    square = sum((value - mean) ** 2 * count for value, count in histogram.counts()) / histogram.count
    return mean, math.sqrt(square)


def hgrm(histogram: Histogram, unit: float = 1000.0) -> str:
    """Return the table; values are divided by ``unit``: microseconds become milliseconds."""
    lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}", ""]
    for value, share, seen in percentiles(histogram):
        inverse = "" if share == 1 else f" {1 / (1 - share):14.2f}"
        lines.append(f"{value / unit:12.3f} {share:14.12f} {seen:10d}{inverse}")
    mean, deviation = moments(histogram)
    buckets = (histogram.maximum.bit_length() or 1) - PRECISION_BITS
    lines += [
        f"#[Mean    = {mean / unit:12.3f}, StdDeviation   = {deviation / unit:12.3f}]",
        f"#[Max     = {histogram.maximum / unit:12.3f}, Total count    = {histogram.count:12d}]",
        f"#[Buckets = {max(buckets, 1):12d}, SubBuckets     = {SUB_BUCKETS:12d}]",
    ]
    return "\n".join(lines) + "\n"
