"""Delivering: the messages that wait for a subscription, to its queue or its URL.

:class:`~cmqd.core.facts.subscription_backlog.Deliveries` decides which deliveries are due. This module finds the
body, in memory or in a page of the log, and carries out the attempt. A copy into a queue is stored at once, in a single
row with the fact of the delivery; two rows would lose or repeat the copy after a crash. A push leaves the core in an
outcome, and the result comes back through :meth:`DeliveryAttempts.pushes_ended`.

Attempts in progress exist only in memory, and a restart repeats them: an attempt recorded before the POST could be
counted as made without ever having been sent. Subscriptions are independent except for the slots of a URL and the limit
of requests in all, so a slow URL does not hold up the other subscriptions.

The order of an attempt:

1. Room is asked for: slots of the URL, or units of the tick for a queue. Then the memory for failures is bounded. Both
   come before the start, because a start without room would be taken back at once, and a failure without memory could
   not be remembered.
2. :meth:`Deliveries.start` chooses the messages. From here on every message is under way, and must end in a fact or be
   given back. A message that does neither is never tried again before a restart.
3. The body is found. While a page is read, the message keeps its slot; otherwise two subscriptions could be promised
   the same slot, and a URL would get more requests at once than its limit allows.
4. The result is judged, and becomes a record. :meth:`DeliveryAttempts.plan` plans last, from the facts after
   the record.
"""

from collections.abc import Iterator, Sequence

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.retry_schedule import BACKOFF, backoff_pause_ms, next_attempt_ms
from cmqd.core.facts.subscription_backlog import DAMAGED
from cmqd.core.facts.topic import Subscription
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.sending.storing import Store
from cmqd.core.outcome import Effects, Outcome, Push, PushResult
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    Runs,
    StoredMessage,
    TopicMessagesExpired,
    pack_runs,
    unpack_runs,
)
from cmqd_types.messages import CopyOf

SUBSCRIPTIONS_A_TICK = 64
"""Largest number of subscriptions that a tick examines: a few microseconds per subscription."""
DELIVERIES_A_TICK = 64
"""Deliveries that a tick starts, about: up to 30 microseconds per delivery, and a tick may take 2 ms."""
HELD_UP_MS = 1_000
"""Pause before copies into queues are tried again while the disk is nearly full."""
READ_AHEAD = 64
"""Messages that a page reads beside the started deliveries: 16 KiB of messages of 256 bytes."""


