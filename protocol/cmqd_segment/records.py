"""The facts of the log: a frozen Struct for each kind of change to a queue, a topic or the broker's numbers.

A record states the resulting fact and leaves no decision to its reader: replay needs no clock and no random number. A
record is one msgpack array that starts with its tag. Fields are only appended, with a default, so that every version
reads older logs. Times are broker time: milliseconds since the Unix epoch that never step (``ClockOffset`` records the
distance to the wall clock).

Positions number the messages of a queue densely from 0. Leases number the receives of the whole broker. No number is
used twice. Sets of numbers are written as *runs*: a flat list ``[first, count, gap, count, gap, count ...]`` in which
each gap is the distance from the end of the run before. A contiguous batch of any size takes two small integers.

The last field of a record that carries out requests of clients is ``actors``, the clients by the numbers of their
``ActorSeen``; ``cmqd_segment.actor_runs`` has its form.

The server's core and the readers of the log share this module, so it imports msgspec and the shared types alone.
"""

from collections.abc import Iterable, Iterator
from typing import NewType, TypeAlias

import msgspec

from cmqd_types.actors import Actor
from cmqd_types.attributes import QueueAttributes, SubscriptionAttributes, TopicAttributes
from cmqd_types.audit import AuditEntry
from cmqd_types.messages import CopyOf, Headers, Labels, Origin

Lsn = NewType("Lsn", int)
"""Number of a row of the log, contiguous from 1 over all segments."""

Runs: TypeAlias = list[int]


def pack_runs(numbers: Iterable[int]) -> Runs:
    """Pack ascending, distinct numbers into runs."""
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
    """Pack distinct numbers in any order, at least one, into runs; fast for an ascending batch without gaps."""
    count = len(numbers)
    first = numbers[0]
    if count == 1:
        return [first, 1]
    if numbers[-1] - first == count - 1 and numbers == list(range(first, first + count)):
        return [first, count]
    return pack_runs(sorted(numbers))


def ranges(runs: Runs) -> Iterable[tuple[int, int]]:
    """Return the half-open ranges ``(start, stop)`` that runs stand for."""
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
    """Return the numbers that runs stand for, ascending."""
    if len(runs) == 2:
        return list(range(runs[0], runs[0] + runs[1]))
    return [number for start, stop in ranges(runs) for number in range(start, stop)]


def count_runs(runs: Runs) -> int:
    """Count the numbers in runs."""
    return sum(runs[1::2])


def last_of(runs: Runs) -> int:
    """Return the highest number that runs stand for, -1 if none."""
    return sum(runs) - 1


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact; see the module."""


class NumbersReserved(Record, frozen=True, tag=1):
    """Message ids, leases and queue ids below these may be in use; recovery starts from these."""

    message_id_until: int
    lease_until: int
    queue_id_until: int
    actor_until: int = 0
    """Numbers of actors below may be in use. Written after a loss of rows alone: the log has the record of any other
    number in use."""


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


UNUSED = "unused"
"""Reason of a ``QueueDeleted``: the queue was not used for the time ``auto_delete_after_ms``."""


class QueueDeleted(Record, frozen=True, tag=4):
    """A queue is gone, with its messages."""

    queue_id: int
    reason: str = ""
    """Empty = a request of the owner; ``unused`` = see ``UNUSED``."""


class QueueCleared(Record, frozen=True, tag=5):
    """Every message below ``floor``, in any state, is gone (purged)."""

    queue_id: int
    floor: int


class MessagesExpired(Record, frozen=True, tag=6):
    """Every message below ``floor``, in any state, is gone (retention)."""

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
    """A queue serves as dead-letter queue and accepts dead letters once no message below ``floor`` is live; -1: no
    more.
    """

    queue_id: int
    floor: int


class RedriveStarted(Record, frozen=True, tag=9):
    """The messages of a dead-letter queue below ``stop_position`` move back: to ``target``, or to their origins."""

    queue_id: int
    target: str
    """A queue of the same account; empty = the origin of each message."""
    max_per_second: int
    """0 = without a limit."""
    stop_position: int
    started_ms: int


class RedriveEnded(Record, frozen=True, tag=10):
    """The redrive of a queue is over: ``done`` or ``cancelled``."""

    queue_id: int
    reason: str
    ended_ms: int
    missing_origins: dict[str, int] = {}
    """Messages that stayed because their origin queue does not exist or is full, by the queue's name."""


