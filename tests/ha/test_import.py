"""``cmqd ha import``: a folder's log moves into an empty engine; a mistake or a kill loses nothing."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.__main__ import main
from cmqd.engine.engine_errors import NotEmpty
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow, ImportedLog
from cmqd.exit_codes import ExitCode
from cmqd.ha import importing
from cmqd.ha.importing import Refused, import_folder
from cmqd.ha.stopped_folder import StoppedFolder
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.server.access.accounts_file import AccountsFile, new_document
from cmqd.server.redundancy.engine_accounts import decode_accounts
from cmqd.storage.folder.data_folder import locked_folder
from cmqd.storage.folder.log_identity import give_new_log_id
from cmqd.storage.redundancy.standing_pins import decode_standing_pins
from cmqd.storage.storage_errors import FolderLocked, WrongFolder
from cmqd_segment.manifest import (
    CACHE_FORMAT,
    CacheOf,
    LossEntry,
    Manifest,
    Restored,
    StandingPinEntry,
    read_manifest,
    write_manifest,
)
from cmqd_segment.records import NumbersReserved
from support.engine.memory_engine import Fault
from support.engine.moved_logs import PINS, Killed, copied, files, is_killed, killed_at, write_folder
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.storage.full_disk import Broker
from support.storage.log_rig import NOW_MS, body

LAST_LSN = 7


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


@pytest.fixture(params=[True, False], ids=["stopped in order", "ended"])
async def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    await write_folder(tmp_path / "a", ends=request.param)
    return tmp_path / "a"


def imports(replicas: Replicas, folder: Path, shard: int = 0) -> None:
    """Run the command."""
    engine = replicas.engine()
    try:
        import_folder(folder, engine, shard, lambda _line: None)
    finally:
        engine.close()


async def test_an_imported_log_is_served_from_its_folder_and_from_an_empty_one(
    replicas: Replicas, folder: Path
) -> None:
    log_id = read_manifest(folder).log_id
    document = AccountsFile(folder).read()

    await asyncio.to_thread(imports, replicas, folder)

    assert read_manifest(folder).cache_of == CacheOf(log_id, 0)
    assert [(row.lsn, row.epoch) for row in replicas.rows] == [(1, 0), (2, 0), (5, 0), (6, 0), (7, 0), (8, 8)]
    stored = replicas.engine().load_accounts()
    assert stored is not None
    assert decode_accounts(stored) == document
    leader = await replicas.leader("a")
    assert leader.rig.report is not None
    assert leader.rig.report.log_id == log_id
    assert "set_aside" not in [finding.kind for finding in leader.rig.report.findings]
    assert (leader.log.epoch, await leader.rig.store(1, 7, 1)) == (9, 10)
    assert leader.log.standing_pins == PINS
    await leader.end()
    other = await replicas.leader("b")
    messages, _missing = await other.rig.page(1, [0, 8])
    assert [(message.position, message.body) for message in messages] == [
        (position, body(1, position)) for position in (0, 1, 4, 5, 6, 7)
    ]
    assert read_manifest(other.folder).log_id == log_id
    assert other.log.standing_pins == PINS
    assert [read_manifest(path).standing_pins for path in (folder, other.folder)] == [[], []]


async def test_a_log_without_standing_pins_is_imported_into_tables_without_their_column(
    replicas: Replicas, folder: Path
) -> None:
    replicas.database.keeps_standing_pins = replicas.database.may_add_columns = False
    change_manifest(folder, standing_pins=[])

    await asyncio.to_thread(imports, replicas, folder)

    assert (await replicas.leader("a")).log.standing_pins is None


async def test_the_import_adds_the_column_of_the_standing_pins(replicas: Replicas, folder: Path) -> None:
    replicas.database.keeps_standing_pins = False

    await asyncio.to_thread(imports, replicas, folder)

    assert (await replicas.leader("a")).log.standing_pins == PINS


async def test_a_standby_that_waited_for_an_import_has_the_mark(replicas: Replicas, tmp_path: Path) -> None:
    """Its first manifest could not name the log: the engine was empty."""
    folder = tmp_path / "a"
    await write_folder(folder, reclaims=False)
    engine = replicas.engine()
    assert engine.try_lead()
    standby = replicas.broker("b")
    opening = asyncio.create_task(standby.rig.open())
    await eventually(lambda: (standby.folder / "manifest").exists() and len(replicas.database.sessions) > 2)
    await asyncio.to_thread(imports, replicas, folder)
    await eventually(lambda: len(standby.rig.rows) == 8)

    assert read_manifest(standby.folder).cache_of == CacheOf(read_manifest(folder).log_id, 0)
    assert read_manifest(standby.folder).starts[0].first_lsn == 8
    engine.close()
    await opening
    assert standby.log.epoch == 9


def test_an_import_is_compared_row_by_row(replicas: Replicas, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine returns a row with another body."""
    before = files(folder)
    rows = FencedEngine.rows

    def altered(engine: FencedEngine, above: int) -> Iterator[EngineRow]:
        for row in rows(engine, above):
            yield row._replace(data=b"another") if row.lsn == 6 else row

    monkeypatch.setattr(FencedEngine, "rows", altered)

    with pytest.raises(LogFailed, match="row 6 of the engine is another one; the folder stays"):
        imports(replicas, folder)

    assert files(folder) == before


