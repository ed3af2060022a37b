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

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.core.outcome import WAITING, Check, Outcome, ReceivedAfterDeletes, Woken
from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from cmqd.server.access.shown_names import refusal_shown_to
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client import Client
from cmqd.server.clients.transaction_checkers import CheckersChange, TransactionCheckers
from cmqd.server.monitoring.counters import Counters
from cmqd.server.push.outbox import Outbox
from cmqd.server.replies.reply_gate import Answerable, Gate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.operations import received_after_deletes
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_segment.records import AnyRecord

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
        gate: Gate,
        waiting_requests: WaitingRequests,
        answers: Mapping[type[wire.Request], Answer],
        outbox: Outbox,
        checkers: TransactionCheckers,
        counters: Counters,
    ) -> None:
        """Join the parts.

        Args:
            answers: the answering function of each kind of request that may wait in the core.
        """
        self._broker = broker
        self._log = log
        self._gate = gate
        self._waiting_requests = waiting_requests
        self._answers = answers
        self._outbox = outbox
        self._checkers = checkers
        self._counters = counters
        self.on_broken: Callable[[Exception], None] = _not_joined
        """Called with the exception that shows a bug; no reply leaves after it. Set by the wiring: the call ends parts
        that are made later."""
        self.is_halted = False
        """No further record can become durable: neither core nor log may be called."""

    def carry_out(self, outcome: Outcome[Any], now_ms: int) -> int:
        """Carry out all side effects and return the LSN that the reply depends on; the reply is left to the caller.

        The caller must hold the reply with this LSN even if the outcome has no records: see the rules above.
        """
        log, records, all_woken = self._log, outcome.records, outcome.woken
        if all_woken and self._waiting_requests.actions:
            records = [*records, *self._audit_records(all_woken, now_ms)]
        lsn = log.append(records, outcome.bodies, now_ms) if records else log.last_lsn
        if all_woken or outcome.reads or outcome.published_reads or outcome.checks or outcome.pushes:
            self._carry_on(outcome, lsn, now_ms)
        return lsn

    def carry_out_all(self, outcomes: Sequence[Outcome[Any]], now_ms: int) -> int:
        """Carry out outcomes with a single append, in their order; return the LSN that their replies depend on.

        The core made the outcomes directly one after the other, and no record was appended in between. All records are
        in the log before the first effect, so an effect that has records of its own appends them behind all of these.
        """
        log, actions = self._log, self._waiting_requests.actions
        records: list[AnyRecord] = []
        bodies: list[bytes] = []
        for outcome in outcomes:
            records += outcome.records
            bodies += outcome.bodies
            if actions and outcome.woken:
                records += self._audit_records(outcome.woken, now_ms)
        lsn = log.append(records, bodies, now_ms) if records else log.last_lsn
        for outcome in outcomes:
            if outcome.woken or outcome.reads or outcome.published_reads or outcome.checks or outcome.pushes:
                self._carry_on(outcome, lsn, now_ms)
        return lsn

    def _carry_on(self, outcome: Outcome[Any], lsn: int, now_ms: int) -> None:
        """Carry out the effects of an outcome with records that are in the log up to ``lsn``."""
        log, all_woken = self._log, outcome.woken
        if all_woken:
            for woken in all_woken:
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

    def end_wait(self, waiter_id: int, error: wire.Error | None = None) -> bool:
        """Remove a waiter here and in the core, and answer it with an error; return False if it was answered before.

        A receive with deletes is answered ``messages_received``, with the error in it: an error alone would tell the
        client that its deletes are not done. That reply waits at the gate, because the deletes may not be durable yet.
        Without an error (only for a receive with deletes) the receive ends as at the end of its wait.
        """
        deletes = self._waiting_requests.deletes_of(waiter_id)
        waiter = self.stop_waiting(waiter_id)
        if waiter is None:
            return False
        client, request = waiter
        if deletes is not None and (error is None or error.code != ErrorCode.OUTCOME_UNKNOWN):
            if error is not None:
                # The connection counts replies that are errors, and not errors inside other replies.
                self._counters.count_error(error.name)
            reply = received_after_deletes(request.request_id, deletes, [], error)
            self._gate.hold(self._log.last_lsn, client, reply)
        else:
            assert error is not None, f"the wait of waiter {waiter_id} ended without an answer"
            client.answer(error)
        return True

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
        reply = refusal_shown_to(client, request_id, refusal)
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
            self.on_broken(bug)

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

    def _audit_records(self, all_woken: Sequence[Woken], now_ms: int) -> list[AnyRecord]:
        """Return the entries of administrative operations that succeed at the end of their wait."""
        actions = self._waiting_requests.actions
        return [
            self._broker.audit_record(actions.pop(woken.waiter_id), now_ms)
            for woken in all_woken
            if woken.waiter_id in actions and not isinstance(woken.reply, domain.DomainError)
        ]

    def _wake(self, waiter_id: int, reply: Any, lsn: int) -> None:
        deletes = self._waiting_requests.deletes_of(waiter_id) if self._waiting_requests.deletes else None
        waiter = self._waiting_requests.take(waiter_id)
        assert waiter is not None, f"the core answered waiter {waiter_id}, which no request has"
        # A refusal too waits for the LSN: the records that made the core refuse may not be durable.
        client, request = waiter
        if deletes is not None:
            reply = ReceivedAfterDeletes(deletes, reply)
        if isinstance(reply, domain.DomainError):
            self.refuse(client, request.request_id, reply, lsn)
        else:
            self._answers[type(request)](client, request, reply, lsn)


def _not_joined(failure: Exception) -> None:
    raise failure
