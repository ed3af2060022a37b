"""Messages of the wire as Structs: requests, replies, pushes, and their shared encoder and decoders.

A message is one msgpack array ``[opcode, request_id, ...]``. Fields are only ever appended, with a default. Times and
durations are milliseconds; ``None`` means "the setting of the queue". SPEC.md has permissions, ranges and errors.

Opcodes leave room by theme: 1-15 connection, 16-31 messages, 32-47 consumer streams, 48-79 queues, 80-111 topics,
112-127 transactions, 128-143 accounts, 144-159 the server, 160-175 schedules, 176-183 pins, 192-254 replies and pushes,
255 error. A number never changes its meaning. A new operation is a Struct here; the decoders and the names of
operations follow from the Structs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, TypeAlias, Union

import msgspec
from msgspec import Meta, Struct

from cmqd_protocol.fields import (
    U32,
    Attributes,
    Bodies,
    DedupId,
    DedupIds,
    Delays,
    Handles,
    HeadersList,
    HeadersOfOne,
    HeaderText,
    KeyTexts,
    MessageIds,
    Nonce,
    Proof,
    Reasons,
    RequestId,
    RoutingKey,
    RoutingKeys,
    ShortText,
    SubscriptionAttributes,
    Tags,
    TagsList,
    Unsigned,
)
from cmqd_protocol.limits import MAX_BATCH, MAX_CLIENT_FEATURES, MAX_SECRET_ID_BYTES
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from cmqd_types import deliveries, histories, messages, queues, schedules, topics
from cmqd_types.actors import ClientName, StatedClient
from cmqd_types.audit import AuditEntry
from cmqd_types.inspection import ConnectionInfo, ConsumerInfo, SettingInfo, WaitingReceiveInfo
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE
from cmqd_types.messages import Headers, ReceivedMessage
from cmqd_types.metrics import MetricSums, QueueMetrics, ServerMetrics, TopicMetrics, TopSubscription
from cmqd_types.queues import QueueSummary
from cmqd_types.schedules import ScheduleSummary
from cmqd_types.segments import SegmentInfo
from cmqd_types.topics import QueueSubscription, SubscriptionMatch, SubscriptionSummary
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals


class WireMessage(Struct, frozen=True, array_like=True, gc=False):
    """Content of a frame."""


class Request(WireMessage, frozen=True):
    """Request of a client. The server sends exactly one reply with the same ``request_id``, in any order."""

    request_id: RequestId


class Reply(WireMessage, frozen=True):
    """Reply to the request with the same number."""

    request_id: int


# The connection


class ServerHello(WireMessage, frozen=True, tag=1):
    """First frame of the server."""

    product: ShortText
    region: ShortText
    nonce: Nonce
    max_frame_bytes: U32
    heartbeat_ms: U32


class ClientHello(WireMessage, frozen=True, tag=2):
    """First frame of the client: secret id, proof, proposed limits, and words of what the client understands."""

    secret_id: Annotated[str, Meta(max_length=MAX_SECRET_ID_BYTES)]
    nonce: Nonce
    proof: Proof
    max_frame_bytes: U32
    heartbeat_ms: U32
    region: ShortText | None = None
    product: ShortText = ""
    features: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_CLIENT_FEATURES)] = ()
    """Answers that the client understands; see ``features.ClientFeature``. The proof does not cover the words."""
    name: ClientName = ""
    """Name of the client, such as its program and host; ``product`` is its software. The proof does not cover it."""


class Welcome(WireMessage, frozen=True, tag=3):
    """Proof of the server and negotiated limits. Requests may follow."""

    proof: Proof
    account: ShortText
    max_frame_bytes: U32
    heartbeat_ms: U32
    connection_id: Unsigned
    facts: dict[str, Any] = {}
    """Further facts of the server, by name; see ``features``. The proof does not cover the facts."""


class Cancel(WireMessage, frozen=True, tag=4):
    """Cancel a request. A cancel has no reply. The reply to the cancelled request is the error ``cancelled``, or the
    usual reply if the server had already sent the reply.
    """

    request_id: RequestId


class Done(Reply, frozen=True, tag=192):
    """Reply without fields: the request succeeded."""


class Error(Reply, frozen=True, tag=255):
    """Error of a request. ``request_id`` 0 = error of the connection, which the server then closes."""

    code: int
    name: str
    text: str
    retryable: bool = False
    retry_after_ms: int | None = None
    details: dict[str, Any] | None = None
    """Details by name for programs: ``field``, ``value``, ``limit``, ``difference`` ..."""


def error(
    request_id: int,
    code: ErrorCode,
    text: str,
    *,
    retry_after_ms: int | None = None,
    details: Mapping[str, Any] | None = None,
) -> Error:
    """Return an Error with the name and ``retryable`` of its code. ``request_id`` 0 = error of the connection."""
    return Error(
        request_id=request_id,
        code=int(code),
        name=code.wire_name,
        text=text,
        retryable=code in RETRYABLE,
        retry_after_ms=retry_after_ms,
        details=None if details is None else dict(details),
    )


# Messages of a queue


class SendMessages(Request, frozen=True, tag=16):
    """Store a batch, whole or not at all. Answered ``MessagesSent``."""

    queue: str
    bodies: Bodies
    headers: HeadersList | None = None
    delay_ms: Unsigned | Delays | None = None
    session: Unsigned = 0
    sequence: Unsigned = 0
    """Number of this send in the producer session, from 1; 0 = not numbered."""
    dedup_ids: DedupIds | None = None
    """A dedup id or null per body. A message with an id that the queue remembers is not stored again."""
    after: DedupId | None = None
    """Stored only if the queue remembers this dedup id; see ``features.Feature.ORDERED_SENDS``."""
    at_ms: Unsigned | None = None
    """Time by the server's clock at which the messages become active, in place of ``delay_ms``. Needs feature
    ``send_at``."""
    all_or_none: bool = False
    """Refuse a batch with some remembered dedup ids and some new messages. Needs feature ``all_or_none``."""
    on_behalf_of: StatedClient | None = None
    """Client that the request is made for, in place of the name and host of the connection. Needs feature
    ``on_behalf_of``."""


class ReceiveMessages(Request, frozen=True, tag=17):
    """Receive up to ``max_messages``, waiting while the queue has no active message. Answered ``MessagesReceived``."""

    queue: str
    max_messages: Unsigned = 1
    wait_ms: Unsigned | None = None
    visibility_timeout_ms: Unsigned | None = None
    acknowledge: Handles | None = None
    """Receipt handles of messages to delete before the receive. Needs feature ``acknowledge``."""
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class DeleteMessages(Request, frozen=True, tag=18):
    """Delete received messages. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class ChangeVisibility(Request, frozen=True, tag=19):
    """Hide received messages until ``visibility_timeout_ms`` from now. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    visibility_timeout_ms: Unsigned
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class ReleaseMessages(Request, frozen=True, tag=20):
    """Make received messages active at once. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    count_receive: bool = True
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class PeekMessages(Request, frozen=True, tag=21):
    """Read messages of ``states`` without receiving, in position order from ``start``. Answered ``MessagesPeeked``."""

    queue: str
    max_messages: Unsigned = 16
    start: Unsigned = 0
    """Position in the queue: 0, or ``next_start`` of the previous reply."""
    states: Annotated[list[ShortText], Meta(max_length=8)] | None = None
    """Some of ``active``, ``in_flight``, ``delayed``, ``half``, ``rewindable``; null = all but ``rewindable``."""


