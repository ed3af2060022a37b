"""Damage is reported, set aside and never silently skipped."""

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from cmqd.log.errors import LogFailed
from cmqd.storage.errors import DamagedError, FolderFormatError
from cmqd.storage.process_log import StorageProcessLog
from cmqd.storage.sealer import truncate_wal
from cmqd.storage.segment import WritableSegment
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import MAGIC, frame
from cmqd_segment.manifest import MANIFEST_FORMAT, SegmentState, read_manifest, write_manifest
from cmqd_segment.records import MessagesPublished, pack_runs
from cmqd_segment.rows import encode_records, meta_checksum
from support.eventually import eventually
from support.log_rig import NOW_MS, InProcess, LogRig, OpenProcess, ProcessPlace, settings_for

pytestmark = pytest.mark.system

FRAME_BYTES = 24 + 4096


async def crash(rig: LogRig) -> None:
    assert isinstance(rig.log, StorageProcessLog)
    await ProcessPlace(Path("unused")).crash(rig.log)


def flip(path: Path, offset: int) -> None:
    """Turn one bit over."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def active_wal(folder: Path) -> Path:
    """The WAL with the most in it."""
    return max((folder / "segments").glob("*.db-wal"), key=lambda path: path.stat().st_size)


def kinds(rig: LogRig) -> list[str]:
    assert rig.report is not None
    return [finding.kind for finding in rig.report.findings]


async def crashed_after(rig: LogRig, commits: int) -> None:
    for index in range(commits):
        await rig.store(1, 10 * index, 10, 1000)
    await crash(rig)


def in_another_boot(folder: Path) -> None:
    """Let the manifest be one that was written before the machine started anew."""
    write_manifest(folder, structs.replace(read_manifest(folder), boot_id="another boot"))


def manifest_knows(folder: Path, first_lsn: int, last_lsn: int) -> None:
    """Let the manifest know of rows of the active segment, as it does some seconds after they were committed."""
    manifest = read_manifest(folder)
    segments = [
        structs.replace(entry, first_lsn=first_lsn, last_lsn=last_lsn, rows=last_lsn - first_lsn + 1)
        if entry.state is SegmentState.ACTIVE
        else entry
        for entry in manifest.segments
    ]
    write_manifest(folder, structs.replace(manifest, segments=segments))


# The WAL of the active segment


async def test_a_flipped_bit_in_the_active_wal_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    """SQLite alone would drop the nine tenths behind it in silence."""
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 10)
    before = wal.read_bytes()

    with pytest.raises(DamagedError, match=r"WAL of segment .* is damaged"):
        await open_process()

    assert wal.read_bytes() == before, "a refused start changes nothing"
    with pytest.raises(DamagedError):
        await open_process()


async def test_a_loss_that_is_accepted_keeps_what_stands_before_it_and_a_copy_of_the_rest(
    open_process: OpenProcess, folder: Path
) -> None:
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 10)
    damaged = wal.read_bytes()

    rig = await open_process(accept_loss=True)

    assert rig.report is not None
    assert rig.report.numbers_jump
    assert {"unclean_stop", "damaged", "set_aside"} <= set(kinds(rig))
    assert [path.read_bytes() for path in (folder / "set-aside").glob("*-wal.*")] == [damaged]
    kept = len(rig.rows)
    assert 1 <= kept <= 4
    messages, missing = await rig.page(1, [0, 400], 1 << 30)
    assert len(messages) == 10 * kept
    assert missing == [10 * kept, 400 - 10 * kept]
    assert rig.send(1, 1000, 1) > 40, "numbers of lost rows are not used again"
    await rig.commit()
    await crash(rig)

    again = await open_process()
    assert again.report is not None
    assert not again.report.numbers_jump, "an accepted loss is no longer news"
    assert len(again.rows) == kept + 1


async def test_an_accepted_loss_is_no_news_even_if_the_broker_dies_at_once(
    open_process: OpenProcess, folder: Path
) -> None:
    """Before the damaged segment is sealed, which gives its WAL up."""
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 10)
    first = LogRig(ProcessPlace(folder, accept_loss=True).log())
    await first.log.open()
    await crash(first)

    again = await open_process()

    assert again.report is not None
    assert "damaged" not in kinds(again)
    assert not again.report.numbers_jump
    assert 1 <= len(again.rows) <= 4
    # By this the loop process knows that its numbers may not have leapt yet.
    assert again.report.last_lsn > 40


async def opened_here(folder: Path, **settings: object) -> None:
    """Open the folder in this process, and stop as a crash would."""
    process = InProcess()
    log = StorageProcessLog(settings_for(folder, **settings), process.start)
    try:
        await log.open()
    finally:
        await log.kill()
        assert process.task is not None
        await process.task


async def test_what_is_lost_is_in_the_manifest_before_the_damage_can_no_longer_be_seen(
    open_process: OpenProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start after a crash in between would know of no loss, and use its numbers again. And what the WAL held is
    synced before it goes, although commits are not.
    """
    await crashed_after(await open_process(durability="os"), 40)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 10)
    told: list[tuple[int, int]] = []

    def noted(segment: WritableSegment) -> bool:
        (synchronous,) = segment.connection.raw.execute("PRAGMA synchronous").fetchone()
        told.append((len(read_manifest(folder).losses), synchronous))
        return truncate_wal(segment)

    monkeypatch.setattr("cmqd.storage.open_log.truncate_wal", noted)
    await opened_here(folder, accept_loss=True, durability="os")

    assert told == [(1, 2)], "one loss, and synchronous=FULL"


