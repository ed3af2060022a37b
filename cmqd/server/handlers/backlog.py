"""Peeks at the messages of a subscription, retries and drops of one message, and the deliveries of a message.

The requests wait while the log is read. A client can have as many waiting requests as unread replies with bodies: a
look-up reads the log some twenty times, and pipelined look-ups without a limit would fill the line of the storage.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from cmqd.core.broker import Broker
from cmqd.core.outcome import Outcome
from cmqd.server.access.audit_entries import AuditEntries
from cmqd.server.access.shown_names import shown_to
from cmqd.server.clients.client import Client
from cmqd.server.handlers.messages import NOT_TO_GIVE_BACK
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Gate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.handler import answers_late, handles
from cmqd_protocol import messages as wire
from cmqd_types.deliveries import DeliveriesPeeked, MessageDeliveries

Request: TypeAlias = wire.PeekDeliveries | wire.RetryDelivery | wire.DropDelivery | wire.GetMessageDeliveries


@part
class Undelivered:
    """Handles the requests; see the module."""

    broker: Broker
    answering: Answering
    audit_entries: AuditEntries
    waiting_requests: WaitingRequests
    now_ms: Callable[[], int]
    max_unread_receives: int

    @handles(wire.PeekDeliveries, wire.RetryDelivery, wire.DropDelivery, wire.GetMessageDeliveries)
    def handle(self, client: Client, request: Request) -> None:
        """Answer a request, or park it while the client has too many unread replies."""
        if client.unread_receives >= self.max_unread_receives or client.is_slow:
            client.park(request)
            return
        now_ms = self.now_ms()
        waiter_id = self.waiting_requests.new_id()
        outcome = self._call(client.account, request, waiter_id, now_ms)
        outcome = self.audit_entries.with_entry(client, request, outcome, now_ms, waiter_id)
        self.answering.answer_or_wait(client, request, waiter_id, outcome, now_ms)

    def _call(self, account: str, request: Request, waiter_id: int, now_ms: int) -> Outcome[Any]:
        broker = self.broker
        match request:
            case wire.PeekDeliveries(_, topic, subscription, max_messages, start, bodies):
                return broker.peek_deliveries(
                    account, topic, subscription, waiter_id, start, max_messages, bodies, now_ms
                )
            case wire.RetryDelivery(_, topic, subscription, message_id):
                return broker.retry_delivery(account, topic, subscription, waiter_id, message_id)
            case wire.DropDelivery(_, topic, subscription, message_id):
                return broker.drop_delivery(account, topic, subscription, waiter_id, message_id)
            case wire.GetMessageDeliveries(_, topic, message_id):
                return broker.message_deliveries(account, topic, waiter_id, message_id)


@part
class UndeliveredReplies:
    """Answers the requests, at once or after a wait."""

    gate: Gate

    @answers_late(wire.PeekDeliveries)
    def _peeked(self, client: Client, request: wire.PeekDeliveries, peeked: DeliveriesPeeked, lsn: int) -> None:
        reply = shown_to(
            client,
            wire.DeliveriesPeeked(request.request_id, messages=peeked.messages, next_start=peeked.next_start),
        )
        if peeked.messages and request.bodies:
            client.unread_receives += 1
            self.gate.hold(lsn, client, reply, NOT_TO_GIVE_BACK)
        else:
            self.gate.hold(lsn, client, reply)

    @answers_late(wire.RetryDelivery, wire.DropDelivery)
    def _done(self, client: Client, request: wire.RetryDelivery | wire.DropDelivery, count: int, lsn: int) -> None:
        self.gate.hold(lsn, client, wire.DeliveriesDone(request.request_id, count))

    @answers_late(wire.GetMessageDeliveries)
    def _reported(
        self, client: Client, request: wire.GetMessageDeliveries, report: MessageDeliveries, lsn: int
    ) -> None:
        reply = wire.MessageDeliveries(
            request.request_id,
            message_id=report.message_id,
            publish_ms=report.publish_ms,
            size=report.size,
            deliveries=report.deliveries,
            labels=report.labels,
        )
        self.gate.hold(lsn, client, shown_to(client, reply))
