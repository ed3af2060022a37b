"""The demo's books."""

from cmqd_bench.demo.books import Ledger


def body(number: int) -> bytes:
    return b"body %d" % number


def a_ledger(*, sent: int = 0) -> Ledger:
    """Books with messages 0 .. ``sent`` - 1, sent and answered; the ids are m0, m1 ..."""
    ledger = Ledger(body)
    numbers = range(sent)
    ledger.attempt(numbers)
    ledger.acknowledge(numbers, [f"m{number}" for number in numbers])
    return ledger


def test_the_books_hold_when_every_answered_send_was_received_and_deleted():
    ledger = a_ledger(sent=3)

    for number in range(3):
        ledger.receive(f"m{number}", number, body(number))
        ledger.delete([f"m{number}"])

    balance = ledger.balance()
    assert balance.holds
    assert (balance.acknowledged, balance.received, balance.deliveries, balance.deleted) == (3, 3, 3, 3)
    assert (balance.redelivered, balance.stored_twice, balance.unanswered) == (0, 0, 0)


def test_an_answered_send_without_a_receive_is_lost():
    ledger = a_ledger(sent=2)
    ledger.receive("m0", 0, body(0))

    balance = ledger.balance()

    assert balance.lost == 1
    assert not balance.holds


def test_another_copy_does_not_make_up_for_an_answered_id():
    ledger = a_ledger(sent=1)
    ledger.receive("another", 0, body(0))

    assert ledger.balance().lost == 1


def test_a_changed_body_is_foreign_and_its_message_lost():
    ledger = a_ledger(sent=1)
    ledger.receive("m0", 0, b"something else")

    balance = ledger.balance()

    assert (balance.foreign, balance.lost) == (1, 1)
    assert not balance.holds


def test_a_message_without_a_send_is_foreign():
    ledger = a_ledger(sent=1)
    ledger.receive("m0", 0, body(0))

    ledger.receive("x", 7, body(7))
    ledger.receive("y", None, b"")

    assert ledger.balance().foreign == 2


def test_a_message_that_comes_back_after_its_answered_delete_was_undone():
    ledger = a_ledger(sent=1)
    ledger.receive("m0", 0, body(0))
    ledger.delete(["m0"])

    ledger.receive("m0", 0, body(0))

    assert ledger.balance().undone == 1
    assert not ledger.balance().holds


def test_a_delete_repeated_over_the_kill_may_have_come_too_late():
    ledger = a_ledger(sent=1)
    ledger.receive("m0", 0, body(0))
    ledger.delete(["m0"], sure=False)

    ledger.receive("m0", 0, body(0))

    balance = ledger.balance()
    assert balance.holds
    assert balance.redelivered == 1


def test_a_redelivery_is_counted_and_allowed():
    ledger = a_ledger(sent=1)

    for _ in range(3):
        ledger.receive("m0", 0, body(0))

    balance = ledger.balance()
    assert balance.holds
    assert (balance.redelivered, balance.received, balance.deliveries) == (2, 1, 3)


def test_a_number_stored_twice_is_counted_and_allowed():
    ledger = a_ledger(sent=1)

    ledger.receive("m0", 0, body(0))
    ledger.receive("m9", 0, body(0))

    balance = ledger.balance()
    assert balance.holds
    assert balance.stored_twice == 1


def test_a_message_whose_send_was_never_answered_may_be_received():
    ledger = a_ledger()
    ledger.attempt([5])

    ledger.receive("m5", 5, body(5))

    balance = ledger.balance()
    assert balance.holds
    assert (balance.unanswered, balance.lost) == (1, 0)
