"""Requests and replies of the JSON API; the OpenAPI document is generated from these types.

Durations are seconds, times are RFC 3339 in UTC, ids and receipt handles are strings (see ``values``). A request with a
field that its type lacks is refused. An attribute that a request omits keeps its value or has its default.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from cmqd_gateway.rest.attributes import described, with_attributes
from cmqd_gateway.rest.problems import Problem
from cmqd_gateway.rest.values import (
    MAX_BATCH,
    Body,
    Count,
    DedupId,
    Encoding,
    Headers,
    IdText,
    MessageIdText,
    Moment,
    PageStart,
    Reason,
    ReceiptHandleText,
    Seconds,
    Tag,
)
from cmqd_types.attributes import QUEUE, SUBSCRIPTION, TOPIC
from cmqd_types.inspection import ConnectionSort
from cmqd_types.queues import QueueSelection, QueueSort


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of the bodies and queries of requests."""


class Reply(Struct, frozen=True, kw_only=True):
    """Root of the replies."""


class Nothing(Request, frozen=True, kw_only=True):
    """A request without a body, or without a query."""


# ---------------------------------------------------------------- lists


class ListQuery(Request, frozen=True, kw_only=True):
    """The page of a list by name."""

    search: Annotated[str, Meta(description="Only names with this word in them.")] = ""
    offset: Annotated[Count, Meta(description="Number of names to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most names of the page, 1-1,000.")] = 100


class NameList(Reply, frozen=True, kw_only=True):
    """A page of names, in their order."""

    names: list[str]
    total: Annotated[int, Meta(description="Number of names that match the search, on this page or not.")]
    next_offset: Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]


# ---------------------------------------------------------------- queues


def _range(minimum: float, maximum: float, default: float | None = None) -> dict[str, float]:
    """Return the range of a field, and its default if it is a number, for the OpenAPI document.

    The broker checks the value: its refusal has a sentence for the field, and the gateway's own would not.
    """
    return {"minimum": minimum, "maximum": maximum} | ({} if default is None else {"default": default})


class QueueAttributes(with_attributes(Request, QUEUE), frozen=True, kw_only=True):
    """Attributes of a queue. An omitted attribute keeps its value, or has its default in a new queue."""


class QueueCounts(Reply, frozen=True, kw_only=True):
    """Exact numbers of messages of a queue, by state."""

    active: Annotated[int, Meta(description="Messages that can be received.")]
    in_flight: Annotated[int, Meta(description="Messages received, hidden and not deleted.")]
    delayed: Annotated[int, Meta(description="Messages that cannot be received yet.")]
    half: Annotated[int, Meta(description="Half messages without a decision.")]
    rewindable: Annotated[int, Meta(description="Deleted messages that a rewind can bring back.")]


class QueueInfo(Reply, frozen=True, kw_only=True):
    """A queue at the time of the request."""

    name: str
    id: Annotated[IdText, Meta(description="Changes if the queue is deleted and created again.")]
    created: Annotated[bool, Meta(description="True if this request created the queue.")]
    attributes: QueueAttributes
    counts: QueueCounts
    dead_letter_sources: Annotated[list[str], Meta(description="Queues that send their dead letters to this queue.")]
    oldest_message_time: Annotated[
        datetime | None,
        Meta(description="Send time of the oldest message that is active or in flight; null = none is."),
    ]
    create_time: datetime | None
    modify_time: datetime | None
    region: str


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


class QueueSummary(Reply, frozen=True, kw_only=True):
    """A queue in a list, at its own moment."""

    name: str
    id: Annotated[IdText, Meta(description="Changes if the queue is deleted and created again.")]
    counts: QueueCounts
    damaged: Annotated[int, Meta(description="Messages with a body that cannot be read.")]
    waiting_receives: Annotated[int, Meta(description="Receives that wait for a message.")]
    oldest_message_time: Annotated[
        datetime | None,
        Meta(description="Send time of the oldest message that is active or in flight; null = none is."),
    ]
    create_time: datetime
    transactional: bool
    dead_letter_queue: Annotated[str, Meta(description="Name of the dead-letter queue; empty = none.")]
    is_dead_letter_queue: Annotated[bool, Meta(description="True if other queues send their dead letters to this one.")]
    arrived: Annotated[
        int,
        Meta(
            description="Messages that came since the queue was created: by sends, publishes, as dead letters and by"
            " redrives. A rate is the difference of two readings."
        ),
    ]
    deleted: Annotated[int, Meta(description="Messages that consumers deleted since the queue was created.")]
    dead_lettered: Annotated[
        int, Meta(description="Messages that left for the dead-letter queue since the queue was created.")
    ]


class QueueSummaries(Reply, frozen=True, kw_only=True):
    """A page of queues with their figures."""

    time: Annotated[datetime, Meta(description="Broker time of the page.")]
    queues: list[QueueSummary]
    total: Annotated[int, Meta(description="Number of matching queues, on this page or not.")]
    next_offset: Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]


# ---------------------------------------------------------------- sends


