"""Lines of the log about an engine that holds up the broker: one at the begin of a wait, one at its end."""

from typing import Final

from cmqd.log.values import EngineStatus
from cmqd.server.log_lines import get_logger

TOLD_AFTER_MS: Final = 1_000

_log = get_logger()


class EngineLines:
    """Turns reports of the engine into lines of the log."""

    def __init__(self) -> None:
        self._told_ms = 0
        """Length of the wait that was told, as of its last report; 0 = no wait was told."""

    def report(self, status: EngineStatus) -> None:
        """Take a report."""
        if status.waiting_ms >= TOLD_AFTER_MS:
            if not self._told_ms:
                _log.warning("engine_waits", waiting_for=status.waiting_for, for_ms=status.waiting_ms)
            self._told_ms = status.waiting_ms
        elif self._told_ms and not status.waiting_for:
            _log.warning("engine_goes_on", after_ms=self._told_ms)
            self._told_ms = 0
