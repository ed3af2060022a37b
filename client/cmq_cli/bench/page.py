"""The page of a run: figures and curves in one HTML file that loads nothing."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from cmq_cli.bench.results import Result, Second, shown_options
from cmqd_load.hgrm import percentiles
from cmqd_load.histogram import Histogram

WIDTH, HEIGHT = 720, 220
LEFT, BOTTOM, TOP, RIGHT = 64, 28, 10, 10
TICKS = 4
MAX_POINTS = 1_000
"""Points of a curve; a longer run shows the largest value of neighbours."""
STYLE = """\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 780px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td { padding: 1px 1em 1px 0; vertical-align: top }
td + td { font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: currentColor }
.axis { stroke: currentColor; opacity: .25 } .curve { fill: none; stroke-width: 1.5 }
.c0 { stroke: #2a78d6; color: #2a78d6 } .c1 { stroke: #d6622a; color: #d6622a } .c2 { stroke: #8a8a8a; color: #8a8a8a }
.legend span { margin-right: 1.5em } .note { opacity: .7 }"""

Point = tuple[float, float]


def page(runs: Sequence[tuple[Result, Histogram]]) -> str:
    """Return the page of some runs; each has the histogram of its latencies, in microseconds."""
    title = "cmq bench: " + ", ".join(result.name for result, _ in runs)
    parts = [part for result, histogram in runs for part in _run(result, histogram)]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>\n{STYLE}\n</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _run(result: Result, histogram: Histogram) -> Iterable[str]:
    yield f"<h1>{escape(result.name)}</h1>"
    yield f'<p class="note">{escape(result.started)}; {escape(shown_options(result.options))}</p>'
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in result.pairs().items())
    yield f"<table>{rows}</table>"
    for warning in result.warnings():
        yield f"<p>{escape(warning)}</p>"
    seconds = result.by_second
    if len(seconds) > 1:
        rates = {"sent": _by_time(seconds, lambda each: each.sent)}
        if any(each.received for each in seconds):
            rates["received"] = _by_time(seconds, lambda each: each.received)
        yield "<h2>Messages a second</h2>" + _chart(rates, "s")
    if sum(each.p50_ms is not None for each in seconds) > 1:
        yield f"<h2>Latency by the second, ms ({escape(result.latency_of)})</h2>" + _chart(
            {
                "p50": _by_time(seconds, lambda each: each.p50_ms),
                "p99": _by_time(seconds, lambda each: each.p99_ms),
                "max": _by_time(seconds, lambda each: each.max_ms),
            },
            "s",
        )
    if histogram.count:
        # The last line of the table has no place on an axis of 1 / (1 - share).
        curve = [(-math.log10(1 - share), value / 1000) for value, share, _ in percentiles(histogram) if share < 1]
        curve.append((math.log10(histogram.count) if histogram.count > 1 else 1.0, histogram.maximum / 1000))
        yield "<h2>Latency by percentile, ms</h2>" + _chart({"latency": curve}, "", _percentile_label)


def _by_time(seconds: Sequence[Second], value: Callable[[Second], float | None]) -> list[Point]:
    """Return a curve over the time; of a long run the largest value of neighbours. A second without a value is left
    out.
    """
    points = [(second.at, each) for second in seconds if (each := value(second)) is not None]
    step = -(-len(points) // MAX_POINTS) or 1
    chunks = [points[start : start + step] for start in range(0, len(points), step)]
    return [(chunk[-1][0], max(each for _, each in chunk)) for chunk in chunks]


def _percentile_label(nines: float) -> str:
    return f"{100 * (1 - 10**-nines):.6g} %"


def _chart(curves: dict[str, list[Point]], unit: str, label: Callable[[float], str] | None = None) -> str:
    """Return curves over a common axis as SVG, with a legend."""
    points = [point for curve in curves.values() for point in curve]
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    high_y = _rounded_up(max(y for _, y in points))
    span = (high_x - low_x) or 1.0

    def at_x(x: float) -> float:
        return LEFT + (x - low_x) / span * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - y / high_y * (HEIGHT - BOTTOM - TOP)

    svg = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    # Percentiles have a tick at 0, 90, 99, 99.9 % ...
    ticks = list(range(int(high_x) + 1)) if label else [low_x + span * tick / TICKS for tick in range(TICKS + 1)]
    for x in ticks:
        anchor = "end" if at_x(x) > WIDTH - LEFT else "middle"
        shown = label(x) if label else f"{x:,.4g} {unit}"
        svg.append(f'<text x="{at_x(x):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(shown)}</text>')
    for tick in range(TICKS + 1):
        y = high_y * tick / TICKS
        svg.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>')
        svg.append(f'<text x="{LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:,.6g}</text>')
    for number, curve in enumerate(curves.values()):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in curve)
        svg.append(f'<polyline class="curve c{number}" points="{path}"/>')
    svg.append("</svg>")
    legend = "".join(f'<span class="c{number}">{escape(name)}</span>' for number, name in enumerate(curves))
    return "".join(svg) + f'<p class="legend">{legend}</p>'


def _rounded_up(value: float) -> float:
    """Return the next number of the form 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * (1 + 1e-9))
