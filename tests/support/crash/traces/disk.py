"""Possible contents of a folder after a power failure, rebuilt from a trace of the calls on the folder.

The rules are those of POSIX read strictly, on a file system that keeps its own structure (a journal):

- Data, lengths: changes of a file before a sync of *that file* that has returned are on the disk. A later change may
  be there whole, in part (any of its 512-byte sectors) or not at all, independently of other changes.
- Names (create, rename, remove, new folders) are on the disk once a sync of the folder of the name has returned. Later
  changes of names may be there up to any moment, in order: a rename is never half done.
- A sync that had not returned when the power failed promised nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from posixpath import dirname

from support.crash.traces import trace

SECTOR_BYTES = 512
"""The unit of a write of the disk; larger pieces can be torn."""

_NameChange = trace.Created | trace.FolderCreated | trace.Renamed | trace.Linked | trace.Removed
_DataChange = trace.Written | trace.Resized | trace.Allocated


class Unsynced(Enum):
    """The fate of changes that no sync covers."""

    DROPPED = auto()
    """The disk lost every change that no sync covers."""
    KEPT = auto()
    """All changes reached the disk by themselves: as after kill -9."""
    SCRAMBLED = auto()
    """Every change by chance: there, not there, or torn."""


@dataclass
class Disk:
    """Folders and files by path; ``files`` has (mode, contents)."""

    folders: dict[str, int] = field(default_factory=dict[str, int])
    files: dict[str, tuple[int, bytes]] = field(default_factory=dict[str, tuple[int, bytes]])

    def write_to(self, target: Path) -> None:
        """Write folders and files into ``target``, which must not exist yet."""
        target.mkdir(parents=True)
        for path in sorted(self.folders):
            if path:
                (target / path).mkdir()
        for path, (mode, contents) in self.files.items():
            (target / path).write_bytes(contents)
            (target / path).chmod(mode & 0o7777)


class TraceUnusableError(Exception):
    """The traced program made a call that the tracer cannot follow; the text names the call."""


@dataclass
class _Promises:
    """The events (exclusive) up to which changes are durable: per file, per folder's names, and for all."""

    files: dict[int, int]
    folders: dict[str, int]
    everything: int

    def covers_data(self, index: int, change: _DataChange) -> bool:
        if isinstance(change, trace.Written) and change.synced:
            return True
        return index < max(self.files.get(change.file, 0), self.everything)

    def covers_name(self, index: int, change: _NameChange) -> bool:
        paths = (
            (change.old_path, change.new_path) if isinstance(change, trace.Renamed | trace.Linked) else (change.path,)
        )
        return all(index < max(self.folders.get(dirname(path), 0), self.everything) for path in paths)


def _promises(events: Sequence[trace.AnyEvent]) -> _Promises:
    started: dict[int, int] = {}
    promises = _Promises({}, {}, 0)
    for index, event in enumerate(events):
        match event:
            case trace.SyncStarted():
                started[event.sync] = index
            case trace.Synced():
                promises.files[event.file] = max(promises.files.get(event.file, 0), started[event.sync])
            case trace.FolderSynced():
                promises.folders[event.path] = max(promises.folders.get(event.path, 0), started[event.sync])
            case trace.AllSynced():
                promises.everything = max(promises.everything, started[event.sync])
            case trace.Unfollowed():
                raise TraceUnusableError(event.what)
            case _:
                pass
    return promises


