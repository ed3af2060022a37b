"""Searches for messages by dedup id or header, in the log of the server."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from cmqd_client.durations import to_datetime, to_moment_ms
from cmqd_client.links.channel import Channel
from cmqd_client.messages.message_ids import MessageId
from cmqd_client.replies.conversions import converted
from cmqd_protocol import operations
from cmqd_types import histories

MOST_A_REQUEST = 256
MAX_MISSING = 100
"""Ranges of missing rows of a result; beyond, the last range spans the rest."""


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was found."""

    id: MessageId
    """The id of its send or publish."""
    source: str
    """The queue or topic to which the message was sent."""
    sent_time: datetime
    lsn: int
    """Row of the log that stored the message."""


class MissingRows(msgspec.Struct, frozen=True):
    """Rows of the log that were reclaimed or lost."""

    first_lsn: int
    last_lsn: int


class FoundMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a search found."""

    messages: list[FoundMessage]
    """Oldest first."""
    from_time: datetime
    """Begin of the range of time that was searched."""
    missing: list[MissingRows]
    """Rows with times of the range that are not readable any more; messages in them are not known."""
    is_cut: bool
    """True: the search ended with ``limit`` messages, and there may be more."""
    request_id: int
    """Of the last request of the search."""

    def __iter__(self) -> Iterator[FoundMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


async def ask_messages(
    channel: Channel,
    source: str | None,
    dedup_id: str | None,
    header: tuple[str, str] | None,
    since: datetime | float | None,
    until: datetime | float | None,
    limit: int,
) -> FoundMessages:
    """Search for messages; see ``Client.find_messages``."""
    if limit < 1:
        raise ValueError(f"limit is {limit}; a search finds at least one message")
    from_ms = None if since is None else to_moment_ms(since, "since", "datetime.now(UTC) - duration")
    to_ms = None if until is None else to_moment_ms(until, "until", "datetime.now(UTC) - duration")
    found: list[histories.FoundMessage] = []
    missing: list[MissingRows] = []
    start: tuple[int, int] | None = None
    while True:
        most = min(limit - len(found), MOST_A_REQUEST)
        reply = await channel.ask(operations.FIND_MESSAGES, *(source, dedup_id, header, from_ms, to_ms, most, start))
        # Without ``since`` the server chooses the begin; the next request has the same.
        from_ms = reply.from_ms
        found += reply.messages
        for first_lsn, last_lsn in reply.missing:
            if missing and (first_lsn <= missing[-1].last_lsn + 1 or len(missing) == MAX_MISSING):
                before = missing.pop()
                first_lsn, last_lsn = before.first_lsn, max(before.last_lsn, last_lsn)
            missing.append(MissingRows(first_lsn, last_lsn))
        start = reply.next
        if start is None or len(found) >= limit:
            return FoundMessages(
                messages=[converted(FoundMessage, message) for message in found],
                from_time=to_datetime(from_ms),
                missing=missing,
                is_cut=start is not None,
                request_id=reply.request_id,
            )