class NewMessage(Request, frozen=True, kw_only=True):
    """A message to send."""

    body: Body
    encoding: Encoding = "utf-8"
    headers: Headers = {}
    delay: Annotated[
        Seconds | None, Meta(description="Seconds until the message becomes active; null = the queue's own delay.")
    ] = None
    dedup_id: Annotated[
        DedupId | None,
        Meta(description="The producer's own name of the message, up to 64 bytes; in place of `Idempotency-Key`."),
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


class Sent(Reply, frozen=True, kw_only=True):
    """The message is stored, and on disk."""

    id: MessageIdText


class SentBatch(Reply, frozen=True, kw_only=True):
    """All messages of the batch are stored, and on disk."""

    results: Annotated[list[Sent], Meta(description="A result for each message, in the order of the request.")]


# ---------------------------------------------------------------- receives


class ReceiveMessages(Request, frozen=True, kw_only=True):
    """A receive. The answer comes at once with the active messages, or with the first message that becomes active."""

    max_messages: Annotated[
        Count, Meta(description="Most messages of the reply, 1-256.", extra_json_schema=_range(1, MAX_BATCH))
    ] = 1
    wait: Annotated[
        Seconds | None,
        Meta(
            description="Seconds to wait for the first message, 0-30; null = the queue's polling wait.",
            extra_json_schema=_range(0, 30),
        ),
    ] = None
    visibility_timeout: Annotated[
        Seconds | None,
        Meta(
            description="Seconds for which the messages are hidden, 1-43,200; null = the queue's own.",
            extra_json_schema=_range(1, 43_200),
        ),
    ] = None


class Origin(Reply, frozen=True, kw_only=True):
    """Where a message was before it was moved."""

    queue: str
    id: Annotated[MessageIdText, Meta(description="Id of the message in that queue.")]
    enqueue_time: datetime
    receive_count: int
    reason: Annotated[
        str,
        Meta(description="`receives`, `age` or `rejected`: became a dead letter; `redrive`: came back."),
    ]
    rejection: Annotated[str, Meta(description="The reason that the consumer gave, with `rejected`.")]


class CopyOf(Reply, frozen=True, kw_only=True):
    """The published message of which this message is a copy."""

    topic: str
    subscription: str
    id: Annotated[MessageIdText, Meta(description="Id of the published message; the copy has an id of its own.")]
    publish_time: datetime
    tags: list[str]
    routing_key: str | None


class ReceivedMessage(Reply, frozen=True, kw_only=True):
    """A received message, hidden from other receives until `next_visible_time`."""

    id: MessageIdText
    receipt_handle: ReceiptHandleText
    body: Body
    encoding: Encoding
    headers: dict[str, str]
    receive_count: Annotated[int, Meta(description="Number of receives of the message, this receive included.")]
    enqueue_time: datetime
    first_receive_time: datetime
    next_visible_time: datetime
    origin: Annotated[Origin | None, Meta(description="null = the message was never moved.")]
    copy_of: Annotated[CopyOf | None, Meta(description="null = the message was sent to a queue.")]


class ReceivedMessages(Reply, frozen=True, kw_only=True):
    """The received messages; empty if none came in time."""

    messages: list[ReceivedMessage]


class PeekQuery(Request, frozen=True, kw_only=True):
    """The page of a peek."""

    max_messages: Annotated[Count, Meta(description="Most messages of the page, 1-256.")] = 16
    start: PageStart = "0"
    states: Annotated[
        list[Literal["active", "delayed", "in_flight", "half", "rewindable"]] | None,
        Meta(description="Only messages in these states; by default all but `rewindable`."),
    ] = None


class PeekedMessage(Reply, frozen=True, kw_only=True):
    """A message at the time of the peek; a peek is not a receive."""

    id: MessageIdText
    state: Annotated[str, Meta(description="`active`, `delayed`, `in_flight`, `half` or `rewindable`.")]
    body: Body
    encoding: Encoding
    headers: dict[str, str]
    enqueue_time: datetime
    visible_time: Annotated[datetime | None, Meta(description="When a delayed message becomes active; else null.")]
    receive_count: int
    origin: Origin | None
    copy_of: CopyOf | None


class PeekedMessages(Reply, frozen=True, kw_only=True):
    """A page of messages in the order of sending; it may be empty and yet not the last."""

    messages: list[PeekedMessage]
    next_start: Annotated[PageStart | None, Meta(description="`start` of the next page; null = this is the last page.")]


# ---------------------------------------------------------------- received messages


class HandleRequest(Request, frozen=True, kw_only=True):
    """A received message."""

    receipt_handle: ReceiptHandleText


class HandlesRequest(Request, frozen=True, kw_only=True):
    """Received messages."""

    receipt_handles: Annotated[list[ReceiptHandleText], Meta(min_length=1, max_length=MAX_BATCH)]


class ChangeVisibility(Request, frozen=True, kw_only=True):
    """A new visibility timeout of a received message."""

    receipt_handle: ReceiptHandleText
    timeout: Annotated[
        Seconds,
        Meta(
            description="0-43,200 seconds from now; 0 makes the message active at once.",
            extra_json_schema=_range(0, 43_200),
        ),
    ]


class ChangeVisibilities(Request, frozen=True, kw_only=True):
    """A new visibility timeout of received messages."""

    receipt_handles: Annotated[list[ReceiptHandleText], Meta(min_length=1, max_length=MAX_BATCH)]
    timeout: Annotated[
        Seconds,
        Meta(
            description="0-43,200 seconds from now; 0 makes the messages active at once.",
            extra_json_schema=_range(0, 43_200),
        ),
    ]


class Release(Request, frozen=True, kw_only=True):
    """A received message to make active again at once."""

    receipt_handle: ReceiptHandleText
    count_receive: Annotated[bool, Meta(description="True if this receive stays counted.")] = True


class Releases(Request, frozen=True, kw_only=True):
    """Received messages to make active again at once."""

    receipt_handles: Annotated[list[ReceiptHandleText], Meta(min_length=1, max_length=MAX_BATCH)]
    count_receive: Annotated[bool, Meta(description="True if these receives stay counted.")] = True


class Reject(Request, frozen=True, kw_only=True):
    """A received message to move to the dead-letter queue."""

    receipt_handle: ReceiptHandleText
    reason: Reason = ""


class Rejects(Request, frozen=True, kw_only=True):
    """Received messages to move to the dead-letter queue."""

    receipt_handles: Annotated[list[ReceiptHandleText], Meta(min_length=1, max_length=MAX_BATCH)]
    reason: Reason = ""


class VisibilityChanged(Reply, frozen=True, kw_only=True):
    """The message has a new next visible time."""

    next_visible_time: datetime | None


class HandleResult(Reply, frozen=True, kw_only=True):
    """The result for a received message of a batch."""

    receipt_handle: ReceiptHandleText
    problem: Annotated[Problem | None, Meta(description="Reason why the message did not change; null = done.")]


class HandleResults(Reply, frozen=True, kw_only=True):
    """The results of a batch, by entry: a failed entry has no effect on the other entries."""

    results: Annotated[list[HandleResult], Meta(description="A result for each entry, in the order of the request.")]
    failed: Annotated[int, Meta(description="Number of entries with a problem.")]
    next_visible_time: Annotated[
        datetime | None, Meta(description="When the first of the messages becomes active again; null after a delete.")
    ]


# ---------------------------------------------------------------- rewind and redrive


class Rewind(Request, frozen=True, kw_only=True):
    """The start of a rewind; exactly one of `time` and `ago`."""

    time: Moment | None = None
    ago: Annotated[Seconds | None, Meta(description="How many seconds ago, by the clock of the server.")] = None
    strict: Annotated[bool, Meta(description="Refuse a time before the window; false = use the nearest time.")] = True


class Rewound(Reply, frozen=True, kw_only=True):
    """The queue is rewound."""

    messages: Annotated[int, Meta(description="Number of messages that are active again.")]
    time: Annotated[datetime, Meta(description="Start of the rewind: the requested or the nearest possible time.")]
    clamped: Annotated[bool, Meta(description="True if the requested time lies before the rewind window.")]


class RewindPreviewQuery(Request, frozen=True, kw_only=True):
    """The start of a rewind; neither `time` nor `ago` = the whole rewind window."""

    time: Moment | None = None
    ago: Annotated[Seconds | None, Meta(description="How many seconds ago, by the clock of the server.")] = None


class RewindPreview(Reply, frozen=True, kw_only=True):
    """The result that a rewind would have at the time of the request."""

    messages: Annotated[int, Meta(description="Number of messages that would be active again.")]
    time: Annotated[datetime, Meta(description="Start of the rewind: the requested or the nearest possible time.")]
    clamped: Annotated[bool, Meta(description="True if the requested time lies before the rewind window.")]
    earliest: Annotated[datetime, Meta(description="Start of the rewind window.")]
    latest: Annotated[
        datetime,
        Meta(description="Latest possible time: the send of the oldest message that is active or in flight, or now."),
    ]
    oldest: Annotated[
        datetime | None,
        Meta(description="Time at or shortly before the send of the oldest message that can come back; null = none."),
    ]


class StartRedrive(Request, frozen=True, kw_only=True):
    """The target of a redrive."""

    target: Annotated[str | None, Meta(description="Name of a queue; null = the origin of each message.")] = None
    max_per_second: Annotated[Count | None, Meta(description="Limit in messages per second; null = no limit.")] = None


class Redrive(Reply, frozen=True, kw_only=True):
    """A redrive at the time of the request: messages of a dead-letter queue on their way back."""

    queue: Annotated[str, Meta(description="The dead-letter queue.")]
    target: str | None
    max_per_second: int | None
    start_time: datetime
    end_time: Annotated[datetime | None, Meta(description="null = the redrive continues.")]
    reason: Annotated[
        str, Meta(description="`done` or `cancelled` after the end; before the end empty, or the reason of a pause.")
    ]
    moved: int
    remaining: Annotated[int, Meta(description="Messages that the redrive has not examined yet.")]
    missing_origins: Annotated[dict[str, int], Meta(description="Messages that stay, by the name of their origin.")]


class QueueNames(Reply, frozen=True, kw_only=True):
    """Names of queues."""

    names: list[str]


# ---------------------------------------------------------------- transactions


class NewHalfMessage(Request, frozen=True, kw_only=True):
    """A half message: stored, and not delivered before its commit."""

    body: Body
    encoding: Encoding = "utf-8"
    headers: Headers = {}
    dedup_id: Annotated[
        DedupId | None, Meta(description="The producer's own name of the message; in place of `Idempotency-Key`.")
    ] = None


class SendHalfMessage(NewHalfMessage, frozen=True, kw_only=True):
    """A half message: stored, and not delivered before its commit."""

    first_check: Annotated[
        Seconds | None,
        Meta(
            description="Seconds to the first check with a registered producer, 1-3,600; null = the queue's own.",
            extra_json_schema=_range(1, 3_600),
        ),
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


class DecisionResult(Reply, frozen=True, kw_only=True):
    """The result for a half message."""

    message_id: MessageIdText
    problem: Annotated[Problem | None, Meta(description="Reason why the decision was refused; null = done.")]


class DecisionResults(Reply, frozen=True, kw_only=True):
    """The results of a batch, each of its own."""

    results: Annotated[list[DecisionResult], Meta(description="A result for each entry, in the order of the request.")]
    failed: Annotated[int, Meta(description="Number of entries with a problem.")]


class HalfMessageQuery(Request, frozen=True, kw_only=True):
    """The page of a list of half messages."""

    max_messages: Annotated[Count, Meta(description="Most messages of the page, 1-1,000.")] = 100
    start: PageStart = "0"


class HalfMessage(Reply, frozen=True, kw_only=True):
    """A half message without a decision."""

    id: MessageIdText
    enqueue_time: datetime
    checks: Annotated[int, Meta(description="Number of checks sent to producers.")]
    last_check_time: datetime | None
    last_answer: Annotated[str, Meta(description="`unknown`, or empty if no answer came.")]
    next_check_time: Annotated[datetime | None, Meta(description="null = no further check is sent.")]


class HalfMessages(Reply, frozen=True, kw_only=True):
    """A page of half messages without a decision, in the order of sending."""

    messages: list[HalfMessage]
    next_start: Annotated[PageStart | None, Meta(description="`start` of the next page; null = this is the last page.")]


# ---------------------------------------------------------------- topics


class TopicChanges(Request, frozen=True, kw_only=True):
    """The attribute of a topic that can be changed."""

    max_message_bytes: Annotated[Count, Meta(description=described(TOPIC["max_message_bytes"]).description)]


class TopicAttributes(with_attributes(Request, TOPIC), frozen=True, kw_only=True):
    """Attributes of a new topic."""


class TopicInfo(Reply, frozen=True, kw_only=True):
    """A topic at the time of the request."""

    name: Annotated[str, Meta(description="At creation, a name over 64 bytes is cut; this is the name in use.")]
    id: Annotated[IdText, Meta(description="Changes if the topic is deleted and created again.")]
    created: Annotated[bool, Meta(description="True if this request created the topic.")]
    attributes: TopicAttributes
    lifecycle: Annotated[Seconds, Meta(description="Seconds for which a message waits for its subscriptions.")]
    retained: Annotated[int, Meta(description="Messages that wait for at least one subscription.")]
    subscriptions: int
    oldest_message_time: Annotated[datetime | None, Meta(description="Publish time of the oldest retained message.")]
    create_time: datetime | None
    modify_time: datetime | None
    region: str


class PublishMessage(Request, frozen=True, kw_only=True):
    """A message for each subscription that matches now."""

    body: Body
    encoding: Encoding = "utf-8"
    headers: Headers = {}
    tags: Annotated[
        Annotated[list[Tag], Meta(max_length=10)] | None,
        Meta(description="On a tag topic, up to 10 tags of 1-16 characters without commas."),
    ] = None
    routing_key: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="On a routing topic, 1-64 bytes with at most 15 dots; required there."),
    ] = None
    dedup_id: Annotated[
        DedupId | None, Meta(description="The producer's own name of the message; in place of `Idempotency-Key`.")
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


class Published(Reply, frozen=True, kw_only=True):
    """The message and its copies are stored, and on disk."""

    id: Annotated[MessageIdText, Meta(description="Id of the message in the topic; the copies have ids of their own.")]
    matched: Annotated[
        int | None,
        Meta(description="Number of matching subscriptions; 0 = discarded, null = published by an earlier request."),
    ]


class PublishedBatch(Reply, frozen=True, kw_only=True):
    """All messages of the batch and their copies are stored, and on disk."""

    results: Annotated[list[Published], Meta(description="A result for each message, in the order of the request.")]


# ---------------------------------------------------------------- subscriptions

CHANGEABLE = {name: attribute for name, attribute in SUBSCRIPTION.items() if not attribute.is_fixed}
INITIAL = {name: attribute for name, attribute in CHANGEABLE.items() if name != "paused"}


class NewSubscription(with_attributes(Request, INITIAL, "null"), frozen=True, kw_only=True):
    """A subscription to the messages published from now on; exactly one of `queue` and `url`."""

    queue: Annotated[str | None, Meta(description="A queue of the account.")] = None
    url: Annotated[str | None, Meta(description="A URL, `http://` or `https://`.")] = None


class SubscriptionChanges(with_attributes(Request, CHANGEABLE, "null"), frozen=True, kw_only=True):
    """Changes of a subscription; an omitted attribute stays."""


class SubscriptionInfo(Reply, frozen=True, kw_only=True):
    """A subscription at the time of the request."""

    topic: str
    name: str
    created: Annotated[bool, Meta(description="True if this request created the subscription.")]
    secret: Annotated[
        str | None,
        Meta(description="Key of the signatures (Standard Webhooks), if this request created a subscription to a URL."),
    ]
    protocol: Annotated[str, Meta(description="`queue`, `http` or `https`.")]
    endpoint: Annotated[str, Meta(description="Name of the queue, or the URL.")]
    strategy: str
    content_format: str
    filter_tags: list[str]
    binding_keys: list[str]
    paused: bool
    waiting: Annotated[int, Meta(description="Messages without a delivery attempt so far.")]
    in_retry: Annotated[int, Meta(description="Messages with a failed attempt.")]
    delivered: Annotated[int | None, Meta(description="Messages accepted by the URL; null for a queue.")]
    dropped: int
    blocked: Annotated[bool, Meta(description="True if new messages are held back after two failures in a row.")]
    last_error: str | None
    last_error_time: datetime | None
    next_attempt_time: datetime | None
    create_time: datetime | None
    modify_time: datetime | None

    def __repr__(self) -> str:
        shown = "" if self.secret is None else ", secret=..."
        return f"SubscriptionInfo({self.topic!r}, {self.name!r}, endpoint={self.endpoint!r}{shown})"


class SubscriptionSummary(Reply, frozen=True, kw_only=True):
    """A subscription in a list."""

    name: str
    protocol: str
    endpoint: str
    paused: bool
    waiting: int
    in_retry: int
    last_error: str | None


class SubscriptionList(Reply, frozen=True, kw_only=True):
    """A page of the subscriptions of a topic, by name."""

    subscriptions: list[SubscriptionSummary]
    total: int
    next_offset: Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]


