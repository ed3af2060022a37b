"""Replies of the JSON API. Most are views of results of the client; see ``views``.

A type that is written out here differs from the client's result on purpose: attributes and counts are objects of their
own, lists tell the next page, and a batch has a problem for each entry.
"""

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from cmqd_client import QueueInfo as ClientQueueInfo
from cmqd_client import SubscriptionInfo as ClientSubscriptionInfo
from cmqd_client import TopicInfo as ClientTopicInfo
from cmqd_client import accounts, results, schedules, topic
from cmqd_client.administration import audit, inspection, segments
from cmqd_client.administration.queue_summaries import QueueSummaryPage
from cmqd_client.messages import histories, searches
from cmqd_client.subscription import DeliveriesDone, QueueSubscriptionPage, SubscriptionPage
from cmqd_client.subscription import RotatedSecret as ClientRotatedSecret
from cmqd_client.topics import delivery_reports, filter_tests
from cmqd_gateway.rest.problems import Problem
from cmqd_gateway.rest.types import QueueAttributes, TopicAttributes
from cmqd_gateway.rest.values import Body, Encoding, MessageIdText, PageStart, ReceiptHandleText, Seconds
from cmqd_gateway.rest.views import Reply, view
from cmqd_types.attributes import SUBSCRIPTION
from cmqd_types.queues import QueueSummary as ClientQueueSummary
from cmqd_types.topics import QueueSubscription as ClientQueueSubscription
from cmqd_types.topics import SubscriptionSummary as ClientSubscriptionSummary

NextOffset = Annotated[int | None, Meta(description="`offset` of the next page; null = this is the last page.")]
NextStart = Annotated[PageStart | None, Meta(description="`start` of the next page; null = this is the last page.")]
Created = Annotated[bool, Meta(description="True if this request created it.")]
EntryResults = Meta(description="A result for each entry, in the order of the request.")
Failed = Annotated[int, Meta(description="Number of entries with a problem.")]


class NameList(Reply, frozen=True, kw_only=True):
    """A page of names, in their order."""

    names: list[str]
    total: Annotated[int, Meta(description="Number of names that match the search, on this page or not.")]
    next_offset: NextOffset


# ---------------------------------------------------------------- queues


_COUNTS = ("active", "in_flight", "delayed", "half", "rewindable")


@view(ClientQueueInfo, only=_COUNTS)
class QueueCounts(Reply, frozen=True, kw_only=True):
    """Exact numbers of messages of a queue, by state."""


@view(ClientQueueInfo, without=(*_COUNTS, *QueueAttributes.__struct_fields__), texts=("id",))
class QueueInfo(Reply, frozen=True, kw_only=True):
    """A queue at the time of the request."""

    created: Created
    attributes: QueueAttributes
    counts: QueueCounts


@view(
    ClientQueueSummary,
    without=_COUNTS,
    texts=("queue_id",),
    renamed={"queue": "name", "queue_id": "id", "created_ms": "create_time"},
)
class QueueSummary(Reply, frozen=True, kw_only=True):
    """A queue in a list, at its own moment."""

    counts: QueueCounts


@view(QueueSummaryPage, without=("queues",))
class QueueSummaries(Reply, frozen=True, kw_only=True):
    """A page of queues with their figures."""

    queues: list[QueueSummary]
    next_offset: NextOffset


class QueueNames(Reply, frozen=True, kw_only=True):
    """Names of queues."""

    names: list[str]


@view(results.Rewound)
class Rewound(Reply, frozen=True, kw_only=True):
    """The queue is rewound."""


@view(results.RewindPreview)
class RewindPreview(Reply, frozen=True, kw_only=True):
    """The result that a rewind would have at the time of the request."""


@view(results.Redrive)
class Redrive(Reply, frozen=True, kw_only=True):
    """A redrive at the time of the request: messages of a dead-letter queue on their way back."""


# ---------------------------------------------------------------- messages


class Sent(Reply, frozen=True, kw_only=True):
    """The message is stored, and on disk."""

    id: MessageIdText


class SentBatch(Reply, frozen=True, kw_only=True):
    """All messages of the batch are stored, and on disk."""

    results: Annotated[list[Sent], Meta(description="A result for each message, in the order of the request.")]


