"""The lock of a data folder: a file that each process of the broker holds with ``flock`` as long as it can write.

A program that needs the files to stay as they are, such as an offline backup, holds the lock too.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import msgspec

LOCK = "lock"
"""Name of the file below the data folder."""
_MAX_BYTES = 4096


class LockHolder(msgspec.Struct, frozen=True):
    """Content of the lock file, for the error text of a process that needs the lock."""

    pid: int
    broker_pid: int
    """0 if the holder is no broker."""
    program: str = ""
    """Name of a program that is no broker; earlier versions write none."""

    def __str__(self) -> str:
        """Return the holder as a part of a sentence."""
        if not self.pid:
            return self.program or "another process"
        return f"process {self.pid} ({self.program or f'storage of broker process {self.broker_pid}'})"


def write_holder(descriptor: int, holder: LockHolder) -> None:
    """Write the holder into the lock file.

    Over the text of the holder before, without truncating first: on a full disk the block that a truncation gives up
    may be gone.
    """
    os.pwrite(descriptor, msgspec.json.encode(holder).ljust(os.fstat(descriptor).st_size), 0)


READERS = LockHolder(0, 0, "a program that reads its files")
"""Holders of ``shared_lock``: the text in the file is of an earlier holder."""


def read_holder(descriptor: int) -> LockHolder:
    """Return the holder of a lock that is not free; without a readable text, one with process 0."""
    # Here, because Windows has no such module, and readers of segments run there.
    import fcntl

    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return READERS
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_BYTES, 0), type=LockHolder)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
        return LockHolder(0, 0)


def holder_of(folder: Path) -> LockHolder | None:
    """Return the holder of the lock of a folder; None if it is free, or readers alone hold it. Raises OSError."""
    descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        holder = read_holder(descriptor)
        return None if holder is READERS else holder
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def try_lock(folder: Path, program: str = "a cmqd command") -> Generator[bool]:
    """Hold the lock of a folder, for a program that is no broker; yield False if another process holds the lock.

    ``program``: name of the program, for the error text of other processes.

    Raises OSError: the folder is missing or cannot be written.
    """
    import fcntl

    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        write_holder(descriptor, LockHolder(os.getpid(), 0, program))
        yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def shared_lock(folder: Path) -> Generator[bool]:
    """Keep a folder from being written while programs read it; yield False if another process may write it.

    Readers share the lock, and change nothing: the folder may be read-only, or under version control. Without the file
    no process writes. A broker that starts in this moment changes no sealed file, and a file that it drops is missed.

    Raises OSError: the file cannot be opened.
    """
    import fcntl

    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
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
