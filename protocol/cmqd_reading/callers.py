"""Callers: the clients that received the messages of a queue last, and that took messages out of the queue. Pure."""

from collections.abc import Sequence

from cmqd_reading.stretches import Stretches, last_stretches
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.records import (
    AnyRecord,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesMoved,
    MessagesReceived,
    Runs,
    TransactionsEnded,
    count_runs,
    ranges,
    unpack_runs,
)


class Callers:
    """Clients of one queue, by the numbers of their ``ActorSeen``, noted in the order of the log."""

    def __init__(self) -> None:
        self._received: Stretches = []
        self._left: Stretches = []

    def note(self, record: AnyRecord) -> None:
        """Note the clients of a record; a message that the broker itself moved left by no client."""
        match record:
            case MessagesReceived():
                _add(self._received, record.positions, record.actors)
            case MessagesDeleted() | MessagesDeadLettered() | TransactionsEnded():
                _add(self._left, record.positions, record.actors)
            case MessagesMoved():
                _add(self._left, record.positions, ())
            case _:
                pass

    def received(self) -> Stretches:
        """Return the client of the last receive of each message."""
        return last_stretches(self._received)

    def left(self) -> Stretches:
        """Return the client that took each message out of the queue last."""
        return last_stretches(self._left)


def _add(stretches: Stretches, positions: Runs, actors: Sequence[int]) -> None:
    if len(actors) < 2:
        number = actors[0] if actors else 0
        stretches.extend((start, stop, number) for start, stop in ranges(positions))
        return
    numbers = actor_numbers(actors, count_runs(positions))
    stretches.extend(
        (position, position + 1, number) for position, number in zip(unpack_runs(positions), numbers, strict=True)
    )
