"""A manifest that is damaged, missing, or ahead of the files."""

from pathlib import Path

import pytest

from cmqd.storage.storage_errors import DamagedError
from cmqd_segment.manifest import SegmentState, read_manifest
from support.storage.damage import CrashedAfter, active_wal, in_another_boot, manifest_knows
from support.storage.log_rig import OpenProcess
from support.storage.wals import cut

pytestmark = pytest.mark.system


@pytest.mark.parametrize("left", ["no index", "another boot"])
async def test_rows_that_only_the_manifest_knows_of_stop_the_start(
    open_process: OpenProcess, folder: Path, crashed_after: CrashedAfter, left: str
) -> None:
    """A folder restored without its WAL-index, or after the machine started anew."""
    await crashed_after(await open_process(), 10)
    manifest_knows(folder, 1, 8)
    wal = active_wal(folder)
    cut(wal, 0)
    if left == "no index":
        wal.with_name(wal.name.replace("-wal", "-shm")).unlink()
    else:
        in_another_boot(folder)

    for _ in range(2):
        with pytest.raises(DamagedError, match=r"rows 1 to 8 are missing"):
            await open_process()

    accepted = await open_process(accept_loss=True)
    assert accepted.send(1, 100, 1) > 10


@pytest.mark.parametrize("text", [b"", b"{", b'{"format": 1, "segments": 7}'], ids=["empty", "cut", "wrong"])
async def test_a_damaged_manifest_stops_the_start_and_is_made_anew_when_accepted(
    open_process: OpenProcess, folder: Path, text: bytes
) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
        await rig.log.seal_now()
    await rig.checkpoint()
    await rig.log.close()
    (folder / "manifest").write_bytes(text)

    with pytest.raises(DamagedError, match=r"manifest"):
        await open_process()

    accepted = await open_process(accept_loss=True)
    assert accepted.report is not None
    assert accepted.report.checkpoint_lsn == 3
    assert accepted.report.numbers_jump
    assert len((await accepted.page(1, [0, 3]))[0]) == 3


async def test_a_missing_manifest_stops_the_start(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.close()
    (folder / "manifest").unlink()

    with pytest.raises(DamagedError, match=r"manifest is missing"):
        await open_process()


async def test_a_byte_in_the_manifest_that_is_no_text_is_damage_that_can_be_accepted(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 5)
    await rig.checkpoint()
    await rig.store(1, 5, 5)
    await rig.log.close()
    whole = (folder / "manifest").read_bytes()
    damaged = whole.replace(b'"fsync"', b'"f\xffync"')
    (folder / "manifest").write_bytes(damaged)

    with pytest.raises(DamagedError, match=r"manifest cannot be read: .* Put back the manifest of a copy"):
        await open_process()
    assert (folder / "manifest").read_bytes() == damaged
    rig = await open_process(accept_loss=True)

    assert [message.position for message in (await rig.page(1, [0, 10]))[0]] == list(range(10))
    assert (folder / "set-aside" / "manifest.0").read_bytes() == damaged
    await rig.log.close()
    assert (await open_process()).report is not None
    assert read_manifest(folder).log_id in whole.decode()


async def test_the_manifest_knows_the_state_of_each_file(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.seal_now()
    await rig.store(1, 1, 1)

    manifest = read_manifest(folder)

    assert not manifest.clean
    assert [entry.state for entry in manifest.segments] == [
        SegmentState.SEALED,
        SegmentState.ACTIVE,
        SegmentState.PREPARED,
    ]
    sealed = manifest.segments[0]
    assert (sealed.first_lsn, sealed.last_lsn, sealed.rows, sealed.messages) == (1, 1, 1, 1)
    assert len(sealed.sha256) == 64
    await rig.log.close()
    closed = read_manifest(folder)
    assert closed.clean
    assert {entry.state for entry in closed.segments} == {SegmentState.SEALED}
    assert sorted(path.name for path in (folder / "segments").iterdir()) == [
        f"0000000{number}.{suffix}" for number in (1, 2) for suffix in ("db", "side")
    ]
