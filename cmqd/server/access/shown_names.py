"""The names that a restricted key sees: lists leave out the names of other objects, and details hide them.

A reply can name objects that the request does not name: the dead-letter queue of a queue, the queue of a subscription
or schedule, the target of a redrive. A name that no pattern of the key matches is replaced by ``HIDDEN``, which is no
valid name: a program that sends the attributes back is refused, and does not create an object of that name. The
reason of a failed delivery hides each name in quotes, because its text may name the queue.

The URL of a subscription often contains a token that lets its holder post there. Keys with role ``manage`` see the
whole URL, because they can set URLs; other restricted keys see scheme and host. A message itself is shown as it was
sent: a dead letter has the name of its queue of origin, because consumers of dead letters need the name.
"""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol, TypeVar, cast

from msgspec.structs import replace

from cmqd.core.domain_errors import DomainError
from cmqd.core.names import every_name
from cmqd.core.operations.dead_letters.message_moves import NO_ORIGIN
from cmqd.server.access.permissions import MAX_NAMES_AT_ONCE
from cmqd.server.clients.client import Client
from cmqd.server.requests.refusals import error_reply
from cmqd_protocol import messages as wire
from cmqd_types.deliveries import DeliveryReport, PendingMessage
from cmqd_types.histories import LifeEvent, LifeKind
from cmqd_types.keys import Role
from cmqd_types.schedules import ScheduleSummary
from cmqd_types.topics import SubscriptionSummary

HIDDEN: Final = "(hidden)"
"""Stands for a name that the key may not see. Names have no parentheses."""

_TARGET_FULL: Final = "target full: "
_QUOTED_NAME: Final = re.compile(r"'([A-Za-z0-9_-]{1,64})'", re.ASCII)
_R = TypeVar("_R")


class Names(Protocol):
    """The names that a key sees: its permissions, or the comparisons of a look-up in slices."""

    @property
    def roles(self) -> AbstractSet[Role]:
        """The roles of the key."""
        ...

    @property
    def sees_hosts(self) -> bool:
        """True if the key sees the addresses of clients."""
        ...

    def allows_name(self, name: str) -> bool:
        """Return True if the key sees a name."""
        ...


def names_shown_to(client: Client) -> Callable[[str], bool]:
    """Return the function that selects the names of a list for the key of a client."""
    permissions = client.permissions
    return every_name if permissions is None else permissions.allows_name


def names_compared_at_once(client: Client) -> int:
    """Return the number of names that a slice of a long look-up compares with the patterns of a client's key."""
    permissions = client.permissions
    return MAX_NAMES_AT_ONCE if permissions is None else permissions.names_at_once


def name_shown_to(client: Client, name: str) -> str:
    """Return a name, or ``HIDDEN`` if the key of a client may not see the name."""
    permissions = client.permissions
    return name if permissions is None else _name(permissions, name)


def shown_to(client: Client, reply: _R) -> _R:
    """Return a reply without the names and URLs that the key of the client may not see."""
    permissions = client.permissions
    return reply if permissions is None else shown_with(permissions, reply)


def shown_with(names: Names, reply: _R) -> _R:
    """Return a reply without the names and URLs that a key may not see."""
    change = _CHANGES.get(type(reply))
    return reply if change is None else change(names, reply)


def error_shown_to(client: Client, reply: wire.Error, named: Sequence[str]) -> wire.Error:
    """Return an error reply without the names that the key of the client may not see, of the names that it contains."""
    hidden = _hidden(client, named)
    if not hidden:
        return reply
    details = {
        field: [_part_without(part, hidden) for part in value] if field == "sentence" else _without(value, hidden)
        for field, value in (reply.details or {}).items()
    }
    return replace(reply, text=_text_without(reply.text, hidden), details=details or None)


def refusal_shown_to(client: Client, request_id: int, refusal: DomainError) -> wire.Error:
    """Return the error reply for a refusal, without the names that the key of the client may not see."""
    reply = error_reply(request_id, refusal)
    return error_shown_to(client, reply, refusal.named) if refusal.named else reply


