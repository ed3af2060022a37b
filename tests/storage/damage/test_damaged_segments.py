"""Damage to segments: broken pages, spoilt rows, files that are missing, cut or unknown."""

import sqlite3
from pathlib import Path

import pytest

from cmqd.storage.storage_errors import DamagedError
from cmqd_segment.records import MessagesPublished, pack_runs
from support.eventually import eventually
from support.storage.damage import CrashedAfter, kinds, spoil
from support.storage.log_rig import NOW_MS, OpenProcess

pytestmark = pytest.mark.system


def zero_page(path: Path, page: int) -> None:
    """Overwrite a page of a database with zeros."""
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))


@pytest.mark.parametrize("page", [2, 3, 4], ids=["log", "segment", "sparse"])
async def test_a_broken_page_of_an_unsealed_segment_stops_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, page: int
) -> None:
    """Sealing alone would meet the page, after the start said that all is well."""
    await crashed_after(await open_process(), 5)
    path = folder / "segments" / "00000001.db"
    if page == 2:
        # The table of the rows stands in the WAL: copy it into the main file first, as sealing does.
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()
        path.with_name(path.name + "-wal").touch()
    zero_page(path, page)
    before = path.read_bytes()

    with pytest.raises(DamagedError, match=r"segments/00000001.db (is damaged|cannot be read)"):
        await open_process()

    assert path.read_bytes() == before, "a refused start changes nothing"
    accepted = await open_process(accept_loss=True)
    assert "set_aside" in kinds(accepted)
    assert accepted.send(1, 50, 1) > 5, "numbers of lost rows are not used again"
    await accepted.log.close()
    assert await open_process()


async def test_a_row_that_replay_needs_with_a_wrong_checksum_stops_the_start(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
    await rig.log.close()
    spoil(folder / "segments" / "00000001.db", "meta", 2)

    with pytest.raises(DamagedError, match=r"row 2 .* does not match its checksum"):
        await open_process()

    accepted = await open_process(accept_loss=True)
    assert [lsn for lsn, _, _ in accepted.rows] == [1, 3]
    assert accepted.report is not None
    assert accepted.report.numbers_jump
    await accepted.log.close()
    again = await open_process()
    assert [lsn for lsn, _, _ in again.rows] == [1, 3]


async def test_a_spoilt_body_is_missing_from_its_page_and_counted(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, 2 * index, 2)
    await rig.checkpoint()
    await rig.log.close()
    spoil(folder / "segments" / "00000001.db", "data", 2)

    again = await open_process()
    messages, missing = await again.page(1, [0, 6])

    assert [message.position for message in messages] == [0, 1, 4, 5]
    assert missing == [2, 2]
    await again.until(lambda: again.states and again.states[-1].damaged_rows == 1)


async def test_a_spoilt_row_costs_the_copies_in_all_queues_and_the_next_rows_stay(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for position in range(3):
        record = MessagesPublished(9, position, 1 + position, NOW_MS, [2], [11, position, 12, 5 + position], 50)
        rig.log.append([record], [b"%02d" % position], NOW_MS)
        await rig.commit()
    await rig.checkpoint()
    await rig.log.close()
    spoil(folder / "segments" / "00000001.db", "data", 2)

    again = await open_process()

    for queue_id, first in ((9, 0), (11, 0), (12, 5)):
        messages, missing = await again.page(queue_id, [first, 3])
        assert [message.body for message in messages] == [b"00", b"02"]
        assert missing == [first + 1, 1]
    await again.until(lambda: again.states and again.states[-1].damaged_rows == 1)


async def test_a_broken_page_of_a_sealed_segment_costs_the_rows_on_it_alone(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    # Fewer commits than a fill of the next segment wants, which could end this segment early.
    for index in range(0, 400, 8):
        await rig.store(1, index, 8, 1500)
    await rig.checkpoint()
    await rig.log.close()
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    place = content.index(b"1/200/1/200/")
    page = place // 4096 * 4096
    content[page : page + 100] = bytes(100)
    path.write_bytes(content)

    again = await open_process()
    wanted = list(range(100, 300))
    messages, missing = await again.page(1, pack_runs(wanted), 1 << 30)

    lost = set(wanted) - {message.position for message in messages}
    assert 200 in lost
    assert len(lost) < 20
    assert pack_runs(sorted(lost)) == missing


@pytest.mark.parametrize("column", ["positions", "lsns"])
async def test_a_sparse_index_of_a_wrong_length_costs_the_messages_of_its_queue_in_the_segment(
    open_process: OpenProcess, folder: Path, column: str
) -> None:
    rig = await open_process()
    for queue_id in (1, 2):
        await rig.store(queue_id, 0, 3)
    await rig.log.seal_now()
    await rig.store(1, 3, 1)
    await rig.log.close()
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute(f"UPDATE sparse SET {column} = substr({column}, 1, 7) WHERE queue_id = 1")
    raw.close()

    again = await open_process()
    for _ in range(2):
        assert await again.page(1, [0, 4]) == ([*(await again.page(1, [3, 1]))[0]], [0, 3]), "at each read"

    assert [message.position for message in (await again.page(2, [0, 3]))[0]] == [0, 1, 2]


async def test_a_missing_segment_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
        await rig.log.seal_now()
    await rig.log.close()
    (folder / "segments" / "00000002.db").unlink()

    with pytest.raises(DamagedError, match=r"00000002.db is missing"):
        await open_process()

    accepted = await open_process(accept_loss=True)
    messages, missing = await accepted.page(1, [0, 3])
    assert [message.position for message in messages] == [0, 2]
    assert missing == [1, 1]
    await accepted.log.close()
    assert await open_process()


async def test_a_segment_cut_short_stops_the_start_and_is_set_aside_when_accepted(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 50, 4000)
    await rig.log.close()
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)

    with pytest.raises(DamagedError, match=r"00000001.db has .* bytes instead of"):
        await open_process()

    accepted = await open_process(accept_loss=True)
    assert "set_aside" in kinds(accepted)
    assert not path.exists()
    assert [aside.name for aside in (folder / "set-aside").iterdir()] == ["00000001.db.0"]


async def test_an_unknown_file_is_set_aside(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.close()
    (folder / "segments" / "00000099.db").write_bytes(b"whatever")

    again = await open_process()

    assert "set_aside" in kinds(again)
    assert (folder / "set-aside" / "00000099.db.0").read_bytes() == b"whatever"
    assert [lsn for lsn, _, _ in again.rows] == [1]


async def test_a_segment_half_sealed_when_the_broker_died_is_sealed_at_the_next_start(
    open_process: OpenProcess,
    crashed_after: CrashedAfter,
) -> None:
    await crashed_after(await open_process(), 5)

    rig = await open_process()
    await eventually(rig.log.closed_segments)

    assert len((await rig.page(1, [0, 50]))[0]) == 50


async def test_a_spoilt_row_is_passed_over_by_a_read_of_published_messages(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for position in range(3):
        record = MessagesPublished(9, position, 1 + position, NOW_MS, [2], [11, position], 50)
        rig.log.append([record], [b"%02d" % position], NOW_MS)
        await rig.commit()
    await rig.checkpoint()
    await rig.log.close()
    spoil(folder / "segments" / "00000001.db", "meta", 2)

    again = await open_process()
    found = [await again.published(9, position, 3) for position in range(3)]

    assert [None if one is None else one.position for one in found] == [0, 2, 2]
    await again.until(lambda: again.states and again.states[-1].damaged_rows == 1)
