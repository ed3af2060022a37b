"""The table of a run: medians with their spread, and ratios to Redis Streams (always) in the same turns."""

from collections.abc import Callable, Iterable, Sequence

from cmqd_bench.figures.results import REFERENCE_PEER, Point, Results, Row, Spread, points, ratio, without_figure

COLUMNS = ("peer", "messages/s", "CPU us", "low-high", "x Redis", "low-high", "p50 ms", "x Redis", "p99 ms", "load us")
REFERENCE_SPREAD = 1.3
"""A row in which the reference varies by more is to be repeated."""


def reference_variation(rows: Iterable[Row]) -> float:
    """Return the largest CPU of the reference peer over the smallest, in rows of one work; 1 without the peer."""
    costs = [row.cpu_us for row in rows if row.peer == REFERENCE_PEER]
    return max(costs) / min(costs) if costs and min(costs) else 1.0


def _cpu(row: Row) -> float:
    return row.cpu_us


def _p50(row: Row) -> float | None:
    return row.p50_ms


def _figure(spread: Spread | None, form: str = ",.2f") -> str:
    return "-" if spread is None else format(spread.median, form)


def _range(spread: Spread | None, form: str = ",.1f") -> str:
    return "-" if spread is None else f"{spread.low:{form}}-{spread.high:{form}}"


def _cells(point: Point, reference: Point | None) -> list[str]:
    def against(figure: Callable[[Row], float | None]) -> Spread | None:
        return None if reference is None else ratio(point, reference, figure)

    cpu, cpu_ratio = point.spread(_cpu), against(_cpu)
    name = point.peer if point.build in ("-", "pure") else f"{point.peer} ({point.build})"
    return [
        name + (" *" if point.is_disturbed else ""),
        _figure(point.spread(lambda row: row.rate), ",.0f"),
        _figure(cpu),
        _range(cpu),
        _figure(cpu_ratio),
        _range(cpu_ratio, ".2f"),
        _figure(point.spread(_p50)),
        _figure(against(_p50)),
        _figure(point.spread(lambda row: row.p99_ms)),
        _figure(point.spread(lambda row: row.load_us)),
    ]


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def to_text(results: Results) -> str:
    """Return the table for a terminal: conditions, durability of the peers, then a part for each row."""
    facts = results.conditions
    text = [
        f"{facts.cpu}, {facts.cores} cores, Linux {facts.kernel}, {facts.file_system}; cmqd {facts.commit}, Python"
        f" {facts.python}; {facts.body} B, {facts.seconds:g} s, medians of {facts.turns} turns; load average"
        f" {facts.load_average} at the start",
        "",
    ]
    text += [f"{peer.name}: {peer.title} {peer.version}; {peer.durability}" for peer in results.peers]
    measured = points(results.rows)
    for scenario in results.scenarios:
        shown = [point for point in measured if point.scenario == scenario.name]
        missing = without_figure(results, scenario.name)
        if not shown and not missing:
            continue
        reference = next((point for point in shown if point.peer == REFERENCE_PEER), None)
        text += ["", f"{scenario.name}: {scenario.title}"]
        text += _lines([COLUMNS, *(_cells(point, reference) for point in shown)])
        variation = reference_variation(reference.rows if reference else ())
        if variation > REFERENCE_SPREAD:
            text.append(
                f"{REFERENCE_PEER} varies by {variation:.2f}x, by more than {REFERENCE_SPREAD}: repeat this row"
            )
        own = (row for row in results.rows if row.scenario == scenario.name and row.remark)
        text += dict.fromkeys(f"{row.peer}: {row.remark}" for row in own)
        text += [f"{peer} ({build}): no figure: {reason}" for peer, build, reason in missing]
    notes = [f"{gap.peer}: no figure: {gap.reason}" for gap in results.gaps if not gap.scenario]
    notes += [
        f"{gap.scenario}, turn {gap.turn}: {gap.peer} ({gap.build}) failed: {gap.reason}"
        for gap in results.gaps
        if gap.is_failure and gap.turn
    ]
    if notes:
        text += ["", *notes]
    if any(point.is_disturbed for point in measured):
        text += ["", "* other programs used the machine in at least half of the turns"]
    return "\n".join(text)
