"""The calendar of schedules: a function that the broker gets from outside, like the key of receipt handles.

The core knows neither months nor time zones, because the rules of zones are files of the machine and change. The times
of a calendar are in records, so a replay calls no calendar.
"""

from collections.abc import Callable
from typing import TypeAlias

from cmqd.core.domain_errors import InvalidArgument

Calendar: TypeAlias = Callable[[str, str, int], int | None]
"""Returns the first time of (cron expression, time zone) after a time, in ms since 1970; None = no time is left.

Raises InvalidArgument if the expression is malformed or the zone is unknown. The result is always later than the given
time: a schedule would otherwise fire without end.
"""


def no_calendar(cron: str, zone: str, after_ms: int) -> int | None:
    """Refuse every expression: the default calendar of a broker."""
    raise InvalidArgument("this broker has no calendar", field="cron", value=cron, limit="none")
