"""What an operation of the core hands to the edge."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from cmqd.core.errors import DomainError
from cmqd_segment.records import AnyRecord, Runs, StoredMessage
from cmqd_types.messages import Headers, Labels

T = TypeVar("T")


class _Waiting(Enum):
    WAITING = "waiting"


WAITING: Final = _Waiting.WAITING
"""The reply of an operation that will be answered later, through ``Outcome.woken``."""
Waiting = _Waiting


class PageRead(msgspec.Struct, frozen=True, gc=False):
    """Bodies that the core needs from the log; answer with ``Broker.pages_read``."""

    read_id: int
    queue_id: int
    positions: Runs
    max_bytes: int


class Woken(msgspec.Struct, frozen=True):
    """The answer to an operation that waited: its reply, or the error (a DomainError) that ended it."""

    waiter_id: int
    reply: Any


class Check(msgspec.Struct, frozen=True, gc=False):
    """Ask a producer what became of a half message. It is counted as sent with this outcome's records."""

    account: str
    queue: str
    message: StoredMessage
    age_ms: int
    attempt: int


class Push(msgspec.Struct, frozen=True, gc=False):
    """Post a message of a topic to a subscription's URL; answer with ``Broker.pushes_ended``. It is under way from this
    outcome on, which is no fact: after a restart it is begun again.
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
    """How a ``Push`` went."""

    subscription_id: int
    position: int
    started_ms: int
    error: str | None
    """None = it was delivered; else why not, in a line."""


class SendRequest(Protocol):
    """One of the sends that are decided together; see ``Broker.send_all``. The wire's request is one."""

    @property
    def bodies(self) -> list[bytes]:
        """The batch."""
        ...

    @property
    def headers(self) -> list[Headers | None] | None:
        """One entry for each body, or None."""
        ...

    @property
    def delay_ms(self) -> int | list[int] | None:
        """One for all bodies, or one for each; None = the queue's."""
        ...

    @property
    def session(self) -> int:
        """Of the producer that numbered it; 0 = none."""
        ...

    @property
    def sequence(self) -> int:
        """Its number, 0 = none."""
        ...

    @property
    def dedup_ids(self) -> list[str | None] | None:
        """One entry for each body, or None."""
        ...

    @property
    def after(self) -> str | None:
        """The dedup id of a message that must be stored before; None = of none."""
        ...


class ReceiveRequest(Protocol):
    """One of the receives that are decided together; see ``Broker.receive_all``. The wire's request is one."""

    @property
    def max_messages(self) -> int:
        """How many at most."""
        ...

    @property
    def wait_ms(self) -> int | None:
        """How long it waits if there is none; None = the queue's."""
        ...

    @property
    def visibility_timeout_ms(self) -> int | None:
        """None = the queue's."""
        ...


class PublishRequest(msgspec.Struct, frozen=True, gc=False):
    """One of the publishes that are decided together; see ``Broker.publish``."""

    bodies: list[bytes]
    headers: list[Headers | None] | None
    labels: list[Labels] | None
    """One entry for all bodies, or one for each; None = no tags."""
    session: int = 0
    sequence: int = 0
    dedup_ids: list[str | None] | None = None
    after: str | None = None
    """A dedup id that the topic must remember for the publish to be stored."""


class Published(msgspec.Struct, frozen=True, gc=False):
    """Reply of a publish: the ids, and how many subscriptions each message matched; None for one that was published
    before, of which that is not remembered.
    """

    message_ids: Sequence[int]
    matched: Sequence[int | None]


class Outcome(msgspec.Struct, Generic[T]):
    """What to answer, what to persist, who else is answered, what to read.

    The records must be appended to the log in one go and in this order, before those of any later outcome. No reply
    may leave before they are durable.
    """

    reply: T
    records: Sequence[AnyRecord] = ()
    bodies: Sequence[bytes] = ()
    """The bodies of the ``MessagesSent`` and ``MessagesPublished`` among the records, in their order."""
    woken: Sequence[Woken] = ()
    reads: Sequence[PageRead] = ()
    checks: Sequence[Check] = ()
    pushes: Sequence[Push] = ()


class Effects(msgspec.Struct, gc=False):
    """What an operation does beside its reply, gathered step by step; see ``Outcome``, which it becomes.

    The order of the records is their order in the log.
    """

    # A Struct is made in two thirds of the time of a class with an ``__init__``, and nearly every operation makes one.
    records: list[AnyRecord] = []
    bodies: list[bytes] = []
    woken: list[Woken] = []
    reads: list[PageRead] = []
    checks: list[Check] = []
    pushes: list[Push] = []

    def add(self, outcome: Outcome[Any]) -> None:
        """What a whole operation did that is a part of this one."""
        self.records.extend(outcome.records)
        self.bodies.extend(outcome.bodies)
        self.woken.extend(outcome.woken)
        self.reads.extend(outcome.reads)
        self.checks.extend(outcome.checks)
        self.pushes.extend(outcome.pushes)

    def outcome(self, reply: T) -> Outcome[T]:
        """All of it, with the reply."""
        return Outcome(
            reply=reply,
            records=self.records,
            bodies=self.bodies,
            woken=self.woken,
            reads=self.reads,
            checks=self.checks,
            pushes=self.pushes,
        )


class TransactionsDone(msgspec.Struct, frozen=True):
    """Reply of a decision: (message id, refusal) of those that were refused."""

    failures: Sequence[tuple[int, DomainError]]


class HandleFailure(msgspec.Struct, frozen=True, gc=False):
    """A receipt handle that is not (or no longer) valid in this queue; nothing was done with it."""

    receipt_handle: int
    text: str


class HandlesDone(msgspec.Struct, frozen=True):
    """Reply of delete, change visibility and hand back."""

    failures: Sequence[HandleFailure]
    next_visible_ms: int = 0
    done: int = 0
    """Messages that were deleted."""
