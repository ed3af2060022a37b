"""A history arranged by message: what was sent under which id, who received it, what was done with each
handle."""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from support.crash.history import (
    Clear,
    Delete,
    DeleteQueue,
    Delivery,
    HandleOperation,
    History,
    Operation,
    Outcome,
    Receive,
    Send,
)


class Rule(StrEnum):
    """What a broker promises; the value is the sentence."""

    SEND_KEPT = "an acknowledged send is not lost"
    BATCH_WHOLE = "a batch is stored whole or not at all"
    SENT_ONLY = "nothing is delivered that was never sent"
    STORED_ONCE = "a repeated numbered send is stored once"
    ID_UNIQUE = "a message id belongs to one message for ever"
    HANDLE_UNIQUE = "a receipt handle belongs to one receive for ever"
    DELETE_KEPT = "an acknowledged delete is not undone"
    CLEAR_KEPT = "an acknowledged clear or deletion of a queue is not undone"
    DELAY_KEPT = "a delayed message is not delivered early"
    ONE_LEASE = "a message has one live lease at a time"
    COUNT_EXACT = "the receive count is exact"
    HANDLE_MEANING = "a receipt handle works while its lease lives, and only then"
    QUEUE_STATE = "queues and attributes are as acknowledged"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery, with the receive that brought it."""

    receive: Receive
    delivery: Delivery

    @property
    def from_ms(self) -> int:
        """Server time at which the lease began."""
        return self.delivery.next_visible_ms - self.receive.visibility_ms

    @property
    def order(self) -> tuple[int, int]:
        return self.from_ms, self.receive.called_ns


@dataclass(slots=True)
class Message:
    """One body of one logical send, with all attempts to send it."""

    queue: str
    body: bytes
    index: int
    attempts: list[Send]
    ids: set[int] = field(default_factory=set[int])
    received: list[Received] = field(default_factory=list[Received])
    """In the order of the leases."""

    @property
    def acknowledged(self) -> bool:
        return any(attempt.done for attempt in self.attempts)

    @property
    def stored(self) -> bool:
        """Acknowledged, or seen."""
        return self.acknowledged or bool(self.received)

    @property
    def called_ns(self) -> int:
        return min(attempt.called_ns for attempt in self.attempts)

    @property
    def answered_ns(self) -> int:
        """When every attempt that may have stored it was over."""
        return max(attempt.answered_ns for attempt in self.attempts)

    def __str__(self) -> str:
        ids = ", ".join(f"{number:#x}" for number in sorted(self.ids)) or "no id"
        return f"message {self.body[:24]!r} ({ids}) of {self.queue}"


@dataclass(slots=True)
class Ledger:
    """Built once from a history; the rules read it.

    ``strangers`` are deliveries whose body belongs to no send to that queue.
    """

    history: History
    messages: dict[bytes, Message]
    batches: list[list[Message]]
    strangers: list[Received]
    by_handle: dict[int, tuple[Message, Received]]
    handle_operations: dict[int, list[HandleOperation]]
    """In the order in which they were called."""
    barriers: dict[str, list[Operation]]
    """Clears and deletions that may have happened, by queue."""
    unanswered_receives: dict[str, list[Receive]]

    def purged_before(self, message: Message, at_ns: int) -> Operation | None:
        """An acknowledged clear that surely came after the send and was answered before ``at_ns``."""
        for barrier in self.barriers.get(message.queue, ()):
            if barrier.done and message.answered_ns < barrier.called_ns and barrier.answered_ns < at_ns:
                return barrier
        return None

    def maybe_purged(self, message: Message, *, before_ns: int | None = None) -> bool:
        """A clear may have taken the message (and was called before ``before_ns``)."""
        return any(
            barrier.answered_ns > message.called_ns and (before_ns is None or barrier.called_ns < before_ns)
            for barrier in self.barriers.get(message.queue, ())
        )

    def gone(self, message: Message) -> bool:
        """A delete or clear explains why it is not delivered any more."""
        if self.maybe_purged(message):
            return True
        for received in message.received:
            for operation in self.handle_operations.get(received.delivery.handle, ()):
                if isinstance(operation, Delete) and operation.may_have_worked(received.delivery.handle):
                    came_back = any(later.receive.called_ns >= operation.answered_ns for later in message.received)
                    if operation.done or not came_back:
                        return True
        return False


def build_ledger(history: History) -> Ledger:
    """Arrange a history.

    Raises:
        ValueError: the history itself is unusable: one body in two different sends.
    """
    messages: dict[bytes, Message] = {}
    batches: list[list[Message]] = []
    for send in sorted(history.of_kind(Send), key=lambda send: send.called_ns):
        known = messages.get(send.bodies[0])
        if known is not None:
            first = known.attempts[0]
            if not send.sequence or (first.session, first.sequence) != (send.session, send.sequence):
                raise ValueError(f"the body {send.bodies[0]!r} was sent twice")
            batch = [messages[body] for body in send.bodies]
        else:
            batch = [Message(send.queue, body, index, []) for index, body in enumerate(send.bodies)]
            batches.append(batch)
        for message in batch:
            messages[message.body] = message
            message.attempts.append(send)
            if send.done:
                message.ids.add(send.message_ids[message.index])
    ledger = Ledger(history, messages, batches, [], {}, defaultdict(list), defaultdict(list), defaultdict(list))
    for receive in history.of_kind(Receive):
        if receive.outcome is Outcome.UNKNOWN:
            ledger.unanswered_receives[receive.queue].append(receive)
        for delivery in receive.deliveries:
            received = Received(receive, delivery)
            message = messages.get(delivery.body)
            if message is None or message.queue != receive.queue:
                ledger.strangers.append(received)
                continue
            message.ids.add(delivery.message_id)
            message.received.append(received)
            ledger.by_handle.setdefault(delivery.handle, (message, received))
    for message in messages.values():
        message.received.sort(key=lambda received: received.order)
    for operation in sorted(history.operations, key=lambda operation: operation.called_ns):
        if isinstance(operation, HandleOperation):
            for handle in operation.handles:
                ledger.handle_operations[handle].append(operation)
        elif isinstance(operation, Clear | DeleteQueue) and operation.possible:
            ledger.barriers[operation.queue].append(operation)
    return ledger
