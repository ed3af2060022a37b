"""A connection to a server on asyncio or uvloop: sends requests, with a future for each reply.

The lowest layer of the client. A connection neither reconnects nor repeats requests: ``link`` and ``channel`` do. The
protocol is in ``cmqd_protocol.client_connection``; this shell owns socket, clock and futures. Two choices
keep the cost low:

* No task and no timer per request: a dict from request id to future, and a single timer for the deadlines of
  all requests and the heartbeats.
* One write per wake-up of the event loop: requests are encoded at once and written together by a callback at the end
  of the wake-up. After a read, the callback runs behind the tasks that the read wakes, so that their next requests
  go out in the same write.

Messages must not get lost in a connection: messages that arrive for a cancelled or timed-out receive are released
at once, uncounted.
"""

import asyncio
import os
import secrets
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias, cast

import msgspec

from cmqd_client.address import Address, parse_address
from cmqd_client.durations import shown_seconds
from cmqd_client.errors import (
    BatchTooLarge,
    ClientClosed,
    CmqError,
    ConnectionLost,
    Elsewhere,
    InvalidArgument,
    MessageTooLarge,
    NotSupported,
    ProtocolViolation,
    RequestTimeout,
    ServerUnreachable,
    server_error,
)
from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded, Opened
from cmqd_protocol.features import (
    ON_BEHALF_OF,
    STALLED,
    ClientFeature,
    Feature,
    FeatureNotNamed,
    ServerFacts,
    made_for,
)
from cmqd_protocol.limits import DEFAULT_HEARTBEAT_MS, MAX_REQUEST_ID, NONCE_BYTES
from cmqd_protocol.messages import (
    AnyReply,
    Cancel,
    Error,
    KeyChanged,
    MessagesReceived,
    Push,
    ReceiveMessages,
    ReleaseMessages,
    Request,
    SendHalfMessages,
    SendMessages,
    TransactionCheck,
)
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError

CONNECT_TIMEOUT = 5.0
"""Seconds for TCP, TLS and handshake together; equal to the server's limit for unauthenticated connections."""

REQUEST_TIMEOUT = 3.0
"""Seconds for a reply, beyond a receive's wait: a slow fsync takes a tenth of that."""

CLOSE_TIMEOUT = 1.0
"""Seconds that closing waits for outstanding replies: a few round trips."""

WRITERS_AT_ONCE = 64
"""Waiting writers that write before others have a turn: fewer would leave the socket idle, all would hold the loop."""

_WRITELINES_PAUSES = sys.version_info < (3, 12)
"""True if ``writelines`` of asyncio's sockets calls ``pause_writing``: not in 3.12 and 3.13. Later versions are treated
alike, because a check too many costs 0.2 us per write."""

_COARSE = 0.05
"""Shortest interval of the timer: deadlines of seconds need no more, and 20 wake-ups a second cost almost no CPU."""

TlsOption: TypeAlias = bool | ssl.SSLContext | None
"""True = verify against the system's authorities; a context = TLS with that context; None = as in the URL."""

OnEnded: TypeAlias = "Callable[[Connection], None]"

OnPush: TypeAlias = "Callable[[Connection, Push], None]"

OVERDUE_AFTER = 3.0
"""Seconds, beyond the wait of a receive, after which an answer is overdue, whatever the caller's limit: the server may
be cut off from its log."""

STALLED_FOR = 3.0
"""Seconds for which a refusal of a stalled server counts: the pauses of a call that is repeated there are shorter."""

LONGEST_WAIT = 30.0
"""Longest wait in seconds of a receive without a wait of its own: the upper limit of a queue's polling wait (part of
the protocol). Used only for a time limit."""

_NO_REPLIES = frozenset[type]((Opened, ConnectionEnded, TransactionCheck, KeyChanged))
"""Events beside the replies."""

_Pending: TypeAlias = tuple["asyncio.Future[AnyReply]", Request, float, float]
"""Future, request, deadline of the caller, and the time at which the answer is overdue (loop time)."""


