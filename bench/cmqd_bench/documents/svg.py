"""Plots as SVG text: an axis, lines with their spread, and dots on a scale of ratios.

A plot names its colours as CSS variables; ``standalone`` joins plots into a file for documents and puts in the colours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from cmqd_bench.figures.results import Spread

WIDTH, HEIGHT = 480, 290
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 48
FONT = 13.5

PALETTE = {
    "ink": "#1c2430",
    "muted": "#5b6675",
    "grid": "#e3e7ec",
    "paper": "#ffffff",
    "good": "#1a7f4b",
    "bad": "#b3261e",
    "c0": "#1f5fbf",
    "c1": "#c8501e",
    "c2": "#8a5a00",
    "c3": "#0b7285",
    "c4": "#9c36b5",
    "c5": "#5f3dc4",
    "c6": "#2b8a3e",
    "c7": "#6b7280",
    "c8": "#b0246a",
    "c9": "#4d9de0",
}
COLOURS = 10
MANY_TICKS = 8


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: (x, value with its spread) in rising order of x."""

    name: str
    colour: int
    values: Sequence[tuple[float, Spread]]
    disturbed: frozenset[float] = frozenset()
    """The x at which other programs used the machine: these dots are hollow."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: Sequence[float] = field(default=())

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.is_log:
            value, low, high = math.log10(value), math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def short(value: float) -> str:
    """Return a number for an axis or a table cell: three digits, with k and M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit * 0.9995:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def bytes_text(value: float) -> str:
    """Return a size in binary units."""
    for unit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {suffix}"
    return f"{value:.0f} B"


def linear_ticks(high: float, count: int = 5) -> list[float]:
    """Return round values from 0 to at least ``high``."""
    rough = high / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten that enclose a range; only the powers if the range is wide."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1.0,) if last - first > 2 else (1.0, 2.0, 5.0)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    below = [tick for tick in ticks if tick <= low * 1.0001][-1:]
    above = [tick for tick in ticks if tick >= high * 0.9999][:1]
    within = [tick for tick in ticks if low * 1.0001 < tick < high * 0.9999]
    return sorted({*below, *within, *above})


def _text(x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "muted", **further: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in further.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="var(--{kind})"{more}>{escape(text)}</text>'


def _horizontal(x_ticks: Sequence[float], *, is_log: bool) -> tuple[Axis, float]:
    """Return the axis of x, and the value that stands for 0, which a logarithmic axis lacks."""
    positive = [tick for tick in x_ticks if tick > 0]
    zero = positive[0] / 10 if is_log and positive and x_ticks[0] == 0 else 0.0
    low = zero or (x_ticks[0] if x_ticks else 0.0)
    return Axis(low, x_ticks[-1], LEFT + 12, WIDTH - RIGHT - 12, is_log, x_ticks), zero


def line_plot(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    is_log_x: bool,
    is_log_y: bool,
    x_text: str = "number",
) -> str:
    """Return a plot of lines; all lines must have values above 0 if ``is_log_y``."""
    x_values = sorted({x for line in lines for x, _ in line.values})
    spreads = [spread for line in lines for _, spread in line.values]
    x_axis, zero = _horizontal(x_values, is_log=is_log_x)
    top, low = max(each.high for each in spreads), min(each.low for each in spreads)
    ticks = log_ticks(low, top) if is_log_y else linear_ticks(top)
    y_axis = Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, is_log_y, ticks)
    parts = [_open(title, WIDTH, HEIGHT)]
    for tick in ticks:
        y = y_axis.at(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="var(--grid)"/>')
        parts.append(_text(LEFT - 7, y + 4, short(tick), anchor="end"))
    last = -1e9
    for tick in x_values:
        x = x_axis.at(tick or zero or tick)
        shown = bytes_text(tick) if x_text == "bytes" else short(tick)
        if x - last >= 9 * len(shown):
            parts.append(_text(x, HEIGHT - BOTTOM + 18, shown))
            last = x
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label))
    parts.append(
        _text(13, (TOP + HEIGHT - BOTTOM) / 2, y_label, transform=f"rotate(-90 13 {(TOP + HEIGHT - BOTTOM) / 2})")
    )
    # The first line is drawn last, above the others.
    for line in reversed(lines):
        parts += _draw(line, x_axis, y_axis, zero, x_values)
    return "".join([*parts, "</svg>"])


def _draw(line: Line, x_axis: Axis, y_axis: Axis, zero: float, steps: Sequence[float]) -> list[str]:
    """Return the parts of a line. A line breaks at a step without a value, so that no slope stands for a figure."""
    colour = f"var(--c{line.colour % COLOURS})"
    dots = [(x_axis.at(x or zero or x), y_axis.at(spread.median), x, spread) for x, spread in line.values]
    path, last = "", -1
    for x, y, value, _ in dots:
        step = steps.index(value)
        path += f"{'L' if path and step == last + 1 else 'M'}{x:.1f} {y:.1f}"
        last = step
    parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"/>']
    for x, y, value, spread in dots:
        if spread.high > spread.low:
            low, high = y_axis.at(spread.low), y_axis.at(spread.high)
            parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" stroke-width="1.2"/>')
        fill = "var(--paper)" if value in line.disturbed else colour
        told = f"{line.name}: {short(spread.median)} at {short(value)}"
        told += f" ({short(spread.low)} to {short(spread.high)})" if spread.turns > 1 else ""
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{fill}" stroke="{colour}" stroke-width="1.6">'
            f"<title>{escape(told)}</title></circle>"
        )
    return parts


