"""The forecast of the disk: when the free space ends, by the straight line through the last hours. Pure.

A forecast is made of the longest window that fits a line well: a load that began an hour ago must not vanish in a day
of rest. A forecast reaches at most 24 times as far as its window: 10 minutes of a bulk load say nothing about next
Thursday.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

WINDOWS: Final = (86_400, 43_200, 21_600, 7_200, 3_600, 1_800, 900, 600)
"""Seconds of the windows that are tried, the longest first."""
MIN_READINGS: Final = 10
MIN_COVERED: Final = 0.75
"""Part of a window that readings must cover."""
REACH: Final = 24
"""Times the length of its window that a forecast reaches."""
MIN_FIT: Final = 0.8
"""Part of the differences of the readings that the line must explain. Free space that goes down and up with the
segments of the log fits no line."""

NEW_LOW: Final = 0.5
"""Part of the loss within a window that must go below all readings of before the window."""


class DiskForecast(msgspec.Struct, frozen=True):
    """The trend of the free space."""

    full_at: float
    """Time at which no space is left, in seconds since 1970."""
    bytes_per_second: float
    """Loss of free space, positive."""
    observed_seconds: float
    """Length of the window that the trend was seen in."""


def disk_forecast(readings: Sequence[tuple[float, float]], now: float) -> DiskForecast | None:
    """Return when the disk will be full, None without a clear trend.

    Args:
        readings: (time in seconds, free bytes), the oldest first; gaps are allowed.
        now: the present time, in the same clock.
    """
    if not readings:
        return None
    newest, oldest = readings[-1], readings[0]
    for window in WINDOWS:
        if newest[0] - oldest[0] < window * MIN_COVERED:
            continue
        inside = [reading for reading in readings if reading[0] >= newest[0] - window]
        # Space that goes down and comes back with the segments of the log fits a line for some minutes. The end of a
        # trend is a new low; a low that was there before the window was followed by space that came back.
        earlier_low = min((free for time, free in readings if time < newest[0] - window), default=math.inf)
        if earlier_low - newest[1] < NEW_LOW * (inside[0][1] - newest[1]):
            continue
        forecast = _of_window(inside, now)
        if forecast is not None:
            return forecast
    return None


def _of_window(readings: Sequence[tuple[float, float]], now: float) -> DiskForecast | None:
    if len(readings) < MIN_READINGS:
        return None
    line = _line(readings)
    if line is None or line[0] >= 0 or line[1] < MIN_FIT:
        return None
    slope = line[0]
    observed = readings[-1][0] - readings[0][0]
    # From the last reading and not from the line: the page shows the last reading as the free space.
    left_seconds = readings[-1][1] / -slope
    if not math.isfinite(left_seconds) or left_seconds > REACH * observed:
        return None
    return DiskForecast(max(now, readings[-1][0] + left_seconds), -slope, observed)


def _line(readings: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return slope and fit (0 to 1) of the line with the least squares; None if all values are equal."""
    count = len(readings)
    mean_time = sum(time for time, _ in readings) / count
    mean_value = sum(value for _, value in readings) / count
    times = sum((time - mean_time) ** 2 for time, _ in readings)
    values = sum((value - mean_value) ** 2 for _, value in readings)
    both = sum((time - mean_time) * (value - mean_value) for time, value in readings)
    if not times or not values:
        return None
    return both / times, both * both / (times * values)
