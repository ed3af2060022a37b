"""Times as an operator writes and reads them: the wall clock, in the time zone of the machine."""

import re
import time as clock
from datetime import UTC, datetime, time
from typing import Final

from cmqd_backup.refusals import Refused
from cmqd_types.units import DURATION

_TIME_OF_DAY: Final = re.compile("[0-9]{2}:")
"""With a colon: without one, the date 20261129 is a time too, 20:26:11.29."""


def wall_ms() -> int:
    """Return the wall clock, in milliseconds since 1970."""
    return clock.time_ns() // 1_000_000


def parse_moment(text: str, now_ms: int) -> int:
    """Return a typed time in milliseconds: ISO 8601, a time of today, or an age. Local without a zone.

    Raises:
        Refused: the text is no time.
    """
    typed = text.strip()
    age_ms = DURATION.parse(typed)
    if age_ms is not None:
        return now_ms - age_ms
    try:
        if _TIME_OF_DAY.match(typed):
            time_of_day = time.fromisoformat(typed)
            moment = datetime.combine(datetime.fromtimestamp(now_ms / 1000, time_of_day.tzinfo), time_of_day)
        else:
            moment = datetime.fromisoformat(typed)
        return round(moment.astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise Refused(
            f"{text[:100]!r} is not a time; write a time (2026-01-31T14:05, ...Z, ...+02:00), a time of today (14:05),"
            " or an age (10m, 2h, 1d)"
        ) from None


def shown_time(time_ms: int) -> str:
    """Return a time with its milliseconds and zone."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S") + f".{time_ms % 1000:03d} " + moment.strftime("%z")


def shown_span(span_ms: int) -> str:
    """Return a duration, roughly."""
    for name, factor in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if span_ms >= 2 * factor:
            return f"{span_ms / factor:.1f} {name}"
    return f"{span_ms / 1000:.1f} s"
