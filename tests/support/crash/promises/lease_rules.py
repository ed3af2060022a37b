"""Rules about leases: a single lease at a time, exact counts, and handles that keep their meaning."""

from collections import defaultdict
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
from support.crash.promises.places import CLOCK_MARGIN_MS, Life, Message, Received


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
                called = ledger.history.wall_ms(operation.called_ns)
                noticed = ledger.history.wall_ms(operation.answered_ns)
                soonest = max(received.from_ms, called - CLOCK_MARGIN_MS) + operation.visibility_ms
                earliest = min(earliest, soonest)
                latest = max(latest, noticed + CLOCK_MARGIN_MS + operation.visibility_ms)
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


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A message was received once more than was seen, between two sights."""

    message: Message
    eligible: tuple[int, ...]
    """Indices, in the list of the queue, of unanswered receives that may explain the receive."""


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
                eligible = _eligible_receives(ledger, life, former, sight)
                lasted = _possible_leases(ledger, life, former, sight, eligible)
                if gap > min(len(eligible), lasted):
                    explained = min(len(eligible), lasted)
                    yield Violation(
                        Rule.COUNT_EXACT, f"{told}; unanswered receives explain {explained} of the {gap} between"
                    )
                else:
                    missing[life.place.queue] += [_Unseen(life.message, eligible)] * gap
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


def _eligible_receives(ledger: Ledger, life: Life, former: Received | None, sight: _Sight) -> tuple[int, ...]:
    began = life.rewind or min(life.message.attempts, key=lambda attempt: attempt.called_ns)
    since = former.receive.called_ns if former else began.called_ns
    return tuple(
        place
        for place, receive in enumerate(ledger.unanswered_receives.get(life.place.queue, ()))
        if receive.answered_ns >= since and receive.called_ns <= sight.answered_ns
    )


def _possible_leases(
    ledger: Ledger, life: Life, former: Received | None, sight: _Sight, eligible: tuple[int, ...]
) -> int:
    """The number of unseen leases that fit between two reports, when all must end by themselves."""
    if not eligible:
        return 0
    receives = ledger.unanswered_receives[life.place.queue]
    shortest = min(receives[place].visibility_ms for place in eligible)
    if former is not None:
        end = end_of_lease(ledger, former, called_before_ns=sight.answered_ns)
        since = former.from_ms if end.ended_by_hand else end.earliest_ms
    elif life.rewind is not None:
        since = ledger.history.wall_ms(life.rewind.called_ns) - CLOCK_MARGIN_MS
    else:
        since = life.place.enqueue_ms + (life.message.attempts[0].delay_ms if life.place.is_first else 0)
    return int((sight.at_ms - since) // shortest)


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


def _unexplained(unseen: list[_Unseen], receives: list[Receive]) -> _Unseen | None:
    """Return an unexplained receive, if every request explains at most its number of messages (bipartite matching)."""
    explained: list[list[_Unseen]] = [[] for _ in receives]

    def explain(one: _Unseen, tried: set[int]) -> bool:
        for place in one.eligible:
            if place in tried:
                continue
            tried.add(place)
            if len(explained[place]) < receives[place].max_messages:
                explained[place].append(one)
                return True
            for at, other in enumerate(explained[place]):
                if explain(other, tried):
                    explained[place][at] = one
                    return True
        return False

    return next((one for one in unseen if not explain(one, set())), None)


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
    over_ms = ledger.history.wall_ms(operation.called_ns) - end.latest_ms
    if over_ms > CLOCK_MARGIN_MS:
        return f"its lease had been over for {over_ms:.0f} ms"
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
    return ledger.history.wall_ms(operation.answered_ns) < end.earliest_ms - CLOCK_MARGIN_MS
