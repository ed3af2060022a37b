"""Requests of the JSON API; the OpenAPI document is generated from these types, and from those of ``replies``.

Durations are seconds, times are RFC 3339 in UTC, ids and receipt handles are strings (see ``values``). A request with a
field that its type lacks is refused. An attribute that a request omits keeps its value or has its default.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cmqd_gateway.rest.attributes import in_json, with_attributes
from cmqd_gateway.rest.values import (
    MAX_BATCH,
    Body,
    Count,
    DedupId,
    Encoding,
    Headers,
    MessageIdText,
    Moment,
    PageStart,
    Reason,
    ReceiptHandleText,
    Seconds,
    Tag,
)
from cmqd_types.attributes import QUEUE, SCHEDULE, SUBSCRIPTION_CHANGES, SUBSCRIPTION_OPTIONS, TOPIC, TOPIC_CHANGES
from cmqd_types.inspection import ConnectionSort
from cmqd_types.queues import QueueSelection, QueueSort


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of the bodies and queries of requests."""


class Nothing(Request, frozen=True, kw_only=True):
    """A request without a body, or without a query."""


# ---------------------------------------------------------------- lists


class ListQuery(Request, frozen=True, kw_only=True):
    """The page of a list by name."""

    search: Annotated[str, Meta(description="Only names with this word in them.")] = ""
    offset: Annotated[Count, Meta(description="Number of names to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most names of the page, 1-1,000.")] = 100


# ---------------------------------------------------------------- queues


def _range(minimum: float, maximum: float, default: float | None = None) -> dict[str, float]:
    """Return the range of a field, and its default if it is a number, for the OpenAPI document.

    The broker checks the value: its refusal has a sentence for the field, and the gateway's own would not.
    """
    return {"minimum": minimum, "maximum": maximum} | ({} if default is None else {"default": default})


def _within(name: str, description: str, low: int | None = None) -> Meta:
    """Return the description of a duration with the range of an attribute of a queue, or with another ``low``."""
    attribute = QUEUE[name]
    first, last = in_json(attribute, attribute.low if low is None else low), in_json(attribute, attribute.high)
    return Meta(description=description.format(f"{first:,}-{last:,}"), extra_json_schema=_range(first, last))


class QueueAttributes(with_attributes(Request, QUEUE), frozen=True, kw_only=True):
    """Attributes of a queue. An omitted attribute keeps its value, or has its default in a new queue."""


class QueueSubscriptionQuery(Request, frozen=True, kw_only=True):
    """The page of a list of the subscriptions that deliver to a queue."""

    offset: Annotated[Count, Meta(description="Number of subscriptions to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most subscriptions of the page, 1-1,000.")] = 100


class QueueSummaryQuery(ListQuery, frozen=True, kw_only=True):
    """The page of a list of queues in any order."""

    sort: Annotated[
        QueueSort,
        Meta(
            description="Figure to sort by. `age` = of the oldest message that is active or in flight."
            " Queues with equal figures come in order of name."
        ),
    ] = "name"
    descending: Annotated[bool, Meta(description="True = the largest figures first.")] = False
    selection: Annotated[
        QueueSelection, Meta(description="Kind of queues; `with_messages` = in any state but rewindable.")
    ] = "all"


# ---------------------------------------------------------------- sends


class Content(Request, frozen=True, kw_only=True):
    """The content of a message, and its name."""

    body: Body
    encoding: Encoding = "utf-8"
    headers: Headers = {}
    dedup_id: Annotated[
        DedupId | None,
        Meta(description="The producer's own name of the message, up to 64 bytes; in place of `Idempotency-Key`."),
    ] = None


class NewMessage(Content, frozen=True, kw_only=True):
    """A message to send."""

    delay: Annotated[
        Seconds | None, Meta(description="Seconds until the message becomes active; null = the queue's own delay.")
    ] = None


class SendMessage(NewMessage, frozen=True, kw_only=True):
    """A message to send."""

    at: Annotated[Moment | None, Meta(description="Time at which the message becomes active, in place of `delay`.")] = (
        None
    )


