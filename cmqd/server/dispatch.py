"""Requests to the core and back, and what time and the log bring: the handlers of all themes, joined.

Rules:

- It translates and never decides. Arguments go to the core as they came; replies are encoded from what the core built.
- What the core says is settled in one place; see ``handlers.outcomes``.
- An exception that is no refusal is a bug in the core, whose state may now differ from the log: nothing more is
  answered, the process stops and recovers from the log (``on_broken``).
"""

from collections.abc import Callable, Sequence

from cmqd.core import errors as domain
from cmqd.log.errors import LogFailed
from cmqd.server.handlers.accounts import AccountHandlers
from cmqd.server.handlers.collecting import DELETE, KINDS, PUBLISH, RECEIVE, SEND
from cmqd.server.handlers.messages import MessageHandlers
from cmqd.server.handlers.outcomes import (
    DISK_RETRY_MS,
    RATE_RETRY_MS,
    STALLED_RETRY_MS,
    Answer,
    Client,
    Handler,
    translate,
)
from cmqd.server.handlers.queues import QueueHandlers
from cmqd.server.handlers.topics import TopicHandlers
from cmqd.server.handlers.transactions import TransactionHandlers
from cmqd.server.log_lines import get_logger
from cmqd.server.storage_watch import Absent
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error
from cmqd_segment.records import Runs, StoredMessage
from cmqd_types.messages import ReceivedMessage

_log = get_logger()


