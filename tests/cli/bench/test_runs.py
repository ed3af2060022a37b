"""The measuring of a run, with a clock of the test."""

from collections.abc import Callable
from typing import Any

import pytest

from cmq_cli.bench.plans import CyclePlan, Plan, RatePlan, SendPlan
from cmq_cli.bench.results import Measured, Second, result_of
from cmq_cli.bench.runs import Run
from cmqd_load.histogram import Histogram

SECOND = 1_000_000_000


class Clock:
    """A clock that the sleeps of the run turn; ``during`` is called in each sleep."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.during: Callable[[], object] = str

    def now_ns(self) -> int:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.during()
        self.now += round(seconds * SECOND)


def a_run(plan: Plan, clock: Clock, seconds: list[tuple[float, bool]]) -> Run:
    def take(second: Second, is_measured: bool) -> None:
        seconds.append((second.at, is_measured))

    return Run(plan, plan.check(), take, now_ns=clock.now_ns, sleep=clock.sleep)


async def test_the_warm_up_is_shown_and_not_counted() -> None:
    clock, seconds = Clock(), list[tuple[float, bool]]()
    run = a_run(SendPlan(warm_up=1.5, duration=2.25), clock, seconds)

    def load() -> None:
        run.tally.sent += 10
        run.tally.latency.record(1_000)

    clock.during = load
    await run.measure(None)

    assert seconds == [(1.0, False), (1.5, False), (1.0, True), (2.0, True), (2.25, True)]
    assert (run.measured.seconds, run.measured.total.sent, run.measured.total.latency.count) == (2.25, 30, 3)
    assert [second.sent for second in run.measured.by_second] == [10.0, 10.0, 40.0]
    assert run.tally.since_ns == 5 * SECOND + 1_500_000_000


async def test_a_timer_that_is_early_makes_no_second_of_its_own() -> None:
    clock, seconds = Clock(), list[tuple[float, bool]]()
    run = a_run(SendPlan(warm_up=0, duration=1), clock, seconds)

    async def early(seconds: float) -> None:
        clock.now += round(seconds * SECOND) - 1_000_000

    run._sleep = early  # pyright: ignore[reportPrivateUsage]
    await run.measure(None)

    assert seconds == [(0.999, True)]


async def test_a_run_ends_at_its_number_of_messages_or_with_an_error() -> None:
    clock = Clock()
    run = a_run(SendPlan(warm_up=1, duration=100, messages=25), clock, [])
    clock.during = lambda: run.quota.take(10)
    await run.measure(None)
    assert run.measured.seconds == 3.0

    clock = Clock()
    failing = a_run(SendPlan(warm_up=0, duration=100), clock, [])
    clock.during = lambda: failing.fail(OSError("first")) or failing.fail(OSError("second"))
    await failing.measure(None)
    assert (failing.measured.seconds, str(failing.measured.failure)) == (1.0, "first")


async def test_an_open_loop_counts_what_is_due_in_the_measured_time_up_to_its_limit() -> None:
    run = a_run(RatePlan(batch=2, messages=6), Clock(), [])
    sent: list[int] = []
    act = run._paced(sent.append)  # pyright: ignore[reportPrivateUsage]

    act(10)  # in the warm-up
    run.tally.since_ns = 20
    run._is_measuring = True  # pyright: ignore[reportPrivateUsage]
    for intended in (15, 20, 21, 22, 23):
        act(intended)

    assert sent == [10, 15, 20, 21, 22]
    assert run._due == 6  # pyright: ignore[reportPrivateUsage]
    assert run.quota.done.is_set()


async def test_messages_without_an_answer_count_with_the_time_that_they_have_waited() -> None:
    clock = Clock()
    run = a_run(RatePlan(rate=1000), clock, [])
    run.tally.since_ns = start = clock.now
    run._is_measuring = True  # pyright: ignore[reportPrivateUsage]
    act = run._paced(lambda _: None)  # pyright: ignore[reportPrivateUsage]
    for number in range(1001):
        act(start + number * 1_000_000)
    for _ in range(601):  # the first messages, answered at once
        run.measured.total.latency.record(0)
    clock.now += 4 * SECOND  # the last is due after 1 s

    run._count_unanswered(400, 1001)  # pyright: ignore[reportPrivateUsage]

    latency = run.measured.total.latency
    assert latency.count == 1001
    assert latency.percentile(60) == 0
    assert latency.percentile(61) == pytest.approx(3_000_000, rel=0.01)
    assert latency.maximum == pytest.approx(3_400_000, rel=0.01)


def measured(**fields: Any) -> Measured:
    made = Measured(seconds=2.0, **fields)
    made.total.sent, made.total.received, made.total.deleted = 300, 200, 100
    made.total.latency = Histogram(range(1, 1001))
    return made


def test_a_result_counts_complete_messages_and_gives_the_percentiles_that_it_has() -> None:
    plan = CyclePlan(size=1024)
    made = measured(cores=0.5)
    made.total.count_error("busy", 7)

    result = result_of(
        plan, plan.check(), made, name="mine", server={"version": "1", "durability": "fsync"}, started=""
    )

    assert (result.messages, result.messages_per_second, result.mib_per_second) == (100, 50.0, 0.049)
    assert list(result.latency_ms) == ["mean", "min", "p50", "p90", "p99", "p99.9", "max"]
    assert result.latency_ms["p50"] == pytest.approx(0.5, rel=0.01)
    assert result.pairs() == {
        "load": "mine (cycle)",
        "server": "cmqd 1, durability fsync",
        "messages": "100 in 2.0 s",
        "sent": "300",
        "rate": "50 messages/s, 0.05 MiB/s",
        "latency": "send to receipt",
        **{f"  {name}": f"{value:.3f} ms" for name, value in result.latency_ms.items()},
        "errors": "busy 7",
        "generator": "0.50 cores",
    }
    assert result.warnings() == []


def test_a_result_warns_of_figures_that_the_generator_made() -> None:
    plan = RatePlan()
    late = Histogram([20_000] * 10)

    result = result_of(
        plan, plan.check(), measured(cores=0.95, late=late, unanswered=3), name="rate", server={}, started=""
    )

    busy, behind, unanswered = result.warnings()
    assert "0.95 cores" in busy
    assert "late by 20.0 ms" in behind
    assert "3 messages of the open loop had no answer" in unanswered
