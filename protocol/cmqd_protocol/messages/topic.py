"""Topics: create, list, configure, delete and publish."""

from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import (
    Attributes,
    Bodies,
    DedupId,
    DedupIds,
    HeadersList,
    RoutingKeys,
    TagsList,
    Unsigned,
)
from cmqd_types import topics


class CreateTopic(Request, frozen=True, tag=80):
    """Create a topic. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class EnsureTopic(Request, frozen=True, tag=81):
    """Create a topic, or confirm that the topic has the attributes named. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class ListTopics(Request, frozen=True, tag=82):
    """List a page of the account's topics, by name. Answered ``TopicList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetTopicAttributes(Request, frozen=True, tag=83):
    """Read attributes, counts and facts of a topic. Answered ``TopicInfo``."""

    topic: str


class SetTopicAttributes(Request, frozen=True, tag=84):
    """Change the attributes named. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class DeleteTopic(Request, frozen=True, tag=85):
    """Delete a topic without subscriptions. Answered ``Done``."""

    topic: str


class PublishMessages(Request, frozen=True, tag=86):
    """Publish a batch: the messages and all their copies, whole or not at all. Answered ``MessagesPublished``."""

    topic: str
    bodies: Bodies
    headers: HeadersList | None = None
    tags: TagsList | None = None
    """On a tag topic: a list per body, or a single list for all bodies; None = no tags."""
    routing_keys: RoutingKeys | None = None
    """On a routing topic: a key per body, or a single key for all bodies."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None
    after: DedupId | None = None
    """Stored only if the topic remembers this dedup id; see ``features.Feature.ORDERED_PUBLISHES``."""


class TopicInfo(topics.TopicInfo, WireMessage, frozen=True, tag=207):
    """Attributes, counts and facts of a topic; ``created`` is set by create and ensure."""

    request_id: int


class TopicList(Reply, frozen=True, tag=208):
    """A page of topics as (topic id, name), and the ``total`` number of matching topics."""

    total: int
    topics: list[tuple[int, str]]


class MessagesPublished(Reply, frozen=True, tag=206):
    """Message ids of a batch, in its order, and the number of subscriptions that every message matched."""

    message_ids: list[int]
    matched: list[int | None]
    """0 = the message was discarded; None = already published with this sequence number or dedup id."""
