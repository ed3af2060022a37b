"""The core's refusals, as a closed set; nothing has changed when an error of this module is raised.

    DomainError
    ├── InvalidArgument      a field is out of its range or of the wrong form
    ├── QueueNotFound, QueueExists, QueueDiffers, QueueDeleted, TooManyQueues
    ├── DeadLetterQueueInUse, TimeNotRewindable, RedriveRunning, RedriveNotFound, NotTransactional
    ├── MessageTooLarge, BatchTooLarge
    ├── TooManyInFlight, BacklogFull          (retryable: consumers make room)
    ├── ReceiptHandleInvalid, NoDeadLetterQueue, DeadLettersNotTaken, BodyUnreadable      (of a handle of a request)
    ├── SequenceTooOld, OutOfOrder, TooManyRemembered
    ├── MessageNotFound
    ├── TransactionNotFound, AlreadyCommitted, AlreadyRolledBack, MessageDamaged      (of a message of a batch)
    ├── TopicNotFound, TopicExists, TopicDiffers, TopicInUse, TooManyTopics
    ├── SubscriptionNotFound, SubscriptionExists, SubscriptionDiffers, TooManySubscriptions
    ├── MessageNotWaiting, MessageNotPublished
    └── ScheduleNotFound, ScheduleExists, ScheduleDiffers, TooManySchedules

The edge maps each class to a wire code by its name, in a table.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from cmqd_types.sentences import ENSURE, Quantity, Sentence, field_name, joined, quantity, sentence, size, time, unit_of

SHOWN_CHARACTERS: Final = 80
"""Longest form of a value in an error. Errors reach logs, and each face works on the whole error."""
DETAIL_CHARACTERS: Final = 2048
"""Longest text of the details: a difference has the whole URL of a subscription."""


class DomainError(Exception):
    """Root of the core's refusals.

    ``details`` holds the values for a program to read (``field``, ``value``, ``limit`` ...), each of a bounded length.
    ``sentence`` is the text in parts, if a face has other names or units for a part of it. ``retry_after_ms`` is set
    where the same request may succeed later. ``named`` holds the names of queues in the text that the request may not
    contain; each stands in quotes there. The edge hides a name that the caller may not see.
    """

    retry_after_ms: int | None = None
    named: Sequence[str] = ()

    def __init__(self, text: str | Sentence, **details: Any) -> None:
        self.text = str(text)
        super().__init__(self.text)
        self.sentence = text if isinstance(text, Sentence) else None
        self.details = {name: _cut(value) for name, value in details.items()}


def shown(value: object) -> str:
    """Return the form in which an error shows a value: at most 80 characters."""
    # Cut before the conversion: a value may have the length of a whole frame.
    if isinstance(value, str | bytes):
        value = value[:SHOWN_CHARACTERS]
    elif isinstance(value, list | tuple):
        value = [
            entry[:SHOWN_CHARACTERS] if isinstance(entry, str | bytes) else entry
            for entry in cast("Sequence[object]", value)[:SHOWN_CHARACTERS]
        ]
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _cut(value: Any) -> Any:
    """Return a value of the details with its texts cut."""
    if isinstance(value, str):
        return value if len(value) <= DETAIL_CHARACTERS else value[:DETAIL_CHARACTERS] + "..."
    if isinstance(value, dict):
        return {name: _cut(entry) for name, entry in cast("dict[str, Any]", value).items()}
    return value


class InvalidArgument(DomainError):
    """A field is out of its range, has the wrong form or contradicts another field.

    The text is a sentence for the caller. The function that knows the case writes it: a template of field, value and
    limit makes no sentences.
    """

    def __init__(
        self,
        text: str | Sentence,
        *,
        field: str,
        value: object,
        limit: str,
        range: tuple[int, int] | None = None,
        named: Sequence[str] = (),
        **details: Any,
    ) -> None:
        """Make the refusal.

        Args:
            text: the sentence.
            field: name of the field. Its name has the unit of ``value`` and ``range`` as its end.
            value: the refused value; a secret is never given here.
            limit: the legal values in words.
            range: the smallest and the largest legal number.
            named: see :class:`DomainError`.
            details: further details.
        """
        if range is not None:
            details["range"] = list(range)
            unit = unit_of(field)
            if unit is not None:
                details["unit"] = unit
        if not isinstance(text, Sentence):
            # With parts always: an error without them comes from a broker that names its own fields and units.
            text = Sentence([text])
        given = value if type(value) is int and abs(value) < 1 << 63 else shown(value)
        super().__init__(text, field=cut_name(field), value=given, limit=limit, **details)
        self.named = named


def _taken(noun: str, name: str, existing: str) -> Sentence:
    """Return the sentence about a name that is taken. Only an equal name can be accepted by an ensure."""
    if name == existing:
        return sentence("{} {} already exists{}", noun, repr(name), Quantity(ENSURE, ""))
    return sentence("{} {} differs only in case from {}; use another name", noun, repr(name), repr(existing))


def cut_name(name: str) -> str:
    """Return the name of a field for the details. A field that does not exist has any name."""
    return name if len(name) <= SHOWN_CHARACTERS else name[: SHOWN_CHARACTERS - 3] + "..."


def _given(field: str, value: object) -> Quantity | str:
    return quantity(field, value) if isinstance(value, int) else shown(value)


def _differences(difference: Mapping[str, Mapping[str, object]]) -> Sentence:
    """Return the sentence about attributes that differ."""
    return joined(
        [
            sentence(
                "{} is {}, wanted {}",
                field_name(name),
                _given(name, values["is"]),
                _given(name, values["wanted"]),
            )
            for name, values in difference.items()
        ],
        ", ",
    )


class QueueNotFound(DomainError):
    """No queue with this name in the account."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {shown(name)} does not exist; create it first", queue=name)


