"""Standing pins: the backups for which the broker keeps rows until they are copied."""

from typing import Final

import msgspec

OVERDUE_INTERVALS: Final = 3
"""Intervals of a backup after which its last good copy is too old."""


class StandingPinInfo(msgspec.Struct, frozen=True):
    """A standing pin, for status and metrics."""

    name: str
    copied_lsn: int | None
    """The newest row of the last good copy; None = the backup has not told it since the start of the broker."""
    copied_age_ms: int
    """Age of the last good copy."""
    every_ms: int
    """Interval of the copies."""
    gaps_total: int
    """Segments that were reclaimed before they were copied, since the start of the broker."""

    @property
    def is_overdue(self) -> bool:
        """True if the last good copy is too old."""
        return self.copied_age_ms > OVERDUE_INTERVALS * self.every_ms