class Deliveries(Reply, frozen=True, kw_only=True):
    """Waiting deliveries were retried or dropped."""

    messages: Annotated[int, Meta(description="Number of messages.")]


class PendingQuery(Request, frozen=True, kw_only=True):
    """The page of a peek at the messages of a subscription."""

    max_messages: Annotated[Count, Meta(description="Most messages of the page, 1-256.")] = 16
    start: PageStart = "0"
    bodies: Annotated[bool, Meta(description="false = without bodies and headers.")] = True


class PendingMessage(Reply, frozen=True, kw_only=True):
    """A message that waits for a subscription."""

    id: MessageIdText
    state: Annotated[
        str,
        Meta(description="`waiting` (never tried), `in_retry`, `out_of_retries` or `under_way` (an attempt is made)."),
    ]
    publish_time: datetime
    size: Annotated[int, Meta(description="Bytes of the body.")]
    attempts: Annotated[int, Meta(description="Attempts that failed.")]
    next_attempt_time: datetime | None
    last_error: Annotated[str | None, Meta(description="Reason of the last failure of this message.")]
    last_error_time: datetime | None
    tags: list[str]
    routing_key: Annotated[str | None, Meta(description="null on a tag topic.")]
    body: Body | None
    encoding: Encoding | None
    headers: dict[str, str] | None


