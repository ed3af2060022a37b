"""The table of who waits."""

from cmqd.server.longpoll import LongPolls
from cmqd_protocol.messages import ReceiveMessages, Request


class Asker:
    def __init__(self) -> None:
        self.waiting: dict[int, int] | None = None


def a_request(number: int) -> Request:
    return ReceiveMessages(number, "q")


def test_a_waiter_is_found_by_number_and_by_request() -> None:
    polls: LongPolls[Asker] = LongPolls()
    asker = Asker()
    waiter = polls.new_id()
    request = a_request(7)

    polls.add(waiter, asker, request)
    polls.check_invariants()

    assert polls.find(asker, 7) == (waiter, request)
    assert polls.find(asker, 8) is None
    assert polls.take(waiter) == (asker, request)
    assert polls.take(waiter) is None
    assert asker.waiting is None
    assert len(polls) == 0


def test_an_asker_that_is_gone_is_forgotten_with_all_it_waited_for() -> None:
    polls: LongPolls[Asker] = LongPolls()
    gone, other = Asker(), Asker()
    for asker, number in ((gone, 1), (other, 1), (gone, 2)):
        polls.add(polls.new_id(), asker, a_request(number))

    dropped = polls.drop_all(gone)
    polls.check_invariants()

    assert [(waiter, request.request_id) for waiter, request in dropped] == [(1, 1), (3, 2)]
    assert [(waiter, asker) for waiter, asker, _ in polls.everybody()] == [(2, other)]
    assert polls.drop_all(gone) == []


def test_numbers_are_never_used_twice() -> None:
    polls: LongPolls[Asker] = LongPolls()

    assert len({polls.new_id() for _ in range(1_000)}) == 1_000