@view(results.Origin)
class Origin(Reply, frozen=True, kw_only=True):
    """Where a message was before it was moved."""


@view(results.CopyOf)
class CopyOf(Reply, frozen=True, kw_only=True):
    """The published message of which this message is a copy."""


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


@view(results.Peeked)
class PeekedMessage(Reply, frozen=True, kw_only=True):
    """A message at the time of the peek; a peek is not a receive."""


class PeekedMessages(Reply, frozen=True, kw_only=True):
    """A page of messages in the order of sending; it may be empty and yet not the last."""

    messages: list[PeekedMessage]
    next_start: NextStart


@view(histories.HistoryEvent)
class HistoryEvent(Reply, frozen=True, kw_only=True):
    """An event in the life of a message."""

    kind: Annotated[str, Meta(description="`sent`, `received`, `deleted` and so on; a newer broker may have more.")]


@view(histories.HistoryPlace)
class HistoryPlace(Reply, frozen=True, kw_only=True):
    """A queue in which the message was, and its state there as of the last row that was read."""


@view(histories.MessageHistory, without=("life",))
class MessageHistory(Reply, frozen=True, kw_only=True):
    """The life of a message, as far as the readable rows of the log tell it."""


@view(searches.FoundMessage, texts=("lsn",))
class FoundMessage(Reply, frozen=True, kw_only=True):
    """A message that a search found."""


@view(searches.MissingRows, texts=("first_lsn", "last_lsn"))
class MissingRows(Reply, frozen=True, kw_only=True):
    """Rows of the log that were reclaimed or lost; messages in them are not known."""


@view(searches.FoundMessages)
class FoundMessages(Reply, frozen=True, kw_only=True):
    """The messages that a search found, oldest first."""


class VisibilityChanged(Reply, frozen=True, kw_only=True):
    """The message has a new next visible time."""

    next_visible_time: datetime | None


class HandleResult(Reply, frozen=True, kw_only=True):
    """The result for a received message of a batch."""

    receipt_handle: ReceiptHandleText
    problem: Annotated[Problem | None, Meta(description="Reason why the message did not change; null = done.")]


class HandleResults(Reply, frozen=True, kw_only=True):
    """The results of a batch, by entry: a failed entry has no effect on the other entries."""

    results: Annotated[list[HandleResult], EntryResults]
    failed: Failed
    next_visible_time: Annotated[
        datetime | None, Meta(description="When the first of the messages becomes active again; null after a delete.")
    ]


class DecisionResult(Reply, frozen=True, kw_only=True):
    """The result for a half message."""

    message_id: MessageIdText
    problem: Annotated[Problem | None, Meta(description="Reason why the decision was refused; null = done.")]


class DecisionResults(Reply, frozen=True, kw_only=True):
    """The results of a batch, each of its own."""

    results: Annotated[list[DecisionResult], EntryResults]
    failed: Failed


@view(results.Undecided)
class HalfMessage(Reply, frozen=True, kw_only=True):
    """A half message without a decision."""


class HalfMessages(Reply, frozen=True, kw_only=True):
    """A page of half messages without a decision, in the order of sending."""

    messages: list[HalfMessage]
    next_start: NextStart


# ---------------------------------------------------------------- topics and subscriptions


@view(ClientTopicInfo, without=TopicAttributes.__struct_fields__, texts=("id",))
class TopicInfo(Reply, frozen=True, kw_only=True):
    """A topic at the time of the request."""

    name: Annotated[str, Meta(description="At creation, a name over 64 bytes is cut; this is the name in use.")]
    created: Created
    attributes: TopicAttributes
    lifecycle: Annotated[Seconds, Meta(description="Seconds for which a message waits for its subscriptions.")]


@view(topic.Published)
class Published(Reply, frozen=True, kw_only=True):
    """The message and its copies are stored, and on disk."""


class PublishedBatch(Reply, frozen=True, kw_only=True):
    """All messages of the batch and their copies are stored, and on disk."""

    results: Annotated[list[Published], Meta(description="A result for each message, in the order of the request.")]


