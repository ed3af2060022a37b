"""Waiting receives (long polls) of a queue, served in order of arrival.

Plain data: no futures, no sockets. The order of arrival is a promise: serving a later receive first because its batch
fits better would starve consumers that ask for large batches.
"""

from collections import OrderedDict

import msgspec

from cmqd_types.actors import NO_ACTOR, Actor


class Waiter(msgspec.Struct, gc=False):
    """A receive that has no messages yet."""

    waiter_id: int
    queue_id: int
    max_messages: int
    visibility_timeout_ms: int
    deadline_ms: int
    since_ms: int
    """Time of the arrival, for operators."""
    overdue: bool = False
    """The deadline passed while bodies of active messages were being read from the log. The receive stays in line until
    the read returns, because the read may still serve it; an empty answer now would waste the read."""
    actor: Actor = NO_ACTOR
    """The client that waits."""


class WaitingLine:
    """The waiting receives of one queue."""

    __slots__ = ("overdue", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, Waiter] = OrderedDict()
        """By waiter id, in order of arrival; other modules read it and do not change it."""
        self.overdue = 0
        """Number of overdue receives."""

    def alike(self, most: int) -> list[Waiter]:
        """Return the receives that one record can serve; the line must not be empty.

        The group begins with the first receive in line. Its neighbours join while their visibility timeout is equal (a
        record carries only one) and the group asks for fewer than ``most`` messages. No receive is skipped.
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
        """Add a receive at the end of the line."""
        self.waiting[waiter.waiter_id] = waiter
        self.overdue += waiter.overdue

    def remove(self, waiter_id: int) -> None:
        """Remove a receive that was answered or cancelled, or lost its connection."""
        self.overdue -= self.waiting.pop(waiter_id).overdue

    def set_overdue(self, waiter: Waiter) -> None:
        """Mark a receive as past its deadline."""
        if not waiter.overdue:
            waiter.overdue = True
            self.overdue += 1

    def take_overdue(self) -> list[Waiter]:
        """Remove and return the overdue receives."""
        gone = [waiter for waiter in self.waiting.values() if waiter.overdue] if self.overdue else []
        for waiter in gone:
            del self.waiting[waiter.waiter_id]
        self.overdue = 0
        return gone

    def take_all(self) -> list[Waiter]:
        """Remove and return all receives."""
        everybody = list(self.waiting.values())
        self.waiting.clear()
        self.overdue = 0
        return everybody
