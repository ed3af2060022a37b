"""Shown states: the states of messages that each mode shows, and how a task is told. Pure.

State of a message (the column ``event`` of all modes but ``events``), see ``cmqd_reading.states``. A half message that
was committed stands at another position under the same id, and is not shown at the old position.

The modes are about messages in queues. The messages of a topic itself are read by mode ``events``.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from pyroaring import BitMap64

from cmqd_log.options import Mode
from cmqd_reading.states import BACKLOG, LIVE, QueueStates, State
from cmqd_reading.stretches import Stretches
from cmqd_segment.rows import Run

SHOWN: dict[Mode, frozenset[State]] = {
    Mode.ALL: frozenset(State) - {State.COMMITTED},
    Mode.BACKLOG: frozenset(BACKLOG),
    Mode.CONSUMED: frozenset({State.DELETED}),
    Mode.DEAD: frozenset(BACKLOG),
}
"""States that a mode shows; ``dead`` shows only messages that arrived as dead letters."""
DEAD_REASONS = frozenset({"receives", "age", "rejected"})
"""Reasons in the origin of a dead letter. The origin of a redriven message has the reason ``redrive``."""

LEFT_BY_CLIENTS = frozenset({State.DELETED, State.DEAD_LETTERED, State.ROLLED_BACK})
"""States in which a client may have taken the message out of the queue."""

_start_of = itemgetter(0)


class Said(NamedTuple):
    """Facts of neighbours that the columns show."""

    state: State
    ended_ms: int | None
    """Time at which the message left its queue; None = it is there, or the time is not known."""
    receive_count: int | None
    """None = rows that may tell receives are missing."""
    received_by: int = 0
    """Client of the last receive, by number; 0 = not known."""
    left_by: int = 0


class StateReader:
    """Reader in a task: the state of every message of a queue."""

    def __init__(self, states: QueueStates, mode: Mode) -> None:
        self._mode = mode
        self._shown = SHOWN[mode]
        self._sets = [(state, BitMap64.deserialize(packed)) for state, packed in states.sets.items()]
        self._ended = states.ended
        self._counts = states.counts
        self._uncounted = BitMap64.deserialize(states.uncounted) if states.uncounted else BitMap64()
        self._received = states.received
        self._left = states.left

    def stretches(self, run: Run) -> Iterator[tuple[int, int, "Said"]]:
        """Yield the neighbours in the run that the mode shows, as (start, stop, what the columns show)."""
        first, stop = run.first_position, run.stop_position
        begin = first
        said: Said | None = None
        for low, high, state in self._states(first, stop):
            for position in range(low, high):
                now = self._said(position, state, run)
                if now != said:
                    if said is not None and begin < position:
                        yield begin - first, position - first, said
                    said, begin = now, position
        if said is not None:
            yield begin - first, stop - first, said

    def _states(self, first: int, stop: int) -> Iterator[tuple[int, int, State]]:
        for state, positions in self._sets:
            if positions.contains_range(first, stop):
                yield first, stop, state
                return
        for position in range(first, stop):
            state = next((state for state, positions in self._sets if position in positions), State.GONE)
            yield position, position + 1, state

    def _said(self, position: int, state: State, run: Run) -> "Said | None":
        if state not in self._shown:
            return None
        if self._mode is Mode.DEAD:
            origin = None if run.origins is None else run.origins[position - run.first_position]
            if origin is None or origin.reason not in DEAD_REASONS:
                return None
        is_deleted = state is State.DELETED
        receives: int | None = None
        if state is not State.GONE and position not in self._uncounted:
            receives = self._counts.get(position, 1 if is_deleted or state is State.IN_FLIGHT else 0)
        # A message that was rewound, or given back uncounted, was never received.
        received_by = _number_at(self._received, position) if self._received and receives != 0 else None
        left_by = _number_at(self._left, position) if self._left and state in LEFT_BY_CLIENTS else None
        ended_ms = None if state in LIVE or state is State.GONE else _number_at(self._ended, position)
        return Said(state, ended_ms, receives, received_by or 0, left_by or 0)


def _number_at(stretches: Stretches, position: int) -> int | None:
    place = bisect_right(stretches, position, key=_start_of) - 1
    if place >= 0 and position < stretches[place][1]:
        return stretches[place][2]
    return None
