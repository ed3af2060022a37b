"""A log has an id, and names the start of the broker that wrote a row."""

import asyncio
import shutil
from pathlib import Path

import pytest

from cmqd.__main__ import main
from cmqd.storage.folder import log_identity as identity
from cmqd.storage.folder.data_folder import DataFolder
from cmqd.storage.storage_errors import DamagedError, FolderLocked
from cmqd_segment.checkpoint_file import verify_checkpoint
from cmqd_segment.folder_lock import LockHolder
from cmqd_segment.manifest import (
    MAX_STARTS,
    Manifest,
    StandingPinEntry,
    StartEntry,
    read_manifest,
    start_of,
    with_start,
    write_manifest,
)
from support.formats.archives import ARCHIVES, unpack
from support.storage.log_rig import ForkedPlace, LogRig, OpenProcess


def test_a_row_is_of_the_start_that_wrote_it() -> None:
    starts = [StartEntry("a", 1), StartEntry("b", 10), StartEntry("c", 11)]

    assert [start_of(starts, lsn) for lsn in (0, 1, 9, 10, 11, 500)] == ["", "a", "a", "b", "c", "c"]
    assert start_of([], 7) == ""


def test_a_start_that_wrote_nothing_is_forgotten() -> None:
    starts = with_start(with_start(with_start([], "a", 1), "b", 5), "c", 5)

    assert starts == [StartEntry("a", 1), StartEntry("c", 5)]


def test_the_oldest_starts_go_and_are_not_taken_for_others() -> None:
    starts: list[StartEntry] = []
    for number in range(MAX_STARTS + 3):
        starts = with_start(starts, str(number), 10 * number + 1)

    assert len(starts) == MAX_STARTS
    assert start_of(starts, 30) == ""
    assert start_of(starts, 31) == "3"


