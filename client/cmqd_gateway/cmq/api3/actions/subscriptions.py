"""Actions on subscriptions."""

from typing import Final

from cmqd_client import SubscriptionInfo
from cmqd_gateway.cmq.api3.action import Fields, action, number, text, texts
from cmqd_gateway.cmq.api3.answers import subscription_page
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.parameters import Values
from cmqd_gateway.cmq.identifiers import subscription_id
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.descriptions import DESCRIBE_SUBSCRIPTIONS
from cmqd_gateway.process.gateway_settings import Settings

BY_TOPIC: Final = "topic"
BY_QUEUE: Final = "queue"

_NAMES: Final = (
    text("TopicName", "topic_name", required=True),
    text("SubscriptionName", "subscription_name", required=True),
)
_NOTIFICATION: Final = (
    text("NotifyStrategy", "notify_strategy"),
    text("NotifyContentFormat", "notify_content_format"),
    texts("BindingKey", "binding_key"),
)


def _created(info: SubscriptionInfo) -> Fields:
    fields = {"SubscriptionId": subscription_id(info.id)}
    # The key of the signatures of requests to a URL is shown once.
    return fields if info.secret is None else fields | {"Secret": info.secret}


def _selection(values: Values, settings: Settings) -> Values:
    """Let the query be of a topic or of a queue.

    CMQ's documents require a topic also for a query by queue, which it does not narrow.
    """
    kind = values.pop("QueryType", BY_TOPIC)
    if kind not in (BY_TOPIC, BY_QUEUE):
        raise Fault(Code.INVALID_PARAMETER_VALUE, f"QueryType is {kind[:80]!r}; it must be {BY_TOPIC} or {BY_QUEUE}")
    needed, other = ("TopicName", "QueueName") if kind == BY_TOPIC else ("QueueName", "SubscriptionName")
    if needed not in values:
        raise Fault(Code.MISSING_PARAMETER, f"the parameter {needed} is missing, with QueryType {kind}")
    if other in values:
        raise Fault(
            Code.INVALID_PARAMETER_VALUE,
            f"{other} cannot be used with QueryType {kind}: {BY_TOPIC} lists the subscriptions of TopicName, by"
            f" SubscriptionName; {BY_QUEUE} lists the subscriptions of all topics that deliver to QueueName",
        )
    return values


ACTIONS: Final = [
    action(
        "CreateCmqSubscribe",
        OPERATIONS["Subscribe"],
        *_NAMES,
        text("Protocol", "protocol", required=True),
        text("Endpoint", "endpoint", required=True),
        *_NOTIFICATION,
        texts("FilterTag", "filter_tag"),
        encode=_created,
    ),
    action(
        "ModifyCmqSubscriptionAttribute",
        OPERATIONS["SetSubscriptionAttributes"],
        *_NAMES,
        *_NOTIFICATION,
        texts("FilterTags", "filter_tag"),
    ),
    action(
        "DescribeCmqSubscriptionDetail",
        DESCRIBE_SUBSCRIPTIONS,
        text("TopicName", "topic_name"),
        number("Offset", "offset"),
        number("Limit", "limit"),
        text("SubscriptionName", "search_word"),
        text("QueueName", "queue_name"),
        text("QueryType"),
        encode=subscription_page,
        adapt=_selection,
    ),
    action("DeleteCmqSubscribe", OPERATIONS["Unsubscribe"], *_NAMES),
    action("ClearCmqSubscriptionFilterTags", OPERATIONS["ClearSubscriptionFilterTags"], *_NAMES),
]
