"""Give the blocks of files of any size back beside commits: in steps. A removed file loses its name at once.

The last ``unlink`` of a file, or a cut, gives back all its blocks in one go. A file system that is mounted with
``discard`` hands them to the disk in the same call, and commits wait: 35 ms for a WAL of 128 MiB (decision 0163). So
``remove`` takes the name first, and a descriptor keeps the blocks, which are cut off in steps with pauses for the
commits.

A file without a name cannot be opened any more, so no reader finds half of it. A file is cut only if no other
descriptor has it open and no other name leads to it: a reader from outside reads on as after any ``unlink``, and a
backup by hard links stays whole. After a crash the kernel frees a file that has neither name nor descriptor.
"""

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

STEP_BYTES: Final = 1024 * 1024
"""Bytes that are given back in a step, which holds up a commit by some 0.3 ms."""
PAUSE_SECONDS: Final = 0.005
"""Pause after a step."""


def remove(path: Path, is_hurried: Callable[[], bool] = lambda: True) -> None:
    """Remove a file, if there is one; the name is gone first.

    Returns when the blocks are given back: in steps with pauses, but all that are left at once when ``is_hurried``
    returns True, or where steps are not possible (no descriptor is left, the file belongs to another user). Raises
    OSError if the name cannot be removed.
    """
    descriptor = None
    # A removal needs no right to the file itself, so that a failure here may not prevent it.
    with contextlib.suppress(OSError):
        status = path.stat()
        if status.st_nlink == 1 and not is_hurried():
            # The seal of a segment took the right to write from its file. Others may still read.
            path.chmod(stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        if descriptor is not None:
            # A file system that copies on write may lack room for a cut; the close of the descriptor needs none.
            with contextlib.suppress(OSError):
                shorten(descriptor, 0, lambda: not is_hurried() and _is_only(descriptor))
    finally:
        if descriptor is not None:
            # The kernel frees the blocks that are left.
            os.close(descriptor)


def shorten(descriptor: int, size: int, goes_on: Callable[[], bool]) -> None:
    """Cut a file in steps with pauses, for as long as ``goes_on`` returns True before each step, to less than a step
    above this size. Raises OSError.
    """
    end = os.fstat(descriptor).st_size - STEP_BYTES
    while end > size and goes_on():
        os.ftruncate(descriptor, end)
        end -= STEP_BYTES
        time.sleep(PAUSE_SECONDS)


def _is_only(descriptor: int) -> bool:
    """Return whether a file has no name, and no other descriptor in any process."""
    if os.fstat(descriptor).st_nlink:
        return False
    try:
        # The kernel sends this process a signal if a program opens the file meanwhile, by /proc or fanotify. SIGURG is
        # ignored; the default, SIGIO, would end the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        # The kernel gives a write lease to the only descriptor of a file.
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        # Another descriptor, or a file system without leases.
        return False
    # Given back at once: an attempt to open the file waits for the end of the lease.
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
