"""Looks at the engine from time to time, for status, metrics and the log of the broker.

A commit pays nothing for the watch, because the watch only reads the cause of the wait of a call under way. The length
of a wait is exact to a look. A leader also asks the engine for its view, through the session of the housekeeping; an
engine that does not answer holds up the view, and not the reports of the wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cmqd.engine.interface import Engine
from cmqd.log.values import EngineStatus, EngineView

LOOK_SECONDS: Final = 0.25
VIEW_SECONDS: Final = 2.0


class EngineWatch:
    """Reports each change of the engine's status; see the module."""

    def __init__(self, engine: Engine, report: Callable[[EngineStatus], None], clock_s: Callable[[], float]) -> None:
        """Take the engine, the receiver of reports, and a clock in seconds that never goes back."""
        self._engine = engine
        self._report = report
        self._clock_s = clock_s
        self._reported = EngineStatus()
        self._view: EngineView | None = None
        self._waits_since_s: float | None = None
        """None while no call waits."""
        self._waited_s = 0.0
        """Time of the waits that are over."""
        self._stopped = False
        self.copied_s = 0
        """See ``EngineStatus``; set by the commit thread."""

    def stop(self) -> None:
        """Ask for no view any more, because the engine is about to be closed."""
        self._stopped = True

    async def run(self) -> None:
        """Look until the task is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def run_views(self, ask: Callable[[], Awaitable[EngineView]]) -> None:
        """Ask the engine of a leader for its view until ``stop``."""
        while not self._stopped:
            self._view = await ask()
            await asyncio.sleep(VIEW_SECONDS)

    def look(self) -> None:
        """Look once, and report the status if it has changed."""
        now_s = self._clock_s()
        waiting_for = self._engine.waiting_for
        if waiting_for and self._waits_since_s is None:
            self._waits_since_s = now_s
        waiting_s = 0.0 if self._waits_since_s is None else now_s - self._waits_since_s
        waited_s = self._waited_s + waiting_s
        if not waiting_for:
            waiting_s, self._waited_s, self._waits_since_s = 0.0, waited_s, None
        status = EngineStatus(waiting_for, round(waiting_s * 1000), round(waited_s * 1000), self._view, self.copied_s)
        if status != self._reported:
            self._reported = status
            self._report(status)