class PendingMessages(Reply, frozen=True, kw_only=True):
    """A page of messages in the order of their publishes; it may be empty and yet not the last."""

    messages: list[PendingMessage]
    next_start: Annotated[PageStart | None, Meta(description="`start` of the next page; null = this is the last page.")]


class MessageDelivery(Reply, frozen=True, kw_only=True):
    """The delivery of a message to one subscription."""

    subscription: Annotated[
        str | None, Meta(description="null = the subscription was removed after the message had waited for it.")
    ]
    state: Annotated[
        str,
        Meta(
            description="A state of a waiting message, or `delivered`, `dropped`, or `unknown`: the subscription was "
            "removed, or the day of the message is over."
        ),
    ]
    endpoint: Annotated[str | None, Meta(description="The queue or the URL; null = not known any more.")]
    attempts: Annotated[int | None, Meta(description="Attempts that failed; null = not known any more.")]
    next_attempt_time: datetime | None
    last_error: str | None
    last_error_time: datetime | None
    delivered_time: Annotated[datetime | None, Meta(description="Known of a copy that was stored with the publish.")]
    copy_id: Annotated[MessageIdText | None, Meta(description="Id of that copy in its queue.")]
    drop_reason: Annotated[str | None, Meta(description="`retries`, `operator` or `damaged`.")]


