"""Backups of a stopped folder and restores from them: what is there, and what is refused."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from cmqd_backup import copying
from cmqd_backup.moments import shown_time
from cmqd_backup.restores import targets
from cmqd_backup.runs import Runs
from cmqd_backup.stores import FolderStore
from cmqd_backup.writing_runs import write_run
from cmqd_segment.manifest import CACHE_FORMAT, MANIFEST_FORMAT, CacheOf, Restored, read_manifest, write_manifest
from support.backup.growing_log import QUEUE_ID, SECOND_MS, GrowingLog, command, read_log
from support.processes.environment import plain_environment
from support.storage.log_rig import NOW_MS, body


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    return GrowingLog(tmp_path / "data")


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"


def at(milliseconds: int) -> str:
    """A time as the option takes it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def wall(row: int) -> int:
    """Time of a row of a log without an offset."""
    return NOW_MS + row * SECOND_MS


async def bodies_of(folder: Path) -> list[bytes]:
    """All messages of a folder, read through the storage of a broker, without a finding of its inspection."""
    rig = await read_log(folder)
    assert rig.report is not None
    assert [finding.text for finding in rig.report.findings] == []
    messages, _ = await rig.page(QUEUE_ID, [0, 1000])
    await rig.log.close()
    return [message.body for message in messages]


def expected(rows: int) -> list[bytes]:
    return [body(QUEUE_ID, position) for position in range(rows)]


# ---------------------------------------------------------------------- the whole log


async def test_a_restored_folder_is_a_log_of_its_own_with_every_row(log: GrowingLog, backup: Path, target: Path):
    await log.grow(5)
    before = read_manifest(log.folder)

    assert command("backup", log.folder, "--to", backup).code == 0
    ended = command("restore", backup, target)

    assert ended.code == 0, ended.error
    manifest = read_manifest(target)
    assert manifest.log_id not in ("", before.log_id)
    assert manifest.former_log_ids == [before.log_id]
    assert manifest.restored is not None
    assert (manifest.restored.lsn, manifest.restored.time_ms) == (5, wall(5))
    assert manifest.restored.aged_ms > 0
    assert (target / "accounts.json").read_bytes() == (log.folder / "accounts.json").read_bytes()
    assert (target / "accounts.json").stat().st_mode & 0o777 == 0o600
    assert f"broker time at that row: {shown_time(wall(5))}" in ended.lines
    assert not (target / targets.UNFINISHED).exists()
    assert await bodies_of(target) == expected(5)


async def test_a_second_run_copies_new_files_alone(log: GrowingLog, backup: Path, target: Path):
    await log.grow(4)
    command("backup", log.folder, "--to", backup)
    first = {path: path.stat().st_mtime_ns for path in (backup / "segments").iterdir()}

    await log.grow(2)
    ended = command("backup", log.folder, "--to", backup)

    assert ended.code == 0
    assert " 1 new file," in ended.lines
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert len(list((backup / "segments").iterdir())) == 3
    assert command("restore", backup, target).code == 0
    assert await bodies_of(target) == expected(6)


async def test_reclaimed_rows_stay_reclaimed(log: GrowingLog, backup: Path, target: Path):
    await log.grow(6, checkpoint=True)
    await log.drop(3)
    command("backup", log.folder, "--to", backup)

    assert command("restore", backup, target).code == 0

    assert read_manifest(target).dropped == [(3, 4)]
    assert await bodies_of(target) == [each for row, each in enumerate(expected(6), 1) if row not in (3, 4)]


async def test_the_mark_of_a_restore_lasts_until_a_row_is_written(log: GrowingLog, backup: Path, target: Path):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    command("restore", backup, target)
    marks: list[Restored | None] = []

    for start in range(3):
        rig = await read_log(target)
        assert rig.report is not None
        marks.append(rig.report.restored)
        if start == 1:
            await rig.store(QUEUE_ID, 2, 1)
        await rig.log.close()

    assert [mark and mark.lsn for mark in marks] == [2, 2, None]


async def test_without_secrets_no_accounts_file_is_restored_unless_it_is_given(
    log: GrowingLog, backup: Path, target: Path, tmp_path: Path
):
    await log.grow(1)
    assert command("backup", log.folder, "--to", backup, "--without-secrets").code == 0

    bare = command("restore", backup, target)
    given = command("restore", backup, tmp_path / "other", "--accounts", log.folder / "accounts.json")

    assert not (backup / "accounts").exists()
    assert not (target / "accounts.json").exists()
    assert "new-key admin" in bare.lines
    assert (tmp_path / "other/accounts.json").read_bytes() == (log.folder / "accounts.json").read_bytes()
    assert given.code == 0


