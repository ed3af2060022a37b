"""Operations on subscriptions: subscribe and unsubscribe, list, read and change attributes, clear filter tags."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec

from cmqd_client import SubscriptionInfo
from cmqd_client.errors import InvalidArgument, SubscriptionNotFound, TopicNotFound
from cmqd_client.subscription import ContentFormat, RetryStrategy, SubscriptionAttributes
from cmqd_gateway.cmq.ignored_keys import is_of_other_kind
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.operations.filters import check_key, check_tags
from cmqd_gateway.cmq.parameters import Items, OperationRequest, Whole
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import SUBSCRIPTION

QUEUE: Final = "queue"
URL_PROTOCOLS: Final = ("http", "https")

STRATEGIES: Final = {f"{strategy.name}_RETRY": strategy for strategy in sorted(RetryStrategy)}
CONTENT_FORMATS: Final = {content_format.name: content_format for content_format in ContentFormat}

_BLANKS = re.compile(r"\s")
Tags = Annotated[list[str], Items(1, SUBSCRIPTION["filter_tags"].high, Reason.TOO_MANY_FILTER_TAGS)]
Keys = Annotated[list[str], Items(1, SUBSCRIPTION["binding_keys"].high, Reason.TOO_MANY_BINDING_KEYS)]


class SubscriptionRequest(OperationRequest, frozen=True):
    """A request about a subscription without further parameters."""

    topic_name: str
    subscription_name: str


class SetSubscriptionAttributes(OperationRequest, frozen=True):
    """Parameters of SetSubscriptionAttributes."""

    topic_name: str
    subscription_name: str
    notify_strategy: str | None = None
    notify_content_format: str | None = None
    filter_tag: Tags | None = None
    binding_key: Keys | None = None


class Subscribe(SetSubscriptionAttributes, frozen=True, kw_only=True):
    """Parameters of Subscribe."""

    endpoint: str
    protocol: str


def _attributes(call: Call, request: SetSubscriptionAttributes) -> SubscriptionAttributes:
    """Return the attributes that a request names.

    Raises:
        Refusal: the strategy or the format is unknown, or a tag or key is not legal.
    """
    attributes: SubscriptionAttributes = {}
    if request.notify_strategy is not None:
        strategy = STRATEGIES.get(request.notify_strategy)
        if strategy is None:
            name = call.shown("notify_strategy")
            raise _unknown(Reason.STRATEGY_UNKNOWN, name, request.notify_strategy, STRATEGIES)
        attributes["strategy"] = strategy
    if request.notify_content_format is not None:
        content_format = CONTENT_FORMATS.get(request.notify_content_format)
        if content_format is None:
            name, given = call.shown("notify_content_format"), request.notify_content_format
            raise _unknown(Reason.CONTENT_FORMAT_UNKNOWN, name, given, CONTENT_FORMATS)
        attributes["content_format"] = content_format
    if request.filter_tag is not None:
        attributes["filter_tags"] = check_tags(call.shown("filter_tag"), request.filter_tag)
    if request.binding_key is not None:
        name = call.shown("binding_key")
        attributes["binding_keys"] = [check_key(name, key) for key in request.binding_key]
    return attributes


async def _without_ignored_keys(
    call: Call, request: SetSubscriptionAttributes, ask: Callable[[SubscriptionAttributes], Awaitable[SubscriptionInfo]]
) -> SubscriptionInfo:
    """Return the answer to a request with the attributes of ``request``; a topic that filters by tags ignores keys."""
    attributes = _attributes(call, request)
    # With tags the keys are left out from the start: a topic with routing keys refuses the tags.
    is_ignored = bool(attributes.get("filter_tags") and attributes.pop("binding_keys", None))
    try:
        info = await ask(attributes)
    except InvalidArgument as refusal:
        if not is_of_other_kind(refusal, "binding_keys"):
            raise
        # The refused request changed nothing.
        attributes.pop("binding_keys", None)
        info = await ask(attributes)
        is_ignored = True
    if is_ignored:
        call.ignored_key(request.topic_name, "binding_key")
    return info


def _unknown(reason: Reason, name: str, value: str, known: dict[str, Any]) -> Refusal:
    return Refusal(reason, f"{name} is {value[:80]!r}; it must be {' or '.join(known)}")


def _endpoint(call: Call, request: Subscribe) -> dict[str, str]:
    """Return the endpoint as an argument of the client: a queue or a URL.

    Raises:
        Refusal: the protocol is unknown, or the endpoint does not fit the protocol.
    """
    protocol, target = request.protocol, request.endpoint
    protocol_name, name = call.shown("protocol"), call.shown("endpoint")
    if protocol == QUEUE:
        if "://" in target:
            raise Refusal(
                Reason.ENDPOINT_FORMAT, f"{protocol_name} is queue, so {name} must be the name of a queue, not a URL"
            )
        return {"queue": target}
    if protocol not in URL_PROTOCOLS:
        raise Refusal(Reason.PROTOCOL_UNKNOWN, f"{protocol_name} is {protocol[:80]!r}; it must be http, https or queue")
    if _BLANKS.search(target):
        raise Refusal(Reason.URL_WITH_BLANKS, f"{name} has a blank; write it as %20")
    if not target.lower().startswith(f"{protocol}://"):
        raise Refusal(Reason.ENDPOINT_FORMAT, f"{protocol_name} is {protocol}, so {name} must begin with {protocol}://")
    return {"url": target}


class ShownSubscription(msgspec.Struct, frozen=True):
    """A subscription with the account of its topic."""

    info: SubscriptionInfo
    topic_owner: str


class SubscriptionsListed(msgspec.Struct, frozen=True):
    """A page of subscriptions, by name."""

    total: int
    """All that match."""
    subscriptions: Sequence[SubscriptionInfo]


async def subscribe(call: Call, request: Subscribe) -> SubscriptionInfo:
    """Subscribe a queue or a URL to a topic."""
    target = _endpoint(call, request)
    topic = call.client.topic(request.topic_name)

    def ask(attributes: SubscriptionAttributes) -> Awaitable[SubscriptionInfo]:
        return topic.subscribe_info(
            request.subscription_name, queue=target.get("queue"), url=target.get("url"), **attributes
        )

    return await _without_ignored_keys(call, request, ask)


async def unsubscribe(call: Call, request: SubscriptionRequest) -> None:
    """End a subscription and drop its waiting messages."""
    await call.client.topic(request.topic_name).subscription(request.subscription_name).unsubscribe()


async def set_subscription_attributes(call: Call, request: SetSubscriptionAttributes) -> None:
    """Change the named attributes in one step; protocol and endpoint cannot be changed."""
    subscription = call.client.topic(request.topic_name).subscription(request.subscription_name)
    await _without_ignored_keys(call, request, lambda attributes: subscription.set(**attributes))


async def get_subscription_attributes(call: Call, request: SubscriptionRequest) -> ShownSubscription:
    """Return the attributes and counts of a subscription."""
    info = await call.client.topic(request.topic_name).subscription(request.subscription_name).info()
    return ShownSubscription(info, call.client.account or "")


async def clear_subscription_filter_tags(call: Call, request: SubscriptionRequest) -> None:
    """Remove the filter tags of a subscription, so that the subscription gets every message of its topic."""
    await call.client.topic(request.topic_name).subscription(request.subscription_name).set(filter_tags=[])


class ListSubscriptionByTopic(OperationRequest, frozen=True):
    """Parameters of ListSubscriptionByTopic."""

    topic_name: str
    search_word: str = ""
    offset: Annotated[int, Whole(0, 1_000)] = 0
    limit: Annotated[int, Whole(0, 100)] = 20


async def list_subscription_by_topic(call: Call, request: ListSubscriptionByTopic) -> SubscriptionsListed:
    """List a page of the subscriptions of a topic, by name.

    A topic that does not exist has no subscriptions, as at CMQ.
    """
    topic = call.client.topic(request.topic_name)
    try:
        page = await topic.subscriptions(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
    except TopicNotFound:
        return SubscriptionsListed(0, [])

    async def info_of(name: str) -> SubscriptionInfo | None:
        try:
            return await topic.subscription(name).info()
        except SubscriptionNotFound:
            return None  # unsubscribed after the page was read

    # The broker's list has no ids. The requests are pipelined: one way to the broker and back for all.
    infos = await asyncio.gather(*(info_of(summary.name) for summary in page.subscriptions[: request.limit]))
    return SubscriptionsListed(page.total, [info for info in infos if info is not None])


OPERATIONS: Final = [
    operation("Subscribe", Subscribe, subscribe),
    operation("Unsubscribe", SubscriptionRequest, unsubscribe),
    operation("SetSubscriptionAttributes", SetSubscriptionAttributes, set_subscription_attributes),
    operation("GetSubscriptionAttributes", SubscriptionRequest, get_subscription_attributes),
    operation("ListSubscriptionByTopic", ListSubscriptionByTopic, list_subscription_by_topic),
    operation("ClearSubscriptionFilterTags", SubscriptionRequest, clear_subscription_filter_tags),
]
