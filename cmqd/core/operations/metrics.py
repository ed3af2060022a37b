"""Figures about queues and topics for monitoring: pages in order of name, and the totals of accounts.

These operations change no fact. A call examines a bounded number of entries, because an account may have 10,000 queues:
a page has ``ENTRIES_A_PAGE`` entries, and the totals of an account are added up in steps.

The totals of an account are the totals of its deleted queues (facts) and the totals of its present queues, as of the
last step that examined the queue. A sum over the present queues in a single call would hold the loop. Pages show
different moments: a sum over pages could lose or double a queue that is deleted in between, and be lower than the sum
before.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.gone_totals import AccountTotals, no_totals
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import check_range
from cmqd.core.names import every_name
from cmqd.core.runtime.runtime import Runtime
from cmqd_types.metrics import QueueMetrics, SubscriptionMetrics, TopicMetrics
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals, add_totals, subtract_totals

T = TypeVar("T", Queue, Topic)

MAX_LIMIT = 1000
"""Largest ``limit`` of a page."""
ENTRIES_A_PAGE = 200
"""Queues, or topics and subscriptions, of a page: less than 2 ms. A topic is never divided, and has up to 500
subscriptions."""
EXAMINED_A_PAGE = 2000
"""Names that are compared with the patterns of a key."""
COUNTED_A_STEP = 400
"""Queues, topics or subscriptions of a step that adds up totals: less than 2 ms if all of them changed."""


class Metrics:
    """Reads figures; see the module."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._queues = facts.queues
        self._topics = facts.topics
        self._gone = facts.gone_totals
        self._runtime = runtime.queues
        self._queue_names = _SortedNames[Queue](self._queues.names)
        self._topic_names = _SortedNames[Topic](self._topics.names)
        self._counted: dict[int, tuple[str, QueueTotals | TopicTotals | SubscriptionTotals]] = {}
        """By id of a queue, topic or subscription: its account, and its totals as they were last added up."""
        self._sums: dict[str, AccountTotals] = {}
        """By account: the sums of ``_counted``."""

    def queue_page(
        self,
        account: str | None,
        after: tuple[str, str],
        limit: int,
        shows: Callable[[str], bool] = every_name,
    ) -> tuple[list[QueueMetrics], tuple[str, str] | None]:
        """Return the metrics of queues behind ``after`` (account, name), by account and name.

        Args:
            account: the account; None = all accounts.
            after: where the previous page ended.
            limit: most queues of the page; a page may have fewer queues or be empty.
            shows: selects the names that the caller may see.

        Returns:
            The page, and the next ``after``; None at the end.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        check_range("limit", limit, 1, MAX_LIMIT)
        most = min(limit, ENTRIES_A_PAGE)
        page: list[QueueMetrics] = []
        for examined, queue in enumerate(self._queue_names.behind(account, after, self._queues.revision)):
            if len(page) == most or examined == EXAMINED_A_PAGE:
                return page, after
            after = (queue.account, queue.name)
            if shows(queue.name):
                page.append(self._of_queue(queue))
        return page, None

    def topic_page(
        self,
        account: str | None,
        after: tuple[str, str],
        limit: int,
        shows: Callable[[str], bool] = every_name,
    ) -> tuple[list[TopicMetrics], tuple[str, str] | None]:
        """Return the metrics of topics with their subscriptions; as :meth:`queue_page`."""
        check_range("limit", limit, 1, MAX_LIMIT)
        page: list[TopicMetrics] = []
        entries = 0
        for examined, topic in enumerate(self._topic_names.behind(account, after, self._topics.names_revision)):
            is_full = len(page) == limit or entries + len(topic.subscriptions) >= ENTRIES_A_PAGE
            if (page and is_full) or examined == EXAMINED_A_PAGE:
                return page, after
            after = (topic.account, topic.name)
            if shows(topic.name):
                page.append(_of_topic(topic))
                entries += 1 + len(topic.subscriptions)
        return page, None

    def _of_queue(self, queue: Queue) -> QueueMetrics:
        index = queue.index
        oldest = index.oldest_unconsumed()
        runtime = self._runtime.get(queue.queue_id)
        return QueueMetrics(
            queue.account,
            queue.name,
            queue.queue_id,
            index.active_count + index.moving_count,
            index.in_flight_count,
            index.delays.scheduled_count + index.delays.overflow_count,
            index.half_count,
            index.rewindable_count,
            len(index.damaged),
            0 if runtime is None else len(runtime.line.waiting),
            None if oldest is None else index.steps.sent_at(oldest),
            0 if runtime is None else runtime.received_bytes,
            # A copy: the reply waits for the disk, and newer records count in place.
            msgspec.structs.replace(index.totals),
        )

    # ------------------------------------------------------------------ totals of accounts

    def steps(self) -> Iterator[None]:
        """Add up the totals of all queues, topics and subscriptions, a bounded number in each step."""
        # Copies of the ids, because queues come and go between two steps.
        for ids, find in (
            (list(self._queues.by_id), self._queue_totals),
            (list(self._topics.by_id), self._topic_totals),
            (list(self._topics.subscriptions), self._subscription_totals),
        ):
            for start in range(0, len(ids), COUNTED_A_STEP):
                for number in ids[start : start + COUNTED_A_STEP]:
                    found = find(number)
                    if found is not None:
                        self._count(number, *found)
                yield

    def totals(self, account: str | None) -> AccountTotals:
        """Return the totals of an account, or of all accounts (None), as of the last :meth:`steps`.

        A total is never lower than in an earlier call, except 0 after a loss: a deleted queue leaves its totals to its
        account.
        """
        self._forget_gone()
        accounts = {*self._gone.by_account, *self._sums} if account is None else {account}
        found = no_totals()
        for name in accounts:
            for sums in (self._gone.by_account.get(name), self._sums.get(name)):
                if sums is not None:
                    add_totals(found.queues, sums.queues)
                    add_totals(found.topics, sums.topics)
                    add_totals(found.subscriptions, sums.subscriptions)
        return found

    def objects(self, account: str | None) -> tuple[int, int, int]:
        """Return the numbers of queues, topics and subscriptions of an account, or of all accounts (None)."""
        if account is None:
            return len(self._queues.by_id), len(self._topics.by_id), len(self._topics.subscriptions)
        topics = self._topics.names.get(account, {})
        subscriptions = sum(len(topic.subscriptions) for topic in topics.values())
        return len(self._queues.names.get(account, ())), len(topics), subscriptions

    def _forget_gone(self) -> None:
        """Take the totals of deleted queues and topics out of the sums: their accounts have them as facts now."""
        present = self._queues.by_id.keys() | self._topics.by_id.keys() | self._topics.subscriptions.keys()
        for number in self._counted.keys() - present:
            account, totals = self._counted.pop(number)
            subtract_totals(_of_kind(self._sums[account], totals), totals)

    def _count(self, number: int, account: str, totals: QueueTotals | TopicTotals | SubscriptionTotals) -> None:
        counted = self._counted.get(number)
        if counted is not None and counted[1] == totals:
            return
        sums = self._sums.get(account)
        if sums is None:
            sums = self._sums[account] = no_totals()
        target = _of_kind(sums, totals)
        if counted is not None:
            subtract_totals(target, counted[1])
        add_totals(target, totals)
        self._counted[number] = (account, msgspec.structs.replace(totals))

    def _queue_totals(self, queue_id: int) -> tuple[str, QueueTotals] | None:
        queue = self._queues.by_id.get(queue_id)
        return None if queue is None else (queue.account, queue.index.totals)

    def _topic_totals(self, topic_id: int) -> tuple[str, TopicTotals] | None:
        topic = self._topics.by_id.get(topic_id)
        return None if topic is None else (topic.account, topic.totals)

    def _subscription_totals(self, subscription_id: int) -> tuple[str, SubscriptionTotals] | None:
        subscription = self._topics.subscriptions.get(subscription_id)
        return None if subscription is None else (subscription.account, subscription.deliveries.totals())


def _of_kind(
    sums: AccountTotals, totals: QueueTotals | TopicTotals | SubscriptionTotals
) -> QueueTotals | TopicTotals | SubscriptionTotals:
    match totals:
        case QueueTotals():
            return sums.queues
        case TopicTotals():
            return sums.topics
        case SubscriptionTotals():
            return sums.subscriptions


def _of_topic(topic: Topic) -> TopicMetrics:
    subscriptions = [_of_subscription(one) for one in topic.subscriptions.values()]
    lacking = [one for one in topic.subscriptions.values() if one.deliveries.pending_count]
    # A union of many scattered sets takes milliseconds, so the bound of the counts and positions stands for it.
    firsts = [first for one in lacking if (first := one.deliveries.first_pending()) is not None]
    retained = min(
        sum(one.deliveries.pending_count for one in lacking), topic.next_position - min(firsts) if firsts else 0
    )
    return TopicMetrics(
        topic.account,
        topic.name,
        topic.topic_id,
        retained,
        msgspec.structs.replace(topic.totals),
        subscriptions,
    )


def _of_subscription(subscription: Subscription) -> SubscriptionMetrics:
    deliveries = subscription.deliveries
    first = deliveries.first_pending()
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


class _SortedNames(Generic[T]):
    """The names of the queues, or topics, of an account in order: sorted for a page, kept for the next pages."""

    def __init__(self, names: Mapping[str, Mapping[str, T]]) -> None:
        self._names = names
        self._account = ""
        self._revision = -1
        self._sorted: list[str] = []

    def behind(self, account: str | None, after: tuple[str, str], revision: int) -> Iterator[T]:
        """Yield the queues behind ``after`` (account, name). ``revision``: changes whenever a name comes or goes."""
        after_account, after_name = after
        if account is not None:
            accounts = [account] if account >= after_account and account in self._names else []
        else:
            accounts = sorted(name for name in self._names if name >= after_account)
        for name in accounts:
            found = self._names[name]
            ordered = self._in_order(name, found, revision)
            start = bisect_right(ordered, after_name) if name == after_account else 0
            for place in range(start, len(ordered)):
                yield found[ordered[place]]

    def _in_order(self, account: str, names: Mapping[str, T], revision: int) -> list[str]:
        if (account, revision) != (self._account, self._revision):
            self._account, self._revision, self._sorted = account, revision, sorted(names)
        return self._sorted
