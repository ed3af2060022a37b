"""A log in an engine: rows go to the engine first, the folder is a cache, and a standby takes over."""

import asyncio
import errno
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from cmqd.engine.engine_errors import AccountsConflict, EngineUnavailable
from cmqd.engine.fencing import FencedEngine
from cmqd.log.log_errors import LogFailed
from cmqd.storage import segment_drops
from cmqd.storage.redundancy import following, replication
from cmqd.storage.redundancy.proof_clock import proof_clock_s
from cmqd.storage.storage_errors import LeadLost, WrongFolder
from cmqd_segment.manifest import (
    CACHE_FORMAT,
    MANIFEST_FORMAT,
    CacheOf,
    SegmentState,
    StandingPinEntry,
    read_manifest,
    write_manifest,
)
from cmqd_segment.records import ActorSeen, AnyRecord
from cmqd_segment.schema import open_read_only, read_actors
from cmqd_types.actors import Actor
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import NOW_MS, body
from support.storage.loop_way import ChosenWay
from support.storage.verified import verify_folder


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


async def test_a_row_is_in_the_engine_and_in_the_cache(replicas: Replicas) -> None:
    leader = await replicas.leader("a")

    lsn = await leader.rig.store(1, 0, 3)

    assert [(row.lsn, row.epoch, row.messages) for row in replicas.rows] == [(1, 1, 0), (2, 1, 3)]
    assert lsn == 2, "row 1 is the fence"
    assert replicas.rows[1].data == b"".join(body(1, position) for position in range(3))
    assert len((await leader.rig.page(1, [0, 3]))[0]) == 3
    manifest = read_manifest(leader.folder)
    assert (manifest.format, manifest.cache_of) == (CACHE_FORMAT, CacheOf(manifest.log_id, 0))
    assert [(entry.number, entry.first_lsn) for entry in manifest.starts] == [(f"{1:016x}", 1)]


async def test_leader_and_standby_write_side_files_of_their_own_caches(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 3)
    await leader.rig.log.close()
    other = await replicas.leader("b")
    await other.rig.log.close()

    for folder in (leader.folder, other.folder):
        sealed = [entry for entry in read_manifest(folder).segments if entry.state is SegmentState.SEALED]
        assert sealed
        assert all(entry.side is not None for entry in sealed)
        assert verify_folder(folder) == []


async def test_a_stop_and_a_start_keep_the_cache(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 3)
    await leader.log.close()

    again = await replicas.leader("a")

    assert again.rig.report is not None
    assert "set_aside" not in [finding.kind for finding in again.rig.report.findings]
    assert [lsn for lsn, _, _ in again.rig.rows] == [1, 2, 3]
    assert (again.log.epoch, again.log.last_lsn) == (3, 3)
    assert await again.rig.store(1, 3, 1) == 4
    assert [row.epoch for row in replicas.rows] == [1, 1, 3, 3]


