"""Copies definitions from an endpoint of API 2.0 to a broker: queues, then topics, then subscriptions.

The order matters. A dead-letter queue must exist before a policy names it, and a queue before a subscription does; so
all queues are made first, without policies, then the policies are set. A definition that fails is reported, and the
next definition is copied. A second run finds the results of the first run.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

import msgspec

from cmq_cli.imports.definitions import (
    QueueDefinition,
    SubscriptionDefinition,
    TopicDefinition,
    queue_definition,
    subscription_definition,
    topic_definition,
)
from cmq_cli.imports.endpoint import CmqEndpoint, EndpointError
from cmqd_client import Client, CmqError
from cmqd_client.errors import AttributesDiffer

NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})
PAGE: Final = 50
"""Entries of a list; CMQ allows no more."""

CREATED, EXISTS, DIFFERS, FAILED, FOUND = "created", "exists", "differs", "failed", "found"
"""Results of a copy. ``exists``: with the same attributes before the run. ``found``: at the source, in a trial."""


class Copied(msgspec.Struct, kw_only=True):
    """The result of a copy."""

    kind: str
    """``queue``, ``topic`` or ``subscription``."""
    name: str
    """Of a subscription ``TOPIC/NAME``."""
    result: str
    notes: list[str]
    secret: str | None = None
    """Key of the signatures of a new subscription to a URL. The broker shows it this once."""


class Selection(msgspec.Struct, frozen=True):
    """Patterns of names with ``*`` and ``?``; without a pattern, all names."""

    queues: Sequence[str] = ()
    topics: Sequence[str] = ()


def is_selected(name: str, patterns: Sequence[str]) -> bool:
    """True if a pattern matches the name, or there is no pattern."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


class Source(msgspec.Struct, frozen=True):
    """The endpoints of queues and topics, which the older CMQ serves under different hosts."""

    queues: CmqEndpoint
    topics: CmqEndpoint


async def listed(
    endpoint: CmqEndpoint, action: str, field: str, parameters: Mapping[str, str] = NO_PARAMETERS
) -> AsyncIterator[dict[str, Any]]:
    """Yield the entries of a list, page by page.

    Raises:
        EndpointError: a page cannot be read.
    """
    offset = 0
    while True:
        answer = await endpoint.call(action, {"offset": offset, "limit": PAGE, **parameters})
        entries: list[dict[str, Any]] = answer.get(field) or []
        for entry in entries:
            yield entry
        offset += len(entries)
        if not entries or offset >= int(answer["totalCount"]):
            return


async def copy_definitions(
    source: Source,
    target: Client,
    selection: Selection,
    *,
    is_trial: bool,
    on_copied: Callable[[Copied], object],
) -> list[str]:
    """Copy definitions; return the names of the queues that are at the target now.

    Args:
        source: the endpoints.
        target: the broker.
        selection: the queues and topics to copy.
        is_trial: read the definitions, and change nothing.
        on_copied: called with each result.

    Raises:
        EndpointError: a list of names cannot be read.
    """
    queues = await _copy_queues(source.queues, target, selection, is_trial, on_copied)
    if selection.queues and not selection.topics:
        return queues  # chosen queues, and no topics
    async for entry in listed(source.topics, "ListTopic", "topicList"):
        name = str(entry["topicName"])
        if is_selected(name, selection.topics):
            await _copy_topic(source.topics, target, name, is_trial, on_copied)
    return queues


async def _copy_queues(
    source: CmqEndpoint,
    target: Client,
    selection: Selection,
    is_trial: bool,
    on_copied: Callable[[Copied], object],
) -> list[str]:
    names_by_id = {
        str(entry.get("queueId")): str(entry["queueName"]) async for entry in listed(source, "ListQueue", "queueList")
    }
    if selection.topics and not selection.queues:
        return []  # chosen topics, and no queues
    copied: list[tuple[QueueDefinition, Copied]] = []
    for name in sorted(names_by_id.values()):
        if not is_selected(name, selection.queues):
            continue
        result = Copied(kind="queue", name=name, result=FOUND, notes=[])
        try:
            answer = await source.call("GetQueueAttributes", {"queueName": name})
            definition = queue_definition(name, answer, names_by_id)
            result.notes = definition.notes
            if not is_trial:
                info = await target.ensure_queue_info(name, **definition.attributes)
                result.result = CREATED if info.created else EXISTS
            copied.append((definition, result))
        except AttributesDiffer as error:
            result.result = DIFFERS
            result.notes.append(error.text)
            on_copied(result)
        except (EndpointError, CmqError, ValueError) as error:
            result.result = FAILED
            result.notes.append(str(error))
            on_copied(result)
    for definition, result in copied:
        if definition.dead_letters is not None and not is_trial:
            await _copy_policy(target, definition, result)
        on_copied(result)
    return [] if is_trial else [definition.name for definition, _ in copied]


async def _copy_policy(target: Client, definition: QueueDefinition, result: Copied) -> None:
    assert definition.dead_letters is not None
    attributes = definition.dead_letters.attributes()
    try:
        if result.result == CREATED:
            await target.queue(definition.name).set_attributes(**attributes)
        else:
            await target.ensure_queue(definition.name, **attributes)
    except CmqError as error:
        result.result = DIFFERS if isinstance(error, AttributesDiffer) else FAILED
        result.notes.append(f"dead-letter policy: {error.text}")


async def _copy_topic(
    source: CmqEndpoint, target: Client, name: str, is_trial: bool, on_copied: Callable[[Copied], object]
) -> None:
    result = Copied(kind="topic", name=name, result=FOUND, notes=[])
    topic: TopicDefinition | None = None
    try:
        topic = topic_definition(name, await source.call("GetTopicAttributes", {"topicName": name}))
        result.notes = topic.notes
        if not is_trial:
            info = await target.ensure_topic_info(name, **topic.attributes)
            result.result = CREATED if info.created else EXISTS
    except (EndpointError, CmqError, ValueError) as error:
        result.result = DIFFERS if isinstance(error, AttributesDiffer) else FAILED
        result.notes.append(str(error))
    on_copied(result)
    if topic is None or result.result == FAILED:
        return
    try:
        entries = [
            entry async for entry in listed(source, "ListSubscriptionByTopic", "subscriptionList", {"topicName": name})
        ]
    except EndpointError as error:
        on_copied(Copied(kind="subscription", name=f"{name}/*", result=FAILED, notes=[str(error)]))
        return
    for entry in entries:
        on_copied(await _copy_subscription(source, target, topic, str(entry["subscriptionName"]), is_trial))


async def _copy_subscription(
    source: CmqEndpoint, target: Client, topic: TopicDefinition, name: str, is_trial: bool
) -> Copied:
    result = Copied(kind="subscription", name=f"{topic.name}/{name}", result=FOUND, notes=[])
    try:
        answer = await source.call("GetSubscriptionAttributes", {"topicName": topic.name, "subscriptionName": name})
        definition: SubscriptionDefinition = subscription_definition(topic, name, answer)
        result.notes = definition.notes
        if not is_trial:
            info = await target.topic(topic.name).subscribe_info(
                name, queue=definition.queue, url=definition.url, ensure=True, **definition.attributes
            )
            result.result, result.secret = CREATED if info.created else EXISTS, info.secret
    except (EndpointError, CmqError, ValueError) as error:
        result.result = DIFFERS if isinstance(error, AttributesDiffer) else FAILED
        result.notes.append(str(error))
    return result
