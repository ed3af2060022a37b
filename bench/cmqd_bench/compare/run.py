"""The command compare: checks the base out, runs the turns, and prints a verdict per benchmark."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cmqd_bench.commands.plans import Compare
from cmqd_bench.compare.tree import ROOT, checked_out
from cmqd_bench.compare.turns import CompareFailed, Turns
from cmqd_bench.compare.verdict import Comparison, Verdict
from cmqd_bench.machine.conditions import commit, cpu_model


def overall(comparisons: Sequence[Comparison]) -> float:
    """Return the geometric mean of the ratios: each benchmark counts alike, however short."""
    return math.exp(sum(math.log(each.ratio) for each in comparisons) / len(comparisons))


def to_text(plan: Compare, base_commit: str, turns: Turns, comparisons: Sequence[Comparison]) -> str:
    """Return the table for people; lines that differ are marked by their verdicts."""
    lines = [f"  {'benchmark':<56} {'base us':>9} {'new us':>9} {'ratio':>6}  {'spread':<13} verdict"]
    lines += [
        f"  {each.name:<56} {each.base / 1000:>9.3f} {each.new / 1000:>9.3f} {each.ratio:>6.3f}"
        f"  {each.low:.3f} - {each.high:.3f} {each.verdict}"
        for each in comparisons
    ]
    counts = {verdict: sum(each.verdict is verdict for each in comparisons) for verdict in Verdict}
    told = ", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items())
    lines += ["", f"  all benchmarks, geometric mean: {overall(comparisons):.3f}; {told}"]
    for names, tree in ((turns.only_base, "the base"), (turns.only_new, "the working tree")):
        if names:
            lines.append(f"  only in {tree}, not compared: {', '.join(names)}")
    lines += [
        "",
        f"  base {base_commit}, working tree {commit() or 'unknown'}; CPU time per item, {turns.count} turns,"
        f" tolerance {plan.tolerance:.0%}",
        f"  {cpu_model()}; a spread leaves out the lowest and the highest of five turns or more",
    ]
    return "\n".join(lines)


def to_object(plan: Compare, base_commit: str, turns: Turns, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the JSON object."""
    return {
        "scenario": "compare",
        "base": base_commit,
        "new": commit(),
        "turns": turns.count,
        "tolerance": plan.tolerance,
        "geometric_mean": round(overall(comparisons), 4),
        "benchmarks": [asdict(each) for each in comparisons],
        "only_base": turns.only_base,
        "only_new": turns.only_new,
    }


def print_compare(plan: Compare) -> bool:
    """Run and print; return False if a benchmark became slower.

    Raises:
        RevisionUnknown: the base does not exist.
        CompareFailed: a tree could not be measured, or the trees have no benchmark in common.
    """
    with checked_out(plan.base) as (folder, base_commit):
        turns = Turns(folder, ROOT, plan.filter)
        turns.run(plan.turns, plan.seconds, plan.tolerance)
    comparisons = turns.comparisons(plan.tolerance)
    if not comparisons:
        raise CompareFailed(f"no benchmark with {plan.filter!r} in the name is in both trees")
    if plan.json:
        print(json.dumps(to_object(plan, base_commit, turns, comparisons), indent=2))
    else:
        print(to_text(plan, base_commit, turns, comparisons))
    return not any(each.verdict is Verdict.SLOWER for each in comparisons)
