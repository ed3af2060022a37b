"""Every message of the wire as a Struct: requests, replies, pushes, and their shared encoder and decoders.

A message is one msgpack array ``[opcode, request_id, ...]``. Fields are only ever appended, with a default. Times and
durations are milliseconds; ``None`` means "the queue's own setting". Who may send what, ranges and errors: SPEC.md.

Opcodes leave room by theme: 1-15 connection, 16-31 messages, 32-47 consumer streams, 48-79 queues, 80-111 topics,
112-127 transactions, 128-143 accounts, 144-159 the server, 192-254 replies and pushes, 255 error.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from cmqd_protocol.errors import RETRYABLE, ErrorCode
from cmqd_protocol.limits import (
    MAX_ATTRIBUTES,
    MAX_BATCH,
    MAX_DEDUP_ID_BYTES,
    MAX_HEADERS,
    MAX_NAME_BYTES,
    MAX_REQUEST_ID,
    MAX_ROUTING_KEY_BYTES,
    MAX_SECRET_ID_BYTES,
    MAX_TAG_CHARS,
    MAX_TAGS,
    NONCE_BYTES,
    PROOF_BYTES,
)
from cmqd_types import messages, queues, topics
from cmqd_types.messages import Headers, ReceivedMessage
from cmqd_types.topics import SubscriptionSummary

# Shapes that bound what a frame can become in memory; msgspec checks them while it decodes, before it allocates.
# Ranges that depend on a queue or a setting are checked by whoever knows those.
Unsigned: TypeAlias = Annotated[int, Meta(ge=0)]
"""0 .. 2**64-1"""
U32: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
RequestId: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_REQUEST_ID)]
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Proof: TypeAlias = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
ShortText: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
Bodies: TypeAlias = Annotated[list[bytes], Meta(min_length=1, max_length=MAX_BATCH)]
Handles: TypeAlias = Annotated[list[Unsigned], Meta(min_length=1, max_length=MAX_BATCH)]
HeadersList: TypeAlias = Annotated[
    list[Annotated[Headers, Meta(max_length=MAX_HEADERS)] | None], Meta(max_length=MAX_BATCH)
]
DedupId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_DEDUP_ID_BYTES)]
DedupIds: TypeAlias = Annotated[list[DedupId | None], Meta(max_length=MAX_BATCH)]
MessageIds: TypeAlias = Annotated[list[Unsigned], Meta(min_length=1, max_length=MAX_BATCH)]
Decision: TypeAlias = Annotated[int, Meta(ge=1, le=3)]
"""What becomes of a half message: 1 commit, 2 roll back, 3 unknown (yet)."""
COMMIT: Final = 1
ROLL_BACK: Final = 2
UNKNOWN: Final = 3
Delays: TypeAlias = Annotated[list[Unsigned], Meta(max_length=MAX_BATCH)]
AttributeValue: TypeAlias = int | str | bool | None
Tags: TypeAlias = Annotated[list[Annotated[str, Meta(max_length=MAX_TAG_CHARS)]], Meta(max_length=MAX_TAGS)]
TagsList: TypeAlias = Annotated[list[Tags], Meta(max_length=MAX_BATCH)]
RoutingKeys: TypeAlias = Annotated[
    list[Annotated[str, Meta(max_length=MAX_ROUTING_KEY_BYTES)]], Meta(max_length=MAX_BATCH)
]
SubscriptionAttributes: TypeAlias = Annotated[
    dict[str, AttributeValue | Annotated[list[str], Meta(max_length=MAX_TAGS)]], Meta(max_length=MAX_ATTRIBUTES)
]
Attributes: TypeAlias = Annotated[dict[str, AttributeValue], Meta(max_length=MAX_ATTRIBUTES)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame's content; see the module."""


class Request(WireMessage, frozen=True):
    """What a client asks; exactly one reply with the same ``request_id`` (1 .. 2**32-1) follows, in any order."""

    request_id: RequestId


class Reply(WireMessage, frozen=True):
    """The answer to the request of the same number."""

    request_id: int


# ---------------------------------------------------------------- connection (1-15)


class ServerHello(WireMessage, frozen=True, tag=1):
    """First frame of the server."""

    product: ShortText
    region: ShortText
    nonce: Nonce
    max_frame_bytes: U32
    heartbeat_ms: U32


