"""The index as of an LSN: the Structs of a checkpoint file, in file order.

A checkpoint is one ``CheckpointHeader``, slices in any order, one ``CheckpointEnd``. Slices are taken while the broker
works, so each slice has its own LSN. Recovery loads the slices and applies to each queue (and each session) only the
records above the LSN of its slice: an older record is in the slice already, and applying it again would undo later
facts. A queue with records above the header's LSN and without a slice was created after that LSN (its ``QueueCreated``
is above), or deleted before its slice was taken (its records are ignored).

Position sets are portable 64-bit roaring bitmaps (their public serialized format). Arrays are little-endian unsigned
64-bit integers. The module imports msgspec and the shared types alone.
"""

from typing import TypeAlias

import msgspec

from cmqd_types.actors import Actor
from cmqd_types.attributes import QueueAttributes, SubscriptionAttributes, TopicAttributes
from cmqd_types.audit import AuditEntry
from cmqd_types.messages import Headers
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals


class CheckpointPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame of a checkpoint file; see the module."""


class CheckpointHeader(CheckpointPart, frozen=True, tag=1):
    """The first part."""

    lsn: int
    """The slices hold all facts of rows at or below this LSN."""
    time_ms: int
    message_id_until: int
    lease_until: int
    queue_id_until: int
    clock_offset_ms: int = 0
    """Of the last ``ClockOffset``."""
    log_id: str = ""
    """Of the log (``Manifest.log_id``)."""


class Redrive(msgspec.Struct, array_like=True, gc=False):
    """A redrive: messages on their way back from a dead-letter queue, with counts of the results."""

    target: str
    max_per_second: int
    stop_position: int
    started_ms: int
    moved: int = 0
    ended_ms: int = 0
    """End of the redrive; 0 = it goes on."""
    reason: str = ""
    """Reason of the end: ``done`` or ``cancelled``."""
    missing_origins: dict[str, int] = {}
    """Messages that stayed because their origin queue does not exist or is full, by the queue's name."""


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
    """Delayed messages beyond ``max_delayed``; their due times are in the log alone."""
    delayed: bytes
    delays: list[tuple[int, bytes]]
    """(due time in ms, positions) of each bucket. Positions that are not delayed any more are stale and ignored."""
    step_positions: bytes
    step_starts: bytes
    step_ends: bytes
    """The time index: the messages from ``step_positions[i]`` up to the next step were sent between
    ``step_starts[i]`` and ``step_ends[i]``, both inclusive."""

    rewindable: bytes = b""
    """Deleted messages that can be brought back; empty = none, here and below."""
    half: bytes = b""
    """Half messages without a decision; a ``HalvesSlice`` has their details."""
    dead_letter_floor: int = -1
    """Floor of a dead-letter queue: it accepts dead letters once no message below the floor is live. -1 = never a
    dead-letter queue, -2 = not any more (a checkpoint of format 1 has -1 for both)."""
    activations: list[tuple[int, bytes]] = []
    """(time in ms, positions): messages that became active later than they were sent, for dead letters by age."""
    redrive: Redrive | None = None
    far_delays: list[bytes] = []
    """(due time in ms, position) pairs of delayed messages that are in no bucket yet; stale positions are ignored."""
    totals: QueueTotals | None = None
    """Counts since the queue was made; None = an older version wrote the slice, and they begin at 0."""
    settled_since_ms: int = 0
    """Begin of the first two sets of ``settled``; the others are of up to ten minutes before."""
    settled: list[bytes] = []
    """Leases that ended with a delete, with a move to the dead-letter queue, and both of before, as bitmaps; an empty
    list, or empty bytes, = none."""


class LeasesSlice(CheckpointPart, frozen=True, tag=3):
    """The leases of the queue in the preceding slice."""

    queue_id: int
    leases: list[tuple[int, int, int, int, int]]
    """(lease, position, deadline_ms, receive_count, first_receive_ms)"""
    actors: list[int] = []
    """Clients of the leases, as in records (``cmqd_segment.actor_runs``)."""


class HistorySlice(CheckpointPart, frozen=True, tag=4):
    """Receive count and first receive time of messages that were received and came back."""

    queue_id: int
    entries: list[tuple[int, bytes]]
    """(first position of a chunk, packed history; see ``cmqd_fold.receive_history``)."""


class HalvesSlice(CheckpointPart, frozen=True, tag=7):
    """A part of the half messages of the queue in the preceding slice, and of the remembered decisions. All parts
    together are complete.
    """

    queue_id: int
    runs: list[tuple[int, int, int]]
    """(first message id, first position, count) of all half messages that are remembered, ascending."""
    committed: bytes
    """Positions of committed half messages, as a bitmap, in the first part; empty in later parts."""
    rolled_back: bytes
    """Positions of half messages that were rolled back, in the same form."""
    due: list[tuple[int, bytes]]
    """(time of the next check in ms, positions) of each bucket; stale positions are ignored."""
    checked: list[tuple[int, int, int, int, int]]
    """(position, attempts, last check in ms, last answer "unknown" in ms or 0, next check in ms)"""