class DeadLetterMessages(Request, frozen=True, tag=22):
    """Move received messages to the queue's dead-letter queue. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    reasons: Reasons
    """A reason for all messages, or a reason per handle; it stands in the origin of the dead letter."""
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class GetMessageHistory(Request, frozen=True, tag=23):
    """Read the life of a message from the log. Answered ``MessageHistory``."""

    message_id: Unsigned | None = None
    """Any id that the message had, in a queue or topic of the account. None = with ``receipt_handle``."""
    receipt_handle: Unsigned | None = None
    """Of a receive of the message, in place of an id; valid or not."""


class MessageHistory(histories.MessageHistory, WireMessage, frozen=True, tag=219):
    """The life of a message, as far as readable rows of the log tell it."""

    request_id: int


class FindMessages(Request, frozen=True, tag=24):
    """Search the log for messages by dedup id or header, some rows at a time. Answered ``MessagesFound``."""

    source: str | None = None
    """Queue or topic to which the messages were sent; null = any of the account."""
    dedup_id: DedupId | None = None
    """The id that the producer gave."""
    header: tuple[HeaderText, HeaderText] | None = None
    """Name and value of a header, in place of a dedup id."""
    from_ms: Unsigned | None = None
    """Only messages sent at or after this time; null = of the last 24 hours."""
    to_ms: Unsigned | None = None
    """Only messages sent before this time; null = to the end."""
    max_messages: Unsigned = 20
    start: tuple[Unsigned, Unsigned] | None = None
    """``next`` of the previous reply; null = the begin of the range of time."""


class MessagesFound(Reply, frozen=True, tag=220):
    """Messages that a search found, oldest first."""

    messages: list[histories.FoundMessage]
    missing: list[tuple[int, int]]
    """Ranges (first, last) of rows that were reclaimed, lost or damaged, with times of the range."""
    from_ms: int
    """Begin of the range of time; a request that goes on gives it again."""
    next: tuple[int, int] | None = None
    """``start`` of the next request; null = all rows of the range of time were searched."""


class MessagesSent(Reply, frozen=True, tag=193):
    """Message ids of a batch, in its order. A repeated numbered send gets the ids of the first send."""

    message_ids: list[int]


class HandleFailure(Struct, frozen=True, array_like=True, gc=False):
    """Error of a receipt handle in a batch."""

    receipt_handle: int
    code: int
    text: str
    gone: int | None = None
    """With code 402: how the lease ended, 1 deleted, 2 moved to the dead-letter queue, 0 neither is known; None = the
    server is older."""


class MessagesReceived(Reply, frozen=True, tag=194):
    """Received messages; empty if no message arrived during the wait."""

    messages: list[ReceivedMessage]
    failures: list[HandleFailure] | None = None
    """Refused handles of ``acknowledge``; the other handles are done. None = the request had no ``acknowledge``."""
    error: Error | None = None
    """The error that ended the receive after its deletes were done; None = no error did."""


class HandlesDone(Reply, frozen=True, tag=195):
    """Refused receipt handles of a delete, visibility change, release or move to the dead-letter queue. The other
    handles are done."""

    failures: list[HandleFailure]
    next_visible_ms: int = 0


class MessagesPeeked(messages.MessagesPeeked, WireMessage, frozen=True, tag=196):
    """A page of a peek."""

    request_id: int


# Queues


class CreateQueue(Request, frozen=True, tag=48):
    """Create a queue; an existing name is an error. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class EnsureQueue(Request, frozen=True, tag=49):
    """Create a queue, or confirm that the queue has the attributes named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class ListQueues(Request, frozen=True, tag=50):
    """List queues with ``search`` in the name, by name. Answered ``QueueList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetQueueAttributes(Request, frozen=True, tag=51):
    """Read attributes, counts and facts of a queue. Answered ``QueueInfo``."""

    queue: str


