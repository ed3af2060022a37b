"""The settings of storage: values of the broker's table (``cmqd.settings``), and constants that tests change.

The first group has no defaults here. Its defaults, ranges and reasons stand once, in the broker's table.
"""

from typing import TYPE_CHECKING

import msgspec

from cmqd.log.values import Durability, Redundancy

if TYPE_CHECKING:
    from cmqd.settings import Settings

MEBIBYTE = 1024 * 1024


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a storage process, passed in the first frame."""

    folder: str
    durability: Durability
    accept_loss: bool
    segment_bytes: int
    """Compared with the size of the WAL."""
    segment_age_ms: int
    group_readable: bool
    min_free_bytes: int
    hold_retired: bool
    """Hold a retired segment before its seal, because the segment may be dropped soon. False if history is kept."""

    redundancy: Redundancy = Redundancy.NONE
    engine_url: str = ""
    """Servers of the engine, with ``redundancy``."""
    shard: int = 0
    """Number of the log in the engine."""

    lock_wait_ms: int = 10_000
    """Longest wait of a start for the previous broker to release the folder."""
    ballast_bytes: int = 16 * MEBIBYTE
    """Reserve on disk, given back when the disk is full: for the batches in hand, and for the WAL, seals and
    checkpoints that receives and deletes need until there is room."""
    start_ballast_bytes: int = 8 * MEBIBYTE
    """The same for a start alone: WAL-indexes, two new segments, manifests, and the first deletes."""
    page_cache_bytes: int = 4 * MEBIBYTE
    """Decoded rows cached for the next page: a page often begins in the row where the last page ended."""
    open_segments: int = 6
    """Sealed segments open for reading at a time; a segment costs a thread and SQLite's page cache."""
    checkpoints_kept: int = 2
    """Two, because the newest may turn out damaged. Segments are dropped only below the oldest kept checkpoint."""
    state_interval_ms: int = 1_000
    """Time between two measurements of free space, beside the measurements after commits."""

    @classmethod
    def of(cls, settings: "Settings") -> "StorageSettings":
        """Take the values of the broker's table."""
        return cls(
            folder=str(settings.data),
            durability=settings.durability,
            accept_loss=settings.accept_loss,
            segment_bytes=settings.segment_bytes,
            segment_age_ms=settings.segment_age_ms,
            group_readable=settings.group_readable,
            min_free_bytes=settings.min_free_bytes,
            hold_retired=not settings.keep_history_ms,
            redundancy=settings.redundancy,
            engine_url=settings.engine_url,
            shard=settings.shard,
        )
