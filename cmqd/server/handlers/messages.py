"""Sends, receives, deletes, moves to dead-letter queues, and peeks."""

from collections.abc import Callable, Sequence
from typing import Final

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import DomainError, ReceiptHandleInvalid
from cmqd.core.outcome import WAITING, DeadLettersDone, HandlesDone, Outcome, ReceivedAfterDeletes, ReceiveReply
from cmqd.log.values import ROW_BYTES
from cmqd.server.access.shown_names import refusal_shown_to, text_shown_to
from cmqd.server.admission.fairness import TurnTime
from cmqd.server.admission.request_admission import Admission
from cmqd.server.clients.client import Client, actor_of
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Gate, Held
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.collecting import CollectedOperation, Collector, Group, stored_bytes
from cmqd.server.requests.handler import answers_late, handles
from cmqd.server.requests.operations import handles_done, received_after_deletes
from cmqd.server.requests.refusals import ERROR_CODES
from cmqd_protocol import messages as wire
from cmqd_types.messages import MessagesPeeked, ReceivedMessage

LARGE_RECEIVE: Final = 32
"""Messages of a receive that takes time out of proportion to its 20 bytes: 256 messages take a millisecond."""
NOT_TO_GIVE_BACK: Final = ""
"""In the place of a queue's name, for a reply with bodies that no receive took."""


@part
class Sends:
    """Sends, decided together; see ``collecting``."""

    broker: Broker
    answering: Answering
    admission: Admission
    collector: Collector
    counters: Counters

    def __post_init__(self) -> None:
        # A full row of the log. A larger row would be read whole for each of its messages.
        self._operation = CollectedOperation(0, "send", self.decide, self.answer, ROW_BYTES)

    @handles(wire.SendMessages)
    def handle(self, client: Client, request: wire.SendMessages) -> None:
        """Collect a send."""
        admission = self.admission
        if admission.collected_bytes >= admission.room_bytes and admission.refuses_bodies(client, request.request_id):
            return
        lone_sends = self.collector.lone_sends
        if not (lone_sends.queue or admission.is_restricted):
            lone_sends.account, lone_sends.queue = client.account, request.queue
        bodies = request.bodies
        count = len(bodies)
        # The usual send has a body and no headers, and needs no call for its size.
        size = len(bodies[0]) if count == 1 and request.headers is None else stored_bytes(request)
        self.collector.collect(self._operation, client, request, request.queue, request, count, size)

    def take_run(self, client: Client, run: Sequence[wire.SendMessages]) -> int:
        """Collect the first sends of a run together; see ``Dispatcher``.

        Only plain sends: with a single body, without headers, of the client itself, all to the same queue. Other sends
        are examined singly.
        """
        queue = run[0].queue
        if [
            True
            for asked in run
            if asked.queue != queue
            or asked.headers is not None
            or len(asked.bodies) != 1
            or asked.on_behalf_of is not None
        ]:
            return 0
        return self.take_plain([client] * len(run), run)

    def take_plain(self, clients: Sequence[Client], sends: Sequence[wire.SendMessages]) -> int:
        """Collect the first of plain sends to a queue together, each of its client; return their number."""
        sizes = [len(asked.bodies[0]) for asked in sends]
        if not self.admission.has_room(sum(sizes)):
            return 0
        return self.collector.collect_run(self._operation, clients, sends[0].queue, sends, sizes)

    def decide(self, group: Group, now_ms: int) -> Outcome[list[Sequence[int] | DomainError]]:
        """Have the core store the messages."""
        _, account, queue = group.key
        return self.broker.send_all(account, queue, group.requests, now_ms, group.actors)

    def answer(self, group: Group, results: Sequence[Sequence[int] | DomainError], lsn: int, held: list[Held]) -> None:
        """Answer the sends of a group with their message ids."""
        sent = 0
        for (client, request_id), result in zip(group.askers, results, strict=True):
            if isinstance(result, DomainError):
                self.answering.refuse(client, request_id, result, lsn)
            else:
                sent += len(result)
                held.append((lsn, client, wire.MessagesSent(request_id, list(result)), None))
        self.counters.sent += sent