def disk_after(events: Sequence[trace.AnyEvent], unsynced: Unsynced, chance: random.Random) -> Disk:
    """The folder as the power failure may have left it after ``events`` (a trace up to the cut).

    Raises:
        TraceUnusableError: the trace is incomplete.
    """
    promises = _promises(events)
    pending_names = [
        index
        for index, event in enumerate(events)
        if isinstance(event, _NameChange) and not promises.covers_name(index, event)
    ]
    match unsynced:
        case Unsynced.DROPPED:
            kept_names: set[int] = set()
        case Unsynced.KEPT:
            kept_names = set(pending_names)
        case Unsynced.SCRAMBLED:
            kept_names = set(pending_names[: chance.randint(0, len(pending_names))])
    lost_names = set(pending_names) - kept_names

    rebuilt = _Rebuilt()
    for index, event in enumerate(events):
        if isinstance(event, trace.Present):
            rebuilt.present(event)
        elif isinstance(event, _NameChange):
            if index not in lost_names:
                rebuilt.change_name(event)
        elif isinstance(event, _DataChange):
            if promises.covers_data(index, event) or unsynced is Unsynced.KEPT:
                rebuilt.change_data(event)
            elif unsynced is Unsynced.SCRAMBLED:
                _change_by_chance(rebuilt, event, chance)
    return rebuilt.disk()


def _change_by_chance(rebuilt: "_Rebuilt", change: _DataChange, chance: random.Random) -> None:
    fate = chance.random()
    if fate < 1 / 3:
        return
    if fate < 2 / 3 or not isinstance(change, trace.Written):
        rebuilt.change_data(change)
        return
    data = change.data or bytes(change.zeros)
    start = change.offset
    stop = change.offset + len(data)
    while start < stop:
        sector_stop = min(stop, start - start % SECTOR_BYTES + SECTOR_BYTES)
        if chance.random() < 0.5:
            rebuilt.write(change.file, start, data[start - change.offset : sector_stop - change.offset])
        start = sector_stop


class _Rebuilt:
    """Names and contents while the surviving changes are applied."""

    def __init__(self) -> None:
        self._folders: dict[str, int] = {"": 0o40755}
        self._names: dict[str, int] = {}
        self._modes: dict[int, int] = {}
        self._contents: dict[int, bytearray] = {}

    def present(self, event: trace.Present) -> None:
        if event.is_folder:
            self._folders[event.path] = event.mode
        else:
            self._names[event.path] = event.file
            self._modes[event.file] = event.mode
            self._contents[event.file] = bytearray(event.data)

    def change_name(self, event: _NameChange) -> None:
        # A name in a folder that was lost too (the folder's own name was never synced) cannot be there.
        match event:
            case trace.Created():
                if dirname(event.path) in self._folders:
                    self._names[event.path] = event.file
                    self._modes[event.file] = event.mode
            case trace.FolderCreated():
                if dirname(event.path) in self._folders:
                    self._folders[event.path] = event.mode
            case trace.Linked():
                if event.old_path in self._names and dirname(event.new_path) in self._folders:
                    self._names[event.new_path] = self._names[event.old_path]
            case trace.Removed():
                self._names.pop(event.path, None)
                self._folders.pop(event.path, None)
            case trace.Renamed():
                self._rename(event.old_path, event.new_path)

    def _rename(self, old: str, new: str) -> None:
        if dirname(new) not in self._folders:
            return
        if old in self._names:
            self._names[new] = self._names.pop(old)
            return
        for table in (self._folders, self._names):
            for path in [path for path in table if path == old or path.startswith(old + "/")]:
                table[new + path[len(old) :]] = table.pop(path)

    def change_data(self, change: _DataChange) -> None:
        match change:
            case trace.Written():
                self.write(change.file, change.offset, change.data or bytes(change.zeros))
            case trace.Resized():
                contents = self._contents.setdefault(change.file, bytearray())
                del contents[change.size :]
                self._extend(contents, change.size)
            case trace.Allocated():
                self._extend(self._contents.setdefault(change.file, bytearray()), change.size)

    def write(self, file: int, offset: int, data: bytes) -> None:
        contents = self._contents.setdefault(file, bytearray())
        self._extend(contents, offset)
        contents[offset : offset + len(data)] = data

    def _extend(self, contents: bytearray, size: int) -> None:
        if len(contents) < size:
            contents.extend(bytes(size - len(contents)))

    def disk(self) -> Disk:
        return Disk(
            dict(self._folders),
            {
                path: (self._modes[file], bytes(self._contents.get(file, b"")))
                for path, file in self._names.items()
                if dirname(path) in self._folders
            },
        )
