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
from cmqd.server.access.accounts_file import Key
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import ReceivedMessage

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

    is_list: bool = False
    """True if the method takes ``selects``, which selects the names that the key of the client may see."""

    stores_body: bool = False
    """True if the operation is refused while the storage takes no bodies, unless its field ``body`` is null."""

    @property
    def takes_time(self) -> bool:
        """True if broker time is the last argument."""
        return NOW in self.arguments.split()

    @property
    def fields(self) -> list[str]:
        """The fields of the request that are arguments."""
        return [name for name in self.arguments.split() if name != NOW]


def call_of(operation: Operation, target: object) -> Callable[..., Any]:
    """Return the function that calls the method of an operation with (account, request, broker time)."""
    name, fields, takes_time = operation.method, operation.fields, operation.takes_time
    read: Callable[[Any], Sequence[Any]] = attrgetter(*fields) if len(fields) > 1 else _read_each(fields)

    def call(account: str, request: wire.Request, now_ms: int, **named: Any) -> Any:
        method = getattr(target, name)
        if takes_time:
            return method(account, *read(request), now_ms, **named)
        return method(account, *read(request), **named)

    return call


def _read_each(fields: list[str]) -> Callable[[Any], Sequence[Any]]:
    # ``attrgetter`` of a single name returns no tuple.
    return lambda request: [getattr(request, field) for field in fields]


# ---------------------------------------------------------------------- replies


def _value(reply: Callable[..., wire.AnyReply]) -> MakeReply:
    """Make replies with the result as their only field."""
    return lambda request_id, result, location: reply(request_id, result)


def _values(reply: Callable[..., wire.AnyReply]) -> MakeReply:
    """Make replies with the parts of the result, a tuple, as their fields."""
    return lambda request_id, result, location: reply(request_id, *result)


def _fields(reply: Callable[..., wire.AnyReply]) -> MakeReply:
    """Make replies with the fields of the result."""
    return lambda request_id, result, location: reply(request_id, **asdict(result))


def _located(reply: Callable[..., wire.AnyReply]) -> MakeReply:
    """Make replies with the fields of the result, and the location among its facts."""
    return lambda request_id, result, location: reply(
        request_id, **asdict(replace(result, facts={**result.facts, **location}))
    )


_QUEUE_INFO: Final = _located(wire.QueueInfo)
_TOPIC_INFO: Final = _located(wire.TopicInfo)
_SUBSCRIPTION_INFO: Final = _fields(wire.SubscriptionInfo)
_SCHEDULE_INFO: Final = _fields(wire.ScheduleInfo)
_REDRIVE_STATUS: Final = _fields(wire.RedriveStatus)


def done(request_id: int, result: object, location: Location) -> wire.AnyReply:
    """Return the reply without content."""
    return wire.Done(request_id)


_NO_FAILURES: Final[list[wire.HandleFailure]] = []


def handles_done(request_id: int, result: HandlesDone, location: Location | None = None) -> wire.HandlesDone:
    """Return the reply with the receipt handles that were refused."""
    failures = _NO_FAILURES
    if result.failures:
        code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
        failures = [
            wire.HandleFailure(failure.receipt_handle, code, failure.text, failure.gone) for failure in result.failures
        ]
    return wire.HandlesDone(request_id, failures, result.next_visible_ms)


HANDLE_NOT_VALID: Final = "the message was deleted, handed back or received again, or its visibility timeout passed"
"""Text of a refused handle of ``acknowledge``. It has no queue and no handle: with 256 failures of the usual text, a
reply with a full batch could exceed the smallest frame that a client may negotiate."""


def received_after_deletes(
    request_id: int, deletes: HandlesDone, messages: list[ReceivedMessage], error: wire.Error | None = None
) -> wire.MessagesReceived:
    """Return the reply to a receive with deletes that were carried out; ``error`` ended the receive after them."""
    failures = _NO_FAILURES
    if deletes.failures:
        code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
        failures = [
            wire.HandleFailure(failure.receipt_handle, code, HANDLE_NOT_VALID, failure.gone)
            for failure in deletes.failures
        ]
    return wire.MessagesReceived(request_id, messages, failures, error)


def _all_of_these_queues(request_id: int, queues: list[tuple[int, str]], location: Location) -> wire.AnyReply:
    return wire.QueueList(request_id, len(queues), queues)


def _new_key(request_id: int, key: Key, location: Location) -> wire.AnyReply:
    # The only reply with a secret key: a key can be read once, when it is made.
    return wire.KeyList(request_id, [_key_info(key, secret_key=key.secret_key)])


def _imported_key(request_id: int, key: Key, location: Location) -> wire.AnyReply:
    return wire.KeyList(request_id, [_key_info(key, secret_key=None)])


def _keys(request_id: int, keys: list[Key], location: Location) -> wire.AnyReply:
    return wire.KeyList(request_id, [_key_info(key, secret_key=None) for key in keys])


