"""The command compare: checks the base out, runs the turns, and prints a verdict per benchmark."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from cmqd_bench.commands.plans import Compare
from cmqd_bench.compare.tree import ROOT, checked_out
from cmqd_bench.compare.turns import CompareFailed, Turns
from cmqd_bench.compare.verdict import Comparison, Verdict, conditions_line, table, to_object


def overall(comparisons: Sequence[Comparison]) -> float:
    """Return the geometric mean of the ratios: each benchmark counts alike, however short."""
    return math.exp(sum(math.log(each.ratio) for each in comparisons) / len(comparisons))


def to_text(plan: Compare, base_commit: str, turns: Turns, comparisons: Sequence[Comparison]) -> str:
    """Return the report for people."""
    lines = table("benchmark, CPU us per item", comparisons, lambda figure: f"{figure / 1000:.3f}")
    counts = {verdict: sum(each.verdict is verdict for each in comparisons) for verdict in Verdict}
    told = ", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items())
    lines.append(f"  all benchmarks, geometric mean: {overall(comparisons):.3f}; {told}")
    for names, tree in ((turns.only_base, "the base"), (turns.only_new, "the working tree")):
        if names:
            lines.append(f"  only in {tree}, not compared: {', '.join(names)}")
    return "\n".join([*lines, conditions_line(plan, base_commit, turns.count)])


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
        figures = {
            "benchmarks": [asdict(each) for each in comparisons],
            "geometric_mean": round(overall(comparisons), 4),
        }
        further = {**figures, "only_base": turns.only_base, "only_new": turns.only_new}
        print(json.dumps(to_object(plan, "compare", base_commit, turns.count, **further), indent=2))
    else:
        print(to_text(plan, base_commit, turns, comparisons))
    return not any(each.verdict is Verdict.SLOWER for each in comparisons)