@part
class Deletes:
    """Deletes, decided together; see ``collecting``."""

    broker: Broker
    answering: Answering
    collector: Collector
    counters: Counters

    def __post_init__(self) -> None:
        self._operation = CollectedOperation(2, "delete", self.decide, self.answer)

    @handles(wire.DeleteMessages)
    def handle(self, client: Client, request: wire.DeleteMessages) -> None:
        """Collect a delete."""
        handles = request.receipt_handles
        self.collector.collect(self._operation, client, request, request.queue, handles, len(handles))

    def decide(self, group: Group, now_ms: int) -> Outcome[list[HandlesDone | DomainError]]:
        """Have the core delete the messages."""
        _, account, queue = group.key
        return self.broker.delete_all(account, queue, group.requests, now_ms, group.actors)

    def answer(self, group: Group, results: Sequence[HandlesDone | DomainError], lsn: int, held: list[Held]) -> None:
        """Answer the deletes of a group."""
        for (client, request_id), result in zip(group.askers, results, strict=True):
            if isinstance(result, DomainError):
                self.answering.refuse(client, request_id, result, lsn)
            else:
                self.counters.deleted += result.done
                held.append((lsn, client, handles_done(request_id, result), None))


@part
class ReplyWithBodies:
    """Answers receives and peeks, at once or after a wait."""

    gate: Gate
    counters: Counters

    @answers_late(wire.ReceiveMessages)
    def received(
        self,
        client: Client,
        request: wire.ReceiveMessages,
        result: list[ReceivedMessage] | ReceivedAfterDeletes,
        lsn: int,
    ) -> None:
        """Answer a receive. A reply with messages names the queue, to which they return if the client has
        disconnected.
        """
        if isinstance(result, ReceivedAfterDeletes):
            messages, reply = self._after_deletes(client, request.request_id, result)
        else:
            messages, reply = result, wire.MessagesReceived(request.request_id, result)
        if messages:
            client.unread_receives += 1
            self.counters.received += len(messages)
            self.gate.hold(lsn, client, reply, request.queue)
        else:
            self.gate.hold(lsn, client, reply)

    def _after_deletes(
        self, client: Client, request_id: int, result: ReceivedAfterDeletes
    ) -> tuple[list[ReceivedMessage], wire.MessagesReceived]:
        """Return the messages and the reply; a refusal of the receive stands in the reply, beside its deletes."""
        refusal = result.reply
        if isinstance(refusal, list):
            return refusal, received_after_deletes(request_id, result.deletes, refusal)
        assert isinstance(refusal, DomainError), "a receive that waits has no answer yet"
        self.counters.refusals += 1
        error = refusal_shown_to(client, request_id, refusal)
        # The connection counts replies that are errors, and not errors inside other replies.
        self.counters.count_error(error.name)
        return [], received_after_deletes(request_id, result.deletes, [], error)

    @answers_late(wire.PeekMessages)
    def peeked(self, client: Client, request: wire.PeekMessages, peeked: MessagesPeeked, lsn: int) -> None:
        """Answer a peek."""
        reply = wire.MessagesPeeked(request.request_id, messages=peeked.messages, next_start=peeked.next_start)
        if peeked.messages:
            client.unread_receives += 1
            self.gate.hold(lsn, client, reply, NOT_TO_GIVE_BACK)
        else:
            self.gate.hold(lsn, client, reply)


