"""The table of checkers of transactions."""

import pytest

from cmqd.server.clients import transaction_checkers as module
from cmqd.server.clients.absent_client import AbsentClient
from cmqd.server.clients.transaction_checkers import (
    MAX_REGISTRATIONS,
    CheckersChange,
    TooManyRegistrations,
    TransactionCheckers,
)
from support.server.invariants import check_checkers


def a_client(account: str = "a") -> AbsentClient:
    """A client that is not connected."""
    return AbsentClient(account, lambda account, queue, messages: None)


def a_table(*registered: AbsentClient) -> TransactionCheckers:
    checkers = TransactionCheckers()
    for each in registered:
        checkers.register(each, "q")
    return checkers


def test_the_core_is_told_of_the_first_and_the_last() -> None:
    one, two = a_client(), a_client()
    checkers = a_table()

    assert checkers.register(one, "q") == CheckersChange("a", "q", True, True, [])
    assert checkers.register(two, "q") == CheckersChange("a", "q", True, False, [])
    assert checkers.register(two, "q") == CheckersChange("a", "q", True, False, [])
    check_checkers(checkers)
    assert len(checkers) == 2
    assert checkers.unregister(one, "q") == CheckersChange("a", "q", True, False, [])
    assert checkers.unregister(one, "q") is None
    assert checkers.forget(two) == [CheckersChange("a", "q", False, True, [])]
    check_checkers(checkers)
    assert len(checkers) == 0
    assert two.checked_queues is None
    assert "registrations=0" in repr(checkers)


def test_each_is_asked_in_turn() -> None:
    one, two, three = a_client(), a_client(), a_client()
    checkers = a_table(one, two, three)

    asked = [checkers.ask("a", "q", message_id) for message_id in range(6)]

    assert asked == [one, two, three, one, two, three]
    check_checkers(checkers)


def test_queues_of_the_same_name_in_two_accounts_are_two() -> None:
    one, other = a_client("a"), a_client("b")
    checkers = a_table(one)

    assert checkers.ask("b", "q", 1) is None
    checkers.register(other, "q")
    assert checkers.ask("b", "q", 1) is other
    assert checkers.ask("a", "q", 1) is one


def test_a_checker_that_does_not_read_is_left_out_even_without_another() -> None:
    one, two = a_client(), a_client()
    checkers = a_table(one, two)
    one.is_slow = True

    assert checkers.slowness_changed(one) == [CheckersChange("a", "q", True, False, [])]
    assert [checkers.ask("a", "q", message_id) for message_id in range(3)] == [two, two, two]
    two.is_slow = True
    assert checkers.slowness_changed(two) == [CheckersChange("a", "q", False, True, [])]
    assert checkers.ask("a", "q", 9) is None
    one.is_slow = False
    assert checkers.slowness_changed(one) == [CheckersChange("a", "q", True, True, [])]
    assert checkers.ask("a", "q", 9) is one
    check_checkers(checkers)


def test_what_one_has_not_answered_is_left_when_it_goes() -> None:
    one, two = a_client(), a_client()
    checkers = a_table(one, two)
    for message_id in range(6):
        checkers.ask("a", "q", message_id)
    checkers.settle("a", "q", [2, 3, 77])

    assert checkers.forget(one) == [CheckersChange("a", "q", True, False, [0, 4])]
    check_checkers(checkers)
    assert checkers.unregister(two, "q") == CheckersChange("a", "q", False, True, [1, 5])


def test_a_message_about_which_another_is_asked_is_not_left_by_the_first() -> None:
    one, two = a_client(), a_client()
    checkers = a_table(one, two)

    assert checkers.ask("a", "q", 7) is one
    assert checkers.ask("a", "q", 7) is two
    check_checkers(checkers)

    assert checkers.forget(one) == [CheckersChange("a", "q", True, False, [])]
    assert checkers.forget(two) == [CheckersChange("a", "q", False, True, [7])]


def test_a_deleted_queue_has_no_checkers() -> None:
    one = a_client()
    checkers = a_table(one)
    checkers.register(one, "other")
    checkers.ask("a", "q", 7)

    checkers.forget_queue("a", "q")
    checkers.forget_queue("a", "never there")
    check_checkers(checkers)

    assert one.checked_queues == {"other"}
    assert checkers.unregister(one, "q") is None
    assert checkers.ask("a", "q", 7) is None
    checkers.forget_queue("a", "other")
    assert one.checked_queues is None
    assert checkers.forget(one) == []


def test_registrations_of_one_connection_are_bounded() -> None:
    one = a_client()
    checkers = a_table()
    for number in range(MAX_REGISTRATIONS):
        checkers.register(one, f"q{number}")

    with pytest.raises(TooManyRegistrations):
        checkers.register(one, "one more")
    check_checkers(checkers)
    checkers.register(one, "q0")

    assert len(checkers) == MAX_REGISTRATIONS
    assert len(checkers.forget(one)) == MAX_REGISTRATIONS


def test_unanswered_checks_are_bounded_by_forgetting_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ASKED", 3)
    one = a_client()
    checkers = a_table(one)

    for message_id in range(5):
        checkers.ask("a", "q", message_id)
    check_checkers(checkers)

    assert checkers.forget(one)[0].unanswered == [2, 3, 4]
