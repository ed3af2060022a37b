# pyright: reportPrivateUsage=false
"""The rules of topics: receivers of a publish, times of retries, and pending messages in between."""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import nonzero, which
from model.machine import BrokerMachine

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import (
    BatchTooLarge,
    MessageNotPublished,
    MessageNotWaiting,
    SequenceTooOld,
    SubscriptionExists,
    TooManyRemembered,
    TooManySubscriptions,
    TopicInUse,
)
from cmqd.core.outcome import Outcome, PageRead, Published, PublishRequest, Push, PushResult, Waiting
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesCleared,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    MessagesPublished,
    MessagesSent,
    Runs,
    StoredMessage,
    TopicMessagesExpired,
    pack_runs,
    unpack_runs,
)
from cmqd_types.deliveries import DeliveriesPeeked, MessageDeliveries, PendingMessage
from cmqd_types.messages import CopyOf, Headers, Labels
from cmqd_types.topics import TopicMatch
from support.core.naive_broker import STEP_GRAIN_MS, NaiveQueue, NaiveRow, fields_of
from support.core.naive_topics import NaivePublished, NaiveSubscription, NaiveTopic

LIFE_MS = 3_000_000
ENDPOINTS = ("orders", "https://a.example/", "mails", "https://b.example/", "orders", "https://a.example/")
TAGS: list[list[str]] = [[], ["a"], ["b"], ["a", "b"]]
KEYS = ["a", "a.b", "b.a.b", "a.b.b"]
BINDINGS = [["#"], ["a.*"], ["a.#", "*.a.b"], ["#.b"]]
MARKS: list[Headers | None] = [None, {"k": "v"}]


def has_topics(machine: "TopicsMachine") -> bool:
    return bool(machine.topics)


