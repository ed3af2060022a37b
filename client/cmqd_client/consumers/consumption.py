"""Decisions of a consumer: which messages to receive, extend and settle, and when.

Pure: time is an argument, there is no I/O.

    WAITING ──begin──► BEGUN ──settle──► ENDING ──next_batch──► SENDING ──answered──► OVER
       │                 │                 ▲ ▲                     │
       │                 │                 │ └────not_answered─────┘
       ├──stop, stale────┼─────────────────┘
       └──lease ended────┴──► OVER, with ``lost``

Three rules decide which messages this consumer holds:

*Leases.* Every held message is extended when a third of its lease has passed, together with all others that are due
soon. A lease counts from the moment before its request (of an extension) or from the arrival of its message, so it ends
here no later than at the server, unless the message waited unread in the socket; then the server's refusal of the
extension tells. A retry is never sent while an extension of the same message is unanswered, and the reverse: executed
in the other order, they would undo each other.

*Prefetch.* Messages wait here only as long as it takes to receive more: as many as the handlers begin in
``PREFETCH_SECONDS``, or, without a limit of concurrency, as many as the program takes in that time. Slow handlers
therefore keep no message from other consumers. If handlers become slow, the messages that wait go back uncounted when
their first extension is due.

*Order* (``ordered``). The next messages are received only when none is held. A message that fails sends the later
messages back, stays held for the pause, and is then released: the next receive returns the message first.
"""

from collections import deque
from collections.abc import Container
from enum import Enum
from itertools import chain

import msgspec

from cmqd_client.durations import check_seconds, shown_seconds
from cmqd_client.messages.message_ids import printed_id
from cmqd_protocol.limits import MAX_BATCH
from cmqd_types.attributes import QUEUE
from cmqd_types.messages import ReceivedMessage

PREFETCH_SECONDS = 0.2
"""Time for which messages wait here when ``prefetch`` is not given: longer than a receive takes on a slow network, so
that handlers have always a message to begin; too short to matter to another consumer that could take the message."""

EXTENSIONS_PER_LEASE = 3
"""A held message is extended when this part of its lease has passed. The rest is time for two more attempts."""

_NEW_SHARE = 0.125
"""Share of the newest handling time in the mean: the mean follows a change within about 16 messages."""


class LeaseState(Enum):
    """State of a message in the hands of a consumer; the module shows the transitions."""

    WAITING = "waiting"
    BEGUN = "begun"
    ENDING = "ending"
    SENDING = "sending"
    OVER = "over"


class Action(Enum):
    """The request that ends a lease."""

    DELETE = "delete"
    RETRY = "retry"
    """Make the message active after ``delay`` seconds; the receive counts."""
    GIVE_BACK = "give_back"
    """Make the message active at once; the receive does not count."""
    REJECT = "reject"
    """Move the message to the dead-letter queue."""


class Settlement(msgspec.Struct, frozen=True):
    """The end of a lease. Leases with equal settlements share a request."""

    action: Action
    delay: float = 0.0
    """Seconds, of a retry."""
    reason: str = ""
    """Of a rejection."""


DELETE = Settlement(Action.DELETE)
GIVE_BACK = Settlement(Action.GIVE_BACK)


class Lease(msgspec.Struct, eq=False):
    """The right of this consumer to a message, and the fate of the message."""

    received: ReceivedMessage
    request_id: int
    """Number of the receive."""
    renew_at: float
    """The extension is due."""
    ends_at: float
    state: LeaseState = LeaseState.WAITING
    begun_at: float = 0.0
    in_hands: bool = False
    """The message is with a handler: from its begin until it is settled or lost."""
    extending: bool = False
    """An extension is unanswered."""
    uncertain: bool = False
    """An unanswered settlement may have been executed, so that an invalid handle means success."""
    lost: str | None = None
    """Why the lease was lost; None = it was not."""

    @property
    def handle(self) -> int:
        """Receipt handle of the message."""
        return self.received.receipt_handle

    @property
    def name(self) -> str:
        """Id of the message, as programs and logs know it."""
        return printed_id(self.received.message_id)


class SettlementBatch(msgspec.Struct, frozen=True):
    """Leases to settle in a request."""

    settlement: Settlement
    leases: list[Lease]


