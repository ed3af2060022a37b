"""The table of a run: medians with their spread, and ratios to Redis Streams (always) in the same turns."""

from collections.abc import Iterable, Sequence

from cmqd_bench.documents.findings import Comparison, compared, gaps_told, remarks
from cmqd_bench.documents.parts import conditions_text
from cmqd_bench.documents.tables import extent, figure, markdown, times
from cmqd_bench.figures.results import REFERENCE_PEER, Results, Row

COLUMNS = ("peer", "messages/s", "CPU us", "x Redis", "p50 ms", "x Redis", "p99 ms", "load us")
REFERENCE_SPREAD = 1.3
"""A row in which the reference varies by more is to be repeated."""


def reference_variation(rows: Iterable[Row]) -> float:
    """Return the largest CPU of the reference peer over the smallest, in rows of one work; 1 without the peer."""
    costs = [row.cpu_us for row in rows if row.peer == REFERENCE_PEER]
    return max(costs) / min(costs) if costs and min(costs) else 1.0


def _cells(each: Comparison) -> Sequence[str]:
    return [
        each.name + (" *" if each.point.is_disturbed else ""),
        figure(each.rate),
        extent(each.cpu_us),
        times(each.cpu_ratio),
        figure(each.p50),
        times(each.p50_ratio),
        figure(each.point.spread(lambda row: row.p99_ms)),
        figure(each.point.spread(lambda row: row.load_us)),
    ]


def to_text(results: Results) -> str:
    """Return the tables for a terminal: conditions, durability of the peers, then a part for each row."""
    text = [conditions_text(results)]
    text += [f"{peer.name}: {peer.title} {peer.version}; {peer.durability}" for peer in results.peers]
    for scenario in results.scenarios:
        shown = compared(results, scenario)
        if not shown:
            continue
        text += ["", f"{scenario.name}: {scenario.title}", markdown((COLUMNS, [_cells(each) for each in shown]))]
        variation = reference_variation(row for each in shown for row in each.point.rows)
        if variation > REFERENCE_SPREAD:
            text.append(
                f"{REFERENCE_PEER} varies by {variation:.2f}x, by more than {REFERENCE_SPREAD}: repeat this row"
            )
    return "\n".join([*text, "", *remarks(results), *gaps_told(results)])
