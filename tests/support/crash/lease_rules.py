"""Rules about leases: one at a time, counted exactly, and handles that mean what they meant."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from support.crash.history import ChangeVisibility, Delete, HandleOperation, Outcome, Receive, Release
from support.crash.ledger import Ledger, Message, Received, Rule, Violation

CLOCK_MARGIN_MS = 250
"""By how much the broker's clock may differ from this machine's wall clock, which a broker slews towards.
Only the rule about handles compares the two; leases are compared by the broker's own times."""


@dataclass(frozen=True, slots=True)
class _LeaseEnd:
    """Between which server times a lease can have ended by itself; and whether it may have been ended by
    hand."""

    earliest_ms: float
    latest_ms: float
    ended_by_hand: bool


def _end_of_lease(ledger: Ledger, received: Received, *, called_before_ns: int) -> _LeaseEnd:
    """As of a moment: operations on the handle that were called before it are taken into account."""
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
            case _:  # a delete ends the message, not only the lease: nothing can be received after it
                pass
    return _LeaseEnd(earliest, latest, by_hand)


def check_one_lease(ledger: Ledger) -> Iterator[Violation]:
    for message in ledger.messages.values():
        for former, later in zip(message.received, message.received[1:], strict=False):
            end = _end_of_lease(ledger, former, called_before_ns=later.receive.answered_ns)
            if not end.ended_by_hand and later.from_ms < end.earliest_ms:
                yield Violation(
                    Rule.ONE_LEASE,
                    f"{message} was leased from {former.from_ms} to {end.earliest_ms:.0f} and again from"
                    f" {later.from_ms} (server time, ms)",
                )


# ---------------------------------------------------------------- counts


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A message was received once more than was seen, between two deliveries."""

    message: Message
    eligible: tuple[int, ...]
    """Places, in the queue's list, of unanswered receives that may have been it."""


def check_counts(ledger: Ledger) -> Iterator[Violation]:
    """Each count is one more than the last, less what was handed back uncounted.

    A receive whose answer was lost counts too, for it was durable; there must be such a receive at that
    time, it kept the message for its visibility timeout, and one receive explains no more messages than it
    asked for.
    """
    missing: dict[str, list[_Unseen]] = defaultdict(list)
    for message in ledger.messages.values():
        former: Received | None = None
        for later in message.received:
            gap = _uncounted_gap(ledger, former, later)
            if gap < 0:
                yield Violation(
                    Rule.COUNT_EXACT,
                    f"{message} came with count {later.delivery.receive_count} after"
                    f" {former.delivery.receive_count if former else 0}",
                )
            elif gap:
                eligible = _eligible_receives(ledger, message, former, later)
                lasted = _possible_leases(ledger, message, former, later, eligible)
                if gap > min(len(eligible), lasted):
                    yield Violation(
                        Rule.COUNT_EXACT,
                        f"{message} came with count {later.delivery.receive_count} after"
                        f" {former.delivery.receive_count if former else 0}; unanswered receives explain"
                        f" {min(len(eligible), lasted)} of the {gap} between",
                    )
                else:
                    missing[message.queue] += [_Unseen(message, eligible)] * gap
            former = later
        yield from _check_first_receive(ledger, message)
    for queue, unseen in missing.items():
        unexplained = _unexplained(unseen, ledger.unanswered_receives[queue])
        if unexplained is not None:
            yield Violation(
                Rule.COUNT_EXACT,
                f"{unexplained.message} was counted once more than seen, and so were more messages of {queue} than"
                " its unanswered receives can explain",
            )


def _uncounted_gap(ledger: Ledger, former: Received | None, later: Received) -> int:
    """How many receives between the two were not seen; the least that fits. Negative: impossible."""
    count = later.delivery.receive_count
    if former is None:
        return count - 1
    handle = former.delivery.handle
    releases = [
        operation
        for operation in ledger.handle_operations.get(handle, ())
        if isinstance(operation, Release) and not operation.counted and operation.may_have_worked(handle)
    ]
    gap = count - former.delivery.receive_count - 1
    if any(release.done for release in releases) or (releases and gap < 0):
        return gap + 1
    return gap


