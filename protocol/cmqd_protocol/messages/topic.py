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
    """Make a topic. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class EnsureTopic(Request, frozen=True, tag=81):
    """Make it, or confirm that the one there has these attributes. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class ListTopics(Request, frozen=True, tag=82):
    """A page of the account's topics in order of name. Answered ``TopicList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetTopicAttributes(Request, frozen=True, tag=83):
    """Answered ``TopicInfo``."""

    topic: str


class SetTopicAttributes(Request, frozen=True, tag=84):
    """Change the attributes named. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class DeleteTopic(Request, frozen=True, tag=85):
    """Remove a topic without subscriptions. Answered ``Done``."""

    topic: str


class PublishMessages(Request, frozen=True, tag=86):
    """Publish a batch: the messages and all their copies, whole or not at all. Answered ``MessagesPublished``."""

    topic: str
    bodies: Bodies
    headers: HeadersList | None = None
    tags: TagsList | None = None
    """On a tag topic: one list for all bodies, or one for each; None = no tags."""
    routing_keys: RoutingKeys | None = None
    """On a routing topic: one key for all bodies, or one for each."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None
    after: DedupId | None = None
    """Stored only if the topic remembers this dedup id; see ``features.Feature.ORDERED_PUBLISHES``."""


class TopicInfo(topics.TopicInfo, WireMessage, frozen=True, tag=207):
    """Attributes, counts and facts of a topic; ``created`` is for ``create_topic`` and ``ensure_topic``."""

    request_id: int


class TopicList(Reply, frozen=True, tag=208):
    """``total`` that match, and the wanted part as (topic id, name)."""

    total: int
    topics: list[tuple[int, str]]


class MessagesPublished(Reply, frozen=True, tag=206):
    """The ids of a batch, in its order, and how many subscriptions each message matched."""

    message_ids: list[int]
    matched: list[int | None]
    """0 = it was discarded; None = it was published before, under this number or dedup id."""
