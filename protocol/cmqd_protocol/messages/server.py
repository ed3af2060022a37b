"""The server: its status, and the segment of the log that it writes."""

from typing import Any

from cmqd_protocol.messages.base import Reply, Request


class GetServerStatus(Request, frozen=True, tag=144):
    """Read the status of the server. Answered ``ServerStatus``."""


class SealSegments(Request, frozen=True, tag=145):
    """Seal the segment of the log that is being written, for readers of the log. Answered ``SegmentsSealed``."""


class ServerStatus(Reply, frozen=True, tag=201):
    """Status values by name: version, durability, uptime, counts, storage figures."""

    status: dict[str, Any]


class SegmentsSealed(Reply, frozen=True, tag=213):
    """The segment was sealed: all writes acknowledged before this reply are in sealed segments."""

    last_lsn: int
    """Last row number in sealed segments. Earlier rows are in sealed segments or were reclaimed."""
