"""A link: a connection to the server that is opened again whenever it ends.

     DOWN ──a call waits, or it was lost───► CONNECTING ──opened──► UP ◄─┐ another server leads (``looking``)
      ▲                                        │   ▲                │ └──┘
      ├──── refused for good (key, region) ────┘   └── lost, or the server is shutting down ──┘
      └──── closed

While CONNECTING the link keeps trying, with growing, jittered pauses (``retry.RetryPolicy``); a call that needs the
link waits with its own time limit. A refusal that will not change by itself (wrong key, region, version) ends the
attempts; the next request over the link starts them again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from copy import copy
from math import inf
from random import random
from typing import TypeAlias

from cmqd_client.connection import Connection, OnEnded
from cmqd_client.errors import (
    ClientClosed,
    CmqError,
    ConnectionRefused,
    ProtocolViolation,
    ServerUnreachable,
)
from cmqd_client.events import Connected, Event, GaveUp, Lost, Reconnecting
from cmqd_client.links.leader_search import Beside, LeaderSearch
from cmqd_client.links.retry import RetryPolicy

_log = logging.getLogger(__name__)

Opener: TypeAlias = Callable[[OnEnded], Awaitable[Connection]]
"""Opens a connection; the argument is called when the connection takes no more requests."""


class Link:
    """A connection to the server that is opened again whenever it ends; the module shows the states.

    Invariants: ``connection`` is set exactly while UP; a task exists exactly while CONNECTING; ``_waiting`` is empty
    unless CONNECTING.
    """

    def __init__(
        self,
        open_connection: Opener,
        policy: RetryPolicy,
        on_connected: Callable[[Connection], None] | None = None,
        report: Callable[[Event], None] | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Make a link.

        Args:
            open_connection: opens a connection.
            policy: the pauses between attempts.
            on_connected: called with each new connection before other calls can use the connection.
            report: called with each event of the link; must not raise.
            beside: the other addresses of the service; None = there are none.
        """
        self._open = open_connection
        self._on_connected = on_connected
        self._report = report or _ignore
        self._policy = policy
        self._looking = None if beside is None else LeaderSearch(beside, self._ended, self._move)
        self._moves: set[asyncio.Future[None]] = set()
        """Pauses that end when the link has another connection."""
        self._closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[Connection]] = set()
        self._retired: list[Connection] = []
        """Connections that take no more requests but may still owe answers."""
        self._last_error: CmqError | None = None
        self._follows = False
        """The connection ended with the address of another server: the next attempt needs no pause."""
        self._followed_at = -inf
        """Loop time of the last attempt without a pause."""
        self.connection: Connection | None = None
        """The connection to use; None = not connected, see :meth:`wait_connected`."""
        self.warns_of_wait: bool = False
        """Log a warning if the next attempt fails: the opening has no time limit, and no error would tell that there is
        no server."""
        self.opened: int = 0
        """Number of connections opened so far."""
        self.refused: bool = False
        """True if the last attempt was refused for good, and no attempt was made since."""

    def start(self) -> None:
        """Begin to connect, unless the link is up or connecting."""
        if self.connection is None and self._connecting is None and not self._closed:
            self.refused = False
            self._connecting = asyncio.create_task(self._connect())

    async def wait_connected(self, timeout: float) -> Connection:
        """Return the connection, as soon as the link is up. Safe to cancel.

        Raises:
            ServerUnreachable: no connection within ``timeout`` seconds; the reason of the last attempt is its cause.
            ConnectionRefused: the server refused every attempt within ``timeout`` seconds (``TooManyConnections``: the
                link continues to try), or refuses this client for good.
            ProtocolViolation: the peer is not a cmqd server.
            ClientClosed: the link was closed.
        """
        if self._closed:
            raise ClientClosed("the client is closed")
        if self.connection is not None:
            return self.connection
        self.start()
        loop = asyncio.get_running_loop()
        started = loop.time()
        arrived: asyncio.Future[Connection] = loop.create_future()
        self._waiting.add(arrived)
        try:
            # uvloop cannot schedule an infinite time.
            async with asyncio.timeout(None if timeout == inf else timeout):
                return await arrived
        except TimeoutError:
            reason = self._last_error
            if isinstance(reason, ConnectionRefused):
                raise _copy(reason) from reason
            why = "no answer yet" if reason is None else reason.text
            # Not the limit: a busy program waits longer, and the error would name a shorter wait than the user saw.
            raise ServerUnreachable(f"no connection within {loop.time() - started:.3g} s: {why}") from reason
        finally:
            self._waiting.discard(arrived)

    async def close(self) -> list[Connection]:
        """Stop connecting; waiting calls fail with ClientClosed. Returns the connections, for the caller to close."""
        self._closed = True
        connections = self._retired + ([] if self.connection is None else [self.connection])
        self.connection, self._retired = None, []
        task = self._connecting
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._looking is not None:
            await self._looking.stop()
        self._fail(ClientClosed("the client was closed"))
        return connections

    async def pause(self, seconds: float, connection: Connection) -> None:
        """Wait, but no longer than until the link has left a connection for another server. Safe to cancel."""
        if self.connection is not connection or not connection.is_doubted:
            await asyncio.sleep(seconds)
            return
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moves.add(moved)
        try:
            await asyncio.wait([moved], timeout=seconds)
        finally:
            self._moves.discard(moved)

    def _move(self, left: Connection, found: Connection) -> None:
        """Use the connection to another server, which leads, in place of a connection that does not answer.

        The new connection is in place before the end of the former: the calls that were under way there are repeated,
        and must not find the link down.
        """
        if self._closed or self.connection is not left or not found.usable:
            # The link has another connection by now, or is looking for one.
            left.is_doubted = False
            found.leave("the connection is not needed")
            return
        why = f"{left.host} does not answer, and {found.host} leads"
        self.connection = found
        self._report(Lost(left.host, left.connection_id, why))
        left.leave(why)
        self._use(found)

    def _ended(self, connection: Connection) -> None:
        """Retire a connection that takes no more requests: lost, or the server is shutting down."""
        if self.connection is connection:
            self.connection = None
            self._report(Lost(connection.host, connection.connection_id, connection.why_ended))
            self._retired = [retired for retired in (*self._retired, connection) if not retired.is_closed]
            self._follows = connection.elsewhere is not None
            self.start()

    async def _connect(self) -> None:
        attempt = 0
        suggested: float | None = None
        try:
            while True:
                if self._may_follow():
                    self._report(Reconnecting(attempt + 1, 0.0, ""))
                elif attempt or self.opened:
                    # Also before the first attempt to *re*connect: all clients of a server notice its end at the same
                    # moment, and without a random pause all of them would connect at the same moment.
                    pause = self._policy.delay(max(attempt, 1), random())
                    pause = max(pause, min(suggested or 0, self._policy.max_retry_after))
                    why = "" if self._last_error is None else self._last_error.text
                    self._report(Reconnecting(attempt + 1, pause, why))
                    await asyncio.sleep(pause)
                attempt += 1
                try:
                    connection = await self._open(self._ended)
                except CmqError as error:
                    self._last_error = error
                    suggested = error.retry_after
                    if self.warns_of_wait:
                        self.warns_of_wait = False
                        _log.warning(
                            "no server answers, the client waits and goes on: %s",
                            error,
                            extra={"event": "waiting_for_server", "why": error.text},
                        )
                    if _is_final(error):
                        self.refused = True
                        self._report(GaveUp(error.text))
                        self._fail(error)
                        return
                    continue
                except Exception as bug:
                    # An unforeseen error would also end the next attempt, and waiting calls would wait for nothing.
                    error = ServerUnreachable(f"connecting failed: {bug!r}")
                    error.__cause__ = bug
                    self._report(GaveUp(error.text))
                    self._fail(error)
                    return
                if connection.usable:
                    break
                # The connection was lost again between its opening and this line.
        finally:
            self._connecting = None
        self._use(connection)

    def _use(self, connection: Connection) -> None:
        """Give an open connection to the calls."""
        self.opened += 1
        self.warns_of_wait = False
        self._last_error = None
        self.connection = connection
        self._report(Connected(connection.host, connection.connection_id, connection.server, self.opened))
        if self._looking is not None:
            connection.on_stalled = self._looking.begin
        if self._on_connected is not None:
            self._on_connected(connection)
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(connection)
        moves, self._moves = self._moves, set()
        for moved in moves:
            if not moved.done():
                moved.set_result(None)

    def _may_follow(self) -> bool:
        """True if the next attempt follows to another server, at once.

        Two servers that accept connections and name each other would otherwise exchange this client without a pause.
        """
        if not self._follows:
            return False
        self._follows = False
        now = asyncio.get_running_loop().time()
        if now - self._followed_at < self._policy.max_delay:
            return False
        self._followed_at = now
        return True

    def _fail(self, error: CmqError) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                # A new exception per call: a shared exception would collect the tracebacks of all calls.
                future.set_exception(_copy(error))

    def __repr__(self) -> str:
        state = "up" if self.connection is not None else "connecting" if self._connecting is not None else "down"
        return f"<Link {state}, opened {self.opened}x, {len(self._waiting)} waiting>"


def _ignore(event: Event) -> None:
    """Discard an event."""


def _is_final(error: CmqError) -> bool:
    """True if another attempt would fail in the same way until the configuration changes."""
    if isinstance(error, ProtocolViolation):
        return True
    return isinstance(error, ConnectionRefused) and not error.retryable


def _copy(error: CmqError) -> CmqError:
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied
