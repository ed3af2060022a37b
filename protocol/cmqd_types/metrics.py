"""Metrics: figures about queues, topics and the server for monitoring systems.

Three kinds of figures: *totals* of facts (``cmqd_types.totals``) go on over restarts; *counts since the start* have no
record and begin at 0 with the server; all other figures are of the moment. Times are milliseconds, ``..._us``
microseconds.

Structs of queues, topics and subscriptions are arrays, because a page has hundreds of them. The server's figures are a
map by name: later versions add names, and readers ignore unknown names.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec

from cmqd_types.pins import StandingPinInfo
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals


class QueueMetrics(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue: its messages by state, its age and its totals."""

    account: str
    queue: str
    queue_id: int
    active: int
    """Messages that can be received; messages that are being moved to another queue are included."""
    in_flight: int
    delayed: int
    half: int
    rewindable: int
    damaged: int
    waiting_receives: int
    """Receives that wait for a message."""
    oldest_message_ms: int | None
    """Time at which the oldest message that consumers can receive or hold was sent, exact to a grain (100 ms and up);
    None = there is none."""
    received_bytes: int
    """Bytes of received bodies since the start of the server."""
    totals: QueueTotals
    consumers: int | None = None
    """Clients that asked for messages within the last ten minutes; None = the server is older."""


