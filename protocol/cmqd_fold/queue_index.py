"""Index of a queue: the state of every position, as sets of positions instead of an object per message.

            sent                received               deleted
    ──────► active ───────────────► in flight ───────────► gone, or rewindable
      │        ▲  ▲ lease ended / released │                        │ rewound: active again
      │ delay  │  └───────────────────────┘
      ├─► delayed                                  any state ──(floor passes it: cleared, expired)──► gone
      │        ▲ scheduled
      ├─► overflow (delayed beyond max_delayed)    active ──► moving ──(moved to another queue)──► gone
      └─► half ──(decided)──► gone; if committed, active at a new position under the same id

    in flight ──(moved to the dead-letter queue by its consumer)──► gone

Invariants:

- A live position is in exactly one of active, delayed, overflow, half, moving, damaged, or a lease in flight. A
  rewindable position is not live.
- No live position is below ``floor`` or at or above ``next_position``; no active position is below ``head``.
- Counts are the sizes of the sets; the messages in flight are the live positions in none of the sets.

All changes of facts go through the ``apply_*`` methods, live and in recovery alike; the methods read no clock.
``damaged`` is not a fact but an observation (the body could not be read), and ``moving`` an intention (the body is
being read, to be moved to another queue). A restart forgets both, and the messages are active again.

A message in flight has no set. A receive takes it out of ``active`` and a delete out of ``live``, so the two most
frequent records touch one large set each. The price is that the count of messages in flight is a difference of counts,
and a count that is wrong once stays wrong: every method changes a set and its count together.
"""

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from pyroaring import BitMap64

from cmqd_fold.activations import Activations
from cmqd_fold.delays import EMPTY, Delays
from cmqd_fold.half_messages import HalfTable
from cmqd_fold.leases import InFlight, Leases
from cmqd_fold.receive_history import ReceiveHistory
from cmqd_fold.rewind_floor import passed_floor, rewind_floor_of
from cmqd_fold.settled_leases import SettledLeases
from cmqd_fold.time_steps import TimeSteps
from cmqd_fold.timers import NO_TIMERS, QueueTimers
from cmqd_segment.checkpoint import HistorySlice, LeasesSlice, QueueSlice, Redrive
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
    QueueAttributesSet,
    QueueCleared,
    QueueRewound,
    RedriveEnded,
    RedriveStarted,
    Runs,
    TransactionsChecked,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
    count_runs,
    ranges,
    unpack_runs,
)
from cmqd_types.attributes import QueueAttributes
from cmqd_types.messages import REDRIVE
from cmqd_types.totals import QueueTotals

_LetsGo = TypeVar("_LetsGo", QueueRewound, QueueAttributesSet)

NEVER_SERVED = -1
SERVED_BEFORE = -2
"""Values of ``dead_letter_floor`` below 0: the queue never was a dead-letter queue; the queue was one before."""

PACKED_BYTES: Final = 128
"""Largest set that a quiet queue keeps packed."""

PARTS: Final = {"live": 1, "active": 2, "leases": 4, "settled": 8, "history": 16, "steps": 32}
"""Parts that a quiet queue lacks, each with its bit."""
_ALL_PARTS: Final = 63


