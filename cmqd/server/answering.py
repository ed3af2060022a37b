"""Answering: the LSN that each reply waits for, and the other side effects of an outcome of the core.

The only module that joins core, log, reply gate and outbox. Rules:

- Records go to the log first. Every reply, push and page read of an outcome depends on the LSN of its records, so no
  part of an outcome may be handed on before its records are appended. An append changes nothing if it fails, so a
  failure at that point has told no client anything.
- A reply waits at the gate for the LSN of its records. A reply without records waits for the last LSN of the log: the
  state that the core read may not be durable yet, and after a crash the client would know a state that never was.
- After a bug in the core, or a failure of the storage, the index and the log may differ. Then no further outcome is
  carried out (``is_halted``), and the next start takes the state from the log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from cmqd.core import errors as domain
from cmqd.core.broker import Broker
from cmqd.core.outcome import WAITING, Check, Outcome
from cmqd.log.errors import LogFailed
from cmqd.log.interface import Log
from cmqd.server.client import Client
from cmqd.server.counters import Counters
from cmqd.server.log_lines import get_logger
from cmqd.server.push.outbox import Outbox
from cmqd.server.refusals import error_reply
from cmqd.server.reply_gate import Answerable, ReplyGate
from cmqd.server.shown_names import error_shown_to
from cmqd.server.transaction_checkers import CheckersChange, TransactionCheckers
from cmqd.server.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire

_log = get_logger()

CHECKED_AGAIN_AT_ONCE: Final = 1_000
"""Messages per call that hands checks back to the core; a call stays within about 2 ms."""

Answer: TypeAlias = Callable[[Client, Any, Any, int], None]
"""Answers (client, request, result of the core, LSN)."""


class Answering:
    """Carries out outcomes; see the module."""

    def __init__(
        self,
        *,
        broker: Broker,
        log: Log,
        gate: ReplyGate,
        waiting_requests: WaitingRequests,
        answers: Mapping[type[wire.Request], Answer],
        outbox: Outbox,
        checkers: TransactionCheckers,
        counters: Counters,
        on_broken: Callable[[Exception], None],
    ) -> None:
        """Join the parts.

        Args:
            answers: the answering function of each kind of request that may wait in the core.
            on_broken: called with the exception that shows a bug; no reply leaves after it.
        """
        self._broker = broker
        self._log = log
        self._gate = gate
        self._waiting_requests = waiting_requests
        self._answers = answers
        self._outbox = outbox
        self._checkers = checkers
        self._counters = counters
        self._on_broken = on_broken
        self.is_halted = False
        """No further record can become durable: neither core nor log may be called."""

    def carry_out(self, outcome: Outcome[Any], now_ms: int) -> int:
        """Carry out all side effects and return the LSN that the reply depends on; the reply is left to the caller.

        The caller must hold the reply with this LSN even if the outcome has no records: see the rules above.
        """
        log = self._log
        lsn = log.append(outcome.records, outcome.bodies, now_ms) if outcome.records else log.last_lsn
        if outcome.woken:
            for woken in outcome.woken:
                self._wake(woken.waiter_id, woken.reply, lsn)
        if outcome.reads:
            # With the LSN, because the page may need rows that this outcome or an outcome before it has appended.
            for read in outcome.reads:
                log.read_page(read.read_id, read.queue_id, read.positions, read.max_bytes, lsn)
        for look in outcome.published_reads:
            log.read_published(look.read_id, look.topic_id, look.start, look.stop, lsn)
        if outcome.checks:
            self._push_checks(outcome.checks, lsn, now_ms)
        if outcome.pushes:
            self._outbox.hold(lsn, outcome.pushes)
        return lsn

    def answer_or_wait(
        self, client: Client, request: wire.Request, waiter_id: int, outcome: Outcome[Any], now_ms: int
    ) -> None:
        """Carry out an outcome, and answer unless the reply comes later."""
        if outcome.reply is WAITING:
            # In the table before the outcome is carried out: an answer to a waiter without an entry counts as a bug.
            self._waiting_requests.add(waiter_id, client, request)
            self.carry_out(outcome, now_ms)
        else:
            self._answers[type(request)](client, request, outcome.reply, self.carry_out(outcome, now_ms))

    def stop_waiting(self, waiter_id: int) -> tuple[Client, wire.Request] | None:
        """Remove a waiter here and in the core, and return it; None if it was answered before.

        In both, because the core would lease messages to a waiter that no request has.
        """
        waiter = self._waiting_requests.take(waiter_id)
        if waiter is not None:
            self._broker.cancel_receive(waiter_id)
        return waiter

    def answer(self, client: Client, outcome: Outcome[Any], now_ms: int, reply: wire.AnyReply) -> None:
        """Carry out an outcome, and answer once its records are durable."""
        self._gate.hold(self.carry_out(outcome, now_ms), client, reply)

    def answer_lookup(self, asker: Answerable, reply: wire.AnyReply) -> None:
        """Answer once the state as of now, which the core or the accounts read, is durable.

        A look-up has no records of its own, so the newest row stands for all records that the state contains.
        """
        self._gate.hold(self._log.last_lsn, asker, reply)

    def refuse(self, client: Client, request_id: int, refusal: domain.DomainError, lsn: int | None = None) -> None:
        """Answer with a refusal of the core, once the state that it depends on is durable (as of now, or ``lsn``)."""
        self._counters.refusals += 1
        reply = error_reply(request_id, refusal)
        if refusal.named:
            reply = error_shown_to(client, reply, refusal.named)
        self._gate.hold(self._log.last_lsn if lsn is None else lsn, client, reply)

    def checkers_changed(self, change: CheckersChange, now_ms: int) -> None:
        """Tell the core whether a queue has checkers, and which messages need another check."""
        # The change first, because ``check_again`` takes the checks up at once in a queue with checkers.
        account, queue, has_checkers, changed, unanswered = change
        if changed:
            self._broker.set_has_checkers(account, queue, has_checkers)
        for first in range(0, len(unanswered), CHECKED_AGAIN_AT_ONCE):
            again = unanswered[first : first + CHECKED_AGAIN_AT_ONCE]
            self.carry_out(self._broker.check_again(account, queue, again, now_ms), now_ms)

    def broke(self, bug: Exception, during: str) -> None:
        """Report an exception that is no refusal: a bug. A failure of the storage has been reported by the log."""
        if not isinstance(bug, LogFailed):
            _log.exception("core_broken", during=during)
            self._on_broken(bug)

    def _push_checks(self, checks: Sequence[Check], lsn: int, now_ms: int) -> None:
        for check in checks:
            message = check.message
            checker = self._checkers.ask(check.account, check.queue, message.message_id)
            if checker is None:
                # The last checker left while the body was being read from the log.
                again = self._broker.check_again(check.account, check.queue, [message.message_id], now_ms)
                self.carry_out(again, now_ms)
                continue
            self._counters.checks += 1
            push = wire.TransactionCheck(
                queue=check.queue,
                message_id=message.message_id,
                body=message.body,
                headers=message.headers,
                enqueue_ms=message.enqueue_ms,
                age_ms=check.age_ms,
                attempt=check.attempt,
            )
            self._gate.hold(lsn, checker, push)

    def _wake(self, waiter_id: int, reply: Any, lsn: int) -> None:
        waiter = self._waiting_requests.take(waiter_id)
        assert waiter is not None, f"the core answered waiter {waiter_id}, which no request has"
        # A refusal too waits for the LSN: the records that made the core refuse may not be durable.
        client, request = waiter
        if isinstance(reply, domain.DomainError):
            self.refuse(client, request.request_id, reply, lsn)
        else:
            self._answers[type(request)](client, request, reply, lsn)
