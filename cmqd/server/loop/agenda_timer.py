"""A single timer for all work that is due at a time: ends of leases, delays, retention, ends of waits.

The core names its next deadline; the timer fires then and lets the core work in slices, with the sockets served between
two slices. The timer does not know the kind or the owner of the work.
"""

import asyncio
import time
from collections.abc import Callable, Sized

from cmqd.server.part import part

SLICE_S = 0.002
"""A slice adds at most this to the latency of a request; the promise is 5 ms at the 99th percentile."""

MAX_SLEEP_S = 5.0
"""Broker time is slewed by up to 0.5 % against the loop's time: a sleep of 5 s is off by 25 ms, within the promise
that due messages are active in 100 ms."""


@part
class AgendaTimer:
    """Calls ``tick`` at the time of ``next_deadline_ms``; see the module."""

    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    """Returns the time of this poll of the sockets, for the work; the call begins an I/O batch."""
    clock_ms: Callable[[], int]
    """Returns the time without beginning an I/O batch: a timer that is set is no work for the log."""
    next_deadline_ms: Callable[[], int | None]
    """Returns the time of the next work of the core; a time at or below now means more work."""
    lines: Sized = ()
    """Publishes that go on in slices; if there are any, work waits now."""
    tick: Callable[[int], None]
    """Does a bounded part of the work that is due."""

    def __post_init__(self) -> None:
        self._handle: asyncio.Handle | None = None
        self._planned_ms = 0
        """Broker time for which the timer is set; meaningless without a timer."""

    def next_work_ms(self) -> int | None:
        """Return the time at which ``tick`` has work next; a time in the past stands for work that waits now."""
        return 0 if self.lines else self.next_deadline_ms()

    def plan(self) -> None:
        """Set the timer anew if work is due before it fires; called at the end of each I/O batch.

        A timer that fires too early is kept: firing in vain is cheaper than setting the timer at each change.
        """
        # As ``next_work_ms``: the call of each I/O batch needs no further call.
        deadline_ms = 0 if self.lines else self.next_deadline_ms()
        if deadline_ms is None or (self._handle is not None and self._planned_ms <= deadline_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        delay_ms = deadline_ms - self.clock_ms()
        self._planned_ms = deadline_ms
        if delay_ms <= 0:
            self._handle = self.loop.call_soon(self._fire)
        else:
            self._handle = self.loop.call_later(min(delay_ms / 1000, MAX_SLEEP_S), self._fire)

    def clock_moved(self) -> None:
        """Do the work that is due now, and set the timer anew.

        For a broker clock that was moved forward: the timer sleeps by the loop's clock, for up to ``MAX_SLEEP_S``.
        """
        if self._handle is not None:
            self._handle.cancel()
        self._fire()

    def stop(self) -> None:
        """Cancel the timer, and set no other."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.lines, self.next_deadline_ms = (), _never

    def _fire(self) -> None:
        self._handle = None
        stop_at = time.perf_counter() + SLICE_S
        now_ms = self.now_ms()
        while True:
            deadline_ms = self.next_work_ms()
            if deadline_ms is None or deadline_ms > now_ms:
                break
            self.tick(now_ms)
            if time.perf_counter() >= stop_at:
                break
        self.plan()


def _never() -> int | None:
    return None