class ClientHello(WireMessage, frozen=True, tag=2):
    """First frame of the client: who it is, its proof, and what it accepts of the tune."""

    secret_id: Annotated[str, Meta(max_length=MAX_SECRET_ID_BYTES)]
    nonce: Nonce
    proof: Proof
    max_frame_bytes: U32
    heartbeat_ms: U32
    region: ShortText | None = None
    product: ShortText = ""


class Welcome(WireMessage, frozen=True, tag=3):
    """The server's proof and the tune in force; requests may follow."""

    proof: Proof
    account: ShortText
    max_frame_bytes: U32
    heartbeat_ms: U32
    connection_id: Unsigned
    facts: dict[str, Any] = {}
    """What else the server says of itself, by name; see ``features``. Not covered by the proof."""


class Cancel(WireMessage, frozen=True, tag=4):
    """Give up a request. It has no reply of its own; the cancelled request is answered ``cancelled``, or as usual if
    the reply was already on its way.
    """

    request_id: RequestId


# ---------------------------------------------------------------- messages (16-31)


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
    """One for each body, or null: a message whose id the queue remembers is not stored again."""
    after: DedupId | None = None
    """Stored only if the queue remembers this dedup id; see ``features.Feature.ORDERED_SENDS``."""


class ReceiveMessages(Request, frozen=True, tag=17):
    """Receive up to ``max_messages``, waiting while there is none. Answered ``MessagesReceived``."""

    queue: str
    max_messages: Unsigned = 1
    wait_ms: Unsigned | None = None
    visibility_timeout_ms: Unsigned | None = None


class DeleteMessages(Request, frozen=True, tag=18):
    """Delete what was received. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles


class ChangeVisibility(Request, frozen=True, tag=19):
    """Hide received messages until ``visibility_timeout_ms`` from now. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    visibility_timeout_ms: Unsigned


class ReleaseMessages(Request, frozen=True, tag=20):
    """Hand back at once."""

    queue: str
    receipt_handles: Handles
    count_receive: bool = True


class PeekMessages(Request, frozen=True, tag=21):
    """Browse without receiving: messages of ``states`` in position order, from ``start`` on."""

    queue: str
    max_messages: Unsigned = 16
    start: Unsigned = 0
    """A place in the queue: 0, or ``next_start`` of the reply before."""
    states: Annotated[list[ShortText], Meta(max_length=8)] | None = None
    """Some of ``active``, ``in_flight``, ``delayed``, ``half``, ``rewindable``; null = all but ``rewindable``."""


# ---------------------------------------------------------------- queues (48-79)


class CreateQueue(Request, frozen=True, tag=48):
    """Make a queue; an existing name is an error. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class EnsureQueue(Request, frozen=True, tag=49):
    """Make a queue, or find one that agrees in every attribute named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class ListQueues(Request, frozen=True, tag=50):
    """Queues whose names contain ``search``, by name. Answered ``QueueList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetQueueAttributes(Request, frozen=True, tag=51):
    """Attributes, counts and facts. Answered ``QueueInfo``."""

    queue: str


class SetQueueAttributes(Request, frozen=True, tag=52):
    """Change the attributes that are named. Answered ``QueueInfo``."""

    queue: str
    attributes: Attributes


class DeleteQueue(Request, frozen=True, tag=53):
    """Delete a queue with its messages. Answered ``Done``."""

    queue: str


class ClearQueue(Request, frozen=True, tag=54):
    """Drop every message sent so far, in whatever state. Answered ``Done``."""

    queue: str


class RewindQueue(Request, frozen=True, tag=55):
    """Make deleted messages active again, those sent at or after ``time_ms``. Answered ``Rewound``."""

    queue: str
    time_ms: Unsigned
    strict: bool = False
    """Refuse a time before the window instead of taking the nearest one."""
    ago_ms: Unsigned | None = None
    """In place of ``time_ms``: how long ago by the server's clock. Needs feature ``rewind_ago``."""


class ListDeadLetterSources(Request, frozen=True, tag=56):
    """The queues whose dead letters go to this one. Answered ``QueueList``."""

    queue: str


class StartRedrive(Request, frozen=True, tag=57):
    """Send what is in a queue now back to where it came from, or to ``target``. Answered ``RedriveStatus``."""

    queue: str
    target: str | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """None = as fast as it goes."""


class CancelRedrive(Request, frozen=True, tag=58):
    """Stop; what was moved stays moved. Answered ``RedriveStatus``."""

    queue: str


