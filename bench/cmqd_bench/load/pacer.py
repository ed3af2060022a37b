"""The open loop's clock: makes calls at intended times, independent of the server.

Every latency of an open loop counts from the intended time, so a stalled server cannot hide the requests that were
kept back by the stall (coordinated omission). The harness must not add lateness either. The clock does not use the
timers of the event loop, because their resolution is a millisecond, a large part of the measured latencies.
"""

import asyncio
import signal
from collections.abc import Callable
from time import monotonic_ns
from typing import Self

from cmqd_bench.figures.histogram import Histogram

MIN_PERIOD_SECONDS = 0.00025
"""At high rates, calls due within this time share an interrupt: an interrupt per request would cost too much CPU."""


class Pacer:
    """Calls ``act(intended_ns)`` ``rate`` times a second while the ``with`` block runs.

    A call comes at its intended time or as soon after as the loop wakes. The pacer uses the process's interval timer
    (SIGALRM): a single pacer at a time, in the main thread (else ValueError).
    """

    def __init__(self, rate: float, act: Callable[[int], None]) -> None:
        self.late = Histogram()
        """Delays of the calls in microseconds, caused by the harness or by the machine. Free to be cleared."""
        self._interval = round(1_000_000_000 / rate)
        self._act = act
        self._next = 0
        self._running = False
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGALRM, self._tick)
        period = max(self._interval / 1_000_000_000, MIN_PERIOD_SECONDS)
        self._next = monotonic_ns()
        self._running = True
        signal.setitimer(signal.ITIMER_REAL, period, period)
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        # In this order, because an alarm without a handler ends the process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._loop.remove_signal_handler(signal.SIGALRM)

    def _tick(self) -> None:
        now = monotonic_ns()
        # The loop may still have a pending alarm after the end.
        while self._running and self._next <= now:
            intended_ns = self._next
            self._next += self._interval
            self.late.record((now - intended_ns) // 1000)
            self._act(intended_ns)
