"""Metrics of the gateway itself: its connections, and the doors of CMQ.

The labels are bounded: actions, commands, codes and reasons come from tables, and unknown names share a label.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cmqd_gateway.gateway import Gateway

if TYPE_CHECKING:
    from cmqd_gateway.cmq.tcp.connections import Connections

TCP_STATES: Final = ("logging_in", "idle", "busy", "not_reading")
"""States of a connection of CMQ's TCP protocol."""
OTHER: Final = "other"
"""Label of commands that CMQ's TCP protocol does not have."""


def gauges_of(gateway: Gateway) -> dict[str, int]:
    """Return the gauges of this process that several processes add up."""
    polling, checking = gateway.connections.for_polls, gateway.connections.for_checks
    return {
        "http_connections": len(gateway.guards),
        "keys": gateway.connections.keys,
        "polls": polling,
        "checks": checking,
        "requests": len(gateway.connections) - polling - checking,
    }


def counters_of(gateway: Gateway) -> Counter[tuple[str, tuple[str, ...]]]:
    """Return the counters of this process that several processes add up, by name and labels."""
    counters: Counter[tuple[str, tuple[str, ...]]] = Counter()
    counters.update({("keys_ignored", (door,)): count for door, count in gateway.ignored_keys.counts.items()})
    counters.update({("api3_requests", kind): count for kind, count in gateway.api3_answers.items()})
    return counters


def own_metrics(gateway: Gateway) -> Iterator[Metric]:
    """Yield the metrics of a gateway, with those of the further processes."""
    gauges, counters = Counter(gauges_of(gateway)), counters_of(gateway)
    if gateway.further is not None:
        gauges.update(gateway.further.gauges)
        counters.update(gateway.further.counters)
    http_connections = gauges["http_connections"]
    yield GaugeMetricFamily("cmqd_gateway_http_connections", "HTTP connections.", value=http_connections)
    yield GaugeMetricFamily("cmqd_gateway_keys", "Keys with a connection to the broker.", value=gauges["keys"])
    uses = {use: gauges[use] for use in ("polls", "checks", "requests")}
    yield _gauge("broker_connections", "Connections to the broker: long polls, checks, requests.", "use", uses)
    for name, text, labels in (
        (
            "keys_ignored",
            "Requests whose binding or routing key was ignored, because the topic filters by tags.",
            ("door",),
        ),
        (
            "api3_requests",
            "Requests of API 3.0 by action and error code; the code of a success is OK.",
            ("action", "code"),
        ),
    ):
        values = {of: count for (counter, of), count in counters.items() if counter == name}
        yield _counter(name, text, labels, values)
    if gateway.cmq_tcp is not None:
        yield from _of_tcp(gateway.cmq_tcp)


def _of_tcp(tcp: "Connections") -> Iterator[Metric]:
    states = dict.fromkeys(TCP_STATES, 0) | Counter(connection.state for connection in tcp)
    yield _gauge("tcp_connections", "Connections of CMQ's TCP protocol.", "state", states)
    ends = {(reason,): count for reason, count in tcp.ended.items()}
    yield _counter("tcp_connections_ended", "Connections that the gateway ended.", ("reason",), ends)
    yield GaugeMetricFamily(
        "cmqd_gateway_tcp_waiting_receives", "Receives of CMQ's TCP protocol in progress.", value=tcp.receives
    )
    yield _counter(
        "tcp_answers",
        "Answers of CMQ's TCP protocol by number of the command and result.",
        ("command", "result"),
        {(str(command or OTHER), str(result)): count for (command, result), count in tcp.results.items()},
    )
    checks = {("asked",): tcp.checks.asked, ("answered",): tcp.checks.answered, ("unanswered",): tcp.checks.unanswered}
    yield _counter("tcp_checks", "Checks of half messages: asked, answered, ended unanswered.", ("result",), checks)
    for name, text, value in (
        ("tcp_repeats", "Repeated sends that got the answer of the first send.", tcp.repeats.repeats),
        ("tcp_received_bytes", "Bytes received over CMQ's TCP protocol.", tcp.bytes_in),
        ("tcp_sent_bytes", "Bytes sent over CMQ's TCP protocol.", tcp.bytes_out),
    ):
        yield CounterMetricFamily(f"cmqd_gateway_{name}", text, value=value)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    gauge = GaugeMetricFamily(f"cmqd_gateway_{name}", text, labels=[label])
    for value, number in values.items():
        gauge.add_metric([value], number)
    return gauge


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Metric:
    counter = CounterMetricFamily(f"cmqd_gateway_{name}", text, labels=labels)
    for value, number in values.items():
        counter.add_metric(value, number)
    return counter
