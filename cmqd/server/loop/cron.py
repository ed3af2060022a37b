"""Cron expressions: five fields, and the next minute that they match in a time zone.

The fields are minute, hour, day of the month, month and day of the week (0 and 7 are Sunday), as in crontab(5):
numbers, ranges (``1-5``), lists (``1,15``), steps (``*/10``, ``8-18/2``), names of months and weekdays (``JAN``,
``mon``). If both day fields are restricted, a day that matches either of them matches; a field that begins with ``*``
is not restricted.

This module is in the server and not in the core, because the rules of a zone are files of the machine and change. The
core is told each time once, and its record has the time, so that a replay never computes one.

A step of a search is a day, or a month without a match, so that the rarest expression costs about 1,500 steps. An
expression without any match (30 February) is refused when it is parsed.
"""

import re
from calendar import monthrange
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from cmqd.core.domain_errors import InvalidArgument

MAX_EXPRESSION_BYTES = 256
MINUTE_MS = 60_000
HORIZON_YEARS = 40
"""Years of a search: after 28 years the days of the week repeat, and a century without a leap day adds 12 years."""

_MONTHS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_WEEKDAYS: Mapping[str, int] = {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _WEEKDAYS),
)
_ITEM = re.compile(r"(?:(\*)|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,2}))?", re.ASCII)
_EVERY_HOUR = (1 << 24) - 1
_REPEATED_HOURS = timedelta(hours=4)
"""Bound of a search minute by minute; daylight saving time puts a clock back by two hours at most."""
_A_YEAR_BEFORE_A_LEAP_DAY = datetime(2000, 1, 1)


class CronExpression(msgspec.Struct, frozen=True):
    """The times of an expression; a bit for each matching number."""

    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    """Sunday is bit 0."""
    either_day: bool
    """True if both day fields are restricted."""

    @property
    def matches_every_hour(self) -> bool:
        """True if no hour of a day is left out."""
        return self.hours == _EVERY_HOUR

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first matching minute after ``moment`` (a time without a zone), or None within 40 years."""
        minute = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        last_year = minute.year + HORIZON_YEARS
        while minute.year <= last_year:
            if not self.months >> minute.month & 1:
                days = monthrange(minute.year, minute.month)[1]
                minute = minute.replace(day=1, hour=0, minute=0) + timedelta(days=days)
                continue
            if self._matches_day(minute):
                time = self._time_from(minute.hour, minute.minute)
                if time is not None:
                    return minute.replace(hour=time[0], minute=time[1])
            minute = minute.replace(hour=0, minute=0) + timedelta(days=1)
        return None

    def _matches_day(self, moment: datetime) -> bool:
        day = bool(self.days >> moment.day & 1)
        weekday = bool(self.weekdays >> moment.isoweekday() % 7 & 1)
        return day or weekday if self.either_day else day and weekday

    def _time_from(self, hour: int, minute: int) -> tuple[int, int] | None:
        """Return the first matching time of a day, from this time on."""
        if self.hours >> hour & 1 and (left := self.minutes >> minute):
            return hour, minute + _lowest(left)
        later = self.hours >> hour + 1
        return (hour + 1 + _lowest(later), _lowest(self.minutes)) if later else None


def parse_cron(text: str) -> CronExpression:
    """Parse an expression of five fields.

    Raises:
        InvalidArgument: the expression is malformed, too long, or matches no time.
    """
    if len(text.encode()) > MAX_EXPRESSION_BYTES:
        raise _refusal(text, f"is longer than {MAX_EXPRESSION_BYTES} bytes")
    fields = text.lower().split()
    if len(fields) != len(_FIELDS):
        raise _refusal(text, f"has {len(fields)} fields; it needs 5: minute, hour, day, month, day of the week")
    minutes, hours, days, months, weekdays = (
        _parse_field(text, field, *description) for field, description in zip(fields, _FIELDS, strict=True)
    )
    expression = CronExpression(
        minutes,
        hours,
        days,
        months,
        (weekdays | weekdays >> 7) & 0x7F,
        not fields[2].startswith("*") and not fields[4].startswith("*"),
    )
    if expression.next_after(_A_YEAR_BEFORE_A_LEAP_DAY) is None:
        raise _refusal(text, "matches no day of the calendar")
    return expression


def _parse_field(text: str, field: str, name: str, low: int, high: int, names: Mapping[str, int]) -> int:
    bits = 0
    for item in field.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _refusal(text, f"has {item!r} as {name}; it takes {low}-{high}, *, ranges, lists and steps")
        star, first_text, last_text, step_text = match.groups()
        step = int(step_text) if step_text else 1
        if star:
            first, last = low, high
        else:
            first = _number(text, first_text, name, names)
            # As in crontab(5), a step needs a range; "5/10" would be read in two ways.
            if step_text and last_text is None:
                raise _refusal(text, f"has {item!r} as {name}; a step follows * or a range")
            last = first if last_text is None else _number(text, last_text, name, names)
        if not low <= first <= last <= high or step < 1:
            raise _refusal(text, f"has {item!r} as {name}; it takes {low}-{high}, ascending, in steps of 1 or more")
        for number in range(first, last + 1, step):
            bits |= 1 << number
    return bits


def _number(text: str, word: str, name: str, names: Mapping[str, int]) -> int:
    if word.isdigit():
        return int(word)
    try:
        return names[word]
    except KeyError:
        raise _refusal(text, f"has {word!r} as {name}") from None


def _lowest(bits: int) -> int:
    """Return the number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def _refusal(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"cron expression {text[:MAX_EXPRESSION_BYTES]!r} {why}",
        field="cron",
        value=text,
        limit="five fields: minute, hour, day of the month, month, day of the week",
    )


