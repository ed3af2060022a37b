"""Deletion and rewind of a queue, and previews of rewinds."""

from collections.abc import Callable

from msgspec.structs import asdict

from cmqd.core.broker import Broker
from cmqd.server.access.audit_entries import AuditEntries
from cmqd.server.clients.client import Client
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Gate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.handler import answers_late, handles
from cmqd_protocol import messages as wire
from cmqd_types.queues import RewindPreview, Rewound


@part
class Queues:
    """Operations on queues."""

    broker: Broker
    answering: Answering
    audit_entries: AuditEntries
    waiting_requests: WaitingRequests
    checkers: TransactionCheckers
    now_ms: Callable[[], int]
    max_unread_receives: int

    @handles(wire.DeleteQueue)
    def delete(self, client: Client, request: wire.DeleteQueue) -> None:
        """Delete a queue and the registrations of its checkers."""
        now_ms = self.now_ms()
        outcome = self.broker.delete_queue(client.account, request.queue, now_ms)
        self.checkers.forget_queue(client.account, request.queue)
        outcome = self.audit_entries.with_entry(client, request, outcome, now_ms)
        self.answering.answer(client, outcome, now_ms, wire.Done(request.request_id))

    @handles(wire.RewindQueue)
    def rewind(self, client: Client, request: wire.RewindQueue) -> None:
        """Make deleted messages active again."""
        now_ms = self.now_ms()
        waiter_id = self.waiting_requests.new_id()
        # Counted here: the client's clock may differ from broker time, in which messages have their times.
        time_ms = request.time_ms if request.ago_ms is None else max(0, now_ms - request.ago_ms)
        outcome = self.broker.rewind(client.account, request.queue, waiter_id, time_ms, request.strict, now_ms)
        outcome = self.audit_entries.with_entry(client, request, outcome, now_ms, waiter_id)
        self.answering.answer_or_wait(client, request, waiter_id, outcome, now_ms)

    @handles(wire.PreviewRewind)
    def preview_rewind(self, client: Client, request: wire.PreviewRewind) -> None:
        """Count the messages that a rewind would bring back; park the request while the client has too many unread
        replies.

        A preview reads the log like a peek: pipelined previews without a limit would fill the line of the storage.
        """
        if client.unread_receives >= self.max_unread_receives or client.is_slow:
            client.park(request)
            return
        now_ms = self.now_ms()
        waiter_id = self.waiting_requests.new_id()
        time_ms = request.time_ms if request.ago_ms is None else max(0, now_ms - request.ago_ms)
        outcome = self.broker.preview_rewind(client.account, request.queue, waiter_id, time_ms, now_ms)
        self.answering.answer_or_wait(client, request, waiter_id, outcome, now_ms)


@part
class RewindReplies:
    """Answers rewinds and their previews, at once or after a wait."""

    gate: Gate

    @answers_late(wire.RewindQueue)
    def _rewound(self, client: Client, request: wire.RewindQueue, rewound: Rewound, lsn: int) -> None:
        self.gate.hold(lsn, client, wire.Rewound(request.request_id, **asdict(rewound)))

    @answers_late(wire.PreviewRewind)
    def _previewed(self, client: Client, request: wire.PreviewRewind, preview: RewindPreview, lsn: int) -> None:
        self.gate.hold(lsn, client, wire.RewindPreview(request.request_id, **asdict(preview)))