@pytest.mark.system
class TestFolder:
    async def test_the_id_stays_and_each_start_has_a_number(self, open_process: OpenProcess, folder: Path) -> None:
        rig = await open_process()
        first = read_manifest(folder)
        await rig.store(1, 0, 3)
        await rig.store(1, 3, 3)
        await rig.log.close()
        await (await open_process()).log.close()
        rig = await open_process()
        await rig.store(1, 6, 1)
        await rig.log.close()

        last = read_manifest(folder)
        assert len(first.log_id) == 32
        assert last.log_id == first.log_id
        assert rig.report is not None
        assert rig.report.log_id == first.log_id
        assert [entry.first_lsn for entry in last.starts] == [1, 3]
        assert last.starts[0] == first.starts[0]
        assert last.starts[0].number != last.starts[1].number

    async def test_a_start_after_a_crash_begins_behind_the_durable_rows(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        place = ForkedPlace(folder)
        rig = await open_process()
        await rig.store(1, 0, 3)
        await place.crash(rig.log)

        await open_process()

        assert [entry.first_lsn for entry in read_manifest(folder).starts] == [1, 2]

    async def test_a_restored_copy_that_grew_anew_has_another_start_there(
        self, open_process: OpenProcess, folder: Path, tmp_path: Path
    ) -> None:
        rig = await open_process()
        await rig.store(1, 0, 1)
        await rig.log.close()
        copy = shutil.copytree(folder, tmp_path / "copy")
        manifests: list[Manifest] = []
        for data in (folder, copy):
            rig = LogRig(ForkedPlace(data).log())
            await rig.open()
            await rig.store(1, 1, 1)
            await rig.log.close()
            manifests.append(read_manifest(data))

        original, grown = manifests
        assert original.log_id == grown.log_id
        assert start_of(original.starts, 1) == start_of(grown.starts, 1)
        assert start_of(original.starts, 2) != start_of(grown.starts, 2)

    async def test_checkpoints_hold_the_id_and_give_it_back(self, open_process: OpenProcess, folder: Path) -> None:
        rig = await open_process()
        await rig.store(1, 0, 3)
        await rig.checkpoint()
        await rig.log.close()
        log_id = read_manifest(folder).log_id
        (path,) = (folder / "checkpoints").glob("*.ckpt")
        assert verify_checkpoint(path)[0].log_id == log_id
        (folder / "manifest").unlink()

        await (await open_process(accept_loss=True)).log.close()

        assert read_manifest(folder).log_id == log_id

    async def test_a_checkpoint_of_another_log_is_not_used(
        self, open_process: OpenProcess, folder: Path, tmp_path: Path
    ) -> None:
        for data in (folder, tmp_path / "other"):
            rig = LogRig(ForkedPlace(data).log())
            await rig.open()
            await rig.store(1, 0, 3)
            await rig.checkpoint()
            await rig.log.close()
        name = "checkpoints/00000001.ckpt"
        shutil.copyfile(tmp_path / "other" / name, folder / name)

        rig = await open_process()

        assert rig.report is not None
        assert rig.report.checkpoint_lsn == 0
        assert "belongs to another log" in next(
            each.text for each in rig.report.findings if each.kind == "checkpoint_damaged"
        )

    @pytest.mark.parametrize("archive", ARCHIVES[:1], ids=lambda path: path.name)
    async def test_a_folder_of_format_1_gets_its_id_at_the_first_start(self, archive: Path, tmp_path: Path) -> None:
        folder, _ = unpack(archive, tmp_path)
        assert read_manifest(folder).log_id == ""
        rig = LogRig(ForkedPlace(folder).log())
        report = await rig.open()
        await rig.log.close()

        manifest = read_manifest(folder)
        assert manifest.log_id == report.log_id != ""
        assert [entry.first_lsn for entry in manifest.starts] == [report.last_lsn + 1]

    async def test_a_clone_is_given_an_id_of_its_own(
        self, open_process: OpenProcess, folder: Path, tmp_path: Path
    ) -> None:
        rig = await open_process()
        await rig.store(1, 0, 3)
        await rig.checkpoint()
        await rig.log.close()
        clone = shutil.copytree(folder, tmp_path / "clone")

        given = await _in_thread(clone)

        before = read_manifest(folder)
        assert given == read_manifest(clone)
        assert given.log_id != before.log_id
        assert given.former_log_ids == [before.log_id]
        rig = LogRig(ForkedPlace(clone).log())
        report = await rig.open()
        assert (report.log_id, report.checkpoint_lsn, report.findings) == (given.log_id, 1, ())
        await rig.checkpoint()
        await rig.log.close()

    async def test_the_id_of_a_folder_in_use_or_damaged_is_left_alone(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        before = read_manifest(folder)
        with pytest.raises(FolderLocked, match="in use"):
            await _in_thread(folder)
        assert read_manifest(folder).log_id == before.log_id
        await rig.log.close()
        (folder / "manifest").write_bytes(b"\xff")
        with pytest.raises(DamagedError):
            await _in_thread(folder)
        assert (folder / "manifest").read_bytes() == b"\xff"


async def _in_thread(folder: Path) -> Manifest:
    """The command runs a loop of its own."""
    return await asyncio.to_thread(identity.give_new_log_id, folder)


def test_the_command_tells_the_old_id_and_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = [StandingPinEntry("hourly", 1, 60_000)]
    write_manifest(tmp_path, Manifest(clean=True, log_id="a" * 32, standing_pins=pins))

    assert main(["new-log-id", "--data", str(tmp_path)]) == 0

    given = read_manifest(tmp_path).log_id
    assert read_manifest(tmp_path).standing_pins == []
    assert f"has the id {given}; before: {'a' * 32}" in capsys.readouterr().out


def test_the_command_refuses_a_folder_without_a_manifest_or_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-log-id", "--data", str(tmp_path)]) == 4
    assert "has no manifest" in capsys.readouterr().err
    write_manifest(tmp_path, Manifest(clean=True, log_id="a" * 32))
    holder = DataFolder(tmp_path)
    asyncio.run(holder.lock(0, LockHolder(1, 1)))
    assert main(["new-log-id", "--data", str(tmp_path)]) == 4
    holder.unlock()
    assert "keeps its id" in capsys.readouterr().err
    assert read_manifest(tmp_path).log_id == "a" * 32
