"""What can go wrong in storage.

StorageError
├── FolderLocked       another broker works on the data folder
├── FolderFormatError  the folder was written by a newer version
├── DamagedError       something is broken or missing; ``accept_loss`` would go on without it
└── StorageFailed      I/O error, failed fsync, or the storage process died: nothing more becomes durable
"""


class StorageError(Exception):
    """Root of this package's errors."""


class FolderLocked(StorageError):
    """Raised by ``open``: the lock was not free within the waiting time. The text names the holder."""


class FolderFormatError(StorageError):
    """Raised by ``open``: the folder needs a newer cmqd. Nothing was changed."""


class DamagedError(StorageError):
    """Raised by ``open``: data is damaged or missing, and what it was is told. The log was not changed; copies of
    what is damaged were set aside. Opening with ``accept_loss`` goes on without it.
    """


class StorageFailed(StorageError):
    """Nothing that is not durable yet ever will be, and whether the last batch is, is unknown until the next start.

    Given to ``on_fatal``, once, and raised by whatever is called afterwards. The broker must end and say why.
    """
