"""A recorded history: the requests of many workers and the answers of a broker, across its crashes.

Every operation has the interval [``called_ns``, ``answered_ns``] of the monotonic clock, in which the
operation took effect, if at all. The outcome is DONE (the reply has the result), REFUSED (a typed error, without an
effect) or UNKNOWN (no answer: carried out once or not at all before ``answered_ns``, the moment at which the loss of
the connection to the dead broker was noticed).
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, auto
from typing import TypeVar


class Outcome(Enum):
    DONE = auto()
    REFUSED = auto()
    UNKNOWN = auto()


class Decision(IntEnum):
    """Decision about a half message, by the number on the wire."""

    COMMIT = 1
    ROLL_BACK = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    queue: str
    called_ns: int
    answered_ns: int
    outcome: Outcome = Outcome.DONE
    error: str = ""
    """Name of the error code, when REFUSED."""

    @property
    def done(self) -> bool:
        return self.outcome is Outcome.DONE

    @property
    def possible(self) -> bool:
        """True if the operation was carried out, or may have been."""
        return self.outcome is not Outcome.REFUSED

    def forgotten(self, at_ns: int) -> "Operation":
        """The same with its answer lost at ``at_ns``."""
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Operation):
    """An attempt to send. Bodies are unique in a history, except for attempts that the broker must take for repeats,
    with the same session and sequence, or with the same dedup id for the body."""

    bodies: tuple[bytes, ...]
    headers: tuple[Mapping[str, str] | None, ...] = ()
    delay_ms: int = 0
    session: int = 0
    sequence: int = 0
    dedup_ids: tuple[str, ...] = ()
    """Empty, or an entry per body."""
    half: bool = False
    first_check_ms: int = 0
    """Of half messages: when the broker may ask for the first time; 0 = as the queue says."""
    message_ids: tuple[int, ...] = ()

    def forgotten(self, at_ns: int) -> "Send":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", message_ids=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a message that was moved stood before."""

    queue: str
    message_id: int
    enqueue_ms: int
    receive_count: int
    reason: str
    rejection: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A received message, as in the reply; times are the server's."""

    message_id: int
    handle: int
    body: bytes
    headers: Mapping[str, str] | None
    enqueue_ms: int
    first_receive_ms: int
    next_visible_ms: int
    receive_count: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Operation):
    max_messages: int
    visibility_ms: int
    deliveries: tuple[Delivery, ...] = ()

    def forgotten(self, at_ns: int) -> "Receive":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", deliveries=())


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOperation(Operation):
    """An operation on receipt handles; ``failed`` has the handles that the reply calls invalid."""

    handles: tuple[int, ...]
    failed: frozenset[int] = frozenset()

    def forgotten(self, at_ns: int) -> "HandleOperation":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", failed=frozenset())

    def may_have_worked(self, handle: int) -> bool:
        return self.possible and handle not in self.failed

    def worked(self, handle: int) -> bool:
        return self.done and handle not in self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(HandleOperation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(Delete):
    """The deletes of a receive, which is an operation of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(HandleOperation):
    counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(HandleOperation):
    """To the dead-letter queue of the queue."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVisibility(HandleOperation):
    """Not to 0: that is a release."""

    visibility_ms: int
    next_visible_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear(Operation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOperation(Operation):
    """``attributes`` and ``queue_id`` are from the reply (for a change: from the request)."""

    attributes: Mapping[str, int | str | bool] = field(default_factory=dict[str, int | str | bool])
    queue_id: int = 0

    def forgotten(self, at_ns: int) -> "QueueOperation":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", queue_id=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateQueue(QueueOperation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAttributes(QueueOperation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAttributes(QueueOperation):
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteQueue(QueueOperation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused(Operation):
    """The broker deleted the queue because it was unused (reason ``unused`` of the record): from the earliest possible
    moment to the answer that shows the deletion. Derived from a history, never recorded.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind(Operation):
    """``time_ms`` is the requested time; in an answered operation the time that the broker used."""

    time_ms: int
    messages: int = 0

    def forgotten(self, at_ns: int) -> "Rewind":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", messages=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRedrive(Operation):
    """``target`` is empty if the messages go back to their origins."""

    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRedrive(Operation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactions(Operation):
    """``failed`` has the name of the error of every refused id."""

    decisions: Mapping[int, Decision]
    failed: Mapping[int, str] = field(default_factory=dict[int, str])

    def forgotten(self, at_ns: int) -> "EndTransactions":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", failed={})

    def may_have_worked(self, message_id: int, decision: Decision) -> bool:
        return self.possible and message_id not in self.failed and self.decisions.get(message_id) == decision

    def worked(self, message_id: int, decision: Decision) -> bool:
        return self.done and self.may_have_worked(message_id, decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListHalf(Operation):
    """A page of the undecided half messages of a queue."""

    start: int
    message_ids: tuple[int, ...] = ()
    next_start: int | None = None

    def forgotten(self, at_ns: int) -> "ListHalf":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", message_ids=(), next_start=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterChecker(Operation):
    """A connection answers checks of the queue from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Operation):
    """A check of a half message; called and answered at its reading from the connection."""

    message_id: int
    body: bytes
    headers: Mapping[str, str] | None
    enqueue_ms: int
    age_ms: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOperation(Operation):
    """``queue`` is the name of the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(TopicOperation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopic(TopicOperation):
    retained: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOperation(TopicOperation):
    subscription: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(SubscriptionOperation):
    """All subscriptions are made before the first publish, and stay."""

    endpoint: str
    """A queue or a URL."""
    filter_tags: frozenset[str] = frozenset()
    secret: str = ""

    @property
    def is_push(self) -> bool:
        return "://" in self.endpoint

    def wants(self, tags: frozenset[str]) -> bool:
        return not self.filter_tags or bool(self.filter_tags & tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscription(SubscriptionOperation):
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNow(SubscriptionOperation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekDeliveries(SubscriptionOperation):
    messages: tuple[tuple[int, bytes], ...] = ()
    """(message id, body) of messages that wait for the subscription."""
    next_start: int | None = None

    def forgotten(self, at_ns: int) -> "PeekDeliveries":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", messages=(), next_start=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleDelivery(SubscriptionOperation):
    """An operation on a message of a subscription, which a peek has shown before."""

    message_id: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDelivery(SingleDelivery):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDelivery(SingleDelivery):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(TopicOperation):
    """An attempt to publish. Bodies are unique in a history, as for sends."""

    bodies: tuple[bytes, ...]
    tags: tuple[frozenset[str], ...]
    headers: tuple[Mapping[str, str] | None, ...] = ()
    session: int = 0
    sequence: int = 0
    dedup_ids: tuple[str, ...] = ()
    message_ids: tuple[int, ...] = ()
    """Of the messages in the topic; copies in queues have ids of their own."""
    matched: tuple[int | None, ...] = ()

    def forgotten(self, at_ns: int) -> "Publish":
        return replace(self, outcome=Outcome.UNKNOWN, answered_ns=at_ns, error="", message_ids=(), matched=())

    def copies_for(self, subscription: Subscribe) -> Send | None:
        """The copies for the queue of a subscription; no reply names their ids."""
        places = [place for place, tags in enumerate(self.tags) if subscription.wants(tags)]
        if not places:
            return None
        return Send(
            queue=subscription.endpoint,
            called_ns=self.called_ns,
            answered_ns=self.answered_ns,
            outcome=self.outcome,
            error=self.error,
            bodies=tuple(self.bodies[place] for place in places),
            headers=tuple(self.headers[place] for place in places) if self.headers else (),
            session=self.session,
            sequence=self.sequence,
            dedup_ids=tuple(self.dedup_ids[place] for place in places) if self.dedup_ids else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(SubscriptionOperation):
    """A request at the URL of a subscription: called at its arrival, answered with its answer."""

    message_id: int
    body: bytes
    tags: frozenset[str]
    status: int
    """Of the answer; 0 = none was given."""
    is_signed: bool
    """With the secret of the subscription."""
    started_s: int
    """Time at which the attempt began, in seconds of the broker's clock."""

    @property
    def is_delivered(self) -> bool:
        return self.status == 200


AnOperation = TypeVar("AnOperation", bound=Operation)


@dataclass
class History:
    """Operations in any order.

    Args:
        wall_offset_ms: wall clock minus monotonic clock; the broker, on the same machine, shares the wall
        clock.
    """

    wall_offset_ms: float
    operations: list[Operation] = field(default_factory=list[Operation])
    breaks_ns: list[int] = field(default_factory=list[int])
    """Moments in order, with a life of the broker between two moments: the first answer of the broker, and the moment
    just before its kill. Requests in progress may arrive later, before the next life.
    """
    leads_ns: list[int] = field(default_factory=list[int])
    """Moments in order, with redundancy alone: a leader is found that answers clients."""
    calls: dict[int, Operation] = field(default_factory=dict[int, Operation])
    """Operations without an answer so far, by the id of the object."""
    on_call: Callable[[Operation], None] = lambda operation: None
    """Called for every operation as its request is sent."""
    _bodies: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes], repr=False)

    @contextmanager
    def under_way(self, operation: Operation) -> Generator[None]:
        """Have an operation among the calls."""
        self.calls[id(operation)] = operation
        self.on_call(operation)
        try:
            yield
        finally:
            del self.calls[id(operation)]

    def shared(self, body: bytes) -> bytes:
        """Return the first object with these bytes: most bodies come back in many answers, and histories are long."""
        return self._bodies.setdefault(body, body)

    def wall_ms(self, at_ns: int) -> float:
        return at_ns / 1e6 + self.wall_offset_ms

    def at_ns(self, wall_ms: float) -> float:
        return (wall_ms - self.wall_offset_ms) * 1e6

    def of_kind(self, kind: type[AnOperation]) -> Iterator[AnOperation]:
        return (operation for operation in self.operations if isinstance(operation, kind))

    def until(self, cut_ns: int) -> "History":
        """Return the history as known at a power failure: later calls are missing, and calls without an answer by then
        are UNKNOWN.
        """
        return History(
            self.wall_offset_ms,
            [
                operation if operation.answered_ns <= cut_ns else operation.forgotten(cut_ns)
                for operation in self.operations
                if operation.called_ns <= cut_ns
            ],
            [*(at_ns for at_ns in self.breaks_ns if at_ns < cut_ns), cut_ns],
            [at_ns for at_ns in self.leads_ns if at_ns < cut_ns],
        )
