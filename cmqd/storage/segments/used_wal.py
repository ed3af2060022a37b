"""The WAL of a dropped segment as the WAL of the next segment: blocks that were written before.

A commit into a new file pays for memory, for a place in the file and for a record of the file system, and the drop pays
for giving all of them back. A WAL that is used again has them.

SQLite must not take the frames of the segment before for rows. Therefore ``MARK`` stands in place of the header until
the first commit writes one. That header has random salts, and a frame with other salts ends the log.
"""

import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import Final

MARK: Final = b"CMQDUSED".ljust(32, b"\0")
"""In place of the header of a WAL: not the magic number of SQLite, and a page size of 0. No zeros, because a start must
tell a WAL without rows from a WAL that has lost its header, whose frames would be lost in silence."""


def take_over(used: Path, wal: Path) -> int:
    """Move the WAL of a dropped segment to the name of the WAL of a new segment, marked and synced. Return its size; 0
    if the WAL cannot be used again, and there is none then. Raises OSError.

    No connection may be open, and the manifest must list the new segment as *preparing*: until the mark is written, the
    new segment has the rows of the old.
    """
    if wal.exists():
        # A reader from outside has the new segment open: the index of the WAL is shared with that reader.
        return 0
    used.rename(wal)
    descriptor = os.open(wal, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        # Otherwise a reader of the old segment, or a backup by hard links, would find the frames of the new.
        if status.st_nlink == 1 and is_only_descriptor(descriptor):
            os.pwrite(descriptor, MARK, 0)
            os.fsync(descriptor)
            return status.st_size
    except OSError as error:
        # A file system that copies on write may lack room for the mark.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(descriptor)
    wal.unlink()
    return 0


def is_only_descriptor(descriptor: int) -> bool:
    """Return whether a file that is open for writing has no other descriptor in any process."""
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