def _key_info(key: Key, secret_key: str | None) -> wire.KeyInfo:
    return wire.KeyInfo(key.secret_id, key.account, key.enabled, key.created_ms, secret_key, key.roles, key.names)


# ---------------------------------------------------------------------- tables

CREATIONS: Final = (
    Operation(wire.CreateQueue, "create_queue", "queue attributes now_ms", _QUEUE_INFO),
    Operation(wire.EnsureQueue, "ensure_queue", "queue attributes now_ms", _QUEUE_INFO),
    Operation(wire.CreateTopic, "create_topic", "topic attributes now_ms", _TOPIC_INFO),
    Operation(wire.EnsureTopic, "ensure_topic", "topic attributes now_ms", _TOPIC_INFO),
    Operation(
        *(wire.CreateSchedule, "create_schedule", "schedule attributes body headers now_ms", _SCHEDULE_INFO),
        stores_body=True,
    ),
    Operation(
        *(wire.EnsureSchedule, "ensure_schedule", "schedule attributes body headers now_ms", _SCHEDULE_INFO),
        stores_body=True,
    ),
)
"""Changes that make something for the account. They are refused for an account that is being deleted, because the
queue, topic or schedule would outlive it."""

CHANGES: Final = (
    Operation(
        wire.ChangeVisibility,
        "change_visibility",
        "queue receipt_handles visibility_timeout_ms now_ms",
        handles_done,
    ),
    Operation(wire.ReleaseMessages, "release", "queue receipt_handles count_receive now_ms", handles_done),
    Operation(wire.SetQueueAttributes, "set_queue_attributes", "queue attributes now_ms", _QUEUE_INFO),
    Operation(wire.ClearQueue, "clear_queue", "queue now_ms", done),
    Operation(wire.StartRedrive, "start_redrive", "queue target max_per_second now_ms", _REDRIVE_STATUS),
    Operation(wire.CancelRedrive, "cancel_redrive", "queue now_ms", _REDRIVE_STATUS),
    Operation(wire.SetTopicAttributes, "set_topic_attributes", "topic attributes now_ms", _TOPIC_INFO),
    Operation(wire.DeleteTopic, "delete_topic", "topic", done),
    Operation(
        wire.SetSubscriptionAttributes,
        "set_subscription_attributes",
        "topic subscription attributes now_ms",
        _SUBSCRIPTION_INFO,
    ),
    Operation(wire.RetryDeliveries, "retry_deliveries", "topic subscription now_ms", _value(wire.DeliveriesDone)),
    Operation(wire.DropDeliveries, "drop_deliveries", "topic subscription now_ms", _value(wire.DeliveriesDone)),
    Operation(
        *(wire.SetSchedule, "set_schedule", "schedule attributes body headers now_ms", _SCHEDULE_INFO),
        stores_body=True,
    ),
    Operation(wire.DeleteSchedule, "delete_schedule", "schedule", done),
)
"""Operations that change the state: the method returns an ``Outcome``."""

LOOKUPS: Final = (
    Operation(wire.ListQueues, "list_queues", "search offset limit", _values(wire.QueueList), is_list=True),
    Operation(wire.GetQueueAttributes, "queue_info", "queue", _QUEUE_INFO),
    Operation(wire.ListDeadLetterSources, "dead_letter_sources", "queue", _all_of_these_queues),
    Operation(wire.GetRedrive, "redrive_status", "queue", _REDRIVE_STATUS),
    Operation(wire.ListHalfMessages, "list_half_messages", "queue start limit", _fields(wire.HalfMessages)),
    Operation(wire.ListTopics, "list_topics", "search offset limit", _values(wire.TopicList), is_list=True),
    Operation(wire.GetTopicAttributes, "topic_info", "topic", _TOPIC_INFO),
    Operation(
        wire.ListSubscriptions, "list_subscriptions", "topic search offset limit", _values(wire.SubscriptionList)
    ),
    Operation(wire.GetSubscription, "subscription_info", "topic subscription now_ms", _SUBSCRIPTION_INFO),
    Operation(wire.ListSchedules, "list_schedules", "search offset limit", _values(wire.ScheduleList), is_list=True),
    Operation(wire.GetSchedule, "schedule_info", "schedule", _SCHEDULE_INFO),
)
"""Operations that read the state: the method returns the result."""

ACCOUNT_CHANGES: Final = (
    Operation(wire.CreateAccount, "create_account", "account now_ms", _new_key),
    Operation(wire.CreateKey, "create_key", "account now_ms", _new_key),
    Operation(wire.CreateRoleKey, "create_role_key", "account roles names now_ms", _new_key),
    Operation(wire.ImportKey, "import_key", "account secret_id secret_key roles names now_ms", _imported_key),
)
"""Operations that change the accounts file: the method is a coroutine function."""

ACCOUNT_LOOKUPS: Final = (
    Operation(wire.ListAccounts, "list_accounts", "", _value(wire.AccountList)),
    Operation(wire.ListKeys, "list_keys", "account", _keys),
)
"""Operations that read the accounts."""
