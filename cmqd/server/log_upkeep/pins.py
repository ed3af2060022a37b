"""Pins: holds on the log for copies of its files.

A *pin* is of a copy that is being made. While a pin lives, no segment is dropped, and one checkpoint is held. A pin is
in memory, and ends when its client is silent for ``PIN_LIFE_MS``, or with the broker.

A *standing pin* is the name of a backup that copies again and again. It holds the rows above the row that the backup
has told as copied. The name is durable in the data folder, with redundancy in the engine, where the next leader finds
it; the row is in memory. A row in the folder could be of
another log, or of rows that a restore cut off; the backup knows better. So after a start a standing pin holds every
row until the backup tells its row.

The disk rule of ``keep_history_ms`` ends all of that: a backup must not keep the broker from storing new messages.
``reclaim`` asks this module before each drop, and tells it each drop that came too early for a backup.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd.log.interface import Log, Segments
from cmqd.log.values import HeldCheckpoint, SegmentReport
from cmqd.server.broker_logger import get_logger
from cmqd.server.part import part
from cmqd_segment.manifest import StandingPinEntry
from cmqd_types.pins import StandingPinInfo

PIN_LIFE_MS: Final = 300_000
"""Time without a call after which a pin ends: a copy calls every few seconds, while a segment is read."""
MAX_PINS: Final = 16
MAX_STANDING_PINS: Final = 16
STANDING_LIMIT_MS: Final = 86_400_000
"""Time without a call for which a standing pin holds rows: a backup that stopped must not fill the disk."""

_log = get_logger()


class Pin(msgspec.Struct):
    """A copy that is being made."""

    pin_id: int
    deadline_ms: int
    lsn: int = 0
    """The last row of the copy."""
    checkpoint: HeldCheckpoint | None = None
    numbers: Sequence[int] = ()
    """Segments of the copy, ascending; empty until all are sealed."""


class StandingPin(msgspec.Struct):
    """A backup that copies again and again."""

    name: str
    called_ms: int
    """Time of the last call, or of the start of the broker."""
    copied_ms: int
    """Time of the last copy, from the last call of the backup."""
    every_ms: int
    copied_lsn: int | None = None
    """The newest row of the copy; None = not told since the start."""
    has_gap: bool = False
    """A segment was dropped too early since the last call."""
    gaps_total: int = 0
    """Segments that were dropped too early since the start."""

    def lacks(self, lsn: int) -> bool:
        """Return whether the backup may not have a row."""
        return self.copied_lsn is None or lsn > self.copied_lsn


@part
class Pins:
    """The pins of a log; see the module."""

    log: Log
    now_ms: Callable[[], int]

    def __post_init__(self) -> None:
        self._pins: dict[int, Pin] = {}
        self._standing: dict[str, StandingPin] = {}
        if isinstance(self.log, Segments):
            for entry in self.log.standing_pins or ():
                self._standing[entry.name] = StandingPin(entry.name, self.now_ms(), entry.copied_ms, entry.every_ms)

    def __len__(self) -> int:
        """Return the number of living pins, without the standing pins."""
        return len(self._pins)

    # Asked by ``reclaim``

    def holds(self, last_lsn: int) -> bool:
        """Return whether a segment with this last row must stay."""
        if self._pins:
            return True
        if not self._standing:
            return False
        now_ms = self.now_ms()
        return any(
            pin.lacks(last_lsn) and now_ms - pin.called_ms < STANDING_LIMIT_MS for pin in self._standing.values()
        )

    def expire(self) -> None:
        """End the pins of clients that were silent for too long."""
        now_ms = self.now_ms()
        for pin in [pin for pin in self._pins.values() if pin.deadline_ms <= now_ms]:
            _log.warning("pin_expired", pin=pin.pin_id, lsn=pin.lsn)
            self.end(pin.pin_id)

    def give_way(self) -> None:
        """End every pin, because the disk is nearly full and a pinned segment is dropped."""
        for pin in list(self._pins.values()):
            _log.warning("pin_gives_way", pin=pin.pin_id, lsn=pin.lsn)
            self.end(pin.pin_id)

    def dropped(self, segment: SegmentReport) -> None:
        """Count a gap of every backup that lacks rows of a dropped segment."""
        for pin in self._standing.values():
            if not pin.lacks(segment.last_lsn):
                continue
            if not pin.has_gap:
                # A single line until the next call: a stopped backup has a gap with every segment.
                first_lsn = max(segment.first_lsn, (pin.copied_lsn or 0) + 1)
                _log.warning("standing_pin_gap", name=pin.name, first_lsn=first_lsn, last_lsn=segment.last_lsn)
            pin.has_gap = True
            pin.gaps_total += 1

    # A copy

    def begin(self) -> Pin | None:
        """Make a pin, and hold all segments from now on; None while there are too many pins."""
        self.expire()
        if len(self._pins) >= MAX_PINS:
            return None
        # A random number: after a restart an id must not fit a pin of a later copy.
        pin = Pin(secrets.randbits(48), self.now_ms() + PIN_LIFE_MS)
        self._pins[pin.pin_id] = pin
        return pin

    def use(self, pin_id: int) -> Pin:
        """Return a living pin, and extend its life.

        Raises:
            InvalidArgument: the pin has ended.
        """
        self.expire()
        pin = self._pins.get(pin_id)
        if pin is None:
            raise InvalidArgument(
                f"pin {pin_id} has ended: it was released, its client was silent for {PIN_LIFE_MS // 60_000} minutes,"
                " the disk is nearly full, or the broker was restarted; begin a new copy",
                field="pin_id",
                value=pin_id,
                limit="a living pin",
            )
        pin.deadline_ms = self.now_ms() + PIN_LIFE_MS
        return pin

    def lives(self, pin: Pin) -> bool:
        """Return whether a pin has not ended."""
        return pin.pin_id in self._pins

    def end(self, pin_id: int) -> None:
        """End a pin and release its checkpoint; a pin that has ended is left."""
        pin = self._pins.pop(pin_id, None)
        if pin is not None and pin.checkpoint is not None:
            assert isinstance(self.log, Segments)
            self.log.release_checkpoint(pin.checkpoint.number)

    # Standing pins

    def entries(self) -> list[StandingPinEntry]:
        """Return the standing pins as the log keeps them."""
        return [StandingPinEntry(pin.name, pin.copied_ms, pin.every_ms) for pin in self._standing.values()]

    def infos(self) -> list[StandingPinInfo]:
        """Return the standing pins for status and metrics."""
        now_ms = self.now_ms()
        return [
            StandingPinInfo(pin.name, pin.copied_lsn, max(0, now_ms - pin.copied_ms), pin.every_ms, pin.gaps_total)
            for pin in self._standing.values()
        ]

    def copied(self, name: str, lsn: int, pinned_ms: int, every_ms: int) -> None:
        """Take the row that a backup has copied.

        The first call of a name makes the standing pin.

        Raises:
            InvalidArgument: the row is below the row that was told before, or there are too many names.
        """
        now_ms = self.now_ms()
        pin = self._standing.get(name)
        if pin is None:
            if len(self._standing) >= MAX_STANDING_PINS:
                raise InvalidArgument(
                    f"there are {MAX_STANDING_PINS} standing pins already; delete the standing pin of an old backup",
                    field="name",
                    value=name,
                    limit=f"at most {MAX_STANDING_PINS} names",
                )
            pin = self._standing[name] = StandingPin(name, now_ms, 0, every_ms)
            _log.info("standing_pin_made", name=name, lsn=lsn)
        elif pin.copied_lsn is not None and lsn < pin.copied_lsn:
            raise InvalidArgument(
                f"standing pin {name!r} is at row {pin.copied_lsn} already, and row {lsn} is older; does another"
                " backup use the same name?",
                field="lsn",
                value=lsn,
                limit=f"at least {pin.copied_lsn}",
            )
        pin.has_gap = False
        pin.copied_lsn = lsn
        pin.called_ms = now_ms
        pin.every_ms = every_ms
        # Broker time was slewed or is of another start: a copy with a future time would look fresh for long.
        pin.copied_ms = min(pinned_ms, now_ms)

    def forget(self, name: str) -> None:
        """Delete a standing pin.

        Raises:
            InvalidArgument: there is no such standing pin.
        """
        if self._standing.pop(name, None) is None:
            names = ", ".join(sorted(self._standing)) or "none"
            raise InvalidArgument(
                f"there is no standing pin {shown(name)}; the standing pins are: {names}",
                field="name",
                value=name,
                limit="the name of a standing pin",
            )
        _log.info("standing_pin_deleted", name=name)
