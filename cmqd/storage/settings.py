"""The settings of storage, with the reason for each default. The edge takes them from the broker's settings."""

from enum import StrEnum

import msgspec

MEBIBYTE = 1024 * 1024


class Durability(StrEnum):
    """What an answer promises."""

    FSYNC = "fsync"
    """Answered means on disk: a commit ends after fsync."""
    OS = "os"
    """Answered means handed to the operating system: survives kill -9, not loss of power."""


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    folder: str
    """The data folder; made if missing."""
    durability: Durability = Durability.FSYNC
    accept_loss: bool = False
    """Go on without what is damaged (reported, set aside) instead of refusing to start."""
    segment_bytes: int = 128 * MEBIBYTE
    """WAL size at which a segment is retired: large enough that sealing is rare, small enough that recovery, which
    walks the WAL of at most a few, takes a fraction of a second."""
    segment_age_ms: int = 3_600_000
    """A segment with rows is retired at this age, so that Spark sees quiet queues too."""
    hold_retired: bool = True
    """Whether a retired segment waits before it is sealed, since it may be dropped soon; not if history is kept."""
    group_readable: bool = False
    """Whether the files of a new folder can be read by its group; an existing folder keeps the modes it has."""
    lock_wait_ms: int = 10_000
    """How long to wait for the broker before to let go of the folder."""
    ballast_bytes: int = 16 * MEBIBYTE
    """Space held back in a file of its own, given back when the disk is full: for the batches in hand, and for the WAL,
    seals and checkpoints that receives and deletes need until what they empty makes room."""
    start_ballast_bytes: int = 8 * MEBIBYTE
    """The same for a start alone: WAL-indexes, two new segments, manifests, and the first deletes."""
    reserve_bytes: int = 64 * MEBIBYTE
    """Free space below which, on top of what pending seals and deletes need, sends are refused."""
    page_cache_bytes: int = 4 * MEBIBYTE
    """Decoded rows kept for the next page, which often begins in the row where the last one ended."""
    open_segments: int = 6
    """Sealed segments open for reading at a time; each costs a thread and SQLite's page cache."""
    checkpoints_kept: int = 2
    """The newest may turn out damaged; segments are dropped only below the oldest kept."""
    state_interval_ms: int = 1_000
    """How often free space is looked at beside commits."""
