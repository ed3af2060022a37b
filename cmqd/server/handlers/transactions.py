"""The handlers of half messages, and of who answers checks of them."""

from cmqd.core import errors as domain
from cmqd.core.outcome import TransactionsDone
from cmqd.server.handlers.outcomes import ERROR_CODES, RATE_RETRY_MS, Client, Outcomes
from cmqd.server.transaction_checkers import MAX_REGISTRATIONS, TooManyRegistrations
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error


class TransactionHandlers(Outcomes):
    """Transactions; see the module."""

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
        waiter_id = self._waiting_requests.new_id()
        outcome = self._broker.end_transactions(
            client.account, request.queue, waiter_id, request.message_ids, request.decisions, now_ms
        )
        self.checkers.settle(client.account, request.queue, request.message_ids)
        self._answer_or_wait(client, request, waiter_id, outcome, now_ms)

    def _list_half_messages(self, client: Client, request: wire.ListHalfMessages) -> None:
        found = self._broker.list_half_messages(client.account, request.queue, request.start, request.limit)
        reply = wire.HalfMessages(request.request_id, messages=found.messages, next_start=found.next_start)
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

    def _answer_ended(self, client: Client, request: wire.EndTransactions, done: TransactionsDone, lsn: int) -> None:
        failures = [
            wire.TransactionFailure(message_id, int(ERROR_CODES[type(refusal)]), refusal.text)
            for message_id, refusal in done.failures
        ]
        self._gate.hold(lsn, client, wire.TransactionsEnded(request.request_id, failures))
