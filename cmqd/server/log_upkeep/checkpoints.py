"""Checkpoints of the index, written on request of the storage.

A checkpoint of a large broker is megabytes of bitmaps, so it is written in slices between which the sockets are served.
The core knows only the index and the storage only the files; this module joins the two.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.log_upkeep.segment_changes import SegmentChanges
from cmqd.server.loop.clock import BrokerClock
from cmqd.server.part import part
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd

SLICE_S: Final = 0.001
PAUSE_S: Final = 0.002
"""Pause after a slice. A send needs several turns of the loop until its answer leaves, and each could meet a slice. Two
thirds of the time are left to clients, and as much of a core to the storage process and to the programs beside."""

BUSY_PAUSE_S: Final = 0.005
"""Pause between two parts of a checkpoint while the storage is behind. A checkpoint must not push sends into refusal,
and must end all the same: otherwise a broker under constant load would never reclaim a segment."""


@part
class KeptCheckpoints:
    """Counts the checkpoints that the storage has read back and listed."""

    reclaim: Reclaim
    clock: BrokerClock

    def __post_init__(self) -> None:
        self.count = 0
        """Checkpoints kept since the start."""
        self.last_ms = 0
        """Broker time of the last of them."""

    def note(self, lsn: int) -> None:
        """Count a checkpoint, and scan for segments that are needed no more."""
        self.count += 1
        self.last_ms = self.clock.now_ms()
        self.reclaim.checkpoint_done(lsn)


@part
class Checkpoints:
    """Writes checkpoints, never two at once; see the module."""

    loop: asyncio.AbstractEventLoop
    log: Log
    begin: Callable[[], Iterator[AnyPart]]
    """Returns the parts of a checkpoint; a part is true at the moment of its creation."""
    is_behind: Callable[[], bool]
    """Returns True while the storage has more to write than it should."""
    timer: Callable[[], float]
    """Returns the seconds of a clock that never goes back, to measure slices by."""
    changes: SegmentChanges
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._writing: asyncio.Task[None] | None = None
        self._wanted_again = False
        self._is_final = False
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"<Checkpoints writing={self._writing is not None}>"

    def want(self) -> None:
        """Write a checkpoint, or a further checkpoint after the checkpoint in progress, in which the written slices
        lack the newest rows.
        """
        if self._is_final:
            return
        if self._writing is not None:
            self._wanted_again = True
        else:
            self._writing = self.loop.create_task(self._write_wanted())

    async def write_final(self) -> None:
        """Write the last checkpoint, and return when the storage has its last part.

        Raises:
            LogFailed: the storage failed.
        """
        self._is_final = True
        if self._writing is not None:
            await self._writing
        await self._write()

    def stop(self) -> None:
        """Begin no further checkpoint and abandon the checkpoint in progress: the index may be wrong."""
        self._is_final = self._is_stopped = True

    async def _write_wanted(self) -> None:
        try:
            await self._write()
        except LogFailed:
            self.stop()  # the log itself reports its failure
        self._writing = None
        if self._wanted_again:
            self._wanted_again = False
            self.want()

    async def _write(self) -> None:
        stop_at = self.timer() + SLICE_S
        for checkpoint_part in self.begin():
            if isinstance(checkpoint_part, CheckpointEnd):
                if self._is_final:
                    self.changes.tell_all()
                else:
                    await self.changes.tell()
                    if self._is_stopped:
                        return
            self.log.write_checkpoint(checkpoint_part)
            if self.is_behind():
                await self.sleep(BUSY_PAUSE_S)
            elif self.timer() < stop_at:
                continue
            else:
                # The last checkpoint holds up the stop of the broker alone.
                await self.sleep(0 if self._is_final else PAUSE_S)
            if self._is_stopped:
                return
            stop_at = self.timer() + SLICE_S
