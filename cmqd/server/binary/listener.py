"""Accepts connections, and drives the coarse timer over all of them.

A connection above the limit gets an error and is closed. Running out of descriptors cannot happen, because the number
of connections is kept below the process's limit (``listening.connection_limit``). Should the limit be reached all the
same, libuv closes a spare descriptor, accepts and closes the new connection, and takes the spare again, so that the
loop does not spin.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from cmqd.core.limits import CMQ_MAX_DELAY_MS
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.audit_lines import Audit
from cmqd.server.admission.memory_budget import MemoryBudget
from cmqd.server.binary.accepted_connection import AcceptedConnection
from cmqd.server.binary.shared_state import Shared, VisitedConnection
from cmqd.server.binary.tls_port import TlsPort
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client import Client
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.clients.connection_timer import STEP_MS, ConnectionTimer, local_ms
from cmqd.server.clients.connections import Connections
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.monitoring.counters import Counters
from cmqd.server.process.listening import tls_context_of
from cmqd.server.replies.reply_gate import Gate
from cmqd.server.requests.collecting import Collector
from cmqd.settings import Settings
from cmqd_protocol.features import Feature
from cmqd_protocol.handshake import AccessKey
from cmqd_protocol.limits import NONCE_BYTES
from cmqd_protocol.messages import Request
from cmqd_protocol.server_connection import ServerConnection

_log = get_logger()

BACKLOG: Final = 4_096
"""Connections that the kernel may hold until they are accepted: many clients reconnect at once after a restart."""

PIECES: Final = 25
"""Thousands of connections can be due at once, at some 20 us each: they are visited in this many pieces, spread over
half a step of the timer or more, because requests that arrive meanwhile would wait behind them."""
LEAST_VISITS: Final = 8


class Listener:
    """The listening sockets and the connections accepted on them."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        dispatch: Callable[[Client, Request], None],
        dispatch_run: Callable[[Client, Sequence[Any]], int],
        events: ClientEvents,
        collector: Collector,
        io_batch: IoBatch,
        budget: MemoryBudget,
        connections: Connections,
        counters: Counters,
        accounts: Accounts,
        audit: Audit,
        gate: Gate,
        epoch: int = 0,
        addresses: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._accounts = accounts
        self._connections = connections
        self._features = _features(settings.max_delay_ms)
        self._last_connection_id = 0
        self._epoch = epoch
        self._addresses = addresses
        self._server: asyncio.Server | None = None
        self._private: asyncio.Server | None = None
        """A second listening socket, see ``start_private``."""
        self._tls_port: TlsPort | None = None
        now_ms = local_ms()
        self._connection_timer: ConnectionTimer[VisitedConnection] = ConnectionTimer(now_ms)
        self._due: list[VisitedConnection] = []
        """To be looked at within a step of the timer, a few at a time."""
        self._visits: asyncio.TimerHandle | None = None
        self._shared = Shared(
            dispatch=dispatch,
            dispatch_run=dispatch_run,
            events=events,
            decide_collected=collector.decide_of,
            lone_sends=collector.lone_sends,
            io_batch=io_batch,
            budget=budget,
            counters=counters,
            make_wire=self._make_wire,
            permissions_of=accounts.permissions_of,
            on_made=self._made,
            connections=connections,
            on_login_failed=audit.login_failed,
            gate=gate,
            time_ms=now_ms,
            slow_reader_bytes=settings.slow_reader_bytes,
            max_unread_bytes=settings.max_unread_bytes,
            max_unread_receives=settings.max_unread_receives,
        )

    def __repr__(self) -> str:
        return f"<Listener slow={len(self._shared.slow)}>"

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address of the first socket.

        Raises:
            OSError: the address cannot be had.
        """
        host, port = self._settings.listen_address
        context = tls_context_of(self._settings)
        if context is not None:
            self._tls_port = TlsPort(
                loop=self._loop,
                context=context,
                make_connection=self.make_connection,
                has_room=lambda arriving: arriving + len(self._connections) < self._connections.limit,
                timeout_s=self._settings.authentication_timeout_ms / 1000,
            )
        make_protocol = self.make_connection if self._tls_port is None else self._tls_port.make_arrival
        self._server = await self._loop.create_server(make_protocol, host, port, backlog=BACKLOG, reuse_address=True)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def start_private(self) -> tuple[str, int]:
        """Listen at a free port of loopback too, without TLS, for processes that the server starts; return the address.

        Raises:
            OSError: no address can be had.
        """
        self._private = await self._loop.create_server(self.make_connection, "127.0.0.1", 0, backlog=BACKLOG)
        bound: tuple[str, int] = self._private.sockets[0].getsockname()[:2]
        return bound

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets."""
        return [each for server in (self._server, self._private) if server is not None for each in server.sockets]

    @property
    def uses_tls(self) -> bool:
        """True if connections are made with TLS."""
        return self._tls_port is not None

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use a new certificate and key for all later handshakes."""
        assert self._tls_port is not None
        self._tls_port.context = context

    def make_connection(self) -> AcceptedConnection:
        """Return the protocol for a connection that was just accepted."""
        return AcceptedConnection(self._shared)

    def pause_reading(self, is_overloaded: bool) -> None:
        """Read no more from clients, or go on, because the load has changed."""
        shared = self._shared
        shared.overloaded = is_overloaded
        _log.warning("reading_paused" if is_overloaded else "reading_resumed")
        if not is_overloaded:
            stalled = shared.stalled
            shared.stalled = []
            for connection in stalled:
                connection.go_on()

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        for server in (self._server, self._private):
            if server is not None:
                server.close()
        if self._tls_port is not None:
            self._tls_port.close()

    def stop_timer(self) -> None:
        """Visit no connection any more."""
        if self._visits is not None:
            self._visits.cancel()

    def _make_wire(self, time_ms: int) -> ServerConnection:
        self._last_connection_id += 1
        settings = self._settings
        return ServerConnection(
            nonce=os.urandom(NONCE_BYTES),
            find_key=self._find_key,
            count_refusal=self._connections.refusal_of,
            region=settings.region,
            connection_id=self._last_connection_id,
            now_ms=time_ms,
            max_frame_bytes=settings.max_frame_bytes,
            heartbeat_ms=settings.heartbeat_ms,
            authentication_timeout_ms=settings.authentication_timeout_ms,
            max_outstanding=settings.max_requests_per_connection,
            features=self._features,
            shard=settings.shard,
            epoch=self._epoch,
            addresses=self._addresses(),
        )

    def _find_key(self, secret_id: str) -> AccessKey | None:
        key = self._accounts.find_key(secret_id)
        return None if key is None else AccessKey(account=key.account, secret_key=key.secret_key)

    def _made(self, connection: VisitedConnection) -> None:
        self._connections.add(connection)
        self._look_again(connection)

    def _look_again(self, connection: VisitedConnection) -> None:
        due_ms = connection.visit()
        if due_ms is not None:
            self._connection_timer.add(connection, due_ms)

    def _visit_some(self) -> None:
        due = self._due
        count = max(LEAST_VISITS, len(due) // PIECES)
        self._due = due[count:]
        self._visits = self._loop.call_later(STEP_MS / 1000 / PIECES, self._visit_some) if self._due else None
        for connection in due[:count]:
            self._look_again(connection)

    def pass_time(self, time_ms: int) -> None:
        """Advance the coarse time and visit the connections that are due."""
        shared = self._shared
        shared.time_ms = time_ms
        self._due += self._connection_timer.turn(time_ms)
        if self._visits is None:
            self._visit_some()
        for connection in list(shared.slow):
            connection.check_slow()
        idle, shared.idle = shared.idle, []
        for connection in idle:
            connection.rest_with_others()


def _features(max_delay_ms: int) -> list[Feature]:
    """Return the words of this server. A client learns from ``long_delays`` that delays beyond CMQ's limit may work."""
    return [word for word in Feature if word is not Feature.LONG_DELAYS or max_delay_ms > CMQ_MAX_DELAY_MS]
