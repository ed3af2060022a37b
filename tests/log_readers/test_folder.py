"""Data folders: the rows of a moment, reclaimed rows, and files fetched from a URL."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

import cmqd_log
from cmq_cli.output import OutputForm
from cmq_cli.replays.counting import count_log
from cmq_cli.replays.order import Order
from cmq_cli.session import Session
from cmqd_client import connect
from cmqd_log.copy import counting
from cmqd_log.data_folder import folder as folder_module
from cmqd_log.data_folder.catalog import read_catalog
from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.log_files import LogFiles
from cmqd_log.data_folder.plan import Task, View, is_sealed
from cmqd_log.errors import DataLossError, FolderError, NewerFolderError, OptionError, SegmentReclaimedError
from cmqd_log.export import export, plan_export
from cmqd_log.options import Options, parse_options
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.reading.planning import first_offset, limited_offset, plan_batch
from cmqd_log.reading.tasks import read_stretches, read_task
from cmqd_segment.manifest import (
    CACHE_FORMAT,
    LossEntry,
    Manifest,
    SegmentEntry,
    SegmentState,
    read_manifest,
    write_manifest,
)
from cmqd_segment.rows import encode_records, meta_checksum
from cmqd_segment.schema import open_read_only
from support.eventually import eventually
from support.processes.running_server import RunningServer
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS, LogRig
from support.storage.wals import fill_ahead

pytestmark = pytest.mark.system
"""Segments are written by a storage process."""

HOUR_MS = 3_600_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sealed segments: rows 1-3, 4 and 5-6."""
    folder = tmp_path / "data"
    created = [queue_created(7, "orders"), queue_created(8, "bills")]
    write_folder(
        folder,
        [
            [(created, [], NOW_MS), sends(7, 0, 10), sends(8, 0, 5)],
            [sends(7, 10, 10, NOW_MS + HOUR_MS)],
            [sends(7, 20, 10, NOW_MS + 2 * HOUR_MS), sends(8, 5, 5, NOW_MS + 2 * HOUR_MS)],
        ],
    )
    return folder


def drop_second(folder: Path) -> None:
    manifest = read_manifest(folder)
    first, second, third = (entry for entry in manifest.segments if entry.rows)
    (folder / second.file).unlink()
    dropped = [(second.first_lsn, second.last_lsn)]
    write_manifest(folder, Manifest(clean=True, next_number=9, segments=[first, third], dropped=dropped))


def planned(folder: Path, **options: str) -> list[tuple[int, int]]:
    tasks = plan_batch(parse_options({"path": str(folder), **options}), ["lsn"])
    return [(task.piece.above, task.piece.upto) for task in tasks]


def test_a_folder_of_a_newer_version_is_told_from_a_damaged_one(folder: Path):
    manifest = folder / "manifest"
    written = manifest.read_bytes()
    write_manifest(folder, structs.replace(read_manifest(folder), format=CACHE_FORMAT + 1))
    with pytest.raises(NewerFolderError, match="use a newer cmqd"):
        planned(folder)
    manifest.write_bytes(b"\xff" + written)
    with pytest.raises(FolderError, match="cannot be read") as raised:
        planned(folder)
    assert not isinstance(raised.value, NewerFolderError)


@pytest.mark.parametrize("mode", ["events", "all"])
def test_a_record_of_a_newer_version_is_told(folder: Path, mode: str):
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        ((time_ms, messages, queues),) = raw.execute("SELECT time_ms, messages, queues FROM log WHERE lsn = 3")
        meta = encode_records([[99, 1]])
        checksum = meta_checksum(3, time_ms, messages, queues, meta)
        raw.execute("UPDATE log SET meta = ?, meta_crc = ? WHERE lsn = 3", (meta, checksum))

    with pytest.raises(NewerFolderError, match=r"records of kind 99.*use a newer cmqd"):
        read_lsns(folder, mode)


def read_lsns(folder: Path, mode: str) -> list[int]:
    tasks = plan_batch(parse_options({"path": str(folder), "mode": mode}), ["lsn"])
    return [start for task in tasks for _, _, start, *_ in read_stretches(task)]


