"""A client connection: the asyncio shell around the protocol's ``ServerConnection``.

Rules:

- The connection decides nothing. Bytes go to the protocol object, its requests to the dispatcher; replies come back
  through ``answer``, and ``flush`` encodes and writes them once at the end of an I/O batch.
- A reply with messages is encoded only when the socket has taken all earlier bytes. If the client has disconnected or
  cancelled the request by then, the messages return to their queue at once, as if they had not been received. If the
  socket never took the last byte of a reply, the messages of the reply return too.
- Pushes (checks of half messages) leave with the replies, in the order of decision. The server does not wait for their
  arrival: a check that the client has not answered when it disconnects goes to another checker.
- Reading pauses for a client that does not read (the socket's buffer is over its mark). If the pause lasts, the waiting
  requests leave the queues' lines and are kept here; otherwise they would hold messages that other clients could
  receive. After two heartbeats, or if the buffer passes the hard limit, the connection is closed.
- Input beyond the limit of an I/O batch is deferred: the bytes are kept undecoded and taken up piece by piece in the
  turns of ``fairness``. Requests behind a request that ended its turn are deferred too. While input is deferred the
  connection is not read from, because the end of the connection must not overtake its requests. Afterwards it rests
  until the I/O batch ends, or, after input without a single request (a flood of heartbeats or cancels), until the next
  step of the coarse time.
- A large read in which no frame ends is stored on arrival, and the connection rests.
- Small input that is only late is an exception: the connection takes its turn in the line ``late``, and does not rest.
  It is read from meanwhile if at most one request waits. If the client closes its side, that turn is taken at once.
- An idle connection costs no task, no timer and no queue; containers are made on first use.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final, cast

from cmqd.server.access.audit_lines import FAILED_LOGINS
from cmqd.server.access.permissions import Permissions
from cmqd.server.admission.fairness import REQUEST_COST
from cmqd.server.admission.memory_budget import LEAST_BYTES, MemoryBudget
from cmqd.server.binary.deferred_input import LONE_FRAME_BYTES, PIECE_BYTES, DeferredInput
from cmqd.server.binary.parked_requests import ParkedRequests
from cmqd.server.binary.reply_output import (
    DEFAULT_PATIENCE_MS,
    SLOW_AFTER_MS,
    ReplyOfQueue,
    UnreadOutput,
    encode_replies,
    without_cancelled,
)
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.clients.connections import Connections
from cmqd.server.loop.io_batch import IoBatch, flush_failed
from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.held_reply_memory import body_bytes
from cmqd.server.replies.reply_gate import Gate, Outgoing
from cmqd_protocol.events import Authenticated, ConnectionEnded, RequestRefused
from cmqd_protocol.features import ClientFeature
from cmqd_protocol.frames import HEADER_BYTES
from cmqd_protocol.limits import MIN_HEARTBEAT_MS
from cmqd_protocol.messages import PUSH_TYPES, Cancel, Error, MessagesReceived, Request, error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_protocol.server_connection import CONNECTION_RETRY_MS, ServerConnection
from cmqd_sockets.listening import is_loopback
from cmqd_types.inspection import ConnectionInfo

_log = get_logger()

_EVENTS: Final = frozenset({Authenticated, Cancel, RequestRefused, ConnectionEnded})
"""The protocol object's events other than requests."""

READ_BYTES: Final = 256_000
"""Most that a read of the socket brings; uvloop's buffer."""

MAX_PRODUCTS: Final = 100
"""Products that are kept; a client may state any text."""

