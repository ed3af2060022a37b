"""Clones for tests: ``cmqd clone`` makes a folder, whose log is read into memory.

The clone is made by the program of that command in a process of its own, as ``cmqd clone`` makes it.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cmqd.child_python import child_python
from cmqd.memory_log import MemoryDisk, MemoryLog
from cmqd.testing.broker_process import plain_environment
from cmqd_segment.manifest import read_manifest
from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent
from cmqd_segment.scan import scan_segment, sealed_segments


class CloneError(Exception):
    """The clone for a ``LocalBroker`` was not made; the text is the sentence of ``cmqd clone``."""


@dataclass(frozen=True)
class Clone:
    """A data folder or backup whose waiting messages a ``LocalBroker`` begins with, as ``cmqd clone`` takes them."""

    source: str | os.PathLike[str]
    """A data folder, whose broker may run, a clone, or a backup: a folder or URL."""
    queues: Sequence[str] = ()
    """Names, or ``account/name``; empty = all queues, topics and schedules."""
    since: datetime | None = None
    """Leaves out messages that were sent before. Without a zone: local time."""
    masks: Sequence[str] = ()
    """JSON paths of bodies (``$.card.number``) and names of headers, whose values are hidden."""
    no_bodies: bool = False
    """Puts zero bytes of the same size in the place of bodies."""

    def __post_init__(self) -> None:
        """Refuse a name in the place of a list of names. Raises TypeError."""
        for name in ("queues", "masks"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a list of names, such as [{getattr(self, name)!r}]")

    def make(self, folder: Path) -> None:
        """Make the clone in a new folder; blocks.

        Raises:
            CloneError: the clone was refused.
        """
        options = [f"--queue={name}" for name in self.queues] + [f"--mask={mask}" for mask in self.masks]
        if self.since is not None:
            options.append(f"--since={self.since.isoformat()}")
        if self.no_bodies:
            options.append("--no-bodies")
        command = [*child_python(), "-m", "cmqd_backup", "clone", *options, "--", os.fspath(self.source), str(folder)]
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=plain_environment(),
            check=False,
        )
        if ended.returncode:
            # The last line: a wrong combination of options is told behind the usage, and a bug behind its traceback.
            lines = ended.stderr.strip().splitlines() or [f"cmqd clone ended with exit code {ended.returncode}"]
            raise CloneError(lines[-1].removeprefix("cmqd: "))


async def read_clone(folder: Path) -> MemoryDisk:
    """Return the log of a folder whose segments are all sealed, as a clone's are.

    Raises:
        OSError, ManifestError, RowError: the folder cannot be read.
    """
    manifest = read_manifest(folder)
    disk = MemoryDisk()
    log = MemoryLog(disk)
    await log.open()
    for entry in sealed_segments(manifest):
        for row in scan_segment(folder / entry.file, sealed=True):
            log.append(row.records, list(_bodies(row.records, row.data)), row.time_ms)
            log.close_row()
    await log.close()
    disk.restored = manifest.restored
    return disk


def _bodies(records: Sequence[AnyRecord], data: bytes) -> Iterator[bytes]:
    offset = 0
    for record in records:
        if isinstance(record, MessagesSent | MessagesPublished):
            for size in record.sizes:
                yield data[offset : offset + size]
                offset += size
