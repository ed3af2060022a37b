"""The end of a wake-up of the loop: what the events of one wake-up have in common is done once, after all of them.

The records of everybody go to the storage in one write, the replies to one client in one write, the timer is set
once. A system call costs more than deciding a request, so this is where the speed is.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Writable(Protocol):
    """Has something to write."""

    def flush(self) -> None:
        """Write it now."""
        ...


class WakeUp:
    """Collects what is to be done at the end of this wake-up; see the module.

    ``call_soon`` runs after the callbacks of all sockets that were ready and before the loop waits again.
    """

    __slots__ = ("_before", "_dirty", "_loop", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop, *before: Callable[[], None]) -> None:
        """``before``: called in this order at each end, before replies are written."""
        self._loop = loop
        self._before = before
        self._dirty: list[Writable] = []
        self._scheduled = False

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
        for act in self._before:
            act()
        dirty = self._dirty
        self._dirty = []
        for connection in dirty:
            connection.flush()
