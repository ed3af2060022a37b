"""Segments of the server's log: their rows and times, and what keeps each on disk."""

from datetime import datetime, timedelta

import msgspec

from cmqd_client.durations import to_datetime
from cmqd_client.links.channel import Channel
from cmqd_protocol import operations
from cmqd_types.segments import SegmentInfo


class SegmentHolder(msgspec.Struct, frozen=True):
    """A queue or topic with messages that keep a segment on disk."""

    account: str
    name: str
    is_topic: bool
    live: int
    """Of a queue, its messages in the segment that are not consumed; of a topic, deliveries of messages that wait for a
    subscription."""
    rewindable: int
    """Deleted messages of the queue in the segment that a rewind can bring back; 0 for a topic."""


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
    """Size of the segments that are kept for history alone."""
    free_bytes: int
    """Free space of the disk of the data folder."""
    sends_refused_reason: str | None
    """Why sends are refused for lack of space; None = sends are accepted."""
    request_id: int


async def ask_segments(channel: Channel, after: int, limit: int) -> SegmentPage:
    """Ask for a page of segments; see ``Client.segments``."""
    reply = await channel.ask(operations.LIST_SEGMENTS, after, limit)
    return SegmentPage(
        to_datetime(reply.broker_time_ms),
        [_segment(info) for info in reply.segments],
        reply.next,
        reply.total,
        timedelta(milliseconds=reply.keep_history_ms),
        reply.covered_lsn,
        reply.log_bytes,
        reply.history_bytes,
        reply.free_bytes,
        reply.sends_refused_reason,
        reply.request_id,
    )


def _segment(info: SegmentInfo) -> Segment:
    return Segment(
        number=info.number,
        state=info.state,
        first_lsn=info.first_lsn,
        last_lsn=info.last_lsn,
        first_time=to_datetime(info.first_ms),
        last_time=to_datetime(info.last_ms),
        bytes=info.bytes,
        messages=info.messages,
        kept_for=info.kept_for,
        live=info.live,
        rewindable=info.rewindable,
        undelivered=info.undelivered,
        holders=[
            SegmentHolder(holder.account, holder.name, holder.is_topic, holder.live, holder.rewindable)
            for holder in info.holders
        ],
        holder_count=info.holder_count,
    )
