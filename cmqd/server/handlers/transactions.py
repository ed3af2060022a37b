"""Half messages, the decisions of their transactions, and the checkers of a queue."""

from collections.abc import Callable

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.core.outcome import TransactionsDone
from cmqd.server.admission.request_admission import Admission
from cmqd.server.clients.client import Client, actor_of
from cmqd.server.clients.transaction_checkers import MAX_REGISTRATIONS, TooManyRegistrations, TransactionCheckers
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Gate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.handler import answers_late, handles
from cmqd.server.requests.refusals import ERROR_CODES, RATE_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode


@part
class Transactions:
    """Operations on half messages."""

    broker: Broker
    answering: Answering
    admission: Admission
    waiting_requests: WaitingRequests
    checkers: TransactionCheckers
    counters: Counters
    now_ms: Callable[[], int]

    @handles(wire.SendHalfMessages)
    def send_half(self, client: Client, request: wire.SendHalfMessages) -> None:
        """Store half messages."""
        if self.admission.refuses_bodies(client, request.request_id):
            return
        now_ms = self.now_ms()
        outcome = self.broker.send_half(client.account, request.queue, request, now_ms, actor=actor_of(client, request))
        message_ids = list(outcome.reply)
        self.counters.half_sent += len(message_ids)
        self.answering.answer(client, outcome, now_ms, wire.MessagesSent(request.request_id, message_ids))

    @handles(wire.EndTransactions)
    def end(self, client: Client, request: wire.EndTransactions) -> None:
        """Commit or roll back half messages, or answer a check with "unknown"."""
        # A commit writes the body again. A rollback needs next to no space, so a full disk must not refuse it.
        if wire.COMMIT in request.decisions and self.admission.refuses_bodies(client, request.request_id):
            return
        now_ms = self.now_ms()
        waiter_id = self.waiting_requests.new_id()
        outcome = self.broker.end_transactions(
            account=client.account,
            name=request.queue,
            waiter_id=waiter_id,
            message_ids=request.message_ids,
            decisions=request.decisions,
            now_ms=now_ms,
            actor=actor_of(client, request),
        )
        self.checkers.settle(client.account, request.queue, request.message_ids)
        self.answering.answer_or_wait(client, request, waiter_id, outcome, now_ms)

    @handles(wire.RegisterChecker)
    def register_checker(self, client: Client, request: wire.RegisterChecker) -> None:
        """Push checks of a queue to this connection from now on."""
        info = self.broker.queue_info(client.account, request.queue)
        if not info.attributes["transactional"]:
            raise domain.NotTransactional(request.queue)
        try:
            change = self.checkers.register(client, request.queue)
        except TooManyRegistrations:
            text = (
                f"the connection has reached its limit of {MAX_REGISTRATIONS} queues with checks; "
                f"use another connection for further queues"
            )
            client.answer(error(request.request_id, ErrorCode.TOO_MANY_REQUESTS, text, retry_after_ms=RATE_RETRY_MS))
            return
        self.answering.checkers_changed(change, self.now_ms())
        self.answering.answer_lookup(client, wire.Done(request.request_id))

    @handles(wire.UnregisterChecker)
    def unregister_checker(self, client: Client, request: wire.UnregisterChecker) -> None:
        """Push no more checks of a queue to this connection."""
        change = self.checkers.unregister(client, request.queue)
        if change is not None:
            self.answering.checkers_changed(change, self.now_ms())
        self.answering.answer_lookup(client, wire.Done(request.request_id))


@part
class TransactionReplies:
    """Answers the ends of transactions, at once or after a wait."""

    gate: Gate

    @answers_late(wire.EndTransactions)
    def _ended(self, client: Client, request: wire.EndTransactions, done: TransactionsDone, lsn: int) -> None:
        """Answer with the message ids of the refused decisions."""
        failures = [
            wire.TransactionFailure(message_id, int(ERROR_CODES[type(refusal)]), refusal.text)
            for message_id, refusal in done.failures
        ]
        self.gate.hold(lsn, client, wire.TransactionsEnded(request.request_id, failures))