class SetQueueAttributes(Request, frozen=True, tag=52):
    """Change the attributes named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class DeleteQueue(Request, frozen=True, tag=53):
    """Delete a queue with its messages. Answered ``Done``."""

    queue: str


class ClearQueue(Request, frozen=True, tag=54):
    """Drop all messages sent so far, in any state. Answered ``Done``."""

    queue: str


class RewindQueue(Request, frozen=True, tag=55):
    """Make deleted messages that were sent at or after ``time_ms`` active again. Answered ``Rewound``."""

    queue: str
    time_ms: Unsigned
    strict: bool = False
    """Refuse a time before the rewind window, instead of a rewind to the start of the window."""
    ago_ms: Unsigned | None = None
    """Time before now by the server's clock, in place of ``time_ms``. Needs feature ``rewind_ago``."""


class ListDeadLetterSources(Request, frozen=True, tag=56):
    """List the queues that use this queue as dead-letter queue. Answered ``QueueList``."""

    queue: str


class StartRedrive(Request, frozen=True, tag=57):
    """Move the messages of a queue to their origin queues, or to ``target``. Answered ``RedriveStatus``."""

    queue: str
    target: str | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """None = no limit."""


class CancelRedrive(Request, frozen=True, tag=58):
    """Stop a redrive. Messages already moved stay moved. Answered ``RedriveStatus``."""

    queue: str


class GetRedrive(Request, frozen=True, tag=59):
    """Read the progress of the current or last redrive. Answered ``RedriveStatus``."""

    queue: str


class PreviewRewind(Request, frozen=True, tag=60):
    """Count the messages that a rewind to a time would bring back, and read the times allowed. Answered
    ``RewindPreview``.
    """

    queue: str
    time_ms: Unsigned | None = None
    """None = the start of the rewind window."""
    ago_ms: Unsigned | None = None
    """Time before now by the server's clock, in place of ``time_ms``."""


class ListQueueSummaries(Request, frozen=True, tag=61):
    """List queues with their messages by state, in any order. Answered ``QueueSummaries``."""

    search: str = ""
    sort: str = "name"
    """One of ``cmqd_types.queues.QUEUE_SORTS``; equal queues come in order of name."""
    descending: bool = False
    offset: Unsigned = 0
    limit: Unsigned = 100
    selection: str = "all"
    """One of ``cmqd_types.queues.QUEUE_SELECTIONS``."""


class ListConsumers(Request, frozen=True, tag=62):
    """List the consumers of queues of the account (``admin``: of all accounts), in order of queue and name. Answered
    ``ConsumerList``.
    """

    only_queue: ShortText = ""
    """Only of the queue with this name; empty = of all queues. The list leaves out queues that the key may not see, and
    refuses no name: therefore the field is not ``queue``."""
    search: ShortText = ""
    """Only consumers with this text in queue, account, key id, name or host, in upper or lower case."""
    offset: int = 0
    limit: int = 100


class QueueInfo(queues.QueueInfo, WireMessage, frozen=True, tag=197):
    """Attributes, counts and facts of a queue; ``created`` is set by create and ensure."""

    request_id: int


class QueueList(Reply, frozen=True, tag=198):
    """A page of queues as (queue id, name), and the ``total`` number of matching queues."""

    total: int
    queues: list[tuple[int, str]]


class Rewound(queues.Rewound, WireMessage, frozen=True, tag=202):
    """The result of a rewind."""

    request_id: int


class RedriveStatus(queues.RedriveStatus, WireMessage, frozen=True, tag=203):
    """The progress of a redrive, running or ended."""

    request_id: int


class RewindPreview(queues.RewindPreview, WireMessage, frozen=True, tag=231):
    """The result that a rewind would have now."""

    request_id: int


class ConsumerList(Reply, frozen=True, tag=243):
    """A page of consumers, and the ``total`` number of matching consumers."""

    broker_time_ms: int
    total: int
    consumers: list[ConsumerInfo]


class QueueSummaries(Reply, frozen=True, tag=232):
    """A page of queues, and the ``total`` number of matching queues."""

    broker_time_ms: int
    total: int
    queues: list[QueueSummary]


# Topics


class CreateTopic(Request, frozen=True, tag=80):
    """Create a topic. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class EnsureTopic(Request, frozen=True, tag=81):
    """Create a topic, or confirm that the topic has the attributes named. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class ListTopics(Request, frozen=True, tag=82):
    """List a page of the account's topics, by name. Answered ``TopicList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetTopicAttributes(Request, frozen=True, tag=83):
    """Read attributes, counts and facts of a topic. Answered ``TopicInfo``."""

    topic: str


class SetTopicAttributes(Request, frozen=True, tag=84):
    """Change the attributes named. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class DeleteTopic(Request, frozen=True, tag=85):
    """Delete a topic without subscriptions. Answered ``Done``."""

    topic: str


