"""The gateway's parts, for the modules with routes."""

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from cmqd_gateway.broker_connections import BrokerConnections, MakeClient
from cmqd_gateway.connection_guard import ConnectionGuards
from cmqd_gateway.key_secrets import KeySecret, KeySecrets, KeySource
from cmqd_gateway.monitoring.figures import FigureCache
from cmqd_gateway.monitoring.readiness import Readiness
from cmqd_gateway.rates import KeyRates
from cmqd_gateway.request_bodies import RequestBodies
from cmqd_gateway.settings import Settings
from cmqd_gateway.turns import HashThreads


class Gateway:
    """The parts of a gateway; a module with routes gets the gateway as argument."""

    def __init__(
        self,
        settings: Settings,
        source: KeySource,
        make_client: MakeClient,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the parts.

        Args:
            settings: the settings.
            source: the origin of secrets.
            make_client: makes the native client of a key.
            now: the clock of all parts, in seconds.
            wall_clock: the time of day, in seconds since 1970.
        """
        self.now: Callable[[], float] = now
        """The clock."""
        self.wall_clock: Callable[[], float] = wall_clock
        """The time of day, for the time stamps of requests."""
        self.settings: Settings = settings
        self.secrets: KeySecrets = KeySecrets(source, now)
        """Secrets of keys; forget a key here when the broker reports a change."""
        self.connections: BrokerConnections = BrokerConnections(
            make_client, settings.gateway_connections, settings.key_idle_seconds, now
        )
        """Clients of keys."""
        self.bodies: RequestBodies = RequestBodies(
            settings.max_request_bytes, settings.body_memory_bytes, settings.slow_client_seconds
        )
        """Reads the bodies of requests."""
        self.hashes: HashThreads = HashThreads()
        """Threads for the signatures of large requests."""
        self.rates: KeyRates = KeyRates(settings.max_requests_per_second_per_key, now)
        """Rates of keys."""
        self.guards: ConnectionGuards = ConnectionGuards(settings.max_connections, settings.slow_client_seconds, now)
        """The HTTP connections."""
        self.figures: FigureCache = FigureCache(settings.metrics_top, settings.metrics_cache_seconds, now)
        """The figures of ``/metrics``."""
        self.metrics_key: KeySecret | None = None
        """The key that reads the figures; None = the key of the request."""
        self.readiness: Readiness = Readiness(now)
        """The readiness of the broker; its probe uses the gateway's own key."""
        self.is_draining = False
        """True while the gateway is ending: no more connections are accepted, and answers close their connections."""
        self._undoing: set[asyncio.Task[object]] = set()

    async def close(self) -> None:
        """Undo the lost answers, then close the connections to the broker; the close ends the long polls."""
        self.is_draining = True
        while self._undoing:
            await asyncio.wait(self._undoing)
        await self.readiness.close()
        await self.figures.close()
        await self.connections.close()
        await self.secrets.close()

    def port_of(self, request: web.BaseRequest) -> int:
        """Return the port of the listener that a request came to; 0 if the connection is lost."""
        transport = request.transport
        name = None if transport is None else transport.get_extra_info("sockname")
        return int(name[1]) if name else 0

    async def write_or(
        self, request: web.BaseRequest, response: web.Response, undo: Callable[[], Awaitable[object]]
    ) -> None:
        """Write an answer that must not be lost; without a connection for it, call ``undo``.

        The undoing goes on when the handler is cancelled, as it is when its connection is lost.

        Raises:
            ConnectionResetError: the connection is lost.
        """
        try:
            if _is_gone(request.transport):
                raise ConnectionResetError("the client has gone")
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            self.undo_later(undo)
            raise

    def undo_later(self, undo: Callable[[], Awaitable[object]]) -> None:
        """Call ``undo`` in a task of its own; the end of the gateway waits for the task."""

        async def undoing() -> None:
            with contextlib.suppress(Exception):
                # Without success the messages come back when their visibility timeout ends.
                await undo()

        task: asyncio.Task[object] = asyncio.create_task(undoing())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)


def _is_gone(transport: asyncio.BaseTransport | None) -> bool:
    """Return True if the connection is lost, or the client has closed its side.

    The loop may not have handled the close yet: messages written now would be out until their visibility timeout ends.
    """
    if transport is None or transport.is_closing():
        return True
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), _HANGUP)
    return bool(poll.poll(0))


_HANGUP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
