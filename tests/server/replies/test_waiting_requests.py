"""The table of waiting requests."""

from typing import Any

from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol.messages import ReceiveMessages, Request


class Asker:
    def __init__(self) -> None:
        self.account = "a"
        self.unread_receives = 0
        self.waiting: dict[int, int] | None = None


def a_request(number: int) -> Request:
    return ReceiveMessages(number, "q")


def test_a_waiter_is_found_by_number_and_by_request() -> None:
    waiting_requests = WaitingRequests()
    asker: Any = Asker()
    waiter = waiting_requests.new_id()
    request = a_request(7)

    waiting_requests.add(waiter, asker, request)
    waiting_requests.check_invariants()

    assert waiting_requests.find(asker, 7) == (waiter, request)
    assert waiting_requests.find(asker, 8) is None
    assert waiting_requests.take(waiter) == (asker, request)
    assert waiting_requests.take(waiter) is None
    assert asker.waiting is None
    assert len(waiting_requests) == 0


def test_an_asker_that_is_gone_is_forgotten_with_all_it_waited_for() -> None:
    waiting_requests = WaitingRequests()
    gone: Any = Asker()
    other: Any = Asker()
    for asker, number in ((gone, 1), (other, 1), (gone, 2)):
        waiting_requests.add(waiting_requests.new_id(), asker, a_request(number))

    dropped = waiting_requests.drop_all(gone)
    waiting_requests.check_invariants()

    assert [(waiter, request.request_id) for waiter, request in dropped] == [(1, 1), (3, 2)]
    assert [(waiter, asker) for waiter, asker, _ in waiting_requests.all()] == [(2, other)]
    assert waiting_requests.drop_all(gone) == []


def test_numbers_are_never_used_twice() -> None:
    waiting_requests = WaitingRequests()

    assert len({waiting_requests.new_id() for _ in range(1_000)}) == 1_000
