"""Lives read from segments with damage: a row that cannot be read is a gap, and no error."""

import contextlib
import sqlite3
from pathlib import Path

import aiosqlite
import pytest
from msgspec import structs

from cmqd.storage.folder.catalog import SealedFile
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.reading import pager
from cmqd.storage.reading.pager import ActorsRead
from cmqd.storage.reading.reading_connection import open_reading
from cmqd_reading.history_search import RowsWanted
from cmqd_reading.life_events import unnamed_number
from cmqd_reading.message_search import MessageQuery
from cmqd_segment.manifest import read_manifest
from cmqd_segment.records import ActorSeen, MessagesReceived, MessagesReleased, MessagesSent, QueueCreated
from cmqd_segment.schema import ACTORS_TABLE
from cmqd_types.actors import Actor
from cmqd_types.attributes import QueueAttributes
from cmqd_types.histories import LifeKind
from cmqd_types.messages import Headers
from support.storage.log_rig import NOW_MS, InProcess, LogRig, OpenProcess, deleted, settings_for

pytestmark = pytest.mark.system


def damage_row(folder: Path, lsn: int, number: int = 1) -> None:
    path = folder / "segments" / f"{number:08d}.db"
    path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE log SET meta_crc = meta_crc + 1 WHERE lsn = ?", (lsn,))


async def told(rig: LogRig, position: int) -> list[tuple[str, int, int]] | None:
    history = (await rig.log.read_history(1000 + position)).history
    return None if history is None else [(event.kind, event.first_lsn, event.last_lsn) for event in history.events]