def request_ids() -> Iterator[int]:
    """Count 1, 2 ... 2**32-1 and start again; the first requests were answered days before."""
    while True:
        yield from range(1, MAX_REQUEST_ID + 1)


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Counters of a connection, since its opening."""

    outstanding: int
    """Requests that wait for their reply now."""
    reads: int
    """Wake-ups by data from the server."""
    writes: int
    """Writes to the socket; a write carries all requests since the previous write."""
    handed_back: int
    """Messages released because their receive was cancelled or timed out."""


class Connection(asyncio.Protocol):
    """A connection; get a connection from :meth:`open`.

    Invariants: a request id is in ``_pending`` exactly while its future is owed a reply; ``_abandoned`` has the
    receives without a waiting caller and without a reply yet; once ``usable`` is False, ``usable`` stays False, and
    ``on_ended`` was called.
    """

    def __init__(
        self,
        wire: ClientConnection,
        loop: asyncio.AbstractEventLoop,
        on_ended: "OnEnded | None",
        next_request_id: Callable[[], int],
        on_push: "OnPush | None" = None,
    ) -> None:
        self._wire = wire
        self._loop = loop
        self._on_ended = on_ended
        self._on_push = on_push
        self.next_request_id: Callable[[], int] = next_request_id
        """Returns the number of the next request. Every request needs its own number."""
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, _Pending] = {}
        self._abandoned: dict[int, ReceiveMessages] = {}
        self._owed: dict[int, float] = {}
        """Requests that lost their callers and have no answer yet, with the times at which the answers are overdue."""
        self._stalled_at = float("-inf")
        """Loop time of the last sign that the server is stalled."""
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._opened: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._drained: asyncio.Future[None] | None = None
        """Future of the closing: resolved when the last outstanding reply has come."""
        self._closing = False
        self._left = ""
        """Why the client has left the server; empty = it has not."""
        self._writers: dict[asyncio.Future[None], None] = {}
        """Futures of the waiting writers, the longest wait first. With one future for all, each cancelled writer
        would be searched among the others: half a minute for 80,000 writers."""
        self._reads = self._writes = self._handed_back = 0
        self.write_paused: bool = False
        """The socket accepts no more output for now; see :meth:`wait_writable`."""
        self.usable: bool = False
        """True while requests can be made: from the handshake until the connection ends or the server shuts down."""
        self.connection_id: int = 0
        """The server's number of this connection, as in the server's log."""
        self.facts: ServerFacts = ServerFacts()
        """Limits and features that the server announced when the connection was opened."""
        self.account: str = ""
        self.region: str = ""
        self.server: str = ""
        """Product and version of the server."""
        self.host: str = ""
        """``host:port`` of the server."""
        self.elsewhere: Elsewhere | None = None
        """The refusal that named another server, if such a refusal ended the connection."""
        self.why_ended: str = ""
        """Why the connection takes no more requests; empty while it is usable."""
        self.on_stalled: OnEnded | None = None
        """Called at each sign that the server does not answer any more, and another server may lead."""
        self.is_doubted: bool = False
        """True while the client looks for another server, and after it has left this one."""

    # ------------------------------------------------------------------ opening and closing

    @classmethod
    async def open(
        cls,
        address: Address | str,
        *,
        tls: TlsOption = None,
        timeout: float = CONNECT_TIMEOUT,
        heartbeat: float = DEFAULT_HEARTBEAT_MS / 1000,
        product: str = "cmqd-client",
        name: str = "",
        on_ended: "OnEnded | None" = None,
        next_request_id: Callable[[], int] | None = None,
        on_push: "OnPush | None" = None,
    ) -> "Connection":
        """Connect and authenticate. Safe to cancel.

        Args:
            address: of the server, with the key.
            tls: see :data:`TlsOption`.
            timeout: seconds for TCP, TLS and handshake together.
            heartbeat: seconds; the server may propose less. A peer silent for twice as long is given up.
            product: the software of this client, in the server's log and lists.
            name: the name of this client, in the server's lists and in the history of messages.
            on_ended: called once, when the connection takes no more requests (lost, or the server shuts down).
            next_request_id: gives request numbers, if several connections are to share a count.
            on_push: called with messages that the server sends unasked, within the wake-up of their arrival; must not
                raise.

        Raises:
            ServerUnreachable: refused, unknown host, TLS failure, or no answer in time.
            ConnectionRefused: the server refuses this client: wrong key, region, version ...
            ProtocolViolation: the peer is not a cmqd server, or did not prove that it knows the key.
        """
        if isinstance(address, str):
            address = parse_address(address)
        loop = asyncio.get_running_loop()
        wire = ClientConnection(
            secret_id=address.secret_id,
            secret_key=address.secret_key,
            nonce=secrets.token_bytes(NONCE_BYTES),
            now_ms=int(loop.time() * 1000),
            region=address.region,
            product=product,
            heartbeat_ms=round(heartbeat * 1000),
            handshake_timeout_ms=round(timeout * 1000),
            features=ClientFeature,
            name=name,
        )
        self = cls(wire, loop, on_ended, next_request_id or request_ids().__next__, on_push)
        self.host = f"{address.host}:{address.port}"
        context = _tls_context(address.tls if tls is None else tls)
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: self, address.host, address.port, ssl=context)
                await self._opened
        except TimeoutError as problem:
            self._abort()
            raise ServerUnreachable(
                f"{address.host}:{address.port} did not answer within {shown_seconds(timeout)}"
            ) from problem
        except (OSError, UnicodeError) as problem:
            # UnicodeError: the host is no possible name.
            self._abort()
            raise ServerUnreachable(f"{address.host}:{address.port} cannot be reached: {_reason(problem)}") from problem
        except BaseException:
            self._abort()
            raise
        return self

    async def close(self) -> None:
        """Close the connection in an orderly way; harmless when repeated.

        Waiting receives fail with ClientClosed, and messages already on their way to them are released. Other requests
        have a second for their reply; after that they end with ConnectionLost.
        """
        if not self._closing:
            self._closing = True
            self._retire("the client was closed")
            for request_id, (future, request, *_) in list(self._pending.items()):
                if isinstance(request, ReceiveMessages):
                    self._abandon(request, future)
                    if not future.done():
                        future.set_exception(
                            ClientClosed(
                                "the client was closed", request_id=request_id, connection_id=self.connection_id
                            )
                        )
            if self._wire.outstanding and not self._closed.done():
                self._drained = self._loop.create_future()
                await asyncio.wait({self._drained}, timeout=CLOSE_TIMEOUT)
            self._flush()
            if self._transport is not None:
                self._transport.close()
        await asyncio.wait({self._closed}, timeout=CLOSE_TIMEOUT)
        if not self._closed.done():
            # An orderly close waits until the last bytes are sent; with a peer that does not read it would never end.
            self._abort()

    def leave(self, why: str) -> None:
        """End the connection at once, because another server leads: requests under way end with ConnectionLost."""
        self._left = why
        self._retire(why)
        self._abort()

    def is_stalled(self) -> bool:
        """True if an answer is overdue, or the server has said within ``STALLED_FOR`` that its storage does not
        answer.
        """
        now = self._loop.time()
        if now - self._stalled_at < STALLED_FOR:
            return True
        return any(due <= now for *_, due in self._pending.values()) or any(due <= now for due in self._owed.values())

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ requests

    def request(self, message: Request, timeout: float = REQUEST_TIMEOUT) -> "asyncio.Future[AnyReply]":
        """Make a request; all requests of this wake-up of the event loop go out together.

        Cancelling the future drops the reply; for a receive use :meth:`receive`, which also tells the server (although
        messages that arrive for a cancelled future are released in any case).

        Args:
            message: with a ``request_id`` from :attr:`next_request_id`.
            timeout: seconds until the future fails with RequestTimeout.

        Returns:
            A future of the reply. An error reply makes the future raise the matching ``ServerError``; the end of the
            connection ``ConnectionLost``.

        Raises:
            ClientClosed, ServerUnreachable: the connection is closed, or was lost; the request was not sent.
            MessageTooLarge, BatchTooLarge, InvalidArgument: the request does not fit a frame; it was not sent.
            NotSupported: the request uses a field that this server would ignore; it was not sent.
        """
        if not self.usable:
            raise self._not_usable()
        try:
            self._wire.send(message)
        except FeatureNotNamed as problem:
            if problem.field == ON_BEHALF_OF:
                # An older server shows the connection's own client, and does the same otherwise.
                return self.request(made_for(message, None), timeout)
            details = {"field": problem.field, "feature": problem.feature}
            raise NotSupported(str(problem), connection_id=self.connection_id, details=details) from problem
        except LocalProtocolError as problem:
            raise _too_large(message, problem) from problem
        loop = self._loop
        future: asyncio.Future[AnyReply] = loop.create_future()
        now = loop.time()
        deadline = now + timeout
        due = now + OVERDUE_AFTER
        if type(message) is ReceiveMessages:
            wait_ms = message.wait_ms
            due += LONGEST_WAIT if wait_ms is None else wait_ms / 1000
        self._pending[message.request_id] = (future, message, deadline, due)
        moment = deadline if deadline < due else due
        if moment < self._timer_at:
            self._wake_at(moment)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            loop.call_soon(self._flush)
        return future

    async def receive(self, message: ReceiveMessages, timeout: float) -> MessagesReceived:
        """Make a receive and wait for its messages.

        Safe to cancel: the server is told, and messages already on their way are released uncounted.

        Args:
            message: with a ``request_id`` from :attr:`next_request_id`.
            timeout: seconds until RequestTimeout; more than the wait. A timeout has the effect of a cancellation.

        Raises:
            CmqError: see :meth:`request`.
        """
        future = self.request(message, timeout)
        try:
            reply = await future
        except asyncio.CancelledError:
            self._abandon(message, future)
            raise
        if type(reply) is not MessagesReceived:
            raise ProtocolViolation(
                f"the server answered a receive with {type(reply).__name__}",
                request_id=message.request_id,
                connection_id=self.connection_id,
            )
        return reply

    def note_error(self, reply: Error) -> None:
        """Take note of an error of the server: in a reply of its own, or inside the reply to a receive with deletes."""
        if reply.code in (ErrorCode.STANDBY, ErrorCode.MOVED):
            self._note_elsewhere(server_error(reply, self.connection_id))
            self._close_when_answered()
        elif reply.code != ErrorCode.SHUTTING_DOWN:
            if _says_stalled(reply):
                self._note_stalled()
            return
        # Waiting requests are still answered here; new requests go to the server's successor.
        self._retire(reply.text)

    async def wait_writable(self, timeout: float) -> None:
        """Wait until the socket takes more data. Safe to cancel.

        Raises:
            ServerUnreachable: not within ``timeout`` seconds.
        """
        deadline = self._loop.time() + timeout
        # A writer may fill the buffer again before the others have their turn.
        while self.write_paused:
            writer = self._loop.create_future()
            self._writers[writer] = None
            try:
                async with asyncio.timeout_at(deadline):
                    await writer
            except TimeoutError:
                raise ServerUnreachable(
                    f"the server has read nothing for {shown_seconds(timeout)}", connection_id=self.connection_id
                ) from None
            finally:
                self._writers.pop(writer, None)

    @property
    def is_closed(self) -> bool:
        """True if the socket is closed."""
        return self._closed.done()

    def statistics(self) -> ConnectionStatistics:
        """Return a snapshot of the counters."""
        return ConnectionStatistics(self._wire.outstanding, self._reads, self._writes, self._handed_back)

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the asyncio event: the socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Handle the asyncio event: data arrived from the server."""
        self._reads += 1
        wire = self._wire
        wire.receive_data(data, int(self._loop.time() * 1000))
        pending = self._pending
        for event in wire.events():
            kind = type(event)
            if kind in _NO_REPLIES:
                if kind is Opened or kind is ConnectionEnded:
                    self._changed(cast("Opened | ConnectionEnded", event))
                elif self._on_push is not None:
                    self._on_push(self, cast("Push", event))
                continue
            reply = cast("AnyReply", event)
            entry = pending.pop(reply.request_id, None)
            if entry is None:
                self._owed.pop(reply.request_id, None)
                self._late(reply, self._abandoned.pop(reply.request_id, None))
                continue
            future = entry[0]
            if future.done():
                self._late(reply, entry[1])
            elif kind is Error:
                self._refused(future, cast("Error", reply))
            else:
                future.set_result(reply)
        if not self._flush_scheduled:
            # Scheduled behind the tasks that this read woke, so that their requests share the write (see the module).
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        if self._drained is not None and not wire.outstanding and not self._drained.done():
            self._drained.set_result(None)

    def pause_writing(self) -> None:
        """Handle the asyncio event: the send buffer is full."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Handle the asyncio event: the send buffer has room again."""
        self.write_paused = False
        self._wake_writers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the asyncio event: either side closed the socket."""
        ended = self._wire.ended
        if self._closing:
            why = "the client was closed"
        elif ended is not None:
            why = f"the connection ended: {ended.text}"
        elif self._left:
            why = f"the connection was left: {self._left}"
        else:
            why = "the connection was lost" if exc is None else f"the connection was lost: {exc}"
        self._wire.closed()
        for waiter in (self._closed, self._drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        self._retire(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        self._abandoned.clear()
        self._owed.clear()
        for request_id, (future, *_) in pending.items():
            if not future.done():
                future.set_exception(ConnectionLost(why, request_id=request_id, connection_id=self.connection_id))
        if not self._opened.done():
            self._opened.set_exception(ServerUnreachable("the server closed the connection during the handshake"))
            # Marks the exception as seen: the caller of ``open`` may have timed out, and asyncio would log an error.
            self._opened.exception()
        self.resume_writing()

    # ------------------------------------------------------------------ inside

    def _wake_writers(self) -> None:
        """Let some waiting writers write, and the next ones behind their write, until the buffer is full again."""
        if self.write_paused:
            return
        for writer in list(islice(self._writers, WRITERS_AT_ONCE)):
            del self._writers[writer]
            if not writer.done():
                writer.set_result(None)
        if self._writers:
            self._loop.call_soon(self._wake_writers)

    def _changed(self, event: Opened | ConnectionEnded) -> None:
        """Handle the end of the handshake, or of the connection."""
        if isinstance(event, Opened):
            self.account, self.region, self.server = event.account, event.region, event.product
            self.connection_id, self.facts = event.connection_id, event.facts
            self.usable = True
            self._wake_at(self._next_heartbeat())
            if not self._opened.done():
                self._opened.set_result(None)
            return
        error = _handshake_error(event)
        self._note_elsewhere(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        self._retire(event.text)
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _retire(self, why: str) -> None:
        """Take no more requests."""
        if self.usable:
            self.usable = False
            self.why_ended = why
            if self._on_ended is not None:
                self._on_ended(self)

    def _note_stalled(self) -> None:
        self._stalled_at = self._loop.time()
        if self.usable and self.on_stalled is not None:
            self.on_stalled(self)

    def _note_elsewhere(self, error: CmqError) -> None:
        if self.usable and isinstance(error, Elsewhere):
            self.elsewhere = error

    def _close_when_answered(self) -> None:
        """Close the socket behind the last reply; a server that was left does not close it."""
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._drained.add_done_callback(lambda _: None if self._transport is None else self._transport.close())
        if not self._wire.outstanding and not self._drained.done():
            self._drained.set_result(None)

    def _refused(self, future: "asyncio.Future[AnyReply]", reply: Error) -> None:
        future.set_exception(server_error(reply, self.connection_id))
        self.note_error(reply)

    def _flush(self) -> None:
        """Write all encoded requests in one call."""
        self._flush_scheduled = False
        out = self._wire.data_to_send(int(self._loop.time() * 1000))
        if out and self._transport is not None:
            self._writes += 1
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
                if not _WRITELINES_PAUSES and not self.write_paused and self._transport.get_write_buffer_size():
                    # Sets the limits to their defaults, as they are, and then pauses if the buffer is above them.
                    self._transport.set_write_buffer_limits()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _abandon(self, request: ReceiveMessages, future: "asyncio.Future[AnyReply]") -> None:
        """Cancel a receive that lost its caller."""
        entry = self._pending.pop(request.request_id, None)
        if entry is None:
            # The reply came in the same wake-up as the cancellation, so only its messages remain to be given back.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._late(future.result(), request)
            return
        self._abandoned[request.request_id] = request
        # The cancel is answered at once, by a server that answers.
        self._owed[request.request_id] = min(entry[3], self._loop.time() + OVERDUE_AFTER)
        if self._wire.is_open:
            self._wire.send(Cancel(request.request_id))
            self._flush_soon()

    def _late(self, reply: AnyReply, request: Request | None) -> None:
        """Handle a reply without a waiting caller: its messages go back to their queue."""
        if type(reply) is not MessagesReceived or not reply.messages or not isinstance(request, ReceiveMessages):
            return
        if not self._wire.is_open:
            return
        handles = [message.receipt_handle for message in reply.messages]
        stated = request.on_behalf_of if Feature.ON_BEHALF_OF in self.facts.features else None
        # Uncounted, and without waiting for the reply: on failure the visibility timeout makes the messages active
        # again.
        self._wire.send(ReleaseMessages(self.next_request_id(), request.queue, handles, False, stated))
        self._handed_back += len(handles)
        self._flush_soon()

    def _wake_at(self, moment: float) -> None:
        """Make the timer fire at ``moment`` (loop time), or somewhat later."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = max(moment, self._loop.time() + _COARSE)
        self._timer = self._loop.call_at(self._timer_at, self._tick)

    def _next_heartbeat(self) -> float:
        deadline_ms = self._wire.next_deadline_ms()
        return float("inf") if deadline_ms is None else deadline_ms / 1000

    def _tick(self) -> None:
        """Expire requests, notice overdue answers, and send heartbeats."""
        self._timer = None
        # Runs after the reads of this wake-up on either loop, so replies that arrived while the loop was blocked still
        # count.
        now = self._loop.time()
        self._timer_at = float("inf")
        next_deadline = float("inf")
        expired: list[_Pending] = []
        is_overdue = False
        for entry in self._pending.values():
            _, _, deadline, due = entry
            if deadline <= now:
                expired.append(entry)
            elif deadline < next_deadline:
                next_deadline = deadline
            if due <= now:
                is_overdue = True
            elif due < next_deadline:
                next_deadline = due
        for due in self._owed.values():
            if due <= now:
                is_overdue = True
            elif due < next_deadline:
                next_deadline = due
        for future, request, _, due in expired:
            self._expire(future, request, due)
        if is_overdue and self.usable and self.on_stalled is not None:
            self.on_stalled(self)
        self._wire.tick(int(now * 1000))
        self._flush()
        for event in self._wire.events():
            # Only the peer's silence ends the connection here.
            self._changed(cast("ConnectionEnded", event))
        moment = min(next_deadline, self._next_heartbeat())
        if moment < float("inf") and not self._closed.done():
            self._wake_at(moment)

    def _expire(self, future: "asyncio.Future[AnyReply]", request: Request, due: float) -> None:
        if isinstance(request, ReceiveMessages):
            self._abandon(request, future)
        else:
            del self._pending[request.request_id]
            self._owed[request.request_id] = due
        if not future.done():
            future.set_exception(
                RequestTimeout(
                    f"{type(request).__name__} was not answered in time",
                    request_id=request.request_id,
                    connection_id=self.connection_id,
                )
            )

    def _not_usable(self) -> CmqError:
        if self._closing:
            return ClientClosed("the client is closed", connection_id=self.connection_id)
        return ServerUnreachable("the connection has ended", connection_id=self.connection_id)

    def __repr__(self) -> str:
        state = "usable" if self.usable else "closed" if self._closed.done() else "ending"
        return f"<Connection {self.connection_id} {state}, {len(self._pending)} pending>"


