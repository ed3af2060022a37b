"""The index as of an LSN: the Structs of a checkpoint file, in the order in which they stand there.

A checkpoint is one ``CheckpointHeader``, slices in any order, one ``CheckpointEnd``. Slices are taken while the broker
works, so each carries the LSN it is true for; recovery starts from the slices and applies to each queue (and each
session) only the records above its slice's LSN. Records above the header's LSN of a queue without a slice belong to a
queue created after it (its ``QueueCreated`` stands above that LSN) or deleted before its turn came (ignored).

Position sets are portable 64-bit roaring bitmaps (their public serialized format); arrays are little-endian unsigned
64-bit integers. msgspec alone is imported here.
"""

from typing import TypeAlias

import msgspec

from cmqd_segment.records import QueueAttributes


class CheckpointPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame of a checkpoint file; see the module."""


class CheckpointHeader(CheckpointPart, frozen=True, tag=1):
    """The first part."""

    lsn: int
    """All that is at or below it is in the slices."""
    time_ms: int
    message_id_until: int
    lease_until: int
    queue_id_until: int


class QueueSlice(CheckpointPart, frozen=True, tag=2):
    """A queue without its leases and receive history, which follow in slices of their own with the same LSN."""

    lsn: int
    queue_id: int
    account: str
    name: str
    attributes: QueueAttributes
    created_ms: int
    modified_ms: int
    next_position: int
    floor: int
    last_enqueue_ms: int
    live: bytes
    active: bytes
    overflow: bytes
    """Delayed messages beyond ``max_delayed``, whose due times are only in the log."""
    delayed: bytes
    delays: list[tuple[int, bytes]]
    """(due time in ms, positions) of each bucket; positions that are not among the delayed (any more) count for
    nothing."""
    step_positions: bytes
    step_starts: bytes
    step_ends: bytes
    """The time index: the messages from ``step_positions[i]`` up to the next step were sent between
    ``step_starts[i]`` and ``step_ends[i]``, both inclusive."""


class LeasesSlice(CheckpointPart, frozen=True, tag=3):
    """The leases of the queue whose slice stands before it."""

    queue_id: int
    leases: list[tuple[int, int, int, int, int]]
    """(lease, position, deadline_ms, receive_count, first_receive_ms)"""


class HistorySlice(CheckpointPart, frozen=True, tag=4):
    """Receive count and first receive time of messages that were received and came back."""

    queue_id: int
    entries: list[tuple[int, bytes]]
    """(first position of a chunk, packed history; see ``cmqd.core.history``)."""


class SessionsSlice(CheckpointPart, frozen=True, tag=5):
    """Producer sessions and the sends that they numbered."""

    lsn: int
    sessions: list[tuple[str, int, int, int, bytes]]
    """(account, session, last use in ms, highest sequence, packed answers; see ``cmqd.core.sessions``)."""


class CheckpointEnd(CheckpointPart, frozen=True, tag=6):
    """The last part."""

    lsn: int
    """Highest LSN of any slice: the checkpoint is true only once this is durable."""
    parts: int
    """Frames before this one, to notice a short file."""


AnyPart: TypeAlias = CheckpointHeader | QueueSlice | LeasesSlice | HistorySlice | SessionsSlice | CheckpointEnd