@view(ClientSubscriptionInfo, without=("id",), declared=SUBSCRIPTION)
class SubscriptionInfo(Reply, frozen=True, kw_only=True):
    """A subscription at the time of the request."""

    created: Created
    secret: Annotated[
        str | None,
        Meta(description="Key of the signatures (Standard Webhooks), if this request created a subscription to a URL."),
    ]

    def __repr__(self) -> str:
        return "SubscriptionInfo(...)"


@view(ClientSubscriptionSummary)
class SubscriptionSummary(Reply, frozen=True, kw_only=True):
    """A subscription in a list."""


@view(ClientQueueSubscription)
class QueueSubscription(Reply, frozen=True, kw_only=True):
    """A subscription in a list of the subscriptions that deliver to a queue."""


@view(QueueSubscriptionPage)
class QueueSubscriptionList(Reply, frozen=True, kw_only=True):
    """A page of the subscriptions that deliver to a queue, by topic and name."""

    next_offset: NextOffset


@view(SubscriptionPage)
class SubscriptionList(Reply, frozen=True, kw_only=True):
    """A page of the subscriptions of a topic, by name."""

    next_offset: NextOffset


@view(DeliveriesDone)
class Deliveries(Reply, frozen=True, kw_only=True):
    """Waiting deliveries were retried or dropped."""


@view(delivery_reports.PendingMessage)
class PendingMessage(Reply, frozen=True, kw_only=True):
    """A message that waits for a subscription."""

    state: Annotated[
        str,
        Meta(description="`waiting` (never tried), `in_retry`, `out_of_retries` or `under_way` (an attempt is made)."),
    ]


class PendingMessages(Reply, frozen=True, kw_only=True):
    """A page of messages in the order of their publishes; it may be empty and yet not the last."""

    messages: list[PendingMessage]
    next_start: NextStart


@view(delivery_reports.Delivery)
class MessageDelivery(Reply, frozen=True, kw_only=True):
    """The delivery of a message to one subscription."""

    state: Annotated[
        str,
        Meta(
            description="A state of a waiting message, or `delivered`, `dropped`, or `unknown`: the subscription was "
            "removed, or the day of the message is over."
        ),
    ]


@view(delivery_reports.MessageDeliveries)
class MessageDeliveries(Reply, frozen=True, kw_only=True):
    """The deliveries of a message: an entry for each subscription that the message was published for."""


@view(filter_tests.FilterMatch)
class FilterMatch(Reply, frozen=True, kw_only=True):
    """A filter tag or binding key of a subscription, tested."""


@view(filter_tests.SubscriptionMatch)
class SubscriptionMatch(Reply, frozen=True, kw_only=True):
    """A subscription, tested."""

    fate: Annotated[
        str,
        Meta(
            description="`stored`: the copy would be in the queue with the publish. `posted`: to the URL. The message "
            "would wait: `behind` earlier messages; `blocked` after failures; `queue_full`; `queue_missing`; `paused`. "
            "`no_match`: the message does not match."
        ),
    ]


@view(filter_tests.TopicMatch)
class TopicMatch(Reply, frozen=True, kw_only=True):
    """The subscriptions of a topic, tested, as of one moment."""


@view(ClientRotatedSecret)
class RotatedSecret(Reply, frozen=True, kw_only=True):
    """A new secret; it is shown only once."""

    def __repr__(self) -> str:
        return "RotatedSecret(secret=...)"


# ---------------------------------------------------------------- schedules, keys, the inside of the broker


@view(schedules.ScheduleInfo, texts=("id",))
class ScheduleInfo(Reply, frozen=True, kw_only=True):
    """A schedule at the time of the request."""

    created: Created


@view(schedules.ScheduleSummary)
class ScheduleSummary(Reply, frozen=True, kw_only=True):
    """A schedule in a list."""


@view(schedules.SchedulePage)
class ScheduleList(Reply, frozen=True, kw_only=True):
    """A page of schedules, by name."""

    next_offset: NextOffset


@view(accounts.AccessKey, without=("secret_key",))
class Key(Reply, frozen=True, kw_only=True):
    """A key pair, without its secret part."""


@view(accounts.OwnKey, without=("connection_id",))
class OwnKey(Reply, frozen=True, kw_only=True):
    """The key of the request, without its secret part."""

    roles: Annotated[list[str], Meta(description="Roles that hold for the next request.")]


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


