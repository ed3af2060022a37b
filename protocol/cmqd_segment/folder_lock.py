"""The lock of a data folder: a file that each process of the broker holds with ``flock`` as long as it can write."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import msgspec

LOCK = "lock"
"""Name of the file below the data folder."""


class LockHolder(msgspec.Struct, frozen=True):
    """Content of the lock file, for the error text of a waiting broker."""

    pid: int
    broker_pid: int


def write_holder(descriptor: int, holder: LockHolder) -> None:
    """Write the holder into the lock file.

    Over the text of the holder before, without truncating first: on a full disk the block that a truncation gives up
    may be gone.
    """
    os.pwrite(descriptor, msgspec.json.encode(holder).ljust(os.fstat(descriptor).st_size), 0)


@contextlib.contextmanager
def try_lock(folder: Path) -> Generator[bool]:
    """Hold the lock of a folder, for a program that is no broker; yield False if another process holds the lock.

    Raises OSError: the folder is missing or cannot be written.
    """
    # Here, because Windows has no such module, and readers of segments run there.
    import fcntl

    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        write_holder(descriptor, LockHolder(os.getpid(), os.getpid()))
        yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def shared_lock(folder: Path) -> Generator[bool]:
    """Keep a folder from being written while programs read it; yield False if another process may write it.

    Readers share the lock, and leave its text alone. A folder without the file, on a disk that cannot be written, has
    no process that writes it.

    Raises OSError: the folder is missing or cannot be read.
    """
    import fcntl

    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError:
        if path.exists() or not folder.is_dir():
            raise
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
