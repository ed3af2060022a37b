"""Damage to the WAL of an unsealed segment, told apart from a torn tail."""

import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.log.log_errors import LogFailed
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.recovery.torn_tail import walk
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.storage_errors import DamagedError
from cmqd.storage.writing.sealer import truncate_wal
from cmqd_segment.manifest import SegmentState, read_manifest, write_manifest
from support.storage.damage import CrashedAfter, active_wal, crash, flip, in_another_boot, kinds
from support.storage.log_rig import ForkedPlace, InProcess, LogRig, OpenProcess, settings_for
from support.storage.wals import FRAME_BYTES, HEADER_BYTES, cut, end_of_frames

pytestmark = pytest.mark.system


async def test_a_flipped_bit_in_the_active_wal_stops_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """SQLite alone would silently drop the nine tenths behind the flipped bit."""
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 10)
    before = wal.read_bytes()

    with pytest.raises(DamagedError, match=r"WAL of segment .* is damaged"):
        await open_process()

    assert wal.read_bytes() == before, "a refused start changes nothing"
    with pytest.raises(DamagedError):
        await open_process()


async def test_a_loss_that_is_accepted_keeps_what_stands_before_it_and_a_copy_of_the_rest(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 10)
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
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """The death comes before the damaged segment is sealed and its WAL given up."""
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 10)
    first = LogRig(ForkedPlace(folder, accept_loss=True).log())
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
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start after a crash in between would not know the loss, and use the lost numbers again. The content of the
    WAL is synced before the WAL goes, although commits are not synced.
    """
    await crashed_after(await open_process(durability="os"), 40)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 10)
    told: list[tuple[int, int]] = []

    def noted(segment: WritableSegment) -> bool:
        (synchronous,) = segment.connection.raw.execute("PRAGMA synchronous").fetchone()
        told.append((len(read_manifest(folder).losses), synchronous))
        return truncate_wal(segment)

    monkeypatch.setattr("cmqd.storage.open_log.truncate_wal", noted)
    await opened_here(folder, accept_loss=True, durability="os")

    assert told == [(1, 2)], "one loss, and synchronous=FULL"


async def test_a_full_disk_does_not_keep_a_broker_from_starting_after_a_loss(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crashed_after(await open_process(), 40)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) // 10)
    tried: list[int] = []

    def full(segment: WritableSegment) -> bool:
        tried.append(segment.number)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("cmqd.storage.open_log.truncate_wal", full)
    await opened_here(folder, accept_loss=True)

    assert tried == [1]


async def test_a_torn_last_commit_is_dropped_and_the_start_goes_on(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """The commit was not durable when the power failed, or the disk took back its promise for this commit only."""
    await crashed_after(await open_process(), 10)
    in_another_boot(folder)
    wal = active_wal(folder)
    cut(wal, end_of_frames(wal) - FRAME_BYTES // 2)

    rig = await open_process()

    assert rig.report is not None
    assert not rig.report.numbers_jump
    assert [lsn for lsn, _, _ in rig.rows] == list(range(1, 10))
    assert rig.send(1, 90, 1) == 10


async def test_a_damaged_header_of_the_wal_stops_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    await crashed_after(await open_process(), 10)
    flip(active_wal(folder), 17)

    with pytest.raises(DamagedError, match=r"WAL"):
        await open_process()


async def test_a_missing_wal_stops_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    await crashed_after(await open_process(), 10)
    active_wal(folder).unlink()

    with pytest.raises(DamagedError, match=r"WAL of segment .* is missing"):
        await open_process()


CUTS = {"emptied": None, "cut in the middle": 20, "cut by a commit": 4, "cut by a byte": 0}
LACK = r"WAL of segment .*(were|was) durable: (its rows after \d+|all its rows)"


@pytest.mark.parametrize("frames", CUTS.values(), ids=CUTS.keys())
async def test_a_shorter_wal_than_the_writer_left_stops_every_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, frames: int | None
) -> None:
    """The manifest has no row, but the WAL-index has; a refused start must keep the index."""
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    cut(wal, 0 if frames is None else end_of_frames(wal) - max(1, frames * FRAME_BYTES))

    for _ in range(2):
        with pytest.raises(DamagedError, match=LACK):
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
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    cut(wal, end_of_frames(wal) - 4 * FRAME_BYTES)

    def refuse(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("cmqd.storage.recovery.folder_inspection.os.link", refuse)

    with pytest.raises(DamagedError, match=r"its rows after 9 are gone"):
        await opened_here(folder)
    assert not (folder / "inspection").exists()


async def test_a_missing_wal_of_a_retired_segment_stops_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """A sealed segment needs no WAL, but SQLite would have marked the index before removing the WAL."""
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


async def test_a_flipped_bit_in_the_last_commit_stops_every_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """Without the WAL-index the commit would look like a commit that was under way."""
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    flip(wal, end_of_frames(wal) - 100)

    for _ in range(2):
        with pytest.raises(DamagedError, match=r"its rows after 9 are gone"):
            await open_process()


async def test_a_start_that_accepts_a_loss_and_dies_at_once_leaves_a_folder_that_tells_of_it(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the database destroys the only witness, so the manifest must have the loss before."""
    await crashed_after(await open_process(), 10)
    wal = active_wal(folder)
    cut(wal, end_of_frames(wal) - 4 * FRAME_BYTES)

    async def die(*_arguments: object, **_named: object) -> None:
        raise LogFailed("killed here")

    monkeypatch.setattr("cmqd.storage.open_log.open_connection", die)
    with pytest.raises(LogFailed, match="killed here"):
        await opened_here(folder, accept_loss=True)

    assert [(entry.first_lsn, entry.reason) for entry in read_manifest(folder).losses] == [
        (10, "may have been lost at the end")
    ]


