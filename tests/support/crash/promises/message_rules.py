"""Rules about messages as wholes: kept, sent only once, never invented, gone when deleted."""

from collections import defaultdict
from collections.abc import Iterator

from support.crash.promises.history import Delivery, Receive
from support.crash.promises.ledger import Ledger, Rule, Violation
from support.crash.promises.places import Message


def check_sends_kept(ledger: Ledger) -> Iterator[Violation]:
    """After a drain. A message seen once counts like an acknowledged message: its lease was durable."""
    for message in ledger.messages.values():
        # A half message need not be delivered; a delivered half message counts like other messages.
        expected = bool(message.places) if message.is_half else message.stored
        if expected and not ledger.gone(message):
            received = message.received
            last = f"last seen with count {received[-1].delivery.receive_count}" if received else "never seen"
            yield Violation(Rule.SEND_KEPT, f"{message} is lost ({last})")


def check_batches_whole(ledger: Ledger) -> Iterator[Violation]:
    """After a drain. Messages that were always sent together are stored together, or all are missing."""
    batches: dict[tuple[int, ...], list[Message]] = defaultdict(list)
    for message in ledger.messages.values():
        batches[tuple(id(attempt) for attempt in message.attempts)].append(message)
    for batch in batches.values():
        missing = [message for message in batch if not message.stored and not ledger.maybe_purged(message)]
        if missing and len(missing) < len(batch):
            yield Violation(Rule.BATCH_WHOLE, f"{len(missing)} of {len(batch)} are missing: {missing[0]}")


def check_sent_only(ledger: Ledger) -> Iterator[Violation]:
    for received in ledger.strangers:
        delivery = received.delivery
        yield Violation(
            Rule.SENT_ONLY,
            f"{received.receive.queue} delivered {delivery.body[:40]!r} as {delivery.message_id:#x}",
        )
    for message in ledger.messages.values():
        if not message.places:
            continue
        if not any(attempt.possible for attempt in message.attempts):
            yield Violation(Rule.SENT_ONLY, f"{message} was refused, and delivered")
        headers, called_ns = message.headers, message.called_ns
        for place in message.places:
            for received in place.received:
                if received.receive.answered_ns < called_ns:
                    yield Violation(Rule.SENT_ONLY, f"{message} was delivered before it was sent")
                if (received.delivery.headers or None) != headers:
                    yield Violation(Rule.SENT_ONLY, f"{message} came with headers {received.delivery.headers!r}")
                if received.delivery.enqueue_ms != place.enqueue_ms:
                    yield Violation(Rule.SENT_ONLY, f"{place} came with two enqueue times")


def check_ids(ledger: Ledger) -> Iterator[Violation]:
    owners: dict[int, list[Message]] = defaultdict(list)
    for message in ledger.messages.values():
        for number in message.ids | {place.message_id for place in message.places}:
            owners[number].append(message)
        if len(message.ids) > 1:
            yield Violation(Rule.STORED_ONCE, f"{message} has several ids")
    for number, messages in owners.items():
        if len(messages) > 1:
            yield Violation(Rule.ID_UNIQUE, f"{number:#x} is the id of {messages[0]} and {messages[1]}")


def check_handles_unique(ledger: Ledger) -> Iterator[Violation]:
    seen: dict[int, Delivery] = {}
    for receive in ledger.history.of_kind(Receive):
        for delivery in receive.deliveries:
            if delivery.handle in seen:
                yield Violation(
                    Rule.HANDLE_UNIQUE,
                    f"{delivery.handle} was given with {seen[delivery.handle].body[:24]!r} and {delivery.body[:24]!r}",
                )
            seen[delivery.handle] = delivery


def check_deletes_kept(ledger: Ledger) -> Iterator[Violation]:
    """In one life: messages that a rewind brought back live again."""
    for life in ledger.lives:
        for deleted in life.received:
            for operation in ledger.deletes(deleted):
                if not operation.done:
                    continue
                for received in life.received:
                    # The delete needed the newest handle, so a later lease can only have been given after the rewind.
                    if received is not deleted and (
                        received.receive.called_ns > operation.answered_ns or received.from_ms > deleted.from_ms
                    ):
                        yield Violation(
                            Rule.DELETE_KEPT,
                            f"{life} was deleted at count {deleted.delivery.receive_count} and delivered"
                            f" again with count {received.delivery.receive_count}",
                        )
                if life.moved_to is not None:
                    yield Violation(Rule.DELETE_KEPT, f"{life} was deleted and then moved to {life.moved_to.queue}")


def check_clears_kept(ledger: Ledger) -> Iterator[Violation]:
    for message in ledger.messages.values():
        for received in (one for place in message.places if place.is_first for one in place.received):
            barrier = ledger.purged_before(message, received.receive.called_ns)
            if barrier is not None:
                what = type(barrier).__name__
                yield Violation(Rule.CLEAR_KEPT, f"{message} was delivered after a {what} that followed it")
                break


def check_delays_kept(ledger: Ledger) -> Iterator[Violation]:
    for message in ledger.messages.values():
        for place in message.places:
            for received in place.received[:1]:
                due_ms = place.enqueue_ms + (message.attempts[0].delay_ms if place.is_first else 0)
                if received.from_ms < due_ms:
                    early = due_ms - received.from_ms
                    yield Violation(Rule.DELAY_KEPT, f"{message} was delivered {early} ms early")
