"""The operations of a server: one declaration for each, shared by server, client and documents.

A declaration joins a request with its reply and with the facts that other parts read:

- the client: reply, effect of a repeat;
- the server's access checks and audit: role, names in the request, kind;
- the server's limits: cost, wait, whether the request needs the storage;
- the tables of SPEC.md and ARCHITECTURE.md.

The number of an operation is the tag of its request in ``messages``, and the name follows from the name of the Struct.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, cast

from cmqd_protocol import messages as wire
from cmqd_types.keys import Role

P = ParamSpec("P")
R = TypeVar("R", bound=wire.AnyReply)


class Kind(Enum):
    """The object of an operation."""

    MESSAGES = "messages"
    """Sends, receives or settles messages."""
    LOOKUP = "look-ups"
    """Reads, and changes no state."""
    ADMINISTRATION = "administration"
    """Changes queues, topics, subscriptions, schedules, accounts or keys. Each request has a log line."""


class Repeat(Enum):
    """The effect of repeating an operation."""

    READ = "read"
    """No effect that the caller must know."""
    SAFE = "safe"
    """A repeat leaves the same state as a single execution."""
    ONCE = "once"
    """A repeat can leave another state than a single execution."""


class Cost(Enum):
    """The time that a request takes in the server's loop."""

    CONSTANT = "constant for each message; requests of several clients are decided together"
    TIMED = "not constant; the time is looked at after each request, and ends the turn of the connection"
    SLICED = "in slices of a millisecond; other requests are answered in between"


class Wait(Enum):
    """The reason why a request may wait in the core, and the fate of the wait when its client goes."""

    NONE = "none"
    MESSAGES = "messages"
    """Waits for messages to arrive."""
    PAGES = "pages"
    """Waits for reads of the log. Counts among the unread replies of its connection, because its reply can be large."""
    SCAN = "scan"
    """Waits for reads of the log, with a small reply."""
    BODIES = "bodies"
    """Decided already, waits for bodies. Carried out even if the request is cancelled or its client goes."""


class Operation(NamedTuple, Generic[P, R]):
    """An operation; see the module."""

    make: Callable[Concatenate[int, P], wire.Request]
    """The request."""
    reply: type[R]
    """The reply, unless the reply is an error."""
    role: Role | None
    """The role that a key needs; None = any."""
    kind: Kind
    names: str = ""
    """Fields with the names that the patterns of a key must match, separated by spaces. A field behind a point is an
    attribute, and may be absent."""
    repeat: Repeat = Repeat.READ
    cost: Cost = Cost.TIMED
    wait: Wait = Wait.NONE
    every_name: str = ""
    """Why the patterns must match every name, as words behind "the operation"; empty = they need not. With ``names``:
    only of a request in which one of them is null."""
    is_in_trail: bool = False
    """True if an execution makes an entry of the audit trail."""
    needs_storage: bool = True
    """False if the request is answered while the storage hangs: it neither reads the index nor waits for the disk."""

    @property
    def request(self) -> type[wire.Request]:
        """The type of the request."""
        return cast("type[wire.Request]", self.make)

    @property
    def name(self) -> str:
        """The name in documents and logs."""
        return wire.operation_name(self.request)

    @property
    def is_administration(self) -> bool:
        """True if each request has a log line."""
        return self.kind is Kind.ADMINISTRATION


def _of_messages(
    role: Role,
    make: Callable[Concatenate[int, P], wire.Request],
    reply: type[R],
    names: str,
    repeat: Repeat = Repeat.SAFE,
    **facts: Any,
) -> Operation[P, R]:
    return Operation(make, reply, role, Kind.MESSAGES, names, repeat, **facts)


def _lookup(
    make: Callable[Concatenate[int, P], wire.Request],
    reply: type[R],
    names: str = "",
    role: Role | None = Role.READ,
    **facts: Any,
) -> Operation[P, R]:
    return Operation(make, reply, role, Kind.LOOKUP, names, **facts)


def _change(
    make: Callable[Concatenate[int, P], wire.Request],
    reply: type[R],
    names: str = "",
    repeat: Repeat = Repeat.ONCE,
    role: Role = Role.MANAGE,
    is_in_trail: bool = True,
    **facts: Any,
) -> Operation[P, R]:
    return Operation(make, reply, role, Kind.ADMINISTRATION, names, repeat, is_in_trail=is_in_trail, **facts)


