"""Paths in the arguments of a traced process's calls, as seen from one folder."""

import os
from pathlib import Path

AT_FDCWD = -100
_PATH_MAX = 4096


def signed(value: int) -> int:
    """An int argument: the lower half of its register."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


class FolderPaths:
    """Reads ``/proc`` of threads that are stopped at a call.

    Args:
        folder: absolute path without symbolic links.
    """

    def __init__(self, folder: Path) -> None:
        self._root = str(folder)
        self.inside = self._root + "/"
        self._memory: dict[int, int] = {}

    def forget(self, thread: int) -> None:
        """The thread has ended, or runs a new program in new memory."""
        descriptor = self._memory.pop(thread, None)
        if descriptor is not None:
            os.close(descriptor)

    def relative(self, path: str) -> str | None:
        if path == self._root:
            return ""
        return path[len(self.inside) :] if path.startswith(self.inside) else None

    def of_descriptor(self, thread: int, descriptor: int) -> str | None:
        """The path of an open file inside the folder (also of a file removed since); None otherwise."""
        try:
            return self.relative(os.readlink(f"/proc/{thread}/fd/{descriptor}"))
        except OSError:  # not open: the call will fail by itself
            return None

    def named(self, thread: int, base: int, address: int) -> str | None:
        named = os.fsdecode(self._read_string(thread, address))
        try:
            folder = os.readlink(f"/proc/{thread}/cwd" if base == AT_FDCWD else f"/proc/{thread}/fd/{base}")
        except OSError:
            folder = "/"
        return self.relative(os.path.normpath(os.path.join(folder, named)))

    def _memory_of(self, thread: int) -> int:
        if thread not in self._memory:
            self._memory[thread] = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        return self._memory[thread]

    def read(self, thread: int, address: int, length: int) -> bytes:
        return os.pread(self._memory_of(thread), length, address)

    def _read_string(self, thread: int, address: int) -> bytes:
        # Page by page: the page after the string need not be readable.
        found = b""
        while len(found) < _PATH_MAX:
            piece = self.read(thread, address, 256 - address % 256)
            end = piece.find(b"\0")
            if end >= 0 or not piece:
                return found + piece[: max(end, 0)]
            found += piece
            address += len(piece)
        return found