class GetRedrive(Request, frozen=True, tag=59):
    """How far the redrive under way is, or the last one came. Answered ``RedriveStatus``."""

    queue: str


# ---------------------------------------------------------------- topics (80-111)


class CreateTopic(Request, frozen=True, tag=80):
    """Make a topic. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class EnsureTopic(Request, frozen=True, tag=81):
    """Make it, or confirm that the one there has these attributes. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class ListTopics(Request, frozen=True, tag=82):
    """A page of the account's topics in order of name. Answered ``TopicList``."""

    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetTopicAttributes(Request, frozen=True, tag=83):
    """Answered ``TopicInfo``."""

    topic: str


class SetTopicAttributes(Request, frozen=True, tag=84):
    """Change the attributes named. Answered ``TopicInfo``."""

    topic: str
    attributes: Attributes


class DeleteTopic(Request, frozen=True, tag=85):
    """Remove a topic without subscriptions. Answered ``Done``."""

    topic: str


class PublishMessages(Request, frozen=True, tag=86):
    """Publish a batch: the messages and all their copies, whole or not at all. Answered ``MessagesPublished``."""

    topic: str
    bodies: Bodies
    headers: HeadersList | None = None
    tags: TagsList | None = None
    """On a tag topic: one list for all bodies, or one for each; None = no tags."""
    routing_keys: RoutingKeys | None = None
    """On a routing topic: one key for all bodies, or one for each."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None
    after: DedupId | None = None
    """Stored only if the topic remembers this dedup id; see ``features.Feature.ORDERED_PUBLISHES``."""


class Subscribe(Request, frozen=True, tag=88):
    """Have a topic's messages delivered to a queue or a URL from here on. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class EnsureSubscription(Request, frozen=True, tag=89):
    """Subscribe, or confirm that the subscription has these attributes. Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class ListSubscriptions(Request, frozen=True, tag=90):
    """A page of a topic's subscriptions in order of name. Answered ``SubscriptionList``."""

    topic: str
    search: str = ""
    offset: Unsigned = 0
    limit: Unsigned = 100


class GetSubscription(Request, frozen=True, tag=91):
    """Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str


class SetSubscriptionAttributes(Request, frozen=True, tag=92):
    """Change the attributes named (``paused`` among them). Answered ``SubscriptionInfo``."""

    topic: str
    subscription: str
    attributes: SubscriptionAttributes


class Unsubscribe(Request, frozen=True, tag=93):
    """End a subscription and drop what waits for it. Answered ``Done``."""

    topic: str
    subscription: str


class RetryDeliveries(Request, frozen=True, tag=94):
    """Try all that failed again at once, those whose retries are used up once more. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class DropDeliveries(Request, frozen=True, tag=95):
    """Drop all that waits or is in retry for a subscription. Answered ``DeliveriesDone``."""

    topic: str
    subscription: str


class RotateSecret(Request, frozen=True, tag=96):
    """Give a subscription to a URL a new secret for signatures. Answered ``SubscriptionSecret``."""

    topic: str
    subscription: str
    overlap_ms: Unsigned | None = None
    """How long what is posted is signed with the old one as well; None = a day."""


# ---------------------------------------------------------------- transactions (112-127)