def parse_zone(name: str) -> tzinfo:
    """Return a zone of the machine's tz database; UTC needs no database.

    Raises:
        InvalidArgument: the database has no such zone.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument(
            f"the server knows no time zone {name[:64]!r}; write one like UTC or Europe/Berlin",
            field="zone",
            value=name,
            limit="a name of the tz database",
        ) from None


def next_time_ms(expression: CronExpression, zone: tzinfo, after_ms: int) -> int | None:
    """Return the first time of an expression after ``after_ms``, in milliseconds since 1970, or None within 40 years.

    A time that the clock jumps over comes as much later as the clock was put forward. A time that comes twice, because
    the clock was put back, counts once, unless the expression matches every hour: ``*/10 * * * *`` does not pause.
    """
    after = datetime.fromtimestamp(after_ms // 1000, UTC)
    local = shown_after = after.astimezone(zone).replace(tzinfo=None)
    while True:
        match = expression.next_after(local)
        if match is None:
            return None
        found = match.replace(tzinfo=zone).astimezone(UTC)
        if found > after:
            break
        # The clock was put back behind ``after``: the match is the first of two equal times, and has passed.
        local = match
    # Only if the clock is changed in between, or was put back shortly before: the search costs some 15 us a minute.
    is_changed = local is not shown_after or found - after != match - shown_after
    if is_changed and expression.matches_every_hour and found - after <= _REPEATED_HOURS:
        minute = after.replace(second=0) + timedelta(minutes=1)
        while minute < found:
            shown = minute.astimezone(zone).replace(tzinfo=None)
            if expression.next_after(shown - timedelta(minutes=1)) == shown:
                return round(minute.timestamp()) * 1000
            minute += timedelta(minutes=1)
    return round(found.timestamp()) * 1000


# Refusals are not cached. Expressions and zones are small, and a firing would otherwise parse its expression again.
_parsed = lru_cache(4096)(parse_cron)
_zone_of = lru_cache(1024)(parse_zone)


@lru_cache(1024)
def _next_of(cron: str, zone: str, minute: int) -> int | None:
    # Cached, because many schedules have the same expression and fire in the same minute.
    return next_time_ms(_parsed(cron), _zone_of(zone), minute * MINUTE_MS)


def calendar(cron: str, zone: str, after_ms: int) -> int | None:
    """Return the first time of an expression in a zone after ``after_ms``; see :data:`cmqd.core.calendar.Calendar`.

    The rules of a zone are read once: an update of the tz database counts from the next start on.

    Raises:
        InvalidArgument: the expression is malformed, or the zone is unknown.
    """
    # Times are whole minutes, so the result is the same for all milliseconds of a minute.
    return _next_of(cron, zone, after_ms // MINUTE_MS)