class QueueExists(DomainError):
    """The name is taken, in the same or in a different case."""

    def __init__(self, name: str, existing: str) -> None:
        super().__init__(_taken("queue", name, existing), queue=name, existing=existing)
        self.named = (existing,)


class QueueDiffers(DomainError):
    """The existing queue has other attributes; ``difference`` names them."""

    def __init__(self, name: str, difference: dict[str, dict[str, object]]) -> None:
        text = sentence("queue {} exists with other attributes: {}", repr(name), _differences(difference))
        super().__init__(text, queue=name, difference=difference)


class QueueDeleted(DomainError):
    """The queue was deleted under a waiting request; a new queue of the same name is a different queue."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} was deleted while the request waited", queue=name)


class TooManyQueues(DomainError):
    """The account is at its limit of queues."""

    def __init__(self, account: str, limit: int) -> None:
        super().__init__(
            f"account {account!r} has reached its limit of {limit} queues; delete a queue first",
            account=account,
            limit=limit,
        )


class MessageTooLarge(DomainError):
    """A body is over the ``max_message_bytes`` of its queue or topic."""

    def __init__(self, name: str, index: int, count: int, limit: int) -> None:
        super().__init__(
            sentence(
                "body {} has {}; {} takes {} to {} ({max_message_bytes})",
                index,
                size(count),
                repr(name),
                size(1),
                size(limit),
            ),
            field="bodies",
            index=index,
            value=count,
            limit=limit,
        )
        self.named = (name,)


class BatchTooLarge(DomainError):
    """Bodies and headers of a batch are over the limit of a send."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(
            sentence(
                "the batch has {} of bodies and headers; a send has at most {}; split the batch",
                size(count),
                size(limit),
            ),
            field="bodies",
            value=count,
            limit=limit,
        )


class TooManyWaiting(DomainError):
    """The account is at its limit of waiting receives; receives that find messages go on."""

    retry_after_ms = 1000

    def __init__(self, account: str, limit: int) -> None:
        super().__init__(
            f"account {account!r} has reached its limit of {limit} waiting receives; receive without a wait, or retry",
            limit=limit,
        )


