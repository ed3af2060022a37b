"""Operations that publish: a message, or a batch that shares its tags or routing key."""

from collections.abc import Awaitable, Sequence
from typing import Annotated, Final

from cmqd_client import Published
from cmqd_client.errors import InvalidArgument, PermissionDenied
from cmqd_gateway.cmq.body_parameters import Body, check_bodies
from cmqd_gateway.cmq.ignored_keys import is_of_other_kind
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.operations.filters import check_key, check_tags, is_tag
from cmqd_gateway.cmq.parameters import Items, OperationRequest
from cmqd_gateway.cmq.reasons import Reason, Refusal

MAX_TAGS: Final = 10
"""CMQ's documents contradict one another: a message has 5 tags or 10 tags; the broker takes 10."""

Tags = Annotated[list[str], Items(1, MAX_TAGS, Reason.TOO_MANY_TAGS)]


class PublishMessage(OperationRequest, frozen=True):
    """Parameters of PublishMessage."""

    topic_name: str
    msg_body: Body
    msg_tag: Tags | None = None
    routing_key: str | None = None
    """CMQ's Python SDK sends an empty key with every publish."""


class BatchPublishMessage(OperationRequest, frozen=True):
    """Parameters of BatchPublishMessage."""

    topic_name: str
    msg_body: Annotated[list[Body], Items()]
    msg_tag: Tags | None = None
    routing_key: str | None = None


async def publish_message(call: Call, request: PublishMessage) -> Sequence[str]:
    """Publish a message."""
    bodies = [request.msg_body]
    return await _publish(call, request.topic_name, bodies, request.msg_tag, request.routing_key)


async def batch_publish_message(call: Call, request: BatchPublishMessage) -> Sequence[str]:
    """Publish messages in one step: all are published, or none is."""
    return await _publish(call, request.topic_name, request.msg_body, request.msg_tag, request.routing_key)


async def publish_with_entries(call: Call, request: PublishMessage) -> Sequence[str]:
    """Publish a message with tags, or with the only entry of the tags as routing key, by the kind of the topic.

    A single entry is tried as a tag. A topic with routing keys refuses the tag, and nothing was published. A key is
    never ignored: an entry that cannot be a tag is an error at a topic that filters by tags.
    """
    entries = request.msg_tag or []
    bodies, topic_name = [request.msg_body], request.topic_name
    if len(entries) == 1:
        if is_tag(entries[0]):
            try:
                return await _publish(call, topic_name, bodies, entries, None)
            except InvalidArgument as refusal:
                if not is_of_other_kind(refusal, "tags"):
                    raise
        try:
            return await _publish(call, topic_name, bodies, None, entries[0], can_ignore=False)
        except InvalidArgument as refusal:
            if is_of_other_kind(refusal, "routing_keys"):
                check_tags(call.shown("msg_tag"), entries)
            raise
    return await _publish(call, topic_name, bodies, entries, None)


async def _publish(
    call: Call,
    topic_name: str,
    bodies: Sequence[bytes],
    tags: Sequence[str] | None,
    routing_key: str | None,
    *,
    can_ignore: bool = True,
) -> Sequence[str]:
    check_bodies(bodies)
    different = check_tags(call.shown("msg_tag"), tags or ())
    key = check_key(call.shown("routing_key"), routing_key) if routing_key else None
    topic = call.client.topic(topic_name)
    dedup_ids = call.dedup_ids(len(bodies))

    def publish(routing_key: str | None) -> Awaitable[list[Published]]:
        return call.store_batch(
            dedup_ids,
            lambda all_or_none: topic.publish_batch(
                bodies,
                tags=different or None,
                routing_key=routing_key,
                dedup_ids=dedup_ids,
                all_or_none=all_or_none,
            ),
        )

    # With tags the key is left out from the start: a topic with routing keys refuses the tags.
    is_ignored = bool(different and key)
    try:
        published = await publish(None if is_ignored else key)
    except InvalidArgument as refusal:
        if not can_ignore or not is_of_other_kind(refusal, "routing_keys"):
            raise
        published = await publish(None)
        is_ignored = True
    if is_ignored:
        call.ignored_key(topic_name, "routing_key")
    # All messages of the request have the same tags or key. ``matched`` of a repeated request is None.
    if any(message.matched == 0 for message in published):
        raise await _nothing_matched(call, topic_name)
    return [message.id for message in published]


async def _nothing_matched(call: Call, topic_name: str) -> Refusal:
    """Return the refusal of a publish that no subscription got, and that was therefore not kept."""
    try:
        has_subscriptions = (await call.client.topic(topic_name).attributes()).subscriptions > 0
    except PermissionDenied:
        # The key may publish, and not read attributes.
        has_subscriptions = True
    return Refusal(Reason.NOTHING_MATCHES if has_subscriptions else Reason.NO_SUBSCRIPTION)


OPERATIONS: Final = [
    operation("PublishMessage", PublishMessage, publish_message, is_data=True),
    operation("BatchPublishMessage", BatchPublishMessage, batch_publish_message, is_data=True),
]
