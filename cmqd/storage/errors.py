"""The refusals of a data folder; the rest of the tree is in ``cmqd.log.errors``.

LogError
├── LogFailed
├── FolderLocked        another broker works on the data folder
├── FolderFormatError   a newer version wrote the folder
└── DamagedError        a file is damaged or missing; ``accept_loss`` would go on without it
"""

from cmqd.log.errors import LogError


class FolderLocked(LogError):
    """Raised by ``open``: the lock was not free within the waiting time. The text names the holder."""


class FolderFormatError(LogError):
    """Raised by ``open``: the folder needs a newer cmqd. The folder was not changed."""


class DamagedError(LogError):
    """Raised by ``open``: data is damaged or missing; the text lists the damage. The log was not changed.

    Copies of damaged files were set aside. Opening with ``accept_loss`` goes on without the damaged data.
    """
