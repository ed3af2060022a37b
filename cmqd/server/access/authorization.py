"""The permissions that each operation needs: one table, and the check of a request against the key of its connection.

The table names, for each request, the role of the operation and the names of queues, topics and schedules in the
request. A request is carried out if the key has the role and its patterns match every name. SPEC.md, section 7.5, has
the same table. Rules:

- The check precedes the handler, so that a refusal tells nothing about the existence of a name.
- A subscription belongs to its topic, and its own name is not compared; its queue is.
- The totals of an account (``get_metrics``) tell of all its names.
- A redrive without a target returns messages to their source queues, and the request does not name the queues. The
  patterns must cover every name.
- Patterns hold for the names that an object has already, where the operation changes what the key's own messages or
  settings do there (``of_object``): a schedule without ``queue`` in the request sends the new body to the queue that it
  has. The names of an object are compared after the names of the request, so that a refusal does not reveal objects
  outside the patterns, and the refusal does not tell the name of the queue.
- An arrangement that a key with all its names has made works for other keys as it stands: a publish reaches the queues
  of subscriptions, and a consumer's dead letters the dead-letter queue, outside the patterns of the key.
- An unrestricted key has every role but ``gateway``. Operations of ``gateway`` are guarded for every key.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

from cmqd.core.domain_errors import shown
from cmqd.core.facts.facts import Facts
from cmqd.core.names import cut_topic_name, folded
from cmqd.server.access.accounts import PermissionDenied
from cmqd.server.access.audit_lines import ADMINISTRATION, Audit
from cmqd.server.access.permissions import Permissions, names_text, roles_text
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.requests.refusals import error_reply
from cmqd_protocol import messages as wire
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, Role

Handlers: TypeAlias = Mapping[type[wire.Request], Callable[[Client, Any], None]]


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
    of_object: Callable[[Facts, str, Any], str | None] = lambda facts, account, request: None
    """Returns the name of the queue that the object of the request has already, if the request acts on that queue."""
    why_object: str = ""
    """The words of the refusal for ``of_object``, behind "the operation needs"."""


def _no_name(request: wire.Request) -> list[str]:
    return []


def _name(request: wire.Locate) -> list[str]:
    return [request.name]


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


def _dead_letter_queue_it_has(
    facts: Facts, account: str, request: wire.SetQueueAttributes | wire.EnsureQueue
) -> str | None:
    """Return the dead-letter queue that a queue has, if the request sets or confirms what is moved there.

    A request that replaces or removes the dead-letter queue moves no further message there.
    """
    attributes = request.attributes
    if isinstance(request, wire.SetQueueAttributes) and "dead_letter_queue" in attributes:
        return None
    if not any(field.startswith("dead_letter_") for field in attributes):
        return None
    queue = facts.queues.names.get(account, {}).get(request.queue)
    return None if queue is None else queue.index.attributes.dead_letter_queue or None


def _queue_of_subscription(
    facts: Facts, account: str, request: wire.SetSubscriptionAttributes | wire.EnsureSubscription
) -> str | None:
    topic = facts.topics.names.get(account, {}).get(request.topic)
    subscription = None if topic is None else topic.folded.get(folded(request.subscription))
    if subscription is None or subscription.attributes.protocol != "queue":
        return None
    return subscription.attributes.endpoint


def _queue_of_schedule(facts: Facts, account: str, request: wire.SetSchedule | wire.EnsureSchedule) -> str | None:
    """Return the queue that a schedule has, unless the request gives it another queue."""
    if isinstance(request, wire.SetSchedule) and _text(request.attributes, "queue"):
        return None
    schedule = facts.schedules.names.get(account, {}).get(request.schedule)
    return None if schedule is None else schedule.definition.queue


class _OfObject(TypedDict):
    of_object: Callable[[Facts, str, Any], str | None]
    why_object: str


_DEAD_LETTERS: Final[_OfObject] = {
    "of_object": _dead_letter_queue_it_has,
    "why_object": "the dead-letter queue that the queue has",
}
_SUBSCRIBED: Final[_OfObject] = {
    "of_object": _queue_of_subscription,
    "why_object": "the queue that the subscription delivers to",
}
_SCHEDULED: Final[_OfObject] = {
    "of_object": _queue_of_schedule,
    "why_object": "the queue that the schedule sends to",
}

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
    wire.EnsureQueue: Needs(Role.MANAGE, _queue_and_dead_letter_queue, **_DEAD_LETTERS),
    wire.ListQueues: Needs(Role.READ, _no_name),
    wire.ListQueueSummaries: Needs(Role.READ, _no_name),
    wire.GetQueueAttributes: Needs(Role.READ, _queue),
    wire.SetQueueAttributes: Needs(Role.MANAGE, _queue_and_dead_letter_queue, **_DEAD_LETTERS),
    wire.DeleteQueue: Needs(Role.MANAGE, _queue),
    wire.ClearQueue: Needs(Role.MANAGE, _queue),
    wire.RewindQueue: Needs(Role.MANAGE, _queue),
    wire.PreviewRewind: Needs(Role.READ, _queue),
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
    wire.EnsureSubscription: Needs(Role.MANAGE, _topic_and_queue, **_SUBSCRIBED),
    wire.ListSubscriptions: Needs(Role.READ, _topic),
    wire.GetSubscription: Needs(Role.READ, _topic),
    wire.SetSubscriptionAttributes: Needs(Role.MANAGE, _topic_and_queue, **_SUBSCRIBED),
    wire.Unsubscribe: Needs(Role.MANAGE, _topic),
    wire.RetryDeliveries: Needs(Role.MANAGE, _topic),
    wire.DropDeliveries: Needs(Role.MANAGE, _topic),
    wire.PeekDeliveries: Needs(Role.READ, _topic),
    wire.RetryDelivery: Needs(Role.MANAGE, _topic),
    wire.DropDelivery: Needs(Role.MANAGE, _topic),
    wire.GetMessageDeliveries: Needs(Role.READ, _topic),
    wire.MatchSubscriptions: Needs(Role.READ, _topic),
    wire.RotateSecret: Needs(Role.MANAGE, _topic),
    # half messages
    wire.SendHalfMessages: Needs(Role.SEND, _queue),
    wire.EndTransactions: Needs(Role.SEND, _queue),
    wire.ListHalfMessages: Needs(Role.READ, _queue),
    wire.RegisterChecker: Needs(Role.SEND, _queue),
    wire.UnregisterChecker: Needs(Role.SEND, _queue),
    # schedules
    wire.CreateSchedule: Needs(Role.MANAGE, _schedule_and_queue),
    wire.EnsureSchedule: Needs(Role.MANAGE, _schedule_and_queue, **_SCHEDULED),
    wire.ListSchedules: Needs(Role.READ, _no_name),
    wire.GetSchedule: Needs(Role.READ, _schedule),
    wire.SetSchedule: Needs(Role.MANAGE, _schedule_and_queue, **_SCHEDULED),
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
    wire.GetOwnKey: Needs(None, _no_name),
    wire.GetKeySecret: Needs(Role.GATEWAY, _no_name),
    wire.WatchKeys: Needs(Role.GATEWAY, _no_name),
    # the server
    wire.GetServerStatus: Needs(None, _no_name),
    wire.Locate: Needs(None, _name),
    wire.SealSegments: Needs(Role.MANAGE, _no_name),
    wire.ListSegments: Needs(Role.READ, _no_name, _always, "shows queues and topics of all accounts"),
    wire.ListAuditEntries: Needs(Role.MANAGE, _no_name, _always, "shows the entries of all names"),
    wire.ListConnections: Needs(Role.MANAGE, _no_name),
    wire.ListWaitingReceives: Needs(Role.MANAGE, _no_name),
    wire.GetSettings: Needs(Role.MANAGE, _no_name, _always, "shows the whole server"),
    wire.GetMetrics: Needs(Role.READ, _no_name, _always, "adds up the figures of all names"),
    wire.GetQueueMetrics: Needs(Role.READ, _no_name),
    wire.GetTopicMetrics: Needs(Role.READ, _no_name),
    wire.GetTopMetrics: Needs(Role.READ, _no_name, _always, "adds up the figures of all names"),
}
"""The role and the names of every operation; a test compares the table with the operations and with SPEC.md."""

_UNRESTRICTED: Final = Permissions(EVERY_ROLE, EVERY_NAME)


@part
class Authorization:
    """Checks requests against the permissions of their keys; see the module."""

    audit: Audit
    facts: Facts

    def check(self, client: Client, request: wire.Request) -> None:
        """Refuse a request that the key of its connection may not make.

        Raises:
            PermissionDenied: the key lacks the role of the operation, or its patterns a name of the
                request or of its object.
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
        queue = None if permissions.covers_every_name else needs.of_object(self.facts, client.account, request)
        if queue is not None and not permissions.allows_name(queue):
            why = f"needs {needs.why_object} among the names of the key"
            return _refusal(client, permissions, request, names[0], why)
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