class DedupSlice(CheckpointPart, frozen=True, tag=8):
    """A part of the dedup ids of the queue in the preceding slice, oldest first. The last entry of an id is valid."""

    queue_id: int
    entries: list[tuple[str, int, int]]
    """(dedup id, message id, time of sending in ms)"""


class TopicSlice(CheckpointPart, frozen=True, tag=9):
    """A topic. Its subscriptions follow in slices of their own, each with an LSN not below this LSN."""

    lsn: int
    topic_id: int
    account: str
    name: str
    attributes: TopicAttributes
    created_ms: int
    modified_ms: int
    next_position: int
    floor: int
    last_enqueue_ms: int
    step_positions: bytes
    step_starts: bytes
    step_ends: bytes
    """The time index, as a queue's."""
    totals: TopicTotals | None = None
    """As in ``QueueSlice``."""


class SubscriptionSlice(CheckpointPart, frozen=True, tag=10):
    """A subscription of the topic in the preceding slice, without its retries, which follow."""

    lsn: int
    topic_id: int
    subscription_id: int
    name: str
    attributes: SubscriptionAttributes
    created_ms: int
    modified_ms: int
    waiting: bytes
    """Positions that were never tried, as a bitmap; empty = none, as below."""
    exhausted: bytes
    """Positions without retries left."""
    blocked: bool
    delivered: int
    """Number of messages delivered, and of messages dropped, since the subscription was made."""
    dropped: int
    last_error: str
    last_error_ms: int
    failed: int = 0
    """Number of attempts that failed since the subscription was made; each attempt for a message counts."""
    drops_known_from: int | None = None
    """Position from which all drops are known; null = written by a version that kept no drops."""
    drops_begun_ms: int = 0
    """Time of the first drop in ``drops``."""
    drops: list[tuple[str, bytes]] = []
    """(reason, positions as a bitmap) of dropped messages, and of messages dropped before ``drops_begun_ms``."""
    older_drops: list[tuple[str, bytes]] = []


class RetriesSlice(CheckpointPart, frozen=True, tag=11):
    """A part of the messages of a subscription that failed and are tried again, or (next time 0) no more."""

    topic_id: int
    subscription_id: int
    retries: list[tuple[int, int, int]]
    """(position, failed attempts, time of the next attempt in ms)"""
    errors: list[str] = []
    """The different reasons of the last failures in this part."""
    failures: list[tuple[int, int]] = []
    """For each of ``retries``: the number of its reason in ``errors``, and the time of the failure; empty = written by
    a version that did not keep them."""


class ScheduleSlice(CheckpointPart, frozen=True, tag=12):
    """A schedule."""

    lsn: int
    schedule_id: int
    account: str
    name: str
    queue: str
    cron: str
    zone: str
    paused: bool
    body: bytes
    headers: Headers | None
    created_ms: int
    modified_ms: int
    next_ms: int
    """0 = none."""
    fired: int
    """Number of messages sent, and of times missed, since the schedule was made."""
    missed: int
    last_fired_ms: int
    """0 = the schedule has sent no message."""
    last_message_id: int
    last_error: str
    last_error_ms: int


class SessionsSlice(CheckpointPart, frozen=True, tag=5):
    """Producer sessions, with their numbered sends."""

    lsn: int
    sessions: list[tuple[str, int, int, int, bytes]]
    """(account, session, last use in ms, highest sequence, packed answers; see ``cmqd.core.facts.sessions``)."""


class GoneTotalsSlice(CheckpointPart, frozen=True, tag=13):
    """A part of the totals of the queues, topics and subscriptions that were deleted, added up for each account.

    Made after the slices of all queues and topics: every deletion up to its LSN is in it, also the deletion of a queue
    that has no slice because it went while the checkpoint was taken.
    """

    lsn: int
    accounts: list[tuple[str, QueueTotals, TopicTotals, SubscriptionTotals]]


class AuditSlice(CheckpointPart, frozen=True, tag=14):
    """A part of the audit trail, oldest entry first. All parts show one moment, and several add up.

    Without an LSN for replay: a record with an id below ``next_id`` is in the slices.
    """

    lsn: int
    next_id: int
    """Id of the next entry at that moment in the last part; in an earlier part the id behind its last entry."""
    entries: list[AuditEntry]


class ActorsSlice(CheckpointPart, frozen=True, tag=15):
    """A part of the actors that rows outside of sealed segments may name. Several parts add up. No number below
    ``next_number`` is free, which is the same in all parts.

    Without an LSN for replay: an ``ActorSeen`` whose number is in the slices changes nothing.
    """

    next_number: int
    """Of the next actor."""
    actors: list[tuple[int, Actor]]


class CheckpointEnd(CheckpointPart, frozen=True, tag=6):
    """The last part."""

    lsn: int
    """Highest LSN of any slice: the checkpoint is true only once this is durable."""
    parts: int
    """Number of frames before the end: a shorter file is damaged."""


AnyPart: TypeAlias = (
    CheckpointHeader
    | QueueSlice
    | LeasesSlice
    | HistorySlice
    | HalvesSlice
    | DedupSlice
    | TopicSlice
    | SubscriptionSlice
    | RetriesSlice
    | ScheduleSlice
    | SessionsSlice
    | GoneTotalsSlice
    | AuditSlice
    | ActorsSlice
    | CheckpointEnd
)