class MessageDeliveries(Reply, frozen=True, kw_only=True):
    """The deliveries of a message: an entry for each subscription that the message was published for."""

    id: MessageIdText
    publish_time: datetime
    size: Annotated[int, Meta(description="Bytes of the body.")]
    tags: list[str]
    routing_key: Annotated[str | None, Meta(description="null on a tag topic.")]
    deliveries: list[MessageDelivery]


class MatchQuery(Request, frozen=True, kw_only=True):
    """The labels of a message that is not published."""

    tags: Annotated[list[str], Meta(max_length=10, description="A tag of the message; can be repeated.")] = []
    routing_key: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="On a routing topic, where it must be given.")
    ] = None


class FilterMatch(Reply, frozen=True, kw_only=True):
    """A filter tag or binding key of a subscription, tested."""

    text: str
    matches: bool
    differs_at: Annotated[
        int | None,
        Meta(
            description="Number, from 1, of the first word of the routing key that does not fit the binding key; "
            "behind the last word if the routing key ends too early. null if the key matches, and for a tag."
        ),
    ]


class SubscriptionMatch(Reply, frozen=True, kw_only=True):
    """A subscription, tested."""

    subscription: str
    protocol: Annotated[str, Meta(description="`queue`, `http` or `https`.")]
    endpoint: Annotated[str, Meta(description="Name of the queue, or the URL.")]
    matches: bool
    fate: Annotated[
        str,
        Meta(
            description="`stored`: the copy would be in the queue with the publish. `posted`: to the URL. The message "
            "would wait: `behind` earlier messages; `blocked` after failures; `queue_full`; `queue_missing`; `paused`. "
            "`no_match`: the message does not match."
        ),
    ]
    filters: Annotated[list[FilterMatch], Meta(description="Empty = every message matches.")]


