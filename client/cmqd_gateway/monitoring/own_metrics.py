"""Metrics of the gateway itself: its connections, and the doors of CMQ.

The labels are bounded: actions and codes come from tables, and unknown names share a label.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cmqd_gateway.gateway import Gateway


def own_metrics(gateway: Gateway) -> Iterator[Metric]:
    """Yield the metrics of a gateway."""
    yield GaugeMetricFamily("cmqd_gateway_http_connections", "HTTP connections.", value=len(gateway.guards))
    yield GaugeMetricFamily(
        "cmqd_gateway_keys", "Keys with a connection to the broker.", value=gateway.connections.keys
    )
    polling, checking = gateway.connections.for_polls, gateway.connections.for_checks
    uses = {"polls": polling, "checks": checking, "requests": len(gateway.connections) - polling - checking}
    yield _gauge("broker_connections", "Connections to the broker: long polls, checks, requests.", "use", uses)
    yield _counter(
        "keys_ignored",
        "Requests whose binding or routing key was ignored, because the topic filters by tags.",
        ("door",),
        {(door,): count for door, count in gateway.ignored_keys.counts.items()},
    )
    yield _counter(
        "api3_requests",
        "Requests of API 3.0 by action and error code; the code of a success is OK.",
        ("action", "code"),
        gateway.api3_answers,
    )


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