def test_all_that_is_sealed(folder: Path):
    view = Folder(str(folder)).view(include_active=False)

    assert view.hi == 6
    assert [(one.first_lsn, one.last_lsn, is_sealed(one)) for one in view.extents] == [
        (1, 3, True),
        (4, 4, True),
        (5, 6, True),
    ]
    sources = read_catalog(Folder(str(folder)), view).sources
    assert {number: one.name for number, one in sources.items()} == {7: "orders", 8: "bills"}


def test_plans(folder: Path):
    assert planned(folder) == [(0, 3), (3, 4), (4, 6)]
    assert planned(folder, startingLsn="4", endingLsn="5") == [(3, 4), (4, 5)]
    assert planned(folder, startingTimestamp=str(NOW_MS + HOUR_MS)) == [(3, 4), (4, 6)]
    assert planned(folder, minPartitions="6") == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]


def test_segments_without_the_queue_are_left_out(folder: Path):
    assert planned(folder, queue="bills") == [(0, 3), (4, 6)]


def test_a_queue_that_the_log_does_not_know(folder: Path):
    with pytest.raises(OptionError, match=r"has no queue of this name up to row 6, .* includeActive"):
        planned(folder, queue="bils")
    with pytest.raises(OptionError, match=r"has no queue of this name up to row 6$"):
        planned(folder, queue="bils", includeActive="true")


def test_two_accounts_with_a_queue_of_one_name(tmp_path: Path):
    mine, theirs = queue_created(7, "orders"), structs.replace(queue_created(8, "orders"), account="other")
    bills = queue_created(9, "bills")
    write_folder(tmp_path / "data", [[([mine, theirs, bills], [], NOW_MS), sends(7, 0, 10), sends(8, 0, 5)]])

    def wanted(**options: str) -> list[frozenset[int] | None]:
        tasks = plan_batch(parse_options({"path": str(tmp_path / "data"), **options}), ["lsn"])
        return [task.wanted for task in tasks]

    assert wanted(queue="orders") == [frozenset({7, 8})]
    assert wanted(queue="orders", account="owner") == [frozenset({7})]
    assert wanted(queue="orders", account="other") == [frozenset({8})]
    assert wanted(account="other") == [frozenset({8})]
    with pytest.raises(OptionError, match=r"option 'account' cannot be 'nobody': the log of .* has no account of"):
        wanted(queue="orders", account="nobody")
    with pytest.raises(OptionError, match=r"has no account of this name"):
        wanted(account="nobody")
    with pytest.raises(OptionError, match=r"has no queue of this name in account 'other'"):
        wanted(queue="bills", account="other")


def test_rows_that_were_reclaimed(folder: Path):
    drop_second(folder)

    assert planned(folder) == [(0, 3), (4, 6)]
    with pytest.raises(DataLossError, match="no longer has row 4:"):
        planned(folder, startingLsn="1")
    assert planned(folder, startingLsn="1", failOnDataLoss="false") == [(0, 3), (4, 6)]
    assert planned(folder, startingLsn="5") == [(4, 6)]


def test_times_that_were_reclaimed(folder: Path):
    drop_second(folder)

    with pytest.raises(DataLossError, match="row 4"):
        planned(folder, startingTimestamp=str(NOW_MS + HOUR_MS))
    # Reclaimed rows may have been written in the same millisecond as the following rows.
    with pytest.raises(DataLossError, match="row 4"):
        planned(folder, startingTimestamp=str(NOW_MS + 2 * HOUR_MS))
    assert planned(folder, startingTimestamp=str(NOW_MS + 2 * HOUR_MS + 1)) == []


def told_otherwise(folder: Path, *gone: int, dropping: int = 0, retired: int = 0, lost: bool = False) -> None:
    """The manifest with segments, by their first rows, that are gone, on their way, or not sealed."""
    manifest = read_manifest(folder)
    segments: list[SegmentEntry] = []
    ranges: list[tuple[int, int]] = []
    for entry in manifest.segments:
        if entry.first_lsn in gone:
            ranges.append((entry.first_lsn, entry.last_lsn))
            (folder / entry.file).unlink()
        elif entry.first_lsn == dropping:
            segments.append(structs.replace(entry, state=SegmentState.DROPPING))
            (folder / entry.file).unlink()
        elif entry.first_lsn == retired:
            segments.append(structs.replace(entry, state=SegmentState.RETIRED, sha256=""))
            (folder / entry.file).chmod(0o644)
        elif entry.rows:
            segments.append(entry)
    active = SegmentEntry(90, SegmentState.ACTIVE), SegmentEntry(91, SegmentState.PREPARING)
    write_manifest(
        folder,
        Manifest(
            next_number=92,
            segments=[*segments, *active] if retired else segments,
            dropped=[] if lost else ranges,
            losses=[LossEntry(first, last, "missing") for first, last in ranges] if lost else [],
        ),
    )