class QueueIndex:
    """The state of every position of a queue; see the module for states and invariants."""

    __slots__ = (
        "_activations",
        "_damaged",
        "_damaged_in_flight",
        "_half",
        "_halves",
        "_moving",
        "_packed_active",
        "_packed_live",
        "_rewindable",
        "active",
        "active_count",
        "attributes",
        "dead_letter_floor",
        "delays",
        "floor",
        "half_count",
        "head",
        "history",
        "last_enqueue_ms",
        "leases",
        "live",
        "live_count",
        "made",
        "moving_count",
        "next_position",
        "queue_id",
        "redrive",
        "settled",
        "steps",
        "timers",
        "totals",
    )

    # The parts of a queue with messages: most of its memory. A quiet queue lacks them, see ``_QuietIndex``.
    live: BitMap64
    """Positions of all messages that are not gone; rewindable messages count as gone."""
    active: BitMap64
    leases: Leases
    settled: SettledLeases | None
    """Leases that ended with a delete or a move; None without timers: a reader of the log is asked by no consumer."""
    history: ReceiveHistory
    """Receives of active messages that came back. Messages in flight have their count in the lease."""
    steps: TimeSteps
    """Send times by position, to about 100 ms: a time per message would take 8 bytes for each."""

    def __init__(
        self,
        queue_id: int,
        attributes: QueueAttributes,
        timers: QueueTimers = NO_TIMERS,
    ) -> None:
        self.made = 0
        """Bits of ``PARTS`` that are made."""
        self.queue_id = queue_id
        self.attributes = attributes
        self.timers = timers
        self.next_position = 0
        """The first position that was never used. It only grows: a reused position would get the state, history and
        segment of another message."""
        self.floor: int = 0
        """All messages below it are gone, whatever state they had."""
        self.head: int = 0
        """Lower bound of the active positions."""
        self.last_enqueue_ms = 0
        """Time of the newest message. No later message gets an earlier time, because retention moves a floor, and a
        floor needs times in the order of positions. Only ``apply_step`` lowers it, with all times of the queue."""
        self._packed_live = self._packed_active = EMPTY
        """Content of ``live`` and ``active`` while they are not made: a set of one position takes 430 bytes, packed
        63."""
        self.live_count = 0
        self.active_count = 0
        self.delays = Delays(queue_id, timers.delays)
        # Most queues need none of these sets, and a set costs a quarter of a kilobyte or more.
        self._half: BitMap64 | None = None
        self.half_count = 0
        self._moving: BitMap64 | None = None
        self.moving_count = 0
        self._rewindable: BitMap64 | None = None
        self._halves: HalfTable | None = None
        self._activations: Activations | None = None
        self._damaged: BitMap64 | None = None
        self._damaged_in_flight: BitMap64 | None = None
        self.dead_letter_floor = NEVER_SERVED
        """The queue takes dead letters once no live position is below this floor; below 0 = see ``NEVER_SERVED``."""
        self.redrive: Redrive | None = None
        """The redrive in progress, or the last redrive."""
        self.totals = QueueTotals()
        """Counts since the queue was made. Facts like the positions: the ``apply_*`` methods alone count."""
        _become(self, _QuietIndex)

    # ------------------------------------------------------------------ parts of a quiet queue

    def is_made(self, name: str) -> bool:
        """Return whether a part is made, for calls that would make all parts in vain."""
        return self.made & PARTS[name] != 0

    def make_parts(self) -> None:
        """Make the parts that a quiet queue lacks."""
        made = self.made
        if not made & PARTS["live"]:
            self.live = _unpacked(self._packed_live)
        if not made & PARTS["active"]:
            self.active = _unpacked(self._packed_active)
        if not made & PARTS["leases"]:
            self.leases = Leases(self.queue_id, self.timers.leases)
        if not made & PARTS["settled"]:
            self.settled = None if self.timers is NO_TIMERS else SettledLeases()
        if not made & PARTS["history"]:
            self.history = ReceiveHistory()
        if not made & PARTS["steps"]:
            self.steps = TimeSteps()
        self.made = _ALL_PARTS
        _become(self, QueueIndex)

    def rest(self) -> None:
        """Let go of the parts that hold little or nothing, until their next use. To be called between operations."""
        # Not at the delete of the last message: a queue with a message at a time would make its sets anew for each.
        if not self.made:
            return
        for name, packed_name in (("live", "_packed_live"), ("active", "_packed_active")):
            if self.is_made(name):
                packed = getattr(self, name).serialize()
                if len(packed) <= PACKED_BYTES:
                    setattr(self, packed_name, packed)
                    self._unmake(name)
        if self.is_made("leases") and not self.leases.by_number:
            self._unmake("leases")
        if self.is_made("history") and not self.history.chunks:
            self._unmake("history")
        if self.is_made("steps") and not len(self.steps):
            self._unmake("steps")
        if self.is_made("settled") and (self.settled is None or self.settled.is_unused):
            self._unmake("settled")

    def _unmake(self, name: str) -> None:
        _become(self, _QuietIndex)
        delattr(self, name)
        self.made ^= PARTS[name]

    # ------------------------------------------------------------------ sets made at first use

    @property
    def half(self) -> BitMap64:
        """Half messages that wait for their decision."""
        if self._half is None:
            self._half = BitMap64()
        return self._half

    @half.setter
    def half(self, positions: BitMap64) -> None:
        self._half = positions

    @property
    def moving(self) -> BitMap64:
        """Messages that are being moved to another queue."""
        if self._moving is None:
            self._moving = BitMap64()
        return self._moving

    @moving.setter
    def moving(self, positions: BitMap64) -> None:
        self._moving = positions

    @property
    def rewindable(self) -> BitMap64:
        """Deleted messages that can be brought back."""
        if self._rewindable is None:
            self._rewindable = BitMap64()
        return self._rewindable

    @rewindable.setter
    def rewindable(self, positions: BitMap64) -> None:
        self._rewindable = positions

    @property
    def rewindable_count(self) -> int:
        """Number of rewindable messages."""
        return len(self._rewindable) if self._rewindable is not None else 0

    @property
    def damaged(self) -> BitMap64:
        """Live messages with an unreadable body; no consumer gets them before a restart."""
        if self._damaged is None:
            self._damaged = BitMap64()
        return self._damaged

    @property
    def halves(self) -> HalfTable:
        """Ids, decisions and checks of half messages."""
        if self._halves is None:
            self._halves = HalfTable()
        return self._halves

    @property
    def has_halves(self) -> bool:
        """True if half messages, or decisions about them, are remembered."""
        return self._halves is not None and len(self._halves) > 0

    @property
    def activations(self) -> Activations:
        """Activation times of messages that became active after their send: rewound, or delayed while the queue has
        dead letters by age.
        """
        if self._activations is None:
            self._activations = Activations()
        return self._activations

    def activation_entries(self) -> list[tuple[int, bytes]]:
        """Return the activations for a checkpoint."""
        return [] if self._activations is None else self._activations.entries()

    # ------------------------------------------------------------------ counts

    @property
    def in_flight_count(self) -> int:
        """Messages received and hidden, exact."""
        return (
            self.live_count
            - self.active_count
            - self.delays.scheduled_count
            - self.delays.overflow_count
            - self.half_count
            - self.moving_count
            - self._aside_count
        )

    @property
    def _aside_count(self) -> int:
        return 0 if self._damaged is None else len(self._damaged)

    @property
    def damaged_in_flight(self) -> BitMap64:
        """Messages in flight with an unreadable body, which their consumers may still delete. At the end of its lease
        such a message is set aside with the other damaged messages.
        """
        if self._damaged_in_flight is None:
            self._damaged_in_flight = BitMap64()
        return self._damaged_in_flight

    @property
    def damaged_count(self) -> int:
        """Number of damaged messages, as operators see it: in flight or not."""
        return self._aside_count + self._damaged_leases

    @property
    def readable_in_flight_count(self) -> int:
        """Number of messages in flight, as operators see it: without damaged messages."""
        return self.in_flight_count - self._damaged_leases

    @property
    def _damaged_leases(self) -> int:
        return 0 if self._damaged_in_flight is None else len(self._damaged_in_flight)

    @property
    def held_count(self) -> int:
        """Messages in flight, delayed, half or moving: neither receivable nor damaged."""
        return self.live_count - self.active_count - self._aside_count

    @property
    def held_dead_letters(self) -> bool:
        """True if the queue serves, or served before, as a dead-letter queue."""
        return self.dead_letter_floor != NEVER_SERVED

    def apply_dead_letters_from(self, record: DeadLettersFrom) -> None:
        """Begin the role of a dead-letter queue, from a floor on, or (floor below 0) end it."""
        if record.floor >= 0:
            self.dead_letter_floor = record.floor
        # The floor goes, but the role is remembered: messages of it may still be here, and may be redriven.
        elif self.held_dead_letters:
            self.dead_letter_floor = SERVED_BEFORE

    @property
    def takes_dead_letters(self) -> bool:
        """True if all messages from before the queue became a dead-letter queue are consumed."""
        floor = self.dead_letter_floor
        # The oldest live message decides. Messages from before the role must be consumed first, or a redrive would move
        # the messages of a working queue.
        return floor >= 0 and (not self.live_count or next(iter(self.live)) >= floor)

    @property
    def remembers_times(self) -> bool:
        """True if send times of any position still matter."""
        return bool(self.live_count or self.rewindable_count or self.has_halves)

    def oldest_remembered(self) -> int:
        """Return the lowest position that is live, rewindable, or has a remembered decision."""
        oldest = self.next_position
        # Decisions about half messages count too: their time steps tell when a decision may be forgotten.
        kept = [self.live, self._rewindable]
        if self._halves is not None:
            kept += (self._halves.committed, self._halves.rolled_back)
        for positions in kept:
            if positions:
                oldest = min(oldest, next(iter(positions)))
        return oldest

    def live_to_read(self) -> BitMap64:
        """Return ``live``, for a figure or a search over many queues: a quiet queue stays packed. Not to be changed."""
        return self.live if self.is_made("live") else _unpacked(self._packed_live)

    def oldest_unconsumed(self) -> int | None:
        """Return the lowest position that consumers can receive or have in flight; None = no such message.

        Half, delayed and damaged messages are passed over, because no consumer can act on them.
        """
        if not self.live_count:
            return None
        live = self.live_to_read()
        first = live.min()
        delays = self.delays
        # The usual queue has no hidden message; its counts are cheaper than a look into four sets.
        if not (self.half_count or delays.scheduled_count or delays.overflow_count or self._damaged):
            return first
        sets = (self._half, delays.scheduled, delays.overflow, self._damaged)
        hidden = [positions for positions in sets if positions]
        if not any(first in positions for positions in hidden):
            return first
        # A union, then a single difference: a difference copies the live set, the largest set of the index.
        together = hidden[0].copy()
        for positions in hidden[1:]:
            together |= positions
        return next(iter(live - together), None)

    def first_active(self) -> int:
        """Return the lowest active position; the queue must have an active message."""
        # Receives pay for the walk from the bound to the first active position, and move the bound up, so that the next
        # receive does not walk again.
        if self.head not in self.active:
            self.head = next(iter(self.active))
        return self.head

    def expires_ms(self, position: int) -> int:
        """Return the time at which a message expires, at most a grain of the time steps too early."""
        return self.steps.sent_at(position) + self.attributes.retention_ms

    def expired_below(self, now_ms: int) -> int:
        """Return the position below which all messages have passed their retention; less than a time step above may
        have, too.
        """
        return self.steps.floor_at(now_ms - self.attributes.retention_ms, self.next_position)

    # ------------------------------------------------------------------ facts

    def load(self, part: QueueSlice | LeasesSlice | HistorySlice) -> None:
        """Load a part of a checkpoint; the slice of the queue comes first."""
        match part:
            case QueueSlice():
                self._load_slice(part)
            case LeasesSlice():
                self.leases.load(part)
            case HistorySlice():
                for first_position, content in part.entries:
                    self.history.load(first_position, content)

    def _load_slice(self, part: QueueSlice) -> None:
        # ``head`` is not a fact and not in the slice; the end of recovery sets it to the floor.
        self.next_position = part.next_position
        self.floor = part.floor
        self.last_enqueue_ms = part.last_enqueue_ms
        # Counts are not part of a slice. Taken from the sets, they cannot disagree with them.
        self._packed_live, self._packed_active = part.live, part.active
        if part.live != EMPTY:
            self.live_count = self.active_count = len(_unpacked(part.live))
            if part.active != part.live:
                self.active_count = len(_unpacked(part.active))
        self.delays.load(part)
        # These two parts alone, because the queue may stay quiet.
        if part.step_positions:
            self.steps = TimeSteps()
            self.steps.load(part.step_positions, part.step_starts, part.step_ends)
            self.made |= PARTS["steps"]
        if part.rewindable:
            self.rewindable = BitMap64.deserialize(part.rewindable)
        if part.half:
            self.half = BitMap64.deserialize(part.half)
            self.half_count = len(self.half)
        self.dead_letter_floor = part.dead_letter_floor
        if part.activations:
            # Only if there are any: most queues never need the object, see ``__init__``.
            self.activations.load(part.activations)
        self.redrive = part.redrive
        if part.totals is not None:
            # A copy, because records count in place, and the part may be loaded again (the memory log keeps it).
            self.totals = msgspec.structs.replace(part.totals)
        if part.settled and self.timers is not NO_TIMERS:
            self.settled = SettledLeases()
            self.settled.load(part.settled_since_ms, part.settled)
            self.made |= PARTS["settled"]

    def apply(self, record: AnyRecord) -> None:
        """Apply a record of this queue. Records without positions (creation, deletion) change nothing."""
        match record:
            case MessagesSent():
                self.apply_sent(record)
            case MessagesReceived():
                self.apply_received(record)
            case MessagesDeleted():
                self.apply_deleted(record)
            case LeasesEnded() | MessagesReleased():
                self.apply_returned(record)
            case VisibilityChanged():
                self.leases.change(record)
            case MessagesActivated():
                self.apply_activated(record)
            case DelaysScheduled():
                self.delays.give_places(record)
            case QueueRewound():
                self.apply_rewound(record)
            case MessagesMoved():
                self.apply_moved(record)
            case MessagesDeadLettered():
                self.apply_dead_lettered(record)
            case DeadLettersFrom():
                self.apply_dead_letters_from(record)
            case RedriveStarted():
                self.apply_redrive_started(record)
            case RedriveEnded():
                self.apply_redrive_ended(record)
            case TransactionsEnded():
                self.apply_ended(record)
            case TransactionsChecked():
                self.apply_checked(record)
            case TransactionsUndecided():
                self.apply_undecided(record)
            case QueueCleared() | MessagesExpired():
                self.apply_cut(record)
            case QueueAttributesSet():
                self.apply_attributes(record)
            case _:
                pass

    def apply_sent(self, record: MessagesSent) -> bool:
        """Store messages; return True if a new time step began (its expiry can be scheduled then)."""
        # Position and time come from the record. The broker chose them from this index; a replay must arrive at the
        # same numbers even if a record before was lost.
        first = record.first_position
        count = len(record.sizes)
        stop = first + count
        self.next_position = stop
        self.last_enqueue_ms = record.enqueue_ms
        # Counts beside the sets: the size of a set is a sum over its chunks, and counts are read several times a
        # message.
        self.live.add_range(first, stop)
        self.live_count += count
        # Before the messages are kept: a half message counts as sent, and from then on its id tells its commit.
        self._count_sent(record, count)
        visible_ms = record.visible_ms
        # A record is half as a whole: half messages have their check time in the field of the delays.
        if record.half:
            self._keep_half(record, stop)
        elif visible_ms is None:
            self.activate_range(first, stop)
        elif isinstance(visible_ms, int):
            self._apply_delays(range(first, stop), [visible_ms] * count, record.enqueue_ms)
        else:
            self._apply_delays(range(first, stop), visible_ms, record.enqueue_ms)
        return self.steps.note(first, record.enqueue_ms) and self._drop_steps()

    def _count_sent(self, record: MessagesSent, count: int) -> None:
        """Count stored messages by the way they came: sent, copied, moved; a committed message was counted as half."""
        totals = self.totals
        origins = record.origins
        if origins is not None:
            # All messages of a record were moved together, so the first origin stands for all of them.
            if origins[0] is not None and origins[0].reason == REDRIVE:
                totals.redriven_here += count
            else:
                totals.dead_letters += count
        elif record.copies_of is not None:
            totals.copied += count
        elif self._halves is None or record.half or self._halves.position_of(record.first_message_id) is None:
            totals.sent += count
            totals.sent_bytes += sum(record.sizes)
            if record.half:
                totals.half_sent += count

    def apply_copies(self, first: int, count: int, enqueue_ms: int) -> bool:
        """Store copies of published messages, active at once; return as :meth:`apply_sent`."""
        stop = first + count
        self.next_position = stop
        if enqueue_ms > self.last_enqueue_ms:
            self.last_enqueue_ms = enqueue_ms
        else:
            # The publish was timed before a later send to this queue. Time steps need ascending times, or the floor
            # of retention would pass messages that are still young.
            enqueue_ms = self.last_enqueue_ms
        self.live.add_range(first, stop)
        self.live_count += count
        self.totals.copied += count
        self.activate_range(first, stop)
        return self.steps.note(first, enqueue_ms) and self._drop_steps()

    def _drop_steps(self) -> bool:
        """Forget unneeded time steps, every 64 steps; return True, for the step that was added."""
        # Seldom, because the search for the oldest position reads up to four sets, and steps are few.
        if len(self.steps) % 64 == 0:
            self.steps.drop_below(self.oldest_remembered())
        return True

    def activate_range(self, start: int, stop: int) -> None:
        """Make messages active that are in no other set."""
        self.active.add_range(start, stop)
        # The head only bounds the active positions from below: receives move it up when they search for the first one.
        # Exact upkeep here would search the set after each receive.
        if not self.active_count or start < self.head:
            self.head = start
        self.active_count += stop - start

    def _keep_half(self, record: MessagesSent, stop: int) -> None:
        first = record.first_position
        self.half.add_range(first, stop)
        self.half_count += stop - first
        # A producer names half messages by id, and all facts are by position.
        self.halves.note(record.first_message_id, first, stop - first)
        due_ms = record.visible_ms
        for position in range(first, stop):
            at_ms = due_ms if isinstance(due_ms, int) else due_ms[position - first] if due_ms else 0
            # An entry for every message and not for the batch: its messages are decided, and checked again, one by one.
            self.timers.checks.bucket(at_ms, self.queue_id).append(position)
        self.timers.checks.size += stop - first

    def _apply_delays(self, positions: range, visible_ms: list[int], enqueue_ms: int) -> None:
        delays, max_delayed = self.delays, self.attributes.max_delayed
        for position, due_ms in zip(positions, visible_ms, strict=True):
            if due_ms <= enqueue_ms:
                self.activate_range(position, position + 1)
            else:
                # One by one, in order of position: which messages get the last places depends on that order alone, and
                # a replay must come to the same.
                delays.add(position, due_ms, max_delayed)

    def apply_received(self, record: MessagesReceived) -> list[InFlight]:
        """Take active messages in flight; return the leases, in order of their numbers."""
        # The messages stay live: in flight is what is live and in no set, so a receive touches one set and not two.
        has_history = bool(self.history.chunks)
        for start, stop in ranges(record.positions):
            self.active.remove_range(start, stop)
        made = self.leases.receive(record, self.history)
        count = len(made)
        self.active_count -= count
        totals = self.totals
        totals.received += count
        if has_history:
            totals.redelivered += sum([entry.receive_count > 1 for entry in made])
        return made

    def apply_deleted(self, record: MessagesDeleted) -> None:
        """Remove messages, with their leases; inside a rewind window they become rewindable."""
        if self.settled is not None:
            self.settled.note_deleted(record.leases, record.deleted_ms)
        for lease in unpack_runs(record.leases):
            # The lease may be gone: a replay after a loss removes leases of messages that were received anew.
            self.leases.by_number.pop(lease, None)
        # Most queues have no history, and then a record costs no step per position.
        history = self.history if self.history.chunks else None
        for start, stop in ranges(record.positions):
            self.live.remove_range(start, stop)
            self.live_count -= stop - start
            self.totals.deleted += stop - start
            if self._damaged_in_flight is not None:
                self._damaged_in_flight.remove_range(start, stop)
            if history is not None:
                for position in range(start, stop):
                    history.discard(position)
            # By the attribute of this moment. Changed attributes are a record, so a replay sees the same attribute
            # here.
            if self.attributes.rewind_ms:
                self.rewindable.add_range(start, stop)

    def prune_rewindable(self, now_ms: int) -> None:
        """Remove deleted messages that are past their rewind window, by whole time steps.

        A prune has no record. Every record that depends on the remaining messages (a rewind, changed attributes)
        carries the resulting floor, so replay prunes there and comes to the same set.
        """
        if self.rewindable_count:
            floor = passed_floor(self.attributes, self.steps, now_ms, self.next_position)
            self.rewindable.remove_range(0, floor)

    def with_rewind_floor(self, record: _LetsGo) -> _LetsGo:
        """Return the record with its rewind floor: the lowest position that stays rewindable under the record.

        The rule alone is not enough. Earlier prunes may have removed more than the time steps of this moment tell,
        because steps merge. The positions that are left show every earlier prune.
        """
        floor = self.next_position
        if self.rewindable_count:
            passed = rewind_floor_of(record, self.attributes, self.steps, floor)
            floor = next(self.rewindable.iter_equal_or_larger(passed), floor)
        return msgspec.structs.replace(record, rewind_floor=floor)

    def apply_rewound(self, record: QueueRewound) -> BitMap64:
        """Make deleted messages active again; return their positions."""
        # Pruned by the record and not by the clock: the broker decided when it made the record, and a message that was
        # let go then must not come back in a replay, where its body may be gone.
        back = BitMap64(self._prune_by(record))
        back.remove_range(0, record.from_position)
        back.remove_range(record.stop_position, self.next_position + 1)
        if not back:
            return back
        # The history of these messages ended with their delete, so their receives count from 0 again: a message that
        # was rewound must not become a dead letter at its first receive.
        self.rewindable -= back
        self.live |= back
        self.live_count += len(back)
        self.active |= back
        first = next(iter(back))
        if not self.active_count or first < self.head:
            self.head = first
        self.active_count += len(back)
        self.totals.rewound += len(back)
        # Even without dead letters by age: the clock of the messages starts anew, and the policy may be set later.
        self.activations.note(back, record.rewound_ms)
        return back

    def apply_moved(self, record: MessagesMoved) -> None:
        """Remove messages that were moved to another queue."""
        history = self.history if self.history.chunks else None
        for start, stop in ranges(record.positions):
            self.live.remove_range(start, stop)
            # In the set ``moving`` on a live broker, in ``active`` in a replay.
            self.active.remove_range(start, stop)
            if self._moving is not None:
                self._moving.remove_range(start, stop)
            self.live_count -= stop - start
            if history is not None:
                for position in range(start, stop):
                    history.discard(position)
        # Sizes anew in place of differences: which of the two sets held a message differs between a live broker and a
        # replay, and a difference would have to know.
        self.active_count = len(self.active)
        self.moving_count = len(self._moving) if self._moving is not None else 0
        # Dead letters and redriven messages leave by the same record; only the latter are progress of the redrive.
        count = count_runs(record.positions)
        if record.redriven:
            self.totals.redriven += count
            if self.redrive is not None:
                self.redrive.moved += count
        else:
            self.totals.dead_lettered += count

    def apply_dead_lettered(self, record: MessagesDeadLettered) -> None:
        """Remove messages in flight that their consumers moved to the dead-letter queue, with their leases."""
        if self.settled is not None:
            self.settled.note_moved(record.leases, record.moved_ms)
        for lease in unpack_runs(record.leases):
            # Gone already: a replay after a loss removes leases of messages that were received anew.
            self.leases.by_number.pop(lease, None)
        history = self.history if self.history.chunks else None
        for start, stop in ranges(record.positions):
            # Not rewindable, whatever the window: the message is in the other queue, and a rewind would double it.
            self.live.remove_range(start, stop)
            self.live_count -= stop - start
            self.totals.dead_lettered += stop - start
            if self._damaged_in_flight is not None:
                self._damaged_in_flight.remove_range(start, stop)
            if history is not None:
                for position in range(start, stop):
                    history.discard(position)

    def apply_redrive_started(self, record: RedriveStarted) -> None:
        """Begin a redrive."""
        # In place of the last redrive, which stayed only to be shown to the operator.
        self.redrive = Redrive(record.target, record.max_per_second, record.stop_position, record.started_ms)

    def apply_redrive_ended(self, record: RedriveEnded) -> None:
        """End the redrive."""
        if self.redrive is not None:
            self.redrive.ended_ms = record.ended_ms
            self.redrive.reason = record.reason
            self.redrive.missing_origins = record.missing_origins

    def apply_ended(self, record: TransactionsEnded) -> None:
        """Remove decided half messages; a committed message is sent anew in the same row."""
        # The old position is free from here on. A committed message has a new position, at the end of the queue, where
        # its time is the time of the commit: consumers see it as new, and its retention begins.
        for start, stop in ranges(record.positions):
            self.live.remove_range(start, stop)
            self.half.remove_range(start, stop)
            self.live_count -= stop - start
            self.half_count -= stop - start
        count = count_runs(record.positions)
        if record.committed:
            self.totals.committed += count
        else:
            self.totals.rolled_back += count
        # Ids and decisions stay: a producer that lost the answer repeats its decision, and must find it.
        self.halves.end(record.positions, record.committed)

    def apply_checked(self, record: TransactionsChecked) -> None:
        """Note checks of half messages; entries in older buckets turn stale."""
        for position, next_ms in zip(unpack_runs(record.positions), record.next_check_ms, strict=True):
            self.halves.note_check(position, record.checked_ms, next_ms)
            if next_ms:
                self.timers.checks.bucket(next_ms, self.queue_id).append(position)
                self.timers.checks.size += 1

    def apply_undecided(self, record: TransactionsUndecided) -> None:
        """Note that a producer answered a check without a decision."""
        self.halves.note_unknown(unpack_runs(record.positions), record.answered_ms)

    def apply_attributes(self, record: QueueAttributesSet) -> None:
        """Replace the attributes, from this record on."""
        # Pruned under the old attributes, before the new ones count: a message that was past a shorter window must not
        # come back with a longer one.
        self._prune_by(record)
        self.attributes = record.attributes
        # Without a window no rewind can name these messages, and their bodies would keep segments alive for nothing.
        if not record.attributes.rewind_ms:
            self._rewindable = None

    def _prune_by(self, record: QueueRewound | QueueAttributesSet) -> BitMap64:
        """Remove the positions below the rewind floor of a record; return the remaining rewindable positions."""
        rewindable = self.rewindable
        if rewindable:
            rewindable.remove_range(0, rewind_floor_of(record, self.attributes, self.steps, self.next_position))
        return rewindable

    def apply_returned(self, record: LeasesEnded | MessagesReleased) -> None:
        """Return messages to the active set; an uncounted release takes the receive back."""
        is_release = isinstance(record, MessagesReleased)
        counted = not is_release or record.counted
        count = 0
        for lease in unpack_runs(record.leases):
            entry = self.leases.by_number.pop(lease, None)
            # None: the message was cleared or has expired, and the checkpoint left its lease out.
            if entry is None or entry.position < self.floor:
                # Cleared or expired while in flight: the lease outlived the message, and must not bring it back.
                continue
            if counted:
                self.history.set(entry.position, entry.receive_count, entry.first_receive_ms)
            # Back at its old position and so in front of younger messages, as if it had never been received.
            self.activate_range(entry.position, entry.position + 1)
            count += 1
            if self._damaged_in_flight is not None and entry.position in self._damaged_in_flight:
                self._damaged_in_flight.remove(entry.position)
                self.set_damaged([entry.position, 1])
        if is_release:
            self.totals.released += count
        else:
            self.totals.timed_out += count

    def apply_activated(self, record: MessagesActivated) -> None:
        """End delays; the entries of these positions in buckets turn stale."""
        for start, stop in ranges(record.positions):
            self.delays.end(start, stop)
            self.activate_range(start, stop)
        # Dead letters by age count from here and not from the send: a delay of an hour is no hour without a consumer.
        if self.attributes.dead_letter_after_ms:
            self.activations.note(BitMap64(unpack_runs(record.positions)), record.activated_ms)

    def apply_step(self, now_ms: int, longest_lease_ms: int) -> None:
        """Lower the times that lie too far in the future, after broker time stepped back to ``now_ms``."""
        self.last_enqueue_ms = min(self.last_enqueue_ms, now_ms)
        # With later times left in place, messages of before the step would outlive their retention by the whole step.
        if self.is_made("steps"):
            self.steps.no_later_than(now_ms)
        if self.is_made("leases"):
            self.leases.no_later_than(now_ms + longest_lease_ms)
        if self.is_made("settled") and self.settled is not None:
            self.settled.no_later_than(now_ms)

    def apply_cut(self, record: QueueCleared | MessagesExpired) -> None:
        """Drop all messages below the floor of a record, and count them."""
        before = self.live_count
        self.apply_floor(record.floor)
        if isinstance(record, QueueCleared):
            self.totals.cleared += before - self.live_count
        else:
            self.totals.expired += before - self.live_count

    def apply_floor(self, floor: int) -> None:
        """Drop all messages below ``floor``, in any state (cleared or expired)."""
        # An expiry may be recorded after a clear with a higher floor. The floor must not sink, or leases of cleared
        # messages would count as live again.
        floor = max(floor, self.floor)
        if self.live_count:
            self.live.remove_range(0, floor)
            self.active.remove_range(0, floor)
            # Sizes anew: the range may have held any mix of states, and a count of each is no cheaper than a size.
            self.live_count = len(self.live)
            self.active_count = len(self.active)
        for positions in (self._half, self._moving, self._rewindable, self._damaged, self._damaged_in_flight):
            if positions is not None:
                positions.remove_range(0, floor)
        # Entries in the buckets of delays and checks turn stale: they are found by time, and the time of each message
        # below the floor is not known here.
        self.delays.drop_below(floor)
        self.half_count = len(self._half) if self._half is not None else 0
        self.moving_count = len(self._moving) if self._moving is not None else 0
        # Leases stay until their deadline. They are found by number and not by position, and a search through all of
        # them would make a clear as slow as the queue is busy.
        if self.is_made("history"):
            self.history.drop_below(floor)
        self.forget_below(floor)
        if self.is_made("steps"):
            self.steps.drop_below(floor)
            # After the sets are cut, because the question is whether anything is left.
            if not self.remembers_times:
                # An empty queue starts with the finest grain again; merged steps would make its next expiry coarse.
                self.steps.clear()
        self.floor = floor
        self.head = max(self.head, floor)

    def forget_below(self, floor: int) -> None:
        """Forget decisions, rewindable positions and activations below ``floor``: their retention has passed."""
        if self._halves is not None:
            self._halves.drop_below(floor)
        if self._rewindable is not None:
            self._rewindable.remove_range(0, floor)
        if self._activations is not None:
            self._activations.drop_below(floor)

    # ------------------------------------------------------------------ salvage, see cmqd.core.recovery.salvage

    def leave_set(self, position: int) -> bool:
        """Take a live message out of its set, before it enters another state; return False for a message in flight."""
        if position in self.active:
            self.active.remove(position)
            self.active_count -= 1
        elif position in self.half:
            self.half.remove(position)
            self.half_count -= 1
        else:
            # No damaged and no moving messages: recovery, the only caller, does not know them.
            return self.delays.leave(position)
        return True

    # ------------------------------------------------------------------ intentions

    def start_moving(self, positions: BitMap64) -> None:
        """Begin to move active messages to another queue; consumers do not receive them meanwhile."""
        # A set operation and two sizes: a mass of dead letters is reserved in a step, whatever its number.
        self.active -= positions
        # Still live: until the record of the move, the queue holds the message, and a crash leaves it there.
        self.moving |= positions
        self.active_count = len(self.active)
        self.moving_count = len(self.moving)

    def stop_moving(self, positions: BitMap64) -> None:
        """Cancel a move: the messages are active again."""
        # Only what is still reserved: a clear or an expiry may have removed messages since, and must not be undone.
        back = self.moving & positions
        if not back:
            return
        self.moving -= back
        self.moving_count = len(self.moving)
        self.active |= back
        first = next(iter(back))
        if not self.active_count or first < self.head:
            self.head = first
        self.active_count += len(back)

    # ------------------------------------------------------------------ observations

    def set_damaged(self, positions: Runs, *, in_flight: bool = False) -> int:
        """Set messages with unreadable bodies or due times aside; return how many are newly set aside.

        The messages are not receivable until the log is repaired and the broker restarted. Half messages stay half, and
        no check is sent for them. Messages in flight are counted as damaged with ``in_flight``, else left alone as
        scheduled delays are; both are set aside when their turn comes.
        """
        # Message by message: damage is rare, and each message may be in another set by now than when it was read.
        before = len(self.damaged)
        held = 0
        for start, stop in ranges(positions):
            for position in range(start, stop):
                if position in self.active:
                    self.active.remove(position)
                    self.active_count -= 1
                    self.damaged.add(position)
                elif position in self.moving:
                    self.moving.remove(position)
                    self.moving_count -= 1
                    self.damaged.add(position)
                elif position in self.delays.overflow:
                    self.delays.leave(position)
                    self.damaged.add(position)
                    # After a restart the message must be in overflow again and not active: its delay may not have
                    # ended.
                    self.delays.damaged.add(position)
                elif self._half is not None and position in self._half and position not in self.halves.unreadable:
                    self.halves.unreadable.add(position)
                    held += 1
                elif in_flight and self._is_in_flight(position) and position not in self.damaged_in_flight:
                    self.damaged_in_flight.add(position)
                    held += 1
        return len(self.damaged) - before + held

    def _is_in_flight(self, position: int) -> bool:
        others = (self.active, self.moving, self.half, self.damaged, self.delays.scheduled, self.delays.overflow)
        return position in self.live and not any(position in positions for positions in others)

    def active_from(self, start: int, max_count: int) -> list[int]:
        """Return up to ``max_count`` active positions from ``start`` on, ascending."""
        return positions_from(self.active, start, max_count)

    def moving_from(self, max_count: int) -> list[int]:
        """Return up to ``max_count`` of the lowest moving positions, ascending."""
        return positions_from(self.moving, next(iter(self.moving)), max_count) if self.moving_count else []

    def live_from(self, start: int, max_count: int) -> list[int]:
        """Return up to ``max_count`` live positions from ``start`` on, ascending."""
        return positions_from(self.live, start, max_count)

    def active_anew(self) -> bytes:
        """Return the active positions after a restart for a checkpoint: damage may have been repaired, and moves were
        not made.
        """
        # A checkpoint must not keep what a restart forgets, or a repaired log would leave its messages out of reach.
        if not self._damaged and not self.moving_count:
            return self.active.serialize() if self.is_made("active") else self._packed_active
        active = self.active
        if self._damaged:
            active = active | (self._damaged - self.delays.damaged)
        return (active | self.moving).serialize()

    def packed_live(self) -> bytes:
        """Return the live positions for a checkpoint."""
        return self.live.serialize() if self.is_made("live") else self._packed_live


