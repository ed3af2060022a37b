"""Replay of a log with gaps: records are cut down to the part that can still be true.

After an accepted loss (or a power failure without fsync) a start finds a log in which rows are missing in the middle.
Records behind a gap presume the lost rows. Before each record the index is therefore brought to a state in
which the record can be true, and the record is cut down to the messages that the index knows. Only then is the record
applied, by the same methods as in live operation: these methods rely on the invariants, and an unfitting record would
break the counts of the queue for good.

- A message without the record of its send is unknown. Later records cannot bring the message back, because its size
  and id are lost too; its position counts as used and gone.
- A received message had become active: a delay or a lease that the index still has for the message ended in a gap.
- A deleted message that was received or moved later had been rewound in a gap.
- The end of a lease may be lost in a gap. Without a later record the lease ends at its deadline, and the message is
  delivered again: a second delivery is allowed, a lost message is not.

The invariants of the index hold after every record, and the outcome depends on the log alone. A broker that goes on
from here and starts again from the same log reaches the same state.
"""

from collections.abc import Sequence

from cmqd_fold.queue_index import QueueIndex
from cmqd_segment.records import (
    AnyRecord,
    DeadLettersFrom,
    DelaysScheduled,
    LeasesEnded,
    MessagesActivated,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesExpired,
    MessagesMoved,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    QueueCleared,
    QueueRewound,
    RedriveStarted,
    TransactionsChecked,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
    last_of,
    pack_runs,
    unpack_runs,
)

FORGET_ABOVE = 65_536
"""Entries of ended leases that the map of a queue may keep before the map is built anew."""


