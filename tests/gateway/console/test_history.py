"""The bounded history of the console: buckets, folds, gaps and constant memory."""

import math

import pytest

from cmqd_gateway.console.history import NAMES, NAN, RANGES, RINGS, SERIES, Fold, History, shown

START = 1_800_000_000.0


def values(**named: float) -> list[float]:
    """A reading with these series; the others have no value."""
    return [named.get(name, NAN) for name in NAMES]


def test_a_rate_is_the_mean_over_the_time_of_the_readings_of_a_bucket() -> None:
    history = History()
    history.note(START, START + 1, values(sent=10))
    history.note(START + 1, START + 5, values(sent=20))

    part = history.read("1h", START + 5)

    assert part.step == 5
    assert part.begin + 719 * 5 == START
    assert part.columns["sent"][-1] == 18
    assert set(part.columns["sent"][:-1]) == {None}
    assert history.newest() == (START, [18 if name == "sent" else None for name in NAMES])


def test_a_bucket_keeps_the_peak_of_ages_the_low_of_space_and_the_last_count() -> None:
    history = History()
    history.note(START, START + 1, values(oldest_s=9, free_bytes=5, active=3))
    history.note(START + 1, START + 2, values(oldest_s=2, free_bytes=7, active=1))

    columns = history.read("24h", START + 2).columns

    assert (columns["oldest_s"][-1], columns["free_bytes"][-1], columns["active"][-1]) == (9, 5, 1)


def test_a_reading_of_a_minute_fills_all_fine_buckets_of_its_minute() -> None:
    history = History()
    history.note(START, START + 60, values(sent=4, active=7))

    columns = history.read("15m", START + 60).columns

    assert columns["sent"][-12:] == [4] * 12
    assert columns["active"][-12:] == [7] * 12
    assert columns["sent"][-13] is None
    assert history.read("6h", START + 60).columns["sent"][-2:] == [None, 4]


def test_a_reading_that_ends_at_the_border_of_a_bucket_does_not_begin_the_next_bucket() -> None:
    history = History()
    history.note(START, START + 5, values(sent=1))
    history.note(START + 5, START + 10, values(sent=3))

    assert history.read("1h", START + 10).columns["sent"][-2:] == [1, 3]


def test_a_gap_between_readings_stays_empty() -> None:
    history = History()
    history.note(START, START + 5, values(sent=1))
    # A reading without an earlier reading: it covers no time, and has counts alone.
    history.note(START + 20, START + 20, values(active=2))

    columns = history.read("1h", START + 20).columns

    assert columns["sent"][-4:] == [1, None, None, None]
    assert columns["active"][-4:] == [None, None, None, 2]


def test_old_buckets_make_room_and_coarser_rings_remember_them() -> None:
    history = History()
    history.note(START, START + 5, values(sent=6))
    later = START + 2 * 3_600
    history.note(later, later + 5, values(sent=1))

    assert [value for value in history.read("1h", later + 5).columns["sent"] if value is not None] == [1]
    assert [value for value in history.read("6h", later + 5).columns["sent"] if value is not None] == [6, 1]


def test_a_range_is_read_up_to_a_time_without_readings() -> None:
    history = History()
    history.note(START, START + 5, values(sent=6))

    assert history.read("15m", START + 65).columns["sent"][-13:] == [6, *[None] * 12]
    assert set(history.read("15m", START + 10_000).columns["sent"]) == {None}


@pytest.mark.parametrize("name", RANGES)
def test_each_range_has_a_ring_that_is_long_enough(name: str) -> None:
    seconds, step = RANGES[name]

    assert dict(RINGS)[step] * step >= seconds
    part = History().read(name, START)
    assert {len(column) for column in part.columns.values()} == {seconds // step}
    assert set(part.columns) == set(SERIES)


def test_the_memory_is_the_same_after_days_of_readings() -> None:
    history = History()
    before = history.size_bytes
    end = START
    for reading in range(3_000):
        begin, end = end, end + 60
        history.note(begin, end, values(sent=reading))

    assert history.size_bytes == before < 400_000
    assert len([value for value in history.read("24h", end).columns["sent"] if value is not None]) == 288


def test_a_reading_of_a_very_long_time_fills_each_bucket_once() -> None:
    history = History()
    history.note(START - 10 * 86_400, START, values(sent=2))

    assert set(history.read("1h", START).columns["sent"]) == {2}


def test_a_clock_set_back_by_a_moment_loses_no_history() -> None:
    history = History()
    history.note(START, START + 5, values(sent=6))
    history.note(START - 5, START, values(sent=100))
    history.note(START + 5, START + 10, values(sent=7))

    assert history.read("1h", START + 10).columns["sent"][-2:] == [6, 7]


def test_a_clock_set_back_by_hours_begins_the_history_anew() -> None:
    history = History()
    history.note(START, START + 5, values(sent=6))
    back = START - 7_200
    history.note(back, back + 5, values(sent=7))

    assert [value for value in history.read("6h", back + 5).columns["sent"] if value is not None] == [7]
    assert [value for value in history.read("6h", START + 5).columns["sent"] if value is not None] == [7]


def test_values_are_rounded_to_five_digits_for_the_page() -> None:
    assert [shown(value) for value in (0.0, 12.0, 1e12, 1234.5678, 0.000123456, -2.345678, NAN)] == [
        *(0, 12, 10**12, 1234.6, 0.00012346, -2.3457, None)
    ]


def test_every_series_has_a_fold() -> None:
    assert {type(fold) for fold in SERIES.values()} == {Fold}
    assert all(math.isnan(value) for value in values())
