"""The choice of what is drawn from a file of results."""

from collections.abc import Mapping, Sequence

from cmqd_bench.documents.findings import compared, is_variant, name_of, works
from cmqd_bench.documents.svg import COLOURS, Dots, Line, Panel, line_plot, ratio_plot
from cmqd_bench.figures.results import CMQD, REFERENCE_PEER, Point, Results, Scenario, points

VARIANT_COLOURS = (9, 5)
MIN_LINE = 2
"""Points of a line."""


def colours(results: Results) -> Mapping[str, int]:
    """Return a colour number by name: cmqd has the first, the reference peer the second."""
    names = list(dict.fromkeys(name_of(point) for point in points(results.rows)))
    order = {CMQD: 0, REFERENCE_PEER: 2}
    names.sort(key=lambda name: 1 if is_variant(name) else order.get(name, 3))
    own = {CMQD: 0, REFERENCE_PEER: 1}
    # Other builds and uses of cmqd have shades of cmqd's colour.
    own.update(zip((name for name in names if is_variant(name)), VARIANT_COLOURS, strict=False))
    free = (number for number in range(2, 1000) if number % COLOURS not in own.values())
    return {name: own[name] if name in own else next(free) for name in names}


def titles(results: Results) -> Mapping[str, str]:
    """Return the name for readers by the name in plots."""
    listed = {peer.name: peer.title for peer in results.peers}
    by_name: dict[str, str] = {}
    for point in points(results.rows):
        title, name = listed.get(point.peer, point.peer), name_of(point)
        by_name[name] = title if name == point.peer else f"{title} ({point.build})"
    return by_name


def ratios(results: Results) -> tuple[str, list[Dots]]:
    """Return the plot of CPU ratios to the reference, and its rows; empty without a reference."""
    colour = colours(results)
    rows = [
        Dots(
            scenario.title,
            [(each.name, colour[each.name], each.cpu_ratio) for each in compared(results, scenario) if each.cpu_ratio],
        )
        for scenario in works(results)
    ]
    rows = [row for row in rows if row.ratios]
    if not rows:
        return "", []
    return ratio_plot(
        "CPU per message over that of the reference", rows, low_label="less CPU", high_label="more CPU"
    ), rows


def _line(name: str, colour: int, own: Sequence[Point]) -> Line:
    values = [(point.x, spread) for point in sorted(own, key=_x) if (spread := point.spread(lambda row: row.cpu_us))]
    disturbed = frozenset(point.x for point in own if point.is_disturbed)
    return Line(name, colour, values, disturbed)


def _x(point: Point) -> float:
    return point.x


def curve_plots(results: Results) -> list[Panel]:
    """Return a plot per curve of a file: CPU per item."""
    plots: list[Panel] = []
    colour = colours(results)
    for scenario in results.scenarios:
        own = [point for point in points(results.rows) if point.scenario == scenario.name]
        if not scenario.is_curve or len({point.x for point in own}) < MIN_LINE:
            continue
        by_name: dict[str, list[Point]] = {}
        for point in own:
            by_name.setdefault(name_of(point), []).append(point)
        if svg := _cpu_plot(scenario, [_line(name, colour[name], group) for name, group in by_name.items()]):
            plots.append(Panel(f"CPU by {scenario.x}", svg))
    return plots


def _cpu_plot(scenario: Scenario, lines: Sequence[Line]) -> str:
    lines = [line for line in lines if len(line.values) >= MIN_LINE]
    if not lines:
        return ""
    medians = [spread.median for line in lines for _, spread in line.values]
    return line_plot(
        f"{scenario.title}: CPU per {scenario.item}",
        lines,
        x_label=scenario.x,
        y_label=f"CPU, µs per {scenario.item}",
        is_log_x=scenario.is_log_x,
        # A falling or growing cost spans decades; a flat cost is legible from 0.
        is_log_y=max(medians) > 5 * min(medians),
        x_text="bytes" if scenario.x.startswith("bytes") else "number",
    )