class SendMessages(Request, frozen=True, kw_only=True):
    """Messages that are stored in one step, contiguous and in this order, or not at all."""

    messages: Annotated[
        list[NewMessage],
        Meta(min_length=1, max_length=MAX_BATCH, description="1-256 messages, 1 MiB of bodies and headers in all."),
    ]
    at: Annotated[Moment | None, Meta(description="Time at which all become active, in place of their delays.")] = None
    after: Annotated[
        DedupId | None,
        Meta(description="Dedup id of a message that the queue must remember, or the batch is refused."),
    ] = None


# ---------------------------------------------------------------- receives


class ReceiveMessages(Request, frozen=True, kw_only=True):
    """A receive. The answer comes at once with the active messages, or with the first message that becomes active."""

    max_messages: Annotated[
        Count, Meta(description="Most messages of the reply, 1-256.", extra_json_schema=_range(1, MAX_BATCH))
    ] = 1
    wait: Annotated[
        Seconds | None,
        _within("polling_wait_ms", "Seconds to wait for the first message, {}; null = the queue's polling wait."),
    ] = None
    visibility_timeout: Annotated[
        Seconds | None,
        _within("visibility_timeout_ms", "Seconds for which the messages are hidden, {}; null = the queue's own."),
    ] = None


class PeekQuery(Request, frozen=True, kw_only=True):
    """The page of a peek."""

    max_messages: Annotated[Count, Meta(description="Most messages of the page, 1-256.")] = 16
    start: PageStart = "0"
    states: Annotated[
        list[Literal["active", "delayed", "in_flight", "half", "rewindable"]] | None,
        Meta(description="Only messages in these states; by default all but `rewindable`."),
    ] = None


# ---------------------------------------------------------------- received messages


class HandleRequest(Request, frozen=True, kw_only=True):
    """A received message."""

    receipt_handle: ReceiptHandleText


class HandlesRequest(Request, frozen=True, kw_only=True):
    """Received messages."""

    receipt_handles: Annotated[list[ReceiptHandleText], Meta(min_length=1, max_length=MAX_BATCH)]


class ChangeVisibility(HandleRequest, frozen=True, kw_only=True):
    """A new visibility timeout of a received message."""

    timeout: Annotated[
        Seconds, _within("visibility_timeout_ms", "{} seconds from now; 0 makes the message active at once.", low=0)
    ]


class ChangeVisibilities(HandlesRequest, frozen=True, kw_only=True):
    """A new visibility timeout of received messages."""

    timeout: Annotated[
        Seconds, _within("visibility_timeout_ms", "{} seconds from now; 0 makes the messages active at once.", low=0)
    ]


class Release(HandleRequest, frozen=True, kw_only=True):
    """A received message to make active again at once."""

    count_receive: Annotated[bool, Meta(description="True if this receive stays counted.")] = True


class Releases(HandlesRequest, frozen=True, kw_only=True):
    """Received messages to make active again at once."""

    count_receive: Annotated[bool, Meta(description="True if these receives stay counted.")] = True


class Reject(HandleRequest, frozen=True, kw_only=True):
    """A received message to move to the dead-letter queue."""

    reason: Reason = ""


class Rejects(HandlesRequest, frozen=True, kw_only=True):
    """Received messages to move to the dead-letter queue."""

    reason: Reason = ""


# ---------------------------------------------------------------- rewind and redrive


class RewindPreviewQuery(Request, frozen=True, kw_only=True):
    """The start of a rewind; neither `time` nor `ago` = the whole rewind window."""

    time: Moment | None = None
    ago: Annotated[Seconds | None, Meta(description="How many seconds ago, by the clock of the server.")] = None


class Rewind(RewindPreviewQuery, frozen=True, kw_only=True):
    """The start of a rewind; exactly one of `time` and `ago`."""

    strict: Annotated[bool, Meta(description="Refuse a time before the window; false = use the nearest time.")] = True


class StartRedrive(Request, frozen=True, kw_only=True):
    """The target of a redrive."""

    target: Annotated[str | None, Meta(description="Name of a queue; null = the origin of each message.")] = None
    max_per_second: Annotated[
        Count | None,
        Meta(
            description="Limit in messages per second, 1-1,000,000; null = no limit.",
            extra_json_schema=_range(1, 1_000_000),
        ),
    ] = None


