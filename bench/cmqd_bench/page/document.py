"""The page: HTML that needs nothing from elsewhere. Plots are inline SVG, the data is in the page, without a script.

Order: the conditions, because a figure without conditions is meaningless; the comparison with the reference, losses as
visible as gains; each work; the curves; the peers; the data.
"""

import base64
from collections.abc import Sequence
from html import escape
from statistics import median

from cmqd_bench.curves.cliffs import judgement
from cmqd_bench.page.findings import RATE, compared, disturbed_share, gaps_told, remarks, summary, works
from cmqd_bench.page.plots import Plot, colours, curve_plots, open_loop, ratios, titles
from cmqd_bench.page.svg import COLOURS, DARK, LIGHT
from cmqd_bench.page.tables import Table, curve_table, figure, number, overview_table, peers_table, times, turns_text
from cmqd_bench.results import CMQD, REFERENCE_PEER, Results, Scenario, to_json

FAR_ABOVE, CUT = 8.0, "▸"
"""A bar above so many times the median is cut, and marked."""
MANY_DISTURBED = 0.2
"""Above this share of disturbed rows the page warns at the top."""


def _variables(theme: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in theme.items())


_THEMES = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}--wash:#f5f7f9}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}--wash:#1b212a}}}}
"""
_LAYOUT = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 64px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .3rem}
h2{font-size:1.25rem;margin:3rem 0 .4rem;padding-top:1.2rem;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:0 0 .1rem}
p{margin:.3rem 0 .8rem;max-width:70ch}
.muted,figcaption,.note{color:var(--muted);font-size:.9rem}
.lead{font-size:1.1rem}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:1rem 0 0}
a{color:var(--c0)}
.warning{border-left:4px solid var(--bad);background:var(--wash);padding:.6rem .9rem;margin:1rem 0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,200px),1fr));gap:.7rem 1.2rem;margin:1.2rem 0;
 padding:1rem;background:var(--wash);border-radius:8px}
.facts dt{color:var(--muted);font-size:.8rem}
.facts dd{margin:0;overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:2rem 2rem;margin-top:1rem}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:auto;margin-top:.3rem}
.wide svg{max-width:760px}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;margin:.3rem 0;padding:0;list-style:none;font-size:.88rem}
.legend i{display:inline-block;width:.75em;height:.75em;border-radius:50%;margin-right:.4em}
.bars{display:grid;grid-template-columns:minmax(0,1fr);gap:.45rem;margin:.5rem 0}
.bar .text{display:flex;justify-content:space-between;gap:1rem;font-size:.88rem;line-height:1.35}
.bar .text b{font-variant-numeric:tabular-nums;white-space:nowrap}
.bar .track{height:9px;background:var(--wash);border-radius:5px;overflow:hidden}
.bar .track i{display:block;height:100%;border-radius:5px}
.verdict{font-weight:600}
.ahead{color:var(--good)}.behind{color:var(--bad)}.even{color:var(--muted)}
details{margin:.5rem 0 0}
summary{cursor:pointer;color:var(--c0);font-size:.9rem;padding:.3rem 0}
.scroll{overflow-x:auto;margin:.5rem 0;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums;min-width:100%}
th,td{padding:.38rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--muted);font-weight:600;vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0}
.overview th:first-child,.overview td:first-child{white-space:normal;min-width:11rem}
.overview th{white-space:normal;min-width:5.5rem}
section.work{margin:2.2rem 0}
ul.plain{padding-left:1.1rem;margin:.4rem 0}
@media (max-width:520px){
 .facts{grid-template-columns:1fr 1fr}
 main{padding:20px 14px 48px}h1{font-size:1.4rem}th,td{padding:.35rem .5rem}}
@media print{details>*{display:block}}
"""


STYLE = _THEMES + _LAYOUT


