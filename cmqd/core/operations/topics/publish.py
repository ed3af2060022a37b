"""Publishing: the row in which messages of a topic and all their copies stand.

A ``PublishPlan`` finds the subscriptions of every message, in slices if that is
much work. A whole plan is applied here in a single step: ids, positions and times are given, the record is made and the
reply is known. Until then no part of a publish is visible. Therefore a crash, or a change of subscriptions, finds a
publish whole or not at all.

Publishes of several clients are decided together. All their messages share a record, even messages for different
subscriptions, because the record is ordered by queue (``MessagesPublished``): a queue's index takes a single range of
positions, so 256 messages to 500 queues are 500 changes and not 51,000. Clients cannot see the difference: no publish
is answered before the row is durable, and the order of messages is kept.

Waiting receives are served with the publish as long as that is little work. Otherwise the ticks that follow serve the
receives, with the copies of a publish for a single queue at a time (:class:`~cmqd.core.runtime.copies.Unserved`).
"""

from collections.abc import Sequence

from cmqd.core.domain_errors import DomainError, TopicNotFound
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.retry_schedule import BACKOFF
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.sending.storing import Store
from cmqd.core.operations.topics.delivery_attempts import DeliveryAttempts
from cmqd.core.operations.topics.publish_plan import Part, PublishPlan
from cmqd.core.operations.topics.publish_shares import Shares
from cmqd.core.outcome import Effects, Outcome, Published, PublishRequest
from cmqd.core.runtime.copies import PublishedCopies, Unserved
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.published import copies_of, first_of_set, set_positions
from cmqd_segment.records import MessagesPublished, StoredMessage, pack_runs
from cmqd_types.actors import Actor

WHOLE = 1 << 62
"""Units that every plan can do with."""
KEPT_COPIES = 2048
"""Largest number of copies of a record that is kept in memory: half a microsecond per copy."""
SERVED_COPIES = 512
"""Largest number of copies of a record that waiting receives get with the publish: some four microseconds per copy."""
REFUSED_AT_ONCE = 64
"""Largest number of refused messages that fail with the publish; the next ticks try the rest."""


