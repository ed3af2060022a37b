"""The percentile table, and the parts of a histogram that it needs."""

from hypothesis import given
from hypothesis import strategies as st

from cmqd_load.hgrm import hgrm, moments, percentiles
from cmqd_load.histogram import Histogram


def test_the_table_of_ten_values() -> None:
    assert hgrm(Histogram(range(1000, 11_000, 1000)), unit=1000.0).splitlines() == [
        "       Value     Percentile TotalCount 1/(1-Percentile)",
        "",
        "       1.003 0.000000000000          1           1.00",
        "       1.003 0.100000000000          1           1.11",
        "       2.007 0.200000000000          2           1.25",
        "       3.007 0.300000000000          3           1.43",
        "       4.015 0.400000000000          4           1.67",
        "       5.023 0.500000000000          5           2.00",
        "       6.015 0.550000000000          6           2.22",
        "       6.015 0.600000000000          6           2.50",
        "       7.007 0.650000000000          7           2.86",
        "       7.007 0.700000000000          7           3.33",
        "       8.031 0.750000000000          8           4.00",
        "       8.031 0.775000000000          8           4.44",
        "       8.031 0.800000000000          8           5.00",
        "       9.023 0.825000000000          9           5.71",
        "       9.023 0.850000000000          9           6.67",
        "       9.023 0.875000000000          9           8.00",
        "       9.023 0.887500000000          9           8.89",
        "       9.023 0.900000000000          9          10.00",
        "      10.000 1.000000000000         10",
        "#[Mean    =        5.513, StdDeviation   =        2.875]",
        "#[Max     =       10.000, Total count    =           10]",
        "#[Buckets =            7, SubBuckets     =          128]",
    ]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_the_table_rises_to_all_values_and_agrees_with_the_percentiles(values: list[int]) -> None:
    histogram = Histogram(values)
    lines = list(percentiles(histogram))

    assert lines[-1] == (max(values), 1.0, len(values))
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    for value, share, seen in lines[:-1]:
        assert seen >= share * len(values)
        assert value <= histogram.percentile(min(100 * seen / len(values), 100.0))


def test_an_empty_histogram_has_a_table_without_lines() -> None:
    assert hgrm(Histogram()).splitlines()[2].startswith("#[Mean    =        0.000")


@given(st.lists(st.integers(0, 10**6), max_size=30), st.lists(st.integers(0, 10**6), max_size=30))
def test_the_values_since_an_earlier_copy_are_those_recorded_after_it(before: list[int], after: list[int]) -> None:
    histogram, earlier = Histogram(before + after), Histogram(before)

    assert list(histogram.since(earlier).counts())[:-1] == list(Histogram(after).counts())[:-1]
    assert histogram.since(earlier).count == len(after)


def test_mean_and_deviation() -> None:
    assert moments(Histogram([1, 3])) == (2.0, 1.0)
    assert moments(Histogram()) == (0.0, 0.0)
