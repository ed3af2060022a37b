"""Metrics of a server for monitoring systems: totals, and pages of queues and topics with their figures.

Totals (``cmqd_types.totals``) go on over restarts and are exact after a crash. Rates are differences of totals.
"""

from datetime import datetime

import msgspec

from cmqd_client.links.channel import Channel
from cmqd_client.replies.conversions import converted
from cmqd_protocol import operations
from cmqd_types.metrics import MetricSums, QueueMetrics, ServerMetrics, TopicMetrics, TopSubscription
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals


class Metrics(msgspec.Struct, frozen=True):
    """Totals of the account, or, for ``admin``, of all accounts. Deleted queues, topics and subscriptions count too."""

    time: datetime
    """Broker time of the figures."""
    queue_totals: QueueTotals
    topic_totals: TopicTotals
    subscription_totals: SubscriptionTotals
    queues: int
    """Number of queues, and of topics and subscriptions, that exist now."""
    topics: int
    subscriptions: int
    server: ServerMetrics | None
    """Figures of the server; None for an account other than ``admin``."""
    request_id: int


class QueueMetricsPage(msgspec.Struct, frozen=True):
    """Metrics of queues, by account and name."""

    time: datetime
    queues: list[QueueMetrics]
    next: tuple[str, str] | None
    """Account and name of the last queue, as ``after`` of the next page; None at the end."""
    request_id: int


class TopicMetricsPage(msgspec.Struct, frozen=True):
    """Metrics of topics and their subscriptions, by account and name."""

    time: datetime
    topics: list[TopicMetrics]
    next: tuple[str, str] | None
    """Account and name of the last topic, as ``after`` of the next page; None at the end."""
    request_id: int


class TopMetrics(msgspec.Struct, frozen=True):
    """Sums over all queues, topics and subscriptions, and the metrics of the queues, topics and subscriptions with the
    most messages, in descending order."""

    time: datetime
    """Broker time of the figures."""
    sums: MetricSums
    queues: list[QueueMetrics]
    topics: list[TopicMetrics]
    """Without their subscriptions."""
    subscriptions: list[TopSubscription]
    request_id: int


async def ask_metrics(channel: Channel) -> Metrics:
    """Ask for the totals; see ``Client.metrics``."""
    reply = await channel.ask(operations.GET_METRICS)
    return converted(Metrics, reply)


async def ask_queues(
    channel: Channel, all_accounts: bool, after: tuple[str, str] | None, limit: int
) -> QueueMetricsPage:
    """Ask for a page of queues; see ``Client.queue_metrics``."""
    behind = after or ("", "")
    reply = await channel.ask(operations.GET_QUEUE_METRICS, all_accounts, *behind, limit)
    return converted(QueueMetricsPage, reply)


async def ask_topics(
    channel: Channel, all_accounts: bool, after: tuple[str, str] | None, limit: int
) -> TopicMetricsPage:
    """Ask for a page of topics; see ``Client.topic_metrics``."""
    behind = after or ("", "")
    reply = await channel.ask(operations.GET_TOPIC_METRICS, all_accounts, *behind, limit)
    return converted(TopicMetricsPage, reply)


async def ask_top(channel: Channel, limit: int) -> TopMetrics:
    """Ask for sums and the largest queues; see ``Client.top_metrics``."""
    reply = await channel.ask(operations.GET_TOP_METRICS, limit)
    return converted(TopMetrics, reply)