def text_shown_to(client: Client, refusal: DomainError) -> str:
    """Return the text of a refusal without the names that the key of the client may not see."""
    return _text_without(refusal.text, _hidden(client, refusal.named))


def _hidden(client: Client, named: Sequence[str]) -> list[str]:
    permissions = client.permissions
    return [] if permissions is None else [name for name in named if not permissions.allows_name(name)]


def _text_without(text: str, hidden: Sequence[str]) -> str:
    # The texts of refusals have every name in quotes.
    for name in hidden:
        text = text.replace(repr(name), HIDDEN)
    return text


def _part_without(part: Any, hidden: Sequence[str]) -> Any:
    # A part that is no text is the name of a field, or a number.
    return _text_without(part, hidden) if isinstance(part, str) else part


def _without(value: Any, hidden: Sequence[str]) -> Any:
    if isinstance(value, list):
        names = cast("list[Any]", value)
        return [_without(name, hidden) for name in names]
    return HIDDEN if value in hidden else value


# ---------------------------------------------------------------------- kinds of replies


def _name(seen: Names, name: str) -> str:
    return name if not name or seen.allows_name(name) else HIDDEN


def _endpoint(seen: Names, endpoint: str) -> str:
    if "://" not in endpoint:
        return _name(seen, endpoint)
    if Role.MANAGE in seen.roles:
        return endpoint
    scheme, _, rest = endpoint.partition("://")
    # Everything behind the host can be a token. No URL of a subscription has a user or password before it.
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{host}/{HIDDEN}"


def _last_error(seen: Names, text: str | None) -> str | None:
    """Return the reason of a failed delivery without names that the key may not see."""
    if text is None:
        return None
    return _QUOTED_NAME.sub(lambda found: found[0] if seen.allows_name(found[1]) else HIDDEN, text)


def _queue_info(seen: Names, reply: wire.QueueInfo) -> wire.QueueInfo:
    target = reply.attributes["dead_letter_queue"]
    attributes = {**reply.attributes, "dead_letter_queue": _name(seen, target)}
    sources = [name for name in reply.facts.get("dead_letter_sources", ()) if seen.allows_name(name)]
    facts = {**reply.facts, "dead_letter_sources": sources} if "dead_letter_sources" in reply.facts else reply.facts
    return replace(reply, attributes=attributes, facts=facts)


def _queue_list(seen: Names, reply: wire.QueueList) -> wire.QueueList:
    # Of a list that was selected before, every name is left.
    queues = [(queue_id, name) for queue_id, name in reply.queues if seen.allows_name(name)]
    return replace(reply, total=reply.total - len(reply.queues) + len(queues), queues=queues)


def _redrive_status(seen: Names, reply: wire.RedriveStatus) -> wire.RedriveStatus:
    reason = reply.reason
    if reason.startswith(_TARGET_FULL):
        reason = _TARGET_FULL + _name(seen, reason.removeprefix(_TARGET_FULL))
    missing: dict[str, int] = {}
    for origin, count in reply.missing_origins.items():
        shown = origin if origin == NO_ORIGIN else _name(seen, origin)
        missing[shown] = missing.get(shown, 0) + count
    target = None if reply.target is None else _name(seen, reply.target)
    return replace(reply, target=target, reason=reason, missing_origins=missing)


def _subscription_info(seen: Names, reply: wire.SubscriptionInfo) -> wire.SubscriptionInfo:
    endpoint = _endpoint(seen, reply.attributes["endpoint"])
    last_error = _last_error(seen, reply.facts["last_error"])
    attributes, facts = {**reply.attributes, "endpoint": endpoint}, {**reply.facts, "last_error": last_error}
    return replace(reply, attributes=attributes, facts=facts)