class TooManyRemembered(DomainError):
    """An account holds its share of sessions and dedup ids; room returns as old sessions and dedup ids end."""

    retry_after_ms = 1000
    """The shortest pause; each refusal has its own."""

    def __init__(self, account: str, share: str, limit: int, oldest_ends_ms: int, now_ms: int) -> None:
        super().__init__(
            f"account {account!r} has reached its limit of {share}; sends of known sessions, and sends without a dedup"
            " id, still work",
            limit=limit,
            oldest_ends_ms=oldest_ends_ms,
        )
        self.retry_after_ms = oldest_ends_ms - now_ms


class TooManyInFlight(DomainError):
    """The messages in flight are at the limit of the queue; deletes still work."""

    retry_after_ms = 1000

    def __init__(self, queue: str, limit: int) -> None:
        super().__init__(
            f"queue {queue!r} has reached its limit of {limit} messages in flight; delete or release messages",
            queue=queue,
            limit=limit,
        )


class BacklogFull(DomainError):
    """The queue holds its ``max_backlog``; receives and deletes still work."""

    retry_after_ms = 1000

    def __init__(self, queue: str, held: int, count: int, limit: int) -> None:
        super().__init__(
            sentence(
                "queue {} holds {} messages; {} more would pass its {max_backlog} of {}",
                repr(queue),
                held,
                count,
                limit,
            ),
            queue=queue,
            value=held,
            limit=limit,
        )
        self.named = (queue,)


class SequenceTooOld(DomainError):
    """A numbered send is older than the remembered answers of its session."""

    def __init__(self, sequence: int, remembered: int) -> None:
        super().__init__(
            f"sequence {sequence} is too old: the server remembers the last {remembered} numbered sends, and not this"
            " send; it may have been stored or not",
            value=sequence,
            limit=remembered,
        )


class OutOfOrder(DomainError):
    """A send or publish names the message before it, and the queue or topic does not remember that message."""

    def __init__(self, kind: Literal["queue", "topic"], name: str, after: str) -> None:
        verb = "send" if kind == "queue" else "publish"
        super().__init__(
            f"{kind} {name!r} remembers no message with dedup id {after!r}, which this {verb} names as the message"
            f" before it; {verb} that message first",
            value=after,
            **{kind: name},
        )


class DeadLetterQueueInUse(DomainError):
    """Other queues send their dead letters there."""

    def __init__(self, name: str, sources: list[str]) -> None:
        names = ", ".join(map(repr, sources))
        super().__init__(
            f"queue {name!r} is the dead-letter queue of {names}; change that first", queue=name, sources=sources
        )
        self.named = sources


class ReceiptHandleInvalid(DomainError):
    """The handle is not (or no longer) valid in this queue; its message is unchanged."""

    def __init__(self, queue: str, receipt_handle: int, gone: int = 0) -> None:
        self.gone = gone
        """See :class:`cmqd.core.outcome.HandleFailure`."""
        super().__init__(
            f"receipt handle {receipt_handle} is not valid in queue {queue!r}: the message was deleted, handed back or"
            " received again, or its visibility timeout passed",
            value=receipt_handle,
        )


class NoDeadLetterQueue(DomainError):
    """The queue has no dead-letter queue to which a consumer could move a message."""

    def __init__(self, queue: str) -> None:
        text = sentence("queue {} has no dead-letter queue; set its {dead_letter_queue} first", repr(queue))
        super().__init__(text, queue=queue)


class DeadLettersNotTaken(DomainError):
    """The dead-letter queue still holds messages from before it became a dead-letter queue."""

    retry_after_ms = 1000

    def __init__(self, queue: str, target: str) -> None:
        super().__init__(
            f"dead-letter queue {target!r} of queue {queue!r} takes no dead letters yet: messages from before it became"
            " a dead-letter queue must be consumed first",
            queue=queue,
            dead_letter_queue=target,
        )
        self.named = (target,)