class ClockOffset(Record, frozen=True, tag=11):
    """From here on the wall clock differs from broker time, the time of all records, by this offset."""

    offset_ms: int
    """Wall clock less broker time, signed. 0 = less than a minute."""
    time_ms: int
    """Broker time."""
    stepped: bool = False
    """Broker time was set to the wall clock and may be lower than in earlier records: no known time lies further in the
    future than an operation at ``time_ms`` could have put it."""
    max_delay_ms: int = 3_600_000
    """The longest delay that a send could have at that time."""


class LogRestored(Record, frozen=True, tag=12):
    """The log was restored from a backup, and this record is in its first row behind the restored rows."""

    restored_ms: int
    """Broker time, which goes on from the last restored row."""
    aged_ms: int
    """Age that sessions and dedup ids gain: the time of the wall clock between the last restored row and the restore.
    Their lives ended meanwhile, although broker time stood still."""


class ActorSeen(Record, frozen=True, tag=13):
    """A client has a number, by which later records name it. The record is in the append of the client's first change,
    in front of the record that names it. A client that changed no message for a long time may get a new number.
    """

    number: int
    """From 1; 0 stands for a client that is not known."""
    actor: Actor


class TotalsReset(Record, frozen=True, tag=68):
    """All totals of the broker begin at 0 from here on: rows were lost, and the totals would be lower than before the
    loss. A reader of totals takes 0 for a new beginning, and any other lower value for a count from 0 to that value.
    """

    reset_ms: int


class Administered(Record, frozen=True, tag=69):
    """A key made an administrative operation. Where the operation changed facts of the log, their records are in the
    same append.
    """

    entry: AuditEntry


class MessagesSent(Record, frozen=True, tag=16):
    """A batch stored under contiguous positions and message ids. Its bodies follow the bodies of the earlier
    ``MessagesSent`` records in the row's data.
    """

    queue_id: int
    first_position: int
    first_message_id: int
    enqueue_ms: int
    sizes: list[int]
    """Size of each body in bytes."""
    headers: list[Headers | None] | None = None
    visible_ms: int | list[int] | None = None
    """Times at which delayed messages become active (one for all, or a list; at most ``enqueue_ms`` = not delayed)."""
    session: int = 0
    """The producer session that numbered this send; 0 = none, or several sends (``numbered``)."""
    sequence: int = 0
    half: bool = False
    """Half messages, which wait for their decisions; ``visible_ms`` is then the time of the first check."""
    origins: list[Origin | None] | None = None
    """Origins of moved messages. The original leaves its queue in the same row (``MessagesMoved``, or
    ``MessagesDeadLettered``)."""
    dedup_ids: list[str | None] | None = None
    copies_of: list[CopyOf | None] | None = None
    """Originals of copies: of published messages that could not be copied at their publish, and of moved copies."""
    numbered: list[int] = []
    """For a record that joins several sends: session, sequence, first message id and number of messages of each
    numbered send, in a flat list."""
    actors: Runs = []
    """Clients that sent the messages, in their order; empty for messages of the broker itself: moves, late copies,
    schedules."""


class MessagesReceived(Record, frozen=True, tag=17):
    """Active messages went in flight; ``leases`` are ``first_lease ...`` in the order of ``positions``."""

    queue_id: int
    positions: Runs
    first_lease: int
    received_ms: int
    deadline_ms: int
    actors: Runs = []
    """Clients that received the messages, in the order of ``positions``."""


class MessagesDeleted(Record, frozen=True, tag=18):
    """In-flight messages were deleted by the holders of these leases."""

    queue_id: int
    positions: Runs
    leases: Runs
    deleted_ms: int
    actors: Runs = []
    """Clients that deleted the messages, in the order of ``positions``."""


class LeasesEnded(Record, frozen=True, tag=19):
    """The visibility timeout of these leases passed; their messages are active again."""

    queue_id: int
    leases: Runs


class MessagesReleased(Record, frozen=True, tag=20):
    """The holder of these leases returned the messages, which are active again. Not ``counted``: as never received."""

    queue_id: int
    leases: Runs
    counted: bool
    actors: Runs = []
    """Clients that returned the messages, in the order of ``leases``; empty if the broker returned them, because the
    client disconnected before the messages were sent to it."""


