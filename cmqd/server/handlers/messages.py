"""The handlers of messages: send, receive, settle, browse."""

from typing import Final

from cmqd.core.outcome import WAITING, HandlesDone, Outcome, Peeked, ReceivedMessage
from cmqd.server.handlers.outcomes import RATE_RETRY_MS, Client, Outcomes
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

_NO_FAILURES: Final[list[wire.HandleFailure]] = []

NOT_TO_GIVE_BACK: Final = ""
"""In the place of a queue's name, for a reply with bodies that were only looked at."""


class MessageHandlers(Outcomes):
    """Messages; see the module."""

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

    def _answer_handles(self, client: Client, request_id: int, outcome: Outcome[HandlesDone], now_ms: int) -> None:
        done = outcome.reply
        failures = _NO_FAILURES
        if done.failures:
            code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
            failures = [wire.HandleFailure(failure.receipt_handle, code, failure.text) for failure in done.failures]
        reply = wire.HandlesDone(request_id, failures, done.next_visible_ms)
        self._gate.hold(self._settle(outcome, now_ms), client, reply)

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