class PublishMessages(Request, frozen=True, tag=86):
    """Publish a batch: the messages and all their copies, whole or not at all. Answered ``MessagesPublished``."""

    topic: str
    bodies: Bodies
    headers: HeadersList | None = None
    tags: TagsList | None = None
    """On a tag topic: a list per body, or a single list for all bodies; None = no tags."""
    routing_keys: RoutingKeys | None = None
    """On a routing topic: a key per body, or a single key for all bodies."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None
    after: DedupId | None = None
    """Stored only if the topic remembers this dedup id; see ``features.Feature.ORDERED_PUBLISHES``."""
    all_or_none: bool = False
    """As in ``SendMessages``."""
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class TopicInfo(topics.TopicInfo, WireMessage, frozen=True, tag=207):
    """Attributes, counts and facts of a topic; ``created`` is set by create and ensure."""

    request_id: int


class TopicList(Reply, frozen=True, tag=208):
    """A page of topics as (topic id, name), and the ``total`` number of matching topics."""

    total: int
    topics: list[tuple[int, str]]


class MessagesPublished(Reply, frozen=True, tag=206):
    """Message ids of a batch, in its order, and the number of subscriptions that every message matched."""

    message_ids: list[int]
    matched: list[int | None]
    """0 = the message was discarded; None = already published with this sequence number or dedup id."""


# Subscriptions


class Subscribe(Request, frozen=True, tag=88):
    """Subscribe a queue or a URL to the messages published to a topic from now on. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class EnsureSubscription(Request, frozen=True, tag=89):
    """Subscribe, or confirm that the subscription has these attributes. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class ListSubscriptions(Request, frozen=True, tag=90):
    """List a page of a topic's subscriptions, by name. Answered ``SubscriptionList``."""

    topic: str
    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetSubscription(Request, frozen=True, tag=91):
    """Read attributes, counts and facts of a subscription. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str


class SetSubscriptionAttributes(Request, frozen=True, tag=92):
    """Change the attributes named (``paused`` among them). Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class Unsubscribe(Request, frozen=True, tag=93):
    """Delete a subscription and drop its waiting deliveries. Answered ``Done``."""

    topic: str
    subscription: str


class RetryDeliveries(Request, frozen=True, tag=94):
    """Retry all failed deliveries at once, also after the last retry. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class DropDeliveries(Request, frozen=True, tag=95):
    """Drop all deliveries of a subscription that wait or are in retry. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class PeekDeliveries(Request, frozen=True, tag=97):
    """Read messages that wait for a subscription, in position order from ``start``. Answered ``DeliveriesPeeked``."""

    topic: str
    subscription: str
    max_messages: Unsigned = 16
    start: Unsigned = 0
    """Position in the topic: 0, or ``next_start`` of the previous reply."""
    bodies: bool = True
    """False: the messages without bodies and headers."""


class RetryDelivery(Request, frozen=True, tag=98):
    """Retry a message of a subscription at once. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str
    message_id: Unsigned


class DropDelivery(Request, frozen=True, tag=99):
    """Drop a message that waits for a subscription. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str
    message_id: Unsigned


class GetMessageDeliveries(Request, frozen=True, tag=100):
    """Read the deliveries of a published message to all subscriptions. Answered ``MessageDeliveries``."""

    topic: str
    message_id: Unsigned


class MatchSubscriptions(Request, frozen=True, tag=101):
    """Find the subscriptions that would get a message with these labels; nothing is published. Answered
    ``SubscriptionsMatched``."""

    topic: str
    tags: Tags | None = None
    """On a tag topic; None = no tags."""
    routing_key: RoutingKey | None = None
    """On a routing topic."""


class ListQueueSubscriptions(Request, frozen=True, tag=102):
    """List a page of the subscriptions of all topics that deliver to a queue, by topic and name. Answered
    ``QueueSubscriptions``."""

    queue: str
    offset: Unsigned = 0
    limit: Unsigned = 100


class RotateSecret(Request, frozen=True, tag=96):
    """Give a subscription to a URL a new secret for signatures. Answered ``SubscriptionSecret``."""

    topic: str
    subscription: str
    overlap_ms: Unsigned | None = None
    """Time during which pushes are also signed with the old secret; None = a day."""


class SubscriptionInfo(topics.SubscriptionInfo, WireMessage, frozen=True, tag=209):
    """Attributes, counts and facts of a subscription; ``secret`` only if the request created the subscription."""

    request_id: int


class SubscriptionList(Reply, frozen=True, tag=210):
    """A page of subscriptions, and the ``total`` number of matching subscriptions."""

    total: int
    subscriptions: list[SubscriptionSummary]


class QueueSubscriptions(Reply, frozen=True, tag=240):
    """A page of the subscriptions that deliver to a queue, and their ``total`` number."""

    total: int
    subscriptions: list[QueueSubscription]


class DeliveriesDone(Reply, frozen=True, tag=211):
    """Number of messages that are retried or were dropped."""

    messages: int


class DeliveriesPeeked(deliveries.DeliveriesPeeked, WireMessage, frozen=True, tag=222):
    """A page of the messages that wait for a subscription."""

    request_id: int


class MessageDeliveries(deliveries.MessageDeliveries, WireMessage, frozen=True, tag=223):
    """The deliveries of a message to the subscriptions that it was published for."""

    request_id: int


class SubscriptionsMatched(Reply, frozen=True, tag=233):
    """Every subscription of the topic, by name, and the number of those that ``matched``."""

    filter_type: str
    matched: int
    subscriptions: list[SubscriptionMatch]


class SubscriptionSecret(Reply, frozen=True, tag=212):
    """A new secret, only in this reply."""

    secret: str
    overlap_until_ms: int
    """Time until which pushes are also signed with the old secret."""


# Schedules


