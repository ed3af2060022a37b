"""Long polls as data: who waits at which queue, in order of arrival, until when. No futures here."""

from collections import OrderedDict

import msgspec


class Waiter(msgspec.Struct, gc=False):
    """A receive that waits."""

    waiter_id: int
    queue_id: int
    max_messages: int
    visibility_timeout_ms: int
    deadline_ms: int
    overdue: bool = False
    """Its wait is over, but messages are active whose bodies are being read: it stays until that is settled."""


class WaitingLine:
    """The waiting receives of one queue, first come first served."""

    __slots__ = ("overdue", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, Waiter] = OrderedDict()
        """By waiter id, in order of arrival; to be read from outside, not to be changed."""
        self.overdue = 0
        """How many of them are overdue."""

    def alike(self, most: int) -> list[Waiter]:
        """Who is served next, and those behind him with the same visibility timeout, as far as so many messages go;
        there must be one.
        """
        served: list[Waiter] = []
        wanted = timeout_ms = 0
        for waiter in self.waiting.values():
            if served and (wanted >= most or waiter.visibility_timeout_ms != timeout_ms):
                break
            served.append(waiter)
            wanted += waiter.max_messages
            timeout_ms = waiter.visibility_timeout_ms
        return served

    def add(self, waiter: Waiter) -> None:
        """At the end of the line."""
        self.waiting[waiter.waiter_id] = waiter
        self.overdue += waiter.overdue

    def remove(self, waiter_id: int) -> None:
        """Whoever was answered, cancelled or gone."""
        self.overdue -= self.waiting.pop(waiter_id).overdue

    def set_overdue(self, waiter: Waiter) -> None:
        """Its wait is over."""
        if not waiter.overdue:
            waiter.overdue = True
            self.overdue += 1

    def take_overdue(self) -> list[Waiter]:
        """Remove and return those whose wait is over."""
        gone = [waiter for waiter in self.waiting.values() if waiter.overdue] if self.overdue else []
        for waiter in gone:
            del self.waiting[waiter.waiter_id]
        self.overdue = 0
        return gone

    def take_all(self) -> list[Waiter]:
        """Remove and return everybody."""
        everybody = list(self.waiting.values())
        self.waiting.clear()
        self.overdue = 0
        return everybody
