"""Operations that describe queues, topics and subscriptions with all their attributes, for API 3.0.

API 2.0 lists names and reads the attributes of one object; these operations do both. The requests to the broker are
pipelined: one way there and back for a page, and one for the attributes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from cmqd_client import Client, QueueInfo, SubscriptionInfo, TopicInfo
from cmqd_client.errors import PermissionDenied, QueueNotFound, SubscriptionNotFound, TopicNotFound
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.operations.listing import ListRequest
from cmqd_gateway.cmq.operations.queues import QueueRequest
from cmqd_gateway.cmq.operations.subscriptions import (
    ListSubscriptionByTopic,
    ShownSubscription,
    list_subscription_by_topic,
)
from cmqd_gateway.cmq.parameters import Items, OperationRequest, Whole

T = TypeVar("T")

MAX_NAMES: Final = 100
MAX_PAGE: Final = 50


class DescriptionRequest(ListRequest, frozen=True):
    """Parameters of DescribeQueues and DescribeTopics."""

    names: Annotated[list[str], Items(0, MAX_NAMES)] | None = None
    """Names of the objects; None = all. ``search_word`` selects among them."""


class Described(msgspec.Struct, Generic[T], frozen=True):
    """A page of objects, by name."""

    total: int
    """All that match."""
    entries: Sequence[T]


class DescribedQueue(msgspec.Struct, frozen=True):
    """A queue, and the queues whose dead letters come to it."""

    info: QueueInfo
    sources: Sequence[tuple[int | None, str]]
    """Id and name; without an id, a queue that this key cannot read."""


async def describe_queue(call: Call, request: QueueRequest) -> DescribedQueue:
    """Return the attributes and counts of a queue."""
    info = await call.client.queue(request.queue_name).attributes()
    return (await _with_sources(call.client, [info]))[0]


async def describe_queues(call: Call, request: DescriptionRequest) -> Described[DescribedQueue]:
    """Return a page of queues with their attributes and counts."""
    client = call.client

    async def describe(name: str) -> QueueInfo | None:
        try:
            return await client.queue(name).attributes()
        except QueueNotFound:
            return None

    if request.names is not None:
        infos = await _named(request, request.names, describe)
        total, infos = len(infos), infos[request.offset :][: request.limit]
    else:
        page = await client.queues(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
        total, infos = page.total, await _existing(describe(name) for name in page.names[: request.limit])
    return Described(total, await _with_sources(client, infos))


async def describe_topics(call: Call, request: DescriptionRequest) -> Described[TopicInfo]:
    """Return a page of topics with their attributes and counts."""
    client = call.client

    async def describe(name: str) -> TopicInfo | None:
        try:
            return await client.topic(name).attributes()
        except TopicNotFound:
            return None

    if request.names is not None:
        infos = await _named(request, request.names, describe)
        return Described(len(infos), infos[request.offset :][: request.limit])
    page = await client.topics(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
    return Described(page.total, await _existing(describe(name) for name in page.names[: request.limit]))


class SubscriptionsRequest(OperationRequest, frozen=True):
    """Parameters of DescribeSubscriptions: the subscriptions of a topic, or of all topics to a queue."""

    topic_name: str | None = None
    queue_name: str | None = None
    """None = the subscriptions of the topic."""
    search_word: str = ""
    """Of the subscriptions of a topic."""
    offset: Annotated[int, Whole(0, 2**31 - 1)] = 0
    limit: Annotated[int, Whole(0, MAX_PAGE)] = 20


async def describe_subscriptions(call: Call, request: SubscriptionsRequest) -> Described[ShownSubscription]:
    """Return a page of the subscriptions of a topic, or of all topics to a queue, with attributes and counts."""
    client = call.client
    if request.queue_name is not None:
        page = await client.queue(request.queue_name).subscriptions(offset=request.offset, limit=max(1, request.limit))

        async def describe(topic: str, name: str) -> SubscriptionInfo | None:
            try:
                return await client.topic(topic).subscription(name).info()
            except (SubscriptionNotFound, TopicNotFound):
                return None

        total = page.total
        infos: Sequence[SubscriptionInfo] = await _existing(
            describe(each.topic, each.name) for each in page.subscriptions[: request.limit]
        )
    else:
        of_topic = await list_subscription_by_topic(
            call,
            ListSubscriptionByTopic(request.topic_name or "", request.search_word, request.offset, request.limit),
        )
        total, infos = of_topic.total, of_topic.subscriptions
    return Described(total, [ShownSubscription(info, client.account or "") for info in infos])


async def _named(
    request: DescriptionRequest, names: Sequence[str], describe: Callable[[str], Awaitable[T | None]]
) -> list[T]:
    """Return the objects with these names, as far as they exist, by name."""
    return await _existing(describe(name) for name in sorted(set(names)) if request.search_word in name)


async def _existing(described: Iterable[Awaitable[T | None]]) -> list[T]:
    """Return the objects that exist; others were deleted after their names were read."""
    return [each for each in await asyncio.gather(*described) if each is not None]


async def _with_sources(client: Client, infos: Sequence[QueueInfo]) -> list[DescribedQueue]:
    """Return queues with the ids of their sources of dead letters, whose names alone the broker reports.

    A queue has at most six sources, and an account many queues: the sources are asked for, and not searched for.
    """
    ids = {info.name: info.id for info in infos}

    async def add_id(name: str) -> None:
        # Without an id: the source was deleted meanwhile, or no pattern of this key matches its name.
        with suppress(QueueNotFound, PermissionDenied):
            ids[name] = (await client.queue(name).attributes()).id

    names = {name for info in infos for name in info.dead_letter_sources}
    await asyncio.gather(*map(add_id, names - ids.keys()))
    return [DescribedQueue(info, [(ids.get(name), name) for name in info.dead_letter_sources]) for info in infos]


DESCRIBE_QUEUE: Final = operation("DescribeQueue", QueueRequest, describe_queue)
DESCRIBE_QUEUES: Final = operation("DescribeQueues", DescriptionRequest, describe_queues)
DESCRIBE_TOPICS: Final = operation("DescribeTopics", DescriptionRequest, describe_topics)
DESCRIBE_SUBSCRIPTIONS: Final = operation("DescribeSubscriptions", SubscriptionsRequest, describe_subscriptions)

OPERATIONS: Final = [DESCRIBE_QUEUE, DESCRIBE_QUEUES, DESCRIBE_TOPICS, DESCRIBE_SUBSCRIPTIONS]
