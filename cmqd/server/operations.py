"""The operations that only call the core, or the accounts, and answer: a line each.

A line names the request, the method, the fields of the request that are its arguments, and the function that makes the
reply. The first argument of every method is the account of the client. ``NOW`` stands for broker time, always last.

To add an operation, add its line (after its request in ``cmqd_protocol.messages`` and its method in the core). An
operation that does more is a method in ``handlers`` and a line in ``dispatch``.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import asdict, replace

from cmqd.core.outcome import HandlesDone
from cmqd.server.accounts_file import Key
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import HalfMessages
from cmqd_types.queues import QueueInfo, RedriveStatus
from cmqd_types.topics import SubscriptionInfo, SubscriptionSummary, TopicInfo

Location: TypeAlias = Mapping[str, Any]
"""Facts of every queue and topic that the core does not know: address and region of the server."""

MakeReply: TypeAlias = Callable[[int, Any, Location], wire.AnyReply]
"""Makes the reply to (request id, result, location)."""

NOW: Final = "now_ms"


class Operation(NamedTuple):
    """A line of a table."""

    request: type[wire.Request]
    method: str
    """Name of an operation of the broker, or of the accounts."""
    arguments: str
    """Names of fields, separated by spaces."""
    reply: MakeReply

    @property
    def takes_time(self) -> bool:
        """Whether broker time is the last argument."""
        return NOW in self.arguments.split()

    @property
    def fields(self) -> list[str]:
        """The fields of the request that are arguments."""
        return [name for name in self.arguments.split() if name != NOW]


def argument_reader(operation: Operation) -> Callable[[Any], Sequence[Any]]:
    """Return the function that reads the arguments of an operation, except the time, from its request."""
    fields = operation.fields
    if not fields:
        return lambda request: ()
    if len(fields) == 1:
        read = attrgetter(fields[0])
        return lambda request: (read(request),)
    return attrgetter(*fields)


# ---------------------------------------------------------------------- replies


def done(request_id: int, result: object, location: Location) -> wire.AnyReply:
    """Return the reply without content."""
    return wire.Done(request_id)


_NO_FAILURES: Final[list[wire.HandleFailure]] = []


def handles_done(request_id: int, result: HandlesDone, location: Location | None = None) -> wire.HandlesDone:
    """Return the reply with the receipt handles that were refused."""
    failures = _NO_FAILURES
    if result.failures:
        code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
        failures = [wire.HandleFailure(failure.receipt_handle, code, failure.text) for failure in result.failures]
    return wire.HandlesDone(request_id, failures, result.next_visible_ms)


def queue_info(request_id: int, info: QueueInfo, location: Location) -> wire.QueueInfo:
    """Return attributes, counts and facts of a queue."""
    return wire.QueueInfo(request_id, **asdict(replace(info, facts={**info.facts, **location})))


def topic_info(request_id: int, info: TopicInfo, location: Location) -> wire.TopicInfo:
    """Return attributes, counts and facts of a topic."""
    return wire.TopicInfo(request_id, **asdict(replace(info, facts={**info.facts, **location})))


def subscription_info(request_id: int, info: SubscriptionInfo, secret: str | None = None) -> wire.SubscriptionInfo:
    """Return attributes, counts and facts of a subscription; ``secret`` only when it was made."""
    return wire.SubscriptionInfo(request_id, **asdict(replace(info, secret=secret)))


def _subscription(request_id: int, info: SubscriptionInfo, location: Location) -> wire.AnyReply:
    return subscription_info(request_id, info)


def _subscriptions(request_id: int, page: tuple[int, list[SubscriptionInfo]], location: Location) -> wire.AnyReply:
    total, infos = page
    return wire.SubscriptionList(request_id, total, [_summary(info) for info in infos])


def _summary(info: SubscriptionInfo) -> SubscriptionSummary:
    attributes, counts = info.attributes, info.counts
    return SubscriptionSummary(
        name=info.subscription,
        protocol=attributes["protocol"],
        endpoint=attributes["endpoint"],
        paused=attributes["paused"],
        waiting=counts["waiting"],
        in_retry=counts["in_retry"],
        last_error=info.facts["last_error"],
    )


def _queues(request_id: int, page: tuple[int, list[tuple[int, str]]], location: Location) -> wire.AnyReply:
    return wire.QueueList(request_id, *page)


def _all_of_these_queues(request_id: int, queues: list[tuple[int, str]], location: Location) -> wire.AnyReply:
    return wire.QueueList(request_id, len(queues), queues)


def _topics(request_id: int, page: tuple[int, list[tuple[int, str]]], location: Location) -> wire.AnyReply:
    return wire.TopicList(request_id, *page)


def _deliveries(request_id: int, count: int, location: Location) -> wire.AnyReply:
    return wire.DeliveriesDone(request_id, count)


def _half_messages(request_id: int, page: HalfMessages, location: Location) -> wire.AnyReply:
    return wire.HalfMessages(request_id, messages=page.messages, next_start=page.next_start)


def _redrive(request_id: int, status: RedriveStatus, location: Location) -> wire.AnyReply:
    return wire.RedriveStatus(request_id, **asdict(status))


def _accounts(request_id: int, names: list[str], location: Location) -> wire.AnyReply:
    return wire.AccountList(request_id, names)


def _new_key(request_id: int, key: Key, location: Location) -> wire.AnyReply:
    # The only reply with a secret key: a key can be read once, when it is made.
    return wire.KeyList(request_id, [_key_info(key, secret_key=key.secret_key)])


def _keys(request_id: int, keys: list[Key], location: Location) -> wire.AnyReply:
    return wire.KeyList(request_id, [_key_info(key, secret_key=None) for key in keys])


def _key_info(key: Key, secret_key: str | None) -> wire.KeyInfo:
    return wire.KeyInfo(key.secret_id, key.account, key.enabled, key.created_ms, secret_key)


# ---------------------------------------------------------------------- tables

CREATIONS: Final = (
    Operation(wire.CreateQueue, "create_queue", "queue attributes now_ms", queue_info),
    Operation(wire.EnsureQueue, "ensure_queue", "queue attributes now_ms", queue_info),
    Operation(wire.CreateTopic, "create_topic", "topic attributes now_ms", topic_info),
    Operation(wire.EnsureTopic, "ensure_topic", "topic attributes now_ms", topic_info),
)
"""Changes that make something for the account. They are refused for an account that is being deleted, because the queue
or topic would outlive it."""

CHANGES: Final = (
    Operation(
        wire.ChangeVisibility,
        "change_visibility",
        "queue receipt_handles visibility_timeout_ms now_ms",
        handles_done,
    ),
    Operation(wire.ReleaseMessages, "release", "queue receipt_handles count_receive now_ms", handles_done),
    Operation(wire.SetQueueAttributes, "set_queue_attributes", "queue attributes now_ms", queue_info),
    Operation(wire.ClearQueue, "clear_queue", "queue now_ms", done),
    Operation(wire.StartRedrive, "start_redrive", "queue target max_per_second now_ms", _redrive),
    Operation(wire.CancelRedrive, "cancel_redrive", "queue now_ms", _redrive),
    Operation(wire.SetTopicAttributes, "set_topic_attributes", "topic attributes now_ms", topic_info),
    Operation(wire.DeleteTopic, "delete_topic", "topic", done),
    Operation(
        wire.SetSubscriptionAttributes,
        "set_subscription_attributes",
        "topic subscription attributes now_ms",
        _subscription,
    ),
    Operation(wire.RetryDeliveries, "retry_deliveries", "topic subscription now_ms", _deliveries),
    Operation(wire.DropDeliveries, "drop_deliveries", "topic subscription now_ms", _deliveries),
)
"""Operations that change the state: the method returns an ``Outcome``."""

LOOKUPS: Final = (
    Operation(wire.ListQueues, "list_queues", "search offset limit", _queues),
    Operation(wire.GetQueueAttributes, "queue_info", "queue", queue_info),
    Operation(wire.ListDeadLetterSources, "dead_letter_sources", "queue", _all_of_these_queues),
    Operation(wire.GetRedrive, "redrive_status", "queue", _redrive),
    Operation(wire.ListHalfMessages, "list_half_messages", "queue start limit", _half_messages),
    Operation(wire.ListTopics, "list_topics", "search offset limit", _topics),
    Operation(wire.GetTopicAttributes, "topic_info", "topic", topic_info),
    Operation(wire.ListSubscriptions, "list_subscriptions", "topic search offset limit now_ms", _subscriptions),
    Operation(wire.GetSubscription, "subscription_info", "topic subscription now_ms", _subscription),
)
"""Operations that read the state: the method returns the result."""

ACCOUNT_CHANGES: Final = (
    Operation(wire.CreateAccount, "create_account", "account now_ms", _new_key),
    Operation(wire.CreateKey, "create_key", "account now_ms", _new_key),
)
"""Operations that change the accounts file: the method is a coroutine function."""

ACCOUNT_LOOKUPS: Final = (
    Operation(wire.ListAccounts, "list_accounts", "", _accounts),
    Operation(wire.ListKeys, "list_keys", "account", _keys),
)
"""Operations that read the accounts."""
