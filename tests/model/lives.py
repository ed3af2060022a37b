"""The lives of messages: the events that the log tells of a message, against the calls that the model noted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from model.judge import Judge

from cmqd_reading.births import birth_in
from cmqd_reading.life import Life
from cmqd_segment.records import AnyRecord
from cmqd_types.histories import LifeEvent, LifeKind, MessageHistory
from support.core.naive_broker import NaiveMessage, State

MOST_LIVES = 40
"""Lives that are checked at the end of an example, spread over its messages."""
_STATES = {
    State.ACTIVE: "active",
    State.DELAYED: "delayed",
    State.OVERFLOW: "delayed",
    State.IN_FLIGHT: "in_flight",
    State.HALF: "half",
}


def check_lives(machine: Judge) -> None:
    """Check the lives of the messages of an example."""
    by_id = messages_by_id(machine)
    ids = sorted(by_id)
    rows = machine.log.rows
    for message_id in ids[:: len(ids) // MOST_LIVES + 1]:
        path = path_to(rows, message_id)
        check_life(machine, by_id, path, life_of(rows, path))


def messages_by_id(machine: Judge) -> dict[int, list[NaiveMessage]]:
    """The messages that ever were in a queue; half messages and their commits share an id."""
    by_id: defaultdict[int, list[NaiveMessage]] = defaultdict(list)
    for queue in machine.queues + machine.gone_queues:
        for message in queue.everything:
            by_id[message.message_id].append(message)
    return by_id


def check_life(
    machine: Judge, by_id: Mapping[int, Sequence[NaiveMessage]], path: Sequence[int], history: MessageHistory
) -> None:
    """Check a history against the calls that the model noted; ``path``: the message's ids, oldest first."""
    assert [event.lsn for event in history.events] == sorted(event.lsn for event in history.events)
    told: defaultdict[int, list[str]] = defaultdict(list)
    for event in history.events:
        told[event.message_id].append(shown(event))
    assert told.keys() >= set(path)
    for each, calls in told.items():
        if each in by_id:
            assert calls == [call for message in by_id[each] for call in message.calls]
    _check_places(machine, history)


def life_of(rows: Sequence[Sequence[AnyRecord]], path: Sequence[int]) -> MessageHistory:
    """The history of a message from all rows."""
    life = Life(path)
    for lsn, records in enumerate(rows, 1):
        life.feed(lsn, lsn, records)
    return life.result(len(rows), len(rows))


def shown(event: LifeEvent) -> str:
    """An event in the form of the model's calls."""
    return f"received {event.receive_count}" if event.kind == LifeKind.RECEIVED else event.kind


def path_to(rows: Sequence[Sequence[AnyRecord]], message_id: int) -> list[int]:
    """The ids of a message, oldest first: a moved message and a copy have a former id."""
    path = [message_id]
    while True:
        birth = next(birth for records in rows if (birth := birth_in(records, path[0])) is not None)
        if not birth.parent_id:
            return path
        path.insert(0, birth.parent_id)


def _check_places(machine: Judge, history: MessageHistory) -> None:
    """The last known places are the model's: the queues that have the message now."""
    for place in history.places:
        found = [
            message
            for queue in machine.queues
            for message in queue.messages.values()
            if message.message_id == place.message_id and message.state is not State.DAMAGED
        ]
        for message in found:
            assert place.state == _STATES[message.state]
        damaged = any(
            message.message_id == place.message_id for queue in machine.queues for message in queue.of(State.DAMAGED)
        )
        assert damaged or bool(found) == (place.state in _STATES.values())
