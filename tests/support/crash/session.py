"""The requests of the crash tests: a method per request, which records the result."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

from cmqd_protocol.messages import (
    AnyReply,
    CancelRedrive,
    ChangeVisibility,
    ClearQueue,
    CreateQueue,
    DeadLetterMessages,
    DeleteMessages,
    DeleteQueue,
    EndTransactions,
    GetQueueAttributes,
    HalfMessages,
    HandlesDone,
    ListHalfMessages,
    MessagesReceived,
    MessagesSent,
    QueueInfo,
    ReceiveMessages,
    RegisterChecker,
    ReleaseMessages,
    RewindQueue,
    Rewound,
    SendHalfMessages,
    SendMessages,
    SetQueueAttributes,
    StartRedrive,
    TransactionsEnded,
)
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage
from support.crash.link import now
from support.crash.promises import history as recorded
from support.crash.promises.history import (
    Decision,
    Delivery,
    HandleOperation,
    History,
    Operation,
    Origin,
    QueueOperation,
)
from support.crash.session_topics import TopicSession, wire_headers

OperationT = TypeVar("OperationT", bound=Operation)
HandleOperationT = TypeVar("HandleOperationT", bound=HandleOperation)
QueueOperationT = TypeVar("QueueOperationT", bound=QueueOperation)


class Session(TopicSession):
    """An open, authenticated connection; any number of requests may be under way at once."""

    async def send(
        self,
        queue: str,
        bodies: Sequence[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        session: int = 0,
        sequence: int = 0,
        dedup_ids: Sequence[str] = (),
    ) -> recorded.Send:
        asked = recorded.Send(
            **now(queue),
            bodies=tuple(map(self._history.shared, bodies)),
            headers=(headers,) * len(bodies) if headers else (),
            delay_ms=delay_ms,
            session=session,
            sequence=sequence,
            dedup_ids=tuple(dedup_ids),
        )
        return await self._store(SendMessages, asked, delay_ms)

    async def send_half(
        self,
        queue: str,
        bodies: Sequence[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        first_check_ms: int = 0,
        session: int = 0,
        sequence: int = 0,
        dedup_ids: Sequence[str] = (),
    ) -> recorded.Send:
        asked = recorded.Send(
            **now(queue),
            bodies=tuple(map(self._history.shared, bodies)),
            headers=(headers,) * len(bodies) if headers else (),
            half=True,
            first_check_ms=first_check_ms,
            session=session,
            sequence=sequence,
            dedup_ids=tuple(dedup_ids),
        )
        return await self._store(SendHalfMessages, asked, first_check_ms)

    async def _store(
        self, kind: type[SendMessages] | type[SendHalfMessages], asked: recorded.Send, after_ms: int
    ) -> recorded.Send:
        request = kind(
            self.next_request_id(),
            asked.queue,
            list(asked.bodies),
            wire_headers(asked.headers),
            after_ms or None,
            asked.session,
            asked.sequence,
            list(asked.dedup_ids) or None,
        )
        return await self.ask(request, asked, _with_ids)

    async def end_transactions(self, queue: str, decisions: Mapping[int, Decision]) -> recorded.EndTransactions:
        request = EndTransactions(self.next_request_id(), queue, list(decisions), list(map(int, decisions.values())))

        def answered(asked: recorded.EndTransactions, reply: AnyReply) -> recorded.EndTransactions:
            assert isinstance(reply, TransactionsEnded)
            failed = {failure.message_id: ErrorCode(failure.code).wire_name for failure in reply.failures}
            return replace(asked, failed=failed)

        return await self.ask(request, recorded.EndTransactions(**now(queue), decisions=dict(decisions)), answered)

    async def list_half(self, queue: str, start: int) -> recorded.ListHalf:
        request = ListHalfMessages(self.next_request_id(), queue, start)

        def answered(asked: recorded.ListHalf, reply: AnyReply) -> recorded.ListHalf:
            assert isinstance(reply, HalfMessages)
            numbers = tuple(message.message_id for message in reply.messages)
            return replace(asked, message_ids=numbers, next_start=reply.next_start)

        return await self.ask(request, recorded.ListHalf(**now(queue), start=start), answered)

    async def register_checker(self, queue: str) -> recorded.RegisterChecker:
        request = RegisterChecker(self.next_request_id(), queue)
        return await self.ask(request, recorded.RegisterChecker(**now(queue)), _as_asked)

    async def receive(
        self, queue: str, *, max_messages: int, wait_ms: int, visibility_ms: int, acknowledge: Sequence[int] = ()
    ) -> recorded.Receive:
        handles = list(acknowledge) or None
        request = ReceiveMessages(self.next_request_id(), queue, max_messages, wait_ms, visibility_ms, handles)
        asked = recorded.Receive(**now(queue), max_messages=max_messages, visibility_ms=visibility_ms)
        deletes = recorded.Acknowledge(**now(queue), handles=tuple(handles or ()))

        def answered(asked: recorded.Receive, reply: AnyReply) -> recorded.Receive:
            nonlocal deletes
            assert isinstance(reply, MessagesReceived)
            assert (reply.failures is None) == (handles is None)
            failed = frozenset(failure.receipt_handle for failure in reply.failures or ())
            deletes = replace(deletes, failed=failed)
            deliveries = (_delivery(message, self._history) for message in reply.messages)
            return replace(asked, deliveries=tuple(deliveries))

        outcome = recorded.Outcome.UNKNOWN
        try:
            with nullcontext() if handles is None else self._history.under_way(deletes):
                received = await self.ask(request, asked, answered)
            outcome = received.outcome
            return received
        finally:
            if handles is not None:
                self.record(deletes, outcome)

    async def delete(self, queue: str, handles: Sequence[int]) -> recorded.Delete:
        request = DeleteMessages(self.next_request_id(), queue, list(handles))
        return await self.ask(request, recorded.Delete(**now(queue), handles=tuple(handles)), _with_failures)

    async def release(self, queue: str, handles: Sequence[int], *, counted: bool) -> recorded.Release:
        request = ReleaseMessages(self.next_request_id(), queue, list(handles), counted)
        asked = recorded.Release(**now(queue), handles=tuple(handles), counted=counted)
        return await self.ask(request, asked, _with_failures)

    async def dead_letter(self, queue: str, handles: Sequence[int], reason: str) -> recorded.DeadLetter:
        request = DeadLetterMessages(self.next_request_id(), queue, list(handles), [reason])
        asked = recorded.DeadLetter(**now(queue), handles=tuple(handles), reason=reason)
        return await self.ask(request, asked, _with_failures)

    async def change_visibility(
        self, queue: str, handles: Sequence[int], visibility_ms: int
    ) -> recorded.ChangeVisibility:
        request = ChangeVisibility(self.next_request_id(), queue, list(handles), visibility_ms)
        asked = recorded.ChangeVisibility(**now(queue), handles=tuple(handles), visibility_ms=visibility_ms)

        def answered(asked: recorded.ChangeVisibility, reply: AnyReply) -> recorded.ChangeVisibility:
            assert isinstance(reply, HandlesDone)
            return replace(_with_failures(asked, reply), next_visible_ms=reply.next_visible_ms)

        return await self.ask(request, asked, answered)

    async def clear(self, queue: str) -> recorded.Clear:
        request = ClearQueue(self.next_request_id(), queue)
        return await self.ask(request, recorded.Clear(**now(queue)), _as_asked)

    async def rewind(self, queue: str, time_ms: int, *, strict: bool = False) -> recorded.Rewind:
        request = RewindQueue(self.next_request_id(), queue, time_ms, strict)

        def answered(asked: recorded.Rewind, reply: AnyReply) -> recorded.Rewind:
            assert isinstance(reply, Rewound)
            return replace(asked, time_ms=reply.time_ms, messages=reply.messages)

        return await self.ask(request, recorded.Rewind(**now(queue), time_ms=time_ms), answered)

    async def start_redrive(
        self, queue: str, *, target: str = "", max_per_second: int | None = None
    ) -> recorded.StartRedrive:
        request = StartRedrive(self.next_request_id(), queue, target or None, max_per_second)
        return await self.ask(request, recorded.StartRedrive(**now(queue), target=target), _as_asked)

    async def cancel_redrive(self, queue: str) -> recorded.CancelRedrive:
        request = CancelRedrive(self.next_request_id(), queue)
        return await self.ask(request, recorded.CancelRedrive(**now(queue)), _as_asked)

    async def create_queue(self, queue: str, attributes: Mapping[str, int | str | bool]) -> recorded.CreateQueue:
        request = CreateQueue(self.next_request_id(), queue, dict(attributes))
        return await self.ask(request, recorded.CreateQueue(**now(queue), attributes=attributes), _with_state)

    async def set_attributes(self, queue: str, attributes: Mapping[str, int | str | bool]) -> recorded.SetAttributes:
        request = SetQueueAttributes(self.next_request_id(), queue, dict(attributes))
        # The request stays in the record: later replies must show its effect, with any reply.
        return await self.ask(request, recorded.SetAttributes(**now(queue), attributes=attributes), _as_asked)

    async def get_attributes(self, queue: str) -> recorded.GetAttributes:
        def answered(asked: recorded.GetAttributes, reply: AnyReply) -> recorded.GetAttributes:
            assert isinstance(reply, QueueInfo)
            return replace(_with_state(asked, reply), counts=reply.counts)

        request = GetQueueAttributes(self.next_request_id(), queue)
        return await self.ask(request, recorded.GetAttributes(**now(queue)), answered)

    async def delete_queue(self, queue: str) -> recorded.DeleteQueue:
        request = DeleteQueue(self.next_request_id(), queue)
        return await self.ask(request, recorded.DeleteQueue(**now(queue)), _as_asked)


def _as_asked(asked: OperationT, _reply: AnyReply) -> OperationT:
    return asked


def _with_ids(asked: recorded.Send, reply: AnyReply) -> recorded.Send:
    assert isinstance(reply, MessagesSent)
    return replace(asked, message_ids=tuple(reply.message_ids))


def _with_failures(asked: HandleOperationT, reply: AnyReply) -> HandleOperationT:
    assert isinstance(reply, HandlesDone)
    return replace(asked, failed=frozenset(failure.receipt_handle for failure in reply.failures))


def _with_state(asked: QueueOperationT, reply: AnyReply) -> QueueOperationT:
    assert isinstance(reply, QueueInfo)
    return replace(asked, attributes=reply.attributes, queue_id=reply.queue_id)


def _delivery(message: ReceivedMessage, history: History) -> Delivery:
    came = message.origin
    origin = None
    if came is not None:
        origin = Origin(
            queue=came.queue,
            message_id=came.message_id,
            enqueue_ms=came.enqueue_ms,
            receive_count=came.receive_count,
            reason=came.reason,
            rejection=came.rejection,
        )
    return Delivery(
        message_id=message.message_id,
        handle=message.receipt_handle,
        body=history.shared(message.body),
        headers=message.headers,
        enqueue_ms=message.enqueue_ms,
        first_receive_ms=message.first_receive_ms,
        next_visible_ms=message.next_visible_ms,
        receive_count=message.receive_count,
        origin=origin,
    )
