"""The open loop's clock: makes calls at intended times, independent of the server.

Every latency of an open loop counts from the intended time, so a stalled server cannot hide the requests that were
kept back by the stall (coordinated omission). The generator must not add lateness either. The clock does not use the
timers of the event loop where the system has a timer of its own, because the resolution of the former is a
millisecond, a large part of the measured latencies.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Self

from cmqd_load.histogram import Histogram

MIN_PERIOD_SECONDS = 0.00025
"""At high rates, calls due within this time share an interrupt: an interrupt per request would cost too much CPU."""
TIMER_PERIOD_SECONDS = 0.001
"""Shortest period of the event loop's timers, which Windows and other threads than the main thread use."""


class Schedule:
    """The intended times of an open loop: call ``n`` is due ``n / rate`` seconds after the start.

    Times are nanoseconds. A fixed interval would round: at 300,000 a second a whole nanosecond is 0.03 %.
    """

    __slots__ = ("_calls", "_rate", "_start_ns")

    def __init__(self, rate: float, start_ns: int) -> None:
        self._rate = rate
        self._start_ns = start_ns
        self._calls = 0

    def due(self, now_ns: int) -> Iterator[int]:
        """Yield and take the intended times up to ``now_ns``. Times that a stall missed are not left out."""
        while (intended_ns := self._start_ns + round(self._calls * 1_000_000_000 / self._rate)) <= now_ns:
            self._calls += 1
            yield intended_ns


class Pacer:
    """Calls ``act(intended_ns)`` ``rate`` times a second while the ``with`` block runs.

    A call comes at its intended time or as soon after as the loop wakes. In the main thread the pacer uses the
    process's interval timer (SIGALRM): a single pacer at a time.
    """

    def __init__(self, rate: float, act: Callable[[int], None]) -> None:
        self.late = Histogram()
        """Delays of the calls in microseconds, caused by the generator or by the machine. Free to be cleared."""
        self._rate = rate
        self._act = act
        self._schedule: Schedule | None = None
        """None = the pacer does not run. The loop may still have a pending alarm after the end."""
        self._loop = asyncio.get_running_loop()
        self._has_alarm = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        self._schedule = Schedule(self._rate, monotonic_ns())
        if self._has_alarm:
            self._loop.add_signal_handler(signal.SIGALRM, self._tick)
            period = max(1 / self._rate, MIN_PERIOD_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, period, period)
        else:
            self._wake()
        return self

    def __exit__(self, *_: object) -> None:
        self._schedule = None
        if self._has_alarm:
            # In this order, because an alarm without a handler ends the process.
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._loop.remove_signal_handler(signal.SIGALRM)

    def _wake(self) -> None:
        if self._schedule is not None:
            self._tick()
            self._loop.call_later(max(1 / self._rate, TIMER_PERIOD_SECONDS), self._wake)

    def _tick(self) -> None:
        schedule = self._schedule
        if schedule is None:
            return
        now = monotonic_ns()
        for intended_ns in schedule.due(now):
            self.late.record((now - intended_ns) // 1000)
            self._act(intended_ns)
            # An act may end the run.
            if self._schedule is None:
                return
