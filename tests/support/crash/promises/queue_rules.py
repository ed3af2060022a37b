"""The rule about queues: created, changed and deleted as acknowledged.

The operations of a queue come in sequence, because a single worker owns the queue. So the possible states after an
operation are a small set: after a lost answer both the state before and the state after are possible. The same holds
for a queue with automatic deletion, once its time can be over.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from support.crash.promises.history import (
    CreateQueue,
    DeleteQueue,
    GetAttributes,
    Outcome,
    QueueOperation,
    SetAttributes,
)
from support.crash.promises.ledger import Ledger, Rule, Violation
from support.crash.promises.unused import deletion_of_unused

WAITING_COUNTS = ("active", "in_flight", "delayed", "half")


@dataclass(frozen=True)
class _State:
    """A queue that is there, as far as is known: its id (0 = unknown) and some attributes."""

    queue_id: int
    attributes: Mapping[str, int | str | bool]

    def agrees_with(self, told: QueueOperation) -> bool:
        return self.queue_id in {0, told.queue_id} and all(
            told.attributes.get(name) == value for name, value in self.attributes.items()
        )

    def with_changes(self, changes: Mapping[str, int | str | bool]) -> "_State":
        return _State(self.queue_id, {**self.attributes, **changes})


_States: TypeAlias = Sequence[_State | None]
"""None: the queue is not there."""


def check_queues(ledger: Ledger) -> Iterator[Violation]:
    by_queue: dict[str, list[QueueOperation]] = defaultdict(list)
    for operation in sorted(ledger.history.of_kind(QueueOperation), key=lambda one: one.called_ns):
        by_queue[operation.queue].append(operation)
    ids: dict[int, str] = {}
    for queue, operations in by_queue.items():
        states: _States = [None]
        for operation in operations:
            if operation.error == "queue_not_found" and _may_be_unused(ledger, states, operation):
                states = [*states, None]
            if isinstance(operation, CreateQueue) and operation.done:
                if operation.queue_id in ids:
                    owner = ids[operation.queue_id]
                    yield Violation(Rule.QUEUE_STATE, f"{queue} has the id {operation.queue_id}, like {owner}")
                ids[operation.queue_id] = queue
            after = _after(states, operation)
            if not after:
                what = f"{type(operation).__name__} {operation.error or operation.outcome.name.lower()}"
                told = f"id {operation.queue_id}, {dict(operation.attributes)}" if operation.done else ""
                yield Violation(Rule.QUEUE_STATE, f"{queue}: {what} {told} where only {states} were possible")
                break
            states = _distinct(after)


def _may_be_unused(ledger: Ledger, states: _States, operation: QueueOperation) -> bool:
    """True if the broker may have deleted the unused queue, with the attributes of a possible state."""
    times_ms = [int(state.attributes.get("auto_delete_after_ms", 0)) for state in states if state is not None]
    return any(
        deletion_of_unused(ledger.history, operation.queue, after_ms, operation) is not None
        for after_ms in times_ms
        if after_ms
    )


def _distinct(states: _States) -> _States:
    """Return each state once: changes without an answer would otherwise double the states again and again."""
    keys = [state and (state.queue_id, frozenset(state.attributes.items())) for state in states]
    return list(dict(zip(keys, states, strict=True)).values())


def _after(states: _States, operation: QueueOperation) -> _States:
    """The states possible after an operation; empty if the answer contradicts earlier answers."""
    there = [state for state in states if state is not None]
    absent: _States = [state for state in states if state is None]
    if operation.outcome is Outcome.REFUSED:
        match operation.error:
            case "queue_not_found":
                return absent
            case "queue_exists":
                return there
            case _:
                return states
    known = operation.outcome is Outcome.DONE
    match operation:
        case CreateQueue():
            queue_id = operation.queue_id if known else 0
            created: _States = [_State(queue_id, operation.attributes) for _ in absent]
            return created if known else [*states, *created]
        case DeleteQueue():
            deleted: _States = [None for _ in there[:1]]
            return deleted if known else [*states, *deleted]
        case SetAttributes():
            changed: _States = [state.with_changes(operation.attributes) for state in there]
            return changed if known else [*states, *changed]
        case _:
            if not known:
                return states
            return [
                _State(operation.queue_id, operation.attributes) for state in there if state.agrees_with(operation)
            ][:1]


def check_nothing_waits(ledger: Ledger) -> Iterator[Violation]:
    """After a drain: the last reported counts of every queue are 0."""
    last: dict[str, GetAttributes] = {}
    for told in ledger.history.of_kind(GetAttributes):
        if told.queue not in last or last[told.queue].called_ns < told.called_ns:
            last[told.queue] = told
    for queue, told in last.items():
        # A queue that is not there any more tells no counts.
        counts = {name: told.counts.get(name, 0) for name in WAITING_COUNTS}
        if any(counts.values()):
            yield Violation(Rule.QUEUE_STATE, f"{queue} is drained and counts {counts}")
