"""Durations and times of the interface (seconds, ``timedelta``, ``datetime``) and of the wire (milliseconds)."""

import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from cmqd_types.declared import Attribute
from cmqd_types.sentences import readable_duration

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
    if (type(duration) is float or type(duration) is int) and -_MAX_MS < duration * 1000 < _MAX_MS:
        # Most durations take this short way. The comparison is False for nan and inf.
        milliseconds = round(duration * 1000)
        return 1 if milliseconds == 0 and duration > 0 else milliseconds
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, bool) or not isinstance(duration, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{field} must be seconds (a number) or a timedelta, not {duration!r}")
    else:
        seconds = duration
    if not math.isfinite(seconds):
        raise ValueError(f"{field} is {duration!r}; it must be a finite number of seconds")
    if abs(seconds) * 1000 > _MAX_MS:
        raise ValueError(f"{field} is longer than 285,000 years")
    milliseconds = round(seconds * 1000)
    if milliseconds == 0 and seconds > 0:
        return 1
    return milliseconds


def to_seconds(duration: Duration, field: str) -> float:
    """Return the seconds of a duration; see :func:`to_ms`."""
    return to_ms(duration, field) / 1000


def shown_seconds(seconds: float) -> str:
    """Return a duration for a text, in readable units: ``15 d``, ``1.5 s``."""
    return readable_duration(round(seconds * 1000))


def check_seconds(field: str, seconds: float, attribute: Attribute) -> None:
    """Check that a duration is in the range of an attribute.

    Raises:
        ValueError: the duration is out of range.
    """
    low, high = attribute.low / 1000, attribute.high / 1000
    if not low <= seconds <= high:
        raise ValueError(
            f"{field} is {shown_seconds(seconds)}; it must be {shown_seconds(low)} to {shown_seconds(high)}"
        )


def to_patience(patience: Duration | None) -> float:
    """Return the seconds of a patience; ``inf`` for None (unlimited).

    Raises:
        TypeError: the patience is not a duration.
        ValueError: the patience is not more than 0.
    """
    if patience is None:
        return math.inf
    seconds = to_seconds(patience, "patience")
    if seconds <= 0:
        raise ValueError(f"patience is {patience!r}; it must be more than 0, or None for no limit")
    return seconds


def to_datetime(milliseconds: int) -> datetime:
    """Return the UTC ``datetime`` of a wire time (milliseconds since 1970)."""
    # Not fromtimestamp(ms / 1000), which is off by a microsecond for some values.
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_moment_ms(moment: datetime | float, field: str, instead: str) -> int:
    """Return the wire time of a ``datetime`` with a zone, or of seconds since 1970; rounded to the millisecond.

    A number is refused if it cannot be meant as a time: durations and milliseconds are easily given by mistake, and
    would be taken for a moment in 1970 or in the far future.

    Args:
        moment: the time.
        field: name of the argument, for the error.
        instead: the call that takes a duration, for the error.

    Raises:
        TypeError: the moment is a duration, or neither a ``datetime`` nor a number.
        ValueError: the ``datetime`` has no zone or lies before 1970; or the number is not a time.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(
                f"{field} is {moment.isoformat()}, which names no zone; moment.astimezone() adds the local zone"
            )
        milliseconds = round((moment - _EPOCH) / timedelta(milliseconds=1))
        if milliseconds < 0:
            raise ValueError(f"{field} is {moment.isoformat()}; it must not lie before 1970")
        return milliseconds
    if isinstance(moment, timedelta):
        raise TypeError(
            f"{field} is the duration {moment!r}, and a time is needed; for a time that long ago write {instead}"
        )
    if isinstance(moment, bool) or not isinstance(moment, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{field} must be a datetime with a zone, or seconds since 1970, not {moment!r}")
    if not _FIRST_NUMBER <= moment < _END_OF_NUMBERS:
        raise ValueError(
            f"{field} is {moment!r}, which as seconds since 1970 is not a time from 2001 on; "
            f"for a time that many seconds ago write {instead}"
        )
    return round(moment * 1000)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FIRST_NUMBER = 1_000_000_000
"""September 2001, in seconds since 1970. A smaller number is a duration of up to 31 years, not a time of a message."""
_END_OF_NUMBERS = 100_000_000_000
"""The year 5138; a greater number is a time in milliseconds."""