async def test_commits_after_a_switch_of_segments_are_found(open_process: OpenProcess, folder: Path) -> None:
    """The manifest may not know yet that the prepared segment became the active segment."""
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


def zero(wal: Path, begin: int, end: int) -> None:
    with wal.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


@pytest.mark.parametrize("commits_behind", [2, 5])
async def test_two_commits_behind_a_hole_of_zeros_stop_every_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, commits_behind: int
) -> None:
    """The WAL-index is of another boot, and the manifest has no row: only the commits behind the hole tell."""
    await crashed_after(await open_process(), 10)
    in_another_boot(folder)
    wal = active_wal(folder)
    last = walk(wal).commits[-commits_behind - 1]
    zero(wal, HEADER_BYTES + (last - 1) * FRAME_BYTES, HEADER_BYTES + last * FRAME_BYTES)

    for _ in range(2):
        with pytest.raises(DamagedError, match=rf"{commits_behind} commits beyond it cannot be read"):
            await open_process()


async def test_a_hole_of_zeros_in_the_last_commit_is_a_torn_commit(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """The disk wrote the last frame of the commit under way, and not the first."""
    await crashed_after(await open_process(), 10)
    in_another_boot(folder)
    wal = active_wal(folder)
    before, last = walk(wal).commits[-2:]
    assert last - before > 1
    zero(wal, HEADER_BYTES + before * FRAME_BYTES, HEADER_BYTES + (before + 1) * FRAME_BYTES)

    rig = await open_process()

    assert rig.report is not None
    assert kinds(rig) == ["unclean_stop", "torn_tail"]
    assert len(rig.rows) == 9


@pytest.mark.parametrize("frames", [0, 1])
async def test_zeros_at_the_beginning_of_a_wal_stop_every_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, frames: int
) -> None:
    await crashed_after(await open_process(), 10)
    in_another_boot(folder)
    zero(active_wal(folder), 0, HEADER_BYTES + frames * FRAME_BYTES)

    for _ in range(2):
        with pytest.raises(DamagedError, match=r"commits beyond it cannot be read"):
            await open_process()


async def test_zeros_that_were_filled_in_ahead_are_no_finding(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter
) -> None:
    """Also in the active and the prepared segment of a broker that died before its first commit."""
    for commits in (0, 3):
        await crashed_after(await open_process(), commits)

        rig = await open_process()

        assert kinds(rig) == ["unclean_stop"]
        assert len(rig.rows) == commits
        await crash(rig)