# ---------------------------------------------------------------- transactions


class NewHalfMessage(Content, frozen=True, kw_only=True):
    """A half message: stored, and not delivered before its commit."""


class SendHalfMessage(NewHalfMessage, frozen=True, kw_only=True):
    """A half message: stored, and not delivered before its commit."""

    first_check: Annotated[
        Seconds | None,
        _within("first_check_ms", "Seconds to the first check with a registered producer, {}; null = the queue's own."),
    ] = None


class SendHalfMessages(Request, frozen=True, kw_only=True):
    """Half messages that are stored in one step."""

    messages: Annotated[list[NewHalfMessage], Meta(min_length=1, max_length=MAX_BATCH)]
    first_check: Annotated[
        Seconds | None,
        Meta(description="Seconds to the first check with a registered producer; null = the queue's own."),
    ] = None


class Decision(Request, frozen=True, kw_only=True):
    """The decision about a half message."""

    message_id: MessageIdText
    decision: Annotated[
        Literal["commit", "rollback", "unknown"],
        Meta(description="`commit`: deliver. `rollback`: drop. `unknown`: not decided yet."),
    ]


class Decisions(Request, frozen=True, kw_only=True):
    """Decisions about half messages."""

    decisions: Annotated[
        list[Decision],
        Meta(min_length=1, max_length=MAX_BATCH, description="A decision per message; no message twice."),
    ]


class HalfMessageQuery(Request, frozen=True, kw_only=True):
    """The page of a list of half messages."""

    max_messages: Annotated[Count, Meta(description="Most messages of the page, 1-1,000.")] = 100
    start: PageStart = "0"


# ---------------------------------------------------------------- topics


# A single attribute that can be changed must be given.
_OMITTED = "unset" if len(TOPIC_CHANGES) > 1 else "never"


class TopicChanges(with_attributes(Request, TOPIC_CHANGES, _OMITTED), frozen=True, kw_only=True):
    """Changes of a topic; an omitted attribute stays."""


class TopicAttributes(with_attributes(Request, TOPIC), frozen=True, kw_only=True):
    """Attributes of a new topic."""


class PublishMessage(Content, frozen=True, kw_only=True):
    """A message for each subscription that matches now."""

    tags: Annotated[
        Annotated[list[Tag], Meta(max_length=10)] | None,
        Meta(description="On a tag topic, up to 10 tags of 1-16 characters without commas."),
    ] = None
    routing_key: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="On a routing topic, 1-64 bytes with at most 15 dots; required there."),
    ] = None


class PublishMessages(Request, frozen=True, kw_only=True):
    """Messages that are published in one step with all their copies, or not at all."""

    messages: Annotated[
        list[PublishMessage],
        Meta(min_length=1, max_length=MAX_BATCH, description="1-256 messages, 1 MiB of bodies and headers in all."),
    ]
    after: Annotated[
        DedupId | None, Meta(description="Dedup id of a message that the topic must remember, or the batch is refused.")
    ] = None


# ---------------------------------------------------------------- subscriptions


class NewSubscription(with_attributes(Request, SUBSCRIPTION_OPTIONS, "null"), frozen=True, kw_only=True):
    """A subscription to the messages published from now on; exactly one of `queue` and `url`."""

    queue: Annotated[str | None, Meta(description="A queue of the account.")] = None
    url: Annotated[str | None, Meta(description="A URL, `http://` or `https://`.")] = None


class SubscriptionChanges(with_attributes(Request, SUBSCRIPTION_CHANGES, "null"), frozen=True, kw_only=True):
    """Changes of a subscription; an omitted attribute stays."""


class PendingQuery(Request, frozen=True, kw_only=True):
    """The page of a peek at the messages of a subscription."""

    max_messages: Annotated[Count, Meta(description="Most messages of the page, 1-256.")] = 16
    start: PageStart = "0"
    bodies: Annotated[bool, Meta(description="false = without bodies and headers.")] = True