def _table(table: Table, kind: str = "") -> str:
    heads, rows = table
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{cell.standing}">{escape(cell.text)}</td>'
            if cell.standing
            else f"<td>{escape(cell.text)}</td>"
            for cell in row
        )
        + "</tr>"
        for row in rows
    )
    # Focusable, so that the keyboard can scroll a table that is wider than the screen.
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="table"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _folded(title: str, table: Table) -> str:
    return f"<details><summary>{escape(title)}</summary>{_table(table)}</details>"


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    if not entries:
        return ""
    items = "".join(
        f'<li><i style="background:var(--c{colour % COLOURS})"></i>{escape(name)}</li>' for name, colour in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _facts(results: Results) -> str:
    told = results.conditions
    entries = [
        ("measured", told.started.replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC")),
        ("commit of cmqd", told.commit or "unknown"),
        ("processor", f"{told.cpu}, {told.cores} cores, shared by brokers and load"),
        ("system", f"Linux {told.kernel}, Python {told.python}, SQLite {told.sqlite}"),
        ("disk", f"{told.file_system} on {told.device}"),
        ("load", f"{told.load}; {told.body}-byte bodies; loopback"),
        ("repetition", turns_text(results) + (", with the lowest and the highest" if told.turns > 1 else "")),
        ("load average before", number(told.load_average)),
    ]
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in entries)
    return f'<dl class="facts">{items}</dl>'


def _warning(results: Results) -> str:
    share = disturbed_share(results)
    if share <= MANY_DISTURBED:
        return ""
    return (
        f'<p class="warning"><b>Other programs used the machine</b> beside {share:.0%} of the measurements'
        " (rows with *, hollow dots). Their figures are worse than on a quiet machine; ratios of the same turn suffer"
        " less.</p>"
    )


def _bar_list(caption: str, bars: Sequence[tuple[str, str, float, int]], *, cuts: bool = True) -> str:
    """Return bars: name, figure, value and colour of each.

    With ``cuts`` a bar far above the others is cut, and says so: at the scale of a test double's cost all brokers would
    look the same.
    """
    values = [value for _, _, value, _ in bars]
    far = FAR_ABOVE * median(values) if values and cuts else float("inf")
    highest = max((value for value in values if value <= far), default=0.0) or 1.0
    cut = [value > far for value in values]
    if any(cut):
        caption += f"; {CUT} = the bar is cut"
    bars = [
        (name, f"{shown} {CUT}" if is_cut else shown, min(value, highest), colour)
        for (name, shown, value, colour), is_cut in zip(bars, cut, strict=True)
    ]
    items = "".join(
        f'<div class="bar"><div class="text"><span>{escape(name)}</span><b>{escape(shown)}</b></div>'
        f'<div class="track"><i style="width:{max(0.5, 100 * value / highest):.1f}%;'
        f'background:var(--c{colour % COLOURS})"></i></div></div>'
        for name, shown, value, colour in bars
    )
    return f'<figure><figcaption>{escape(caption)}</figcaption><div class="bars">{items}</div></figure>'


def _bars(results: Results, scenario: Scenario) -> str:
    """Return the bars of a work: rate and CPU; at a fixed rate, which all peers share, latency and CPU."""
    names, colour = titles(results), colours(results)
    entries = compared(results, scenario)
    if RATE.match(scenario.name):
        first = _bar_list(
            "median latency, shorter is better",
            [
                (names[each.name], f"{figure(each.p50)} ms", each.p50.median, colour[each.name])
                for each in entries
                if each.p50
            ],
        )
    else:
        first = _bar_list(
            "messages a second, longer is better",
            [(names[each.name], f"{figure(each.rate)}/s", each.rate.median, colour[each.name]) for each in entries],
            cuts=False,
        )
    second = _bar_list(
        "CPU per message, shorter is better",
        [(names[each.name], f"{figure(each.cpu_us)} µs", each.cpu_us.median, colour[each.name]) for each in entries],
    )
    return f'<div class="grid">{first}{second}</div>'


def _verdict(results: Results, scenario: Scenario) -> str:
    """Return a sentence per build of cmqd: its ratios to the reference, coloured as gain or loss."""
    names = titles(results)
    reference = names.get(REFERENCE_PEER, REFERENCE_PEER)
    sentences: list[str] = []
    for each in compared(results, scenario):
        if each.point.peer == CMQD and each.cpu_ratio is not None:
            parts: list[str] = []
            for spread, word in ((each.cpu_ratio, "CPU"), (each.p50_ratio, "median latency")):
                if spread is not None:
                    cell = times(spread)
                    parts.append(f'<span class="verdict {cell.standing}">{escape(cell.text)}</span> the {word}')
            sentences.append(f"{escape(names[each.name])}: {' and '.join(parts)} of {escape(reference)}.")
    return f"<p>{'<br>'.join(sentences)}</p>" if sentences else ""


def _work(results: Results, scenario: Scenario) -> str:
    return (
        f'<section class="work" id="{escape(scenario.name)}"><h3>{escape(scenario.title)}</h3>'
        f"{_verdict(results, scenario)}{_bars(results, scenario)}"
        f"{_folded('Figures: rate, CPU, latency percentiles', peers_table(results, scenario))}</section>"
    )


def _plot(plot: Plot, *, with_table: bool) -> str:
    table = _folded("Figures", curve_table(plot.scenario, plot.points)) if with_table else ""
    return (
        f"<figure><h3>{escape(plot.heading)}</h3><figcaption>{escape(plot.note)}</figcaption>"
        f"{_legend(plot.legend)}{plot.svg}{table}</figure>"
    )


def _plots(plots: Sequence[Plot]) -> str:
    """Return figures in a grid; the table of a curve stands under the first of its plots."""
    tabled: set[str] = set()
    parts: list[str] = []
    for plot in plots:
        parts.append(_plot(plot, with_table=plot.scenario.name not in tabled))
        tabled.add(plot.scenario.name)
    return f'<div class="grid">{"".join(parts)}</div>'


def _peers_part(results: Results, conditions: str) -> str:
    picture, _ = ratios(results)
    names, colour = titles(results), colours(results)
    legend = [(names[name], number) for name, number in colour.items() if name != REFERENCE_PEER]
    shown = [scenario for scenario in works(results) if compared(results, scenario)]
    parts = [
        f'<h2 id="peers">Beside other brokers</h2>{conditions}',
        *(f'<p class="lead">{escape(text)}</p>' for text in summary(results)),
        _warning(results),
    ]
    parts.append(
        '<p class="muted">The same load program drives every broker; brokers take turns row by row while the others'
        " stand still. CPU is user and system time of all processes of a broker. A ratio divides figures of the same"
        " turn.</p>"
    )
    if picture:
        reference = names.get(REFERENCE_PEER, REFERENCE_PEER)
        parts.append(
            f'<figure class="wide"><h3>CPU per message, as a multiple of {escape(reference)}</h3>'
            f"{_legend(legend)}{picture}</figure>"
        )
    parts.append(f"<h3>CPU per message, µs</h3>{_table(overview_table(results), 'overview')}")
    parts += [_work(results, scenario) for scenario in shown]
    if plots := open_loop(results):
        parts.append(f'<h2 id="rates">Latency over rate</h2>{_plots(plots)}')
    durability = "".join(
        f"<li><b>{escape(peer.title)}</b> {escape(peer.version)}: {escape(peer.durability)}</li>"
        for peer in results.peers
    )
    told = "".join(f"<li>{escape(remark)}</li>" for remark in remarks(results))
    parts.append(f'<h3>Versions and durability</h3><ul class="plain">{durability}{told}</ul>')
    parts.append(_listed("Figures that are missing", gaps_told(results)))
    return "".join(parts)


def _listed(heading: str, sentences: Sequence[str]) -> str:
    """Return a list with its heading; empty without sentences."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<h3>{heading}</h3><ul class="plain">{items}</ul>' if items else ""


def _curves_part(results: Results, conditions: str) -> str:
    judged = "".join(f"<li>{escape(sentence)}</li>" for sentence in judgement(results))
    gaps = _listed("Steps that were not measured", gaps_told(results))
    return (
        f'<h2 id="curves">Scale curves</h2>{conditions}'
        '<p class="muted">One quantity grows while the rest stays. A cliff is a step that costs more than 1.5 times the'
        " expected cost, or a climb to more than 2 times; a cliff is a defect.</p>"
        f'{_warning(results)}<ul class="plain">{judged}</ul>{_plots(curve_plots(results))}{gaps}'
    )


def _data(name: str, results: Results) -> str:
    encoded = base64.b64encode(to_json(results)).decode()
    return (
        f'<li><a download="{name}.json" href="data:application/json;base64,{encoded}">{name}.json</a>: each turn</li>'
    )


def page(files: Sequence[Results]) -> str:
    """Return the page for files of results: of peers, of curves, or both."""
    peers = [results for results in files if results.kind == "peers"]
    curves = [results for results in files if results.kind == "curves"]
    sections = [("peers", "Beside other brokers")] * bool(peers) + [("curves", "Scale curves")] * bool(curves)
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in [*sections, ("data", "Data")])
    parts: list[str] = []
    first = [*peers, *curves][0]
    for results in [*peers, *curves]:
        # The conditions of the first file are at the top of the page.
        conditions = "" if results is first else _facts(results)
        make = _peers_part if results.kind == "peers" else _curves_part
        parts.append(make(results, conditions))
    data = "".join(_data(results.kind, results) for results in files)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>cmqd: measurements of {escape(first.conditions.commit or 'a local build')}</title>"
        f"<style>{STYLE}</style></head><body><main>"
        "<h1>cmqd: measurements</h1>"
        '<p class="muted">A durable message broker beside others, and how its costs grow. An answered send is on disk'
        " unless a peer is marked otherwise.</p>"
        f"{_facts(first)}<nav>{links}</nav>{''.join(parts)}"
        '<h2 id="data">Data</h2><p>The page has no script and loads nothing. The measurements behind it:</p>'
        f'<ul class="plain">{data}</ul></main></body></html>\n'
    )