class TopicMatch(Reply, frozen=True, kw_only=True):
    """The subscriptions of a topic, tested, as of one moment."""

    filter_type: Annotated[str, Meta(description="`tag` or `routing`.")]
    matched: Annotated[int, Meta(description="Number of subscriptions that would get the message.")]
    subscriptions: Annotated[list[SubscriptionMatch], Meta(description="All subscriptions of the topic, by name.")]


class RotateSecret(Request, frozen=True, kw_only=True):
    """The change-over to a new secret."""

    overlap: Annotated[
        Seconds | None,
        Meta(
            description="Seconds for which the old secret signs as well; 0-604,800, null = a day.",
            extra_json_schema=_range(0, 604_800, 86_400),
        ),
    ] = None


class RotatedSecret(Reply, frozen=True, kw_only=True):
    """A new secret; it is shown only once."""

    secret: str
    overlap_until: datetime

    def __repr__(self) -> str:
        return f"RotatedSecret(secret=..., overlap_until={self.overlap_until!r})"


# ---------------------------------------------------------------- schedules


class NewSchedule(Request, frozen=True, kw_only=True):
    """A message that the server sends at the times of a cron expression."""

    queue: str
    cron: Annotated[
        str,
        Meta(description="Minute, hour, day of the month, month, day of the week.", examples=["0 9 * * mon-fri"]),
    ]
    zone: Annotated[str, Meta(description="Time zone of the expression, a name of the tz database.")] = "UTC"
    body: Body
    encoding: Encoding = "utf-8"
    headers: Headers = {}


class NewPausableSchedule(NewSchedule, frozen=True, kw_only=True):
    """A message that the server sends at the times of a cron expression."""

    paused: Annotated[bool, Meta(description="true = no message is sent until a change sets it to false.")] = False


class ScheduleChanges(Request, frozen=True, kw_only=True):
    """Changes of a schedule; an omitted or null value stays."""

    queue: str | None = None
    cron: str | None = None
    zone: str | None = None
    body: Body | None = None
    encoding: Encoding = "utf-8"
    headers: Headers | None = None
    paused: bool | None = None


class ScheduleInfo(Reply, frozen=True, kw_only=True):
    """A schedule at the time of the request."""

    name: str
    id: Annotated[IdText, Meta(description="Changes if the schedule is deleted and created again.")]
    created: Annotated[bool, Meta(description="True if this request created the schedule.")]
    queue: str
    cron: str
    zone: str
    paused: bool
    body: Body
    encoding: Encoding
    headers: dict[str, str]
    next_time: Annotated[datetime | None, Meta(description="Time of the next message; null = none follows.")]
    fired: Annotated[int, Meta(description="Messages sent since the schedule was created.")]
    missed: Annotated[int, Meta(description="Times at which the queue could not take the message.")]
    last_fired_time: datetime | None
    last_message_id: MessageIdText | None
    last_error: str | None
    last_error_time: datetime | None
    create_time: datetime | None
    modify_time: datetime | None


class ScheduleSummary(Reply, frozen=True, kw_only=True):
    """A schedule in a list."""

    name: str
    queue: str
    cron: str
    zone: str
    paused: bool
    next_time: datetime | None
    missed: int
    last_error: str | None


class ScheduleList(Reply, frozen=True, kw_only=True):
    """A page of schedules, by name."""

    schedules: list[ScheduleSummary]
    total: int
    next_offset: Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]


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


class ImportKey(Request, frozen=True, kw_only=True):
    """The secret and the permissions of a key pair that programs use already."""

    secret_key: Annotated[str, Meta(max_length=128, description="16-128 printable ASCII characters without spaces.")]
    roles: Annotated[Roles | None, Meta(description="null = every role but `gateway`.")] = None
    names: Annotated[NamePatterns | None, Meta(description="null = every name.")] = None

    def __repr__(self) -> str:
        return f"ImportKey(secret_key=..., roles={self.roles}, names={self.names})"


class SetKeyRoles(Request, frozen=True, kw_only=True):
    """The permissions of a key, in place of the former permissions."""

    roles: Annotated[Roles | None, Meta(description="null = every role but `gateway`.")]
    names: Annotated[NamePatterns | None, Meta(description="null = every name.")]


