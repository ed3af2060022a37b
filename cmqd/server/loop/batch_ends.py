"""The ends that join log and loop: the end of an I/O batch flushes rows, and the end of a commit releases replies."""

from collections.abc import Callable

from cmqd.log.interface import Log
from cmqd.server.admission.fairness import RoundRobin
from cmqd.server.admission.request_admission import Admission
from cmqd.server.halt import Halt
from cmqd.server.loop.agenda_timer import AgendaTimer
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.part import part
from cmqd.server.push.outbox import Outbox
from cmqd.server.replies.held_reply_memory import HeldReplyMemory
from cmqd.server.replies.reply_gate import Gate


@part
class BatchEnds:
    """Ends I/O batches and commits; see the module."""

    log: Log
    gate: Gate
    outbox: Outbox
    held_reply_memory: HeldReplyMemory
    io_batch: IoBatch
    turns: RoundRobin
    agenda_timer: AgendaTimer
    admission: Admission
    halt: Halt
    pause_reading: Callable[[bool], None]
    """Reads no more from clients, or goes on."""
    pause_pending_bytes: int
    pause_pending_records: int

    def __post_init__(self) -> None:
        self._pending = self.log.pending
        self._was_overloaded = False
        """The result of the last comparison; clients are not read from while the result is True."""

    def end_io_batch(self) -> None:
        """Flush the rows of the batch, plan the next work, and read on or pause as the load asks."""
        if self.halt.failure is None:
            self.log.flush()
            self.agenda_timer.plan()
            pending = self._pending
            # While the storage hangs, requests are read and refused: refused requests add no rows to the backlog.
            is_overloaded = (
                pending.bytes >= self.pause_pending_bytes or pending.records >= self.pause_pending_records
            ) and self.admission.stall_refusal is None
            if is_overloaded != self._was_overloaded:
                self._was_overloaded = is_overloaded
                self.pause_reading(is_overloaded)

    def release(self, lsn: int) -> None:
        """Release the replies and pushes that wait for the rows up to ``lsn``; ``IoBatch.write_released`` calls."""
        if self.held_reply_memory.noted:
            self.held_reply_memory.forget()
        self.gate.open_to(lsn)
        if self.outbox.held:
            self.outbox.open_to(lsn)
        # Rows that waited for this commit are flushed at the end of an I/O batch, with the requests that follow the
        # replies. Deferred input may have room now, and the load may be over. Otherwise only replies are left to
        # write, and replies need no end of a batch.
        if self._pending.records:
            self.io_batch.schedule()
        else:
            self.admission.room_bytes = self.admission.room_of_empty_log
            if self.turns.round or self._was_overloaded:
                self.io_batch.schedule()
