"""Publishing: who gets what, and the one row in which a message and all its copies stand.

Publishes of several clients are decided together, because what goes to the same subscribers one after the other is one
record: at ten subscribers the work for a copy would else cost more than the publish. Nobody can tell: none of them is
answered yet, and their order is kept.
"""

from collections.abc import Sequence

from cmqd.core.dedup import DedupIds
from cmqd.core.delivering import Delivering, refusal
from cmqd.core.errors import DomainError, InvalidArgument
from cmqd.core.limits import checked_sizes
from cmqd.core.outcome import Effects, Outcome, Published, PublishRequest
from cmqd.core.queue import Queue
from cmqd.core.sending import answered, at_places
from cmqd.core.topic import Audience, Subscription, Topic
from cmqd_segment.records import (
    AnyRecord,
    CopyOf,
    Headers,
    Labels,
    MessagesPublished,
    MessagesSent,
    StoredMessage,
)

NO_TAGS: list[str] = []
NOBODY: Sequence[Subscription] = ()
KEPT_COPIES = 2048
"""Copies of one record that are kept in memory at most: each costs half a microsecond."""


class _Group:
    """Messages one after the other that go to the same subscribers: one record in the making."""

    __slots__ = ("audience", "bodies", "bytes", "dedup_ids", "first_id", "headers", "labels", "numbered", "sizes")

    def __init__(self, audience: Audience, first_id: int) -> None:
        self.audience = audience
        self.first_id = first_id
        self.bodies: list[bytes] = []
        self.sizes: list[int] = []
        self.bytes = 0
        self.headers: list[Headers | None] = []
        self.labels: list[Labels] = []
        self.dedup_ids: list[str | None] = []
        self.numbered: list[int] = []


class _Plan:
    """What the publishes of one call come to."""

    __slots__ = ("dedup_ids", "groups", "numbered", "records")

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.records: list[AnyRecord] = []
        """Reservations of numbers."""
        self.numbered: dict[tuple[int, int], Published] = {}
        """Numbered publishes of this call: a producer may have repeated one over another connection."""
        self.dedup_ids: dict[str, int] = {}
        """Message ids by the dedup ids of this call."""