class VisibilityChanged(Record, frozen=True, tag=21):
    """Leases end at a new time."""

    queue_id: int
    leases: Runs
    deadline_ms: int
    actors: Runs = []
    """Clients that changed the leases, in the order of ``leases``."""


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
    """Messages left this queue for another queue (dead-lettered or redriven); their copies are in the same row."""

    queue_id: int
    positions: Runs
    redriven: bool = False


class MessagesDeadLettered(Record, frozen=True, tag=28):
    """The holders of these leases moved the messages to the dead-letter queue; their copies are in the same row. Never
    rewindable.
    """

    queue_id: int
    positions: Runs
    leases: Runs
    moved_ms: int
    actors: Runs = []
    """Clients that moved the messages, in the order of ``positions``."""


class TransactionsEnded(Record, frozen=True, tag=25):
    """Half messages were decided. Committed messages are in the same row as new messages that keep their ids."""

    queue_id: int
    positions: Runs
    committed: bool
    ended_ms: int
    actors: Runs = []
    """Clients that decided, in the order of ``positions``."""


class TransactionsChecked(Record, frozen=True, tag=26):
    """A producer was asked for the decisions of these half messages; the next check of each is at its
    ``next_check_ms``.
    """

    queue_id: int
    positions: Runs
    checked_ms: int
    next_check_ms: list[int]


class TransactionsUndecided(Record, frozen=True, tag=27):
    """A producer answered that these half messages are not decided yet."""

    queue_id: int
    positions: Runs
    answered_ms: int
    actors: Runs = []
    """Clients that answered, in the order of ``positions``."""


class TopicCreated(Record, frozen=True, tag=40):
    """A topic exists from here on. Topics and queues share a counter of ids, because positions are found by id."""

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
    """A topic without subscriptions was deleted."""

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
    """A subscription was deleted, with its waiting messages."""

    topic_id: int
    subscription_id: int


class MessagesPublished(Record, frozen=True, tag=54):
    """Messages of a topic, with their copies in queues: for each queue a range of positions and a set of messages.

    The bodies are once in the row's data, in the order of the records. The topic and every queue of ``copies`` read
    them there.

    The record is ordered by queue because a publish of 256 messages to 500 queues has up to 128,000 copies, and a range
    of positions costs a queue's index as much as a single position.

    A copy is a message of its queue with its own id. Copies are numbered from ``first_copy_id``, queue by queue in the
    order of ``copies``, and within a queue in the order of the messages. Positions follow the same order from the
    queue's first position.
    """

    topic_id: int
    first_position: int
    """In the topic: dense over the messages that matched a subscription."""
    first_message_id: int
    enqueue_ms: int
    sizes: list[int]
    copies: list[int] = []
    """Queue id and first position of each queue with copies, in a flat list."""
    first_copy_id: int = 0
    waiting: list[int] = []
    """Ids of the subscriptions with messages that wait for delivery."""
    headers: list[Headers | None] | None = None
    labels: list[Labels] | None = None
    """Tags or routing key: a single entry for all messages, or an entry for every message; None = no tags."""
    numbered: list[int] = []
    """For each numbered publish that begins in this record: session, sequence, first message id and number of messages
    of the whole batch, with the messages that matched no subscription; in a flat list."""
    dedup_ids: list[str | None] | None = None
    topic: str = ""
    """Name of the topic. With ``subscriptions`` it gives the source of each copy, also after topic and subscription are
    deleted."""
    subscriptions: list[str] = []
    """Names of the subscriptions of ``copies``: a name for every queue."""
    message_sets: list[bytes] = []
    """The different sets of messages. Bit ``m % 8`` of byte ``m // 8`` stands for message ``m``; zero bytes at the end
    are left out.
    """
    taken: list[int] = []
    """For each queue of ``copies``, then for each subscription of ``waiting``: the index of its set in
    ``message_sets``. Empty = every message goes to all of them."""
    message_ids: Runs = []
    """Ids of the messages, counted from ``first_message_id``; empty = dense. A message that matched no subscription has
    an id too, and is in no record."""
    actors: Runs = []
    """Clients that published the messages, in their order."""


