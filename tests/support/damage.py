"""Damage to a data folder: crashes, flipped bits, broken pages, spoilt rows."""

from pathlib import Path

from msgspec import structs

from cmqd.storage.process_log import StorageProcessLog
from cmqd_segment.manifest import SegmentState, read_manifest, write_manifest
from support.log_rig import LogRig, ProcessPlace


async def crash(rig: LogRig) -> None:
    assert isinstance(rig.log, StorageProcessLog)
    await ProcessPlace(Path("unused")).crash(rig.log)


def flip(path: Path, offset: int) -> None:
    """Flip a bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def active_wal(folder: Path) -> Path:
    """The longest WAL."""
    return max((folder / "segments").glob("*.db-wal"), key=lambda path: path.stat().st_size)


def kinds(rig: LogRig) -> list[str]:
    assert rig.report is not None
    return [finding.kind for finding in rig.report.findings]


async def crashed_after(rig: LogRig, commits: int) -> None:
    for index in range(commits):
        await rig.store(1, 10 * index, 10, 1000)
    await crash(rig)


def in_another_boot(folder: Path) -> None:
    """Let the manifest be from before the last start of the machine."""
    write_manifest(folder, structs.replace(read_manifest(folder), boot_id="another boot"))


def manifest_knows(folder: Path, first_lsn: int, last_lsn: int) -> None:
    """Let the manifest know rows of the active segment, as seconds after their commit."""
    manifest = read_manifest(folder)
    segments = [
        structs.replace(entry, first_lsn=first_lsn, last_lsn=last_lsn, rows=last_lsn - first_lsn + 1)
        if entry.state is SegmentState.ACTIVE
        else entry
        for entry in manifest.segments
    ]
    write_manifest(folder, structs.replace(manifest, segments=segments))