class SendHalfMessages(Request, frozen=True, tag=112):
    """Store a batch that nobody receives until it is committed, whole or not at all. Answered ``MessagesSent``."""

    queue: str
    bodies: Bodies
    headers: HeadersList | None = None
    first_check_ms: Unsigned | None = None
    """From now to the first check; None = the queue's."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None


class EndTransactions(Request, frozen=True, tag=113):
    """Decide half messages, one by one. Answered ``TransactionsEnded``."""

    queue: str
    message_ids: MessageIds
    decisions: Annotated[list[Decision], Meta(min_length=1, max_length=MAX_BATCH)]
    """One for each, or one for all."""


class ListHalfMessages(Request, frozen=True, tag=114):
    """Undecided half messages in the order of sending. Answered ``HalfMessages``."""

    queue: str
    start: Unsigned = 0
    """A place in the queue: 0, or ``next_start`` of the reply before."""
    limit: Unsigned = 100


class RegisterChecker(Request, frozen=True, tag=115):
    """This connection answers checks of the queue, from now until it ends or says otherwise. Answered ``Done``."""

    queue: str


class UnregisterChecker(Request, frozen=True, tag=116):
    """No more checks of this queue, please. Answered ``Done``."""

    queue: str


# ---------------------------------------------------------------- accounts (128-143)


class CreateAccount(Request, frozen=True, tag=128):
    """Make an account and its first key; only account ``admin`` may. Answered ``KeyList``."""

    account: str


class ListAccounts(Request, frozen=True, tag=129):
    """Only account ``admin`` may. Answered ``AccountList``."""


class CreateKey(Request, frozen=True, tag=130):
    """Make an access key. Answered ``KeyList``, the only time that the secret key is shown."""

    account: str | None = None
    """None = the caller's own; another's only from account ``admin``. The same in the requests below."""


class ListKeys(Request, frozen=True, tag=131):
    """The keys of an account, without secrets. Answered ``KeyList``."""

    account: str | None = None


class SetKeyEnabled(Request, frozen=True, tag=132):
    """Allow or refuse new connections with a key. Answered ``Done``."""

    secret_id: str
    enabled: bool
    account: str | None = None


class DeleteKey(Request, frozen=True, tag=133):
    """Forget a key. Answered ``Done``."""

    secret_id: str
    account: str | None = None


class DeleteAccount(Request, frozen=True, tag=134):
    """Delete an account without queues and topics, with its keys. Answered ``Done``."""

    account: str


class ListAllQueues(Request, frozen=True, tag=135):
    """Queues of all accounts whose names contain ``search``, by account and name. Answered ``AllQueues``."""

    search: str = ""
    after_account: str = ""
    """Begin behind this account and queue: ``next`` of the reply before."""
    after_queue: str = ""
    limit: int = 100


# ---------------------------------------------------------------- the server (144-159)


class GetServerStatus(Request, frozen=True, tag=144):
    """What the server says of itself. Answered ``ServerStatus``."""


class SealSegments(Request, frozen=True, tag=145):
    """Close the segment of the log that is being written, for readers of the log. Answered ``SegmentsSealed``."""


# ---------------------------------------------------------------- replies (192-254)


class Done(Reply, frozen=True, tag=192):
    """Done, with nothing to add."""


class MessagesSent(Reply, frozen=True, tag=193):
    """The ids of a batch, in its order; a numbered repeat gets the first ones again."""

    message_ids: list[int]


class MessagesReceived(Reply, frozen=True, tag=194):
    """Empty when the wait ended without a message."""

    messages: list[ReceivedMessage]


class HandleFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why one receipt handle of a batch was refused."""

    receipt_handle: int
    code: int
    text: str


class HandlesDone(Reply, frozen=True, tag=195):
    """Reply to delete, change visibility and hand back: what failed; the rest is done."""

    failures: list[HandleFailure]
    next_visible_ms: int = 0


class MessagesPeeked(messages.MessagesPeeked, WireMessage, frozen=True, tag=196):
    """The page of a peek."""

    request_id: int


class QueueInfo(queues.QueueInfo, WireMessage, frozen=True, tag=197):
    """Attributes, counts and facts of a queue; ``created`` is for ``create_queue`` and ``ensure_queue``."""

    request_id: int


class QueueList(Reply, frozen=True, tag=198):
    """``total`` that match, and the wanted part as (queue id, name)."""

    total: int
    queues: list[tuple[int, str]]


class AccountList(Reply, frozen=True, tag=199):
    """The names of all accounts."""

    accounts: list[str]


class KeyInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One access key."""

    secret_id: str
    account: str
    enabled: bool
    created_ms: int
    secret_key: str | None = None
    """Only in the reply that creates the key."""


class KeyList(Reply, frozen=True, tag=200):
    """Access keys of an account."""

    keys: list[KeyInfo]


class ServerStatus(Reply, frozen=True, tag=201):
    """Name to value: version, durability, uptime, counts, storage figures."""

    status: dict[str, Any]


class Rewound(queues.Rewound, WireMessage, frozen=True, tag=202):
    """The result of a rewind."""

    request_id: int


class RedriveStatus(queues.RedriveStatus, WireMessage, frozen=True, tag=203):
    """The progress of a redrive, running or ended."""

    request_id: int


class TransactionFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why the decision of one half message was refused."""

    message_id: int
    code: int
    text: str


class TransactionsEnded(Reply, frozen=True, tag=204):
    """What was refused; the rest is decided as asked."""

    failures: list[TransactionFailure]


