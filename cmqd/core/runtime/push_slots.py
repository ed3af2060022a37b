"""Slots for requests to URLs: pushes under way, in all and per URL, and the subscriptions that wait for a slot."""

import msgspec

from cmqd.core.facts.topic import Subscription
from cmqd.core.facts.topics import TopicTable
from cmqd.core.limits import Limits


class Endpoint(msgspec.Struct, gc=False):
    """A URL with pushes under way."""

    under_way: int = 0
    line: dict[int, None] = {}
    """Subscriptions that wait for a slot at this URL, in order."""


class PushSlots:
    """The slots of all subscriptions that deliver to URLs."""

    def __init__(self, limits: Limits, topics: TopicTable, deliveries_wanted: dict[int, None]) -> None:
        """``deliveries_wanted``: a subscription enters it when a slot comes free for its URL."""
        self._limits = limits
        self._topics = topics
        self._wanted = deliveries_wanted
        self.under_way: dict[tuple[int, int], tuple[str, bool]] = {}
        """By subscription and position: the URL, and its trust at the time of the start."""
        self.doubtful_count: int = 0
        """Pushes under way to URLs that were not trusted."""
        self.trusted: dict[str, None] = {}
        """URLs that accepted the last message posted."""
        self.endpoints: dict[str, Endpoint] = {}
        """URLs with pushes under way or with subscriptions in line."""
        self._line: dict[int, None] = {}
        """Subscriptions that wait until fewer pushes are under way in all, in order."""
        self._doubtful_line: dict[int, None] = {}
        """Subscriptions to untrusted URLs, which wait until fewer pushes to untrusted URLs are under way, in order."""

    def room(self, subscription: Subscription) -> int:
        """Return the number of requests to its URL that may start now; at 0 the subscription waits in line.

        Untrusted URLs (the last post failed, or none was made yet) share half of all slots equally. Hundreds of dead
        URLs hold their slots until each request times out; the limit leaves the other half of the slots to URLs that
        answer. Once less than a quarter of all slots is free, a trusted URL is limited to a share of the free slots,
        because otherwise the first busy URLs would take the rest. (The dynamic threshold of Choudhury and Hahne,
        "Dynamic queue length thresholds for shared-memory packet switches", 1998.)
        """
        limits = self._limits
        url = subscription.attributes.endpoint
        pool, line = limits.max_pushes, self._line
        url_limit = limits.max_pushes_per_endpoint
        free = pool - len(self.under_way)
        if url in self.trusted:
            url_limit = min(url_limit, max(4 * url_limit * free // pool, 1))
        else:
            pool, line = max(pool // 2, 1), self._doubtful_line
            free = min(free, pool - self.doubtful_count)
            url_limit = min(url_limit, max(pool // max(self._topics.push_count, 1), 1))
        if free <= 0:
            line[subscription.subscription_id] = None
            return 0
        endpoint = self.endpoints.get(url)
        room = min(free, url_limit if endpoint is None else url_limit - endpoint.under_way)
        if room <= 0 and endpoint is not None:
            endpoint.line[subscription.subscription_id] = None
            self.wake_next()
        return room

    def take(self, subscription: Subscription, positions: list[int]) -> None:
        """Take a slot for each of the messages."""
        if not positions:
            return
        url = subscription.attributes.endpoint
        endpoint = self.endpoints.get(url)
        if endpoint is None:
            endpoint = self.endpoints[url] = Endpoint()
        endpoint.under_way += len(positions)
        is_trusted = url in self.trusted
        if not is_trusted:
            self.doubtful_count += len(positions)
        for position in positions:
            self.under_way[subscription.subscription_id, position] = (url, is_trusted)

    def give_back(self, subscription_id: int, position: int) -> None:
        """Free the slot of a request that is over, or is not made after all."""
        url, was_trusted = self.under_way.pop((subscription_id, position), ("", True))
        if not url:
            return
        if not was_trusted:
            self.doubtful_count -= 1
        self.endpoints[url].under_way -= 1
        self.wake_next(url)

    def wake_next(self, url: str = "") -> None:
        """Offer a free slot, at this URL and in all, to the first subscriptions in line.

        A subscription that does not use its turn passes it on by calling this method. Without that call a free slot
        would stay unused until the next request ends.
        """
        pool = self._limits.max_pushes
        if len(self.under_way) >= pool:
            return
        if self._line:
            self._wake_first(self._line)
        if self._doubtful_line and self.doubtful_count < max(pool // 2, 1):
            self._wake_first(self._doubtful_line)
        endpoint = self.endpoints.get(url)
        if endpoint is None:
            return
        if endpoint.line and endpoint.under_way < self._limits.max_pushes_per_endpoint:
            self._wake_first(endpoint.line)
        if not endpoint.under_way and not endpoint.line:
            del self.endpoints[url]

    def _wake_first(self, line: dict[int, None]) -> None:
        first = next(iter(line))
        del line[first]
        self._wanted[first] = None

    def leave(self, subscription: Subscription) -> None:
        """Remove a subscription that has ended from all lines."""
        self._line.pop(subscription.subscription_id, None)
        self._doubtful_line.pop(subscription.subscription_id, None)
        # Another subscription to the same URL regains the trust with its next success.
        self.trusted.pop(subscription.attributes.endpoint, None)
        endpoint = self.endpoints.get(subscription.attributes.endpoint)
        if endpoint is not None:
            endpoint.line.pop(subscription.subscription_id, None)
        self.wake_next(subscription.attributes.endpoint)
