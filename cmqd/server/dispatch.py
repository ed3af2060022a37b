"""Requests to the core and back: one handler per operation, and the one table from domain error to wire code.

Rules:

- It translates and never decides. Arguments go to the core as they came; replies are encoded from what the core built.
- Whatever the core says is settled in one place (``_settle``): records to the log, waiters to their connections, reads
  to the storage. The reply of an operation waits at the gate for the LSN of its records; an operation without records
  waits for the log as it is, because what it saw may not be durable yet. Only refusals in which the core had no part
  (busy, shutting down ...) leave at once.
- Who is asked what became of a half message is settled here too (``Checkers``); what a check is, and when, is not.
- An exception that is no refusal is a bug in the core, whose state may now differ from the log: nothing more is
  answered, the process stops and recovers from the log (``on_broken``).
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from cmqd.core import errors as domain
from cmqd.core.broker import Broker
from cmqd.core.outcome import (
    WAITING,
    Check,
    HandlesDone,
    Outcome,
    Peeked,
    QueueInfo,
    ReceivedMessage,
    RedriveStatus,
    Rewound,
    TransactionsDone,
)
from cmqd.server import accounts as own
from cmqd.server.accounts import Accounts, Key
from cmqd.server.checkers import MAX_REGISTRATIONS, Checkers, Told, TooManyRegistrations
from cmqd.server.commit import Answerable, ReplyGate
from cmqd.server.logs import get_logger
from cmqd.server.longpoll import LongPolls
from cmqd.server.rates import RateLimits
from cmqd.server.statistics import Counters
from cmqd.storage.errors import StorageFailed
from cmqd.storage.log import Log
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error
from cmqd_segment.records import Runs, StoredMessage

_log = get_logger()

ERROR_CODES: Final[dict[type[domain.DomainError], ErrorCode]] = {
    domain.InvalidArgument: ErrorCode.INVALID_ARGUMENT,
    domain.QueueNotFound: ErrorCode.QUEUE_NOT_FOUND,
    domain.QueueExists: ErrorCode.QUEUE_EXISTS,
    domain.QueueDiffers: ErrorCode.QUEUE_DIFFERS,
    domain.QueueDeleted: ErrorCode.QUEUE_DELETED,
    domain.TooManyQueues: ErrorCode.TOO_MANY_QUEUES,
    domain.DeadLetterQueueInUse: ErrorCode.DEAD_LETTER_QUEUE_IN_USE,
    domain.TimeNotRewindable: ErrorCode.TIME_NOT_REWINDABLE,
    domain.RedriveRunning: ErrorCode.REDRIVE_RUNNING,
    domain.NotTransactional: ErrorCode.NOT_TRANSACTIONAL,
    domain.MessageTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    domain.BatchTooLarge: ErrorCode.BATCH_TOO_LARGE,
    domain.TooManyInFlight: ErrorCode.TOO_MANY_IN_FLIGHT,
    domain.BacklogFull: ErrorCode.BACKLOG_FULL,
    domain.SequenceTooOld: ErrorCode.SEQUENCE_TOO_OLD,
    domain.TransactionNotFound: ErrorCode.TRANSACTION_NOT_FOUND,
    domain.AlreadyCommitted: ErrorCode.ALREADY_COMMITTED,
    domain.AlreadyRolledBack: ErrorCode.ALREADY_ROLLED_BACK,
    domain.MessageDamaged: ErrorCode.MESSAGES_DAMAGED,
    own.AccountExists: ErrorCode.ACCOUNT_EXISTS,
    own.AccountNotFound: ErrorCode.ACCOUNT_NOT_FOUND,
    own.KeyNotFound: ErrorCode.KEY_NOT_FOUND,
    own.LastKey: ErrorCode.LAST_KEY,
    own.PermissionDenied: ErrorCode.PERMISSION_DENIED,
}
"""Every refusal and its code; a test holds it against the core's closed set."""

BUSY_RETRY_MS = 100
"""A commit takes milliseconds, so the storage has caught up by then or is in trouble."""
DISK_RETRY_MS = 5_000
"""Room on a disk comes back when consumers or operators make it."""
RATE_RETRY_MS = 1_000

