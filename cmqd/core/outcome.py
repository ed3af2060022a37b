"""Outcome: the result of an operation (reply, records, bodies, replies to waiting requests), and its parts."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from cmqd.core.domain_errors import DomainError
from cmqd_segment.records import AnyRecord, Runs, StoredMessage
from cmqd_types.messages import Headers, Labels, ReceivedMessage

T = TypeVar("T")


class _Waiting(Enum):
    WAITING = "waiting"


WAITING: Final = _Waiting.WAITING
"""Reply of an operation with an answer that comes later, through ``Outcome.woken``."""
Waiting = _Waiting


class PageRead(msgspec.Struct, frozen=True, gc=False):
    """A read of bodies from the log; answer with ``Broker.pages_read``."""

    read_id: int
    queue_id: int
    positions: Runs
    max_bytes: int


class PublishedRead(msgspec.Struct, frozen=True, gc=False):
    """A read of a published message without its body: the first that the log has at positions ``start .. stop-1`` of a
    topic. Answer with ``Broker.published_read``."""

    read_id: int
    topic_id: int
    start: int
    stop: int


class Woken(msgspec.Struct, frozen=True):
    """The answer to a waiting operation: its reply, or the error (a DomainError) that ended the wait."""

    waiter_id: int
    reply: Any


class Check(msgspec.Struct, frozen=True, gc=False):
    """A question to a producer about a half message. The check counts as sent with this outcome's records."""

    account: str
    queue: str
    message: StoredMessage
    age_ms: int
    attempt: int


class Push(msgspec.Struct, frozen=True, gc=False):
    """A post of a topic's message to a subscription's URL; answer with ``Broker.pushes_ended``.

    The push is under way from this outcome on. That is not a fact: a restart repeats the push.
    """

    account: str
    topic: str
    subscription: str
    subscription_id: int
    url: str
    content_format: str
    message: StoredMessage
    """With its position in the topic and its labels."""
    attempt: int
    """1 for the first."""


class PushResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a ``Push``."""

    subscription_id: int
    position: int
    started_ms: int
    error: str | None
    """None = delivered; else the reason of the failure, in a line."""


class UnusedQueue(msgspec.Struct, frozen=True, gc=False):
    """A queue that a tick deleted because it was not used."""

    account: str
    queue: str
    queue_id: int
    messages: int
    """Messages that went with it, rewindable messages too."""
    unused_ms: int
    """Time since its last use."""


class MissedFiring(msgspec.Struct, frozen=True, gc=False):
    """A schedule that came due in a tick while its queue could not take the message."""

    account: str
    schedule: str
    queue: str
    error: str


class BatchRequest(Protocol):
    """The bodies of a send. The requests of the wire protocol have the forms of the Protocols here."""

    @property
    def bodies(self) -> list[bytes]:
        """The batch."""
        ...

    @property
    def headers(self) -> list[Headers | None] | None:
        """An entry per body, or None."""
        ...

    @property
    def session(self) -> int:
        """The session of the producer; 0 = not numbered."""
        ...

    @property
    def sequence(self) -> int:
        """The sequence number in the session; 0 = not numbered."""
        ...

    @property
    def dedup_ids(self) -> list[str | None] | None:
        """An entry per body, or None."""
        ...

    @property
    def all_or_none(self) -> bool:
        """Refuse a batch with some remembered dedup ids and some new messages."""
        ...


class SendRequest(BatchRequest, Protocol):
    """A send of a batch of sends; see ``Broker.send_all``."""

    @property
    def delay_ms(self) -> int | list[int] | None:
        """A delay for all bodies, or a delay per body; None = the queue's."""
        ...

    @property
    def at_ms(self) -> int | None:
        """Time at which all bodies become active, in place of a delay; None = after the delay."""
        ...

    @property
    def after(self) -> str | None:
        """The dedup id of a message that must be stored before; None = no condition."""
        ...


class HalfRequest(BatchRequest, Protocol):
    """A batch of half messages; see ``Broker.send_half``."""

    @property
    def first_check_ms(self) -> int | None:
        """Time from now to the first check; None = the queue's."""
        ...


class ReceiveRequest(Protocol):
    """A receive of a batch of receives; see ``Broker.receive_all``."""

    @property
    def max_messages(self) -> int:
        """Largest number of messages in the reply."""
        ...

    @property
    def wait_ms(self) -> int | None:
        """Time to wait while no message is active; None = the queue's."""
        ...

    @property
    def visibility_timeout_ms(self) -> int | None:
        """None = the queue's."""
        ...

    @property
    def acknowledge(self) -> list[int] | None:
        """Receipt handles of messages to delete before the receive; None = a receive without deletes."""
        ...


