"""Limits of HTTP connections that aiohttp does not have: slow heads, slow readers, the number of connections.

A guard stands between the socket and aiohttp's protocol and passes all events on. The guard records the time from which
a head is incomplete, and the time from which the client does not read an answer. A check once a second over all
connections closes the late connections: no connection has a timer of its own.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, cast

CHECK_SECONDS: Final = 1.0


class ConnectionGuard(asyncio.Protocol):
    """Passes the events of a connection on to aiohttp's protocol; see the module."""

    __slots__ = (
        "_guards",
        "_has_seat",
        "_inner",
        "_is_refused",
        "head_since",
        "in_request",
        "stuck_since",
        "transport",
    )

    def __init__(self, guards: "ConnectionGuards", inner: asyncio.Protocol, *, has_seat: bool) -> None:
        self._guards = guards
        self._inner = inner
        self._has_seat = has_seat
        self._is_refused = False
        self.transport: asyncio.Transport | None = None
        self.head_since: float | None = None
        """Time of the first bytes of an incomplete head; None = no head has begun."""
        self.stuck_since: float | None = None
        """Time from which the client does not read its answers; None = the socket takes bytes."""
        self.in_request = False
        """True while a handler is at work."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the asyncio event: a client connected."""
        # Not checked by isinstance: the transports of uvloop are no subclasses.
        self.transport = cast("asyncio.Transport", transport)
        if self._has_seat:
            self._guards.release()
        if not self._guards.add(self):
            self._is_refused = True
            self.transport.abort()
            return
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Handle the asyncio event: bytes arrived."""
        if self._is_refused:
            return
        if not self.in_request and self.head_since is None:
            self.head_since = self._guards.now()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Handle the asyncio event: the client sends no more bytes."""
        return None if self._is_refused else self._inner.eof_received()

    def pause_writing(self) -> None:
        """Handle the asyncio event: the client does not read, and the buffer is full."""
        self.stuck_since = self._guards.now()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Handle the asyncio event: the buffer has room again."""
        self.stuck_since = None
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the asyncio event: the connection is closed."""
        if not self._is_refused:
            self._guards.remove(self)
            self._inner.connection_lost(exc)


class ConnectionGuards:
    """The guards of all connections."""

    def __init__(self, max_connections: int, slow_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Make the guards.

        Args:
            max_connections: connections at once; further connections are closed at once.
            slow_seconds: time for a head, and for a client that does not read.
            now: the clock, in seconds.
        """
        self._max_connections = max_connections
        self._slow_seconds = slow_seconds
        self.now = now
        self._guards: dict[asyncio.BaseTransport, ConnectionGuard] = {}
        self.refused: int = 0
        """Connections that were closed because there were too many."""
        self.closed_as_slow: int = 0
        self.arriving: int = 0
        """Seats of sockets in the TLS handshake: they count among the connections."""

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._guards)

    def reserve(self) -> bool:
        """Take a seat for a socket before its TLS handshake; False if there are too many connections."""
        if len(self._guards) + self.arriving >= self._max_connections:
            self.refused += 1
            return False
        self.arriving += 1
        return True

    def release(self) -> None:
        """Give a seat back: the handshake ended."""
        self.arriving -= 1

    def add(self, guard: ConnectionGuard) -> bool:
        """Register a connection; False if there are too many."""
        if len(self._guards) + self.arriving >= self._max_connections:
            self.refused += 1
            return False
        assert guard.transport is not None
        self._guards[guard.transport] = guard
        return True

    def remove(self, guard: ConnectionGuard) -> None:
        """Forget a connection that is closed."""
        assert guard.transport is not None
        self._guards.pop(guard.transport, None)

    @property
    def connections_in_request(self) -> int:
        """Number of connections with a handler at work."""
        return sum(guard.in_request for guard in self._guards.values())

    @property
    def partial_heads(self) -> int:
        """Number of connections with a part of a head."""
        return sum(guard.head_since is not None for guard in self._guards.values())

    def make(self, inner: asyncio.Protocol, *, has_seat: bool = False) -> ConnectionGuard:
        """Return a guard for a new connection, before the protocol that serves it.

        ``has_seat``: the connection takes the place of a seat of :meth:`reserve`.
        """
        return ConnectionGuard(self, inner, has_seat=has_seat)

    def begin_request(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a handler begins: the head is complete. The handler limits the time of the body."""
        guard = None if transport is None else self._guards.get(transport)
        if guard is not None:
            guard.in_request = True
            guard.head_since = None

    def end_request(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a handler ended."""
        guard = None if transport is None else self._guards.get(transport)
        if guard is not None:
            guard.in_request = False

    def close_slow(self) -> None:
        """Close the connections with a late client; to be called about once a second."""
        latest = self.now() - self._slow_seconds
        for guard in list(self._guards.values()):
            is_late = any(since is not None and since <= latest for since in (guard.head_since, guard.stuck_since))
            if is_late and guard.transport is not None:
                self.closed_as_slow += 1
                guard.transport.abort()
