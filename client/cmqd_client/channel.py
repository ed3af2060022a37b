"""The channel: the path of a request to the server and of its reply back, with links, repeats and numbers.

The layers above (client, queue, accounts) build requests and read replies; the layers below (link, connection) know
a single connection and repeat no request. ``retry`` decides whether and when a request is repeated. Only this layer
knows all connections, so a repeat can take another connection than the first attempt.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from random import random
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from cmqd_client.checks import CheckRouter
from cmqd_client.connection import Connection, OnEnded, OnPush, request_ids
from cmqd_client.errors import (
    ClientClosed,
    CmqError,
    ConnectionLost,
    ProtocolViolation,
    RequestTimeout,
    ServerUnreachable,
    ShuttingDown,
)
from cmqd_client.link import Link
from cmqd_client.numbering import SendNumbering, Session
from cmqd_client.retry import Repeat, RetryPolicy, final_error, may_have_happened
from cmqd_protocol.messages import AnyReply, MessagesReceived, ReceiveMessages, Request

P = ParamSpec("P")
R = TypeVar("R", bound=AnyReply)


class Opener(Protocol):
    """Opens a connection: ``Connection.open`` with all other arguments given."""

    def __call__(  # noqa: D102 - said above
        self, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush
    ) -> Awaitable[Connection]: ...


LONGEST_WAIT = 30.0
"""Longest wait in seconds of a receive without a wait of its own: the upper limit of a queue's polling wait (part of
the protocol). Used only for a time limit."""


class Channel:
    """Carries requests over its links. Request ids are counted over all connections."""

    __slots__ = ("_closing", "_links", "_policy", "_timeout", "_turn", "checks", "next_request_id", "numbering")

    def __init__(self, open_connection: Opener, policy: RetryPolicy, links: int, request_timeout: float) -> None:
        """Make a channel of ``links`` links with ``request_timeout`` seconds per attempt."""
        self._policy = policy
        self._timeout = request_timeout
        self._turn = 0
        self._closing = False
        self.next_request_id: Callable[[], int] = request_ids().__next__
        """Returns the number of the next request."""
        self.numbering: SendNumbering = SendNumbering(lambda: secrets.randbits(64))
        """Numbers for sends."""
        self.checks: CheckRouter = CheckRouter(self.next_request_id, request_timeout, policy)
        """The registry of checkers of half messages."""

        def opener(on_ended: OnEnded) -> Awaitable[Connection]:
            return open_connection(on_ended=on_ended, next_request_id=self.next_request_id, on_push=self.checks.pushed)

        self._links = [Link(opener, policy, self.checks.connected) for _ in range(links)]

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Connect; returns when the first link is up.

        Raises:
            ServerUnreachable, ConnectionRefused, ProtocolViolation: see :meth:`Link.wait_connected`.
        """
        for link in self._links:
            link.start()
        await self._connection()

    async def close(self) -> None:
        """End waiting receives, let outstanding replies arrive, close all connections. Harmless when repeated."""
        self._closing = True
        self.checks.close()
        connections = [connection for link in self._links for connection in await link.close()]
        if connections:
            await asyncio.gather(*(connection.close() for connection in connections))

    # ------------------------------------------------------------------ requests

    async def call(self, request: Request, reply_type: type[R], repeat: Repeat) -> R:
        """Make a request, repeat it as ``repeat`` allows, and return the reply.

        Raises:
            CmqError: see :func:`cmqd_client.retry.final_error` for the error after the last repeat.
            ProtocolViolation: the reply has another type.
        """
        connection = self._pick()
        if connection is not None and not connection.write_paused:
            try:
                reply = await connection.request(request, self._timeout)
            except CmqError as error:
                reply, _ = await self._again(request, repeat, error)
        else:
            reply, _ = await self._again(request, repeat, None)
        if isinstance(reply, reply_type):
            return reply
        raise _surprise(request, reply)

    async def ask(
        self,
        make: Callable[Concatenate[int, P], Request],
        reply_type: type[R],
        repeat: Repeat,
        *arguments: P.args,
        **named: P.kwargs,
    ) -> R:
        """Like :meth:`call`, for a request made of a new number and these arguments."""
        return await self.call(make(self.next_request_id(), *arguments, **named), reply_type, repeat)

    async def send_numbered(self, request: Request, reply_type: type[R], session: Session, sequence: int) -> R:
        """Like :meth:`call`, for a send or publish that carries the next number of ``numbering``.

        The server knows the number of a repeat, and stores the messages once.
        """
        try:
            return await self.call(request, reply_type, Repeat.SAFE)
        finally:
            session.answered(sequence)

    async def call_noting_repeats(self, request: Request, reply_type: type[R]) -> tuple[R, bool]:
        """Like :meth:`call`, for requests that are safe to repeat.

        Returns:
            The reply, and True if an earlier attempt may have been executed.
        """
        uncertain = False
        connection = self._pick()
        if connection is not None and not connection.write_paused:
            try:
                reply = await connection.request(request, self._timeout)
            except CmqError as error:
                reply, uncertain = await self._again(request, Repeat.SAFE, error)
        else:
            reply, uncertain = await self._again(request, Repeat.SAFE, None)
        if isinstance(reply, reply_type):
            return reply, uncertain
        raise _surprise(request, reply)

    async def _again(self, request: Request, repeat: Repeat, error: CmqError | None) -> tuple[AnyReply, bool]:
        """Continue after a first attempt that failed with ``error``, or (None) waits for a connection."""
        attempt = 0
        uncertain = False
        while True:
            if error is not None:
                attempt += 1
                uncertain = uncertain or may_have_happened(error)
                pause = self._policy.next_attempt(error, repeat, attempt, random())
                if pause is None or self._closing:
                    if uncertain and repeat is not Repeat.READ and not may_have_happened(error):
                        # A refusal of this attempt says nothing about an earlier attempt that may have been executed.
                        raise final_error(_unsure(error), repeat) from error
                    raise final_error(error, repeat)
                await asyncio.sleep(pause)
                # A new number: the old request may still wait on the same connection.
                request = msgspec.structs.replace(request, request_id=self.next_request_id())
            try:
                connection = await self._connection()
                if connection.write_paused:
                    await connection.wait_writable(self._timeout)
                return await connection.request(request, self._timeout), uncertain
            except CmqError as caught:
                error = caught

    async def receive(self, request: ReceiveMessages) -> MessagesReceived:
        """Make a receive; a repeat waits for the rest of the wait.

        Losing the connection during the wait uses up no repeats, because waiting is the purpose of a receive.
        """
        started = asyncio.get_running_loop().time()
        connection = self._pick()
        if connection is not None and not connection.write_paused:
            wait = LONGEST_WAIT if request.wait_ms is None else request.wait_ms / 1000
            try:
                return await connection.receive(request, self._timeout + wait)
            except CmqError as error:
                return await self._receive_again(request, started, error)
        return await self._receive_again(request, started, None)

    async def _receive_again(
        self, request: ReceiveMessages, started: float, error: CmqError | None
    ) -> MessagesReceived:
        loop = asyncio.get_running_loop()
        wait = request.wait_ms
        until = started + (LONGEST_WAIT if wait is None else wait / 1000)
        attempt = 0
        while True:
            if error is not None:
                attempt += 1
                if self._closing:
                    raise error
                if _is_interruption(error) and loop.time() < until:
                    attempt = 0
                    pause = self._policy.delay(1, random())
                else:
                    chosen = self._policy.next_attempt(error, Repeat.READ, attempt, random())
                    if chosen is None:
                        raise error
                    pause = chosen
                await asyncio.sleep(pause)
            remaining = max(until - loop.time(), 0.0)
            try:
                connection = await self._connection(remaining)
                if connection.write_paused:
                    await connection.wait_writable(self._timeout + remaining)
                remaining = max(until - loop.time(), 0.0)
                request = msgspec.structs.replace(
                    request,
                    request_id=self.next_request_id(),
                    wait_ms=None if wait is None else min(wait, round(remaining * 1000)),
                )
                return await connection.receive(request, self._timeout + remaining)
            except CmqError as caught:
                error = caught

    # ------------------------------------------------------------------ links

    def connections(self) -> list[Connection]:
        """Return all connections that are up."""
        return [link.connection for link in self._links if link.connection is not None]

    @property
    def connection_id(self) -> int | None:
        """The server's number of a connection in use; None = not connected."""
        connection = self._pick()
        return None if connection is None else connection.connection_id

    def _pick(self) -> Connection | None:
        """Return a connection that is up, in turn; None if all links are down."""
        links = self._links
        if len(links) == 1:
            return links[0].connection
        for _ in links:
            self._turn = turn = (self._turn + 1) % len(links)
            connection = links[turn].connection
            if connection is not None:
                return connection
        return None

    async def _connection(self, extra: float = 0.0) -> Connection:
        """Return a connection; wait for at most the time limit of an attempt (and ``extra`` seconds)."""
        if self._closing:
            raise ClientClosed("the client is closed")
        return self._pick() or await self._links[self._turn].wait_connected(self._timeout + extra)


def _is_interruption(error: CmqError) -> bool:
    """True if a transient error ended a waiting receive early."""
    return isinstance(error, (ConnectionLost, ServerUnreachable, ShuttingDown))


def _unsure(error: CmqError) -> CmqError:
    return RequestTimeout(
        f"an earlier attempt was not answered, and the last one failed: {error.text}",
        request_id=error.request_id,
        connection_id=error.connection_id,
    )


def _surprise(request: Request, reply: AnyReply) -> ProtocolViolation:
    return ProtocolViolation(
        f"the server answered {type(request).__name__} with {type(reply).__name__}", request_id=reply.request_id
    )
