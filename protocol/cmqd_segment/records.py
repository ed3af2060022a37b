"""The facts of the log: one frozen Struct per thing that can happen to a queue or to the broker's numbers.

Rules: a record says what *is* now, never what to decide; replaying it needs no clock and no random number.
A record is one msgpack array that starts with its tag; fields are only ever appended, with a default, so that an
older log can still be read. Times are broker time: milliseconds since the Unix epoch that never step (``ClockOffset``
tells how far the wall clock is off).

Positions number the messages of one queue densely from 0; leases number the receives of the whole broker. Neither
is used twice. Sets of them travel as *runs*: a flat list ``[first, count, gap, count, gap, count ...]`` in which each
gap is the distance from the end of the run before it, so a contiguous batch of any size costs two small integers.

This module is shared by the server's core and by readers of the log; it imports msgspec and the shared types alone.
"""

from collections.abc import Iterable, Iterator
from typing import NewType, TypeAlias

import msgspec

from cmqd_types.messages import CopyOf, Headers, Labels, Origin

Lsn = NewType("Lsn", int)
"""Number of a row of the log, contiguous from 1 over all segments."""
QueueId = NewType("QueueId", int)
MessageId = NewType("MessageId", int)
Position = NewType("Position", int)
"""Place of a message in its queue, dense from 0, in order of sending."""
Lease = NewType("Lease", int)
"""Number of one receive of one message, broker-wide."""

Runs: TypeAlias = list[int]


def pack_runs(numbers: Iterable[int]) -> Runs:
    """Runs of ascending, distinct numbers."""
    runs: Runs = []
    end = 0
    for number in numbers:
        if runs and number == end:
            runs[-1] += 1
        else:
            runs.append(number - end)
            runs.append(1)
        end = number + 1
    return runs


def runs_of(numbers: list[int]) -> Runs:
    """Runs of distinct numbers in any order, at least one; quick for an ascending batch without gaps."""
    count = len(numbers)
    first = numbers[0]
    if count == 1:
        return [first, 1]
    if numbers[-1] - first == count - 1 and numbers == list(range(first, first + count)):
        return [first, count]
    return pack_runs(sorted(numbers))


def ranges(runs: Runs) -> Iterable[tuple[int, int]]:
    """The half-open ranges ``(start, stop)`` that runs stand for."""
    if len(runs) == 2:
        return ((runs[0], runs[0] + runs[1]),)
    return _ranges(runs)


def _ranges(runs: Runs) -> Iterator[tuple[int, int]]:
    start = 0
    pairs = iter(runs)
    for gap in pairs:
        start += gap
        stop = start + next(pairs)
        yield start, stop
        start = stop


def unpack_runs(runs: Runs) -> list[int]:
    """The numbers that runs stand for, ascending."""
    if len(runs) == 2:
        return list(range(runs[0], runs[0] + runs[1]))
    return [number for start, stop in ranges(runs) for number in range(start, stop)]


def count_runs(runs: Runs) -> int:
    """How many numbers runs stand for."""
    return sum(runs[1::2])


def last_of(runs: Runs) -> int:
    """The highest number that runs stand for, -1 if none."""
    return sum(runs) - 1


class QueueAttributes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """What a queue's owner can set; the defaults are those of a new queue (limits in ``cmqd.core.limits``).

    Written as a map, so that later versions can add fields.
    """

    polling_wait_ms: int = 200
    visibility_timeout_ms: int = 30_000
    max_message_bytes: int = 65_536
    retention_ms: int = 345_600_000
    delay_ms: int = 0
    max_backlog: int = 100_000_000
    max_delayed: int = 1_000_000
    rewind_ms: int = 0
    """How long deleted messages can be brought back, counted from their sending; 0 = not at all."""
    dead_letter_queue: str = ""
    """Name of a queue of the same account; empty = none."""
    dead_letter_max_receives: int = 0
    """Policy 0: moved when the lease of so many receives ends; 0 = not by this policy."""
    dead_letter_after_ms: int = 0
    """Policy 1: moved when it was active for so long; 0 = not by this policy."""
    transactional: bool = False
    """Set at creation only."""
    first_check_ms: int = 5_000
    max_checks: int = 15


class TopicAttributes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """What is chosen for a topic; the defaults are those of a new one. Written as a map."""

    max_message_bytes: int = 65_536
    filter_type: str = "tag"
    """``tag`` or ``routing``; set at creation only."""


