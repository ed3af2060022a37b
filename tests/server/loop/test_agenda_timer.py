"""The agenda timer: a single timer, set to the first due work, which is done in slices."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from cmqd.server.loop.agenda_timer import MAX_SLEEP_S, AgendaTimer
from support.server.fake_clock import FakeClock


class FakeLoop:
    """Timers as a list, called by hand."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> "FakeTimer":
        timer = FakeTimer(delay, callback)
        self.timers.append(timer)
        return timer

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> "FakeTimer":
        return self.call_later(0, callback)

    @property
    def set_timers(self) -> list[float]:
        return [timer.delay for timer in self.timers if not timer.gone]

    def fire(self) -> None:
        """The first timer goes off."""
        timer = min((each for each in self.timers if not each.gone), key=lambda each: each.delay)
        timer.gone = True
        timer.callback()


class FakeTimer:
    def __init__(self, delay: float, callback: Callable[..., None]) -> None:
        self.delay = delay
        self.callback = callback
        self.gone = False

    def cancel(self) -> None:
        self.gone = True


class Work:
    """Deadlines; a tick takes the first."""

    def __init__(self, clock: FakeClock, *dues: int) -> None:
        self.clock = clock
        self.dues = sorted(dues)
        self.done: list[int] = []
        self.loop = FakeLoop()
        self.agenda_timer = AgendaTimer(
            loop=cast("asyncio.AbstractEventLoop", self.loop),
            now_ms=clock.now_ms,
            clock_ms=clock.now_ms,
            next_deadline_ms=lambda: self.dues[0] if self.dues else None,
            tick=self.tick,
        )

    def tick(self, now_ms: int) -> None:
        if self.dues and self.dues[0] <= now_ms:
            self.done.append(self.dues.pop(0))


def test_nothing_due_sets_no_timer() -> None:
    work = Work(FakeClock(0))

    work.agenda_timer.plan()

    assert work.loop.set_timers == []


def test_the_timer_is_set_to_the_first_deadline_and_once() -> None:
    work = Work(FakeClock(0), 700, 300)

    work.agenda_timer.plan()
    work.agenda_timer.plan()

    assert work.loop.set_timers == [0.3]


def test_a_sooner_deadline_sets_the_timer_anew_and_a_later_one_does_not() -> None:
    work = Work(FakeClock(0), 500)
    work.agenda_timer.plan()

    work.dues.insert(0, 200)
    work.agenda_timer.plan()
    assert work.loop.set_timers == [0.2]
    work.dues = [900]
    work.agenda_timer.plan()
    assert work.loop.set_timers == [0.2]


def test_due_work_is_done_and_the_next_deadline_planned() -> None:
    clock = FakeClock(0)
    work = Work(clock, 100, 100, 100, 400)
    work.agenda_timer.plan()

    clock.advance(150)
    work.loop.fire()

    assert work.done == [100, 100, 100]
    assert work.loop.set_timers == [0.25]


def test_a_timer_that_fires_early_only_plans_again() -> None:
    clock = FakeClock(0)
    work = Work(clock, 100)
    work.agenda_timer.plan()

    clock.advance(99)
    work.loop.fire()

    assert work.done == []
    assert work.loop.set_timers == [0.001]


def test_more_work_than_a_slice_lets_the_sockets_in_between() -> None:
    clock = FakeClock(0)
    work = Work(clock, *range(1, 100_001))
    work.agenda_timer.plan()
    clock.advance(200_000)

    rounds = 0
    while work.dues:
        work.loop.fire()
        rounds += 1

    assert len(work.done) == 100_000
    assert rounds > 3


def test_no_sleep_is_longer_than_the_two_clocks_may_drift_apart() -> None:
    work = Work(FakeClock(0), 1_000_000)

    work.agenda_timer.plan()

    assert work.loop.set_timers == [MAX_SLEEP_S]


def test_stopped_is_stopped() -> None:
    work = Work(FakeClock(0), 100)
    work.agenda_timer.plan()

    work.agenda_timer.stop()
    work.agenda_timer.plan()

    assert work.loop.set_timers == []
