"""Broker time at moments of this machine's clock.

A broker without redundancy has the wall clock of this machine: broker time is off by ``CLOCK_MARGIN_MS`` at most.

With redundancy, broker time goes on at a takeover by the time that *certainly* passed (decision 0207). Broker time may
stand still since the newest row, at each takeover, and is behind the machine's clock from then on. There the replies
tell the time, because a receive shows broker time at the begin of its lease:

- An operation that was called after that answer has this time or a later time.
- An operation that was answered before that call has this time or an earlier time.

Both hold however the clocks run, and for however long a process was held up. ``time_rules`` compares broker time itself
with the machine's clock.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from support.crash.promises.history import History, Receive

CLOCK_MARGIN_MS = 250
"""Greatest difference of the broker's clock from the wall clock of this machine, towards which the broker slews. For
rules that must compare the two clocks; leases are compared by the broker's own times."""


class BrokerTime(Protocol):
    """Bounds of broker time, in milliseconds, at moments of the monotonic clock, and the other way round."""

    def earliest_ms(self, called_ns: int) -> float:
        """Return the least broker time of an operation with this call."""
        ...

    def latest_ms(self, answered_ns: int) -> float:
        """Return the greatest broker time of an operation with this answer."""
        ...

    def reached_ns(self, time_ms: float) -> float:
        """Return a moment: operations called from then on have this broker time or a later one."""
        ...

    def passed_ns(self, time_ms: float) -> float:
        """Return a moment: an operation whose answer is surely not past this broker time was called by then."""
        ...


@dataclass(frozen=True, slots=True)
class WallTime:
    """Broker time of a broker with the wall clock of this machine."""

    history: History

    def earliest_ms(self, called_ns: int) -> float:
        return self.history.wall_ms(called_ns) - CLOCK_MARGIN_MS

    def latest_ms(self, answered_ns: int) -> float:
        return self.history.wall_ms(answered_ns) + CLOCK_MARGIN_MS

    def reached_ns(self, time_ms: float) -> float:
        return self.history.at_ns(time_ms + CLOCK_MARGIN_MS)

    def passed_ns(self, time_ms: float) -> float:
        return self.history.at_ns(time_ms - CLOCK_MARGIN_MS)


class Sight(NamedTuple):
    """Broker time as the answer to a receive shows it."""

    called_ns: int
    answered_ns: int
    time_ms: int


def sights(history: History) -> Iterator[Sight]:
    """Yield broker time at the receives that brought messages."""
    for receive in history.of_kind(Receive):
        for delivery in receive.deliveries[:1]:
            yield Sight(receive.called_ns, receive.answered_ns, delivery.next_visible_ms - receive.visibility_ms)


class ShownTime:
    """Broker time as receives before and after a moment show it: no clock of a machine is asked."""

    def __init__(self, history: History) -> None:
        answered = sorted((sight.answered_ns, sight.time_ms) for sight in sights(history))
        called = sorted((sight.called_ns, sight.time_ms) for sight in sights(history))
        self._answered_ns = [at_ns for at_ns, _ in answered]
        self._reached_ms = list(accumulate((time_ms for _, time_ms in answered), max))
        """The latest time that an answer up to this one shows."""
        self._called_ns = [at_ns for at_ns, _ in called]
        self._to_come_ms = list(accumulate((time_ms for _, time_ms in reversed(called)), min))[::-1]
        """The earliest time of this call and of all later ones."""

    def earliest_ms(self, called_ns: int) -> float:
        index = bisect_right(self._answered_ns, called_ns)
        return self._reached_ms[index - 1] if index else 0.0

    def latest_ms(self, answered_ns: int) -> float:
        index = bisect_left(self._called_ns, answered_ns)
        return self._to_come_ms[index] if index < len(self._to_come_ms) else float("inf")

    def reached_ns(self, time_ms: float) -> float:
        index = bisect_left(self._reached_ms, time_ms)
        return self._answered_ns[index] if index < len(self._answered_ns) else float("inf")

    def passed_ns(self, time_ms: float) -> float:
        index = bisect_right(self._to_come_ms, time_ms)
        return self._called_ns[index - 1] if index else float("-inf")


def broker_time(history: History) -> BrokerTime:
    """Return broker time of the brokers of a history."""
    return ShownTime(history) if history.leads_ns else WallTime(history)