class Dispatcher(MessageHandlers, QueueHandlers, TopicHandlers, TransactionHandlers, AccountHandlers):
    """Joins clients, core and log; see the module."""

    def _tables(self) -> tuple[dict[type[wire.Request], Handler], dict[type[wire.Request], Answer]]:
        handlers: dict[type[wire.Request], Handler] = {
            wire.SendMessages: self._send_messages,
            wire.ReceiveMessages: self._receive_messages,
            wire.DeleteMessages: self._delete_messages,
            wire.ChangeVisibility: self._change_visibility,
            wire.ReleaseMessages: self._release_messages,
            wire.PeekMessages: self._peek_messages,
            wire.CreateQueue: self._create_queue,
            wire.EnsureQueue: self._ensure_queue,
            wire.ListQueues: self._list_queues,
            wire.GetQueueAttributes: self._get_queue_attributes,
            wire.SetQueueAttributes: self._set_queue_attributes,
            wire.DeleteQueue: self._delete_queue,
            wire.ClearQueue: self._clear_queue,
            wire.RewindQueue: self._rewind_queue,
            wire.ListDeadLetterSources: self._list_dead_letter_sources,
            wire.StartRedrive: self._start_redrive,
            wire.CancelRedrive: self._cancel_redrive,
            wire.GetRedrive: self._get_redrive,
            wire.CreateTopic: self._create_topic,
            wire.EnsureTopic: self._ensure_topic,
            wire.ListTopics: self._list_topics,
            wire.GetTopicAttributes: self._get_topic_attributes,
            wire.SetTopicAttributes: self._set_topic_attributes,
            wire.DeleteTopic: self._delete_topic,
            wire.PublishMessages: self._publish_messages,
            wire.Subscribe: self._subscribe,
            wire.EnsureSubscription: self._ensure_subscription,
            wire.ListSubscriptions: self._list_subscriptions,
            wire.GetSubscription: self._get_subscription,
            wire.SetSubscriptionAttributes: self._set_subscription_attributes,
            wire.Unsubscribe: self._unsubscribe,
            wire.RetryDeliveries: self._retry_deliveries,
            wire.DropDeliveries: self._drop_deliveries,
            wire.RotateSecret: self._rotate_secret,
            wire.SendHalfMessages: self._send_half_messages,
            wire.EndTransactions: self._end_transactions,
            wire.ListHalfMessages: self._list_half_messages,
            wire.RegisterChecker: self._register_checker,
            wire.UnregisterChecker: self._unregister_checker,
            wire.CreateAccount: self._create_account,
            wire.ListAccounts: self._list_accounts,
            wire.CreateKey: self._create_key,
            wire.ListKeys: self._list_keys,
            wire.SetKeyEnabled: self._set_key_enabled,
            wire.DeleteKey: self._delete_key,
            wire.DeleteAccount: self._delete_account,
            wire.ListAllQueues: self._list_all_queues,
            wire.GetServerStatus: self._get_server_status,
            wire.SealSegments: self._seal_segments,
        }
        answers: dict[type[wire.Request], Answer] = {
            wire.ReceiveMessages: self._answer_received,
            wire.PeekMessages: self._answer_peeked,
            wire.RewindQueue: self._answer_rewound,
            wire.EndTransactions: self._answer_ended,
        }
        self._deciding = {
            SEND: (self._decide_sends, self._answer_sends),
            PUBLISH: (self._decide_publishes, self._answer_publishes),
            DELETE: (self._decide_deletes, self._answer_deletes),
            RECEIVE: (self._decide_receives, self._answer_receives),
        }
        return handlers, answers

    @property
    def operations(self) -> frozenset[type[wire.Request]]:
        """The requests that have a handler."""
        return frozenset(self._handlers)

    def dispatch(self, client: Client, request: wire.Request) -> None:
        """Have a request answered, now or later."""
        self._counters.requests += 1
        if self._collecting and type(request) not in KINDS:
            self.settle_collected_of(client)
            if client.is_held:
                self._counters.requests -= 1
                client.put_back(request)
                return
        if self._refuse_all is not None:
            code, text = self._refuse_all
            client.answer(error(request.request_id, code, text))
            return
        if self._stalled is not None and type(request) is not wire.GetServerStatus:
            code, text, retry_after_ms = self._stalled
            self._counters.busy += 1
            client.answer(error(request.request_id, code, text, retry_after_ms=retry_after_ms))
            return
        if self._rates is not None and not self._rates.allows(client.account, self._now_ms()):
            text = f"account {client.account!r} is over {self._rates.per_second} requests a second, its limit"
            client.answer(error(request.request_id, ErrorCode.TOO_MANY_REQUESTS, text, retry_after_ms=RATE_RETRY_MS))
            return
        try:
            self._handlers[type(request)](client, request)
        except domain.DomainError as refusal:
            self._counters.refusals += 1
            self._gate.hold(self._log.last_lsn, client, translate(request.request_id, refusal))
        except LogFailed as failure:
            # The process is about to end; this one came in between.
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
        except Exception as bug:
            self._broke(bug, type(request).__name__)

    def refuse_all(self, code: ErrorCode, text: str) -> None:
        """From now on every request is answered so, before it touches the core."""
        self._refuse_all = (code, text)

    def stall(self, reason: str | None) -> None:
        """From now on every request but for the status is refused before it touches the core, because the storage
        hangs; None: no longer.
        """
        if reason is None:
            self._stalled = None
        elif self._refuse_sends is not None:
            self._stalled = (ErrorCode.DISK_NEARLY_FULL, reason, DISK_RETRY_MS)
        else:
            self._stalled = (ErrorCode.BUSY, reason, STALLED_RETRY_MS)
        self._schedule()

    @property
    def is_stalled(self) -> bool:
        """Whether requests are refused because the storage hangs."""
        return self._stalled is not None

    def last_waiter_id(self) -> int:
        """The newest number of a request that may wait in the core."""
        return self._waiting_requests.last_id

    def give_up_waiting(
        self, up_to_waiter_id: int, text: str, absent: Callable[[str], Absent], *, receives: bool
    ) -> int:
        """Answer requests that wait for bodies from the storage ``outcome_unknown``, up to this waiter; returns their
        number. They may be carried out later.

        With ``receives``, waiting receives are refused: they hold no lease, so that nothing was changed.
        """
        given_up = 0
        for waiter_id, client, request in self._waiting_requests.everybody():
            if waiter_id > up_to_waiter_id:
                break
            if isinstance(client, Absent):
                continue
            if isinstance(request, wire.ReceiveMessages):
                if receives and self._stalled is not None and self._stop_waiting(waiter_id):
                    code, reason, retry_after_ms = self._stalled
                    client.answer(error(request.request_id, code, reason, retry_after_ms=retry_after_ms))
                    given_up += 1
                continue
            self._waiting_requests.replace(waiter_id, absent(client.account))
            if isinstance(request, wire.PeekMessages):
                client.unread_receives -= 1
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, text))
            given_up += 1
        return given_up

    def halt(self, reason: str) -> None:
        """Nothing can become durable any more: touch neither core nor log from now on."""
        self._halted = True
        self.refuse_all(ErrorCode.OUTCOME_UNKNOWN, reason)
        self._drop_collected(reason)

    def fall_quiet(self) -> None:
        """Begin nothing more by itself, and go on with nothing: what time and the log bring is left to the next start.
        A move would else ask for its next page with each that comes, for ever.
        """
        self._quiet = True

    def refuse_sends(self, reason: str | None) -> None:
        """From now on sends are refused because of the disk (None: no longer), and moves from queue to queue, which
        write bodies too, are held up; everything else goes on.
        """
        self._refuse_sends = reason
        self._broker.gates.moves_held_up = "" if reason is None else "disk nearly full"

    # ------------------------------------------------------------------ what is not asked by a request

    def next_deadline_ms(self) -> int | None:
        """When :meth:`tick` has something to do next; a time that has passed means that more work is waiting."""
        return 0 if self._publish_lines.lines else self._broker.next_deadline_ms()

    def tick(self, now_ms: int) -> None:
        """Do a slice of what is due."""
        if self._publish_lines.lines and not self._go_on_publishing():
            due_ms = self._broker.next_deadline_ms()
            if due_ms is None or due_ms > now_ms:
                # Nothing has happened that an I/O batch would be for.
                return
        if self._halted or self._quiet:
            return
        try:
            self._settle(self._broker.tick(now_ms), now_ms)
        except Exception as bug:
            self._broke(bug, "tick")
        self._schedule()

    def clock_offset_changed(self, offset_ms: int) -> None:
        """Record how far the wall clock is ahead of broker time."""
        if self._halted:
            return
        now_ms = self._now_ms()
        try:
            self._settle(self._broker.set_clock_offset(offset_ms, now_ms), now_ms)
        except Exception as bug:
            self._broke(bug, "set_clock_offset")
        self._schedule()

    def page_arrived(self, read_id: int, messages: Sequence[StoredMessage], missing: Runs) -> None:
        """Bodies that the core asked for."""
        if self._halted or self._quiet:
            return
        now_ms = self._now_ms()
        try:
            outcome = self._broker.pages_read(read_id, messages, missing, now_ms)
            self._settle(outcome, now_ms)
        except Exception as bug:
            self._broke(bug, "pages_read")
        else:
            if outcome.reply:
                self._counters.damaged += outcome.reply
                _log.error("messages_damaged", count=outcome.reply, read_id=read_id)
        self._schedule()

    def cancel(self, client: Client, request_id: int) -> bool:
        """Give up a waiting request; False if it does not wait here."""
        self.settle_collected_of(client)
        found = self._waiting_requests.find(client, request_id)
        if found is None:
            return False
        waiter_id, request = found
        if isinstance(request, wire.EndTransactions):
            return True  # it is under way and will be carried out: answered as usual
        if self._stop_waiting(waiter_id):
            client.answer(error(request_id, ErrorCode.CANCELLED, "cancelled"))
        return True

    def forget(self, client: Client) -> list[wire.Request]:
        """Nothing waits for this client any more; returns the requests that did."""
        self.settle_collected_of(client)
        dropped = self._waiting_requests.drop_all(client)
        for waiter_id, request in dropped:
            self._broker.cancel_receive(waiter_id)
            self._stopped_waiting(client, request)
        return [request for _, request in dropped]

    def leave(self, client: Client) -> None:
        """A client is gone: nothing waits for it any more, and others are asked what it was asked."""
        self.forget(client)
        if client.checked_queues is not None:
            self._tell_all(self.checkers.forget(client))

    def slowness_changed(self, client: Client) -> None:
        """A client has begun to leave unread what it was sent, or has read it: it is asked nothing meanwhile."""
        self._tell_all(self.checkers.slowness_changed(client))

    def end_waits(self, code: ErrorCode, text: str) -> int:
        """Answer everything that waits with an error; returns how many that were. Publishes that are planned in slices
        do not wait: they are carried out.
        """
        self.settle_collected()
        self.finish_publishing()
        ended = 0
        for waiter_id, client, request in self._waiting_requests.everybody():
            if self._stop_waiting(waiter_id):
                client.answer(error(request.request_id, code, text))
                ended += 1
        return ended

    def give_back(self, account: str, queue: str, messages: Sequence[ReceivedMessage]) -> None:
        """Messages that could not be handed over: active at once, as if they had not been received."""
        if self._halted:
            return
        now_ms = self._now_ms()
        self._counters.given_back += len(messages)
        handles = [message.receipt_handle for message in messages]
        try:
            self._settle(self._broker.release(account, queue, handles, False, now_ms), now_ms)
        except domain.QueueNotFound:
            return  # they went with their queue
        except Exception as bug:
            self._broke(bug, "release")
        self._schedule()
