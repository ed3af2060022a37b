"""Side files of sealed segments: written by the seal, made anew where they are missing, and gone with their segment."""

import shutil
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cmqd.storage.writing import sealer, side_files
from cmqd_reading.naming import names_message
from cmqd_segment.manifest import SegmentEntry, SegmentState, read_manifest, write_manifest
from cmqd_segment.records import ActorSeen, MessagesDeleted, MessagesReceived
from cmqd_segment.scan import verify_side
from cmqd_segment.schema import open_read_only, read_actors
from cmqd_segment.side import SideHistory, SidePlan, decode_side
from cmqd_types.actors import Actor
from support.eventually import eventually
from support.formats.archives import ARCHIVES, unpack
from support.storage.damage import spoil
from support.storage.full_disk import Broker, StartBroker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig, OpenProcess, deleted
from support.storage.verified import verify_folder

pytestmark = pytest.mark.system


def sealed(folder: Path) -> list[SegmentEntry]:
    return [entry for entry in read_manifest(folder).segments if entry.state is SegmentState.SEALED]


def read_side(folder: Path, entry: SegmentEntry) -> tuple[SidePlan, SideHistory]:
    assert entry.side is not None
    data = (folder / entry.side_file).read_bytes()
    assert (len(data), sha256(data).hexdigest()) == (entry.side.bytes, entry.side.sha256)
    assert verify_side(folder, entry) == ""
    return decode_side(data)


def files_of(folder: Path) -> set[str]:
    return {path.name for path in (folder / "segments").glob("*.side*")}


def is_complete(folder: Path) -> bool:
    return all(entry.side is not None for entry in sealed(folder))


def as_of_an_older_version(folder: Path) -> None:
    """Remove the side files, and what the manifest says about them."""
    manifest = read_manifest(folder)
    segments = [structs.replace(entry, side=None) for entry in manifest.segments]
    write_manifest(folder, structs.replace(manifest, segments=segments))
    for path in (folder / "segments").glob("*.side"):
        path.unlink()


async def three_segments(rig: LogRig) -> None:
    for number in range(3):
        await rig.store(1, 10 * number, 10)
        await rig.log.seal_now()


async def test_the_seal_writes_the_side_file(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 3)
    await rig.log.seal_now()
    await rig.store(2, 0, 4)
    rig.log.append([MessagesReceived(1, [2, 1], 77, NOW_MS, NOW_MS), deleted(1, 0, 1)], [], NOW_MS)
    await rig.commit()
    await rig.log.close()

    first, second = sealed(folder)
    plan, history = read_side(folder, first)
    assert (plan.segment, plan.sha256) == (first.number, first.sha256)
    assert (plan.lowest_message_id, plan.highest_message_id) == (1000, 1002)
    assert [(source.id, source.messages, source.bytes) for source in plan.sources] == [(1, 3, 120)]
    assert [names_message(history, 1, position) for position in range(4)] == [True, True, True, False]
    plan, history = read_side(folder, second)
    assert [source.id for source in plan.sources] == [2]
    assert [names_message(history, 1, position) for position in range(4)] == [True, False, True, False]
    assert names_message(history, 9, 9, [77])
    assert not names_message(history, 9, 9, [78])
    assert verify_folder(folder) == []


async def test_folders_of_older_versions_get_side_files_in_the_background(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await three_segments(rig)
    await rig.log.close()
    before = {entry.number: entry for entry in sealed(folder)}
    as_of_an_older_version(folder)

    await open_process()
    await eventually(lambda: is_complete(folder))

    assert {entry.number: entry for entry in sealed(folder)} == before
    assert len(files_of(folder)) == 3
    for entry in before.values():
        assert read_side(folder, entry)[0].segment == entry.number


async def test_the_segments_of_format_1_get_side_files_and_stay_untouched(tmp_path: Path) -> None:
    folder, _ = unpack(ARCHIVES[0], tmp_path)
    before = {entry.number: entry.sha256 for entry in sealed(folder)}
    rig = LogRig(ForkedPlace(folder).log())
    await rig.open()
    await eventually(lambda: sealed(folder) and is_complete(folder))
    await rig.log.close()

    assert before.keys() <= {entry.number for entry in sealed(folder)}
    assert verify_folder(folder) == []
    plans = [read_side(folder, entry)[0] for entry in sealed(folder)]
    assert any(plan.sources for plan in plans)
    assert all(entry.sha256 == before.get(entry.number, entry.sha256) for entry in sealed(folder))


def missing(path: Path) -> None:
    path.unlink()


def shorter(path: Path) -> None:
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:-1])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "told"),
    [(missing, "is missing and is made anew"), (shorter, "bytes instead of"), (flipped, None)],
)
async def test_a_side_file_that_is_gone_or_damaged_is_made_anew(
    open_process: OpenProcess, folder: Path, harm: Callable[[Path], None], told: str | None
) -> None:
    rig = await open_process()
    await three_segments(rig)
    await rig.log.close()
    before = sealed(folder)
    harm(folder / before[1].side_file)
    (fault,) = verify_folder(folder)
    assert before[1].side_file in fault

    rig = await open_process()

    assert rig.report is not None
    assert [finding.kind for finding in rig.report.findings] == (["side_file"] if told else [])
    assert all(told is not None and told in finding.text for finding in rig.report.findings)
    await eventually(lambda: is_complete(folder) and not verify_folder(folder))
    assert sealed(folder) == before


