"""The folder of a standby as the source of a run: its rows, its wait, and files that it drops meanwhile."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec import structs

from cmqd_backup.backing_up import back_up, missing_rows
from cmqd_backup.copying import Pace
from cmqd_backup.follower import followed_folder, renewed
from cmqd_backup.holds import Held
from cmqd_backup.refusals import Refused
from cmqd_backup.restores.cutting import seal_copy
from cmqd_backup.stores import open_store
from cmqd_client.pins import LogPin
from cmqd_segment.manifest import CACHE_FORMAT, MANIFEST_FORMAT, SegmentState, read_manifest, write_manifest
from cmqd_segment.records import QueueCreated
from cmqd_types.attributes import QueueAttributes
from support.backup.growing_log import command
from support.engine.replicas import Replica, Replicas
from support.eventually import eventually
from support.storage.log_rig import NOW_MS
from support.storage.verified import verify_folder


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


def pin_at(log_id: str, lsn: int) -> LogPin:
    return LogPin(7, log_id, lsn, "", datetime.fromtimestamp(NOW_MS / 1000, UTC), 0, 0, timedelta(minutes=5), 1)


async def a_pair(replicas: Replicas) -> tuple[Replica, Replica, "asyncio.Task[object]"]:
    """Return a leader with a row, and a standby that has copied it."""
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 3)
    standby = replicas.broker("b")
    opening: asyncio.Task[object] = asyncio.create_task(standby.rig.open())
    await eventually(lambda: standby.folder.joinpath("manifest").exists() and read_manifest(standby.folder).log_id)
    return leader, standby, opening


async def end(opening: "asyncio.Task[object]") -> None:
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)


def run_of(held: Held, place: Path) -> None:
    back_up(
        held,
        open_store(str(place)),
        read_accounts=None,
        pace=Pace(),
        began_ms=NOW_MS,
        wall_ms=lambda: NOW_MS,
        out=lambda _: None,
    )


async def test_unsealed_rows_up_to_the_row_of_the_pin_are_in_segments_of_the_copy(replicas: Replicas) -> None:
    leader, standby, opening = await a_pair(replicas)
    newest = await leader.rig.store(1, 3, 1)
    manifest = read_manifest(standby.folder)

    async with followed_folder(standby.folder, pin_at(manifest.log_id, newest)) as held:
        assert held.last_lsn == newest
        assert missing_rows(held) == []
        assert [entry.state for entry in held.manifest.segments] == [SegmentState.SEALED]
        assert held.manifest.segments[0].messages == 4
        work = held.folder
    # The row behind the pin stays out.
    async with followed_folder(standby.folder, pin_at(manifest.log_id, newest - 1)) as held:
        assert (held.last_lsn, held.manifest.segments[0].messages) == (newest - 1, 3)

    assert not work.exists()
    assert all(entry.state is not SegmentState.SEALED for entry in read_manifest(standby.folder).segments)
    await end(opening)


async def test_a_standby_that_stays_behind_is_refused_with_both_rows(replicas: Replicas) -> None:
    leader, standby, opening = await a_pair(replicas)
    newest = await leader.rig.store(1, 3, 1)
    pin = pin_at(read_manifest(standby.folder).log_id, newest)
    async with followed_folder(standby.folder, pin):
        pass

    with pytest.raises(
        Refused, match=rf"has rows up to {newest}, and the leader has row {newest + 5}: it did not copy"
    ):
        async with followed_folder(standby.folder, structs.replace(pin, lsn=newest + 5), wait_s=0):
            pytest.fail("the row is not there")
    await end(opening)


async def test_the_files_are_gathered_anew_once_the_standby_has_dropped_one(replicas: Replicas) -> None:
    leader, standby, opening = await a_pair(replicas)
    await end(opening)
    await standby.end()
    await leader.rig.log.close()
    folder = leader.folder
    manifest = read_manifest(folder)
    (entry,) = [entry for entry in manifest.segments if entry.state is SegmentState.SEALED]
    async with followed_folder(folder, pin_at(manifest.log_id, entry.last_lsn)) as held:
        assert renewed(folder, pin_at(manifest.log_id, entry.last_lsn), held) is None

        dropped = [(entry.first_lsn, entry.last_lsn)]
        write_manifest(folder, structs.replace(manifest, segments=[], dropped=dropped))
        (folder / entry.file).unlink()
        found = renewed(folder, pin_at(manifest.log_id, entry.last_lsn), held)

    assert found is not None
    assert (found.manifest.segments, missing_rows(found)) == ([], [])


async def test_a_place_has_runs_of_the_segments_of_one_folder(replicas: Replicas, tmp_path: Path) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 3)
    await leader.rig.log.close()
    other = await replicas.leader("b")
    await other.rig.store(1, 3, 1)
    await other.rig.log.close()
    manifest = read_manifest(leader.folder)
    assert manifest.format == CACHE_FORMAT
    (entry,) = [entry for entry in manifest.segments if entry.rows]
    run_of(Held(leader.folder, manifest, entry.last_lsn), tmp_path / "backup")

    theirs = read_manifest(other.folder)
    moved = [structs.replace(entry, number=entry.number + 40) for entry in theirs.segments if entry.rows]
    last_lsn = moved[-1].last_lsn

    with pytest.raises(Refused, match="in other segments: it is the folder of another broker"):
        run_of(Held(other.folder, structs.replace(theirs, segments=moved), last_lsn), tmp_path / "backup")


async def test_a_full_disk_for_temporary_files_is_told_at_once(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, standby, opening = await a_pair(replicas)
    newest = await leader.rig.store(1, 3, 1)
    pin = pin_at(read_manifest(standby.folder).log_id, newest)
    async with followed_folder(standby.folder, pin):
        pass

    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    monkeypatch.setattr("cmqd_backup.follower.seal_copy", full)

    with pytest.raises(Refused, match=r"cannot be copied to .*: database or disk is full"):
        async with followed_folder(standby.folder, pin):
            pytest.fail("there is no room")
    await end(opening)


async def test_a_cancellation_waits_for_the_copies_and_leaves_no_file(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, standby, opening = await a_pair(replicas)
    newest = await leader.rig.store(1, 3, 1)
    pin = pin_at(read_manifest(standby.folder).log_id, newest)
    async with followed_folder(standby.folder, pin):
        pass
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    begun, go_on, ended = Event(), Event(), Event()

    def slow(path: Path, *arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        # Its folder is still there.
        entry = seal_copy(path, *arguments)
        ended.set()
        return entry

    monkeypatch.setattr("cmqd_backup.follower.seal_copy", slow)

    async def follow() -> None:
        async with followed_folder(standby.folder, pin):
            pytest.fail("cancelled before")

    following = asyncio.create_task(follow())
    assert await asyncio.to_thread(begun.wait, 60)
    following.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not following.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await following

    assert ended.is_set()
    assert list((tmp_path / "temporary").iterdir()) == []
    await end(opening)


async def stopped_pair(replicas: Replicas) -> tuple[Path, Path]:
    """Return the folders of a leader that stopped in order and of a standby that was killed, with three messages."""
    leader = await replicas.leader("a")
    leader.rig.log.append([QueueCreated(1, "owner", "orders", QueueAttributes(), NOW_MS)], [], NOW_MS)
    newest = await leader.rig.store(1, 0, 3)
    standby = replicas.broker("b")
    opening: asyncio.Task[object] = asyncio.create_task(standby.rig.open())
    await eventually(lambda: standby.folder.joinpath("manifest").exists() and read_manifest(standby.folder).log_id)
    async with followed_folder(standby.folder, pin_at(read_manifest(standby.folder).log_id, newest)):
        pass
    await end(opening)
    await standby.end()
    await leader.rig.log.close()
    return leader.folder, standby.folder


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_cache_whose_broker_has_stopped_is_cloned_as_a_log_of_its_own(
    replicas: Replicas, tmp_path: Path
) -> None:
    for folder in await stopped_pair(replicas):
        before, target = content_of(folder), tmp_path / f"clone-{folder.name}"

        ended = await asyncio.to_thread(command, "clone", folder, target)

        assert ended.code == 0, ended.error
        assert "3 messages in 1 queue, as of row" in ended.lines
        assert f"{folder} is a cache: the engine may have rows behind row" in ended.error
        assert content_of(folder) == before
        assert sorted(path.name for path in target.iterdir() if path.is_dir()) == ["checkpoints", "segments"]
        manifest = read_manifest(target)
        assert (manifest.cache_of, manifest.format) == (None, MANIFEST_FORMAT)
        assert verify_folder(target) == []


async def test_a_stopped_cache_is_no_source_of_a_backup_and_the_refusal_says_the_way(
    replicas: Replicas, tmp_path: Path
) -> None:
    for folder in await stopped_pair(replicas):
        arguments = ("backup", folder, "--to", tmp_path / "backup", "--without-secrets")

        ended = await asyncio.to_thread(command, *arguments)

        assert ended.code == 4
        assert "the engine may have newer rows: start its broker, and make the backup while" in ended.error
        assert "'cmqd clone' takes the messages that wait in the folder" in ended.error
        assert not (tmp_path / "backup" / "runs").exists()


@pytest.mark.parametrize("kept", [None, 0, 5000])
async def test_a_stopped_cache_with_a_missing_or_cut_file_is_refused(
    replicas: Replicas, tmp_path: Path, kept: int | None
) -> None:
    _, folder = await stopped_pair(replicas)
    entry = next(entry for entry in read_manifest(folder).segments if entry.state is SegmentState.ACTIVE)
    path = folder / entry.file
    content = path.read_bytes()
    path.unlink()
    if kept is not None:
        path.write_bytes(content[:kept])

    ended = await asyncio.to_thread(command, "clone", folder, tmp_path / "clone")

    assert ended.code == 4
    assert str(folder) in ended.error
    assert "unfinished-work" not in ended.error
    assert not (tmp_path / "clone").exists()
