"""A run of the generator in Python: warm-up, measured time, and the wait for the last answers."""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from cmq_cli.bench.crews import Crew, hired
from cmq_cli.bench.objects import Objects
from cmq_cli.bench.plans import Plan, Work
from cmq_cli.bench.results import Measured, Second, second_of
from cmqd_load.failures import LoadError
from cmqd_load.pacer import Pacer
from cmqd_load.tally import Quota, Tally

DRAIN_SECONDS = 5.0
"""Time for the answers to the messages of an open loop that are due at the end."""
DRAIN_STEP = 0.05
UNANSWERED_STEPS = 1_000
"""Different waiting times of unanswered messages."""
LEAST_SECOND_NS = 50_000_000
UNLIMITED = sys.maxsize


class Run:
    """A run. ``on_second`` gets each second, and True for a measured second.

    ``now_ns`` and ``sleep`` are the clock, which tests replace.
    """

    def __init__(
        self,
        plan: Plan,
        work: Work,
        on_second: Callable[[Second, bool], object],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._plan = plan
        self._work = work
        self._on_second = on_second
        self._now_ns = now_ns
        self._sleep = sleep or self._sleep_until_end
        self.tally = Tally(is_tolerant=True)
        """Counts of the second under way."""
        self.quota = Quota(UNLIMITED)
        """Set to the limit of messages when the measured time begins. An error ends the run by the quota, too."""
        self._due = 0
        """Messages of the open loop that were due in the measured time."""
        self._last_due_ns = 0
        """Intended time of the last due message."""
        self._is_measuring = False
        self.measured = Measured()
        """The measurements; a cancelled run has them up to its cancellation."""

    async def run(self, objects: Objects) -> Measured:
        """Run the load and return the measurements, with the error that ended the run."""
        loop = asyncio.get_running_loop()
        previous = loop.get_exception_handler()
        loop.set_exception_handler(self._take_exception)
        crew = Crew(self.tally, self.fail, reconnects=self._plan.reconnect)
        try:
            loops = await hired(crew, self._plan, self._work, objects, self.tally, self.quota)
            # The load keeps these objects for the whole run: to look at them again would only add pauses to the
            # latencies. The collector stays on: lost connections leave cycles, and requests and replies do not wake it.
            gc.collect()
            gc.freeze()
            for begin in loops.begin:
                begin()
            send, rate = loops.send, self._work.rate
            pacer = None if send is None or rate is None else Pacer(rate / self._plan.batch, self._paced(send))
            with pacer or nullcontext():
                await self.measure(pacer)
            if pacer is not None and self.measured.failure is None:
                await self._drain()
            if crew.is_cut_off:
                self.fail(ConnectionError("at the end no connection to the server was left"))
        except (LoadError, OSError) as error:
            self.fail(error)
        finally:
            gc.unfreeze()
            crew.close()
            loop.set_exception_handler(previous)
        return self.measured

    async def measure(self, pacer: Pacer | None) -> None:
        """Let the load run for the warm-up and for the measured time."""
        await self._phase(self._plan.warm_up)
        self.tally.clear()
        self.tally.since_ns = self._now_ns()
        self.quota.remaining = self._plan.messages or UNLIMITED
        if pacer is not None:
            pacer.late.clear()
            self.measured.late = pacer.late
            self.measured.unanswered = 0
        self._is_measuring = True
        used = -time.process_time()
        try:
            await self._phase(self._plan.duration)
        finally:
            self._is_measuring = False
            self.measured.cores = (used + time.process_time()) / max(self.measured.seconds, 1e-9)

    def fail(self, error: Exception) -> None:
        """End the run with an error; later errors do not count."""
        if self.measured.failure is None:
            self.measured.failure = error
        self.quota.done.set()

    def _paced(self, send: Callable[[int], object]) -> Callable[[int], None]:
        batch = self._plan.batch

        def act(intended_ns: int) -> None:
            if self._is_measuring and intended_ns >= self.tally.since_ns:
                if self._due >= (self._plan.messages or UNLIMITED):
                    self.quota.done.set()
                    return
                self._due += batch
                self._last_due_ns = intended_ns
            send(intended_ns)

        return act

    async def _phase(self, seconds: float) -> None:
        """Let the load run for ``seconds``, or until it ends, and take its figures each second."""
        start = before = self._now_ns()
        end = start + round(seconds * 1e9)
        number = 0
        # A timer can be early by its resolution; the rest of the phase is then no second of its own.
        while end - before > LEAST_SECOND_NS and not self.quota.done.is_set():
            number += 1
            await self._sleep((min(start + number * 1_000_000_000, end) - self._now_ns()) / 1e9)
            now = self._now_ns()
            second = second_of(self.tally, (now - start) / 1e9, max(now - before, 1) / 1e9)
            if self._is_measuring:
                self.measured.seconds = (now - start) / 1e9
                self.measured.total.add(self.tally)
                self.measured.by_second.append(second)
            self.tally.clear()
            before = now
            self._on_second(second, self._is_measuring)

    async def _sleep_until_end(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.quota.done.wait(), max(seconds, 0))
        except TimeoutError:
            pass

    async def _drain(self) -> None:
        """Wait for the answers to messages that are due: without them a stall at the end would not count."""
        latency, start = self.measured.total.latency, self._now_ns()
        until = start + round(DRAIN_SECONDS * 1e9)
        copies = self._work.copies if self._work.consumers else 1
        while (missing := self._due * copies - latency.count - self.tally.latency.count) > 0:
            if self._now_ns() >= until:
                break
            await asyncio.sleep(DRAIN_STEP)
        if not self.quota.done.is_set():
            # The measured time is over: late messages do not count in its rate.
            self.tally.sent = self.tally.received = self.tally.deleted = 0
        else:
            self.measured.seconds += (self._now_ns() - start) / 1e9
        self.measured.total.add(self.tally)
        self.measured.unanswered = max(missing, 0)
        if missing > 0:
            self._count_unanswered(missing, self._due * copies)

    def _count_unanswered(self, missing: int, due: int) -> None:
        """Count messages without an answer with the time that they have waited: a lower bound of their latency.

        Without this count a server that falls behind would have the latencies of its first messages alone. The last
        due messages count as the unanswered messages, because queues answer in order.
        """
        span_us = (self._last_due_ns - self.tally.since_ns) / 1000
        waited_us = (self._now_ns() - self._last_due_ns) / 1000
        chunk = -(-missing // UNANSWERED_STEPS)
        for number in range(0, missing, chunk):
            times = min(chunk, missing - number)
            self.measured.total.latency.record(round(waited_us + (number + times / 2) / due * span_us), times)

    def _take_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Callbacks of connections have no caller to raise to.
        error = context.get("exception")
        self.fail(error if isinstance(error, Exception) else LoadError(str(context.get("message"))))
