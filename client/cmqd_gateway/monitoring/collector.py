"""From a reading to Prometheus' metrics: names, units and help texts.

Names follow Prometheus' conventions: a prefix, base units (seconds, bytes), ``_total`` for counts that only grow. The
metrics of queues, topics and subscriptions have the labels ``account`` and the name. Metrics of the whole broker have
no labels and different names, so that a sum over queues never includes the broker's own metric.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cmqd_gateway.monitoring.metrics_readings import Figures
from cmqd_types.metrics import Histogram, ReplicationMetrics, ServerMetrics
from cmqd_types.pins import StandingPinInfo

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_T = TypeVar("_T")

STATES: Final = ("active", "in_flight", "delayed", "half", "rewindable", "damaged")

QUEUE_TOTALS: Final = (
    ("sent", "messages_sent", "Messages of sends and schedules, half messages included."),
    ("sent_bytes", "messages_sent_bytes", "Bytes of the bodies of messages sent."),
    ("half_sent", "half_messages_sent", "Half messages among the messages sent."),
    ("committed", "half_messages_committed", "Half messages that were committed."),
    ("rolled_back", "half_messages_rolled_back", "Half messages that were rolled back."),
    ("copied", "messages_copied", "Copies of published messages."),
    ("received", "messages_received", "Messages received, each receive counted."),
    ("redelivered", "messages_redelivered", "Receives of messages that were received before."),
    ("deleted", "messages_deleted", "Messages deleted by consumers."),
    ("released", "messages_released", "Messages returned by consumers."),
    ("timed_out", "visibility_timeouts", "Visibility timeouts that passed."),
    ("expired", "messages_expired", "Messages that passed their retention."),
    ("cleared", "messages_cleared", "Messages that went with a clear of their queue."),
    ("dead_lettered", "messages_dead_lettered", "Messages that left for the dead-letter queue."),
    ("dead_letters", "dead_letters_taken", "Dead letters that came from source queues."),
    ("redriven", "dead_letters_redriven", "Dead letters that left by a redrive."),
    ("redriven_here", "messages_redriven_here", "Dead letters that came by a redrive."),
    ("rewound", "messages_rewound", "Deleted messages that a rewind made active again."),
)
"""(field of ``QueueTotals``, name without prefix and ``_total``, help)."""
TOPIC_TOTALS: Final = (
    ("published", "messages_published", "Published messages that matched a subscription."),
    ("published_bytes", "messages_published_bytes", "Bytes of the bodies of these messages, each counted once."),
)
SUBSCRIPTION_TOTALS: Final = (
    ("delivered", "deliveries", "Messages delivered to subscribers, copies in queues included."),
    ("failed", "delivery_attempts_failed", "Delivery attempts that failed."),
    ("dropped", "deliveries_dropped", "Messages that subscribers do not get: expired, damaged or dropped."),
)
SERVER_COUNTERS: Final = (
    ("requests_total", "requests", "Requests of native clients."),
    ("committed_bytes_total", "committed_bytes", "Bytes of records and bodies that became durable."),
    ("loop_commits_total", "loop_commits", "Commits that the loop process has made, not the storage process."),
    ("connections_accepted_total", "connections_accepted", "Native connections accepted."),
    ("connections_refused_total", "connections_refused", "Native connections refused."),
    ("authentications_failed_total", "authentications_failed", "Native connections that failed to authenticate."),
    ("slow_readers_closed_total", "slow_readers_closed", "Connections closed because the client did not read."),
    ("memory_closed_total", "memory_connections_closed", "Connections closed for lack of memory."),
    ("bytes_in_total", "client_received_bytes", "Bytes received from native clients."),
    ("bytes_out_total", "client_sent_bytes", "Bytes sent to native clients."),
    ("given_back_total", "messages_given_back", "Messages of replies that could not be handed over."),
    ("unmatched_total", "messages_unmatched", "Published messages that matched no subscription."),
    ("damaged_total", "messages_found_damaged", "Messages found to be unreadable."),
    ("schedules_missed_total", "schedules_missed", "Times at which a schedule's queue took no message."),
    ("checkpoints_total", "checkpoints", "Checkpoints kept."),
    (
        "outcome_rounds_skipped_total",
        "outcome_rounds_skipped",
        "Reclaims of rows before the log kept how messages left in them.",
    ),
    ("pages_read_total", "pages_read", "Pages of bodies read from the log."),
)
SERVER_GAUGES: Final = (
    ("connections", "connections", "Native connections."),
    ("waiting_receives", "waiting_requests", "Requests that wait in the broker, long polls above all."),
    ("checkers", "checkers", "Registrations as checker of half messages."),
    ("schedules", "schedules", "Schedules."),
    ("pushes_under_way", "pushes_under_way", "Posts to URLs under way."),
    ("segments", "log_segments", "Segments of the log."),
    ("log_bytes", "log_bytes", "Size of the log on disk."),
    ("history_bytes", "history_bytes", "Size of segments kept for history or backups alone."),
    ("free_bytes", "disk_free_bytes", "Free space of the data folder's disk; 0 = not known."),
    ("pins", "log_pins", "Copies of the log that are being made."),
    ("pending_bytes", "pending_bytes", "Bytes appended and not durable."),
    ("memory_budget_bytes", "memory_budget_bytes", "Memory budget of connections."),
    ("memory_held_bytes", "memory_held_bytes", "Memory of unfinished frames and unread replies."),
    ("memory_promised_bytes", "memory_promised_bytes", "Memory of sessions and dedup ids."),
)
REPLICATION_GAUGES: Final = (
    ("epoch", "leader_epoch", 1, "Epoch of the lead: it grows with each change of the leader."),
    ("proof_age_ms", "lead_proof_age_seconds", 1000, "Age of the last proof that this broker leads."),
    ("waiting_ms", "engine_waiting_seconds", 1000, "Time for which the engine is waited for; 0 = it is not."),
    ("standbys", "standbys", 1, "Brokers that follow this leader."),
    ("standby_rows_behind", "standby_rows_behind", 1, "Rows that the best standby lacked at its last report."),
    ("second_copies", "second_copies", 1, "Servers that commits wait for: 0 while the second copy is away."),
    ("second_copy_bytes_behind", "second_copy_bytes_behind", 1, "Bytes that the second copy has not flushed."),
    ("second_copy_ms_behind", "second_copy_lag_seconds", 1000, "Time of the second copy's last flush after the first."),
)
"""(field of ``ReplicationMetrics``, name, divisor, help)."""
SERVER_HISTOGRAMS: Final = (
    ("commit_us", "commit_duration_seconds", 1_000_000, "Time from handing rows over until they are durable."),
    ("fsync_us", "fsync_duration_seconds", 1_000_000, "Time of a commit's transaction with its fsync."),
    ("commit_records", "commit_records", 1, "Records of a commit."),
    ("loop_lag_us", "loop_lag_seconds", 1_000_000, "Lateness of a timer of the loop, ten times a second."),
)
"""(field of ``ServerMetrics``, name, divisor, help)."""


def exposition(figures: Figures) -> bytes:
    """Return the text of a reading. Takes some milliseconds per hundred queues: to be called off the loop."""
    return _text(families(figures))


def own_exposition(own: Iterable[Metric]) -> bytes:
    """Return the text of the gateway's own metrics, a few."""
    return _text(own)


