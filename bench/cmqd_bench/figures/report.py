"""The report of a run: a JSON object with fixed keys, or a table for people; both include the conditions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from cmqd_bench.commands.options import SCENARIOS, Options
from cmqd_bench.figures.measure import summary

Figures = Mapping[str, Any]
UNITS = {
    "messages_per_second": "messages/s",
    "server_cpu_us_per_message": "us a message, all server processes",
    "client_cpu_us_per_message": "us a message, this process",
    "server_rss_mib": "MiB, all server processes",
    "rss_growth_mib": "MiB",
    "restart_seconds": "s from exec to the first answered receive",
    "drain_ratio": "drain rate with / without backlog",
    "answer_ms": "ms from a rewind to its answer",
    "first_message_ms": "ms from a rewind to the first message, by a waiting receive",
    "moves_per_second": "messages/s from one queue to another",
    "publishes_per_second": "messages/s published",
    "copies_per_second": "copies/s into queues",
    "server_cpu_us_per_copy": "us, all server processes",
    "disk_bytes_per_copy": "bytes of sealed segments",
    "log_rows": "rows written by the load",
    "log_bytes_per_publish": "bytes of them",
    "pushes_per_second": "requests/s answered, all endpoints fast",
    "offered_pushes_per_second": "publishes/s x endpoints",
    "backlog_growth_per_second": "pushes/s behind the publishes, all fast",
    "server_cpu_us_per_push": "us, all server processes, all fast",
    "healthy_ratio": "the healthy one's rate, the others hanging / all fast",
    "healthy_backlog_growth_per_second": "pushes/s, the others hanging",
    "metrics_p50_ms": "ms, an answer of /metrics, median",
    "metrics_max_ms": "ms, the slowest answer",
    "metrics_readings": "answers",
    "metrics_gateway_cpu_ms": "ms, CPU of the gateway an answer",
    "metrics_broker_cpu_ms": "ms, CPU of the server an answer, beyond the load's",
    "metrics_bytes": "bytes of an answer",
    "alone_p50_ms": "ms, native latency before /metrics was read",
    "alone_p99_ms": "ms, the same, 99th percentile",
    "closed_us_per_message": "us of the server, without a page, median of the turns",
    "open_us_per_message": "us of the server, with pages, median of the turns",
    "open_ratio": "with pages / without",
    "figures_per_page_and_second": "events with figures",
    "stream_bytes_per_page_and_second": "bytes of events",
    "gateway_cores_closed": "of CPU, the gateway without a page",
    "gateway_cores_open": "of CPU, the gateway with pages",
    "gateway_rss_first_mib": "MiB of the gateway at the end of the first turn with pages",
    "gateway_rss_last_mib": "MiB at the end of the last turn",
    "http_rss_mib": "MiB, the first gateway",
    "idle_connections": "idle HTTP connections",
    "idle_connections_lost": "of them, closed by the gateway",
    "http_rss_kib_per_idle_connection": "KiB of the gateway's memory",
    "http_rss_growth_of_more_requests_kib": "KiB, of a second request on each of them",
    "api_2_0_times_moto": "requests/s of API 2.0 over moto's SQS server, one gateway",
    "json_api_times_moto": "requests/s of the JSON API over moto's, one gateway",
    "api_2_0_two_gateways_times_moto": "the same, two gateways",
    "json_api_two_gateways_times_moto": "the same, two gateways",
    "native_us_alone": "us of the server a message, native cycle at batch 1, no gateway",
    "native_us_idle": "us, beside an idle gateway",
    "native_us_flooded": "us, beside a flooded gateway",
    "native_us_unpaused": "us, the same, the gateway without the pause before refusals",
    "native_messages_alone": "messages in the same time",
    "native_messages_idle": "messages in the same time",
    "native_messages_flooded": "messages in the same time",
    "native_messages_unpaused": "messages in the same time",
    "native_ratio_idle": "of the CPU a message without a gateway",
    "native_ratio_flooded": "of the CPU a message without a gateway",
    "native_ratio_unpaused": "of the CPU a message without a gateway",
    "flooded_gateway_cores": "of CPU, the flooded gateway",
    "unpaused_gateway_cores": "of CPU, the flooded gateway without the pause",
    "flood_seconds": "s, flood by strangers",
    "flood_rss_before_mib": "MiB of the gateway before",
    "flood_rss_max_mib": "MiB, largest",
    "flood_rss_max_first_half_mib": "MiB, largest of the first half",
    "flood_rss_after_mib": "MiB, without connections",
    "rss_kib_per_connection": "KiB of server memory",
    "loop_busy": "of one core",
    "other_cores": "used by other programs",
}
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
        *("scenario", "durability", "conditions", "options", "rounds", "latency_ms", "loads"),
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


def _line(name: str, value: object, note: str = "") -> str:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        shown = f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
    else:
        shown = str(value)
    return f"  {name.replace('_', ' '):<36} {shown:>14}  {note}".rstrip()


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
    options, conditions, rounds = result["options"], result["conditions"], result["rounds"]
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
    lines = [f"{result['scenario']}: {told}", ""]
    lines += [_line(name, value, UNITS.get(name, "")) for name, value in result.items() if name not in NOT_SHOWN]
    latency = result["latency_ms"]
    lines.append(_line("latency", f"{latency['p50']:.3f}", "ms p50"))
    lines.append(_line("", f"{latency['p99']:.3f}", "ms p99"))
    lines.append(_line("", f"{latency['p999']:.3f}", "ms p99.9"))
    if "loads" in result:
        lines += _loads(result["loads"])
    lines += ["", "  round   messages/s   server us   client us    p50 ms    p99 ms   RSS MiB"]
    lines += [
        f"  {number:>5} {each['messages_per_second']:>12,.0f} {each['server_cpu_us_per_message']:>11.2f}"
        f" {each['client_cpu_us_per_message']:>11.2f} {each['latency_ms']['p50']:>9.2f}"
        f" {each['latency_ms']['p99']:>9.2f} {each['server_rss_mib']:>9.1f}"
        for number, each in enumerate(rounds, 1)
    ]
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    lines += [
        "",
        f"  {conditions['cpu']}, {conditions['cores']} cores, load {conditions['load_average']} at the start,"
        f" Linux {conditions['kernel']}, Python {conditions['python']}",
        f"  {versions}, SQLite {conditions['sqlite']}, commit {conditions['commit'] or 'unknown'}",
        f"  durability {result['durability']} on {conditions['file_system']} ({conditions['device']})",
    ]
    return "\n".join(lines)
