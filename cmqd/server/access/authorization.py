"""The check of a request against the key of its connection.

``cmqd_protocol.operations`` declares, for each operation, the role and the names of queues, topics and schedules in the
request. A request is carried out if the key has the role and its patterns match every name. Rules:

- The check precedes the handler, so that a refusal tells nothing about the existence of a name.
- A subscription belongs to its topic, and its own name is not compared; its queue is.
- A request about names that it does not contain (``every_name``) needs patterns that cover every name: the totals of an
  account tell of all its names, and a redrive without a target returns messages to their source queues.
- Patterns hold for the names that an object has already, where the operation changes what the key's own messages or
  settings do there (``of_object``): a schedule without ``queue`` in the request sends the new body to the queue that it
  has. The names of an object are compared after the names of the request, so that a refusal does not reveal objects
  outside the patterns, and the refusal does not tell the name of the queue.
- An arrangement that a key with all its names has made works for other keys as it stands: a publish reaches the queues
  of subscriptions, and a consumer's dead letters the dead-letter queue, outside the patterns of the key.
- An unrestricted key has every role but ``gateway``. Operations of ``gateway`` are guarded for every key.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from cmqd.core.domain_errors import shown
from cmqd.core.facts.facts import Facts
from cmqd.core.names import cut_topic_name, folded
from cmqd.server.access.accounts import PermissionDenied
from cmqd.server.access.audit_lines import Audit
from cmqd.server.access.permissions import Permissions, names_text, roles_text
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.requests.refusals import error_reply
from cmqd_protocol import messages as wire
from cmqd_protocol.operations import OPERATIONS, Operation
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, Role

Handlers: TypeAlias = Mapping[type[wire.Request], Callable[[Client, Any], None]]


def _text(attributes: Mapping[str, Any], field: str) -> list[str]:
    """Return the name that an attribute has; the core refuses an attribute of another type. A URL is no name."""
    value = attributes.get(field)
    if not isinstance(value, str) or not value or (field == "endpoint" and "://" in value):
        return []
    return [value]


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


def _no_queue(facts: Facts, account: str, request: wire.Request) -> None:
    return None


_QUEUES_OF_OBJECTS: Final[Mapping[type[wire.Request], tuple[Callable[[Facts, str, Any], str | None], str]]] = {
    wire.EnsureQueue: (_dead_letter_queue_it_has, "the dead-letter queue that the queue has"),
    wire.SetQueueAttributes: (_dead_letter_queue_it_has, "the dead-letter queue that the queue has"),
    wire.EnsureSubscription: (_queue_of_subscription, "the queue that the subscription delivers to"),
    wire.SetSubscriptionAttributes: (_queue_of_subscription, "the queue that the subscription delivers to"),
    wire.EnsureSchedule: (_queue_of_schedule, "the queue that the schedule sends to"),
    wire.SetSchedule: (_queue_of_schedule, "the queue that the schedule sends to"),
}
"""Operations on a queue that the object of the request has already: the function that returns the name of the queue,
None if the request does not act on the queue, and the words of the refusal."""


def _reader(operation: Operation[..., Any]) -> Callable[[Any], list[str]]:
    """Return the function that reads the names of queues, topics and schedules in a request."""
    fields = operation.names.split()
    if operation.request is wire.CreateTopic:
        return lambda request: [cut_topic_name(request.topic)]
    if len(fields) == 1 and not operation.every_name:  # the others have a field that may be null
        (field,) = fields
        return lambda request: [getattr(request, field)]
    own = [field for field in fields if "." not in field]
    attributes = [field.removeprefix("attributes.") for field in fields if "." in field]

    def read(request: Any) -> list[str]:
        names: list[str] = [name for field in own if (name := getattr(request, field)) is not None]
        return names + [name for field in attributes for name in _text(request.attributes, field)]

    return read


_NAMES: Final = {request: _reader(operation) for request, operation in OPERATIONS.items()}

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
            if OPERATIONS[type(request)].is_administration:
                self.audit.administered(client, request, error_reply(request.request_id, refusal))
            raise refusal

    def refusal_of(self, client: Client, request: wire.Request) -> PermissionDenied | None:
        """Return the refusal of a request, None if the key may make the request."""
        permissions = client.permissions or _UNRESTRICTED
        kind = type(request)
        operation = OPERATIONS[kind]
        names = _NAMES[kind](request)
        if operation.role is not None and operation.role not in permissions.roles:
            why = f"needs role {operation.role}"
            return _refusal(client, permissions, request, names[0] if names else None, why)
        for name in names:
            if not permissions.allows_name(name):
                return _refusal(client, permissions, request, name, f"needs {shown(name)} among the names of the key")
        if permissions.covers_every_name:
            return None
        if operation.every_name and len(names) < max(1, len(operation.names.split())):
            why = f"{operation.every_name}, and the key has not all names"
            return _refusal(client, permissions, request, names[0] if names else None, why)
        queue_of_object, words = _QUEUES_OF_OBJECTS.get(kind, (_no_queue, ""))
        queue = queue_of_object(self.facts, client.account, cast("Any", request))
        if queue is not None and not permissions.allows_name(queue):
            return _refusal(client, permissions, request, names[0], f"needs {words} among the names of the key")
        return None

    def guarded(self, handlers: Handlers) -> dict[type[wire.Request], Callable[[Client, Any], None]]:
        """Return the handlers, with a check of every key for the operations that no unrestricted key may make."""

        def guard(handler: Callable[[Client, Any], None]) -> Callable[[Client, Any], None]:
            def handle(client: Client, request: Any) -> None:
                self.check(client, request)
                handler(client, request)

            return handle

        return {
            kind: guard(handler) if OPERATIONS[kind].role not in (None, *EVERY_ROLE) else handler
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
