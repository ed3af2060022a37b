"""The queues, topics and subscriptions with the most messages, and sums over all: for monitoring systems.

A monitoring system with 10,000 queues shows the largest hundred and the sums. Pages of all queues would cost the broker
the encoding, and the reader the decoding, of a hundred times as many figures, and a wait for the disk for each page.
Here a queue that is not shown costs a comparison.

The work is done in steps. Queues come and go in between, so the sums show each queue at its own moment.
"""

from collections.abc import Callable, Generator, Mapping
from heapq import heappush, heapreplace
from typing import NamedTuple, TypeAlias, TypeVar

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import check_range
from cmqd.core.operations.monitoring.metrics import Metrics, Retained, subscription_metrics, topic_metrics
from cmqd.core.runtime.runtime import Runtime
from cmqd_types.metrics import MetricSums, QueueMetrics, TopicMetrics, TopSubscription

MAX_TOP = 1000
"""Most queues, topics and subscriptions of a reply: the encoding takes about 1 ms."""
RANKED_A_STEP = 200
"""Queues, or topics and subscriptions, of a step: about 0.4 ms. A topic is never divided."""
SHOWN_A_STEP = 200
"""Queues, topics or subscriptions of a step that collects figures: about 0.5 ms."""

_Ranked = TypeVar("_Ranked")
_Figures = TypeVar("_Figures")

Rank: TypeAlias = tuple[int, int, int]
"""Messages, traffic, and the negated id: equal queues keep their rank, and their series, from reading to reading."""


class Top(NamedTuple):
    """Sums over all, and the largest, in descending order."""

    sums: MetricSums
    queues: list[QueueMetrics]
    topics: list[TopicMetrics]
    """Without subscriptions."""
    subscriptions: list[TopSubscription]