async def test_damaged_rows_are_told_as_missing(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for position in range(90):
        await rig.store(1, position, 1)
    await rig.checkpoint()
    await rig.log.close()
    for lsn in (5, 6, 80):
        damage_row(folder, lsn)
    rig = await open_process()

    assert await told(rig, 3) == [(LifeKind.SENT, 0, 0), (LifeKind.ROWS_MISSING, 5, 80)]
    assert await told(rig, 6) == [(LifeKind.SENT, 0, 0), (LifeKind.ROWS_MISSING, 80, 80)]
    assert await told(rig, 85) == [(LifeKind.SENT, 0, 0)]
    # The row that stored it is damaged, which the list of lost rows does not have.
    assert await told(rig, 4) is None
    assert not rig.fatal


async def test_segments_that_do_not_name_the_message_are_left_out(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for first in (0, 10, 20, 30):
        for position in range(first, first + 10):
            await rig.store(1, position, 1)
        await rig.log.seal_now()
    rig.log.append([deleted(1, 3, 1)], [], NOW_MS)
    await rig.commit()
    await rig.checkpoint()
    await rig.log.close()
    lsns = [read_manifest(folder).segments[index].first_lsn + 4 for index in (1, 2)]
    for index, lsn in enumerate(lsns):
        damage_row(folder, lsn, 2 + index)
    rig = await open_process()

    assert await told(rig, 3) == [(LifeKind.SENT, 0, 0), (LifeKind.DELETED, 0, 0)]
    assert await told(rig, 12) == [(LifeKind.SENT, 0, 0), (LifeKind.ROWS_MISSING, lsns[0], lsns[0])]
    await rig.log.close()
    rig = await open_process()
    # Before the first search, which keeps the side file.
    damage_side_file(folder, 3)
    assert await told(rig, 3) == [
        (LifeKind.SENT, 0, 0),
        (LifeKind.ROWS_MISSING, lsns[1], lsns[1]),
        (LifeKind.DELETED, 0, 0),
    ]


async def test_only_the_segments_that_name_the_message_are_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    async def noted(path: Path, *, sealed: bool) -> aiosqlite.Connection:
        opened.append(int(path.stem))
        return await open_reading(path, sealed=sealed)

    monkeypatch.setattr(pager, "open_reading", noted)
    process = InProcess()
    rig = LogRig(StorageProcessLog(settings_for(folder), process.start))
    try:
        await rig.open()
        # Segments are searched for a name that is not known.
        rig.log.append([QueueCreated(1, "owner", "orders", QueueAttributes(), NOW_MS)], [], NOW_MS)
        for first in range(0, 60, 10):
            for position in range(first, first + 10):
                await rig.store(1, position, 1)
            if first == 40:
                rig.log.append([deleted(1, 3, 1)], [], NOW_MS)
                await rig.commit()
            await rig.log.seal_now()

        assert await told(rig, 3) == [(LifeKind.SENT, 0, 0), (LifeKind.DELETED, 0, 0)]
        assert opened == [1, 5]
        opened.clear()
        assert await told(rig, 33) == [(LifeKind.SENT, 0, 0)]
        assert opened == [4]
    finally:
        await rig.log.close()
        assert process.task is not None
        await process.task


async def test_clients_of_sealed_rows_are_found_in_the_tables_of_their_segments(open_process: OpenProcess) -> None:
    rig = await open_process()
    worker = Actor("owner", "AKID", "worker-2", "10.0.0.2")
    rig.log.append([ActorSeen(7, worker)], [], NOW_MS)
    await rig.commit()
    await rig.store(1, 0, 1)
    received = MessagesReceived(1, [0, 1], 5, NOW_MS, NOW_MS + 1000, actors=[7])
    rig.log.append([received], [], NOW_MS)
    await rig.commit()
    await rig.log.seal_now()
    rig.log.append([MessagesReleased(1, [5, 1], True, actors=[8])], [], NOW_MS)
    await rig.commit()

    answer = await rig.log.read_history(1000)

    assert answer.history is not None
    assert [None if event.actor is None else unnamed_number(event.actor) for event in answer.history.events] == [
        None,
        7,
        8,
    ]
    # The core knows the clients of rows that are not sealed.
    assert answer.actors == {7: worker}


async def test_only_the_wanted_clients_of_a_segment_are_read(tmp_path: Path) -> None:
    """A segment may know 100,000 clients; as objects, all take a tenth of a second of the storage process."""
    clients = [Actor("owner", "AKID", f"worker-{number}", "10.0.0.2") for number in range(5)]
    async with aiosqlite.connect(tmp_path / "segment.db") as connection:
        await connection.execute(ACTORS_TABLE)
        rows = [(number, *structs.astuple(client)) for number, client in enumerate(clients)]
        await connection.executemany("INSERT INTO actors VALUES (?,?,?,?,?,?)", rows)

        read = ActorsRead([3, 1, 9])
        await read.run(None, connection)

    assert read.actors == {1: clients[1], 3: clients[3]}


def damage_side_file(folder: Path, number: int) -> None:
    path = folder / "segments" / f"{number:08d}.side"
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


async def send_with(rig: LogRig, position: int, headers: Headers) -> None:
    record = MessagesSent(1, position, 1000 + position, NOW_MS, [1], headers=[headers])
    rig.log.append([record], [b"x"], NOW_MS)
    await rig.commit()


async def test_rows_with_large_records_are_read_a_few_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has up to a MiB of headers: hundreds of rows are a whole segment in memory."""
    sizes: list[int] = []
    read_rows = pager.Pager.rows

    async def noted(self: pager.Pager, wanted: RowsWanted, limit: int) -> tuple[list[pager.RawRow], int]:
        rows, upto_lsn = await read_rows(self, wanted, limit)
        sizes.append(sum(len(row[-1]) for row in rows))
        return rows, upto_lsn

    monkeypatch.setattr(pager.Pager, "rows", noted)
    process = InProcess()
    rig = LogRig(StorageProcessLog(settings_for(folder), process.start))
    try:
        await rig.open()
        for position in range(30):
            headers = {"order": "4711"} if position % 10 else {"order": "4711", "x": "x" * 60_000}
            await send_with(rig, position, headers)
        for position in range(30, 60):
            await send_with(rig, position, {"order": "4711", "x": "x" * 60_000})

        found = (await rig.log.find_messages(MessageQuery(header=("order", "4711")))).found
    finally:
        await rig.log.close()
        assert process.task is not None
        await process.task
    assert [message.message_id for message in found.messages] == list(range(1000, 1060))
    assert max(sizes) < pager.ROWS_BYTES + 61_000


async def test_segments_are_not_searched_for_the_names_of_unsealed_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of segments, a search that meets thousands of queues would take minutes."""
    process = InProcess()
    rig = LogRig(StorageProcessLog(settings_for(folder), process.start))
    try:
        await rig.open()
        for position in range(5):
            await rig.store(1, position, 1)
            await rig.log.seal_now()
        queues = [QueueCreated(2 + n, "owner", f"orders-{n}", QueueAttributes(), NOW_MS) for n in range(20)]
        rig.log.append(queues, [], NOW_MS)
        for queue in queues:
            record = MessagesSent(queue.queue_id, 0, 2000 + queue.queue_id, NOW_MS, [1], headers=[{"order": "4711"}])
            rig.log.append([record], [b"x"], NOW_MS)
        await rig.commit()
        looks: list[int] = []
        positions_of = SealedFile.positions_of

        def noted(self: SealedFile, queue_id: int) -> tuple[int, int] | None:
            looks.append(queue_id)
            return positions_of(self, queue_id)

        monkeypatch.setattr(SealedFile, "positions_of", noted)

        answer = await rig.log.find_messages(MessageQuery(header=("order", "4711"), account="owner"))

        assert {owner.name for owner in answer.owners} == {queue.name for queue in queues}
        assert len(answer.found.messages) == 20
        assert not looks
    finally:
        await rig.log.close()
        assert process.task is not None
        await process.task
