"""A view into the deliveries of a topic: the messages that wait for a subscription, and the subscriptions of a message.

Facts know positions; clients know message ids. Within a topic both ascend together, so the position of an id is found
by halving, with a read of one message without its body per step: some twenty reads for a million messages. The
alternative, a table of ids in memory, would cost time and memory at every publish for a rare question.

A report has three sources: the publish record in the log names the subscriptions of the message and the copies that the
publish stored; the undelivered messages of a subscription have state, attempts and error; the drops of a subscription
distinguish dropped messages from delivered messages. A report is possible as long as the log has the publish record,
and the log keeps the record at least until no subscription waits for the message.

A retry and a drop decide when the position is known. The message may have been delivered during the look-up; then retry
and drop are refused as for a message that never waited.
"""

from collections.abc import Sequence
from typing import Any

from cmqd.core.domain_errors import (
    DomainError,
    MessageNotPublished,
    MessageNotWaiting,
    SubscriptionNotFound,
    TopicNotFound,
)
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.subscription_backlog import OPERATOR, Deliveries, Retry
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import check_range, reply_bytes
from cmqd.core.operations.topics.delivery_attempts import DeliveryAttempts
from cmqd.core.outcome import WAITING, Effects, Outcome, Waiting, Woken
from cmqd.core.runtime.lookups import Lookup, Purpose
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.pending import PendingDeliveriesPeek
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import AnyRecord, DeliveriesDropped, PublishedMessage, Runs, StoredMessage, last_of, pack_runs
from cmqd_types.deliveries import DeliveriesPeeked, DeliveryReport, MessageDeliveries, PendingMessage

MAX_MESSAGE_ID = (1 << 64) - 1