class Salvage:
    """Cuts records down in a replay after a loss; lives as long as recovery does."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[int, int]] = {}
        """By queue id: position -> the lease that held it last."""

    def fitting(self, index: QueueIndex, record: AnyRecord) -> tuple[Sequence[AnyRecord], bool]:
        """Return the records to apply in place of ``record``, and whether they keep all of its content."""
        match record:
            case MessagesSent() if record.first_position < index.next_position:
                # A record behind the gap named these positions as used. Stored now, the messages would take the state
                # that belongs to others.
                return (), False
            case MessagesReceived():
                return self._received(index, record)
            case MessagesDeleted():
                _never_again(index, last_of(record.positions) + 1)
                asked = unpack_runs(record.positions)
                # Whatever state a message has here, the record says that it ends. It leaves its set before it leaves
                # the queue, or the counts of the sets would be wrong for good.
                # All leases stay in the record, also those that the index does not know: a delete passes over an
                # unknown lease, and a known one must end with its message.
                live = [position for position in asked if position in index.live]
                self._end_state(index, live)
                deleted = MessagesDeleted(record.queue_id, pack_runs(live), record.leases, record.deleted_ms)
                return (deleted,), len(live) == len(asked)
            case MessagesDeadLettered():
                _never_again(index, last_of(record.positions) + 1)
                asked = unpack_runs(record.positions)
                # As a delete; a message that was rewound in a gap is in the other queue now, and must leave this queue.
                _rewound(index, asked)
                live = [position for position in asked if position in index.live]
                self._end_state(index, live)
                moved = MessagesDeadLettered(record.queue_id, pack_runs(live), record.leases, record.moved_ms)
                return (moved,), len(live) == len(asked)
            case LeasesEnded() | MessagesReleased() | VisibilityChanged():
                return _known_leases(index, record)
            case TransactionsEnded() | TransactionsChecked() | TransactionsUndecided():
                _never_again(index, last_of(record.positions) + 1)
                return _half_only(index, record)
            case MessagesActivated():
                _never_again(index, last_of(record.positions) + 1)
                return _activated(index, record)
            case DelaysScheduled():
                _never_again(index, last_of(record.positions) + 1)
                # A message that left overflow in the gap has its due time already, or its delay has ended.
                delays = list(zip(unpack_runs(record.positions), record.visible_ms, strict=True))
                waiting = [(position, due_ms) for position, due_ms in delays if position in index.delays.overflow]
                runs = pack_runs(position for position, _ in waiting)
                # The due times are cut together with the positions, because the record pairs them by order.
                scheduled = DelaysScheduled(record.queue_id, runs, [due_ms for _, due_ms in waiting])
                return (scheduled,), len(waiting) == len(delays)
            case MessagesMoved():
                return self._moved(index, record)
            case QueueRewound() | RedriveStarted():
                # Whole, because a rewind takes only positions that the index has as rewindable, and a redrive only a
                # bound.
                _never_again(index, record.stop_position)
            case QueueCleared() | MessagesExpired() | DeadLettersFrom():
                # A floor is true for every position below it, known or not.
                _never_again(index, record.floor)
            case _:
                pass
        return (record,), True

    def _received(self, index: QueueIndex, record: MessagesReceived) -> tuple[Sequence[AnyRecord], bool]:
        # In this order: positions are marked as used, deleted messages come back, and only then all are made active. A
        # message must be live before it can be active, and known before it can be live.
        _never_again(index, last_of(record.positions) + 1)
        asked = unpack_runs(record.positions)
        _rewound(index, asked)
        live = self._activate(index, asked)
        # After the messages left their former states: a message in flight leaves by the lease that held it before.
        holders = self._holders_of(index)
        holders.update((position, lease) for lease, position in enumerate(asked, record.first_lease))
        if len(live) == len(asked):
            return (record,), True
        # Lease numbers count through all received messages, known or not. A single record over the known messages would
        # give them the leases of their neighbours, so every stretch of known messages gets a record.
        cut: list[AnyRecord] = []
        start = 0
        while start < len(asked):
            stop = start
            while stop < len(asked) and asked[stop] in index.live:
                stop += 1
            if stop > start:
                runs = pack_runs(asked[start:stop])
                first_lease = record.first_lease + start
                cut.append(MessagesReceived(record.queue_id, runs, first_lease, record.received_ms, record.deadline_ms))
            start = stop + 1
        return cut, False

    def _moved(self, index: QueueIndex, record: MessagesMoved) -> tuple[Sequence[AnyRecord], bool]:
        _never_again(index, last_of(record.positions) + 1)
        asked = unpack_runs(record.positions)
        # A message that was rewound in a gap and then moved is in the other queue now, and must leave this queue.
        _rewound(index, asked)
        live = self._activate(index, asked)
        cut = MessagesMoved(record.queue_id, pack_runs(live), record.redriven)
        return (cut,), len(live) == len(asked)

    def _activate(self, index: QueueIndex, asked: Sequence[int]) -> list[int]:
        """Make the live messages among the positions active, and return their positions."""
        live = [position for position in asked if position in index.live]
        hidden = [position for position in live if position not in index.active]
        self._end_state(index, hidden)
        # From here on the record finds what it presumes, and takes the messages out of the active set by itself.
        _make_active(index, hidden)
        return live

    def _end_state(self, index: QueueIndex, positions: list[int]) -> None:
        """Take live messages out of their present state, because the record gives them a new state or removes them."""
        for position in positions:
            if not index.leave_set(position):
                # A live message in no set is in flight: recovery knows neither damaged nor moving messages. The count
                # of its receives is kept, as at the end of a lease, so that dead letters are still recognized.
                in_flight = index.leases.by_number.pop(self._holders_of(index)[position])
                index.history.set(position, in_flight.receive_count, in_flight.first_receive_ms)

    def _holders_of(self, index: QueueIndex) -> dict[int, int]:
        # Built from the leases at the first need, then kept up to date: a search through a million leases for every
        # record would make such a start take hours.
        holders = self._holders.get(index.queue_id)
        if holders is None or len(holders) > 2 * len(index.leases.by_number) + FORGET_ABOVE:
            holders = {in_flight.position: lease for lease, in_flight in index.leases.by_number.items()}
            self._holders[index.queue_id] = holders
        return holders


def _rewound(index: QueueIndex, positions: Sequence[int]) -> None:
    """Bring back the deleted messages that a record treats as live: they were rewound in a gap."""
    if index.rewindable_count:
        back = [position for position in positions if position in index.rewindable]
        for position in back:
            index.rewindable.remove(position)
            index.live.add(position)
        # Counted as the rewind in the gap would have: a live position outside the count would make the backlog too
        # small.
        index.live_count += len(back)
        _make_active(index, back)


def _make_active(index: QueueIndex, positions: Sequence[int]) -> None:
    for position in positions:
        index.activate_range(position, position + 1)


def _activated(index: QueueIndex, record: MessagesActivated) -> tuple[Sequence[AnyRecord], bool]:
    asked = unpack_runs(record.positions)
    for position in asked:
        if position in index.delays.overflow:
            # The message got a place among the delayed messages in a gap.
            # Into the scheduled messages first: the record is applied as in live operation, and takes its messages from
            # there.
            index.leave_set(position)
            index.delays.scheduled.add(position)
            index.delays.scheduled_count += 1
    # Messages without a delay are left out: their delay ended in a gap, and the record would count it twice.
    delayed = [position for position in asked if position in index.delays.scheduled]
    return (MessagesActivated(record.queue_id, pack_runs(delayed)),), len(delayed) == len(asked)


def _half_only(
    index: QueueIndex, record: TransactionsEnded | TransactionsChecked | TransactionsUndecided
) -> tuple[Sequence[AnyRecord], bool]:
    asked = unpack_runs(record.positions)
    half = [position for position in asked if position in index.half]
    runs = pack_runs(half)
    cut: AnyRecord
    match record:
        case TransactionsEnded():
            # The committed message follows in a record of its own, which needs none of the lost rows.
            cut = TransactionsEnded(record.queue_id, runs, record.committed, record.ended_ms)
        case TransactionsChecked():
            # The times of the next checks are cut together with the positions, because the record pairs them by order.
            times = zip(asked, record.next_check_ms, strict=True)
            next_check_ms = [due_ms for position, due_ms in times if position in index.half]
            cut = TransactionsChecked(record.queue_id, runs, record.checked_ms, next_check_ms)
        case TransactionsUndecided():
            cut = TransactionsUndecided(record.queue_id, runs, record.answered_ms)
    return (cut,), len(half) == len(asked)


def _never_again(index: QueueIndex, stop: int) -> None:
    """Count positions below ``stop`` as used, known sends or not: a reused position would give two messages a state."""
    index.next_position = max(index.next_position, stop)


def _known_leases(
    index: QueueIndex, record: LeasesEnded | MessagesReleased | VisibilityChanged
) -> tuple[Sequence[AnyRecord], bool]:
    """Cut a record to the leases that the index knows. A lease that began in the gap is unknown: its message is active
    here, and is delivered again.
    """
    asked = unpack_runs(record.leases)
    known_leases = [lease for lease in asked if lease in index.leases.by_number]
    runs = pack_runs(known_leases)
    cut: AnyRecord
    match record:
        case LeasesEnded():
            cut = LeasesEnded(record.queue_id, runs)
        case MessagesReleased():
            cut = MessagesReleased(record.queue_id, runs, record.counted)
        case VisibilityChanged():
            cut = VisibilityChanged(record.queue_id, runs, record.deadline_ms)
    return (cut,), len(known_leases) == len(asked)
