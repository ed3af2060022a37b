"""The meaning of the measurements: where cmqd needs less than the reference peer, and where more."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cmqd_bench.results import CMQD, KEPT_RATE, REFERENCE_PEER, Point, Results, Row, Scenario, Spread, points, ratio

RATE = re.compile(r"rate-(\d+)$")
"""Works of an open loop are named by their rate."""
TABLE_RATE = 2_000
"""The rate that is a row of the table; further rates are points of the plot of latency over rate."""
EVEN = 0.03
"""Ratios this close to 1 are no difference: two runs of the same code differ as much."""


class Standing(StrEnum):
    """The result of a comparison, from the point of view of the first peer."""

    AHEAD = "ahead"
    EVEN = "even"
    BEHIND = "behind"


def standing(spread: Spread, *, is_more_better: bool = False) -> Standing:
    """Return the result of a ratio; a ratio whose turns disagree about the direction is even."""
    if abs(spread.median - 1) <= EVEN or spread.low <= 1 <= spread.high:
        return Standing.EVEN
    return Standing.AHEAD if (spread.median > 1) == is_more_better else Standing.BEHIND


@dataclass(frozen=True, slots=True)
class Comparison:
    """A point of a scenario beside the reference peer. Ratios are None without a reference, or of the reference."""

    point: Point
    rate: Spread
    cpu_us: Spread
    cpu_ratio: Spread | None
    p50: Spread | None
    p50_ratio: Spread | None

    @property
    def name(self) -> str:
        """Return the peer's name, with the build if it is not the pure one."""
        return name_of(self.point)


def is_variant(name: str) -> bool:
    """Return True for another build or use of cmqd: ``cmqd (native)``, ``cmqd-inside``."""
    return name != CMQD and name.startswith(CMQD)


def is_overload(scenario: Scenario, point: Point) -> bool:
    """Return True for a work of an open loop whose rate was not reached: its latency is that of a growing queue."""
    match = RATE.match(scenario.name)
    return bool(match) and _spread(point, lambda row: row.rate).median < KEPT_RATE * int(match[1])


def name_of(point: Point) -> str:
    """Return the key of a line in a plot: the peer, and the build of cmqd that is not the pure code."""
    return point.peer if point.build in ("", "-", "pure") else f"{point.peer} ({point.build})"


def cpu_us(row: Row) -> float:
    """Return the CPU per item."""
    return row.cpu_us


def p50_ms(row: Row) -> float | None:
    """Return the median latency."""
    return row.p50_ms


def _spread(point: Point, figure: Callable[[Row], float | None]) -> Spread:
    found = point.spread(figure)
    assert found is not None  # rate and CPU are in each row
    return found


def compared(results: Results, scenario: Scenario) -> list[Comparison]:
    """Return the points of a scenario beside the reference; cmqd first, then the reference, then the other peers."""
    own = [point for point in points(results.rows) if point.scenario == scenario.name]
    reference = next((point for point in own if point.peer == REFERENCE_PEER), None)

    def beside(point: Point, figure: Callable[[Row], float | None]) -> Spread | None:
        return None if reference is None or point is reference else ratio(point, reference, figure)

    listed = [peer.name for peer in results.peers]

    def place(point: Point) -> tuple[int, int]:
        order = 0 if point.peer == CMQD else 1 if is_variant(point.peer) else 2 if point is reference else 3
        return order, listed.index(point.peer) if point.peer in listed else len(listed)

    own.sort(key=place)
    return [
        Comparison(
            point=point,
            rate=_spread(point, lambda row: row.rate),
            cpu_us=_spread(point, cpu_us),
            cpu_ratio=beside(point, cpu_us),
            p50=point.spread(p50_ms),
            p50_ratio=beside(point, p50_ms),
        )
        for point in own
    ]


def works(results: Results) -> list[Scenario]:
    """Return the rows of the table of peers: scenarios that are neither curves nor further rates of the open loop."""
    return [
        scenario
        for scenario in results.scenarios
        if not scenario.is_curve and (not (match := RATE.match(scenario.name)) or int(match[1]) == TABLE_RATE)
    ]


def summary(results: Results) -> list[str]:
    """Return a sentence per build of cmqd: the works in which cmqd needs more CPU than the reference, and less."""
    titles = {peer.name: peer.title for peer in results.peers}
    found: dict[str, list[Spread]] = {}
    for scenario in works(results):
        for each in compared(results, scenario):
            if each.point.peer == CMQD and each.cpu_ratio is not None:
                found.setdefault(each.name, []).append(each.cpu_ratio)
    sentences: list[str] = []
    for name, spreads in found.items():
        parts: list[str] = []
        for result, words in ((Standing.BEHIND, "more"), (Standing.AHEAD, "less"), (Standing.EVEN, "as much")):
            ratios = [each.median for each in spreads if standing(each) is result]
            if ratios:
                extent = "" if result is Standing.EVEN else f" ({extent_of(ratios)})"
                parts.append(f"{words} in {len(ratios)}{extent}")
        beside = titles.get(REFERENCE_PEER, REFERENCE_PEER)
        sentences.append(
            f"CPU per message beside {beside}, in {len(spreads)} works: {name} needs " + ", ".join(parts) + "."
        )
    return sentences


def extent_of(ratios: Sequence[float]) -> str:
    """Return the range of ratios in words: "1.3 to 4.7 times"."""
    low, high = min(ratios), max(ratios)
    return f"{low:.2g} times" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g} times"


def disturbed_share(results: Results) -> float:
    """Return the share of the rows beside which other programs used the machine."""
    return sum(row.is_disturbed for row in results.rows) / max(len(results.rows), 1)
