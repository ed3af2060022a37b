"""Departures: why messages left a queue, and with which receive count. Pure.

A departure is one of the states ``deleted``, ``dead_lettered``, ``redriven``, ``expired``, ``cleared``,
``queue_deleted``, ``queue_unused``, ``rolled_back`` and ``committed``. The facts about messages that are still in the
queue are in ``cmqd_fold.QueueIndex``. The index forgets a message when the message leaves; a reader of the log must
not.

While all rows are there, the index says exactly which messages a record takes out of the queue. Segments are reclaimed
in any order, so a log that has run for weeks has gaps, and checkpoints cover only the newest rows. Before the first
checkpoint, a queue with a gap is *uncertain*: its departures come from the records alone. Records that name positions
(a delete, a move, a decision) are still exact. A floor (cleared, expired) counts only for messages that a row behind
the last gap shows to be in the queue; for any other message the reason is unknown, because a row in the gap may have
deleted the message first.

The receive count of a message is known only if all rows since its send, or since its last rewind, were read. The
outcomes beside a segment (``cmqd_segment.outcomes``) tell departures of rows that are gone, with their counts.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from pyroaring import BitMap64

from cmqd_fold.queue_index import QueueIndex
from cmqd_reading.states import State
from cmqd_reading.stretches import UNKNOWN, Stretches, last_stretches
from cmqd_segment.outcomes import RETURNED, Outcome, counted
from cmqd_segment.records import (
    UNUSED,
    AnyRecord,
    LeasesEnded,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesExpired,
    MessagesMoved,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    QueueAttributesSet,
    QueueCleared,
    QueueDeleted,
    QueueRewound,
    Runs,
    TransactionsEnded,
    pack_runs,
    ranges,
    unpack_runs,
)


class Departures:
    """Departures of one queue, noted in the order of the log: the last departure of a message counts."""

    def __init__(self) -> None:
        self.positions: dict[State, BitMap64] = {}
        self.ends: Stretches = []
        """(first position, stop position, time in ms) of all departures."""
        self.receive_counts: dict[int, int] = {}
        """Receive counts by position; absent = 1 for a deleted message, 0 for any other."""
        self.uncounted = BitMap64()
        """Messages that left with an unknown receive count."""

    def note(self, state: State, positions: BitMap64, time_ms: int) -> None:
        """Note that messages left the queue; a time of 0 is not known."""
        for left in (*self.positions.values(), self.uncounted):
            left -= positions
        departed = self.positions.setdefault(state, BitMap64())
        departed |= positions
        self._note_end(pack_runs(positions), time_ms)

    def note_runs(self, state: State, positions: Runs, time_ms: int) -> None:
        """Note that messages left the queue, as a record names them; the cost does not grow with earlier departures."""
        self._note_end(positions, time_ms)
        departed = self.positions.setdefault(state, BitMap64())
        for start, stop in ranges(positions):
            for left in self.positions.values():
                left.remove_range(start, stop)
            if self.uncounted:
                self.uncounted.remove_range(start, stop)
            departed.add_range(start, stop)

    def _note_end(self, positions: Runs, time_ms: int) -> None:
        self.ends += [(start, stop, time_ms or UNKNOWN) for start, stop in ranges(positions)]

    def note_outcome(self, outcome: Outcome) -> None:
        """Note an entry of the outcomes of a segment, which is exact."""
        if outcome.reason == RETURNED:
            self.forget(BitMap64(unpack_runs(outcome.positions)))
            return
        state = State(outcome.reason) if outcome.reason in _STATES else State.GONE
        self.note_runs(state, outcome.positions, outcome.time_ms)
        default = 1 if state is State.DELETED else 0
        for start, stop, count in counted(outcome):
            if count != default or self.receive_counts:
                for position in range(start, stop):
                    self.note_count(position, count, default)

    def doubt_deletes(self, positions: BitMap64) -> None:
        """Note that deleted messages may have come back in missing rows, and left again."""
        doubted = positions & self.positions.get(State.DELETED, BitMap64())
        if doubted:
            self.note(State.GONE, doubted, 0)

    def note_unseen(self, rewindable: BitMap64) -> None:
        """Note that messages are deleted; the rows of unknown deletes are missing."""
        unseen = rewindable - self.positions.get(State.DELETED, BitMap64())
        if unseen:
            self.note(State.DELETED, unseen, 0)
            self.uncounted |= unseen

    def note_count(self, position: int, receive_count: int, default: int = 0) -> None:
        """Note the receive count with which a message left the queue."""
        if receive_count != default:
            self.receive_counts[position] = receive_count
        else:
            self.receive_counts.pop(position, None)

    def forget(self, positions: BitMap64) -> None:
        """Forget the departures of messages that are in the queue."""
        for left in (*self.positions.values(), self.uncounted):
            left -= positions
        if len(positions) < len(self.receive_counts):
            for position in positions:
                self.receive_counts.pop(position, None)
        else:
            counted = self.receive_counts.items()
            self.receive_counts = {position: count for position, count in counted if position not in positions}

    def last_ends(self) -> Stretches:
        """Return the departures as ascending ranges that do not overlap: after a rewind the last departure counts."""
        return last_stretches(self.ends)


class CertainQueue:
    """Departures of a queue with a known index at every row."""

    def __init__(self, index: QueueIndex, departures: Departures) -> None:
        self.index = index
        self._departures = departures

    @property
    def next_position(self) -> int:
        """Position behind the last message."""
        return self.index.next_position

    def apply(self, record: AnyRecord, row_ms: int) -> None:
        """Apply a record of this queue to the index, and note the messages that it takes out of the queue.

        ``row_ms``: time of its row, 0 = not known.
        """
        index, departures = self.index, self._departures
        time_ms = time_of(record, row_ms)
        match record:
            case MessagesDeleted():
                departures.note_runs(State.DELETED, record.positions, time_ms)
                self._note_counts(record.leases, 1)
                index.apply_deleted(record)
            case QueueRewound():
                departures.forget(index.apply_rewound(record))
            case MessagesMoved():
                state = State.REDRIVEN if record.redriven else State.DEAD_LETTERED
                self._leave(state, BitMap64(unpack_runs(record.positions)), time_ms)
                index.apply_moved(record)
            case MessagesDeadLettered():
                departures.note_runs(State.DEAD_LETTERED, record.positions, time_ms)
                self._note_counts(record.leases, 0)
                index.apply_dead_lettered(record)
            case TransactionsEnded():
                state = State.COMMITTED if record.committed else State.ROLLED_BACK
                departures.note_runs(state, record.positions, time_ms)
                index.apply_ended(record)
            case QueueCleared() | MessagesExpired():
                state = State.CLEARED if isinstance(record, QueueCleared) else State.EXPIRED
                self._leave(state, index.live & _span(index.floor, record.floor), time_ms)
                index.apply_floor(record.floor)
            case QueueDeleted():
                self._leave(_state_of(record), index.live.copy(), time_ms)
                index.apply_floor(index.next_position)
            case _:
                index.apply(record)

    def _note_counts(self, leases: Runs, default: int) -> None:
        for lease in unpack_runs(leases):
            entry = self.index.leases.by_number.get(lease)
            if entry is not None:
                self._departures.note_count(entry.position, entry.receive_count, default)

    def _leave(self, state: State, positions: BitMap64, time_ms: int) -> None:
        if not positions:
            return
        index, departures = self.index, self._departures
        departures.note(state, positions, time_ms)
        for position, receive_count in index.history.counts(positions):
            departures.note_count(position, receive_count)
        # Only if a message in flight leaves: expiry raises the floor often, and each time a walk over all leases would
        # cost too much.
        if positions - index.active - index.delays.scheduled - index.delays.overflow - index.half:
            for entry in index.leases.drop(positions):
                departures.note_count(entry.position, entry.receive_count)


class UncertainQueue:
    """Departures of a queue of which rows are missing."""

    def __init__(self, departures: Departures, index: QueueIndex | None = None, *, may_rewind: bool = True) -> None:
        """Begin after a gap.

        Args:
            departures: of the queue.
            index: the index at the last row before the gap, if it was known.
            may_rewind: False if the queue surely never had a rewind window.
        """
        self._departures = departures
        self._may_rewind = may_rewind
        self.next_position = 0 if index is None else index.next_position
        """Behind the last message that a row stored."""
        self._counted = BitMap64()
        """Messages of which all receives are known: no row since their send, or since their rewind, is missing."""
        self._present = BitMap64()
        """Messages that a row behind the last gap shows to be in the queue."""
        self._may_return = BitMap64()
        """Deleted messages that a rewind may bring back; the rewind window is not known."""
        self._leases: dict[int, tuple[int, int]] = {}
        """Position and receive count by lease."""
        self._in_flight = BitMap64()
        """The positions in ``_leases``."""
        if index is not None:
            self._may_return |= index.rewindable
            self._leases = {
                lease: (entry.position, entry.receive_count) for lease, entry in index.leases.by_number.items()
            }
            self._in_flight.update(position for position, _ in self._leases.values())
            departures.receive_counts.update(index.history.counts(index.live))

    def receive_counts(self) -> Iterator[tuple[int, int]]:
        """Return position and receive count of the messages that are in flight."""
        return iter(self._leases.values())

    def skip(self, told: BitMap64) -> None:
        """Begin another gap: any message may have left the queue in the missing rows.

        ``told``: messages whose outcomes in the missing rows will be applied.
        """
        self._present.clear()
        self._counted.clear()
        if self._may_return:
            self._departures.doubt_deletes(self._may_return - told)

    def apply_copies(self, first: int, count: int) -> None:
        """Note that copies of published messages were stored."""
        self.next_position = first + count
        self._present.add_range(first, first + count)
        self._counted.add_range(first, first + count)

    def apply_outcome(self, outcome: Outcome) -> None:
        """Apply an entry of the outcomes of a segment, behind the row of the entry if that is there."""
        # First: a lease that ends later must not change the receive count of the entry.
        self._forget_leases(outcome.positions)
        self._departures.note_outcome(outcome)
        is_back = outcome.reason == RETURNED
        may_return = outcome.reason == State.DELETED and self._may_rewind
        for start, stop in ranges(outcome.positions):
            for positions, is_in in (
                (self._present, is_back),
                (self._counted, is_back),
                (self._may_return, may_return),
            ):
                if is_in:
                    positions.add_range(start, stop)
                else:
                    positions.remove_range(start, stop)

    def apply(self, record: AnyRecord, row_ms: int) -> None:
        """Note the messages that a record of this queue takes out of it; ``row_ms`` as for the certain queue."""
        departures = self._departures
        time_ms = time_of(record, row_ms)
        match record:
            case MessagesSent():
                self.apply_copies(record.first_position, len(record.sizes))
            case MessagesReceived():
                self._received(record)
            case MessagesDeleted():
                self._deleted(record, time_ms)
            case LeasesEnded() | MessagesReleased():
                counted = not isinstance(record, MessagesReleased) or record.counted
                for position, receive_count in self._end(unpack_runs(record.leases)):
                    if counted:
                        departures.receive_counts[position] = receive_count
            case QueueRewound():
                self._rewound(record)
            case QueueAttributesSet():
                self._prune(record)
            case MessagesMoved():
                state = State.REDRIVEN if record.redriven else State.DEAD_LETTERED
                self._leave(state, record.positions, time_ms)
            case MessagesDeadLettered():
                self._leave(State.DEAD_LETTERED, record.positions, time_ms)
                for position, receive_count in self._end(unpack_runs(record.leases)):
                    departures.note_count(position, receive_count)
            case TransactionsEnded():
                state = State.COMMITTED if record.committed else State.ROLLED_BACK
                self._leave(state, record.positions, time_ms)
            case QueueCleared():
                self._pass_floor(State.CLEARED, record.floor, time_ms)
            case MessagesExpired():
                self._pass_floor(State.EXPIRED, record.floor, time_ms)
            case QueueDeleted():
                self._drop(_state_of(record), self._present.copy(), list(self._leases), time_ms)
            case _:
                pass

    def _received(self, record: MessagesReceived) -> None:
        receive_counts = self._departures.receive_counts
        self._forget_leases(record.positions)
        for start, stop in ranges(record.positions):
            # A received message was in the queue, so an earlier departure is void.
            for left in self._departures.positions.values():
                left.remove_range(start, stop)
            self._may_return.remove_range(start, stop)
            self._present.add_range(start, stop)
            self._in_flight.add_range(start, stop)
        for lease, position in enumerate(unpack_runs(record.positions), record.first_lease):
            self._leases[lease] = (position, receive_counts.get(position, 0) + 1)

    def _deleted(self, record: MessagesDeleted, time_ms: int) -> None:
        self._leave(State.DELETED, record.positions, time_ms)
        if self._may_rewind:
            for start, stop in ranges(record.positions):
                self._may_return.add_range(start, stop)
        for position, receive_count in self._end(unpack_runs(record.leases)):
            self._departures.note_count(position, receive_count, 1)

    def _forget_leases(self, positions: Runs) -> None:
        """Forget leases that ended in a missing row."""
        in_flight = self._in_flight
        if any(in_flight.range_cardinality(start, stop) for start, stop in ranges(positions)):
            ended = in_flight & BitMap64(unpack_runs(positions))
            in_flight -= ended
            self._leases = {lease: entry for lease, entry in self._leases.items() if entry[0] not in ended}

    def _end(self, leases: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Remove leases; yield position and receive count of each that is known."""
        for lease in leases:
            entry = self._leases.pop(lease, None)
            if entry is not None:
                self._in_flight.discard(entry[0])
                yield entry

    def _rewound(self, record: QueueRewound) -> None:
        self._prune(record)
        # The record names a range, not its messages: each is back in the queue, or had ceased to be rewindable.
        back = self._may_return & _span(record.from_position, record.stop_position)
        self._may_return -= back
        self._counted |= back
        self._departures.forget(back)

    def _prune(self, record: QueueRewound | QueueAttributesSet) -> None:
        if record.rewind_floor >= 0:
            self._may_return.remove_range(0, record.rewind_floor)
        elif isinstance(record, QueueAttributesSet) and not record.attributes.rewind_ms:
            self._may_return.clear()

    def _leave(self, state: State, positions: Runs, time_ms: int) -> None:
        self._departures.note_runs(state, positions, time_ms)
        for start, stop in ranges(positions):
            self._may_return.remove_range(start, stop)
            self._present.remove_range(start, stop)
            if not self._counted.contains_range(start, stop):
                self._departures.uncounted |= _span(start, stop) - self._counted

    def _pass_floor(self, state: State, floor: int, time_ms: int) -> None:
        leases: list[int] = []
        if self._in_flight and self._in_flight[0] < floor:
            leases = [lease for lease, (position, _) in self._leases.items() if position < floor]
        self._drop(state, self._present & _span(0, floor), leases, time_ms)

    def _drop(self, state: State, positions: BitMap64, leases: list[int], time_ms: int) -> None:
        if positions:
            self._departures.note(state, positions, time_ms)
            self._departures.uncounted |= positions - self._counted
            self._may_return -= positions
            self._present -= positions
        self._departures.receive_counts.update(self._end(leases))


_STATES: Final = frozenset(State)


def time_of(record: AnyRecord, row_ms: int) -> int:
    """Return the time of a record that takes messages out of a queue, or brings them back; of a record without a time,
    that of its row."""
    match record:
        case MessagesDeleted():
            return record.deleted_ms
        case MessagesDeadLettered():
            return record.moved_ms
        case TransactionsEnded():
            return record.ended_ms
        case QueueRewound():
            return record.rewound_ms
        case _:
            return row_ms


def _state_of(record: QueueDeleted) -> State:
    """Return the state of the messages that went with a queue."""
    return State.QUEUE_UNUSED if record.reason == UNUSED else State.QUEUE_DELETED


def _span(start: int, stop: int) -> BitMap64:
    numbers = BitMap64()
    if start < stop:
        numbers.add_range(start, stop)
    return numbers
