"""From two readings of the broker to the values of the series: rates are differences of totals. Pure.

Totals go on over restarts of the broker. Counts since the start begin at 0 with each start, and a start shows in the
uptime: then the counts since the start are the difference.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from cmqd_client.administration.metrics import Metrics
from cmqd_gateway.console.history import NAMES, NAN
from cmqd_types.metrics import Histogram, MetricSums, ServerMetrics

_STATES: Final = ("active", "in_flight", "delayed", "half", "undelivered")


class Reading(msgspec.Struct, frozen=True):
    """The figures of a moment."""

    time: float
    """Time by the gateway's clock, in seconds since 1970."""
    metrics: Metrics
    sums: MetricSums | None
    """Sums over all queues, up to some seconds older than ``metrics``; None = not read lately."""
    broker_ms: int
    """Broker time of ``sums``, for ages."""


class Interval:
    """The time between two readings."""

    def __init__(self, before: Reading | None, after: Reading) -> None:
        """Take the readings; ``before`` None = no rates are known."""
        self._before = before
        self._after = after
        self.seconds = 0.0 if before is None else after.time - before.time

    def values(self) -> list[float]:
        """Return a value for each series, in their order; NaN = no value."""
        values = dict.fromkeys(NAMES, NAN)
        values.update(self._rates())
        values.update(_moment(self._after))
        server = self._after.metrics.server
        if server is not None:
            values.update(_of_server(server))
            values.update(self._server_rates(server))
        return [values[name] for name in NAMES]

    def _rates(self) -> Mapping[str, float]:
        before, seconds = self._before, self.seconds
        if before is None or seconds <= 0:
            return {}
        old, new = before.metrics, self._after.metrics
        differences = {
            "sent": new.queue_totals.sent - old.queue_totals.sent,
            "received": new.queue_totals.received - old.queue_totals.received,
            "deleted": new.queue_totals.deleted - old.queue_totals.deleted,
            "published": new.topic_totals.published - old.topic_totals.published,
            "delivered": new.subscription_totals.delivered - old.subscription_totals.delivered,
            "failed": new.subscription_totals.failed - old.subscription_totals.failed,
        }
        # A loss in the log sets totals back to 0; a negative rate would be no figure.
        return {name: difference / seconds for name, difference in differences.items() if difference >= 0}

    def _server_rates(self, new: ServerMetrics) -> Mapping[str, float]:
        old = None if self._before is None else self._before.metrics.server
        seconds = self.seconds
        if old is None or seconds <= 0:
            return {}
        if new.uptime_ms < old.uptime_ms:
            old, seconds = ServerMetrics(), max(0.001, new.uptime_ms / 1_000)
        cpu_us = new.loop_cpu_us_total + new.storage_cpu_us_total - old.loop_cpu_us_total - old.storage_cpu_us_total
        values = {
            "bytes_in": (new.bytes_in_total - old.bytes_in_total) / seconds,
            "bytes_out": (new.bytes_out_total - old.bytes_out_total) / seconds,
            "cpu_cores": cpu_us / 1_000_000 / seconds,
        }
        for name, histogram_name, share in (
            ("commit_p50_ms", "commit_us", 0.5),
            ("commit_p99_ms", "commit_us", 0.99),
            ("loop_lag_p99_ms", "loop_lag_us", 0.99),
        ):
            values[name] = quantile(getattr(old, histogram_name), getattr(new, histogram_name), share) / 1_000
        return values


def quantile(old: Histogram | None, new: Histogram | None, share: float) -> float:
    """Return the value below which ``share`` of the values between two readings lie; NaN without a value.

    The values of a bucket count as evenly spread. Values above all bounds count as the highest bound.
    """
    if new is None:
        return NAN
    counts = new.counts
    if old is not None and len(old.counts) == len(counts):
        counts = [count - earlier for count, earlier in zip(counts, old.counts, strict=True)]
    total = sum(counts)
    if total <= 0:
        return NAN
    rank, so_far, lower = share * total, 0, 0
    for bound, count in zip(new.bounds, counts, strict=False):
        if count and so_far + count >= rank:
            return lower + (bound - lower) * (rank - so_far) / count
        so_far += count
        lower = bound
    return float(new.bounds[-1]) if new.bounds else NAN


def _moment(reading: Reading) -> Mapping[str, float]:
    sums = reading.sums
    if sums is None:
        return {}
    return {
        **{state: float(getattr(sums, state)) for state in _STATES},
        "waiting_receives": float(sums.waiting_receives),
        "oldest_s": age_seconds(sums.oldest_message_ms, reading.broker_ms),
        "oldest_undelivered_s": age_seconds(sums.oldest_undelivered_ms, reading.broker_ms),
    }


def _of_server(server: ServerMetrics) -> Mapping[str, float]:
    return {
        # 0 = not known: an ephemeral broker has no disk.
        "free_bytes": float(server.free_bytes) if server.free_bytes else NAN,
        "log_bytes": float(server.log_bytes),
        "history_bytes": float(server.history_bytes),
        "memory_bytes": float(server.loop_rss_bytes + server.storage_rss_bytes),
        "connections": float(server.connections),
    }


def age_seconds(time_ms: int | None, now_ms: int) -> float:
    """Return the age of a message; 0 without a message."""
    return 0.0 if time_ms is None else max(0, now_ms - time_ms) / 1_000
