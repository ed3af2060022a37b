"""Lives read from a log equal the lives from all of its rows, whatever happened to the messages."""

from collections.abc import Mapping

import pytest
from msgspec import structs

from cmqd_reading.births import births_in
from cmqd_reading.life import Life
from cmqd_segment.records import MessagesReceived, ranges
from cmqd_types.histories import LifeEvent, MessageHistory
from support.core.builders import Rig
from support.core.busy_rig import busy_rig
from support.spark.log_folder import Row, rows_of
from support.storage.log_rig import LogRig, OpenRig

SEGMENTS = 5


def events_of(history: MessageHistory | None) -> list[LifeEvent]:
    """The events without names, which the server puts in, and without the time and number of the row."""
    assert history is not None
    return [
        structs.replace(event, time_ms=0, lsn=0, queue="", from_queue="", subscription="", schedule="")
        for event in history.events
    ]


async def store(rig: LogRig, rows: list[Row]) -> None:
    size = len(rows) // SEGMENTS + 1
    for number, (records, bodies, time_ms) in enumerate(rows, 1):
        rig.log.append(records, bodies, time_ms)
        await rig.commit()
        if number % size == 0:
            await rig.log.seal_now()


def expected_of(rig: Rig, parents: Mapping[int, int], message_id: int) -> list[LifeEvent]:
    path = [message_id]
    while parent := parents[path[0]]:
        path.insert(0, parent)
    life = Life(path)
    for lsn, records in enumerate(rig.log.rows, 1):
        life.feed(lsn, 0, records)
    return events_of(life.result(len(rig.log.rows), 0))


@pytest.mark.parametrize("seed", [1, 5])
async def test_lives_by_id_and_by_lease_are_the_lives_from_all_rows(open_rig: OpenRig, seed: int) -> None:
    busy, _ = busy_rig(seed, 150)
    rig = await open_rig()
    await store(rig, rows_of(busy))
    births = [birth for records in busy.log.rows for birth in births_in(records)]
    parents = {birth.message_id: birth.parent_id for birth in births}
    places = {(birth.source_id, birth.position): birth.message_id for birth in births}

    for message_id in sorted(parents)[::3]:
        answer = await rig.log.read_history(message_id)
        assert events_of(answer.history) == expected_of(busy, parents, message_id), message_id
    received = [record for records in busy.log.rows for record in records if isinstance(record, MessagesReceived)]
    for record in received[::4]:
        ((start, _), *_) = ranges(record.positions)
        answer = await rig.log.read_history(0, record.first_lease)
        message_id = places[record.queue_id, start]
        assert events_of(answer.history) == expected_of(busy, parents, message_id), message_id
