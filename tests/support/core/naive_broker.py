"""The duties of a broker, done the naive way: an object per message, lists to search, and no index.

The model follows the replies of the real broker and judges them. Where the rules leave room (the number of messages in
a reply, the tick within a bucket at which a lease ends), the model checks that the choice is legal, and takes the
choice over.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cmqd.core.facts.queues import DELAY_BUCKET_MS, LEASE_BUCKET_MS
from cmqd.core.limits import Limits
from cmqd.core.operations.receiving.wait_ends import HELD_MS
from cmqd.core.outcome import Outcome
from cmqd.core.runtime.agenda import WAIT_BUCKET_MS
from cmqd_fold.settled_leases import LIFE_MS
from cmqd_types.messages import (
    GONE_DELETED,
    CopyOf,
    Headers,
    Labels,
    MessagesPeeked,
    Origin,
    PeekedMessage,
    ReceivedMessage,
)

STEP_GRAIN_MS = 100
"""Greatest delay with which the floor of retention passes a message."""
REWIND_GRAIN_MS = 2000
"""Greatest delay with which a message is forgotten that can no longer be rewound: visible in the count alone."""


class State(Enum):
    ACTIVE = "active"
    DELAYED = "delayed"
    OVERFLOW = "overflow"
    IN_FLIGHT = "in_flight"
    HALF = "half"
    DAMAGED = "damaged"


def ends_ms(due_ms: int, width_ms: int) -> int:
    """Time of the tick that handles work due at ``due_ms``."""
    return -(-due_ms // width_ms) * width_ms


@dataclass
class NaiveMessage:
    position: int
    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    visible_ms: int
    """0 = without delay."""
    state: State
    receive_count: int = 0
    first_receive_ms: int = 0
    before: tuple[int, int] = (0, 0)
    """Receive count and first time before the receive with the lease."""
    handle: int = 0
    deadline_ms: int = 0
    repaired_state: State = State.ACTIVE
    """For a damaged message: its state after a restart."""
    origin: Origin | None = None
    copy_of: CopyOf | None = None
    activated_ms: int = 0
    """Time at which the message first became active, or was rewound; 0 = not yet."""
    is_seen_damaged: bool = False
    """In flight, and a peek could not read it: counted as damaged, and set aside when its lease ends."""
    is_overdue: bool = False
    """True if the last allowed lease ended while the dead-letter queue took messages: no receive may follow."""
    rejected_by: int = 0
    """The waiter of the request that moves the message to the dead-letter queue; its handle is invalid, its lease does
    not end, and the message does not expire. 0 = none."""
    rejection: str = ""
    """The reason of the rejection."""
    was_rejected: bool = False
    """True if the message was moved by a rejection."""
    is_forgotten: bool = False
    """True for a deleted message that was before the rewind window when the window was lengthened: it may be gone."""
    first_check_ms: int = 0
    """Of a half message, as all below: from its sending to its first check."""
    checks: int = 0
    last_check_ms: int = 0
    unknown_ms: int = 0
    next_check_ms: int = 0
    """0 = no more."""
    ask_again: bool = False
    """The asked producer went away."""
    calls: list[str] = field(default_factory=list[str])
    """What happened to the message at this position, by the kinds of its history."""

    def is_due(self, now_ms: int) -> bool:
        """True if the next tick makes the message active."""
        if self.state is State.DELAYED:
            return ends_ms(self.visible_ms, DELAY_BUCKET_MS) <= now_ms
        return (
            self.state is State.IN_FLIGHT
            and not self.rejected_by
            and ends_ms(self.deadline_ms, LEASE_BUCKET_MS) <= now_ms
        )

    def come_back(self, now_ms: int | None = None) -> None:
        """Its delay or its lease is over."""
        if self.state is State.DELAYED:
            self.activated_ms = now_ms or self.activated_ms
        self.state = State.DAMAGED if self.is_seen_damaged else State.ACTIVE
        if self.is_seen_damaged:
            self.repaired_state = State.ACTIVE
            self.is_seen_damaged = False
        self.handle = 0


def check_content(one: ReceivedMessage | PeekedMessage, message: NaiveMessage) -> None:
    """The shown message equals the sent message."""
    sent = message.body, message.headers, message.enqueue_ms, message.origin, fields_of(message.copy_of)
    assert (one.body, one.headers or None, one.enqueue_ms, one.origin, fields_of(one.copy_of)) == sent


def fields_of(copy_of: CopyOf | None) -> tuple[str, str, int, int, Labels | None] | None:
    """Missing tags are the same as an empty list of tags."""
    if copy_of is None:
        return None
    return copy_of.topic, copy_of.subscription, copy_of.message_id, copy_of.publish_ms, copy_of.labels or None


@dataclass
class NaiveReceive:
    """A waiting request."""

    waiter_id: int
    most: int
    visibility_timeout_ms: int
    deadline_ms: int
    waits: bool
    """False: without a wait, but its page must be read first."""
    may_be_held: bool = False
    """Its bucket had something alive in a tick behind its deadline."""
    held_for: set[int] = field(default_factory=set[int])
    """The positions that were alive in its bucket before this tick."""

    def is_over(self, now_ms: int) -> bool:
        return not self.waits or ends_ms(self.deadline_ms, WAIT_BUCKET_MS) <= now_ms


@dataclass
class NaivePeek:
    queue: "NaiveQueue"
    start: int
    most: int
    next_position: int
    """Next position of the queue at the request: later messages need not be shown."""
    states: list[str] | None = None
    """Requested states; None = all states but rewindable."""
    then: set[int] = field(default_factory=set[int])
    """Positions to be shown at the time of the request: messages in a different state need not be shown."""

    def wants(self, state: str) -> bool:
        return state != "rewindable" if self.states is None else state in self.states


@dataclass
class NaiveQueue:
    queue_id: int
    account: str
    name: str
    attributes: dict[str, Any]
    limits: Limits
    messages: dict[int, NaiveMessage] = field(default_factory=dict[int, NaiveMessage])
    """Messages that are not gone, by position, ascending."""
    next_position: int = 0
    last_enqueue_ms: int = 0
    line: list[NaiveReceive] = field(default_factory=list[NaiveReceive])
    handles: set[int] = field(default_factory=set[int])
    """Every handle ever given out."""
    ended: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """(``gone``, time) of the handles under which messages were deleted or moved to the dead-letter queue."""
    by_id: dict[int, NaiveMessage] = field(default_factory=dict[int, NaiveMessage])
    """The newest message of every id: after a commit the committed message, not the half message."""
    deleted: dict[int, NaiveMessage] = field(default_factory=dict[int, NaiveMessage])
    """Deleted by consumers while the queue had a rewind window, by position."""
    halves: dict[int, NaiveMessage] = field(default_factory=dict[int, NaiveMessage])
    """Every half message sent and not cleared or expired, by id."""
    decided: dict[int, bool] = field(default_factory=dict[int, bool])
    """Half messages decided, by id; True = committed."""
    has_checkers: bool = False
    least_max_checks: int = 100
    """The smallest number of checks that was ever allowed: half messages with as many checks may have been given up."""
    dedup_ids: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict[str, tuple[int, int]])
    """(message id, time of sending), oldest first."""
    by_age_since_ms: int = 0
    """Time at which dead letters by age were switched on."""
    dead_letter_floor: int = -1
    """Messages from before the queue became a dead-letter queue are below; -1 = not a dead-letter queue."""
    used_ms: int = 0
    """Latest time of a sure use; later uses are possible."""
    used_until_ms: int = 0
    """Time after which the queue was surely not used."""
    everything: list[NaiveMessage] = field(default_factory=list["NaiveMessage"])
    """All messages that were ever stored, oldest first."""
    totals: Counter[str] = field(default_factory=Counter[str])
    """What happened to messages since the queue was made, by the names of ``QueueTotals``."""

    # ------------------------------------------------------------------ looking

    def of(self, *states: State) -> list[NaiveMessage]:
        return [message for message in self.messages.values() if message.state in states]

    def active(self) -> list[NaiveMessage]:
        return self.of(State.ACTIVE)

    def due(self, now_ms: int) -> list[NaiveMessage]:
        return [message for message in self.messages.values() if message.is_due(now_ms)]

    def receivable(self) -> set[int]:
        """Positions that receives should get."""
        return set() if self.in_flight() >= self.limits.max_in_flight else {one.position for one in self.active()}

    def use(self, now_ms: int, until_ms: int = 0) -> None:
        """Note a use that may last until the given time."""
        self.used_ms = max(self.used_ms, now_ms)
        self.used_until_ms = max(self.used_until_ms, now_ms, until_ms)

    def go_on_using(self, now_ms: int) -> None:
        """Waiting receives, and messages that are neither active nor damaged, use the queue while they exist."""
        if self.of(State.DELAYED, State.OVERFLOW, State.IN_FLIGHT, State.HALF):
            self.use(now_ms)
        for receive in self.line:
            self.use(min(now_ms, receive.deadline_ms), now_ms)

    def held_for(self, receive: NaiveReceive, now_ms: int) -> set[int]:
        """The positions with a lease or delay that ends in the bucket of the receive's deadline."""
        if not receive.waits or not receive.is_over(now_ms) or now_ms >= receive.deadline_ms + HELD_MS:
            return set()
        leases = [(one, one.deadline_ms, LEASE_BUCKET_MS) for one in self.of(State.IN_FLIGHT)]
        delays = [(one, one.visible_ms, DELAY_BUCKET_MS) for one in self.of(State.DELAYED)]
        return {
            one.position
            for one, due_ms, width_ms in leases + delays
            if 0 <= ends_ms(receive.deadline_ms, width_ms) - ends_ms(due_ms, width_ms) <= HELD_MS
        }

    def note_held(self, now_ms: int) -> None:
        """A tick is about to be made, which may hold waits."""
        for receive in self.line:
            receive.held_for = self.held_for(receive, now_ms)
            receive.may_be_held |= bool(receive.held_for)

    def in_flight(self) -> int:
        return len(self.of(State.IN_FLIGHT))

    def seen_damaged(self) -> int:
        return sum(message.is_seen_damaged for message in self.of(State.IN_FLIGHT))

    def counts(self) -> dict[str, int]:
        return {
            "active": len(self.active()),
            "in_flight": self.in_flight() - self.seen_damaged(),
            "delayed": len(self.of(State.DELAYED, State.OVERFLOW)),
            "half": len(self.of(State.HALF)),
            "damaged": len(self.of(State.DAMAGED)) + self.seen_damaged(),
            "waiting_receives": len(self.line),
        }

    def is_expired(self, message: NaiveMessage, now_ms: int) -> bool:
        return message.enqueue_ms + self.attributes["retention_ms"] <= now_ms

    def rewindable(self, now_ms: int, *, or_forgotten: bool = False) -> dict[int, NaiveMessage]:
        """Deleted messages in the window of rewinding, by position; ``or_forgotten``: also those that may be gone."""
        first_ms = now_ms - self.attributes["rewind_ms"]
        return {
            position: message
            for position, message in self.deleted.items()
            if message.enqueue_ms >= first_ms
            and (or_forgotten or not message.is_forgotten)
            and not self.is_expired(message, now_ms)
        }

    # ------------------------------------------------------------------ changing

    def send(
        self,
        ids: Iterable[int],
        bodies: list[bytes],
        headers: list[Headers | None],
        delays: list[int],
        now_ms: int,
        *,
        are_copies: bool = False,
    ) -> None:
        if are_copies:
            self.totals["copied"] += len(bodies)
        else:
            self._count_sent(bodies)
        enqueue_ms = self.last_enqueue_ms = max(now_ms, self.last_enqueue_ms)
        for message_id, body, its_headers, delay_ms in zip(ids, bodies, headers, delays, strict=True):
            state = State.ACTIVE
            if delay_ms:
                full = len(self.of(State.DELAYED)) >= self.attributes["max_delayed"] or self.waiting_delays()
                state = State.OVERFLOW if full else State.DELAYED
            message = NaiveMessage(
                self.next_position,
                message_id,
                body,
                its_headers or None,
                enqueue_ms,
                enqueue_ms + delay_ms if delay_ms else 0,
                state,
                activated_ms=enqueue_ms if state is State.ACTIVE else 0,
                calls=["copied" if are_copies else "sent"],
            )
            self._add(message)

    def _count_sent(self, bodies: list[bytes]) -> None:
        self.totals["sent"] += len(bodies)
        self.totals["sent_bytes"] += sum(len(body) for body in bodies)

    def _add(self, message: NaiveMessage) -> None:
        assert message.position == self.next_position
        self.messages[message.position] = self.by_id[message.message_id] = message
        self.everything.append(message)
        self.next_position += 1

    def send_half(
        self, ids: Iterable[int], bodies: list[bytes], headers: list[Headers | None], first_check_ms: int, now_ms: int
    ) -> None:
        self._count_sent(bodies)
        self.totals["half_sent"] += len(bodies)
        enqueue_ms = self.last_enqueue_ms = max(now_ms, self.last_enqueue_ms)
        for message_id, body, its_headers in zip(ids, bodies, headers, strict=True):
            message = NaiveMessage(self.next_position, message_id, body, its_headers or None, enqueue_ms, 0, State.HALF)
            message.calls.append("half")
            message.first_check_ms = first_check_ms
            message.next_check_ms = enqueue_ms + first_check_ms
            self._add(message)
            self.halves[message_id] = message

    def take_copy(self, message_id: int, of: NaiveMessage, origin: Origin | None, now_ms: int) -> NaiveMessage:
        """Messages were committed, dead-lettered or redriven into this queue."""
        if origin is not None:
            self.totals["redriven_here" if origin.reason == "redrive" else "dead_letters"] += 1
        enqueue_ms = self.last_enqueue_ms = max(now_ms, self.last_enqueue_ms)
        message = NaiveMessage(
            *(self.next_position, message_id, of.body, of.headers, enqueue_ms, 0, State.ACTIVE),
            origin=origin,
            copy_of=of.copy_of,
        )
        message.activated_ms = enqueue_ms
        moved = "redriven" if origin is not None and origin.reason == "redrive" else "dead_lettered"
        message.calls.append("committed" if origin is None else moved)
        self._add(message)
        return message

    def end_half(self, position: int, committed: bool) -> NaiveMessage:
        """The transaction of a half message was decided."""
        message = self.messages.pop(position)
        assert message.state is State.HALF
        assert message.message_id not in self.decided, "decided twice"
        self.decided[message.message_id] = committed
        self.totals["committed" if committed else "rolled_back"] += 1
        if not committed:
            message.calls.append("rolled_back")
        return message

    def rewind(self, positions: Collection[int], now_ms: int) -> None:
        """Deleted messages are back."""
        self.totals["rewound"] += len(positions)
        for message in [self.deleted[position] for position in positions]:
            del self.deleted[message.position]
            message.come_back()
            message.calls.append("rewound")
            message.receive_count = message.first_receive_ms = 0
            message.is_overdue = message.is_forgotten = False
            message.activated_ms = now_ms
            self.messages[message.position] = message
        self.messages = dict(sorted(self.messages.items()))

    def find_dedup_id(self, dedup_id: str, now_ms: int) -> int | None:
        """The message that was sent under this id and is remembered."""
        message_id, sent_ms = self.dedup_ids.get(dedup_id, (0, 0))
        return message_id if message_id and sent_ms + self.limits.dedup_life_ms > now_ms else None

    def note_dedup_id(self, dedup_id: str, message_id: int) -> None:
        self.dedup_ids.pop(dedup_id, None)
        self.dedup_ids[dedup_id] = message_id, self.last_enqueue_ms
        if len(self.dedup_ids) > self.limits.max_dedup_ids:
            self.dedup_ids.popitem(last=False)

    def waiting_delays(self) -> list[NaiveMessage]:
        """Delayed messages that wait for a place, unreadable messages included."""
        return [
            message
            for message in self.messages.values()
            if message.state is State.OVERFLOW
            or (message.state is State.DAMAGED and message.repaired_state is State.OVERFLOW)
        ]

    def deliver(
        self, receive: NaiveReceive, got: list[ReceivedMessage], now_ms: int, moving: Collection[int] = ()
    ) -> list[int]:
        """A receive was answered with these messages; return their positions. Positions in ``moving`` are left out."""
        assert 1 <= len(got) <= receive.most
        positions: list[int] = []
        for one in got:
            message = self.by_id[one.message_id]
            assert self.messages.get(message.position) is message, "a message that is gone was delivered"
            assert message.state is State.ACTIVE or message.is_due(now_ms), f"delivered while {message.state}"
            assert not self.is_expired(message, now_ms), "an expired message was delivered"
            assert not message.is_overdue, "a message was delivered that is to be dead-lettered"
            positions.append(message.position)
        assert positions == sorted(set(positions)), "out of order, or twice in one reply"
        skipped = [
            message.position
            for message in self.active()
            if message.position < positions[-1] and message.position not in positions and message.position not in moving
        ]
        assert not skipped, f"active messages {skipped} were passed over"
        sizes = [self._bytes(self.messages[position]) for position in positions]
        assert len(sizes) == 1 or sum(sizes) <= self.limits.max_batch_bytes
        for one in got:
            message = self.by_id[one.message_id]
            if message.state is not State.ACTIVE:
                message.come_back(now_ms)
            check_content(one, message)
            assert one.receipt_handle not in self.handles, "a handle was used twice"
            message.state = State.IN_FLIGHT
            message.before = message.receive_count, message.first_receive_ms
            self.totals["received"] += 1
            self.totals["redelivered"] += message.receive_count > 0
            message.receive_count += 1
            message.first_receive_ms = message.first_receive_ms or now_ms
            message.handle = one.receipt_handle
            message.calls.append(f"received {message.receive_count}")
            message.deadline_ms = now_ms + receive.visibility_timeout_ms
            self.handles.add(one.receipt_handle)
            assert one.receive_count == message.receive_count
            assert one.first_receive_ms == message.first_receive_ms
            expiry_ms = message.enqueue_ms + self.attributes["retention_ms"]
            assert one.next_visible_ms == min(message.deadline_ms, expiry_ms)
        assert self.in_flight() - len(self.due(now_ms)) <= self.limits.max_in_flight
        return positions

    @staticmethod
    def _bytes(message: NaiveMessage) -> int:
        headers = message.headers or {}
        return len(message.body) + sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())

    def answer_waiter(
        self, waiter_id: int, got: list[ReceivedMessage], there: set[int], now_ms: int, moving: Collection[int] = ()
    ) -> list[int]:
        """A receive in the line was answered; return its positions. ``there``: positions active for long enough to be
        due for the receive; positions in ``moving`` are not received.
        """
        place = next(place for place, receive in enumerate(self.line) if receive.waiter_id == waiter_id)
        receive = self.line.pop(place)
        if got:
            assert place == 0, "somebody was overtaken"
            return self.deliver(receive, got, now_ms, moving)
        assert receive.is_over(now_ms), "answered empty before its wait was over"
        # The lease of a rejected message is passed over: it may hold a wait, and need not.
        held = [one for one in self.held_for(receive, now_ms) if not self.messages[one].rejected_by]
        assert not held, "answered in front of its bucket"
        full = self.in_flight() >= self.limits.max_in_flight
        due = (there | receive.held_for) - set(moving)
        left = [message.position for message in self.active() if message.position in due]
        assert full or not left, "answered empty while there was something for it"
        return []

    def held(self, handle: int, now_ms: int) -> NaiveMessage | None:
        """The message with this valid handle."""
        for message in self.messages.values():
            is_held = message.state is State.IN_FLIGHT and not message.rejected_by
            if is_held and message.handle == handle and message.deadline_ms > now_ms:
                return message
        return None

    def settle(self, handles: list[int], refused: list[int], now_ms: int) -> tuple[list[NaiveMessage], list[int]]:
        """(messages with valid handles, invalid handles); a repeated handle counts once. Handles of
        expired messages may be ``refused``, and must be refused after a step of time.
        """
        done: list[NaiveMessage] = []
        failed: list[int] = []
        for handle in dict.fromkeys(handles):
            message = self.held(handle, now_ms)
            if message is not None and self.is_expired(message, now_ms):
                if handle in refused:
                    message = None
                else:
                    assert not self.is_expired(message, now_ms - STEP_GRAIN_MS), "valid long after the retention"
            if message is None:
                failed.append(handle)
            else:
                done.append(message)
        return done, failed

    def end_lease(self, handle: int, now_ms: int) -> NaiveMessage:
        """A tick ended the lease; possible before its bucket is due, if the lease was in an earlier bucket once."""
        (message,) = (one for one in self.of(State.IN_FLIGHT) if one.handle == handle)
        assert message.deadline_ms <= now_ms, "a lease ended too early"
        assert not message.rejected_by, "a lease ended while its message was moving"
        message.come_back()
        message.calls.append("lease_ended")
        self.totals["timed_out"] += 1
        return message

    def check_gone(self, handle: int, gone: int, now_ms: int, *, is_far_behind: bool) -> None:
        """The reason of a refused handle: remembered for a life at least, and for two lives at most.

        A lease that is far behind the newest lease may be forgotten: the numbers of leases jump after a loss.
        """
        how, ended_ms = self.ended.get(handle, (0, 0))
        assert gone in (0, how)
        assert gone == how or is_far_behind or now_ms >= ended_ms + LIFE_MS, "the end of a lease is forgotten"
        assert gone == 0 or now_ms < ended_ms + 2 * LIFE_MS

    def delete(self, messages: list[NaiveMessage], now_ms: int) -> None:
        """Messages were deleted by their consumer."""
        self.totals["deleted"] += len(messages)
        for message in messages:
            self.ended[message.handle] = GONE_DELETED, now_ms
            message.calls.append("deleted")
            message.is_seen_damaged = False
            del self.messages[message.position]
            if self.attributes["rewind_ms"]:
                self.deleted[message.position] = message
        self.deleted = dict(sorted(self.deleted.items()))

    def release(self, messages: list[NaiveMessage], counted: bool) -> None:
        self.totals["released"] += len(messages)
        for message in messages:
            message.come_back()
            message.calls.append("released")
            if not counted:
                message.receive_count, message.first_receive_ms = message.before

    def hide(self, messages: list[NaiveMessage], timeout_ms: int, now_ms: int) -> int:
        """Return the earliest allowed new deadline; :meth:`check_hidden` judges the result."""
        latest: list[int] = []
        for message in messages:
            cut_ms = message.enqueue_ms + self.attributes["retention_ms"]
            message.deadline_ms = max(now_ms, min(now_ms + timeout_ms, cut_ms))
            message.calls.append("lease_changed")
            latest.append(message.deadline_ms)
        return min(latest, default=0)

    def pass_floor(self, floor: int, now_ms: int | None) -> None:
        """Messages below are gone: expired by ``now_ms``, or cleared (None)."""
        gone = [message for message in self.messages.values() if message.position < floor]
        self.totals["cleared" if now_ms is None else "expired"] += len(gone)
        if now_ms is not None:
            assert all(self.is_expired(message, now_ms) for message in gone), "expired too early"
            assert not any(message.rejected_by for message in gone), "expired while it was moving"
            for message in self.rewindable(now_ms).values():
                assert message.position >= floor, "expired too early, though deleted"
        for message in gone:
            message.calls.append("cleared" if now_ms is None else "expired")
        self.messages = {position: one for position, one in self.messages.items() if position >= floor}
        self.deleted = {position: one for position, one in self.deleted.items() if position >= floor}
        for message_id, half in list(self.halves.items()):
            if half.position < floor:
                del self.halves[message_id]
                self.decided.pop(message_id, None)

    def set_attributes(self, changes: dict[str, Any], now_ms: int) -> None:
        """The owner changed attributes."""
        known = self.rewindable(now_ms)
        for position, message in self.deleted.items():
            message.is_forgotten = position not in known
        if changes["dead_letter_after_ms"] and not self.attributes["dead_letter_after_ms"]:
            self.by_age_since_ms = now_ms
        self.attributes = {**self.attributes, **changes}
        if not self.attributes["rewind_ms"]:
            self.deleted.clear()
        for message in self.messages.values():
            # A message with too many receives by a new rule may be received once more before the review.
            message.is_overdue = False

    def takes_dead_letters(self, count: int = 1) -> bool:
        """True if the earlier messages are consumed, and there is room."""
        assert self.dead_letter_floor >= 0
        drained = all(position >= self.dead_letter_floor for position in self.messages)
        return drained and len(self.messages) + count <= self.attributes["max_backlog"]

    def is_dead(self, message: NaiveMessage, now_ms: int, *, surely: bool = False) -> str:
        """Reason why an active message may (or ``surely`` must) become a dead letter; empty = none."""
        most, after_ms = self.attributes["dead_letter_max_receives"], self.attributes["dead_letter_after_ms"]
        if most and message.receive_count >= most:
            return "receives"
        # For messages with a delay that ended before the rule existed, the planned end of the delay may count.
        is_known = surely or not message.visible_ms or message.activated_ms > self.by_age_since_ms
        if after_ms and (message.activated_ms if is_known else message.visible_ms) + after_ms <= now_ms:
            return "age"
        return ""

    def schedule(self, positions: list[int], visible_ms: list[int], now_ms: int) -> None:
        """Messages got a place among the delayed messages."""
        waiting = self.of(State.OVERFLOW)
        assert positions == [message.position for message in waiting[: len(positions)]], "places are given in order"
        held = [message for message in self.of(State.DELAYED) if not message.is_due(now_ms)]
        assert len(held) + len(positions) <= self.attributes["max_delayed"]
        for position, due_ms in zip(positions, visible_ms, strict=True):
            message = self.messages[position]
            assert message.visible_ms == due_ms
            message.state = State.DELAYED

    def damage(self, positions: Iterable[int], active: set[int], now_ms: int, *, in_flight: bool = False) -> int:
        """Messages cannot be read; return the number of newly damaged messages."""
        found = 0
        for position in positions:
            message = self.messages.get(position)
            if message is not None and message.is_due(now_ms) and position in active:
                # A tick has made the message active.
                message.come_back(now_ms)
            if message is not None and message.state in (State.ACTIVE, State.OVERFLOW):
                message.repaired_state = message.state
                message.state = State.DAMAGED
                found += 1
            elif message is not None and message.state is State.IN_FLIGHT and in_flight:
                message.is_seen_damaged = True
                found += 1
        return found

    def settle_time(self, now_ms: int, *, is_read: bool) -> None:
        """Every tick that was due has been made.

        Args:
            now_ms: the time.
            is_read: bodies of the queue are being read: a receive whose wait is over stays until its read returns.
        """
        for message in self.due(now_ms):
            message.come_back(now_ms)
        late = [message for message in self.messages.values() if self.is_expired(message, now_ms - STEP_GRAIN_MS)]
        held = min((message.position for message in self.messages.values() if message.rejected_by), default=None)
        late = [message for message in late if held is None or message.position < held]
        assert not late, "not gone long after their retention"
        assert is_read or not any(
            receive.waits and receive.is_over(now_ms)
            for receive in self.line
            if not self.active()
            and not (receive.may_be_held and now_ms < ends_ms(receive.deadline_ms, LEASE_BUCKET_MS))
        )

    def check_peek(self, peek: NaivePeek, got: MessagesPeeked, unreadable: set[int], now_ms: int) -> None:
        """The answer to a peek shows all messages, without holes."""
        assert len(got.messages) <= peek.most
        shown: list[int] = []
        for one in got.messages:
            message = self.by_id[one.message_id]
            there = self.deleted.get(message.position, self.messages.get(message.position))
            assert there is message, "a message that is gone was shown"
            assert not self.is_expired(message, now_ms), "an expired message was shown"
            assert peek.wants(one.state)
            check_content(one, message)
            shown.append(message.position)
            if message.is_due(now_ms) or message.state is State.DAMAGED:
                continue
            state = State.DELAYED if message.state is State.OVERFLOW else message.state
            if message.position in self.deleted:
                assert one.state == "rewindable"
                continue
            assert one.state == state.value
            assert one.receive_count == message.receive_count
            assert one.visible_ms == (message.visible_ms if state is State.DELAYED else 0)
        assert shown == sorted(set(shown))
        stop = peek.next_position if got.next_start is None else got.next_start
        assert got.next_start is None or got.next_start > peek.start, "a peek that does not get on"
        expected = [one for one in sorted(self.to_show(peek, now_ms) & peek.then) if peek.start <= one < stop]
        expired = {one for one in expected if one in self.messages and self.is_expired(self.messages[one], now_ms)}
        hidden = set(expected) - set(shown) - expired
        assert hidden <= unreadable, f"the peek passed over {hidden - unreadable}"
        known = self.messages.keys() | self.deleted.keys()
        assert all(peek.start <= position < stop and position in known for position in shown)

    def to_show(self, peek: NaivePeek, now_ms: int) -> set[int]:
        """The positions that a peek must show."""
        wanted = {position for position, one in self.messages.items() if self._is_wanted(peek, one, now_ms)}
        return wanted | self.rewindable(now_ms).keys() if peek.wants("rewindable") else wanted

    @staticmethod
    def _is_wanted(peek: NaivePeek, message: NaiveMessage, now_ms: int) -> bool:
        """True if a peek must show the message; a due message may be in either state."""
        if peek.states is None:
            return True
        state = State.DELAYED if message.state is State.OVERFLOW else message.state
        return peek.wants(state.value) and state is not State.DAMAGED and not message.is_due(now_ms)

    def restart(self) -> None:
        """The broker was restarted: no request waits, and damage is not known yet."""
        self.line.clear()
        self.has_checkers = False
        for message in self.halves.values():
            message.ask_again = False
        for message in self.of(State.DAMAGED):
            message.state = message.repaired_state
        for message in self.messages.values():
            message.rejected_by = 0
            message.is_seen_damaged = False


