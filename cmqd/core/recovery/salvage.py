"""Replay of a log with gaps: records are cut down to what can still be true.

An operator who accepted a loss (or ran without fsync, and lost power) starts from a log in which rows are missing in
the middle. What stands behind a gap presumes what was lost in it. So before each record the index is brought to a state
in which the record can be true, and the record is cut down to what the index knows; then it is applied as any other.

- A message whose send was lost is unknown, and so gone, whatever befell it later.
- A message that was received had become active: a delay or a lease that it still has here ended in a gap.
- A deleted message that was received or moved had been rewound.
- What became of a lease in a gap, if nothing later tells, is not known: it ends at its deadline, and the message is
  delivered again.

The invariants of the index hold after each record, and the outcome depends on the log alone: a broker that goes on from
here and starts once more from the same log comes to the same state.
"""

from collections.abc import Sequence

from cmqd_fold.queue_index import QueueIndex
from cmqd_segment.records import (
    AnyRecord,
    DeadLettersFrom,
    DelaysScheduled,
    LeasesEnded,
    MessagesActivated,
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
"""Positions of leases that ended, kept before they are looked through."""


class Salvage:
    """Replay after a loss; lives as long as recovery does."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[int, int]] = {}
        """By queue id: position -> the lease that held it last."""

    def fitting(self, index: QueueIndex, record: AnyRecord) -> tuple[Sequence[AnyRecord], bool]:
        """What to apply in place of ``record``, and whether that is all of it."""
        match record:
            case MessagesSent() if record.first_position < index.next_position:
                return (), False
            case MessagesReceived():
                return self._received(index, record)
            case MessagesDeleted():
                _never_again(index, last_of(record.positions) + 1)
                asked = unpack_runs(record.positions)
                live = [position for position in asked if position in index.live]
                self._end_state(index, live)
                deleted = MessagesDeleted(record.queue_id, pack_runs(live), record.leases, record.deleted_ms)
                return (deleted,), len(live) == len(asked)
            case LeasesEnded() | MessagesReleased() | VisibilityChanged():
                asked = unpack_runs(record.leases)
                held = [lease for lease in asked if lease in index.in_flight]
                runs = pack_runs(held)
                cut: AnyRecord
                match record:
                    case LeasesEnded():
                        cut = LeasesEnded(record.queue_id, runs)
                    case MessagesReleased():
                        cut = MessagesReleased(record.queue_id, runs, record.counted)
                    case VisibilityChanged():
                        cut = VisibilityChanged(record.queue_id, runs, record.deadline_ms)
                return (cut,), len(held) == len(asked)
            case TransactionsEnded() | TransactionsChecked() | TransactionsUndecided():
                _never_again(index, last_of(record.positions) + 1)
                return _half_only(index, record)
            case MessagesActivated():
                _never_again(index, last_of(record.positions) + 1)
                return _activated(index, record)
            case DelaysScheduled():
                _never_again(index, last_of(record.positions) + 1)
                delays = list(zip(unpack_runs(record.positions), record.visible_ms, strict=True))
                waiting = [(position, due_ms) for position, due_ms in delays if position in index.overflow]
                runs = pack_runs(position for position, _ in waiting)
                scheduled = DelaysScheduled(record.queue_id, runs, [due_ms for _, due_ms in waiting])
                return (scheduled,), len(waiting) == len(delays)
            case MessagesMoved():
                return self._moved(index, record)
            case QueueRewound() | RedriveStarted():
                _never_again(index, record.stop_position)
            case QueueCleared() | MessagesExpired() | DeadLettersFrom():
                _never_again(index, record.floor)
            case _:
                pass
        return (record,), True

    def _received(self, index: QueueIndex, record: MessagesReceived) -> tuple[Sequence[AnyRecord], bool]:
        _never_again(index, last_of(record.positions) + 1)
        asked = unpack_runs(record.positions)
        _rewound(index, asked)
        live = self._activate(index, asked)
        holders = self._holders_of(index)
        holders.update((position, lease) for lease, position in enumerate(asked, record.first_lease))
        if len(live) == len(asked):
            return (record,), True
        # Leases are numbered on through all that were received: one record for each stretch of those still known.
        cut: list[AnyRecord] = []
        at = 0
        while at < len(asked):
            stretch = at
            while stretch < len(asked) and asked[stretch] in index.live:
                stretch += 1
            if stretch > at:
                runs = pack_runs(asked[at:stretch])
                first_lease = record.first_lease + at
                cut.append(MessagesReceived(record.queue_id, runs, first_lease, record.received_ms, record.deadline_ms))
            at = stretch + 1
        return cut, False

    def _moved(self, index: QueueIndex, record: MessagesMoved) -> tuple[Sequence[AnyRecord], bool]:
        _never_again(index, last_of(record.positions) + 1)
        asked = unpack_runs(record.positions)
        # One that was rewound in a gap stands in the other queue now, and nowhere else.
        _rewound(index, asked)
        live = self._activate(index, asked)
        cut = MessagesMoved(record.queue_id, pack_runs(live), record.redriven)
        return (cut,), len(live) == len(asked)

    def _activate(self, index: QueueIndex, asked: Sequence[int]) -> list[int]:
        """Those of the positions that are live; they are active from here on, if they were not."""
        live = [position for position in asked if position in index.live]
        hidden = [position for position in live if position not in index.active]
        self._end_state(index, hidden)
        index.activate(hidden)
        return live

    def _end_state(self, index: QueueIndex, positions: list[int]) -> None:
        """Take live messages out of whatever state they are in; they are about to get another, or to go."""
        for position in positions:
            if not index.leave_set(position):
                held = index.in_flight.pop(self._holders_of(index)[position])
                index.history.set(position, held.receive_count, held.first_receive_ms)

    def _holders_of(self, index: QueueIndex) -> dict[int, int]:
        holders = self._holders.get(index.queue_id)
        if holders is None or len(holders) > 2 * len(index.in_flight) + FORGET_ABOVE:
            holders = {held.position: lease for lease, held in index.in_flight.items()}
            self._holders[index.queue_id] = holders
        return holders


def _rewound(index: QueueIndex, positions: Sequence[int]) -> None:
    """Deleted messages of which a record says that they are live were rewound in a gap."""
    if index.rewindable_count:
        back = [position for position in positions if position in index.rewindable]
        for position in back:
            index.rewindable.remove(position)
            index.live.add(position)
        index.live_count += len(back)
        index.activate(back)


def _activated(index: QueueIndex, record: MessagesActivated) -> tuple[Sequence[AnyRecord], bool]:
    asked = unpack_runs(record.positions)
    for position in asked:
        if position in index.overflow:
            # It got its place among the delayed in a gap.
            index.leave_set(position)
            index.delayed.add(position)
            index.delayed_count += 1
    delayed = [position for position in asked if position in index.delayed]
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
            # What was committed stands behind this as a message of its own, and needs nothing that was lost.
            cut = TransactionsEnded(record.queue_id, runs, record.committed, record.ended_ms)
        case TransactionsChecked():
            times = zip(asked, record.next_check_ms, strict=True)
            next_check_ms = [due_ms for position, due_ms in times if position in index.half]
            cut = TransactionsChecked(record.queue_id, runs, record.checked_ms, next_check_ms)
        case TransactionsUndecided():
            cut = TransactionsUndecided(record.queue_id, runs, record.answered_ms)
    return (cut,), len(half) == len(asked)


def _never_again(index: QueueIndex, stop: int) -> None:
    """Positions below ``stop`` were used, whether their sends are known or not."""
    index.next_position = max(index.next_position, stop)
