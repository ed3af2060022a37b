"""Deficit round robin over connections with deferred input.

Input of a connection is taken up on arrival while the I/O batch has time left (``io_batch``) and the read is small.
Bytes of a frame of up to 80 KiB are taken up on arrival as well, without bytes of a second frame, if no connection
takes turns. Other input is deferred: the connection keeps the bytes undecoded, is not read from (unless the input is
only late, decision 0243), and takes turns here. Bytes wait undecoded because refusing a request costs as much as
deciding it: a queue of decoded requests would have done the work already. A large read in which no frame ends is stored
on arrival without a turn, and the connection rests as after a turn (decision 0242).

The rounds are nested: accounts take turns, and within an account its connections do, so that an account gains nothing
from a larger number of connections. The rule is deficit round robin (M. Shreedhar and G. Varghese, "Efficient Fair
Queuing Using Deficit Round Robin", SIGCOMM 1995), in the variant that pays afterwards, because the cost of a piece is
known only after decoding: each visit adds ``QUANTUM`` to the credit of a member, a member with credit takes a turn, the
turn is charged, and a debt is carried into later rounds. The charge is the bytes and ``REQUEST_COST`` for each request,
or the CPU time of the turn, whichever is larger: 18 bytes can ask for a list of 500 subscriptions.

The cost of a collected request (``collecting``) is constant for each of its messages. The cost of any other request is
not, nor that of a receive of many messages: after each of these the timer is looked at, and the turn ends after
``TURN_SECONDS`` (``TurnTime``). Requests behind it wait decoded for the next turn. Only these requests read a clock, so
that sends, small receives and deletes pay for none.

The order of the requests of a connection is kept, because a connection takes up its input in order. Between connections
there is no order before an answer (SPEC.md, section 5.1), so a later turn looks like bytes that arrived later.

An operation in several steps (a long publish) holds its connection meanwhile: ``Connection.hold`` ends the turn after
the current request, and no request behind it is dispatched before ``Connection.release``. A handler that holds the
connection on behalf of an earlier request (collected with others, and found to be long only now) hands the current
request to ``Connection.put_back``. Other connections go on. A cancel behind the request waits with the rest, so the
request is answered as usual. When the connection is lost, input that was not taken up is dropped like bytes that were
still on the way, and ``release`` does no harm.

Pure data and calls: no socket, no clock, no loop.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from cmqd.log.interface import Log

QUANTUM: Final = 16 * 1024
"""Credit of a visit, in units of cost. A piece of input is about as large, so that most visits serve one."""

REQUEST_COST: Final = 2 * 1024
"""Cost of a request beside its bytes: a disk writes about as many in the time in which a small request is decided."""

TURN_SECONDS: Final = 0.002
"""Time of a turn after which no further request is dispatched, if the cost of its requests is not constant."""

CPU_SECOND_COST: Final = 128 * 1024 * 1000
"""Cost of a second of CPU time (decision 0204): a millisecond decides about 64 small requests."""

MAX_CHARGED_SECONDS: Final = 0.05
"""Most CPU time that a turn is charged. A single request takes less by far; a larger figure would be a fault of the
machine (a page that had to be read, a clock that jumped), and must not cost a client its next seconds."""


AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes that wait for the disk from which on no turns are given. A small request joins the next commit behind at most
so many, while two commits of half the size keep the disk busy without a pause."""

DISK_PATIENCE_SECONDS: Final = 1.0
"""Time without a commit after which turns are given all the same, so that requests get ``busy`` and not silence."""


class CommitRoom:
    """Room in the log before its next commit, for input that takes turns.

    Without this bound the whole backlog of a bulk producer would be appended at once, and every later request would
    wait for commits full of it.
    """

    __slots__ = ("_full_lsn", "_full_since", "_log", "_timer", "is_halted")

    def __init__(self, log: Log, timer: Callable[[], float]) -> None:
        """``timer`` gives seconds and never goes back."""
        self._log = log
        self._timer = timer
        self._full_lsn = -1
        """The durable LSN when the log was found full; -1 = there was room."""
        self._full_since = 0.0
        self.is_halted = False
        """No commit comes any more, so there is no room to keep, and every request is refused."""

    def has_room(self) -> bool:
        """True if turns may be given."""
        log = self._log
        if self.is_halted or log.pending.bytes < AHEAD_BYTES:
            self._full_lsn = -1
            return True
        now = self._timer()
        if self._full_lsn != log.durable_lsn:
            self._full_lsn = log.durable_lsn
            self._full_since = now
        return now - self._full_since >= DISK_PATIENCE_SECONDS


class TurnTime:
    """The time of the turn under way, counted from its first request of a cost that is not constant; see the module."""

    __slots__ = ("_cpu_ns", "_cpu_ns_before", "_is_charged", "_timer", "_timer_before", "is_counted", "is_over")

    def __init__(self, timer: Callable[[], float], cpu_ns: Callable[[], int]) -> None:
        """``timer`` gives seconds and never goes back; ``cpu_ns`` gives the CPU time of the thread."""
        self._timer = timer
        self._cpu_ns = cpu_ns
        self._timer_before = 0.0
        self._cpu_ns_before = 0
        self._is_charged = False
        self.is_counted = False
        """A request whose cost is not constant was dispatched in this turn."""
        self.is_over = False
        """No further request is dispatched in this turn."""

    def restart(self, *, is_charged: bool = False) -> None:
        """Begin a turn. The CPU time is read only for a turn that is charged, because a reading takes 0.7 us."""
        self.is_counted = self.is_over = False
        self._is_charged = is_charged

    def count(self) -> None:
        """Count the time from now on: a request follows whose cost is not constant."""
        if not self.is_counted:
            self.is_counted = True
            self._timer_before = self._timer()
            if self._is_charged:
                self._cpu_ns_before = self._cpu_ns()

    def look(self) -> None:
        """Look at the timer, after a request whose cost is not constant."""
        if self._timer() - self._timer_before >= TURN_SECONDS:
            self.is_over = True

    def cost(self) -> int:
        """Return the cost of the CPU time of the turn, 0 if all its requests have a constant cost."""
        if not self.is_counted or not self._is_charged:
            return 0
        seconds = (self._cpu_ns() - self._cpu_ns_before) / 1e9
        return int(min(seconds, MAX_CHARGED_SECONDS) * CPU_SECOND_COST)