class TopicsMachine(BrokerMachine):
    first_queues: ClassVar[list[dict[str, Any]]] = [{"retention_ms": 345_600_000, "max_delayed": 3}]
    more_limits: ClassVar[dict[str, Any]] = {
        "topic_life_ms": LIFE_MS,
        "max_pushes_per_endpoint": 2,
        "max_pushes": 6,
        "max_subscriptions": 5,
        "topic_bodies_bytes": 700,
    }

    def __init__(self) -> None:
        super().__init__()
        self.topics: list[NaiveTopic] = []
        self.pushes: list[Push] = []
        self.late: tuple[Any, list[Any]] | None = None
        self.publishing: tuple[NaiveTopic, dict[int, Any], dict[int, bool], list[int]] | None = None
        """Being posted, oldest first."""
        self.gone_topic_totals = Counter[str]()
        """Of deleted topics and subscriptions."""
        self.answers: dict[int, Any] = {}
        """Of requests that read the log, by waiter; None = not yet."""
        self.dropping: tuple[int, int] | None = None
        """Subscription and position of a message that is being dropped by hand."""
        self.ended: dict[tuple[int, int], tuple[str | None, int]] = {}
        """Results just told: (error, started) by subscription and position."""

    def begin(self) -> None:
        self.create_topic(0)
        self.subscribe(self.topics[0], 3, "backoff")

    # ------------------------------------------------------------------ helpers

    def subscription(self, subscription_id: int) -> NaiveSubscription | None:
        found = (one for topic in self.topics for one in topic.subscriptions)
        return next((one for one in found if one.subscription_id == subscription_id), None)

    def subscriptions(self) -> list[NaiveSubscription]:
        return [one for topic in self.topics for one in topic.subscriptions]

    def done(self, outcome: Outcome[Any], own: int | None = None) -> Any:
        """Before a push is seen to begin, the same tick may have let its message go."""
        before = {
            (one.subscription_id, position): delivery
            for one in self.subscriptions()
            for position, delivery in one.pending.items()
        }
        reply = super().done(outcome, own)
        for push in outcome.pushes:
            self.judge_push(push, before)
        return reply

    def judge_push(self, push: Push, before: dict[tuple[int, int], Any]) -> None:
        subscription = self.subscription(push.subscription_id)
        assert subscription is not None, "posted to nobody"
        position = push.message.position
        delivery = before[push.subscription_id, position]
        message = delivery.message
        assert not delivery.under_way, "posted twice at once"
        assert push.attempt == delivery.attempts + 1
        assert push.url == subscription.endpoint
        assert position in subscription.hurried or delivery.next_ms <= self.now_ms, "tried again too early"
        assert not delivery.is_exhausted or position in subscription.hurried
        sent = push.message
        assert (sent.message_id, sent.body, sent.headers or None) == (message.message_id, message.body, message.headers)
        assert (sent.labels or []) == message.labels
        assert sent.enqueue_ms == message.enqueue_ms
        if subscription.strategy == "backoff":
            behind = [one for one in subscription.pending if one < position]
            assert not behind, "under backoff the oldest one goes first"
        delivery.under_way = True
        subscription.going.add(position)
        self.pushes.append(push)
        assert len(self.pushes) <= 6
        assert sum(one.url == push.url for one in self.pushes) <= 2

    # ------------------------------------------------------------------ administration

    @rule(
        what=st.sampled_from(["topic", "subscribe", "subscribe", "set", "pause", "unsubscribe", "delete"]),
        number=which,
        backoff=st.booleans(),
    )
    def administer_topics(self, what: str, number: int, backoff: bool) -> None:
        if what == "topic" or not self.topics:
            self.create_topic(number)
            return
        topic = self.topics[number % len(self.topics)]
        if what == "subscribe":
            self.subscribe(topic, number // 8, "backoff" if backoff else "exponential_decay")
        elif what == "delete":
            self.delete_topic(topic)
        elif topic.subscriptions:
            one = topic.subscriptions[number // 8 % len(topic.subscriptions)]
            if what == "unsubscribe":
                outcome = self.broker.unsubscribe(topic.account, topic.name, one.name, self.now_ms)
                topic.subscriptions.remove(one)
                self.gone_topic_totals.update(one.totals())
                self.done(outcome)
            elif what == "set":
                filters = self.filters(topic, number // 64)
                self.set_subscription(one, filters, "backoff" if backoff else "exponential_decay", one.paused)
            else:
                self.set_subscription(one, one.filters, one.strategy, not one.paused)

    def filters(self, topic: NaiveTopic, number: int) -> list[str]:
        return BINDINGS[number % 4] if topic.is_routing else TAGS[number % 4]

    def create_topic(self, number: int) -> None:
        name = ("news", "other")[number % 2]
        if any(topic.name == name for topic in self.topics):
            return
        filter_type = ("tag", "routing")[number // 2 % 2]
        outcome = self.broker.create_topic("admin", name, {"filter_type": filter_type}, self.now_ms)
        topic_id = outcome.reply.topic_id
        assert topic_id not in self.topic_ids
        self.topics.append(NaiveTopic(topic_id, "admin", name, filter_type == "routing"))
        self.topic_ids |= {topic_id}
        self.done(outcome)
        for more in range(2):
            self.subscribe(self.topics[-1], number // 4 + more, "exponential_decay")

    def subscribe(self, topic: NaiveTopic, number: int, strategy: str) -> None:
        endpoint = ENDPOINTS[number % len(ENDPOINTS)]
        if "://" not in endpoint and self.named("admin", endpoint) is None:
            return
        name = f"sub{number % 7}"
        filters = self.filters(topic, number // 8)
        field = "binding_keys" if topic.is_routing else "filter_tags"
        attributes = {"endpoint": endpoint, "strategy": strategy, field: filters}
        try:
            outcome = self.broker.subscribe("admin", topic.name, name, attributes, self.now_ms)
        except SubscriptionExists:
            assert any(one.name == name for one in topic.subscriptions)
            return
        except TooManySubscriptions:
            assert len(topic.subscriptions) == self.limits.max_subscriptions
            return
        subscription_id = self.broker.facts.topics.find_subscription("admin", topic.name, name).subscription_id
        assert self.subscription(subscription_id) is None
        new = NaiveSubscription(topic, subscription_id, name, endpoint, filters, strategy, paused=False)
        topic.subscriptions.append(new)
        self.done(outcome)

    def set_subscription(self, one: NaiveSubscription, filters: list[str], strategy: str, paused: bool) -> None:
        field = "binding_keys" if one.topic.is_routing else "filter_tags"
        attributes = {field: filters, "strategy": strategy, "paused": paused}
        outcome = self.broker.set_subscription_attributes("admin", one.topic.name, one.name, attributes, self.now_ms)
        one.filters, one.strategy, one.paused = filters, strategy, paused
        self.done(outcome)

    def delete_topic(self, topic: NaiveTopic) -> None:
        try:
            outcome = self.broker.delete_topic("admin", topic.name)
        except TopicInUse:
            assert topic.subscriptions
            return
        assert not topic.subscriptions
        self.topics.remove(topic)
        self.gone_topic_totals.update(topic.totals)
        self.done(outcome)

    @precondition(lambda self: bool(self.subscriptions()))
    @rule(number=which, drop=st.sampled_from([False, False, True]))
    def hurry_or_drop(self, number: int, drop: bool) -> None:
        found = self.subscriptions()
        one = found[number % len(found)]
        if drop:
            outcome = self.broker.drop_deliveries("admin", one.topic.name, one.name, self.now_ms)
            assert outcome.reply == len(one.pending)
        else:
            outcome = self.broker.retry_deliveries("admin", one.topic.name, one.name, self.now_ms)
            hurried = {position for position, each in one.pending.items() if each.attempts and not each.under_way}
            assert outcome.reply <= len(hurried), "those whose bodies are being read are under way"
            one.hurried |= hurried
        self.done(outcome)

    # ------------------------------------------------------------------ single messages

    def note_published(
        self,
        topic: NaiveTopic,
        ids: list[int],
        first: int,
        copies: dict[str, tuple[int, int, list[int]]],
        waiting: dict[int, list[int]],
    ) -> None:
        """The subscriptions of each message of a publish."""
        for at, message_id in enumerate(ids):
            names = {name for name, (_, _, taken) in copies.items() if at in taken}
            waits = [subscription_id for subscription_id, left in waiting.items() if at in left]
            topic.published[message_id] = first + at, self.now_ms, names, waits

    def answered(self, call: Callable[[int], Outcome[Any]]) -> Any:
        """The answer to a request that reads the log, with its reads answered at once."""
        self.waiter_id += 1
        waiter_id = self.waiter_id
        try:
            outcome = call(waiter_id)
        except (MessageNotPublished, MessageNotWaiting) as refusal:
            return refusal
        if not isinstance(outcome.reply, Waiting):
            return self.done(outcome)
        self.answers[waiter_id] = None
        while self.answers[waiter_id] is None:
            reads = len(self.reads)
            self.done(outcome)
            if outcome.published_reads:
                (read,) = outcome.published_reads
                outcome = self.broker.published_read(read.read_id, self.log.published(read), self.now_ms)
            elif len(self.reads) > reads:
                page = self.reads.pop()
                self.topic_page_arrives(page, *self.log.page(page))
        return self.answers.pop(waiter_id)

    def judge_woken(self, waiter_id: int, reply: Any) -> bool:
        if waiter_id not in self.answers:
            return super().judge_woken(waiter_id, reply)
        self.answers[waiter_id] = reply
        return True

    @precondition(lambda self: bool(self.subscriptions()))
    @rule(what=st.sampled_from(["retry", "drop", "report", "peek"]), number=which, pick=which)
    def ask_about_a_message(self, what: str, number: int, pick: int) -> None:
        found = self.subscriptions()
        one = found[number % len(found)]
        topic = one.topic
        if what == "peek":
            self.peek_at_deliveries(one, pick)
            return
        if not topic.published:
            return
        message_id = list(topic.published)[pick % len(topic.published)]
        position = topic.published[message_id][0]
        is_readable = (topic.topic_id, position) not in self.log.damaged
        broker, account = self.broker, topic.account
        if what == "report":
            answer = self.answered(
                lambda waiter_id: broker.message_deliveries(account, topic.name, waiter_id, message_id)
            )
            if is_readable:
                self.judge_report(topic, message_id, answer)
            else:
                assert isinstance(answer, MessageNotPublished)
            return
        waits = position in one.pending and is_readable
        deliveries = broker.subscriptions[one.subscription_id].deliveries
        if what == "retry":
            starts = position not in deliveries.under_way
            answer = self.answered(
                lambda waiter_id: broker.retry_delivery(account, topic.name, one.name, waiter_id, message_id)
            )
            if waits and starts:
                one.hurried.add(position)
        else:
            self.dropping = one.subscription_id, position
            answer = self.answered(
                lambda waiter_id: broker.drop_delivery(account, topic.name, one.name, waiter_id, message_id)
            )
            self.dropping = None
            assert not waits or one.ended[position] == "operator"
        if waits:
            assert answer == 1
        else:
            assert isinstance(answer, MessageNotWaiting)

    def pending_state(self, one: NaiveSubscription, position: int) -> str:
        delivery = one.pending[position]
        if position in self.broker.subscriptions[one.subscription_id].deliveries.under_way:
            return "under_way"
        if not delivery.attempts:
            return "waiting"
        return "in_retry" if delivery.next_ms else "out_of_retries"

    def judge_report(self, topic: NaiveTopic, message_id: int, report: MessageDeliveries) -> None:
        position, enqueue_ms, names, waits = topic.published[message_id]
        assert (report.message_id, report.publish_ms) == (message_id, enqueue_ms)
        is_over = enqueue_ms <= self.now_ms - LIFE_MS or position < self.broker.topics[topic.topic_id].floor
        copies, others = report.deliveries[: len(names)], report.deliveries[len(names) :]
        assert {copy.subscription for copy in copies} == names
        assert all(copy.state == "delivered" and copy.copy_id is not None for copy in copies)
        assert len(others) == len(waits)
        for subscription_id, told in zip(waits, others, strict=True):
            one = self.subscription(subscription_id)
            if one is None:
                assert (told.subscription, told.state) == (None, "unknown")
                continue
            assert told.subscription == one.name
            ended = one.ended.get(position)
            if is_over:
                assert told.state == "unknown" or (told.state, told.drop_reason) == ("dropped", ended)
            elif ended is None:
                assert told.state == self.pending_state(one, position)
                assert told.attempts == one.pending[position].attempts
            elif ended == "delivered":
                assert told.state == "delivered"
            else:
                assert (told.state, told.drop_reason) == ("dropped", ended)

    def peek_at_deliveries(self, one: NaiveSubscription, pick: int) -> None:
        """Pages of up to three messages, from the first that waits to the last."""
        topic, broker = one.topic, self.broker
        shown: list[PendingMessage] = []
        start: int | None = 0
        while start is not None:
            page: DeliveriesPeeked = self.answered(
                lambda waiter_id, start=start: broker.peek_deliveries(
                    topic.account, topic.name, one.name, waiter_id, start, 1 + pick % 3, True, self.now_ms
                )
            )
            shown += page.messages
            start = page.next_start
        wanted = {
            each.message.message_id: position
            for position, each in sorted(one.pending.items())
            if each.message.enqueue_ms > self.now_ms - LIFE_MS
        }
        for message in shown:
            position = wanted.pop(message.message_id)
            delivery = one.pending[position]
            assert (message.body, message.headers or None) == (delivery.message.body, delivery.message.headers)
            assert (message.labels or []) == delivery.message.labels
            assert message.state == self.pending_state(one, position)
            assert message.attempts == delivery.attempts
            assert message.next_attempt_ms == (delivery.next_ms if message.state == "in_retry" else None)
        assert all((topic.topic_id, position) in self.log.damaged for position in wanted.values()), "one was left out"

    # ------------------------------------------------------------------ publishing

    @precondition(has_topics)
    @rule(
        number=which,
        batch=st.lists(st.tuples(st.sampled_from([1, 2, 30, 300, 1200]), which), min_size=1, max_size=4),
        session=st.sampled_from([0, 0, 1, 3]),
        sequence=st.integers(1, 8),
    )
    def publish(self, number: int, batch: list[tuple[int, int]], session: int, sequence: int) -> None:
        topic = self.topics[number % len(self.topics)]
        bodies = [b"%d" % (topic.next_position % 10) * size for size, _ in batch]
        labels: list[Labels] = [KEYS[pick % 4] if topic.is_routing else TAGS[pick % 4] for _, pick in batch]
        marks = [MARKS[pick // 4 % 2] for _, pick in batch]
        stored = self.sessions.find("admin", session, sequence) if session else "new"
        maybe_forgotten = session != 0 and self.sessions.may_be_forgotten("admin", session, self.now_ms)
        is_full = session != 0 and self.sessions.is_full_for("admin", session, self.now_ms)
        request = PublishRequest(bodies, marks, labels, session, sequence if session else 0)
        fates = self.fates(topic, labels[0])
        outcome = self.broker.publish("admin", topic.name, [request], self.now_ms)
        (reply,) = outcome.reply
        if isinstance(reply, BatchTooLarge):
            assert len(batch) > 1
            return
        if isinstance(reply, SequenceTooOld):
            assert stored == "too old"
            return
        if isinstance(reply, TooManyRemembered):
            assert is_full
            return
        assert isinstance(reply, Published)
        ids = list(reply.message_ids)
        if None in reply.matched:
            assert ids == stored, "a repeat got another answer"
            self.note_publish(topic)
            self.done(outcome)
            return
        assert stored == "new" or maybe_forgotten, "stored twice, or though too old"
        assert not is_full, "an account got one more session than its share"
        assert reply.matched == [sum(one.matches(label) for one in topic.subscriptions) for label in labels]
        assert not set(ids) & self.message_ids, "a message id was used twice"
        self.message_ids.update(ids)
        if session and any(reply.matched):
            self.sessions.note("admin", session, sequence, ids, self.now_ms)
        messages = dict(zip(ids, zip(bodies, marks, labels, strict=True), strict=True))
        stored_ids: list[int] = []
        pauses = {one.subscription_id: not one.may_flow() for one in topic.subscriptions}
        self.publishing = topic, messages, pauses, stored_ids
        self.note_publish(topic)
        self.done(outcome)
        self.publishing = None
        assert stored_ids == [one for one, matched in zip(ids, reply.matched, strict=True) if matched]
        self.judge_fates(topic, fates, ids[0])
        assert self.went_out == self.delivered

    def fates(self, topic: NaiveTopic, label: Labels) -> dict[str, str]:
        """The fates of a message with this label, as a test of the filters says them."""
        tags, routing_key = (None, label) if isinstance(label, str) else (label, None)
        steps = self.broker.match_subscriptions(topic.account, topic.name, tags, routing_key)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                match: TopicMatch = end.value
                break
        assert [one.subscription for one in match.subscriptions] == sorted(one.name for one in topic.subscriptions)
        assert match.matched == sum(one.matches(label) for one in topic.subscriptions)
        for one in topic.subscriptions:
            (tested,) = (each for each in match.subscriptions if each.subscription == one.name)
            assert tested.matches == one.matches(label)
            assert tested.matches == (not tested.filters or any(each.matches for each in tested.filters))
            assert [each.text for each in tested.filters] == one.filters
        return {one.subscription: one.fate for one in match.subscriptions}

    def judge_fates(self, topic: NaiveTopic, fates: dict[str, str], message_id: int) -> None:
        """The first message of a publish has the fates that the test before the publish said."""
        _, _, names, waits = topic.published.get(message_id, (0, 0, set[str](), list[int]()))
        for one in topic.subscriptions:
            fate = fates[one.name]
            assert (fate == "no_match") == (one.name not in names and one.subscription_id not in waits)
            # A queue without room for the copy is full, or refuses the size of the body, which a test does not know.
            assert (one.name not in names) or fate == "stored"
            if one.subscription_id in waits and one.is_push:
                assert fate in ("paused", "blocked", "behind", "posted")
                assert (fate == "paused") == one.paused
            elif one.subscription_id in waits:
                assert fate in ("paused", "blocked", "behind", "queue_full", "queue_missing", "stored")
                assert fate != "stored" or self.refuses(one, topic, message_id)

    def refuses(self, one: NaiveSubscription, topic: NaiveTopic, message_id: int) -> bool:
        """True if the queue of a subscription is too small for a body, or was filled by copies of the same publish."""
        queue = self.named(topic.account, one.endpoint)
        assert queue is not None
        attributes = self.broker.queues[queue.queue_id].index.attributes
        size = len(one.pending[topic.published[message_id][0]].message.body)
        shared = sum(other.endpoint == one.endpoint for other in topic.subscriptions) > 1
        return size > attributes.max_message_bytes or shared

    def note_publish(self, topic: NaiveTopic) -> None:
        """Messages without retries left get another attempt."""
        for one in topic.subscriptions:
            one.hurried |= {position for position, each in one.pending.items() if each.is_exhausted}

    def take_published(
        self,
        topic: NaiveTopic,
        record: MessagesPublished,
        messages: dict[int, tuple[bytes, Headers | None, Labels]],
        pauses: dict[int, bool],
    ) -> list[int]:
        """``pauses``: by subscription, whether deliveries had to wait before this publish; a refusal sets the pause."""
        assert record.first_position == topic.next_position
        assert record.enqueue_ms == self.now_ms
        numbers = unpack_runs(record.message_ids) or range(len(record.sizes))
        ids = [record.first_message_id + number for number in numbers]
        assert record.sizes == [len(messages[one][0]) for one in ids]
        matching = {
            one.subscription_id: [at for at, own in enumerate(ids) if one.matches(messages[own][2])]
            for one in topic.subscriptions
        }
        assert all(any(at in those for those in matching.values()) for at in range(len(ids))), "stored for nobody"
        copies = {
            name: (record.copies[2 * place], record.copies[2 * place + 1], messages_taken(record, place))
            for place, name in enumerate(record.subscriptions)
        }
        assert len(record.copies) == 2 * len(copies)
        waiting = {one: messages_taken(record, len(copies) + place) for place, one in enumerate(record.waiting)}
        assert len(waiting) == len(record.waiting)
        copy_id = record.first_copy_id
        self.note_published(topic, ids, record.first_position, copies, waiting)
        for one in topic.subscriptions:
            wanted = matching[one.subscription_id]
            queue_id, first, taken = copies.pop(one.name, (0, 0, []))
            left = waiting.pop(one.subscription_id, [])
            assert sorted(taken + left) == wanted, "it gets what it does not match, or not what it matches"
            target = None if one.is_push else self.named("admin", one.endpoint)
            if target is None or pauses[one.subscription_id]:
                assert not taken, "it overtook what waits"
            else:
                assert taken == self.taken_by(target, wanted, record.sizes, one.strategy)
                if left:
                    # Messages that this publish could not store hold the rest up, by the strategy.
                    pauses[one.subscription_id] = one.strategy == "backoff" or one.blocked
            if taken:
                assert target is not None
                assert queue_id == target.queue_id
                assert first == target.next_position
                copy_ids = list(range(copy_id, copy_id + len(taken)))
                copy_id += len(taken)
                assert not set(copy_ids) & self.message_ids, "a message id was used twice"
                one.copied += len(taken)
                bodies, marks, labels = zip(*(messages[ids[at]] for at in taken), strict=True)
                self.take_copies(target, copy_ids, list(bodies), list(marks))
                assert record.topic == topic.name
                for own, at, label in zip(copy_ids, taken, labels, strict=True):
                    copy_of = CopyOf(topic.name, one.name, ids[at], self.now_ms, label or None)
                    target.by_id[own].copy_of = copy_of
            for at in left:
                body, mark, label = messages[ids[at]]
                position = record.first_position + at
                one.add(NaivePublished(position, ids[at], body, mark or None, label, self.now_ms))
        assert not copies, "copies for a subscription that is not there"
        assert not waiting, "it waits for a subscription that is not there"
        topic.next_position += len(ids)
        topic.totals.update(published=len(ids), published_bytes=sum(len(messages[one][0]) for one in ids))
        return ids

    def taken_by(self, queue: NaiveQueue, wanted: list[int], sizes: list[int], strategy: str) -> list[int]:
        """The messages that a queue takes: as many as fit, under backoff none behind the first refusal."""
        taken: list[int] = []
        for at in wanted:
            is_large = sizes[at] > queue.attributes["max_message_bytes"]
            if is_large or len(queue.messages) + len(taken) >= queue.attributes["max_backlog"]:
                if strategy == "backoff":
                    break
                continue
            taken.append(at)
        return taken

    def take_copies(self, queue: NaiveQueue, ids: list[int], bodies: list[bytes], marks: list[Headers | None]) -> None:
        self.message_ids.update(ids)
        attributes = queue.attributes
        assert all(len(body) <= attributes["max_message_bytes"] for body in bodies)
        assert len(queue.messages) + len(bodies) <= attributes["max_backlog"], "a copy in a full queue"
        queue.send(ids, bodies, marks, [0] * len(ids), self.now_ms, are_copies=True)

    # ------------------------------------------------------------------ records

    def judge(self, record: AnyRecord, row: NaiveRow, own: int | None) -> None:
        if isinstance(record, MessagesPublished):
            assert self.publishing is not None
            topic, messages, pauses, stored_ids = self.publishing
            row.next_body += len(record.sizes)
            stored_ids += self.take_published(topic, record, messages, pauses)
        else:
            super().judge(record, row, own)

    def judge_copies(self, record: MessagesSent, row: NaiveRow) -> None:
        """Late copies are messages without origin; the next record of the row names their subscription."""
        bodies = row.bodies[row.next_body : row.next_body + len(record.sizes)]
        row.next_body += len(bodies)
        queue = self.by_id(record.queue_id)
        assert record.first_position == queue.next_position
        ids = list(range(record.first_message_id, record.first_message_id + len(bodies)))
        assert not set(ids) & self.message_ids, "a message id was used twice"
        headers = list(record.headers or (None for _ in bodies))
        self.take_copies(queue, ids, bodies, headers)
        assert record.copies_of is not None
        for message_id, copy_of in zip(ids, record.copies_of, strict=True):
            queue.by_id[message_id].copy_of = copy_of
        known = [fields_of(copy_of) for copy_of in record.copies_of]
        stored = list(zip(bodies, [one or None for one in headers], known, strict=True))
        # A delivery of many bytes is several sends.
        self.late = queue, self.late[1] + stored if self.late is not None and self.late[0] is queue else stored

    def judge_more(self, record: AnyRecord) -> None:
        match record:
            case MessagesDelivered():
                self.judge_delivered(record)
            case DeliveriesFailed():
                one = self.subscription(record.subscription_id)
                assert one is not None
                facts = zip(unpack_runs(record.positions), record.attempts, record.next_ms, strict=True)
                for position, attempts, next_ms in facts:
                    error, started_ms = self.ended.pop((one.subscription_id, position), (record.error, self.now_ms))
                    assert error == record.error
                    one.fail(position, attempts, next_ms, started_ms, self.now_ms)
                    one.going.discard(position)
            case DeliveriesDropped():
                self.judge_dropped(record)
            case DeliveriesCleared():
                one = self.subscription(record.subscription_id)
                assert one is not None
                assert record.floor == one.topic.next_position
                for position in sorted(one.pending):
                    one.drop(position, "operator")
            case TopicMessagesExpired():
                topic = next(topic for topic in self.topics if topic.topic_id == record.topic_id)
                topic.expire(record.floor, self.now_ms - LIFE_MS)
            case _:
                super().judge_more(record)

    def judge_delivered(self, record: MessagesDelivered) -> None:
        one = self.subscription(record.subscription_id)
        assert one is not None
        positions = unpack_runs(record.positions)
        if one.is_push:
            for position in positions:
                error, _ = self.ended.pop((one.subscription_id, position))
                assert error is None
        else:
            assert self.late is not None
            queue, stored = self.late
            self.late = None
            assert queue is self.named("admin", one.endpoint)
            asked = [one.pending[position].message for position in positions]
            names = one.topic.name, one.name
            wanted = [
                (each.body, each.headers, (*names, each.message_id, each.enqueue_ms, each.labels or None))
                for each in asked
            ]
            assert sorted(wanted, key=repr) == sorted(stored, key=repr)
        for position in positions:
            one.deliver(position)
            one.going.discard(position)

    def judge_dropped(self, record: DeliveriesDropped) -> None:
        one = self.subscription(record.subscription_id)
        assert one is not None
        positions = unpack_runs(record.positions)
        for position in positions:
            delivery = one.drop(position, record.reason)
            if record.reason == "operator":
                assert self.dropping == (one.subscription_id, position)
            elif record.reason == "retries":
                assert delivery.attempts >= 4
                assert one.strategy == "backoff"
            else:
                assert record.reason == "damaged"
                assert (one.topic.topic_id, position) in self.log.damaged

    # ------------------------------------------------------------------ results and pages

    @precondition(lambda self: bool(self.pushes))
    @rule(
        picks=st.lists(which, min_size=1, max_size=3), fails=st.booleans(), took_ms=st.sampled_from([0, 0, 300, 15_000])
    )
    def pushes_end(self, picks: list[int], fails: bool, took_ms: int) -> None:
        results: list[PushResult] = []
        wanted: dict[tuple[int, int], tuple[str | None, int]] = {}
        for pick in picks:
            if not self.pushes:
                break
            push = self.pushes.pop(pick % len(self.pushes))
            error = f"{500 + pick % 2}" if fails else None
            key = push.subscription_id, push.message.position
            result = PushResult(*key, self.now_ms - took_ms, error)
            results.append(result)
            one = self.subscription(push.subscription_id)
            if one is not None:
                one.going.discard(key[1])
                if key[1] in one.pending:
                    wanted[key] = error, result.started_ms
        self.ended = wanted
        self.done(self.broker.pushes_ended(results, self.now_ms))
        assert not self.ended, "a result was not taken into account"

    @precondition(has_topics)
    @rule(
        size=st.sampled_from([1, 300]),
        tags=st.integers(0, 3),
        fails=st.sampled_from([False, False, True]),
        ms=st.sampled_from([0, 1000, 2000, 20_000, 20_000]),
    )
    def deliveries_go_on(self, size: int, tags: int, fails: bool, ms: int) -> None:
        """Due messages are read and posted, and all endpoints answer, once or twice."""
        if ms < 2000:
            self.publish(0, [(size, tags), (1, tags)], 0, 0)
        for wait_ms in (ms, 0):
            self.time_passes(wait_ms, None)
            for _ in range(4):
                while self.reads:
                    self.page_arrives(0, None, False, None)
                self.time_passes(0, None)
            self.pushes_end([0] * len(self.pushes), fails, 0)

    def topic_page_arrives(self, read: PageRead, messages: list[StoredMessage], missing: Runs) -> None:
        """Messages that no subscription waits for may be gone from the disk."""
        topic = next((topic for topic in self.topics if topic.topic_id == read.queue_id), None)
        retained = topic.retained() if topic is not None else set[int]()
        lost = [one.position for one in messages if one.position not in retained]
        messages = [one for one in messages if one.position in retained]
        missing = pack_runs(sorted(unpack_runs(missing) + lost))
        dropped = sum(one.dropped for one in self.subscriptions())
        outcome = self.broker.pages_read(read.read_id, messages, missing, self.now_ms)
        damaged = self.done(outcome)
        if damaged:
            assert sum(one.dropped for one in self.subscriptions()) >= dropped + damaged

    @precondition(has_topics)
    @rule(number=which, position=which)
    def damage_topic(self, number: int, position: int) -> None:
        topic = self.topics[number % len(self.topics)]
        if topic.next_position and position % 4 == 0:
            self.log.damaged.add((topic.topic_id, position // 4 % topic.next_position))

    # ------------------------------------------------------------------ always

    def restart(self, from_checkpoint: bool, lost: bool) -> None:
        super().restart(from_checkpoint, lost)
        self.pushes.clear()
        for one in self.subscriptions():
            one.restart()

    def forget_totals(self) -> None:
        super().forget_totals()
        self.gone_topic_totals.clear()
        for topic in self.topics:
            topic.totals.clear()
            for one in topic.subscriptions:
                one.forget_totals()

    def check_totals(self, broker: Broker) -> None:
        super().check_totals(broker)
        for topic in self.topics:
            assert nonzero(broker.topics[topic.topic_id].totals) == +topic.totals
            for one in topic.subscriptions:
                assert nonzero(broker.subscriptions[one.subscription_id].deliveries.totals()) == +one.totals()
        gone = broker.facts.gone_totals.by_account.get("admin")
        found = nonzero(gone.topics) + nonzero(gone.subscriptions) if gone is not None else Counter[str]()
        assert found == +self.gone_topic_totals

    def always(self) -> None:
        super().always()
        assert sorted(self.broker.topics) == sorted(topic.topic_id for topic in self.topics)
        for topic in self.topics:
            counts = self.broker.topic_info("admin", topic.name).counts
            assert counts == {"retained": len(topic.retained()), "subscriptions": len(topic.subscriptions)}
            for one in topic.subscriptions:
                real = self.broker.subscriptions[one.subscription_id]
                assert list(real.deliveries.pending()) == sorted(one.pending)
                assert real.counts() == one.counts()
                assert real.deliveries.blocked == one.blocked
            live = {one for one in range(topic.next_position) if self.broker.live_in(topic.topic_id, one, one + 1)}
            assert live == topic.retained()

    def at_rest(self) -> None:
        super().at_rest()
        for one in self.subscriptions():
            old = [
                each
                for each in one.pending.values()
                if each.message.enqueue_ms + LIFE_MS <= self.now_ms - STEP_GRAIN_MS
            ]
            assert not old, "it outlived its life"
            if one.is_push:
                # URLs without an answer yet share half of the six slots, and with many such URLs get a slot each.
                full = len(self.pushes) >= 3 or any(push.url == one.endpoint for push in self.pushes)
                assert full or not one.due(self.now_ms), "what is due is not posted"
            else:
                assert not one.due(self.now_ms), "what is due is not delivered to its queue"


def messages_taken(record: MessagesPublished, place: int) -> list[int]:
    """The messages of a record that the queue, or behind the queues the waiting subscription, at ``place`` takes."""
    everything = range(len(record.sizes))
    if not record.taken:
        return list(everything)
    taken = record.message_sets[record.taken[place]]
    return [at for at in everything if at // 8 < len(taken) and taken[at // 8] >> at % 8 & 1]
