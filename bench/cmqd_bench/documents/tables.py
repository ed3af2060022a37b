"""Tables of figures in Markdown."""

from collections.abc import Mapping, Sequence

from cmqd_bench.documents.findings import compared, is_overload, name_of, peer_name, works
from cmqd_bench.figures.results import Point, Results, Scenario, Spread, is_overloaded, points

MISSING, FAILED = "-", "failed"
DISTURBED = "*"
"""Marks rows beside which other programs used the machine."""


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heads and rows; the first column is text, the others are figures."""


def titles(results: Results) -> Mapping[str, str]:
    """Return the name for readers by the name of a peer with its build."""
    listed = {peer.name: peer.title for peer in results.peers}
    by_name: dict[str, str] = {}
    for point in points(results.rows):
        title, name = listed.get(point.peer, point.peer), name_of(point)
        by_name[name] = title if name == point.peer else f"{title} ({point.build})"
    return by_name


def bytes_text(value: float) -> str:
    """Return a size in binary units."""
    for unit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {suffix}"
    return f"{value:.0f} B"


def number(value: float) -> str:
    """Return a figure with three significant digits, and with separators of thousands."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def figure(spread: Spread | None) -> str:
    """Return the median."""
    return MISSING if spread is None else number(spread.median)


def extent(spread: Spread | None) -> str:
    """Return the median with the spread of the turns."""
    if spread is None:
        return MISSING
    if spread.turns == 1:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)}-{number(spread.high)})"


def times(spread: Spread | None) -> str:
    """Return a ratio as "2.3x"."""
    if spread is None:
        return MISSING
    text = f"{spread.median:.2f}x"
    return f"{text} ({spread.low:.2f}-{spread.high:.2f})" if spread.turns > 1 else text


def turns_text(results: Results) -> str:
    """Return the repetition of a run in words."""
    told = results.conditions
    return (
        f"medians of {told.turns} turns of {told.seconds:g} s" if told.turns > 1 else f"one turn of {told.seconds:g} s"
    )


def mark(scenario: Scenario, *shown: Point) -> str:
    """Return the marks of a row: other programs used the machine, or the offered rate was not reached."""
    disturbed = f" {DISTURBED}" if any(point.is_disturbed for point in shown) else ""
    return disturbed + (" (overload)" if any(is_overload(scenario, point) for point in shown) else "")


def overview_table(results: Results) -> Table:
    """Return the table of all works: CPU per message of each peer, and cmqd's ratio to the reference."""
    names = titles(results)
    by_work = {scenario.name: compared(results, scenario) for scenario in works(results)}
    shown = list(dict.fromkeys(each.name for group in by_work.values() for each in group))
    heads = ["work", "cmqd / Redis", *(names[name] for name in shown)]
    rows: list[list[str]] = []
    for scenario in works(results):
        by_name = {each.name: each for each in by_work[scenario.name]}
        if not by_name:
            continue
        failed = {
            peer_name(gap.peer, gap.build) for gap in results.gaps if gap.is_failure and gap.scenario == scenario.name
        }
        own = by_name.get("cmqd")
        cells = [
            scenario.title + mark(scenario, *(each.point for each in by_name.values())),
            times(own.cpu_ratio if own else None),
        ]
        for name in shown:
            missing = FAILED if name in failed else MISSING
            cells.append(figure(by_name[name].cpu_us) if name in by_name else missing)
        rows.append(cells)
    return heads, rows


def step_text(scenario: Scenario, x: float) -> str:
    """Return a step of a curve in the unit of its scenario."""
    return bytes_text(x) if scenario.x.startswith("bytes") else f"{x:,.0f}"


def curve_table(scenario: Scenario, own: Sequence[Point]) -> Table:
    """Return the table of a curve: a row per step and peer."""
    several = len({name_of(point) for point in own}) > 1
    heads = [scenario.x or "x", *(["peer"] if several else [])]
    heads += [
        "copies/s" if scenario.item == "copy" else f"{scenario.item}s/s",
        f"CPU µs/{scenario.item}",
        "p50 ms",
        "p90 ms",
        "p99 ms",
    ]
    heads += ["p99.9 ms", "memory MiB"]
    rows = [
        [
            (
                step_text(scenario, point.x)
                + (f" {DISTURBED}" if point.is_disturbed else "")
                + (" overload" if is_overloaded(scenario, point) else "")
            ),
            *([name_of(point)] if several else []),
            figure(point.spread(lambda row: row.rate)),
            extent(point.spread(lambda row: row.cpu_us)),
            figure(point.spread(lambda row: row.p50_ms)),
            figure(point.spread(lambda row: row.p90_ms)),
            figure(point.spread(lambda row: row.p99_ms)),
            figure(point.spread(lambda row: row.p999_ms)),
            figure(point.spread(lambda row: row.rss_mib)),
        ]
        for point in sorted(own, key=lambda each: each.x)
    ]
    return heads, rows


def markdown(table: Table) -> str:
    """Return a table in Markdown; figures stand at the right."""
    heads, rows = table
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
