"""States of messages: the state of each message of a queue at one row of the log, and how executors are told. Pure.

State of a message (the column ``event`` of all modes but ``events``):

    active  delayed  in_flight  half             the message is in the queue (the *backlog*: the first three)
    deleted                                      a consumer deleted the message (*consumed*); it may be rewindable
    dead_lettered  redriven                      the message was moved to another queue
    expired  cleared  queue_deleted              the message left by retention, by clearing, with its queue
    queue_unused                                 the same, and the queue was deleted because it was unused
    rolled_back                                  a half message that was rolled back
    gone                                         the message left, and the rows that say why were reclaimed

A half message that was committed stands at another position under the same id, and is not shown at the old position.

``log_fold`` finds the states, ``departures`` the reasons. If rows are missing, some reasons are unknown (``gone``). A
rewind in a missing row cannot be seen: a message deleted before counts as deleted until a later row names it.

The modes are about messages in queues. The messages of a topic itself are read by mode ``events``.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

from pyroaring import BitMap64

from cmqd_segment.rows import Run
from pyspark_cmqd.options import Mode


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
SHOWN: dict[Mode, frozenset[State]] = {
    Mode.ALL: frozenset(State) - {State.COMMITTED},
    Mode.BACKLOG: frozenset(BACKLOG),
    Mode.CONSUMED: frozenset({State.DELETED}),
    Mode.DEAD: frozenset(BACKLOG),
}
"""States that a mode shows; ``dead`` shows only messages that arrived as dead letters."""
DEAD_REASONS = frozenset({"receives", "age", "rejected"})
"""Reasons in the origin of a dead letter. The origin of a redriven message has the reason ``redrive``."""


@dataclass
class QueueStates:
    """States of the messages of a queue, cut to a range of positions and pickled to an executor."""

    sets: dict[State, bytes] = field(default_factory=dict[State, bytes])
    """Positions by state, serialized; no position has two states."""
    deleted: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Deletes as (start, stop, time in ms), ascending and without overlap."""
    counts: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class Result:
    """States of all messages of a queue."""

    sets: dict[State, BitMap64]
    deleted: list[tuple[int, int, int]]
    """Deletes as (start, stop, time in ms), ascending and without overlap."""
    counts: dict[int, int]

    def __post_init__(self) -> None:
        # Sorted once, because there may be thousands of cuts, one per segment.
        self._counted = array("Q", sorted(self.counts))

    def cut(self, start: int, stop: int) -> QueueStates:
        """Return the states of positions ``start`` to below ``stop``."""
        here = BitMap64()
        here.add_range(start, stop)
        states = QueueStates()
        for state, positions in self.sets.items():
            some = positions & here
            if some:
                states.sets[state] = some.serialize()
        low, high = bisect_right(self.deleted, start, key=_stop_of), bisect_left(self.deleted, stop, key=_start_of)
        states.deleted = self.deleted[low:high]
        low, high = bisect_left(self._counted, start), bisect_left(self._counted, stop)
        states.counts = {position: self.counts[position] for position in self._counted[low:high]}
        return states


_start_of = itemgetter(0)
_stop_of = itemgetter(1)


class StateReader:
    """Reader on the executor: the state of every message of a queue."""

    def __init__(self, states: QueueStates, mode: Mode) -> None:
        self._mode = mode
        self._shown = SHOWN[mode]
        self._sets = [(state, BitMap64.deserialize(packed)) for state, packed in states.sets.items()]
        self._deleted = states.deleted
        self._starts = [one[0] for one in states.deleted]
        self._counts = states.counts

    def stretches(self, run: Run) -> Iterator[tuple[int, int, State, "int | None", int]]:
        """Yield the neighbours in the run that the mode shows, as (start, stop, state, deleted_ms, receive_count)."""
        first, stop = run.first_position, run.stop_position
        begin = first
        said: tuple[State, int | None, int] | None = None
        for low, high, state in self._states(first, stop):
            for position in range(low, high):
                now = self._said(position, state, run)
                if now != said:
                    if said is not None and begin < position:
                        yield begin - first, position - first, *said
                    said, begin = now, position
        if said is not None:
            yield begin - first, stop - first, *said

    def _states(self, first: int, stop: int) -> Iterator[tuple[int, int, State]]:
        for state, positions in self._sets:
            if positions.contains_range(first, stop):
                yield first, stop, state
                return
        for position in range(first, stop):
            state = next((state for state, positions in self._sets if position in positions), State.GONE)
            yield position, position + 1, state

    def _said(self, position: int, state: State, run: Run) -> "tuple[State, int | None, int] | None":
        if state not in self._shown:
            return None
        if self._mode is Mode.DEAD:
            origin = None if run.origins is None else run.origins[position - run.first_position]
            if origin is None or origin.reason not in DEAD_REASONS:
                return None
        if state is State.DELETED:
            return state, self._deleted_ms(position), self._counts.get(position, 1)
        return state, None, self._counts.get(position, 1 if state is State.IN_FLIGHT else 0)

    def _deleted_ms(self, position: int) -> int | None:
        place = bisect_right(self._starts, position) - 1
        if place >= 0 and position < self._deleted[place][1]:
            return self._deleted[place][2]
        return None
