"""Rules about moves and rewinds: dead letters, redrives, and messages brought back by a rewind."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from support.crash.promises.history import DeadLetter, Delete, Rewind
from support.crash.promises.ledger import Ledger, Rule, Violation
from support.crash.promises.places import Message, Place


def check_one_place(ledger: Ledger) -> Iterator[Violation]:
    """A message leaves a queue at the moment of its arrival in the next queue."""
    for message in ledger.messages.values():
        for former, later in zip(message.places, message.places[1:], strict=False):
            if later.is_first:
                yield Violation(Rule.ONE_PLACE, f"{later} was stored again after it stood in {former.queue}")
            elif later.origin is not None and former.next is not later:
                yield Violation(Rule.ONE_PLACE, f"{later} came from {later.origin}, when it stood in {former.queue}")
            for received in former.received:
                if received.from_ms > later.enqueue_ms:
                    yield Violation(
                        Rule.ONE_PLACE,
                        f"{former} was received at {received.from_ms}, and stood in {later.queue} since"
                        f" {later.enqueue_ms} (server time, ms)",
                    )
        for place in message.places:
            for other in place.named_twice_by:
                yield Violation(Rule.ONE_PLACE, f"{place} was moved to {place.next} and to {other}")


def check_origins(ledger: Ledger) -> Iterator[Violation]:
    owners = {place.message_id: place for message in ledger.messages.values() for place in message.places}
    for message in ledger.messages.values():
        for place in message.places:
            origin = place.origin
            if origin is None:
                continue
            owner = owners[origin.message_id]
            if owner.message is not message:
                yield Violation(Rule.ORIGIN, f"{place} names the id of {owner}")
            elif owner.enqueue_ms != origin.enqueue_ms:
                yield Violation(Rule.ORIGIN, f"{owner} was stored at {owner.enqueue_ms}, {place} says {origin}")
            elif any(received.delivery.origin != origin for received in place.received):
                yield Violation(Rule.ORIGIN, f"{place} came with two origins")
            why_not = (
                _why_no_dead_letter(ledger, place)
                if origin.reason != "redrive"
                else _why_not_redriven(ledger, message, place)
            )
            if why_not is not None:
                yield Violation(Rule.ORIGIN, f"{place} was moved ({origin}), but {why_not}")


def _why_no_dead_letter(ledger: Ledger, place: Place) -> str | None:
    assert place.origin is not None
    attributes = ledger.attributes.get(place.origin.queue, {})
    target, most = attributes.get("dead_letter_queue", ""), attributes.get("dead_letter_max_receives", 0)
    if target != place.queue:
        return f"the dead letters of {place.origin.queue} go to {target!r}"
    if place.is_rejected:
        return _why_not_rejected(ledger, place)
    if place.origin.reason != "receives":
        return "its queue has no limit of age"
    if place.origin.receive_count != most:
        return f"messages of its queue die after {most} receives"
    return None


def _why_not_rejected(ledger: Ledger, place: Place) -> str | None:
    """The rejecting consumer must have held the lease: reason and count are from its receive."""
    origin = place.origin
    assert origin is not None
    former = next((one for one in place.message.places if one.next is place), None)
    for received in former.received if former is not None else ():
        handle = received.delivery.handle
        for operation in ledger.handle_operations.get(handle, ()):
            if (
                isinstance(operation, DeadLetter)
                and operation.may_have_worked(handle)
                and operation.reason == origin.rejection
                and received.delivery.receive_count == origin.receive_count
            ):
                return None
    return "nobody who held it then rejected it so"


def check_rejections_kept(ledger: Ledger) -> Iterator[Violation]:
    """A rejected message is not received from its queue again. The rule of kept sends checks the arrival."""
    for life in ledger.lives:
        for rejected in life.received:
            handle = rejected.delivery.handle
            for operation in ledger.handle_operations.get(handle, ()):
                if not isinstance(operation, DeadLetter) or not operation.worked(handle):
                    continue
                for received in life.received:
                    # As after a delete: the handle was the newest.
                    if received is not rejected and (
                        received.receive.called_ns > operation.answered_ns or received.from_ms > rejected.from_ms
                    ):
                        yield Violation(
                            Rule.ONE_PLACE,
                            f"{life} was rejected at count {rejected.delivery.receive_count} and delivered again",
                        )
                moved_to = life.moved_to
                if moved_to is not None and not moved_to.is_rejected:
                    yield Violation(Rule.ORIGIN, f"{life} was rejected and moved as {moved_to.origin}")


def _why_not_redriven(ledger: Ledger, message: Message, place: Place) -> str | None:
    assert place.origin is not None
    seen_ns = min(received.receive.answered_ns for received in place.received)
    former = next((one for one in message.places if one.next is place), None)
    home = former.origin.queue if former is not None and former.origin is not None else message.queue
    targets = [place.queue]
    # The source is not known for every message; then any source is possible.
    if home == place.queue or former is None or former.origin is None:
        targets.append("")
    if any(ledger.redriven_ns.get((place.origin.queue, target), seen_ns) < seen_ns for target in targets):
        return None
    return f"no redrive of {place.origin.queue} goes to {place.queue}"


def check_no_receive_too_many(ledger: Ledger) -> Iterator[Violation]:
    """A message that survived its last allowed receive is not received again."""
    for life in ledger.lives:
        most = ledger.attributes.get(life.place.queue, {}).get("dead_letter_max_receives", 0)
        for received in life.received:
            if most and received.delivery.receive_count > int(most):
                count = received.delivery.receive_count
                yield Violation(Rule.ORIGIN, f"{life} was received {count} times and not moved after {most}")


# ---------------------------------------------------------------- rewinds


def check_rewound_in_window(ledger: Ledger) -> Iterator[Violation]:
    for life in ledger.lives:
        if life.rewind is None:
            continue
        window_ms = ledger.attributes.get(life.place.queue, {}).get("rewind_ms", 0)
        from_ms = ledger.time.earliest_ms(life.rewind.called_ns) - int(window_ms)
        if life.place.enqueue_ms < from_ms:
            early = from_ms - life.place.enqueue_ms
            yield Violation(Rule.DELETE_KEPT, f"{life} was brought back {early:.0f} ms after the rewind window")


def check_rewinds_kept(ledger: Ledger) -> Iterator[Violation]:
    """After a drain: the messages that were deleted before a rewind were there again.

    The window moves during the search of a rewind: messages that leave the window before the answer need not come back.
    """
    for message in ledger.messages.values():
        if ledger.maybe_purged(message):
            continue
        for place in message.places:
            last = ledger.surely_deleted(place.lives[-1])
            rewind = _sure_rewind(ledger, place, last.answered_ns) if last is not None else None
            if rewind is not None:
                yield Violation(Rule.REWIND_KEPT, f"{place} did not come back by the rewind to {rewind.time_ms}")


def check_rewound_once(ledger: Ledger) -> Iterator[Violation]:
    """A rewind counts at most the messages that can have been deleted, and not brought back, before.

    A message that an acknowledged rewind brought back is rewindable only after a further delete. Otherwise a crash has
    undone that rewind, and the next rewind hides the loss.
    """
    deletes: dict[str, list[tuple[Place, list[Delete]]]] = defaultdict(list)
    for message in ledger.messages.values():
        for place in message.places:
            found = [delete for received in place.received for delete in ledger.deletes(received)]
            if found and ledger.rewinds[place.queue].operations:
                deletes[place.queue].append((place, found))
    for queue, rewinds in ledger.rewinds.items():
        deleted = sorted(deletes[queue], key=lambda pair: pair[0].enqueue_ms)
        for rewind in rewinds.operations:
            if not rewind.done:
                continue
            # A message that was stored after the rewind was deleted after the rewind.
            until_ms = ledger.time.latest_ms(rewind.answered_ns)
            first = bisect_left(deleted, rewind.time_ms, key=lambda pair: pair[0].enqueue_ms)
            end = bisect_right(deleted, until_ms, key=lambda pair: pair[0].enqueue_ms)
            most = sum(_is_rewindable(ledger, place, found, rewind) for place, found in deleted[first:end])
            if rewind.messages > most:
                yield Violation(
                    Rule.REWIND_KEPT,
                    f"the rewind of {queue} to {rewind.time_ms} brought back {rewind.messages} messages, of which"
                    f" {rewind.messages - most} had been brought back before",
                )


def _is_rewindable(ledger: Ledger, place: Place, deletes: Sequence[Delete], rewind: Rewind) -> bool:
    """True if a rewind may have found the message deleted, after earlier rewinds were surely carried out."""
    ended_ns = max((delete.answered_ns for delete in deletes if delete.called_ns < rewind.answered_ns), default=None)
    return ended_ns is not None and _sure_rewind(ledger, place, ended_ns, before_ns=rewind.called_ns) is None


def _sure_rewind(ledger: Ledger, place: Place, after_ns: int, *, before_ns: float = float("inf")) -> Rewind | None:
    """Return a rewind of an interval, from its call to its answer, that surely brought back the message of a place."""
    # A message leaves the window, so later rewinds need no look.
    window_ms = int(ledger.attributes.get(place.queue, {}).get("rewind_ms", 0))
    left_ns = ledger.time.passed_ns(place.enqueue_ms + window_ms)
    rewinds = ledger.rewinds[place.queue]
    for index in range(rewinds.called_until(after_ns), rewinds.called_until(min(left_ns, before_ns))):
        rewind = rewinds.operations[index]
        if rewind.answered_ns < before_ns and _surely_reached(ledger, place, rewind):
            return rewind
    return None


def _surely_reached(ledger: Ledger, place: Place, rewind: Rewind) -> bool:
    """True if the rewind goes back before the message, and the message was in the window until its end."""
    window_ms = int(ledger.attributes.get(place.queue, {}).get("rewind_ms", 0))
    left_ms = ledger.time.latest_ms(rewind.answered_ns) - window_ms
    return rewind.done and place.enqueue_ms >= max(rewind.time_ms, left_ms)