def _text(metrics: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Once(metrics))
    return generate_latest(registry)


class _Once(Collector):
    """Collects metrics once."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return no metrics: this registry has a single collector, so its names need no check."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self._metrics


def families(figures: Figures) -> Iterator[Metric]:
    """Yield the metrics of a reading."""
    yield from _of_broker(figures)
    yield from _of_queues(figures)
    yield from _of_topics(figures)
    if figures.metrics.server is not None:
        yield from _of_server(figures.metrics.server, figures.now_ms)


def _of_broker(figures: Figures) -> Iterator[Metric]:
    metrics, sums = figures.metrics, figures.top.sums
    for totals, table in (
        (metrics.queue_totals, QUEUE_TOTALS),
        (metrics.topic_totals, TOPIC_TOTALS),
        (metrics.subscription_totals, SUBSCRIPTION_TOTALS),
    ):
        values = msgspec.structs.asdict(totals)
        for field, name, text in table:
            text = f"{text} All names, deleted ones included."
            yield CounterMetricFamily(f"cmqd_{name}", text, value=values[field])
    states = GaugeMetricFamily("cmqd_messages", "Messages of all queues by state.", labels=["state"])
    for state in STATES:
        states.add_metric([state], getattr(sums, state))
    yield states
    for name, text, value in (
        ("queues", "Queues.", metrics.queues),
        ("topics", "Topics.", metrics.topics),
        ("subscriptions", "Subscriptions.", metrics.subscriptions),
        (
            "waiting_receives",
            "Receives that wait for a message (long polls), over all queues.",
            sums.waiting_receives,
        ),
        (
            "oldest_message_age_seconds",
            "Age of the oldest message of all queues.",
            _age(sums.oldest_message_ms, figures.now_ms),
        ),
        ("undelivered_messages", "Messages that subscriptions wait for or try again.", sums.undelivered),
        (
            "oldest_undelivered_age_seconds",
            "Age of the oldest undelivered message of all subscriptions.",
            _age(sums.oldest_undelivered_ms, figures.now_ms),
        ),
        ("metrics_read_seconds", "Time that the gateway took to read these figures.", figures.seconds),
    ):
        yield GaugeMetricFamily(f"cmqd_{name}", text, value=value)


def _of_queues(figures: Figures) -> Iterator[Metric]:
    labels = ["account", "queue"]
    states = GaugeMetricFamily("cmqd_queue_messages", "Messages by state.", labels=[*labels, "state"])
    ages = GaugeMetricFamily("cmqd_queue_oldest_message_age_seconds", "Age of the oldest message.", labels=labels)
    waits = GaugeMetricFamily("cmqd_queue_waiting_receives", "Receives that wait for a message.", labels=labels)
    consumers = GaugeMetricFamily(
        "cmqd_queue_consumers", "Clients that asked for messages within the last ten minutes.", labels=labels
    )
    received = CounterMetricFamily(
        "cmqd_queue_messages_received_bytes", "Bytes of received bodies since the broker's start.", labels=labels
    )
    counters = [
        (field, CounterMetricFamily(f"cmqd_queue_{name}", text, labels=labels)) for field, name, text in QUEUE_TOTALS
    ]
    for queue in figures.top.queues:
        names = [queue.account, queue.queue]
        for state in STATES:
            states.add_metric([*names, state], getattr(queue, state))
        ages.add_metric(names, _age(queue.oldest_message_ms, figures.now_ms))
        waits.add_metric(names, queue.waiting_receives)
        if queue.consumers is not None:
            consumers.add_metric(names, queue.consumers)
        received.add_metric(names, queue.received_bytes)
        for field, family in counters:
            family.add_metric(names, getattr(queue.totals, field))
    yield from (states, ages, waits, consumers, received)
    for _, family in counters:
        yield family


def _of_topics(figures: Figures) -> Iterator[Metric]:
    labels = ["account", "topic"]
    retained = GaugeMetricFamily(
        "cmqd_topic_messages_retained", "Messages that a subscription lacks; an upper bound.", labels=labels
    )
    counters = [
        (field, CounterMetricFamily(f"cmqd_topic_{name}", text, labels=labels)) for field, name, text in TOPIC_TOTALS
    ]
    for topic in figures.top.topics:
        names = [topic.account, topic.topic]
        retained.add_metric(names, topic.retained)
        for field, family in counters:
            family.add_metric(names, getattr(topic.totals, field))
    yield retained
    for _, family in counters:
        yield family
    labels = ["account", "topic", "subscription"]
    states = GaugeMetricFamily(
        "cmqd_subscription_messages", "Undelivered messages, never tried or in retry.", labels=[*labels, "state"]
    )
    blocked = GaugeMetricFamily(
        "cmqd_subscription_blocked", "1 while new messages wait because deliveries fail.", labels=labels
    )
    ages = GaugeMetricFamily(
        "cmqd_subscription_oldest_message_age_seconds", "Age of the oldest undelivered message.", labels=labels
    )
    counters = [
        (field, CounterMetricFamily(f"cmqd_subscription_{name}", text, labels=labels))
        for field, name, text in SUBSCRIPTION_TOTALS
    ]
    for shown in figures.top.subscriptions:
        one = shown.subscription
        names = [shown.account, shown.topic, one.subscription]
        states.add_metric([*names, "waiting"], one.waiting)
        states.add_metric([*names, "in_retry"], one.in_retry)
        blocked.add_metric(names, int(one.blocked))
        ages.add_metric(names, _age(one.oldest_message_ms, figures.now_ms))
        for field, family in counters:
            family.add_metric(names, getattr(one.totals, field))
    yield from (states, blocked, ages)
    for _, family in counters:
        yield family


def _of_server(server: ServerMetrics, now_ms: int) -> Iterator[Metric]:
    yield InfoMetricFamily("cmqd_broker", "Version of the broker.", value={"version": server.version})
    yield GaugeMetricFamily("cmqd_uptime_seconds", "Time since the start of the broker.", value=server.uptime_ms / 1000)
    errors = CounterMetricFamily("cmqd_errors", "Error replies to native clients by error.", labels=["error"])
    for name, count in sorted(server.errors_total.items()):
        errors.add_metric([name], count)
    yield errors
    pushes = CounterMetricFamily("cmqd_pushes", "Posts to URLs by result.", labels=["result"])
    pushes.add_metric(["delivered"], server.pushes_delivered_total)
    pushes.add_metric(["failed"], server.pushes_failed_total)
    yield pushes
    memory = GaugeMetricFamily(
        "cmqd_process_resident_memory_bytes", "Memory of the broker's processes.", labels=["process"]
    )
    cpu = CounterMetricFamily(
        "cmqd_process_cpu_seconds", "CPU time of the broker's processes, user and system.", labels=["process"]
    )
    for process, rss_bytes, cpu_us in (
        ("loop", server.loop_rss_bytes, server.loop_cpu_us_total),
        ("storage", server.storage_rss_bytes, server.storage_cpu_us_total),
    ):
        memory.add_metric([process], rss_bytes)
        cpu.add_metric([process], cpu_us / 1_000_000)
    yield from (memory, cpu)
    yield GaugeMetricFamily(
        "cmqd_sends_refused",
        "1 while sends are refused because the disk is nearly full.",
        value=int(server.sends_refused),
    )
    yield GaugeMetricFamily(
        "cmqd_checkpoint_age_seconds",
        "Time since the last checkpoint; the broker's uptime while there was none.",
        value=(now_ms - server.checkpoint_ms if server.checkpoint_ms else server.uptime_ms) / 1000,
    )
    for field, name, text in SERVER_COUNTERS:
        yield CounterMetricFamily(f"cmqd_{name}", text, value=getattr(server, field))
    for field, name, text in SERVER_GAUGES:
        yield GaugeMetricFamily(f"cmqd_{name}", text, value=getattr(server, field))
    yield from _of_standing_pins(server.standing_pins)
    if server.replication is not None:
        yield from _of_replication(server.replication)
    for field, name, divisor, text in SERVER_HISTOGRAMS:
        values: Histogram | None = getattr(server, field)
        if values is not None:
            yield _histogram(f"cmqd_{name}", text, values, divisor)


def _of_standing_pins(pins: Iterable[StandingPinInfo]) -> Iterator[Metric]:
    ages = GaugeMetricFamily("cmqd_backup_age_seconds", "Age of the last good copy of a backup.", labels=["backup"])
    intervals = GaugeMetricFamily("cmqd_backup_interval_seconds", "Interval of a backup's copies.", labels=["backup"])
    gaps = CounterMetricFamily(
        "cmqd_backup_gaps", "Segments that were reclaimed before the backup copied them.", labels=["backup"]
    )
    for pin in pins:
        ages.add_metric([pin.name], pin.copied_age_ms / 1000)
        intervals.add_metric([pin.name], pin.every_ms / 1000)
        gaps.add_metric([pin.name], pin.gaps_total)
    yield from (ages, intervals, gaps)


def _of_replication(replication: ReplicationMetrics) -> Iterator[Metric]:
    # A standby has the same name with 0, from its own listener.
    yield GaugeMetricFamily("cmqd_leads", "1 of the broker that leads its log, 0 of a standby.", value=1)
    yield CounterMetricFamily(
        "cmqd_engine_waits_seconds",
        "Time in which the engine was waited for.",
        value=replication.waiting_ms_total / 1000,
    )
    for field, name, divisor, text in REPLICATION_GAUGES:
        value: int | None = getattr(replication, field)
        if value is not None:
            yield GaugeMetricFamily(f"cmqd_{name}", text, value=value / divisor)
    offsets = GaugeMetricFamily(
        "cmqd_engine_clock_offset_seconds", "Lead of a broker's wall clock over the engine's.", labels=["broker"]
    )
    for address, offset_ms in replication.clock_offsets_ms.items():
        offsets.add_metric([address], offset_ms / 1000)
    yield offsets


def _histogram(name: str, text: str, values: Histogram, divisor: int) -> Metric:
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip([*values.bounds, None], values.counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bound is None else repr(bound / divisor), so_far))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=values.sum / divisor)


def _age(time_ms: int | None, now_ms: int) -> float:
    """Return the age in seconds; 0 without a message."""
    return 0.0 if time_ms is None else max(0, now_ms - time_ms) / 1000