class MatchQuery(Request, frozen=True, kw_only=True):
    """The labels of a message that is not published."""

    tags: Annotated[list[str], Meta(max_length=10, description="A tag of the message; can be repeated.")] = []
    routing_key: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="On a routing topic, where it must be given.")
    ] = None


class RotateSecret(Request, frozen=True, kw_only=True):
    """The change-over to a new secret."""

    overlap: Annotated[
        Seconds | None,
        Meta(
            description="Seconds for which the old secret signs as well; 0-604,800, null = a day.",
            extra_json_schema=_range(0, 604_800, 86_400),
        ),
    ] = None


# ---------------------------------------------------------------- schedules


class NewSchedule(Request, frozen=True, kw_only=True):
    """A message that the server sends at the times of a cron expression."""

    queue: str
    cron: Annotated[
        str,
        Meta(description=f"{SCHEDULE['cron'].help}.", examples=["0 9 * * mon-fri"]),
    ]
    zone: Annotated[str, Meta(description=f"{SCHEDULE['zone'].help}.")] = str(SCHEDULE["zone"].default)
    body: Body
    encoding: Encoding = "utf-8"
    headers: Headers = {}


class NewPausableSchedule(NewSchedule, frozen=True, kw_only=True):
    """A message that the server sends at the times of a cron expression."""

    paused: Annotated[bool, Meta(description=f"{SCHEDULE['paused'].help}.")] = False


class ScheduleChanges(Request, frozen=True, kw_only=True):
    """Changes of a schedule; an omitted or null value stays."""

    queue: str | None = None
    cron: str | None = None
    zone: str | None = None
    body: Body | None = None
    encoding: Encoding = "utf-8"
    headers: Headers | None = None
    paused: bool | None = None


# ---------------------------------------------------------------- keys and accounts


class AccountQuery(Request, frozen=True, kw_only=True):
    """The account of a key."""

    account: Annotated[
        str | None, Meta(description="Account of the key, by default the caller's own. For `admin`, any account.")
    ] = None


Roles = Annotated[
    list[Literal["admin", "manage", "send", "consume", "read", "gateway"]],
    Meta(max_length=6, description="Roles of the key; no role implies another."),
]
NamePatterns = Annotated[
    list[Annotated[str, Meta(max_length=128)]],
    Meta(
        max_length=50,
        description="1-50 patterns of the names that the key may use; `*` stands for any characters.",
        examples=[["orders-*"]],
    ),
]


class NewKeyRequest(Request, frozen=True, kw_only=True):
    """The permissions of a new key."""

    roles: Annotated[Roles | None, Meta(description="null = every role but `gateway`.")] = None
    names: Annotated[NamePatterns | None, Meta(description="null = every name.")] = None


class ImportKey(NewKeyRequest, frozen=True, kw_only=True):
    """The secret and the permissions of a key pair that programs use already."""

    secret_key: Annotated[str, Meta(max_length=128, description="16-128 printable ASCII characters without spaces.")]

    def __repr__(self) -> str:
        return f"ImportKey(secret_key=..., roles={self.roles}, names={self.names})"


class SetKeyRoles(Request, frozen=True, kw_only=True):
    """The permissions of a key, in place of the former permissions."""

    roles: Annotated[Roles | None, Meta(description="null = every role but `gateway`.")]
    names: Annotated[NamePatterns | None, Meta(description="null = every name.")]


class SetKey(Request, frozen=True, kw_only=True):
    """A change of a key."""

    enabled: bool


