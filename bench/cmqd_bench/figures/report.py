"""The report of a run: a JSON object with fixed keys, or a table for people; both include the conditions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from cmqd_bench.commands.options import SCENARIOS, Options
from cmqd_bench.figures.measure import summary

Figures = Mapping[str, Any]
LOAD_HEADS = {
    "requests_per_second": "requests/s",
    "http_cpu_us": "gateway us",
    "broker_cpu_us": "broker us",
    "load_cpu_us": "load us",
    "http_cores": "cores",
    "foreign_cores": "foreign",
}
"""Heads of the table of HTTP loads: CPU per request, cores of the HTTP servers and of other programs."""
NOT_SHOWN = frozenset(
    {
        *("scenario", "durability", "conditions", "options", "rounds", "loads"),
        *("flood_rss_mib", "open_ratios", "gateway_rss_mib"),
    }
)


def report(options: Options, rounds: Sequence[Figures], conditions: Figures) -> dict[str, Any]:
    """Return the JSON object of a run. Keys for callers are at the top level; ``rounds`` has the figures by round."""
    merged = summary(rounds)
    used = {*SCENARIOS[options.scenario][1], "body", "durability"}
    return {
        "scenario": options.scenario,
        "messages_per_second": merged.pop("messages_per_second"),
        "server_cpu_us_per_message": merged.pop("server_cpu_us_per_message"),
        "client_cpu_us_per_message": merged.pop("client_cpu_us_per_message"),
        "latency_ms": merged.pop("latency_ms"),
        "server_rss_mib": merged.pop("server_rss_mib"),
        "durability": options.durability,
        **merged,
        "options": {name: value for name, value in asdict(options).items() if name in used},
        "conditions": dict(conditions),
        "rounds": list(rounds),
    }


def to_json(result: Figures) -> str:
    """Return the text that is printed with ``--json``."""
    return json.dumps(result, indent=2)


def _line(name: str, value: object) -> str:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        shown = f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
    else:
        shown = str(value)
    return f"  {name.replace('_', ' '):<36} {shown:>14}"


def outline(figures: Figures, indent: str = "") -> list[str]:
    """Return figures as lines of text, those of a part below its name; the figures by round are left out."""
    lines: list[str] = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            lines += [f"  {indent}{name.replace('_', ' ')}", *outline(cast("Figures", value), f"{indent}  ")]
        elif name != "rounds":
            lines.append(indent + _line(name, value))
    return lines


def _loads(loads: Mapping[str, Figures]) -> list[str]:
    """Return the table of HTTP loads, a line per load."""
    lines = ["", f"  {'HTTP load':<24}" + "".join(f"{head:>12}" for head in LOAD_HEADS.values())]
    for name, figures in loads.items():
        lines.append(f"  {name.replace('_', ' '):<24}" + "".join(f"{figures[key]:>12,}" for key in LOAD_HEADS))
    return lines


def to_text(result: Figures) -> str:
    """Return the text that is printed without ``--json``: figures, a line per round, then the conditions."""
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result["options"].items())
    lines = [f"{result['scenario']}: {told}", ""]
    lines += outline({name: value for name, value in result.items() if name not in NOT_SHOWN})
    if "loads" in result:
        lines += _loads(result["loads"])
    lines += ["", "  round   messages/s   server us   client us    p50 ms    p99 ms   RSS MiB"]
    lines += [
        f"  {number:>5} {each['messages_per_second']:>12,.0f} {each['server_cpu_us_per_message']:>11.2f}"
        f" {each['client_cpu_us_per_message']:>11.2f} {each['latency_ms']['p50']:>9.2f}"
        f" {each['latency_ms']['p99']:>9.2f} {each['server_rss_mib']:>9.1f}"
        for number, each in enumerate(result["rounds"], 1)
    ]
    return "\n".join([*lines, "", *outline({"durability": result["durability"], "conditions": result["conditions"]})])