class TopMetrics:
    """Ranks queues, topics and subscriptions; see the module."""

    def __init__(self, facts: Facts, runtime: Runtime, metrics: Metrics) -> None:
        self._queues = facts.queues
        self._topics = facts.topics
        self._runtime = runtime.queues
        self._metrics = metrics

    @staticmethod
    def check_limit(limit: int) -> None:
        """Check the number of queues to show.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        check_range("limit", limit, 0, MAX_TOP)

    def top(self, account: str | None, limit: int, *, consumers_since_ms: int = 0) -> Generator[None, None, Top]:
        """Rank the queues, topics and subscriptions of an account, or of all accounts (None), in steps.

        Args:
            account: the account; None = all accounts.
            limit: most queues, most topics and most subscriptions of the result.
            consumers_since_ms: consumers of a queue count that asked for messages at this time or later.
        """
        sums = MetricSums()
        top_queues, top_topics, top_subscriptions = _Largest(limit), _Largest(limit), _Largest(limit)
        yield from self._rank_queues(account, sums, top_queues)
        yield from self._rank_topics(account, sums, top_topics, top_subscriptions)

        def of_queue(queue: Queue, messages: int) -> QueueMetrics:
            del messages
            return self._metrics.of_queue(queue, consumers_since_ms)

        queues = yield from self._show(top_queues, self._queues.by_id, of_queue)
        # With the retained messages of the rank: a topic has up to 500 subscriptions to examine.
        topics = yield from self._show(top_topics, self._topics.by_id, topic_metrics)
        subscriptions = yield from self._show(top_subscriptions, self._topics.subscriptions, _of_subscription)
        return Top(sums, queues, topics, subscriptions)

    @staticmethod
    def _show(
        top: "_Largest", by_id: Mapping[int, _Ranked], of: Callable[[_Ranked, int], _Figures]
    ) -> Generator[None, None, list[_Figures]]:
        figures: list[_Figures] = []
        for place, (messages, _, negated_id) in enumerate(top.ranks(), 1):
            # By id: the queue may be deleted since its rank was taken.
            ranked = by_id.get(-negated_id)
            if ranked is not None:
                figures.append(of(ranked, messages))
            if place % SHOWN_A_STEP == 0:
                yield
        return figures

    def _rank_queues(self, account: str | None, sums: MetricSums, top: "_Largest") -> Generator[None]:
        runtimes = self._runtime
        oldest_ms: int | None = None
        after = ("", "")
        while queues := self._queues.in_order.behind(account, after, RANKED_A_STEP):
            for queue in queues:
                index, queue_id = queue.index, queue.queue_id
                totals = index.totals
                damaged = index.damaged_count
                held = index.live_count - damaged
                if held:
                    active, half = index.active_count + index.moving_count, index.half_count
                    delayed = index.delays.scheduled_count + index.delays.overflow_count
                    sums.active += active
                    sums.delayed += delayed
                    sums.half += half
                    # A live message is in one state. The property would add up the other states once more.
                    sums.in_flight += held - active - delayed - half
                    first_ms = index.steps.first_start_ms()
                    # The search costs as much as the rest of this loop, and most queues have no older message.
                    if oldest_ms is None or first_ms is None or first_ms < oldest_ms:
                        oldest = index.oldest_unconsumed()
                        if oldest is not None:
                            oldest_ms = sums.oldest_message_ms = _earlier(oldest_ms, index.steps.sent_at(oldest))
                sums.damaged += damaged
                sums.rewindable += index.rewindable_count
                runtime = runtimes.get(queue_id)
                if runtime is not None:
                    sums.waiting_receives += len(runtime.line.waiting)
                top.offer((held, totals.sent + totals.copied + totals.received, -queue_id))
            after = (queues[-1].account, queues[-1].name)
            yield

    def _rank_topics(
        self, account: str | None, sums: MetricSums, topics: "_Largest", subscriptions: "_Largest"
    ) -> Generator[None]:
        after = ("", "")
        while found := self._topics.in_order.behind(account, after, RANKED_A_STEP):
            ranked = 0
            for topic in found:
                topics.offer((_rank_subscriptions(topic, sums, subscriptions), topic.totals.published, -topic.topic_id))
                after = (topic.account, topic.name)
                ranked += 1 + len(topic.subscriptions)
                if ranked >= RANKED_A_STEP:
                    # The rest is read again, because topics and subscriptions may be deleted before the next step.
                    break
            yield


def _of_subscription(subscription: Subscription, messages: int) -> TopSubscription:
    del messages
    topic = subscription.topic
    return TopSubscription(topic.account, topic.name, subscription_metrics(subscription))


def _rank_subscriptions(topic: Topic, sums: MetricSums, subscriptions: "_Largest") -> int:
    """Rank the subscriptions of a topic, and return the retained messages of the topic."""
    retained = Retained(topic)
    for subscription in topic.subscriptions.values():
        deliveries = subscription.deliveries
        pending = deliveries.pending_count
        first = deliveries.first_pending() if pending else None
        if first is not None:
            retained.add(pending, first)
            sums.undelivered += pending
            sums.oldest_undelivered_ms = _earlier(sums.oldest_undelivered_ms, topic.steps.sent_at(first))
        subscriptions.offer((pending, deliveries.failed + deliveries.delivered, -subscription.subscription_id))
    return retained.count


def _earlier(time_ms: int | None, other_ms: int) -> int:
    return other_ms if time_ms is None or other_ms < time_ms else time_ms


class _Largest:
    """The largest ranks among all that were offered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[Rank] = []
        """The smallest of the largest ranks is first."""

    def offer(self, rank: Rank) -> None:
        """Take a rank, in place of the smallest rank if there are more than the limit."""
        heap = self._heap
        if len(heap) < self._limit:
            heappush(heap, rank)
        elif heap and rank > heap[0]:
            heapreplace(heap, rank)

    def ranks(self) -> list[Rank]:
        """Return the largest ranks in descending order."""
        return sorted(self._heap, reverse=True)
