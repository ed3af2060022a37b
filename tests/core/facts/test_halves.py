"""The table of half messages."""

from cmqd_fold.half_messages import Checked, HalfTable


def table() -> HalfTable:
    """Runs at 10-11, 20-24 and 30, with a check in every run."""
    halves = HalfTable()
    for first_id, position, count in ((100, 10, 2), (200, 20, 5), (300, 30, 1)):
        halves.note(first_id, position, count)
    for position in (30, 11, 22):
        halves.note_check(position, 1000, 2000)
    return halves


def test_what_lies_below_a_floor_is_forgotten():
    kept_above = {0: 3, 10: 3, 11: 3, 12: 2, 20: 2, 24: 2, 25: 1, 30: 1, 31: 0, 99: 0}
    for floor, kept in kept_above.items():
        halves = table()

        halves.drop_below(floor)

        assert len(halves) == kept, floor
        assert list(halves.checked) == [position for position in (30, 11, 22) if position >= floor]
        assert halves.position_of(202) == (22 if floor < 25 else None)


def test_checks_of_decided_messages_are_forgotten():
    halves = table()

    halves.end([20, 11], committed=True)

    assert list(halves.checked) == [11]


def test_what_is_known_of_checks_is_never_changed_in_place():
    halves = table()
    before = halves.checked[22]

    halves.note_check(22, 5000, 9000)
    halves.note_unknown([22], 6000)

    assert before == Checked(1, 1000, 0, 2000)
    assert halves.checked[22] == Checked(2, 5000, 6000, 9000)
