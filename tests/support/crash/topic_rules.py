"""Rules about topics: every matching subscriber gets a publish, no other subscriber does, and failures are remembered.

Copies in queues are ordinary messages and keep all rules of messages; the rules here hold for the publish as a whole
and for pushes.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from support.crash.history import GetSubscription, GetTopic, History, Publish, Pushed, RetryNow, Send, Subscribe
from support.crash.ledger import Ledger, Rule, Violation

NOTICED_NS = 500_000_000
"""Time after a failed push until a broker that answers requests has noted the failure."""
PENDING_COUNTS = ("waiting", "in_retry")


def check_publishes_kept(ledger: Ledger) -> Iterator[Violation]:
    """After a drain. A message seen anywhere counts like an acknowledged message: it was stored for all or for none."""
    for message in ledger.published:
        if not message.stored:
            continue
        rule = Rule.PUBLISH_KEPT if message.acknowledged else Rule.PUBLISH_WHOLE
        for subscription in message.subscriptions:
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
    owners: dict[int, str] = {}
    for copy in ledger.messages.values():
        owners.update(dict.fromkeys(copy.ids | {place.message_id for place in copy.places}, str(copy)))
    for message in ledger.published:
        if len(message.ids) > 1:
            yield Violation(Rule.STORED_ONCE, f"{message} has several ids")
        for number in message.ids:
            if number in owners:
                yield Violation(Rule.ID_UNIQUE, f"{number:#x} is the id of {message} and {owners[number]}")
            owners[number] = str(message)
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
            for push, later in pairwise(pushes):
                if later.called_ns >= hurried_ns.get(name, later.called_ns + 1):
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
        most: GetSubscription | None = None
        for one in counted:
            if most is not None:
                # A message that was delivered just before the first count may not have been noted at that count.
                first = bisect_left(times, most.called_ns - 2_000_000_000)
                gone = bisect_left(times, one.answered_ns) - first
                if one.counts["in_retry"] < most.counts["in_retry"] - gone:
                    yield Violation(
                        Rule.FAILURE_KEPT,
                        f"{name} had {most.counts['in_retry']} in retry, of which at most {gone} were delivered,"
                        f" and then {one.counts['in_retry']}",
                    )
            most = one


def check_topics_empty(ledger: Ledger) -> Iterator[Violation]:
    """After a drain: no message is retained, pending or given up."""
    topics = {told.queue: told for told in ledger.history.of_kind(GetTopic) if told.done}
    for topic, told in topics.items():
        if told.retained:
            yield Violation(Rule.TOPIC_STATE, f"{topic} is drained and retains {told.retained}")
    subscriptions = {told.subscription: told for told in ledger.history.of_kind(GetSubscription) if told.done}
    for name, told in subscriptions.items():
        if any(told.counts[count] for count in (*PENDING_COUNTS, "dropped")):
            yield Violation(Rule.TOPIC_STATE, f"{name} is drained and counts {told.counts}")
