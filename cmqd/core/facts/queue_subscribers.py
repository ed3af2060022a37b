"""The subscriptions that deliver to a queue, in the order of topic and name.

A queue can have 5,000,000 subscriptions, of 10,000 topics. A page of them must not hold the loop for a time that grows
with their number: the order is kept at each change, and the places of the topics are counted once after a change.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, compress, islice

from cmqd.core.facts.name_order import Selection, name_of
from cmqd.core.facts.topic import Subscription


class QueueSubscribers:
    """See the module."""

    __slots__ = ("_of_topics", "_stops", "_topics")

    def __init__(self) -> None:
        self._topics: list[str] = []
        """Names of the topics, in order."""
        self._of_topics: list[list[Subscription]] = []
        """The subscriptions of each topic, in order of name."""
        self._stops: Sequence[int] | None = None
        """0, and for each topic the number of subscriptions up to its last one; None = a change came since."""

    def __bool__(self) -> bool:
        """Return True if a subscription delivers to the queue."""
        return bool(self._topics)

    def __iter__(self) -> Iterator[Subscription]:
        """Iterate over all subscriptions."""
        return chain.from_iterable(self._of_topics)

    def add(self, subscription: Subscription) -> None:
        """Put a new subscription in its place."""
        topic = subscription.topic.name
        place = bisect_left(self._topics, topic)
        if self._topics[place : place + 1] != [topic]:
            self._topics.insert(place, topic)
            self._of_topics.insert(place, [])
        insort(self._of_topics[place], subscription, key=name_of)
        self._stops = None

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        place = bisect_left(self._topics, subscription.topic.name)
        self._of_topics[place].remove(subscription)
        if not self._of_topics[place]:
            del self._topics[place], self._of_topics[place]
        self._stops = None

    def page(self, offset: int, limit: int, selects: Selection | None) -> tuple[int, Iterator[Subscription]]:
        """Return the number of subscriptions, and at most ``limit`` of them behind the first ``offset``, as far as the
        caller sees their topics.
        """
        of_topics = self._of_topics
        if selects is not None:
            of_topics = list(compress(of_topics, selects(self._topics)))
            stops = _stops_of(of_topics)
        else:
            stops = self._stops = self._stops or _stops_of(of_topics)
        first = bisect_right(stops, offset) - 1
        behind = chain.from_iterable(of_topics[first : bisect_left(stops, offset + limit)])
        return stops[-1], islice(behind, offset - stops[first], offset - stops[first] + limit)


def _stops_of(of_topics: Sequence[Sequence[Subscription]]) -> Sequence[int]:
    return [0, *accumulate(map(len, of_topics))]
