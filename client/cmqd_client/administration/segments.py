"""Segments of the server's log: their rows and times, and what keeps each on disk."""

from datetime import datetime, timedelta

import msgspec

from cmqd_client.links.channel import Channel
from cmqd_client.replies.conversions import converted
from cmqd_protocol import operations
from cmqd_types import segments


class SegmentHolder(segments.SegmentHolder, frozen=True, array_like=False):
    """A queue or topic with messages that keep a segment on disk."""


class Segment(msgspec.Struct, frozen=True):
    """A segment of the log, and what keeps it on disk."""

    number: int
    state: str
    """``active``, ``retired`` (closed, not sealed yet) or ``sealed``."""
    first_lsn: int
    last_lsn: int
    first_time: datetime
    """Broker time of the first row."""
    last_time: datetime
    """Broker time of the newest row."""
    bytes: int
    """Size on disk."""
    messages: int
    """Messages that were stored in it, needed or not."""
    kept_for: list[str]
    """Reasons, see ``cmqd_types.segments.KeptFor``; empty if the segment is about to be reclaimed. A newer server may
    have other reasons."""
    live: int
    """Messages of queues that are not consumed."""
    rewindable: int
    """Deleted messages that a rewind can bring back."""
    undelivered: int
    """Deliveries of published messages that wait for a subscription."""
    holders: list[SegmentHolder]
    """The queues and topics that need most of its messages, at most five, in descending order."""
    holder_count: int
    """Number of all queues and topics that need messages of it."""


class SegmentPage(msgspec.Struct, frozen=True):
    """Segments by number, and the room of the log."""

    time: datetime
    """Broker time of the counts."""
    segments: list[Segment]
    next: int | None
    """Number of the last segment, as ``after`` of the next page; None at the end."""
    total: int
    """Number of all segments with rows."""
    keep_history: timedelta
    """Time after its last row for which a segment without needed messages is kept."""
    covered_lsn: int
    """LSN of the oldest kept checkpoint: closed segments with rows above are kept."""
    log_bytes: int
    """Size of the log on disk; 0 = not known (an ephemeral broker), also of ``free_bytes``."""
    history_bytes: int
    """Size of the segments that are kept for history or backups alone."""
    free_bytes: int
    """Free space of the disk of the data folder."""
    sends_refused_reason: str | None
    """Why sends are refused for lack of space; None = sends are accepted."""
    request_id: int


async def ask_segments(channel: Channel, after: int, limit: int) -> SegmentPage:
    """Ask for a page of segments; see ``Client.segments``."""
    reply = await channel.ask(operations.LIST_SEGMENTS, after, limit)
    return converted(SegmentPage, reply)