_SAFE: Final = Repeat.SAFE
_COPIES_ALL: Final = "copies the messages of all accounts"

# Messages of queues and topics

SEND_MESSAGES = _of_messages(Role.SEND, wire.SendMessages, wire.MessagesSent, "queue", cost=Cost.CONSTANT)
PUBLISH_MESSAGES = _of_messages(Role.SEND, wire.PublishMessages, wire.MessagesPublished, "topic", cost=Cost.CONSTANT)
RECEIVE_MESSAGES = _of_messages(
    *(Role.CONSUME, wire.ReceiveMessages, wire.MessagesReceived, "queue"),
    repeat=Repeat.READ,
    cost=Cost.CONSTANT,
    wait=Wait.MESSAGES,
)
DELETE_MESSAGES = _of_messages(Role.CONSUME, wire.DeleteMessages, wire.HandlesDone, "queue", cost=Cost.CONSTANT)
CHANGE_VISIBILITY = _of_messages(Role.CONSUME, wire.ChangeVisibility, wire.HandlesDone, "queue")
RELEASE_MESSAGES = _of_messages(Role.CONSUME, wire.ReleaseMessages, wire.HandlesDone, "queue")
DEAD_LETTER_MESSAGES = _of_messages(Role.CONSUME, wire.DeadLetterMessages, wire.HandlesDone, "queue", wait=Wait.BODIES)
PEEK_MESSAGES = _lookup(wire.PeekMessages, wire.MessagesPeeked, "queue", wait=Wait.PAGES)
GET_MESSAGE_HISTORY = _lookup(wire.GetMessageHistory, wire.MessageHistory, cost=Cost.SLICED)
FIND_MESSAGES = _lookup(
    wire.FindMessages, wire.MessagesFound, "source", cost=Cost.SLICED, every_name="searches all queues and topics"
)

# Half messages

SEND_HALF_MESSAGES = _of_messages(Role.SEND, wire.SendHalfMessages, wire.MessagesSent, "queue")
END_TRANSACTIONS = _of_messages(Role.SEND, wire.EndTransactions, wire.TransactionsEnded, "queue", wait=Wait.BODIES)
REGISTER_CHECKER = _of_messages(Role.SEND, wire.RegisterChecker, wire.Done, "queue", repeat=Repeat.READ)
UNREGISTER_CHECKER = _of_messages(Role.SEND, wire.UnregisterChecker, wire.Done, "queue", repeat=Repeat.READ)
LIST_HALF_MESSAGES = _lookup(wire.ListHalfMessages, wire.HalfMessages, "queue")

# Queues

CREATE_QUEUE = _change(wire.CreateQueue, wire.QueueInfo, "queue attributes.dead_letter_queue")
ENSURE_QUEUE = _change(wire.EnsureQueue, wire.QueueInfo, "queue attributes.dead_letter_queue", _SAFE)
SET_QUEUE_ATTRIBUTES = _change(wire.SetQueueAttributes, wire.QueueInfo, "queue attributes.dead_letter_queue", _SAFE)
DELETE_QUEUE = _change(wire.DeleteQueue, wire.Done, "queue")
CLEAR_QUEUE = _change(wire.ClearQueue, wire.Done, "queue")
REWIND_QUEUE = _change(wire.RewindQueue, wire.Rewound, "queue", wait=Wait.SCAN)
START_REDRIVE = _change(wire.StartRedrive, wire.RedriveStatus, "queue target", every_name="needs a target")
CANCEL_REDRIVE = _change(wire.CancelRedrive, wire.RedriveStatus, "queue", _SAFE)
LIST_QUEUES = _lookup(wire.ListQueues, wire.QueueList)
LIST_QUEUE_SUMMARIES = _lookup(wire.ListQueueSummaries, wire.QueueSummaries, cost=Cost.SLICED)
GET_QUEUE_ATTRIBUTES = _lookup(wire.GetQueueAttributes, wire.QueueInfo, "queue")
PREVIEW_REWIND = _lookup(wire.PreviewRewind, wire.RewindPreview, "queue", wait=Wait.PAGES)
LIST_DEAD_LETTER_SOURCES = _lookup(wire.ListDeadLetterSources, wire.QueueList, "queue")
GET_REDRIVE = _lookup(wire.GetRedrive, wire.RedriveStatus, "queue")

# Topics and subscriptions

