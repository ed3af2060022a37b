"""Data of a newer version is refused and left alone: it is not damage."""

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from cmqd.storage.storage_errors import FolderFormatError
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import MAGIC, frame
from cmqd_segment.manifest import CACHE_FORMAT, read_manifest, write_manifest
from cmqd_segment.rows import encode_records, meta_checksum
from support.storage.log_rig import NOW_MS, OpenProcess

pytestmark = pytest.mark.system


async def test_a_folder_of_a_newer_format_is_refused_and_left_alone(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.close()
    write_manifest(folder, structs.replace(read_manifest(folder), format=CACHE_FORMAT + 1))
    newer = (folder / "manifest").read_bytes()

    for accept_loss in (False, True):
        with pytest.raises(FolderFormatError, match=r"format 6"):
            await open_process(accept_loss=accept_loss)
    assert (folder / "manifest").read_bytes() == newer


def write_unknown_record(folder: Path, lsn: int) -> None:
    """Give a row of a sealed segment a record that no version knows, under a right checksum."""
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        ((time_ms, messages, queues),) = raw.execute("SELECT time_ms, messages, queues FROM log WHERE lsn = ?", (lsn,))
        meta = encode_records([[99, 1]])
        checksum = meta_checksum(lsn, time_ms, messages, queues, meta)
        raw.execute("UPDATE log SET meta = ?, meta_crc = ? WHERE lsn = ?", (meta, checksum, lsn))


async def test_a_record_of_a_newer_version_is_no_damage(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
    await rig.log.close()
    write_unknown_record(folder, 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}

    for accept_loss in (False, True):
        with pytest.raises(FolderFormatError, match=r"records of kind 99.* use a newer cmqd"):
            await open_process(accept_loss=accept_loss)
    assert {path: path.read_bytes() for path in before} == before
    assert not (folder / "set-aside").exists()


async def test_a_record_of_a_newer_version_below_the_checkpoint_is_no_lost_message(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1)
    await rig.checkpoint()
    await rig.log.close()
    write_unknown_record(folder, 2)
    rig = await open_process()

    rig.ask(1, [1, 1])

    await rig.until(lambda: rig.fatal)
    assert "use a newer cmqd" in str(rig.fatal[0])
    assert not rig.pages


async def test_a_checkpoint_part_of_a_newer_version_is_no_damage(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    lsn = await rig.checkpoint()
    await rig.log.close()
    (path,) = (folder / "checkpoints").glob("*.ckpt")
    parts = [CheckpointHeader(lsn, NOW_MS, 1, 1, 1), [99, lsn], CheckpointEnd(lsn, 2)]
    path.write_bytes(MAGIC + b"".join(frame(msgspec.msgpack.encode(part)) for part in parts))

    for accept_loss in (False, True):
        with pytest.raises(FolderFormatError, match=r"parts of kind 99.* use a newer cmqd"):
            await open_process(accept_loss=accept_loss)
    assert path.exists()
