"""The command scenarios: brokers of two commits under the same load, in turns, with a verdict per figure.

A turn runs every scenario on a fresh broker of the base and on a fresh broker of the working tree, one after the other,
the other tree first in every turn. Load, interpreter and libraries are those of the working tree in both cases.

An error ends the scenario, not the run: the figures of the turns before stand, and the error is told.
"""

import gc
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from cmqd_bench.commands.options import Options, defaults
from cmqd_bench.commands.plans import CompareScenarios
from cmqd_bench.compare.tree import ROOT, check_product, checked_out, environment
from cmqd_bench.compare.turns import CompareFailed
from cmqd_bench.compare.verdict import Comparison, Verdict, compare, conditions_line, table, to_object
from cmqd_bench.figures.results import DISTURBED_CORES
from cmqd_bench.machine.conditions import raise_file_limit, scratch_root
from cmqd_bench.runner import FILES, run_round

CPU = "server_cpu_us_per_message"
MIN_FREE = 4 << 30


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario of the harness, and its compared figures: the words by the key in the report."""

    name: str
    options: Options
    figures: Mapping[str, str]


def _scenario(name: str, scenario: str, figures: Mapping[str, str], **options: Any) -> Scenario:
    return Scenario(name, replace(defaults(scenario), **{"seconds": 2.5, "warm_up": 0.5, **options}), figures)


SCENARIOS: Sequence[Scenario] = (
    _scenario("cycle, batch 16", "cycle", {CPU: "CPU us/message"}, batch=16),
    _scenario("send, batches of 256", "send", {CPU: "CPU us/message"}, batch=256, connections=16),
    _scenario("publish to 10 queues", "fanout", {"server_cpu_us_per_copy": "CPU us/copy"}, subscribers=10),
    _scenario(
        "backlog of 300,000",
        "backlog",
        {
            CPU: "CPU us/message, receive and delete",
            "fill_server_cpu_us_per_message": "CPU us/message, send",
            "rss_filled_mib": "memory MiB",
            "restart_seconds": "restart after kill -9, s",
        },
        messages=300_000,
    ),
    _scenario(
        "idle, 5,000 long polls",
        "idle",
        {CPU: "CPU us/message", "rss_kib_per_connection": "memory KiB/connection"},
        connections=5_000,
        seconds=4.0,
        warm_up=1.0,
    ),
)

Measure = Callable[[Options, Path, int], Mapping[str, Any]]
"""Runs a scenario on a broker of a tree, with a hash seed; returns the figures of the report."""


class ScenarioTurns:
    """All turns of a run."""

    def __init__(self, base: Path, new: Path, scenarios: Sequence[Scenario], measure: Measure) -> None:
        self._trees = {"base": base, "new": new}
        self._scenarios = scenarios
        self._measure = measure
        self._values: dict[str, list[tuple[float, float]]] = {}
        self.disturbed = 0
        """Rounds beside which other programs used the machine."""
        self.rounds = 0
        self.failures: dict[str, str] = {}
        """Texts of errors, by scenario."""

    def run(self, turns: int, seconds: float) -> int:
        """Run up to ``turns`` turns, none beginning after ``seconds``; return the number of turns."""
        deadline = monotonic() + seconds
        turn = 0
        while turn < turns and monotonic() < deadline:
            turn += 1
            for scenario in self._scenarios:
                if scenario.name not in self.failures:
                    self._turn(scenario, turn)
        return turn

    def comparisons(self, tolerance: float) -> list[Comparison]:
        """Return the figures of both trees with their verdicts."""
        return [compare(name, values, tolerance) for name, values in self._values.items()]

    def _turn(self, scenario: Scenario, turn: int) -> None:
        figures: dict[str, Mapping[str, Any]] = {}
        for tree in ("base", "new") if turn % 2 else ("new", "base"):
            try:
                figures[tree] = self._measure(scenario.options, self._trees[tree], turn)
            # Any error: an unattended run goes on with the other scenarios.
            except Exception as error:
                self.failures[scenario.name] = f"turn {turn}, {tree}: {str(error) or type(error).__name__}"
                _tell(f"{scenario.name} FAILED: {self.failures[scenario.name]}")
                return
            self.rounds += 1
            self.disturbed += figures[tree]["other_cores"] > DISTURBED_CORES
        for key, words in scenario.figures.items():
            pair = float(figures["base"][key]), float(figures["new"][key])
            _tell(f"turn {turn}: {scenario.name}, {words}: base {pair[0]:,.4g}, new {pair[1]:,.4g}")
            # A figure of 0 has no ratio: memory that did not grow by a page.
            if all(pair):
                self._values.setdefault(f"{scenario.name}: {words}", []).append(pair)


def print_scenarios(plan: CompareScenarios) -> bool:
    """Run and print; return False if a figure is worse.

    Raises:
        RevisionUnknown: the base does not exist.
        CompareFailed: a tree cannot be imported, or a scenario failed; the table of the others is printed before.
        ConditionsError: the folder for data is in memory.
    """
    chosen = [scenario for scenario in SCENARIOS if plan.filter in scenario.name]
    if not chosen:
        raise CompareFailed(f"no scenario has {plan.filter!r} in its name")
    raise_file_limit(FILES)
    root = scratch_root(plan.scratch)

    def measure(options: Options, tree: Path, seed: int) -> Mapping[str, Any]:
        if shutil.disk_usage(root).free < MIN_FREE:
            raise CompareFailed(f"{MIN_FREE >> 30} GiB of disk are needed")
        # Compiled modules are kept: otherwise the start of a fresh checkout would include its compilation.
        figures = run_round(options, root, environment(tree, seed) | {"PYTHONDONTWRITEBYTECODE": ""})
        gc.collect()
        return figures

    with checked_out(plan.base) as (folder, base_commit):
        for tree in (folder, ROOT):
            check_product(tree)
        turns = ScenarioTurns(folder, ROOT, chosen, measure)
        count = turns.run(plan.turns, plan.seconds)
    comparisons = turns.comparisons(plan.tolerance)
    if plan.json:
        further = {"disturbed_rounds": turns.disturbed, "rounds": turns.rounds, "failures": turns.failures}
        figures = [asdict(each) for each in comparisons]
        print(json.dumps(to_object(plan, "scenarios", base_commit, count, figures=figures, **further), indent=2))
    else:
        lines = table("figure", comparisons, lambda figure: f"{figure:,.4g}")
        lines += [f"  {name} FAILED: {text}" for name, text in turns.failures.items()]
        lines.append(f"  other programs used the machine beside {turns.disturbed} of {turns.rounds} rounds")
        print("\n".join([*lines, conditions_line(plan, base_commit, count)]))
    if turns.failures:
        raise CompareFailed("; ".join(f"{name}: {text}" for name, text in turns.failures.items()))
    return not any(each.verdict is Verdict.SLOWER for each in comparisons)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