class _QuietIndex(QueueIndex):
    """An index that lacks a part, until the first use of the part makes all of them.

    A broker may have 100,000 queues, most of them quiet. The class of an index changes, because Python reads attributes
    several times slower where a class has ``__getattr__``: a busy index is a plain ``QueueIndex``. A slot without a
    value takes eight bytes.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # else every name would pass for an attribute

        def __getattr__(self, name):
            if name not in PARTS:
                raise AttributeError(f"QueueIndex has no attribute {name}")
            self.make_parts()
            return getattr(self, name)


def _become(index: QueueIndex, kind: type[QueueIndex]) -> None:
    index.__class__ = kind  # pyright: ignore[reportAttributeAccessIssue] - both classes have the same slots


def _unpacked(packed: bytes) -> BitMap64:
    return BitMap64() if packed == EMPTY else BitMap64.deserialize(packed)


def positions_from(positions: BitMap64, start: int, max_count: int) -> list[int]:
    """Return up to ``max_count`` positions of a set from ``start`` on, ascending."""
    # The usual queue is consumed in order, and has a single run of positions here: one test in place of a walk.
    if positions.contains_range(start, start + max_count):
        return list(range(start, start + max_count))
    selected: list[int] = []
    for position in positions.iter_equal_or_larger(start):
        selected.append(position)
        if len(selected) == max_count:
            break
    return selected
