"""One connection to the broker under test, which retries nothing and records everything.

Each method is one request; what became of it goes into the history, also when it is never known. A connection that
is lost raises ``SessionLostError`` in everybody who waits for an answer, after the request was recorded as UNKNOWN.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, TypeVar
from urllib.parse import urlsplit

from cmqd_protocol.connection import ClientConnection
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.events import ConnectionEnded, Opened
from cmqd_protocol.messages import (
    AnyReply,
    AnyRequest,
    ChangeVisibility,
    ClearQueue,
    CreateQueue,
    DeleteMessages,
    DeleteQueue,
    Error,
    GetQueueAttributes,
    HandlesDone,
    Headers,
    MessagesReceived,
    MessagesSent,
    QueueInfo,
    ReceiveMessages,
    ReleaseMessages,
    SendMessages,
    SetQueueAttributes,
)
from support.crash import history as recorded
from support.crash.history import Delivery, HandleOperation, History, Operation, Outcome, QueueOperation

ANSWER_SECONDS = 30.0
"""Longer than any wait that a request of the tests names; a silence beyond it fails the test."""

_UNKNOWN_ERRORS = frozenset({ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERNAL_ERROR})
"""After these the request may have happened."""

OperationT = TypeVar("OperationT", bound=Operation)
HandleOperationT = TypeVar("HandleOperationT", bound=HandleOperation)
QueueOperationT = TypeVar("QueueOperationT", bound=QueueOperation)


class SessionLostError(Exception):
    """The connection is gone; what was not answered is recorded as UNKNOWN."""


class Session(asyncio.Protocol):
    """An open, authenticated connection; any number of requests may be under way at once."""

    def __init__(self, url: str, history: History) -> None:
        parts = urlsplit(url)
        self._connection = ClientConnection(
            secret_id=parts.username or "",
            secret_key=parts.password or "",
            nonce=os.urandom(32),
            now_ms=_now_ms(),
            product="crash test",
        )
        self._history = history
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[AnyReply]] = {}
        self._lost = ""

    @classmethod
    async def connect(cls, url: str, history: History) -> "Session":
        """Connect and authenticate.

        Raises:
            SessionLostError: the broker is not there, or went away meanwhile.
        """
        parts = urlsplit(url)
        session = cls(url, history)
        try:
            await asyncio.get_running_loop().create_connection(lambda: session, parts.hostname or "", parts.port or 0)
        except OSError as error:
            raise SessionLostError(str(error)) from error
        async with asyncio.timeout(ANSWER_SECONDS):
            await session._opened
        return session

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data, _now_ms())
        for event in self._connection.events():
            if isinstance(event, Opened):
                self._opened.set_result(None)
            elif isinstance(event, ConnectionEnded):
                self._lose(event.text)
            else:
                waiting = self._waiting.pop(event.request_id)
                if not waiting.done():
                    waiting.set_result(event)
        self._flush()
        if self._connection.is_ending:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.closed()
        self._lose(str(exc or "closed by the broker"))

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.writelines(self._connection.data_to_send(_now_ms()))

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        waiting = [self._opened, *self._waiting.values()]
        self._waiting.clear()
        for one in waiting:
            if not one.done():
                one.set_exception(SessionLostError(why))
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # taken note of, should nobody wait for it

    # ------------------------------------------------------------ requests

    async def send(
        self,
        queue: str,
        bodies: Sequence[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        session: int = 0,
        sequence: int = 0,
    ) -> recorded.Send:
        all_headers = (headers,) * len(bodies) if headers else ()
        wire_headers: list[Headers | None] | None = [dict(headers) for _ in bodies] if headers else None
        request = SendMessages(
            self._connection.next_request_id(),
            queue,
            list(bodies),
            wire_headers,
            delay_ms or None,
            session,
            sequence,
        )
        asked = recorded.Send(
            **_now(queue),
            bodies=tuple(bodies),
            headers=all_headers,
            delay_ms=delay_ms,
            session=session,
            sequence=sequence,
        )

        def answered(asked: recorded.Send, reply: AnyReply) -> recorded.Send:
            assert isinstance(reply, MessagesSent)
            return replace(asked, message_ids=tuple(reply.message_ids))

        return await self._ask(request, asked, answered)

    async def receive(self, queue: str, *, max_messages: int, wait_ms: int, visibility_ms: int) -> recorded.Receive:
        request = ReceiveMessages(self._connection.next_request_id(), queue, max_messages, wait_ms, visibility_ms)
        asked = recorded.Receive(**_now(queue), max_messages=max_messages, visibility_ms=visibility_ms)
        return await self._ask(request, asked, _with_deliveries)

    async def delete(self, queue: str, handles: Sequence[int]) -> recorded.Delete:
        request = DeleteMessages(self._connection.next_request_id(), queue, list(handles))
        return await self._ask(request, recorded.Delete(**_now(queue), handles=tuple(handles)), _with_failures)

    async def release(self, queue: str, handles: Sequence[int], *, counted: bool) -> recorded.Release:
        request = ReleaseMessages(self._connection.next_request_id(), queue, list(handles), counted)
        asked = recorded.Release(**_now(queue), handles=tuple(handles), counted=counted)
        return await self._ask(request, asked, _with_failures)

    async def change_visibility(
        self, queue: str, handles: Sequence[int], visibility_ms: int
    ) -> recorded.ChangeVisibility:
        request = ChangeVisibility(self._connection.next_request_id(), queue, list(handles), visibility_ms)
        asked = recorded.ChangeVisibility(**_now(queue), handles=tuple(handles), visibility_ms=visibility_ms)

        def answered(asked: recorded.ChangeVisibility, reply: AnyReply) -> recorded.ChangeVisibility:
            assert isinstance(reply, HandlesDone)
            return replace(_with_failures(asked, reply), next_visible_ms=reply.next_visible_ms)

        return await self._ask(request, asked, answered)

    async def clear(self, queue: str) -> recorded.Clear:
        request = ClearQueue(self._connection.next_request_id(), queue)
        return await self._ask(request, recorded.Clear(**_now(queue)), _as_asked)

    async def create_queue(self, queue: str, attributes: Mapping[str, int]) -> recorded.CreateQueue:
        request = CreateQueue(self._connection.next_request_id(), queue, dict(attributes))
        return await self._ask(request, recorded.CreateQueue(**_now(queue), attributes=attributes), _with_state)

    async def set_attributes(self, queue: str, attributes: Mapping[str, int]) -> recorded.SetAttributes:
        request = SetQueueAttributes(self._connection.next_request_id(), queue, dict(attributes))
        # What was asked for stays in the record: later replies must show it, whatever this one says.
        return await self._ask(request, recorded.SetAttributes(**_now(queue), attributes=attributes), _as_asked)

    async def get_attributes(self, queue: str) -> recorded.GetAttributes:
        def answered(asked: recorded.GetAttributes, reply: AnyReply) -> recorded.GetAttributes:
            assert isinstance(reply, QueueInfo)
            return replace(_with_state(asked, reply), counts=reply.counts)

        request = GetQueueAttributes(self._connection.next_request_id(), queue)
        return await self._ask(request, recorded.GetAttributes(**_now(queue)), answered)

    async def delete_queue(self, queue: str) -> recorded.DeleteQueue:
        request = DeleteQueue(self._connection.next_request_id(), queue)
        return await self._ask(request, recorded.DeleteQueue(**_now(queue)), _as_asked)

    async def _ask(
        self, request: AnyRequest, asked: OperationT, answered: Callable[[OperationT, AnyReply], OperationT]
    ) -> OperationT:
        if self._lost:
            raise SessionLostError(self._lost)  # nothing was sent: nothing to record
        waiting: asyncio.Future[AnyReply] = asyncio.get_running_loop().create_future()
        self._connection.send(request)
        self._waiting[request.request_id] = waiting
        self._flush()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await waiting
        except BaseException:
            self._record(asked, Outcome.UNKNOWN)
            raise
        if not isinstance(reply, Error):
            return self._record(answered(asked, reply), Outcome.DONE)
        if reply.code in _UNKNOWN_ERRORS:
            return self._record(asked, Outcome.UNKNOWN, reply.name)
        return self._record(asked, Outcome.REFUSED, reply.name)

    def _record(self, operation: OperationT, outcome: Outcome, error: str = "") -> OperationT:
        operation = replace(operation, answered_ns=time.monotonic_ns(), outcome=outcome, error=error)
        self._history.operations.append(operation)
        return operation


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Now(TypedDict):
    queue: str
    called_ns: int
    answered_ns: int


def _now(queue: str) -> _Now:
    """The fields that every operation has; the time of its answer is set when it is there."""
    called_ns = time.monotonic_ns()
    return {"queue": queue, "called_ns": called_ns, "answered_ns": called_ns}


def _as_asked(asked: OperationT, _reply: AnyReply) -> OperationT:
    return asked


def _with_failures(asked: HandleOperationT, reply: AnyReply) -> HandleOperationT:
    assert isinstance(reply, HandlesDone)
    return replace(asked, failed=frozenset(failure.receipt_handle for failure in reply.failures))


def _with_state(asked: QueueOperationT, reply: AnyReply) -> QueueOperationT:
    assert isinstance(reply, QueueInfo)
    return replace(asked, attributes=reply.attributes, queue_id=reply.queue_id)


def _with_deliveries(asked: recorded.Receive, reply: AnyReply) -> recorded.Receive:
    assert isinstance(reply, MessagesReceived)
    deliveries = tuple(
        Delivery(
            message_id=message.message_id,
            handle=message.receipt_handle,
            body=message.body,
            headers=message.headers,
            enqueue_ms=message.enqueue_ms,
            first_receive_ms=message.first_receive_ms,
            next_visible_ms=message.next_visible_ms,
            receive_count=message.receive_count,
        )
        for message in reply.messages
    )
    return replace(asked, deliveries=deliveries)