def test_rows_behind_what_is_not_sealed_do_not_count_though_they_are_reclaimed(folder: Path):
    told_otherwise(folder, 4, 5, retired=1)

    view = Folder(str(folder)).view(include_active=False)

    assert (view.hi, view.extents) == (0, ())
    assert first_offset(view, parse_options({"path": str(folder)})) == 0
    assert planned(folder) == planned(folder, startingLsn="1") == planned(folder, startingTimestamp=str(NOW_MS)) == []


def test_rows_between_what_is_reclaimed_and_what_is_not_sealed(folder: Path):
    told_otherwise(folder, 1, 5, retired=4)

    view = Folder(str(folder)).view(include_active=False)

    assert (view.hi, view.extents) == (3, ())
    assert first_offset(view, parse_options({"path": str(folder)})) == 3


def test_a_segment_that_is_being_reclaimed_is_gone(folder: Path):
    told_otherwise(folder, dropping=4)

    view = Folder(str(folder)).view(include_active=False)

    assert (view.hi, view.gaps(1, 6)) == (6, [(4, 4)])


def test_a_hole_is_damage_whatever_else_is_being_reclaimed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    told_otherwise(folder, dropping=4)
    manifest = read_manifest(folder)
    write_manifest(folder, structs.replace(manifest, segments=[*manifest.segments[1:]]))
    monkeypatch.setattr(folder_module, "ATTEMPTS", 2)

    with pytest.raises(FolderError, match="no file holds rows 1 to 3"):
        Folder(str(folder)).view(include_active=False)


@pytest.mark.parametrize("lost", [False, True])
def test_the_newest_rows_are_gone(folder: Path, lost: bool):
    told_otherwise(folder, 4, 5, lost=lost)

    for given in ("1", "4", "6"):
        with pytest.raises(DataLossError, match=rf"rows? {max(int(given), 4)}"):
            planned(folder, startingLsn=given)
    with pytest.raises(DataLossError, match="rows 4 to 6"):
        planned(folder, startingTimestamp=str(NOW_MS + HOUR_MS))
    assert Folder(str(folder)).view(include_active=False).hi == 6
    assert planned(folder) == planned(folder, startingLsn="1", failOnDataLoss="false") == [(0, 3)]
    assert planned(folder, startingLsn="7") == []


def test_a_first_row_beyond_the_row_to_be_written_next_is_refused(folder: Path):
    assert planned(folder, startingLsn="7") == []
    for options in ({}, {"mode": "all"}, {"failOnDataLoss": "false"}):
        with pytest.raises(OptionError, match=r"cannot be 8: the newest readable row .* row 6; give at most 7"):
            planned(folder, startingLsn="8", **options)


def test_unsealed_rows_count_for_the_first_row(tmp_path: Path):
    folder = tmp_path / "data"

    def look(rig: LogRig) -> None:
        assert planned(folder, startingLsn="4") == planned(folder, startingLsn="5") == []
        with pytest.raises(OptionError, match=r"newest readable row of .* is row 4; give at most 5"):
            planned(folder, startingLsn="6")

    write_folder(folder, [[sends(7, 0, 5), sends(7, 5, 5)]])
    write_folder(folder, [[sends(7, 10, 5), sends(7, 15, 5)]], before_close=look)


def test_a_first_time_after_the_newest_row_is_a_log_line(folder: Path, caplog: pytest.LogCaptureFixture):
    late = str(NOW_MS + 10 * HOUR_MS)

    assert planned(folder)
    assert planned(folder, startingTimestamp=str(NOW_MS))
    assert not caplog.records
    assert planned(folder, startingTimestamp=late) == []
    (told,) = [record.message for record in caplog.records]
    assert "row 6, is of 2023-11-1" in told
    assert told.endswith("'startingTimestamp' is 2023-11-15T08:13:20.000Z")