def _eligible_receives(ledger: Ledger, message: Message, former: Received | None, later: Received) -> tuple[int, ...]:
    since = former.receive.called_ns if former else message.called_ns
    return tuple(
        place
        for place, receive in enumerate(ledger.unanswered_receives.get(message.queue, ()))
        if receive.answered_ns >= since and receive.called_ns <= later.receive.answered_ns
    )


def _possible_leases(
    ledger: Ledger, message: Message, former: Received | None, later: Received, eligible: tuple[int, ...]
) -> int:
    """How many unseen leases, none of which anybody could end by hand, fit between two deliveries."""
    if not eligible:
        return 0
    receives = ledger.unanswered_receives[message.queue]
    shortest = min(receives[place].visibility_ms for place in eligible)
    if former is None:
        since: float = later.delivery.enqueue_ms + message.attempts[0].delay_ms
    else:
        end = _end_of_lease(ledger, former, called_before_ns=later.receive.answered_ns)
        since = former.from_ms if end.ended_by_hand else end.earliest_ms
    return int((later.from_ms - since) // shortest)


def _check_first_receive(ledger: Ledger, message: Message) -> Iterator[Violation]:
    """The time of the first receive stays; after an uncounted hand-back it may be that of a later one."""
    if not message.received:
        return
    for received in message.received:
        for operation in ledger.handle_operations.get(received.delivery.handle, ()):
            if isinstance(operation, Release) and not operation.counted:
                return
    first = message.received[0]
    expected = first.delivery.first_receive_ms
    if first.delivery.receive_count == 1 and expected != first.from_ms:
        yield Violation(Rule.COUNT_EXACT, f"{message}: first received at {first.from_ms}, told {expected}")
    for received in message.received:
        if received.delivery.first_receive_ms != expected:
            told = received.delivery.first_receive_ms
            yield Violation(Rule.COUNT_EXACT, f"{message}: first receive was {expected}, then {told}")
            return


def _unexplained(unseen: list[_Unseen], receives: list[Receive]) -> _Unseen | None:
    """One that is left over when each receive explains at most as many as it asked for (bipartite matching)."""
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


def _why_dead(ledger: Ledger, message: Message, received: Received, operation: HandleOperation) -> str | None:
    """Why the handle cannot have been valid when the operation was called; None: it can."""
    handle = received.delivery.handle
    for other in ledger.handle_operations[handle]:
        ends = isinstance(other, Delete | Release)
        if other is not operation and ends and other.worked(handle) and other.answered_ns < operation.called_ns:
            return f"a {type(other).__name__} had ended it"
    for newer in message.received:
        if newer.from_ms > received.from_ms and newer.receive.answered_ns < operation.called_ns:
            return f"{message} had been received again"
    if ledger.purged_before(message, operation.called_ns) is not None:
        return f"{message} had been cleared"
    end = _end_of_lease(ledger, received, called_before_ns=operation.called_ns)
    over_ms = ledger.history.wall_ms(operation.called_ns) - end.latest_ms
    if over_ms > CLOCK_MARGIN_MS:
        return f"its lease had been over for {over_ms:.0f} ms"
    return None


def _surely_live(ledger: Ledger, message: Message, received: Received, operation: HandleOperation) -> bool:
    handle = received.delivery.handle
    for other in ledger.handle_operations[handle]:
        if other is operation or other.called_ns >= operation.answered_ns:
            continue
        if isinstance(other, Delete | Release) and other.may_have_worked(handle):
            return False
    if ledger.maybe_purged(message, before_ns=operation.answered_ns):
        return False
    end = _end_of_lease(ledger, received, called_before_ns=operation.answered_ns)
    return ledger.history.wall_ms(operation.answered_ns) < end.earliest_ms - CLOCK_MARGIN_MS