class MessagesPublishedAlike(MessagesPublished, frozen=True, tag=48):
    """The publish record of format 1: every message goes to every queue of ``copies``, ids are dense, and the last
    three fields are absent. Read in every version, written in none.
    """


class MessagesDelivered(Record, frozen=True, tag=49):
    """A subscriber has these messages of the topic. Late copies for a queue are in the same row."""

    topic_id: int
    subscription_id: int
    positions: Runs
    delivered_ms: int


class DeliveriesFailed(Record, frozen=True, tag=50):
    """Attempts failed; each message is retried at its ``next_ms``."""

    topic_id: int
    subscription_id: int
    positions: Runs
    attempts: list[int]
    """Number of failed attempts of each message."""
    next_ms: list[int]
    """0 = no retries left; the message stays until its retention ends."""
    error: str
    failed_ms: int


class DeliveriesDropped(Record, frozen=True, tag=51):
    """A subscriber does not get these messages of the topic: ``retries`` used up, ``damaged`` in the log, or dropped by
    an ``operator``."""

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
    """Every message of a topic below ``floor`` is gone at the end of its retention, delivered or not."""

    topic_id: int
    floor: int


class ScheduleSet(Record, frozen=True, tag=60):
    """A schedule exists from here on, or has these attributes from here on. Its id is from the counter of queue ids."""

    schedule_id: int
    account: str
    name: str
    queue: str
    """Name of the queue; the queue may be deleted, and another queue may take the name."""
    cron: str
    zone: str
    paused: bool
    body: bytes
    headers: Headers | None
    set_ms: int
    next_ms: int
    """The next time at which the schedule fires; 0 = none. Computed before the record, so that a replay needs neither
    a calendar nor the rules of time zones."""


class ScheduleDeleted(Record, frozen=True, tag=61):
    """A schedule is gone."""

    schedule_id: int


class ScheduleFired(Record, frozen=True, tag=62):
    """A schedule came due. The ``MessagesSent`` of its message is in the same row."""

    schedule_id: int
    due_ms: int
    """The planned time; earlier planned times that passed meanwhile are left out."""
    fired_ms: int
    next_ms: int
    """The next time; 0 = none."""
    message_id: int = 0
    """0 = missed: the queue could not take the message."""
    error: str = ""
    """Reason of a miss, or reason why there is no next time."""


class SchedulePlanned(Record, frozen=True, tag=63):
    """A schedule that did not fire has another next time: broker time stepped back, or its time zone is known again."""

    schedule_id: int
    planned_ms: int
    next_ms: int


ScheduleRecord: TypeAlias = ScheduleSet | ScheduleDeleted | ScheduleFired | SchedulePlanned
"""The facts of schedules, each with a ``schedule_id``."""

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
"""The facts of topics, each with a ``topic_id``."""

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
    | LogRestored
    | ActorSeen
    | TotalsReset
    | Administered
    | MessagesSent
    | MessagesReceived
    | MessagesDeleted
    | LeasesEnded
    | MessagesReleased
    | VisibilityChanged
    | MessagesActivated
    | DelaysScheduled
    | MessagesMoved
    | MessagesDeadLettered
    | TransactionsEnded
    | TransactionsChecked
    | TransactionsUndecided
    | TopicRecord
    | ScheduleRecord
)


class PublishedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of a topic without its body: the subscriptions that the message was published for."""

    position: int
    message_id: int
    enqueue_ms: int
    size: int
    """Bytes of the body."""
    labels: Labels | None
    copies: list[tuple[str, int, int]]
    """(name of the subscription, id of the queue, id of the copy) of each copy that the publish stored in a queue."""
    waiting: list[int]
    """Ids of the other subscriptions: they waited for a delivery when the publish was answered."""


class StoredMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stored message, as a page returns it."""

    position: int
    message_id: int
    enqueue_ms: int
    body: bytes
    headers: Headers | None = None
    visible_ms: int = 0
    """End of its delay; 0 = sent without delay. Of a half message: time of the first check."""
    origin: Origin | None = None
    labels: Labels | None = None
    """Tags or routing key of a message of a topic; ``copy_of`` has them for a copy in a queue."""
    copy_of: CopyOf | None = None
    """Of a copy of a published message in a queue."""