class DeliveryAttempts:
    """Brings messages of topics to their subscribers."""

    def __init__(self, facts: Facts, runtime: Runtime, store: Store, serving: Serving, seed: int) -> None:
        """``seed``: any number, for the random part of pauses between deliveries."""
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._topics = facts.topics
        self._of_topic = runtime.of_topic
        self._topic_runtimes = runtime.topics
        self._agenda = runtime.agenda
        self._lane = runtime.pages.deliveries
        self._slots = runtime.push_slots
        self._retries = runtime.retries
        self._topic_bodies = runtime.topic_bodies
        self._gates = runtime.gates
        self._store = store
        self._serving = serving
        self._jitter_seed = seed

    def pushes_ended(self, results: Sequence[PushResult], now_ms: int) -> Outcome[None]:
        """Record the results of posts to URLs. A result is ignored if its message or subscription is gone by now."""
        records: list[AnyRecord] = []
        delivered: dict[int, list[int]] = {}
        failed: dict[tuple[int, str], list[tuple[int, int]]] = {}
        touched: dict[int, None] = {}
        for result in results:
            # The slot is free whatever became of the subscription. The line of the URL goes on even if nothing else
            # does.
            self._slots.give_back(result.subscription_id, result.position)
            subscription = self._topics.subscriptions.get(result.subscription_id)
            if subscription is None:
                continue
            touched[result.subscription_id] = None
            deliveries = subscription.deliveries
            # Trust belongs to the URL and not to the message. The answer tells whether the target works, even if the
            # message was dropped during the request.
            if result.error is None:
                self._slots.trusted[subscription.attributes.endpoint] = None
            else:
                self._slots.trusted.pop(subscription.attributes.endpoint, None)
            # Dropped by an operator, or expired during the request: the counts have the message already, so the attempt
            # ends without a record.
            if result.position not in deliveries.under_way or not deliveries.is_pending(result.position):
                deliveries.given_back(result.position)
            elif result.error is None:
                delivered.setdefault(result.subscription_id, []).append(result.position)
            else:
                # A record has one error for all its positions. A dead URL fails most pushes with the same text, so a
                # record per text is seldom more than one.
                key = (result.subscription_id, result.error)
                failed.setdefault(key, []).append((result.position, result.started_ms))
        # Successes before failures: a success unblocks, and a failure that came with it blocks again, as if it had come
        # later. The other way round a subscription with a failing message would never be held up.
        for subscription_id, positions in delivered.items():
            self._note_delivered(self._topics.subscriptions[subscription_id], positions, records, now_ms)
        for (subscription_id, error), attempts in failed.items():
            self._note_failures(self._topics.subscriptions[subscription_id], attempts, error, records, now_ms)
        # After all records, once for a subscription, and also for a subscription without a record: its attempt ended,
        # and under backoff the next message may start.
        for subscription_id in touched:
            self.plan(self._topics.subscriptions[subscription_id], now_ms)
        return Outcome(None, records)

    # ------------------------------------------------------------------ planning

    def plan(self, subscription: Subscription, now_ms: int) -> None:
        """Plan the deliveries of a subscription after a change.

        Every change of a subscription or of its deliveries must be followed by this call. Otherwise due deliveries
        wait until the next unrelated change, or publishes go on storing copies for a blocked subscription.
        """
        self._settle(subscription)
        due_ms = subscription.deliveries.next_due_ms(now_ms)
        # No time brings an attempt. A result, a publish or changed attributes bring it, and each of these plans again.
        if due_ms is None:
            return
        if due_ms <= now_ms:
            self._agenda.deliveries_wanted[subscription.subscription_id] = None
        else:
            self._agenda.deliveries.set(subscription.subscription_id, due_ms)

    def _settle(self, subscription: Subscription) -> None:
        """Bring the shared retry memory, the route of publishes and the table of exhausted messages up to date."""
        deliveries, topic = subscription.deliveries, subscription.topic
        # Counted first: the bound compares the count over all subscriptions with the limit. With a stale count a
        # subscription would try new messages without memory for their failures.
        self._retries.count(subscription)
        # The bound is set again before every start, because other subscriptions use the same memory.
        self._retries.bound(subscription)
        flows = subscription.may_flow()
        # Only a change raises the revision of routes. Every raise discards the audiences of the topic, and the next
        # publish would sort its subscriptions anew.
        if flows != subscription.flows:
            subscription.flows = flows
            topic.routes += 1
        # A publish revives exhausted messages. This table spares the publish a search through all subscriptions of the
        # topic.
        if deliveries.exhausted:
            self._of_topic(topic).exhausted[subscription.subscription_id] = subscription
        elif topic.topic_id in self._topic_runtimes:
            self._topic_runtimes[topic.topic_id].exhausted.pop(subscription.subscription_id, None)

    def forget(self, subscription: Subscription) -> None:
        """Release the slots, retries and plans of a removed subscription."""
        # Slots of requests under way are not released here: the requests are still made. ``pushes_ended`` releases
        # every slot before it searches for the subscription.
        self._retries.forget(subscription)
        self._of_topic(subscription.topic).exhausted.pop(subscription.subscription_id, None)
        self._agenda.deliveries.discard(subscription.subscription_id)
        self._slots.leave(subscription)

    def tick(self, effects: Effects, now_ms: int) -> None:
        """Start due deliveries of a few subscriptions."""
        plan, wanted = self._agenda.deliveries, self._agenda.deliveries_wanted
        # Due subscriptions join the line behind the subscriptions that wait already; in the line, a subscription keeps
        # its place.
        while plan.is_due(now_ms):
            subscription_id = plan.take(now_ms)
            if subscription_id is not None:
                wanted[subscription_id] = None
        left = DELIVERIES_A_TICK
        # A copy of the first entries: the loop removes entries, and a subscription with more to deliver is entered
        # again, at the end. A subscription with a long backlog would otherwise stay in front and starve the others.
        for subscription_id in list(wanted)[:SUBSCRIPTIONS_A_TICK]:
            if left <= 0:
                break
            del wanted[subscription_id]
            subscription = self._topics.subscriptions.get(subscription_id)
            if subscription is None:
                continue
            if subscription_id in self._lane.busy or subscription_id in self._lane.line:
                # The page that is awaited plans this subscription again. Its turn at the URL goes to another.
                self._slots.wake_next(subscription.attributes.endpoint)
            else:
                left -= self._deliver(subscription, left, effects, now_ms)
        self._tick_topic_expiries(effects, now_ms)

    def _tick_topic_expiries(self, effects: Effects, now_ms: int) -> None:
        """Expire old messages of a topic."""
        topic_id = self._agenda.topic_expiries.take(now_ms)
        topic = None if topic_id is None else self._topics.by_id.get(topic_id)
        if topic is None:
            return
        floor = topic.steps.floor_at(now_ms - self._limits.topic_life_ms, topic.next_position)
        # A record only if a subscription loses a message. Most topics deliver at once, and would write a row in every
        # time step for an expiry without effect.
        if topic.live_in(0, floor):
            record = TopicMessagesExpired(topic.topic_id, floor)
            self._topics.apply(topic, record)
            effects.records.append(record)
            # An expiry can end a block, and under backoff it can remove the message that holds up the others.
            for subscription in topic.subscriptions.values():
                self.plan(subscription, now_ms)
        # Nothing waits below the floor, so the steps go without a record. After a restart the tick comes to the same
        # result.
        elif floor == topic.next_position:
            topic.steps.clear()
        else:
            topic.steps.drop_below(floor)
        # At the next millisecond at the earliest: the first step that remains can be due already while a part of the
        # step is not expired, and the topic would be examined again and again in this tick.
        self._agenda.plan_topic_expiry(topic, now_ms + 1)

    # ------------------------------------------------------------------ attempts

    def _deliver(self, subscription: Subscription, most: int, effects: Effects, now_ms: int) -> int:
        """Start due deliveries, as far as slots or units allow; returns the number of started deliveries."""
        if subscription.is_push:
            if not self._gates.pushing:
                return 0
            # Without room the subscription is in a line of the slots, which puts it into ``deliveries_wanted`` when its
            # turn comes. So no plan by time is made here; it would ask in vain.
            room = self._slots.room(subscription)
        else:
            if self._gates.moves_held_up:
                # A copy is a new message in the log, and the disk has no room for messages now. The attempt is not
                # made, and so not counted: the queue did not refuse anything.
                self._agenda.deliveries.set(subscription.subscription_id, now_ms + HELD_UP_MS)
                return 0
            # A queue answers at once and needs no slot. The units of the tick are the only limit.
            room = most
        if room <= 0:
            return 0
        # The bound is set right before the start, because deliveries of other subscriptions changed the memory that is
        # left.
        deliveries = subscription.deliveries
        self._retries.bound(subscription)
        started = deliveries.start(now_ms, room)
        count = len(started)
        if subscription.is_push:
            # Taken before the bodies are found, see the module. Slots that the subscription cannot use go to the next
            # in line, or they would stay free until a request ends.
            self._slots.take(subscription, [position for position, _ in started])
            if count < room:
                self._slots.wake_next(subscription.attributes.endpoint)
        self._carry_out(subscription, started, effects, now_ms)
        if not subscription.is_push and deliveries.strategy == BACKOFF:
            # Backoff delivers in order, one message after the other. A queue answers at once, so the next delivery
            # can start in the same tick.
            while started and count < most and subscription.subscription_id not in self._lane.busy:
                started = deliveries.start(now_ms, 1)
                count += len(started)
                self._carry_out(subscription, started, effects, now_ms)
        # A page under way plans the subscription when the page arrives. A plan made now would put the subscription back
        # into the line of the tick, to be passed over again and again. The route must not wait for the page: a message
        # with its body in memory may have failed just now, and publishes must not go on to its queue.
        if subscription.subscription_id in self._lane.busy:
            self._settle(subscription)
        else:
            self.plan(subscription, now_ms)
        return count

    def _carry_out(
        self, subscription: Subscription, started: Sequence[tuple[int, int]], effects: Effects, now_ms: int
    ) -> None:
        """Attempt the deliveries with bodies in memory, and read the bodies of the others."""
        topic_id, deliveries = subscription.topic.topic_id, subscription.deliveries
        in_memory: list[StoredMessage] = []
        elsewhere: list[int] = []
        for position, _ in started:
            message = self._topic_bodies.get(topic_id, position)
            if message is None:
                elsewhere.append(position)
            else:
                in_memory.append(message)
        # Given back while the lane is full, because the line may be long: the slots would stay unused all that time.
        # The messages with bodies in memory go out all the same.
        if elsewhere and not self._lane.has_room:
            # Both, the attempt and its slot: a slot without an attempt would be lost until the next restart.
            for position in elsewhere:
                deliveries.given_back(position)
                self._slots.give_back(subscription.subscription_id, position)
            self._lane.line[subscription.subscription_id] = None
        elif elsewhere:
            elsewhere.sort()
            # A page costs a round trip to the storage, so the messages that are likely to be next are read too. They
            # must be behind the started messages: a page may return only a prefix, and with other messages in front
            # the started deliveries could be left out again and again.
            ahead = [
                one
                for one in deliveries.upcoming(READ_AHEAD)
                if one > elsewhere[-1] and self._topic_bodies.get(topic_id, one) is None
            ]
            positions, max_bytes = elsewhere + ahead, self._limits.page_bytes
            self._lane.want(subscription.subscription_id, topic_id, positions, max_bytes, elsewhere, effects.reads)
        if in_memory:
            self._attempt(subscription, in_memory, effects, now_ms)

    def on_page(
        self,
        reading: Reading[list[int]],
        messages: Sequence[StoredMessage],
        missing: Runs,
        effects: Effects,
        now_ms: int,
    ) -> int:
        """Attempt the deliveries with bodies in a page."""
        subscription_id, positions = reading.owner_id, reading.request
        # Before all else: while the owner is busy, every tick passes the subscription over.
        self._lane.busy.discard(subscription_id)
        damaged = 0
        subscription = self._topics.subscriptions.get(subscription_id)
        if subscription is None:
            # The subscription ended during the read, and left the slots of these attempts to the page.
            for position in positions:
                self._slots.give_back(subscription_id, position)
        else:
            deliveries = subscription.deliveries
            started = set(positions)
            wanted: list[StoredMessage] = []
            for message in messages:
                # Bodies that were read ahead wait in memory. Their attempts have not started, so they have no slots.
                if message.position not in started:
                    self._topic_bodies.keep(subscription.topic.topic_id, message)
                elif deliveries.is_pending(message.position):
                    wanted.append(message)
            come = {message.position for message in wanted}
            lost = [one for one in unpack_runs(missing) if deliveries.is_pending(one)]
            for position in positions:
                if position not in come:
                    # The body is beyond the size of the page, gone since the read was requested, or unreadable.
                    deliveries.given_back(position)
                    self._slots.give_back(subscription_id, position)
            # A damaged body will not come, so the message is dropped by a record. Kept, it would be read again and
            # again, and under backoff it would hold up every message behind it until it expires.
            if lost:
                damaged = len(lost)
                self._note_dropped(subscription, lost, DAMAGED, effects.records, now_ms)
            if wanted:
                self._attempt(subscription, wanted, effects, now_ms)
            self.plan(subscription, now_ms)
        line = self._lane.line
        if line:
            # The whole line and not its first entry: subscriptions with bodies that came into memory meanwhile need no
            # page, and the others come back into the line.
            self._agenda.deliveries_wanted.update(line)
            line.clear()
        return damaged

    def _attempt(
        self, subscription: Subscription, messages: Sequence[StoredMessage], effects: Effects, now_ms: int
    ) -> None:
        """Carry out started attempts with these bodies."""
        if not subscription.is_push:
            self.deliver_to_queue(subscription, messages, effects, now_ms)
            return
        topic, attributes = subscription.topic, subscription.attributes
        if not self._gates.pushing:
            # The client of the core stopped posting while the body was read. Given back, the attempts are not counted.
            for message in messages:
                subscription.deliveries.given_back(message.position)
                self._slots.give_back(subscription.subscription_id, message.position)
            return
        # The number of the attempt goes with the push, so that a receiver can tell a repeat from a first attempt.
        under_way = subscription.deliveries.under_way
        effects.pushes += [
            Push(
                account=topic.account,
                topic=topic.name,
                subscription=subscription.name,
                subscription_id=subscription.subscription_id,
                url=attributes.endpoint,
                content_format=attributes.content_format,
                message=message,
                attempt=under_way[message.position],
            )
            for message in messages
        ]

    def deliver_to_queue(
        self, subscription: Subscription, messages: Sequence[StoredMessage], effects: Effects, now_ms: int
    ) -> None:
        """Store copies that could not be stored when the messages were published."""
        queue = subscription.target
        fitting: list[StoredMessage] = []
        refused: dict[str, list[tuple[int, int]]] = {}
        for message in messages:
            if queue is None:
                why = f"queue {subscription.attributes.endpoint!r} does not exist"
            else:
                # The messages accepted in this step are not in the index yet, so they are counted beside it. Without
                # them a step could overfill the queue.
                why = refusal(queue, len(message.body), len(fitting))
            if why:
                refused.setdefault(why, []).append((message.position, now_ms))
            else:
                fitting.append(message)
        if queue is not None and fitting:
            for some in _cut(fitting, self._limits.max_batch_bytes):
                self._store.store_again(
                    queue,
                    some,
                    self._numbers.take_message_ids(len(some), effects.records),
                    effects,
                    now_ms,
                    copies_of=[
                        CopyOf(
                            subscription.topic.name,
                            subscription.name,
                            message.message_id,
                            message.enqueue_ms,
                            message.labels,
                        )
                        for message in some
                    ],
                )
            # In the same outcome as the copies, and so in the same row: see the module. Receives are served afterwards,
            # with all copies of the step together.
            self._note_delivered(subscription, [message.position for message in fitting], effects.records, now_ms)
            self._serving.serve(queue, effects, now_ms)
        # Failures after successes, as in ``pushes_ended``: a failure of this step must be able to block the
        # subscription.
        for why, attempts in refused.items():
            self._note_failures(subscription, attempts, why, effects.records, now_ms)

    # ------------------------------------------------------------------ results

    def _note_delivered(
        self, subscription: Subscription, positions: list[int], records: list[AnyRecord], now_ms: int
    ) -> None:
        topic = subscription.topic
        # Results of posts come in the order of the answers, and runs must ascend. The record is applied at once: a
        # success unblocks the subscription, and the next result of the same call must see that.
        runs = pack_runs(sorted(positions))
        record = MessagesDelivered(topic.topic_id, subscription.subscription_id, runs, now_ms)
        self._topics.apply(topic, record)
        records.append(record)

    def _note_failures(
        self,
        subscription: Subscription,
        attempts: Sequence[tuple[int, int]],
        error: str,
        records: list[AnyRecord],
        now_ms: int,
    ) -> None:
        """Record failures with the same reason. ``attempts`` has (position, start of the attempt)."""
        topic, deliveries = subscription.topic, subscription.deliveries
        positions: list[int] = []
        failed: list[int] = []
        next_ms: list[int] = []
        dropped: list[int] = []
        # Judged before the record is applied: the number of an attempt is in ``under_way``, and the record ends the
        # attempt. Sorted, because a record has positions as runs, and the lists beside the runs must have the same
        # order.
        for position, started_ms in sorted(attempts):
            failed_count = deliveries.under_way[position]
            pause_ms = backoff_pause_ms(self._jitter_seed, subscription.subscription_id, position, failed_count)
            due_ms = next_attempt_ms(deliveries.strategy, failed_count, started_ms, now_ms, pause_ms)
            if due_ms is None:
                dropped.append(position)
            positions.append(position)
            failed.append(failed_count)
            # 0 also for a dropped message: the record of the drop follows in the same row.
            next_ms.append(due_ms or 0)
        # Failures of dropped messages are recorded too, because the last error must be known after a restart.
        record = DeliveriesFailed(
            topic_id=topic.topic_id,
            subscription_id=subscription.subscription_id,
            positions=pack_runs(positions),
            attempts=failed,
            next_ms=next_ms,
            error=error,
            failed_ms=now_ms,
        )
        self._topics.apply(topic, record)
        records.append(record)
        if dropped:
            # After the failures, in the same row: a failure can block the subscription only while its message is
            # pending.
            self._note_dropped(subscription, dropped, "retries", records, now_ms)
        self.plan(subscription, now_ms)

    def _note_dropped(
        self, subscription: Subscription, positions: list[int], reason: str, records: list[AnyRecord], now_ms: int
    ) -> None:
        topic = subscription.topic
        runs = pack_runs(sorted(positions))
        record = DeliveriesDropped(topic.topic_id, subscription.subscription_id, runs, reason, now_ms)
        self._topics.apply(topic, record)
        records.append(record)


def _cut(messages: Sequence[StoredMessage], most: int) -> Iterator[Sequence[StoredMessage]]:
    """Yield parts of up to ``most`` bytes of bodies, the limit of a send, with at least a message per part."""
    start = size = 0
    for place, message in enumerate(messages):
        if size + len(message.body) > most and place > start:
            yield messages[start:place]
            start, size = place, 0
        size += len(message.body)
    if messages:
        yield messages[start:]


def refusal(queue: Queue, size: int, ahead: int = 0) -> str:
    """Return the reason why a queue refuses a message of ``size`` bytes behind ``ahead`` others; empty = accepted."""
    attributes, held_messages = queue.index.attributes, queue.index.live_count + ahead
    if size > attributes.max_message_bytes:
        return f"the message has {size} bytes; queue {queue.name!r} takes up to {attributes.max_message_bytes}"
    if held_messages >= attributes.max_backlog:
        return f"queue {queue.name!r} is full: it holds {held_messages} messages"
    return ""