class Publishing(Delivering):
    """The publishing part of the broker."""

    def publish(
        self, account: str, name: str, requests: Sequence[PublishRequest], now_ms: int
    ) -> Outcome[list[Published | DomainError]]:
        """Publish the batches of several requests to one topic. Each is stored whole or not at all, with the copies for
        all its matching subscriptions; one that is refused has its refusal in its place of the reply, and hinders
        none of the others. A message that matches nobody is discarded.

        A numbered publish that was stored before gets the ids it got then, as does a body whose dedup id was used
        in this topic a short while ago.

        Refusals: InvalidArgument, MessageTooLarge, BatchTooLarge, SequenceTooOld.

        Raises:
            TopicNotFound.
        """
        topic = self.topic(account, name)
        plan = _Plan()
        replies: list[Published | DomainError] = []
        for request in requests:
            try:
                replies.append(self._plan_publish(topic, request, plan, now_ms))
            except DomainError as refusal:
                replies.append(refusal)
        effects = Effects(plan.records)
        for group in plan.groups:
            self._publish_group(topic, group, effects, now_ms)
        if topic.exhausted and any(isinstance(reply, Published) for reply in replies):
            for subscription in list(topic.exhausted.values()):
                subscription.deliveries.published()
                self._look_after(subscription, now_ms)
        return effects.outcome(replies)

    # ------------------------------------------------------------------ what is to be stored

    def _plan_publish(self, topic: Topic, request: PublishRequest, plan: _Plan, now_ms: int) -> Published:
        bodies, headers, dedup_ids = request.bodies, request.headers, request.dedup_ids
        session, sequence = request.session, request.sequence
        if session and sequence:
            # Before all else: what was stored stays stored, whatever the limits are by now.
            repeated = plan.numbered.get((session, sequence))
            if repeated is not None:
                return Published(repeated.message_ids, [None] * len(repeated.message_ids))
            stored = self.sessions.find(topic.account, session, sequence)
            if stored is not None:
                known = topic.known_dedup_ids or DedupIds(self.limits)
                ids = self._stored_before(known, stored, sequence, len(bodies), dedup_ids, now_ms, may_be_new=True)
                return Published(ids, [None] * len(ids))
        sizes = checked_sizes(topic.name, bodies, headers, topic.attributes.max_message_bytes, self.limits)
        labels = self._checked_labels(topic, request.labels, len(sizes))
        answer = None
        if dedup_ids is not None:
            new, answer = self._unpublished(topic, dedup_ids, plan, len(sizes), now_ms)
            if len(new) < len(sizes):
                sizes, bodies = at_places(sizes, new), at_places(bodies, new)
                headers = None if headers is None else at_places(headers, new)
                labels = labels if len(labels) == 1 else at_places(labels, new)
                dedup_ids = at_places(dedup_ids, new)
        count = len(sizes)
        if not count:
            assert answer is not None
            return Published(answer, [None] * len(answer))
        first_id = self._next_message_ids(count, plan.records)
        matched = self._group(topic, plan, first_id, sizes, bodies, headers, labels, dedup_ids, (session, sequence))
        if answer is None:
            published = Published(range(first_id, first_id + count), matched)
        else:
            # As in ``answer``; what repeats another of the same batch finds its entry taken.
            places = {-1 - place: count for place, count in enumerate(matched)}
            published = Published(answered(answer, first_id), [places.pop(found, None) for found in answer])
            if dedup_ids is not None:
                ids = range(first_id, first_id + count)
                plan.dedup_ids.update(
                    (dedup_id, message_id)
                    for dedup_id, message_id, size in zip(dedup_ids, ids, matched, strict=True)
                    if dedup_id is not None and size
                )
        if session and sequence:
            plan.numbered[session, sequence] = published
        return published

    def _group(
        self,
        topic: Topic,
        plan: _Plan,
        first_id: int,
        sizes: list[int],
        bodies: list[bytes],
        headers: list[Headers | None] | None,
        labels: list[Labels],
        dedup_ids: list[str | None] | None,
        number: tuple[int, int],
    ) -> list[int]:
        """Put a batch into groups; the reply is how many subscriptions each message matches."""
        limits = self.limits
        matched: list[int] = []
        is_numbered = all(number)
        same = topic.audience(labels[0]) if len(labels) == 1 else None
        group = plan.groups[-1] if plan.groups else None
        for place, body in enumerate(bodies):
            label = labels[0] if len(labels) == 1 else labels[place]
            audience = same if len(labels) == 1 else topic.audience(label)
            if audience is None:
                matched.append(0)
                continue
            size = sizes[place]
            if (
                group is None
                or group.audience is not audience
                or group.first_id + len(group.sizes) != first_id + place
                or len(group.sizes) >= limits.max_batch
                or group.bytes + size > limits.max_batch_bytes
            ):
                group = _Group(audience, first_id + place)
                plan.groups.append(group)
            if is_numbered:
                group.numbered += (*number, first_id, len(bodies))
                is_numbered = False
            matched.append(audience.size)
            group.bodies.append(body)
            group.sizes.append(size)
            group.bytes += size
            group.headers.append(headers[place] if headers is not None else None)
            group.labels.append(label)
            group.dedup_ids.append(dedup_ids[place] if dedup_ids is not None else None)
        return matched

    def _checked_labels(self, topic: Topic, labels: list[Labels] | None, count: int) -> list[Labels]:
        """One entry for all the messages, or one for each, as the topic's matcher takes them.

        Raises:
            InvalidArgument: they are not legal, or of the other kind.
        """
        field, other = ("routing_keys", "tags") if topic.is_routing else ("tags", "routing_keys")
        if labels is None or not any(labels):
            if topic.is_routing:
                raise InvalidArgument(field, labels, "a routing key for each message, or one for all")
            return [NO_TAGS]
        if len(labels) not in (1, count):
            raise InvalidArgument(field, len(labels), f"one entry, or one for each of the {count} bodies")
        checked: list[Labels] = []
        for label in labels:
            if isinstance(label, str) != topic.is_routing:
                if label:
                    raise InvalidArgument(other, label, f"empty: the topic filters by {field}")
                label = NO_TAGS
            if topic.is_routing and not isinstance(label, str):
                raise InvalidArgument(field, label, "a routing key for each message, or one for all")
            checked.append(topic.checked(label, self.limits.max_tags) if label or topic.is_routing else NO_TAGS)
        return checked

    def _unpublished(
        self, topic: Topic, dedup_ids: list[str | None], plan: _Plan, count: int, now_ms: int
    ) -> tuple[list[int], list[int]]:
        """As ``_unrepeated``, with those of the same call in mind."""
        known = topic.known_dedup_ids or DedupIds(self.limits)
        new, answer = self._unrepeated(known, dedup_ids, count, now_ms)
        if not plan.dedup_ids:
            return new, answer
        # What another request of this call publishes: its number among the new ones is taken by those after it.
        kept: list[int] = []
        numbers: dict[int, int] = {}
        for number, place in enumerate(new):
            dedup_id = dedup_ids[place]
            found = None if dedup_id is None else plan.dedup_ids.get(dedup_id)
            if found is None:
                numbers[-1 - number] = -1 - len(kept)
                kept.append(place)
            else:
                numbers[-1 - number] = found
        return kept, [numbers.get(one, one) for one in answer]

    # ------------------------------------------------------------------ storing it

    def _publish_group(self, topic: Topic, group: _Group, effects: Effects, now_ms: int) -> None:
        # What was refused to a group before may hold up what comes after it.
        group.audience = audience = topic.audience(group.labels[0]) or group.audience
        count, biggest = len(group.sizes), max(group.sizes)
        copies: list[int] = []
        for queue in audience.queues:
            index = queue.index
            attributes = index.attributes
            if biggest > attributes.max_message_bytes or index.live_count + count > attributes.max_backlog:
                break
            copies.append(index.queue_id)
            copies.append(index.next_position)
        if len(copies) == 2 * len(audience.queues) and not audience.repeats:
            queues, names, refusing = audience.queues, audience.names, NOBODY
        else:
            queues, names, copies, refusing = self._split(audience, count, biggest)
        self._store_group(topic, group, queues, names, copies, refusing, effects, now_ms)

    def _split(
        self, audience: Audience, count: int, biggest: int
    ) -> tuple[list[Queue], list[str], list[int], list[Subscription]]:
        """The queues that take all of them, with the names of their subscriptions and (queue id, position) pairs; and
        the subscriptions whose queues do not.
        """
        queues: list[Queue] = []
        names: list[str] = []
        copies: list[int] = []
        refusing: list[Subscription] = []
        taken: dict[int, int] = {}
        for subscription, queue in zip(audience.subscriptions, audience.queues, strict=True):
            index, ahead = queue.index, taken.get(queue.queue_id, 0)
            attributes = index.attributes
            if biggest > attributes.max_message_bytes or index.live_count + ahead + count > attributes.max_backlog:
                refusing.append(subscription)
                continue
            taken[queue.queue_id] = ahead + count
            queues.append(queue)
            names.append(subscription.name)
            copies += (queue.queue_id, index.next_position + ahead)
        return queues, names, copies, refusing

    def _store_group(
        self,
        topic: Topic,
        group: _Group,
        queues: list[Queue],
        names: list[str],
        copies: list[int],
        refusing: Sequence[Subscription],
        effects: Effects,
        now_ms: int,
    ) -> None:
        audience = group.audience
        count = len(group.sizes)
        enqueue_ms = max(now_ms, topic.last_enqueue_ms)
        for queue in queues:
            if queue.index.last_enqueue_ms > enqueue_ms:
                # The clock was set back. A queue's times never decrease, and all copies share theirs.
                enqueue_ms = queue.index.last_enqueue_ms
        labels = None
        if any(group.labels):
            first = group.labels[0]
            labels = group.labels[:1] if all(label == first for label in group.labels) else group.labels
        record = MessagesPublished(
            topic.topic_id,
            topic.next_position,
            group.first_id,
            enqueue_ms,
            group.sizes,
            copies,
            self._next_message_ids(count * len(queues), effects.records) if queues else 0,
            [one.subscription_id for one in audience.waiting] + [one.subscription_id for one in refusing],
            group.headers if any(group.headers) else None,
            labels,
            group.numbered,
            group.dedup_ids if any(group.dedup_ids) else None,
            topic.name,
            names,
        )
        was_empty = [not queue.index.active_count for queue in queues]
        self._apply_published(topic, record)
        effects.records.append(record)
        effects.bodies += group.bodies
        are_many = count * len(queues) > KEPT_COPIES
        for number, queue in enumerate(queues):
            if was_empty[number] or not queue.window.cold:
                if are_many and not queue.line.waiting:
                    self._go_back_to(queue, copies[2 * number + 1])
                else:
                    self._keep_copies(queue, record, number, group.bodies, was_empty[number])
            if queue.line.waiting and queue.index.active_count:
                self._serve(queue, effects, now_ms)
        if record.waiting:
            messages = self._keep_for_deliveries(topic, record, group.bodies)
            for subscription in refusing:
                self._deliver_published(subscription, messages, effects, now_ms)
            for subscription in audience.waiting:
                self._look_after(subscription, now_ms)

    def _deliver_published(
        self, subscription: Subscription, messages: Sequence[StoredMessage], effects: Effects, now_ms: int
    ) -> None:
        """To a queue that does not take all of them: what it takes is in it when the publish is answered, what it
        refuses has failed for the first time. Where order counts, the first refusal ends it.
        """
        deliveries, queue = subscription.deliveries, subscription.target
        tried: list[StoredMessage] = []
        room = deliveries.max_known - deliveries.retrying_count
        ahead = 0
        for message in messages:
            why = "" if queue is None else refusal(queue, len(message.body), ahead)
            if queue is None or why:
                if room <= 0:
                    break
                room -= 1
            else:
                ahead += 1
            tried.append(message)
            deliveries.begin(message.position)
            if (queue is None or why) and deliveries.strategy == "backoff":
                break
        self._deliver_to_queue(subscription, tried, effects, now_ms)
        self._look_after(subscription, now_ms)

    def _keep_copies(
        self, queue: Queue, record: MessagesPublished, number: int, bodies: list[bytes], was_empty: bool
    ) -> None:
        """Keep in memory what is near enough to the queue's head, as if it had been sent there."""
        count = len(record.sizes)
        labels = record.labels
        sent = MessagesSent(
            queue.queue_id,
            record.copies[2 * number + 1],
            record.first_copy_id + number * count,
            record.enqueue_ms,
            record.sizes,
            record.headers,
            copies_of=[
                CopyOf(
                    record.topic,
                    record.subscriptions[number],
                    record.first_message_id + place,
                    record.enqueue_ms,
                    None if labels is None else labels[0] if len(labels) == 1 else labels[place],
                )
                for place in range(count)
            ],
        )
        self._keep_bodies(queue, sent, bodies, was_empty)

    def _keep_for_deliveries(self, topic: Topic, record: MessagesPublished, bodies: list[bytes]) -> list[StoredMessage]:
        """Keep in memory what is likely to be delivered soon; returns it."""
        labels, headers = record.labels, record.headers
        messages: list[StoredMessage] = []
        for offset, body in enumerate(bodies):
            message = StoredMessage(
                record.first_position + offset,
                record.first_message_id + offset,
                record.enqueue_ms,
                body,
                headers[offset] if headers else None,
                labels=None if labels is None else labels[0] if len(labels) == 1 else labels[offset],
            )
            self.topic_bodies.keep(topic.topic_id, message)
            messages.append(message)
        return messages