class CreateSchedule(Request, frozen=True, tag=160):
    """Send a message at the times of a cron expression from now on. Answered ``ScheduleInfo``."""

    schedule: str
    attributes: Attributes
    """At least ``queue`` and ``cron``."""
    body: bytes
    headers: HeadersOfOne | None = None


class EnsureSchedule(Request, frozen=True, tag=161):
    """Create a schedule, or confirm that the schedule has this message and the attributes named. Answered
    ``ScheduleInfo``."""

    schedule: str
    attributes: Attributes
    body: bytes
    headers: HeadersOfOne | None = None


class ListSchedules(Request, frozen=True, tag=162):
    """List a page of the account's schedules, by name. Answered ``ScheduleList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetSchedule(Request, frozen=True, tag=163):
    """Read attributes, message, counts and facts of a schedule. Answered ``ScheduleInfo``."""

    schedule: str


class SetSchedule(Request, frozen=True, tag=164):
    """Change the attributes named (``paused`` among them), the body or the headers. Answered ``ScheduleInfo``."""

    schedule: str
    attributes: Attributes
    body: bytes | None = None
    """None = the body stays."""
    headers: HeadersOfOne | None = None
    """None = the headers stay; empty = no headers."""


class DeleteSchedule(Request, frozen=True, tag=165):
    """Delete a schedule; messages already sent stay. Answered ``Done``."""

    schedule: str


class ScheduleInfo(schedules.ScheduleInfo, WireMessage, frozen=True, tag=216):
    """Attributes, message, counts and facts of a schedule; ``created`` is set by create and ensure."""

    request_id: int


class ScheduleList(Reply, frozen=True, tag=217):
    """A page of schedules, and the ``total`` number of matching schedules."""

    total: int
    schedules: list[ScheduleSummary]


# Half messages


Decision: TypeAlias = Annotated[int, Meta(ge=1, le=3)]
"""Decision on a half message: 1 commit, 2 roll back, 3 unknown (yet)."""
COMMIT: Final = 1
ROLL_BACK: Final = 2
UNKNOWN: Final = 3


class SendHalfMessages(Request, frozen=True, tag=112):
    """Store a batch of half messages, active only after a commit, whole or not at all. Answered ``MessagesSent``."""

    queue: str
    bodies: Bodies
    headers: HeadersList | None = None
    first_check_ms: Unsigned | None = None
    """Time from now to the first check; None = the setting of the queue."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None
    all_or_none: bool = False
    """As in ``SendMessages``."""
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class EndTransactions(Request, frozen=True, tag=113):
    """Commit or roll back half messages. Answered ``TransactionsEnded``."""

    queue: str
    message_ids: MessageIds
    decisions: Annotated[list[Decision], Meta(min_length=1, max_length=MAX_BATCH)]
    """A decision per message, or a single decision for all messages."""
    on_behalf_of: StatedClient | None = None
    """See ``SendMessages``."""


class ListHalfMessages(Request, frozen=True, tag=114):
    """List undecided half messages in the order of sending. Answered ``HalfMessages``."""

    queue: str
    start: Unsigned = 0
    """Position in the queue: 0, or ``next_start`` of the previous reply."""
    limit: Unsigned = 100


class RegisterChecker(Request, frozen=True, tag=115):
    """Register the connection as checker of a queue, until its end or ``UnregisterChecker``. Answered ``Done``."""

    queue: str


class UnregisterChecker(Request, frozen=True, tag=116):
    """Send no further checks of the queue to this connection. Answered ``Done``."""

    queue: str


class TransactionFailure(Struct, frozen=True, array_like=True, gc=False):
    """Error of the decision on a half message."""

    message_id: int
    code: int
    text: str


class TransactionsEnded(Reply, frozen=True, tag=204):
    """Refused decisions. The other half messages are decided as requested."""

    failures: list[TransactionFailure]


class HalfMessages(messages.HalfMessages, WireMessage, frozen=True, tag=205):
    """A page of undecided half messages."""

    request_id: int


class TransactionCheck(WireMessage, frozen=True, tag=224):
    """Push that asks a checker to decide a half message. The checker may answer with ``EndTransactions``."""

    queue: str
    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    age_ms: int
    attempt: int
    """Number of the check, from 1."""


# Accounts and keys


class CreateAccount(Request, frozen=True, tag=128):
    """Create an account and its first key. Only for account ``admin``. Answered ``KeyList``."""

    account: str


class ListAccounts(Request, frozen=True, tag=129):
    """List all accounts. Only for account ``admin``. Answered ``AccountList``."""


class CreateKey(Request, frozen=True, tag=130):
    """Create an access key. Answered ``KeyList``, the only reply with the secret key."""

    account: str | None = None
    """None = the account of the caller. Other accounts only for ``admin``. Also valid for the requests below."""


class ListKeys(Request, frozen=True, tag=131):
    """List the keys of an account, without secret keys. Answered ``KeyList``."""

    account: str | None = None


class SetKeyEnabled(Request, frozen=True, tag=132):
    """Allow or refuse new connections with a key. Answered ``Done``."""

    secret_id: str
    enabled: bool
    account: str | None = None


class DeleteKey(Request, frozen=True, tag=133):
    """Delete a key. Answered ``Done``."""

    secret_id: str
    account: str | None = None


class DeleteAccount(Request, frozen=True, tag=134):
    """Delete an account without queues and topics, with its keys. Answered ``Done``."""

    account: str


class ListAllQueues(Request, frozen=True, tag=135):
    """List queues of all accounts with ``search`` in the name, by account and name. Answered ``AllQueues``."""

    search: str = ""
    after_account: str = ""
    """Start behind this account and queue: ``next`` of the previous reply."""
    after_queue: str = ""
    limit: int = 100


