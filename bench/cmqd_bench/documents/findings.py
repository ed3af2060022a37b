"""The meaning of the measurements: where cmqd needs less than the reference peer, and where more."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cmqd_bench.figures.results import (
    CMQD,
    KEPT_RATE,
    REFERENCE_PEER,
    Point,
    Results,
    Row,
    Scenario,
    Spread,
    points,
    ratio,
)
from cmqd_bench.peers.works import TABLE_RATE

RATE = re.compile(r"rate-(\d+)$")
"""Works of an open loop are named by their rate."""
FEW_WORKS = 3
"""More works than these are not listed by their titles."""
EVEN = 0.03
"""Ratios this close to 1 are no difference: two runs of the same code differ as much."""


class Standing(StrEnum):
    """The result of a comparison, from the point of view of the first peer."""

    AHEAD = "ahead"
    EVEN = "even"
    BEHIND = "behind"


def standing(spread: Spread) -> Standing:
    """Return the result of a ratio; a ratio whose turns disagree about the direction is even."""
    if abs(spread.median - 1) <= EVEN or spread.low <= 1 <= spread.high:
        return Standing.EVEN
    return Standing.BEHIND if spread.median > 1 else Standing.AHEAD


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


def peer_name(peer: str, build: str) -> str:
    """Return the name of a peer with its build, unless the build is the pure code."""
    return peer if build in ("", "-", "pure") else f"{peer} ({build})"


def name_of(point: Point) -> str:
    """Return the name of the peer of a point, with its build."""
    return peer_name(point.peer, point.build)


def _spread(point: Point, figure: Callable[[Row], float | None]) -> Spread:
    values = point.spread(figure)
    assert values is not None  # rate and CPU are in each row
    return values


def compared(results: Results, scenario: Scenario) -> list[Comparison]:
    """Return the points of a scenario beside the reference; cmqd first, then the reference, then the other peers.

    A peer with as many failed turns as measured turns has no ratio; a reference that failed so gives none.
    """
    own = [point for point in points(results.rows) if point.scenario == scenario.name]
    reference = next((point for point in own if point.peer == REFERENCE_PEER), None)

    failed = Counter(
        peer_name(gap.peer, gap.build) for gap in results.gaps if gap.is_failure and gap.scenario == scenario.name
    )

    def beside(point: Point, figure: Callable[[Row], float | None]) -> Spread | None:
        if reference is None or point is reference:
            return None
        # The turns that succeeded by chance must not make a gain of a work that failed.
        has_failed = any(failed[name_of(each)] >= len(each.rows) for each in (point, reference))
        return None if has_failed else ratio(point, reference, figure)

    listed = [peer.name for peer in results.peers]

    def rank(point: Point) -> tuple[int, int]:
        order = 0 if point.peer == CMQD else 1 if is_variant(point.peer) else 2 if point is reference else 3
        return order, listed.index(point.peer) if point.peer in listed else len(listed)

    own.sort(key=rank)
    return [
        Comparison(
            point=point,
            rate=_spread(point, lambda row: row.rate),
            cpu_us=_spread(point, lambda row: row.cpu_us),
            cpu_ratio=beside(point, lambda row: row.cpu_us),
            p50=point.spread(lambda row: row.p50_ms),
            p50_ratio=beside(point, lambda row: row.p50_ms),
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
    ratios_by_name: dict[str, list[Spread]] = {}
    for scenario in works(results):
        for each in compared(results, scenario):
            if each.point.peer == CMQD and each.cpu_ratio is not None:
                ratios_by_name.setdefault(each.name, []).append(each.cpu_ratio)
    sentences: list[str] = []
    for name, spreads in ratios_by_name.items():
        parts: list[str] = []
        for result, words in ((Standing.BEHIND, "more"), (Standing.AHEAD, "less"), (Standing.EVEN, "as much")):
            ratios = [each.median for each in spreads if standing(each) is result]
            if ratios:
                extent = "" if result is Standing.EVEN else f" ({extent_of(ratios)})"
                parts.append(f"{words} in {len(ratios)}{extent}")
        # A work without a ratio is no gain and no loss; silence about the work would look like a gain.
        if lacking := len(works(results)) - len(spreads):
            parts.append(f"no ratio in {lacking}")
        beside = titles.get(REFERENCE_PEER, REFERENCE_PEER)
        sentences.append(
            f"CPU per message beside {beside}, in {len(works(results))} works: {name} needs " + ", ".join(parts) + "."
        )
    return sentences


def extent_of(ratios: Sequence[float]) -> str:
    """Return the range of ratios in words: "1.3 to 4.7 times"."""
    low, high = min(ratios), max(ratios)
    return f"{low:.2g} times" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g} times"


def gaps_told(results: Results) -> list[str]:
    """Return a sentence for each reason of missing figures: the peer, the reason, the works."""
    titles = {peer.name: peer.title for peer in results.peers}
    scenarios = {scenario.name: scenario.title for scenario in results.scenarios}
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for gap in results.gaps:
        name = peer_name(titles.get(gap.peer, gap.peer), gap.build)
        reason = f"failed: {gap.reason}" if gap.is_failure else gap.reason
        work = scenarios.get(gap.scenario, gap.scenario) + (f" at {gap.x:,.0f}" if gap.x else "")
        groups.setdefault((name, reason), {}).setdefault(work, []).append(gap.turn)
    sentences: list[str] = []
    for (name, reason), turns_by_work in groups.items():
        told = [f"{work}{_turns_words(turns)}" for work, turns in turns_by_work.items() if work]
        if len(told) > FEW_WORKS:
            told = [f"{len(told)} works"]
        sentences.append(f"{name}: {reason}" + (f" ({'; '.join(told)})" if told else ""))
    return sentences


def _turns_words(turns: Sequence[int]) -> str:
    listed = [str(turn) for turn in turns if turn]
    return f", turn{'s' * (len(listed) > 1)} {', '.join(listed)}" if listed else ""


def remarks(results: Results) -> list[str]:
    """Return the different remarks of rows, with the names of the peers."""
    titles = {peer.name: peer.title for peer in results.peers}
    return list(dict.fromkeys(f"{titles.get(row.peer, row.peer)}: {row.remark}" for row in results.rows if row.remark))


def disturbed_share(results: Results) -> float:
    """Return the share of the rows beside which other programs used the machine."""
    return sum(row.is_disturbed for row in results.rows) / max(len(results.rows), 1)
