"""The end of an I/O batch of the loop: work that the events of a batch share is done once, after all of them.

The records of all requests go to the storage in a single write, the replies to a client in a single write, and the
timer is set once. A system call costs more than deciding a request, and a commit more than either; therefore the speed
of the server depends on this module.

Before records are handed to the storage, the loop polls its sockets again, as long as each poll brings input, a few
times at most: clients that have just got their replies, and clients that were served by the same commit, send again
within microseconds, and their requests share the next commit. No timer is involved.

A lone request is not kept waiting for other clients: if the first poll brought a single read, no reply is outstanding
and the last commit carried a single reply, then the batch ends without another poll (some 10 us). With more clients the
rule fails at once: the reads of two clients that wait for the same commit come back in one poll or in two, and that
commit carried two replies.

An I/O batch is bounded in time, so that a flood of input delays neither records to the storage nor replies to clients.
After 5 ms no poll begins, and input of the last poll that comes later than after 10 ms is deferred to turns
(``fairness``), which are given at each poll and in the next I/O batches. A connection with large input that had turns
rests, unread, until the I/O batch ends or later: its share of an I/O batch is a single read.
The number of large reads in an I/O batch is limited as well, with accounts and connections in turns.

Small input that comes late waits in a line of its own (``late``), and no small input is taken up on arrival while a
connection is in that line. Otherwise connections whose replies leave first would always be in time, and of thousands of
connections some would be served again and again, and the others after seconds (decision 0243). A connection in that
line does not rest, and is read from if at most one request waits: a pause and a rest would cost as much again.

A batch without work has no end. Most commits become durable while no other rows wait: then replies are all there is to
write. Such a batch writes the replies and is over; no record waits for a flush, no deadline has changed, and the
requests that the replies cause begin a batch with polls of its own. The replies of a commit are written in the call
that releases them (``write_released``): with a look of their own, the sockets would be polled before the replies leave.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from cmqd.server.admission.fairness import RoundRobin, TurnTime
from cmqd.server.broker_logger import get_logger

_log = get_logger()


MAX_LOOKS = 16
"""Polls of the sockets before a commit. Measured with 16 to 64 clients that wait for each answer: 8 save 10 to 25 % of
the server's CPU time, 20 some 5 % more at batch 1, 60 no more than 20."""


IO_BATCH_SECONDS = 0.005
"""Time of an I/O batch after which no further poll begins: about a commit on a fast disk. Longer batches would keep the
storage waiting."""

LATE_INPUT_SECONDS = 0.005
"""Time after that in which small input is still taken up on arrival: about the requests that a poll brings from 128
clients with batches of 16. A deferral, with its turn and its rest, costs as much as half such a request, and a poll
shortly before the end would make nearly all of these clients pay, although each of them waits for its answers."""

LATE_TURNS_SECONDS = IO_BATCH_SECONDS + LATE_INPUT_SECONDS
"""Time for the turns of late small input at a look: as long as input on arrival has, so that a commit carries as many
requests."""

LEAST_TURNS_SECONDS = 0.002
"""Time for turns at a look even if small requests used up the I/O batch: neither kind of input starves the other."""


CLOCK_BYTES = 2 * 1024
"""Input between two readings of the clock; a reading costs as much as a tenth of a small request. After a request whose
cost is not constant, the next input reads the clock."""

BYTES_OF_READ = 256
"""Counted for a read besides its bytes: eight small reads are taken up in some 0.1 ms."""

READS_PER_IO_BATCH = 4
"""Connections that may be read from again after a large read: each costs 0.1 ms before input can be deferred."""

LARGE_READS = 16
"""Large reads of an I/O batch after which a connection does not rest, if no connection takes turns."""