class SetKey(Request, frozen=True, kw_only=True):
    """A change of a key."""

    enabled: bool


class Key(Reply, frozen=True, kw_only=True):
    """A key pair, without its secret part."""

    secret_id: str
    account: str
    enabled: bool
    create_time: datetime
    roles: list[str]
    names: list[str]


class OwnKey(Reply, frozen=True, kw_only=True):
    """The key of the request, without its secret part."""

    secret_id: str
    account: str
    roles: list[str]
    names: list[str]
    is_admin: Annotated[bool, Meta(description="true for account `admin`, whose keys can see all accounts.")]
    region: Annotated[str, Meta(description="Region of the broker.")]


class NewKey(Reply, frozen=True, kw_only=True):
    """A new key pair; the secret part is shown only once."""

    secret_key: str
    key: Key

    def __repr__(self) -> str:
        return f"NewKey(key={self.key!r}, secret_key=...)"


class KeyList(Reply, frozen=True, kw_only=True):
    """The keys of an account."""

    keys: list[Key]


class AccountList(Reply, frozen=True, kw_only=True):
    """The names of all accounts."""

    names: list[str]


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


class AuditEntry(Reply, frozen=True, kw_only=True):
    """An administrative operation that succeeded."""

    entry_id: IdText
    time: datetime
    account: Annotated[str, Meta(description="Account of the changed object.")]
    by_account: Annotated[str, Meta(description="Account of the key: `account`, or `admin`.")]
    secret_id: Annotated[str, Meta(description="Id of the key.")]
    peer: Annotated[str, Meta(description="Address of the connection; behind a gateway, of the gateway.")]
    operation: Annotated[str, Meta(description="Name of the operation in the native protocol, as `delete_queue`.")]
    name: Annotated[str, Meta(description="The queue, topic, `topic/subscription`, schedule, account or id of a key.")]
    product: Annotated[str, Meta(description="Software of the connection, as it named itself.")]
    changes: Annotated[str, Meta(description="Words of the request for people; their form can change.")]


class AuditEntries(Reply, frozen=True, kw_only=True):
    """A page of the audit trail, newest first."""

    entries: list[AuditEntry]
    next: Annotated[IdText | None, Meta(description="`before` of the next page; null at the end.")]


class SegmentQuery(Request, frozen=True, kw_only=True):
    """The page of a list of segments."""

    after: Annotated[
        str,
        Meta(pattern="^[0-9]{1,18}$", description="`next` of the page before; `0` = from the beginning."),
    ] = "0"
    limit: Annotated[Count, Meta(description="Most segments of the page, 1-1,000.")] = 100


class SegmentHolder(Reply, frozen=True, kw_only=True):
    """A queue or topic with messages that keep a segment on disk."""

    account: str
    name: str
    is_topic: bool
    live: Annotated[
        int, Meta(description="Messages of the queue that are not consumed, or waiting deliveries of the topic.")
    ]
    rewindable: Annotated[int, Meta(description="Deleted messages of the queue that a rewind can bring back.")]


class Segment(Reply, frozen=True, kw_only=True):
    """A segment of the log, and what keeps it on disk."""

    number: IdText
    state: Annotated[str, Meta(description="`active`, `retired` (closed, not sealed yet) or `sealed`.")]
    first_lsn: Annotated[IdText, Meta(description="Number of its first row.")]
    last_lsn: Annotated[IdText, Meta(description="Number of its newest row.")]
    first_time: datetime
    last_time: datetime
    bytes: Annotated[int, Meta(description="Size on disk.")]
    messages: Annotated[int, Meta(description="Messages that were stored in it, needed or not.")]
    kept_for: Annotated[
        list[str],
        Meta(
            description="Reasons: `rows` (takes new rows), `messages` (not consumed), `rewind` (deleted messages that "
            "can come back), `deliveries` (wait for a subscription), `checkpoint` (a start needs its rows), `history`. "
            "Empty = about to be reclaimed. Reasons may be added."
        ),
    ]
    live: Annotated[int, Meta(description="Messages of queues that are not consumed.")]
    rewindable: Annotated[int, Meta(description="Deleted messages that a rewind can bring back.")]
    undelivered: Annotated[int, Meta(description="Deliveries of published messages that wait for a subscription.")]
    holders: Annotated[
        list[SegmentHolder],
        Meta(description="Queues and topics that need most of its messages, at most 5, in descending order."),
    ]
    holder_count: Annotated[int, Meta(description="Number of all queues and topics that need messages of it.")]


class SegmentList(Reply, frozen=True, kw_only=True):
    """A page of segments, and the room of the log."""

    time: datetime
    segments: list[Segment]
    next: Annotated[IdText | None, Meta(description="`after` of the next page; null at the end.")]
    total: Annotated[int, Meta(description="Number of all segments with rows.")]
    keep_history: Annotated[
        Seconds, Meta(description="Seconds after its last row for which a segment without needed messages is kept.")
    ]
    covered_lsn: Annotated[
        IdText, Meta(description="Row of the oldest kept checkpoint: closed segments with rows above are kept.")
    ]
    log_bytes: Annotated[int, Meta(description="Size of the log on disk; 0 = not known.")]
    history_bytes: Annotated[int, Meta(description="Size of the segments that are kept for history alone.")]
    free_bytes: Annotated[int, Meta(description="Free space of the disk; 0 = not known.")]
    sends_refused_reason: Annotated[
        str | None, Meta(description="Why sends are refused for lack of space; null = sends are accepted.")
    ]


