"""A bound for large look-ups at the gate: entries of lists in replies that wait for the disk.

While the disk hangs, pipelined requests would fill the memory with pages and rankings.
"""

from collections import deque
from typing import Final

from cmqd.log.interface import Log
from cmqd.server.requests.refusals import BUSY_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode

MAX_ENTRIES_AHEAD: Final = 16_000
"""Queues, topics and subscriptions in replies that wait for the disk, of all clients: up to 10 MiB."""


class EntriesAhead:
    """Counts the entries; shared by the handlers with large replies."""

    __slots__ = ("_count", "_log", "_replies")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._replies: deque[tuple[int, int]] = deque()
        """LSN that a reply waits for, and its entries, in ascending order."""
        self._count = 0

    def add(self, size: int) -> None:
        """Count the entries of a reply that waits for the disk from now on."""
        self._replies.append((self._log.last_lsn, size))
        self._count += size

    def has_room(self) -> bool:
        """Return True if a further reply may wait for the disk."""
        replies, durable_lsn = self._replies, self._log.durable_lsn
        while replies and replies[0][0] <= durable_lsn:
            self._count -= replies.popleft()[1]
        return self._count < MAX_ENTRIES_AHEAD

    def refusal(self, request_id: int) -> wire.Error:
        """Return the reply to a request for which there is no room."""
        text = f"replies with {self._count} queues, topics or subscriptions wait for the disk; try again"
        return error(request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS)