async def test_a_broker_with_an_empty_folder_copies_the_log(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    for index in range(20):
        await leader.rig.store(1, 10 * index, 10)
    await leader.end()

    other = await replicas.leader("b")

    assert [lsn for lsn, _, _ in other.rig.rows] == list(range(1, 23))
    messages, missing = await other.rig.page(1, [0, 200])
    assert not missing
    assert [message.body for message in messages] == [body(1, position) for position in range(200)]


async def test_a_standby_copies_rows_as_they_come_and_leads_after_the_leader(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    standby = replicas.broker("b")
    opening = asyncio.create_task(standby.rig.open())
    await eventually(lambda: len(standby.rig.rows) == 2)
    await leader.rig.store(1, 1, 1)
    await eventually(lambda: len(standby.rig.rows) == 3)
    assert not opening.done()
    assert standby.log.epoch == 0

    await leader.log.close()
    await opening

    assert (standby.log.epoch, standby.log.last_lsn) == (4, 4)
    assert await standby.rig.store(1, 2, 1) == 5
    assert [message.body for message in (await standby.rig.page(1, [0, 3]))[0]] == [body(1, n) for n in range(3)]


async def test_proofs_asked_for_during_the_end_do_not_disturb_it(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    # The first proof is under way when the end begins.
    leader.log.prove()

    closing = asyncio.create_task(leader.log.close())
    while not closing.done():
        leader.log.prove()
        await asyncio.sleep(0)

    await closing
    assert not leader.rig.fatal


class RecordOfANewerVersion(msgspec.Struct, array_like=True, tag=99):
    """A record that this version does not know."""


async def test_a_standby_says_that_the_leader_is_newer_and_ends(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    standby = replicas.broker("b")
    opening = asyncio.create_task(standby.rig.open())
    await eventually(lambda: len(standby.rig.rows) == 1)

    leader.log.append([cast(AnyRecord, RecordOfANewerVersion())], [], NOW_MS)
    await leader.rig.commit()

    with pytest.raises(LogFailed, match=r"records of kind 99, .*use a newer cmqd"):
        await opening
    assert await leader.rig.store(1, 0, 1) == 3
    assert not leader.rig.fatal


async def test_a_standby_stops_without_having_led(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    standby = replicas.broker("b")
    opening = asyncio.create_task(standby.rig.open())
    await eventually(lambda: len(standby.rig.rows) == 1)

    opening.cancel()
    await standby.log.close()

    assert standby.process.task is not None
    assert await standby.process.task == 0
    await leader.rig.store(1, 0, 1)
    assert not leader.rig.fatal


async def test_a_proof_is_dated_at_its_hand_over_by_the_clock_of_the_boot(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    await leader.rig.store(1, 0, 1)

    assert leader.log.clock_s is proof_clock_s
    assert before_s <= leader.log.proved_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_a_leader_that_was_fenced_ends_and_answers_nothing(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    durable = list(leader.rig.durable)
    other = replicas.engine()
    await asyncio.to_thread(other.take)

    leader.rig.send(1, 1, 1)
    leader.rig.log.flush()
    await leader.rig.until(lambda: leader.rig.fatal)

    assert leader.rig.durable == durable
    assert isinstance(leader.rig.fatal[0], LeadLost)
    assert "fenced: row 3 has epoch 3, mine is 1" in str(leader.rig.fatal[0])
    assert [row.lsn for row in replicas.rows] == [1, 2, 3]
    other.close()


async def test_a_checkpoint_is_in_the_engine_before_it_counts(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)

    await leader.rig.checkpoint()

    stored = replicas.database.newest_primary().tables.checkpoint
    assert stored is not None
    assert stored.lsn == 2
    assert stored.data == (leader.folder / "checkpoints" / "00000001.ckpt").read_bytes()
    await leader.end()
    other = await replicas.leader("b")
    assert other.rig.report is not None
    assert other.rig.report.checkpoint_lsn == 2
    assert [lsn for lsn, _, _ in other.rig.rows] == [3]
    assert len(other.rig.parts) == 2
    assert len((await other.rig.page(1, [0, 1]))[0]) == 1


async def test_a_start_that_ended_before_its_first_row_left_no_damage(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has the checkpoint of the engine, and no row."""
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    await leader.rig.checkpoint()
    await leader.end()

    def unavailable(_engine: FencedEngine) -> None:
        raise EngineUnavailable("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(FencedEngine, "load_accounts", unavailable)
        ended = replicas.broker("b")
        opening = asyncio.create_task(ended.rig.open())
        await eventually(lambda: (ended.folder / "manifest").exists() and read_manifest(ended.folder).checkpoints != [])
        opening.cancel()
        await ended.end()

    other = await replicas.leader("b")

    assert len((await other.rig.page(1, [0, 1]))[0]) == 1
    assert other.rig.report is not None
    assert [finding.kind for finding in other.rig.report.findings] == ["unclean_stop"]


async def test_dropped_segments_are_trimmed_exactly(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    for index in range(6):
        await leader.rig.store(1, index, 1)
        if index % 2:
            await leader.log.seal_now()
    await leader.rig.store(1, 6, 1)
    _first, second, _third = leader.log.closed_segments()
    assert (second.first_lsn, second.last_lsn) == (4, 5)
    assert await leader.log.drop_segments([second.number], 8) == [], "no checkpoint covers it"
    assert [row.lsn for row in replicas.rows] == list(range(1, 9))
    await leader.rig.checkpoint()
    await leader.rig.checkpoint()

    assert await leader.log.drop_segments([second.number], 8) == [second.number]

    assert [row.lsn for row in replicas.rows] == [1, 2, 3, 6, 7, 8]
    await leader.end()
    other = await replicas.leader("b")
    messages, _missing = await other.rig.page(1, [0, 7])
    assert [message.position for message in messages] == [0, 1, 4, 5, 6]
    await other.log.close()
    again = await replicas.leader("b")
    assert again.rig.report is not None
    assert "set_aside" not in [finding.kind for finding in again.rig.report.findings]


async def test_a_segment_that_ended_at_a_gap_before_the_recovery_stream_did_is_sealed_once(replicas: Replicas) -> None:
    """The copy and the recovery stream go on side by side. The copy retires the segment here, and holds its seal."""
    leader = await replicas.leader("a")
    for index in range(3):
        await leader.rig.store(1, index, 1)
        await leader.log.seal_now()
    await leader.rig.checkpoint()
    await leader.rig.checkpoint()
    second = leader.log.closed_segments()[1]
    await leader.log.drop_segments([second.number], leader.log.last_lsn)
    await leader.log.close()
    other = replicas.broker("b")
    report = await other.log.open()
    assert report.created
    catalog = other.process.service.log.catalog
    await eventually(lambda: catalog.dropped == [(second.first_lsn, second.last_lsn)])
    held = [number for number, segment in catalog.open.items() if segment.state is SegmentState.RETIRED]
    assert len(held) == 1

    async for _ in other.log.recover():
        pass
    await other.log.seal_now()

    assert held[0] in catalog.sealed
    await other.log.close()
    assert other.rig.fatal == []


async def test_a_cache_whose_last_row_was_trimmed_goes_on(replicas: Replicas) -> None:
    former = await replicas.leader("a")
    await former.rig.store(1, 0, 1)
    await former.rig.store(1, 1, 1)
    await former.log.close()
    leader = await replicas.leader("b")
    await leader.rig.store(1, 2, 1)
    await leader.log.seal_now()
    await leader.rig.store(1, 3, 1)
    for _ in range(2):
        await leader.rig.checkpoint()
    reclaimed, *_ = leader.log.closed_segments()
    assert await leader.log.drop_segments([reclaimed.number], 6) == [reclaimed.number]
    assert [row.lsn for row in replicas.rows] == [1, 4, 6], "fences, and the row that is not reclaimed"
    await leader.log.close()

    again = await replicas.leader("a")

    assert again.rig.report is not None
    assert "set_aside" not in [finding.kind for finding in again.rig.report.findings]
    messages, _missing = await again.rig.page(1, [0, 4])
    assert [message.position for message in messages][-1] == 3


async def test_a_standby_drops_the_segments_whose_rows_a_leader_has_reclaimed(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(following, "UPKEEP_POLLS", 1)
    leader = await replicas.leader("a")
    standby = replicas.broker("b", segment_bytes=1 << 16)
    opening = asyncio.create_task(standby.rig.open())
    # Segments of the standby end at other rows than those of the leader.
    for index in range(12):
        await leader.rig.store(1, index, 1, size=30_000)
        await eventually(lambda count=index + 2: len(standby.rig.rows) == count)
        if index == 5:
            await eventually(standby.log.closed_segments)
    await leader.log.seal_now()
    await leader.rig.store(1, 12, 1)
    for _ in range(2):
        await leader.rig.checkpoint()
    (reclaimed,) = [segment for segment in leader.log.closed_segments() if segment.is_sealed]

    await leader.log.drop_segments([reclaimed.number], 14)

    # The segment with the last row stays, closed or not.
    await eventually(lambda: [segment for segment in standby.log.closed_segments() if segment.last_lsn < 14] == [])
    listed = read_manifest(standby.folder).segments
    files = [entry for entry in listed if entry.state is SegmentState.SEALED and entry.last_lsn < 14]
    assert (files, len(read_manifest(standby.folder).checkpoints)) == ([], 1)
    await leader.log.close()
    await opening
    assert await standby.rig.store(1, 13, 1) == 16
    messages, _missing = await standby.rig.page(1, [0, 14])
    assert [message.position for message in messages][-2:] == [12, 13]
    copy_as_killed(standby.folder, standby.folder.with_name("killed"))
    await standby.end()
    again = await replicas.leader("killed")
    assert again.rig.report is not None
    assert [finding.kind for finding in again.rig.report.findings] == ["unclean_stop"]
    messages, _missing = await again.rig.page(1, [0, 14])
    assert [message.position for message in messages][-2:] == [12, 13]


async def test_a_standby_leads_while_files_that_it_has_dropped_give_their_blocks_back(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(following, "UPKEEP_POLLS", 1)
    leader = await replicas.leader("a")
    standby = replicas.broker("b", segment_bytes=1 << 16)
    opening = asyncio.create_task(standby.rig.open())
    for index in range(4):
        await leader.rig.store(1, index, 1, size=30_000)
        await eventually(lambda count=index + 2: len(standby.rig.rows) == count)
    await leader.log.seal_now()
    await leader.rig.store(1, 4, 1)
    await eventually(lambda: len(standby.log.closed_segments()) >= 1)
    for _ in range(2):
        await leader.rig.checkpoint()
    removes, may_end = asyncio.Event(), threading.Event()
    loop, remove = asyncio.get_running_loop(), segment_drops.remove_segment

    def remove_slowly(path: Path, is_hurried: Callable[[], bool] = lambda: True) -> None:
        if standby.folder in path.parents:
            loop.call_soon_threadsafe(removes.set)
            may_end.wait()
        remove(path, is_hurried)

    monkeypatch.setattr(segment_drops, "remove_segment", remove_slowly)
    try:
        await leader.log.drop_segments([leader.log.closed_segments()[0].number], 6)
        await asyncio.wait_for(removes.wait(), 20)
        await leader.log.close()
        await asyncio.wait_for(opening, 20)
        under_way, *_ = standby.log.closed_segments()
        assert await standby.log.drop_segments([under_way.number], 7) == [under_way.number]
    finally:
        may_end.set()

    assert under_way.number not in [segment.number for segment in standby.log.closed_segments()]
    assert await standby.rig.store(1, 5, 1) == 8


async def test_a_standby_without_room_for_a_checkpoint_drops_later(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(following, "UPKEEP_POLLS", 1)
    leader = await replicas.leader("a")
    standby = replicas.broker("b", segment_bytes=1 << 16)
    opening = asyncio.create_task(standby.rig.open())
    for index in range(6):
        await leader.rig.store(1, index, 1, size=30_000)
        await eventually(lambda count=index + 2: len(standby.rig.rows) == count)
    await eventually(standby.log.closed_segments)
    await leader.log.seal_now()
    await leader.rig.store(1, 6, 1)
    for _ in range(2):
        await leader.rig.checkpoint()
    copy, refused = replication.copy_checkpoint, list[int]()

    def full(*arguments: Any) -> Any:
        if len(refused) < 3:
            refused.append(errno.ENOSPC)
            raise OSError(errno.ENOSPC, "no room")
        return copy(*arguments)

    monkeypatch.setattr(replication, "copy_checkpoint", full)
    (segment,) = [segment for segment in leader.log.closed_segments() if segment.is_sealed]
    await leader.log.drop_segments([segment.number], 8)

    await eventually(lambda: [segment for segment in standby.log.closed_segments() if segment.last_lsn < 8] == [])

    assert len(refused) == 3
    assert not standby.rig.fatal
    opening.cancel()
    await standby.log.close()


async def test_a_fenced_leader_drops_nothing(replicas: Replicas) -> None:
    """Its index is old: the messages may be back by a rewind, and its next lead would trim their rows."""
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    await leader.log.seal_now()
    await leader.rig.store(1, 1, 1)
    await leader.rig.checkpoint()
    await leader.rig.checkpoint()
    first, *_ = leader.log.closed_segments()
    other = replicas.engine()
    await asyncio.to_thread(other.take)

    with pytest.raises(LogFailed, match="fenced"):
        await leader.log.drop_segments([first.number], 3)

    await leader.end()
    assert SegmentState.DROPPING not in [entry.state for entry in read_manifest(leader.folder).segments]
    other.close()
    again = await replicas.leader("a")
    assert [row.lsn for row in replicas.rows] == [1, 2, 3, 4, 5]
    assert len((await again.rig.page(1, [0, 2]))[0]) == 2


async def test_a_cache_that_disagrees_is_set_aside_and_copied_again(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    await leader.log.close()
    tables = replicas.database.newest_primary().tables
    tables.rows[2] = tables.rows[2]._replace(data=b"x" * len(tables.rows[2].data))
    again = await replicas.leader("a")
    assert again.rig.report is not None
    assert [finding.kind for finding in again.rig.report.findings].count("set_aside") == 1
    assert (again.folder / "set-aside" / "cache.1" / "manifest").exists()
    assert (await again.rig.page(1, [0, 1]))[0][0].body == tables.rows[2].data


async def test_the_newest_caches_that_were_put_aside_are_kept(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    await leader.log.close()
    aside = leader.folder / "set-aside"
    # A log of its own, which an operator has put there.
    shutil.copytree(leader.folder, aside / "cache.0")
    manifest = read_manifest(aside / "cache.0")
    write_manifest(aside / "cache.0", structs.replace(manifest, cache_of=None, format=MANIFEST_FORMAT, log_id="f" * 32))
    for path in (aside / "cache.0" / "segments").iterdir():
        path.unlink()
    for count in range(1, 5):
        (segment, *_) = sorted((leader.folder / "segments").glob("*.db"))
        segment.unlink()
        standby = replicas.broker("a")
        leading = replicas.engine()
        assert await asyncio.to_thread(leading.try_lead)
        opening = asyncio.create_task(standby.rig.open())
        await eventually(lambda standby=standby: standby.rig.report is not None)
        assert standby.rig.report is not None
        assert f"caches there: {min(count, 3) + 1}," in standby.rig.report.findings[0].text
        # Old caches stay as long as the copy may be incomplete.
        assert len(list(aside.iterdir())) == min(count, 3) + 1
        await asyncio.to_thread(leading.close)
        await opening
        kept = {"cache.0", *(f"cache.{number}" for number in range(max(1, count - 1), count + 1))}
        await eventually(lambda kept=kept: {path.name for path in aside.iterdir()} == kept)
        await standby.log.close()


async def test_local_damage_is_mended_from_the_engine(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    await leader.log.close()
    (leader.folder / "segments" / "00000001.db").unlink()

    again = await replicas.leader("a")

    assert [message.body for message in (await again.rig.page(1, [0, 1]))[0]] == [body(1, 0)]


async def test_the_mistakes_of_folders_are_refused_and_change_nothing(replicas: Replicas, tmp_path: Path) -> None:
    own = replicas.broker("own")
    own.process.service = type(own.process.service)(own.process.pid)
    await own.rig.open()
    await own.rig.store(1, 0, 1)
    await own.log.close()
    leader = await replicas.leader("a")
    await leader.rig.store(1, 0, 1)
    await leader.log.close()
    elsewhere = Replicas(tmp_path)
    elsewhere._logs = 7  # pyright: ignore[reportPrivateUsage]
    other = await elsewhere.leader("c")
    await other.log.close()
    before = [files(folder) for folder in (own.folder, leader.folder)]
    rows = replicas.rows, elsewhere.rows

    with pytest.raises(WrongFolder, match="rows up to 1 of log"):
        await replicas.broker("own").rig.open()
    with pytest.raises(WrongFolder, match=f"cache of log {1:032x}.* the engine has log {8:032x}"):
        await elsewhere.broker("a").rig.open()

    assert [files(folder) for folder in (own.folder, leader.folder)] == before
    assert (replicas.rows, elsewhere.rows) == rows
    await elsewhere.end()


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


async def test_accounts_are_compared_and_set(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    assert await leader.log.load_accounts() is None

    assert await leader.log.store_accounts(b"first", expected_version=0) == 1

    stored = await leader.log.load_accounts()
    assert stored is not None
    assert (stored.version, stored.data) == (1, b"first")
    standby = replicas.broker("b")
    opening = asyncio.create_task(standby.rig.open())
    await eventually(lambda: standby.log.accounts == stored)
    await leader.log.close()
    await opening
    with pytest.raises(AccountsConflict, match="version 1, not 2"):
        await standby.log.store_accounts(b"other", expected_version=2)
    assert await standby.log.store_accounts(b"second", expected_version=1) == 2


async def test_the_loop_process_of_a_leader_commits_no_row(replicas: Replicas) -> None:
    """Its rows would be on this machine alone."""
    leader = await replicas.leader("a")
    log = leader.log
    log._commits._way = ChosenWay()  # pyright: ignore[reportPrivateUsage]

    for position in range(5):
        await leader.rig.store(1, position, 1)
    log._way.want()  # pyright: ignore[reportPrivateUsage]
    await leader.rig.store(1, 5, 1)

    assert log._way.lock is None  # pyright: ignore[reportPrivateUsage]
    assert log.figures.in_loop == 0


async def test_the_segments_of_a_cache_have_the_actors_of_the_leader(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    actors = [Actor("shop", "AKID", f"worker {number}") for number in range(3)]
    for number, actor in enumerate(actors[:2], 1):
        leader.log.append([ActorSeen(number, actor)], (), NOW_MS)
        await leader.rig.commit()
        await leader.log.seal_now()
    await leader.end()

    other = await replicas.leader("b")
    other.log.append([ActorSeen(3, actors[2])], (), NOW_MS)
    await other.rig.commit()
    await other.log.close()

    tables: list[list[str]] = []
    for entry in read_manifest(other.folder).segments:
        if entry.state is SegmentState.SEALED:
            with closing(open_read_only(other.folder / entry.file, sealed=True)) as raw:
                tables.append([actor.name for actor in read_actors(raw).values()])
    assert tables[-1] == ["worker 0", "worker 1", "worker 2"]


async def test_the_next_leader_knows_the_standing_pins(replicas: Replicas) -> None:
    pins = [StandingPinEntry("hourly", NOW_MS, 60_000), StandingPinEntry("nightly", NOW_MS, 3_600_000)]
    leader = await replicas.leader("a")
    assert leader.log.standing_pins == []
    await leader.log.keep_standing_pins(pins[:1])
    await leader.log.keep_standing_pins(pins)
    await leader.end()

    other = await replicas.leader("b")
    assert other.log.standing_pins == pins
    await other.log.keep_standing_pins(pins[1:])
    await other.log.close()

    again = await replicas.leader("a")
    assert again.log.standing_pins == pins[1:]
    # A folder would bring names back that a leader with another folder has deleted.
    assert [read_manifest(folder).standing_pins for folder in (leader.folder, other.folder)] == [[], []]


async def test_an_engine_without_the_column_keeps_no_standing_pins(replicas: Replicas) -> None:
    replicas.database.keeps_standing_pins = replicas.database.may_add_columns = False
    leader = await replicas.leader("a")

    assert leader.log.standing_pins is None
    await leader.log.close()

    replicas.database.may_add_columns = True
    assert (await replicas.leader("a")).log.standing_pins == []
