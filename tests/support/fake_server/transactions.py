"""Half messages, their decisions and checks."""

from typing import Any

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import HalfMessage
from support.fake_server.messages import MessageRequests
from support.fake_server.peer import Peer
from support.fake_server.state import FakeQueue, Half, Stored, now_ms


class TransactionRequests(MessageRequests):
    """Transactional queues; nobody is asked unless a test says so."""

    def _not_transactional(self, request: Any) -> wire.AnyReply | None:
        if self.queues[request.queue].attributes["transactional"]:
            return None
        text = f"queue {request.queue!r} is not transactional"
        return wire.error(request.request_id, ErrorCode.NOT_TRANSACTIONAL, text)

    def _SendHalfMessages(self, peer: Peer, request: wire.SendHalfMessages) -> wire.AnyReply:
        found = self.queues[request.queue]
        refused = self._not_transactional(request)
        if refused is not None:
            return refused
        number = (request.session, request.sequence)
        if number not in self._answers or not request.sequence:
            headers = request.headers or [None] * len(request.bodies)
            dedup_ids = request.dedup_ids or [None] * len(request.bodies)
            ids: list[int] = []
            for body, entry, dedup_id in zip(request.bodies, headers, dedup_ids, strict=True):
                if dedup_id in found.dedup:
                    ids.append(found.dedup[dedup_id])
                    continue
                ids.append(self._number())
                stored = Stored(ids[-1], body, entry, now_ms())
                found.half[ids[-1]] = Half(stored, request.first_check_ms or found.attributes["first_check_ms"])
                if dedup_id is not None:
                    found.dedup[dedup_id] = ids[-1]
            self._answers[number] = ids
        return wire.MessagesSent(request.request_id, self._answers[number])

    def _EndTransactions(self, peer: Peer, request: wire.EndTransactions) -> wire.AnyReply:
        found = self.queues[request.queue]
        decisions = request.decisions * (len(request.message_ids) if len(request.decisions) == 1 else 1)
        failures: list[wire.TransactionFailure] = []
        for message_id, decision in zip(request.message_ids, decisions, strict=True):
            code = self._decide(found, message_id, decision)
            if code is not None:
                text = f"half message {message_id:016x}: {code.wire_name}"
                failures.append(wire.TransactionFailure(message_id, int(code), text))
        self._serve_waiting(found)
        return wire.TransactionsEnded(request.request_id, failures)

    def _decide(self, queue: FakeQueue, message_id: int, decision: int) -> ErrorCode | None:
        before = queue.decided.get(message_id)
        if before is not None:
            if decision in (before, wire.UNKNOWN):
                return None
            return ErrorCode.ALREADY_COMMITTED if before == wire.COMMIT else ErrorCode.ALREADY_ROLLED_BACK
        if message_id not in queue.half:
            return ErrorCode.TRANSACTION_NOT_FOUND
        if decision == wire.UNKNOWN:
            queue.half[message_id].last_answer = "unknown"
            return None
        half = queue.half.pop(message_id)
        queue.decided[message_id] = decision
        if decision == wire.COMMIT:
            half.stored.enqueue_ms = now_ms()
            queue.active.append(half.stored)
        return None

    def check(self, name: str, peer: Peer | None = None) -> None:
        """Ask a checker (the first one) about every half message of a queue."""
        found = self.queues[name]
        peer = peer or found.checkers[0]
        for half in found.half.values():
            half.checks += 1
            half.last_check_ms = now_ms()
            one = half.stored
            age_ms = now_ms() - one.enqueue_ms
            peer.wire.push(
                wire.TransactionCheck(name, one.message_id, one.body, one.headers, one.enqueue_ms, age_ms, half.checks)
            )
        peer.flush()

    def _ListHalfMessages(self, peer: Peer, request: wire.ListHalfMessages) -> wire.AnyReply:
        refused = self._not_transactional(request)
        if refused is not None:
            return refused
        everything = list(self.queues[request.queue].half.values())
        page = everything[request.start : request.start + request.limit]
        end = request.start + len(page)
        return wire.HalfMessages(
            request.request_id,
            messages=[
                HalfMessage(
                    one.stored.message_id,
                    one.stored.enqueue_ms,
                    one.checks,
                    one.last_check_ms,
                    one.last_answer,
                    one.stored.enqueue_ms + one.first_check_ms,
                )
                for one in page
            ],
            next_start=end if end < len(everything) else None,
        )

    def _RegisterChecker(self, peer: Peer, request: wire.RegisterChecker) -> wire.AnyReply:
        refused = self._not_transactional(request)
        if refused is None and peer not in self.queues[request.queue].checkers:
            self.queues[request.queue].checkers.append(peer)
        return refused or wire.Done(request.request_id)

    def _UnregisterChecker(self, peer: Peer, request: wire.UnregisterChecker) -> wire.AnyReply:
        if peer in self.queues[request.queue].checkers:
            self.queues[request.queue].checkers.remove(peer)
        return wire.Done(request.request_id)