_NO_FAILURES: Final[list[wire.HandleFailure]] = []

CHECKED_AGAIN_AT_ONCE: Final = 1_000
"""Messages whose checks are handed back to the core in one call, which stays within about 2 ms."""

NOT_TO_GIVE_BACK = ""
"""In the place of a queue's name, for a reply with bodies that were only looked at."""


class Client(Answerable, Protocol):
    """A connection, as the handlers see it."""

    account: str
    waiting: dict[int, int] | None
    checked_queues: set[str] | None
    unread_receives: int
    """Replies with bodies that are decided and not yet handed to the socket, and peeks that wait for bodies."""

    @property
    def is_slow(self) -> bool:
        """Whether it leaves unread what it was sent."""
        ...

    def park(self, request: wire.Request) -> None:
        """Keep a request for later: the client is to read what it has asked for first."""
        ...


_C = TypeVar("_C", bound=Client)
_R = TypeVar("_R")


def translate(request_id: int, refusal: domain.DomainError) -> wire.Error:
    """The Error reply for a refusal."""
    code = ERROR_CODES.get(type(refusal), ErrorCode.INTERNAL_ERROR)
    return error(request_id, code, refusal.text, retry_after_ms=refusal.retry_after_ms, details=refusal.details or None)


class Dispatcher:
    """Joins clients, core and log; see the module."""

    def __init__(
        self,
        *,
        broker: Broker,
        log: Log,
        gate: ReplyGate,
        polls: LongPolls[Client],
        accounts: Accounts,
        counters: Counters,
        now_ms: Callable[[], int],
        schedule: Callable[[], None],
        status: Callable[[str], dict[str, Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_broken: Callable[[Exception], None],
        busy_pending_bytes: int,
        busy_pending_records: int,
        max_unread_receives: int,
        max_waiting_per_account: int = 0,
        max_requests_per_second: int = 0,
    ) -> None:
        """Join them.

        Args:
            schedule: something was appended or answered outside a request; see ``WakeUp.schedule``.
            status: what ``get_server_status`` tells an account.
            spawn: run what must wait for the disk by itself (changes of accounts).
            on_broken: told the exception that shows a bug; nothing is answered after it.
        """
        self._broker = broker
        self._log = log
        self._gate = gate
        self._polls = polls
        self.checkers: Checkers[Client] = Checkers()
        self._accounts = accounts
        self._counters = counters
        self._now_ms = now_ms
        self._schedule = schedule
        self._status = status
        self._spawn = spawn
        self._on_broken = on_broken
        self._busy_bytes = busy_pending_bytes
        self._busy_records = busy_pending_records
        self._max_unread = max_unread_receives
        self._max_waiting = max_waiting_per_account
        self._rates = RateLimits(max_requests_per_second) if max_requests_per_second else None
        self._waiting_by_account: dict[str, int] = {}
        self._refuse_all: tuple[ErrorCode, str] | None = None
        self._halted = False
        self._quiet = False
        """The server drains: nothing more is done that nobody asked for."""
        self.queue_facts: dict[str, Any] = {}
        """What the core does not know of its queues: where they are."""
        self._refuse_sends: str | None = None
        self._handlers: dict[type[wire.Request], Callable[[Client, Any], None]] = {
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
            wire.GetServerStatus: self._get_server_status,
        }
        self._answers: dict[type[wire.Request], Callable[[Client, Any, Any, int], None]] = {
            wire.ReceiveMessages: self._answer_received,
            wire.PeekMessages: self._answer_peeked,
            wire.RewindQueue: self._answer_rewound,
            wire.EndTransactions: self._answer_ended,
        }
        """By the requests that may wait: what encodes the reply to (client, request, reply of the core, LSN)."""

    @property
    def operations(self) -> frozenset[type[wire.Request]]:
        """The requests that have a handler."""
        return frozenset(self._handlers)

    def dispatch(self, client: Client, request: wire.Request) -> None:
        """Have a request answered, now or later."""
        self._counters.requests += 1
        if self._refuse_all is not None:
            code, text = self._refuse_all
            client.answer(error(request.request_id, code, text))
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
        except StorageFailed as failure:
            # The process is about to end; this one came in between.
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
        except Exception as bug:
            self._broke(bug, type(request).__name__)

    def refuse_all(self, code: ErrorCode, text: str) -> None:
        """From now on every request is answered so, before it touches the core."""
        self._refuse_all = (code, text)

    def halt(self, reason: str) -> None:
        """Nothing can become durable any more: touch neither core nor log from now on."""
        self._halted = True
        self.refuse_all(ErrorCode.OUTCOME_UNKNOWN, reason)

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
        self._broker.moves_held_up = "" if reason is None else "disk nearly full"

    # ------------------------------------------------------------------ what is not asked by a request

    def tick(self, now_ms: int) -> None:
        """Do a slice of what is due."""
        if self._halted or self._quiet:
            return
        try:
            self._settle(self._broker.tick(now_ms), now_ms)
        except Exception as bug:
            self._broke(bug, "tick")
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
        found = self._polls.find(client, request_id)
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
        dropped = self._polls.drop_all(client)
        for waiter_id, request in dropped:
            self._broker.cancel_receive(waiter_id)
            if isinstance(request, wire.PeekMessages):
                client.unread_receives -= 1
        self._count_waiting(client.account, -len(dropped))
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
        """Answer everything that waits with an error; returns how many that were."""
        ended = 0
        for waiter_id, client, request in self._polls.everybody():
            if self._stop_waiting(waiter_id):
                client.answer(error(request.request_id, code, text))
                ended += 1
        return ended

    def give_back(self, account: str, queue: str, messages: Sequence[ReceivedMessage | wire.ReceivedMessage]) -> None:
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

    def _broke(self, bug: Exception, during: str) -> None:
        """An exception that is no refusal; of the storage's failure the log has told already."""
        if not isinstance(bug, StorageFailed):
            _log.exception("core_broken", during=during)
            self._on_broken(bug)

    # ------------------------------------------------------------------ outcomes

    def _settle(self, outcome: Outcome[Any], now_ms: int) -> int:
        """Act on everything but the reply; returns the LSN that the reply depends on."""
        log = self._log
        lsn = log.append(outcome.records, outcome.bodies, now_ms) if outcome.records else log.last_lsn
        if outcome.woken:
            for woken in outcome.woken:
                self._wake(woken.waiter_id, woken.reply, lsn)
        if outcome.reads:
            for read in outcome.reads:
                log.read_page(read.read_id, read.queue_id, read.positions, read.max_bytes, lsn)
        if outcome.checks:
            self._ask(outcome.checks, lsn, now_ms)
        return lsn

    def _ask(self, checks: Sequence[Check], lsn: int, now_ms: int) -> None:
        """Put each question to one of those who answer for its queue."""
        for check in checks:
            message = check.message
            checker = self.checkers.ask(check.account, check.queue, message.message_id)
            if checker is None:
                # The last one went while the body was being read.
                self._settle(self._broker.check_again(check.account, check.queue, [message.message_id], now_ms), now_ms)
                continue
            self._counters.checks += 1
            push = wire.TransactionCheck(
                check.queue,
                message.message_id,
                message.body,
                message.headers,
                message.enqueue_ms,
                check.age_ms,
                check.attempt,
            )
            self._gate.hold(lsn, checker, push)

    def _tell(self, told: Told) -> None:
        """Let the core know who can be asked, and about what again."""
        account, queue, has_checkers, changed, unanswered = told
        if changed:
            self._broker.set_has_checkers(account, queue, has_checkers)
        now_ms = self._now_ms()
        for first in range(0, len(unanswered), CHECKED_AGAIN_AT_ONCE):
            again = unanswered[first : first + CHECKED_AGAIN_AT_ONCE]
            self._settle(self._broker.check_again(account, queue, again, now_ms), now_ms)

    def _tell_all(self, all_told: Iterable[Told]) -> None:
        """The same when no request asks for it."""
        if self._halted:
            return
        try:
            for told in all_told:
                self._tell(told)
        except Exception as bug:
            self._broke(bug, "set_has_checkers")
        self._schedule()

    def _wake(self, waiter_id: int, reply: Any, lsn: int) -> None:
        found = self._polls.take(waiter_id)
        assert found is not None, f"the core answered waiter {waiter_id}, whom nobody knows"
        client, request = found
        if self._max_waiting:
            self._count_waiting(client.account, -1)
        if isinstance(request, wire.PeekMessages):
            client.unread_receives -= 1
        if isinstance(reply, domain.DomainError):
            self._counters.refusals += 1
            self._gate.hold(lsn, client, translate(request.request_id, reply))
        else:
            self._answers[type(request)](client, request, reply, lsn)

    def _stop_waiting(self, waiter_id: int) -> bool:
        """Take it off the table and its queue's line; False if it waits no more."""
        found = self._polls.take(waiter_id)
        if found is None:
            return False
        client, request = found
        self._count_waiting(client.account, -1)
        if isinstance(request, wire.PeekMessages):
            client.unread_receives -= 1
        self._broker.cancel_receive(waiter_id)
        return True

    def _count_waiting(self, account: str, change: int) -> None:
        if self._max_waiting:
            self._waiting_by_account[account] = self._waiting_by_account.get(account, 0) + change

    def _answer_received(
        self, client: Client, request: wire.ReceiveMessages, messages: list[ReceivedMessage], lsn: int
    ) -> None:
        if messages:
            client.unread_receives += 1
            self._counters.received += len(messages)
            self._gate.hold(lsn, client, wire.messages_received(request.request_id, messages), request.queue)
        else:
            self._gate.hold(lsn, client, wire.messages_received(request.request_id, messages))

    def _answer_peeked(self, client: Client, request: wire.PeekMessages, peeked: Peeked, lsn: int) -> None:
        reply = wire.messages_peeked(request.request_id, peeked.messages, peeked.next_start)
        if peeked.messages:
            client.unread_receives += 1
            self._gate.hold(lsn, client, reply, NOT_TO_GIVE_BACK)
        else:
            self._gate.hold(lsn, client, reply)

    def _answer_rewound(self, client: Client, request: wire.RewindQueue, rewound: Rewound, lsn: int) -> None:
        self._gate.hold(
            lsn, client, wire.Rewound(request.request_id, rewound.messages, rewound.time_ms, rewound.clamped)
        )

    def _answer_ended(self, client: Client, request: wire.EndTransactions, done: TransactionsDone, lsn: int) -> None:
        failures = [
            wire.TransactionFailure(message_id, int(ERROR_CODES[type(refusal)]), refusal.text)
            for message_id, refusal in done.failures
        ]
        self._gate.hold(lsn, client, wire.TransactionsEnded(request.request_id, failures))

    def _answer_handles(self, client: Client, request_id: int, outcome: Outcome[HandlesDone], now_ms: int) -> None:
        done = outcome.reply
        failures = _NO_FAILURES
        if done.failures:
            code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
            failures = [wire.HandleFailure(failure.receipt_handle, code, failure.text) for failure in done.failures]
        reply = wire.HandlesDone(request_id, failures, done.next_visible_ms)
        self._gate.hold(self._settle(outcome, now_ms), client, reply)

    def _answer_queue(self, client: Client, request_id: int, info: QueueInfo, lsn: int) -> None:
        reply = wire.QueueInfo(
            request_id,
            info.name,
            info.queue_id,
            info.attributes,
            info.counts,
            info.facts | self.queue_facts,
            info.created,
        )
        self._gate.hold(lsn, client, reply)

    # ------------------------------------------------------------------ messages

    def _send_messages(self, client: Client, request: wire.SendMessages) -> None:
        if self._is_disk_behind(client, request.request_id):
            return
        now_ms = self._now_ms()
        outcome = self._broker.send(
            client.account,
            request.queue,
            request.bodies,
            request.headers,
            request.delay_ms,
            request.session,
            request.sequence,
            now_ms,
            request.dedup_ids,
        )
        message_ids = list(outcome.reply)
        self._counters.sent += len(message_ids)
        lsn = self._settle(outcome, now_ms)
        self._gate.hold(lsn, client, wire.MessagesSent(request.request_id, message_ids))

    def _is_disk_behind(self, client: Client, request_id: int) -> bool:
        """Refuse what brings bodies if the storage cannot follow or has no room for them."""
        log = self._log
        if log.pending_bytes >= self._busy_bytes or log.pending_records >= self._busy_records:
            self._counters.busy += 1
            text = f"{log.pending_bytes} bytes wait for the disk; try again"
            client.answer(error(request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return True
        if self._refuse_sends is not None:
            self._counters.disk_refusals += 1
            reason = self._refuse_sends
            client.answer(error(request_id, ErrorCode.DISK_NEARLY_FULL, reason, retry_after_ms=DISK_RETRY_MS))
            return True
        return False

    def _receive_messages(self, client: Client, request: wire.ReceiveMessages) -> None:
        if client.unread_receives >= self._max_unread or client.is_slow:
            client.park(request)
            return
        if self._max_waiting and self._is_waiting_full(client, request.request_id):
            return
        now_ms = self._now_ms()
        waiter_id = self._polls.new_id()
        outcome = self._broker.receive(
            client.account,
            request.queue,
            waiter_id,
            request.max_messages,
            request.wait_ms,
            request.visibility_timeout_ms,
            now_ms,
        )
        if outcome.reply is WAITING:
            # Before the outcome is settled: a log in memory may bring the page while it is being asked for it.
            self._polls.add(waiter_id, client, request)
            self._count_waiting(client.account, 1)
            self._settle(outcome, now_ms)
        else:
            self._answer_received(client, request, outcome.reply, self._settle(outcome, now_ms))

    def _is_waiting_full(self, client: Client, request_id: int) -> bool:
        if self._waiting_by_account.get(client.account, 0) < self._max_waiting:
            return False
        text = f"account {client.account!r} has {self._max_waiting} receives waiting, its limit"
        client.answer(error(request_id, ErrorCode.TOO_MANY_REQUESTS, text, retry_after_ms=RATE_RETRY_MS))
        return True

    def _delete_messages(self, client: Client, request: wire.DeleteMessages) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.delete(client.account, request.queue, request.receipt_handles, now_ms)
        self._counters.deleted += len(request.receipt_handles) - len(outcome.reply.failures)
        self._answer_handles(client, request.request_id, outcome, now_ms)

    def _change_visibility(self, client: Client, request: wire.ChangeVisibility) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.change_visibility(
            client.account, request.queue, request.receipt_handles, request.visibility_timeout_ms, now_ms
        )
        self._answer_handles(client, request.request_id, outcome, now_ms)

    def _release_messages(self, client: Client, request: wire.ReleaseMessages) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.release(
            client.account, request.queue, request.receipt_handles, request.count_receive, now_ms
        )
        self._answer_handles(client, request.request_id, outcome, now_ms)

    def _peek_messages(self, client: Client, request: wire.PeekMessages) -> None:
        if client.unread_receives >= self._max_unread or client.is_slow:
            client.park(request)
            return
        now_ms = self._now_ms()
        waiter_id = self._polls.new_id()
        outcome = self._broker.peek(
            client.account, request.queue, waiter_id, request.start, request.max_messages, now_ms, request.states
        )
        if outcome.reply is WAITING:
            # Counted before there are bodies, else any number of pipelined peeks would pass the bound above.
            client.unread_receives += 1
            self._polls.add(waiter_id, client, request)
            self._count_waiting(client.account, 1)
            self._settle(outcome, now_ms)
        else:
            self._answer_peeked(client, request, outcome.reply, self._settle(outcome, now_ms))

    # ------------------------------------------------------------------ queues

    def _create_queue(self, client: Client, request: wire.CreateQueue) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.create_queue(client.account, request.queue, request.attributes, now_ms)
        self._answer_queue(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _ensure_queue(self, client: Client, request: wire.EnsureQueue) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.ensure_queue(client.account, request.queue, request.attributes, now_ms)
        self._answer_queue(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _list_queues(self, client: Client, request: wire.ListQueues) -> None:
        total, queues = self._broker.list_queues(client.account, request.search, request.offset, request.limit)
        self._gate.hold(self._log.last_lsn, client, wire.QueueList(request.request_id, total, queues))

    def _get_queue_attributes(self, client: Client, request: wire.GetQueueAttributes) -> None:
        info = self._broker.queue_info(client.account, request.queue)
        self._answer_queue(client, request.request_id, info, self._log.last_lsn)

    def _set_queue_attributes(self, client: Client, request: wire.SetQueueAttributes) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.set_queue_attributes(client.account, request.queue, request.attributes, now_ms)
        self._answer_queue(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _delete_queue(self, client: Client, request: wire.DeleteQueue) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.delete_queue(client.account, request.queue, now_ms)
        self.checkers.forget_queue(client.account, request.queue)
        self._gate.hold(self._settle(outcome, now_ms), client, wire.Done(request.request_id))

    def _clear_queue(self, client: Client, request: wire.ClearQueue) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.clear_queue(client.account, request.queue, now_ms)
        self._gate.hold(self._settle(outcome, now_ms), client, wire.Done(request.request_id))

    def _rewind_queue(self, client: Client, request: wire.RewindQueue) -> None:
        now_ms = self._now_ms()
        waiter_id = self._polls.new_id()
        outcome = self._broker.rewind(client.account, request.queue, waiter_id, request.time_ms, request.strict, now_ms)
        self._answer_or_wait(client, request, waiter_id, outcome, now_ms)

    def _answer_or_wait(
        self, client: Client, request: wire.Request, waiter_id: int, outcome: Outcome[Any], now_ms: int
    ) -> None:
        if outcome.reply is WAITING:
            # Before the outcome is settled, as for a receive.
            self._polls.add(waiter_id, client, request)
            self._count_waiting(client.account, 1)
            self._settle(outcome, now_ms)
        else:
            self._answers[type(request)](client, request, outcome.reply, self._settle(outcome, now_ms))

    # ------------------------------------------------------------------ dead letters

    def _list_dead_letter_sources(self, client: Client, request: wire.ListDeadLetterSources) -> None:
        sources = self._broker.dead_letter_sources(client.account, request.queue)
        self._gate.hold(self._log.last_lsn, client, wire.QueueList(request.request_id, len(sources), sources))

    def _start_redrive(self, client: Client, request: wire.StartRedrive) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.start_redrive(
            client.account, request.queue, request.target, request.max_per_second, now_ms
        )
        self._answer_redrive(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _cancel_redrive(self, client: Client, request: wire.CancelRedrive) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.cancel_redrive(client.account, request.queue, now_ms)
        self._answer_redrive(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _get_redrive(self, client: Client, request: wire.GetRedrive) -> None:
        status = self._broker.redrive_status(client.account, request.queue)
        self._answer_redrive(client, request.request_id, status, self._log.last_lsn)

    def _answer_redrive(self, client: Client, request_id: int, status: RedriveStatus, lsn: int) -> None:
        reply = wire.RedriveStatus(
            request_id,
            status.queue,
            status.target,
            status.max_per_second,
            status.started_ms,
            status.ended_ms,
            status.reason,
            status.moved,
            status.remaining,
            status.missing_origins,
        )
        self._gate.hold(lsn, client, reply)

    # ------------------------------------------------------------------ transactions

    def _send_half_messages(self, client: Client, request: wire.SendHalfMessages) -> None:
        if self._is_disk_behind(client, request.request_id):
            return
        now_ms = self._now_ms()
        outcome = self._broker.send_half(
            client.account,
            request.queue,
            request.bodies,
            request.headers,
            request.first_check_ms,
            request.session,
            request.sequence,
            now_ms,
            request.dedup_ids,
        )
        message_ids = list(outcome.reply)
        self._counters.half_sent += len(message_ids)
        lsn = self._settle(outcome, now_ms)
        self._gate.hold(lsn, client, wire.MessagesSent(request.request_id, message_ids))

    def _end_transactions(self, client: Client, request: wire.EndTransactions) -> None:
        # A commit writes the body again. To roll back or to know nothing takes no room to speak of.
        if wire.COMMIT in request.decisions and self._is_disk_behind(client, request.request_id):
            return
        now_ms = self._now_ms()
        waiter_id = self._polls.new_id()
        outcome = self._broker.end_transactions(
            client.account, request.queue, waiter_id, request.message_ids, request.decisions, now_ms
        )
        self.checkers.settle(client.account, request.queue, request.message_ids)
        self._answer_or_wait(client, request, waiter_id, outcome, now_ms)

    def _list_half_messages(self, client: Client, request: wire.ListHalfMessages) -> None:
        found = self._broker.list_half_messages(client.account, request.queue, request.start, request.limit)
        reply = wire.half_messages(request.request_id, found.messages, found.next_start)
        self._gate.hold(self._log.last_lsn, client, reply)

    def _register_checker(self, client: Client, request: wire.RegisterChecker) -> None:
        info = self._broker.queue_info(client.account, request.queue)
        if not info.attributes["transactional"]:
            raise domain.NotTransactional(request.queue)
        try:
            told = self.checkers.register(client, request.queue)
        except TooManyRegistrations:
            text = f"this connection answers the checks of {MAX_REGISTRATIONS} queues, its limit; use another for more"
            client.answer(error(request.request_id, ErrorCode.TOO_MANY_REQUESTS, text, retry_after_ms=RATE_RETRY_MS))
            return
        self._tell(told)
        self._gate.hold(self._log.last_lsn, client, wire.Done(request.request_id))

    def _unregister_checker(self, client: Client, request: wire.UnregisterChecker) -> None:
        told = self.checkers.unregister(client, request.queue)
        if told is not None:
            self._tell(told)
        self._gate.hold(self._log.last_lsn, client, wire.Done(request.request_id))

    # ------------------------------------------------------------------ accounts

    def _create_account(self, client: Client, request: wire.CreateAccount) -> None:
        async def change() -> wire.Reply:
            key = await self._accounts.create_account(client.account, request.account, self._now_ms())
            return wire.KeyList(request.request_id, [_key_info(key, shown=True)])

        self._in_turn(client, request, change)

    def _list_accounts(self, client: Client, request: wire.ListAccounts) -> None:
        async def look() -> wire.Reply:
            await self._accounts.settled()
            return wire.AccountList(request.request_id, self._accounts.list_accounts(client.account))

        self._in_turn(client, request, look)

    def _create_key(self, client: Client, request: wire.CreateKey) -> None:
        async def change() -> wire.Reply:
            key = await self._accounts.create_key(client.account, request.account, self._now_ms())
            return wire.KeyList(request.request_id, [_key_info(key, shown=True)])

        self._in_turn(client, request, change)

    def _list_keys(self, client: Client, request: wire.ListKeys) -> None:
        async def look() -> wire.Reply:
            await self._accounts.settled()
            keys = self._accounts.list_keys(client.account, request.account)
            return wire.KeyList(request.request_id, [_key_info(key, shown=False) for key in keys])

        self._in_turn(client, request, look)

    def _set_key_enabled(self, client: Client, request: wire.SetKeyEnabled) -> None:
        async def change() -> wire.Reply:
            await self._accounts.set_key_enabled(client.account, request.account, request.secret_id, request.enabled)
            return wire.Done(request.request_id)

        self._in_turn(client, request, change)

    def _delete_key(self, client: Client, request: wire.DeleteKey) -> None:
        async def change() -> wire.Reply:
            await self._accounts.delete_key(client.account, request.account, request.secret_id)
            return wire.Done(request.request_id)

        self._in_turn(client, request, change)

    def _in_turn(
        self, client: Client, request: wire.Request, work: Callable[[], Coroutine[Any, Any, wire.Reply]]
    ) -> None:
        """Answer when the accounts file is written; the loop goes on meanwhile. What is asked later comes later."""

        async def run() -> None:
            try:
                reply = await work()
            except domain.DomainError as refusal:
                self._counters.refusals += 1
                reply = translate(request.request_id, refusal)
            except OSError as failure:
                _log.exception("accounts_not_written")
                text = f"the accounts file could not be written ({failure.strerror}); nothing was changed"
                reply = error(request.request_id, ErrorCode.INTERNAL_ERROR, text)
            client.answer(reply)

        self._spawn(run())

    # ------------------------------------------------------------------ the server

    def _get_server_status(self, client: Client, request: wire.GetServerStatus) -> None:
        client.answer(wire.ServerStatus(request.request_id, self._status(client.account)))


def _key_info(key: Key, *, shown: bool) -> wire.KeyInfo:
    return wire.KeyInfo(key.secret_id, key.account, key.enabled, key.created_ms, key.secret_key if shown else None)
