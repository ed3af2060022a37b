"""The Python client of cmqd: asynchronous, typed, on asyncio or uvloop.

Programs start with :func:`connect`. This package exports the names that programs use daily. Every error is in
:mod:`cmqd_client.errors`; administration of accounts is in :mod:`cmqd_client.accounts`, schedules are in
:mod:`cmqd_client.schedules`, the connection in :mod:`cmqd_client.connection`, the address of a server in
:mod:`cmqd_client.address`, and the pages that listings return are beside the calls that return them.
"""

from cmqd_client.attributes import QueueInfo
from cmqd_client.client import Client, connect
from cmqd_client.consumers.consumer import Consumer
from cmqd_client.consumers.consumption import ConsumerStatistics
from cmqd_client.consumers.handling import Reject, Retry
from cmqd_client.declared_attributes import QueueAttributes
from cmqd_client.durations import Duration
from cmqd_client.errors import CmqError, Failure
from cmqd_client.messages.message_ids import MessageId
from cmqd_client.messages.outgoing import Outgoing
from cmqd_client.messages.request_reply import Reply
from cmqd_client.queue import ConsumedMessage, Message, Queue
from cmqd_client.results import (
    BatchResult,
    CopyOf,
    HandleResult,
    Origin,
    Peeked,
    PeekPage,
    Redrive,
    RewindPreview,
    Rewound,
    Sent,
    SentBatch,
    TransactionStatus,
    Undecided,
)
from cmqd_client.subscription import ContentFormat, RetryStrategy, Subscription, SubscriptionInfo
from cmqd_client.topic import FilterType, Published, Topic, TopicInfo
from cmqd_client.transactions.half_messages import (
    Checker,
    HalfMessage,
    LocalBatchTransaction,
    LocalTransaction,
    TransactionCheck,
    TransactionResult,
)
from cmqd_client.transactions.producer import TransactionProducer

__all__ = [
    "BatchResult",
    "Checker",
    "Client",
    "CmqError",
    "ConsumedMessage",
    "Consumer",
    "ConsumerStatistics",
    "ContentFormat",
    "CopyOf",
    "Duration",
    "Failure",
    "FilterType",
    "HalfMessage",
    "HandleResult",
    "LocalBatchTransaction",
    "LocalTransaction",
    "Message",
    "MessageId",
    "Origin",
    "Outgoing",
    "PeekPage",
    "Peeked",
    "Published",
    "Queue",
    "QueueAttributes",
    "QueueInfo",
    "Redrive",
    "Reject",
    "Reply",
    "Retry",
    "RetryStrategy",
    "RewindPreview",
    "Rewound",
    "Sent",
    "SentBatch",
    "Subscription",
    "SubscriptionInfo",
    "Topic",
    "TopicInfo",
    "TransactionCheck",
    "TransactionProducer",
    "TransactionResult",
    "TransactionStatus",
    "Undecided",
    "connect",
]