class SubscriptionAttributes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """What is chosen for a subscription. Written as a map."""

    protocol: str = "queue"
    """``queue``, ``http`` or ``https``; set at creation only, as is ``endpoint``."""
    endpoint: str = ""
    """Name of a queue of the same account, or a URL."""
    strategy: str = "exponential_decay"
    """How a failed delivery is retried: ``exponential_decay`` or ``backoff``."""
    content_format: str = "json"
    """What is posted to a URL: ``json`` or ``simplified`` (the bare body)."""
    filter_tags: list[str] = []
    """Of a subscription to a tag topic; none = every message."""
    binding_keys: list[str] = []
    """Of a subscription to a routing topic."""
    paused: bool = False
    """Nothing is delivered; what is published meanwhile waits."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact; see the module."""


class NumbersReserved(Record, frozen=True, tag=1):
    """Message ids, leases and queue ids below these may be in use; recovery starts from these."""

    message_id_until: int
    lease_until: int
    queue_id_until: int


class QueueCreated(Record, frozen=True, tag=2):
    """A queue exists from here on."""

    queue_id: int
    account: str
    name: str
    attributes: QueueAttributes
    created_ms: int


class QueueAttributesSet(Record, frozen=True, tag=3):
    """A queue has these attributes from here on."""

    queue_id: int
    attributes: QueueAttributes
    modified_ms: int
    rewind_floor: int = -1
    """No deleted message below this position can be rewound from here on; -1 = an older version wrote the record, and
    the rule of ``cmqd_fold.rewind_floor`` gives the floor.
    """


class QueueDeleted(Record, frozen=True, tag=4):
    """A queue is gone, with its messages."""

    queue_id: int


class QueueCleared(Record, frozen=True, tag=5):
    """Every message below ``floor``, in whatever state, is gone (purged)."""

    queue_id: int
    floor: int


class MessagesExpired(Record, frozen=True, tag=6):
    """Every message below ``floor``, in whatever state, is gone (retention)."""

    queue_id: int
    floor: int


class QueueRewound(Record, frozen=True, tag=7):
    """The rewindable messages from ``from_position`` up to ``stop_position`` are active again, never received."""

    queue_id: int
    from_position: int
    stop_position: int
    rewound_ms: int
    rewind_floor: int = -1
    """As in ``QueueAttributesSet``. Messages below the floor are not brought back."""


class DeadLettersFrom(Record, frozen=True, tag=8):
    """A queue serves as dead-letter queue, and takes dead letters once nothing below ``floor`` is live; -1: no more."""

    queue_id: int
    floor: int


class RedriveStarted(Record, frozen=True, tag=9):
    """The messages of a dead-letter queue below ``stop_position`` go back: to ``target``, or where they came from."""

    queue_id: int
    target: str
    """A queue of the same account; empty = the origin of each."""
    max_per_second: int
    """0 = as fast as it goes."""
    stop_position: int
    started_ms: int


class RedriveEnded(Record, frozen=True, tag=10):
    """The redrive of a queue is over: ``done`` or ``cancelled``."""

    queue_id: int
    reason: str
    ended_ms: int
    missing_origins: dict[str, int] = {}
    """Messages that stayed because the queue they came from does not exist or takes none, by its name."""


class ClockOffset(Record, frozen=True, tag=11):
    """The wall clock differs from broker time, the time of all records, by so much from here on."""

    offset_ms: int
    """Wall clock less broker time, signed. 0 = less than a minute."""
    time_ms: int
    """Broker time."""
    stepped: bool = False
    """Broker time was set to the wall clock and may be lower than in the records before: no time that is known lies
    further in the future than an operation at ``time_ms`` could have put it.
    """


class MessagesSent(Record, frozen=True, tag=16):
    """A batch stored under contiguous positions and message ids; its bodies stand side by side in the row's data,
    after those of the ``MessagesSent`` records before it in the same row.
    """

    queue_id: int
    first_position: int
    first_message_id: int
    enqueue_ms: int
    sizes: list[int]
    """Bytes of each body."""
    headers: list[Headers | None] | None = None
    visible_ms: int | list[int] | None = None
    """When delayed messages become active (one for all, or one each; at most ``enqueue_ms`` = not delayed)."""
    session: int = 0
    """The producer session that numbered this send; 0 = none, or several sends (``numbered``)."""
    sequence: int = 0
    half: bool = False
    """They wait for their transactions to be decided; ``visible_ms`` is then when the first check is due."""
    origins: list[Origin | None] | None = None
    """Where moved messages stood before; a copy stands in the row in which its original went (``MessagesMoved``)."""
    dedup_ids: list[str | None] | None = None
    copies_of: list[CopyOf | None] | None = None
    """Of copies of published messages that could not be made when those were published, and of moved ones."""
    numbered: list[int] = []
    """Where several sends are one record: session, sequence, first message id and number of messages of each that was
    numbered, one after the other.
    """