class SubscriptionMetrics(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subscription: its undelivered messages and its totals."""

    subscription: str
    subscription_id: int
    protocol: str
    """``queue``, ``http`` or ``https``."""
    waiting: int
    in_retry: int
    blocked: bool
    """New messages wait because a message failed twice in a row."""
    oldest_message_ms: int | None
    """Time of the publish of the oldest undelivered message, exact to a grain (100 ms and up); None = there is none."""
    totals: SubscriptionTotals


class TopicMetrics(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A topic with its subscriptions."""

    account: str
    topic: str
    topic_id: int
    retained: int
    """Messages that a subscription lacks. An upper bound if several subscriptions lack messages."""
    totals: TopicTotals
    subscriptions: list[SubscriptionMetrics]


class TopSubscription(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subscription among those with the most undelivered messages, with the names that it belongs to."""

    account: str
    topic: str
    subscription: SubscriptionMetrics


class MetricSums(msgspec.Struct, array_like=True, gc=False):
    """Sums over queues, by state of the messages, and over subscriptions."""

    active: int = 0
    in_flight: int = 0
    delayed: int = 0
    half: int = 0
    rewindable: int = 0
    damaged: int = 0
    waiting_receives: int = 0
    oldest_message_ms: int | None = None
    """Time at which the oldest message of all queues was sent, as in :class:`QueueMetrics`."""
    undelivered: int = 0
    """Undelivered messages of all subscriptions; a message counts for each subscription that lacks it."""
    oldest_undelivered_ms: int | None = None
    """Time of the publish of the oldest undelivered message, as in :class:`SubscriptionMetrics`."""


class Histogram(msgspec.Struct, array_like=True, gc=False):
    """Counts of values by fixed buckets, since the start of the server."""

    bounds: list[int]
    """Upper bounds of the buckets, ascending, each bound inclusive."""
    counts: list[int]
    """Number of values in each bucket; the last counts the values above all bounds."""
    sum: int = 0
    """Sum of all values."""

    def note(self, value: int) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def histogram(bounds: Sequence[int]) -> Histogram:
    """Return a histogram without values."""
    return Histogram(list(bounds), [0] * (len(bounds) + 1))


def copy_of(values: Histogram) -> Histogram:
    """Return a copy that later values do not change."""
    return Histogram(values.bounds, values.counts.copy(), values.sum)


DURATIONS_US: Final = (
    *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000),
)
"""Buckets of durations: from a commit on a fast disk to a storage that hangs."""
SIZES: Final = tuple(1 << power for power in range(15))
"""Buckets of the number of records in a commit."""


class ReplicationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The lead and the second copy of a broker with redundancy. Figures of others are a few seconds old."""

    shard: int = 0
    epoch: int = 0
    """Epoch of the broker's lead."""
    proof_age_ms: int = 0
    """Age of the last proof that the broker leads."""
    waiting_ms: int = 0
    """Time for which a call of the engine has been waiting, 0 = none has."""
    waiting_ms_total: int = 0
    standbys: int | None = None
    """Brokers that follow; None = not known yet, as below."""
    standby_rows_behind: int | None = None
    """Rows that the standby with the most rows lacked at its last report; None = there is no standby."""
    second_copies: int | None = None
    """Servers of the engine that commits wait for: 1, or 0 while the second copy is away."""
    second_copy_bytes_behind: int | None = None
    """Bytes of the engine's log that the second copy has not flushed; None = not readable for the broker, as below."""
    second_copy_ms_behind: int | None = None
    """Time from a flush of the primary to that of the second copy, at the last one."""
    clock_offsets_ms: dict[str, int] = {}
    """Lead of each broker's wall clock over the engine's, by the address of the broker."""


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the server and its two processes. Histograms and names that end in ``_total`` count since the start.

    A version that lacks a figure leaves out its name; a reader then finds the default here.
    """

    version: str = ""
    uptime_ms: int = 0
    requests_total: int = 0
    errors_total: dict[str, int] = {}
    """Error replies by name of the error."""
    commit_us: Histogram | None = None
    """Time from the hand-over of rows to a commit until they are durable; a value for each commit."""
    fsync_us: Histogram | None = None
    """Time of the transaction of a commit with its fsync, in the process that commits."""
    commit_records: Histogram | None = None
    """Records of a commit."""
    committed_bytes_total: int = 0
    """Bytes of records and bodies that became durable."""
    loop_commits_total: int = 0
    """Commits that the loop process has made itself, as it does while commits are quick and small."""
    loop_lag_us: Histogram | None = None
    """Lateness of a timer of the loop, measured ten times a second."""
    connections: int = 0
    connections_accepted_total: int = 0
    connections_refused_total: int = 0
    authentications_failed_total: int = 0
    slow_readers_closed_total: int = 0
    memory_closed_total: int = 0
    """Connections closed because the memory budget was exceeded."""
    bytes_in_total: int = 0
    """Bytes read from clients, before TLS is counted."""
    bytes_out_total: int = 0
    waiting_receives: int = 0
    checkers: int = 0
    """Registrations as checker of half messages."""
    given_back_total: int = 0
    """Messages of replies that could not be handed over."""
    unmatched_total: int = 0
    """Published messages that matched no subscription."""
    damaged_total: int = 0
    """Messages found to be unreadable."""
    schedules: int = 0
    schedules_missed_total: int = 0
    pushes_under_way: int = 0
    pushes_delivered_total: int = 0
    pushes_failed_total: int = 0
    segments: int = 0
    log_bytes: int = 0
    history_bytes: int = 0
    """Bytes of segments that are kept for history or backups alone."""
    free_bytes: int = 0
    """Free space of the disk of the data folder; 0 = not known (an ephemeral broker)."""
    sends_refused: bool = False
    """The disk is nearly full, and sends are refused."""
    pins: int = 0
    """Copies of the log that are being made."""
    standing_pins: list[StandingPinInfo] = []
    """The backups that copy the log again and again, with the age of the last good copy of each."""
    pending_bytes: int = 0
    """Bytes that are appended and not durable."""
    last_lsn: int = 0
    durable_lsn: int = 0
    checkpoints_total: int = 0
    checkpoint_ms: int = 0
    """Broker time of the last checkpoint that was kept; 0 = none since the start."""
    outcome_rounds_skipped_total: int = 0
    """Times at which rows were reclaimed before the log kept how messages left in them."""
    pages_read_total: int = 0
    """Pages of bodies read from the log."""
    memory_budget_bytes: int = 0
    memory_held_bytes: int = 0
    """Memory of unfinished frames and unread replies."""
    memory_promised_bytes: int = 0
    """Memory of sessions and dedup ids."""
    loop_rss_bytes: int = 0
    storage_rss_bytes: int = 0
    loop_cpu_us_total: int = 0
    """CPU time, user and system, of the loop process."""
    storage_cpu_us_total: int = 0
    replication: ReplicationMetrics | None = None
    """None without redundancy."""
