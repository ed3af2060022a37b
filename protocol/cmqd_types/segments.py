"""Segments of the log: rows, times, and the reasons that keep a segment on disk."""

from enum import StrEnum

import msgspec


class KeptFor(StrEnum):
    """A reason to keep a segment. Later versions may add reasons."""

    ROWS = "rows"
    """The segment is active and takes new rows."""
    MESSAGES = "messages"
    """Messages of the segment are not consumed."""
    REWIND = "rewind"
    """A rewind can bring deleted messages of the segment back."""
    DELIVERIES = "deliveries"
    """Published messages of the segment wait for a subscription."""
    CHECKPOINT = "checkpoint"
    """The oldest kept checkpoint lacks rows of the segment: a start from that checkpoint reads the segment."""
    HISTORY = "history"
    """No message is needed; the segment is kept for readers of the log, see the setting ``keep_history_ms``."""
    BACKUP = "backup"
    """No message is needed; a backup has not copied the segment yet, or copies it just now."""


class SegmentHolder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue or topic with messages that keep a segment on disk."""

    account: str
    name: str
    is_topic: bool
    live: int
    """Of a queue, its messages in the segment that are not consumed; of a topic, deliveries of messages that wait for a
    subscription."""
    rewindable: int
    """Deleted messages of the queue in the segment that a rewind can bring back; 0 for a topic."""


class SegmentInfo(msgspec.Struct, frozen=True, array_like=True):
    """A segment of the log."""

    number: int
    state: str
    """``active``, ``retired`` (closed, not sealed yet) or ``sealed``."""
    first_lsn: int
    last_lsn: int
    first_ms: int
    """Broker time of the first row."""
    last_ms: int
    """Broker time of the newest row."""
    bytes: int
    """Size on disk."""
    messages: int
    """Messages that were stored in the segment, needed or not."""
    kept_for: list[str]
    """Reasons, see ``KeptFor``; empty if the segment is about to be reclaimed."""
    live: int
    """Messages of queues that are not consumed."""
    rewindable: int
    """Deleted messages that a rewind can bring back."""
    undelivered: int
    """Deliveries of published messages that wait for a subscription."""
    holders: list[SegmentHolder]
    """The queues and topics that need most messages of the segment, at most five, in descending order."""
    holder_count: int
    """Number of all queues and topics that need messages of the segment."""
