"""The checks of stored rows find what they look for."""

from collections.abc import Sequence

import pytest

from support.mixed_faults.stored import StoredRow, broken_rows


def rows_of(*rows: tuple[int, int, bool], checkpoint_lsn: int = 0) -> list[StoredRow]:
    return [StoredRow(lsn, epoch, is_empty, checkpoint_lsn) for lsn, epoch, is_empty in rows]


GOOD = [(1, 1, True), (2, 1, False), (3, 3, True), (4, 3, False), (5, 3, False)]


def test_leaders_one_after_the_other_are_right() -> None:
    assert list(broken_rows(rows_of(*GOOD))) == []


def test_rows_may_be_missing_below_the_checkpoint() -> None:
    assert list(broken_rows(rows_of(*GOOD[2:], checkpoint_lsn=2))) == []
    assert list(broken_rows(rows_of(GOOD[0], *GOOD[2:], checkpoint_lsn=2))) == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(1, 1, True), (2, 1, False), (4, 1, False)], "rows 3 to 3 are missing"),
        ([(1, 1, True), (2, 1, False), (3, 2, False)], "is not its fence"),
        ([(1, 1, True), (2, 2, True), (3, 1, False)], "row 3 has epoch 1 behind epoch 2"),
        ([(1, 1, True), (2, 2, False)], "row 2 has epoch 2"),
        ([(1, 1, True), (2, 1, True)], "row 2 is empty"),
    ],
)
def test_a_broken_promise_is_found(rows: Sequence[tuple[int, int, bool]], text: str) -> None:
    assert any(text in line for line in broken_rows(rows_of(*rows)))