class CreateRoleKey(Request, frozen=True, tag=136):
    """Create an access key with roles and name patterns. Answered ``KeyList``, with the secret key.

    An operation of its own: an older server would ignore appended fields of ``CreateKey`` and create a key that may do
    everything.
    """

    roles: KeyTexts
    names: KeyTexts
    account: str | None = None


class SetKeyRoles(Request, frozen=True, tag=137):
    """Replace the roles and name patterns of a key, also for its open connections. Answered ``Done``."""

    secret_id: str
    roles: KeyTexts
    names: KeyTexts
    account: str | None = None


class ImportKey(Request, frozen=True, tag=138):
    """Add an existing key pair to an account. Answered ``KeyList``, without the secret key."""

    secret_id: str
    secret_key: str
    roles: KeyTexts
    names: KeyTexts
    account: str | None = None

    def __repr__(self) -> str:
        """Without the secret, which must not reach a log by accident."""
        return f"ImportKey(request_id={self.request_id}, secret_id={self.secret_id!r}, secret_key=...)"


class GetKeySecret(Request, frozen=True, tag=139):
    """Read the secret of an enabled key, to check signatures. Only for keys with role ``gateway``, and only over TLS,
    loopback or a Unix socket. Answered ``KeySecret``."""

    secret_id: str


class WatchKeys(Request, frozen=True, tag=140):
    """Have the changes of all keys pushed to this connection as ``KeyChanged``, until its end. Only for keys with role
    ``gateway``. Answered ``Done``."""


class GetOwnKey(Request, frozen=True, tag=141):
    """Read the key of this connection, with its roles and name patterns. Answered ``OwnKey``."""


class OwnKey(Reply, frozen=True, tag=234):
    """The key of the connection, without its secret."""

    secret_id: str
    account: str
    roles: tuple[str, ...]
    names: tuple[str, ...]
    is_admin: bool
    """True for account ``admin``, whose keys can see the objects of all accounts."""
    region: str
    connection_id: int


class KeySecret(Reply, frozen=True, tag=218):
    """The secret of a key."""

    secret_key: str
    account: str
    enabled: bool = True
    """False: no client may use the key. The secret proves that a request comes from the holder of the key."""

    def __repr__(self) -> str:
        """Without the secret, which must not reach a log by accident."""
        return (
            f"KeySecret(request_id={self.request_id}, secret_key=..., account={self.account!r}, enabled={self.enabled})"
        )


class KeyChanged(WireMessage, frozen=True, tag=226):
    """Push about a change of a key, to connections that watch keys."""

    secret_id: str
    change: str
    """``created``, ``enabled``, ``disabled``, ``roles_changed`` or ``deleted``."""


class AccountList(Reply, frozen=True, tag=199):
    """The names of all accounts."""

    accounts: list[str]


class KeyInfo(Struct, frozen=True, array_like=True, gc=False):
    """One access key."""

    secret_id: str
    account: str
    enabled: bool
    created_ms: int
    secret_key: str | None = None
    """Only in the reply to ``CreateKey``, ``CreateRoleKey`` or ``CreateAccount``."""
    roles: tuple[str, ...] = EVERY_ROLE
    """An older server names no roles: its keys have every role."""
    names: tuple[str, ...] = EVERY_NAME

    def __repr__(self) -> str:
        """Without the secret, which must not reach a log by accident."""
        return f"KeyInfo({self.secret_id!r}, account={self.account!r}, enabled={self.enabled}, roles={self.roles})"


class KeyList(Reply, frozen=True, tag=200):
    """Access keys of an account."""

    keys: list[KeyInfo]


class AllQueues(Reply, frozen=True, tag=215):
    """A page of queues as (account, queue id, name)."""

    queues: list[tuple[str, int, str]]
    next: tuple[str, str] | None = None
    """Account and queue behind which the next page starts; None = the end."""


# The server


class GetServerStatus(Request, frozen=True, tag=144):
    """Read the status of the server. Answered ``ServerStatus``."""


class SealSegments(Request, frozen=True, tag=145):
    """Seal the segment of the log that is being written, for readers of the log. Answered ``SegmentsSealed``."""


class Locate(Request, frozen=True, tag=146):
    """Find the server of a queue or topic. Answered ``Located``."""

    name: str
    is_topic: bool = False


class GetMetrics(Request, frozen=True, tag=147):
    """Read the totals of the account (``admin``: of all accounts, and the figures of the server). Answered
    ``Metrics``.
    """


class GetQueueMetrics(Request, frozen=True, tag=148):
    """Read a page of the metrics of queues, by account and name. Answered ``QueueMetricsPage``."""

    all_accounts: bool = False
    after_account: str = ""
    """Start behind this account and queue: ``next`` of the previous reply."""
    after_queue: str = ""
    limit: int = 1000


class GetTopicMetrics(Request, frozen=True, tag=149):
    """Read a page of the metrics of topics and their subscriptions, by account and name. Answered
    ``TopicMetricsPage``.
    """

    all_accounts: bool = False
    after_account: str = ""
    after_topic: str = ""
    limit: int = 1000


class GetTopMetrics(Request, frozen=True, tag=150):
    """Read sums over all queues, topics and subscriptions of the account (``admin``: of all accounts), and the metrics
    of those with the most messages. Answered ``TopMetrics``.
    """

    limit: int = 100
    """Most queues, most topics and most subscriptions of the reply, 0-1000."""


