"""Damage to a data folder: crashes, flipped bits, broken pages, spoilt rows."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import structs

from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd_segment.manifest import SegmentState, read_manifest, write_manifest
from support.storage.log_rig import LogRig, ProcessPlace
from support.storage.wals import end_of_frames

CrashedAfter: TypeAlias = Callable[[LogRig, int], Awaitable[None]]
"""Make this number of commits and crash; the fixture ``crashed_after`` does so with and without zeros ahead."""


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
    """The WAL with the most frames."""
    return max((folder / "segments").glob("*.db-wal"), key=end_of_frames)


def kinds(rig: LogRig) -> list[str]:
    assert rig.report is not None
    return [finding.kind for finding in rig.report.findings]


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


def spoil(path: Path, column: str, lsn: int) -> None:
    """Change a blob of a row behind the checksums' back, as a defect of memory or disk would."""
    path.chmod(0o644)
    raw = sqlite3.connect(path, isolation_level=None)
    (value,) = raw.execute(f"SELECT {column} FROM log WHERE lsn = ?", (lsn,)).fetchone()
    raw.execute(f"UPDATE log SET {column} = ? WHERE lsn = ?", (value[:-1] + bytes([value[-1] ^ 1]), lsn))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