class DeliveryBacklog:
    """Shows the deliveries of a topic, and retries or drops single deliveries."""

    def __init__(self, facts: Facts, runtime: Runtime, delivery_attempts: DeliveryAttempts) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._topics = facts.topics
        self._topic_bodies = runtime.topic_bodies
        self._lane = runtime.pages.delivery_peeks
        self._lookups = runtime.lookups
        self._delivery_attempts = delivery_attempts

    # ------------------------------------------------------------------ peek

    def peek_deliveries(
        self,
        account: str,
        topic_name: str,
        name: str,
        waiter_id: int,
        start: int,
        max_messages: int,
        with_bodies: bool,
        now_ms: int,
    ) -> Outcome[DeliveriesPeeked | Waiting]:
        """Show messages that wait for a subscription, in the order of their publishes, from position ``start`` on.

        Changes no state. Messages past their day are not shown, even before a tick has removed the messages. A message
        with an unreadable body is not shown either; the next attempt drops the message.

        Raises:
            TopicNotFound, SubscriptionNotFound, InvalidArgument.
        """
        subscription = self._topics.find_subscription(account, topic_name, name)
        check_range("max_messages", max_messages, 1, self._limits.max_batch)
        check_range("start", start, 0, 1 << 62)
        topic_id = subscription.topic.topic_id
        positions = subscription.deliveries.pending_from(start, max_messages)
        messages = {position: self._topic_bodies.get(topic_id, position) for position in positions}
        found = {position: message for position, message in messages.items() if message is not None}
        peek = PendingDeliveriesPeek(
            waiter_id=waiter_id,
            topic=topic_name,
            name=name,
            subscription_id=subscription.subscription_id,
            positions=positions,
            found=found,
            with_bodies=with_bodies,
        )
        if len(found) == len(positions):
            return Outcome(self._peeked(subscription, peek, now_ms))
        effects = Effects()
        not_in_memory = [position for position in positions if position not in found]
        self._lane.want(waiter_id, topic_id, not_in_memory, self._limits.max_batch_bytes, peek, effects.reads)
        return effects.outcome(WAITING)

    def on_page(
        self,
        reading: Reading[PendingDeliveriesPeek],
        messages: Sequence[StoredMessage],
        missing: Runs,
        effects: Effects,
        now_ms: int,
    ) -> int:
        """Answer a peek with its page. Damaged messages are left to the delivery: its drop writes a record."""
        self._lane.busy.discard(reading.owner_id)
        peek = reading.request
        subscription = self._topics.subscriptions.get(peek.subscription_id)
        if subscription is None:
            effects.woken.append(Woken(peek.waiter_id, SubscriptionNotFound(peek.topic, peek.name)))
            return 0
        for message in messages:
            peek.found[message.position] = message
        settled = max(messages[-1].position if messages else -1, last_of(missing))
        # A page holds a prefix of the requested positions; the next peek starts behind the prefix.
        unread = [position for position in peek.positions if position not in peek.found and position > settled]
        if unread:
            peek.positions = [position for position in peek.positions if position < unread[0]]
            peek.go_on = unread[0]
        effects.woken.append(Woken(peek.waiter_id, self._peeked(subscription, peek, now_ms)))
        return 0

    def _peeked(self, subscription: Subscription, peek: PendingDeliveriesPeek, now_ms: int) -> DeliveriesPeeked:
        deliveries = subscription.deliveries
        expired_ms = now_ms - self._limits.topic_life_ms
        shown: list[PendingMessage] = []
        size = 0
        next_start = peek.go_on
        for position in peek.positions:
            message = peek.found.get(position)
            state = deliveries.state_of(position)
            if message is None or state is None or message.enqueue_ms <= expired_ms:
                continue
            if peek.with_bodies:
                size += reply_bytes(message) + _text_bytes(message, deliveries.retries.get(position))
                if size > self._limits.max_batch_bytes and shown:
                    next_start = position
                    break
            retry = deliveries.retries.get(position)
            shown.append(
                PendingMessage(
                    message_id=message.message_id,
                    state=state,
                    publish_ms=message.enqueue_ms,
                    size=len(message.body),
                    attempts=0 if retry is None else retry.attempts,
                    next_attempt_ms=_next_ms(deliveries, position),
                    last_error=None if retry is None else retry.error or None,
                    last_failed_ms=None if retry is None else retry.failed_ms or None,
                    labels=message.labels or None,
                    body=message.body if peek.with_bodies else None,
                    headers=message.headers if peek.with_bodies else None,
                )
            )
        if next_start is None and peek.positions:
            behind = deliveries.pending_from(peek.positions[-1] + 1, 1)
            next_start = behind[0] if behind else None
        return DeliveriesPeeked(messages=shown, next_start=next_start)

    # ------------------------------------------------------------------ one message

    def retry_delivery(
        self, account: str, topic_name: str, name: str, waiter_id: int, message_id: int
    ) -> Outcome[int | Waiting]:
        """Retry a message of a subscription at once; the reply is 1, or 0 if the message waits for its turn.

        Not a fact: after a restart a message that was not retried yet keeps its former time.

        Raises:
            TopicNotFound, SubscriptionNotFound.
            MessageNotWaiting: the message does not wait for this subscription.
        """
        subscription = self._topics.find_subscription(account, topic_name, name)
        return self._look_up_pending(subscription, "retry", waiter_id, message_id)

    def drop_delivery(
        self, account: str, topic_name: str, name: str, waiter_id: int, message_id: int
    ) -> Outcome[int | Waiting]:
        """Drop a message of a subscription; the reply is 1. An attempt under way may still deliver the message.

        Raises:
            TopicNotFound, SubscriptionNotFound.
            MessageNotWaiting: the message does not wait for this subscription.
        """
        subscription = self._topics.find_subscription(account, topic_name, name)
        return self._look_up_pending(subscription, "drop", waiter_id, message_id)

    def message_deliveries(
        self, account: str, topic_name: str, waiter_id: int, message_id: int
    ) -> Outcome[MessageDeliveries | Waiting]:
        """Report the deliveries of a published message, by subscription.

        Raises:
            TopicNotFound.
            MessageNotPublished: the topic does not have the message, or has it no longer.
        """
        topic = self._topics.find(account, topic_name)
        check_range("message_id", message_id, 1, MAX_MESSAGE_ID)
        lookup = Lookup(
            waiter_id=waiter_id,
            purpose="report",
            topic=topic_name,
            topic_id=topic.topic_id,
            message_id=message_id,
            low=0,
            high=topic.next_position,
        )
        return self._go_on(lookup)

    def _look_up_pending(
        self, subscription: Subscription, purpose: Purpose, waiter_id: int, message_id: int
    ) -> Outcome[Any]:
        check_range("message_id", message_id, 1, MAX_MESSAGE_ID)
        topic, deliveries = subscription.topic, subscription.deliveries
        low, high = deliveries.first_pending(), deliveries.last_pending()
        lookup = Lookup(
            waiter_id=waiter_id,
            purpose=purpose,
            topic=topic.name,
            topic_id=topic.topic_id,
            message_id=message_id,
            low=0 if low is None else low,
            high=0 if high is None else high + 1,
            subscription=subscription.name,
            subscription_id=subscription.subscription_id,
        )
        return self._go_on(lookup)

    def published_read(self, read_id: int, message: PublishedMessage | None, now_ms: int) -> Outcome[None]:
        """Take the log's answer to a ``PublishedRead``: the first message from the middle of a look-up on."""
        effects = Effects()
        lookup = self._lookups.take(read_id)
        if lookup is None:
            return effects.outcome(None)
        try:
            outcome = self._narrow(lookup, message, now_ms)
        except DomainError as refusal:
            effects.woken.append(Woken(lookup.waiter_id, refusal))
            return effects.outcome(None)
        if outcome.reply is not WAITING:
            effects.woken.append(Woken(lookup.waiter_id, outcome.reply))
        effects.add(outcome)
        return effects.outcome(None)

    def _narrow(self, lookup: Lookup, message: PublishedMessage | None, now_ms: int) -> Outcome[Any]:
        """Take a step of the halving: compare the message that was read with the wanted id."""
        if message is None or message.message_id > lookup.message_id:
            # No message between the middle and this message is readable, so the wanted message is below the middle.
            lookup.high = lookup.middle
        elif message.message_id < lookup.message_id:
            lookup.low = message.position + 1
        elif lookup.purpose == "report":
            topic = self._topics.by_id.get(lookup.topic_id)
            if topic is None:
                raise TopicNotFound(lookup.topic)
            return Outcome(self._report(topic, message, now_ms))
        else:
            return self._decide(lookup, message.position, now_ms)
        return self._go_on(lookup)

    def _go_on(self, lookup: Lookup) -> Outcome[Any]:
        """Read the message of the next step, or refuse if no position is left."""
        if lookup.low >= lookup.high:
            raise self._refusal(lookup)
        lookup.middle = (lookup.low + lookup.high) // 2
        return Outcome(WAITING, published_reads=[self._lookups.read(lookup)])

    def _refusal(self, lookup: Lookup) -> DomainError:
        """Return the refusal of a look-up without a result."""
        if lookup.topic_id not in self._topics.by_id:
            return TopicNotFound(lookup.topic)
        if lookup.purpose == "report":
            return MessageNotPublished(lookup.topic, lookup.message_id)
        if lookup.subscription_id not in self._topics.subscriptions:
            return SubscriptionNotFound(lookup.topic, lookup.subscription)
        return MessageNotWaiting(lookup.topic, lookup.subscription, lookup.message_id)

    def _decide(self, lookup: Lookup, position: int, now_ms: int) -> Outcome[int]:
        """Retry or drop the message that was looked up."""
        subscription = self._topics.subscriptions.get(lookup.subscription_id)
        # Examined now and not when the look-up began: the message may have been delivered in between.
        if subscription is None or not subscription.deliveries.is_pending(position):
            raise self._refusal(lookup)
        topic, deliveries = subscription.topic, subscription.deliveries
        records: list[AnyRecord] = []
        done = 1
        if lookup.purpose == "retry":
            done = int(deliveries.hurry(position))
        else:
            positions = pack_runs([position])
            record = DeliveriesDropped(topic.topic_id, subscription.subscription_id, positions, OPERATOR, now_ms)
            self._topics.apply(topic, record)
            records.append(record)
        # Under backoff a drop makes room for the next message, and a retry starts an attempt.
        self._delivery_attempts.plan(subscription, now_ms)
        return Outcome(done, records)

    # ------------------------------------------------------------------ the report

    def _report(self, topic: Topic, message: PublishedMessage, now_ms: int) -> MessageDeliveries:
        reports = [self._of_copy(topic, message, *copy) for copy in message.copies]
        is_over = message.position < topic.floor or message.enqueue_ms <= now_ms - self._limits.topic_life_ms
        for subscription_id in message.waiting:
            subscription = topic.subscriptions.get(subscription_id)
            if subscription is None:
                # Removed: the name and the facts about the deliveries went with the subscription.
                reports.append(DeliveryReport(subscription=None, state="unknown"))
            else:
                reports.append(self._of_waiting(subscription, message.position, is_over))
        return MessageDeliveries(
            message_id=message.message_id,
            publish_ms=message.enqueue_ms,
            size=message.size,
            deliveries=reports,
            labels=message.labels or None,
        )

    def _of_copy(
        self, topic: Topic, message: PublishedMessage, name: str, queue_id: int, copy_id: int
    ) -> DeliveryReport:
        """Report a copy that the publish stored: delivered, whether the queue still has the copy or not."""
        queue = self._queues.by_id.get(queue_id)
        return DeliveryReport(
            subscription=name,
            state="delivered",
            endpoint=None if queue is None else queue.name,
            attempts=0,
            delivered_ms=message.enqueue_ms,
            copy_id=copy_id,
        )

    def _of_waiting(self, subscription: Subscription, position: int, is_over: bool) -> DeliveryReport:
        """Report the delivery of a message that waited when its publish was answered."""
        deliveries = subscription.deliveries
        endpoint = subscription.attributes.endpoint
        state = deliveries.state_of(position)
        if state is not None and not is_over:
            retry = deliveries.retries.get(position)
            return DeliveryReport(
                subscription=subscription.name,
                state=state,
                endpoint=endpoint,
                attempts=0 if retry is None else retry.attempts,
                next_attempt_ms=_next_ms(deliveries, position),
                last_error=None if retry is None else retry.error or None,
                last_failed_ms=None if retry is None else retry.failed_ms or None,
            )
        reason = deliveries.drops.reason_of(position)
        if reason is not None:
            return DeliveryReport(
                subscription=subscription.name, state="dropped", endpoint=endpoint, drop_reason=reason
            )
        known_from = deliveries.drops.known_from
        # At the end of its day a message is removed without a record; the message may have been delivered or not.
        is_known = not is_over and known_from is not None and position >= known_from
        return DeliveryReport(
            subscription=subscription.name, state="delivered" if is_known else "unknown", endpoint=endpoint
        )


def _text_bytes(message: StoredMessage, retry: Retry | None) -> int:
    """Return the bytes of labels and error in a reply."""
    labels = message.labels or []
    texts = [labels] if isinstance(labels, str) else labels
    return sum(2 + len(text.encode()) for text in texts) + (0 if retry is None else len(retry.error.encode()))


def _next_ms(deliveries: Deliveries, position: int) -> int | None:
    retry = deliveries.retries.get(position)
    return None if retry is None or position in deliveries.under_way else retry.next_ms or None