class ListSegments(Request, frozen=True, tag=155):
    """List segments of the log, and what keeps each on disk. Answered ``SegmentList``."""

    after: int = 0
    """The list begins behind this number: ``next`` of the previous reply."""
    limit: int = 100
    """Most segments of the reply, 1-1000."""


class PinLog(Request, frozen=True, tag=176):
    """Pin the log for a copy: seal what is not sealed, and keep every file of the copy. Answered ``LogPinned``."""


class ListPinnedSegments(Request, frozen=True, tag=177):
    """List segments of a pin, and extend the life of the pin. Answered ``PinnedSegments``."""

    pin_id: Unsigned
    after: Unsigned = 0
    """The list begins behind this number: ``next`` of the previous reply."""
    limit: int = 10_000
    """Most segments of the reply, 1-10,000."""


class ReleasePin(Request, frozen=True, tag=178):
    """End a pin; a pin that is gone is no error. Answered ``Done``."""

    pin_id: Unsigned


class SetStandingPin(Request, frozen=True, tag=179):
    """Keep the rows above a row that was copied until the next call with the same name; the first call makes the
    standing pin. Answered ``StandingPinSet``.
    """

    name: ShortText
    log_id: ShortText
    """Identity of the log that was copied: ``LogPinned.log_id``, as the two following fields."""
    lsn: Unsigned
    """The newest row that the copy has."""
    start: ShortText
    """Number of the start that wrote the row."""
    pinned_ms: Unsigned
    """``LogPinned.time_ms``: the broker time of the copy."""
    every_ms: Unsigned
    """Interval of the copies, 1 s to 24 h: for the alert about a copy that is too old."""
    after_lsn: Unsigned | None = None
    """The newest row of the copy before; None = this copy is the first."""


class DeleteStandingPin(Request, frozen=True, tag=180):
    """Delete a standing pin. Answered ``Done``."""

    name: ShortText


class ListAuditEntries(Request, frozen=True, tag=154):
    """Read entries of the audit trail, newest first: of the account, or for ``admin`` of every account. Answered
    ``AuditEntries``.
    """

    account: str | None = None
    """None = for ``admin`` every account, else the account of the caller. Other accounts only for ``admin``."""
    before: Unsigned = 0
    """Only entries with a lower id: ``next_before`` of the previous reply; 0 = from the newest on."""
    after: Unsigned = 0
    """Only entries with a higher id."""
    since_ms: Unsigned = 0
    until_ms: Unsigned | None = None
    search: ShortText = ""
    """Only entries with this text in the account, key, peer, operation, name or changes, in any case."""
    operation: ShortText = ""
    """Only entries of this operation."""
    limit: int = 100


class ListConnections(Request, frozen=True, tag=151):
    """List the connections of the account (``admin``: of all accounts). Answered ``ConnectionList``."""

    search: ShortText = ""
    """Only connections with this text in account, key id, address or product, in upper or lower case."""
    sort: str = "since"
    """A word of ``CONNECTION_SORTS``."""
    descending: bool = False
    offset: int = 0
    limit: int = 100


class ListWaitingReceives(Request, frozen=True, tag=152):
    """List the waiting receives of the account (``admin``: of all accounts), in order of arrival. Answered
    ``WaitingReceiveList``.
    """

    search: ShortText = ""
    """Only receives with this text in queue, account or key id, in upper or lower case."""
    connection_id: int = 0
    """Only receives of this connection; 0 = of all connections."""
    offset: int = 0
    limit: int = 100


class GetSettings(Request, frozen=True, tag=153):
    """Read the settings in force, by ``admin``. Answered ``SettingList``."""


class ServerStatus(Reply, frozen=True, tag=201):
    """Status values by name: version, durability, uptime, counts, storage figures."""

    status: dict[str, Any]


class Located(Reply, frozen=True, tag=214):
    """The server of a queue or topic."""

    addresses: list[str]
    """``host:port``, in the order in which a client tries them."""
    shard: int
    epoch: int
    """Epoch of the server's leadership; 0 = the server is alone and has no epochs."""


class SegmentsSealed(Reply, frozen=True, tag=213):
    """The segment was sealed: all writes acknowledged before this reply are in sealed segments."""

    last_lsn: int
    """Last row number in sealed segments. Earlier rows are in sealed segments or were reclaimed."""


class SegmentList(Reply, frozen=True, tag=239):
    """A page of segments by number, and the room of the log."""

    broker_time_ms: int
    segments: list[SegmentInfo]
    next: int | None
    """Number behind which the next page starts; None = the end."""
    total: int
    """Number of all segments with rows."""
    keep_history_ms: int
    """Time after its last row for which a segment without needed messages is kept."""
    covered_lsn: int
    """LSN of the oldest kept checkpoint: closed segments with rows above are kept."""
    log_bytes: int
    """Size of the log on disk; 0 = not known (an ephemeral broker), also of ``free_bytes``."""
    history_bytes: int
    """Size of the segments that are kept for history or backups alone."""
    free_bytes: int
    sends_refused_reason: str | None = None
    """Why sends are refused for lack of space; None = sends are accepted."""


class LogPinned(Reply, frozen=True, tag=248):
    """A pin. A copy of its segments and its checkpoint has every row up to ``lsn`` that a restore needs."""

    pin_id: int
    log_id: str
    lsn: int
    """Rows up to this one are durable and in sealed segments, or were reclaimed."""
    start: str
    """Number of the start that wrote the row; empty if the manifest does not have it any more."""
    time_ms: int
    """Broker time at which the pin was made."""
    checkpoint: int
    """Number of a checkpoint whose ``end_lsn`` is at most ``lsn``; 0 = there is none, and no row was reclaimed."""
    checkpoint_lsn: int
    """``CheckpointHeader.lsn`` of the checkpoint; 0 without a checkpoint."""
    lifetime_ms: int
    """The pin ends so long after the last ``ListPinnedSegments`` of its id."""