class AllQueuesQuery(Request, frozen=True, kw_only=True):
    """The page of a list of the queues of all accounts."""

    search: Annotated[str, Meta(description="Only queues with this word in their name.")] = ""
    after_account: Annotated[str, Meta(description="`account` of `next` of the page before.")] = ""
    after_queue: Annotated[str, Meta(description="`queue` of `next` of the page before.")] = ""
    limit: Annotated[Count, Meta(description="Most queues of the page, 1-1,000.")] = 100


class AccountQueue(Reply, frozen=True, kw_only=True):
    """A queue and its account."""

    account: str
    queue: str


class AllQueues(Reply, frozen=True, kw_only=True):
    """A page of the queues of all accounts; it may have few queues, even none, before the end."""

    queues: list[AccountQueue]
    next: Annotated[AccountQueue | None, Meta(description="The last queue of this page; null at the end.")]


# ---------------------------------------------------------------- the inside of the broker


class ConnectionQuery(Request, frozen=True, kw_only=True):
    """The page of a list of connections."""

    search: Annotated[
        str,
        Meta(max_length=128, description="Only connections with this text in account, key, address or product."),
    ] = ""
    sort: Annotated[ConnectionSort, Meta(description="Order of the list.")] = "since"
    descending: Annotated[bool, Meta(description="true = largest or latest first.")] = False
    offset: Annotated[Count, Meta(description="Number of connections to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most connections of the page, 1-1,000.")] = 100


class Connection(Reply, frozen=True, kw_only=True):
    """A connection of the broker."""

    id: Annotated[IdText, Meta(description="Number of the connection, as in the broker's log.")]
    account: str
    secret_id: Annotated[str, Meta(description="Id of the key of the connection.")]
    peer: Annotated[str, Meta(description="Address of the client; of requests over HTTP, of the gateway.")]
    product: Annotated[str, Meta(description="Software of the client as the client states; `cmqd-gateway`: HTTP.")]
    tls: bool
    since: datetime
    last_request: Annotated[datetime, Meta(description="Time of the last request; `since` before the first request.")]
    requests: Annotated[int, Meta(description="Requests since the connection was opened.")]
    bytes_in: int
    bytes_out: int
    unanswered: Annotated[int, Meta(description="Requests without a reply so far, waiting receives included.")]
    waiting: Annotated[int, Meta(description="Requests that wait for messages, or for messages of the log.")]
    unread_bytes: Annotated[int, Meta(description="Bytes of replies that the client has not read.")]
    checked_queues: Annotated[int, Meta(description="Queues for which the connection answers transaction checks.")]


class ConnectionList(Reply, frozen=True, kw_only=True):
    """A page of connections."""

    connections: list[Connection]
    time: Annotated[datetime, Meta(description="Broker time of the page.")]
    total: Annotated[int, Meta(description="Number of connections that match, on this page or not.")]
    next_offset: Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]


class WaitingReceiveQuery(Request, frozen=True, kw_only=True):
    """The page of a list of waiting receives."""

    search: Annotated[
        str, Meta(max_length=128, description="Only receives with this text in queue, account or key.")
    ] = ""
    connection: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)] | None, Meta(description="Only receives of this connection.")
    ] = None
    offset: Annotated[Count, Meta(description="Number of receives to skip.")] = 0
    limit: Annotated[Count, Meta(description="Most receives of the page, 1-1,000.")] = 100


class WaitingReceive(Reply, frozen=True, kw_only=True):
    """A receive that waits for messages."""

    account: str
    queue: str
    connection: Annotated[IdText, Meta(description="Number of the connection.")]
    secret_id: str
    peer: str
    product: str
    max_messages: int
    since: datetime
    until: Annotated[datetime, Meta(description="Time at which the receive ends without messages.")]


class WaitingReceiveList(Reply, frozen=True, kw_only=True):
    """A page of waiting receives, in order of arrival."""

    receives: list[WaitingReceive]
    time: Annotated[datetime, Meta(description="Broker time of the page.")]
    total: Annotated[int, Meta(description="Number of waiting receives that match, on this page or not.")]
    next_offset: Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]


class Setting(Reply, frozen=True, kw_only=True):
    """A setting of the broker. No setting holds a secret: keys and certificates are named by their files."""

    name: str
    section: str
    value: Annotated[
        str | int | bool | None, Meta(description="In force. Names end in `_ms` (milliseconds) or `_bytes`.")
    ]
    default: str | int | bool | None
    origin: Annotated[str, Meta(description="`default`, `file`, `environment`, `flag` or `program`.")]
    place: Annotated[str, Meta(description="Path of the file, name of the variable or the flag.")]
    meaning: str
    allowed: Annotated[str, Meta(description="The allowed values, in words.")]


class SettingList(Reply, frozen=True, kw_only=True):
    """Every setting, in the order of the documentation."""

    settings: list[Setting]
