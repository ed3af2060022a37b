"""Kinds of events that a run of kills must bring, and kills that bring the rare kinds on purpose.

A kill at a random moment seldom meets a rejection or a drop under way, and on a slow machine most lives are too short
for a second check of a half message. So the later lives of a run last until the missing kinds have come, and their
kills come while an operation of a missing kind has no answer.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator

from support.crash.load_topics import FICKLE, FLAKY, HEALTHY, STRICT
from support.crash.promises.broker_time.bounds import CLOCK_MARGIN_MS
from support.crash.promises.history import (
    Acknowledge,
    Check,
    DeadLetter,
    Delete,
    Delivery,
    DropDelivery,
    EndTransactions,
    History,
    Operation,
    Outcome,
    Publish,
    Pushed,
    Receive,
    RetryDelivery,
    Rewind,
    Send,
)

CUT_OFF: dict[type[Operation], str] = {
    Acknowledge: "deletes in receives of unknown outcome",
    DeadLetter: "rejections of unknown outcome",
    DropDelivery: "drops of unknown outcome",
}
"""Kinds that only a kill brings, by the operation that has no answer at the kill."""
IN_A_LIFE = (
    "sends",
    "receives",
    "deletes",
    "deletes in receives",
    "deliveries again",
    "dead letters",
    "rejected messages",
    "redriven messages",
    "rewound messages",
    "commits refused",
    "rollbacks refused",
    "checks repeated",
    "publishes",
    "pushes",
    "pushes without an answer",
    "late copies",
    "dropped deliveries",
    "retries of a delivery",
)
"""Kinds that come in every life that is long enough."""

_REASONS = {"receives": "dead letters", "rejected": "rejected messages", "redrive": "redriven messages"}
_REFUSALS = {"already_committed": "commits refused", "already_rolled_back": "rollbacks refused"}
_MOST_DELAY_SECONDS = 0.004
"""Longest time from a request to the kill: some requests are stored by then, and others are not."""
_LEAST_DELAY_SECONDS = 0.000_1


class Events:
    """The events of a growing history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._counted = 0
        self._counts: Counter[str] = Counter()
        self._published_ns: dict[bytes, int] = {}
        """Answers to publishes, by body."""

    def missing(self) -> list[str]:
        """Return the kinds that have not happened so far."""
        counts = self._count()
        return [kind for kind in (*IN_A_LIFE, *CUT_OFF.values()) if not counts[kind]]

    def happened(self) -> set[str]:
        """Return the kinds that have happened."""
        return {kind for kind, number in self._count().items() if number}

    def is_life_complete(self) -> bool:
        """Return whether each kind that needs no kill has happened."""
        counts = self._count()
        return all(counts[kind] for kind in IN_A_LIFE)

    def missing_cut_off(self) -> list[type[Operation]]:
        """Return the kinds of operations that no kill has cut off so far."""
        counts = self._count()
        return [kind for kind, name in CUT_OFF.items() if not counts[name]]

    def _count(self) -> Counter[str]:
        """Count the operations since the last call: the whole of a long history takes seconds."""
        operations = self._history.operations
        for index in range(self._counted, len(operations)):
            self._counts.update(dict(self._events_of(operations[index])))
        self._counted = len(operations)
        return self._counts

    def _events_of(self, operation: Operation) -> Iterator[tuple[str, int]]:
        if operation.outcome is Outcome.UNKNOWN and type(operation) in CUT_OFF:
            yield CUT_OFF[type(operation)], 1
        if not operation.done:
            return
        match operation:
            case Send():
                yield "sends", 1
            case Receive():
                yield "receives", 1
                yield from Counter(kind for one in operation.deliveries for kind in self._of(operation, one)).items()
            case Acknowledge():
                yield "deletes in receives", 1
            case Delete():
                yield "deletes", 1
            case Rewind():
                yield "rewound messages", operation.messages
            case EndTransactions():
                yield from Counter(_REFUSALS.get(error, error) for error in operation.failed.values()).items()
            case Check():
                yield "checks repeated", operation.attempt > 1
            case Publish():
                yield "publishes", 1
                for body in operation.bodies:
                    self._published_ns.setdefault(body, operation.answered_ns)
            case Pushed():
                yield "pushes", operation.subscription == HEALTHY
                yield "pushes without an answer", operation.subscription == FLAKY and operation.status == 0
            case DropDelivery():
                yield "dropped deliveries", 1
            case RetryDelivery():
                yield "retries of a delivery", 1
            case _:
                pass

    def _of(self, receive: Receive, delivery: Delivery) -> Iterator[str]:
        if delivery.receive_count > 1:
            yield "deliveries again"
        if delivery.origin is not None:
            yield _REASONS.get(delivery.origin.reason, delivery.origin.reason)
        answered_ns = self._published_ns.get(delivery.body) if receive.queue in {STRICT, FICKLE} else None
        # Certainly stored after the answer to the publish, in spite of two clocks.
        if answered_ns is not None and self._history.wall_ms(answered_ns) + CLOCK_MARGIN_MS < delivery.enqueue_ms:
            yield "late copies"


async def strike_during(
    kind: type[Operation], strike: Callable[[], None], history: History, chance: random.Random, *, seconds: float
) -> None:
    """Call ``strike`` while an operation of this kind has no answer, at a random moment after its request.

    An answer before the moment halves the time to the next moment, so that the fastest broker is struck. After
    ``seconds`` without an operation of this kind ``strike`` is called all the same.
    """
    loop = asyncio.get_running_loop()
    struck: asyncio.Future[None] = loop.create_future()
    longest = _MOST_DELAY_SECONDS

    def called(operation: Operation) -> None:
        if type(operation) is not kind:
            return
        delay = chance.uniform(0.0, longest)
        if delay > _LEAST_DELAY_SECONDS:
            loop.call_later(delay, strike_now, operation)
        else:
            # Before the loop reads the sockets again: the answer cannot come first.
            loop.call_soon(strike_now, operation)

    def strike_now(operation: Operation) -> None:
        nonlocal longest
        if struck.done():
            return
        if history.calls.get(id(operation)) is not operation:
            longest /= 2
            return
        strike()
        struck.set_result(None)

    history.on_call = called
    try:
        await asyncio.wait([struck], timeout=seconds)
        if not struck.done():
            strike()
    finally:
        history.on_call = lambda operation: None