def test_filters_ask_for_nothing_that_has_to_be_there(folder: Path):
    drop_second(folder)
    options = parse_options({"path": str(folder)})
    narrower = replace(options, starting_ms=NOW_MS + HOUR_MS)

    tasks = plan_batch(narrower, ["lsn"], asked=options)

    assert [(task.piece.above, task.piece.upto) for task in tasks] == [(4, 6)]


def bodies_of(data: Path, **options: str) -> list[bytes]:
    tasks = plan_batch(parse_options({"path": str(data), **options}), ["body"])
    found: list[bytes] = []
    for task in tasks:
        with Folder(str(data)).opened(task.piece.extent) as raw:
            found += [row[0] for row in raw.execute("SELECT data FROM log WHERE messages > 0 ORDER BY lsn").fetchall()]
    return found


async def test_a_broker_with_a_live_message_in_its_first_segment_and_nothing_behind(tmp_path: Path):
    with RunningServer(tmp_path, "--segment-bytes", str(1 << 20)) as server:
        data, path = server.data, str(server.data)
        async with connect(server.url) as client:
            kept = await client.ensure_queue("kept")
            work = await client.ensure_queue("work", visibility_timeout=3600)
            await kept.send(b"live")
            first = read_manifest(data).segments[0]
            # An old snapshot, so that the segment stays unsealed, without a wait of a minute.
            with contextlib.closing(open_read_only(data / first.file, sealed=False)) as raw:
                raw.execute("BEGIN")
                assert raw.execute("SELECT count(*) FROM log").fetchone()[0] > 0
                while not read_manifest(data).dropped:
                    await work.send_batch([b"." * 60_000] * 8)
                    while messages := await work.receive(32, wait=0):
                        await work.delete_batch(messages)
                assert read_manifest(data).segments[0].state is SegmentState.RETIRED

                sealed = Folder(path).view(include_active=False)
                assert (sealed.hi, sealed.extents) == (0, ())
                assert first_offset(sealed, parse_options({"path": path})) == 0
                assert planned(data, startingLsn="1") == []
                # Segments that nothing needs go together, and each takes its time: look while none goes.
                found: list[tuple[View, list[tuple[int, int]]]] = []

                def is_seen() -> bool:
                    before, view, after = (
                        read_manifest(data),
                        Folder(path).view(include_active=True),
                        read_manifest(data),
                    )
                    found.append((view, before.dropped))
                    states = [entry.state for entry in (*before.segments, *after.segments)]
                    return SegmentState.DROPPING not in states and before.dropped == after.dropped

                await eventually(is_seen)
                everything, dropped = found[-1]
                assert everything.extents[0].first_lsn == 1
                assert everything.gaps(1, dropped[-1][1]) == dropped

    # Stopped in order: all that is left is sealed, and read.
    assert planned(data)[0][0] == 0
    assert bodies_of(data, queue="kept", endingLsn=str(dropped[0][0] - 1))[0].startswith(b"live")


def test_a_segment_that_is_reclaimed_after_the_plan(folder: Path):
    view = Folder(str(folder)).view(include_active=False)
    drop_second(folder)

    with pytest.raises(DataLossError), Folder(str(folder)).opened(view.extents[1]):
        pass


def test_a_file_that_is_missing_is_no_loss_but_damage(folder: Path):
    view = Folder(str(folder)).view(include_active=False)
    (folder / view.extents[1].file).unlink()

    with pytest.raises(FolderError), Folder(str(folder)).opened(view.extents[1]):
        pass


def test_no_folder(tmp_path: Path):
    with pytest.raises(FolderError, match="manifest"):
        planned(tmp_path)


def test_what_is_not_sealed_ends_the_view(folder: Path):
    manifest = read_manifest(folder)
    segments = [type(one)(one.number, SegmentState.RETIRED) if one.first_lsn == 4 else one for one in manifest.segments]
    write_manifest(folder, Manifest(next_number=9, segments=segments))
    (folder / segments[1].file).chmod(0o644)

    assert Folder(str(folder)).view(include_active=False).hi == 3
    view = Folder(str(folder)).view(include_active=True)
    assert view.hi == 6
    assert [is_sealed(one) for one in view.extents] == [True, False, True]


