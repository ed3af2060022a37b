"""Messages of the wire as Structs: requests, replies, pushes, and their shared encoder and decoders.

A message is one msgpack array ``[opcode, request_id, ...]``. Fields are only ever appended, with a default. Times and
durations are milliseconds; ``None`` means "the setting of the queue". SPEC.md has permissions, ranges and errors.

Opcodes leave room by theme: 1-15 connection, 16-31 messages, 32-47 consumer streams, 48-79 queues, 80-111 topics,
112-127 transactions, 128-143 accounts, 144-159 the server, 192-254 replies and pushes, 255 error.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from cmqd_protocol.messages.account import (
    AccountList,
    AllQueues,
    CreateAccount,
    CreateKey,
    DeleteAccount,
    DeleteKey,
    KeyList,
    ListAccounts,
    ListAllQueues,
    ListKeys,
    SetKeyEnabled,
)
from cmqd_protocol.messages.account import KeyInfo as KeyInfo
from cmqd_protocol.messages.base import Reply as Reply
from cmqd_protocol.messages.base import Request
from cmqd_protocol.messages.base import WireMessage as WireMessage
from cmqd_protocol.messages.connection import Cancel, ClientHello, Done, Error, ServerHello, Welcome
from cmqd_protocol.messages.connection import error as error
from cmqd_protocol.messages.fields import Attributes as Attributes
from cmqd_protocol.messages.fields import SubscriptionAttributes as SubscriptionAttributes
from cmqd_protocol.messages.message import (
    ChangeVisibility,
    DeleteMessages,
    HandlesDone,
    MessagesPeeked,
    MessagesReceived,
    MessagesSent,
    PeekMessages,
    ReceiveMessages,
    ReleaseMessages,
    SendMessages,
)
from cmqd_protocol.messages.message import HandleFailure as HandleFailure
from cmqd_protocol.messages.queue import (
    CancelRedrive,
    ClearQueue,
    CreateQueue,
    DeleteQueue,
    EnsureQueue,
    GetQueueAttributes,
    GetRedrive,
    ListDeadLetterSources,
    ListQueues,
    QueueInfo,
    QueueList,
    RedriveStatus,
    RewindQueue,
    Rewound,
    SetQueueAttributes,
    StartRedrive,
)
from cmqd_protocol.messages.server import GetServerStatus, SealSegments, SegmentsSealed, ServerStatus
from cmqd_protocol.messages.subscription import (
    DeliveriesDone,
    DropDeliveries,
    EnsureSubscription,
    GetSubscription,
    ListSubscriptions,
    RetryDeliveries,
    RotateSecret,
    SetSubscriptionAttributes,
    Subscribe,
    SubscriptionInfo,
    SubscriptionList,
    SubscriptionSecret,
    Unsubscribe,
)
from cmqd_protocol.messages.topic import (
    CreateTopic,
    DeleteTopic,
    EnsureTopic,
    GetTopicAttributes,
    ListTopics,
    MessagesPublished,
    PublishMessages,
    SetTopicAttributes,
    TopicInfo,
    TopicList,
)
from cmqd_protocol.messages.transaction import COMMIT as COMMIT
from cmqd_protocol.messages.transaction import ROLL_BACK as ROLL_BACK
from cmqd_protocol.messages.transaction import UNKNOWN as UNKNOWN
from cmqd_protocol.messages.transaction import (
    EndTransactions,
    HalfMessages,
    ListHalfMessages,
    RegisterChecker,
    SendHalfMessages,
    TransactionCheck,
    TransactionsEnded,
    UnregisterChecker,
)
from cmqd_protocol.messages.transaction import TransactionFailure as TransactionFailure

AnyRequest: TypeAlias = (
    SendMessages
    | ReceiveMessages
    | DeleteMessages
    | ChangeVisibility
    | ReleaseMessages
    | PeekMessages
    | CreateQueue
    | EnsureQueue
    | ListQueues
    | GetQueueAttributes
    | SetQueueAttributes
    | DeleteQueue
    | ClearQueue
    | RewindQueue
    | ListDeadLetterSources
    | StartRedrive
    | CancelRedrive
    | GetRedrive
    | CreateTopic
    | EnsureTopic
    | ListTopics
    | GetTopicAttributes
    | SetTopicAttributes
    | DeleteTopic
    | PublishMessages
    | Subscribe
    | EnsureSubscription
    | ListSubscriptions
    | GetSubscription
    | SetSubscriptionAttributes
    | Unsubscribe
    | RetryDeliveries
    | DropDeliveries
    | RotateSecret
    | SendHalfMessages
    | EndTransactions
    | ListHalfMessages
    | RegisterChecker
    | UnregisterChecker
    | CreateAccount
    | ListAccounts
    | CreateKey
    | ListKeys
    | SetKeyEnabled
    | DeleteKey
    | DeleteAccount
    | ListAllQueues
    | GetServerStatus
    | SealSegments
)
AnyReply: TypeAlias = (
    Done
    | MessagesSent
    | MessagesReceived
    | HandlesDone
    | MessagesPeeked
    | QueueInfo
    | QueueList
    | AccountList
    | KeyList
    | ServerStatus
    | Rewound
    | RedriveStatus
    | TransactionsEnded
    | HalfMessages
    | MessagesPublished
    | TopicInfo
    | TopicList
    | SubscriptionInfo
    | SubscriptionList
    | DeliveriesDone
    | SubscriptionSecret
    | SegmentsSealed
    | AllQueues
    | Error
)
AnyPush: TypeAlias = TransactionCheck
FromClient: TypeAlias = ClientHello | Cancel | AnyRequest
FromServer: TypeAlias = ServerHello | Welcome | AnyReply | AnyPush

REQUEST_TYPES: Final[Mapping[int, type[Request]]] = {
    request_type.__struct_config__.tag: request_type  # pyright: ignore
    for request_type in AnyRequest.__args__  # pyright: ignore
}
"""Structs of the requests, by operation."""

encoder = msgspec.msgpack.Encoder()
client_message_decoder: "msgspec.msgpack.Decoder[FromClient]" = msgspec.msgpack.Decoder(FromClient)
server_message_decoder: "msgspec.msgpack.Decoder[FromServer]" = msgspec.msgpack.Decoder(FromServer)

# A decoder per state and direction: a message that is not valid in the state is an unknown tag and is never decoded.
client_hello_decoder: "msgspec.msgpack.Decoder[ClientHello]" = msgspec.msgpack.Decoder(ClientHello)
request_decoder: "msgspec.msgpack.Decoder[Cancel | AnyRequest]" = msgspec.msgpack.Decoder(Cancel | AnyRequest)
server_hello_decoder: "msgspec.msgpack.Decoder[ServerHello | Error]" = msgspec.msgpack.Decoder(ServerHello | Error)
welcome_decoder: "msgspec.msgpack.Decoder[Welcome | Error]" = msgspec.msgpack.Decoder(Welcome | Error)
reply_decoder: "msgspec.msgpack.Decoder[AnyReply | AnyPush]" = msgspec.msgpack.Decoder(AnyReply | AnyPush)