@dataclass(frozen=True, slots=True)
class Dots:
    """A row of a plot of ratios: a work, and a ratio per peer."""

    label: str
    ratios: Sequence[tuple[str, int, Spread]]
    """Name, colour and ratio."""


def ratio_plot(title: str, rows: Sequence[Dots], *, low_label: str, high_label: str) -> str:
    """Return a plot of ratios: a row per work, a logarithmic scale, and a line at 1, the reference.

    Labels stand above their rows, so that the plot stays legible on a narrow screen.
    """
    row_height, top, bottom = 40, 30, 34
    height = top + row_height * len(rows) + bottom
    values = [spread.median for row in rows for _, _, spread in row.ratios] or [1.0]
    low, high = min(0.5, *values) / 1.12, max(2.0, *values) * 1.12
    ticks = [tick for power in range(-4, 5) for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > MANY_TICKS:
        ticks = [tick for tick in ticks if math.log10(tick).is_integer()]
    axis = Axis(low, high, 14, WIDTH - 14, True, ticks)
    parts = [_open(title, WIDTH, height)]
    for tick in ticks:
        x, stroke = axis.at(tick), "var(--muted)" if tick == 1 else "var(--grid)"
        parts.append(f'<path d="M{x:.1f} {top - 6}V{height - bottom + 4}" stroke="{stroke}"/>')
        parts.append(_text(x, height - bottom + 20, f"{tick:g}x"))
    parts.append(_text(axis.at(1) - 8, 14, f"◂ {low_label}", anchor="end", kind="good"))
    parts.append(_text(axis.at(1) + 8, 14, f"{high_label} ▸", anchor="start", kind="bad"))
    for index, row in enumerate(rows):
        y = top + index * row_height
        parts.append(
            f'<rect x="12" y="{y - 2}" width="{len(row.label) * 7.6 + 6:.0f}" height="15" fill="var(--paper)"/>'
        )
        parts.append(_text(14, y + 10, row.label, anchor="start", kind="ink"))
        middle = y + 26
        parts.append(f'<path d="M14 {middle}H{WIDTH - 14}" stroke="var(--grid)"/>')
        # The first peer is drawn last, above the others.
        for name, colour, spread in reversed(row.ratios):
            x, paint = axis.at(spread.median), f"var(--c{colour % COLOURS})"
            told = f"{name}, {row.label}: {spread.median:.2f} times ({spread.low:.2f} to {spread.high:.2f})"
            start, end = axis.at(max(spread.low, low)), axis.at(min(spread.high, high))
            parts.append(f'<path d="M{start:.1f} {middle}H{end:.1f}" stroke="{paint}" stroke-width="2"/>')
            parts.append(
                f'<circle cx="{x:.1f}" cy="{middle}" r="{6 if colour == 0 else 4.5}" fill="{paint}"'
                f' stroke="var(--paper)" stroke-width="1.2"><title>{escape(told)}</title></circle>'
            )
    return "".join([*parts, "</svg>"])


def _open(title: str, width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="{FONT}"'
        f' font-family="system-ui, sans-serif"><title>{escape(title)}</title>'
    )


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot with its heading in a standalone file."""

    heading: str
    svg: str
    height: int = HEIGHT


def standalone(title: str, panels: Sequence[Panel], legend: Sequence[tuple[str, int]], columns: int = 2) -> str:
    """Return several plots as one file for documents, on white paper: an image does not know the theme of its page."""
    head, gap, line = 30.0, 26.0, 18.0
    entry_widths = [34 + 7.6 * len(name) for name, _ in legend]
    width = columns * WIDTH + 24
    parts: list[str] = []
    x, y = 14.0, 52.0
    for (name, colour), entry in zip(legend, entry_widths, strict=True):
        if x + entry > width - 10:
            x, y = 14.0, y + line
        parts.append(f'<circle cx="{x + 5}" cy="{y - 4}" r="5" fill="var(--c{colour % COLOURS})"/>')
        parts.append(_text(x + 15, y, name, anchor="start", kind="ink"))
        x += entry
    y += gap if legend else 0
    for start in range(0, len(panels), columns):
        row = panels[start : start + columns]
        for column, panel in enumerate(row):
            left = 12 + column * WIDTH
            if panel.heading:
                parts.append(_text(left + 8, y + 4, panel.heading, anchor="start", kind="ink", font_weight="600"))
            placed = panel.svg.replace(
                "<svg ", f'<svg x="{left}" y="{y + 12}" width="{WIDTH}" height="{panel.height}" ', 1
            )
            parts.append(placed)
        y += max(panel.height for panel in row) + head
    # A long title becomes smaller: a glyph is some 0.6 of its size wide.
    size = min(15.0, (width - 28) / (0.6 * len(title)))
    body = "\n".join(parts)
    ink = PALETTE["ink"]
    for name, value in PALETTE.items():
        body = body.replace(f"var(--{name})", value)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y:.0f}" width="{width}" height="{y:.0f}"'
        f' font-family="sans-serif" font-size="{FONT}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{width}" height="{y:.0f}" fill="#ffffff"/>\n'
        f'<text x="14" y="26" font-size="{size:.1f}" font-weight="bold" fill="{ink}">{escape(title)}</text>\n'
        f"{body}\n</svg>\n"
    )
