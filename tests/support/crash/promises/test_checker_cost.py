"""The checker takes time and memory in proportion to a history: a long run of kills has a million operations.

Each history is a stretch of operations, again and again. The lines that the checker runs are counted, as no clock of a
busy machine repeats.
"""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from support.cases import each_case
from support.crash.promises.builders import MS, UNKNOWN, Q, delete, delivery, queue_with, receive, send
from support.crash.promises.checker import check
from support.crash.promises.history import (
    Clear,
    Decision,
    DropDelivery,
    EndTransactions,
    GetSubscription,
    History,
    ListHalf,
    Operation,
    Origin,
    Publish,
    Pushed,
    Rewind,
    Send,
    SetAttributes,
    StartRedrive,
    Subscribe,
)

DEAD, T, URL = "dead", "t", "to-url"
STRETCH_MS = 20_000
FEW, MANY = 25, 100
MOST_GROWTH = 1.5
"""Growth of the cost of a stretch from few to many of them; a search through all stretches would make it nearly 4."""
TOPIC = Subscribe(queue=T, called_ns=-15 * MS, answered_ns=-10 * MS, subscription=URL, endpoint="http://localhost/")


def times(at: int) -> Any:
    return {"called_ns": at * MS, "answered_ns": (at + 10) * MS}


def redriven(at: int, n: int) -> Iterator[Operation]:
    """A message dies and comes back."""
    yield send(at, b"%d" % n, ids=(n,))
    yield receive(at + 100, delivery(at + 100, b"%d" % n, n, handle=n, enqueued=at + 5))
    died = Origin(queue=Q, message_id=n, enqueue_ms=at + 5, receive_count=1, reason="receives")
    dead = delivery(at + 2_000, b"%d" % n, n + 1, handle=n + 1, enqueued=at + 1_105, origin=died)
    yield receive(at + 2_000, dead, queue=DEAD)
    yield StartRedrive(queue=DEAD, **times(at + 4_000))
    back = Origin(queue=DEAD, message_id=n + 1, enqueue_ms=at + 1_105, receive_count=1, reason="redrive")
    again = delivery(at + 5_000, b"%d" % n, n + 2, handle=n + 2, enqueued=at + 4_005, origin=back)
    yield receive(at + 5_000, again)
    yield delete(at + 5_500, n + 2)


def rewound(at: int, n: int) -> Iterator[Operation]:
    """A message is deleted, brought back and deleted."""
    yield send(at, b"%d" % n, ids=(n,))
    for handle, after in ((n, 100), (n + 1, 1_000)):
        yield receive(at + after, delivery(at + after, b"%d" % n, n, handle=handle, enqueued=at + 5))
        yield delete(at + after + 200, handle)
        yield Rewind(queue=Q, time_ms=at if handle == n else at + 900, messages=handle == n, **times(at + after + 400))


def cleared(at: int, n: int) -> Iterator[Operation]:
    """A message goes with a clear, in spite of its delete."""
    yield send(at, b"%d" % n, ids=(n,))
    yield receive(at + 100, delivery(at + 100, b"%d" % n, n, handle=n, enqueued=at + 5))
    yield Clear(queue=Q, **times(at + 200))
    yield delete(at + 300, n, failed=(n,))


def unanswered(at: int, n: int) -> Iterator[Operation]:
    """A backlog is received without an answer, and then once more."""
    bodies = [b"%d-%d" % (n, index) for index in range(4)]
    yield send(at, *bodies, ids=tuple(range(n, n + 4)))
    for lost in range(6):
        yield receive(at + 100 + 10 * lost, outcome=UNKNOWN, lost_after=50)
    for index, body in enumerate(bodies):
        came = delivery(at + 2_000, body, n + index, handle=n + index, count=2, enqueued=at + 5, first=at + 105)
        yield receive(at + 2_000, came)
        yield delete(at + 2_100, n + index)


def dropped(at: int, n: int) -> Iterator[Operation]:
    """A published message fails, is counted and is dropped."""
    body = b"%d" % n
    yield Publish(queue=T, bodies=(body,), tags=(frozenset(),), message_ids=(n,), matched=(1,), **times(at))
    yield Pushed(
        queue=T,
        subscription=URL,
        message_id=n,
        body=body,
        tags=frozenset(),
        status=503,
        is_signed=True,
        started_s=at // 1_000,
        **times(at + 20),
    )
    yield GetSubscription(queue=T, subscription=URL, counts={"in_retry": 1, "waiting": 0}, **times(at + 3_000))
    yield DropDelivery(queue=T, subscription=URL, message_id=n, body=body, **times(at + 4_000))


def decided(at: int, n: int) -> Iterator[Operation]:
    """A half message is listed and rolled back."""
    yield Send(queue=Q, bodies=(b"%d" % n,), half=True, message_ids=(n,), **times(at))
    yield ListHalf(queue=Q, start=0, message_ids=(n,), **times(at + 100))
    yield EndTransactions(queue=Q, decisions={n: Decision.ROLL_BACK}, **times(at + 200))


def changed(at: int, n: int) -> Iterator[Operation]:
    """A queue is changed without an answer, and back; no answer tells the attributes."""
    small = {"max_message_bytes": 1_024}
    yield SetAttributes(queue=Q, attributes=small, outcome=UNKNOWN, **times(at))
    yield SetAttributes(queue=Q, attributes={"max_message_bytes": 65_536}, **times(at + 100))


STRETCHES: dict[str, Callable[[int, int], Iterator[Operation]]] = {
    stretch.__name__: stretch for stretch in (redriven, rewound, cleared, unanswered, dropped, decided, changed)
}
QUEUES = {
    "redriven": (queue_with(DEAD), queue_with(Q, dead_letter_queue=DEAD, dead_letter_max_receives=1)),
    "rewound": (queue_with(Q, rewind_ms=8_000),),
    "dropped": (TOPIC,),
}


def lines_of(name: str, count: int) -> int:
    """Return the number of lines that the check of a history runs."""
    operations: list[Operation] = [*QUEUES.get(name, (queue_with(Q),))]
    for index in range(count):
        operations += STRETCHES[name](index * STRETCH_MS, (index + 1) * 10)
    history = History(0.0, operations)
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        del frame, arg
        lines += event == "line"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        violations = check(history, drained=name != "dropped")
    finally:
        sys.settrace(former)
    assert violations == [], "\n".join(map(str, violations))
    return lines


@each_case("name", list(STRETCHES))
def test_the_cost_of_a_stretch_does_not_grow_with_the_history(name: str) -> None:
    few, many = lines_of(name, FEW) / FEW, lines_of(name, MANY) / MANY
    print(f"{name}: {few:.0f} and {many:.0f} lines a stretch")

    assert many < few * MOST_GROWTH
