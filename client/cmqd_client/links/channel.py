"""The channel: the path of a request to the server and of its reply back, with links, repeats and numbers.

The layers above (client, queue, accounts) build requests and read replies; the layers below (link, connection) know
a single connection and repeat no request. ``retry`` decides whether and when a request is repeated. Only this layer
knows all connections, so a repeat can take another connection than the first attempt.

A call has two time limits: the request timeout limits an attempt that was sent, and the patience limits the call, with
all its attempts, the pauses between them and the waits for a connection. An attempt never outlasts the patience.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from math import inf
from typing import Any, ParamSpec, TypeAlias, TypeVar

import msgspec

from cmqd_client.connection import CLOSE_TIMEOUT, LONGEST_WAIT, Connection, OnEnded, request_ids
from cmqd_client.consumers.acknowledging import Acknowledgement
from cmqd_client.errors import (
    Busy,
    ClientClosed,
    CmqError,
    ConnectionLost,
    DiskNearlyFull,
    Elsewhere,
    OutcomeUnknown,
    ProtocolViolation,
    RequestTimeout,
    ServerUnreachable,
    ShuttingDown,
    server_error,
)
from cmqd_client.events import CallCounters, ClientState, ClientStatistics, Closed, EventReporter, OnEvent
from cmqd_client.links.attempts import Attempts
from cmqd_client.links.hosts_in_turn import Opener
from cmqd_client.links.key_changes import KeyChangeRouter
from cmqd_client.links.leader_search import Beside
from cmqd_client.links.link import Link
from cmqd_client.links.numbering import SendNumbering, Session
from cmqd_client.links.retry import RetryPolicy, final_error, may_have_happened
from cmqd_client.messages.tracing import Tracing
from cmqd_client.transactions.check_routing import CheckRouter
from cmqd_protocol.features import STALLED, Feature, made_for
from cmqd_protocol.messages import (
    AnyReply,
    DeleteMessages,
    HandlesDone,
    MessagesReceived,
    PublishMessages,
    Push,
    ReceiveMessages,
    Request,
    SendHalfMessages,
    SendMessages,
    TransactionCheck,
)
from cmqd_protocol.operations import Operation, Repeat
from cmqd_types.actors import StatedClient

P = ParamSpec("P")
R = TypeVar("R", bound=AnyReply)


NumberedRequest: TypeAlias = SendMessages | SendHalfMessages | PublishMessages
"""A request that carries a session and a sequence."""

SHORTEST_ATTEMPT = 0.25
"""Least time in seconds that a repeat must have for its answer: several round trips and an fsync. A repeat without that
time would likely end unanswered, and turn a refusal into an unknown outcome."""


NOT_OPEN = "the client is not open; use it in `async with`, or await client.open()"
"""Text of the error of a call before the client is opened."""


class ChannelState(msgspec.Struct):
    """The state that a channel shares with its copies of another patience."""

    opened: bool = False
    closing: bool = False
    tracing: Tracing | None = None
    """Makes spans; None = no spans."""


class Channel:
    """Carries requests over its links. Request ids are counted over all connections."""

    __slots__ = (
        "_first_timeout",
        "_learn",
        "_links",
        "_made_for",
        "_make_tracing",
        "_patience",
        "_policy",
        "_shortest",
        "_state",
        "_timeout",
        "_turn",
        "before_close",
        "checks",
        "counters",
        "events",
        "key_changes",
        "next_request_id",
        "numbering",
    )

    def __init__(
        self,
        open_connection: Opener,
        policy: RetryPolicy,
        links: int,
        request_timeout: float,
        patience: float,
        on_event: OnEvent | None = None,
        make_tracing: Callable[[], Tracing | None] | None = None,
    ) -> None:
        """Make a channel of ``links`` links.

        Args:
            open_connection: opens a connection.
            policy: number of repeats, and pauses.
            links: number of connections.
            request_timeout: seconds for an attempt that was sent.
            patience: seconds for a call; ``inf`` = unlimited.
            on_event: the hook for events.
            make_tracing: called at the opening, because an SDK is often set up later than clients are made; returns the
                maker of spans. None = no spans.
        """
        self._make_tracing = make_tracing
        self.counters: CallCounters = CallCounters()
        self.events: EventReporter = EventReporter(on_event)
        self._policy = policy
        self._timeout = request_timeout
        self._patience = patience
        self._first_timeout = min(request_timeout, patience)
        self._shortest = min(request_timeout, SHORTEST_ATTEMPT)
        self._turn = 0
        self._made_for: StatedClient | None = None
        """The client that requests are made for; None = this client."""
        self._state = ChannelState()
        self.before_close: set[Callable[[], Coroutine[Any, Any, None]]] = set()
        """Settle what consumers have handled; called before the links close, for at most a second."""
        self.next_request_id: Callable[[], int] = request_ids().__next__
        """Returns the number of the next request."""
        self.numbering: SendNumbering = SendNumbering(lambda: secrets.randbits(64))
        """Numbers for sends."""
        self.checks: CheckRouter = CheckRouter(self.next_request_id, request_timeout, policy)
        """The registry of checkers of half messages."""

        self.key_changes: KeyChangeRouter = KeyChangeRouter(self.next_request_id, request_timeout, policy)
        """The registry of takers of changes of keys."""

        def with_news(on_ended: OnEnded) -> OnEnded:
            def ended(connection: Connection) -> None:
                on_ended(connection)
                self.key_changes.ended()

            return ended

        def opener(on_ended: OnEnded) -> Awaitable[Connection]:
            return open_connection(
                on_ended=with_news(on_ended), next_request_id=self.next_request_id, on_push=self._pushed
            )

        def open_beside(connection: Connection, on_ended: OnEnded) -> Awaitable[Connection]:
            return open_connection.open_beside(
                connection,
                on_ended=with_news(on_ended),
                next_request_id=self.next_request_id,
                on_push=self._pushed,
            )

        self._learn = open_connection.learn
        beside = Beside(open_connection.has_others, open_beside)
        self._links = [Link(opener, policy, self._connected, self.events.report, beside) for _ in range(links)]

    def _pushed(self, connection: Connection, push: Push) -> None:
        if isinstance(push, TransactionCheck):
            self.checks.pushed(connection, push)
        else:
            self.key_changes.pushed(push)

    def learn_addresses(self, addresses: Sequence[str]) -> None:
        """Note addresses of the service beside those of the URL; malformed ones are left out."""
        self._learn(addresses)

    def _connected(self, connection: Connection) -> None:
        self._learn(connection.facts.addresses)
        self.checks.connected(connection)
        self.key_changes.connected(connection)

    # ------------------------------------------------------------------ opening and closing

    async def open(self, patience: float | None = None) -> None:
        """Connect; returns when the first link is up.

        Args:
            patience: seconds to wait for a connection; None = the channel's patience.

        Raises:
            ServerUnreachable, ConnectionRefused, ProtocolViolation: see :meth:`Link.wait_connected`.
        """
        self._state.opened = True
        limit = self._patience if patience is None else patience
        self._links[0].warns_of_wait = limit == inf
        if self._make_tracing is not None:
            self._state.tracing = self._make_tracing()
        for link in self._links:
            link.start()
        started = asyncio.get_running_loop().time()
        try:
            await self._connection(limit)
        except CmqError as error:
            self._waited(error, started, 1)
            raise

    async def close(self) -> None:
        """End waiting receives, let outstanding replies arrive, close all connections. Harmless when repeated."""
        if self.before_close:
            unfinished = [asyncio.create_task(settle()) for settle in list(self.before_close)]
            await asyncio.wait(unfinished, timeout=CLOSE_TIMEOUT)
            for task in unfinished:
                task.cancel()
        if not self._state.closing:
            self.events.report(Closed())
        self._state.closing = True
        self.checks.close()
        self.key_changes.close()
        connections = [connection for link in self._links for connection in await link.close()]
        if connections:
            await asyncio.gather(*(connection.close() for connection in connections))

    @property
    def patience(self) -> float:
        """Seconds for a call; ``inf`` = unlimited."""
        return self._patience

    def with_patience(self, patience: float) -> "Channel":
        """Return a channel over the same links with another patience in seconds; ``inf`` = unlimited."""
        channel = copy(self)
        channel._patience = patience
        channel._first_timeout = min(self._timeout, patience)
        return channel

    def on_behalf_of(self, client: StatedClient) -> "Channel":
        """Return a channel over the same links whose requests are made for another client."""
        channel = copy(self)
        channel._made_for = client
        return channel

    @property
    def tracing(self) -> Tracing | None:
        """Makes spans; None = no spans."""
        return self._state.tracing

    # ------------------------------------------------------------------ requests

    async def call(self, request: Request, reply_type: type[R], repeat: Repeat) -> R:
        """Make a request, repeat it as ``repeat`` allows, and return the reply.

        Raises:
            CmqError: see :func:`cmqd_client.links.retry.final_error` for the error after the last repeat; ``waited``
                has the time from the call to the error.
            ProtocolViolation: the reply has another type.
        """
        if self._made_for is not None:
            request = made_for(request, self._made_for)
        self.counters.requests += 1
        started = asyncio.get_running_loop().time()
        connection = self._pick()
        if connection is not None and not connection.write_paused:
            try:
                reply = await connection.request(request, self._first_timeout)
            except CmqError as error:
                reply, _, connection = await self._again(request, repeat, started, error, connection)
        else:
            reply, _, connection = await self._again(request, repeat, started, None)
        if isinstance(reply, reply_type):
            return reply
        raise _surprise(request, reply, connection)

    async def ask(self, operation: Operation[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Like :meth:`call`, for a request of an operation, made of a new number and these arguments."""
        request = operation.make(self.next_request_id(), *arguments, **named)
        return await self.call(request, operation.reply, operation.repeat)

    async def send_numbered(self, request: NumberedRequest, reply_type: type[R], session: Session, sequence: int) -> R:
        """Like :meth:`call`, for a send or publish that carries the next number of ``numbering``.

        The server knows the number of a repeat, and stores the messages once.
        """
        try:
            reply = await self.call(request, reply_type, Repeat.SAFE)
            self.counters.messages_sent += len(request.bodies)
            return reply
        finally:
            session.answered(sequence)

    async def call_with_facts(self, request: Request, reply_type: type[R]) -> tuple[R, bool, int]:
        """Like :meth:`call`, for requests that are safe to repeat.

        Returns:
            The reply, True if an earlier attempt may have been executed, and the server's number of the connection that
            the reply came on.
        """
        if self._made_for is not None:
            request = made_for(request, self._made_for)
        uncertain = False
        self.counters.requests += 1
        started = asyncio.get_running_loop().time()
        connection = self._pick()
        if connection is not None and not connection.write_paused:
            try:
                reply = await connection.request(request, self._first_timeout)
            except CmqError as error:
                reply, uncertain, connection = await self._again(request, Repeat.SAFE, started, error, connection)
        else:
            reply, uncertain, connection = await self._again(request, Repeat.SAFE, started, None)
        if isinstance(reply, reply_type):
            return reply, uncertain, connection.connection_id
        raise _surprise(request, reply, connection)

    async def _again(
        self,
        request: Request,
        repeat: Repeat,
        started: float,
        error: CmqError | None,
        connection: Connection | None = None,
    ) -> tuple[AnyReply, bool, Connection]:
        """Continue a call that began at ``started`` (loop time), after a first attempt that failed with ``error``.

        ``error`` None = no attempt was made, because no connection was ready; else ``connection`` had the attempt.

        Returns:
            The reply, True if an earlier attempt may have been executed, and the connection of the reply.
        """
        loop = asyncio.get_running_loop()
        deadline = started + self._patience
        attempts = Attempts(self._policy)
        uncertain = followed = False
        try:
            while True:
                if error is not None:
                    uncertain = uncertain or may_have_happened(error)
                    remaining = deadline - loop.time() - self._shortest
                    pause = attempts.failed(error, repeat, remaining, connection)
                    if pause is not None and isinstance(error, Elsewhere) and not followed:
                        followed, pause = True, 0.0
                    if pause is None or self._state.closing:
                        if uncertain and repeat is not Repeat.READ and not may_have_happened(error):
                            # A refusal of this attempt says nothing about an earlier attempt, perhaps executed.
                            raise self._waited(final_error(_unsure(error), repeat), started, attempts.all) from error
                        raise self._waited(final_error(error, repeat), started, attempts.all)
                    await self._pause(pause, connection)
                    connection = None
                    # A new number: the old request may still wait on the same connection.
                    request = msgspec.structs.replace(request, request_id=self.next_request_id())
                    self.counters.requests += 1
                    self.counters.repeats += 1
                try:
                    connection = await self._connection(deadline - loop.time())
                    if connection.write_paused:
                        await connection.wait_writable(min(self._timeout, deadline - loop.time()))
                    timeout = max(min(self._timeout, deadline - loop.time()), 0.0)
                    return await connection.request(request, timeout), uncertain, connection
                except CmqError as caught:
                    error = caught
        finally:
            # The error that leaves here has this frame in its traceback. With the error in a variable of the frame, the
            # two would keep the request and its bodies in memory until a garbage collection.
            error = None

    def _waited(self, error: CmqError, started: float, attempts: int) -> CmqError:
        """Return the error with the time that the call took, if the call ended for lack of an answer or of time."""
        self.counters.failures += 1
        if error.retryable or may_have_happened(error):
            error.waited = asyncio.get_running_loop().time() - started
            error.attempts = attempts
        return error

    async def receive(self, request: ReceiveMessages, deletes: Acknowledgement | None = None) -> MessagesReceived:
        """Make a receive; a repeat waits for the rest of the wait.

        Losing the connection during the wait uses up no repeats, because waiting is the purpose of a receive.

        Args:
            request: the receive, without ``acknowledge``.
            deletes: messages to delete first, in the same request; with a server that does not name the feature, in a
                request of their own. After the call, also after an error or a cancellation, ``deletes`` says whether
                they are done.
        """
        if self._made_for is not None:
            request = made_for(request, self._made_for)
        self.counters.requests += 1
        started = asyncio.get_running_loop().time()
        connection = self._pick()
        if connection is not None and not connection.write_paused:
            wait = LONGEST_WAIT if request.wait_ms is None else request.wait_ms / 1000
            try:
                if deletes is None:
                    return await connection.receive(request, self._first_timeout + wait)
                return await self._receive_after_deletes(connection, request, deletes, self._first_timeout + wait)
            except CmqError as error:
                return await self._receive_again(request, started, error, deletes, connection)
        return await self._receive_again(request, started, None, deletes)

    async def _receive_after_deletes(
        self, connection: Connection, request: ReceiveMessages, deletes: Acknowledgement, timeout: float
    ) -> MessagesReceived:
        """Make an attempt of a receive with deletes that are not known to be done.

        Raises:
            CmqError: also the error that ended the receive after its deletes, in which case these are done.
        """
        if deletes.is_done:
            return await connection.receive(request, timeout)
        if Feature.ACKNOWLEDGE not in connection.facts.features:
            await self._delete_apart(request.queue, deletes)
            return await connection.receive(request, timeout)
        uncertain = deletes.is_uncertain
        deletes.is_uncertain = True
        try:
            reply = await connection.receive(msgspec.structs.replace(request, acknowledge=deletes.handles), timeout)
        except CmqError as error:
            deletes.is_uncertain = uncertain or may_have_happened(error)
            raise
        if reply.failures is None:
            raise ProtocolViolation(
                "the server did not tell of the deletes of a receive",
                request_id=reply.request_id,
                connection_id=connection.connection_id,
            )
        deletes.answered(reply.failures, reply.request_id, connection.connection_id, uncertain=uncertain)
        if reply.error is not None:
            connection.note_error(reply.error)
            raise server_error(reply.error, connection.connection_id)
        return reply

    async def _delete_apart(self, queue: str, deletes: Acknowledgement) -> None:
        """Make the deletes of a receive in a request of their own: the server is older than the feature."""
        request = DeleteMessages(self.next_request_id(), queue, deletes.handles)
        uncertain = deletes.is_uncertain
        deletes.is_uncertain = True
        try:
            reply, repeated, connection_id = await self.call_with_facts(request, HandlesDone)
        except CmqError as error:
            deletes.is_uncertain = uncertain or may_have_happened(error)
            raise
        deletes.answered(reply.failures, reply.request_id, connection_id, uncertain=uncertain or repeated)

    def supports(self, feature: str) -> bool:
        """True if all servers of the open connections name the feature; False without a connection."""
        connections = self.connections()
        return bool(connections) and all(feature in connection.facts.features for connection in connections)

    async def _receive_again(
        self,
        request: ReceiveMessages,
        started: float,
        error: CmqError | None,
        deletes: Acknowledgement | None,
        connection: Connection | None = None,
    ) -> MessagesReceived:
        loop = asyncio.get_running_loop()
        wait = request.wait_ms
        until = started + (LONGEST_WAIT if wait is None else wait / 1000)
        deadline = until + self._patience
        attempts = Attempts(self._policy)
        followed = False
        try:
            while True:
                if error is not None:
                    if self._state.closing:
                        raise self._waited(error, started, attempts.all + 1)
                    if _is_interruption(error) and loop.time() < until:
                        pause = attempts.interrupted(error, until - loop.time())
                    else:
                        remaining = deadline - loop.time() - self._shortest
                        chosen = attempts.failed(error, Repeat.READ, remaining, connection)
                        if chosen is None:
                            raise self._waited(error, started, attempts.all)
                        pause = chosen
                    if isinstance(error, Elsewhere) and not followed:
                        followed, pause = True, 0.0
                    await self._pause(pause, connection)
                    connection = None
                    self.counters.requests += 1
                    self.counters.repeats += 1
                try:
                    connection = await self._connection(deadline - loop.time())
                    if connection.write_paused:
                        await connection.wait_writable(self._receive_timeout(until, deadline))
                    remaining = max(until - loop.time(), 0.0)
                    request = msgspec.structs.replace(
                        request,
                        request_id=self.next_request_id(),
                        wait_ms=None if wait is None else min(wait, round(remaining * 1000)),
                    )
                    timeout = self._receive_timeout(until, deadline)
                    if deletes is None:
                        return await connection.receive(request, timeout)
                    return await self._receive_after_deletes(connection, request, deletes, timeout)
                except CmqError as caught:
                    error = caught
        finally:
            # As in ``_again``: no variable of this frame may hold the error that leaves here.
            error = None

    async def _pause(self, seconds: float, connection: Connection | None) -> None:
        """Wait before the next attempt; no longer than until the client has left ``connection`` for another server."""
        for link in self._links:
            if connection is not None and link.connection is connection:
                await link.pause(seconds, connection)
                return
        await asyncio.sleep(seconds)

    def _receive_timeout(self, until: float, deadline: float) -> float:
        """Return the seconds for an attempt of a receive that waits until ``until`` (loop time)."""
        now = asyncio.get_running_loop().time()
        return max(min(self._timeout + max(until - now, 0.0), deadline - now), 0.0)

    # ------------------------------------------------------------------ links

    def connections(self) -> list[Connection]:
        """Return all connections that are up."""
        return [link.connection for link in self._links if link.connection is not None]

    @property
    def state(self) -> ClientState:
        """State over all links."""
        if self._state.closing:
            return ClientState.CLOSED
        if any(link.connection is not None for link in self._links):
            return ClientState.CONNECTED
        if all(link.refused for link in self._links):
            return ClientState.REFUSED
        return ClientState.CONNECTING

    def statistics(self) -> ClientStatistics:
        """Return a snapshot of the counters."""
        connections = [connection.statistics() for connection in self.connections()]
        counters = self.counters
        return ClientStatistics(
            requests=counters.requests,
            repeats=counters.repeats,
            failures=counters.failures,
            messages_sent=counters.messages_sent,
            messages_received=counters.messages_received,
            connections_opened=self.events.connections_opened,
            connections_lost=self.events.connections_lost,
            outstanding=sum(connection.outstanding for connection in connections),
            reads=sum(connection.reads for connection in connections),
            writes=sum(connection.writes for connection in connections),
            handed_back=sum(connection.handed_back for connection in connections),
        )

    @property
    def account(self) -> str | None:
        """The account of the key, as the server told it; None = not connected."""
        connection = self._pick()
        return None if connection is None else connection.account

    @property
    def max_waiting_requests(self) -> int | None:
        """Requests of a connection that may wait for their replies, as the server told it; None = not connected."""
        connection = self._pick()
        return None if connection is None else connection.facts.max_waiting_requests

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

    async def _connection(self, timeout: float) -> Connection:
        """Return a connection; wait for at most ``timeout`` seconds."""
        if self._state.closing:
            raise ClientClosed("the client is closed")
        if not self._state.opened:
            raise ClientClosed(NOT_OPEN)
        return self._pick() or await self._links[self._turn].wait_connected(max(timeout, 0.0))


def _is_interruption(error: CmqError) -> bool:
    """True if a transient error ended a waiting receive early, or before it could wait."""
    if isinstance(error, DiskNearlyFull):
        # Only a server that is stalled refuses a receive for its disk.
        return error.details.get(STALLED) is True
    return isinstance(error, (ConnectionLost, ServerUnreachable, ShuttingDown, Elsewhere, Busy, OutcomeUnknown))


def _unsure(error: CmqError) -> CmqError:
    return RequestTimeout(
        f"an earlier attempt was not answered, and the last one failed: {error.text}",
        request_id=error.request_id,
        connection_id=error.connection_id,
    )


def _surprise(request: Request, reply: AnyReply, connection: Connection) -> ProtocolViolation:
    return ProtocolViolation(
        f"the server answered {type(request).__name__} with {type(reply).__name__}",
        request_id=reply.request_id,
        connection_id=connection.connection_id,
    )
