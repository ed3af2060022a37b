"""The beat: ten times a second, clock, storage and connections are examined, and the lag of the loop is measured."""

import asyncio
from collections.abc import Callable

from cmqd.server.admission.fairness import RoundRobin
from cmqd.server.clients.connection_timer import STEP_MS, local_ms
from cmqd.server.halt import Halt
from cmqd.server.log_upkeep.storage_watch import StorageWatch
from cmqd.server.loop.clock import BrokerClock, OffsetWatch
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.loop.reachable_time import ListeningTime
from cmqd.server.part import part
from cmqd.server.replies.held_reply_memory import HeldReplyMemory
from cmqd_types.metrics import Histogram


@part
class Beat:
    """Calls the parts that work by the beat; see the module."""

    loop: asyncio.AbstractEventLoop
    clock: BrokerClock
    offset_watch: OffsetWatch
    listening_time: ListeningTime
    storage_watch: StorageWatch
    held_reply_memory: HeldReplyMemory
    io_batch: IoBatch
    turns: RoundRobin
    halt: Halt
    pass_time: Callable[[int], None]
    """Advances the coarse time of the connections to local milliseconds."""
    examine_lead: Callable[[], None]
    """Ends receives that a stalled lead keeps waiting; does nothing without redundancy."""
    loop_lag_us: Histogram
    """Lateness of the beats."""

    def __post_init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        """Time for which the next beat is planned; 0 = none so far."""

    def start(self) -> None:
        """Beat now, and every tenth of a second from now on."""
        now_s = self.loop.time()
        if self._due_s:
            self.loop_lag_us.note(max(0, int((now_s - self._due_s) * 1_000_000)))
        self._due_s = now_s + STEP_MS / 1000
        self._timer = self.loop.call_later(STEP_MS / 1000, self.start)
        self.pass_time(local_ms())
        self.examine()

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    def examine(self) -> None:
        """Do the work of a tenth of a second: examine the clock and the storage."""
        self.offset_watch.check()
        self.listening_time.pass_time(self.clock.now_ms())
        if self.halt.failure is None:
            self.storage_watch.beat(int(self.loop.time() * 1000))
            self.examine_lead()
            self.held_reply_memory.beat()
        if self.turns.can_serve:
            # No commit has ended for a second; otherwise the end of a commit would have given the turns.
            self.io_batch.schedule()