async def test_the_keys_that_come_back_are_listed(log: GrowingLog, backup: Path, target: Path):
    await log.grow(1)
    command("backup", log.folder, "--to", backup)

    lines = command("restore", backup, target).lines

    content = (log.folder / "accounts.json").read_text()
    (secret_id,) = re.findall(r'"secret_id": ?"(\w+)"', content)
    (secret_key,) = re.findall(r'"secret_key": ?"([^"]+)"', content)
    assert f"{secret_id} of admin" in lines
    assert secret_key not in lines


async def test_a_log_of_an_older_format_is_restored_in_that_of_this_version(
    log: GrowingLog, backup: Path, target: Path
):
    await log.grow(2)
    write_manifest(log.folder, structs.replace(read_manifest(log.folder), format=2))

    command("backup", log.folder, "--to", backup)

    assert command("restore", backup, target).code == 0
    assert read_manifest(target).format == MANIFEST_FORMAT
    assert await bodies_of(target) == expected(2)


@pytest.mark.parametrize("newer", ["run", "log"])
async def test_a_backup_of_a_newer_version_is_refused(log: GrowingLog, backup: Path, target: Path, newer: str):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    store = FolderStore(backup)
    run = Runs(store).newest()
    assert run is not None
    manifest = structs.replace(run.manifest, format=MANIFEST_FORMAT + 10)
    write_run(store, structs.replace(run, format=2) if newer == "run" else structs.replace(run, manifest=manifest))

    for ended in (command("restore", backup, target), command("backup", log.folder, "--to", backup)):
        assert (ended.code, "use a newer cmqd" in ended.error) == (4, True)


# ---------------------------------------------------------------------- a time


@pytest.mark.parametrize("row", range(4, 8))
async def test_the_log_is_cut_after_the_last_row_at_or_before_the_time(
    log: GrowingLog, backup: Path, target: Path, row: int
):
    await log.grow(4)
    command("backup", log.folder, "--to", backup)
    await log.grow(4, seal_every=3)
    command("backup", log.folder, "--to", backup)

    ended = command("restore", backup, target, "--to-time", at(wall(row) + 999))

    assert ended.code == 0, ended.error
    assert f"last row: {row}, at {shown_time(wall(row))}" in ended.lines
    assert f"cut off: rows {row + 1} to 8 of the backup" in ended.lines
    assert await bodies_of(target) == expected(row)
    assert len(list((target / "segments").glob("*.db"))) >= 2


async def test_the_time_is_that_of_the_wall_clock(log: GrowingLog, backup: Path, target: Path):
    hour_ms = 3_600_000
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    # From row 3 on the wall clock is an hour ahead of broker time.
    await log.grow(4, offset_ms=hour_ms)
    command("backup", log.folder, "--to", backup)

    ended = command("restore", backup, target, "--to-time", at(wall(4) + hour_ms))

    assert f"last row: 4, at {shown_time(wall(4) + hour_ms)}" in ended.lines
    assert f"broker time at that row: {shown_time(wall(4))}" in ended.lines
    assert await bodies_of(target) == expected(4)


async def test_times_outside_of_the_backup_are_refused_with_the_nearest(log: GrowingLog, backup: Path, target: Path):
    await log.grow(4)
    command("backup", log.folder, "--to", backup)

    (run,) = Runs(FolderStore(backup)).each()
    early = command("restore", backup, target, "--to-time", at(wall(4) - 1))
    late = command("restore", backup, target, "--to-time", at(run.began_ms + 1))
    assert not target.exists()
    idle = command("restore", backup, target, "--to-time", at(run.began_ms))

    assert (early.code, late.code) == (4, 4)
    assert f"before the first time that the backup can restore, which is {shown_time(wall(4))}" in early.error
    assert f"after the newest run of the backup, which has the log up to {shown_time(run.began_ms)}" in late.error
    # No row came between the last one and the run: the run is the log of that time too.
    assert (idle.code, f"last row: 4, at {shown_time(wall(4))}" in idle.lines) == (0, True)