def _says_stalled(reply: Error) -> bool:
    """Return True if an error tells that the storage of the server does not answer."""
    if reply.code in (ErrorCode.BUSY, ErrorCode.DISK_NEARLY_FULL):
        return reply.details is not None and reply.details.get(STALLED) is True
    return reply.code == ErrorCode.OUTCOME_UNKNOWN


def _tls_context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context() if tls else None


def _reason(problem: OSError | UnicodeError) -> str:
    """Return the reason of a failed connection, without the address that asyncio's texts repeat."""
    if isinstance(problem, ssl.SSLError):
        why = getattr(problem, "verify_message", None) or problem.reason or str(problem)
        return f"TLS: {why.replace('_', ' ').lower()}"
    if isinstance(problem, UnicodeError) or problem.errno is None or isinstance(problem, socket.gaierror):
        # Several addresses failed, or the name has no address: the text is complete.
        return getattr(problem, "strerror", None) or str(problem)
    return os.strerror(problem.errno).lower()


def _handshake_error(event: ConnectionEnded) -> CmqError:
    """Return the error of a failed handshake, from the event that ended the handshake."""
    if event.by_peer:
        details = None if event.details is None else dict(event.details)
        return server_error(
            Error(0, event.code, event.name, event.text, event.retryable, event.retry_after_ms, details)
        )
    if event.code == ErrorCode.AUTHENTICATION_TIMEOUT:
        return ServerUnreachable("the server did not finish the handshake in time")
    return ProtocolViolation(event.text)


def _too_large(message: Request, problem: LocalProtocolError) -> CmqError:
    """Return the typed error of a request that does not fit a frame."""
    text = str(problem)
    if isinstance(message, (SendMessages, SendHalfMessages)):
        cls = MessageTooLarge if len(message.bodies) == 1 else BatchTooLarge
        return cls(text, request_id=message.request_id, details={"field": "bodies"})
    return InvalidArgument(text, request_id=message.request_id)