class Writable(Protocol):
    """A connection with replies to write."""

    def flush(self) -> None:
        """Write the replies."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Replies(Protocol):
    """The replies that wait for a commit."""

    is_for_lone_client: bool
    """No reply is outstanding, and the last commit carried at most one."""


class IoBatch:
    """Collects the work for the end of an I/O batch; see the module.

    ``call_soon`` runs after the callbacks of all sockets that were ready and before the loop waits again.
    """

    __slots__ = (
        "_at_end",
        "_before_end",
        "_clock_ms",
        "_dirty",
        "_ends_at",
        "_has_work",
        "_is_single_read",
        "_large_reads",
        "_looks",
        "_loop",
        "_now_ms",
        "_replies",
        "_scheduled",
        "_something",
        "_timer",
        "_unclocked",
        "is_releasing",
        "late",
        "rests",
        "turn_time",
        "turns",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        at_end: Callable[[], None] = lambda: None,
        before_end: Callable[[], None] = lambda: None,
        turns: RoundRobin | None = None,
        timer: Callable[[], float] = time.perf_counter,
        replies: Replies | None = None,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """``before_end`` and ``at_end`` are called once at each end. The first belongs to the I/O batch: its effects do
        not begin a new batch. ``timer`` measures the I/O batch in seconds, ``cpu_ns`` the CPU time of turns.
        Without ``replies`` no client counts as alone.
        """
        self.turns = RoundRobin() if turns is None else turns
        """Turns of the connections with deferred input."""
        self.late = RoundRobin()
        """Turns of the connections with small input that came late. The log needs no room for them, as for input that
        is taken up on arrival."""
        self.turn_time = TurnTime(timer, cpu_ns)
        """Time of the turn under way; input that is taken up on arrival counts as a turn."""
        self._timer = timer
        self._ends_at = 0.0
        """End of the time for this batch, by ``timer``."""
        self._unclocked = 0
        """Bytes of input since the clock was last read."""
        self.rests = RoundRobin(take_turn=lambda flow: flow.end_rest(), has_turn=lambda _: False)
        """Turns of the connections that had large reads: a turn ends the rest."""
        self._clock_ms = clock_ms
        self._now_ms: int | None = None
        self._loop = loop
        self._at_end = at_end
        self._before_end = before_end
        self._dirty: list[Writable] = []
        self._scheduled = False
        """A look is planned."""
        self._has_work = False
        """The batch has input or work, so it needs polls and an end. Implies ``_scheduled``."""
        self._something = False
        """Input or work came since the last poll of the sockets."""
        self._looks = 0
        self.is_releasing = False
        """The call of ``write_released`` runs: a client that waits for a single reply gets it at once. An attribute and
        no property, because every reply reads it."""
        self._is_single_read = False
        """The batch began with a read of a connection, and had no other read so far."""
        self._large_reads = 0
        """Large reads in the batch of connections that did not rest."""
        self._replies = replies

    def end_with(self, before_end: Callable[[], None], at_end: Callable[[], None]) -> None:
        """Take the two calls at each end from parts that begin I/O batches, and are therefore made later."""
        self._before_end, self._at_end = before_end, at_end

    def now_ms(self) -> int:
        """Return the time of this poll of the sockets. The clock is read at most once per poll, so all requests of a
        poll have the same time.
        """
        now_ms = self._now_ms
        if now_ms is None:
            now_ms = self._now_ms = self._clock_ms()
            # The caller is about to call the core. Records are flushed, and deadlines planned, by the end of a batch.
            if not self._has_work:
                self.schedule()
        return now_ms

    def schedule(self) -> None:
        """Note that the I/O batch has work: its end flushes the log and sets the timer."""
        self._something = True
        if not self._has_work:
            self._has_work = True
            self._unclocked = 0
            self._ends_at = self._timer() + IO_BATCH_SECONDS
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._look)

    @property
    def has_work(self) -> bool:
        """True from the first request of a batch to the end of the batch: a commit, or replies, wait for the end."""
        return self._has_work

    def take_input(self, size: int) -> bool:
        """Count input, and return True if it may be taken up on arrival."""
        if self.turn_time.is_counted:
            self.turn_time.restart()
            self._unclocked = CLOCK_BYTES
        if not self._has_work:
            self.schedule()
            self._is_single_read = True
            return True
        self._is_single_read = False
        self._something = True
        if self.late.round:
            return False
        unclocked = self._unclocked + size + BYTES_OF_READ
        if unclocked < CLOCK_BYTES:
            self._unclocked = unclocked
            return True
        if self._timer() < self._ends_at + LATE_INPUT_SECONDS:
            self._unclocked = 0
            return True
        return False

    def goes_on(self) -> bool:
        """Return True if a connection is read from again in this batch, after a large read without the end of a frame,
        or if a large frame is taken up on arrival.
        """
        if self._large_reads >= LARGE_READS or not self.turns.is_free:
            return False
        self._large_reads += 1
        return True

    def write_later(self, connection: Writable) -> None:
        """Flush a connection at the next poll. A connection must not be added twice before its flush.

        Replies alone are no work: a caller that has changed the core or the log calls ``schedule`` besides.
        """
        self._dirty.append(connection)
        self._something = True
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._look)

    def write_released(self, release: Callable[[int], None], lsn: int) -> None:
        """Call ``release`` for the rows up to ``lsn``, and write the replies that the call has brought, unless it has
        brought work as well.

        With work, or while a batch is under way, the next look writes the replies.
        """
        was_scheduled = self._scheduled
        # While the call runs no look is planned: the replies are written here.
        self._scheduled = self.is_releasing = True
        try:
            release(lsn)
        finally:
            self.is_releasing = False
            if not was_scheduled:
                if self._has_work:
                    self._loop.call_soon(self._look)
                else:
                    self._scheduled = False
                    if self._dirty:
                        self._write()

    def _look(self) -> None:
        """Write replies; then poll the sockets again, or end the batch if the last poll brought no input.

        The replies leave before the poll, because the poll is for the requests that the replies cause.
        """
        if not self._has_work:
            # Over before the write. A flush may bring work (parked requests, messages that return to their queue), and
            # that work, or another reply, begins the next batch.
            self._scheduled = False
            self._write()
            return
        if self._dirty:
            self._write()
        if self.late.round:
            late_ends_at = self._timer() + LATE_TURNS_SECONDS
            self.late.serve(lambda: not self.turn_time.is_over and self._timer() < late_ends_at)
            self._something = True
        if self.turns.round and self.turns.can_serve:
            turns_end_at = max(self._ends_at, self._timer() + LEAST_TURNS_SECONDS)
            # A turn that its own time has ended is followed by a poll: replies that became durable meanwhile, and small
            # requests, would otherwise wait for several such turns.
            self.turns.serve(lambda: not self.turn_time.is_over and self._timer() < turns_end_at)
            self._something = True
        replies = self._replies
        if self._is_single_read and not self._looks and replies is not None and replies.is_for_lone_client:
            self.end()
        elif self._something and self._looks < MAX_LOOKS and self._timer() < self._ends_at:
            self._something = False
            self._looks += 1
            self._now_ms = None
            self._loop.call_soon(self._look)
        else:
            self.end()

    def end(self) -> None:
        """End the batch now.

        Collected requests are decided before records are flushed, else their records would miss this commit. Replies
        are written after the flush: the storage process works while the loop writes.
        """
        self._before_end()
        # The batch ends between the two calls: work that ``at_end`` finds belongs to a batch of its own, while work of
        # ``before_end`` is flushed right below.
        self._looks = self._large_reads = 0
        self._something = self._has_work = self._scheduled = self._is_single_read = False
        self._now_ms = None
        self._at_end()
        if self._dirty:
            self._write()
        if self.rests.round:
            # After the records have left: the input of the sockets that are read again belongs to the next batch.
            more = iter(range(READS_PER_IO_BATCH - 1))
            self.rests.serve(lambda: next(more, None) is not None)
        if self.late.round or self.rests.round or (self.turns.round and self.turns.can_serve):
            self.schedule()

    def _write(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            try:
                connection.flush()
            except Exception:
                flush_failed(connection)


def flush_failed(connection: Writable) -> None:
    """Report the exception of a write, and close its connection: a bug in the replies of a client must not hold back
    the replies of other clients.
    """
    _log.exception("flush_failed", connection=repr(connection))
    connection.abort()