class AuditQuery(Request, frozen=True, kw_only=True):
    """The entries of the audit trail that are asked for."""

    account: Annotated[
        str | None,
        Meta(description="Account of the changed objects; null = the caller's own, for `admin` every account."),
    ] = None
    before: Annotated[
        str, Meta(pattern="^[0-9]{1,18}$", description="`next` of the page before; `0` = from the newest entry on.")
    ] = "0"
    after: Annotated[str, Meta(pattern="^[0-9]{1,18}$", description="Only entries with a higher `entry_id`.")] = "0"
    since: Annotated[Moment | None, Meta(description="Only entries of this time or later.")] = None
    until: Annotated[Moment | None, Meta(description="Only entries before this time.")] = None
    search: Annotated[
        str,
        Meta(
            max_length=128,
            description="Only entries with this text, in any case: in account, key, peer, operation, name or changes.",
        ),
    ] = ""
    operation: Annotated[
        str, Meta(max_length=128, description="Only entries of this operation.", examples=["delete_queue"])
    ] = ""
    limit: Annotated[Count, Meta(description="Most entries of the page, 1-1,000.")] = 100


class MessageQuery(Request, frozen=True, kw_only=True):
    """The messages that a search finds: by dedup id or by a header."""

    source: Annotated[
        str | None,
        Meta(description="Queue or topic to which the messages were sent; null = any of the account."),
    ] = None
    dedup_id: Annotated[str | None, Meta(description="The id that the producer gave.")] = None
    header: Annotated[
        str | None,
        Meta(description="A header, as `name=value`, in place of a dedup id.", examples=["order=4711"]),
    ] = None
    since: Annotated[
        Moment | None, Meta(description="Only messages sent at this time or later; null = of the last 24 hours.")
    ] = None
    until: Annotated[Moment | None, Meta(description="Only messages sent before this time.")] = None
    limit: Annotated[Count, Meta(description="Most messages of the answer, 1-1,000.")] = 20


class SegmentQuery(Request, frozen=True, kw_only=True):
    """The page of a list of segments."""

    after: Annotated[
        str,
        Meta(pattern="^[0-9]{1,18}$", description="`next` of the page before; `0` = from the beginning."),
    ] = "0"
    limit: Annotated[Count, Meta(description="Most segments of the page, 1-1,000.")] = 100


class AllQueuesQuery(Request, frozen=True, kw_only=True):
    """The page of a list of the queues of all accounts."""

    search: Annotated[str, Meta(description="Only queues with this word in their name.")] = ""
    after_account: Annotated[str, Meta(description="`account` of `next` of the page before.")] = ""
    after_queue: Annotated[str, Meta(description="`queue` of `next` of the page before.")] = ""
    limit: Annotated[Count, Meta(description="Most queues of the page, 1-1,000.")] = 100


# ---------------------------------------------------------------- the inside of the broker


class ConnectionQuery(Request, frozen=True, kw_only=True):
    """The page of a list of connections."""

    search: Annotated[
        str,
        Meta(max_length=128, description="Only connections with this text in account, key, address, product or name."),
    ] = ""
    sort: Annotated[ConnectionSort, Meta(description="Order of the list.")] = "since"
    descending: Annotated[bool, Meta(description="true = largest or latest first.")] = False
    offset: Annotated[Count, Meta(description="Number of connections to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most connections of the page, 1-1,000.")] = 100


class CmqTcpClientQuery(Request, frozen=True, kw_only=True):
    """The page of a list of clients of CMQ's TCP protocol."""

    search: Annotated[
        str, Meta(max_length=128, description="Only clients with this text in account, key, client id or address.")
    ] = ""
    offset: Annotated[Count, Meta(description="Number of clients to skip.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Most clients of the page.")] = 100


class ConsumerQuery(Request, frozen=True, kw_only=True):
    """The page of a list of consumers."""

    queue: Annotated[str, Meta(max_length=128, description="Only consumers of the queue with this name.")] = ""
    search: Annotated[
        str,
        Meta(max_length=128, description="Only consumers with this text in queue, account, key, name or host."),
    ] = ""
    offset: Annotated[Count, Meta(description="Number of consumers to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most consumers of the page, 1-1,000.")] = 100


class WaitingReceiveQuery(Request, frozen=True, kw_only=True):
    """The page of a list of waiting receives."""

    search: Annotated[
        str, Meta(max_length=128, description="Only receives with this text in queue, account, key or name.")
    ] = ""
    connection: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)] | None, Meta(description="Only receives of this connection.")
    ] = None
    offset: Annotated[Count, Meta(description="Number of receives to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most receives of the page, 1-1,000.")] = 100