class MessagesReceived(Record, frozen=True, tag=17):
    """Active messages went in flight; ``leases`` are ``first_lease ...`` in the order of ``positions``."""

    queue_id: int
    positions: Runs
    first_lease: int
    received_ms: int
    deadline_ms: int


class MessagesDeleted(Record, frozen=True, tag=18):
    """In-flight messages were deleted by whoever held these leases."""

    queue_id: int
    positions: Runs
    leases: Runs
    deleted_ms: int


class LeasesEnded(Record, frozen=True, tag=19):
    """The visibility timeout of these leases passed; their messages are active again."""

    queue_id: int
    leases: Runs


class MessagesReleased(Record, frozen=True, tag=20):
    """Their holder handed these messages back; they are active again. Not ``counted``: as if never received."""

    queue_id: int
    leases: Runs
    counted: bool


class VisibilityChanged(Record, frozen=True, tag=21):
    """These leases run until another time."""

    queue_id: int
    leases: Runs
    deadline_ms: int


class MessagesActivated(Record, frozen=True, tag=22):
    """The delay of these messages ended."""

    queue_id: int
    positions: Runs
    activated_ms: int = 0


class DelaysScheduled(Record, frozen=True, tag=23):
    """Messages beyond ``max_delayed`` got a place among the delayed; ``visible_ms`` in order of ``positions``."""

    queue_id: int
    positions: Runs
    visible_ms: list[int]


class MessagesMoved(Record, frozen=True, tag=24):
    """Messages left this queue for another (dead-lettered or redriven); their copies stand in the same row."""

    queue_id: int
    positions: Runs
    redriven: bool = False


class TransactionsEnded(Record, frozen=True, tag=25):
    """Half messages were decided. The committed ones stand in the same row as new messages that keep their ids."""

    queue_id: int
    positions: Runs
    committed: bool
    ended_ms: int


class TransactionsChecked(Record, frozen=True, tag=26):
    """A producer was asked what became of these half messages; each is due again at its ``next_check_ms``."""

    queue_id: int
    positions: Runs
    checked_ms: int
    next_check_ms: list[int]


class TransactionsUndecided(Record, frozen=True, tag=27):
    """A producer said that it does not know (yet) what is to become of these half messages."""

    queue_id: int
    positions: Runs
    answered_ms: int


class TopicCreated(Record, frozen=True, tag=40):
    """A topic exists from here on. Its id is from the same counter as those of queues: positions are by id."""

    topic_id: int
    account: str
    name: str
    attributes: TopicAttributes
    created_ms: int


class TopicAttributesSet(Record, frozen=True, tag=41):
    """A topic has these attributes from here on."""

    topic_id: int
    attributes: TopicAttributes
    modified_ms: int


class TopicDeleted(Record, frozen=True, tag=42):
    """A topic is gone; it had no subscriptions."""

    topic_id: int


class Subscribed(Record, frozen=True, tag=43):
    """A topic has a subscription more. Its id is from the counter of queue ids."""

    topic_id: int
    subscription_id: int
    name: str
    attributes: SubscriptionAttributes
    created_ms: int


class SubscriptionAttributesSet(Record, frozen=True, tag=44):
    """A subscription has these attributes from here on."""

    topic_id: int
    subscription_id: int
    attributes: SubscriptionAttributes
    modified_ms: int


class Unsubscribed(Record, frozen=True, tag=45):
    """A subscription is gone, with all that waited for it."""

    topic_id: int
    subscription_id: int


class MessagesPublished(Record, frozen=True, tag=54):
    """Messages of a topic, with their copies in queues: for each queue a range of positions and the set of messages
    that it takes. The bodies stand once in the row's data, where those of ``MessagesSent`` would; the topic and every
    queue of ``copies`` have them there.

    The record is ordered by queue because a publish of 256 messages to 500 queues has up to 128,000 copies, and a range
    of positions costs a queue's index as much as a single position.

    A copy is a message of its queue with an id of its own. The copies are numbered from ``first_copy_id``, queue by
    queue in the order of ``copies``, and within a queue in the order of the messages; positions are given out in the
    same order from the queue's first position.
    """

    topic_id: int
    first_position: int
    """In the topic: dense over the messages that matched a subscription."""
    first_message_id: int
    enqueue_ms: int
    sizes: list[int]
    copies: list[int] = []
    """Queue id and first position of each queue that takes any of the messages, one after the other."""
    first_copy_id: int = 0
    waiting: list[int] = []
    """Ids of the subscriptions for which messages wait to be delivered."""
    headers: list[Headers | None] | None = None
    labels: list[Labels] | None = None
    """Tags or routing key: one entry for all, or one for each message; None = no tags."""
    numbered: list[int] = []
    """Of each publish that its producer numbered and whose first record this is: session, sequence, first message id
    and number of messages of the whole batch, those that matched no subscription included; one after the other.
    """
    dedup_ids: list[str | None] | None = None
    topic: str = ""
    """Name of the topic. With ``subscriptions`` it tells of each copy what it is a copy of, whatever became of them."""
    subscriptions: list[str] = []
    """Names of the subscriptions of ``copies``: one for each queue."""
    message_sets: list[bytes] = []
    """The different sets of messages. Bit ``m % 8`` of byte ``m // 8`` stands for message ``m``; zero bytes at the end
    are left out.
    """
    taken: list[int] = []
    """For each queue of ``copies``, then for each subscription of ``waiting``, which of ``message_sets`` it takes;
    empty = every message goes to all of them.
    """
    message_ids: Runs = []
    """The ids of the messages, counted from ``first_message_id``; empty = they are dense. A message that matched no
    subscription has an id too, and stands in no record.
    """