async def test_a_full_disk_does_not_keep_a_broker_from_starting_after_a_loss(
    open_process: OpenProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 10)
    tried: list[int] = []

    def full(segment: WritableSegment) -> bool:
        tried.append(segment.number)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("cmqd.storage.open_log.truncate_wal", full)
    await opened_here(folder, accept_loss=True)

    assert tried == [1]


async def test_a_torn_last_commit_is_dropped_and_the_start_goes_on(open_process: OpenProcess, folder: Path) -> None:
    """It was not durable when the power failed, or the disk took back what it had promised for one commit only."""
    await crashed_after(await open_process(), 10)
    in_another_boot(folder)
    wal = active_wal(folder)
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - FRAME_BYTES // 2)

    rig = await open_process()

    assert rig.report is not None
    assert not rig.report.numbers_jump
    assert [lsn for lsn, _, _ in rig.rows] == list(range(1, 10))
    assert rig.send(1, 90, 1) == 10


async def test_a_damaged_header_of_the_wal_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    await crashed_after(await open_process(), 10)
    flip(active_wal(folder), 17)

    with pytest.raises(DamagedError, match=r"WAL"):
        await open_process()


async def test_a_missing_wal_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    await crashed_after(await open_process(), 10)
    active_wal(folder).unlink()

    with pytest.raises(DamagedError, match=r"WAL of segment .* is missing"):
        await open_process()


CUTS = {"emptied": None, "cut in the middle": 20, "cut by a commit": 4, "cut by a byte": 0}


@pytest.mark.parametrize("frames", CUTS.values(), ids=CUTS.keys())
async def test_a_shorter_wal_than_the_writer_left_stops_every_start(
    open_process: OpenProcess, folder: Path, frames: int | None
) -> None:
    """The manifest tells of no row; the WAL-index does, and a refused start must not make it forget."""
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    with wal.open("r+b") as file:
        file.truncate(0 if frames is None else wal.stat().st_size - max(1, frames * FRAME_BYTES))

    for _ in range(2):
        with pytest.raises(DamagedError, match=r"WAL of segment .* were durable: (its rows after \d+|all its rows)"):
            await open_process()
    assert not (folder / "inspection").exists()

    accepted = await open_process(accept_loss=True)
    assert accepted.report is not None
    assert accepted.report.numbers_jump
    kept = len(accepted.rows)
    assert 0 <= kept < 10
    assert accepted.send(1, 100, 1) > 10, "numbers of lost rows are not used again"
    await accepted.commit()
    await crash(accepted)
    again = await open_process()
    assert again.report is not None
    assert not again.report.numbers_jump, "an accepted loss is no longer news"
    assert len(again.rows) == kept + 1


async def test_a_shorter_wal_is_found_on_a_file_system_without_links(
    open_process: OpenProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - 4 * FRAME_BYTES)

    def refuse(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("cmqd.storage.inspection.os.link", refuse)

    with pytest.raises(DamagedError, match=r"its rows after 9 are gone"):
        await opened_here(folder)
    assert not (folder / "inspection").exists()


async def test_a_missing_wal_of_a_retired_segment_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    """A sealed one needs none, but SQLite would have marked the index before it removed the WAL."""
    rig = await open_process()
    await crashed_after(rig, 10)
    manifest = read_manifest(folder)
    segments = [
        structs.replace(entry, state=SegmentState.RETIRED) if entry.state is SegmentState.ACTIVE else entry
        for entry in manifest.segments
    ]
    write_manifest(folder, structs.replace(manifest, segments=segments))
    active_wal(folder).unlink()

    with pytest.raises(DamagedError, match=r"is missing, but \d+ frames of it were durable: all its rows are gone"):
        await open_process()


async def test_a_flipped_bit_in_the_last_commit_stops_every_start(open_process: OpenProcess, folder: Path) -> None:
    """Without the WAL-index nothing could tell it from a commit that was under way."""
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size - 100)

    for _ in range(2):
        with pytest.raises(DamagedError, match=r"its rows after 9 are gone"):
            await open_process()


