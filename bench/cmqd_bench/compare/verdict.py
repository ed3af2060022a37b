"""The verdict on a benchmark: the ratio of the new figure to the base's, over several turns.

A ratio is taken within a turn, in which both trees are measured in alternation, so a slow minute of the machine meets
both. A difference counts only if it is larger than the tolerance and if all turns but one agree about its direction:
processes of the same code differ by some percent, because addresses and hash seeds differ from process to process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from cmqd_bench.commands.plans import Compare, CompareScenarios
from cmqd_bench.machine.conditions import commit, cpu_model

TOLERANCE = 0.05
"""A smaller difference of the medians is no difference."""
MIN_TURNS_OF_VERDICT = 3
"""Fewer turns agree by chance too often: a difference stays unclear."""
TURNS_WITH_OUTLIER = 5
"""With this many turns the lowest and the highest ratio are left out of the spread."""


class Verdict(StrEnum):
    """The judgement of a benchmark."""

    FASTER = "faster"
    SAME = "same"
    SLOWER = "SLOWER"
    UNCLEAR = "unclear"
    """The median differs by more than the tolerance, but the turns disagree about the direction, or are too few."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benchmark of both trees."""

    name: str
    base: float
    """Median of the turns; nanoseconds of a micro benchmark."""
    new: float
    ratio: float
    """Median of the ratios of the turns: above 1 the new tree needs more time."""
    low: float
    high: float
    """The spread of the ratios; from ``TURNS_WITH_OUTLIER`` turns on without the lowest and the highest."""
    verdict: Verdict


def judge(ratio: float, low: float, high: float, tolerance: float) -> Verdict:
    """Return the verdict for a median and its spread."""
    if 1 - tolerance <= ratio <= 1 + tolerance:
        return Verdict.SAME
    if ratio > 1:
        return Verdict.SLOWER if low > 1 else Verdict.UNCLEAR
    return Verdict.FASTER if high < 1 else Verdict.UNCLEAR


def compare(name: str, turns: Sequence[tuple[float, float]], tolerance: float = TOLERANCE) -> Comparison:
    """Compare the figures of a benchmark; ``turns`` has (base, new), at least one pair."""
    ratios = sorted(new / base for base, new in turns)
    spread = ratios[1:-1] if len(ratios) >= TURNS_WITH_OUTLIER else ratios
    ratio, low, high = median(ratios), spread[0], spread[-1]
    verdict = judge(ratio, low, high, tolerance)
    if verdict is not Verdict.SAME and len(ratios) < MIN_TURNS_OF_VERDICT:
        verdict = Verdict.UNCLEAR
    return Comparison(
        name=name,
        base=median(base for base, _ in turns),
        new=median(new for _, new in turns),
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict,
    )


def table(head: str, comparisons: Sequence[Comparison], shown: Callable[[float], str]) -> list[str]:
    """Return the table for people; lines that differ are marked by their verdicts."""
    lines = [f"  {head:<56} {'base':>9} {'new':>9} {'ratio':>6}  {'spread':<13} verdict"]
    lines += [
        f"  {each.name:<56} {shown(each.base):>9} {shown(each.new):>9} {each.ratio:>6.3f}"
        f"  {each.low:.3f} - {each.high:.3f} {each.verdict}"
        for each in comparisons
    ]
    return [*lines, "", "  a spread leaves out the lowest and the highest of five turns or more"]


def conditions_line(plan: Compare | CompareScenarios, base_commit: str, turns: int) -> str:
    """Return the commits, the turns and the machine as a line."""
    return (
        f"  base {base_commit}, working tree {commit() or 'unknown'}; {turns} turns, tolerance {plan.tolerance:.0%};"
        f" {cpu_model()}"
    )


def to_object(
    plan: Compare | CompareScenarios, name: str, base_commit: str, turns: int, **further: object
) -> dict[str, object]:
    """Return the JSON object of a comparison."""
    head = {"scenario": name, "base": base_commit, "new": commit(), "turns": turns, "tolerance": plan.tolerance}
    return {**head, **further}
