"""Every message of the wire as a Struct: requests, replies, pushes, and their shared encoder and decoders.

A message is one msgpack array ``[opcode, request_id, ...]``. Fields are only ever appended, with a default. Times and
durations are milliseconds; ``None`` means "the queue's own setting". Who may send what, ranges and errors: SPEC.md.

Opcodes leave room by theme: 1-15 connection, 16-31 messages, 32-47 consumer streams, 48-79 queues, 80-111 topics,
112-127 transactions, 128-143 accounts, 144-159 the server, 192-254 replies and pushes, 255 error.
"""

from typing import Any, TypeAlias

import msgspec

Headers: TypeAlias = dict[str, str]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame's content; see the module."""


class Request(WireMessage, frozen=True):
    """What a client asks; exactly one reply with the same ``request_id`` (1 .. 2**32-1) follows, in any order."""

    request_id: int


class Reply(WireMessage, frozen=True):
    request_id: int


# ---------------------------------------------------------------- connection (1-15)


class ServerHello(WireMessage, frozen=True, tag=1):
    """First frame of the server."""

    product: str
    region: str
    nonce: bytes
    max_frame_bytes: int
    heartbeat_ms: int


class ClientHello(WireMessage, frozen=True, tag=2):
    """First frame of the client: who it is, its proof, and what it accepts of the tune."""

    secret_id: str
    nonce: bytes
    proof: bytes
    max_frame_bytes: int
    heartbeat_ms: int
    region: str | None = None
    product: str = ""


class Welcome(WireMessage, frozen=True, tag=3):
    """The server's proof and the tune in force; requests may follow."""

    proof: bytes
    account: str
    max_frame_bytes: int
    heartbeat_ms: int
    connection_id: int


class Cancel(WireMessage, frozen=True, tag=4):
    """Give up a request. It has no reply of its own; the cancelled request is answered ``cancelled``, or as usual if
    the reply was already on its way.
    """

    request_id: int


# ---------------------------------------------------------------- messages (16-31)


class SendMessages(Request, frozen=True, tag=16):
    queue: str
    bodies: list[bytes]
    headers: list[Headers | None] | None = None
    delay_ms: int | list[int] | None = None
    session: int = 0
    sequence: int = 0
    """Number of this send in the producer session, from 1; 0 = not numbered."""
    dedup_ids: list[str | None] | None = None
    """Reserved; must be null in this version."""


class ReceiveMessages(Request, frozen=True, tag=17):
    queue: str
    max_messages: int = 1
    wait_ms: int | None = None
    visibility_timeout_ms: int | None = None


class DeleteMessages(Request, frozen=True, tag=18):
    queue: str
    receipt_handles: list[int]


class ChangeVisibility(Request, frozen=True, tag=19):
    queue: str
    receipt_handles: list[int]
    visibility_timeout_ms: int


class ReleaseMessages(Request, frozen=True, tag=20):
    """Hand back at once."""

    queue: str
    receipt_handles: list[int]
    count_receive: bool = True


class PeekMessages(Request, frozen=True, tag=21):
    """Browse without receiving: messages of ``states`` in position order, from ``start`` on."""

    queue: str
    max_messages: int = 16
    start: int = 0
    """A place in the queue: 0, or ``next_start`` of the reply before."""


# ---------------------------------------------------------------- queues (48-79)


class CreateQueue(Request, frozen=True, tag=48):
    queue: str
    attributes: dict[str, Any]


class EnsureQueue(Request, frozen=True, tag=49):
    queue: str
    attributes: dict[str, Any]


class ListQueues(Request, frozen=True, tag=50):
    search: str = ""
    offset: int = 0
    limit: int = 100


class GetQueueAttributes(Request, frozen=True, tag=51):
    queue: str


class SetQueueAttributes(Request, frozen=True, tag=52):
    queue: str
    attributes: dict[str, Any]


class DeleteQueue(Request, frozen=True, tag=53):
    queue: str


class ClearQueue(Request, frozen=True, tag=54):
    queue: str


# ---------------------------------------------------------------- accounts (128-143)


class CreateAccount(Request, frozen=True, tag=128):
    account: str


class ListAccounts(Request, frozen=True, tag=129):
    pass


class CreateKey(Request, frozen=True, tag=130):
    account: str | None = None
    """None = the caller's own; another's only from account ``admin``. The same in the requests below."""


class ListKeys(Request, frozen=True, tag=131):
    account: str | None = None


class SetKeyEnabled(Request, frozen=True, tag=132):
    secret_id: str
    enabled: bool
    account: str | None = None


class DeleteKey(Request, frozen=True, tag=133):
    secret_id: str
    account: str | None = None


# ---------------------------------------------------------------- the server (144-159)


class GetServerStatus(Request, frozen=True, tag=144):
    pass


# ---------------------------------------------------------------- replies (192-254)


class Done(Reply, frozen=True, tag=192):
    """Done, with nothing to add."""


class MessagesSent(Reply, frozen=True, tag=193):
    message_ids: list[int]


class ReceivedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One received (or, with ``receipt_handle`` 0, peeked) message."""

    message_id: int
    receipt_handle: int
    body: bytes
    enqueue_ms: int
    first_receive_ms: int
    next_visible_ms: int
    receive_count: int
    headers: Headers | None = None


class MessagesReceived(Reply, frozen=True, tag=194):
    """Empty when the wait ended without a message."""

    messages: list[ReceivedMessage]


class HandleFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    receipt_handle: int
    code: int
    text: str


class HandlesDone(Reply, frozen=True, tag=195):
    """Reply to delete, change visibility and hand back: what failed; the rest is done."""

    failures: list[HandleFailure]
    next_visible_ms: int = 0


class PeekedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    message_id: int
    state: str
    body: bytes
    enqueue_ms: int
    visible_ms: int
    receive_count: int
    headers: Headers | None = None


class MessagesPeeked(Reply, frozen=True, tag=196):
    messages: list[PeekedMessage]
    next_start: int | None
    """Where to go on; None = the end."""


class QueueInfo(Reply, frozen=True, tag=197):
    """Attributes, counts and facts of a queue by name; ``created`` tells create/ensure whether it is new."""

    queue: str
    queue_id: int
    attributes: dict[str, Any]
    counts: dict[str, int]
    facts: dict[str, Any]
    created: bool = False


class QueueList(Reply, frozen=True, tag=198):
    total: int
    queues: list[tuple[int, str]]


class AccountList(Reply, frozen=True, tag=199):
    accounts: list[str]


class KeyInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    secret_id: str
    account: str
    enabled: bool
    created_ms: int
    secret_key: str | None = None
    """Only in the reply that creates the key."""


class KeyList(Reply, frozen=True, tag=200):
    keys: list[KeyInfo]


class ServerStatus(Reply, frozen=True, tag=201):
    """Name to value: version, durability, uptime, counts, storage figures."""

    status: dict[str, Any]


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
    | CreateAccount
    | ListAccounts
    | CreateKey
    | ListKeys
    | SetKeyEnabled
    | DeleteKey
    | GetServerStatus
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
    | Error
)
FromClient: TypeAlias = ClientHello | Cancel | AnyRequest
FromServer: TypeAlias = ServerHello | Welcome | AnyReply

encoder = msgspec.msgpack.Encoder()
client_message_decoder: "msgspec.msgpack.Decoder[FromClient]" = msgspec.msgpack.Decoder(FromClient)
server_message_decoder: "msgspec.msgpack.Decoder[FromServer]" = msgspec.msgpack.Decoder(FromServer)
