"""Durations and times of the interface (seconds, ``timedelta``, ``datetime``) and of the wire (milliseconds)."""

import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

Duration: TypeAlias = float | timedelta
"""Seconds (``1.5``, ``30``) or a ``timedelta``; kept to the millisecond."""

_MAX_MS = 2**53
"""Longest duration (285,000 years): a larger float no longer counts single milliseconds."""


def to_ms(duration: Duration, field: str) -> int:
    """Return the milliseconds of a duration, rounded; a positive duration never becomes 0. The server checks ranges.

    Raises:
        TypeError: the duration is neither a number nor a ``timedelta``.
        ValueError: the duration is not finite, or absurdly long.
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, bool) or not isinstance(duration, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{field} must be seconds (a number) or a timedelta, not {duration!r}")
    else:
        seconds = duration
    if not math.isfinite(seconds) or abs(seconds) * 1000 > _MAX_MS:
        raise ValueError(f"{field} is {duration!r}; it must be a finite number of seconds")
    milliseconds = round(seconds * 1000)
    if milliseconds == 0 and seconds > 0:
        return 1
    return milliseconds


def to_seconds(duration: Duration, field: str) -> float:
    """Return the seconds of a duration; see :func:`to_ms`."""
    return to_ms(duration, field) / 1000


def to_datetime(milliseconds: int) -> datetime:
    """Return the UTC ``datetime`` of a wire time (milliseconds since 1970)."""
    # Not fromtimestamp(ms / 1000), which is off by a microsecond for some values.
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_epoch_ms(moment: datetime | float, field: str) -> int:
    """Return the wire time of a ``datetime`` with a zone, or of seconds since 1970; rounded to the millisecond.

    Raises:
        TypeError: the moment is neither a ``datetime`` nor a number.
        ValueError: the ``datetime`` has no zone, or the time lies before 1970 or absurdly far ahead.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{field} is {moment!r}, which names no zone; moment.astimezone() takes it as local time")
        milliseconds = round((moment - _EPOCH) / timedelta(milliseconds=1))
    else:
        milliseconds = to_ms(moment, field)
    if milliseconds < 0:
        raise ValueError(f"{field} is {moment!r}; it must not lie before 1970")
    return milliseconds


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
