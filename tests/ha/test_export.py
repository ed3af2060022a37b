"""``cmqd ha export``: a log moves from an engine into a folder; at no time two brokers could lead it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.engine.engine_errors import LogRetired, RowsBehind
from cmqd.ha import exporting
from cmqd.ha.exporting import Refused, copy_log, export_folder, finish
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.server.access.accounts_file import ADMIN, AccountsFile, new_document, new_key
from cmqd.server.redundancy.engine_accounts import encode_accounts
from cmqd.storage.storage_errors import WrongFolder
from cmqd_segment.manifest import MANIFEST_FORMAT, CacheOf, Manifest, read_manifest, write_manifest
from support.engine.memory_engine import Fault
from support.engine.moved_logs import PINS, Killed, copied, copy_servers, files, is_killed, killed_at, write_folder
from support.engine.replicas import LogToTheEnd, Replicas
from support.eventually import eventually
from support.storage.full_disk import Broker
from support.storage.log_rig import NOW_MS, body

DOCUMENT = new_document(NOW_MS)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    """An engine with a log: fence 1, rows 2 to 8 with a message each, rows 4 and 5 reclaimed, accounts."""
    made = Replicas(tmp_path)
    await write_log(made)
    yield made
    await made.end()


async def write_log(replicas: Replicas) -> None:
    leader = await replicas.leader("a")
    rig = leader.rig
    for index in range(6):
        await rig.store(1, index, 1)
        if index % 2:
            await rig.log.seal_now()
    stored = structs.replace(DOCUMENT, gateway_key=new_key(ADMIN, NOW_MS))
    await leader.log.store_accounts(encode_accounts(stored), expected_version=0)
    await leader.log.keep_standing_pins(PINS)
    await rig.checkpoint()
    await rig.checkpoint()
    _first, second, *_ = leader.log.closed_segments()
    assert await leader.log.drop_segments([second.number], leader.log.last_lsn) == [second.number]
    await rig.store(1, 6, 1)
    await leader.log.close()
    await leader.end()


def quiet(_line: str) -> None:
    """Print nothing."""


def exports(replicas: Replicas, name: str) -> None:
    """Run the command on the folder with this name."""
    engine = replicas.engine()
    folder = replicas.folder / name
    try:
        export_folder(folder, engine, 0, lambda: LogToTheEnd(replicas, folder), quiet)
    finally:
        engine.close()


async def serves(folder: Path) -> None:
    """Start a broker without redundancy on an exported folder, and read and write messages."""
    broker = Broker(folder)
    try:
        report = await broker.rig.open()
        # On a slow machine a stop leaves a segment to be sealed by the next start.
        assert {finding.kind for finding in report.findings} <= {"unclean_stop"}
        assert broker.log.standing_pins == PINS
        messages, _missing = await broker.rig.page(1, [0, 7])
        assert [(message.position, message.body) for message in messages] == [
            (position, body(1, position)) for position in (0, 1, 4, 5, 6)
        ]
        assert await broker.rig.store(1, 7, 1) == broker.rig.log.last_lsn
        await broker.log.close()
    finally:
        await broker.log.kill()
        assert broker.process.task is not None
        await broker.process.task


@pytest.mark.parametrize("name", ["a", "empty"])
async def test_an_exported_log_is_served_without_redundancy(replicas: Replicas, tmp_path: Path, name: str) -> None:
    """From its own cache, and copied into an empty folder."""
    log_id = replicas.engine().log_id()

    await asyncio.to_thread(exports, replicas, name)

    manifest = read_manifest(tmp_path / name)
    assert (manifest.format, manifest.cache_of, manifest.log_id) == (MANIFEST_FORMAT, None, log_id)
    assert AccountsFile(tmp_path / name).read() == DOCUMENT, "without the key of the gateways"
    assert manifest.standing_pins == PINS
    await serves(tmp_path / name)


async def test_no_broker_leads_an_exported_log(replicas: Replicas, tmp_path: Path) -> None:
    await asyncio.to_thread(exports, replicas, "a")
    rows = list(replicas.rows)

    for name in ("b", "a"):
        with pytest.raises(WrongFolder, match="is retired: it was exported to a data folder"):
            await replicas.leader(name)

    assert replicas.rows == rows
    with pytest.raises(Refused, match="has been exported already"):
        await asyncio.to_thread(exports, replicas, "a")
    with pytest.raises(Refused, match="it was exported to another folder"):
        await asyncio.to_thread(exports, replicas, "c")


async def test_a_standby_that_waits_never_leads_an_exported_log(replicas: Replicas, tmp_path: Path) -> None:
    """It gets the lock behind the export, and no lead."""
    engine = replicas.engine()
    assert engine.try_lead()
    standby = replicas.broker("b")
    opening = asyncio.create_task(standby.rig.open())
    await eventually(lambda: [lsn for lsn, _, _ in standby.rig.rows] == [8])
    engine.take()
    engine.retire(9)

    engine.close()

    with pytest.raises(LogFailed, match="is retired"):
        await opening


async def test_an_export_is_refused_while_a_broker_leads(replicas: Replicas, tmp_path: Path) -> None:
    leader = await replicas.leader("a")

    with pytest.raises(Refused, match=r"a broker leads log .*: stop all brokers"):
        await asyncio.to_thread(exports, replicas, "b")

    assert not (tmp_path / "b").exists()
    assert await leader.rig.store(1, 7, 1) == 10


async def test_a_broker_that_led_behind_the_copy_keeps_the_log(replicas: Replicas, tmp_path: Path) -> None:
    await copy_log(lambda: LogToTheEnd(replicas, tmp_path / "a"))
    leader = await replicas.leader("b")
    await leader.log.close()
    cache = read_manifest(tmp_path / "a").cache_of
    assert cache is not None

    with pytest.raises(LogError, match="row 10 of the engine is not in the folder"):
        await asyncio.to_thread(finish, tmp_path / "a", replicas.engine(), cache, quiet)

    assert read_manifest(tmp_path / "a").cache_of == cache
    assert replicas.engine().log_id() == cache.log_id


async def test_a_broker_that_led_behind_the_comparison_keeps_the_log(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lead(_path: Path) -> None:
        replicas.engine().take()

    monkeypatch.setattr(exporting, "_sync", lead)

    with pytest.raises(RowsBehind, match="ends with row 10, not with 9"):
        await asyncio.to_thread(exports, replicas, "a")

    assert read_manifest(tmp_path / "a").cache_of is not None
    assert replicas.engine().log_id() is not None


async def own_log(replicas: Replicas, folder: Path) -> None:
    await write_folder(folder)


async def cache_of_another_log(replicas: Replicas, folder: Path) -> None:
    await write_folder(folder)
    manifest = read_manifest(folder)
    write_manifest(folder, Manifest(format=3, cache_of=CacheOf("other", 0), log_id="other", segments=manifest.segments))


@pytest.mark.parametrize(
    ("prepare", "text"),
    [(own_log, "holds rows up to 7 of log .* written without redundancy"), (cache_of_another_log, "is no cache of")],
)
async def test_a_folder_with_another_log_is_refused_and_not_changed(
    replicas: Replicas, tmp_path: Path, prepare: Callable[..., asyncio.Future[None]], text: str
) -> None:
    await prepare(replicas, tmp_path / "own")
    before, rows = files(tmp_path / "own"), list(replicas.rows)

    with pytest.raises(LogError, match=text):
        await asyncio.to_thread(exports, replicas, "own")

    assert files(tmp_path / "own") == before
    assert replicas.rows == rows


async def test_an_empty_engine_has_no_log_to_export(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the engine is empty"):
        await asyncio.to_thread(exports, Replicas(tmp_path), "a")


@pytest.mark.parametrize("last", [Fault.NONE, Fault.LOSE_ANSWER, Fault.LATE_REQUEST], ids=lambda fault: fault.name)
async def test_an_export_that_was_killed_leaves_one_log_and_is_repeated(
    replicas: Replicas, tmp_path: Path, last: Fault
) -> None:
    """A kill between any two steps behind the copy. Brokers can lead the engine's log, or serve the folder, or neither;
    never both.
    """
    await copy_log(lambda: LogToTheEnd(replicas, tmp_path / "a"))
    cache = read_manifest(tmp_path / "a").cache_of
    assert cache is not None
    outcomes: set[bool] = set()
    folder = tmp_path / "a"
    for number in count():
        again = Replicas(tmp_path / f"{number}")
        copy_servers(replicas.database, again.database)
        folder = copied(tmp_path / "a", again.folder / "a")
        with killed_at(again.database, number, last):
            was_killed = await asyncio.to_thread(is_killed, finish, folder, again.engine(), cache, quiet)
        if not was_killed:
            break
        assert read_manifest(folder).cache_of == cache
        try:
            assert again.engine().log_id() == cache.log_id
        except LogRetired:
            outcomes.add(True)
        else:
            outcomes.add(False)

        await asyncio.to_thread(exports, again, "a")

        assert read_manifest(folder).cache_of is None
        with pytest.raises(LogRetired):
            again.engine().take()
    assert outcomes == {False, True}, "kills before and after the end of the log in the engine"
    await serves(folder)


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_kill_around_the_end_of_the_mark(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    def write_and_die(path: Path, manifest: Manifest) -> None:
        if is_own:
            write_manifest(path, manifest)
        raise Killed

    monkeypatch.setattr(exporting, "write_manifest", write_and_die)
    assert await asyncio.to_thread(is_killed, exports, replicas, "a")
    monkeypatch.undo()

    if not is_own:
        with pytest.raises(LogRetired):
            replicas.engine().take()
        await asyncio.to_thread(exports, replicas, "a")
    await serves(tmp_path / "a")