class HalfMessages(messages.HalfMessages, WireMessage, frozen=True, tag=205):
    """A page of undecided half messages."""

    request_id: int


class MessagesPublished(Reply, frozen=True, tag=206):
    """The ids of a batch, in its order, and how many subscriptions each message matched."""

    message_ids: list[int]
    matched: list[int | None]
    """0 = it was discarded; None = it was published before, under this number or dedup id."""


class TopicInfo(topics.TopicInfo, WireMessage, frozen=True, tag=207):
    """Attributes, counts and facts of a topic; ``created`` is for ``create_topic`` and ``ensure_topic``."""

    request_id: int


class TopicList(Reply, frozen=True, tag=208):
    """``total`` that match, and the wanted part as (topic id, name)."""

    total: int
    topics: list[tuple[int, str]]


class SubscriptionInfo(topics.SubscriptionInfo, WireMessage, frozen=True, tag=209):
    """Attributes, counts and facts of a subscription; ``secret`` only in the reply that creates it."""

    request_id: int


class SubscriptionList(Reply, frozen=True, tag=210):
    """``total`` that match, and the wanted part."""

    total: int
    subscriptions: list[SubscriptionSummary]


class DeliveriesDone(Reply, frozen=True, tag=211):
    """How many messages are tried again or were dropped."""

    messages: int


class SubscriptionSecret(Reply, frozen=True, tag=212):
    """A new secret, told this once."""

    secret: str
    overlap_until_ms: int
    """Until then what is posted is signed with the old one as well."""


class SegmentsSealed(Reply, frozen=True, tag=213):
    """Sealed segments hold what was answered before."""

    last_lsn: int
    """All rows up to this one are in them, or gone."""


class AllQueues(Reply, frozen=True, tag=215):
    """A page of queues as (account, queue id, name)."""

    queues: list[tuple[str, int, str]]
    next: tuple[str, str] | None = None
    """Account and queue to go on behind; None = the end."""


class TransactionCheck(WireMessage, frozen=True, tag=224):
    """A push: what became of the transaction of this half message? Answered by ``EndTransactions``, or not."""

    queue: str
    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    age_ms: int
    attempt: int
    """1 for the first check."""


class Error(Reply, frozen=True, tag=255):
    """The typed failure of a request; ``request_id`` 0 = of the connection, which is closed after it."""

    code: int
    name: str
    text: str
    retryable: bool = False
    retry_after_ms: int | None = None
    details: dict[str, Any] | None = None
    """What clients may want to read by name: ``field``, ``value``, ``limit``, ``difference`` ..."""


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
"""Operation to the Struct of its request."""

encoder = msgspec.msgpack.Encoder()
client_message_decoder: "msgspec.msgpack.Decoder[FromClient]" = msgspec.msgpack.Decoder(FromClient)
server_message_decoder: "msgspec.msgpack.Decoder[FromServer]" = msgspec.msgpack.Decoder(FromServer)

# One decoder per state and direction, so that a message out of place is unknown there rather than decoded and refused.
client_hello_decoder: "msgspec.msgpack.Decoder[ClientHello]" = msgspec.msgpack.Decoder(ClientHello)
request_decoder: "msgspec.msgpack.Decoder[Cancel | AnyRequest]" = msgspec.msgpack.Decoder(Cancel | AnyRequest)
server_hello_decoder: "msgspec.msgpack.Decoder[ServerHello | Error]" = msgspec.msgpack.Decoder(ServerHello | Error)
welcome_decoder: "msgspec.msgpack.Decoder[Welcome | Error]" = msgspec.msgpack.Decoder(Welcome | Error)
reply_decoder: "msgspec.msgpack.Decoder[AnyReply | AnyPush]" = msgspec.msgpack.Decoder(AnyReply | AnyPush)


def error(
    request_id: int,
    code: ErrorCode,
    text: str,
    *,
    retry_after_ms: int | None = None,
    details: Mapping[str, Any] | None = None,
) -> Error:
    """An Error with the name and the ``retryable`` that belong to its code; ``request_id`` 0 = of the connection."""
    return Error(
        request_id=request_id,
        code=int(code),
        name=code.wire_name,
        text=text,
        retryable=code in RETRYABLE,
        retry_after_ms=retry_after_ms,
        details=None if details is None else dict(details),
    )
