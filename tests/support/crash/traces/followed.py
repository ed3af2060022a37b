"""From system calls of traced processes to events about one folder.

``FolderFollower.before`` examines a call that is about to run and returns the work for the end of the call. It reads
arguments from ``/proc`` while the caller is stopped. Calls on files outside the folder return None at once.
"""

import os
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path

from support.crash.traces import trace
from support.crash.traces.folder_paths import AT_FDCWD, FolderPaths, signed
from support.crash.traces.ptrace import Call

AfterCall = Callable[[int], None]
"""Called with the call's result while the caller is stopped at its end."""

_O_CREAT, _O_TRUNC, _O_TMPFILE = 0o100, 0o1000, 0o20000000
_O_APPEND, _O_DSYNC = 0o2000, 0o10000
_RENAME_EXCHANGE = 2
_RWF_DSYNC = 0x2 | 0x4
_AT_EMPTY_PATH = 0x1000
_FALLOC_KEEP_SIZE, _FALLOC_OTHER_THAN_GROW = 0x01, 0x02 | 0x08 | 0x20
_iovec = struct.Struct("=QQ")
_u64 = struct.Struct("=Q")


class FolderFollower:
    """Keeps count of the folder's files (inode to file number) and emits events.

    Args:
        folder: absolute path without symbolic links.
    """

    def __init__(self, folder: Path, emit: Callable[[trace.AnyEvent], None]) -> None:
        self._paths = FolderPaths(folder)
        self._emit = emit
        self._files: dict[tuple[int, int], int] = {}
        self._last_file = 0
        self._last_sync = 0
        for path in [folder, *sorted(folder.rglob("*"))]:
            found = path.lstat()
            is_folder = stat.S_ISDIR(found.st_mode)
            data = b"" if is_folder else path.read_bytes()
            number = 0 if is_folder else self._number_of(found)
            emit(trace.Present(_now(), self._paths.relative(str(path)) or "", number, found.st_mode, is_folder, data))

    def before(self, thread: int, name: str, call: Call) -> AfterCall | None:
        """The work at the end of this call; None: the call does not concern the folder."""
        arguments = call.arguments
        match name:
            case "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2":
                return self._before_write(thread, name, arguments)
            case "fsync" | "fdatasync":
                return self._before_sync(thread, signed(arguments[0]))
            case "sync" | "syncfs":
                return self._before_sync_of_all()
            case "open" | "openat" | "openat2" | "creat":
                return self._before_open(thread, name, arguments)
            case "ftruncate" | "truncate" | "fallocate":
                return self._before_resize(thread, name, arguments)
            case "sendfile" | "copy_file_range" | "splice":
                return self._before_copy(thread, name, arguments)
            case "mmap":
                return self._before_mapping(thread, signed(arguments[4]))
            case _:
                return self._before_name_change(thread, name, arguments)

    def forget(self, thread: int) -> None:
        """The thread has ended, or runs a new program in new memory."""
        self._paths.forget(thread)

    # ------------------------------------------------------------ data

    def _before_write(self, thread: int, name: str, arguments: tuple[int, ...]) -> AfterCall | None:
        descriptor = signed(arguments[0])
        path = self._paths.of_descriptor(thread, descriptor)
        if path is None:
            return None
        file = self._number_at(thread, descriptor)
        position, flags = _position_and_flags(thread, descriptor)
        synced = bool(flags & _O_DSYNC)
        if name.startswith("p"):
            position = arguments[3]
        if name == "pwritev2":
            synced = synced or bool(arguments[5] & _RWF_DSYNC)
            if arguments[3] == 0xFFFFFFFFFFFFFFFF:
                position, _ = _position_and_flags(thread, descriptor)
        if flags & _O_APPEND:
            position = os.stat(f"/proc/{thread}/fd/{descriptor}").st_size
        pieces = (
            [(arguments[1], arguments[2])]
            if name in {"write", "pwrite64"}
            else list(_iovec.iter_unpack(self._paths.read(thread, arguments[1], 16 * arguments[2])))
        )

        def after(result: int) -> None:
            data = b"".join(self._paths.read(thread, address, length) for address, length in pieces)[:result]
            self._emit_written(file, position, data, synced=synced)

        return after

    def _before_copy(self, thread: int, name: str, arguments: tuple[int, ...]) -> AfterCall | None:
        # The bytes never pass through the caller's memory: the follower reads the file afterwards.
        descriptor = signed(arguments[0] if name == "sendfile" else arguments[2])
        if self._paths.of_descriptor(thread, descriptor) is None:
            return None
        file = self._number_at(thread, descriptor)
        position, _ = _position_and_flags(thread, descriptor)
        if name != "sendfile" and arguments[3]:
            position = _u64.unpack(self._paths.read(thread, arguments[3], 8))[0]

        def after(result: int) -> None:
            with Path(f"/proc/{thread}/fd/{descriptor}").open("rb") as copied:
                copied.seek(position)
                self._emit_written(file, position, copied.read(result), synced=False)

        return after

    def _emit_written(self, file: int, position: int, data: bytes, *, synced: bool) -> None:
        if not data:
            return
        if data.count(0) == len(data):
            self._emit(trace.Written(_now(), file, position, b"", len(data), synced))
        else:
            self._emit(trace.Written(_now(), file, position, data, 0, synced))

    def _before_resize(self, thread: int, name: str, arguments: tuple[int, ...]) -> AfterCall | None:
        if name == "truncate":
            path = self._paths.named(thread, AT_FDCWD, arguments[0])
            if path is None:
                return None
            file = self._number_of(os.stat(f"{self._paths.inside}{path}"))
        else:
            descriptor = signed(arguments[0])
            if self._paths.of_descriptor(thread, descriptor) is None:
                return None
            file = self._number_at(thread, descriptor)
        if name != "fallocate":
            return lambda _: self._emit(trace.Resized(_now(), file, arguments[1]))
        mode = arguments[1]
        if mode & _FALLOC_OTHER_THAN_GROW:
            return lambda _: self._unfollowed(f"fallocate with mode {mode:#x}")
        if mode & _FALLOC_KEEP_SIZE:
            return None
        return lambda _: self._emit(trace.Allocated(_now(), file, arguments[2] + arguments[3]))

    def _before_mapping(self, thread: int, descriptor: int) -> AfterCall | None:
        path = self._paths.of_descriptor(thread, descriptor)
        # The shared-memory file of a WAL database is rebuilt at the first opening; nothing in it need be
        # durable.
        if path is None or path.endswith("-shm"):
            return None
        return lambda _: self._unfollowed(f"writable mapping of {path}")

    # ------------------------------------------------------------ syncs

    def _before_sync(self, thread: int, descriptor: int) -> AfterCall | None:
        path = self._paths.of_descriptor(thread, descriptor)
        if path is None:
            return None
        found = os.stat(f"/proc/{thread}/fd/{descriptor}")
        sync = self._start_sync()
        if stat.S_ISDIR(found.st_mode):
            return lambda _: self._emit(trace.FolderSynced(_now(), sync, path))
        file = self._number_of(found)
        return lambda _: self._emit(trace.Synced(_now(), sync, file))

    def _before_sync_of_all(self) -> AfterCall:
        sync = self._start_sync()
        return lambda _: self._emit(trace.AllSynced(_now(), sync))

    def _start_sync(self) -> int:
        self._last_sync += 1
        self._emit(trace.SyncStarted(_now(), self._last_sync))
        return self._last_sync

    # ------------------------------------------------------------ names

    def _before_open(self, thread: int, name: str, arguments: tuple[int, ...]) -> AfterCall | None:
        match name:
            case "open":
                path, flags = self._paths.named(thread, AT_FDCWD, arguments[0]), arguments[1]
            case "creat":
                path, flags = self._paths.named(thread, AT_FDCWD, arguments[0]), _O_CREAT | _O_TRUNC
            case "openat":
                path, flags = self._paths.named(thread, signed(arguments[0]), arguments[1]), arguments[2]
            case _:
                path = self._paths.named(thread, signed(arguments[0]), arguments[1])
                flags = _u64.unpack(self._paths.read(thread, arguments[2], 8))[0]
        if path is None or not flags & (_O_CREAT | _O_TRUNC | _O_TMPFILE):
            return None
        if flags & _O_TMPFILE:
            return lambda _: self._unfollowed(f"file without a name in {path!r}")
        existed = os.path.lexists(f"{self._paths.inside}{path}")

        def after(result: int) -> None:
            found = os.stat(f"/proc/{thread}/fd/{result}")
            if not existed:
                # Numbers of inodes are used again, so a new name without a link is always a new file.
                self._files.pop((found.st_dev, found.st_ino), None)
                self._emit(trace.Created(_now(), path, self._number_of(found), found.st_mode))
            elif flags & _O_TRUNC:
                self._emit(trace.Resized(_now(), self._number_of(found), 0))

        return after

    def _before_name_change(self, thread: int, name: str, arguments: tuple[int, ...]) -> AfterCall | None:
        match name:
            case "rename" | "link":
                old = self._paths.named(thread, AT_FDCWD, arguments[0])
                new = self._paths.named(thread, AT_FDCWD, arguments[1])
            case "renameat" | "renameat2" | "linkat":
                old = self._paths.named(thread, signed(arguments[0]), arguments[1])
                new = self._paths.named(thread, signed(arguments[2]), arguments[3])
            case "symlink":
                old, new = None, self._paths.named(thread, AT_FDCWD, arguments[1])
            case "symlinkat":
                old, new = None, self._paths.named(thread, signed(arguments[1]), arguments[2])
            case "unlink" | "rmdir" | "mkdir":
                old = new = self._paths.named(thread, AT_FDCWD, arguments[0])
            case "unlinkat" | "mkdirat":
                old = new = self._paths.named(thread, signed(arguments[0]), arguments[1])
            case _:
                return lambda _: self._unfollowed(name)
        if old is None and new is None:
            return None
        strange = (
            old is None
            or new is None
            or (name == "renameat2" and arguments[4] & _RENAME_EXCHANGE)
            or (name == "linkat" and arguments[4] & _AT_EMPTY_PATH)
        )
        if strange or old is None or new is None:
            return lambda _: self._unfollowed(f"{name} from {old!r} to {new!r} (None = outside)")
        match name:
            case "unlink" | "unlinkat" | "rmdir":
                return lambda _: self._emit(trace.Removed(_now(), old))
            case "mkdir" | "mkdirat":
                mode_at = f"{self._paths.inside}{new}"
                return lambda _: self._emit(trace.FolderCreated(_now(), new, os.stat(mode_at).st_mode))
            case "link" | "linkat":
                return lambda _: self._emit(trace.Linked(_now(), old, new))
            case _:
                return lambda _: self._emit(trace.Renamed(_now(), old, new))

    # ------------------------------------------------------------ numbers of files

    def _number_at(self, thread: int, descriptor: int) -> int:
        return self._number_of(os.stat(f"/proc/{thread}/fd/{descriptor}"))

    def _number_of(self, found: os.stat_result) -> int:
        key = found.st_dev, found.st_ino
        if key not in self._files:
            self._last_file += 1
            self._files[key] = self._last_file
        return self._files[key]

    def _unfollowed(self, what: str) -> None:
        self._emit(trace.Unfollowed(_now(), what))


def _position_and_flags(thread: int, descriptor: int) -> tuple[int, int]:
    lines = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines[:2])
    return int(values["pos"]), int(values["flags"], 8)


def _now() -> int:
    return time.monotonic_ns()
