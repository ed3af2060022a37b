"""The figures behind ``/metrics``: read from the broker page by page, added up, and kept for some seconds.

Requests for metrics at the same time share a reading, and requests within ``cache_seconds`` share its result. A broker
with 10,000 queues answers some 10 pages in sequence. The broker makes a page in steps and serves other clients between
the steps.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from cmqd_client import Client
from cmqd_client.metrics import Metrics
from cmqd_types.metrics import QueueMetrics, SubscriptionMetrics, TopicMetrics

MAX_READERS = 64
"""Keys with figures in memory; the oldest reading makes room."""


class StateCounts(msgspec.Struct):
    """Messages of all queues by state."""

    active: int = 0
    in_flight: int = 0
    delayed: int = 0
    half: int = 0
    rewindable: int = 0
    damaged: int = 0


class ShownSubscription(msgspec.Struct, frozen=True):
    """A subscription with the names that it belongs to."""

    account: str
    topic: str
    subscription: SubscriptionMetrics


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A reading."""

    metrics: Metrics
    states: StateCounts
    waiting_receives: int
    oldest_age_seconds: float
    """Age of the oldest message of all queues; 0 = there is none."""
    undelivered: int
    """Messages that subscriptions wait for or try again, over all subscriptions."""
    oldest_undelivered_age_seconds: float
    queues: list[QueueMetrics]
    """The queues with figures of their own, by number of messages, then by traffic."""
    topics: list[TopicMetrics]
    subscriptions: list[ShownSubscription]
    now_ms: int
    """Broker time of the reading."""
    seconds: float
    """Time that the reading took."""


OpenClient = Callable[[], AbstractAsyncContextManager[Client]]
"""Opens a client of the key that reads the figures."""


async def read_figures(client: Client, shown: int, now: Callable[[], float] = time.monotonic) -> Figures:
    """Read the figures that the client's key may read: of all accounts for a key of ``admin``, else of its account.

    Args:
        client: the client.
        shown: most queues, topics, and subscriptions with figures of their own.
        now: the clock, in seconds.

    Raises:
        CmqError: the broker refused or did not answer.
    """
    begun = now()
    # The totals come first: their reply tells whether the key is of ``admin``, the account that reads all accounts.
    metrics = await client.metrics()
    is_admin = metrics.server is not None
    now_ms = round(metrics.time.timestamp() * 1000)
    states = StateCounts()
    waiting = 0
    oldest_ms = oldest_undelivered_ms = now_ms
    queues: list[tuple[tuple[int, int, int], QueueMetrics]] = []
    after: tuple[str, str] | None = ("", "")
    while after is not None:
        page = await client.queue_metrics(all_accounts=is_admin, after=after)
        after = page.next
        for queue in page.queues:
            states.active += queue.active
            states.in_flight += queue.in_flight
            states.delayed += queue.delayed
            states.half += queue.half
            states.rewindable += queue.rewindable
            states.damaged += queue.damaged
            waiting += queue.waiting_receives
            if queue.oldest_message_ms is not None and queue.oldest_message_ms < oldest_ms:
                oldest_ms = queue.oldest_message_ms
            totals = queue.totals
            held = queue.active + queue.in_flight + queue.delayed + queue.half
            # The id is last, so that equal queues keep their rank and their series from reading to reading.
            queues.append(((held, totals.sent + totals.copied + totals.received, -queue.queue_id), queue))
        queues = heapq.nlargest(shown, queues, key=_rank) if len(queues) > shown else queues
    topics: list[tuple[tuple[int, int, int], TopicMetrics]] = []
    subscriptions: list[tuple[tuple[int, int, int], ShownSubscription]] = []
    undelivered = 0
    after = ("", "")
    while after is not None:
        topic_page = await client.topic_metrics(all_accounts=is_admin, after=after)
        after = topic_page.next
        for topic in topic_page.topics:
            topics.append(((topic.retained, topic.totals.published, -topic.topic_id), topic))
            for one in topic.subscriptions:
                pending = one.waiting + one.in_retry
                undelivered += pending
                if one.oldest_message_ms is not None and one.oldest_message_ms < oldest_undelivered_ms:
                    oldest_undelivered_ms = one.oldest_message_ms
                rank = (pending, one.totals.failed + one.totals.delivered, -one.subscription_id)
                subscriptions.append((rank, ShownSubscription(topic.account, topic.topic, one)))
        topics = heapq.nlargest(shown, topics, key=_rank) if len(topics) > shown else topics
        if len(subscriptions) > shown:
            subscriptions = heapq.nlargest(shown, subscriptions, key=_rank)
    return Figures(
        metrics=metrics,
        states=states,
        waiting_receives=waiting,
        oldest_age_seconds=(now_ms - oldest_ms) / 1000,
        undelivered=undelivered,
        oldest_undelivered_age_seconds=(now_ms - oldest_undelivered_ms) / 1000,
        queues=[queue for _, queue in queues],
        topics=[topic for _, topic in topics],
        subscriptions=[one for _, one in subscriptions],
        now_ms=now_ms,
        seconds=now() - begun,
    )


def _rank(entry: tuple[tuple[int, int, int], object]) -> tuple[int, int, int]:
    return entry[0]


class FigureCache:
    """The last readings by key; see the module."""

    def __init__(self, shown: int, cache_seconds: float, now: Callable[[], float]) -> None:
        """Make an empty cache; for ``shown`` see :func:`read_figures`."""
        self._shown = shown
        self._cache_seconds = cache_seconds
        self._now = now
        self._read: dict[str, tuple[float, Figures]] = {}
        """By key: when the reading ended, and its result; in the order of the endings."""
        self._reading: dict[str, asyncio.Task[Figures]] = {}

    async def get(self, key: str, open_client: OpenClient) -> Figures:
        """Return figures of a key that are at most ``cache_seconds`` old. Safe to cancel.

        Raises:
            TooManyKeysInUse, CmqError: the broker was not reached, or refused.
        """
        read = self._read.get(key)
        if read is not None and self._now() - read[0] < self._cache_seconds:
            return read[1]
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read_anew(key, open_client))
            # The exception is for the requests that wait. Read here, because all of them may have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: the reading goes on for other requests, and for the cache, when this request is cancelled.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel the readings that are under way."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _read_anew(self, key: str, open_client: OpenClient) -> Figures:
        try:
            async with open_client() as client:
                figures = await read_figures(client, self._shown, self._now)
        finally:
            del self._reading[key]
        self._read.pop(key, None)
        self._read[key] = (self._now(), figures)
        if len(self._read) > MAX_READERS:
            del self._read[next(iter(self._read))]
        return figures
