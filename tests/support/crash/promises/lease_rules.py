"""Rules about leases: a single lease at a time, exact counts, and handles that keep their meaning."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from support.crash.promises.history import (
    ChangeVisibility,
    DeadLetter,
    Delete,
    HandleOperation,
    Outcome,
    Receive,
    Release,
)
from support.crash.promises.ledger import Ledger, Rule, Violation
from support.crash.promises.places import Life, Message, Received
from support.crash.promises.timeline import Timeline


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """The server times between which a lease can have ended by itself; and whether an operation may have ended
    the lease."""

    earliest_ms: float
    latest_ms: float
    ended_by_hand: bool


def end_of_lease(ledger: Ledger, received: Received, *, called_before_ns: int) -> LeaseEnd:
    """As of a moment: earlier operations on the handle are taken into account."""
    handle = received.delivery.handle
    earliest = latest = float(received.delivery.next_visible_ms)
    by_hand = False
    for operation in ledger.handle_operations.get(handle, ()):
        if operation.called_ns >= called_before_ns or not operation.may_have_worked(handle):
            continue
        match operation:
            case ChangeVisibility() if operation.done:
                earliest = latest = float(operation.next_visible_ms)
            case ChangeVisibility():
                soonest = max(received.from_ms, ledger.time.earliest_ms(operation.called_ns))
                earliest = min(earliest, soonest + operation.visibility_ms)
                latest = max(latest, ledger.time.latest_ms(operation.answered_ns) + operation.visibility_ms)
            case Release():
                by_hand = True
            case _:  # a delete or a rejection ends the message with the lease: no receive can follow
                pass
    return LeaseEnd(earliest, latest, by_hand)


def check_one_lease(ledger: Ledger) -> Iterator[Violation]:
    """A message with a valid lease is neither given to a second receiver nor moved to a second queue."""
    for life in ledger.lives:
        for former, later in zip(life.received, life.received[1:], strict=False):
            end = end_of_lease(ledger, former, called_before_ns=later.receive.answered_ns)
            if not end.ended_by_hand and later.from_ms < end.earliest_ms:
                yield Violation(
                    Rule.ONE_LEASE,
                    f"{life} was leased from {former.from_ms} to {end.earliest_ms:.0f} and again from"
                    f" {later.from_ms} (server time, ms)",
                )
        move = _move_of(life)
        is_rejected = life.moved_to is not None and life.moved_to.is_rejected
        if move is not None and life.received and not is_rejected:
            end = end_of_lease(ledger, life.received[-1], called_before_ns=move.answered_ns)
            if not end.ended_by_hand and move.at_ms < end.earliest_ms:
                yield Violation(
                    Rule.ONE_LEASE,
                    f"{life} was leased to {end.earliest_ms:.0f} and moved at {move.at_ms} (server time)",
                )


# ---------------------------------------------------------------- counts


@dataclass(frozen=True, slots=True)
class _Sight:
    """A report of the broker about a life: a delivery, or the origin at the place of its move."""

    count: int
    """Receives so far, without this delivery."""
    at_ms: int
    answered_ns: int


def _sight_of(received: Received) -> _Sight:
    return _Sight(received.delivery.receive_count - 1, received.from_ms, received.receive.answered_ns)


def _move_of(life: Life) -> _Sight | None:
    moved_to = life.moved_to
    if moved_to is None or moved_to.origin is None:
        return None
    seen_ns = min(received.receive.answered_ns for received in moved_to.received)
    return _Sight(moved_to.origin.receive_count, moved_to.enqueue_ms, seen_ns)


@dataclass(frozen=True, slots=True, eq=False)
class _Unseen:
    """A message was received once more than was seen, between two sights."""

    message: Message
    since_ns: int
    until_ns: int
    """An unanswered receive of this interval may explain the receive."""


def check_counts(ledger: Ledger) -> Iterator[Violation]:
    """Every count is the last count plus 1, less uncounted releases; a rewind starts again.

    A receive with a lost answer counts too, because it was durable. Its request must be in the history at that time,
    the message stays hidden for its visibility timeout, and a receive explains at most as many messages as requested.
    A moved message keeps the count of its receives.
    """
    missing: dict[str, list[_Unseen]] = defaultdict(list)
    for life in ledger.lives:
        former: Received | None = None
        sights = [(_sight_of(received), received) for received in life.received]
        move = _move_of(life)
        for sight, received in [*sights, (move, None)] if move is not None else sights:
            gap = _uncounted_gap(ledger, former, sight)
            told = (
                f"{life} had {sight.count} receives when it was {'moved' if received is None else 'received again'},"
                f" after {former.delivery.receive_count if former else 0}"
            )
            if gap < 0:
                yield Violation(Rule.COUNT_EXACT, told)
            elif gap:
                began = life.rewind or min(life.message.attempts, key=lambda attempt: attempt.called_ns)
                since_ns = former.receive.called_ns if former else began.called_ns
                explained = _explained(ledger, life, former, sight, since_ns, gap)
                if gap > explained:
                    yield Violation(
                        Rule.COUNT_EXACT, f"{told}; unanswered receives explain {explained} of the {gap} between"
                    )
                else:
                    unseen = missing[life.place.queue]
                    unseen += [_Unseen(life.message, since_ns, sight.answered_ns) for _ in range(gap)]
            former = received
        yield from _check_first_receive(ledger, life)
    for queue, unseen in missing.items():
        unexplained = _unexplained(unseen, ledger.unanswered_receives[queue])
        if unexplained is not None:
            yield Violation(
                Rule.COUNT_EXACT,
                f"{unexplained.message} was counted once more than seen, and so were more messages of {queue} than"
                " its unanswered receives can explain",
            )


def _uncounted_gap(ledger: Ledger, former: Received | None, sight: _Sight) -> int:
    """The least number of unseen receives between the two reports; negative: impossible."""
    if former is None:
        return sight.count
    handle = former.delivery.handle
    releases = [
        operation
        for operation in ledger.handle_operations.get(handle, ())
        if isinstance(operation, Release) and not operation.counted and operation.may_have_worked(handle)
    ]
    gap = sight.count - former.delivery.receive_count
    if any(release.done for release in releases) or (releases and gap < 0):
        return gap + 1
    return gap


def _explained(ledger: Ledger, life: Life, former: Received | None, sight: _Sight, since_ns: int, most: int) -> int:
    """Return the number of unseen receives between two reports that unanswered receives can explain, up to ``most``.

    As many leases must fit between the reports, when all must end by themselves.
    """
    if former is not None:
        end = end_of_lease(ledger, former, called_before_ns=sight.answered_ns)
        free_ms = former.from_ms if end.ended_by_hand else end.earliest_ms
    elif life.rewind is not None:
        free_ms = ledger.time.earliest_ms(life.rewind.called_ns)
    else:
        free_ms = life.place.enqueue_ms + (life.message.attempts[0].delay_ms if life.place.is_first else 0)
    receives = ledger.unanswered_receives[life.place.queue]
    explained, shortest_ms = 0, float("inf")
    for eligible, index in enumerate(receives.overlapping(since_ns, sight.answered_ns), 1):
        shortest_ms = min(shortest_ms, receives.operations[index].visibility_ms)
        explained = min(eligible, int((sight.at_ms - free_ms) // shortest_ms))
        if explained >= most:
            break
    return explained


def _check_first_receive(ledger: Ledger, life: Life) -> Iterator[Violation]:
    """The time of the first receive stays; after an uncounted release it may be the time of a later receive."""
    if not life.received:
        return
    for received in life.received:
        for operation in ledger.handle_operations.get(received.delivery.handle, ()):
            if isinstance(operation, Release) and not operation.counted:
                return
    first = life.received[0]
    expected = first.delivery.first_receive_ms
    if first.delivery.receive_count == 1 and expected != first.from_ms:
        yield Violation(Rule.COUNT_EXACT, f"{life}: first received at {first.from_ms}, told {expected}")
    for received in life.received:
        if received.delivery.first_receive_ms != expected:
            told = received.delivery.first_receive_ms
            yield Violation(Rule.COUNT_EXACT, f"{life}: first receive was {expected}, then {told}")
            return


def _unexplained(unseen: list[_Unseen], receives: Timeline[Receive]) -> _Unseen | None:
    """Return an unexplained receive, if every request explains at most its number of messages (bipartite matching)."""
    matching = _Matching(receives)
    # The earliest end first, to the first free request: then nearly every receive finds a place at once, because
    # requests end nearly in the order of their calls.
    return next((one for one in sorted(unseen, key=lambda one: one.until_ns) if not matching.explain(one)), None)


class _Matching:
    """Unseen receives, each with the unanswered receive that explains it."""

    def __init__(self, receives: Timeline[Receive]) -> None:
        self._receives = receives
        self._explained: list[list[_Unseen]] = [[] for _ in receives.operations]
        self._free = list(range(len(receives.operations) + 1))
        """For each request the next request with free places, as far as known."""

    def explain(self, one: _Unseen) -> bool:
        return self._take_free(one) or self._rearrange(one)

    def _take_free(self, one: _Unseen) -> bool:
        """Take the first free place."""
        end = self._receives.called_until(one.until_ns)
        index = self._next_free(self._receives.answered_from(one.since_ns))
        while index < end and self._receives.operations[index].answered_ns < one.since_ns:
            index = self._next_free(index + 1)
        if index >= end:
            return False
        self._put(one, index)
        return True

    def _rearrange(self, one: _Unseen) -> bool:
        """Find a place by moving others (an augmenting path)."""
        came_for: dict[int, tuple[_Unseen, int]] = {}
        """For each examined request: the unseen receive that wants its place, and the present place of the receive."""
        wanting = deque([(one, -1)])
        while wanting:
            unseen, place = wanting.popleft()
            for index in self._receives.overlapping(unseen.since_ns, unseen.until_ns):
                if index in came_for:
                    continue
                came_for[index] = unseen, place
                if self._has_place(index):
                    self._move_along(came_for, index)
                    return True
                wanting.extend((other, index) for other in self._explained[index])
        return False

    def _move_along(self, came_for: dict[int, tuple[_Unseen, int]], index: int) -> None:
        while index >= 0:
            unseen, place = came_for[index]
            if place >= 0:
                self._explained[place].remove(unseen)
            self._put(unseen, index)
            index = place

    def _has_place(self, index: int) -> bool:
        return len(self._explained[index]) < self._receives.operations[index].max_messages

    def _put(self, one: _Unseen, index: int) -> None:
        self._explained[index].append(one)
        if not self._has_place(index):
            self._free[index] = index + 1

    def _next_free(self, index: int) -> int:
        """Follow the requests without free places, and shorten the way for later."""
        way: list[int] = []
        while self._free[index] != index:
            way.append(index)
            index = self._free[index]
        for passed in way:
            self._free[passed] = index
        return index


# ---------------------------------------------------------------- handles


def check_handle_meaning(ledger: Ledger) -> Iterator[Violation]:
    for handle, operations in ledger.handle_operations.items():
        found = ledger.by_handle.get(handle)
        for operation in operations:
            if operation.outcome is not Outcome.DONE:
                continue
            what = f"{type(operation).__name__} with handle {handle}"
            if handle not in operation.failed:
                why = "it was never given" if found is None else _why_dead(ledger, *found, operation)
                if why is not None:
                    yield Violation(Rule.HANDLE_MEANING, f"{what} worked, although {why}")
            elif found is not None and _surely_live(ledger, *found, operation):
                yield Violation(Rule.HANDLE_MEANING, f"{what} was refused, although {found[0]} was leased by it")


def _why_dead(ledger: Ledger, life: Life, received: Received, operation: HandleOperation) -> str | None:
    """Return why the handle cannot have been valid at the call of the operation; None: it may have been valid."""
    handle = received.delivery.handle
    for other in ledger.handle_operations[handle]:
        ends = isinstance(other, Delete | Release | DeadLetter)
        if other is not operation and ends and other.worked(handle) and other.answered_ns < operation.called_ns:
            return f"a {type(other).__name__} had ended it"
    message = life.message
    for newer in message.received:
        if newer.from_ms > received.from_ms and newer.receive.answered_ns < operation.called_ns:
            return f"{message} had been received again, from {newer.receive.queue}"
    if ledger.purged_before(message, operation.called_ns) is not None:
        return f"{message} had been cleared"
    end = end_of_lease(ledger, received, called_before_ns=operation.called_ns)
    over_ms = ledger.time.earliest_ms(operation.called_ns) - end.latest_ms
    if over_ms > 0:
        return f"its lease had been over for at least {over_ms:.0f} ms"
    return None


def _surely_live(ledger: Ledger, life: Life, received: Received, operation: HandleOperation) -> bool:
    handle = received.delivery.handle
    for other in ledger.handle_operations[handle]:
        if other is operation or other.called_ns >= operation.answered_ns:
            continue
        if isinstance(other, Delete | Release | DeadLetter) and other.may_have_worked(handle):
            return False
    if ledger.maybe_purged(life.message, before_ns=operation.answered_ns):
        return False
    end = end_of_lease(ledger, received, called_before_ns=operation.answered_ns)
    return ledger.time.latest_ms(operation.answered_ns) < end.earliest_ms
