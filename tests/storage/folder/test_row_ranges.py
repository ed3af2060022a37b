"""Ranges of rows between two rows, as the broker tells them to a backup."""

from cmqd_segment.manifest import MAX_RANGES, ranges_between


def test_ranges_are_cut_to_the_asked_rows_and_bounded() -> None:
    gone = [(1, 5), (8, 8), (11, 20)]

    assert ranges_between(gone, 0, 30) == gone
    assert ranges_between(gone, 3, 12) == [(4, 5), (8, 8), (11, 12)]
    assert ranges_between(gone, 5, 7) == []
    assert ranges_between(gone, 20, 10) == []

    many = [(10 * number, 10 * number + 5) for number in range(1, 3 * MAX_RANGES)]
    bounded = ranges_between(many, 0, 1 << 40)
    assert bounded[:-1] == many[: MAX_RANGES - 1]
    assert bounded[-1] == (10 * MAX_RANGES, 10 * (3 * MAX_RANGES - 1) + 5)
