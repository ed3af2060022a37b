"""What all handlers share: what the core says is settled in one place, and refused in the words of one table.

Records go to the log, waiters to their connections, reads to the storage, pushes to the outbox (``_settle``). The reply
of an operation waits at the gate for the LSN of its records; an operation without records waits for the log as it is,
because what it saw may not be durable yet. Only refusals in which the core had no part (busy, shutting down ...) leave
at once.

Who is asked what became of a half message is settled here too (``TransactionCheckers``); what a check is, and when, is
not.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from cmqd.core import errors as domain
from cmqd.core.broker import Broker
from cmqd.core.outcome import WAITING, Check, Outcome
from cmqd.log.errors import LogFailed
from cmqd.log.interface import Log
from cmqd.server import accounts as own
from cmqd.server.accounts import Accounts
from cmqd.server.audit import ADMINISTRATION, Audit, audited
from cmqd.server.counters import Counters
from cmqd.server.log_lines import get_logger
from cmqd.server.publish_lines import PublishLines
from cmqd.server.push.outbox import Outbox
from cmqd.server.rate_limits import RateLimits
from cmqd.server.reply_gate import Answerable, ReplyGate
from cmqd.server.transaction_checkers import Told, TransactionCheckers
from cmqd.server.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

if TYPE_CHECKING:
    from cmqd.server.handlers.collecting import Collected

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
    domain.TooManyWaiting: ErrorCode.TOO_MANY_REQUESTS,
    domain.TooManyInFlight: ErrorCode.TOO_MANY_IN_FLIGHT,
    domain.BacklogFull: ErrorCode.BACKLOG_FULL,
    domain.SequenceTooOld: ErrorCode.SEQUENCE_TOO_OLD,
    domain.OutOfOrder: ErrorCode.OUT_OF_ORDER,
    domain.TooManyRemembered: ErrorCode.TOO_MANY_REQUESTS,
    domain.TransactionNotFound: ErrorCode.TRANSACTION_NOT_FOUND,
    domain.AlreadyCommitted: ErrorCode.ALREADY_COMMITTED,
    domain.AlreadyRolledBack: ErrorCode.ALREADY_ROLLED_BACK,
    domain.MessageDamaged: ErrorCode.MESSAGES_DAMAGED,
    domain.TopicNotFound: ErrorCode.TOPIC_NOT_FOUND,
    domain.TopicExists: ErrorCode.TOPIC_EXISTS,
    domain.TopicDiffers: ErrorCode.TOPIC_DIFFERS,
    domain.TopicInUse: ErrorCode.TOPIC_IN_USE,
    domain.TooManyTopics: ErrorCode.TOO_MANY_TOPICS,
    domain.SubscriptionNotFound: ErrorCode.SUBSCRIPTION_NOT_FOUND,
    domain.SubscriptionExists: ErrorCode.SUBSCRIPTION_EXISTS,
    domain.SubscriptionDiffers: ErrorCode.SUBSCRIPTION_DIFFERS,
    domain.TooManySubscriptions: ErrorCode.TOO_MANY_SUBSCRIPTIONS,
    own.PushUnavailable: ErrorCode.PUSH_UNAVAILABLE,
    own.AccountExists: ErrorCode.ACCOUNT_EXISTS,
    own.AccountNotFound: ErrorCode.ACCOUNT_NOT_FOUND,
    own.KeyNotFound: ErrorCode.KEY_NOT_FOUND,
    own.LastKey: ErrorCode.LAST_KEY,
    own.AccountNotEmpty: ErrorCode.ACCOUNT_NOT_EMPTY,
    own.PermissionDenied: ErrorCode.PERMISSION_DENIED,
}
"""Every refusal and its code; a test holds it against the core's closed set."""

BUSY_RETRY_MS = 100
"""A commit takes milliseconds, so the storage has caught up by then or is in trouble."""
DISK_RETRY_MS = 5_000
"""Room on a disk comes back when consumers or operators make it."""
STALLED_RETRY_MS = 1_000
"""A storage that hangs for longer than anybody's patience does not come back within milliseconds."""
RATE_RETRY_MS = 1_000

CHECKED_AGAIN_AT_ONCE: Final = 1_000
"""Messages whose checks are handed back to the core in one call, which stays within about 2 ms."""


class Client(Answerable, Protocol):
    """A connection, as the handlers see it."""

    account: str
    secret_id: str
    waiting: dict[int, int] | None
    checked_queues: set[str] | None
    unread_receives: int
    """Replies with bodies that are decided and not yet handed to the socket, receives that are collected, peeks that
    wait for bodies.
    """

    @property
    def is_held(self) -> bool:
        """Whether a request of it is carried out in slices."""
        ...

    @property
    def peer(self) -> str:
        """Address of the client, for logs."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether it leaves unread what it was sent."""
        ...

    def hold(self) -> None:
        """Dispatch no further request of it before ``release``."""
        ...

    def put_back(self, request: wire.Request) -> None:
        """Dispatch a request again, before all others, after ``release``."""
        ...

    def release(self) -> None:
        """Go on with the requests behind the one that was carried out."""
        ...

    def park(self, request: wire.Request) -> None:
        """Keep a request for later: the client is to read what it has asked for first."""
        ...


Handler: TypeAlias = Callable[[Client, Any], None]
"""Has a request of one kind answered, now or later."""
Answer: TypeAlias = Callable[[Client, Any, Any, int], None]
"""Encodes the reply to (client, request, reply of the core, LSN)."""