class Publish:
    """Publishes to topics."""

    def __init__(
        self, facts: Facts, runtime: Runtime, store: Store, serving: Serving, delivery_attempts: DeliveryAttempts
    ) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._promises = facts.promises
        self._queues = facts.queues
        self._actors = facts.actors
        self._topics = facts.topics
        self._runtime = runtime.queues
        self._of_topic = runtime.of_topic
        self._agenda = runtime.agenda
        self._topic_bodies = runtime.topic_bodies
        self._lane = runtime.pages.receives
        self._store = store
        self._serving = serving
        self._delivery_attempts = delivery_attempts

    def publish(
        self,
        account: str,
        name: str,
        requests: Sequence[PublishRequest],
        now_ms: int,
        actors: Sequence[Actor] = (),
    ) -> Outcome[list[Published | DomainError]]:
        """Publish the batches of several requests to a topic in a single call: ``plan_publish`` and ``apply_publish``.

        Raises:
            TopicNotFound.
        """
        plan = self.plan_publish(account, name, requests, now_ms, actors)
        plan.advance(WHOLE)
        return self.apply_publish(plan, now_ms)

    def plan_publish(
        self,
        account: str,
        name: str,
        requests: Sequence[PublishRequest],
        now_ms: int,
        actors: Sequence[Actor] = (),
    ) -> PublishPlan:
        """Begin to plan publishes to a topic; nothing changes before ``apply_publish``.

        ``actors``: the client of each request, empty = not known.

        Raises:
            TopicNotFound.
        """
        topic = self._topics.find(account, name)
        return PublishPlan(topic, self._of_topic(topic), requests, self._promises, self._limits, now_ms, actors)

    def apply_publish(self, plan: PublishPlan, now_ms: int) -> Outcome[list[Published | DomainError]]:
        """Store the messages of a whole plan, with the copies for all matching subscriptions.

        The batch of a request is stored whole or not at all. A refused request has its error at its index of the reply;
        other requests are stored all the same. A message that matches no subscription is discarded.

        A numbered publish that was stored before gets the earlier ids. A body with a dedup id that was used in this
        topic a short while ago gets the earlier id.

        Refusals: InvalidArgument, MessageTooLarge, BatchTooLarge, SequenceTooOld.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
        """
        topic = plan.topic
        if self._topics.by_id.get(topic.topic_id) is not topic:
            raise TopicNotFound(topic.name)
        # A topic of the same name is another topic, so its identity is asked for and not its name. From here on nothing
        # is refused: every request of the plan was checked, and its reply is known.
        effects = Effects()
        first_id = self._numbers.take_message_ids(plan.count, effects.records) if plan.count else 0
        for part in plan.parts:
            self._store_part(plan, part, first_id, effects, now_ms)
        # After the parts: ids of new messages, and of their repeats in this call, follow from the first id alone.
        replies = plan.replies(first_id)
        exhausted = self._of_topic(topic).exhausted
        if exhausted and any(isinstance(reply, Published) for reply in replies):
            for subscription in list(exhausted.values()):
                subscription.deliveries.published()
                self._delivery_attempts.plan(subscription, now_ms)
        return effects.outcome(replies)

    # ------------------------------------------------------------------ storing

    def _store_part(self, plan: PublishPlan, part: Part, first_id: int, effects: Effects, now_ms: int) -> None:
        topic = plan.topic
        # The present state of the subscriptions counts: the part before may have blocked a subscription.
        shares = Shares(part, self._of_topic(topic).audience(part.union))
        record = self._record(plan, part, shares, first_id, effects, now_ms)
        # Read before the record is applied. Only copies for an empty queue can begin its window anew.
        was_empty = [not queue.index.active_count for queue in shares.queues]
        self._apply(topic, record)
        effects.records.append(record)
        effects.bodies += part.bodies
        copies = PublishedCopies(record, part.bodies)
        self._bring_in(copies, shares, was_empty, effects, now_ms)
        # Deliveries are planned last. A refused copy fails first, so a plan made before would start an attempt that is
        # known to be in vain.
        if record.waiting:
            for number in copies.waiting_numbers():
                self._topic_bodies.keep(topic.topic_id, copies.message(number))
            self._fail_refused(copies, shares.refused, effects, now_ms)
            for subscription in shares.waiting:
                self._delivery_attempts.plan(subscription, now_ms)

    def _apply(self, topic: Topic, record: MessagesPublished) -> None:
        """Apply a publish to the topic and to all queues, and plan what follows from it."""
        # The topic first: its subscriptions know the waiting messages before any queue serves a receive.
        agenda, enqueue_ms = self._agenda, record.enqueue_ms
        if self._topics.apply_published(topic, record):
            agenda.plan_topic_expiry(topic)
        if record.dedup_ids is not None:
            agenda.dedup_sweeps.set(topic.topic_id, enqueue_ms + self._limits.dedup_life_ms)
        if record.numbered:
            agenda.plan_session_sweep(enqueue_ms)
        by_id = self._queues.by_id
        for queue_id, first, count in copies_of(record):
            queue = by_id[queue_id]
            if queue.index.apply_copies(first, count, enqueue_ms):
                agenda.plan_expiry(queue)
            attributes = queue.index.attributes
            after_ms = attributes.dead_letter_after_ms
            if after_ms:
                agenda.reviews.set(queue_id, enqueue_ms + after_ms)
            if attributes.auto_delete_after_ms:
                self._runtime[queue_id].used_ms = enqueue_ms

    def _record(
        self, plan: PublishPlan, part: Part, shares: Shares, first_id: int, effects: Effects, now_ms: int
    ) -> MessagesPublished:
        topic, actors = plan.topic, plan.actors
        count = len(part.sizes)
        enqueue_ms = max(now_ms, topic.last_enqueue_ms)
        for queue in shares.queues:
            if queue.index.last_enqueue_ms > enqueue_ms:
                # The clock was set back. A queue's times never decrease, and all copies share theirs.
                enqueue_ms = queue.index.last_enqueue_ms
        # Most publishes have one label for all messages, and the record has it once. In the log and in memory a list of
        # 256 equal labels would cost as much as the bodies.
        labels = None
        if any(part.labels):
            first = part.labels[0]
            labels = part.labels[:1] if all(label == first for label in part.labels) else part.labels
        numbered = part.numbered
        if numbered:
            numbered = [first_id + number if offset % 4 == 2 else number for offset, number in enumerate(numbered)]
        message_sets, taken = shares.numbered_sets(count)
        first_number = part.numbers[0]
        is_dense = part.numbers[-1] - first_number == count - 1
        return MessagesPublished(
            topic_id=topic.topic_id,
            first_position=topic.next_position,
            first_message_id=first_id + first_number,
            enqueue_ms=enqueue_ms,
            sizes=part.sizes,
            copies=shares.copies,
            first_copy_id=self._numbers.take_message_ids(shares.total, effects.records) if shares.total else 0,
            waiting=[subscription.subscription_id for subscription in shares.waiting],
            headers=part.headers if any(part.headers) else None,
            labels=labels,
            numbered=numbered,
            dedup_ids=part.dedup_ids if any(part.dedup_ids) else None,
            topic=topic.name,
            subscriptions=shares.names,
            message_sets=message_sets,
            taken=taken,
            message_ids=[] if is_dense else pack_runs([number - first_number for number in part.numbers]),
            actors=self._actors.joined(actors, plan.counts(part), count, effects.records) if actors else [],
        )

    def _bring_in(
        self, copies: PublishedCopies, shares: Shares, was_empty: Sequence[bool], effects: Effects, now_ms: int
    ) -> None:
        """Keep copies in memory that are near the head of their queues, and serve waiting receives."""
        are_many = shares.total > KEPT_COPIES
        at_once = SERVED_COPIES
        # After the publish is among the records: receives make records of their own, which must stand behind it in the
        # row.
        for place, queue in enumerate(shares.queues):
            runtime = self._runtime[queue.queue_id]
            is_near = was_empty[place] or not runtime.window.cold
            waits = runtime.line.waiting and queue.index.active_count
            if waits:
                at_once -= copies.count(place)
            # A publish to 500 queues with waiting receives would hold up the loop for hundreds of milliseconds. What is
            # over the bound is left to the ticks, or to reads from the log; the window of the queue then ends in front
            # of the copies, because a window has no gap.
            if (waits and at_once < 0) or (are_many and not waits):
                if is_near:
                    runtime.window.go_back_to(copies.first(place))
                if waits:
                    self._agenda.unserved.setdefault(queue.queue_id, []).append(Unserved(copies, place))
                continue
            if is_near:
                self._store.keep_copies(queue, copies, place, was_empty[place])
            if waits:
                self._serving.serve(queue, effects, now_ms)

    def _fail_refused(
        self, copies: PublishedCopies, refused: Sequence[tuple[Subscription, int]], effects: Effects, now_ms: int
    ) -> None:
        """Record a first failure for messages that queues refused. Under backoff the first refused message holds up the
        messages behind it. More than ``REFUSED_AT_ONCE`` messages are left to the ticks, in the state of waiting.
        """
        # The failure is a fact. Kept in memory only, a message to a full queue would begin its attempts anew after
        # every restart, and would be dropped late or never.
        left = REFUSED_AT_ONCE
        for subscription, messages in refused:
            deliveries = subscription.deliveries
            max_tried = 1 if deliveries.strategy == BACKOFF else deliveries.max_known - deliveries.retrying_count
            tried: list[StoredMessage] = []
            for number in set_positions(first_of_set(messages, min(max_tried, left))):
                message = copies.message(number)
                deliveries.begin(message.position)
                tried.append(message)
            left -= len(tried)
            if tried:
                self._delivery_attempts.deliver_to_queue(subscription, tried, effects, now_ms)

    def tick(self, effects: Effects, now_ms: int) -> None:
        """Serve receives that wait at one queue with the copies of one publish that was too large to do so at once.

        The copies of a publish to one queue at a time: a queue with 500 subscriptions of a topic can have 128,000.
        """
        if not self._agenda.unserved:
            return
        queue_id = next(iter(self._agenda.unserved))
        entries = self._agenda.unserved[queue_id]
        copies, place = entries.pop(0)
        queue = self._queues.by_id.get(queue_id)
        if not entries or queue is None or not self._runtime[queue.queue_id].line.waiting:
            # Without receives in line there is no hurry: the pages bring the copies when consumers come near them.
            del self._agenda.unserved[queue_id]
        if queue is None or not self._runtime[queue.queue_id].line.waiting:
            return
        window, active = self._runtime[queue.queue_id].window, queue.index.active
        first = copies.first(place)
        stop = first + copies.count(place)
        # Else they were paged in meanwhile, or are about to be.
        if (
            window.cold
            and window.paged_until == first
            and queue_id not in self._lane.busy
            and active.contains_range(first, stop)
        ):
            window.cold = False
            self._store.keep_copies(queue, copies, place, False)
            if not window.cold and queue.index.next_position > stop:
                # Messages that came after these are in the log alone.
                self._runtime[queue.queue_id].window.go_back_to(stop)
        self._serving.serve(queue, effects, now_ms)
