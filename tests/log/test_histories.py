"""The lives of messages, read from every log of this project."""

import asyncio

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import HistoryAnswer
from cmqd_segment.manifest import SourceName
from cmqd_segment.records import (
    LeasesEnded,
    MessagesDeleted,
    MessagesMoved,
    MessagesReceived,
    MessagesSent,
    QueueCreated,
    QueueDeleted,
    TransactionsEnded,
)
from cmqd_types.attributes import QueueAttributes
from cmqd_types.histories import LifeKind
from cmqd_types.messages import Origin
from support.storage.log_rig import NOW_MS, LogRig, OpenRig, body

FIRST_ID = 1000
"""Ids of ``sent`` are positions plus this number."""
LEASE = 1 << 60


async def store(rig: LogRig, *records: object, bodies: int = 0) -> int:
    """Commit a row."""
    lsn = rig.log.append(list(records), [body(1, position) for position in range(bodies)], NOW_MS + rig.log.last_lsn)  # pyright: ignore[reportArgumentType]
    await rig.commit()
    return lsn


async def seal(rig: LogRig) -> None:
    await rig.log.seal_now()


def kinds(answer: HistoryAnswer) -> list[str]:
    assert answer.history is not None
    return [event.kind for event in answer.history.events]


async def lived(rig: LogRig) -> None:
    """Forty messages in rows of their own; the 17th is received twice and deleted, in three segments."""
    await store(rig, QueueCreated(1, "admin", "orders", QueueAttributes(), NOW_MS))
    for position in range(40):
        await rig.store(1, position, 1)
    await store(rig, MessagesReceived(1, [0, 40], LEASE, NOW_MS, NOW_MS + 30_000))
    await seal(rig)
    await store(rig, LeasesEnded(1, [LEASE + 17, 1]))
    await store(rig, MessagesReceived(1, [17, 1], LEASE + 40, NOW_MS, NOW_MS + 30_000))
    await seal(rig)
    await store(rig, MessagesDeleted(1, [17, 1], [LEASE + 40, 1], NOW_MS))


LIFE = [LifeKind.SENT, LifeKind.RECEIVED, LifeKind.LEASE_ENDED, LifeKind.RECEIVED, LifeKind.DELETED]


@pytest.mark.parametrize("is_again", [False, True])
async def test_a_life_is_found_by_id_and_by_each_of_its_leases(open_rig: OpenRig, is_again: bool) -> None:
    rig = await open_rig()
    await lived(rig)
    if is_again:
        await rig.log.close()
        rig = await open_rig()

    answer = await rig.log.read_history(FIRST_ID + 17)

    assert kinds(answer) == LIFE
    assert answer.sources == [1]
    assert answer.owners == [SourceName(1, "admin", "orders")]
    for lease in (LEASE + 17, LEASE + 40):
        assert await rig.log.read_history(0, lease) == answer
    assert kinds(await rig.log.read_history(FIRST_ID + 16)) == [LifeKind.SENT, LifeKind.RECEIVED]
    assert kinds(await rig.log.read_history(0, LEASE + 39)) == [LifeKind.SENT, LifeKind.RECEIVED]


@pytest.mark.parametrize("message_id", [1, FIRST_ID - 1, FIRST_ID + 40, 1 << 61])
async def test_no_row_tells_of_an_id_that_was_not_given(open_rig: OpenRig, message_id: int) -> None:
    rig = await open_rig()
    assert (await rig.log.read_history(message_id)).history is None
    await lived(rig)

    assert await rig.log.read_history(message_id) == HistoryAnswer(None, [], [])
    assert (await rig.log.read_history(0, message_id)).history is None


async def test_the_end_of_what_is_known_is_told(open_rig: OpenRig) -> None:
    """The row of a send was reclaimed; its dead letter names the former id."""
    rig = await open_rig()
    for position in range(3):
        await rig.store(1, position, 1)
    await seal(rig)
    await store(rig, QueueCreated(2, "admin", "dead", QueueAttributes(), NOW_MS))
    origin = Origin("orders", FIRST_ID + 1, NOW_MS, 3, "receives")
    moved = MessagesSent(2, 0, FIRST_ID + 3, NOW_MS, [40], origins=[origin])
    await store(rig, MessagesMoved(1, [1, 1]), moved, bodies=1)
    await seal(rig)
    await rig.checkpoint()
    await rig.checkpoint()
    first, *_ = rig.log.closed_segments()
    assert await rig.log.drop_segments([first.number], rig.log.last_lsn) == [first.number]

    for message_id in (FIRST_ID + 1, FIRST_ID + 3):
        answer = await rig.log.read_history(message_id)
        assert kinds(answer) == [LifeKind.SENT, LifeKind.DEAD_LETTERED]
        assert answer.history is not None
        assert [event.lsn == 0 for event in answer.history.events] == [True, False]
        assert SourceName(2, "admin", "dead") in answer.owners
    assert (await rig.log.read_history(FIRST_ID)).history is None
    assert (await rig.log.read_history(FIRST_ID + 4)).history is None


async def test_a_committed_half_message_is_found_at_its_first_store(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 1)
    await store(rig, MessagesSent(1, 1, FIRST_ID + 1, NOW_MS, [40], visible_ms=NOW_MS + 5, half=True), bodies=1)
    for position in range(2, 8):
        await rig.store(1, position, 1)
    committed = MessagesSent(1, 8, FIRST_ID + 1, NOW_MS, [40])
    await store(rig, TransactionsEnded(1, [1, 1], True, NOW_MS), committed, bodies=1)
    await rig.store(1, 9, 1)

    assert kinds(await rig.log.read_history(FIRST_ID + 1)) == [LifeKind.HALF, LifeKind.COMMITTED]
    for position in (0, 2, 5, 7, 9):
        assert kinds(await rig.log.read_history(FIRST_ID + position)) == [LifeKind.SENT]


async def test_the_name_of_a_deleted_queue_is_known_from_a_sealed_segment(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await lived(rig)
    await store(rig, QueueDeleted(1))
    await seal(rig)
    await rig.checkpoint()
    await rig.log.close()
    rig = await open_rig()

    answer = await rig.log.read_history(FIRST_ID + 16)

    assert kinds(answer)[-1] == LifeKind.QUEUE_DELETED
    assert answer.owners == [SourceName(1, "admin", "orders")]


async def test_a_cancelled_reading_ends_and_holds_up_no_other(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await lived(rig)

    readings = [asyncio.ensure_future(rig.log.read_history(FIRST_ID + position)) for position in range(9)]
    await asyncio.sleep(0)
    for reading in readings[:8]:
        reading.cancel()

    assert kinds(await readings[8]) == [LifeKind.SENT, LifeKind.RECEIVED]
    assert await rig.store(1, 40, 1) == rig.log.last_lsn


@pytest.mark.parametrize("turns", [1, 2, 5, 20])
async def test_a_close_ends_a_reading(open_rig: OpenRig, turns: int) -> None:
    rig = await open_rig()
    await lived(rig)
    readings = [asyncio.ensure_future(rig.log.read_history(FIRST_ID + position)) for position in range(5)]
    for _ in range(turns):
        await asyncio.sleep(0)

    await rig.log.close()

    done, pending = await asyncio.wait(readings, timeout=10)
    assert not pending
    assert {type(each.exception()) for each in done} <= {type(None), LogFailed}
    assert not rig.fatal
    again = await open_rig()
    assert kinds(await again.log.read_history(FIRST_ID + 17)) == LIFE
