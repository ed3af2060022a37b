"""Sets of rows of a log, in tasks and on the driver. No Spark."""

import pickle
import random

import pytest

from pyspark_cmqd.sending.default_ids import MAX_NAMED, DefaultIds, DoubledRowsError, LogRows, check_disjoint

pytestmark = pytest.mark.spark


def rows_of(*rows: tuple[int, int]) -> LogRows:
    made = LogRows()
    assert made.add(rows) == []
    return pickle.loads(pickle.dumps(made.compact()))


def test_sets_hold_the_rows_that_they_were_given() -> None:
    choose = random.Random(7)
    known: set[tuple[int, int]] = set()
    made = LogRows()
    for _ in range(200):
        rows = [(choose.randrange(300), choose.choice((0, 1, 255, 256, 70_000))) for _ in range(choose.randrange(1, 9))]
        doubled = made.add(rows)
        fresh = dict.fromkeys(rows).keys() - known
        assert bool(doubled) == (len(fresh) < len(rows))
        known |= fresh
    assert set(made.names(10_000)) == {f"{lsn}:{index}" for lsn, index in known}
    assert len(made) == len(known)


def test_tasks_of_different_rows_pass_and_their_sets_stay_as_they_were() -> None:
    tasks = [rows_of((7, 0), (7, 1)), rows_of((7, 2), (8, 300)), LogRows(), rows_of((8, 0))]

    for _ in range(2):
        check_disjoint(tasks)

    assert [len(rows) for rows in tasks] == [2, 2, 0, 1]


def test_rows_of_two_tasks_are_named() -> None:
    with pytest.raises(DoubledRowsError) as refused:
        check_disjoint([rows_of((7, 0), (7, 300)), rows_of((9, 0)), rows_of((7, 300), (9, 0)), rows_of((9, 0))])

    assert "the same rows of the log: 9:0, 7:300 (lsn:row_index)" in str(refused.value)
    assert "the later was not stored. Give the rows ids of their own with dedupIdColumn" in str(refused.value)
    assert "Rows of two logs can have the same lsn and row_index" in str(refused.value)


def test_the_error_names_a_bounded_number_of_rows() -> None:
    many = [(7, index) for index in range(1_000)]

    with pytest.raises(DoubledRowsError) as refused:
        check_disjoint([rows_of(*many), rows_of(*many)])
    assert f" and {1_000 - MAX_NAMED} others (lsn:row_index)" in str(refused.value)

    with pytest.raises(DoubledRowsError) as refused:
        DefaultIds("", "w").take([(number, lsn, index) for number, (lsn, index) in enumerate(many * 2)])
    assert str(refused.value).count("7:") == MAX_NAMED


def test_a_set_of_neighbours_is_small_on_its_way_to_the_driver() -> None:
    full_rows, lone_sends = LogRows(), LogRows()
    full_rows.add((lsn, index) for lsn in range(1, 1_001) for index in range(256))
    lone_sends.add((lsn, 0) for lsn in range(1, 256_001))

    assert len(pickle.dumps(full_rows.compact())) < 1_000
    assert len(pickle.dumps(lone_sends.compact())) < 3 * 256_000


def test_a_row_without_neighbours_takes_a_few_bytes_on_its_way_to_the_driver() -> None:
    of_a_shuffle = LogRows()
    of_a_shuffle.add((lsn, 0) for lsn in range(1, 2_000 * 50_000, 2_000))

    assert 9 * 50_000 < len(pickle.dumps(of_a_shuffle.compact())) < 11 * 50_000
