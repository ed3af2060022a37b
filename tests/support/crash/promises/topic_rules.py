"""Rules about topics: every matching subscriber gets a publish, no other subscriber does, and failures are remembered.

Copies in queues are ordinary messages and keep all rules of messages; the rules here hold for the publish as a whole
and for pushes.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from support.crash.promises.history import (
    GetSubscription,
    GetTopic,
    History,
    PeekDeliveries,
    Publish,
    Pushed,
    RetryDelivery,
    RetryNow,
    Send,
    Subscribe,
)
from support.crash.promises.ledger import Ledger, Rule, Violation
from support.crash.promises.places import Message
from support.crash.promises.published import PublishedMessage

NOTICED_NS = 500_000_000
"""Time after a failed push until a broker that answers requests has noted the failure."""
UNDER_WAY_MS = 2_000
"""Time after the answer to a drop in which a push of the message may begin that stood in line before. Pushes that a
lost drop brings back are made until the end of the history."""
PENDING_COUNTS = ("waiting", "in_retry")


def check_publishes_kept(ledger: Ledger) -> Iterator[Violation]:
    """After a drain. A message seen anywhere counts like an acknowledged message: it was stored for all or for none."""
    for message in ledger.published:
        if not message.stored:
            continue
        rule = Rule.PUBLISH_KEPT if message.acknowledged else Rule.PUBLISH_WHOLE
        for subscription in message.subscriptions:
            if message.drops(subscription.subscription):
                continue
            if subscription.is_push and not message.is_delivered(subscription):
                tries = len(message.pushes[subscription.subscription])
                yield Violation(rule, f"{message} was not delivered to {subscription.subscription}, in {tries} tries")
        for copy in message.copies:
            if not copy.places and not ledger.maybe_purged(copy):
                yield Violation(rule, f"{message} did not come to {copy.queue}")


def check_publish_batches_whole(ledger: Ledger) -> Iterator[Violation]:
    """After a drain. Messages that were always published together are stored together, or none of them is."""
    batches: dict[tuple[int, ...], list[bool]] = defaultdict(list)
    for message in ledger.published:
        # Messages that only ever stood in deleted queues leave no trace.
        if message.pushes or not all(map(ledger.maybe_purged, message.copies)):
            batches[tuple(id(attempt) for attempt in message.attempts)].append(message.stored)
    for stored in batches.values():
        if len(set(stored)) > 1:
            yield Violation(Rule.BATCH_WHOLE, f"{stored.count(False)} of {len(stored)} published together are missing")


def check_pushed_only(ledger: Ledger) -> Iterator[Violation]:
    wanted = {id(push) for message in ledger.published for pushes in message.pushes.values() for push in pushes}
    for push in ledger.history.of_kind(Pushed):
        if id(push) not in wanted:
            yield Violation(Rule.PUSHED_ONLY, f"{push.subscription} got {push.body[:40]!r} as {push.message_id:#x}")
        if not push.is_signed:
            yield Violation(Rule.PUSH_SIGNED, f"{push.subscription} got {push.body[:40]!r} with a wrong signature")
    for message in ledger.published:
        called_ns = min(attempt.called_ns for attempt in message.attempts)
        for push in (one for pushes in message.pushes.values() for one in pushes):
            if not any(attempt.possible for attempt in message.attempts):
                yield Violation(Rule.PUSHED_ONLY, f"{message} was refused, and pushed to {push.subscription}")
            if push.answered_ns < called_ns:
                yield Violation(Rule.PUSHED_ONLY, f"{message} was pushed before it was published")
            if push.tags != message.tags:
                yield Violation(Rule.PUSHED_ONLY, f"{message} was pushed with tags {set(push.tags)}")


def check_published_once(ledger: Ledger) -> Iterator[Violation]:
    """Under one id that no other message has, and with the number of subscriptions that there were."""
    owners: dict[int, Message | PublishedMessage] = {}
    for copy in ledger.messages.values():
        owners.update(dict.fromkeys(copy.ids | {place.message_id for place in copy.places}, copy))
    for message in ledger.published:
        if len(message.ids) > 1:
            yield Violation(Rule.STORED_ONCE, f"{message} has several ids")
        for number in message.ids:
            if number in owners:
                yield Violation(Rule.ID_UNIQUE, f"{number:#x} is the id of {message} and {owners[number]}")
            owners[number] = message
        for attempt in message.attempts:
            if not attempt.done:
                continue
            matched = attempt.matched[attempt.bodies.index(message.body)]
            if matched not in {None, len(message.subscriptions)}:
                count = len(message.subscriptions)
                yield Violation(Rule.TOPIC_STATE, f"{message} matched {matched} subscriptions, where there are {count}")


def check_failures_kept(ledger: Ledger) -> Iterator[Violation]:
    """The pause before an attempt grows with the failures, over crashes too: 1, 2, 4 ... seconds.

    Only failures that the broker certainly knew are counted: the broker answered a request a while later. A push that a
    crash cut off may be repeated at once; ``retry now`` hurries failed pushes.
    """
    hurried_ns: dict[str, int] = {}
    for retry in ledger.history.of_kind(RetryNow):
        hurried_ns[retry.subscription] = min(retry.called_ns, hurried_ns.get(retry.subscription, retry.called_ns))
    heard_ns = sorted(
        (one.called_ns, one.answered_ns) for kind in (Send, Publish) for one in ledger.history.of_kind(kind) if one.done
    )
    for message in ledger.published:
        for name, pushes in message.pushes.items():
            failed = 0
            retries = [one for one in message.singles.get(name, ()) if isinstance(one, RetryDelivery) and one.possible]
            times_ns = [one.called_ns for one in retries]
            if name in hurried_ns:
                times_ns.append(hurried_ns[name])
            first_hurried_ns = min(times_ns, default=None)
            for push, later in pairwise(pushes):
                if first_hurried_ns is not None and later.called_ns >= first_hurried_ns:
                    break
                if not push.status or push.is_delivered or not _noticed(ledger.history, heard_ns, push):
                    continue
                failed += 1
                # By the broker's own clock: how long a request took to come here does not matter.
                due_s = 2 ** min(failed - 1, 9)
                came_s = later.started_s - push.started_s
                if came_s < due_s:
                    yield Violation(
                        Rule.FAILURE_KEPT,
                        f"{message} failed {failed} times at {name} and came again {came_s} s after that",
                    )


def _noticed(history: History, heard_ns: Sequence[tuple[int, int]], push: Pushed) -> bool:
    """True if a request a while after the answer to the push got its answer in the same life of the broker."""
    end = bisect_left(history.breaks_ns, push.answered_ns)
    until_ns = history.breaks_ns[end] if end < len(history.breaks_ns) else float("inf")
    first = bisect_left(heard_ns, (push.answered_ns + NOTICED_NS, 0))
    return any(answered_ns < until_ns for _, answered_ns in heard_ns[first : first + 50])


def check_in_retry_kept(ledger: Ledger) -> Iterator[Violation]:
    """A failed message stays in the count of failed messages until its delivery.

    Only subscriptions to URLs are checked: the endpoints record every delivery, while a copy to a queue has no time at
    which it was certainly noted.
    """
    told: dict[str, list[GetSubscription]] = defaultdict(list)
    urls = {one.subscription for one in ledger.history.of_kind(Subscribe) if one.is_push}
    for one in sorted(ledger.history.of_kind(GetSubscription), key=lambda one: one.called_ns):
        if one.done and one.subscription in urls:
            told[one.subscription].append(one)
    for name, counted in told.items():
        pushes = (push for message in ledger.published for push in message.pushes.get(name, ()))
        times = sorted(push.called_ns for push in pushes if push.is_delivered)
        drops = [drop for message in ledger.published for drop in message.drops(name)]
        dropped_from = sorted(drop.called_ns for drop in drops)
        dropped_by = sorted(drop.answered_ns for drop in drops)
        most: GetSubscription | None = None
        for one in counted:
            if most is not None:
                # A message that was delivered just before the first count may not have been noted at that count.
                since_ns = most.called_ns - 2_000_000_000
                gone = bisect_left(times, one.answered_ns) - bisect_left(times, since_ns)
                gone += bisect_right(dropped_from, one.answered_ns) - bisect_left(dropped_by, since_ns)
                if one.counts["in_retry"] < most.counts["in_retry"] - gone:
                    yield Violation(
                        Rule.FAILURE_KEPT,
                        f"{name} had {most.counts['in_retry']} in retry, of which at most {gone} were delivered"
                        " or dropped,"
                        f" and then {one.counts['in_retry']}",
                    )
            most = one


def check_topics_empty(ledger: Ledger) -> Iterator[Violation]:
    """After a drain: no message is retained or pending, and the drops name the messages that were given up."""
    topics = {told.queue: told for told in ledger.history.of_kind(GetTopic) if told.done}
    for topic, told in topics.items():
        if told.retained:
            yield Violation(Rule.TOPIC_STATE, f"{topic} is drained and retains {told.retained}")
    subscriptions = {told.subscription: told for told in ledger.history.of_kind(GetSubscription) if told.done}
    for name, told in subscriptions.items():
        least = sum(message.dropped_ns(name) is not None for message in ledger.published)
        most = sum(bool(message.drops(name)) for message in ledger.published)
        if any(told.counts[count] for count in PENDING_COUNTS) or not least <= told.counts["dropped"] <= most:
            yield Violation(
                Rule.TOPIC_STATE, f"{name} is drained and counts {told.counts}, after {least} to {most} drops"
            )


def check_drops_kept(ledger: Ledger) -> Iterator[Violation]:
    """A message with an acknowledged drop is not pushed, shown, retried or dropped any more.

    A push that was under way at the drop, or stood in line for its turn, may still come.
    """
    history = ledger.history
    dropped_ns: dict[tuple[str, int], int] = {}
    for message in ledger.published:
        for name, singles in message.singles.items():
            at_ns = message.dropped_ns(name)
            if at_ns is None:
                continue
            dropped_ns.update({(name, number): at_ns for number in message.ids})
            latest_ms = history.wall_ms(at_ns) + UNDER_WAY_MS
            if any(push.started_s * 1_000 > latest_ms for push in message.pushes.get(name, ())):
                yield Violation(Rule.DROP_KEPT, f"{message} was dropped for {name} and pushed after that")
            if any(single.done and single.called_ns > at_ns for single in singles):
                yield Violation(Rule.DROP_KEPT, f"{message} was dropped for {name} and waited after that")
    for peek in history.of_kind(PeekDeliveries):
        for number, _ in peek.messages:
            if peek.called_ns > dropped_ns.get((peek.subscription, number), peek.called_ns):
                yield Violation(Rule.DROP_KEPT, f"{number:#x} was dropped for {peek.subscription} and shown after that")


def check_waiting_found(ledger: Ledger) -> Iterator[Violation]:
    """A message waits until it is delivered or dropped: no retry or drop is refused before, and no peek makes up."""
    for message in ledger.published:
        stored_ns = min((one.answered_ns for one in message.attempts if one.done), default=None)
        for name, singles in message.singles.items():
            ends_ns = [drop.called_ns for drop in message.drops(name)]
            ends_ns += [push.called_ns for push in message.pushes.get(name, ()) if push.is_delivered]
            for single in singles:
                if single.possible or stored_ns is None or single.called_ns < stored_ns:
                    continue
                if not any(at_ns <= single.answered_ns for at_ns in ends_ns):
                    yield Violation(Rule.TOPIC_STATE, f"{message} waits for {name} and was refused: {single.error}")
    bodies = {message.body: message for message in ledger.published}
    for peek in ledger.history.of_kind(PeekDeliveries):
        for number, body in peek.messages:
            message = bodies.get(body)
            if message is None or not any(one.subscription == peek.subscription for one in message.subscriptions):
                yield Violation(Rule.PUSHED_ONLY, f"{peek.subscription} shows {body[:40]!r} as {number:#x}")
