"""The server: its status, and the segment of the log that it writes."""

from typing import Any

from cmqd_protocol.messages.base import Reply, Request


class GetServerStatus(Request, frozen=True, tag=144):
    """What the server says of itself. Answered ``ServerStatus``."""


class SealSegments(Request, frozen=True, tag=145):
    """Close the segment of the log that is being written, for readers of the log. Answered ``SegmentsSealed``."""


class ServerStatus(Reply, frozen=True, tag=201):
    """Name to value: version, durability, uptime, counts, storage figures."""

    status: dict[str, Any]


class SegmentsSealed(Reply, frozen=True, tag=213):
    """Sealed segments hold what was answered before."""

    last_lsn: int
    """All rows up to this one are in them, or gone."""
