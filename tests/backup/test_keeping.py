"""Removal of old runs: what a restore within the kept time needs stays."""

import shutil
from pathlib import Path

import pytest

from cmqd_backup.keeping import first_kept, remove_old
from cmqd_backup.runs import Runs
from cmqd_backup.stores import FolderStore
from support.backup.growing_log import SECOND_MS, GrowingLog, command
from support.storage.log_rig import NOW_MS


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """Four runs, with last rows 2, 4, 6 and 8, and a checkpoint each."""
    log = GrowingLog(tmp_path / "data")
    for _ in range(4):
        await log.grow(2, checkpoint=True)
        assert command("backup", log.folder, "--to", tmp_path / "backup").code == 0
    return tmp_path / "backup"


@pytest.mark.parametrize(
    ("second", "kept"), [(0, [1, 2, 3, 4]), (2, [1, 2, 3, 4]), (3, [1, 2, 3, 4]), (4, [2, 3, 4]), (7, [3, 4]), (9, [4])]
)
def test_the_newest_run_before_the_time_and_all_later_runs_are_kept(backup: Path, second: int, kept: list[int]):
    names = Runs(FolderStore(backup)).names

    assert [name.number for name in names[first_kept(names, NOW_MS + second * SECOND_MS) :]] == kept


def test_files_of_removed_runs_go_and_those_of_kept_runs_stay(backup: Path, tmp_path: Path):
    store = FolderStore(backup)
    read = Runs(store)
    runs = [run for index in range(4) if (run := read.read(index)) is not None]

    assert remove_old(store, NOW_MS + 4 * SECOND_MS) == 1

    assert [name.number for name in Runs(store).names] == [2, 3, 4]
    # Its segment is part of all later runs; its checkpoints are of no other run.
    assert len(list((backup / "segments").iterdir())) == 4
    named = {file.name for run in runs[1:] for file in run.files}
    there = {str(path.relative_to(backup)) for path in backup.rglob("*") if path.suffix in (".db", ".ckpt", ".json")}
    assert there == named | {name.path for name in Runs(store).names}
    assert command("backup", "list", backup).code == 0
    assert command("restore", backup, tmp_path / "restored").code == 0


async def test_old_runs_go_with_the_run_that_keeps(backup: Path, tmp_path: Path):
    log = GrowingLog(tmp_path / "data")
    log.rows = 8
    await log.grow(2)

    ended = command("backup", log.folder, "--to", backup, "--keep", "1d")

    assert "removed 4 older runs" in ended.lines
    assert [name.number for name in Runs(FolderStore(backup)).names] == [5]


def test_a_removal_that_ends_in_the_middle_leaves_no_run_without_files(backup: Path, tmp_path: Path):
    class Killed(BaseException):
        pass

    class Dying(FolderStore):
        def __init__(self, root: Path, steps: int) -> None:
            super().__init__(root)
            self.steps = steps

        def remove(self, name: str) -> None:
            if not self.steps:
                raise Killed
            self.steps -= 1
            super().remove(name)

    steps = 0
    while True:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(backup, tmp_path / "copy")
        store = Dying(tmp_path / "copy", steps)
        try:
            remove_old(store, NOW_MS + 7 * SECOND_MS)
        except Killed:
            assert command("backup", "list", tmp_path / "copy").code == 0
            steps += 1
        else:
            break
    assert steps > 4