@view(accounts.AccountQueue)
class AccountQueue(Reply, frozen=True, kw_only=True):
    """A queue and its account."""


@view(accounts.AccountQueuePage)
class AllQueues(Reply, frozen=True, kw_only=True):
    """A page of the queues of all accounts; it may have few queues, even none, before the end."""


@view(audit.AuditEntry, texts=("entry_id",))
class AuditEntry(Reply, frozen=True, kw_only=True):
    """An administrative operation that succeeded."""


@view(audit.AuditPage, texts=("next",))
class AuditEntries(Reply, frozen=True, kw_only=True):
    """A page of the audit trail, newest first."""


@view(segments.SegmentHolder)
class SegmentHolder(Reply, frozen=True, kw_only=True):
    """A queue or topic with messages that keep a segment on disk."""


@view(segments.Segment, texts=("number", "first_lsn", "last_lsn"))
class Segment(Reply, frozen=True, kw_only=True):
    """A segment of the log, and what keeps it on disk."""

    kept_for: Annotated[
        list[str],
        Meta(
            description="Reasons: `rows` (takes new rows), `messages` (not consumed), `rewind` (deleted messages that "
            "can come back), `deliveries` (wait for a subscription), `checkpoint` (a start needs its rows), `history`, "
            "`backup` (not copied yet). "
            "Empty = about to be reclaimed. Reasons may be added."
        ),
    ]


@view(segments.SegmentPage, texts=("next", "covered_lsn"))
class SegmentList(Reply, frozen=True, kw_only=True):
    """A page of segments, and the room of the log."""


@view(inspection.ConnectionInfo, texts=("connection_id",), renamed={"connection_id": "id"})
class Connection(Reply, frozen=True, kw_only=True):
    """A connection of the broker."""

    product: Annotated[str, Meta(description="Software of the client as the client states; `cmqd-gateway`: HTTP.")]


@view(inspection.ConnectionPage)
class ConnectionList(Reply, frozen=True, kw_only=True):
    """A page of connections."""

    next_offset: NextOffset


class CmqTcpClient(Reply, frozen=True, kw_only=True):
    """A connection of CMQ's TCP protocol that has logged in."""

    account: str
    secret_id: Annotated[str, Meta(description="Id of the key of the connection.")]
    client_id: Annotated[
        str, Meta(description="Id of the client as the client states; the SDK states address and name of the program.")
    ]
    peer: Annotated[str, Meta(description="IP address of the client.")]
    since: Annotated[datetime, Meta(description="Time of the connect.")]
    requests: Annotated[int, Meta(description="Requests without an answer so far, waiting receives included.")]


class CmqTcpClientList(Reply, frozen=True, kw_only=True):
    """A page of clients of CMQ's TCP protocol."""

    clients: list[CmqTcpClient]
    total: Annotated[int, Meta(description="Clients that match the search, listed here or not.")]
    time: Annotated[datetime, Meta(description="The gateway's time of the page.")]
    is_served: Annotated[bool, Meta(description="False if the gateway does not serve the protocol: `listen_cmq_tcp`.")]
    next_offset: NextOffset


@view(inspection.WaitingReceive, texts=("connection_id",), renamed={"connection_id": "connection"})
class WaitingReceive(Reply, frozen=True, kw_only=True):
    """A receive that waits for messages."""


@view(inspection.ConsumerInfo)
class Consumer(Reply, frozen=True, kw_only=True):
    """A client that receives from a queue, or did so within the last hour."""


@view(inspection.ConsumerPage)
class ConsumerList(Reply, frozen=True, kw_only=True):
    """A page of consumers, in order of queue and name."""

    next_offset: NextOffset


@view(inspection.WaitingReceivePage)
class WaitingReceiveList(Reply, frozen=True, kw_only=True):
    """A page of waiting receives, in order of arrival."""

    next_offset: NextOffset


@view(inspection.Setting)
class Setting(Reply, frozen=True, kw_only=True):
    """A setting of the broker. No setting holds a secret: keys and certificates are named by their files."""


class SettingList(Reply, frozen=True, kw_only=True):
    """Every setting, in the order of the documentation."""

    settings: list[Setting]
