"""Broker time that a test turns: hours of leases, delays and retries pass in milliseconds.

Broker time decides about the ends of leases and of long polls, delays, retention, retries of subscriptions and checks
of half messages. The time of clients is not turned: their limits, pauses and heartbeats follow the machine's clock.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

Advance: TypeAlias = "Callable[[int, bool], Future[None]]"
"""Moves broker time by milliseconds; with True from deadline to deadline. Returns when the work is done."""


class TurnedTime:
    """A wall clock and a monotonic clock over one time, which runs, stands, and is moved forward.

    Invariant: the time never goes back. Used by a single thread: the broker's.
    """

    def __init__(self, machine_ns: Callable[[], int] = time.monotonic_ns, start_ms: int | None = None) -> None:
        self._machine_ns = machine_ns
        self._start_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
        self._passed_ns = 0
        """Time since the start, up to the last change of the clock."""
        self._running_since_ns: int | None = machine_ns()
        """Time of the machine from which the clock has run since then; None = the clock stands."""

    def monotonic_ns(self) -> int:
        """Return the nanoseconds since the start."""
        since_ns = self._running_since_ns
        return self._passed_ns + (0 if since_ns is None else self._machine_ns() - since_ns)

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return self._start_ms + self.monotonic_ns() // 1_000_000

    def move(self, ms: int) -> None:
        """Move the time forward."""
        self._passed_ns += ms * 1_000_000

    @property
    def is_running(self) -> bool:
        """True unless the clock was stopped."""
        return self._running_since_ns is not None

    def run(self, is_running: bool) -> None:
        """Let the time pass as the machine's, or stop it."""
        if is_running != self.is_running:
            self._passed_ns = self.monotonic_ns()
            self._running_since_ns = self._machine_ns() if is_running else None


class Clock:
    """The broker time of a :class:`~cmqd.testing.LocalBroker`; get it as ``broker.clock``.

    The clock starts at the machine's time, or at the last time of a clone, and runs. :meth:`advance` turns it further,
    :meth:`stop` makes it stand. All methods may be called from any thread and any event loop.
    """

    def __init__(
        self,
        advance: Advance,
        now_ms: Callable[[], int],
        run: Callable[[bool], None],
        next_deadline_ms: Callable[[], int | None],
    ) -> None:
        self._advance = advance
        self._now_ms = now_ms
        self._run = run
        self._next_deadline_ms = next_deadline_ms

    def now(self) -> datetime:
        """Return broker time (UTC): the clock by which messages are stamped."""
        return datetime.fromtimestamp(self._now_ms() / 1000, UTC)

    def next_deadline(self) -> datetime | None:
        """Return the time (UTC) of the broker's next work: the end of a lease or a delay, a retry, a check.

        None = no work is planned. The time may lie a little before the work, because the broker plans in steps.
        """
        deadline_ms = self._next_deadline_ms()
        return None if deadline_ms is None else datetime.fromtimestamp(deadline_ms / 1000, UTC)

    def advance(
        self,
        seconds: float | timedelta = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        stepwise: bool = False,
    ) -> None:
        """Turn broker time forward, and wait until the broker has done all work that is due then.

        The clock stops at the next whole tenth of a second behind the target, the grain of the broker's deadlines: a
        lease that ends at the target has ended.

        The wait includes commits, moves between queues and posts to URLs. The call blocks its thread, usually for less
        than a millisecond. Use :meth:`advance_async` where the event loop of the caller must keep running meanwhile,
        for example to serve the URL of a subscription.

        Clients do not act in between. A message with an ended delay goes to a receive that waits; the end of a lease
        makes the message active again, even if its consumer is still at work.

        Args:
            seconds: how far; the other units are added.
            minutes: as ``seconds``.
            hours: as ``seconds``.
            days: as ``seconds``.
            stepwise: False = a single jump, and all work that is due happens at its end; a retry that fails then plans
                the next retry from there, and a schedule fires once. True = from deadline to deadline, so that each
                retry and firing happens at its own time, and a jump over three hours makes all retries of three hours.

        Raises:
            ValueError: the sum is negative; broker time never goes back.
            RuntimeError: the broker is not running.
        """
        self._advance(_milliseconds(seconds, minutes, hours, days), stepwise).result()

    async def advance_async(
        self,
        seconds: float | timedelta = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        stepwise: bool = False,
    ) -> None:
        """Like :meth:`advance`, without blocking the event loop. A cancellation ends the wait, not the turning."""
        future = self._advance(_milliseconds(seconds, minutes, hours, days), stepwise)
        await asyncio.shield(asyncio.wrap_future(future))

    def stop(self) -> None:
        """Make broker time stand: from now on it changes only by :meth:`advance`.

        On a slow machine no lease then ends by itself in the middle of a test. A receive that waits for messages also
        waits until the clock is turned: give ``wait=0``, or a time limit of its own.
        """
        self._run(False)

    def start(self) -> None:
        """Let broker time run again, from the present value."""
        self._run(True)

    def __repr__(self) -> str:
        return f"<Clock at {self.now().isoformat(timespec='milliseconds')}>"


def _milliseconds(seconds: float | timedelta, minutes: float, hours: float, days: float) -> int:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    total_ms = round((seconds + 60 * minutes + 3_600 * hours + 86_400 * days) * 1000)
    if total_ms < 0:
        raise ValueError(f"the clock cannot be turned by {total_ms / 1000:g} s; broker time never goes back")
    return total_ms
