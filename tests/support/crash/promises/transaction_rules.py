"""Rules about half messages: hidden until the commit, decided once, never lost, asked about in earnest."""

from collections.abc import Iterator

from support.crash.promises.history import Check, Decision, EndTransactions, ListHalf
from support.crash.promises.ledger import Ledger, Rule, Violation
from support.crash.promises.places import Message

CROSSING_NS = 3_000_000_000
"""A check may cross a decision on another connection; after this time the check has arrived."""
MOST_FORMER = 3
"""Checkers of a queue that may have registered before a message was sent, and are still there."""

_EVIDENCE = {"already_committed": Decision.COMMIT, "already_rolled_back": Decision.ROLL_BACK}


def check_decisions_kept(ledger: Ledger) -> Iterator[Violation]:
    """All replies and deliveries about a half message agree for ever."""
    for message in _half_messages(ledger):
        told = dict(_evidence(ledger, message))
        if len(told) > 1:
            yield Violation(Rule.DECISION_KEPT, f"{message} was {' and '.join(told.values())}")
        for decision, what in told.items():
            if not ledger.decided(message, decision):
                yield Violation(Rule.DECISION_KEPT, f"{message} was {what}, which nobody had asked for")
        for operation in _operations(ledger, message):
            for number in message.ids & set(operation.failed):
                error = operation.failed[number]
                opposite = _EVIDENCE.get(error)
                if opposite is None or operation.decisions[number] == opposite:
                    decision = operation.decisions[number].name
                    yield Violation(Rule.DECISION_KEPT, f"{decision} of {message} was refused: {error}")


def check_commits_kept(ledger: Ledger) -> Iterator[Violation]:
    """After a drain: committed messages have been delivered."""
    for message in _half_messages(ledger):
        committed = next((what for decision, what in _evidence(ledger, message) if decision is Decision.COMMIT), None)
        if committed is not None and not message.places and not ledger.maybe_purged(message):
            yield Violation(Rule.SEND_KEPT, f"{message} was {committed} and is lost")


def check_half_hidden(ledger: Ledger) -> Iterator[Violation]:
    for message in _half_messages(ledger):
        commits = ledger.decided(message, Decision.COMMIT)
        for received in message.received[:1]:
            if not any(commit.called_ns < received.receive.answered_ns for commit in commits):
                yield Violation(Rule.HALF_HIDDEN, f"{message} was delivered and not committed before")
        for place in message.places:
            soonest_ms = min((ledger.time.earliest_ms(one.called_ns) for one in commits), default=0.0)
            if place.is_first and place.enqueue_ms < soonest_ms:
                yield Violation(Rule.HALF_HIDDEN, f"{message} stands at {place.enqueue_ms}, before its commit")


def check_half_listed(ledger: Ledger) -> Iterator[Violation]:
    """After a drain that began with a list of the half messages: undecided messages were in the list."""
    pages = sorted(ledger.history.of_kind(ListHalf), key=lambda page: page.called_ns)
    listed: dict[str, set[int]] = {}
    called_ns: dict[str, int] = {}
    for page in pages:
        if page.done and not page.start:
            listed[page.queue], called_ns[page.queue] = set(), page.called_ns
        if page.queue in listed:
            listed[page.queue].update(page.message_ids)
    for message in _half_messages(ledger):
        if message.queue not in listed or not message.stored or ledger.maybe_purged(message):
            continue
        before_ns = called_ns[message.queue]
        decided = [
            operation
            for decision in (Decision.COMMIT, Decision.ROLL_BACK)
            for operation in ledger.decided(message, decision)
            if operation.called_ns < before_ns
        ]
        sent = any(attempt.answered_ns < before_ns for attempt in message.attempts)
        if sent and not decided and not message.ids & listed[message.queue]:
            yield Violation(Rule.HALF_KEPT, f"{message} is not among the half messages, and nobody decided it")


def check_half_not_listed(ledger: Ledger) -> Iterator[Violation]:
    """A decided message is no half message any more."""
    owners = {(message.queue, number): message for message in _half_messages(ledger) for number in message.ids}
    for page in ledger.history.of_kind(ListHalf):
        listed = {owners[page.queue, number] for number in page.message_ids if (page.queue, number) in owners}
        for message in listed:
            if _decided_before(ledger, message, page.called_ns):
                yield Violation(Rule.DECISION_KEPT, f"{message} was decided, and is still a half message")


def check_checks(ledger: Ledger) -> Iterator[Violation]:
    for check in ledger.history.of_kind(Check):
        message = ledger.messages.get(("", check.body))
        if message is None or not message.is_half or message.queue != check.queue:
            yield Violation(Rule.CHECK_TRUE, f"asked for {check.body[:40]!r}, which is no half message")
    for message in _half_messages(ledger):
        attempts: set[int] = set()
        most = int(ledger.attributes.get(message.queue, {}).get("max_checks", 0))
        checkers = ledger.checkers[message.queue]
        registered = checkers.called_before(message.called_ns) - MOST_FORMER
        for check in message.checks:
            yield from _false_in(ledger, message, check)
            # Beyond the limit a check follows each checker that was asked and went away.
            replaced = checkers.called_until(check.called_ns) - registered
            if check.attempt in attempts or (most and check.attempt > most + replaced):
                yield Violation(
                    Rule.CHECK_TRUE, f"{message} was asked for with attempt {check.attempt} after {attempts}"
                )
            attempts.add(check.attempt)


def _false_in(ledger: Ledger, message: Message, check: Check) -> Iterator[Violation]:
    first = message.attempts[0]
    first_check_ms = first.first_check_ms or int(ledger.attributes.get(message.queue, {}).get("first_check_ms", 0))
    if check.age_ms < first_check_ms:
        yield Violation(Rule.CHECK_TRUE, f"{message} was asked for after {check.age_ms} of {first_check_ms} ms")
    if (dict(check.headers) if check.headers else None) != message.headers:
        yield Violation(Rule.CHECK_TRUE, f"{message} was asked for with headers {check.headers}")
    if check.enqueue_ms != message.checks[0].enqueue_ms:
        yield Violation(Rule.CHECK_TRUE, f"{message} was asked for with two times")
    if _decided_before(ledger, message, check.called_ns - CROSSING_NS):
        yield Violation(Rule.CHECK_TRUE, f"{message} was asked for when it had been decided")


def _half_messages(ledger: Ledger) -> Iterator[Message]:
    return (message for message in ledger.messages.values() if message.is_half)


def _operations(ledger: Ledger, message: Message) -> Iterator[EndTransactions]:
    return (operation for number in message.ids for operation in ledger.decisions.get(number, ()) if operation.done)


def _evidence(ledger: Ledger, message: Message) -> Iterator[tuple[Decision, str]]:
    """The evidence of a decision, and the decision."""
    for operation in _operations(ledger, message):
        for number in message.ids:
            for decision in (Decision.COMMIT, Decision.ROLL_BACK):
                if operation.worked(number, decision):
                    yield decision, f"acknowledged as {decision.name}"
            refused = _EVIDENCE.get(operation.failed.get(number, ""))
            if refused is not None:
                yield refused, f"told to be {operation.failed[number]}"
    if message.places:
        yield Decision.COMMIT, "delivered"


def _decided_before(ledger: Ledger, message: Message, at_ns: int) -> bool:
    return any(
        operation.done and operation.answered_ns < at_ns
        for decision in (Decision.COMMIT, Decision.ROLL_BACK)
        for operation in ledger.decided(message, decision)
    )
