"""A copy of a data folder in use, as a kill at this moment leaves the folder."""

import time
from pathlib import Path


def copy_as_killed(folder: Path, target: Path) -> Path:
    """Copy a folder in a state that it had at one moment, and return the target.

    Threads may change the folder meanwhile: a seal removes a WAL, a switch renames the manifest. A file-by-file copy
    would then be of no moment. The call blocks the loop, which therefore begins no further work, until the folder
    stands still for two reads.
    """
    while (files := _read(folder)) is None or _compared(files) != _compared(_read(folder) or {}):
        time.sleep(0.001)
    for path, (mode, content) in files.items():
        copy = target / path.relative_to(folder)
        if content is None:
            copy.mkdir(parents=True)
        else:
            copy.write_bytes(content)
        copy.chmod(mode)
    return target


_Files = dict[Path, tuple[int, bytes | None]]
"""Modes and contents; None for a folder. A folder precedes its content."""


def _read(folder: Path) -> _Files | None:
    """Read all files; None if a file vanishes meanwhile."""
    try:
        paths = [folder, *sorted(folder.rglob("*"))]
        return {path: (path.stat().st_mode, None if path.is_dir() else path.read_bytes()) for path in paths}
    except FileNotFoundError:
        return None


def _compared(files: _Files) -> _Files:
    """Leave out each WAL-index: readers change it at any time, and SQLite makes it anew."""
    return {path: file for path, file in files.items() if not path.name.endswith("-shm")}
