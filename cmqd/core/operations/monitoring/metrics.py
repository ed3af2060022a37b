"""Figures about queues and topics for monitoring: pages in order of name, and the totals of accounts.

These operations change no fact. A call examines a bounded number of entries, because an account may have 10,000 queues:
a page has ``ENTRIES_A_PAGE`` entries, and the totals of an account are added up in steps.

The totals of an account are the totals of its deleted queues (facts) and the totals of its present queues, as of the
last step that examined the queue (:mod:`cmqd.core.runtime.counted_totals`). A sum over the present queues in a single
call would hold the loop. Pages show different moments: a sum over pages could lose or double a queue that is deleted in
between, and be lower than the sum before.
"""

from collections.abc import Callable, Generator, Sequence

import msgspec

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.gone_totals import AccountTotals, no_totals
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import check_range
from cmqd.core.names import every_name
from cmqd.core.runtime.consumers import present
from cmqd.core.runtime.runtime import Runtime
from cmqd_types.metrics import QueueMetrics, SubscriptionMetrics, TopicMetrics
from cmqd_types.totals import add_totals

MAX_LIMIT = 1000
"""Largest ``limit`` of a page."""
ENTRIES_A_PAGE = 200
"""Queues, or topics and subscriptions, of a page: about 0.5 ms. A topic is never divided, and has up to 500
subscriptions."""
EXAMINED_A_PAGE = 2000
"""Names that are compared with the patterns of a key, if the comparison is cheap."""
COUNTED_A_STEP = 200
"""Queues, or topics and subscriptions, of a step that counts totals: 0.1 ms, and 0.6 ms if all of them changed."""
ACCOUNTS_A_STEP = 100
"""Accounts of a step that adds up their totals: less than 1 ms."""


