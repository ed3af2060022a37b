"""The clock of the open loop."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from cmqd_load.pacer import Pacer, Schedule

INTERVAL_NS = 2_000_000


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


def test_a_schedule_gives_each_time_once_and_leaves_out_none_that_a_stall_missed() -> None:
    schedule = Schedule(1_000, 500)

    assert list(schedule.due(499)) == []
    assert list(schedule.due(2_000_500)) == [500, 1_000_500, 2_000_500]
    assert list(schedule.due(2_000_500)) == []
    assert list(schedule.due(5_999_999)) == [3_000_500, 4_000_500, 5_000_500]


def test_a_schedule_does_not_drift() -> None:
    times = list(Schedule(300_000, 0).due(10**9))

    assert (len(times), times[-1]) == (300_001, 10**9)


def test_intended_times_are_evenly_spaced_and_never_ahead_of_the_clock(run: Run):
    calls: list[tuple[int, int]] = []

    async def main() -> None:
        enough = asyncio.Event()

        def act(intended_ns: int) -> None:
            calls.append((intended_ns, time.monotonic_ns()))
            if len(calls) == 20:
                enough.set()

        with Pacer(500.0, act):
            await enough.wait()

    run(main())
    steps = {after - before for (before, _), (after, _) in pairwise(calls)}
    assert steps == {INTERVAL_NS}
    assert all(intended <= called for intended, called in calls)


def test_what_a_busy_loop_missed_is_made_up_for_and_counted_as_late(run: Run):
    calls: list[int] = []

    async def main() -> int:
        caught_up = asyncio.Event()

        def act(intended_ns: int) -> None:
            calls.append(intended_ns)
            if len(calls) >= 25:
                caught_up.set()

        with Pacer(500.0, act) as pacer:
            time.sleep(0.05)
            await caught_up.wait()
        assert pacer.late.count == len(calls)
        return pacer.late.maximum

    assert run(main()) >= 45_000
    assert {after - before for before, after in pairwise(calls)} == {INTERVAL_NS}


def test_a_thread_that_has_no_alarm_keeps_the_pace_by_the_timers_of_its_loop() -> None:
    calls: list[int] = []

    async def main() -> None:
        enough = asyncio.Event()

        def act(intended_ns: int) -> None:
            calls.append(intended_ns)
            if len(calls) == 5:
                enough.set()

        with Pacer(500.0, act):
            await enough.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()

    assert {after - before for before, after in pairwise(calls)} == {INTERVAL_NS}


def test_nothing_is_called_and_no_alarm_is_set_after_the_end(run: Run):
    calls: list[int] = []

    async def main() -> None:
        with pytest.raises(TimeoutError), Pacer(2_000.0, calls.append):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        made = len(calls)
        await asyncio.sleep(0.01)
        assert len(calls) == made

    run(main())
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
