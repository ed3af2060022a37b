"""Numbers of answers: whole, and within 32 bits, because CMQ's Java SDKs read counts and times as ``int``."""

import math
from datetime import datetime
from typing import Final

MAX_NUMBER: Final = 2**31 - 1


def bounded(count: int) -> int:
    """Return a count, or the largest number of 32 bits if the count is larger."""
    return min(count, MAX_NUMBER)


def seconds(moment: datetime | None) -> int:
    """Return a time in seconds since 1970; 0 = no such time."""
    return 0 if moment is None else bounded(int(moment.timestamp()))


def whole_seconds(duration: float) -> int:
    """Return a duration in whole seconds, rounded up: a duration of some milliseconds is not shown as "off"."""
    return math.ceil(duration)