class LeasesDue(msgspec.Struct, frozen=True):
    """Result of an examination of all leases."""

    lost: list[Lease]
    """Begun messages with a lease that ended; their handlers are to be cancelled."""
    extend: list[Lease]
    """Leases to extend now, together."""


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """Counters of a consumer since its start, and the messages in its hands, as of a moment."""

    received: int
    """Messages received: each is counted once below, or is held."""
    deleted: int
    retried: int
    """Messages made active again, at once or after a pause; the receive counts."""
    given_back: int
    """Messages made active again that no handler has begun; the receive does not count."""
    dead_lettered: int
    settled_by_caller: int
    """Messages that the program deleted, released or moved itself."""
    lost: int
    """Messages with a lease that ended before the settlement: they are delivered again."""
    waiting: int
    """Held, and not begun."""
    begun: int
    """Held, and in the hands of a handler."""
    ending: int
    """Held, and handled; the request that settles them is unanswered."""
    extensions: int
    """Extended leases."""
    receives: int
    """Receives that were answered, also without messages."""

    @property
    def held(self) -> int:
        """Messages that no other consumer can receive, because this consumer has them."""
        return self.waiting + self.begun + self.ending


class ConsumptionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the messages that a consumer holds."""

    concurrency: int | None = 1
    """Messages begun at the same time; None = as many as the program asks for."""
    prefetch: int | None = None
    """Messages that wait beyond the begun messages; None = as the handlers are fast, see the module."""
    lease: float = 30.0
    """Seconds of a lease."""
    ordered: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and not 1 <= self.concurrency <= 4096:
            raise ValueError(f"concurrency is {self.concurrency}; it must be 1 to 4096")
        if self.prefetch is not None and not 0 <= self.prefetch <= 4096:
            raise ValueError(f"prefetch is {self.prefetch}; it must be 0 to 4096")
        check_seconds("lease", self.lease, QUEUE["visibility_timeout_ms"])
        if self.ordered and self.concurrency != 1:
            raise ValueError(f"concurrency is {self.concurrency}; a consumer that keeps the order has 1")


class Consumption:
    """The messages in the hands of a consumer.

    Invariants: ``_held`` has exactly the leases that are not OVER; ``_waiting`` exactly the leases that are WAITING;
    every lease that is ENDING is in ``_to_delete``, in ``_to_settle`` or ``_postponed``.
    """

    def __init__(self, limits: ConsumptionLimits) -> None:
        self._limits = limits
        self._held: dict[int, Lease] = {}
        """Leases by receipt handle."""
        self._waiting: deque[Lease] = deque()
        self._begun = 0
        self._to_delete: list[Lease] = []
        self._to_settle: dict[Settlement, list[Lease]] = {}
        """Other settlements, in the order in which each was first decided."""
        self._postponed: tuple[float, Lease] | None = None
        """In order: the failed message, and the time of its release."""
        self._askers = 0
        """Tasks of the program that wait for a message."""
        self._last_begin: float | None = None
        self._last_arrived = 0
        """Messages of the last receive that returned any."""
        self._last_was_full = False
        """The last receive returned as many messages as requested."""
        self._mean_seconds: float | None = None
        """Mean time from begin to settlement; without a limit of concurrency, from a begin until the program asks for
        the next message. None = not measured yet."""
        self._counts: dict[Action, int] = dict.fromkeys(Action, 0)
        self._received = 0
        self._receives = 0
        self._extensions = 0
        self._lost = 0
        self._settled_by_caller = 0
        self.stopping: bool = False
        """True after :meth:`stop`: no message begins any more."""
        self.examine_at: float | None = None
        """Time of the next :meth:`examine`; None = nothing is due."""

    # ------------------------------------------------------------------ receive

    def receive_size(self, *, with_deletes: bool = False) -> int:
        """Return how many messages to receive now; 0 = none. ``with_deletes``: the receive takes
        :meth:`deletes_to_ride` along.

        At most half of the wanted messages wait when more are received: a receive for every message that begins would
        cost a request for each.
        """
        if self.stopping:
            return 0
        limits = self._limits
        if limits.ordered:
            # Deletes that ride in the receive come before it: for the order they are as good as answered.
            riding = [lease for lease in self._to_delete if lease.state is LeaseState.ENDING]
            if not (with_deletes and self._last_was_full):
                riding.clear()
            return 0 if len(self._held) > len(riding[:MAX_BATCH]) else min(1 + (limits.prefetch or 0), MAX_BATCH)
        waiting = len(self._waiting)
        ending = len(self._held) - waiting - self._begun
        if ending >= MAX_BATCH:
            # Settlements are not answered: back-pressure, because the messages handled meanwhile could not be settled.
            return 0
        if limits.concurrency is None:
            # The program alone knows how many messages it can handle, and shows it by asking. A message that is asked
            # for begins at once, so askers wait only while no message does.
            unserved = self._askers - waiting
            return min(unserved + self.prefetch, MAX_BATCH) if unserved > 0 else 0
        capacity = max(limits.concurrency - self._begun, 0) + self.prefetch
        if waiting * 2 > capacity or capacity <= waiting:
            return 0
        return min(capacity - waiting, MAX_BATCH)

    @property
    def prefetch(self) -> int:
        """Number of messages that may wait beyond the messages that begin at once."""
        if self._limits.prefetch is not None:
            return self._limits.prefetch
        if self._mean_seconds is None:
            return 0
        handlers = self._limits.concurrency
        if handlers is None:
            # A program with much room takes its first messages at once, however slow its handlers are. So the number
            # at most doubles, and the last receive before the room is full brings hardly more than fits.
            return int(min(PREFETCH_SECONDS / max(self._mean_seconds, 1e-6), 2 * self._last_arrived, MAX_BATCH))
        return int(min(PREFETCH_SECONDS * handlers / max(self._mean_seconds, 1e-6), MAX_BATCH))

    def arrived(self, messages: list[ReceivedMessage], request_id: int, now: float, *, is_full: bool = False) -> None:
        """Take the messages of a receive, ``is_full``: as many as requested. After a stop they go back uncounted."""
        self._receives += 1
        self._last_was_full = is_full
        if not messages:
            return
        self._received += len(messages)
        self._last_arrived = len(messages)
        renew_at = now + self._limits.lease / EXTENSIONS_PER_LEASE
        ends_at = now + self._limits.lease
        held, waiting = self._held, self._waiting
        for received in messages:
            held[received.receipt_handle] = lease = Lease(received, request_id, renew_at, ends_at)
            waiting.append(lease)
        self._look_by(renew_at)
        if self.stopping:
            self._give_waiting_back()

    def begin(self, now: float) -> Lease | None:
        """Return the next message for a handler; None = no message waits, or the handlers are at their limit."""
        limit = self._limits.concurrency
        if not self._waiting or (limit is not None and self._begun >= limit):
            return None
        lease = self._waiting.popleft()
        lease.state = LeaseState.BEGUN
        lease.begun_at = self._last_begin = now
        lease.in_hands = True
        self._begun += 1
        return lease

    def asked(self, now: float) -> None:
        """Note that a task of the program waits for a message, until :meth:`asks_no_more`."""
        self._askers += 1
        if self._limits.concurrency is None and self._last_begin is not None:
            # How fast the program takes messages: it asks for the next when it has room.
            self._measure(now - self._last_begin)
            self._last_begin = None

    def asks_no_more(self) -> None:
        """Note that a task of the program has its message, or waits no more."""
        self._askers -= 1

    @property
    def has_waiting(self) -> bool:
        """True if a message waits for a handler."""
        return bool(self._waiting)

    # ------------------------------------------------------------------ settle

    def settle(self, lease: Lease, settlement: Settlement, now: float) -> None:
        """Decide how a begun message ends. No effect if the lease is lost or settled by the caller."""
        if lease.state is not LeaseState.BEGUN:
            return
        lease.state = LeaseState.ENDING
        self._leave_hands(lease, now)
        if settlement is DELETE:
            self._to_delete.append(lease)
        elif self._limits.ordered and settlement.action is Action.RETRY:
            self._give_waiting_back()
            # After a stop at once: a hidden message would let later messages overtake at the next consumer.
            self._postponed = (now if self.stopping else now + settlement.delay), lease
            self._look_by(self._postponed[0])
        else:
            self._to_settle.setdefault(settlement, []).append(lease)

    @property
    def has_unsettled(self) -> bool:
        """True if a message is to be settled, in a request that was not sent yet."""
        return bool(self._to_delete or self._to_settle)

    def deletes_to_ride(self) -> SettlementBatch | None:
        """Return the messages to delete with the next receive, which is then unanswered; None = none.

        None also if the last receive brought fewer messages than requested: the next receive will rather wait, and the
        deletes would be unanswered for as long.
        """
        return self._next_deletes() if self._last_was_full else None

    def _next_deletes(self) -> SettlementBatch | None:
        leases, self._to_delete = self._to_delete[:MAX_BATCH], self._to_delete[MAX_BATCH:]
        leases = [lease for lease in leases if lease.state is LeaseState.ENDING]
        return self._sending(DELETE, leases) if leases else None

    def next_batch(self) -> SettlementBatch | None:
        """Return leases to settle in a request, which is then unanswered; None = none."""
        if self._to_delete:
            batch = self._next_deletes()
            if batch is not None:
                return batch
        for settlement, leases in list(self._to_settle.items()):
            ending = [lease for lease in leases if lease.state is LeaseState.ENDING]
            ready = [lease for lease in ending if not lease.extending][:MAX_BATCH]
            later = [lease for lease in ending if lease.extending or lease not in ready]
            if later:
                self._to_settle[settlement] = later
            else:
                del self._to_settle[settlement]
            if ready:
                return self._sending(settlement, ready)
        return None

    def _sending(self, settlement: Settlement, leases: list[Lease]) -> SettlementBatch:
        for lease in leases:
            lease.state = LeaseState.SENDING
        return SettlementBatch(settlement, leases)

    def answered(
        self, batch: SettlementBatch, invalid_handles: set[int], not_done_before: Container[int] = ()
    ) -> list[Lease]:
        """Take the answer to a batch, with the handles that were invalid.

        ``not_done_before``: those of them that no earlier attempt of the settlement made invalid.

        Returns:
            The messages that were handled, but are delivered again: the lease ended before the settlement.
        """
        late: list[Lease] = []
        settled = 0
        for lease in batch.leases:
            if lease.state is not LeaseState.SENDING:
                continue
            is_invalid = invalid_handles and lease.handle in invalid_handles
            if is_invalid and (not lease.uncertain or lease.handle in not_done_before):
                self._lose(lease, "the lease ended before the message was settled")
                late.append(lease)
            else:
                self._end(lease)
                settled += 1
        # Once for the batch: the hash of an enum's member is a call of a Python function.
        self._counts[batch.settlement.action] += settled
        return late

    def not_answered(self, batch: SettlementBatch, now: float, *, may_have_happened: bool) -> list[Lease]:
        """Decide the batch again: its request failed, and may have been executed.

        Returns:
            The messages with a lease that has ended meanwhile; they are not tried again.
        """
        late: list[Lease] = []
        for lease in batch.leases:
            if lease.state is not LeaseState.SENDING:
                continue
            lease.uncertain = lease.uncertain or may_have_happened
            if lease.ends_at <= now:
                self._lose(lease, "the lease ended before the server could be told")
                late.append(lease)
                continue
            lease.state = LeaseState.ENDING
            # A retry with a pause does so too: the lease may have run on, but the message must not come early.
            if batch.settlement is DELETE:
                self._to_delete.append(lease)
            else:
                self._to_settle.setdefault(batch.settlement, []).append(lease)
        if batch.leases:
            self._look_by(min(lease.renew_at for lease in batch.leases))
        return late

    def refused(self, lease: Lease, settlement: Settlement) -> None:
        """Settle a lease in another way, after the server refused its settlement and left the lease as it was."""
        lease.state = LeaseState.ENDING
        self._to_settle.setdefault(settlement, []).append(lease)
        self._look_by(lease.renew_at)

    # ------------------------------------------------------------------ settled by the program itself

    def claim(self, lease: Lease) -> bool:
        """Leave a begun message to a request of the program; False if its lease is over or settled already."""
        if lease.state is not LeaseState.BEGUN:
            return False
        lease.state = LeaseState.SENDING
        return True

    def unclaim(self, lease: Lease) -> None:
        """Take a claimed message back after a request that failed; its lease is extended again."""
        if lease.state is LeaseState.SENDING:
            lease.state = LeaseState.BEGUN
            self._look_by(lease.renew_at)

    def claimed(self, lease: Lease, now: float) -> None:
        """Note that the program's request has settled a claimed message."""
        if lease.state is LeaseState.SENDING:
            self._leave_hands(lease, now)
            self._end(lease)
            self._settled_by_caller += 1

    def claim_refused(self, lease: Lease) -> None:
        """Note that the program's request found the lease ended."""
        if lease.state is LeaseState.SENDING:
            self._lose(lease, "the lease ended before the message was settled")

    # ------------------------------------------------------------------ leases

    def examine(self, now: float) -> LeasesDue:
        """Find the leases that ended and the leases to extend, and set ``examine_at``.

        A lease that is due in less than half of the interval is extended too, so that leases of several receives come
        to share their extensions.
        """
        if self._postponed is not None and (self._postponed[0] <= now or self.stopping):
            _, lease = self._postponed
            self._postponed = None
            if lease.state is LeaseState.ENDING:
                self._to_settle.setdefault(Settlement(Action.RETRY), []).append(lease)
        lost: list[Lease] = []
        due: list[Lease] = []
        stale = False
        soon = now + self._limits.lease / 6
        for lease in list(self._held.values()):
            if lease.state is LeaseState.SENDING:
                continue
            if lease.ends_at <= now:
                if self._lose(
                    lease, f"the lease of {shown_seconds(self._limits.lease)} ended without an answer to its extension"
                ):
                    lost.append(lease)
            elif lease.extending or lease.renew_at > soon:
                continue
            elif lease.state is LeaseState.WAITING and self._goes_back_when_due:
                stale = stale or lease.renew_at <= now
            else:
                due.append(lease)
        if stale:
            # The handlers are slower than their mean so far. The next messages wait for less.
            self._mean_seconds = max(self._mean_seconds or 0.0, self._limits.lease / EXTENSIONS_PER_LEASE)
            for lease in self._waiting:
                lease.renew_at = soon  # the request that gives them back comes first
            self._give_waiting_back()
        if not any(lease.renew_at <= now for lease in due):
            due = []
        for lease in due:
            lease.extending = True
        self._plan_examination(now)
        return LeasesDue(lost, due)

    @property
    def _goes_back_when_due(self) -> bool:
        """True if a message that waits for long goes back; not if the program chose the number, or for the order."""
        return self._limits.prefetch is None and not self._limits.ordered

    def extended(self, leases: list[Lease], invalid_handles: set[int], asked_at: float, now: float) -> list[Lease]:
        """Take the answer to an extension that was requested at ``asked_at``.

        Returns:
            The begun messages with a lost lease; their handlers are to be cancelled.
        """
        lost: list[Lease] = []
        for lease in leases:
            lease.extending = False
            if lease.handle not in invalid_handles:
                lease.renew_at = asked_at + self._limits.lease / EXTENSIONS_PER_LEASE
                lease.ends_at = asked_at + self._limits.lease
                self._extensions += 1
            elif lease.state in (LeaseState.WAITING, LeaseState.BEGUN, LeaseState.ENDING):
                # Not if SENDING: the settlement may have made the handle invalid, and its own answer tells.
                if lease.uncertain:
                    # Settled by the attempt without an answer; the next attempt finds the handle invalid and counts
                    # the message.
                    lease.renew_at = lease.ends_at
                elif self._lose(lease, "the server says that the lease ended or the message is gone"):
                    lost.append(lease)
        self._plan_examination(now)
        return lost

    def not_extended(self, leases: list[Lease], now: float) -> None:
        """Extend these leases again after a pause: the request failed."""
        for lease in leases:
            lease.extending = False
            lease.renew_at = now + min(self._limits.lease / 12, 1.0)
        self._plan_examination(now)

    def _plan_examination(self, now: float) -> None:
        moments = [
            lease.ends_at if lease.extending else min(lease.renew_at, lease.ends_at)
            for lease in self._held.values()
            if lease.state is not LeaseState.SENDING
        ]
        if self._postponed is not None:
            moments.append(self._postponed[0])
        self.examine_at = max(min(moments), now) if moments else None

    def _look_by(self, moment: float) -> None:
        if self.examine_at is None or moment < self.examine_at:
            self.examine_at = moment

    # ------------------------------------------------------------------ stop

    def stop(self, now: float) -> None:
        """Begin no further message; messages that are not begun go back uncounted. Begun messages stay held."""
        self.stopping = True
        self._give_waiting_back()
        if self._postponed is not None:
            self._look_by(now)

    def begun_leases(self) -> list[Lease]:
        """Return the leases of begun messages that are not settled."""
        return [lease for lease in self._held.values() if lease.state is LeaseState.BEGUN]

    def abandon(self, lease: Lease, now: float) -> None:
        """Stop keeping the lease of a begun message; the program may still settle the message itself."""
        if lease.state is LeaseState.BEGUN:
            self._leave_hands(lease, now)
            self._end(lease)
            self._settled_by_caller += 1

    def lose_all(self, reason: str) -> list[Lease]:
        """Lose every lease, because the server takes no requests any more; return the begun messages."""
        return [lease for lease in list(self._held.values()) if self._lose(lease, reason)]

    def lose(self, batch: SettlementBatch, reason: str) -> None:
        """Lose the leases of a batch that the server will never take."""
        for lease in batch.leases:
            if lease.state is LeaseState.SENDING:
                self._lose(lease, reason)

    @property
    def is_settled(self) -> bool:
        """True if no message is held."""
        return not self._held

    def statistics(self) -> ConsumerStatistics:
        """Return the counters of now."""
        waiting = len(self._waiting)
        return ConsumerStatistics(
            received=self._received,
            deleted=self._counts[Action.DELETE],
            retried=self._counts[Action.RETRY],
            given_back=self._counts[Action.GIVE_BACK],
            dead_lettered=self._counts[Action.REJECT],
            settled_by_caller=self._settled_by_caller,
            lost=self._lost,
            waiting=waiting,
            begun=self._begun,
            ending=len(self._held) - waiting - self._begun,
            extensions=self._extensions,
            receives=self._receives,
        )

    def check_invariants(self) -> None:
        """Check the invariants of the class; for tests."""
        leases = list(self._held.values())
        assert all(lease.state is not LeaseState.OVER and lease.lost is None for lease in leases)
        assert {id(lease) for lease in leases if lease.state is LeaseState.WAITING} == set(map(id, self._waiting))
        assert self._begun == sum(lease.in_hands for lease in leases)
        assert all(lease.in_hands for lease in leases if lease.state is LeaseState.BEGUN)
        listed = {id(lease) for lease in chain(self._to_delete, *self._to_settle.values())}
        if self._postponed is not None:
            listed.add(id(self._postponed[1]))
        assert all(id(lease) in listed for lease in leases if lease.state is LeaseState.ENDING)
        unsent = [lease for lease in leases if lease.state is not LeaseState.SENDING]
        assert not unsent or self.examine_at is not None, "leases that nobody would extend"

    # ------------------------------------------------------------------ inside

    def _give_waiting_back(self) -> None:
        if self._waiting:
            for lease in self._waiting:
                lease.state = LeaseState.ENDING
            self._to_settle.setdefault(GIVE_BACK, []).extend(self._waiting)
            self._waiting.clear()

    def _leave_hands(self, lease: Lease, now: float) -> None:
        self._begun -= 1
        lease.in_hands = False
        if self._limits.concurrency is not None:
            self._measure(now - lease.begun_at)

    def _measure(self, seconds: float) -> None:
        mean = self._mean_seconds
        self._mean_seconds = seconds if mean is None else mean + (seconds - mean) * _NEW_SHARE

    def _lose(self, lease: Lease, reason: str) -> bool:
        """End a lease as lost; return True if the message is in the hands of a handler."""
        was = lease.state
        lease.lost = reason
        if was is LeaseState.WAITING:
            self._waiting.remove(lease)
        if lease.in_hands:
            # Not _leave_hands: the time of a handler that lost its lease says little about other handlers.
            self._begun -= 1
            lease.in_hands = False
        self._end(lease)
        self._lost += 1
        if self._limits.ordered:
            # The lost message is delivered again, before the later messages.
            self._give_waiting_back()
        return was is LeaseState.BEGUN

    def _end(self, lease: Lease) -> None:
        lease.state = LeaseState.OVER
        del self._held[lease.received.receipt_handle]
