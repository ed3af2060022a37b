"""The end of a wake-up of the loop: what the events of one wake-up have in common is done once, after all of them.

The records of everybody go to the storage in one write, the replies to one client in one write, the timer is set
once. A system call costs more than deciding a request, so this is where the speed is.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from cmqd.server.logs import get_logger

_log = get_logger()


class Writable(Protocol):
    """Has something to write."""

    def flush(self) -> None:
        """Write it now."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class WakeUp:
    """Collects what is to be done at the end of this wake-up; see the module.

    ``call_soon`` runs after the callbacks of all sockets that were ready and before the loop waits again.
    """

    __slots__ = ("_before", "_clock_ms", "_dirty", "_loop", "_now_ms", "_scheduled")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock_ms: Callable[[], int], *before: Callable[[], None]
    ) -> None:
        """``before``: called in this order at each end, before replies are written."""
        self._clock_ms = clock_ms
        self._now_ms: int | None = None
        self._loop = loop
        self._before = before
        self._dirty: list[Writable] = []
        self._scheduled = False

    def now_ms(self) -> int:
        """The time of this wake-up: the clock is read once, by whoever asks first."""
        now_ms = self._now_ms
        if now_ms is None:
            now_ms = self._now_ms = self._clock_ms()
            self.schedule()
        return now_ms

    def schedule(self) -> None:
        """Something has happened."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end)

    def write_later(self, connection: Writable) -> None:
        """Flush this one at the end; it must not be named twice before it was flushed."""
        self._dirty.append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end)

    def end(self) -> None:
        """Do it now."""
        self._scheduled = False
        self._now_ms = None
        for act in self._before:
            act()
        dirty = self._dirty
        self._dirty = []
        for connection in dirty:
            try:
                connection.flush()
            except Exception:
                # A bug that one client met must not keep the replies of all others back.
                _log.exception("flush_failed", connection=repr(connection))
                connection.abort()