class Flow(Protocol):
    """A connection that takes turns: with deferred input, or resting after a large read."""

    account: str
    """Empty before authentication: unauthenticated connections share the turns of a single account."""
    credit: int
    """Kept by the round robin; negative after an expensive turn."""

    @property
    def has_turn(self) -> bool:
        """True if input is deferred and may be taken up now."""
        ...

    def take_turn(self) -> int:
        """Take up the next piece and return its cost."""
        ...

    def end_rest(self) -> int:
        """Read from the socket again and return the cost of a large read."""
        ...


class AccountFlows:
    """The connections of an account that take turns."""

    __slots__ = ("credit", "flows")

    def __init__(self) -> None:
        self.credit = QUANTUM
        self.flows: OrderedDict[Flow, None] = OrderedDict()


M = TypeVar("M", Flow, AccountFlows)


def first_with_credit(members: OrderedDict[M, None]) -> M:
    """Return the first member with credit. A member without credit gets ``QUANTUM`` and goes to the end, until a member
    has credit: all these rounds are made at once, because a read of 256 KB costs 16 of them, and a turn of 50 ms 400.
    """
    member = next(iter(members))
    if member.credit > 0:
        return member
    rounds = [max(0, -member.credit // QUANTUM + 1) for member in members]
    least = min(rounds)
    if least:
        for member in members:
            member.credit += least * QUANTUM
    for _ in range(rounds.index(least)):
        member = next(iter(members))
        member.credit += QUANTUM
        members.move_to_end(member)
    return next(iter(members))


class RoundRobin:
    """The turns of all connections; see the module.

    Invariant: an account is in the round if and only if connections of it are; a connection is in one account.
    """

    __slots__ = ("_entries", "_entry_of", "_has_turn", "_take_turn", "has_room", "round")

    def __init__(
        self,
        has_room: Callable[[], bool] = lambda: True,
        *,
        take_turn: Callable[[Flow], int] = lambda flow: flow.take_turn(),
        has_turn: Callable[[Flow], bool] = lambda flow: flow.has_turn,
    ) -> None:
        """Make a round of turns, by default of the turns for deferred input.

        Args:
            has_room: returns True if the log takes more input before its next commit.
            take_turn: gives a connection its turn and returns the cost.
            has_turn: returns True if the connection wants a further turn.
        """
        self.has_room = has_room
        """Returns True if the log takes more input before its next commit."""
        self._take_turn = take_turn
        self._has_turn = has_turn
        self._entries: dict[str, AccountFlows] = {}
        """Accounts that ever took turns: leaving the round must not forgive a debt."""
        self.round: OrderedDict[AccountFlows, None] = OrderedDict()
        """Accounts in the order of their turns; empty = no connection takes turns. Read-only outside: ``io_batch``
        reads it at every poll, and asks ``can_serve`` unless the round is empty.
        """
        self._entry_of: dict[Flow, AccountFlows] = {}

    def __len__(self) -> int:
        return len(self._entry_of)

    def __repr__(self) -> str:
        return f"<RoundRobin accounts={len(self.round)} connections={len(self._entry_of)}>"

    @property
    def can_serve(self) -> bool:
        """True if a turn is wanted and the log has room."""
        return bool(self.round) and self.has_room()

    @property
    def is_free(self) -> bool:
        """True if no connection takes turns and the log has room: a new turn would come at once."""
        return not self.round and self.has_room()

    def add(self, flow: Flow) -> None:
        """Let a connection take turns; no effect if it does already."""
        if flow in self._entry_of:
            return
        entry = self._entries.get(flow.account)
        if entry is None:
            entry = self._entries[flow.account] = AccountFlows()
        if not entry.flows:
            entry.credit = min(entry.credit, QUANTUM)
            self.round[entry] = None
        if flow.credit >= 0:
            # First in a round with credit: a small request must not wait for the second round.
            flow.credit = QUANTUM
        entry.flows[flow] = None
        self._entry_of[flow] = entry

    def remove(self, flow: Flow) -> None:
        """Let a connection take no more turns; no effect if it takes none."""
        entry = self._entry_of.pop(flow, None)
        if entry is None:
            return
        del entry.flows[flow]
        if not entry.flows:
            del self.round[entry]

    def serve(self, has_time: Callable[[], bool]) -> None:
        """Give turns while there is time (a single turn without) and room in the log."""
        while self.can_serve:
            entry = first_with_credit(self.round)
            flow = first_with_credit(entry.flows)
            account = flow.account
            cost = self._take_turn(flow)
            flow.credit -= cost
            entry.credit -= cost
            # The turn may have authenticated the connection, ended it or left no input.
            if not self._has_turn(flow):
                self.remove(flow)
            elif flow.account != account:
                self.remove(flow)
                self.add(flow)
            if not has_time():
                return

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        flows = {flow: entry for entry in self.round for flow in entry.flows}
        assert flows == self._entry_of, (flows, self._entry_of)
        assert all(entry.flows for entry in self.round)
        assert not any(entry.flows for entry in self._entries.values() if entry not in self.round)
