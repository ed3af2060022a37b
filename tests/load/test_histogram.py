"""The histogram against exact percentiles."""

import math

from hypothesis import given
from hypothesis import strategies as st

from cmqd_load.histogram import BUCKETS, HIGHEST, SUB_BUCKETS, Histogram, bucket_of, highest_in

values = st.integers(0, HIGHEST) | st.integers(0, 5_000)
percents = st.sampled_from([0.0, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0])


def exact_percentile(recorded: list[int], percent: float) -> int:
    rank = max(1, math.ceil(round(percent * len(recorded) / 100, 9)))
    return sorted(recorded)[rank - 1]


@given(values)
def test_every_value_is_in_a_bucket_that_is_at_most_one_part_in_128_wide(value: int):
    highest = highest_in(bucket_of(value))

    assert value <= highest
    assert (highest - value) * SUB_BUCKETS <= value


@given(values)
def test_buckets_follow_one_another_without_gap_or_overlap(value: int):
    bucket = bucket_of(value)

    assert bucket_of(highest_in(bucket)) == bucket
    assert bucket_of(highest_in(bucket) + 1) == bucket + 1


def test_small_values_are_counted_exactly():
    assert [highest_in(bucket_of(value)) for value in range(2 * SUB_BUCKETS)] == list(range(2 * SUB_BUCKETS))


def test_the_highest_value_has_the_last_bucket():
    assert bucket_of(HIGHEST) == BUCKETS - 1


@given(st.lists(values, min_size=1, max_size=300), percents)
def test_a_percentile_is_never_below_the_exact_one_and_at_most_one_part_in_128_above(
    recorded: list[int], percent: float
):
    exact = exact_percentile(recorded, percent)

    found = Histogram(recorded).percentile(percent)

    assert exact <= found <= exact + exact // SUB_BUCKETS


@given(st.lists(values, max_size=50), st.lists(values, max_size=50))
def test_adding_two_histograms_is_recording_both(first: list[int], second: list[int]):
    together = Histogram(first)

    together.add(Histogram(second))

    both = Histogram(first + second)
    assert (together.count, together.minimum, together.maximum) == (both.count, both.minimum, both.maximum)
    assert [together.percentile(p) for p in range(101)] == [both.percentile(p) for p in range(101)]


def test_a_value_recorded_several_times_counts_several_times():
    histogram = Histogram([1])

    histogram.record(100, times=99)

    assert histogram.count == 100
    assert histogram.percentile(1) == 1
    assert histogram.percentile(2) == 100


def test_values_out_of_range_are_counted_at_the_ends():
    histogram = Histogram([-5, HIGHEST + 1])

    assert (histogram.minimum, histogram.maximum) == (0, HIGHEST)


def test_an_empty_histogram_has_no_latency():
    assert Histogram().milliseconds() == {"p50": 0.0, "p99": 0.0, "p999": 0.0}


def test_microseconds_are_told_as_milliseconds():
    assert Histogram([1_500]).milliseconds()["p50"] == 1.5


def test_a_cleared_histogram_is_as_new():
    histogram = Histogram([7, 8, 9])

    histogram.clear()

    assert (histogram.count, histogram.maximum, histogram.percentile(50)) == (0, 0, 0)
