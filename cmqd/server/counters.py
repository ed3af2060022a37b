"""Counters of the server, and the memory of its processes."""

import resource
from pathlib import Path

import msgspec


class Counters(msgspec.Struct):
    """Running totals since the start; plain numbers, so that counting is cheap."""

    requests: int = 0
    refusals: int = 0
    """Requests that the core or the accounts refused."""
    busy: int = 0
    disk_refusals: int = 0
    sent: int = 0
    published: int = 0
    """Messages, including messages without a matching subscription; copies are not counted."""
    pushes_delivered: int = 0
    """Posts to URLs of subscriptions that were taken."""
    pushes_failed: int = 0
    half_sent: int = 0
    checks: int = 0
    """Questions put to producers."""
    received: int = 0
    deleted: int = 0
    dead_lettered: int = 0
    """Messages that consumers moved to a dead-letter queue (``dead_letter_messages``), by the answered requests."""
    given_back: int = 0
    """Messages of replies that could not be handed over."""
    damaged: int = 0
    queues_auto_deleted: int = 0
    """Queues that were deleted because they were unused."""
    messages_auto_deleted: int = 0
    """Messages that went with these queues."""
    schedules_missed: int = 0
    """Times at which the queue of a schedule could not take its message."""
    connections_accepted: int = 0
    connections_refused: int = 0
    authentications_failed: int = 0
    slow_readers_closed: int = 0
    dropped_for_memory: int = 0
    """Connections closed because the memory budget was exceeded."""

    def snapshot(self) -> dict[str, int]:
        """Return the totals by name."""
        return msgspec.structs.asdict(self)


def rss_bytes(pid: int | str = "self") -> int:
    """Return the memory in use by a process of this machine, 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
