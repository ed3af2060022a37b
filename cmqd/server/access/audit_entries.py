"""Entries of the audit trail, made from administrative requests.

An entry is a record in the append of the operation's own records: a crash keeps both or neither. A change that is not
in the log (accounts and keys, secrets of subscriptions) is on disk first, and the reply waits for the entry: after a
crash in between the change has no entry, and its client had no reply.

``ensure_queue``, ``ensure_topic``, ``ensure_subscription`` and ``ensure_schedule`` make an entry only if they created
their object. Programs call them at each start, and their entries would push all others out of the trail.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from msgspec.structs import fields, replace

from cmqd.core.broker import Broker
from cmqd.core.names import cut_topic_name
from cmqd.core.operations.monitoring.audit import AuditAction
from cmqd.core.outcome import WAITING, Outcome
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.operations import OPERATIONS
from cmqd_protocol.protocol_errors import ErrorCode

_T = TypeVar("_T")

_ENSURES: Final = (wire.EnsureQueue, wire.EnsureTopic, wire.EnsureSubscription, wire.EnsureSchedule)
_NAMES_OF_OBJECTS: Final = ("schedule", "queue", "topic", "secret_id", "account", "name")
"""Fields with the name of the object, the first that a request has; a subscription stands behind its topic."""
_NOT_SHOWN: Final = frozenset({"request_id", "secret_key", "subscription", *_NAMES_OF_OBJECTS})
"""Fields that are no changes: they are in the entry already, or have no meaning there, or are secret."""
MAX_PRODUCT: Final = 64
"""Characters of the product, which clients choose."""
MAX_CHANGES: Final = 400
"""Characters of the changes."""


@part
class AuditEntries:
    """Makes the entries; see the module."""

    broker: Broker
    answering: Answering
    waiting_requests: WaitingRequests
    now_ms: Callable[[], int]
    schedule: Callable[[], None]

    def with_entry(
        self, client: Client, request: wire.Request, outcome: Outcome[_T], now_ms: int, waiter_id: int = 0
    ) -> Outcome[_T]:
        """Return the outcome of an operation with its entry among the records.

        Of a request that waits (``waiter_id``) the entry is made with the records that end the wait
        (``Answering.carry_out``), unless the wait ends with a refusal.
        """
        if not OPERATIONS[type(request)].is_in_trail or (isinstance(request, _ENSURES) and not outcome.records):
            return outcome
        action = _action_of(client, request)
        if outcome.reply is WAITING:
            self.waiting_requests.actions[waiter_id] = action
            return outcome
        return replace(outcome, records=[*outcome.records, self.broker.audit_record(action, now_ms)])

    def answer(self, client: Client, action: AuditAction | None, request_id: int, reply: wire.AnyReply) -> None:
        """Answer an operation with a change that is on disk already, when the entry is durable too.

        ``action`` is of the time of the request (``action_of``): the connection may be closed by now.
        """
        if isinstance(reply, wire.Error) or action is None:
            client.answer(reply)
            return
        if not action.name and isinstance(reply, wire.KeyList):
            # The id of a key that the request has made.
            action = action._replace(name=reply.keys[0].secret_id)
        answering = self.answering
        if answering.is_halted:
            client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, "the server failed meanwhile"))
            return
        now_ms = self.now_ms()
        try:
            record = self.broker.audit_record(action, now_ms)
            answering.answer(client, Outcome(None, [record]), now_ms, reply)
        except Exception as bug:
            answering.broke(bug, "audit")
            client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, "the server failed meanwhile"))
        self.schedule()


def action_of(client: Client, request: wire.Request) -> AuditAction | None:
    """Return the action of a request, None if the request makes no entry."""
    return _action_of(client, request) if OPERATIONS[type(request)].is_in_trail else None


def _action_of(client: Client, request: wire.Request) -> AuditAction:
    return AuditAction(
        account=getattr(request, "account", None) or client.account,
        by_account=client.account,
        secret_id=client.secret_id,
        peer=client.peer,
        operation=wire.operation_name(type(request)),
        name=_name(request),
        changes=_changes(request),
        product=client.product[:MAX_PRODUCT],
    )


def _name(request: Any) -> str:
    if isinstance(request, wire.CreateTopic):
        return cut_topic_name(request.topic)
    if isinstance(request, wire.CreateKey | wire.CreateRoleKey):
        return ""
    name = next(getattr(request, field) for field in _NAMES_OF_OBJECTS if hasattr(request, field))
    subscription = getattr(request, "subscription", None)
    return name if subscription is None else f"{name}/{subscription}"


def _changes(request: wire.Request) -> str:
    words: list[str] = []
    for field in fields(request):
        value: Any = getattr(request, field.name)
        if field.name in _NOT_SHOWN or value == field.default:
            continue
        if field.name == "attributes":
            words += [_word(name, each) for name, each in cast("Mapping[str, Any]", value).items()]
        elif field.name in ("body", "headers"):
            # Body and headers belong to the owner of the schedule.
            words.append(field.name)
        else:
            words.append(_word(field.name, value))
    changes = " ".join(words)
    return changes if len(changes) <= MAX_CHANGES else f"{changes[: MAX_CHANGES - 3]}..."


def _word(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        text = ",".join(map(str, cast("list[Any]", value)))
    elif isinstance(value, bool):
        text = str(value).lower()
    elif name == "message_id":
        text = f"Msg-{value:016x}"
    else:
        text = str(value)
    if "://" in text:
        # A URL often contains a password or a token.
        text = "(url)"
    return f"{name}={text!r}" if " " in text else f"{name}={text}"
