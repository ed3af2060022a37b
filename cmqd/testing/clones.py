"""Clones for tests: ``cmqd clone`` makes a folder, whose log is read into memory.

The clone is made by the program of that command in a process of its own, as ``cmqd clone`` makes it.
"""

import os
import signal
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

MAX_TIMEOUT_S = 86_400.0
"""Longest ``Clone.timeout``."""
END_S = 10.0
"""Time that the program has to remove its files at the limit."""


class CloneError(Exception):
    """The clone for a ``LocalBroker`` was not made; the text is the sentence of ``cmqd clone``."""


class CloneTimeoutError(CloneError):
    """The clone for a ``LocalBroker`` was not made within ``Clone.timeout``; its program was ended."""


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
    timeout: float = 300.0
    """Seconds for the program that makes the clone, at most; a start waits for it."""

    def __post_init__(self) -> None:
        """Refuse a name in the place of a list of names, and a limit of no time. Raises TypeError, ValueError."""
        if not 0 < self.timeout <= MAX_TIMEOUT_S:
            raise ValueError(
                f"timeout is {self.timeout!r}; it must be above 0 and at most {MAX_TIMEOUT_S:,.0f} seconds"
            )
        for name in ("queues", "masks"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a list of names, such as [{getattr(self, name)!r}]")

    def make(self, folder: Path) -> None:
        """Make the clone in a new folder; blocks.

        Raises:
            CloneError: the clone was refused.
            CloneTimeoutError: the clone was not made within ``timeout``.
        """
        options = [f"--queue={name}" for name in self.queues] + [f"--mask={mask}" for mask in self.masks]
        if self.since is not None:
            options.append(f"--since={self.since.isoformat()}")
        if self.no_bodies:
            options.append("--no-bodies")
        command = [*child_python(), "-m", "cmqd_backup", "clone", *options, "--", os.fspath(self.source), str(folder)]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=plain_environment(),
        ) as program:
            try:
                _, told = program.communicate(timeout=self.timeout)
            except BaseException as failure:
                _end(program)
                if not isinstance(failure, subprocess.TimeoutExpired):
                    raise
                raise CloneTimeoutError(
                    f"the clone of {os.fspath(self.source)} was not made within {self.timeout:g} s, and its program was"
                    " ended: give Clone a longer timeout, or make a folder with cmqd clone once, and clone that folder"
                ) from None
        if program.returncode:
            # The last line: a wrong combination of options is told behind the usage, and a bug behind its traceback.
            lines = told.strip().splitlines() or [f"cmqd clone ended with exit code {program.returncode}"]
            raise CloneError(lines[-1].removeprefix("cmqd: "))


def _end(program: "subprocess.Popen[str]") -> None:
    """End the program: as Ctrl-C does, so that it releases its pin, and at once if it does not end."""
    program.send_signal(signal.SIGINT)
    try:
        program.wait(END_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


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
