"""States of messages: the state of each message of a queue at one row of the log. Pure.

    active  delayed  in_flight  half             the message is in the queue (the *backlog*: the first three)
    deleted                                      a consumer deleted the message; it may be rewindable
    dead_lettered  redriven                      the message was moved to another queue
    expired  cleared  queue_deleted              the message left by retention, by clearing, with its queue
    queue_unused                                 the same, and the queue was deleted because it was unused
    rolled_back                                  a half message that was rolled back
    committed                                    a half message that stands at another position under the same id
    gone                                         the message left, and the rows that say why were reclaimed

``log_fold`` finds the states, ``departures`` the reasons. If rows are missing that no outcomes repeat, some reasons are
unknown (``gone``), and some receive counts: a message of a queue that ever had a rewind window may have come back in a
missing row, and left again.
"""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

from pyroaring import BitMap64

from cmqd_reading.stretches import Stretches


class State(StrEnum):
    """State of a message; the module explains each."""

    ACTIVE = "active"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"
    HALF = "half"
    DELETED = "deleted"
    DEAD_LETTERED = "dead_lettered"
    REDRIVEN = "redriven"
    EXPIRED = "expired"
    CLEARED = "cleared"
    QUEUE_DELETED = "queue_deleted"
    QUEUE_UNUSED = "queue_unused"
    ROLLED_BACK = "rolled_back"
    COMMITTED = "committed"
    GONE = "gone"


LIVE = (State.ACTIVE, State.DELAYED, State.IN_FLIGHT, State.HALF)
BACKLOG = (State.ACTIVE, State.DELAYED, State.IN_FLIGHT)


@dataclass
class QueueStates:
    """States of the messages of a queue, cut to a range of positions and pickled to an executor."""

    sets: dict[State, bytes] = field(default_factory=dict[State, bytes])
    """Positions by state, serialized; no position has two states."""
    ended: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Departures as (start, stop, time in ms), ascending and without overlap; also of messages that came back."""
    counts: dict[int, int] = field(default_factory=dict[int, int])
    uncounted: bytes = b""
    """Messages with an unknown receive count, serialized; empty = none."""
    received: Stretches = field(default_factory=list[tuple[int, int, int]])
    """Client of the last receive, ascending and without overlap; empty if the clients were not asked for."""
    left: Stretches = field(default_factory=list[tuple[int, int, int]])
    """Client that took the messages out of the queue, likewise."""

    def clients(self) -> set[int]:
        """Return the numbers of all clients."""
        return {number for _, _, number in (*self.received, *self.left)}


@dataclass
class Result:
    """States of all messages of a queue."""

    sets: dict[State, BitMap64]
    ended: list[tuple[int, int, int]]
    """As in ``QueueStates``."""
    counts: dict[int, int]
    uncounted: BitMap64 = field(default_factory=BitMap64)
    """Messages with an unknown receive count."""
    next_position: int = 0
    """Behind the last message of the queue."""
    received: Stretches = field(default_factory=list[tuple[int, int, int]])
    left: Stretches = field(default_factory=list[tuple[int, int, int]])
    """See ``QueueStates``."""

    def __post_init__(self) -> None:
        # Sorted once, because there may be thousands of cuts, one per segment.
        self._counted = array("Q", sorted(self.counts))

    def cut(self, start: int, stop: int) -> QueueStates:
        """Return the states of positions ``start`` to below ``stop``."""
        here = BitMap64()
        here.add_range(start, stop)
        states = QueueStates()
        gone = BitMap64()
        gone.add_range(start, max(start, min(stop, self.next_position)))
        for state, positions in self.sets.items():
            some = positions & here
            if some and state is not State.GONE:
                states.sets[state] = some.serialize()
                gone -= some
        if gone:
            states.sets[State.GONE] = gone.serialize()
        uncounted = self.uncounted & here
        if uncounted:
            states.uncounted = uncounted.serialize()
        states.ended = _within(self.ended, start, stop)
        states.received, states.left = _within(self.received, start, stop), _within(self.left, start, stop)
        low, high = bisect_left(self._counted, start), bisect_left(self._counted, stop)
        states.counts = {position: self.counts[position] for position in self._counted[low:high]}
        return states


_start_of = itemgetter(0)
_stop_of = itemgetter(1)


def _within(stretches: Stretches, start: int, stop: int) -> Stretches:
    low, high = bisect_right(stretches, start, key=_stop_of), bisect_left(stretches, stop, key=_start_of)
    return stretches[low:high]