class BodyUnreadable(DomainError):
    """The body of a message in flight cannot be read, so the message cannot be moved; it stays in flight."""

    def __init__(self, queue: str, receipt_handle: int) -> None:
        super().__init__(
            f"the message of receipt handle {receipt_handle} in queue {queue!r} cannot be read from the disk; it stays"
            " in flight",
            value=receipt_handle,
        )


class TimeNotRewindable(DomainError):
    """A queue cannot be rewound to this time; ``nearest_ms`` is the nearest allowed time."""

    def __init__(self, name: str, time_ms: int, why: str | Sentence, nearest_ms: int | None) -> None:
        if nearest_ms is None:
            hint = sentence("set its attribute {rewind_ms} first")
        else:
            hint = sentence("the nearest time is {}", time(nearest_ms))
        super().__init__(
            sentence("queue {} cannot be rewound to {}: {}; {}", repr(name), time(time_ms), why, hint),
            field="time_ms",
            value=time_ms,
            nearest_ms=nearest_ms,
        )


class RedriveRunning(DomainError):
    """The queue has a redrive under way already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} is being redriven; wait until the redrive ends, or cancel it", queue=name)


class RedriveNotFound(DomainError):
    """The queue has never been redriven."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} has never been redriven", queue=name)


class NotTransactional(DomainError):
    """The queue takes no half messages; the attribute ``transactional`` is set when a queue is created."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"queue {name!r} is not transactional; only a creation can make a queue transactional", queue=name
        )


class TransactionNotFound(DomainError):
    """The queue has no half message of that id, and remembers no decision about such a message."""

    def __init__(self, queue: str, message_id: int) -> None:
        super().__init__(
            f"queue {queue!r} has no half message Msg-{message_id:016x}: it was never sent, has expired or was cleared",
            value=message_id,
        )


class AlreadyCommitted(DomainError):
    """A half message was committed, and a later decision says the opposite; the first decision wins."""

    def __init__(self, queue: str, message_id: int) -> None:
        super().__init__(
            f"half message Msg-{message_id:016x} of queue {queue!r} is committed already", value=message_id
        )


class AlreadyRolledBack(DomainError):
    """A half message was rolled back, and a later decision says the opposite; the first decision wins."""

    def __init__(self, queue: str, message_id: int) -> None:
        super().__init__(
            f"half message Msg-{message_id:016x} of queue {queue!r} is rolled back already", value=message_id
        )


class MessageDamaged(DomainError):
    """The body of a half message is unreadable and cannot be committed; the message stays a half message."""

    def __init__(self, queue: str, message_id: int) -> None:
        super().__init__(
            f"half message Msg-{message_id:016x} of queue {queue!r} cannot be read from the disk; it stays undecided",
            value=message_id,
        )


class TopicNotFound(DomainError):
    """No topic with this name in the account."""

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {shown(name)} does not exist; create it first", topic=name)


class TopicExists(DomainError):
    """The name is taken, in the same or in a different case."""

    def __init__(self, name: str, existing: str) -> None:
        super().__init__(_taken("topic", name, existing), topic=name, existing=existing)
        self.named = (existing,)


class TopicDiffers(DomainError):
    """The existing topic has other attributes; ``difference`` names them."""

    def __init__(self, name: str, difference: dict[str, dict[str, object]]) -> None:
        text = sentence("topic {} exists with other attributes: {}", repr(name), _differences(difference))
        super().__init__(text, topic=name, difference=difference)


class TopicInUse(DomainError):
    """A topic with subscriptions is not deleted."""

    def __init__(self, name: str, subscriptions: int) -> None:
        super().__init__(
            f"topic {name!r} has {subscriptions} subscriptions; unsubscribe them first",
            topic=name,
            subscriptions=subscriptions,
        )


class TooManyTopics(DomainError):
    """The account is at its limit of topics."""

    def __init__(self, account: str, limit: int) -> None:
        super().__init__(
            f"account {account!r} has reached its limit of {limit} topics; delete a topic first",
            account=account,
            limit=limit,
        )


class SubscriptionNotFound(DomainError):
    """The topic has no subscription with this name."""

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(f"topic {shown(topic)} has no subscription {shown(name)}", topic=topic, subscription=name)


class MessageNotWaiting(DomainError):
    """The message does not wait for the subscription: it was delivered or dropped, or never was for it."""

    def __init__(self, topic: str, name: str, message_id: int) -> None:
        super().__init__(
            f"message Msg-{message_id:016x} does not wait for subscription {name!r} of topic {topic!r}: it was "
            "delivered or dropped, its day is over, or it was not published for this subscription",
            topic=topic,
            subscription=name,
            value=f"Msg-{message_id:016x}",
        )


class MessageNotFound(DomainError):
    """No readable row of the log tells of the message, in a queue or topic that the caller may see."""

    def __init__(self, asked: str) -> None:
        super().__init__(
            f"no readable row of the log tells of {asked} in a queue or topic of this account that the key may see: it"
            " was never given to a message there, or its rows were reclaimed (the setting keep_history_ms keeps them)",
            value=asked,
        )


class MessageNotPublished(DomainError):
    """The topic does not have the message, or not any more."""

    def __init__(self, topic: str, message_id: int) -> None:
        super().__init__(
            f"topic {topic!r} does not know message Msg-{message_id:016x}: it was not published to this topic, it "
            "matched no subscription, or every subscription has had it and its part of the log was reclaimed",
            topic=topic,
            value=f"Msg-{message_id:016x}",
        )


class SubscriptionExists(DomainError):
    """The name is taken in this topic, in the same or in a different case."""

    def __init__(self, topic: str, name: str, existing: str) -> None:
        is_equal = name == existing
        why = "already exists" if is_equal else f"differs only in case from {existing!r}; use another name"
        super().__init__(
            sentence(
                "subscription {} of topic {} {}{}",
                repr(name),
                repr(topic),
                why,
                Quantity(ENSURE, "") if is_equal else "",
            ),
            topic=topic,
            subscription=name,
            existing=existing,
        )


class SubscriptionDiffers(DomainError):
    """The existing subscription has other attributes; ``difference`` names them."""

    def __init__(self, topic: str, name: str, difference: dict[str, dict[str, object]]) -> None:
        text = sentence(
            "subscription {} of topic {} exists with other attributes: {}",
            repr(name),
            repr(topic),
            _differences(difference),
        )
        super().__init__(
            text,
            topic=topic,
            subscription=name,
            difference=difference,
        )


class TooManySubscriptions(DomainError):
    """The topic is at its limit of subscriptions."""

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(
            f"topic {topic!r} has reached its limit of {limit} subscriptions; delete a subscription first",
            topic=topic,
            limit=limit,
        )


class ScheduleNotFound(DomainError):
    """No schedule with this name in the account."""

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {shown(name)} does not exist; create it first", schedule=name)


class ScheduleExists(DomainError):
    """The name is taken, in this or in another case."""

    def __init__(self, name: str, existing: str) -> None:
        super().__init__(_taken("schedule", name, existing), schedule=name, existing=existing)
        self.named = (existing,)


class ScheduleDiffers(DomainError):
    """The existing schedule has other attributes, or another message; ``difference`` names them."""

    def __init__(self, name: str, difference: dict[str, dict[str, object]]) -> None:
        text = sentence("schedule {} exists with other attributes: {}", repr(name), _differences(difference))
        super().__init__(text, schedule=name, difference=difference)


class TooManySchedules(DomainError):
    """The account is at its limit of schedules, or has no memory left for another schedule."""

    def __init__(self, account: str, share: str, limit: int) -> None:
        super().__init__(f"account {account!r} has {share}, its limit; delete one first", account=account, limit=limit)