CREATE_TOPIC = _change(wire.CreateTopic, wire.TopicInfo, "topic")
ENSURE_TOPIC = _change(wire.EnsureTopic, wire.TopicInfo, "topic", _SAFE)
SET_TOPIC_ATTRIBUTES = _change(wire.SetTopicAttributes, wire.TopicInfo, "topic", _SAFE)
DELETE_TOPIC = _change(wire.DeleteTopic, wire.Done, "topic")
SUBSCRIBE = _change(wire.Subscribe, wire.SubscriptionInfo, "topic attributes.endpoint")
ENSURE_SUBSCRIPTION = _change(wire.EnsureSubscription, wire.SubscriptionInfo, "topic attributes.endpoint", _SAFE)
SET_SUBSCRIPTION_ATTRIBUTES = _change(
    wire.SetSubscriptionAttributes, wire.SubscriptionInfo, "topic attributes.endpoint", _SAFE
)
UNSUBSCRIBE = _change(wire.Unsubscribe, wire.Done, "topic")
# A repeat of these would count, retry or drop messages that came in between.
RETRY_DELIVERIES = _change(wire.RetryDeliveries, wire.DeliveriesDone, "topic")
DROP_DELIVERIES = _change(wire.DropDeliveries, wire.DeliveriesDone, "topic")
RETRY_DELIVERY = _change(wire.RetryDelivery, wire.DeliveriesDone, "topic", wait=Wait.PAGES)
DROP_DELIVERY = _change(wire.DropDelivery, wire.DeliveriesDone, "topic", wait=Wait.PAGES)
ROTATE_SECRET = _change(wire.RotateSecret, wire.SubscriptionSecret, "topic")
LIST_TOPICS = _lookup(wire.ListTopics, wire.TopicList)
GET_TOPIC_ATTRIBUTES = _lookup(wire.GetTopicAttributes, wire.TopicInfo, "topic")
LIST_SUBSCRIPTIONS = _lookup(wire.ListSubscriptions, wire.SubscriptionList, "topic")
LIST_QUEUE_SUBSCRIPTIONS = _lookup(wire.ListQueueSubscriptions, wire.QueueSubscriptions, "queue")
GET_SUBSCRIPTION = _lookup(wire.GetSubscription, wire.SubscriptionInfo, "topic")
PEEK_DELIVERIES = _lookup(wire.PeekDeliveries, wire.DeliveriesPeeked, "topic", wait=Wait.PAGES)
GET_MESSAGE_DELIVERIES = _lookup(wire.GetMessageDeliveries, wire.MessageDeliveries, "topic", wait=Wait.PAGES)
MATCH_SUBSCRIPTIONS = _lookup(wire.MatchSubscriptions, wire.SubscriptionsMatched, "topic", cost=Cost.SLICED)

# Schedules

CREATE_SCHEDULE = _change(wire.CreateSchedule, wire.ScheduleInfo, "schedule attributes.queue")
ENSURE_SCHEDULE = _change(wire.EnsureSchedule, wire.ScheduleInfo, "schedule attributes.queue", _SAFE)
SET_SCHEDULE = _change(wire.SetSchedule, wire.ScheduleInfo, "schedule attributes.queue", _SAFE)
DELETE_SCHEDULE = _change(wire.DeleteSchedule, wire.Done, "schedule")
LIST_SCHEDULES = _lookup(wire.ListSchedules, wire.ScheduleList)
GET_SCHEDULE = _lookup(wire.GetSchedule, wire.ScheduleInfo, "schedule")

# Accounts and keys

CREATE_ACCOUNT = _change(wire.CreateAccount, wire.KeyList, role=Role.ADMIN)
DELETE_ACCOUNT = _change(wire.DeleteAccount, wire.Done, role=Role.ADMIN)
CREATE_KEY = _change(wire.CreateKey, wire.KeyList, role=Role.ADMIN)
CREATE_ROLE_KEY = _change(wire.CreateRoleKey, wire.KeyList, role=Role.ADMIN)
IMPORT_KEY = _change(wire.ImportKey, wire.KeyList, repeat=_SAFE, role=Role.ADMIN)
SET_KEY_ENABLED = _change(wire.SetKeyEnabled, wire.Done, repeat=_SAFE, role=Role.ADMIN)
SET_KEY_ROLES = _change(wire.SetKeyRoles, wire.Done, repeat=_SAFE, role=Role.ADMIN)
DELETE_KEY = _change(wire.DeleteKey, wire.Done, role=Role.ADMIN)
LIST_ACCOUNTS = _lookup(wire.ListAccounts, wire.AccountList, role=Role.ADMIN)
LIST_ALL_QUEUES = _lookup(wire.ListAllQueues, wire.AllQueues, role=Role.ADMIN)
LIST_KEYS = _lookup(wire.ListKeys, wire.KeyList, role=Role.ADMIN)
GET_KEY_SECRET = _lookup(wire.GetKeySecret, wire.KeySecret, role=Role.GATEWAY)
WATCH_KEYS = _lookup(wire.WatchKeys, wire.Done, role=Role.GATEWAY)
GET_OWN_KEY = _lookup(wire.GetOwnKey, wire.OwnKey, role=None, needs_storage=False)