@pytest.mark.parametrize("state", [SegmentState.ACTIVE, SegmentState.RETIRED])
def test_a_wal_that_was_filled_ahead(folder: Path, state: SegmentState):
    manifest = read_manifest(folder)
    segments = [type(one)(one.number, state) if one.first_lsn == 5 else one for one in manifest.segments]
    write_manifest(folder, Manifest(next_number=9, segments=segments))
    path = folder / segments[2].file
    path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.execute("UPDATE log SET time_ms = time_ms WHERE lsn = 5")
        wal = path.with_name(f"{path.name}-wal")
        fill_ahead(wal, 1 << 20)
        time_ms, messages, queues, meta = writer.execute(
            "SELECT time_ms, messages, queues, meta FROM log WHERE lsn = 6"
        ).fetchone()
        writer.execute(
            "INSERT INTO log SELECT 7, time_ms, messages, queues, ?, data_crc, meta, data FROM log WHERE lsn = 6",
            (meta_checksum(7, time_ms, messages, queues, meta),),
        )

        view = Folder(str(folder)).view(include_active=True)
        with Folder(str(folder)).opened(view.extents[2]) as raw:
            lsns = [lsn for (lsn,) in raw.execute("SELECT lsn FROM log")]

    assert view.hi == 7
    assert lsns == [5, 6, 7]
    assert 0 < view.extents[2].bytes < 1 << 20


@pytest.mark.parametrize(
    ("above", "messages", "size", "expected"),
    [
        (0, 10, 0, 2),
        (0, 9, 0, 2),
        (0, 15, 0, 3),
        (0, 24, 0, 3),
        (3, 1, 0, 4),
        (0, 0, 400, 2),
        (0, 0, 1, 2),
        (0, 99, 0, 6),
    ],
)
def test_limits_go_by_whole_rows(folder: Path, above: int, messages: int, size: int, expected: int):
    data = Folder(str(folder))

    assert limited_offset(data, data.view(include_active=False), None, above, 6, messages, size) == expected


def test_limits_count_what_is_wanted_alone(folder: Path):
    data = Folder(str(folder))

    assert limited_offset(data, data.view(include_active=False), frozenset({8}), 0, 6, 5, 0) == 5


