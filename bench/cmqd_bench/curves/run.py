"""The command curves: runs the steps of all curves on real brokers, and names the cliffs.

A curve takes a fresh broker per turn; turns of all curves alternate, so that a slow quarter of an hour of the machine
does not meet one curve alone. The run is bounded: no step begins after ``--limit`` seconds, or with too little room on
the disk, or once the broker has more memory than ``MAX_RSS_MIB``; a step that was left out is named.
"""

import gc
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from cmqd_bench.broker import Broker, broker_folder
from cmqd_bench.curves.catalog import CURVES, Curve
from cmqd_bench.curves.cliffs import cliffs_of
from cmqd_bench.curves.loads import Count, Site
from cmqd_bench.histogram import Histogram
from cmqd_bench.machine import conditions, raise_file_limit, scratch_root, version_of
from cmqd_bench.measure import Round
from cmqd_bench.results import CMQD, DISTURBED_CORES, Conditions, Peer, Results, Row, to_json, write
from cmqd_bench.session import Session, running

FILES = 24_000
"""Open files: 10,000 connections at both ends of the loopback belong to two processes, each with its own limit."""
MAX_RSS_MIB = 4_096
QUICK_SECONDS = 0.25
MIN_ITEMS = 300
MAX_STRETCH = 10
"""A step with fewer items takes up to this many times its measured time."""
SETTLE_SECONDS = 1.0
"""Between two steps: the broker notices the closed connections of the step before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The flags of the command."""

    curves: Sequence[str]
    turns: int
    seconds: float
    warm_up: float
    limit: float
    quick: bool
    durability: str
    output: Path | None
    scratch: Path | None
    json: bool


def row_of(scenario: str, step: int, turn: int, measured: Round, latency: Histogram, count: int) -> Row:
    """Return the row of a measured step; ``count`` items were completed."""
    milliseconds = [latency.percentile(percent) / 1000 for percent in (50, 90, 99, 99.9)]
    items = max(count, 1)
    return Row(
        scenario=scenario,
        peer=CMQD,
        turn=turn,
        x=step,
        rate=round(count / measured.seconds, 1),
        cpu_us=round(measured.server_cpu_seconds / items * 1e6, 3),
        p50_ms=milliseconds[0],
        p90_ms=milliseconds[1],
        p99_ms=milliseconds[2],
        p999_ms=milliseconds[3],
        load_us=round(measured.client_cpu_seconds / items * 1e6, 3),
        rss_mib=round(measured.server_rss_mib, 1),
        other_cores=round(measured.other_cores, 3),
        is_disturbed=measured.other_cores > DISTURBED_CORES,
    )