class NaiveRow:
    """A row of the log while judged: a message that left its queue must be in a further queue after the row."""

    def __init__(self, outcome: Outcome[Any]) -> None:
        self.bodies = list(outcome.bodies)
        self.next_body = 0
        self.moved: dict[tuple[str, int], tuple[NaiveMessage, str, NaiveQueue]] = {}
        """(message, reason, its queue) by name of the queue and message id."""
        self.committed: dict[int, NaiveMessage] = {}

    def check_complete(self) -> None:
        assert not self.moved, "a message left its queue and stands nowhere"
        assert not self.committed, "a message was committed and stands nowhere"


class NaiveSessions:
    """Numbered sends: the answers that must be remembered."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sessions: OrderedDict[tuple[str, int], dict[int, list[int]]] = OrderedDict()
        self.last_use_ms: dict[tuple[str, int], int] = {}

    def find(self, account: str, session: int, sequence: int) -> list[int] | str:
        """The ids of a send that was stored before, or "new", or "too old"."""
        answers = self.sessions.get((account, session), {})
        if sequence in answers:
            return answers[sequence]
        highest = max(answers, default=0)
        return "too old" if sequence + self.limits.session_answers <= highest else "new"

    def note(self, account: str, session: int, sequence: int, ids: list[int], now_ms: int) -> None:
        key = account, session
        if self.may_be_forgotten(account, session, now_ms):
            self.sessions.pop(key, None)
        answers = self.sessions.setdefault(key, {})
        # An answer is forgotten when its place in the ring is taken.
        size = self.limits.session_answers
        for old in [old for old in answers if old % size == sequence % size]:
            del answers[old]
        answers[sequence] = ids
        self.sessions.move_to_end(key)
        self.last_use_ms[key] = now_ms

    def is_full_for(self, account: str, session: int, now_ms: int) -> bool:
        """True if this session is new to an account that holds its share."""
        held = {key for key in self.sessions if key[0] == account and not self.may_be_forgotten(*key, now_ms)}
        return (account, session) not in held and len(held) >= self.limits.max_sessions

    def may_be_forgotten(self, account: str, session: int, now_ms: int) -> bool:
        key = account, session
        return self.last_use_ms.get(key, 0) + self.limits.session_life_ms <= now_ms

    def forget(self, keep: set[tuple[str, int]], now_ms: int) -> None:
        """Take over the remaining sessions; no session may end before its time."""
        for key in [key for key in self.sessions if key not in keep]:
            assert self.may_be_forgotten(*key, now_ms), "a session was forgotten too early"
            del self.sessions[key]
        assert set(self.sessions) == keep