class Files:
    """Stands in for a file system of fsspec."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def get_file(self, source: str, target: str) -> None:
        self.fetched.append(source)
        Path(target).write_bytes(Path(source).read_bytes())


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files()

    def system(folder: LogFiles, _: dict[str, Any]) -> tuple[Any, str]:
        return files, folder.path.removeprefix("fake:/")

    monkeypatch.setattr(LogFiles, "_file_system", system)
    return files


def test_segments_of_a_url_are_fetched_once(folder: Path, files: Files, tmp_path: Path):
    remote = Folder(f"fake:/{folder}", str(tmp_path / "cache"))
    view = remote.view(include_active=False)

    for _ in range(2):
        with remote.opened(view.extents[1]) as raw:
            assert raw.execute("SELECT lsn FROM log").fetchall() == [(4,)]

    assert sum(name.endswith(view.extents[1].file) for name in files.fetched) == 1


def test_a_copy_with_another_checksum_is_refused(folder: Path, files: Files, tmp_path: Path):
    remote = Folder(f"fake:/{folder}", str(tmp_path / "cache"))
    extent = remote.view(include_active=False).extents[1]
    (folder / extent.file).chmod(0o644)
    with (folder / extent.file).open("ab") as file:
        file.write(b"!")

    with pytest.raises(FolderError, match="checksum"), remote.opened(extent):
        pass
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "0" * 63, "0" * 63 + "G"])
def test_a_name_that_is_no_checksum_is_refused(folder: Path, files: Files, tmp_path: Path, sha256: str):
    remote = Folder(f"fake:/{folder}", str(tmp_path / "cache"))
    extent = structs.replace(remote.view(include_active=False).extents[1], sha256=sha256)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{sha256}.db".replace("/", "")).write_bytes(b"")

    with pytest.raises(FolderError, match="is not a SHA-256 checksum"), remote.opened(extent):
        pass


def test_the_owner_of_the_cache_is_asked_before_anything_in_it_is_used(
    folder: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "cache"
    remote = Folder(f"fake:/{folder}", str(cache))
    extent = remote.view(include_active=False).extents[1]
    with remote.opened(extent):
        pass
    owner = os.getuid()
    stat = Path.stat

    def of_somebody(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        return os.stat_result((*found[:4], owner + 1, *found[5:])) if path == cache else found

    monkeypatch.setattr(Path, "stat", of_somebody)

    with pytest.raises(FolderError, match="another user"), remote.opened(extent):
        pass


def test_a_url_without_fsspec_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)

    with pytest.raises(FolderError, match="fsspec"):
        Folder("s3://bucket/data", str(tmp_path))


def test_the_active_segment_of_a_url_is_refused(folder: Path, files: Files):
    with pytest.raises(OptionError, match="includeActive"):
        plan_batch(parse_options({"path": f"fake:/{folder}", "includeActive": "true"}), ["lsn"])


def numbers_of(tasks: "list[Task]") -> list[int]:
    """LSNs of the rows that the tasks read."""
    schema = pa.schema([pa.field("lsn", arrow_type("lsn"))])
    return [lsn for task in tasks for batch in read_task(task, schema) for lsn in batch["lsn"].to_pylist()]


def test_a_batch_without_a_beginning_reads_what_there_is_left_when_it_reads(folder: Path):
    tasks = plan_batch(parse_options({"path": str(folder)}), ["lsn"])
    drop_second(folder)

    assert set(numbers_of(tasks)) == {2, 3, 5, 6}


@pytest.mark.parametrize("options", [{"startingLsn": "1"}, {"startingTimestamp": str(NOW_MS)}])
def test_a_batch_with_a_beginning_fails_if_a_segment_goes_after_the_plan(folder: Path, options: dict[str, str]):
    tasks = plan_batch(parse_options({"path": str(folder), **options}), ["lsn"])
    allowed = plan_batch(parse_options({"path": str(folder), "failOnDataLoss": "false", **options}), ["lsn"])
    drop_second(folder)

    with pytest.raises(SegmentReclaimedError, match="the broker reclaimed row 4 before"):
        numbers_of(tasks)
    assert set(numbers_of(allowed)) == {2, 3, 5, 6}


def test_a_filter_is_no_beginning(folder: Path):
    asked = parse_options({"path": str(folder)})
    tasks = plan_batch(replace(asked, starting_ms=NOW_MS), ["lsn"], asked=asked)
    drop_second(folder)

    assert set(numbers_of(tasks)) == {2, 3, 5, 6}


def test_an_export_has_no_file_of_a_segment_that_went_after_the_plan(folder: Path, tmp_path: Path):
    tasks = plan_export(str(folder))
    drop_second(folder)

    exported = list(export(tasks, tmp_path / "out"))

    assert [one.segment for one in exported] == [tasks[0].piece.extent.number, tasks[2].piece.extent.number]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_replay_is_counted_anew_if_a_segment_goes_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch):
    order = Order(path=str(folder), queue=["orders"])
    plan = counting.plan_count

    def plan_then_drop(options: Options) -> counting.Counting:
        planned = plan(options)
        if len(planned.tasks) == 3:
            drop_second(folder)
        return planned

    monkeypatch.setattr(counting, "plan_count", plan_then_drop)

    _, count = count_log(Session(form=OutputForm.JSON), order)

    assert count.messages == 20
    # No slice spans reclaimed rows: a request for such rows would fail.
    assert [(one.first_lsn, one.last_lsn) for one in count.slices] == [(2, 2), (5, 5)]


async def test_a_query_that_finds_nothing_says_which_rows_are_not_sealed_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RunningServer(tmp_path, "--durability", "os") as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("orders")
            await queue.send(b"x")
        path = str(tmp_path / "data")

        def planned(**options: str) -> int:
            caplog.clear()
            return len(cmqd_log.plan(path, ["lsn"], **options))

        assert planned() == 0
        (line,) = caplog.messages
        assert "the query did not read the unsealed rows 1 to 2" in line
        assert "includeActive=true" in line
        assert (planned(includeActive="true"), caplog.messages) == (1, [])
