"""Lines of the log about an engine that holds up the broker: at the begin of a wait, every ten seconds, at its end."""

from typing import Final

from cmqd.log.values import EngineStatus
from cmqd.server.broker_logger import get_logger

TOLD_AFTER_MS: Final = 1_000
TOLD_AGAIN_MS: Final = 10_000

_log = get_logger()


class EngineLines:
    """Turns reports of the engine into lines of the log."""

    def __init__(self, engine: str) -> None:
        """Take the URL of the engine, without passwords."""
        self._engine = engine
        self._next_ms = TOLD_AFTER_MS
        """Length of the wait under way at which a line is due."""
        self._waited_ms = 0
        """Length of the wait under way, if a line has told it; else 0."""

    def report(self, status: EngineStatus) -> None:
        """Take a report."""
        waiting_ms = status.waiting_ms
        if waiting_ms >= self._next_ms:
            _log.warning("engine_waits", engine=self._engine, waiting_for=status.waiting_for, for_ms=waiting_ms)
            self._next_ms = waiting_ms + TOLD_AGAIN_MS
        if self._next_ms > TOLD_AFTER_MS:
            if status.waiting_for:
                self._waited_ms = waiting_ms
            else:
                _log.warning("engine_goes_on", engine=self._engine, after_ms=self._waited_ms)
                self._next_ms, self._waited_ms = TOLD_AFTER_MS, 0
