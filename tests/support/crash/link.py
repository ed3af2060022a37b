"""A connection to the broker under test that retries no request and records every request.

The history has the outcome of every request, also an outcome that is never known. The loss of a connection raises
``SessionLostError`` in all callers that wait for an answer, after the request was recorded as UNKNOWN.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self, TypedDict, TypeVar
from urllib.parse import urlsplit

from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded, Opened
from cmqd_protocol.messages import AnyReply, Error, KeyChanged, Request, TransactionCheck
from cmqd_protocol.protocol_errors import ErrorCode
from support.crash.promises.history import Check, History, Operation, Outcome

_UNKNOWN_ERRORS = frozenset({ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERNAL_ERROR})
"""After these the request may have happened."""

OperationT = TypeVar("OperationT", bound=Operation)


class SessionLostError(Exception):
    """The connection is gone; requests without an answer are recorded as UNKNOWN."""


class Link(asyncio.Protocol):
    """An open, authenticated connection; any number of requests may be under way at once."""

    def __init__(self, url: str, history: History) -> None:
        parts = urlsplit(url)
        self._url = url
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
        self.on_check: Callable[[Check], None] = lambda check: None
        """Called for every check that the broker pushes, after the check was recorded."""
        self.epoch = 0
        """Epoch of the broker's lead, once the connection is open; 0 of a broker that is alone."""

    @classmethod
    async def connect(cls, url: str, history: History) -> Self:
        """Connect and authenticate.

        Raises:
            SessionLostError: the broker is not there, or went away meanwhile.
        """
        parts = urlsplit(url)
        link = cls(url, history)
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, parts.hostname or "", parts.port or 0)
        except OSError as error:
            raise SessionLostError(str(error)) from error
        await link._opened
        return link

    async def another(self) -> Self:
        """Open a further connection to the same broker. Raises SessionLostError."""
        return await self.connect(self._url, self._history)

    @property
    def is_lost(self) -> bool:
        return bool(self._lost)

    def close(self) -> None:
        """Close without a goodbye; not while a request is under way, because its outcome would not be recorded."""
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
                self.epoch = event.facts.epoch
                self._opened.set_result(None)
            elif isinstance(event, ConnectionEnded):
                self._lose(event.text)
            elif isinstance(event, TransactionCheck):
                self._checked(event)
            elif not isinstance(event, KeyChanged):
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
            self._opened.exception()  # read the exception, in case no task waits for the future

    def _checked(self, push: TransactionCheck) -> None:
        check = Check(
            **now(push.queue),
            message_id=push.message_id,
            body=self._history.shared(push.body),
            headers=push.headers,
            enqueue_ms=push.enqueue_ms,
            age_ms=push.age_ms,
            attempt=push.attempt,
        )
        self._history.operations.append(check)
        self.on_check(check)

    # ------------------------------------------------------------ requests

    def next_request_id(self) -> int:
        return self._connection.next_request_id()

    async def ask(
        self, request: Request, asked: OperationT, answered: Callable[[OperationT, AnyReply], OperationT]
    ) -> OperationT:
        """Send a request and record it with its answer.

        Raises:
            SessionLostError: there will be no answer.
        """
        if self._lost:
            raise SessionLostError(self._lost)  # nothing was sent: nothing to record
        waiting: asyncio.Future[AnyReply] = asyncio.get_running_loop().create_future()
        self._connection.send(request)
        self._waiting[request.request_id] = waiting
        self._flush()
        try:
            with self._history.under_way(asked):
                reply = await waiting
        except BaseException:
            self.record(asked, Outcome.UNKNOWN)
            raise
        if not isinstance(reply, Error):
            return self.record(answered(asked, reply), Outcome.DONE)
        if reply.code in _UNKNOWN_ERRORS:
            return self.record(asked, Outcome.UNKNOWN, reply.name)
        return self.record(asked, Outcome.REFUSED, reply.name)

    def record(self, operation: OperationT, outcome: Outcome, error: str = "") -> OperationT:
        """Put an operation into the history, answered now."""
        operation = replace(operation, answered_ns=time.monotonic_ns(), outcome=outcome, error=error)
        self._history.operations.append(operation)
        return operation


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Now(TypedDict):
    queue: str
    called_ns: int
    answered_ns: int


def now(queue: str) -> _Now:
    """The fields of every operation; the time of its answer is set when the answer arrives."""
    called_ns = time.monotonic_ns()
    return {"queue": queue, "called_ns": called_ns, "answered_ns": called_ns}
