"""Cron expressions, compared with a search minute by minute."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.core.domain_errors import InvalidArgument
from cmqd.server.loop.cron import next_time_ms, parse_cron, parse_zone
from support.cases import each_case


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def times(expression: str, after: str, count: int) -> list[str]:
    found: list[str] = []
    moment: datetime | None = at(after)
    for _ in range(count):
        assert moment is not None
        moment = parse_cron(expression).next_after(moment)
        assert moment is not None
        found.append(moment.isoformat(timespec="minutes"))
    return found


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:30", ["2026-01-01T00:01", "2026-01-01T00:02"]),
        ("0 9 * * mon-fri", "2026-01-02T09:00", ["2026-01-05T09:00", "2026-01-06T09:00"]),
        ("*/20 8-18/5 * * *", "2026-01-01T13:30", ["2026-01-01T13:40", "2026-01-01T18:00", "2026-01-01T18:20"]),
        ("59 23 31 12 *", "2025-12-31T23:59", ["2026-12-31T23:59"]),
        ("0 0 29 2 *", "2096-02-29T00:00", ["2104-02-29T00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 13 * fri", "2026-02-01T00:00", ["2026-02-06T00:00", "2026-02-13T00:00", "2026-02-20T00:00"]),
        ("0 0 */31 2 mon", "2026-01-01T00:00", ["2027-02-01T00:00", "2038-02-01T00:00"]),
        ("0 0 * * 7", "2026-01-01T00:00", ["2026-01-04T00:00"]),
        ("0 0 * * 0", "2026-01-01T00:00", ["2026-01-04T00:00"]),
        ("5,35 0,12 1 JAN,jul *", "2026-01-01T12:05", ["2026-01-01T12:35", "2026-07-01T00:05"]),
    ],
)
def test_times_of_expressions(expression: str, after: str, expected: list[str]):
    assert times(expression, after, len(expected)) == expected


@each_case(
    ("expression", "why"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("* * * * * *", "has 6 fields"),
        ("60 * * * *", "'60' as minute; it takes 0-59"),
        ("* 24 * * *", "as hour; it takes 0-23"),
        ("* * 0 * *", "as day of the month; it takes 1-31"),
        ("* * * 13 *", "as month; it takes 1-12"),
        ("* * * * 8", "as day of the week; it takes 0-7"),
        ("5-1 * * * *", "ascending"),
        ("*/0 * * * *", "steps of 1 or more"),
        ("5/10 * * * *", "a step follows * or a range"),
        ("1,,2 * * * *", "'' as minute"),
        ("-1 * * * *", "'-1' as minute"),
        ("* * * mon *", "'mon' as month"),
        ("@daily", "has 1 fields"),
        ("٣ * * * *", "'٣' as minute"),
        ("0 0 30 2 *", "matches no day of the calendar"),
        ("0 0 31 4,6,9,11 *", "matches no day of the calendar"),
        ("0 " * 200, "longer than 256 bytes"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(expression: str, why: str):
    with pytest.raises(InvalidArgument, match=re.escape(why)):
        parse_cron(expression)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    ranges = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.one_of(st.just("*"), ranges), st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    items = st.one_of(numbers.map(str), ranges, steps)
    return st.one_of(st.just("*"), st.lists(items, min_size=1, max_size=3).map(",".join))


def numbers_of(text: str, low: int, high: int) -> set[int]:
    """A second reading of a field, without bits."""
    numbers: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        numbers |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return numbers


@given(
    fields=st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)),
    after=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
)
def test_the_next_time_is_that_of_a_search_minute_by_minute(fields: tuple[str, str, str, str, str], after: datetime):
    # "*" and "*/n" mean days up to 31; this test names no day above 28, so that every month has the days that it names.
    bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    minutes, hours, days, months, weekdays = (
        numbers_of(text, *bound) for text, bound in zip(fields, bounds, strict=True)
    )
    either = not fields[2].startswith("*") and not fields[4].startswith("*")

    def matches_day(day: datetime) -> bool:
        by_day, by_weekday = day.day in days, (day.weekday() + 1) % 7 in weekdays
        return day.month in months and (by_day or by_weekday if either else by_day and by_weekday)

    found = parse_cron(" ".join(fields)).next_after(after)

    assert found is not None
    assert found > after
    assert matches_day(found)
    assert found.hour in hours
    assert found.minute in minutes
    # No day before has a match, and no minute before on the day itself.
    day = after.replace(hour=0, minute=0, second=0, microsecond=0)
    while day.date() < found.date():
        if matches_day(day):
            is_first = day.date() == after.date()
            assert is_first, f"{day} was passed over"
            later = [
                (hour, minute) for hour in hours for minute in minutes if day.replace(hour=hour, minute=minute) > after
            ]
            assert not later, f"{day} has {later}"
        day += timedelta(days=1)
    start = found.replace(hour=0, minute=0)
    earlier = [
        (hour, minute)
        for hour in hours
        for minute in minutes
        if after < start.replace(hour=hour, minute=minute) < found
    ]
    assert not earlier


# ---------------------------------------------------------------------- zones


def in_zone(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next times in UTC, after a time in UTC."""
    parsed, known = parse_cron(expression), parse_zone(zone)
    moment: int | None = round(datetime.fromisoformat(after + "+00:00").timestamp() * 1000)
    found: list[str] = []
    for _ in range(count):
        assert moment is not None
        moment = next_time_ms(parsed, known, moment)
        assert moment is not None
        found.append(datetime.fromtimestamp(moment / 1000, UTC).strftime("%m-%dT%H:%M"))
    return found


def test_without_a_shift_of_the_clock_times_are_those_of_the_zone():
    assert in_zone("0 9 * * *", "UTC", "2026-01-01T09:00", 2) == ["01-02T09:00", "01-03T09:00"]
    assert in_zone("0 9 * * *", "Europe/Berlin", "2026-01-01T09:00", 1) == ["01-02T08:00"]
    assert in_zone("0 0 * * mon", "Asia/Kathmandu", "2026-01-01T00:00", 1) == ["01-04T18:15"]


def test_a_time_that_the_clock_jumps_over_comes_later():
    """Berlin, 29 March 2026: 02:00 is followed by 03:00 (01:00 UTC)."""
    assert in_zone("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == ["03-29T01:30", "03-30T00:30"]
    assert in_zone("0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:59", 3) == [
        "03-29T01:00",
        "03-29T01:30",
        "03-30T00:00",
    ]
    assert in_zone("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:29", 3) == [
        "03-29T00:30",
        "03-29T01:00",
        "03-29T01:30",
    ]


def test_a_time_that_comes_twice_counts_once():
    """Berlin, 25 October 2026: 03:00 (01:00 UTC) is followed by 02:00."""
    assert in_zone("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["10-25T00:30", "10-26T01:30"]
    # From a time in the second of the two hours on.
    assert in_zone("45 2 * * *", "Europe/Berlin", "2026-10-25T01:30", 1) == ["10-26T01:45"]


def test_an_expression_for_every_hour_does_not_pause():
    assert in_zone("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59", 6) == [
        "10-25T00:00",
        "10-25T00:30",
        "10-25T01:00",
        "10-25T01:30",
        "10-25T02:00",
        "10-25T02:30",
    ]


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "\0", "Europe"])
def test_an_unknown_zone_is_refused(name: str):
    with pytest.raises(InvalidArgument, match="the server knows no time zone"):
        parse_zone(name)