async def test_a_time_in_a_gap_is_refused_with_both_neighbours(log: GrowingLog, backup: Path, target: Path):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    await log.grow(8, checkpoint=True)
    await log.drop(5)
    command("backup", log.folder, "--to", backup)

    refused = command("restore", backup, target, "--to-time", at(wall(5)))
    before = command("restore", backup, target, "--to-time", at(wall(4)))
    listed = command("backup", "list", backup).lines

    assert refused.code == 4
    assert "is in a gap of the backup: rows 5 to 10 are not all there" in refused.error
    assert f"nearest times are {shown_time(wall(4))} and {shown_time(wall(10))}" in refused.error
    assert before.code == 0, before.error
    assert await bodies_of(target) == expected(4)
    assert f"  {shown_time(wall(2))} to {shown_time(wall(4))}\n" in listed
    assert f"  {shown_time(wall(10))} to " in listed
    assert f"{shown_time(wall(4))} to {shown_time(wall(10))}: rows 5 to 10" in listed


def test_a_text_that_is_no_time_is_refused(backup: Path, target: Path):
    ended = command("restore", backup, target, "--to-time", "yesterday")

    assert (ended.code, "'yesterday' is not a time" in ended.error) == (4, True)


# ---------------------------------------------------------------------- refusals


async def test_a_backup_that_was_cut_or_changed_is_refused(log: GrowingLog, backup: Path, target: Path):
    await log.grow(4)
    command("backup", log.folder, "--to", backup)
    path = sorted((backup / "segments").iterdir())[1]
    content = path.read_bytes()

    for broken in (content[:-1], content[:100] + b"?" + content[101:], None):
        path.unlink()
        if broken is not None:
            path.write_bytes(broken)
        ended = command("restore", backup, target)

        assert ended.code == 4
        assert "does not match its checksum" in ended.error or "is missing" in ended.error
        assert not target.exists()
        # Its size tells a file that was cut; a changed byte shows when the file is read.
        has_right_size = broken is not None and len(broken) == len(content)
        assert command("backup", "list", backup).code == (0 if has_right_size else 8)
    path.write_bytes(content)
    assert command("restore", backup, target).code == 0
    assert await bodies_of(target) == expected(4)


async def test_a_damaged_newest_run_is_passed_over_at_a_named_time_alone(log: GrowingLog, backup: Path, target: Path):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    newest = sorted((backup / "runs").iterdir())[1]
    newest.write_bytes(newest.read_bytes()[:-20])

    refused = command("restore", backup, target)
    named = refused.error.rpartition("--to-time ")[2].strip()
    taken = command("restore", backup, target, "--to-time", named)

    assert (refused.code, f"runs/{newest.name} is damaged, and is left out" in refused.error) == (4, True)
    assert f"up to {shown_time(wall(2))}, and the last 2.0 s would be lost" in refused.error
    assert (taken.code, f"runs/{newest.name} is damaged" in taken.error) == (0, True), taken.error
    assert await bodies_of(target) == expected(2)
    assert command("backup", "list", backup).code == 8


async def test_another_log_and_an_older_copy_are_refused(log: GrowingLog, backup: Path, tmp_path: Path):
    await log.grow(2)
    shutil.copytree(log.folder, tmp_path / "older")
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    other = GrowingLog(tmp_path / "other")
    await other.grow(1)

    foreign = command("backup", other.folder, "--to", backup)
    older = command("backup", tmp_path / "older", "--to", backup)
    grown = GrowingLog(tmp_path / "older")
    grown.rows = 2
    await grown.grow(4)
    diverged = command("backup", tmp_path / "older", "--to", backup)

    assert [ended.code for ended in (foreign, older, diverged)] == [4, 4, 4]
    assert "name another place" in foreign.error
    assert "does not go on from the newest backup" in older.error
    assert "does not go on from the newest backup" in diverged.error
    assert len(Runs(FolderStore(backup)).names) == 1


async def test_a_damaged_segment_is_not_copied(log: GrowingLog, backup: Path):
    await log.grow(4)
    path = sorted((log.folder / "segments").glob("*.db"))[0]
    path.chmod(0o600)
    content = path.read_bytes()
    path.write_bytes(content[:5000] + b"?" + content[5001:])

    ended = command("backup", log.folder, "--to", backup)

    assert ended.code == 4
    assert "does not match its checksum in the manifest: it is damaged" in ended.error
    assert list((backup / "segments").iterdir()) == []
    assert not (backup / "runs").exists()