async def test_a_side_file_that_no_manifest_lists_is_removed(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await three_segments(rig)
    await rig.log.close()
    (folder / "segments" / "00000099.side").write_bytes(b"whatever")
    (folder / "segments" / "00000001.side.tmp").write_bytes(b"half of it")

    rig = await open_process()

    assert files_of(folder) == {f"{entry.number:08d}.side" for entry in sealed(folder)}
    assert rig.report is not None
    assert rig.report.findings == ()


async def test_a_dropped_segment_takes_its_side_file_along(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await three_segments(rig)
    await rig.checkpoint()
    first, *others = sealed(folder)

    assert await rig.log.drop_segments([first.number], 0) == [first.number]

    assert files_of(folder) == {f"{entry.number:08d}.side" for entry in others}


async def test_a_drop_that_a_crash_cut_short_takes_the_side_file_along(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await three_segments(rig)
    await rig.checkpoint()
    await rig.log.close()
    manifest = read_manifest(folder)
    first, *others = manifest.segments
    dropping = structs.replace(first, state=SegmentState.DROPPING)
    write_manifest(folder, structs.replace(manifest, segments=[dropping, *others]))

    await open_process()

    assert f"{first.number:08d}.side" not in files_of(folder)


async def test_a_disk_that_is_nearly_full_has_no_room_for_side_files(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_files, "SHORT_DISK_SECONDS", 0.001)
    broker = await start()
    await broker.rig.store(1, 0, 3)
    mark = broker.process.service.log.space.mark_bytes()
    broker.disk.free = int(mark * 1.2)
    await eventually(lambda: broker.process.service.log.space.is_short)

    await broker.log.seal_now()

    (entry,) = sealed(folder)
    assert entry.side is None
    assert files_of(folder) == set()
    broker.disk.free = 1 << 30
    await eventually(lambda: is_complete(folder))
    read_side(folder, *sealed(folder))


async def test_a_seal_that_meets_a_full_disk_at_its_side_file_goes_on_without(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_files, "SHORT_DISK_SECONDS", 0.001)
    real, calls = side_files.write_side, count()

    def write_side(*arguments: Any) -> Any:
        if next(calls) < 3:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(side_files, "write_side", write_side)
    broker = await start()
    await broker.rig.store(1, 0, 3)

    await broker.log.seal_now()

    assert [entry.side for entry in sealed(folder)] == [None]
    await eventually(lambda: is_complete(folder))
    assert next(calls) == 4


async def test_a_segment_with_a_damaged_row_has_no_side_file_until_the_loss_is_accepted(
    open_process: OpenProcess, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rig = await open_process()
    await three_segments(rig)
    await rig.checkpoint()
    await rig.log.close()
    as_of_an_older_version(folder)
    spoil(folder / "segments" / "00000001.db", "meta", 1)

    rig = await open_process()
    await eventually(lambda: [entry.side is None for entry in sealed(folder)] == [True, False, False])
    await eventually(lambda: "row 1 of 00000001.db does not match its checksum" in capfd.readouterr().err)
    assert files_of(folder) == {f"{entry.number:08d}.side" for entry in sealed(folder)[1:]}


class Held:
    """Side files that are made under the hands of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
        real = side_files.write_side

        def write_side(path: Path, entry: SegmentEntry, *arguments: Any) -> Any:
            before(entry.number)
            return real(path, entry, *arguments)

        monkeypatch.setattr(side_files, "write_side", write_side)


async def old_folder(start: StartBroker, folder: Path) -> None:
    broker = await start()
    await three_segments(broker.rig)
    await broker.rig.checkpoint()
    await broker.log.close()
    as_of_an_older_version(folder)


async def test_a_segment_that_is_dropped_meanwhile_leaves_no_side_file(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_folder(start, folder)
    last = sealed(folder)[-1].number
    brokers: list[Broker] = []

    def drop(number: int) -> None:
        # The thread is about to read the segment; the loop drops the segment before the thread is done.
        if number == last:
            catalog = brokers[0].process.service.log.catalog
            catalog.sealed.pop(last, None)

    Held(monkeypatch, drop)
    brokers.append(await start())
    await eventually(lambda: len(files_of(folder)) == 2)
    await eventually(lambda: is_complete(folder))

    assert f"{last:08d}.side" not in files_of(folder)


async def test_a_stop_in_the_middle_keeps_the_side_files_that_are_made(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_folder(start, folder)
    made: list[int] = []
    brokers: list[Broker] = []

    def note(number: int) -> None:
        made.append(number)
        if len(made) == 3:
            brokers[0].process.service.log.drops.is_stopping = True

    Held(monkeypatch, note)
    brokers.append(await start())
    await eventually(lambda: len(made) == 3)
    await brokers[0].log.close()

    assert [entry.side is not None for entry in sealed(folder)] == [
        entry.number in made[:2] for entry in sealed(folder)
    ]
    assert len(files_of(folder)) == 2
    assert made == sorted(made, reverse=True), "the newest first"


async def test_a_kill_at_any_step_of_making_side_files_loses_nothing(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_folder(start, folder)
    expected = [structs.replace(entry, side=None) for entry in sealed(folder)]
    copies: list[Path] = []
    numbers = count()

    def snapshot_before(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            copies.append(copy_as_killed(folder, tmp_path / f"{next(numbers)}-{name}"))
            return original(*arguments, **named)

        patch.setattr(owner, name, call)

    broker = await start()
    with monkeypatch.context() as patch:
        for owner, name in (
            *((side_files.os, name) for name in ("fsync", "fchmod", "replace")),
            (side_files, "write_side"),
            (side_files, "sync_folder"),
        ):
            snapshot_before(patch, owner, name)
        await eventually(lambda: is_complete(folder))
    assert {path.name.partition("-")[2] for path in copies} == {
        "fsync",
        "fchmod",
        "replace",
        "write_side",
        "sync_folder",
    }
    assert broker.rig.fatal == []
    for copy in copies:
        rig = LogRig(ForkedPlace(copy).log())
        report = await rig.open()
        assert {finding.kind for finding in report.findings} <= {"unclean_stop"}, copy.name
        await eventually(lambda copy=copy: is_complete(copy))
        found = [structs.replace(entry, side=None) for entry in sealed(copy)]
        assert [entry for entry in found if entry in expected] == expected, copy.name
        await rig.log.close()
        assert verify_folder(copy) == [], copy.name
        shutil.rmtree(copy)


def facts_of(folder: Path) -> list[tuple[dict[int, Actor], SidePlan, SideHistory]]:
    found: list[tuple[dict[int, Actor], SidePlan, SideHistory]] = []
    for entry in sealed(folder)[:2]:
        with closing(open_read_only(folder / entry.file, sealed=True)) as raw:
            actors = read_actors(raw)
        plan, history = read_side(folder, entry)
        found.append((actors, structs.replace(plan, sha256=""), history))
    return found


async def test_a_kill_at_any_step_of_a_seal_changes_neither_actors_nor_side_file(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Path] = []
    numbers = count()

    def snapshot_before(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            copies.append(copy_as_killed(folder, tmp_path / f"{next(numbers)}-{name}"))
            return original(*arguments, **named)

        patch.setattr(owner, name, call)

    actors = [Actor("shop", "AKID", f"worker {number}", "10.0.0.1") for number in range(4)]
    broker = await start()
    broker.rig.log.append([ActorSeen(number, actors[number]) for number in (1, 2, 3)], [], NOW_MS)
    await broker.rig.store(1, 0, 3)
    await broker.rig.log.seal_now()
    broker.rig.log.append(
        [
            MessagesReceived(1, [0, 2], 77, NOW_MS, NOW_MS, [1, 3, 1, 1]),
            MessagesDeleted(1, [1, 1], [78, 1], NOW_MS, [3]),
        ],
        [],
        NOW_MS,
    )
    await broker.rig.commit()
    steps = ("copy_wal", "write_tables", "cut_wal", "truncate_wal", "finish_file")
    with monkeypatch.context() as patch:
        for name in steps:
            snapshot_before(patch, sealer, name)
        for owner, name in ((side_files.RowsRead, "read"), (side_files, "write_side"), (side_files.os, "replace")):
            snapshot_before(patch, owner, name)
        await broker.rig.log.seal_now()
    expected = facts_of(folder)
    assert [sorted(actors) for actors, _, _ in expected] == [[1, 2, 3], [1, 3]]
    assert {path.name.partition("-")[2] for path in copies} >= {*steps, "read", "write_side"}
    for copy in copies:
        rig = LogRig(ForkedPlace(copy).log())
        await rig.open()
        await eventually(lambda copy=copy: len(sealed(copy)) >= 2 and is_complete(copy))
        await rig.log.close()
        assert facts_of(copy) == expected, copy.name
        assert verify_folder(copy) == [], copy.name
        shutil.rmtree(copy)
