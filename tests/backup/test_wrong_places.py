"""Places and times that an operator names by mistake: nothing of another folder is lost, no other time is taken."""

import errno
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from cmqd_backup import stores
from cmqd_backup.command import main
from cmqd_backup.keeping import remove_old
from cmqd_backup.live import standing_name
from cmqd_backup.moments import parse_moment
from cmqd_backup.refusals import Refused
from cmqd_backup.restores import restoring, targets
from cmqd_backup.restores.restoring import Restoring, restore
from cmqd_backup.runs import Runs
from cmqd_backup.stores import FolderStore
from support.backup.growing_log import GrowingLog, command
from support.processes.environment import plain_environment
from support.storage.log_rig import NOW_MS


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_the_data_folder_of_another_broker_is_no_place_for_a_backup(tmp_path: Path):
    """Removals by ``--keep`` took the segments of that folder for files of old runs."""
    log, other = GrowingLog(tmp_path / "data"), GrowingLog(tmp_path / "other")
    await log.grow(2)
    await other.grow(2)
    before = files_below(other.folder)

    ended = command("backup", log.folder, "--to", other.folder)

    assert ended.code == 4
    assert "is a data folder: name another place" in ended.error
    assert files_below(other.folder) == before


async def test_a_removal_leaves_files_that_no_run_wrote(tmp_path: Path):
    log, backup = GrowingLog(tmp_path / "data"), tmp_path / "backup"
    for _ in range(2):
        await log.grow(2, checkpoint=True)
        assert command("backup", log.folder, "--to", backup).code == 0
    others = [backup / "segments" / "00000001.db", backup / "checkpoints" / "1.txt", backup / "accounts" / "0"]
    for path in others:
        path.write_bytes(b"of another program")

    assert remove_old(FolderStore(backup), NOW_MS + 1_000_000) == 1

    assert [path.exists() for path in others] == [True] * 3


async def test_a_restore_that_waited_for_another_one_leaves_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The other one ends between the look at the target and its lock."""
    log, backup, target = GrowingLog(tmp_path / "data"), tmp_path / "backup", tmp_path / "restored"
    await log.grow(2)
    assert command("backup", log.folder, "--to", backup).code == 0

    class Slow(Runs):
        def newest(self):
            monkeypatch.undo()
            assert command("restore", backup, target).code == 0
            return super().newest()

    monkeypatch.setattr(restoring, "Runs", Slow)

    with pytest.raises(Refused, match="is not empty"):
        restore(Restoring(FolderStore(backup), target, None, None, NOW_MS, print, print))

    assert (target / "manifest").exists()
    assert len(list((target / "segments").iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        # Without colons these are also times of a day, as ISO 8601 writes them: 20:26:11.29.
        ("20261129", "2026-11-29T00:00:00"),
        ("2026-11-29", "2026-11-29T00:00:00"),
        ("14:05", "2026-01-31T14:05:00"),
        ("14:05:01.5", "2026-01-31T14:05:01.5"),
    ],
)
def test_a_date_is_no_time_of_today(text: str, moment: str):
    now = datetime.fromisoformat("2026-01-31T20:00:00").timestamp()

    assert parse_moment(text, round(now * 1000)) == round(datetime.fromisoformat(moment).timestamp() * 1000)


@pytest.mark.parametrize("text", ["2026", "2026-11", "14"])
def test_a_part_of_a_date_is_refused(text: str):
    with pytest.raises(Refused, match="is not a time"):
        parse_moment(text, NOW_MS)


@pytest.mark.parametrize(("text", "moment"), [("01:00+14:00", "2026-02-01"), ("23:00-12:00", "2026-01-31")])
def test_today_is_that_of_the_zone_that_was_typed(text: str, moment: str):
    now_ms = round(datetime.fromisoformat("2026-01-31T12:00:00+00:00").timestamp() * 1000)

    assert parse_moment(text, now_ms) == round(datetime.fromisoformat(f"{moment}T{text}").timestamp() * 1000)


@pytest.mark.parametrize("place", ["", " ", "s3:/bucket/backup", "file://backup", "file://"])
def test_a_place_that_was_mistyped_is_no_folder(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty variable of a script would make a backup in the current folder."""
    monkeypatch.chdir(tmp_path)

    for arguments in (["backup", "data", "--to", place], ["backup", "list", place], ["restore", place, "new"]):
        ended = command(*arguments)

        assert ended.code == 4
        assert re.search(r"name a folder or a URL|write (KIND|file)://", ended.error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["missing", "loop", "below"])
async def test_a_link_that_leads_to_no_folder_is_told(tmp_path: Path, kind: str):
    log, backup, link = GrowingLog(tmp_path / "data"), tmp_path / "backup", tmp_path / "link"
    await log.grow(2)
    assert command("backup", log.folder, "--to", backup).code == 0
    link.symlink_to(link if kind == "loop" else tmp_path / "missing")
    target = link / "below" if kind == "below" else link
    told = f"{link} is a link to {link.readlink()}, where no folder is"

    for arguments in (
        ("restore", backup, target),
        ("clone", log.folder, target),
        ("backup", log.folder, "--to", target),
    ):
        ended = command(*arguments)

        assert ended.code == 4
        assert ended.error == f"cmqd: {told}: make it, or name another folder\n"
    assert not (tmp_path / "missing").exists()


