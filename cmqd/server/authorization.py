"""The permissions that each operation needs: one table, and the check of a request against the key of its connection.

The table names, for each request, the role of the operation and the names of queues, topics and schedules in the
request. A request is carried out if the key has the role and its patterns match every name. SPEC.md, section 7.5, has
the same table. Rules:

- The check precedes the handler, so that a refusal tells nothing about the existence of a name.
- A subscription belongs to its topic, and its own name is not compared; its queue is.
- The totals of an account (``get_metrics``) tell of all its names.
- A redrive without a target returns messages to their source queues, and the request does not name the queues. The
  patterns must cover every name.
- An unrestricted key has every role but ``gateway``. Operations of ``gateway`` are guarded for every key.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from cmqd.core.errors import shown
from cmqd.core.names import cut_topic_name, every_name
from cmqd.server.accounts import PermissionDenied
from cmqd.server.audit import ADMINISTRATION, Audit
from cmqd.server.client import Client
from cmqd.server.part import part
from cmqd.server.permissions import Permissions, names_text, roles_text
from cmqd.server.refusals import error_reply
from cmqd_protocol import messages as wire
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, Role

Handlers: TypeAlias = Mapping[type[wire.Request], Callable[[Client, Any], None]]
_R = TypeVar("_R")


class Needs(NamedTuple):
    """The permissions that an operation needs."""

    role: Role | None
    """None = any role."""
    names: Callable[[Any], list[str]]
    """Returns the names of queues, topics and schedules in the request."""
    names_all: Callable[[Any], bool] = lambda request: False
    """Returns True if the request concerns names that it does not contain, so that the patterns must cover all."""
    why_all: str = ""
    """The words of the refusal for ``names_all``, behind "the operation"."""


def _no_name(request: wire.Request) -> list[str]:
    return []


def _queue(request: Any) -> list[str]:
    return [request.queue]


def _topic(request: Any) -> list[str]:
    return [request.topic]


def _topic_as_created(request: wire.CreateTopic) -> list[str]:
    return [cut_topic_name(request.topic)]


def _schedule(request: Any) -> list[str]:
    return [request.schedule]


def _queue_and_dead_letter_queue(request: Any) -> list[str]:
    return [request.queue, *_text(request.attributes, "dead_letter_queue")]


def _schedule_and_queue(request: Any) -> list[str]:
    return [request.schedule, *_text(request.attributes, "queue")]


def _topic_and_queue(request: Any) -> list[str]:
    """Return the topic of a subscription and, unless its endpoint is a URL, the queue that the endpoint names."""
    return [request.topic, *(endpoint for endpoint in _text(request.attributes, "endpoint") if "://" not in endpoint)]


def _queue_and_target(request: wire.StartRedrive) -> list[str]:
    return [request.queue] if request.target is None else [request.queue, request.target]


def _has_no_target(request: wire.StartRedrive) -> bool:
    return request.target is None


def _always(request: wire.Request) -> bool:
    return True


def _text(attributes: Mapping[str, Any], field: str) -> list[str]:
    """Return the text of an attribute; the core refuses an attribute of another type."""
    value = attributes.get(field)
    return [value] if isinstance(value, str) and value else []


NEEDS: Final[Mapping[type[wire.Request], Needs]] = {
    # messages
    wire.SendMessages: Needs(Role.SEND, _queue),
    wire.ReceiveMessages: Needs(Role.CONSUME, _queue),
    wire.DeleteMessages: Needs(Role.CONSUME, _queue),
    wire.ChangeVisibility: Needs(Role.CONSUME, _queue),
    wire.ReleaseMessages: Needs(Role.CONSUME, _queue),
    wire.PeekMessages: Needs(Role.READ, _queue),
    wire.DeadLetterMessages: Needs(Role.CONSUME, _queue),
    # queues
    wire.CreateQueue: Needs(Role.MANAGE, _queue_and_dead_letter_queue),
    wire.EnsureQueue: Needs(Role.MANAGE, _queue_and_dead_letter_queue),
    wire.ListQueues: Needs(Role.READ, _no_name),
    wire.GetQueueAttributes: Needs(Role.READ, _queue),
    wire.SetQueueAttributes: Needs(Role.MANAGE, _queue_and_dead_letter_queue),
    wire.DeleteQueue: Needs(Role.MANAGE, _queue),
    wire.ClearQueue: Needs(Role.MANAGE, _queue),
    wire.RewindQueue: Needs(Role.MANAGE, _queue),
    wire.ListDeadLetterSources: Needs(Role.READ, _queue),
    wire.StartRedrive: Needs(Role.MANAGE, _queue_and_target, _has_no_target, "needs a target"),
    wire.CancelRedrive: Needs(Role.MANAGE, _queue),
    wire.GetRedrive: Needs(Role.READ, _queue),
    # topics and subscriptions
    wire.CreateTopic: Needs(Role.MANAGE, _topic_as_created),
    wire.EnsureTopic: Needs(Role.MANAGE, _topic),
    wire.ListTopics: Needs(Role.READ, _no_name),
    wire.GetTopicAttributes: Needs(Role.READ, _topic),
    wire.SetTopicAttributes: Needs(Role.MANAGE, _topic),
    wire.DeleteTopic: Needs(Role.MANAGE, _topic),
    wire.PublishMessages: Needs(Role.SEND, _topic),
    wire.Subscribe: Needs(Role.MANAGE, _topic_and_queue),
    wire.EnsureSubscription: Needs(Role.MANAGE, _topic_and_queue),
    wire.ListSubscriptions: Needs(Role.READ, _topic),
    wire.GetSubscription: Needs(Role.READ, _topic),
    wire.SetSubscriptionAttributes: Needs(Role.MANAGE, _topic_and_queue),
    wire.Unsubscribe: Needs(Role.MANAGE, _topic),
    wire.RetryDeliveries: Needs(Role.MANAGE, _topic),
    wire.DropDeliveries: Needs(Role.MANAGE, _topic),
    wire.PeekDeliveries: Needs(Role.READ, _topic),
    wire.RetryDelivery: Needs(Role.MANAGE, _topic),
    wire.DropDelivery: Needs(Role.MANAGE, _topic),
    wire.GetMessageDeliveries: Needs(Role.READ, _topic),
    wire.RotateSecret: Needs(Role.MANAGE, _topic),
    # half messages
    wire.SendHalfMessages: Needs(Role.SEND, _queue),
    wire.EndTransactions: Needs(Role.SEND, _queue),
    wire.ListHalfMessages: Needs(Role.READ, _queue),
    wire.RegisterChecker: Needs(Role.SEND, _queue),
    wire.UnregisterChecker: Needs(Role.SEND, _queue),
    # schedules
    wire.CreateSchedule: Needs(Role.MANAGE, _schedule_and_queue),
    wire.EnsureSchedule: Needs(Role.MANAGE, _schedule_and_queue),
    wire.ListSchedules: Needs(Role.READ, _no_name),
    wire.GetSchedule: Needs(Role.READ, _schedule),
    wire.SetSchedule: Needs(Role.MANAGE, _schedule_and_queue),
    wire.DeleteSchedule: Needs(Role.MANAGE, _schedule),
    # accounts and keys
    wire.CreateAccount: Needs(Role.ADMIN, _no_name),
    wire.ListAccounts: Needs(Role.ADMIN, _no_name),
    wire.DeleteAccount: Needs(Role.ADMIN, _no_name),
    wire.ListAllQueues: Needs(Role.ADMIN, _no_name),
    wire.CreateKey: Needs(Role.ADMIN, _no_name),
    wire.CreateRoleKey: Needs(Role.ADMIN, _no_name),
    wire.ImportKey: Needs(Role.ADMIN, _no_name),
    wire.ListKeys: Needs(Role.ADMIN, _no_name),
    wire.SetKeyEnabled: Needs(Role.ADMIN, _no_name),
    wire.SetKeyRoles: Needs(Role.ADMIN, _no_name),
    wire.DeleteKey: Needs(Role.ADMIN, _no_name),
    wire.GetKeySecret: Needs(Role.GATEWAY, _no_name),
    wire.WatchKeys: Needs(Role.GATEWAY, _no_name),
    # the server
    wire.GetServerStatus: Needs(None, _no_name),
    wire.SealSegments: Needs(Role.MANAGE, _no_name),
    wire.GetMetrics: Needs(Role.READ, _no_name, _always, "adds up the figures of all names"),
    wire.GetQueueMetrics: Needs(Role.READ, _no_name),
    wire.GetTopicMetrics: Needs(Role.READ, _no_name),
}
"""The role and the names of every operation; a test compares the table with the operations and with SPEC.md."""

_UNRESTRICTED: Final = Permissions(EVERY_ROLE, EVERY_NAME)


@part
class Authorization:
    """Checks requests against the permissions of their keys; see the module."""

    audit: Audit

    def check(self, client: Client, request: wire.Request) -> None:
        """Refuse a request that the key of its connection may not make.

        Raises:
            PermissionDenied: the key lacks the role of the operation, or its patterns a name of the request.
        """
        refusal = self.refusal_of(client, request)
        if refusal is not None:
            if type(request) in ADMINISTRATION:
                self.audit.administered(client, request, error_reply(request.request_id, refusal))
            raise refusal

    def refusal_of(self, client: Client, request: wire.Request) -> PermissionDenied | None:
        """Return the refusal of a request, None if the key may make the request."""
        permissions = client.permissions or _UNRESTRICTED
        needs = NEEDS[type(request)]
        names = needs.names(request)
        if needs.role is not None and needs.role not in permissions.roles:
            return _refusal(client, permissions, request, names[0] if names else None, f"needs role {needs.role}")
        for name in names:
            if not permissions.allows_name(name):
                return _refusal(client, permissions, request, name, f"needs {shown(name)} among the names of the key")
        if not permissions.covers_every_name and needs.names_all(request):
            why = f"{needs.why_all}, and the key has not all names"
            return _refusal(client, permissions, request, names[0] if names else None, why)
        return None

    def guarded(self, handlers: Handlers) -> dict[type[wire.Request], Callable[[Client, Any], None]]:
        """Return the handlers, with a check of every key for the operations that no unrestricted key may make."""

        def guard(handler: Callable[[Client, Any], None]) -> Callable[[Client, Any], None]:
            def handle(client: Client, request: Any) -> None:
                self.check(client, request)
                handler(client, request)

            return handle

        return {
            kind: guard(handler) if NEEDS[kind].role not in (None, *EVERY_ROLE) else handler
            for kind, handler in handlers.items()
        }


def names_shown_to(client: Client) -> Callable[[str], bool]:
    """Return the function that selects the names of a list for the key of a client."""
    permissions = client.permissions
    return every_name if permissions is None else permissions.allows_name


def shown_to(client: Client, reply: _R) -> _R:
    """Return a reply without the names of other queues that the key of the client may not see."""
    permissions = client.permissions
    if permissions is None or permissions.covers_every_name:
        return reply
    allows = permissions.allows_name
    if isinstance(reply, wire.QueueInfo) and "dead_letter_sources" in reply.facts:
        sources = [name for name in reply.facts["dead_letter_sources"] if allows(name)]
        return replace(reply, facts={**reply.facts, "dead_letter_sources": sources})
    if isinstance(reply, wire.QueueList):
        # Of a list that was selected before, every name is left.
        queues = [(queue_id, name) for queue_id, name in reply.queues if allows(name)]
        return replace(reply, total=reply.total - len(reply.queues) + len(queues), queues=queues)
    return reply


def _refusal(
    client: Client, permissions: Permissions, request: wire.Request, name: str | None, need: str
) -> PermissionDenied:
    operation = wire.operation_name(type(request))
    of_name = "" if name is None else f" of {shown(name)}"
    return PermissionDenied(
        f"key {client.secret_id!r} with {roles_text(permissions.roles)} for {names_text(permissions.names)} may not"
        f" make {operation}{of_name}: the operation {need}",
        secret_id=client.secret_id,
        roles=[str(role) for role in Role if role in permissions.roles],
        names=list(permissions.names),
        operation=operation,
        **({} if name is None else {"name": name[:128]}),
    )
