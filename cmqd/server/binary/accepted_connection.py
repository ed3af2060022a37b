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
- Small reads are taken up on arrival while the I/O batch has time left. Other input is deferred, see ``input_turns``.
- An idle connection costs no task, no timer and no queue; containers are made on first use.
"""

import asyncio
from collections.abc import Sequence
from sys import intern
from typing import Any, Final, cast

from cmqd.server.access.audit_lines import FAILED_LOGINS
from cmqd.server.access.permissions import Permissions
from cmqd.server.admission.memory_budget import LEAST_BYTES
from cmqd.server.binary import peer_address
from cmqd.server.binary.deferred_input import LONE_FRAME_BYTES, PIECE_BYTES
from cmqd.server.binary.frame_filling import FrameFilling
from cmqd.server.binary.input_turns import InputTurns
from cmqd.server.binary.parked_requests import ParkedRequests
from cmqd.server.binary.reply_output import (
    DEFAULT_PATIENCE_MS,
    SLOW_AFTER_MS,
    ReplyOfQueue,
    UnreadOutput,
    encode_replies,
    without_cancelled,
)
from cmqd.server.binary.shared_state import Shared
from cmqd.server.broker_logger import get_logger
from cmqd.server.loop.io_batch import flush_failed
from cmqd.server.replies.held_reply_memory import body_bytes
from cmqd.server.replies.reply_gate import Outgoing
from cmqd_protocol.events import Authenticated, ConnectionEnded, RequestRefused
from cmqd_protocol.features import ClientFeature
from cmqd_protocol.large_replies import has_large_body
from cmqd_protocol.limits import MIN_HEARTBEAT_MS
from cmqd_protocol.messages import PUSH_TYPES, Cancel, Error, MessagesReceived, Request, SendMessages, error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_protocol.server_connection import CONNECTION_RETRY_MS
from cmqd_types.actors import NO_ACTOR, Actor
from cmqd_types.inspection import ConnectionInfo

_log = get_logger()

_EVENTS: Final = frozenset({Authenticated, Cancel, RequestRefused, ConnectionEnded})
"""The protocol object's events other than requests."""

CLOSE_WITHIN_MS: Final = 5_000
"""Time that a closing connection has to send its last bytes."""


