"""Modes of the files of the log: bodies of messages are for the server's user, unless a group is let in."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from cmqd.storage.folder import log_identity as identity
from cmqd_segment.manifest import MANIFEST_NAME
from support.formats.archives import ARCHIVES, unpack
from support.storage.log_rig import ForkedPlace, LogRig, OpenProcess

pytestmark = pytest.mark.system


def modes(folder: Path) -> dict[str, int]:
    """Mode by file, of the files of the log."""
    found = [folder / MANIFEST_NAME, *(folder / "segments").iterdir(), *(folder / "checkpoints").iterdir()]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in found}


async def written(rig: LogRig) -> None:
    """A sealed segment, a checkpoint, and rows in a WAL."""
    await rig.store(1, 0, 3)
    await rig.log.seal_now()
    await rig.checkpoint()
    await rig.store(1, 3, 3)


@pytest.mark.parametrize(("group_readable", "mode", "sealed"), [(False, 0o600, 0o400), (True, 0o640, 0o440)])
async def test_files_of_a_new_folder(
    open_process: OpenProcess, folder: Path, group_readable: bool, mode: int, sealed: int
) -> None:
    before = os.umask(0o002)
    try:
        rig = await open_process(group_readable=group_readable)
    finally:
        os.umask(before)
    await written(rig)

    found = modes(folder)
    assert found.pop("segments/00000001.db") == found.pop("segments/00000001.side") == sealed
    assert {name.rpartition(".")[2] for name in found} == {"manifest", "db", "db-wal", "db-shm", "ckpt"}
    assert set(found.values()) == {mode}
    assert rig.report is not None
    assert rig.report.findings == ()


async def test_an_existing_folder_keeps_its_modes_and_that_is_told(tmp_path: Path) -> None:
    folder, _ = unpack(ARCHIVES[0], tmp_path)
    before = modes(folder)
    rig = LogRig(ForkedPlace(folder).log())
    report = await rig.open()
    await written(rig)

    (text,) = (finding.text for finding in report.findings if finding.kind == "modes_kept")
    assert "keep their mode 0644" in text
    assert "would have 0600" in text
    found = modes(folder)
    assert found.pop("segments/00000003.db") == 0o444, "it was left unsealed, and is sealed by now"
    kept = before.keys() & found.keys()
    assert {name: found[name] for name in kept} == {name: before[name] for name in kept}
    new = {name: mode for name, mode in found.items() if name not in before}
    assert {mode for name, mode in new.items() if name.endswith((".ckpt", "-wal", "-shm"))} == {0o644}
    await rig.log.close()


async def test_a_left_over_segment_is_sealed_with_the_mode_of_its_folder(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process(group_readable=True)
    await rig.store(1, 0, 3)
    await ForkedPlace(folder).crash(rig.log)

    rig = await open_process(group_readable=True)
    await rig.log.close()

    assert modes(folder)["segments/00000001.db"] == 0o440


async def test_a_new_id_leaves_the_mode_of_the_manifest(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process(group_readable=True)
    await rig.log.close()

    await asyncio.to_thread(identity.give_new_log_id, folder)

    assert modes(folder)[MANIFEST_NAME] == 0o640


@pytest.mark.parametrize("group_readable", [False, True])
async def test_the_folder_of_what_is_set_aside_can_be_entered(
    open_process: OpenProcess, folder: Path, group_readable: bool
) -> None:
    """The server is not root; root would need no permission to enter."""
    await (await open_process(group_readable=group_readable)).log.close()
    (folder / "segments" / "stranger").write_bytes(b"x")

    await open_process(group_readable=group_readable)

    aside = folder / "set-aside"
    assert stat.S_IMODE(aside.stat().st_mode) == 0o750
    assert [path.name for path in aside.iterdir()] == ["stranger.0"]