def _subscription_list(seen: Names, reply: wire.SubscriptionList) -> wire.SubscriptionList:
    def shown(summary: SubscriptionSummary) -> SubscriptionSummary:
        endpoint = _endpoint(seen, summary.endpoint)
        return replace(summary, endpoint=endpoint, last_error=_last_error(seen, summary.last_error))

    return replace(reply, subscriptions=[shown(summary) for summary in reply.subscriptions])


def _subscriptions_matched(seen: Names, reply: wire.SubscriptionsMatched) -> wire.SubscriptionsMatched:
    subscriptions = [replace(match, endpoint=_endpoint(seen, match.endpoint)) for match in reply.subscriptions]
    return replace(reply, subscriptions=subscriptions)


def _schedule_info(seen: Names, reply: wire.ScheduleInfo) -> wire.ScheduleInfo:
    queue = _name(seen, reply.attributes["queue"])
    last_error = _last_error(seen, reply.facts["last_error"])
    attributes, facts = {**reply.attributes, "queue": queue}, {**reply.facts, "last_error": last_error}
    return replace(reply, attributes=attributes, facts=facts)


def _schedule_list(seen: Names, reply: wire.ScheduleList) -> wire.ScheduleList:
    def shown(summary: ScheduleSummary) -> ScheduleSummary:
        queue = _name(seen, summary.queue)
        return replace(summary, queue=queue, last_error=_last_error(seen, summary.last_error))

    return replace(reply, schedules=[shown(summary) for summary in reply.schedules])


def _message_deliveries(seen: Names, reply: wire.MessageDeliveries) -> wire.MessageDeliveries:
    def shown(report: DeliveryReport) -> DeliveryReport:
        endpoint = None if report.endpoint is None else _endpoint(seen, report.endpoint)
        return replace(report, endpoint=endpoint, last_error=_last_error(seen, report.last_error))

    return replace(reply, deliveries=[shown(report) for report in reply.deliveries])


def _message_history(seen: Names, reply: wire.MessageHistory) -> wire.MessageHistory:
    sees_hosts = seen.sees_hosts

    def shown(event: LifeEvent) -> LifeEvent:
        # The subscription belongs to the topic, whose name stands beside it.
        topic = event.from_queue if event.kind == LifeKind.COPIED else event.queue
        is_hidden = bool(event.subscription and topic) and not seen.allows_name(topic)
        return replace(
            event,
            queue=_name(seen, event.queue),
            from_queue=_name(seen, event.from_queue),
            subscription=HIDDEN if is_hidden else event.subscription,
            schedule=_name(seen, event.schedule),
            text=_last_error(seen, event.text) or "" if event.kind == LifeKind.DELIVERY_FAILED else event.text,
            actor=event.actor if event.actor is None or sees_hosts else replace(event.actor, host="", stated_by=""),
        )

    places = [replace(place, queue=_name(seen, place.queue)) for place in reply.places]
    return replace(reply, events=[shown(event) for event in reply.events], places=places)


def _deliveries_peeked(seen: Names, reply: wire.DeliveriesPeeked) -> wire.DeliveriesPeeked:
    def shown(message: PendingMessage) -> PendingMessage:
        return replace(message, last_error=_last_error(seen, message.last_error))

    return replace(reply, messages=[shown(message) for message in reply.messages])


_CHANGES: Final[dict[type, Callable[[Names, Any], Any]]] = {
    wire.QueueInfo: _queue_info,
    wire.QueueList: _queue_list,
    wire.RedriveStatus: _redrive_status,
    wire.SubscriptionInfo: _subscription_info,
    wire.SubscriptionList: _subscription_list,
    wire.SubscriptionsMatched: _subscriptions_matched,
    wire.ScheduleInfo: _schedule_info,
    wire.ScheduleList: _schedule_list,
    wire.DeliveriesPeeked: _deliveries_peeked,
    wire.MessageDeliveries: _message_deliveries,
    wire.MessageHistory: _message_history,
}
"""Replies that may name other objects. A reply of ``list_queue_subscriptions`` names none: the errors in it name the
queue of the request, and its topics are those that the key sees."""
