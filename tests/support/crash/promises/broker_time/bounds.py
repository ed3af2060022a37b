"""Broker time at moments of this machine's clock.

A broker without redundancy has the wall clock of this machine: broker time is off by ``CLOCK_MARGIN_MS`` at most.

With redundancy, broker time goes on at a takeover by the time that *certainly* passed (decision 0207). Broker time may
stand still since the newest row, at each takeover, and is behind the machine's clock from then on. There the replies
tell the time, because a receive shows broker time at the begin of its lease:

- Rows have ascending times. An operation with a row that was called after that answer has this time or a later time,
  however the clocks run, and for however long a process was held up.
- Under a leader broker time goes on with the machine's clock but for the slew, at the smallest distance that a receive
  shows. A process can be held up between its reading of the clock and a request: ``CLOCK_MARGIN_MS`` are left to spare.

A reply without a row, such as a refusal, may come from a leader that has lost the lead, with a time that its successor
has not reached. Therefore the upper bound is the machine's clock, which broker time never passes.
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

SLEW = 0.005
"""A broker slews by this part towards a wrong clock that is less than a minute off."""


class BrokerTime(Protocol):
    """Bounds of broker time, in milliseconds, at moments of the monotonic clock, and the other way round."""

    def earliest_ms(self, called_ns: int) -> float:
        """Return the least broker time of an operation with this call and a row."""
        ...

    def latest_ms(self, answered_ns: int) -> float:
        """Return the greatest broker time of an operation with this answer."""
        ...

    def reached_ns(self, time_ms: float) -> float:
        """Return a moment: operations with a row that were called from then on have this broker time or a later one."""
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
    """Broker time of a history with takeovers; see the module."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._wall = WallTime(history)
        answered = sorted((sight.answered_ns, sight.time_ms) for sight in sights(history))
        self._answered_ns = [at_ns for at_ns, _ in answered]
        self._reached_ms = list(accumulate((time_ms for _, time_ms in answered), max))
        """The latest time that an answer up to this one shows."""
        self._behind_ms = [float("inf")] * (len(history.leads_ns) + 1)
        """By leader, with an entry for the time before the first: the most that broker time was behind the machine's
        clock as the lead began."""
        for sight in sights(history):
            leader = self._leader(sight.called_ns)
            behind_ms = history.wall_ms(sight.answered_ns) - sight.time_ms
            slew_ms = self._slew_ms(sight.answered_ns, leader)
            self._behind_ms[leader] = min(self._behind_ms[leader], behind_ms + slew_ms)

    def earliest_ms(self, called_ns: int) -> float:
        leader = self._leader(called_ns)
        behind_ms = self._behind_ms[leader] + self._slew_ms(called_ns, leader)
        return max(self.seen_ms(called_ns), self._wall.earliest_ms(called_ns) - behind_ms)

    def seen_ms(self, called_ns: int) -> float:
        """Return the latest broker time that an answer before a call shows."""
        index = bisect_right(self._answered_ns, called_ns)
        return self._reached_ms[index - 1] if index else 0.0

    def latest_ms(self, answered_ns: int) -> float:
        return self._wall.latest_ms(answered_ns) + self._slew_ms(answered_ns, 1)

    def reached_ns(self, time_ms: float) -> float:
        index = bisect_left(self._reached_ms, time_ms)
        return self._answered_ns[index] if index < len(self._answered_ns) else float("inf")

    def passed_ns(self, time_ms: float) -> float:
        return self._wall.passed_ns(time_ms)

    def _leader(self, called_ns: int) -> int:
        return bisect_right(self._history.leads_ns, called_ns)

    def _slew_ms(self, at_ns: int, leader: int) -> float:
        """Return the most by which broker time may have slewed since a leader began."""
        return SLEW * (at_ns - self._history.leads_ns[max(leader, 1) - 1]) / 1e6


def broker_time(history: History) -> BrokerTime:
    """Return broker time of the brokers of a history."""
    return ShownTime(history) if history.leads_ns else WallTime(history)