def translate(request_id: int, refusal: domain.DomainError) -> wire.Error:
    """The Error reply for a refusal."""
    code = ERROR_CODES.get(type(refusal), ErrorCode.INTERNAL_ERROR)
    return error(request_id, code, refusal.text, retry_after_ms=refusal.retry_after_ms, details=refusal.details or None)


class Outcomes:
    """The base of all handlers; see the module."""

    def __init__(
        self,
        *,
        broker: Broker,
        log: Log,
        gate: ReplyGate,
        waiting_requests: WaitingRequests[Client],
        accounts: Accounts,
        outbox: Outbox,
        counters: Counters,
        now_ms: Callable[[], int],
        schedule: Callable[[], None],
        status: Callable[[str], dict[str, Any]],
        audit: Audit,
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
            schedule: something was appended or answered outside a request; see ``IoBatch.schedule``.
            status: what ``get_server_status`` tells an account.
            audit: logs administrative requests and their replies.
            spawn: run what must wait for the disk by itself (changes of accounts).
            on_broken: told the exception that shows a bug; nothing is answered after it.
        """
        self._broker = broker
        self._log = log
        self._gate = gate
        self._waiting_requests = waiting_requests
        self.checkers: TransactionCheckers[Client] = TransactionCheckers()
        self._accounts = accounts
        self._outbox = outbox
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
        self._stalled: tuple[ErrorCode, str, int] | None = None
        """How requests are refused while the storage hangs: code, text, when to try again."""
        self._halted = False
        self._quiet = False
        """The server drains: nothing more is done that nobody asked for."""
        self.location: dict[str, Any] = {}
        """Facts of every queue and topic that the core does not know; see ``server.location``."""
        self._refuse_sends: str | None = None
        self._collected: dict[tuple[int, str, str], Collected] = {}
        """What is collected, by kind, account and name of the queue or topic; see ``handlers.collecting``."""
        self._collecting: dict[Client, Collected] = {}
        """By client, where its requests are collected. It has some of one kind and name at a time."""
        self._collected_bytes: int = 0
        """With those of publishes that are planned in slices."""
        self._collected_messages: int = 0
        self._publish_lines = PublishLines()
        handlers, self._answers = self._tables()
        self._handlers = {
            kind: audited(audit, handler, translate) if kind in ADMINISTRATION else handler
            for kind, handler in handlers.items()
        }

    def _tables(self) -> tuple[dict[type[wire.Request], Handler], dict[type[wire.Request], Answer]]:
        """What handles each request; and, for those that may wait, what encodes the reply."""
        raise NotImplementedError

    def _broke(self, bug: Exception, during: str) -> None:
        """An exception that is no refusal; of the storage's failure the log has told already."""
        if not isinstance(bug, LogFailed):
            _log.exception("core_broken", during=during)
            self._on_broken(bug)

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
        if outcome.pushes:
            self._outbox.hold(lsn, outcome.pushes)
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
        found = self._waiting_requests.take(waiter_id)
        assert found is not None, f"the core answered waiter {waiter_id}, whom nobody knows"
        client, request = found
        self._stopped_waiting(client, request)
        if isinstance(reply, domain.DomainError):
            self._counters.refusals += 1
            self._gate.hold(lsn, client, translate(request.request_id, reply))
        else:
            self._answers[type(request)](client, request, reply, lsn)

    def _stop_waiting(self, waiter_id: int) -> bool:
        """Take it off the table and its queue's line; False if it waits no more."""
        found = self._waiting_requests.take(waiter_id)
        if found is None:
            return False
        client, request = found
        self._stopped_waiting(client, request)
        self._broker.cancel_receive(waiter_id)
        return True

    def _stopped_waiting(self, client: Client, request: wire.Request) -> None:
        """Keep the counts of a request that waited until now."""
        if isinstance(request, wire.ReceiveMessages):
            self._count_waiting(client.account, -1)
        elif isinstance(request, wire.PeekMessages):
            client.unread_receives -= 1

    def _count_waiting(self, account: str, change: int) -> None:
        if self._max_waiting:
            self._waiting_by_account[account] = self._waiting_by_account.get(account, 0) + change

    def _answer_or_wait(
        self, client: Client, request: wire.Request, waiter_id: int, outcome: Outcome[Any], now_ms: int
    ) -> None:
        if outcome.reply is WAITING:
            # Before the outcome is settled, as for a receive.
            self._waiting_requests.add(waiter_id, client, request)
            self._settle(outcome, now_ms)
        else:
            self._answers[type(request)](client, request, outcome.reply, self._settle(outcome, now_ms))

    def _is_disk_behind(self, client: Client, request_id: int) -> bool:
        """Refuse what brings bodies if the storage cannot follow or has no room for them."""
        log = self._log
        pending_bytes = log.pending_bytes + self._collected_bytes
        if pending_bytes >= self._busy_bytes or log.pending_records >= self._busy_records:
            self._counters.busy += 1
            text = f"{pending_bytes} bytes wait for the disk; try again"
            client.answer(error(request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return True
        if self._refuse_sends is not None:
            self._counters.disk_refusals += 1
            reason = self._refuse_sends
            client.answer(error(request_id, ErrorCode.DISK_NEARLY_FULL, reason, retry_after_ms=DISK_RETRY_MS))
            return True
        return False
