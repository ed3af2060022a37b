"""Counters of the server, and the memory of its processes."""

import dataclasses
import os
import resource
from pathlib import Path


@dataclasses.dataclass(slots=True)
class Counters:
    """Running totals since the start; plain numbers, so that counting is cheap. No msgspec.Struct, whose attributes are
    set twice as slowly: the interpreter does not specialize the instruction.
    """

    requests: int = 0
    bytes_in: int = 0
    """Bytes that clients sent, and bytes that were sent to clients; TLS is not counted."""
    bytes_out: int = 0
    refusals: int = 0
    """Requests that the core or the accounts refused."""
    busy: int = 0
    disk_refusals: int = 0
    sent: int = 0
    published: int = 0
    """Messages, including messages without a matching subscription; copies are not counted."""
    unmatched: int = 0
    """Published messages that matched no subscription, and were not stored."""
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

    errors: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    """Error replies by name of the error."""

    def count_error(self, name: str) -> None:
        """Count an error reply."""
        self.errors[name] = self.errors.get(name, 0) + 1

    def snapshot(self) -> dict[str, int | dict[str, int]]:
        """Return the totals by name."""
        return dataclasses.asdict(self)


def cpu_us(pid: int | str = "self") -> int:
    """Return the CPU time of a process of this machine, user and system, 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) * 1_000_000 // os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int | str = "self") -> int:
    """Return the memory in use by a process of this machine, 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