class PinnedSegments(Reply, frozen=True, tag=249):
    """Segments of a pin, ascending."""

    numbers: list[int]
    next: int | None = None
    """Number behind which the next page starts; None = the end."""


class StandingPinSet(Reply, frozen=True, tag=250):
    """The broker keeps the rows above the row of the request."""

    gaps: list[tuple[int, int]]
    """Ranges (first LSN, last LSN) of rows between the two copies that were reclaimed before the second; at most 100,
    of which the last may span several."""
    limit_ms: int
    """The rows are kept so long without a further call."""


class Metrics(Reply, frozen=True, tag=227):
    """Totals, deleted queues and topics included, and the figures of the server."""

    broker_time_ms: int
    queue_totals: QueueTotals
    topic_totals: TopicTotals
    subscription_totals: SubscriptionTotals
    queues: int
    """Number of queues, and of topics and subscriptions, that exist now."""
    topics: int
    subscriptions: int
    server: ServerMetrics | None = None
    """None for an account other than ``admin``."""


class QueueMetricsPage(Reply, frozen=True, tag=228):
    """Metrics of queues."""

    broker_time_ms: int
    queues: list[QueueMetrics]
    next: tuple[str, str] | None = None
    """Account and queue behind which the next page starts; None = the end."""


class TopicMetricsPage(Reply, frozen=True, tag=229):
    """Metrics of topics and their subscriptions."""

    broker_time_ms: int
    topics: list[TopicMetrics]
    next: tuple[str, str] | None = None


class TopMetrics(Reply, frozen=True, tag=230):
    """Sums, and the queues, topics and subscriptions with the most messages, in descending order."""

    broker_time_ms: int
    sums: MetricSums
    queues: list[QueueMetrics]
    topics: list[TopicMetrics]
    """Without their subscriptions."""
    subscriptions: list[TopSubscription]


class AuditEntries(Reply, frozen=True, tag=238):
    """Entries of the audit trail, newest first."""

    entries: list[AuditEntry]
    next_before: int = 0
    """``before`` of the next request; 0 = the end."""


class ConnectionList(Reply, frozen=True, tag=235):
    """A page of connections."""

    broker_time_ms: int
    total: int
    """Connections that match the search, on this page or not."""
    connections: list[ConnectionInfo]


class WaitingReceiveList(Reply, frozen=True, tag=236):
    """A page of waiting receives."""

    broker_time_ms: int
    total: int
    receives: list[WaitingReceiveInfo]


class SettingList(Reply, frozen=True, tag=237):
    """Every setting, in the order of the documentation."""

    settings: list[SettingInfo]


AnyReply: TypeAlias = (
    Reply
    | MessagesPeeked
    | MessageHistory
    | QueueInfo
    | Rewound
    | RedriveStatus
    | RewindPreview
    | HalfMessages
    | TopicInfo
    | SubscriptionInfo
    | DeliveriesPeeked
    | MessageDeliveries
    | ScheduleInfo
)
"""A reply. Those named beside ``Reply`` are types of ``cmqd_types`` behind the number of the request."""


Push: TypeAlias = TransactionCheck | KeyChanged
"""A message of the server that is not the reply to a request."""
PUSH_TYPES: Final = frozenset({TransactionCheck, KeyChanged})


def operation_name(kind: type[WireMessage]) -> str:
    """Return the name of an operation in SPEC.md and in logs: the name of its Struct in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


MESSAGE_TYPES: Final[Mapping[int, type[WireMessage]]] = {
    tag: kind
    for base in (WireMessage, Request, Reply)
    for kind in base.__subclasses__()
    if isinstance(tag := kind.__struct_config__.tag, int)
}
"""Structs of the messages, by operation."""
REQUEST_TYPES: Final[Mapping[int, type[Request]]] = {
    opcode: kind for opcode, kind in MESSAGE_TYPES.items() if issubclass(kind, Request)
}
"""Structs of the requests, by operation."""
_FIRST_REPLY: Final = 192


def decoder_of(kinds: Iterable[type[WireMessage]]) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder that takes messages of these types only."""
    return msgspec.msgpack.Decoder(Union[tuple(kinds)])  # noqa: UP007  # pyright: ignore


encoder = msgspec.msgpack.Encoder()

# A decoder per state and direction: a message that is not valid in the state is an unknown tag and is never decoded.
client_hello_decoder: "msgspec.msgpack.Decoder[ClientHello]" = msgspec.msgpack.Decoder(ClientHello)
request_decoder: "msgspec.msgpack.Decoder[Cancel | Request]" = decoder_of((Cancel, *REQUEST_TYPES.values()))
server_hello_decoder: "msgspec.msgpack.Decoder[ServerHello | Error]" = msgspec.msgpack.Decoder(ServerHello | Error)
welcome_decoder: "msgspec.msgpack.Decoder[Welcome | Error]" = msgspec.msgpack.Decoder(Welcome | Error)
reply_decoder: "msgspec.msgpack.Decoder[AnyReply | Push]" = decoder_of(
    kind for opcode, kind in MESSAGE_TYPES.items() if opcode >= _FIRST_REPLY
)