class PublishRequest(msgspec.Struct, frozen=True, gc=False):
    """A publish of a batch of publishes; see ``Broker.publish``."""

    bodies: list[bytes]
    headers: list[Headers | None] | None
    labels: list[Labels] | None
    """A single entry for all bodies, or an entry per body; None = no tags."""
    session: int = 0
    sequence: int = 0
    dedup_ids: list[str | None] | None = None
    after: str | None = None
    """A dedup id that the topic must remember for the publish to be stored."""
    all_or_none: bool = False
    """Refuse a batch with some remembered dedup ids and some new messages."""


class Published(msgspec.Struct, frozen=True, gc=False):
    """Reply of a publish: the ids, and the number of matching subscriptions of each message.

    The number is None for a repeated publish: ids are remembered, numbers of matches are not.
    """

    message_ids: Sequence[int]
    matched: Sequence[int | None]


class Outcome(msgspec.Struct, Generic[T]):
    """The result of an operation: its reply, the records to append, replies to waiting requests, and reads to make.

    The records must be appended to the log together and in this order, before the records of any later outcome:
    recovery applies them in the order of the log. No reply may leave before they are durable, because a reply sent
    earlier would acknowledge a change that a crash can undo.
    """

    reply: T
    records: Sequence[AnyRecord] = ()
    bodies: Sequence[bytes] = ()
    """The bodies of the ``MessagesSent`` and ``MessagesPublished`` among the records, in their order."""
    woken: Sequence[Woken] = ()
    reads: Sequence[PageRead] = ()
    checks: Sequence[Check] = ()
    pushes: Sequence[Push] = ()
    published_reads: Sequence[PublishedRead] = ()


class Effects(msgspec.Struct, gc=False):
    """Side effects collected while an operation runs; becomes an ``Outcome``.

    The order of the records is their order in the log.
    """

    # A Struct is made in two thirds of the time of a class with an ``__init__``, and nearly every operation needs one.
    records: list[AnyRecord] = []
    bodies: list[bytes] = []
    woken: list[Woken] = []
    reads: list[PageRead] = []
    checks: list[Check] = []
    pushes: list[Push] = []
    published_reads: list[PublishedRead] = []

    def add(self, outcome: Outcome[Any]) -> None:
        """Add the side effects of a whole operation that is a part of this operation."""
        self.records.extend(outcome.records)
        self.bodies.extend(outcome.bodies)
        self.woken.extend(outcome.woken)
        self.reads.extend(outcome.reads)
        self.checks.extend(outcome.checks)
        self.pushes.extend(outcome.pushes)
        self.published_reads.extend(outcome.published_reads)

    def outcome(self, reply: T) -> Outcome[T]:
        """Return the outcome with this reply."""
        return Outcome(
            reply=reply,
            records=self.records,
            bodies=self.bodies,
            woken=self.woken,
            reads=self.reads,
            checks=self.checks,
            pushes=self.pushes,
            published_reads=self.published_reads,
        )


class TransactionsDone(msgspec.Struct, frozen=True):
    """Reply of a decision: (message id, refusal) of each refused message."""

    failures: Sequence[tuple[int, DomainError]]


class DeadLettersDone(msgspec.Struct, frozen=True):
    """Reply of a move to the dead-letter queue: (receipt handle, refusal) of each refused handle."""

    failures: Sequence[tuple[int, DomainError]]
    done: int = 0
    """Number of moved messages."""


class HandleFailure(msgspec.Struct, frozen=True, gc=False):
    """A receipt handle that is not (or no longer) valid in this queue; its message is unchanged."""

    receipt_handle: int
    text: str
    gone: int = 0
    """``GONE_DELETED`` or ``GONE_MOVED``: how the lease ended, if that is remembered."""


class HandlesDone(msgspec.Struct, frozen=True):
    """Reply of a delete, a change of visibility or a hand back."""

    failures: Sequence[HandleFailure]
    next_visible_ms: int = 0
    done: int = 0
    """Number of deleted messages."""


class ReceivedAfterDeletes(msgspec.Struct, frozen=True):
    """Reply of a receive with deletes. The deletes are carried out, whatever ``reply`` is."""

    deletes: HandlesDone
    reply: list[ReceivedMessage] | Waiting | DomainError
    """Reply of the receive; a DomainError came after the deletes."""


ReceiveReply: TypeAlias = list[ReceivedMessage] | Waiting | DomainError | ReceivedAfterDeletes
"""Reply of a receive; ``ReceivedAfterDeletes`` if and only if a request with ``acknowledge`` was not refused whole."""
