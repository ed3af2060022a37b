"""A folder is a log of its own, or a cache of a log in an engine: a mistake is refused, and changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.log.values import Durability
from cmqd.storage.folder import log_identity as identity
from cmqd.storage.folder.data_folder import DataFolder
from cmqd.storage.recovery.folder_inspection import inspect
from cmqd.storage.storage_errors import WrongFolder
from cmqd_segment.manifest import CACHE_FORMAT, MANIFEST_FORMAT, CacheOf, ManifestError, read_manifest, write_manifest
from support.engine.replicas import Replicas
from support.storage.full_disk import StartBroker
from support.storage.log_rig import body

ENGINE = CacheOf("e" * 32, 0)


async def written(start: StartBroker, folder: Path, *, marked: CacheOf | None = None) -> None:
    """Write a folder with a row, and mark it as a cache."""
    broker = await start()
    await broker.rig.store(1, 0, 3)
    await broker.log.close()
    if marked is not None:
        manifest = read_manifest(folder)
        write_manifest(
            folder, structs.replace(manifest, format=CACHE_FORMAT, cache_of=marked, log_id=marked.log_id, starts=[])
        )


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def inspect_for(folder: Path, engine: CacheOf | None, *, accept_loss: bool = False) -> None:
    inspect(
        DataFolder(folder), accept_loss=accept_loss, durability=Durability.FSYNC, boot_id="this boot", engine=engine
    )


@pytest.mark.parametrize("accept_loss", [False, True])
async def test_a_cache_is_refused_without_redundancy(start: StartBroker, folder: Path, accept_loss: bool) -> None:
    await written(start, folder, marked=ENGINE)
    before = files(folder)

    with pytest.raises(WrongFolder, match=rf"cache of log {ENGINE.log_id}, shard 0 .* redundancy is none"):
        await start(accept_loss=accept_loss)

    assert files(folder) == before


@pytest.mark.parametrize("log_id", ["", ENGINE.log_id])
async def test_a_folder_with_rows_of_its_own_is_refused_with_redundancy(
    start: StartBroker, folder: Path, log_id: str
) -> None:
    """Whatever the engine holds: nothing or a log."""
    await written(start, folder)
    before = files(folder)
    own = read_manifest(folder).log_id

    with pytest.raises(WrongFolder, match=f"rows up to 1 of log {own}") as refused:
        inspect_for(folder, CacheOf(log_id, 0))

    assert (log_id or "an empty engine") in str(refused.value)
    assert files(folder) == before


@pytest.mark.parametrize("other", [CacheOf("f" * 32, 0), CacheOf("e" * 32, 1), CacheOf("", 0)], ids=str)
async def test_a_cache_of_another_log_or_shard_is_refused(start: StartBroker, folder: Path, other: CacheOf) -> None:
    await written(start, folder, marked=ENGINE)
    before = files(folder)

    with pytest.raises(WrongFolder, match=f"cache of {ENGINE}") as refused:
        inspect_for(folder, other)

    assert (str(other) if other.log_id else "an empty engine") in str(refused.value)
    assert files(folder) == before


async def test_a_version_that_does_not_know_the_mark_meets_a_higher_format(start: StartBroker, folder: Path) -> None:
    await written(start, folder)
    assert b'"format": 4,' in (folder / "manifest").read_bytes()
    await written(start, folder, marked=ENGINE)

    assert b'"format": 5,' in (folder / "manifest").read_bytes()


async def test_a_cache_of_the_log_and_an_empty_folder_are_accepted(start: StartBroker, folder: Path) -> None:
    await (await start()).log.close()
    inspect_for(folder, ENGINE)
    inspect_for(folder, CacheOf("", 0))
    await written(start, folder, marked=ENGINE)

    inspect_for(folder, ENGINE)


@pytest.mark.parametrize(("number", "mark"), [(3, None), (5, None), (2, ENGINE), (4, ENGINE)])
async def test_a_mark_without_its_format_is_damage(
    start: StartBroker, folder: Path, number: int, mark: CacheOf | None
) -> None:
    await written(start, folder)
    write_manifest(folder, structs.replace(read_manifest(folder), format=number, cache_of=mark))

    with pytest.raises(ManifestError, match="do not agree"):
        read_manifest(folder)


async def test_a_cache_keeps_the_id_of_its_engine(start: StartBroker, folder: Path) -> None:
    await written(start, folder, marked=ENGINE)
    before = files(folder)

    with pytest.raises(WrongFolder, match="its id is that of the engine"):
        await asyncio.to_thread(identity.give_new_log_id, folder)

    assert files(folder) == before


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


async def written_cache(replicas: Replicas, *, ends: bool) -> Path:
    """A cache in its second start, whose manifest is lost."""
    leader = await replicas.leader("data")
    await leader.rig.store(1, 0, 3)
    await leader.log.close()
    leader = await replicas.leader("data")
    await leader.rig.store(1, 3, 3)
    if ends:
        await leader.log.close()
    else:
        await leader.end()
    return leader.folder


@pytest.mark.parametrize("manifest", [None, b"{"], ids=["missing", "damaged"])
@pytest.mark.parametrize("ends", [True, False], ids=["stopped in order", "ended"])
@pytest.mark.parametrize("accept_loss", [False, True])
async def test_a_cache_without_its_manifest_is_no_log_of_its_own(
    replicas: Replicas, start: StartBroker, folder: Path, manifest: bytes | None, ends: bool, accept_loss: bool
) -> None:
    assert folder == await written_cache(replicas, ends=ends)
    log_id = read_manifest(folder).log_id
    lose_manifest(folder, manifest)
    before = files(folder)

    with pytest.raises(WrongFolder, match=f"its segments are of a cache of log {log_id}, shard 0 in an engine"):
        await start(accept_loss=accept_loss)

    assert files(folder) == before


def lose_manifest(folder: Path, left: bytes | None) -> None:
    (folder / "manifest").unlink()
    if left is not None:
        (folder / "manifest").write_bytes(left)


@pytest.mark.parametrize("manifest", [None, b"{"], ids=["missing", "damaged"])
async def test_a_cache_without_its_manifest_is_set_aside_and_copied_again(
    replicas: Replicas, manifest: bytes | None
) -> None:
    lose_manifest(await written_cache(replicas, ends=True), manifest)

    leader = await replicas.leader("data")

    assert leader.rig.report is not None
    assert "set_aside" in [finding.kind for finding in leader.rig.report.findings]
    assert [message.body for message in (await leader.rig.page(1, [0, 6]))[0]] == [body(1, index) for index in range(6)]


async def test_a_log_that_was_a_cache_is_judged_by_its_newest_segment(
    replicas: Replicas, start: StartBroker, folder: Path
) -> None:
    """As after an export and a start without redundancy."""
    await written_cache(replicas, ends=True)
    manifest = read_manifest(folder)
    write_manifest(folder, structs.replace(manifest, format=MANIFEST_FORMAT, cache_of=None))
    broker = await start()
    await broker.rig.store(1, 6, 1)
    await broker.log.close()
    lose_manifest(folder, None)

    again = await start(accept_loss=True)

    assert len((await again.rig.page(1, [0, 7]))[0]) == 7
