"""The history checker on queues that the broker deletes because they are unused."""

from dataclasses import replace

import pytest

from support.crash.promises.builders import MS, REFUSED, UNKNOWN, Q, broken, delete, delivery, receive, send
from support.crash.promises.checker import check
from support.crash.promises.history import Clear, CreateQueue, GetAttributes, History, Operation, Send
from support.crash.promises.ledger import Rule

AFTER_MS = 60_000
LATER_MS = AFTER_MS + 100


ATTRIBUTES: dict[str, int | str | bool] = {"auto_delete_after_ms": AFTER_MS, "auto_delete_only_empty": False}


def created(at: int = 0, *, queue_id: int = 1, **attributes: int | bool) -> CreateQueue:
    return CreateQueue(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        attributes=ATTRIBUTES | attributes,
        queue_id=queue_id,
    )


def told(at: int, *, queue_id: int = 1) -> GetAttributes:
    return GetAttributes(
        queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS, attributes=ATTRIBUTES, queue_id=queue_id
    )


def absent(at: int) -> GetAttributes:
    return GetAttributes(
        queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS, outcome=REFUSED, error="queue_not_found"
    )


def cleared(at: int) -> Clear:
    return Clear(queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS)


def held(at: int, *, until_ms: int) -> Operation:
    """A receive of the message ``a`` with a lease until a time."""
    (one,) = receive(at, delivery(at, b"a", 100, handle=7)).deliveries
    taken = receive(at, replace(one, next_visible_ms=until_ms))
    return replace(taken, visibility_ms=until_ms - at - 5)


@pytest.mark.parametrize(
    "operations",
    [
        (created(), absent(LATER_MS)),
        (created(), told(100), told(LATER_MS)),
        (created(), send(1, b"a"), absent(1 + LATER_MS)),
        (created(), send(1, b"a"), absent(1 + LATER_MS), created(2 * LATER_MS, queue_id=2), told(130_000, queue_id=2)),
        (created(), send(30_000, b"a", outcome=UNKNOWN), absent(LATER_MS)),
        # Looks are no uses.
        (created(), told(50_000), absent(LATER_MS)),
        (created(), send(1, b"a", delay_ms=5_000), absent(5_000 + LATER_MS)),
        (created(), send(1, b"a"), held(20, until_ms=90_000), cleared(30_000), absent(30_000 + LATER_MS)),
    ],
)
def test_a_queue_that_was_unused_for_its_time_may_be_gone_with_its_messages(operations: tuple[Operation, ...]) -> None:
    assert broken(*operations) == set()


@pytest.mark.parametrize(
    "operations",
    [
        (created(), absent(AFTER_MS - 1_000)),
        (created(auto_delete_after_ms=0), absent(LATER_MS)),
        (created(), told(100), absent(LATER_MS), told(LATER_MS + 100)),
        (created(), absent(LATER_MS), created(70_000), told(70_100)),
        (created(), send(1, b"a"), receive(2), absent(LATER_MS - 1_000)),
    ],
)
def test_a_queue_that_went_too_early_or_came_back_is_found(operations: tuple[Operation, ...]) -> None:
    assert Rule.QUEUE_STATE in broken(*operations)


@pytest.mark.parametrize(
    "use",
    [
        receive(30_000),
        send(30_000, b"a"),
        delete(30_000, 5, failed=(5,)),
        send(1, b"a", delay_ms=30_000),
        held(20, until_ms=30_000),
    ],
    ids=["receive", "send", "delete in vain", "delayed", "in flight"],
)
def test_a_use_begins_the_time_anew(use: Operation) -> None:
    sent = () if isinstance(use, Send) else (send(10, b"a"),)

    assert Rule.QUEUE_STATE in broken(created(), *sent, use, absent(29_000 + AFTER_MS))
    assert Rule.QUEUE_STATE not in broken(created(), *sent, use, absent(30_001 + LATER_MS))


def test_a_message_in_a_queue_that_goes_only_when_empty_is_lost() -> None:
    assert broken(created(auto_delete_only_empty=True), send(1, b"a"), absent(1 + LATER_MS)) == {Rule.SEND_KEPT}


def test_a_message_that_comes_back_after_its_queue_went_is_found() -> None:
    operations = (
        created(),
        send(1, b"a"),
        absent(2 * LATER_MS),
        created(3 * LATER_MS, queue_id=2),
        receive(4 * LATER_MS, delivery(4 * LATER_MS, b"a", 100, handle=7)),
        delete(4 * LATER_MS + 100, 7),
    )

    assert Rule.CLEAR_KEPT in broken(*operations)


def of_two_lives(*operations: Operation) -> set[Rule]:
    """The rules broken in a history with a kill at 40 s; the next life answers at 41 s."""
    history = History(0.0, list(operations), [-100 * MS, 40_000 * MS, 41_000 * MS])
    return {violation.rule for violation in check(history, drained=True)}


def test_a_start_begins_the_time_anew() -> None:
    assert of_two_lives(created(), absent(39_000 + AFTER_MS)) == {Rule.QUEUE_STATE}
    assert of_two_lives(created(), absent(41_000 + LATER_MS)) == set()


def test_a_deletion_that_was_decided_before_the_kill_may_show_after_it() -> None:
    early = created(-30_000)

    assert of_two_lives(early, absent(42_000)) == set()
    assert of_two_lives(early, told(39_000), told(42_000)) == set()
    assert of_two_lives(early, told(42_000), absent(43_000)) == {Rule.QUEUE_STATE}
    assert of_two_lives(created(-10_000), absent(42_000)) == {Rule.QUEUE_STATE}
