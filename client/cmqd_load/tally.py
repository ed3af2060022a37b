"""Counts of a load, and the bounds that its producers and consumers share."""

import asyncio
from collections.abc import Callable

from cmqd_load.failures import RequestFailed
from cmqd_load.histogram import Histogram
from cmqd_load.wire import ERROR, decode_error
from cmqd_protocol.messages import HandleFailure
from cmqd_protocol.protocol_errors import ErrorCode

MAX_KINDS = 32
"""Kinds of errors that are counted apart. A server has some 60, and a wrong server could make up names without end."""
OTHER_KINDS = "other"
MAX_KIND_CHARS = 64
_NAMES = {code.value: code.name.lower() for code in ErrorCode}


class Tally:
    """Counts of the load since the last ``clear``."""

    __slots__ = ("deleted", "empty", "errors", "is_tolerant", "latency", "received", "sent", "since_ns")

    def __init__(self, *, is_tolerant: bool = False) -> None:
        self.latency = Histogram()
        self.is_tolerant = is_tolerant
        """A delete that fails is counted; otherwise it ends the run."""
        self.since_ns = 0
        """Messages sent, or meant to be sent, before this time have no latency: they are of the warm-up, or of another
        program."""
        self.errors: dict[str, int] = {}
        """Refusals and errors by name."""
        self.clear()

    @property
    def refused(self) -> int:
        """Return the number of all refusals and errors."""
        return sum(self.errors.values())

    def clear(self) -> None:
        """Reset all counts at the end of the warm-up."""
        self.sent = self.received = self.deleted = self.empty = 0
        self.errors = {}
        self.latency.clear()

    def add(self, other: "Tally") -> None:
        """Add the counts of ``other``."""
        self.sent += other.sent
        self.received += other.received
        self.deleted += other.deleted
        self.empty += other.empty
        self.latency.add(other.latency)
        for name, times in other.errors.items():
            self.count_error(name, times)

    def count_error(self, name: str, times: int = 1) -> None:
        """Count an error by its name; beyond ``MAX_KINDS`` names under a common name."""
        name = name[:MAX_KIND_CHARS]
        if name not in self.errors and len(self.errors) >= MAX_KINDS:
            name = OTHER_KINDS
        self.errors[name] = self.errors.get(name, 0) + times

    def refuse(self, payload: bytes, opcode: int) -> float:
        """Count a refused request; return the seconds until the request may be repeated.

        Raises:
            RequestFailed: the error is permanent.
        """
        if opcode != ERROR:
            raise RequestFailed(f"an unexpected reply, opcode {opcode}")
        error = decode_error(payload)
        if not error.retryable:
            raise RequestFailed(f"{error.name}: {error.text}", error)
        self.count_error(error.name)
        return (error.retry_after_ms or 5) / 1000

    def fail_deletes(self, failures: list[HandleFailure]) -> None:
        """Count deletes that failed.

        Raises:
            RequestFailed: the run must not have any.
        """
        if not self.is_tolerant:
            raise RequestFailed(f"a delete failed: {failures[0].text}")
        for failure in failures:
            self.count_error(_NAMES.get(failure.code) or f"error_{failure.code}")


class Gate:
    """Keeps producers at most ``limit`` messages ahead of consumers, so that no backlog grows.

    Invariant: a producer is parked only while ``ahead > limit // 2``.
    """

    __slots__ = ("_parked", "ahead", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ahead = 0
        self._parked: list[Callable[[], None]] = []

    def sent(self, count: int) -> bool:
        """Count sent messages; return False if the producer must be parked."""
        self.ahead += count
        return self.ahead < self.limit

    def park(self, go_on: Callable[[], None]) -> None:
        """Keep a producer until consumers have caught up."""
        self._parked.append(go_on)

    def consumed(self, count: int) -> None:
        """Count deleted messages; resume parked producers once half of the room is free."""
        self.ahead -= count
        if self._parked and self.ahead <= self.limit // 2:
            parked, self._parked = self._parked, []
            for go_on in parked:
                go_on()


class Quota:
    """A number of messages that all clients of a run share; ``done`` is set when all messages are complete."""

    __slots__ = ("done", "remaining")

    def __init__(self, messages: int) -> None:
        self.remaining = messages
        self.done = asyncio.Event()

    def take(self, count: int) -> bool:
        """Count messages as complete; return False when all messages are complete."""
        self.remaining -= count
        if self.remaining <= 0:
            self.done.set()
            return False
        return True
