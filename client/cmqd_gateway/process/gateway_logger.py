"""The gateway's log lines. No line is written per request or message, and no line has a secret.

A gateway inside the process of a test leaves logging unconfigured: its lines go to the standard logger
``cmqd.gateway``.
"""

from collections.abc import Callable
from typing import Final

import structlog

from cmqd_logs import lines

SPARSE_SECONDS: Final = 10.0
"""Shortest time between two lines of a :class:`SparseWarning`."""


class SparseWarning:
    """A warning about an event that can be frequent: at most a line in ``SPARSE_SECONDS``, with the number of events
    since the line before."""

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        """Make the object; ``name`` is the name of the line, ``now`` the clock in seconds."""
        self._name = name
        self._now = now
        self._events = 0
        self._written_at: float | None = None

    def note(self, **fields: object) -> None:
        """Count an event, and write a line with these fields unless the line before is too recent."""
        self._events += 1
        if self._written_at is None or self._now() - self._written_at >= SPARSE_SECONDS:
            self._write(**fields)

    def flush(self) -> None:
        """Write a line if events were counted that no line has."""
        if self._events:
            self._write()

    def _write(self, **fields: object) -> None:
        get_logger().warning(self._name, times=self._events, **fields)
        self._events = 0
        self._written_at = self._now()


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the logger; a module calls the function once."""
    return lines.get_logger("cmqd.gateway")
