"""Runtime of a topic beside its facts: the matcher of its filters, and answers that publishes ask for again and again.

Matcher and answers follow from the facts. The topic counts the changes that make an answer wrong (``Topic.revision``,
``Topic.routes``), and an answer is used only under the count of its making. Facts therefore know no cache.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.filter_matching import KeyRules, Matcher, TagRules, check_routing_key, check_tags
from cmqd_types.messages import Labels

CHECKED_LABELS = 4096
"""Tags or routing keys of one topic that are remembered as legal: a new check costs as much as the whole match."""
AUDIENCES = 4096
"""Audiences of one topic that are remembered: at 500 subscribers an audience takes up to 8 KiB."""


class Audience:
    """The subscriptions that match a message, split into ``queues`` that take the message at once and ``waiting``."""

    __slots__ = ("names", "queues", "repeats", "size", "subscriptions", "waiting")

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self.size = len(subscriptions)
        self.subscriptions = [subscription for subscription in subscriptions if subscription.flows]
        """The subscriptions of ``queues``, in the same order."""
        self.queues = [subscription.target for subscription in self.subscriptions if subscription.target is not None]
        self.names = [subscription.name for subscription in self.subscriptions]
        self.repeats = len({queue.queue_id for queue in self.queues}) < len(self.queues)
        """Two subscriptions deliver to the same queue."""
        self.waiting = [subscription for subscription in subscriptions if not subscription.flows]


class TopicRuntime:
    """The runtime of a topic; made at the first publish, forgotten by a restart."""

    __slots__ = ("_audiences", "_checked_labels", "_matcher", "_revision", "_routes", "_topic", "exhausted")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._revision = self._routes = -1
        # Labels have the form of the topic's kind: the plan of a publish checks the form, and the rules rely on the
        # check.
        self._matcher: Matcher[Any] = Matcher(TagRules())
        self._audiences: dict[int, Audience] = {}
        self._checked_labels: dict[tuple[str, ...] | str, Labels] = {}
        self.exhausted: dict[int, Subscription] = {}
        """Subscriptions with exhausted messages, which the next publish gives one more attempt."""

    def follow(self) -> None:
        """Take the present filters. A plan calls this when it begins, and begins anew when the revision changes."""
        if self._revision != self._topic.revision:
            self._revision = self._topic.revision
            self._matcher = Matcher[Any](KeyRules() if self._topic.is_routing else TagRules())
            for subscription_id, subscription in self._topic.subscriptions.items():
                self._matcher.set(subscription_id, subscription.filters)

    def prepare(self, units: int) -> int:
        """Make the matcher ready, about ``units`` of work; see :meth:`Matcher.prepare`."""
        return self._matcher.prepare(units)

    def checked(self, labels: Labels, max_tags: int) -> Labels:
        """Check labels of the topic's kind and return them in the form of its matcher.

        Raises:
            InvalidArgument: the labels are not legal.
        """
        key = labels if isinstance(labels, str) else tuple(labels)
        checked = self._checked_labels.get(key)
        if checked is None:
            checked = check_routing_key(labels) if isinstance(labels, str) else check_tags(labels, max_tags)
            if len(self._checked_labels) >= CHECKED_LABELS:
                self._checked_labels.clear()
            self._checked_labels[key] = checked
        return checked

    def known_members(self, labels: Labels) -> int | None:
        """Return the set of subscriptions that match these labels, or None if it is not remembered."""
        return self._matcher.known(labels if isinstance(labels, str) else tuple(labels))

    def find_members(self, labels: Labels) -> int:
        """Return the set of subscriptions that match these labels."""
        return self._matcher.find(labels if isinstance(labels, str) else tuple(labels))

    def examine(self, labels: Labels) -> Iterator[tuple[int, bool, list[tuple[str, bool]]]]:
        """Yield every subscription with its filters; see :meth:`Matcher.examine`."""
        return self._matcher.examine(labels if isinstance(labels, str) else tuple(labels))

    def subscribers(self, members: int) -> tuple[int, ...]:
        """Return the ids of the subscriptions of a set, ascending."""
        return self._matcher.subscribers(members)

    def audience(self, members: int) -> Audience:
        """Return the subscriptions of a set that is not empty, split by the way they take messages now."""
        if self._routes != self._topic.routes:
            self._routes = self._topic.routes
            self._audiences.clear()
        audience = self._audiences.get(members)
        if audience is None:
            if len(self._audiences) >= AUDIENCES:
                self._audiences.clear()
            subscriptions = self._topic.subscriptions
            audience = Audience([subscriptions[number] for number in self._matcher.subscribers(members)])
            self._audiences[members] = audience
        return audience