class CurvesRun:
    """A run of several curves: its rows so far, and the steps that were left out."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self._plan = plan
        self._root = root
        self._deadline = time.monotonic() + plan.limit
        self.rows: list[Row] = []
        self.left_out: list[str] = []

    def run(self) -> None:
        """Run all turns of all curves."""
        for turn in range(1, self._plan.turns + 1):
            for name in self._plan.curves:
                curve = CURVES[name]
                if turn <= curve.max_turns:
                    with broker_folder(self._root, durability=self._plan.durability) as broker:
                        uvloop.run(self._turn(curve, broker, turn))
                    gc.collect()

    async def _turn(self, curve: Curve, broker: Broker, turn: int) -> None:
        async with running(broker) as session:
            site = Site(session)
            with site.stack:
                await self._steps(curve, site, turn)

    async def _steps(self, curve: Curve, site: Site, turn: int) -> None:
        name, session, broker = curve.scenario.name, site.session, site.session.broker
        for number, step in enumerate(curve.quick_steps if self._plan.quick else curve.steps):
            reason = hindrance(
                self._plan,
                curve,
                step,
                seconds_left=self._deadline - time.monotonic(),
                rss_mib=broker.rss_mib(),
                free=shutil.disk_usage(self._root).free,
            )
            if reason:
                self.left_out.append(f"{name}, turn {turn}, from {step:,} on: {reason}")
                return
            count = await curve.load(site, step)
            # The first step also warms the interpreter of the broker up.
            await session.guard.sleep(self._plan.warm_up * (1 if number else 2))
            meter = session.meter()
            meter.start()
            await self._measure(session, count)
            measured = meter.finish(count)
            row = row_of(name, step, turn, measured, session.tally.latency, count(session.tally))
            self.rows.append(row)
            _tell(row)
            site.stack.close()
            session.close_all()
            session.tally.clear()
            if not self._plan.quick:
                await session.guard.sleep(SETTLE_SECONDS)

    async def _measure(self, session: Session, count: Count) -> None:
        """Wait for the measured time, and longer if hardly an item was completed: three items have no percentiles."""
        begun = time.monotonic()
        while True:
            await session.guard.sleep(self._plan.seconds)
            if count(session.tally) >= MIN_ITEMS or time.monotonic() - begun > MAX_STRETCH * self._plan.seconds:
                return


def hindrance(plan: Plan, curve: Curve, step: int, *, seconds_left: float, rss_mib: float, free: int) -> str:
    """Return the reason why a step must not begin; empty if it may. ``free``: bytes of the disk."""
    if seconds_left <= 0:
        return f"the limit of {plan.limit:,.0f} s was reached"
    if rss_mib > MAX_RSS_MIB:
        return f"the broker has more than {MAX_RSS_MIB:,} MiB of memory"
    if free < (needed := curve.room(step)):
        return f"{needed >> 20:,} MiB of disk are needed, {free >> 20:,} are free"
    return ""


def _tell(row: Row) -> None:
    """Print a line at the end of a step; on standard error, because standard output is for the report."""
    line = f"{row.scenario} {row.x:,.0f}, turn {row.turn}: {row.rate:,.0f}/s, {row.cpu_us:,.2f} us, p50 {row.p50_ms} ms"
    if row.is_disturbed:
        line += f"; DISTURBED: other programs used {row.other_cores:.2f} cores"
    print(line, file=sys.stderr, flush=True)


def described(plan: Plan, root: Path) -> Conditions:
    """Return the conditions of a run that begins now."""
    facts = conditions(root)
    return Conditions(
        **{name: value for name, value in facts.items() if name in Conditions.__struct_fields__},  # pyright: ignore[reportArgumentType]
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        load="Python harness, one process",
        seconds=plan.seconds,
        turns=plan.turns,
    )


def to_text(results: Results, left_out: Sequence[str]) -> str:
    """Return the tables for people, a curve each, then the cliffs."""
    lines: list[str] = []
    for scenario in results.scenarios:
        unit = f"us/{scenario.item}"
        lines += ["", f"{scenario.name}: {scenario.title}"]
        lines.append(
            f"  {scenario.x:>20} {'turn':>4} {scenario.item + '/s':>12} {unit:>12} {'p50 ms':>9} {'p99 ms':>9}"
            f" {'load us':>8} {'RSS MiB':>8} {'others':>6}"
        )
        lines += [
            f"  {row.x:>20,.0f} {row.turn:>4} {row.rate:>12,.0f} {row.cpu_us:>12,.2f} {row.p50_ms:>9,.2f}"
            f" {row.p99_ms:>9,.2f} {row.load_us:>8,.2f} {row.rss_mib:>8,.0f} {row.other_cores:>6.2f}"
            for row in sorted(results.rows, key=lambda each: (each.x, each.turn))
            if row.scenario == scenario.name
        ]
    lines.append("")
    lines += [str(cliff).capitalize() for cliff in cliffs_of(results)] or ["No cliff."]
    lines += [f"Left out: {reason}" for reason in left_out]
    told = results.conditions
    lines += ["", f"{told.cpu}, {told.cores} cores, load {told.load_average}, commit {told.commit or 'unknown'}"]
    return "\n".join(lines).lstrip("\n")


def results_of(plan: Plan, facts: Conditions, rows: list[Row]) -> Results:
    """Return the file of results."""
    durability = "fsync before the answer" if plan.durability == "fsync" else "none: the kernel writes later"
    return Results(
        kind="curves",
        conditions=facts,
        peers=[Peer(name=CMQD, title="cmqd", version=version_of("cmqd"), durability=durability)],
        scenarios=[CURVES[name].scenario for name in plan.curves],
        rows=rows,
    )


def print_curves(plan: Plan) -> None:
    """Run, print, and with ``output`` write the file of results."""
    if plan.quick:
        plan = replace(plan, turns=1, seconds=QUICK_SECONDS, warm_up=QUICK_SECONDS / 2)
    raise_file_limit(FILES)
    root = scratch_root(plan.scratch)
    facts = described(plan, root)
    run = CurvesRun(plan, root)
    # As in the runner: the load keeps its few objects, and a collection would only add a pause to the latencies.
    gc.freeze()
    gc.disable()
    try:
        run.run()
    finally:
        # The rows before a failure are kept, too: a run takes minutes.
        results = results_of(plan, facts, run.rows)
        if plan.output is not None:
            write(plan.output, results)
    print(json.dumps(json.loads(to_json(results))) if plan.json else to_text(results, run.left_out))
