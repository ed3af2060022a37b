"""The refusals of a data folder; the rest of the tree is in ``cmqd.log.log_errors``.

LogError
├── LogFailed
│   └── LeadLost        another broker leads
├── PoolerBetween       a connection pooler is between the broker and its engine (``cmqd.engine.engine_errors``)
├── FolderLocked        another broker works on the data folder
├── FolderFormatError   a newer version wrote the folder
├── WrongFolder         the folder and the setting ``redundancy`` do not belong together
└── DamagedError        a file is damaged or missing; ``accept_loss`` would go on without it
"""

from cmqd.engine.engine_errors import PoolerBetween as PoolerBetween
from cmqd.log.log_errors import LogError, LogFailed


class LeadLost(LogFailed):
    """Another broker leads the log in the engine. Rows that were not durable may be durable; no row follows them."""


class FolderLocked(LogError):
    """Raised by ``open``: the lock was not free within the waiting time. The text names the holder."""


class FolderFormatError(LogError):
    """Raised by ``open``: the folder needs a newer cmqd. The folder was not changed."""


class WrongFolder(LogError):
    """Raised by ``open``: the folder is a cache of a log in an engine, and the broker is set to another log; or the
    other way round. The text names both logs. Neither was changed.
    """


class DamagedError(LogError):
    """Raised by ``open``: data is damaged or missing; the text lists the damage. The log was not changed.

    Copies of damaged files were set aside. Opening with ``accept_loss`` goes on without the damaged data.
    """
