"""The broker: the one door to the rules about queues, topics and messages.

An operation validates (raising a DomainError before anything changed), decides on records, applies them through the
same ``apply`` methods that recovery uses, and returns an Outcome. It never waits, reads no clock and touches no disk:
what it needs from the log comes back through :meth:`Broker.pages_read`, what time brings through :meth:`Broker.tick`.

The rules are in the rooms: ``facts`` (what is true), ``runtime`` (intentions and caches), ``operations`` (a class for
each verb or theme) and ``recovery``. The broker makes the parts in the order of their dependencies and passes calls on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cmqd.core.errors import DomainError
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.invariants import check_invariants
from cmqd.core.limits import Limits
from cmqd.core.operations.checks import Checks
from cmqd.core.operations.dead_letters import DeadLetters
from cmqd.core.operations.delays import Delays
from cmqd.core.operations.deliver import Deliver
from cmqd.core.operations.expiry import Expiry
from cmqd.core.operations.floors import Floors
from cmqd.core.operations.leases import Leases
from cmqd.core.operations.moves import Moves
from cmqd.core.operations.peek import Peek
from cmqd.core.operations.prefetch import Prefetch
from cmqd.core.operations.publish import Publish
from cmqd.core.operations.publish_plan import PublishPlan
from cmqd.core.operations.queues import QueueAdmin
from cmqd.core.operations.receive import Receive
from cmqd.core.operations.redrives import Redrives
from cmqd.core.operations.reservations import Reservations
from cmqd.core.operations.rewind import Rewind
from cmqd.core.operations.send import Send
from cmqd.core.operations.serving import Serving
from cmqd.core.operations.settle import Settle
from cmqd.core.operations.start import Start
from cmqd.core.operations.store import Store
from cmqd.core.operations.tick import Tick
from cmqd.core.operations.topics import TopicAdmin
from cmqd.core.operations.transactions import Transactions
from cmqd.core.outcome import (
    Effects,
    HandlesDone,
    Outcome,
    Published,
    PublishRequest,
    PushResult,
    ReceiveRequest,
    SendRequest,
    TransactionsDone,
    Waiting,
)
from cmqd.core.receipts import HandleKey, ReceiptHandles
from cmqd.core.recovery.checkpoint import Checkpoint
from cmqd.core.recovery.replay import Replay
from cmqd.core.recovery.restore import Restore
from cmqd.core.runtime.pages import Lane, PageOwner
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import AnyRecord, ClockOffset, Runs, StoredMessage
from cmqd_types.messages import HalfMessages, Headers, MessagesPeeked, ReceivedMessage
from cmqd_types.queues import QueueInfo, RedriveStatus, Rewound
from cmqd_types.topics import SubscriptionInfo, TopicInfo


class Broker:
    """All queues and topics of all accounts.

    ``handle_key``: see :mod:`cmqd.core.receipts`; it must stay the same over restarts, or handles lose their meaning.
    ``seed``: any number, for the random part of pauses between deliveries.
    """

    def __init__(self, handle_key: HandleKey, limits: Limits | None = None, seed: int = 0) -> None:
        self.limits = limits or Limits()
        self.handles = ReceiptHandles(handle_key)
        self.facts = facts = Facts(self.limits)
        self.runtime = runtime = Runtime(facts)
        self.gates = runtime.gates
        floors = Floors(facts, runtime)
        self._leases = leases = Leases(facts)
        store = Store(facts, runtime)
        serving = Serving(facts, runtime, self.handles, floors, leases)
        reservations = Reservations(facts, runtime)
        dead_letters = DeadLetters(facts, runtime, reservations)
        expiry = Expiry(facts, runtime, floors, serving)
        delays = Delays(facts, runtime, serving)
        prefetch = Prefetch(facts, runtime, serving)
        self._send = Send(facts, runtime, store, serving)
        self._receive = Receive(facts, runtime, serving)
        self._settle = Settle(facts, runtime, self.handles, serving, leases, dead_letters)
        self._peek = Peek(facts, runtime)
        self._rewind = Rewind(facts, runtime, serving)
        self._checks = Checks(facts, runtime)
        self._transactions = Transactions(facts, runtime, store, serving, self._checks)
        self._redrives = Redrives(facts, runtime, reservations, serving)
        self._queue_admin = QueueAdmin(
            facts=facts,
            runtime=runtime,
            floors=floors,
            serving=serving,
            receive=self._receive,
            checks=self._checks,
            reservations=reservations,
            dead_letters=dead_letters,
        )
        self._deliver = Deliver(facts, runtime, store, serving, seed)
        self._publish = Publish(facts, runtime, store, serving, self._deliver)
        self._topic_admin = TopicAdmin(facts, runtime, self._deliver)
        self._tick = Tick(
            facts=facts,
            runtime=runtime,
            receive=self._receive,
            publish=self._publish,
            settle=self._settle,
            prefetch=prefetch,
            delays=delays,
            expiry=expiry,
            rewind=self._rewind,
            redrives=self._redrives,
            dead_letters=dead_letters,
            checks=self._checks,
            deliver=self._deliver,
            serving=serving,
        )
        self._start = Start(facts, runtime)
        self._checkpoint = Checkpoint(facts)
        self._restore = Restore(facts)
        self._replay = Replay(facts, self._restore)
        pages = runtime.pages
        self._page_owners: dict[Lane[Any], PageOwner[Any]] = {
            pages.receives: serving,
            pages.ahead: prefetch,
            pages.moves: Moves(
                facts=facts,
                runtime=runtime,
                reservations=reservations,
                dead_letters=dead_letters,
                redrives=self._redrives,
                store=store,
                serving=serving,
            ),
            pages.rewinds: self._rewind,
            pages.overflow: delays,
            pages.commits: self._transactions,
            pages.checks: self._checks,
            pages.deliveries: self._deliver,
            pages.peeks: self._peek,
        }

    # ------------------------------------------------------------------ facts to look at

    @property
    def queues(self) -> Mapping[int, Queue]:
        """All queues by id."""
        return self.facts.queues.by_id

    @property
    def topics(self) -> Mapping[int, Topic]:
        """All topics by id."""
        return self.facts.topics.by_id

    @property
    def subscriptions(self) -> Mapping[int, Subscription]:
        """All subscriptions of all topics by id."""
        return self.facts.topics.subscriptions

    @property
    def records_not_applied(self) -> int:
        """Records behind a gap in the log of which a part or all was about what had been lost."""
        return self._replay.records_not_applied

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """Count the messages, or deliveries of a topic's messages, at positions ``first .. stop-1`` that are still
        wanted; 0 if the queue or topic is gone.
        """
        return self.facts.live_in(queue_id, first, stop)

    # ------------------------------------------------------------------ messages

    def send_all(
        self, account: str, name: str, requests: Sequence[SendRequest], now_ms: int
    ) -> Outcome[list[Sequence[int] | DomainError]]:
        """The sends of several clients to one queue, in this order; each as a send by itself.

        Neighbours with nothing but bodies, and numbers of their producers, share a record: a send costs a fraction of
        what it costs alone. One that is refused has its refusal in its place of the reply, and hinders none of the
        others.

        Raises:
            QueueNotFound.
        """
        return self._send.send_all(account, name, requests, now_ms)

    def receive_all(
        self,
        account: str,
        name: str,
        requests: Sequence[ReceiveRequest],
        waiter_ids: Sequence[int],
        now_ms: int,
        *,
        waiting: int = 0,
        max_waiting: int = 0,
    ) -> Outcome[list[list[ReceivedMessage] | Waiting | DomainError]]:
        """The receives of several clients from one queue, in this order; each as a receive by itself.

        Neighbours with one visibility timeout are served in one step and one record, as far as memory has what they
        ask for. One that is refused has its refusal in its place of the reply, and hinders none of the others.

        Raises:
            QueueNotFound.
        """
        return self._receive.receive_all(
            account, name, requests, waiter_ids, now_ms, waiting=waiting, max_waiting=max_waiting
        )

    def cancel_receive(self, waiter_id: int) -> bool:
        """Forget a waiting receive, peek or rewind, or the answer to decisions about half messages, which are carried
        out all the same; False if it was answered already (or never waited).
        """
        return self._receive.cancel_receive(waiter_id)

    def delete_all(
        self, account: str, name: str, requests: Sequence[list[int]], now_ms: int
    ) -> Outcome[list[HandlesDone | DomainError]]:
        """The deletes of several clients from one queue, by their handles, in this order; as one record.

        One that is refused has its refusal in its place of the reply, and hinders none of the others.

        Raises:
            QueueNotFound.
        """
        return self._settle.delete_all(account, name, requests, now_ms)

    def change_visibility(
        self, account: str, name: str, handles: list[int], visibility_timeout_ms: int, now_ms: int
    ) -> Outcome[HandlesDone]:
        """Hide received messages until ``visibility_timeout_ms`` from now; 0 = hand back.

        Each is cut at its retention; the reply has the earliest of their next visible times.
        """
        return self._settle.change_visibility(account, name, handles, visibility_timeout_ms, now_ms)

    def release(self, account: str, name: str, handles: list[int], counted: bool, now_ms: int) -> Outcome[HandlesDone]:
        """Hand received messages back: active at once. Not ``counted``: as if they had not been received."""
        return self._settle.release(account, name, handles, counted, now_ms)

    def peek(
        self,
        account: str,
        name: str,
        waiter_id: int,
        start: int,
        max_messages: int,
        now_ms: int,
        states: Sequence[str] | None = None,
    ) -> Outcome[MessagesPeeked | Waiting]:
        """Browse messages in order of sending, from place ``start`` on: those in one of ``states`` (see ``STATES``), or
        all but the rewindable ones. Changes nothing.

        What has passed its retention is not shown, whether a tick has moved the floor over it or not.
        """
        return self._peek.peek(
            account=account,
            name=name,
            waiter_id=waiter_id,
            start=start,
            max_messages=max_messages,
            now_ms=now_ms,
            states=states,
        )

    def rewind(
        self, account: str, name: str, waiter_id: int, time_ms: int, strict: bool, now_ms: int
    ) -> Outcome[Rewound | Waiting]:
        """Make all rewindable messages sent at or after ``time_ms`` active again, in order of sending, never received.

        A time before the window is taken as the nearest one (``clamped``), or refused if ``strict``. The latest time
        that is allowed is that of the oldest unconsumed message (but always the start of the window). Half, delayed and
        damaged messages do not count: no consumer can receive them, so nothing that consumers do would lift the bound.

        Raises:
            QueueNotFound, InvalidArgument.
            TimeNotRewindable: the queue has no rewind window, or the time is too late, or too early and ``strict``.
        """
        return self._rewind.rewind(account, name, waiter_id, time_ms, strict, now_ms)

    # ------------------------------------------------------------------ queues

    def create_queue(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Make a queue.

        Raises:
            InvalidArgument: the name or an attribute is not legal.
            QueueExists: the name, or one that differs only in case, is taken.
            TooManyQueues: the account has its limit.
        """
        return self._queue_admin.create(account, name, attributes, now_ms)

    def ensure_queue(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Make a queue, or confirm that the one there is has these attributes (those not named may be anything).

        Raises:
            QueueDiffers: it has others; the difference is in the details.
            InvalidArgument, QueueExists, TooManyQueues: as :meth:`create_queue`.
        """
        return self._queue_admin.ensure(account, name, attributes, now_ms)

    def list_queues(self, account: str, search: str, offset: int, limit: int) -> tuple[int, list[tuple[int, str]]]:
        """How many queues have ``search`` in their name, and a page of (id, name) in order of name."""
        return self._queue_admin.list_names(account, search, offset, limit)

    def list_all_queues(
        self, search: str, after: tuple[str, str], limit: int
    ) -> tuple[list[tuple[str, int, str]], tuple[str, str] | None]:
        """Queues of all accounts with ``search`` in their name, behind ``after`` (account, name), by account and name.

        Returns (account, id, name) of at most ``limit`` queues, and where to go on, None at the end. A call examines a
        bounded number of names, because a search without a match would hold up the loop.
        """
        return self._queue_admin.list_all(search, after, limit)

    def queue_info(self, account: str, name: str) -> QueueInfo:
        """Attributes, counts and facts of a queue."""
        return self._queue_admin.info(account, name)

    def set_queue_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Change the attributes named; it takes effect on what happens next, for messages already held too.

        Raises:
            QueueNotFound, InvalidArgument: nothing was changed.
        """
        return self._queue_admin.set_attributes(account, name, attributes, now_ms)

    def dead_letter_sources(self, account: str, name: str) -> list[tuple[int, str]]:
        """(id, name) of the queues whose dead letters go to this one, by name. Raises QueueNotFound."""
        return self._queue_admin.dead_letter_sources(account, name)

    def clear_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Drop every message sent before now, in every state, in one step; their handles become invalid."""
        return self._queue_admin.clear(account, name, now_ms)

    def delete_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Remove a queue with its messages; receives waiting at it end with QueueDeleted."""
        return self._queue_admin.delete(account, name, now_ms)

    def start_redrive(
        self, account: str, name: str, target: str | None, max_per_second: int | None, now_ms: int
    ) -> Outcome[RedriveStatus]:
        """Send what is in a queue now back to where it came from, or to the queue ``target``; in the background.

        Messages in flight or delayed stay. One whose origin does not exist (or takes no body of that size) stays, and
        the status says so; a full target holds the redrive up until it has room. It survives a restart.

        Raises:
            QueueNotFound: of ``name``.
            InvalidArgument: the target does not exist or is the queue itself, or the queue has a dead-letter queue,
                or it never served as one.
            RedriveRunning: one is under way.
        """
        return self._redrives.start(account, name, target, max_per_second, now_ms)

    def cancel_redrive(self, account: str, name: str, now_ms: int) -> Outcome[RedriveStatus]:
        """Stop a redrive; what was moved stays moved. Without effect on one that is over.

        Raises:
            QueueNotFound, InvalidArgument: there never was one.
        """
        return self._redrives.cancel(account, name, now_ms)

    def redrive_status(self, account: str, name: str) -> RedriveStatus:
        """How far the redrive of a queue is, or how the last one ended.

        Raises:
            QueueNotFound, InvalidArgument: there never was one.
        """
        return self._redrives.status(account, name)

    # ------------------------------------------------------------------ transactions

    def send_half(
        self,
        account: str,
        name: str,
        bodies: list[bytes],
        headers: list[Headers | None] | None,
        first_check_ms: int | None,
        session: int,
        sequence: int,
        now_ms: int,
        dedup_ids: list[str | None] | None = None,
    ) -> Outcome[Sequence[int]]:
        """Store a batch that nobody receives until it is committed; the reply is its message ids. Numbered sends and
        dedup ids as in :meth:`send_all`. A producer is first asked after ``first_check_ms`` (None = the queue's).

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument, MessageTooLarge, BatchTooLarge, BacklogFull,
            SequenceTooOld, TooManyRemembered.
        """
        return self._transactions.send_half(
            account=account,
            name=name,
            bodies=bodies,
            headers=headers,
            first_check_ms=first_check_ms,
            session=session,
            sequence=sequence,
            now_ms=now_ms,
            dedup_ids=dedup_ids,
        )

    def end_transactions(
        self, account: str, name: str, waiter_id: int, message_ids: list[int], decisions: list[int], now_ms: int
    ) -> Outcome[TransactionsDone | Waiting]:
        """Decide half messages: ``COMMIT``, ``ROLL_BACK`` or ``UNKNOWN``, one for each or one for all; in order. The
        reply names those that were refused; it is WAITING if a body must be read for a commit.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument. A reply that waits ends with QueueDeleted if need be.
        """
        return self._transactions.end_transactions(account, name, waiter_id, message_ids, decisions, now_ms)

    def list_half_messages(self, account: str, name: str, start: int, limit: int) -> HalfMessages:
        """Undecided half messages in order of sending, from place ``start`` on. Times of those that nobody was asked
        about yet and that are not in memory are near the truth: of sending to a time step, of the first check likewise.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument.
        """
        return self._transactions.list_half_messages(account, name, start, limit)

    def set_has_checkers(self, account: str, name: str, has_checkers: bool) -> None:
        """Whether there is anybody who answers checks of a queue's half messages; what is due meanwhile stays due. The
        edge may take this back for a while from one that does not keep up.

        Raises:
            QueueNotFound, NotTransactional: only for ``has_checkers``; that nobody is there can be said of any name.
        """
        return self._checks.set_has_checkers(account, name, has_checkers)

    def check_again(self, account: str, name: str, message_ids: Sequence[int], now_ms: int) -> Outcome[None]:
        """Who was asked about these half messages has gone away without an answer: ask again, another one, and be it
        once more than is allowed. Whatever is decided by now is left alone.
        """
        return self._checks.check_again(account, name, message_ids, now_ms)

    # ------------------------------------------------------------------ topics

    def publish(
        self, account: str, name: str, requests: Sequence[PublishRequest], now_ms: int
    ) -> Outcome[list[Published | DomainError]]:
        """Publish the batches of several requests to a topic in a single call: ``plan_publish`` and ``apply_publish``.

        Raises:
            TopicNotFound.
        """
        return self._publish.publish(account, name, requests, now_ms)

    def plan_publish(self, account: str, name: str, requests: Sequence[PublishRequest], now_ms: int) -> PublishPlan:
        """Begin to plan publishes to a topic; nothing changes before ``apply_publish``.

        Raises:
            TopicNotFound.
        """
        return self._publish.plan_publish(account, name, requests, now_ms)

    def apply_publish(self, plan: PublishPlan, now_ms: int) -> Outcome[list[Published | DomainError]]:
        """Store the messages of a whole plan: the batch of a request whole or not at all, with the copies for all
        matching subscriptions. The reply has the refusal of a refused request in the place of its ids; other requests
        are stored all the same. A message that matches no subscription is discarded.

        A numbered publish that was stored before gets the earlier ids. A body with a dedup id that was used in this
        topic a short while ago gets the earlier id.

        Refusals: InvalidArgument, MessageTooLarge, BatchTooLarge, SequenceTooOld.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
        """
        return self._publish.apply_publish(plan, now_ms)

    def pushes_ended(self, results: Sequence[PushResult], now_ms: int) -> Outcome[None]:
        """How attempts to post to URLs went. What became of a message or its subscription meanwhile is taken into
        account: a result that nobody wants any more changes nothing.
        """
        return self._deliver.pushes_ended(results, now_ms)

    def create_topic(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Make a topic. A name of more than 64 bytes is cut; the reply has the name that was used.

        Raises:
            InvalidArgument: the name or an attribute is not legal.
            TopicExists: the name, or one that differs only in case, is taken.
            TooManyTopics: the account has its limit.
        """
        return self._topic_admin.create_topic(account, name, attributes, now_ms)

    def ensure_topic(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Make a topic, or confirm that the one there is has these attributes (those not named may be anything).

        Raises:
            TopicDiffers: it has others; the difference is in the details.
            InvalidArgument, TopicExists, TooManyTopics: as :meth:`create_topic`.
        """
        return self._topic_admin.ensure_topic(account, name, attributes, now_ms)

    def list_topics(self, account: str, search: str, offset: int, limit: int) -> tuple[int, list[tuple[int, str]]]:
        """How many topics have ``search`` in their name, and a page of (id, name) in order of name."""
        return self._topic_admin.list_topics(account, search, offset, limit)

    def topic_info(self, account: str, name: str) -> TopicInfo:
        """Attributes, counts and facts of a topic."""
        return self._topic_admin.topic_info(account, name)

    def set_topic_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Change the attributes named, for what is published from now on.

        Raises:
            TopicNotFound, InvalidArgument: nothing was changed.
        """
        return self._topic_admin.set_topic_attributes(account, name, attributes, now_ms)

    def delete_topic(self, account: str, name: str) -> Outcome[None]:
        """Remove a topic.

        Raises:
            TopicNotFound.
            TopicInUse: it has subscriptions.
        """
        return self._topic_admin.delete_topic(account, name)

    def subscribe(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Have what is published to a topic from now on delivered to a queue or a URL.

        Raises:
            TopicNotFound.
            QueueNotFound: the queue that it is to deliver to does not exist.
            InvalidArgument: the name or an attribute is not legal.
            SubscriptionExists: the topic has one of that name, or of one that differs only in case.
            TooManySubscriptions: the topic has its limit.
        """
        return self._topic_admin.subscribe(account, topic_name, name, attributes, now_ms)

    def ensure_subscription(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Subscribe, or confirm that the subscription there is has these attributes (those not named may be anything).

        Raises:
            SubscriptionDiffers: it has others; the difference is in the details.
            TopicNotFound, QueueNotFound, InvalidArgument, SubscriptionExists, TooManySubscriptions: as
                :meth:`subscribe`.
        """
        return self._topic_admin.ensure_subscription(account, topic_name, name, attributes, now_ms)

    def list_subscriptions(
        self, account: str, topic_name: str, search: str, offset: int, limit: int, now_ms: int = 0
    ) -> tuple[int, list[SubscriptionInfo]]:
        """How many subscriptions of a topic have ``search`` in their name, and a page of them in order of name."""
        return self._topic_admin.list_subscriptions(account, topic_name, search, offset, limit, now_ms)

    def subscription_info(self, account: str, topic_name: str, name: str, now_ms: int = 0) -> SubscriptionInfo:
        """Attributes, counts and facts of a subscription."""
        return self._topic_admin.subscription_info(account, topic_name, name, now_ms)

    def set_subscription_attributes(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Change the attributes named: filters for what is published from now on, the rest for attempts to come too.

        Raises:
            TopicNotFound, SubscriptionNotFound, InvalidArgument: nothing was changed.
        """
        return self._topic_admin.set_subscription_attributes(account, topic_name, name, attributes, now_ms)

    def unsubscribe(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[None]:
        """End a subscription; what waits for it is dropped. What is being posted to its URL may still arrive.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        return self._topic_admin.unsubscribe(account, topic_name, name, now_ms)

    def retry_deliveries(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[int]:
        """Try everything that failed again at once; the reply is how many messages that are. What has used up its
        retries gets one more attempt. (No fact: after a restart what was not tried yet follows its old times.)

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        return self._topic_admin.retry_deliveries(account, topic_name, name, now_ms)

    def drop_deliveries(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[int]:
        """Drop everything that waits or is in retry for a subscription; the reply is how many messages that are.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        return self._topic_admin.drop_deliveries(account, topic_name, name, now_ms)

    # ------------------------------------------------------------------ time and the log

    def next_deadline_ms(self) -> int | None:
        """When :meth:`tick` has something to do next; a time that has passed means that more work is waiting."""
        return self.runtime.agenda.next_due_ms()

    def tick(self, now_ms: int) -> Outcome[None]:
        """Do what is due: end waits and leases, activate delayed messages, expire old ones. A bounded slice of it:
        call again while :meth:`next_deadline_ms` is not in the future.
        """
        return self._tick.tick(now_ms)

    def pages_read(self, read_id: int, messages: Sequence[StoredMessage], missing: Runs, now_ms: int) -> Outcome[int]:
        """The log's answer to a PageRead: a prefix of what was asked, and the positions that cannot be read.

        The reply is how many messages were newly found to be damaged; they are no longer receivable.
        """
        reading = self.runtime.pages.take(read_id)
        if reading is None:
            return Outcome(0)
        effects = Effects()
        damaged = self._page_owners[reading.lane].on_page(reading, messages, missing, effects, now_ms)
        return effects.outcome(damaged)

    # ------------------------------------------------------------------ recovery

    def checkpoint(self, last_lsn: Callable[[], int], now_ms: int) -> Iterator[AnyPart]:
        """The parts of a checkpoint, made one by one; other operations may run in between.

        ``last_lsn`` tells the LSN of the newest row that records were appended to: what the part made next is true for.
        """
        return self._checkpoint.parts(last_lsn, now_ms)

    def load(self, part: AnyPart) -> None:
        """Take back a part of a checkpoint; all of them come before the first :meth:`replay`."""
        self._restore.load(part)

    def begin_salvage(self) -> None:
        """Rows are missing: what is replayed from now on applies as far as it can; see :mod:`cmqd.core.salvage`."""
        self._replay.begin_salvage()

    def replay(self, record: AnyRecord, lsn: int) -> None:
        """Apply a record of the log in recovery, unless the checkpoint slice of its queue covers it already.

        Raises:
            ValueError: the record belongs to a queue that the log does not know: records before it are missing, and
                :meth:`begin_salvage` was not called. (Other missing records show as a KeyError, or not at all.)
        """
        self._replay.replay(record, lsn)

    def set_clock_offset(self, offset_ms: int, now_ms: int, *, stepped: bool = False) -> Outcome[None]:
        """Record how far the wall clock is ahead of broker time.

        ``stepped``: broker time was set to ``now_ms``. To be called before :meth:`recovered`, which plans by times.
        """
        record = ClockOffset(offset_ms, now_ms, stepped)
        self.facts.apply_clock_offset(record)
        return Outcome(None, [record])

    def recovered(self, *, lost: bool = False) -> Sequence[AnyRecord]:
        """Recovery is over: numbers start beyond all that may have been used, bodies are in the log alone.

        ``lost``: part of the log was set aside, so the numbers leap, as they do after :meth:`begin_salvage`. Returns
        records to append before anything else.
        """
        records = self._replay.finish(lost=lost)
        self._start.take_up()
        return records

    def check_invariants(self) -> None:
        """Assert what the classes promise; for tests."""
        check_invariants(self.facts, self.runtime, self._replay.is_salvaging)
