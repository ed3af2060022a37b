"""The judgement of a curve: a cliff is a step at which the cost grows far more than expected.

A curve is expected to be flat or to fall, except that of the body, whose cost grows in proportion beyond a fixed cost
(``Scenario.expected_slope``, ``fixed_cost_x``). Two rules look for two shapes: a single step that costs more than
``CLIFF`` times the expected cost, and a slow climb to more than ``CLIMB`` times the expected cost, seen from the
cheapest step before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cmqd_bench.figures.results import Results, Scenario, is_overloaded, points

CLIFF = 1.5
CLIMB = 2.0


@dataclass(frozen=True, slots=True)
class Cliff:
    """A finding on a curve."""

    scenario: str
    peer: str
    build: str
    start_x: float
    end_x: float
    start_us: float
    end_us: float
    growth: float
    """The cost at the end over the cost expected there from the cost at the start."""
    is_step: bool
    """True for neighbouring steps, False for a climb over several."""
    is_disturbed: bool = False
    """True if other programs used the machine at one of the ends."""

    def __str__(self) -> str:
        kind = "cliff" if self.is_step else "climb"
        return (
            f"{kind} on the curve {self.scenario}: {self.start_us:,.3g} us at {self.start_x:,.0f}, "
            f"{self.end_us:,.3g} us at {self.end_x:,.0f}, {self.growth:.2f} times the expected cost"
            + (" (other programs used the machine)" if self.is_disturbed else "")
        )


def expected_growth(scenario: Scenario, start: float, end: float) -> float:
    """Return the factor by which the cost is expected to grow from ``start`` to ``end``."""
    if not scenario.expected_slope:
        return 1.0
    fixed = scenario.fixed_cost_x
    return ((end + fixed) / (start + fixed)) ** scenario.expected_slope


def find_cliffs(
    scenario: Scenario, costs: Sequence[tuple[float, float]], *, peer: str = "", build: str = ""
) -> list[Cliff]:
    """Return the cliffs of a curve; ``costs`` has (x, CPU per item above 0) in rising order of x.

    A climb is reported only on a curve without a cliff: a cliff explains what follows.
    """

    def growth(start: tuple[float, float], end: tuple[float, float]) -> float:
        return end[1] / start[1] / expected_growth(scenario, start[0], end[0])

    def cliff(start: tuple[float, float], end: tuple[float, float], is_step: bool) -> Cliff:
        return Cliff(scenario.name, peer, build, start[0], end[0], start[1], end[1], growth(start, end), is_step)

    steps = [cliff(start, end, True) for start, end in pairwise(costs) if growth(start, end) > CLIFF]
    if steps:
        return steps
    climbs = [
        cliff(start, end, False)
        for index, end in enumerate(costs)
        for start in costs[:index]
        if growth(start, end) > CLIMB
    ]
    return [max(climbs, key=lambda climb: climb.growth)] if climbs else []


def cliffs_of(results: Results) -> list[Cliff]:
    """Return the cliffs of all curves of a file, on the medians of the turns."""
    cliffs: list[Cliff] = []
    for scenario in results.scenarios:
        if not scenario.is_curve:
            continue
        curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
        disturbed: set[float] = set()
        for point in points(row for row in results.rows if row.scenario == scenario.name):
            cost = point.spread(lambda row: row.cpu_us)
            # A step without a completed item has no cost, and an overload has no place on a curve. Tables have both.
            if cost is None or not cost.median or is_overloaded(scenario, point):
                continue
            curves.setdefault((point.peer, point.build), []).append((point.x, cost.median))
            if point.is_disturbed:
                disturbed.add(point.x)
        for (peer, build), costs in curves.items():
            cliffs += [
                replace(cliff, is_disturbed=bool({cliff.start_x, cliff.end_x} & disturbed))
                for cliff in find_cliffs(scenario, sorted(costs), peer=peer, build=build)
            ]
    return cliffs


def judgement(results: Results) -> list[str]:
    """Return the cliffs as sentences, or a sentence about their absence, with the part of the curves that it covers.

    Beside other programs a step costs more or less than alone, so disturbed steps prove no absence.
    """
    sentences = [f"{str(cliff).capitalize()}." for cliff in cliffs_of(results)]
    curves = {scenario.name for scenario in results.scenarios if scenario.is_curve}
    steps = [point for point in points(results.rows) if point.scenario in curves]
    disturbed = sum(step.is_disturbed for step in steps)
    if disturbed == len(steps):
        sentences.append("No step can be judged: other programs used the machine beside each." if steps else "No step.")
    elif disturbed:
        nothing = "" if sentences else "No cliff was found, but "
        share = f"{disturbed} of {len(steps)} steps cannot be judged: other programs used the machine beside them."
        sentences.append(f"{nothing}{share}")
    elif not sentences:
        sentences.append("No cliff was found.")
    lacking = {(gap.scenario, gap.x) for gap in results.gaps} - {(step.scenario, step.x) for step in steps}
    if lacking:
        sentences.append(f"{len(lacking)} steps were not measured.")
    return sentences