def change_manifest(folder: Path, **changes: object) -> None:
    write_manifest(folder, structs.replace(read_manifest(folder), **changes))


def lead(replicas: Replicas, _folder: Path) -> None:
    replicas.engine().take()


def import_other_log(replicas: Replicas, _folder: Path) -> None:
    replicas.engine().import_log(ImportedLog("other", 0, lambda: iter(()), None, b"keys"))


def mark(_replicas: Replicas, folder: Path) -> None:
    change_manifest(folder, format=CACHE_FORMAT, cache_of=CacheOf(read_manifest(folder).log_id, 0))


def note_loss(_replicas: Replicas, folder: Path) -> None:
    change_manifest(folder, losses=[LossEntry(8, 8, "missing")])


def damage_row(_replicas: Replicas, folder: Path) -> None:
    """In a sealed segment below the checkpoint, whose rows a start does not read."""
    path = folder / "segments/00000001.db"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(body(1, 0), body(9, 9)))


def remove_segment(_replicas: Replicas, folder: Path) -> None:
    (folder / "segments/00000001.db").unlink()


def damage_checkpoint(_replicas: Replicas, folder: Path) -> None:
    newest = read_manifest(folder).checkpoints[-1]
    (folder / newest.file).write_bytes(b"?")


def change_log_id(_replicas: Replicas, folder: Path) -> None:
    give_new_log_id(folder)


def restore(_replicas: Replicas, folder: Path) -> None:
    change_manifest(folder, restored=Restored(LAST_LSN, NOW_MS, 0))


def clone(_replicas: Replicas, folder: Path) -> None:
    change_manifest(folder, restored=Restored(LAST_LSN, NOW_MS, 0, is_clone=True))


def lack_column(replicas: Replicas, _folder: Path) -> None:
    replicas.database.keeps_standing_pins = replicas.database.may_add_columns = False