class AcceptedConnection(asyncio.Protocol):
    """A client's connection; see the module.

    Invariants: ``unread_receives`` is the number of replies with messages that are at the gate or in ``_replies``, of
    receives that are collected, and of peeks that wait for bodies; the connection is in ``Shared.slow`` if and only if
    ``_slow`` is set; ``_replies`` is empty unless ``_dirty`` is set, the client is slow, or its handshake is not
    proved. See ``InputTurns`` for the invariants of the input.
    """

    __slots__ = (
        "_bytes_in",
        "_bytes_out",
        "_cancelled",
        "_charged",
        "_closing_ms",
        "_dirty",
        "_gate_bytes",
        "_is_unproved",
        "_parked",
        "_replies",
        "_shared",
        "_since_ms",
        "_slow",
        "_wire",
        "account",
        "actor",
        "checked_queues",
        "is_held",
        "is_slow",
        "is_stalled",
        "last_request_ms",
        "permissions",
        "product",
        "requests",
        "secret_id",
        "transport",
        "turns",
        "understands_stalls",
        "unread_receives",
        "waiting",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._wire = shared.make_wire(shared.time_ms)
        self.transport: asyncio.Transport | None = None
        """Set from ``connection_made`` to ``connection_lost``."""
        # Figures for operators, see ``info``. All connections of a step of the coarse time share its integer.
        self._since_ms = self.last_request_ms = shared.time_ms
        self.requests = self._bytes_in = self._bytes_out = 0
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
        self.is_stalled = False
        self.turns: InputTurns | None = None
        """Input that is not taken up on arrival; None until there is such input."""
        self.is_held = False
        """A request is being carried out in steps; later requests wait. An attribute and no property, because
        every request reads it."""
        self.account = ""
        """Empty until the connection has authenticated."""
        self.secret_id = ""
        self.product = ""
        self.actor = NO_ACTOR
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
        """See ``Client``."""
        return peer_address.peer_of(self.transport)

    @property
    def connection_id(self) -> int:
        """See ``Client``."""
        return self._wire.connection_id

    @property
    def is_private(self) -> bool:
        """See ``Client``."""
        return peer_address.is_private(self.transport)

    def info(self, now_ms: int) -> ConnectionInfo:
        """See ``connections.Connection``."""
        transport, wire = self.transport, self._wire
        local_ms = self._shared.time_ms
        return ConnectionInfo(
            connection_id=wire.connection_id,
            account=self.account,
            secret_id=self.secret_id,
            peer=self.peer,
            product=self.product,
            is_tls=peer_address.uses_tls(transport),
            since_ms=now_ms - (local_ms - self._since_ms),
            last_request_ms=now_ms - (local_ms - self.last_request_ms),
            requests=self.requests,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            unanswered=wire.outstanding,
            waiting=len(self.waiting or ()),
            unread_bytes=0 if transport is None else transport.get_write_buffer_size(),
            checked_queues=len(self.checked_queues or ()),
            name=self.actor.name,
        )

    # ------------------------------------------------------------------ the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the protocol on a new connection (after the TLS handshake, if TLS is on)."""
        shared = self._shared
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(shared.slow_reader_bytes)
        shared.on_made(self)
        self._flush_soon()

    def data_received(self, data: bytes) -> None:
        """Take the bytes of a read. The hot path begins here."""
        shared = self._shared
        size = len(data)
        shared.counters.bytes_in += size
        self._bytes_in += size
        has_time = shared.io_batch.take_input(size)
        turns = self.turns
        if (
            not has_time
            or (size > PIECE_BYTES and not self._is_lone_frame(data))
            or self.is_held
            or (turns is not None and turns.deferred)
        ):
            if turns is None:
                turns = self.turns = InputTurns(self, shared, self._wire)
            turns.add(data, is_in_time=has_time)
        else:
            wire = self._wire
            # The usual case: a client that waits for the answer to every request.
            request = wire.lone_request(data, shared.time_ms)
            if request is None:
                self.dispatch_each(wire.receive(data, shared.time_ms))
            else:
                self.requests += 1
                self.last_request_ms = shared.time_ms
                lone_sends = shared.lone_sends
                if not (
                    type(request) is SendMessages
                    and request.queue == lone_sends.queue
                    and wire.lone_id
                    and lone_sends.add(self, request)
                ):
                    shared.dispatch(self, request)
                if self._charged:
                    self.measure()
        if shared.overloaded and not self.is_stalled:
            self._stall()

    def _frame_filled(self, count: int) -> None:
        """Take the bytes of a read that are in the memory of a large frame, as ``data_received`` takes other bytes."""
        shared = self._shared
        shared.counters.bytes_in += count
        self._bytes_in += count
        self._input().fill(count, is_in_time=shared.io_batch.take_input(count))
        if shared.overloaded and not self.is_stalled:
            self._stall()

    def fill_frame(self, *, begins: bool) -> None:
        """Read into the memory of a large frame from the next read on, or no more."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            # A loop takes the new protocol when reading begins.
            if transport.is_reading():
                transport.pause_reading()
            transport.set_protocol(FrameFilling(self, self._wire.space, self._frame_filled) if begins else self)

    def _stall(self) -> None:
        self.is_stalled = True
        self._shared.stalled.append(self)
        self._input().plan()

    def eof_received(self) -> None:
        """Take up late input, which the end of the connection must not overtake; the transport closes."""
        turns = self.turns
        if turns is not None and turns.is_late and turns.has_turn:
            turns.take_turn()

    def _is_lone_frame(self, data: bytes) -> bool:
        """Return True if a large read is taken up on arrival; see ``LONE_FRAME_BYTES``."""
        return (
            len(data) <= LONE_FRAME_BYTES
            and not self.is_stalled
            and self._slow is None
            and self._wire.is_within_frame(data, LONE_FRAME_BYTES)
            and self._shared.io_batch.turns.is_free
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Return the messages and reservations of a closed connection and cancel its waiting requests."""
        shared = self._shared
        self.transport = None
        self._wire.closed()
        shared.slow.discard(self)
        shared.connections.remove(self)
        if self._is_unproved:
            shared.gate.forget(self._proved)
        self._let_go()
        self.turns = None
        slow = self._slow
        if slow is not None and slow.unsent is not None:
            self._return_messages(*slow.unsent)

    def pause_writing(self) -> None:
        """Stop reading: the socket's buffer is over its mark, because the client reads more slowly than it asks."""
        self._slow = UnreadOutput(self._shared.time_ms)
        self.is_slow = True
        self._shared.slow.add(self)
        self._input().plan()
        self.measure()
        if self.checked_queues is not None:
            self._shared.events.slowness_changed(self)

    def resume_writing(self) -> None:
        """Continue with the output, now that the client has read."""
        slow, self._slow = self._slow, None
        self.is_slow = False
        if slow is not None and slow.is_narrow and self.transport is not None:
            self.transport.set_write_buffer_limits(self._shared.slow_reader_bytes)
        self._shared.slow.discard(self)
        self._input().plan()
        self.measure()
        self._flush_soon()
        if self.checked_queues is not None:
            self._shared.events.slowness_changed(self)

    # ------------------------------------------------------------------ input

    def _input(self) -> InputTurns:
        """Return the input that is not taken up on arrival; it is made at first use."""
        turns = self.turns
        if turns is None:
            turns = self.turns = InputTurns(self, self._shared, self._wire)
        return turns

    def hold(self) -> None:
        """Dispatch no further request before ``release``: a request of the connection is being carried out in steps."""
        self.is_held = True
        self._input().plan()

    def put_back(self, request: Request) -> None:
        """Dispatch a request again on release, before all others: it arrived while the connection was held."""
        self.requests -= 1
        self._input().put_back(request)

    def release(self) -> None:
        """Go on with the requests behind the request that was carried out in steps."""
        self.is_held = False
        self._input().plan()
        if self._parked is not None:
            self._flush_soon()

    def measure(self) -> None:
        """Report the bytes held for this connection to the memory budget, which may drop the connection."""
        transport = self.transport
        size = 0
        if transport is not None and not transport.is_closing():
            size = self._wire.unfinished_bytes + transport.get_write_buffer_size() + self._gate_bytes
            turns = self.turns
            if turns is not None and turns.deferred is not None:
                size += turns.deferred.stored_bytes
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
        return self.transport is None or self._wire.ended is not None

    def note_held_replies(self, size: int) -> None:
        """See ``Client``."""
        self._gate_bytes = size
        self.measure()

    def drop(self, text: str) -> None:
        """See ``memory_budget.Holder``."""
        self._charged = 0
        self._shared.counters.dropped_for_memory += 1
        transport = self.transport
        if transport is None:
            return
        if transport.get_write_buffer_size():
            # A client that does not read would not read the error either, and its buffer would stay for a while.
            transport.abort()
        else:
            self.end(ErrorCode.BUSY, text, CONNECTION_RETRY_MS)

    def dispatch_each(self, events: Sequence[object]) -> int:
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
            turns = self._input()
            turns.add_decoded(events[taken:])
            if not self.is_held:
                turns.plan()
        if requests:
            self.requests += requests
            self.last_request_ms = shared.time_ms
        if not self.account or self._wire.ended is not None:
            self._flush_soon()
        turns = self.turns
        if self._charged or not events or (turns is not None and turns.deferred):
            # A frame that grows from read to read yields no events meanwhile.
            self.measure()
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

    # ------------------------------------------------------------------ replies

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        """Send a reply (or a push) at the end of this I/O batch.

        ``queue`` is given for a reply with messages: the queue they return to if the reply cannot be sent ("" if the
        messages were only peeked).
        """
        transport, wire, shared = self.transport, self._wire, self._shared
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
        transport = self.transport
        if transport is None or self._is_unproved:
            return
        if self._slow is not None:
            # Not in ``answer``, which the dispatcher calls while iterating over the waiting requests.
            if self.unread_receives > self._shared.max_unread_receives:
                self._park_waiting()
            self.measure()
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
            self._take_up_parked(self._parked)

    def _write_one(self, transport: asyncio.Transport, reply: Outgoing, queue: str | None) -> None:
        """Write a reply alone: the usual case of ``_write_all``, for a client that waits for the answer to every
        request.
        """
        encodable: Any = reply
        shared = self._shared
        if queue is not None and type(encodable) is MessagesReceived and has_large_body(encodable):
            pieces = self._wire.large_reply_to_send(encodable, shared.time_ms)
            self._count_out(pieces)
            transport.writelines(pieces)
        else:
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
            self.measure()

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

    def _take_up_parked(self, parked: ParkedRequests) -> None:
        shared = self._shared
        parked.take_up(self, shared)
        if not parked:
            self._parked = None
        elif shared.io_batch.turn_time.is_over:
            # The next flush goes on with the parked requests.
            self._flush_soon()
        self.measure()
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
            if self.turns is not None:
                self.turns.account = event.account
            # The same object for all connections of a key.
            self.secret_id = intern(event.secret_id)
            self.product = self._shared.product_of(event.product)
            host = peer_address.host_of(self.transport)
            self.actor = self._shared.kept_actor(Actor(event.account, self.secret_id, event.name, host))
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
        transport = self.transport
        if transport is None:
            return None
        if self._closing_ms is not None:
            if now_ms - self._closing_ms >= CLOSE_WITHIN_MS:
                transport.abort()
                return None
            return now_ms + CLOSE_WITHIN_MS
        self.measure()
        wire, turns = self._wire, self.turns
        if self.is_stalled or self._slow is not None or self.is_held or (turns is not None and turns.deferred):
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
        transport = self.transport
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
        self.is_stalled = False
        self._input().plan()

    def end(self, code: ErrorCode, text: str, retry_after_ms: int | None = None) -> None:
        """Close the connection with an error, after the replies that are already to be written."""
        if self.transport is None:
            return
        if self._is_unproved:
            # A welcome without a proof must not leave, nor can another reason reach a client without a welcome.
            self.transport.abort()
            return
        if self._slow is None:
            self._write_all(self.transport)
        self._wire.end(code, text, retry_after_ms=retry_after_ms)
        for event in self._wire.events():
            self._happened(event)
        self.flush()
        if self._closing_ms is None:
            self._close(self.transport)

    def abort(self) -> None:
        """Close the connection now and discard unsent bytes."""
        if self.transport is not None:
            self.transport.abort()

    def _flush_soon(self) -> None:
        if not self._dirty and self.transport is not None:
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
        if self.turns is not None:
            self.turns.drop()
        self.is_held = False
        self._parked = None
        self._cancelled = None
        replies = self._replies
        self._replies = []
        for reply, queue in replies:
            if queue is not None:
                self._give_back(reply, queue)