async def test_folders_that_cannot_be_backed_up_are_refused(log: GrowingLog, backup: Path, tmp_path: Path):
    await log.grow(4)
    manifest = read_manifest(log.folder)
    cases = {
        "in files that are not sealed": structs.replace(manifest, clean=False),
        "name the settings of its broker with --config": structs.replace(
            manifest, format=CACHE_FORMAT, cache_of=CacheOf(manifest.log_id, 0)
        ),
        "has a log without an id": structs.replace(manifest, log_id=""),
        "rows 1 to 2 are in no file": structs.replace(manifest, segments=manifest.segments[1:]),
        "no checkpoint": structs.replace(manifest, segments=manifest.segments[1:], dropped=[(1, 2)]),
        "is empty": structs.replace(manifest, segments=[]),
    }

    for text, changed in cases.items():
        write_manifest(log.folder, changed)
        ended = command("backup", log.folder, "--to", backup)
        assert (ended.code, text in ended.error) == (4, True), ended.error
    write_manifest(log.folder, manifest)
    assert "is not a data folder" in command("backup", tmp_path / "no", "--to", backup).error
    assert "within the data folder" in command("backup", log.folder, "--to", log.folder / "copy").error


async def test_a_target_that_is_not_empty_or_in_use_is_refused(log: GrowingLog, backup: Path, target: Path):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    target.mkdir()
    (target / "letter").write_text("mine")

    full = command("restore", backup, target)
    own = command("restore", backup, log.folder)

    assert (full.code, "is not empty" in full.error) == (4, True)
    assert (own.code, "is not empty" in own.error) == (4, True)
    assert (target / "letter").read_text() == "mine"
    (target / "letter").unlink()
    with targets.try_lock(target):
        assert f"is in use by process {os.getpid()} (a cmqd command)" in command("restore", backup, target).error
    assert command("restore", backup, target).code == 0


def test_a_place_without_a_backup_is_refused(tmp_path: Path):
    assert "has no backup" in command("restore", tmp_path / "no", tmp_path / "b").error
    assert "has no backup" in command("backup", "list", tmp_path / "no").error
    assert list(tmp_path.iterdir()) == []


async def test_a_file_of_a_run_that_was_killed_is_read_before_it_counts(log: GrowingLog, backup: Path, target: Path):
    await log.grow(4)
    command("backup", log.folder, "--to", backup)
    shutil.rmtree(backup / "runs")
    kept, torn = sorted((backup / "segments").iterdir())
    torn.write_bytes(torn.read_bytes()[:-1] + b"?")
    (backup / "segments/.x.part").touch()

    ended = command("backup", log.folder, "--to", backup)

    assert " 1 new file," in ended.lines
    assert sorted((backup / "segments").iterdir()) == [kept, torn]
    assert command("restore", backup, target).code == 0
    assert await bodies_of(target) == expected(4)


@pytest.mark.parametrize(
    "options",
    [("--rate", "0"), ("--rate", "fast"), ("--every", "10ms"), ("--every", "2d"), ("--keep", "7"), ("--sometimes",)],
)
def test_wrong_options_are_refused_before_anything_is_done(backup: Path, tmp_path: Path, options: tuple[str, ...]):
    with pytest.raises(SystemExit) as ended:
        command("backup", tmp_path / "data", "--to", backup, *options)

    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


async def test_the_list_is_a_document_for_programs(log: GrowingLog, backup: Path):
    await log.grow(2)
    command("backup", log.folder, "--to", backup, "--without-secrets")
    await log.grow(8, checkpoint=True)
    await log.drop(5)
    command("backup", log.folder, "--to", backup)

    document = json.loads(command("backup", "list", backup, "--json").lines)

    assert document["log_id"] == read_manifest(log.folder).log_id
    assert [run["last_lsn"] for run in document["runs"]] == [2, 10]
    assert [gap["first_lsn"] for gap in document["gaps"]] == [5]
    assert [span["first_ms"] for span in document["spans"]] == [wall(2), wall(10)]
    assert (document["has_secrets"], document["faults"]) == (True, [])
    assert document["bytes"] == sum(path.stat().st_size for path in backup.rglob("*.*") if path.parent.name != "runs")


# ---------------------------------------------------------------------- kills and full disks