class Metrics:
    """Reads figures; see the module."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._queues = facts.queues
        self._topics = facts.topics
        self._gone = facts.gone_totals
        self._runtime = runtime.queues
        self._counted = runtime.counted

    @staticmethod
    def check_limit(limit: int) -> None:
        """Check the limit of a page.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        check_range("limit", limit, 1, MAX_LIMIT)

    def queue_page(
        self,
        account: str | None,
        after: tuple[str, str],
        limit: int,
        shows: Callable[[str], bool] = every_name,
        most_examined: int = EXAMINED_A_PAGE,
        *,
        consumers_since_ms: int = 0,
    ) -> tuple[list[QueueMetrics], tuple[str, str] | None]:
        """Return the metrics of queues behind ``after`` (account, name), by account and name.

        Args:
            account: the account; None = all accounts.
            after: where the previous page ended.
            limit: most queues of the page; a page may have fewer queues or be empty.
            shows: selects the names that the caller may see.
            most_examined: most names that are compared by ``shows``; the cost of a comparison is the caller's.
            consumers_since_ms: consumers count that asked for messages at this time or later.

        Returns:
            The page, and the next ``after``; None at the end.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        self.check_limit(limit)
        most = min(limit, ENTRIES_A_PAGE)
        page: list[QueueMetrics] = []
        for examined, queue in enumerate(self._queues.in_order.behind(account, after, most_examined + 1)):
            if len(page) == most or examined == most_examined:
                return page, after
            after = (queue.account, queue.name)
            if shows(queue.name):
                page.append(self.of_queue(queue, consumers_since_ms))
        return page, None

    def topic_page(
        self,
        account: str | None,
        after: tuple[str, str],
        limit: int,
        shows: Callable[[str], bool] = every_name,
        most_examined: int = EXAMINED_A_PAGE,
    ) -> tuple[list[TopicMetrics], tuple[str, str] | None]:
        """Return the metrics of topics with their subscriptions; as :meth:`queue_page`."""
        self.check_limit(limit)
        page: list[TopicMetrics] = []
        entries = 0
        for examined, topic in enumerate(self._topics.in_order.behind(account, after, most_examined + 1)):
            is_full = len(page) == limit or entries + len(topic.subscriptions) >= ENTRIES_A_PAGE
            if (page and is_full) or examined == most_examined:
                return page, after
            after = (topic.account, topic.name)
            if shows(topic.name):
                page.append(_with_subscriptions(topic))
                entries += 1 + len(topic.subscriptions)
        return page, None

    def of_queue(self, queue: Queue, consumers_since_ms: int) -> QueueMetrics:
        """Return the metrics of a queue, with the consumers that asked for messages at a time or later."""
        index = queue.index
        oldest = index.oldest_unconsumed()
        runtime = self._runtime.get(queue.queue_id)
        return QueueMetrics(
            queue.account,
            queue.name,
            queue.queue_id,
            index.active_count + index.moving_count,
            index.readable_in_flight_count,
            index.delays.scheduled_count + index.delays.overflow_count,
            index.half_count,
            index.rewindable_count,
            index.damaged_count,
            0 if runtime is None else len(runtime.line.waiting),
            None if oldest is None else index.steps.sent_at(oldest),
            0 if runtime is None else runtime.received_bytes,
            # A copy: the reply waits for the disk, and newer records count in place.
            msgspec.structs.replace(index.totals),
            0 if runtime is None else present(runtime.consumers, consumers_since_ms),
        )

    # ------------------------------------------------------------------ totals of accounts

    def totals(self, account: str | None) -> Generator[None, None, AccountTotals]:
        """Add up the totals of an account, or of all accounts (None), a bounded number in each step, and return them.

        A total is never lower than in an earlier call, except 0 after a loss: a deleted queue leaves its totals to its
        account. Queues may come and go between two steps; calls may overlap.
        """
        yield from self._count_queues(account)
        yield from self._count_topics(account)
        found = no_totals()
        accounts = list(self._gone.by_account.keys() | self._counted.accounts()) if account is None else [account]
        for start in range(0, len(accounts), ACCOUNTS_A_STEP):
            if start:
                yield
            for name in accounts[start : start + ACCOUNTS_A_STEP]:
                # Both parts in one step: a deletion in between would move totals from one part to the other.
                for sums in (self._gone.by_account.get(name), self._counted.sums(name)):
                    if sums is not None:
                        add_totals(found.queues, sums.queues)
                        add_totals(found.topics, sums.topics)
                        add_totals(found.subscriptions, sums.subscriptions)
        return found

    def _count_queues(self, account: str | None) -> Generator[None]:
        after = ("", "")
        while queues := self._queues.in_order.behind(account, after, COUNTED_A_STEP):
            for queue in queues:
                self._counted.count(queue.queue_id, queue.account, queue.index.totals)
            after = (queues[-1].account, queues[-1].name)
            yield

    def _count_topics(self, account: str | None) -> Generator[None]:
        after = ("", "")
        while topics := self._topics.in_order.behind(account, after, COUNTED_A_STEP):
            counted = 0
            for topic in topics:
                self._counted.count(topic.topic_id, topic.account, topic.totals)
                for subscription in topic.subscriptions.values():
                    self._counted.count(subscription.subscription_id, topic.account, subscription.deliveries.totals())
                after = (topic.account, topic.name)
                counted += 1 + len(topic.subscriptions)
                if counted >= COUNTED_A_STEP:
                    # The rest is read again: a topic that is deleted before the next step must not be counted.
                    break
            yield

    def objects(self, account: str | None) -> tuple[int, int, int]:
        """Return the numbers of queues, topics and subscriptions of an account, or of all accounts (None)."""
        if account is None:
            return len(self._queues.by_id), len(self._topics.by_id), len(self._topics.subscriptions)
        topics = self._topics.names.get(account, {})
        subscriptions = sum(len(topic.subscriptions) for topic in topics.values())
        return len(self._queues.names.get(account, ())), len(topics), subscriptions


class Retained:
    """Counts the messages that a subscription of a topic lacks; an upper bound if several subscriptions lack messages.

    A union of many scattered sets takes milliseconds, so the bound of the counts and positions stands for the union.
    """

    def __init__(self, topic: Topic) -> None:
        self._next_position = topic.next_position
        self._first = topic.next_position
        self._pending = 0

    def add(self, pending: int, first: int) -> None:
        """Add a subscription with the number of its undelivered messages and the position of the first of them."""
        self._pending += pending
        if first < self._first:
            self._first = first

    @property
    def count(self) -> int:
        """The retained messages."""
        return min(self._pending, self._next_position - self._first)


def topic_metrics(topic: Topic, retained: int, subscriptions: Sequence[SubscriptionMetrics] = ()) -> TopicMetrics:
    """Return the metrics of a topic with its retained messages, and with these metrics of subscriptions."""
    return TopicMetrics(
        topic.account,
        topic.name,
        topic.topic_id,
        retained,
        msgspec.structs.replace(topic.totals),
        list(subscriptions),
    )


def _with_subscriptions(topic: Topic) -> TopicMetrics:
    retained = Retained(topic)
    subscriptions: list[SubscriptionMetrics] = []
    for subscription in topic.subscriptions.values():
        deliveries = subscription.deliveries
        first = deliveries.first_pending()
        if first is not None:
            retained.add(deliveries.pending_count, first)
        subscriptions.append(_metrics_of(subscription, first))
    return topic_metrics(topic, retained.count, subscriptions)


def subscription_metrics(subscription: Subscription) -> SubscriptionMetrics:
    """Return the metrics of a subscription."""
    return _metrics_of(subscription, subscription.deliveries.first_pending())


def _metrics_of(subscription: Subscription, first: int | None) -> SubscriptionMetrics:
    """Return the metrics of a subscription with its first undelivered position."""
    deliveries = subscription.deliveries
    return SubscriptionMetrics(
        subscription.name,
        subscription.subscription_id,
        subscription.attributes.protocol,
        deliveries.waiting_count,
        deliveries.retrying_count,
        deliveries.held_up,
        None if first is None else subscription.topic.steps.sent_at(first),
        deliveries.totals(),
    )