CLOSE_WITHIN_MS: Final = 5_000
"""Time that a closing connection has to send its last bytes."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """State and settings shared by all connections of a listener."""

    dispatch: Callable[["AcceptedConnection", Request], None]
    dispatch_run: Callable[["AcceptedConnection", Sequence[Any]], int]
    """Dispatches requests of a kind until the connection is held; returns their number."""
    events: ClientEvents
    decide_collected: Callable[["AcceptedConnection"], None]
    io_batch: IoBatch
    budget: MemoryBudget
    connections: Connections
    counters: Counters
    make_wire: Callable[[int], ServerConnection]
    """Makes the protocol object of a connection that begins at the time given."""
    permissions_of: Callable[[str], Permissions | None]
    """Returns the permissions of an enabled key, None for an unrestricted key."""
    on_made: Callable[["AcceptedConnection"], None]
    on_login_failed: Callable[[str, str, ConnectionEnded], None]
    """Called with the peer, the key id that the client named, and the reason of the close."""
    gate: Gate
    slow_reader_bytes: int
    max_unread_bytes: int
    max_unread_receives: int
    time_ms: int
    """Coarse local time, advanced by the listener every tenth of a second; no use needs a finer time."""
    overloaded: bool = False
    """The storage is so far behind that the server reads no more from clients."""
    stalled: list["AcceptedConnection"] = field(default_factory=list["AcceptedConnection"])
    """Connections that are not read from while the server is overloaded."""
    idle: list["AcceptedConnection"] = field(default_factory=list["AcceptedConnection"])
    """Connections that rest until the next step of ``time_ms``, because their last input held no request."""
    products: dict[str, str] = field(default_factory=dict[str, str])
    """Products of clients, each once: thousands of connections have the same product."""
    slow: set["AcceptedConnection"] = field(default_factory=set["AcceptedConnection"])
    """Connections with a socket buffer over its mark."""

    def product_of(self, product: str) -> str:
        """Return a product of a client, as the same object for equal products while the table has room."""
        if len(self.products) >= MAX_PRODUCTS:
            return self.products.get(product, product)
        return self.products.setdefault(product, product)


class AcceptedConnection(asyncio.Protocol):
    """A client's connection; see the module.

    Invariants: ``unread_receives`` is the number of replies with messages that are at the gate or in ``_replies``, of
    receives that are collected, and of peeks that wait for bodies; the connection is in ``Shared.slow`` if and only if
    ``_slow`` is set; it is read from unless it is slow, stalled, held or resting or has deferred input other than late
    input; it takes turns, in one line, if it has deferred input and is neither slow nor stalled nor held; ``_replies``
    is empty unless ``_dirty`` is set, the client is slow, or its handshake is not proved.
    """

    __slots__ = (
        "_bytes_in",
        "_bytes_out",
        "_cancelled",
        "_charged",
        "_closing_ms",
        "_deferred",
        "_dirty",
        "_gate_bytes",
        "_is_unproved",
        "_last_request_ms",
        "_parked",
        "_replies",
        "_requests",
        "_resting",
        "_shared",
        "_since_ms",
        "_slow",
        "_stalled",
        "_transport",
        "_wire",
        "account",
        "checked_queues",
        "credit",
        "is_held",
        "is_slow",
        "permissions",
        "product",
        "secret_id",
        "understands_stalls",
        "unread_receives",
        "waiting",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._wire = shared.make_wire(shared.time_ms)
        self._transport: asyncio.Transport | None = None
        """Set from ``connection_made`` to ``connection_lost``."""
        # Figures for operators, see ``info``. All connections of a step of the coarse time share its integer.
        self._since_ms = self._last_request_ms = shared.time_ms
        self._requests = self._bytes_in = self._bytes_out = 0
        self._replies: list[ReplyOfQueue] = []
        """Replies and pushes that are decided and durable but not yet encoded."""
        self._dirty = False
        """The connection is in the line of ``io_batch`` for a flush."""
        self._is_unproved = False
        """The handshake has ended, and waits for a proof that this broker leads: until then nothing is written."""
        self._charged = 0
        """Bytes noted in the memory budget."""
        self._gate_bytes = 0
        """Bytes of replies that have waited at the gate for a while; see ``held_reply_memory``."""
        self._cancelled: set[int] | None = None
        """Requests that the client gave up while their replies were on their way through the gate."""
        self._parked: ParkedRequests | None = None
        """Requests that wait until the client has read more."""
        self._slow: UnreadOutput | None = None
        """Set while the socket's buffer is over its mark, as ``is_slow`` is, which every receive reads."""
        self.is_slow = False
        self._closing_ms: int | None = None
        """Time at which the close began; None before."""
        self._stalled = False
        self._deferred: DeferredInput | None = None
        self.is_held = False
        """A request is being carried out in steps; later requests wait. An attribute and no property, because
        every request reads it."""
        self._resting = False
        """True after its share of this I/O batch, until the rest ends."""
        self.credit = 0
        """Kept by ``RoundRobin``."""
        self.account = ""
        """Empty until the connection has authenticated."""
        self.secret_id = ""
        self.product = ""
        self.understands_stalls = False
        """See ``Client``."""
        self.permissions: Permissions | None = None
        """None = unrestricted. Set together with ``secret_id``, before the first request is dispatched."""
        self.waiting: dict[int, int] | None = None
        """Waiter ids by request id; kept by ``WaitingRequests``."""
        self.checked_queues: set[str] | None = None
        """Queues that the connection checks transactions for; kept by ``TransactionCheckers``."""
        self.unread_receives = 0
        """Replies with messages that are at the gate or in ``_replies``, receives that are collected, and peeks that
        wait; kept by both sides.
        """

    def __repr__(self) -> str:
        return (
            f"<AcceptedConnection {self.account or 'unauthenticated'} {self._wire!r} waiting={len(self.waiting or ())} "
            f"replies={len(self._replies)} slow={self._slow is not None}>"
        )

    @property
    def peer(self) -> str:
        """Address of the client, for logs."""
        transport = self._transport
        address: Any = transport.get_extra_info("peername") if transport is not None else None
        if not address:
            return "gone"
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connection_id(self) -> int:
        """See ``Client``."""
        return self._wire.connection_id

    @property
    def is_private(self) -> bool:
        """See ``Client``."""
        transport = self._transport
        if transport is None:
            return False
        if transport.get_extra_info("ssl_object") is not None:
            return True
        peer: Any = transport.get_extra_info("peername")
        connected: Any = transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            return True
        return bool(peer) and is_loopback(peer[0])

    def info(self, now_ms: int) -> ConnectionInfo:
        """See ``connections.Connection``."""
        transport, wire = self._transport, self._wire
        local_ms = self._shared.time_ms
        return ConnectionInfo(
            connection_id=wire.connection_id,
            account=self.account,
            secret_id=self.secret_id,
            peer=self.peer,
            product=self.product,
            is_tls=transport is not None and transport.get_extra_info("ssl_object") is not None,
            since_ms=now_ms - (local_ms - self._since_ms),
            last_request_ms=now_ms - (local_ms - self._last_request_ms),
            requests=self._requests,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            unanswered=wire.outstanding,
            waiting=len(self.waiting or ()),
            unread_bytes=0 if transport is None else transport.get_write_buffer_size(),
            checked_queues=len(self.checked_queues or ()),
        )

    # ------------------------------------------------------------------ the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the protocol on a new connection (after the TLS handshake, if TLS is on)."""
        shared = self._shared
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(shared.slow_reader_bytes)
        shared.on_made(self)
        self._flush_soon()

    def data_received(self, data: bytes) -> None:
        """Take the bytes of a read. The hot path begins here."""
        shared = self._shared
        size = len(data)
        shared.counters.bytes_in += size
        self._bytes_in += size
        has_time = shared.io_batch.take_input(size)
        if not has_time or (size > PIECE_BYTES and not self._is_lone_frame(data)) or self._deferred or self.is_held:
            if has_time and self._is_stored_only(data):
                self._wire.receive(data, shared.time_ms)
                self._resting = True
                shared.io_batch.rests.add(self)
            else:
                deferred = self._defer()
                deferred.is_lone = not deferred and self._wire.is_within_frame(data, PIECE_BYTES)
                deferred.add(data)
                if deferred.is_lone and self.has_turn and not shared.overloaded:
                    # The usual late input: ``_plan_input`` would find that the connection is read from.
                    shared.io_batch.late.add(self)
                    return
            self._plan_input()
            self._measure()
        else:
            wire = self._wire
            # The usual case: a client that waits for the answer to every request.
            request = wire.lone_request(data, shared.time_ms)
            if request is None:
                self._dispatch_each(wire.receive(data, shared.time_ms))
            else:
                self._requests += 1
                self._last_request_ms = shared.time_ms
                shared.dispatch(self, request)
                if self._charged:
                    self._measure()
        if shared.overloaded and not self._stalled:
            self._stalled = True
            shared.stalled.append(self)
            self._plan_input()

    def eof_received(self) -> None:
        """Take up late input, which the end of the connection must not overtake; the transport closes."""
        if self._is_late and self.has_turn:
            self.take_turn()

    def _is_lone_frame(self, data: bytes) -> bool:
        """Return True if a large read is taken up on arrival; see ``LONE_FRAME_BYTES``."""
        return (
            len(data) <= LONE_FRAME_BYTES
            and not self._stalled
            and self._slow is None
            and self._wire.is_within_frame(data, LONE_FRAME_BYTES)
            and self._shared.io_batch.turns.is_free
        )

    def _is_stored_only(self, data: bytes) -> bool:
        """Return True if a large read is stored on arrival, without a turn, because no request ends in it. The
        connection rests as after a turn.

        Not while the log has no room: the bytes would wait in memory, and not at the client.
        """
        return (
            not self._deferred
            and not self.is_held
            and self._shared.io_batch.turns.has_room()
            and self._wire.leaves_unfinished(data)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Return the messages and reservations of a closed connection and cancel its waiting requests."""
        shared = self._shared
        self._transport = None
        self._wire.closed()
        shared.slow.discard(self)
        shared.connections.remove(self)
        if self._is_unproved:
            shared.gate.forget(self._proved)
        self._let_go()
        slow = self._slow
        if slow is not None and slow.unsent is not None:
            self._return_messages(*slow.unsent)

    def pause_writing(self) -> None:
        """Stop reading: the socket's buffer is over its mark, because the client reads more slowly than it asks."""
        self._slow = UnreadOutput(self._shared.time_ms)
        self.is_slow = True
        self._shared.slow.add(self)
        self._plan_input()
        self._measure()
        if self.checked_queues is not None:
            self._shared.events.slowness_changed(self)

    def resume_writing(self) -> None:
        """Continue with the output, now that the client has read."""
        slow, self._slow = self._slow, None
        self.is_slow = False
        if slow is not None and slow.is_narrow and self._transport is not None:
            self._transport.set_write_buffer_limits(self._shared.slow_reader_bytes)
        self._shared.slow.discard(self)
        self._plan_input()
        self._measure()
        self._flush_soon()
        if self.checked_queues is not None:
            self._shared.events.slowness_changed(self)

    # ------------------------------------------------------------------ input

    @property
    def has_input(self) -> bool:
        """Return True if input is deferred, or if new input would have to be."""
        return bool(self._deferred) or self.is_held

    @property
    def has_turn(self) -> bool:
        """See ``fairness.Flow``."""
        return bool(self._deferred) and not (self.is_held or self._stalled or self._slow is not None)

    @property
    def _is_late(self) -> bool:
        """Return True if the deferred input would have been taken up on arrival, if it had not come late."""
        return bool(self._deferred) and self._deferred.is_late and not self.is_held

    def take_turn(self) -> int:
        """See ``fairness.Flow``."""
        deferred = self._deferred
        assert deferred is not None
        if deferred.is_late:
            return self._take_late(deferred)
        events: Sequence[object] = deferred.take_decoded()
        size = 0
        turn_time = self._shared.io_batch.turn_time
        turn_time.restart(is_charged=True)
        if not events:
            piece = deferred.take_piece(self._wire.missing_bytes, at_frame=self._wire.is_open)
            size = len(piece)
            events = self._wire.receive(piece, self._shared.time_ms)
        deferred.had_request = deferred.had_request or not all(type(event) is Cancel for event in events)
        count = self._dispatch_each(events)
        if not self.has_input and not self._resting:
            self._resting = True
            self._deferred = None
            # A large frame without its end is no idle input: an upload must not wait for the coarse time.
            if deferred.had_request or self._wire.unfinished_bytes >= HEADER_BYTES:
                self._shared.io_batch.rests.add(self)
            else:
                self._shared.idle.append(self)
        return max(size + count * REQUEST_COST, turn_time.cost())

    def _take_late(self, deferred: DeferredInput) -> int:
        """Take up late input as on arrival; return its cost."""
        self._deferred = None
        shared = self._shared
        turn_time = shared.io_batch.turn_time
        turn_time.restart(is_charged=True)
        data = deferred.take_piece(0)
        request = self._wire.lone_request(data, shared.time_ms)
        if request is not None:
            self._requests += 1
            self._last_request_ms = shared.time_ms
            shared.dispatch(self, request)
            count = 1
        else:
            events = self._wire.receive(data, shared.time_ms)
            count = self._dispatch_each(events)
            # A handshake has no request either, and only a few bytes.
            is_idle = self._wire.is_open and self._wire.unfinished_bytes < HEADER_BYTES
            if is_idle and all(type(event) is Cancel for event in events):
                self._resting = True
                shared.idle.append(self)
        if not deferred.is_lone or self._resting:
            self._plan_input()
        return max(len(data) + count * REQUEST_COST, turn_time.cost())

    def rest_with_others(self) -> None:
        """Rest only until the I/O batch ends from now on, because the coarse time has moved on."""
        if self._resting:
            self._shared.io_batch.rests.add(self)
            self._shared.io_batch.schedule()

    def end_rest(self) -> int:
        """See ``fairness.Flow``."""
        self._resting = False
        self._plan_input()
        return READ_BYTES

    def hold(self) -> None:
        """Dispatch no further request before ``release``: a request of the connection is being carried out in steps."""
        self.is_held = True
        self._plan_input()

    def put_back(self, request: Request) -> None:
        """Dispatch a request again on release, before all others: it arrived while the connection was held."""
        self._requests -= 1
        self._defer().decoded.insert(0, request)

    def release(self) -> None:
        """Go on with the requests behind the request that was carried out in steps."""
        self.is_held = False
        self._plan_input()
        if self._parked is not None:
            self._flush_soon()

    def _defer(self) -> DeferredInput:
        if self._deferred is None:
            self._deferred = DeferredInput()
        return self._deferred

    def _measure(self) -> None:
        """Report the bytes held for this connection to the memory budget, which may drop the connection."""
        transport = self._transport
        size = 0
        if transport is not None and not transport.is_closing():
            size = self._wire.unfinished_bytes + transport.get_write_buffer_size() + self._gate_bytes
            if self._deferred is not None:
                size += self._deferred.stored_bytes
            if self._slow is not None:
                size += sum(body_bytes(reply) for reply, _ in self._replies)
            if self._parked is not None:
                size += self._parked.stored_bytes
            if size < LEAST_BYTES:
                size = 0
        if size != self._charged:
            self._charged = size
            self._shared.budget.hold(self, size)

    @property
    def is_gone(self) -> bool:
        """See ``Client``."""
        return self._transport is None or self._wire.ended is not None

    def note_held_replies(self, size: int) -> None:
        """See ``Client``."""
        self._gate_bytes = size
        self._measure()

    def drop(self, text: str) -> None:
        """See ``memory_budget.Holder``."""
        self._charged = 0
        self._shared.counters.dropped_for_memory += 1
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size():
            # A client that does not read would not read the error either, and its buffer would stay for a while.
            transport.abort()
        else:
            self.end(ErrorCode.BUSY, text, CONNECTION_RETRY_MS)

    def _dispatch_each(self, events: Sequence[object]) -> int:
        """Dispatch the events of a piece of input in order; return the number taken up.

        Events behind a request that holds the connection, or that ends the turn, are deferred.
        """
        shared = self._shared
        if len(events) > 1 and type(events[0]) not in _EVENTS and len(set(map(type, events))) == 1:
            # The usual input of a client that sends ahead of the answers.
            requests = taken = shared.dispatch_run(self, events)
        else:
            requests, taken = self._dispatch_singly(events)
        if taken < len(events):
            self._defer().decoded.extend(events[taken:])
            if not self.is_held:
                self._plan_input()
        if requests:
            self._requests += requests
            self._last_request_ms = shared.time_ms
        if not self.account or self._wire.ended is not None:
            self._flush_soon()
        if self._charged or self._deferred or not events:
            # A frame that grows from read to read yields no events meanwhile.
            self._measure()
        return taken

    def _dispatch_singly(self, events: Sequence[object]) -> tuple[int, int]:
        """Dispatch events of several kinds in order until the connection is held or the turn is over.

        Returns the number of requests among the events taken up, and the number of these events.
        """
        dispatch = self._shared.dispatch
        turn_time = self._shared.io_batch.turn_time
        event: Any
        requests = others = 0
        for event in events:
            if type(event) in _EVENTS:
                others += 1
                self._happened(event)
            else:
                requests += 1
                dispatch(self, event)
            if self.is_held or turn_time.is_over:
                break
        return requests, requests + others

    def _plan_input(self) -> None:
        """Read from the socket, take turns, or neither."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        shared = self._shared
        io_batch = shared.io_batch
        is_late = self._is_late
        if self.has_turn:
            line, other = (io_batch.late, io_batch.turns) if is_late else (io_batch.turns, io_batch.late)
            other.remove(self)
            line.add(self)
            io_batch.schedule()
        else:
            io_batch.turns.remove(self)
            io_batch.late.remove(self)
        # The usual late input is a request of a client that waits for the answer. A pause would cost as much again.
        is_lone = is_late and self._deferred is not None and self._deferred.is_lone
        wanted = not ((self.has_input and not is_lone) or self._resting or self._stalled) and self._slow is None
        if wanted != transport.is_reading():
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # ------------------------------------------------------------------ replies

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        """Send a reply (or a push) at the end of this I/O batch.

        ``queue`` is given for a reply with messages: the queue they return to if the reply cannot be sent ("" if the
        messages were only peeked).
        """
        transport, wire, shared = self._transport, self._wire, self._shared
        if transport is None or wire.ended is not None:
            if queue is not None:
                self._give_back(reply, queue)
            return
        # ``Any``, because a comparison of the type excludes no class for the type checker.
        message: Any = reply
        if type(message) is Error:
            shared.counters.count_error(message.name)
        if (
            shared.io_batch.is_releasing
            and type(message) not in PUSH_TYPES
            and message.request_id == wire.lone_id
            and not (self._dirty or self._is_unproved or self._slow or self._cancelled or self._parked)
        ):
            # The client waits for this reply alone, so no write is saved by a wait for others.
            try:
                self._write_one(transport, reply, queue)
            except Exception:
                flush_failed(self)
            return
        self._replies.append((reply, queue))
        if not self._dirty:
            self._dirty = True
            shared.io_batch.write_later(self)

    def park(self, request: Request) -> None:
        """Dispatch a request again when the client has read the replies already sent."""
        parked = self._parked
        if parked is None:
            parked = self._parked = ParkedRequests()
        steps = parked.stored_bytes // LEAST_BYTES
        parked.add(request)
        # Measured at the end of the I/O batch, because the budget may close the connection, and requests behind this
        # request are still being dispatched. In steps, because a measurement adds up all replies that are unread.
        if parked.stored_bytes // LEAST_BYTES > steps:
            self._flush_soon()

    def flush(self) -> None:
        """Encode and write the replies, unless the client is slow; called once per I/O batch."""
        self._dirty = False
        transport = self._transport
        if transport is None or self._is_unproved:
            return
        if self._slow is not None:
            # Not in ``answer``, which the dispatcher calls while iterating over the waiting requests.
            if self.unread_receives > self._shared.max_unread_receives:
                self._park_waiting()
            self._measure()
            return
        wire = self._wire
        replies = self._replies
        if wire.ended is not None:
            self._write_all(transport)
            self._close(transport)
            return
        if len(replies) == 1 and self._cancelled is None and type(replies[0][0]) not in PUSH_TYPES:
            self._write_one(transport, *replies.pop())
        else:
            self._write_all(transport)
            if self._slow is not None:
                self._close_if_unread(transport)
        if self._slow is None and self._parked is not None and not self.is_held:
            self._take_up_parked()

    def _write_one(self, transport: asyncio.Transport, reply: Outgoing, queue: str | None) -> None:
        """Write a reply alone: the usual case of ``_write_all``, for a client that waits for the answer to every
        request.
        """
        encodable: Any = reply
        shared = self._shared
        data = self._wire.reply_to_send(encodable, shared.time_ms)
        shared.counters.bytes_out += len(data)
        self._bytes_out += len(data)
        transport.write(data)
        if queue is not None:
            self.unread_receives -= 1
            if transport.get_write_buffer_size():
                self._wait_for_socket(transport, reply, queue)
        if self._slow is not None:
            self._close_if_unread(transport)

    def _write_all(self, transport: asyncio.Transport) -> None:
        wire = self._wire
        now_ms = self._shared.time_ms
        if self._cancelled is not None:
            self._drop_cancelled(self._cancelled)
        replies = self._replies
        while replies and self._slow is None and wire.ended is None:
            encoded = encode_replies(wire, replies, now_ms)
            self.unread_receives -= encoded.with_messages
            self._count_out(encoded.data)
            transport.writelines(encoded.data)
            if encoded.with_messages and transport.get_write_buffer_size():
                self._wait_for_socket(transport, *encoded.last)
        data = wire.data_to_send(now_ms)
        if data:
            self._count_out(data)
            transport.writelines(data)

    def _count_out(self, data: Sequence[bytes]) -> None:
        size = sum(map(len, data))
        self._shared.counters.bytes_out += size
        self._bytes_out += size

    def _wait_for_socket(self, transport: asyncio.Transport, reply: Outgoing, queue: str | None) -> None:
        """Write no more until the socket has taken all of a write with messages, which ended in this reply.

        Until the transport reports an empty buffer (``resume_writing``), the last byte has not left, so the client
        cannot have read the last reply; earlier replies of the write may have been read. Under TLS even the last reply
        is not certain: the transport counts encrypted bytes as sent, and flushes the rest without notice when the
        client closes its side.
        """
        transport.set_write_buffer_limits(0, 0)
        slow = self._slow
        assert slow is not None, "a buffer over its mark pauses writing at once"
        slow.is_narrow = True
        if queue is not None and transport.get_extra_info("ssl_object") is None:
            slow.unsent = (reply, queue)

    def _close_if_unread(self, transport: asyncio.Transport) -> None:
        if transport.get_write_buffer_size() > self._shared.max_unread_bytes:
            self._close_slow(transport)
        else:
            self._measure()

    def _drop_cancelled(self, cancelled: set[int]) -> None:
        self._replies, returned = without_cancelled(self._replies, cancelled)
        for reply, queue in returned:
            self._give_back(reply, queue)
        if not cancelled:
            self._cancelled = None

    def _give_back(self, reply: Outgoing, queue: str) -> None:
        self.unread_receives -= 1
        self._return_messages(reply, queue)

    def _return_messages(self, reply: Outgoing, queue: str) -> None:
        if isinstance(reply, MessagesReceived):
            self._shared.events.give_back(self.account, queue, reply.messages)

    def _take_up_parked(self) -> None:
        parked = self._parked
        shared = self._shared
        most = shared.max_unread_receives
        # A long publish among these holds the connection. Put back, parked requests would come in reverse order.
        shared.decide_collected(self)
        turn_time = shared.io_batch.turn_time
        turn_time.restart()
        while parked and not self.is_held and not turn_time.is_over:
            if self.unread_receives >= most:
                # A collected receive counts as unread. If it waits once it is decided, no reply would follow, and no
                # event would take up the parked requests.
                shared.decide_collected(self)
                if self.unread_receives >= most:
                    break
            shared.dispatch(self, parked.take_first())
        if not parked:
            self._parked = None
        elif turn_time.is_over:
            # The next flush goes on with the parked requests.
            self._flush_soon()
        self._measure()
        shared.io_batch.schedule()

    # ------------------------------------------------------------------ events other than requests

    def _happened(self, event: object) -> None:
        if isinstance(event, Cancel):
            self._cancel(event.request_id)
            return
        self._flush_soon()
        if not self.account and isinstance(event, Authenticated | ConnectionEnded):
            # Welcome and refusal are decided by the broker's own keys, which may be old, as its index may.
            self._is_unproved = True
            self._shared.gate.when_led(self._proved)
        if isinstance(event, Authenticated):
            self.account = event.account
            # The same object for all connections of a key.
            self.secret_id = intern(event.secret_id)
            self.product = self._shared.product_of(event.product)
            self.understands_stalls = ClientFeature.STALLED_RECEIVES in event.features
            self.permissions = self._shared.permissions_of(event.secret_id)
            self._shared.connections.authenticated(self)
            _log.debug("connection_authenticated", peer=self.peer, account=event.account, product=event.product)
        elif isinstance(event, RequestRefused):
            self._shared.counters.refusals += 1
            self._shared.counters.count_error(event.reply.name)
        elif isinstance(event, ConnectionEnded):
            if event.code == ErrorCode.AUTHENTICATION_FAILED:
                self._shared.counters.authentications_failed += 1
            if not self.account and event.code in FAILED_LOGINS:
                self._shared.on_login_failed(self.peer, self._wire.offered_secret_id, event)
            else:
                _log.info("connection_ended", peer=self.peer, account=self.account, code=event.name, text=event.text)

    def _proved(self) -> None:
        """Send the end of the handshake, and the replies behind it: this broker leads."""
        self._is_unproved = False
        self._flush_soon()

    def _cancel(self, request_id: int) -> None:
        if self._shared.events.cancel(self, request_id):
            return
        if self._parked is not None and self._parked.remove(request_id):
            self.answer(error(request_id, ErrorCode.CANCELLED, "cancelled"))
            return
        if self._cancelled is None:
            self._cancelled = set()
        self._cancelled.add(request_id)

    # ------------------------------------------------------------------ time, back-pressure and the end

    def visit(self) -> int | None:
        """Do the work that is due; return the time of the next visit, None if the connection is closed."""
        shared = self._shared
        now_ms = shared.time_ms
        transport = self._transport
        if transport is None:
            return None
        if self._closing_ms is not None:
            if now_ms - self._closing_ms >= CLOSE_WITHIN_MS:
                transport.abort()
                return None
            return now_ms + CLOSE_WITHIN_MS
        self._measure()
        wire = self._wire
        if self._stalled or self._slow is not None or self.has_input:
            # The connection is not read from, so its silence is no sign of a dead peer. An empty read counts as a sign
            # of life.
            wire.receive_data(b"", now_ms)
        wire.tick(now_ms)
        for event in wire.events():
            self._happened(event)
        self._flush_soon()
        due_ms = wire.next_deadline_ms()
        if due_ms is None:
            return now_ms + CLOSE_WITHIN_MS
        # The heartbeats of the connection begin with authentication, which the timer does not notice by itself.
        return due_ms if self.account else min(due_ms, now_ms + MIN_HEARTBEAT_MS // 2)

    def check_slow(self) -> None:
        """Take the waiting requests of a slow connection off the lines, or close it; called a few times a second."""
        transport = self._transport
        slow = self._slow
        if transport is None or slow is None or transport.is_closing():
            return
        slow_ms = self._shared.time_ms - slow.since_ms
        if slow_ms >= (2 * self._wire.heartbeat_ms or DEFAULT_PATIENCE_MS):
            self._close_slow(transport)
        elif slow_ms >= SLOW_AFTER_MS:
            self._park_waiting()

    def use_permissions(self, permissions: Permissions | None) -> None:
        """See ``Client``. Requests that were taken up earlier and wait may be refused now."""
        self.permissions = permissions
        if permissions is not None:
            self._shared.events.permissions_changed(self)

    def go_on(self) -> None:
        """Read from the connection again after the storage has caught up."""
        self._stalled = False
        self._plan_input()

    def end(self, code: ErrorCode, text: str, retry_after_ms: int | None = None) -> None:
        """Close the connection with an error, after the replies that are already to be written."""
        if self._transport is None:
            return
        if self._is_unproved:
            # A welcome without a proof must not leave, nor can another reason reach a client without a welcome.
            self._transport.abort()
            return
        if self._slow is None:
            self._write_all(self._transport)
        self._wire.end(code, text, retry_after_ms=retry_after_ms)
        for event in self._wire.events():
            self._happened(event)
        self.flush()
        if self._closing_ms is None:
            self._close(self._transport)

    def abort(self) -> None:
        """Close the connection now and discard unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    def _flush_soon(self) -> None:
        if not self._dirty and self._transport is not None:
            self._dirty = True
            self._shared.io_batch.write_later(self)

    def _park_waiting(self) -> None:
        for request in self._shared.events.take_waiting(self):
            self.park(request)

    def _close_slow(self, transport: asyncio.Transport) -> None:
        self._shared.counters.slow_readers_closed += 1
        _log.warning(
            "slow_reader_closed", peer=self.peer, account=self.account, unread=transport.get_write_buffer_size()
        )
        transport.abort()

    def _close(self, transport: asyncio.Transport) -> None:
        if self._closing_ms is None:
            self._closing_ms = self._shared.time_ms
            self._let_go()
            transport.close()

    def _let_go(self) -> None:
        """Release the replies and waiting requests of a connection that will read no further reply."""
        self._shared.events.disconnected(self)
        self._shared.budget.hold(self, 0)
        self._charged = 0
        self._shared.io_batch.turns.remove(self)
        self._shared.io_batch.late.remove(self)
        self._shared.io_batch.rests.remove(self)
        self._resting = False
        self._deferred = None
        self.is_held = False
        self._parked = None
        self._cancelled = None
        replies = self._replies
        self._replies = []
        for reply, queue in replies:
            if queue is not None:
                self._give_back(reply, queue)
