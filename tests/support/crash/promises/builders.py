"""Builders of histories for the tests of the checker."""

from collections.abc import Mapping

from support.crash.promises.checker import check
from support.crash.promises.history import (
    ChangeVisibility,
    CreateQueue,
    Delete,
    Delivery,
    History,
    Operation,
    Origin,
    Outcome,
    Receive,
    Release,
    Send,
)
from support.crash.promises.ledger import Rule

Q = "q"
DONE, REFUSED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.UNKNOWN
VISIBILITY = 1_000
MS = 1_000_000

# An operation is called at ``at`` ms and answered 10 ms later; server and wall clock tell the same time.


def send(
    at: int,
    *bodies: bytes,
    ids: tuple[int, ...] = (),
    outcome: Outcome = DONE,
    number: int = 0,
    delay_ms: int = 0,
    dedup_ids: tuple[str, ...] = (),
) -> Send:
    if outcome is DONE and not ids:
        ids = tuple(at * 100 + index for index in range(len(bodies)))
    return Send(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        bodies=bodies,
        dedup_ids=dedup_ids,
        message_ids=ids if outcome is DONE else (),
        session=9 if number else 0,
        sequence=number,
        delay_ms=delay_ms,
    )


def delivery(
    at: int,
    body: bytes,
    number: int,
    *,
    handle: int,
    count: int = 1,
    enqueued: int = 5,
    first: int | None = None,
    headers: Mapping[str, str] | None = None,
    origin: Origin | None = None,
) -> Delivery:
    return Delivery(
        message_id=number,
        handle=handle,
        body=body,
        headers=headers,
        enqueue_ms=enqueued,
        first_receive_ms=at + 5 if first is None else first,
        next_visible_ms=at + 5 + VISIBILITY,
        receive_count=count,
        origin=origin,
    )


def receive(
    at: int, *deliveries: Delivery, outcome: Outcome = DONE, lost_after: int = 10, most: int = 1, queue: str = Q
) -> Receive:
    return Receive(
        queue=queue,
        called_ns=at * MS,
        answered_ns=(at + lost_after) * MS,
        outcome=outcome,
        max_messages=max(most, len(deliveries)),
        visibility_ms=VISIBILITY,
        deliveries=deliveries,
    )


def receive_a(at: int, *, handle: int, count: int = 1, first: int = 105, number: int = 0) -> Receive:
    """A receive of the message ``a`` that ``send(0, b"a")`` sent."""
    return receive(at, delivery(at, b"a", number, handle=handle, count=count, first=first))


def delete(at: int, *handles: int, outcome: Outcome = DONE, failed: tuple[int, ...] = ()) -> Delete:
    return Delete(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        handles=handles,
        failed=frozenset(failed),
    )


def release(at: int, handle: int, *, counted: bool, outcome: Outcome = DONE, failed: bool = False) -> Release:
    return Release(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        handles=(handle,),
        failed=frozenset([handle] if failed else []),
        counted=counted,
    )


def change(at: int, handle: int, visibility: int, *, outcome: Outcome = DONE, failed: bool = False) -> ChangeVisibility:
    return ChangeVisibility(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        handles=(handle,),
        failed=frozenset([handle] if failed else []),
        visibility_ms=visibility,
        next_visible_ms=at + 5 + visibility if outcome is DONE else 0,
    )


def queue_with(name: str, **attributes: int | str | bool) -> CreateQueue:
    """An acknowledged creation, before everything else."""
    return CreateQueue(queue=name, called_ns=-20 * MS, answered_ns=-10 * MS, attributes=attributes, queue_id=hash(name))


def broken(*operations: Operation, drained: bool = True) -> set[Rule]:
    return {violation.rule for violation in check(History(0.0, list(operations)), drained=drained)}
