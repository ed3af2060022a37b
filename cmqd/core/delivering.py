"""Delivering: bringing what waits for a subscription to its queue or its URL.

What is due is up to :class:`~cmqd.core.facts.deliveries.Deliveries`. Here it gets its body, from memory or a page of
the log, and its way: a copy into a queue is decided at once, in one row with the fact that it was delivered; what is to
be posted leaves in an outcome, and how that went comes back through :meth:`Delivering.pushes_ended`. Each subscription
gets on by itself; they share nothing but the room of an endpoint and a bound on requests in all.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from cmqd.core.copies import PublishedCopies
from cmqd.core.facts.deliveries import BACKOFF, DAMAGED
from cmqd.core.outcome import Effects, Outcome, PageRead, Push, PushResult
from cmqd.core.queue import Queue
from cmqd.core.runtime.window import cost
from cmqd.core.sending import Sending
from cmqd.core.topic import Subscription
from cmqd.core.topicstate import Endpoint, TopicState
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    MessagesSent,
    Runs,
    StoredMessage,
    TopicMessagesExpired,
    pack_runs,
    unpack_runs,
)
from cmqd_types.messages import CopyOf

BACKOFF_MS = (10_000, 20_000)
"""Between which two a pause under ``backoff`` lies."""
SUBSCRIPTIONS_A_TICK = 64
"""Looked after in one tick at most: a few microseconds each."""
DELIVERIES_A_TICK = 64
"""Started in one tick, about: up to 30 microseconds each, and a tick is to take 2 ms at most."""
HELD_UP_MS = 1_000
"""How long copies into queues wait before they are tried again while the disk is nearly full."""
READ_AHEAD = 64
"""Messages that a page brings beside those that are delivered at once: 16 KiB of 256 bytes each."""
MAX_READS = 32
"""Page-ins for deliveries under way at once: they take no more than half of what receives have."""


class Delivering(Sending, TopicState):
    """The part of the broker that brings messages of topics to their subscribers."""

    def pushes_ended(self, results: Sequence[PushResult], now_ms: int) -> Outcome[None]:
        """How attempts to post to URLs went. What became of a message or its subscription meanwhile is taken into
        account: a result that nobody wants any more changes nothing.
        """
        records: list[AnyRecord] = []
        delivered: dict[int, list[int]] = {}
        failed: dict[tuple[int, str], list[tuple[int, int]]] = {}
        touched: dict[int, None] = {}
        for result in results:
            self._make_room(result.subscription_id, result.position)
            subscription = self.subscriptions.get(result.subscription_id)
            if subscription is None:
                continue
            touched[result.subscription_id] = None
            deliveries = subscription.deliveries
            if result.error is None:
                self._trusted[subscription.attributes.endpoint] = None
            else:
                self._trusted.pop(subscription.attributes.endpoint, None)
            if result.position not in deliveries.under_way or not deliveries.is_pending(result.position):
                deliveries.given_back(result.position)
            elif result.error is None:
                delivered.setdefault(result.subscription_id, []).append(result.position)
            else:
                key = (result.subscription_id, result.error)
                failed.setdefault(key, []).append((result.position, result.started_ms))
        for subscription_id, positions in delivered.items():
            self._note_delivered(self.subscriptions[subscription_id], positions, records, now_ms)
        for (subscription_id, error), attempts in failed.items():
            self._note_failures(self.subscriptions[subscription_id], attempts, error, records, now_ms)
        for subscription_id in touched:
            self._look_after(self.subscriptions[subscription_id], now_ms)
        return Outcome(None, records)

    # ------------------------------------------------------------------ when

    def _deliveries_due_ms(self) -> int | None:
        """When :meth:`_tick_deliveries` has something to do."""
        if self._deliveries_wanted:
            return 0
        times = [heap[0][0] for heap in (self._delivery_agenda, self._topic_expiries) if heap]
        return min(times, default=None)

    def _look_after(self, subscription: Subscription, now_ms: int) -> None:
        """Something about a subscription has changed: see which way messages take, and when there is work."""
        deliveries, topic = subscription.deliveries, subscription.topic
        self._retries_known += deliveries.retrying_count - subscription.retries_noted
        subscription.retries_noted = deliveries.retrying_count
        self._bound_retries(subscription)
        flows = subscription.may_flow()
        if flows != subscription.flows:
            subscription.flows = flows
            topic.subscriptions_changed()
        if deliveries.exhausted:
            topic.exhausted[subscription.subscription_id] = subscription
        else:
            topic.exhausted.pop(subscription.subscription_id, None)
        due_ms = deliveries.next_due_ms(now_ms)
        if due_ms is None:
            return
        if due_ms <= now_ms:
            self._deliveries_wanted[subscription.subscription_id] = None
        elif subscription.agenda_due_ms is None or due_ms < subscription.agenda_due_ms:
            subscription.agenda_due_ms = due_ms
            heappush(self._delivery_agenda, (due_ms, subscription.subscription_id))

    def _tick_deliveries(self, effects: Effects, now_ms: int) -> None:
        """Deliver what is due of a few subscriptions."""
        agenda = self._delivery_agenda
        while agenda and agenda[0][0] <= now_ms:
            due_ms, subscription_id = heappop(agenda)
            subscription = self.subscriptions.get(subscription_id)
            if subscription is not None and subscription.agenda_due_ms == due_ms:
                subscription.agenda_due_ms = None
                self._deliveries_wanted[subscription_id] = None
        left = DELIVERIES_A_TICK
        for subscription_id in list(self._deliveries_wanted)[:SUBSCRIPTIONS_A_TICK]:
            if left <= 0:
                break
            del self._deliveries_wanted[subscription_id]
            subscription = self.subscriptions.get(subscription_id)
            if subscription is None:
                continue
            if subscription.reading or subscription_id in self._delivery_read_line:
                # It is looked after when bodies come; its turn goes to another.
                self._wake_next(subscription.attributes.endpoint)
            else:
                left -= self._deliver(subscription, left, effects, now_ms)
        self._tick_topic_expiries(effects, now_ms)

    def _tick_topic_expiries(self, effects: Effects, now_ms: int) -> None:
        """Let go of what has outlived its life in one topic."""
        heap = self._topic_expiries
        if not heap or heap[0][0] > now_ms:
            return
        due_ms, topic_id = heappop(heap)
        topic = self.topics.get(topic_id)
        if topic is None or topic.expiry_due_ms != due_ms:
            return
        floor = topic.steps.floor_at(now_ms - self.limits.topic_life_ms, topic.next_position)
        if topic.live_in(0, floor):
            record = TopicMessagesExpired(topic_id, floor)
            self._apply_topic_record(topic, record)
            effects.records.append(record)
            for subscription in topic.subscriptions.values():
                self._look_after(subscription, now_ms)
        elif floor == topic.next_position:
            topic.steps.clear()
        else:
            topic.steps.drop_below(floor)
        self._schedule_topic_expiry(topic)
        if topic.expiry_due_ms is not None and topic.expiry_due_ms <= now_ms:
            # The first step that is left is over and some of it still lives: steps end later than they begin.
            topic.expiry_due_ms = now_ms + 1
            heappush(heap, (now_ms + 1, topic_id))

    # ------------------------------------------------------------------ how

    def _deliver(self, subscription: Subscription, most: int, effects: Effects, now_ms: int) -> int:
        """Start what is due, as far as there is room; returns how many that were."""
        if subscription.is_push:
            if not self.pushing:
                return 0
            room = self._room(subscription)
        else:
            if self.moves_held_up:
                self._set_delivery_agenda(subscription, now_ms + HELD_UP_MS)
                return 0
            room = most
        if room <= 0:
            return 0
        deliveries = subscription.deliveries
        self._bound_retries(subscription)
        started = deliveries.start(now_ms, room)
        count = len(started)
        if subscription.is_push:
            self._take_room(subscription, [position for position, _ in started])
            if count < room:
                self._wake_next(subscription.attributes.endpoint)
        self._carry_out(subscription, started, effects, now_ms)
        if not subscription.is_push and deliveries.strategy == BACKOFF:
            # In order, one after the other, but a queue answers at once.
            while started and count < most and not subscription.reading:
                started = deliveries.start(now_ms, 1)
                count += len(started)
                self._carry_out(subscription, started, effects, now_ms)
        if not subscription.reading:
            self._look_after(subscription, now_ms)
        return count

    def _carry_out(
        self, subscription: Subscription, started: Sequence[tuple[int, int]], effects: Effects, now_ms: int
    ) -> None:
        """Attempt what is in memory, and have the bodies of the rest read."""
        topic_id, deliveries = subscription.topic.topic_id, subscription.deliveries
        in_memory: list[StoredMessage] = []
        elsewhere: list[int] = []
        for position, _ in started:
            message = self.topic_bodies.get(topic_id, position)
            if message is None:
                elsewhere.append(position)
            else:
                in_memory.append(message)
        if elsewhere and len(self._delivery_reads) >= MAX_READS:
            for position in elsewhere:
                deliveries.given_back(position)
                self._make_room(subscription.subscription_id, position)
            self._delivery_read_line[subscription.subscription_id] = None
        elif elsewhere:
            elsewhere.sort()
            # A page costs a round trip to the storage: what is likely to be next comes along. Only behind what was
            # started, because a page may hold a part only, and what was started must get on.
            ahead = [
                one
                for one in deliveries.upcoming(READ_AHEAD)
                if one > elsewhere[-1] and self.topic_bodies.get(topic_id, one) is None
            ]
            read = self._topic_page_read(topic_id, elsewhere + ahead)
            self._delivery_reads[read.read_id] = (subscription.subscription_id, elsewhere)
            subscription.reading = True
            effects.reads.append(read)
        if in_memory:
            self._attempt(subscription, in_memory, effects, now_ms)

    def _bound_retries(self, subscription: Subscription) -> None:
        """No new message is tried whose failure there would be no memory for."""
        deliveries, limits = subscription.deliveries, self.limits
        has_room = self._retries_known < limits.max_retries_in_all
        deliveries.max_known = limits.max_retries_known if has_room else deliveries.retrying_count

    def _topic_page_read(self, topic_id: int, positions: list[int]) -> PageRead:
        read = PageRead(self._next_read_id, topic_id, pack_runs(positions), self.limits.page_bytes)
        self._next_read_id += 1
        return read

    def _deliveries_arrived(
        self, read_id: int, messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Bodies for deliveries; how many messages were found to be damaged."""
        damaged = 0
        subscription_id, positions = self._delivery_reads.pop(read_id)
        subscription = self.subscriptions.get(subscription_id)
        if subscription is None:
            for position in positions:
                self._make_room(subscription_id, position)
        else:
            deliveries = subscription.deliveries
            subscription.reading = False
            started = set(positions)
            wanted: list[StoredMessage] = []
            for message in messages:
                if message.position not in started:
                    self.topic_bodies.keep(subscription.topic.topic_id, message)
                elif deliveries.is_pending(message.position):
                    wanted.append(message)
            come = {message.position for message in wanted}
            lost = [one for one in unpack_runs(missing) if deliveries.is_pending(one)]
            for position in positions:
                if position not in come:
                    # Beyond the page's bytes, gone meanwhile, or unreadable.
                    deliveries.given_back(position)
                    self._make_room(subscription_id, position)
            if lost:
                damaged = len(lost)
                self._note_dropped(subscription, lost, DAMAGED, effects.records, now_ms)
            if wanted:
                self._attempt(subscription, wanted, effects, now_ms)
            self._look_after(subscription, now_ms)
        line = self._delivery_read_line
        if line:
            self._deliveries_wanted.update(line)
            line.clear()
        return damaged

    def _attempt(
        self, subscription: Subscription, messages: Sequence[StoredMessage], effects: Effects, now_ms: int
    ) -> None:
        """Carry out attempts that were started and whose bodies are there."""
        if not subscription.is_push:
            self._deliver_to_queue(subscription, messages, effects, now_ms)
            return
        topic, attributes = subscription.topic, subscription.attributes
        if not self.pushing:
            for message in messages:
                subscription.deliveries.given_back(message.position)
                self._make_room(subscription.subscription_id, message.position)
            return
        under_way = subscription.deliveries.under_way
        effects.pushes += [
            Push(
                topic.account,
                topic.name,
                subscription.name,
                subscription.subscription_id,
                attributes.endpoint,
                attributes.content_format,
                message,
                under_way[message.position],
            )
            for message in messages
        ]

    def _deliver_to_queue(
        self, subscription: Subscription, messages: Sequence[StoredMessage], effects: Effects, now_ms: int
    ) -> None:
        """Copies into a queue that could not be made when the messages were published."""
        queue = subscription.target
        fitting: list[StoredMessage] = []
        refused: dict[str, list[tuple[int, int]]] = {}
        for message in messages:
            if queue is None:
                why = f"queue {subscription.attributes.endpoint!r} does not exist"
            else:
                why = refusal(queue, len(message.body), len(fitting))
            if why:
                refused.setdefault(why, []).append((message.position, now_ms))
            else:
                fitting.append(message)
        if queue is not None and fitting:
            for some in _cut(fitting, self.limits.max_batch_bytes):
                self._store_copies(subscription, queue, some, effects, now_ms)
            self._note_delivered(subscription, [message.position for message in fitting], effects.records, now_ms)
            self._serve(queue, effects, now_ms)
        for why, attempts in refused.items():
            self._note_failures(subscription, attempts, why, effects.records, now_ms)

    def _store_copies(
        self,
        subscription: Subscription,
        queue: Queue,
        messages: Sequence[StoredMessage],
        effects: Effects,
        now_ms: int,
    ) -> None:
        index, topic = queue.index, subscription.topic
        headers = [message.headers for message in messages]
        record = MessagesSent(
            queue.queue_id,
            index.next_position,
            self._next_message_ids(len(messages), effects.records),
            max(now_ms, index.last_enqueue_ms),
            [len(message.body) for message in messages],
            headers if any(headers) else None,
            copies_of=[
                CopyOf(topic.name, subscription.name, message.message_id, message.enqueue_ms, message.labels)
                for message in messages
            ],
        )
        was_empty = not index.active_count
        self._apply_sent(queue, record)
        effects.records.append(record)
        stored = [message.body for message in messages]
        effects.bodies += stored
        self._keep_bodies(queue, record, stored, was_empty)

    # ------------------------------------------------------------------ copies that a publish made

    def _keep_copies(self, queue: Queue, copies: PublishedCopies, place: int, was_empty: bool) -> None:
        """Keep in memory the copies that are near enough to the queue's head to be received from there."""
        window, budget = queue.window, self._budget
        if window.cold:
            if not was_empty:
                return
            window.cold = False
        # As in ``_keep_bodies``: messages that go out at once need no room.
        goes_out = was_empty and len(queue.line.waiting) > 0
        for message in copies.messages(place):
            size = cost(message)
            if not goes_out and not budget.has_room(queue.queue_id, size):
                self._go_back_to(queue, message.position)
                return
            window.messages[message.position] = message
            budget.kept(queue.queue_id, window, size)

    def _tick_unserved(self, effects: Effects, now_ms: int) -> None:
        """Serve receives that wait at one queue with the copies of one publish that was too large to do so at once.

        The copies of a publish to one queue at a time: a queue with 500 subscriptions of a topic can have 128,000.
        """
        if not self._unserved:
            return
        queue_id = next(iter(self._unserved))
        entries = self._unserved[queue_id]
        copies, place = entries.pop(0)
        queue = self.queues.get(queue_id)
        if not entries or queue is None or not queue.line.waiting:
            del self._unserved[queue_id]
        if queue is None or not queue.line.waiting:
            return
        window, active = queue.window, queue.index.active
        first = copies.first(place)
        stop = first + copies.count(place)
        # Else they were paged in meanwhile, or are about to be.
        if window.cold and window.paged_until == first and not queue.reading and active.contains_range(first, stop):
            window.cold = False
            self._keep_copies(queue, copies, place, False)
            if not window.cold and queue.index.next_position > stop:
                # Messages that came after these are in the log alone.
                self._go_back_to(queue, stop)
        self._serve(queue, effects, now_ms)

    # ------------------------------------------------------------------ how it went

    def _note_delivered(
        self, subscription: Subscription, positions: list[int], records: list[AnyRecord], now_ms: int
    ) -> None:
        topic = subscription.topic
        runs = pack_runs(sorted(positions))
        record = MessagesDelivered(topic.topic_id, subscription.subscription_id, runs, now_ms)
        self._apply_topic_record(topic, record)
        records.append(record)

    def _note_failures(
        self,
        subscription: Subscription,
        attempts: Sequence[tuple[int, int]],
        error: str,
        records: list[AnyRecord],
        now_ms: int,
    ) -> None:
        """``attempts``: (position, when it was started) of those that failed for the same reason."""
        topic, deliveries = subscription.topic, subscription.deliveries
        positions: list[int] = []
        failed: list[int] = []
        next_ms: list[int] = []
        dropped: list[int] = []
        for position, started_ms in sorted(attempts):
            count, due_ms = deliveries.judge(position, started_ms, now_ms, self._jitter_ms(subscription, position))
            if due_ms is None:
                dropped.append(position)
            positions.append(position)
            failed.append(count)
            next_ms.append(due_ms or 0)
        # Also of those that are dropped: why they failed the last time is to be known after a restart too.
        record = DeliveriesFailed(
            topic.topic_id, subscription.subscription_id, pack_runs(positions), failed, next_ms, error, now_ms
        )
        self._apply_topic_record(topic, record)
        records.append(record)
        if dropped:
            self._note_dropped(subscription, dropped, "retries", records, now_ms)
        self._look_after(subscription, now_ms)

    def _note_dropped(
        self, subscription: Subscription, positions: list[int], reason: str, records: list[AnyRecord], now_ms: int
    ) -> None:
        topic = subscription.topic
        runs = pack_runs(sorted(positions))
        record = DeliveriesDropped(topic.topic_id, subscription.subscription_id, runs, reason, now_ms)
        self._apply_topic_record(topic, record)
        records.append(record)

    def _jitter_ms(self, subscription: Subscription, position: int) -> int:
        """The pause before a retry under ``backoff``: spread evenly by a mix of numbers (Steele, Lea and Flood 2014,
        SplitMix), so that the same calls give the same result.
        """
        attempt = subscription.deliveries.under_way.get(position, 0)
        mixed = (self._seed + (subscription.subscription_id << 40) + (position << 8) + attempt) & _MASK
        mixed = (mixed + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        low, high = BACKOFF_MS
        return low + (mixed ^ (mixed >> 31)) % (high - low + 1)

    # ------------------------------------------------------------------ room

    def _room(self, subscription: Subscription) -> int:
        """How many requests to its URL may be started now; if none, it stands in line.

        URLs that did not take what was posted to them last, or to which nothing was posted yet, have half of what
        there is, in equal shares: hundreds of dead ones, which hold what they have for as long as they may, leave the
        other half to those that answer. Once less than a quarter of all is free, each of these has a share of that.
        (The dynamic threshold of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
        switches", 1998.)
        """
        limits = self.limits
        url = subscription.attributes.endpoint
        pool, line = limits.max_pushes, self._push_line
        most = limits.max_pushes_per_endpoint
        free = pool - len(self._pushes)
        if url in self._trusted:
            most = min(most, max(4 * most * free // pool, 1))
        else:
            pool, line = max(pool // 2, 1), self._doubtful_line
            free = min(free, pool - self._doubtful_pushes)
            most = min(most, max(pool // max(self._push_subscriptions, 1), 1))
        if free <= 0:
            line[subscription.subscription_id] = None
            return 0
        endpoint = self._endpoints.get(url)
        room = min(free, most if endpoint is None else most - endpoint.under_way)
        if room <= 0 and endpoint is not None:
            endpoint.line[subscription.subscription_id] = None
            self._wake_next()
        return room

    def _take_room(self, subscription: Subscription, positions: list[int]) -> None:
        if not positions:
            return
        url = subscription.attributes.endpoint
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            endpoint = self._endpoints[url] = Endpoint()
        endpoint.under_way += len(positions)
        is_trusted = url in self._trusted
        if not is_trusted:
            self._doubtful_pushes += len(positions)
        for position in positions:
            self._pushes[subscription.subscription_id, position] = (url, is_trusted)

    def _make_room(self, subscription_id: int, position: int) -> None:
        """A request is over, or is not made after all."""
        url, was_trusted = self._pushes.pop((subscription_id, position), ("", True))
        if not url:
            return
        if not was_trusted:
            self._doubtful_pushes -= 1
        self._endpoints[url].under_way -= 1
        self._wake_next(url)

    def _wake_next(self, url: str = "") -> None:
        """There may be room for one more, at this URL and altogether: those first in line have their turn. Whoever
        does not use it passes it on, by this very call.
        """
        most = self.limits.max_pushes
        if len(self._pushes) >= most:
            return
        if self._push_line:
            self._wake_first(self._push_line)
        if self._doubtful_line and self._doubtful_pushes < max(most // 2, 1):
            self._wake_first(self._doubtful_line)
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            return
        if endpoint.line and endpoint.under_way < self.limits.max_pushes_per_endpoint:
            self._wake_first(endpoint.line)
        if not endpoint.under_way and not endpoint.line:
            del self._endpoints[url]

    def _wake_first(self, line: dict[int, None]) -> None:
        first = next(iter(line))
        del line[first]
        self._deliveries_wanted[first] = None

    def _leave_lines(self, subscription: Subscription) -> None:
        """It is gone, and wants no room any more."""
        self._retries_known -= subscription.retries_noted
        self._push_line.pop(subscription.subscription_id, None)
        self._doubtful_line.pop(subscription.subscription_id, None)
        # Another subscription to the same URL has it back with its next success.
        self._trusted.pop(subscription.attributes.endpoint, None)
        endpoint = self._endpoints.get(subscription.attributes.endpoint)
        if endpoint is not None:
            endpoint.line.pop(subscription.subscription_id, None)
        self._wake_next(subscription.attributes.endpoint)

    def _set_delivery_agenda(self, subscription: Subscription, due_ms: int) -> None:
        if subscription.agenda_due_ms is None or due_ms < subscription.agenda_due_ms:
            subscription.agenda_due_ms = due_ms
            heappush(self._delivery_agenda, (due_ms, subscription.subscription_id))


_MASK = (1 << 64) - 1


def _cut(messages: Sequence[StoredMessage], most: int) -> Iterator[Sequence[StoredMessage]]:
    """Parts of up to ``most`` bytes of bodies, at least a message each: what a send may bring."""
    start = size = 0
    for place, message in enumerate(messages):
        if size + len(message.body) > most and place > start:
            yield messages[start:place]
            start, size = place, 0
        size += len(message.body)
    if messages:
        yield messages[start:]


def refusal(queue: Queue, size: int, ahead: int = 0) -> str:
    """Why a queue does not take a message of that size now, in a line; empty = it does. ``ahead`` go in before it."""
    attributes, held = queue.index.attributes, queue.index.live_count + ahead
    if size > attributes.max_message_bytes:
        return f"the message has {size} bytes; queue {queue.name!r} takes up to {attributes.max_message_bytes}"
    if held >= attributes.max_backlog:
        return f"queue {queue.name!r} is full: it holds {held} messages"
    return ""
