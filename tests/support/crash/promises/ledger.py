"""A history arranged by message: ids of sends, receives, and the operations on every handle."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from support.crash.promises.broker_time.bounds import BrokerTime, broker_time
from support.crash.promises.history import (
    Check,
    Clear,
    CreateQueue,
    Decision,
    Delete,
    DeleteQueue,
    EndTransactions,
    HandleOperation,
    History,
    Operation,
    Outcome,
    Publish,
    Receive,
    RegisterChecker,
    Rewind,
    Send,
    StartRedrive,
    Subscribe,
    Unused,
)
from support.crash.promises.places import Life, Message, MessageKey, Received, arrange
from support.crash.promises.published import PublishedMessage, arrange_published
from support.crash.promises.timeline import Timeline
from support.crash.promises.unused import all_deletions


class Rule(StrEnum):
    """Promises of a broker; the value is the sentence."""

    SEND_KEPT = "an acknowledged send is not lost"
    BATCH_WHOLE = "a batch is stored whole or not at all"
    SENT_ONLY = "nothing is delivered that was never sent"
    STORED_ONCE = "a repeated send is stored once"
    ID_UNIQUE = "a message id belongs to one message for ever"
    HANDLE_UNIQUE = "a receipt handle belongs to one receive for ever"
    DELETE_KEPT = "an acknowledged delete is not undone"
    CLEAR_KEPT = "an acknowledged clear or deletion of a queue is not undone"
    DELAY_KEPT = "a delayed message is not delivered early"
    ONE_LEASE = "a message has one live lease at a time"
    COUNT_EXACT = "the receive count is exact"
    HANDLE_MEANING = "a receipt handle works while its lease lives, and only then"
    ONE_PLACE = "a message is in one queue at a time"
    ORIGIN = "a message that was moved tells where it was, and was moved for a reason"
    REWIND_KEPT = "an acknowledged rewind is not undone"
    DECISION_KEPT = "the first decision of a half message holds for ever"
    HALF_HIDDEN = "a half message is delivered only after its commit"
    HALF_KEPT = "an undecided half message is not lost"
    CHECK_TRUE = "a check asks for an undecided half message, and is counted"
    PUBLISH_KEPT = "an acknowledged publish reaches every subscriber that it matches"
    PUBLISH_WHOLE = "a publish reaches all subscribers that it matches, or none"
    PUSHED_ONLY = "nothing is pushed that was not published for that subscriber"
    PUSH_SIGNED = "a push is signed with the secret of its subscription"
    FAILURE_KEPT = "a failed push is not forgotten, nor when it is due again"
    DROP_KEPT = "an acknowledged drop of a message for a subscriber is not undone"
    TOPIC_STATE = "topics and subscriptions are as acknowledged"
    QUEUE_STATE = "queues and attributes are as acknowledged"
    TIME_KEPT = "broker time stands still at takeovers alone, and never runs back or ahead"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(slots=True)
class Ledger:
    """Tables made once from a history, for the rules.

    ``strangers`` are deliveries without an origin and with a body that was not sent to their queue.
    """

    history: History
    time: BrokerTime
    messages: dict[MessageKey, Message]
    strangers: list[Received] = field(default_factory=list[Received])
    by_handle: dict[int, tuple[Life, Received]] = field(default_factory=dict[int, tuple[Life, Received]])
    handle_operations: dict[int, list[HandleOperation]] = field(
        default_factory=lambda: defaultdict[int, list[HandleOperation]](list)
    )
    """In the order of their calls."""
    barriers: defaultdict[str, Timeline[Operation]] = field(default_factory=lambda: defaultdict(Timeline[Operation]))
    """Clears and deletions that may have happened, by queue."""
    rewinds: defaultdict[str, Timeline[Rewind]] = field(default_factory=lambda: defaultdict(Timeline[Rewind]))
    """Operations that may have been carried out, by queue."""
    unanswered_receives: defaultdict[str, Timeline[Receive]] = field(
        default_factory=lambda: defaultdict(Timeline[Receive])
    )
    checkers: defaultdict[str, Timeline[RegisterChecker]] = field(
        default_factory=lambda: defaultdict(Timeline[RegisterChecker])
    )
    """Registrations that may have been carried out, by queue."""
    redriven_ns: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Call of the first redrive that may have been carried out, by queue and target."""
    decisions: dict[int, list[EndTransactions]] = field(
        default_factory=lambda: defaultdict[int, list[EndTransactions]](list)
    )
    """By message id, refused operations included."""
    published: list[PublishedMessage] = field(default_factory=list[PublishedMessage])
    attributes: dict[str, dict[str, int | str | bool]] = field(default_factory=dict[str, dict[str, int | str | bool]])
    """Attributes of every queue at its creation."""

    @property
    def lives(self) -> Iterator[Life]:
        return (life for message in self.messages.values() for place in message.places for life in place.lives)

    def purged_before(self, message: Message, at_ns: int) -> Operation | None:
        """An acknowledged clear that surely came after the send and was answered before ``at_ns``."""
        barriers = self.barriers[message.queue]
        for index in range(barriers.called_until(self._stood_ns(message)), barriers.called_before(at_ns)):
            barrier = barriers.operations[index]
            if barrier.done and barrier.answered_ns < at_ns:
                return barrier
        return None

    def _stood_ns(self, message: Message) -> float:
        """The time since which a message surely was in its queue, if at all."""
        if not message.is_copy:
            return message.answered_ns
        times = [self.time.reached_ns(place.enqueue_ms) for place in message.places]
        return max(times, default=float("inf"))

    def maybe_purged(self, message: Message, *, before_ns: int | None = None) -> bool:
        """A clear may have taken the message (and was called before ``before_ns``)."""
        barriers = self.barriers[message.queue]
        end = len(barriers.operations) if before_ns is None else barriers.called_before(before_ns)
        return barriers.answered_from(message.called_ns + 1) < end

    def deletes(self, received: Received) -> list[Delete]:
        """Operations on the handle of a delivery that may have been carried out."""
        handle = received.delivery.handle
        return [
            operation
            for operation in self.handle_operations.get(handle, ())
            if isinstance(operation, Delete) and operation.may_have_worked(handle)
        ]

    def surely_deleted(self, life: Life) -> Delete | None:
        """An acknowledged delete of the message."""
        found = (operation for received in life.received for operation in self.deletes(received) if operation.done)
        return next(found, None)

    def gone(self, message: Message) -> bool:
        """A delete in the last life, or a clear, explains the end of deliveries."""
        if self.maybe_purged(message):
            return True
        last = message.places[-1].lives[-1].received if message.places else []
        for received in last:
            for operation in self.deletes(received):
                came_back = any(later.receive.called_ns >= operation.answered_ns for later in last)
                if operation.done or not came_back:
                    return True
        return False

    def decided(self, message: Message, decision: Decision) -> list[EndTransactions]:
        """The operations that may have decided a half message in this way."""
        return [
            operation
            for number in message.ids
            for operation in self.decisions.get(number, ())
            if operation.may_have_worked(number, decision)
        ]