# The server

GET_SERVER_STATUS = _lookup(wire.GetServerStatus, wire.ServerStatus, role=None, needs_storage=False)
LOCATE = _lookup(wire.Locate, wire.Located, "name", role=None)
# Readers of the log seal every few seconds, and each entry of the audit trail would be a row to seal.
SEAL_SEGMENTS = _change(wire.SealSegments, wire.SegmentsSealed, repeat=Repeat.READ, is_in_trail=False)
LIST_SEGMENTS = _lookup(
    wire.ListSegments, wire.SegmentList, cost=Cost.SLICED, every_name="shows queues and topics of all accounts"
)
# A copy is of all accounts, and a copy each minute would push the entries of people out of the trail.
PIN_LOG = _change(wire.PinLog, wire.LogPinned, repeat=Repeat.READ, is_in_trail=False, every_name=_COPIES_ALL)
LIST_PINNED_SEGMENTS = _lookup(wire.ListPinnedSegments, wire.PinnedSegments, role=Role.MANAGE, every_name=_COPIES_ALL)
RELEASE_PIN = _change(wire.ReleasePin, wire.Done, repeat=_SAFE, is_in_trail=False, every_name=_COPIES_ALL)
SET_STANDING_PIN = _change(
    wire.SetStandingPin, wire.StandingPinSet, repeat=_SAFE, is_in_trail=False, every_name=_COPIES_ALL
)
DELETE_STANDING_PIN = _change(wire.DeleteStandingPin, wire.Done, every_name=_COPIES_ALL)
LIST_AUDIT_ENTRIES = _lookup(
    *(wire.ListAuditEntries, wire.AuditEntries),
    role=Role.MANAGE,
    cost=Cost.SLICED,
    every_name="shows the entries of all names",
)
LIST_CONNECTIONS = _lookup(
    wire.ListConnections, wire.ConnectionList, role=Role.MANAGE, cost=Cost.SLICED, needs_storage=False
)
LIST_WAITING_RECEIVES = _lookup(
    wire.ListWaitingReceives, wire.WaitingReceiveList, role=Role.MANAGE, cost=Cost.SLICED, needs_storage=False
)
LIST_CONSUMERS = _lookup(wire.ListConsumers, wire.ConsumerList, role=Role.MANAGE, cost=Cost.SLICED)
GET_SETTINGS = _lookup(
    *(wire.GetSettings, wire.SettingList),
    role=Role.MANAGE,
    every_name="shows the whole server",
    needs_storage=False,
)
GET_METRICS = _lookup(wire.GetMetrics, wire.Metrics, cost=Cost.SLICED, every_name="adds up the figures of all names")
GET_QUEUE_METRICS = _lookup(wire.GetQueueMetrics, wire.QueueMetricsPage, cost=Cost.SLICED)
GET_TOPIC_METRICS = _lookup(wire.GetTopicMetrics, wire.TopicMetricsPage, cost=Cost.SLICED)
GET_TOP_METRICS = _lookup(
    wire.GetTopMetrics, wire.TopMetrics, cost=Cost.SLICED, every_name="adds up the figures of all names"
)


OPERATIONS: Final[Mapping[type[wire.Request], Operation[..., Any]]] = {
    operation.request: operation
    for operation in cast("list[Operation[..., Any]]", list(globals().values()))
    if isinstance(operation, Operation)  # pyright: ignore[reportUnnecessaryIsInstance]
}
"""Every operation, by the type of its request."""


def requests_of(fits: Callable[[Operation[..., Any]], bool]) -> frozenset[type[wire.Request]]:
    """Return the requests of the operations that fit."""
    return frozenset(request for request, operation in OPERATIONS.items() if fits(operation))
