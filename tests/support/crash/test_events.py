"""Kills on purpose: during an operation without an answer, however fast the broker is."""

import asyncio
import random
from itertools import count

from support.crash.events import Events, strike_during
from support.crash.promises.history import Acknowledge, Delete, DropDelivery, History, Operation, Outcome


def drop() -> DropDelivery:
    return DropDelivery(queue="t", called_ns=0, answered_ns=0, subscription="s", message_id=1, body=b"a")


async def test_a_kill_comes_during_an_operation_however_short() -> None:
    history = History(0.0)
    at_kill: list[list[Operation]] = []
    killing = asyncio.create_task(
        strike_during(
            DropDelivery,
            lambda: at_kill.append(list(history.calls.values())),
            history,
            random.Random(1),
            seconds=600,
        )
    )
    for _ in count():
        # Answered in the next turn of the loop: the shortest operation that there can be.
        with history.under_way(drop()):
            await asyncio.sleep(0)
        with history.under_way(Delete(queue="q", called_ns=0, answered_ns=0, handles=())):
            await asyncio.sleep(0)
        if killing.done():
            break
    await killing

    ((operation,),) = at_kill
    assert isinstance(operation, DropDelivery)


async def test_a_kill_comes_at_last_without_an_operation_of_its_kind() -> None:
    strikes: list[None] = []

    await strike_during(DropDelivery, lambda: strikes.append(None), History(0.0), random.Random(1), seconds=0)

    assert len(strikes) == 1


def test_events_are_counted_once_as_the_history_grows() -> None:
    history = History(0.0)
    events = Events(history)
    assert Acknowledge in events.missing_cut_off()

    deletes = Acknowledge(queue="q", called_ns=0, answered_ns=0, outcome=Outcome.UNKNOWN, handles=(1,))
    history.operations.append(deletes)
    assert Acknowledge not in events.missing_cut_off()
    assert events.happened() == {"deletes in receives of unknown outcome"}

    history.operations.append(drop())
    assert events.happened() == {"deletes in receives of unknown outcome", "dropped deliveries"}
    assert "drops of unknown outcome" in events.missing()