def build_ledger(history: History) -> Ledger:
    """Arrange a history.

    Raises:
        ValueError: the history cannot be used: a body in two different sends.
    """
    ledger = Ledger(history, broker_time(history), _messages(history) | _copies(history))
    deletions = all_deletions(history)
    for operation in sorted([*history.operations, *deletions], key=lambda operation: operation.called_ns):
        match operation:
            case HandleOperation():
                for handle in operation.handles:
                    ledger.handle_operations[handle].append(operation)
            case Clear() | DeleteQueue() | Unused() if operation.possible:
                ledger.barriers[operation.queue].append(operation)
            case Rewind() if operation.possible:
                ledger.rewinds[operation.queue].append(operation)
            case Receive() if operation.outcome is Outcome.UNKNOWN:
                ledger.unanswered_receives[operation.queue].append(operation)
            case StartRedrive() if operation.possible:
                ledger.redriven_ns.setdefault((operation.queue, operation.target), operation.called_ns)
            case EndTransactions():
                for message_id in operation.decisions:
                    ledger.decisions[message_id].append(operation)
            case CreateQueue() if operation.possible:
                ledger.attributes[operation.queue] = dict(operation.attributes)
            case RegisterChecker() if operation.possible:
                ledger.checkers[operation.queue].append(operation)
            case Check():
                message = ledger.messages.get(("", operation.body))
                if message is not None and message.is_half:
                    message.checks.append(operation)
                    message.ids.add(operation.message_id)
            case _:
                pass
    ledger.strangers.extend(arrange(history, ledger.messages))
    ledger.published.extend(arrange_published(history, ledger.messages))
    for message in ledger.messages.values():
        for place in message.places:
            place.split_into_lives(ledger.deletes, ledger.rewinds[place.queue])
            for life in place.lives:
                for received in life.received:
                    ledger.by_handle.setdefault(received.delivery.handle, (life, received))
    return ledger


def _messages(history: History) -> dict[MessageKey, Message]:
    messages: dict[MessageKey, Message] = {}
    for send in sorted(history.of_kind(Send), key=lambda send: send.called_ns):
        for index, body in enumerate(send.bodies):
            message = messages.get(("", body))
            if message is None:
                message = messages["", body] = Message(send.queue, body)
            elif not message.is_repeated_by(send):
                raise ValueError(f"the body {body!r} was sent twice")
            message.attempts.append(send)
            if send.done:
                message.ids.add(send.message_ids[index])
    return messages


def _copies(history: History) -> dict[MessageKey, Message]:
    """Copies of publishes for the queues of their subscribers, as if sent to these queues."""
    copies: dict[MessageKey, Message] = {}
    subscriptions = [one for one in history.of_kind(Subscribe) if not one.is_push]
    for publish in sorted(history.of_kind(Publish), key=lambda publish: publish.called_ns):
        for subscription in subscriptions:
            send = publish.copies_for(subscription) if subscription.queue == publish.queue else None
            for body in () if send is None else send.bodies:
                assert send is not None
                copy = copies.get((send.queue, body))
                if copy is None:
                    copy = copies[send.queue, body] = Message(send.queue, body, is_copy=True)
                elif not copy.is_repeated_by(send):
                    raise ValueError(f"the body {body!r} was published twice")
                copy.attempts.append(send)
    return copies