def remove_accounts(_replicas: Replicas, folder: Path) -> None:
    AccountsFile(folder).path.unlink()


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lead, "the engine is not empty: it has log 0+1, with rows up to 1"),
        (import_other_log, "the engine is not empty: it has log other, with rows up to 1"),
        (mark, "is a cache of log .* already; nothing was changed"),
        (note_loss, "has losses, and nothing was changed: rows 8 to 8: missing"),
        (damage_row, "row 1 of .* does not match its checksums"),
        (remove_segment, "nothing was changed: segment segments/00000001.db is missing"),
        (damage_checkpoint, "nothing was changed: checkpoint .* cannot be used"),
        (change_log_id, "start the broker once without redundancy, until it has written a checkpoint"),
        (restore, "was restored from a backup: start its broker once without redundancy"),
        (clone, "is a clone: start its broker once without redundancy"),
        (remove_accounts, "has no accounts.json"),
        (lack_column, r"the standing pins of backups \(hourly, nightly\), and the tables .* 'cmqd ha check'"),
    ],
)
def test_a_mistake_is_refused_and_changes_nothing(
    replicas: Replicas, folder: Path, mistake: Callable[[Replicas, Path], None], text: str
) -> None:
    mistake(replicas, folder)
    before, rows = files(folder), list(replicas.rows)

    with pytest.raises(LogError, match=text):
        imports(replicas, folder)

    assert files(folder) == before
    assert replicas.rows == rows


def test_a_folder_in_use_is_refused(replicas: Replicas, folder: Path) -> None:
    with locked_folder(folder), pytest.raises(FolderLocked, match="in use by process"):
        imports(replicas, folder)

    assert replicas.rows == []