class MessagesPublishedAlike(MessagesPublished, frozen=True, tag=48):
    """The same as versions of format 1 wrote it: every message goes to every queue of ``copies``, ids are dense, and
    the last three fields are absent. It is read for ever and no longer written.
    """


class MessagesDelivered(Record, frozen=True, tag=49):
    """A subscriber has these messages of the topic. Of a queue that takes copies late, those stand in the same row."""

    topic_id: int
    subscription_id: int
    positions: Runs
    delivered_ms: int


class DeliveriesFailed(Record, frozen=True, tag=50):
    """Attempts failed; each message is tried again at its ``next_ms``."""

    topic_id: int
    subscription_id: int
    positions: Runs
    attempts: list[int]
    """How many attempts of each message have failed by now."""
    next_ms: list[int]
    """0 = its retries are used up, and it stays until its life ends."""
    error: str
    failed_ms: int


class DeliveriesDropped(Record, frozen=True, tag=51):
    """A subscriber does not get these messages of the topic: ``retries`` used up, or ``damaged`` in the log."""

    topic_id: int
    subscription_id: int
    positions: Runs
    reason: str
    dropped_ms: int


class DeliveriesCleared(Record, frozen=True, tag=53):
    """An operator said that a subscriber does not get any of the topic's messages below ``floor``."""

    topic_id: int
    subscription_id: int
    floor: int
    cleared_ms: int


class TopicMessagesExpired(Record, frozen=True, tag=52):
    """Every message of a topic below ``floor`` is gone: its life is over, whoever waits for it."""

    topic_id: int
    floor: int


TopicRecord: TypeAlias = (
    TopicCreated
    | TopicAttributesSet
    | TopicDeleted
    | Subscribed
    | SubscriptionAttributesSet
    | Unsubscribed
    | MessagesPublished
    | MessagesPublishedAlike
    | MessagesDelivered
    | DeliveriesFailed
    | DeliveriesDropped
    | DeliveriesCleared
    | TopicMessagesExpired
)
"""The facts of topics; each names its ``topic_id``."""

AnyRecord: TypeAlias = (
    NumbersReserved
    | QueueCreated
    | QueueAttributesSet
    | QueueDeleted
    | QueueCleared
    | MessagesExpired
    | QueueRewound
    | DeadLettersFrom
    | RedriveStarted
    | RedriveEnded
    | ClockOffset
    | MessagesSent
    | MessagesReceived
    | MessagesDeleted
    | LeasesEnded
    | MessagesReleased
    | VisibilityChanged
    | MessagesActivated
    | DelaysScheduled
    | MessagesMoved
    | TransactionsEnded
    | TransactionsChecked
    | TransactionsUndecided
    | TopicCreated
    | TopicAttributesSet
    | TopicDeleted
    | Subscribed
    | SubscriptionAttributesSet
    | Unsubscribed
    | MessagesPublished
    | MessagesPublishedAlike
    | MessagesDelivered
    | DeliveriesFailed
    | DeliveriesDropped
    | DeliveriesCleared
    | TopicMessagesExpired
)


class StoredMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as the log keeps it: what a page-in brings back."""

    position: int
    message_id: int
    enqueue_ms: int
    body: bytes
    headers: Headers | None = None
    visible_ms: int = 0
    """When its delay ends or ended; 0 = sent without delay. Of a half message: when its first check is due."""
    origin: Origin | None = None
    labels: Labels | None = None
    """Tags or routing key, of a message of a topic; those of a copy in a queue are in ``copy_of``."""
    copy_of: CopyOf | None = None
    """Of a copy of a published message in a queue."""
