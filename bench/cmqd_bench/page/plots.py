"""The choice of what is drawn from a file of results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cmqd_bench.page.findings import RATE, compared, is_variant, name_of, works
from cmqd_bench.page.svg import COLOURS, Dots, Line, line_plot, ratio_plot
from cmqd_bench.results import CMQD, REFERENCE_PEER, Point, Results, Row, Scenario, points

PERCENTILES = (("p50", "p50_ms"), ("p90", "p90_ms"), ("p99", "p99_ms"), ("p99.9", "p999_ms"))
PERCENTILE_COLOURS = (0, 3, 5, 8)
"""Without the colour of the reference peer."""
VARIANT_COLOURS = (9, 5)
MIN_LINE = 2
"""Points of a line."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with its words, and the points that its table lists."""

    name: str
    heading: str
    note: str
    svg: str
    scenario: Scenario
    points: Sequence[Point]
    legend: Sequence[tuple[str, int]] = ()


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


def _line(name: str, colour: int, own: Sequence[Point], field: str, *, is_dashed: bool = False) -> Line:
    def figure(row: Row) -> float | None:
        # A percentile of 0 is below the resolution of the clock, and has no place on a logarithmic axis.
        return getattr(row, field) or None

    values = [(point.x, spread) for point in sorted(own, key=lambda each: each.x) if (spread := point.spread(figure))]
    disturbed = frozenset(point.x for point in own if point.is_disturbed)
    return Line(name, colour, values, is_dashed, disturbed)


def curve_plots(results: Results) -> list[Plot]:
    """Return two plots per curve of a file: CPU per item, and latency."""
    plots: list[Plot] = []
    colour = colours(results)
    for scenario in results.scenarios:
        own = [point for point in points(results.rows) if point.scenario == scenario.name]
        if not scenario.is_curve or len({point.x for point in own}) < MIN_LINE:
            continue
        by_name: dict[str, list[Point]] = {}
        for point in own:
            by_name.setdefault(name_of(point), []).append(point)
        cpu = [_line(name, colour[name], group, "cpu_us") for name, group in by_name.items()]
        svg = _cpu_plot(scenario, cpu)
        legend = [(name, colour[name]) for name in by_name] if len(by_name) > 1 else []
        if svg:
            plots.append(
                Plot(f"{scenario.name}-cpu", f"CPU by {scenario.x}", scenario.title, svg, scenario, own, legend)
            )
        if latency := latency_plot(scenario, by_name.get(CMQD, [])):
            plots.append(latency)
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


def latency_plot(scenario: Scenario, own: Sequence[Point], name: str = CMQD) -> Plot | None:
    """Return the plot of the latency percentiles of a peer over x; None without latencies at two steps."""
    lines = [
        _line(label, colour, own, field) for colour, (label, field) in zip(PERCENTILE_COLOURS, PERCENTILES, strict=True)
    ]
    lines = [line for line in lines if len(line.values) >= MIN_LINE]
    if not lines:
        return None
    svg = line_plot(
        f"{scenario.title}: latency",
        lines,
        x_label=scenario.x,
        y_label="latency, ms",
        is_log_x=scenario.is_log_x,
        is_log_y=True,
        x_text="bytes" if scenario.x.startswith("bytes") else "number",
    )
    legend = [(line.name, line.colour) for line in lines]
    heading = f"Latency by {scenario.x}"
    return Plot(f"{scenario.name}-latency", heading, f"{scenario.title}; {name}", svg, scenario, own, legend)


def open_loop(results: Results) -> list[Plot]:
    """Return the plots of the works of an open loop, over their rates: median and 99th percentile by peer."""
    moved = [
        Point(scenario="rate", peer=point.peer, build=point.build, x=float(match[1]), rows=point.rows)
        for point in points(results.rows)
        if (match := RATE.match(point.scenario))
    ]
    if len({point.x for point in moved}) < MIN_LINE:
        return []
    scenario = Scenario(name="rate", title="end to end at a fixed rate", x="messages a second", is_log_x=True)
    colour, names = colours(results), titles(results)
    plots: list[Plot] = []
    for label, field in (PERCENTILES[0], PERCENTILES[2]):
        by_name: dict[str, list[Point]] = {}
        for point in moved:
            by_name.setdefault(name_of(point), []).append(point)
        lines = [_line(names[name], colour[name], own, field) for name, own in by_name.items()]
        lines = [line for line in lines if len(line.values) >= MIN_LINE]
        if lines:
            svg = line_plot(
                f"{scenario.title}: {label}",
                lines,
                x_label=scenario.x,
                y_label=f"{label}, ms",
                is_log_x=True,
                is_log_y=True,
            )
            legend = [(line.name, line.colour) for line in lines]
            plots.append(Plot(f"open-{label}", f"{label} by rate", scenario.title, svg, scenario, moved, legend))
    return plots