async def test_a_start_that_accepts_a_loss_and_dies_at_once_leaves_a_folder_that_tells_of_it(
    open_process: OpenProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the database destroys the only witness, so the manifest must tell of the loss before that."""
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - 4 * FRAME_BYTES)

    async def die(*_arguments: object, **_named: object) -> None:
        raise LogFailed("killed here")

    monkeypatch.setattr("cmqd.storage.open_log.open_connection", die)
    with pytest.raises(LogFailed, match="killed here"):
        await opened_here(folder, accept_loss=True)

    assert [(entry.first_lsn, entry.reason) for entry in read_manifest(folder).losses] == [
        (10, "may have been lost at the end")
    ]


@pytest.mark.parametrize("left", ["no index", "another boot"])
async def test_rows_that_only_the_manifest_knows_of_stop_the_start(
    open_process: OpenProcess, folder: Path, left: str
) -> None:
    """A folder restored without its WAL-index, or after the machine started anew."""
    await crashed_after(await open_process(), 10)
    manifest_knows(folder, 1, 8)
    wal = active_wal(folder)
    wal.write_bytes(b"")
    if left == "no index":
        wal.with_name(wal.name.replace("-wal", "-shm")).unlink()
    else:
        in_another_boot(folder)

    for _ in range(2):
        with pytest.raises(DamagedError, match=r"rows 1 to 8 are missing"):
            await open_process()

    accepted = await open_process(accept_loss=True)
    assert accepted.send(1, 100, 1) > 10


async def test_without_fsync_an_emptied_wal_after_a_loss_of_power_is_told_and_the_start_goes_on(
    open_process: OpenProcess, folder: Path
) -> None:
    await crashed_after(await open_process(durability="os"), 10)
    manifest_knows(folder, 1, 8)
    active_wal(folder).write_bytes(b"")
    in_another_boot(folder)

    rig = await open_process(durability="os")

    assert rig.report is not None
    assert "lost" in kinds(rig)
    assert rig.report.numbers_jump
    assert rig.send(1, 100, 1) > 10


async def test_without_fsync_an_emptied_wal_in_the_same_boot_stops_the_start(
    open_process: OpenProcess, folder: Path
) -> None:
    """No power was lost, so the page cache cannot have lost anything."""
    await crashed_after(await open_process(durability="os"), 10)
    active_wal(folder).write_bytes(b"")

    with pytest.raises(DamagedError, match=r"is empty, but \d+ frames"):
        await open_process(durability="os")


async def test_commits_after_a_switch_of_segments_are_found(open_process: OpenProcess, folder: Path) -> None:
    """The manifest may not know yet that the prepared segment became the active one."""
    rig = await open_process(segment_bytes=100_000)
    for index in range(200):
        await rig.store(1, index, 1, 2000)
    await crash(rig)

    again = await open_process(segment_bytes=100_000)

    sealed = again.log.closed_segments()
    assert len(sealed) >= 2
    messages, missing = await again.page(1, [0, 200], 1 << 30)
    assert len(messages) == 200
    assert missing == []


# The main file of a segment that is not sealed


def zero_page(path: Path, page: int) -> None:
    """Overwrite a page of a database with zeros."""
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))


@pytest.mark.parametrize("page", [2, 3, 4], ids=["log", "segment", "sparse"])
async def test_a_broken_page_of_an_unsealed_segment_stops_the_start(
    open_process: OpenProcess, folder: Path, page: int
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


# Rows


def spoil(path: Path, column: str, lsn: int) -> None:
    """Change a blob of a row behind the checksums' back, as a defect of memory or disk would."""
    path.chmod(0o644)
    raw = sqlite3.connect(path, isolation_level=None)
    (value,) = raw.execute(f"SELECT {column} FROM log WHERE lsn = ?", (lsn,)).fetchone()
    raw.execute(f"UPDATE log SET {column} = ? WHERE lsn = ?", (value[:-1] + bytes([value[-1] ^ 1]), lsn))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()


async def test_a_row_that_replay_needs_with_a_wrong_checksum_stops_the_start(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
    await rig.log.close()
    spoil(folder / "segments" / "00000001.db", "meta", 2)

    with pytest.raises(DamagedError, match=r"row 2 .* wrong checksum"):
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
    for index in range(400):
        await rig.store(1, index, 1, 1500)
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


# Files


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


async def test_a_file_that_nobody_knows_is_set_aside(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.close()
    (folder / "segments" / "00000099.db").write_bytes(b"whatever")

    again = await open_process()

    assert "set_aside" in kinds(again)
    assert (folder / "set-aside" / "00000099.db.0").read_bytes() == b"whatever"
    assert [lsn for lsn, _, _ in again.rows] == [1]


@pytest.mark.parametrize("text", [b"", b"{", b'{"format": 1, "segments": 7}'], ids=["empty", "cut", "wrong"])
async def test_a_damaged_manifest_stops_the_start_and_is_made_anew_when_accepted(
    open_process: OpenProcess, folder: Path, text: bytes
) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
        await rig.log.seal_now()
    await rig.checkpoint()
    await rig.log.close()
    (folder / "manifest").write_bytes(text)

    with pytest.raises(DamagedError, match=r"manifest"):
        await open_process()

    accepted = await open_process(accept_loss=True)
    assert accepted.report is not None
    assert accepted.report.checkpoint_lsn == 3
    assert accepted.report.numbers_jump
    assert len((await accepted.page(1, [0, 3]))[0]) == 3


async def test_a_missing_manifest_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.close()
    (folder / "manifest").unlink()

    with pytest.raises(DamagedError, match=r"manifest is missing"):
        await open_process()


async def test_a_byte_in_the_manifest_that_is_no_text_is_damage_that_can_be_accepted(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 5)
    await rig.checkpoint()
    await rig.store(1, 5, 5)
    await rig.log.close()
    whole = (folder / "manifest").read_bytes()
    damaged = whole.replace(b'"fsync"', b'"f\xffync"')
    (folder / "manifest").write_bytes(damaged)

    with pytest.raises(DamagedError, match=r"manifest cannot be read: .* Put back the manifest of a copy"):
        await open_process()
    assert (folder / "manifest").read_bytes() == damaged
    rig = await open_process(accept_loss=True)

    assert [message.position for message in (await rig.page(1, [0, 10]))[0]] == list(range(10))
    assert (folder / "set-aside" / "manifest.0").read_bytes() == damaged
    await rig.log.close()
    assert (await open_process()).report is not None
    assert read_manifest(folder).log_id in whole.decode()


async def test_a_folder_of_a_newer_format_is_refused_and_left_alone(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.close()
    write_manifest(folder, structs.replace(read_manifest(folder), format=MANIFEST_FORMAT + 1))
    newer = (folder / "manifest").read_bytes()

    for accept_loss in (False, True):
        with pytest.raises(FolderFormatError, match=r"format 3"):
            await open_process(accept_loss=accept_loss)
    assert (folder / "manifest").read_bytes() == newer


def write_unknown_record(folder: Path, lsn: int) -> None:
    """Give a row of a sealed segment a record that no version knows, under a right checksum."""
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        ((time_ms, messages, queues),) = raw.execute("SELECT time_ms, messages, queues FROM log WHERE lsn = ?", (lsn,))
        meta = encode_records([[99, 1]])
        checksum = meta_checksum(lsn, time_ms, messages, queues, meta)
        raw.execute("UPDATE log SET meta = ?, meta_crc = ? WHERE lsn = ?", (meta, checksum, lsn))


async def test_a_record_of_a_newer_version_is_no_damage(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
    await rig.log.close()
    write_unknown_record(folder, 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}

    for accept_loss in (False, True):
        with pytest.raises(FolderFormatError, match=r"records of kind 99.* use a newer cmqd"):
            await open_process(accept_loss=accept_loss)
    assert {path: path.read_bytes() for path in before} == before
    assert not (folder / "set-aside").exists()


async def test_a_record_of_a_newer_version_below_the_checkpoint_is_no_lost_message(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
    await rig.checkpoint()
    await rig.log.close()
    write_unknown_record(folder, 2)
    rig = await open_process()

    rig.ask(1, [1, 1])

    await rig.until(lambda: rig.fatal)
    assert "use a newer cmqd" in str(rig.fatal[0])
    assert not rig.pages


async def test_a_checkpoint_part_of_a_newer_version_is_no_damage(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    lsn = await rig.checkpoint()
    await rig.log.close()
    (path,) = (folder / "checkpoints").glob("*.ckpt")
    parts = [CheckpointHeader(lsn, NOW_MS, 1, 1, 1), [99, lsn], CheckpointEnd(lsn, 2)]
    path.write_bytes(MAGIC + b"".join(frame(msgspec.msgpack.encode(part)) for part in parts))

    for accept_loss in (False, True):
        with pytest.raises(FolderFormatError, match=r"parts of kind 99.* use a newer cmqd"):
            await open_process(accept_loss=accept_loss)
    assert path.exists()


# Checkpoints


async def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(2):
        await rig.store(1, index, 1)
        await rig.checkpoint()
    await rig.store(1, 2, 1)
    await rig.log.close()
    newest = max((folder / "checkpoints").iterdir())
    flip(newest, newest.stat().st_size // 2)

    again = await open_process()

    assert again.report is not None
    assert again.report.checkpoint_lsn == 1
    assert not again.report.numbers_jump
    assert {"checkpoint_damaged", "set_aside"} <= set(kinds(again))
    assert [lsn for lsn, _, _ in again.rows] == [2, 3]


async def test_without_any_good_checkpoint_the_whole_log_is_replayed_if_it_is_there(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.checkpoint()
    await rig.log.close()
    for path in (folder / "checkpoints").iterdir():
        path.unlink()

    again = await open_process()

    assert again.report is not None
    assert again.report.checkpoint_lsn == 0
    assert [lsn for lsn, _, _ in again.rows] == [1]


async def test_without_a_checkpoint_over_dropped_segments_the_start_stops(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.seal_now()
    await rig.checkpoint()
    assert await rig.log.drop_segments([1], 0) == [1]
    await rig.log.close()
    for path in (folder / "checkpoints").iterdir():
        flip(path, 20)

    with pytest.raises(DamagedError, match=r"no usable checkpoint"):
        await open_process()


async def test_only_the_two_newest_checkpoints_are_kept(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(5):
        await rig.store(1, index, 1)
        await rig.checkpoint()

    manifest = read_manifest(folder)
    assert [entry.lsn for entry in manifest.checkpoints] == [4, 5]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        Path(entry.file).name for entry in manifest.checkpoints
    ]


# Power


async def test_without_fsync_a_crash_of_the_broker_alone_loses_nothing(open_process: OpenProcess) -> None:
    rig = await open_process(durability="os")
    for index in range(20):
        await rig.store(1, index, 1)
    await crash(rig)

    again = await open_process(durability="os")
    assert len(again.rows) == 20


async def test_without_fsync_a_loss_with_the_power_is_told_and_the_start_goes_on(
    open_process: OpenProcess, folder: Path
) -> None:
    await crashed_after(await open_process(durability="os"), 20)
    in_another_boot(folder)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 2)

    rig = await open_process(durability="os")

    assert rig.report is not None
    assert "lost" in kinds(rig)
    assert rig.report.numbers_jump
    assert 0 < len(rig.rows) < 20


async def test_what_the_power_took_is_no_damage_at_the_next_start_either(
    open_process: OpenProcess, folder: Path
) -> None:
    await crashed_after(await open_process(durability="os"), 20)
    in_another_boot(folder)
    wal = active_wal(folder)
    flip(wal, wal.stat().st_size // 2)
    first = LogRig(ProcessPlace(folder, durability="os").log())
    await first.log.open()
    await crash(first)

    again = await open_process(durability="os")

    assert 0 < len(again.rows) < 20


async def test_the_manifest_knows_the_state_of_each_file(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.seal_now()
    await rig.store(1, 1, 1)

    manifest = read_manifest(folder)

    assert not manifest.clean
    assert [entry.state for entry in manifest.segments] == [
        SegmentState.SEALED,
        SegmentState.ACTIVE,
        SegmentState.PREPARED,
    ]
    sealed = manifest.segments[0]
    assert (sealed.first_lsn, sealed.last_lsn, sealed.rows, sealed.messages) == (1, 1, 1, 1)
    assert len(sealed.sha256) == 64
    await rig.log.close()
    closed = read_manifest(folder)
    assert closed.clean
    assert {entry.state for entry in closed.segments} == {SegmentState.SEALED}
    assert sorted(path.name for path in (folder / "segments").iterdir()) == ["00000001.db", "00000002.db"]


async def test_a_segment_half_sealed_when_the_broker_died_is_sealed_at_the_next_start(
    open_process: OpenProcess,
) -> None:
    await crashed_after(await open_process(), 5)

    rig = await open_process()
    await eventually(rig.log.closed_segments)

    assert len((await rig.page(1, [0, 50]))[0]) == 50
