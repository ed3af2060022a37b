"""The broker: the interface to the rules about queues, topics and messages.

An operation validates (raising a DomainError before anything changed), decides on records, applies them through the
same ``apply`` methods that recovery uses, and returns an Outcome. An operation never waits, reads no clock and touches
no disk: data from the log arrives through :meth:`Broker.pages_read`, and time passes through :meth:`Broker.tick`.

The rules are in the rooms: ``facts`` (durable state), ``runtime`` (intentions and caches), ``operations`` (a class for
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

    ``handle_key``: see :mod:`cmqd.core.receipts`. A changed key makes the receipt handles of earlier receives invalid.
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
        """Records behind a gap in the log that were not applied, or only in part, because their objects were lost."""
        return self._replay.records_not_applied

    def live_in(self, queue_id: int, first: int, stop: int) -> int:
        """Count the messages, or deliveries of a topic's messages, at positions ``first .. stop-1`` that are still
        needed; 0 if the queue or topic is gone.
        """
        return self.facts.live_in(queue_id, first, stop)

    # ------------------------------------------------------------------ messages

    def send_all(
        self, account: str, name: str, requests: Sequence[SendRequest], now_ms: int
    ) -> Outcome[list[Sequence[int] | DomainError]]:
        """Apply the sends of several clients to one queue, in this order, each send independent of the others.

        Neighbours that carry only bodies and sequence numbers share a record: a send costs a fraction of a separate
        send. A refused send has its error at its index of the reply and does not affect the others.

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
        """Apply the receives of several clients to one queue, in this order, each receive independent of the others.

        Neighbours with one visibility timeout share a step and a record, as far as their messages are in memory. A
        refused receive has its error at its index of the reply and does not affect the others.

        Raises:
            QueueNotFound.
        """
        return self._receive.receive_all(
            account, name, requests, waiter_ids, now_ms, waiting=waiting, max_waiting=max_waiting
        )

    def cancel_receive(self, waiter_id: int) -> bool:
        """Cancel a waiting receive, peek or rewind, or the answer to decisions about half messages.

        The decisions are carried out all the same. Returns False if the request was answered already (or never waited).
        """
        return self._receive.cancel_receive(waiter_id)

    def delete_all(
        self, account: str, name: str, requests: Sequence[list[int]], now_ms: int
    ) -> Outcome[list[HandlesDone | DomainError]]:
        """Apply the deletes of several clients to one queue, by their handles, in this order, with one record.

        A refused delete has its error at its index of the reply and does not affect the others.

        Raises:
            QueueNotFound.
        """
        return self._settle.delete_all(account, name, requests, now_ms)

    def change_visibility(
        self, account: str, name: str, handles: list[int], visibility_timeout_ms: int, now_ms: int
    ) -> Outcome[HandlesDone]:
        """Hide received messages until ``visibility_timeout_ms`` from now; 0 = hand back.

        The time of a message is cut at its retention; the reply has the earliest next visible time.
        """
        return self._settle.change_visibility(account, name, handles, visibility_timeout_ms, now_ms)

    def release(self, account: str, name: str, handles: list[int], counted: bool, now_ms: int) -> Outcome[HandlesDone]:
        """Hand received messages back: active at once. Not ``counted``: the receive does not count as a receive."""
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
        """Browse messages in order of sending, from position ``start`` on: messages in one of ``states`` (see
        ``STATES``), or all but the rewindable messages. Changes nothing.

        Messages past their retention are not shown, even before a tick has moved the floor over them.
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

        A time before the window is clamped to the nearest time (``clamped``), or refused if ``strict``. The latest
        allowed time is that of the oldest unconsumed message (but always the start of the window). Half, delayed and
        damaged messages do not count: no consumer can receive them, so no work of consumers would lift the bound.

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
            QueueExists: the name is taken, in this or in another case.
            TooManyQueues: the account is at its limit of queues.
        """
        return self._queue_admin.create(account, name, attributes, now_ms)

    def ensure_queue(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Make a queue, or confirm that the existing queue has these attributes (attributes not named may differ).

        Raises:
            QueueDiffers: an attribute differs; the difference is in the details.
            InvalidArgument, QueueExists, TooManyQueues: as :meth:`create_queue`.
        """
        return self._queue_admin.ensure(account, name, attributes, now_ms)

    def list_queues(self, account: str, search: str, offset: int, limit: int) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of queues with ``search`` in their name, and a page of (id, name) in order of name."""
        return self._queue_admin.list_names(account, search, offset, limit)

    def list_all_queues(
        self, search: str, after: tuple[str, str], limit: int
    ) -> tuple[list[tuple[str, int, str]], tuple[str, str] | None]:
        """List queues of all accounts with ``search`` in their name, behind ``after`` (account, name).

        Returns (account, id, name) of at most ``limit`` queues by account and name, and the next ``after``, None at the
        end. A call examines a bounded number of names, because a search without a match would hold up the loop.
        """
        return self._queue_admin.list_all(search, after, limit)

    def queue_info(self, account: str, name: str) -> QueueInfo:
        """Attributes, counts and facts of a queue."""
        return self._queue_admin.info(account, name)

    def set_queue_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Change the attributes named, with effect from now on, for messages already stored too.

        Raises:
            QueueNotFound, InvalidArgument: the queue is unchanged.
        """
        return self._queue_admin.set_attributes(account, name, attributes, now_ms)

    def dead_letter_sources(self, account: str, name: str) -> list[tuple[int, str]]:
        """(id, name) of the queues whose dead letters go to this one, by name. Raises QueueNotFound."""
        return self._queue_admin.dead_letter_sources(account, name)

    def clear_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Drop every message sent before now, in every state, in one step; the receipt handles become invalid."""
        return self._queue_admin.clear(account, name, now_ms)

    def delete_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Remove a queue with its messages; receives waiting at it end with QueueDeleted."""
        return self._queue_admin.delete(account, name, now_ms)

    def start_redrive(
        self, account: str, name: str, target: str | None, max_per_second: int | None, now_ms: int
    ) -> Outcome[RedriveStatus]:
        """Start a redrive in the background: move the present messages back to their origins, or to ``target``.

        Messages in flight or delayed stay. A message stays too if its origin does not exist or takes no body of that
        size, and the status counts it; a full target holds the redrive up until the target has room. A redrive survives
        a restart.

        Raises:
            QueueNotFound: of ``name``.
            InvalidArgument: the target does not exist or is the queue itself, or the queue has a dead-letter queue,
                or never served as a dead-letter queue.
            RedriveRunning: a redrive is under way.
        """
        return self._redrives.start(account, name, target, max_per_second, now_ms)

    def cancel_redrive(self, account: str, name: str, now_ms: int) -> Outcome[RedriveStatus]:
        """Stop a redrive; moved messages stay moved. No effect on a redrive that is over.

        Raises:
            QueueNotFound, InvalidArgument: there never was a redrive.
        """
        return self._redrives.cancel(account, name, now_ms)

    def redrive_status(self, account: str, name: str) -> RedriveStatus:
        """Return the progress of the redrive of a queue, or the result of the last redrive.

        Raises:
            QueueNotFound, InvalidArgument: there never was a redrive.
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
        """Store a batch of half messages, invisible to consumers until their commit; the reply is their message ids.

        Numbered sends and dedup ids as in :meth:`send_all`. The first check of a producer comes after
        ``first_check_ms`` (None = the queue's).

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
        """Decide half messages, in order: ``COMMIT``, ``ROLL_BACK`` or ``UNKNOWN``, a decision per message or one for
        all. The reply names the refused decisions; it is WAITING if a body must be read for a commit.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument. If the queue is deleted meanwhile, a waiting request ends
            with QueueDeleted.
        """
        return self._transactions.end_transactions(account, name, waiter_id, message_ids, decisions, now_ms)

    def list_half_messages(self, account: str, name: str, start: int, limit: int) -> HalfMessages:
        """List undecided half messages in order of sending, from position ``start`` on.

        The times of a message that is not in memory and had no check yet are approximate: the time of sending is exact
        to a time step, and so is the time of the first check.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument.
        """
        return self._transactions.list_half_messages(account, name, start, limit)

    def set_has_checkers(self, account: str, name: str, has_checkers: bool) -> None:
        """Set whether a connected client answers checks of a queue's half messages. Without a checker due checks stay
        due. The edge may withdraw a checker for a while if it does not keep up.

        Raises:
            QueueNotFound, NotTransactional: only for ``has_checkers``; its absence may be reported for any name.
        """
        return self._checks.set_has_checkers(account, name, has_checkers)

    def check_again(self, account: str, name: str, message_ids: Sequence[int], now_ms: int) -> Outcome[None]:
        """Check these half messages once more, with another client: the client that was asked disconnected without an
        answer.

        The repeated check may exceed the limit of checks by one, because the lost check gave the producer no chance to
        answer. Messages decided meanwhile are left alone.
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
        """Store the messages of a whole plan, with the copies for all matching subscriptions.

        The batch of a request is stored whole or not at all. A refused request has its error at its index of the reply;
        other requests are stored all the same. A message that matches no subscription is discarded.

        A numbered publish that was stored before gets the earlier ids. A body with a dedup id that was used in this
        topic a short while ago gets the earlier id.

        Refusals: InvalidArgument, MessageTooLarge, BatchTooLarge, SequenceTooOld.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
        """
        return self._publish.apply_publish(plan, now_ms)

    def pushes_ended(self, results: Sequence[PushResult], now_ms: int) -> Outcome[None]:
        """Record the results of posts to URLs. A result is ignored if its message or subscription is gone by now."""
        return self._deliver.pushes_ended(results, now_ms)

    def create_topic(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Make a topic. A name of more than 64 bytes is cut; the reply has the name that was used.

        Raises:
            InvalidArgument: the name or an attribute is not legal.
            TopicExists: the name is taken, in this or in another case.
            TooManyTopics: the account is at its limit of topics.
        """
        return self._topic_admin.create_topic(account, name, attributes, now_ms)

    def ensure_topic(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Make a topic, or confirm that the existing topic has these attributes (attributes not named may differ).

        Raises:
            TopicDiffers: an attribute differs; the difference is in the details.
            InvalidArgument, TopicExists, TooManyTopics: as :meth:`create_topic`.
        """
        return self._topic_admin.ensure_topic(account, name, attributes, now_ms)

    def list_topics(self, account: str, search: str, offset: int, limit: int) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of topics with ``search`` in their name, and a page of (id, name) in order of name."""
        return self._topic_admin.list_topics(account, search, offset, limit)

    def topic_info(self, account: str, name: str) -> TopicInfo:
        """Attributes, counts and facts of a topic."""
        return self._topic_admin.topic_info(account, name)

    def set_topic_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[TopicInfo]:
        """Change the attributes named, for messages published from now on.

        Raises:
            TopicNotFound, InvalidArgument: the topic is unchanged.
        """
        return self._topic_admin.set_topic_attributes(account, name, attributes, now_ms)

    def delete_topic(self, account: str, name: str) -> Outcome[None]:
        """Remove a topic.

        Raises:
            TopicNotFound.
            TopicInUse: the topic has subscriptions.
        """
        return self._topic_admin.delete_topic(account, name)

    def subscribe(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Deliver messages published to a topic from now on to a queue or a URL.

        Raises:
            TopicNotFound.
            QueueNotFound: the target queue does not exist.
            InvalidArgument: the name or an attribute is not legal.
            SubscriptionExists: the name is taken in this topic, in this or in another case.
            TooManySubscriptions: the topic is at its limit of subscriptions.
        """
        return self._topic_admin.subscribe(account, topic_name, name, attributes, now_ms)

    def ensure_subscription(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Subscribe, or confirm that the existing subscription has these attributes (attributes not named may differ).

        Raises:
            SubscriptionDiffers: an attribute differs; the difference is in the details.
            TopicNotFound, QueueNotFound, InvalidArgument, SubscriptionExists, TooManySubscriptions: as
                :meth:`subscribe`.
        """
        return self._topic_admin.ensure_subscription(account, topic_name, name, attributes, now_ms)

    def list_subscriptions(
        self, account: str, topic_name: str, search: str, offset: int, limit: int, now_ms: int = 0
    ) -> tuple[int, list[SubscriptionInfo]]:
        """Return the number of a topic's subscriptions with ``search`` in their name, and a page in order of name."""
        return self._topic_admin.list_subscriptions(account, topic_name, search, offset, limit, now_ms)

    def subscription_info(self, account: str, topic_name: str, name: str, now_ms: int = 0) -> SubscriptionInfo:
        """Attributes, counts and facts of a subscription."""
        return self._topic_admin.subscription_info(account, topic_name, name, now_ms)

    def set_subscription_attributes(
        self, account: str, topic_name: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[SubscriptionInfo]:
        """Change the attributes named: filters for messages published from now on, the rest for further attempts too.

        Raises:
            TopicNotFound, SubscriptionNotFound, InvalidArgument: the subscription is unchanged.
        """
        return self._topic_admin.set_subscription_attributes(account, topic_name, name, attributes, now_ms)

    def unsubscribe(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[None]:
        """End a subscription and drop its undelivered messages. A post already under way may still arrive at its URL.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        return self._topic_admin.unsubscribe(account, topic_name, name, now_ms)

    def retry_deliveries(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[int]:
        """Retry all failed messages at once, exhausted messages with one more attempt; the reply is their number.

        Not a fact: after a restart a message that was not retried yet follows its old time.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        return self._topic_admin.retry_deliveries(account, topic_name, name, now_ms)

    def drop_deliveries(self, account: str, topic_name: str, name: str, now_ms: int) -> Outcome[int]:
        """Drop all waiting messages and all messages in retry of a subscription; the reply is their number.

        Raises:
            TopicNotFound, SubscriptionNotFound.
        """
        return self._topic_admin.drop_deliveries(account, topic_name, name, now_ms)

    # ------------------------------------------------------------------ time and the log

    def next_deadline_ms(self) -> int | None:
        """Return the time at which :meth:`tick` has work; a time in the past means that more work is waiting."""
        return self.runtime.agenda.next_due_ms()

    def tick(self, now_ms: int) -> Outcome[None]:
        """Do a bounded slice of the due work: time out waits and leases, activate delays, expire messages.

        Call again while :meth:`next_deadline_ms` is not in the future.
        """
        return self._tick.tick(now_ms)

    def pages_read(self, read_id: int, messages: Sequence[StoredMessage], missing: Runs, now_ms: int) -> Outcome[int]:
        """Take the log's answer to a PageRead: a prefix of the requested messages, and the unreadable positions.

        The reply is the number of messages newly found to be damaged; they are no longer receivable.
        """
        reading = self.runtime.pages.take(read_id)
        if reading is None:
            return Outcome(0)
        effects = Effects()
        damaged = self._page_owners[reading.lane].on_page(reading, messages, missing, effects, now_ms)
        return effects.outcome(damaged)

    # ------------------------------------------------------------------ recovery

    def checkpoint(self, last_lsn: Callable[[], int], now_ms: int) -> Iterator[AnyPart]:
        """Yield the parts of a checkpoint; other operations may run between two parts.

        ``last_lsn`` returns the LSN of the newest row with appended records. Each part is stamped with the LSN at its
        making, because replay must skip exactly the records that the part contains.
        """
        return self._checkpoint.parts(last_lsn, now_ms)

    def load(self, part: AnyPart) -> None:
        """Restore a part of a checkpoint; all parts come before the first :meth:`replay`."""
        self._restore.load(part)

    def begin_salvage(self) -> None:
        """Apply further records as far as possible, because rows are missing; see :mod:`cmqd.core.salvage`."""
        self._replay.begin_salvage()

    def replay(self, record: AnyRecord, lsn: int) -> None:
        """Apply a record of the log in recovery, unless the checkpoint slice of its queue covers it already.

        Raises:
            ValueError: the record belongs to a queue that the log does not know: records before it are missing, and
                :meth:`begin_salvage` was not called. (Other missing records show as a KeyError, or not at all.)
        """
        self._replay.replay(record, lsn)

    def set_clock_offset(self, offset_ms: int, now_ms: int, *, stepped: bool = False) -> Outcome[None]:
        """Record the offset of the wall clock from broker time.

        ``stepped``: broker time was set to ``now_ms``. Call this before :meth:`recovered`, which plans by times.
        """
        record = ClockOffset(offset_ms, now_ms, stepped)
        self.facts.apply_clock_offset(record)
        return Outcome(None, [record])

    def recovered(self, *, lost: bool = False) -> Sequence[AnyRecord]:
        """End recovery: numbers start beyond all numbers that may have been used, and bodies are in the log alone.

        ``lost``: part of the log was set aside, so the numbers leap, as they do after :meth:`begin_salvage`: the lost
        part may have used numbers that clients still hold. Returns records to append before all others.
        """
        records = self._replay.finish(lost=lost)
        self._start.take_up()
        return records

    def check_invariants(self) -> None:
        """Assert the invariants of all parts; for tests."""
        check_invariants(self.facts, self.runtime, self._replay.is_salvaging)
