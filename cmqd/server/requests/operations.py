"""The operations that only call the core, or the accounts, and answer.

Such an operation needs its declaration (``cmqd_protocol.operations``) and its method. The method has the name of the
operation. Its arguments are the account of the client, the fields of the request in their order, broker time if the
method takes ``now_ms``, and the client as records name it if the method takes ``actor``. The reply follows from its
type. Methods of another name and replies of another making are listed here. An operation that does more is a method in
``handlers``; all others of the core come here (``wiring``).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

from msgspec.structs import asdict, replace

from cmqd.core.outcome import HandlesDone
from cmqd.server.access.accounts_file import Key
from cmqd_protocol import messages as wire
from cmqd_protocol import operations
from cmqd_protocol.features import ON_BEHALF_OF
from cmqd_protocol.operations import Operation
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage

Location: TypeAlias = Mapping[str, Any]
"""Facts of every queue and topic that the core does not know: address and region of the server."""

MakeReply: TypeAlias = Callable[[int, Any, Location], wire.AnyReply]
"""Makes the reply to (request id, result, location)."""

_METHODS: Final[Mapping[Operation[..., Any], str]] = {
    operations.RELEASE_MESSAGES: "release",
    operations.GET_QUEUE_ATTRIBUTES: "queue_info",
    operations.LIST_DEAD_LETTER_SOURCES: "dead_letter_sources",
    operations.GET_REDRIVE: "redrive_status",
    operations.GET_TOPIC_ATTRIBUTES: "topic_info",
    operations.GET_SUBSCRIPTION: "subscription_info",
    operations.GET_SCHEDULE: "schedule_info",
}
"""Methods that have not the name of their operation."""


def method_of(operation: Operation[..., Any]) -> str:
    """Return the name of the method of the broker, or of the accounts."""
    return _METHODS.get(operation, operation.name)


def call_of(operation: Operation[..., Any], target: object) -> Callable[..., Any]:
    """Return the function that calls the method of an operation with (account, request, broker time)."""
    name = method_of(operation)
    # The methods of the accounts have the account of the request first.
    fields = sorted(operation.request.__struct_fields__[1:], key=lambda field: field != "account")
    # The stated client is a part of the argument ``actor``.
    fields = [field for field in fields if field != ON_BEHALF_OF]
    # Of two names at least, because a getter of a single name returns no tuple.
    read: Callable[[Any], Sequence[Any]] = attrgetter("request_id", "request_id", *fields)
    takes_time = "now_ms" in parameters_of(operation, target)

    def call(account: str, request: wire.Request, now_ms: int, **named: Any) -> Any:
        method = getattr(target, name)
        _, _, *arguments = read(request)
        if takes_time:
            return method(account, *arguments, now_ms, **named)
        return method(account, *arguments, **named)

    return call


def parameters_of(operation: Operation[..., Any], target: object) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the method of an operation."""
    method = getattr(target, method_of(operation))
    return _parameters(getattr(method, "__func__", method))


@cache  # by the function, which all brokers of a test process share
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


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


_MAKERS: Final[Mapping[type[wire.AnyReply], MakeReply]] = {
    wire.Done: done,
    wire.HandlesDone: handles_done,
    wire.QueueInfo: _located(wire.QueueInfo),
    wire.TopicInfo: _located(wire.TopicInfo),
    wire.QueueList: _values(wire.QueueList),
    wire.TopicList: _values(wire.TopicList),
    wire.SubscriptionList: _values(wire.SubscriptionList),
    wire.QueueSubscriptions: _values(wire.QueueSubscriptions),
    wire.ScheduleList: _values(wire.ScheduleList),
    wire.DeliveriesDone: _value(wire.DeliveriesDone),
    wire.AccountList: _value(wire.AccountList),
}
_MAKERS_OF_OPERATIONS: Final[Mapping[Operation[..., Any], MakeReply]] = {
    operations.LIST_DEAD_LETTER_SOURCES: _all_of_these_queues,
    operations.CREATE_ACCOUNT: _new_key,
    operations.CREATE_KEY: _new_key,
    operations.CREATE_ROLE_KEY: _new_key,
    operations.IMPORT_KEY: _imported_key,
    operations.LIST_KEYS: _keys,
}


def reply_of(operation: Operation[..., Any]) -> MakeReply:
    """Return the function that makes the reply: by the operation, else by the type, else with the result's fields."""
    maker = _MAKERS_OF_OPERATIONS.get(operation) or _MAKERS.get(operation.reply)
    return maker or _fields(operation.reply)


# ---------------------------------------------------------------------- tables

CREATIONS: Final = (
    operations.CREATE_QUEUE,
    operations.ENSURE_QUEUE,
    operations.CREATE_TOPIC,
    operations.ENSURE_TOPIC,
    operations.CREATE_SCHEDULE,
    operations.ENSURE_SCHEDULE,
)
"""Changes of the core that make something for the account. They are refused for an account that is being deleted,
because the queue, topic or schedule would outlive it."""

ACCOUNT_CHANGES: Final = (
    operations.CREATE_ACCOUNT,
    operations.CREATE_KEY,
    operations.CREATE_ROLE_KEY,
    operations.IMPORT_KEY,
)
"""Operations that change the accounts file: the method is a coroutine function."""

ACCOUNT_LOOKUPS: Final = (operations.LIST_ACCOUNTS, operations.LIST_KEYS)
"""Operations that read the accounts."""
