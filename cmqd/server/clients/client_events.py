"""Events of clients beside their requests: a cancel, a slow reader, a closed connection, messages that were not taken.

Also here: the ends of waits that the server itself decides, in a drain, after a failure and while the storage hangs.
"""

from collections.abc import Callable, Iterable, Sequence

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.server.access.authorization import Authorization
from cmqd.server.admission.request_admission import Admission
from cmqd.server.clients.absent_client import AbsentClient
from cmqd.server.clients.client import Client
from cmqd.server.clients.key_watchers import KeyWatchers
from cmqd.server.clients.transaction_checkers import CheckersChange, TransactionCheckers
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.collecting import Collector
from cmqd.server.requests.refusals import error_reply, stalled_error
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.operations import OPERATIONS, Wait
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage


@part
class ClientEvents:
    """Forwards events of clients to the parts that keep state of a client; see the module."""

    broker: Broker
    answering: Answering
    admission: Admission
    authorization: Authorization
    collector: Collector
    publishes: Publishes
    waiting_requests: WaitingRequests
    checkers: TransactionCheckers
    key_watchers: KeyWatchers
    counters: Counters
    now_ms: Callable[[], int]
    schedule: Callable[[], None]

    # ------------------------------------------------------------------ events of a connection

    def cancel(self, client: Client, request_id: int) -> bool:
        """Cancel a waiting request; return False if no request of this id waits."""
        # A collected receive is decided first: an undecided receive is neither waiting nor answered.
        self.collector.decide_of(client)
        waiter = self.waiting_requests.find(client, request_id)
        if waiter is None:
            return False
        waiter_id, request = waiter
        # A decision of transactions or a move to the dead-letter queue that has begun is carried out, and answered as
        # usual.
        is_carried_out = OPERATIONS[type(request)].wait is Wait.BODIES
        if not is_carried_out:
            self.answering.end_wait(waiter_id, error(request_id, ErrorCode.CANCELLED, "cancelled"))
        return True

    def take_waiting(self, client: Client) -> list[wire.Request]:
        """Cancel all waiting requests of a slow client without an answer, and return them, to be dispatched again.

        A receive with deletes is not returned: dispatched again, it would find its own handles invalid. Its wait ends
        early, with a reply without messages.
        """
        self.collector.decide_of(client)
        if self.waiting_requests.deletes:
            for waiter_id, _ in self.waiting_requests.of(client):
                if waiter_id in self.waiting_requests.deletes:
                    self.answering.end_wait(waiter_id)
        return self._drop_waiting(client)

    def _drop_waiting(self, client: Client) -> list[wire.Request]:
        dropped = self.waiting_requests.drop_all(client)
        for waiter_id, _ in dropped:
            self.broker.cancel_receive(waiter_id)
        return [request for _, request in dropped]

    def disconnected(self, client: Client) -> None:
        """Cancel the waiting requests of a client that disconnected, and give its open checks to other checkers."""
        self.collector.decide_of(client)
        self._drop_waiting(client)
        self.key_watchers.discard(client)
        if client.checked_queues is not None:
            self._tell_core(self.checkers.forget(client))

    def slowness_changed(self, client: Client) -> None:
        """Send no checks to a client that leaves replies unread, until the client has read its replies."""
        self._tell_core(self.checkers.slowness_changed(client))

    def permissions_changed(self, client: Client) -> None:
        """Refuse the waiting requests that the key of a client no longer allows, and send the client no checks of
        queues with half messages that the key may no longer decide.

        A receive in line would otherwise get messages that were sent after the change.
        """
        self.collector.decide_of(client)
        for waiter_id, request in self.waiting_requests.of(client):
            if OPERATIONS[type(request)].wait is Wait.BODIES:
                continue  # decided already, see ``cancel``
            refusal = self.authorization.refusal_of(client, request)
            if refusal is not None:
                self.answering.end_wait(waiter_id, error_reply(request.request_id, refusal))
        changes = [
            self.checkers.unregister(client, queue)
            for queue in sorted(client.checked_queues or ())
            if self.authorization.refusal_of(client, wire.RegisterChecker(1, queue)) is not None
        ]
        self._tell_core(change for change in changes if change is not None)
        if self.authorization.refusal_of(client, wire.WatchKeys(1)) is not None:
            self.key_watchers.discard(client)

    def give_back(self, account: str, queue: str, messages: Sequence[ReceivedMessage]) -> None:
        """Make messages active again that could not be handed over, as if they had not been received."""
        if self.answering.is_halted:
            return
        now_ms = self.now_ms()
        self.counters.given_back += len(messages)
        handles = [message.receipt_handle for message in messages]
        try:
            self.answering.carry_out(self.broker.release(account, queue, handles, False, now_ms), now_ms)
        except domain.QueueNotFound:
            return  # the messages were deleted with their queue
        except Exception as bug:
            self.answering.broke(bug, "release")
        self.schedule()

    # ------------------------------------------------------------------ events of the server

    def end_waits(self, code: ErrorCode, text: str) -> int:
        """Answer every waiting request with an error; return their number.

        Publishes in slices do not wait: they are carried out first, because a request in progress must not be
        answered as cancelled.
        """
        self.collector.decide_all()
        self.publishes.finish()
        ended = 0
        for waiter_id, _, request in self.waiting_requests.all():
            ended += self.answering.end_wait(waiter_id, error(request.request_id, code, text))
        return ended

    def give_up_waiting(
        self, up_to_waiter_id: int, text: str, absent: Callable[[str], AbsentClient], *, receives: bool
    ) -> int:
        """Answer requests that wait for bodies ``outcome_unknown``, up to this waiter; return their number.

        The core may still carry them out; a stand-in takes the late reply. With ``receives``, waiting receives are
        refused: without a lease they have changed no state. A receive with deletes has, so its outcome is unknown.
        """
        given_up = 0
        refusal = self.admission.stall_refusal
        for waiter_id, client, request in self.waiting_requests.all():
            if waiter_id > up_to_waiter_id:
                break
            if isinstance(client, AbsentClient):
                continue
            if isinstance(request, wire.ReceiveMessages):
                if receives and refusal is not None:
                    reply = stalled_error(request.request_id, *refusal)
                    if waiter_id in self.waiting_requests.deletes:
                        reply = error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, text)
                    given_up += self.answering.end_wait(waiter_id, reply)
                continue
            self.waiting_requests.replace(waiter_id, absent(client.account))
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, text))
            given_up += 1
        return given_up

    def _tell_core(self, changes: Iterable[CheckersChange]) -> None:
        if self.answering.is_halted:
            return
        now_ms = self.now_ms()
        try:
            for change in changes:
                self.answering.checkers_changed(change, now_ms)
        except Exception as bug:
            self.answering.broke(bug, "set_has_checkers")
        self.schedule()
