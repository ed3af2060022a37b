"""The subscriptions of a topic that would get a message with given tags or a given routing key, and why the others not.

The answer comes from the matcher that publishes use, with the rules of a publish, and nothing changes: no message is
stored, no id is taken, no remembered answer of a publish is displaced.

The work is done in steps. 500 subscriptions with five binding keys each take about 30 ms: the sets of the matcher are
built if a filter has changed, and each key that does not match is compared with the routing key once more, to find the
word at which they part. The fate of a matching message depends on counts that change with every message. Therefore the
reply is made in a single step behind all others, and shows the state of one moment. If a filter changes in between, the
work begins anew, as the plan of a publish does.
"""

from collections.abc import Generator

from cmqd.core.domain_errors import InvalidArgument, TopicNotFound
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.retry_schedule import BACKOFF
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.filter_matching import differs_at
from cmqd.core.operations.topics.publish_plan import MAX_RESTARTS, NO_TAGS
from cmqd.core.runtime.runtime import Runtime
from cmqd.core.runtime.topic import TopicRuntime
from cmqd_types.messages import Labels
from cmqd_types.sentences import sentence
from cmqd_types.topics import FilterMatch, SubscriptionMatch, TopicMatch

UNITS_A_STEP = 1024
"""Units of the matcher that a step may use, each about a microsecond."""
FILTERS_A_STEP = 64
"""Filters that a step examines: up to 15 us for a key that does not match."""

Examined = list[tuple[Subscription, bool, list[FilterMatch]]]


class FilterTests:
    """Tests labels against the subscriptions of a topic; see the module."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._limits = facts.limits
        self._topics = facts.topics
        self._of_topic = runtime.of_topic

    def match(
        self, account: str, topic_name: str, tags: list[str] | None, routing_key: str | None
    ) -> Generator[None, None, TopicMatch]:
        """Find the subscriptions that would get a message with these labels, in steps.

        Args:
            account: the account of the topic.
            topic_name: its name.
            tags: the tags of the message, on a tag topic; None = no tags.
            routing_key: the routing key of the message, on a routing topic.

        Raises:
            TopicNotFound: there is no topic of this name, or the topic was deleted between two steps.
            InvalidArgument: the labels are not legal, or are of the other kind of topic.
        """
        topic = self._topics.find(account, topic_name)
        labels = self._checked(topic, tags, routing_key)
        runtime = self._of_topic(topic)
        restarts = 0
        while True:
            revision = topic.revision
            # After too many restarts in a single step: filters that change without end would keep the test for ever.
            for _ in self._examine(topic, runtime, labels, examined := []):
                if restarts < MAX_RESTARTS:
                    yield
                    if self._topics.by_id.get(topic.topic_id) is not topic:
                        raise TopicNotFound(topic_name)
                    if topic.revision != revision:
                        break
            if topic.revision == revision:
                return _result(topic, examined)
            restarts += 1

    def _checked(self, topic: Topic, tags: list[str] | None, routing_key: str | None) -> Labels:
        if topic.is_routing:
            if tags:
                raise InvalidArgument(
                    sentence("topic {} filters by {routing_key}; {tags} must be empty", repr(topic.name)),
                    field="tags",
                    value=tags,
                    limit="empty",
                )
            if not routing_key:
                raise InvalidArgument(
                    sentence(
                        "topic {} filters by {routing_key}; give the routing key of the message", repr(topic.name)
                    ),
                    field="routing_key",
                    value=routing_key,
                    limit="a routing key",
                )
            return self._of_topic(topic).checked(routing_key, self._limits.max_tags)
        if routing_key:
            raise InvalidArgument(
                sentence("topic {} filters by {tags}; {routing_key} must be empty", repr(topic.name)),
                field="routing_key",
                value=routing_key,
                limit="empty",
            )
        return self._of_topic(topic).checked(tags, self._limits.max_tags) if tags else NO_TAGS

    def _examine(self, topic: Topic, runtime: TopicRuntime, labels: Labels, examined: Examined) -> Generator[None]:
        """Examine all subscriptions of the present filters, in steps, and add each to ``examined``."""
        runtime.follow()
        while runtime.prepare(UNITS_A_STEP) <= 0:
            yield
        differences: dict[str, int] = {}
        units = 0
        for subscription_id, matches, filters in runtime.examine(labels):
            examined_filters: list[FilterMatch] = []
            for text, accepts in filters:
                word = None
                if not accepts and isinstance(labels, str):
                    # Many subscriptions have the same keys, and each comparison walks through all words.
                    word = differences.get(text)
                    if word is None:
                        word = differences[text] = differs_at(text, labels)
                examined_filters.append(FilterMatch(text, accepts, word))
            examined.append((topic.subscriptions[subscription_id], matches, examined_filters))
            units += 1 + len(filters)
            if units >= FILTERS_A_STEP:
                units = 0
                yield


def _result(topic: Topic, examined: Examined) -> TopicMatch:
    """Return the result in order of the names, as of now."""
    subscriptions = [
        SubscriptionMatch(
            subscription.name,
            subscription.attributes.protocol,
            subscription.attributes.endpoint,
            matches,
            _fate(subscription) if matches else "no_match",
            filters,
        )
        for subscription, matches, filters in examined
    ]
    subscriptions.sort(key=lambda match: match.subscription)
    matched = sum([match.matches for match in subscriptions])
    return TopicMatch(topic.attributes.filter_type, matched, subscriptions)


def _fate(subscription: Subscription) -> str:
    """Return the word for the way of a message that was published now; see ``FATES``."""
    deliveries = subscription.deliveries
    if deliveries.paused:
        return "paused"
    target = subscription.target
    if not subscription.is_push:
        # Before the order: the missing or full queue is the reason for which earlier messages wait.
        if target is None:
            return "queue_missing"
        if target.index.live_count >= target.index.attributes.max_backlog:
            return "queue_full"
    if deliveries.held_up:
        return "blocked"
    if subscription.is_push:
        return "behind" if deliveries.strategy == BACKOFF and deliveries.pending_count else "posted"
    return "stored" if subscription.may_flow() else "behind"
