"""Decide when to write the manifest while rows come in.

The manifest names the last row of the active segment. After a loss of the WAL (a restored backup, a repaired file
system) that number reveals the loss to the next start, so it must be nearly the last durable row. A write costs two
fsyncs, so the manifest is written beside the commits, one write at a time.
"""

from collections.abc import Callable
from typing import Final

REFRESH_S: Final = 9.0
"""Age of the first durable row beyond the manifest at which the manifest is written: with a check every second
(``state_interval_ms``) the manifest has the row within 10 s."""
REFRESH_BYTES: Final = 64 * 1024 * 1024
"""Growth of the active segment's WAL at which the manifest is written earlier."""


class Freshness:
    """Compares the last durable row with the last row in the manifest; see the module."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._told_lsn = 0
        self._number = 0
        self._wal_bytes = 0
        self._untold_since_s: float | None = None
        self._stopped = False

    def told(self, lsn: int, number: int, wal_bytes: int) -> None:
        """Note that the manifest tells of the rows up to ``lsn``, when the WAL of segment ``number`` had this size."""
        self._told_lsn = lsn
        self._number = number
        self._wal_bytes = wal_bytes
        self._untold_since_s = None

    def is_due(self, lsn: int, number: int, wal_bytes: int) -> bool:
        """Return whether to write the manifest, given the last durable row and the active segment."""
        if lsn == self._told_lsn or self._stopped:
            return False
        if self._untold_since_s is None:
            self._untold_since_s = self._now_s()
        grown = wal_bytes - self._wal_bytes if number == self._number else wal_bytes
        return grown >= REFRESH_BYTES or self._now_s() - self._untold_since_s >= REFRESH_S

    def stop(self) -> None:
        """Return False from ``is_due`` from now on: a write after the folder is unlocked could replace the manifest of
        the next broker.
        """
        self._stopped = True