@part
class Receives:
    """Receives, decided together; see ``collecting``."""

    broker: Broker
    answering: Answering
    collector: Collector
    waiting_requests: WaitingRequests
    reply: ReplyWithBodies
    counters: Counters
    max_unread_receives: int
    max_waiting_per_account: int
    turn_time: TurnTime

    def __post_init__(self) -> None:
        self._operation = CollectedOperation(3, "receive", self.decide, self.answer, counts_unread=True)

    @handles(wire.ReceiveMessages)
    def handle(self, client: Client, request: wire.ReceiveMessages) -> None:
        """Collect a receive, or park it while the client has too many unread replies.

        A parked receive has not begun, and neither have its deletes: the error ``cancelled`` says that nothing changed.
        """
        if client.unread_receives >= self.max_unread_receives:
            # A collected receive may wait once it is decided, and does not count then.
            self.collector.decide_of(client)
        if client.unread_receives >= self.max_unread_receives or client.is_slow:
            client.park(request)
            return
        count = request.max_messages
        if request.acknowledge is not None:
            count += len(request.acknowledge)
        if count >= LARGE_RECEIVE:
            self.turn_time.count()
            self.collector.collect(self._operation, client, request, request.queue, request, count)
            self.turn_time.look()
        else:
            self.collector.collect(self._operation, client, request, request.queue, request, count)

    def decide(self, group: Group, now_ms: int) -> Outcome[list[ReceiveReply]]:
        """Have the core delete messages and hand out messages, or let receives wait."""
        requests: list[wire.ReceiveMessages] = group.requests
        _, account, queue = group.key
        waiting_requests = self.waiting_requests
        waiter_ids = waiting_requests.new_ids(len(requests))
        outcome = self.broker.receive_all(
            account,
            queue,
            requests,
            waiter_ids,
            now_ms,
            waiting=waiting_requests.receives.get(account, 0),
            max_waiting=self.max_waiting_per_account,
            actors=group.actors,
        )
        results = outcome.reply
        has_deletes = ReceivedAfterDeletes in map(type, results)
        if has_deletes or WAITING in results:
            # In the table before the outcome is carried out: an answer to a waiter without an entry counts as a bug.
            for (client, _), request, waiter_id, result in zip(
                group.askers, requests, waiter_ids, results, strict=True
            ):
                if isinstance(result, ReceivedAfterDeletes):
                    self.counters.deleted += result.deletes.done
                    if result.reply is WAITING:
                        waiting_requests.add_after_deletes(waiter_id, client, request, result.deletes)
                elif result is WAITING:
                    waiting_requests.add(waiter_id, client, request)
        return outcome

    def answer(self, group: Group, results: Sequence[ReceiveReply], lsn: int, held: list[Held]) -> None:
        """Answer the receives of a group that do not wait."""
        received = 0
        for (client, request_id), request, result in zip(group.askers, group.requests, results, strict=True):
            if isinstance(result, list):
                # As in ``ReplyWithBodies.received``, which answers receives one by one.
                queue = None
                if result:
                    client.unread_receives += 1
                    received += len(result)
                    queue = request.queue
                held.append((lsn, client, wire.MessagesReceived(request_id, result), queue))
            elif isinstance(result, ReceivedAfterDeletes):
                if result.reply is not WAITING:
                    self.reply.received(client, request, result, lsn)
            elif isinstance(result, DomainError):
                self.answering.refuse(client, request_id, result, lsn)
        self.counters.received += received


@part
class Peeks:
    """Peeks, which wait while bodies are read from the log."""

    broker: Broker
    answering: Answering
    waiting_requests: WaitingRequests
    now_ms: Callable[[], int]
    max_unread_receives: int

    @handles(wire.PeekMessages)
    def handle(self, client: Client, request: wire.PeekMessages) -> None:
        """Answer a peek, or park it while the client has too many unread replies."""
        if client.unread_receives >= self.max_unread_receives or client.is_slow:
            client.park(request)
            return
        now_ms = self.now_ms()
        waiter_id = self.waiting_requests.new_id()
        outcome = self.broker.peek(
            account=client.account,
            name=request.queue,
            waiter_id=waiter_id,
            start=request.start,
            max_messages=request.max_messages,
            now_ms=now_ms,
            states=request.states,
        )
        self.answering.answer_or_wait(client, request, waiter_id, outcome, now_ms)


@part
class DeadLetters:
    """Moves of received messages to the dead-letter queue of their queue."""

    broker: Broker
    answering: Answering
    admission: Admission
    waiting_requests: WaitingRequests
    now_ms: Callable[[], int]

    @handles(wire.DeadLetterMessages)
    def handle(self, client: Client, request: wire.DeadLetterMessages) -> None:
        """Move messages; the answer usually comes later, when their bodies are read."""
        # A move writes the body again.
        if self.admission.refuses_bodies(client, request.request_id):
            return
        now_ms = self.now_ms()
        waiter_id = self.waiting_requests.new_id()
        outcome = self.broker.dead_letter(
            account=client.account,
            name=request.queue,
            waiter_id=waiter_id,
            handles=request.receipt_handles,
            reasons=request.reasons,
            now_ms=now_ms,
            actor=actor_of(client, request),
        )
        self.answering.answer_or_wait(client, request, waiter_id, outcome, now_ms)


@part
class DeadLetterReplies:
    """Answers moves to the dead-letter queue, at once or after a wait."""

    gate: Gate
    counters: Counters

    @answers_late(wire.DeadLetterMessages)
    def dead_lettered(self, client: Client, request: wire.DeadLetterMessages, done: DeadLettersDone, lsn: int) -> None:
        """Answer with the receipt handles that were refused."""
        self.counters.dead_lettered += done.done
        failures = [
            wire.HandleFailure(
                receipt_handle,
                int(ERROR_CODES[type(refusal)]),
                text_shown_to(client, refusal),
                refusal.gone if isinstance(refusal, ReceiptHandleInvalid) else 0,
            )
            for receipt_handle, refusal in done.failures
        ]
        self.gate.hold(lsn, client, wire.HandlesDone(request.request_id, failures))