async def test_a_file_that_goes_while_a_backup_is_listed_is_left_out(tmp_path: Path):
    """A run beside the command removes it; a link to a missing file looks alike."""
    log, backup = GrowingLog(tmp_path / "data"), tmp_path / "backup"
    await log.grow(2)
    assert command("backup", log.folder, "--to", backup).code == 0
    (backup / "segments" / "00000000.0123456789abcdef.db").symlink_to(tmp_path / "missing")

    assert command("backup", "list", backup).code == 0


def test_an_age_of_thousands_of_digits_is_refused():
    with pytest.raises(Refused, match="is not a time"):
        parse_moment("9" * 5000 + "d", NOW_MS)


def test_a_place_whose_name_is_no_text_has_a_standing_pin(tmp_path: Path):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/depot\xe9")

    assert standing_name(place).startswith("depot-")


def test_an_end_with_an_interval_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["backup", str(tmp_path), "--to", str(tmp_path / "backup"), "--every", "1m", "--end"])

    assert "--end: not allowed with argument --every" in capsys.readouterr().err


def test_an_error_of_the_library_of_a_url_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    class Library:
        class core:
            @staticmethod
            def url_to_fs(_url: str) -> None:
                raise LookupError("no such host")

    def import_library(_name: str) -> type[Library]:
        return Library

    monkeypatch.setattr(stores, "import_module", import_library)

    with pytest.raises(Refused, match="the file system of sftp URLs cannot be used: LookupError: no such host"):
        stores.open_store("sftp://nowhere/backup")


def test_an_error_of_the_system_is_a_sentence(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()

    ended = command("backup", file, "--to", tmp_path / "backup")

    assert (ended.code, ended.error) == (4, f"cmqd: {file}/manifest: Not a directory\n")


async def test_a_restore_whose_report_is_not_read_is_whole(tmp_path: Path):
    log, backup, target = GrowingLog(tmp_path / "data"), tmp_path / "backup", tmp_path / "restored"
    await log.grow(2)
    assert command("backup", log.folder, "--to", backup).code == 0

    def closed(_line: str) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        restore(Restoring(FolderStore(backup), target, None, None, NOW_MS, closed, print))

    assert (target / "manifest").exists()
    assert not (target / targets.UNFINISHED).exists()


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path):
    store = FolderStore(tmp_path / "backup")

    with pytest.raises(OSError, match=r"segments/1\.db") as full, store.writing("segments/1.db"):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert full.value.errno == errno.ENOSPC
    assert list((tmp_path / "backup" / "segments").iterdir()) == []


async def test_a_file_that_changed_since_its_run_is_found_and_copied_again(tmp_path: Path):
    log, backup = GrowingLog(tmp_path / "data"), tmp_path / "backup"
    await log.grow(2)
    assert command("backup", log.folder, "--to", backup).code == 0
    assert command("backup", "list", backup, "--verify").code == 0
    (segment,) = (backup / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    content[9000] ^= 1
    segment.write_bytes(content)

    assert command("backup", "list", backup).code == 0
    found = command("backup", "list", backup, "--verify")

    assert found.code == 8
    assert f"segments/{segment.name} of {backup} does not match its checksum" in found.lines
    segment.unlink()
    assert command("backup", log.folder, "--to", backup).code == 0
    assert command("backup", "list", backup, "--verify").code == 0


def test_a_link_of_the_name_of_a_part_leads_nowhere(tmp_path: Path):
    store, victim = FolderStore(tmp_path / "backup"), tmp_path / "victim"
    victim.write_bytes(b"of another program")
    (tmp_path / "backup" / "segments").mkdir(parents=True)
    (tmp_path / "backup" / "segments" / ".1.db.part").symlink_to(victim)

    with pytest.raises(FileExistsError), store.writing("segments/1.db"):
        pass
    with store.locked(), store.writing("segments/1.db") as file:
        file.write(b"rows")

    assert victim.read_bytes() == b"of another program"
    assert (tmp_path / "backup" / "segments" / "1.db").read_bytes() == b"rows"


async def test_a_run_whose_report_is_not_read_is_made(tmp_path: Path):
    log, backup = GrowingLog(tmp_path / "data"), tmp_path / "backup"
    await log.grow(2)
    reading, writing = os.pipe()
    os.close(reading)

    ended = subprocess.run(
        [sys.executable, "-m", "cmqd", "backup", str(log.folder), "--to", str(backup)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=plain_environment(),
    )
    os.close(writing)

    assert ended.returncode == 0
    assert ended.stderr == "cmqd: standard output was closed: the work goes on without its report\n"
    assert Runs(FolderStore(backup)).newest() is not None
