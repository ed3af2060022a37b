"""The command curves: runs the steps of all curves on real brokers, and names the cliffs.

A curve takes a fresh broker per turn; turns of all curves alternate, so that a slow quarter of an hour of the machine
does not meet one curve alone.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from cmqd_bench.commands.plans import Curves
from cmqd_bench.curves.catalog import CURVES, Curve
from cmqd_bench.curves.cliffs import judgement
from cmqd_bench.curves.loads import Site
from cmqd_bench.documents.parts import conditions_text, curve_tables
from cmqd_bench.figures.results import Conditions, Gap, Peer, Results, Row, to_json, write
from cmqd_bench.machine.conditions import raise_file_limit, scratch_root, version_of
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.compiler import load_program
from cmqd_bench.peers.harness import Sampler, line_of, row_of
from cmqd_bench.peers.peer import pids_of, resume, rss_mib_of
from cmqd_bench.peers.running import gap_of, reason_of, run_conditions, started, tell
from cmqd_load.failures import LoadError
from cmqd_load.native_job import run

FILES = 24_000
"""Open files: 10,000 connections at both ends of the loopback belong to two processes, each with its own limit."""
MAX_RSS_MIB = 4_096
QUICK_SECONDS = 0.5
SETTLE_SECONDS = 0.5
"""Between two steps: the broker notices the closed connections of the step before."""


class CurvesRun:
    """A run of several curves: its rows so far, and the gaps."""

    def __init__(self, plan: Curves, root: Path, program: Path) -> None:
        self._plan = plan
        self._root = root
        self._program = program
        self._deadline = time.monotonic() + plan.limit
        self.rows: list[Row] = []
        self.gaps: list[Gap] = []

    def run(self) -> None:
        """Run all turns of all curves."""
        for turn in range(1, self._plan.turns + 1):
            for name in self._plan.curves:
                curve = CURVES[name]
                if turn <= curve.max_turns:
                    self._turn(curve, turn)

    def _turn(self, curve: Curve, turn: int) -> None:
        """Run the steps of a curve on a fresh broker. An error or a bound ends the curve's turn, not the run."""
        peer = CmqdPeer(syncs=self._plan.durability == "fsync")
        steps = list(curve.quick_steps if self._plan.quick else curve.steps)
        with started([peer], self._root, keep=False) as (_, gaps):
            reason, is_failure = (gaps[0].reason, True) if gaps else ("", False)
            site = Site(peer, self._program)
            while steps and not reason:
                reason = hindrance(
                    self._plan,
                    curve,
                    steps[0],
                    seconds_left=self._deadline - time.monotonic(),
                    rss_mib=rss_mib_of(peer),
                    free=shutil.disk_usage(self._root).free,
                )
                if not reason:
                    try:
                        self._step(curve, site, peer, steps[0], turn)
                        steps.pop(0)
                    # Any error: the other curves of an unattended run go on.
                    except Exception as error:
                        reason, is_failure = reason_of(error), True
        for step in steps:
            gap = gap_of(peer, reason, curve.scenario.name, turn, x=step, is_failure=is_failure)
            tell(told(gap))
            self.gaps.append(gap)

    def _step(self, curve: Curve, site: Site, peer: CmqdPeer, step: int, turn: int) -> None:
        sampler = Sampler(peer)
        resume(pids_of(peer))
        with site.stack:
            load = curve.prepare(site, step)
            # The first step also warms the interpreter of the broker up.
            warm_up = self._plan.warm_up * (2 if step == curve.steps[0] else 1)
            job = load.job(warm_up=warm_up, seconds=self._plan.seconds)
            outcome = run(self._program, job, on_start=sampler.start, on_end=sampler.end)
            rss_mib = rss_mib_of(peer)
        name = curve.scenario.name
        self.rows.append(row_of(name, peer, turn, load.items(outcome), outcome, sampler, rss_mib, x=step))
        tell(line_of(self.rows[-1]))
        if not self._plan.quick:
            time.sleep(SETTLE_SECONDS)


def hindrance(plan: Curves, curve: Curve, step: int, *, seconds_left: float, rss_mib: float, free: int) -> str:
    """Return the reason why a step must not begin; empty if it may. ``free``: bytes of the disk."""
    if seconds_left <= 0:
        return f"the limit of {plan.limit:,.0f} s was reached"
    if rss_mib > MAX_RSS_MIB:
        return f"the broker has more than {MAX_RSS_MIB:,} MiB of memory"
    if free < (needed := curve.room(step)):
        return f"{needed >> 20:,} MiB of disk are needed, {free >> 20:,} are free"
    return ""


def told(gap: Gap) -> str:
    """Return a missing step as a line of text."""
    return f"{gap.scenario} {gap.x:,.0f}, turn {gap.turn}: {'FAILED' if gap.is_failure else 'left out'}: {gap.reason}"


def to_text(results: Results) -> str:
    """Return the tables for people, a curve each, then the cliffs."""
    return "\n\n".join([curve_tables(results), *judgement(results), *map(told, results.gaps), conditions_text(results)])


def results_of(plan: Curves, facts: Conditions, run: CurvesRun) -> Results:
    """Return the file of results."""
    peer = CmqdPeer(syncs=plan.durability == "fsync")
    return Results(
        kind="curves",
        conditions=facts,
        peers=[Peer(name=peer.name, title=peer.title, version=version_of("cmqd"), durability=peer.durability)],
        scenarios=[CURVES[name].scenario for name in plan.curves],
        rows=run.rows,
        gaps=run.gaps,
    )


def print_curves(plan: Curves) -> None:
    """Run, print, and with ``output`` write the file of results.

    Raises:
        ConditionsError: the folder for data is in memory.
        CompilerMissing: there is no C compiler.
        LoadError: no step succeeded.
    """
    if plan.quick:
        plan = replace(plan, turns=1, seconds=QUICK_SECONDS, warm_up=QUICK_SECONDS / 2)
    program = load_program()
    raise_file_limit(FILES)
    root = scratch_root(plan.scratch)
    facts = run_conditions(plan, root)
    run = CurvesRun(plan, root, program)
    try:
        run.run()
    finally:
        # The rows before an interruption are kept, too: a run takes minutes.
        results = results_of(plan, facts, run)
        if plan.output is not None:
            write(plan.output, results)
    print(json.dumps(json.loads(to_json(results))) if plan.json else to_text(results))
    if not run.rows:
        raise LoadError("no step succeeded")
