"""The handlers of messages: send, receive, settle, browse."""

from collections.abc import Sequence
from typing import Final

from cmqd.core.errors import DomainError
from cmqd.core.limits import headers_bytes
from cmqd.core.outcome import WAITING, HandlesDone, Waiting
from cmqd.server.handlers.collecting import DELETE, RECEIVE, SEND, Collected, Collecting
from cmqd.server.handlers.outcomes import Client
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import MessagesPeeked, ReceivedMessage

_NO_FAILURES: Final[list[wire.HandleFailure]] = []

NOT_TO_GIVE_BACK: Final = ""
"""In the place of a queue's name, for a reply with bodies that were only looked at."""


class MessageHandlers(Collecting):
    """Messages; see the module."""

    def _answer_received(
        self, client: Client, request: wire.ReceiveMessages, messages: list[ReceivedMessage], lsn: int
    ) -> None:
        if messages:
            client.unread_receives += 1
            self._counters.received += len(messages)
            self._gate.hold(lsn, client, wire.MessagesReceived(request.request_id, messages), request.queue)
        else:
            self._gate.hold(lsn, client, wire.MessagesReceived(request.request_id, messages))

    def _answer_peeked(self, client: Client, request: wire.PeekMessages, peeked: MessagesPeeked, lsn: int) -> None:
        reply = wire.MessagesPeeked(request.request_id, messages=peeked.messages, next_start=peeked.next_start)
        if peeked.messages:
            client.unread_receives += 1
            self._gate.hold(lsn, client, reply, NOT_TO_GIVE_BACK)
        else:
            self._gate.hold(lsn, client, reply)

    def _answer_handles(self, client: Client, request_id: int, done: HandlesDone, lsn: int) -> None:
        failures = _NO_FAILURES
        if done.failures:
            code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
            failures = [wire.HandleFailure(failure.receipt_handle, code, failure.text) for failure in done.failures]
        self._gate.hold(lsn, client, wire.HandlesDone(request_id, failures, done.next_visible_ms))

    def _send_messages(self, client: Client, request: wire.SendMessages) -> None:
        if self._is_disk_behind(client, request.request_id):
            return
        bodies = request.bodies
        size = sum(map(len, bodies))
        if request.headers is not None:
            size += sum(headers_bytes(entry) for entry in request.headers if entry)
        self._collect(SEND, client, request, request.queue, request, len(bodies), size)

    def _decide_sends(self, collected: Collected, now_ms: int) -> tuple[Sequence[Sequence[int] | DomainError], int]:
        outcome = self._broker.send_all(collected.account, collected.name, collected.requests, now_ms)
        return outcome.reply, self._settle(outcome, now_ms)

    def _answer_sends(self, collected: Collected, replies: Sequence[Sequence[int] | DomainError], lsn: int) -> None:
        hold = self._gate.hold
        for (client, request_id), reply in zip(collected.askers, replies, strict=True):
            if isinstance(reply, DomainError):
                self._refuse(client, request_id, reply, lsn)
            else:
                self._counters.sent += len(reply)
                hold(lsn, client, wire.MessagesSent(request_id, list(reply)))

    def _receive_messages(self, client: Client, request: wire.ReceiveMessages) -> None:
        if client.unread_receives >= self._max_unread:
            # What is collected may wait instead, and so not count.
            self.settle_collected_of(client)
        if client.unread_receives >= self._max_unread or client.is_slow:
            client.park(request)
            return
        self._collect(RECEIVE, client, request, request.queue, request, request.max_messages)

    def _decide_receives(
        self, collected: Collected, now_ms: int
    ) -> tuple[Sequence[list[ReceivedMessage] | Waiting | DomainError], int]:
        requests: list[wire.ReceiveMessages] = collected.requests
        waiter_ids = [self._waiting_requests.new_id() for _ in requests]
        account = collected.account
        outcome = self._broker.receive_all(
            account,
            collected.name,
            requests,
            waiter_ids,
            now_ms,
            waiting=self._waiting_by_account.get(account, 0),
            max_waiting=self._max_waiting,
        )
        replies = outcome.reply
        if WAITING in replies:
            # Before the outcome is settled: a log in memory may bring the page while it is being asked for it.
            for (client, _), request, waiter_id, reply in zip(
                collected.askers, requests, waiter_ids, replies, strict=True
            ):
                if reply is WAITING:
                    self._waiting_requests.add(waiter_id, client, request)
                    self._count_waiting(account, 1)
        return replies, self._settle(outcome, now_ms)

    def _answer_receives(
        self, collected: Collected, replies: Sequence[list[ReceivedMessage] | Waiting | DomainError], lsn: int
    ) -> None:
        for (client, request_id), request, reply in zip(collected.askers, collected.requests, replies, strict=True):
            if isinstance(reply, list):
                self._answer_received(client, request, reply, lsn)
            elif isinstance(reply, DomainError):
                self._refuse(client, request_id, reply, lsn)

    def _delete_messages(self, client: Client, request: wire.DeleteMessages) -> None:
        handles = request.receipt_handles
        self._collect(DELETE, client, request, request.queue, handles, len(handles))

    def _decide_deletes(self, collected: Collected, now_ms: int) -> tuple[Sequence[HandlesDone | DomainError], int]:
        outcome = self._broker.delete_all(collected.account, collected.name, collected.requests, now_ms)
        return outcome.reply, self._settle(outcome, now_ms)

    def _answer_deletes(self, collected: Collected, replies: Sequence[HandlesDone | DomainError], lsn: int) -> None:
        for (client, request_id), reply in zip(collected.askers, replies, strict=True):
            if isinstance(reply, DomainError):
                self._refuse(client, request_id, reply, lsn)
            else:
                self._counters.deleted += reply.done
                self._answer_handles(client, request_id, reply, lsn)

    def _change_visibility(self, client: Client, request: wire.ChangeVisibility) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.change_visibility(
            client.account, request.queue, request.receipt_handles, request.visibility_timeout_ms, now_ms
        )
        self._answer_handles(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _release_messages(self, client: Client, request: wire.ReleaseMessages) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.release(
            client.account, request.queue, request.receipt_handles, request.count_receive, now_ms
        )
        self._answer_handles(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _peek_messages(self, client: Client, request: wire.PeekMessages) -> None:
        if client.unread_receives >= self._max_unread or client.is_slow:
            client.park(request)
            return
        now_ms = self._now_ms()
        waiter_id = self._waiting_requests.new_id()
        outcome = self._broker.peek(
            client.account, request.queue, waiter_id, request.start, request.max_messages, now_ms, request.states
        )
        if outcome.reply is WAITING:
            # Counted before there are bodies, else any number of pipelined peeks would pass the bound above.
            client.unread_receives += 1
            self._waiting_requests.add(waiter_id, client, request)
            self._settle(outcome, now_ms)
        else:
            self._answer_peeked(client, request, outcome.reply, self._settle(outcome, now_ms))
