"""The calendar that schedules need: a function, handed to the broker as the key of receipt handles is.

The core knows neither months nor time zones, because the rules of zones are files of the machine and change. A time
that a calendar gave is in a record, so a replay asks for none.
"""

from collections.abc import Callable
from typing import TypeAlias

from cmqd.core.errors import InvalidArgument

Calendar: TypeAlias = Callable[[str, str, int], int | None]
"""Returns the first time of (cron expression, time zone) after a time, in ms since 1970; None = no time is left.

Raises InvalidArgument if the expression is malformed or the zone is unknown. The result is always later than the given
time: a schedule would otherwise fire without end.
"""


def no_calendar(cron: str, zone: str, after_ms: int) -> int | None:
    """Refuse every expression: the calendar of a broker that was given none."""
    raise InvalidArgument("this broker has no calendar", field="cron", value=cron, limit="none")