class Killed(BaseException):
    """The program was killed."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> Generator[None]:
    """End the program at the ``step``-th fsync, from 0."""
    real, calls = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise failure
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        yield


FAILURES = [Killed(), OSError(errno.ENOSPC, "No space left on device")]


@pytest.mark.parametrize("failure", FAILURES, ids=["killed", "full"])
async def test_a_backup_that_ends_in_the_middle_is_not_there(
    log: GrowingLog,
    backup: Path,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    await log.grow(5, checkpoint=True)
    first = tmp_path / "first"
    backup.rename(first)

    step = 0
    for step in range(100):
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(first, backup)
        try:
            with killed_at(step, monkeypatch, failure):
                ended = command("backup", log.folder, "--to", backup)
        except Killed:
            ended = None
        runs = Runs(FolderStore(backup))
        assert (len(list(runs.each())), runs.faults) == (len(runs.names), [])
        if ended is not None and ended.code == 0:
            break
        assert ended is None or "No space left" in ended.error
        # The last fsync is of the folder with the run: the run is there then, and whole.
        assert len(runs.names) in (1, 2)
        assert command("backup", log.folder, "--to", backup).code == 0
        assert command("backup", "list", backup).code == 0

    assert step > 8
    assert command("restore", backup, target).code == 0
    assert await bodies_of(target) == expected(7)


@pytest.mark.parametrize("failure", FAILURES, ids=["killed", "full"])
async def test_a_restore_that_ends_in_the_middle_looks_like_no_folder_and_can_be_repeated(
    log: GrowingLog, backup: Path, target: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    await log.grow(5, checkpoint=True)
    command("backup", log.folder, "--to", backup)
    arguments = ("restore", backup, target, "--to-time", at(wall(6)))
    steps = 0

    while True:
        try:
            with killed_at(steps, monkeypatch, failure):
                ended = command(*arguments)
        except Killed:
            ended = None
        if (ended is not None and ended.code == 0) or (target / "manifest").exists():
            break
        assert ended is None or ("No space left" in ended.error and not target.exists())
        steps += 1

    assert steps > 8
    assert await bodies_of(target) == expected(6)


async def test_a_mark_behind_the_manifest_goes_with_a_repeat_or_a_start(
    log: GrowingLog, backup: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    """A restore would clear a marked folder if its manifest was lost later."""
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    mark, real = target / targets.UNFINISHED, Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == mark:
            raise Killed
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(Killed):
        command("restore", backup, target)
    assert mark.exists()
    monkeypatch.undo()

    repeated = command("restore", backup, target)

    assert (repeated.code, mark.exists()) == (4, False)
    assert f"{target} was restored by a command that was killed at its end, and is whole" in repeated.error
    mark.touch()
    assert await bodies_of(target) == expected(2)
    assert not mark.exists()


async def test_a_full_disk_is_told_with_the_file_and_the_bytes(
    log: GrowingLog, backup: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    await log.grow(4)
    command("backup", log.folder, "--to", backup)

    def full(_file: object, _chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "_write_all", full)
    ended = command("restore", backup, target)

    needed = sum(path.stat().st_size for path in (backup / "segments").iterdir())
    assert f"{target}/segments/00000001.db: No space left on device. The restore needs {needed:,} bytes" in ended.error
    assert not target.exists()


@pytest.mark.parametrize(("user", "is_warned"), [(0, True), (1000, False)])
async def test_a_restore_by_root_names_the_owner_of_its_files(
    log: GrowingLog, backup: Path, target: Path, monkeypatch: pytest.MonkeyPatch, user: int, is_warned: bool
):
    await log.grow(2)
    command("backup", log.folder, "--to", backup)
    monkeypatch.setattr(os, "geteuid", lambda: user)

    ended = command("restore", backup, target)

    assert (ended.code, f"chown -R USER: {target}" in ended.error) == (0, is_warned)


# ---------------------------------------------------------------------- the pace


def test_a_copy_keeps_its_rate():
    now_s, slept = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s, slept
        now_s += seconds
        slept += seconds

    pace = copying.Pace(1000, clock=lambda: now_s, sleep=sleep)
    for _ in range(5):
        pace.moved(400)
    assert slept == pytest.approx(2.0)
    # A pause is not made up for.
    now_s += 100
    pace.moved(500)
    assert slept == pytest.approx(2.5)


@pytest.mark.system
async def test_an_interrupted_copy_ends_at_once(log: GrowingLog, backup: Path, tmp_path: Path):
    await log.grow(2)
    # Hours for the pages of a segment.
    process = subprocess.Popen(
        [sys.executable, "-m", "cmqd", "backup", str(log.folder), "--to", str(backup), "--rate", "1kB"],
        stderr=subprocess.PIPE,
        env=plain_environment(),
    )
    while not list(backup.glob("segments/.*.part")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()

    assert (process.returncode, b"Traceback" in error) == (130, False), error
    assert Runs(FolderStore(backup)).names == []
    assert command("backup", log.folder, "--to", backup).code == 0