def test_a_folder_without_a_manifest_is_refused(replicas: Replicas, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        imports(replicas, tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("shard", "ids"), [(0, 1 << 52), (3, 1)], ids=["ids of 2^52", "another shard"])
async def test_a_log_with_message_ids_of_another_shard_is_refused(
    replicas: Replicas, tmp_path: Path, shard: int, ids: int
) -> None:
    folder = tmp_path / "a"
    broker = Broker(folder)
    await broker.rig.open()
    broker.log.append([NumbersReserved(ids + 1, 1, 1)], (), NOW_MS)
    await broker.rig.commit()
    await broker.log.close()
    AccountsFile(folder).write(new_document(NOW_MS))
    before = files(folder)

    with pytest.raises(Refused, match=rf"the message ids of the log reach {ids}.* the server is shard {shard}"):
        await asyncio.to_thread(imports, replicas, folder, shard)

    assert (files(folder), replicas.rows) == (before, [])


def pins_of(replicas: Replicas) -> list[StandingPinEntry]:
    """Return the standing pins of the engine."""
    return decode_standing_pins(replicas.engine().load_standing_pins() or b"")


@pytest.mark.parametrize("last", [Fault.NONE, Fault.LOSE_ANSWER, Fault.LATE_REQUEST], ids=lambda fault: fault.name)
def test_an_import_that_was_killed_leaves_a_whole_log_in_the_folder_and_is_repeated(
    tmp_path: Path, folder: Path, last: Fault
) -> None:
    """A kill between any two steps; the answer of the last step was seen, or not, or the step comes later."""
    log_id = read_manifest(folder).log_id
    outcomes: set[bool] = set()
    for number in count():
        replicas = Replicas(tmp_path)
        killed = copied(folder, tmp_path / "killed")
        with killed_at(replicas.database, number, last):
            was_killed = is_killed(imports, replicas, killed)
        if not was_killed:
            break
        assert read_manifest(killed).cache_of is None
        assert StoppedFolder(killed).last_lsn == LAST_LSN
        lsns = [row.lsn for row in replicas.rows]
        assert lsns in ([], [1, 2, 5, 6, 7, 8])
        outcomes.add(bool(lsns))
        assert (replicas.engine().log_id(), replicas.engine().load_accounts() is None) == (
            (log_id, False) if lsns else (None, True)
        )
        assert read_manifest(killed).standing_pins == PINS
        assert pins_of(replicas) == (PINS if lsns else [])

        imports(replicas, killed)

        assert read_manifest(killed).cache_of == CacheOf(log_id, 0)
        assert [row.lsn for row in replicas.rows] == [1, 2, 5, 6, 7, 8]
        assert pins_of(replicas) == PINS
    assert outcomes == {False, True}, "kills before and after the commit"


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_kill_around_the_mark(
    replicas: Replicas, folder: Path, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    def write_and_die(path: Path, manifest: Manifest) -> None:
        if is_marked:
            write_manifest(path, manifest)
        raise Killed

    monkeypatch.setattr(importing, "write_manifest", write_and_die)
    with pytest.raises(Killed):
        imports(replicas, folder)
    monkeypatch.undo()

    if is_marked:
        with pytest.raises(WrongFolder, match="already"):
            imports(replicas, folder)
    else:
        assert StoppedFolder(folder).last_lsn == LAST_LSN
        assert read_manifest(folder).standing_pins == PINS
        imports(replicas, folder)
    assert read_manifest(folder).cache_of is not None
    assert pins_of(replicas) == PINS


def test_standing_pins_that_changed_between_a_kill_and_its_repeat_are_imported(
    replicas: Replicas, folder: Path, tmp_path: Path
) -> None:
    """The broker of the folder ran meanwhile, and another backup began."""
    imports(replicas, copied(folder, tmp_path / "killed before its mark"))
    later = [StandingPinEntry("other", NOW_MS, 1000)]
    change_manifest(folder, standing_pins=later)

    imports(replicas, folder)

    assert pins_of(replicas) == later


def test_an_import_is_compared_with_its_standing_pins(
    replicas: Replicas, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(folder)
    monkeypatch.setattr(FencedEngine, "load_standing_pins", lambda _engine: b"[]")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    with pytest.raises(LogFailed, match="other standing pins; the folder stays"):
        imports(replicas, folder)

    assert files(folder) == before


async def test_an_import_behind_a_leader_is_refused(replicas: Replicas, folder: Path, tmp_path: Path) -> None:
    """Killed before its mark, then a broker led: the folder is not the log any more."""
    await asyncio.to_thread(imports, replicas, copied(folder, tmp_path / "copy"))
    leader = await replicas.leader("b")
    await leader.log.close()

    with pytest.raises(NotEmpty, match=f"has log {read_manifest(folder).log_id}, with rows up to 9"):
        await asyncio.to_thread(imports, replicas, folder)

    assert read_manifest(folder).cache_of is None


def test_an_import_that_the_old_primary_alone_has_is_made_again(replicas: Replicas, folder: Path) -> None:
    """Its commit is cancelled while the standby is cut off, which is answered as a success; then the standby leads."""
    database = replicas.database
    waits = 0

    def on_step(_server: str, step: str) -> Fault:
        if step == "commit" and not waits:
            database.link("b", is_cut=True)
        return Fault.NONE

    def pause() -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            database.cancel("a")
            assert [row.lsn for row in replicas.rows] == [1, 2, 5, 6, 7, 8]
        elif waits == 2:
            database.promote("b", "c")
            database.follow("c", "b")
            assert replicas.rows == []

    database.on_step, database.pause = on_step, pause

    imports(replicas, folder)

    assert waits >= 2
    assert database.newest_primary().name == "b"
    assert [row.lsn for row in replicas.rows] == [1, 2, 5, 6, 7, 8]
    assert read_manifest(folder).cache_of is not None


def test_a_wait_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Import and export wait for the engine as long as a broker does: the operator must learn for what."""
    pauses = 0

    sleep = time.sleep

    def pause(seconds: float) -> None:
        nonlocal pauses
        if threading.current_thread() is not threading.main_thread():
            # Threads that earlier tests of the process have left.
            sleep(seconds)
            return
        pauses += 1
        if pauses == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)

    assert main(["ha", "export", "new", "--engine-url", "postgresql://cmqd:hush@127.0.0.1:1/cmqd"]) == (
        ExitCode.CANNOT_OPEN
    )

    told = capsys.readouterr().err
    assert told.count("cmqd: waits for a primary: no server takes writes (127.0.0.1:1: ") == 1
    assert told.endswith("cmqd: interrupted; repeat the command\n")
    assert "hush" not in told
