"""Pins: holds on the server's log, for programs beside the server that copy its files (``cmqd backup``).

A copy takes a pin, copies the segments and the checkpoint that the pin names, and releases the pin. A backup that
copies again and again tells the server the row of each copy under a name, its *standing pin*; the server then keeps the
rows above, consumed or not, until the next copy.
"""

from datetime import datetime, timedelta

import msgspec

from cmqd_client.durations import Duration, to_moment_ms, to_ms
from cmqd_client.links.channel import Channel
from cmqd_client.replies.conversions import converted
from cmqd_client.results import Done
from cmqd_protocol import operations


class LogPin(msgspec.Struct, frozen=True):
    """A pin. A copy of its segments and its checkpoint has every row up to ``lsn`` that a restore needs."""

    pin_id: int
    log_id: str
    """Identity of the log."""
    lsn: int
    """Rows up to this one are durable and in sealed segments, or were reclaimed."""
    start: str
    """Number of the start of the server that wrote the row; empty if it is not known any more."""
    time: datetime
    """Broker time at which the row was the newest."""
    checkpoint: int
    """Number of a checkpoint with no fact of a row above ``lsn``; 0 = there is none, and no row was reclaimed."""
    checkpoint_lsn: int
    """The checkpoint has all facts of rows up to this one; 0 without a checkpoint."""
    lifetime: timedelta
    """The pin ends so long after the last call of :meth:`Pins.segments`."""
    request_id: int


class PinnedSegments(msgspec.Struct, frozen=True):
    """Segments of a pin, ascending."""

    numbers: list[int]
    next: int | None
    """Number of the last segment, as ``after`` of the next page; None at the end."""
    request_id: int


class StandingPin(msgspec.Struct, frozen=True):
    """The server keeps the rows above the row of the call."""

    gaps: list[tuple[int, int]]
    """Ranges (first row, last row) between the copy before and this one that were reclaimed before they were copied."""
    limit: timedelta
    """The rows are kept so long without a further call."""
    request_id: int


class Pins:
    """The pins of the server, for account ``admin``; get it as ``client.pins``.

    All methods raise ``PermissionDenied`` without the role ``manage`` for every name, and ``UnknownOperation`` if the
    server is too old for pins or has no files.
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def make(self) -> LogPin:
        """Seal the log, and keep every file of a copy of it. Safe to cancel; a pin without calls ends by itself.

        Raises:
            Busy: too many copies are being made.
            OutcomeUnknown: the log of the server failed meanwhile.
        """
        return converted(LogPin, await self._channel.ask(operations.PIN_LOG))

    async def segments(self, pin_id: int, *, after: int = 0, limit: int = 10_000) -> PinnedSegments:
        """Return numbers of segments of a pin, and extend the life of the pin. Safe to cancel.

        Args:
            pin_id: of :meth:`make`.
            after: only segments behind this number: ``next`` of the previous page.
            limit: most segments of a page, 1-10,000.

        Raises:
            InvalidArgument: the pin has ended.
        """
        return converted(PinnedSegments, await self._channel.ask(operations.LIST_PINNED_SEGMENTS, pin_id, after, limit))

    async def release(self, pin_id: int) -> Done:
        """End a pin; a pin that has ended is no error."""
        return Done((await self._channel.ask(operations.RELEASE_PIN, pin_id)).request_id)

    async def set_standing(
        self,
        name: str,
        *,
        log_id: str,
        lsn: int,
        start: str,
        time: datetime | float,
        every: Duration,
        after: int | None = None,
    ) -> StandingPin:
        """Tell the server the newest row that a backup has copied; the first call of a name makes the standing pin.

        Args:
            name: of the backup: 1-64 letters, digits, ``-``, ``_``.
            log_id: of the :class:`LogPin` whose files were copied, as the other arguments.
            lsn: the newest row of the copy.
            start: number of the start that wrote the row.
            time: broker time of the pin.
            every: interval of the copies, 1 s to 24 h: a copy of three intervals ago is reported as too old.
            after: the newest row of the copy before; None = this copy is the first.

        Raises:
            InvalidArgument: the row is not of the server's log, is newer than its newest row, or is older than the row
                that was told before; or there are too many names.
        """
        times = to_moment_ms(time, "time", "pin.time"), to_ms(every, "every")
        reply = await self._channel.ask(operations.SET_STANDING_PIN, name, log_id, lsn, start, *times, after)
        return converted(StandingPin, reply)

    async def delete_standing(self, name: str) -> Done:
        """Delete a standing pin: the server keeps no rows for the backup any more. Not repeated after a lost reply.

        Raises:
            InvalidArgument: there is no such standing pin.
        """
        return Done((await self._channel.ask(operations.DELETE_STANDING_PIN, name)).request_id)
